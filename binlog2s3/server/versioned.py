"""The system-versioned tables of a MariaDB, and whether a dump can have their history."""

from dataclasses import dataclass

from binlog2s3.binlog.tables import table_name
from binlog2s3.server.connection import Server
from binlog2s3.server.version import ServerVersion


@dataclass(frozen=True, slots=True)
class Versioned:
    """The system-versioned tables. `obstacle`: why no dump can have their history, or ""."""

    tables: tuple[str, ...] = ()
    obstacle: str = ""


def versioned_tables(server: Server) -> Versioned:
    """Ask a MariaDB. Raises SourceError."""
    tables = _names(
        server,
        "SELECT table_schema AS db, table_name AS name FROM information_schema.tables "
        "WHERE table_type = 'SYSTEM VERSIONED' ORDER BY 1, 2",
    )
    if not tables:
        return Versioned()
    version = ServerVersion(str(server.rows("SELECT @@version AS it")[0]["it"]))
    if not version.loads_history:
        return Versioned(tables, f"a server of {version.text} cannot load it (10.11 and later can)")
    by_transaction = _names(
        server,
        "SELECT table_schema AS db, table_name AS name FROM information_schema.columns "
        "WHERE generation_expression = 'ROW START' AND data_type = 'bigint' ORDER BY 1, 2",
    )
    if by_transaction:
        which = ", ".join(by_transaction[:3])
        return Versioned(tables, f"--dump-history refuses tables versioned by transaction: {which}")
    return Versioned(tables)


def _names(server: Server, statement: str) -> tuple[str, ...]:
    rows = server.rows(statement)
    return tuple(table_name(str(row["db"]), str(row["name"])) for row in rows)
