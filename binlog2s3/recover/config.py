"""What the operator asked of `pitr`, judged as a whole: one frozen `PitrConfig`.

Place in the flow: as `config.values`, for `cli`; `pitr` carries it out.

Law: as `config`'s. There is no default target: a server that nobody named is never written to.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from binlog2s3.binlog.names import BinlogName
from binlog2s3.config.pitr_options import GOALS, TARGET_OPTIONS
from binlog2s3.config.points import flavour_of, parse_gtids, parse_position, parse_time
from binlog2s3.config.values import (
    Given,
    MysqlConfig,
    S3Config,
    contradiction,
    file_problems,
    login_problems,
    s3_of,
)
from binlog2s3.recover.model import BeforeGtid, Goal, Latest, ToGtid, ToPosition, ToTime

_FROM = ("from-gtid-set", "from-binlog", "from-backup")
_GTIDS = ("from-gtid-set", "to-gtid", "before-gtid", "skip-gtid")
_DEFAULT_TIMEOUT = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where the source answers, as the streamer's file has it, as far as it says so."""

    host: str | None
    port: int | None
    socket: Path | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PitrConfig:
    """What is to be brought where, from what on, and what may be done on the way.

    `target` is None where none was named. Of the starts (`from_...`) at most one is there; the
    GTIDs in `from_gtid_set` and `skip` are texts, for the flavour is the history's. `serve_address`
    as the operator wrote it. With `output_dir` nothing is applied; a target is then only asked what
    it has.
    """

    s3: S3Config
    source: str
    goal: Goal
    target: MysqlConfig | None = None
    source_address: Address | None = None
    serve_address: str | None = None
    workers: int | None = None
    from_gtid_set: str | None = None
    from_binlog: BinlogName | None = None
    from_position: int | None = None
    from_lineage: str | None = None
    from_backup: Path | None = None
    skip: tuple[str, ...] = ()
    skip_leaves_hole: bool = False
    lineage: str | None = None
    allow_gap: bool = False
    allow_source: bool = False
    allow_extra_gtids: bool = False
    allow_non_transactional: bool = False
    stop_target_threads: bool = False
    output_dir: Path | None = None
    dry_run: bool = False
    as_json: bool = False
    yes: bool = False

    @property
    def applies(self) -> bool:
        """Whether a server is to be changed."""
        return not (self.dry_run or self.output_dir)


def build_pitr(
    values: Mapping[str, Any],
    wrong: Iterable[str] = (),
    places: Mapping[str, str] | None = None,
) -> tuple[PitrConfig | None, list[str]]:
    """As `config.values.build`, for `pitr`."""
    given = Given(values, places or {}, frozenset(wrong))
    problems = [f"--{name} is missing" for name in ("source", "s3-url") if given.lacks(name)]
    problems += [*_goal_problems(given), *_start_problems(given), *_flavour_problems(given)]
    problems += [*_output_problems(given), *_target_problems(given)]
    problems += file_problems(given, TARGET_OPTIONS)
    if problems or given.wrong:
        return None, problems
    return _config(values), []


def _config(values: Mapping[str, Any]) -> PitrConfig:
    binlog, output_dir = values.get("from-binlog"), values.get("output-dir")
    own = {
        name.replace("-", "_"): bool(values.get(name))
        for name in (
            "skip-leaves-hole",
            "allow-gap",
            "allow-source",
            "allow-extra-gtids",
            "allow-non-transactional",
            "stop-target-threads",
            "dry-run",
            "yes",
        )
    }
    return PitrConfig(
        s3=s3_of(values),
        source=values["source"],
        goal=_goal(values),
        target=_target(values),
        source_address=_source_address(values),
        serve_address=values.get("serve-address"),
        workers=values.get("workers"),
        from_gtid_set=values.get("from-gtid-set"),
        from_binlog=BinlogName.parse(binlog) if binlog else None,
        from_position=values.get("from-position"),
        from_lineage=values.get("from-lineage"),
        from_backup=values.get("from-backup"),
        skip=tuple(values.get("skip-gtid") or ()),
        lineage=values.get("lineage"),
        output_dir=output_dir,
        as_json=bool(values.get("json")),
        **own,
    )


def _goal(values: Mapping[str, Any]) -> Goal:
    if text := values.get("to-time"):
        return ToTime(parse_time(text), text)
    if text := values.get("to-gtid"):
        return ToGtid(text)
    if text := values.get("before-gtid"):
        return BeforeGtid(text)
    if text := values.get("to-position"):
        return ToPosition(*parse_position(text))
    return Latest()


def _target(values: Mapping[str, Any]) -> MysqlConfig | None:
    own = {option.key: values.get(option.name) for option in TARGET_OPTIONS}
    if not (own["host"] or own["socket"] or own["defaults_file"]):
        return None
    del own["serve_address"]
    timeout = own.pop("connect_timeout") or _DEFAULT_TIMEOUT
    return MysqlConfig(
        **own, mysqlbinlog=None, server_id=None, connect_timeout=timeout, prefix="target"
    )


def _source_address(values: Mapping[str, Any]) -> Address | None:
    host, port, socket = (values.get(f"mysql-{name}") for name in ("host", "port", "socket"))
    return Address(host=host, port=port, socket=socket) if host or port or socket else None


def _goal_problems(given: Given) -> Iterable[str]:
    goals = [name for name in GOALS if _is_wanted(given, name)]
    if not goals and not given.wrong.intersection(GOALS):
        yield f"where to stop is missing: one of {', '.join(f'--{name}' for name in GOALS)}"
    for other in goals[1:]:
        yield contradiction(given, goals[0], other, "give one of them")


def _start_problems(given: Given) -> Iterable[str]:
    starts = [name for name in _FROM if given.has(name)]
    for other in starts[1:]:
        yield contradiction(given, starts[0], other, "give one of them")
    if given.has("from-binlog") and given.lacks("from-position"):
        yield f"{given.called('from-binlog')} needs --from-position (4: its beginning)"
    if given.has("from-position") and given.lacks("from-binlog"):
        yield f"{given.called('from-position')} needs --from-binlog"
    if given.has("from-backup") and not given.values["from-backup"].exists():
        yield f"{given.called('from-backup')}: {given.values['from-backup']}: there is no such file"
    if _is_wanted(given, "skip-leaves-hole") and given.lacks("skip-gtid"):
        yield f"{given.called('skip-leaves-hole')} needs --skip-gtid"


def _flavour_problems(given: Given) -> Iterable[str]:
    """GTIDs of both flavours cannot be meant; which one is right, only the bucket knows."""
    first: dict[str, str] = {}
    for name in _GTIDS:
        value = given.values.get(name) or ()
        for text in (value,) if isinstance(value, str) else value:
            first.setdefault(flavour_of(parse_gtids(text)), name)
    if len(first) > 1:
        mysql, mariadb = given.called(first["mysql"]), given.called(first["mariadb"])
        yield f"{mysql} has MySQL's GTIDs and {mariadb} MariaDB's"


def _output_problems(given: Given) -> Iterable[str]:
    for name in ("serve-address", "stop-target-threads", "workers", "allow-non-transactional"):
        if _is_wanted(given, name) and _is_wanted(given, "output-dir"):
            yield contradiction(given, name, "output-dir", "no target is written to")


def _target_problems(given: Given) -> Iterable[str]:
    addressed = [
        n for n in ("target-host", "target-socket", "target-defaults-file") if _told(given, n)
    ]
    others = [
        option
        for option in TARGET_OPTIONS
        if given.has(option.name) and option.name not in (*addressed, "serve-address")
    ]
    if addressed:
        yield from login_problems(given, "target")
    elif others:
        yield f"{given.called(others[0].name)} needs --target-host or --target-socket"
    elif not (_is_wanted(given, "output-dir") or "output-dir" in given.wrong):
        if not _is_wanted(given, "dry-run"):
            yield (
                "no target: --target-host or --target-socket is missing (or --output-dir instead "
                "of a target, or --dry-run)"
            )
        elif not any(_told(given, name) for name in _FROM):
            yield (
                "--dry-run without a target needs to be told where to begin: --from-gtid-set, "
                "--from-binlog or --from-backup"
            )


def _told(given: Given, name: str) -> bool:
    return not given.lacks(name)


def _is_wanted(given: Given, name: str) -> bool:
    """Whether it has a value, and is no flag that says no."""
    return given.values.get(name) not in (None, False, ())
