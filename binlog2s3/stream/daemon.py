"""The streaming daemon: starts, streams or stands by, and ends.

Law: a start only reads. The claim is the first write.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial

from binlog2s3.config.bucket import for_streaming
from binlog2s3.config.options import split_listen
from binlog2s3.config.stream import Config
from binlog2s3.errors import (
    SpoolError,
    SupersededError,
)
from binlog2s3.log import Log
from binlog2s3.server.login import CHMOD, readable_by_others
from binlog2s3.status.http import Listener, applications
from binlog2s3.status.metrics import Timings
from binlog2s3.status.model import Status
from binlog2s3.status.page import ReportPage, report_command
from binlog2s3.store.s3 import RetryPolicy, S3Store
from binlog2s3.stream.board import Board
from binlog2s3.stream.ping import DeadMan
from binlog2s3.stream.spool import Spool
from binlog2s3.stream.start import Startup
from binlog2s3.stream.systemd import Notifier, attend, of_environment
from binlog2s3.stream.waiting import Signals, Stop

_log = Log("daemon")


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
            # a standby does without
            from binlog2s3.stream.loop import Loop  # noqa: PLC0415

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

                def waits(error: BaseException) -> None:
                    start.waits_for(error)
                    board.watch(start.status)

                claim = partial(running.claim, start.catalog, waits, start.passes, start.vacancy)
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
