"""Statements that make other rows where they are executed again."""

import os

import pytest

from binlog2s3.binlog.events import EventType
from binlog2s3.recover.unrepeatable import Unrepeatable
from tests.binlog_writer import query_body, statement
from tests.unit.binlog.test_content import squeezed, status_of
from tests.unit.recover.watched import saw


def seen(*texts: str, packed: bool = False) -> Unrepeatable:
    return saw(Unrepeatable(), *map(statement, texts), packed=packed)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(
    "text",
    [
        "ALTER TABLE shop.t ADD id INT AUTO_INCREMENT PRIMARY KEY",
        "alter table t add column (a int, id int(11) unsigned not null auto_increment unique)",
        "ALTER ONLINE TABLE t MODIFY a INT, ADD COLUMN `id` BIGINT COMMENT 'a, b' AUTO_INCREMENT",
        "ALTER TABLE t ADD a INT, AUTO_INCREMENT = 5, ADD b INT AUTO_INCREMENT",
        "ALTER TABLE t ADD serial SERIAL",
        "ALTER TABLE t ADD (a INT, b BIGINT SERIAL DEFAULT VALUE)",
        "ALTER TABLE t MODIFY id INT NOT NULL AUTO_INCREMENT PRIMARY KEY",
        "ALTER TABLE t ADD UNIQUE (id), CHANGE COLUMN a id INT AUTO_INCREMENT FIRST",
        "ALTER TABLE t MODIFY id INT AUTO_INCREMENT, DROP PRIMARY KEY, ADD INDEX (id)",
        "ALTER TABLE t MODIFY id SERIAL",
        "ALTER TABLE t ADD u CHAR(36) DEFAULT (UUID())",
        "ALTER TABLE t ADD r DOUBLE DEFAULT (rand ())",
        "INSERT INTO t VALUES (1, uuid())",
        "INSERT INTO t SELECT CURRENT_USER",
        "REPLACE t SELECT a FROM s LIMIT 3",
        "INSERT INTO t SELECT a FROM s FOR UPDATE SKIP LOCKED",
        "INSERT INTO t SELECT any_value(a) FROM s GROUP BY b",
        "INSERT INTO t SELECT COUNT(*) FROM information_schema.processlist",
        "UPDATE t SET a = (SELECT COUNT(*) FROM performance_schema . threads)",
        "INSERT INTO t VALUES (ENCRYPT('a'))",
        "UPDATE t SET a = SYSDATE(6)",
        "DELETE FROM t WHERE a = 1 LIMIT 1",
        "WITH w AS (SELECT VERSION() AS v) UPDATE t, w SET t.a = w.v",
        "LOAD DATA INFILE 'x' INTO TABLE t (a) SET b = USER()",
        "CREATE TABLE t AS SELECT * FROM s LIMIT 1",
        "CREATE TABLE t AS TABLE s LIMIT 1",
        "SET STATEMENT max_statement_time=1, lock_wait_timeout=1 FOR ALTER TABLE t ADD a SERIAL",
        "ANALYZE FORMAT=JSON UPDATE t SET a = UUID()",
        "UPDATE t SET n = (@i := @i + 1)",
        "INSERT INTO t SELECT @i:=@i+1, a FROM s, (SELECT @i:=0) AS d",
        "UPDATE t SET n = IF(@`a b`=g, @r, (@r := 1)), g=(@`a b` := g)",
        "CREATE TABLE t SELECT a, @i:=@i+1 AS n FROM s",
        "INSERT INTO t SELECT group_concat(DISTINCT a SEPARATOR ',') FROM s ORDER BY 1",
        "CREATE TABLE t AS SELECT JSON_ARRAYAGG(a) FROM s",
        "UPDATE t SET a = (SELECT GROUP_CONCAT(b) FROM s)",
        "INSERT INTO t SELECT ROW_NUMBER() OVER (PARTITION BY (a)), a FROM s",
        "CREATE TABLE t (id INT AUTO_INCREMENT PRIMARY KEY) SELECT a FROM s",
        "UPDATE t SET n = RAND()",
        "INSERT INTO t SELECT a, RAND() FROM s",
        "INSERT IGNORE INTO t SELECT a FROM s",
        "REPLACE INTO t SELECT a FROM s",
        "INSERT INTO t SELECT a FROM s ON DUPLICATE KEY UPDATE n = n + 1",
        "ALTER TABLE t ADD n INT DEFAULT nextval(s)",
        "ALTER TABLE t ADD COLUMN n INT DEFAULT (NEXT VALUE FOR shop.s)",
        "ALTER TABLE t ADD h VARCHAR(60) DEFAULT (@@hostname)",
        "ALTER TABLE t ADD c VARBINARY(99) AS (AES_ENCRYPT(a, b)) STORED",
        "INSERT INTO t VALUES (1, @@server_id)",
        "INSERT INTO t VALUES (1, 2), (2, 3), (3, @@global.sql_mode), (4, 5)",
        "INSERT INTO t VALUES (1, 2), (2, PREVIOUS VALUE FOR s), (4, 5)",
        "UPDATE t SET a = @@session.max_sort_length",
        "UPDATE t SET a = @@`port`",
        "INSERT INTO t SELECT @i := @i + 1, a FROM (SELECT a FROM s ORDER BY a) AS d",
        "UPDATE t SET n = (@i := @i + 1) ORDER BY id",
        "DELETE FROM t ORDER BY id LIMIT 1",
        "INSERT INTO t (SELECT a FROM s ORDER BY a LIMIT 1)",
        "INSERT INTO t SELECT GROUP_CONCAT(a ORDER BY a) FROM s",
        "REPLACE INTO t SELECT a FROM s ORDER BY a",
        "INSERT INTO t SELECT ROW_NUMBER() OVER (ORDER BY a), SUM(b) OVER () FROM s",
        "INSERT INTO t SELECT a, SUM(a) OVER (ORDER BY b ROWS UNBOUNDED PRECEDING) FROM s",
        "INSERT INTO t SELECT a, SUM(a) OVER (ORDER BY b rows 2 PRECEDING) FROM s",
        "INSERT INTO t SELECT a, LAG(a, 1) OVER w FROM s WINDOW w AS (ORDER BY a)",
        "INSERT INTO t SELECT a FROM s ORDER BY a OFFSET 1 ROWS",
        "INSERT INTO t SELECT a FROM s FETCH FIRST ROW ONLY",
        "INSERT IGNORE INTO t TABLE s",
        "CREATE TABLE t (a INT PRIMARY KEY) IGNORE SELECT a FROM s",
        "CREATE OR REPLACE TABLE t (a INT PRIMARY KEY) REPLACE AS SELECT a FROM s",
        "UPDATE IGNORE t SET a = 1 WHERE b > 2",
        "DELETE IGNORE FROM t",
        "ALTER ONLINE IGNORE TABLE t ADD UNIQUE (a)",
        "UPDATE t SET n = RAND() ORDER BY id",
    ],
)
def test_what_makes_other_rows(text: str, packed: bool) -> None:
    """Numbers by the order of the rows in the server, and values of this server and this moment."""
    found = seen(text, packed=packed)
    assert found.number == 1
    assert text[:20] in found.doubt


@pytest.mark.parametrize(
    "text",
    [
        "ALTER TABLE t AUTO_INCREMENT = 5",
        "ALTER TABLE t ADD a INT, AUTO_INCREMENT=5",
        "ALTER TABLE t ADD a INT, AUTO_INCREMENT 5",
        "ALTER TABLE t ADD a INT, MODIFY id INT AUTO_INCREMENT",
        "ALTER TABLE t ADD a INT, CHANGE id id INT AUTO_INCREMENT",
        "ALTER TABLE t DROP KEY k, MODIFY id INT AUTO_INCREMENT, RENAME INDEX a TO b",
        "ALTER TABLE t MODIFY id INT AUTO_INCREMENT, ADD FOREIGN KEY (a) REFERENCES s (a)",
        "ALTER TABLE t MODIFY a INT PRIMARY KEY, AUTO_INCREMENT = 7",
        "ALTER TABLE t MODIFY serial INT PRIMARY KEY, CHANGE serial serial_2 INT",
        "ALTER TABLE t ADD `auto_increment` INT",
        "ALTER TABLE t ALTER INDEX k IGNORED, ADD UNIQUE (a)",
        "ALTER TABLE t ALTER a SET DEFAULT (NEXT VALUE FOR s)",
        "CREATE TABLE t (a INT DEFAULT (NEXT VALUE FOR s))",
        "INSERT INTO t VALUES (1, @a), (2, '@@port'), (3, @b), (@@sql_mode, @@local.time_zone)",
        "INSERT INTO t (next, value) VALUES (1, 2) ON DUPLICATE KEY UPDATE a = @@session.timestamp",
        "ALTER TABLE t ADD a INT COMMENT 'no AUTO_INCREMENT'",
        "ALTER TABLE t ALTER u SET DEFAULT (UUID())",
        "CREATE TABLE t (id INT AUTO_INCREMENT PRIMARY KEY, u CHAR(36) DEFAULT (UUID()))",
        "CREATE VIEW v AS SELECT UUID() FROM t LIMIT 1",
        "CREATE TRIGGER g BEFORE INSERT ON t FOR EACH ROW SET NEW.u = UUID()",
        "CREATE VIEW v AS TABLE s UNION SELECT UUID()",
        "CREATE PROCEDURE p() INSERT INTO t SELECT UUID() FROM s LIMIT 1",
        "INSERT INTO t VALUES ('uuid() LIMIT 1', \"user()\")",
        "INSERT INTO t (`user`, version) VALUES (1, 2)",
        "INSERT INTO t (skip, locked) SELECT skip, any_value FROM s FOR UPDATE",
        "INSERT INTO t (information_schema) VALUES ('performance_schema.threads')",
        "INSERT INTO user (a) VALUES (1)",
        "REPLACE shop.user(a) VALUES (1)",
        "INSERT IGNORE version (a) VALUES (1)",
        "ALTER TABLE t ADD serial INT, ADD COLUMN (serial INT)",
        "INSERT INTO t VALUES (RAND(), CONNECTION_ID(), NOW(6))",
        "GRANT ALL ON shop.* TO CURRENT_USER()",
        "UPDATE t SET id = (@id := id + 1) WHERE name = 'a'",
        "INSERT INTO t VALUES (@i := @i + 1), (@i := @i + 1)",
        "INSERT INTO t SET a = (SELECT 1 FROM s), b = (@i := @i + 1)",
        "LOAD DATA INFILE 'x' INTO TABLE t (a) SET n = (@i := @i + 1)",
        "INSERT INTO t SELECT @a, @a FROM s",
        "INSERT INTO t SELECT COUNT(*) OVER (), SUM(b) OVER (ORDER BY a) FROM s",
        "INSERT INTO t (offset, `rows`) SELECT offset, rows FROM s",
        "LOAD DATA INFILE 'x' IGNORE INTO TABLE t IGNORE 1 ROWS",
        "CREATE OR REPLACE TABLE t AS SELECT a FROM s",
        "CREATE TABLE t AS SELECT REPLACE(a, 'x', 'y') FROM s",
        "INSERT INTO t SELECT REPLACE(a, 'x', 'y') FROM s USE INDEX (k) IGNORE INDEX (j)",
        "UPDATE t SET a = 1, b = b + 1, c = (SELECT MAX(d) FROM s) WHERE id = 5",
        "DELETE FROM t WHERE a IN (1, 2)",
        "UPDATE t IGNORE INDEX (k) SET a = 1",
        "ALTER TABLE t ADD c CHAR(9) AS (REPLACE(a, 'b', 'c')) STORED",
        "INSERT INTO t (a) VALUES (1), (2) ON DUPLICATE KEY UPDATE a = VALUES(a)",
        "UPDATE t SET a = CASE id WHEN 1 THEN 'x' ELSE a END WHERE id IN (1, 2)",
        "CREATE VIEW v AS SELECT GROUP_CONCAT(a) FROM s",
        "INSERT INTO t SELECT a FROM s",
        "INSERT IGNORE INTO t VALUES (1, (SELECT a FROM s))",
        "INSERT INTO t VALUES (1) ON DUPLICATE KEY UPDATE n = (SELECT a FROM s)",
        "CREATE TABLE t (id INT AUTO_INCREMENT PRIMARY KEY)",
    ],
)
def test_what_makes_the_same(text: str) -> None:
    """Or makes no rows."""
    assert seen(text).doubt == ""


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(
    ("key", "number"),
    [
        ("ALTER TABLE shop.t ADD KEY (id)", 1),
        ("ALTER TABLE `T` ADD a DECIMAL(9, 2), ADD CONSTRAINT `c` UNIQUE `k` USING HASH (`ID`)", 1),
        ("ALTER TABLE t ADD COLUMN (a INT, id INT, INDEX k (id, a))", 1),
        ("ALTER TABLE t ADD COLUMN IF NOT EXISTS id INT UNIQUE", 1),
        ("ALTER TABLE t ADD COLUMN id INT COMMENT 'x' UNIQUE KEY AFTER a", 1),
        ("CREATE TABLE IF NOT EXISTS shop.t (a INT, id INT NOT NULL, KEY `k` (`id`)) ENGINE=x", 1),
        ("CREATE UNIQUE INDEX k USING BTREE ON shop.t (id)", 1),
        ("CREATE INDEX k ON `shop`.`t` (id ASC, a)", 1),
        ("SET STATEMENT lock_wait_timeout=1 FOR ALTER TABLE t ADD UNIQUE KEY (id)", 1),
        ("ALTER TABLE t ADD PRIMARY KEY (id)", 0),
        ("ALTER TABLE t ADD CONSTRAINT PRIMARY KEY (id), ADD KEY (a, id)", 0),
        (
            "CREATE TABLE t (id INT PRIMARY KEY, a INT UNIQUE, FOREIGN KEY (id) REFERENCES s (id))",
            0,
        ),
        ("ALTER TABLE s ADD KEY (id)", 0),
        ("ALTER TABLE t ADD FULLTEXT KEY (id), ADD COLUMN `key` INT", 0),
        ("INSERT INTO t VALUES (1) ON DUPLICATE KEY UPDATE id = (id)", 0),
    ],
)
def test_a_column_that_has_its_key_before_its_numbers(key: str, number: int, packed: bool) -> None:
    """Its rows may have the same value, and are numbered in the order of the server."""
    change = "ALTER TABLE shop.t MODIFY COLUMN `id` INT NOT NULL AUTO_INCREMENT"
    found = seen(change, key, change, packed=packed)
    assert found.number == number
    assert ("MODIFY COLUMN" in found.doubt) == bool(number)
    found = seen(key, "ALTER TABLE t CHANGE id number INT AUTO_INCREMENT")
    assert found.number == number


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("INSERT INTO t (a) SELECT a FROM s", 1),
        ("INSERT INTO t (a) (SELECT a FROM s WHERE b IN (1, 2))", 1),
        ("INSERT INTO t (a) SELECT a FROM s ORDER BY a", 1),
        ("INSERT INTO t (a) TABLE s", 1),
        ("LOAD DATA INFILE 'x' INTO TABLE t (a)", 1),
        ("UPDATE t SET a = 1", 1),
        ("DELETE FROM t FOR PORTION OF p FROM '2026-03-01' TO '2026-04-01'", 1),
        ("INSERT INTO t (a) VALUES (1) ON DUPLICATE KEY UPDATE a = 2", 0),
        ("INSERT INTO t (a) VALUES ((SELECT a FROM s))", 0),
        ("INSERT INTO t (a) VALUES (1), (2)", 0),
        ("INSERT INTO t (a) SELECT 1 UNION SELECT 2", 0),
        ("INSERT INTO t (a) SELECT 1 FROM DUAL WHERE NOT EXISTS (SELECT a FROM s)", 0),
    ],
)
def test_numbers_for_rows_of_the_server(text: str, number: int, packed: bool) -> None:
    """The event before tells that this statement, and no later one, gives numbers to rows.

    Beside others, it may have left out numbers that one has taken in vain. An UPDATE's or a
    DELETE's are of a trigger, or of the rows that FOR PORTION OF makes.
    """
    insert_id, last_insert_id = ((EventType.INTVAR, bytes([kind]) + bytes(8)) for kind in (2, 1))
    for before, expected in ((insert_id, number), (last_insert_id, 0)):
        assert saw(Unrepeatable(), before, statement(text), packed=packed).number == expected
    after = statement("INSERT INTO t (a) SELECT a FROM s")
    assert saw(Unrepeatable(), insert_id, statement(text), after, packed=packed).number == number


FULL = 1 << 5


def grouped(text: str, *, sql_mode: int = 0) -> int:
    event = EventType.QUERY, query_body(text, status=status_of(sql_mode))
    return saw(Unrepeatable(), event).number


@pytest.mark.parametrize(
    "query",
    [
        "SELECT a FROM s GROUP BY b",
        "SELECT b, c, COUNT(*) FROM s GROUP BY b",
        "SELECT b AS `a`, `x y` FROM s GROUP BY b, a",
        "SELECT a AS b FROM s GROUP BY b",
        "SELECT DATE(d) AS day, MAX(a) FROM s GROUP BY day",
        "SELECT d, MAX(a) FROM s GROUP BY DATE(d)",
        "SELECT s.a FROM s JOIN r GROUP BY r.a",
        "SELECT *, COUNT(*) FROM s GROUP BY a",
        "SELECT s.*, COUNT(*) FROM s GROUP BY a",
        "SELECT b, (SELECT c FROM r WHERE r.id = s.id) FROM s GROUP BY b",
        "SELECT CONCAT(a, MAX(b)) FROM s",
        "SELECT a FROM s HAVING COUNT(*) > 1",
        "SELECT a, SUM(b) FROM s ORDER BY 1",
        "SELECT SUM(SUM(a)) OVER (ORDER BY c) FROM s GROUP BY b",
        "SELECT CASE a WHEN 1 THEN b ELSE c END FROM s GROUP BY a, b",
        "SELECT 1 UNION ALL (SELECT a FROM s GROUP BY b)",
        "SELECT n FROM (SELECT a AS n FROM s GROUP BY b) AS d",
        "WITH w AS (SELECT a FROM s GROUP BY b) SELECT * FROM w",
        "SELECT b, a FROM s GROUP BY 1",
        "SELECT end, COUNT(*) FROM s GROUP BY b",
        "SELECT b, IF(@v, a, 1) FROM s GROUP BY b",
        "SELECT CAST(b AS CHAR), CONCAT(CAST(b AS CHAR), a) FROM s GROUP BY b",
    ],
)
def test_columns_that_are_not_in_the_group_by(query: str) -> None:
    """They are those of any row of the group, unless the server refuses them."""
    for text in (f"INSERT INTO t {query}", f"CREATE TABLE t AS {query}"):
        assert grouped(text) == 1, text
        assert grouped(text, sql_mode=FULL) == 0, text
    assert grouped(f"CREATE VIEW v AS {query}") == 0
    assert seen(f"UPDATE t, ({query}) AS q SET t.a = 1").number == 1  # not even the mode is known
    chinese = query_body(
        f"INSERT INTO t SELECT '中', d.* FROM ({query}) AS d",
        encoding="gbk",
        status=status_of(0, charset=28),
    )
    assert saw(Unrepeatable(), (EventType.QUERY, chinese)).number == 1


@pytest.mark.parametrize(
    "query",
    [
        "SELECT b, COUNT(*), SUM(a) n FROM s GROUP BY b",
        "SELECT DISTINCT `b` x, COUNT(DISTINCT a) AS c FROM s GROUP BY B HAVING MAX(c) > 1",
        "SELECT DATE(d) AS day, MAX(a) FROM s WHERE a > 1 GROUP BY DATE(d) WITH ROLLUP",
        "SELECT s.b, r.c, b + 1, UPPER(s.b) u FROM s, r GROUP BY s.b, shop.r.c",
        "SELECT YEAR(d), COUNT(*) FROM s GROUP BY 1",
        "SELECT 'x', 1.5, NULL, NOW(), CURRENT_DATE, @a x, MIN(a) FROM s",
        "SELECT _utf8mb4'y' COLLATE utf8mb4_bin, MIN(a) FROM s",
        'SELECT "x", -1e5, TRUE t, COUNT(*) FROM s',
        "SELECT CASE b WHEN 1 THEN 'one' ELSE b END AS what, COUNT(*) FROM s GROUP BY b",
        "SELECT IF(SUM(a) > 1 AND b IS NOT NULL, SUM(a), b) FROM s GROUP BY b ORDER BY a",
        "SELECT CAST(b AS DECIMAL(9, 2)) AS x, CONVERT(b USING utf8mb4), MAX(a) FROM s GROUP BY b",
        "SELECT a, SUM(b) OVER (PARTITION BY c) FROM s",
        "SELECT a, (SELECT MAX(b) FROM r) FROM s",
        "SELECT a FROM s WHERE b IN (SELECT MAX(b) FROM r)",
        "SELECT a, b FROM s HAVING a > 1",
        "SELECT a, `max` FROM s",
        "SELECT RANK() OVER (ORDER BY SUM(a)), b FROM s GROUP BY b",
    ],
)
def test_columns_that_are_in_the_group_by(query: str) -> None:
    """They are the same in all rows of the group."""
    for text in (f"INSERT INTO t {query}", f"CREATE TABLE t AS {query}"):
        assert grouped(text) == 0, text


@pytest.mark.parametrize(
    "update",
    [
        "UPDATE t JOIN s ON s.g = t.g SET t.a = s.a",
        "UPDATE t, s SET a = b WHERE s.g = t.g",
        "UPDATE LOW_PRIORITY (t, s) SET t.a = 1, t.b = UPPER(s.b)",
        "UPDATE t STRAIGHT_JOIN s SET t.a = t.b, s.a = t.a",
        "UPDATE t, s SET t.a = (SELECT MAX(a) FROM r WHERE r.b = s.b)",
        "UPDATE /* a=b */ shop.t AS x, s SET x.a = t.a",
        "WITH w AS (SELECT a FROM s) UPDATE t, w SET t.a = w.a",
        "WITH w AS (SELECT 1) UPDATE t JOIN s USING (g) SET t.a = IF(t.b, 1, `s`.`a`)",
        "SET STATEMENT max_statement_time=1 FOR UPDATE t, s SET t.a = concat(s.a, '')",
        "ANALYZE UPDATE t, s SET t.a = s.a",
    ],
)
def test_an_update_by_any_row_of_a_join(update: str) -> None:
    """What another table has is of any row that matches, if several do."""
    assert seen(update).number == 1


@pytest.mark.parametrize(
    "update",
    [
        "UPDATE t JOIN s ON s.g = t.g SET t.a = 1, t.b = 'x', t.c = NOW(), t.d = NULL, s.d = @v",
        "UPDATE t, s SET t.a = t.a + 1, t.b = IF(t.b > 2, DEFAULT, t.c), s.n = s.n - 1",
        'UPDATE t, s SET a = a + 1, b = "b"',
        "UPDATE t USE INDEX (k, j) SET a = b, b = c",
        "UPDATE t PARTITION (p0, p1) SET a = b",
        "UPDATE t SET a = (SELECT MAX(s.b) FROM s, r) WHERE t.c IN (1, 2)",
        "INSERT INTO t SELECT a FROM s, r FOR UPDATE",
        "DELETE t FROM t JOIN s ON s.g = t.g",
        "INSERT INTO t VALUES (1, 2) ON DUPLICATE KEY UPDATE a = b, b = VALUES(a)",
    ],
)
def test_an_update_that_takes_nothing_of_a_join(update: str) -> None:
    """Each row has its own, or the same value."""
    assert seen(update).number == 0


def test_an_update_whose_join_cannot_be_told() -> None:
    """What is behind a letter that may look like a quote may be of another table."""
    for tables, number in (("t, s", 1), ("t", 0)):
        text = f"UPDATE {tables} SET t.a = '中', t.b = 1"
        body = query_body(text, status=status_of(0, charset=28), encoding="gbk")
        assert saw(Unrepeatable(), (EventType.QUERY, body)).number == number


def test_a_key_that_cannot_be_told() -> None:
    """What is lost may have made the key: a change of any column to AUTO_INCREMENT counts then."""
    change = "ALTER TABLE t MODIFY id INT AUTO_INCREMENT"
    key = "ALTER TABLE t ADD COLUMN a INT COMMENT '中', ADD KEY (id)"
    gbk = (EventType.QUERY, query_body(key, status=status_of(0, charset=28), encoding="gbk"))
    assert saw(Unrepeatable(), gbk, statement(change)).number == 1
    many = [statement(f"CREATE INDEX k ON t{number} (id)") for number in range(3)]
    assert saw(Unrepeatable(most_keys=2), *many, statement(change)).number == 1
    assert saw(Unrepeatable(most_keys=3), *many, statement(change)).number == 0


def test_several_without_their_passwords() -> None:
    """The first one is named."""
    doubt = seen("INSERT INTO t VALUES (UUID(), PASSWORD('secret'))", "DELETE FROM t LIMIT 1").doubt
    assert "this statement and 1 more" in doubt
    assert "INSERT INTO t" in doubt
    assert "secret" not in doubt


LONG = {
    "UUID": "INSERT INTO t VALUES ({}), (UUID(), 1)",
    "limit": "DELETE FROM t WHERE a IN ({}) LIMIT 1",
    "alter": "ALTER TABLE t ADD a INT, ADD CHECK (b IN ({})), ADD id INT AUTO_INCREMENT UNIQUE",
}


@pytest.mark.parametrize("form", ["plain", "packed", "mariadb"])
@pytest.mark.parametrize("text", LONG.values(), ids=LONG)
def test_a_long_statement(text: str, form: str) -> None:
    """It is looked at to its end: behind what is parsed at first, and behind what is held."""
    for size in (20_000, 200_000, 1_200_000):
        for value in ("'it''s a \\'UUID() LIMIT',", "1, 2, 3, ", f"'{'x' * 99_999}\\\\', "):
            whole = text.format(value * (size // len(value) + 1) + "1")
            event = EventType.QUERY, query_body(whole, status=status_of(0))
            if form == "mariadb":
                packed = squeezed(whole.encode())
                event = EventType.QUERY_COMPRESSED, query_body("", status=status_of(0)) + packed
            found = saw(Unrepeatable(), event, packed=form == "packed")
            assert found.number == 1, (size, value)
            assert text[:20] in found.doubt


@pytest.mark.parametrize("form", ["plain", "packed", "mariadb"])
def test_a_long_statement_that_makes_the_same(form: str) -> None:
    """A bulk INSERT, whose strings have such words."""
    for size in (20_000, 200_000, 1_200_000):
        value = "('UUID() LIMIT 1', '/* it''s \\' -- ', 1),"
        whole = "INSERT INTO t VALUES " + value * (size // len(value)) + "(1, 2, 3)"
        event = EventType.QUERY, query_body(whole, status=status_of(0))
        if form == "mariadb":
            event = (
                EventType.QUERY_COMPRESSED,
                query_body("", status=status_of(0)) + squeezed(whole.encode()),
            )
        assert saw(Unrepeatable(), event, packed=form == "packed").doubt == "", size


def test_a_charset_in_which_a_letter_may_look_like_a_quote() -> None:
    """What cannot be told apart counts, unless no such word is in it."""

    def gbk(text: str) -> Unrepeatable:
        body = query_body(text, status=status_of(0, charset=28), encoding="gbk")
        return saw(Unrepeatable(), (EventType.QUERY, body))

    assert gbk("INSERT INTO t VALUES ('中', UUID())").number == 1
    assert gbk("ALTER TABLE t ADD a INT COMMENT '中', ADD id INT AUTO_INCREMENT").number == 1
    assert gbk("ALTER TABLE t COMMENT '中' AUTO_INCREMENT = 5").doubt == ""
    assert gbk("INSERT INTO t VALUES ('中', 'the limit of a user')").doubt == ""


def test_a_statement_that_cannot_be_read() -> None:
    """It may be such a one."""
    broken = squeezed(os.urandom(200_000))[:-9]
    body = query_body("", status=status_of(0)) + broken
    doubt = saw(Unrepeatable(), (EventType.QUERY_COMPRESSED, body)).doubt
    assert "not all statements of the binlogs could be read" in doubt
