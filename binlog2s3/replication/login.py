"""How a client logs in to a replication source: greeting, TLS, passwords. Pure.

Law: a wrong user and a wrong password get the same answer, after the same work. An account without
a password admits nobody.

Source: MySQL's "Client/Server Protocol" (dev.mysql.com/doc/dev/mysql-server), page Connection
Phase.
"""

import hashlib
import hmac
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeAlias

from binlog2s3.replication.packets import Packets
from binlog2s3.replication.queries import AUTOCOMMIT, OK, UTF8MB4, Identity, error
from binlog2s3.server.version import Plugin

NONCE_SIZE = 20

_LONG_PASSWORD, _LONG_FLAG, _WITH_DB, _PROTOCOL_41 = 0x1, 0x4, 0x8, 0x200
_SSL, _TRANSACTIONS, _SECURE, _PLUGIN_AUTH, _LENENC_AUTH = 0x800, 0x2000, 0x8000, 1 << 19, 1 << 21


@dataclass(frozen=True, slots=True)
class Account:
    """An account that may log in."""

    user: str
    password: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class TlsWanted:
    """The client begins TLS now: wrap the socket, then call `Conversation.secured`."""


@dataclass(frozen=True, slots=True)
class LoggedIn:
    """The password of this user was right, and it may log in."""

    user: str


@dataclass(frozen=True, slots=True)
class Ended:
    """The client has ended the conversation, or was refused: send the rest and close.

    `is_denied`: its user or password was wrong.
    """

    why: str = ""
    is_denied: bool = False


LoginEvent: TypeAlias = TlsWanted | LoggedIn | Ended


class _LoginStep(Enum):
    GREETED = "waits for the login"
    SWITCHED = "waits for the answer of the named plugin"
    FULL = "waits for the password"


class ClientLogin:
    """The login of one client: first `greet`, then `take` each packet until it returns an event.

    `nonce`: 20 random bytes without zeros, used for this connection only. `admit` says why a user
    with the right password may not log in, "" if it may. `has_tls`: the socket can be wrapped;
    `needs_tls`: a client without TLS is refused.
    """

    def __init__(
        self,
        packets: Packets,
        identity: Identity,
        accounts: Sequence[Account],
        *,
        nonce: bytes,
        admit: Callable[[str], str],
        has_tls: bool,
        needs_tls: bool,
    ) -> None:
        if len(nonce) != NONCE_SIZE or 0 in nonce:
            raise ValueError("a nonce has 20 bytes, none of them zero")
        self._packets = packets
        self._version = identity.version
        self._plugin: Plugin = identity.plugin
        self._passwords = {one.user: one.password.encode() for one in accounts}
        self._admit = admit
        self._nonce = nonce
        self._has_tls = has_tls
        self._needs_tls = needs_tls
        self._is_tls = False
        self._step = _LoginStep.GREETED
        self.user = ""
        """The name with which the client logs in; "" before that."""

    def greet(self, connection_id: int) -> None:
        """Send the first packet, protocol 10 (page "Protocol::HandshakeV10")."""
        offered = _LONG_PASSWORD | _LONG_FLAG | _WITH_DB | _PROTOCOL_41 | _TRANSACTIONS | _SECURE
        offered |= _PLUGIN_AUTH | _LENENC_AUTH | (_SSL if self._has_tls else 0)
        self._packets.send(
            b"\x0a" + self._version.encode() + b"\0" + struct.pack("<I", connection_id)
            + self._nonce[:8] + b"\0"
            + struct.pack("<HBHH", offered & 0xFFFF, UTF8MB4, AUTOCOMMIT, offered >> 16)
            + bytes([NONCE_SIZE + 1]) + bytes(10) + self._nonce[8:] + b"\0"
            + self._plugin.encode() + b"\0"
        )  # fmt: skip

    def secured(self) -> None:
        """TLS has begun; the login follows."""
        self._is_tls = True

    def take(self, payload: bytes) -> LoginEvent | None:
        """Take the next packet; None if another one must follow.

        Raises IndexError, ValueError, struct.error or UnicodeError if it is malformed.
        """
        if self._step is _LoginStep.SWITCHED:
            return self._judge(payload)
        if self._step is _LoginStep.FULL:
            given = payload.removesuffix(b"\0")
            return self._decide(is_right=_same(given, self._password))
        return self._take_response(payload)

    def _take_response(self, payload: bytes) -> LoginEvent | None:
        """Protocol::SSLRequest or Protocol::HandshakeResponse41."""
        flags = int.from_bytes(payload[:4], "little")
        if len(payload) < 32 or not flags & _PROTOCOL_41:
            raise ValueError("no login of protocol 4.1")
        if flags & _SSL and not self._is_tls:
            if not self._has_tls:
                raise ValueError("TLS was not offered")
            return TlsWanted()
        if self._needs_tls and not self._is_tls:
            self._packets.send(
                error(3159, "Connections using insecure transport are prohibited: use TLS")
            )
            return Ended("no TLS")
        user, at = _until_zero(payload, 32)
        if flags & _LENENC_AUTH:
            size, at = _lenenc(payload, at)
            answer, at = payload[at : at + size], at + size
        elif flags & _SECURE:
            answer, at = payload[at + 1 : at + 1 + payload[at]], at + 1 + payload[at]
        else:
            raise ValueError("an unknown kind of authentication")
        if at > len(payload):
            raise ValueError("login cut short")
        if flags & _WITH_DB:
            _, at = _until_zero(payload, at)
        plugin = _until_zero(payload, at)[0] if flags & _PLUGIN_AUTH else b""
        self.user = user.decode("utf-8", "replace")
        if plugin != self._plugin.encode():
            self._step = _LoginStep.SWITCHED
            self._packets.send(b"\xfe" + self._plugin.encode() + b"\0" + self._nonce + b"\0")
            return None
        return self._judge(answer)

    def _judge(self, answer: bytes) -> LoginEvent | None:
        password = self._password
        if self._plugin == "mysql_native_password":
            return self._decide(is_right=_same(answer, native_answer(password, self._nonce)))
        if _same(answer, sha2_answer(password, self._nonce)) and self.user in self._passwords:
            self._packets.send(b"\x01\x03")  # fast authentication has succeeded
            return self._decide(is_right=True)
        if self._is_tls and answer:
            self._packets.send(b"\x01\x04")  # full authentication: the password, under TLS
            self._step = _LoginStep.FULL
            return None
        return self._decide(is_right=False)

    @property
    def _password(self) -> bytes:
        """Of the user; for an unknown one, something to compare with that takes as long."""
        return self._passwords.get(self.user, self._nonce)

    def _decide(self, *, is_right: bool) -> LoginEvent:
        if not (is_right and self.user in self._passwords):
            self._packets.send(error(1045, "Access denied: wrong user or password"))
            return Ended("access denied", is_denied=True)
        if why := self._admit(self.user):
            self._packets.send(error(1226, why))
            return Ended(why)
        self._packets.send(OK)
        return LoggedIn(self.user)


def too_many_connections() -> bytes:
    """The packet for a client that is not served, instead of a greeting."""
    packets = Packets()
    packets.send(error(1040, "Too many connections"))
    return packets.to_send()


def sha2_answer(password: bytes, nonce: bytes) -> bytes:
    """What caching_sha2_password's client sends first; empty for an empty password."""
    if not password:
        return b""
    once = hashlib.sha256(password).digest()
    twice = hashlib.sha256(hashlib.sha256(once).digest() + nonce).digest()
    return bytes(a ^ b for a, b in zip(once, twice, strict=True))


def native_answer(password: bytes, nonce: bytes) -> bytes:
    """What mysql_native_password's client sends; empty for an empty password."""
    if not password:
        return b""
    once = hashlib.sha1(password).digest()  # noqa: S324 - the protocol's
    twice = hashlib.sha1(nonce + hashlib.sha1(once).digest()).digest()  # noqa: S324
    return bytes(a ^ b for a, b in zip(once, twice, strict=True))


def _same(one: bytes, other: bytes) -> bool:
    """Whether both are equal and not empty: there is no account without a password."""
    return bool(other) and hmac.compare_digest(one, other)


def _until_zero(data: bytes, at: int) -> tuple[bytes, int]:
    """Bytes up to a zero byte, and the offset after it; ValueError if there is none."""
    end = data.index(b"\0", at)
    return data[at:end], end + 1


def _lenenc(data: bytes, at: int) -> tuple[int, int]:
    """A length-encoded integer of at most two bytes; a login needs no larger ones."""
    if data[at] < 0xFB:
        return data[at], at + 1
    if data[at] == 0xFC and at + 3 <= len(data):
        return int.from_bytes(data[at + 1 : at + 3], "little"), at + 3
    raise ValueError("a length that no login has")
