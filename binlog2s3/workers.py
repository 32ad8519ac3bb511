"""A few threads that each do one blocking task at a time and return its outcome.

The outcomes come back in one queue, so that only the loop's thread has state.

Law: the threads are daemon threads, because a request on a dead network may block for longer than
the process may take to stop. The loop decides how long it waits.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from queue import Empty, SimpleQueue


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a task: its value, or the error that it raised."""

    token: object
    value: object = None
    error: BaseException | None = None


@dataclass(frozen=True, slots=True)
class _Task:
    token: object
    work: Callable[[], object]


class Workers:
    """At most `count` threads; each is started when all others are busy.

    `submit` never blocks; `take` returns outcomes in the order they arrive.
    """

    def __init__(self, count: int) -> None:
        self._tasks: SimpleQueue[_Task | None] = SimpleQueue()
        self._outcomes: SimpleQueue[Outcome | None] = SimpleQueue()
        self.count = count
        self.busy = 0
        self._started = 0

    def submit(self, token: object, work: Callable[[], object]) -> None:
        """Let the next free thread do it."""
        self.busy += 1
        self._tasks.put(_Task(token, work))
        if self._started < min(self.busy, self.count):
            name = f"store-{self._started}"
            threading.Thread(target=self._work, name=name, daemon=True).start()
            self._started += 1

    def take(self, timeout_seconds: float) -> Outcome | None:
        """The next outcome; None after the timeout or a `wake`."""
        try:
            if timeout_seconds > 0:
                outcome = self._outcomes.get(timeout=timeout_seconds)
            else:
                outcome = self._outcomes.get_nowait()
        except Empty:
            return None
        if outcome is not None:
            self.busy -= 1
        return outcome

    def wake(self) -> None:
        """Make a waiting `take` return. A signal handler may call it."""
        self._outcomes.put(None)

    def close(self) -> None:
        """End the threads, after what was submitted; `take` still gives the outcomes."""
        for _ in range(self._started):
            self._tasks.put(None)

    def _work(self) -> None:
        while (task := self._tasks.get()) is not None:
            try:
                outcome = Outcome(task.token, value=task.work())
            except BaseException as error:  # noqa: BLE001 - the loop raises what it does not expect
                outcome = Outcome(task.token, error=error)
            self._outcomes.put(outcome)
