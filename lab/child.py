"""Child processes that never outlive their parent, and the ports they listen on.

Law: a child is started through `setpriv --pdeathsig`, so the kernel kills it when the thread that
started it ends, `kill -9` of the parent included. So servers are started from a thread that lives
as long as they should. A child is ended by its own pid, never by name.
"""

import atexit
import contextlib
import errno
import os
import secrets
import shutil
import signal
import socket
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from threading import Event
from time import monotonic

PORTS = range(20_000, 32_000)  # below the kernel's own choice for outgoing connections

_alive: set["subprocess.Popen[bytes]"] = set()


class ServerFailedError(Exception):
    """A server did not come up, or went away; the message ends with the tail of its log."""


def spawn(
    argv: Sequence[str | Path], log: Path, *, environment: Mapping[str, str] | None = None
) -> "subprocess.Popen[bytes]":
    """Start a child that dies with us, in a session of its own; both its outputs go to `log`.

    `environment` is added to ours. Ctrl-C reaches only us: we end the children in order.
    """
    setpriv = shutil.which("setpriv")
    leash = [setpriv, "--pdeathsig", "KILL", "--"] if setpriv else []
    with log.open("ab") as out:
        process = subprocess.Popen(
            [*leash, *map(str, argv)],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            env={**os.environ, **(environment or {})},
            start_new_session=True,
        )
    _alive.add(process)
    return process


def end(process: "subprocess.Popen[bytes]", *, grace_seconds: float = 0) -> int:
    """End a child and return its exit status: SIGTERM and the grace first, then SIGKILL."""
    if process.poll() is None and grace_seconds > 0:
        process.send_signal(signal.SIGCONT)
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(grace_seconds)
    if process.poll() is None:
        process.kill()
    status = process.wait(60)
    _alive.discard(process)
    return status


@atexit.register
def _end_all() -> None:
    for process in list(_alive):
        end(process)


def wait_ready(
    process: "subprocess.Popen[bytes]",
    is_ready: Callable[[], bool],
    log: Path,
    *,
    what: str,
    timeout_seconds: float = 180,  # one that ended is noticed at once; a busy disk is slow
) -> None:
    """Return once `is_ready()`; raise ServerFailedError when the child ends or time is up."""
    deadline = monotonic() + timeout_seconds
    pause = Event()
    while not is_ready():
        if process.poll() is not None:
            raise ServerFailedError(
                f"{what} ended with {process.returncode} while starting\n{tail(log)}"
            )
        if monotonic() > deadline:
            raise ServerFailedError(f"{what} not ready after {timeout_seconds} s\n{tail(log)}")
        pause.wait(0.03)


def tail(log: Path, lines: int = 15) -> str:
    """The last lines of a log, or nothing where there is none."""
    if not log.is_file():
        return ""
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])


def free_port() -> int:
    """A port of 127.0.0.1 that nobody listens on now; somebody may be quicker: try again then."""
    for _ in range(200):
        port = PORTS.start + secrets.randbelow(len(PORTS))
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
            else:
                return port
    raise ServerFailedError(f"no free port among {PORTS.start} to {PORTS.stop}")
