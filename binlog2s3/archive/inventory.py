"""What one lineage has, archived and open, found with few requests.

Chunks are listed first, so that a binlog that is archived meanwhile is never missed.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from binlog2s3.archive.catalog import Catalog, has_hole, settled
from binlog2s3.archive.chunks import Chunks
from binlog2s3.archive.documents import Lineage
from binlog2s3.archive.index import Index
from binlog2s3.archive.pages import name_at
from binlog2s3.binlog.names import BinlogName
from binlog2s3.workers import both


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """The binlogs of a lineage. `open`: the chunks of those that are not archived."""

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
            found += [name_at(self.lineage, number) for number in range(run.first, run.last + 1)]
        return sorted(found)

    def without_entry(self) -> list[BinlogName]:
        """The binlogs that have neither a page nor an entry, as listings say, in order."""
        return sorted({*self.open, *self.index.undescribed()})


def inventory(catalog: Catalog, lineage: Lineage, look: Callable[[], Index]) -> Inventory:
    """List a lineage. `look` makes a new index.

    A hole can mean that chunks changed during their listing, so both are repeated.
    """

    def once() -> Inventory:
        index = look()
        # pages are only hints; the binlogs are listed after both
        chunks, _pages = both(lambda: catalog.chunked(lineage).open, index.firsts)
        growing = {
            name: those
            for name, those in chunks.items()
            if name != name_at(lineage, name.number) or not index.has(name.number)
        }
        return Inventory(index=index, open=growing)

    return settled(once, lambda found: not any(map(has_hole, found.open.values())))
