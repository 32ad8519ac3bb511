"""Chunks as values: their names, what they make together, which are not needed, what comes next."""

from math import log

import pytest

from binlog2s3.archive.chunks import Chunk, Chunks, Flushes, join

LEVELS = 4


def chunk(begin: int, end: int, crc64: int = 0) -> Chunk:
    return Chunk(begin, end, crc64)


def chunks(*bounds: tuple[int, int]) -> Chunks:
    return Chunks(frozenset(chunk(begin, end) for begin, end in bounds))


def test_names() -> None:
    """16 digits each, so that they sort as their offsets do; and back."""
    name = "0000000005242880-0000000005243310-ae8b14860a799888"
    assert str(chunk(5242880, 5243310, 0xAE8B14860A799888)) == name
    assert Chunk.parse(name) == chunk(5242880, 5243310, 0xAE8B14860A799888)
    assert chunk(3, 8).size == 5


@pytest.mark.parametrize(
    "name",
    [
        "",
        "0000000000000000-0000000000000001",
        "0-1-ae8b14860a799888",
        "0000000000000000-0000000000000001-AE8B14860A799888",
        "0000000000000000-0000000000000001-ae8b14860a79988",
        "0000000000000000-0000000000000001-ae8b14860a799888.part",
        " 0000000000000000-0000000000000001-ae8b14860a799888",
        "0000000000000000-0000000000000001-ae8b14860a799888\n",
        "0000000000000001-0000000000000001-ae8b14860a799888",
        "0000000000000002-0000000000000001-ae8b14860a799888",
        "000000000000000\u0660-0000000000000001-ae8b14860a799888",
    ],
)
def test_what_is_no_name(name: str) -> None:
    """Another form, nothing inside, or the end before the beginning."""
    with pytest.raises(ValueError, match="not the name of a chunk"):
        Chunk.parse(name)


def test_join() -> None:
    """From 0 on, of those that begin at or before what one has, the one with the greatest end."""
    first, inner, next_, last = chunk(0, 5), chunk(2, 4), chunk(3, 9), chunk(9, 12)
    assert join([last, inner, next_, first]) == [first, next_, last]
    assert join([first, last]) == [first]
    assert join([next_]) == []
    assert join([]) == []


def test_what_is_known_of_chunks() -> None:
    """Frozen: with and without some are other values."""
    some = chunks((0, 5), (3, 9))
    assert some.end == 9
    assert some.plus([chunk(9, 11)]).end == 11
    assert some.minus([chunk(0, 5)]).end == 0
    assert some.end == 9
    assert some
    assert not Chunks()
    assert set(some) == some.all
    assert some.exact(3, 9) == chunk(3, 9)
    assert some.exact(3, 5) is None
    assert some.cover(0, 9, 0)
    assert some.cover(4, 9, 6)
    assert not some.cover(2, 9, 6)
    assert not some.cover(2, 10, 0)


def test_of_equal_chunks_one_stays() -> None:
    """Which one does not depend on what else is known: two writers agree."""
    pair = Chunks(frozenset({chunk(0, 5, 1), chunk(0, 5, 2)}))
    assert pair.superfluous == {chunk(0, 5, 1)}


def test_chunks_that_only_together_hold_another() -> None:
    """Longer ones do, shorter ones do not: those may lie in the longer one themselves."""
    assert chunks((0, 6), (5, 12), (4, 9)).superfluous == {chunk(4, 9)}
    assert chunks((0, 4), (4, 8), (1, 7)).superfluous == frozenset()


def test_chunks_that_touch_hold_what_lies_across() -> None:
    """Whichever of the two is looked at first."""
    assert chunks((0, 4), (4, 8)).cover(2, 6, 0)
    assert chunks((0, 8), (8, 14), (5, 10)).superfluous == {chunk(5, 10)}
    assert chunks((0, 6), (6, 14), (4, 9)).superfluous == {chunk(4, 9)}


def test_flushes_of_a_day() -> None:
    """70,000 flushes leave at most 15 chunks a level, contiguous, and send each byte 5 times.

    The 16^4th has all put as one.
    """
    base, step, count = 1_000, 7, 70_000
    flushes, there, sent = Flushes.start(base), Chunks(), 0
    for number in range(1, count + 1):
        end = base + number * step
        made = [chunk(flushes.end, end)]
        assert made[0].size == step
        flushes = flushes.flushed(end)
        while (merge := flushes.merge) is not None:
            made.append(chunk(*merge))
            flushes = flushes.merged()
        if number == 16**LEVELS:
            assert made[-1] == chunk(base, end)
        assert [one.end for one in made] == [end] * len(made)
        sent += sum(one.size for one in made)
        there = there.plus(made)
        if number % 16 not in (0, 15):  # most and fewest are there at these
            continue
        there = there.minus(there.superfluous)
        sizes = [one.size // step for one in there]
        for level in range(LEVELS):
            assert sum(16**level <= size < 16 ** (level + 1) for size in sizes) <= 15
        if number < 16**LEVELS:
            assert len(there.all) <= 15 * LEVELS
        assert _contiguous(there, base, end)
    assert sent <= step * count * (1 + log(count, 16))


def test_merging_may_come_late() -> None:
    """Flushes go on beside it; the range is that of the first sixteen all the while."""
    flushes = Flushes.start(0)
    for end in range(1, 20):
        flushes = flushes.flushed(end)
        assert flushes.merge == ((0, 16) if end >= 16 else None)
    flushes = flushes.merged()
    assert flushes == Flushes(0, 19, ((16, 17, 18), (0,), (), ()))
    assert flushes.merge is None
    assert flushes.merged() == flushes


def _contiguous(there: Chunks, base: int, end: int) -> bool:
    """Whether they lie side by side from `base` to `end`: no byte missing, none twice."""
    at = base
    for one in sorted(there):
        if one.begin != at:
            return False
        at = one.end
    return at == end


def test_flushes_begin_again_after_the_one_that_covers_all() -> None:
    """The next ones stand beside it; the next one that covers all begins at the base again."""
    flushes = Flushes.start(500)
    for number in range(2 * 16**LEVELS):
        flushes = flushes.flushed(501 + number)
        while (merge := flushes.merge) is not None:
            assert merge[1] == flushes.end
            flushes = flushes.merged()
        if (number + 1) % 16**LEVELS == 0:
            assert flushes == Flushes(500, 501 + number)


def test_the_first_flush_covers_all_since_the_base() -> None:
    """Whatever was flushed before the start: its chunks become superfluous."""
    assert Flushes.start(500).end == 500
    assert Flushes.start(500).flushed(900) == Flushes(500, 900, ((500,), (), (), ()))
