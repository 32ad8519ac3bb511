"""What a server says that its binlogs do not have: filters, and what is written without a binlog.

What a session writes with sql_log_bin = 0 cannot be asked for: no server knows it.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from binlog2s3.binlog.gtid import GtidSet
from binlog2s3.errors import SourceError
from binlog2s3.server.connection import Server
from binlog2s3.server.replica import is_running_replica, replica_rows
from binlog2s3.server.version import is_on

_UPDATES = ("log_replica_updates", "log_slave_updates")
_NDB = "ndb_log_bin"
_ERROR_ACTION = "binlog_error_action"
_PURGED = "gtid_purged"
IGNORES = f"{_ERROR_ACTION}=IGNORE_ERROR"
"""The server goes on without a binlog if it cannot write it."""
FILTERS = tuple(
    f"replicate_{name}"
    for name in ("do_db", "ignore_db", "do_table", "ignore_table", "wild_do_table",
                 "wild_ignore_table")
)  # fmt: skip
"""A replica's filters: variables of MariaDB, columns of SHOW REPLICA STATUS of MySQL."""
VARIABLES = (*_UPDATES, _NDB, _ERROR_ACTION, *FILTERS)
_MOST, _MOST_TEXT, _MOST_GTIDS = 20, 500, 64 << 10
Rows = Sequence[Mapping[str, Any]]


def omissions(server: Server) -> tuple[str, ...] | None:
    """What is not in the server's binlogs, each as `setting=value`; None if it cannot be asked.

    Raises SourceError only if the server does not answer.
    """
    named = ", ".join(f"'{name}'" for name in VARIABLES)
    rows = _asked(lambda: server.rows(f"SHOW GLOBAL VARIABLES WHERE Variable_name IN ({named})"))
    if rows is None:
        return None
    variables = {str(row["Variable_name"]).lower(): str(row["Value"]) for row in rows}
    status = _asked(lambda: server.rows(server.version.status_statement))
    replica = _asked(lambda: replica_rows(server))
    omitted = [
        *binlog_filters(status or ()),
        *replica_filters(variables, replica or ()),
        *_switches(
            variables,
            applies=bool(replica) or replicates(server) is True or _is_node(server),
        ),
    ]
    return tuple(dict.fromkeys(_printable(text) for text in omitted))[:_MOST]


def came_in(gtids: GtidSet) -> str:
    """GTIDs that the server got without a binlog since its history began, as one more text.

    A set of more than 64 KiB is cut behind one of its servers.
    """
    text = str(gtids)
    if len(text) > _MOST_GTIDS:
        text = text[:_MOST_GTIDS].rpartition(",")[0]
    return f"{_PURGED}={text}"


def gtids_that_came_in(texts: Iterable[str]) -> GtidSet:
    """Those of all `came_in` among these texts; of one that somebody has cut, none."""
    gtids = GtidSet()
    for text in texts:
        setting, _, value = text.partition("=")
        if setting == _PURGED:
            with suppress(ValueError):
                gtids |= GtidSet.parse(value)
    return gtids


def binlog_filters(status: Rows) -> Iterator[str]:
    """The binlog filters in the answer of SHOW BINARY LOG STATUS."""
    for name in ("Binlog_Do_DB", "Binlog_Ignore_DB"):
        for row in status:
            if row.get(name):
                yield f"{name.lower()}={row[name]}"


def replica_filters(variables: Mapping[str, str], replica: Rows) -> Iterator[str]:
    """The filters of a replica: what they exclude, the server itself does not have."""
    for name in FILTERS:
        column = "_".join(part.capitalize() for part in name.split("_")).replace("Db", "DB")
        values = [variables.get(name), *(row.get(column) for row in replica)]
        for value in dict.fromkeys(str(value) for value in values if value):
            yield f"{name}={value}"


def _switches(variables: Mapping[str, str], *, applies: bool) -> Iterator[str]:
    """`applies`: whether other servers' transactions reach it, too."""
    updates = next((name for name in _UPDATES if name in variables), None)
    if updates is not None and not is_on(variables[updates]) and applies:
        yield f"{updates}=OFF"
    if _NDB in variables and not is_on(variables[_NDB]):
        yield f"{_NDB}=OFF"
    if variables.get(_ERROR_ACTION, "").upper() == "IGNORE_ERROR":
        yield IGNORES


def replicates(server: Server) -> bool | None:
    """Whether the server replicates from another; None if that is denied or was so before."""
    rows = _asked(lambda: replica_rows(server))
    if rows is None and server.version.mariadb:
        return _has_replicated(server)
    return None if rows is None else bool(rows)


def in_galera(server: Server) -> bool:
    """Whether it is a node of a Galera cluster, also after SET GLOBAL wsrep_on = OFF.

    That only keeps back what is written at the node: it still gets what the others write. Every
    user may ask. Raises SourceError.
    """
    switch = server.rows("SHOW GLOBAL VARIABLES LIKE 'wsrep_on'")
    connected = server.rows("SHOW GLOBAL STATUS LIKE 'wsrep_connected'")
    return any(is_on(row["Value"]) for row in (*switch, *connected))


def _is_node(server: Server) -> bool:
    """The same; no if the server refuses to tell, as something in between may."""
    try:
        return in_galera(server)
    except SourceError as error:
        if error.transient:
            raise
        return False


def _has_replicated(server: Server) -> bool | None:
    """Whether MariaDB applies now (True), never did (False), or did before (None).

    Every user may see this.
    """
    if is_running_replica(server):
        return True
    applied = server.rows("SELECT @@global.gtid_slave_pos AS applied")
    return None if applied[0]["applied"] else False


def _asked(ask: Callable[[], Rows]) -> Rows | None:
    """The rows; None if the server refuses them. Raises SourceError if it cannot be reached."""
    try:
        return ask()
    except SourceError as error:
        if error.transient:
            raise
        return None


def _printable(text: str) -> str:
    shown = "".join(letter if letter.isprintable() else "\ufffd" for letter in text)
    return shown if len(shown) <= _MOST_TEXT else f"{shown[:_MOST_TEXT]}..."
