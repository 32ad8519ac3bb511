"""What a recovery asks about the bucket, answered from a real one.

Place in the flow: `plan` asks, through `model.History`; beneath are `archive.catalog`, which finds
the objects, and `archive.blocks`, which reads them. Only reads, and of each binlog no more than was
asked for.

Law: what was told once stays so. Of a binlog that still grows, that is its first so many bytes, as
they were when it was first asked for, whatever comes behind them and wherever they move meanwhile.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from heapq import merge
from typing import cast

from binlog2s3.archive.blocks import Blocks, Found
from binlog2s3.archive.catalog import Catalog
from binlog2s3.archive.documents import Entry, Lineage
from binlog2s3.archive.history import current_of
from binlog2s3.archive.index import Index
from binlog2s3.archive.inventory import Inventory, inventory
from binlog2s3.archive.known import Known, known_from
from binlog2s3.archive.pages import SPAN, name_at
from binlog2s3.archive.parts import BLOCK_SIZE
from binlog2s3.archive.reader import Range, Readable
from binlog2s3.archive.writers import Heartbeat
from binlog2s3.binlog.content import Content, ContentReader
from binlog2s3.binlog.events import decode_format
from binlog2s3.binlog.names import BinlogName
from binlog2s3.binlog.scanner import MAGIC, Scanner, Transaction
from binlog2s3.errors import ArchiveError, DamageError, ObjectMissingError
from binlog2s3.formatting import us_of
from binlog2s3.recover.described import found_from
from binlog2s3.recover.one_pass import Pass
from binlog2s3.store.contract import Store
from binlog2s3.workers import Workers

Advance = Callable[[int, int], None]
"""Called as entries come in: how many are here, of how many."""

MOST_CONTENT = 256 << 20
"""Of a transaction that is larger, so many bytes are looked at to say what it does."""

_MOST_TRIES = 3
_LEAST_LISTED = 8
"""So many binlogs of one page's range are worth a listing, instead of a request for each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    """The bucket at the first look: the last writer's document, then the lineages."""

    writer: Heartbeat | None
    lineages: tuple[Lineage, ...]
    current: str | ArchiveError


class Survey:
    """Looks at a source's part of a bucket. Opens nothing until it is asked.

    Implements `model.History`; its `blocks` are for `extract`. To be asked by one thread.
    ArchiveError from any question that the bucket contradicts itself on. `unreadable` are lineages
    that are left out, because of what describes them; `problems`: what a binlog lacks at its end,
    pages that are not used, and what does not say which lineage is current. `doubts`: how often
    something was not as a page says.
    """

    def __init__(
        self,
        store: Store,
        catalog: Catalog,
        workers: Workers,
        *,
        advance: Advance = lambda _, __: None,
        span: int = SPAN,
    ) -> None:
        self._store = store
        self._catalog = catalog
        self._span = span
        self._workers = workers
        self._advance = advance
        self._first_look: _Seen | None = None
        self._inventories: dict[str, Inventory] = {}
        self._names: dict[str, Sequence[BinlogName]] = {}
        self._vanished: set[tuple[str, BinlogName]] = set()
        self.doubts = 0
        self._entries: dict[tuple[str, BinlogName], Entry | None] = {}
        self._found: dict[tuple[str, BinlogName], Found] = {}
        self.unreadable: list[ArchiveError] = []
        self.problems: list[ArchiveError] = []
        self._lost: dict[str, str] = {}
        self._gone: set[BinlogName] = set()
        self.blocks = Blocks(self.find, threads=workers.count)

    # What there is

    @property
    def lineages(self) -> Sequence[Lineage]:
        """All of the source's, oldest first."""
        return self._seen().lineages

    @property
    def current(self) -> str:
        """The id of the one that is written, or was the last; "" where there is none.

        Raises ArchiveError where what says so cannot be read: nothing else depends on it.
        """
        current = self._seen().current
        if isinstance(current, ArchiveError):
            raise current
        return current

    @property
    def covered_us(self) -> int | None:
        """All that was committed until then in the current lineage is in the bucket.

        None too where its last binlog cannot be read to its end, or is damaged there: nobody can
        tell when what lies in it was committed.
        """
        writer, lineage = self._seen().writer, self.current
        if writer is None or writer.covered_until is None or writer.lineage != lineage:
            return None
        if self.lost_end(lineage):
            return None
        for name in self.names(lineage)[-1:]:
            try:
                known = self.known(lineage, name)
            except ArchiveError:  # raised again where somebody wants to go there
                return None
            if any(end > known.transaction_end for _, end in known.damaged):
                return None
        return us_of(writer.covered_until)

    def names(self, lineage: str) -> Sequence[BinlogName]:
        """The binlogs of a lineage of which an event can be read, in their order.

        Also the one that its writer has said is durable, if it came since the first look.
        """
        if lineage not in self._names:
            self._names[lineage] = self._find_names(lineage)
        return self._names[lineage]

    def _find_names(self, lineage: str) -> Sequence[BinlogName]:
        there = self._look(lineage)
        found = there.names(lambda chunks: chunks.end > len(MAGIC))
        if self._vanished:
            found = [name for name in found if (lineage, name) not in self._vanished]
        durable = self._durable(lineage)
        at = bisect_left(found, durable[0]) if durable else 0
        if durable and durable[1] > len(MAGIC) and durable[0] not in found[at : at + 1]:
            if self._is_there(there.lineage, durable[0]):
                found = sorted([*found, durable[0]])
            else:
                self._lost[lineage] = f"{durable[0]}, of which {durable[1]} bytes were durable"
        return found

    def lost_end(self, lineage: str) -> str:
        """The binlog at its end of which nothing can be read any more; "" where nothing is lost."""
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
        """How many bytes of a binlog there were at the first look; no binlog is read for that."""
        there = self._look(lineage)
        if name in there.open:
            return there.open[name].end
        listed = there.index.listing_of(name.number)
        if listed is not None and name in listed.binlogs:
            return listed.binlogs[name].size
        row = there.index.row(name.number)
        return row.size if row is not None else 0

    def load(self, lineage: str, names: Sequence[BinlogName]) -> None:
        """Say that these will be asked for: their entries are read, several at a time."""
        there = self._look(lineage)
        by_range: dict[int, list[BinlogName]] = {}
        for name in names:
            if name not in there.open and (lineage, name) not in self._entries:
                by_range.setdefault(there.index.first_of(name.number), []).append(name)
        wanted: dict[BinlogName, int | None] = {}
        for first, those in by_range.items():
            if len(those) >= _LEAST_LISTED:
                there.index.archived(first)
            listed = there.index.listing_of(those[0].number)
            for name in those:
                if listed is None:
                    wanted[name] = None
                elif name in listed.binlogs and name in listed.entries:
                    wanted[name] = listed.binlogs[name].size
                elif name not in listed.binlogs and there.index.has(name.number):
                    self._vanish(lineage, name)
        tasks = {n: partial(self._entry, there.lineage, n, size) for n, size in wanted.items()}
        self._do(tasks)

    def _do(self, tasks: Mapping[BinlogName, Callable[[], object]]) -> dict[BinlogName, object]:
        """Have these done, several at a time; what fails with an ArchiveError is left out."""
        for name, task in tasks.items():
            self._workers.submit(name, task)
        done: dict[BinlogName, object] = {}
        failed: BaseException | None = None
        for number in range(1, len(tasks) + 1):
            while (outcome := self._workers.take(1.0)) is None:
                pass
            self._advance(number, len(tasks))
            if outcome.error is None:
                done[cast("BinlogName", outcome.token)] = outcome.value
            elif not isinstance(outcome.error, ArchiveError):  # that is raised by who asks for it
                failed = failed or outcome.error
        if failed is not None:
            raise failed
        return done

    def _bare_entries(
        self, lineage: Lineage, names: Sequence[BinlogName]
    ) -> Mapping[BinlogName, Entry]:
        """Entries without their blocks, which would fill the memory."""

        def bare(name: BinlogName) -> Entry | None:
            try:
                return replace(self._catalog.entry(lineage, name), blocks=())
            except ObjectMissingError:
                return None

        found = self._do({name: partial(bare, name) for name in names})
        return {name: entry for name, entry in found.items() if isinstance(entry, Entry)}

    def _vanish(self, lineage: str, name: BinlogName) -> None:
        """A page says that this binlog is archived, and it is not."""
        key = (lineage, name)
        if key not in self._vanished:
            self._vanished.add(key)
            self._doubt(lineage, name, "is not there any more")

    def _doubt(self, lineage: str, name: BinlogName, why: str) -> None:
        self.doubts += 1
        self._names.pop(lineage, None)
        self._look(lineage).index.distrust(name.number)
        self.problems.append(
            ArchiveError(
                f"{name} of {lineage} {why}, although a page says so: the page is not used"
            )
        )

    # What pages tell

    def brief(self, lineage: str, name: BinlogName) -> Known:
        """What is known of a binlog, without its blocks if a page tells it."""
        there = self._look(lineage)
        row = there.index.row(name.number) if name not in there.open else None
        if row is None or (lineage, name) in self._found:
            return self.known(lineage, name)
        return known_from(row, there.lineage.flavour)

    def first_later(self, lineage: str, at_us: int, begin: BinlogName) -> BinlogName | None:
        """The first binlog from `begin` on whose entry has a commit later than this, as pages say.

        None if none has. What has no entry is not looked at.
        """
        there = self._look(lineage)
        number = there.index.first_later(at_us, begin.number)
        return name_at(there.lineage, number) if number is not None else None

    def not_later(self, lineage: str, at_us: int, begin: BinlogName) -> Iterator[BinlogName]:
        """The binlogs from `begin` on that may have a commit at or before this time, in order.

        As pages say, and all that have no entry.
        """
        there = self._look(lineage)
        rows = (name_at(there.lineage, n) for n in there.index.not_later(at_us, begin.number))
        others = (name for name in there.without_entry() if name >= begin)
        yield from merge(rows, others)

    def unbroken_to(self, lineage: str, name: BinlogName) -> BinlogName:
        """The last binlog to which GTIDs lead from this one without a break, as pages say."""
        there = self._look(lineage)
        return name_at(there.lineage, there.index.unbroken_to(name.number))

    # One binlog

    def known(self, lineage: str, name: BinlogName) -> Known:
        """What is known of a binlog: from its entry, or by reading all of it, once."""
        return self.find(lineage, name).known

    def find(self, lineage: str, name: BinlogName) -> Found:
        """The same, and how to read it."""
        key = (lineage, name)
        if key not in self._found:
            self._found[key] = self._find(self._look(lineage), name)
        return self._found[key]

    # What is in it

    def transactions(
        self, lineage: str, name: BinlogName, begin: int = 0, end: int | None = None
    ) -> Iterator[Transaction]:
        """The whole transactions that begin at or behind `begin` and before `end`, in order."""
        found = self.find(lineage, name)
        limit = found.known.transaction_end
        until = limit if end is None else min(end, limit)
        start = _first_boundary(found, begin)
        if start is None or start >= until:
            return
        scanner = self.blocks.scanner(found, start)
        damaged = {high: low for low, high in found.known.damaged}
        with closing(self.blocks.read(found, start, limit, soon=until)) as views:
            for view in views:
                for one in _scan(scanner, view, found):
                    # what comes behind a GTID event that is damaged looks as if it had none
                    while one.gtid is None and one.begin in damaged:
                        one = replace(one, begin=damaged[one.begin])  # noqa: PLW2901
                    if begin <= one.begin < until:
                        yield one
                if scanner.transaction_end >= until:
                    return

    def content(self, lineage: str, name: BinlogName, transaction: Transaction) -> Content:
        """What a transaction does. Of one that is very large, without the number of rows."""
        found = self.find(lineage, name)
        head = self.blocks.head(found, transaction.begin)
        reader = ContentReader(decode_format(head, offset=0))
        end = min(transaction.end, transaction.begin + MOST_CONTENT)
        with closing(self.blocks.read(found, transaction.begin, end)) as views:
            for view in views:
                reader.feed(view)
        content = reader.content()
        if end < transaction.end:
            changes = tuple(replace(change, rows=None) for change in content.changes)
            content = replace(content, changes=changes)
        return content

    def is_boundary(self, lineage: str, name: BinlogName, offset: int) -> bool:
        """Whether events end there and no transaction is open; also at the binlog's very end."""
        found = self.find(lineage, name)
        known = found.known
        if offset in {0, len(MAGIC), known.transaction_end}:
            return True
        if not 0 < offset < known.transaction_end:
            return False
        start = found.boundary(offset)
        scanner = self.blocks.scanner(found, start)
        with closing(self.blocks.read(found, start, offset)) as views:
            for view in views:
                _scan(scanner, view, found)
        return scanner.event_end == offset == scanner.transaction_end

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

    def _durable(self, lineage: str) -> tuple[BinlogName, int] | None:
        """Up to where the last writer has said that all is in the bucket, if it writes this one."""
        writer = self._seen().writer
        if writer is None or writer.lineage != lineage or writer.durable is None:
            return None
        return writer.durable.place if writer.durable.offset else None

    def _by_id(self, lineage: str) -> Lineage:
        for one in self.lineages:
            if one.id == lineage:
                return one
        raise ArchiveError(
            f"there is no lineage {lineage}", hint="`binlog2s3 list` shows those that there are"
        )

    def _look(self, lineage: str) -> Inventory:
        if lineage not in self._inventories:
            found = self._by_id(lineage)
            make = partial(
                Index,
                self._catalog,
                found,
                read_entries=self._bare_entries,
                problems=self.problems,
                span=self._span,
            )
            self._inventories[lineage] = inventory(self._catalog, found, make)
        return self._inventories[lineage]

    def _entry(self, lineage: Lineage, name: BinlogName, size: int | None) -> Entry | None:
        """A binlog's entry; None where it has none (any more). Called by any thread.

        `size` is the object's, None if that was not looked at.
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
        self._entries[key] = entry
        return entry

    # Knowing

    def _find(self, there: Inventory, name: BinlogName) -> Found:
        readable = self._archived(there, name) or self._catalog.binlog(there.lineage, name)
        entry = None
        if readable.state == "archived":  # perhaps only since the first look
            entry = self._entry(there.lineage, name, readable.size)
        if entry is None:
            return self._by_reading(there.lineage, name, readable)
        self._compare(there, entry, readable.size)
        found = found_from(entry, there.lineage, readable)
        if entry.end == "crash":
            # the server may have died in the middle of writing a transaction
            end = self._last_transaction_end(found)
            found = replace(found, known=replace(found.known, transaction_end=end))
        return found

    def _archived(self, there: Inventory, name: BinlogName) -> Readable | None:
        """An archived binlog that has an entry, as it was listed, or by a look at the object."""
        if name in there.open or name not in there:
            return None
        listed = there.index.listing_of(name.number)
        key = self._catalog.layout.binlog(there.lineage.id, name)
        info = self._store.head(key) if listed is None else listed.binlogs.get(name)
        if info is None:
            self._vanish(there.lineage.id, name)
        if info is None or (listed is not None and name not in listed.entries):
            return None
        return Readable(
            name=str(name),
            state="archived",
            ranges=(Range(key, 0, info.size),),
            store=self._store,
            again=partial(self._catalog.binlog, there.lineage, name),
        )

    def _compare(self, there: Inventory, entry: Entry, size: int) -> None:
        """See that an entry is of its object; and of what a page says of it, if one was read."""
        lineage, name = there.lineage.id, entry.name
        entry.check_size(lineage, size)  # the object was not looked at when the entry was read
        row = there.index.row_at_hand(name.number)
        if row is not None and row != replace(entry, blocks=()):
            self._doubt(lineage, name, "has another entry")

    def _last_transaction_end(self, found: Found) -> int:
        size = found.known.size
        start = found.boundary(size)
        scanner = self.blocks.scanner(found, start)
        with closing(self.blocks.read(found, start, size)) as views:
            for view in views:
                _scan(scanner, view, found)
        return scanner.transaction_end

    def _read_open(
        self, name: BinlogName, readable: Readable, size: int
    ) -> tuple[Pass, int, tuple[tuple[int, int], ...]]:
        """One pass over a binlog, how far it came, and what should be behind that.

        What lies before a chunk that is gone or rotten is as good as ever.
        """
        wanted = size
        for _ in range(_MOST_TRIES):
            found = Pass(name, readable, size)
            try:
                found.run()
            except ArchiveError as error:
                upto = readable.size if size > readable.size else _begin_of(readable, found.reached)
                if readable.state == "archived" or not upto or upto >= size:
                    raise
                self.problems.append(error)
                size = upto
            else:
                return found, size, ((size, wanted),) if size < wanted else ()
        raise self.problems[-1]

    def _by_reading(self, lineage: Lineage, name: BinlogName, readable: Readable) -> Found:
        """What can be known of a binlog without an entry: all of its bytes are read."""
        durable = self._durable(lineage.id)
        size = readable.size
        if durable is not None and durable[0] == name and readable.state == "open":
            size = max(size, durable[1])
        read, size, lost = self._read_open(name, readable, size)
        scanner = read.reading.scanner
        if not scanner.formats:
            raise ArchiveError(
                f"{name} of {lineage.id}: the {size} bytes that can be read of it do not begin as "
                f"a binlog does{f': {scanner.damage}' if scanner.damage else ''}",
                hint="it has only just begun, or was damaged; `binlog2s3 list` shows what is there",
            )
        form = scanner.formats[0]
        known = Known(
            name=name,
            size=size,
            state=readable.state,
            ended=readable.state == "archived" or (scanner.ended and scanner.event_end == size),
            first_us=form.timestamp * 1_000_000,
            transaction_end=scanner.transaction_end,
            least_commit_us=scanner.least_commit_us,
            greatest_commit_us=scanner.greatest_commit_us,
            commit_exact=scanner.commit_exact,
            gtids_before=scanner.previous_gtids,
            gtids_added=scanner.gtids,
            transactions=scanner.transactions,
            anonymous=scanner.anonymous,
            blocks=read.reading.digest.blocks(),
            damaged=(*read.damaged, *lost),
            server_id=form.server_id,
        )
        formats = tuple(form.offset for form in scanner.formats)
        return Found(lineage=lineage, known=known, formats=formats, readable=readable)


def _begin_of(readable: Readable, offset: int) -> int:
    """Where the chunk begins from which this byte was to be read."""
    for place in readable.ranges:
        if place.begin <= offset < place.end:
            return place.chunk.begin if place.chunk is not None else place.begin
    return readable.size


def _scan(scanner: Scanner, view: memoryview, found: Found) -> list[Transaction]:
    """What the scanner finds; damage that is not known is the archive's contradiction."""
    try:
        return scanner.feed(view)
    except DamageError as error:
        raise ArchiveError(
            f"{found.known.name} of {found.lineage.id}: {error}; no such damage is known",
            hint="`mysqlbinlog --verify-binlog-checksum` over the object shows more",
        ) from error


def _first_boundary(found: Found, offset: int) -> int | None:
    """From where on to look for the transactions that begin at or behind an offset.

    That is in the block of this offset if one begins in it before, else where the next one begins;
    None if there is none.
    """
    number = offset // BLOCK_SIZE
    if number == 0:
        return 0
    firsts = [b.first_offset for b in found.known.blocks[number:] if b.first_offset is not None]
    return firsts[0] if firsts else None
