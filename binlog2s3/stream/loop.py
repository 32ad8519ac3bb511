"""One stream, from the claim to its end: the loop that owns all of its state.

Place in the flow: `daemon` makes one when a start has found where to continue. The supervisor
reads, the uploaders upload; the watch, the heartbeat and the workers have threads of their own and
speak to the loop through values.

Law: the end is the same after SIGTERM, after a defect and after an error: stop reading, give what
is in flight a few seconds, make the spool durable, say so in the bucket. What was not uploaded is
in the spool or at the source.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from queue import SimpleQueue

from binlog2s3.archive.catalog import Catalog
from binlog2s3.archive.documents import Lineage
from binlog2s3.archive.layout import Layout
from binlog2s3.archive.parts import Grid
from binlog2s3.archive.writers import Position
from binlog2s3.binlog.names import BinlogName
from binlog2s3.config.values import MIN_PART_SIZE, Config
from binlog2s3.errors import (
    Binlog2s3Error,
    GapError,
    SourceError,
    StoreError,
    SupersededError,
)
from binlog2s3.log import Log
from binlog2s3.server.connection import Server, ServerPosition
from binlog2s3.server.login import resolve
from binlog2s3.status.document import document, without_gtids
from binlog2s3.status.model import Phase, Status, judge
from binlog2s3.store.s3 import RetryPolicy, S3Store, Store
from binlog2s3.stream.board import Board
from binlog2s3.stream.decide import Limits
from binlog2s3.stream.paging import Pager
from binlog2s3.stream.reporter import Pulse, Reporter, look_at_history
from binlog2s3.stream.retry import unless, wait_for
from binlog2s3.stream.shutdown import Stop
from binlog2s3.stream.source_watch import Reached, Watch
from binlog2s3.stream.spool import Spool
from binlog2s3.stream.start import mend_entries, sweep_spool
from binlog2s3.stream.startup import StartResult, make_pilot, target
from binlog2s3.stream.supervisor import Supervisor
from binlog2s3.stream.systemd import Notifier
from binlog2s3.stream.tracking import Intake
from binlog2s3.stream.upload_counts import Counts
from binlog2s3.stream.uploader import Uploader, take
from binlog2s3.stream.watermark import Coverage
from binlog2s3.stream.writer import StreamProgress, Vacancy, Writer
from binlog2s3.workers import Workers

_log = Log("daemon")
_POLL_SECONDS = 0.05
_WATCH_SECONDS = 2.0
_QUESTIONS = 6  # of the watch, one after the other, each with a deadline of its own


class Loop:
    """One stream: `claim`, then `run`.

    It has more than 20 methods because it is the place where everything meets.
    """

    _notifier = Notifier()  # tells nobody until `run`
    _drained_at = 0.0  # when a stop has given running requests their time

    def __init__(
        self, config: Config, begun: StartResult, store: S3Store, spool: Spool, stop: Stop
    ) -> None:
        self._config = config
        self._found = found = begun.found
        self._refusal = begun.refusal
        self._preflight: Store = store
        self._pulse = Pulse()
        patient = RetryPolicy(
            attempts=None,
            first_delay_seconds=config.timing.first_delay_seconds,
            max_delay_seconds=config.timing.longest_delay_seconds,
        )
        self._store = store.with_policy(patient, self._store_failed, self._pulse.over)
        self._layout = layout = Layout(config.s3.prefix, config.stream.source)
        self._spool = spool
        self._stop = stop
        self._grid = Grid(config.s3.part_size)
        self._counts = Counts()
        self._board: Board | None = None
        self._ended = threading.Event()
        self._audits: SimpleQueue[tuple[list[str], float]] = SimpleQueue()
        self._named = set(found.foreign)
        self._workers = Workers(config.s3.concurrency)
        slow = max(config.mysql.connect_timeout, config.stream.stall_timeout)
        self._watch = Watch(
            Server(lambda: replace(resolve(config.mysql), connect_timeout=slow)),
            interval_seconds=min(_WATCH_SECONDS, config.stream.stall_timeout / 4),
            reached=self._reached,
            seen=self._seen,
            failed=stop.fail,
            stop=stop.event,
            patience_seconds=_QUESTIONS * slow + _WATCH_SECONDS,
        )
        self._writer = Writer(
            store=self._store,
            layout=layout,
            spool=spool,
            target=target(config),
            interval_seconds=config.stream.heartbeat_interval,
            progress=self._progress,
            audit=lambda keys, asked_at: self._audits.put((keys, asked_at)),
            failed=stop.fail,
            stop=stop.event,
        )
        self._intake = Intake(
            store=self._store,
            layout=layout,
            spool=spool,
            look=lambda: self._writer.look(self._store),
            take_turn=lambda lineage: self._writer.take_turn(self._store, lineage),
            open_uploader=self._open_uploader,
            ask=self._ask_store,
        )
        self._pager = Pager(
            store=self._store,
            layout=layout,
            reached=self._archived,
            failed=stop.fail,
            stop=stop.event,
        )
        catalog = Catalog(self._store, layout)
        self._supervisor = Supervisor(
            config,
            target=target(config),
            spool=spool,
            intake=self._intake,
            pilot=make_pilot(config, catalog, self._store, layout, spool, stop, self._upload),
            watch=self._watch,
            upload=self._upload,
            blame=self._blame_other_writer,
            stop=stop.event,
            tip=begun.tip,
            heading=begun.heading,
        )
        self._server_uuid = found.lineage.server_uuid if found.lineage else ""
        if begun.heading is not None:
            self._server_uuid = begun.heading.facts.uuid
        self._reporter = self._report()
        stop.wake = self._workers.wake

    def _report(self) -> Reporter:
        return Reporter(
            self._config,
            target=target(self._config),
            watch=self._watch,
            supervisor=self._supervisor,
            intake=self._intake,
            writer=self._writer,
            spool=self._spool,
            pulse=self._pulse,
            counts=self._counts,
            busy=lambda: self._workers.busy,
            phase=self._phase,
        )

    def show_on(self, board: Board, catalog: Catalog) -> None:
        """Show the stream on this board. A thread asks `catalog` for the lineages."""
        self._board = board
        board.watch(self.status)
        threading.Thread(
            target=look_at_history,
            args=(self._reporter, catalog, self._intake, self._ended),
            name="history",
            daemon=True,
        ).start()

    def status(self) -> Status:
        """The status of the stream."""
        return self._reporter.status()

    @property
    def _stands_by(self) -> bool:
        """Whether the stream ends only because the process becomes a standby."""
        superseded = isinstance(self._stop.error, SupersededError)
        return superseded and not self._config.stream.exit_on_other_writer

    def _phase(self) -> Phase:
        if self._stands_by:
            return "standby"
        return "stopping" if self._stop.event.is_set() else "running"

    def claim(
        self,
        store: Store,
        tell: Callable[[BaseException], object],
        passes: Callable[[BaseException], bool],
        vacancy: Vacancy | None = None,
    ) -> bool:
        """Become the writer, and finish what the writer before had no time for.

        Tries again after errors that `passes`, and calls `tell` with them. Raises SupersededError
        if the vacancy does not exist any more.
        """
        self._preflight, stop, timing = store, self._stop.event, self._config.timing
        wait_for(lambda: self._writer.claim(store, vacancy), stop, tell, passes, timing)
        found, layout = self._found, self._layout
        wait_for(lambda: mend_entries(store, layout, found), stop, tell, passes, timing)
        sweep_spool(self._spool, found)
        return True

    def run(self, notifier: Notifier) -> int:
        """Stream, after the claim, and end. Returns 0 after SIGTERM, 130 after SIGINT."""
        self._notifier = notifier
        self._take_in()
        self._watch.start()
        self._writer.start()
        self._pager.start()
        try:
            self._serve()
        except (GapError, SourceError) as error:
            self._bring_in()
            self._stop.fail(error)
        except StoreError as error:
            if not self._stop.signal:  # else the signal ended the request that the loop waited for
                self._stop.fail(error)
        except BaseException as error:  # noqa: BLE001 - raised again when all is in order
            self._stop.fail(error)
        return self._end()

    def _serve(self) -> None:
        if self._refusal is not None:
            raise self._refusal
        self._supervisor.supervise()

    def _take_in(self) -> None:
        """Take in what the start found in the bucket and the spool."""
        known = self._found.known
        if known is None or not (self._found.described or self._found.tracks):
            return
        for end, tracks in self._found.left_behind:
            self._intake.resume(end.lineage, None, end.next_binlog, described=True, ended=True)
            for track in tracks:
                self._intake.admit(track)
            self._intake.judge({})
        self._intake.resume(
            known.lineage, self._found.durable, known.next_binlog, described=self._found.described
        )
        for track in self._found.tracks:
            self._intake.admit(track)
        self._intake.judge({})
        assert self._intake.uploader is not None  # noqa: S101 - resumed
        for name in known.in_parts:
            self._intake.uploader.leftovers.sweep(name)

    def _bring_in(self) -> None:
        """Upload the spool: the source cannot continue, and nothing else may have these bytes."""
        last = self._intake.last
        if last is not None and not last.closed:
            self._intake.abandon(last)
        try:
            while not (self._stop.event.is_set() or self._intake.done):
                self._supervisor.work(_POLL_SECONDS)
        except Binlog2s3Error as error:
            _log.error("not all could be brought in", error)

    def _blame_other_writer(self) -> None:
        """Look for another writer: its mysqlbinlog has our server id and evicts ours."""
        try:
            self._writer.look(self._preflight)
        except StoreError as error:
            _log.recurring("could not look for another writer", error=error)

    def _upload(self, wait_seconds: float) -> None:
        """Start the requests that can be started, and take their outcomes for at most this long."""
        self._reporter.round()
        self._alive()
        audits = []
        while not self._audits.empty():
            audits.append(self._audits.get())
            self._name_foreign(audits[-1][0])
        uploaders = list(self._intake.uploaders())
        if not uploaders and not self._workers.busy:
            self._stop.event.wait(wait_seconds)
            return
        for uploader in uploaders:
            for audit in audits:
                uploader.audit(*audit)
            uploader.step()
        outcome = self._workers.take(wait_seconds)
        while outcome is not None:
            take(outcome)
            outcome = self._workers.take(0.0)

    def _alive(self) -> None:
        """Tell systemd that the loop runs, as long as the watch's thread runs, too."""
        self._notifier.ready()
        if time.monotonic() - self._watch.round_at < self._watch.patience_seconds:
            self._notifier.feed()

    def _ask_store(self, request: Callable[[], Lineage]) -> Lineage:
        """What a request returns that the loop waits for; after a stop, for a few seconds more.

        Raises what `request` raises; StoreError if the store has not answered by then.
        """

        def meanwhile() -> None:
            self._alive()
            self._ended.wait(_POLL_SECONDS)

        found = unless(self._drained, request, name="lineage", meanwhile=meanwhile)
        if found is None:
            raise StoreError("not waited for the store's answer: stopping", transient=True)
        return found

    def _drained(self) -> bool:
        """Whether a stop has given running requests their time."""
        if not self._stop.event.is_set():
            return False
        now = time.monotonic()
        self._drained_at = self._drained_at or now + self._config.timing.drain_seconds
        return now >= self._drained_at

    def _name_foreign(self, keys: list[str]) -> None:
        """Log each key below `live/` that is not of our format, once."""
        for key in keys:
            if key not in self._named and not self._layout.is_chunk(key):
                self._named.add(key)
                _log.warning("left alone: not of this archive's format", key=key)

    def _open_uploader(self, lineage: Lineage, coverage: Coverage) -> Uploader:
        interval = self._config.stream.flush_interval
        return Uploader(
            store=self._store,
            layout=self._layout,
            lineage=lineage.id,
            limits=Limits(
                grid=self._grid,
                chunked=interval > 0,
                copies=True,
                full_chunk=MIN_PART_SIZE,
            ),
            flush_interval=interval,
            spool=self._spool,
            workers=self._workers,
            coverage=coverage,
            totals=self._counts,
        )

    def _end(self) -> int:
        """Stop reading, give running requests a few seconds, and make the spool durable."""
        superseded = isinstance(self._stop.error, SupersededError)
        if not self._stands_by:
            self._notifier.stopping()
        self._stop.event.set()
        if not superseded:
            self._in_order(lambda: self._drain(reading=self._stop.error is None))
        self._in_order(self._supervisor.close)
        self._in_order(self._spool.sync)
        if not superseded:
            farewell = threading.Thread(
                target=self._writer.finish,
                args=(self._store.with_policy(RetryPolicy(attempts=1)),),
                name="farewell",
                daemon=True,
            )
            farewell.start()
            farewell.join(self._config.timing.farewell_seconds)
        uploaders = list(self._intake.uploaders())
        if unsaved := sum(uploader.unsaved_bytes for uploader in uploaders):
            _log.warning(
                "not all is in the bucket",
                bytes=unsaved,
                hint="these bytes are only in the spool and on the source: keep both until a "
                "streamer has run again",
            )
        waiting = sum(uploader.pending for uploader in uploaders)
        self.end_threads()
        if self._stands_by:
            self._settle()
        _log.info("stopped", waiting=waiting, spool_bytes=self._spool.used_bytes())
        if self._stop.error is not None:
            raise self._stop.error
        return self._stop.status

    def _in_order(self, step: Callable[[], object]) -> None:
        """A step of the end. One that fails does not keep the others from being done."""
        try:
            step()
        except Binlog2s3Error as error:
            if str(error) != str(self._stop.error):
                _log.error("not all could be put in order", error)

    def end_threads(self) -> None:
        """End the remaining threads, each after what it does at the moment."""
        self._ended.set()
        self._workers.close()

    def _settle(self) -> None:
        """Wait until no request reads from the spool: the process continues as a standby.

        Requests are not tried again after a stop, so each ends within its own timeout.
        """
        while self._workers.busy and not self._stop.signal:
            self._alive()
            self._workers.take(_POLL_SECONDS)

    def _drain(self, *, reading: bool) -> None:
        """Give running requests their time. Read what is there, unless reading has failed."""
        while not self._drained():
            for uploader in self._intake.uploaders():
                uploader.flush()
            more = reading and self._supervisor.round(_POLL_SECONDS)
            if not reading:
                self._upload(_POLL_SECONDS)
            if not more and self._intake.done:
                return

    def _reached(self) -> Reached | None:
        """How far the source was read; between two runs, how far by the last one."""
        last = self._intake.last
        return self._supervisor.reached() or ((last.name, last.size) if last is not None else None)

    def _archived(self) -> tuple[Lineage, Callable[[BinlogName], bool]] | None:
        """The lineage that grows, and which of its binlogs are known to be archived."""
        lineage, coverage = self._intake.lineage, self._intake.coverage
        return (lineage, coverage.has) if lineage is not None and coverage is not None else None

    def _seen(self, position: ServerPosition) -> None:
        """Note the source's position, if it is the lineage's own server. Called by the watch."""
        coverage = self._intake.coverage
        if position.uuid != self._intake.server_uuid:
            return
        self._writer.told_time(position.asked_at)
        if coverage is not None:
            coverage.seen(position)

    def _progress(self) -> StreamProgress:
        sight, lineage = self._watch.sight, self._intake.lineage or self._intake.left
        coverage, at = self._intake.coverage, sight.position
        server = None
        if at is not None:
            server = Position(binlog=str(at.binlog), offset=at.offset, gtid_set=at.gtid_set)
        status = document(self._board.current()) if self._board is not None else None
        return StreamProgress(
            state=judge(self._reporter.vitals(), self._config.timing)[0],
            lineage=lineage.id if lineage else None,
            server_uuid=self._intake.server_uuid or self._server_uuid,
            durable=coverage.durable if coverage is not None else None,
            server=server,
            covered_until=self._intake.covered_until(),
            status=without_gtids(status) if status is not None else None,
        )

    def _store_failed(self, error: StoreError, attempt: int, delay: float) -> None:
        self._pulse.failed(error, time.monotonic())
        if threading.current_thread() is threading.main_thread():
            self._alive()  # the loop itself waits for this request
        _log.recurring(
            "the store failed, trying again",
            error=error,
            hint=error.hint,
            attempt=attempt,
            seconds=round(delay, 1),
        )
