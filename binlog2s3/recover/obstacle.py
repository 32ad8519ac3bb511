"""Why a target must not become a replica of a plan as it is set; nothing where it may.

Place in the flow: `apply` asks here before anything is applied. Only questions, nothing is changed.

Law: whatever would leave out or change in silence what is applied, or would lose it in a crash that
its GTIDs survive, is found here, or the target is not touched.
"""

from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from typing import NamedTuple

from binlog2s3.binlog.gtid import GtidSet, MariadbGtidList
from binlog2s3.errors import SourceError
from binlog2s3.recover.channel import channel_of
from binlog2s3.recover.model import Plan
from binlog2s3.recover.target import CHANNEL, TargetFacts, numbers
from binlog2s3.server.connection import Server

_OLDEST = (5, 7)  # the first with channels
_READS_TAGS = (8, 3)
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


class Obstacle(NamedTuple):
    """Why, and what to do, for people."""

    why: str
    hint: str


def obstacles(
    server: Server,
    facts: TargetFacts,
    plan: Plan,
    *,
    server_ids: Collection[int],
    state: MariadbGtidList | None = None,
) -> Iterator[Obstacle]:
    """All that there are. Raises SourceError.

    `server_ids`: of the servers that wrote the history, as far as they are known. `state`: what a
    MariaDB has before the plan.
    """
    if facts.flavour == "mysql" and numbers(facts.version) < _OLDEST:
        yield Obstacle(f"it is of version {facts.version}", "5.7 is the oldest that can be one")
        return
    if facts.server_id in server_ids:
        yield Obstacle(
            f"its server_id, {facts.server_id}, is that of a server that wrote these binlogs: a "
            "replica passes over what it takes for its own",
            "SET GLOBAL server_id = N there, one that nobody had",
        )
    rows = server.rows("SHOW GLOBAL VARIABLES")
    found = {str(row["Variable_name"]).lower(): str(row["Value"]) for row in rows}
    if facts.flavour == "mysql":
        found = {name.replace("slave", "replica"): value for name, value in found.items()} | found
    yield from _in_settings(facts, found)
    if facts.flavour == "mysql":
        yield from _in_gtids(facts, found, plan)
        yield from _of_mysql(server, found)
    else:
        yield from _of_mariadb(server, found, plan, state)
    there = channel_of(server, facts).state()
    if there is not None and not there.ours:
        yield Obstacle(
            f"it has a channel {CHANNEL!r} that is not of this program", "remove that channel there"
        )


def _in_settings(facts: TargetFacts, found: Mapping[str, str]) -> Iterator[Obstacle]:
    for name, wanted in _WANTED[facts.flavour].items():
        value = found.get(name, wanted)
        if value.upper() not in (wanted, "" if wanted == "OFF" else wanted):
            yield Obstacle(
                f"{name} is {value!r} there", f"it has to be {wanted!r}; some need a restart"
            )
    for name, value in sorted(found.items()):
        if value and name.startswith(_FILTERS):
            yield Obstacle(
                f"it would leave something out: {name} is {value!r}",
                "take that filter away for the time of the recovery",
            )
    if found.get("innodb_flush_log_at_trx_commit") == "0":
        yield Obstacle(
            "innodb_flush_log_at_trx_commit is 0 there: a crash loses transactions that it would "
            "still claim to have",
            "SET GLOBAL innodb_flush_log_at_trx_commit = 2",
        )


def _in_gtids(facts: TargetFacts, found: Mapping[str, str], plan: Plan) -> Iterator[Obstacle]:
    sets = [piece.gtids for piece in plan.pieces if isinstance(piece.gtids, GtidSet)]
    anonymous = plan.transactions - sum(one.count for one in sets)
    mode = found.get("gtid_mode", "OFF").upper()
    if anonymous and mode == "ON":
        yield Obstacle(
            f"{anonymous} of the transactions have no GTID, and it takes none such (gtid_mode is "
            "ON)",
            "SET GLOBAL gtid_mode = ON_PERMISSIVE there, and OFF_PERMISSIVE, for the time of the "
            "recovery",
        )
    if any(sets) and mode == "OFF":
        yield Obstacle(
            "gtid_mode is OFF there, and the transactions have GTIDs",
            "SET GLOBAL gtid_mode = OFF_PERMISSIVE",
        )
    is_tagged = any(tag for one in sets for _, tag, _ in one.runs())
    if is_tagged and numbers(facts.version) < _READS_TAGS:
        yield Obstacle(
            f"it is of version {facts.version}, which cannot read GTIDs with tags",
            "restore the base backup into a server of the archived version",
        )


def _of_mysql(server: Server, found: Mapping[str, str]) -> Iterator[Obstacle]:
    period = found.get("replica_checkpoint_period", "300")
    if int(period) > _SLOWEST_MS:
        yield Obstacle(
            f"it says only each {period} ms how far it is",
            "SET GLOBAL replica_checkpoint_period = 300",
        )
    with suppress(SourceError):
        if server.rows(
            "SELECT 1 FROM performance_schema.replication_group_members "
            "WHERE MEMBER_STATE IN ('ONLINE', 'RECOVERING') LIMIT 1"
        ):
            yield Obstacle(
                "it is a member of a group (Group Replication)", "STOP GROUP_REPLICATION there"
            )


def _of_mariadb(
    server: Server, found: Mapping[str, str], plan: Plan, state: MariadbGtidList | None
) -> Iterator[Obstacle]:
    for row in server.rows(
        "SELECT table_name AS name, engine AS engine FROM information_schema.tables "
        "WHERE table_schema = 'mysql' AND table_name LIKE 'gtid\\_slave\\_pos%'"
    ):
        if str(row["engine"]) != "InnoDB":
            yield Obstacle(
                f"mysql.{row['name']} is not in InnoDB but in {row['engine']}: how far it is "
                "would not be kept with the transactions",
                f"ALTER TABLE mysql.{row['name']} ENGINE=InnoDB",
            )
    begins: dict[int, int] = {}
    for domain, _, number in state.gtids() if state is not None else ():
        begins[domain] = max(number, begins.get(domain, 0))
    lists = [one.gtids for one in plan.pieces if isinstance(one.gtids, MariadbGtidList)]
    planned = {(domain, wrote) for one in lists for domain, wrote, _ in one.gtids()}
    is_strict = found.get("gtid_strict_mode", "OFF").upper() in ("ON", "1")
    for domain, wrote, number in MariadbGtidList.parse(found.get("gtid_binlog_pos", "")).gtids():
        if number <= begins.get(domain, 0):
            continue
        if state is not None and (domain, wrote) in planned:
            yield Obstacle(
                f"its own binary log has {domain}-{wrote}-{number} already: an earlier run brought "
                "it there, and what that run applied would be applied twice",
                "restore the base backup again, into a server whose binary log is empty (RESET "
                "MASTER before the backup is restored)",
            )
        elif is_strict and any(domain == one for one, _ in planned):
            yield Obstacle(
                f"gtid_strict_mode is ON there, and its own binary log has {number} in domain "
                f"{domain}, where {begins.get(domain, 0)} comes before the plan",
                "SET GLOBAL gtid_strict_mode = OFF there, or RESET MASTER",
            )
