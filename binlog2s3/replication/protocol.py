"""MySQL's client/server protocol of a replication source: login, commands, packets. Pure.

Place in the flow: `serve` owns the socket. It passes what it receives to a `Conversation`, sends
what that has to send, and streams events when the client asks for a dump. `queries` knows the
answers to queries.

Law: before login, only the login is answered. Memory is bounded by the size of one packet. The only
error raised is `ProtocolError`, whatever the client sends.

Source: MySQL's "Client/Server Protocol" (dev.mysql.com/doc/dev/mysql-server), pages Connection
Phase, Command Phase and Replication Protocol; MariaDB's "Replication Protocol" (knowledge base).
"""

import hashlib
import hmac
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeAlias

from binlog2s3.binlog.events import decode_previous_gtids
from binlog2s3.binlog.gtid import GtidSet, MariadbGtidList
from binlog2s3.errors import Binlog2s3Error
from binlog2s3.replication.queries import AUTOCOMMIT, OK, UTF8MB4, Identity, Plugin, Queries, error

PACKET_MOST = 0xFFFFFF
"""The most bytes in the payload of one packet; larger ones continue in the next packet."""
NONCE_SIZE = 20

_LOGIN_MOST = 1 << 12
_COMMAND_MOST = 8 << 20  # a GTID set of a replica; text is far smaller

_LONG_PASSWORD, _LONG_FLAG, _WITH_DB, _PROTOCOL_41 = 0x1, 0x4, 0x8, 0x200
_SSL, _TRANSACTIONS, _SECURE, _PLUGIN_AUTH, _LENENC_AUTH = 0x800, 0x2000, 0x8000, 1 << 19, 1 << 21

_QUIT, _QUERY, _PING, _DUMP, _REGISTER, _DUMP_GTID = 0x01, 0x03, 0x0E, 0x12, 0x15, 0x1E
_NON_BLOCK, _HEARTBEAT_V2_WANTED = 0x01, 0x02

Buffer: TypeAlias = bytes | bytearray | memoryview


class ProtocolError(Binlog2s3Error):
    """The client sent something that the protocol does not allow here; the connection must end.

    `code` is the server error number that was sent to it, 0 if none was.
    """

    exit_code = 8

    def __init__(self, message: str, *, code: int = 0) -> None:
        super().__init__(message)
        self.code = code


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


@dataclass(frozen=True, slots=True, kw_only=True)
class DumpByGtid:
    """COM_BINLOG_DUMP_GTID: everything that is not in `gtids`, from the binlog `name` on.

    `name` is "" if the source is to find the binlog. The rest is as in `DumpByPosition`.
    """

    server_id: int
    uuid: str
    name: str
    gtids: GtidSet
    heartbeat: float
    heartbeat_v2: bool
    ends: bool = False
    registered: bool = False
    checksum: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class DumpByPosition:
    """COM_BINLOG_DUMP: from `position` in `name`, or for MariaDB everything after `state`.

    `state` is None if the client names a position. `name` is as the client sent it, not a path.
    `heartbeat` in seconds, 0: none. `ends`: the client wants what there is now, and then the end.
    `registered`: it is a replica that has said so, and not a program that only reads. `uuid` is the
    replica's, "" if it has not said it. `checksum`: it expects one in what comes before the first
    format event.
    """

    server_id: int
    uuid: str
    name: str
    position: int
    state: MariadbGtidList | None
    heartbeat: float
    heartbeat_v2: bool
    ends: bool = False
    registered: bool = False
    checksum: bool = True


@dataclass(frozen=True, slots=True)
class Ended:
    """The client has ended the conversation, or was refused: send the rest and close.

    `is_denied`: its user or password was wrong.
    """

    why: str = ""
    is_denied: bool = False


Dump: TypeAlias = DumpByGtid | DumpByPosition
Event: TypeAlias = TlsWanted | LoggedIn | Dump | Ended


class _State(Enum):
    GREETED = "waits for the login"
    TLS = "waits for TLS"
    SWITCHED = "waits for the answer of the named plugin"
    FULL = "waits for the password"
    COMMANDS = "waits for commands"
    DUMPING = "gets events"
    ENDED = "has ended"


class Conversation:
    """One client. Begin with `greeting`; then `receive` what comes and send what `to_send` has.

    `nonce`: 20 random bytes without zeros, used for this connection only. `admit` says why a user
    with the right password may not log in, "" if it may. `has_tls`: the socket can be wrapped;
    `needs_tls`: a client without TLS is refused. Its methods are the steps of one state
    machine, which share the state, the buffer and the packet number.
    """

    def __init__(
        self,
        identity: Identity,
        accounts: Sequence[Account],
        *,
        nonce: bytes,
        connection_id: int,
        admit: Callable[[str], str] = lambda _user: "",
        has_tls: bool = False,
        needs_tls: bool = False,
    ) -> None:
        if len(nonce) != NONCE_SIZE or 0 in nonce:
            raise ValueError("a nonce has 20 bytes, none of them zero")
        self._identity = identity
        self._passwords = {one.user: one.password.encode() for one in accounts}
        self._admit = admit
        self._nonce = nonce
        self._id = connection_id
        self._has_tls = has_tls
        self._needs_tls = needs_tls
        self._is_tls = False
        self._state = _State.GREETED
        self._plugin: Plugin = identity.plugin
        self._user = ""
        self._buffer = bytearray()
        self._out: list[bytes] = []
        self._sequence = 0
        self._queries = Queries(identity)
        self._event_left = self._packet_left = 0
        self._is_full = False
        self._registered = False

    @property
    def user(self) -> str:
        """The name with which the client logs in; "" before that."""
        return self._user

    # in and out

    def greeting(self) -> bytes:
        """The first packet, protocol 10 (page "Protocol::HandshakeV10")."""
        offered = _LONG_PASSWORD | _LONG_FLAG | _WITH_DB | _PROTOCOL_41 | _TRANSACTIONS | _SECURE
        offered |= _PLUGIN_AUTH | _LENENC_AUTH | (_SSL if self._has_tls else 0)
        self._send(
            b"\x0a" + self._identity.version.encode() + b"\0" + struct.pack("<I", self._id)
            + self._nonce[:8] + b"\0"
            + struct.pack("<HBHH", offered & 0xFFFF, UTF8MB4, AUTOCOMMIT, offered >> 16)
            + bytes([NONCE_SIZE + 1]) + bytes(10) + self._nonce[8:] + b"\0"
            + self._plugin.encode() + b"\0"
        )  # fmt: skip
        return self.to_send()

    def to_send(self) -> bytes:
        """What has to be sent now; each byte is returned once."""
        out = b"".join(self._out)
        self._out.clear()
        return out

    def receive(self, data: bytes, *, now: int) -> list[Event]:
        """Take bytes, cut anywhere; `now` is the Unix time, which a query may ask for.

        Raises ProtocolError; send what `to_send` has before the connection is closed.
        """
        events: list[Event] = []
        self._buffer += data
        while self._state not in (_State.ENDED, _State.TLS):
            payload = self._packet()
            if payload is None:
                break
            try:
                event = self._take(payload, now)
            except (IndexError, ValueError, struct.error, UnicodeError) as error:
                raise self._malformed(str(error)) from error
            if event is not None:
                events.append(event)
        if self._state is _State.TLS and self._buffer:
            raise self._malformed("bytes before TLS has begun")
        if self._state is _State.ENDED:
            self._buffer.clear()
        return events

    def secured(self) -> None:
        """TLS has begun; the login follows."""
        if self._state is not _State.TLS:
            raise ValueError("the client has not asked for TLS")
        self._is_tls = True
        self._state = _State.GREETED

    def event_head(self, size: int) -> bytes:
        """What is sent before a whole event of fewer than `PACKET_MOST` bytes."""
        return self._header(size + 1) + b"\0"

    def event_packets(self, data: Buffer, *, size: int) -> Iterator[Buffer]:
        """The next bytes of a dump's events, as buffers to be sent one after the other.

        `size`: `data` begins an event of this size; 0: it continues the event that was begun.
        """
        if size:
            self._event_left = size + 1
            yield from self._begin_packet(b"\0")
        rest = memoryview(data)
        while rest:
            part, rest = rest[: self._packet_left], rest[self._packet_left :]
            if not part:
                raise ValueError("more bytes than the event has")
            self._packet_left -= len(part)
            yield part
            if not self._packet_left and self._is_full:
                yield from self._begin_packet(b"")

    def _begin_packet(self, first: bytes) -> Iterator[bytes]:
        size = min(self._event_left, PACKET_MOST)
        self._event_left -= size
        self._packet_left = size - len(first)
        self._is_full = size == PACKET_MOST
        yield self._header(size) + first

    def finish_dump(self) -> None:
        """End a dump that is complete (an EOF packet)."""
        self._send(b"\xfe\0\0" + struct.pack("<H", AUTOCOMMIT))
        self._state = _State.ENDED

    def refuse_dump(self, text: str, *, code: int = 1236) -> None:
        """End a dump with an error. Replicas show it; on 1236 they stop."""
        self._send(error(code, text))
        self._state = _State.ENDED

    def _packet(self) -> bytes | None:
        if len(self._buffer) < 4:
            return None
        size, sequence = int.from_bytes(self._buffer[:3], "little"), self._buffer[3]
        most = _COMMAND_MOST if self._state in (_State.COMMANDS, _State.DUMPING) else _LOGIN_MOST
        if size > most:
            raise self._malformed(f"a packet of {size} bytes", code=1153)
        if self._state is _State.COMMANDS and sequence == 0:
            self._sequence = 0
        if self._state is not _State.DUMPING and sequence != self._sequence & 0xFF:
            raise self._malformed("packets out of order", code=1156)
        if len(self._buffer) < 4 + size:
            return None
        payload = bytes(self._buffer[4 : 4 + size])
        del self._buffer[: 4 + size]
        self._sequence += self._state is not _State.DUMPING
        return payload

    def _header(self, size: int) -> bytes:
        header = size.to_bytes(3, "little") + bytes([self._sequence & 0xFF])
        self._sequence += 1
        return header

    def _send(self, payload: bytes) -> None:
        self._out.append(self._header(len(payload)) + payload)

    def _malformed(self, what: str, *, code: int = 1835) -> ProtocolError:
        """1835 is ER_MALFORMED_PACKET. Says nothing to a client that has not logged in."""
        if self._state in (_State.COMMANDS, _State.DUMPING):
            self._send(error(code, f"malformed packet: {what}"))
        else:
            code = 0
        self._state = _State.ENDED
        self._buffer.clear()
        return ProtocolError(f"malformed packet: {what}", code=code)

    # login

    def _take(self, payload: bytes, now: int) -> Event | None:
        if self._state is _State.GREETED:
            return self._take_login(payload)
        if self._state is _State.SWITCHED:
            return self._judge(payload)
        if self._state is _State.FULL:
            given = payload.removesuffix(b"\0")
            return self._decide(is_right=_same(given, self._password))
        return self._take_command(payload, now)

    def _take_login(self, payload: bytes) -> Event | None:
        """Protocol::SSLRequest or Protocol::HandshakeResponse41."""
        flags = int.from_bytes(payload[:4], "little")
        if len(payload) < 32 or not flags & _PROTOCOL_41:
            raise ValueError("no login of protocol 4.1")
        if flags & _SSL and not self._is_tls:
            if not self._has_tls:
                raise ValueError("TLS was not offered")
            self._state = _State.TLS
            return TlsWanted()
        if self._needs_tls and not self._is_tls:
            self._send(error(3159, "Connections using insecure transport are prohibited: use TLS"))
            return self._end("no TLS")
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
        self._user = user.decode("utf-8", "replace")
        if plugin != self._plugin.encode():
            self._state = _State.SWITCHED
            self._send(b"\xfe" + self._plugin.encode() + b"\0" + self._nonce + b"\0")
            return None
        return self._judge(answer)

    def _judge(self, answer: bytes) -> Event | None:
        password = self._password
        if self._plugin == "mysql_native_password":
            return self._decide(is_right=_same(answer, native_answer(password, self._nonce)))
        if _same(answer, sha2_answer(password, self._nonce)) and self._user in self._passwords:
            self._send(b"\x01\x03")  # fast authentication has succeeded
            return self._decide(is_right=True)
        if self._is_tls and answer:
            self._send(b"\x01\x04")  # full authentication: the password, under TLS
            self._state = _State.FULL
            return None
        return self._decide(is_right=False)

    @property
    def _password(self) -> bytes:
        """Of the user; for an unknown one, something to compare with that takes as long."""
        return self._passwords.get(self._user, self._nonce)

    def _decide(self, *, is_right: bool) -> Event:
        if not (is_right and self._user in self._passwords):
            self._send(error(1045, "Access denied: wrong user or password"))
            self._state = _State.ENDED
            return Ended("access denied", is_denied=True)
        if why := self._admit(self._user):
            self._send(error(1226, why))
            return self._end(why)
        self._send(OK)
        self._state = _State.COMMANDS
        return LoggedIn(self._user)

    def _end(self, why: str = "") -> Ended:
        self._state = _State.ENDED
        return Ended(why)

    # commands

    def _take_command(self, payload: bytes, now: int) -> Event | None:
        command = payload[0]
        if command == _QUIT:
            return self._end()
        if self._state is _State.DUMPING:
            raise ValueError("a command in the middle of a dump")
        if command == _PING:
            self._send(OK)
        elif command == _QUERY:
            for one in self._queries.answer(payload[1:], now):
                self._send(one)
        elif command == _REGISTER:
            struct.unpack_from("<I", payload, 1)  # a server id, or it is malformed
            self._registered = True
            self._send(OK)
        elif command == _DUMP:
            return self._begin(self._dump(payload))
        elif command == _DUMP_GTID:
            return self._begin(self._dump_gtid(payload))
        else:
            self._send(
                error(1047, f"unknown command {command}: this is an archive's replication source")
            )
        return None

    def _begin(self, event: Dump) -> Event | None:
        if self._identity.checksum and not self._queries.takes_checksums:
            self._send(error(1236, "the replica cannot handle events with checksums"))
            return self._end("a replica without checksums")
        self._state = _State.DUMPING
        return event

    def _dump(self, payload: bytes) -> DumpByPosition:
        position, flags, server_id = struct.unpack_from("<IHI", payload, 1)
        given = self._queries.gtid_position
        return DumpByPosition(
            server_id=server_id,
            uuid=self._queries.uuid,
            name=_text(payload[11:]),
            position=position,
            state=None if given is None else MariadbGtidList.parse(given),
            heartbeat=self._queries.heartbeat_seconds,
            heartbeat_v2=bool(flags & _HEARTBEAT_V2_WANTED),
            ends=bool(flags & _NON_BLOCK),
            registered=self._registered,
            checksum=self._queries.wants_checksum,
        )

    def _dump_gtid(self, payload: bytes) -> DumpByGtid:
        flags, server_id, name_size = struct.unpack_from("<HII", payload, 1)
        at = 11 + name_size + 8
        (size,) = struct.unpack_from("<I", payload, at)
        data = payload[at + 4 :]
        if len(data) < size:
            raise ValueError("GTID set cut short")
        return DumpByGtid(
            server_id=server_id,
            uuid=self._queries.uuid,
            name=_text(payload[11 : 11 + name_size]),
            gtids=decode_previous_gtids(data, 0, size) if size else GtidSet(),
            heartbeat=self._queries.heartbeat_seconds,
            heartbeat_v2=bool(flags & _HEARTBEAT_V2_WANTED),
            ends=bool(flags & _NON_BLOCK),
            registered=self._registered,
            checksum=self._queries.wants_checksum,
        )


def too_many_connections() -> bytes:
    """The packet for a client that is not served, instead of a greeting."""
    payload = error(1040, "Too many connections")
    return len(payload).to_bytes(3, "little") + b"\0" + payload


# Passwords


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


# Pieces of packets


def _text(data: bytes) -> str:
    """A binlog's name, up to the zero bytes that some clients send after it."""
    return data.partition(b"\0")[0].decode("utf-8", "replace")


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
