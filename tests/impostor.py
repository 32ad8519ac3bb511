"""A server that is not the right one: it answers as one would, and tries to get the password.

It speaks the connection phase of MySQL's protocol, and nothing behind it.
"""

import socket
import ssl
import struct
import threading
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal, Self

from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from binlog2s3.replication.endpoint import tls_for

NONCE = b"abcdefghijklmnopqrst"
_CAPABILITIES = 0x1 | 0x200 | 0x8000 | 0x80000 | 0x200000
"""Long passwords, protocol 4.1, secure connection, authentication plugins, their long data."""
_TLS = 0x800
_SECONDS = 5

Got = Literal["nothing", "encrypted with its own key", "in clear text"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trick:
    """The plugin by which it asks: at once (`first`), or instead of that with which it greets."""

    plugin: str
    first: bool = True

    def __str__(self) -> str:
        return self.plugin if self.first else f"switch to {self.plugin}"


FULL = tuple(
    Trick(plugin=plugin, first=first)
    for plugin in ("caching_sha2_password", "sha256_password")
    for first in (True, False)
)
"""Full authentication, and a key of its own whether the client asks for it or not."""
CLEAR = tuple(
    Trick(plugin=plugin, first=first)
    for plugin in ("mysql_clear_password", "dialog", "mysql_old_password")
    for first in (True, False)
)


def new_key() -> rsa.RSAPrivateKey:
    """A key as MySQL makes it."""
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


def pem_of(key: rsa.RSAPrivateKey) -> bytes:
    """The public half, as a server has it in public_key.pem."""
    return key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )


def decrypted(data: bytes, key: rsa.RSAPrivateKey) -> bytes:
    """What a client has encrypted with the public half; b"" if it has not."""
    sha1 = hashes.SHA1()
    try:
        hidden = key.decrypt(data, padding.OAEP(padding.MGF1(sha1), sha1, None))
    except ValueError:
        return b""
    return bytes(one ^ NONCE[at % len(NONCE)] for at, one in enumerate(hidden))


class Impostor:
    """Serves clients at a loopback address, or by `listener`, one after the other.

    `heard`: each packet of each client. `accepted`: how many clients connected. `tls`: it offers
    TLS, with a certificate that is signed by itself.
    """

    def __init__(
        self,
        trick: Trick,
        *,
        tls: bool = True,
        version: str = "9.7.0",
        listener: socket.socket | None = None,
    ) -> None:
        self.heard: list[bytes] = []
        self.accepted = 0
        self.key = new_key()
        self._trick = trick
        self._tls = tls_for("127.0.0.1") if tls else None
        self._version = version
        self._listener = listener or socket.create_server(("127.0.0.1", 0))
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="impostor", daemon=True)

    def __enter__(self) -> Self:
        self._listener.settimeout(0.05)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(60)
        self._listener.close()
        assert not self._thread.is_alive()

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self._listener.getsockname()[1])

    def got(self, password: str) -> Got:
        """How it got this password, if it did."""
        wanted = password.encode()
        if any(wanted in one for one in self.heard):
            return "in clear text"
        if any(wanted in decrypted(one, self.key) for one in self.heard):
            return "encrypted with its own key"
        return "nothing"

    def _run(self) -> None:
        while not self._ended.is_set():
            with suppress(OSError, ssl.SSLError):
                client, _ = self._listener.accept()
                self.accepted += 1
                client.settimeout(_SECONDS)
                self._serve(client)

    def _serve(self, client: socket.socket) -> None:
        with client:
            _send(client, 0, self._greeting())
            number, said = _receive(client)
            if len(said) > 32:
                return self._ask(client, number, said)
            assert self._tls is not None  # Protocol::SSLRequest
            with self._tls.wrap_socket(client, server_side=True) as wrapped:
                return self._ask(wrapped, *_receive(wrapped))

    def _ask(self, client: socket.socket, number: int, said: bytes) -> None:
        self.heard.append(said)
        for answer in self._answers():
            _send(client, number + 1, answer)
            number, said = _receive(client)
            self.heard.append(said)

    def _answers(self) -> list[bytes]:
        """What it says after each packet of the client."""
        plugin, key = self._trick.plugin, b"\x01" + pem_of(self.key)
        ask = {"caching_sha2_password": [b"\x01\x04", key], "sha256_password": [key]}.get(plugin)
        if ask is None:  # the password itself, or nearly so
            ask = [b"\x01\x04Password: "] if self._trick.first else []
        if self._trick.first:
            return ask
        data = b"\x04Password: " if plugin == "dialog" else NONCE + b"\0"
        return [b"\xfe" + plugin.encode() + b"\0" + data, *ask]

    def _greeting(self) -> bytes:
        plugin = self._trick.plugin if self._trick.first else "mysql_native_password"
        flags = struct.pack("<I", _CAPABILITIES | _TLS * bool(self._tls))
        return (
            b"\x0a" + self._version.encode() + b"\0" + struct.pack("<I", 7) + NONCE[:8] + b"\0"
            + flags[:2] + b"\x2d\x02\0" + flags[2:] + bytes([21]) + bytes(10) + NONCE[8:] + b"\0"
            + plugin.encode() + b"\0"
        )  # fmt: skip


def _send(client: socket.socket, number: int, body: bytes) -> None:
    client.sendall(struct.pack("<I", len(body))[:3] + bytes([number & 0xFF]) + body)


def _receive(client: socket.socket) -> tuple[int, bytes]:
    head = _exactly(client, 4)
    return head[3], _exactly(client, int.from_bytes(head[:3], "little"))


def _exactly(client: socket.socket, size: int) -> bytes:
    """So many bytes and no more: TLS may follow."""
    data = b""
    while len(data) < size:
        piece = client.recv(size - len(data))
        if not piece:
            raise ConnectionError("the client is gone")
        data += piece
    return data
