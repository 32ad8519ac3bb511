"""The private MySQL or MariaDB of a restore, the scratch server: only this user reaches it.

Law: it listens on a socket in a directory of mode 0700 and on no port. No statement reads or writes
files elsewhere, and its temporary files are there, too: a MariaDB deletes those of all others in
its tmpdir when it starts. Events, replication and SET PERSIST that a base backup brings along do
not become active. Our account in it has a random password, which is only in files of that
directory, and is created without a trace in its binary log.
"""

import os
import pwd
import re
import secrets
import signal
import socket
import subprocess
from collections.abc import Iterable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import monotonic, sleep

from binlog2s3 import private
from binlog2s3.binlog.gtid import Flavour
from binlog2s3.config.stream import MysqlConfig
from binlog2s3.errors import RecoveryError, SourceError
from binlog2s3.recover.target import CHANNEL
from binlog2s3.restore.children import bare, end_of, started, undisturbed, waited
from binlog2s3.restore.settings import settings_of_backup
from binlog2s3.restore.workspace import Workspace
from binlog2s3.server.child import ended_with
from binlog2s3.server.connection import Server
from binlog2s3.server.login import Login, resolve
from binlog2s3.server.version import ServerVersion

_ANSWER_SECONDS = 30 * 86_400.0
"""CHECK TABLE of a large table takes long; --timeout ends it."""
_SOCKET = "mysql.sock"
_SOCKET_LIMIT = 107  # bytes that the kernel takes
_VERSION_SECONDS = 60.0
_SERVER = "--mysqld names mysqld or mariadbd, of the source's version"
_STARTS = re.compile(r"^Starts the \S+ database server", re.MULTILINE)
_MARIADB_SCRIPTS = (
    "system_tables",
    "performance_tables",
    "system_tables_data",
    "maria_add_gis_sp_bootstrap",
    "sys_schema",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScratchSettings:
    """What a server on restored files must have in common with the source, and `more` options.

    `tz` is the value of the variable TZ, which makes its system time zone; None leaves our own.
    """

    flavour: Flavour
    has_gtids: bool
    log_bin: str
    more: tuple[str, ...] = ()
    tz: str | None = None

    @property
    def environment(self) -> dict[str, str]:
        """The variables of the server program."""
        return bare(**({"TZ": self.tz} if self.tz is not None else {}))

    def options(self, data: Path, directory: Path, *own: str) -> list[str]:
        """The options of the server program, after --no-defaults. Nobody else reaches it.

        `directory` has its socket. The operator's come last and win: `config.restore` refuses those
        that would make it another server, or a public one.
        """
        state = "ON" if self.has_gtids else "OFF"
        of_flavour = ["--skip-slave-start"]
        if self.flavour == "mysql":
            of_flavour = [
                "--loose-mysqlx=OFF",
                # each server knows at least one of the two names
                "--loose-skip-slave-start",
                "--loose-skip-replica-start",
                "--loose-persisted-globals-load=OFF",
                # the defaults of 8.0; 5.7 has others
                "--loose-log-slave-updates",
                "--loose-relay-log-info-repository=TABLE",
                "--loose-master-info-repository=TABLE",
                "--secure-file-priv=NULL",
                f"--gtid-mode={state}",
                f"--enforce-gtid-consistency={state}",
            ]
        return [
            f"--datadir={data}",
            f"--socket={directory / _SOCKET}",
            f"--pid-file={directory / 'mysqld.pid'}",
            "--skip-networking",
            f"--server-id={2**31 + secrets.randbelow(2**31 - 1)}",
            f"--log-bin={self.log_bin}",
            "--event-scheduler=OFF",
            *of_flavour,
            *own,
            *settings_of_backup(data),
            *self.more,
        ]


def scratch_options(settings: ScratchSettings, workspace: Workspace) -> list[str]:
    """The options of the scratch server."""
    temporary = workspace.directory / "tmp"
    own = [f"--tmpdir={temporary}", "--max-allowed-packet=1G"]
    if settings.flavour == "mariadb":
        # as MySQL's default: what is applied must be in its binlogs, or it has no successor's GTIDs
        own += ["--log-slave-updates", f"--secure-file-priv={temporary}"]
    return settings.options(workspace.data, workspace.directory, *own)


def named_user(options: Iterable[str]) -> str:
    """The user that options for a server name, "" if none; the server takes the first, too."""
    given = (option.removeprefix("--user=") for option in options if option.startswith("--user="))
    return next(given, "")


def user_of(options: Iterable[str]) -> int | None:
    """The number of the user that root's options for a server say; None if there is no such one.

    None also if this is not root, who alone can start a server as another user.
    """
    if os.geteuid() != 0:
        return None
    user = named_user(options)
    try:
        return int(user) if user.isdigit() else pwd.getpwnam(user).pw_uid
    except KeyError:
        return None


def socket_of(workspace: Workspace) -> Path:
    """The scratch server's socket. Raises RecoveryError if its path is too long."""
    path = workspace.directory / _SOCKET
    if is_too_long(path):
        raise RecoveryError(
            f"the path of the socket {path} is too long for the system",
            hint="name a directory with a shorter path",
        )
    return path


def is_too_long(socket_path: Path) -> bool:
    """Whether the system takes no socket of this name."""
    return len(os.fsencode(socket_path)) > _SOCKET_LIMIT


class ScratchServer:
    """One scratch server; `start` and `stop` may be called in turn."""

    def __init__(
        self, program: Path, settings: ScratchSettings, workspace: Workspace, id_: str
    ) -> None:
        self._program = program
        self._settings = settings
        self.workspace = workspace
        self.id = id_
        self._process: subprocess.Popen[bytes] | None = None
        self.name = account_of(id_)
        self.socket = socket_of(workspace)
        self._password = workspace.directory / "password"

    @property
    def account(self) -> MysqlConfig:
        """How we log in."""
        return MysqlConfig(
            socket=self.socket, user=self.name, password_file=self._password, prefix="target"
        )

    def connection(self) -> Server:
        """A connection of our account that waits for long statements."""
        config = MysqlConfig(
            socket=self.socket,
            user=self.name,
            password_file=self._password,
            prefix="target",
            connect_timeout=_ANSWER_SECONDS,
        )
        return Server(partial(resolve, config))

    def login(self) -> Login:
        """The login of our account."""
        return resolve(self.account)

    def remove_account(self, connection: Server) -> None:
        """Drop our account, which the connection is of; without a trace in the binary log."""
        connection.rows("SET SESSION sql_log_bin = 0")
        connection.rows(f"DROP USER IF EXISTS '{self.name}'@'localhost'")

    def initialise(self) -> None:
        """Make an empty data directory, for a dump. Raises RecoveryError."""
        data, more = self.workspace.data, self._settings.more
        own = [f"--datadir={data}", f"--tmpdir={self.workspace.directory / 'tmp'}"]
        if self._settings.flavour == "mysql":
            self._run([*self._first(), "--initialize-insecure", *own, *more], None)
            return
        self.workspace.make_data()
        (data / "mysql").mkdir(mode=0o700)
        self.workspace.give(data / "mysql")
        script = self._write("bootstrap.sql", self._bootstrap())
        argv = [*self._first(), "--bootstrap", *own, *more]
        self._run(argv, script)

    def start(self) -> None:
        """Start it and wait until it answers our account. Raises RecoveryError."""
        password = f"{secrets.token_urlsafe(24)}aA1!"  # as password policies want it
        self._write("password", password)
        init = self._write("init.sql", account_sql(self.name, password))
        for name in (self.socket.name, f"{self.socket.name}.lock"):
            # that of a killed one: its process, or another one of that number, may be there still
            self.socket.with_name(name).unlink(missing_ok=True)
        argv = [
            *self._first(),
            *scratch_options(self._settings, self.workspace),
            f"--init-file={init}",
        ]
        self._process = self._started(argv, None)
        is_first = True
        with self.connection() as server:
            while not self._answers(server):
                if self._process.poll() is None:
                    sleep(0.1)
                    continue
                error = self._ended("does not start", self._process.returncode)
                if not (is_first and self._removed_torn_channel(str(error))):
                    raise error
                self._process, is_first = self._started(argv, None), False

    def _removed_torn_channel(self, output: str) -> bool:
        """Remove the files of our channel if the server does not start because of them.

        MariaDB writes them in place, and does not start with what a kill has cut off (seen on
        11.8). They say nothing that is needed: what was applied is in `gtid_slave_pos`, a table.
        """
        info = self.workspace.data / f"master-{CHANNEL}.info"
        if self._settings.flavour != "mariadb" or f"'{info.name}' failed" not in output:
            return False
        relay_logs = self.workspace.data.glob(f"*-relay-bin-{CHANNEL}.*")
        for path in (info, info.with_name(f"relay-log-{CHANNEL}.info"), *relay_logs):
            path.unlink(missing_ok=True)
        return True

    def stop(self) -> None:
        """Shut it down and wait for its end."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                self._process.send_signal(signal.SIGTERM)
            self._process.wait()
            self._process = None

    def _answers(self, server: Server) -> bool:
        """Whether it answers our account. Raises RecoveryError if it never will.

        A server greets nobody before it has executed the statements that make the account.
        """
        has_greeted = greets(self.socket)
        try:
            return bool(server.rows("SELECT 1"))
        except SourceError as error:
            if has_greeted and error.answered:
                raise RecoveryError(
                    f"the scratch server {self._program} could not make an account for this "
                    f"restore ({error}): {end_of(self.workspace.server_log)}",
                    hint="a plugin or component of the base backup may forbid its password; "
                    "--mysqld-option turns it off",
                ) from error
            return False

    def _first(self) -> list[str]:
        return [str(self._program.absolute()), "--no-defaults"]

    def _started(self, argv: Sequence[str], given: Path | None) -> "subprocess.Popen[bytes]":
        workspace = self.workspace
        return started(
            self.id,
            argv,
            workspace.server_log,
            directory=workspace.directory,
            given=given,
            environment=self._settings.environment,
        )

    def _run(self, argv: Sequence[str], given: Path | None) -> None:
        code = waited(self._started(argv, given))
        if code != 0:
            raise self._ended("cannot make an empty data directory", code)

    def _ended(self, what: str, code: int) -> RecoveryError:
        since = monotonic() + 1  # the last lines of its log may still be on their way
        while not (text := end_of(self.workspace.server_log)) and monotonic() < since:
            sleep(0.05)
        return RecoveryError(
            f"the scratch server {self._program} {what} ({ended_with(code)}): "
            f"{text or 'it printed nothing'}",
            hint="--mysqld must be of the source's version; --mysqld-option gives it the source's "
            "settings, and --user=NAME if this runs as root",
        )

    def _bootstrap(self) -> str:
        """The statements that make MariaDB's system tables, as mariadb-install-db has them."""
        share = self._share()
        parts = [
            "create database if not exists mysql;",
            "use mysql;",
            "SET @skip_auth_anonymous = 1;",
            "SET @auth_root_socket = NULL;",
        ]
        for part in _MARIADB_SCRIPTS:
            names = (f"mariadb_{part}.sql", f"mysql_{part}.sql", f"{part}.sql")
            parts += [(share / name).read_text() for name in names if (share / name).is_file()]
        return "\n".join(parts) + "\n"

    def _share(self) -> Path:
        """The directory of MariaDB's own scripts, as the server program names it."""
        help_ = subprocess.run(
            [*self._first(), "--verbose", "--help"],
            capture_output=True,
            check=False,
            text=True,
            errors="replace",
            timeout=120,
        )
        for line in help_.stdout.splitlines():
            name, _, value = line.partition(" ")
            if name == "lc-messages-dir":
                folder = Path(value.strip())
                for path in (folder, folder.parent, *Path("/usr/share").glob("m[ya]*")):
                    if (path / "fill_help_tables.sql").is_file():
                        return path
        raise RecoveryError(
            f"the system table scripts of {self._program} are not found",
            hint="install the server's package completely, or let the restore command fill the "
            "data directory: --restore-into directory",
        )

    def _write(self, name: str, text: str) -> Path:
        path = self.workspace.directory / name
        with open(private.create(path), "w") as file:  # noqa: PTH123 - a descriptor
            file.write(text)
            self.workspace.give(file.fileno())
        return path


def account_of(id_: str) -> str:
    """The name of our account: no other restore has it, and no server."""
    return f"binlog2s3_{id_[-8:]}"


def account_sql(user: str, password: str) -> str:
    """The statements that make our account, one on each line; none is in the binary log.

    It is never without a password: a policy that the base backup brings along would refuse that.
    """
    name = f"'{user}'@'localhost'"
    return (
        "SET SESSION sql_log_bin = 0;\n"
        f"CREATE USER IF NOT EXISTS {name} IDENTIFIED BY '{password}';\n"
        f"ALTER USER {name} IDENTIFIED BY '{password}';\n"
        f"GRANT ALL PRIVILEGES ON *.* TO {name} WITH GRANT OPTION;\n"
    )


def take_identity(data: Path) -> None:
    """Remove the source's identity from a restored data directory."""
    (data / "auto.cnf").unlink(missing_ok=True)


def is_empty(data: Path) -> bool:
    """Whether a restore command left nothing."""
    return not data.is_dir() or not any(data.iterdir())


def version_of(program: Path, flavour: Flavour) -> ServerVersion:
    """The version of a server program. Raises RecoveryError if it is none of this flavour."""
    done = _asked(program, "--version")
    version = re.search(r"\bVer +\d.*", done.stdout)
    is_mariadb = version is not None and "mariadb" in version[0].lower()
    what = version[0] if version else " ".join(done.stdout.split()) or ended_with(done.returncode)
    if done.returncode != 0 or version is None or is_mariadb != (flavour == "mariadb"):
        name = "MariaDB" if flavour == "mariadb" else "MySQL"
        raise RecoveryError(
            f"{program} is not a {name} server, as the source is: its --version says: {what:.200}",
            hint=_SERVER,
        )
    if not _STARTS.search(_asked(program, "--help").stdout):  # MySQL's client says the same version
        raise RecoveryError(
            f"{program} is another program of {what:.200}: its --help does not say that it starts "
            "the database server",
            hint=_SERVER,
        )
    number = re.search(r"Ver +(\S+)", version[0])
    return ServerVersion(number[1] if number else "0")


def _asked(program: Path, option: str) -> "subprocess.CompletedProcess[str]":
    """What a program says of itself."""
    try:
        return subprocess.run(
            [str(program.absolute()), "--no-defaults", option],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=bare(),
            check=False,
            text=True,
            errors="replace",
            timeout=_VERSION_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        text = f"{program} does not say its {option.removeprefix('--')}: {error}"
        raise RecoveryError(text, hint=_SERVER) from error


def run_on(program: Path, data: Path, settings: ScratchSettings) -> Path:
    """Start a server on a data directory, which goes on without this process; its socket.

    It listens on the socket only, and has no account of ours. Raises RecoveryError.
    """
    at, log = data / _SOCKET, data / "mysqld.err"
    if is_too_long(at):
        raise RecoveryError(
            f"the path of the socket {at} is too long for the system; the data directory is whole",
            hint="start the server with another --socket",
        )
    argv = [str(program.absolute()), "--no-defaults", *settings.options(data, data)]
    added = private.open_here(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    process: subprocess.Popen[bytes] | None = None
    try:
        with os.fdopen(added, "ab") as out, undisturbed():
            process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                cwd=data,
                env=settings.environment,
                start_new_session=True,
            )
        while not greets(at):
            if process.poll() is not None:
                raise RecoveryError(
                    f"the data directory {data} is whole, but {program} does not start on it "
                    f"({ended_with(process.returncode)}): {end_of(log)}",
                    hint="start it by hand, with the settings of the source",
                )
            sleep(0.1)
    except KeyboardInterrupt:  # who was not told of it does not end it
        if process is not None:
            process.terminate()
            process.wait()
        raise
    return at


def greets(at: Path) -> bool:
    """Whether a server greets on this socket: the first byte of a packet is protocol 10."""
    with closing(socket.socket(socket.AF_UNIX)) as talk:
        talk.settimeout(10)
        try:
            talk.connect(str(at))
            return talk.recv(5)[4:5] == b"\x0a"
        except OSError:
            return False
