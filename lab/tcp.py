"""An address behind which servers come and go: a TCP relay whose target can be switched.

    with Switch(server.port) as door:
        ...                    # a client at 127.0.0.1, door.port
        door.turn(other.port)  # from now on another server answers there

A connection belongs for its whole life to the server that it was led to.
"""

import contextlib
import socket
import threading
from collections.abc import Callable
from functools import partial
from typing import Self

PIECE_BYTES = 64 * 1024


class Switch:
    """Leads connections to a port of 127.0.0.1; `led` are the ports that it led to, in order."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._once: list[int] = []
        self._lock = threading.Lock()
        self._sockets: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._passes = threading.Event()  # else bytes and new connections wait
        self._passes.set()
        self._over = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self.led: list[int] = []
        self.waiting = 0

    def __enter__(self) -> Self:
        self._start(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        _end(self._listener)
        self._passes.set()
        self.cut()
        for thread in self._threads:
            thread.join(10)

    def turn(self, target: int, *, cut: bool = True) -> None:
        """Lead to this port from now on; without `cut` the connections that there are stay."""
        with self._lock:
            self._target = target
        if cut:
            self.cut()

    def lead_once(self, *targets: int) -> None:
        """Lead the next connections there, one to each, and those after them as before."""
        with self._lock:
            self._once.extend(targets)

    def cut(self) -> None:
        """End all connections that there are."""
        with self._lock:
            open_ones, self._sockets = list(self._sockets), set()
        for each in open_ones:
            _end(each)

    def hold(self) -> None:
        """Let nothing pass, neither bytes nor new connections; nobody is told."""
        self._passes.clear()

    def release(self) -> None:
        """Let pass what waits, and all that comes."""
        self._passes.set()

    def _start(self, run: Callable[[], None]) -> None:
        thread = threading.Thread(target=run, name="switch")
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self._start(partial(self._lead, client))

    def _lead(self, client: socket.socket) -> None:
        with self._lock:
            self._sockets.add(client)
            self.waiting += 1
        self._passes.wait()
        with self._lock:
            self.waiting -= 1
            target = self._once.pop(0) if self._once else self._target
            self.led.append(target)
        try:
            server = socket.create_connection(("127.0.0.1", target), 10)
        except OSError:
            _end(client)
            return
        server.settimeout(None)
        with self._lock:
            gone = client not in self._sockets
            self._sockets.add(server)
        if gone or self._over.is_set():
            _end(client)
            _end(server)
            return
        self._carry(client, server)

    def _carry(self, client: socket.socket, server: socket.socket) -> None:
        """Both ways, until the server's end."""
        self._start(partial(self._pump, client, server))
        self._pump(server, client)

    def _pump(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while piece := source.recv(PIECE_BYTES):
                self._passes.wait()
                self._delay(piece, source, target)
                target.sendall(piece)
        self._close(source, target)

    def _close(self, source: socket.socket, target: socket.socket) -> None:
        _end(source)
        _end(target)
        with self._lock:
            self._sockets -= {source, target}

    def _delay(self, piece: bytes, source: socket.socket, target: socket.socket) -> None:
        """Called before each piece is passed on; a subclass may wait here."""


def _end(each: socket.socket) -> None:
    with contextlib.suppress(OSError):
        each.shutdown(socket.SHUT_RDWR)
    each.close()
