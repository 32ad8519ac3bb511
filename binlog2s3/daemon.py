"""The streaming daemon: puts the pieces together, runs the loop, ends in order.

Place in the flow: below `cli`, above everything else. One loop owns all state of the stream; three
helpers have threads of their own (the source's watch, the heartbeat, the workers for the store) and
speak to it through values.

Law: the start reads, checks and only then claims; the end is the same after SIGTERM, after a dead
child and after an error: stop reading, give what is in flight a few seconds, make the spool
durable, say so in the bucket. What was not uploaded is in the spool or at the source.
"""

import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from queue import SimpleQueue
from types import FrameType

from binlog2s3.archive import Limits
from binlog2s3.catalog import Layout, Lineage, Position
from binlog2s3.config import Config, S3Config
from binlog2s3.coverage import Coverage
from binlog2s3.errors import (
    Binlog2s3Error,
    GapError,
    SpoolError,
    StoreError,
    SupersededError,
)
from binlog2s3.grid import Grid
from binlog2s3.intake import Intake
from binlog2s3.log import Log
from binlog2s3.login import resolve
from binlog2s3.mysqlbinlog import Child, derive_server_id
from binlog2s3.options import MIN_PART_SIZE
from binlog2s3.server import Server
from binlog2s3.spool import Run, RunFacts, Spool
from binlog2s3.start import Plan, mend_entries, prepare, sweep_spool, target
from binlog2s3.store import PATIENT, RetryPolicy, S3Store, StoreConfig
from binlog2s3.tailer import Tailer
from binlog2s3.uploader import Uploader
from binlog2s3.watch import Sight, Watch
from binlog2s3.workers import Workers
from binlog2s3.writer import Progress, State, Writer, give_way

_log = Log("daemon")
_POLL_SECONDS = 0.05
_WATCH_SECONDS = 2.0
_CHECK_ROOM_SECONDS = 1.0
_DRAIN_SECONDS = 3.0
_FAREWELL_SECONDS = 2.0


def stream(config: Config) -> int:
    """Stream until a signal comes; the exit status. Raises a Binlog2s3Error for what stops it."""
    stop = Stop()
    settings = _store_config(config.s3)
    quick = replace(settings, connect_timeout_seconds=5.0, read_timeout_seconds=6.0)
    spool = Spool(config.spool)
    try:
        with (
            closing(S3Store(quick, stop=stop.event, policy=RetryPolicy(attempts=2))) as store,
            Server(lambda: resolve(config.mysql)) as server,
        ):
            plan = _unless_stopped(stop, lambda: _begin(config, server, store, spool, stop))
        if plan is None:
            return stop.status
        with closing(S3Store(settings, stop=stop.event)) as store:
            return _Stream(config, plan, store, spool, stop).run()
    finally:
        spool.close()


def _begin(config: Config, server: Server, store: S3Store, spool: Spool, stop: "Stop") -> Plan:
    """Give way to the writer that took over from this spool, if it works; else find where to begin.

    In this order: what is found would be old after the watch, and mysqlbinlog must not be started
    while the other one works, which it would evict.
    """
    noted, layout = spool.superseded_by(), Layout(config.s3.prefix, config.stream.source)
    if noted and not config.stream.take_over and noted.concerns(layout.source, target(config)):
        give_way(store, layout, noted, stop=stop.event)
    if not any(run.files() for run in spool.runs()):
        spool.check_room()  # before the claim; what earlier runs left can make room behind it
    return prepare(config, server, store, spool)


def _unless_stopped(stop: "Stop", start: Callable[[], Plan]) -> Plan | None:
    """What the start found; None after a signal, which also ends its waits with an error."""
    try:
        plan = start()
    except Binlog2s3Error:
        if stop.signal:
            return None
        raise
    return None if stop.signal else plan


def _nothing() -> None:
    pass


class Stop:
    """The wish to end: set by a signal, or by a thread that cannot go on."""

    def __init__(self) -> None:
        self.event = threading.Event()
        self.signal = 0
        self.error: BaseException | None = None
        self.wake: Callable[[], None] = _nothing
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                signal.signal(number, self._on_signal)

    @property
    def status(self) -> int:
        """Exit status of an end that was asked for: 0 after SIGTERM, 130 after SIGINT."""
        return 130 if self.signal == signal.SIGINT else 0

    def fail(self, error: BaseException) -> None:
        """End with this error; the first one counts."""
        self.error = self.error or error
        self.event.set()
        self.wake()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        if self.event.is_set():
            os._exit(128 + number)  # the second one does not wait
        self.signal = number
        self.event.set()
        self.wake()


def _store_config(s3: S3Config) -> StoreConfig:
    return StoreConfig(
        bucket=s3.bucket,
        endpoint_url=s3.endpoint_url,
        region=s3.region,
        addressing_style=s3.addressing_style,
        profile=s3.profile,
        storage_class=s3.storage_class,
        sse=s3.sse,
        sse_kms_key_id=s3.sse_kms_key_id,
        checksum=s3.checksum,
        concurrency=s3.concurrency,
    )


class _Stream:
    """The loop and what it holds."""

    def __init__(
        self, config: Config, plan: Plan, store: S3Store, spool: Spool, stop: Stop
    ) -> None:
        self._config = config
        self._plan = plan
        self._preflight = store
        self._store = store.with_policy(PATIENT, self._store_failed)
        self._spool = spool
        self._stop = stop
        self._grid = Grid(config.s3.part_size)
        self._audits: SimpleQueue[tuple[list[str], float]] = SimpleQueue()
        self._workers = Workers(config.s3.concurrency)
        self._coverage = Coverage(plan.durable, plan.following)
        self._watch = Watch(
            Server(lambda: resolve(config.mysql)),
            plan.facts.uuid,
            interval_seconds=_WATCH_SECONDS,
            seen=self._coverage.seen,
            failed=stop.fail,
            stop=stop.event,
        )
        self._writer = Writer(
            store=self._store,
            layout=plan.layout,
            spool=spool,
            target=target(config),
            server_uuid=plan.facts.uuid,
            interval_seconds=config.stream.heartbeat_interval,
            progress=self._progress,
            audit=lambda keys, asked_at: self._audits.put((keys, asked_at)),
            failed=stop.fail,
            stop=stop.event,
        )
        self._intake = Intake(
            plan,
            store=self._store,
            spool=spool,
            writer=self._writer,
            watch=self._watch,
            open_uploader=self._open_uploader,
        )
        self._tailer: Tailer | None = None
        stop.wake = self._workers.wake

    def run(self) -> int:
        """Claim, stream, end in order; 0 after SIGTERM, 130 after SIGINT."""
        self._writer.claim(self._preflight)
        self._spool.forget_superseder()
        mend_entries(self._preflight, self._plan, self._grid)
        sweep_spool(self._spool, self._plan)
        for track in self._plan.adopted:
            self._intake.admit(track)
        if self._plan.refused is not None:
            return self._salvage(self._plan.refused)
        run = self._make_room()
        child = self._start_child(run)
        self._tailer = tailer = Tailer(run, self._grid)
        self._watch.start()
        self._writer.start()
        try:
            self._loop(child, tailer)
        except BaseException as error:  # noqa: BLE001 - raised again when all is in order
            self._stop.fail(error)
        return self._end(child, tailer)

    def _salvage(self, refused: GapError) -> int:
        """The source cannot go on where the spool ends: bring in what the spool has, then end.

        What the source has purged may be nowhere else.
        """
        _log.warning("bringing in what the spool has, before the end", error=refused)
        if self._plan.unfinished is not None:
            self._intake.admit(self._plan.unfinished)
        self._writer.start()
        try:
            while not self._stop.event.is_set():
                self._intake.judge()
                uploader = self._intake.uploader
                if uploader is None or uploader.done:
                    self._stop.fail(refused)
                    break
                uploader.flush()
                self._upload(_POLL_SECONDS)
        except BaseException as error:  # noqa: BLE001 - raised again when all is in order
            self._stop.fail(error)
        return self._end(None, None)

    def _make_room(self) -> Run:
        """A run's directory; where the spool is full, what earlier runs left is archived first."""
        while True:
            try:
                self._spool.check_room()
                return self._new_run()
            except SpoolError as error:
                self._intake.judge()
                uploader = self._intake.uploader
                if uploader is None or not uploader.pending or self._stop.event.is_set():
                    raise
                _log.warning("no room for a new run yet", error=error)
                waiting = uploader.pending
                while uploader.pending == waiting and not self._stop.event.is_set():
                    self._upload(_POLL_SECONDS)

    def _new_run(self) -> Run:
        return self._spool.begin(
            RunFacts(
                source=self._config.stream.source,
                target=target(self._config),
                server_uuid=self._plan.facts.uuid,
                binlog=str(self._plan.begin),
                position=4,
                lineage=self._intake.lineage.id if self._intake.lineage else None,
            )
        )

    def _start_child(self, run: Run) -> Child:
        mysql, source = self._config.mysql, self._config.stream.source
        server_id = mysql.server_id or derive_server_id(f"{source} {target(self._config)}")
        child = Child(
            self._plan.tool,
            resolve(mysql),
            server_id=server_id,
            directory=run.directory,
            binlog=self._plan.begin,
            on_line=lambda line: _log.warning("mysqlbinlog says", line=line),
        )
        _log.info(
            "streaming",
            source=source,
            server=self._plan.facts.uuid,
            version=self._plan.facts.version,
            tls=self._plan.facts.tls,
            binlog=self._plan.begin,
            to=target(self._config),
            mysqlbinlog=self._plan.tool.path,
            pid=child.pid,
            server_id=server_id,
        )
        return child

    def _loop(self, child: Child, tailer: Tailer) -> None:
        next_check = 0.0
        while not self._stop.event.is_set():
            if time.monotonic() >= next_check:
                self._spool.check_room()
                next_check = time.monotonic() + _CHECK_ROOM_SECONDS
            ended = child.poll() is not None  # asked first: what it wrote before is read below
            read = self._round(tailer, 0.0 if ended else _POLL_SECONDS)
            if ended and not read:
                self._blame_other_writer()
                raise child.failure()

    def _blame_other_writer(self) -> None:
        """A writer that took over evicts our child: it has the same server id."""
        try:
            self._writer.look(self._preflight)
        except StoreError as error:
            _log.warning("could not look for another writer", error=error)

    def _round(self, tailer: Tailer, wait_seconds: float) -> bool:
        """Read a slice, judge, start requests, take outcomes; whether anything was read."""
        before = tailer.current
        read = bool(tailer.pump()) or tailer.current is not before
        for track in tailer.take_new():
            self._intake.admit(track)
        self._intake.judge()
        self._upload(0.0 if read else wait_seconds)
        return read

    def _upload(self, wait_seconds: float) -> None:
        """Start what can be started, take the outcomes that are there or come in time."""
        if self._intake.uploader is None:
            self._stop.event.wait(wait_seconds)
            return
        while not self._audits.empty():
            self._intake.uploader.audit(*self._audits.get())
        self._intake.uploader.step()
        outcome = self._workers.take(wait_seconds)
        while outcome is not None:
            self._intake.uploader.take(outcome)
            outcome = self._workers.take(0.0)

    def _open_uploader(self, lineage: Lineage) -> Uploader:
        interval = self._config.stream.flush_interval
        salvaging = self._plan.refused is not None
        uploader = Uploader(
            store=self._store,
            layout=self._plan.layout,
            lineage=lineage.id,
            limits=Limits(
                grid=self._grid,
                chunked=interval > 0 or salvaging,
                copies=True,
                full_chunk=MIN_PART_SIZE,
            ),
            flush_interval=interval,
            spool=self._spool,
            workers=self._workers,
            coverage=self._coverage,
        )
        for name in self._plan.in_parts:
            uploader.sweep(name)
        return uploader

    def _end(self, child: Child | None, tailer: Tailer | None) -> int:
        """Stop reading, give what is in flight a few seconds, leave the spool durable."""
        self._stop.event.set()
        if child is not None:
            child.stop()
        superseded = isinstance(self._stop.error, SupersededError)
        try:
            if not superseded:
                self._drain(tailer if self._stop.error is None else None)
            if tailer is not None:
                tailer.close()
            self._spool.sync()
        except Binlog2s3Error as error:
            if str(error) != str(self._stop.error):
                _log.error("not all could be put in order", error)
        if not superseded:
            farewell = threading.Thread(
                target=self._writer.finish,
                args=(self._store.with_policy(RetryPolicy(attempts=1)),),
                name="farewell",
                daemon=True,
            )
            farewell.start()
            farewell.join(_FAREWELL_SECONDS)
        uploader = self._intake.uploader
        waiting = uploader.pending if uploader else 0
        if uploader and uploader.unsaved_bytes:
            _log.warning(
                "not all is in the bucket",
                bytes=uploader.unsaved_bytes,
                hint="these bytes are in the spool and on the source alone: keep both until a "
                "streamer has run again",
            )
        _log.info("stopped", waiting=waiting, spool_bytes=self._spool.used_bytes())
        if self._stop.error is not None:
            raise self._stop.error
        return self._stop.status

    def _drain(self, tailer: Tailer | None) -> None:
        """Give what is on its way its time; read on what is there, unless reading has failed."""
        deadline = time.monotonic() + _DRAIN_SECONDS
        while time.monotonic() < deadline:
            if self._intake.uploader is not None:
                self._intake.uploader.flush()
            more = tailer is not None and self._round(tailer, _POLL_SECONDS)
            if tailer is None:
                self._upload(_POLL_SECONDS)
            uploader = self._intake.uploader
            if not more and (uploader is None or uploader.done):
                return

    def _progress(self) -> Progress:
        sight, lineage = self._watch.sight, self._intake.lineage
        at = sight.position
        server = None
        if at is not None:
            server = Position(binlog=str(at.binlog), offset=at.offset, gtid_set=at.gtid_set)
        return Progress(
            state=self._state(sight),
            lineage=lineage.id if lineage else None,
            durable=self._coverage.durable,
            server=server,
            covered_until=self._coverage.until,
        )

    def _state(self, sight: Sight) -> State:
        current = self._tailer.current if self._tailer else None
        at = sight.position
        if sight.error is not None:
            return "source unreachable"
        if at is None or current is None:
            return "streaming"
        if (current.name, current.size) == (at.binlog, at.offset):
            return "idle"
        behind = current.name < at.binlog or at.offset - current.size > self._config.s3.part_size
        return "catching up" if behind else "streaming"

    def _store_failed(self, error: StoreError, attempt: int, delay: float) -> None:
        _log.warning(
            "the store failed, trying again",
            error=error,
            hint=error.hint,
            attempt=attempt,
            seconds=round(delay, 1),
        )
