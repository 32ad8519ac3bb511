"""Why nothing may be applied to a target as it is; what to warn of.

It only asks, and changes nothing.

Law: a server that may be the source, or that others write to, is refused. So is one with a setting
that would leave out or change what is applied without an error, or lose it in a crash although its
GTIDs survive.
"""

import os
import socket
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from binlog2s3.binlog.gtid import Flavour, GtidSet, MariadbGtidList
from binlog2s3.config.pitr import PitrConfig
from binlog2s3.errors import RecoveryError, SourceError
from binlog2s3.formatting import count_text, some
from binlog2s3.recover.channel import channel_of
from binlog2s3.recover.model import Plan
from binlog2s3.recover.target import CHANNEL, Target, TargetFacts
from binlog2s3.server.connection import Server
from binlog2s3.server.login import Login
from binlog2s3.server.omissions import in_galera
from binlog2s3.server.version import ServerVersion

_TITLE: dict[Flavour, str] = {"mysql": "MySQL", "mariadb": "MariaDB"}
_PORT = 3306
_SLOWEST_MS = 1000
_FILTERS = ("replicate_do_", "replicate_ignore_", "replicate_wild_", "replicate_rewrite_")
_WANTED = {
    "mysql": {
        "replica_skip_errors": "OFF",
        "replica_exec_mode": "STRICT",
        "sql_replica_skip_counter": "0",
        "relay_log_info_repository": "TABLE",
        "master_info_repository": "TABLE",
        "init_replica": "",
    },
    "mariadb": {
        "slave_skip_errors": "OFF",
        "slave_exec_mode": "STRICT",
        "sql_slave_skip_counter": "0",
        "init_slave": "",
        "slave_run_triggers_for_rbr": "NO",
        "gtid_ignore_duplicates": "OFF",
        "replicate_events_marked_for_skip": "REPLICATE",
    },
}
"""What these must be set to, so that the applier does what the binlogs say and nothing else."""
_NEEDS_RESTART = ("replica_skip_errors", "slave_skip_errors")


def problems(
    facts: TargetFacts,
    login: Login,
    config: PitrConfig,
    *,
    flavour: Flavour,
    server_uuids: Collection[str],
    is_scratch: bool = False,
) -> Iterator[RecoveryError]:
    """Why nothing may be applied to it; empty if it may.

    `flavour` is the history's, `server_uuids` are those of all servers that wrote to the bucket.
    """
    if facts.flavour != flavour:
        yield facts.refusal(
            f"is {_TITLE[facts.flavour]} {facts.version}; the binlogs are {_TITLE[flavour]}'s",
            "apply them to a server of their own flavour",
        )
    if not config.allow_source:
        yield from _source_problems(facts, login, server_uuids, config)
    if facts.read_only or facts.super_read_only:
        which = "super_read_only" if facts.super_read_only else "read_only"
        both = "super_read_only = OFF, " if facts.flavour == "mysql" else ""
        yield facts.refusal(
            f"is read-only ({which} is ON): perhaps it must not be changed",
            f"if it is the right server: SET GLOBAL {both}read_only = OFF",
        )
    if facts.transaction_read_only:
        name = "transaction_read_only" if facts.flavour == "mysql" else "tx_read_only"
        yield facts.refusal(
            f"begins each transaction as a read-only one ({name} is ON)",
            f"if it is the right server: SET GLOBAL {name} = OFF",
        )
    if not config.stop_target_threads:
        yield from _thread_problems(facts)
    if not facts.checks_accounts:
        yield facts.refusal(
            "was started with --skip-grant-tables: it refuses CREATE USER, GRANT and the like, "
            "which the history may have",
            "restart it without that option; if no password of its accounts is known, start it "
            "with an --init-file of SET sql_log_bin = 0; ALTER USER ...;",
        )
    if facts.unloaded and not is_scratch:
        yield _unloaded(facts)
    is_empty = facts.executed is not None and not facts.executed
    if not config.tells_start and facts.tables and is_empty:
        yield facts.refusal(
            f"has {count_text(facts.tables, 'table')} but no GTIDs: was --from-backup forgotten?",
            "say where the base backup ends: --from-backup PATH; if these tables are not of a base "
            "backup, and everything from the first binlog on is to be applied: --from-binlog NAME "
            "--from-position 4",
        )
    if facts.missing_privileges:
        yield RecoveryError(
            f"the account {login.user!r} at the target is missing the privilege "
            f"{', '.join(facts.missing_privileges)}",
            hint=facts.grants,
        )


def _source_problems(
    facts: TargetFacts, login: Login, server_uuids: Collection[str], config: PitrConfig
) -> Iterator[RecoveryError]:
    if facts.uuid.lower() in {uuid.lower() for uuid in server_uuids}:
        if facts.flavour == "mysql":
            name = "server_uuid"
            copy = "stop it, delete auto.cnf in its data directory, set another server_id, start it"
        else:
            name, copy = "server id and domain", "SET GLOBAL server_id to one that is not in use"
        yield facts.refusal(
            f"is the source, or a copy of its data directory: its {name}, {facts.uuid}, is that of "
            "a server whose binlogs are in the bucket",
            f"if it is a copy: {copy}; if it is the source itself, name the server that was "
            "restored from the backup instead (--allow-source is for a source that was restored "
            "in place)",
        )
    source = config.source_address
    if source is not None and _is_same(login, source.host, source.port, source.socket):
        yield facts.refusal(
            "is the source of the streamer's configuration",
            "name the server that was restored from the backup; --allow-source applies to the "
            "source itself",
        )


def _unloaded(facts: TargetFacts) -> RecoveryError:
    return facts.refusal(
        f"has not loaded the functions of its table mysql.func: {some(facts.unloaded)}; a dump "
        "brought them after its start, and statements that use, create or drop them would fail or "
        "be lost",
        "restart it, with their libraries in its plugin_dir; or, if they are not needed: SET "
        "sql_log_bin = 0; DELETE FROM mysql.func",
    )


def _thread_problems(facts: TargetFacts) -> Iterator[RecoveryError]:
    hint = "--stop-target-threads stops it (it stays off)"
    if facts.event_scheduler:
        yield facts.refusal("runs its event scheduler: events would write in between", hint)
    if facts.channels:
        named = ", ".join(repr(name) if name else "the default one" for name in facts.channels)
        yield facts.refusal(
            f"is a running replica (channel: {named}): what it receives would come in between",
            hint,
        )


def _is_same(login: Login, host: str | None, port: int | None, at: Path | None) -> bool:
    """Whether both are the same address, as far as names and numbers tell. `at`: a socket."""
    if login.socket:
        return at is not None and os.path.realpath(login.socket) == os.path.realpath(at)
    if host is None and port is None:
        return False
    ours = _addresses(login.host, login.port)
    return bool(ours & _addresses(host or "127.0.0.1", port or _PORT))


def _addresses(host: str, port: int) -> set[tuple[str, int]]:
    try:
        entries = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return {(host.lower(), port)}
    names = {str(entry[4][0]).removeprefix("::ffff:") for entry in entries}
    return {("127.0.0.1" if name == "::1" else name, port) for name in names} | {
        (host.lower(), port)
    }


def warnings(facts: TargetFacts, *, server_version: str, is_scratch: bool = False) -> list[str]:
    """What to warn of before the apply. A scratch server has no replicas, and no life after it."""
    texts = []
    if facts.unloaded and is_scratch:
        texts.append(str(_unloaded(facts)))
    if facts.flavour == "mariadb" and facts.release.is_older(ServerVersion(server_version)):
        texts.append(
            f"the target is of version {facts.version}, older than the binlogs' "
            f"{server_version}: statements of the newer one may fail there"
        )
    if facts.not_transactional and not is_scratch:
        texts.append(
            f"the target has {count_text(len(facts.not_transactional), 'table')} without "
            f"transactions: {some(facts.not_transactional)}; if it crashes meanwhile, it is "
            "unknown which rows reached them"
        )
    if facts.log_bin and not facts.logs_replicated and not is_scratch:
        name = "log_replica_updates" if facts.flavour == "mysql" else "log_slave_updates"
        texts.append(
            f"{name} is OFF at the target: what is applied is not written to its binlog, so its "
            "replicas do not get it"
        )
    if facts.binlog_format == "STATEMENT" and facts.log_bin:
        texts.append(
            "binlog_format is STATEMENT at the target: the first change of rows would stop the "
            "apply; SET GLOBAL binlog_format = ROW"
        )
    return texts


def obstacles(
    target: Target,
    plan: Plan,
    *,
    server_ids: Collection[int],
) -> Iterator[RecoveryError]:
    """Why it cannot be a replica of this plan; empty if it can. Raises SourceError.

    `server_ids`: of the servers that wrote the history, as far as they are known.
    """
    for why, hint in _obstacles(target, plan, server_ids):
        yield target.facts.refusal(f"cannot be a replica: {why}", hint)


def _obstacles(
    target: Target,
    plan: Plan,
    server_ids: Collection[int],
) -> Iterator[tuple[str, str]]:
    """Each as (why, what to do)."""
    server, facts = target.server, target.facts
    if not facts.release.has_channels:
        yield (f"it is of version {facts.version}", "MySQL 5.7 is the oldest that can")
        return
    if facts.flavour == "mysql" and facts.release.is_older(ServerVersion(plan.server_version)):
        # https://dev.mysql.com/doc/refman/8.4/en/replication-compatibility.html
        yield (
            (
                f"it is of version {facts.version}, and the binlogs are of {plan.server_version}: "
                "MySQL does not support a replica of an older series"
            ),
            (
                "restore the base backup into a server of the binlogs' version or a later one; or "
                "--output-dir, to apply the binlogs by hand at your own risk"
            ),
        )
        return
    if in_galera(server):
        yield (
            (
                "it is in a Galera cluster: its other nodes would get what is applied, or differ "
                "from it"
            ),
            (
                "recover into a server outside of the cluster, or take this one out of it: remove "
                "wsrep_on from its configuration, and restart it"
            ),
        )
    if facts.server_id in server_ids:
        yield (
            (
                f"its server_id, {facts.server_id}, is that of a server that wrote these binlogs: "
                "a replica skips events with its own server_id"
            ),
            "SET GLOBAL server_id = N there, with a number that no server of the archive had",
        )
    rows = server.rows("SHOW GLOBAL VARIABLES")
    variables = {str(row["Variable_name"]).lower(): str(row["Value"]) for row in rows}
    if facts.flavour == "mysql":
        variables = {
            name.replace("slave", "replica"): value for name, value in variables.items()
        } | variables
    yield from _in_settings(facts, variables)
    if facts.flavour == "mysql":
        yield from _in_gtids(facts, variables, plan)
        yield from _of_mysql(server, variables)
    else:
        yield from _of_mariadb(server, variables, plan)
    channel = None if facts.missing_privileges else channel_of(target).state()
    if channel is not None and not channel.ours:
        yield (
            f"it has a channel {CHANNEL!r} that this program did not make",
            "remove that channel there",
        )


def _in_settings(facts: TargetFacts, variables: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for name, wanted in _WANTED[facts.flavour].items():
        value = variables.get(name, wanted)
        if value.upper() not in (wanted, "" if wanted == "OFF" else wanted):
            yield f"{name} is {value!r} there", _setting(facts, name, wanted)
    for name, value in sorted(variables.items()):
        if value and name.startswith(_FILTERS):
            yield (
                f"it would leave something out: {name} is {value!r}",
                "remove that filter for the time of the recovery",
            )
    if variables.get("innodb_flush_log_at_trx_commit") == "0":
        yield (
            (
                "innodb_flush_log_at_trx_commit is 0 there: a crash would lose transactions, but "
                "not their GTIDs"
            ),
            "SET GLOBAL innodb_flush_log_at_trx_commit = 2",
        )


def _setting(facts: TargetFacts, name: str, wanted: str) -> str:
    """How to set it there."""
    if facts.flavour == "mysql" and not facts.release.says_replica:
        name = name.replace("replica", "slave")
    if name in _NEEDS_RESTART:
        return f"remove {name} from the server's configuration, and restart it"
    value = wanted if wanted.isdecimal() else repr(wanted)
    return f"SET GLOBAL {name} = {value} there"


def _in_gtids(
    facts: TargetFacts, variables: Mapping[str, str], plan: Plan
) -> Iterator[tuple[str, str]]:
    sets = [piece.gtids for piece in plan.pieces if isinstance(piece.gtids, GtidSet)]
    anonymous = plan.transactions - sum(gtids.count for gtids in sets)
    mode = variables.get("gtid_mode", "OFF").upper()
    if anonymous and mode == "ON":
        yield (
            f"{anonymous} of the transactions have no GTID, which it refuses (gtid_mode is ON)",
            (
                "SET GLOBAL gtid_mode = ON_PERMISSIVE there, then OFF_PERMISSIVE, for the time of "
                "the recovery"
            ),
        )
    if any(sets) and mode == "OFF":
        yield (
            "gtid_mode is OFF there, and the transactions have GTIDs",
            "SET GLOBAL gtid_mode = OFF_PERMISSIVE",
        )
    is_tagged = any(tag for gtids in sets for _, tag, _ in gtids.runs())
    if is_tagged and not facts.release.reads_tags:
        yield (
            f"it is of version {facts.version}, which cannot read GTIDs with tags",
            "restore the base backup into a server of the archived version",
        )


def _of_mysql(server: Server, variables: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    period = variables.get("replica_checkpoint_period", "300")
    if int(period) > _SLOWEST_MS:
        yield (
            f"it reports its position only every {period} ms",
            "SET GLOBAL replica_checkpoint_period = 300",
        )
    with suppress(SourceError):
        if server.rows(
            "SELECT 1 FROM performance_schema.replication_group_members "
            "WHERE MEMBER_STATE IN ('ONLINE', 'RECOVERING') LIMIT 1"
        ):
            yield ("it is a member of a group (Group Replication)", "STOP GROUP_REPLICATION there")


def _of_mariadb(
    server: Server, variables: Mapping[str, str], plan: Plan
) -> Iterator[tuple[str, str]]:
    for row in server.rows(
        "SELECT table_name AS name, engine AS engine FROM information_schema.tables "
        "WHERE table_schema = 'mysql' AND table_name LIKE 'gtid\\_slave\\_pos%'"
    ):
        if str(row["engine"]) != "InnoDB":
            yield (
                (
                    f"mysql.{row['name']} is not in InnoDB but in {row['engine']}: its position "
                    "would not be committed with the transactions"
                ),
                f"ALTER TABLE mysql.{row['name']} ENGINE=InnoDB",
            )
    begins = plan.begins_behind or MariadbGtidList()
    lists = [piece.gtids for piece in plan.pieces if isinstance(piece.gtids, MariadbGtidList)]
    planned = {(domain, wrote) for gtids in lists for domain, wrote, _ in gtids.gtids()}
    is_strict = variables.get("gtid_strict_mode", "OFF").upper() in ("ON", "1")
    for domain, wrote, number in MariadbGtidList.parse(
        variables.get("gtid_binlog_pos", "")
    ).gtids():
        if number <= begins.greatest(domain):
            continue
        if plan.begins_behind is not None and (domain, wrote) in planned:
            yield (
                (
                    f"its own binary log has {domain}-{wrote}-{number} already: an earlier run "
                    "applied it, and this run would apply it a second time"
                ),
                (
                    "restore the base backup again, into a server whose binary log is empty (RESET "
                    "MASTER before the backup is restored)"
                ),
            )
        elif is_strict and any(domain == other for other, _ in planned):
            yield (
                (
                    "gtid_strict_mode is ON there, and its own binary log ends with "
                    f"{domain}-{wrote}-{number}: it refuses every GTID of domain {domain} that is "
                    f"not greater, and the plan continues after number {begins.greatest(domain)}"
                ),
                "SET GLOBAL gtid_strict_mode = OFF there; or RESET MASTER, if its binlogs may go",
            )
