"""Questions that take long, and how long to wait before one is asked again.

Every wait ends at once when `stop` is set.
"""

import random
import threading
import time
from collections.abc import Callable
from itertools import count
from typing import TypeVar

from binlog2s3.config.timing import DEFAULT, Timing
from binlog2s3.errors import SourceError, StoreError
from binlog2s3.log import Log
from binlog2s3.workers import asked

T = TypeVar("T")
_log = Log("retry")
_MOST_DOUBLINGS = 64


def doubled(first: float, times: int, longest: float) -> float:
    """`first`, doubled so many times, however many they are, but at most `longest`."""
    return min(longest, first * 2.0 ** min(times, _MOST_DOUBLINGS))


def delay(failures: int, timing: Timing) -> float:
    """Seconds to wait after this many failures in a row, with jitter."""
    most = doubled(timing.first_delay_seconds, failures, timing.longest_delay_seconds)
    return random.uniform(most / 2, most)  # noqa: S311 - no secret


def may_be_mended(error: BaseException) -> bool:
    """Whether the source may still answer later. It never will if the server itself is refused.

    A wrong password is waited for, too: the operator may correct it, and the bucket may hold all
    that is left of the source.
    """
    return isinstance(error, SourceError) and not error.refused


def wait_for(
    ask: Callable[[], T],
    stop: threading.Event,
    tell: Callable[[BaseException], object] = lambda _: None,
    passes: Callable[[BaseException], bool] = may_be_mended,
    timing: Timing = DEFAULT,
) -> T:
    """Ask until there is an answer. `tell` is called with each error that `passes`.

    Raises an error that does not pass, and the last error when `stop` is set.
    """
    began, for_store, for_source = time.monotonic(), False, False
    for failures in count(1):
        try:
            answer = ask()
        except Exception as error:
            if not passes(error) or stop.is_set():
                raise
            tell(error)
            hint = getattr(error, "hint", "")
            if isinstance(error, StoreError):
                for_store = True
                _log.recurring("waiting for the store", error=error, hint=hint)
            else:
                for_source = True
                _log.recurring("waiting for the source", error=error, hint=hint)
            stop.wait(delay(failures, timing))
        else:
            break
    after = round(time.monotonic() - began, 1)
    if for_store:
        _log.over("the store answers again", "waiting for the store", after_seconds=after)
    if for_source:
        _log.over("the server answers again", "waiting for the source", after_seconds=after)
    return answer


def unless(
    given_up: Callable[[], bool],
    ask: Callable[[], T],
    *,
    name: str,
    meanwhile: Callable[[], object],
) -> T | None:
    """What `ask` returns, or None once `given_up` says so.

    `ask` runs in a thread of this name, and may still have its effect after that. `meanwhile` is
    called again and again until there is an answer: it is what waits. Raises what `ask` raises, and
    StoreError if the system starts no thread.
    """
    answer = asked(ask, name)
    while not answer.done():
        if given_up():
            return None
        meanwhile()
    return answer.result()
