"""Watches the source from beside: where it stands, which binlogs it lists.

Place in the flow: a thread of its own with a connection of its own, so that a server that is slow
to answer never holds up the bytes. The daemon reads the latest answer.

Law: an answer is used only if it comes from the server that is streamed (its uuid); no answer is
not an answer. SHOW BINARY LOGS takes a lock on the server, so it is asked for at the start, when
the daemon wants it (a rotation) and every five minutes.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from binlog2s3.binlog import BinlogName
from binlog2s3.errors import SourceError
from binlog2s3.log import Log
from binlog2s3.server import Server, ServerBinlog, ServerPosition

_log = Log("watch")
_LIST_EVERY_SECONDS = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """The latest answers. `error` is set while the server does not answer."""

    position: ServerPosition | None = None
    listed: tuple[ServerBinlog, ...] = ()
    error: SourceError | None = None


class Watch:
    """Asks every `interval_seconds`; `sight` is always the latest."""

    def __init__(
        self,
        server: Server,
        server_uuid: str,
        *,
        interval_seconds: float,
        seen: Callable[[ServerPosition], None],
        failed: Callable[[BaseException], None],
        stop: threading.Event,
    ) -> None:
        self._server = server
        self._uuid = server_uuid
        self._interval = interval_seconds
        self._seen = seen
        self._failed = failed
        self._stop = stop
        self._wanted = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
        self.sight = Sight()

    def start(self) -> None:
        """Begin to ask."""
        self._thread.start()

    def list_again(self) -> None:
        """Have the server's list asked for at the next look."""
        self._wanted.set()

    def listed(self) -> dict[BinlogName, ServerBinlog]:
        """The server's binlogs by name, as last listed."""
        return {row.name: row for row in self.sight.listed}

    def _run(self) -> None:
        next_list = 0.0
        try:
            while True:
                wanted = self._wanted.is_set() or time.monotonic() >= next_list
                self._wanted.clear()
                answered = self._ask(with_list=wanted)
                if answered and wanted:
                    next_list = time.monotonic() + _LIST_EVERY_SECONDS
                elif wanted:
                    self._wanted.set()
                if self._stop.wait(self._interval):
                    self._server.close()
                    return
        except BaseException as error:  # noqa: BLE001 - the daemon ends the process with it
            self._failed(error)

    def _ask(self, *, with_list: bool) -> bool:
        before = self.sight
        try:
            position = self._server.position()
            listed = self._server.binlogs() if with_list else before.listed
        except SourceError as error:
            if before.error is None:
                _log.warning("the server does not answer", error=error, hint=error.hint)
            self.sight = Sight(position=before.position, listed=before.listed, error=error)
            return False
        if position.uuid != self._uuid:
            raise SourceError(
                f"another server answers under this address: {position.uuid}, not {self._uuid}",
                hint="a proxy or a fail-over? stream each server under its own --source",
            )
        if before.error is not None:
            _log.info("the server answers again")
        self.sight = Sight(position=position, listed=listed)
        self._seen(position)
        return True
