"""The options of `drill`, and one frozen `DrillConfig` of them.

No password is an option: the scratch server gets a random one.
"""

import os
import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from binlog2s3.config.bucket import reading
from binlog2s3.config.given import CommandOptions, Given, file_problems, path_problems
from binlog2s3.config.options import Option, fill, options_of
from binlog2s3.config.points import Moment
from binlog2s3.config.values import BY_NAME, S3Config, s3_of

RestoreInto = Literal["auto", "directory", "server"]
IoClass = Literal["idle", "best-effort", "none"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DrillConfig:
    """What to restore, with what, and how much a drill may take."""

    s3: S3Config
    source: str
    restore_command: Annotated[
        str,
        Option(
            "COMMAND",
            "Program and arguments that restore the base backup, without a shell. {location}, "
            "{datadir}, {socket}, {id}, {label} and {tool} are replaced; the environment has the "
            "same as DRILL_LOCATION and so on.",
            required=True,
        ),
    ]
    mysqld: Annotated[
        Path,
        Option("PATH", "Server program for the scratch server: mysqld or mariadbd.", required=True),
    ]
    work_dir: Annotated[
        Path,
        Option(
            "DIR",
            "Directory for the scratch server's data, on a disk with enough space. Drill makes "
            "directories in it, and deletes only those.",
            required=True,
        ),
    ]
    restore_into: Annotated[
        RestoreInto,
        Option(
            "WHERE",
            "What the restore command fills: the empty data directory, or a running empty server "
            "(a dump). auto: by the tool of the registered backup.",
        ),
    ] = "auto"
    trust_restore_command: Annotated[
        bool,
        Option(
            "",
            "Count the recovery as proved although nothing in the restored server says that it is "
            "the registered backup, as after a dump without GTIDs. The result says so.",
        ),
    ] = False
    mysqld_option: Annotated[
        tuple[str, ...],
        Option(
            "OPTION",
            "Option for the scratch server: --NAME=VALUE. May be given several times.",
        ),
    ] = ()
    to_time: Annotated[
        Moment | None,
        Option("TIME", "Recover to this time, as `pitr` does.", "time", otherwise="now"),
    ] = None
    accept_times: Annotated[
        bool,
        Option(
            "",
            "For --to-time, take commit times as they are, though they cannot all be right, as "
            "`pitr` does.",
        ),
    ] = False
    accept_time_zone: Annotated[
        bool,
        Option(
            "",
            "Apply transactions whose result depends on the system time zone although the scratch "
            "server's is not the source's, as `pitr` does.",
        ),
    ] = False
    check_sql: Annotated[
        Path | None,
        Option(
            "FILE",
            "Check with these statements instead of CHECK TABLE. Each ends with ; at the end of a "
            "line. It passes if the first column of its first row is neither 0 nor NULL.",
            "file",
        ),
    ] = None
    max_disk: Annotated[
        int | None,
        Option("SIZE", "Stop, and fail, if the drill takes more disk space.", "size", least=1),
    ] = None
    timeout: Annotated[
        float,
        Option("TIME", "Stop, and fail, after this time.", "duration", least=1, most=31 * 86_400),
    ] = 12 * 3600.0
    nice: Annotated[int, Option("N", "Lower the CPU priority by this much.", least=0, most=19)] = 10
    ionice: Annotated[
        IoClass, Option("CLASS", "Disk priority, by the program ionice; none leaves it.")
    ] = "idle"
    as_json: Annotated[bool, Option("", "Print the result as JSON.", name="json")] = False


_OWN = (
    "datadir",
    "socket",
    "port",
    "pid-file",
    "init-file",
    "server-id",
    "networking",
    "event-scheduler",
    "secure-file-priv",
    "slave-start",
    "replica-start",
    "mysqlx",
    "persisted-globals-load",
)
"""Options of the scratch server that only drill sets: where it is, and that it is private."""
_MODIFIERS = re.compile(r"(?:(?:loose|skip|enable|disable|maximum|autoset)-)+")
DRILL_OPTIONS = options_of(DrillConfig)
"""Those that only `drill` has."""
_WRITING = tuple(BY_NAME[name] for name in ("sse", "sse-kms-key-id", "object-lock"))
_SHARED = (*reading("Server in the bucket whose recovery is proved."), *_WRITING)


def _config(values: Mapping[str, Any]) -> DrillConfig:
    return fill(DrillConfig, DRILL_OPTIONS, values, s3=s3_of(values), source=values["source"])


def _problems(given: Given) -> Iterable[str]:
    yield from _path_problems(given)
    yield from file_problems(given, DRILL_OPTIONS)
    if given.wants("accept-times") and given.is_missing("to-time"):
        yield f"{given.called('accept-times')} needs --to-time"
    if given.has("restore-command"):
        try:
            words = shlex.split(given.values["restore-command"])
        except ValueError as error:
            yield f"{given.called('restore-command')}: {error}"
        else:
            if not words:
                yield f"{given.called('restore-command')} is empty"
    for option in given.values.get("mysqld-option") or ():
        if not option.startswith("--"):
            yield f"{given.called('mysqld-option')} {option}: it must begin with --"
        elif _is_set_by_drill(option):
            yield f"{given.called('mysqld-option')} {option}: drill sets this itself; leave it out"


def _path_problems(given: Given) -> Iterable[str]:
    for name in ("mysqld", "work-dir"):
        yield from path_problems(given, name)
    mysqld = given.values["mysqld"] if given.has("mysqld") else None
    if mysqld is not None and mysqld.exists() and not _can_run(mysqld):
        what = "is a directory" if mysqld.is_dir() else "cannot be executed"
        yield f"{given.called('mysqld')}: {mysqld} {what}; it names mysqld or mariadbd"


def _can_run(path: Path) -> bool:
    return path.is_file() and os.access(path, os.X_OK)


def _is_set_by_drill(option: str) -> bool:
    """Whether it would change an option that drill sets.

    As a server reads it: _ is -, a prefix like loose- or skip- changes the same option, and the
    beginning of a name is enough.
    """
    name = option.removeprefix("--").partition("=")[0].replace("_", "-").lower()
    name = _MODIFIERS.sub("", name)
    return name != "" and any(own.startswith(name) for own in _OWN)


DRILL = CommandOptions((*_SHARED, *DRILL_OPTIONS), _problems, _config)
