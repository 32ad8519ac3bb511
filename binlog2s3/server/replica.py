"""What a server replicates: the rows of SHOW REPLICA STATUS, one for each channel.

All servers' rows get the column names of the newest MySQL, so that nobody else knows two.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from binlog2s3.server.connection import Server
from binlog2s3.server.version import ServerVersion

_NEW_WORDS = {"Connection_name": "Channel_Name"}
"""MariaDB's own; the others differ in Slave and Master only."""


def replica_rows(server: Server, version: ServerVersion | None = None) -> Sequence[dict[str, Any]]:
    """The channels that are set up, whether they run or not.

    `version`: the server's, if it is known; else it is asked. Raises SourceError if it is denied.
    """
    rows = server.rows((version or server.version).replica_statement)
    return [{_new_word(name): value for name, value in row.items()} for row in rows]


def channel_name(row: Mapping[str, Any]) -> str:
    """The name of a channel, "" for the default one; servers compare names without case."""
    return str(row.get("Channel_Name") or "")


def receives(row: Mapping[str, Any]) -> bool:
    """Whether the thread runs, or tries to, that fetches from the source."""
    return str(row["Replica_IO_Running"]) != "No"


def applies(row: Mapping[str, Any]) -> bool:
    """Whether the thread runs that applies what was fetched."""
    return str(row["Replica_SQL_Running"]) != "No"


def is_running_replica(server: Server) -> bool:
    """Whether a thread of any channel runs. MariaDB tells every user.

    Raises SourceError if it is denied.
    """
    if server.version.mariadb:
        rows = server.rows("SHOW GLOBAL STATUS LIKE 'Slaves_running'")
        return any(int(row["Value"]) for row in rows)
    return any(receives(row) or applies(row) for row in replica_rows(server))


def _new_word(name: str) -> str:
    return _NEW_WORDS.get(name, name.replace("Slave", "Replica").replace("Master", "Source"))
