"""The limit of what is sent to the store, in bytes a second; the newest bytes go first.

All requests of a store share one limit.
"""

import threading
import time
from collections.abc import Callable

BLOCK_BYTES = 256 << 10
"""The largest block of a body that is sent at once."""
_LEAST_BLOCK = 16 << 10
_BLOCKS_PER_SECOND = 8
_LONGEST_WAIT = 0.5


class Bandwidth:
    """At most `bytes_per_second` for all bodies together. Thread-safe.

    Each block waits until the blocks before it have had their time. A block of a body that goes
    first passes the blocks of bodies that do not.
    """

    def __init__(
        self, bytes_per_second: int, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._rate = bytes_per_second
        self._clock = clock
        self._free = threading.Condition()
        self._free_at = 0.0
        self._first = 0  # how many that go first are waiting

    @property
    def block(self) -> int:
        """The size of a block that keeps the stream even: an eighth of a second, within limits."""
        return min(BLOCK_BYTES, max(_LEAST_BLOCK, self._rate // _BLOCKS_PER_SECOND))

    def take(self, size: int, *, first: bool, stop: threading.Event) -> None:
        """Wait until `size` bytes may be sent. After `stop` it does not wait any more."""
        with self._free:
            self._first += first
            try:
                while not stop.is_set() and (wait := self._wait(first=first)) > 0:
                    self._free.wait(min(wait, _LONGEST_WAIT))
                self._free_at = max(self._free_at, self._clock()) + size / self._rate
            finally:
                self._first -= first
                self._free.notify_all()

    def _wait(self, *, first: bool) -> float:
        left = self._free_at - self._clock()
        return _LONGEST_WAIT if self._first and not first and left <= 0 else left
