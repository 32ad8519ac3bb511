"""What goes first: bytes that are not durable before copies, and of those a few at a time."""

from pathlib import Path

import pytest

from binlog2s3.archive import Action, CopyPart, Flush, PutChunk
from binlog2s3.uploader import Pace
from tests.memory_store import MemoryStore
from tests.streamer import FIRST, Source, Streamer


def flying(streamer: Streamer, kind: type[Action]) -> int:
    jobs = streamer.uploader._jobs.values()
    return sum(isinstance(action, kind) for job in jobs for action in job.flying)


def a_streamer(directory: Path, source: Source, now: list[float], workers: int) -> Streamer:
    return Streamer(
        store=MemoryStore(min_part_bytes=1),
        source=source,
        directory=directory,
        clock=lambda: now[0],
        part=100,
        workers=workers,
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


@pytest.mark.parametrize("workers", [1, 2, 4, 8])
def test_what_is_not_durable_goes_before_copies(tmp_path: Path, workers: int) -> None:
    """A large binlog is closed: its many copies leave room for the next one's chunks."""
    now, source = [100.0], Source()
    streamer = a_streamer(tmp_path, source, now, workers)
    source.write(4000)
    fetch_all(streamer)
    settle(streamer, now)
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


def test_a_worker_is_left_to_the_next_flush(tmp_path: Path) -> None:
    """However much waits, small chunks do not wait behind it."""
    now, source = [100.0], Source()
    streamer = a_streamer(tmp_path, source, now, 4)
    source.write(50)
    fetch_all(streamer)
    settle(streamer, now)
    source.write(5000)
    fetch_all(streamer)
    for _ in range(5):
        now[0] += 1
        streamer.uploader.step()
        assert streamer.workers.busy - flying(streamer, Flush) == 3
    streamer.close()


def test_the_pace_of_full_chunks() -> None:
    """Slow ones fly few at a time, quick ones as many as there are workers, but for one."""
    pace = Pace(8, 1.0)
    assert pace.most == 7
    for _ in range(20):
        pace.took(2.6)
    assert pace.most == 2
    pace.took(1.5)
    assert pace.most == 2
    for _ in range(20):
        pace.took(0.2)
    assert pace.most == 7
    assert Pace(1, 1.0).most == 1
    alone = Pace(1, 1.0)
    alone.took(60)
    assert alone.most == 1
