"""Paper for people: plain text for pipes, coloured and folded lines for terminals.

Place in the flow: under the views (`inspect.list`, `status.text`), which say what is printed; the
place of rich, beside the live screen in `cli.status_watch`.

Law: what is shown comes from the bucket or from a server, so it can neither break lines nor command
a terminal. Nothing is cut: what has no room is folded.
"""

import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import zip_longest
from typing import Literal, TextIO

from rich.console import Console, Group
from rich.progress import Progress
from rich.text import Text

_LONG = 100
"""From so many steps on a person wants to see that they come."""
_LEAST_VALUE = 24
"""A value with less room than this beside its name stands below it."""


class Plain:
    """Text: columns as wide as they must be, no colours. Styles are for terminals."""

    width: int | None = None
    """Characters in a line; None: as many as it takes."""

    def __init__(self, out: TextIO) -> None:
        self._out = out

    @property
    def ascii_only(self) -> bool:
        """Whether nothing else than ASCII can be shown."""
        return "utf" not in (getattr(self._out, "encoding", None) or "utf-8").lower()

    def line(self, text: str, style: str = "") -> None:
        """One line."""
        del style
        self._write(clean(text))

    def field(self, name: str, value: str, room: int, style: str = "") -> None:
        """A value behind its name, which has `room` characters."""
        del style
        self._write(f"{clean(name):<{room}}{clean(value)}".rstrip())

    def row(
        self,
        cells: Sequence[str],
        widths: Sequence[int],
        styles: Sequence[str] = (),
        right: Collection[int] = (),
    ) -> None:
        """A row of a table; the cells at `right` end where their column ends."""
        del styles
        padded = [
            cell.rjust(width) if at in right else cell.ljust(width)
            for at, (cell, width) in enumerate(zip(map(clean, cells), widths, strict=True))
        ]
        self._write(f"  {'  '.join(padded)}".rstrip())

    def _write(self, text: str) -> None:
        if self.ascii_only:
            text = text.encode("ascii", "backslashreplace").decode()
        print(text, file=self._out)


class Coloured(Plain):
    """A terminal: colours, and what has no room beside its neighbours is folded.

    Laid out here: rich's own table takes milliseconds a row.
    """

    def __init__(self, console: Console) -> None:
        super().__init__(console.file)  # type: ignore[arg-type]
        self._console = console

    @property
    def width(self) -> int:  # type: ignore[override]
        """The terminal's, now."""
        return self._console.width

    def line(self, text: str, style: str = "") -> None:
        """One line, folded where the terminal ends, between words if there are any."""
        self._put(Text(clean(text), style=style, overflow="fold"))

    def field(self, name: str, value: str, room: int, style: str = "") -> None:
        """A value behind its name, or below it where the terminal is narrow."""
        name, value = clean(name), clean(value)
        beside = self.width - room >= _LEAST_VALUE
        indent = room if beside else min(2, self.width - 1)
        margin = " " * indent
        found = Text(f"{name:<{room}}" if beside else f"{name}\n{margin}" if name else margin)
        found.stylize("dim")
        lines = Text(value, style=style or "default").wrap(
            self._console, self.width - indent, overflow="fold"
        )
        for number, line in enumerate(lines):
            line.rstrip()
            found.append(f"\n{margin}" if number else "")
            found.append_text(line)
        self._put(found)

    def row(
        self,
        cells: Sequence[str],
        widths: Sequence[int],
        styles: Sequence[str] = (),
        right: Collection[int] = (),
    ) -> None:
        """A row of as many lines as it needs; `styles` are those of the cells."""
        columns = [_fold(clean(cell), width) for cell, width in zip(cells, widths, strict=True)]
        last = len(widths) - 1
        row = Text(overflow="fold")
        for number, parts in enumerate(zip_longest(*columns, fillvalue="")):
            row.append("\n" if number else "")
            for at, (part, width) in enumerate(zip(parts, widths, strict=True)):
                padded = part.rjust(width) if at in right else part.ljust(width)
                row.append("  ")
                row.append(
                    part if at == last and at not in right else padded,
                    style=styles[at] if at < len(styles) else None,
                )
        self._put(row)

    def _put(self, text: Text) -> None:
        self._console.print(text)


class Picture(Coloured):
    """A terminal's page that is kept, to be shown as a whole in place of the one before it.

    It is of the terminal's size at its beginning: that may change while it is drawn.
    """

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._size = console.size
        self._lines: list[Text] = []

    @property
    def width(self) -> int:  # type: ignore[override]
        """The terminal's, at the beginning."""
        return self._size.width

    def _put(self, text: Text) -> None:
        wrapped = text.wrap(self._console, self.width, overflow="fold")
        for line in wrapped:
            line.rstrip()
        self._lines.extend(wrapped)

    def shown(self, last: str = "") -> Group:
        """As many lines as the terminal has room for, and `last` at its lower end."""
        room = max(1, self._size.height)
        body, more = self._lines, Text(clean(last), style="dim", overflow="fold")
        if len(body) > room - 1:
            left = len(body) - max(0, room - 1)
            body = body[: max(0, room - 1)]
            more = Text(f"... {left} more lines: the window is too small", style="yellow")
        more.truncate(self.width)
        return Group(*body, *([more] if more.plain else []))


def page_on(out: TextIO) -> Plain:
    """In colours on a terminal, plain text elsewhere."""
    console = Console(file=out)
    return Coloured(console) if is_terminal(out) else Plain(out)


def is_terminal(out: TextIO) -> bool:
    """Whether colours and a cursor can be had."""
    return out.isatty() and not Console(file=out).is_dumb_terminal


def clean(text: str) -> str:
    r"""A foreign text on one line, with nothing that a terminal would obey.

    >>> clean("a\x1b[31mb\nc")
    'a\\x1b[31mb\\nc'
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def say(kind: Literal["error", "hint", "warning"], text: str, out: TextIO | None = None) -> None:
    r"""One line for people beside the output, on standard error. All of them are printed here.

    >>> import sys
    >>> say("error", "no b\n\x1b[31merror: forged", sys.stdout)
    error: no b\n\x1b[31merror: forged
    """
    print(f"{kind}: {clean(text)}", file=out or sys.stderr)


def moment_text(moment: datetime) -> str:
    """A time in one word, in UTC, to the second below."""
    try:
        return f"{moment.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"
    except OverflowError:  # of a year that is none in UTC
        return moment.isoformat()


def _fold(cell: str, width: int) -> list[str]:
    """A cell's lines: broken between words where it has any, else as much as fits.

    >>> _fold("2026-01-02 03:04:05Z", 12), _fold("abcdef", 4)
    (['2026-01-02', '03:04:05Z'], ['abcd', 'ef'])
    """
    words = cell.split(" ") if len(cell) > width else [cell]
    return [word[at : at + width] for word in words for at in range(0, len(word), width)]


@contextmanager
def progress_of(what: str) -> Iterator[Callable[[int, int], None]]:
    """A bar on standard error for what has many steps, if that is a terminal."""
    console = Console(stderr=True)
    with Progress(
        console=console, transient=True, disable=not console.is_terminal or console.is_dumb_terminal
    ) as bar:
        task = bar.add_task(what, visible=False)
        yield lambda done, total: bar.update(
            task, completed=done, total=total, visible=total >= _LONG
        )
