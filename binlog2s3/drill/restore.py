"""The restore command of a drill: its arguments, its environment, and running it.

Law: no shell, unless the operator's command names one. What an archive says gets into the arguments
as part of one argument, and into a shell's script as one quoted word; where that would be evaluated
once more, only if it has nothing that a shell interprets. No password gets into the arguments.
"""

import os
import re
import shlex
import stat
from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path

from binlog2s3.archive.backups import Backup
from binlog2s3.config.drill import RestoreInto
from binlog2s3.drill.children import end_of, ended_with, started
from binlog2s3.drill.scratch import socket_of
from binlog2s3.drill.workspace import Workspace
from binlog2s3.errors import RecoveryError

_FROM_ARCHIVE = frozenset({"location", "id", "label", "tool"})
"""The values that a document in the bucket has said."""
_SCRIPT = re.compile(r"[^\w@%+=:,./{}-]")
"""A word of the command with one of these is a script for another program."""
_EVALUATED = re.compile(
    r"(?<![\w.-])(?:eval|ssh|rsh|su|xargs|parallel|(?:ba|da|z|k)?sh)(?![\w.-])|<<|`|\$\("
)
"""What evaluates its arguments, or a part of a script, once more."""
_BRACES = re.compile(r"\{(?P<name>[a-z]+)\}")
_REMOTE = frozenset({"ssh", "rsh", "eval"})
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
    """The words of the command, split as a shell does; the names in braces are replaced once.

    In a script, which is a word with blanks or other signs of a shell, each value becomes one
    quoted word, unless the script quotes it itself.
    """
    return ["".join(_filled(word, values)) for word in shlex.split(command)]


def refuse_values(command: str, backup: Backup, values: Mapping[str, str]) -> None:
    """Raise RecoveryError if the command would do something else with these values.

    With an empty location `cp -a {location}/. {datadir}` would copy the whole machine. Where a
    shell would evaluate what the archive says, it may have only what a shell does not interpret.
    """
    words = shlex.split(command)
    is_remote = any(Path(word).name in _REMOTE for word in words)
    for word, filled in zip(words, argv_of(command, values), strict=True):
        is_script = _SCRIPT.search(word) is not None
        evaluated = is_remote or (is_script and _EVALUATED.search(word) is not None)
        for before, name in _places(word, values):
            if name not in _FROM_ARCHIVE:
                continue
            value = values[name]
            if is_script and value.startswith("-"):
                raise _as_option(value, backup)
            is_plain = shlex.quote(value) == value or not value
            if not is_plain and (evaluated or (is_script and _is_quoted(before))):
                raise RecoveryError(
                    f"a shell of the restore command would interpret the {name} of {backup.name}: "
                    f"{value!r:.100}",
                    hint=f'write "$DRILL_{name.upper()}" in the script instead of {{{name}}}, or '
                    "register the backup again with a plain one",
                )
        if "{location}" in word and not backup.location:
            raise RecoveryError(
                f"{backup.name} has no location, and the restore command needs {{location}}",
                hint="register it with `binlog2s3 backup add --location`, and remove this one",
            )
        if filled.startswith("-") and not word.startswith("-"):
            raise _as_option(filled, backup)


def _as_option(value: str, backup: Backup) -> RecoveryError:
    return RecoveryError(
        f"the restore command would take {value!r:.100} of {backup.name} as an option",
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


def _filled(word: str, values: Mapping[str, str]) -> Iterator[str]:
    """The parts of a word, the values among them."""
    is_script, end = _SCRIPT.search(word) is not None, 0
    for before, name in _places(word, values):
        yield before[end:]
        end = len(before) + len(name) + 2
        is_bare = is_script and not _is_quoted(before)
        yield shlex.quote(values[name]) if is_bare else values[name]
    yield word[end:]


def _places(word: str, values: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """The names in braces that have a value, each with all of the word that comes before it."""
    for match in _BRACES.finditer(word):
        if match["name"] in values:
            yield word[: match.start()], match["name"]


def _is_quoted(before: str) -> bool:
    """Whether a shell is within quotes after this, or takes the next sign as it is."""
    quote, escaped = "", False
    for sign in before:
        if escaped:
            escaped = False
        elif sign == "\\" and quote != "'":
            escaped = True
        elif quote:
            quote = "" if sign == quote else quote
        elif sign in "'\"":
            quote = sign
    return bool(quote) or escaped


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
