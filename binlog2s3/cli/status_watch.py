"""`status --watch`: a live screen on a terminal, otherwise a line for each interval.

A thread does the looking, so that the user can leave although a store does not answer. If nobody
answers, the screen says so and the watch continues. The terminal is left as it was found.
"""

import errno
import os
import select
import signal
import sys
import termios
import threading
import time
import tty
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from io import StringIO
from queue import Empty, SimpleQueue
from typing import Self, TextIO

from rich.console import Console, ConsoleDimensions
from rich.live import Live
from rich.progress_bar import ProgressBar

from binlog2s3.errors import Binlog2s3Error
from binlog2s3.formatting import duration_text, moment_text, size_text
from binlog2s3.output import Field, Picture, Plain, is_terminal
from binlog2s3.status.model import Status
from binlog2s3.status.text import (
    LABEL,
    lag_of,
    line_of,
    line_of_all,
    place_text,
    print_head,
    print_table,
    seen_of,
    spool_of,
    uploads_of,
)

_REDRAW_SECONDS = 1.0
_SILENT_SECONDS = 5.0
"""After this time without an answer, the screen says so."""
_MINUTE_SECONDS = 60.0
_BAR_COLUMNS = 30
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """The result of a look: one stream, or all of a `target`.

    `why` the bucket was read instead of asking the streamer; "" if it was asked.
    """

    statuses: tuple[Status, ...]
    target: str = ""
    many: bool = False
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LookSchedule:
    """Seconds from one look to the next, and the number of looks; None: no limit."""

    interval_seconds: float
    count: int | None = None


class Course:
    """The results so far: the last answer, the error since then, and the best rate of a minute.

    `at` is the time of its beginning (monotonic). An answer is late after `patience_seconds`.
    """

    def __init__(self, at: float = 0.0, patience_seconds: float = _SILENT_SECONDS) -> None:
        self.seen: Observation | None = None
        self.error: Binlog2s3Error | None = None
        self._patience_seconds = patience_seconds
        self._answered = at
        self._rates: deque[tuple[float, float]] = deque()

    def take(self, observed: Observation | Binlog2s3Error, *, at: float) -> None:
        """Add the result of a look at this time (monotonic)."""
        if isinstance(observed, Binlog2s3Error):
            self.error = observed
        else:
            self.seen, self.error, self._answered = observed, None, at
            rates = None if observed.many else observed.statuses[0].rates
            if rates is not None:
                self._rates.append((at, max(rates.read_bytes, rates.durable_bytes)))
        while self._rates and self._rates[0][0] < at - _MINUTE_SECONDS:
            self._rates.popleft()

    def silent_seconds(self, at: float) -> float:
        """Seconds since the last answer, or since the beginning."""
        return at - self._answered

    def trouble(self, at: float) -> str:
        """The text that nobody answers; "" if somebody does."""
        silent = self.silent_seconds(at)
        if self.error is not None:
            return f"no answer for {duration_text(silent)}: {self.error}"
        return f"no answer for {duration_text(silent)}" if silent >= self._patience_seconds else ""

    @property
    def best_rate(self) -> float:
        """The greatest rate of the last minute, read or durable, in bytes a second."""
        return max((rate for _, rate in self._rates), default=0.0)


def _bar(rate: float | None, best: float, page: Plain) -> str:
    """A bar as long as the rate is of the best one, by rich; "" if there is nothing to compare."""
    if not rate or not best:
        return ""
    console = Console(file=StringIO(), color_system=None, width=_BAR_COLUMNS)
    options = replace(console.options, encoding="ascii" if page.ascii_only else "utf-8")
    bar = ProgressBar(total=best, completed=rate, width=_BAR_COLUMNS)
    return "".join(segment.text for segment in console.render(bar, options))


# Screens and lines


def print_screen(course: Course, page: Plain, *, now: datetime, at: float) -> None:
    """Print what a terminal shows at this time."""
    trouble, seen = course.trouble(at), course.seen
    if trouble:
        page.line(trouble, "bold red")
        if course.error is not None and course.error.hint:
            page.line(f"hint: {course.error.hint}", "dim")
        page.line("")
    if seen is None:
        page.line("" if trouble else "looking ...", "dim")
    elif seen.many:
        print_table(seen.statuses, page, target=seen.target, now=seen.statuses[0].at)
    else:
        (status,) = seen.statuses
        print_head(status, page)
        page.line("")
        fields = _fields_of(status, course.best_rate, page)
        page.fields([*fields, *seen_of(status, now, seen.why)], LABEL)


def _fields_of(status: Status, best_rate: float, page: Plain) -> Iterator[Field]:
    yield lag_of(status.lag)
    rates, uploads = status.rates, status.uploads
    for name, rate in (
        ("read", rates.read_bytes if rates else None),
        ("durable", rates.durable_bytes if rates else None),
    ):
        shown = "unknown" if rate is None else f"{size_text(rate)}/s"
        yield name, f"{shown:>12}  {_bar(rate, best_rate, page)}".rstrip(), ""
    commits = "unknown" if rates is None else f"{rates.transactions:,.0f}/s"
    yield "commits", f"{commits:>12}", ""
    yield "position", f"{place_text(status.durable)} is durable", ""
    yield "", f"{place_text(status.server.position)} is the source's", ""
    yield uploads_of(uploads)
    yield spool_of(status.spool)


def footer_of(interval_seconds: float) -> str:
    """The last line of a terminal."""
    return f"every {duration_text(interval_seconds)}; q or Ctrl-C ends"


def line_of_course(course: Course, *, now: datetime, at: float) -> str:
    """The line that is printed if standard output is not a terminal."""
    moment = moment_text(now)
    if trouble := course.trouble(at):
        return f"{moment} {trouble}"
    seen = course.seen
    if seen is None:
        return f"{moment} looking"
    return line_of_all(seen.statuses, now) if seen.many else line_of(seen.statuses[0], now)


# The loop


def watch(look: Callable[[], Observation], pace: LookSchedule, out: TextIO) -> None:
    """Look and show, until `pace.count` looks, a signal, `q`, or the end of the reader.

    Raises the error of the first look, unless it is transient; later errors are shown.
    """
    course = Course(time.monotonic(), pace.interval_seconds + _SILENT_SECONDS)
    stop = threading.Event()
    with _Bell() as bell:
        looks = _LookThread(look, pace.interval_seconds, stop, bell.ring)
        try:
            if is_terminal(out):
                _watch_terminal(course, looks, pace, bell, out)
            else:
                _watch_plainly(course, looks, pace, bell, out)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            # the terminal is gone: the interpreter's last flush must not fail again
            os.dup2(os.open(os.devnull, os.O_WRONLY), out.fileno())
        finally:
            stop.set()


def _watch_plainly(
    course: Course, looks: "_LookThread", pace: LookSchedule, bell: "_Bell", out: TextIO
) -> None:
    """A line for each look, and one for each interval without an answer."""
    page, shown, patience = Plain(out), 0, pace.interval_seconds + _SILENT_SECONDS
    printed = time.monotonic()
    while pace.count is None or shown < pace.count:
        took = looks.take(course)
        now = time.monotonic()
        if took or now - printed >= patience:
            page.line(line_of_course(course, now=datetime.now(UTC), at=now))
            out.flush()
            shown, printed = shown + 1, now
            patience = pace.interval_seconds + (_SILENT_SECONDS if took else 0.0)
            continue
        if bell.wait(printed + patience - now):
            return


def _watch_terminal(
    course: Course, looks: "_LookThread", pace: LookSchedule, bell: "_Bell", out: TextIO
) -> None:
    console = Console(file=out)
    shown = 0
    footer = footer_of(pace.interval_seconds)
    with (
        _keys() as keyboard,
        Live(
            console=console,
            screen=True,
            auto_refresh=False,
            redirect_stdout=False,
            redirect_stderr=False,
        ) as live,
    ):
        bell.listen(keyboard)
        while True:
            shown += looks.take(course)
            _measure(console, out)
            picture = Picture(console)
            print_screen(course, picture, now=datetime.now(UTC), at=time.monotonic())
            live.update(picture.shown(footer), refresh=True)
            if pace.count is not None and shown >= pace.count:
                return
            if bell.wait(_REDRAW_SECONDS):
                return


def _measure(console: Console, out: TextIO) -> None:
    """Set the console to the terminal's present size; COLUMNS and LINES may be outdated."""
    with suppress(OSError):
        size = os.get_terminal_size(out.fileno())
        if size.columns and size.lines:
            console.size = ConsoleDimensions(size.columns, size.lines)


class _LookThread:
    """A thread that looks once for each interval, and calls `ring` when it has a result."""

    def __init__(
        self,
        look: Callable[[], Observation],
        interval_seconds: float,
        stop: threading.Event,
        ring: Callable[[], None],
    ) -> None:
        self._look = look
        self._interval_seconds = interval_seconds
        self._stop = stop
        self._ring = ring
        self._found: SimpleQueue[Observation | BaseException] = SimpleQueue()
        self._answered = False
        # a daemon: a request over a dead network may last longer than the user wants to wait
        threading.Thread(target=self._run, name="look", daemon=True).start()

    def take(self, course: Course) -> int:
        """Add a result to the course; returns how many there were, 0 or 1."""
        try:
            observed = self._found.get_nowait()
        except Empty:
            return 0
        if isinstance(observed, Binlog2s3Error) and (self._answered or observed.transient):
            course.take(observed, at=time.monotonic())
        elif isinstance(observed, BaseException):
            raise observed
        else:
            self._answered = True
            course.take(observed, at=time.monotonic())
        return 1

    def _run(self) -> None:
        while not self._stop.is_set():
            begun = time.monotonic()
            try:
                self._found.put(self._look())
            except BaseException as error:  # noqa: BLE001 - `take` raises it
                self._found.put(error)
            self._ring()
            self._stop.wait(max(0.0, begun + self._interval_seconds - time.monotonic()))


class _Bell:
    """What the loop waits for: a result, a signal, a key. Signals interrupt nothing."""

    def __init__(self) -> None:
        self._reader, self._writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._keyboard: int | None = None
        self._handlers: dict[signal.Signals, object] = {}
        self._wakeup = -1

    def __enter__(self) -> Self:
        for number in (*_ENDING, signal.SIGWINCH):
            if signal.getsignal(number) is not signal.SIG_IGN:  # nohup or a background job
                self._handlers[number] = signal.signal(number, lambda *_: None)
        self._wakeup = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        return self

    def __exit__(self, *_: object) -> None:
        signal.set_wakeup_fd(self._wakeup)
        for number, handler in self._handlers.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        # the pipe stays open: the thread may still write to its descriptor

    def ring(self) -> None:
        """End the wait; called by any thread."""
        with suppress(BlockingIOError):
            os.write(self._writer, b"\0")

    def listen(self, keyboard: int | None) -> None:
        """Read keys from this descriptor."""
        self._keyboard = keyboard

    def wait(self, seconds: float) -> bool:
        """Wait for one of them; returns whether the watch ends."""
        sources = [self._reader] + ([self._keyboard] if self._keyboard is not None else [])
        ready, _, _ = select.select(sources, [], [], max(0.0, seconds))
        rung = b""
        if self._reader in ready:
            rung = os.read(self._reader, 4096)
        if self._keyboard in ready:
            keys = os.read(self._keyboard, 64)
            if b"q" in keys or b"Q" in keys or b"\x03" in keys:
                return True
            if not keys:
                self._keyboard = None
        return any(number in _ENDING for number in rung)


@contextmanager
def _keys() -> Iterator[int | None]:
    """The keyboard, key by key and without echo, if there is one; it is restored afterwards."""
    try:
        keyboard = sys.stdin.fileno()
        ours = os.tcgetpgrp(keyboard) == os.getpgrp()  # a background job would be stopped
        before = termios.tcgetattr(keyboard)
    except (AttributeError, ValueError, OSError, termios.error):
        ours = False
    if not ours:
        yield None
        return
    try:
        tty.setcbreak(keyboard)
        settings = termios.tcgetattr(keyboard)
        settings[6][termios.VSUSP] = b"\0"  # a stopped job leaves its screen behind
        termios.tcsetattr(keyboard, termios.TCSANOW, settings)
        yield keyboard
    finally:
        with suppress(termios.error):
            termios.tcsetattr(keyboard, termios.TCSADRAIN, before)
