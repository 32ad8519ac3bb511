"""Two servers: what one has written is brought to the other; how to see that all of it arrived."""

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from binlog2s3.server.login import Login
from lab.disk import temporary_directory
from lab.get import ServerBinaries
from lab.mysql import MysqlServer
from tests.login import ROOT
from tests.own_files import Own, own

OWN = ("mysql", "information_schema", "performance_schema", "sys")
GTID_MODES = ("ON", "ON_PERMISSIVE", "OFF_PERMISSIVE", "OFF")
RELAXED = ("--sync-binlog=0", "--innodb-flush-log-at-trx-commit=2")
_HELD = ("CREATE DATABASE IF NOT EXISTS held", "CREATE TABLE IF NOT EXISTS held.up (i INT)")
HOLD = (*_HELD, "INSERT INTO held.up VALUES (1)")
"""Statements for the source: see `held_up`."""


@dataclass(frozen=True, slots=True)
class Pair:
    """Two servers: what one has written is brought to the other."""

    source: MysqlServer
    target: MysqlServer

    @property
    def is_mysql(self) -> bool:
        return self.source.binaries.flavour == "mysql"

    def login(self, **changes: Any) -> Login:
        there = {"port": self.target.port, "socket": str(self.target.socket)}
        return replace(ROOT, **(there | changes))

    @property
    def names(self) -> list[str]:
        """The source's binlogs."""
        return [name for name, _ in self.source.binlogs()]

    def files(self, **options: Any) -> Own:
        """All that the source has written."""
        return own(self.source.datadir, self.names, **options)

    def parts(self, chance: random.Random) -> Iterator[tuple[int, Own]]:
        """The same in parts, each with the number of transactions that have come with its end.

        They end at random transactions; the environment's PLACES says how many.
        """
        names, every = self.names, self.files().transactions
        count = int(os.environ.get("PLACES", "6"))
        places = sorted(chance.sample(range(1, len(every)), count))
        for before, upto in pairwise([0, *places]):
            (piece, first), (last_piece, last) = every[before], every[upto - 1]
            begin, end = (names.index(str(one.binlog)) for one in (piece, last_piece))
            of = names[begin : end + 1]
            yield upto, own(self.source.datadir, of, begin=first.begin, end=last.end)

    def clear(self) -> None:
        """Both as new."""
        for server in (self.source, self.target):
            _clear(server)


@contextmanager
def two(
    kind: type[MysqlServer],
    binaries: ServerBinaries,
    options: Sequence[str] = RELAXED,
    *,
    target_options: Sequence[str] | None = None,
) -> Iterator[tuple[MysqlServer, MysqlServer]]:
    """Two servers, with the ids 1 and 2; where `target_options` are given the second has those."""
    both = (options, options if target_options is None else target_options)
    with ExitStack() as stack:
        first, second = (
            stack.enter_context(
                kind(
                    binaries,
                    stack.enter_context(temporary_directory()),
                    server_id=number,
                    options=own_options,
                )
            )
            for number, own_options in enumerate(both, 1)
        )
        yield first, second


class Process:
    """An apply in a process of its own: `python -m module`, which is told so much."""

    def __init__(
        self, module: str, told: Mapping[str, Any], environment: Mapping[str, str] | None = None
    ) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", module, json.dumps(told)],
            cwd=Path(__file__).parents[2],
            env={**os.environ, **(environment or {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def wait_for(self, lines: int) -> None:
        """Until it has told so often how far it is, or has ended."""
        assert self.process.stdout is not None
        for _ in range(lines):
            self.process.stdout.readline()

    def end(self, by: signal.Signals | None = None, timeout: float = 600) -> str:
        """Wait for its end; what it said on standard error."""
        if by is not None:
            self.process.send_signal(by)
        return self.process.communicate(timeout=timeout)[1]


@contextmanager
def locked(server: MysqlServer, table: str) -> Iterator[Callable[[], bool]]:
    """In this block nobody can write this table; whether an applier waits for it."""
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute(f"LOCK TABLES {table} READ")

        def is_awaited() -> bool:
            return any(
                "metadata lock" in str(row[6]) and row[1] == "system user"
                for row in server.query("SHOW PROCESSLIST")
            )

        yield is_awaited


@contextmanager
def held_up(server: MysqlServer) -> Iterator[Callable[[], bool]]:
    """In this block nobody comes past HOLD at the server; whether somebody stands there.

    So an apply that has it in its middle is there, and not at its end, however slow the test is.
    """
    server.query("SET sql_log_bin = 0", *_HELD)
    with locked(server, "held.up") as stands:
        yield stands


def _clear(server: MysqlServer) -> None:
    is_mysql = server.binaries.flavour == "mysql"
    found = [str(row[0]) for row in server.query("SHOW DATABASES")]
    users = server.query("SELECT user, host FROM mysql.user WHERE user LIKE 'their%'")
    server.query(
        *(f"DROP DATABASE `{name}`" for name in found if name not in OWN),
        *(f"DROP USER {user}@'{host}'" for user, host in users),
        "RESET BINARY LOGS AND GTIDS" if is_mysql else "RESET MASTER",
        f"SET GLOBAL max_allowed_packet = {1 << 30}",
    )


def gtids(server: MysqlServer) -> str:
    """What a server has executed."""
    name = "gtid_executed" if server.binaries.flavour == "mysql" else "gtid_binlog_state"
    return str(server.query(f"SELECT @@global.{name}")[0][0]).replace("\n", "")


def content(server: MysqlServer) -> dict[str, Any]:
    """Everything in a server's databases, comparable."""
    found: dict[str, Any] = {}
    for (name,) in server.query("SHOW DATABASES"):
        if name in OWN:
            continue
        found[name] = server.query(f"SHOW CREATE DATABASE `{name}`")
        for table, kind in server.query(f"SHOW FULL TABLES FROM `{name}`"):
            full = f"`{name}`.`{table.replace('`', '``')}`"
            found[full] = (
                server.query(f"SHOW CREATE TABLE {full}"),
                server.query(f"CHECKSUM TABLE {full}") if "BASE" in kind else None,
            )
    for kind in ("routines", "triggers", "events"):
        what = {
            "routines": "routine_schema, routine_name, routine_definition, sql_mode, definer",
            "triggers": "trigger_schema, trigger_name, action_statement, sql_mode, definer",
            "events": "event_schema, event_name, event_definition, sql_mode, definer",
        }[kind]
        schema = what.partition(",")[0]
        found[kind] = sorted(
            server.query(
                f"SELECT {what} FROM information_schema.{kind} WHERE {schema} NOT IN {OWN}"
            )
        )
    found["users"] = sorted(server.query("SELECT user, host FROM mysql.user"))
    return found


def same(pair: Pair) -> None:
    """The target is what the source is."""
    assert content(pair.target) == content(pair.source)
    assert gtids(pair.target) == gtids(pair.source)


def gtids_off(server: MysqlServer) -> None:
    """To gtid_mode OFF, step by step."""
    server.query(*(f"SET GLOBAL gtid_mode = {mode}" for mode in GTID_MODES[1:]))


def gtids_on(server: MysqlServer) -> None:
    """Back to gtid_mode ON."""
    server.query(*(f"SET GLOBAL gtid_mode = {mode}" for mode in GTID_MODES[-2::-1]))


def write_rows(server: MysqlServer) -> None:
    """Thirty rows in two binlogs, behind the first two transactions, some of them in one."""
    server.query(
        "CREATE DATABASE shop",
        "CREATE TABLE shop.a (id INT PRIMARY KEY, v VARCHAR(20))",
        *(f"INSERT INTO shop.a VALUES ({n}, 'x')" for n in range(10)),
        "FLUSH BINARY LOGS",
        *(f"INSERT INTO shop.a VALUES ({n}, 'x')" for n in range(10, 20)),
        "BEGIN",
        "INSERT INTO shop.a VALUES (20, 'x')",
        "UPDATE shop.a SET v = 'y' WHERE id = 3",
        "INSERT INTO shop.a VALUES (21, 'x'), (22, 'x')",
        "COMMIT",
        *(f"INSERT INTO shop.a VALUES ({n}, 'x')" for n in range(23, 30)),
    )


def stand_in_the_way(server: MysqlServer) -> None:
    """That table with a row that `write_rows` writes, outside of the binlog."""
    server.query(
        "SET sql_log_bin = 0",
        "CREATE DATABASE shop",
        "CREATE TABLE shop.a (id INT PRIMARY KEY, v VARCHAR(20))",
        "INSERT INTO shop.a VALUES (21, 'there')",
    )


def leave_temporary_table(pair: Pair) -> tuple[Own, str]:
    """A session has one and goes on: what the source has written until then, and its GTIDs."""
    with pair.source.connect() as connection, connection.cursor() as cursor:
        cursor.execute("CREATE DATABASE shop")
        cursor.execute("SET SESSION binlog_format = 'STATEMENT'")
        cursor.execute("CREATE TEMPORARY TABLE shop.tmp (i INT)")
        cursor.execute("INSERT INTO shop.tmp VALUES (1)")
        return pair.files(), gtids(pair.source)


def write_all_kinds(server: MysqlServer, directory: Path) -> None:
    """What mysqlbinlog and a client could get wrong, over several binlogs."""
    mysql = server.binaries.flavour == "mysql"
    data = directory / "load.txt"
    data.write_text("100\tloaded\n101\tfrom a file\n")
    server.query(
        "CREATE DATABASE shop CHARACTER SET utf8mb4",
        "USE shop",
        "CREATE TABLE a (id INT PRIMARY KEY AUTO_INCREMENT, v VARCHAR(200), b BLOB, j JSON,"
        " d DECIMAL(20,5), e ENUM('x','y'), s SET('p','q'), ts TIMESTAMP(6) NULL, g GEOMETRY)",
        "INSERT INTO a (v, b, j, d, e, s, ts) VALUES"
        " ('Zeile\\n\\'quoted\\' \\\\ back', 0x00010227FF0D0A5C1A, '{\"k\": [1, null]}', -3.14159,"
        " 'y', 'p,q', '2026-01-02 03:04:05.678901'), ('ünï😀', 0x00, '[]', 0, 'x', '', NULL)",
        "CREATE TABLE `odd ``name;` (`a b` INT DEFAULT 1 COMMENT 'it''s /*!*/; # at 4')",
        "INSERT INTO `odd ``name;` VALUES (7)",
        "CREATE PROCEDURE p() BEGIN /* kept */ -- and this\n"
        "  INSERT INTO a (v) VALUES ('from ''p''; done'); # too\nEND",
        "CREATE TRIGGER trg BEFORE INSERT ON a FOR EACH ROW SET NEW.v = CONCAT(NEW.v, '!')",
        "CREATE EVENT ev ON SCHEDULE EVERY 1 DAY DO DELETE FROM a WHERE id < 0",
        "CREATE VIEW vv AS SELECT v FROM a",
        "CREATE FUNCTION f(x INT) RETURNS INT DETERMINISTIC RETURN x * 2",
        "CALL p()",
        "INSERT INTO a (v) SELECT CONCAT('copy ', id) FROM (SELECT id FROM a) AS x",
        "BEGIN",
        "UPDATE a SET v = CONCAT(v, ' changed'), d = f(4)",
        "SAVEPOINT s1",
        "DELETE FROM a",
        "ROLLBACK TO s1",
        "INSERT INTO `odd ``name;` VALUES (8)",
        "COMMIT",
        "CREATE USER theirs@localhost IDENTIFIED BY 'a''b'",
        "GRANT SELECT ON shop.* TO theirs@localhost",
        "FLUSH BINARY LOGS",
        "SET SESSION binlog_format = 'STATEMENT'",
        "SET SESSION time_zone = '+05:00'",
        "CREATE TEMPORARY TABLE tmp (i INT, at DATETIME)",
        "INSERT INTO tmp VALUES (1, NOW()), (2, FROM_UNIXTIME(1700000000))",
        "SET @word = 'user ''variable'''",
        "INSERT INTO a (v, d) SELECT CONCAT(@word, i), UNIX_TIMESTAMP(at) FROM tmp",
        "FLUSH BINARY LOGS",
        "INSERT INTO a (v, d) SELECT CONCAT('again ', i), UNIX_TIMESTAMP(at) FROM tmp",
        f"LOAD DATA INFILE '{data}' INTO TABLE a (id, v)",
        "DROP TEMPORARY TABLE tmp",
        "SET SESSION binlog_format = 'ROW'",
        "SET SESSION sql_mode = 'ANSI_QUOTES,NO_BACKSLASH_ESCAPES'",
        "CREATE TABLE \"q\" (c CHAR(10) DEFAULT 'a\\')",
        "INSERT INTO \"q\" VALUES ('\\')",
        "CREATE TRIGGER qt BEFORE INSERT ON \"q\" FOR EACH ROW SET NEW.c = '\\'",
        "SET SESSION sql_mode = DEFAULT",
        "SET NAMES latin1",
        "CREATE TABLE l (c VARCHAR(20) CHARACTER SET latin1 COMMENT 'x')",
        "INSERT INTO l VALUES (_latin1 0xE4F6FC)",
        "SET NAMES sjis",
        "SET SESSION binlog_format = 'STATEMENT'",
        "INSERT INTO l VALUES (_latin1 0x835C27)",
        "SET NAMES utf8mb4",
        "SET SESSION binlog_format = 'ROW'",
        "XA START 'x''1'",
        "INSERT INTO a (v) VALUES ('xa')",
        "XA END 'x''1'",
        "XA PREPARE 'x''1'",
        "XA COMMIT 'x''1'",
        "ALTER TABLE a ADD INDEX (v), ADD COLUMN n INT DEFAULT 5",
        "OPTIMIZE TABLE a",
        "FLUSH BINARY LOGS",
        "CREATE TABLE gone (i INT)",
        "DROP TABLE gone, q",
        "TRUNCATE TABLE l",
        "RENAME TABLE l TO l2",
        *(
            (
                "SET SESSION binlog_transaction_compression = ON",
                "INSERT INTO a (v) SELECT REPEAT(LEFT(v, 3), 20) FROM (SELECT v FROM a) AS x",
                "UPDATE a SET n = id",
                "SET SESSION gtid_next = 'AUTOMATIC:blue'",
                "DELETE FROM a WHERE id = 2",
                "INSERT INTO a (v) VALUES ('tagged')",
                "SET SESSION gtid_next = 'AUTOMATIC'",
                "SET SESSION binlog_row_image = MINIMAL, binlog_row_value_options = PARTIAL_JSON",
                "UPDATE a SET j = JSON_SET(j, '$.k[0]', 'new') WHERE id = 1",
                "CREATE TABLE ctas AS SELECT id, v FROM a",
            )
            if mysql
            else (
                "CREATE SEQUENCE sq",
                "SELECT NEXTVAL(sq)",
                "CREATE TABLE ctas AS SELECT 1 AS x",
                "INSERT INTO a (v) VALUES ('last')",
            )
        ),
    )
