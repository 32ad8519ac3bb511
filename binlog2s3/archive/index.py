"""What a lineage has in the archive, found without listing all of it.

Place in the flow: between the planner, `list` and the others that read, and `catalog`, which lists
and reads. Pages tell what lies in their range; what no page covers is listed.

Law: a page that is missing, or cannot be used, only costs requests. That a page names a binlog does
not prove that it is still there: who uses a binlog looks at its entry and its object.

Keys sort as text: `mysql-bin.1000000` comes before `mysql-bin.999999`. So a listing begins after a
key only among names of one width; longer names are listed by their first digits.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime

from binlog2s3.archive.catalog import Archived, Catalog, Layout, read
from binlog2s3.archive.documents import Entry, Lineage
from binlog2s3.archive.pages import SPAN, Page, first_in, first_of, name_at
from binlog2s3.binlog.names import BinlogName
from binlog2s3.errors import ArchiveError, ObjectMissingError
from binlog2s3.store.contract import ObjectInfo, Store

_KEPT = 4
_LEAST_WIDTH = 4
"""Shorter numbers have no digits in common that name a page's range."""


@dataclass(frozen=True, slots=True)
class Run:
    """Binlogs `first` to `last`, by number: all are archived, as pages or listings say."""

    first: int
    last: int


class Index:
    """Finds what one lineage has. Every fact is asked for once; made for one look of one thread.

    `problems`: pages that could not be used. They are ignored. Without `entries` only objects are
    listed: half of the listings.
    """

    def __init__(
        self,
        store: Store,
        catalog: Catalog,
        layout: Layout,
        lineage: Lineage,
        *,
        entries: bool = True,
    ) -> None:
        self._lists_entries = entries
        self._store = store
        self._catalog = catalog
        self._layout = layout
        self.lineage = lineage
        self.problems: list[ArchiveError] = []
        self._firsts: list[int] | None = None
        self._written: dict[int, datetime] = {}
        self._pages: dict[int, Page] = {}
        self._doubted: set[int] = set()
        self._ranges: dict[int, Archived] = {}
        self._tails: dict[int, Archived] = {}

    # Pages

    def firsts(self) -> list[int]:
        """The first numbers of the pages that are there, in order. One listing."""
        if self._firsts is None:
            found = []
            prefix = self._layout.pages(self.lineage.id)
            least = first_of(self.lineage.first_binlog.number)
            for info in self._store.list(prefix):
                first = first_in(info.key.removeprefix(prefix))
                if first is None:
                    self._catalog.foreign.add(info.key)
                elif first >= least:
                    found.append(first)
                    self._written[first] = info.last_modified
            self._firsts = sorted(found)
        return self._firsts

    def page(self, first: int) -> Page | None:
        """The page that begins with this number; None if there is none that can be used.

        The last few that were asked for stay in memory.
        """
        if first in self._pages:
            self._pages[first] = self._pages.pop(first)
        elif first in self.firsts():
            if (page := self._read(first)) is None:
                self._drop(first)
                return None
            self._pages[first] = page
            while len(self._pages) > _KEPT:
                del self._pages[next(iter(self._pages))]
        return self._pages.get(first)

    def _read(self, first: int) -> Page | None:
        key = self._layout.page(self.lineage.id, first)
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

    def entry(self, name: BinlogName, written: datetime) -> Entry | None:
        """A binlog's entry as its page has it, without blocks; None if it must be read.

        `written` is when the store got the entry's object. Only an entry that is older than its
        page is surely the one that the page was made from.
        """
        page = self.page(first_of(name.number))
        made = self._written.get(page.first) if page is not None else None
        if page is None or made is None or written >= made:
            return None
        entry = page.entry(name.number)
        return entry if entry is not None and entry.name == name else None

    def distrust(self, number: int) -> None:
        """What a page says of this number's range is not so: the range is listed from now on."""
        self._doubted.add(first_of(number))
        self._drop(first_of(number))

    def _drop(self, first: int) -> None:
        self._pages.pop(first, None)
        if first in self.firsts():
            self.firsts().remove(first)

    def add(self, page: Page) -> None:
        """Say that this page was written."""
        if page.first not in self.firsts():
            self.firsts().append(page.first)
            self.firsts().sort()

    def last_page(self) -> Page | None:
        """The last page that can be used."""
        while self.firsts():
            if (page := self.page(self.firsts()[-1])) is not None:
                return page
        return None

    # What is there

    def runs(self) -> list[Run]:
        """The binlogs that are archived, in order, as pages say, and listings where there is none.

        Reads the last page, and one page, or lists its range, for each break in what came before.
        """
        last = self.last_page()
        least = self.lineage.first_binlog.number
        upto = last.last if last is not None else least - 1
        numbers = [name.number for name in self.tail(upto).binlogs]
        found = list(_runs(numbers))
        while upto >= least:
            page = self.page(first_of(upto))
            if page is None:
                there = [name.number for name in self.archived(first_of(upto)).binlogs]
                found += _runs(number for number in there if least <= number <= upto)
                upto = first_of(upto) - 1
                continue
            before = page.before.unbroken_from
            if upto == page.last and page.after.unbroken_from <= page.first:
                before = page.after.unbroken_from
            else:
                found += _runs(number for number in page.numbers if number <= upto)
                found += self._filled(page, upto)
                upto = page.first - 1
            before = max(before, least, *(one + SPAN for one in self._doubted if one <= upto))
            if before <= upto:
                found.append(Run(before, upto))
            upto = min(before - 1, upto)
        return _joined(found)

    def _filled(self, page: Page, upto: int) -> list[Run]:
        """What a page has no entry of, and is there: `verify --repair` may have made its entry."""
        begin = max(page.first, self.lineage.first_binlog.number)
        missing = set(range(begin, upto + 1)) - set(page.numbers)
        there = self.archived(page.first).binlogs if missing else ()
        return list(_runs(name.number for name in there if name.number in missing))

    def archived(self, first: int) -> Archived:
        """The objects and entries in the range of the page that begins so. Two listings."""
        if first not in self._ranges:
            last = first_of(first) + SPAN - 1
            self._ranges[first] = self._listed(self._digits(first), "", first, last)
        return self._ranges[first]

    def tail(self, number: int) -> Archived:
        """The objects and entries of the binlogs after this number."""
        if number not in self._tails:
            self._tails[number] = self._tail(number)
        return self._tails[number]

    def _tail(self, number: int) -> Archived:
        after = name_at(self.lineage, number)
        binlogs: dict[BinlogName, ObjectInfo] = {}
        entries: dict[BinlogName, ObjectInfo] = {}
        first = first_of(number + 1)
        if after.width <= self.lineage.first_binlog.width:
            start = str(after) if number >= 0 else ""
            found = self._listed("", start, number + 1, None)
            binlogs, entries = {**found.binlogs}, {**found.entries}
            greatest = max((name.number for name in binlogs), default=number)
            first = 10**after.width
            if greatest < first - SPAN:
                return found
        while True:  # longer names: range by range, as long as something is there
            there = self.archived(first)
            binlogs |= {name: info for name, info in there.binlogs.items() if name.number > number}
            entries |= {name: info for name, info in there.entries.items() if name.number > number}
            if not (there.binlogs or there.entries):
                return Archived(lineage=self.lineage, binlogs=binlogs, entries=entries)
            first = first_of(first) + SPAN

    def _digits(self, first: int) -> str:
        """What the names in a page's range begin with."""
        name = name_at(self.lineage, first)
        if self.lineage.first_binlog.width < _LEAST_WIDTH:
            return f"{name.prefix}."
        return str(name)[: -len(str(SPAN - 1))]

    def _listed(self, begin: str, start_after: str, low: int, high: int | None) -> Archived:
        lineage, layout = self.lineage, self._layout
        entry_after = f"{start_after}.json" if start_after else ""
        binlogs = self._catalog.named(
            layout.binlogs(lineage.id), "", begin=begin, start_after=start_after
        )
        entries: dict[BinlogName, ObjectInfo] = {}
        if self._lists_entries:
            entries = self._catalog.named(
                layout.entries(lineage.id), ".json", begin=begin, start_after=entry_after
            )

        def is_in(name: BinlogName) -> bool:
            is_own = name == name_at(lineage, name.number)
            return is_own and low <= name.number and (high is None or name.number <= high)

        return Archived(
            lineage=lineage,
            binlogs={name: info for name, info in binlogs.items() if is_in(name)},
            entries={name: info for name, info in entries.items() if is_in(name)},
        )


def _runs(numbers: Iterable[int]) -> Iterator[Run]:
    """Consecutive numbers together."""
    return iter(_joined(Run(number, number) for number in numbers))


def _joined(runs: Iterable[Run]) -> list[Run]:
    found: list[Run] = []
    for run in sorted(runs, key=lambda one: one.first):
        if found and run.first <= found[-1].last + 1:
            found[-1] = Run(found[-1].first, max(found[-1].last, run.last))
        else:
            found.append(run)
    return found
