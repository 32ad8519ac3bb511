"""Pages: made of entries alone, and read only where they fit their key and themselves."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from binlog2s3.archive.catalog import read
from binlog2s3.archive.pages import SPAN, Page, Running, Step, build
from binlog2s3.binlog.names import BinlogName
from binlog2s3.errors import ArchiveError
from tests.documents import ID, LINEAGE, UUID
from tests.memory_store import MemoryStore
from tests.paged import LAYOUT, Times, entries_of, entry_of, filled, index_of, pages_of

T0 = 1_795_253_309_000_000


def steady(count: int) -> list[Times]:
    return [(T0 + at * 10, T0 + at * 10 + 5) for at in range(count)]


def test_keys_of_pages() -> None:
    """By number, at fixed boundaries."""
    assert LAYOUT.page(ID, 0) == f"pre/archive/orders/{ID}/pages/0000000000-0000000999.json"
    assert LAYOUT.page(ID, 1_000_000).endswith("/0001000000-0001000999.json")
    assert LAYOUT.page(ID, 0).startswith(LAYOUT.pages(ID))


def test_a_page_is_read_as_it_was_written() -> None:
    """Equal, but for the blocks; and equal entries make equal bytes."""
    entries = entries_of(LINEAGE, steady(2 * SPAN))
    first, second = pages_of(LINEAGE, entries, 2 * SPAN)
    assert Page.from_json(second.to_json(), LAYOUT.page(ID, SPAN)) == second
    assert build(LINEAGE, SPAN, entries, first).to_json() == second.to_json()
    assert second.entry(1500) == entries[1500].row
    assert second.entry(999) is None
    assert (first.numbers[0], first.numbers[-1]) == (1, 999)
    assert second.before == first.after
    assert first.after == Running(greatest_commit_us=T0 + 998 * 10 + 5, unbroken_from=1, steps=())


def test_unbroken_ends_at_what_is_missing() -> None:
    """A hole, or GTIDs that do not follow: what comes after is unbroken by itself."""
    entries = entries_of(LINEAGE, steady(2 * SPAN), without=frozenset({700}))
    (first, second) = pages_of(LINEAGE, entries, 2 * SPAN)
    assert (first.after.unbroken_from, second.after.unbroken_from) == (701, 701)
    entries[1800] = replace(entries[1800], gtid_set_before=f"{UUID}:1-2000")
    (_, second) = pages_of(LINEAGE, entries, 2 * SPAN)
    assert second.after.unbroken_from == 1801  # what 1800 adds is in what came before it, as well
    del entries[1999]
    (_, second) = pages_of(LINEAGE, entries, 2 * SPAN)
    assert second.after.unbroken_from == 2000
    assert Page.from_json(second.to_json(), LAYOUT.page(ID, SPAN)) == second


commits = st.lists(
    st.one_of(
        st.none(), st.tuples(st.integers(0, 60), st.integers(0, 9)).map(lambda t: (t[0], sum(t)))
    ),
    max_size=80,
)


@given(times=commits, at_us=st.integers(0, 70))
def test_a_step_names_every_binlog_with_a_time_that_comes_again(
    times: list[Times], at_us: int
) -> None:
    """Whatever clocks do: of a time in no step, nothing comes after what is later."""
    entries = entries_of(LINEAGE, times)
    running = pages_of(LINEAGE, entries, SPAN)[0].after
    again, later = set(), False
    for number in sorted(entries):
        least, greatest = entries[number].least_commit_us, entries[number].greatest_commit_us
        if later and least is not None and least <= at_us:
            again.add(number)
        later = later or (greatest is not None and greatest > at_us)
    step = running.step_at(at_us)
    assert not again or step is not None
    assert all(step is not None and step.first <= number <= step.last for number in again)
    assert running.greatest_commit_us == max((t[1] for t in times if t), default=None)


def test_steps_are_few() -> None:
    """However often the clock steps: the nearest are merged, and none is lost."""
    times: list[Times] = []
    for at in range(400):
        base = T0 + at * 1000
        times += [(base, base + 100), (base + 90, base + 95)]
    running = pages_of(LINEAGE, entries_of(LINEAGE, times), SPAN)[0].after
    assert len(running.steps) == 64
    for at in range(400):
        step = running.step_at(T0 + at * 1000 + 90)
        assert step is not None
        assert step.first <= 2 * at + 2 <= step.last


def changed(name: str, value: object) -> Callable[[dict[str, Any]], object]:
    def change(document: dict[str, Any]) -> None:
        *path, last = name.split(".")
        inner: Any = document
        for step in path:
            inner = inner[int(step)] if isinstance(inner, list) else inner[step]
        inner[int(last) if isinstance(inner, list) else last] = value

    return change


@pytest.mark.parametrize(
    "change",
    [
        changed("first", 1),
        changed("first", 1000),
        changed("lineage", "20260102T030405Z-3e11fa47-ffff"),
        changed("source", "others"),
        changed("entries.0.name", "../../etc.000001"),
        changed("entries.0.name", "mysql-bin.000007"),
        changed("entries.998.name", "mysql-bin.001001"),
        changed("entries.5.name", "other-bin.000006"),
        changed("entries.5.gtid_set_added", "'; DROP TABLE t"),
        changed("entries.5.size", -1),
        changed("entries", []),
        changed("after.unbroken_from", 1001),
        changed("after.greatest_commit_us", T0),
        changed("before.steps", [{"from_us": 1}]),
        changed("format", 2),
    ],
)
def test_a_page_that_does_not_fit_is_not_used(change: Callable[[dict[str, Any]], object]) -> None:
    """By its key, by the format, or by itself: named, and what it should have told is listed."""
    store = MemoryStore()
    entries = entries_of(LINEAGE, steady(SPAN))
    (page,) = pages_of(LINEAGE, entries, SPAN)
    document = json.loads(page.to_json())
    change(document)
    key = LAYOUT.page(ID, 0)
    store.put(key, json.dumps(document).encode())
    with pytest.raises(ArchiveError, match="0000000000-0000000999"):
        read(store, key, Page)
    filled(store, LINEAGE, {number: entries[number] for number in (1, 2, 4)})
    index = index_of(store)
    assert [(run[0], run[-1]) for run in index.runs()] == [(1, 2), (4, 4)]
    (problem,) = index.problems
    assert key in str(problem)


def test_a_page_is_read_up_to_a_limit() -> None:
    """What is larger is no page."""
    store = MemoryStore()
    store.put(LAYOUT.page(ID, 0), b" " * (Page.MOST + 1))
    index = index_of(store)
    assert index.page(0) is None
    assert "larger than" in str(index.problems[0])


def test_what_a_page_says_of_another_prefix_is_not_used() -> None:
    """All binlogs of a lineage have one."""
    store = MemoryStore()
    other = replace(LINEAGE, first_binlog=BinlogName.parse("other.000001"))
    store.put(LAYOUT.page(ID, 0), build(other, 0, {1: entry_of(other, 1)}, None).to_json())
    index = index_of(store)
    assert index.last_page() is None
    assert len(index.problems) == 1


def test_steps_are_sorted_by_time() -> None:
    """As a search among them needs it."""
    running = Running(
        greatest_commit_us=9,
        unbroken_from=1,
        steps=(
            Step(from_us=1, to_us=3, first=4, last=5),
            Step(from_us=5, to_us=6, first=2, last=3),
        ),
    )
    assert [running.step_at(us) is not None for us in range(8)] == [
        False, True, True, False, False, True, False, False,
    ]  # fmt: skip
