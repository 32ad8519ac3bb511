"""A few threads that each do one blocking task at a time and return its outcome.

The outcomes come back in one queue, so that only the loop's thread has state. A batch has a queue
of its own.

Law: the threads are daemon threads, because a request on a dead network may block for longer than
the process may take to stop. The loop decides how long it waits. Nobody gets the outcome of what
another one has asked for.
"""

import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from binlog2s3.errors import StoreError

Advance = Callable[[int, int], None]
"""Called as work is done: how much is, of how much."""
T = TypeVar("T")
U = TypeVar("U")


def unseen(_done: int, _total: int) -> None:
    """The `Advance` of a work that nobody looks at."""


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
    outcomes: "SimpleQueue[Outcome | None] | None"


class Workers:
    """At most `count` threads; each is started when all others are busy.

    `submit` never blocks; `take` returns outcomes in the order they arrive. They are for one loop;
    any thread may call `start` and `batch`. If the system starts no more threads, those that there
    are do the work; if there are none, that is a transient StoreError.
    """

    def __init__(self, count: int, name: str = "store") -> None:
        self._tasks: SimpleQueue[_Task | None] = SimpleQueue()
        self._outcomes: SimpleQueue[Outcome | None] = SimpleQueue()
        self.count = count
        self._name = name
        self.busy = 0
        """How many outcomes of `submit` were not taken yet."""
        self._lock = threading.Lock()
        self._undone = 0
        self._started = 0

    def submit(self, token: object, work: Callable[[], object]) -> None:
        """Let the next free thread do it. Raises StoreError if there is no thread."""
        self._put(_Task(token, work, self._outcomes))
        self.busy += 1

    def start(self, work: Callable[[], None]) -> None:
        """Let the next free thread do it; it has no outcome. Raises StoreError if there is none."""
        self._put(_Task(None, work, None))

    def batch(self, tasks: Mapping[Any, Callable[[], object]]) -> Iterator[Outcome]:
        """Do these, several at a time; their outcomes, in the order they arrive.

        The keys are the tokens. Raises StoreError if there is no thread.
        """
        outcomes: SimpleQueue[Outcome | None] = SimpleQueue()
        for token, work in tasks.items():
            self._put(_Task(token, work, outcomes))
        for _ in tasks:
            outcome = outcomes.get()
            assert outcome is not None  # noqa: S101 - `wake` is for the loop
            yield outcome

    def _put(self, task: _Task) -> None:
        with self._lock:
            if self._started < min(self._undone + 1, self.count):
                try:
                    start_thread(self._work, f"{self._name}-{self._started}")
                    self._started += 1
                except StoreError:
                    if not self._started:
                        raise
            self._undone += 1
        self._tasks.put(task)

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
            with self._lock:
                self._undone -= 1
            if task.outcomes is not None:
                task.outcomes.put(outcome)
            del task, outcome  # what they have would stay in memory until the next task


def start_thread(target: Callable[[], None], name: str) -> None:
    """Start a daemon thread. If the system starts no more of them, that is a transient StoreError.

    For threads that ask the store: as if it did not answer, the same may work later.
    """
    try:
        threading.Thread(target=target, name=name, daemon=True).start()
    except RuntimeError as error:
        raise StoreError(
            f"the store is not asked: {error}",
            hint="the system's limit of threads or of memory is reached",
            transient=True,
        ) from error


def asked(ask: Callable[[], T], name: str) -> "Future[T]":
    """Ask in a daemon thread of this name. Raises StoreError if the system starts none."""
    answer: Future[T] = Future()

    def run() -> None:
        try:
            answer.set_result(ask())
        except BaseException as error:  # noqa: BLE001 - raised where the answer is taken
            answer.set_exception(error)

    start_thread(run, name)
    return answer


def both(ask: Callable[[], T], other: Callable[[], U]) -> tuple[T, U]:
    """What both questions are answered; they are asked at the same time.

    Raises what `ask` raises, else what `other` raises. `other` may go on when `ask` has failed, so
    what it writes must do no harm then. If the system starts no thread, they are asked one after
    the other.
    """
    try:
        second = asked(other, "question")
    except StoreError:
        return ask(), other()
    return ask(), second.result()
