"""The programs that a restore starts: what loads the base backup, and the private server.

Law: everything that a restore starts has its id in the environment (`MARK`), and only processes
with it are killed. A program that it started dies with it (PR_SET_PDEATHSIG); what that program
started is found by the mark.
"""

import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from time import monotonic, sleep
from typing import IO

from binlog2s3 import private
from binlog2s3.errors import RecoveryError
from binlog2s3.server.child import launched

MARK = "BINLOG2S3_DRILL_ID"
_OURS = ("AWS_", "BINLOG2S3_")
"""Variables that begin so have our keys and settings."""
_ELSEWHERE = ("MYSQL_", "MARIADB_", "LIBMYSQL_")
"""Variables that begin so lead a client to another server: MYSQL_HOST does, past --socket, too."""
_END_SECONDS = 30.0


def bare(**more: str) -> dict[str, str]:
    """The variables for a server or a tool of its package: ours, without those not meant for it."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith((*_OURS, *_ELSEWHERE))}
    return kept | more


def started(
    id_: str,
    argv: Sequence[str],
    log: Path,
    *,
    directory: Path,
    given: Path | int | None = None,
    environment: Mapping[str, str],
) -> "subprocess.Popen[bytes]":
    """Start a program in a process group of its own; its output is added to the log.

    `given`: the file that it reads, or subprocess.PIPE. `environment`: all of its variables but the
    mark. Raises RecoveryError if there is no Python or no disk space.
    """
    try:
        added = private.open_here(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        with os.fdopen(added, "ab") as out, _input(given) as read:
            return subprocess.Popen(
                launched(argv),
                stdin=read,
                stdout=out,
                stderr=out,
                cwd=directory,
                env={**environment, MARK: id_},
                start_new_session=True,
            )
    except OSError as error:
        raise RecoveryError(
            f"{argv[0]} cannot be started: {error}", hint="check the program and the disk"
        ) from error


@contextmanager
def _input(given: Path | int | None) -> Iterator[IO[bytes] | int]:
    if isinstance(given, int):
        yield given
        return
    with (given or Path(os.devnull)).open("rb") as read:
        yield read


@contextmanager
def undisturbed() -> Iterator[None]:
    """Ctrl-C and SIGTERM come at the end of the block: who starts a program there knows it by then.

    For the main thread only.
    """
    heard = list[int]()
    before = {
        number: signal.signal(number, lambda number, _: heard.append(number))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if heard:
        signal.raise_signal(heard[0])


def end_all(id_: str) -> bool:
    """Kill every process of this restore; whether none is left. It waits for their end."""
    until = monotonic() + _END_SECONDS
    while pids := marked(id_):
        for pid in pids:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        if monotonic() > until:
            return False
        sleep(0.05)
    return True


def marked(id_: str) -> list[int]:
    """The processes, except this one, that have this mark and have not ended."""
    wanted = f"{MARK}={id_}".encode()
    pids = []
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it is another user's, or has ended
            environment = (entry / "environ").read_bytes()
            if wanted in environment.split(b"\0") and int(entry.name) != os.getpid():
                pids.append(int(entry.name))
    return pids


def waited(process: "subprocess.Popen[bytes]") -> int:
    """Wait for its end; its code. If the wait is interrupted, it is killed first."""
    try:
        return process.wait()
    except BaseException:
        process.kill()
        process.wait()
        raise


def end_of(log: Path, most: int = 400) -> str:
    """The last lines of a log on one line; of a server's log, those that are errors.

    A MariaDB that is made by statements tells the error of one by a line of its own: ERROR: 1030.
    """
    with suppress(OSError):
        with open(private.open_here(log, os.O_RDONLY), "rb") as file:  # noqa: PTH123 - a descriptor
            lines = file.read()[-100 * most :].decode(errors="replace").split("\n")
        errors = [line for line in lines if "[ERROR]" in line or line.startswith("ERROR")]
        text = "; ".join(line.strip() for line in errors or lines if line.strip())
        return text[:most] if errors else text[-most:]
    return ""
