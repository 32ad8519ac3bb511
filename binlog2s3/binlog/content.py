"""What a transaction does: which tables, which kinds of statements, how many rows. No I/O.

Place: whoever reads a transaction's bytes out of the bucket feeds them to a `ContentReader`, and
shows its `Content` to people. `tables` knows tables and rows, `compression` compressed events, and
`statements` the texts.

Law: this is a look, and makes nothing fail: what cannot be told is left out or None, whatever the
bytes are, and numbers that are there are right. No event is held as a whole, except small ones.
"""

import codecs
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from binlog2s3.binlog.client_text import is_plain_name, unclear
from binlog2s3.binlog.compression import (
    Sink,
    Zlib,
    Zstd,
    decode_payload,
    mariadb_header_size,
    mariadb_size,
    mariadb_text,
)
from binlog2s3.binlog.events import CHECKSUM_SIZE, Buffer, EventType, FormatEvent
from binlog2s3.binlog.statements import Statement, statement_of, without_secrets, writing_of
from binlog2s3.binlog.tables import (
    ROWS_EVENTS,
    RowCounter,
    RowsEvent,
    Table,
    decode_rows,
    decode_table_map,
    table_id,
)
from binlog2s3.binlog.walk import HEAD_MOST, UNDECODABLE, Inside, Walk, wanted_types
from binlog2s3.binlog.xa import Xa, decode_xa_prepare, xa_end, xa_word

ChangeKind = Literal["insert", "update", "delete", "ddl", "other"]

TEXT_MOST = 1000
"""Characters of a statement that are kept."""
STATEMENTS_MOST = 100
CHANGES_MOST = 10_000
"""Kinds and tables that are told apart; what comes then counts to the table ""."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What one kind of change does to one table.

    `table` is as `table_name` has it ("db.table"), "db.*" where it is a database, "" where it
    cannot be told (statements).
    `rows` is None where the binlog has statements and not rows, or they cannot be counted.
    """

    kind: ChangeKind
    table: str
    rows: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """The changes of a transaction, each table and kind once, in their order.

    `statements` are the texts of DDL and of statements, cut to `TEXT_MOST` characters, the first
    `STATEMENTS_MOST` of them, without passwords; also of those behind rows, where the binlog has
    them. `compressed`: something in it was compressed. `xa`: it is one phase of an XA transaction.
    `undone`: some of it, or all, was rolled back. `lost`: something in it could not be read.
    """

    changes: tuple[Change, ...] = ()
    statements: tuple[str, ...] = ()
    compressed: bool = False
    xa: Xa | None = None
    undone: bool = False
    lost: bool = False


STATEMENT_MOST = 16 * 1024
"""Bytes of a statement that are looked at, unless more are asked for."""
TEXT_LOOKED_MOST = 16 << 20
"""Bytes of a statement of which `NotForClients` looks at all."""
LOOKED_MOST = 60 * 1024
"""More of it may not be in the head of its event."""
_TABLES_MOST = 1000

OnStatement: TypeAlias = Callable[[Statement], None]
"""Hears of each statement."""
ROW_KINDS = frozenset({"insert", "update", "delete"})

_WANTED = wanted_types(
    *ROWS_EVENTS,
    EventType.QUERY,
    EventType.QUERY_COMPRESSED,
    EventType.LOAD,
    EventType.NEW_LOAD,
    EventType.EXECUTE_LOAD_QUERY,
    EventType.INCIDENT,
    EventType.TABLE_MAP,
    EventType.ROWS_QUERY,
    EventType.ANNOTATE_ROWS,
    EventType.TRANSACTION_PAYLOAD,
    EventType.XA_PREPARE,
)
_WANTED_OF_TEXT = wanted_types(
    EventType.QUERY,
    EventType.QUERY_COMPRESSED,
    EventType.EXECUTE_LOAD_QUERY,
    EventType.TABLE_MAP,
    EventType.USER_VAR,
    EventType.TRANSACTION_PAYLOAD,
)


class _Counting:
    """The rows of one event; `done` is told how many."""

    def __init__(self, counter: RowCounter | None, done: Callable[[int | None], None]) -> None:
        self._counter = counter
        self._done = done

    def feed(self, data: bytes) -> None:
        if self._counter is not None:
            self._counter.feed(data)

    def close(self, *, whole: bool) -> None:
        self._done(self._counter.rows if whole and self._counter is not None else None)


class ContentReader:
    """Reads one transaction: its events as they lie in the binlog, in any cut.

    Holds tables, statements' texts and numbers, but never an event as a whole.
    """

    def __init__(
        self,
        format_event: FormatEvent,
        /,
        *,
        text_most: int = TEXT_MOST,
        looked_most: int = STATEMENT_MOST,
        on_statement: OnStatement | None = None,
    ) -> None:
        """`format_event`: of the binlog that the transaction is in.

        Of a statement so many characters are kept, and so many bytes looked at (at most
        `LOOKED_MOST`).
        """
        self._text_most = text_most
        self._looked_most = min(looked_most, LOOKED_MOST)
        self._on_statement = on_statement
        self._flavour = format_event.flavour
        trailer = CHECKSUM_SIZE if format_event.checksum == "crc32" else 0
        self._events = Walk(trailer, self._begin, wanted=_WANTED)
        self._is_lost = False
        self._is_inside = False
        self._compressed = False
        self._xa: Xa | None = None
        self._is_undone = False
        self._is_begun = False  # as an XA transaction
        self._statements: list[str] = []
        self._rows: dict[tuple[ChangeKind, str], int | None] = {}
        self._tables: dict[int, Table] = {}
        self._seen: dict[bytes, Table] = {}  # table maps come again and again

    def feed(self, data: Buffer) -> None:
        """Take the next bytes."""
        self._events.feed(data)

    def content(self) -> Content:
        """What there was until now."""
        lost = self._is_lost or not self._events.is_whole
        return Content(
            changes=tuple(
                Change(kind=kind, table=table, rows=None if lost else rows)
                for (kind, table), rows in self._rows.items()
            ),
            statements=tuple(self._statements),
            compressed=self._compressed,
            xa=self._xa,
            undone=self._is_undone,
            lost=lost,
        )

    def _begin(self, event_type: int, head: bytes) -> Sink | None:
        """Look at an event; what it returns wants the rest of its body."""
        sink: Sink | None = None
        if event_type in ROWS_EVENTS:
            sink = self._begin_rows(event_type, head)
        elif event_type == EventType.TABLE_MAP:
            self._take_table(head)
        elif event_type == EventType.TRANSACTION_PAYLOAD:
            sink = self._begin_payload(head)
        elif event_type == EventType.ROWS_QUERY:
            self._keep(_text(head[1:], self._looked_most)[0])
        elif event_type == EventType.ANNOTATE_ROWS:
            self._keep(_text(head, self._looked_most)[0])
        elif event_type in _STATEMENTS:
            self._take_statement(event_type, head)
        elif event_type == EventType.XA_PREPARE:
            self._xa = decode_xa_prepare(head)
        else:
            self._add(_WITHOUT_TEXT[event_type], "", None)
        return sink

    # statements

    def _take_statement(self, event_type: int, head: bytes) -> None:
        said = _said(event_type, head, self._looked_most)
        if said.text == "BEGIN":
            return  # what most of them are
        self._compressed |= event_type == EventType.QUERY_COMPRESSED
        text, writing = said.text, writing_of(said.status)
        found = statement_of(text, said.db, cut=said.cut, writing=writing)
        if found is None:
            self._take_frame(text)
            return
        for table in found.tables:
            self._add(found.kind, table, None)
        is_open = found.kind in ROW_KINDS
        self._keep(text if is_open else without_secrets(text, writing))
        if self._on_statement is not None:
            self._on_statement(found)

    def _take_frame(self, text: str) -> None:
        """What only frames a transaction: the second phase of XA, or that something is undone.

        XA COMMIT behind XA START in one transaction, as old servers write it, is a plain COMMIT.
        """
        word = xa_word(text)
        if word == "START":
            self._is_begun = True
        elif word and not self._is_begun:
            self._xa = xa_end(text)
        elif word == "ROLLBACK" or text.lstrip()[:8].upper() == "ROLLBACK":
            self._is_undone = True

    def _keep(self, text: str) -> None:
        if len(self._statements) < STATEMENTS_MOST:
            self._statements.append(text[: self._text_most])

    # rows

    def _take_table(self, head: bytes) -> None:
        number, key = table_id(head), head[6:]
        table = self._seen.get(key)
        if table is None:
            if len(self._seen) >= _TABLES_MOST:
                self._seen.clear()
            table = self._seen[key] = decode_table_map(head, self._flavour)
        self._tables[number] = table

    def _begin_rows(self, event_type: int, head: bytes) -> Sink | None:
        event = decode_rows(event_type, head)
        table = self._tables.get(event.table_id)
        if event.statement_end:
            self._tables.clear()
        if table is None:
            if not event.is_empty(len(head)):
                self._add(event.kind, "", None)
            return None
        self._compressed |= event.compressed
        return self._counting(event, table, head)

    def _counting(self, event: RowsEvent, table: Table, head: bytes) -> Sink:
        """What counts the event's rows; has those already that lie in its head."""

        def done(rows: int | None) -> None:
            self._add(event.kind, table.name, rows)

        sink: Sink = _Counting(event.counter(table), done)
        at = event.rows_at
        try:
            if event.compressed:
                sink = Zlib(sink, mariadb_size(head[at : at + 5]))
                at += mariadb_header_size(head[at : at + 1])
            sink.feed(head[at:])
        except UNDECODABLE:
            sink = _Counting(None, done)
        return sink

    def _add(self, kind: ChangeKind, table: str, rows: int | None) -> None:
        """Count a change in; where one part of a sum is not known, the sum is not."""
        key = (kind, table)
        if key not in self._rows and len(self._rows) >= CHANGES_MOST:
            key = (kind, "")
        before = self._rows.get(key, 0)
        self._rows[key] = None if before is None or rows is None else before + rows

    # compressed transactions

    def _begin_payload(self, head: bytes) -> Sink | None:
        if self._is_inside:
            raise ValueError("a compressed transaction in a compressed transaction")
        self._is_inside = True
        compressed, at, size = decode_payload(head)
        self._compressed |= compressed

        def done(whole: bool) -> None:
            self._is_inside = False
            self._is_lost |= not whole

        inside = Inside(self._begin, done, wanted=_WANTED)
        sink: Sink = Zstd(inside, size) if compressed else inside
        sink.feed(head[at:])
        return sink


class NotForClients:
    """Looks for what a client would take otherwise than the server, in events as they lie there.

    mysqlbinlog prints each table's name as it is, in a comment: to a client that reads its text,
    what comes behind a line break in it is a statement. And of a statement the client may take a
    part for another one (`client_text`). `found`: what there is, for people.
    """

    def __init__(self, format_event: FormatEvent) -> None:
        """`format_event`: of the binlog that the events are of."""
        trailer = CHECKSUM_SIZE if format_event.checksum == "crc32" else 0
        self._events = Walk(trailer, self._begin, wanted=_WANTED_OF_TEXT)
        self._broken: list[str] = []

    @property
    def found(self) -> list[str]:
        """What there was until now; also that something could not be read."""
        if self._events.lost and not self._broken:
            self._broken.append("an event that cannot be read")
        return self._broken

    def feed(self, data: Buffer) -> None:
        """Take the next bytes, cut anywhere; those in compressed transactions are looked at too."""
        self._events.feed(data)

    def _begin(self, event_type: int, head: bytes) -> Sink | None:
        if event_type == EventType.TABLE_MAP:
            database, rest = _counted(head[_TABLE_FIXED:])
            table, _ = _counted(rest[1:])
            name = b".".join([database, table])
            if b"\n" in name or b"\r" in name:
                self._broken.append(f"the table {name.decode(errors='replace')!r}")
        elif event_type in _STATEMENTS:
            return _Whole(head, lambda whole: self._look(event_type, whole))
        elif event_type == EventType.USER_VAR:
            size = int.from_bytes(head[:4], "little")
            if not is_plain_name(head[4 : 4 + size]) or size + 4 > len(head):
                self._broken.append("the name of a user variable")
        elif event_type == EventType.TRANSACTION_PAYLOAD:
            compressed, at, size = decode_payload(head)
            inside = Inside(self._begin, self._take_end, wanted=_WANTED_OF_TEXT)
            sink: Sink = Zstd(inside, size) if compressed else inside
            sink.feed(head[at:])
            return sink
        return None

    def _take_end(self, whole: bool) -> None:
        if not whole:
            self._broken.append("a compressed transaction that cannot be read")

    def _look(self, event_type: int, body: bytes | None) -> None:
        """At a statement; `body` is None where it is too long to be looked at."""
        if body is None:
            self._broken.append(f"a statement of more than {TEXT_LOOKED_MOST} bytes")
            return
        fixed = _QUERY_FIXED + (_LOAD_FIXED if event_type == EventType.EXECUTE_LOAD_QUERY else 0)
        at = fixed + int.from_bytes(body[11:13], "little")
        status, db, text = body[fixed:at], body[at : at + body[8]], body[at + body[8] + 1 :]
        if event_type == EventType.QUERY_COMPRESSED:
            size = mariadb_size(text)
            text = mariadb_text(text, TEXT_LOOKED_MOST + 1)
            if len(text) < min(size, TEXT_LOOKED_MOST + 1):
                self._broken.append("a compressed statement that cannot be read")
        if len(text) > TEXT_LOOKED_MOST:
            self._look(event_type, None)
        elif not is_plain_name(db):
            self._broken.append("the name of a database")
        elif why := unclear(text, status):
            shown = text[:80].decode(errors="replace")
            self._broken.append(f"the statement {shown!r} ({why})")


class _Whole:
    """Gathers an event's body, up to a limit; `done` gets it, or None where it is longer."""

    def __init__(self, head: bytes, done: Callable[[bytes | None], None]) -> None:
        self._data = bytearray(head)
        self._done = done

    def feed(self, data: bytes) -> None:
        if len(self._data) <= TEXT_LOOKED_MOST + HEAD_MOST:
            self._data += data

    def close(self, *, whole: bool) -> None:
        is_held = whole and len(self._data) <= TEXT_LOOKED_MOST + HEAD_MOST
        self._done(bytes(self._data) if is_held else None)


@dataclass(frozen=True, slots=True)
class _Said:
    """What the event of a statement says."""

    text: str
    cut: bool
    db: str
    status: bytes


def _said(event_type: int, head: bytes, looked_most: int) -> _Said:
    fixed = _QUERY_FIXED + (_LOAD_FIXED if event_type == EventType.EXECUTE_LOAD_QUERY else 0)
    db_size = head[8]
    at = fixed + int.from_bytes(head[11:13], "little")
    if at + db_size + 1 > len(head):
        raise ValueError("query event too short")
    raw = head[at + db_size + 1 :]
    if event_type == EventType.QUERY_COMPRESSED:
        raw = mariadb_text(raw, looked_most + 1)
    db, _ = _text(head[at : at + db_size], db_size)
    return _Said(*_text(raw, looked_most), db, head[fixed:at])


def statement_in(event_type: int, head: bytes) -> Statement | None:
    """What the event of a statement says; `head` is the beginning of its body. ValueError."""
    said = _said(event_type, head, STATEMENT_MOST)
    return statement_of(said.text, said.db, cut=said.cut, writing=writing_of(said.status))


def _counted(data: bytes) -> tuple[bytes, bytes]:
    """A text behind a byte that says how long it is, and what follows."""
    return data[1 : 1 + data[0]], data[1 + data[0] :]


_TABLE_FIXED = 8  # table id and flags, in a TABLE_MAP event
_QUERY_FIXED, _LOAD_FIXED = 13, 13
_STATEMENTS = (EventType.QUERY, EventType.QUERY_COMPRESSED, EventType.EXECUTE_LOAD_QUERY)
_WITHOUT_TEXT: dict[int, ChangeKind] = {
    EventType.LOAD: "insert",
    EventType.NEW_LOAD: "insert",
    EventType.INCIDENT: "other",
}


def _text(raw: bytes, most: int) -> tuple[str, bool]:
    """The beginning of a text in a charset that nobody asked for, and whether it was cut."""
    cut = len(raw) > most
    raw = raw[:most]
    try:
        return codecs.getincrementaldecoder("utf-8")().decode(raw, final=not cut), cut
    except UnicodeDecodeError:
        return raw.decode("latin-1"), cut
