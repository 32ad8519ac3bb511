"""Where an archive ends is found from its last page on, however large it is."""

from collections.abc import Collection, Iterator
from dataclasses import replace

import pytest

from binlog2s3.archive.catalog import Catalog
from binlog2s3.archive.chunks import Chunk
from binlog2s3.archive.documents import LineageFloor
from binlog2s3.archive.pages import SPAN, name_at
from binlog2s3.binlog.checksum import crc64nvme
from binlog2s3.store.contract import ObjectInfo
from binlog2s3.stream.archive_end import archive_end
from tests.documents import ID, LINEAGE, TIME, UUID
from tests.memory_store import MemoryStore
from tests.paged import LAYOUT, lineage_in


class Listing(MemoryStore):
    """Counts the keys that are listed."""

    listed = 0

    def list(self, prefix: str, *, start_after: str = "") -> Iterator[ObjectInfo]:
        for info in super().list(prefix, start_after=start_after):
            self.listed += 1
            yield info


@pytest.mark.parametrize("count", [SPAN - 1, SPAN, 2 * SPAN - 1, 2 * SPAN + 7])
@pytest.mark.parametrize("pages", [(), (0,), (SPAN,), (0, SPAN)])
def test_the_end_is_the_same_with_pages(count: int, pages: Collection[int]) -> None:
    """Wherever the pages end, and whichever are missing."""
    store = Listing()
    lineage_in(store, LINEAGE, count, pages=pages)
    known = archive_end(Catalog(store, LAYOUT), LINEAGE)
    assert known.last == name_at(LINEAGE, count)
    assert known.following == name_at(LINEAGE, count + 1)
    assert known.size > 0
    if SPAN in pages and count >= 2 * SPAN - 1:
        assert store.listed < 60


@pytest.mark.parametrize("what", ["binlog", "entry", "both"])
@pytest.mark.parametrize("gone", [1, 20])
def test_a_page_is_no_proof_of_the_end(what: str, gone: int) -> None:
    """If the last binlog of the last page is not there, all are looked at from the first on."""
    store = MemoryStore()
    lineage_in(store, LINEAGE, SPAN - 1)
    names = [name_at(LINEAGE, SPAN - 1 - at) for at in range(gone)]
    if what in {"binlog", "both"}:
        store.delete([LAYOUT.binlog(ID, name) for name in names])
    if what in {"entry", "both"}:
        store.delete([LAYOUT.entry(ID, name) for name in names])
    known = archive_end(Catalog(store, LAYOUT), LINEAGE)
    assert known.following == names[-1]
    assert known.last == name_at(LINEAGE, SPAN - 1 - gone)


def test_a_hole_before_the_last_page_does_not_end_the_history() -> None:
    """What was deleted long ago is missing, and the newest is what is gone on from."""
    store = MemoryStore()
    lineage_in(store, LINEAGE, SPAN + 5)
    store.delete([LAYOUT.binlog(ID, name_at(LINEAGE, 7)), LAYOUT.entry(ID, name_at(LINEAGE, 7))])
    known = archive_end(Catalog(store, LAYOUT), LINEAGE)
    assert known.following == name_at(LINEAGE, SPAN + 6)


def test_what_a_prune_left_below_the_floor_is_not_followed() -> None:
    """It was interrupted: the open binlog follows the floor, not what is left of long ago."""
    store = MemoryStore()
    lineage_in(store, LINEAGE, 2)
    floor = LineageFloor(
        source=LINEAGE.source,
        lineage=ID,
        binlog=name_at(LINEAGE, 9),
        gtid_set=f"{UUID}:1-90",
        raised_at=TIME,
    )
    data = b"of the open binlog"
    chunk = Chunk(0, len(data), crc64nvme(data))
    store.put(LAYOUT.chunk(ID, name_at(LINEAGE, 9), chunk), data)
    known = archive_end(Catalog(store, LAYOUT), replace(LINEAGE, floor=floor))
    assert (known.last, known.following) == (None, name_at(LINEAGE, 9))
    assert (known.next_size, str(known.gtids)) == (len(data), floor.gtid_set)
