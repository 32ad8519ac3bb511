"""The options of `backup`, and one frozen `BackupConfig` of them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from binlog2s3.binlog.names import BinlogName
from binlog2s3.config.bucket import FromLineage, reading
from binlog2s3.config.given import CommandOptions, Given, contradiction, path_problems
from binlog2s3.config.options import Option, fill, options_of
from binlog2s3.config.points import Moment
from binlog2s3.config.values import BY_NAME, S3Config, s3_of

Action = Literal["add", "list", "remove"]
_ENDS = ("from-backup", "gtid-set", "binlog")
MOST_CHARACTERS = 1024
"""Of a label, a location and a reason: that is what format 1 has room for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackupConfig:
    """What to register, list or remove. For `add`, one of the ends is set."""

    s3: S3Config
    source: str
    from_backup: Annotated[
        Path | None,
        Option(
            "PATH",
            "add: the base backup itself, which contains its position: a dump of mysqldump; or the "
            "directory of xtrabackup, mariabackup, mydumper or MySQL Shell, or the file in it that "
            "has the position.",
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
    label: Annotated[str | None, Option("TEXT", "add: a name for people.")] = None
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
        float,
        Option(
            "TIME",
            "add: how long to wait until the archive has all that the base backup contains.",
            "duration",
            least=0,
            most=86_400,
        ),
    ] = 30.0
    yes: Annotated[bool, Option("", "remove: do not ask.")] = False
    as_json: Annotated[bool, Option("", "Print one JSON document.", name="json")] = False


BACKUP_OPTIONS = options_of(BackupConfig)
"""Those that only `backup` has."""
_WRITING = tuple(BY_NAME[name] for name in ("sse", "sse-kms-key-id", "object-lock"))
_SHARED = (*reading("Server in the bucket whose base backups these are."), *_WRITING)


def _config(values: Mapping[str, Any]) -> BackupConfig:
    return fill(BackupConfig, BACKUP_OPTIONS, values, s3=s3_of(values), source=values["source"])


def _add_problems(given: Given) -> Iterable[str]:
    ends = [name for name in _ENDS if given.has(name)]
    if not ends and not given.wrong.intersection(_ENDS):
        yield "where the base backup ends is missing: --from-backup, --gtid-set or --binlog"
    if given.has("from-backup"):
        for name in ("gtid-set", "binlog"):
            if given.has(name):
                yield contradiction(given, "from-backup", name, "give one of them")
    yield from path_problems(given, "from-backup")
    yield from _not_asked(given)
    if given.has("accept") and given.is_missing("from-backup"):
        yield f"{given.called('accept')} needs --from-backup"
    for name in ("label", "location", "accept"):
        if given.has(name) and len(given.values[name]) > MOST_CHARACTERS:
            yield f"{given.called(name)} has more than {MOST_CHARACTERS} characters"
    for one, other in (("binlog", "position"), ("position", "binlog")):
        if given.has(one) and given.is_missing(other):
            yield f"{given.called(one)} needs --{other}"


def _not_asked(given: Given) -> Iterable[str]:
    if given.wants("yes"):
        yield f"{given.called('yes')} is for `backup remove`"


def _remove_problems(given: Given) -> Iterable[str]:
    for option in BACKUP_OPTIONS:
        if option.name not in ("json", "yes") and given.wants(option.name):
            yield f"{given.called(option.name)} is for `backup add`"


def _list_problems(given: Given) -> Iterable[str]:
    yield from _remove_problems(given)
    yield from _not_asked(given)


_ALL = (*_SHARED, *BACKUP_OPTIONS)
BACKUP: Mapping[Action, CommandOptions[BackupConfig]] = {
    "add": CommandOptions(_ALL, _add_problems, _config),
    "list": CommandOptions(_ALL, _list_problems, _config),
    "remove": CommandOptions(_ALL, _remove_problems, _config),
}
