"""Shows the progress of a command on standard error.

It does not slow the work down: reports that come too often are not shown. A bar is removed at the
end.
"""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Self, TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

from binlog2s3.output import Plain, clean, is_terminal
from binlog2s3.workers import Advance

LINE_SECONDS = 10.0
_DRAW_SECONDS = 0.1
_LONG = 100
"""With this many steps or more, progress is shown."""


class ProgressDisplay:
    """On a terminal: a bar with words after it. Elsewhere: a line every `line_seconds`.

    `at_once`: the bar is there from the beginning, otherwise only if the work takes longer than a
    moment. Call `aside` before something else is printed; the end of the context does, too.
    """

    def __init__(
        self,
        out: TextIO,
        *,
        clock: Callable[[], float] = time.monotonic,
        line_seconds: float = LINE_SECONDS,
        at_once: bool = False,
    ) -> None:
        self._out = out
        self._clock = clock
        self._bar: Progress | None = None
        self._every = line_seconds
        self._began = self._last = clock()
        if is_terminal(out):
            columns = (
                BarColumn(bar_width=20),
                TaskProgressColumn(),
                TextColumn("{task.description}", markup=False),
            )
            self._bar = Progress(
                *columns, console=Console(file=out), transient=True, redirect_stdout=False
            )
            self._task = self._bar.add_task("", total=None)
            self._every = _DRAW_SECONDS
            if at_once:
                self._last -= _DRAW_SECONDS
                self._bar.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.aside()

    @property
    def seconds(self) -> float:
        """The time since its beginning."""
        return self._clock() - self._began

    def show(self, words: Callable[[], str], done: int, total: int) -> None:
        """Show `words` and how much of `total` is done, unless that was shown a moment ago."""
        now = self._clock()
        if now - self._last < self._every:
            return
        self._last = now
        if self._bar is None:
            Plain(self._out).line(f"progress: {words()}")
            self._out.flush()
            return
        self._bar.update(
            self._task, description=clean(words()), completed=done, total=max(1, total)
        )
        self._bar.start()

    def aside(self) -> None:
        """Remove the bar; the next report shows it again."""
        if self._bar is not None:
            self._bar.stop()


@contextmanager
def progress_of(what: str) -> Iterator[Advance]:
    """A progress bar on standard error for many steps, if that is a terminal."""
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not is_terminal(sys.stderr)) as bar:
        task = bar.add_task(what, visible=False)
        yield lambda done, total: bar.update(
            task, completed=done, total=total, visible=total >= _LONG
        )
