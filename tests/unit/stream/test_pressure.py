"""When reading waits for room in the spool, and what makes room."""

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from binlog2s3.binlog.names import BinlogName
from binlog2s3.errors import SpoolError
from binlog2s3.stream.pressure import Pressure
from binlog2s3.stream.spool import Room
from binlog2s3.stream.tail import Overlap

MIB = 1 << 20


class Disk:
    """A spool that takes `used` bytes and has `free` ones left; None if it cannot be measured."""

    def __init__(self, used: int | None = 0, free: int = 100 * MIB) -> None:
        self.used: int | None = used
        self.free = free

    def room(self) -> Room:
        if self.used is None:
            raise SpoolError("gone")
        return Room(used=self.used, free=self.free, max_bytes=10 * MIB, min_free=2 * MIB)


class Presses:
    """`Tracking` and its uploads, which are pressed or not."""

    def __init__(self) -> None:
        self.pressed: list[bool] = []
        self.done = False
        self.last = None

    def press(self, *, pressed: bool) -> None:
        self.pressed.append(pressed)


class Child:
    """A mysqlbinlog that can be made to stand still."""

    def __init__(self) -> None:
        self.held: list[bool] = []

    def hold(self, *, held: bool) -> None:
        self.held.append(held)


def tailer(size: int = 0, position: int = 0) -> Any:
    """It has read up to `position`; whole events end at `size`."""
    return SimpleNamespace(
        current=SimpleNamespace(size=size, scanner=SimpleNamespace(position=position))
    )


def make(disk: Disk) -> tuple[Pressure, Presses]:
    presses = Presses()
    return Pressure(disk, presses, presses), presses  # type: ignore[arg-type]


def stops(pressure: Pressure, child: Child, reads: int = 0, **tail: int) -> tuple[bool, int]:
    """What it says, and how often it had something read."""
    left, took = [None] * reads, 0

    def read() -> bool:
        nonlocal took
        took += 1
        return bool(left) and left.pop() is None

    return pressure.stops(child, tailer(**tail), 0, read), took  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("disk", "reads", "says", "held"),
    [
        (Disk(used=10 * MIB), 0, (False, 0), []),  # below the limits nothing happens
        (Disk(used=11 * MIB), 2, (True, 3), [True, False]),
        (Disk(used=11 * MIB), 1000, (True, 11 // 4 + 1), [True, False]),  # no more than it holds
        # on a full disk: what does not count for the limit takes room all the same
        (Disk(used=MIB, free=MIB), 9, (True, 0), []),
    ],
)
def test_above_the_limit_what_is_there_is_read_first(
    disk: Disk, reads: int, says: tuple[bool, int], held: list[bool]
) -> None:
    """While mysqlbinlog stands still, and it goes on afterwards: it ends by itself or is ended."""
    pressure, presses = make(disk)
    child = Child()
    assert stops(pressure, child, reads=reads) == says
    assert pressure.paused is says[0]
    assert (child.held, presses.pressed) == (held, [])


def test_an_event_that_is_not_whole_does_not_count() -> None:
    """Nobody can bring a part of it in: it passes, however large it is."""
    child = Child()
    for used, says in ((16 * MIB, (False, 0)), (16 * MIB + 1, (True, 1))):
        pressure, _ = make(Disk(used=used))
        assert stops(pressure, child, size=MIB, position=7 * MIB) == says
        assert pressure.room is not None
        assert pressure.room.used == used, "for the status it does"
    assert child.held == [True, False]


def test_a_spool_that_cannot_be_measured_is_shown_as_it_was() -> None:
    """And before it ever was, not at all. A run learns of the error, the status does not."""
    for before, shown in ((None, None), (9, 9)):
        disk = Disk(used=before)
        pressure, _ = make(disk)
        pressure.look()
        disk.used, pressure._look_at = None, 0.0
        pressure.look()
        assert (pressure.room and pressure.room.used) == shown
        pressure._look_at = 0.0
        with pytest.raises(SpoolError):
            stops(pressure, Child())


def test_with_room_there_is_nothing_to_relieve() -> None:
    """Uploads are not pressed."""
    pressure, presses = make(Disk(used=9 * MIB))
    pressure.relieve(lambda _: pytest.fail("nothing to wait for"), threading.Event())
    assert presses.pressed == []


def test_it_waits_until_there_is_more_room_than_at_the_limit() -> None:
    """And uploads are pressed meanwhile."""
    disk = Disk(used=11 * MIB)
    pressure, presses = make(disk)
    seen: list[tuple[int, bool]] = []

    def work(_: float) -> None:
        disk.used -= MIB
        seen.append((disk.used // MIB, pressure.paused))

    pressure.relieve(work, threading.Event())
    assert seen == [(10, True), (9, True), (8, True), (7, True)]
    assert presses.pressed == [True] * 4 + [False]
    assert not pressure.paused


def test_what_cannot_be_freed_does_not_count() -> None:
    """All is in the bucket and the limit is still exceeded, by one large event: it goes on."""
    disk = Disk(used=30 * MIB)
    pressure, presses = make(disk)
    worked = 0

    def work(_: float) -> None:
        nonlocal worked
        worked += 1
        presses.done = worked > 3

    pressure.relieve(work, threading.Event())
    assert 3 < worked < 12
    assert not pressure.paused
    assert stops(pressure, Child()) == (False, 0)
    disk.used += 11 * MIB
    pressure, _ = make(disk)
    assert stops(pressure, Child()) == (True, 1)


def test_a_full_disk_is_waited_for_however_long() -> None:
    """Whatever fills it, something else may empty it: mysqlbinlog is not started before."""
    disk = Disk(used=MIB, free=MIB)
    pressure, presses = make(disk)
    presses.done = True
    worked = 0

    def work(_: float) -> None:
        nonlocal worked
        worked += 1
        disk.free = 50 * MIB if worked == 40 else MIB

    pressure.relieve(work, threading.Event())
    assert worked == 40


def test_a_stop_ends_the_waiting() -> None:
    """Nothing is resumed then."""
    pressure, presses = make(Disk(used=11 * MIB))
    stop = threading.Event()
    pressure.relieve(lambda _: stop.set(), stop)
    assert presses.pressed == [True, False]


@pytest.mark.parametrize(("size", "free", "fits"), [(50, 52, True), (50, 51, False), (3, 0, True)])
def test_what_comes_again_has_to_fit_on_the_disk(size: int, free: int, *, fits: bool) -> None:
    """Past 4 GiB that may be gigabytes; a run that ends before it has shown nothing is no use."""
    pressure, _ = make(Disk(free=free * MIB))
    begin = 4096 * MIB
    overlap = Overlap(binlog=BinlogName("b", 1), begin=begin, end=begin + size * MIB, crc64=0)
    pressure.refuse(None)
    if fits:
        pressure.refuse(overlap)
        return
    with pytest.raises(SpoolError, match=f"lacks {MIB}$") as raised:
        pressure.refuse(overlap)
    assert raised.value.transient
    assert "4 GiB" in raised.value.hint
