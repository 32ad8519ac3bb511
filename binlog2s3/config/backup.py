"""The options of `backup`, and one frozen `BackupConfig` of them."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from binlog2s3.binlog.names import BinlogName
from binlog2s3.config.bucket import (
    BACKUP_FORMS,
    WRITING,
    AsJson,
    FromLineage,
    of_source,
    reading,
)
from binlog2s3.config.given import (
    CommandOptions,
    Given,
    excludes,
    exclusive,
    file_problems,
    needs,
    pair,
    path_problems,
)
from binlog2s3.config.options import Option, options_of
from binlog2s3.config.points import Moment
from binlog2s3.config.stream import (
    BY_NAME,
    LOGIN_OPTIONS,
    MysqlConfig,
    S3Config,
    login_problems,
    server_of,
)

Action = Literal["add", "run", "list", "get", "remove"]
BackupTool = Literal["mysqldump", "mariadb-dump", "mariabackup", "xtrabackup"]
PositionFrom = Literal["dump-header", "xtrabackup-log"]
_ENDS = ("from-backup", "gtid-set", "binlog")
MOST_CHARACTERS = 1024
"""Of a label, a location and a reason: that is what format 1 has room for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackupConfig:
    """What to register, store, list, read or remove. For `add`, one of the ends is set.

    For `run`, `tool` or `command` is set. `server`: how to log in to what is backed up.
    """

    s3: S3Config
    source: str
    server: MysqlConfig | None = None
    tool: Annotated[
        BackupTool | None,
        Option("TOOL", "run: the backup program, with the options that a base backup needs."),
    ] = None
    program: Annotated[
        Path | None,
        Option("PATH", "run: the program of --tool.", otherwise="the first one on PATH"),
    ] = None
    tool_option: Annotated[
        tuple[str, ...],
        Option("OPTION", "run: option for --tool, after ours. May be given several times."),
    ] = ()
    command: Annotated[
        str | None,
        Option(
            "COMMAND",
            "run: another program and its arguments, without a shell, that writes one base backup "
            "to its standard output. {defaults_file} is replaced by an option file with the login.",
            "command",
        ),
    ] = None
    position_from: Annotated[
        PositionFrom | None,
        Option("WHERE", "run: where the output of --command says where its backup ends."),
    ] = None
    no_compress: Annotated[
        bool, Option("", "run: store the stream as it is, not compressed by zstd.")
    ] = False
    from_backup: Annotated[
        Path | None,
        Option(
            "PATH",
            f"add: the base backup itself, which contains its position: {BACKUP_FORMS}",
        ),
    ] = None
    gtid_set: Annotated[
        str | None, Option("SET", "add: the GTIDs that the base backup contains.", "gtid set")
    ] = None
    binlog: Annotated[
        BinlogName | None, Option("NAME", "add: binlog in which the base backup ends.")
    ] = None
    position: Annotated[
        int | None,
        Option("N", "add: offset in that binlog at which the base backup ends.", least=4),
    ] = None
    from_lineage: FromLineage = None
    time: Annotated[
        Moment | None,
        Option(
            "TIME",
            "add: when the base backup was made.",
            "time",
            otherwise="when the file of --from-backup was written, else now",
        ),
    ] = None
    label: Annotated[str | None, Option("TEXT", "add, run: a name for people.")] = None
    location: Annotated[
        str | None, Option("URL", "add: where the base backup is, for example s3://backups/monday.")
    ] = None
    accept: Annotated[
        str | None,
        Option(
            "REASON",
            "add: register a base backup of --from-backup that is refused because it is cut off, "
            "or does not have the whole server. It then counts nowhere: prune keeps nothing for "
            "it, and nothing chooses it.",
        ),
    ] = None
    wait: Annotated[
        float | None,
        Option(
            "TIME",
            "add, run: how long to wait until the archive has all that the base backup contains.",
            "duration",
            otherwise="30s, for run 10m",
            least=0,
            most=86_400,
        ),
    ] = None
    yes: Annotated[bool, Option("", "remove: do not ask.")] = False
    as_json: AsJson = False


BACKUP_OPTIONS = options_of(BackupConfig)
"""Those that only `backup` has."""
_STORING = tuple(BY_NAME[name] for name in ("storage-class", "checksum", "max-bandwidth"))
_SHARED = (
    *reading("Server in the bucket whose base backups these are."),
    *WRITING,
    *_STORING,
    *LOGIN_OPTIONS,
)
_FOR_RUN = ("tool", "program", "tool-option", "command", "position-from", "no-compress")
_FOR_BOTH = ("label", "wait")
_NEEDED = (
    *("all-databases", "comments", "create-info", "data", "events", "routines"),
    *("single-transaction", "triggers"),
)
_PARTIAL = (
    *(f"no-{name}" for name in ("create-db", *_NEEDED)),
    *("compact", "databases", "databases-exclude", "databases-file", "force", "ignore-database"),
    *("ignore-table", "ignore-table-data", "ignore-views", "incremental-basedir"),
    *("incremental-dir", "incremental-lsn", "result-file", "tab", "tables", "tables-exclude"),
    *("tables-file", "where", "xml"),
)
_SHORT = frozenset("BTXdfnrtw")
"""Options by which a tool backs up a part of the server, says less of it, or writes elsewhere."""


def _server(values: Mapping[str, Any]) -> MysqlConfig | None:
    has_login = values.get("mysql-user") or values.get("mysql-defaults-file")
    return server_of(values, LOGIN_OPTIONS) if has_login else None


def _add_problems(given: Given) -> Iterable[str]:
    ends = [name for name in _ENDS if given.has(name)]
    if not ends and not given.wrong.intersection(_ENDS):
        yield "where the base backup ends is missing: --from-backup, --gtid-set or --binlog"
    yield from excludes(given, "from-backup", ("gtid-set", "binlog"), "give one of them")
    yield from path_problems(given, "from-backup")
    yield from _not_asked(given)
    yield from _only_for(given, "run", _FOR_RUN)
    yield from needs(given, "accept", "from-backup")
    yield from _too_long(given)
    yield from pair(given, "binlog", "position")


def _too_long(given: Given) -> Iterable[str]:
    for name in ("label", "location", "accept"):
        if given.has(name) and len(given.values[name]) > MOST_CHARACTERS:
            yield f"{given.called(name)} has more than {MOST_CHARACTERS} characters"


def _only_for(given: Given, action: Action, names: Iterable[str]) -> Iterable[str]:
    for name in names:
        if given.wants(name):
            yield f"{given.called(name)} is for `backup {action}`"


def _run_problems(given: Given) -> Iterable[str]:
    if given.is_missing("tool") and given.is_missing("command"):
        yield "what makes the base backup is missing: --tool or --command"
    yield from exclusive(given, ("tool", "command"))
    yield from pair(given, "command", "position-from")
    if given.is_missing("command"):
        yield from login_problems(given, "mysql")
    for name in ("program", "tool-option"):
        yield from needs(given, name, "tool")
    for option in given.values.get("tool-option") or ():
        if not option.startswith("-"):
            yield f"{given.called('tool-option')} {option}: it must begin with -"
        elif _has_password(option):
            yield (
                f"{given.called('tool-option')}: a password in arguments is seen by all users of "
                "the host; give --mysql-password-file"
            )
        elif given.has("tool") and _is_partial(option):
            yield (
                f"{given.called('tool-option')} {option}: what that makes is no base backup of the "
                "whole server; `backup add` registers one with --accept"
            )
    own = {*_FOR_RUN, *_FOR_BOTH, "json"}
    yield from _only_for(given, "add", [o.name for o in BACKUP_OPTIONS if o.name not in own])
    yield from _too_long(given)
    yield from file_problems(given, LOGIN_OPTIONS)


def _letters(option: str) -> str:
    """The letters of a short option: several may stand together, up to one that has a value."""
    return re.split(r"[PShu#]", option.removeprefix("-"), maxsplit=1)[0]


def _long(option: str) -> tuple[str, str]:
    """Name and value of a long option, as a tool reads it."""
    name, _, value = option.removeprefix("--").partition("=")
    return name.replace("_", "-").removeprefix("loose-"), value


def _has_password(option: str) -> bool:
    """Whether an option of a tool is the password; the name may be cut off where it is clear."""
    if not option.startswith("--"):
        return "p" in _letters(option)
    name, _ = _long(option)
    return name.startswith("pa") and "password".startswith(name)


def _is_partial(option: str) -> bool:
    """Whether an option of a tool is one of these; a name may be cut off where it is clear."""
    if not option.startswith("--"):
        return not _SHORT.isdisjoint(_letters(option))
    name, value = _long(option)
    positive = name.removeprefix("skip-").removeprefix("disable-")
    if name != positive or value.lower() in ("0", "off", "false"):
        return any(word.startswith(positive) for word in _NEEDED)
    return any(word.startswith(name) for word in _PARTIAL)


def _not_asked(given: Given) -> Iterable[str]:
    if given.wants("yes"):
        yield f"{given.called('yes')} is for `backup remove`"


def _remove_problems(given: Given) -> Iterable[str]:
    yield from _only_for(given, "run", _FOR_RUN)
    own = {*_FOR_RUN, "json", "yes"}
    yield from _only_for(given, "add", [o.name for o in BACKUP_OPTIONS if o.name not in own])


def _list_problems(given: Given) -> Iterable[str]:
    yield from _remove_problems(given)
    yield from _not_asked(given)


_PROBLEMS: Mapping[Action, Callable[[Given], Iterable[str]]] = {
    "add": _add_problems,
    "run": _run_problems,
    "list": _list_problems,
    "get": _list_problems,
    "remove": _remove_problems,
}
_config = of_source(BackupConfig, BACKUP_OPTIONS, server=_server)
BACKUP: Mapping[Action, CommandOptions[BackupConfig]] = {
    action: CommandOptions((*_SHARED, *BACKUP_OPTIONS), problems, _config)
    for action, problems in _PROBLEMS.items()
}
