"""A server's version: what its numbers are, what it knows and can. Pure.

Everything that depends on a version is asked here by name, so that each number is written once.

MySQL's calendar versions (26.7 comes after 9.7) are compared as numbers, like all others.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from binlog2s3.binlog.gtid import Flavour

_OLDEST: Mapping[Flavour, tuple[int, ...]] = {"mysql": (5, 6), "mariadb": (10, 0)}
_MAINTAINED: Mapping[Flavour, tuple[int, ...]] = {"mysql": (8, 0), "mariadb": (10, 5)}
_BEFORE_MARIADB = "5.5.5-"
"""MariaDB puts it before its own version, where old replicas read it."""
Plugin = Literal["caching_sha2_password", "mysql_native_password"]


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
    def for_replicas(self) -> str:
        """What a source of this version tells its replicas first."""
        return f"{_BEFORE_MARIADB}{self.text}" if self.mariadb else self.text

    @property
    def series(self) -> tuple[int, ...]:
        """The release series: (8, 0)."""
        return self.numbers[:2]

    @property
    def status_statement(self) -> str:
        """The statement that shows where the binary log ends."""
        return "SHOW BINARY LOG STATUS" if self._since(mysql=(8, 2)) else "SHOW MASTER STATUS"

    @property
    def replica_statement(self) -> str:
        """The statement that shows what the server replicates, one row a channel."""
        if self.mariadb:
            return "SHOW ALL SLAVES STATUS"
        return "SHOW REPLICA STATUS" if self._since(mysql=(8, 0, 22)) else "SHOW SLAVE STATUS"

    @property
    def replicas_statement(self) -> str:
        """The statement that shows the connected replicas."""
        return "SHOW REPLICAS" if self._since(mysql=(8, 0, 22)) else "SHOW SLAVE HOSTS"

    @property
    def stop_statement(self) -> str:
        """The statement that stops all replica channels."""
        if self.mariadb:
            return "STOP ALL SLAVES"
        return "STOP REPLICA" if self._since(mysql=(8, 0, 22)) else "STOP SLAVE"

    @property
    def reset_statement(self) -> str:
        """The statement that removes all binlogs and GTIDs."""
        return "RESET BINARY LOGS AND GTIDS" if self._since(mysql=(8, 2)) else "RESET MASTER"

    @property
    def says_replica(self) -> bool:
        """Whether all its words, its variables' names included, are REPLICA and SOURCE.

        From 8.4 on MySQL knows only these; before 8.0.26 some are only SLAVE and MASTER.
        """
        return self._since(mysql=(8, 0, 26))

    @property
    def stamps_commits(self) -> bool:
        """Whether a transaction has the time of its commit, not that of its last statement.

        If not, `Server.position` needs PROCESS.
        """
        return self._since(mysql=(8, 0, 2))

    @property
    def oldest_source(self) -> str:
        """The oldest version of this flavour that can be streamed."""
        return ".".join(map(str, _OLDEST[self.flavour]))

    @property
    def can_be_source(self) -> bool:
        """Whether it can be streamed."""
        return self.numbers >= _OLDEST[self.flavour]

    @property
    def is_maintained(self) -> bool:
        """Whether its series got corrections when this was written."""
        return self.numbers >= _MAINTAINED[self.flavour]

    @property
    def may_log_in_engine(self) -> bool:
        """Whether its binlog can be in a storage engine instead of files."""
        return self._since(mariadb=(12,))

    @property
    def has_channels(self) -> bool:
        """Whether it can replicate over a channel with a name."""
        return self._since(mysql=(5, 7), mariadb=())

    @property
    def filters_channels(self) -> bool:
        """Whether it can filter what one channel brings, and leave others as they are."""
        return self._since(mysql=(8,), mariadb=())

    @property
    def reads_tags(self) -> bool:
        """Whether it knows GTIDs with tags."""
        return self._since(mysql=(8, 3))

    @property
    def plugin(self) -> Plugin:
        """The authentication plugin with which a replica of this version logs in.

        MySQL 5.7 has no caching_sha2_password before 5.7.23, and MySQL 9 has nothing older.
        """
        return "caching_sha2_password" if self._since(mysql=(8,)) else "mysql_native_password"

    @property
    def shows_applied(self) -> bool:
        """Whether performance_schema shows which transaction is being applied."""
        return self._since(mysql=(8,))

    @property
    def splits_super(self) -> bool:
        """Whether it has the privileges that replaced SUPER."""
        return self._since(mysql=(8,), mariadb=(10, 5))

    @property
    def says_monitor(self) -> bool:
        """Whether REPLICATION CLIENT is BINLOG MONITOR."""
        return self._since(mariadb=(10, 5))

    @property
    def shows_accounts(self) -> bool:
        """Whether it has SHOW CREATE USER."""
        return self._since(mysql=(5, 7), mariadb=(10, 2))

    @property
    def shows_functions(self) -> bool:
        """Whether performance_schema lists the loadable functions that it has loaded."""
        return self._since(mysql=(8,))

    @property
    def persists_settings(self) -> bool:
        """Whether it has SET PERSIST."""
        return self._since(mysql=(8,))

    @property
    def expires_by_seconds(self) -> bool:
        """Whether it has binlog_expire_logs_seconds; with the name, an older one does not start."""
        return self._since(mysql=(8,), mariadb=(10, 6))

    @property
    def has_atomic_statements(self) -> bool:
        """Whether a statement like CREATE TABLE is executed as a whole or not at all."""
        return self._since(mysql=(8,), mariadb=(10, 6))

    @property
    def keeps_counters(self) -> bool:
        """Whether an AUTO_INCREMENT is the same after a restart."""
        return self._since(mysql=(8,), mariadb=(10, 2, 4))

    @property
    def cascades_itself(self) -> bool:
        """Whether it logs what its foreign keys delete and change, and may keep rows it should not.

        See `recover.replaced`.
        """
        return self._since(mysql=(9, 6))

    @property
    def dumps_under_lock(self) -> bool:
        """Whether its mysqldump reads the GTIDs of a --single-transaction under a lock.

        Up to 8.0.31 they are read after the snapshot
        (https://dev.mysql.com/doc/relnotes/mysql/8.0/en/news-8-0-32.html).
        """
        return self._since(mysql=(8, 0, 32))

    @property
    def loads_history(self) -> bool:
        """Whether it takes rows of the past (system_versioning_insert_history)."""
        return self._since(mariadb=(10, 11))

    def is_older(self, other: "ServerVersion") -> bool:
        """Whether its release series is older than the other's."""
        return self.series < other.series

    def is_other_series(self, other: "ServerVersion") -> bool:
        """Whether both are of different release series, like 10.11 and 11.8."""
        return self.series != other.series

    def _since(
        self, *, mysql: tuple[int, ...] | None = None, mariadb: tuple[int, ...] | None = None
    ) -> bool:
        """Whether it is this version of its flavour or a later one; None: no version is."""
        wanted = mariadb if self.mariadb else mysql
        return wanted is not None and self.numbers >= wanted


def is_aurora_reader(variables: Mapping[str, str]) -> bool:
    """Whether it is a reader of an Aurora cluster, by its variables; it writes no binlog.

    It shares the writer's storage.
    """
    return "aurora_server_id" in variables and is_on(variables.get("innodb_read_only"))


def is_on(value: object) -> bool:
    """Whether a variable's value is a yes: a switch that is on, or a word that is not a no.

    MariaDB 12 made an enumeration of `read_only`: OFF, ON, NO_LOCK, NO_LOCK_NO_ADMIN.
    """
    text = value.decode(errors="replace") if isinstance(value, bytes) else str(value or "")
    return text.upper() not in ("", "0", "OFF", "NO", "FALSE")
