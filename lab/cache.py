"""The folder where downloads and builds wait for the next run.

Law: what lies in the cache under its own name is whole. It is made under another name, its marker
is written last, and one rename makes it visible; one lock a name keeps concurrent makers apart.
Standard library only: `lab.venv` runs it before anything is installed.
"""

import fcntl
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

MARKER = ".complete"
_TIMEOUT_SECONDS = 600


class Unavailable(Exception):  # noqa: N818 - it says a state of the machine, not a fault of ours
    """Something that is needed cannot be had on this machine.

    >>> str(Unavailable("minio", "there is no go on PATH", "install Go 1.24 or later"))
    'minio cannot be had: there is no go on PATH; what would help: install Go 1.24 or later'
    """

    def __init__(self, name: str, reason: str, remedy: str) -> None:
        super().__init__(f"{name} cannot be had: {reason}; what would help: {remedy}")
        self.name = name
        self.reason = reason
        self.remedy = remedy


def download(
    name: str,
    argv: Sequence[str],
    what: str,
    *,
    remedy: str,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> "subprocess.CompletedProcess[str]":
    """Run a program that downloads, to its end; its standard output has all that it said.

    Raises Unavailable(name, ...) where it takes longer than 10 minutes: `what` did, and `remedy`
    would help.
    """
    try:
        return subprocess.run(
            argv,
            env=env,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_TIMEOUT_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise Unavailable(name, f"{what} took longer than {_TIMEOUT_SECONDS} s", remedy) from None


def cache_folder() -> Path:
    """`.cache` of the checkout, or what BINLOG2S3_CACHE names."""
    named = os.environ.get("BINLOG2S3_CACHE")
    return Path(named).absolute() if named else Path(__file__).resolve().parent.parent / ".cache"


def say(text: str) -> None:
    """One line on stderr: what is being done and how long it may take."""
    print(f"lab: {text}", file=sys.stderr, flush=True)


@contextmanager
def locked(name: str) -> Iterator[None]:
    """Hold the cache's lock `name`; whoever comes second waits and says so."""
    folder = cache_folder()
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f".{name}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"another process is getting {name}: waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def kept(name: str, make: Callable[[Path], str]) -> Path:
    """The cache's directory `name`; `make(directory)` fills it when it is not there yet.

    What `make` returns is kept in the marker (a version, say). When it fails or is interrupted,
    nothing is left that counts as whole, and the next call begins anew.
    """
    target = cache_folder() / name
    if (target / MARKER).is_file():
        return target
    with locked(name.replace("/", "-")):
        if (target / MARKER).is_file():
            return target
        making = target.with_name(f".{target.name}.making")
        remove(making)
        remove(target)
        making.mkdir(parents=True)
        try:
            note = make(making)
            (making / MARKER).write_text(note)
            making.rename(target)
        finally:
            remove(making)
    return target


def note_of(directory: Path) -> str:
    """What `make` returned when the directory was made."""
    return (directory / MARKER).read_text()


def remove(directory: Path) -> None:
    """Delete a tree, also read-only directories in it; nothing there is fine."""
    for _ in range(3):
        if not directory.exists():
            return
        for path, _folders, _files in os.walk(directory):
            Path(path).chmod(0o700)
        shutil.rmtree(directory, ignore_errors=True)
        time.sleep(0)
    if directory.exists():
        shutil.rmtree(directory)
