"""Why a stream ends: a signal, or a thread that cannot go on.

Place in the flow: under `daemon`; every wait of the streamer is on the event of a `Stop`. A process
that stands by and becomes the writer, or the reverse, has a new `Stop` each time, so that a thread
of before ends and can end nothing but itself.
"""

import os
import signal
import threading
from collections.abc import Callable
from queue import SimpleQueue
from types import FrameType

from binlog2s3.errors import SupersededError


def _nothing() -> None:
    pass


class Stop:
    """Set by a signal, or by a thread that cannot go on.

    `signal`: the signal that ends the process, 0 before there is one.
    """

    def __init__(self) -> None:
        self.event = threading.Event()
        self.signal = 0
        self.error: BaseException | None = None
        self.wake: Callable[[], None] = _nothing

    @property
    def status(self) -> int:
        """Exit status of an end that was asked for: 0 after SIGTERM, 130 after SIGINT."""
        return 130 if self.signal == signal.SIGINT else 0

    def fail(self, error: BaseException) -> None:
        """End with this error; the first one counts."""
        self.error = self.error or error
        self.event.set()
        self.wake()


class Signals:
    """Takes the process's signals, and sets the latest `stop`."""

    def __init__(self) -> None:
        self.stop = Stop()
        self._signal = 0
        self._signals: SimpleQueue[int] = SimpleQueue()
        if threading.current_thread() is threading.main_thread():
            threading.Thread(target=self._obey, name="signals", daemon=True).start()
            heard = [signal.SIGTERM, signal.SIGINT]
            if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as nohup has it
                heard.append(signal.SIGHUP)
            for number in heard:
                signal.signal(number, self._on_signal)

    def renew(self) -> Stop:
        """A new `stop`, for a process that goes on; set already if a signal has come."""
        self.stop = stop = Stop()
        if self._signal:  # read after the line above: a signal from now on finds the new one
            stop.signal = self._signal
            stop.event.set()
        return stop

    def _on_signal(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        failed = self.stop.event.is_set() and not isinstance(self.stop.error, SupersededError)
        if self._signal or failed:
            os._exit(128 + number)  # the second one does not wait
        self._signal = number
        self._signals.put(number)

    def _obey(self) -> None:
        """Beside the handler, which may have interrupted a wait that holds the event's lock."""
        number = self._signals.get()
        stop = self.stop
        stop.signal = number
        stop.event.set()
        stop.wake()
