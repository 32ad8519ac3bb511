"""Programs that run only as long as this process: how they are started, how they ended.

Law: the kernel kills such a program when its parent ends (PR_SET_PDEATHSIG).
"""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import MappingProxyType

from binlog2s3.errors import SourceError

# Runs first, in the same process: so the child dies with its parent from the first moment.
_LAUNCH = """\
import ctypes, os, signal, sys
if ctypes.CDLL(None, use_errno=True).prctl(1, signal.SIGKILL) or os.getppid() != int(sys.argv[1]):
    sys.exit("its parent is gone")
os.umask(0o077)
try:
    os.execvp(sys.argv[2], sys.argv[2:])
except OSError as error:
    sys.exit(f"cannot run {sys.argv[2]}: {error.strerror}")
"""

# The kernel kills a child when the *thread* that made it ends: this one lives as long as the
# process.
_starter = ThreadPoolExecutor(max_workers=1, thread_name_prefix="child-starter")


def launched(arguments: Sequence[str]) -> list[str]:
    """What to start instead of this program: it has no parent but this process, or ends."""
    return [sys.executable, "-I", "-S", "-c", _LAUNCH, str(os.getpid()), *arguments]


def start(
    arguments: Sequence[str],
    *,
    descriptors: Sequence[int] = (),
    added: Mapping[str, str] = MappingProxyType({}),
    environment: Mapping[str, str] | None = None,
    stdin: int = subprocess.DEVNULL,
    stdout: int = subprocess.DEVNULL,
    directory: Path | None = None,
) -> "subprocess.Popen[bytes]":
    """Start a program that the kernel kills when this process ends; its standard error is a pipe.

    `environment` is `child_environment` if none is given; `added` comes to it.
    """
    try:
        return _starter.submit(
            subprocess.Popen,
            launched(arguments),
            stdin=stdin,
            stdout=stdout,
            stderr=subprocess.PIPE,
            pass_fds=descriptors,
            cwd=directory,
            env={**(child_environment() if environment is None else environment), **added},
        ).result()
    except OSError as error:
        raise SourceError(f"cannot start {arguments[0]}: {error}") from error


def child_environment() -> dict[str, str]:
    """The environment of a child: paths of programs and libraries; no keys and no options."""
    kept = ("PATH", "LD_LIBRARY_PATH", "TMPDIR")
    return {name: os.environ[name] for name in kept if name in os.environ} | {
        "TZ": "UTC",
        "LC_ALL": "C",
    }


def said_by(path: str, option: str, hint: str) -> "subprocess.CompletedProcess[str]":
    """What a program says of itself. Raises SourceError with this hint if it cannot be run."""
    try:
        return subprocess.run(
            [path, "--no-defaults", option],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=60,
            check=False,
            env=child_environment(),
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SourceError(f"cannot run {path}: {error}", hint=hint) from error


def ended_with(code: int) -> str:
    """How a program ended, for a message."""
    return f"status {code}" if code >= 0 else f"signal {-code}"
