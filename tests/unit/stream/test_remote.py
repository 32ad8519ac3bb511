"""What somebody put under the streamer's keys before it writes there, in a bucket that keeps it."""

from dataclasses import replace
from datetime import timedelta

import pytest

from binlog2s3.archive.catalog import Catalog
from binlog2s3.archive.layout import Layout
from binlog2s3.errors import StoreError
from binlog2s3.status.model import Measurements, judge
from binlog2s3.store.contract import ObjectVersion
from binlog2s3.stream.remote import Plants
from tests.documents import ENTRY, ID, LINEAGE, NAME, TIME
from tests.memory_store import MemoryStore

LAYOUT = Layout("p", "orders")
FIRST = LINEAGE.first_binlog
ENTRY_KEY = LAYOUT.entry(ID, NAME)


def version(key: str, seconds: float, size: int | None = 9) -> ObjectVersion:
    """A version, put so many seconds after TIME; without a size, a delete marker."""
    at = TIME + timedelta(seconds=seconds)
    return ObjectVersion(key=key, version=f"v{seconds}", at=at, latest=False, size=size)


@pytest.fixture
def store() -> MemoryStore:
    """A lineage with one archived binlog, whose entry was put 100 s after TIME."""
    store = MemoryStore()
    store.put(LAYOUT.lineage(ID), LINEAGE.to_json())
    store.put(LAYOUT.entry(ID, FIRST), replace(ENTRY, name=FIRST).to_json())
    store.versions = [version(LAYOUT.lineage(ID), 0), version(LAYOUT.entry(ID, FIRST), 100)]
    return store


@pytest.mark.parametrize(
    ("seconds", "hides"), [(50.0, False), (99.9, False), (100.0, True), (150.0, True)]
)
def test_an_entry_is_hidden_by_what_came_after_the_one_before(
    store: MemoryStore, seconds: float, *, hides: bool
) -> None:
    """What is older is told and does no harm: readers do not take it."""
    plants = Plants(Catalog(store, LAYOUT))
    assert not plants.hide_entry(ENTRY_KEY)
    assert plants.planted == frozenset()
    store.versions += [version(ENTRY_KEY, seconds), version(ENTRY_KEY, seconds + 1, None)]
    assert plants.hide_entry(ENTRY_KEY) == hides
    assert plants.planted == {ENTRY_KEY}
    (trouble,) = judge(Measurements(planted=tuple(plants.planted)))[1]
    assert (trouble.code, trouble.level) == ("planted", "warning")
    assert ENTRY_KEY in trouble.text


def test_where_no_order_is_known_all_hides(store: MemoryStore) -> None:
    """The binlog before has no entry, or still has chunks."""
    store.versions = [version(ENTRY_KEY, -50)]
    assert Plants(Catalog(store, LAYOUT)).hide_entry(ENTRY_KEY)
    store.versions.append(version(LAYOUT.entry(ID, FIRST), 100))
    assert not Plants(Catalog(store, LAYOUT)).hide_entry(ENTRY_KEY)
    store.put(f"{LAYOUT.chunks(ID, FIRST)}{0:016}-{4:016}-{0:016x}", b"1234")
    assert Plants(Catalog(store, LAYOUT)).hide_entry(ENTRY_KEY)


def test_a_delete_marker_alone_hides_nothing(store: MemoryStore) -> None:
    """Somebody deleted what was never there."""
    store.versions.append(version(ENTRY_KEY, 150, None))
    assert not Plants(Catalog(store, LAYOUT)).hide_entry(ENTRY_KEY)


def test_turns_that_were_used_are_passed_over(store: MemoryStore) -> None:
    """Also those that were deleted; a foreign key has no number."""
    store.versions = [version(LAYOUT.turn(number), 1) for number in (1, 2, 4, 10**17)]
    store.versions.append(version(f"{LAYOUT.turns}x.json", 1))
    plants = Plants(Catalog(store, LAYOUT))
    assert plants.turns(2) == {4, 10**17}
    assert plants.planted == {LAYOUT.turn(4), LAYOUT.turn(10**17)}


def test_a_lineage_that_somebody_began(store: MemoryStore) -> None:
    """Any key of it."""
    other = ID.replace("a1b2", "ffff")
    plants = Plants(Catalog(store, LAYOUT))
    assert not plants.in_lineage(other)
    store.versions.append(version(LAYOUT.entry(other, NAME), 1))
    assert plants.in_lineage(other)


def test_who_may_not_list_versions_goes_on(
    store: MemoryStore, caplog: pytest.LogCaptureFixture
) -> None:
    """It is said once. A store that does not answer is waited for."""

    class Denied(MemoryStore):
        transient = False

        def kept(self, prefix: str) -> "list[ObjectVersion]":  # type: ignore[override]
            raise StoreError(f"denied: {prefix}", transient=self.transient)

    denied = Denied()
    plants = Plants(Catalog(denied, LAYOUT))
    assert not plants.hide_entry(ENTRY_KEY)
    assert not plants.in_lineage(ID)
    assert caplog.text.count("not looked for") == 1
    denied.transient = True
    with pytest.raises(StoreError):
        plants.hide_entry(ENTRY_KEY)
