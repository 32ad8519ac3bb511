"""A signal ends the streamer wherever it comes."""

import subprocess
import sys

_INTERRUPTED = """\
import signal
from binlog2s3.stream.shutdown import Stop

stop, woken = Stop(), []
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
from binlog2s3.stream.shutdown import Stop

stop = Stop()
signal.raise_signal(signal.SIGTERM)
signal.raise_signal(signal.SIGINT)
"""

_NOHUP = """\
import signal
signal.signal(signal.SIGHUP, signal.SIG_IGN)
from binlog2s3.stream.shutdown import Stop

stop = Stop()
signal.raise_signal(signal.SIGHUP)
print(stop.signal, stop.event.wait(0.2))
signal.raise_signal(signal.SIGTERM)
print(stop.event.wait(60))
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
