"""MySQL's client/server protocol from the side of a replication source. Pure: bytes in, values out.

Place in the flow: whoever owns the socket hands what it receives to a `Conversation`, sends what
that has to send, and streams events when the client asks for a dump.

Law: nothing is answered before login except the login itself. Memory is bounded by the size of one
packet. Whatever comes, the only error raised is `ProtocolError`. A query is compared with the ones
that replicas send and never interpreted.

Source: MySQL's "Client/Server Protocol" (dev.mysql.com/doc/dev/mysql-server), pages Connection
Phase, Command Phase and Replication Protocol; MariaDB's "Replication Protocol" (knowledge base).
"""

import hashlib
import hmac
import re
import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Literal, TypeAlias

from binlog2s3.binlog.events import EventType, decode_previous_gtids
from binlog2s3.binlog.gtid import Flavour, GtidSet, MariadbGtidList
from binlog2s3.errors import Binlog2s3Error

PACKET_MOST = 0xFFFFFF
"""The payload of one packet; what is larger goes on in the next one."""
NONCE_SIZE = 20

_LOGIN_MOST = 1 << 12
_COMMAND_MOST = 8 << 20  # a GTID set of a replica; text is far smaller
_QUERY_MOST = 1 << 16

_LONG_PASSWORD, _LONG_FLAG, _WITH_DB, _PROTOCOL_41 = 0x1, 0x4, 0x8, 0x200
_SSL, _TRANSACTIONS, _SECURE, _PLUGIN_AUTH, _LENENC_AUTH = 0x800, 0x2000, 0x8000, 1 << 19, 1 << 21
_UTF8MB4 = 45
_AUTOCOMMIT = 2

_QUIT, _QUERY, _PING, _DUMP, _REGISTER, _DUMP_GTID = 0x01, 0x03, 0x0E, 0x12, 0x15, 0x1E
_ARTIFICIAL = 0x20
_HEARTBEAT_V2_WANTED = 0x02

Buffer: TypeAlias = bytes | bytearray | memoryview
Plugin = Literal["caching_sha2_password", "mysql_native_password"]


class ProtocolError(Binlog2s3Error):
    """The client said something that this protocol does not have here; the connection must end.

    `code` is the server error number that it was told, 0 where it was told nothing.
    """

    exit_code = 8

    def __init__(self, message: str, *, code: int = 0) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Who the source says it is. `version` decides how replicas of MariaDB talk to it.

    `gtid_mode` is MySQL's. `checksum`: whether events carry a CRC32 from the first one on.
    """

    version: str
    flavour: Flavour
    server_id: int
    server_uuid: str
    gtid_mode: str = "ON"
    checksum: bool = True
    plugin: Plugin = "caching_sha2_password"


@dataclass(frozen=True, slots=True)
class Account:
    """The one that may log in."""

    user: str
    password: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class TlsWanted:
    """The client begins TLS now: wrap the socket, then call `Conversation.secured`."""


@dataclass(frozen=True, slots=True)
class LoggedIn:
    """The account's password was right."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DumpByGtid:
    """COM_BINLOG_DUMP_GTID: all that is not in `gtids`. `heartbeat` in seconds, 0 for none."""

    server_id: int
    gtids: GtidSet
    heartbeat: float
    heartbeat_v2: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DumpByPosition:
    """COM_BINLOG_DUMP: from `position` in `name`, or MariaDB's from what comes after `state`.

    `state` is None where the client names a position. `name` is as it came, not a path.
    """

    server_id: int
    name: str
    position: int
    state: MariadbGtidList | None
    heartbeat: float
    heartbeat_v2: bool


@dataclass(frozen=True, slots=True)
class Ended:
    """The client has ended the conversation, or was refused: send what is left and close."""

    why: str = ""


Event: TypeAlias = TlsWanted | LoggedIn | DumpByGtid | DumpByPosition | Ended


class _State(Enum):
    GREETED = "waits for the login"
    TLS = "waits for TLS"
    SWITCHED = "waits for the answer of the named plugin"
    FULL = "waits for the password"
    COMMANDS = "waits for commands"
    DUMPING = "gets events"
    ENDED = "has ended"


class Conversation:
    """One client. `greeting` begins it; then `receive` what comes and send what `to_send` has.

    `nonce`: 20 random bytes without zeros, of this connection alone. `has_tls`: the socket can be
    wrapped; `needs_tls`: who does not ask for that is refused.
    """

    def __init__(
        self,
        identity: Identity,
        account: Account,
        *,
        nonce: bytes,
        connection_id: int,
        has_tls: bool = False,
        needs_tls: bool = False,
    ) -> None:
        if len(nonce) != NONCE_SIZE or 0 in nonce:
            raise ValueError("a nonce has 20 bytes, none of them zero")
        self._identity = identity
        self._account = account
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
        self._variables: dict[str, str | None] = {}
        self._event_left = self._packet_left = 0
        self._is_full = False

    # in and out

    def greeting(self) -> bytes:
        """The first packet, protocol 10 (page "Protocol::HandshakeV10")."""
        offered = _LONG_PASSWORD | _LONG_FLAG | _WITH_DB | _PROTOCOL_41 | _TRANSACTIONS | _SECURE
        offered |= _PLUGIN_AUTH | _LENENC_AUTH | (_SSL if self._has_tls else 0)
        self._send(
            b"\x0a" + self._identity.version.encode() + b"\0" + struct.pack("<I", self._id)
            + self._nonce[:8] + b"\0"
            + struct.pack("<HBHH", offered & 0xFFFF, _UTF8MB4, _AUTOCOMMIT, offered >> 16)
            + bytes([NONCE_SIZE + 1]) + bytes(10) + self._nonce[8:] + b"\0"
            + self._plugin.encode() + b"\0"
        )  # fmt: skip
        return self.to_send()

    def to_send(self) -> bytes:
        """What has to be sent now; taken once."""
        out = b"".join(self._out)
        self._out.clear()
        return out

    def receive(self, data: bytes, *, now: int) -> list[Event]:
        """Take bytes, cut anywhere; `now` is the Unix time that a query may ask for.

        Raises ProtocolError; what `to_send` has is to be sent before the connection is closed.
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
        """TLS has begun: the login follows."""
        if self._state is not _State.TLS:
            raise ValueError("the client has not asked for TLS")
        self._is_tls = True
        self._state = _State.GREETED

    def event_packets(self, data: Buffer, *, size: int) -> Iterator[Buffer]:
        """The next bytes of a dump's events, as buffers to be sent one after the other.

        `size`: `data` begins an event of so many bytes; 0: it continues the one that was begun.
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

    def refuse_dump(self, text: str, *, code: int = 1236) -> None:
        """End a dump with an error; replicas show it, and stop at 1236."""
        self._error(code, text)
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

    def _ok(self) -> None:
        self._send(b"\0\0\0" + struct.pack("<HH", _AUTOCOMMIT, 0))

    def _error(self, code: int, text: str) -> None:
        shown = text.encode("utf-8", "replace")[:500]
        self._send(b"\xff" + struct.pack("<H", code) + b"#HY000" + shown)

    def _malformed(self, what: str, *, code: int = 1835) -> ProtocolError:
        """1835 is ER_MALFORMED_PACKET. Says nothing to a client that has not logged in."""
        if self._state in (_State.COMMANDS, _State.DUMPING):
            self._error(code, f"malformed packet: {what}")
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
            return self._decide(is_right=_same(given, self._account.password.encode()))
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
            self._error(3159, "Connections using insecure transport are prohibited: use TLS")
            return self._end("no TLS")
        user, at = _until_zero(payload, 32)
        if flags & _LENENC_AUTH:
            size, at = _lenenc(payload, at)
            answer, at = payload[at : at + size], at + size
        elif flags & _SECURE:
            answer, at = payload[at + 1 : at + 1 + payload[at]], at + 1 + payload[at]
        else:
            raise ValueError("no authentication that is known here")
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
        password = self._account.password.encode()
        if self._plugin == "mysql_native_password":
            return self._decide(is_right=_same(answer, native_answer(password, self._nonce)))
        if _same(answer, sha2_answer(password, self._nonce)) and self._is_known():
            self._send(b"\x01\x03")  # fast authentication has succeeded
            return self._decide(is_right=True)
        if self._is_tls and answer:
            self._send(b"\x01\x04")  # full authentication: the password, under TLS
            self._state = _State.FULL
            return None
        return self._decide(is_right=False)

    def _is_known(self) -> bool:
        return _same(self._user.encode(), self._account.user.encode())

    def _decide(self, *, is_right: bool) -> Event:
        if not (is_right and self._is_known()):
            self._error(1045, "Access denied: wrong user or password")
            return self._end("access denied")
        self._ok()
        self._state = _State.COMMANDS
        return LoggedIn()

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
            self._ok()
        elif command == _QUERY:
            self._answer(payload[1:], now)
        elif command == _REGISTER:
            struct.unpack_from("<I", payload, 1)  # a server id, or it is malformed
            self._ok()
        elif command == _DUMP:
            return self._begin(self._dump(payload))
        elif command == _DUMP_GTID:
            return self._begin(self._dump_gtid(payload))
        else:
            self._error(1047, f"unknown command {command}: this is an archive's replication source")
        return None

    def _begin(self, event: DumpByGtid | DumpByPosition) -> Event | None:
        if "binlog_checksum" not in self._variables and self._identity.checksum:
            self._error(1236, "the replica cannot handle events with checksums")
            return self._end("a replica without checksums")
        self._state = _State.DUMPING
        return event

    def _dump(self, payload: bytes) -> DumpByPosition:
        position, flags, server_id = struct.unpack_from("<IHI", payload, 1)
        given = self._variables.get("slave_connect_state")
        return DumpByPosition(
            server_id=server_id,
            name=payload[11:].decode("utf-8", "replace"),
            position=position,
            state=None if given is None else MariadbGtidList.parse(given),
            heartbeat=self._heartbeat(),
            heartbeat_v2=bool(flags & _HEARTBEAT_V2_WANTED),
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
            gtids=decode_previous_gtids(data, 0, size) if size else GtidSet(),
            heartbeat=self._heartbeat(),
            heartbeat_v2=bool(flags & _HEARTBEAT_V2_WANTED),
        )

    def _heartbeat(self) -> float:
        text = self._variables.get("heartbeat_period") or "0"
        return min(int(text), 1 << 62) / 1e9 if text.isdecimal() else 0.0

    # queries

    def _answer(self, raw: bytes, now: int) -> None:
        if len(raw) > _QUERY_MOST:
            self._error(1153, "this source answers short queries only")
            return
        text = " ".join(raw.decode("utf-8", "replace").split()).rstrip("; ")
        if text[:4].upper() == "SET ":
            self._set(text[4:])
            return
        found = self._value(text.upper(), now)
        if found is None:
            self._error(1235, f"this source answers only what replicas ask: {text[:200]!r}")
            return
        self._rows(*found)

    def _value(self, asked: str, now: int) -> tuple[Sequence[str], Sequence[str | None]] | None:
        """Names and values of the one row that answers, None where nothing does."""
        who = self._identity
        if asked == "SELECT UNIX_TIMESTAMP()":
            return ["UNIX_TIMESTAMP()"], [str(now)]
        if asked in ("SHOW VARIABLES LIKE 'SERVER_ID'", "SHOW GLOBAL VARIABLES LIKE 'SERVER_ID'"):
            return ["Variable_name", "Value"], ["server_id", str(who.server_id)]
        if asked == "SELECT VERSION()":
            return ["VERSION()"], [who.version]
        match = re.fullmatch(r"SELECT (@@?[A-Z_.]+)", asked)
        if match is None:
            return None
        name = match[1]
        if name in ("@MASTER_BINLOG_CHECKSUM", "@SOURCE_BINLOG_CHECKSUM"):
            return [name.lower()], [self._variables.get("binlog_checksum")]
        values: dict[str, str] = {"SERVER_ID": str(who.server_id)}
        values |= dict.fromkeys(_SEMI_SYNC, "0")
        if who.flavour == "mysql":
            values |= {"SERVER_UUID": who.server_uuid, "GTID_MODE": who.gtid_mode}
        else:
            values |= {"GTID_DOMAIN_ID": "0"}
        value = values.get(name.removeprefix("@@").removeprefix("GLOBAL."))
        return None if value is None or not name.startswith("@@") else ([name], [value])

    def _set(self, text: str) -> None:
        """`@name = value, ...` with the names that replicas set; nothing of it is evaluated."""
        at, found = 0, dict[str, str | None]()
        while match := _ASSIGNMENT.match(text, at):
            name, at = match["name"].lower(), match.end()
            known = _VARIABLES.get(name)
            if known is None:
                self._error(1193, f"this archive's source has no variable @{name[:64]}")
                return
            found[known] = self._assigned(match)
        if at != len(text) or text.endswith(","):
            self._error(1235, f"this archive's source does not take: SET {text[:200]!r}")
            return
        self._variables |= found
        self._ok()

    def _assigned(self, match: "re.Match[str]") -> str | None:
        if match["system"]:
            return "CRC32" if self._identity.checksum else "NONE"
        return match["text"] if match["text"] is not None else match["number"]

    def _rows(self, names: Sequence[str], values: Sequence[str | None]) -> None:
        """One row of a text resultset, with EOF packets (no CLIENT_DEPRECATE_EOF is offered)."""
        self._send(bytes([len(names)]))
        for name in names:
            fixed = struct.pack("<HIBHB", _UTF8MB4, 1024, 253, 0, 0) + b"\0\0"
            parts = [b"def", b"", b"", b"", name.encode(), b""]
            self._send(b"".join(_text(part) for part in parts) + b"\x0c" + fixed)
        self._send(b"\xfe\0\0" + struct.pack("<H", _AUTOCOMMIT))
        self._send(b"".join(b"\xfb" if v is None else _text(v.encode()) for v in values))
        self._send(b"\xfe\0\0" + struct.pack("<H", _AUTOCOMMIT))


_SEMI_SYNC = ("RPL_SEMI_SYNC_MASTER_ENABLED", "RPL_SEMI_SYNC_SOURCE_ENABLED")
_VARIABLES = {
    "master_heartbeat_period": "heartbeat_period",
    "source_heartbeat_period": "heartbeat_period",
    "master_binlog_checksum": "binlog_checksum",
    "source_binlog_checksum": "binlog_checksum",
    "slave_uuid": "uuid",
    "replica_uuid": "uuid",
    "mariadb_slave_capability": "capability",
    "slave_connect_state": "slave_connect_state",
    "slave_gtid_strict_mode": "strict",
    "slave_gtid_ignore_duplicates": "ignore_duplicates",
    "rpl_semi_sync_slave": "semi_sync",
    "rpl_semi_sync_replica": "semi_sync",
}
"""What replicas set, and what it is called here: new and old names are the same."""
_ASSIGNMENT = re.compile(
    r"\s*@(?P<name>\w+)\s*:?=\s*(?:(?P<system>@@global\.binlog_checksum)|'(?P<text>[^'\\]*)'"
    r"|(?P<number>\d{1,20})|NULL)\s*(?:,|\Z)",
    re.IGNORECASE,
)


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
    """Equal and not empty: there is no account without a password."""
    return bool(other) and hmac.compare_digest(one, other)


# Events that no binlog has


def artificial_event(
    event_type: int, body: bytes, *, server_id: int, position: int, flags: int, checksum: bool
) -> bytes:
    """An event made here: time 0, the position as given modulo 2**32."""
    size = 19 + len(body) + (4 if checksum else 0)
    head = struct.pack("<IBIIIH", 0, event_type, server_id, size, position & 0xFFFFFFFF, flags)
    event = head + body
    return event + struct.pack("<I", zlib.crc32(event)) if checksum else event


def rotate_event(name: str, position: int, *, server_id: int, checksum: bool) -> bytes:
    """Says that what follows lies at `position` of `name`; sent first, and after what is left out.

    `checksum`: as the format event before it says; the first one: as the client was answered.
    """
    return artificial_event(
        EventType.ROTATE,
        struct.pack("<Q", position) + name.encode(),
        server_id=server_id,
        position=0,
        flags=_ARTIFICIAL,
        checksum=checksum,
    )


def heartbeat_event(
    name: str, position: int, *, server_id: int, checksum: bool, version_2: bool = False
) -> bytes:
    """Says that nothing new has come behind `position` of `name`, the client's current place.

    Version 2, where the client asked for it, has room for positions from 4 GiB on.
    """
    raw, event_type = name.encode(), int(EventType.HEARTBEAT)
    if version_2 and position >= 1 << 32:
        event_type = int(EventType.HEARTBEAT_V2)
        place = b"\xfe" + struct.pack("<Q", position)
        raw = b"\x01" + _text(raw) + b"\x02" + _text(place) + b"\0"
    return artificial_event(
        event_type, raw, server_id=server_id, position=position, flags=0, checksum=checksum
    )


# Pieces of packets


def _until_zero(data: bytes, at: int) -> tuple[bytes, int]:
    """Bytes up to a zero byte, and the place behind it; ValueError where there is none."""
    end = data.index(b"\0", at)
    return data[at:end], end + 1


def _lenenc(data: bytes, at: int) -> tuple[int, int]:
    """A length-encoded integer of at most two bytes, which is all that a login has use for."""
    if data[at] < 0xFB:
        return data[at], at + 1
    if data[at] == 0xFC and at + 3 <= len(data):
        return int.from_bytes(data[at + 1 : at + 3], "little"), at + 3
    raise ValueError("a length that no login has")


def _text(data: bytes) -> bytes:
    """A length-encoded text of up to 64 KiB."""
    if len(data) < 0xFB:
        return bytes([len(data)]) + data
    return b"\xfc" + struct.pack("<H", len(data)) + data
