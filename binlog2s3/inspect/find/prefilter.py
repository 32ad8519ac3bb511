"""A fast pass over a span's bytes: which transactions have to be read. Pure, no I/O.

Law: no transaction that matches is skipped; what cannot be decided here is left for reading. Only
event headers and a few short heads are decoded; all else is searched as bytes. The bytes were
verified before, so no checksums are computed.

It does not use `binlog.walk`: it skips whole transactions by the length in their GTID event, and
needs offsets instead of bytes. So it looks at 2 to 4 million events per second, several times as
many as can be handed on one by one.

A transaction can change a table only by row events, which follow a TABLE_MAP event with the table's
name in plain bytes, by a statement, or in a compressed event. MySQL's GTID event has the length of
its transaction, and a flag (1, mysqlbinlog's `rbr_only`) that says whether it may have statements.
"""

import re
import struct
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from binlog2s3.binlog.compression import mariadb_text, whole_payload
from binlog2s3.binlog.content import ROW_KINDS
from binlog2s3.binlog.events import (
    HEADER_SIZE,
    QUERIES,
    EventType,
    decode_mariadb_alter,
    query_layout,
)
from binlog2s3.binlog.tables import COMPRESSED_ROWS, KIND_OF_ROWS
from binlog2s3.inspect.find.match import KINDS_OF_WORD, Criteria, Tables, needles_of

_HEAD = struct.Struct("<4xB4xI")
"""An event's type and size."""
_FRAMES = (b"\0BEGIN", b"\0COMMIT")
_WORD = re.compile(rb"\s*([A-Za-z]+)\s")
_XA = re.compile(rb"\s*XA\s", re.IGNORECASE)
_TEXT_MOST = 16 * 1024
_PAYLOAD_MOST = 32 << 20
_GTID_LENGTH = HEADER_SIZE + 42 + 7
"""Offset of the transaction length in a GTID event of MySQL 8 with one commit time."""
_LEAST_GTID = _GTID_LENGTH + 5

GtidTest = Callable[[int, bytes, int], bool]
"""Whether the event of this type, at this offset of these bytes, may have a wanted GTID."""

_SKIP, _MARK, _START, _QUERY, _PAYLOAD, _ROWS, _PACKED_ROWS = range(7)
_GTID_EVENTS = (
    EventType.GTID,
    EventType.ANONYMOUS_GTID,
    EventType.GTID_TAGGED,
    EventType.MARIADB_GTID,
)
_OLD_LOADS = (EventType.LOAD, EventType.NEW_LOAD)


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterRules:
    """What a prefilter looks for: the meaning of each event type, and bytes to find.

    `names`: a plain statement without any of these (in lower case) cannot match. `both`: row
    changes match only if both a needle and a matching row event are there. `phases`: of the
    statements, only those of XA match. `gtid`: GTID events for which it is true match.
    """

    meaning: bytes
    needles: tuple[bytes, ...] = ()
    names: tuple[bytes, ...] = ()
    kinds: frozenset[str] = frozenset()
    gtid: GtidTest | None = None
    both: bool = False
    phases: bool = False

    @property
    def jumps(self) -> bool:
        """Whether the events of a transaction without statements can be skipped."""
        return not self.phases and not any(self.meaning[kind] == _ROWS for kind in KIND_OF_ROWS)


def rules_for(wanted: Criteria, gtid: GtidTest | None = None) -> FilterRules:
    meaning = bytearray(256)
    for kind in _GTID_EVENTS:
        meaning[kind] = _START
    if gtid is not None:  # the GTID event alone decides
        return FilterRules(meaning=bytes(meaning), gtid=gtid)
    for kind in QUERIES:
        meaning[kind] = _QUERY
    meaning[EventType.TRANSACTION_PAYLOAD] = _PAYLOAD
    if wanted.has_kind("insert"):
        for kind in _OLD_LOADS:
            meaning[kind] = _MARK
    meaning[EventType.INCIDENT] = _MARK
    needles: tuple[bytes, ...] = ()
    row_kinds = {kind for kind in KIND_OF_ROWS.values() if wanted.has_kind(kind)}
    if wanted.tables is not None and row_kinds:
        needles = needles_of(wanted.tables)
    both = bool(needles) and len(row_kinds) < len(ROW_KINDS)
    if both or wanted.tables is None:
        for event_type, rows_kind in KIND_OF_ROWS.items():
            if rows_kind in row_kinds:
                meaning[event_type] = _ROWS
        if row_kinds:
            meaning[EventType.PARTIAL_ROW_DATA] = _ROWS
    for event_type in KIND_OF_ROWS:
        if event_type in COMPRESSED_ROWS and not meaning[event_type]:
            meaning[event_type] = _PACKED_ROWS
    return FilterRules(
        both=both,
        meaning=bytes(meaning),
        needles=needles,
        names=_names_of(wanted.tables),
        kinds=wanted.kinds,
    )


def phase_rules() -> FilterRules:
    """The rules that find both phases of XA transactions, and of ALTERs that have two."""
    meaning = bytearray(256)
    for kind in _GTID_EVENTS:
        meaning[kind] = _START
    for kind in QUERIES:
        meaning[kind] = _QUERY
    meaning[EventType.TRANSACTION_PAYLOAD] = _PAYLOAD
    meaning[EventType.XA_PREPARE] = _MARK
    return FilterRules(meaning=bytes(meaning), phases=True, gtid=_is_of_alter)


def _is_of_alter(event_type: int, data: bytes, at: int) -> bool:
    """Whether the GTID event at this offset announces a phase of an ALTER."""
    if event_type != EventType.MARIADB_GTID:
        return False
    end = at + _HEAD.unpack_from(data, at)[1]
    return decode_mariadb_alter(data, at + HEADER_SIZE, end) is not None


def _names_of(tables: Tables | None) -> tuple[bytes, ...]:
    """Names of which a statement about these tables must have one; () if that does not hold."""
    if tables is None or any(
        table == "*" or not {"`", '"'}.isdisjoint(db + table) for db, table in tables.pairs
    ):
        return ()
    found = tuple(table.casefold() for _, table in tables.pairs)
    return tuple(name.encode() for name in found) if all(map(str.isascii, found)) else ()


@dataclass(slots=True)
class Prefilter:
    """One pass, from `begin` of a binlog, where no transaction is open.

    `starts` are the offsets of GTID events. `marks` are offsets of events whose transaction must be
    read. `named` are offsets of table names, `rows` of row events. `lost`: the bytes do not follow
    the headers. `compressed`: something has a size that says nothing about its content. `damaged`
    has ranges to skip, by where they begin; each is a mark.
    """

    rules: FilterRules
    begin: int
    trailer: int
    damaged: Mapping[int, int] = field(default_factory=dict)
    starts: list[int] = field(default_factory=list)
    marks: list[int] = field(default_factory=list)
    named: list[int] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    compressed: bool = False
    lost: bool = False
    _next: int = 0  # where the next event begins
    _end: int = 0  # after the last byte fed
    _carry: bytes = b""  # an incomplete header
    _tail: bytes = b""  # for names that two pieces share

    def __post_init__(self) -> None:
        self._next = self._end = self.begin

    @property
    def is_whole(self) -> bool:
        """Whether the bytes fed so far end where an event ends."""
        return self._next == self._end and not self._carry and not self.lost

    @property
    def found(self) -> list[int]:
        """At least one offset in each transaction that must be read, in order."""
        if not self.rules.both:
            return sorted({*self.marks, *self.named, *self.rows})
        named = {bisect_right(self.starts, offset) for offset in self.named}
        rows = [offset for offset in self.rows if bisect_right(self.starts, offset) in named]
        return sorted({*self.marks, *rows})

    def feed(self, data: bytes) -> None:
        """Take the next bytes, cut anywhere."""
        base = self._end
        self._end += len(data)
        self._find_names(data, base)
        if self._carry:
            data, base = self._carry + data, base - len(self._carry)
            self._carry = b""
        if not self.lost and self._next < self._end:
            at = self._walk(data, base, self._next - base)
            self._next = base + at
            self._carry = data[at:]

    def _find_names(self, data: bytes, base: int) -> None:
        if not self.rules.needles:
            return
        most = max(map(len, self.rules.needles)) - 1
        for needle in self.rules.needles:
            joint = self._tail + data[: len(needle) - 1]
            if needle in joint:
                self.named.append(base - 1)
            at = data.find(needle)
            while at >= 0:
                self.named.append(base + at)
                at = data.find(needle, at + 1)
        self._tail = (self._tail + data)[-most:] if len(data) < most else data[-most:]

    def _walk(self, data: bytes, base: int, at: int) -> int:
        """Go from event to event; returns where the next event begins that is not complete."""
        unpack, meaning, last = _HEAD.unpack_from, self.rules.meaning, len(data) - HEADER_SIZE
        jumps, damaged, starts = self.rules.jumps and not self.damaged, self.damaged, self.starts
        tests = self.rules.gtid is not None
        while at <= last:
            event_type, size = unpack(data, at)
            if size < HEADER_SIZE:
                self.lost = True
                return len(data)
            what = meaning[event_type]
            if damaged and base + at in damaged:
                self.marks.append(base + at)
                at = damaged[base + at] - base
                continue
            if what:
                if what == _START:
                    starts.append(base + at)
                    if tests:
                        self._test(event_type, data, base, at, size)
                    if jumps and event_type == 33 and (length := _plain_length(data, at, size)):
                        at += length
                        continue
                elif what == _ROWS:
                    self.rows.append(base + at)
                    self.compressed |= event_type in COMPRESSED_ROWS
                elif what == _PACKED_ROWS:
                    self.compressed = True
                elif what == _MARK:
                    self.marks.append(base + at)
                else:
                    self._look(event_type, data, base, at, size)
            at += size
        return at

    def _test(self, event_type: int, data: bytes, base: int, at: int, size: int) -> None:
        """Mark a GTID event that is wanted, or that is cut."""
        assert self.rules.gtid is not None  # noqa: S101 - the caller has seen it
        if at + size > len(data) or self.rules.gtid(event_type, data, at):
            self.marks.append(base + at)

    def _look(self, event_type: int, data: bytes, base: int, at: int, size: int) -> None:
        """Mark a statement or a compressed transaction, unless it cannot match."""
        end = at + size - self.trailer
        if end > len(data):
            self.compressed = True
            self.marks.append(base + at)
        elif event_type == EventType.TRANSACTION_PAYLOAD:
            self.compressed = True
            if self._is_meant_inside(data[at + HEADER_SIZE : end]):
                self.marks.append(base + at)
        elif self._is_meant(event_type, data, at + HEADER_SIZE, end):
            self.marks.append(base + at)

    def _is_meant_inside(self, body: bytes) -> bool:
        try:
            events = whole_payload(body, _PAYLOAD_MOST)
        except ValueError:
            return True
        if events is None:
            return True
        inside = Prefilter(self.rules, 0, 0)
        inside.feed(events)
        return bool(inside.found) or not inside.is_whole

    def _is_meant(self, event_type: int, data: bytes, at: int, end: int) -> bool:
        """Whether the statement with this body can match."""
        _, _, text_at = query_layout(event_type, data, at)
        if event_type == EventType.QUERY:
            if end - text_at <= 6 and data[text_at - 1 : end] in _FRAMES:
                return False
            raw = data[text_at:end]
            self.compressed |= _XA.match(raw) is not None  # the rows may be elsewhere
        elif event_type == EventType.EXECUTE_LOAD_QUERY:
            raw = data[text_at:end]
        else:
            self.compressed = True
            try:
                raw = mariadb_text(data[text_at:end], _TEXT_MOST)
            except (ValueError, IndexError):
                return True
            if len(raw) >= _TEXT_MOST:
                return True
        return _may_be_meant(raw, self.rules)


def _plain_length(data: bytes, at: int, size: int) -> int:
    """Bytes of the MySQL transaction that begins here, if it has only row events; else 0."""
    behind = at + size
    if size < _LEAST_GTID or behind + 5 > len(data):
        return 0
    if data[at + HEADER_SIZE] & 1 or data[behind + 4] != 2:  # has statements, or is compressed
        return 0
    place = at + _GTID_LENGTH
    if data[place - 1] & 0x80:  # a second commit time follows
        place += 7
    length = data[place]
    if length < 251:
        return 0  # too short for a GTID event and a BEGIN
    if length == 252:
        length = data[place + 1] | data[place + 2] << 8
    elif length == 253:
        length = int.from_bytes(data[place + 1 : place + 4], "little")
    else:
        length = int.from_bytes(data[place + 1 : place + 9], "little")
    return length if length > size else 0


def _may_be_meant(raw: bytes, rules: FilterRules) -> bool:
    """Whether a statement can match: by its first word and its names, if it is plain DML."""
    if rules.phases:
        return _XA.match(raw) is not None
    word = _WORD.match(raw)
    kinds = KINDS_OF_WORD.get(word[1].upper()) if word else None
    if kinds is None:
        return True
    small = raw.lower()
    if rules.kinds and not any(rules.kinds & kind and other in small for other, kind in kinds):
        return False
    return not rules.names or any(name in small for name in rules.names)


def ranges_to_read(
    starts: Sequence[int], found: Sequence[int], begin: int, end: int
) -> list[range]:
    """The bytes of the transactions that must be read; neighbours are one range.

    If an offset comes before the first start, as with servers without GTID events, it is all.
    """
    if not found:
        return []
    if not starts or found[0] < starts[0]:
        return [range(begin, end)]
    bounds = [*starts, end]
    chosen: list[range] = []
    for offset in found:
        if chosen and offset < chosen[-1].stop:
            continue
        number = bisect_right(starts, offset) - 1
        begin, end = bounds[number], bounds[number + 1]
        if chosen and chosen[-1].stop == begin:
            begin = chosen.pop().start
        chosen.append(range(begin, end))
    return chosen
