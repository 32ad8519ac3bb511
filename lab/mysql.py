"""A throwaway MySQL or MariaDB in a directory of its own, on 127.0.0.1.

    with MysqlServer(get.mysql(), directory) as server:
        server.query("CREATE DATABASE shop")

Owns the data directory, the process and the users `root` (no password, over the socket) and
`repl` (what a streamer needs, no more). An initialised data directory is kept in the cache and
copied: a server is ready in about a second. Durability settings are the server's defaults.
"""

import hashlib
import json
import os
import re
import secrets
import signal
import socket
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import pymysql

from lab.cache import Unavailable, kept, remove
from lab.child import ServerFailedError, end, free_port, spawn, tail, wait_ready
from lab.get import ServerBinaries

if TYPE_CHECKING:
    from pymysql.connections import Connection
    from pymysql.cursors import Cursor

PORT_TRIES = 5
SOCKET_PATH_LIMIT = 100  # the kernel takes 107 bytes


def faketime(library: Path, offset: str) -> dict[str, str]:
    """The environment of a server whose clock is off by, say, `-1d` or `+30s`.

    The monotonic clock must be faked along: MySQL takes half a minute to start without.
    """
    return {"LD_PRELOAD": str(library), "FAKETIME": offset}


_LASTING = ("--innodb-page-size=", "--innodb-data-file-path=", "--lower-case-table-names=")


def anywhere() -> list[str]:
    """The options without which a server may not start on a machine of tests.

    The kernel's places for asynchronous I/O (fs.aio-max-nr) are of all servers together: where
    many run at once, one that asks for some ends. As root it wants to be told so.
    """
    as_root = ["--user=root"] if os.geteuid() == 0 else []
    return ["--innodb-use-native-aio=OFF", *as_root]


class MysqlServer:
    """One MySQL; `with` starts it, and kills it and deletes its data at the end.

    `options` are mysqld's own, later ones win. `encrypted` turns binlog_encryption on with a
    keyring file; `environment` is added to the server's (see `faketime`); `ports` proposes the
    ports to try. `datadir`, `socket` and `port` stay the same over restarts.
    """

    repl_user = "repl"

    def __init__(
        self,
        binaries: ServerBinaries,
        directory: Path,
        *,
        gtid: bool = True,
        server_id: int = 1,
        encrypted: bool = False,
        options: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        ports: Callable[[], int] = free_port,
    ) -> None:
        self.binaries = binaries
        self.directory = directory
        self.datadir = directory / "data"
        self.log = directory / "server.log"
        self.password = secrets.token_urlsafe(12)
        self.password_file = directory / "repl.password"
        self.options = tuple(options)
        self.environment = dict(environment or {})
        self.port = 0
        self._ports = ports
        self._gtid = gtid
        self._server_id = server_id
        self.encrypted = encrypted
        self._process: subprocess.Popen[bytes] | None = None
        self._short: Path | None = None
        self.socket = directory / "mysql.sock"

    def __enter__(self) -> Self:
        self._prepare()
        try:
            self.start()
            self._create_users()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            end(self._process)
        remove(self.datadir)
        if self._short is not None:
            remove(self._short)

    @property
    def pid(self) -> int:
        """The server's own process id."""
        return self._running().pid

    @property
    def ca(self) -> Path:
        """The certificate authority the server made for itself (MySQL; good for VERIFY_CA)."""
        return self.datadir / "ca.pem"

    def start(self) -> None:
        """Start the server and wait until it answers; a port that is taken leads to another."""
        fixed = self.port != 0
        for attempt in range(1, PORT_TRIES + 1):
            self.port = self.port if fixed else self._ports()
            self._process = spawn(self._argv(), self.log, environment=self.environment)
            try:
                wait_ready(self._process, self._answers, self.log, what=self.binaries.flavour)
            except ServerFailedError:
                if attempt == PORT_TRIES or "Address already in use" not in tail(self.log):
                    raise
                end(self._process)
            else:
                return

    def stop(self) -> None:
        """Shut down cleanly, as an operator would: the binlog ends with a stop event."""
        if self._process is not None:
            end(self._process, grace_seconds=60)
            self._process = None

    def kill(self) -> None:
        """`kill -9`: the server crashes."""
        if self._process is not None:
            end(self._process)
            self._process = None

    def restart(self, options: Sequence[str] | None = None) -> None:
        """Stop cleanly and start again, with other options if given."""
        self.stop()
        if options is not None:
            self.options = tuple(options)
        self.start()

    def freeze(self) -> None:
        """Stop the process without ending it: connections stay open, nothing answers."""
        process = self._running()
        process.send_signal(signal.SIGSTOP)
        # a busy machine takes its time: threads that still run would answer
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def thaw(self) -> None:
        """Let a frozen server go on."""
        self._running().send_signal(signal.SIGCONT)

    def connect(self, user: str = "root", **settings: Any) -> "Connection[Cursor]":
        """A connection over the socket, or over TCP when `host` is given; autocommit is on."""
        settings.setdefault("password", self.password if user == self.repl_user else "")
        settings.setdefault("autocommit", True)
        settings.setdefault("charset", "utf8mb4")
        if "host" in settings:
            settings.setdefault("port", self.port)
        else:
            settings.setdefault("unix_socket", str(self.socket))
            settings.setdefault("ssl_disabled", True)  # nobody listens there, and it takes a while
        connection = pymysql.connect(user=user, defer_connect=True, **settings)
        opened = None if "host" in settings else self._open_socket(settings.get("connect_timeout"))
        connection.connect(opened)
        return connection

    def query(self, *statements: str) -> list[tuple[Any, ...]]:
        """Run statements as root on one connection; returns the rows of the last one."""
        with self.connect() as connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
            return list(cursor.fetchall())

    def binlogs(self) -> list[tuple[str, int]]:
        """Name and size of each binlog as the server lists them, oldest first."""
        return [(str(row[0]), int(row[1])) for row in self.query("SHOW BINARY LOGS")]

    def _running(self) -> "subprocess.Popen[bytes]":
        if self._process is None:
            raise ServerFailedError(f"the {self.binaries.flavour} server is not running")
        return self._process

    def _prepare(self) -> None:
        """A data directory from the template, the password file, a socket path that fits."""
        self.directory.mkdir(parents=True, exist_ok=True)
        (self.directory / "tmp").mkdir(exist_ok=True)
        self._copy_template()
        if self.encrypted:
            self._add_keyring()
        self._write_password()
        if len(str(self.socket)) > SOCKET_PATH_LIMIT:
            self._short = Path(tempfile.mkdtemp(prefix="b2s-"))
            self.socket = self._short / "mysql.sock"

    def _write_password(self) -> None:
        opened = os.open(self.password_file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(opened, "w") as file:
            file.write(self.password)

    def _copy_template(self) -> None:
        """Most of a new data directory is zeros: `cp` leaves these out, and takes a third."""
        source = self._template() / "data"
        subprocess.run(
            ["cp", "--recursive", "--sparse=always", str(source), str(self.datadir)], check=True
        )

    def _template(self) -> Path:
        """The initialised data directory of just this server program, kept in the cache."""
        made_by = " ".join(
            [str(self.binaries.server), self.binaries.version, "1", *self._lasting()]
        )
        name = f"{self.binaries.flavour}-{hashlib.sha256(made_by.encode()).hexdigest()[:12]}"

        def make(into: Path) -> str:
            self._initialise(into / "data", into / "init.log")
            (into / "data" / "auto.cnf").unlink(missing_ok=True)  # each copy gets its own uuid
            return made_by

        return kept(f"templates/{name}", make)

    def _initialise(self, datadir: Path, log: Path) -> None:
        more = [f"--datadir={datadir}", *self._lasting()]
        _run([*self._first(), "--initialize-insecure", *more], log)

    def _lasting(self) -> list[str]:
        """Those options that a data directory has from its beginning."""
        return [one for one in self.options if one.startswith(_LASTING)]

    def _first(self) -> list[str]:
        """What every call of the server program begins with."""
        return [str(self.binaries.server), "--no-defaults", *anywhere()]

    def _argv(self) -> list[str]:
        return [
            *self._first(),
            f"--datadir={self.datadir}",
            f"--tmpdir={self.directory / 'tmp'}",
            f"--socket={self.socket}",
            f"--pid-file={self.datadir / 'server.pid'}",
            f"--port={self.port}",
            "--bind-address=127.0.0.1",
            f"--server-id={self._server_id}",
            "--log-bin=mysql-bin",
            "--innodb-buffer-pool-size=64M",
            "--performance-schema=OFF",
            "--secure-file-priv=",
            "--local-infile=ON",
            "--max-allowed-packet=1G",
            *self._own_options(),
            *self.options,
        ]

    def _own_options(self) -> list[str]:
        """The flavour's own settings."""
        chosen = ["--loose-mysqlx=OFF", "--innodb-redo-log-capacity=128M"]
        state = "ON" if self._gtid else "OFF"
        chosen += [f"--gtid-mode={state}", f"--enforce-gtid-consistency={state}"]
        if self.encrypted:
            chosen.append("--binlog-encryption=ON")
        return chosen

    def _add_keyring(self) -> None:
        if self.binaries.plugins is None:
            raise Unavailable(
                "the keyring of binlog_encryption",
                f"{self.binaries.server} is not one that lab.get unpacked",
                "a PATH without mysqld",
            )
        component = "component_keyring_file"
        settings = {"path": str(self.directory / "keyring"), "read_only": False}
        (self.datadir / f"{component}.cnf").write_text(json.dumps(settings))
        manifest = {"components": f"file://{component}"}
        (self.datadir / "mysqld.my").write_text(json.dumps(manifest))

    def _open_socket(self, timeout_seconds: float | None) -> socket.socket:
        """A connection to its socket; pymysql leaves its own open where it cannot connect."""
        opened = socket.socket(socket.AF_UNIX)
        opened.settimeout(timeout_seconds)
        try:
            opened.connect(str(self.socket))
        except OSError as error:
            opened.close()
            raise pymysql.OperationalError(2002, f"nobody listens on {self.socket}") from error
        return opened

    def _answers(self) -> bool:
        try:
            self.connect(connect_timeout=2, read_timeout=2).close()
        except pymysql.Error:
            return False
        return True

    def _create_users(self) -> None:
        """The streamer's user; nothing of it reaches the binlog."""
        self.query(
            "SET sql_log_bin = 0",
            f"CREATE USER {self.repl_user}@'%' {self._identified()}",
            f"GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO {self.repl_user}@'%'",
        )

    def _identified(self) -> str:
        return f"IDENTIFIED WITH caching_sha2_password BY '{self.password}'"


class MariadbServer(MysqlServer):
    """One MariaDB; the same interface. It makes no certificates and has no keyring file."""

    def _initialise(self, datadir: Path, log: Path) -> None:
        (datadir / "mysql").mkdir(parents=True)
        script = [
            "create database if not exists mysql;",
            "use mysql;",
            "SET @skip_auth_anonymous = 1;",
            "SET @auth_root_socket = NULL;",
        ]
        for part in (
            "system_tables",
            "performance_tables",
            "system_tables_data",
            "maria_add_gis_sp_bootstrap",
            "sys_schema",
        ):
            names = (f"mariadb_{part}.sql", f"mysql_{part}.sql", f"{part}.sql")
            found = [self.binaries.share / name for name in names]
            script += [path.read_text() for path in found if path.is_file()]
        # a MariaDB that starts meanwhile deletes the temporary tables of all others in its tmpdir
        own = [f"--datadir={datadir}", f"--tmpdir={datadir.parent}"]
        bootstrap = ["--bootstrap", *own, "--enforce-storage-engine="]
        _run([*self._first(), *bootstrap, *self._lasting()], log, given="\n".join(script) + "\n")

    def _own_options(self) -> list[str]:
        if self.encrypted:
            raise Unavailable("binlog encryption of MariaDB", "the lab lacks its plugin", "MySQL")
        return ["--gtid-strict-mode=ON"] if self._gtid else []

    def _identified(self) -> str:
        return f"IDENTIFIED BY '{self.password}'"


class OlderMysql(MysqlServer):
    """A MySQL before 8.0.30; the streamer's password is empty before 8.0.

    The 5.7 of the lab has no RSA keys, so a password could not reach it, and the clients of MySQL 9
    do not know mysql_native_password.
    """

    def _own_options(self) -> list[str]:
        newer = ["--innodb-redo-log-capacity=128M"]
        own = [word for word in super()._own_options() if word not in newer]
        if numbers_of(self.binaries) < (8, 0):  # the default of 8.0
            own += ["--relay-log-info-repository=TABLE", "--master-info-repository=TABLE"]
        return own

    def _identified(self) -> str:
        if numbers_of(self.binaries) >= (8, 0):
            return super()._identified()
        self.password = ""
        self._write_password()
        return "IDENTIFIED WITH sha256_password BY ''"


def server_of(binaries: ServerBinaries, directory: Path, **settings: Any) -> MysqlServer:
    """A server of whatever flavour and version; `settings` as those of MysqlServer."""
    if binaries.flavour == "mariadb":
        return MariadbServer(binaries, directory, **settings)
    older = numbers_of(binaries) < (8, 0, 30)
    return (OlderMysql if older else MysqlServer)(binaries, directory, **settings)


def numbers_of(binaries: ServerBinaries) -> tuple[int, ...]:
    """The version, as (8, 0, 31)."""
    found = re.search(r"(\d+)\.(\d+)\.(\d+)", binaries.version)
    return tuple(map(int, found.groups())) if found else ()


def _run(argv: list[str], log: Path, *, given: str = "") -> None:
    """Run a server program to its end; its log explains a failure."""
    with log.open("wb") as out:
        done = subprocess.run(
            argv, input=given.encode(), stdout=out, stderr=out, timeout=300, check=False
        )
    if done.returncode != 0:
        raise ServerFailedError(f"{argv[0]} ends with {done.returncode}\n{tail(log)}")
