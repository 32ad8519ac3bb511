"""The limits of a drill: time and disk space.

Place in the flow: `command` runs everything below one `Watchdog`.

Law: when a limit is passed, the drill is interrupted once, by the signal that ends a command; what
it has started is killed by the cleanup that follows.
"""

import shutil
import signal
import threading
from pathlib import Path
from time import monotonic
from types import TracebackType
from typing import Self

from binlog2s3.drill.workspace import size_of
from binlog2s3.errors import RecoveryError
from binlog2s3.formatting import duration_text, size_text

_LOOK_SECONDS = 1.0
_LEAST_FREE = 32 << 20
"""A server on a full disk waits and does not fail, so the drill ends before that."""


class Watchdog:
    """Interrupts the main thread when a limit is passed. Use it as a context manager.

    At its end it raises RecoveryError instead of the interrupt that it caused.
    """

    def __init__(self, directory: Path, *, timeout: float, max_disk: int | None) -> None:
        self._directory = directory
        self._timeout = timeout
        self._max_disk = max_disk
        self._until = monotonic() + timeout
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
        if self._passed is None and isinstance(error, Exception):
            self._passed = self._full()  # since the last look
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
        if monotonic() > self._until:
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
        return self._full()

    def _full(self) -> RecoveryError | None:
        try:
            free = shutil.disk_usage(self._directory).free
        except OSError:
            return None
        if free < _LEAST_FREE:
            return RecoveryError(
                f"the disk of {self._directory.parent} is full: {size_text(free)} are free",
                hint="use a --work-dir on a larger disk",
            )
        return None
