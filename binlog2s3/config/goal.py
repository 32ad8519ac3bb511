"""Where a recovery stops, which `pitr` and `restore` are told with the same options."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated

from binlog2s3.binlog.names import FilePosition
from binlog2s3.config.given import Given, contradiction
from binlog2s3.config.options import Option, options_of
from binlog2s3.config.points import Moment


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryGoal:
    """Where to stop, and in which history; one of all but `lineage` is set.

    GTIDs are texts, because their flavour is the history's.
    """

    to_time: Annotated[
        Moment | None,
        Option(
            "TIME",
            "Stop before the first transaction that was committed after this time, by the source's "
            "clock: 2026-01-02T03:04:05.123456Z, or with +02:00. The time zone is required.",
            "time",
        ),
    ] = None
    to_gtid: Annotated[str | None, Option("GTID", "Stop after this transaction.", "gtid")] = None
    before_gtid: Annotated[
        str | None, Option("GTID", "Stop immediately before this transaction.", "gtid")
    ] = None
    to_position: Annotated[
        FilePosition | None,
        Option("NAME:N", "Stop at this offset of a binlog, between two transactions.", "position"),
    ] = None
    latest: Annotated[bool, Option("", "Recover to the newest that is in the bucket.")] = False
    lineage: Annotated[
        str | None,
        Option(
            "ID", "Follow the history that ends in this lineage.", otherwise="the last writer's"
        ),
    ] = None


GOAL_OPTIONS = options_of(RecoveryGoal)
GOALS = ("to-time", "to-gtid", "before-gtid", "to-position", "latest")
"""Where to stop: exactly one of them."""


def goal_problems(given: Given) -> Iterable[str]:
    """Exactly one goal is to be given."""
    goals = [name for name in GOALS if given.wants(name)]
    if not goals and not given.wrong.intersection(GOALS):
        yield f"where to stop is missing: one of {', '.join(f'--{name}' for name in GOALS)}"
    for other in goals[1:]:
        yield contradiction(given, goals[0], other, "give one of them")
