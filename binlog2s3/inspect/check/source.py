"""Looks at the source for `check`: the server, its user's privileges, mysqlbinlog, its clock.

Law: nothing on the server is changed. Privileges are found out by using them; grants are read only
if nothing else shows them.
"""

import re
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from binlog2s3.binlog.names import BinlogName, FilePosition
from binlog2s3.binlog.scanner import MAGIC
from binlog2s3.config.stream import Config
from binlog2s3.errors import SourceError, SpoolError
from binlog2s3.inspect.check.report import Row, clock_row, fail, failed, ok, skipped, warn
from binlog2s3.inspect.check.settings import (
    ENGINE,
    LIMITS,
    VARIABLES,
    ServerSettings,
    limits_of,
    limits_row,
    settings_rows,
    unseen_rows,
    version_row,
)
from binlog2s3.server.connection import Server, binlog_name, granted_name
from binlog2s3.server.login import CHMOD, Login, how_to_prove, readable_by_others, resolve
from binlog2s3.server.mysqlbinlog import Child, Tool, find, server_id_of
from binlog2s3.server.omissions import binlog_filters, in_galera, replica_filters, replicates
from binlog2s3.server.version import ServerVersion

_READ_SECONDS = 20.0
_ENOUGH_BYTES = 64
_LARGEST_START = (1 << 32) - 1
_SLAVE, _CLIENT, _PROCESS = "REPLICATION SLAVE", "REPLICATION CLIENT", "PROCESS"
_UNREACHED = "the server was not reached"
_KEYS = ("Caching_sha2_password_rsa_public_key", "Rsa_public_key")
"""Where a MySQL shows its RSA key."""
_SILENT = "the server writes no binlog"
_ACCEPTED = "nothing proves which server answers, as --mysql-accept-unverified-server accepts"
_ON_THIS_HOST = (
    "a user of this host who takes that port while the server is down can get the password; "
    "--mysql-socket and --mysql-ssl-ca prevent that"
)
_TRY_AGAIN = "check again; if the error remains, see the server's error log"


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceAccount:
    """The server's version, and our account: `name` is CURRENT_USER()."""

    release: ServerVersion
    name: str

    @property
    def quoted(self) -> str:
        """The account in the form that GRANT takes."""
        return granted_name(self.name)

    @property
    def client(self) -> str:
        """The name of REPLICATION CLIENT on this server."""
        return "BINLOG MONITOR" if self.release.says_monitor else _CLIENT


class SourceCheck:
    """Looks at the source, part by part; `close` it."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._server = Server(lambda: resolve(config.mysql))
        self._account: SourceAccount | None = None
        self._settings: ServerSettings | None = None
        self._newest: FilePosition | None = None
        self._tool: Tool | None = None
        self._client_denied: SourceError | None = None
        self._has_tls = False
        self._is_closed = False

    def close(self) -> None:
        self._server.close()

    # The server

    def server_rows(self) -> Iterator[Row]:
        """Whether it answers, whether by TLS, and its version."""
        try:
            login = resolve(self._config.mysql)
        except SourceError:
            for name in ("reachable", "TLS", "version"):
                yield skipped("server", name, "there is no login")
            return
        try:
            row = self._server.rows("SELECT CURRENT_USER() AS account, @@version AS version")[0]
            rows = self._server.rows(
                "SHOW SESSION STATUS WHERE Variable_name LIKE 'Ssl_%' "
                f"OR Variable_name IN ({', '.join(map(repr, _KEYS))})"
            )
        except SourceError as error:
            yield fail("server", "reachable", str(error), error.hint or _by_hand(login))
            yield skipped("server", "TLS", _UNREACHED)
            yield skipped("server", "version", _UNREACHED)
            return
        release = ServerVersion(str(row["version"]))
        self._account = SourceAccount(release=release, name=str(row["account"]))
        yield ok("server", "reachable", f"{login.address}, as {self._account.name}")
        status = {str(each["Variable_name"]): str(each["Value"]) for each in rows}
        self._has_tls = bool(status.get("Ssl_cipher"))
        yield _tls_row(login, status)
        yield from key_rows(login, status)
        yield version_row(release)

    def setting_rows(self) -> Iterator[Row]:
        if self._account is None:
            yield from unseen_rows(_UNREACHED)
            return
        try:
            self._settings = self._look(self._account)
        except SourceError as error:
            yield failed("settings", "log_bin", error)
            yield from list(unseen_rows("the server stopped answering"))[1:]
            return
        yield from settings_rows(self._settings)

    def _look(self, account: SourceAccount) -> ServerSettings:
        named = ", ".join(f"'{name}'" for name in VARIABLES)
        rows = self._server.rows(f"SHOW GLOBAL VARIABLES WHERE Variable_name IN ({named})")
        variables = {str(row["Variable_name"]).lower(): str(row["Value"]) for row in rows}
        return ServerSettings(
            release=account.release,
            variables=variables,
            our_id=server_id_of(self._config),
            replicas=_replicas(self._server, account),
            replicates=replicates(self._server),
            replica_filters=self._replica_filters(variables),
            expire_seconds=self._server.expiry(),
            filters=self._filters(is_in_files=not variables.get(ENGINE)),
            is_closed=self._is_closed,
            in_galera=in_galera(self._server),
        )

    def _replica_filters(self, variables: Mapping[str, str]) -> str:
        statement = self._server.version.replica_statement
        return ", ".join(replica_filters(variables, _ask(self._server, statement) or ()))

    def _filters(self, *, is_in_files: bool) -> str | None:
        """The binlog filters of SHOW BINARY LOG STATUS; also records the newest position."""
        try:
            rows = self._server.rows(self._server.version.status_statement)
        except SourceError as error:
            if error.transient:
                raise
            self._client_denied = error
            return None
        if not rows:
            self._is_closed = True
            return ""
        if not is_in_files:
            return ""
        newest = rows[0]
        self._newest = FilePosition(binlog_name(str(newest["File"])), int(newest["Position"]))
        return ", ".join(binlog_filters(rows))

    @property
    def _unusable(self) -> str:
        """Why its binlogs cannot be checked; "" if they can."""
        if self._account is None or self._settings is None:
            return _UNREACHED
        return "" if self._settings.writes else _SILENT

    # Privileges, and mysqlbinlog

    def binlog_rows(self) -> Iterator[Row]:
        """The privileges, then mysqlbinlog, whose own connection may show one of the privileges."""
        program = list(self._program_rows())
        why = self._unusable
        if self._account is None or why:
            yield skipped("privileges", _CLIENT, why)
            yield skipped("privileges", _SLAVE, why)
            yield skipped("privileges", LIMITS, why)
            yield from program
            yield skipped("mysqlbinlog", "connection", why)
            return
        yield self._client_row(self._account)
        connection = self._connection_row()
        refusal = _slave_refusal(self._server, connection)
        yield _privilege_row(self._server, self._account, _SLAVE, refusal)
        if not self._account.release.stamps_commits:
            yield _process_row(self._server, self._account)
        yield limits_row(_limits(self._server, self._account), self._account.quoted)
        yield from program
        yield connection

    def _client_row(self, account: SourceAccount) -> Row:
        error = self._client_denied
        try:
            self._server.rows("SHOW BINARY LOGS")
        except SourceError as refusal:
            error = refusal
        return _privilege_row(self._server, account, account.client, error)

    def _program_rows(self) -> Iterator[Row]:
        if self._account is None:
            yield skipped("mysqlbinlog", "program", f"{_UNREACHED}, so its flavour is not known")
            return
        release = self._account.release
        try:
            self._tool = tool = find(release.flavour, self._config.mysql.mysqlbinlog)
        except SourceError as error:
            yield failed("mysqlbinlog", "program", error)
            return
        found, ours = f"{tool.path}, version {tool.version}", ServerVersion(tool.version).series
        server = release.series
        if tool.flavour == "mariadb" and ours < (10, 0):  # before 11.4 it has numbers of its own
            ours = min(server, (11, 3))
        if ours < server:
            hint = "install the server's version of it: an older one may not know all events"
            older = f"{found}: older than the server, {release.text}"
            yield warn("mysqlbinlog", "program", older, hint)
        elif ours > server:
            newer = f"{found}: newer than the server, {release.text}; it knows all events"
            yield ok("mysqlbinlog", "program", newer)
        else:
            yield ok("mysqlbinlog", "program", found)

    def _connection_row(self) -> Row:
        if self._tool is None:
            return skipped("mysqlbinlog", "connection", "mysqlbinlog was not found")
        if self._settings is not None and self._settings.value("server_id") == "0":
            return skipped("mysqlbinlog", "connection", "a server with server_id 0 refuses it")
        try:
            where = self._newest or _oldest(self._server)
            if where is None:
                why = "the user may not list the binlogs"
                return skipped("mysqlbinlog", "connection", why)
            size = _read_some(self._tool, resolve(self._config.mysql), *where, tls=self._has_tls)
        except SourceError as error:
            hint = error.hint if error.hint and not error.transient else _TRY_AGAIN
            return fail("mysqlbinlog", "connection", str(error), hint)
        except (SpoolError, OSError) as error:  # a streamer uses its spool instead
            found = f"could not be tried without a temporary directory: {error}"
            hint = "free space there, or set TMPDIR to another directory"
            return warn("mysqlbinlog", "connection", found, hint)
        return ok("mysqlbinlog", "connection", f"it reads {where.binlog} ({size} bytes received)")

    # The server's clock

    def clock_row(self) -> Row:
        """The server's clock compared with ours."""
        if self._account is None:
            return skipped("clock", "server", _UNREACHED)
        before = datetime.now(UTC)
        try:
            theirs = self._server.rows("SELECT UTC_TIMESTAMP(6) AS now")[0]["now"]
        except SourceError as error:
            return skipped("clock", "server", str(error))
        return clock_row("server", before, theirs.replace(tzinfo=UTC), datetime.now(UTC))


def _ask(server: Server, statement: str) -> list[dict[str, Any]] | None:
    """A statement's rows; None if the server refuses it. Raises SourceError if unreachable."""
    try:
        return server.rows(statement)
    except SourceError as error:
        if error.transient:
            raise
        return None


def _replicas(server: Server, account: SourceAccount) -> frozenset[int] | None:
    rows = _ask(server, account.release.replicas_statement)
    if rows is None:
        return None
    return frozenset(int(row.get("Server_Id") or row.get("Server_id") or 0) for row in rows)


def _slave_refusal(server: Server, connection: Row) -> SourceError | None:
    """What mysqlbinlog was told; if that does not say it, as a streamer asks at its start."""
    if connection.result == "ok":
        return None
    if f"you need (at least one of) the {_SLAVE}" in connection.found:
        return SourceError(connection.found)
    try:
        server.check_reading()
    except SourceError as error:
        return error
    return None


def _process_row(server: Server, account: SourceAccount) -> Row:
    """A warning if the user may not see the statements of others; see `Server.position`."""
    try:
        server.rows("SHOW ENGINE INNODB STATUS")
    except SourceError as error:
        row = _privilege_row(server, account, _PROCESS, error)
        why = "statements of others that run long are not seen: covered_until may be too late"
        return warn(row.part, row.name, f"{row.found}; {why}", row.hint)
    return ok("privileges", _PROCESS, f"{account.name} has it")


def _limits(server: Server, account: SourceAccount) -> dict[str, int] | None:
    """The account's own limits, and the server's limit of connections per account."""
    shows = account.release.shows_accounts
    rows = _ask(server, "SHOW CREATE USER CURRENT_USER()") if shows else None
    rows = rows if rows is not None else _ask(server, "SHOW GRANTS")
    if rows is None:
        return None
    found = limits_of("\n".join(str(next(iter(row.values()))) for row in rows))
    # the session's value is the account's, or else the server's
    at_once = _ask(server, "SELECT @@session.max_user_connections AS at_once")
    if at_once and int(at_once[0]["at_once"]):
        found["MAX_USER_CONNECTIONS"] = int(at_once[0]["at_once"])
    return found


def _privilege_row(
    server: Server, account: SourceAccount, privilege: str, error: SourceError | None
) -> Row:
    if error is None:
        return ok("privileges", privilege, f"{account.name} has it")
    if "privilege" not in str(error):
        return failed("privileges", privilege, error)
    hint = f"GRANT {privilege} ON *.* TO {account.quoted};"
    if roles := _roles(server):
        default = (
            "SET DEFAULT ROLE ... FOR"
            if account.release.flavour == "mariadb"
            else ("SET DEFAULT ROLE ALL TO")
        )
        hint += f" or, if a role of it ({roles}) has it: {default} {account.quoted};"
    return fail("privileges", privilege, f"{account.name} does not have it", hint)


def _oldest(server: Server) -> FilePosition | None:
    """The oldest binlog; MySQL shows it to users who may read binlogs but not list them."""
    rows = _ask(server, "SHOW BINLOG EVENTS LIMIT 1")
    return FilePosition(binlog_name(str(rows[0]["Log_name"])), 4) if rows else None


def login_rows(config: Config) -> Iterator[Row]:
    """Whether the option file and the password can be read, and the login they give."""
    try:
        login = resolve(config.mysql)
    except SourceError as error:
        yield failed("server", "login", error)
        return
    found = f"user {login.user} at {login.address}, ssl-mode {login.ssl_mode}"
    readable = readable_by_others(config.mysql)
    if readable:
        yield warn("server", "login", f"{found}; others can read {readable[0]}", CHMOD)
    elif login.doubt:
        yield warn("server", "login", f"{found}; {login.doubt}", "is that intended?")
    elif not login.guarded and not login.local:
        yield warn("server", "login", f"{found}; {_ACCEPTED}", how_to_prove(login))
    elif not login.guarded:
        yield ok("server", "login", found, _ON_THIS_HOST)
    else:
        yield ok("server", "login", found)


def _by_hand(login: Login) -> str:
    """The hint for an error without one."""
    where = (
        f"--socket={login.socket}" if login.socket else f"--host={login.host} --port={login.port}"
    )
    return f"try to log in with: mysql {where} --user={login.user} --password"


def _grants(server: Server) -> list[str]:
    return [str(next(iter(row.values()))) for row in server.rows("SHOW GRANTS")]


def _roles(server: Server) -> str:
    """The roles granted to the user, as SHOW GRANTS names them."""
    try:
        given = [re.match(r"GRANT (.+?) TO ", grant) for grant in _grants(server)]
    except SourceError:
        return ""
    return ", ".join(grant[1] for grant in given if grant is not None and " ON " not in grant[1])


def key_rows(login: Login, status: Mapping[str, str]) -> Iterator[Row]:
    """Whether the given RSA key is the server's. A password that it has cached needs no key."""
    if login.public_key is None:
        return
    shown = {"".join(status.get(name, "").split()) for name in _KEYS} - {""}
    if "".join(login.public_key.split()) in shown:
        yield ok("server", "RSA key", "it is the server's")
    elif shown:
        yield fail(
            "server",
            "RSA key",
            "the key of --mysql-server-public-key is not the server's: it lets this account in "
            "only until it restarts",
            "copy public_key.pem from the server's datadir again, over a connection that you trust",
        )
    else:
        yield warn(
            "server",
            "RSA key",
            "the server shows no RSA key to compare with: it was not tested",
            "at the server, see SHOW STATUS LIKE '%rsa_public_key'",
        )


def _tls_row(login: Login, status: Mapping[str, str]) -> Row:
    cipher, version = status.get("Ssl_cipher", ""), status.get("Ssl_version", "")
    if cipher:
        verified = login.ssl_mode in ("VERIFY_CA", "VERIFY_IDENTITY")
        hint = (
            ""
            if verified
            else "--mysql-ssl-ca and VERIFY_CA verify that it is the server's certificate"
        )
        known = "certificate verified" if verified else "certificate not verified"
        return ok("server", "TLS", f"{version}, {cipher}; {known} ({login.ssl_mode})", hint)
    if login.local:
        return ok("server", "TLS", "none; the connection does not leave this host")
    what = "binlogs" if login.public_key else "password and binlogs"
    return warn(
        "server",
        "TLS",
        f"none: {what} cross the network unencrypted ({login.ssl_mode})",
        "set up TLS on the server, and use --mysql-ssl-mode VERIFY_CA with --mysql-ssl-ca",
    )


def _read_some(tool: Tool, login: Login, name: BinlogName, position: int, *, tls: bool) -> int:
    """How many bytes mysqlbinlog received of a binlog. Raises SourceError. `tls`: see `Child`.

    It starts at the newest position, so that it receives little, and is stopped once it has some
    bytes.
    """
    start = position if position <= _LARGEST_START else 4
    with tempfile.TemporaryDirectory(prefix="binlog2s3-check-") as directory:
        child = Child(
            tool,
            login,
            server_id=0,
            directory=Path(directory),
            binlog=name,
            position=start,
            one_binlog=True,
            tls=tls,
            on_line=lambda _: None,
        )
        path = Path(directory) / str(name)
        try:
            deadline = time.monotonic() + _READ_SECONDS
            while child.poll() is None and _size(path) < _ENOUGH_BYTES:
                if time.monotonic() > deadline:
                    raise SourceError(
                        f"mysqlbinlog received nothing of {name} within {_READ_SECONDS:g} s",
                        hint="check whether the server or the network hangs",
                    )
                time.sleep(0.02)
            if child.poll() not in (None, 0):
                raise child.failure()
        finally:
            child.stop()
        size = _size(path)
        if _begin(path) != MAGIC:
            raise SourceError(f"mysqlbinlog exited and wrote no binlog ({size} bytes)")
        return size


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _begin(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(len(MAGIC))
    except OSError:
        return b""
