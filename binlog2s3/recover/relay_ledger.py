"""What lies in a MariaDB target's relay logs, noted in the target: how its GTIDs name a place.

Place in the flow: `relay_mariadb` notes each batch here before the applier gets it; a later run
asks where the target stands.

Law: gtid_slave_pos is kept with the transactions themselves, through a crash. So the place behind
the last transaction that it names is one up to which all was applied, and nothing behind it.
"""

from collections.abc import Sequence

from binlog2s3.binlog.names import BinlogName
from binlog2s3.errors import RecoveryError
from binlog2s3.recover.model import Piece, Place
from binlog2s3.recover.relay_cut import Ends, find
from binlog2s3.recover.target import DATABASE
from binlog2s3.server.connection import Server

_TABLE = f"{DATABASE}.relay_log"


class Ledger:
    """The table of one target. None of it reaches its binary log."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def note(self, logs: Sequence[tuple[Piece, Ends]]) -> None:
        """These come next, in place of what was noted before."""
        self._server.rows("SET SESSION sql_log_bin = 0")
        self._server.rows(f"CREATE DATABASE IF NOT EXISTS {DATABASE}")
        self._server.rows(
            f"CREATE TABLE IF NOT EXISTS {_TABLE} (number INT PRIMARY KEY, lineage VARCHAR(500) "
            "CHARACTER SET utf8mb4, binlog VARCHAR(500) CHARACTER SET utf8mb4, before_it LONGTEXT "
            "CHARACTER SET utf8mb4, ends LONGBLOB) ENGINE=InnoDB"
        )
        self._server.rows("BEGIN")
        self._server.rows(f"DELETE FROM {_TABLE}")  # noqa: S608 - a constant
        for number, (piece, ends) in enumerate(logs):
            self._server.rows(
                f"INSERT INTO {_TABLE} VALUES "  # noqa: S608 - a constant
                "(%s, %s, %s, @@global.gtid_slave_pos, _binary %s)",
                (number, piece.lineage, str(piece.binlog), ends.packed()),
            )
        self._server.rows("COMMIT")

    def exists(self) -> bool:
        """Whether a run has noted anything."""
        rows = self._server.rows(
            "SELECT COUNT(*) AS it FROM information_schema.tables "
            "WHERE table_schema = %s AND table_name = 'relay_log'",
            (DATABASE,),
        )
        return bool(int(rows[0]["it"]))

    def place(self) -> Place | None:
        """Where the target stands; None where nothing of what was noted last was applied.

        The applier does not run. Raises RecoveryError where its GTIDs say something else.
        """
        if not self.exists():
            return None
        now = gtid_slave_pos(self._server)
        rows = self._server.rows(
            f"SELECT lineage, binlog, before_it, ends FROM {_TABLE} "  # noqa: S608 - a constant
            "ORDER BY number"
        )
        if not rows:
            return None
        before = last_of(str(rows[0]["before_it"]))
        found: list[tuple[int, int]] = []
        for domain, gtid in now.items():
            if before.get(domain) == gtid:
                continue
            places = [
                (number, end) for number, row in enumerate(rows) for end in find(row["ends"], gtid)
            ]
            if len(places) != 1:
                raise RecoveryError(
                    f"the target's gtid_slave_pos has {gtid}, which the run that was cut off "
                    f"{'brought more than once' if places else 'did not bring'}: nobody knows how "
                    "far it came",
                    hint=f"restore the base backup again and DROP DATABASE {DATABASE}",
                )
            found += places
        if not found:
            return None
        number, offset = max(found)
        row = rows[number]
        binlog = BinlogName.parse(str(row["binlog"]))
        return Place(lineage=str(row["lineage"]), binlog=binlog, offset=offset)

    def remove(self) -> None:
        """Take it away."""
        self._server.rows("SET SESSION sql_log_bin = 0")
        if self.exists():
            self._server.rows(f"DROP TABLE {_TABLE}")
        found = "SELECT COUNT(*) AS it FROM information_schema.tables WHERE table_schema = %s"
        if not int(self._server.rows(found, (DATABASE,))[0]["it"]):  # nobody's marker is there
            self._server.rows(f"DROP DATABASE IF EXISTS {DATABASE}")


def gtid_slave_pos(server: Server) -> dict[int, str]:
    """The last GTID of each domain that the target's appliers have applied."""
    return last_of(str(server.rows("SELECT @@global.gtid_slave_pos AS it")[0]["it"]))


def last_of(text: str) -> dict[int, str]:
    """The GTIDs of such a list by their domains."""
    return {int(gtid.split("-")[0]): gtid for gtid in text.split(",") if gtid}
