"""What people see of a recovery: the plan, the question, the result.

Where it stops is shown in several ways: in the operator's words, as an offset, and by the
transactions on both sides. Texts from the bucket cannot break lines or control a terminal. An
estimate says that it is one, and how it was made.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from binlog2s3.binlog.content import AlterName, Content, TwoPhase
from binlog2s3.binlog.gtid import Flavour, Gtids, GtidSet, MariadbGtidList
from binlog2s3.config.goal import BeforeGtid, Goal, ToGtid, ToPosition, ToTime
from binlog2s3.formatting import (
    count_text,
    duration_text,
    gtids_text,
    iso_text,
    moment_text,
    size_text,
)
from binlog2s3.output import Column, Field, Plain, Table, say
from binlog2s3.recover.base_check import BaseCheck
from binlog2s3.recover.model import BinlogPosition, Plan, PlanPiece, Shown
from binlog2s3.recover.one_table import OnlyTables

_ROOM = 11
_MOST_ROWS = 24
"""Of more binlogs than this, only the first and the last are shown, and how many are between."""
_COLUMNS = (
    Column(name="binlog"),
    Column(name="bytes", right=True),
    Column(name="transactions", right=True),
    Column(name="left out", right=True),
    Column(name="from"),
    Column(name="up to"),
    Column(name="last commit", least=len("2026-01-02")),
    Column(name="lineage"),
)
RATES = (2000, 50_000_000)
"""Transactions and bytes a second that servers were measured to apply, roughly."""
_ONCE: Mapping[Flavour, Sequence[str]] = {
    "mysql": (
        "afterwards nothing in the target shows that this was done:",
        "the same command would apply all of it a second time",
    ),
    "mariadb": (
        "afterwards gtid_slave_pos is all in the target that shows that this was done:",
        "by it the same command is refused a second time",
    ),
}
How = Literal["replication", "output-dir", "nothing"]


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """What is shown with a plan and is not part of it.

    `archive` is the bucket's URL; `target` the server as messages name it, "" if there is none;
    `start` says in words where the start comes from, `streamer` when the streamer last reported, ""
    if that does not matter. `leaves_hole`: skipped transactions are not
    committed empty. `applies`: the plan is applied to a target. `once`: the target has no GTIDs
    that tell all that was applied. `only`: some tables only.
    """

    source: str
    archive: str
    target: str = ""
    start: str = ""
    streamer: str = ""
    leaves_hole: bool = False
    applies: bool = False
    once: bool = False
    only: OnlyTables | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What was done. `gtids` is what the target has at the end, None if it keeps none.

    `stands_at` is where such a target ends up, `gtid_slave_pos` is a MariaDB's, after a
    plan was applied. `proved` says in words what was compared with the plan, "" if nothing could
    be, or if there are `doubts`: why the rows may not be the source's. `untold`: why the target
    itself does not tell all that was applied. `committed_empty` are skipped GTIDs;
    `disabled_events` the statements that enable the events that a replica disables. `where` is the
    directory or server that was written to. `only_tables`: only these were applied.
    `base_backup`: what is known of it; None if no server was written to. `prepared`: the names of
    the target's XA transactions that are prepared; None if no server was written to, or it does not
    tell.
    """

    how: How
    where: str = ""
    transactions: int = 0
    size: int = 0
    seconds: float = 0.0
    gtids: Gtids | None = None
    stands_at: BinlogPosition | None = None
    gtid_slave_pos: MariadbGtidList | None = None
    committed_empty: str = ""
    disabled_events: tuple[str, ...] = ()
    proved: str = ""
    doubts: tuple[str, ...] = ()
    untold: str = ""
    files: tuple[str, ...] = ()
    only_tables: tuple[str, ...] = ()
    base_backup: BaseCheck | None = None
    prepared: tuple[str, ...] | None = None


# The plan


def print_plan(plan: Plan, about: About, page: Plain) -> None:
    """Print a plan onto a page."""
    page.line(f"{about.source}  {goal_text(plan.goal)}", "bold")
    page.line("")
    page.fields(_fields(plan, about), _ROOM)
    _print_pieces(plan, page)
    _print_shown("last transactions kept", plan.kept, "green", page)
    _print_shown("first transactions left out", plan.left_out, "yellow", page)
    _print_shown("left out, though their times are not later", plan.disorder, "yellow", page)
    _print_shown("begun, and neither committed nor rolled back", plan.pending, "yellow", page)
    if not plan.left_out:
        page.line("")
        page.line("there is nothing after that in this history")
    _print_unsafe(about.only, page)
    if plan.warnings:
        page.line("")
    for warning in plan.warnings:
        page.line(f"warning: {warning}", "yellow")
    page.line("")


def warn_of(plan: Plan, about: About) -> None:
    """Say on stderr what a plan warns of, for who gets JSON, or no plan at all."""
    for warning in plan.warnings:
        say("warning", warning)
    for text in about.only.unsafe if about.only is not None else ():
        say("warning", f"cannot be filtered safely: {text}")


def _print_unsafe(only: OnlyTables | None, page: Plain) -> None:
    if only is None or not only.unsafe:
        return
    page.line("")
    page.line("cannot be filtered safely", "bold")
    for text in only.unsafe:
        page.line(text, "yellow", indent=2)


def goal_text(goal: Goal) -> str:
    """Where to stop, as it was asked for."""
    if isinstance(goal, ToTime):
        at = iso_text(goal.at_us)
        as_given = "" if goal.text == at else f" ({goal.text})"
        return f"to {at}{as_given}: before the first transaction that was committed later"
    if isinstance(goal, ToGtid):
        return f"to {goal.gtid}, included"
    if isinstance(goal, BeforeGtid):
        return f"to just before {goal.gtid}"
    if isinstance(goal, ToPosition):
        return f"to {goal.position}"
    return "to the newest that is in the bucket"


def stop_text(plan: Plan) -> str:
    """Where it stops, exactly: the offset, and the transactions on both sides."""
    text = str(plan.stop)
    if plan.kept and (gtid := plan.kept[-1].transaction.gtid):
        text += f", after {gtid}"
    if plan.left_out and (gtid := plan.left_out[0].transaction.gtid):
        text += f", before {gtid}"
    return text


def estimate_seconds(plan: Plan) -> float:
    """How long an apply may take; a server may need a third or three times as long."""
    transactions, size = RATES
    return max(plan.transactions / transactions, plan.size / size)


def _fields(plan: Plan, about: About) -> Iterator[Field]:
    yield "history", f"{about.archive}, {plan.flavour} {plan.server_version}", ""
    yield "", f"lineage {plan.lineage}", ""
    for other in plan.others:
        yield "", f"not on it: {other}", "dim"
    if about.target:
        yield "target", about.target, ""
    if plan.pieces:
        first = plan.pieces[0]
        start = f" ({about.start})" if about.start else ""
        yield "from", f"{first.binlog}:{first.begin}{start}", ""
    elif about.start:
        yield "from", about.start, ""
    if plan.before is not None:
        yield "", f"has {gtids_text(str(plan.before)) or 'no GTIDs'}", ""
    yield "to", stop_text(plan), "bold"
    if plan.pieces:
        yield "apply", plan.amount, ""
        yield from _way_fields(plan, about)
    else:
        yield "apply", "nothing: the target has all of it", ""
    yield from _only_fields(about.only)
    if plan.adds:
        yield "", f"adds {gtids_text(str(plan.adds))}", ""
    yield from _exceptional_fields(plan, about)
    if not plan.commit_exact:
        yield (
            "times",
            "in whole seconds: these binlogs have no exact commit times",
            "yellow",
        )
    words = filter(None, (plan.reach.times, plan.reach.positions, plan.reach.besides))
    for number, text in enumerate(words):
        yield "" if number else "reachable", text, ""
    if about.streamer:
        yield "", about.streamer, "yellow"


def _exceptional_fields(plan: Plan, about: About) -> Iterator[Field]:
    if plan.holes:
        yield "holes", f"{gtids_text(plan.holes)} (applied first: --allow-holes)", "yellow"
    if plan.skipped:
        then = "then committed empty" if committed_empty(plan, about) else "their GTIDs stay unused"
        yield "skip", f"{plan.skipped_text} ({then})", "yellow"


def _only_fields(only: OnlyTables | None) -> Iterator[Field]:
    if only is not None:
        yield "only", ", ".join(only.tables), "bold"
        yield "", "the target is marked first: its other tables stay as they are", ""


def committed_empty(plan: Plan, about: About) -> GtidSet | None:
    """The skipped GTIDs that are committed empty, which MariaDB cannot do; None if none are."""
    if about.leaves_hole or not isinstance(plan.skipped, GtidSet):
        return None
    return plan.skipped or None


def _way_fields(plan: Plan, about: About) -> Iterator[Field]:
    if about.applies:
        yield "", "the target replicates it from this process", ""
    if about.once:
        yield from (("", line, "") for line in _ONCE[plan.flavour])
    seconds = max(1.0, estimate_seconds(plan))
    transactions, size = RATES
    rates = f"{transactions} transactions or {size // 10**6} MB a second, the slower one"
    yield "", f"roughly {duration_text(seconds, up=True)} (at {rates}; servers differ)", ""


def _print_pieces(plan: Plan, page: Plain) -> None:
    if not plan.pieces:
        return
    page.line("")
    pieces: Sequence[PlanPiece] = plan.pieces
    half = _MOST_ROWS // 2
    between = pieces[half:-half] if len(pieces) > _MOST_ROWS else ()
    several = len({piece.lineage for piece in pieces}) > 1
    shown = (*pieces[:half], *pieces[-half:]) if between else pieces
    rows = [_cells(piece, several=several) for piece in shown]
    table = Table(page, _COLUMNS if several else _COLUMNS[:-1], rows)
    for at, cells in enumerate(rows):
        if between and at == half:
            size, count = sum(p.size for p in between), sum(p.transactions for p in between)
            text = f"... {count_text(len(between), 'binlog')} more, {size} bytes, "
            page.line(f"  {text}{count_text(count, 'transaction')}", "dim")
        table.row(cells)


def _cells(piece: PlanPiece, *, several: bool) -> tuple[str, ...]:
    cells = (
        str(piece.binlog),
        str(piece.size),
        str(piece.transactions),
        str(piece.left_out_size or "-"),
        str(piece.begin),
        str(piece.end),
        moment_text(piece.greatest_commit_us, "-"),
    )
    return (*cells, piece.lineage) if several else cells


def _print_shown(title: str, shown: Sequence[Shown], style: str, page: Plain) -> None:
    if not shown:
        return
    page.line("")
    page.line(title, "bold")
    for transaction in shown:
        page.line(_head_of(transaction), style, indent=2)
        for line in content_lines(transaction.content):
            page.line(line, indent=6)


def _head_of(shown: Shown) -> str:
    transaction = shown.transaction
    text = iso_text if transaction.commit_exact else moment_text
    when = text(transaction.commit_us)
    where = f"{shown.binlog}:{transaction.begin}-{transaction.end}"
    return f"{when}  {transaction.gtid or 'no GTID'}  {where}"


def content_lines(content: Content) -> Iterator[str]:
    """What a transaction does, in a few lines."""
    if content.two_phase is not None:
        yield phase_text(content.two_phase)
    lines = content.lines()
    yield from lines
    if not lines and content.two_phase is None:
        yield "(unknown content)"


def phase_text(phase: TwoPhase) -> str:
    """What one phase of what has two does, in words."""
    if isinstance(phase.name, AlterName):
        began = f"the GTID {phase.name.domain}-...-{phase.name.number}"
        return {
            "prepare": "begins an ALTER, which takes effect with its COMMIT only",
            "commit": f"commits the ALTER that {began} began",
            "rollback": f"rolls back the ALTER that {began} began, which changes nothing",
        }[phase.phase]
    name = f"XA {phase.name}" if phase.name is not None else "an XA transaction"
    return {
        "prepare": f"prepares {name}, which takes effect with its XA COMMIT only",
        "commit": f"commits {name}",
        "rollback": f"rolls back {name}",
    }[phase.phase]


# The question and the result


def question_text(plan: Plan, about: About) -> str:
    """What is asked before the plan is applied."""
    return f"apply {count_text(plan.transactions, 'transaction')} to {about.target}?"


def print_result(result: Result, page: Plain) -> None:
    done = f"{count_text(result.transactions, 'transaction')}, {size_text(result.size)}"
    if result.how == "nothing":
        page.line("nothing to do: the target has all of it", "bold green")
    elif result.how == "replication":
        took = duration_text(result.seconds)
        page.line(f"applied to {result.where}: {done} in {took}", "bold green")
    else:
        page.line(f"written to {result.where}: {done}", "bold green")
    if result.committed_empty:
        page.line(f"committed empty: {result.committed_empty}")
    if result.how == "output-dir" and result.files:
        page.line(
            "warning: mysqlbinlog | mysql is dangerous: README.txt there says why, and what to do "
            "instead",
            "yellow",
        )
    print_disabled(result.disabled_events, page)
    for name in result.prepared or ():
        page.line(
            f"prepared, neither committed nor rolled back: XA {name}; it holds its locks until "
            "XA COMMIT or XA ROLLBACK, which the history may have later",
            "yellow",
        )
    if result.stands_at is not None:
        at, pos = result.stands_at, result.gtid_slave_pos
        shows = "nothing" if pos is None else f"gtid_slave_pos {pos}"
        page.line(
            f"{shows} in the target shows that it is at {at} now; to continue from there: "
            f"--from-lineage {at.lineage} --from-binlog {at.binlog} --from-position {at.offset}"
        )
    for line, style in proof_lines(result):
        page.line(line, style)


def print_disabled(statements: Sequence[str], page: Plain) -> None:
    """Print the statements that enable events which a replica disables, if there are any."""
    if statements:
        page.line(
            "replication disabled these events; enable those that the source had enabled:", "yellow"
        )
    for statement in statements:
        page.line(f"  {statement}")


def proof_lines(result: Result) -> Iterator[tuple[str, str]]:
    """What was compared with the plan, or that nothing could be: lines with their styles."""
    for table in result.only_tables:
        yield f"only this table was applied: {table}", "yellow"
    if result.gtids is not None:
        yield f"the target's GTIDs: {result.gtids or 'none'}", "dim"
    base = f"; the base backup {result.base_backup.words}" if result.base_backup is not None else ""
    if result.proved:
        yield f"proved: {result.proved}{base}", ""
    *others, last = (*result.doubts, *filter(None, (result.untold,))) or ("",)
    for reason in others:
        yield f"not proved: {reason}", "yellow"
    if last:
        yield f"not proved: {last}{base}", "yellow"
