"""Waiting for a condition with a deadline: what tests do instead of sleeping."""

from collections.abc import Callable
from threading import Event
from time import monotonic
from typing import TypeVar

T = TypeVar("T")


def wait_until(
    condition: Callable[[], T],
    timeout: float = 30,
    what: str = "the condition",
    *,
    interval: float = 0.03,
) -> T:
    """Return the first true value of `condition()`; fail, naming `what`, when time is up.

    What the condition raises is not caught: a broken question is no answer.
    """
    deadline = monotonic() + timeout
    pause = Event()
    while True:
        value = condition()
        if value:
            return value
        if monotonic() > deadline:
            raise AssertionError(f"not within {timeout} s: {what} (last answer: {value!r})")
        pause.wait(interval)
