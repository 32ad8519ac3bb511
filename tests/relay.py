"""A TCP relay that breaks connections in the middle.

`lab.proxy` speaks HTTP and spoils whole requests; this knows only bytes, and so can cut a body.
"""

import contextlib
import socket
from collections.abc import Callable
from functools import partial
from urllib.parse import urlsplit

from lab.tcp import PIECE_BYTES, Switch


class Relay(Switch):
    """`with Relay(url, cut_down=1000, times=2) as relay:` and a client with `relay.url`.

    A connection is closed after `cut_up` bytes from the client, or `cut_down` from the server;
    after `times` such cuts all others live. `times` may be changed at any moment. `spoils` is asked
    with the head of each request whether to close the connection in the middle of its answer's
    body. Once `drips` is set, what the server says comes one byte each few seconds: an answer takes
    longer than any test, and no read times out. `dripping` counts the pieces that came so.
    """

    def __init__(
        self,
        upstream_url: str,
        *,
        cut_up: int | None = None,
        cut_down: int | None = None,
        times: int = 1,
        spoils: Callable[[bytes], bool] = lambda _: False,
    ) -> None:
        super().__init__(urlsplit(upstream_url).port or 80)
        self._cut_up, self._cut_down = cut_up, cut_down
        self._spoils = spoils
        self.times = times
        self.cuts = 0
        self.drips = False
        self.dripping = 0

    @property
    def url(self) -> str:
        """The endpoint to give to a client."""
        return f"http://127.0.0.1:{self.port}"

    def _carry(self, client: socket.socket, server: socket.socket) -> None:
        answer = _Answer(self._spoils)
        self._start(partial(self._cut, client, server, self._cut_up, answer.asked))
        self._cut(server, client, self._cut_down, answer.half, drips=lambda: self.drips)

    def _cut(
        self,
        source: socket.socket,
        target: socket.socket,
        limit: int | None,
        last: Callable[[bytes], bytes | None],
        drips: Callable[[], bool] = bool,
    ) -> None:
        """Carry bytes; `last` sees each piece first, and may say how little of it is the last."""
        sent = 0
        with contextlib.suppress(OSError):
            while piece := source.recv(PIECE_BYTES):
                if limit is not None and sent + len(piece) > limit and self._may_cut():
                    target.sendall(piece[: max(0, limit - sent)])
                    break
                if (end := last(piece)) is not None:
                    target.sendall(end)
                    break
                if drips():
                    self._drip(target, piece)
                else:
                    target.sendall(piece)
                sent += len(piece)
        self._close(source, target)

    def _drip(self, target: socket.socket, piece: bytes) -> None:
        with self._lock:
            self.dripping += 1
        for at in range(len(piece)):
            target.sendall(piece[at : at + 1])
            if self._over.wait(5):
                break

    def _may_cut(self) -> bool:
        with self._lock:
            if self.cuts >= self.times:
                return False
            self.cuts += 1
            return True


class _Answer:
    """Where one connection stands between a request and the middle of its answer's body."""

    def __init__(self, spoils: Callable[[bytes], bool]) -> None:
        self._spoils = spoils
        self._answered = True
        self._spoilt = False
        self._head = b""

    def asked(self, piece: bytes) -> None:
        """From the client: the first piece behind an answer is the next request's head."""
        if self._answered:
            self._answered, self._head = False, b""
            self._spoilt = self._spoils(piece)

    def half(self, piece: bytes) -> bytes | None:
        """From the server: all up to half of the body that has come, if that is to be the last."""
        if piece.startswith(b"HTTP/1.1 100 "):
            return None  # go on, it says: the request's body follows
        self._answered = True
        if not self._spoilt:
            return None
        whole = self._head + piece
        body = whole.partition(b"\r\n\r\n")[2]
        if not body:
            self._head = whole
            return None
        return piece[: len(piece) - (len(body) + 1) // 2]
