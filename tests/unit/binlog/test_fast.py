"""The fast loop: whole transactions of MySQL 8, or nothing."""

import pytest

from binlog2s3.binlog.events import EventType
from binlog2s3.binlog.fast import leap
from binlog2s3.binlog.scanner import Scanner
from binlog2s3.binlog.transactions import Boundaries
from binlog2s3.errors import DamageError
from tests.binlog_writer import BEGIN, NOW_US, TABLE_MAP, UUID_A, UUID_B, XID, BinlogWriter

ROWS = (EventType.WRITE_ROWS, bytes(200))
CHANGE = [BEGIN, TABLE_MAP, ROWS, XID]
EVERYTHING = 1 << 40


def usual(*, checksum: bool = True, count: int = 6) -> BinlogWriter:
    """Transactions as MySQL 8 writes them, some of which came from another server."""
    log = BinlogWriter(checksum=checksum)
    for number in range(1, count + 1):
        original_us = NOW_US - 5 if number % 3 == 0 else None
        gtid = (UUID_B if number == 2 else UUID_A, "", number)
        log.transaction(CHANGE, gtid=gtid, commit_us=NOW_US + number, original_us=original_us)
    return log


def taken(
    log: BinlogWriter, data: bytes, *, checksum: bool = True, wanted: int = EVERYTHING
) -> tuple[int, int, Boundaries]:
    """Where the loop stops in these bytes, how many events it takes, and what it counts."""
    boundaries = Boundaries(in_the_middle=False, stride=EVERYTHING)
    boundaries.wanted = wanted
    begin = log.ends[1]
    at, events = leap(data, begin, begin, 4 if checksum else 0, boundaries)
    return at, events, boundaries


def left(log: BinlogWriter, data: bytes) -> None:
    """Only two transactions are taken of these bytes without checksums: the third is left."""
    at, events, boundaries = taken(log, data, checksum=False)
    assert (at, events, boundaries.transactions) == (log.transactions[2].begin, 10, 2)


def test_whole_transactions_are_counted() -> None:
    """All at once: events, GTIDs, commit times."""
    log = usual()
    at, events, boundaries = taken(log, bytes(log.data))
    assert (at, events) == (len(log.data), len(log.ends) - 2)
    assert (boundaries.transactions, boundaries.anonymous) == (6, 0)
    assert str(boundaries.mysql_gtids()) == f"{UUID_A}:1:3-6,{UUID_B}:2"
    assert (boundaries.least_us, boundaries.greatest_us) == (NOW_US + 1, NOW_US + 6)
    assert (boundaries.last_end, boundaries.last_commit_us) == (len(log.data), NOW_US + 6)
    assert boundaries.commit_exact
    assert boundaries.completed == []


def test_a_transaction_that_is_not_whole_is_left() -> None:
    """Wherever it is cut, nothing of it is counted."""
    log = usual(count=3)
    last = log.transactions[-1]
    for end in range(last.begin, last.end):
        at, events, boundaries = taken(log, bytes(log.data[:end]))
        assert (at, events, boundaries.transactions) == (last.begin, 10, 2)


@pytest.mark.parametrize("tag", ["", "blue"])
def test_an_unusual_transaction_is_left(tag: str) -> None:
    """One with a tag, or one that does not say how long it is."""
    log = usual(count=2)
    end = len(log.data)
    log.transaction(CHANGE, gtid=(UUID_A, tag, 9), with_length=bool(tag))
    at, events, boundaries = taken(log, bytes(log.data))
    assert (at, events, boundaries.transactions) == (end, 10, 2)


def test_a_transaction_that_is_collected_is_left() -> None:
    """The slower loop makes a value of it."""
    log = usual()
    wanted = log.transactions[3].begin
    assert taken(log, bytes(log.data), wanted=wanted)[0] == wanted


def test_every_flipped_byte_is_seen() -> None:
    """In a transaction among others that the fast loop takes, damage is in the event it is in."""
    log = usual()
    bad = log.transactions[3]
    for place in range(bad.begin, bad.end):
        flipped = bytearray(log.data)
        flipped[place] ^= 0xFF
        scanner = Scanner(stride=EVERYTHING)
        with pytest.raises(DamageError) as caught:
            scanner.feed(flipped)
        assert caught.value.offset == max(end for end in log.ends if end <= place)
        assert scanner.transactions == 3


def test_a_hole_is_damage_without_checksums() -> None:
    """Whether whole transactions are missing or one event of a transaction."""
    log = usual(checksum=False)
    after = [end for end in log.ends if end >= log.transactions[2].begin]
    for begin, end in ((after[0], after[5]), (after[2], after[3])):
        with pytest.raises(DamageError) as caught:
            Scanner(stride=EVERYTHING).feed(log.data[:begin] + log.data[end:])
        assert caught.value.offset == begin


def test_gtids_that_do_not_follow_each_other_are_counted_one_by_one() -> None:
    """With holes, backwards, and of two servers in turn."""
    log = BinlogWriter()
    for uuid, number in [(UUID_A, 1), (UUID_A, 5), (UUID_A, 6), (UUID_A, 3), (UUID_B, 4)]:
        log.transaction(CHANGE, gtid=(uuid, "", number), commit_us=NOW_US)
    log.transaction(CHANGE, gtid=(UUID_A, "", 9), commit_us=NOW_US - 7)
    at, _, boundaries = taken(log, bytes(log.data))
    assert at == len(log.data)
    assert str(boundaries.mysql_gtids()) == f"{UUID_A}:1:3:5-6:9,{UUID_B}:4"
    assert (boundaries.least_us, boundaries.greatest_us) == (NOW_US - 7, NOW_US)
    assert boundaries.last_commit_us == NOW_US - 7


def test_transactions_without_a_gtid_are_counted() -> None:
    """As such, between others."""
    log = usual(count=2)
    for _ in range(3):
        log.transaction(CHANGE, gtid=None, commit_us=NOW_US + 9)
    log.transaction(CHANGE, gtid=(UUID_A, "", 3), commit_us=NOW_US + 9)
    at, _, boundaries = taken(log, bytes(log.data))
    assert at == len(log.data)
    assert (boundaries.transactions, boundaries.anonymous) == (6, 3)
    assert str(boundaries.mysql_gtids()) == f"{UUID_A}:1:3,{UUID_B}:2"


@pytest.mark.parametrize("kind", [EventType.GTID, EventType.ANONYMOUS_GTID, EventType.ROTATE])
@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_an_event_that_begins_something_else_inside_a_transaction(
    kind: EventType, number: int
) -> None:
    """Leaves the transaction to the slower loop, which says what is wrong."""
    log = usual(checksum=False, count=3)
    last = log.transactions[-1]
    inside = [end for end in log.ends if last.begin <= end]
    data = bytearray(log.data)
    data[inside[number] + 4] = kind
    left(log, bytes(data))


def test_a_first_event_that_says_another_end_leaves_its_transaction() -> None:
    """Though all behind it fit each other."""
    log = usual(checksum=False, count=4)
    data = bytearray(log.data)
    data[log.transactions[2].begin + 13] ^= 1
    left(log, bytes(data))


@pytest.mark.parametrize("kind", [EventType.QUERY, EventType.XID, EventType.WRITE_ROWS, 200])
def test_what_only_looks_like_a_gtid_event_begins_no_transaction(kind: int) -> None:
    """Its type says that it is none."""
    log = usual(checksum=False, count=4)
    data = bytearray(log.data)
    data[log.transactions[2].begin + 4] = kind
    left(log, bytes(data))


def test_a_gtid_event_with_no_room_for_what_it_announces() -> None:
    """It says that another commit time follows, and ends before that."""
    log = usual(checksum=False, count=2)
    log.transaction(CHANGE, gtid=(UUID_A, "", 9), commit_us=NOW_US)
    data = bytearray(log.data)
    data[log.transactions[2].begin + 19 + 42 + 6] |= 0x80
    left(log, bytes(data))


def test_the_length_of_a_long_transaction_is_not_cut_to_two_bytes() -> None:
    """Not even where an event ends there: half a transaction would count as a whole one."""
    log = usual(checksum=False, count=2)
    rows = bytes((1 << 16) - log.size_of(b"") - log.size_of(XID[1]))
    log.transaction([BEGIN, TABLE_MAP, (EventType.WRITE_ROWS, rows), XID], gtid=(UUID_A, "", 9))
    last = log.transactions[2]
    assert last.end - 65536 in log.ends
    assert last.end - last.begin > 65536
    left(log, bytes(log.data))


@pytest.mark.parametrize("size", [0, 1, 18])
@pytest.mark.parametrize("number", [0, 1, 2])
def test_an_event_smaller_than_its_header_is_left(size: int, number: int) -> None:
    """Though it ends where it says; one of no size at all would be read for ever."""
    log = usual(checksum=False, count=4)
    inside = [end for end in log.ends if log.transactions[2].begin <= end]
    at = inside[number]
    data = bytearray(log.data)
    data[at + 9 : at + 17] = size.to_bytes(4, "little") + (at + size).to_bytes(4, "little")
    left(log, bytes(data))
