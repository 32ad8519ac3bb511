"""Entries and pages of a lineage whose binlogs are told by their commit times alone."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import cache

from binlog2s3.archive.catalog import Catalog
from binlog2s3.archive.documents import Entry, Lineage
from binlog2s3.archive.index import Index
from binlog2s3.archive.layout import Layout
from binlog2s3.archive.pages import SPAN, Page, build, first_of, name_at
from binlog2s3.binlog.names import BinlogName
from binlog2s3.store.contract import Store
from tests.documents import ENTRY, LINEAGE, UUID
from tests.memory_store import MemoryStore

LAYOUT = Layout("pre", "orders")
Times = tuple[int, int] | None
"""The least and the greatest commit time of a binlog; None if it has no transaction."""


def entry_of(lineage: Lineage, number: int, times: Times = None) -> Entry:
    """The entry of the binlog of this number; each has one transaction, which is the next one."""
    first = lineage.first_binlog.number
    added = f"{UUID}:{number}" if times else ""
    return replace(
        ENTRY,
        name=name_at(lineage, number),
        size=4,
        least_commit_us=times[0] if times else None,
        greatest_commit_us=times[1] if times else None,
        gtid_set_before=f"{UUID}:{first}-{number - 1}" if number > first else "",
        gtid_set_added=added or f"{UUID}:{number}",
        transactions=1 if times else 0,
        next_binlog=name_at(lineage, number + 1),
        blocks=(),
    )


def entries_of(
    lineage: Lineage, times: Sequence[Times], *, without: frozenset[int] = frozenset()
) -> dict[int, Entry]:
    """The entries of consecutive binlogs, from the lineage's first one on."""
    first = lineage.first_binlog.number
    return {
        first + at: entry_of(lineage, first + at, one)
        for at, one in enumerate(times)
        if first + at not in without
    }


def pages_of(lineage: Lineage, entries: Mapping[int, Entry], end: int) -> list[Page]:
    """The pages of all ranges that end before the number `end`."""
    found: list[Page] = []
    for first in range(first_of(lineage.first_binlog.number), end - SPAN + 1, SPAN):
        found.append(build(lineage, first, entries, found[-1] if found else None))
    return found


def filled(store: Store, lineage: Lineage, entries: Mapping[int, Entry]) -> None:
    """Put a lineage, its binlogs of four bytes each, and their entries."""
    store.put(LAYOUT.lineage(lineage.id), lineage.to_json())
    for entry in entries.values():
        store.put(LAYOUT.binlog(lineage.id, entry.name), b"\xfebin")
        store.put(LAYOUT.entry(lineage.id, entry.name), entry.to_json())


@cache
def _filled(first: str, count: int) -> MemoryStore:
    store, lineage = MemoryStore(), replace(LINEAGE, first_binlog=BinlogName.parse(first))
    filled(store, lineage, entries_of(lineage, [None] * count))
    return store


def lineage_in(
    store: MemoryStore,
    lineage: Lineage,
    count: int,
    *,
    without: Collection[int] = (),
    pages: Collection[int] | None = None,
) -> None:
    """Put so many quiet binlogs into the store, and those pages: all that are whole, else."""
    store.objects |= _filled(str(lineage.first_binlog), count).objects
    entries = entries_of(lineage, [None] * count, without=frozenset(without))
    for number in without:
        name = name_at(lineage, number)
        store.delete([LAYOUT.binlog(lineage.id, name), LAYOUT.entry(lineage.id, name)])
    for page in pages_of(lineage, entries, lineage.first_binlog.number + count):
        if pages is None or page.first in pages:
            store.put(LAYOUT.page(lineage.id, page.first), page.to_json())


def index_of(store: Store, lineage: Lineage = LINEAGE) -> Index:
    """A look at it."""
    return Index(Catalog(store, LAYOUT), lineage)
