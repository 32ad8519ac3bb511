"""Judges a server's settings and its account's limits: what a streamer and a recovery need. Pure.

A setting that the server does not have is not judged. Limits are read, not tried: what a check uses
up, a running streamer would not have.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from binlog2s3.formatting import duration_text
from binlog2s3.inspect.check.report import Row, fail, ok, skipped, warn
from binlog2s3.server.errors import IN_ENGINE, LOG_CLOSED
from binlog2s3.server.omissions import FILTERS
from binlog2s3.server.version import ServerVersion, is_aurora_reader, is_on

ENGINE = "binlog_storage_engine"
"""MariaDB's variable, from 12.3 on: the engine that has the binlog; "" if it is in files."""
_DAY = 86400.0
_IN_FILE = "in the server's option file"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """What a server answered. `variables` by name in lower case.

    `our_id` is the server id of the streamer, `replicas` the ids of connected replicas, None if
    access is denied. `replicates`: whether it is a replica itself, None if access is denied.
    `expire_seconds` is None if binlogs do not expire. `filters`: binlog filters in words, None if
    access is denied; `replica_filters` likewise, those of replication. `is_closed`: log_bin is on,
    and the server writes no binlog nevertheless. `in_galera`: it is a node of a cluster.
    """

    release: ServerVersion
    variables: Mapping[str, str] = field(default_factory=dict)
    our_id: int = 0
    replicas: frozenset[int] | None = frozenset()
    replicates: bool | None = False
    expire_seconds: float | None = None
    filters: str | None = ""
    replica_filters: str = ""
    is_closed: bool = False
    in_galera: bool = False

    @property
    def writes(self) -> bool:
        """Whether it writes a binlog, in files."""
        return self.is_on("log_bin") and not self.is_closed and not self.value(ENGINE)

    def value(self, *names: str) -> str | None:
        """The first of these variables that exists."""
        return next((self.variables[name] for name in names if name in self.variables), None)

    def is_on(self, *names: str) -> bool:
        return is_on(self.value(*names))


def version_row(release: ServerVersion) -> Row:
    """Whether a streamer can follow a server of this version."""
    title = {"mysql": "MySQL", "mariadb": "MariaDB"}[release.flavour]
    found = f"{title} {release.text}"
    if not release.can_be_source:
        hint = f"streaming needs {title} {release.oldest_source} or later"
        return fail("server", "version", found, hint)
    if not release.is_maintained:
        hint = "this version is out of maintenance; docs/compatibility.md says what was tested"
        return warn("server", "version", found, hint)
    return ok("server", "version", found)


def settings_rows(server: ServerSettings) -> Iterator[Row]:
    """Every setting that matters, in the order of `_SETTINGS`."""
    for name, judge in _SETTINGS.items():
        if not isinstance(judge, _Advice):
            if name not in _OF_MARIADB or server.release.flavour == "mariadb":
                yield judge(server)
        elif (value := server.value(name)) is not None:
            yield judge.row(name, value)


def unseen_rows(why: str) -> Iterator[Row]:
    """The rows of a MySQL, if the server cannot be asked."""
    for name, judge in _SETTINGS.items():
        if not (isinstance(judge, _Advice) and judge.of_mariadb) and name not in _OF_MARIADB:
            yield skipped("settings", name, why)


def _log_bin(server: ServerSettings) -> Row:
    if is_aurora_reader(server.variables):
        return fail(
            "settings",
            "log_bin",
            "a reader of an Aurora cluster writes no binlog",
            "give the cluster's writer endpoint with --mysql-host",
        )
    if server.writes:
        return ok("settings", "log_bin", "ON")
    if server.is_on("log_bin") and (engine := server.value(ENGINE)):
        found = f"ON, but its binlog is in {engine} ({ENGINE}), not in files: not supported"
        return fail("settings", "log_bin", found, IN_ENGINE)
    if server.is_on("log_bin"):
        return fail("settings", "log_bin", "ON, but it writes no binlog", LOG_CLOSED)
    return fail(
        "settings",
        "log_bin",
        "OFF: it writes no binlog",
        f"set log_bin {_IN_FILE} and restart the server",
    )


def _server_id(server: ServerSettings) -> Row:
    own = int(server.value("server_id") or 0)
    if own == 0:
        where = "N is a number that no other server of the topology has (1 to 4294967295)"
        if server.release.persists_settings:
            hint = f"SET PERSIST server_id = N there, where {where}"
        else:
            hint = f"SET GLOBAL server_id = N there, and set it {_IN_FILE}, where {where}"
        return fail("settings", "server_id", "0: the server refuses replicas and mysqlbinlog", hint)
    another = "give the streamer another id: --mysql-server-id"
    if server.replicas is not None and server.our_id in server.replicas:
        text = f"{own}; a replica is connected as {server.our_id}, the streamer's id"
        return fail("settings", "server_id", f"{text}: they would disconnect each other", another)
    if own == server.our_id:  # the server compares only its replicas' ids
        found = f"{own}, which the streamer uses too; this works"
        return ok("settings", "server_id", found, f"to distinguish them, {another}")
    if server.replicas is None:
        found = (
            f"{own}; the streamer's is {server.our_id}; access to the list of replicas is denied"
        )
        hint = (
            "no replica may have the streamer's id: SHOW REPLICAS (SHOW SLAVE HOSTS) lists theirs"
        )
        return ok("settings", "server_id", found, hint)
    found = f"{own}; the streamer's is {server.our_id}, no replica has it"
    return ok("settings", "server_id", found)


def _replica_updates(server: ServerSettings) -> Row:
    name = (
        "log_replica_updates" if "log_replica_updates" in server.variables else "log_slave_updates"
    )
    replicates = True if server.in_galera else server.replicates
    if server.is_on(name):
        role = {True: "; it replicates from another server", None: "", False: ""}[replicates]
        return ok("settings", name, f"ON{role}")
    hint = f"set {name} = ON {_IN_FILE} and restart; or stream from the server that it replicates"
    if replicates:
        what = "a node of a cluster" if server.in_galera else "a replica"
        found = f"OFF on {what}: what it applies is not in its binlog"
        return fail("settings", name, found, hint)
    if replicates is None:
        found = "OFF; access to the replica status is denied"
        return warn("settings", name, found, f"if it is a replica: {hint}")
    return ok("settings", name, "OFF; it does not replicate from another server")


def _expiry(server: ServerSettings) -> Row:
    name, week, seconds = "binlog_expire_logs_seconds", 604800, server.expire_seconds
    if not server.release.expires_by_seconds:
        name, week = "expire_logs_days", 7  # with the newer name such a server does not start
    if seconds is None:
        hint = f"set an expiry of some days, e.g. {name} = {week}, or the disk fills up"
        return warn("settings", name, "binlogs never expire", hint)
    if seconds < _DAY:
        keeps = (
            f"binlogs expire after {duration_text(seconds)}"
            if seconds
            else "binlogs expire at once"
        )
        hint = (
            "keep them for longer than the longest outage of the store or of the streamer's host: "
            "a day at least (RDS: mysql.rds_set_configuration('binlog retention hours', 24))"
        )
        return warn("settings", name, keeps, hint)
    return ok("settings", name, f"binlogs expire after {duration_text(seconds)}")


def _filters(server: ServerSettings) -> Row:
    if server.filters is None:
        return skipped("settings", "binlog filters", "SHOW BINARY LOG STATUS is denied")
    if not server.filters:
        return ok("settings", "binlog filters", "none")
    hint = "changes that they exclude are in no binlog and cannot be recovered: remove the filters"
    return warn("settings", "binlog filters", server.filters, hint)


def _replica_filters(server: ServerSettings) -> Row:
    if not server.replica_filters:
        return ok("settings", "replication filters", "none")
    hint = (
        "the server itself does not have what they exclude: a base backup of the server that it "
        "replicates has rows that this history never changes; use only base backups of this one"
    )
    return warn("settings", "replication filters", server.replica_filters, hint)


def _error_action(server: ServerSettings) -> Row:
    """What a server does that cannot write or rotate its binlog."""
    name, after = "binlog_error_action", "if a rotation or a write of the binlog fails"
    value = server.value(name)
    if value is None:
        hint = (
            f"watch for it: {after}, the server says so only in its error log, goes on without a "
            "binlog until it is restarted, and what it commits then is nowhere; the streamer's "
            "trouble `unlogged` shows it while it lasts, and a gap is recorded"
        )
        return ok("settings", name, "there is none: it would go on without a binlog", hint)
    if value.upper() != "IGNORE_ERROR":
        return ok("settings", name, value)
    hint = (
        f"SET GLOBAL {name} = ABORT_SERVER, and in its option file: {after}, the server goes on "
        "without a binlog, and what it commits then is nowhere"
    )
    return fail("settings", name, value, hint)


def _sql_log_bin(_: ServerSettings) -> Row:
    found = "what a session writes with sql_log_bin = 0 is in no binlog, and no server shows it"
    hint = (
        "dumps with SET @@SESSION.SQL_LOG_BIN=0 that were loaded there are such; take a new base "
        "backup after each"
    )
    return ok("settings", "sql_log_bin", found, hint)


def _engines(server: ServerSettings) -> Row:
    if server.value("ndb_log_bin") is None or server.is_on("ndb_log_bin"):
        return ok("settings", "engines", "none that is known to write without the binlog")
    hint = "SET GLOBAL ndb_log_bin = ON, and in its option file"
    found = "ndb_log_bin is OFF: changes of NDB tables are in no binlog"
    return fail("settings", "engines", found, hint)


def _domain(server: ServerSettings) -> Row:
    """MariaDB's; the nodes of a cluster are told apart by it."""
    own = server.value("gtid_domain_id") or "0"
    if not server.in_galera:
        hint = "servers that write at the same time need different domains"
        return ok("settings", "gtid_domain_id", own, hint)
    cluster = server.value("wsrep_gtid_domain_id") or "0"
    hint = (
        "give each node of the cluster a gtid_domain_id of its own, in its option file, which is "
        "also not the cluster's wsrep_gtid_domain_id: nodes with the same server_id and "
        "gtid_domain_id are taken for one server"
    )
    if own == "0":
        return warn("settings", "gtid_domain_id", "0, as on every node where nobody set it", hint)
    if own == cluster:
        found = f"{own}, which is also the cluster's (wsrep_gtid_domain_id)"
        return warn("settings", "gtid_domain_id", found, hint)
    return ok("settings", "gtid_domain_id", f"{own}; the cluster's is {cluster}", hint)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Advice:
    """A variable that is judged by its value alone.

    `hint` is for any other value than `wanted`. `is_note`: no value is wrong. `more`: what is said
    after the value.
    """

    wanted: str = ""
    hint: str = ""
    is_note: bool = False
    of_mariadb: bool = False
    more: str = ""

    def row(self, name: str, value: str) -> Row:
        found = f"{value}{self.more}"
        if value.upper() in {self.wanted, _SAME.get(self.wanted)}:
            return ok("settings", name, found)
        if self.is_note:
            return ok("settings", name, found, self.hint)
        return warn("settings", name, found, self.hint)


_SAME = {"OFF": "0"}
_DURABLE = (
    "SET GLOBAL {0} = 1, and in its option file: a server that crashes may lose commits that were "
    "already streamed, and its history forks there"
)
_ON_DISK = "only the disk is encrypted: the stream is plain text; --sse encrypts objects"
_SETTINGS: Mapping[str, "_Advice | Callable[[ServerSettings], Row]"] = {
    "log_bin": _log_bin,
    "server_id": _server_id,
    "binlog_format": _Advice(
        wanted="ROW",
        hint="SET GLOBAL binlog_format = ROW, and in its option file: statements may have another "
        "effect when they are applied again, and `find` cannot see what they changed",
    ),
    "binlog_row_image": _Advice(
        wanted="FULL",
        hint="SET GLOBAL binlog_row_image = FULL: otherwise the binlog does not have the old "
        "values of rows, and deleted or overwritten data cannot be read from it",
    ),
    "binlog_row_metadata": _Advice(
        wanted="FULL",
        hint="FULL writes column names to the binlog, which tools that read rows can use",
        is_note=True,
    ),
    "binlog_checksum": _Advice(
        wanted="CRC32",
        hint="SET GLOBAL binlog_checksum = CRC32: otherwise damage in transit is not detected, "
        "and the spool is not trusted after a restart",
    ),
    "sync_binlog": _Advice(wanted="1", hint=_DURABLE.format("sync_binlog")),
    "innodb_flush_log_at_trx_commit": _Advice(
        wanted="1", hint=_DURABLE.format("innodb_flush_log_at_trx_commit")
    ),
    "gtid_mode": _Advice(
        wanted="ON",
        hint="turn it on, online, in four steps (manual: Enabling GTID Transactions Online): "
        "without it, pitr can use only positions, cannot skip a transaction or prove what a "
        "target has, and the streamer cannot follow a failover",
    ),
    "enforce_gtid_consistency": _Advice(
        wanted="ON",
        hint="SET GLOBAL enforce_gtid_consistency = WARN, then ON: gtid_mode needs it",
    ),
    "gtid_domain_id": _domain,
    "gtid_strict_mode": _Advice(
        wanted="ON",
        hint="SET GLOBAL gtid_strict_mode = ON, and in its option file: otherwise sequence "
        "numbers may go back, and two transactions may have the same GTID",
        of_mariadb=True,
    ),
    "log_replica_updates": _replica_updates,
    "binlog_expire_logs_seconds": _expiry,
    "binlog_encryption": _Advice(wanted="OFF", hint=_ON_DISK, is_note=True),
    "encrypt_binlog": _Advice(wanted="OFF", hint=_ON_DISK, is_note=True, of_mariadb=True),
    "max_binlog_size": _Advice(
        is_note=True, more=" bytes; it does not affect how soon a commit is in the bucket"
    ),
    "binlog_error_action": _error_action,
    "binlog filters": _filters,
    "replication filters": _replica_filters,
    "engines": _engines,
    "sql_log_bin": _sql_log_bin,
}
"""What is judged, in the order of the rows."""
_OF_MARIADB = ("gtid_domain_id",)
VARIABLES = (
    *(name for name in _SETTINGS if " " not in name and name not in ("engines", "sql_log_bin")),
    "log_slave_updates",
    "ndb_log_bin",
    ENGINE,
    *FILTERS,
    "wsrep_gtid_domain_id",
    "aurora_server_id",
    "innodb_read_only",
)
"""The variables to ask for; no server has all of them."""


LIMITS = "account limits"
CONNECTIONS = 3
"""A streamer's connections: mysqlbinlog's, the stream's and the watch's."""
QUERIES_PER_HOUR = 7200
"""A streamer asks every two seconds for the server's position and whether it is read-only."""

_AMPLE = {"MAX_USER_CONNECTIONS": 2 * CONNECTIONS, "MAX_CONNECTIONS_PER_HOUR": 1200,
          "MAX_QUERIES_PER_HOUR": 2 * QUERIES_PER_HOUR}  # fmt: skip
_LEAST = {"MAX_USER_CONNECTIONS": CONNECTIONS, "MAX_CONNECTIONS_PER_HOUR": CONNECTIONS,
          "MAX_QUERIES_PER_HOUR": QUERIES_PER_HOUR}  # fmt: skip
_QUOTED = re.compile(r"'(?:[^'\\]|\\.|'')*'|`[^`]*`|\"[^\"]*\"", re.DOTALL)
_LIMIT = re.compile(rf"\b({'|'.join(_LEAST)}) ([0-9]{{1,10}})\b")


def limits_of(statement: str) -> dict[str, int]:
    """The limits in the answer of SHOW CREATE USER or SHOW GRANTS; limits of 0 are left out.

    Quoted parts, such as the account's name, a password hash or a comment, are ignored.
    """
    found = _LIMIT.findall(_QUOTED.sub("''", statement))
    return {name: int(number) for name, number in found if int(number)}


def limits_row(limits: Mapping[str, int] | None, account: str) -> Row:
    """Whether a streamer can work within these limits; None: they could not be read."""
    if limits is None:
        return skipped("privileges", LIMITS, "SHOW CREATE USER is denied")
    found = ", ".join(f"{name} {number}" for name, number in limits.items())
    lift = f"ALTER USER {account} WITH {' '.join(f'{name} 0' for name in limits)};"
    if too_low := [name for name, number in limits.items() if number < _LEAST[name]]:
        wants = ", ".join(f"{name} {_LEAST[name]}" for name in too_low)
        return fail("privileges", LIMITS, f"{found}; a streamer needs at least {wants}", lift)
    if any(number < _AMPLE[name] for name, number in limits.items()):
        hint = (
            "after a network failure the server counts dead connections beside the new ones, and "
            f"each attempt to connect: {lift}"
        )
        return warn("privileges", LIMITS, f"{found}; enough unless the network fails", hint)
    return ok("privileges", LIMITS, found or "none")
