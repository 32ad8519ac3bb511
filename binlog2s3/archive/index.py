"""What a lineage has, found without listing all of it; with its open binlogs: `inventory`.

Pages tell what lies in their range; what no page covers is listed.

Law: a page that is missing or unusable only costs requests. A page that names a binlog does not
prove that the binlog is still there: whoever uses a binlog checks its entry and its object.

Keys sort as text: `mysql-bin.1000000` comes before `mysql-bin.999999`. So a listing begins after a
key only among names of one width; longer names are listed by their first digits.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial

from binlog2s3.archive.catalog import Catalog, Contents, has_hole, read, settled
from binlog2s3.archive.chunks import Chunks
from binlog2s3.archive.documents import EntryRow, Lineage
from binlog2s3.archive.pages import SPAN, Page, first_in, first_of, name_at
from binlog2s3.binlog.names import BinlogName
from binlog2s3.errors import ArchiveError, ObjectMissingError
from binlog2s3.store.contract import ObjectInfo
from binlog2s3.workers import both

_KEPT = 4
_AT_ONCE = 256
_MOST_ROWS = 20_000
_LEAST_WIDTH = 4
"""Shorter numbers have no digits in common that name a page's range."""

ReadEntries = Callable[[Lineage, Sequence[BinlogName]], Mapping[BinlogName, EntryRow]]
"""Reads entries, without those that are missing or cannot be read."""


class Index:
    """Finds the archived binlogs of one lineage. It asks the store once for each fact.

    What a page says of binlogs below the lineage's floor is not believed: they are listed. Make a
    new one for each look; one thread uses it. `read_entries` reads entries that no page has;
    without it they are read one after the other. `span`: numbers in a page. `problems`: the errors
    of pages that could not be used, and are ignored. Without `entries` it lists only the objects.
    """

    def __init__(
        self,
        catalog: Catalog,
        lineage: Lineage,
        *,
        entries: bool = True,
        read_entries: ReadEntries | None = None,
        problems: list[ArchiveError] | None = None,
        span: int = SPAN,
    ) -> None:
        self._lists_entries = entries
        self.catalog = catalog
        self._store, self._layout = catalog.store, catalog.layout
        self._span = span
        self._read_entries = read_entries or self._one_by_one
        self._least = lineage.first_binlog.number
        self._floor = lineage.begin.number
        self._below: Contents | None = None
        self.lineage = lineage
        self.problems = problems if problems is not None else []
        self._firsts: list[int] | None = None
        self._written: dict[int, datetime] = {}
        self._runs: list[range] | None = None
        self._pages: dict[int, Page] = {}
        self._rows: dict[int, EntryRow] = {}
        self._doubted: set[int] = set()
        self._ranges: dict[int, Contents] = {}
        self._tails: dict[int, Contents] = {}

    # Pages

    def firsts(self) -> list[int]:
        """The first numbers of the pages in the bucket, in order. One listing."""
        if self._firsts is None:
            found = []
            prefix = self._layout.pages(self.lineage.id)
            for info in self._store.list(prefix):
                first = first_in(info.key.removeprefix(prefix), self._span)
                if first is None:
                    self.catalog.foreign[info.key] = ""
                elif first >= self.first_of(self._least):
                    found.append(first)
                    self._written[first] = info.last_modified
            self._firsts = sorted(found)
        return self._firsts

    def first_of(self, number: int) -> int:
        """The first number of the page that a binlog number belongs to."""
        return first_of(number, self._span)

    def page(self, first: int) -> Page | None:
        """The page that begins with this number; None if there is none that can be used.

        The pages that were asked for last stay in memory.
        """
        if first in self._pages:
            self._pages[first] = self._pages.pop(first)
        elif first in self.firsts():
            if (page := self._read(first)) is None:
                self._drop(first)
                return None
            _keep(self._pages, first, page)
        return self._pages.get(first)

    def _read(self, first: int) -> Page | None:
        key = self._layout.page(self.lineage.id, first, self._span)
        try:
            page = read(self._store, key, Page)
        except ObjectMissingError:
            return None
        except ArchiveError as error:
            self.problems.append(error)
            return None
        name = page.entries[0].name if page.entries else self.lineage.first_binlog
        if name != name_at(self.lineage, name.number):
            why = f"{key} has {name}, which is no binlog of its lineage"
            self.problems.append(ArchiveError(why, hint="delete the page: it is a cache"))
            return None
        return page

    def entry(self, name: BinlogName, written: datetime) -> EntryRow | None:
        """A binlog's entry as its page has it, without blocks; None if it must be read.

        `written` is when the store got the entry's object. Only an entry that is older than its
        page is surely the one that the page was made from.
        """
        page = self.page(self.first_of(name.number))
        made = self._written.get(page.first) if page is not None else None
        if page is None or made is None or written >= made:
            return None
        entry = page.entry(name.number)
        return entry if entry is not None and entry.name == name else None

    def distrust(self, number: int) -> None:
        """The page with this number was wrong: its range is listed from now on."""
        self._doubted.add(self.first_of(number))
        self._drop(self.first_of(number))

    def _drop(self, first: int) -> None:
        self._runs = None
        self._pages.pop(first, None)
        if first in self.firsts():
            self.firsts().remove(first)

    def add(self, page: Page) -> None:
        """Note that this page was written."""
        self._runs = None
        if page.first not in self.firsts():
            self.firsts().append(page.first)
            self.firsts().sort()

    def last_page(self) -> Page | None:
        """The last page that can be used."""
        while self.firsts():
            if (page := self.page(self.firsts()[-1])) is not None:
                return page
        return None

    def _one_by_one(
        self, lineage: Lineage, names: Sequence[BinlogName]
    ) -> Mapping[BinlogName, EntryRow]:
        found = {}
        for name in names:
            try:
                found[name] = self.catalog.entry(lineage, name)
            except (ObjectMissingError, ArchiveError):
                continue
        return found

    # What is there

    def runs(self) -> list[range]:
        """The numbers of the archived binlogs, in order, by pages; without a page, by listings.

        It reads the last page. For each break before it, it reads one page, or lists its range.
        """
        if self._runs is None:
            self._runs = self._find_runs()
        return self._runs

    def has(self, number: int) -> bool:
        """Whether the binlog of this number is archived, as pages or listings say."""
        at = bisect_right(self.runs(), number, key=lambda run: run.start) - 1
        return at >= 0 and number in self.runs()[at]

    def last_number(self) -> int | None:
        """The number of the last binlog that is archived; None if none is."""
        return self.runs()[-1][-1] if self.runs() else None

    def _find_runs(self) -> list[range]:
        last, least = self.last_page(), self._floor
        upto = last.last if last is not None else least - 1
        found = list(_runs(name.number for name in self.below_floor().binlogs))
        found += _runs(name.number for name in self.tail(max(upto, least - 1)).binlogs)
        while upto >= least:
            page = self.page(self.first_of(upto))
            if page is None:
                numbers = [name.number for name in self.archived(self.first_of(upto)).binlogs]
                found += _runs(number for number in numbers if least <= number <= upto)
                upto = self.first_of(upto) - 1
                continue
            before = page.before.unbroken_from
            if upto == page.last and page.after.unbroken_from <= page.first:
                before = page.after.unbroken_from
            else:
                found += _runs(number for number in page.numbers if least <= number <= upto)
                found += self._filled(page, upto)
                upto = page.first - 1
            before = max(before, least, *(d + self._span for d in self._doubted if d <= upto))
            if before <= upto:
                found.append(range(before, upto + 1))
            upto = min(before - 1, upto)
        return _joined(found)

    def _filled(self, page: Page, upto: int) -> list[range]:
        """Archived binlogs that a page has no entry of: `verify --repair` may have made one."""
        missing = set(range(max(page.first, self._floor), upto + 1)) - set(page.numbers)
        binlogs = self.archived(page.first).binlogs if missing else ()
        return list(_runs(name.number for name in binlogs if name.number in missing))

    def below_floor(self) -> Contents:
        """The objects and entries below the floor that are still there.

        Two listings that end at the floor; none if there is no floor.
        """
        if self._below is None:
            binlogs: dict[BinlogName, ObjectInfo] = {}
            entries: dict[BinlogName, ObjectInfo] = {}
            if self._floor > self._least:
                layout, id_ = self._layout, self.lineage.id
                binlogs = self._named_below(layout.binlogs(id_), "")
                entries = self._named_below(layout.entries(id_), ".json")
            found = Contents(binlogs=binlogs, entries=entries)
            self._below = _within(self.lineage, found, self._least, self._floor - 1)
        return self._below

    def _named_below(self, prefix: str, suffix: str) -> dict[BinlogName, ObjectInfo]:
        """Names of one width are listed up to the floor; with longer ones, all are."""
        end = f"{prefix}{self.lineage.begin}{suffix}"
        if self.lineage.begin.width > self.lineage.first_binlog.width:
            return self.catalog.named(prefix)
        return self.catalog.named(prefix, end=end)

    def undescribed(self) -> Iterator[BinlogName]:
        """The binlogs that were listed and have no entry."""
        there_below = [self._below] if self._below is not None else []
        for contents in (*there_below, *self._ranges.values(), *self._tails.values()):
            yield from contents.binlogs.keys() - contents.entries.keys()

    def listing_of(self, number: int) -> Contents | None:
        """The listing of this number's range; None if it was not listed yet."""
        if (found := self._ranges.get(self.first_of(number))) is not None:
            return found
        if number < self._floor:
            return self.below_floor()
        return next((tail for at, tail in self._tails.items() if number > at), None)

    def archived(self, first: int) -> Contents:
        """The objects and entries in the range of the page with this number. Two listings."""
        first = self.first_of(first)
        if first + self._span <= self._floor:
            return _within(self.lineage, self.below_floor(), first, first + self._span - 1)
        if first not in self._ranges:
            begin = max(first, self._least)
            tail = next((contents for at, contents in self._tails.items() if begin > at), None)
            last = first + self._span - 1
            if tail is None:
                self._ranges[first] = self._listed(self._digits(first), "", first, last)
            else:
                self._ranges[first] = _within(self.lineage, tail, first, last)
        return self._ranges[first]

    def tail(self, number: int) -> Contents:
        """The objects and entries of the binlogs after this number."""
        if number not in self._tails:
            self._tails[number] = self._tail(number)
        return self._tails[number]

    def _tail(self, number: int) -> Contents:
        after = name_at(self.lineage, number)
        binlogs: dict[BinlogName, ObjectInfo] = {}
        entries: dict[BinlogName, ObjectInfo] = {}
        first = number + 1
        if after.width <= self.lineage.first_binlog.width:
            start = str(after) if number >= 0 else ""
            found = self._listed("", start, number + 1, None)
            binlogs, entries = {**found.binlogs}, {**found.entries}
            greatest = max((name.number for name in binlogs), default=number)
            first = 10**after.width
            if greatest < first - SPAN:
                return found
        while True:  # longer names: range by range, as long as something is there
            listed = self._listed(
                self._digits(first), "", first_of(first), first_of(first) + SPAN - 1
            )
            binlogs |= {name: info for name, info in listed.binlogs.items() if name.number > number}
            entries |= {name: info for name, info in listed.entries.items() if name.number > number}
            if not (listed.binlogs or listed.entries):
                return Contents(binlogs=binlogs, entries=entries)
            first = first_of(first) + SPAN

    def _digits(self, number: int) -> str:
        """The common prefix of the names in this number's range of 1,000."""
        name = name_at(self.lineage, number)
        if self.lineage.first_binlog.width < _LEAST_WIDTH or self._span != SPAN:
            return f"{name.prefix}."
        return str(name)[: -len(str(SPAN - 1))]

    def _listed(self, begin: str, start_after: str, low: int, high: int | None) -> Contents:
        lineage, layout = self.lineage, self._layout
        entry_after = f"{start_after}.json" if start_after else ""

        def names(prefix: str, after: str) -> dict[BinlogName, ObjectInfo]:
            return self.catalog.named(prefix, begin=begin, start_after=after)

        of_binlogs = partial(names, layout.binlogs(lineage.id), start_after)
        if self._lists_entries:
            of_entries = partial(names, layout.entries(lineage.id), entry_after)
            found = Contents(*both(of_binlogs, of_entries))
        else:
            found = Contents(of_binlogs())
        return _within(lineage, found, low, high)

    # Times and GTIDs

    def row(self, number: int) -> EntryRow | None:
        """The entry of an archived binlog without its blocks; None if it has none."""
        if not self.has(number):
            return None
        page = self.page(self.first_of(number))
        if page is not None:
            return page.entry(number)
        if number not in self._rows:
            self._read_rows(number)
        return self._rows.get(number)

    def _read_rows(self, number: int) -> None:
        """Read entries that no page has, starting with this one."""
        contents = self.archived(self.first_of(number))
        names = sorted(
            n for n in contents.entries.keys() & contents.binlogs.keys() if n.number >= number
        )
        found = self._read_entries(self.lineage, names[:_AT_ONCE])
        while self._rows and len(self._rows) + len(found) > _MOST_ROWS:
            del self._rows[next(iter(self._rows))]
        self._rows |= {name.number: entry.row for name, entry in found.items()}

    def row_at_hand(self, number: int) -> EntryRow | None:
        """The same, if its page is in memory. It reads nothing."""
        page = self._pages.get(self.first_of(number))
        return page.entry(number) if page is not None else None

    def _rows_of(self, begin: int, last: int) -> Iterator[EntryRow]:
        """The entries of these binlogs, in order."""
        for run in self.runs():
            for number in range(max(run.start, begin), min(run.stop, last + 1)):
                if (entry := self.row(number)) is not None:
                    yield entry

    def first_later(self, at_us: int, begin: int) -> int | None:
        """The first archived binlog, starting with `begin`, that has a later commit."""
        last, begin = self.last_number(), max(begin, self._least)
        while last is not None and begin <= last:
            end = self.first_of(begin) + self._span - 1
            for entry in self._rows_of(begin, end):
                if _is_later(entry.greatest_commit_us, at_us):
                    return entry.name.number
            begin = self._not_before(self.first_of(begin), at_us)
        return None

    def _not_before(self, first: int, at_us: int) -> int:
        """The first number of the next range that may have a later commit."""
        low, high = first, max([first, *self.firsts()])
        while low < high:  # all from `first` up to the end of the page `low` is not later
            pages = [page for page in self.firsts() if low < page <= high]
            if not pages:
                break
            middle = pages[(len(pages) - 1) // 2]
            if (found := self.page(middle)) is None:
                continue  # it cannot be used, and is not among them any more
            if not _is_later(found.after.greatest_commit_us, at_us):
                low = middle
            else:
                high = middle - 1
        return low + self._span

    def not_later(self, at_us: int, begin: int) -> Iterator[int]:
        """The archived binlogs, starting with `begin`, that may have a commit up to this time."""
        last = self.last_number()
        later = self.first_later(at_us, begin)
        if later is None:
            yield from self._with_least(at_us, begin, -1 if last is None else last)
            return
        yield from self._with_least(at_us, begin, later)
        page = self.last_page()
        step = page.after.step_at(at_us) if page is not None else None
        known = page.last if page is not None else -1
        for first in range(self.first_of(later + 1), (last or 0) + 1, self._span):
            low, high = max(later + 1, first), first + self._span - 1
            if first in self.firsts() and high <= known and first not in self._doubted:
                if step is None:
                    continue
                low, high = max(low, step.first), min(high, step.last)
            yield from self._with_least(at_us, low, high)

    def _with_least(self, at_us: int, begin: int, last: int) -> Iterator[int]:
        for entry in self._rows_of(begin, last):
            if entry.least_commit_us is not None and entry.least_commit_us <= at_us:
                yield entry.name.number

    def unbroken_to(self, number: int) -> int:
        """The last binlog up to which GTIDs show no break after this one, as a page says."""
        for page in (self.last_page(), self.page(self.first_of(number))):
            if page is not None and page.after.unbroken_from <= number <= page.last:
                return page.last
        return number


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """All binlogs of a lineage. `open`: the chunks of those that are not archived."""

    index: Index
    open: Mapping[BinlogName, Chunks]

    @property
    def lineage(self) -> Lineage:
        return self.index.lineage

    def __contains__(self, name: BinlogName) -> bool:
        """Whether the bucket has bytes of this binlog, as pages and listings say."""
        return name in self.open or (
            name == name_at(self.lineage, name.number) and self.index.has(name.number)
        )

    def names(self, is_readable: Callable[[Chunks], bool]) -> list[BinlogName]:
        """All archived binlogs, and the open ones that `is_readable` accepts, in order."""
        found = [name for name, chunks in self.open.items() if is_readable(chunks)]
        for run in self.index.runs():
            found += [name_at(self.lineage, number) for number in run]
        return sorted(found)

    def without_entry(self) -> list[BinlogName]:
        """The binlogs that have neither a page nor an entry, as listings say, in order."""
        return sorted({*self.open, *self.index.undescribed()})


def inventory(catalog: Catalog, lineage: Lineage, look: Callable[[], Index]) -> Inventory:
    """List a lineage: chunks first, so that a binlog that is archived meanwhile is never missed.

    `look` makes a new index. A hole can mean that chunks changed during their listing, so both are
    repeated.
    """

    def once() -> Inventory:
        index = look()
        # pages are only hints; the binlogs are listed after both
        chunks, _pages = both(lambda: catalog.chunked(lineage).open, index.firsts)
        return Inventory(
            index=index,
            open={
                name: chunks[name]
                for name in chunks
                if name != name_at(lineage, name.number) or not index.has(name.number)
            },
        )

    return settled(once, lambda found: not any(map(has_hole, found.open.values())))


def _keep(pages: dict[int, Page], first: int, page: Page) -> None:
    pages[first] = page
    while len(pages) > _KEPT:
        del pages[next(iter(pages))]


def _is_later(greatest_us: int | None, at_us: int) -> bool:
    return greatest_us is not None and greatest_us > at_us


def _within(lineage: Lineage, contents: Contents, low: int, high: int | None) -> Contents:
    def is_in(name: BinlogName) -> bool:
        is_own = name == name_at(lineage, name.number)
        return is_own and low <= name.number and (high is None or name.number <= high)

    return Contents(
        binlogs={name: info for name, info in contents.binlogs.items() if is_in(name)},
        entries={name: info for name, info in contents.entries.items() if is_in(name)},
    )


def _runs(numbers: Iterable[int]) -> Iterator[range]:
    """Ranges of consecutive numbers."""
    return iter(_joined(range(number, number + 1) for number in numbers))


def _joined(runs: Iterable[range]) -> list[range]:
    found: list[range] = []
    for run in sorted(runs, key=lambda run: run.start):
        if found and run.start <= found[-1].stop:
            found[-1] = range(found[-1].start, max(found[-1].stop, run.stop))
        else:
            found.append(run)
    return found
