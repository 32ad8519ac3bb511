"""What the terminal shows of `status` and `pitr`, as SVG: the pictures of README.md.

rich exports what it printed. `lab.reference` writes the files, and a test compares them.
"""

from collections.abc import Callable
from dataclasses import replace
from io import StringIO

from rich.console import Console

from binlog2s3.output import Coloured
from binlog2s3.recover.view import print_plan, print_result
from binlog2s3.status.text import print_status
from lab import pitr_examples, status_examples

_WIDTH = 92


def _svg(title: str, show: Callable[[Coloured], None]) -> str:
    console = Console(
        file=StringIO(),
        width=_WIDTH,
        record=True,
        force_terminal=True,
        color_system="truecolor",
        _environ={},
    )
    show(Coloured(console))
    # the id is otherwise a checksum of what was printed; a fixed one keeps the file stable
    svg = console.export_svg(title=title, unique_id=title.replace(" ", "-"))
    return "\n".join(line.rstrip() for line in svg.splitlines()) + "\n"


def status() -> str:
    """`status` of an idle source."""

    def show(page: Coloured) -> None:
        print_status(status_examples.IDLE, page, now=status_examples.NOW)

    return _svg("binlog2s3 status", show)


def pitr() -> str:
    """`pitr --before-gtid`: the plan with one transaction on each side, and the result."""
    plan = replace(
        pitr_examples.PLAN,
        kept=pitr_examples.PLAN.kept[-1:],
        left_out=pitr_examples.PLAN.left_out[:1],
    )

    def show(page: Coloured) -> None:
        print_plan(plan, pitr_examples.ABOUT, page)
        print_result(pitr_examples.RESULT, page)

    return _svg("binlog2s3 pitr", show)


PICTURES: dict[str, Callable[[], str]] = {
    "docs/images/status.svg": status,
    "docs/images/pitr.svg": pitr,
}
