"""What a lineage has, by its pages and by listing what they do not cover."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta

import pytest

from binlog2s3.archive.pages import SPAN, build, name_at
from binlog2s3.binlog.names import BinlogName
from binlog2s3.store.contract import ObjectInfo
from tests.documents import ID, LINEAGE
from tests.memory_store import MemoryStore
from tests.paged import LAYOUT, entry_of, filled, index_of, lineage_in

WIDE = replace(LINEAGE, first_binlog=BinlogName.parse("mysql-bin.998001"))


class Counting(MemoryStore):
    """Counts what is listed."""

    def __init__(self) -> None:
        super().__init__()
        self.listed = 0

    def list(self, prefix: str, *, start_after: str = "") -> Iterator[ObjectInfo]:
        for info in super().list(prefix, start_after=start_after):
            self.listed += 1
            yield info


def shown(store: MemoryStore, lineage: object = LINEAGE) -> list[tuple[int, int]]:
    assert isinstance(lineage, type(LINEAGE))
    return [(run[0], run[-1]) for run in index_of(store, lineage).runs()]


def test_one_page_tells_of_all_before_it() -> None:
    """With no break in them: three listings and one page, of any number of binlogs."""
    store = Counting()
    lineage_in(store, LINEAGE, 3 * SPAN + 5)
    assert shown(store) == [(1, 3 * SPAN + 5)]
    assert (store.calls["list"], store.calls["get"]) == (3, 1)
    assert store.listed == 3 + 2 * 6


def test_an_entry_comes_from_its_page() -> None:
    """If the page is younger: only then it was made from this entry."""
    store = MemoryStore()
    lineage_in(store, LINEAGE, SPAN + 5)
    index = index_of(store)
    made = store.objects[LAYOUT.page(ID, 0)].info.last_modified
    before = made - timedelta(microseconds=1)
    first = name_at(LINEAGE, 1)
    assert index.entry(first, before) == entry_of(LINEAGE, 1).row
    assert index.entry(first, made) is None
    assert index.entry(name_at(LINEAGE, SPAN), before) is None
    assert index.entry(BinlogName(first.prefix, first.number, 9), before) is None


@pytest.mark.parametrize("pages", [(0, 1, 2), (1, 2), (0, 2), (0, 1), (2,), ()])
@pytest.mark.parametrize("holes", [(1,), (500,), (999, 1000), (1, 1500), (2999,), (2000, 2999)])
def test_missing_pages_and_holes(pages: tuple[int, ...], holes: tuple[int, ...]) -> None:
    """The same is seen, whichever pages are missing, and whatever is not there."""
    store, count = MemoryStore(), 3 * SPAN + 5
    lineage_in(store, LINEAGE, count, without=holes, pages=[at * SPAN for at in pages])
    seen = {number for first, last in shown(store) for number in range(first, last + 1)}
    assert seen == set(range(1, count + 1)) - set(holes)


def test_what_was_added_to_a_hole_is_seen() -> None:
    """`verify --repair` makes entries that a page does not have."""
    store = MemoryStore()
    lineage_in(store, LINEAGE, SPAN + 5, without=[300])
    assert shown(store) == [(1, 299), (301, SPAN + 5)]
    filled(store, LINEAGE, {300: entry_of(LINEAGE, 300)})
    assert shown(store) == [(1, SPAN + 5)]


@pytest.mark.parametrize("upto", [998_500, 999_999, 1_000_000, 1_000_400, 1_001_003])
@pytest.mark.parametrize("pages", [(), (998,), (998, 999), (998, 999, 1000)])
def test_names_that_grow_wider(upto: int, pages: tuple[int, ...]) -> None:
    """mysql-bin.1000000 sorts before mysql-bin.999999, and comes after it."""
    store = MemoryStore()
    lineage_in(store, WIDE, upto - 998_000, pages=[at * SPAN for at in pages])
    assert shown(store, WIDE) == [(998_001, upto)]


def test_names_of_other_widths_cost_little() -> None:
    """After a million binlogs a listing does not go through all the shorter names."""
    store = Counting()
    lineage = replace(LINEAGE, first_binlog=BinlogName.parse("mysql-bin.999001"))
    lineage_in(store, lineage, 2 * SPAN)
    for number in range(100_100, 101_600):  # of the same lineage, if it had begun before
        store.put(LAYOUT.binlog(ID, name_at(lineage, number)), b"\xfebin")
    assert shown(store, lineage) == [(999_001, 1_001_000)]
    assert store.listed < 300


def test_a_page_that_is_distrusted_is_listed_instead() -> None:
    """An object that is gone makes the bucket say what is there."""
    store = MemoryStore()
    lineage_in(store, LINEAGE, 2 * SPAN)
    store.delete([LAYOUT.binlog(ID, name_at(LINEAGE, 40))])
    index = index_of(store)
    assert [(run[0], run[-1]) for run in index.runs()] == [(1, 2 * SPAN)]
    index.distrust(0)
    assert [(run[0], run[-1]) for run in index.runs()] == [(1, 39), (41, 2 * SPAN)]


def test_the_last_pages_alone_stay_in_memory() -> None:
    """Whoever goes through all of them holds a few."""
    store, before = MemoryStore(), None
    for first in range(0, 6 * SPAN, SPAN):
        before = build(LINEAGE, first, {first + 1: entry_of(LINEAGE, first + 1)}, before)
        store.put(LAYOUT.page(ID, first), before.to_json())
    index = index_of(store)
    for first in index.firsts():
        index.page(first)
    gets = store.calls["get"]
    index.page(5 * SPAN)
    assert store.calls["get"] == gets
    index.page(0)
    assert store.calls["get"] == gets + 1
