"""Two servers: what one has written is brought to the other; how to see that all of it arrived."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from binlog2s3.login import Login
from lab.mysql import MysqlServer
from tests.own_files import Own, own

OWN = ("mysql", "information_schema", "performance_schema", "sys")
RELAXED = ("--sync-binlog=0", "--innodb-flush-log-at-trx-commit=2")


@dataclass(frozen=True, slots=True)
class Pair:
    """Two servers: what one has written is brought to the other."""

    source: MysqlServer
    target: MysqlServer

    @property
    def is_mysql(self) -> bool:
        return self.source.binaries.flavour == "mysql"

    def login(self, **changes: Any) -> Login:
        settings: dict[str, Any] = {
            "host": "127.0.0.1",
            "port": self.target.port,
            "socket": str(self.target.socket),
            "user": "root",
            "password": "",
            "ssl_mode": "PREFERRED",
            "ssl_ca": None,
            "ssl_cert": None,
            "ssl_key": None,
            "connect_timeout": 10.0,
        }
        return Login(**(settings | changes))

    def files(self, **options: Any) -> Own:
        """All that the source has written."""
        return own(self.source.datadir, [name for name, _ in self.source.binlogs()], **options)

    def clear(self) -> None:
        """Both as new."""
        for server in (self.source, self.target):
            _clear(server)


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
