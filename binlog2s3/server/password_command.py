"""The password that a command prints: a token of IAM, a secret of Vault or of a secrets manager.

It runs for each connection, so each connection uses a new password.

Law: no shell runs the command. What it prints, on standard output or standard error, is in no log
and in no error, because it may be the password. It has a limited time, and then it is killed with
all processes of its session.
"""

import os
import select
import shlex
import signal
import subprocess
import time

from binlog2s3.errors import SourceError

_MOST_BYTES = 64 << 10  # a token of IAM has about 1 KiB


def words_of(command: str) -> list[str]:
    """The program and its arguments. Raises ValueError if quotes do not match, or there is none."""
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise ValueError(f"quotes do not match: {str(error).lower()}") from None
    if not words or not words[0]:
        raise ValueError("there is no program in it")
    return words


def password_of(command: str, *, timeout_seconds: float) -> str:
    """Run the command and return the one line that it prints. Raises SourceError."""
    words = words_of(command)
    what = f"the password command ({words[0]})"
    by_hand = "run it by hand, as this program's user and with its environment"
    try:
        process = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        raise SourceError(
            f"{what} cannot be run: {getattr(error, 'strerror', None) or error}",
            hint="--mysql-password-command needs a program's path, or a name that is on PATH; "
            "no shell reads it",
        ) from error
    try:
        data = _printed(process, time.monotonic() + timeout_seconds)
    finally:
        _kill(process)
    if data is None:
        raise SourceError(
            f"{what} did not end within {timeout_seconds:g} s",
            hint=f"{by_hand}; --mysql-connect-timeout sets how long to wait",
            transient=True,
        )
    if len(data) > _MOST_BYTES:
        raise SourceError(f"{what} printed more than {_MOST_BYTES >> 10} KiB", hint=by_hand)
    if process.returncode:
        raise SourceError(
            f"{what} exited with status {process.returncode}", hint=by_hand, transient=True
        )
    return _password(data, what, by_hand)


def _printed(process: "subprocess.Popen[bytes]", deadline: float) -> bytes | None:
    """What it printed until it ended, too much by a byte at most; None if it was not in time."""
    assert process.stdout is not None  # noqa: S101 - PIPE was asked for
    descriptor, data = process.stdout.fileno(), b""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    while len(data) <= _MOST_BYTES:
        if not poll.poll(max(0, deadline - time.monotonic()) * 1000):
            return None
        chunk = os.read(descriptor, _MOST_BYTES + 1 - len(data))
        if not chunk:
            break
        data += chunk
    else:
        return data
    try:
        process.wait(max(0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        return None
    return data


def _kill(process: "subprocess.Popen[bytes]") -> None:
    """If its end was not seen, kill its session; its number is not reused before `wait`."""
    if process.returncode is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    if process.stdout is not None:
        process.stdout.close()


def _password(data: bytes, what: str, by_hand: str) -> str:
    try:
        text = data.decode().removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError:
        raise SourceError(f"{what} printed no UTF-8 text", hint=by_hand) from None
    if not text:
        raise SourceError(f"{what} printed nothing", hint=by_hand, transient=True)
    if "\n" in text or "\0" in text:
        raise SourceError(
            f"{what} printed more than one line",
            hint=f"it must print the password and nothing else; {by_hand}",
        )
    return text
