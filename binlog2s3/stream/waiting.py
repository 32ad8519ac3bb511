"""How a stream waits, and why it ends: a signal, or a thread that failed.

Every wait of the streamer ends at once when the event of its `Stop` is set. When a standby becomes
the writer, or a writer a standby, the process gets a new `Stop`. So threads from before end, and
can no longer end anything else.
"""

import os
import random
import signal
import threading
import time
from collections.abc import Callable
from functools import partial
from itertools import count
from queue import SimpleQueue
from types import FrameType
from typing import TypeVar

from binlog2s3.config.outside import DEFAULT, Timing
from binlog2s3.errors import SourceError, StoreError, SupersededError
from binlog2s3.log import Log
from binlog2s3.workers import asked

T = TypeVar("T")
_log = Log("waiting")
_MOST_DOUBLINGS = 64


def _nothing() -> None:
    pass


class Stop:
    """Set by a signal, or by a thread that failed.

    `signal` is the number of the signal that ends the process, 0 if none came. `wake` wakes the
    main loop.
    """

    _over_at = 0.0

    def __init__(self) -> None:
        self.event = threading.Event()
        self.signal = 0
        self.error: BaseException | None = None
        self.wake: Callable[[], None] = _nothing

    @property
    def status(self) -> int:
        """The exit status after a signal: 0 after SIGTERM, 130 after SIGINT."""
        return 130 if self.signal == signal.SIGINT else 0

    @property
    def superseded(self) -> bool:
        """Whether another writer ends the stream."""
        return isinstance(self.error, SupersededError)

    def fail(self, error: BaseException) -> None:
        """End the stream with this error; only the first error counts."""
        self.error = self.error or error
        self.event.set()
        self.wake()

    def is_over(self, seconds: float) -> bool:
        """Whether it is set, and this was first asked so many seconds ago."""
        if not self.event.is_set():
            return False
        now = time.monotonic()
        self._over_at = self._over_at or now + seconds
        return now >= self._over_at


class Periodic:
    """Does `step` again and again in a thread of this name; it returns the seconds until the next.

    It ends once `ended` is set, and does `end` in the thread. An error ends it, too: `failed` is
    called with it. Without `failed` the step must not raise.
    """

    def __init__(
        self,
        name: str,
        step: Callable[[], float],
        ended: threading.Event,
        *,
        failed: Callable[[BaseException], object] | None = None,
        end: Callable[[], object] = _nothing,
    ) -> None:
        self._name = name
        self._step = step
        self._ended = ended
        self._failed = failed
        self._end = end

    def start(self, first_seconds: float = 0.0) -> None:
        """Do the first step after so many seconds."""
        target, name = partial(self._run, first_seconds), self._name
        threading.Thread(target=target, name=name, daemon=True).start()

    def _run(self, wait: float) -> None:
        try:
            while not self._ended.wait(wait):
                wait = self._step()
            self._end()
        except BaseException as error:
            if self._failed is None:
                raise
            self._failed(error)


class Signals:
    """Receives SIGTERM, SIGINT and SIGHUP, and sets the latest `stop`.

    A second signal ends the process at once, with 128 plus its number.
    """

    def __init__(self) -> None:
        self.stop = Stop()
        self._signal = 0
        self._signals: SimpleQueue[int] = SimpleQueue()
        if threading.current_thread() is threading.main_thread():
            threading.Thread(target=self._obey, name="signals", daemon=True).start()
            heard = [signal.SIGTERM, signal.SIGINT]
            if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup ignores it
                heard.append(signal.SIGHUP)
            for number in heard:
                signal.signal(number, self._on_signal)

    def renew(self) -> Stop:
        """A new `stop` for a process that continues; it is set already if a signal has come."""
        self.stop = stop = Stop()
        if self._signal:  # read after the line above: a signal from now on finds the new one
            stop.signal = self._signal
            stop.event.set()
        return stop

    def _on_signal(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        failed = self.stop.event.is_set() and not self.stop.superseded
        if self._signal or failed:
            os._exit(128 + number)  # do not wait for an orderly end
        self._signal = number
        self._signals.put(number)

    def _obey(self) -> None:
        """Set the stop in a thread: the handler may have interrupted a wait that holds its lock."""
        number = self._signals.get()
        stop = self.stop
        stop.signal = number
        stop.event.set()
        stop.wake()


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
