"""The session at a recovery's target: one `mysql` (or `mariadb`) client, fed with SQL text.

Place in the flow: `pipe` writes what mysqlbinlog prints; this module owns the process.

Law: the client never comes to the end of its standard input. There it would execute whatever part
of a statement it holds: of "DROP TABLE a, b" the half "DROP TABLE a". So it inherits the writing
end of its own pipe: nothing that happens to us, and no order of closing things, can end it but
SIGKILL, which the kernel sends when we die. What it was given has been executed when the token that
was written behind it comes back.
"""

import os
import re
import secrets
import shutil
import signal
import subprocess
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from binlog2s3.binlog.gtid import Flavour
from binlog2s3.errors import RecoveryError
from binlog2s3.server.children import ask, client_options, option_file, spawn
from binlog2s3.server.login import Login

_NAMES: dict[Flavour, tuple[str, ...]] = {"mysql": ("mysql",), "mariadb": ("mariadb", "mysql")}
_INSTALL: dict[Flavour, str] = {
    "mysql": "install MySQL's client (packages mysql-client, mysql-community-client or "
    "mysql-client-core) or name it with --mysql-client",
    "mariadb": "install MariaDB's client (package mariadb-client) or name it with --mysql-client",
}
_TITLE: dict[Flavour, str] = {"mysql": "MySQL", "mariadb": "MariaDB"}
_PREAMBLE = (
    "SET SESSION wait_timeout = 86400, SESSION net_read_timeout = 3600, "
    "SESSION net_write_timeout = 3600;\n"
)
_ERROR = re.compile(
    r"^ERROR (\d+) \((\w+)\)(?: at line (\d+)(?: in file: '.*?')?)?: (.*)",
    re.DOTALL | re.MULTILINE,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientTool:
    """A client that was found and asked who it is."""

    path: str
    flavour: Flavour
    version: str
    load_directory: bool
    all_or_nothing: bool


def find_client(flavour: Flavour, given: Path | None = None) -> ClientTool:
    """The client for a target of this flavour: the one given, else the first on PATH.

    Raises RecoveryError where there is none, or only the other flavour's.
    """
    names = (str(given),) if given is not None else _NAMES[flavour]
    other: ClientTool | None = None
    for name in names:
        path = str(shutil.which(name) or (given and shutil.which(given.absolute())) or "")
        if not path:
            continue
        tool = _ask(path)
        if tool.flavour == flavour:
            return tool
        other = tool
    if other is not None:
        raise RecoveryError(
            f"{other.path} is {_TITLE[other.flavour]}'s, the target is {_TITLE[flavour]}",
            hint=_INSTALL[flavour],
        )
    if given is not None:
        raise RecoveryError(f"{given} is no program that can be run", hint=_INSTALL[flavour])
    raise RecoveryError(
        f"no {' or '.join(names)} on PATH, for a {_TITLE[flavour]} target", hint=_INSTALL[flavour]
    )


def _ask(path: str) -> ClientTool:
    try:
        version, help_ = ask(path)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RecoveryError(f"cannot run {path}: {error}", hint="is it mysql?") from error
    # "mysql  Ver 9.7.4 for ...", "mysql  Ver 15.1 Distrib 10.11.19-MariaDB, ...", "mariadb from 11"
    told = re.search(r"\bDistrib ([\w.+~-]+)", version) or re.search(
        r"\b(?:Ver|from) ([\w.+~-]+)", version
    )
    if told is None or "--binary-mode" not in help_:
        raise RecoveryError(
            f"{path} is no mysql client that can take binlogs (it has no --binary-mode)",
            hint="name mysql 8.0 or later, or mariadb, with --mysql-client",
        )
    return ClientTool(
        path=path,
        flavour="mariadb" if "MariaDB" in version + help_ else "mysql",
        version=told[1],
        load_directory="--load-data-local-dir" in help_,
        all_or_nothing="--ssl-fp" in help_,
    )


class ClientEndedError(Exception):
    """The client has ended by itself: a statement failed, or it could not connect."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """What the client said when it ended: the server's error, and the line that it was in."""

    code: int
    line: int | None
    text: str


class Client:
    """A running client. `write` text, `mark` a place, `wait` until all before it was executed."""

    def __init__(self, tool: ClientTool, login: Login, *, load_directory: Path) -> None:
        self.address = login.address
        self._token = secrets.token_hex(12)
        self._last = (-1, "")
        self._heard = threading.Condition()
        self._ended = False
        self.lines: deque[str] = deque(maxlen=50)
        reading, self._writing = os.pipe()
        text = client_options(login, tool.flavour, all_or_nothing=tool.all_or_nothing)
        try:
            with option_file(text) as descriptor:
                self._process = spawn(
                    _arguments(tool, login, f"/dev/fd/{descriptor}", load_directory),
                    stdin=reading,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    # the writing end, so that it never sees the end of its input: the law above
                    descriptors=(descriptor, self._writing),
                    own_session=True,
                )
        except OSError as error:
            os.close(self._writing)
            raise RecoveryError(f"cannot start {tool.path}: {error}") from error
        finally:
            os.close(reading)
        assert self._process.stdout is not None  # noqa: S101 - PIPE was asked for
        assert self._process.stderr is not None  # noqa: S101 - PIPE was asked for
        self._threads = [
            threading.Thread(target=work, args=(pipe,), name=f"client-{name}", daemon=True)
            for name, work, pipe in (
                ("stdout", self._read_stdout, self._process.stdout),
                ("stderr", self._read_stderr, self._process.stderr),
            )
        ]
        for thread in self._threads:
            thread.start()

    @property
    def pid(self) -> int:
        """The client's process id."""
        return self._process.pid

    @property
    def preamble(self) -> bytes:
        """What the session begins with."""
        return _PREAMBLE.encode()

    def mark(self, number: int, what: str = "1") -> bytes:
        """Text that makes the client say `number`, and the value of an expression."""
        return f"SELECT '{self._token} {number}', {what};\n".encode()

    def write(self, text: bytes) -> None:
        """Hand text on; blocks while the client is busy. Raises ClientEndedError."""
        left = memoryview(text)
        try:
            while left:
                left = left[os.write(self._writing, left) :]
        except BrokenPipeError:
            raise ClientEndedError from None

    def answered(self, number: int) -> bool:
        """Whether all that was written before this mark has been executed, without an error."""
        with self._heard:
            return self._last[0] >= number

    def wait(self, number: int, see: Callable[[], None] = lambda: None) -> str:
        """Wait until it has: the value asked for. Raises ClientEndedError.

        `see` is called each second, and may raise.
        """
        while True:
            with self._heard:
                if self._last[0] < number and not self._ended:
                    self._heard.wait(1.0)
                if self._last[0] >= number:
                    return self._last[1]
                if self._ended:
                    raise ClientEndedError
            see()

    def kill(self) -> None:
        """End it at once: what it holds of a statement is not executed. May be called again."""
        if self._process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.kill()  # where it has not got its session yet
        self._process.wait()
        if self._writing >= 0:
            os.close(self._writing)  # only now: nobody reads any more
            self._writing = -1
        for thread in self._threads:
            thread.join(2.0)

    def failure(self) -> Failure:
        """Why it ended by itself."""
        status = self._process.wait()
        for thread in self._threads:
            thread.join(5.0)
        said = [line for line in self.lines if "[Warning]" not in line]
        text = "\n".join(said).strip()
        if (found := _ERROR.search(text)) is not None:
            line = int(found[3]) if found[3] else None
            return Failure(code=int(found[1]), line=line, text=f"{found[4].strip()} ({found[1]})")
        if status < 0:
            return Failure(code=0, line=None, text=f"it was killed by signal {-status}")
        return Failure(code=0, line=None, text=text or f"exit status {status}, without a word")

    def _read_stdout(self, pipe: IO[bytes]) -> None:
        token = self._token.encode()
        with pipe:
            while line := pipe.readline(1 << 16):
                if not line.startswith(token):
                    continue  # what statements like OPTIMIZE TABLE say
                number, _, value = line[len(token) :].decode().strip().partition("\t")
                with self._heard:
                    self._last = (int(number), value)
                    self._heard.notify_all()
        with self._heard:
            self._ended = True
            self._heard.notify_all()

    def _read_stderr(self, pipe: IO[bytes]) -> None:
        with pipe:
            while raw := pipe.readline(1 << 12):  # MariaDB's repeats the whole statement
                if line := raw.decode("utf-8", "replace").rstrip():
                    self.lines.append(line)


def _arguments(tool: ClientTool, login: Login, options: str, load_directory: Path) -> list[str]:
    arguments = [
        tool.path,
        f"--defaults-file={options}",  # must come first
        "--batch",
        "--skip-column-names",
        "--unbuffered",
        "--binary-mode",
        "--comments",  # those inside procedures
        "--skip-reconnect",  # temporary tables and settings would be gone
        "--skip-auto-rehash",
        "--default-character-set=utf8mb4",
        "--max-allowed-packet=1G",
        f"--connect-timeout={max(1, int(login.connect_timeout))}",
    ]
    if tool.load_directory:
        arguments.append(f"--load-data-local-dir={load_directory}")
    else:
        arguments.append("--local-infile=1")
    return arguments
