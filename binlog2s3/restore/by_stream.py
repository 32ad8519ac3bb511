"""Restores what `backup run` has stored: the dump is loaded, the files are unpacked and prepared.

Law: the stream comes from the bucket, checked. A dump is loaded by the server's own client without
its commands: it runs no program here, LOAD DATA and INTO OUTFILE reach no file of this machine, and
nothing gets into the binary log. Its statements have all rights in that server. If the stream ends
with an error, so does the restore.
"""

import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from binlog2s3.archive.backups import Backup
from binlog2s3.binlog.gtid import Flavour
from binlog2s3.errors import RecoveryError
from binlog2s3.restore.children import bare, end_of, started, waited
from binlog2s3.restore.scratch import ScratchServer
from binlog2s3.restore.settings import settings_of_backup
from binlog2s3.restore.workspace import Workspace
from binlog2s3.server.child import ended_with

DUMPS = {"mysqldump": ("mysql",), "mariadb-dump": ("mariadb", "mysql")}
"""The programs that load the output of a dump tool."""
FILES = {
    "mariabackup": ("mbstream", ("mariadb-backup", "mariabackup")),
    "xtrabackup": ("xbstream", ("xtrabackup",)),
}
"""The programs that unpack the output of a physical tool, and that prepare what was unpacked."""
_SANDBOX = re.compile(rb"/\*M?!999999\\- enable the sandbox mode \*/ ?\r?\n")
"""The first line of MariaDB's dumps. Clients before MDEV-34203 refuse it with --binary-mode."""
_CLIENT: dict[Flavour, tuple[str, ...]] = {
    "mysql": ("--loose-system-command=0",),
    "mariadb": ("--loose-sandbox",),
}
_LINE = 64
_STORED = "a backup of `backup run` is restored by the programs of its tool"


def is_built_in(backup: Backup) -> bool:
    """Whether a backup is restored without a command of the operator."""
    return backup.stored is not None and (backup.tool in DUMPS or backup.tool in FILES)


def is_dump(backup: Backup) -> bool:
    """Whether it is loaded into a server; else its files are unpacked."""
    return backup.tool in DUMPS


def programs_for(tool: str, mysqld: Path, given: Path | None) -> tuple[Path, ...]:
    """The programs that restore a tool's output. Raises RecoveryError if one is not there."""
    if tool in DUMPS:
        return (_found(DUMPS[tool], mysqld, given, is_given=True),)
    stream, prepare = FILES[tool]
    return (
        _found((stream,), mysqld, given, is_given=False),
        _found(prepare, mysqld, given, is_given=True),
    )


def _found(names: Sequence[str], mysqld: Path, given: Path | None, *, is_given: bool) -> Path:
    """The program; `is_given`: it is the one that --program names, others are beside that one."""
    if given is not None and is_given:
        if path := shutil.which(given.absolute()):
            return Path(path)
        raise RecoveryError(f"--program {given} is not an executable program", hint=_STORED)
    server = mysqld.absolute()
    folders = [] if given is None else [given.absolute().parent]
    folders += [server.parent, server.parent.parent / "bin"]
    for name in names:
        for folder in folders:
            if path := shutil.which(folder / name):
                return Path(path)
    for name in names:
        if path := shutil.which(name):
            return Path(path)
    raise RecoveryError(
        f"there is no {' or '.join(names)} beside --mysqld, nor on PATH",
        hint=f"{_STORED}: install them, or name one with --program",
    )


def load(
    stream: Iterator[bytes],
    client: Path,
    server: ScratchServer,
    flavour: Flavour,
    made_at: datetime,
) -> bool:
    """Load a dump into the running private server; whether it has the past of versioned tables.

    Raises RecoveryError, and what reading raises. Nothing of it gets into the server's binary log:
    it is no part of the history. `made_at`: when the dump was made.
    """
    past = Past()
    workspace = server.workspace
    argv = client_argv(client, server.socket, flavour, made_at)
    _feed(_without_sandbox_line(past.seen_in(stream)), argv, workspace, server.id)
    # what a dump may have set for the starts of the server is not the source's
    (workspace.data / "mysqld-auto.cnf").unlink(missing_ok=True)
    return past.is_there


def client_argv(client: Path, socket: Path, flavour: Flavour, made_at: datetime) -> list[str]:
    """The program that loads a dump, and its options.

    The session's time is that of the dump. At another one a server takes an event whose end has
    come since for an expired one: it disables it, or does not create it.
    """
    return [
        str(client),
        "--no-defaults",
        "--protocol=socket",
        "--host=localhost",
        f"--socket={socket}",
        # of an empty server, without a password: the one account that a dump brings along, too, so
        # that its rights last when the dump puts its accounts in force
        "--user=root",
        "--binary-mode",
        "--local-infile=0",
        "--max-allowed-packet=1G",
        f"--init-command=SET SESSION sql_log_bin=0, SESSION timestamp={int(made_at.timestamp())}",
        *_CLIENT[flavour],
    ]


_PAST = re.compile(rb"^/\*M?!\d+ SET @old_system_versioning_insert_history=", re.MULTILINE)
"""What mariadb-dump --dump-history writes before such rows. A value has no line of its own."""
_PAST_MOST = 80


class Past:
    """Looks through a dump for the history of system-versioned tables."""

    def __init__(self) -> None:
        self.is_there = False

    def seen_in(self, stream: Iterator[bytes]) -> Iterator[bytes]:
        """The same stream."""
        last = b"\n"
        for block in stream:
            if not self.is_there:
                text = last + block
                self.is_there = _PAST.search(text, 1) is not None
                last = text[-_PAST_MOST:]
            yield block


def _without_sandbox_line(stream: Iterator[bytes]) -> Iterator[bytes]:
    """The dump without that line: the client's own option has the same effect."""
    first = b""
    for block in stream:
        first += block
        if len(first) >= _LINE:
            break
    yield _SANDBOX.sub(b"", first, count=1) if _SANDBOX.match(first) else first
    yield from stream


def unpack(
    stream: Iterator[bytes], programs: Sequence[Path], workspace: Workspace, id_: str
) -> None:
    """Unpack the files of a physical backup into the data directory, and make them consistent."""
    unpacker, preparer = programs
    _feed(stream, [str(unpacker), "-x", "-C", str(workspace.data)], workspace, id_)
    made_with = settings_of_backup(workspace.data)
    target = f"--target-dir={workspace.data}"
    argv = [str(preparer), "--no-defaults", "--prepare", target, *made_with]
    process = started(
        id_, argv, workspace.restore_log, directory=workspace.directory, environment=bare()
    )
    _check(waited(process), argv[0], workspace)
    # the link to where the source has a table of DATA DIRECTORY: here its file is beside the link
    for link in workspace.data.rglob("*.isl"):
        if link.with_suffix(".ibd").is_file():
            link.unlink()


def _feed(stream: Iterator[bytes], argv: list[str], workspace: Workspace, id_: str) -> None:
    process = started(
        id_,
        argv,
        workspace.restore_log,
        directory=workspace.directory,
        given=subprocess.PIPE,
        environment=bare(HOME=str(workspace.directory)),  # of no other option file
    )
    assert process.stdin is not None  # noqa: S101 - PIPE was asked for
    try:
        with suppress(BrokenPipeError):  # its end says why
            for block in stream:
                process.stdin.write(block)
            process.stdin.close()
    except BaseException:
        process.kill()  # first: the end of its input would look like the end of the backup
        process.wait()
        raise
    _check(process.wait(), argv[0], workspace)


def _check(code: int, program: str, workspace: Workspace) -> None:
    if code != 0:
        output = end_of(workspace.restore_log) or "it printed nothing"
        raise RecoveryError(
            f"{program} ended with {ended_with(code)}: {output}",
            hint=f"see {workspace.restore_log.name}; {_advice(output)}",
        )


# https://dev.mysql.com/doc/mysql-errors/9.7/en/server-error-reference.html
_ADVICE = (
    (r"\bERROR (3510|3548) ", "a dump does not have it: use a physical backup"),
    (r"\bERROR 6125 ", "--mysqld-option=--restrict-fk-on-non-standard-key=OFF lets it be loaded"),
)


def _advice(output: str) -> str:
    """What to do about the message of a program that loads a backup."""
    hints = (hint for pattern, hint in _ADVICE if re.search(pattern, output))
    return next(hints, "is --mysqld of the source's version?")
