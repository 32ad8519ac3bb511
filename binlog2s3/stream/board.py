"""Keeps the streamer's current `Status`: a thread of its own makes a new one each second.

So a main loop that hangs does not stop it. While nobody asks, it is made every two seconds.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace

from binlog2s3.log import Log
from binlog2s3.status.model import Rates, Status, Totals
from binlog2s3.stream.waiting import Periodic

_log = Log("board")
_LOOK_SECONDS, _UNASKED_LOOK_SECONDS = 1.0, 2.0
_RATE_SECONDS = 15.0


class Board:
    """The latest Status, which its thread makes by calling `look`."""

    def __init__(
        self, look: Callable[[], Status], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._look = look
        self._clock = clock
        self._told: list[Callable[[Status], object]] = []
        self._samples: deque[tuple[float, Totals]] = deque()
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._current = look()
        self._asked = True

    def start(self) -> None:
        Periodic("board", self._step, self._ended).start(_LOOK_SECONDS)

    def close(self) -> None:
        """Stop the thread."""
        self._ended.set()

    def tell(self, told: Callable[[Status], object]) -> None:
        """Call this with each Status, in the board's thread."""
        self._told.append(told)

    def watch(self, look: Callable[[], Status]) -> None:
        """Call another `look` from now on."""
        with self._lock:
            self._look = look
            self._samples.clear()
        self.refresh()

    def current(self) -> Status:
        """The latest Status; about two seconds old at most, unless something hangs."""
        self._asked = True
        return self._current

    def refresh(self) -> None:
        """Make a Status now."""
        with self._lock:
            status = self._look()
            self._current = replace(status, rates=self._rates(status.totals))

    def _rates(self, totals: Totals | None) -> Rates | None:
        if totals is None:
            return None
        now, samples = self._clock(), self._samples
        samples.append((now, totals))
        while len(samples) > 2 and samples[1][0] <= now - _RATE_SECONDS:
            samples.popleft()
        then, before = samples[0]
        window = now - then
        if window <= 0:
            return None

        def rate(name: str) -> float:
            gained: int = getattr(totals, name) - getattr(before, name)
            return round(max(0, gained) / window, 3)

        return Rates(
            window_seconds=round(window, 3),
            read_bytes=rate("read_bytes"),
            durable_bytes=rate("durable_bytes"),
            transactions=rate("transactions"),
        )

    def _step(self) -> float:
        try:
            self.refresh()
            for told in self._told:
                told(self._current)
        except Exception as error:  # noqa: BLE001 - the stream continues; /health shows the age
            _log.error("no status could be made", error)
        asked, self._asked = self._asked, False
        return _LOOK_SECONDS if asked else _UNASKED_LOOK_SECONDS
