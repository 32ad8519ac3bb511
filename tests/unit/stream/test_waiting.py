"""What ends the streamer's threads: a signal wherever it comes, an end that is said, an error.

And what cannot be answered now is asked again: until when, and which errors are waited for.
"""

import subprocess
import sys
import threading
from collections.abc import Callable
from queue import SimpleQueue

import pytest

from binlog2s3.errors import ArchiveError, Binlog2s3Error, SourceError, StoreError
from binlog2s3.stream.waiting import Periodic, wait_for
from tests.process import Clock
from tests.waiting import wait_until

_INTERRUPTED = """\
import signal
from binlog2s3.stream.waiting import Signals

stop, woken = Signals().stop, []
stop.wake = lambda: woken.append(1)
with stop.event._cond:  # as in the loop that is just about to wait
    signal.raise_signal(signal.SIGTERM)
assert stop.event.wait(60), "the wish is lost"
while not woken:
    pass
print(stop.status)
"""

_AGAIN = """\
import signal
from binlog2s3.stream.waiting import Signals

stop = Signals().stop
signal.raise_signal(signal.SIGTERM)
signal.raise_signal(signal.SIGINT)
"""

_NOHUP = """\
import signal
signal.signal(signal.SIGHUP, signal.SIG_IGN)
from binlog2s3.stream.waiting import Signals

stop = Signals().stop
signal.raise_signal(signal.SIGHUP)
print(stop.signal, stop.event.wait(0.2))
signal.raise_signal(signal.SIGTERM)
print(stop.event.wait(60))
"""

_RENEWED = """\
import signal
from binlog2s3.errors import SupersededError
from binlog2s3.stream.waiting import Signals

signals = Signals()
first = signals.stop
second = signals.renew()
first.fail(ValueError("a thread of before"))
assert not second.event.is_set() and second.error is None
second.fail(SupersededError("another writer"))
signal.raise_signal(signal.SIGTERM)  # while it puts itself in order: no reason for a hard end
while not second.signal:
    pass
third = signals.renew()
assert third.event.is_set(), "the signal is lost"
print(third.signal == signal.SIGTERM, third.status, third.error)
"""


def _run(program: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=180, check=False
    )
    return done.returncode, done.stdout + done.stderr


def test_a_signal_in_the_middle_of_a_wait() -> None:
    """The handler may interrupt whoever holds the lock of what it has to set."""
    assert _run(_INTERRUPTED) == (0, "0\n")


def test_the_second_signal_does_not_wait() -> None:
    """It ends the process at once."""
    assert _run(_AGAIN) == (128 + 2, "")


def test_what_the_caller_ignores_stays_ignored() -> None:
    """As `nohup` does it: who logs out ends no stream."""
    assert _run(_NOHUP) == (0, "0 False\nTrue\n")


def test_a_process_that_goes_on_has_a_new_stop() -> None:
    """What is left of before cannot end it, and a signal that came in between does."""
    assert _run(_RENEWED) == (0, "True 0 None\n")


def test_a_step_is_done_until_the_end_is_said() -> None:
    """Again and again in a thread of its own, which then does what is due at the end."""
    ended, done = threading.Event(), threading.Event()
    threads: list[str] = []

    def step() -> float:
        threads.append(threading.current_thread().name)
        return 0.0

    Periodic("now-and-then", step, ended, end=done.set).start()
    wait_until(lambda: len(threads) >= 3, what="three steps")
    assert not done.is_set()
    ended.set()
    assert done.wait(60)
    assert set(threads) == {"now-and-then"}


def test_a_step_that_fails_is_the_last() -> None:
    """Its error is handed on, and the end of one that failed is not done."""
    ended, failed, done = threading.Event(), SimpleQueue[BaseException](), threading.Event()
    steps: list[int] = []

    def step() -> float:
        steps.append(1)
        raise KeyError("a defect")

    Periodic("defect", step, ended, failed=failed.put, end=done.set).start()
    assert isinstance(failed.get(timeout=60), KeyError)
    wait_until(
        lambda: "defect" not in {one.name for one in threading.enumerate()}, what="it to end"
    )
    assert (len(steps), done.is_set()) == (1, False)


def answers(*outcomes: Exception | str) -> Callable[[], str]:
    """A question that is answered with these, one after the other."""
    left = list(outcomes)

    def ask() -> str:
        outcome = left.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    return ask


def passes(error: BaseException) -> bool:
    return isinstance(error, SourceError | StoreError)


def test_it_is_asked_until_there_is_an_answer() -> None:
    """Later each time; whoever shows the status is told each error."""
    stop, told, errors = Clock(0.0), list[BaseException](), [SourceError("a"), StoreError("b")]
    assert wait_for(answers(*errors, "there"), stop, told.append, passes) == "there"
    assert told == errors
    assert 0 < stop.now < 10


def test_what_waiting_cannot_mend_is_raised_at_once() -> None:
    """Nobody is told to wait for it."""
    stop, told = Clock(0.0), list[BaseException]()
    with pytest.raises(ArchiveError, match="never"):
        wait_for(answers(ArchiveError("never"), "there"), stop, told.append, passes)
    assert (told, stop.now) == ([], 0.0)


@pytest.mark.parametrize("error", [SourceError("away"), StoreError("away")])
def test_a_stop_ends_the_wait(error: Binlog2s3Error) -> None:
    """With the error that was waited for."""
    stop = Clock(0.0)
    with pytest.raises(type(error), match="away"):
        wait_for(answers(error, error, error, "there"), stop, lambda _: stop.set(), passes)
    assert stop.now < 10
