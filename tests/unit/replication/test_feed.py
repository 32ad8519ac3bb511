"""Events that are sent many at once: the same events, in the same packets, as one by one."""

import random
from copy import copy
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from binlog2s3.binlog.events import EventType
from binlog2s3.binlog.gtid import GtidSet
from binlog2s3.binlog.walk import EventSplitter
from binlog2s3.replication.events import WHOLE_MOST
from binlog2s3.replication.feed import Feed, NotServedError, had, pass_on
from tests.binlog_writer import UUID_A, BinlogWriter
from tests.got import Got
from tests.snapshots import written
from tests.unit.replication.test_protocol import Client

SIZES = (10, 150, 9_000, WHOLE_MOST - 200, WHOLE_MOST + 5, 200_000)


def binlog_of(seed: int) -> BinlogWriter:
    """Transactions of all sizes, and a format event between two of them."""
    chance = random.Random(seed)
    binlog = BinlogWriter()
    binlog.previous_gtids(GtidSet())
    for number in range(1, 13):
        if chance.random() < 0.1:
            event = bytearray(binlog.data[4 : binlog.ends[1]])
            event[13:17] = (len(binlog.data) + len(event)).to_bytes(4, "little")
            binlog.data += event
            binlog.ends.append(len(binlog.data))
        row = (EventType.QUERY, b"\0" * 13 + b"x" * chance.choice(SIZES))
        binlog.transaction([row, (EventType.XID, bytes(8))], gtid=(UUID_A, "", number))
    binlog.stop()
    return binlog


def begun(feed: Feed, binlog: BinlogWriter) -> bytes:
    """The feed has sent the binlog's head; what follows."""
    list(feed.begin("b.000001", 0, bytes(binlog.data[4 : binlog.ends[1]])))
    return bytes(binlog.data[binlog.ends[1] :])


@given(seed=st.integers(0, 500), has=st.sampled_from(["", "1-3", "2:5:9", "12"]), cuts=st.data())
def test_many_events_at_once_are_the_same_events(seed: int, has: str, cuts: st.DataObject) -> None:
    """However the bytes are cut, and whatever the replica has."""
    binlog = binlog_of(seed)
    gtids = had(GtidSet.parse(f"{UUID_A}:{has}" if has else ""))
    one, other = Feed(server_id=1, checksum=True, has=gtids, verbatim=True), Got()
    together, got = replace(one), Got()
    rest = begun(one, binlog)
    assert begun(together, binlog) == rest
    if seed % 3 == 0:  # a plan or a directory leaves out a transaction
        hole = binlog.transactions[5]
        rest = rest[: hole.begin - binlog.ends[1]] + rest[hole.end - binlog.ends[1] :]
    splitter = EventSplitter(most=WHOLE_MOST)
    for part in splitter.feed(rest):
        for out in one.event(part):
            other.send_event(out.data, out.size)
    places = cuts.draw(st.lists(st.integers(0, len(rest)), max_size=6))
    splitter, at = EventSplitter(most=WHOLE_MOST), 0
    for place in sorted([*places, len(rest)]):
        pass_on(memoryview(rest)[at:place], splitter, together, got)
        at = place
    assert got.events == other.events
    assert together == one
    assert not other.many


def test_what_a_server_sends_is_sent_at_once() -> None:
    """All whole events of a binlog, but for its rotate event, without a look at each."""
    binlog = written(20)
    feed = Feed(server_id=1, checksum=True, verbatim=True)
    rest, got = begun(feed, binlog), Got()
    pass_on(memoryview(rest), EventSplitter(most=WHOLE_MOST), feed, got)
    assert got.many == len(binlog.ends) - 3
    assert b"".join(got.events) == bytes(binlog.data[binlog.ends[1] : binlog.ends[-2]])


@pytest.mark.parametrize("size", [0, 18])
def test_no_event_is_so_small(size: int) -> None:
    """It raises, and does not loop."""
    binlog = written(2)
    feed = Feed(server_id=1, checksum=True, verbatim=True)
    rest = bytearray(begun(feed, binlog))
    begin = binlog.transactions[1].begin - binlog.ends[1]
    rest[begin + 9 : begin + 13] = size.to_bytes(4, "little")
    for cut in (begin, begin + 5, begin + 12):
        again, splitter = copy(feed), EventSplitter(most=WHOLE_MOST)
        pass_on(memoryview(rest)[:cut], splitter, again, Got())
        with pytest.raises(ValueError, match=f"an event of {size} bytes"):
            pass_on(memoryview(rest)[cut:], splitter, again, Got())


def test_a_place_inside_an_event_is_refused() -> None:
    """As one by one."""
    binlog = written(3)
    feed = Feed(
        server_id=1, checksum=True, verbatim=True, at=("b.000001", binlog.transactions[1].begin + 1)
    )
    rest = begun(feed, binlog)
    with pytest.raises(NotServedError, match="not between two events"):
        pass_on(memoryview(rest), EventSplitter(most=WHOLE_MOST), feed, Got())


def test_a_replica_that_names_a_position_stays_there() -> None:
    """Until an event comes: it adds the size of each that has a position. And it was not started.

    At the beginning of a binlog it is the binlog's own, which has its position and is a start.
    """
    binlog = written(3)
    head = bytes(binlog.data[4 : binlog.ends[1]])
    for offset, is_own in ((4, True), (binlog.transactions[-1].end, False)):
        feed = Feed(server_id=1, checksum=True, verbatim=True, at=("b.000001", offset))
        rotate, form = (bytes(part.data) for part in feed.begin("b.000001", 0, head))
        assert int.from_bytes(rotate[19:27], "little") == offset
        wanted = head if is_own else head[:13] + bytes(4) + head[17:71] + bytes(4) + head[75:]
        assert form[13:-4] == wanted[13:-4]


def test_packets_of_many_events() -> None:
    """Each has its own, and their numbers go on from those before, modulo 256."""
    chance = random.Random(7)
    events = [chance.randbytes(chance.choice([19, 300, WHOLE_MOST])) for _ in range(600)]
    one, other = Client().log_in().source, Client().log_in().source
    expected = b"".join(
        bytes(part) for event in events for part in one.event_packets(event, size=len(event))
    )
    data, found = memoryview(b"".join(events)), b""
    for some in (events[:1], events[1:400], events[400:]):
        sizes = [len(event) for event in some]
        found += b"".join(other.whole_events(data[: sum(sizes)], sizes))
        data = data[sum(sizes) :]
    assert found == expected
