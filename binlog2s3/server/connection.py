"""Questions to the source: who it is, what binlogs it has, where it stands.

Place in the flow: the daemon asks here; the bytes themselves come through `mysqlbinlog`. The only
module that imports pymysql.

Law: every answer is a frozen value; every failure leaves as a SourceError that says what to do.
Statements are chosen by version, so that MySQL 5.6 to 9.x and MariaDB 10.x and 11.x all answer.
"""

import os
import re
import socket
import ssl
import struct
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Any, NoReturn, Self

import pymysql
from pymysql.cursors import DictCursor

from binlog2s3.binlog import gtid
from binlog2s3.binlog.gtid import Flavour, Gtids
from binlog2s3.binlog.names import BinlogName
from binlog2s3.errors import SourceError
from binlog2s3.server.login import Login


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFacts:
    """Who answers. `uuid` is `@@server_uuid`; for MariaDB server id and domain stand in.

    `tls` says whether this connection is encrypted: what PREFERRED came to.
    """

    uuid: str
    flavour: Flavour
    version: str
    server_id: int
    gtid_mode: bool
    tls: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerBinlog:
    """One row of SHOW BINARY LOGS; `size` in bytes as the stream delivers it (see `encrypted`).

    An encrypted binlog is 512 bytes longer on the server's disk than in the stream: the header of
    the encryption is taken off here.
    """

    name: BinlogName
    size: int
    encrypted: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerPosition:
    """Where the server stands. `asked_at` is its own NOW(6), read before the position.

    What is not before this position was committed later than `settled_at`, as its binlog says it.
    """

    asked_at: datetime
    settled_at: datetime
    uuid: str
    binlog: BinlogName
    offset: int
    gtid_set: str


_ENCRYPTION_HEADER = 512
_RUNNING = (
    "(SELECT COALESCE(MAX(time), 0) FROM information_schema.processlist "
    "WHERE command IN ('Query', 'Execute') AND id <> CONNECTION_ID())"
)
"""For how many whole seconds the oldest statement runs that this account can see."""
_UUID = re.compile(r"[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}")
_TLS = "check --mysql-ssl-mode and --mysql-ssl-ca against the server's certificate"
_ACCOUNT = (
    "check --mysql-user, the password file and the account's host part; an account with "
    "REQUIRE SSL or X509 also answers this to a connection without TLS or client certificate"
)
_CUT = "the server or something on the way closed the connection: is it restarting?"
_NO_LOG = "set log_bin in the server's configuration and restart it"
# https://dev.mysql.com/doc/mysql-errors/9.7/en/server-error-reference.html
_HINTS: Mapping[int, str] = {
    1040: "raise max_connections there, or end idle clients",
    1044: "check the user's grants",
    1045: _ACCOUNT,
    1053: "the server is shutting down",
    1129: "it blocked this host after too many failed connects: FLUSH HOSTS or mysqladmin "
    "flush-hosts there",
    1130: "create the account for this host",
    1203: "the user is at max_user_connections",
    1226: "the user is at one of its limits (SHOW CREATE USER)",
    1381: _NO_LOG,
    1820: "change the account's password: it has expired",
    1862: "change the account's password: it has expired",
    2002: "is the server running, and is the socket's path right?",
    2003: "is the server running, and are host, port and firewall right?",
    2006: _CUT,
    2013: _CUT,
    2026: _TLS,
    2061: "give the account another authentication plugin: caching_sha2_password or "
    "mysql_native_password; one that takes the password in clear text (PAM, LDAP) needs "
    "--mysql-ssl-mode VERIFY_IDENTITY with --mysql-ssl-ca, or --mysql-socket",
    3032: "SET GLOBAL offline_mode = OFF there, as an administrator: it refuses all others",
    3118: "unlock the account: ALTER USER ... ACCOUNT UNLOCK",
    3159: "the server wants TLS: --mysql-ssl-mode REQUIRED",
    4151: "unlock the account: ALTER USER ... ACCOUNT UNLOCK",
}
_NO_TLS = (
    "set up TLS at the server, or accept that password and data can be read on the way: "
    "--mysql-ssl-mode PREFERRED"
)
_CLEAR_TEXT = ("mysql_clear_password", "dialog")
"""Authentication plugins that send the password as it is."""
_TRANSIENT = frozenset({1040, 1053, 1203, 1205, 1226, 2002, 2003, 2006, 2013, 2014, 2055})
# What pymysql lets out: its own errors, files of TLS that cannot be used (OSError), a missing
# package (RuntimeError), and what it stumbles over where something answers that is no MySQL.
_FOREIGN = (pymysql.MySQLError, OSError, RuntimeError, ValueError, LookupError, struct.error)


class Server:
    """A connection to the source, opened at the first question and again after a failure.

    `login` is called for each connection, so that a changed password is seen. Not thread-safe: one
    thread, one Server. Use as a context manager or call `close`.
    """

    def __init__(self, login: Callable[[], Login]) -> None:
        self._login = login
        self._used: Login  # for the last connection; set before it is made
        self._connection: pymysql.Connection[DictCursor] | None = None
        self._version: str | None = None
        self._no_rds = False
        self.heard_at = 0.0  # when the last answer came, in monotonic seconds

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection without a word to the server; the next question opens another."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection._force_close()  # type: ignore[attr-defined]  # noqa: SLF001 - never waits

    def facts(self) -> ServerFacts:
        """Who the server is. Raises SourceError if it cannot be asked or writes no binary log."""
        row = self._one("SELECT @@version AS version, @@server_id AS id, @@log_bin AS log_bin")
        tls = bool(self._one("SHOW SESSION STATUS LIKE 'Ssl_cipher'")["Value"])
        version = str(row["version"])
        if not version.isprintable():
            raise self._strange("version", version)
        flavour: Flavour = "mariadb" if "mariadb" in version.lower() else "mysql"
        if not int(row["log_bin"]):
            raise SourceError(
                f"{self._used.address} writes no binary log (log_bin is OFF)",
                hint=_NO_LOG,
            )
        server_id = int(row["id"])
        if flavour == "mariadb":
            domain = self._one("SELECT @@gtid_domain_id AS domain")["domain"]
            return ServerFacts(
                uuid=f"{server_id:08x}-{int(domain):08x}",
                flavour=flavour,
                version=version,
                server_id=server_id,
                gtid_mode=True,
                tls=tls,
            )
        row = self._one("SELECT @@server_uuid AS uuid, @@gtid_mode AS gtid_mode")
        uuid = str(row["uuid"])
        if not _UUID.fullmatch(uuid):
            raise self._strange("server_uuid", uuid)
        return ServerFacts(
            uuid=uuid,
            flavour=flavour,
            version=version,
            server_id=server_id,
            gtid_mode=str(row["gtid_mode"]).upper() == "ON",
            tls=tls,
        )

    def _strange(self, name: str, value: str) -> SourceError:
        """What no server says of itself: it would become part of a key, or of a document."""
        return SourceError(
            f"{self._used.address} has the {name} {value!r:.100}, which is none",
            hint="is it a MySQL or MariaDB server, and was its auto.cnf changed by hand?",
            refused=True,
        )

    def binlogs(self) -> tuple[ServerBinlog, ...]:
        """SHOW BINARY LOGS, oldest first. Takes a lock on the server: not for every second."""
        rows = self._all("SHOW BINARY LOGS")
        found = []
        for row in rows:
            encrypted = str(row.get("Encrypted", "No")).lower() == "yes"
            size = int(row["File_size"]) - (_ENCRYPTION_HEADER if encrypted else 0)
            name = _name(str(row["Log_name"]))
            found.append(ServerBinlog(name=name, size=size, encrypted=encrypted))
        return tuple(found)

    def position(self) -> ServerPosition:
        """Where the server's binary log ends now, and the server's clock just before.

        MySQL from 8.0.2 on stamps a transaction while it holds LOCK_log, for which the position
        waits. MariaDB and older ones stamp the second in which its last statement began: nothing
        is settled that is as late as the oldest one that runs. Of other users' it needs PROCESS.
        """
        identity = "@@server_uuid" if not self._is_mariadb() else "''"
        running = "NULL" if self._stamps_commits() else _RUNNING
        row = self._one(f"SELECT UTC_TIMESTAMP(6) AS now, {identity} AS uuid, {running} AS seconds")
        asked_at = row["now"].replace(tzinfo=UTC)
        settled_at = asked_at
        if row["seconds"] is not None:
            whole = timedelta(seconds=int(row["seconds"]) + 2)
            settled_at = asked_at.replace(microsecond=0) - whole
        status = self._all(self._status_statement())
        if not status:
            raise SourceError(
                f"{self._used.address} writes no binary log",
                hint=_NO_LOG,
            )
        uuid = str(row["uuid"]) or self.facts().uuid
        gtid_set = str(status[0].get("Executed_Gtid_Set") or "").replace("\n", "")
        if self._is_mariadb():
            gtid_set = str(self._one("SELECT @@gtid_binlog_pos AS pos")["pos"])
        return ServerPosition(
            asked_at=asked_at,
            settled_at=settled_at,
            uuid=uuid,
            binlog=_name(str(status[0]["File"])),
            offset=int(status[0]["Position"]),
            gtid_set=gtid_set,
        )

    def previous_gtids(self, name: BinlogName) -> str | None:
        """The GTIDs before a binlog began, as its second event says; None where it has none.

        Needs REPLICATION SLAVE (on MariaDB BINLOG MONITOR). Raises SourceError, also when the
        server no longer has this binlog.
        """
        for row in self._all("SHOW BINLOG EVENTS IN %s LIMIT 3", (str(name),)):
            if row["Event_type"] in ("Previous_gtids", "Gtid_list"):
                text = str(row["Info"]).strip().strip("[]").replace("\n", "")
                return str(gtid.parse(text, "mariadb" if self._is_mariadb() else "mysql"))
        return None

    def read_only(self) -> bool:
        """Whether the server takes no writes."""
        return bool(int(self._one("SELECT @@global.read_only AS read_only")["read_only"]))

    def expiry(self) -> float | None:
        """How many seconds the server keeps a closed binlog; None where it keeps it for ever.

        What RDS and Aurora are told by mysql.rds_set_configuration counts there instead, 0 where
        that is nothing; it is only seen by a user who may read mysql.rds_configuration.
        """
        hours = self._rds_hours()
        if hours is not None:
            return hours * 3600.0
        rows = self._all(
            "SHOW GLOBAL VARIABLES WHERE Variable_name IN ('binlog_expire_logs_seconds', "
            "'binlog_expire_logs_auto_purge', 'expire_logs_days')"
        )
        found = {str(row["Variable_name"]).lower(): str(row["Value"]) for row in rows}
        if found.get("binlog_expire_logs_auto_purge", "ON").upper() in ("OFF", "0"):
            return None
        seconds = float(found.get("binlog_expire_logs_seconds") or 0)
        return seconds or float(found.get("expire_logs_days") or 0) * 86400.0 or None

    def _rds_hours(self) -> float | None:
        """RDS's "binlog retention hours"; None where this is no RDS, or not to be seen."""
        if self._no_rds:
            return None
        try:
            rows = self._all(
                "SELECT value FROM mysql.rds_configuration WHERE name = 'binlog retention hours'"
            )
            return float(rows[0]["value"] or 0) if rows else None
        except (SourceError, ValueError) as error:
            if isinstance(error, SourceError) and not error.answered:
                raise
            self._no_rds = True
            return None

    def executed(self) -> Gtids | None:
        """All GTIDs that the server has executed; None where it keeps none."""
        if self._is_mariadb():
            text = str(self._one("SELECT @@gtid_binlog_state AS gtids")["gtids"])
            return gtid.parse(text, "mariadb")
        row = self._one("SELECT @@gtid_mode AS mode, @@global.gtid_executed AS gtids")
        if str(row["mode"]).upper() != "ON":
            return None
        return gtid.parse(str(row["gtids"]), "mysql")

    def first_event(self, name: BinlogName) -> tuple[int, int]:
        """The server id in a binlog's format event, and where that ends."""
        row = self._all("SHOW BINLOG EVENTS IN %s LIMIT 1", (str(name),))[0]
        return int(row["Server_id"]), int(row["End_log_pos"])

    def rows(self, statement: str, arguments: tuple[object, ...] = ()) -> list[dict[str, Any]]:
        """Run one statement; its rows. All of one connection, as long as none fails in between.

        Raises SourceError, as every question does.
        """
        return self._all(statement, arguments)

    def check_privileges(self, name: BinlogName) -> None:
        """See by doing that this user may read the binary log.

        Raises SourceError that names the privilege that is missing.
        """
        self._all("SHOW BINARY LOGS")
        if not self._is_mariadb():
            self._all("SHOW BINLOG EVENTS IN %s LIMIT 1", (str(name),))
            return
        for row in self._all("SHOW GRANTS"):  # MariaDB's SHOW BINLOG EVENTS asks for less
            given, _, where = str(next(iter(row.values()))).upper().partition(" ON ")
            enough = re.search(r"REPLICATION SLAVE(?! ADMIN)|ALL PRIVILEGES", given)
            if enough and where.startswith("*.* "):
                return
        raise _privilege_error("REPLICATION SLAVE", self._used)

    def _is_mariadb(self) -> bool:
        return "mariadb" in self._server_version().lower()

    def _server_version(self) -> str:
        if self._version is None:
            self._version = str(self._one("SELECT @@version AS version")["version"])
        return self._version

    def _status_statement(self) -> str:
        if self._is_mariadb():
            return "SHOW MASTER STATUS"
        return "SHOW BINARY LOG STATUS" if self._is_since(8, 2) else "SHOW MASTER STATUS"

    def _stamps_commits(self) -> bool:
        return not self._is_mariadb() and self._is_since(8, 0, 2)

    def _is_since(self, *wanted: int) -> bool:
        found = re.findall(r"\d+", self._server_version())
        return tuple(int(number) for number in found[: len(wanted)]) >= wanted

    def _one(self, statement: str) -> dict[str, Any]:
        return self._all(statement)[0]

    def _all(self, statement: str, arguments: tuple[object, ...] = ()) -> list[dict[str, Any]]:
        if self._connection is None:
            self._used, self._version = self._login(), None
        try:
            if self._connection is None:
                self._connection = _connect(self._used)
            with self._connection.cursor() as cursor:
                cursor.execute(statement, arguments or None)
                rows = list(cursor.fetchall())
        except _FOREIGN as error:
            self.close()
            raise _translate(error, self._used) from error
        self.heard_at = time.monotonic()
        return rows


def _name(text: str) -> BinlogName:
    try:
        return BinlogName.parse(text)
    except ValueError as error:
        raise SourceError(
            f"the server has a binlog {text!r}: {error}",
            hint="log_bin must not have a dot in its name: the server cuts the name there",
        ) from error


def _connect(login: Login) -> "pymysql.Connection[DictCursor]":
    connection = pymysql.connect(
        host=login.host,
        port=login.port,
        **_tls(login),
        user=login.user,
        # as bytes, as mysqlbinlog sends it; of a text pymysql would make Latin-1
        password=login.password.encode(),
        charset="utf8mb4",
        autocommit=True,
        cursorclass=DictCursor,
        connect_timeout=max(1, int(login.connect_timeout)),
        read_timeout=login.connect_timeout,
        write_timeout=login.connect_timeout,
        program_name="binlog2s3",
        auth_plugin_map=dict.fromkeys(_refused_plugins(login), _RefusedPlugin),
        defer_connect=True,
    )
    if login.socket:
        connection._secure = True  # type: ignore[attr-defined]  # noqa: SLF001 - it never leaves the host
        connection.connect(_open_socket(login.socket, login.connect_timeout))
    else:
        connection.connect()
    return connection


class _RefusedPlugin:
    """In place of an authentication plugin of pymysql's, at the server's first request for it."""

    def __init__(self, connection: object) -> None:
        del connection

    def authenticate(self, packet: object) -> NoReturn:
        """Nothing is answered."""
        del packet
        raise pymysql.OperationalError(
            2061,
            "it asks for the password in clear text, or nearly so, and nothing proves who asks",
        )


def _refused_plugins(login: Login) -> tuple[str, ...]:
    """Those of 4.0 can be undone, and need no proof to be refused."""
    return ("mysql_old_password", *(() if login.proved else _CLEAR_TEXT))


def _open_socket(path: str, timeout_seconds: float) -> socket.socket:
    """A connection to a Unix socket; pymysql would leave its own open where it fails."""
    opened = socket.socket(socket.AF_UNIX)
    opened.settimeout(timeout_seconds)
    try:
        opened.connect(path)
    except OSError as error:
        opened.close()
        raise pymysql.OperationalError(
            2002, f"cannot connect: {error.strerror or error}"
        ) from error
    return opened


def _tls(login: Login) -> dict[str, Any]:
    """What pymysql is told for the mode; `mysqlbinlog` tells the child the same."""
    if login.ssl_mode == "DISABLED" or (login.ssl_mode == "PREFERRED" and login.socket):
        return {"ssl_disabled": True}
    if login.ssl_mode == "PREFERRED" and not login.ssl_cert:
        return {}  # pymysql prefers TLS by itself when nothing is asked
    chosen: dict[str, Any] = {
        "ssl_cert": login.ssl_cert,
        "ssl_key": login.ssl_key,
        "ssl_key_password": "",  # an encrypted key is an error, not a question on the terminal
        "ssl_verify_cert": login.ssl_mode in ("VERIFY_CA", "VERIFY_IDENTITY"),
        "ssl_verify_identity": login.ssl_mode == "VERIFY_IDENTITY",
    }
    if chosen["ssl_verify_cert"]:
        chosen["ssl_ca"] = login.ssl_ca
    elif not login.ssl_cert:
        chosen["ssl"] = {"ca": None, "check_hostname": False, "verify_mode": "none"}
    return chosen


def _privilege_error(privileges: str, login: Login) -> SourceError:
    return SourceError(
        f"user {login.user!r} at {login.address} lacks the privilege {privileges}",
        hint=f"GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO {login.user}@... there "
        "(SELECT CURRENT_USER() names the whole account)",
    )


def _translate(error: Exception, login: Login) -> SourceError:
    told = _told(error, login)
    told.hint = login.advised(told.hint)
    return told


def _told(error: Exception, login: Login) -> SourceError:
    where = f"mysql at {login.address}"
    if not isinstance(error, pymysql.MySQLError):
        return _without_answer(error, where)
    code = error.args[0] if error.args and isinstance(error.args[0], int) else 0
    text = str(error.args[1] if code and len(error.args) > 1 else error)
    if code == 1227 and (match := re.search(r"at least one of\)? the (.+?) privilege", text)):
        return _privilege_error(_named(match[1]), login)
    if code == 2013 and "timed out" in text:
        return SourceError(
            f"{where}: no answer within {login.connect_timeout:g} s (2013)",
            hint="it accepts connections and is silent: does the server hang, does something else "
            "listen there? --mysql-connect-timeout sets how long to wait",
            transient=True,
        )
    if "Packet sequence number" in text:
        return _without_answer(error, where)
    if isinstance(getattr(error, "original_exception", None), ssl.SSLError):
        code = 2026
    if code == 1524 or "Authentication plugin" in text:
        code = 2061
    hint = _HINTS.get(code, "")
    if code == 2026 and "doesn't support" in text:
        hint = _NO_TLS
    if code == 1045 and os.environ.get("CREDENTIALS_DIRECTORY"):  # systemd.exec(5)
        hint += "; systemd hands over the password file as of the start: restart after a change"
    if code == 1045 and login.doubt:
        hint = f"{login.doubt}: is it meant? {hint}"
    return SourceError(
        f"{where}: {text}" + (f" ({code})" if code else ""),
        hint=hint,
        transient=code in _TRANSIENT,
        answered=1000 <= code < 2000 or code >= 3000 or "refused" in text.lower(),
    )


def _without_answer(error: Exception, where: str) -> SourceError:
    """It did not come to an answer of a server."""
    if isinstance(error, ssl.SSLError | OSError):
        return SourceError(
            f"{where}: the files for TLS cannot be used: {error}",
            hint="--mysql-ssl-ca, --mysql-ssl-cert and --mysql-ssl-key are PEM files; the key "
            "belongs to the certificate and is not encrypted",
        )
    if isinstance(error, RuntimeError):
        return SourceError(f"{where}: {error}", hint="pip install 'pymysql[rsa]'")
    return SourceError(
        f"{where}: what answers there does not speak MySQL's protocol ({error})",
        hint="check --mysql-host and --mysql-port: 3306 as a rule, not 33060 (the X protocol)",
    )


def _named(privileges: str) -> str:
    """Of the privileges that would do, those a streamer should have; under both their names."""
    wanted = [name for name in privileges.split(", ") if name != "SUPER"]
    return ", ".join(wanted).replace("BINLOG MONITOR", "BINLOG MONITOR (REPLICATION CLIENT)")
