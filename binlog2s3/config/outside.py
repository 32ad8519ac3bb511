"""What commands get from outside of themselves: clocks, and how they reach the store.

No option sets it. Tests give another time and a bucket in memory, so that a command prints the same
everywhere.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from binlog2s3.config.timing import DEFAULT, Timing


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
