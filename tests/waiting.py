"""Waiting for a condition with a deadline: what tests do instead of sleeping."""

from collections.abc import Callable
from threading import Event
from time import monotonic
from typing import TypeVar

T = TypeVar("T")
PATIENCE = 60  # seconds


def wait_until(
    condition: Callable[[], T],
    timeout: float = PATIENCE,
    what: str = "the condition",
    *,
    interval: float = 0.03,
) -> T:
    """Return the first true value of `condition()`; fail, naming `what`, when time is up.

    What the condition raises is not caught: a broken question is no answer. What takes long to be
    asked is asked less often, so that who waits takes no more than half of a processor.

    A deadline below 60 s is refused, with ValueError. It costs nothing where the condition comes
    early, and a shorter one turns red on a busy machine, where nothing is wrong.
    """
    if timeout < PATIENCE:
        raise ValueError(f"a deadline of {timeout} s: a busy machine needs {PATIENCE} s or more")
    deadline = monotonic() + timeout
    pause = Event()
    while True:
        begun = monotonic()
        value = condition()
        if value:
            return value
        asked = monotonic()
        if asked > deadline:
            raise AssertionError(f"not within {timeout} s: {what} (last answer: {value!r})")
        pause.wait(max(interval, min(asked - begun, 1)))
