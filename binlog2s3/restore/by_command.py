"""The operator's restore command: its arguments, its environment, and running it.

Law: no shell, unless the operator's command names one. Any program may hand its arguments to a
shell, here or on another machine: so what an archive says gets into the arguments only if it has
nothing that a shell interprets, and is neither an option nor a program. No password gets into the
arguments.
"""

import os
import re
import shlex
import stat
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path

from binlog2s3.archive.backups import Backup
from binlog2s3.config.restore import RestoreInto
from binlog2s3.errors import RecoveryError
from binlog2s3.restore.children import end_of, started, waited
from binlog2s3.restore.scratch import socket_of
from binlog2s3.restore.workspace import Workspace
from binlog2s3.server.child import ended_with

_FROM_ARCHIVE = frozenset({"location", "id", "label", "tool"})
"""The values that a document in the bucket has said."""
_OTHER_SIGN = re.compile(r"[^A-Za-z0-9@%+=:,./_-]")
"""What a shell may interpret, and what is not certain."""
_BRACES = re.compile(r"\{(?P<name>[a-z]+)\}")
_SHELLS = frozenset({"sh", "bash", "dash", "ash", "ksh", "zsh"})
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
    return [
        _BRACES.sub(lambda match: values.get(match["name"], match[0]), word)
        for word in shlex.split(command)
    ]


def refuse_values(command: str, backup: Backup, values: Mapping[str, str]) -> None:
    """Raise RecoveryError if the command would do something else with these values.

    With an empty location `cp -a {location}/. {datadir}` would copy the whole machine.
    """
    words = shlex.split(command)
    for number, word in enumerate(words):
        for name in _BRACES.findall(word):
            if name not in _FROM_ARCHIVE:
                continue
            value = values[name]
            if others := sorted(set(_OTHER_SIGN.findall(value))):
                raise _unfit(
                    f"the {name} of {backup.name} has signs that a shell may interpret "
                    f"({', '.join(map(repr, others[:5]))}): {value!r:.100}; a restore command gets "
                    "only letters, digits and @%+=:,./_-",
                    name,
                )
            if value.startswith("-"):
                raise RecoveryError(
                    f"the restore command would take {value!r:.100} of {backup.name} as an option",
                    hint="a location or a label must not begin with -; register the backup again",
                )
            if _is_program(words, number, name):
                raise _unfit(f"the restore command would run the {name} of {backup.name}", name)
        if "{location}" in word and not backup.location:
            raise RecoveryError(
                f"{backup.name} has no location, and the restore command needs {{location}}",
                hint="register it with `binlog2s3 backup add --location`, and remove this one",
            )


def _is_program(words: Sequence[str], number: int, name: str) -> bool:
    """Whether a word is the program or begins a shell's script, and has that value for it."""
    if number == 0:
        return True
    is_script = re.fullmatch("-[a-z]*c", words[number - 1]) is not None
    is_shell = any(Path(word).name in _SHELLS for word in words[:number])
    return is_script and is_shell and words[number].lstrip().startswith(f"{{{name}}}")


def _unfit(text: str, name: str) -> RecoveryError:
    """The refusal of a value, with the way that no shell interprets."""
    return RecoveryError(
        text,
        hint=f'write a script that reads "$DRILL_{name.upper()}" instead of {{{name}}}, or '
        "register the backup again with a plain one (docs/drill.md)",
    )


def refuse_links(data: Path) -> None:
    """Raise RecoveryError if a file of the data directory is also elsewhere, by a link.

    The private server would change it there: in the base backup itself.
    """
    real = os.path.realpath(data.parent) + os.sep
    for path in chain([data], data.rglob("*")):
        status = path.lstat()
        is_link = stat.S_ISLNK(status.st_mode) and not os.path.realpath(path).startswith(real)
        is_link = is_link or path.suffix == ".isl"  # InnoDB's own: a table of DATA DIRECTORY
        if is_link or (stat.S_ISREG(status.st_mode) and status.st_nlink > 1):
            raise RecoveryError(
                f"the restored {path} is a link to something else, which the server would change",
                hint="the restore command must copy the base backup, not link to it",
            )


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
        environment={**os.environ, **environment_of(values)},
    )
    code = waited(process)
    if code != 0:
        output = end_of(workspace.restore_log) or "it printed nothing"
        raise RecoveryError(
            f"the restore command {argv[0]} ended with {ended_with(code)}: {output}",
            hint=f"run it by hand with an empty {'server' if into_server else 'directory'}; "
            "docs/drill.md has examples",
        )
