"""What `undo` shows: the plan, what was done, and both for programs.

Texts of the bucket and of the server are cleaned: they cannot break lines or control a terminal.
"""

import shlex
import tempfile
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Annotated

from binlog2s3.archive.codec import AsText, Printed, TextOrNull, When, of, printed
from binlog2s3.binlog.names import BinlogName
from binlog2s3.binlog.tables import RowsKind
from binlog2s3.binlog.undo import Changes
from binlog2s3.config.undo import UndoConfig
from binlog2s3.errors import SourceError
from binlog2s3.formatting import count_text, iso_text, size_text
from binlog2s3.inspect.find.match import Hit
from binlog2s3.inspect.find.rows import RowPrinter
from binlog2s3.inspect.find.view import row_lines
from binlog2s3.output import Column, Plain, Table
from binlog2s3.server.connection import ServerFacts
from binlog2s3.undo.execute import Undone
from binlog2s3.undo.tables import Definition
from binlog2s3.undo.transactions import name_of

SHOWN_ROWS = 5
"""So many rows of the transactions are in a plan."""
_SHOWN_TRANSACTIONS = 20
_VERBS: dict[RowsKind, str] = {
    "insert": "rows to delete again",
    "update": "rows to set back",
    "delete": "rows to insert again",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is to be undone: transactions, oldest first, and their changes.

    `undone_by`: the later transaction that has undone them already; "": none is known.
    """

    hits: tuple[Hit, ...]
    changes: Changes
    definitions: dict[int, Definition]
    form: bytes
    facts: ServerFacts
    undone_by: str = ""
    notes: tuple[str, ...] = field(default=())


def show(plan: Plan, config: UndoConfig, address: str, page: Plain, printer: RowPrinter) -> None:
    """Print the plan. `address`: where the server is."""
    count = count_text(len(plan.hits), "transaction")
    page.line(f"undo of {count} of {config.source} on {address}", "bold")
    for hit in plan.hits[:_SHOWN_TRANSACTIONS]:
        page.line(f"{iso_text(hit.transaction.commit_us)}  {name_of(hit)}", indent=2)
    if len(plan.hits) > _SHOWN_TRANSACTIONS:
        page.line(f"... and {len(plan.hits) - _SHOWN_TRANSACTIONS:,} more", indent=2)
    rows = [(name, _VERBS[kind], f"{n:,}") for (name, kind), n in sorted(plan.changes.rows.items())]
    columns = (Column(name="table"), Column(name="what"), Column(name="rows", right=True))
    table = Table(page, columns, rows)
    for row in rows:
        table.row(row)
    page.line(f"{size_text(plan.changes.size)} of rows, in {tempfile.gettempdir()}")
    _show_rows(plan, page, printer, config.given)
    if plan.undone_by:
        page.line(f"undone already, by {plan.undone_by}, which was not undone since", "yellow")
    for note in plan.notes:
        page.line(f"note: {note}")


def _show_rows(plan: Plan, page: Plain, printer: RowPrinter, given: Sequence[str]) -> None:
    """Print the first rows, as far as a mysqlbinlog is there; say how to see them.

    They only illustrate the plan: what mysqlbinlog cannot do never stops an undo.
    """
    total, left = plan.changes.rows.total(), SHOWN_ROWS
    try:
        printer.tool(plan.facts.flavour)
        if total > SHOWN_ROWS:
            page.line(f"the first {SHOWN_ROWS} of {total:,} rows, as they were changed:")
        else:
            are = "row, as it was" if total == 1 else "rows, as they were"
            page.line(f"the {are} changed:")
        for hit in plan.hits:
            if not left:
                break
            left -= _print_rows(hit, page, replace(printer, limit=left))
    except SourceError as error:
        page.line(f"rows are not shown: {error}", "yellow")
    hit = plan.hits[0]
    which = (
        ("--gtid", hit.transaction.gtid)
        if hit.transaction.gtid
        else ("--at", f"{hit.binlog}:{hit.transaction.begin}")
    )
    page.line(f"its rows: {shlex.join(['binlog2s3', 'rows', *given, *which])}")


def _print_rows(hit: Hit, page: Plain, printer: RowPrinter) -> int:
    """Print rows of a transaction; how many they were."""
    shown = printer.begin(hit)
    with closing(printer.rows(hit, shown)) as rows:
        for row in rows:
            for text, style in row_lines(row):
                page.line(text, style, indent=2)
    for problem in shown.problems:
        page.line(problem, "yellow", indent=2)
    return shown.count


class PrintedTransaction(Printed):
    """A transaction that is undone."""

    gtid: str | None = of("transaction.gtid")
    binlog: BinlogName
    position: int = of("transaction.begin")
    lineage: str
    committed_at: When = of("transaction.commit_us")


class PrintedTable(Printed):
    """How many changes of one kind, in one table, are undone."""

    table: str
    kind: str
    rows: int


class PrintedConflict(Printed):
    """A row that was left out."""

    table: str
    key: str
    why: str


class PrintedUndo(Printed):
    """What --json prints. Fields are only added."""

    source: str = of("config.source")
    transactions: tuple[PrintedTransaction, ...] = of("plan.hits")
    tables: tuple[PrintedTable, ...]
    undone_by: TextOrNull = of("plan.undone_by")
    notes: tuple[str, ...] = of("plan.notes")
    done: bool
    output: AsText | None = of("config.output")
    gtid: TextOrNull = of("undone.gtid")
    rows: Annotated[int, Counter.total] | None = of("undone.rows")
    left_out: int | None = of("undone.skipped")
    conflicts: tuple[PrintedConflict, ...]


def document(plan: Plan, undone: Undone | None, config: UndoConfig) -> str:
    """The JSON document; `undone` is None if nothing was executed."""
    fields = {
        "config": config,
        "plan": plan,
        "undone": undone,
        "tables": [
            {"table": name, "kind": kind, "rows": rows}
            for (name, kind), rows in sorted(plan.changes.rows.items())
        ],
        "done": undone is not None,
        "conflicts": undone.conflicts if undone is not None else (),
    }
    return printed(PrintedUndo, fields)
