"""What to search for, whether a transaction matches, and what was found. Pure.

Law: if it cannot be decided whether a transaction matches, it is a match that is not certain.
"""

import struct
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Literal
from uuid import UUID

from binlog2s3.archive.facts import BinlogId, Facts, added_gtids
from binlog2s3.binlog.content import ROW_KINDS, Change, Content, TwoPhase
from binlog2s3.binlog.events import HEADER_SIZE, EventType
from binlog2s3.binlog.executed import ExactGtids
from binlog2s3.binlog.gtid import Flavour, GtidSet, Interval, mariadb_gtid
from binlog2s3.binlog.names import FilePosition
from binlog2s3.binlog.scanner import Transaction
from binlog2s3.binlog.statements import UPKEEP, Statement
from binlog2s3.binlog.tables import database_name, table_name
from binlog2s3.recover.model import Shown

_ANY = frozenset({"insert", "update", "delete", "ddl", "drop", "other"})
_CALLS = frozenset({"SELECT", "WITH", "DO", "CALL", "VALUES", "(", "EXECUTE", "PREPARE"})
"""Statements that may change any row, by a function that they call."""


@dataclass(frozen=True, slots=True)
class Tables:
    """The tables to look for, as (database, table); the table "*" means the whole database."""

    pairs: tuple[tuple[str, str], ...]

    @property
    def names(self) -> tuple[str, ...]:
        """As text: "db.table", or "db.*" for a whole database."""
        return tuple(_name(*pair) for pair in self.pairs)

    def has(self, name: str) -> bool:
        """Whether a change's "db.table", or "db.*" for a whole database, is among them."""
        return any(_covers(pair, name) for pair in self.pairs)

    def has_small(self, name: str) -> bool:
        """Like `has`, for a server that keeps all names in lower case."""
        return any(_covers((db.lower(), table.lower()), name) for db, table in self.pairs)

    def may_have(self, name: str) -> bool:
        """Like `has`, ignoring case."""
        folded = name.casefold()
        return any(_covers((db.casefold(), t.casefold()), folded) for db, t in self.pairs)


def _name(db: str, table: str) -> str:
    return database_name(db) if table == "*" else table_name(db, table)


def _covers(pair: tuple[str, str], name: str) -> bool:
    whole = database_name(pair[0])
    if pair[1] == "*":
        return name.startswith(whole[:-1])
    return name in (table_name(*pair), whole)


@dataclass(frozen=True, slots=True, kw_only=True)
class Criteria:
    """What a transaction must do to match. `tables` None, no `kinds`: anything.

    `dropped_keys`: DDL that drops a foreign key of any table matches too, but not for sure: it does
    not say which table the key referred to.
    """

    tables: Tables | None = None
    kinds: frozenset[str] = frozenset()
    min_rows: int = 0
    dropped_keys: bool = False

    @property
    def is_any(self) -> bool:
        """Whether every transaction matches."""
        return self.tables is None and not self.kinds and not self.min_rows

    @property
    def has_rows(self) -> bool:
        """Whether row changes can match."""
        return not self.kinds or not self.kinds.isdisjoint(ROW_KINDS)

    def has_rows_of(self, kind: str, table: str) -> bool:
        """Whether rows of this kind, of this table, match."""
        return self.has_kind(kind) and (self.tables is None or self.tables.has(table))

    def has_kind(self, kind: str) -> bool:
        """Whether changes of this kind can match."""
        return not self.kinds or kind in self.kinds


@dataclass(frozen=True, slots=True)
class Match:
    """The result for one transaction. `matched` are the changes that match, as far as known."""

    found: bool
    certain: bool = True
    matched: tuple[Change, ...] = ()


_NO = Match(found=False)


@dataclass(slots=True)
class Matcher:
    """Decides about one transaction: `take` each of its statements, then `match` its content."""

    wanted: Criteria
    maybe: set[str] = field(default_factory=set)
    told: set[str] = field(default_factory=set)
    dropped: set[str] = field(default_factory=set)

    def take(self, statement: Statement) -> None:
        if "" in statement.tables:
            self.told.add(statement.kind)
        if statement.word == "DROP" and "drop" in statement.also:
            self.dropped.update(statement.tables)
        kinds = kinds_of(statement) & (self.wanted.kinds or _ANY)
        if (kinds and may_be_about(statement, self.wanted.tables)) or (
            self.wanted.dropped_keys and drops_foreign_key(statement)
        ):
            self.maybe |= kinds

    def match(self, content: Content) -> Match:
        """Whether the transaction matches, by its content.

        What was rolled back is not certain. What could not be read may be anything.
        """
        found = self._match(content)
        if content.lost or (content.undone and found.found):
            return replace(found, found=True, certain=False)
        return found

    def _match(self, content: Content) -> Match:
        wanted = self.wanted
        if wanted.is_any:
            return Match(found=True, matched=content.changes)
        matched = tuple(change for change in content.changes if self._matches(change))
        unknown = {
            change.kind
            for change in content.changes
            if not change.table and change.kind not in self.told
        }
        maybe = self.maybe | {kind for kind in unknown if self._may_be(kind)}
        maybe |= {change.kind for change in content.changes if self._matches_small(change)}
        maybe |= {change.kind for change in content.changes if self._may_have_rows(change)}
        if wanted.min_rows:
            return self._by_rows(matched, maybe)
        if matched:
            return Match(found=True, matched=matched)
        return Match(found=True, certain=False) if maybe else _NO

    def _matches(self, change: Change) -> bool:
        wanted = self.wanted
        is_drop = change.kind == "ddl" and change.table in self.dropped and wanted.has_kind("drop")
        if not wanted.has_kind(change.kind) and not is_drop:
            return False
        if wanted.tables is None:
            return True
        if change.kind == "other":
            return False
        return bool(change.table) and wanted.tables.has(change.table)

    def _may_have_rows(self, change: Change) -> bool:
        """Whether rows of an unknown kind, of one of several tables, may be wanted ones."""
        tables = self.wanted.tables
        if change.kind != "other" or not change.table or not self.wanted.has_rows:
            return False
        return tables is None or tables.may_have(change.table)

    def _matches_small(self, change: Change) -> bool:
        tables = self.wanted.tables
        return (
            tables is not None
            and self.wanted.has_kind(change.kind)
            and not tables.has(change.table)
            and tables.has_small(change.table)
        )

    def _may_be(self, kind: str) -> bool:
        return kind == "other" or self.wanted.has_kind(kind)

    def _by_rows(self, matched: tuple[Change, ...], maybe: set[str]) -> Match:
        counted = tuple(change for change in matched if change.kind in ROW_KINDS)
        rows = sum(change.rows or 0 for change in counted)
        if rows >= self.wanted.min_rows:
            return Match(found=True, matched=counted)
        if any(change.rows is None for change in counted) or maybe - {"ddl", "drop"}:
            return Match(found=True, certain=False, matched=counted)
        return _NO


def kinds_of(statement: Statement) -> frozenset[str]:
    """The kinds of change that a statement may make, as far as its text shows."""
    if statement.kind != "other":
        return frozenset({statement.kind, *statement.also})
    if statement.word in UPKEEP:
        return frozenset({"other"})
    return (ROW_KINDS | {"other"}) if statement.word in _CALLS else _ANY


def may_be_about(statement: Statement, tables: Tables | None) -> bool:
    """Whether a statement may concern these tables."""
    if tables is None or any(tables.may_have(name) for name in statement.tables if name):
        return True
    if not statement.clear.text.isascii() and not all(map(str.isascii, tables.names)):
        return True  # in another character set, names look different
    if statement.whole:
        return False
    if statement.clear.cut or statement.word in _CALLS:
        return True
    return _mentions(statement, tables)


def drops_foreign_key(statement: Statement) -> bool:
    """Whether an ALTER TABLE may drop a foreign key; CONSTRAINT may mean other ones, too.

    Another engine drops them all (MariaDB).
    """
    return statement.word == "ALTER" and any(
        (word == "DROP" and other in ("FOREIGN", "CONSTRAINT"))
        or (word == "ENGINE" and other != "INNODB")
        for word, other in pairwise([*statement.clear.keywords(), ""])
    )


def _mentions(statement: Statement, tables: Tables) -> bool:
    """Whether a statement contains the name of one of these tables or databases."""
    names = [name.casefold() for name in statement.clear.names()]
    db = statement.db.casefold()
    return any(
        _mentions_one(names, db, wanted_db.casefold(), table.casefold())
        for wanted_db, table in tables.pairs
    )


def _mentions_one(names: list[str], db: str, wanted_db: str, table: str) -> bool:
    """Whether a table is among these names. Names without a database use the statement's."""
    if table == "*":
        return db == wanted_db or wanted_db in names
    for at, name in enumerate(names):
        if name == table:
            qualified = at > 1 and names[at - 1] == "."
            if (names[at - 2] if qualified else db) == wanted_db:
                return True
        elif name == wanted_db and names[at + 1 : at + 3] == [".", "*"]:
            return True
    return False


def needles_of(tables: Tables) -> tuple[bytes, ...]:
    """The bytes that every TABLE_MAP event of these tables contains: lengths, names and zeros.

    Names as given, and in lower case, because servers may keep them in lower case.
    """
    found: dict[bytes, None] = {}
    for db, table in tables.pairs:
        for db_name, other in ((db, table), (db.lower(), table.lower())):
            needle = _packed_name(db_name) + (b"" if table == "*" else _packed_name(other))
            found[needle] = None
    return tuple(found)


def _packed_name(name: str) -> bytes:
    raw = name.encode()
    return bytes([min(len(raw), 255)]) + raw + b"\0"


KINDS_OF_WORD: Mapping[bytes, tuple[tuple[bytes, frozenset[str]], ...]] = {
    b"INSERT": ((b"", frozenset({"insert"})), (b"duplicate", frozenset({"update"}))),
    b"REPLACE": ((b"", frozenset({"insert", "delete"})),),
    b"UPDATE": ((b"", frozenset({"update"})), (b"portion", frozenset({"insert"}))),
    b"DELETE": ((b"", frozenset({"delete"})), (b"portion", frozenset({"insert", "update"}))),
}
"""The kinds that a statement can have: by its first word, and by words in it, in lower case."""


_MYSQL = struct.Struct("<x16sq")
_MARIADB = struct.Struct("<QI")
_SERVER = struct.Struct("<5xI")


class WantedGtids:
    """GTIDs to look for, of one flavour, in events too. Raises RecoveryError as `ExactGtids.parse`.

    `count`: how many transactions can have one; -1 of MariaDB, where a GTID may have been used
    twice.
    """

    def __init__(self, texts: tuple[str, ...], flavour: Flavour) -> None:
        exact = ExactGtids.parse(texts, flavour, "--gtid")
        runs = list(exact.mysql.runs())
        self._runs = {UUID(uuid).bytes: intervals for uuid, tag, intervals in runs if not tag}
        self._has_tags = any(tag for _, tag, _ in runs)
        self._single = set(map(mariadb_gtid, exact.mariadb))
        self._exact = exact
        self.count = exact.mysql.count if flavour == "mysql" else -1

    def in_event(self, event_type: int, data: bytes, at: int) -> bool:
        """Whether the GTID event at this offset may be one of them."""
        if event_type == EventType.GTID:
            uuid, gno = _MYSQL.unpack_from(data, at + HEADER_SIZE)
            return _within(self._runs.get(uuid, ()), gno)
        if event_type == EventType.GTID_TAGGED:
            return self._has_tags
        if event_type == EventType.MARIADB_GTID:
            number, domain = _MARIADB.unpack_from(data, at + HEADER_SIZE)
            return (domain, _SERVER.unpack_from(data, at)[0], number) in self._single
        return False

    def has(self, gtid: str) -> bool:
        """Whether this GTID, in the scanner's form, is among them."""
        return self._exact.has(gtid)

    def touches(self, known: Facts) -> bool:
        """Whether any of them can be in this binlog."""
        added = known.gtids_added
        if isinstance(added, GtidSet):
            return bool(added & self._exact.mysql)
        of_mariadb = added_gtids(known)
        return any(of_mariadb.may_have(gtid) for gtid in self._single)


def _within(runs: tuple[Interval, ...], number: int) -> bool:
    at = bisect_right(runs, (number, 2**64)) - 1
    return at >= 0 and number <= runs[at][1]


_SECOND_US = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchQuery:
    """What to search for, and where.

    Times are in microseconds, UTC, both included. `gtids` are texts of either flavour. `at`: only
    the transaction with this byte. `since`: only binlogs of the history from this one of a lineage
    on, and what is missing before it does not matter; `until`: up to this one. `lineage`: search
    the history that ends in it, None: the current one; `everywhere`: search every lineage as a
    whole.
    """

    wanted: Criteria
    since_us: int | None = None
    until_us: int | None = None
    gtids: tuple[str, ...] = ()
    at: FilePosition | None = None
    since: BinlogId | None = None
    until: BinlogId | None = None
    order: Literal["newest", "oldest"] = "newest"
    limit: int = 0
    lineage: str | None = None
    everywhere: bool = False

    def is_at(self, begin: int, end: int) -> bool:
        """Whether what has these bytes of a binlog may match."""
        return self.at is None or begin <= self.at.offset < end

    def in_time(self, least_us: int, greatest_us: int, *, exact: bool) -> bool:
        """Whether a commit between these times may match; not `exact`: seconds, rounded down."""
        if not exact:
            greatest_us += _SECOND_US - 1
        return (self.since_us is None or greatest_us >= self.since_us) and (
            self.until_us is None or least_us <= self.until_us
        )


@dataclass(frozen=True, slots=True)
class FoundPhase:
    """One phase of what has two, and the binlog that it is in."""

    known: Facts
    transaction: Transaction
    two_phase: TwoPhase


@dataclass(frozen=True, slots=True)
class PhaseLink:
    """One phase of what has two, the other one if it was found, and the state that follows."""

    two_phase: TwoPhase
    state: Literal["prepared", "committed", "rolled back"]
    other: FoundPhase | None = None

    @property
    def is_settled(self) -> bool:
        """Whether both phases are known, and it was committed."""
        return self.state == "committed" and self.other is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit(Shown):
    """A transaction that was found, and how certain the match is.

    For an XA COMMIT, the content is that of the prepared transaction, if it was found.
    """

    match: Match
    link: PhaseLink | None = None


@dataclass(slots=True)
class SearchStats:
    """The progress and the outcome of a search. `size` of `of_size` bytes are done.

    `left_out`: binlogs that did not have to be read; `unreadable`: those that could not be, as
    warnings say. `ended_early`: the limit was reached.
    `covered_us`: everything committed until then is in the bucket, None: not known. `streamer`:
    when the streamer last reported, in words; `is_silent`: it does not report any more.
    """

    binlogs: int = 0
    size: int = 0
    left_out: int = 0
    unreadable: int = 0
    of_size: int = 0
    lineages: tuple[str, ...] = ()
    ended_early: bool = False
    covered_us: int | None = None
    streamer: str = ""
    is_silent: bool = False
