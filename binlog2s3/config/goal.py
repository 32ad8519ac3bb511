"""Where a recovery stops and what it accepts: options that several commands have."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from binlog2s3.binlog.names import FilePosition
from binlog2s3.config.given import Given, exclusive, needs
from binlog2s3.config.options import Option, options_of
from binlog2s3.config.points import Moment, flavour_of, parse_gtids


@dataclass(frozen=True, slots=True)
class ToTime:
    """Stop before the first transaction, in binlog order, that was committed later than this.

    Microseconds since the epoch, UTC; `text` as the operator wrote it. `accepts`: take commit times
    as they are, though they cannot all be right.
    """

    at_us: int
    text: str
    accepts: bool = False


@dataclass(frozen=True, slots=True)
class ToGtid:
    """Stop after this transaction: "uuid:5", "uuid:tag:5", MariaDB's "0-1-5"."""

    gtid: str


@dataclass(frozen=True, slots=True)
class BeforeGtid:
    """Stop just before this transaction."""

    gtid: str


@dataclass(frozen=True, slots=True)
class ToPosition:
    """Stop at this position, which must be between two transactions.

    `lineage`: the lineage that has the binlog, if it is known.
    """

    position: FilePosition
    lineage: str | None = None


@dataclass(frozen=True, slots=True)
class Latest:
    """Stop at the end of what is in the bucket."""


Goal = ToTime | ToGtid | BeforeGtid | ToPosition | Latest


@dataclass(frozen=True, slots=True, kw_only=True)
class _GoalOptions:
    """The options that become a `Goal`, and the lineage that it is in."""

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
    accept_times: Annotated[
        bool,
        Option(
            "",
            "For --to-time, take commit times as they are, though they cannot all be right: a "
            "clock was wrong, or sessions set their time.",
        ),
    ] = False


AcceptTimeZone = Annotated[
    bool,
    Option(
        "",
        "Apply transactions whose result depends on the system time zone although the target's is "
        "not the source's: times in them will be other ones.",
    ),
]
"""The option --accept-time-zone. The target of `restore` and `drill` is their private server."""
OnlyTables = Annotated[
    tuple[tuple[str, str], ...],
    Option(
        "DB.TABLE",
        "Apply only this table, on a scratch server that has the base backup and nothing else. May "
        "be given several times. The server is marked: its other tables stay as in the backup "
        "although its GTIDs say otherwise, so pitr without --table refuses it from then on. Put a "
        "name with a space in backquotes.",
        "table",
        name="table",
        otherwise="all tables",
    ),
]
"""The option --table: databases and names."""
GOAL_OPTIONS = options_of(_GoalOptions)
GOALS = ("to-time", "to-gtid", "before-gtid", "to-position", "latest")
"""Where to stop: exactly one of them."""


def goal_of(values: Mapping[str, Any]) -> Goal:
    """Where to stop, by the one option that says it; without any, at the newest."""
    if (at := values.get("to-time")) is not None:
        return ToTime(at.at_us, at.text, bool(values.get("accept-times")))
    if (gtid := values.get("to-gtid")) is not None:
        return ToGtid(gtid)
    if (gtid := values.get("before-gtid")) is not None:
        return BeforeGtid(gtid)
    if (position := values.get("to-position")) is not None:
        return ToPosition(position)
    return Latest()


def goal_problems(given: Given) -> Iterable[str]:
    """Exactly one goal is to be given."""
    if not any(map(given.wants, GOALS)) and not given.wrong.intersection(GOALS):
        yield f"where to stop is missing: one of {', '.join(f'--{name}' for name in GOALS)}"
    yield from exclusive(given, GOALS)


def times_problems(given: Given) -> Iterable[str]:
    """Times are only accepted for a goal that is one."""
    yield from needs(given, "accept-times", "to-time")


def flavour_problems(given: Given, names: Iterable[str]) -> Iterable[str]:
    """GTIDs of both flavours cannot be meant; which one is right, only the bucket knows."""
    first: dict[str, str] = {}
    for name in names:
        value = given.values.get(name) or ()
        for text in (value,) if isinstance(value, str) else value:
            first.setdefault(flavour_of(parse_gtids(text)), name)
    if len(first) > 1:
        mysql, mariadb = given.called(first["mysql"]), given.called(first["mariadb"])
        both = f"{mysql} has GTIDs of MySQL and of MariaDB"
        yield both if mysql == mariadb else f"{mysql} has MySQL's GTIDs and {mariadb} MariaDB's"
