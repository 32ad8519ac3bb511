"""A recovery for programs: the JSON of `pitr --json`.

Fields are only added. GTID sets are text, times ISO 8601 in UTC, sizes in bytes.
"""

from typing import Annotated, Any

from binlog2s3.archive.codec import (
    AsText,
    CommitTimes,
    Printed,
    PrintedDocument,
    Seconds,
    TextOrNull,
    When,
    of,
)
from binlog2s3.binlog.names import BinlogName
from binlog2s3.config.goal import BeforeGtid, Goal, Latest, ToGtid, ToPosition, ToTime
from binlog2s3.formatting import iso_text
from binlog2s3.recover.model import Plan
from binlog2s3.recover.view import About, Result, committed_empty, estimate_seconds

_GOALS = {
    ToTime: "time",
    ToGtid: "gtid",
    BeforeGtid: "before-gtid",
    ToPosition: "position",
    Latest: "latest",
}


def _goal(goal: Goal) -> dict[str, Any]:
    """Where to stop, as it was asked for."""
    document: dict[str, Any] = {"to": _GOALS[type(goal)]}
    if isinstance(goal, ToTime):
        document["time"] = iso_text(goal.at_us)
    elif isinstance(goal, ToGtid | BeforeGtid):
        document["gtid"] = goal.gtid
    elif isinstance(goal, ToPosition):
        document |= {"binlog": str(goal.position.binlog), "offset": goal.position.offset}
    return document


def _estimate(plan: Plan) -> float:
    return round(estimate_seconds(plan), 1)


def _skipped(plan: Plan) -> str | None:
    return None if plan.skipped is None else plan.skipped_text


def _or_null(values: tuple[str, ...]) -> list[str] | None:
    return list(values) or None


class PrintedPlace(Printed):
    lineage: str
    binlog: BinlogName
    offset: int


class PrintedPiece(Printed):
    """The part of a binlog that is applied."""

    lineage: str
    binlog: BinlogName
    begin: int
    end: int
    left_out: tuple[tuple[int, int], ...]
    bytes: int = of("size")
    transactions: int
    gtids: TextOrNull
    greatest_commit: When | None = of("greatest_commit_us")


class PrintedChange(Printed):
    kind: str
    table: TextOrNull
    rows: int | None


class PrintedShown(Printed):
    """One transaction."""

    lineage: str
    binlog: BinlogName
    begin: int = of("transaction.begin")
    end: int = of("transaction.end")
    gtid: str | None = of("transaction.gtid")
    committed: When = of("transaction.commit_us")
    commit_time: CommitTimes = of("transaction.commit_exact")
    compressed: bool = of("content.compressed")
    changes: tuple[PrintedChange, ...] = of("content.changes")
    statements: tuple[str, ...] = of("content.statements")


class PrintedReachable(Printed):
    first: PrintedPlace
    last: PrintedPlace
    earliest: When = of("earliest_us")
    latest: When | None = of("latest_us")
    gtids: AsText | None


class PrintedOnly(Printed):
    """That only some tables are applied."""

    tables: tuple[str, ...]
    looked: bool
    unsafe: tuple[str, ...]


class PrintedPlan(Printed):
    source: str = of("about.source")
    archive: str = of("about.archive")
    target: TextOrNull = of("about.target")
    flavour: str = of("plan.flavour")
    server_version: str = of("plan.server_version")
    lineage: str = of("plan.lineage")
    other_lineages: tuple[str, ...] = of("plan.others")
    goal: Annotated[dict[str, Any], _goal] = of("plan.goal")
    stop: PrintedPlace = of("plan.stop")
    transactions: int = of("plan.transactions")
    bytes: int = of("plan.size")
    estimated_seconds: Annotated[float, _estimate] = of("plan")
    pieces: tuple[PrintedPiece, ...] = of("plan.pieces")
    gtids_before: AsText | None = of("plan.before")
    gtids_added: AsText | None = of("plan.adds")
    gtids_skipped: Annotated[str, _skipped] | None = of("plan")
    gtids_holes: TextOrNull = of("plan.holes")
    skipped_committed_empty: bool
    only_tables: PrintedOnly | None = of("about.only")
    commit_times: CommitTimes = of("plan.commit_exact")
    kept: tuple[PrintedShown, ...] = of("plan.kept")
    left_out: tuple[PrintedShown, ...] = of("plan.left_out")
    disorder: tuple[PrintedShown, ...] = of("plan.disorder")
    pending: tuple[PrintedShown, ...] = of("plan.pending")
    reachable: PrintedReachable = of("plan.reach")
    last_report: TextOrNull = of("about.streamer")
    warnings: tuple[str, ...] = of("plan.warnings")


class PrintedBase(Printed):
    """What is known of the base backup."""

    checked: str
    words: str
    tables: int
    accounts: int | None
    drilled_at: When | None


class PrintedResult(Printed):
    """What was done."""

    how: str
    where: TextOrNull
    transactions: int
    bytes: int = of("size")
    seconds: Seconds
    gtids: AsText | None
    gtid_slave_pos: AsText | None
    stands_at: PrintedPlace | None
    committed_empty: TextOrNull
    disabled_events: tuple[str, ...]
    prepared: tuple[str, ...] | None
    proved: TextOrNull
    doubts: tuple[str, ...]
    base_backup: PrintedBase | None
    files: tuple[str, ...]
    only_tables: Annotated[tuple[str, ...], _or_null] | None


class PrintedRecovery(PrintedDocument):
    """What --json prints."""

    plan: PrintedPlan
    result: PrintedResult | None


def whole(plan: Plan, about: About, result: Result | None = None) -> dict[str, Any]:
    """What `PrintedRecovery` is printed of."""
    empty = {"skipped_committed_empty": committed_empty(plan, about) is not None}
    return {"plan": {"plan": plan, "about": about, **empty}, "result": result}
