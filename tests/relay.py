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
    after `times` such cuts all others live. `edit` changes each piece the client sends.
    """

    def __init__(
        self,
        upstream_url: str,
        *,
        cut_up: int | None = None,
        cut_down: int | None = None,
        times: int = 1,
        edit: Callable[[bytes], bytes] = bytes,
    ) -> None:
        upstream = urlsplit(upstream_url)
        self._upstream = (upstream.hostname or "127.0.0.1", upstream.port or 80)
        self._cut_up, self._cut_down, self._times = cut_up, cut_down, times
        self._edit = edit
        self._lock = threading.Lock()
        self._sockets: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.cuts = 0

    @property
    def url(self) -> str:
        """The endpoint to give to a client."""
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def __enter__(self) -> Self:
        self._start(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        self._end(self._listener)
        with self._lock:
            open_ones = list(self._sockets)
        for each in open_ones:
            self._end(each)
        for thread in self._threads:
            thread.join(10)

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
            self._start(partial(self._pump, client, server, self._cut_up, self._edit))
            self._start(partial(self._pump, server, client, self._cut_down, bytes))

    def _pump(
        self,
        source: socket.socket,
        target: socket.socket,
        limit: int | None,
        edit: Callable[[bytes], bytes],
    ) -> None:
        sent = 0
        with contextlib.suppress(OSError):
            while piece := source.recv(PIECE_BYTES):
                if limit is not None and sent + len(piece) > limit and self._may_cut():
                    target.sendall(piece[: max(0, limit - sent)])
                    break
                target.sendall(edit(piece))
                sent += len(piece)
        self._end(source)
        self._end(target)

    def _may_cut(self) -> bool:
        with self._lock:
            if self.cuts == self._times:
                return False
            self.cuts += 1
            return True

    def _end(self, each: socket.socket) -> None:
        with contextlib.suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)
        each.close()
