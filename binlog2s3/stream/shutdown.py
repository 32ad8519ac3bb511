"""The wish to end.

Place in the flow: under `daemon`; what waits, waits with it.
"""

import os
import signal
import threading
from collections.abc import Callable
from queue import SimpleQueue
from types import FrameType


def _nothing() -> None:
    pass


class Stop:
    """The wish to end: set by a signal, or by a thread that cannot go on."""

    def __init__(self) -> None:
        self.event = threading.Event()
        self.signal = 0
        self.error: BaseException | None = None
        self.wake: Callable[[], None] = _nothing
        self._signals: SimpleQueue[int] = SimpleQueue()
        if threading.current_thread() is threading.main_thread():
            threading.Thread(target=self._obey, name="signals", daemon=True).start()
            heard = [signal.SIGTERM, signal.SIGINT]
            if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as nohup has it
                heard.append(signal.SIGHUP)
            for number in heard:
                signal.signal(number, self._on_signal)

    @property
    def status(self) -> int:
        """Exit status of an end that was asked for: 0 after SIGTERM, 130 after SIGINT."""
        return 130 if self.signal == signal.SIGINT else 0

    def fail(self, error: BaseException) -> None:
        """End with this error; the first one counts."""
        self.error = self.error or error
        self.event.set()
        self.wake()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        if self.signal or self.event.is_set():
            os._exit(128 + number)  # the second one does not wait
        self.signal = number
        self._signals.put(number)

    def _obey(self) -> None:
        """Beside the handler, which may have interrupted a wait that holds the event's lock."""
        self._signals.get()
        self.event.set()
        self.wake()
