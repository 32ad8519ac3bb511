"""Shows the progress of a recovery: a bar on a terminal, a line every 10 s elsewhere.

It goes to standard error and does not slow the work down: reports that come too often are not
shown.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TextIO

from binlog2s3.formatting import duration_text, moment_text, size_text
from binlog2s3.progress import LINE_SECONDS, ProgressDisplay
from binlog2s3.recover.model import OnProgress, ProgressReport

_RATE_SECONDS = 20.0
_LEAST_SECONDS = 2.0
_STEADY_SECONDS = 10.0
"""From a shorter time no rest is estimated: a target takes seconds to begin."""
_STEADY = 2.0
"""By which factor the speed may change within that time."""


@dataclass(slots=True)
class Throughput:
    """The speed over the last seconds, by the clock that it is given."""

    clock: Callable[[], float]
    seen: list[tuple[float, int, int]] = field(default_factory=list)

    def take(self, progress: ProgressReport) -> None:
        """Take a report of what is done now."""
        now = self.clock()
        self.seen.append((now, progress.size, progress.transactions))
        while len(self.seen) > 2 and now - self.seen[1][0] >= _RATE_SECONDS:
            self.seen.pop(0)

    def rates(self) -> tuple[float, float] | None:
        """Bytes and transactions a second; None while there are too few reports."""
        if not self.seen or self.seen[-1][0] - self.seen[0][0] < _LEAST_SECONDS:
            return None
        return _rates(self.seen[0], self.seen[-1])

    def steady_rates(self) -> tuple[float, float]:
        """The same if the first half of the time tells of the second one; 0.0 of what changes."""
        if not self.seen or self.seen[-1][0] - self.seen[0][0] < _STEADY_SECONDS:
            return 0.0, 0.0
        first, last = self.seen[0], self.seen[-1]
        middle = min(self.seen, key=lambda report: abs(report[0] - (first[0] + last[0]) / 2))
        if middle in (first, last):
            return 0.0, 0.0
        size, count = (
            whole if max(before, after) <= _STEADY * min(before, after) else 0.0
            for whole, before, after in zip(
                _rates(first, last), _rates(first, middle), _rates(middle, last), strict=True
            )
        )
        return size, count


def _rates(first: tuple[float, int, int], last: tuple[float, int, int]) -> tuple[float, float]:
    seconds = last[0] - first[0]
    return (last[1] - first[1]) / seconds, (last[2] - first[2]) / seconds


def words_of(progress: ProgressReport, pace: Throughput) -> list[str]:
    """Bytes, transactions, the commit time that was reached, the speed, and the time left."""
    of_transactions = f" of {progress.of_transactions:,}" if progress.of_transactions else ""
    words = [
        f"{size_text(progress.size)} of {size_text(progress.of_size)}",
        f"{progress.transactions:,}{of_transactions} transactions",
    ]
    if progress.commit_us is not None:
        words.append(f"at {moment_text(progress.commit_us)}")
    rates = pace.rates()
    if rates is not None:
        words.append(f"{size_text(rates[0])}/s, {rates[1]:,.0f} transactions/s")
        if left := _left_seconds(progress, pace.steady_rates()):
            words.append(f"{duration_text(left, up=True)} left")
    return words


def _left_seconds(progress: ProgressReport, rates: tuple[float, float]) -> float | None:
    """The time that is left, by bytes or by transactions, whichever takes longer."""
    left = (progress.of_size - progress.size, progress.of_transactions - progress.transactions)
    times = [rest / rate for rest, rate in zip(left, rates, strict=True) if rate > 0 and rest > 0]
    return max(times, default=None)


@contextmanager
def showing(
    out: TextIO,
    *,
    clock: Callable[[], float] = time.monotonic,
    line_seconds: float = LINE_SECONDS,
) -> Iterator[OnProgress]:
    """A callback that shows reports on `out`: a bar on a terminal, else a line every 10 s."""
    pace = Throughput(clock)
    with ProgressDisplay(out, clock=clock, line_seconds=line_seconds, at_once=True) as display:

        def show(progress: ProgressReport) -> None:
            pace.take(progress)
            display.show(
                lambda: ", ".join(words_of(progress, pace)), progress.size, progress.of_size
            )

        yield show
