"""Why a target must not become a replica as it is set; nothing where it may.

Place in the flow: `apply` asks here before anything is applied. Only questions, nothing is changed.

Law: whatever would leave out or change in silence what is applied, or would lose it in a crash that
its GTIDs survive, is found here, or the target is not touched.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress

from binlog2s3.errors import SourceError
from binlog2s3.recover.channel import CHANNEL, channel_of
from binlog2s3.recover.target import TargetFacts
from binlog2s3.server.connection import Server

_OLDEST = (8, 0, 26)  # the names of the variables
_SLOWEST_MS = 1000
_FILTERS = ("replicate_do_", "replicate_ignore_", "replicate_wild_", "replicate_rewrite_")
_WANTED = {
    "mysql": {
        "replica_skip_errors": "OFF",
        "replica_exec_mode": "STRICT",
        "sql_replica_skip_counter": "0",
        "relay_log_info_repository": "TABLE",
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
        "wsrep_on": "OFF",
    },
}
"""What the applier must be set to, so that it does what the binlogs say and nothing else."""


def obstacles(
    server: Server, facts: TargetFacts, *, server_ids: Collection[int], with_gtids: bool
) -> Iterator[str]:
    """Each as a sentence, for people. Raises SourceError.

    `server_ids`: of the servers that wrote the history, as far as they are known. `with_gtids`: the
    plan's transactions have GTIDs.
    """
    if facts.flavour == "mysql" and is_too_old(facts.version):
        yield f"it is of version {facts.version}; {'.'.join(map(str, _OLDEST))} is the oldest"
        return
    if facts.server_id in server_ids:
        yield (
            f"its server_id, {facts.server_id}, is that of a server that wrote these binlogs: a "
            "replica passes over what it takes for its own; SET GLOBAL server_id = N there, one "
            "that nobody had"
        )
    found = {
        str(row["Variable_name"]).lower(): str(row["Value"])
        for row in server.rows("SHOW GLOBAL VARIABLES")
    }
    yield from _in_settings(facts, found)
    if facts.flavour == "mysql":
        yield from _of_mysql(server, found, with_gtids=with_gtids)
    else:
        yield from _of_mariadb(server, found)
    state = channel_of(server, facts.flavour).state()
    if state is not None and not state.ours:
        yield f"it has a channel {CHANNEL!r} that is not of this program"


def is_too_old(version: str) -> bool:
    """Whether a MySQL of this version has other names for what is needed here."""
    return tuple(int(number) for number in re.findall(r"\d+", version)[:3]) < _OLDEST


def keeps_order(server: Server, facts: TargetFacts) -> bool:
    """Whether several workers commit in the source's order, so that one place tells how far."""
    if facts.flavour == "mariadb":
        return True  # within each domain; and its GTIDs tell
    found = server.rows("SELECT @@global.replica_preserve_commit_order AS it")[0]["it"]
    return bool(int(found))


def _in_settings(facts: TargetFacts, found: Mapping[str, str]) -> Iterator[str]:
    for name, wanted in _WANTED[facts.flavour].items():
        value = found.get(name, wanted)
        if value.upper() != wanted:
            yield f"{name} is {value!r} there, and has to be {wanted!r}"
    for name, value in sorted(found.items()):
        if value and name.startswith(_FILTERS):
            yield f"it would leave something out: {name} is {value!r}"
    if found.get("innodb_flush_log_at_trx_commit") == "0":
        yield (
            "innodb_flush_log_at_trx_commit is 0 there: a crash loses transactions that it would "
            "still claim to have; SET GLOBAL innodb_flush_log_at_trx_commit = 2"
        )


def _of_mysql(server: Server, found: Mapping[str, str], *, with_gtids: bool) -> Iterator[str]:
    period = found.get("replica_checkpoint_period", "300")
    if int(period) > _SLOWEST_MS:
        yield (
            f"it says only each {period} ms how far it is: SET GLOBAL replica_checkpoint_period = "
            "300"
        )
    if with_gtids and found.get("gtid_mode", "OFF").upper() == "OFF":
        yield (
            "gtid_mode is OFF there, and the transactions have GTIDs: SET GLOBAL gtid_mode = "
            "OFF_PERMISSIVE"
        )
    with suppress(SourceError):
        if server.rows(
            "SELECT 1 FROM performance_schema.replication_group_members "
            "WHERE MEMBER_STATE IN ('ONLINE', 'RECOVERING') LIMIT 1"
        ):
            yield "it is a member of a group (Group Replication): STOP GROUP_REPLICATION"


def _of_mariadb(server: Server, found: Mapping[str, str]) -> Iterator[str]:
    for row in server.rows(
        "SELECT table_name AS name, engine AS engine FROM information_schema.tables "
        "WHERE table_schema = 'mysql' AND table_name LIKE 'gtid\\_slave\\_pos%'"
    ):
        if str(row["engine"]) != "InnoDB":
            yield (
                f"mysql.{row['name']} is not in InnoDB but in {row['engine']}: how far it is "
                f"would not be kept with the transactions; ALTER TABLE mysql.{row['name']} "
                "ENGINE=InnoDB"
            )
    if found.get("gtid_strict_mode", "OFF").upper() in ("ON", "1") and found.get("gtid_binlog_pos"):
        yield (
            f"gtid_strict_mode is ON there, and its own binary log has {found['gtid_binlog_pos']}: "
            "it may refuse numbers that are lower; SET GLOBAL gtid_strict_mode = OFF, or RESET "
            "MASTER"
        )
