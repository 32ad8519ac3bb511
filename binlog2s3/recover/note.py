"""The note that a run keeps in the target while it works there. No binlog has it.

Place in the flow: `interrupted` writes it before anything is applied and removes it at the end. The
next run reads what a run that was cut off has left.

Law: it is data. Whoever can write to the target can write a note, so nothing in it is executed.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from binlog2s3.recover.target import DATABASE
from binlog2s3.server.connection import Server


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """What the run that left it says of itself.

    `asked`: what the operator said of the beginning. `started`: when the server was. All before
    `reached` was applied and nothing behind it, but for what a channel of that run has done since.
    `settings`: the server's settings that the run has changed, as they were before.
    """

    asked: str
    reached: str
    started: str
    begun: str
    settings: str

    @property
    def before(self) -> dict[str, str]:
        """The settings by name."""
        pairs = (one.partition("=") for one in self.settings.split(",") if one)
        return {name: value for name, _, value in pairs}


class Notes:
    """The note at one target.

    Where the target keeps no GTIDs it says how far the run came: a second one from the same place
    would apply transactions twice.
    """

    def __init__(self, server: Server) -> None:
        self._server = server

    def find(self) -> Note | None:
        """The note that is there; None where there is none."""
        rows = self._server.rows(
            "SELECT COUNT(*) AS it FROM information_schema.tables "
            "WHERE table_schema = %s AND table_name = 'run'",
            (DATABASE,),
        )
        if not int(rows[0]["it"]):
            return None
        rows = self._server.rows(f"SELECT * FROM {DATABASE}.run LIMIT 1")  # noqa: S608 - a constant
        if not rows:
            return None
        return Note(**{name: str(rows[0][name]) for name in Note.__slots__})

    def write(self, *, asked: str, reached: str, started: str) -> None:
        """Write it before the first byte is applied. Settings that an older note has stay in it."""
        self._unlogged(f"CREATE DATABASE IF NOT EXISTS {DATABASE}")
        self._unlogged(
            f"CREATE TABLE IF NOT EXISTS {DATABASE}.run (id INT PRIMARY KEY, asked VARCHAR(500) "
            "CHARACTER SET utf8mb4, reached VARCHAR(500) CHARACTER SET utf8mb4, "
            "started VARCHAR(40), begun VARCHAR(40), settings VARCHAR(500)) ENGINE=InnoDB"
        )
        self._unlogged(
            f"INSERT INTO {DATABASE}.run VALUES "  # noqa: S608 - a constant
            "(1, %s, %s, %s, CONCAT(UTC_TIMESTAMP(), ' UTC'), '') ON DUPLICATE KEY UPDATE "
            "asked = VALUES(asked), reached = VALUES(reached), started = VALUES(started), "
            "begun = VALUES(begun)",
            (asked[:500], reached[:500], started),
        )

    def reach(self, reached: str) -> None:
        """Note how far the run is: before the channel goes that knows it by itself."""
        self._unlogged(
            f"UPDATE {DATABASE}.run SET reached = %s",  # noqa: S608 - a constant
            (reached[:500],),
        )

    def keep(self, before: Mapping[str, object]) -> None:
        """Note what the settings are that the run changes now; nothing, once they are restored."""
        self._unlogged(
            f"UPDATE {DATABASE}.run SET settings = %s",  # noqa: S608 - a constant
            (",".join(f"{name}={value}" for name, value in before.items()),),
        )

    def remove(self) -> None:
        """All is done: remove it."""
        self._unlogged(f"DROP DATABASE IF EXISTS {DATABASE}")

    def _unlogged(self, statement: str, values: tuple[str, ...] = ()) -> None:
        """On a new connection: the old one may have been idle for hours."""
        self._server.close()
        self._server.rows("SET SESSION sql_log_bin = 0")
        self._server.rows(statement, values)
        self._server.close()
