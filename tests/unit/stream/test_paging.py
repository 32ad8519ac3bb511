"""Pages are written from the entries in the bucket, once, and nothing waits for them."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from binlog2s3.archive.catalog import Catalog
from binlog2s3.archive.documents import Lineage
from binlog2s3.archive.pages import SPAN, Page, build, name_at
from binlog2s3.binlog.names import BinlogName
from binlog2s3.store.contract import Body, ObjectInfo
from binlog2s3.stream.paging import Pager, put_missing
from binlog2s3.stream.waiting import Stop
from tests.documents import ID, LINEAGE, NAME
from tests.memory_store import MemoryStore
from tests.paged import LAYOUT, entries_of, index_of, lineage_in, pages_of


class Noting(MemoryStore):
    """Remembers what was put, and how."""

    def __init__(self) -> None:
        super().__init__()
        self.puts: list[tuple[str, bool]] = []

    def put(
        self,
        key: str,
        body: Body | bytes,
        *,
        crc64: int | None = None,
        if_absent: bool = False,
        archived: bool = False,
    ) -> ObjectInfo:
        self.puts.append((key, if_absent))
        return super().put(key, body, crc64=crc64, if_absent=if_absent, archived=archived)


def upto(last: int) -> Callable[[BinlogName], bool]:
    return lambda name: name.number <= last


def pages_in(store: MemoryStore) -> list[str]:
    prefix = LAYOUT.pages(ID)
    return [key.removeprefix(prefix)[:10] for key in sorted(store.objects) if prefix in key]


def page_in(store: MemoryStore, first: int) -> Page:
    key = LAYOUT.page(ID, first)
    return Page.from_json(store.get(key), key)


def test_pages_are_made_of_the_entries_in_the_bucket() -> None:
    """Those of whole ranges, in order, with If-None-Match: what is there already stays."""
    store, count = Noting(), 2 * SPAN + 500
    lineage_in(store, LINEAGE, count, pages=())
    store.puts.clear()
    assert put_missing(index_of(store), is_due=upto(count)) == 2
    assert store.puts == [(LAYOUT.page(ID, 0), True), (LAYOUT.page(ID, SPAN), True)]
    assert [page_in(store, at) for at in (0, SPAN)] == pages_of(
        LINEAGE, entries_of(LINEAGE, [None] * count), count + 1
    )
    assert put_missing(index_of(store), is_due=upto(count)) == 0
    assert len(store.puts) == 2


def test_no_page_before_its_last_entry() -> None:
    """Whatever the streamer remembers: an entry may still come until a later one is there."""
    store = MemoryStore()
    lineage_in(store, LINEAGE, SPAN - 2, pages=())
    assert put_missing(index_of(store), is_due=upto(SPAN)) == 0
    lineage_in(store, LINEAGE, SPAN - 1, pages=())
    assert put_missing(index_of(store), is_due=upto(SPAN)) == 1


def test_a_page_with_a_hole() -> None:
    """A binlog that the source could not finish has no entry, also if it is the range's last."""
    store = MemoryStore()
    lineage_in(store, LINEAGE, SPAN, without=[5, SPAN - 1], pages=())
    assert put_missing(index_of(store), is_due=upto(SPAN)) == 1
    page = page_in(store, 0)
    assert (page.entry(5), page.after.unbroken_from) == (None, SPAN)


def test_a_page_in_between_is_made_again() -> None:
    """The same as it was; and a page that cannot be used does not end the writing."""
    store = MemoryStore()
    lineage_in(store, LINEAGE, 3 * SPAN)
    before = {key: store.get(key) for key in store.objects if "/pages/" in key}
    store.delete([LAYOUT.page(ID, SPAN)])
    assert put_missing(index_of(store), is_due=upto(3 * SPAN)) == 1
    assert {key: store.get(key) for key in before} == before
    store.delete([LAYOUT.page(ID, SPAN)])
    store.put(LAYOUT.page(ID, 0), b"{}")
    assert put_missing(index_of(store), is_due=upto(3 * SPAN)) == 1
    assert store.get(LAYOUT.page(ID, SPAN)) == before[LAYOUT.page(ID, SPAN)]


def test_an_entry_that_cannot_be_read_is_left_out() -> None:
    """One bad document is no end of pages."""
    store = MemoryStore()
    lineage_in(store, LINEAGE, SPAN, pages=())
    store.put(LAYOUT.entry(ID, NAME), b"not json")
    assert put_missing(index_of(store), is_due=upto(SPAN)) == 1
    assert page_in(store, 0).entry(NAME.number) is None


def test_another_writers_page_stands() -> None:
    """Two streamers at once: the second one finds it, and goes on."""
    store = MemoryStore()
    lineage_in(store, LINEAGE, 2 * SPAN, pages=())
    index = index_of(store)
    assert index.firsts() == []
    entries = entries_of(LINEAGE, [None] * 2 * SPAN)
    other = build(LINEAGE, 0, entries, None).to_json()
    store.put(LAYOUT.page(ID, 0), other)
    put_missing(index, is_due=upto(2 * SPAN - 1))
    assert store.get(LAYOUT.page(ID, 0)) == other
    assert pages_in(store) == ["0000000000", "0000001000"]


def test_it_ends_at_once() -> None:
    """Between any two requests; what was begun is forgotten."""
    store = MemoryStore()
    lineage_in(store, LINEAGE, SPAN, pages=())
    asked = iter([False] * 10)
    done = put_missing(index_of(store), is_due=upto(SPAN), pause=lambda: next(asked, True))
    assert (done, pages_in(store)) == (0, [])


@pytest.mark.parametrize("lineage", [None, LINEAGE])
def test_a_round_is_of_the_lineage_that_is_written(lineage: Lineage | None) -> None:
    """Before one is known there is nothing to do."""
    store = MemoryStore()
    lineage_in(store, LINEAGE, SPAN, pages=())
    coverage = SimpleNamespace(has=upto(SPAN), lineage=lineage) if lineage else None
    tracking: Any = SimpleNamespace(coverage=coverage)
    pager = Pager(Catalog(store, LAYOUT), tracking, Stop())
    assert pager.round(pause_seconds=0) == (1 if lineage else 0)
    assert pager.round(pause_seconds=0) == 0
    assert bool(pages_in(store)) is bool(lineage)
    assert name_at(LINEAGE, 2) == NAME
