"""One MySQL and one MariaDB for each worker, reset between tests instead of started again.

Law: a test finds what a server has just after its start: no database, no binlog but an empty
first one, no GTIDs, no account but root and the streamer's, every variable as it was. Where a reset
fails, or something stays different, the server is ended and another one is started. A test that
kills, freezes or configures its server has a marker `own_server(why)`, and gets one of its own.
"""

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NoReturn

import pymysql

from lab.disk import temporary_directory
from lab.get import ServerBinaries
from lab.mysql import MariadbServer, MysqlServer, OlderMysql, numbers_of

_SYSTEM = frozenset({"mysql", "sys", "information_schema", "performance_schema"})
# What a server changes by itself. The GTID variables are reset together with the binlogs.
_VOLATILE = frozenset(
    {
        "gtid_binlog_pos",
        "gtid_binlog_state",
        "gtid_current_pos",
        "gtid_executed",
        "gtid_purged",
        "gtid_slave_pos",
        "innodb_buffer_pool_load_abort",
        "timestamp",
    }
)
_OTHERS = """SELECT id FROM information_schema.processlist
    WHERE user NOT IN ('system user', 'event_scheduler') AND id <> CONNECTION_ID()"""
# What no reset brings back: where an answer is another one, the server is replaced.
_SAME = (
    "SHOW GRANTS FOR root@localhost",
    "SELECT server_name FROM mysql.servers",
    "SELECT event_schema, event_name FROM information_schema.events",
    "SELECT table_name FROM information_schema.tables WHERE table_schema = 'sys' ORDER BY 1",
    "SELECT routine_schema, routine_name FROM information_schema.routines ORDER BY 1, 2",
    "SHOW GLOBAL STATUS LIKE 'Innodb_redo_log_enabled'",
)


class _Shared:
    """What a server forbids that the next test gets too."""

    def _refuse(self) -> NoReturn:
        raise AssertionError(
            "other tests get this server too: mark the test with own_server('it is killed')"
        )

    def start(self) -> None:
        if self._process is not None:  # type: ignore[attr-defined]
            self._refuse()
        super().start()  # type: ignore[misc]

    def stop(self) -> None:
        self._refuse()

    def kill(self) -> None:
        self._refuse()

    def restart(self, options: object = None) -> None:
        self._refuse()

    def freeze(self) -> None:
        self._refuse()


class SharedMysql(_Shared, MysqlServer):
    """A MySQL that many tests get, one after the other."""


class SharedMariadb(_Shared, MariadbServer):
    """A MariaDB that many tests get, one after the other."""


class SharedOlder(_Shared, OlderMysql):
    """A MySQL before 8.0.30 that many tests get, one after the other."""


def shared(binaries: ServerBinaries, directory: Path, **settings: Any) -> MysqlServer:
    """One that is not started, of whatever flavour and version."""
    if binaries.flavour == "mariadb":
        return SharedMariadb(binaries, directory, **settings)
    older = numbers_of(binaries) < (8, 0, 30)
    return (SharedOlder if older else SharedMysql)(binaries, directory, **settings)


class Pool:
    """`make(directory)` gives a server that is not started; `take` gives it as if just started."""

    def __init__(self, make: Callable[[Path], MysqlServer]) -> None:
        self._make = make
        self._stack = ExitStack()
        self._server: MysqlServer | None = None
        self._fresh: dict[str, Any] = {}

    def take(self) -> MysqlServer:
        """The server, reset; another one where that could not be done."""
        if self._server is not None:
            try:
                changed = self._reset(self._server)
            except (pymysql.Error, OSError) as error:
                changed = [str(error)]
            if not changed:
                return self._server
            self.close()
        directory = self._stack.enter_context(temporary_directory())
        self._server = self._stack.enter_context(self._make(directory))
        self._fresh = _facts(self._server)
        return self._server

    def close(self) -> None:
        """End the server."""
        self._server = None
        self._stack.close()

    def _reset(self, server: MysqlServer) -> list[str]:
        """Reset everything; the names of what is still not as it was."""
        variables, tables, users = (self._fresh[name] for name in ("variables", "tables", "users"))
        mariadb = server.binaries.flavour == "mariadb"
        version = numbers_of(server.binaries)
        with server.connect(connect_timeout=60, read_timeout=60) as connection:
            cursor = connection.cursor()
            cursor.execute("XA RECOVER")
            if cursor.fetchall():
                return ["XA RECOVER"]  # its locks would hold up all that follows
            cursor.execute("SET SESSION sql_log_bin = 0, SESSION foreign_key_checks = 0")
            for name, value in _variables(cursor).items():
                if value != variables.get(name, value):
                    number = variables[name].lstrip("-").isdigit()
                    old = int(variables[name]) if number else variables[name]
                    cursor.execute(f"SET GLOBAL {name} = %s", (old,))
            cursor.execute(_OTHERS)
            for (number,) in cursor.fetchall():
                try:
                    cursor.execute(f"KILL {number}")
                except pymysql.Error:  # it ended by itself
                    continue
            if mariadb:
                cursor.execute("SHOW ALL SLAVES STATUS")
                if any(row[0] for row in cursor.fetchall()):
                    return ["a named channel"]
            word = "SLAVE" if mariadb or version < (8, 0, 22) else "REPLICA"
            cursor.execute(f"SHOW {word} STATUS")
            if cursor.fetchall():
                cursor.execute(f"STOP {word}")
                cursor.execute(f"RESET {word} ALL")
            cursor.execute("SHOW DATABASES")
            for (name,) in cursor.fetchall():
                if name not in _SYSTEM:
                    cursor.execute(f"DROP DATABASE `{name.replace('`', '``')}`")
            for name in _tables(cursor) - tables:
                cursor.execute(f"DROP TABLE mysql.`{name}`")
            for user, host in _users(cursor) - users | {(server.repl_user, "%")}:
                cursor.execute("DROP USER IF EXISTS %s@%s", (user, host))
            if mariadb:
                cursor.execute("RESET MASTER")
                cursor.execute("SET GLOBAL gtid_slave_pos = ''")
            else:
                if version >= (8, 0):
                    cursor.execute("RESET PERSIST")
                newer = version >= (8, 2)
                cursor.execute("RESET BINARY LOGS AND GTIDS" if newer else "RESET MASTER")
        server._write_password()
        server._create_users()
        return [kind for kind, found in _facts(server).items() if found != self._fresh[kind]]


def _facts(server: MysqlServer) -> dict[str, Any]:
    """What must be the same for each test."""
    with server.connect(connect_timeout=60, read_timeout=60) as connection:
        cursor = connection.cursor()
        cursor.execute("SHOW BINARY LOGS")
        return {
            "binlogs": [(row[0], row[1]) for row in cursor.fetchall()],
            "tables": _tables(cursor),
            "users": _users(cursor),
            "variables": _variables(cursor),
            **{statement: _answer(cursor, statement) for statement in _SAME},
        }


def _answer(cursor: Any, statement: str) -> tuple[Any, ...]:
    cursor.execute(statement)
    return tuple(cursor.fetchall())


def _variables(cursor: Any) -> dict[str, str]:
    cursor.execute("SHOW GLOBAL VARIABLES")
    return {name: value for name, value in cursor.fetchall() if name not in _VOLATILE}


def _tables(cursor: Any) -> set[str]:
    cursor.execute("SHOW TABLES FROM mysql")
    return {name for (name,) in cursor.fetchall()}


def _users(cursor: Any) -> set[tuple[str, str]]:
    cursor.execute("SELECT user, host FROM mysql.user")
    return set(cursor.fetchall())
