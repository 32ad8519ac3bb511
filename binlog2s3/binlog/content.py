"""What a transaction does: which tables, which kinds of statements, how many rows. No I/O.

XA: the first phase is a transaction with the rows, and changes nothing yet. The second phase is
another transaction, XA COMMIT or XA ROLLBACK, with only the name of the first. Any number of
transactions, binlogs and days can lie between them. A one-phase commit is an ordinary transaction.
MariaDB (binlog_alter_two_phase) writes START, and COMMIT or ROLLBACK of an ALTER in the same way;
each has its whole text, and the GTID event says which one it is.

Law: it never raises because of the bytes. What cannot be decoded is left out or None; numbers are
right. Large events are read in pieces, so memory is bounded.
"""

import codecs
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Literal, TypeAlias

from binlog2s3.binlog.compression import (
    Sink,
    Zlib,
    decode_payload,
    mariadb_header_size,
    mariadb_size,
    mariadb_text,
)
from binlog2s3.binlog.events import (
    QUERIES,
    Buffer,
    EventType,
    FormatEvent,
    Phase,
    decode_mariadb_alter,
    query_layout,
)
from binlog2s3.binlog.gtid import Flavour
from binlog2s3.binlog.statements import (
    Statement,
    Writing,
    statement_of,
    without_secrets,
    writing_of,
)
from binlog2s3.binlog.tables import (
    ROWS_EVENTS,
    RowCounter,
    RowsEvent,
    Table,
    decode_rows,
    decode_table_map,
    table_id,
)
from binlog2s3.binlog.walk import UNDECODABLE, EventWalk, payload_sink, wanted_types
from binlog2s3.formatting import count_text, cut, some

ChangeKind = Literal["insert", "update", "delete", "ddl", "other"]

TEXT_MOST = 1000
"""Characters of a statement that are kept."""
STATEMENTS_MOST = 100
CHANGES_MOST = 10_000
"""At most so many pairs of kind and table are counted; later ones count for the table ""."""


_XA_PREPARE = Struct("<?III")
_XA_END = re.compile(
    r"XA\s+(COMMIT|ROLLBACK)\s+X'([0-9A-F]*)'\s*,\s*X'([0-9A-F]*)'\s*,\s*(\d{1,10})\s*;?\s*",
    re.IGNORECASE,
)
_XA_BEGINNING = re.compile(r"\s*XA\s+(START|BEGIN|COMMIT|ROLLBACK)\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Xid:
    """The name of an XA transaction."""

    format_id: int
    gtrid: bytes
    bqual: bytes

    def __str__(self) -> str:
        return f"X'{self.gtrid.hex()}',X'{self.bqual.hex()}',{self.format_id}"


@dataclass(frozen=True, slots=True)
class AlterName:
    """The name of an ALTER in two phases: domain and number of the GTID that began it."""

    domain: int
    number: int


@dataclass(frozen=True, slots=True)
class TwoPhase:
    """One phase of an XA transaction, or of an ALTER that MariaDB writes in two phases.

    `name` is None if the name of an XA transaction cannot be decoded.
    """

    phase: Phase
    name: Xid | AlterName | None

    @property
    def is_alter(self) -> bool:
        """Whether it is one of an ALTER."""
        return isinstance(self.name, AlterName)


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One kind of change to one table.

    `table` is in the form of `table_name` ("db.table"), "db.*" for a database, "" if a statement
    does not show it. `rows` is None for statements, and if the rows cannot be counted.
    """

    kind: ChangeKind
    table: str
    rows: int | None = None

    def __str__(self) -> str:
        kind = "" if self.kind == "other" else self.kind
        rows = "" if self.rows is None else f"({count_text(self.rows, 'row')})"
        return " ".join(filter(None, (kind, self.table, rows))) or "other"


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """The changes of a transaction: each pair of kind and table once, in their order.

    `statements` are the first `STATEMENTS_MOST` texts, cut to `TEXT_MOST` characters, without
    passwords: of statements, and of the statements that made rows, if the binlog has them.
    `compressed`: something in it was compressed. `two_phase`: it is one phase of what has two.
    `undone`: part or all of it was rolled back. `lost`: something in it could not be read.
    """

    changes: tuple[Change, ...] = ()
    statements: tuple[str, ...] = ()
    compressed: bool = False
    two_phase: TwoPhase | None = None
    undone: bool = False
    lost: bool = False

    def lines(self, first: Sequence[Change] = ()) -> list[str]:
        """What it does, for people: its changes, those of `first` first, and its statements."""
        changes = [*first, *(change for change in self.changes if change not in first)]
        found = []
        if changes:
            found.append(some(changes, _CHANGES_SHOWN))
            found[0] += " (compressed)" if self.compressed else ""
        shown = self.statements[:_STATEMENTS_SHOWN]
        found += [cut(" ".join(text.split()), _TEXT_SHOWN) for text in shown]
        if more := len(self.statements) - len(shown):
            found.append(f"and {count_text(more, 'statement')} more")
        return found


_NAME = r"(?:`[^`]+`|'[^']*'|\"[^\"]+\"|[\w$]+)"
_KEEPS_TABLES = re.compile(
    r"\s*(?:GRANT|REVOKE"
    r"|(?:(?:CREATE|ALTER|DROP|RENAME)(?:\s+OR\s+REPLACE)?|SET)\s+(?:USER|ROLE|PASSWORD)"
    r"|(?:CREATE(?:\s+OR\s+REPLACE)?|ALTER|DROP)(?:\s+ALGORITHM\s*=\s*\w+)?"
    rf"(?:\s+DEFINER\s*=\s*{_NAME}(?:@{_NAME})?)?(?:\s+SQL\s+SECURITY\s+\w+)?(?:\s+AGGREGATE)?"
    r"\s+(?:VIEW|TRIGGER|PROCEDURE|FUNCTION|EVENT)"
    r"|CREATE\s+(?:DATABASE|SCHEMA|TABLE)\s+IF\s+NOT\s+EXISTS"
    r"|(?:CREATE(?:\s+OR\s+REPLACE)?|DROP)\s+(?:/\*!40005\s+)?TEMPORARY\s+(?:\*/\s+)?TABLE"
    rf"|ALTER\s+(?:DATABASE|SCHEMA)\s+(?:{_NAME}\s+)?(?:DEFAULT\s+)?"
    r"(?:CHARACTER|CHARSET|COLLATE|COMMENT|ENCRYPTION))\b",
    re.IGNORECASE,
)


def keeps_tables(content: Content) -> bool:
    """Whether a transaction changes no table that was there before it, by its statements.

    DDL may name a database or a table, and change accounts, views, routines, triggers, events,
    temporary tables, or the defaults of tables to come only. What is created if it does not exist
    was not there.
    """
    return (
        not content.lost
        and 0 < len(content.statements) < STATEMENTS_MOST
        and all(change.kind == "ddl" for change in content.changes)
        and all(map(_KEEPS_TABLES.match, content.statements))
    )


STATEMENT_MOST = 16 * 1024
"""Bytes of a statement that are parsed by default."""
LOOKED_MOST = 60 * 1024
"""At most so many can be parsed: more may not be in the first part of the event."""
_TABLES_MOST = 1000
_CHANGES_SHOWN, _STATEMENTS_SHOWN, _TEXT_SHOWN = 8, 3, 300

OnStatement: TypeAlias = Callable[[Statement], None]
"""Called for each statement."""
ROW_KINDS: frozenset[ChangeKind] = frozenset({"insert", "update", "delete"})

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
    EventType.PARTIAL_ROW_DATA,
    EventType.MARIADB_GTID,
)


_WANTED_FOR_PHASES = wanted_types(
    EventType.QUERY,
    EventType.QUERY_COMPRESSED,
    EventType.TRANSACTION_PAYLOAD,
    EventType.XA_PREPARE,
    EventType.MARIADB_GTID,
)


class _Counting:
    """Counts the rows of one event, and calls `done` with their number."""

    def __init__(self, counter: RowCounter | None, done: Callable[[int | None], None]) -> None:
        self._counter = counter
        self._done = done

    def feed(self, data: bytes) -> None:
        if self._counter is not None:
            self._counter.feed(data)

    def close(self, *, whole: bool) -> None:
        self._done(self._counter.rows if whole and self._counter is not None else None)


class ContentReader:
    """Reads one transaction: its bytes as they are in the binlog, cut anywhere."""

    def __init__(
        self,
        format_event: FormatEvent,
        /,
        *,
        text_most: int = TEXT_MOST,
        looked_most: int = STATEMENT_MOST,
        on_statement: OnStatement | None = None,
        only_phases: bool = False,
    ) -> None:
        """`format_event`: of the transaction's binlog. `only_phases`: rows are not looked at.

        `text_most` characters of a statement are kept, and `looked_most` bytes of it are parsed,
        at most `LOOKED_MOST`.
        """
        self._text_most = text_most
        self._looked_most = min(looked_most, LOOKED_MOST)
        self._on_statement = on_statement
        self._flavour = format_event.flavour
        self._wanted = _WANTED_FOR_PHASES if only_phases else _WANTED
        self._events = EventWalk(format_event.trailer, self._begin, wanted=self._wanted)
        self._is_lost = False
        self._is_inside = False
        self._compressed = False
        self._two_phase: TwoPhase | None = None
        self._is_undone = False
        self._is_begun = False  # as an XA transaction
        self._statements: list[str] = []
        self._rows: dict[tuple[ChangeKind, str], int | None] = {}
        self._tables: dict[int, Table] = {}
        self._seen: dict[bytes, Table] = {}  # table maps come again and again

    def feed(self, data: Buffer) -> None:
        """Take the next bytes."""
        self._events.feed(data)

    @property
    def two_phase(self) -> TwoPhase | None:
        """The last phase so far of what has two."""
        return self._two_phase

    def content(self) -> Content:
        """The content so far."""
        lost = self._is_lost or not self._events.is_whole
        return Content(
            changes=tuple(
                Change(kind=kind, table=table, rows=None if lost else rows)
                for (kind, table), rows in self._rows.items()
            ),
            statements=tuple(self._statements),
            compressed=self._compressed,
            two_phase=self._two_phase,
            undone=self._is_undone,
            lost=lost,
        )

    def _begin(self, event_type: int, head: bytes, _: int) -> Sink | None:
        """Take an event; returns a sink if the rest of its body is needed."""
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
        elif event_type in QUERIES:
            self._take_statement(event_type, head)
        elif event_type == EventType.XA_PREPARE:
            self._two_phase = decode_xa_prepare(head) or self._two_phase
        elif event_type == EventType.MARIADB_GTID:
            self._two_phase = decode_alter(head) or self._two_phase
        elif event_type == EventType.PARTIAL_ROW_DATA:
            self._take_fragment()
        else:
            self._add(_WITHOUT_TEXT[event_type], "", None)
        return sink

    # statements

    def _take_statement(self, event_type: int, head: bytes) -> None:
        said = statement_text(event_type, head, self._looked_most)
        if said.text == "BEGIN":
            return  # what most of them are
        self._compressed |= event_type == EventType.QUERY_COMPRESSED
        text = said.text
        writing = writing_of(said.status, mysql=self._flavour == "mysql")
        found = said.parsed(writing)
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
        """A statement that changes nothing: the second phase of XA, or a rollback.

        XA COMMIT after XA START in one transaction, as old servers write it, is a plain COMMIT.
        """
        word = xa_word(text)
        if word == "START":
            self._is_begun = True
        elif word and not self._is_begun:
            self._two_phase = xa_end(text)
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
        """A sink that counts the event's rows; it already has those in the first part."""

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

    def _take_fragment(self) -> None:
        """Take a fragment of MariaDB's, of a rows event that is too large for one event.

        Of which kind it is, and of which of the statement's tables, is not decoded.
        """
        for name in {table.name for table in self._tables.values()} or {""}:
            self._add("other", name, None)

    def _add(self, kind: ChangeKind, table: str, rows: int | None) -> None:
        """Add a change. If one number is unknown, the sum is unknown."""
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
        self._compressed |= decode_payload(head)[0]

        def done(whole: bool) -> None:
            self._is_inside = False
            self._is_lost |= not whole

        return payload_sink(head, self._begin, done, wanted=self._wanted)


@dataclass(frozen=True, slots=True)
class StatementText:
    """The fields of a statement's event. `cut`: the text continues."""

    text: str
    cut: bool
    db: str
    status: bytes

    def parsed(self, writing: Writing) -> Statement | None:
        """What it does; None: it changes nothing."""
        return statement_of(self.text, self.db, cut=self.cut, writing=writing)


def statement_text(event_type: int, head: bytes, most: int = STATEMENT_MOST) -> StatementText:
    """The first `most` bytes of a statement; `head` is the beginning of its event's body.

    Raises ValueError.
    """
    status_at, db_at, text_at = query_layout(event_type, head, 0)
    if text_at > len(head):
        raise ValueError("query event too short")
    raw = head[text_at:]
    if event_type == EventType.QUERY_COMPRESSED:
        raw = mariadb_text(raw, most + 1)
    db, _ = _text(head[db_at : text_at - 1], text_at)
    return StatementText(*_text(raw, most), db, head[status_at:db_at])


def statement_in(event_type: int, head: bytes, flavour: Flavour) -> Statement | None:
    """Parse a statement; `head` is the beginning of its event's body. Raises ValueError."""
    said = statement_text(event_type, head)
    return said.parsed(writing_of(said.status, mysql=flavour == "mysql"))


def xa_phase(event_type: int, head: bytes) -> TwoPhase | None:
    """The phase of an XA transaction that a statement or XA_PREPARE event is; None: of none.

    `head` is the beginning of its body. Raises ValueError or struct.error.
    """
    if event_type == EventType.XA_PREPARE:
        return decode_xa_prepare(head)
    text = statement_text(event_type, head).text
    return xa_end(text) if xa_word(text) in ("COMMIT", "ROLLBACK") else None


_WITHOUT_TEXT: dict[int, ChangeKind] = {
    EventType.LOAD: "insert",
    EventType.NEW_LOAD: "insert",
    EventType.INCIDENT: "other",
}


def _text(raw: bytes, most: int) -> tuple[str, bool]:
    """Decode the beginning of a text of unknown charset; returns also whether it was cut."""
    cut = len(raw) > most
    raw = raw[:most]
    try:
        return codecs.getincrementaldecoder("utf-8")().decode(raw, final=not cut), cut
    except UnicodeDecodeError:
        return raw.decode("latin-1"), cut


def decode_xa_prepare(body: bytes) -> TwoPhase | None:
    """Decode the body of an XA_XA_PREPARE event; None: it commits in one phase.

    The body has a byte for that, the format, two lengths, and the names (libbinlogevents
    `XA_prepare_event`). Raises struct.error or ValueError.
    """
    one_phase, format_id, gtrid_size, bqual_size = _XA_PREPARE.unpack_from(body)
    if one_phase:
        return None
    names = body[_XA_PREPARE.size :]
    if gtrid_size + bqual_size > len(names):
        raise ValueError("XA_XA_PREPARE event too short")
    bqual = names[gtrid_size : gtrid_size + bqual_size]
    return TwoPhase("prepare", Xid(format_id, names[:gtrid_size], bqual))


def decode_alter(body: bytes) -> TwoPhase | None:
    """The phase of an ALTER that a MariaDB GTID event announces; None if it is no such one."""
    found = decode_mariadb_alter(body, 0, len(body))
    if found is None:
        return None
    phase, domain, number = found
    return TwoPhase(phase, AlterName(domain, number))


def xa_word(text: str) -> str:
    """START, COMMIT or ROLLBACK, by the kind of an XA statement; otherwise ""."""
    found = _XA_BEGINNING.match(text)
    return found[1].upper().replace("BEGIN", "START") if found else ""


def xa_end(text: str) -> TwoPhase:
    """Parse an XA COMMIT or XA ROLLBACK, as servers write them."""
    phase: Phase = "commit" if xa_word(text) == "COMMIT" else "rollback"
    found = _XA_END.fullmatch(text.strip())
    if found is None or len(found[2]) % 2 or len(found[3]) % 2:
        return TwoPhase(phase, None)
    return TwoPhase(phase, Xid(int(found[4]), bytes.fromhex(found[2]), bytes.fromhex(found[3])))
