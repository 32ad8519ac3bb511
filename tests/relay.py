"""A TCP relay that breaks connections in the middle, or edits what the client says.

`lab.proxy` speaks HTTP and spoils whole requests; this knows only bytes, and so can cut a body.
"""

import contextlib
import socket
import threading
from collections.abc import Callable
from functools import partial
from typing import Self
from urllib.parse import urlsplit

PIECE_BYTES = 64 * 1024


class Relay:
    """`with Relay(url, cut_down=1000, times=2) as relay:` and a client with `relay.url`.

    A connection is closed after `cut_up` bytes from the client, or `cut_down` from the server;
    after `times` such cuts all others live. `times` may be changed at any moment. `edit` changes
    each piece the client sends. `spoils` is asked with the head of each request whether to close
    the connection in the middle of its answer's body. Once `drips` is set, what the server says
    comes one byte each few seconds: an answer takes longer than any test, and no read times out.
    `dripping` counts the pieces that came so.
    """

    def __init__(
        self,
        upstream_url: str,
        *,
        cut_up: int | None = None,
        cut_down: int | None = None,
        times: int = 1,
        edit: Callable[[bytes], bytes] = bytes,
        spoils: Callable[[bytes], bool] = lambda _: False,
    ) -> None:
        upstream = urlsplit(upstream_url)
        self._upstream = (upstream.hostname or "127.0.0.1", upstream.port or 80)
        self._cut_up, self._cut_down = cut_up, cut_down
        self.times = times
        self._edit = edit
        self._spoils = spoils
        self._lock = threading.Lock()
        self._sockets: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._over = threading.Event()
        self.cuts = 0
        self.drips = False
        self.dripping = 0

    @property
    def url(self) -> str:
        """The endpoint to give to a client."""
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def __enter__(self) -> Self:
        self._start(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._end(self._listener)
        with self._lock:
            open_ones = list(self._sockets)
        for each in open_ones:
            self._end(each)
        for thread in self._threads:
            thread.join(60)

    def hang_up(self) -> None:
        """Close every connection there is, on both sides; new ones live."""
        with self._lock:
            open_ones, self._sockets = self._sockets, set()
        for each in open_ones:
            self._end(each)

    def _start(self, run: Callable[[], None]) -> None:
        thread = threading.Thread(target=run, name="relay")
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(self._upstream)
            with self._lock:
                self._sockets |= {client, server}
            answer = _Answer(self._spoils)
            up = partial(self._pump, client, server, self._cut_up, self._edit, answer.asked)
            down = partial(self._pump, server, client, self._cut_down, bytes, answer.half)
            self._start(up)
            self._start(partial(down, drips=lambda: self.drips))

    def _pump(
        self,
        source: socket.socket,
        target: socket.socket,
        limit: int | None,
        edit: Callable[[bytes], bytes],
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
                    target.sendall(edit(piece))
                sent += len(piece)
        self._end(source)
        self._end(target)

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

    def _end(self, each: socket.socket) -> None:
        with contextlib.suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)
        each.close()


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
