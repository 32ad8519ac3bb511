"""The rows events of a transaction alone, as a binlog that mysqlbinlog prints; no value is decoded.

Law: nothing else reaches mysqlbinlog. It prints statements and names as they are, and these could
look like rows: statements are left out, and a table is named by the number of its rows event. Each
rows event has its table map before it and ends its statement, so that mysqlbinlog prints it at
once; otherwise it would keep a whole statement. No event has a checksum.
"""

import re
import zlib
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from struct import Struct
from typing import NamedTuple

from binlog2s3.binlog.compression import Sink
from binlog2s3.binlog.events import (
    CHECKSUM_SIZE,
    HEADER,
    HEADER_SIZE,
    Buffer,
    EventType,
    FormatEvent,
)
from binlog2s3.binlog.scanner import MAGIC
from binlog2s3.binlog.tables import (
    PRINTABLE_ROWS,
    ROWS_EVENTS,
    RowsKind,
    Table,
    as_statement_end,
    column_names,
    decode_rows,
    decode_table_map,
    numbered_map,
    table_id,
)
from binlog2s3.binlog.walk import EventWalk, payload_sink, wanted_types

_CRC = Struct("<I")
_FLAGS_OFFSET = 17
_ALGORITHM_OFFSET = -CHECKSUM_SIZE - 1
_WANTED = wanted_types(
    *ROWS_EVENTS,
    EventType.TABLE_MAP,
    EventType.TRANSACTION_PAYLOAD,
    EventType.PARTIAL_ROW_DATA,
)
_TABLES_MOST = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class PrintedEvent:
    """A rows event that mysqlbinlog prints: `number` is the name of its table there.

    `columns` are the names of all columns, empty if the binlog does not have them. `images`: how
    many columns each image of a row has; `is_full`: all of them, as a whole.
    """

    number: int
    kind: RowsKind
    table: str
    columns: tuple[str, ...]
    images: tuple[int, ...]
    is_full: bool


@dataclass(frozen=True, slots=True)
class _Map:
    """A table map: its body, or the beginning of it if it is not `whole`, and what it says."""

    body: bytes
    whole: bool
    table: Table
    columns: tuple[str, ...]


class RowsBinlog:
    """Takes a transaction, its bytes cut anywhere, and writes a binlog of its rows events.

    `left_out`: how many rows events cannot be printed, by the reason. Every error of `write` and
    `on_event` is raised unchanged; bytes that cannot be decoded raise nothing, see `is_whole`.
    """

    def __init__(
        self,
        form: FormatEvent,
        head: bytes,
        *,
        wants: Callable[[RowsKind, str], bool],
        on_event: Callable[[PrintedEvent], None],
        write: Callable[[bytes], object],
    ) -> None:
        """`head`: the format event of the transaction's binlog, and `form` what it says.

        `wants` chooses by the kind of change and the table. `on_event` is called before the event
        is written.
        """
        self._flavour = form.flavour
        self._events = EventWalk(form.trailer, self._begin, wanted=_WANTED)
        self._wants = wants
        self._on_event = on_event
        self._write = write
        self._is_whole = True
        self._number = 0
        self._maps: dict[int, _Map] = {}
        self._seen: dict[bytes, _Map] = {}  # table maps come again and again
        self.left_out: Counter[str] = Counter()
        write(MAGIC + _without_checksums(head, form))

    @property
    def is_whole(self) -> bool:
        """Whether all events could be read, and the last one is complete."""
        return self._is_whole and self._events.is_whole

    def feed(self, data: Buffer) -> None:
        """Take the next bytes."""
        self._events.feed(data)

    def _begin(self, event_type: int, head: bytes, size: int) -> Sink | None:
        if event_type == EventType.TABLE_MAP:
            self._take_map(head, size)
        elif event_type == EventType.TRANSACTION_PAYLOAD:
            return payload_sink(head, self._begin, self._end_payload, wanted=_WANTED)
        elif event_type == EventType.PARTIAL_ROW_DATA:
            self.left_out["they are fragments of a large rows event (MariaDB 12.3)"] += 1
        else:
            return self._begin_rows(event_type, head, size)
        return None

    def _end_payload(self, whole: bool) -> None:
        self._is_whole &= whole

    def _take_map(self, head: bytes, size: int) -> None:
        number, key = table_id(head), head[6:]
        found = self._seen.get(key)
        if found is None:
            if len(self._seen) >= _TABLES_MOST:
                self._seen.clear()
            whole = len(head) == size  # but for the names of very many columns
            table = decode_table_map(head, self._flavour)
            names = column_names(head) if whole else ()
            found = self._seen[key] = _Map(head, whole, table, names)
        self._maps[number] = replace(found, body=head)

    def _begin_rows(self, event_type: int, head: bytes, size: int) -> Sink | None:
        event = decode_rows(event_type, head)
        found = self._maps.get(event.table_id)
        if event.statement_end:
            self._maps.clear()
        if found is None:
            if not event.is_empty(size):
                self.left_out["their table is not known"] += 1
            return None
        if not self._wants(event.kind, found.table.name):
            return None
        if event_type not in PRINTABLE_ROWS:
            self.left_out["they have the form of MySQL 5.1"] += 1
            return None
        self._number += 1
        self._on_event(
            PrintedEvent(
                number=self._number,
                kind=event.kind,
                table=found.table.name,
                columns=found.columns if len(found.columns) == event.width else (),
                images=event.image_widths,
                is_full=event.is_full,
            )
        )
        table_map = numbered_map(found.body, self._number, self._flavour, whole=found.whole)
        self._write(_header(EventType.TABLE_MAP, len(table_map)) + table_map)
        self._write(_header(event_type, size) + as_statement_end(head))
        return _Rest(self._write)


class _Rest:
    """Writes the rest of an event."""

    def __init__(self, write: Callable[[bytes], object]) -> None:
        self._write = write

    def feed(self, data: bytes) -> None:
        self._write(data)

    def close(self, *, whole: bool) -> None:
        """Nothing follows: mysqlbinlog itself complains of an event that is cut."""


def _header(event_type: int, body_size: int) -> bytes:
    return HEADER.pack(0, event_type, 0, HEADER_SIZE + body_size, 0, 0)


def _without_checksums(head: bytes, form: FormatEvent) -> bytes:
    """A format event after which events have no checksum; it has its own one."""
    made = bytearray(head)
    made[_FLAGS_OFFSET] &= ~1  # the flag of a binlog in use
    if form.has_checksum:
        made[_ALGORITHM_OFFSET] = 0
        made[-CHECKSUM_SIZE:] = _CRC.pack(zlib.crc32(made[:-CHECKSUM_SIZE]))
    return bytes(made)


# What mysqlbinlog prints of it


VALUE_MOST = 4096
"""So many characters of a value are kept."""
LINE_MOST = 1 << 16
"""So many bytes of a line are kept, and so many of its end."""
_CHANGE = re.compile(rb"### (?:INSERT INTO|UPDATE|DELETE FROM) `t`\.`(\d+)`\s*")
_VALUE = re.compile(rb"###   @(\d+)=(.*)", re.DOTALL)
_BEFORE, _AFTER = b"### WHERE", b"### SET"


class Line(NamedTuple):
    """A line of `size` bytes; if it is long, only its beginning and its end."""

    data: bytes
    end: bytes
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """A value as mysqlbinlog prints it: `text`, and what it says of the column's type.

    `column`: its name, or "@" and its number if the binlog does not have names. `of_size`: the size
    of the whole text in bytes, if `text` is only its beginning; otherwise 0.
    """

    column: str
    text: str
    type: str
    of_size: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One row before and after a change; an insert has no `before`, a delete no `after`.

    Names and texts are foreign: they may have control characters.
    """

    event: PrintedEvent
    before: tuple[Value, ...]
    after: tuple[Value, ...]

    @property
    def is_whole(self) -> bool:
        """Whether every column that the binlog has was printed."""
        images = {"insert": (self.after,), "delete": (self.before,)}
        printed = images.get(self.event.kind, (self.before, self.after))
        return tuple(map(len, printed)) == self.event.images


def rows_of(lines: Iterable[Line], events: deque[PrintedEvent]) -> Iterator[Row]:
    """The rows in what mysqlbinlog prints. It takes from `events` those that are printed.

    Raises ValueError if it prints an event that is not among them.
    """
    event: PrintedEvent | None = None
    before: list[Value] = []
    after: list[Value] = []
    values = after
    for line in lines:
        data = line.data
        if not data.startswith(b"###"):
            continue
        if found := _CHANGE.fullmatch(data):
            if event is not None:
                yield Row(event=event, before=tuple(before), after=tuple(after))
            event = _event_of(int(found[1]), events)
            before, after = [], []
            values = after
        elif data.rstrip() == _BEFORE:
            values = before
        elif data.rstrip() == _AFTER:
            values = after
        elif event is not None and (found := _VALUE.fullmatch(data)):
            values.append(_value(event, int(found[1]), found.start(2), line))
    if event is not None:
        yield Row(event=event, before=tuple(before), after=tuple(after))


def _event_of(number: int, events: deque[PrintedEvent]) -> PrintedEvent:
    while events and events[0].number < number:
        events.popleft()
    if not events or events[0].number != number:
        raise ValueError(f"there is no rows event {number}")
    return events[0]


def _value(event: PrintedEvent, number: int, begin: int, line: Line) -> Value:
    """The value that begins at `begin`, and its column's type.

    The type is in the comment at the end of the line; the value may look like having one, too.
    """
    is_cut = line.size > len(line.data)
    tail = line.end if is_cut else line.data[begin:]
    shown, mark, kind = tail.rstrip().rpartition(b" /* ")
    if not (mark and kind.endswith(b" */")):
        shown, kind = tail.rstrip(b"\r\n"), b""
    size = line.size - begin - (len(tail) - len(shown))
    text = (line.data[begin:] if is_cut else shown).decode(errors="backslashreplace")
    columns = event.columns
    return Value(
        column=columns[number - 1] if 0 < number <= len(columns) else f"@{number}",
        text=text[:VALUE_MOST],
        type=kind[:-3].decode(errors="backslashreplace"),
        of_size=size if is_cut or len(text) > VALUE_MOST else 0,
    )
