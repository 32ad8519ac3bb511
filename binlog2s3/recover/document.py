"""A recovery for programs: the JSON of `pitr --json`.

Fields are only added. GTID sets are text, times ISO 8601 in UTC, sizes in bytes.
"""

from dataclasses import asdict
from typing import Any

from binlog2s3.binlog.gtid import Gtids
from binlog2s3.formatting import iso_text
from binlog2s3.recover.base_check import BaseCheck
from binlog2s3.recover.model import (
    BeforeGtid,
    BinlogPosition,
    Goal,
    Latest,
    Plan,
    PlanPiece,
    Shown,
    ToGtid,
    ToPosition,
    ToTime,
)
from binlog2s3.recover.view import About, Result, commits_empty, estimate_seconds

FORMAT = 1
_GOALS = {
    ToTime: "time",
    ToGtid: "gtid",
    BeforeGtid: "before-gtid",
    ToPosition: "position",
    Latest: "latest",
}


def document(plan: Plan, about: About, result: Result | None = None) -> dict[str, Any]:
    """What --json prints."""
    return {
        "format": FORMAT,
        "plan": _plan(plan, about),
        "result": None if result is None else result_document(result),
    }


def _plan(plan: Plan, about: About) -> dict[str, Any]:
    """A plan for programs: GTID sets as text, times ISO 8601 in UTC, sizes in bytes."""
    return {
        "source": about.source,
        "archive": about.archive,
        "target": about.target or None,
        "flavour": plan.flavour,
        "server_version": plan.server_version,
        "lineage": plan.lineage,
        "other_lineages": list(plan.others),
        "goal": _goal(plan.goal),
        "stop": _place(plan.stop),
        "transactions": plan.transactions,
        "bytes": plan.size,
        "estimated_seconds": round(estimate_seconds(plan), 1),
        "pieces": [piece_document(piece) for piece in plan.pieces],
        "gtids_before": _gtids(plan.before),
        "gtids_added": _gtids(plan.adds),
        "gtids_skipped": None if plan.skipped is None else plan.skipped_text,
        "gtids_holes": plan.holes or None,
        "skipped_committed_empty": commits_empty(plan, about),
        "only_tables": None if about.only is None else asdict(about.only),
        "commit_times": "exact" if plan.commit_exact else "seconds",
        "kept": [_shown(one) for one in plan.kept],
        "left_out": [_shown(one) for one in plan.left_out],
        "disorder": [_shown(one) for one in plan.disorder],
        "pending": [_shown(one) for one in plan.pending],
        "reachable": {
            "first": _place(plan.reach.first),
            "last": _place(plan.reach.last),
            "earliest": iso_text(plan.reach.earliest_us),
            "latest": _time(plan.reach.latest_us),
            "gtids": _gtids(plan.reach.gtids),
        },
        "last_report": about.streamer or None,
        "warnings": list(plan.warnings),
    }


def _goal(goal: Goal) -> dict[str, Any]:
    """Where to stop, as it was asked for."""
    found: dict[str, Any] = {"to": _GOALS[type(goal)]}
    if isinstance(goal, ToTime):
        found["time"] = iso_text(goal.at_us)
    elif isinstance(goal, ToGtid | BeforeGtid):
        found["gtid"] = goal.gtid
    elif isinstance(goal, ToPosition):
        found |= {"binlog": str(goal.binlog), "offset": goal.offset}
    return found


def result_document(result: Result) -> dict[str, Any]:
    """What was done, for programs."""
    return {
        "how": result.how,
        "where": result.where or None,
        "transactions": result.transactions,
        "bytes": result.size,
        "seconds": round(result.seconds, 3),
        "gtids": _gtids(result.gtids),
        "gtid_slave_pos": _gtids(result.gtid_slave_pos),
        "stands_at": None if result.stands_at is None else _place(result.stands_at),
        "committed_empty": result.committed_empty or None,
        "disabled_events": list(result.disabled_events),
        "prepared": None if result.prepared is None else list(result.prepared),
        "proved": result.proved or None,
        "base_backup": None if result.base_backup is None else _base(result.base_backup),
        "files": list(result.files),
        "only_tables": list(result.only_tables) or None,
    }


def _base(base: BaseCheck) -> dict[str, Any]:
    """What is known of the base backup."""
    at = base.drilled_at
    return {
        "checked": base.checked,
        "words": base.words,
        "tables": base.tables,
        "accounts": base.accounts,
        "drilled_at": None if at is None else iso_text(at),
    }


def _gtids(gtids: Gtids | None) -> str | None:
    return None if gtids is None else str(gtids)


def _time(us: int | None) -> str | None:
    return None if us is None else iso_text(us)


def _place(place: BinlogPosition) -> dict[str, Any]:
    return {"lineage": place.lineage, "binlog": str(place.binlog), "offset": place.offset}


def piece_document(piece: PlanPiece) -> dict[str, Any]:
    """The part of a binlog that is applied, for programs."""
    return {
        "lineage": piece.lineage,
        "binlog": str(piece.binlog),
        "begin": piece.begin,
        "end": piece.end,
        "left_out": [list(span) for span in piece.left_out],
        "bytes": piece.size,
        "transactions": piece.transactions,
        "gtids": str(piece.gtids) or None,
        "greatest_commit": _time(piece.greatest_commit_us),
    }


def _shown(shown: Shown) -> dict[str, Any]:
    transaction, content = shown.transaction, shown.content
    return {
        "lineage": shown.lineage,
        "binlog": str(shown.binlog),
        "begin": transaction.begin,
        "end": transaction.end,
        "gtid": transaction.gtid,
        "committed": iso_text(transaction.commit_us),
        "commit_time": "exact" if transaction.commit_exact else "seconds",
        "compressed": content.compressed,
        "changes": [
            {"kind": one.kind, "table": one.table or None, "rows": one.rows}
            for one in content.changes
        ],
        "statements": list(content.statements),
    }
