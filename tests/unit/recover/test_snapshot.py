"""What a plan is told of the bucket is what is there: from entries, or by reading all of it."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import combinations, pairwise
from types import SimpleNamespace
from typing import Any, cast

import pytest

from binlog2s3.archive.facts import Facts
from binlog2s3.archive.writers import Position
from binlog2s3.binlog.gtid import GtidSet, MariadbGtidList
from binlog2s3.binlog.names import BinlogName
from binlog2s3.binlog.scanner import EventType, Transaction
from binlog2s3.binlog.zone import SystemZone
from binlog2s3.errors import ArchiveError, RecoveryError, StoreError
from binlog2s3.recover.route import history_flavour
from binlog2s3.recover.snapshot import Snapshot
from tests.binlog_writer import (
    BEGIN,
    COMMIT,
    NOW_US,
    ROWS,
    TABLE_MAP,
    UUID_A,
    XID,
    BinlogWriter,
    statement,
)
from tests.documents import BEAT, ENTRY, ID, LINEAGE, NAME, TIME, like
from tests.snapshots import BLOCK, KEY, LAYOUT, MARIADB, Bucket, gtids_of, written

SMALL = written()
LARGE = written(26, 700_000)
IDLE = replace(BEAT, durable=None)
ENTRY_KEY = LAYOUT.entry(ID, NAME)


def mariadb(*, deferred: bool, checksum: bool = True) -> BinlogWriter:
    binlog = BinlogWriter(server_version="11.4.2-MariaDB-log", checksum=checksum)
    binlog.gtid_list(MariadbGtidList.parse("0-7-3"))
    rows = (EventType.WRITE_ROWS_V1, b"\x5d" + b"x" * 1_500_000)
    for number in range(9):
        events = [TABLE_MAP, rows, TABLE_MAP, ROWS, COMMIT if number % 2 else XID]
        binlog.mariadb_transaction(events, gtid=(number % 2, number + 4), deferred=deferred)
    binlog.rotate()
    return binlog


def without_gtids(version: str = "5.6.14-log", *, checksum: bool = False) -> BinlogWriter:
    binlog = BinlogWriter(server_version=version, checksum=checksum)
    for number in range(12):
        events = [BEGIN, statement("INSERT " + "x" * 900_000), XID]
        if number % 3 == 0:
            events = [statement("CREATE TABLE t (a INT)" + " " * 500_000)]
        binlog.plain_transaction(events)
    binlog.rotate()
    return binlog


BINLOGS = {
    "mysql": LARGE,
    "no-gtid": without_gtids(),
    "5.5": without_gtids("5.5.6"),
    "mariadb": mariadb(deferred=False),
    "deferred": mariadb(deferred=True),
}


def bucket_with(which: str, state: str) -> Bucket:
    bucket = Bucket(MARIADB) if which in {"mariadb", "deferred"} else Bucket()
    data = BINLOGS[which].data
    if state == "open":
        bucket.chunks(data, 0, 200, 5 << 20, 7 << 20, len(data))
    else:
        bucket.archive(data, entry=state == "archived")
    return bucket


# Which there are


def test_lineages_and_the_one_that_is_written() -> None:
    """All, oldest first; the current one is that of the last turn."""
    bucket = Bucket()
    younger = like(bucket.lineage, id="20270101T000000Z-3e11fa47-a1b2")
    bucket.put(LAYOUT.lineage(younger.id), younger.to_json())
    history = bucket.snapshot()
    assert [one.id for one in history.lineages] == [ID, younger.id]
    assert history.current == younger.id
    assert history.covered_us is None
    bucket.beat(replace(IDLE, generation=6, lineage=younger.id))
    assert bucket.snapshot().current == younger.id
    bucket.beat(IDLE)
    history = bucket.snapshot()
    assert history.current == ID
    assert history.covered_us == int(TIME.timestamp()) * 1_000_000


@pytest.mark.parametrize(
    ("changes", "covered_us"),
    [
        ({}, 0),
        ({"covered_until": TIME + timedelta(microseconds=999_999)}, 999_999),
        ({"covered_until": None}, None),
        # a writer that knows no lineage yet, or one whose turn has not come, covers nothing
        ({"lineage": None}, None),
        ({"lineage": "20270101T000000Z-3e11fa47-ffff"}, None),
    ],
)
def test_until_when_a_writer_vouches(changes: dict[str, Any], covered_us: int | None) -> None:
    """To the microsecond, and for the lineage that it writes."""
    bucket = Bucket()
    bucket.beat(replace(IDLE, **changes))
    if "lineage" in changes:
        bucket.delete([LAYOUT.turn(IDLE.generation)])
    snapshot = bucket.snapshot()
    begin = int(TIME.timestamp()) * 1_000_000
    assert snapshot.current == ID
    assert snapshot.covered_us == (None if covered_us is None else begin + covered_us)


@pytest.mark.parametrize("state", ["archived", "open"])
@pytest.mark.parametrize("began", [None, 0, 32400])
def test_a_binlog_that_does_not_tell_its_time_zone(state: str, began: int | None) -> None:
    """The open one has what the writer says; an archived one only what was never another one."""
    zone, now = (
        None if offset is None else SystemZone.of("SYSTEM", 2026, [offset] * 24)
        for offset in (began, 32400)
    )
    bucket = Bucket(replace(LINEAGE, time_zone=zone))
    if state == "open":
        bucket.chunks(SMALL.data, 0, len(SMALL.data))
    else:
        bucket.archive(SMALL.data)
    bucket.beat(replace(IDLE, time_zone=now))
    is_doubtful = state == "archived" and began == 0
    assert bucket.snapshot().time_zone(ID, NAME) == (None if is_doubtful else now)


def test_a_turn_that_cannot_be_read_hides_nothing_else() -> None:
    """Which lineage is current is refused; each of them can be looked at, and it is said."""
    bucket = Bucket()
    bucket.beat(IDLE)
    bucket.put(LAYOUT.turn(10**6), b"{}")
    snapshot = bucket.snapshot()
    assert [lineage.id for lineage in snapshot.lineages] == [ID]
    with pytest.raises(ArchiveError, match="turns/01000000"):
        _ = snapshot.current
    assert [str(LAYOUT.turn(10**6)) in str(error) for error in snapshot.problems] == [True]


def test_a_writer_that_was_superseded_between_two_requests() -> None:
    """Its successor's document counts."""
    bucket = Bucket()
    bucket.beat(IDLE)
    later = replace(IDLE, generation=8, covered_until=TIME + timedelta(seconds=1))

    def act(operation: str) -> None:
        if operation == "get" and LAYOUT.writer(8, BEAT.token) not in bucket.objects:
            bucket.on_call = lambda _: None
            bucket.beat(later)
            bucket.delete([LAYOUT.writer(7, BEAT.token)])

    bucket.on_call = act
    assert bucket.snapshot().covered_us == int(TIME.timestamp() + 1) * 1_000_000


def test_names_are_those_of_which_something_can_be_read() -> None:
    """Archived and open, in the server's order, not those whose first event is missing."""
    names = [BinlogName.parse(f"b.{number}") for number in range(999_999, 1_000_003)]
    bucket = Bucket(replace(LINEAGE, first_binlog=names[0]))
    bucket.archive(SMALL.data, names[0])
    bucket.chunks(SMALL.data, 0, 300, 500, name=names[1])
    bucket.chunks(SMALL.data, 300, 500, name=names[2])
    bucket.chunks(SMALL.data, 0, 4, name=names[3])
    durable = Position(binlog=names[3], offset=4, gtid_set="")
    bucket.beat(replace(BEAT, durable=durable))
    assert list(bucket.snapshot().names(ID)) == names[:2]


def test_what_a_writer_said_is_durable_and_is_not_there() -> None:
    """Is not among the names, but it is told: it is never passed over in silence."""
    bucket = Bucket()
    bucket.archive(SMALL.data)
    gone = NAME.next()
    bucket.beat(replace(BEAT, durable=Position(binlog=gone, offset=900, gtid_set="")))
    snapshot = bucket.snapshot()
    assert list(snapshot.names(ID)) == [NAME]
    assert snapshot.covered_us is None
    assert snapshot.lost_end(ID) == f"{gone}, of which 900 bytes were durable"
    with pytest.raises(ArchiveError, match=str(gone)):
        snapshot.known(ID, gone)
    bucket.beat(replace(BEAT, durable=Position(binlog=gone, offset=0, gtid_set="")))
    assert list(bucket.snapshot().names(ID)) == [NAME]


def test_an_unknown_lineage() -> None:
    """An error that says how to see those that there are."""
    with pytest.raises(ArchiveError, match="no lineage 2027") as caught:
        Bucket().snapshot().names("2027")
    assert caught.value.hint


# What is known of one


@pytest.mark.parametrize("which", BINLOGS)
def test_what_is_known_is_the_same_however_it_is_known(which: str) -> None:
    """From an entry, from an object without one, from chunks: the same but for the state."""
    binlog = BINLOGS[which]
    known: dict[str, Facts] = {}
    for state in ("archived", "undescribed", "open"):
        known[state] = bucket_with(which, state).snapshot().known(ID, NAME)
    (one, *others) = known.values()
    assert one.state == "archived"
    assert known["open"].state == "open"
    for other in others:
        same = {"gtids_before": one.gtids_before, "received_us": one.received_us}
        assert replace(other, state="archived", **same) == one
    assert one.ended
    assert one.size == one.transaction_end == len(binlog.data)
    assert (one.transactions, one.gtids_added) == (
        len(binlog.transactions),
        gtids_of(binlog.transactions) if which in {"mysql", "mariadb", "deferred"} else GtidSet(),
    )
    times = [t.commit_us for t in binlog.transactions]
    assert (one.least_commit_us, one.greatest_commit_us) == (min(times), max(times))
    assert one.commit_exact == (which == "mysql")
    assert one.first_us == NOW_US


def test_what_was_before_a_binlog() -> None:
    """Nothing and not said are two things, where the server's version tells them apart."""
    for version, expected in (
        ("9.7.4", GtidSet()),
        ("5.6.14", GtidSet()),
        ("5.5.62", None),
    ):
        bucket = Bucket()
        bucket.archive(BinlogWriter(server_version=version, checksum=False).data)
        assert bucket.snapshot().known(ID, NAME).gtids_before == expected
    bucket = Bucket()
    bucket.archive(written(2, first=6).data)
    assert bucket.snapshot().known(ID, NAME).gtids_before == GtidSet.parse(f"{UUID_A}:1-5")
    bucket = Bucket(MARIADB)
    bucket.archive(mariadb(deferred=False).data)
    assert bucket.snapshot().known(ID, NAME).gtids_before == MariadbGtidList.parse("0-7-3")


@pytest.mark.parametrize("ends", range(len(SMALL.ends)))
def test_an_open_binlog_of_any_length(ends: int) -> None:
    """Size, transactions and where the last one ends, at every event and inside the next one."""
    for more in (0, 10):
        size = min(SMALL.ends[ends] + more, len(SMALL.data))
        if size < SMALL.ends[1]:
            continue
        bucket = Bucket()
        bucket.chunks(SMALL.data, 0, size)
        known = bucket.snapshot().known(ID, NAME)
        whole = [t for t in SMALL.transactions if t.end <= size]
        begun = [t for t in SMALL.transactions if t.begin < size < t.end]
        reached = max(end for end in SMALL.ends if end <= size)
        assert (known.size, known.transactions) == (size, len(whole))
        assert known.transaction_end == (min(begun[0].begin, reached) if begun else reached)
        assert known.ended == (size == len(SMALL.data))
        assert sum(block.size for block in known.blocks) == size
        assert known.damaged == ()


def test_an_open_binlog_that_has_only_just_begun() -> None:
    """Without its format event nothing can be told of it: an error, no traceback."""
    bucket = Bucket()
    bucket.chunks(SMALL.data, 0, 50)
    with pytest.raises(ArchiveError, match="50 bytes"):
        bucket.snapshot().known(ID, NAME)
    bucket = Bucket()
    bucket.chunks(bytes(500), 0, 500)
    with pytest.raises(ArchiveError, match="do not begin as a binlog does"):
        bucket.snapshot().known(ID, NAME)


def test_an_open_binlog_grows_while_it_is_looked_at() -> None:
    """What is known of it is of one moment; nothing behind is ever told."""
    bucket = Bucket()
    size = SMALL.transactions[3].end
    bucket.chunks(SMALL.data, 0, size)
    snapshot = bucket.snapshot()
    known = snapshot.known(ID, NAME)
    bucket.chunks(SMALL.data, size, len(SMALL.data))
    assert snapshot.known(ID, NAME) is known
    assert list(snapshot.transactions(ID, NAME)) == SMALL.transactions[:4]
    assert list(snapshot.transactions(ID, NAME, end=10**9)) == SMALL.transactions[:4]
    assert snapshot.is_boundary(ID, NAME, size)
    assert not snapshot.is_boundary(ID, NAME, SMALL.transactions[4].end)
    bucket.archive(SMALL.data)
    bucket.delete([one for one in bucket.objects if "live" in one])
    assert list(snapshot.transactions(ID, NAME)) == SMALL.transactions[:4]
    assert len(list(bucket.snapshot().transactions(ID, NAME))) == 12


def test_what_the_writer_says_is_durable_is_looked_for() -> None:
    """Also where the first listing showed less; what is missing then is told as damage."""
    bucket = Bucket()
    size = SMALL.transactions[3].end
    bucket.chunks(SMALL.data, 0, 300)
    durable = Position(binlog=NAME, offset=size, gtid_set="")
    bucket.beat(replace(BEAT, durable=durable))
    short = bucket.snapshot()
    assert short.known(ID, NAME).damaged == ((300, size),)
    assert f"bytes up to {size} are not in the bucket" in str(short.problems[0])
    snapshot = bucket.snapshot()
    snapshot.names(ID)

    calls = [0]

    def later(operation: str) -> None:
        calls[0] += operation == "list"
        if calls[0] == 2:
            bucket.on_call = lambda _: None
            bucket.chunks(SMALL.data, 300, size)

    bucket.on_call = later
    assert snapshot.known(ID, NAME).size == size


def test_a_binlog_that_was_archived_since_the_first_look() -> None:
    """Is told by its entry, without reading it."""
    bucket = Bucket()
    keys = bucket.chunks(LARGE.data, 0, 300, len(LARGE.data))
    snapshot = bucket.snapshot()
    assert list(snapshot.names(ID)) == [NAME]
    bucket.archive(LARGE.data)
    bucket.delete(keys)
    known = snapshot.known(ID, NAME)
    assert (known.state, known.size, bucket.asked) == ("archived", len(LARGE.data), [])


@pytest.mark.parametrize("field", ["size", "name"])
def test_an_entry_that_is_another_ones(field: str) -> None:
    """An error when it is asked for, not when others are: they can still be used."""
    bucket = Bucket()
    other = NAME.next()
    bucket.archive(SMALL.data)
    bucket.archive(SMALL.data, other)
    wrong = replace(ENTRY, size=len(SMALL.data), name=other)
    if field == "size":
        wrong = replace(ENTRY, size=len(SMALL.data) + 1)
    bucket.put(ENTRY_KEY, wrong.to_json())
    snapshot = bucket.snapshot()
    snapshot.load(ID, [NAME, other])
    assert snapshot.known(ID, other).transactions == 12
    words = "its entry says" if field == "size" else "in the wrong place"
    with pytest.raises(ArchiveError, match=words):
        snapshot.known(ID, NAME)


@pytest.mark.parametrize(
    "changed",
    [
        {"formats": []},
        {"formats": [{"offset": 0}]},
        {"formats": [{"offset": 4}, {"offset": 4}]},
        {"formats": [{"offset": 4}, {"offset": 1 << 40}]},
        {"damaged": [{"begin": 300, "end": 200}]},
        {"damaged": [{"begin": 200, "end": 1 << 40}]},
        {"damaged": [{"begin": 200, "end": 300}, {"begin": 250, "end": 400}]},
        {"blocks": []},
        {"blocks": [{"offset": 0, "size": len(LARGE.data)}]},
    ],
    ids=str,
)
def test_an_entry_by_which_nothing_can_be_found(changed: Mapping[str, Any]) -> None:
    """Blocks, format events or damage that cannot lie there: an error that names the binlog."""
    bucket = Bucket()
    bucket.archive(LARGE.data)
    entry = json.loads(bucket.get(ENTRY_KEY))
    for field, values in changed.items():
        like = (entry[field] or [{}])[0]
        entry[field] = [like | value for value in values]
    bucket.put(ENTRY_KEY, json.dumps(entry).encode())
    with pytest.raises(ArchiveError, match=f"the entry of {NAME} in lineage {ID} is damaged"):
        bucket.snapshot().known(ID, NAME)


@pytest.mark.parametrize("at", [5, 4 + 4096, BLOCK + 3])
def test_an_entry_that_names_a_format_event_where_none_is(at: int) -> None:
    """An error when what lies there is read, whatever that is."""
    bucket = Bucket()
    bucket.archive(LARGE.data)
    entry = json.loads(bucket.get(ENTRY_KEY))
    entry["formats"].append(entry["formats"][0] | {"offset": at})
    bucket.put(ENTRY_KEY, json.dumps(entry).encode())
    snapshot = bucket.snapshot()
    last = LARGE.transactions[-1]
    with pytest.raises(ArchiveError, match=f"{NAME} of {ID}: byte {at} begins no format event"):
        snapshot.content(ID, NAME, last)


def test_entries_are_loaded_together_and_once() -> None:
    """Only those asked for; progress is told; what has none is read when it is asked for."""
    bucket = Bucket()
    names = [BinlogName.parse(f"mysql-bin.{number:06}") for number in range(1, 21)]
    for name in names:
        bucket.archive(SMALL.data, name, entry=name != names[7])
    told: list[tuple[int, int]] = []
    snapshot = bucket.snapshot(lambda done, of: told.append((done, of)))
    snapshot.names(ID)
    before = bucket.calls["get"]
    snapshot.load(ID, names[5:15])
    snapshot.load(ID, names[:16])
    assert bucket.calls["get"] - before == 15
    assert told == [(n, 9) for n in range(1, 10)] + [(n, 6) for n in range(1, 7)]
    assert all(snapshot.known(ID, name).transactions == 12 for name in names)
    assert {one.key for one in bucket.asked} == {LAYOUT.binlog(ID, names[7])}


def test_an_entry_that_the_store_refuses() -> None:
    """Is the store's error, after all others have come."""
    bucket = Bucket()
    bucket.archive(SMALL.data)
    snapshot = bucket.snapshot()
    snapshot.names(ID)
    bucket.fail_next("get", "before", StoreError("access denied"))
    with pytest.raises(StoreError, match="access denied"):
        snapshot.load(ID, [NAME])
    assert snapshot.known(ID, NAME).transactions == 12


def test_a_binlog_that_a_crash_ended() -> None:
    """Where its last whole transaction ends is looked up: an entry does not say it."""
    for cut, end in ((2, 25), (1, 24), (3, 24)):
        last = LARGE.ends[LARGE.ends.index(LARGE.transactions[25].begin) : -1]
        data = LARGE.data[: last[-cut]]
        bucket = Bucket()
        bucket.archive(data)
        known = bucket.snapshot().known(ID, NAME)
        whole = [t for t in LARGE.transactions if t.end <= len(data)]
        assert known.transaction_end == whole[-1].end
        assert known.ended, (cut, end)
        assert bucket.fetched < 2 * BLOCK


# Damage


def damaged(which: int, at: int, binlog: BinlogWriter = SMALL) -> tuple[bytearray, int, int]:
    """A byte of a transaction flipped: the bytes, and the event that it lies in."""
    data, one = bytearray(binlog.data), binlog.transactions[which]
    data[one.begin + at] ^= 1
    ends = binlog.ends
    begin = max(end for end in ends if end <= one.begin + at)
    return data, begin, ends[ends.index(begin) + 1]


def told(found: Sequence[Transaction]) -> list[tuple[int, int, str | None]]:
    return [(one.begin, one.end, one.gtid) for one in found]


@pytest.mark.parametrize("state", ["archived", "undescribed", "open"])
@pytest.mark.parametrize("at", [25, 65, 160])
def test_a_damaged_event(state: str, at: int) -> None:
    """Its range is noted; of its transaction is told what can be, of all others everything."""
    data, begin, end = damaged(5, at)
    bucket = Bucket()
    if state == "open":
        bucket.chunks(data, 0, 777, len(data))
    else:
        bucket.archive(data, accept=[begin], entry=state == "archived")
    snapshot = bucket.snapshot()
    known = snapshot.known(ID, NAME)
    assert known.damaged == ((begin, end),)
    assert known.transaction_end == len(data)
    expected = told(SMALL.transactions)
    if begin == SMALL.transactions[5].begin:
        expected[5] = (*expected[5][:2], None)
    assert told(list(snapshot.transactions(ID, NAME))) == expected
    assert known.transactions == 12
    apart = SMALL.transactions[8].begin - SMALL.transactions[5].begin
    data[SMALL.transactions[8].begin + at] ^= 1  # another one, with what lies between them
    bucket = Bucket()
    bucket.chunks(data, 0, len(data))
    known = bucket.snapshot().known(ID, NAME)
    assert [low for low, _ in known.damaged] == [begin, begin + apart]
    assert known.transactions == 12


def test_damage_that_leads_astray() -> None:
    """A size that is wrong: from there on nothing is told but that, and no exception."""
    data, one = bytearray(SMALL.data), SMALL.transactions[5]
    data[one.begin + 9] ^= 8
    bucket = Bucket()
    bucket.chunks(data, 0, len(data))
    snapshot = bucket.snapshot()
    known = snapshot.known(ID, NAME)
    assert known.damaged[0][0] == one.begin
    assert known.damaged[-1][1] == len(data)
    assert all(a[1] == b[0] for a, b in pairwise(known.damaged))
    assert known.size == len(data)
    assert known.transactions == 5
    assert list(snapshot.transactions(ID, NAME)) == SMALL.transactions[:5]
    assert snapshot.is_boundary(ID, NAME, one.begin)
    assert not snapshot.is_boundary(ID, NAME, one.end)


def test_zeros_at_the_end_of_an_open_binlog() -> None:
    """As a power cut may leave them at a source: noted up to the end, over several blocks."""
    data = LARGE.data[: LARGE.transactions[9].end] + bytes(3 * BLOCK)
    bucket = Bucket()
    bucket.chunks(data, 0, 3 << 20, len(data))
    snapshot = bucket.snapshot()
    known = snapshot.known(ID, NAME)
    end = LARGE.transactions[9].end
    assert (known.damaged, known.transaction_end) == (((end, len(data)),), end)
    assert sum(block.size for block in known.blocks) == len(data)
    assert list(snapshot.transactions(ID, NAME)) == LARGE.transactions[:10]


def test_nobody_vouches_for_what_lies_in_a_damaged_end() -> None:
    """When it was committed cannot be told; damage that is passed over is another matter."""
    whole, _, _ = damaged(5, 160)
    bucket = Bucket()
    bucket.beat(replace(BEAT, durable=None))
    keys = bucket.chunks(whole, 0, len(whole))
    assert bucket.snapshot().covered_us is not None
    bucket.delete(keys)
    torn = SMALL.data[: SMALL.transactions[9].end] + bytes(100)
    bucket.chunks(torn, 0, len(torn))
    assert bucket.snapshot().covered_us is None


def test_damage_that_no_entry_knows_of() -> None:
    """Is an error that names the binlog: its bytes are as they were, but no binlog's."""
    data, begin, _ = damaged(5, 160)
    bucket = Bucket()
    bucket.archive(data, accept=[begin])
    entry = bucket.get(ENTRY_KEY)
    cut = entry.index(b'"damaged": ['), entry.index(b'"end": "rotate"')
    bucket.put(ENTRY_KEY, entry[: cut[0]] + b'"damaged": [],\n ' + entry[cut[1] :])
    with pytest.raises(ArchiveError, match=f"{NAME} of {ID}: wrong CRC32"):
        list(bucket.snapshot().transactions(ID, NAME))


# What is in it


@pytest.mark.parametrize("state", ["archived", "open"])
@pytest.mark.parametrize("which", BINLOGS)
def test_transactions_from_anywhere_to_anywhere(which: str, state: str) -> None:
    """Those that begin within; bounds at, before and behind transactions and blocks."""
    expected = BINLOGS[which].transactions
    snapshot = bucket_with(which, state).snapshot()
    size = len(BINLOGS[which].data)
    assert list(snapshot.transactions(ID, NAME)) == expected
    bounds = {0, 4, size, BLOCK, 2 * BLOCK - 1, 2 * BLOCK}
    bounds |= {t.begin + off for t in expected[::9] for off in (-1, 0, 1)}
    for begin, end in combinations(sorted(bounds), 2):
        found = list(snapshot.transactions(ID, NAME, begin, end))
        assert found == [t for t in expected if begin <= t.begin < end], (begin, end)


@pytest.mark.parametrize("which", BINLOGS)
def test_boundaries(which: str) -> None:
    """At and around every event's end."""
    binlog = BINLOGS[which]
    snapshot = bucket_with(which, "archived").snapshot()
    inside = {end for t in binlog.transactions for end in binlog.ends if t.begin < end < t.end}
    for end in (0, *binlog.ends[::5], *(t.end for t in binlog.transactions[::5])):
        assert snapshot.is_boundary(ID, NAME, end) == (end not in inside), end
        if end:
            assert not snapshot.is_boundary(ID, NAME, end - 1)
        assert not snapshot.is_boundary(ID, NAME, end + 1)
    assert snapshot.is_boundary(ID, NAME, len(binlog.data))
    assert not snapshot.is_boundary(ID, NAME, -4)


def test_only_the_blocks_that_are_needed_are_read() -> None:
    """A few transactions in the middle cost one block, and the head."""
    bucket = Bucket()
    bucket.archive(LARGE.data)
    snapshot = bucket.snapshot()
    one = next(t for t in LARGE.transactions if t.begin > 9 << 20)
    assert list(snapshot.transactions(ID, NAME, one.begin, one.end)) == [one]
    assert snapshot.is_boundary(ID, NAME, one.end)
    assert [(a.begin, a.end) for a in bucket.asked if a.end - a.begin > 8192] == [
        (2 * BLOCK, 3 * BLOCK)
    ]
    found = snapshot.transactions(ID, NAME, one.begin)
    assert next(found) == one
    found.close()  # type: ignore[attr-defined]
    assert bucket.fetched < 4 * BLOCK


def test_what_a_transaction_does() -> None:
    """Its statements, from its own bytes alone, also over the edge of a block."""
    binlog = written(3, 1_900_000)
    row = statement("DELETE FROM shop.t WHERE a = 7")
    begin = binlog.transactions[2].end
    binlog = written(3, 1_900_000, rotate=False)
    binlog.transaction([BEGIN, row, XID], gtid=(UUID_A, "", 4))
    bucket = Bucket()
    bucket.archive(binlog.data)
    snapshot = bucket.snapshot()
    (one,) = snapshot.transactions(ID, NAME, begin)
    assert snapshot.content(ID, NAME, one).statements == ("DELETE FROM shop.t WHERE a = 7",)
    across = next(t for t in binlog.transactions if t.begin < BLOCK < t.end)
    (text,) = snapshot.content(ID, NAME, across).statements
    assert text.startswith("INSERT ")


def test_a_rotten_block_is_an_error_here_too() -> None:
    """Nothing is told from bytes that are not those that were written."""
    bucket = Bucket()
    bucket.archive(LARGE.data)
    wrong = bytearray(LARGE.data)
    wrong[BLOCK + 7] ^= 1
    bucket.put(KEY, bytes(wrong))
    snapshot: Snapshot = bucket.snapshot()
    checks: list[Callable[[], object]] = [
        lambda: list(snapshot.transactions(ID, NAME, BLOCK)),
        lambda: snapshot.is_boundary(ID, NAME, BLOCK + 100),
        lambda: snapshot.content(ID, NAME, next(t for t in LARGE.transactions if t.begin > BLOCK)),
    ]
    for check in checks:
        with pytest.raises(ArchiveError, match="damaged, read twice"):
            check()
    assert list(snapshot.transactions(ID, NAME, 0, 1 << 20)) == LARGE.transactions[:2]


@pytest.mark.parametrize("how", ["rotten", "gone"])
def test_what_comes_before_a_lost_chunk_can_be_reached(how: str) -> None:
    """The open binlog ends there, what should be behind is said to be damaged, and why."""
    size, good = len(SMALL.data), SMALL.transactions[2].end
    bucket = Bucket()
    _, key = bucket.chunks(SMALL.data, 0, good, size)
    bucket.beat(replace(BEAT, durable=Position(binlog=NAME, offset=size, gtid_set="")))
    body = bytearray(bucket.get(key))
    body[50] ^= 1
    if how == "rotten":
        bucket.put(key, bytes(body))
    else:
        bucket.delete([key])
    snapshot: Snapshot = bucket.snapshot()
    known = snapshot.known(ID, NAME)
    assert known.size == good
    assert known.damaged == ((good, size),)
    assert snapshot.covered_us is None
    assert len(snapshot.problems) == 1
    found = list(snapshot.transactions(ID, NAME))
    assert found == [one for one in SMALL.transactions if one.end <= good]
    assert found


def test_a_binlog_of_which_the_beginning_is_lost_is_told() -> None:
    """It is not among the names, so that what comes before it can be reached; nobody vouches."""
    bucket = Bucket()
    bucket.archive(SMALL.data)
    name, size = NAME.next(), len(SMALL.data)
    first, _ = bucket.chunks(SMALL.data, 0, 400, size, name=name)
    bucket.beat(
        replace(
            BEAT,
            durable=Position(binlog=name, offset=size, gtid_set=""),
            covered_until=datetime(2026, 1, 2, tzinfo=UTC),
        )
    )
    whole = bucket.snapshot()
    assert list(whole.names(ID)) == [NAME, name]
    assert not whole.lost_end(ID)
    assert whole.covered_us is not None
    bucket.delete([first])
    snapshot: Snapshot = bucket.snapshot()
    assert list(snapshot.names(ID)) == [NAME]
    assert snapshot.lost_end(ID) == f"{name}, of which {size} bytes were durable"
    assert snapshot.covered_us is None
    assert len(snapshot.problems) == 1


def test_the_flavour_of_a_history() -> None:
    """That of its last lineage; of one that is not there, the newest's: the plan refuses that."""
    ours = replace(LINEAGE, lineage="20260102T030405Z-3e11fa47-0001")
    theirs = replace(LINEAGE, server=replace(LINEAGE.server, flavour="mariadb"))
    history = cast("Snapshot", SimpleNamespace(lineages=(ours, theirs), current=ours.id))
    assert history_flavour(history, None) == "mysql"
    assert history_flavour(history, theirs.id) == "mariadb"
    assert history_flavour(history, "gone") == "mariadb"
    empty = cast("Snapshot", SimpleNamespace(lineages=(), current=""))
    with pytest.raises(RecoveryError, match="no history"):
        history_flavour(empty, None)
