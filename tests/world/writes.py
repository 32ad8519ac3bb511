"""What a busy server's binlogs are made of: concurrent sessions, tables, all kinds of events.

    Writers(server, seed=7, sessions=4, each=300).run()

Law: all that is random follows from the seed, the order of commits does not. Rows of `skippable`
are written once and never touched again, each by a transaction of its own, so that one of them can
be left out; `precious` is written only where `precious` says so, and may be dropped afterwards.
"""

import contextlib
import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pymysql

from lab.mysql import MysqlServer
from tests.waiting import wait_until
from tests.world.servers import is_mariadb, locked

if TYPE_CHECKING:
    from pymysql.connections import Connection
    from pymysql.cursors import Cursor

LARGE_BYTES = 12 * 300_000
_HELD = ("CREATE DATABASE IF NOT EXISTS held", "CREATE TABLE IF NOT EXISTS held.up (i INT)")
HOLD = (*_HELD, "INSERT INTO held.up VALUES (1)")
"""Statements for the source: see `held_up`."""


DEADLOCKS = (1205, 1213)
PATIENCE = "SET innodb_lock_wait_timeout = 1"  # a lock and an ALTER wait for each other unnoticed
SCHEMA = (
    "CREATE DATABASE shop",
    (
        "CREATE TABLE shop.parent (writer INT, n INT, name VARCHAR(100), price DECIMAL(12, 3),"
        " at DATETIME(6), note JSON, PRIMARY KEY (writer, n))"
    ),
    (
        "CREATE TABLE shop.child (writer INT, n INT, line INT, amount DOUBLE, payload LONGBLOB,"
        " PRIMARY KEY (writer, n, line), FOREIGN KEY (writer, n)"
        " REFERENCES shop.parent (writer, n) ON DELETE CASCADE)"
    ),
    "CREATE TABLE shop.seen (id BIGINT AUTO_INCREMENT PRIMARY KEY, writer INT, what VARCHAR(20))",
    (
        "CREATE TRIGGER shop.parent_seen AFTER INSERT ON shop.parent FOR EACH ROW"
        " INSERT INTO shop.seen (writer, what) VALUES (NEW.writer, 'new')"
    ),
    (
        "CREATE TABLE shop.legacy (writer INT, n INT, text VARCHAR(200), PRIMARY KEY (writer, n))"
        " CHARSET latin1"
    ),
    "CREATE TABLE shop.skippable (writer INT, n INT, PRIMARY KEY (writer, n))",
    "CREATE TABLE shop.precious (writer INT, n INT, worth VARCHAR(200), PRIMARY KEY (writer, n))",
)
BURST = 15


class Writers:
    """Sessions that write side by side; `run` returns when each has done its share.

    `ddl`: one more session changes and drops tables meanwhile, and the binlog is rotated now and
    then. `first` is the number of the first session: those of another run must have others.
    `large`: how many of some 90 transactions have some 100 kB. `xa`: some are XA transactions; a
    dump that is made between PREPARE and COMMIT of one does not have it.
    """

    def __init__(
        self,
        server: MysqlServer,
        *,
        seed: int,
        sessions: int = 4,
        each: int = 300,
        first: int = 0,
        ddl: bool = True,
        precious: bool = True,
        rotations: int = 2,
        gtid: bool = True,
        large: int = 1,
        xa: bool = True,
    ) -> None:
        self.server = server
        self._seed = seed
        self._each = each
        self._precious = precious
        self._rotations = rotations
        self._large_weight = large
        self._xas = xa
        self._mysql = not is_mariadb(server)
        self._tags = self._mysql and gtid
        self._first = first
        self._failures: list[BaseException] = []
        numbers = range(first, first + sessions)
        self._threads = [
            threading.Thread(target=self._guarded, args=(self._write, number), name=f"w{number}")
            for number in numbers
        ]
        if ddl:
            self._threads.append(threading.Thread(target=self._guarded, args=(self._change, first)))

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def join(self) -> None:
        for thread in self._threads:
            thread.join(300)
            assert not thread.is_alive(), f"{thread.name} does not end"
        if self._failures:
            raise RuntimeError("a writer failed") from self._failures[0]

    def run(self) -> None:
        self.start()
        self.join()

    def _guarded(self, work: Callable[["Connection[Cursor]", int], None], number: int) -> None:
        try:
            with self.server.connect(read_timeout=120, init_command=PATIENCE) as connection:
                work(connection, number)
        except BaseException as error:  # noqa: BLE001 - raised in join
            self._failures.append(error)

    def _write(self, connection: "Connection[Cursor]", number: int) -> None:
        acts: list[tuple[Callable[[Cursor, random.Random, int, int], None], int]] = [
            (self._insert, 30),
            (self._update, 20),
            (self._delete, 6),
            (self._several, 12),
            (self._burst, 3),
            (self._large, self._large_weight),
            (self._statement, 5),
            (self._skippable, 4),
        ]
        if self._mysql:
            acts += [(self._compressed, 4), (self._xa, 2 if self._xas else 0)]
        if self._tags:
            acts.append((self._tagged, 4))
        if self._precious:
            acts.append((self._treasure, 5))
        kinds, weights = zip(*acts, strict=True)
        chance = random.Random(f"{self._seed}/{number}")
        with connection.cursor() as cursor:
            for n in range(self._each):
                (act,) = chance.choices(kinds, weights)
                try:
                    act(cursor, chance, number, n)
                except pymysql.OperationalError as error:
                    if error.args[0] not in DEADLOCKS:
                        raise
                    cursor.execute("ROLLBACK")

    def _insert(self, cursor: "Cursor", chance: random.Random, writer: int, n: int) -> None:
        cursor.execute(
            "INSERT INTO shop.parent VALUES (%s, %s, %s, %s, NOW(6), %s)",
            (
                writer,
                n,
                "ü\n'\"\\" * chance.randint(0, 9),
                chance.random() * 999,
                '{"a": [1, "é"]}',
            ),
        )

    def _update(self, cursor: "Cursor", chance: random.Random, writer: int, n: int) -> None:
        cursor.execute(
            "UPDATE shop.parent SET price = price + 1, note = '{\"b\": 2}', name = %s"
            " WHERE writer = %s AND n BETWEEN %s AND %s",
            (str(chance.random()), writer, n - chance.randint(0, 20), n),
        )

    def _delete(self, cursor: "Cursor", chance: random.Random, writer: int, n: int) -> None:
        cursor.execute(
            "DELETE FROM shop.parent WHERE writer = %s AND n = %s", (writer, chance.randint(0, n))
        )

    def _several(self, cursor: "Cursor", chance: random.Random, writer: int, n: int) -> None:
        """One transaction over several tables."""
        cursor.execute("BEGIN")
        self._insert(cursor, chance, writer, n)
        for line in range(chance.randint(1, 20)):
            cursor.execute(
                "INSERT INTO shop.child VALUES (%s, %s, %s, %s, %s)",
                (writer, n, line, chance.gauss(0, 1e9), chance.randbytes(chance.randint(0, 900))),
            )
        cursor.execute(
            "INSERT INTO shop.legacy (writer, n, text) VALUES (%s, %s, 'élan')", (writer, n)
        )
        cursor.execute("DELETE FROM shop.seen WHERE writer = %s LIMIT 1", (writer,))
        cursor.execute("COMMIT" if chance.random() < 0.9 else "ROLLBACK")

    def _burst(self, cursor: "Cursor", _chance: random.Random, writer: int, n: int) -> None:
        """As fast as it goes."""
        for number in range(BURST):
            cursor.execute(
                "INSERT INTO shop.seen (writer, what) VALUES (%s, %s)", (writer, f"{n} {number}")
            )

    def _large(self, cursor: "Cursor", chance: random.Random, writer: int, n: int) -> None:
        cursor.execute("BEGIN")
        self._insert(cursor, chance, writer, n)
        cursor.execute(
            "INSERT INTO shop.child VALUES (%s, %s, 0, 0, %s)",
            (writer, n, chance.randbytes(chance.randint(100_000, 700_000))),
        )
        cursor.execute("COMMIT")

    def _statement(self, cursor: "Cursor", _chance: random.Random, writer: int, n: int) -> None:
        """As text in the binlog."""
        cursor.execute("SET SESSION binlog_format = STATEMENT")
        try:
            cursor.execute(
                "INSERT INTO shop.legacy (writer, n, text) VALUES (%s, %s, 'it''s; \\\\ /*!*/;\nü')"
                " ON DUPLICATE KEY UPDATE text = CONCAT(text, '.')",
                (writer, n),
            )
            cursor.execute(
                "UPDATE shop.legacy SET text = REVERSE(text) WHERE writer = %s", (writer,)
            )
        finally:
            cursor.execute("SET SESSION binlog_format = ROW")

    def _skippable(self, cursor: "Cursor", _chance: random.Random, writer: int, n: int) -> None:
        cursor.execute("INSERT INTO shop.skippable VALUES (%s, %s)", (writer, n))

    def _treasure(self, cursor: "Cursor", chance: random.Random, writer: int, n: int) -> None:
        cursor.execute(
            "INSERT INTO shop.precious VALUES (%s, %s, %s)", (writer, n, str(chance.random()))
        )

    def _compressed(self, cursor: "Cursor", chance: random.Random, writer: int, n: int) -> None:
        cursor.execute("SET SESSION binlog_transaction_compression = ON")
        try:
            self._several(cursor, chance, writer, n)
        finally:
            cursor.execute("ROLLBACK")
            cursor.execute("SET SESSION binlog_transaction_compression = OFF")

    def _tagged(self, cursor: "Cursor", chance: random.Random, writer: int, n: int) -> None:
        cursor.execute(f"SET SESSION gtid_next = 'AUTOMATIC:{chance.choice(['blue', 'green'])}'")
        try:
            self._insert(cursor, chance, writer, n)
        finally:
            cursor.execute("ROLLBACK")
            cursor.execute("SET SESSION gtid_next = 'AUTOMATIC'")

    def _xa(self, cursor: "Cursor", chance: random.Random, writer: int, n: int) -> None:
        """Two transactions of the binlog, with others between them."""
        name = f"'{self._seed}-{writer}-{n}'"
        cursor.execute(f"XA START {name}")
        try:
            self._insert(cursor, chance, writer, n)
        except pymysql.OperationalError:
            with contextlib.suppress(pymysql.OperationalError):  # it was a deadlock's victim
                cursor.execute(f"XA END {name}")
            cursor.execute(f"XA ROLLBACK {name}")
            return
        cursor.execute(f"XA END {name}")
        cursor.execute(f"XA PREPARE {name}")
        cursor.execute(f"XA {chance.choice(['COMMIT', 'COMMIT', 'ROLLBACK'])} {name}")

    def _change(self, connection: "Connection[Cursor]", first: int) -> None:
        """Tables that come, change and go, and rotations; each round a table of its own."""
        with connection.cursor() as cursor:
            for turn in range(self._rotations + 1):
                table = f"shop.ddl_{first}_{turn}"
                statements = [
                    f"CREATE TABLE {table} (id INT PRIMARY KEY, v VARCHAR(20))",
                    f"INSERT INTO {table} VALUES (1, 'a'), (2, 'b'), (3, NULL)",
                    f"ALTER TABLE {table} ADD COLUMN more INT NOT NULL DEFAULT 7, ADD INDEX (v)",
                    f"UPDATE {table} SET more = 8 WHERE id = 2",
                    f"ALTER TABLE shop.legacy ADD COLUMN c_{first}_{turn} INT DEFAULT {turn}",
                    f"CREATE TABLE {table}_like LIKE {table}",
                    f"INSERT INTO {table}_like SELECT * FROM {table}",
                    f"RENAME TABLE {table}_like TO {table}_old",
                    f"CREATE OR REPLACE VIEW shop.latest AS SELECT * FROM {table}",
                    f"CREATE PROCEDURE {table}_p()\nBEGIN\n  SELECT ';'; -- it's\nEND",
                    f"TRUNCATE TABLE {table}_old",
                    f"CREATE TABLE {table}_copy AS SELECT id, more FROM {table}",
                    "ANALYZE TABLE shop.parent",
                    f"DROP TABLE {table}_old, {table}_copy",
                    f"DROP PROCEDURE {table}_p",
                    *_accounts(f"{first}_{turn}"),
                ]
                for statement in statements:
                    cursor.execute(statement)
                if turn < self._rotations:
                    cursor.execute("FLUSH BINARY LOGS")


def _accounts(number: str) -> list[str]:
    """Statements on accounts that come, are locked, get a role, and go."""
    user, role = f"u_{number}@'%'", f"r_{number}"
    return [
        f"CREATE USER {user} IDENTIFIED BY 'first-Aa1!'",
        f"CREATE USER {user.replace('u_', 'gone_')}",
        f"CREATE ROLE {role}",
        f"GRANT SELECT ON shop.* TO {role}",
        f"GRANT {role} TO {user}",
        f"ALTER USER IF EXISTS {user} IDENTIFIED BY 'second-Aa1!' ACCOUNT LOCK",
        f"GRANT INSERT ON shop.parent TO {user}",
        f"DROP USER IF EXISTS {user.replace('u_', 'gone_')}",
    ]


# a few rows


def create_table(server: MysqlServer) -> None:
    server.query("CREATE DATABASE shop", "CREATE TABLE shop.t (v VARCHAR(100))")


def write(server: MysqlServer, text: str, count: int = 3) -> None:
    """That many transactions."""
    server.query(*[f"INSERT INTO shop.t VALUES ('{text} {n}')" for n in range(count)])


def caught_up(replica: MysqlServer, source: MysqlServer) -> None:
    """Wait until a replica has all that its source has."""
    rows = rows_of(source)
    wait_until(lambda: rows_of(replica) == rows, what=f"{rows} rows on the replica")


def rows_of(server: MysqlServer) -> int:
    found = server.query("SELECT 1 FROM information_schema.tables WHERE table_schema = 'shop'")
    return int(server.query("SELECT COUNT(*) FROM shop.t")[0][0]) if found else -1


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


# what an apply could get wrong


@contextlib.contextmanager
def held_up(server: MysqlServer) -> Iterator[Callable[[], bool]]:
    """In this block nobody comes past HOLD at the server; whether somebody stands there.

    So an apply that has it in its middle is there, and not at its end, however slow the test is.
    """
    server.query("SET sql_log_bin = 0", *_HELD)
    with locked(server, "held.up") as stands:
        yield stands


def write_counting(server: MysqlServer, rounds: int = 150) -> None:
    """What shows if anything is executed twice, or not, or in another order; HOLD is in it."""
    is_mysql = not is_mariadb(server)
    statements = [
        "CREATE DATABASE shop",
        "USE shop",
        "CREATE TABLE n (i INT PRIMARY KEY, v BIGINT)",
        "CREATE TABLE log (i INT AUTO_INCREMENT PRIMARY KEY, v BIGINT)",
        *(f"INSERT INTO n VALUES ({number}, {number})" for number in range(4)),
    ]
    for number in range(rounds):
        if not is_mysql:
            statements += [
                f"SET SESSION gtid_domain_id = {number // 7 % 2}",
                f"SET SESSION binlog_format = {('ROW', 'STATEMENT')[number % 3 == 0]}",
            ]
        statements += [
            f"UPDATE n SET v = v + {number} WHERE i = {number % 4}",
            f"UPDATE n SET v = v * 3 % 1000003 WHERE i = {(number + 1) % 4}",
            f"INSERT INTO log (v) VALUES ({number})",
        ]
        if number % 10 == 3:
            statements += [f"CREATE TABLE t{number} LIKE n", "FLUSH BINARY LOGS"]
        if number == 20:
            statements += HOLD
        if is_mysql and number % 10 == 6:
            statements += [
                f"XA START 'x{number}'",
                f"INSERT INTO n VALUES ({1000 + number}, 0)",
                f"XA END 'x{number}'",
                f"XA PREPARE 'x{number}'",
                f"XA COMMIT 'x{number}'",
            ]
    server.query(*statements)


def write_definitions(server: MysqlServer, rounds: int = 60) -> None:
    """Nearly nothing but definitions, each of which shows if it was done twice; HOLD is in it."""
    statements = [
        "CREATE DATABASE shop",
        "USE shop",
        "CREATE TABLE a (id INT PRIMARY KEY, v INT)",
        "CREATE TABLE b (id INT PRIMARY KEY, other INT)",
        "INSERT INTO a VALUES (1, 1)",
    ]
    for number in range(rounds):
        statements += [
            f"CREATE TABLE t{number} LIKE a",
            f"INSERT INTO t{number} VALUES ({number}, 1)",
            "RENAME TABLE a TO x, b TO a, x TO b",
            f"CREATE VIEW v{number} AS SELECT id FROM a",
            f"ALTER TABLE t{number} ADD INDEX (id)",
        ]
        if number == 8:
            statements += HOLD
    server.query(*statements)


def write_large(server: MysqlServer) -> None:
    """Rows of 300,000 bytes, and one transaction of LARGE_BYTES, without checksums.

    And one of events that are larger than a packet's 16 MiB, or just as large.
    """
    server.query(
        "SET GLOBAL binlog_checksum = NONE",
        "CREATE DATABASE shop",
        "CREATE TABLE shop.a (id INT PRIMARY KEY AUTO_INCREMENT, b LONGBLOB)",
        *("INSERT INTO shop.a (b) VALUES (REPEAT('x', 300000))" for _ in range(12)),
        "FLUSH BINARY LOGS",
        "INSERT INTO shop.a (b) SELECT b FROM shop.a",
        *("INSERT INTO shop.a (b) VALUES (REPEAT('y', 300000))" for _ in range(12)),
        "SET SESSION binlog_format = ROW",
        "BEGIN",
        f"INSERT INTO shop.a (b) VALUES (REPEAT('x', {40 << 20}))",
        f"INSERT INTO shop.a (b) VALUES (REPEAT('y', {(1 << 24) - 100}))",
        "COMMIT",
        "SET GLOBAL binlog_checksum = CRC32",
    )


def write_all_kinds(server: MysqlServer, directory: Path) -> None:
    """What mysqlbinlog and a client could get wrong, over several binlogs."""
    mysql = not is_mariadb(server)
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
