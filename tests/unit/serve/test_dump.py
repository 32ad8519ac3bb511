"""What one client of `serve` is sent, and what it is refused."""

import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import Any, cast

import pytest

from binlog2s3.archive.catalog import Catalog, read
from binlog2s3.archive.documents import Entry, Lineage
from binlog2s3.binlog.events import EventType
from binlog2s3.binlog.gtid import Gtids, GtidSet
from binlog2s3.binlog.names import BinlogName
from binlog2s3.errors import ArchiveError, Binlog2s3Error, StoreError
from binlog2s3.replication.feed import NotServedError
from binlog2s3.replication.protocol import Dump, DumpByGtid, DumpByPosition
from binlog2s3.replication.queries import Identity
from binlog2s3.replication.source import Client
from binlog2s3.serve.dump import ServedDump, SharedBlocks
from binlog2s3.serve.history import ArchiveHistory
from binlog2s3.serve.model import ServedBinlog
from tests.binlog_writer import UUID_A, UUID_B, XID, BinlogWriter, statement
from tests.documents import BEAT, ID, LINEAGE, NAME, like, parent_of
from tests.got import Got
from tests.snapshots import LAYOUT, Bucket, workers, written
from tests.waiting import wait_until

WHO = Identity(version="9.7.4", flavour="mysql", server_id=4242, server_uuid=UUID_A)
SECOND = NAME.next()
HEARTBEAT, ROTATE, FORMAT = EventType.HEARTBEAT, EventType.ROTATE, EventType.FORMAT_DESCRIPTION
OTHER_ID = "20260103T030405Z-4e11fa47-a1b2"


def by_gtid(gtids: str = "", **more: Any) -> DumpByGtid:
    usual = {"server_id": 9, "uuid": "", "name": "", "heartbeat": 0.0, "heartbeat_v2": False}
    return DumpByGtid(**{**usual, "registered": True, "gtids": GtidSet.parse(gtids), **more})


def at(name: BinlogName | str, position: int = 4, **more: Any) -> DumpByPosition:
    usual = {"server_id": 9, "uuid": "", "heartbeat": 0.0, "heartbeat_v2": False, "state": None}
    return DumpByPosition(
        **{**usual, "registered": True, "name": str(name), "position": position, **more}
    )


@contextmanager
def history_of(
    bucket: Bucket, lineage: str | None = None, *, poll_seconds: float = 0.01
) -> Iterator[ArchiveHistory]:
    found = ArchiveHistory(
        Catalog(bucket, LAYOUT), workers(), lineage=lineage, poll_seconds=poll_seconds
    )
    found.start()
    with closing(found):
        yield found


@contextmanager
def sending(history: ArchiveHistory, dump: Dump, got: Got) -> Iterator[list[BaseException]]:
    """A dump in a thread of its own; what it raised."""
    raised: list[BaseException] = []
    cache = SharedBlocks(workers())

    def run() -> None:
        try:
            ServedDump(
                cast("Client", got), dump, history, cache, WHO,
                ended=lambda seconds: bool(seconds and time.sleep(min(seconds, 0.01))),
                dumps=lambda: 1,
            ).run()  # fmt: skip
        except (Binlog2s3Error, OSError) as error:
            raised.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield raised
    finally:
        got.left = True
        thread.join(30)
    assert not thread.is_alive()


def ended(
    bucket: Bucket, dump: Dump, *, lineage: str | None = None, follows: bool = False
) -> tuple[Got, str]:
    """What there is; and why no more is sent, "" if that is all. `follows`: it does not end."""
    got = Got()
    dump = dump if follows else replace(dump, ends=True)
    with history_of(bucket, lineage) as history, sending(history, dump, got) as raised:
        wait_until(lambda: got.finished or raised, what="the end")
    return got, str(raised[0]) if raised else ""


def everything(bucket: Bucket, dump: Dump) -> Got:
    """What there is."""
    got = Got()
    with history_of(bucket) as history, sending(history, replace(dump, ends=True), got) as raised:
        wait_until(lambda: got.finished or raised, what="the end")
        if raised:
            raise raised[0]
    return got


def two(bucket: Bucket) -> tuple[BinlogWriter, BinlogWriter]:
    """An archived binlog and an open one."""
    first, second = written(12), written(5, first=13, rotate=False)
    bucket.archive(first.data)
    bucket.chunks(second.data, 0, len(second.data), name=SECOND)
    bucket.beat(replace(BEAT, lineage=ID))
    return first, second


@pytest.fixture
def bucket() -> Bucket:
    found = Bucket(replace(LINEAGE, first_binlog=NAME))
    found.beat(replace(BEAT, lineage=ID))
    return found


# What is sent


@pytest.mark.parametrize("dump", [by_gtid(), at(NAME), at("")])
def test_all_events_as_they_are(bucket: Bucket, dump: Dump) -> None:
    """Those of the binlogs, each with a rotate event before it."""
    first, second = two(bucket)
    got = everything(bucket, dump)
    # a rotate that names another binlog than the next one is left out for a replica
    own = first.data[4 : first.ends[-2]] + second.data[4:]
    assert got.own().replace(first.data[first.ends[-2] :], b"") == own
    names = [one[27:-4].decode() for one in got.of(ROTATE) if one[:4] == bytes(4)]
    assert [name[:16] for name in names] == [str(NAME), str(SECOND)]


def test_what_the_replica_has_is_left_out(bucket: Bucket) -> None:
    """And it is told where it is after that."""
    first, second = two(bucket)
    got = everything(bucket, by_gtid(f"{UUID_A}:1-12:14"))
    assert len(got.of(EventType.GTID)) == 4
    place = second.transactions[1].end
    told = [int.from_bytes(one[19:27], "little") for one in got.of(ROTATE)]
    assert told[-1] == place
    assert second.transactions[0].begin < place
    del first


def test_a_position_inside(bucket: Bucket) -> None:
    """From there on."""
    first, second = two(bucket)
    begin = first.transactions[5].begin
    got = everything(bucket, at(NAME, begin))
    assert len(got.of(EventType.GTID)) == 7 + 5
    assert int.from_bytes(got.events[0][19:27], "little") == begin
    del second


@pytest.mark.parametrize(("rotates", "number"), [(True, -1), (True, -2), (False, -1)])
def test_a_position_at_the_end(bucket: Bucket, rotates: bool, number: int) -> None:
    """Before the rotate, after it, or as behind a crash, which writes none: the next one comes."""
    first, second = written(12, rotate=rotates), written(5, first=13, rotate=False)
    bucket.archive(first.data)
    bucket.chunks(second.data, 0, len(second.data), name=SECOND)
    got = everything(bucket, at(NAME, first.ends[number]))
    assert len(got.of(EventType.GTID)) == 5


def test_only_whole_transactions(bucket: Bucket) -> None:
    """The rest comes when the rest is there."""
    binlog = written(3, rotate=False)
    middle = binlog.transactions[2].begin + 100
    bucket.chunks(binlog.data, 0, middle)
    got = Got()
    with history_of(bucket) as history, sending(history, by_gtid(), got) as raised:
        wait_until(lambda: len(got.of(EventType.GTID)) == 2, what="two of them")
        bucket.chunks(binlog.data, middle, len(binlog.data))
        wait_until(lambda: len(got.of(EventType.GTID)) == 3, what="the third")
        assert not raised


def test_it_follows_over_rotations(bucket: Bucket) -> None:
    """The rotate of a binlog is sent when the next one is there, and not before."""
    first = written(3)
    bucket.chunks(first.data, 0, len(first.data))
    got = Got()
    with history_of(bucket) as history, sending(history, by_gtid(heartbeat=1.0), got) as raised:
        wait_until(lambda: got.of(HEARTBEAT), what="a heartbeat")
        beat = got.of(HEARTBEAT)[0]
        assert beat[19:-4].decode() == str(NAME)
        assert int.from_bytes(beat[13:17], "little") == first.ends[-2]
        second = written(4, first=4, rotate=False)
        bucket.chunks(second.data, 0, len(second.data), name=SECOND)
        wait_until(lambda: len(got.of(EventType.GTID)) == 7, what="the next")
        assert not raised


def test_a_place_that_is_not_there_yet(bucket: Bucket) -> None:
    """The archive is behind: heartbeats name the replica's place, and then it goes on."""
    binlog = written(6, rotate=False)
    bucket.chunks(binlog.data, 0, binlog.transactions[1].end)
    place = binlog.transactions[3].end
    got = Got()
    with history_of(bucket) as history, sending(history, at(NAME, place, heartbeat=1.0), got) as no:
        wait_until(lambda: got.of(HEARTBEAT), what="a heartbeat")
        assert int.from_bytes(got.of(HEARTBEAT)[0][13:17], "little") == place
        bucket.chunks(binlog.data, binlog.transactions[1].end, len(binlog.data))
        wait_until(lambda: len(got.of(EventType.GTID)) == 2, what="the rest")
        assert not no


def test_a_store_that_is_silent(bucket: Bucket) -> None:
    """Heartbeats, and then the rest."""
    binlog = written(6, rotate=False)
    bucket.chunks(binlog.data, 0, binlog.transactions[1].end)
    silent = StoreError("no route", transient=True)
    failing = [False]
    got = Got()
    with history_of(bucket) as history, sending(history, by_gtid(heartbeat=1.0), got) as raised:
        wait_until(lambda: len(got.of(EventType.GTID)) == 2, what="two of them")
        bucket.on_call = lambda _: ("before", silent) if failing[0] else None
        failing[0] = True
        wait_until(lambda: history.error is not None, what="the error is noted")
        beats = len(got.of(HEARTBEAT))
        wait_until(lambda: len(got.of(HEARTBEAT)) > beats, what="a heartbeat")
        failing[0] = False
        bucket.chunks(binlog.data, binlog.transactions[1].end, len(binlog.data))
        wait_until(lambda: len(got.of(EventType.GTID)) == 6, what="the rest")
        assert not raised
        assert history.error is None


# Several lineages


def another(bucket: Bucket, cut: int, gtids: str, join: str = "exact") -> Lineage:
    """A lineage of another server that continues the first one at this offset of NAME."""
    parent = parent_of(ID, binlog=str(NAME), offset=cut, gtid_set=gtids, join=join)
    lineage = like(
        LINEAGE, id=OTHER_ID, server_uuid=OTHER_ID[17:25], first_binlog=NAME, gtid_set=gtids,
        parent=parent,
    )  # fmt: skip
    bucket.put(LAYOUT.lineage(OTHER_ID), lineage.to_json())
    return lineage


def fail_over(bucket: Bucket, lineage: Lineage, binlog: BinlogWriter) -> None:
    """The other server is streamed from now on."""
    bucket.lineage = lineage
    bucket.chunks(binlog.data, 0, len(binlog.data))
    bucket.beat(replace(BEAT, generation=8, lineage=lineage.id))


def test_an_exact_join_is_crossed(bucket: Bucket) -> None:
    """Each transaction once, though the other server's binlog has some of them, too."""
    first = written(5)
    bucket.archive(first.data)
    lineage = another(bucket, len(first.data), f"{UUID_A}:1-5")
    fail_over(bucket, lineage, written(6, first=3, rotate=False))
    for dump in (by_gtid(), at(f"{ID}.{NAME}")):
        got = everything(bucket, dump)
        assert len(got.of(EventType.GTID)) == 8
        names = {one[27:-4].decode() for one in got.of(ROTATE) if one[:4] == bytes(4)}
        assert names == {f"{ID}.{NAME}", f"{OTHER_ID}.{NAME}"}


def refused(bucket: Bucket, dump: Dump) -> str:
    with pytest.raises(NotServedError) as caught:
        everything(bucket, dump)
    return str(caught.value)


def test_a_dead_branch(bucket: Bucket) -> None:
    """The replica has what the history left."""
    first = written(5)
    bucket.archive(first.data)
    lineage = another(bucket, first.transactions[3].end, f"{UUID_A}:1-4")
    other = BinlogWriter()
    other.previous_gtids(GtidSet.parse(f"{UUID_A}:1-4"))
    fail_over(bucket, lineage, other)
    assert "dead branch" in refused(bucket, by_gtid(f"{UUID_A}:1-5"))
    got = everything(bucket, by_gtid(f"{UUID_A}:1-4"))
    assert got.of(EventType.GTID) == []


def test_an_unknown_join_is_not_crossed(bucket: Bucket) -> None:
    """A replica that follows the lineage which was written is told so when another is."""
    first = written(5, rotate=False)
    bucket.chunks(first.data, 0, len(first.data))
    got = Got()
    with history_of(bucket) as history, sending(history, by_gtid(), got) as raised:
        wait_until(lambda: len(got.of(EventType.GTID)) == 5, what="all")
        history.LOOK_SECONDS = 0.0
        lineage = another(bucket, len(first.data), f"{UUID_A}:1-5", join="unknown")
        fail_over(bucket, lineage, written(6, first=3, rotate=False))
        wait_until(lambda: raised, what="the refusal")
    assert OTHER_ID in str(raised[0])


def test_gtids_of_two_histories(bucket: Bucket) -> None:
    """After a RESET the same numbers mean other transactions."""
    bucket.archive(written(5).data)
    lineage = like(LINEAGE, id=OTHER_ID, first_binlog=NAME)
    bucket.put(LAYOUT.lineage(OTHER_ID), lineage.to_json())
    fail_over(bucket, lineage, written(9, rotate=False))
    assert "two different histories" in refused(bucket, by_gtid(f"{UUID_A}:1-3"))
    assert len(everything(bucket, by_gtid()).of(EventType.GTID)) == 9
    got, why = ended(bucket, by_gtid(f"{UUID_A}:1-3"), lineage=OTHER_ID)
    assert not why, "the operator says which history the replicas have"
    assert len(got.of(EventType.GTID)) == 6


# A server that was put back to a snapshot: positions of both branches


THIRD = SECOND.next()


def branch(letter: str, *, common: int, total: int = 6, rotate: bool = False) -> BinlogWriter:
    """Transactions without GTIDs: the first ones are `common`, all have the same sizes."""
    binlog = BinlogWriter()
    binlog.previous_gtids(GtidSet.parse(""))
    for number in range(total):
        text = f"INSERT {number} {'c' if number < common else letter}"
        binlog.transaction([statement("BEGIN"), statement(text), XID])
    if rotate:
        binlog.rotate()
    return binlog


def put_back(
    bucket: Bucket, *, open_dead: bool = False, lost: int = 0
) -> tuple[Lineage, BinlogWriter, int]:
    """NAME has two common transactions, then four of a dead branch or four others.

    The dead branch has SECOND, too; `open_dead`: it ends in NAME instead, which nobody finished
    and which lacks so many of its transactions that were `lost` with the source.
    """
    dead = branch("d", common=2, rotate=not open_dead)
    if open_dead:
        end = dead.transactions[5 - lost].end
        bucket.chunks(dead.data, 0, end)
    else:
        bucket.archive(dead.data)
        bucket.archive(branch("d", common=0).data, SECOND)
    cut = dead.transactions[1].end
    lineage = of_the_same_server(bucket, cut)
    ours = branch("o", common=2)
    fail_over(bucket, lineage, ours)
    return lineage, ours, cut


def of_the_same_server(bucket: Bucket, cut: int, gtids: str = "") -> Lineage:
    """A lineage that goes on from there, of the server itself, and begins with NAME again."""
    parent = parent_of(ID, binlog=str(NAME), offset=cut, gtid_set=gtids, join="exact")
    lineage = like(LINEAGE, id=OTHER_ID, first_binlog=NAME, gtid_set="", parent=parent)
    bucket.put(LAYOUT.lineage(OTHER_ID), lineage.to_json())
    return lineage


def rows(got: Got) -> list[str]:
    """The statements that it was sent, by number and branch."""
    texts = [one[19:-4].partition(b"INSERT ")[2].decode() for one in got.of(EventType.QUERY)]
    return [text for text in texts if text]


OURS = ["2 o", "3 o", "4 o", "5 o"]


def test_a_position_of_a_dead_branch_is_never_fed(bucket: Bucket) -> None:
    """Transactions of equal size make the offsets meet: nothing tells what the replica has."""
    _, ours, cut = put_back(bucket)
    for number in range(2, 6):
        text = refused(bucket, at(NAME, ours.transactions[number].end))
        assert "dead branch" in text
        assert f"{OTHER_ID}.{NAME}" in text, "how to say that the other one is meant"
        assert f"lineage {ID}, a dead branch, which the history left at {NAME}:{cut}" in text
        assert len(text) < 260, "a replica shows no more"


@pytest.mark.parametrize("name", [str(NAME), f"{ID}.{NAME}", f"{OTHER_ID}.{NAME}"])
@pytest.mark.parametrize("registered", [True, False])
def test_places_of_a_server_that_was_put_back(bucket: Bucket, name: str, registered: bool) -> None:
    """Up to the cut both have the same bytes; behind it only the other lineage's name tells.

    Change data capture resumes by position, often without registering as a replica.
    """
    _, ours, cut = put_back(bucket)
    first, last = ours.transactions[0].end, ours.transactions[3].end
    for place, expected in ((4, ["0 c", "1 c", *OURS]), (first, ["1 c", *OURS]), (cut, OURS)):
        assert rows(everything(bucket, at(name, place, registered=registered))) == expected
    dump = at(name, last, registered=registered)
    if name.startswith(OTHER_ID):
        assert rows(everything(bucket, dump)) == OURS[2:]
    else:
        assert "dead branch" in refused(bucket, dump)


@pytest.mark.parametrize("name", [str(SECOND), f"{ID}.{SECOND}"])
def test_a_name_that_only_the_dead_branch_has(bucket: Bucket, name: str) -> None:
    """It is refused at once, although the open binlog's successor will have that name."""
    put_back(bucket)
    got, why = ended(bucket, at(name), follows=True)
    assert "dead branch" in why
    assert not got.events


def test_the_next_name_of_this_history_is_waited_for(bucket: Bucket) -> None:
    """The lineage says that it is not the dead branch's binlog of that name."""
    lineage, _, _ = put_back(bucket)
    got, name = Got(), f"{OTHER_ID}.{SECOND}"
    with history_of(bucket) as history, sending(history, at(name), got) as raised:
        version = history.view().version
        more = branch("o", common=2, rotate=True)
        bucket.archive(more.data)
        second = branch("p", common=0)
        bucket.chunks(second.data, 0, len(second.data), name=SECOND)
        wait_until(lambda: len(rows(got)) == 6 or raised, what="its transactions")
        assert history.view().version > version
    assert not raised
    assert rows(got) == [f"{number} p" for number in range(6)]
    assert bucket.lineage is lineage


def test_names_that_a_dead_branch_has_too_are_told_with_their_lineage(bucket: Bucket) -> None:
    """The replica asks by that name when it connects again, and is then not taken for another."""
    put_back(bucket)
    more = branch("o", common=2, rotate=True)
    bucket.archive(more.data)
    second, third = branch("p", common=0, rotate=True), branch("q", common=0)
    bucket.archive(second.data, SECOND)
    bucket.chunks(third.data, 0, len(third.data), name=THIRD)
    got = everything(bucket, at(f"{OTHER_ID}.{NAME}"))
    told = [one[27:-4].decode() for one in got.of(ROTATE) if one[:4] == bytes(4)]
    assert told == [f"{OTHER_ID}.{NAME}", f"{OTHER_ID}.{SECOND}", str(THIRD)]
    again = everything(bucket, at(told[1], second.transactions[3].end))
    assert rows(again) == ["4 p", "5 p", *(f"{number} q" for number in range(6))]
    assert "dead branch" in refused(bucket, at(SECOND, second.transactions[3].end))


def test_mysqlbinlog_is_told_the_name_that_it_asks_for(bucket: Bucket) -> None:
    """It compares them, and reads nothing if they differ."""
    put_back(bucket)
    for name in (str(NAME), f"{OTHER_ID}.{NAME}"):
        got = everything(bucket, at(name, registered=False))
        told = [one[27:-4].decode() for one in got.of(ROTATE) if one[:4] == bytes(4)]
        assert told == [name]
        assert rows(got) == ["0 c", "1 c", *OURS]


def test_what_the_archive_lost_of_a_dead_branch_is_refused_too(bucket: Bucket) -> None:
    """The source died with bytes that the bucket does not have; its replicas may have had them."""
    _, ours, _ = put_back(bucket, open_dead=True, lost=2)
    assert "dead branch" in refused(bucket, at(NAME, ours.transactions[5].end))
    got = everything(bucket, at(f"{OTHER_ID}.{NAME}", ours.transactions[4].end))
    assert rows(got) == ["5 o"]


def test_the_operator_says_which_history_the_replicas_have(bucket: Bucket) -> None:
    """As for GTIDs and as for a recovery: --lineage counts where both have the place."""
    _, ours, _ = put_back(bucket)
    got, why = ended(bucket, at(NAME, ours.transactions[3].end), lineage=OTHER_ID)
    assert (rows(got), why) == (OURS[2:], "")
    assert "dead branch" in ended(bucket, at(SECOND), lineage=OTHER_ID)[1]


def test_a_lineage_that_was_reset_is_followed_by_its_full_name(bucket: Bucket) -> None:
    """The name that the refusal asks for is accepted."""
    bucket.archive(branch("d", common=0).data)
    lineage = like(LINEAGE, id=OTHER_ID, first_binlog=NAME, gtid_set="")
    bucket.put(LAYOUT.lineage(OTHER_ID), lineage.to_json())
    fail_over(bucket, lineage, branch("o", common=0))
    text = refused(bucket, at(NAME))
    assert ID in text
    assert f"{OTHER_ID}.{NAME}" in text
    got = everything(bucket, at(f"{OTHER_ID}.{NAME}"))
    assert len(rows(got)) == 6


def test_gtids_before_the_cut_get_what_both_binlogs_have(bucket: Bucket) -> None:
    """A replica begins in a binlog whose first part the lineage before has, too: all is sent."""
    first = written(6, rotate=False)
    bucket.archive(first.data)
    lineage = of_the_same_server(bucket, first.transactions[3].end, f"{UUID_A}:1-4")
    fail_over(bucket, lineage, written(5, rotate=False))
    for had, count in (("", 5), (f"{UUID_A}:1", 4), (f"{UUID_A}:1-4", 1)):
        assert len(everything(bucket, by_gtid(had)).of(EventType.GTID)) == count, had


@pytest.mark.parametrize("is_open", [True, False])
def test_the_parent_was_pruned(bucket: Bucket, is_open: bool) -> None:
    """Then the binlog in which the lineage begins is sent from its own beginning."""
    cut = written(5).transactions[3].end
    fail_over(bucket, of_the_same_server(bucket, cut, f"{UUID_A}:1-4"), written(6, rotate=False))
    if not is_open:
        bucket.archive(written(6).data)
    for dump in (by_gtid(), at(NAME), at(f"{OTHER_ID}.{NAME}")):
        assert len(everything(bucket, dump).of(EventType.GTID)) == 6, dump


# Another look at the bucket


class LooksAgain:
    """A history in which the bucket is looked at once more after a dump has asked where to begin.

    The binlogs before are gone then, so each binlog has another number.
    """

    def __init__(self, before: ArchiveHistory, after: ArchiveHistory) -> None:
        self._now, self._after = before, after

    def __getattr__(self, name: str) -> Any:
        return getattr(self._now, name)

    def first_for(self, have: Gtids) -> tuple[ServedBinlog, int]:
        found = self._now.first_for(have)
        self._now = self._after
        return found

    def elsewhere(self, name: BinlogName, offset: int, *, is_here: bool) -> Sequence[str]:
        found = self._now.elsewhere(name, offset, is_here=is_here)
        self._now = self._after
        return found


@pytest.mark.parametrize("dump", [by_gtid(f"{UUID_A}:1-5"), at(SECOND)])
def test_another_look_at_the_bucket_shifts_nothing(bucket: Bucket, dump: Dump) -> None:
    """The dump begins in the binlog that it was given, whatever number that has meanwhile."""
    first, second, third = written(5), written(5, first=6), written(5, first=11, rotate=False)
    bucket.archive(first.data)
    bucket.archive(second.data, SECOND)
    bucket.chunks(third.data, 0, len(third.data), name=SECOND.next())
    shorter = Bucket(replace(LINEAGE, first_binlog=SECOND))
    shorter.beat(replace(BEAT, lineage=ID))
    shorter.archive(second.data, SECOND)
    shorter.chunks(third.data, 0, len(third.data), name=SECOND.next())
    got = Got()
    with history_of(bucket) as before, history_of(shorter) as after:
        assert after.look(30)  # a dump has only the history before do that
        both = cast("ArchiveHistory", LooksAgain(before, after))
        with sending(both, replace(dump, ends=True), got) as raised:
            wait_until(lambda: got.finished or raised, what="the end")
    assert not raised
    assert len(got.of(EventType.GTID)) == 10


# What cannot be right


def test_gtids_before_the_archive(bucket: Bucket) -> None:
    """They are named."""
    bucket.archive(written(5, first=10).data)
    assert f"{UUID_A}:1-9" in refused(bucket, by_gtid())
    assert f"{UUID_A}:4-9" in refused(bucket, by_gtid(f"{UUID_A}:1-3"))


def test_a_gap(bucket: Bucket) -> None:
    """Nothing behind it is sent."""
    bucket.archive(written(5).data)
    bucket.archive(written(5, first=9).data, SECOND)
    got, why = ended(bucket, by_gtid(), follows=True)
    assert f"{UUID_A}:6-8 is in no binlog" in why
    assert len(got.of(EventType.GTID)) == 5


def left_out(bucket: Bucket, *, is_open: bool) -> None:
    """Five transactions, rows that are in no binlog, five more in a new lineage."""
    first, second = written(5), written(5, first=6, rotate=not is_open)
    bucket.archive(first.data)
    lineage = like(
        another(bucket, len(first.data), f"{UUID_A}:1-5", "gap"),
        server_uuid=LINEAGE.server_uuid,
        first_binlog=SECOND,
        gtid_set=f"{UUID_A}:1-5",
    )
    assert lineage.parent is not None
    lineage = replace(lineage, parent=replace(lineage.parent, unlogged=True))
    bucket.put(LAYOUT.lineage(lineage.id), lineage.to_json())
    bucket.lineage = lineage
    if is_open:
        bucket.chunks(second.data, 0, len(second.data), name=SECOND)
    else:
        bucket.archive(second.data, SECOND)
    bucket.beat(replace(BEAT, lineage=lineage.id, generation=8))


@pytest.mark.parametrize("is_open", [True, False])
def test_rows_that_are_in_no_binlog(bucket: Bucket, *, is_open: bool) -> None:
    """Nothing behind them is sent, also to one that asks again and has all that came before."""
    left_out(bucket, is_open=is_open)
    got, why = ended(bucket, by_gtid(), follows=True)
    assert "without a binlog" in why
    assert len(got.of(EventType.GTID)) == 5
    assert "GTIDs do not tell" in refused(bucket, by_gtid(f"{UUID_A}:1-5"))
    assert len(everything(bucket, by_gtid(f"{UUID_A}:1-6")).of(EventType.GTID)) == 4


@pytest.mark.parametrize("rotations", [0, 1, 2])
def test_transactions_without_gtids(bucket: Bucket, rotations: int) -> None:
    """They lie between others, and a replica by GTID may have them or not."""
    first = written(3, rotate=False)
    for _ in range(2):
        first.transaction([statement("BEGIN"), statement("INSERT"), XID])
    first.rotate()
    bucket.archive(first.data)
    for number in range(rotations):
        bucket.archive(written(0, first=4).data, BinlogName(NAME.prefix, NAME.number + 1 + number))
    bucket.archive(written(2, first=4).data, BinlogName(NAME.prefix, NAME.number + 1 + rotations))
    assert "without a GTID" in refused(bucket, by_gtid(f"{UUID_A}:1-3"))
    assert len(everything(bucket, by_gtid(f"{UUID_A}:1-4")).of(EventType.GTID)) == 1


@pytest.mark.parametrize("is_open", [True, False])
def test_what_the_source_got_without_its_binlogs(bucket: Bucket, *, is_open: bool) -> None:
    """A replica must have it, also while the first binlog is all there is."""
    lineage = replace(bucket.lineage, gtids_outside=f"{UUID_B}:1-9")
    bucket.put(LAYOUT.lineage(lineage.id), lineage.to_json())
    data = written(5, rotate=not is_open).data
    if is_open:
        bucket.chunks(data, 0, len(data))
    else:
        bucket.archive(data)
    for have in ("", f"{UUID_B}:1-8"):
        assert f"is missing {UUID_B}:" in refused(bucket, by_gtid(have))
    assert len(everything(bucket, by_gtid(f"{UUID_B}:1-9")).of(EventType.GTID)) == 5


@pytest.mark.parametrize("who", ["entry", "writer"])
def test_what_came_in_without_a_binlog(bucket: Bucket, who: str) -> None:
    """A server refuses a replica that lacks what it purged; it is between two binlogs of a lineage.

    An entry says it of a binlog that was archived before `serve` began, the writer of later ones.
    """
    came_in = (f"binlog_ignore_db=tmp,{UUID_A}:1", f"gtid_purged={UUID_B}:1-9")
    bucket.archive(written(5).data)
    last = written(5, first=6)
    bucket.archive(last.data, SECOND)
    if who == "entry":
        key = LAYOUT.entry(ID, SECOND)
        entry = replace(read(bucket, key, Entry), leaves_out=came_in)
        bucket.put(key, entry.to_json())
    else:
        bucket.beat(replace(BEAT, lineage=ID, leaves_out=came_in))
    for have in (f"{UUID_A}:1-5", f"{UUID_A}:1-5,{UUID_B}:1-8"):
        assert f"is missing {UUID_B}:" in refused(bucket, by_gtid(have))
    has_all = by_gtid(f"{UUID_A}:1-5,{UUID_B}:1-9")
    assert len(everything(bucket, has_all).of(EventType.GTID)) == 5


@pytest.mark.parametrize("is_open", [True, False])
def test_transactions_without_gtids_are_not_passed_over(bucket: Bucket, *, is_open: bool) -> None:
    """An empty binlog lies between them and those with GTIDs, which begin after the same ones."""
    bucket.archive(written(5).data)
    without, none = BinlogWriter(), BinlogWriter()
    for binlog in (without, none):
        binlog.previous_gtids(GtidSet.parse(f"{UUID_A}:1-5"))
    without.transaction([statement("BEGIN"), statement("INSERT"), XID])
    names = [SECOND]
    for binlog in (without, none):
        binlog.rotate(str(names[-1].next()))
        bucket.archive(binlog.data, names[-1])
        names.append(names[-1].next())
    last = written(5, first=6, rotate=not is_open)
    if is_open:
        bucket.chunks(last.data, 0, len(last.data), name=names[-1])
    else:
        bucket.archive(last.data, names[-1])
    text = refused(bucket, by_gtid(f"{UUID_A}:1-5"))
    assert f"{SECOND} has transactions without a GTID" in text
    assert len(everything(bucket, by_gtid(f"{UUID_A}:1-6")).of(EventType.GTID)) == 4


def test_damage(bucket: Bucket) -> None:
    """What comes before it is sent."""
    binlog = written(5)
    bad = bytearray(binlog.data)
    begin = binlog.transactions[3].begin
    bad[begin + 30] ^= 1
    bucket.archive(bad, accept=[begin])
    got, why = ended(bucket, by_gtid(), follows=True)
    assert f"bytes {begin} to" in why
    assert len(got.of(EventType.GTID)) == 3


@pytest.mark.parametrize(
    ("dump", "text"),
    [
        (at("mysql-bin.000099"), "not in this archive"),
        (at(NAME, 5), "not between two events"),
        (at(NAME, 1 << 30), "has no byte"),
    ],
)
def test_places_that_are_not_there(bucket: Bucket, dump: Dump, text: str) -> None:
    """The text says which."""
    two(bucket)
    with pytest.raises((NotServedError, ArchiveError), match=text):
        everything(bucket, dump)


def test_ten_clients_share_the_blocks(bucket: Bucket) -> None:
    """What one has fetched is not fetched again."""
    binlog = written(300, row_bytes=40_000)
    bucket.archive(binlog.data)
    cache, gots = SharedBlocks(workers()), [Got(number=n) for n in range(10)]
    with history_of(bucket) as history:
        senders = [
            ServedDump(
                cast("Client", got), replace(by_gtid(), ends=True), history, cache, WHO,
                ended=lambda _: False, dumps=lambda: 10,
            )
            for got in gots
        ]  # fmt: skip
        with ThreadPoolExecutor(10) as threads:
            list(threads.map(ServedDump.run, senders))
    assert all(len(got.of(EventType.GTID)) == 300 for got in gots)
    assert cache.fetched < 2 * len(binlog.data)
