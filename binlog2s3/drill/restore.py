"""The restore command of a drill: its arguments, its environment, and running it.

Law: no shell, unless the operator's command names one. Only names and positions from the archive
get into the arguments, each as part of one argument; no password does.
"""

import os
import shlex
import stat
from collections.abc import Mapping
from itertools import chain
from pathlib import Path

from binlog2s3.archive.backups import Backup
from binlog2s3.config.drill import RestoreInto
from binlog2s3.drill.children import end_of, ended_with, started
from binlog2s3.drill.scratch import socket_of
from binlog2s3.drill.workspace import Workspace
from binlog2s3.errors import RecoveryError

_LOGICAL = frozenset({"mysqldump", "mariadb-dump", "mydumper", "mysqlsh"})


def goes_into_server(into: RestoreInto, backup: Backup) -> bool:
    """Whether the restore command needs a running server."""
    return into == "server" or (into == "auto" and backup.tool in _LOGICAL)


def values_of(backup: Backup, data: Path, socket: Path) -> dict[str, str]:
    """What the restore command is told, by name."""
    return {
        "location": backup.location,
        "datadir": str(data),
        "socket": str(socket),
        "id": backup.id,
        "label": backup.label,
        "tool": backup.tool,
    }


def argv_of(command: str, values: Mapping[str, str]) -> list[str]:
    """The words of the command, split as a shell does; the names in braces are replaced once."""
    return [_filled(word, values) for word in shlex.split(command)]


def refuse_values(command: str, backup: Backup, values: Mapping[str, str]) -> None:
    """Raise RecoveryError if the command would do something else with these values.

    With an empty location `cp -a {location}/. {datadir}` would copy the whole machine.
    """
    for word, filled in zip(shlex.split(command), argv_of(command, values), strict=True):
        if "{location}" in word and not backup.location:
            raise RecoveryError(
                f"{backup.name} has no location, and the restore command needs {{location}}",
                hint="register it with `binlog2s3 backup add --location`, and remove this one",
            )
        if filled.startswith("-") and not word.startswith("-"):
            raise RecoveryError(
                f"the restore command would take {filled!r:.100} of {backup.name} as an option",
                hint="a location or a label must not begin with -; register the backup again",
            )


def refuse_links(data: Path) -> None:
    """Raise RecoveryError if a file of the data directory is also elsewhere, by a link.

    The scratch server would change it there: in the base backup itself.
    """
    real = os.path.realpath(data.parent) + os.sep
    for path in chain([data], data.rglob("*")):
        found = path.lstat()
        is_link = stat.S_ISLNK(found.st_mode) and not os.path.realpath(path).startswith(real)
        if is_link or (stat.S_ISREG(found.st_mode) and found.st_nlink > 1):
            raise RecoveryError(
                f"the restored {path} is a link to something else, which the scratch server would "
                "change",
                hint="the restore command must copy the base backup, not link to it",
            )


def _filled(word: str, values: Mapping[str, str]) -> str:
    parts, rest = [], word
    while rest:
        head, brace, tail = rest.partition("{")
        parts.append(head)
        name, end, after = tail.partition("}")
        if brace and end and name in values:
            parts.append(values[name])
            rest = after
        else:
            parts.append(brace)
            rest = tail
    return "".join(parts)


def environment_of(values: Mapping[str, str]) -> dict[str, str]:
    """The same as environment variables: DRILL_LOCATION and so on."""
    return {f"DRILL_{name.upper()}": value for name, value in values.items()}


def restore(
    command: str, backup: Backup, workspace: Workspace, id_: str, *, into_server: bool
) -> None:
    """Run the restore command to its end. Raises RecoveryError if it fails."""
    values = values_of(backup, workspace.data, socket_of(workspace))
    argv = argv_of(command, values)
    process = started(
        id_,
        argv,
        workspace.restore_log,
        directory=workspace.directory,
        environment=environment_of(values),
    )
    code = process.wait()
    if code != 0:
        said = end_of(workspace.restore_log) or "it printed nothing"
        raise RecoveryError(
            f"the restore command {argv[0]} ended with {ended_with(code)}: {said}",
            hint=f"run it by hand with an empty {'server' if into_server else 'directory'}; "
            "docs/drill.md has examples",
        )
