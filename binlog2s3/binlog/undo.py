"""The changes of a transaction turned round, as rows events that a server executes.

Law: what is turned round is whole, or nothing is: whatever a rows event cannot take back (a
statement, DDL, images that lack columns, bytes that cannot be read) raises RecoveryError. No value
is decoded. Changes are kept in a file, last to first is the order in which they are read: memory is
one event, whatever the size of the transaction.

The flags NO_FOREIGN_KEY_CHECKS, RELAXED_UNIQUE_CHECKS and NO_CHECK_CONSTRAINT_CHECKS of the events
are not taken over: the server checks what it executes.
"""

import base64
import hashlib
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from struct import Struct
from typing import BinaryIO

from binlog2s3.binlog.compression import Sink, Zlib, mariadb_header_size, mariadb_size
from binlog2s3.binlog.events import (
    HEADER,
    HEADER_SIZE,
    IN_USE_FLAG,
    Buffer,
    EventType,
    FormatEvent,
    query_layout,
)
from binlog2s3.binlog.gtid import Flavour
from binlog2s3.binlog.tables import (
    ROWS_EVENTS,
    Image,
    MapBody,
    RowCounter,
    RowsEvent,
    RowsKind,
    Table,
    decode_map,
    decode_rows,
    renamed_map,
    table_id,
)
from binlog2s3.binlog.walk import EventWalk, payload_sink, wanted_types
from binlog2s3.errors import RecoveryError

EVENT_MOST = 256 << 20
"""Bytes of a rows event, decompressed. Only one with a single row is larger than some KiB."""
TABLES_MOST = 1000
"""Table maps that differ, in all transactions together."""
STEP_BYTES = 1 << 20
STEP_ROWS = 5000
"""So much is undone by one statement, or a single row."""

_CRC = Struct("<I")
_FLAGS_OFFSET = 17
_ALGORITHM_OFFSET = -_CRC.size - 1
_TRAILER = Struct("<BIIQ")
"""Kind of change, number of the table map, number of the transaction, size of the rows."""
_KINDS: tuple[RowsKind, ...] = ("insert", "update", "delete")
_NOT_HERE = frozenset({EventType.ROWS_QUERY, EventType.ANNOTATE_ROWS, EventType.XID})
"""Events of a transaction that change nothing by themselves."""
_GTIDS = frozenset(
    {
        EventType.GTID,
        EventType.ANONYMOUS_GTID,
        EventType.GTID_TAGGED,
        EventType.MARIADB_GTID,
    }
)
_ALL_TYPES = wanted_types(*range(256))
_QUERY_MOST = 200
_STANDS = (b"BEGIN", b"COMMIT")
_OLD_ROWS = frozenset({EventType.WRITE_ROWS_V0, EventType.UPDATE_ROWS_V0, EventType.DELETE_ROWS_V0})


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangedTable:
    """A table as a transaction's table map describes it.

    `missing`: the columns, from 0, that no row image has; MariaDB from 11 on leaves out generated
    ones. `raw` is the body of the event.
    """

    number: int
    raw: bytes
    body: MapBody
    table: Table
    present: bytes
    missing: frozenset[int]

    @property
    def name(self) -> str:
        """Its name in the form of `table_name`."""
        return self.table.name

    @property
    def image(self) -> Image:
        """The layout of a row."""
        return self.table.image(self.present)


class Changes:
    """The changes of transactions, in a file: added in their order, read last to first.

    `file` is private to this program, empty, and open for reading and writing. OSError is raised
    unchanged. `rows` counts by table and kind. `largest`: bytes of the largest event.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._tables: list[ChangedTable] = []
        self._numbers: dict[tuple[bytes, bytes], int] = {}
        self.rows: Counter[tuple[str, RowsKind]] = Counter()
        self.size = 0
        self.largest = 0
        self._transaction = 0

    @property
    def tables(self) -> Sequence[ChangedTable]:
        """Each table, as often as its table maps differ."""
        return self._tables

    def kinds(self, table: str) -> Collection[RowsKind]:
        """The kinds of change of a table."""
        return {kind for name, kind in self.rows if name == table}

    def number_of(self, raw: bytes, present: bytes, flavour: Flavour) -> int:
        """The number of a table with such images. Raises ValueError."""
        key = (raw[6:], present)
        number = self._numbers.get(key)
        if number is None:
            if len(self._tables) >= TABLES_MOST:
                raise RecoveryError(
                    f"more than {TABLES_MOST} tables, or definitions of tables, are changed",
                    hint="undo some of them: --table",
                )
            number = len(self._tables)
            body, table = decode_map(raw, flavour)
            bits = int.from_bytes(present, "little")
            made = ChangedTable(
                number=number,
                raw=raw,
                body=body,
                table=table,
                present=present,
                missing=frozenset(n for n in range(len(body.types)) if not bits >> n & 1),
            )
            self._tables.append(made)
            self._numbers[key] = number
        return number

    def write(self, data: bytes) -> None:
        """Add bytes of rows; `end` says what they were."""
        self._file.seek(self.size)
        self._file.write(data)
        self.size += len(data)

    def next_transaction(self) -> None:
        """What is added from now on is of another transaction."""
        self._transaction += 1

    def end(self, kind: RowsKind, number: int, size: int, rows: int) -> None:
        """The last `size` bytes are this number of rows of one event."""
        self.write(_TRAILER.pack(_KINDS.index(kind), number, self._transaction, size))
        self.rows[self._tables[number].name, kind] += rows
        self.largest = max(self.largest, size)

    def backwards(self) -> Iterator[tuple[ChangedTable, RowsKind, bytes]]:
        """The rows of each event, the last event first."""
        for table, kind, _, data in self.by_transaction():
            yield table, kind, data

    def by_transaction(self) -> Iterator[tuple[ChangedTable, RowsKind, int, bytes]]:
        """The same, with a number of each one's transaction."""
        at = self.size
        while at:
            at -= _TRAILER.size
            self._file.seek(at)
            kind, number, transaction, size = _TRAILER.unpack(self._file.read(_TRAILER.size))
            at -= size
            self._file.seek(at)
            yield self._tables[number], _KINDS[kind], transaction, self._file.read(size)


class TransactionReader:
    """Takes the bytes of one transaction, cut anywhere, and adds its changes of rows.

    `wants`: tables whose changes are added, by their name. RecoveryError is raised for what cannot
    be undone.
    """

    def __init__(
        self, changes: Changes, form: FormatEvent, *, wants: Callable[[str], bool], what: str
    ) -> None:
        """`form`: the format event of its binlog. `what` is the transaction, for messages."""
        trailer = 4 if form.checksum == "crc32" else 0
        self._changes = changes
        self._flavour = form.flavour
        self._wants = wants
        self._what = what
        self._events = EventWalk(trailer, self._begin, wanted=_ALL_TYPES)
        self._maps: dict[int, bytes] = {}
        self._is_whole = True
        self._ended = False
        self.left_out: Counter[str] = Counter()
        changes.next_transaction()

    def feed(self, data: Buffer) -> None:
        """Take the next bytes. Raises RecoveryError, OSError."""
        self._events.feed(data)

    def end(self) -> None:
        """Nothing follows. Raises RecoveryError if something could not be read."""
        if not (self._is_whole and self._events.is_whole):
            raise self._refusal("something in it cannot be decoded")
        if not self._ended:
            raise self._refusal("it does not end with a commit of a transactional engine (XID)")

    def _refusal(self, why: str, hint: str = "") -> RecoveryError:
        return RecoveryError(f"{self._what} cannot be undone: {why}", hint=hint)

    def _begin(self, event_type: int, head: bytes, size: int) -> Sink | None:
        if self._ended:
            raise self._refusal("events follow its commit")
        if event_type in ROWS_EVENTS:
            return self._rows(event_type, head, size)
        if event_type == EventType.TABLE_MAP:
            if len(head) != size:
                raise self._refusal("a table map is too large")
            self._maps[table_id(head)] = head
        elif event_type == EventType.TRANSACTION_PAYLOAD:
            return payload_sink(head, self._begin, self._end_payload, wanted=_ALL_TYPES)
        elif event_type == EventType.QUERY:
            self._query(head, size)
        elif event_type == EventType.XID:
            self._ended = True
        elif event_type not in _GTIDS and event_type not in _NOT_HERE:
            raise self._refusal(f"it has an event of type {event_type}, which is not rows")
        return None

    def _end_payload(self, whole: bool) -> None:
        self._is_whole &= whole

    def _query(self, head: bytes, size: int) -> None:
        _, _, at = query_layout(EventType.QUERY, head, 0)
        text = head[at:size].strip()
        if text.upper() in _STANDS:
            self._ended |= text.upper() == b"COMMIT"
            if self._ended:
                raise self._refusal("a table that it changed was not transactional (no XID)")
            return
        words = text.upper().split(maxsplit=1)
        if words[:1] == [b"SAVEPOINT"]:
            return
        shown = text[:_QUERY_MOST].decode(errors="backslashreplace")
        raise self._refusal(
            f"it has a statement, of which no binlog says what it changed: {shown}",
            hint="only changes of rows can be undone (binlog_format = ROW); DDL, TRUNCATE and "
            "statements need a restore: docs/recovery.md",
        )

    def _rows(self, event_type: int, head: bytes, size: int) -> Sink | None:
        if event_type in _OLD_ROWS:
            raise self._refusal("its rows events have the form of MySQL 5.1")
        event = decode_rows(event_type, head)
        raw = self._maps.get(event.table_id)
        if event.statement_end:
            self._maps.clear()
        if not event.present:
            raise self._refusal("a rows event cannot be decoded")
        if event.is_empty(size):
            return None
        if raw is None:
            raise self._refusal("a rows event has no table map")
        _, table = decode_map(raw, self._flavour)
        if not self._wants(table.name):
            self.left_out[table.name] += 1
            return None
        return self._kept(event, raw, table, head)

    def _kept(self, event: RowsEvent, raw: bytes, table: Table, head: bytes) -> Sink:
        if event.partial:
            raise self._refusal(
                f"a change of {table.name} has only parts of JSON values "
                "(binlog_row_value_options = PARTIAL_JSON)"
            )
        whole = (1 << event.width) - 1  # the bits after the last column may be set
        if len({int.from_bytes(image, "little") & whole for image in event.present}) != 1:
            raise self._refusal(
                f"the rows of {table.name} before and after the change have different columns "
                "(binlog_row_image is not FULL)"
            )
        present = event.present[0]
        counter = event.counter(table)
        if counter is None:
            raise self._refusal(f"the columns of {table.name} are of types that are not known")
        number = self._changes.number_of(raw, present, self._flavour)
        done = _Kept(self._changes, event.kind, number, counter, self._lost)
        if not event.compressed:
            done.feed(head[event.rows_at :])
            return done
        begin = event.rows_at + mariadb_header_size(head[event.rows_at :])
        sink = Zlib(done, mariadb_size(head[event.rows_at :]))
        sink.feed(head[begin:])
        return sink

    def _lost(self) -> None:
        raise self._refusal("the rows of an event do not end where it ends")


class _Kept:
    """The rows of one event, on their way to the file."""

    def __init__(
        self,
        changes: Changes,
        kind: RowsKind,
        number: int,
        counter: RowCounter,
        lost: Callable[[], None],
    ) -> None:
        self._changes = changes
        self._kind: RowsKind = kind
        self._number = number
        self._counter = counter
        self._lost = lost
        self._size = 0

    def feed(self, data: bytes) -> None:
        self._size += len(data)
        if self._size > EVENT_MOST:
            raise RecoveryError(f"a rows event has more than {EVENT_MOST} bytes: not supported")
        self._counter.feed(data)
        self._changes.write(data)

    def close(self, *, whole: bool) -> None:
        rows = self._counter.rows
        if not whole or not rows:
            self._lost()
            return
        self._changes.end(self._kind, self._number, self._size, rows)


TURNED: dict[RowsKind, RowsKind] = {"insert": "delete", "update": "update", "delete": "insert"}
"""What undoes a change."""


def fingerprint(changes: Changes, *, turned: bool = False) -> tuple[int, int]:
    """The number of rows and a sum of their hashes, in any order; `turned`: of what undoes them."""
    count = total = 0
    for table, kind, data in changes.backwards():
        for row in split_rows(table.image, data, 2 if kind == "update" else 1):
            images = row[::-1] if turned else row
            named = f"{TURNED[kind] if turned else kind} {table.name}".encode()
            made = hashlib.blake2b(digest_size=16)
            for part in (named, *images):
                made.update(len(part).to_bytes(8, "little") + part)
            total += int.from_bytes(made.digest(), "little")
            count += 1
    return count, total % (1 << 128)


# Rows


def split_rows(image: Image, data: bytes, images: int) -> list[tuple[bytes, ...]]:
    """The rows of an event, each cut into its one or two images. Raises ValueError."""
    rows: list[tuple[bytes, ...]] = []
    at, null_size, size = 0, image.null_size, len(data)
    while at < size:
        row: list[bytes] = []
        for _ in range(images):
            begin = at
            at += null_size
            for skip, prefix in image.program(data[begin:at]):
                at += skip
                if prefix:
                    at += prefix + int.from_bytes(data[at : at + prefix], "little")
            row.append(data[begin:at])
        rows.append(tuple(row))
    if at != size:
        raise ValueError("rows do not end where their event ends")
    return rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Rows that are undone by one statement: a change of one kind in one table, to be reversed.

    `before` are the rows as they were before the change, which the step brings back, and `after`
    those that the change left, which must be there. The last row comes first. One of both is empty
    for an insert or a delete. No row is in it twice.
    """

    table: ChangedTable
    kind: RowsKind
    before: tuple[bytes, ...]
    after: tuple[bytes, ...]

    @property
    def count(self) -> int:
        """The number of rows."""
        return max(len(self.before), len(self.after))

    def part(self, numbers: Collection[int]) -> "Step":
        """The step of the rows with these numbers, from 0, in their order."""

        def some(rows: tuple[bytes, ...]) -> tuple[bytes, ...]:
            return tuple(row for number, row in enumerate(rows) if number in numbers)

        return replace(self, before=some(self.before), after=some(self.after))


def steps(
    changes: Changes, *, most_bytes: int = STEP_BYTES, most_rows: int = STEP_ROWS
) -> Iterator[Step]:
    """The steps that undo all changes, in their order: the last change first.

    None is of two transactions: others between them may have changed a row that both changed.
    """
    made: _StepMaker | None = None
    last = 0
    for table, kind, transaction, data in changes.by_transaction():
        if made is not None and transaction != last:
            yield made.step()
            made = None
        last = transaction
        rows = split_rows(table.image, data, 2 if kind == "update" else 1)
        for row in reversed(rows):
            if made is not None and not made.takes(table, kind, row):
                yield made.step()
                made = None
            if made is None:
                made = _StepMaker(table, kind, most_bytes, most_rows)
            made.add(row)
    if made is not None:
        yield made.step()


class _StepMaker:
    """The rows of a step that grows."""

    def __init__(
        self, table: ChangedTable, kind: RowsKind, most_bytes: int, most_rows: int
    ) -> None:
        self._table = table
        self._kind: RowsKind = kind
        self._left = most_bytes
        self._rows_left = most_rows
        self._rows: list[tuple[bytes, ...]] = []
        self._before: set[bytes] = set()

    def takes(self, table: ChangedTable, kind: RowsKind, row: tuple[bytes, ...]) -> bool:
        """Whether a row, which was changed before the others, can be undone together with them.

        Not if it was changed again by one of them: it does not look like that any more.
        """
        if table is not self._table or kind != self._kind or not self._rows_left:
            return False
        if sum(map(len, row)) > self._left:
            return False
        return kind != "update" or row[1] not in self._before

    def add(self, row: tuple[bytes, ...]) -> None:
        self._left -= sum(map(len, row))
        self._rows_left -= 1
        self._rows.append(row)
        if self._kind == "update":
            self._before.add(row[0])

    def step(self) -> Step:
        columns = tuple(zip(*self._rows, strict=True))
        return Step(
            table=self._table,
            kind=self._kind,
            before=columns[0] if self._kind != "insert" else (),
            after=columns[-1] if self._kind != "delete" else (),
        )


# Events to execute


_TYPES: dict[Flavour, dict[RowsKind, int]] = {
    "mysql": {
        "insert": EventType.WRITE_ROWS,
        "update": EventType.UPDATE_ROWS,
        "delete": EventType.DELETE_ROWS,
    },
    "mariadb": {
        "insert": EventType.WRITE_ROWS_V1,
        "update": EventType.UPDATE_ROWS_V1,
        "delete": EventType.DELETE_ROWS_V1,
    },
}
_NO_EXTRA: dict[Flavour, bytes] = {"mysql": b"\2\0", "mariadb": b""}
_STATEMENT_END = b"\1\0"
"""The only flag: the server checks foreign and unique keys, and constraints."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EventMaker:
    """Makes events with checksums, as of this time in seconds since 1970."""

    flavour: Flavour
    timestamp: int
    server_id: int = 1

    def event(self, event_type: int, body: bytes) -> bytes:
        """An event; it has no position."""
        size = HEADER_SIZE + len(body) + _CRC.size
        raw = HEADER.pack(self.timestamp, event_type, self.server_id, size, 0, 0) + body
        return raw + _CRC.pack(zlib.crc32(raw))

    def undoing(self, step: Step) -> bytes:
        """The events that execute a step."""
        table = step.table
        if step.kind == "insert":
            return self._rows(table, "delete", step.after)
        if step.kind == "delete":
            return self._rows(table, "insert", step.before)
        pairs = zip(step.after, step.before, strict=True)
        return self._rows(table, "update", tuple(image for pair in pairs for image in pair))

    def inserting(self, table: ChangedTable, rows: Sequence[bytes], name: tuple[str, str]) -> bytes:
        """The events that insert rows of a table into another one with the same definition."""
        return self._rows(table, "insert", rows, name)

    def _rows(
        self,
        table: ChangedTable,
        kind: RowsKind,
        rows: Sequence[bytes],
        name: tuple[str, str] | None = None,
    ) -> bytes:
        number = (table.number + 1).to_bytes(6, "little")
        named = table.raw if name is None else renamed_map(table.raw, *name)
        present = table.present * (2 if kind == "update" else 1)
        width = table.body.packed_count
        body = number + _STATEMENT_END + _NO_EXTRA[self.flavour] + width + present + b"".join(rows)
        table_map = self.event(EventType.TABLE_MAP, number + named[6:])
        return table_map + self.event(_TYPES[self.flavour][kind], body)


def with_checksums(head: bytes, form: FormatEvent) -> bytes:
    """A format event after which events have checksums. Raises RecoveryError."""
    if not form.has_checksum:
        raise RecoveryError("a format event from before MySQL 5.6: not supported")
    made = bytearray(head)
    made[_FLAGS_OFFSET] &= ~IN_USE_FLAG
    made[_ALGORITHM_OFFSET] = 1
    made[-_CRC.size :] = _CRC.pack(zlib.crc32(made[: -_CRC.size]))
    return bytes(made)


def binlog_statement(*events: bytes) -> str:
    """A BINLOG statement that executes events."""
    lines = (base64.b64encode(event).decode("ascii") for event in events)
    return "BINLOG '\n" + "\n".join(lines) + "\n'"
