"""Why a MariaDB target cannot take binlogs as relay logs.

Place in the flow: `relay` asks here before anything is applied.

Law: whatever would silently leave out or change what is applied is found here, or the target is not
touched. All that it changes there for a look is changed back.
"""

from collections.abc import Collection
from pathlib import Path

from binlog2s3.errors import SourceError
from binlog2s3.recover.mariadb_channel import Channel, Reach
from binlog2s3.recover.target import CHANNEL, TargetFacts
from binlog2s3.server.connection import Server

_FILTERS = ("replicate_do_", "replicate_ignore_", "replicate_wild_", "replicate_rewrite_")
_WANTED = {
    "relay_log_purge": "ON",
    "init_slave": "",
    "slave_parallel_threads": "0",
    "slave_skip_errors": "OFF",
    "slave_exec_mode": "STRICT",
    "slave_run_triggers_for_rbr": "NO",
    "gtid_ignore_duplicates": "OFF",
    "replicate_events_marked_for_skip": "REPLICATE",
}
"""What the applier must be set to, so that it does what the binlogs say and nothing else."""


def obstacle(
    server: Server,
    found: TargetFacts,
    *,
    directory: Path | None,
    binlog_off: bool,
    server_ids: Collection[int],
) -> str | None:
    """See `relay.obstacle`."""
    if found.server_id in server_ids:
        return (
            f"its server_id, {found.server_id}, is that of a server that wrote the binlogs, and "
            "what comes from itself an applier leaves out; SET GLOBAL server_id to another"
        )
    try:
        return _settings(server, found, binlog_off=binlog_off) or _reach(server, directory)
    except SourceError as error:
        if not error.answered and "lacks the privilege" not in str(error):
            raise
        return f"it does not make a replica channel ({error})"


def _settings(server: Server, found: TargetFacts, *, binlog_off: bool) -> str | None:
    rows = server.rows("SHOW GLOBAL VARIABLES")
    now = {str(row["Variable_name"]).lower(): str(row["Value"]) for row in rows}
    logs_it = now["log_slave_updates"].upper() == "ON"
    if found.log_bin and not logs_it and not binlog_off:
        return (
            "log_slave_updates is OFF there, so that nothing of it would get into the target's "
            "binary log; --no-target-binlog does without that"
        )
    if found.log_bin and logs_it and binlog_off:
        return "log_slave_updates is ON there: its applier cannot be told to log nothing"
    for name, wanted in _WANTED.items():
        if now.get(name, wanted).upper() != wanted:
            return f"{name} is {now[name]!r} there, and has to be {wanted!r}"
    for name, value in sorted(now.items()):
        if value and name.startswith(_FILTERS):
            return f"its appliers leave something out: {name} is {value}"
    for row in server.rows(
        "SELECT table_name AS name, engine AS engine FROM information_schema.tables "
        "WHERE table_schema = 'mysql' AND table_name LIKE 'gtid\\_slave\\_pos%'"
    ):
        if str(row["engine"]) != "InnoDB":
            return (
                f"mysql.{row['name']} is not in InnoDB but in {row['engine']}: how far it is "
                "would not be kept with the transactions"
            )
    return None


def _reach(server: Server, directory: Path | None) -> str | None:
    """Also with a channel for a moment, unless one of ours is left there."""
    channel, reach = Channel(server), Reach.of(server, directory)
    if why := reach.unreachable():
        return why
    state = channel.state()
    if state is not None and not state.ours:
        return f"it has a replica channel {CHANNEL!r} already, from {state.host}"
    if state is not None:
        return reach.missing(state) or None
    reach.clear()
    try:
        return reach.missing(channel.create(reach)) or None
    except BaseException:
        server.close()  # it may be in the middle of an answer
        raise
    finally:
        reach.hide()
        if channel.state() is not None:
            channel.remove()
