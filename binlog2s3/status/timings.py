"""What only a process itself knows: when it started, and how long its requests and commits took.

Histograms as those of Prometheus: how many values are at most as great as each bound. Any thread
may add to them and read them.
"""

import threading
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import accumulate

DURABLE_BOUNDS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 15, 30, 60, 120, 300, 900, 3600)
REQUEST_BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
"""Seconds."""


@dataclass(frozen=True, slots=True)
class Counted:
    """How many values are at most each bound, the last one without any; and the values' sum."""

    labels: tuple[str, ...]
    buckets: tuple[tuple[str, int], ...]
    total: float


class Histogram:
    """Values by their labels.

    >>> one = Histogram((0.5, 1))
    >>> one.add(1.0, "GET")
    >>> one.add(7.0, "GET")
    >>> one.read()
    [Counted(labels=('GET',), buckets=(('0.5', 0), ('1.0', 1), ('+Inf', 2)), total=8.0)]
    """

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._lock = threading.Lock()
        self._counts: dict[tuple[str, ...], tuple[list[int], float]] = {}

    def add(self, value: float, *labels: str) -> None:
        """Count a value."""
        with self._lock:
            empty = ([0] * (len(self._bounds) + 1), 0.0)
            counts, total = self._counts.get(labels, empty)
            counts[bisect_left(self._bounds, value)] += 1
            self._counts[labels] = (counts, total + value)

    def read(self) -> list[Counted]:
        """What was counted so far, in the order of the labels."""
        names = [*(str(float(bound)) for bound in self._bounds), "+Inf"]
        with self._lock:
            return [
                Counted(labels, tuple(zip(names, accumulate(counts), strict=True)), total)
                for labels, (counts, total) in sorted(self._counts.items())
            ]


@dataclass(frozen=True, slots=True)
class Timings:
    """`durable`: seconds from a commit until it is in the bucket. `requests`: seconds of each."""

    started_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    durable: Histogram = field(default_factory=lambda: Histogram(DURABLE_BOUNDS))
    requests: Histogram = field(default_factory=lambda: Histogram(REQUEST_BOUNDS))

    def requested(self, operation: str, code: str, seconds: float) -> None:
        """Count a request to the store."""
        self.requests.add(seconds, operation, code)
