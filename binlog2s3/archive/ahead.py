"""Fetches that are made once, kept for a while, and made ahead of their time by other threads."""

import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Generic, TypeVar

from binlog2s3.workers import Workers

Result = TypeVar("Result")
MOST_AHEAD = 8
"""How many blocks are in memory at a time, at most: fetched ahead, or in use."""
MOST_THREADS = 6


class Fetch(Generic[Result]):
    """A task that one thread runs, and whose result any thread may wait for."""

    def __init__(self, task: Callable[[], Result]) -> None:
        self._task: Callable[[], Result] | None = task
        self._lock = threading.Lock()
        self._result: list[Result] = []
        self._error: BaseException | None = None
        self._done = threading.Event()

    def run(self) -> None:
        """Run the task, unless that was begun or it was dropped."""
        with self._lock:
            task, self._task = self._task, None
        if task is None:
            return
        try:
            self._result.append(task())
        except BaseException as error:  # noqa: BLE001 - it is raised where the result is wanted
            self._error = error
        self._done.set()

    def drop(self) -> None:
        """Do not begin it any more: nobody waits for it."""
        with self._lock:
            self._task = None

    def is_done(self, seconds: float = 0) -> bool:
        """Whether it has ended; waits so long for it."""
        return self._done.wait(seconds)

    @property
    def has_failed(self) -> bool:
        """Whether it has ended with an error."""
        return self._error is not None

    def result(self) -> Result:
        """The result, once it has ended. Raises the task's error."""
        self._done.wait()
        if self._error is not None:
            raise self._error
        return self._result[0]


class Kept(Generic[Result]):
    """The last `most` fetches by their keys: none is made twice at a time. Thread-safe.

    `start` lets another thread run each new one; without it, who gets one has to `run` it.
    """

    def __init__(
        self, most: int, start: Callable[[Callable[[], None]], None] | None = None
    ) -> None:
        self._most = most
        self._start = start
        self._lock = threading.Lock()
        self._fetches: OrderedDict[Hashable, Fetch[Result]] = OrderedDict()

    def find(self, key: Hashable) -> Fetch[Result] | None:
        """The fetch of this key, if it is kept and has not failed."""
        with self._lock:
            found = self._fetches.get(key)
        return None if found is None or found.has_failed else found

    def get(self, key: Hashable, task: Callable[[], Result]) -> Fetch[Result]:
        """The fetch of this key: the one that is kept and has not failed, or a new one.

        Raises a transient StoreError if the system starts no thread for a new one.
        """
        with self._lock:
            found = self._fetches.pop(key, None)
            if found is None or found.has_failed:
                found = Fetch(task)
                if self._start is not None:
                    self._start(found.run)
            self._fetches[key] = found
            while len(self._fetches) > self._most:
                self._fetches.popitem(last=False)
            return found

    def clear(self) -> None:
        """Keep none of them."""
        with self._lock:
            self._fetches.clear()


class Ahead(Iterator[Result]):
    """The results of tasks, in order. Its own threads run some of the tasks ahead.

    At most `most` tasks are started before their result is taken: `first` of them at the beginning,
    one more with each result. The threads are daemons and end with `close`, which does not wait. If
    the system starts none, that is a transient StoreError.
    """

    def __init__(
        self,
        tasks: Iterable[Callable[[], Result]],
        *,
        threads: int = MOST_THREADS,
        most: int = MOST_AHEAD,
        first: int = MOST_AHEAD,
    ) -> None:
        self._tasks: Iterator[Callable[[], Result]] = iter(tasks)
        self._workers = Workers(threads, "ahead")
        self._most = most
        self._window = min(first, most)
        self._fetches: deque[Fetch[Result]] = deque()

    def __next__(self) -> Result:
        # nothing is to be ahead of the first one: a thread would only be waited for
        is_alone = self._window == 1 and not self._fetches and self._most > 1
        self._fill(starts=not is_alone)
        if not self._fetches:
            self.close()
            raise StopIteration
        fetch = self._fetches.popleft()
        if is_alone:
            fetch.run()
        try:
            result = fetch.result()
        except BaseException:
            self.close()
            raise
        self._window = min(self._window + 1, self._most)
        return result

    def close(self) -> None:
        """Start no more tasks. Results of running tasks are dropped."""
        self._tasks = iter(())
        while self._fetches:
            self._fetches.popleft().drop()
        self._workers.close()

    def _fill(self, *, starts: bool) -> None:
        while len(self._fetches) < self._window:
            task = next(self._tasks, None)
            if task is None:
                return
            fetch = Fetch(task)
            if starts:
                self._workers.start(fetch.run)
            self._fetches.append(fetch)
