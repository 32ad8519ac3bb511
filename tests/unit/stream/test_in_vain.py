"""How often a body that the store refuses goes over the network: see `job.InVain`."""

import math
from functools import partial
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from binlog2s3.archive.parts import Grid
from binlog2s3.errors import StoreError
from binlog2s3.stream.job import Action, InVain, PutChunk, PutPart, PutsChunk
from tests.streamer import FIRST, World

MIB = 1 << 20
HOUR = 3600.0


def sent(size: int, body: int, first: int, hours: float) -> list[tuple[float, int]]:
    """What goes over the network if each body fails: `first` at once, then one after the other."""
    in_vain, found, now = InVain(), [], 0.0
    for _ in range(first):
        in_vain.add(body, now)
        found.append((now, body))
    while now < hours * HOUR:
        now += max(0.5, in_vain.wait(body, size, now))
        in_vain.add(body, now)
        found.append((now, body))
    return found


@given(st.integers(1, 2000), st.integers(1, 64), st.integers(0, 16))
def test_three_times_the_binlog_in_any_hour(size: int, body: int, first: int) -> None:
    """All parts at once, then one after the other, for hours: never more in any hour."""
    body = min(body, size)
    first = min(first, size // body)
    found = sent(size * MIB, body * MIB, first, 3)
    hour, later = 0, iter([*found, (float("inf"), 0)])
    at, one = next(later)
    for begin, first_of_it in found:
        while at < begin + HOUR - 0.001:
            hour += one
            at, one = next(later)
        assert hour <= 3 * max(size, 16) * MIB
        hour -= first_of_it


def test_it_is_tried_again_within_the_hour() -> None:
    """Quickly at first, for what passes by itself; then some times an hour, not after an hour."""
    at = [moment for moment, _ in sent(20 * MIB, 5 * MIB, 4, 1)]
    assert sum(moment < 10 for moment in at) == 8
    assert all(after - before <= HOUR / 4 for before, after in pairwise(at))


def test_what_was_not_sent_costs_nothing() -> None:
    """A refused connection takes no bytes: nothing waits for it."""
    in_vain = InVain()
    for now in range(100):
        in_vain.add(0, now)
    assert in_vain.wait(5 * MIB, 20 * MIB, 100) == 0
    in_vain.add(60 * MIB, 100)
    assert in_vain.wait(5 * MIB, 20 * MIB, 101) > 0
    in_vain.forget()
    assert in_vain.wait(5 * MIB, 20 * MIB, 101) == 0


def refused(world: World, action: Action) -> None:
    """The store takes a chunk's bytes, and refuses them then."""
    if isinstance(action, PutsChunk):
        error = StoreError("no", transient=True)
        error.sent_bytes = action.brings
        world.store.fail_next("put", "before", error)


@pytest.mark.parametrize(("pressed", "seconds"), [(True, 30), (False, 60)])
def test_all_is_in_the_bucket_soon_after_the_store_is_well(
    world: World, *, pressed: bool, seconds: int
) -> None:
    """Also what was not refused itself, and what comes then: the source may purge it."""
    streamer = world.start(part=5 * MIB)
    for _ in range(13):
        world.source.write(MIB)
    world.work(streamer, rounds=100, before=partial(refused, world))
    (job,) = streamer.uploader.jobs
    assert job.in_vain.wait(3 * MIB, job.track.size, world.now) > 60
    if pressed:
        streamer.press(pressed=True)
    world.settle(streamer, partial(refused, world), rounds=45)
    assert not world.chunks()
    world.settle(streamer, rounds=seconds + 5)
    assert world.readable() == world.source.data(FIRST)
    if pressed:
        streamer.press(pressed=False)
    for _ in range(5):
        world.source.write(MIB)
        world.work(streamer, rounds=5)
        assert world.readable() == world.source.data(FIRST)


def test_a_small_flush_waits_no_longer_than_its_bytes_cost(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """If it is refused for good: an hour carries 16 MiB, and the log says when it goes again."""
    streamer = world.start(part=5 * MIB)
    world.source.write(100)
    error = StoreError("no", transient=False)
    error.sent_bytes = MIB
    for _ in range(32):
        world.store.fail_next("put", "before", error)
    world.work(streamer, rounds=100)
    (job,) = streamer.uploader.jobs
    (failing,) = job.failing.values()
    assert failing.failures == 32
    assert vars(caplog.records[-1])["fields"]["again_in_seconds"] == HOUR / 16
    world.settle(streamer, rounds=int(failing.at + HOUR / 16 - world.now) + 2)
    assert world.readable() == world.source.data(FIRST)


def test_the_log_says_when_a_refused_body_goes_again(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """What `InVain` asks for may be longer than what the failures do."""
    streamer = world.start(part=5 * MIB)
    world.source.write(100)
    error = StoreError("no", transient=False)
    error.sent_bytes = 15 * MIB
    for _ in range(3):
        world.store.fail_next("put", "before", error)
    world.work(streamer, rounds=100)
    assert vars(caplog.records[-1])["fields"]["again_in_seconds"] == HOUR * 15 / 16


PART = Grid(8 * MIB).at(0)


@pytest.mark.parametrize(
    ("action", "pressed", "oldest", "transient", "seconds"),
    [
        (PutPart(PART), True, False, False, 30.0),
        (PutPart(PART), False, True, True, math.inf),
        (PutChunk(PART), True, True, True, 30.0),
        (PutChunk(PART), False, True, True, 60.0),
        (PutChunk(PART), False, True, None, 60.0),
        (PutChunk(PART), False, True, False, math.inf),
        (PutChunk(PART), False, False, True, math.inf),
    ],
)
def test_how_long_bytes_wait_at_most(
    world: World,
    action: Action,
    *,
    pressed: bool,
    oldest: bool,
    transient: bool | None,
    seconds: float,
) -> None:
    """What makes bytes durable, whose source may purge; others as long as they cost too much."""
    streamer = world.start()
    world.source.write(450)
    world.work(streamer)
    (job,), now = streamer.uploader.jobs, world.now
    job.in_vain.add(200 * MIB, now)
    if transient is not None:
        job.failed(action, StoreError("no", transient=transient), now).not_before = math.inf
    assert job.urgent_seconds(action, pressed=pressed, oldest=oldest) == seconds
    assert not job.may_be_tried(action, now + 29.9, {}, seconds)
    assert not job.may_be_tried(action, now + min(seconds, 900) - 0.1, {}, seconds)
    assert job.may_be_tried(action, now + min(seconds, 900), {}, seconds) == (seconds < 900)
