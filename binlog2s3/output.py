"""Output for people: plain text for pipes, coloured and wrapped lines for terminals.

Law: text from the bucket or from a server can neither break lines nor control a terminal. Nothing
is cut: what does not fit is wrapped.
"""

import re
import sys
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import compress, zip_longest
from typing import Literal, TextIO

from rich.console import Console, Group
from rich.text import Text

from binlog2s3.errors import RecoveryError
from binlog2s3.journal import is_journal, priority

Field = tuple[str, str, str]
"""A name, its value, a style; without a name it continues the field above."""
_LEAST_VALUE = 24
"""If a value has fewer columns than this beside its name, it is printed below the name."""
_BREAK = re.compile(r" |(?<=\d)T(?=\d\d:)")
"""Where the cell of a table is broken first: between words, and between date and clock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column of a table, as wide as its cells.

    `least`: how narrow it may become if the terminal has no room, 0: no narrower than its cells.
    `below`: it is the last one, and stands below its row if there is no room beside it.
    """

    name: str
    right: bool = False
    least: int = 0
    below: bool = False


class Table:
    """A table on a page: its headings, and a row at a time, with other lines between them.

    If the terminal has no room, columns become narrower, the widest first. If that is not enough, a
    row is a line with its first `head` cells, and the other ones below it, with their names.
    """

    def __init__(
        self, page: "Plain", columns: Sequence[Column], rows: Sequence[Sequence[str]], head: int = 1
    ) -> None:
        self._page = page
        self._head = head
        self._columns = columns
        self._below = False
        cells = zip(*([column.name for column in columns], *rows), strict=True)
        natural = [max(len(clean(cell)) for cell in column) for column in cells]
        widths = _fitted(columns, natural, page.width)
        if widths is None and columns[-1].below:
            self._below, self._columns = True, columns[:-1]
            widths = _fitted(self._columns, natural[:-1], page.width)
        self._widths = widths
        self._right = [at for at, column in enumerate(columns) if column.right]
        if widths is not None:
            names = [column.name for column in self._columns]
            page.row(names, widths, ["bold"] * len(widths), self._right)

    def row(self, cells: Sequence[str], styles: Sequence[str] = ()) -> None:
        """Print a row; `styles` are those of its cells."""
        shown = cells[: len(self._columns)]
        if self._widths is not None:
            self._page.row(shown, self._widths, styles, self._right)
        else:
            self._page.line("  ".join(shown[: self._head]), next(filter(None, styles), ""))
            rest = zip(self._columns[self._head :], shown[self._head :], strict=True)
            self._page.line(", ".join(f"{column.name} {cell}" for column, cell in rest), indent=2)
        if self._below and cells[-1] != "-":
            self._page.line(f"    {cells[-1]}", "dim")


def _fitted(
    columns: Sequence[Column], natural: Sequence[int], room: int | None
) -> list[int] | None:
    """Widths of columns on a line of this length; None if they have no room on it."""
    if room is None:
        return list(natural)
    least = [min(one.least or width, width) for one, width in zip(columns, natural, strict=True)]
    widths = [max(low, min(width, room)) for low, width in zip(least, natural, strict=True)]
    while sum(widths) + 2 * len(widths) > room:
        gives = [width > low for width, low in zip(widths, least, strict=True)]
        if not any(gives):
            return None
        widest = max(compress(widths, gives))  # equal ones stay equal
        widths = [w - (give and w == widest) for w, give in zip(widths, gives, strict=True)]
    return widths


class Plain:
    """Plain text: columns as wide as necessary, no colours; styles are ignored."""

    width: int | None = None
    """Columns of a line; None: no limit."""

    def __init__(self, out: TextIO) -> None:
        self._out = out

    @property
    def ascii_only(self) -> bool:
        """Whether only ASCII can be shown."""
        return "utf" not in (getattr(self._out, "encoding", None) or "utf-8").lower()

    def line(self, text: str, style: str = "", *, indent: int = 0) -> None:
        """A line; what is wrapped is as far indented as its beginning."""
        if indent:
            self.field("", text, indent, style)
        else:
            self._put([(clean(text), style)])

    def fields(self, fields: Iterable[Field], room: int, *, indent: int = 0) -> None:
        """Values, one below the other, each after its name; `room`: columns of a name."""
        for name, value, style in fields:
            self.field(f"{' ' * indent}{name}", value, indent + room, style)

    def field(self, name: str, value: str, room: int, style: str = "") -> None:
        """A value after its name, which takes `room` columns; below it on a narrow terminal."""
        name, value = clean(name), clean(value)
        beside = self.width is None or self.width - room >= _LEAST_VALUE
        indent = room if self.width is None or beside else min(2, self.width - 1)
        margin = " " * indent
        head = f"{name:<{room}}" if beside else f"{name}\n{margin}" if name else margin
        parts = [(head, "dim")]
        for number, text in enumerate(self._wrapped(value, indent)):
            parts += [(f"\n{margin}" if number else "", ""), (text, style or "default")]
        self._put(parts)

    def row(
        self,
        cells: Sequence[str],
        widths: Sequence[int],
        styles: Sequence[str] = (),
        right: Collection[int] = (),
    ) -> None:
        """A row of a table, with as many lines as it needs; `styles` are those of the cells.

        The cells at `right` are aligned to the right. The layout is done here, because rich's own
        table takes milliseconds for each row.
        """
        rooms = widths if self.width is not None else [0] * len(widths)
        columns = [_fold(clean(cell), room) for cell, room in zip(cells, rooms, strict=True)]
        last = len(widths) - 1
        parts: list[tuple[str, str]] = []
        for number, line in enumerate(zip_longest(*columns, fillvalue="")):
            for at, (part, width) in enumerate(zip(line, widths, strict=True)):
                padded = part.rjust(width) if at in right else part.ljust(width)
                parts.append(("\n  " if number and not at else "  ", ""))
                shown = part if at == last and at not in right else padded
                parts.append((shown, styles[at] if at < len(styles) else ""))
        self._put(parts)

    def _wrapped(self, text: str, indent: int) -> list[str]:
        """The lines of a text, each of which follows an indent."""
        del indent
        return [text]

    def _put(self, parts: Sequence[tuple[str, str]]) -> None:
        """Print texts, each with its style."""
        text = "".join(text for text, _ in parts).rstrip(" ")
        if self.ascii_only:
            text = text.encode("ascii", "backslashreplace").decode()
        print(text, file=self._out)


class Coloured(Plain):
    """A terminal: colours, and what does not fit is wrapped, between words if possible."""

    def __init__(self, console: Console) -> None:
        super().__init__(console.file)  # type: ignore[arg-type]
        self._console = console

    @property
    def width(self) -> int:  # type: ignore[override]
        """The current width of the terminal."""
        return self._console.width

    def _wrapped(self, text: str, indent: int) -> list[str]:
        lines = Text(text).wrap(self._console, self.width - indent, overflow="fold")
        return [line.plain.rstrip() for line in lines]

    def _put(self, parts: Sequence[tuple[str, str]]) -> None:
        self._print(Text.assemble(*parts, overflow="fold"))

    def _print(self, text: Text) -> None:
        self._console.print(text)


class Picture(Coloured):
    """A page that is collected first, to replace the page on the terminal at once.

    It has the size that the terminal has at the beginning: that may change meanwhile.
    """

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._size = console.size
        self._lines: list[Text] = []

    @property
    def width(self) -> int:  # type: ignore[override]
        """The width of the terminal at the beginning."""
        return self._size.width

    def _print(self, text: Text) -> None:
        wrapped = text.wrap(self._console, self.width, overflow="fold")
        for line in wrapped:
            line.rstrip()
        self._lines.extend(wrapped)

    def shown(self, last: str = "") -> Group:
        """As many lines as fit on the terminal, and `last` at the bottom."""
        room = max(1, self._size.height)
        body, more = self._lines, Text(clean(last), style="dim", overflow="fold")
        if len(body) > room - 1:
            left = len(body) - max(0, room - 1)
            body = body[: max(0, room - 1)]
            more = Text(f"... {left} more lines: the window is too small", style="yellow")
        more.truncate(self.width)
        return Group(*body, *([more] if more.plain else []))


def page_on(out: TextIO) -> Plain:
    """Colours on a terminal, plain text elsewhere."""
    console = Console(file=out)
    return Coloured(console) if is_terminal(out) else Plain(out)


def is_terminal(out: TextIO) -> bool:
    """Whether it is a terminal with colours and a cursor."""
    return out.isatty() and not Console(file=out).is_dumb_terminal


def clean(text: str) -> str:
    r"""A foreign text on one line, without control characters.

    >>> clean("a\x1b[31mb\nc")
    'a\\x1b[31mb\\nc'
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def say(kind: Literal["error", "hint", "warning"], text: str, out: TextIO | None = None) -> None:
    r"""Print one line on standard error. All errors, hints and warnings are printed here.

    >>> import sys
    >>> say("error", "no b\n\x1b[31merror: forged", sys.stdout)
    error: no b\n\x1b[31merror: forged
    """
    out = out or sys.stderr
    before = priority(kind) if out and is_journal(out) else ""
    print(f"{before}{kind}: {clean(text)}", file=out)


NO_CHANGE = "dry run: nothing was changed"
_QUESTIONS = 3
_ANSWERS = {"y": True, "yes": True, "n": False, "no": False}


def confirm(
    question: str,
    done: str,
    *,
    hint: str,
    as_json: bool = False,
    answers: TextIO | None = None,
    out: TextIO | None = None,
) -> None:
    """Ask on the terminal. Raises RecoveryError if the answer is not yes, or nobody can be asked.

    Any other answer than yes or no is asked again. The question goes to standard error, the answer
    comes from standard input. `done`: what is not done then, as a participle.
    """
    answers, out = answers or sys.stdin, out or sys.stderr
    if as_json:
        raise RecoveryError(f"not {done}: --json does not ask", hint=hint)
    if not (answers and answers.isatty() and out and out.isatty()):
        raise RecoveryError(f"not {done}: there is no terminal to ask on", hint=hint)
    for _ in range(_QUESTIONS):
        print(clean(f"{question} [yes/no] "), end="", file=out, flush=True)
        line = answers.readline()
        answer = _ANSWERS.get(line.strip().lower(), None if line else False)
        if answer:
            return
        if answer is not None:
            break
    raise RecoveryError(f"not {done}: the answer was not yes", hint="nothing was changed")


def _fold(cell: str, width: int) -> list[str]:
    """The lines of a cell: broken where it is easy to read if possible, else at the width.

    Width 0: no limit.

    >>> _fold("2026-01-02T03:04:05Z", 12), _fold("a b", 3), _fold("abcdef", 4)
    (['2026-01-02', '03:04:05Z'], ['a b'], ['abcd', 'ef'])
    """
    if not 0 < width < len(cell):
        return [cell]
    words = _BREAK.split(cell)
    return [word[at : at + width] for word in words for at in range(0, len(word), width)]
