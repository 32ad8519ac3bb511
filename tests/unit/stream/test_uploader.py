"""What goes first, what becomes of a binlog that cannot be finished, how the spool is pressed."""

from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from binlog2s3.archive.catalog import Catalog
from binlog2s3.archive.chunks import Chunk
from binlog2s3.binlog.checksum import crc64nvme
from binlog2s3.errors import FloorError, ForkError, SpoolError, StoreError, TakenError
from binlog2s3.store.contract import Body, ObjectInfo, ObjectVersion, PartInfo
from binlog2s3.stream import remote
from binlog2s3.stream.archive_end import archive_end
from binlog2s3.stream.decide import Action, Complete, CopyPart, Flush, PutChunk, PutPart, PutWhole
from binlog2s3.stream.upload_counts import UploadPace
from tests.memory_store import MemoryStore
from tests.streamer import FIRST, HISTORY, LAYOUT, LINEAGE, Source, Streamer


def flying(streamer: Streamer, kind: type[Action]) -> int:
    jobs = streamer.uploader._jobs.values()
    return sum(isinstance(action, kind) for job in jobs for action in job.flying)


def a_streamer(
    directory: Path,
    source: Source,
    now: list[float],
    workers: int,
    store: MemoryStore | None = None,
    flush_interval: float = 1.0,
) -> Streamer:
    return Streamer(
        store=store or MemoryStore(min_part_bytes=1),
        source=source,
        directory=directory,
        clock=lambda: now[0],
        part=100,
        workers=workers,
        flush_interval=flush_interval,
    )


def fetch_all(streamer: Streamer) -> None:
    while streamer.fetch():
        pass
    streamer.pump()


def settle(streamer: Streamer, now: list[float]) -> None:
    """All that can be done now is done."""
    for _ in range(300):
        now[0] += 1
        streamer.uploader.step()
        while streamer.workers.tasks:
            streamer.workers.perform()
        while streamer.deliver():
            pass


def arrive(streamer: Streamer, now: list[float]) -> None:
    """All that the source has is read, and done."""
    fetch_all(streamer)
    settle(streamer, now)


@pytest.mark.parametrize("workers", [1, 2, 4, 8])
def test_what_is_not_durable_goes_before_copies(tmp_path: Path, workers: int) -> None:
    """A large binlog is closed: its many copies leave room for the next one's chunks."""
    now, source = [100.0], Source()
    streamer = a_streamer(tmp_path, source, now, workers)
    source.write(4000)
    arrive(streamer, now)
    source.rotate()
    source.write(4000)
    fetch_all(streamer)
    seen: list[tuple[int, int, int]] = []
    for _ in range(40):  # a slow store: one answer at a time
        now[0] += 0.1
        streamer.uploader.step()
        seen.append(tuple(flying(streamer, kind) for kind in (CopyPart, PutChunk, Flush)))  # type: ignore[arg-type]
        if streamer.workers.tasks:
            streamer.workers.perform()
        streamer.deliver()
    assert all(sum(one) <= workers for one in seen)
    if workers >= 4:
        assert any(chunks for _, chunks, _ in seen)
        assert max(chunks for _, chunks, _ in seen) == workers - 3  # a flush, and two for copies
        assert any(copies and chunks for copies, chunks, _ in seen)
    settle(streamer, now)
    assert streamer.coverage.has(FIRST)
    streamer.close()


def a_backlog(
    tmp_path: Path, now: list[float], pace: float, *binlogs: int, store: MemoryStore | None = None
) -> Streamer:
    """Closed binlogs of so many transactions, not fetched yet; what the link carries is known."""
    source = Source()
    streamer = a_streamer(tmp_path, source, now, 16, store)
    for transactions in binlogs:
        for _ in range(transactions):
            source.write(100)
        source.rotate()
    streamer.uploader.pace.bytes_per_second = pace
    return streamer


@pytest.mark.parametrize(("pace", "chunks"), [(1e9, False), (100.0, True), (0.0, True)])
def test_a_backlog_gets_no_chunks_if_the_link_is_quick(
    tmp_path: Path, pace: float, chunks: bool
) -> None:
    """What the source had finished goes into its upload as it comes, unless that takes long."""
    now = [100.0]
    streamer = a_backlog(tmp_path, now, pace, 40)
    before = 0
    while streamer.fetch(300):
        streamer.pump()
        now[0] += 2
        streamer.uploader.step()
        jobs = [job for job in streamer.uploader.jobs if job.track.name == FIRST]
        before += sum(isinstance(action, PutChunk) for job in jobs for action in job.flying)
        while streamer.workers.tasks:
            streamer.workers.perform()
        while streamer.deliver():
            pass
    assert (before > 0) == chunks
    settle(streamer, now)
    assert streamer.coverage.has(FIRST)
    streamer.close()


def test_what_is_whole_in_the_bucket_leaves_first(tmp_path: Path) -> None:
    """Its last short requests do not wait for the many parts of the binlogs after it."""
    now = [100.0]
    streamer = a_backlog(tmp_path, now, 1e9, 4, 200)
    fetch_all(streamer)
    for _ in range(100):
        now[0] += 0.01
        streamer.uploader.step()
        streamer.workers.perform()
        streamer.deliver()
        if streamer.coverage.has(FIRST):
            break
    assert streamer.coverage.has(FIRST)
    assert flying(streamer, PutPart) > 10  # of the second one
    streamer.close()


def test_a_worker_is_left_to_the_next_flush(tmp_path: Path) -> None:
    """However much waits, small chunks do not wait behind it."""
    now, source = [100.0], Source()
    streamer = a_streamer(tmp_path, source, now, 4)
    source.write(50)
    arrive(streamer, now)
    source.write(5000)
    fetch_all(streamer)
    for _ in range(5):
        now[0] += 1
        streamer.uploader.step()
        assert streamer.workers.busy - flying(streamer, Flush) == 3
    streamer.close()


@pytest.mark.parametrize(("pace", "left"), [(1e9, 0), (1500.0, 1)])
def test_a_backlog_takes_every_worker_of_a_quick_link(
    tmp_path: Path, pace: float, left: int
) -> None:
    """Nothing needs a flush. On a slow link no worker would be free again soon."""
    now = [100.0]
    streamer = a_backlog(tmp_path, now, pace, 40)
    streamer.fetch(5000)
    streamer.pump()
    most = 0
    for _ in range(30):
        streamer.uploader.step()
        most = max(most, flying(streamer, PutPart))
        streamer.workers.perform()
        streamer.deliver()
        streamer.uploader.pace.bytes_per_second = pace
    streamer.close()
    assert most == 16 - left


def test_a_backlog_gets_chunks_until_the_link_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then the rest of its first binlog goes straight into the upload."""
    now, store = [100.0], MemoryStore(min_part_bytes=1, copies_into_crc64_uploads=False)
    read_again: list[Body] = []
    digests = remote._digests
    monkeypatch.setattr(remote, "_digests", lambda b: read_again.append(b) or digests(b))
    streamer = a_backlog(tmp_path, now, 0.0, 40, store=store)
    streamer.fetch(1000)
    streamer.pump()
    settle(streamer, now)
    chunks = store.calls["put"]
    assert chunks >= 5
    streamer.uploader.pace.bytes_per_second = 1e9
    arrive(streamer, now)
    assert store.calls["copy_part"] in (chunks, chunks - 1)
    assert read_again == []  # each part's MD5 is that of its request
    assert store.calls["upload_part"] > 5 * chunks
    assert store.get(LAYOUT.binlog(LINEAGE, FIRST)) == streamer.source.data(FIRST)
    streamer.close()


def test_the_pace_of_full_chunks() -> None:
    """Slow ones fly few at a time, quick ones as many as there are workers, but for one."""
    pace = UploadPace(8, 1.0)
    assert pace.most == 7
    for _ in range(20):
        pace.took(2.6)
    assert pace.most == 2
    pace.took(1.5)
    assert pace.most == 2
    for _ in range(20):
        pace.took(0.2)
    assert pace.most == 7
    assert UploadPace(1, 1.0).most == 1
    alone = UploadPace(1, 1.0)
    alone.took(60)
    assert alone.most == 1


@pytest.mark.parametrize("length", [20, 950])
def test_entries_are_made_in_order(
    tmp_path: Path, length: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Behind an entry a binlog in chunks is one that cannot be finished: so a start reads it.

    The first one waits for its object, and is waited for. That it went on is logged.
    """
    caplog.set_level("INFO", "binlog2s3")
    now, source, store = [100.0], Source(), MemoryStore(min_part_bytes=1)
    streamer = a_streamer(tmp_path, source, now, 4, store)
    for _ in range(3):
        source.write(length)
        source.rotate()
    fetch_all(streamer)
    refused = StoreError("no", transient=True)
    store.put(LAYOUT.lineage(LINEAGE), HISTORY.to_json())
    for _ in range(100):
        now[0] += 1
        streamer.uploader.step()
        while streamer.workers.tasks:
            token, _work = streamer.workers.tasks[0]
            first = token.job.track.name == FIRST  # type: ignore[attr-defined]
            if first and isinstance(token.action, PutWhole | Complete):  # type: ignore[attr-defined]
                kind = "put" if isinstance(token.action, PutWhole) else "complete_upload"  # type: ignore[attr-defined]
                store.fail_next(kind, "before", refused)
            streamer.workers.perform()
        while streamer.deliver():
            pass
    archived = {key for key in store.objects if key.startswith(LAYOUT.archive)}
    assert LAYOUT.binlog(LINEAGE, FIRST) not in archived
    assert LAYOUT.binlog(LINEAGE, FIRST.next()) in archived
    assert not any("/entries/" in key for key in archived)
    assert archive_end(Catalog(store, LAYOUT), HISTORY).next_binlog == FIRST
    settle(streamer, now)
    assert archive_end(Catalog(store, LAYOUT), HISTORY).last == FIRST.next().next()
    (end,) = (one.fields for one in caplog.records if one.msg == "uploading again")  # type: ignore[attr-defined]
    assert end["binlog"] == FIRST
    assert end["after_seconds"] > 50
    streamer.close()


# A binlog that the source can no longer finish


def readable(store: MemoryStore) -> bytes:
    """The first binlog, as a reader has it."""
    return b"".join(Catalog(store, LAYOUT).binlog(HISTORY, FIRST).blocks())


@pytest.mark.parametrize("flush_interval", [1.0, 0.0])
@pytest.mark.parametrize("length", [20, 950])
@pytest.mark.parametrize("pressed", [False, True])
def test_what_cannot_be_finished_stays_as_chunks(
    tmp_path: Path, length: int, flush_interval: float, *, pressed: bool
) -> None:
    """All that there is of it is durable, and leaves the spool; it is never called archived.

    Also where nothing else is put as chunks, and parts of it were sent already.
    """
    now, source, store = [100.0], Source(), MemoryStore(min_part_bytes=1)
    streamer = a_streamer(tmp_path, source, now, 4, store, flush_interval)
    source.write(length)
    arrive(streamer, now)
    track = streamer.tracks[FIRST]
    streamer.uploader.abandon(track)
    assert streamer.uploader.pending == 1
    if pressed:
        streamer.press(pressed=True)
    settle(streamer, now)
    assert readable(store) == source.data(FIRST)
    assert streamer.uploader.done
    assert streamer.uploader.empty
    assert LAYOUT.binlog(LINEAGE, FIRST) not in store.objects
    assert LAYOUT.entry(LINEAGE, FIRST) not in store.objects
    assert not store.uploads, "nobody will ever complete it"
    assert list(streamer.run.files()) == []
    durable = streamer.coverage.durable
    assert durable is not None
    assert (durable.binlog, durable.offset) == (str(FIRST), source.size(FIRST))
    assert streamer.coverage.has(FIRST)
    streamer.close()


def test_beside_what_another_writer_has_finished_nothing_is_put(tmp_path: Path) -> None:
    """It had all of it, or something else lies there: ours stays in the spool, and is forgotten."""
    now, source, store = [100.0], Source(), MemoryStore(min_part_bytes=1)
    streamer = a_streamer(tmp_path, source, now, 4, store)
    source.write(900)
    streamer.fetch(600)
    streamer.pump()
    source.rotate()
    store.put(LAYOUT.binlog(LINEAGE, FIRST), source.data(FIRST))
    streamer.uploader.abandon(streamer.tracks[FIRST])
    settle(streamer, now)
    assert streamer.uploader.empty
    assert [key for key in store.objects if key.startswith(LAYOUT.live)] == []
    assert streamer.run.files()[FIRST].stat().st_size == 600  # nobody has compared it
    assert not streamer.coverage.has(FIRST)
    streamer.close()


def test_another_track_of_the_same_name_is_not_meant(tmp_path: Path) -> None:
    """One that was read anew has taken its place: it is neither abandoned nor dropped."""
    now, source = [100.0], Source()
    streamer = a_streamer(tmp_path, source, now, 4)
    source.write(900)
    fetch_all(streamer)
    old = streamer.tracks[FIRST]
    other = a_streamer(tmp_path / "other", source, now, 4)
    fetch_all(other)
    streamer.uploader.add(other.tracks[FIRST])
    streamer.uploader.abandon(old)
    streamer.uploader.drop(old)
    assert streamer.uploader.pending == 0
    assert not streamer.uploader.empty
    streamer.close()
    other.close()


def put_strange_chunk(store: MemoryStore) -> None:
    """A chunk of another history, under our binlog's name."""
    data = b"x" * 30
    store.put(LAYOUT.chunk(LINEAGE, FIRST, Chunk(0, 30, crc64nvme(data))), data)


def test_what_contradicts_the_bucket_stops_a_history_that_goes_on(tmp_path: Path) -> None:
    """Nothing of it is concealed: the supervisor must find where they part."""
    now, source, store = [100.0], Source(), MemoryStore(min_part_bytes=1)
    put_strange_chunk(store)
    streamer = a_streamer(tmp_path, source, now, 4, store)
    source.write(300)
    fetch_all(streamer)
    with pytest.raises(ForkError, match="holds other bytes than"):
        settle(streamer, now)
    streamer.close()


def test_an_entry_that_somebody_planted_ends_the_history(tmp_path: Path) -> None:
    """The binlog gets no entry, once that is told; in a history that has ended it gets one."""
    now, source, store = [100.0], Source(), MemoryStore(min_part_bytes=1)
    key = LAYOUT.entry(LINEAGE, FIRST)
    store.versions = [
        ObjectVersion(key=key, version="v", at=datetime.now(UTC), latest=False, size=9)
    ]
    streamer = a_streamer(tmp_path, source, now, 4, store)
    source.write(300)
    source.rotate()
    fetch_all(streamer)
    with pytest.raises(TakenError, match="before the streamer did"):
        settle(streamer, now)
    for _ in range(20):
        arrive(streamer, now)
    assert LAYOUT.binlog(LINEAGE, FIRST) in store.objects
    assert key not in store.objects
    assert not streamer.uploader.done
    streamer.uploader.end_history()
    settle(streamer, now)
    assert key in store.objects
    streamer.close()


def test_what_contradicts_the_bucket_stays_in_the_spool_of_a_history_that_has_ended(
    tmp_path: Path,
) -> None:
    """It holds up nothing else, and is not deleted: it may be the only copy."""
    now, source, store = [100.0], Source(), MemoryStore(min_part_bytes=1)
    put_strange_chunk(store)
    streamer = a_streamer(tmp_path, source, now, 4, store)
    source.write(300)
    fetch_all(streamer)
    streamer.uploader.abandon(streamer.tracks[FIRST])
    streamer.uploader.end_history()
    settle(streamer, now)
    assert streamer.uploader.empty
    assert list(streamer.run.files()) == [FIRST]
    streamer.close()


# The spool is pressed


def given_back(directory: Path, source: Source, now: list[float], store: MemoryStore) -> Streamer:
    """The open binlog's full chunks are in the bucket, and no longer in the spool."""
    streamer = a_streamer(directory, source, now, 4, store)
    source.write(950)
    arrive(streamer, now)
    streamer.press(pressed=True)
    return streamer


def floor_of(streamer: Streamer) -> int:
    (run,) = streamer.spool.runs()
    floor = run.facts.floors.get(str(FIRST))
    return floor.offset if floor else 0


@pytest.mark.parametrize("flush_interval", [1.0, 0.0])
@pytest.mark.parametrize("crc64", [True, False])
def test_full_chunks_leave_the_spool_under_pressure(
    tmp_path: Path, flush_interval: float, *, crc64: bool
) -> None:
    """Up to the last one that is known to be in the bucket; what archiving needs is kept.

    Where nothing is put as chunks otherwise as well, and where the store confirms no checksum, so
    that its ETag proves nothing. Then the binlog is archived of its chunks, without a look at what
    the file no longer has.
    """
    now, source, store = [100.0], Source(), MemoryStore(min_part_bytes=1, crc64=crc64)
    streamer = a_streamer(tmp_path, source, now, 4, store, flush_interval)
    source.write(950)
    fetch_all(streamer)
    streamer.press(pressed=True)
    assert floor_of(streamer) == 0, "nothing is in the bucket yet"
    settle(streamer, now)
    streamer.press(pressed=True)
    track = streamer.tracks[FIRST]
    assert floor_of(streamer) == track.floor == track.size // 100 * 100
    assert streamer.run.directory.joinpath(str(FIRST)).read_bytes()[: track.floor] == bytes(
        track.floor
    )
    assert len(track.md5s) == track.floor // 100
    streamer.press(pressed=False)
    source.write(950)
    source.rotate()
    source.write(10)
    arrive(streamer, now)
    assert store.get(LAYOUT.binlog(LINEAGE, FIRST)) == source.data(FIRST)
    assert streamer.coverage.has(FIRST)
    streamer.close()


def test_without_pressure_nothing_leaves_the_spool(tmp_path: Path) -> None:
    """A file that is whole is worth having."""
    now, source = [100.0], Source()
    streamer = a_streamer(tmp_path, source, now, 4)
    source.write(950)
    arrive(streamer, now)
    streamer.press(pressed=False)
    assert floor_of(streamer) == 0
    streamer.close()


def test_nothing_leaves_the_spool_that_a_request_may_still_read(tmp_path: Path) -> None:
    """Or that is only listed, and was not compared."""
    now, source, store = [100.0], Source(), MemoryStore(min_part_bytes=1)
    first = a_streamer(tmp_path / "first", source, now, 4, store)
    source.write(950)
    arrive(first, now)
    first.close()
    streamer = a_streamer(tmp_path / "second", source, now, 4, store)
    fetch_all(streamer)
    for _ in range(2):  # it looks, then compares
        streamer.uploader.step()
        assert streamer.workers.tasks
        streamer.press(pressed=True)
        assert floor_of(streamer) == 0
        while streamer.workers.tasks:
            streamer.workers.perform()
        while streamer.deliver():
            pass
    streamer.press(pressed=True)
    assert floor_of(streamer) > 0
    streamer.close()


def test_a_part_that_is_being_sent_stays_in_the_spool(tmp_path: Path) -> None:
    """Its chunk is in the bucket, but where the store copies none its body is the file's."""
    now, source = [100.0], Source()
    store = MemoryStore(min_part_bytes=1, copies_parts=False)
    streamer = a_streamer(tmp_path, source, now, 4, store)
    source.write(950)
    arrive(streamer, now)
    source.rotate()
    fetch_all(streamer)
    for _ in range(40):
        now[0] += 1
        streamer.uploader.step()
        if flying(streamer, PutPart):
            break
        while streamer.workers.tasks:
            streamer.workers.perform()
        while streamer.deliver():
            pass
    assert flying(streamer, PutPart)
    streamer.press(pressed=True)
    assert floor_of(streamer) == 0
    streamer.press(pressed=False)
    settle(streamer, now)
    assert store.get(LAYOUT.binlog(LINEAGE, FIRST)) == source.data(FIRST)
    streamer.close()


def test_a_process_goes_on_with_what_was_given_back(tmp_path: Path) -> None:
    """It reads the beginning from the bucket, and archives as ever."""
    now, source, store = [100.0], Source(), MemoryStore(min_part_bytes=1)
    first = given_back(tmp_path, source, now, store)
    first.close()
    streamer = a_streamer(tmp_path, source, now, 4, store)
    track = streamer.tracks[FIRST]
    assert (track.floor, track.size) == (first.tracks[FIRST].floor, source.size(FIRST))
    source.write(100)
    source.rotate()
    arrive(streamer, now)
    assert store.get(LAYOUT.binlog(LINEAGE, FIRST)) == source.data(FIRST)
    assert streamer.tracks[FIRST] is track
    assert not streamer.files(FIRST)
    streamer.close()


def test_a_chunk_that_is_taken_below_a_floor_is_an_error(tmp_path: Path) -> None:
    """What the file no longer has is never read from it: zeros never leave the spool."""
    now, source, store = [100.0], Source(), MemoryStore(min_part_bytes=1)
    streamer = given_back(tmp_path, source, now, store)
    taken = [key for key in sorted(store.objects) if key.startswith(LAYOUT.live)][2]
    del store.objects[taken]
    now[0] += 1000
    streamer.begin_listing()
    streamer.end_listing()
    with pytest.raises(FloorError, match="is needed again, but was freed"):
        settle(streamer, now)
    assert taken not in store.objects
    streamer.close()


@pytest.mark.parametrize("closed", [True, False])
def test_what_lies_in_other_chunks_is_put_again_from_them(tmp_path: Path, *, closed: bool) -> None:
    """A chunk is taken whose bytes the spool no longer has, and another writer's chunks have."""
    now, source, store = [100.0], Source(), MemoryStore(min_part_bytes=1)
    streamer = given_back(tmp_path, source, now, store)
    floor, data = floor_of(streamer), source.data(FIRST)
    taken = [key for key in sorted(store.objects) if key.startswith(LAYOUT.live)][2]
    assert Chunk.parse(taken.rpartition("/")[2]).end < floor
    for begin in range(0, floor, 90):  # small ones, of another part size
        piece = data[begin : begin + 90]
        chunk = Chunk(begin, begin + len(piece), crc64nvme(piece))
        store.put(LAYOUT.chunk(LINEAGE, FIRST, chunk), piece)
    del store.objects[taken]
    now[0] += 1000
    streamer.begin_listing()
    streamer.end_listing()
    if closed:
        source.rotate()
        fetch_all(streamer)
    settle(streamer, now)
    if closed:
        assert store.get(LAYOUT.binlog(LINEAGE, FIRST)) == source.data(FIRST)
    else:
        assert taken in store.objects
        assert readable(store) == data
    streamer.close()


def test_what_was_given_back_is_sent_from_the_bucket_where_nothing_can_be_copied(
    tmp_path: Path,
) -> None:
    """A store without UploadPartCopy: the chunk is read and sent as the part."""
    now, source = [100.0], Source()
    store = MemoryStore(min_part_bytes=1, copies_parts=False)
    streamer = given_back(tmp_path, source, now, store)
    assert floor_of(streamer) > 0
    streamer.press(pressed=False)
    source.rotate()
    arrive(streamer, now)
    assert store.get(LAYOUT.binlog(LINEAGE, FIRST)) == source.data(FIRST)
    streamer.close()


def test_what_was_given_back_is_read_from_what_another_writer_has_archived(tmp_path: Path) -> None:
    """It has cleared the chunks away by then, and the store keeps no checksum of its object."""
    now, source = [100.0], Source()
    store = MemoryStore(min_part_bytes=1, crc64=False)
    given_back(tmp_path, source, now, store).close()
    with closing(a_streamer(tmp_path, source, now, 4, store)) as streamer:
        assert streamer.tracks[FIRST].floor > 0
        source.rotate()
        fetch_all(streamer)
        for key in [key for key in store.objects if key.startswith(LAYOUT.live)]:
            del store.objects[key]
        store.put(LAYOUT.binlog(LINEAGE, FIRST), source.data(FIRST))
        settle(streamer, now)
        assert LAYOUT.entry(LINEAGE, FIRST) in store.objects
        assert not streamer.files(FIRST)


# Bytes that rot in the spool


class Trusting(MemoryStore):
    """Takes what it gets: it looks at no checksum, and keeps none."""

    def __init__(self) -> None:
        super().__init__(min_part_bytes=1, crc64=False, copies_parts=False)

    def put(
        self,
        key: str,
        body: Body | bytes,
        *,
        crc64: int | None = None,
        if_absent: bool = False,
        archived: bool = False,
    ) -> ObjectInfo:
        return super().put(key, body, if_absent=if_absent, archived=archived)

    def upload_part(
        self,
        key: str,
        upload_id: str,
        number: int,
        body: Body | bytes,
        crc64: int | None = None,
    ) -> PartInfo:
        return super().upload_part(key, upload_id, number, body)


def rot(streamer: Streamer, source: Source, at: int) -> bytes:
    """Another byte in the spool's file; what the file holds then."""
    data = bytearray(source.data(FIRST))
    data[at] ^= 1
    streamer.file(FIRST).write_bytes(data)
    return bytes(data)


@pytest.mark.parametrize("flush_interval", [1.0, 0.0])
@pytest.mark.parametrize("length", [20, 950])
@pytest.mark.parametrize("closed", [True, False])
def test_bytes_that_have_rotted_are_not_sent(
    tmp_path: Path, length: int, flush_interval: float, *, closed: bool
) -> None:
    """A store that checks nothing would take them: chunks, parts, whole binlogs."""
    now, source, store = [100.0], Source(), Trusting()
    streamer = a_streamer(tmp_path, source, now, 4, store, flush_interval)
    source.write(length)
    if closed:
        source.rotate()
    fetch_all(streamer)
    rot(streamer, source, 50)
    if closed or flush_interval or length > 100:
        with pytest.raises(SpoolError, match="changed after it was read"):
            settle(streamer, now)
    for upload in store.uploads.values():
        assert all(part.data in source.data(FIRST) for part in upload.parts.values())
    for key, there in store.objects.items():
        assert there.data in source.data(FIRST) or str(FIRST.next()) in key, key
    streamer.close()


def test_rotten_bytes_are_no_witness_for_an_object_of_the_same(tmp_path: Path) -> None:
    """Their MD5 would agree with its ETag: none is taken of them, and nothing is called ours."""
    now, source, store = [100.0], Source(), Trusting()
    streamer = a_streamer(tmp_path, source, now, 4, store)
    source.write(20)
    source.rotate()
    fetch_all(streamer)
    store.put(LAYOUT.binlog(LINEAGE, FIRST), rot(streamer, source, 50))
    with pytest.raises(SpoolError, match="changed after it was read"):
        settle(streamer, now)
    assert LAYOUT.entry(LINEAGE, FIRST) not in store.objects
    streamer.close()


def test_an_object_shorter_than_its_name_says_is_no_chunk(tmp_path: Path) -> None:
    """A store that cut a body off, or somebody's own: the bytes are put as if it were not there."""
    now, source, store = [100.0], Source(), MemoryStore(min_part_bytes=1)
    source.write(20)
    data = source.data(FIRST)[:100]
    key = LAYOUT.chunk(LINEAGE, FIRST, Chunk(0, 100, crc64nvme(data)))
    store.put(key, data[:10])
    streamer = a_streamer(tmp_path, source, now, 4, store)
    arrive(streamer, now)
    assert readable(store) == source.data(FIRST)
    streamer.close()


def test_flushes_are_rarer_over_a_link_that_cannot_carry_each_byte_twice() -> None:
    """1 MB/s of binlog through 2 MB/s: each byte goes once. When there is room again, twice."""
    pace, now, size = UploadPace(16, 1.0), 100.0, 0
    for _ in range(20):
        now, size = now + 1, size + 1_050_000
        pace.grown(size, now)
    assert not pace.stretched  # nothing is known of the link
    for _ in range(20):
        now, size = now + 1, size + 1_050_000
        pace.sent(5_242_880, 2.6, 1)
        pace.grown(size, now)
    assert pace.flush_interval == 10.0
    for _ in range(40):  # half of that would fit twice, but not for sure
        now, size = now + 1, size + 700_000
        pace.sent(5_242_880, 2.6, 1)
        pace.grown(size, now)
    assert pace.stretched
    for _ in range(40):
        now, size = now + 1, size + 300_000
        pace.grown(size, now)
    assert pace.flush_interval == 1.0


def test_a_longer_interval_that_was_asked_for_stays() -> None:
    """No flush comes sooner than asked for."""
    pace = UploadPace(16, 60.0)
    pace.sent(1 << 20, 1.0, 1)
    for second in range(10):
        pace.grown(second << 30, float(second))
    assert (pace.flush_interval, pace.stretched) == (60.0, False)


def backlog(streamer: Streamer, source: Source) -> None:
    """Three closed binlogs and an open one, each of many parts; and a link that is known."""
    for _ in range(3):
        source.write(950)
        source.rotate()
    source.write(950)
    streamer.uploader.pace.sent(1_000_000, 1.0, 1)


def test_a_backlog_goes_without_chunks(tmp_path: Path) -> None:
    """What the source had finished goes straight into its upload; the open binlog gets chunks."""
    now, source, store = [100.0], Source(), MemoryStore(min_part_bytes=1)
    streamer = a_streamer(tmp_path, source, now, 4, store)
    backlog(streamer, source)
    put: set[str] = set()
    while streamer.fetch(100):
        streamer.pump()
        settle(streamer, now)
        put |= {key.split("/")[-2] for key in store.objects if key.startswith(LAYOUT.live)}
    settle(streamer, now)
    assert put == {str(max(streamer.tracks))}
    for name in sorted(streamer.tracks)[:3]:
        assert store.get(LAYOUT.binlog(LINEAGE, name)) == source.data(name)
    streamer.close()


@pytest.mark.parametrize("why", ["pressed", "unfinishable", "slow", "unlisted"])
def test_a_backlog_goes_in_chunks_where_it_must(tmp_path: Path, why: str) -> None:
    """A full spool, a source that cannot send the rest, a slow link: chunks, durable at once."""
    now, source, store = [100.0], Source(), MemoryStore(min_part_bytes=1)
    streamer = a_streamer(tmp_path, source, now, 4, store)
    backlog(streamer, source)
    if why == "slow":
        streamer.uploader.pace.bytes_per_second = 1.0
    streamer.fetch(700)
    streamer.pump()
    (track,) = streamer.tracks.values()
    if why == "unlisted":
        track.source_size = None
    settle(streamer, now)
    chunked = why in ("slow", "unlisted")
    assert any(key.startswith(LAYOUT.live) for key in store.objects) is chunked
    if why == "pressed":
        streamer.uploader.press(pressed=True)
    elif why == "unfinishable":
        streamer.uploader.abandon(track)
    settle(streamer, now)
    chunks = [key for key in store.objects if key.startswith(LAYOUT.chunks(LINEAGE, track.name))]
    assert max(Chunk.parse(key.rsplit("/", 1)[1]).end for key in chunks) == track.size
    streamer.close()


class Careless(MemoryStore):
    """A store that keeps no checksums, and one byte of each full chunk wrongly."""

    def put(self, key: str, body: Body | bytes, **more: Any) -> ObjectInfo:
        """See Store."""
        if not key.startswith(LAYOUT.live) or isinstance(body, bytes) or body.size < 100:
            return super().put(key, body, **more)
        data = bytearray(body.open().read(body.size))
        data[50] ^= 1
        return super().put(key, bytes(data), **{**more, "crc64": None})


def test_an_etag_proves_nothing_where_the_store_confirms_no_checksum(tmp_path: Path) -> None:
    """A chunk that arrived with other bytes does not become a part: its ETag is of those bytes."""
    now, source, store = [100.0], Source(), Careless(min_part_bytes=1, crc64=False)
    streamer = a_streamer(tmp_path, source, now, 4, store)
    source.write(950)
    fetch_all(streamer)
    settle(streamer, now)
    assert any(key.startswith(LAYOUT.live) for key in store.objects)
    source.rotate()
    fetch_all(streamer)
    settle(streamer, now)
    assert store.get(LAYOUT.binlog(LINEAGE, FIRST)) == source.data(FIRST)
    streamer.close()


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
def test_with_kms_no_copied_part_is_read_back(tmp_path: Path, *, damaged: bool) -> None:
    """The store's checksum of a chunk proves its copy; a chunk with other bytes is not used."""
    now, source, store = [100.0], Source(), Encrypting(min_part_bytes=1)
    streamer = a_streamer(tmp_path, source, now, 4, store)
    source.write(950)
    arrive(streamer, now)
    chunks = [key for key in store.objects if key.startswith(LAYOUT.live)]
    full = [key for key in chunks if Chunk.parse(key.rsplit("/", 1)[1]).size == 100]
    assert len(full) > 5
    if damaged:
        store.put(full[3], b"x" * 100)
    source.rotate()
    arrive(streamer, now)
    assert store.get(LAYOUT.binlog(LINEAGE, FIRST)) == source.data(FIRST)
    assert store.calls["open"] == 1  # the whole object, which has no checksum of its own
    streamer.close()
