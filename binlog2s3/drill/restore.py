"""The restore command of a drill: its words, its environment, and running it.

Place in the flow: `command` runs it, into the empty data directory or into the empty server.

Law: no shell, unless the operator's command names one. Of the archive only names and places get
into the words, each as a part of one word; no password does.
"""

import shlex
from collections.abc import Mapping
from pathlib import Path

from binlog2s3.archive.backups import Backup
from binlog2s3.config.drill import RestoreInto
from binlog2s3.drill.children import end_of, started
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


def restore(command: str, backup: Backup, workspace: Workspace, id_: str) -> None:
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
        what = f"status {code}" if code > 0 else f"signal {-code}"
        said = end_of(workspace.restore_log) or "it printed nothing"
        raise RecoveryError(
            f"the restore command {argv[0]} ended with {what}: {said}",
            hint="run it by hand with an empty directory; docs/drill.md has examples",
        )
