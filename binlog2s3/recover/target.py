"""The target of a recovery: what it is, what is done to it besides the apply, what it has.

Asking changes nothing. What is done here is only what the operator allowed.
"""

import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from binlog2s3.binlog import gtid
from binlog2s3.binlog.content import Xid
from binlog2s3.binlog.gtid import Flavour, Gtids, GtidSet, MariadbGtidList
from binlog2s3.errors import RecoveryError, SourceError
from binlog2s3.formatting import gtids_text
from binlog2s3.server.connection import Server, granted_name
from binlog2s3.server.login import Login
from binlog2s3.server.replica import applies, channel_name, receives, replica_rows
from binlog2s3.server.sql import HAS_ROWS
from binlog2s3.server.version import ServerVersion, is_on

DATABASE = "binlog2s3_recovery"
"""How the database in the target begins where a run keeps its note; and the name of its lock."""

CHANNEL = "binlog2s3"
"""The replication channel of a recovery, and the user it logs in with."""

_NOTES = "`" + DATABASE.replace("_", "\\_") + "%`.*"
_GRANTED: dict[Flavour, tuple[str, ...]] = {
    "mysql": (
        "REPLICATION CLIENT, REPLICATION_SLAVE_ADMIN, RELOAD, SESSION_VARIABLES_ADMIN ON *.*",
        f"ALL ON {_NOTES}",
        "SELECT ON performance_schema.replication_applier_status_by_worker",
        "SELECT ON mysql.slave_worker_info",
        "SELECT ON mysql.slave_relay_log_info",
    ),
    "mariadb": (
        "REPLICATION SLAVE ADMIN, SLAVE MONITOR, RELOAD, BINLOG ADMIN, PROCESS ON *.*",
        f"ALL ON {_NOTES}",
    ),
}
"""What docs/guides/permissions.md grants at the target; nothing asks for grants, each is tried."""
_SUPER = "REPLICATION CLIENT, SUPER, RELOAD, PROCESS ON *.*"
"""In place of the first, before SUPER was split up."""
_MORE: dict[Flavour, tuple[str, str]] = {
    "mysql": (
        "--workers, --stop-target-threads, or replica_preserve_commit_order = OFF",
        "SYSTEM_VARIABLES_ADMIN ON *.*",
    ),
    "mariadb": ("--stop-target-threads where events run", "SUPER ON *.*"),
}
"""When more is needed after SUPER was split up, and what."""

_LEAST_FREE = 64 << 10
_MOST_SHOWN = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetFacts:
    """What a target says about itself.

    `uuid` as in `ServerFacts`. `executed` is None if it keeps no GTIDs that can be compared:
    gtid_mode is not ON, or it is MariaDB. `channels` are the replica channels that run.
    `not_transactional` are tables, with their engines, whose rows a crash may lose although their
    GTIDs stay. `missing_privileges`: those without which the facts cannot be asked for.
    `checks_accounts`: it was not started with --skip-grant-tables. `tables`: how many there are in
    the users' schemas. `unloaded`: loadable functions in mysql.func that it has not loaded, because
    a dump brought them after its start; only those that the account may see. `account`: ours there,
    as GRANT takes it.
    """

    address: str
    uuid: str
    flavour: Flavour
    version: str
    server_id: int
    executed: Gtids | None
    log_bin: bool
    read_only: bool
    super_read_only: bool
    event_scheduler: bool
    channels: tuple[str, ...]
    transaction_read_only: bool = False
    binlog_format: str = "ROW"
    logs_replicated: bool = True
    not_transactional: tuple[str, ...] = ()
    missing_privileges: tuple[str, ...] = ()
    checks_accounts: bool = True
    tables: int = 0
    unloaded: tuple[str, ...] = ()
    account: str = "the account"

    @property
    def keeps_gtids(self) -> bool:
        """Whether its GTIDs tell what was applied, also to a second run."""
        return self.executed is not None

    @property
    def release(self) -> ServerVersion:
        """What its version knows."""
        return ServerVersion(self.version)

    @property
    def grants(self) -> str:
        """The documented statements that give the account what an apply needs."""
        first, *others = _GRANTED[self.flavour]
        when, more = _MORE[self.flavour]
        if not self.release.splits_super:
            first, when = _SUPER, ""
        needed = "; ".join(
            f"GRANT {privileges} TO {self.account}" for privileges in (first, *others)
        )
        return f"{needed}; for {when} also GRANT {more} TO {self.account}" if when else needed

    def refusal(self, why: str, hint: str = "", *, transient: bool = False) -> RecoveryError:
        """The error that it is, or has, something because of which nothing (more) is applied."""
        return RecoveryError(f"the target, {self.address}, {why}", hint=hint, transient=transient)


@dataclass(frozen=True, slots=True)
class Target:
    """A server that is recovered into: the connection to it, and what it said about itself."""

    server: Server
    facts: TargetFacts


def ask(server: Server) -> Target:
    """Ask a target, with SELECT and SHOW only; it need not write a binary log.

    Raises SourceError.
    """
    row = server.rows(
        "SELECT @@version AS version, @@server_id AS id, @@log_bin AS log_bin, "
        "@@global.read_only AS frozen, @@global.event_scheduler AS events, "
        "CURRENT_USER() AS account"
    )[0]
    version = ServerVersion(str(row["version"]))
    flavour = version.flavour
    if flavour == "mysql":
        own = server.rows(
            "SELECT @@server_uuid AS uuid, @@gtid_mode AS mode, "
            "@@global.gtid_executed AS executed, @@global.super_read_only AS super_read_only"
        )[0]
        uuid, has_gtids = str(own["uuid"]), str(own["mode"]).upper() == "ON"
        executed: Gtids | None = gtid.parse(str(own["executed"]), "mysql") if has_gtids else None
        super_read_only = is_on(own["super_read_only"])
    else:
        own = server.rows("SELECT @@global.gtid_domain_id AS domain")[0]
        uuid = f"{int(row['id']):08x}-{int(own['domain']):08x}"
        executed, super_read_only = None, False
    settings = _settings(server)
    channels, missing_privileges = _channels(server, version)
    facts = TargetFacts(
        address=server.login().address,
        uuid=uuid,
        flavour=flavour,
        version=version.text,
        server_id=int(row["id"]),
        executed=executed,
        log_bin=is_on(row["log_bin"]),
        read_only=is_on(row["frozen"]),
        super_read_only=super_read_only,
        event_scheduler=str(row["events"]).upper() in ("ON", "1"),
        channels=channels,
        transaction_read_only="ON"
        in (settings.get("transaction_read_only"), settings.get("tx_read_only")),
        binlog_format=settings.get("binlog_format", "ROW"),
        logs_replicated=settings.get("log_replica_updates", settings.get("log_slave_updates", "ON"))
        in ("ON", "1"),
        not_transactional=_not_transactional(server),
        missing_privileges=missing_privileges,
        checks_accounts=_checks_accounts(server),
        tables=_tables(server),
        unloaded=tuple(_unloaded(server, version)),
        account=granted_name(str(row["account"])),
    )
    return Target(server, facts)


def _checks_accounts(server: Server) -> bool:
    """Whether it knows accounts: with --skip-grant-tables it answers 1290 to who asks for them."""
    try:
        server.rows("SHOW GRANTS")
    except SourceError as error:
        if not error.answered:
            raise
        return "(1290)" not in str(error)
    return True


def _tables(server: Server) -> int:
    """Without those of a recovery's note: a run that was killed before its first transaction."""
    row = server.rows(
        f"SELECT COUNT(*) AS it FROM information_schema.tables WHERE {HAS_ROWS} "  # noqa: S608 - a constant
        "AND table_schema NOT IN "
        "('mysql', 'sys', 'performance_schema', 'information_schema', %s) "
        "AND table_schema NOT REGEXP %s",
        (DATABASE, f"^{DATABASE}_[0-9a-f]{{16}}$"),
    )
    return int(row[0]["it"])


def _unloaded(server: Server, version: ServerVersion) -> Iterator[str]:
    """The functions of mysql.func that are not loaded: the server reads that table at its start.

    MySQL 8 says which ones are loaded; elsewhere those of a table that is newer than the start.
    """
    try:
        names = [str(row["name"]) for row in server.rows("SELECT name AS name FROM mysql.func")]
        if not names:
            return
        if version.shows_functions and int(
            server.rows("SELECT @@performance_schema AS it")[0]["it"]
        ):
            loaded = {
                str(row["it"]).lower()
                for row in server.rows(
                    "SELECT udf_name AS it FROM performance_schema.user_defined_functions"
                )
            }
            yield from (name for name in names if name.lower() not in loaded)
            return
        up = int(server.rows("SHOW GLOBAL STATUS LIKE 'Uptime'")[0]["Value"])
        rows = server.rows(
            "SELECT UNIX_TIMESTAMP() - UNIX_TIMESTAMP(create_time) AS age "
            "FROM information_schema.tables WHERE table_schema = 'mysql' AND table_name = 'func'"
        )
        if rows and rows[0]["age"] is not None and int(rows[0]["age"]) <= up:
            yield from names
    except SourceError as error:
        if not error.answered:
            raise


def put_accounts_in_force(target: Target) -> None:
    """Have the server read its account tables again, which a loaded dump has written.

    Until then it works with the accounts from before the load: a statement of the history on
    another one is refused or, with IF EXISTS, lost. It also reads mysql.servers. Nothing of this is
    in its binary log. Then a new connection is tried: the account may be another one now. Tables
    without any account are left as they are: in force, they would let nobody in. Raises
    RecoveryError.
    """
    server, facts, user = target.server, target.facts, target.server.login().user
    if _lacks_accounts(server):
        raise facts.refusal(
            "has no account in mysql.user: the base backup was loaded by half, or has none; in "
            "force, that would let nobody in",
            "load the base backup again, whole, into an empty server; one without rows "
            "(--no-data) cannot be rolled forward; nothing was changed",
        )
    try:
        server.rows("FLUSH LOCAL PRIVILEGES")
    except SourceError as error:
        if not error.needs_privilege:
            raise
        raise RecoveryError(str(error), hint=facts.grants) from error
    server.close()
    try:
        server.rows("SELECT 1")
    except SourceError as error:
        if not error.answered or error.transient:
            raise
        raise RecoveryError(
            f"the accounts of the base backup are in force now at the target, {facts.address}, and "
            f"the account {user!r} is not let in any more: {error}",
            hint="a loaded dump brings the accounts of the dumped server: pass the password that "
            f"{user!r} has there (--target-password-file, or `password` in the file of "
            "--target-defaults-file), or another account of that server (--target-user); then run "
            "the same command again: nothing was applied",
        ) from error


def _lacks_accounts(server: Server) -> bool:
    """Whether mysql.user has no row; False if that cannot be asked."""
    try:
        return not server.rows("SELECT 1 AS it FROM mysql.user LIMIT 1")
    except SourceError as error:
        if not error.answered:
            raise
        return False


def _settings(server: Server) -> dict[str, str]:
    """The settings whose names depend on the version."""
    rows = server.rows(
        "SHOW GLOBAL VARIABLES WHERE variable_name IN "
        "('transaction_read_only', 'tx_read_only', 'binlog_format', 'log_replica_updates', "
        "'log_slave_updates')"
    )
    return {str(row["Variable_name"]).lower(): str(row["Value"]).upper() for row in rows}


def _not_transactional(server: Server) -> tuple[str, ...]:
    rows = server.rows(
        "SELECT t.table_schema AS db, t.table_name AS name, t.engine AS engine "  # noqa: S608
        "FROM information_schema.tables t JOIN information_schema.engines e ON e.engine = t.engine "
        f"WHERE {HAS_ROWS} AND e.transactions = 'NO' AND t.table_schema NOT IN "
        "('mysql', 'sys', 'performance_schema', 'information_schema') ORDER BY 1, 2"
    )
    return tuple(f"{row['db']}.{row['name']} ({row['engine']})" for row in rows)


@contextmanager
def alone(login: Callable[[], Login]) -> Iterator[None]:
    """Keep other recoveries from this target meanwhile. Raises RecoveryError if one is running.

    Waits for one that has just ended: the server frees its lock only when it notices the end.
    """
    with Server(login) as server:
        server.rows("SET SESSION wait_timeout = 31536000")  # it will be idle
        row = server.rows(
            f"SELECT GET_LOCK('{DATABASE}', 2) AS it, IS_USED_LOCK('{DATABASE}') AS who"
        )[0]
        if str(row["it"]) != "1":
            raise RecoveryError(
                f"another recovery is running at the target, {login().address} (its connection "
                f"there is {row['who']})",
                hint=f"wait for its end; if its process is gone: KILL {row['who']} at the target",
            )
        yield


def executed(server: Server) -> Gtids:
    """What a MySQL target has executed by now, asked over a new connection."""
    server.close()
    return gtid.parse(str(server.rows("SELECT @@global.gtid_executed AS it")[0]["it"]), "mysql")


def replicated(server: Server) -> MariadbGtidList:
    """The gtid_slave_pos of a MariaDB: of each domain, what it has replicated last."""
    return MariadbGtidList.parse(str(server.rows("SELECT @@global.gtid_slave_pos AS it")[0]["it"]))


def other_channels(target: Target) -> tuple[str, ...]:
    """The replica channels that are set up besides ours, whether they run or not."""
    names = map(channel_name, replica_rows(target.server, target.facts.release))
    return tuple(name or "the default one" for name in names if name.lower() != CHANNEL)


def _channels(server: Server, version: ServerVersion) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The replica channels that run, and the privileges that are missing to find out."""
    privilege = "SLAVE MONITOR" if version.mariadb else "REPLICATION CLIENT"
    try:
        rows = replica_rows(server, version)
    except SourceError as error:
        if not error.answered and not error.needs_privilege:
            raise
        return (), (privilege,)
    running = (channel_name(row) for row in rows if receives(row) or applies(row))
    return tuple(name for name in running if name.lower() != CHANNEL), ()


def refuse_lacking(target: Target) -> None:
    """See, by trying, that the account may write without its binlog. Raises RecoveryError."""
    try:
        target.server.rows("SET SESSION sql_log_bin = 0")
    except SourceError as error:
        if not error.needs_privilege:
            raise
        raise RecoveryError(str(error), hint=target.facts.grants) from error
    finally:
        target.server.close()


def stop_threads(target: Target) -> None:
    """Stop the event scheduler and the replica's threads, if they run."""
    if target.facts.event_scheduler:
        target.server.rows("SET GLOBAL event_scheduler = OFF")
    if target.facts.channels:
        target.server.rows(target.facts.release.stop_statement)


def prepared(server: Server, flavour: Flavour) -> tuple[str, ...] | None:
    """The names of the XA transactions that are prepared there; None if the server does not tell.

    MySQL 8 tells only accounts that have XA_RECOVER_ADMIN.
    """
    try:
        rows = server.rows("XA RECOVER" if flavour == "mariadb" else "XA RECOVER CONVERT XID")
    except SourceError as error:
        if not error.answered:
            raise
        return None
    return tuple(str(_xid(row)) for row in rows)


def _xid(row: Mapping[str, Any]) -> Xid:
    data = row["data"]
    if isinstance(data, str):
        is_hex = re.fullmatch("0x(?:[0-9A-Fa-f]{2})*", data)
        data = bytes.fromhex(data[2:]) if is_hex else data.encode()
    size = int(row["gtrid_length"])
    return Xid(int(row["formatID"]), data[:size], data[size : size + int(row["bqual_length"])])


def commit_empty(server: Server, gtids: GtidSet) -> None:
    """Commit an empty transaction with each of these GTIDs, so that it counts as executed.

    Those that are executed already stay as they are.
    """
    server.close()  # a new connection: the old one may have been idle for hours
    try:
        for gtid_next in gtids.each():
            server.rows("SET SESSION gtid_next = %s", (gtid_next,))
            server.rows("BEGIN")
            server.rows("COMMIT")
        server.rows("SET SESSION gtid_next = 'AUTOMATIC'")
    finally:
        server.close()


def refuse_full_disk(target: Target) -> None:
    """Raises RecoveryError if the target waits for free disk space, which it does without an error.

    Looks at its data and its binlogs, if they are on this machine. Raises SourceError.
    """
    row = target.server.rows("SELECT @@datadir AS data, @@log_bin_basename AS binlog")[0]
    for path in (Path(str(row["data"])), Path(str(row["binlog"] or row["data"])).parent):
        with suppress(OSError):
            disk = os.statvfs(path)
            if disk.f_bavail * disk.f_frsize < _LEAST_FREE:
                raise target.facts.refusal(
                    f"makes no progress: the disk of {path} is full",
                    "free some space there: the target then continues by itself, and so does "
                    "the same command",
                )


def prove(executed: Gtids, expected: Gtids, *, own_uuid: str = "") -> None:
    """See that a target has exactly these GTIDs. Raises RecoveryError with what differs."""
    if executed == expected:
        return
    if not isinstance(executed, GtidSet) or not isinstance(expected, GtidSet):
        raise RecoveryError(f"the target has {executed} and should have {expected}")
    missing, extra = expected - executed, executed - expected
    texts = []
    if missing:
        texts.append(f"it is missing {gtids_text(missing, _MOST_SHOWN)}")
    if extra:
        texts.append(f"it has {gtids_text(extra, _MOST_SHOWN)} in addition")
    hint = "run the same command again: it applies what is missing" if missing else ""
    if extra:
        mine = any(uuid == own_uuid.lower() for uuid, _, _ in extra.runs())
        hint = "something wrote to the target meanwhile" + (
            ": these are its own transactions" if mine else ""
        )
        hint += ", so its data are not those of the goal; restore the base backup and run again"
    raise RecoveryError(
        f"the target is not where the plan says: {' and '.join(texts)}",
        hint=hint,
    )
