"""Single binlog events: their types, and functions that decode their bodies. No I/O.

The layouts are those of the MySQL internals manual ("Event Classes and Types"), of libbinlogevents
(`mysql::binlog::event`) and, for MariaDB, of the knowledge base ("Replication Protocol"). All
numbers are little-endian.

Law: a decoder reads only the event's body: the bytes from `at` (after the header of 19 bytes) to
`end` (before the checksum). It keeps no reference to the buffer. It raises ValueError, struct.error
or IndexError if the body does not have the layout of its type.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from struct import Struct
from typing import Literal, TypeAlias
from uuid import UUID

from binlog2s3.binlog.gtid import Flavour, GtidSet, Interval, MariadbGtidList, tag_of
from binlog2s3.binlog.names import BinlogName
from binlog2s3.errors import DamageError

Buffer: TypeAlias = bytes | bytearray | memoryview

MAGIC = b"\xfebin"
"""The first four bytes of every binlog."""
HEADER_SIZE = 19
HEADER = Struct("<IBIIIH")
"""timestamp, type, server id, size, end_log_pos, flags."""

CHECKSUM_SIZE = 4
IN_USE_FLAG = 0x01
"""A flag in the header of a format event: the server has not closed the binlog."""


class EventType(IntEnum):
    """Types of binlog events: MySQL's and, from 160, MariaDB's. There may be others."""

    UNKNOWN = 0
    START_V3 = 1
    QUERY = 2
    STOP = 3
    ROTATE = 4
    INTVAR = 5
    LOAD = 6
    SLAVE = 7
    CREATE_FILE = 8
    APPEND_BLOCK = 9
    EXEC_LOAD = 10
    DELETE_FILE = 11
    NEW_LOAD = 12
    RAND = 13
    USER_VAR = 14
    FORMAT_DESCRIPTION = 15
    XID = 16
    BEGIN_LOAD_QUERY = 17
    EXECUTE_LOAD_QUERY = 18
    TABLE_MAP = 19
    WRITE_ROWS_V0 = 20
    UPDATE_ROWS_V0 = 21
    DELETE_ROWS_V0 = 22
    WRITE_ROWS_V1 = 23
    UPDATE_ROWS_V1 = 24
    DELETE_ROWS_V1 = 25
    INCIDENT = 26
    HEARTBEAT = 27
    IGNORABLE = 28
    ROWS_QUERY = 29
    WRITE_ROWS = 30
    UPDATE_ROWS = 31
    DELETE_ROWS = 32
    GTID = 33
    ANONYMOUS_GTID = 34
    PREVIOUS_GTIDS = 35
    TRANSACTION_CONTEXT = 36
    VIEW_CHANGE = 37
    XA_PREPARE = 38
    PARTIAL_UPDATE_ROWS = 39
    TRANSACTION_PAYLOAD = 40
    HEARTBEAT_V2 = 41
    GTID_TAGGED = 42
    ANNOTATE_ROWS = 160
    BINLOG_CHECKPOINT = 161
    MARIADB_GTID = 162
    GTID_LIST = 163
    START_ENCRYPTION = 164
    QUERY_COMPRESSED = 165
    WRITE_ROWS_COMPRESSED_V1 = 166
    UPDATE_ROWS_COMPRESSED_V1 = 167
    DELETE_ROWS_COMPRESSED_V1 = 168
    WRITE_ROWS_COMPRESSED = 169
    UPDATE_ROWS_COMPRESSED = 170
    DELETE_ROWS_COMPRESSED = 171
    PARTIAL_ROW_DATA = 172


MADE_UP = frozenset({EventType.FORMAT_DESCRIPTION, EventType.START_ENCRYPTION})
"""Events that mysqlbinlog writes in front of a start position."""
MADE_UP_BYTES = 8192
"""They end within so many bytes."""
_POSITION_MASK = (1 << 32) - 1


def made_up_size(data: bytes, start: int) -> int | None:
    """The number of bytes that `mysqlbinlog --start-position=start` wrote before the binlog's own.

    These are the magic and the made-up events (end_log_pos 0). `data` are the first bytes of the
    file, up to `MADE_UP_BYTES`. Returns None if more bytes are needed. Raises DamageError if the
    event after the made-up ones does not begin at `start`.
    """
    at = len(MAGIC)
    if data[:at] != MAGIC[: len(data)]:
        raise DamageError(f"a binlog begins with {MAGIC!r}, not {data[:at]!r}", offset=0)
    while at + HEADER_SIZE <= len(data):
        _, event_type, _, size, end_log_pos, _ = HEADER.unpack_from(data, at)
        if end_log_pos == 0 and event_type in MADE_UP:
            at += max(size, HEADER_SIZE)
            continue
        if end_log_pos and end_log_pos != start + size & _POSITION_MASK:
            raise DamageError(
                f"the first event ends at {end_log_pos} and has {size} bytes: it does not begin "
                f"at {start}",
                offset=start,
            )
        return at
    if len(data) >= MADE_UP_BYTES:
        raise DamageError(f"no event within {MADE_UP_BYTES} bytes", offset=start)
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class FormatEvent:
    """A format description event: which server wrote the binlog, and in which format.

    `offset` and `size` are in bytes; `offset` is 0 for the event that mysqlbinlog makes up before a
    start position. `timestamp` is in seconds since the epoch, UTC. `created` is when the server
    started, likewise; 0 if the binlog was begun by a rotation. `version` has the numbers of
    `server_version`. `has_checksum`: this event has a CRC32, whether or not the others have one
    (`checksum`).
    """

    offset: int
    size: int
    timestamp: int
    server_id: int
    server_version: str
    version: tuple[int, ...]
    flavour: Flavour
    checksum: Literal["none", "crc32"]
    has_checksum: bool
    created: int = 0

    @property
    def trailer(self) -> int:
        """The bytes of the checksum at the end of each event."""
        return CHECKSUM_SIZE if self.checksum == "crc32" else 0

    @property
    def gtid_events(self) -> bool:
        """See `has_gtid_events`."""
        return has_gtid_events(self.version, self.flavour)


@dataclass(frozen=True, slots=True)
class Rotate:
    """A rotate event: the log continues in `next_binlog` at `position` (always 4)."""

    next_binlog: BinlogName
    position: int


GtidStart: TypeAlias = tuple[tuple[str, str, int], int, int, int]
"""(uuid, tag, number), immediate commit time, original commit time (both in microseconds since the
epoch, UTC), length of the transaction in bytes, including the GTID event. What is not in the event
is 0 or ""."""

_FORMAT = Struct("<H50sIB")
_FORMAT_TYPES = _FORMAT.size
_VERSION = re.compile(r"\d+")
_MARIADB_TYPES = 160
_CHECKSUM_TYPES = 40
"""Bytes after the fixed part: 27 in MySQL 5.5, 40 (35 types, algorithm, CRC) in 5.6.1."""


def version_of(server_version: str) -> tuple[int, ...]:
    """The numbers of a server's version in a format event: (8, 0, 36)."""
    return tuple(map(int, _VERSION.findall(server_version.split("-", maxsplit=1)[0])[:3]))


def has_gtid_events(version: tuple[int, ...], flavour: Flavour) -> bool:
    """Whether a server knows GTID events: MySQL from 5.6, MariaDB from 10.0."""
    return version >= ((5, 6) if flavour == "mysql" else (10,))


def decode_format(buf: Buffer, *, offset: int) -> FormatEvent:
    """Decode a whole format event, with its header, of binlog version 4. Does not check its CRC."""
    timestamp, _, server_id, size, *_ = HEADER.unpack_from(buf)
    binlog_version, version_text, created, header_size = _FORMAT.unpack_from(buf, HEADER_SIZE)
    if binlog_version != 4 or header_size != HEADER_SIZE:
        raise ValueError(f"binlog version {binlog_version} with {header_size} bytes of header")
    shown = version_text.rstrip(b"\0").decode(errors="replace")
    server_version = "".join(c if c.isprintable() else "\ufffd" for c in shown)
    version = version_of(server_version)
    # MariaDB can be configured to show another version; its list of event types is longer
    types = size - HEADER_SIZE - _FORMAT_TYPES
    is_mariadb = "mariadb" in server_version.lower() or types >= _MARIADB_TYPES
    # the length also shows checksums: one damaged digit of the version must not turn them off
    has_checksum = types >= _CHECKSUM_TYPES or version >= ((5, 3) if is_mariadb else (5, 6, 1))
    algorithm = buf[size - CHECKSUM_SIZE - 1] if has_checksum else 0
    if algorithm > 1 or types < CHECKSUM_SIZE + 1:
        raise ValueError(f"unknown checksum algorithm {algorithm} of server {server_version!r}")
    return FormatEvent(
        offset=offset,
        size=size,
        timestamp=timestamp,
        server_id=server_id,
        server_version=server_version,
        version=version,
        flavour="mariadb" if is_mariadb else "mysql",
        checksum="crc32" if algorithm else "none",
        has_checksum=has_checksum,
        created=created,
    )


def decode_rotate(buf: Buffer, at: int, end: int) -> Rotate:
    """Decode the body of a rotate event: position (u64), then the name of the next binlog."""
    return Rotate(
        next_binlog=BinlogName.parse(bytes(buf[at + 8 : end]).decode()),
        position=int.from_bytes(buf[at : at + 8], "little"),
    )


_GTID = Struct("<x16sq")
_COMMIT_OFFSET = 42
_COMMIT_SIZE = 7
COMMIT_MASK = (1 << 55) - 1
HAS_ORIGINAL = 1 << 55
USUAL_GTID = Struct("<x16sq17xQH")
"""The GTID events of nearly all transactions of MySQL 8: UUID, number, a u64 with the commit time
(7 bytes) and `USUAL_LENGTH`, the length of the transaction in 2 bytes."""
LATER_LENGTH = Struct("<56xBH")
"""The last two where the flag `HAS_ORIGINAL` of the u64 says that another time comes first."""
USUAL_LENGTH = 252
"""The first byte of a packed integer that has 2 bytes more."""
_LENGTH_MASKS = {251: 0, 252: (1 << 16) - 1, 253: (1 << 24) - 1, 254: (1 << 64) - 1, 255: 0}

_uuid_texts: dict[bytes, str] = {}


def uuid_text(raw: bytes) -> str:
    """The text of a UUID. Cached: a binlog has few UUIDs and repeats them often."""
    text = _uuid_texts.get(raw)
    if text is None:
        if len(_uuid_texts) > 1000:
            _uuid_texts.clear()
        text = _uuid_texts[raw] = str(UUID(bytes=raw))
    return text


def decode_gtid(buf: Buffer, at: int, end: int) -> GtidStart:
    """Decode the body of a GTID or ANONYMOUS_GTID event (libbinlogevents `Gtid_event`).

    In 5.6 it ends after the number, in 5.7 after the logical timestamps (42 bytes). 8.0.1 adds
    commit times of 7 bytes; bit 55 of the first says that the original one follows. 8.0.2 adds the
    length of the transaction as a packed integer.
    """
    if at + USUAL_GTID.size <= end:
        raw, gno, commit, length = USUAL_GTID.unpack_from(buf, at)
        if commit >> 55 == USUAL_LENGTH << 1:
            commit &= COMMIT_MASK
            return (uuid_text(raw), "", gno), commit, commit, length
    if at + _GTID.size > end:
        raise ValueError("GTID event too short")
    raw, gno = _GTID.unpack_from(buf, at)
    uuid = uuid_text(raw)
    at += _COMMIT_OFFSET
    if at + _COMMIT_SIZE > end:
        return (uuid, "", gno), 0, 0, 0
    rest = int.from_bytes(buf[at : min(end, at + 2 * _COMMIT_SIZE + 9)], "little")
    original = immediate = rest & COMMIT_MASK
    has_original = rest & HAS_ORIGINAL
    rest >>= 8 * _COMMIT_SIZE
    if has_original:
        original = rest & COMMIT_MASK
        rest >>= 8 * _COMMIT_SIZE
    length = rest & 0xFF
    if length > 250:
        length = rest >> 8 & _LENGTH_MASKS[length]
    return (uuid, "", gno), immediate, original, length


def _varint(buf: Buffer, at: int) -> tuple[int, int]:
    """Decode a number of the server's serialization library; also returns where the next begins.

    The number of trailing one-bits of the first byte is the number of bytes after it.
    """
    first = buf[at]
    extra = ((first + 1) & ~first).bit_length() - 1
    if extra == 8:
        return int.from_bytes(buf[at + 1 : at + 9], "little"), at + 9
    return int.from_bytes(buf[at : at + extra + 1], "little") >> (extra + 1), at + extra + 1


def decode_tagged_gtid(buf: Buffer, at: int, end: int) -> GtidStart:
    """Decode the body of a GTID_TAGGED event: pairs (field id, value), in order of the ids.

    The transaction number is stored as a signed number, with the sign in the lowest bit.
    """
    for _ in range(3):  # version, size, last field that must be understood
        _, at = _varint(buf, at)
    raw, tag = bytearray(), ""
    numbers = dict.fromkeys(range(11), 0)
    while at < end:
        field, at = _varint(buf, at)
        if field == 1:
            for _ in range(16):
                value, at = _varint(buf, at)
                raw.append(value)
        elif field == 3:
            value, at = _varint(buf, at)
            tag, at = tag_of(bytes(buf[at : at + value])), at + value
        elif field in numbers:
            numbers[field], at = _varint(buf, at)
        else:
            break  # a field of a newer server: its length is unknown, but it comes last
    if at > end:
        raise ValueError("tagged GTID event too short")
    immediate = numbers[6]
    uuid = uuid_text(bytes(raw))
    return (uuid, tag, numbers[2] >> 1), immediate, numbers[7] or immediate, numbers[8]


def decode_previous_gtids(buf: Buffer, at: int, end: int) -> GtidSet:
    """Decode the body of a PREVIOUS_GTIDS event, with or without tags (`Gtid_set::encode`)."""
    count = int.from_bytes(buf[at : at + 8], "little")
    tagged = count >> 56 == 1
    if tagged:
        count = count >> 8 & (1 << 48) - 1
    at += 8
    runs: dict[tuple[str, str], list[Interval]] = {}
    for _ in range(count):
        uuid, tag = uuid_text(bytes(buf[at : at + 16])), ""
        at += 16
        if tagged:
            length, at = _varint(buf, at)
            tag, at = tag_of(bytes(buf[at : at + length])), at + length
        intervals = int.from_bytes(buf[at : at + 8], "little")
        at += 8
        if at + 16 * intervals > end:
            raise ValueError("previous GTIDs event too short")
        numbers = Struct(f"<{2 * intervals}q").unpack_from(buf, at)
        at += 16 * intervals
        pairs = list(zip(numbers[::2], numbers[1::2], strict=True))
        if not all(1 <= first < last for first, last in pairs):
            raise ValueError("previous GTIDs event with an interval that is none")
        runs.setdefault((uuid, tag), []).extend((first, last - 1) for first, last in pairs)
    if at > end:
        raise ValueError("previous GTIDs event too short")
    return GtidSet(runs)


Phase: TypeAlias = Literal["prepare", "commit", "rollback"]
"""Of what has two phases: the first one, or how the second one ends it."""

_MARIADB_GTID = Struct("<QIB")
STANDALONE_FLAG = 0x01
"""A flag in a MariaDB GTID event: the transaction is one statement, without BEGIN and COMMIT."""


def decode_mariadb_gtid(buf: Buffer, at: int, end: int) -> tuple[int, int, bool]:
    """Decode the body of a MariaDB GTID event: sequence number, domain, the standalone flag."""
    if at + _MARIADB_GTID.size > end:
        raise ValueError("MariaDB GTID event too short")
    seq, domain, flags = _MARIADB_GTID.unpack_from(buf, at)
    return seq, domain, bool(flags & STANDALONE_FLAG)


_GROUP_COMMIT_ID, _WITH_XID = 0x02, 0x40 | 0x80
"""Flags in a MariaDB GTID event: what follows them."""
_MULTI_ENGINE, _START_ALTER, _COMMIT_ALTER, _ROLLBACK_ALTER = 0x01, 0x02, 0x04, 0x08
"""Its extra flags, which come after that."""
_ALTERS: dict[int, Phase] = {
    _START_ALTER: "prepare",
    _COMMIT_ALTER: "commit",
    _ROLLBACK_ALTER: "rollback",
}


def decode_mariadb_alter(buf: Buffer, at: int, end: int) -> tuple[Phase, int, int] | None:
    """Which phase of an ALTER in two phases the body of a MariaDB GTID event announces.

    Returns "prepare", "commit" or "rollback", the domain, and the number of the GTID that began the
    ALTER; None if it is no such transaction (sql/log_event.cc, Gtid_log_event, from 10.8 on).
    """
    if at + _MARIADB_GTID.size > end:
        return None
    number, domain, flags = _MARIADB_GTID.unpack_from(buf, at)
    at += _MARIADB_GTID.size + (8 if flags & _GROUP_COMMIT_ID else 0)
    if flags & _WITH_XID or at >= end:  # no ALTER is in an XA transaction
        return None
    extra = buf[at]
    phase = _ALTERS.get(extra & (_START_ALTER | _COMMIT_ALTER | _ROLLBACK_ALTER))
    if phase is None:
        return None
    if phase != "prepare":
        at += 1 + bool(extra & _MULTI_ENGINE)
        if at + 8 > end:
            return None
        number = int.from_bytes(buf[at : at + 8], "little")
    return phase, domain, number


def decode_gtid_list(buf: Buffer, at: int, end: int) -> MariadbGtidList:
    """Decode the body of a GTID_LIST event: count (low 28 bits), then domain, server, number.

    The server writes the GTID that it executed last in a domain as the last one of that domain
    (sql/log_event.cc, Gtid_list_log_event).
    """
    count = int.from_bytes(buf[at : at + 4], "little") & (1 << 28) - 1
    at += 4
    if at + 16 * count > end:
        raise ValueError("GTID list event too short")
    gtids = list(Struct("<IIQ").iter_unpack(bytes(buf[at : at + 16 * count])))
    return MariadbGtidList(
        {(domain, server): seq for domain, server, seq in gtids},
        {domain: server for domain, server, _ in gtids},
    )


_QUERY_FIXED = 13
QUERY_PREFIX = HEADER_SIZE + _QUERY_FIXED + 65535 + 256 + 64
"""`decode_query` needs at most so many bytes of a QUERY event."""

QUERIES = (EventType.QUERY, EventType.QUERY_COMPRESSED, EventType.EXECUTE_LOAD_QUERY)
"""Events that have one statement."""
_EXECUTE_LOAD_QUERY = int(EventType.EXECUTE_LOAD_QUERY)
_LOAD_FIXED = 13


def length_encoded(buf: Buffer, at: int) -> tuple[int, int]:
    """A length-encoded integer, and where the next field begins.

    Raises ValueError or IndexError if there is none.
    """
    first = buf[at]
    if first < 251:
        return first, at + 1
    size = {252: 2, 253: 3, 254: 8}.get(first)
    if size is None or at + 1 + size > len(buf):
        raise ValueError(f"no length-encoded integer: {first}")
    return int.from_bytes(buf[at + 1 : at + 1 + size], "little"), at + 1 + size


def query_layout(event_type: int, buf: Buffer, at: int) -> tuple[int, int, int]:
    """The layout of an event of one of the `QUERIES`, whose body begins at `at`.

    Returns where its status variables, its database and its statement begin. A zero byte stands
    between the database and the statement. The caller checks that the statement begins before the
    event ends.
    """
    status = at + _QUERY_FIXED + (_LOAD_FIXED if event_type == _EXECUTE_LOAD_QUERY else 0)
    database = status + (buf[at + 11] | buf[at + 12] << 8)
    return status, database, database + buf[at + 8] + 1


Query: TypeAlias = Literal["begin", "end", "xa end", "statement"]


def decode_query(buf: Buffer, at: int, end: int) -> Query:
    """What a QUERY event does. `end` may be after the buffer's end if it has QUERY_PREFIX bytes.

    "begin": it begins a transaction. "end": it is the single word COMMIT or ROLLBACK, as the server
    writes it (`rollback to savepoint` is a statement). "xa end": it is XA COMMIT or XA ROLLBACK,
    which ends an open XA transaction. "statement": anything else.
    """
    _, _, at = query_layout(EventType.QUERY, buf, at)
    if at > end:
        raise ValueError("query event too short")
    size = end - at
    text = bytes(buf[at : min(end, at + 16)])
    if size <= 16 and (word := text.strip().upper()) in _WORDS:
        return _WORDS[word]
    words = text.upper().split()
    return (
        _XA_WORDS.get(words[1], "statement") if words[:1] == [b"XA"] and words[1:] else "statement"
    )


_WORDS: dict[bytes, Query] = {b"BEGIN": "begin", b"COMMIT": "end", b"ROLLBACK": "end"}
_XA_WORDS: dict[bytes, Query] = {
    b"START": "begin",
    b"BEGIN": "begin",
    b"COMMIT": "xa end",
    b"ROLLBACK": "xa end",
}


_SIZES = {0: 4, 1: 8, 3: 4, 4: 6, 7: 2, 8: 2, 9: 8, 10: 4}
"""Status variables of a QUERY event with a fixed size (libbinlogevents `Query_event`)."""
_COUNTED = {5: 0, 6: 0, 2: 1}
"""Status variables that begin with their length, and the number of additional bytes."""
_SQL_MODE, _CHARSET, _TIME_ZONE = 1, 4, 5


def _status_variables(status: bytes) -> Iterator[tuple[int, bytes]]:
    """The status variables of a QUERY event, each with its code, up to one of unknown size."""
    at = 0
    while at < len(status):
        code, at = status[at], at + 1
        if code in _COUNTED:
            size = 1 + status[at] + _COUNTED[code] if at < len(status) else 1
        elif code in _SIZES:
            size = _SIZES[code]
        else:
            return
        value, at = status[at : at + size], at + size
        if len(value) < size:
            return
        yield code, value


def status_settings(status: bytes) -> tuple[int | None, int | None]:
    """sql_mode and the client's charset, from the status variables of a QUERY event.

    None for one that is missing.
    """
    sql_mode = charset = None
    for code, value in _status_variables(status):
        if code == _SQL_MODE:
            sql_mode = int.from_bytes(value, "little")
        elif code == _CHARSET:
            charset = int.from_bytes(value[:2], "little")
    return sql_mode, charset


def status_time_zone(status: bytes) -> bytes | None:
    """The session's time zone, from the status variables of a QUERY event.

    A server writes it (Q_TIME_ZONE_CODE) only if executing the statement has used it; None: it has
    not. The name is "SYSTEM", an offset, or one of the time zone tables.
    """
    found = (value[1:] for code, value in _status_variables(status) if code == _TIME_ZONE)
    return next(found, None)
