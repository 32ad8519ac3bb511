"""A plan is the same with pages as without, whatever clocks, pages and what is missing are like."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from binlog2s3.archive.catalog import Catalog
from binlog2s3.archive.index import Index
from binlog2s3.archive.pages import Page, build, first_of, name_at
from binlog2s3.binlog.gtid import GtidSet
from binlog2s3.config.goal import BeforeGtid, Goal, Latest, ToGtid, ToTime
from binlog2s3.errors import Binlog2s3Error
from binlog2s3.recover.model import Plan, Request, Start
from binlog2s3.recover.plan import make
from binlog2s3.recover.snapshot import Snapshot
from tests.binlog_writer import UUID_A, XID, BinlogWriter, statement
from tests.documents import BEAT, ID, LINEAGE
from tests.snapshots import LAYOUT, Bucket, workers

SPAN = 3
T0 = 1_795_253_400_000_000
HISTORY = replace(LINEAGE, gtid_set="")


@dataclass(frozen=True)
class Lived:
    """A bucket with these binlogs; `commits` are the times of all transactions, in log order."""

    bucket: Bucket
    commits: tuple[int, ...]
    count: int


def lived(times: Sequence[Sequence[int]], *, is_open: bool) -> Lived:
    """Each binlog has transactions with these times; the last may be open, in chunks."""
    bucket, commits = Bucket(HISTORY), list[int]()
    bucket.beat(replace(BEAT, durable=None, covered_until=None))
    for at, those in enumerate(times):
        number, is_last = at + 1, at + 1 == len(times)
        writer = BinlogWriter(server_version="9.7.0")
        writer.previous_gtids(GtidSet({(UUID_A, ""): [(1, len(commits))]} if commits else {}))
        for commit_us in those:
            commits.append(T0 + commit_us)
            writer.transaction(
                [statement("BEGIN"), statement("INSERT"), XID],
                gtid=(UUID_A, "", len(commits)),
                commit_us=commits[-1],
            )
        name = name_at(HISTORY, number)
        if is_last and is_open:
            bucket.chunk(writer.data, 0, len(writer.data), name)
        else:
            writer.rotate(str(name.next()))
            bucket.archive(writer.data, name)
    return Lived(bucket, tuple(commits), len(times) - is_open)


def put_pages(lived: Lived, wanted: Sequence[bool]) -> None:
    """Put those that are wanted of all pages, as a streamer makes them."""
    catalog = Catalog(lived.bucket, LAYOUT)
    entries = {n: catalog.entry(HISTORY, name_at(HISTORY, n)) for n in range(1, lived.count + 1)}
    page: Page | None = None
    for first, is_wanted in zip(range(first_of(1, SPAN), lived.count, SPAN), wanted, strict=False):
        if first + SPAN - 1 > lived.count:
            return
        page = build(HISTORY, first, entries, page, end=first + SPAN)
        if is_wanted:
            lived.bucket.put(LAYOUT.page(ID, first, SPAN), page.to_json())


def outcome(bucket: Bucket, request: Request) -> object:
    """The plan, or why there is none."""
    snapshot = Snapshot(Catalog(bucket, LAYOUT), workers(), span=SPAN)
    try:
        return make(request, snapshot)
    except Binlog2s3Error as error:
        return type(error), str(error), error.hint


def numbers(gtids: object) -> list[int]:
    """Of the transactions, in the order of the only server that wrote them."""
    assert isinstance(gtids, GtidSet)
    return [
        number
        for _, _, runs in gtids.runs()
        for first, last in runs
        for number in range(first, last + 1)
    ]


def rows(written: Sequence[int]) -> dict[int, int]:
    """What a few rows hold after these transactions, one after the other."""
    return {number % 2: number for number in written}


def without_pages(bucket: Bucket) -> Bucket:
    """The same bucket, if no page had been written."""
    other = Bucket(HISTORY)
    other.objects = {key: one for key, one in bucket.objects.items() if "/pages/" not in key}
    return other


ticks = st.lists(st.lists(st.integers(0, 40), max_size=3), min_size=1, max_size=14)
steady = ticks.map(
    lambda times: [[at * 50 + one for one in sorted(those)] for at, those in enumerate(times)]
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    times=st.one_of(steady, ticks),
    is_open=st.booleans(),
    pages=st.lists(st.booleans(), min_size=5, max_size=5),
    gone=st.lists(
        st.tuples(st.integers(1, 14), st.sampled_from(["binlog", "entry", "both"])), max_size=2
    ),
    data=st.data(),
)
def test_a_plan_with_pages_is_that_without(
    times: list[list[int]],
    is_open: bool,
    pages: list[bool],
    gone: list[tuple[int, str]],
    data: st.DataObject,
) -> None:
    """Also of pages that tell of binlogs or entries which are not there any more.

    Off the plan's way these are not looked for: what can be reached at all is what pages say.
    """
    history = lived(times, is_open=is_open)
    put_pages(history, pages)
    for number, what in gone:
        name = name_at(HISTORY, number)
        if what in {"binlog", "both"}:
            history.bucket.delete([LAYOUT.binlog(ID, name)])
        if what in {"entry", "both"}:
            history.bucket.delete([LAYOUT.entry(ID, name)])
    count = len(history.commits)
    have = data.draw(st.integers(0, count))
    goals = [st.just(Latest()), st.integers(-1, 800).map(lambda us: ToTime(T0 + us, "then"))]
    if count:
        gtid = st.integers(1, count).map(lambda number: f"{UUID_A}:{number}")
        goals += [gtid.map(ToGtid), gtid.map(BeforeGtid)]
    goal: Goal = data.draw(st.one_of(goals))
    executed = GtidSet({(UUID_A, ""): [(1, have)]} if have else {})
    request = Request(goal=goal, start=Start(gtids=executed), allow_gap=data.draw(st.booleans()))
    found = outcome(history.bucket, request)
    wanted = outcome(without_pages(history.bucket), request)
    if gone and isinstance(found, Plan) and isinstance(wanted, Plan):
        found = replace(found, reach=wanted.reach)  # what pages say, off the plan's way
    elif gone:
        found, wanted = type(found), type(wanted)
    assert found == wanted


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    times=steady.filter(lambda times: sum(map(len, times)) > 2),
    is_open=st.booleans(),
    pages=st.lists(st.booleans(), min_size=5, max_size=5),
    data=st.data(),
)
def test_a_hole_is_found_with_pages_as_without(
    times: list[list[int]], is_open: bool, pages: list[bool], data: st.DataObject
) -> None:
    """A server that has any of the transactions: it is refused, or gets the source's rows."""
    history = lived(times, is_open=is_open)
    put_pages(history, pages)
    count = len(history.commits)
    have = sorted(data.draw(st.sets(st.integers(1, count), max_size=count - 1)))
    executed = GtidSet({(UUID_A, ""): [(number, number) for number in have]})
    request = Request(goal=Latest(), start=Start(gtids=executed))
    found = outcome(history.bucket, request)
    assert found == outcome(without_pages(history.bucket), request)
    assert isinstance(found, Plan) is (have == list(range(1, len(have) + 1)))
    if isinstance(found, Plan):
        assert rows([*have, *numbers(found.adds)]) == rows(range(1, count + 1))


@given(
    times=ticks,
    pages=st.lists(st.booleans(), min_size=5, max_size=5),
    at_us=st.integers(0, 60),
    begin=st.integers(1, 14),
)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_no_binlog_is_missed_by_its_times(
    times: list[list[int]], pages: list[bool], at_us: int, begin: int
) -> None:
    """The first later one is that; of those that are not later, none is left out."""
    history = lived(times, is_open=False)
    put_pages(history, pages)
    index = Index(Catalog(history.bucket, LAYOUT), HISTORY, span=SPAN)
    numbered = [(n, those) for n, those in enumerate(times, 1) if n >= begin and those]
    later = [n for n, those in numbered if max(those) > at_us]
    assert index.first_later(T0 + at_us, begin) == (later[0] if later else None)
    assert list(index.not_later(T0 + at_us, begin)) == [
        n for n, those in numbered if min(those) <= at_us
    ]
    assert index.problems == []


@pytest.mark.parametrize("wanted", [(True,) * 5, (False,) * 5])
def test_the_pages_are_read(wanted: tuple[bool, ...]) -> None:
    """What the tests above compare is not twice the same."""
    history = lived([[at * 10] for at in range(14)], is_open=False)
    put_pages(history, wanted)
    read: list[str] = []
    history.bucket.on_act = lambda operation, keys, _: read.extend(
        key for key in keys if operation == "get"
    )
    index = Index(Catalog(history.bucket, LAYOUT), HISTORY, span=SPAN)
    assert index.first_later(T0 + 115, 1) == 13
    assert any("/pages/" in key for key in read) is wanted[0]
    assert sum("/entries/" in key for key in read) == (0 if wanted[0] else 14)
