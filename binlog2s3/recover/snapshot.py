"""The history that a bucket has of one source: what plans, `find` and `verify` ask about it.

It reads no more of a binlog than was asked for.

Law: an answer never changes. A binlog that still grows keeps the size that it had when it was first
asked for, whatever is added and wherever its bytes move meanwhile.
"""

from bisect import bisect_left
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from heapq import merge
from typing import TypeAlias, TypeVar, cast

from binlog2s3.archive.blocks import Blocks
from binlog2s3.archive.catalog import Catalog
from binlog2s3.archive.documents import Entry, EntryRow, Lineage
from binlog2s3.archive.facts import BinlogId, Facts, facts_of
from binlog2s3.archive.history import current_of
from binlog2s3.archive.index import Index, Inventory, inventory
from binlog2s3.archive.pages import SPAN, name_at
from binlog2s3.archive.reader import Range, Readable
from binlog2s3.archive.sources import nothing_of
from binlog2s3.archive.writers import Heartbeat
from binlog2s3.binlog.content import Content, OnStatement, TwoPhase
from binlog2s3.binlog.gtid import Gtids
from binlog2s3.binlog.names import BinlogName, FilePosition
from binlog2s3.binlog.scanner import MAGIC, Transaction
from binlog2s3.binlog.zone import SystemZone, differs
from binlog2s3.errors import ArchiveError, ObjectMissingError
from binlog2s3.formatting import iso_text, us_of
from binlog2s3.recover import one_binlog
from binlog2s3.workers import Advance, Workers, unseen

Result = TypeVar("Result")
Search: TypeAlias = Callable[[Iterable[Transaction]], Result]
"""What is looked for in transactions, which come in order. Equal ones find the same."""
ReadBinlog = Callable[[Lineage, BinlogName, Readable, int, list[ArchiveError]], Facts]
"""See `one_binlog.known_by_reading`."""

SearchBinlog = Callable[[Hashable, Callable[[], object]], object]
"""Calls what reads a binlog, in any thread; or knows what that has found, by its key."""

_LEAST_LISTED = 8
"""From so many binlogs of one page's range on, list them instead of a request for each."""


_MOST_BRIEFS = 256
"""So many of a page's entries stay decoded: neighbours are asked for again at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    """The bucket at the first look. The writer's document is read before the lineages."""

    writer: Heartbeat | None
    lineages: tuple[Lineage, ...]
    current: str | ArchiveError


class _EntryReader:
    """Reads the entries of a source, several at a time, and keeps them."""

    def __init__(self, catalog: Catalog, workers: Workers, advance: Advance) -> None:
        self._catalog = catalog
        self._workers = workers
        self._advance = advance
        self._entries: dict[BinlogId, Entry | None] = {}

    def has(self, lineage: str, name: BinlogName) -> bool:
        """Whether it is known which entry this binlog has, or that it has none."""
        return (lineage, name) in self._entries

    def read(self, lineage: Lineage, name: BinlogName, size: int | None) -> Entry | None:
        """A binlog's entry; None if it has none (any more). Called by any thread.

        `size` is the object's size, None if it is not known.
        """
        key = (lineage.id, name)
        if key in self._entries:
            return self._entries[key]
        entry: Entry | None = None
        try:
            entry = self._catalog.entry(lineage, name)
        except ObjectMissingError:
            pass
        else:
            if size is not None:
                entry.check_size(lineage.id, size)
            entry = self._catalog.with_start(lineage, entry)
        self._entries[key] = entry
        return entry

    def forget(self, lineage: str, name: BinlogName) -> bool:
        """Drop a binlog's entry from memory; False if it has none."""
        if self._entries.get((lineage, name)) is None:
            return False
        del self._entries[lineage, name]
        return True

    def load(self, lineage: Lineage, sizes: Mapping[BinlogName, int | None]) -> None:
        """Read these, with the sizes of their objects; what cannot be read is left to `read`."""
        self._do({n: partial(self.read, lineage, n, size) for n, size in sizes.items()})

    def without_blocks(
        self, lineage: Lineage, names: Sequence[BinlogName]
    ) -> Mapping[BinlogName, EntryRow]:
        """Entries without their blocks, which would fill the memory; they are not kept."""

        def bare(name: BinlogName) -> EntryRow | None:
            try:
                return self._catalog.entry(lineage, name).row
            except ObjectMissingError:
                return None

        rows = self._do({name: partial(bare, name) for name in names})
        return {name: entry for name, entry in rows.items() if isinstance(entry, EntryRow)}

    def _do(self, tasks: Mapping[BinlogName, Callable[[], object]]) -> dict[BinlogName, object]:
        """Do these, several at a time. Those that fail with an ArchiveError are left out."""
        done: dict[BinlogName, object] = {}
        failed: BaseException | None = None
        for number, outcome in enumerate(self._workers.batch(tasks), 1):
            self._advance(number, len(tasks))
            if outcome.error is None:
                done[cast("BinlogName", outcome.token)] = outcome.value
            elif not isinstance(outcome.error, ArchiveError):  # raised again when it is asked for
                failed = failed or outcome.error
        if failed is not None:
            raise failed
        return done


def snapshot_of(
    catalog: Catalog, workers: Workers, target: str, *, advance: Advance = unseen
) -> "Snapshot":
    """What a bucket has of a source. Raises ArchiveError if it is nothing; `target`: its URL."""
    snapshot = Snapshot(catalog, workers, advance=advance)
    snapshot.refuse_nothing(target)
    return snapshot


class Snapshot:
    """What a bucket has of one source. Opens nothing until it is asked; for one thread.

    Any question raises ArchiveError if the bucket contradicts itself. Its `blocks` are for
    `extract`. `unreadable`: why lineages are left out. `problems`: what is missing at a binlog's
    end, which pages are not used, and why it is unknown which lineage is current. `doubts`: how
    often something was not as a page says: then whoever asked by pages asks again.
    `read`: how a binlog without an entry is found out. `search`: how one is searched.
    """

    def __init__(
        self,
        catalog: Catalog,
        workers: Workers,
        *,
        advance: Advance = unseen,
        span: int = SPAN,
        read: ReadBinlog = one_binlog.known_by_reading,
        search: SearchBinlog = lambda _, read: read(),
    ) -> None:
        self._read = read
        self._search = search
        self._archived_only = ""
        self._catalog = catalog
        self._span = span
        self._entries = _EntryReader(catalog, workers, advance)
        self._first_look: _Seen | None = None
        self._inventories: dict[str, Inventory] = {}
        self._names: dict[str, Sequence[BinlogName]] = {}
        self._vanished: set[BinlogId] = set()
        self.doubts = 0
        self._known: dict[BinlogId, Facts] = {}
        self._briefs: dict[BinlogId, tuple[EntryRow, Facts]] = {}
        self.unreadable: list[ArchiveError] = []
        self.problems: list[ArchiveError] = []
        self._lost: dict[str, str] = {}
        self._gone: set[BinlogName] = set()
        self.blocks = Blocks(catalog.binlog, threads=workers.count)

    # What there is

    def refuse_nothing(self, where: str) -> None:
        """Raise ArchiveError if there is nothing of the source. `where`: its prefix, as a URL."""
        if self.lineages:
            return
        if self.unreadable:
            raise self.unreadable[0]
        layout = self._catalog.layout
        raise nothing_of(self._catalog.store, layout.prefix, layout.source, where)

    @property
    def lineages(self) -> Sequence[Lineage]:
        """All of the source's, oldest first."""
        return self._seen().lineages

    @property
    def current(self) -> str:
        """The id of the one that is written, or was the last; "" if there is none.

        Raises ArchiveError if the document that says so cannot be read; nothing else depends on it.
        """
        current = self._seen().current
        if isinstance(current, ArchiveError):
            raise current
        return current

    @property
    def covered_us(self) -> int | None:
        """The time up to which all commits of the current lineage are in the bucket.

        It is by the source's clock, but not later than when the writer said so. None if that is
        unknown, also because its last binlog cannot be read to its end, or is damaged there: it is
        unknown when the transactions in it were committed.
        """
        writer, lineage = self._seen().writer, self.current
        if writer is None or writer.vouched_until is None or writer.lineage != lineage:
            return None
        if self.lost_end(lineage):
            return None
        for name in self.names(lineage)[-1:]:
            try:
                known = self.known(lineage, name)
            except ArchiveError:  # raised again when its bytes are needed
                return None
            if any(end > known.transaction_end for _, end in known.damaged):
                return None
        return us_of(writer.vouched_until)

    @property
    def left_out(self) -> tuple[str, ...]:
        """What the source of the current lineage leaves out of its binlogs, as it said last."""
        writer = self._seen().writer
        if writer is None or writer.lineage != self.current:
            return ()
        unlogged = writer.unlogged
        now = list[str]()
        if unlogged is not None and unlogged.last is None:
            now.append(f"everything since {iso_text(unlogged.since)}, as it writes no binlog")
        return (*now, *(writer.leaves_out or ()))

    def leave_open(self, lineage: str) -> None:
        """From now on, `names` of this lineage ends before its first binlog that is not archived.

        For one who reads those as they grow.
        """
        self._archived_only = lineage
        self._names.pop(lineage, None)

    def names(self, lineage: str) -> Sequence[BinlogName]:
        """The binlogs of a lineage from which an event can be read, in their order.

        Also the one that its writer said is durable, if it came after the first look.
        """
        if lineage not in self._names:
            self._names[lineage] = self._find_names(lineage)
        return self._names[lineage]

    def _find_names(self, lineage: str) -> Sequence[BinlogName]:
        held = self._look(lineage)
        if lineage == self._archived_only:
            first = min(held.open, default=None)
            names = held.names(lambda _chunks: False)
            return [name for name in names if first is None or name < first]
        readable = held.names(lambda chunks: chunks.end > len(MAGIC))
        if self._vanished:
            readable = [name for name in readable if (lineage, name) not in self._vanished]
        durable = self._durable(lineage)
        at = bisect_left(readable, durable[0]) if durable else 0
        if durable and durable[1] > len(MAGIC) and durable[0] not in readable[at : at + 1]:
            if self._is_there(held.lineage, durable[0]):
                readable = sorted([*readable, durable[0]])
            else:
                self._lost[lineage] = f"{durable[0]}, of which {durable[1]} bytes were durable"
        return readable

    def lost_end(self, lineage: str) -> str:
        """The binlog at its end that cannot be read any more; "" if none is lost."""
        self.names(lineage)
        return self._lost.get(lineage, "")

    def _is_there(self, lineage: Lineage, name: BinlogName) -> bool:
        try:
            self._catalog.binlog(lineage, name)
        except ArchiveError as error:
            if name not in self._gone:
                self._gone.add(name)
                self.problems.append(error)
            return False
        return True

    def size(self, lineage: str, name: BinlogName) -> int:
        """How many bytes of a binlog there were at the first look; does not read the binlog."""
        held = self._look(lineage)
        if name in held.open:
            return held.open[name].end
        listed = held.index.listing_of(name.number)
        if listed is not None and name in listed.binlogs:
            return listed.binlogs[name].size
        row = held.index.row(name.number)
        return row.size if row is not None else 0

    def load(self, lineage: str, names: Sequence[BinlogName], *, is_brief: bool = False) -> None:
        """Read the entries of these binlogs, which will be asked for, several at a time.

        `is_brief`: only those that are in no page.
        """
        held = self._look(lineage)
        if is_brief:
            names = [name for name in names if held.index.row(name.number) is None]
        by_range: dict[int, list[BinlogName]] = {}
        for name in names:
            if name not in held.open and not self._entries.has(lineage, name):
                by_range.setdefault(held.index.first_of(name.number), []).append(name)
        wanted: dict[BinlogName, int | None] = {}
        for first, in_range in by_range.items():
            if len(in_range) >= _LEAST_LISTED:
                held.index.archived(first)
            for name in in_range:
                listed = held.index.listing_of(name.number)
                if listed is None:
                    wanted[name] = None
                elif name in listed.binlogs and name in listed.entries:
                    wanted[name] = listed.binlogs[name].size
                elif name not in listed.binlogs and held.index.has(name.number):
                    self._vanish(lineage, name)
        self._entries.load(held.lineage, wanted)

    def _vanish(self, lineage: str, name: BinlogName) -> None:
        """Note that a page says that this binlog is archived, and it is not."""
        key = (lineage, name)
        if key not in self._vanished:
            self._vanished.add(key)
            self._doubt(lineage, name, "is missing")

    def _doubt(self, lineage: str, name: BinlogName, why: str) -> None:
        self.doubts += 1
        self._names.pop(lineage, None)
        self._look(lineage).index.distrust(name.number)
        self.problems.append(
            ArchiveError(
                f"{name} of {lineage} {why}; its page says otherwise, so that page is not used"
            )
        )

    # What pages tell

    def brief(self, lineage: str, name: BinlogName) -> Facts:
        """What is known of a binlog; without its blocks if it comes from a page."""
        held = self._look(lineage)
        row = held.index.row(name.number) if name not in held.open else None
        if row is None or (lineage, name) in self._known:
            return self.known(lineage, name)
        kept = self._briefs.get((lineage, name))
        if kept is None or kept[0] is not row:
            if len(self._briefs) >= _MOST_BRIEFS:
                self._briefs.clear()
            kept = self._briefs[lineage, name] = (row, facts_of(row, held.lineage))
        return kept[1]

    def first_later(self, lineage: str, at_us: int, begin: BinlogName) -> BinlogName | None:
        """By pages: the first binlog from `begin` on whose entry has a commit later than this.

        None if none has. Binlogs without an entry are not looked at.
        """
        held = self._look(lineage)
        number = held.index.first_later(at_us, begin.number)
        return name_at(held.lineage, number) if number is not None else None

    def not_later(self, lineage: str, at_us: int, begin: BinlogName) -> Iterator[BinlogName]:
        """The binlogs from `begin` on that may have a commit at or before this time, in order.

        By pages, with all that have no entry.
        """
        held = self._look(lineage)
        rows = (name_at(held.lineage, n) for n in held.index.not_later(at_us, begin.number))
        others = (name for name in held.without_entry() if name >= begin)
        yield from merge(rows, others)

    def unbroken_to(self, lineage: str, name: BinlogName) -> BinlogName:
        """By pages: the last binlog to which GTIDs lead from this one without a break."""
        held = self._look(lineage)
        return name_at(held.lineage, held.index.unbroken_to(name.number))

    # One binlog

    def known(self, lineage: str, name: BinlogName) -> Facts:
        """What is known of a binlog: from its entry, or by reading all of it, once."""
        key = (lineage, name)
        if key not in self._known:
            self._known[key] = self._find(self._look(lineage), name)
        return self._known[key]

    def time_zone(self, lineage: str, name: BinlogName) -> SystemZone | None:
        """The source's system time zone while it wrote a binlog; None if nothing tells it.

        An open binlog does not say it: then it is what its lineage's writer said last, or the
        lineage. So it is for an archived one without, which nobody has asked of, if both say the
        same.
        """
        writer, known = self._seen().writer, self.known(lineage, name)
        told = writer.time_zone if writer is not None and writer.lineage == lineage else None
        began = self._by_id(lineage).time_zone
        if known.time_zone is not None:
            return known.time_zone
        if known.state == "archived" and told and began and differs(began, told):
            return None
        return told or began

    def forget(self, lineage: str, name: BinlogName) -> None:
        """Drop what is known of an archived binlog from memory: its entry is read again if needed.

        Nothing else is dropped: a binlog without an entry would have to be read as a whole, and may
        have grown.
        """
        if name in self._look(lineage).open or not self._entries.forget(lineage, name):
            return
        self._known.pop((lineage, name), None)

    # What is in it

    def transactions(
        self, lineage: str, name: BinlogName, begin: int = 0, end: int | None = None
    ) -> Iterator[Transaction]:
        """The whole transactions that begin in [`begin`, `end`), in order.

        Reads only their blocks. Damaged events are skipped: a transaction with such an event is
        included if its bounds can be found.
        """
        yield from one_binlog.transactions(self.blocks, self.known(lineage, name), begin, end)

    def searched(
        self, lineage: str, name: BinlogName, begin: int, end: int, search: Search[Result]
    ) -> Result:
        """What a search finds in the whole transactions that lie in [`begin`, `end`)."""
        known = self.known(lineage, name)

        def read() -> Result:
            inside = one_binlog.transactions(self.blocks, known, begin, end)
            return search(transaction for transaction in inside if transaction.end <= end)

        key = (lineage, name, known.transaction_end, known.damaged, begin, end, search)
        return cast("Result", self._search(key, read))

    def gtid_list(self, lineage: str, name: BinlogName) -> Gtids | None:
        """The GTIDs that a binlog itself begins with; MariaDB's with the newest of each domain."""
        return one_binlog.gtid_list(self.blocks, self.known(lineage, name))

    def content(
        self,
        lineage: str,
        name: BinlogName,
        transaction: Transaction,
        on_statement: OnStatement | None = None,
    ) -> Content:
        """What a transaction does; for a very large one without the number of rows."""
        known = self.known(lineage, name)
        return one_binlog.content(self.blocks, known, transaction, on_statement)

    def phases(
        self, lineage: str, name: BinlogName, begin: int, end: int
    ) -> Iterator[tuple[Transaction, TwoPhase]]:
        """See `one_binlog.phases`."""
        return one_binlog.phases(self.blocks, self.known(lineage, name), begin, end)

    def is_engine_commit(self, lineage: str, name: BinlogName, transaction: Transaction) -> bool:
        """Whether a transactional engine, such as InnoDB, has something of a transaction."""
        return one_binlog.is_engine_commit(self.blocks, self.known(lineage, name), transaction)

    def is_boundary(self, lineage: str, name: BinlogName, offset: int) -> bool:
        """Whether events end there and no transaction is open; also at the binlog's very end."""
        return one_binlog.is_boundary(self.blocks, self.known(lineage, name), offset)

    # Looking

    def _seen(self) -> _Seen:
        if self._first_look is None:
            last = self._catalog.last_writer()
            writer = last.beat if last is not None else None
            turn, unknown = None, None
            try:
                turn = self._catalog.turn()
            except ArchiveError as error:
                unknown = error
                self.problems.append(error)
            lineages = tuple(self._catalog.lineages(self.unreadable))
            current = unknown or current_of(lineages, turn)
            self._first_look = _Seen(writer=writer, lineages=lineages, current=current)
        return self._first_look

    def _durable(self, lineage: str) -> FilePosition | None:
        """Up to where the last writer said that all is durable, if it writes this lineage."""
        writer = self._seen().writer
        if writer is None or writer.lineage != lineage or writer.durable is None:
            return None
        return writer.durable.file_position if writer.durable.offset else None

    def _by_id(self, lineage: str) -> Lineage:
        for known in self.lineages:
            if known.id == lineage:
                return known
        raise ArchiveError(
            f"there is no lineage {lineage}", hint="`binlog2s3 list` shows the lineages"
        )

    def _look(self, lineage: str) -> Inventory:
        if lineage not in self._inventories:
            known = self._by_id(lineage)
            make = partial(
                Index,
                self._catalog,
                known,
                read_entries=self._entries.without_blocks,
                problems=self.problems,
                span=self._span,
            )
            self._inventories[lineage] = inventory(self._catalog, known, make)
        return self._inventories[lineage]

    # Knowing

    def _find(self, held: Inventory, name: BinlogName) -> Facts:
        readable = self._archived(held, name) or self._catalog.binlog(held.lineage, name)
        self.blocks.note(held.lineage, name, readable)
        entry = None
        if readable.state == "archived":  # perhaps since the first look
            entry = self._entries.read(held.lineage, name, readable.size)
        if entry is None:
            durable = self._durable(held.lineage.id)
            size = durable[1] if durable is not None and durable[0] == name else 0
            return self._read(held.lineage, name, readable, size, self.problems)
        self._compare(held, entry, readable.size)
        return one_binlog.described(entry, held.lineage, self.blocks)

    def _archived(self, held: Inventory, name: BinlogName) -> Readable | None:
        """An archived binlog that has an entry, from the listing or from the object itself."""
        if name in held.open or name not in held:
            return None
        listed = held.index.listing_of(name.number)
        key = self._catalog.layout.binlog(held.lineage.id, name)
        info = self._catalog.store.head(key) if listed is None else listed.binlogs.get(name)
        if info is None:
            self._vanish(held.lineage.id, name)
        if info is None or (listed is not None and name not in listed.entries):
            return None
        return Readable(
            name=str(name),
            state="archived",
            ranges=(Range(key, 0, info.size, info.last_modified),),
            store=self._catalog.store,
            again=partial(self._catalog.binlog, held.lineage, name),
        )

    def _compare(self, held: Inventory, entry: Entry, size: int) -> None:
        """See that an entry fits its object, and its page if that was read."""
        lineage, name = held.lineage.id, entry.name
        entry.check_size(lineage, size)  # the object was not looked at when the entry was read
        row = held.index.row_at_hand(name.number)
        if row is not None and row != entry.row:
            self._doubt(lineage, name, "has another entry")
