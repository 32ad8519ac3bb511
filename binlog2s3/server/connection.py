"""Questions to the source: which server it is, which binlogs it has, and its position.

Every answer is a frozen value, every failure a SourceError that says what to do. Statements depend
on the version, so that MySQL 5.6 to 9.x and MariaDB 10.x and 11.x all answer.
"""

import re
import socket
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NoReturn, Self

import pymysql
from pymysql._auth import sha2_rsa_encrypt
from pymysql.cursors import DictCursor

from binlog2s3.binlog import gtid
from binlog2s3.binlog.events import length_encoded
from binlog2s3.binlog.gtid import Flavour, Gtids
from binlog2s3.binlog.names import BinlogName, FilePosition
from binlog2s3.binlog.zone import SystemZone, sampled_days
from binlog2s3.errors import SourceError, UnloggedError
from binlog2s3.server import dump
from binlog2s3.server.errors import (
    FOREIGN,
    IN_ENGINE,
    LOG_CLOSED,
    NO_LOG,
    privilege_error,
    translate,
)
from binlog2s3.server.login import Login
from binlog2s3.server.version import ServerVersion, is_aurora_reader, is_on

if TYPE_CHECKING:
    _Pymysql = pymysql.Connection[DictCursor]
else:  # it is generic for mypy alone
    _Pymysql = pymysql.Connection


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFacts:
    """Which server answers.

    `uuid` is `@@server_uuid`. A MariaDB server has none: it is made of server id and domain id.
    `tls`: whether this connection is encrypted.
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

    An encrypted binlog is 512 bytes longer on the server's disk than in the stream. `size` does not
    include that encryption header.
    """

    name: BinlogName
    size: int
    encrypted: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerPosition:
    """The server's position. `asked_at` is its own NOW(6), read before the position.

    Transactions after this position have a commit time later than `settled_at`. `read_only`:
    whether the server refuses writes.
    """

    asked_at: datetime
    settled_at: datetime
    uuid: str
    place: FilePosition
    gtid_set: str
    read_only: bool


_ENCRYPTION_HEADER = 512
_TRIES = 10
_RUNNING = (
    "(SELECT COALESCE(MAX(time), 0) FROM information_schema.processlist "
    "WHERE command IN ('Query', 'Execute') AND id <> CONNECTION_ID())"
)
"""How many whole seconds the oldest statement has been running that this account can see."""
"""From MariaDB 12.3 on an engine can have the binlog, with `binlog_storage_engine`."""
_UUID = re.compile(r"[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}")
_SESSION_TRACK = 1 << 23
"""A client's capability: OK packets say what changed in the session (CLIENT_SESSION_TRACK)."""
_TRACKED_GTIDS = 3
_UNVERIFIED = {"ca": None, "check_hostname": False, "verify_mode": "none"}
"""Pymysql's arguments for TLS that verifies nothing; it takes {} for the same."""
_CLEAR_TEXT = ("mysql_clear_password", "dialog")
"""Authentication plugins that send the password in clear text."""


class Server:
    """A connection to the source, opened by the first question and again after a failure.

    `login` is called for each connection, so that a changed password is used. Not thread-safe: each
    thread needs its own. Use it as a context manager, or call `close`.
    """

    def __init__(self, login: Callable[[], Login], *, tracks_gtids: bool = False) -> None:
        """`tracks_gtids`: with session_track_gtids, a MySQL tells the GTID of each `commit`."""
        self.login = login
        self._tracks_gtids = tracks_gtids
        self._used: Login  # for the last connection; set before it is made
        self._connection: pymysql.Connection[DictCursor] | None = None
        self._version: ServerVersion | None = None
        self._no_rds = False
        self._message = b""  # what the last OK packet says of the session
        self.heard_at = 0.0  # time of the last answer, in monotonic seconds
        self.host = ""  # of the last connection; "" before it and for a socket

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection without waiting for the server; the next question opens another."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection._force_close()  # type: ignore[attr-defined]  # noqa: SLF001 - never waits

    def facts(self) -> ServerFacts:
        """Which server it is.

        Raises SourceError if it does not answer, UnloggedError if log_bin is off or its binlog is
        not in files.
        """
        row = self._one("SELECT @@version AS version, @@server_id AS id, @@log_bin AS log_bin")
        tls = bool(self._one("SHOW SESSION STATUS LIKE 'Ssl_cipher'")["Value"])
        version = str(row["version"])
        if not version.isprintable():
            raise self._strange("version", version)
        flavour = ServerVersion(version).flavour
        if flavour == "mysql":
            _refuse_aurora_reader(self.rows, self._used.address)
        facts = self._identity(flavour, version, int(row["id"]), tls=tls)
        if not int(row["log_bin"]):
            raise UnloggedError(
                f"{self._used.address} writes no binlog (log_bin is OFF)",
                hint=f"{NO_LOG}; what it commits until then is in no archive",
                uuid=facts.uuid,
            )
        if ServerVersion(version).may_log_in_engine and (engine := self._binlog_engine()):
            raise UnloggedError(
                f"{self._used.address} keeps its binlog in {engine!r:.40} (binlog_storage_engine), "
                "not in files: that is not supported",
                hint=IN_ENGINE,
                uuid=facts.uuid,
            )
        return facts

    def _binlog_engine(self) -> str:
        """The engine that has the binlog; "" if it is in files."""
        rows = self.rows("SHOW GLOBAL VARIABLES LIKE 'binlog_storage_engine'")
        return str(rows[0]["Value"] or "") if rows else ""

    def _identity(
        self, flavour: Flavour, version: str, server_id: int, *, tls: bool
    ) -> ServerFacts:
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
        """The error for a value that no server has: it would become part of a key or a document."""
        return SourceError(
            f"{self._used.address} has the invalid {name} {value!r:.100}",
            hint="check that it is a MySQL or MariaDB server, and that its auto.cnf was not edited",
            refused=True,
        )

    def binlogs(self) -> tuple[ServerBinlog, ...]:
        """SHOW BINARY LOGS, oldest first. It locks the server's list: do not ask every second."""
        rows = self.rows("SHOW BINARY LOGS")
        binlogs = []
        for row in rows:
            encrypted = str(row.get("Encrypted", "No")).lower() == "yes"
            size = int(row["File_size"]) - (_ENCRYPTION_HEADER if encrypted else 0)
            name = binlog_name(str(row["Log_name"]))
            binlogs.append(ServerBinlog(name=name, size=size, encrypted=encrypted))
        return tuple(binlogs)

    def position(self) -> ServerPosition:
        """Where the server's binary log ends now, and the server's clock immediately before.

        MySQL 8.0.2 and later stamp a transaction while they hold LOCK_log, which the position waits
        for. MariaDB and older versions stamp the second in which the transaction's last statement
        began, so `settled_at` is before the oldest statement that is running. To see the statements
        of other users, the account needs PROCESS.
        """
        identity = "@@server_uuid" if not self.version.mariadb else "''"
        running = "NULL" if self.version.stamps_commits else _RUNNING
        row = self._one(
            f"SELECT UTC_TIMESTAMP(6) AS now, {identity} AS uuid, {running} AS seconds, "
            "@@global.read_only AS read_only"
        )
        asked_at = row["now"].replace(tzinfo=UTC)
        settled_at = asked_at
        if row["seconds"] is not None:
            whole = timedelta(seconds=int(row["seconds"]) + 2)
            settled_at = asked_at.replace(microsecond=0) - whole
        status = self.rows(self.version.status_statement)
        uuid = str(row["uuid"]) or self.facts().uuid
        if not status:
            self.facts()
            raise UnloggedError(
                f"{self._used.address} writes no binlog (log_bin is ON)",
                hint=LOG_CLOSED,
                uuid=uuid,
            )
        gtid_set = str(status[0].get("Executed_Gtid_Set") or "").replace("\n", "")
        if self.version.mariadb:
            gtid_set = str(self._one("SELECT @@gtid_binlog_pos AS pos")["pos"])
        return ServerPosition(
            asked_at=asked_at,
            settled_at=settled_at,
            uuid=uuid,
            place=FilePosition(binlog_name(str(status[0]["File"])), int(status[0]["Position"])),
            gtid_set=gtid_set,
            read_only=is_on(row["read_only"]),
        )

    def previous_gtids(self, name: BinlogName) -> str | None:
        """The GTIDs before a binlog, from its second event; None if it has no such event.

        Needs REPLICATION SLAVE (on MariaDB BINLOG MONITOR). Raises SourceError, also if the server
        no longer has this binlog.
        """
        for row in self.rows("SHOW BINLOG EVENTS IN %s LIMIT 3", (str(name),)):
            if row["Event_type"] in ("Previous_gtids", "Gtid_list"):
                text = str(row["Info"]).strip().strip("[]").replace("\n", "")
                return str(gtid.parse(text, self.version.flavour))
        return None

    def gtids_outside(self, oldest: BinlogName) -> str:
        """What a MySQL has executed, and no binlog of it ever had; "" if there is nothing.

        The data came with a dump, a clone, or while it wrote no binlog. `oldest`: its oldest
        binlog, before which are those that it has purged. Raises SourceError.
        """
        if self.version.mariadb:
            return ""
        row = self._one("SELECT @@global.gtid_purged AS gtids")
        purged = gtid.GtidSet.parse(str(row["gtids"]).replace("\n", ""))
        if not purged:
            return ""
        return str(purged - gtid.GtidSet.parse(self.previous_gtids(oldest) or ""))

    def gtids_before(self, name: BinlogName) -> str | None:
        """The GTIDs of all transactions before a binlog; None if GTIDs do not tell.

        MySQL's do not unless gtid_mode is ON: transactions without a GTID are in no set of them, so
        two positions may have the same GTIDs and different rows. Raises as `previous_gtids`.
        """
        if not self.version.mariadb:
            rows = self.rows("SHOW GLOBAL VARIABLES LIKE 'gtid_mode'")
            if [str(row["Value"]).upper() for row in rows] != ["ON"]:
                return None
        return self.previous_gtids(name)

    def time_zone(self, year: int) -> SystemZone | None:
        """Its system time zone in this year; None if it does not tell.

        CONVERT_TZ knows SYSTEM and +00:00 without time zone tables, needs no privilege, and leaves
        the session as it is.
        """
        asked = ", ".join(
            f"TIMESTAMPDIFF(SECOND, '{day}', CONVERT_TZ('{day}', '+00:00', 'SYSTEM')) AS d{number}"
            for number, day in enumerate(sampled_days(year))
        )
        row = self._one(f"SELECT @@global.time_zone AS name, {asked}")
        name = str(row.pop("name"))
        try:
            return SystemZone.of(
                name if name.isprintable() else "", year, [int(value) for value in row.values()]
            )
        except (TypeError, ValueError):  # NULL, for a year that it does not know
            return None

    def expiry(self) -> float | None:
        """How many seconds the server keeps a closed binlog; None if it keeps it forever.

        On RDS and Aurora the setting of mysql.rds_set_configuration applies instead, and 0 if that
        is not set. Only a user who may read mysql.rds_configuration sees it.
        """
        hours = self._rds_hours()
        if hours is not None:
            return hours * 3600.0
        rows = self.rows(
            "SHOW GLOBAL VARIABLES WHERE Variable_name IN ('binlog_expire_logs_seconds', "
            "'binlog_expire_logs_auto_purge', 'expire_logs_days')"
        )
        variables = {str(row["Variable_name"]).lower(): str(row["Value"]) for row in rows}
        if variables.get("binlog_expire_logs_auto_purge", "ON").upper() in ("OFF", "0"):
            return None
        seconds = float(variables.get("binlog_expire_logs_seconds") or 0)
        return seconds or float(variables.get("expire_logs_days") or 0) * 86400.0 or None

    def _rds_hours(self) -> float | None:
        """RDS's "binlog retention hours"; None if this is not RDS, or the user cannot see it."""
        if self._no_rds:
            return None
        try:
            rows = self.rows(
                "SELECT value FROM mysql.rds_configuration WHERE name = 'binlog retention hours'"
            )
            return float(rows[0]["value"] or 0) if rows else None
        except (SourceError, ValueError) as error:
            if isinstance(error, SourceError) and not error.answered:
                raise
            self._no_rds = True
            return None

    def executed(self) -> Gtids | None:
        """All GTIDs that the server has executed; None if it has no GTIDs."""
        if self.version.mariadb:
            text = str(self._one("SELECT @@gtid_binlog_state AS gtids")["gtids"])
            return gtid.parse(text, "mariadb")
        row = self._one("SELECT @@gtid_mode AS mode, @@global.gtid_executed AS gtids")
        if str(row["mode"]).upper() != "ON":
            return None
        return gtid.parse(str(row["gtids"]), "mysql")

    def server_id_in(self, name: BinlogName) -> int:
        """The server id in a binlog's format event."""
        row = self.rows("SHOW BINLOG EVENTS IN %s LIMIT 1", (str(name),))[0]
        return int(row["Server_id"])

    def beginning(self, name: BinlogName, most: int) -> bytes:
        """The first `most` bytes of a binlog, or as many as the server has: see `dump.beginning`.

        They come over the connection of the questions before, which ends with it: they are of the
        server that has answered those. Needs REPLICATION SLAVE. Raises SourceError.
        """
        flavour = self.version.flavour
        for statement in dump.SETTINGS[flavour]:
            self.rows(statement)
        try:
            data = dump.beginning(self._connection, name, most, flavour)
        except FOREIGN as error:
            raise translate(error, self._used, f"the first bytes of {name}") from error
        finally:
            self.close()
        self.heard_at = time.monotonic()
        return data

    @property
    def address(self) -> str:
        """Where the last connection led to, by the login."""
        return self._used.address

    def commit(self) -> str:
        """Commit the open transaction, and return its GTID; "" if the server does not tell it.

        A MySQL tells it only to a connection that tracks GTIDs. Raises SourceError.
        """
        if self.version.mariadb:
            self.rows("COMMIT")
            return str(self._one("SELECT @@last_gtid AS it")["it"])
        self.rows("COMMIT")
        return own_gtid(self._message)

    def check_privileges(self, name: BinlogName) -> None:
        """Check by trying that this user may read the binary log.

        Raises SourceError that names the missing privilege.
        """
        self.rows("SHOW BINARY LOGS")
        self.check_reading(name)

    def check_reading(self, name: BinlogName | None = None) -> None:
        """Check that this user may receive binlogs; of a MySQL by reading one, the first or `name`.

        Raises SourceError that names the missing privilege.
        """
        if not self.version.mariadb:
            of = ("IN %s LIMIT 1", (str(name),)) if name is not None else ("LIMIT 1", ())
            self.rows(f"SHOW BINLOG EVENTS {of[0]}", of[1])
            return
        for row in self.rows("SHOW GRANTS"):  # MariaDB's SHOW BINLOG EVENTS needs less
            given, _, where = str(next(iter(row.values()))).upper().partition(" ON ")
            enough = re.search(r"REPLICATION SLAVE(?! ADMIN)|ALL PRIVILEGES", given)
            if enough and where.startswith("*.* "):
                return
        raise privilege_error("REPLICATION SLAVE", self._used)

    @property
    def version(self) -> ServerVersion:
        """Its version, which is asked for once a connection. Raises SourceError."""
        if self._version is None:
            self._version = ServerVersion(str(self._one("SELECT @@version AS version")["version"]))
        return self._version

    def _one(self, statement: str) -> dict[str, Any]:
        return self.rows(statement)[0]

    def rows(self, statement: str, arguments: tuple[object, ...] = ()) -> list[dict[str, Any]]:
        """Run one statement and return its rows. Raises SourceError, as every question does.

        All statements use the same connection, until one fails.
        """
        if self._connection is None:
            self._used, self._version = self.login(), None
            self.host = "" if self._used.socket else self._used.host
        try:
            if self._connection is None:
                flags = _SESSION_TRACK if self._tracks_gtids else 0
                self._connection = _connect(self._used, flags)
            with self._connection.cursor() as cursor:
                cursor.execute(statement, arguments or None)
                rows = list(cursor.fetchall())
                if self._tracks_gtids:
                    self._message = getattr(cursor._result, "message", b"") or b""  # type: ignore[attr-defined]  # noqa: SLF001 - pymysql has no other place
        except FOREIGN as error:
            self.close()
            raise translate(error, self._used) from error
        except KeyboardInterrupt:  # its answer would be taken for that of the next statement
            self.close()
            raise
        self.heard_at = time.monotonic()
        return rows


def _refuse_aurora_reader(
    rows: Callable[[str], list[dict[str, Any]]],
    address: str,
) -> None:
    """See `is_aurora_reader`."""
    variables = {
        str(row["Variable_name"]).lower(): str(row["Value"])
        for row in rows(
            "SHOW GLOBAL VARIABLES WHERE Variable_name IN ('aurora_server_id', 'innodb_read_only')"
        )
    }
    if is_aurora_reader(variables):
        raise SourceError(
            f"{address} is a reader of an Aurora cluster (aurora_server_id "
            f"{variables['aurora_server_id']!r:.100}, innodb_read_only ON)",
            hint="give the cluster's writer endpoint with --mysql-host; after a failover its "
            "name may lead to the old writer for some seconds",
        )


def started_at(server: Server) -> datetime:
    """When a server was started, by its own clock, in whole seconds: the same every time.

    Raises SourceError.
    """
    for _ in range(_TRIES):  # both must be of one second
        before = server.rows("SELECT UTC_TIMESTAMP() AS it")[0]["it"]
        up = int(server.rows("SHOW GLOBAL STATUS LIKE 'Uptime'")[0]["Value"])
        after: datetime = server.rows("SELECT UTC_TIMESTAMP() AS it")[0]["it"]
        if before == after:
            break
    return after.replace(tzinfo=UTC) - timedelta(seconds=up)


def binlog_name(text: str) -> BinlogName:
    """The name that a server gives to a binlog. Raises SourceError if it is none."""
    try:
        return BinlogName.parse(text)
    except ValueError as error:
        raise SourceError(
            f"the server has a binlog {text!r}: {error}",
            hint="log_bin must not have a dot in its name: the server cuts the name there",
        ) from error


def granted_name(current_user: str) -> str:
    """What CURRENT_USER() answers, in the form that GRANT takes."""
    user, _, host = current_user.rpartition("@")
    return "@".join(f"'{part.replace(chr(39), chr(39) * 2)}'" for part in (user, host))


def own_gtid(message: bytes) -> str:
    """The GTID in the rest of an OK packet of a MySQL whose session is tracked; "" if it has none.

    A text comes first, then changes of the session's state, each with its type. The value of type 3
    is a byte for its form, and the GTIDs. All but types and that byte have their length in front.
    """
    try:
        size, at = length_encoded(message, 0)
        end, at = length_encoded(message, at + size)
        end += at
        while at < end:
            kind = message[at]
            size, at = length_encoded(message, at + 1)
            if kind == _TRACKED_GTIDS:
                size, begin = length_encoded(message, at + 1)
                return message[begin : begin + size].decode("ascii")
            at += size
    except (IndexError, ValueError):
        pass
    return ""


class _Connection(_Pymysql):
    """A connection that reads the system's CA certificates only if it verifies by them.

    That takes longer than all the rest of a connection.
    """

    def _create_ssl_ctx(self, sslp: dict[str, Any]) -> ssl.SSLContext:
        if sslp.keys() - _UNVERIFIED.keys() or {**_UNVERIFIED, **sslp} != _UNVERIFIED:
            chosen: ssl.SSLContext = super()._create_ssl_ctx(sslp)  # type: ignore[misc]
            return chosen
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        return context


def _connect(login: Login, flags: int = 0) -> "pymysql.Connection[DictCursor]":
    connection = _Connection(
        host=login.host,
        port=login.port,
        **_tls(login),
        user=login.user,
        # as bytes, as mysqlbinlog sends it; pymysql would encode a str as Latin-1
        password=login.password.encode(),
        charset="utf8mb4",
        autocommit=True,
        cursorclass=DictCursor,
        connect_timeout=max(1, int(login.connect_timeout)),
        read_timeout=login.connect_timeout,
        write_timeout=login.connect_timeout,
        program_name="binlog2s3",
        auth_plugin_map=_auth_plugins(login),
        server_public_key=login.public_key.encode() if login.public_key else None,
        client_flag=flags,
        defer_connect=True,
    )
    if login.socket:
        connection._secure = True  # type: ignore[attr-defined]  # noqa: SLF001 - it never leaves the host
        connection.connect(_open_socket(login.socket, login.connect_timeout))
    else:
        connection.connect()
    return connection


class _RefusedPlugin:
    """Replaces an authentication plugin of pymysql, when the server asks for that plugin."""

    def __init__(self, connection: object) -> None:
        del connection

    def authenticate(self, packet: object) -> NoReturn:
        """Send nothing; raise."""
        del packet
        raise pymysql.OperationalError(
            2061,
            "the server asks for the password in clear text, or nearly so, and is not verified",
        )


class _KnownKey:
    """Replaces pymysql's sha256_password, which takes any key that the server sends for the known.

    Source: MySQL's "Client/Server Protocol", page SHA256 Authentication.
    """

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def authenticate(self, packet: Any) -> Any:
        """Send the password encrypted with the known key; returns the server's answer."""
        connection = self._connection
        if packet.is_auth_switch_request():
            connection.salt = packet.read_all().removesuffix(b"\0")
        password, key = connection.password, connection.server_public_key
        connection.write_packet(
            sha2_rsa_encrypt(password, connection.salt, key) if password else b""
        )
        answer = connection._read_packet()  # noqa: SLF001 - as pymysql's own plugins do
        answer.check_error()
        return answer


def _auth_plugins(login: Login) -> dict[str, Callable[[Any], Any]]:
    """What replaces pymysql's own plugins. That of 4.0 is reversible, so it is always refused."""
    refused = ("mysql_old_password", *(() if login.proved else _CLEAR_TEXT))
    plugins: dict[str, Callable[[Any], Any]] = dict.fromkeys(refused, _RefusedPlugin)
    return plugins | ({"sha256_password": _KnownKey} if login.public_key else {})


def _open_socket(path: str, timeout_seconds: float) -> socket.socket:
    """A connection to a Unix socket; pymysql would leave its own socket open on failure."""
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
    """Pymysql's arguments for the TLS mode; `mysqlbinlog` gives the child the same settings."""
    if login.ssl_mode == "DISABLED":
        return {"ssl_disabled": True}
    if login.ssl_mode == "PREFERRED" and not login.ssl_cert:
        return {}  # without arguments, pymysql prefers TLS
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
        chosen["ssl"] = {**_UNVERIFIED}
    return chosen
