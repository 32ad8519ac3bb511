"""What an uploader remembers of a binlog: flushes, doubts, chunks that vanish."""

from itertools import pairwise

import pytest

from binlog2s3.archive.chunks import Chunk
from binlog2s3.archive.parts import Grid
from binlog2s3.errors import ArchiveError, StoreError
from binlog2s3.store.contract import PartInfo
from binlog2s3.stream.job import (
    Action,
    Clear,
    Compare,
    Complete,
    CopyPart,
    CreateUpload,
    DeleteChunks,
    Flush,
    Job,
    Look,
    PutChunk,
    PutPart,
    TakeUp,
)
from tests.memory_store import MemoryStore
from tests.streamer import FIRST, LAYOUT, LINEAGE, Streamer, World

KEY, ENTRY = LAYOUT.binlog(LINEAGE, FIRST), LAYOUT.entry(LINEAGE, FIRST)


def the_job(streamer: Streamer) -> Job:
    (job,) = streamer.uploader.jobs
    return job


def spans(world: World) -> list[tuple[int, int]]:
    return [(chunk.begin, chunk.end) for chunk in world.chunks()]


def durable_end(streamer: Streamer) -> int:
    """How far the first binlog is reported durable."""
    durable = streamer.coverage.durable
    assert durable is None or durable.binlog == FIRST
    return durable.offset if durable else 0


def flushed(world: World, times: int = 12, part: int = 500) -> Streamer:
    """A transaction and a flush, so often; full chunks have so many bytes."""
    streamer = world.start(part=part)
    for _ in range(times):
        world.source.write(60)
        world.work(streamer, 2, seconds=0.6)
    return streamer


def test_flushes_of_a_quiet_server_lie_as_the_counter_says(world: World) -> None:
    """After n flushes the chunks are the digits of n to the base 16: one of 16^k for each."""
    streamer = world.start(part=1 << 20)
    ends = [0]
    for flushes in range(1, 16 * 16 + 36):
        world.source.write(1)
        world.work(streamer, 3 if flushes % 256 else 6)
        ends.append(world.source.size(FIRST))
        cuts = [0]
        for count, size in ((flushes // 256, 256), (flushes // 16 % 16, 16), (flushes % 16, 1)):
            for _ in range(count):
                cuts.append(cuts[-1] + size)
        assert spans(world) == [(ends[one], ends[two]) for one, two in pairwise(cuts)], flushes
    assert world.store.calls["put"] == flushes + flushes // 16 + flushes // 256
    assert durable_end(streamer) == ends[-1]


def test_no_new_bytes_no_request(world: World) -> None:
    """Time alone flushes nothing; nor are bytes flushed before their time."""
    streamer = world.start(part=1 << 20)
    world.source.write(10)
    world.work(streamer, 3, seconds=0.1)
    first = spans(world)
    assert first == [(0, world.source.size(FIRST))]
    calls = sum(world.store.calls.values())
    world.work(streamer, 20, seconds=30)
    assert sum(world.store.calls.values()) == calls
    world.source.write(10)
    world.work(streamer, 2, seconds=0.1)
    assert spans(world) != first
    put = world.store.calls["put"]
    world.source.write(10)
    world.work(streamer, 4, seconds=0.2)
    assert world.store.calls["put"] == put
    world.work(streamer, 2, seconds=0.2)
    assert world.store.calls["put"] == put + 1


def test_an_audit_that_is_older_than_a_chunk_says_nothing_of_it(world: World) -> None:
    """What was put while the listing ran is not missed."""
    streamer = world.start(part=500)
    world.source.write(60)
    world.work(streamer, 3)
    before = world.store.calls["put"]
    assert world.chunks()
    streamer.uploader.audit([], 100.0)
    world.work(streamer, 3)
    assert world.store.calls["put"] == before


def test_what_another_writer_has_put_is_compared_instead_of_sent(world: World) -> None:
    """With the source's bytes as they come; then it is durable, and not before."""
    second = world.start("b", part=500)
    world.stop(flushed(world))
    size, put = world.source.size(FIRST), world.store.calls["put"]
    world.read(second, 700)
    world.settle(second, rounds=4)
    assert durable_end(second) <= 700
    world.work(second, 3)
    assert durable_end(second) == size
    assert second.coverage.durable is not None
    assert second.coverage.durable.gtid_set == world.source.gtids_at(FIRST, size)
    assert world.store.calls["put"] == put


def test_an_empty_spool_goes_on_behind_what_lies_there(world: World) -> None:
    """Nothing is sent again, nor read back to compare it; what is new goes on where that ends."""
    world.stop(flushed(world, 40, part=5000))
    size, calls = world.source.size(FIRST), dict(world.store.calls)
    second = world.start("b", part=5000)
    second.pump()
    assert second.uploader.unsaved_bytes == 0, "before it has looked at the bucket again, too"
    opened = world.store.calls["open"]
    world.read(second)
    world.settle(second, rounds=4)
    assert second.tracks[FIRST].floor == durable_end(second) == size
    assert world.store.calls["put"] == calls["put"]
    world.source.write(60)
    before = set(world.chunks())
    world.work(second, 2)
    (flush,) = set(world.chunks()) - before
    assert (flush.begin, flush.end) == (size, world.source.size(FIRST))
    assert world.store.calls["open"] == opened
    world.source.write(5000)
    world.source.rotate()
    world.work(second, 100)
    assert world.archived() == world.source.data(FIRST)


@pytest.mark.parametrize(
    ("end", "closed", "why"),
    [
        (250, False, "holds other bytes than the source's"),
        (5100, True, "reaches beyond the end of"),  # it was longer there
    ],
)
def test_a_chunk_of_another_history_ends_it(
    world: World, end: int, why: str, *, closed: bool
) -> None:
    """Its name says another checksum than our bytes have; it is neither used nor deleted."""
    world.source.write(200)
    if closed:
        world.source.rotate()
    key = world.put_chunk(100, bytes(end - 100))
    streamer = world.start(part=500)
    with pytest.raises(ArchiveError, match=why):
        world.work(streamer, 3)
    assert key in world.store.objects
    assert KEY not in world.store.objects


@pytest.mark.parametrize("copies", [True, False])
def test_full_chunks_become_parts(world: World, *, copies: bool) -> None:
    """Where the store copies, only the rest is sent; else all, and it is asked once."""
    world.store = MemoryStore(min_part_bytes=1, copies_parts=copies)
    streamer = flushed(world, 20)
    full = world.source.size(FIRST) // 500
    world.source.rotate()
    world.source.rotate()
    world.work(streamer, 12)
    assert ENTRY in world.store.objects
    assert world.chunks() == []
    assert not world.store.uploads
    assert not streamer.file(FIRST).exists()
    assert world.store.calls["upload_part"] == 1 if copies else full + 1
    if copies:
        assert world.store.calls["copy_part"] == full


def test_copies_that_the_upload_refuses_are_sent(world: World) -> None:
    """An upload that has a checksum, made by a start without a flush interval, is taken up."""
    world.store = MemoryStore(min_part_bytes=1, copies_into_crc64_uploads=False)
    world.stop(flushed(world, 20))
    upload_id = world.store.create_upload(KEY)
    world.source.rotate()
    world.work(world.start("b", part=500), 12)
    assert ENTRY in world.store.objects
    assert upload_id not in world.store.uploads


def test_leftovers_of_the_archived_are_taken_away(world: World) -> None:
    """A chunk or an upload that appears when all was over goes at the next audits."""
    streamer = world.start(part=500)
    world.source.write(60)
    world.source.rotate()
    world.work(streamer, 8)
    assert ENTRY in world.store.objects
    world.store.create_upload(KEY)
    for _ in range(2):
        world.audit(streamer)
        world.work(streamer, 3)
    assert not world.store.uploads
    for _ in range(5):
        world.put_chunk(0, world.source.data(FIRST)[:40])
        world.audit(streamer)
        world.work(streamer, 3)
        assert world.chunks() == []


@pytest.mark.parametrize("crc64", [True, False])
@pytest.mark.parametrize("length", [20, 600])
def test_an_object_of_other_bytes_is_never_described(
    world: World, *, crc64: bool, length: int
) -> None:
    """Of the same size: it is found by its checksum, its ETag, or by reading it."""
    world.store = MemoryStore(min_part_bytes=1, crc64=crc64)
    world.source.write(length)
    world.source.rotate()
    other = bytearray(world.source.data(FIRST))
    other[300] ^= 1
    world.store.put(KEY, bytes(other))
    streamer = world.start(part=500)
    with pytest.raises(ArchiveError, match="holds other bytes"):
        world.work(streamer, 3)
    assert ENTRY not in world.store.objects
    assert streamer.file(FIRST).exists()


def test_what_was_not_compared_is_not_reported(world: World) -> None:
    """A chunk that reaches beyond what has come may be of another history."""
    world.source.write(60)
    world.put_chunk(0, world.source.data(FIRST)[:157])
    world.put_chunk(0, bytes(5000))
    streamer = world.start(part=10_000)
    world.work(streamer, 5)
    held = the_job(streamer).held
    assert len(held.chunks.all) == len(held.listed.all) == 1
    assert durable_end(streamer) == 0


ONE, TWO = Grid(10).at(0), Grid(10).at(10)
SMALL = DeleteChunks(frozenset({Chunk(20, 23, 0)}))


@pytest.mark.parametrize(
    ("flying", "action", "may"),
    [
        (PutPart(ONE), CopyPart(ONE, Chunk(0, 10, 0)), False),
        (PutPart(ONE), PutPart(TWO), True),
        (PutChunk(ONE), PutPart(ONE), False),
        (PutChunk(ONE), PutChunk(ONE), False),
        (PutChunk(ONE), PutChunk(TWO), True),
        (PutChunk(ONE), Flush(20, 25), True),
        (Flush(20, 25), Flush(20, 26), False),
        (SMALL, DeleteChunks(frozenset({Chunk(20, 24, 0)})), False),
        (Compare(SMALL.chunks), Flush(20, 25), True),
        # what is being put as a chunk could be copied, if it were waited for
        (PutChunk(ONE), CreateUpload(), False),
        (Flush(20, 25), CreateUpload(), True),
        (Flush(20, 25), Complete(), True),
        (PutPart(TWO), Complete(), False),
        (PutPart(TWO), CreateUpload(), False),
        # nothing changes under a look, nothing comes after the clearing
        (Flush(20, 25), Look(), False),
        (SMALL, Look(), False),
        (Flush(20, 25), Clear(), False),
    ],
)
def test_which_requests_fly_together(
    world: World, flying: Action, action: Action, *, may: bool
) -> None:
    """A range is in one request at a time, whatever kind: a part, its copy, its chunk."""
    streamer = world.start(part=10)
    world.source.write(60)
    world.work(streamer, 3)
    job = the_job(streamer)
    job.flying = {flying}
    assert job.may_fly(action) == may


def test_a_part_that_is_not_ours_is_not_a_success(world: World) -> None:
    """A store may keep what it refuses: then the part waits as after any failure."""
    streamer = world.start(part=10)
    world.source.write(60)
    world.work(streamer, 3)
    job = the_job(streamer)
    job.failed(PutPart(ONE), StoreError("refused"), 100.0)
    job.succeeded(TakeUp(ONE, PartInfo(number=1, size=10, etag="x", crc64=None)))
    assert list(job.failing) == [1]
    job.succeeded(PutPart(ONE))
    assert not job.failing


def test_a_flush_whose_answer_was_lost_does_not_fail_for_ever(world: World) -> None:
    """The look that follows finds it. The source may be quiet then: nothing else is flushed."""
    streamer = world.start(part=10_000)
    world.work(streamer, 3)
    world.source.write(10)
    world.store.fail_next("put", "after", StoreError("lost", transient=True))
    world.work(streamer, 10)
    assert world.readable() == world.source.data(FIRST)
    assert streamer.uploader.count().failing is None


def test_an_object_that_only_has_the_name_of_a_chunk_is_deleted(world: World) -> None:
    """Its bytes are not those that its name says: it is no other history, and nobody's chunk."""
    world.source.write(10)
    junk = LAYOUT.chunk(LINEAGE, FIRST, Chunk(0, 100, 0x123456789ABCDEF))
    world.store.put(junk, b"x" * 100)
    world.work(world.start(part=500), 6)
    assert junk not in world.store.objects
    assert spans(world) == [(0, world.source.size(FIRST))]


def test_what_is_not_in_the_bucket_is_counted(world: World) -> None:
    """In bytes, for the farewell: nothing when all is there, the rest when the store fails."""
    world.source.write(10)
    streamer = world.start(part=500)
    world.work(streamer, 6)
    assert streamer.uploader.unsaved_bytes == 0
    before = world.source.size(FIRST)
    world.source.write(10)
    world.store.fail_next("put", "before", StoreError("fault", transient=True))
    world.work(streamer, 1)
    assert streamer.uploader.unsaved_bytes == world.source.size(FIRST) - before
    world.work(streamer, 6)
    assert streamer.uploader.unsaved_bytes == 0
