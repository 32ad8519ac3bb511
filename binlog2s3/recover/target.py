"""The target of a recovery: what it is, why it must not be touched, what it has in the end.

Place in the flow: `pitr` asks here before it plans and before it applies, and proves at the end.

Law: nothing is changed before every refusal has been looked for. A server that may be the source,
one that others write to, and one whose account could not finish the work are refused.
"""

import os
import re
import socket
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from binlog2s3.binlog import gtid
from binlog2s3.binlog.gtid import Flavour, Gtids, GtidSet
from binlog2s3.config.pitr import Address
from binlog2s3.errors import RecoveryError, SourceError
from binlog2s3.formatting import gtids_text
from binlog2s3.output import clean
from binlog2s3.server.connection import Server
from binlog2s3.server.login import Login

DATABASE = "binlog2s3_recovery"
"""Where a run keeps its note, in the target."""

CHANNEL = "binlog2s3"
"""The replication channel of a recovery, and the user that it logs in with."""

PRIVILEGES: dict[Flavour, str] = {
    "mysql": "GRANT REPLICATION CLIENT, REPLICATION_SLAVE_ADMIN, RELOAD, SESSION_VARIABLES_ADMIN "
    "ON *.* and what else docs/operations.md has for this account",
    "mariadb": "GRANT SLAVE MONITOR, REPLICATION SLAVE ADMIN, RELOAD, BINLOG ADMIN, PROCESS ON *.* "
    "and what else docs/operations.md has for this account",
}
"""What the account at the target needs, for hints."""

_TITLE: dict[Flavour, str] = {"mysql": "MySQL", "mariadb": "MariaDB"}
_RUNNING = ("Replica_IO_Running", "Replica_SQL_Running", "Slave_IO_Running", "Slave_SQL_Running")
_PORT = 3306
_LEAST_FREE = 64 << 10
_MOST_SHOWN = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetFacts:
    """What a target says about itself.

    `uuid` as `ServerFacts` has it. `executed` is None where it keeps no GTIDs that could be
    compared: gtid_mode is not ON, or it is MariaDB. `channels` are the replica channels that run.
    `not_transactional` are tables whose rows a crash may tear from their GTIDs, and their engines.
    `lacks`: privileges without which not even that can be asked.
    """

    address: str
    uuid: str
    flavour: Flavour
    version: str
    server_id: int
    gtid_mode: bool
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
    lacks: tuple[str, ...] = ()

    @property
    def keeps_gtids(self) -> bool:
        """Whether what is applied keeps its GTIDs, and a second run knows what the first did."""
        return self.executed is not None


def facts(server: Server, login: Login) -> TargetFacts:
    """Ask the target, with SELECT and SHOW alone; it need not write a binary log.

    Raises SourceError.
    """
    row = server.rows(
        "SELECT @@version AS version, @@server_id AS id, @@log_bin AS log_bin, "
        "@@global.read_only AS frozen, @@global.event_scheduler AS events"
    )[0]
    version = str(row["version"])
    flavour: Flavour = "mariadb" if "mariadb" in version.lower() else "mysql"
    if flavour == "mysql":
        own = server.rows(
            "SELECT @@server_uuid AS uuid, @@gtid_mode AS mode, "
            "@@global.gtid_executed AS executed, @@global.super_read_only AS super_read_only"
        )[0]
        uuid, gtid_mode = str(own["uuid"]), str(own["mode"]).upper() == "ON"
        executed: Gtids | None = gtid.parse(str(own["executed"]), "mysql") if gtid_mode else None
        super_read_only = bool(int(own["super_read_only"]))
    else:
        own = server.rows("SELECT @@global.gtid_domain_id AS domain")[0]
        uuid, gtid_mode = f"{int(row['id']):08x}-{int(own['domain']):08x}", False
        executed, super_read_only = None, False
    settings = _settings(server)
    channels, lacks = _channels(server, flavour, version)
    return TargetFacts(
        address=login.address,
        uuid=uuid,
        flavour=flavour,
        version=version,
        server_id=int(row["id"]),
        gtid_mode=gtid_mode,
        executed=executed,
        log_bin=bool(int(row["log_bin"])),
        read_only=bool(int(row["frozen"])),
        super_read_only=super_read_only,
        event_scheduler=str(row["events"]).upper() in ("ON", "1"),
        channels=channels,
        transaction_read_only="ON"
        in (settings.get("transaction_read_only"), settings.get("tx_read_only")),
        binlog_format=settings.get("binlog_format", "ROW"),
        logs_replicated=settings.get("log_replica_updates", settings.get("log_slave_updates", "ON"))
        in ("ON", "1"),
        not_transactional=_not_transactional(server),
        lacks=lacks,
    )


def _settings(server: Server) -> dict[str, str]:
    """Those that have other names elsewhere, or are gone in later versions."""
    rows = server.rows(
        "SHOW GLOBAL VARIABLES WHERE variable_name IN "
        "('transaction_read_only', 'tx_read_only', 'binlog_format', 'log_replica_updates', "
        "'log_slave_updates')"
    )
    return {str(row["Variable_name"]).lower(): str(row["Value"]).upper() for row in rows}


def _not_transactional(server: Server) -> tuple[str, ...]:
    rows = server.rows(
        "SELECT t.table_schema AS db, t.table_name AS name, t.engine AS engine "
        "FROM information_schema.tables t JOIN information_schema.engines e ON e.engine = t.engine "
        "WHERE t.table_type = 'BASE TABLE' AND e.transactions = 'NO' AND t.table_schema NOT IN "
        "('mysql', 'sys', 'performance_schema', 'information_schema') ORDER BY 1, 2"
    )
    return tuple(f"{row['db']}.{row['name']} ({row['engine']})" for row in rows)


def some(names: Sequence[str], most: int = 3) -> str:
    """The first of them, and how many more there are."""
    more = len(names) - most
    return ", ".join(clean(one) for one in names[:most]) + (f" and {more} more" if more > 0 else "")


@contextmanager
def alone(login: Callable[[], Login]) -> Iterator[None]:
    """No second recovery works at this target meanwhile. Raises RecoveryError where one does.

    One that has just ended is waited for: the server gives its lock back when it has seen that.
    """
    with Server(login) as server:
        server.rows("SET SESSION wait_timeout = 31536000")  # it says nothing for a long time
        row = server.rows(
            f"SELECT GET_LOCK('{DATABASE}', 2) AS it, IS_USED_LOCK('{DATABASE}') AS who"
        )[0]
        if str(row["it"]) != "1":
            raise RecoveryError(
                f"another recovery is at work at the target, {login().address} (its connection "
                f"there is {row['who']})",
                hint=f"wait for its end; if its process is gone: KILL {row['who']} at the target",
            )
        yield


def executed(server: Server) -> Gtids:
    """What a MySQL target has executed by now, asked on a new connection."""
    server.close()
    return gtid.parse(str(server.rows("SELECT @@global.gtid_executed AS it")[0]["it"]), "mysql")


def _channels(
    server: Server, flavour: Flavour, version: str
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The replica channels that run, and the privilege that is missing to know."""
    if flavour == "mariadb":
        statement, privilege = "SHOW ALL SLAVES STATUS", "SLAVE MONITOR"
    else:
        modern = numbers(version) >= (8, 0, 22)
        statement = "SHOW REPLICA STATUS" if modern else "SHOW SLAVE STATUS"
        privilege = "REPLICATION CLIENT"
    try:
        rows = server.rows(statement)
    except SourceError as error:
        if not error.answered and "lacks the privilege" not in str(error):
            raise
        return (), (privilege,)
    running = [
        row
        for row in rows
        if any(str(row.get(name, "No")) != "No" for name in _RUNNING)
        and CHANNEL not in (row.get("Channel_Name"), row.get("Connection_name"))
    ]
    names = (row.get("Channel_Name") or row.get("Connection_name") or "" for row in running)
    return tuple(map(str, names)), ()


def refuse_lacking(server: Server, found: TargetFacts) -> None:
    """See by doing that the account may leave a note that no binlog has. Raises RecoveryError."""
    try:
        server.rows("SET SESSION sql_log_bin = 0")
    except SourceError as error:
        if "lacks the privilege" not in str(error):
            raise
        raise RecoveryError(str(error), hint=PRIVILEGES[found.flavour]) from error
    finally:
        server.close()


def problems(
    found: TargetFacts,
    login: Login,
    *,
    flavour: Flavour,
    server_uuids: Collection[str],
    source_address: Address | None = None,
    allow_source: bool = False,
    stop_threads: bool = False,
) -> list[RecoveryError]:
    """Why nothing may be applied to it; empty where it may.

    `flavour` is the history's, `server_uuids` are of all servers that wrote to the bucket,
    `source_address` is where the streamer's configuration has the source.
    """
    refused = []
    if found.flavour != flavour:
        refused.append(
            RecoveryError(
                f"the target, {found.address}, is {_TITLE[found.flavour]} {found.version}; the "
                f"binlogs are {_TITLE[flavour]}'s",
                hint="bring them to a server of their own flavour",
            )
        )
    if not allow_source:
        refused += _source_problems(found, login, server_uuids, source_address)
    if found.read_only or found.super_read_only:
        which = "super_read_only" if found.super_read_only else "read_only"
        refused.append(
            RecoveryError(
                f"the target, {found.address}, is read-only ({which} is ON): others may have "
                "meant it to stay as it is",
                hint="if it is the right one: SET GLOBAL super_read_only = OFF, read_only = OFF"
                if found.flavour == "mysql"
                else "if it is the right one: SET GLOBAL read_only = OFF",
            )
        )
    if found.transaction_read_only:
        name = "transaction_read_only" if found.flavour == "mysql" else "tx_read_only"
        refused.append(
            RecoveryError(
                f"the target, {found.address}, begins each transaction as a read-only one "
                f"({name} is ON)",
                hint=f"if it is the right one: SET GLOBAL {name} = OFF",
            )
        )
    if not stop_threads:
        refused += _thread_problems(found)
    if found.lacks:
        refused.append(
            RecoveryError(
                f"the account {login.user!r} at the target lacks {', '.join(found.lacks)}",
                hint=PRIVILEGES[found.flavour],
            )
        )
    return refused


def warnings(found: TargetFacts, *, server_version: str) -> list[str]:
    """What the operator should know of the target before the apply."""
    told = []
    if numbers(found.version)[:2] < numbers(server_version)[:2]:
        told.append(
            f"the target is of version {found.version}, older than the binlogs' "
            f"{server_version}: statements of the newer one may fail there"
        )
    if found.not_transactional:
        told.append(
            f"the target has {len(found.not_transactional)} tables without transactions: "
            f"{some(found.not_transactional)}; if it crashes meanwhile, what reached them nobody "
            "knows"
        )
    if found.log_bin and not found.logs_replicated:
        name = "log_replica_updates" if found.flavour == "mysql" else "log_slave_updates"
        told.append(
            f"{name} is OFF at the target: what is applied does not get into its binlog, so that "
            "no replica of it will have it"
        )
    if found.binlog_format == "STATEMENT" and found.log_bin:
        told.append(
            "binlog_format is STATEMENT at the target: the first change of rows would stop the "
            "apply; SET GLOBAL binlog_format = ROW"
        )
    return told


def _source_problems(
    found: TargetFacts, login: Login, server_uuids: Collection[str], address: Address | None
) -> list[RecoveryError]:
    refused = []
    if found.uuid.lower() in {uuid.lower() for uuid in server_uuids}:
        if found.flavour == "mysql":
            name, mend = "server_uuid", "stop it, delete auto.cnf in its data directory, set "
            mend += "another server_id, start it"
        else:
            name, mend = "server id and domain", "SET GLOBAL server_id to one that is not in use"
        refused.append(
            RecoveryError(
                f"the target, {found.address}, is the source, or a copy of its data directory: its "
                f"{name}, {found.uuid}, is that of a server whose binlogs are in the bucket",
                hint=f"a copy: {mend}; the source itself: --allow-source",
            )
        )
    if address is not None and _is_same(login, address):
        refused.append(
            RecoveryError(
                f"the target, {found.address}, is where the streamer's configuration has the "
                "source",
                hint="name the server that was restored from the backup; --allow-source if "
                "the source itself shall be brought forward",
            )
        )
    return refused


def _thread_problems(found: TargetFacts) -> list[RecoveryError]:
    refused = []
    hint = "--stop-target-threads stops it (it stays off)"
    if found.event_scheduler:
        refused.append(
            RecoveryError(
                f"the event scheduler of the target, {found.address}, is running: its events would "
                "write in between",
                hint=hint,
            )
        )
    if found.channels:
        named = ", ".join(repr(name) if name else "the default one" for name in found.channels)
        refused.append(
            RecoveryError(
                f"the target, {found.address}, is a replica that is running (channel: {named}): "
                "what it fetches would come in between",
                hint=hint,
            )
        )
    return refused


def _is_same(login: Login, address: Address) -> bool:
    """Whether both lead to one place, as far as names and numbers tell."""
    if login.socket:
        return address.socket is not None and _real(login.socket) == _real(str(address.socket))
    if address.host is None and address.port is None:
        return False
    ours = _addresses(login.host, login.port)
    return bool(ours & _addresses(address.host or "127.0.0.1", address.port or _PORT))


def _real(path: str) -> str:
    return os.path.realpath(path)


def _addresses(host: str, port: int) -> set[tuple[str, int]]:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return {(host.lower(), port)}
    names = {str(entry[4][0]).removeprefix("::ffff:") for entry in found}
    return {("127.0.0.1" if name == "::1" else name, port) for name in names} | {
        (host.lower(), port)
    }


def stop_threads(server: Server, found: TargetFacts) -> None:
    """Stop the event scheduler and the replica's threads, where they run."""
    if found.event_scheduler:
        server.rows("SET GLOBAL event_scheduler = OFF")
    if found.channels:
        if found.flavour == "mariadb":
            server.rows("STOP ALL SLAVES")
        else:
            modern = numbers(found.version) >= (8, 0, 22)
            server.rows("STOP REPLICA" if modern else "STOP SLAVE")


def disabled_events(server: Server) -> tuple[str, ...]:
    """Statements that enable the events that a replica has disabled, each with its definer."""
    rows = server.rows(
        "SELECT event_schema AS db, event_name AS name, definer AS definer "
        "FROM information_schema.events WHERE status NOT IN ('ENABLED', 'DISABLED') ORDER BY 1, 2"
    )
    found = []
    for row in rows:
        user, _, host = str(row["definer"]).rpartition("@")
        db, name, user, host = (_quoted(str(one)) for one in (row["db"], row["name"], user, host))
        found.append(f"ALTER DEFINER={user}@{host} EVENT {db}.{name} ENABLE;")
    return tuple(found)


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def commit_empty(server: Server, gtids: GtidSet) -> None:
    """Commit a transaction without content under each of these GTIDs, so that it is executed.

    Those that are executed already stay as they are.
    """
    server.close()  # a new connection: the old one may have been idle for hours
    try:
        for uuid, tag, intervals in gtids.runs():
            prefix = f"{uuid}:{tag}" if tag else uuid
            for first, last in intervals:
                for number in range(first, last + 1):
                    server.rows("SET SESSION gtid_next = %s", (f"{prefix}:{number}",))
                    server.rows("BEGIN")
                    server.rows("COMMIT")
        server.rows("SET SESSION gtid_next = 'AUTOMATIC'")
    finally:
        server.close()


def refuse_full_disk(server: Server, where: str) -> None:
    """Raises RecoveryError where the target waits for room: it does so without a word.

    Looks at its data and its binlogs, as far as they lie on this machine. Raises SourceError.
    """
    row = server.rows("SELECT @@datadir AS data, @@log_bin_basename AS binlog")[0]
    for path in (Path(str(row["data"])), Path(str(row["binlog"] or row["data"])).parent):
        with suppress(OSError):
            there = os.statvfs(path)
            if there.f_bavail * there.f_frsize < _LEAST_FREE:
                raise RecoveryError(
                    f"the target, {where}, stands still: the disk of {path} is full",
                    hint="free some space there; it goes on by itself then, and so does the same "
                    "command",
                )


def prove(found: Gtids, expected: Gtids, *, own_uuid: str = "") -> None:
    """See that a target has exactly these GTIDs. Raises RecoveryError with what differs."""
    if found == expected:
        return
    if not isinstance(found, GtidSet) or not isinstance(expected, GtidSet):
        raise RecoveryError(f"the target has {found} and should have {expected}")
    missing, extra = expected - found, found - expected
    told = []
    if missing:
        told.append(f"it lacks {gtids_text(missing, _MOST_SHOWN)}")
    if extra:
        told.append(f"it has {gtids_text(extra, _MOST_SHOWN)} besides")
    hint = "run the same command again: it applies what is missing" if missing else ""
    if extra:
        mine = any(uuid == own_uuid.lower() for uuid, _, _ in extra.runs())
        hint = "something wrote to the target meanwhile" + (
            ": these are its own transactions" if mine else ""
        )
        hint += ", so it is not what it was at that point; restore the base backup and run again"
    raise RecoveryError(
        f"the target is not where the plan says: {' and '.join(told)}",
        hint=hint,
    )


def numbers(version: str) -> tuple[int, ...]:
    """A version's numbers: (8, 0, 36)."""
    return tuple(int(number) for number in re.findall(r"\d+", version.partition("-")[0])[:3])
