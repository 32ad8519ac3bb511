"""What an undo takes from the archive: the transactions, their changes, and what came after them.

Law: what could not be searched or read is refused, never passed over: it may have changed the same
rows.
"""

import tempfile
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import BinaryIO, cast

from binlog2s3.archive.facts import Facts
from binlog2s3.binlog.content import ROW_KINDS, ChangeKind, keeps_tables
from binlog2s3.binlog.events import decode_format
from binlog2s3.binlog.gtid import GtidSet
from binlog2s3.binlog.names import BinlogName, FilePosition
from binlog2s3.binlog.undo import (
    TURNED,
    Changes,
    TransactionReader,
    fingerprint,
    split_rows,
    with_checksums,
)
from binlog2s3.config.points import parse_gtids
from binlog2s3.config.undo import UndoConfig
from binlog2s3.errors import ArchiveError, RecoveryError
from binlog2s3.inspect.find.match import Criteria, Hit, SearchQuery, Tables
from binlog2s3.inspect.find.scan import TransactionSearch
from binlog2s3.output import clean
from binlog2s3.recover.snapshot import Snapshot
from binlog2s3.undo.execute import Conflict

TRANSACTIONS_MOST = 10_000
LATER_MOST = 10_000
"""So many later transactions of the tables are searched for the one that changed a row."""
_READ_TIMES, _READ_LEAST = 20, 16 << 20
"""So many times the size of what is undone, at least so many bytes, is read to find out whether it
was undone already."""


@dataclass(slots=True)
class Culprits:
    """Later transactions: which changed a row; which has undone all ("": none)."""

    by_row: dict[tuple[str, bytes], str] = field(default_factory=dict)
    undo: str = ""


class TransactionSource:
    """The transactions that the operator names, in one bucket."""

    def __init__(
        self,
        config: UndoConfig,
        *,
        advance: Callable[[str, int, int], None] = lambda *_: None,
    ) -> None:
        """`advance` gets what is done, in words, and how many bytes of how many."""
        self._config = config
        self._advance = advance
        self.wanted = Tables(config.tables) if config.tables else None
        self._last_head: tuple[tuple[str, BinlogName, int], bytes] | None = None

    def searched(self, snapshot: Snapshot, query: SearchQuery) -> Iterator[Hit]:
        """Search; what could not be searched is refused at the end."""
        warnings: list[str] = []
        search = TransactionSearch(
            snapshot,
            query,
            threads=self._config.s3.concurrency,
            warn=warnings.append,
            advance=lambda stats: self._advance("searched", stats.size, stats.of_size),
        )
        with closing(search.hits()) as hits:
            yield from hits
        if warnings:
            raise ArchiveError(
                f"not everything could be searched: {warnings[0]}",
                hint="`binlog2s3 verify` checks the archive; what came after a transaction must be "
                "known before it is undone",
            )

    def found(self, snapshot: Snapshot) -> list[Hit]:
        """The transactions, oldest first. Raises ArchiveError if one is not there."""
        config = self._config
        ends = tuple(filter(None, (config.from_gtid, config.to_gtid)))
        hits = self._named(snapshot, ends or config.gtids)
        if ends:
            hits = self._stretch(snapshot, hits)
        concerned = [hit for hit in hits if self._concerns(hit)]
        if not concerned:
            which = "of the stretch " if ends else ""
            raise RecoveryError(f"none of these transactions {which}changes rows of these tables")
        return concerned

    def _named(self, snapshot: Snapshot, gtids: tuple[str, ...]) -> list[Hit]:
        """The transactions with these GTIDs, or the one that --at names, oldest first."""
        at = self._config.at
        query = SearchQuery(wanted=Criteria(), gtids=gtids, at=at, order="oldest")
        hits: list[Hit] = []
        try:
            for hit in self._few(self.searched(snapshot, query)):
                hits.append(hit)  # noqa: PERF402 - those before an error count
        except ArchiveError:
            if not hits or _missing(gtids, hits):
                raise
        what = f"at {at}" if at else _missing(gtids, hits)
        if not hits or (what and at is None):
            raise ArchiveError(
                f"no transaction {what} was found in the bucket",
                hint="`binlog2s3 find` shows GTIDs and positions",
            )
        if at is not None:
            return [_the_one_at(at, hits)]
        names = [hit.transaction.gtid for hit in hits if hit.transaction.gtid]
        if len(names) != len({*names}):
            raise RecoveryError(
                "a GTID of them was given twice, to different transactions",
                hint="--at names one of them; `binlog2s3 find` shows where they begin",
            )
        return hits

    def _stretch(self, snapshot: Snapshot, ends: Sequence[Hit]) -> list[Hit]:
        """What may be about the tables from one transaction to another, both included.

        The order is that of the archive: GTIDs of several servers, and MariaDB's, have none.
        """
        first, last = ends[0], ends[-1]
        if first.transaction.gtid != self._config.from_gtid:
            raise RecoveryError(
                f"{name_of(first)} comes before {name_of(last)} in the archive: the stretch ends "
                "before it begins",
                hint="--from-gtid names the older one",
            )
        query = SearchQuery(
            wanted=Criteria(tables=self.wanted),
            since=(first.lineage, first.binlog),
            until=(last.lineage, last.binlog),
            order="oldest",
        )
        return [
            hit
            for hit in self._few(self.searched(snapshot, query))
            if not (_is_before(hit, first) or _is_before(last, hit))
        ]

    @staticmethod
    def _few(hits: Iterator[Hit]) -> Iterator[Hit]:
        for number, hit in enumerate(hits):
            if number == TRANSACTIONS_MOST:
                raise RecoveryError(
                    f"more than {TRANSACTIONS_MOST:,} transactions", hint="undo fewer at once"
                )
            yield hit

    def _concerns(self, hit: Hit) -> bool:
        """Whether a transaction may have changed rows of the tables that are to be undone.

        Changes of rows say which table they are of, and so does DDL; another statement may change
        any table, by a trigger or a function.
        """
        wanted = self.wanted
        return (
            wanted is None
            or hit.content.lost
            or hit.content.two_phase is not None
            or any(
                not change.table
                or wanted.may_have(change.table)
                or (change.rows is None and change.kind != "ddl")
                for change in hit.content.changes
            )
        )

    def read(
        self, hits: Sequence[Hit], snapshot: Snapshot, file: BinaryIO
    ) -> tuple[Changes, bytes]:
        """All changes, and the format event of their binlogs."""
        changes, form = Changes(file), b""
        versions = set[str]()
        for hit in hits:
            if hit.content.two_phase is not None:
                raise RecoveryError(
                    f"{name_of(hit)} cannot be undone: it is one phase of an XA transaction, or of "
                    "an ALTER"
                )
            form = self.read_one(hit, snapshot, changes)
            versions.add(decode_format(form, offset=0).server_version)
        if len(versions) > 1:
            raise RecoveryError(
                f"the transactions are of different versions of the server: {sorted(versions)}",
                hint="undo those of each version by themselves, the newest first",
            )
        if not changes.size:
            raise RecoveryError("no row is to be undone", hint="`binlog2s3 rows` shows the rows")
        return changes, with_checksums(form, decode_format(form, offset=0))

    def read_one(self, hit: Hit, snapshot: Snapshot, changes: Changes) -> bytes:
        """Add the changes of one transaction; returns its binlog's format event."""
        known = snapshot.known(hit.lineage, hit.binlog)
        begin, end = hit.transaction.begin, hit.transaction.end
        if any(low < end and high > begin for low, high in known.damaged):
            raise RecoveryError(f"{name_of(hit)} cannot be undone: it is damaged in the archive")
        head, tables, done = self._head(known, begin, snapshot), self.wanted, 0
        reader = TransactionReader(
            changes,
            decode_format(head, offset=0),
            wants=lambda name: tables is None or tables.has(name),
            what=name_of(hit),
        )
        try:
            with closing(snapshot.blocks.read(known, begin, end)) as views:
                for view in views:
                    reader.feed(view)
                    done += len(view)
                    self._advance(f"of {name_of(hit)} read", done, end - begin)
        except OSError as error:
            raise RecoveryError(
                f"cannot keep the changes of {name_of(hit)} in {tempfile.gettempdir()}: "
                f"{error.strerror or error}",
                hint="set TMPDIR to a directory with more space",
            ) from error
        reader.end()
        return head

    def _head(self, known: Facts, begin: int, snapshot: Snapshot) -> bytes:
        """The format event of a transaction; it is read once if its neighbours have the same."""
        at = (known.lineage.id, known.name, known.format_at(begin))
        if self._last_head is None or self._last_head[0] != at:
            self._last_head = (at, snapshot.blocks.head(known, begin))
        return self._last_head[1]


class Later:
    """What came after the transactions that are to be undone, of which these are the changes."""

    def __init__(
        self,
        source: TransactionSource,
        hits: Sequence[Hit],
        changes: Changes,
        snapshot: Snapshot,
        *,
        read_least: int = _READ_LEAST,
    ) -> None:
        self._source = source
        self._hits = hits
        self._changes = changes
        self._snapshot = snapshot
        self._read_least = read_least

    def check_ddl(self) -> None:
        """Refuse if a table was defined anew since, or perhaps.

        So is a foreign key that was dropped since: nothing tells which table it referred to, and
        what it did to other rows when the transaction deleted or updated some is in no binlog.
        """
        took_away = any(kind != "insert" for _, kind in self._changes.rows)
        for hit in self._later(frozenset({"ddl"}), dropped_keys=took_away):
            if keeps_tables(hit.content):
                continue
            texts = "; ".join(hit.content.statements[:1]) or "; ".join(map(str, hit.match.matched))
            does = (
                "changes the definition of a table that is to be undone"
                if hit.match.certain
                else "may change the definition of a table that is to be undone, or drop a foreign "
                "key that referred to it"
            )
            raise RecoveryError(
                f"{name_of(hit)}, which came later, {does}: {clean(texts)[:200]}",
                hint="restore the table to another server (docs/guides/one-table.md); an undo "
                "could put values into other columns, or leave out rows that the key deleted",
            )

    def _later(
        self, kinds: frozenset[ChangeKind], *, dropped_keys: bool = False
    ) -> Generator[Hit, None, None]:
        """What came after the first one and may have made such changes, in its order."""
        first = self._hits[0]
        tables = {(table.body.database, table.body.table) for table in self._changes.tables}
        wanted = Criteria(tables=Tables(tuple(tables)), kinds=kinds, dropped_keys=dropped_keys)
        query = SearchQuery(wanted=wanted, since=(first.lineage, first.binlog), order="oldest")
        for hit in self._source.searched(self._snapshot, query):
            is_same = (hit.lineage, hit.binlog) == (first.lineage, first.binlog)
            if not (is_same and hit.transaction.begin <= first.transaction.begin):
                yield hit

    def undone_by(self) -> tuple[str, bool]:
        """The later transaction that has undone all of these, unless it was undone itself.

        "" if there is none; and whether all that came after was looked at: the first transactions
        are, and so many bytes of those that may be an undo.
        """
        undoing = _Undoing(self._changes, self._source.wanted)
        left = max(self._changes.size * _READ_TIMES, self._read_least)
        try:
            for hit, read in self._after():
                if hit is None:
                    return undoing.by, False
                if undoing.may_be(hit):
                    left -= hit.transaction.end - hit.transaction.begin
                    if left < 0:
                        return undoing.by, False
                    undoing.take(hit, read())
        except ArchiveError:
            return undoing.by, False
        return undoing.by, True

    def culprits(self, conflicts: Sequence[Conflict]) -> Culprits:
        """The last transactions that changed rows of a conflict; as far as they are found."""
        wanted = {conflict.row for conflict in conflicts if conflict.why != "there again"}
        culprits, undoing = Culprits(), _Undoing(self._changes, self._source.wanted)
        with suppress(ArchiveError):
            for hit, read in self._after():
                if hit is None:
                    break
                later = read()
                if later is not None:
                    culprits.by_row |= {
                        row: name_of(hit) for row in _befores(later) if row in wanted
                    }
                    undoing.take(hit, later)
        culprits.undo = undoing.by
        return culprits

    def _after(self) -> Iterator[tuple[Hit | None, Callable[[], Changes | None]]]:
        """What came after and changes rows of the same tables, and what reads it; None: too many.

        What is read is None if it cannot be undone, and is gone with the next one.
        """
        own = {(hit.lineage, hit.binlog, hit.transaction.begin) for hit in self._hits}
        with tempfile.TemporaryFile() as file, closing(self._later(ROW_KINDS)) as later:

            def read(hit: Hit) -> Changes | None:
                changes = Changes(cast("BinaryIO", file))
                with suppress(RecoveryError):
                    self._source.read_one(hit, self._snapshot, changes)
                    return changes
                return None

            for number, hit in enumerate(later):
                if number >= LATER_MOST:
                    yield None, lambda: None
                    return
                if (hit.lineage, hit.binlog, hit.transaction.begin) not in own:
                    yield hit, partial(read, hit)


class _Undoing:
    """Follows later transactions, in their order: whether changes are undone, and by which one.

    What undoes them, and what does them again, has the same rows. `by` is "" if they are not.
    """

    def __init__(self, changes: Changes, wanted: Tables | None) -> None:
        self._wanted = wanted
        self._done, self._undo = fingerprint(changes), fingerprint(changes, turned=True)
        turned = {(name, TURNED[kind]): rows for (name, kind), rows in changes.rows.items()}
        self._counts = (dict(changes.rows), turned)
        self.by = ""

    def may_be(self, hit: Hit) -> bool:
        """Whether a transaction has as many rows of each kind as what it may be."""
        counts = Counter[tuple[str, ChangeKind]]()
        for change in hit.content.changes:
            if change.rows is None or not change.table:
                return True
            if self._wanted is None or self._wanted.has(change.table):
                counts[change.table, change.kind] += change.rows
        return hit.content.lost or any(dict(counts) == counted for counted in self._counts)

    def take(self, hit: Hit, later: Changes | None) -> None:
        """Take the changes of the next transaction, None: it has others."""
        now = fingerprint(later) if later is not None else None
        if now in (self._done, self._undo):  # or it was done again
            self.by = name_of(hit) if now == self._undo else ""


def _is_before(hit: Hit, other: Hit) -> bool:
    """Whether a transaction is in the same binlog, before another one."""
    is_same = (hit.lineage, hit.binlog) == (other.lineage, other.binlog)
    return is_same and hit.transaction.begin < other.transaction.begin


def _the_one_at(at: FilePosition, hits: Sequence[Hit]) -> Hit:
    """The transaction that begins at a position, or has it. Two lineages may have such binlogs."""
    begins = [hit for hit in hits if hit.transaction.begin == at.offset] or list(hits)
    if len(begins) > 1:
        places = ", ".join(f"{name_of(hit)} in lineage {hit.lineage}" for hit in begins)
        raise RecoveryError(
            f"several lineages have a transaction at {at}: {places}",
            hint="--gtid names one of them",
        )
    return begins[0]


def _missing(gtids: Sequence[str], hits: Sequence[Hit]) -> str:
    """Those GTIDs that were not found; "" if none is missing."""
    gtids_found = [hit.transaction.gtid for hit in hits if hit.transaction.gtid]
    missing: list[str] = []
    for text in gtids:
        wanted = parse_gtids(text)
        if isinstance(wanted, GtidSet):
            for gtid in gtids_found:
                wanted -= GtidSet.parse(gtid)
            missing += [str(wanted)] if wanted else []
        else:
            missing += [gtid for gtid in text.split(",") if gtid.strip() not in gtids_found]
    return ", ".join(missing)


def name_of(hit: Hit) -> str:
    """A transaction, for messages."""
    return hit.transaction.gtid or f"the transaction at {hit.binlog}:{hit.transaction.begin}"


def _befores(changes: Changes) -> Iterator[tuple[str, bytes]]:
    """The rows that a transaction changed or deleted: table, and how they were before it."""
    for table, kind, data in changes.backwards():
        if kind != "insert":
            for row in split_rows(table.image, data, 2 if kind == "update" else 1):
                yield table.name, row[0]
