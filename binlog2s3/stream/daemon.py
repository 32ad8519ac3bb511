"""The streaming daemon: starts, streams or stands by, and ends.

A `_Cycle` is a start and the stream that follows, in its `Loop`: the thread that owns all of the
stream's state. The runs of mysqlbinlog read, the uploads upload; the watch, the heartbeat and the
workers have threads of their own.

Law: a start only reads, the claim is the first write. The end is the same after SIGTERM, after a
defect and after an error: stop reading, give what is in flight a few seconds, make the spool
durable, say so in the bucket. What was not uploaded is in the spool or at the source.
"""

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial

from binlog2s3.archive.catalog import Catalog
from binlog2s3.archive.layout import Layout
from binlog2s3.archive.writers import Heartbeat
from binlog2s3.binlog.names import FilePosition
from binlog2s3.config.bucket import for_streaming
from binlog2s3.config.options import split_listen
from binlog2s3.config.stream import Config
from binlog2s3.errors import (
    Binlog2s3Error,
    GapError,
    SourceError,
    SpoolError,
    StoreError,
    SupersededError,
)
from binlog2s3.log import Log
from binlog2s3.server.connection import Server
from binlog2s3.server.login import CHMOD, readable_by_others, resolve
from binlog2s3.status.http import Listener, applications
from binlog2s3.status.metrics import Timings
from binlog2s3.status.model import Status, document, without_gtids
from binlog2s3.status.page import ReportPage, report_command
from binlog2s3.store.s3 import RetryPolicy, S3Store
from binlog2s3.stream.continuation import GoOn
from binlog2s3.stream.paging import Pager
from binlog2s3.stream.reporter import Reporter
from binlog2s3.stream.resume import Resumption
from binlog2s3.stream.run import Runs
from binlog2s3.stream.source_watch import Watch
from binlog2s3.stream.spool import Spool
from binlog2s3.stream.start import StartState, Startup, mend_entries, sweep_spool
from binlog2s3.stream.telling import Alive, Board, DeadMan, Notifier, attend, of_environment
from binlog2s3.stream.tracking import Tracking
from binlog2s3.stream.uploader import Uploader
from binlog2s3.stream.waiting import Periodic, Signals, Stop, wait_for
from binlog2s3.stream.writer import Writer
from binlog2s3.workers import Workers

_log = Log("daemon")
_POLL_SECONDS = 0.05
_WATCH_SECONDS = 2.0
_NAME_SECONDS = 10.0
_HISTORY_SECONDS = 1.0
_QUESTIONS = 7  # of the watch, one after the other, each with a deadline; the password command's


def stream(config: Config) -> int:
    """Stream until a signal comes. Returns the exit status. Raises the error that ends the stream.

    While another writer works, the process is a standby.
    """
    signals, notifier = Signals(), of_environment(os.environ)
    for path in readable_by_others(config.mysql):
        _log.warning("others can read the password", file=str(path), hint=CHMOD)
    spool = Spool(
        config.spool, config.spool_limits, source=config.stream.source, target=config.target
    )
    try:
        own = Timings()
        cycle = _Cycle(config, spool, signals.stop, own, takes_over=config.stream.take_over)
        with _shown(config, cycle.start.status, notifier, own) as board:
            while True:
                try:
                    return cycle.run(board, notifier)
                except SupersededError as error:
                    if cycle.stop.signal:
                        return cycle.stop.status
                    if config.stream.exit_on_other_writer:
                        raise
                    _log.warning("another writer works", error=error)
                cycle = _Cycle(config, spool, signals.renew(), own)
                board.watch(cycle.start.status)
    finally:
        spool.close()


class _Cycle:
    """One start, which may stand by for a long time, and the stream that follows it."""

    def __init__(
        self, config: Config, spool: Spool, stop: Stop, own: Timings, *, takes_over: bool = False
    ) -> None:
        self._config = config
        self._spool = spool
        self._settings = settings = for_streaming(config.s3)
        quick = replace(settings, connect_timeout_seconds=5.0, read_timeout_seconds=6.0)
        self._own = own
        self._store = S3Store(
            quick, stop=stop.event, policy=RetryPolicy(attempts=2), on_request=own.requested
        )
        self.stop = stop
        self.start = Startup(config, self._store, spool, stop, takes_over=takes_over)

    def run(self, board: Board, notifier: Notifier) -> int:
        """Stream. Returns the exit status. Raises SupersededError if another writer works."""
        start, stop = self.start, self.stop
        with closing(self._store):
            begun = attend(start.begin, stop, notifier, lambda: start.waits)
            if begun is None or stop.signal:
                return stop.status
            with closing(
                S3Store(self._settings, stop=stop.event, on_request=self._own.requested)
            ) as patient:
                running = Loop(
                    self._config,
                    begun,
                    patient,
                    self._spool,
                    stop,
                    notifier=notifier,
                    timings=self._own,
                )
                running.show_on(board, start.catalog)
                claim = partial(running.claim, start)
                try:
                    if attend(claim, stop, notifier, lambda: start.waits) is None:
                        return stop.status
                except SupersededError:
                    running.end_threads()
                    raise
                board.watch(running.status)
                return running.run()


@contextmanager
def _shown(
    config: Config, look: Callable[[], Status], notifier: Notifier, own: Timings
) -> Iterator[Board]:
    """A board that answers on the spool's socket and where --metrics-listen says.

    It also tells systemd the status.
    """
    board = Board(look)
    page = ReportPage(report_command(config.s3, config.stream.source))
    listener = Listener(applications(board.current, page=page, own=own))
    deadman = None
    try:
        if config.stream.metrics_listen is not None:
            listener.listen_tcp(*split_listen(config.stream.metrics_listen))
        try:
            listener.listen_socket(config.spool)
        except SpoolError as error:  # streaming is worth more than the status
            _log.warning("no status on the spool's socket", error=error)
        if config.stream.heartbeat_url_file is not None:
            deadman = DeadMan(config.stream.heartbeat_url_file, config.stream.heartbeat_interval)
            board.tell(deadman.tell)
            deadman.start()
        board.tell(lambda _: listener.keep())
        board.tell(notifier.show)
        board.start()
        yield board
    finally:
        if deadman is not None:
            deadman.close()
        board.close()
        listener.close()


class Loop:
    """One stream: `claim`, then `run`."""

    def __init__(
        self,
        config: Config,
        begun: StartState,
        store: S3Store,
        spool: Spool,
        stop: Stop,
        *,
        notifier: Notifier,
        timings: Timings,
    ) -> None:
        self._config = config
        self._begun = begun
        patient = RetryPolicy(
            attempts=None,
            first_delay_seconds=config.timing.first_delay_seconds,
            max_delay_seconds=config.timing.longest_delay_seconds,
        )
        self._store = store.with_policy(patient, self._store_failed, self._store_over)
        catalog = Catalog(self._store, Layout(config.s3.prefix, config.stream.source))
        self._spool = spool
        self._stop = stop
        self._notifier = notifier
        self._board: Board | None = None
        self._ended = threading.Event()
        self._workers = Workers(config.s3.concurrency)
        slow = max(config.mysql.connect_timeout, config.stream.stall_timeout)
        self._watch = Watch(
            Server(lambda: replace(resolve(config.mysql), connect_timeout=slow)),
            patience_seconds=_QUESTIONS * slow + _WATCH_SECONDS,
        )
        self._alive = Alive(notifier, self._watch)
        self._uploads = Uploader(
            catalog=catalog,
            spool=spool,
            workers=self._workers,
            alive=self._alive,
            stop=stop,
            foreign=begun.foreign,
            bodies=store.with_policy(RetryPolicy(attempts=1)),
            config=config,
            timings=timings,
        )
        self._writer = Writer(
            catalog=catalog,
            spool=spool,
            interval_seconds=config.stream.heartbeat_interval,
            progress=self._progress,
            uploads=self._uploads,
            stop=stop,
            turn=begun.turn,
        )
        self._tracking = Tracking(
            catalog=catalog,
            spool=spool,
            writer=self._writer,
            uploads=self._uploads,
        )
        self._pager = Pager(catalog, self._tracking, stop)
        self._runs = Runs(
            config,
            spool=spool,
            tracking=self._tracking,
            uploads=self._uploads,
            writer=self._writer,
            resumption=Resumption(config, catalog, spool, stop.event),
            connect=lambda: Server(lambda: resolve(config.mysql)),
            watch=self._watch,
            stop=stop.event,
            next_run=begun.next_run,
        )
        self._reporter = self._report()
        stop.wake = self._workers.wake

    def _report(self) -> Reporter:
        return Reporter(
            self._config,
            watch=self._watch,
            runs=self._runs,
            tracking=self._tracking,
            uploads=self._uploads,
            writer=self._writer,
            stop=self._stop,
        )

    def show_on(self, board: Board, catalog: Catalog) -> None:
        """Show the stream on this board. A thread asks `catalog` for the lineages."""
        self._board = board
        board.watch(self.status)
        look = partial(self._reporter.look_at_history, catalog)
        Periodic("history", look, self._ended).start(_HISTORY_SECONDS)

    def status(self) -> Status:
        return self._reporter.status()

    def claim(self, start: Startup) -> bool:
        """Become the writer, and finish what the last writer left unfinished.

        Waits as the start does. Raises SupersededError if the vacancy does not exist any more.
        """
        stop, timing, catalog = self._stop.event, self._config.timing, start.catalog

        def tell(error: BaseException) -> None:
            start.waits_for(error)
            if self._board is not None:
                self._board.watch(start.status)

        wait_for(
            lambda: self._writer.claim(catalog, start.vacancy), stop, tell, start.passes, timing
        )
        wait_for(lambda: mend_entries(catalog, self._begun), stop, tell, start.passes, timing)
        sweep_spool(self._spool, self._begun)
        return True

    def run(self) -> int:
        """Stream, after the claim, and end. Returns 0 after SIGTERM, 130 after SIGINT."""
        try:
            self._take_in()
            self._start_threads()
            self._serve()
        except (GapError, SourceError) as error:
            try:
                self._runs.bring_in()  # nothing else may have these bytes
            except Binlog2s3Error as later:
                _log.error("not all of the spool could be uploaded", later)
            self._stop.fail(error)
        except StoreError as error:
            if not self._stop.signal:  # else the signal ended the request that the loop waited for
                self._stop.fail(error)
        except BaseException as error:  # noqa: BLE001 - raised again when all is in order
            self._stop.fail(error)
        return self._end()

    def _start_threads(self) -> None:
        event, fail = self._stop.event, self._stop.fail
        Periodic("watch", self._look, event, failed=fail, end=self._watch.close).start()
        Periodic("name", self._look_up, event, failed=fail).start(_WATCH_SECONDS)
        self._writer.start()
        self._pager.start()

    def _serve(self) -> None:
        if self._begun.refusal is not None:
            raise self._begun.refusal
        self._runs.supervise()

    def _take_in(self) -> None:
        """Take in what the start found in the bucket and the spool."""
        begun, known = self._begun, self._begun.known
        if known is None or not (begun.described or begun.tracks):
            return
        for end, tracks in begun.left_behind:
            self._tracking.resume(end, lacks="")
            for track in tracks:
                self._tracking.admit(track)
            self._tracking.judge({})
        self._tracking.resume(known, lacks="turn" if begun.described else "document")
        if begun.unlogged:
            self._tracking.saw_no_binlog(begun.unlogged, None)
        for track in begun.tracks:
            self._tracking.admit(track)
        self._tracking.judge({})
        self._tracking.known = self._tracking.end
        course = begun.next_run.course if begun.next_run is not None else None
        if isinstance(course, GoOn) and course.known_end.lineage.id == known.lineage.id:
            self._tracking.known = course.known_end
        for name in (*known.in_parts, *(binlog.name for binlog in begun.undescribed)):
            self._uploads.sweep(name)

    def _end(self) -> int:
        """Stop reading, give running requests a few seconds, and make the spool durable."""
        superseded = self._stop.superseded
        if self._reporter.phase != "standby":
            self._notifier.stopping()
        self._stop.event.set()
        if not superseded:
            self._in_order(lambda: self._drain(reading=self._stop.error is None))
        self._in_order(self._runs.close)
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
        left = self._uploads.count().uploads
        if left.unsaved_bytes:
            _log.warning(
                "not all is in the bucket",
                bytes=left.unsaved_bytes,
                hint="these bytes are only in the spool and on the source: keep both until a "
                "streamer has run again",
            )
        self.end_threads()
        if self._reporter.phase == "standby":
            self._uploads.settle()
        _log.info("stopped", waiting=left.closed_binlogs, spool_bytes=self._spool.used_bytes())
        if self._stop.error is not None:
            raise self._stop.error
        return self._stop.status

    def _in_order(self, step: Callable[[], object]) -> None:
        """A step of the end. One that fails does not keep the others from being done."""
        try:
            step()
        except Binlog2s3Error as error:
            if str(error) != str(self._stop.error):
                _log.error("part of the shutdown failed", error)

    def end_threads(self) -> None:
        """End the remaining threads, each after what it does at the moment."""
        self._ended.set()
        self._workers.close()

    def _drain(self, *, reading: bool) -> None:
        """Give running requests their time. Read what is there, unless reading has failed."""
        while not self._uploads.is_drained():
            self._uploads.flush()
            more = reading and self._runs.round(_POLL_SECONDS)
            if not reading:
                self._uploads.step(_POLL_SECONDS)
            if not more and self._tracking.done:
                return

    def _reached(self) -> FilePosition | None:
        """How far the source is known: as far as it was read, or more of it is durable."""
        last, coverage = self._tracking.last, self._tracking.coverage
        read = self._runs.reached() or (last.end if last is not None else None)
        durable = coverage.durable if coverage is not None else None
        positions = [read, durable.file_position if durable is not None else None]
        return max((position for position in positions if position is not None), default=None)

    def _look(self) -> float:
        """Let the watch look, and `Tracking` know what it sees. Called by the thread `watch`."""
        position = self._watch.look(self._reached())
        if position is not None:
            self._tracking.seen(position, is_read=self._runs.is_reading)
        elif self._watch.unlogged(uuid := self._tracking.server_uuid):
            self._tracking.saw_no_binlog(uuid, self._watch.newest)
        return min(_WATCH_SECONDS, self._config.stream.stall_timeout / 4)

    def _look_up(self) -> float:
        """Let the watch look the server's name up. Called by the thread `name`."""
        self._watch.look_up()
        return _NAME_SECONDS

    def _progress(self, beat: Heartbeat) -> Heartbeat:
        status = None
        if self._board is None:
            now = self.status()
        else:  # one for all: the state is that of its troubles, and every voice says the same
            self._board.refresh()
            now = self._board.current()
            status = document(now)
        return replace(
            beat,
            state=now.state,
            lineage=now.lineage,
            server_uuid=self._tracking.server_uuid or self._begun.server_uuid,
            durable=now.durable,
            server=now.server.position,
            covered_until=now.covered_until,
            status=without_gtids(status) if status is not None else None,
            time_zone=self._tracking.time_zone,
            unlogged=self._tracking.unlogged,
            leaves_out=self._tracking.leaves_out,
        )

    def _store_over(self, succeeded: bool) -> None:
        over = self._uploads.counts.retried.over(succeeded=succeeded, now=time.monotonic())
        if over is None:
            return
        seconds, is_first = over
        _log.over(
            "the store answers again",
            "the store failed, trying again",
            after_seconds=round(seconds, 1),
        )
        if is_first and seconds >= self._config.timing.soon_seconds:
            self._uploads.try_again()

    def _store_failed(self, error: StoreError, attempt: int, delay: float) -> None:
        self._uploads.counts.failed(error)
        self._uploads.counts.retried.failed(time.monotonic())
        if threading.current_thread() is threading.main_thread():
            self._alive.tell()  # the loop itself waits for this request
        _log.recurring(
            "the store failed, trying again",
            error=error,
            hint=error.hint,
            attempt=attempt,
            again_in_seconds=round(delay, 1),
        )
