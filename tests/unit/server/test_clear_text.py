"""Nobody gets the password in clear text who is not proved to be the server."""

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from binlog2s3.errors import SourceError
from binlog2s3.server.connection import Server
from binlog2s3.server.login import Login
from binlog2s3.server.mysqlbinlog import _safe_plugins
from tests.login import ROOT

PASSWORD = "Open-Sesame"
_CAPABILITIES = 0x1 | 0x200 | 0x8000 | 0x80000
"""Long passwords, protocol 4.1, secure connection, authentication plugins; no TLS."""


def packet(number: int, body: bytes) -> bytes:
    return struct.pack("<I", len(body))[:3] + bytes([number]) + body


def greeting(plugin: str) -> bytes:
    low, high = struct.pack("<I", _CAPABILITIES)[:2], struct.pack("<I", _CAPABILITIES)[2:]
    return (
        b"\x0a8.0.31\0" + struct.pack("<I", 7) + b"12345678\0" + low + b"\x2d\x02\0" + high
        + bytes([21]) + bytes(10) + b"123456789012\0" + plugin.encode() + b"\0"
    )  # fmt: skip


class Asking:
    """A server that asks each client for its password by this plugin; `heard` is all it was told.

    At once (`first`), or after a greeting that names another plugin.
    """

    def __init__(self, plugin: str, listener: socket.socket, *, first: bool = False) -> None:
        self.heard = b""
        self._plugin = plugin
        self._first = first
        self._listener = listener
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def end(self) -> bytes:
        """All that was heard, when the client is gone."""
        self._thread.join(60)
        assert not self._thread.is_alive()
        return self.heard

    def _run(self) -> None:
        client, _ = self._listener.accept()
        with client:
            client.settimeout(60)
            prompt = b"\x04Password: " if self._plugin == "dialog" else b""
            client.sendall(
                packet(0, greeting(self._plugin if self._first else "mysql_native_password"))
            )
            self.heard += client.recv(1 << 16)
            ask = (
                b"\x01" + prompt
                if self._first
                else b"\xfe" + self._plugin.encode() + b"\0" + prompt
            )
            client.sendall(packet(2, ask))
            self.heard += client.recv(1 << 16)


@pytest.fixture
def asking() -> Iterator[Callable[..., tuple[Asking, Login]]]:
    """Makes such a server on a loopback address, and the login to it."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:

        def make(plugin: str, *, first: bool = False) -> tuple[Asking, Login]:
            login = replace(ROOT, port=listener.getsockname()[1], password=PASSWORD)
            return Asking(plugin, listener, first=first), login

        yield make


def refused(login: Login) -> SourceError:
    with closing(Server(lambda: login)) as server, pytest.raises(SourceError) as caught:
        server.rows("SELECT 1")
    return caught.value


@pytest.mark.parametrize("plugin", ["mysql_clear_password", "dialog", "mysql_old_password"])
@pytest.mark.parametrize("first", [False, True])
def test_a_server_that_is_not_proved_gets_no_password(
    asking: Callable[..., tuple[Asking, Login]], plugin: str, *, first: bool
) -> None:
    """It may be anybody: the connection ends, with a hint at what would prove it."""
    server, login = asking(plugin, first=first)
    error = refused(login)
    assert PASSWORD.encode() not in server.end()
    assert "clear text" in str(error)
    assert "VERIFY_IDENTITY" in error.hint


def test_a_server_behind_a_socket_gets_it(tmp_path: Path) -> None:
    """The account may be one of PAM: the socket's path says whose server it is."""
    path = tmp_path / "my.sock"
    with closing(socket.socket(socket.AF_UNIX)) as listener:
        listener.bind(str(path))
        listener.listen()
        server = Asking("mysql_clear_password", listener)
        refused(replace(ROOT, socket=str(path), password=PASSWORD))
        assert PASSWORD.encode() in server.end()


def test_plugins_that_are_safe(tmp_path: Path) -> None:
    """Of those installed beside the program: none that sends the password as it is."""
    program = tmp_path / "usr/bin/mariadb-binlog"
    place = tmp_path / "usr/lib/x86_64-linux-gnu/libmariadb3/plugin"
    for path in (
        program,
        *(place / f"{n}.so" for n in ("client_ed25519", "dialog", "x", "parsec")),
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    link = tmp_path / "link"
    link.symlink_to(program)
    names = [path.name for path in _safe_plugins(str(link))]
    assert names == ["client_ed25519.so", "parsec.so"]
