"""The program that makes a base backup: which one, with which options; its output and its end.

Law: the program never outlives the process that started it. It gets the password through an
anonymous file in memory, never through argv, the environment or the disk. Its standard error is
always read. What it runs is what the operator named: nothing of a bucket becomes an argument.
"""

import os
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from binlog2s3.binlog.gtid import Flavour
from binlog2s3.config.backup import BackupTool, PositionFrom
from binlog2s3.errors import RecoveryError, SourceError
from binlog2s3.formatting import one_line
from binlog2s3.server.child import ended_with, said_by, start
from binlog2s3.server.login import Login
from binlog2s3.server.mysqlbinlog import (
    Tool,
    clear_text,
    login_file,
    plugins_for,
    refuse_unguarded,
    safe_plugins,
)

DEFAULTS_FILE = "{defaults_file}"
"""In a command of the operator: replaced by the option file with the login."""
READ_SIZE = 1 << 20
_LOG_TAIL = 2 << 20
"""The last bytes of standard error that are kept: the position stands there, with its GTIDs."""
_END_SECONDS = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kind:
    """What is known of a tool: its names, its flavour, its options, how it reads option files."""

    flavour: Flavour
    names: tuple[str, ...]
    options: tuple[str, ...]
    position_from: PositionFrom
    group: str = "client"
    install: str


_DUMP = ("--all-databases", "--single-transaction", "--triggers", "--routines", "--events")
_PHYSICAL = ("--backup", "--stream=xbstream")
_KINDS: dict[BackupTool, _Kind] = {
    "mysqldump": _Kind(
        flavour="mysql",
        names=("mysqldump",),
        options=(*_DUMP, "--source-data=2", "--flush-privileges"),
        position_from="dump-header",
        install="install MySQL's client programs, or give its path with --program",
    ),
    "mariadb-dump": _Kind(
        flavour="mariadb",
        names=("mariadb-dump", "mysqldump"),
        # LOCK TABLES of a table whose DEFAULT is a sequence does not lock that (error 1100)
        options=(*_DUMP, "--master-data=2", "--gtid", "--flush-privileges", "--skip-add-locks"),
        position_from="dump-header",
        install="install MariaDB's client programs, or give its path with --program",
    ),
    "mariabackup": _Kind(
        flavour="mariadb",
        names=("mariadb-backup", "mariabackup"),
        options=_PHYSICAL,
        position_from="xtrabackup-log",
        group="xtrabackup",
        install="install mariadb-backup in the server's version, or give its path with --program",
    ),
    "xtrabackup": _Kind(
        flavour="mysql",
        names=("xtrabackup",),
        options=_PHYSICAL,
        position_from="xtrabackup-log",
        group="xtrabackup",
        install="install Percona XtraBackup in the server's version, or give its path with "
        "--program",
    ),
}
_DUMP_HISTORY = "--dump-history"
_HISTORY = {_DUMP_HISTORY: True, "-H": True, "--skip-dump-history": False}
"""The options of mariadb-dump that decide on it; the last one counts."""
# "mysqldump  Ver 9.7.4 for ...", "mariadb-dump from 11.4.5-MariaDB, ...",
# "mariabackup based on MariaDB server 10.11.18-MariaDB ...", "xtrabackup version 8.0.35-30 ..."
_SAYS = r"(?:Ver|from|based on|version)\b"
_VERSION = re.compile(r"\b(?:Distrib|from|server|version|Ver) ([0-9][\w.+~-]*)")


def flavour_of(tool: BackupTool) -> Flavour:
    """The flavour of the servers that a tool backs up."""
    return _KINDS[tool].flavour


def position_of(tool: BackupTool) -> PositionFrom:
    """Where a tool says at which position its backup ends."""
    return _KINDS[tool].position_from


@dataclass(frozen=True, slots=True, kw_only=True)
class BackupProgram:
    """What is run: `arguments` as the operator or we gave them; `name` is for people.

    The login is put into an option file; without one, the program finds its own. `temporary`: it
    needs an empty directory, as --target-dir. `inherits`: it gets the environment of this process.
    """

    name: str
    arguments: tuple[str, ...]
    tool: Tool | None = None
    login: Login | None = None
    group: str = "client"
    temporary: bool = False
    inherits: bool = False

    @property
    def has_history(self) -> bool:
        """Whether a mariadb-dump is to write the history of system-versioned tables."""
        return [_HISTORY[argument] for argument in self.arguments if argument in _HISTORY][-1:] == [
            True
        ]


def program_of(
    tool: BackupTool,
    login: Login,
    given: Path | None,
    options: Sequence[str],
    *,
    history: bool = False,
) -> BackupProgram:
    """An installed tool with its options, and those of the operator after them.

    `history`: a mariadb-dump that can (10.11 and later) writes that of system-versioned tables.
    Raises SourceError if it is not there, or is another program.
    """
    kind = _KINDS[tool]
    path = _path_of(kind, tool, given)
    version, help_ = (_printed(path, option) for option in ("--version", "--help"))
    number = _VERSION.search(version)
    flavour: Flavour = "mariadb" if "MariaDB" in version else "mysql"
    is_named = any(re.search(rf"\b{name} +{_SAYS}", version) for name in kind.names)
    if number is None or flavour != kind.flavour or not is_named:
        raise SourceError(
            f"{path} is not {tool}: it says {version.strip()[:100]!r}", hint=kind.install
        )
    chosen = [*kind.options]
    if tool == "mysqldump" and "--source-data" not in help_:  # before 8.0.26
        chosen[chosen.index("--source-data=2")] = "--master-data=2"
    if history and _DUMP_HISTORY in help_:
        chosen.append(_DUMP_HISTORY)
    program = Tool(
        path=path,
        flavour=flavour,
        version=number[1],
        connection_server_id=False,
        all_or_nothing="--ssl-fp" in help_,
        plugins=safe_plugins(path, flavour),
    )
    refuse_unguarded(program, login)
    return BackupProgram(
        name=tool,
        arguments=(path, f"--defaults-file={DEFAULTS_FILE}", *chosen, *options),
        tool=program,
        login=login,
        group=kind.group,
        temporary=kind.group != "client",
    )


def command_of(words: Sequence[str], login: Login | None, flavour: Flavour) -> BackupProgram:
    """The operator's own command. Raises SourceError if there is no such program."""
    path = shutil.which(words[0])
    if path is None:
        raise SourceError(
            f"{words[0]} is not an executable program", hint="check --command; it needs no shell"
        )
    program = Tool(path=path, flavour=flavour, version="unknown", connection_server_id=False)
    if login is not None and any(DEFAULTS_FILE in word for word in words):
        refuse_unguarded(program, login)
    return BackupProgram(
        name=Path(path).name,
        arguments=(path, *words[1:]),
        tool=program,
        login=login,
        inherits=True,
    )


def _path_of(kind: _Kind, tool: BackupTool, given: Path | None) -> str:
    if given is not None:
        path = shutil.which(given) or shutil.which(given.absolute())
        if path is None:
            raise SourceError(f"{given} is not an executable program", hint=kind.install)
        return str(path)
    for name in kind.names:
        if path := shutil.which(name):
            return path
    raise SourceError(f"there is no {tool} on PATH", hint=kind.install)


def _printed(path: str, option: str) -> str:
    """What a program says of itself, on either output."""
    done = said_by(path, option, "check --program")
    return done.stdout + done.stderr


class RunningBackup:
    """A backup program while it runs; at the end of the block it runs no more.

    `directory` is empty and private, for what the program needs.
    """

    def __init__(self, program: BackupProgram, directory: Path) -> None:
        self.name = program.name
        self._log = bytearray()
        arguments = [*program.arguments]
        if program.temporary:
            arguments.append(f"--target-dir={directory}")
        own = any(DEFAULTS_FILE in argument for argument in arguments)
        if own and program.login is None:
            raise SourceError(
                f"the command has {DEFAULTS_FILE}, and no login is given",
                hint="give --mysql-user and a file with the password, or --mysql-defaults-file",
            )
        with ExitStack() as files:
            descriptors: tuple[int, ...] = ()
            if own and program.tool is not None and program.login is not None:
                plugins = None
                if program.group == "client":
                    plugins = plugins_for(program.tool, program.login, directory)
                descriptors = files.enter_context(
                    login_file(program.tool, program.login, plugins, program.group)
                )
                file = f"/dev/fd/{descriptors[0]}"
                arguments = [argument.replace(DEFAULTS_FILE, file) for argument in arguments]
            added = {}
            if program.tool is not None and program.login is not None:
                added = clear_text(program.tool, program.login)
            self._process = start(
                arguments,
                descriptors=descriptors,
                added=added,
                environment=dict(os.environ) if program.inherits else None,
                stdout=subprocess.PIPE,
                directory=directory if program.temporary else None,
            )
        assert self._process.stdout is not None  # noqa: S101 - PIPE was asked for
        assert self._process.stderr is not None  # noqa: S101 - PIPE was asked for
        self._stdout = self._process.stdout
        self._drain = threading.Thread(
            target=self._read_stderr,
            args=(self._process.stderr,),
            name="backup-stderr",
            daemon=True,
        )
        self._drain.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(_END_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._stdout.close()
        self._drain.join(_END_SECONDS)

    @property
    def pid(self) -> int:
        """Process id of the program."""
        return self._process.pid

    def output(self) -> Iterator[bytes]:
        """Its standard output, in blocks; all of it has been read at the end."""
        while data := self._stdout.read(READ_SIZE):
            yield data

    def log(self) -> str:
        """The end of its standard error."""
        return self._log.decode("utf-8", "replace")

    def check_end(self) -> None:
        """Wait for its end. Raises RecoveryError if it did not end well, or tells of an error."""
        status = self._process.wait()
        self._drain.join(_END_SECONDS)
        lines = [line for text in self.log().splitlines() if (line := text.strip())]
        errors = [line for line in lines if _ERROR.match(line)]
        if status == 0 and not errors:
            return
        message = "; ".join(lines[-3:] if status else errors[-3:])[-600:]
        message = one_line(message) or "it said nothing"
        raise RecoveryError(
            f"{self.name} ended with {ended_with(status)}: {message}",
            hint=f"{_advice(message)}; nothing was stored",
        )

    def _read_stderr(self, pipe: IO[bytes]) -> None:
        with pipe:
            while data := os.read(pipe.fileno(), 1 << 16):
                self._log += data
                del self._log[:-_LOG_TAIL]


_ERROR = re.compile(r"\S*(?:dump|backup)\S*: (?:Error\b|Got error\b|Couldn't execute\b)")
"""A line of a dump program after which it may go on, and end with exit code 0 all the same."""
_ADVICE = (
    (
        r"Access denied; you need|(PROCESS|RELOAD|FLUSH_TABLES|REPLICATION CLIENT|BINLOG MONITOR) ",
        "the account lacks a privilege: the page on base backups has the GRANT",
    ),
    (
        r"Table definition has changed|Error 1412",
        "a table was created or changed while the dump ran: run it again, when no DDL does",
    ),
    (
        r"View '(.+?)' references invalid|\b1356\b",
        (
            r"a view \1 is not valid, and ends the dump: a table, column or function that it uses "
            "does not exist, or its definer may not use it (SHOW CREATE VIEW). Repair or drop it, "
            "and run this again, which names the next one if there are more"
        ),
    ),
    (r"Access denied", "check --mysql-user, the password file and the account's host part"),
    (
        r"unknown (variable|option)|unrecognized option",
        "this program does not have an option: give a newer one with --program",
    ),
    (r"Binlogging on server not active|not using binary logging", "set log_bin at the server"),
    (r"Can't connect|Lost connection|gone away", "is the server up, and net_write_timeout enough?"),
    (
        r"Unsupported server version|is not compatible|server version",
        "use the program of the server's version: --program",
    ),
)


def _advice(message: str) -> str:
    """What to do about the message of a backup program."""
    for pattern, hint in _ADVICE:
        if match := re.search(pattern, message, re.IGNORECASE):
            return " ".join(match.expand(hint).split())
    return "see its message"
