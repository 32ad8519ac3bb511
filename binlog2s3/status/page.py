"""The page of `report` at / of the status addresses: made when somebody asks for it.

Law: making it takes nothing from what is not durable yet. Another process makes it, with the least
priority; it is the one that the kernel kills if memory is short. There is one at a time, and none
sooner than a minute after the one before. A request waits for it as long as for a slow client.
"""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from wsgiref.types import StartResponse, WSGIEnvironment

from binlog2s3.config.bucket import reading_words
from binlog2s3.config.options import ENVIRONMENT_PREFIX
from binlog2s3.config.stream import S3Config
from binlog2s3.errors import SourceError, StoreError
from binlog2s3.formatting import cut, one_line
from binlog2s3.log import Log
from binlog2s3.server.child import start
from binlog2s3.status.http import send_line
from binlog2s3.workers import start_thread

_log = Log("page")

AGE_SECONDS = 60.0
_WAIT_SECONDS = 2.5
_MAKE_SECONDS = 300.0
_LEAST_PRIORITY = 19
_KILLED_FIRST = 1000  # proc_pid_oom_score_adj(5)
_MOST_PAGE = 8 << 20
_MOST_SAID = 1000


@dataclass(frozen=True, slots=True)
class _Made:
    """The page, or why there is none; `at` by the monotonic clock."""

    at: float
    page: bytes = b""
    why: str = ""


def report_command(s3: S3Config, source: str) -> list[str]:
    """The command that writes the page of this source to its standard output."""
    words = reading_words(s3, source)
    return [sys.executable, "-P", "-m", "binlog2s3", "report", "--html", "-", *words]


class ReportPage:
    """The application of /: what a command writes to its standard output, at most a minute old."""

    def __init__(self, command: Sequence[str], clock: Callable[[], float] = time.monotonic) -> None:
        self._command = command
        self._clock = clock
        self._lock = threading.Lock()
        self._made: _Made | None = None
        self._ended: threading.Event | None = None
        """Of the making that goes on; None if none does."""

    def __call__(self, _: WSGIEnvironment, begin: StartResponse) -> list[bytes]:
        """Answer with the page; 503 with the reason if it cannot be made, or is not made yet.

        A page that is older than a minute is shown if the next one takes longer than the wait.
        """
        ended = self._begin()
        if ended is not None:
            ended.wait(_WAIT_SECONDS)
        made = self._made
        if made is not None and made.page:
            begin("200 OK", [("Content-Type", "text/html; charset=utf-8")])
            return [made.page]
        if made is not None and (ended is None or ended.is_set()):
            text, again = f"the page could not be made: {made.why}", AGE_SECONDS
        else:
            text, again = "the page is being made from the bucket, it will be here soon", 2.0
        headers = [(name, f"{again:.0f}") for name in ("Retry-After", "Refresh")]
        return send_line(begin, HTTPStatus.SERVICE_UNAVAILABLE, text, *headers)

    def _begin(self) -> threading.Event | None:
        """The end of the making that goes on, or begins now; None if what there is is new."""
        with self._lock:
            is_new = self._made is not None and self._clock() - self._made.at < AGE_SECONDS
            if self._ended is None and not is_new:
                ended = threading.Event()
                try:
                    start_thread(lambda: self._make(ended), "page")
                except StoreError as error:
                    self._made = _Made(self._clock(), why=str(error))
                else:
                    self._ended = ended
            return self._ended

    def _make(self, ended: threading.Event) -> None:
        page, why = b"", "its thread failed"
        try:
            page, why = _output_of(self._command), ""
        except SourceError as error:
            why = str(error)
            _log.warning("page not made", error=error)
        finally:
            with self._lock:
                self._made, self._ended = _Made(self._clock(), page, why), None
            ended.set()


def _output_of(command: Sequence[str]) -> bytes:
    """What it writes. Raises SourceError with what it says if it fails, and if it takes too long.

    Its environment has what finds the keys of the bucket, but no options of this program.
    """
    kept = {k: v for k, v in os.environ.items() if not k.startswith(f"{ENVIRONMENT_PREFIX}_")}
    process = start(command, environment=kept, stdout=subprocess.PIPE)
    with process:
        with suppress(OSError):  # it may have ended; and not every system permits it
            Path(f"/proc/{process.pid}/oom_score_adj").write_text(f"{_KILLED_FIRST}\n")
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, process.pid, _LEAST_PRIORITY)
        try:
            page, complaint = process.communicate(timeout=_MAKE_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            raise SourceError(f"it took longer than {_MAKE_SECONDS:g} seconds") from None
    if process.returncode:
        text = cut(one_line(complaint.decode("utf-8", "replace")), _MOST_SAID)
        raise SourceError(text or f"its process ended with {process.returncode}")
    if len(page) > _MOST_PAGE:
        raise SourceError(f"it has {len(page)} bytes: let `binlog2s3 report --html` write a file")
    return page
