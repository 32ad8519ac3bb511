"""What `serve` knows of a bucket as it grows: what it proves, what it says, and who waits."""

import threading
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace

import pytest

from binlog2s3.archive.catalog import Catalog
from binlog2s3.archive.chunks import Chunk
from binlog2s3.archive.documents import Lineage
from binlog2s3.archive.reader import Readable
from binlog2s3.archive.writers import Position
from binlog2s3.binlog.checksum import crc64nvme
from binlog2s3.binlog.events import EventType
from binlog2s3.binlog.gtid import GtidSet
from binlog2s3.binlog.names import BinlogName
from binlog2s3.replication.feed import NotServedError
from binlog2s3.serve.history import ArchiveHistory
from binlog2s3.store.contract import ObjectInfo
from tests.binlog_writer import UUID_A, XID, BinlogWriter, statement
from tests.documents import BEAT, ID, LINEAGE, NAME, like
from tests.snapshots import KEY, LAYOUT, Bucket, workers, written
from tests.unit.serve.test_dump import (
    OTHER_ID,
    SECOND,
    Got,
    another,
    at,
    by_gtid,
    ended,
    fail_over,
    history_of,
    sending,
)
from tests.waiting import wait_until

THIRD = SECOND.next()


@pytest.fixture
def bucket() -> Bucket:
    found = Bucket(replace(LINEAGE, first_binlog=NAME))
    found.beat(replace(BEAT, lineage=ID))
    return found


class Watched(Bucket):
    """Notes what is looked at and got. The document `held` is read only once it is `free`."""

    def __init__(self, lineage: Lineage) -> None:
        super().__init__(lineage)
        self.looked_at: list[str] = []
        self.got: list[str] = []
        self.held = ""
        self.free = threading.Event()

    def head(self, key: str) -> ObjectInfo | None:
        self.looked_at.append(key)
        return super().head(key)

    def get(
        self, key: str, begin: int = 0, end: int | None = None, *, most: int | None = None
    ) -> bytes:
        self.got.append(key)
        if key == self.held:
            self.free.wait(60)
        return super().get(key, begin, end, most=most)


def flipped(data: bytes | bytearray, offset: int) -> bytes:
    found = bytearray(data)
    found[offset] ^= 0x01
    return bytes(found)


def damaged_chunk(
    bucket: Bucket, data: bytes | bytearray, begin: int, *, flip: int, name: BinlogName = NAME
) -> tuple[str, bytes]:
    """A chunk with a flipped byte, from the beginning on; its key, and what it should have."""
    whole = bytes(data[begin:])
    key = LAYOUT.chunk(ID, name, Chunk(begin, len(data), crc64nvme(whole)))
    bucket.put(key, flipped(whole, flip - begin))
    return key, whole


# Damage of what comes next


Make = Callable[[Bucket, BinlogName, bytes], None]


def damaged_entry(bucket: Bucket, name: BinlogName, data: bytes) -> None:
    bucket.archive(data, name)
    bucket.objects[LAYOUT.entry(ID, name)].data = b"{"


def two_chunks(bucket: Bucket, name: BinlogName, data: bytes) -> None:
    """Two chunks of the same range with other bytes."""
    bucket.chunks(data, 0, len(data), name=name)
    bucket.chunks(flipped(data, 50), 0, len(data), name=name)


@pytest.mark.parametrize("make", [damaged_entry, two_chunks])
def test_damage_of_the_next_binlog_is_an_error(bucket: Bucket, make: Make) -> None:
    """Its clients and its status say so; it is not taken for one that comes later."""
    first, second = written(3), written(3, first=4)
    bucket.chunks(first.data, 0, len(first.data))
    got = Got()
    with history_of(bucket) as history, sending(history, by_gtid(heartbeat=1.0), got) as raised:
        wait_until(lambda: len(got.of(EventType.GTID)) == 3, what="the first")
        make(bucket, SECOND, bytes(second.data))
        wait_until(lambda: raised, what="the client is told")
        assert str(SECOND) in str(raised[0])
        assert isinstance(raised[0], NotServedError)
        assert history.view().problem == str(raised[0])


@pytest.mark.parametrize("make", [damaged_entry, two_chunks])
def test_damage_that_is_there_at_the_start(bucket: Bucket, make: Make) -> None:
    """What comes before it is served; then clients are told."""
    first, second = written(3), written(3, first=4)
    bucket.archive(first.data)
    make(bucket, SECOND, bytes(second.data))
    got, why = ended(bucket, at(NAME), follows=True)
    assert len(got.of(EventType.GTID)) == 3
    assert str(SECOND) in why


def test_a_gap_before_archived_binlogs(bucket: Bucket) -> None:
    """It is named, also if no chunk is behind it."""
    first, third = written(3), written(3, first=7)
    bucket.chunks(first.data, 0, len(first.data))
    got = Got()
    with history_of(bucket) as history, sending(history, by_gtid(), got) as raised:
        wait_until(lambda: len(got.of(EventType.GTID)) == 3, what="the first")
        bucket.archive(third.data, THIRD)
        durable = Position(binlog=THIRD, offset=157, gtid_set=f"{UUID_A}:1-9")
        bucket.beat(replace(BEAT, lineage=ID, durable=durable))
        wait_until(lambda: raised, what="the client is told")
        assert f"{SECOND} to {SECOND} are missing" in str(raised[0])
        assert history.view().problem


def test_a_gap_where_names_get_longer() -> None:
    """A store sorts the name with more digits before the other ones."""
    last = BinlogName.parse("mysql-bin.999998")
    bucket = Bucket(replace(LINEAGE, first_binlog=last))
    bucket.archive(written(1).data, BinlogName.parse("mysql-bin.1000000"))
    bucket.archive(written(1).data, last)
    catalog = Catalog(bucket, LAYOUT)
    behind = catalog.archived_behind(bucket.lineage, last.next())
    assert list(map(str, behind)) == ["mysql-bin.1000000"]
    assert catalog.archived_behind(bucket.lineage, last) == []


# Internal errors


class Breaking(Catalog):
    """Raises what nobody expects, as long as it is told to."""

    error: Exception | None = None

    def binlog(self, lineage: Lineage, name: BinlogName) -> Readable:
        if self.error is not None:
            raise self.error
        return super().binlog(lineage, name)


def test_an_internal_error_is_told_and_what_follows_is_served(
    bucket: Bucket, caplog: pytest.LogCaptureFixture
) -> None:
    """The log and the status say it as long as it lasts; clients wait. Then all goes on."""
    first = written(6, rotate=False)
    bucket.chunks(first.data, 0, first.transactions[2].end)
    catalog = Breaking(bucket, LAYOUT)
    history = ArchiveHistory(catalog, workers(), lineage=None, poll_seconds=0.01)
    history.start()
    got = Got()
    with ExitStack() as ends:
        ends.callback(history.close)
        raised = ends.enter_context(sending(history, by_gtid(), got))
        wait_until(lambda: len(got.of(EventType.GTID)) == 3, what="what is there")
        catalog.error = KeyError("state")
        wait_until(lambda: history.error is not None, what="it is told")
        assert "internal error: KeyError: 'state'" in str(history.error)
        assert any("internal error" in one.getMessage() for one in caplog.records)
        catalog.error = None
        bucket.chunks(first.data, first.transactions[2].end, len(first.data))
        wait_until(lambda: len(got.of(EventType.GTID)) == 6, what="the rest")
        wait_until(lambda: history.error is None, what="the status is well again")
        assert not raised


# Bytes that nothing proves


def large(*, checksum: bool, transactions: int = 24, rotate: bool = False) -> BinlogWriter:
    """More than 3 MiB, of which a chunk of 3 MiB has many transactions."""
    return written(transactions, 150_000, checksum=checksum, rotate=rotate)


@pytest.mark.parametrize("checksum", [True, False])
def test_nothing_of_a_damaged_chunk_is_sent(bucket: Bucket, checksum: bool) -> None:
    """Not even what comes before the flipped byte; and all is sent once the chunk is repaired."""
    binlog = large(checksum=checksum)
    first, flip = binlog.transactions[1].end, binlog.transactions[20].end - 1000
    bucket.chunks(binlog.data, 0, first)
    got = Got()
    with history_of(bucket) as history, sending(history, by_gtid(), got) as raised:
        wait_until(lambda: len(got.of(EventType.GTID)) == 2 or raised, what="what is proved")
        assert not raised, repr(raised)
        key, whole = damaged_chunk(bucket, binlog.data, first, flip=flip)
        wait_until(lambda: raised, what="the client is told")
        sent = b"".join(map(bytes, got.events))
        assert flipped(whole, flip - first)[flip - first - 200 : flip - first + 200] not in sent
        if not checksum:
            assert len(got.of(EventType.GTID)) == 2
        wait_until(lambda: history.view().problem, what="the status says it")
        bucket.objects[key].data = whole
        wait_until(lambda: not history.view().problem, what="it was repaired")
        again = Got()
        with sending(history, by_gtid(), again) as no:
            wait_until(lambda: no or again.own() == bytes(binlog.data[4:]), what="all of it")
            assert not no


def test_who_asks_for_what_there_is_waits_for_no_poll(bucket: Bucket) -> None:
    """Each look is made when it is asked for, also right after another client's."""
    binlog = written(5, rotate=False)
    bucket.chunks(binlog.data, 0, len(binlog.data))
    with history_of(bucket, poll_seconds=3600) as history:
        assert all(history.look(30) for _ in range(3))
        wait_until(lambda: history.view().whole == len(binlog.data), what="all is read")


def problem(history: ArchiveHistory) -> str:
    """What the view says after one more look at the bucket, which fails as long as it says it."""
    history.look(0.05)
    return history.view().problem


@pytest.mark.parametrize("checksum", [True, False])
def test_a_problem_is_over_with_the_repair(bucket: Bucket, checksum: bool) -> None:
    """Also if what was repaired is a part of a transaction that has not ended yet."""
    binlog = BinlogWriter(checksum=checksum)
    binlog.previous_gtids(GtidSet())
    for number in (1, 2):
        rows = [statement(f"INSERT {row} {'x' * 1000}") for row in range(20)]
        binlog.transaction([statement("BEGIN"), *rows, XID], gtid=(UUID_A, "", number))
    first = binlog.transactions[0].end
    part = next(end for end in binlog.ends if end > first + 10_000)
    bucket.chunks(binlog.data, 0, first)
    got = Got()
    with history_of(bucket) as history:
        wait_until(lambda: history.view().whole == first, what="what is proved")
        key, whole = damaged_chunk(bucket, binlog.data[:part], first, flip=part - 2000)
        wait_until(lambda: problem(history), what="the status says it")
        bucket.objects[key].data = whole
        wait_until(lambda: not problem(history), what="it was repaired")
        assert history.view().whole == first
        with sending(history, by_gtid(heartbeat=1.0), got) as raised:
            wait_until(lambda: raised or got.of(EventType.GTID), what="a replica begins")
            bucket.chunks(binlog.data, part, len(binlog.data))
            wait_until(lambda: raised or len(got.of(EventType.GTID)) == 2, what="the rest")
            assert not raised


@pytest.mark.parametrize("checksum", [True, False])
def test_a_problem_stays_until_all_of_the_damage_is_repaired(
    bucket: Bucket, checksum: bool
) -> None:
    """However often it is looked at."""
    binlog = large(checksum=checksum)
    first, second = binlog.transactions[1].end, binlog.transactions[12].end
    bucket.chunks(binlog.data, 0, first)
    with history_of(bucket) as history:
        wait_until(lambda: history.view().whole == first, what="what is proved")
        damaged_chunk(bucket, binlog.data, second, flip=second + 400_000)
        key, whole = damaged_chunk(bucket, binlog.data[:second], first, flip=first + 100_000)
        wait_until(lambda: problem(history), what="the status says it")
        told = problem(history)
        bucket.objects[key].data = whole
        wait_until(lambda: problem(history) not in ("", told), what="the other chunk is told")
        for _ in range(5):
            assert problem(history)


def test_replicas_are_told_of_damage_and_not_of_gtids(bucket: Bucket) -> None:
    """Whether the source keeps GTIDs is known from what came before a binlog that is damaged."""
    bucket.archive(written(3).data)
    second = written(3, first=4, checksum=False)
    damaged_chunk(bucket, second.data, 0, flip=500, name=SECOND)
    with history_of(bucket) as history:
        assert history.keeps_gtids
        wait_until(lambda: history.view().problem, what="the status says it")
        assert history.keeps_gtids


@pytest.mark.parametrize("entry", [True, False])
def test_a_binlog_that_is_archived_in_the_middle(bucket: Bucket, entry: bool) -> None:
    """Without checksums only its entry proves the rest: nothing is sent of damage, or without."""
    binlog = large(checksum=False, rotate=True)
    first = binlog.transactions[1].end
    (chunk,) = bucket.chunks(binlog.data, 0, first)
    got = Got()
    with history_of(bucket) as history, sending(history, by_gtid(), got) as raised:
        wait_until(lambda: len(got.of(EventType.GTID)) == 2 or raised, what="what is proved")
        assert not raised, repr(raised)
        if entry:  # of the right bytes
            right = Bucket(bucket.lineage)
            right.archive(binlog.data)
            bucket.archive(flipped(binlog.data, len(binlog.data) - 100_000), entry=False)
            key = LAYOUT.entry(ID, NAME)
            bucket.put(key, right.objects[key].data)
        else:
            bucket.archive(binlog.data, entry=False)
        bucket.delete([chunk])
        if entry:
            wait_until(lambda: raised, what="the client is told")
            assert "is damaged" in str(raised[0])
        else:
            looked = history.look(10)
            assert looked
        assert len(got.of(EventType.GTID)) == 2
        if not entry:
            bucket.archive(binlog.data)
            wait_until(lambda: len(got.of(EventType.GTID)) == 24, what="the entry proves it")


def test_what_was_read_as_chunks_proves_the_archived_binlog(bucket: Bucket) -> None:
    """Before there is an entry, clients that begin get it only as it was read."""
    binlog = large(checksum=False, rotate=True)
    chunks = bucket.chunks(binlog.data, 0, len(binlog.data))
    with history_of(bucket) as history:
        wait_until(lambda: history.view().whole >= binlog.transactions[-1].end, what="all is read")
        bucket.archive(binlog.data, entry=False)
        bucket.delete(chunks)
        second = written(1, first=25, rotate=False)
        bucket.chunks(second.data, 0, len(second.data), name=SECOND)
        got = Got()
        with sending(history, by_gtid(), got) as raised:
            wait_until(lambda: raised or len(got.of(EventType.GTID)) == 25, what="all of it")
            assert not raised
        assert KEY in {one.key for one in bucket.asked}, "from the archived binlog"
        data = bucket.objects[KEY].data
        bucket.objects[KEY].data = flipped(data, binlog.transactions[20].end - 1000)
        got = Got()
        with sending(history, by_gtid(), got) as raised:
            wait_until(lambda: raised, what="the client is told")
            assert len(got.of(EventType.GTID)) == 0


def test_without_checksums_and_without_an_entry(bucket: Bucket) -> None:
    """Nothing proves the bytes of such a binlog, so clients wait."""
    bucket.archive(large(checksum=False, rotate=True).data, entry=False)
    bucket.archive(written(2, first=25).data, SECOND)
    got = Got()
    with history_of(bucket) as history, sending(history, at(NAME, registered=False), got):
        assert history.look(10)
        assert history.look(10)
        assert got.of(EventType.GTID) == []
        bucket.archive(large(checksum=False, rotate=True).data)
        wait_until(lambda: len(got.of(EventType.GTID)) == 26, what="the entry proves it")


@pytest.mark.parametrize("follows", [True, False])
def test_what_nothing_proves_is_not_read_again_and_again(follows: bool) -> None:
    """Neither for the view nor for a client, however often they look, until there is an entry."""
    bucket = Watched(replace(LINEAGE, first_binlog=NAME))
    bucket.beat(replace(BEAT, lineage=ID))
    binlog = large(checksum=False, rotate=True)
    first = binlog.transactions[1].end
    if follows:
        chunks = bucket.chunks(binlog.data, 0, first)
    else:
        bucket.archive(binlog.data, entry=False)
        bucket.archive(written(2, first=25).data, SECOND)
    got = Got()
    with history_of(bucket) as history, sending(history, at(NAME, registered=False), got):
        if follows:
            wait_until(lambda: len(got.of(EventType.GTID)) == 2, what="what is proved")
            bucket.archive(binlog.data, entry=False)
            bucket.delete(chunks)
        bucket.looked_at.clear()
        for _ in range(5):
            assert history.look(60)
        wait_until(lambda: bucket.looked_at.count(KEY) >= 5, what="all have looked")
        read = sum(one.end - one.begin for one in bucket.asked if one.key == KEY)
        assert read < len(binlog.data) // 2, "no more than its first event"
        bucket.archive(binlog.data)
        wait_until(lambda: len(got.of(EventType.GTID)) >= 24, what="the entry proves it")


# Who waits for whom


def test_a_question_that_takes_long_blocks_nobody(bucket: Bucket) -> None:
    """The first client by GTIDs has a dead branch read; others ask, and follow a fail-over."""
    dead, own = written(5, rotate=False), written(6, rotate=False)
    chunk, *_ = bucket.chunks(dead.data, 0, len(dead.data))
    lineage = like(LINEAGE, id=OTHER_ID, first_binlog=SECOND, gtid_set="")
    bucket.put(LAYOUT.lineage(OTHER_ID), lineage.to_json())
    bucket.lineage = lineage
    bucket.chunks(own.data, 0, own.transactions[2].end, name=SECOND)
    bucket.beat(replace(BEAT, generation=8, lineage=OTHER_ID))
    asked, free = threading.Event(), threading.Event()

    def hold(key: str, _: int) -> None:
        if key == chunk:
            asked.set()
            free.wait(60)

    slow, quick, follows = Got(), Got(), Got()
    with history_of(bucket) as history, ExitStack() as ends:
        ends.callback(free.set)
        ends.enter_context(sending(history, at(SECOND), follows))
        wait_until(lambda: len(follows.of(EventType.GTID)) == 3, what="it follows")
        bucket.before_open = hold
        first = ends.enter_context(sending(history, by_gtid(f"{UUID_A}:1-2"), slow))
        wait_until(asked.is_set, what="the dead branch is read")
        ends.enter_context(sending(history, at(SECOND), quick))
        wait_until(lambda: len(quick.of(EventType.GTID)) == 3, what="another client is served")
        history.LOOK_SECONDS = 0.0
        bucket.chunks(own.data, own.transactions[2].end, len(own.data), name=SECOND)
        for got in (quick, follows):
            wait_until(lambda one=got: len(one.of(EventType.GTID)) == 6, what="it goes on")
        assert not slow.events
        free.set()
        wait_until(lambda: first or slow.events, what="the first client gets its answer")


def test_entries_of_another_lineage_are_not_taken_for_ones_own() -> None:
    """Of two who ask at the same time, as a client and the thread that follows a fail-over do.

    Binlogs of both lineages have the same names.
    """
    bucket = Watched(replace(LINEAGE, first_binlog=NAME))
    names = [BinlogName(NAME.prefix, NAME.number + number) for number in range(20)]
    for lineage, first in ((ID, 1), (OTHER_ID, 1000)):
        bucket.lineage = like(LINEAGE, id=lineage, first_binlog=NAME, gtid_set="")
        bucket.put(LAYOUT.lineage(lineage), bucket.lineage.to_json())
        for number, name in enumerate(names):
            bucket.archive(written(1, first=first + number).data, name)
    bucket.held = LAYOUT.entry(ID, names[10])
    found: dict[str, list[str]] = {}

    def ask(lineage: str) -> None:
        snapshot = bucket.snapshot()
        found[lineage] = [str(snapshot.brief(lineage, name).gtids_added) for name in names]

    threads = [threading.Thread(target=ask, args=(one,), daemon=True) for one in (ID, OTHER_ID)]
    threads[0].start()
    wait_until(lambda: LAYOUT.entry(ID, names[-1]) in bucket.got, what="the first one asks")
    threads[1].start()
    wait_until(lambda: LAYOUT.entry(OTHER_ID, names[-1]) in bucket.got, what="the other one, too")
    bucket.free.set()
    for thread in threads:
        thread.join(60)
    assert found == {
        ID: [f"{UUID_A}:{number}" for number in range(1, 21)],
        OTHER_ID: [f"{UUID_A}:{number}" for number in range(1000, 1020)],
    }


def test_what_was_read_for_a_question_is_read_once(bucket: Bucket) -> None:
    """Also after the bucket was looked at again; new bytes of it are read."""
    dead = written(5, rotate=False)
    bucket.chunks(dead.data, 0, dead.transactions[3].end)
    lineage = another(bucket, dead.transactions[1].end, f"{UUID_A}:1-2")
    other = BinlogWriter()
    other.previous_gtids(GtidSet.parse(f"{UUID_A}:1-2"))
    fail_over(bucket, lineage, other)
    with history_of(bucket) as history:
        for _ in range(2):
            history.first_for(by_gtid(f"{UUID_A}:1-2").gtids)
            read = len([one for one in bucket.asked if f"/{ID}/" in one.key])
            history._look()
        assert len([one for one in bucket.asked if f"/{ID}/" in one.key]) == read
        assert read
        bucket.lineage = replace(LINEAGE, first_binlog=NAME)
        bucket.chunks(dead.data, dead.transactions[3].end, len(dead.data))
        history._look()
        with pytest.raises(NotServedError, match="dead branch"):
            history.first_for(by_gtid(f"{UUID_A}:1-2:5").gtids)
