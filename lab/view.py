"""What the demo shows: a table that lives on a terminal, a line a second elsewhere.

Values in, pictures out: `Look` is one look at server, spool and bucket, taken by `lab.demo`.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import monotonic

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

ROWS = 14
PLAIN_SECONDS = 1.0
STYLES = {"archived": "green", "uploading": "yellow", "writing": "cyan", "waiting": "dim"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One binlog of the server; `parts` are those of its unfinished upload."""

    name: str
    size: int
    state: str
    parts: int = 0

    @property
    def text(self) -> str:
        """The state in words."""
        noun = "part" if self.parts == 1 else "parts"
        return f"{self.state}, {self.parts} {noun} sent" if self.parts else self.state


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """One look at everything."""

    phase: str
    seconds: float
    rows: tuple[Row, ...]
    transactions: int
    rate: float
    spool_bytes: int

    @property
    def archived(self) -> tuple[Row, ...]:
        """The binlogs that are in the archive."""
        return tuple(row for row in self.rows if row.state == "archived")

    @property
    def summary(self) -> str:
        """Totals in one line."""
        done = sum(row.size for row in self.archived)
        return (
            f"{self.seconds:3.0f} s  {self.phase}: {self.transactions:,} commits"
            f" ({self.rate:,.0f}/s); archived {len(self.archived)} of {len(self.rows)} binlogs,"
            f" {size_text(done)}; spool {size_text(self.spool_bytes)}"
        )


def size_text(size: int) -> str:
    """A size for people: 212 MB."""
    for unit, factor in (("GB", 1_000_000_000), ("MB", 1_000_000), ("kB", 1_000)):
        if size >= factor:
            number = size / factor
            return f"{number:.1f} {unit}" if number < 10 else f"{number:.0f} {unit}"
    return f"{size} B"


def _table(look: Look) -> Group:
    table = Table(box=None, pad_edge=False)
    for heading, justify in (("binlog", "left"), ("on the server", "right"), ("state", "left")):
        table.add_column(heading, justify="right" if justify == "right" else "left")
    earlier = look.rows[:-ROWS]
    for row in look.rows[-ROWS:]:
        state = Text(row.text, style=STYLES.get(row.state, ""))
        table.add_row(row.name, size_text(row.size), state)
    above = [Text(f"({len(earlier)} earlier ones)", style="dim")] if earlier else []
    return Group(*above, table, Text(look.summary, style="bold"))


def _line(look: Look) -> str:
    under_way = [f"{row.name} {row.text}" for row in look.rows if row.parts]
    return "; ".join([look.summary, *under_way[-2:]])


@contextmanager
def shown(console: Console) -> Iterator[Callable[[Look], None]]:
    """A function that shows a look: live on a terminal, else at most one line a second."""
    if console.is_terminal and not console.is_dumb_terminal:
        with Live(console=console, auto_refresh=False) as live:
            yield lambda look: live.update(_table(look), refresh=True)
        return
    last = -PLAIN_SECONDS

    def line(look: Look) -> None:
        nonlocal last
        if monotonic() - last >= PLAIN_SECONDS:
            last = monotonic()
            console.print(_line(look), highlight=False, soft_wrap=True)

    yield line
