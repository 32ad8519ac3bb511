"""Transactions and what small ones do, in a fraction of the time that a close look takes. No I/O.

Place: `one_binlog` asks here first, for what it has as a whole in memory.

Law: what it tells is what a `Scanner` and a `ContentReader` would tell; of what is not plain it
tells nothing. The bytes were proved before: no event's checksum is computed.
"""

import struct
from typing import NamedTuple

from binlog2s3.binlog.content import Change, Content
from binlog2s3.binlog.events import (
    CHECKSUM_SIZE,
    HEADER_SIZE,
    EventType,
    FormatEvent,
    decode_gtid,
    decode_tagged_gtid,
)
from binlog2s3.binlog.tables import (
    KIND_OF_ROWS,
    PLAIN_ROWS,
    Image,
    RowCounter,
    RowsKind,
    Table,
    decode_rows,
    decode_table_map,
)
from binlog2s3.binlog.transactions import KINDS, Kind, Transaction

_HEAD = struct.Struct("<4xB4xI").unpack_from
_SHORT = struct.Struct("<H").unpack_from
_SIZE_MOST = 1 << 20
_KNOWN_MOST = 1000
_SKIP, _TABLE, _ROWS, _QUERY, _OTHER = range(5)
_MEANING = bytearray([_OTHER] * 256)
for _type in (
    EventType.GTID,
    EventType.ANONYMOUS_GTID,
    EventType.GTID_TAGGED,
    EventType.MARIADB_GTID,
    EventType.XID,
    EventType.XA_PREPARE,
):
    _MEANING[_type] = _SKIP
for _rows_type in PLAIN_ROWS:
    _MEANING[_rows_type] = _ROWS
_MEANING[EventType.TABLE_MAP] = _TABLE
_MEANING[EventType.QUERY] = _QUERY
_FRAMES = (b"\0BEGIN", b"\0COMMIT")
_GTIDS = {
    int(EventType.GTID): decode_gtid,
    int(EventType.ANONYMOUS_GTID): decode_gtid,
    int(EventType.GTID_TAGGED): decode_tagged_gtid,
}


class _NotPlainError(ValueError):
    """More than rows between BEGIN and COMMIT."""


class Quick:
    """Reads the transactions of binlogs with this format event; remembers tables."""

    def __init__(self, format_event: FormatEvent, /) -> None:
        self._flavour = format_event.flavour
        self._trailer = CHECKSUM_SIZE if format_event.checksum == "crc32" else 0
        self._tables: dict[bytes, _Known] = {}

    def transactions(self, data: bytes, base: int) -> list[Transaction] | None:
        """Those in bytes that were proved, and begin at offset `base` where one does.

        As their GTID events say, which in MySQL 8 say all of it; None where these do not. The last
        one is left out if it is not whole.
        """
        found: list[Transaction] = []
        at, size = 0, len(data)
        try:
            while at < size:
                event_type, length = _HEAD(data, at)
                if KINDS[event_type] == Kind.BETWEEN and length >= HEADER_SIZE:
                    at += length
                    continue
                one = self._transaction(event_type, data, at, at + length, base)
                if one is None:
                    return None
                at = one.end - base
                if at <= size:
                    found.append(one)
        except (ValueError, IndexError, KeyError, struct.error):
            return None
        return found

    def _transaction(
        self, event_type: int, data: bytes, at: int, behind: int, base: int
    ) -> Transaction | None:
        decode = _GTIDS[event_type]
        begin, end = at + HEADER_SIZE, behind - self._trailer
        uuid, tag, gno, commit_us, original_us, length = decode(data, begin, end)
        if at + length <= behind or not commit_us:
            return None
        gtid = f"{uuid}:{tag}:{gno}" if tag else f"{uuid}:{gno}"
        return Transaction(
            begin=base + at,
            end=base + at + length,
            gtid=None if event_type == EventType.ANONYMOUS_GTID else gtid,
            commit_us=commit_us,
            commit_exact=True,
            original_commit_us=original_us or None,
        )

    def content(self, data: bytes) -> Content | None:
        """What the transaction does that these bytes are; None if that wants a closer look."""
        if len(data) > _SIZE_MOST:
            return None
        try:
            rows = self._rows(data)
        except (ValueError, IndexError, KeyError, OverflowError, struct.error):
            return None
        return Content(
            changes=tuple(
                Change(kind=kind, table=table, rows=count) for (kind, table), count in rows.items()
            )
        )

    def _rows(self, data: bytes) -> dict[tuple[RowsKind, str], int]:
        """By kind and table. ValueError where it is not that plain."""
        rows: dict[tuple[RowsKind, str], int] = {}
        tables: dict[int, _Known] = {}
        at, size, trailer, meaning = 0, len(data), self._trailer, _MEANING
        while at < size:
            event_type, length = _HEAD(data, at)
            what, body, end = meaning[event_type], at + HEADER_SIZE, at + length - trailer
            at += length
            if end < body or at > size:
                raise _NotPlainError
            if what == _TABLE:
                number = int.from_bytes(data[body : body + 6], "little")
                tables[number] = self._table(data[body:end])
            elif what == _ROWS:
                key, count = self._count(event_type, data[body:end], tables)
                rows[key] = rows.get(key, 0) + count
            elif what == _QUERY:
                text_at = body + 13 + _SHORT(data, body + 11)[0] + data[body + 8] + 1
                if data[text_at - 1 : end] not in _FRAMES:
                    raise _NotPlainError
            elif what != _SKIP:
                raise _NotPlainError
        return rows

    def _table(self, body: bytes) -> "_Known":
        key = body[6:]
        known = self._tables.get(key)
        if known is None:
            if len(self._tables) >= _KNOWN_MOST:
                self._tables.clear()
            known = self._tables[key] = _Known(decode_table_map(body, self._flavour), {})
        return known

    def _count(
        self, event_type: int, body: bytes, tables: dict[int, "_Known"]
    ) -> tuple[tuple[RowsKind, str], int]:
        """Kind, table and number of an event's rows."""
        known = tables[int.from_bytes(body[:6], "little")]
        if body[6] & 1:
            tables.clear()
        rows_at = _rows_at(event_type, body)
        key = (event_type, body[8:rows_at])  # what differs between events of a table: few do
        event = known.events.get(key)
        if event is None:
            if len(known.events) >= _KNOWN_MOST:
                known.events.clear()
            decoded = decode_rows(event_type, body[:rows_at])
            counter = decoded.counter(known.table)
            if counter is None:
                raise _NotPlainError
            event = known.events[key] = ((decoded.kind, known.table.name), counter.images)
        name, images = event
        counter = RowCounter(*images)
        counter.feed(body[rows_at:])
        if counter.rows is None:
            raise _NotPlainError
        return name, counter.rows


def _rows_at(event_type: int, body: bytes) -> int:
    """Where the rows begin in an event of rows."""
    width_at = 8
    if event_type >= EventType.WRITE_ROWS:
        width_at += _SHORT(body, width_at)[0]
    width = body[width_at]
    images = 2 if KIND_OF_ROWS[event_type] == "update" else 1
    rows_at = width_at + 1 + images * ((width + 7) // 8)
    if width > 250 or rows_at > len(body):
        raise _NotPlainError
    return rows_at


class _Known(NamedTuple):
    """A table, and the heads of its events: kind and name, how their rows lie."""

    table: Table
    events: dict[tuple[int, bytes], tuple[tuple[RowsKind, str], tuple[Image, ...]]]
