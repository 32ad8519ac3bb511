"""The streaming daemon: puts the pieces together, runs the loop, ends in order.

Place in the flow: below `cli`, above everything else. One loop owns all state of the stream; three
helpers have threads of their own (the source's watch, the heartbeat, the workers for the store) and
speak to it through values.

Law: the start reads, checks and only then claims; the end is the same after SIGTERM, after a dead
child and after an error: stop reading, give what is in flight a few seconds, make the spool
durable, say so in the bucket. What was not uploaded is in the spool or at the source.
"""

import os
import secrets
import signal
import threading
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from types import FrameType

from binlog2s3.archive import Grid
from binlog2s3.binlog import BinlogName
from binlog2s3.catalog import Catalog, Layout, Lineage, Position, lineage_id
from binlog2s3.config import Config, S3Config
from binlog2s3.errors import (
    ArchiveError,
    Binlog2s3Error,
    PreconditionError,
    StoreError,
    SupersededError,
)
from binlog2s3.log import Log
from binlog2s3.login import resolve
from binlog2s3.mysqlbinlog import Child, Tool, derive_server_id, find
from binlog2s3.server import Server, ServerBinlog, ServerFacts, ServerPosition
from binlog2s3.spool import Run, RunFacts, Spool
from binlog2s3.start import (
    Known,
    adopt,
    check_history,
    check_spool,
    first_binlog,
    furthest,
    gtids_at_end,
    of_server,
    read_back,
)
from binlog2s3.store import PATIENT, RetryPolicy, S3Store, StoreConfig
from binlog2s3.tailer import Tailer, Track
from binlog2s3.uploader import Uploader, build_entry
from binlog2s3.watch import Watch
from binlog2s3.workers import Workers
from binlog2s3.writer import Progress, Writer

_log = Log("daemon")
_POLL_SECONDS = 0.05
_WATCH_SECONDS = 2.0
_DRAIN_SECONDS = 4.0
_FAREWELL_SECONDS = 2.0


def stream(config: Config) -> int:
    """Stream until a signal comes; the exit status. Raises a Binlog2s3Error for what stops it."""
    stop = Stop()
    settings = _store_config(config.s3)
    quick = replace(settings, connect_timeout_seconds=5.0, read_timeout_seconds=10.0)
    spool = Spool(config.spool)
    try:
        with (
            closing(S3Store(quick, stop=stop.event, policy=RetryPolicy(attempts=2))) as store,
            Server(lambda: resolve(config.mysql)) as server,
        ):
            plan = _prepare(config, server, store, spool)
        with closing(S3Store(settings, stop=stop.event)) as store:
            return _Stream(config, plan, store, spool, stop).run()
    finally:
        spool.close()


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
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, self._on_signal)

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


class _Plan:
    """What the start found: who the source is, where to go on, what the spool still has."""

    def __init__(
        self,
        *,
        facts: ServerFacts,
        tool: Tool,
        layout: Layout,
        lineage: Lineage | None,
        without_entry: tuple[BinlogName, ...],
        adopted: list[Track],
        begin: BinlogName,
        durable: Position | None,
        following: BinlogName,
    ) -> None:
        self.facts = facts
        self.tool = tool
        self.layout = layout
        self.lineage = lineage
        self.without_entry = without_entry
        self.adopted = adopted
        self.begin = begin
        self.durable = durable
        self.following = following


def _target(config: Config) -> str:
    return f"s3://{config.s3.bucket}/{config.s3.prefix}".rstrip("/")


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


def _prepare(config: Config, server: Server, store: S3Store, spool: Spool) -> _Plan:
    """Everything that can be refused, refused before anything is written to the bucket."""
    source, grid = config.stream.source, Grid(config.s3.part_size)
    runs = spool.runs()
    check_spool(runs, source, _target(config))
    facts = server.facts()
    tool = find(facts.flavour, config.mysql.mysqlbinlog)
    listed = server.binlogs()
    server.check_privileges(first_binlog(replace(config.stream, start_binlog=None), listed))
    layout = Layout(config.s3.prefix, source)
    store.check_access(layout.archive)
    catalog = Catalog(store, layout)
    known = furthest(catalog, of_server(catalog.lineages(), facts, source))
    lineage = known.lineage if known else None
    for key in sorted(catalog.foreign):
        _log.warning("left alone: not of this archive's format", key=key)
    adopted = adopt(
        runs,
        grid=grid,
        server_uuid=facts.uuid,
        lineage=lineage,
        first=known.next_binlog if known else None,
        listed={row.name: row for row in listed},
    )
    begin = _begin(config, server, listed, known, adopted)
    durable = None
    if known and known.last and known.end:
        after = gtids_at_end(known)
        durable = Position(
            binlog=str(known.last),
            offset=known.end.size,
            gtid_set=str(after) if after is not None else "",
        )
    return _Plan(
        facts=facts,
        tool=tool,
        layout=layout,
        lineage=lineage,
        without_entry=known.without_entry if known else (),
        adopted=adopted,
        begin=begin,
        durable=durable,
        following=known.next_binlog if known else (adopted[0].name if adopted else begin),
    )


def _begin(
    config: Config,
    server: Server,
    listed: tuple[ServerBinlog, ...],
    known: Known | None,
    adopted: list[Track],
) -> BinlogName:
    """The binlog to ask the source for."""
    if adopted:
        begin = adopted[-1].name.next()
        if begin not in {row.name for row in listed}:
            raise ArchiveError(
                f"gap: the server no longer has {begin}, the next binlog after those in the spool",
                hint="the spool keeps what it has; stream under a new --source and a new --spool",
            )
        return begin
    if known is None:
        return first_binlog(config.stream, listed)
    rows = {row.name for row in listed}
    name = known.next_binlog
    check_history(known, listed, server.previous_gtids(name) if name in rows else None)
    return name


class _Stream:
    """The loop and what it holds."""

    def __init__(
        self, config: Config, plan: _Plan, store: S3Store, spool: Spool, stop: Stop
    ) -> None:
        self._config = config
        self._plan = plan
        self._preflight = store
        self._store = store.with_policy(PATIENT, self._store_failed)
        self._spool = spool
        self._stop = stop
        self._grid = Grid(config.s3.part_size)
        self._workers = Workers(config.s3.concurrency)
        self._lineage = plan.lineage
        self._uploader: Uploader | None = None
        self._waiting: list[Track] = []  # until the lineage is known
        self._open: list[Track] = []  # not closed yet
        self._unsure: set[BinlogName] = set()
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
            store=self._preflight,
            layout=plan.layout,
            server_uuid=plan.facts.uuid,
            interval_seconds=config.stream.heartbeat_interval,
            progress=self._progress,
            failed=stop.fail,
            stop=stop.event,
        )
        stop.wake = self._workers.wake

    def run(self) -> int:
        """Claim, stream, end in order; 0 after SIGTERM, 130 after SIGINT."""
        self._writer.claim()
        if self._lineage is not None:
            self._mend_entries(self._lineage)
            self._sweep_spool(self._lineage)
            self._uploader = self._upload_into(self._lineage)
        for track in self._plan.adopted:
            self._admit(track)
        run = self._new_run()
        child = self._start_child(run)
        self._tailer = Tailer(run, self._grid)
        self._watch.start()
        self._writer.start()
        try:
            self._loop(child)
        except BaseException as error:  # noqa: BLE001 - raised again when all is in order
            self._stop.fail(error)
        self._end(child)
        if self._stop.error is not None:
            raise self._stop.error
        return 130 if self._stop.signal == signal.SIGINT else 0

    def _mend_entries(self, lineage: Lineage) -> None:
        """Make the entries that a writer before us had no time to write, from the objects."""
        for name in self._plan.without_entry:
            track = read_back(self._preflight, self._plan.layout, lineage.id, name, self._grid)
            document = build_entry(track, datetime.now(UTC)).to_json()
            try:
                key = self._plan.layout.entry(lineage.id, name)
                self._preflight.put(key, document, if_absent=True)
            except PreconditionError:
                continue
            _log.info("entry made from the archived binlog", binlog=name)

    def _sweep_spool(self, lineage: Lineage) -> None:
        """Delete what a run before us archived but had no time to delete."""
        runs = self._spool.runs()
        for name in {name for run in runs for name in run.files()}:
            if lineage.first_binlog <= name < self._plan.following:
                self._spool.release(name, lineage.id)
        self._spool.sweep(runs)

    def _new_run(self) -> Run:
        return self._spool.begin(
            RunFacts(
                source=self._config.stream.source,
                target=_target(self._config),
                server_uuid=self._plan.facts.uuid,
                binlog=str(self._plan.begin),
                position=4,
                lineage=self._lineage.id if self._lineage else None,
            )
        )

    def _start_child(self, run: Run) -> Child:
        mysql, source = self._config.mysql, self._config.stream.source
        server_id = mysql.server_id or derive_server_id(source)
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
            to=_target(self._config),
            mysqlbinlog=self._plan.tool.path,
            pid=child.pid,
            server_id=server_id,
        )
        return child

    def _loop(self, child: Child) -> None:
        while not self._stop.event.is_set():
            ended = child.poll() is not None  # asked first: what it wrote before is read below
            read = self._round(0.0 if ended else _POLL_SECONDS)
            if ended and not read:
                self._blame_other_writer()
                raise child.failure()

    def _blame_other_writer(self) -> None:
        """A writer that took over evicts our child: it has the same server id."""
        try:
            self._writer.look()
        except StoreError as error:
            _log.warning("could not look for another writer", error=error)

    def _round(self, wait_seconds: float) -> bool:
        """Read a slice, judge, start requests, take outcomes; whether anything was read."""
        before = self._tailer.current
        read = bool(self._tailer.pump()) or self._tailer.current is not before
        for track in self._tailer.take_new():
            self._admit(track)
        self._judge()
        self._upload(0.0 if read else wait_seconds)
        return read

    def _upload(self, wait_seconds: float) -> None:
        """Start what can be started, take the outcomes that are there or come in time."""
        if self._uploader is None:
            self._stop.event.wait(wait_seconds)
            return
        self._uploader.step()
        outcome = self._workers.take(wait_seconds)
        while outcome is not None:
            self._uploader.take(outcome)
            outcome = self._workers.take(0.0)

    def _admit(self, track: Track) -> None:
        """Follow a binlog; it goes to the uploader when it is known which history it is of."""
        self._open.append(track)
        self._waiting.append(track)

    def _judge(self) -> None:
        while self._waiting and self._waiting[0].begun:
            track = self._waiting.pop(0)
            if self._uploader is None or self._lineage is None:
                self._uploader = self._upload_into(self._found_lineage(track))
            self._check_first(track, self._lineage)
            self._uploader.add(track)
        candidates = [t for t in self._open if t.closed or t.scanner.ended or t.next_in_run]
        listed = self._watch.listed() if candidates else {}
        for track in candidates:
            if track.judge(listed):
                self._open.remove(track)
                continue
            self._watch.list_again()
            if track.name not in self._unsure:
                self._unsure.add(track.name)
                _log.info("waiting to know that it is closed", binlog=track.name, size=track.size)

    def _check_first(self, track: Track, lineage: Lineage | None) -> None:
        """A lineage's first binlog, met again before it was archived, must still be the same."""
        if lineage is None or track.name != lineage.first_binlog:
            return
        begun = datetime.fromtimestamp(track.scanner.formats[0].timestamp, UTC)
        if begun != lineage.first_binlog_time:
            raise ArchiveError(
                f"the server's {track.name} was begun at {begun:%Y-%m-%d %H:%M:%SZ}, the one of "
                f"lineage {lineage.id} at {lineage.first_binlog_time:%Y-%m-%d %H:%M:%SZ}",
                hint="was the server reset or restored? stream it under a new --source",
            )

    def _found_lineage(self, track: Track) -> Lineage:
        """The source is new to the bucket: describe the history that begins with this binlog."""
        facts, form = self._plan.facts, track.scanner.formats[0]
        before = track.gtids_before()
        begun = datetime.fromtimestamp(form.timestamp, UTC)
        lineage = Lineage(
            id=lineage_id(begun, facts.uuid, secrets.token_hex(2)),
            source=self._config.stream.source,
            server_uuid=facts.uuid,
            flavour=facts.flavour,
            server_version=facts.version,
            first_binlog=track.name,
            first_binlog_time=begun,
            gtid_set=str(before) if before is not None else "",
        )
        self._writer.beat()
        lineage = self._decided_already(lineage) or self._describe(lineage)
        self._lineage = lineage
        for run in self._spool.runs():
            if run.facts.lineage is None and run.facts.server_uuid == facts.uuid:
                self._spool.note(replace(run, facts=replace(run.facts, lineage=lineage.id)))
        return lineage

    def _decided_already(self, lineage: Lineage) -> Lineage | None:
        """The same lineage, if another writer has described it since we looked."""
        for other in Catalog(self._store, self._plan.layout).lineages():
            begins = (other.server_uuid, other.first_binlog, other.first_binlog_time)
            if begins == (lineage.server_uuid, lineage.first_binlog, lineage.first_binlog_time):
                return other
        return None

    def _describe(self, lineage: Lineage) -> Lineage:
        self._store.put(self._plan.layout.lineage(lineage.id), lineage.to_json())
        _log.info("new lineage", lineage=lineage.id, first_binlog=lineage.first_binlog)
        return lineage

    def _upload_into(self, lineage: Lineage) -> Uploader:
        return Uploader(
            store=self._store,
            layout=self._plan.layout,
            lineage=lineage.id,
            grid=self._grid,
            spool=self._spool,
            workers=self._workers,
            on_archived=self._coverage.archived,
        )

    def _end(self, child: Child) -> None:
        """Stop reading, give what is in flight a few seconds, leave the spool durable."""
        self._stop.event.set()
        child.stop()
        superseded = isinstance(self._stop.error, SupersededError)
        try:
            if not superseded:
                self._drain(read=self._stop.error is None)
            self._tailer.close()
            self._spool.sync()
        except Binlog2s3Error as error:
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
        waiting = self._uploader.pending if self._uploader else 0
        _log.info("stopped", waiting=waiting, spool_bytes=self._spool.used_bytes())

    def _drain(self, *, read: bool) -> None:
        deadline = time.monotonic() + _DRAIN_SECONDS
        while time.monotonic() < deadline:
            more = read and self._round(_POLL_SECONDS)
            if not read:
                self._upload(_POLL_SECONDS)
            busy = self._uploader and (self._uploader.flying or self._uploader.pending)
            if not more and not busy:
                return

    def _progress(self) -> Progress:
        sight = self._watch.sight
        server = None
        state = "streaming"
        if sight.position is not None:
            at = sight.position
            server = Position(binlog=str(at.binlog), offset=at.offset, gtid_set=at.gtid_set)
            current = self._tailer.current
            if current and (current.name, current.size) == (at.binlog, at.offset):
                state = "idle"
            elif current and (
                current.name < at.binlog or at.offset - current.size > self._config.s3.part_size
            ):
                state = "catching up"
        if sight.error is not None:
            state = "source unreachable"
        return Progress(
            state=state,
            lineage=self._lineage.id if self._lineage else None,
            durable=self._coverage.durable,
            server=server,
            covered_until=self._coverage.until,
        )

    def _store_failed(self, error: StoreError, attempt: int, delay: float) -> None:
        _log.warning(
            "the store failed, trying again",
            error=error,
            hint=error.hint,
            attempt=attempt,
            seconds=round(delay, 1),
        )


class Coverage:
    """How far everything is in the bucket: the last binlog of the unbroken archive, and the time.

    `seen` is called by the watch's thread, `archived` by the loop, in any order of binlogs.
    """

    def __init__(self, durable: Position | None, following: BinlogName) -> None:
        self._lock = threading.Lock()
        self._following = following
        self._ahead: dict[BinlogName, Position] = {}
        self._seen: dict[BinlogName, datetime] = {}
        self.durable = durable
        self.until: datetime | None = None

    def seen(self, position: ServerPosition) -> None:
        """The source's clock and position; the latest of each binlog counts."""
        with self._lock:
            self._seen[position.binlog] = position.asked_at

    def archived(self, track: Track) -> None:
        """A binlog is in the archive with its entry."""
        after = track.gtids_after()
        position = Position(
            binlog=str(track.name),
            offset=track.size,
            gtid_set=str(after) if after is not None else "",
        )
        with self._lock:
            self._ahead[track.name] = position
            while self._following in self._ahead:
                self.durable = self._ahead.pop(self._following)
                self._following = self._following.next()
            passed = [name for name in self._seen if name < self._following]
            times = [self._seen.pop(name) for name in passed]
            self.until = max([*times, *([self.until] if self.until else [])], default=None)
