"""The options of `restore`, those that `drill` has too, and one frozen `RestoreConfig` of them.

No password is an option: the private server gets a random one.
"""

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from binlog2s3.config.bucket import AsJson, of_source, reading
from binlog2s3.config.given import (
    CommandOptions,
    Given,
    exclusive,
    file_problems,
    needs,
    path_problems,
)
from binlog2s3.config.goal import (
    GOAL_OPTIONS,
    AcceptTimeZone,
    Goal,
    OnlyTables,
    goal_of,
    goal_problems,
    times_problems,
)
from binlog2s3.config.options import Option, options_of
from binlog2s3.config.pitr import PitrConfig, table_problems
from binlog2s3.config.stream import S3Config

RestoreInto = Literal["auto", "directory", "server"]

WORK = "binlog2s3-restore"
"""The directory in --data-dir in which a restore works; it is there until the end."""
ALLOWED = frozenset({WORK, "lost+found"})
"""What an empty --data-dir may have."""
_OF_A_SERVER = ("ibdata1", "mysql.ibd", "aria_log_control")
"""Files by one of which a data directory is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Restoring:
    """How a base backup is restored and rolled forward: what `restore` and `drill` share."""

    s3: S3Config
    source: str
    goal: Goal
    mysqld: Annotated[
        Path,
        Option(
            "PATH",
            "Server program, mysqld or mariadbd, of the source's version: a private server runs "
            "with it.",
            required=True,
        ),
    ]
    restore_command: Annotated[
        str | None,
        Option(
            "COMMAND",
            "Program and arguments that restore the base backup, without a shell. {location}, "
            "{datadir}, {socket}, {id}, {label} and {tool} are replaced; the environment has the "
            "same as DRILL_LOCATION and so on.",
            "command",
            otherwise="what `backup run` has stored is restored",
        ),
    ] = None
    restore_into: Annotated[
        RestoreInto,
        Option(
            "WHERE",
            "What the restore command fills: the empty data directory, or a running empty server "
            "(a dump). auto: by the tool of the registered backup.",
        ),
    ] = "auto"
    program: Annotated[
        Path | None,
        Option(
            "PATH",
            "Program that restores what `backup run` has stored: mysql, mariadb, mariabackup or "
            "xtrabackup.",
            otherwise="the one beside --mysqld or on PATH",
        ),
    ] = None
    trust_restore_command: Annotated[
        bool,
        Option(
            "",
            "Go on although nothing in the restored server says that it is the registered backup, "
            "as after a dump without GTIDs. The result says so.",
        ),
    ] = False
    mysqld_option: Annotated[
        tuple[str, ...],
        Option(
            "OPTION",
            "Option for the private server: --NAME=VALUE. May be given several times.",
        ),
    ] = ()
    accept_time_zone: AcceptTimeZone = False

    tables: tuple[tuple[str, str], ...] = ()
    lineage: str | None = None

    @property
    def recovery(self) -> PitrConfig:
        """The recovery without its target and its base backup."""
        return PitrConfig(
            s3=self.s3,
            source=self.source,
            goal=self.goal,
            lineage=self.lineage,
            tables=self.tables,
            accept_time_zone=self.accept_time_zone,
            yes=True,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreConfig(Restoring):
    """What to restore, to which moment, and where."""

    data_dir: Annotated[
        Path,
        Option(
            "DIR",
            "Data directory of the restored server: empty, or not there yet.",
            required=True,
        ),
    ]
    from_backup_id: Annotated[
        str | None,
        Option(
            "ID",
            "The registered base backup to restore: its id, the first characters of it, or its "
            "label.",
            otherwise="the newest one that reaches the goal",
        ),
    ] = None
    tables: OnlyTables = ()
    defaults_file: Annotated[
        Path | None,
        Option(
            "FILE",
            "Option file of the server that will run on the data directory. Its settings that say "
            "how data are kept are used from the beginning; those that cannot be are named.",
            "file",
        ),
    ] = None
    keep_running: Annotated[
        bool,
        Option("", "Start the restored server at the end; its socket is printed last."),
    ] = False
    dry_run: Annotated[bool, Option("", "Show what would be done, and change nothing.")] = False
    as_json: AsJson = False
    yes: Annotated[bool, Option("", "Do not ask before it begins.")] = False


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
"""Options of the private server that only we set: where it is, and that it is private."""
_MODIFIERS = re.compile(r"(?:(?:loose|skip|enable|disable|maximum|autoset)-)+")
_FOR_ITSELF = options_of(RestoreConfig)
RESTORE_OPTIONS = (*GOAL_OPTIONS, *_FOR_ITSELF)
"""Those that `restore` has for itself."""
_SHARED = reading("Server in the bucket that is restored.")


def restoring_problems(given: Given, command: str) -> Iterable[str]:
    """What is wrong with the options that `restore` and `drill` share."""
    yield from path_problems(given, "mysqld")
    mysqld = given.values["mysqld"] if given.has("mysqld") else None
    if mysqld is not None and mysqld.exists() and not _can_run(mysqld):
        what = "is a directory" if mysqld.is_dir() else "cannot be executed"
        yield f"{given.called('mysqld')}: {mysqld} {what}; it names mysqld or mariadbd"
    yield from times_problems(given)
    yield from needs(given, "trust-restore-command", "restore-command")
    yield from exclusive(given, ("restore-command", "program"))
    for option in given.values.get("mysqld-option") or ():
        if not option.startswith("--"):
            yield f"{given.called('mysqld-option')} {option}: it must begin with --"
        elif is_own(option):
            yield (
                f"{given.called('mysqld-option')} {option}: {command} sets this itself; leave it "
                "out"
            )


def _can_run(path: Path) -> bool:
    return path.is_file() and os.access(path, os.X_OK)


def is_own(option: str) -> bool:
    """Whether it would change an option of the private server that we set.

    As a server reads it: _ is -, a prefix like loose- or skip- changes the same option, and the
    beginning of a name is enough.
    """
    name = option.removeprefix("--").partition("=")[0].replace("_", "-").lower()
    name = _MODIFIERS.sub("", name)
    return name != "" and any(own.startswith(name) for own in _OWN)


def stranger_in(data_dir: Path) -> str:
    """The name of something in the data directory that no restore has put there; "" if none.

    Raises OSError if it cannot be read, or is no directory.
    """
    if not data_dir.exists():
        return ""
    names = {path.name for path in data_dir.iterdir()}
    if (data_dir / WORK).is_dir():  # what is beside it, a restore may have put there at its end
        return ""
    return min(names - ALLOWED, default="")


def server_above(data_dir: Path) -> Path | None:
    """The directory above it that is a server's, or a restore's: a change there would be ours.

    A server takes a directory in its own one for a database, and drops it as one.
    """
    for above in data_dir.resolve().parents:
        if above.name == WORK or any((above / name).is_file() for name in _OF_A_SERVER):
            return above
    return None


def _data_dir_problems(given: Given) -> Iterable[str]:
    if not given.has("data-dir"):
        return
    directory, called = given.values["data-dir"], given.called("data-dir")
    try:
        stranger = stranger_in(directory)
    except OSError as error:
        yield f"{called}: {directory}: {(error.strerror or str(error)).lower()}"
        return
    if stranger:
        yield (
            f"{called}: {directory} is not empty: {stranger!r:.100} is in it; nothing is "
            "overwritten: name a directory that is empty or not there"
        )
    elif above := server_above(directory):
        yield f"{called}: {directory} is in {above}, which is a server's, or a restore's"
    elif not directory.exists() and not directory.absolute().parent.is_dir():
        yield f"{called}: {directory.absolute().parent}: no such directory"


def _problems(given: Given) -> Iterable[str]:
    yield from restoring_problems(given, "restore")
    yield from goal_problems(given)
    yield from table_problems(given)
    yield from _data_dir_problems(given)
    yield from file_problems(given, RESTORE_OPTIONS)


RESTORE = CommandOptions(
    (*_SHARED, *RESTORE_OPTIONS),
    _problems,
    of_source(
        RestoreConfig, _FOR_ITSELF, goal=goal_of, lineage=lambda values: values.get("lineage")
    ),
)
