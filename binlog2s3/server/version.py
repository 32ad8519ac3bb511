"""A server's version: what its numbers are, which words it knows. Pure.

MySQL's calendar versions (26.7 comes after 9.7) are compared as numbers, like all others.
"""

import re
from dataclasses import dataclass

from binlog2s3.binlog.gtid import Flavour

_BEFORE_MARIADB = "5.5.5-"
"""MariaDB puts it before its own version, where old replicas read it."""


@dataclass(frozen=True, slots=True)
class ServerVersion:
    """A version as the server says it, and the statements that this version knows."""

    text: str

    @property
    def mariadb(self) -> bool:
        """Whether it is a MariaDB."""
        return "mariadb" in self.text.lower()

    @property
    def flavour(self) -> Flavour:
        """Whose version it is."""
        return "mariadb" if self.mariadb else "mysql"

    @property
    def numbers(self) -> tuple[int, ...]:
        """Its numbers, at most three: (8, 0, 36)."""
        text = self.text.removeprefix(_BEFORE_MARIADB) if self.mariadb else self.text
        return tuple(int(number) for number in re.findall(r"\d+", text.partition("-")[0])[:3])

    @property
    def series(self) -> tuple[int, ...]:
        """The release series: (8, 0)."""
        return self.numbers[:2]

    @property
    def status_statement(self) -> str:
        """The statement that shows where the binary log ends."""
        return "SHOW BINARY LOG STATUS" if self._is_mysql_since(8, 2) else "SHOW MASTER STATUS"

    @property
    def replica_statement(self) -> str:
        """The statement that shows what the server replicates, one row a channel."""
        if self.mariadb:
            return "SHOW ALL SLAVES STATUS"
        return "SHOW REPLICA STATUS" if self._is_mysql_since(8, 0, 22) else "SHOW SLAVE STATUS"

    @property
    def replicas_statement(self) -> str:
        """The statement that shows the connected replicas."""
        return "SHOW REPLICAS" if self._is_mysql_since(8, 0, 22) else "SHOW SLAVE HOSTS"

    @property
    def stop_statement(self) -> str:
        """The statement that stops all replica channels."""
        if self.mariadb:
            return "STOP ALL SLAVES"
        return "STOP REPLICA" if self._is_mysql_since(8, 0, 22) else "STOP SLAVE"

    @property
    def reset_statement(self) -> str:
        """The statement that removes all binlogs and GTIDs."""
        return "RESET BINARY LOGS AND GTIDS" if self._is_mysql_since(8, 2) else "RESET MASTER"

    @property
    def says_replica(self) -> bool:
        """Whether all its words, its variables' names included, are REPLICA and SOURCE.

        From 8.4 on MySQL knows only these; before 8.0.26 some are only SLAVE and MASTER.
        """
        return self._is_mysql_since(8, 0, 26)

    @property
    def stamps_commits(self) -> bool:
        """Whether a transaction has the time of its commit, not that of its last statement.

        If not, `Server.position` needs PROCESS.
        """
        return self._is_mysql_since(8, 0, 2)

    def _is_mysql_since(self, *wanted: int) -> bool:
        return not self.mariadb and self.numbers >= wanted


def is_on(value: object) -> bool:
    """Whether a variable's value is a yes: a switch that is on, or a word that is not a no.

    MariaDB 12 made an enumeration of `read_only`: OFF, ON, NO_LOCK, NO_LOCK_NO_ADMIN.
    """
    text = value.decode(errors="replace") if isinstance(value, bytes) else str(value or "")
    return text.upper() not in ("", "0", "OFF", "NO", "FALSE")
