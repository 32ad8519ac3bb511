"""Stored columns that a MariaDB computes anew while it applies rows.

It computes a generated column of a TIMESTAMP, such as HOUR(ts), in its own time zone, whatever the
row in the binlog has, and that is not the zone of the session that wrote it (seen on 11.8). Events
of rows do not tell that zone.
"""

from binlog2s3.binlog.events import EventType
from binlog2s3.binlog.gtid import Flavour
from binlog2s3.binlog.tables import decode_map, table_name
from binlog2s3.binlog.walk import UNDECODABLE, wanted_types
from binlog2s3.errors import SourceError
from binlog2s3.formatting import some
from binlog2s3.recover.extract import Watcher
from binlog2s3.server.connection import Server
from binlog2s3.server.dump_losses import zone_columns

_NUMBER_BYTES = 6
"""Of the table's id, which differs each time that the server opens it."""
_MOST = 100_000


class Recomputed(Watcher):
    """The tables of which a stream of events has rows, with such a column in the target."""

    wanted = wanted_types(EventType.TABLE_MAP)

    def __init__(self) -> None:
        self._seen = set[bytes]()
        self._tables: set[tuple[str, str]] | None = set()  # None: it may be any

    def lose(self) -> None:
        """See `Watcher`."""
        self._tables = None

    def see(self, _: int, head: bytes, size: int, flavour: Flavour, __: int, /) -> None:
        """See `Watcher`."""
        shape = head[_NUMBER_BYTES:]
        if self._tables is None or shape in self._seen:
            return
        try:
            body = decode_map(head, flavour)[0] if size == len(head) else None
        except UNDECODABLE:
            body = None
        if body is None or len(self._seen) >= _MOST:
            self.lose()
            return
        self._seen.add(shape)
        self._tables.add((body.database.lower(), body.table.lower()))

    def doubt(self, target: Server) -> str:
        """Why the rows may not be the source's; "" if the target shows no such column of them."""
        if self._tables == set():
            return ""
        what = "computes stored columns of a TIMESTAMP anew in its own time zone while it applies"
        try:
            columns = zone_columns(target)
        except SourceError as error:
            return f"a MariaDB {what} rows, and it did not tell which it has: {error}"
        names = [
            f"{table_name(database, table)}: {name}"
            for database, table, name in columns
            if self._tables is None or (database.lower(), table.lower()) in self._tables
        ]
        if not names:
            return ""
        return (
            f"a MariaDB {what} rows ({some(names)}), and the binlog does not tell in which zone "
            "the source's sessions wrote them"
        )
