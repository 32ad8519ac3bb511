"""Where a search looks, and where it need not; what it says of what it could not look at."""

import gc
import struct
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from io import StringIO
from typing import Literal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from binlog2s3.archive.catalog import Catalog
from binlog2s3.archive.documents import Lineage
from binlog2s3.archive.facts import Facts
from binlog2s3.binlog.gtid import GtidSet, MariadbGtidList
from binlog2s3.binlog.names import BinlogName
from binlog2s3.binlog.scanner import EventType
from binlog2s3.errors import ArchiveError
from binlog2s3.inspect.find.match import Criteria, Hit, SearchQuery, SearchStats, Tables
from binlog2s3.inspect.find.scan import TransactionSearch
from binlog2s3.inspect.find.view import SearchContext, TextOutput
from binlog2s3.output import Plain
from binlog2s3.recover.snapshot import Snapshot
from tests.binlog_writer import (
    BEGIN,
    NOW_US,
    ROLLBACK,
    UUID_A,
    UUID_B,
    XID,
    BinlogWriter,
    statement,
)
from tests.documents import BEAT, ID, LINEAGE, NAME, like, parent_of
from tests.property.test_paged_plan import SPAN, T0, lived, put_pages, without_pages
from tests.snapshots import BLOCK, KEY, LAYOUT, MARIADB, Bucket, workers
from tests.unit.binlog.test_content import rows, squeezed, table_map

SECOND = 1_000_000
ORDERS = Tables((("shop", "orders"),))
ANY = Criteria()
OTHER = "20260103T030405Z-b4308ccf-0001"


def binlog(
    first: int,
    count: int,
    *,
    size: int = 100,
    rotate: bool = True,
    uuid: str = UUID_A,
    number: int = 1,
    before: str = "",
    apart_us: int = SECOND,
) -> BinlogWriter:
    """Transactions of one row each, one a second; every fifth is of shop.orders."""
    made = BinlogWriter()
    made.previous_gtids(GtidSet.parse(before or (f"{uuid}:1-{first - 1}" if first > 1 else "")))
    for gno in range(first, first + count):
        table = "orders" if gno % 5 == 0 else "stock"
        row = rows(EventType.WRITE_ROWS, 7, 1, value=b"x" * size)
        made.transaction(
            [BEGIN, table_map(7, table), row, XID],
            gtid=(uuid, "", gno),
            commit_us=NOW_US + gno * apart_us,
        )
    if rotate:
        made.rotate(f"mysql-bin.{number + 1:06d}")
    return made


def name(number: int) -> BinlogName:
    return BinlogName.parse(f"mysql-bin.{number:06d}")


def emptied() -> Bucket:
    """A bucket with a lineage that begins with binlog 1."""
    return Bucket(replace(LINEAGE, gtid_set="", parent=None, first_binlog=name(1)))


def archived(*binlogs: BinlogWriter) -> Bucket:
    """With these binlogs."""
    bucket = emptied()
    for number, one in enumerate(binlogs, 1):
        bucket.archive(one.data, name=name(number))
    return bucket


def searched(
    bucket: Bucket, query: SearchQuery | None = None, **changes: object
) -> tuple[list[Hit], list[str], SearchStats]:
    """Hits, warnings, what was looked through."""
    chosen = replace(query or SearchQuery(wanted=ANY), **changes)  # type: ignore[arg-type]
    warnings: list[str] = []
    search = TransactionSearch(
        bucket.snapshot(), chosen, threads=2, warn=warnings.append, advance=lambda _: None
    )
    return list(search.hits()), warnings, search.stats


def numbers(hits: Sequence[Hit]) -> list[int]:
    return [int((hit.transaction.gtid or "0:0").rpartition(":")[2]) for hit in hits]


def archive(*sizes: int, apart_us: int = SECOND) -> Bucket:
    """Binlogs of 10 transactions with rows of these sizes; the last one is open."""
    bucket = emptied()
    for at, size in enumerate(sizes):
        is_last = at == len(sizes) - 1
        made = binlog(
            at * 10 + 1, 10, size=size, rotate=not is_last, number=at + 1, apart_us=apart_us
        )
        if is_last:
            bucket.chunks(made.data, 0, len(made.data), name=name(at + 1))
        else:
            bucket.archive(made.data, name=name(at + 1))
    bucket.beat(replace(BEAT, lineage=ID, durable=None, covered_until=None))
    bucket.asked.clear()
    return bucket


def paged(times: Sequence[Sequence[int]]) -> tuple[Bucket, list[str]]:
    """A bucket with pages of three binlogs, and the keys that are read of it."""
    history = lived(times, is_open=False)
    put_pages(history, (True,) * len(times))
    read: list[str] = []
    history.bucket.on_act = lambda operation, keys, _: read.extend(
        key for key in keys if operation == "get"
    )
    return history.bucket, read


@pytest.mark.parametrize("order", ["newest", "oldest"])
@pytest.mark.parametrize("by", ["time", "gtid"])
def test_an_interval_costs_no_entry_of_other_binlogs(
    by: str, order: Literal["newest", "oldest"]
) -> None:
    """Pages say what cannot match: of a hundred, one entry is read, and one that no page has."""
    bucket, read = paged([[at * 10, at * 10 + 5] for at in range(99)])
    query = SearchQuery(wanted=ANY, order=order)
    if by == "time":
        query = replace(query, since_us=T0 + 500, until_us=T0 + 505)
    else:
        query = replace(query, gtids=(f"{UUID_A}:101-102",))
    warnings: list[str] = []
    snapshot = Snapshot(Catalog(bucket, LAYOUT), workers(), span=SPAN)
    search = TransactionSearch(
        snapshot, query, threads=2, warn=warnings.append, advance=lambda _: None
    )
    assert sorted(numbers([*search.hits()])) == [101, 102]
    assert warnings == []
    entries = {key for key in read if "/entries/" in key}
    assert LAYOUT.entry(ID, name(51)) in entries
    assert entries <= {LAYOUT.entry(ID, name(51)), LAYOUT.entry(ID, name(99))}
    assert sum("/pages/" in key for key in read) < 4 * 99 / SPAN
    assert search.stats.binlogs == 1


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    times=st.lists(st.lists(st.integers(0, 60), max_size=3), min_size=1, max_size=12),
    wanted=st.lists(st.booleans(), min_size=4, max_size=4),
    gone=st.none() | st.integers(1, 12),
    since=st.none() | st.integers(0, 60),
    until=st.none() | st.integers(0, 60),
    order=st.sampled_from(["newest", "oldest"]),
    most_blocks=st.sampled_from([1, 30, 10_000]),
)
def test_a_search_with_pages_finds_what_one_without_finds(
    times: list[list[int]],
    wanted: list[bool],
    gone: int | None,
    since: int | None,
    until: int | None,
    order: Literal["newest", "oldest"],
    most_blocks: int,
) -> None:
    """Whatever the clock did, which pages there are, and how much is kept in memory."""
    history = lived(times, is_open=len(times) % 2 == 0)
    put_pages(history, wanted)
    if gone is not None and gone < history.count:
        history.bucket.delete([LAYOUT.binlog(ID, name(gone)), LAYOUT.entry(ID, name(gone))])
    query = SearchQuery(
        wanted=ANY,
        since_us=None if since is None else T0 + since,
        until_us=None if until is None else T0 + until,
        order=order,
    )
    found = []
    for bucket in (history.bucket, without_pages(history.bucket)):
        snapshot = Snapshot(Catalog(bucket, LAYOUT), workers(), span=SPAN)
        search = TransactionSearch(
            snapshot,
            query,
            threads=2,
            warn=lambda _: None,
            advance=lambda _: None,
            most_blocks=most_blocks,
        )
        found.append(numbers([*search.hits()]))
    assert found[0] == found[1]
    here = {n for n, us in enumerate(history.commits, 1) if query.in_time(us, us, exact=True)}
    lost = here - {*found[0]}
    assert {*found[0]} <= here
    assert not lost or gone is not None


def test_what_is_known_of_binlogs_does_not_stay_in_memory() -> None:
    """A search through many of them keeps few of their entries; it may ask for one again."""
    bucket = lived([[at] for at in range(60)], is_open=False).bucket
    alive = []

    def count(_: object) -> None:
        alive.append(sum(isinstance(one, Facts) and bool(one.blocks) for one in gc.get_objects()))

    search = TransactionSearch(
        bucket.snapshot(),
        SearchQuery(wanted=ANY),
        threads=2,
        warn=lambda _: None,
        advance=count,
        most_blocks=50,
    )
    gc.collect()
    gc.freeze()  # what there is already is not counted each time
    try:
        assert numbers([*search.hits()]) == [*range(60, 0, -1)]
    finally:
        gc.unfreeze()
    assert max(alive) - alive[0] < 25


def test_of_large_binlogs_the_newest_are_found_by_reading_the_end() -> None:
    """Not the binlog from its beginning, nor those before."""
    bucket = emptied()
    for number in (1, 2):
        made = binlog(number * 100 - 99, 100, size=400_000, number=number)
        bucket.archive(made.data, name=name(number))
    bucket.asked.clear()
    hits, _, stats = searched(bucket, limit=3)
    assert numbers(hits) == [200, 199, 198]
    assert stats.ended_early
    assert bucket.fetched < 5 * BLOCK
    hits, _, stats = searched(bucket, order="oldest", limit=3)
    assert numbers(hits) == [1, 2, 3]


def test_a_table_is_found_over_blocks() -> None:
    """Every transaction of it, wherever blocks end; in both orders."""
    bucket = archive(900_000, 1_700_000, 900_000, 2_500_000)
    query = SearchQuery(wanted=Criteria(tables=ORDERS))
    for order, expected in (("newest", range(40, 0, -5)), ("oldest", range(5, 41, 5))):
        hits, warnings, _ = searched(bucket, query, order=order)
        assert numbers(hits) == list(expected)
        assert warnings == []
        assert all(hit.match.certain and hit.match.matched[0].rows == 1 for hit in hits)


def test_a_transaction_of_many_blocks() -> None:
    """What comes before it and behind it is found, and it."""
    made = BinlogWriter()
    made.previous_gtids(GtidSet.parse(""))
    for gno, (table, count) in enumerate((("stock", 1), ("orders", 30), ("stock", 1)), 1):
        many = [rows(EventType.WRITE_ROWS, 7, 2, value=b"y" * 500_000) for _ in range(count)]
        made.transaction(
            [BEGIN, *[e for row in many for e in (table_map(7, table), row)], XID],
            gtid=(UUID_A, "", gno),
            commit_us=NOW_US + gno,
        )
    made.rotate()
    bucket = archived(made)
    for wanted, expected in (
        (Criteria(tables=ORDERS), [2]),
        (Criteria(min_rows=60), [2]),
        (Criteria(min_rows=61), []),
        (Criteria(), [3, 2, 1]),
        (Criteria(tables=Tables((("shop", "stock"),))), [3, 1]),
    ):
        hits, warnings, _ = searched(bucket, SearchQuery(wanted=wanted))
        assert (numbers(hits), warnings) == (expected, [])
        assert all(h.content.changes[0].rows == 60 for h in hits if numbers([h]) == [2])


@pytest.mark.parametrize("kinds", [frozenset(), frozenset({"insert"})])
def test_compressed_rows_are_more_than_their_bytes(kinds: frozenset[str]) -> None:
    """MariaDB's, with no compressed statement beside them: 5,000 rows in a few hundred bytes."""
    made = BinlogWriter(server_version="11.4.2-MariaDB-log")
    made.gtid_list(MariadbGtidList())
    row = rows(EventType.WRITE_ROWS, 7, 5000)[1][10:]
    packed_rows = (7).to_bytes(6, "little") + b"\1\0" + row[:2] + squeezed(row[2:])
    events = [table_map(7, "orders"), (EventType.WRITE_ROWS_COMPRESSED_V1, packed_rows), XID]
    made.mariadb_transaction(events, gtid=(0, 1))
    assert len(made.data) < 1000
    made.rotate()
    bucket = Bucket(replace(MARIADB, gtid_set="", parent=None, first_binlog=name(1)))
    bucket.archive(made.data, name=name(1))
    for least, expected in ((5000, ["0-7-1"]), (5001, [])):
        wanted = Criteria(tables=ORDERS, kinds=kinds, min_rows=least)
        hits, warnings, _ = searched(bucket, SearchQuery(wanted=wanted))
        assert ([hit.transaction.gtid for hit in hits], warnings) == (expected, [])


def test_entries_leave_out_binlogs() -> None:
    """By commit times and GTIDs: their bytes are not asked for."""
    for changes in (
        {"since_us": NOW_US + 11 * SECOND, "until_us": NOW_US + 20 * SECOND},
        {"gtids": (f"{UUID_A}:12-13,{UUID_B}:1",)},
    ):
        bucket = archive(100, 100, 100, 100)
        hits, warnings, stats = searched(bucket, **changes)
        expected = range(20, 10, -1) if "since_us" in changes else [13, 12]
        assert (numbers(hits), warnings) == (list(expected), [])
        of_bytes = {one.key for one in bucket.asked if "/binlogs/" in one.key}
        assert of_bytes == {LAYOUT.binlog(ID, name(2))}
        assert stats.size == stats.of_size or "gtids" in changes


@pytest.mark.parametrize("step", [-9000, -700, 900, 9000])
def test_a_clock_that_stepped_within_a_block_hides_nothing(step: int) -> None:
    """Back or forward, in the binlog's range of times or out of it, whatever its blocks begin with.

    Ten transactions lie in a block, and one of them is of another time.
    """
    made = BinlogWriter()
    made.previous_gtids(GtidSet.parse(""))
    stepped = NOW_US + (2500 + step) * SECOND
    for gno in range(1, 51):
        row = rows(EventType.WRITE_ROWS, 7, 1, value=b"x" * 400_000)
        made.transaction(
            [BEGIN, table_map(7, "orders"), row, XID],
            gtid=(UUID_A, "", gno),
            commit_us=stepped if gno == 25 else NOW_US + gno * 100 * SECOND,
        )
    made.rotate()
    bucket = archived(made)
    for order in ("newest", "oldest"):
        hits, _, _ = searched(
            bucket, since_us=stepped - SECOND, until_us=stepped + SECOND, order=order
        )
        assert 25 in numbers(hits)


def test_a_gap_behind_a_clock_that_stepped_is_said() -> None:
    """A commit of tomorrow before it does not say that what is missing is of tomorrow."""
    bucket = archive(100, 100, 100)
    made = BinlogWriter()
    made.previous_gtids(GtidSet.parse(""))
    for gno in range(1, 11):
        made.transaction(
            [BEGIN, table_map(7, "orders"), rows(EventType.WRITE_ROWS, 7, 1), XID],
            gtid=(UUID_A, "", gno),
            commit_us=NOW_US + (86_400 if gno == 5 else gno) * SECOND,
        )
    made.rotate("mysql-bin.000002")
    bucket.archive(made.data, name=name(1))
    del bucket.objects[LAYOUT.binlog(ID, name(2))]
    del bucket.objects[LAYOUT.entry(ID, name(2))]
    hits, warnings, _ = searched(
        bucket, since_us=NOW_US + 12 * SECOND, until_us=NOW_US + 13 * SECOND
    )
    assert hits == []
    (gap,) = warnings
    assert f"between {name(1)} and {name(3)}" in gap


def test_whole_seconds_are_in_time_with_any_part() -> None:
    """MariaDB's."""
    bucket = Bucket(replace(MARIADB, parent=None))
    made = BinlogWriter(server_version="11.4.2-MariaDB-log")
    made.gtid_list(MariadbGtidList.parse("0-7-3"))
    for seq in (4, 5, 6):
        made.timestamp += 1
        made.mariadb_transaction(
            [table_map(7, "orders"), rows(EventType.WRITE_ROWS_V1, 7, 0), XID], gtid=(0, seq)
        )
    made.rotate()
    bucket.archive(made.data)
    half = NOW_US + 2 * SECOND + SECOND // 2
    hits, _, _ = searched(bucket, since_us=half, until_us=half)
    assert [hit.transaction.gtid for hit in hits] == ["0-7-5"]
    hits, _, _ = searched(bucket, gtids=("0-7-6,0-8-4", "0-7-4"))
    assert [hit.transaction.gtid for hit in hits] == ["0-7-6", "0-7-4"]


def test_a_block_that_is_rotten_is_passed_over() -> None:
    """What lies in it is lost, and what lies only in part in it; all else is found."""
    for order in ("newest", "oldest"):
        bucket = emptied()
        made = binlog(1, 50, size=400_000)
        bucket.archive(made.data, name=name(1))
        bucket.objects[LAYOUT.binlog(ID, name(1))].data = bytes(
            made.data[: 2 * BLOCK + 9]
        ) + b"?" + bytes(made.data[2 * BLOCK + 10 :])  # fmt: skip
        lost = [
            one.gtid for one in made.transactions if one.begin < 3 * BLOCK and one.end > 2 * BLOCK
        ]
        for wanted in (Criteria(), Criteria(tables=Tables((("shop", "*"),)))):
            hits, warnings, _ = searched(bucket, SearchQuery(wanted=wanted), order=order)
            found = {hit.transaction.gtid for hit in hits}
            assert found == {one.gtid for one in made.transactions} - set(lost)
            assert warnings
            assert all("not searched: bytes" in one and str(name(1)) in one for one in warnings)


def test_what_is_missing_is_said_at_its_place() -> None:
    """Numbers that lack; not where the time that is asked for is another one."""
    bucket = archive(100, 100, 100, 100)
    del bucket.objects[LAYOUT.binlog(ID, name(2))]
    del bucket.objects[LAYOUT.entry(ID, name(2))]
    hits, warnings, _ = searched(bucket)
    assert numbers(hits) == [*range(40, 20, -1), *range(10, 0, -1)]
    (gap,) = warnings
    assert f"between {name(1)} and {name(3)}" in gap
    for since, until, is_said in ((-9, 0, False), (12, 13, True), (31, 39, False)):
        _, warnings, _ = searched(
            bucket, since_us=NOW_US + since * SECOND, until_us=NOW_US + until * SECOND
        )
        assert bool(warnings) == is_said, (since, until)
    _, warnings, _ = searched(bucket, limit=3)
    assert warnings == []


def test_a_binlog_without_an_entry_is_read() -> None:
    """All of it: nothing says what is where."""
    bucket = archive(100, 100, 100)
    del bucket.objects[LAYOUT.entry(ID, name(2))]
    hits, warnings, _ = searched(bucket)
    assert numbers(hits) == list(range(30, 0, -1))
    assert warnings == []


def test_an_entry_that_is_none_leaves_its_binlog_out() -> None:
    """With a warning; the others are searched."""
    bucket = archive(100, 100, 100)
    bucket.put(LAYOUT.entry(ID, name(2)), b"{")
    hits, warnings, _ = searched(bucket)
    assert numbers(hits) == [*range(30, 20, -1), *range(10, 0, -1)]
    assert any(f"not searched: {name(2)}" in one for one in warnings)


@pytest.mark.parametrize("seconds", [9, 19, 20, 21, 99])
def test_what_is_shown_is_in_the_bucket(seconds: int) -> None:
    """The writer's word may be older than what is there: then its time is not printed."""
    bucket = archive(100, 100)
    covered = datetime.fromtimestamp(NOW_US // SECOND + seconds, UTC)
    beat = replace(BEAT, lineage=ID, durable=None, covered_until=covered, generation=9)
    bucket.beat(replace(beat, at=covered))
    hits, _, stats = searched(bucket)
    assert stats.covered_us == NOW_US + seconds * SECOND
    out = StringIO()
    view = TextOutput(
        Plain(out), SearchContext(source="orders", archive="s3://x"), SearchQuery(wanted=ANY)
    )
    for hit in hits:
        view.hit(hit)
    view.end(stats, ())
    assert ("committed until" in out.getvalue()) == (seconds >= 20)
    assert ("may not be in the bucket yet" in out.getvalue()) == (seconds < 20)


def test_a_damaged_event_is_named() -> None:
    """The transaction is found all the same, as one that may be meant."""
    made = binlog(1, 10)
    one = made.transactions[5]
    event = next(end for end in made.ends if end > one.begin + 200)
    begin = made.ends[made.ends.index(event) - 1]
    made.data[event - 1] ^= 1
    bucket = Bucket(replace(LINEAGE, gtid_set="", parent=None, first_binlog=NAME))
    bucket.archive(made.data, accept=[begin])
    hits, warnings, _ = searched(bucket)
    assert numbers(hits) == list(range(10, 0, -1))
    assert warnings == [
        f"damaged: bytes {begin} to {event} of {NAME} of {ID}; the transactions there are not known"
    ]
    assert KEY in bucket.objects
    late = NOW_US + 1000 * SECOND
    assert searched(bucket, since_us=late)[:2] == ([], warnings)  # nobody knows when that was


def two_lineages(*, cut: int) -> tuple[Bucket, Lineage]:
    """A replica took over behind transaction 20; its binlogs repeat those from `cut` on."""
    bucket = archive(100, 100, 100)
    child = like(
        LINEAGE,
        id=OTHER,
        server_uuid=UUID_B,
        gtid_set=f"{UUID_A}:1-{cut - 1}",
        first_binlog=name(7),
        parent=parent_of(
            ID,
            binlog=str(name(3)),
            offset=len(binlog(21, 10, rotate=False).data),
            gtid_set=f"{UUID_A}:1-30",
        ),
    )
    bucket.put(LAYOUT.lineage(child.id), child.to_json())
    made = binlog(cut, 31 - cut, number=7, before=f"{UUID_A}:1-{cut - 1}")
    bucket.lineage = child
    bucket.archive(made.data, name=name(7))
    late = binlog(1, 5, uuid=UUID_B, before=f"{UUID_A}:1-30", rotate=False)
    bucket.chunks(late.data, 0, len(late.data), name=name(8))
    bucket.beat(replace(BEAT, lineage=OTHER, durable=None, covered_until=None, generation=9))
    return bucket, child


def test_what_two_lineages_have_is_found_once() -> None:
    """In the first of them."""
    bucket, _ = two_lineages(cut=15)
    hits, warnings, _ = searched(bucket, order="oldest")
    assert numbers(hits) == [*range(1, 31), *range(1, 6)]
    assert {hit.lineage for hit in hits[:30]} == {ID}
    assert warnings == []
    hits, _, stats = searched(bucket, everywhere=True)
    assert len(hits) == 30 + 16 + 5
    assert stats.lineages == (OTHER, ID)
    hits, _, _ = searched(bucket, lineage=ID)
    assert numbers(hits) == list(range(30, 0, -1))


def test_what_the_first_lineage_has_lost_is_found_in_the_second() -> None:
    """A gap there, or that it begins later."""
    bucket, _ = two_lineages(cut=5)
    del bucket.objects[LAYOUT.binlog(ID, name(2))]
    hits, warnings, _ = searched(bucket, order="oldest")
    assert {*numbers(hits)} == {*range(1, 31)}
    assert len(warnings) == 1
    bucket, _ = two_lineages(cut=5)
    del bucket.objects[LAYOUT.binlog(ID, name(1))]
    hits, _, _ = searched(bucket, order="oldest")
    assert {*numbers(hits)} >= {*range(5, 31)}


def test_gtids_of_one_flavour_in_a_bucket_of_two() -> None:
    """A source that went over to MariaDB: lineages of the other flavour have none of these."""
    bucket, child = two_lineages(cut=15)
    del bucket.objects[LAYOUT.lineage(OTHER)]
    maria = like(child, flavour="mariadb", gtid_set="", parent=None)
    bucket.put(LAYOUT.lineage(OTHER), maria.to_json())
    hits, _, stats = searched(bucket, everywhere=True, gtids=(f"{UUID_A}:7",))
    assert (numbers(hits), stats.lineages) == ([7], (ID,))


def xa_history(*ends: str, apart: int = 0) -> Bucket:
    """Transaction 1 prepares `a`, a row of shop.orders; `apart` others; then each of `ends`."""
    bucket = emptied()
    first = BinlogWriter()
    first.previous_gtids(GtidSet.parse(""))
    events = [table_map(7, "orders"), rows(EventType.WRITE_ROWS, 7, 3)]
    begun = [statement("XA START X'61',X'',1"), *events, statement("XA END X'61',X'',1")]
    first.transaction([*begun, XA_PREPARE_A], gtid=(UUID_A, "", 1), commit_us=NOW_US)
    first.rotate("mysql-bin.000002")
    bucket.archive(first.data, name=name(1))
    made = BinlogWriter()
    made.previous_gtids(GtidSet.parse(f"{UUID_A}:1"))
    row = rows(EventType.WRITE_ROWS, 7, 1, value=b"x" * 400_000)
    for gno in range(2, 2 + apart):
        made.transaction(
            [BEGIN, table_map(7, "stock"), row, XID], gtid=(UUID_A, "", gno), commit_us=NOW_US
        )
    for number, end in enumerate(ends):
        made.transaction(
            [statement(end)],
            gtid=(UUID_A, "", 2 + apart + number),
            commit_us=NOW_US + (number + 1) * 3600 * SECOND,
        )
    made.rotate("mysql-bin.000003")
    bucket.archive(made.data, name=name(2))
    return bucket


XA_PREPARE_A = (EventType.XA_PREPARE, b"\0" + struct.pack("<III", 1, 1, 0) + b"a")
COMMIT_A, ROLLBACK_A = "XA COMMIT X'61',X'',1", "XA ROLLBACK X'61',X'',1"
COMMIT_B = "XA COMMIT X'62',X'',1"


def tied(hits: Sequence[Hit]) -> dict[int, tuple[str, str, int | None, bool]]:
    """By number: phase, state, the other's number, certain."""
    return {
        numbers([hit])[0]: (
            hit.link.two_phase.phase,
            hit.link.state,
            int(hit.link.other.transaction.gtid.split(":")[1])
            if hit.link.other and hit.link.other.transaction.gtid
            else None,
            hit.match.certain,
        )
        for hit in hits
        if hit.link is not None
    }


@pytest.mark.parametrize("order", ["newest", "oldest"])
@pytest.mark.parametrize(
    "wanted", [Criteria(), Criteria(tables=ORDERS), Criteria(tables=ORDERS, min_rows=3)]
)
def test_a_prepared_transaction_is_told_with_what_became_of_it(
    order: str, wanted: Criteria
) -> None:
    """Committed, rolled back, or neither; over binlogs and blocks; by its own name only."""
    for ends, apart, expected in (
        (
            [COMMIT_A],
            0,
            {1: ("prepare", "committed", 2, True), 2: ("commit", "committed", 1, True)},
        ),
        (
            [COMMIT_B, COMMIT_A],
            25,
            {
                1: ("prepare", "committed", 28, True),
                27: ("commit", "committed", None, False),
                28: ("commit", "committed", 1, True),
            },
        ),
        ([ROLLBACK_A], 0, {1: ("prepare", "rolled back", 2, False)}),
        ([], 0, {1: ("prepare", "prepared", None, False)}),
        (
            [ROLLBACK_A, COMMIT_A],
            0,
            {1: ("prepare", "rolled back", 2, False), 3: ("commit", "committed", None, False)},
        ),
    ):
        bucket = xa_history(*ends, apart=apart)
        hits, warnings, _ = searched(bucket, SearchQuery(wanted=wanted), order=order)
        found = tied(hits)
        assert warnings == []
        if wanted.is_any:
            found = {gno: one for gno, one in found.items() if one[0] != "rollback"}
        assert found == expected, ends
        for hit in hits:
            if hit.link is not None and hit.link.other and hit.link.two_phase.phase != "rollback":
                assert [(c.table, c.rows) for c in hit.content.changes] == [("shop.orders", 3)]


def test_a_window_around_an_xa_commit_has_what_it_commits() -> None:
    """The rows were written an hour before; that the table is another one is known, too."""
    bucket = xa_history(COMMIT_A)
    window = {"since_us": NOW_US + 3599 * SECOND, "until_us": NOW_US + 3601 * SECOND}
    for tables, expected in ((ORDERS, [2]), (Tables((("shop", "stock"),)), [])):
        for kinds in (frozenset({"insert"}), frozenset[str]()):
            wanted = Criteria(tables=tables, kinds=kinds)
            hits, _, _ = searched(bucket, SearchQuery(wanted=wanted), **window)
            assert numbers(hits) == expected
    for kind in ("delete", "ddl"):
        wanted = Criteria(tables=ORDERS, kinds=frozenset({kind}))
        assert searched(bucket, SearchQuery(wanted=wanted))[0] == []
    alone = xa_history(COMMIT_B)
    wanted = Criteria(tables=ORDERS)
    hits, _, _ = searched(alone, SearchQuery(wanted=wanted), **window)
    assert tied(hits) == {2: ("commit", "committed", None, False)}
    wanted = Criteria(tables=ORDERS, kinds=frozenset({"ddl"}))
    assert searched(alone, SearchQuery(wanted=wanted))[0] == []


def test_a_phase_behind_a_gap_is_out_of_sight() -> None:
    """Between them may lie the end of this one, and another one of its name."""
    bucket = xa_history(COMMIT_A)
    del bucket.objects[LAYOUT.binlog(ID, name(2))]
    del bucket.objects[LAYOUT.entry(ID, name(2))]
    made = BinlogWriter()
    made.previous_gtids(GtidSet.parse(f"{UUID_A}:1-2"))
    made.transaction([statement(COMMIT_A)], gtid=(UUID_A, "", 3), commit_us=NOW_US)
    made.rotate()
    bucket.archive(made.data, name=name(3))
    hits, _, _ = searched(bucket)
    assert tied(hits) == {
        1: ("prepare", "prepared", None, False),
        3: ("commit", "committed", None, False),
    }


def test_what_ends_with_rollback_is_not_certain() -> None:
    """As servers write it where not all of it could be rolled back; nor what cannot be read."""
    made = BinlogWriter()
    made.previous_gtids(GtidSet.parse(""))
    insert = statement("INSERT INTO shop.orders VALUES (1)")
    for gno, events in enumerate(
        (
            [BEGIN, insert, ROLLBACK],
            [BEGIN, insert, statement("ROLLBACK TO `a`"), XID],
            [BEGIN, insert, XID],
            [BEGIN, (EventType.TRANSACTION_PAYLOAD, b"\0" + b"x" * 50)],
        ),
        1,
    ):
        made.transaction(events, gtid=(UUID_A, "", gno), commit_us=NOW_US)
    made.rotate()
    bucket = archived(made)
    hits, _, _ = searched(bucket, SearchQuery(wanted=Criteria(tables=ORDERS)), order="oldest")
    assert [hit.match.certain for hit in hits] == [False, False, True, False]


def test_servers_without_gtid_events() -> None:
    """Rows and statements, by position."""
    made = BinlogWriter(server_version="5.6.14-log", checksum=False)
    for number in range(10):
        table = "orders" if number == 4 else "stock"
        row = rows(EventType.WRITE_ROWS, 7, 1)
        made.plain_transaction([BEGIN, table_map(7, table), row, XID])
    made.plain_transaction([statement("DROP TABLE shop.orders")])
    made.rotate()
    bucket = Bucket(like(LINEAGE, server_version="5.6.14-log", parent=None))
    bucket.archive(made.data)
    hits, warnings, _ = searched(bucket, SearchQuery(wanted=Criteria(tables=ORDERS)))
    assert [hit.transaction for hit in hits] == [made.transactions[10], made.transactions[4]]
    assert warnings == []


def test_a_store_that_fails_is_an_error() -> None:
    """It is no damage: the search ends."""
    bucket = archive(100, 100)
    bucket.before_open = lambda key, _: fail(key)
    with pytest.raises(ConnectionError):
        searched(bucket)


def fail(key: str) -> None:
    if "/live/" in key or "/binlogs/" in key:
        raise ConnectionError(key)


ALTER = statement("ALTER TABLE orders ADD c INT")


def alters(*phases: tuple[int, bytes]) -> Bucket:
    """A MariaDB's binlog: these numbers with these extra flags, each a part of an ALTER."""
    bucket = Bucket(replace(MARIADB, gtid_set="", parent=None, first_binlog=name(1)))
    made = BinlogWriter(server_version="10.11.8-MariaDB")
    made.gtid_list(MariadbGtidList({}))
    for number, extra in phases:
        made.mariadb_transaction([ALTER], gtid=(0, number), standalone=True, extra=extra)
    made.rotate("mysql-bin.000002")
    bucket.archive(made.data, name=name(1))
    return bucket


def ends(phase: int, number: int) -> bytes:
    """Extra flags: this ends the ALTER that this number began."""
    return bytes([phase]) + struct.pack("<Q", number)


def test_the_phases_of_an_alter_are_told_apart() -> None:
    """Only a COMMIT has changed the table for sure; the others say to what they belong."""
    bucket = alters((1, b"\2"), (2, b"\2"), (3, ends(8, 2)), (4, ends(4, 1)), (5, b"\2"), (6, b""))
    query = SearchQuery(
        wanted=Criteria(tables=Tables((("t", "orders"),)), kinds=frozenset({"ddl"}))
    )
    hits, warnings, _ = searched(bucket, query, order="oldest")
    assert warnings == []
    told = {
        numbers_of_mariadb(hit): (
            hit.link
            and (
                hit.link.two_phase.phase,
                hit.link.state,
                hit.link.other and hit.link.other.transaction.gtid,
            ),
            hit.match.certain,
        )
        for hit in hits
    }
    server = BinlogWriter().server_id
    assert told == {
        1: (("prepare", "committed", f"0-{server}-4"), False),
        2: (("prepare", "rolled back", f"0-{server}-3"), False),
        3: (("rollback", "rolled back", f"0-{server}-2"), False),
        4: (("commit", "committed", f"0-{server}-1"), True),
        5: (("prepare", "prepared", None), False),
        6: (None, True),
    }


def numbers_of_mariadb(hit: Hit) -> int:
    return int((hit.transaction.gtid or "0-0-0").rpartition("-")[2])


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (Criteria(tables=ORDERS), [1]),
        (Criteria(tables=ORDERS, kinds=frozenset({"delete"})), [1]),
        (Criteria(kinds=frozenset({"update"})), [1]),
        (Criteria(tables=Tables((("shop", "bills"),))), []),
        (Criteria(kinds=frozenset({"ddl"})), []),
    ],
)
def test_rows_in_fragments_are_perhaps_what_is_sought(
    wanted: Criteria, expected: list[int]
) -> None:
    """MariaDB's event 172 is passed over by nothing that may match it."""
    bucket = Bucket(replace(MARIADB, gtid_set="", parent=None, first_binlog=name(1)))
    made = BinlogWriter(server_version="12.3.1-MariaDB")
    made.gtid_list(MariadbGtidList({}))
    part = (int(EventType.PARTIAL_ROW_DATA), struct.pack("<IIB", 1, 1, 0) + b"x" * 100)
    made.mariadb_transaction([table_map(7, "orders"), part, XID], gtid=(0, 1))
    other = [table_map(8, "stock"), rows(EventType.WRITE_ROWS_V1, 8, 1), XID]
    made.mariadb_transaction(other, gtid=(0, 2))
    made.rotate("mysql-bin.000002")
    bucket.archive(made.data, name=name(1))
    hits, _, _ = searched(bucket, SearchQuery(wanted=wanted))
    assert [numbers_of_mariadb(hit) for hit in hits] == expected
    assert not any(hit.match.certain for hit in hits)


@pytest.mark.parametrize("gone", [None, 1, 3])
def test_a_search_since_a_binlog_does_not_look_before_it(gone: int | None) -> None:
    """What is missing before it is no warning; what is missing after it is one."""
    bucket = archive(10, 10, 10, 10)
    if gone is not None:
        bucket.delete([LAYOUT.binlog(ID, name(gone)), LAYOUT.entry(ID, name(gone))])
    hits, warnings, _ = searched(bucket, since=(ID, name(2)), order="oldest")
    left = [gno for gno in range(11, 41) if gone != 3 or not 21 <= gno <= 30]
    assert numbers(hits) == left
    assert bool(warnings) == (gone == 3)
    with pytest.raises(ArchiveError, match=r"000009 of .* is not in the history"):
        searched(bucket, since=(ID, name(9)))
