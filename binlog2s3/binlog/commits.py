"""When the transactions of a growing binlog were committed, as far as a lag can be told from it.

Place in the flow: a track notes what it has read, slice by slice; the uploader says how much of it
is durable. Pure.

Law: bounded, and never younger than the truth: of a slice the first commit counts until its last
transaction is durable.
"""

_MOST_GROUPS = 1000


class Commits:
    """Groups of transactions that came together, oldest first. Times in microseconds, UTC.

    `newest_us` is the commit time of the last one that is durable, None before the first.
    """

    def __init__(self) -> None:
        self._groups: list[tuple[int, int, int]] = []  # first and last commit, end
        self.newest_us: int | None = None

    @property
    def oldest_us(self) -> int | None:
        """When the oldest that is not durable was committed, or earlier; None if there is none."""
        return self._groups[0][0] if self._groups else None

    def note(self, first_us: int, last_us: int, end: int) -> None:
        """Transactions came after all others: their first and last commit, and where they end."""
        self._groups.append((first_us, last_us, end))
        if len(self._groups) > _MOST_GROUPS:
            pairs = zip(self._groups[::2], self._groups[1::2], strict=False)
            odd = self._groups[-1:] if len(self._groups) % 2 else []
            self._groups = [(one[0], other[1], other[2]) for one, other in pairs] + odd

    def passed(self, offset: int) -> None:
        """The binlog's first `offset` bytes are durable."""
        count = 0
        for _, last_us, end in self._groups:
            if end > offset:
                break
            self.newest_us = last_us
            count += 1
        del self._groups[:count]
