"""Asks the source beside the stream: its position, its list of binlogs, and whether it answers.

A thread calls `look`, which has a connection of its own, so that a slow server never delays the
stream. The stream reads the latest answers. Another thread calls `look_up`: after a fail-over the
server's name leads to another address, while the old server may keep its connections open. The next
`look` then opens a new one, and sees which server answers there.

Law: an answer is used only if it comes from the server that is streamed (same UUID). A refusal is
an answer, silence is not. A resolver that fails changes nothing. SHOW BINARY LOGS takes a lock on
the server, so it is sent only at the start, when the daemon asks for it, after a rotation, and
every five minutes.
"""

import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from binlog2s3.binlog.names import BinlogName, FilePosition
from binlog2s3.errors import SourceError, UnloggedError
from binlog2s3.log import Log
from binlog2s3.server.connection import Server, ServerBinlog, ServerPosition
from binlog2s3.server.login import addresses_of

_log = Log("source_watch")
_LIST_EVERY_SECONDS = 300.0
_EXPIRY_EVERY_SECONDS = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceState:
    """The latest answers. `error` is set while the server does not answer, or refuses.

    `heard_at`: the last answer or refusal (monotonic seconds). `stranger`: the UUID of another
    server that answers in its place. `behind`: how many times in a row the server's position was
    before one that was read already. `position_at`: when `position` was answered (monotonic
    seconds). `expires`: whether the server deletes binlogs by itself, None if unknown;
    `expire_seconds`: after how long.
    """

    position: ServerPosition | None = None
    listed: tuple[ServerBinlog, ...] = ()
    error: SourceError | None = None
    heard_at: float = 0.0
    stranger: str = ""
    behind: int = 0
    position_at: float = 0.0
    expires: bool | None = None
    expire_seconds: float | None = None


class Watch:
    """Asks the server at each `look`; `source_state` has the latest answers.

    A look ends within `patience_seconds`, however slow the server is.
    """

    def __init__(self, server: Server, *, patience_seconds: float = math.inf) -> None:
        self._server = server
        self._uuid = ""
        self._list_at = 0.0
        self._expiry_due = 0.0
        self._wanted = threading.Event()
        self._moved = threading.Event()
        self._addresses: frozenset[str] = frozenset()  # to which the name led last
        self._lock = threading.Lock()
        self._by_name: tuple[tuple[ServerBinlog, ...], dict[BinlogName, ServerBinlog]] = ((), {})
        self.source_state = SourceState(heard_at=time.monotonic())
        self.round_at = time.monotonic()  # when it last began to ask
        self.patience_seconds = patience_seconds

    def close(self) -> None:
        self._server.close()

    def follow(self, server_uuid: str, listed: tuple[ServerBinlog, ...]) -> None:
        """Ask about this server from now on, and forget the answers of another one."""
        with self._lock:
            if server_uuid != self._uuid:
                self.source_state = SourceState(listed=listed)
            self._uuid = server_uuid
            self.source_state = replace(
                self.source_state, listed=listed, stranger="", behind=0, heard_at=time.monotonic()
            )

    @property
    def heard_at(self) -> float:
        """When the server last answered or refused; monotonic seconds."""
        return max(self.source_state.heard_at, self._server.heard_at)

    def list_again(self) -> None:
        """Ask for the server's list of binlogs at the next look."""
        self._wanted.set()

    def streams(self, server_uuid: str) -> bool:
        """Whether this server is followed, and no other one answers in its place."""
        return self._uuid == server_uuid and not self.source_state.stranger

    def listed(self) -> dict[BinlogName, ServerBinlog]:
        """The server's binlogs by name, as it last listed them."""
        rows = self.source_state.listed
        if rows is not self._by_name[0]:
            self._by_name = rows, {row.name: row for row in rows}
        return self._by_name[1]

    def look(self, reached: FilePosition | None) -> ServerPosition | None:
        """Ask the server, if one is followed. `reached` is how far it was read before that.

        Returns its position; None if it does not answer, or is before `reached`: an earlier
        position is of another history.
        """
        self.round_at = time.monotonic()
        if self._moved.is_set():
            self._moved.clear()
            self._server.close()
        wanted = self._wanted.is_set() or time.monotonic() >= self._list_at
        self._wanted.clear()
        uuid = self._uuid
        source_state = self._ask(uuid, reached, with_list=wanted) if uuid else None
        if source_state is None:
            if wanted:
                self._wanted.set()
            return None
        if wanted:
            self._list_at = time.monotonic() + _LIST_EVERY_SECONDS
        is_kept = self._set(uuid, source_state)
        return source_state.position if is_kept and not source_state.behind else None

    def look_up(self, addresses: Callable[[str], frozenset[str]] = addresses_of) -> None:
        """Look up the server's name; if its addresses changed, the next look connects again.

        Also if there are fewer: nobody knows which of them the open connection leads to.
        Its own thread calls this, because a resolver may take a minute.
        """
        host, before = self._server.host, self._addresses
        resolved = addresses(host)
        if not resolved or resolved == {host}:  # nobody knows it, or it is no name
            return
        self._addresses = resolved
        if resolved == before:
            return
        if before and (new := resolved - before):
            address = ", ".join(sorted(new))
            _log.recurring("the server's name leads to another address", host=host, address=address)
        self._moved.set()

    def _ask(
        self, uuid: str, reached: FilePosition | None, *, with_list: bool
    ) -> SourceState | None:
        """What the server with this UUID answers; None if it does not, or is another one."""
        before = self.source_state
        try:
            position = self._server.position()
            last = max((row.name for row in before.listed), default=None)
            with_list = with_list or last != position.place.binlog
            listed = self._server.binlogs() if with_list else before.listed
            expires, seconds = before.expires, before.expire_seconds
            if with_list or expires is None or time.monotonic() >= self._expiry_due:
                seconds = self._server.expiry()
                expires = seconds is not None
                self._expiry_due = time.monotonic() + _EXPIRY_EVERY_SECONDS
        except SourceError as error:
            if before.error is None or _is_unlogged(before.error) != _is_unlogged(error):
                if _is_unlogged(error):
                    _log.warning("the server writes no binlog", error=error, hint=error.hint)
                else:
                    _log.warning("the server does not answer", error=error, hint=error.hint)
            heard_at = time.monotonic() if error.answered else self.source_state.heard_at
            self._set(uuid, replace(self.source_state, error=error, heard_at=heard_at))
            return None
        now = time.monotonic()
        if position.uuid != uuid:
            self._set(
                uuid, replace(self.source_state, stranger=position.uuid, heard_at=now, error=None)
            )
            self._server.close()  # the name may lead back
            return None
        if before.error is not None and _is_unlogged(before.error):
            _log.info("the server writes a binlog again")
        elif before.error is not None:
            _log.info("the server answers again")
        if position.read_only and before.position is not None and not before.position.read_only:
            _log.warning("the server has become read_only", server=uuid)
        is_behind = reached is not None and position.place < reached
        return SourceState(
            position=position,
            listed=listed,
            heard_at=now,
            behind=before.behind + 1 if is_behind else 0,
            position_at=now,
            expires=expires,
            expire_seconds=seconds,
        )

    @property
    def newest(self) -> BinlogName | None:
        """The newest binlog that the server was seen to have; None if it has not answered yet."""
        source_state = self.source_state
        names = [row.name for row in source_state.listed]
        names += [source_state.position.place.binlog] if source_state.position is not None else []
        return max(names, default=None)

    def unlogged(self, uuid: str) -> bool:
        """Whether this server answers and writes no binlog, by the latest answer."""
        error = self.source_state.error
        return isinstance(error, UnloggedError) and error.uuid == uuid

    def _set(self, uuid: str, source_state: SourceState) -> bool:
        """Keep an answer, unless another server is followed meanwhile; whether it was kept."""
        with self._lock:
            if uuid != self._uuid:
                return False
            self.source_state = source_state
            return True


def _is_unlogged(error: SourceError) -> bool:
    return isinstance(error, UnloggedError)
