"""What goes first, what becomes of a binlog that cannot be finished, how the spool is pressed."""

from collections import Counter
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from binlog2s3.archive.catalog import Catalog
from binlog2s3.archive.chunks import Chunk
from binlog2s3.errors import FloorError, ForkError, SpoolError, StoreError, TakenError
from binlog2s3.store.contract import Body, ObjectInfo, ObjectVersion, PartInfo
from binlog2s3.stream.archive_end import archive_end
from binlog2s3.stream.job import (
    Action,
    Complete,
    CopyPart,
    Flush,
    Merge,
    PutChunk,
    PutPart,
    PutWhole,
)
from binlog2s3.stream.uploader import AT_A_TIME, UploadPace
from tests.memory_store import MemoryStore
from tests.streamer import FIRST, HISTORY, LAYOUT, LINEAGE, Streamer, World, freed_before

KEY, ENTRY = LAYOUT.binlog(LINEAGE, FIRST), LAYOUT.entry(LINEAGE, FIRST)


def flying(streamer: Streamer, kind: type[Action]) -> int:
    """How many requests of a kind wait for their answers."""
    tokens = [token for token, _ in streamer.workers.tasks]
    return sum(isinstance(getattr(token, "action", None), kind) for token in tokens)


def one_answer(streamer: Streamer) -> None:
    """A round of the loop beside a slow store."""
    streamer.uploader.start()
    if streamer.workers.tasks:
        streamer.workers.perform()
    streamer.deliver()


@pytest.mark.parametrize("workers", [1, 2, 4, 8])
def test_what_is_not_durable_goes_before_copies(world: World, workers: int) -> None:
    """A large binlog is closed: its many copies leave room for the next one's chunks."""
    streamer = world.start(workers=workers)
    world.source.write(4000)
    world.work(streamer, 100)
    world.source.rotate()
    world.source.write(4000)
    world.read(streamer)
    seen: list[tuple[int, int, int]] = []
    for _ in range(40):
        world.now += 0.1
        streamer.uploader.start()
        copies, chunks, flushes = (flying(streamer, one) for one in (CopyPart, PutChunk, Flush))
        seen.append((copies, chunks, flushes))
        one_answer(streamer)
    assert all(sum(one) <= workers for one in seen)
    if workers >= 4:
        assert max(chunks for _, chunks, _ in seen) == workers - 3  # a flush, and two for copies
        assert any(copies and chunks for copies, chunks, _ in seen)
    world.settle(streamer)
    assert streamer.coverage.has(FIRST)


def timed_commits(streamer: Streamer) -> float:
    """How many commits were timed until they were durable."""
    (family,) = streamer.uploader.counts.timings.durable.collect()
    return next(one.value for one in family.samples if one.name.endswith("_count"))


def test_the_time_from_a_commit_is_counted_once(world: World) -> None:
    """By the process whose request makes it durable; what the bucket already had is not timed."""
    streamer = world.start()
    for _ in range(3):
        world.source.write(50)
        world.work(streamer, 10)
        world.settle(streamer)
    assert timed_commits(streamer) == 3
    world.stop(streamer)
    again = world.start()
    world.read(again)
    world.settle(again)
    assert again.coverage.durable is not None
    assert timed_commits(again) == 0


def test_the_last_commit_is_remembered(world: World) -> None:
    """Also of a binlog that is dropped: the status does not fall back to an older moment."""
    streamer = world.start()
    world.source.write(50)
    world.work(streamer, 10)
    world.settle(streamer)
    for _ in range(2):
        world.now += 2
        streamer.uploader.step(0)
        assert streamer.uploader.uploading is not None
        assert streamer.uploader.uploading.newest_commit_us
        for job in streamer.uploader.jobs:
            streamer.uploader.drop(job.track)


def a_backlog(world: World, pace: float, *binlogs: int) -> Streamer:
    """Closed binlogs of so many transactions, not read yet; what the link carries is known."""
    streamer = world.start(workers=16)
    for transactions in binlogs:
        for _ in range(transactions):
            world.source.write(100)
        world.source.rotate()
    streamer.uploader.pace.bytes_per_second = pace
    return streamer


def test_what_is_whole_in_the_bucket_leaves_first(world: World) -> None:
    """Its last short requests do not wait for the many parts of the binlogs after it."""
    streamer = a_backlog(world, 1e9, 4, 200)
    world.read(streamer)
    for _ in range(100):
        world.now += 0.01
        one_answer(streamer)
        if streamer.coverage.has(FIRST):
            break
    assert streamer.coverage.has(FIRST)
    assert flying(streamer, PutPart) > 10  # of the second one


def test_a_worker_is_left_to_the_next_flush(world: World) -> None:
    """However much waits, small chunks do not wait behind it."""
    streamer = world.start()
    world.source.write(50)
    world.work(streamer)
    world.source.write(5000)
    world.read(streamer)
    for _ in range(5):
        world.now += 1
        streamer.uploader.start()
        assert streamer.workers.busy - flying(streamer, Flush) == 3


@pytest.mark.parametrize(("pace", "left"), [(1e9, 0), (1500.0, 1)])
def test_a_backlog_takes_every_worker_of_a_quick_link(world: World, pace: float, left: int) -> None:
    """Nothing needs a flush. On a slow link no worker would be free again soon."""
    streamer = a_backlog(world, pace, 40)
    world.read(streamer, 5000)
    most = 0
    for _ in range(30):
        streamer.uploader.start()
        most = max(most, flying(streamer, PutPart))
        streamer.workers.perform()
        streamer.deliver()
        streamer.uploader.pace.bytes_per_second = pace
    assert most == 16 - left


@pytest.mark.parametrize(
    ("conditions", "crc64", "asked"),
    [
        (True, True, {"list": 1, "put": 2}),
        (False, True, {"list": 1, "put": 2, "head": 2}),
        (True, False, {"list": 1, "put": 2, "head": 1, "get": 1}),
    ],
)
def test_what_a_small_binlog_asks_of_the_store(
    tmp_path: Path, conditions: bool, crc64: bool, asked: dict[str, int]
) -> None:
    """Chunks, object, entry; more where the store does not refuse, or prove, by itself."""

    def calls(binlogs: int) -> Counter[str]:
        folder = tmp_path / str(binlogs)
        folder.mkdir()
        with closing(World(folder)) as world:
            world.store = MemoryStore(min_part_bytes=1, crc64=crc64)
            world.store.refuses_replacing = conditions
            for _ in range(binlogs):
                world.source.write(1)
                world.source.rotate()
            streamer = world.start(part=100_000)
            world.read(streamer)
            world.settle(streamer)
            return Counter(world.store.calls)

    assert calls(3) - calls(2) == asked


def test_what_lies_under_a_small_binlogs_key_is_compared(world: World) -> None:
    """The store refuses to replace it, and then it is looked at; ours is described."""
    world.store.refuses_replacing = True
    world.source.write(10)
    world.source.rotate()
    streamer = world.start(part=100_000)
    world.store.put(KEY, world.source.data(FIRST))
    world.read(streamer)
    world.settle(streamer)
    assert streamer.coverage.has(FIRST)
    assert world.archived() == world.source.data(FIRST)


def test_an_upload_under_a_small_binlogs_key_is_aborted(world: World) -> None:
    """It is not looked for before the binlog is put; the second audit after that finds it."""
    world.source.write(10)
    world.source.rotate()
    streamer = world.start(part=100_000)
    world.store.create_upload(KEY)
    world.read(streamer)
    world.settle(streamer)
    assert streamer.coverage.has(FIRST)
    for _ in range(2):
        world.audit(streamer)
    world.settle(streamer)
    assert not world.store.uploads


def test_a_backlog_gets_chunks_until_the_link_is_known(world: World) -> None:
    """Then the rest of its first binlog goes straight into the upload; the chunks are copied."""
    streamer = a_backlog(world, 0.0, 40)
    world.read(streamer, 1000)
    world.settle(streamer)
    chunks = world.store.calls["put"]
    assert chunks >= 5
    streamer.uploader.pace.bytes_per_second = 1e9
    world.work(streamer, 100)
    assert world.store.calls["copy_part"] in (chunks, chunks - 1)
    assert world.store.calls["upload_part"] > 5 * chunks
    assert world.archived() == world.source.data(FIRST)


@pytest.mark.parametrize("why", ["", "pressed", "unfinishable", "slow", "unknown", "unlisted"])
def test_a_backlog_goes_in_chunks_only_where_it_must(world: World, why: str) -> None:
    """A full spool, a source that cannot send the rest, a slow link: chunks, durable at once."""
    streamer = a_backlog(world, {"slow": 1.0, "unknown": 0.0}.get(why, 1e6), 8)
    world.read(streamer, 700)
    (track,) = streamer.tracks.values()
    if why == "unlisted":
        track.source_size = None
    world.settle(streamer)
    assert bool(world.chunks()) is (why in ("slow", "unknown", "unlisted"))
    if why == "pressed":
        streamer.uploader.press(pressed=True)
    elif why == "unfinishable":
        streamer.uploader.abandon(track)
    world.settle(streamer)
    assert not why or world.chunks()[-1].end == track.size


def test_of_a_backlog_the_open_binlog_alone_gets_chunks(world: World) -> None:
    """What the source had finished goes straight into its upload."""
    streamer = a_backlog(world, 1e6, 8, 8, 8)
    for _ in range(8):
        world.source.write(100)
    put: set[str] = set()
    while streamer.fetch(100):
        streamer.pump()
        world.settle(streamer, rounds=10)
        put |= {key.split("/")[-2] for key in world.live()}
    world.settle(streamer)
    assert put == {str(max(streamer.tracks))}
    for name in sorted(streamer.tracks)[:3]:
        assert world.archived(name) == world.source.data(name)


def test_the_pace_of_full_chunks() -> None:
    """Slow ones fly few at a time, quick ones as many as there are workers, but for one."""
    pace, alone = UploadPace(8, 1.0), UploadPace(1, 1.0)
    assert (pace.most, alone.most) == (7, 1)
    for seconds, times, most in ((2.6, 20, 2), (1.5, 1, 2), (0.2, 20, 7)):
        for _ in range(times):
            pace.took(seconds)
        assert pace.most == most
    alone.took(60)
    assert alone.most == 1
    far = UploadPace(64, 1.0)
    assert far.most == AT_A_TIME  # more when it is known that the link takes them
    for _ in range(10):
        far.took(0.2)
    assert far.most == AT_A_TIME + 10


def test_the_number_of_parts_follows_the_link() -> None:
    """5 MiB in 0.7 s each, 15 at a time, is a link for more; 5 MiB a second in all is not."""
    length = 5 << 20
    unknown, far, slow = (UploadPace(64, 1.0) for _ in range(3))
    for _ in range(30):
        far.sent(length, 0.7, 15)
        slow.sent(length, 15.0, 15)
    assert unknown.parts(length) == slow.parts(length) == AT_A_TIME
    assert far.parts(length) > 64
    assert far.parts(16 * length) == AT_A_TIME


def test_flushes_are_rarer_over_a_link_that_cannot_carry_each_byte_twice() -> None:
    """1 MB/s of binlog through 2 MB/s: each byte goes once. When there is room again, twice."""
    pace, now, size = UploadPace(16, 1.0), 100.0, 0
    for seconds, grows, is_sent, interval in (
        (20, 1_050_000, False, 1.0),  # nothing is known of the link
        (20, 1_050_000, True, 10.0),
        (40, 700_000, True, 10.0),  # half of that would fit twice, but not for sure
        (40, 300_000, False, 1.0),
    ):
        for _ in range(seconds):
            now, size = now + 1, size + grows
            if is_sent:
                pace.sent(5_242_880, 2.6, 1)
            pace.grown(size, now)
        assert (pace.flush_interval, pace.stretched) == (interval, interval > 1)


def test_a_longer_interval_that_was_asked_for_stays() -> None:
    """No flush comes sooner than asked for."""
    pace = UploadPace(16, 60.0)
    pace.sent(1 << 20, 1.0, 1)
    for second in range(10):
        pace.grown(second << 30, float(second))
    assert (pace.flush_interval, pace.stretched) == (60.0, False)


@pytest.mark.parametrize("length", [20, 950])
def test_entries_are_made_in_order(
    world: World, length: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Behind an entry a binlog in chunks is one that cannot be finished: so a start reads it.

    The first one waits for its object, and is waited for. That it went on is logged.
    """
    caplog.set_level("INFO", "binlog2s3")
    streamer = world.start()
    for _ in range(3):
        world.source.write(length)
        world.source.rotate()
    world.read(streamer)
    world.store.put(LAYOUT.lineage(LINEAGE), HISTORY.to_json())

    def refuse(action: Action) -> None:
        token: Any = streamer.workers.tasks[0][0]
        if token.job.track.name == FIRST and isinstance(action, PutWhole | Complete):
            kind = "put" if isinstance(action, PutWhole) else "complete_upload"
            world.store.fail_next(kind, "before", StoreError("no", transient=True))

    world.settle(streamer, refuse, rounds=100)
    archived = {key for key in world.store.objects if key.startswith(LAYOUT.archive)}
    assert KEY not in archived
    assert LAYOUT.binlog(LINEAGE, FIRST.next()) in archived
    assert not any("/entries/" in key for key in archived)
    assert archive_end(Catalog(world.store, LAYOUT), HISTORY).following == FIRST
    world.settle(streamer)
    assert archive_end(Catalog(world.store, LAYOUT), HISTORY).last == FIRST.next().next()
    (end,) = (one.fields for one in caplog.records if one.msg == "uploading again")  # type: ignore[attr-defined]
    assert end["binlog"] == FIRST
    assert end["after_seconds"] > 50


# A binlog that the source can no longer finish


@pytest.mark.parametrize("flush_interval", [1.0, 0.0])
@pytest.mark.parametrize("length", [20, 950])
@pytest.mark.parametrize("pressed", [False, True])
def test_what_cannot_be_finished_stays_as_chunks(
    world: World, length: int, flush_interval: float, *, pressed: bool
) -> None:
    """All that there is of it is durable, and leaves the spool; it is never called archived.

    Also where nothing else is put as chunks, and parts of it were sent already.
    """
    streamer = world.start(flush_interval=flush_interval)
    world.source.write(length)
    world.work(streamer)
    streamer.uploader.abandon(streamer.tracks[FIRST])
    assert streamer.uploader.pending == 1
    if pressed:
        streamer.press(pressed=True)
    world.settle(streamer)
    assert world.readable() == world.source.data(FIRST)
    assert streamer.uploader.done
    assert not streamer.uploader.jobs
    assert not {KEY, ENTRY} & world.store.objects.keys()
    assert not world.store.uploads, "nobody will ever complete it"
    assert list(streamer.run.files()) == []
    durable = streamer.coverage.durable
    assert durable is not None
    assert (durable.binlog, durable.offset) == (FIRST, world.source.size(FIRST))
    assert not streamer.coverage.has(FIRST), "it may be read again"
    streamer.coverage.added(FIRST.next())
    assert streamer.coverage.has(FIRST)


@pytest.mark.parametrize("same", [True, False])
def test_what_is_given_up_before_it_has_come_as_far_as_the_bucket(
    world: World, *, same: bool
) -> None:
    """It is the beginning of what lies there, and no other history, unless its bytes differ."""
    streamer = world.start(part=500)
    world.source.write(900)
    data = world.source.data(FIRST)
    world.read(streamer, 230)
    track = streamer.tracks[FIRST]
    there = bytearray(data)
    there[track.size - 1] ^= not same
    for begin in range(0, len(data), 90):
        world.put_chunk(begin, bytes(there[begin : begin + 90]))
    keys = world.live()
    assert track.size % 90
    streamer.uploader.abandon(track)
    if not same:
        with pytest.raises(ForkError, match="reaches beyond the end of"):
            world.settle(streamer)
        assert streamer.files(FIRST)
        return
    world.settle(streamer)
    assert not streamer.uploader.jobs
    assert world.live() == keys
    assert world.readable() == data


@pytest.mark.parametrize("rotten", [False, True])
def test_the_last_copy_is_not_given_up_for_a_chunk_that_only_has_its_name(
    world: World, *, rotten: bool
) -> None:
    """Another process has put it; before the spool's bytes go it is read, and put again."""
    first, streamer = world.start("first"), world.start("second")
    for _ in range(10):
        world.source.write(20)
    world.work(first)
    world.read(streamer)
    if rotten:
        data = bytearray(world.store.get(world.live()[3]))
        data[3] ^= 1
        world.store.put(world.live()[3], bytes(data))
    streamer.uploader.abandon(streamer.tracks[FIRST])
    world.settle(streamer)
    assert not streamer.uploader.jobs
    assert not streamer.files(FIRST)
    assert world.readable() == world.source.data(FIRST)


def test_beside_what_another_writer_has_finished_nothing_is_put(world: World) -> None:
    """It had all of it, or something else lies there: ours stays in the spool, and is forgotten."""
    streamer = world.start()
    world.source.write(900)
    world.read(streamer, 600)
    world.source.rotate()
    world.store.put(KEY, world.source.data(FIRST))
    streamer.uploader.abandon(streamer.tracks[FIRST])
    world.settle(streamer)
    assert not streamer.uploader.jobs
    assert world.live() == []
    assert streamer.run.files()[FIRST].stat().st_size == 600  # nobody has compared it
    assert not streamer.coverage.has(FIRST)


def test_another_track_of_the_same_name_is_not_meant(world: World) -> None:
    """One that was read anew has taken its place: it is neither abandoned nor dropped."""
    streamer, other = world.start(), world.start("other")
    world.source.write(900)
    for one in (streamer, other):
        world.read(one)
    old = streamer.tracks[FIRST]
    streamer.uploader.add(other.tracks[FIRST])
    streamer.uploader.abandon(old)
    streamer.uploader.drop(old)
    assert streamer.uploader.pending == 0
    assert streamer.uploader.jobs


@pytest.mark.parametrize("read_again", [False, True])
def test_an_answer_of_a_binlog_that_was_forgotten_says_nothing(
    world: World, *, read_again: bool
) -> None:
    """Its run was of another history: what was put of it is not durable in this one."""
    streamer = world.start(part=5000)
    world.source.write(20)
    world.work(streamer, 3)
    world.source.write(20)
    world.read(streamer)
    streamer.uploader.start()
    assert flying(streamer, Flush)
    durable, counted = streamer.coverage.durable, streamer.uploader.counts.durable_bytes
    assert durable is not None
    track = streamer.tracks[FIRST]
    streamer.uploader.drop(track)
    if read_again:
        streamer.uploader.add(track)
    world.answer(streamer)
    assert streamer.coverage.durable == durable
    assert streamer.uploader.counts.durable_bytes == counted


@pytest.mark.parametrize("has_ended", [False, True])
def test_what_contradicts_the_bucket_stays_in_the_spool(world: World, *, has_ended: bool) -> None:
    """A history that goes on stops, to find where they part; one that has ended holds up nothing.

    Ours may be the only copy.
    """
    world.put_chunk(0, b"x" * 30)
    streamer = world.start()
    world.source.write(300)
    world.read(streamer)
    if has_ended:
        streamer.uploader.abandon(streamer.tracks[FIRST])
        streamer.uploader.end_history()
        world.settle(streamer)
        assert not streamer.uploader.jobs
    else:
        with pytest.raises(ForkError, match="holds other bytes than"):
            world.settle(streamer)
    assert list(streamer.run.files()) == [FIRST]


@pytest.mark.parametrize("has_ended", [False, True])
def test_nothing_is_archived_behind_what_contradicts_the_bucket(
    world: World, *, has_ended: bool
) -> None:
    """What follows it is of its history: behind the bucket's bytes it would be spliced."""
    world.put_chunk(0, b"x" * 30)
    streamer = world.start()
    for _ in range(3):
        world.source.write(300)
        world.source.rotate()
    world.read(streamer)
    if has_ended:
        streamer.uploader.end_history()
        world.settle(streamer)
    else:
        with pytest.raises(ForkError, match="holds other bytes than"):
            world.settle(streamer)
        world.settle(streamer)
    assert not streamer.uploader.jobs
    assert not [key for key in world.store.objects if LAYOUT.parsed(key).kind == "entry"]  # type: ignore[union-attr]
    assert len(streamer.run.files()) == 4


def test_an_entry_that_somebody_planted_ends_the_history(world: World) -> None:
    """The binlog gets no entry, once that is told; in a history that has ended it gets one."""
    world.store.versions = [
        ObjectVersion(key=ENTRY, version="v", at=datetime.now(UTC), latest=False, size=9)
    ]
    streamer = world.start()
    world.source.write(300)
    world.source.rotate()
    world.read(streamer)
    with pytest.raises(TakenError, match="before the streamer did"):
        world.settle(streamer)
    world.work(streamer, 100)
    assert KEY in world.store.objects
    assert ENTRY not in world.store.objects
    assert not streamer.uploader.done
    streamer.uploader.end_history()
    world.settle(streamer)
    assert ENTRY in world.store.objects


# The spool is pressed


def given_back(world: World) -> Streamer:
    """All of the open binlog is in the bucket, and nothing in the spool."""
    streamer = world.start()
    world.source.write(950)
    world.work(streamer)
    assert floor_of(streamer) == 0, "a file that is whole is worth having"
    streamer.press(pressed=True)
    assert floor_of(streamer) > 0
    return streamer


def floor_of(streamer: Streamer) -> int:
    return streamer.tracks[FIRST].floor


@pytest.mark.parametrize("flush_interval", [1.0, 0.0])
@pytest.mark.parametrize("crc64", [True, False])
def test_what_is_in_the_bucket_leaves_a_full_spool(
    world: World, flush_interval: float, *, crc64: bool
) -> None:
    """The whole file, once all of it is known to be there; what archiving needs is kept.

    Where nothing is put as chunks otherwise as well, and where the store confirms no checksum, so
    that its ETag proves nothing. Then the binlog is archived of its chunks.
    """
    world.store = MemoryStore(min_part_bytes=1, crc64=crc64)
    streamer = world.start(flush_interval=flush_interval)
    world.source.write(950)
    world.read(streamer)
    streamer.press(pressed=True)
    assert floor_of(streamer) == 0, "nothing is in the bucket yet"
    world.settle(streamer)
    streamer.press(pressed=True)
    track = streamer.tracks[FIRST]
    assert track.floor == track.size == world.source.size(FIRST)
    assert not streamer.files(FIRST)
    assert {part.end for part in track.md5s} == set(range(100, track.floor, 100))
    streamer.press(pressed=False)
    world.source.write(950)
    world.source.rotate()
    world.source.write(10)
    world.work(streamer, 100)
    assert world.archived() == world.source.data(FIRST)
    assert streamer.coverage.has(FIRST)


def test_nothing_leaves_the_spool_that_a_request_may_still_read(world: World) -> None:
    """Or that is only listed, and was not compared, or by its name alone."""
    first, streamer = world.start("first"), world.start("second")
    world.source.write(950)
    world.work(first)
    world.read(streamer)
    for _ in range(3):  # it looks, then compares, then reads
        streamer.press(pressed=True)
        assert streamer.files(FIRST)
        streamer.uploader.start()
        assert streamer.workers.tasks
        streamer.press(pressed=True)
        assert streamer.files(FIRST)
        world.answer(streamer)
    streamer.press(pressed=True)
    assert not streamer.files(FIRST)


def test_all_is_durable_and_a_request_still_reads_it(world: World) -> None:
    """Sixteen small chunks become one, whose body is the file's."""
    streamer = world.start(part=9_000)
    for _ in range(120):
        world.source.write(100)
        world.read(streamer)
        world.now += 1.1
        streamer.uploader.start()
        world.answer(streamer)
        streamer.uploader.start()
        if flying(streamer, Merge) and streamer.tracks[FIRST].size > 9_000:
            break
        world.answer(streamer)
    assert flying(streamer, Merge)
    assert world.readable() == world.source.data(FIRST)
    streamer.press(pressed=True)
    assert streamer.files(FIRST)
    world.answer(streamer)
    streamer.press(pressed=True)
    assert not streamer.files(FIRST)


@pytest.mark.parametrize("source", ["goes on", "is gone"])
def test_what_a_program_before_0_3_had_freed(world: World, source: str) -> None:
    """What its spool alone has gets into the bucket, whether the source still has it or not."""
    before = world.start(part=1_000)
    world.source.write(3_500)
    world.work(before)
    for _ in range(20):
        world.source.write(100)
    world.read(before)
    run, size = before.born, before.tracks[FIRST].size
    world.stop(before)
    floor = 3_000  # in the middle of the first transaction
    assert world.chunks()[2].end == floor < len(world.readable()) < size
    freed_before(run / "run.json", run / str(FIRST), floor, floor)
    streamer = world.start(part=1_000)
    assert streamer.tracks[FIRST].size == size
    if source == "goes on":
        world.source.write(500)
        world.source.rotate()
        world.work(streamer)
        assert world.archived() == world.source.data(FIRST)
    else:
        streamer.pump()
        streamer.uploader.abandon(streamer.tracks[FIRST])
        there = list[bool]()
        world.settle(streamer, before=lambda _: there.append((run / str(FIRST)).exists()))
        assert all(there)
        assert world.readable() == world.source.data(FIRST)
    assert not (run / str(FIRST)).exists()


def test_a_part_that_is_being_sent_stays_in_the_spool(world: World) -> None:
    """Its chunk is in the bucket, but where the store copies none its body is the file's."""
    world.store = MemoryStore(min_part_bytes=1, copies_parts=False)
    streamer = world.start()
    world.source.write(950)
    world.work(streamer)
    world.source.rotate()
    world.read(streamer)
    for _ in range(40):
        world.now += 1
        streamer.uploader.start()
        if flying(streamer, PutPart):
            break
        world.answer(streamer)
    assert flying(streamer, PutPart)
    streamer.press(pressed=True)
    assert floor_of(streamer) == 0
    streamer.press(pressed=False)
    world.settle(streamer)
    assert world.archived() == world.source.data(FIRST)


@pytest.mark.parametrize("anew", [False, True])
@pytest.mark.parametrize("copies_parts", [False, True])
def test_what_was_given_back_is_archived_from_the_bucket(
    world: World, *, anew: bool, copies_parts: bool
) -> None:
    """By the process that gave it back, and by the next one; copied, or read and sent."""
    world.store = MemoryStore(min_part_bytes=1, copies_parts=copies_parts)
    streamer = given_back(world)
    floor = floor_of(streamer)
    streamer.press(pressed=False)
    if anew:
        world.stop(streamer)
        streamer = world.start()
        track = streamer.tracks[FIRST]
        assert (track.floor, track.size) == (floor, world.source.size(FIRST))
    world.source.rotate()
    world.work(streamer, 100)
    assert world.archived() == world.source.data(FIRST)
    assert not streamer.files(FIRST)


def test_what_was_given_back_is_read_from_what_another_writer_has_archived(world: World) -> None:
    """It has cleared the chunks away by then, and the store keeps no checksum of its object."""
    world.store = MemoryStore(min_part_bytes=1, crc64=False)
    world.stop(given_back(world))
    streamer = world.start()
    assert streamer.tracks[FIRST].floor > 0
    world.source.rotate()
    world.read(streamer)
    world.store.delete(world.live())
    world.store.put(KEY, world.source.data(FIRST))
    world.settle(streamer)
    assert ENTRY in world.store.objects
    assert not streamer.files(FIRST)


def test_a_chunk_that_is_taken_below_a_floor_is_an_error(world: World) -> None:
    """What the file no longer has is never read from it: zeros never leave the spool."""
    streamer = given_back(world)
    taken = world.live()[2]
    del world.store.objects[taken]
    world.audit(streamer)
    with pytest.raises(FloorError, match="is needed again, and is no longer in the bucket"):
        world.settle(streamer)
    assert taken not in world.store.objects


@pytest.mark.parametrize("copies_parts", [False, True])
def test_a_chunk_that_rots_below_a_floor_ends_the_process_once(
    world: World, *, copies_parts: bool
) -> None:
    """It goes, so that the next one puts it again, though its spool is full at the same place."""
    world.store = MemoryStore(min_part_bytes=1, copies_parts=copies_parts)
    streamer = world.start()
    for _ in range(12):
        world.source.write(20)
    world.work(streamer)
    streamer.press(pressed=True)
    rotten = world.live()[2]
    data = bytearray(world.store.get(rotten))
    data[3] ^= 1
    world.store.put(rotten, bytes(data))
    others = [key for key in world.live() if key != rotten]
    streamer.press(pressed=False)
    world.source.rotate()
    with pytest.raises(FloorError, match="is needed again"):
        world.work(streamer, 100)
    assert {*others} <= {*world.live()}
    world.stop(streamer)
    world.store.delete(world.live()[4:])  # this time the spool is full before it has come so far
    streamer = world.start("another")
    world.read(streamer, 900)
    for _ in range(2):
        streamer.press(pressed=True)
        world.settle(streamer)
    assert floor_of(streamer) > Chunk.parse(rotten.rpartition("/")[2]).end
    streamer.press(pressed=False)
    world.work(streamer, 100)
    assert world.archived() == world.source.data(FIRST)


@pytest.mark.parametrize("closed", [True, False])
def test_what_lies_in_other_chunks_is_put_again_from_them(world: World, *, closed: bool) -> None:
    """A chunk is taken whose bytes the spool no longer has, and another writer's chunks have."""
    streamer = given_back(world)
    floor, data = floor_of(streamer), world.source.data(FIRST)
    taken = world.live()[2]
    assert Chunk.parse(taken.rpartition("/")[2]).end < floor
    for begin in range(0, floor, 90):  # small ones, of another part size
        world.put_chunk(begin, data[begin : min(begin + 90, floor)])
    del world.store.objects[taken]
    world.audit(streamer)
    if closed:
        streamer.press(pressed=False)
        world.source.rotate()
        world.read(streamer)
    world.settle(streamer)
    if closed:
        assert world.archived() == world.source.data(FIRST)
    else:
        assert taken in world.store.objects
        assert world.readable() == data


# What the store makes of bytes


class Trusting(MemoryStore):
    """Takes what it gets: it looks at no checksum, and keeps none."""

    def put(self, key: str, body: Body | bytes, **more: Any) -> ObjectInfo:
        """See Store."""
        return super().put(key, body, **{**more, "crc64": None})


def test_rotten_bytes_are_no_witness_for_an_object_of_the_same(world: World) -> None:
    """Their MD5 would agree with its ETag: none is taken of them, and nothing is called ours."""
    world.store = Trusting(min_part_bytes=1, crc64=False)
    streamer = world.start()
    world.source.write(20)
    world.source.rotate()
    world.read(streamer)
    data = bytearray(world.source.data(FIRST))
    data[50] ^= 1
    streamer.file(FIRST).write_bytes(data)
    world.store.put(KEY, bytes(data))
    with pytest.raises(SpoolError, match="changed after it was read"):
        world.settle(streamer)
    assert ENTRY not in world.store.objects


def test_an_object_shorter_than_its_name_says_is_no_chunk(world: World) -> None:
    """A store that cut a body off, or somebody's own: the bytes are put as if it were not there."""
    world.source.write(20)
    data = world.source.data(FIRST)[:100]
    key = world.put_chunk(0, data)
    world.store.put(key, data[:10])
    streamer = world.start()
    world.work(streamer)
    assert world.readable() == world.source.data(FIRST)


class Careless(MemoryStore):
    """A store that keeps no checksums, and one byte of each full chunk wrongly."""

    def put(self, key: str, body: Body | bytes, **more: Any) -> ObjectInfo:
        """See Store."""
        if not key.startswith(LAYOUT.live) or isinstance(body, bytes) or body.size < 100:
            return super().put(key, body, **more)
        data = bytearray(body.open().read(body.size))
        data[50] ^= 1
        return super().put(key, bytes(data), **{**more, "crc64": None})


def test_an_etag_proves_nothing_where_the_store_confirms_no_checksum(world: World) -> None:
    """A chunk that arrived with other bytes does not become a part: its ETag is of those bytes."""
    world.store = Careless(min_part_bytes=1, crc64=False)
    streamer = world.start()
    world.source.write(950)
    world.work(streamer)
    assert world.live()
    world.source.rotate()
    world.work(streamer, 100)
    assert world.archived() == world.source.data(FIRST)


class Encrypting(MemoryStore):
    """A store whose ETags are no MD5s of the bytes, as with KMS."""

    def copy_part(
        self, key: str, upload_id: str, number: int, *more: Any, **named: Any
    ) -> PartInfo:
        """See Store."""
        info = super().copy_part(key, upload_id, number, *more, **named)
        info = replace(info, etag=f"{number:032x}")
        parts = self.uploads[upload_id].parts
        parts[number] = replace(parts[number], info=info)
        return info


@pytest.mark.parametrize("damaged", [False, True])
def test_with_kms_no_copied_part_is_read_back(world: World, *, damaged: bool) -> None:
    """The store's checksum of a chunk proves its copy; a chunk with other bytes is not used."""
    world.store = Encrypting(min_part_bytes=1)
    streamer = world.start()
    world.source.write(950)
    world.work(streamer)
    full = [chunk for chunk in world.chunks() if chunk.size == 100]
    assert len(full) > 5
    if damaged:
        world.store.put(LAYOUT.chunk(LINEAGE, FIRST, full[3]), b"x" * 100)
    world.source.rotate()
    world.work(streamer, 100)
    assert world.archived() == world.source.data(FIRST)
    assert world.store.calls["open"] == 1  # the whole object, which has no checksum of its own
