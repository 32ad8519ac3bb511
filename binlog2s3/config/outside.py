"""What commands get from outside of themselves: clocks, patience, and how they reach the store.

No option sets it. Tests give another time and a bucket in memory, so that a command prints the same
everywhere, and shorter waits, so that minutes in production are seconds in a test, with the same
code.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """How soon a streamer reports a problem, and how long it waits before it retries; in seconds.

    From `start_seconds` to `heartbeat_slack_seconds`: how long a transient problem lasts before it
    is critical and /health answers 503. Together with the time between two checks that is well
    below 90.

    - `fresh_seconds`: an older position does not prove that a source is idle.
    - `soon_seconds`: a problem that lasts this long is a warning, and names the state.
    - `first_delay_seconds`: the wait before the next request to the store or the next run of
      mysqlbinlog; it doubles with each failure up to `longest_delay_seconds`.
    - `drain_seconds`: at the end, the time for uploads that are in progress.
    - `farewell_seconds`: at the end, the time for the last heartbeat.
    """

    start_seconds: float = 60.0
    source_seconds: float = 30.0
    stall_seconds: float = 30.0
    store_failing_seconds: float = 30.0
    store_silent_seconds: float = 60.0
    paused_seconds: float = 60.0
    loop_seconds: float = 30.0
    heartbeat_slack_seconds: float = 15.0
    fresh_seconds: float = 6.0
    soon_seconds: float = 5.0
    first_delay_seconds: float = 0.5
    longest_delay_seconds: float = 5.0
    drain_seconds: float = 3.0
    farewell_seconds: float = 2.0


DEFAULT = Timing()


def _now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outside:
    """`now` is UTC; `monotonic` counts seconds; `sleep` waits for so many.

    `session` makes a session of botocore for a profile; None: the SDK's own.
    """

    now: Callable[[], datetime] = _now
    monotonic: Callable[[], float] = time.monotonic
    sleep: Callable[[float], object] = time.sleep
    session: Callable[..., Any] | None = None
    timing: Timing = DEFAULT


OUTSIDE = Outside()
"""The real one."""
