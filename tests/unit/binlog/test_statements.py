import random

import pytest

from binlog2s3.binlog.statements import (
    ANSI_QUOTES,
    NO_BACKSLASH_ESCAPES,
    PLAIN,
    TokenStream,
    Writing,
    statement_of,
    without_secrets,
)


def read_statement(
    text: str, db: str, *, cut: bool = False, writing: Writing = PLAIN
) -> tuple[str, tuple[str, ...]] | None:
    """Kind and tables."""
    found = statement_of(text, db, cut=cut, writing=writing)
    return None if found is None else (found.kind, found.tables)


ONE_TABLE = {
    "insert into a values (1)": ("insert", "t.a"),
    "INSERT LOW_PRIORITY IGNORE INTO `a` SET x = 'update b'": ("insert", "t.a"),
    "INSERT a VALUES (1)": ("insert", "t.a"),
    "REPLACE INTO o.a SELECT * FROM b": ("insert", "o.a"),
    "LOAD DATA LOCAL INFILE 'into table x' REPLACE INTO TABLE `a` FIELDS": ("insert", "t.a"),
    "UPDATE LOW_PRIORITY o . a SET x = 1": ("update", "o.a"),
    "UPDATE a AS z SET x = 1": ("update", "t.a"),
    "UPDATE a z SET x = 1": ("update", "t.a"),
    "UPDATE a, b SET x = 1": ("update", ""),
    "UPDATE a JOIN b USING (id) SET x = 1": ("update", ""),
    "UPDATE (SELECT 1) z SET x = 1": ("update", ""),
    "DELETE FROM a": ("delete", "t.a"),
    "DELETE QUICK FROM a WHERE x = 1": ("delete", "t.a"),
    "DELETE FROM a USING a JOIN b": ("delete", ""),
    "DELETE FROM a, b USING a JOIN b": ("delete", ""),
    "DELETE FROM a.* USING a JOIN b": ("delete", ""),
    "DELETE a FROM a JOIN b": ("delete", ""),
    "CREATE TABLE a (x INT)": ("ddl", "t.a"),
    "create or replace temporary table if not exists a (x INT)": ("ddl", "t.a"),
    "CREATE TABLE`a`(x INT)": ("ddl", "t.a"),
    "CREATE TABLE `a.b``c`.`d` (x INT)": ("ddl", "`a.b``c`.d"),
    'CREATE TABLE "a" (x INT)': ("ddl", "t.a"),
    "CREATE TABLE größe (x INT)": ("ddl", "t.größe"),
    "CREATE SEQUENCE a": ("ddl", "t.a"),
    "ALTER ONLINE IGNORE TABLE IF EXISTS a ADD x INT": ("ddl", "t.a"),
    "/*!40000 ALTER TABLE `a` DISABLE KEYS */": ("ddl", "t.a"),
    "/*M!100100 ALTER TABLE `a` ADD x INT */": ("ddl", "t.a"),
    "-- drop table b\n# and c\n/* * / */ DROP TABLE /* really */ a": ("ddl", "t.a"),
    "TRUNCATE a": ("ddl", "t.a"),
    "TRUNCATE TABLE o.a": ("ddl", "o.a"),
    "CREATE INDEX i ON a (x)": ("ddl", "t.a"),
    "CREATE UNIQUE INDEX IF NOT EXISTS `on` USING BTREE ON o.a (x)": ("ddl", "o.a"),
    "CREATE OR REPLACE FULLTEXT INDEX i ON a (x)": ("ddl", "t.a"),
    "DROP INDEX on ON a": ("ddl", "t.a"),
    "DROP INDEX IF EXISTS i ON a": ("ddl", "t.a"),
    "CREATE DATABASE IF NOT EXISTS `a`": ("ddl", "a.*"),
    "DROP SCHEMA a": ("ddl", "a.*"),
    "DROP DATABASE `a.b`": ("ddl", "`a.b`.*"),
    "DROP DATABASE a.b": ("ddl", ""),
    "DROP TABLE a.`*`": ("ddl", "a.`*`"),
    "ALTER DATABASE a CHARACTER SET utf8mb4": ("ddl", "a.*"),
    "ALTER DATABASE CHARACTER SET utf8mb4": ("ddl", "t.*"),
    "CREATE VIEW a AS SELECT 1": ("ddl", ""),
    "CREATE TABLESPACE a": ("ddl", ""),
    "CREATE TRIGGER a BEFORE INSERT ON b FOR EACH ROW SET x = 1": ("ddl", ""),
    "DROP USER a": ("ddl", ""),
    "RENAME USER a TO b": ("ddl", ""),
    "CREATE": ("ddl", ""),
    "CREATE TABLE": ("ddl", ""),
    "DROP TABLE ``": ("ddl", ""),
    "DROP TABLE a.b.c": ("ddl", ""),
    "DROP TABLE 'a'": ("ddl", ""),
    "DROP TABLE `abc": ("ddl", ""),
    "GRANT ALL ON a.* TO b": ("ddl", ""),
    "SET PASSWORD FOR a = 'x'": ("ddl", ""),
    "ANALYZE TABLE a": ("other", ""),
    "WITH a AS (SELECT 1) UPDATE b SET x = 1": ("update", "t.b"),
    "with recursive `a` (x, y) as (select 1, f(')') union select 2, (3)), c AS (SELECT 4) "
    "DELETE FROM o.b WHERE x IN (SELECT x FROM a)": ("delete", "o.b"),
    "WITH a AS (SELECT 1) UPDATE b JOIN a SET b.x = 1": ("update", ""),
    "WITH a AS (SELECT 1) SELECT f(x) FROM a": ("other", ""),
    "WITH a AS (SELECT 1": ("other", ""),
    "WITH a AS (SELECT 1)": ("other", ""),
    "WITH a AS SELECT 1": ("other", ""),
    "WITH": ("other", ""),
    "'INSERT' INTO a": ("other", ""),
    "SELECT f()": ("other", ""),
    "SET STATEMENT max_statement_time=5, a='FOR' FOR DELETE FROM o.a": ("delete", "o.a"),
    "SET STATEMENT max_statement_time=5": ("other", ""),
    "ANALYZE FORMAT=JSON UPDATE a SET x = 1": ("update", "t.a"),
    "ANALYZE NO_WRITE_TO_BINLOG TABLE a": ("other", ""),
    "DELETE HISTORY FROM a BEFORE SYSTEM_TIME '2026-01-01'": ("delete", "t.a"),
    "BEGIN NOT ATOMIC DELETE FROM a; END": ("other", ""),
    "\0\xff": ("other", ""),
}


@pytest.mark.parametrize("text", ONE_TABLE)
def test_a_statement_of_at_most_one_table(text: str) -> None:
    """Kind and table, however it is written; no table where it could be several or none."""
    kind, table = ONE_TABLE[text]
    assert read_statement(text, "t") == (kind, (table,))


ALSO = {
    "INSERT INTO a VALUES (1) ON DUPLICATE KEY UPDATE x = 2": {"update"},
    "INSERT INTO a VALUES ('on duplicate key update')": set(),
    "REPLACE INTO a VALUES (1)": {"delete"},
    "LOAD DATA INFILE 'x' REPLACE INTO TABLE a": {"delete"},
    "LOAD DATA INFILE 'replace' IGNORE INTO TABLE a": set(),
    "UPDATE a SET x = 1": set(),
    "UPDATE a FOR PORTION OF p FROM '1' TO '2' SET x = 1": {"insert"},
    "DELETE FROM a FOR PORTION OF p FROM '1' TO '2'": {"insert", "update"},
    "DELETE FROM a": set(),
    "TRUNCATE a": {"delete"},
    "ALTER TABLE a DROP PARTITION p": {"insert", "delete"},
    "ALTER TABLE a ADD x INT": set(),
    "DROP TABLE a": {"drop"},
    "DROP VIEW a": {"drop"},
    "CREATE TABLE a (x INT)": set(),
    "CREATE TABLE a SELECT 1": {"insert"},
    "CREATE TABLE a AS VALUES ROW(1)": {"insert"},
    "CREATE TABLE a TABLE b": {"insert"},
    "CREATE TABLE a (x INT) PARTITION BY RANGE (x) (PARTITION p VALUES LESS THAN (1))": set(),
    "CREATE OR REPLACE TABLE a (x INT)": {"drop"},
    "CREATE VIEW a AS SELECT 1": set(),
    "SET STATEMENT a = 1 FOR REPLACE INTO a VALUES (1)": {"delete"},
}


@pytest.mark.parametrize("text", ALSO)
def test_what_a_statement_may_do_besides(text: str) -> None:
    """Rows that it replaces or splits, those that it takes away with what they are in."""
    found = statement_of(text, "t")
    assert found is not None
    assert found.also == ALSO[text]


def test_what_is_cut_may_do_anything_that_its_kind_may() -> None:
    """What follows is not known."""
    for text, also in (
        ("INSERT INTO a VALUES (1), ", {"update"}),
        ("LOAD DATA INFILE 'x", {"delete"}),
        ("CREATE TABLE a (", {"insert"}),
    ):
        found = statement_of(text, "t", cut=True)
        assert found is not None
        assert found.also == also


@pytest.mark.parametrize(
    ("sql_mode", "string", "ends"),
    [
        (0, r"'C:\\'", True),
        (0, r"'C:\'", False),
        (NO_BACKSLASH_ESCAPES, r"'C:\\'", True),
        (NO_BACKSLASH_ESCAPES, r"'C:\'", True),
        (NO_BACKSLASH_ESCAPES | ANSI_QUOTES, r"'C:\'", True),
        (ANSI_QUOTES, r"'C:\\'", True),
        (ANSI_QUOTES, r"'C:\'", False),
        (None, r"'C:'", True),
    ],
)
def test_where_a_string_ends_is_what_the_sql_mode_says(
    sql_mode: int | None, string: str, *, ends: bool
) -> None:
    """The name behind it is one; a name in it is none."""
    text = f"ALTER TABLE a COMMENT {string}, RENAME TO b, COMMENT ''"
    found = statement_of(text, "t", writing=Writing(sql_mode=sql_mode))
    assert found is not None
    assert ("b" in list(found.clear.names())) is ends
    assert not found.clear.cut


@pytest.mark.parametrize(
    ("text", "mysql", "mariadb"),
    [
        ("/*M!999999 it's */ ALTER TABLE a RENAME TO b", ("t.a",), ("",)),
        ("DROP TABLE a /*M!100100 , b */", ("t.a",), ("t.a", "t.b")),
        ("DROP TABLE /*!50000 a */", ("t.a",), ("t.a",)),
        ("--\x01 it's\nDROP TABLE a", ("t.a",), ("t.a",)),
    ],
)
def test_what_is_a_comment_is_what_the_server_says(
    text: str, mysql: tuple[str, ...], mariadb: tuple[str, ...]
) -> None:
    """A quote in a comment begins no string. Servers log no /*M! and /*! that they skipped."""
    for writing, tables in (
        (Writing(sql_mode=0, mysql=True), mysql),
        (Writing(sql_mode=0), mariadb),
    ):
        found = statement_of(text, "t", writing=writing)
        assert found is not None
        assert found.tables == tables


def test_a_quoted_name_may_end_with_a_backslash() -> None:
    """With ANSI_QUOTES there are no escapes in it."""
    found = statement_of('ALTER TABLE "a\\" RENAME TO "b"', "t", writing=Writing(ANSI_QUOTES))
    assert found is not None
    assert found.tables == ("t.a\\",)
    assert "b" in list(found.clear.names())


def test_what_nobody_can_tell_ends_the_text() -> None:
    """A backslash without a sql_mode; a charset in which half a character may be a quote."""
    for writing, text in (
        (Writing(), "ALTER TABLE a COMMENT 'C:\\', RENAME TO b"),
        (Writing(sql_mode=0, apart=False), "ALTER TABLE a COMMENT 'ï\\', RENAME TO b"),
    ):
        found = statement_of(text, "t", writing=writing)
        assert found is not None
        assert found.clear.cut
        assert found.tables == ("t.a",)
    found = statement_of("UPDATE a SET x = 'ä'", "t", writing=Writing(sql_mode=0))
    assert found is not None
    assert not found.clear.cut


def test_no_text_is_too_deep() -> None:
    """Statements within statements are a loop."""
    assert statement_of("ANALYZE " * 9000 + "SET STATEMENT x FOR " * 9000 + "DELETE", "t")


def test_statements_of_many_tables() -> None:
    """A DROP and a RENAME name all of theirs, each once."""
    text = "DROP TABLES IF EXISTS a, `o`.b ,`a`, c /* generated by server */"
    assert read_statement(text, "t") == ("ddl", ("t.a", "o.b", "t.c"))
    assert read_statement("RENAME TABLE a TO o.b, c TO d", "t") == (
        "ddl",
        ("t.a", "o.b", "t.c", "t.d"),
    )
    assert read_statement("ALTER TABLE a RENAME TO b, ADD x INT", "t") == ("ddl", ("t.a",))


@pytest.mark.parametrize(
    "text",
    ["", "BEGIN", "commit", "ROLLBACK TO a", "SAVEPOINT `a`", "XA START X'01'", "/* x */ BEGIN",
     "RELEASE SAVEPOINT a", "START TRANSACTION"],
)  # fmt: skip
def test_what_only_frames_a_transaction_is_nothing(text: str) -> None:
    """No change, no statement."""
    assert read_statement(text, "t") is None


def test_without_a_database_a_name_is_not_known() -> None:
    """Unless the name has one."""
    assert read_statement("DROP TABLE a, o.b", "") == ("ddl", ("",))
    assert read_statement("DROP TABLE o.b", "") == ("ddl", ("o.b",))


def test_a_name_that_was_cut_is_no_name() -> None:
    """The tables before it are."""
    assert read_statement("DROP TABLE a, bcd", "t", cut=True) == ("ddl", ("t.a",))
    assert read_statement("DROP TABLE a, `bcd", "t", cut=True) == ("ddl", ("t.a",))
    assert read_statement("DROP TABLE a, bcd", "t") == ("ddl", ("t.a", "t.bcd"))
    assert read_statement("DELETE FROM a", "t", cut=True) == ("delete", ("",))
    assert read_statement("DELETE FROM a ", "t", cut=True) == ("delete", ("t.a",))


def test_no_text_is_refused() -> None:
    """Words, quotes and marks in any order."""
    dice = random.Random(7)
    parts = ["CREATE", "TABLE", "DROP", "INDEX", "ON", "a", "`", '"', "'", "/*", "*/", "/*!5", ".",
             ",", " ", "\\", "--", "#", "\n", "INSERT", "INTO", "DELETE", "FROM", "(", "é", "\0",
             "UPDATE", "SET", "LOAD", "RENAME", "TO", "DATABASE"]  # fmt: skip
    for _ in range(3000):
        text = " ".join(dice.choices(parts, k=dice.randrange(9)))
        for cut in (False, True):
            found = read_statement(text, "t", cut=cut)
            assert found is None or found[1]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (
            "CREATE USER 'a'@'%' IDENTIFIED WITH 'sha' AS '$A$it''s\\' s', 'b' IDENTIFIED AS \"x\"",
            "CREATE USER 'a'@'%' IDENTIFIED WITH '...' AS '...', '...' IDENTIFIED AS '...'",
        ),
        ("alter user a identified by password 0xAB12", "alter user a identified by password '...'"),
        ("SET PASSWORD FOR 'a' = 'secret", "SET PASSWORD FOR '...' = '...'"),
        ("ALTER TABLE a COMMENT 'x'", "ALTER TABLE a COMMENT 'x'"),
        ("ALTER TABLE a ADD password_of INT COMMENT 'x'",) * 2,
    ],
)
def test_passwords_are_not_shown(text: str, shown: str) -> None:
    """Nor their hashes, also where the text ends within one."""
    assert without_secrets(text) == shown


def test_passwords_are_not_shown_whatever_the_sql_mode() -> None:
    """With a backslash before the quote that ends one; and nothing where that cannot be told."""
    text = "CREATE USER a IDENTIFIED BY 'one\\', b IDENTIFIED BY 'two'"
    mode = Writing(sql_mode=NO_BACKSLASH_ESCAPES)
    assert without_secrets(text, mode) == (
        "CREATE USER a IDENTIFIED BY '...', b IDENTIFIED BY '...'"
    )
    assert without_secrets(text, Writing()) == "CREATE USER a IDENTIFIED BY '...'..."


@pytest.mark.parametrize("mode", [0, NO_BACKSLASH_ESCAPES, ANSI_QUOTES])
@pytest.mark.parametrize("mysql", [True, False])
@pytest.mark.parametrize("seed", range(20))
def test_tokens_of_a_text_in_pieces(mode: int, mysql: bool, seed: int) -> None:
    """They are those of the whole text, wherever it is cut; rows without telling words are none."""
    writing = Writing(sql_mode=mode, mysql=mysql)
    dice = random.Random(seed)
    marks = [
        "'",
        "''",
        '"',
        "`",
        "\\",
        "\\\\",
        "/*",
        "*/",
        "/*!50001 ",
        "/*M!",
        "--",
        "-- ",
        "#",
        "\n",
    ]
    rows = [", (1, 'it\\'s', -2), (NULL, 0x00)", ", (uuid(), 2)", ", (1)", ",", "('a')", "é"]
    long = ["x" * 150, " " * 150, "*" * 151, "''" * 70, "\\" * 151, "\\" * 152]
    text = "".join(dice.choice([*marks, *rows, *long, "a", " ", "limit "]) for _ in range(150))
    whole = [
        (match.lastgroup, match[0])
        for match in writing.tokens.finditer(text)
        if match.lastgroup != "space"
    ]

    def streamed(size: int, telling: frozenset[str]) -> list[tuple[str, str]]:
        tokens, data = TokenStream(writing, telling), text.encode()
        found = [
            one for at in range(0, len(data), size) for one in tokens.feed(data[at : at + size])
        ]
        return [*found, *tokens.end()]

    def words(tokens: list[tuple[str, str]]) -> list[str]:
        return [text for kind, text in tokens if text.upper() in ("LIMIT", "UUID")]

    for size in (1, 2, 3, 7, 50, 10_000):
        found = streamed(size, frozenset())
        assert [kind for kind, _ in found] == [kind for kind, _ in whole], size
        plain = [text for kind, text in whole if kind in ("word", "mark")]
        assert [text for kind, text in found if kind in ("word", "mark")] == [
            text[:100] for text in plain
        ], size
        assert words(streamed(size, frozenset({"LIMIT", "UUID"}))) == words(found)
