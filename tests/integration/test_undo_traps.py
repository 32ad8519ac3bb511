"""Undo on real servers where it could be inexact, name the wrong one, or disturb others."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pymysql
import pytest

from lab.disk import temporary_directory
from lab.mysql import server_of
from tests.golden.buckets import Golden
from tests.golden.outputs import Called, called
from tests.integration.test_undo import NEWEST, K, Place, place
from tests.memory_client import MemoryClient
from tests.snapshots import LAYOUT
from tests.world.servers import flush, uuid_of

__all__ = ["place"]
pytestmark = NEWEST  # test_undo.py has each version
SCRATCH = "SHOW DATABASES LIKE 'binlog2s3%'"


def test_another_undo_is_left_alone(place: Place) -> None:
    """One at a time: the second neither drops the scratch tables of the first, nor logs a DROP."""
    place.begin(*K)
    gtid = place.transaction("UPDATE k SET b = 'y'")
    with place.server.connect() as first, first.cursor() as cursor:
        cursor.execute("SELECT GET_LOCK('binlog2s3_undo', 0)")
        cursor.execute("SET sql_log_bin = 0")
        cursor.execute("CREATE DATABASE binlog2s3_undo")
        done = place.undo(f"--gtid={gtid}")
        assert done.code == 8
        assert "another undo" in done.err
        assert len(place.server.query(SCRATCH)) == 1
        assert place.last_gtid() == gtid
    place.undone(gtid)


class Watched(MemoryClient):
    """Calls a function before each read of the bucket."""

    def __init__(self, golden: Golden, called: Callable[[], None]) -> None:
        super().__init__(golden.client.store, lambda: golden.now)
        self._called = called

    def get_object(self, **given: Any) -> Any:
        self._called()
        return super().get_object(**given)


def watched(place: Place, gtid: str, seen: Callable[[], None]) -> Called:
    """An undo whose reads of the bucket are seen."""
    golden = place.bucket()
    client = Watched(golden, seen)
    return called(Golden(client=client, now=golden.now), place.words(f"--gtid={gtid}", "--yes"))


def test_no_lock_is_held_while_the_archive_is_read(place: Place) -> None:
    """Searching for who changed a row may take minutes."""
    place.begin(*K)
    gtid = place.transaction("UPDATE k SET b = 'y'")
    culprit = place.transaction("UPDATE k SET b = 'later' WHERE id = 2")
    running = "SELECT COUNT(*) FROM information_schema.processlist WHERE db = 'binlog2s3_undo'"
    seen = set[int]()
    done = watched(place, gtid, lambda: seen.update(place.server.query(running)[0]))
    assert f"by {culprit}" in done.err
    assert seen == {0}


def test_a_server_that_has_become_read_only_meanwhile_is_refused(place: Place) -> None:
    """Another one may be written to now; an account that may write all the same does not."""
    place.begin(*K)
    gtid = place.transaction("UPDATE k SET b = 'y'")
    state = place.state("k")
    try:
        done = watched(place, gtid, lambda: void(place.server.query("SET GLOBAL read_only = 1")))
        assert done.code == 8
        assert "read-only" in done.err
    finally:
        place.server.query("SET GLOBAL read_only = 0")
    assert place.state("k") == state


def void(_: object) -> None:
    pass


def test_the_culprit_is_of_the_same_table_and_the_last_one(place: Place) -> None:
    """Rows of two tables may look the same, and a row may have looked so twice."""
    place.begin(*K, "CREATE TABLE o LIKE k", "INSERT INTO o SELECT * FROM k")
    gtid = place.transaction("UPDATE k SET b = 'y'", "UPDATE o SET b = 'y'")
    place.transaction("UPDATE k SET b = 'later' WHERE id = 2")
    place.transaction("UPDATE o SET b = 'later' WHERE id = 2")
    place.transaction("UPDATE o SET b = 'y' WHERE id = 2")
    culprit = place.transaction("UPDATE o SET b = 'last' WHERE id = 2")
    done = place.refused(f"--gtid={gtid}", why="shop.o (id=2) changed")
    assert f"by {culprit}" in done.err, done.err


def test_an_undo_that_was_undone_is_no_reason(place: Place) -> None:
    """Then the later change is named, and not the undo."""
    place.begin(*K)
    gtid = place.transaction("UPDATE k SET b = 'y'")
    place.undone(gtid)
    place.undone(place.last_gtid())
    culprit = place.transaction("UPDATE k SET b = 'last' WHERE id = 2")
    done = place.refused(f"--gtid={gtid}", why="(id=2) changed")
    assert f"by {culprit}" in done.err, done.err
    assert "undone already" not in done.err


@pytest.mark.parametrize("between", ["UPDATE k SET b = 'x' WHERE id = 1",
                                     "UPDATE k SET b = 'w' WHERE id = 1"])  # fmt: skip
def test_a_change_between_two_that_are_undone_is_a_conflict(place: Place, between: str) -> None:
    """Rows with one key cannot be compared at once."""
    place.begin(*K)
    one = place.transaction("UPDATE k SET b = 'y' WHERE id = 1")
    culprit = place.transaction(between)
    other = place.transaction("UPDATE k SET b = 'y' WHERE id = 1")
    done = place.refused(f"--gtid={one}", f"--gtid={other}")
    if "'w'" in between:
        assert f"(id=1) changed, by {culprit}" in done.err
    else:
        assert "rows were set back since" in done.err
    place.undone(one, other, more=["--skip-conflicts"])
    b = "x" if "'x'" in between else "w"
    assert place.server.query("SELECT b FROM shop.k WHERE id = 1") == [(b,)]


def test_rows_that_came_again_between_are_a_conflict(place: Place) -> None:
    """Or went again."""
    place.begin(*K)
    one = place.transaction("DELETE FROM k WHERE id = 1")
    place.transaction("INSERT INTO k VALUES (1, 1, 'x')")
    other = place.transaction("DELETE FROM k WHERE id = 1")
    place.refused(f"--gtid={one}", f"--gtid={other}", why="set back since")
    one = place.transaction("INSERT INTO k VALUES (8, 1, 'x')")
    place.transaction("DELETE FROM k WHERE id = 8")
    other = place.transaction("INSERT INTO k VALUES (8, 1, 'x')")
    place.refused(f"--gtid={one}", f"--gtid={other}", why="set back since")


NAMES = [("shop", "café", "k"), ("shöp", "k-1", "k"), ("shop-1", "k", "k ä"),
         ("shop", "Ünï", "tabelle"), ("shöp", "表", "x$")]  # fmt: skip


@pytest.mark.parametrize(("database", "parent", "child"), NAMES)
def test_foreign_keys_are_found_whatever_the_names(
    place: Place, database: str, parent: str, child: str
) -> None:
    """InnoDB's list has names in a form of its own."""
    place.begin(f"DROP DATABASE IF EXISTS `{database}`", f"CREATE DATABASE `{database}`",
                f"USE `{database}`",
                f"CREATE TABLE `{parent}` (id INT PRIMARY KEY, a INT)",
                f"INSERT INTO `{parent}` VALUES (1, 1)",
                f"CREATE TABLE `{child}` (id INT PRIMARY KEY, p INT, FOREIGN KEY (p) "
                f"REFERENCES `{parent}` (id) ON DELETE CASCADE)")  # fmt: skip
    gtid = place.transaction(f"INSERT INTO `{database}`.`{parent}` VALUES (2, 2)")
    place.refused(f"--gtid={gtid}", why="refers to it")
    place.server.query("SET sql_log_bin = 0", f"DROP DATABASE IF EXISTS `{database}`")


@pytest.fixture
def elsewhere(place: Place) -> Iterator[Place]:
    """Its sessions have another time zone and SQL mode."""
    old = place.server.query("SELECT @@global.time_zone, @@global.sql_mode")[0]
    mode = "ANSI,NO_BACKSLASH_ESCAPES,TRADITIONAL"
    place.server.query("SET GLOBAL time_zone = '+05:00'", f"SET GLOBAL sql_mode = '{mode}'")
    yield place
    place.server.query(f"SET GLOBAL time_zone = '{old[0]}'", f"SET GLOBAL sql_mode = '{old[1]}'")


def test_a_servers_settings_do_not_matter(elsewhere: Place) -> None:
    """Definitions look different in other time zones and modes."""
    place = elsewhere
    place.begin("SET SESSION sql_mode = ''",
                "CREATE TABLE k (id INT PRIMARY KEY, b VARCHAR(20) DEFAULT 'it\\'s', "
                "t TIMESTAMP NOT NULL DEFAULT '2020-01-01 00:00:00' ON UPDATE CURRENT_TIMESTAMP)",
                "INSERT INTO k VALUES (1, 'x', '2024-01-01 03:00:00')")  # fmt: skip
    before = place.state("k")
    gtid = place.transaction("UPDATE k SET b = 'y'")
    place.undone(gtid)
    assert place.state("k") == before


@pytest.mark.parametrize(
    "expression",
    ["DATETIME AS (t)", "VARCHAR(99) AS (CONCAT(t, ''))", "INT AS (HOUR(t))",
     "DATETIME AS (FROM_UNIXTIME(id))", "INT AS (UNIX_TIMESTAMP(d))", "TIMESTAMP AS (d)"],
)  # fmt: skip
@pytest.mark.parametrize("kind", ["STORED", "VIRTUAL", "VIRTUAL, INDEX (g)"])
def test_stored_values_do_not_get_another_time_zone(
    elsewhere: Place, expression: str, kind: str
) -> None:
    """The server computes generated columns anew, in the session of the undo."""
    place = elsewhere
    table = (
        "CREATE TABLE k (id INT PRIMARY KEY, b VARCHAR(20), t TIMESTAMP NULL, d DATETIME, "
        f"g {expression} {kind})"
    )
    row = "INSERT INTO k (id, b, t, d) VALUES (1, 'x', '2024-01-01 03:00:00', '2024-01-01')"
    try:
        place.begin(table, row)
    except pymysql.Error:  # the server refuses some of them, and MariaDB more
        return
    before = place.state("k")
    gtid = place.transaction("UPDATE k SET b = 'y'")
    if kind == "VIRTUAL":
        place.undone(gtid)
        assert place.state("k") == before
    else:
        place.refused(f"--gtid={gtid}", why="time zone")


OF_A_SESSION = {
    "VARCHAR(20) AS (DAYNAME(d))": "SET lc_time_names = 'de_DE'",
    "DATETIME AS (t)": "SET timestamp = UNIX_TIMESTAMP('2020-05-05 12:00:00')",
    "INT AS (WEEK(d))": "SET default_week_format = 3",
    "VARCHAR(40) AS (id / 3)": "SET div_precision_increment = 10",
}


@pytest.mark.parametrize("expression", OF_A_SESSION)
@pytest.mark.parametrize("kind", ["STORED", "VIRTUAL", "VIRTUAL, INDEX (g)"])
def test_stored_values_do_not_get_the_settings_of_another_session(
    place: Place, expression: str, kind: str
) -> None:
    """Undone exactly, or not at all: what the binlog has of them is compared."""
    table = f"CREATE TABLE k (id INT PRIMARY KEY, d DATE, t TIME, g {expression} {kind})"
    row = "INSERT INTO k (id, d, t) VALUES (1, '2024-01-01', '10:11:12')"
    try:
        place.begin(table, OF_A_SESSION[expression], row)
    except pymysql.Error:  # MariaDB refuses those that it sees
        return
    before, whole = place.state("k"), place.server.query("CHECK TABLE shop.k EXTENDED")
    gtid = place.transaction("DELETE FROM k")
    if kind == "VIRTUAL":
        place.undone(gtid)
    elif kind == "STORED":
        done = place.undo(f"--gtid={gtid}")
        if done.code == 0:  # the server has fixed the setting when the table was made
            assert place.is_mariadb or "WEEK" in expression
            assert place.state("k") == before
        else:
            assert done.code == 8
            assert "not as they were before" in done.err or "settings of the session" in done.err
            assert place.server.query("SELECT COUNT(*) FROM shop.k") == [(0,)]
        return
    elif "/" not in expression:  # a setting that a server has for all its sessions, as the SQL mode
        place.refused(f"--gtid={gtid}", why="settings of the session")
        return
    else:
        place.undone(gtid)
    if "/" not in expression:
        assert place.state("k") == before
        assert place.server.query("CHECK TABLE shop.k EXTENDED") == whole


def test_stored_values_of_every_type_are_compared(place: Place) -> None:
    """A column of their type that is not generated takes what the binlog has of each."""
    place.begin(
        "CREATE TABLE k (id INT NOT NULL, a VARCHAR(20) CHARACTER SET latin1, b DECIMAL(9,3), "
        "c ENUM('x','y'), d DATETIME(3), j JSON, "
        "ga VARCHAR(30) CHARACTER SET latin1 COLLATE latin1_german2_ci AS (CONCAT(a, 'é')) STORED, "
        "gb DECIMAL(20,6) AS (b * 1.5) STORED, gc ENUM('y','x') AS (c) STORED, "
        "gd DATETIME(3) AS (d + INTERVAL 1 DAY) STORED, "
        "gj LONGTEXT AS (JSON_EXTRACT(j, '$.a')) STORED, "
        "gk BIGINT UNSIGNED AS (id + 7) STORED, PRIMARY KEY (id), UNIQUE (gk), UNIQUE (ga, gb))",
        "SET NAMES utf8mb4",
        "INSERT INTO k (id, a, b, c, d, j) VALUES (1, 'ä', 1.125, 'x', '2024-01-01 01:02:03.004', "
        "'{\"a\": \"é\"}'), (2, NULL, NULL, 'y', NULL, NULL)",
    )
    before = place.state("k")
    gtid = place.transaction("UPDATE k SET a = 'z', b = b + 1", "DELETE FROM k WHERE id = 2")
    place.undone(gtid)
    assert place.state("k") == before


def test_indexes_do_not_get_another_time_zone(elsewhere: Place) -> None:
    """Nor another mode."""
    place = elsewhere
    if not place.is_mariadb:
        place.begin("CREATE TABLE k (id INT PRIMARY KEY, t TIMESTAMP, b INT, INDEX ((HOUR(t))))",
                    "INSERT INTO k VALUES (1, '2024-01-01 03:00:00', 1)")  # fmt: skip
        gtid = place.transaction("UPDATE k SET b = 2")
        place.refused(f"--gtid={gtid}", why="time zone")
    place.server.query("SET GLOBAL sql_mode = 'NO_UNSIGNED_SUBTRACTION'")
    place.begin("CREATE TABLE k (id INT PRIMARY KEY, b INT UNSIGNED, g INT AS (b * 2) STORED)",
                "INSERT INTO k (id, b) VALUES (1, 1)")  # fmt: skip
    gtid = place.transaction("UPDATE k SET b = 2")
    place.refused(f"--gtid={gtid}", why="NO_UNSIGNED_SUBTRACTION")


KEYS = {
    "DATE": ["'0000-00-00'", "'2024-00-00'", "'2024-01-01'"],
    "DATETIME(3)": ["'0000-00-00'", "'2024-01-01 00:00:00.001'"],
    "TIMESTAMP": ["'0000-00-00'", "'2024-10-27 02:30:00'"],
    "BIT(9)": ["b'0'", "b'101'"],
    "ENUM('a','b')": ["'a'", "'x'"],
    "SET('a','b')": ["''", "'a,b'"],
    "FLOAT": ["0.1", "1e30"],
    "DOUBLE": ["0.1", "-0.0"],
    "DECIMAL(20,5)": ["1.1", "-2"],
    "VARCHAR(20)": ["'a '", "'b'"],
    "CHAR(20)": ["'a '", "'b'"],
    "VARBINARY(20)": ["'a '", "'a'"],
    "BINARY(4)": ["'a'", "'b'"],
    "YEAR": ["0", "2024"],
    "TIME(6)": ["'-838:59:59'", "'00:00:00.000001'"],
    "BIGINT UNSIGNED ZEROFILL": ["18446744073709551615", "0"],
    "VARCHAR(20) CHARACTER SET latin1 COLLATE latin1_german2_ci": ["_latin1 x'E4'", "'b'"],
    "VARCHAR(760) CHARACTER SET utf8mb4": [f"CONCAT(REPEAT('x', 755), '{at}')" for at in "cabd"],
}


@pytest.mark.parametrize("kind", KEYS)
def test_keys_of_every_kind(place: Place, kind: str) -> None:
    """Zero dates, bits, negative zero, trailing spaces."""
    place.begin("SET sql_mode = ''",
                f"CREATE TABLE k (id {kind} NOT NULL PRIMARY KEY, b VARCHAR(20))",
                *(f"INSERT INTO k VALUES ({value}, 'x')" for value in KEYS[kind]))  # fmt: skip
    before = place.state("k")
    gtid = place.transaction("SET sql_mode = ''", "UPDATE k SET b = 'y'", "DELETE FROM k")
    place.undone(gtid)
    assert place.state("k") == before
    gtid = place.transaction("SET sql_mode = ''", "UPDATE k SET b = 'y'")
    place.transaction("UPDATE k SET b = 'z' LIMIT 1")
    place.refused(f"--gtid={gtid}", why="changed")
    assert "1 row left out" in place.undone(gtid, more=["--skip-conflicts"]).out
    others = ("x",) * (len(KEYS[kind]) - 1)
    assert sorted(b for (b,) in place.server.query("SELECT b FROM shop.k")) == [*others, "z"]


@pytest.mark.parametrize("collation", ["utf8mb4_general_ci", "latin1_swedish_ci"])
def test_keys_that_differ_in_case_or_spaces_only(place: Place, collation: str) -> None:
    """The server finds the row by either; they are not the same."""
    charset = collation.partition("_")[0]
    place.begin(f"CREATE TABLE k (k VARCHAR(20) CHARACTER SET {charset} COLLATE {collation} "
                "PRIMARY KEY, b INT)", "INSERT INTO k VALUES ('a', 1), ('b', 2)")  # fmt: skip
    before = place.state("k")
    gtid = place.transaction("UPDATE k SET k = UPPER(k)")
    place.undone(gtid)
    assert place.state("k") == before
    place.refused(f"--gtid={gtid}", why="already")
    gtid = place.transaction("UPDATE k SET k = CONCAT(k, ' ')")
    assert gtid != place.transaction("UPDATE k SET k = 'A ' WHERE k = 'a'")
    place.refused(f"--gtid={gtid}", why="changed")
    place.server.query("USE shop", "UPDATE k SET k = 'a ' WHERE k = 'a'")
    place.undone(gtid)
    assert place.state("k") == before


MORE_TABLES = (
    "(id INT AS (b + 1) STORED PRIMARY KEY, b INT, c INT)",
    "(b INT NOT NULL, c INT, id INT AS (b + 1) VIRTUAL NOT NULL, UNIQUE (id))",
    "(c INT, b INT, x VARCHAR(9) NOT NULL DEFAULT 'q', UNIQUE (x, b), PRIMARY KEY (b, x))",
    "(b INT PRIMARY KEY, c INT) ROW_FORMAT=COMPRESSED",
    "(b INT PRIMARY KEY, c INT CHECK (c < 100)) COMMENT ' AUTO_INCREMENT=7'",
    "(b INT, c INT, d VARCHAR(20) NOT NULL DEFAULT 'x', FULLTEXT (d), PRIMARY KEY (b DESC))",
    "(b INT PRIMARY KEY, c INT, t TEXT NOT NULL DEFAULT 'u', UNIQUE (t, b))",
    "(t TEXT NOT NULL DEFAULT 'u', b INT NOT NULL, c INT, UNIQUE (t, b))",
    (
        "(b INT, c INT, s DATE NOT NULL DEFAULT '2020-01-01', e DATE NOT NULL DEFAULT '2020-02-01',"
        " PERIOD FOR p(s, e), PRIMARY KEY (b, p WITHOUT OVERLAPS))"
    ),
    (
        "(b INT PRIMARY KEY, c INT, t CHAR(255) CHARACTER SET utf8mb4, u CHAR(0), v VARCHAR(0), "
        "w BINARY(255), x CHAR(63) CHARACTER SET utf8mb4, y CHAR(64) CHARACTER SET utf8mb4)"
    ),
    (
        "(b INT PRIMARY KEY, c INT, t VARCHAR(16000), u BIT(64), v DECIMAL(65,30), w FLOAT(7,2), "
        "x DOUBLE(20,3) UNSIGNED ZEROFILL, y REAL, z NCHAR(7))"
    ),
    f"(b INT PRIMARY KEY, c INT, {', '.join(f'c{n} INT' for n in range(300))})",
    f"(b INT PRIMARY KEY, c ENUM ({', '.join(repr(f'm{n}') for n in range(300))}))",
)


@pytest.mark.parametrize("table", MORE_TABLES, ids=lambda table: str(table)[:40])
def test_more_tables(place: Place, table: str) -> None:
    """Keys on generated columns, hash keys, periods, many columns: exact, or refused."""
    try:
        place.begin(f"CREATE TABLE k {table}", "INSERT INTO k (b, c) VALUES (1, 1), (2, 2), (3, 3)")
    except pymysql.Error:  # not every server has each
        return
    before = place.state("k")
    gtid = place.transaction("UPDATE k SET c = 9", "DELETE FROM k WHERE b = 2",
                             "UPDATE k SET b = 22 WHERE b = 3",
                             "INSERT INTO k (b, c) VALUES (8, 8)")  # fmt: skip
    done = place.undo(f"--gtid={gtid}")
    if place.is_mariadb and "UNIQUE (t" in table:
        assert done.code == 8
        assert "hidden column" in done.err
        return
    assert done.code == 0, done.err
    assert place.state("k") == before
    gtid = place.transaction("UPDATE k SET c = 9")
    place.transaction("UPDATE k SET c = 10 WHERE b = 2")
    place.refused(f"--gtid={gtid}", why="changed")


def test_an_error_of_the_server_says_that_nothing_was_changed(place: Place) -> None:
    """InnoDB takes no number of a text index that is less than one it has had."""
    place.begin("CREATE TABLE k (FTS_DOC_ID BIGINT UNSIGNED NOT NULL PRIMARY KEY, t TEXT, "
                "FULLTEXT (t))", "INSERT INTO k VALUES (1, 'x'), (2, 'y')")  # fmt: skip
    gtid = place.transaction("DELETE FROM k WHERE FTS_DOC_ID = 1")
    after = place.state("k")
    done = place.undo(f"--gtid={gtid}")
    assert done.code == 4
    assert "nothing was changed" in done.err
    assert place.state("k") == after


def test_what_binlog_filters_hide_is_told(place: Place) -> None:
    """DDL that is run in a database that they leave out, of a table that they do not."""
    with (
        temporary_directory() as directory,
        server_of(
            place.server.binaries,
            directory,
            options=["--binlog-format=ROW", "--binlog-ignore-db=other"],
        ) as server,
    ):
        filtered = replace(place, server=server)
        filtered.begin(*K)
        gtid = filtered.transaction("UPDATE k SET b = 'y'")
        server.query("CREATE DATABASE other", "USE other", "ALTER TABLE shop.k COMMENT 'x'")
        assert filtered.last_gtid() == gtid
        shown = filtered.undo(f"--gtid={gtid}", "--dry-run").out
        assert "note: binlog_ignore_db=other: DDL run in" in shown


def test_vectors_and_their_index(place: Place) -> None:
    """MariaDB's; MySQL's have no index, and are among the rows of every type."""
    if not place.is_mariadb:
        return
    place.begin("CREATE TABLE k (id INT PRIMARY KEY, v VECTOR(2) NOT NULL, VECTOR INDEX (v))",
                "INSERT INTO k VALUES (1, VEC_FromText('[4,0]')), (2, VEC_FromText('[0,4]')), "
                "(3, VEC_FromText('[0,0]'))")  # fmt: skip
    before = place.state("k")
    gtid = place.transaction("UPDATE k SET v = VEC_FromText('[9,9]') WHERE id <> 2",
                             "DELETE FROM k WHERE id = 2")  # fmt: skip
    place.undone(gtid)
    assert place.state("k") == before
    for row, vector in ((1, "[3,0]"), (2, "[0,3]"), (3, "[1,1]")):
        distance = f"VEC_DISTANCE_EUCLIDEAN(v, VEC_FromText('{vector}'))"
        nearest = f"SELECT id FROM shop.k ORDER BY {distance} LIMIT 1"
        assert place.server.query(nearest) == [(row,)]
    gtid = place.transaction("UPDATE k SET v = VEC_FromText('[0,0]')")
    place.transaction("UPDATE k SET v = VEC_FromText('[-0.0,0]') WHERE id = 1")
    place.refused(f"--gtid={gtid}", why="(id=1) changed")


def test_foreign_keys_to_the_same_table(place: Place) -> None:
    """Parents before their children."""
    place.begin("CREATE TABLE s (id INT PRIMARY KEY, p INT, FOREIGN KEY (p) REFERENCES s (id))",
                "INSERT INTO s VALUES (1, NULL), (2, 1), (3, 2), (4, 4)")  # fmt: skip
    before = place.state("s")
    gtid = place.transaction("UPDATE s SET p = NULL", "DELETE FROM s WHERE id = 3", "DELETE FROM s")
    place.undone(gtid)
    assert place.state("s") == before


def line_of(points: int, last: str = "0000000000000040") -> str:
    """A geometry of 16 bytes a point."""
    number = points.to_bytes(4, "little").hex()
    same = f"REPEAT(x'000000000000F03F0000000000000040', {points - 1})"
    return f"ST_GeomFromWKB(CONCAT(x'0102000000{number}', {same}, x'000000000000F03F{last}'))"


LARGE = {
    "GEOMETRY": (line_of(38_000), line_of(38_000, "0000000000000840")),
    "LONGBLOB": ("REPEAT('x', 640000)", "CONCAT(REPEAT('x', 639999), 'y')"),
    "LONGTEXT CHARACTER SET utf8mb4": ("REPEAT('é', 320000)", "CONCAT(REPEAT('é', 319999), 'ü')"),
    "JSON": ("CONCAT('[', REPEAT('0.5,', 45000), '1]')",
             "CONCAT('[', REPEAT('0.5,', 45000), '2]')"),
}  # fmt: skip


@pytest.mark.parametrize("kind", LARGE)
def test_values_that_are_nearly_as_large_as_a_packet(
    place: Place, settings: Callable[..., None], kind: str
) -> None:
    """Functions answer NULL if their value is too large; two of them are not the same value."""
    settings(max_allowed_packet=1 << 20)
    value, other = LARGE[kind]
    place.begin(f"CREATE TABLE k (id INT PRIMARY KEY, g {kind})")
    gtid = place.transaction(f"INSERT INTO k VALUES (1, {value})")
    place.transaction(f"UPDATE k SET g = {other}")
    place.refused(f"--gtid={gtid}", why="changed")
    place.transaction(f"UPDATE k SET g = {value}")
    place.undone(gtid)
    assert place.rows("k") == []


@pytest.fixture
def settings(place: Place) -> Iterator[Callable[..., None]]:
    """Sets global variables that the server has; they are as before at the end."""
    old: dict[str, str] = {}

    def change(**values: Any) -> None:
        for name, value in values.items():
            for _, before in place.server.query(f"SHOW GLOBAL VARIABLES LIKE '{name}'"):
                old.setdefault(name, str(before))
                place.server.query(f"SET GLOBAL {name} = {value}")

    yield change
    for name, value in old.items():
        number = value.replace(".", "").isdigit()
        place.server.query(f"SET GLOBAL {name} = {value if number else repr(value)}")


SETTINGS: tuple[dict[str, Any], ...] = (
    {"completion_type": "'CHAIN'"},
    {"completion_type": "'RELEASE'"},
    {"autocommit": 0},
    {"binlog_rows_query_log_events": 1, "binlog_row_value_options": "'PARTIAL_JSON'"},
    {"binlog_row_image": "'MINIMAL'"},
    {"foreign_key_checks": 0, "unique_checks": 0, "innodb_strict_mode": 0},
    {"sql_require_primary_key": 1, "sql_generate_invisible_primary_key": 1},
    {"max_allowed_packet": 1 << 20},
    {"transaction_isolation": "'SERIALIZABLE'", "sql_quote_show_create": 0},
    {"binlog_format": "'MIXED'"},
    {"character_set_server": "'latin1'", "collation_server": "'latin1_swedish_ci'"},
    {"transaction_read_only": 1},
    {"sql_safe_updates": 1, "sql_auto_is_null": 1, "explicit_defaults_for_timestamp": 0},
    {"sql_select_limit": 1},
    {"optimizer_switch": "'derived_merge=off'"},
    {"log_bin_compress": 1, "log_bin_compress_min_len": 10, "binlog_transaction_compression": 1},
)
OWN = (
    "SET SESSION binlog_format = ROW", "SET SESSION binlog_row_image = FULL",
    "SET SESSION TRANSACTION READ WRITE", "SET SESSION sql_safe_updates = 0",
    "SET SESSION sql_select_limit = DEFAULT",
)  # fmt: skip


@pytest.mark.parametrize("given", SETTINGS, ids=str)
def test_a_servers_defaults_for_sessions_do_not_matter(
    place: Place, settings: Callable[..., None], given: dict[str, Any]
) -> None:
    """More rows than a step or a small packet has; nothing stays behind."""
    doubled = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
    place.begin(
        "CREATE TABLE k (id INT PRIMARY KEY, a INT, b VARCHAR(4000), u INT UNIQUE, j JSON, "
        "t TIMESTAMP NULL ON UPDATE CURRENT_TIMESTAMP)",
        "INSERT INTO k VALUES (1, 1, 'x', 1, '{\"a\": 1}', NULL)",
        *(f"INSERT INTO k SELECT id + {n}, a, REPEAT('x', 500), u + {n}, j, NOW() FROM k"
          for n in doubled),
    )  # fmt: skip
    before = place.state("k")
    settings(**given)
    own = OWN if place.is_mariadb else (*OWN, "SET SESSION binlog_row_value_options = ''")
    place.server.query(
        *own,
        "USE shop",
        "BEGIN",
        "UPDATE k SET b = 'y'",
        "UPDATE k SET j = JSON_SET(j, '$.a', 2) WHERE id < 99",
        "UPDATE k SET j = JSON_SET(j, '$.a', 3) WHERE id < 60",
        "DELETE FROM k WHERE id > 900",
        "COMMIT",
    )
    gtid = place.last_gtid()
    done = place.undone(gtid)
    assert place.last_gtid() != gtid
    assert f"GTID is {place.last_gtid()}" in done.out
    settings(transaction_read_only=0, sql_select_limit=1 << 40)
    assert place.state("k") == before


def test_a_primary_key_that_the_server_hides_or_demands(
    place: Place, settings: Callable[..., None]
) -> None:
    """MySQL: a generated one that no statement shows; a table that has only a unique key."""
    if place.is_mariadb:
        return
    place.begin("SET sql_generate_invisible_primary_key = 1", "CREATE TABLE h (a INT)",
                "SET sql_generate_invisible_primary_key = 0",
                "CREATE TABLE k (a INT NOT NULL UNIQUE)", "INSERT INTO h VALUES (1), (1), (2)",
                "INSERT INTO k VALUES (1), (2)")  # fmt: skip
    before = place.state("h", "k")
    settings(show_gipk_in_create_table_and_information_schema=0, sql_require_primary_key=1)
    gtid = place.transaction("DELETE FROM h WHERE a = 1", "UPDATE h SET a = 7",
                             "UPDATE k SET a = a + 10")  # fmt: skip
    place.undone(gtid)
    settings(show_gipk_in_create_table_and_information_schema=1)
    assert place.state("h", "k") == before


def test_odd_wishes(place: Place) -> None:
    """What is not there, or not rows, is an error with an exit code."""
    place.begin(*K)
    gtid = place.transaction("UPDATE k SET b = 'y'")
    nowhere = "0-1-99999" if place.is_mariadb else gtid.partition(":")[0] + ":99999"
    for words in (
        [f"--gtid={nowhere}"], [f"--gtid={gtid}", f"--gtid={nowhere}"],
        [f"--gtid={gtid}", "--table=shop.nope"], [f"--gtid={gtid}", "--table=nope.*"],
        ["--at=mysql-bin.000001:4"], ["--at=mysql-bin.000099:4"], ["--at=mysql-bin.000001:999999"],
    ):  # fmt: skip
        done = place.undo(*words)
        assert done.code in (7, 8), (words, done.code, done.err)
        assert done.err.startswith("error: "), done.err
    place.server.query("USE shop", "CREATE TABLE z (id INT PRIMARY KEY)")
    place.refused(f"--gtid={place.last_gtid()}", why="CREATE TABLE z")
    assert "undo of 1 transaction" in place.undone(gtid, gtid).out


def test_files_that_cannot_be_written(place: Place, tmp_path: Path) -> None:
    """No directory, a directory, a link to nowhere."""
    place.begin(*K)
    gtid = place.transaction("UPDATE k SET b = 'y'")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for path in (tmp_path / "none/x", tmp_path, tmp_path / "link"):
        done = place.undo(f"--gtid={gtid}", f"--output={path}")
        assert done.code == 8, done
        assert str(path) in done.err
    assert not (tmp_path / "nowhere").exists()


def test_names_of_tenants_are_data(place: Place) -> None:
    """They reach SQL only as identifiers, and a terminal not raw: tables, columns and keys."""
    name, column = "k\x1b[31m\n`'; DROP TABLE x; -- %s {}", "c\x1b[31m\n`'%d{t}"
    quoted, own = name.replace("`", "``"), column.replace("`", "``")
    place.begin(f"CREATE TABLE `{quoted}` (`{own}` VARCHAR(20) PRIMARY KEY, b VARCHAR(20))",
                f"INSERT INTO `{quoted}` VALUES ('1\x1b[31m', 'x'), (2, '\x1b[31m')")  # fmt: skip
    rows = f"SELECT * FROM shop.`{quoted}` ORDER BY b"
    before = place.server.query(rows)
    gtid = place.transaction(f"UPDATE `{quoted}` SET b = 'y'")
    said = [place.undo(f"--gtid={gtid}", "--dry-run"), place.undone(gtid)]
    assert place.server.query(rows) == before
    gtid = place.transaction(f"UPDATE `{quoted}` SET b = 'y'")
    place.transaction(f"UPDATE `{quoted}` SET b = 'z'")
    said.append(place.refused(f"--gtid={gtid}", why="changed"))
    place.server.query("USE shop", f"ALTER TABLE `{quoted}` ADD q INT")
    said.append(place.refused(f"--gtid={gtid}"))
    assert not any("\x1b" in one.out + one.err for one in said)


@pytest.mark.parametrize(("ddl", "why"), [
    *((one, "definition") for one in (
        ["ALTER TABLE k MODIFY id INT AFTER a"],
        ["ALTER TABLE k ADD COLUMN n INT"],
        ["ALTER TABLE k ADD INDEX (b)"],
        ["TRUNCATE TABLE k"],
        ["ALTER TABLE k RENAME COLUMN a TO z"],
        ["DROP DATABASE shop", "CREATE DATABASE shop", "USE shop", *K, "UPDATE k SET b = 'y'"],
        ["CREATE TABLE l LIKE k", "INSERT INTO l SELECT * FROM k", "RENAME TABLE k TO o, l TO k"],
        ["CREATE INDEX i ON k (b)", "DROP INDEX i ON k"],
        ["/* x */ ALTER TABLE `shop` . `k` ENGINE = InnoDB"],
        ["USE mysql", "ALTER TABLE shop.k MODIFY a INT AFTER b",
         "ALTER TABLE shop.k MODIFY a INT AFTER id"],
        ["DROP TABLE IF EXISTS x, k", *K, "UPDATE k SET b = 'y'"],
    )),
    (["DROP TABLE k"], "no such table"),
    (["RENAME TABLE k TO l"], "no such table"),
])  # fmt: skip
def test_ddl_in_any_form_is_seen(place: Place, ddl: list[str], why: str) -> None:
    """Though the table looks the same afterwards, or only two columns have changed places."""
    place.begin(*K)
    gtid = place.transaction("UPDATE k SET b = 'y'")
    place.server.query("USE shop", *ddl)
    place.refused(f"--gtid={gtid}", why=why)


def test_what_is_no_ddl_of_the_table(place: Place) -> None:
    """Upkeep, another table whose name begins like it; accounts, views and routines that name it.

    Defaults of its database are for tables to come; what is created if it does not exist was there.
    """
    password = "PASSWORD('')" if place.is_mariadb else "''"
    place.begin(*K)
    before = place.state("k")
    gtid = place.transaction("UPDATE k SET b = 'y'")
    place.server.query(
        "USE shop",
        "ANALYZE TABLE k",
        "CREATE TABLE k2 (id INT)",
        "CREATE USER k@localhost",
        "GRANT SELECT ON shop.* TO k@localhost",
        "GRANT UPDATE (b) ON k TO k@localhost",
        "REVOKE UPDATE (b) ON k FROM k@localhost",
        f"SET PASSWORD FOR k@localhost = {password}",
        "DROP USER k@localhost",
        "ALTER DATABASE shop CHARACTER SET latin1 COLLATE latin1_german1_ci",
        "CREATE DATABASE IF NOT EXISTS shop",
        "CREATE TABLE IF NOT EXISTS k (id INT)",
        "CREATE VIEW v AS SELECT * FROM k",
        "CREATE PROCEDURE p() DELETE FROM k",
        "CREATE TRIGGER r BEFORE UPDATE ON k FOR EACH ROW SET NEW.b = 'of a trigger'",
    )
    place.undone(gtid)
    assert place.state("k") == before


def test_a_gtid_that_is_there_twice_is_refused(place: Place, settings: Callable[..., None]) -> None:
    """A MariaDB that is not strict gives it to two transactions."""
    if not place.is_mariadb:
        return
    place.begin(*K)
    settings(gtid_strict_mode=0)
    for row in (1, 2):
        place.server.query("USE shop", "SET gtid_seq_no = 50",
                           f"UPDATE k SET b = 'y' WHERE id = {row}")  # fmt: skip
    gtid = place.last_gtid()
    place.refused(f"--gtid={gtid}", why="twice")


def test_gtids_with_tags(place: Place) -> None:
    """MySQL's from 8.3 on."""
    if place.is_mariadb:
        return
    place.begin(*K)
    before = place.state("k")
    place.server.query("SET gtid_next = 'AUTOMATIC:abc'", "USE shop", "UPDATE k SET b = 'y'")
    place.undone(f"{uuid_of(place.server)}:abc:1")
    assert place.state("k") == before


def test_rows_that_had_each_others_unique_keys_cannot_be_left_out(place: Place) -> None:
    """It says so, and changes nothing."""
    place.begin("CREATE TABLE k (id INT PRIMARY KEY, u INT UNIQUE, b VARCHAR(20))",
                "INSERT INTO k VALUES (1, 1, 'x'), (2, 5, 'x'), (3, 3, 'x')")  # fmt: skip
    gtid = place.transaction("UPDATE k SET b = 'y' WHERE id = 3",
                             "UPDATE k SET id = 7 WHERE id = 2")  # fmt: skip
    place.transaction("UPDATE k SET b = 'later' WHERE id = 7")
    place.refused(f"--gtid={gtid}", "--skip-conflicts", why="each other's unique keys")


def test_rows_that_had_each_others_unique_keys_at_once_are_left_out(place: Place) -> None:
    """Those of one statement are remembered together, as they were and as they became."""
    place.begin("CREATE TABLE k (id INT PRIMARY KEY, u INT UNIQUE, b VARCHAR(20))",
                "INSERT INTO k VALUES (1, 1, 'x'), (2, 5, 'x'), (3, 3, 'x')")  # fmt: skip
    gtid = place.transaction("UPDATE k SET b = 'y' WHERE id = 3", "UPDATE k SET u = 7 WHERE id = 2",
                             "UPDATE k SET u = 5 WHERE id = 1")  # fmt: skip
    place.transaction("UPDATE k SET b = 'later' WHERE id < 3")
    assert "2 rows left out" in place.undone(gtid, more=["--skip-conflicts"]).out
    assert place.server.query("SELECT * FROM shop.k ORDER BY id") == [
        (1, 5, "later"), (2, 7, "later"), (3, 3, "x"),
    ]  # fmt: skip


def test_rows_that_had_the_keys_of_others_are_left_out_with_them(place: Place) -> None:
    """Before the change or after it; a chain of them without end is refused."""
    place.begin("CREATE TABLE k (id INT PRIMARY KEY, b VARCHAR(20))",
                "INSERT INTO k VALUES (1, 'x'), (2, 'y'), (3, 'z'), (10, 'x')")  # fmt: skip
    gtid = place.transaction("UPDATE k SET id = id + 1 ORDER BY id DESC")
    place.transaction("UPDATE k SET b = 'later' WHERE id = 4")
    assert "3 rows left out" in place.undone(gtid, more=["--skip-conflicts"]).out
    assert place.server.query("SELECT * FROM shop.k ORDER BY id") == [
        (2, "x"), (3, "y"), (4, "later"), (10, "x"),
    ]  # fmt: skip
    place.begin("CREATE TABLE k (id INT PRIMARY KEY, b INT)",
                f"INSERT INTO k VALUES {', '.join(f'({n}, {n})' for n in range(99))}")  # fmt: skip
    gtid = place.transaction("UPDATE k SET id = id + 1 ORDER BY id DESC")
    place.transaction("UPDATE k SET b = 777 WHERE id = 1")
    place.refused(f"--gtid={gtid}", "--skip-conflicts", why="have had the keys of others")


def test_a_locked_table_is_not_waited_for_long(place: Place) -> None:
    """And nothing stays behind."""
    place.begin(*K)
    gtid = place.transaction("UPDATE k SET b = 'y'")
    with place.server.connect() as other, other.cursor() as cursor:
        cursor.execute("LOCK TABLES shop.k WRITE")
        done = place.undo(f"--gtid={gtid}")
        assert done.code == 8
        assert "nothing was changed" in done.err
        assert "Lock wait timeout" in done.err
        assert place.server.query(SCRATCH) == []


def test_who_locks_a_row_is_named(place: Place) -> None:
    """Their connection, of the open transactions; what was undone before it is rolled back."""
    place.begin(*K)
    gtid = place.transaction("UPDATE k SET b = 'y' WHERE id = 1", "DELETE FROM k WHERE id = 3")
    state = place.state("k")
    with place.server.connect(autocommit=False) as other, other.cursor() as cursor:
        cursor.execute("SELECT CONNECTION_ID()")
        ((number,),) = cursor.fetchall()
        cursor.execute("SELECT * FROM shop.k WHERE id = 1 FOR UPDATE")
        done = place.undo(f"--gtid={gtid}")
        assert done.code == 8
        assert "nothing was changed: a row of shop.k, or its definition, is locked" in done.err
        assert f"perhaps of connection {number}" in done.err
        other.rollback()
    assert place.state("k") == state
    assert place.server.query(SCRATCH) == []


def test_a_replica_is_refused(place: Place) -> None:
    """What it writes by itself, its source does not have."""
    place.begin(*K)
    gtid = place.transaction("UPDATE k SET b = 'y'")
    host, threads = ("MASTER", "SLAVE") if place.is_mariadb else ("SOURCE", "REPLICA")
    change = "CHANGE MASTER" if place.is_mariadb else "CHANGE REPLICATION SOURCE"
    place.server.query(
        f"{change} TO {host}_HOST = '127.0.0.1', {host}_PORT = 1, {host}_USER = 'x'",
        f"START {threads}",
    )
    try:
        place.refused(f"--gtid={gtid}", why="replica")
    finally:
        place.server.query(f"STOP {threads}", f"RESET {threads} ALL")
    place.undone(gtid)


def test_what_came_after_must_be_known(place: Place) -> None:
    """A binlog that is missing in between may have anything."""
    place.begin(*K)
    gtid = place.transaction("UPDATE k SET b = 'y'")
    for number in range(2):
        flush(place.server)  # MariaDB writes to the open binlog a little later
        place.transaction(f"UPDATE k SET a = {number + 7} WHERE id = 1")
    place.transaction("UPDATE k SET a = 1 WHERE id = 1")
    state, golden = place.state("k"), place.bucket()
    objects = golden.client.store.objects
    for key in [key for key in objects if "mysql-bin.000002" in key]:
        del objects[key]
    done = called(golden, place.words(f"--gtid={gtid}", "--yes"))
    assert done.code == 7
    assert "not everything could be searched" in done.err
    assert place.state("k") == state


def test_another_lineage_has_the_same_names_and_gtids(place: Place) -> None:
    """After RESET a GTID is another transaction's; that of the current lineage is undone."""
    place.begin(*K)
    place.transaction("DELETE FROM k WHERE id = 1")
    store = place.bucket().client.store
    place.server.query("SET sql_log_bin = 0", "INSERT INTO shop.k VALUES (1, 1, 'x')")
    before = place.state("k")
    place.forget()
    gtid = place.transaction("DELETE FROM k WHERE id = 2")
    golden = place.bucket()
    lineage = golden.client.store.lineage
    later = replace(lineage, lineage="20260303T030405Z-3e11fa47-b2b2")
    for key, value in golden.client.store.objects.items():
        store.put(key.replace(lineage.id, later.id), value.data)
    store.put(LAYOUT.lineage(later.id), later.to_json())
    both = Golden(client=MemoryClient(store, lambda: golden.now), now=golden.now)
    done = called(both, place.words(f"--gtid={gtid}", "--yes"))
    assert done.code == 0, done.err
    assert place.state("k") == before


def test_without_gtids(place: Place) -> None:
    """By position: MySQL has none; names are in lower case whatever the statements say."""
    if place.is_mariadb:
        more = ["--lower-case-table-names=1"]
    else:
        more = ["--gtid-mode=OFF", "--enforce-gtid-consistency=OFF"]
    old = place.server.options
    place.server._gtid = False
    place.server.restart([*old, *more])
    try:
        place.begin("CREATE TABLE {} (id INT PRIMARY KEY, a INT, b VARCHAR(20))".format(
                        "K" if place.is_mariadb else "k"),
                    "INSERT INTO k VALUES (1, 1, 'x'), (2, 2, 'x')")  # fmt: skip
        before = place.state("k")
        place.server.query("USE shop", "UPDATE k SET b = 'y'")
        one = last_of(place)
        assert place.undo(one).code == 0
        assert place.state("k") == before
        done = place.undo(one)
        assert done.code == 8
        assert "undone already by" in done.err
        assert place.undo(last_of(place)).code == 0
        place.server.query("USE shop", "UPDATE k SET b = 'q' WHERE id = 2")
        done = place.undo(one)
        assert done.code == 8
        assert "(id=2) changed, by" in done.err
        if place.is_mariadb:
            place.server.query("USE shop", "UPDATE k SET b = 'y' WHERE id = 2",
                               "ALTER TABLE SHOP.K ADD INDEX (A)")  # fmt: skip
            assert "definition" in place.undo(one).err
    finally:
        place.server._gtid = True
        place.server.restart(old)


def last_of(place: Place) -> str:
    """The option for the last transaction, by its position."""
    name = place.server.binlogs()[-1][0]
    rows = place.server.query(f"SHOW BINLOG EVENTS IN '{name}'")
    return f"--at={name}:{[row[1] for row in rows if row[2] in ('Anonymous_Gtid', 'Gtid')][-1]}"
