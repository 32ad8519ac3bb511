"""Which transactions of a range of binlog are worth a closer look: a quick pass over its bytes.

Place in the flow: `scan` feeds it the blocks of a range, and reads what it leaves with
`binlog.content`. Pure, no I/O. The bytes were proved before, so no event's checksum is computed
here.

Law: no transaction that is looked for falls through; what cannot be told at a glance is left for
the closer look. Only headers are read, and short heads; all else is searched as bytes.

A transaction can only change a table by rows that a TABLE_MAP event comes before, with the table's
name in plain bytes, or by a statement, or in a compressed event. MySQL's GTID event says how long
its transaction is and (flag 1, mysqlbinlog's `rbr_only`) if there may be statements in it.
"""

import re
import struct
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from binlog2s3.binlog.compression import mariadb_text, whole_payload
from binlog2s3.binlog.content import ROW_KINDS
from binlog2s3.binlog.events import HEADER_SIZE, QUERIES, EventType, query_layout
from binlog2s3.binlog.tables import KIND_OF_ROWS
from binlog2s3.inspect.find.match import KINDS_OF_WORD, Criteria, Tables, needles_of

_HEAD = struct.Struct("<4xB4xI")
"""Type and size."""
_FRAMES = (b"\0BEGIN", b"\0COMMIT")
_WORD = re.compile(rb"\s*([A-Za-z]+)\s")
_XA = re.compile(rb"\s*XA\s", re.IGNORECASE)
_TEXT_MOST = 16 * 1024
_PAYLOAD_MOST = 32 << 20
_GTID_LENGTH = HEADER_SIZE + 42 + 7
"""Where the length is in a GTID event of MySQL 8, where the commit time is there once."""
_LEAST_GTID = _GTID_LENGTH + 5

GtidTest = Callable[[int, bytes, int], bool]
"""Whether the event of this type at this offset of these bytes has a GTID that is looked for."""

_SKIP, _MARK, _START, _QUERY, _PAYLOAD, _ROWS = range(6)
_GTID_EVENTS = (
    EventType.GTID,
    EventType.ANONYMOUS_GTID,
    EventType.GTID_TAGGED,
    EventType.MARIADB_GTID,
)
_OLD_LOADS = (EventType.LOAD, EventType.NEW_LOAD)


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterRules:
    """What a sieve looks for, made ready once: what each type of event means, bytes to find.

    `names`: a plain statement that has none of these (in small letters) cannot be meant. `both`:
    rows are meant only where one of the needles and one of the events of rows is. `phases`: of the
    statements only those of XA are meant.
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
        """Whether a transaction without statements needs no look at its events."""
        return not self.phases and not any(self.meaning[kind] for kind in KIND_OF_ROWS)


def rules_for(wanted: Criteria, gtid: GtidTest | None = None) -> FilterRules:
    """What has to be looked at for this."""
    meaning = bytearray(256)
    for kind in _GTID_EVENTS:
        meaning[kind] = _START
    if gtid is not None:  # the transaction's own event says it all
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
    return FilterRules(
        both=both,
        meaning=bytes(meaning),
        needles=needles,
        names=_names_of(wanted.tables),
        kinds=wanted.kinds,
    )


def xa_rules() -> FilterRules:
    """What has to be looked at for both phases of XA transactions."""
    meaning = bytearray(256)
    for kind in _GTID_EVENTS:
        meaning[kind] = _START
    for kind in QUERIES:
        meaning[kind] = _QUERY
    meaning[EventType.TRANSACTION_PAYLOAD] = _PAYLOAD
    meaning[EventType.XA_PREPARE] = _MARK
    return FilterRules(meaning=bytes(meaning), phases=True)


def _names_of(tables: Tables | None) -> tuple[bytes, ...]:
    """The names one of which must stand in a statement about these tables; () if that is not so."""
    if tables is None or any(table == "*" or "`" in db + table for db, table in tables.pairs):
        return ()
    found = tuple(table.casefold() for _, table in tables.pairs)
    return tuple(name.encode() for name in found) if all(map(str.isascii, found)) else ()


@dataclass(slots=True)
class Prefilter:
    """One pass, from `begin` of a binlog on, where no transaction is open.

    `starts` are the offsets of the GTID events, `marks` those of events that make their transaction
    one to be looked at; `named` those of names in bytes, `rows` of events of rows. `lost`: the
    bytes went another way than their headers said. `compressed`: there was something whose size
    tells nothing. `damaged` has ranges that are passed over, by their beginning; each is a mark.
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
    _end: int = 0  # behind the last byte that has come
    _carry: bytes = b""  # of a header that is not whole
    _tail: bytes = b""  # for names that lie across two pieces

    def __post_init__(self) -> None:
        self._next = self._end = self.begin

    @property
    def is_whole(self) -> bool:
        """Whether what has come ends where an event does."""
        return self._next == self._end and not self._carry and not self.lost

    @property
    def found(self) -> list[int]:
        """A place in each transaction that is to be looked at, in order; perhaps several."""
        if not self.rules.both:
            return sorted({*self.marks, *self.named, *self.rows})
        named = {bisect_right(self.starts, one) for one in self.named}
        rows = [one for one in self.rows if bisect_right(self.starts, one) in named]
        return sorted({*self.marks, *rows})

    def feed(self, data: bytes) -> None:
        """The next bytes, cut anywhere."""
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

    def _walk(self, data: bytes, base: int, at: int) -> int:  # noqa: C901 - the hot loop
        """From event to event; where the next one begins that is not whole, or not there."""
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
                    if event_type > 165:
                        self.compressed = True
                elif what == _MARK:
                    self.marks.append(base + at)
                else:
                    self._look(event_type, data, base, at, size)
            at += size
        return at

    def _test(self, event_type: int, data: bytes, base: int, at: int, size: int) -> None:
        """A GTID event that is cut is looked at later."""
        assert self.rules.gtid is not None  # noqa: S101 - the caller has seen it
        if at + size > len(data) or self.rules.gtid(event_type, data, at):
            self.marks.append(base + at)

    def _look(self, event_type: int, data: bytes, base: int, at: int, size: int) -> None:
        """A statement or a compressed transaction: marked unless it is none that is meant."""
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
        """Whether a statement, whose body is this, can be one that is looked for."""
        _, _, text_at = query_layout(event_type, data, at)
        if event_type == EventType.QUERY:
            if end - text_at <= 6 and data[text_at - 1 : end] in _FRAMES:
                return False
            raw = data[text_at:end]
            self.compressed |= _XA.match(raw) is not None  # it may stand for rows elsewhere
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
    """Bytes of MySQL's transaction that begins there, if it has nothing but rows; else 0."""
    behind = at + size
    if size < _LEAST_GTID or behind + 5 > len(data):
        return 0
    if data[at + HEADER_SIZE] & 1 or data[behind + 4] != 2:  # statements, or compressed
        return 0
    place = at + _GTID_LENGTH
    if data[place - 1] & 0x80:  # another commit time follows
        place += 7
    length = data[place]
    if length < 251:
        return 0  # with a GTID event and a BEGIN there is no such one
    if length == 252:
        length = data[place + 1] | data[place + 2] << 8
    elif length == 253:
        length = int.from_bytes(data[place + 1 : place + 4], "little")
    else:
        length = int.from_bytes(data[place + 1 : place + 9], "little")
    return length if length > size else 0


def _may_be_meant(raw: bytes, rules: FilterRules) -> bool:
    """Plain INSERTs, UPDATEs and DELETEs are told by their first word and the names in them."""
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


@dataclass(frozen=True, slots=True)
class Region:
    """Bytes [begin, end) that begin with a transaction and end where one does.

    `transactions`: how many there are; 0 where that is not known.
    """

    begin: int
    end: int
    transactions: int


def regions(starts: Sequence[int], found: Sequence[int], begin: int, end: int) -> list[Region]:
    """Where the transactions lie that are to be looked at; neighbours are one region.

    All is one where a place comes before the first start, as with servers without GTID events.
    """
    if not found:
        return []
    if not starts or found[0] < starts[0]:
        return [Region(begin, end, 0)]
    bounds = [*starts, end]
    chosen: list[Region] = []
    behind = -1
    for place in found:
        if place < behind:
            continue
        number = bisect_right(starts, place) - 1
        one = Region(bounds[number], bounds[number + 1], 1)
        behind = one.end
        if chosen and chosen[-1].end == one.begin:
            last = chosen.pop()
            one = Region(last.begin, one.end, last.transactions + 1)
        chosen.append(one)
    return chosen
