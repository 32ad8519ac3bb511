"""The fast way of applying: the target's own applier takes the binlogs as relay logs.

Place in the flow: `pitr` asks here whether it can be had, settles what a run that was cut off has
left, and hands in the stream of checked bytes, as it does to `pipe`. `relay_mysql` and
`relay_mariadb` do it, each for its flavour.

Law: whoever asks for it gets all of the plan applied and nothing else, or an error that says how
far it is; no moment of a crash, of this process, of the server or of both, loses where it stands.
"""

from collections.abc import Collection
from pathlib import Path

from binlog2s3.recover import mariadb_obstacle, relay_mariadb, relay_mysql, relay_obstacle
from binlog2s3.recover.relay_mysql import BATCH_BYTES, LeftOver, OnPlace
from binlog2s3.recover.relay_obstacle import is_too_old
from binlog2s3.recover.target import TargetFacts
from binlog2s3.server.connection import Server
from binlog2s3.server.login import Login

Way = relay_mysql.Relay | relay_mariadb.Relay
"""One apply to one target, as `pipe.Pipe` is."""


def left_over(server: Server, found: TargetFacts) -> LeftOver | None:
    """What a run that was cut off has left; None where nothing. Changes nothing.

    A channel of that name that is not ours is none: `obstacle` speaks of it. Raises SourceError.
    """
    if not _may_have_one(found):
        return None
    if found.flavour == "mysql":
        return relay_mysql.left_over(server, found)
    other = relay_mariadb.left_over(server, found)
    return None if other is None else LeftOver(running=other.running, place=other.place)


def halt(server: Server, found: TargetFacts) -> LeftOver | None:
    """Stop the applier that was left; what is left then, not running. `place` is exact.

    Without GTIDs keep `place` durably (in the marker) before `settle`, and begin there.
    Raises RecoveryError where it does not stop because it is within a long transaction.
    """
    if not _may_have_one(found):
        return None
    if found.flavour == "mysql":
        return relay_mysql.halt(server, found)
    relay_mariadb.halt(server, found)
    return left_over(server, found)


def settle(server: Server, found: TargetFacts, *, directory: Path | None) -> None:
    """Remove the channel that was left, and its files. Does nothing where there is none.

    `directory`: --target-relay-log-dir. Files that the server does not know of yet are removed
    where they are within reach.
    """
    if not _may_have_one(found):
        return
    side = relay_mysql if found.flavour == "mysql" else relay_mariadb
    side.settle(server, found, directory=directory)


def _may_have_one(found: TargetFacts) -> bool:
    """Whether this target can have a channel of ours, and its account may ask for it."""
    return not found.lacks and not (found.flavour == "mysql" and is_too_old(found.version))


def obstacle(
    server: Server,
    found: TargetFacts,
    *,
    directory: Path | None,
    binlog_off: bool,
    server_ids: Collection[int],
    with_gtids: bool = False,
) -> str | None:
    """Why the relay-log apply cannot be had at this target, for people; None where it can.

    `directory`: --target-relay-log-dir. `server_ids`: of the servers that wrote the history, as far
    as they are known. `with_gtids`: the plan's transactions have GTIDs. To see whether the
    directory is the server's, it makes the channel and removes it again; where a run that was cut
    off has left one, that one stays.
    """
    if found.flavour == "mariadb":
        return mariadb_obstacle.obstacle(
            server, found, directory=directory, binlog_off=binlog_off, server_ids=server_ids
        )
    return relay_obstacle.find(
        server,
        found,
        directory=directory,
        binlog_off=binlog_off,
        server_ids=server_ids,
        with_gtids=with_gtids,
    )


def way(
    server: Server,
    login: Login,
    found: TargetFacts,
    *,
    directory: Path | None,
    size: int,
    transactions: int,
    batch_bytes: int = BATCH_BYTES,
    on_place: OnPlace = lambda _place: None,
) -> Way:
    """One apply to this target, as its flavour needs it; see `relay_mysql.Relay`."""
    made = relay_mysql.Relay if found.flavour == "mysql" else relay_mariadb.Relay
    return made(
        server,
        login,
        found,
        directory=directory,
        size=size,
        transactions=transactions,
        batch_bytes=batch_bytes,
        on_place=on_place,
    )
