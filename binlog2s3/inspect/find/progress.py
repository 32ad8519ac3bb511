"""How far a search is, while it goes on: a bar on a terminal, elsewhere a line now and then.

Place in the flow: as `recover.progress`, for `find`, which prints what it finds meanwhile.

Law: it goes to standard error. On a terminal it is out of the way before anything else is printed.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

from binlog2s3.formatting import size_text
from binlog2s3.inspect.find.model import Tally
from binlog2s3.output import Plain, clean, is_terminal

LINE_SECONDS = 10.0
_DRAW_SECONDS = 0.1
_LEAST_SECONDS = 1.0


class Showing:
    """What to call with each Tally; `aside` while something else is printed."""

    def __init__(
        self, out: TextIO, clock: Callable[[], float], line_seconds: float, *, bar: bool
    ) -> None:
        self._out = out
        self._clock = clock
        self._every = _DRAW_SECONDS if bar else line_seconds
        self._began = self._last = clock()
        self._bar: Progress | None = None
        if bar:
            columns = (
                BarColumn(bar_width=20),
                TaskProgressColumn(),
                TextColumn("{task.description}", markup=False),
            )
            self._bar = Progress(
                *columns,
                console=Console(file=out),
                transient=True,
                redirect_stdout=False,
                redirect_stderr=False,
            )
            self._task = self._bar.add_task("", total=None)
        self.found = 0

    def __call__(self, tally: Tally) -> None:
        """So far it has come. What comes too often is not shown."""
        now = self._clock()
        if now - self._last < self._every:
            return
        self._last = now
        words = words_of(tally, self.found, now - self._began)
        if self._bar is None:
            Plain(self._out).line(f"progress: {words}")
            self._out.flush()
            return
        self._bar.update(
            self._task,
            description=clean(words),
            completed=tally.size,
            total=max(1, tally.of_size),
        )
        self._bar.start()

    def aside(self) -> None:
        """Take the bar away; it comes again with the next step."""
        if self._bar is not None:
            self._bar.stop()


def words_of(tally: Tally, found: int, seconds: float) -> str:
    """What is to be said: bytes, the rate, how many were found."""
    words = f"{size_text(tally.size)} of {size_text(tally.of_size)}, {found} found"
    if seconds >= _LEAST_SECONDS:
        words += f", {size_text(tally.size / seconds)}/s"
    return words


@contextmanager
def showing(
    out: TextIO,
    *,
    clock: Callable[[], float] = time.monotonic,
    line_seconds: float = LINE_SECONDS,
) -> Iterator[Showing]:
    """On `out`: a bar on a terminal, else a line each 10 s."""
    shown = Showing(out, clock, line_seconds, bar=is_terminal(out))
    try:
        yield shown
    finally:
        shown.aside()
