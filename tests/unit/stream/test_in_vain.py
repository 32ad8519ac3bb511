"""How often a body that the store refuses goes over the network: see `job.InVain`."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from binlog2s3.stream.job import InVain

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
