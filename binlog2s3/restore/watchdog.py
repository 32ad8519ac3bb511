"""The limits of a restore: time and disk space.

Law: when a limit is passed, it is interrupted once, by the signal that ends a command; the
cleanup that follows kills what it has started. A disk is called full only if an error, or the
output of what it has started, says so, or if nothing at all is free.
"""

import errno
import os
import re
import shutil
import signal
import threading
from collections.abc import Sequence
from math import inf
from pathlib import Path
from time import monotonic
from types import TracebackType
from typing import Self

from binlog2s3 import private
from binlog2s3.errors import Binlog2s3Error, RecoveryError
from binlog2s3.formatting import duration_text, size_text
from binlog2s3.restore.workspace import size_of

_LOOK_SECONDS = 1.0
LEAST_FREE = 32 << 20
"""A server on a full disk waits and does not fail, so a restore ends before that."""
_FULL = 1 << 16
"""With less the output that says so may have found no space in its own log."""
_LOG_TAIL = 65_536
_NO_SPACE = re.compile(
    r"no space left on device|disk quota exceeded|\bdisk (?:is )?full\b|out of disk space"
    rf"|\b(?:errno|errcode|error number|with error)[: ]+(?:{errno.ENOSPC}|{errno.EDQUOT})\b",
    re.IGNORECASE,
)


class Watchdog:
    """Interrupts the main thread when a limit is passed. Use it as a context manager.

    At its end it raises RecoveryError instead of the interrupt that it caused, and instead of an
    error on a disk that is full or almost full. `logs` have the output of what it starts. `larger`:
    the hint for a disk that is too small.
    """

    def __init__(
        self,
        directory: Path,
        *,
        timeout: float | None = None,
        max_disk: int | None = None,
        logs: Sequence[Path] = (),
        larger: str,
    ) -> None:
        self._directory = directory
        self._logs = logs
        self._timeout = timeout
        self._max_disk = max_disk
        self._until = monotonic() + timeout if timeout is not None else inf
        self._larger = larger
        self._passed: RecoveryError | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self._over.set()
            self._thread.join()
        except KeyboardInterrupt:
            if self._passed is None:
                raise
        if self._passed is None and isinstance(error, Binlog2s3Error | OSError):
            output = "\n".join(map(_tail, self._logs))
            where, free = self._directory.parent, self._free()
            self._passed = explained(error, output, where, free, self._larger)
        # whatever else failed meanwhile, failed because of it
        if self._passed is not None:
            raise self._passed from error

    def _watch(self) -> None:
        while not self._over.wait(_LOOK_SECONDS):
            self._passed = self._judged()
            if self._passed is not None:
                # a signal also ends a system call that waits
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)
                return

    def _judged(self) -> RecoveryError | None:
        if self._timeout is not None and monotonic() > self._until:
            return RecoveryError(
                f"it was not done after {duration_text(self._timeout)}",
                hint="raise --timeout, or restore from a newer base backup",
            )
        if self._max_disk is not None and (used := size_of(self._directory)) > self._max_disk:
            return RecoveryError(
                f"it takes {size_text(used)} of disk space, more than --max-disk "
                f"{size_text(self._max_disk)}",
                hint="raise --max-disk, or use a larger disk",
            )
        free = self._free()
        if free is not None and free < LEAST_FREE:
            text = f"{_left(self._directory.parent, free)}: too little to go on"
            return RecoveryError(text, hint=self._larger)
        return None

    def _free(self) -> int | None:
        """Bytes that are free on the disk; None if it cannot say."""
        try:
            return shutil.disk_usage(self._directory).free
        except OSError:
            return None


def explained(
    error: Binlog2s3Error | OSError,
    output: str,
    work_dir: Path,
    free: int | None,
    larger: str,
) -> RecoveryError | None:
    """The same error with the free space of the disk, if the disk may be the reason; else None.

    `output` is of what it has started; `free` is in bytes, None if it is unknown.
    """
    left = _left(work_dir, free) if free is not None else f"the free space of {work_dir} is unknown"
    is_full = free is not None and free < _FULL
    if is_full or _says_no_space(error) or _NO_SPACE.search(output):
        return RecoveryError(f"there was no space left: {error}; now {left}", hint=larger)
    if free is not None and free < LEAST_FREE:
        hint = error.hint if isinstance(error, Binlog2s3Error) else ""
        return RecoveryError(f"{error}; {left}", hint=hint or larger)
    return None


def _left(work_dir: Path, free: int) -> str:
    return f"the disk of {work_dir} has {size_text(free)} free"


def _says_no_space(error: BaseException) -> bool:
    """Whether an error, or one that caused it, is that a disk or a quota is full."""
    cause: BaseException | None = error
    while cause is not None:
        is_full = isinstance(cause, OSError) and cause.errno in (errno.ENOSPC, errno.EDQUOT)
        if is_full or _NO_SPACE.search(str(cause)):
            return True
        cause = cause.__cause__
    return False


def _tail(log: Path) -> str:
    """How a log ends; "" if there is none."""
    try:
        with open(private.open_here(log, os.O_RDONLY), "rb") as file:  # noqa: PTH123 - a descriptor
            file.seek(max(0, os.fstat(file.fileno()).st_size - _LOG_TAIL))
            return file.read(_LOG_TAIL).decode(errors="replace")
    except OSError:
        return ""
