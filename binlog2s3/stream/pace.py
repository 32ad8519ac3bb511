"""What the link to the store carries: how many requests at a time, how often a flush. No clock."""

_WINDOW_SECONDS = 2.0
_WEIGHT = 0.3
_TELLING = 512 << 10
_LONGEST_FLUSH = 10.0
_PARTS_SECONDS = 5.0
AT_A_TIME = 15
"""Large bodies, or copies, on their way at a time if the link is not known to carry more."""
_TWICE, _BACK = 2.1, 3.0
"""So many times the growth must fit: below the first flushes get rarer, from the second on not."""


class UploadPace:
    """What the link carries, and what follows from it for the uploads.

    - `most`: so many full chunks are sent at a time. Seven that share a slow link arrive together,
      and until then none of them is durable.
    - `parts`: so many parts are sent at a time. Far away a connection carries little, and more of
      them carry more; over a slow link each one would only take longer.
    - `bytes_per_second`: what all uploads together reached lately; 0 if that is not known yet.
    - `flush_interval`: seconds between two small chunks. A byte that is sent in a small chunk is
      sent again in the full one. If the link cannot carry both, the interval is 10 s, or what was
      asked for if that is longer.
    """

    def __init__(self, workers: int, flush_interval: float) -> None:
        self._greatest = max(1, workers - 1)
        self._least = min(2, self._greatest)
        self._asked_for = flush_interval
        self._growth: float | None = None
        self._measured: tuple[float, int] | None = None
        self.most = min(AT_A_TIME, self._greatest)
        self.bytes_per_second = 0.0
        self.flush_interval = flush_interval

    @property
    def stretched(self) -> bool:
        """Whether the flush interval is longer than what was asked for."""
        return self.flush_interval > self._asked_for

    def carries(self, size: int, seconds: float) -> bool:
        """Whether the link carries so many bytes in this time; False if that is not known yet."""
        return size <= self.bytes_per_second * seconds

    def parts(self, length: int) -> int:
        """So many parts of this many bytes at a time: what the link carries in five seconds."""
        return max(AT_A_TIME, int(self.bytes_per_second * _PARTS_SECONDS / length))

    def sent(self, size: int, seconds: float, at_a_time: int) -> None:
        """Learn from bytes that arrived while so many full chunks and parts were on their way.

        Small bodies tell nothing: they take as long as the answer.
        """
        if size < _TELLING:
            return
        reached = size * at_a_time / max(seconds, 0.001)
        known = self.bytes_per_second
        self.bytes_per_second = known + _WEIGHT * (reached - known) if known else reached

    def took(self, seconds: float) -> None:
        """Learn from a full chunk that has arrived: more or fewer at a time from now on."""
        soon = 2 * self._asked_for
        if seconds > soon:
            self.most = max(self._least, self.most - 1)
        elif seconds < soon / 2:
            self.most = min(self._greatest, self.most + 1)

    def grown(self, size: int, now: float) -> None:
        """Learn how fast the binlogs grow. `size`: of all that was read so far."""
        if self._measured is None:
            self._measured = (now, size)
        since, before = self._measured
        if now - since < _WINDOW_SECONDS:
            return
        rate, known = max(0, size - before) / (now - since), self._growth
        self._measured = (now, size)
        self._growth = rate if known is None else known + _WEIGHT * (rate - known)
        needed = self._growth * (_BACK if self.stretched else _TWICE)
        slow = 0 < self.bytes_per_second < needed
        self.flush_interval = max(self._asked_for, _LONGEST_FLUSH if slow else 0.0)
