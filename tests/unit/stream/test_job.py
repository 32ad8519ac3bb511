"""What an uploader remembers of a binlog: flushes, doubts, chunks that vanish."""

from itertools import pairwise
from pathlib import Path

import pytest

from binlog2s3.archive.chunks import Chunk
from binlog2s3.archive.parts import Grid
from binlog2s3.binlog.checksum import crc64nvme
from binlog2s3.errors import ArchiveError, StoreError
from binlog2s3.stream.decide import (
    Action,
    Clear,
    Compare,
    Complete,
    CopyPart,
    CreateUpload,
    DeleteChunks,
    Flush,
    Look,
    PutChunk,
    PutPart,
)
from binlog2s3.stream.job import Job
from tests.memory_store import MemoryStore
from tests.streamer import FIRST, LAYOUT, LINEAGE, Source, Streamer

CHUNKS = LAYOUT.chunks(LINEAGE, FIRST)


class World:
    """A source, a store, a clock, and one streamer at a time."""

    def __init__(self, directory: Path, **switches: bool) -> None:
        self.directory = directory
        self.source = Source()
        self.store = MemoryStore(min_part_bytes=1, **switches)  # type: ignore[arg-type]
        self.now = 100.0

    def start(self, *, part: int = 500, flush_interval: float = 1.0, name: str = "a") -> Streamer:
        return Streamer(
            store=self.store,
            source=self.source,
            directory=self.directory / name,
            clock=lambda: self.now,
            part=part,
            flush_interval=flush_interval,
        )

    def work(self, streamer: Streamer, rounds: int = 3, *, seconds: float = 1.0) -> None:
        """Rounds of the loop, so far apart."""
        for _ in range(rounds):
            while streamer.fetch():
                pass
            streamer.work()
            self.now += seconds

    def chunks(self) -> list[tuple[int, int]]:
        """The ranges of the first binlog's chunks in the store."""
        names = [key.removeprefix(CHUNKS) for key in self.store.objects if key.startswith(CHUNKS)]
        return sorted((chunk.begin, chunk.end) for chunk in map(Chunk.parse, names))

    def audit(self, streamer: Streamer) -> None:
        streamer.begin_listing()
        self.now += 1
        streamer.end_listing()


def the_job(streamer: Streamer) -> Job:
    return streamer.uploader._jobs[FIRST]


def test_flushes_of_a_quiet_server_lie_as_the_counter_says(tmp_path: Path) -> None:
    """After n flushes the chunks are the digits of n to the base 16: one of 16^k for each."""
    world = World(tmp_path)
    streamer = world.start(part=1 << 20)
    ends = [0]
    for flushes in range(1, 16 * 16 + 36):
        world.source.write(1)
        world.work(streamer, 3 if flushes % 256 else 6)
        ends.append(world.source.size(FIRST))
        digits = [flushes // 256, flushes // 16 % 16, flushes % 16]
        cuts = [0]
        for count, size in zip(digits, (256, 16, 1), strict=True):
            for _ in range(count):
                cuts.append(cuts[-1] + size)
        expected = [(ends[one], ends[two]) for one, two in pairwise(cuts)]
        assert world.chunks() == expected, flushes
    assert world.store.calls["put"] == flushes + flushes // 16 + flushes // 256
    assert streamer.coverage.durable is not None
    assert streamer.coverage.durable.offset == ends[-1]
    streamer.close()


def test_no_new_bytes_no_request(tmp_path: Path) -> None:
    """Time alone flushes nothing; nor are bytes flushed before their time."""
    world = World(tmp_path)
    streamer = world.start(part=1 << 20)
    world.source.write(10)
    world.work(streamer, 1, seconds=0.1)
    world.work(streamer, 2, seconds=0.1)
    first = world.chunks()
    assert first == [(0, world.source.size(FIRST))]
    calls = sum(world.store.calls.values())
    world.work(streamer, 20, seconds=30)
    assert sum(world.store.calls.values()) == calls
    world.source.write(10)
    world.work(streamer, 2, seconds=0.1)
    assert world.chunks() != first
    put = world.store.calls["put"]
    world.source.write(10)
    world.work(streamer, 4, seconds=0.2)
    assert world.store.calls["put"] == put
    world.work(streamer, 2, seconds=0.2)
    assert world.store.calls["put"] == put + 1
    streamer.close()


@pytest.mark.parametrize("which", [0, 1, -1])
def test_a_chunk_that_vanished_is_put_again(tmp_path: Path, which: int) -> None:
    """Full, small, first or last: the binlog's bytes are there again, after one audit."""
    world = World(tmp_path)
    streamer = world.start(part=500)
    for _ in range(12):
        world.source.write(60)
        world.work(streamer, 2, seconds=0.6)
    ours = world.chunks()
    assert {end - begin for begin, end in ours[:2]} == {500}
    assert ours[-1][1] - ours[-1][0] < 500
    keys = sorted(key for key in world.store.objects if key.startswith(CHUNKS))
    gone = keys[which]
    del world.store.objects[gone]
    world.audit(streamer)
    world.work(streamer, 3)
    size = world.source.size(FIRST)
    assert the_job(streamer).held is not None
    have = 0
    for begin, end in world.chunks():
        assert begin <= have
        have = max(have, end)
    assert have == size
    streamer.close()


def test_an_audit_that_is_older_than_a_chunk_says_nothing_of_it(tmp_path: Path) -> None:
    """What was put while the listing ran is not missed."""
    world = World(tmp_path)
    streamer = world.start()
    world.source.write(60)
    world.work(streamer, 1)
    streamer.begin_listing()
    world.work(streamer, 2)
    before = world.store.calls["put"]
    assert world.chunks()
    keys: list[str] = []
    streamer.uploader.audit(keys, 100.0)
    world.work(streamer, 3)
    assert world.store.calls["put"] == before
    streamer.close()


def test_a_start_compares_what_lies_there_instead_of_sending_it(tmp_path: Path) -> None:
    """With the source's bytes as they come; then it is durable, and not before."""
    world = World(tmp_path)
    first = world.start(part=500)
    for _ in range(12):
        world.source.write(60)
        world.work(first, 2, seconds=0.6)
    first.close()
    size, put = world.source.size(FIRST), world.store.calls["put"]
    second = world.start(part=500, name="b")
    second.fetch(700)
    for _ in range(4):
        second.work()
        world.now += 1
    durable = second.coverage.durable
    assert durable is None or durable.offset <= 700
    world.work(second)
    durable = second.coverage.durable
    assert durable is not None
    assert durable.offset == size
    assert durable.gtid_set == world.source.gtids_at(FIRST, size)
    assert world.store.calls["put"] == put
    second.close()


def test_a_chunk_of_another_history_ends_it(tmp_path: Path) -> None:
    """Its name says another checksum than our bytes have; it is neither used nor deleted."""
    world = World(tmp_path)
    world.source.write(200)
    other = bytes(150)
    key = f"{CHUNKS}{Chunk(100, 250, crc64nvme(other))}"
    world.store.put(key, other)
    streamer = world.start()
    with pytest.raises(ArchiveError, match="holds other bytes than the source's"):
        world.work(streamer)
    assert key in world.store.objects
    streamer.close()


def test_a_chunk_beyond_the_end_of_a_closed_binlog_ends_it(tmp_path: Path) -> None:
    """It was longer in another history."""
    world = World(tmp_path)
    world.source.write(200)
    world.source.rotate()
    other = bytes(5000)
    world.store.put(f"{CHUNKS}{Chunk(100, 5100, crc64nvme(other))}", other)
    streamer = world.start()
    with pytest.raises(ArchiveError, match="reaches beyond the end of"):
        world.work(streamer)
    assert LAYOUT.binlog(LINEAGE, FIRST) not in world.store.objects
    streamer.close()


@pytest.mark.parametrize("copies", [True, False])
def test_full_chunks_become_parts(tmp_path: Path, *, copies: bool) -> None:
    """Where the store copies, only the rest is sent; else all, and it is asked once."""
    world = World(tmp_path, copies_parts=copies)
    streamer = world.start(part=500)
    for _ in range(20):
        world.source.write(60)
        world.work(streamer, 2, seconds=0.6)
    full = world.source.size(FIRST) // 500
    world.source.rotate()
    world.source.rotate()
    world.work(streamer, 12)
    assert LAYOUT.entry(LINEAGE, FIRST) in world.store.objects
    assert world.chunks() == []
    assert not world.store.uploads
    assert not streamer.file(FIRST).exists()
    assert world.store.calls["upload_part"] == 1 if copies else full + 1
    if copies:
        assert world.store.calls["copy_part"] == full
    streamer.close()


def test_copies_that_the_upload_refuses_are_sent(tmp_path: Path) -> None:
    """An upload that has a checksum, made by a start without a flush interval, is taken up."""
    world = World(tmp_path, copies_into_crc64_uploads=False)
    streamer = world.start(part=500)
    for _ in range(20):
        world.source.write(60)
        world.work(streamer, 2, seconds=0.6)
    streamer.close()
    upload_id = world.store.create_upload(LAYOUT.binlog(LINEAGE, FIRST))
    world.source.rotate()
    second = world.start(part=500, name="b")
    world.work(second, 12)
    assert LAYOUT.entry(LINEAGE, FIRST) in world.store.objects
    assert upload_id not in world.store.uploads
    second.close()


def test_a_doubt_keeps_what_was_acknowledged_and_still_lies_there(tmp_path: Path) -> None:
    """So it is not compared again; what does not lie there is not believed."""
    world = World(tmp_path)
    streamer = world.start()
    world.source.write(60)
    world.work(streamer, 3)
    job = the_job(streamer)
    (ours,) = job.acknowledged
    job.forget()
    assert job.held is None
    world.work(streamer, 2)
    assert job.held is not None
    assert job.held.chunks.all == {ours}
    job.forget()
    world.store.objects.clear()
    streamer.uploader.step()
    streamer.workers.perform()
    streamer.deliver()
    assert job.held is not None
    assert not job.held.there
    world.work(streamer, 2)
    assert world.chunks() == [(0, world.source.size(FIRST))]
    streamer.close()


@pytest.mark.parametrize("when", ["before", "after", "later"])
def test_an_answer_that_is_lost_is_looked_for(tmp_path: Path, when: str) -> None:
    """The chunk is there in the end, once, and is reported only when that is known."""
    world = World(tmp_path)
    streamer = world.start()
    world.source.write(60)
    fault = StoreError("lost", transient=True)
    world.store.fail_next("put", when, fault)  # type: ignore[arg-type]
    while streamer.fetch():
        pass
    streamer.work()
    streamer.work()
    assert streamer.coverage.durable is None
    world.work(streamer, 4)
    assert streamer.coverage.durable is not None
    assert streamer.coverage.durable.offset == world.source.size(FIRST)
    assert len(world.chunks()) == 1
    assert world.store.calls["put"] == (1 if when == "after" else 2)
    while world.store.late:
        world.store.perform_late()
    assert len(world.chunks()) == 1
    streamer.close()


def test_leftovers_of_the_archived_are_taken_away(tmp_path: Path) -> None:
    """A chunk or an upload that appears when all was over goes at the next audits."""
    world = World(tmp_path)
    streamer = world.start()
    world.source.write(60)
    world.source.rotate()
    world.work(streamer, 8)
    assert LAYOUT.entry(LINEAGE, FIRST) in world.store.objects
    world.store.create_upload(LAYOUT.binlog(LINEAGE, FIRST))
    for _ in range(2):
        world.audit(streamer)
        world.work(streamer)
    assert not world.store.uploads
    for _ in range(5):
        data = world.source.data(FIRST)[:40]
        world.store.put(f"{CHUNKS}{Chunk(0, 40, crc64nvme(data))}", data)
        world.audit(streamer)
        world.work(streamer)
        assert world.chunks() == []
        assert not world.store.uploads
    streamer.close()


@pytest.mark.parametrize("crc64", [True, False])
@pytest.mark.parametrize("length", [20, 600])
def test_an_object_of_other_bytes_is_never_described(
    tmp_path: Path, *, crc64: bool, length: int
) -> None:
    """Of the same size: it is found by its checksum, its ETag, or by reading it."""
    world = World(tmp_path, crc64=crc64)
    world.source.write(length)
    world.source.rotate()
    other = bytearray(world.source.data(FIRST))
    other[300] ^= 1
    world.store.put(LAYOUT.binlog(LINEAGE, FIRST), bytes(other))
    streamer = world.start()
    with pytest.raises(ArchiveError, match="holds other bytes"):
        world.work(streamer)
    assert LAYOUT.entry(LINEAGE, FIRST) not in world.store.objects
    assert streamer.file(FIRST).exists()
    streamer.close()


def test_what_was_not_compared_is_not_reported(tmp_path: Path) -> None:
    """A chunk that reaches beyond what has come may be of another history."""
    world = World(tmp_path)
    world.source.write(60)
    data = world.source.data(FIRST)[:157]
    world.store.put(f"{CHUNKS}{Chunk(0, 157, crc64nvme(data))}", data)
    other = bytes(5000)
    world.store.put(f"{CHUNKS}{Chunk(0, 5000, crc64nvme(other))}", other)
    streamer = world.start(part=10_000)
    world.work(streamer, 5)
    job = the_job(streamer)
    assert job.held is not None
    assert len(job.held.chunks.all) == len(job.held.listed.all) == 1
    assert streamer.coverage.durable is None
    streamer.close()


def test_an_answer_from_before_a_doubt_teaches_nothing(tmp_path: Path) -> None:
    """What one request was told is not all there is: first comes a look."""
    world = World(tmp_path)
    world.source.write(900)
    streamer = world.start(part=200)
    while streamer.fetch():
        pass
    streamer.pump()
    for _ in range(2):  # the look, then full chunks
        streamer.uploader.step()
        streamer.workers.perform()
        if world.store.calls["put"] == 0:
            assert streamer.deliver()
    assert world.store.calls["put"] == 1
    world.store.fail_next("put", "before", StoreError("fault", transient=True))
    streamer.workers.perform()
    streamer.workers.outcomes.reverse()
    assert streamer.deliver()
    assert the_job(streamer).held is None
    assert streamer.deliver()
    job = the_job(streamer)
    assert len(job.acknowledged) == 1
    assert job.held is None
    streamer.close()


def test_what_is_being_deleted_is_not_missed(tmp_path: Path) -> None:
    """An audit between a deletion and its answer finds nothing lost."""
    world = World(tmp_path)
    streamer = world.start(part=1 << 20)
    for _ in range(16):
        world.source.write(1)
        world.work(streamer, 1, seconds=2)
        world.work(streamer, 1, seconds=2)
    world.source.write(1)
    job = the_job(streamer)
    job.acknowledged.update(dict.fromkeys(job.acknowledged, 0.0))
    assert job.held is not None
    going = frozenset(sorted(job.held.chunks)[:1])
    job.flying = {DeleteChunks(going)}
    kept = {str(chunk) for chunk in job.held.chunks.all - going}
    assert job.lost_chunks(kept, world.now) == frozenset()
    job.flying = set()
    assert job.lost_chunks(kept, world.now) == going
    streamer.close()


def test_which_requests_fly_together(tmp_path: Path) -> None:
    """A range is in one request at a time, whatever kind: a part, its copy, its chunk."""
    world = World(tmp_path)
    streamer = world.start(part=10)
    world.source.write(60)
    world.work(streamer)
    job = the_job(streamer)
    one, two = Grid(10).at(0), Grid(10).at(10)
    copy = CopyPart(one, Chunk(0, 10, 0))
    small, other = Chunk(20, 23, 0), Chunk(20, 24, 0)
    together: list[tuple[Action, Action, bool]] = [
        (PutPart(one), copy, False),
        (PutPart(one), PutPart(two), True),
        (PutChunk(one), PutPart(one), False),
        (PutChunk(one), PutChunk(one), False),
        (PutChunk(one), PutChunk(two), True),
        (PutChunk(one), Flush(20, 25), True),
        (Flush(20, 25), Flush(20, 26), False),
        (DeleteChunks(frozenset({small})), DeleteChunks(frozenset({other})), False),
        (Compare(frozenset({small})), Flush(20, 25), True),
        # what is being put as a chunk could be copied, if it were waited for
        (PutChunk(one), CreateUpload(), False),
        (Flush(20, 25), CreateUpload(), True),
        (Flush(20, 25), Complete(), True),
        (PutPart(two), Complete(), False),
        (PutPart(two), CreateUpload(), False),
        # nothing changes under a look, nothing comes after the clearing
        (Flush(20, 25), Look(), False),
        (DeleteChunks(frozenset({small})), Look(), False),
        (Flush(20, 25), Clear(), False),
    ]
    for flying, action, may in together:
        job.flying = {flying}
        assert job.may_fly(action) == may, (flying, action)
    streamer.close()


def test_an_object_that_only_has_the_name_of_a_chunk_is_deleted(tmp_path: Path) -> None:
    """Its bytes are not those that its name says: it is no other history, and nobody's chunk."""
    world = World(tmp_path)
    world.source.write(10)
    junk = f"{CHUNKS}{Chunk(0, 100, 0x123456789ABCDEF)}"
    world.store.put(junk, b"x" * 100)
    streamer = world.start()
    world.work(streamer, 6)
    assert junk not in world.store.objects
    assert world.chunks() == [(0, world.source.size(FIRST))]
    streamer.close()


def test_what_is_not_in_the_bucket_is_counted(tmp_path: Path) -> None:
    """In bytes, for the farewell: nothing when all is there, the rest when the store fails."""
    world = World(tmp_path)
    world.source.write(10)
    streamer = world.start()
    world.work(streamer, 6)
    assert streamer.uploader.unsaved_bytes == 0
    before = world.source.size(FIRST)
    world.source.write(10)
    world.store.fail_next("put", "before", StoreError("fault", transient=True))
    world.work(streamer, 1)
    assert streamer.uploader.unsaved_bytes == world.source.size(FIRST) - before
    world.work(streamer, 6)
    assert streamer.uploader.unsaved_bytes == 0
    streamer.close()
