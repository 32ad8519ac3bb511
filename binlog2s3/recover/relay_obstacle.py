"""Why a target cannot take binlogs as relay logs; empty where it can.

Place in the flow: `relay.obstacle` asks here before anything is applied.

Law: whatever would silently leave out or change what is applied is found here, or the target is
not touched: filters, errors that are passed over, a server_id of its own.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path, PurePosixPath

from binlog2s3.errors import SourceError
from binlog2s3.recover.relay_channel import HOST, NAME, Channel
from binlog2s3.recover.relay_files import RelayFiles
from binlog2s3.recover.target import TargetFacts
from binlog2s3.server.connection import Server

_OLDEST = (8, 0, 26)  # the names of the variables
_SLOWEST_MS = 1000
_PROBES = {
    f"FLUSH LOCAL RELAY LOGS FOR CHANNEL '{NAME}_none'": "RELOAD",
    "SHOW REPLICA STATUS": "REPLICATION CLIENT",
    "SET SESSION sql_log_bin = 1": "SESSION_VARIABLES_ADMIN",
    "SELECT 1 FROM performance_schema.replication_applier_status_by_worker LIMIT 1": (
        "SELECT ON performance_schema.replication_applier_status_by_worker"
    ),
}
_PLACES = {
    f"SELECT Master_log_name FROM mysql.{table} LIMIT 1": f"SELECT ON mysql.{table}"  # noqa: S608
    for table in ("slave_worker_info", "slave_relay_log_info")
}
_NAMES = (
    "replica_skip_errors",
    "replica_exec_mode",
    "sql_replica_skip_counter",
    "replica_checkpoint_period",
    "relay_log_info_repository",
    "init_replica",
    "log_replica_updates",
    "gtid_mode",
    "server_id",
    "relay_log_basename",
    "relay_log_index",
    "relay_log_purge",
    "datadir",
    "replica_preserve_commit_order",
    "replica_parallel_workers",
)


def settings(server: Server) -> dict[str, str]:
    """The target's variables that matter here, those that it has."""
    named = ", ".join(f"'{name}'" for name in _NAMES)
    rows = server.rows(f"SHOW GLOBAL VARIABLES WHERE Variable_name IN ({named})")
    return {str(row["Variable_name"]): str(row["Value"]) for row in rows}


def files_of(found: Mapping[str, str], directory: Path | None) -> RelayFiles:
    """Where the channel's files lie, by the target's variables."""
    basename, index = (
        str(PurePosixPath(found["datadir"], found[name]))
        for name in ("relay_log_basename", "relay_log_index")
    )
    return RelayFiles.of(basename, index, NAME, directory)


def several_workers(found: Mapping[str, str]) -> int | None:
    """How many workers it has, where they do not keep the order of commits; else None."""
    workers = int(found["replica_parallel_workers"])
    in_order = found["replica_preserve_commit_order"].upper() in ("ON", "1")
    return None if in_order or workers <= 1 else workers


def is_too_old(version: str) -> bool:
    """Whether a server of this version has other names for what is needed here."""
    return tuple(int(number) for number in re.findall(r"\d+", version)[:3]) < _OLDEST


def find(
    server: Server,
    facts: TargetFacts,
    *,
    directory: Path | None,
    binlog_off: bool,
    server_ids: Collection[int],
    with_gtids: bool,
) -> str | None:
    """The first that there is, as a sentence. Raises SourceError."""
    if facts.flavour != "mysql":
        return "it is no MySQL"
    if is_too_old(facts.version):
        return f"it is of version {facts.version}; {'.'.join(map(str, _OLDEST))} is the oldest"
    lacks = list(_lacking(server, gtid_mode=facts.gtid_mode))
    if lacks:
        return f"its account lacks {', '.join(lacks)}"
    found = settings(server)
    for reason in (
        *_in_settings(found),
        *_in_logging(facts, found, binlog_off=binlog_off, with_gtids=with_gtids),
        *_in_ids(int(found["server_id"]), server_ids),
    ):
        return reason
    return _within_reach(server, files_of(found, directory), found)


def _lacking(server: Server, *, gtid_mode: bool) -> Iterator[str]:
    probes = _PROBES if gtid_mode else _PROBES | _PLACES
    for statement, privilege in probes.items():
        try:
            server.rows(statement)
        except SourceError as error:
            if re.search(r"lacks the privilege|denied", str(error)):
                yield privilege
            elif not error.answered:
                raise


def _in_settings(found: Mapping[str, str]) -> Iterator[str]:
    """What would leave something out, or hide how far it is."""
    skips = found.get("replica_skip_errors", "OFF")
    if skips.upper() not in ("OFF", ""):
        yield (
            f"it passes over errors (replica_skip_errors = {skips}): start it without that option"
        )
    if (mode := found.get("replica_exec_mode", "STRICT").upper()) != "STRICT":
        yield f"replica_exec_mode is {mode} there: SET GLOBAL replica_exec_mode = 'STRICT'"
    if (skip := found.get("sql_replica_skip_counter", "0")) != "0":
        yield f"sql_replica_skip_counter is {skip} there: SET GLOBAL sql_replica_skip_counter = 0"
    period = found.get("replica_checkpoint_period", "300")
    if int(period) > _SLOWEST_MS:
        yield (
            f"it says only each {period} ms how far it is: SET GLOBAL replica_checkpoint_period = "
            "300"
        )
    if found.get("relay_log_info_repository", "TABLE").upper() != "TABLE":
        yield "relay_log_info_repository is FILE there, which no crash survives"
    if said := found.get("init_replica"):
        yield f"its applier begins with a statement of its own (init_replica = {said!r})"


def _in_logging(
    facts: TargetFacts, found: Mapping[str, str], *, binlog_off: bool, with_gtids: bool
) -> Iterator[str]:
    """The applier writes its binlog as log_replica_updates says, whatever is wanted."""
    logs = found.get("log_replica_updates", "ON").upper() in ("ON", "1")
    if facts.log_bin and logs and binlog_off:
        yield "log_replica_updates is ON there: what is applied this way goes into its binlog"
    if facts.log_bin and not logs and not binlog_off:
        yield (
            "log_replica_updates is OFF there: what is applied this way would lack in its binlog "
            "(--no-target-binlog says that it may)"
        )
    if with_gtids and found.get("gtid_mode", "OFF").upper() == "OFF":
        yield "gtid_mode is OFF there, and the transactions have GTIDs"


def _in_ids(own: int, server_ids: Collection[int]) -> Iterator[str]:
    if own in server_ids:
        yield (
            f"its server_id, {own}, is that of a server that wrote these binlogs, whose events its "
            "applier would pass over without a word: SET GLOBAL server_id = N there, one that "
            "nobody had"
        )


def _within_reach(server: Server, files: RelayFiles, found: Mapping[str, str]) -> str | None:
    """Whether what the server writes there appears here, and the channel filters nothing."""
    if str(Path(found["relay_log_index"]).parent) != str(Path(found["relay_log_basename"]).parent):
        return "its relay logs and their index lie in two directories"
    if why := files.unreachable():
        return f"{why}: --target-relay-log-dir names the directory as it is seen from here"
    channel = Channel(server)
    state = channel.state()
    if state is not None and not state.ours:
        return (
            f"it has a channel {NAME!r} that is not of this program (its source is not {HOST}): "
            f"RESET REPLICA ALL FOR CHANNEL '{NAME}' removes it"
        )
    if state is not None:  # a run that was cut off has left it: it is removed before the apply
        before = files.numbered()
        channel.rotate()
        return None if files.appeared(before) else _not_its(files)
    return _tried(server, channel, files)


def _tried(server: Server, channel: Channel, files: RelayFiles) -> str | None:
    """Make the channel, look, and remove it.

    What lies there of a channel that a crash has left half made is in its way, but goes with it.
    """
    was_there = files.index.exists()
    why = _try(server, channel, files)
    if why is not None and was_there and not files.index.exists():
        return _try(server, channel, files)
    return why


def _try(server: Server, channel: Channel, files: RelayFiles) -> str | None:
    before = files.numbered()
    try:
        channel.create("nothing", 4, workers=None)
        state = channel.state()
        if state is None:
            return f"it made no channel {NAME!r}"
        if state.filters:
            return f"it filters what is applied ({'; '.join(state.filters)})"
        if not files.appeared(before):
            return _not_its(files)
    except SourceError as error:
        if "lacks the privilege" in str(error):
            return "its account lacks REPLICATION_SLAVE_ADMIN"
        if not error.answered:
            raise
        if channel.state() is None and files.appeared(before):
            files.remove(numbered=True)
            files.unlink([files.index])
        return f"it makes no replica channel ({error})"
    except BaseException:
        server.close()  # it may be in the middle of an answer
        raise
    finally:
        put_away(channel, files)
    return None


def put_away(channel: Channel, files: RelayFiles) -> None:
    """Remove the channel, which is stopped, and what is left of its files where they are here.

    Among them are such that its index does not know: a crash came in between. They are its own if
    the index goes with the channel. It is told to write nothing: the disk may be full.
    """
    state = channel.state()
    if state is None or not state.ours:
        return
    was_there = files.index.exists()
    channel.remove()
    files.remove(numbered=was_there and not files.index.exists())


def _not_its(files: RelayFiles) -> str:
    return (
        f"its relay log directory, {files.seen_as}, is not {files.path} here: what the server "
        "writes there does not appear"
    )
