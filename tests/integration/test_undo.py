"""Transactions are taken back on real servers: every row as it was, or nothing at all.

The server's own binlogs lie in a bucket in memory. The witness is the server: CHECKSUM TABLE and
the rows before the accident and after the undo.
"""

import contextlib
import itertools
import json
import os
import re
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pymysql
import pytest
from hypothesis import assume, event, given, settings
from hypothesis import strategies as st

from binlog2s3.binlog.names import BinlogName
from binlog2s3.progress import ProgressDisplay
from binlog2s3.server.connection import Server
from binlog2s3.server.version import ServerVersion
from binlog2s3.undo import execute
from binlog2s3.undo.execute import Execution, comparison
from binlog2s3.undo.tables import Column, Definition
from lab import get
from lab.disk import temporary_directory
from lab.mysql import MysqlServer, server_of
from lab.s3 import MinioServer
from lab.tcp import Switch
from tests.documents import LINEAGE, TIME, like
from tests.golden.buckets import HOUR, Golden
from tests.golden.outputs import Called, called
from tests.integration.test_content import (
    COMMON,
    MARIADB,
    MYSQL,
    PLACES,
    create_every,
    work_on_every,
)
from tests.integration.test_find import Finder, streamed
from tests.memory_client import MemoryClient
from tests.snapshots import Bucket
from tests.waiting import PATIENCE, wait_until
from tests.world.servers import last_gtid, uuid_of

COLUMNS: Mapping[str, Mapping[str, str]] = {
    "mysql-5.7.22": {**COMMON, **PLACES},
    "mysql-9": {**MYSQL, **PLACES},
    "mysql-8.0.31": {**COMMON, **PLACES},
    "mariadb-10.11": MARIADB,
    "mariadb-11.8": MARIADB,
}
NEWEST = pytest.mark.parametrize("place", ["mysql-9", "mariadb-11.8"], indirect=True)
"""What `undo` decides by itself, whatever the release of the server: it asks for none."""
BUT_OLDEST = pytest.mark.parametrize(
    "place", [place for place in COLUMNS if place != "mysql-5.7.22"], indirect=True
)
"""What has no such columns, settings or privileges in MySQL 5.7."""
WITH_OLDEST = pytest.mark.parametrize(
    "place", ["mysql-5.7.22", "mysql-9", "mariadb-11.8"], indirect=True
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A server, and the columns of shop.every."""

    server: MysqlServer
    columns: Mapping[str, str]

    @property
    def is_mariadb(self) -> bool:
        return self.server.binaries.flavour == "mariadb"

    def begin(self, *statements: str) -> None:
        """An empty database, and a history that begins here."""
        self.server.query(
            "SET sql_log_bin = 0",
            "DROP DATABASE IF EXISTS shop",
            "CREATE DATABASE shop",
            "USE shop",
            *statements,
        )
        self.forget()

    def forget(self) -> None:
        """The history begins here."""
        version = str(self.server.query("SELECT VERSION()")[0][0])
        self.server.query(ServerVersion(version).reset_statement)

    def transaction(self, *statements: str) -> str:
        """One transaction of these statements; its GTID."""
        self.server.query("USE shop", "BEGIN", *statements, "COMMIT")
        return self.last_gtid()

    def last_gtid(self) -> str:
        return last_gtid(self.server)

    def state(self, *tables: str) -> list[Any]:
        """Checksums and rows, with invisible columns."""
        found: list[Any] = []
        for table in tables:
            found += self.server.query(f"CHECKSUM TABLE shop.{table} EXTENDED")
            found += self.rows(table)
        return found

    def rows(self, table: str) -> list[str]:
        columns = self.server.query(
            "SELECT column_name, data_type FROM information_schema.columns WHERE table_schema = "
            f"'shop' AND table_name = '{table}' ORDER BY ordinal_position"
        )
        shown = (f"HEX(`{name}`)" if kind == "vector" else f"`{name}`" for name, kind in columns)
        return sorted(map(repr, self.server.query(f"SELECT {', '.join(shown)} FROM shop.{table}")))

    def bucket(self) -> Golden:
        """All of its binlogs in a bucket, the last one open."""
        names = [name for name, _ in self.server.binlogs()]
        lineage = like(
            LINEAGE,
            server_uuid=uuid_of(self.server),
            flavour=self.server.binaries.flavour,
            server_version=self.server.binaries.version,
            first_binlog=BinlogName.parse(names[0]),
            gtid_set="",
        )
        bucket = Bucket(lineage)
        for name in names[:-1]:
            data = (self.server.datadir / name).read_bytes()
            bucket.archive(data, name=BinlogName.parse(name))
        data = (self.server.datadir / names[-1]).read_bytes()
        bucket.chunk(data, 0, len(data), name=BinlogName.parse(names[-1]))
        now = TIME + HOUR
        return Golden(client=MemoryClient(bucket, lambda: now), now=now)

    def execute(self, printed: str) -> None:
        """Execute what mysqlbinlog printed, as the client does."""
        client = self.server.binaries.client
        subprocess.run([client, "--no-defaults", f"--socket={self.server.socket}", "-uroot"],
                       input=printed.encode(), check=True)  # fmt: skip

    def undo(self, *words: str, user: str = "root") -> Called:
        yes = [] if {"--dry-run"} & {*words} or any("--output" in w for w in words) else ["--yes"]
        return called(self.bucket(), self.words(*yes, *words, user=user))

    def words(self, *more: str, user: str = "root") -> list[str]:
        where = ["--s3-url=s3://acme/pre", "--source=orders"]
        target = [f"--target-socket={self.server.socket}", f"--target-user={user}"]
        return ["undo", *where, *target, *more]

    def undone(self, *gtids: str, more: Sequence[str] = ()) -> Called:
        """An undo that has to succeed."""
        done = self.undo(*(f"--gtid={gtid}" for gtid in gtids), *more)
        assert done.code == 0, done.err
        assert self.server.query("SHOW DATABASES LIKE 'binlog2s3%'") == []
        return done

    def refused(self, *words: str, why: str = "") -> Called:
        """An undo that is refused, and changes nothing."""
        before, done = self.last_gtid(), self.undo(*words)
        assert done.code == 8, (done.out, done.err)
        assert why in done.err, done.err
        assert self.last_gtid() == before
        assert self.server.query("SHOW DATABASES LIKE 'binlog2s3%'") == []
        return done


@pytest.fixture(scope="module", params=COLUMNS)
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    """A server for its tests."""
    binaries = get.VERSIONS[request.param]()
    with (
        temporary_directory() as directory,
        server_of(binaries, directory, options=["--binlog-format=ROW"]) as server,
    ):
        yield Place(server=server, columns=COLUMNS.get(request.param, COMMON))


K = ("CREATE TABLE k (id INT PRIMARY KEY, a INT, b VARCHAR(20), KEY (a))",
     "INSERT INTO k VALUES (1,1,'x'),(2,2,'x'),(3,3,'x'),(4,4,NULL)")  # fmt: skip


@WITH_OLDEST
@pytest.mark.parametrize(
    "accident",
    [
        ["UPDATE k SET b = 'y'"],
        ["DELETE FROM k"],
        ["INSERT INTO k VALUES (9,9,'z'),(10,10,NULL)"],
        ["UPDATE k SET b = 'y'", "UPDATE k SET b = 'z', a = a + 1", "DELETE FROM k WHERE id = 2"],
        ["UPDATE k SET id = id + 100", "INSERT INTO k VALUES (1, 7, 'new')"],
        ["DELETE FROM k WHERE id = 1", "INSERT INTO k VALUES (1, 7, 'again')",
         "UPDATE k SET id = 55 WHERE id = 1", "DELETE FROM k WHERE id = 55"],
    ],
)  # fmt: skip
def test_a_transaction_is_taken_back(place: Place, accident: list[str]) -> None:
    """Exactly, with a GTID of its own, which can be undone; and never twice."""
    place.begin(*K)
    before = place.state("k")
    gtid = place.transaction(*accident)
    after = place.state("k")
    done = place.undone(gtid)
    assert place.state("k") == before
    own = place.last_gtid()
    assert own != gtid
    assert f"GTID is {own}" in done.out
    told = f"undone already, by {own}"
    assert told in place.undo(f"--gtid={gtid}", "--dry-run").out
    place.refused(f"--gtid={gtid}", why="undone already")
    assert place.state("k") == before
    place.undone(own)
    assert place.state("k") == after
    assert told not in place.undo(f"--gtid={gtid}", "--dry-run").out


@pytest.mark.gate
def test_what_came_after_is_never_overwritten(place: Place) -> None:
    """A change of any column, in case only too; the later transaction is named."""
    for later, why in (
        ("UPDATE k SET b = 'later' WHERE id = 2", "changed"),
        ("UPDATE k SET b = 'Y' WHERE id = 2", "changed"),
        ("UPDATE k SET b = NULL WHERE id = 2", "changed"),
        ("DELETE FROM k WHERE id = 2", "missing"),
    ):
        place.begin(*K)
        gtid = place.transaction("UPDATE k SET b = 'y'")
        culprit = place.transaction(later)
        state = place.state("k")
        done = place.refused(f"--gtid={gtid}", why=f"(id=2) {why}")
        assert f"by {culprit}" in done.err
        assert place.state("k") == state


EVERY = (
    ["UPDATE every SET bl = 'n', i = COALESCE(i, 0) + 1, ti = 1 - COALESCE(ti, 0)"],
    ["DELETE FROM every"],
    ["INSERT INTO every (id, i) VALUES (900001, 7), (900002, 8)"],
    ["UPDATE every SET i = i + 1 WHERE id % 2", "UPDATE every SET id = id + 500000",
     "DELETE FROM every WHERE id % 3 = 0", "INSERT INTO every (id) VALUES (7)"],
)  # fmt: skip


@pytest.mark.parametrize(
    ("place", "names", "compressed"),
    [
        ("mysql-5.7.22", "", False),  # it has neither setting
        ("mysql-9", "FULL", False),
        ("mysql-8.0.31", "MINIMAL", True),
        ("mariadb-10.11", "FULL", False),
        ("mariadb-11.8", "MINIMAL", True),
    ],
    indirect=["place"],
)
def test_rows_of_every_type_are_taken_back(place: Place, names: str, compressed: bool) -> None:
    """NULLs, generated columns, all types of the manuals; compressed or not; with names or not."""
    compression = "log_bin_compress" if place.is_mariadb else "binlog_transaction_compression"
    if names:
        place.server.query(f"SET GLOBAL {compression} = {'ON' if compressed else 'OFF'}")
        place.server.query(f"SET GLOBAL binlog_row_metadata = {names}")
    # the CHECKSUM TABLE of 5.7 takes the addresses of JSON and geometries
    state = place.state if names else place.rows
    try:
        for accident in EVERY:
            place.begin("SET sql_mode = ''", create_every(dict(place.columns)),
                        *work_on_every(dict(place.columns), 1))  # fmt: skip
            before = state("every")
            gtid = place.transaction(*accident)
            after = state("every")
            assert after != before
            place.undone(gtid)
            assert state("every") == before, accident
            place.undone(place.last_gtid())
            assert state("every") == after, accident
    finally:
        if names:
            place.server.query("SET GLOBAL binlog_row_metadata = MINIMAL")
            place.server.query(f"SET GLOBAL {compression} = OFF")


@NEWEST
def test_a_later_change_of_any_column_is_seen(place: Place) -> None:
    """One column after the other, of every type: no change of one alone is overwritten."""
    place.begin("SET sql_mode = ''", create_every(dict(place.columns)),
                *work_on_every(dict(place.columns), 1),
                "DELETE FROM every WHERE id > 1110", "UPDATE every SET lb = 'l' WHERE lb <> ''",
                "UPDATE every SET bl = 'b', mt = 'm' WHERE bl <> ''")  # fmt: skip
    for name, kind in settable_of(place).items():
        place.forget()
        gtid = place.transaction("UPDATE every SET mi = 5 - COALESCE(mi, 0)")
        rows = f"SELECT id FROM shop.every WHERE `{name}` IS NOT NULL LIMIT 1"
        (row,) = place.server.query(rows)
        new = f"1 - `{name}`" if kind.startswith("BIT") else OTHER(kind)
        later = f"UPDATE every SET `{name}` = {new} WHERE id = {row[0]}"
        assert place.transaction("SET sql_mode = ''", later) != gtid, f"{later} changes nothing"
        state = place.state("every")
        done = place.refused(f"--gtid={gtid}", why=f"(id={row[0]}) changed")
        assert done.err.count("changed,") == 1, (name, done.err)
        assert place.state("every") == state, name


def OTHER(kind: str) -> str:  # noqa: N802 - a table
    """A value that hardly differs from those of `work_on_every`."""
    kind = re.split(r"[ (]", kind, maxsplit=1)[0]
    return {
        "TINYINT": "-7", "BOOL": "9", "SMALLINT": "77", "MEDIUMINT": "77",
        "INT": "77", "BIGINT": "77", "FLOAT": "77.5", "DOUBLE": "77.5", "DECIMAL": "0.5",
        "YEAR": "2030", "DATE": "'0000-00-00'", "TIME": "'12:13:19'",
        "DATETIME": "'2031-02-03 12:13:19'", "TIMESTAMP": "'2031-02-03 12:13:19'",
        "CHAR": "'X'", "VARCHAR": "'X '", "BINARY": "'X'", "VARBINARY": "'X '",
        "TINYBLOB": "'Y'", "BLOB": "'Y'", "MEDIUMTEXT": "'Y'", "LONGBLOB": "'Y'",
        "ENUM": "NULL", "SET": "NULL", "JSON": "'{\"a\": 1}'",
        "GEOMETRY": "ST_GeomFromText('POINT(1 3)')", "POINT": "ST_GeomFromText('POINT(1 3)')",
        "VECTOR": "TO_VECTOR('[1,2,3,4,6]')", "INET6": "'::9'", "INET4": "'1.2.3.9'",
        "UUID": "'123e4567-e89b-12d3-a456-426655440099'",
    }[kind]  # fmt: skip


def settable_of(place: Place) -> dict[str, str]:
    return {name: kind for name, kind in place.columns.items() if "GENERATED" not in kind}


@NEWEST
def test_a_stretch_of_one_table_is_taken_back(place: Place) -> None:
    """From one transaction to another, in the order of the binlog; other tables stay."""
    place.begin(*K, "CREATE TABLE other (id INT PRIMARY KEY)")
    first = place.transaction("INSERT INTO other VALUES (1)")
    before = place.state("k")
    place.transaction("UPDATE k SET b = 'one'", "INSERT INTO other VALUES (2)")
    place.transaction("DELETE FROM k WHERE id > 2")
    last = place.transaction("INSERT INTO k VALUES (3, 7, 'two')")
    others = place.state("other")
    words = ("--table=shop.k", f"--from-gtid={first}", f"--to-gtid={last}")
    done = place.undo(*words)
    assert done.code == 0, done.err
    assert "undo of 3 transactions" in done.out
    assert place.state("k") == before
    assert place.state("other") == others
    place.refused(*words, why="undone already")
    place.refused("--table=shop.k", f"--from-gtid={last}", f"--to-gtid={first}", why="before")


@NEWEST
def test_conflicts_can_be_left_out(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other rows are undone, those that were changed since stay; they are named."""
    progress: list[str] = []

    def shown(_: ProgressDisplay, words: Callable[[], str], *__: int) -> None:
        progress.append(words())

    monkeypatch.setattr(ProgressDisplay, "show", shown)
    place.begin(*K)
    gtid = place.transaction("UPDATE k SET b = 'y'", "DELETE FROM k WHERE id = 3")
    place.transaction("UPDATE k SET b = 'later' WHERE id = 2", "INSERT INTO k VALUES (3, 7, 'new')")
    done = place.undone(gtid, more=["--skip-conflicts"])
    assert place.server.query("SELECT * FROM shop.k ORDER BY id") == [
        (1, 1, "x"), (2, 2, "later"), (3, 7, "new"), (4, 4, None),
    ]  # fmt: skip
    assert "(id=3) there again" in done.out
    assert "(id=2) changed" in done.out
    assert progress[-1] == "5 of 5 rows compared"  # not all of them are undone


@NEWEST
def test_a_row_that_is_left_out_is_left_out_as_a_whole(place: Place) -> None:
    """Though it looks as an earlier change of the same transaction left it."""
    place.begin(*K)
    gtid = place.transaction(
        "UPDATE k SET b = 'y' WHERE id = 1",
        "UPDATE k SET b = 'z' WHERE id = 1",
        "DELETE FROM k WHERE id = 2",
        "INSERT INTO k VALUES (2, 2, 'new')",
        "UPDATE k SET id = 30 WHERE id = 3",
        "UPDATE k SET b = 'z' WHERE id = 4",
    )
    place.transaction("UPDATE k SET b = 'y' WHERE id = 1", "DELETE FROM k WHERE id = 2",
                      "UPDATE k SET a = 0 WHERE id = 30")  # fmt: skip
    done = place.undone(gtid, more=["--skip-conflicts"])
    assert place.server.query("SELECT * FROM shop.k ORDER BY id") == [
        (1, 1, "y"), (4, 4, None), (30, 0, "x"),
    ]  # fmt: skip
    assert "5 rows left out" in done.out


MANY = 999
NUMBERS = "WITH RECURSIVE n (id) AS (SELECT 1 UNION ALL SELECT id + 1 FROM n WHERE id < {})"


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The statements that were sent to the server, by any connection of the program."""
    found: list[str] = []
    rows = Server.rows

    def seen(self: Server, statement: str, *given: Any) -> list[dict[str, Any]]:
        found.append(statement)
        return rows(self, statement, *given)

    monkeypatch.setattr(Server, "rows", seen)
    return found


@NEWEST
@pytest.mark.parametrize(
    ("accident", "later"),
    [
        ("UPDATE k SET b = 'y'",
         ["UPDATE k SET b = 'later' WHERE id % 3 = 0", "DELETE FROM k WHERE id % 7 = 0"]),
        ("UPDATE k SET id = -id",
         ["UPDATE k SET b = 'later' WHERE id % 3 = 0", "DELETE FROM k WHERE id % 7 = 0"]),
        ("DELETE FROM k", ["INSERT INTO k SELECT id, 'x' FROM l WHERE id % 3 = 0"]),
        ("INSERT INTO k SELECT id + 1000, b FROM l",
         ["UPDATE k SET b = 'later' WHERE id % 3 = 0", "DELETE FROM k WHERE id % 7 = 0"]),
    ],
)  # fmt: skip
def test_many_conflicts_need_few_statements(
    place: Place, asked: list[str], accident: str, later: Sequence[str]
) -> None:
    """The rows are locked meanwhile: as many statements as for few; the key is of any order."""
    place.begin(
        "CREATE TABLE k (id INT PRIMARY KEY, b VARCHAR(20), UNIQUE (b, id))",
        f"INSERT INTO k {NUMBERS.format(MANY)} SELECT id, 'x' FROM n",
        "CREATE TABLE l LIKE k",
        "INSERT INTO l SELECT * FROM k",
    )
    before = dict(place.server.query("SELECT id, b FROM shop.k"))
    gtid = place.transaction(accident)
    left = dict(place.server.query("SELECT id, b FROM shop.k"))
    place.transaction(*later)
    now = dict(place.server.query("SELECT id, b FROM shop.k"))
    sign = -1 if "-id" in accident else 1
    touched = {key for key in before.keys() | left.keys() if before.get(key) != left.get(key)}
    in_conflict = {key for key in touched if now.get(key) != left.get(key)}
    if sign < 0:
        in_conflict |= {-key for key in in_conflict}
    expected = {
        key: row for key in now.keys() | touched
        if (row := (before if key in touched - in_conflict else now).get(key)) is not None
    }  # fmt: skip
    asked.clear()
    done = place.undone(gtid, more=["--skip-conflicts", "--json"])
    assert len(asked) < MANY / 3
    assert dict(place.server.query("SELECT id, b FROM shop.k")) == expected
    document = json.loads(done.out)
    rows = len(in_conflict) // (2 if sign < 0 else 1)
    assert (document["rows"], document["left_out"]) == (MANY - rows, rows)
    named = {int(one["key"].removeprefix("id=").partition(",")[0]) for one in document["conflicts"]}
    assert len(named) == 10
    assert named <= in_conflict


@NEWEST
def test_those_who_write_to_the_rows_meanwhile_lose_nothing(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row has what somebody wrote last, or is as before the accident."""
    place.begin("CREATE TABLE k (id INT PRIMARY KEY, b VARCHAR(20))",
                f"INSERT INTO k {NUMBERS.format(MANY)} SELECT id, 'x' FROM n")  # fmt: skip
    gtid = place.transaction("UPDATE k SET b = 'y'")
    place.transaction("UPDATE k SET b = 'early' WHERE id % 50 = 0")
    written = dict.fromkeys(range(50, MANY + 1, 50), "early")
    over, begin = threading.Event(), Execution._begin

    def write() -> None:
        with place.server.connect() as connection, connection.cursor() as cursor:
            for number in itertools.count(1):
                row, value = number * 7919 % MANY + 1, f"w{number}"
                if number % 3:
                    cursor.execute("UPDATE shop.k SET b = %s WHERE id = %s", (value, row))
                else:
                    cursor.execute("DELETE FROM shop.k WHERE id = %s", (row,))
                    cursor.execute("INSERT INTO shop.k VALUES (%s, %s)", (row, value))
                written[row] = value
                if over.is_set():
                    return

    writer = threading.Thread(target=write)

    def begun(execution: Execution) -> None:
        writer.start()
        wait_until(lambda: len(written) > 40, what="somebody writes")
        begin(execution)

    monkeypatch.setattr(Execution, "_begin", begun)
    try:
        done = place.undo(f"--gtid={gtid}", "--skip-conflicts", "--json")
    finally:
        over.set()
        writer.join()
    assert done.code == 0, done.err
    assert 40 < json.loads(done.out)["left_out"] < MANY
    found = dict(place.server.query("SELECT id, b FROM shop.k"))
    assert found == {number: written.get(number, "x") for number in range(1, MANY + 1)}


@NEWEST
def test_what_was_undone_already_is_refused_at_once(place: Place, asked: list[str]) -> None:
    """Though conflicts are skipped, and told as without; unless a row can be undone again."""
    place.begin(*K)
    gtid = place.transaction("UPDATE k SET b = 'y'")
    place.undone(gtid)
    own = place.last_gtid()
    asked.clear()
    place.refused(f"--gtid={gtid}", "--skip-conflicts", why=f"undone already by {own}")
    assert sum("FOR UPDATE" in one for one in asked) == 1
    place.transaction("UPDATE k SET b = 'y' WHERE id = 2")
    assert "3 rows left out" in place.undone(gtid, more=["--skip-conflicts"]).out
    assert place.server.query("SELECT b FROM shop.k WHERE id = 2") == [("x",)]


@NEWEST
def test_rows_that_were_compared_cannot_change_any_more(place: Place) -> None:
    """They are locked until the end, equal ones too; the scratch table is not."""
    place.begin(*K, "CREATE TABLE s LIKE k", "INSERT INTO s SELECT * FROM k WHERE id < 3")
    columns = (
        Column(name="id", same="{t} <=> {s}"),
        Column(name="b", same="{t} <=> {s}"),
    )
    definition = Definition(
        database="shop", table="k", columns=columns, index="PRIMARY", key=("id",), text=""
    )
    with place.server.connect() as one, one.cursor() as cursor:
        cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
        cursor.execute("BEGIN")
        cursor.execute(comparison(definition, "shop.s"))
        assert cursor.fetchall() == ((2, 2),)
        with place.server.connect() as other, other.cursor() as writer:
            writer.execute("SET SESSION innodb_lock_wait_timeout = 1")
            for number in (1, 2):
                with pytest.raises(pymysql.OperationalError, match="Lock wait timeout"):
                    writer.execute(f"UPDATE shop.k SET b = 'later' WHERE id = {number}")
            writer.execute("UPDATE shop.k SET b = 'other' WHERE id = 3")
            writer.execute("UPDATE shop.s SET b = 'again'")
        cursor.execute(comparison(definition, "shop.s"))
        assert cursor.fetchall() == ((0, 2),)


@NEWEST
def test_several_transactions_are_undone_in_reverse_order(place: Place) -> None:
    """Whatever the order of the options; only all together if they depend on each other."""
    place.begin(*K)
    before = place.state("k")
    one = place.transaction("UPDATE k SET b = 'y'")
    other = place.transaction("UPDATE k SET b = 'z'", "DELETE FROM k WHERE id = 1")
    place.refused(f"--gtid={one}", why="changed, by")
    place.undone(other, one)
    assert place.state("k") == before


@NEWEST
def test_a_stretch_of_one_table_is_undone(place: Place) -> None:
    """What happened to other tables meanwhile does not matter, DDL of them included."""
    place.begin(*K, "CREATE TABLE o (id INT PRIMARY KEY)", "INSERT INTO o VALUES (1)")
    before = place.state("k")
    first = place.transaction("UPDATE k SET b = 'y'")
    gtids = [first, place.transaction("INSERT INTO o VALUES (2)")]
    place.server.query("USE shop", "ALTER TABLE o ADD COLUMN n INT")
    gtids.append(place.last_gtid())
    gtids.append(place.transaction("DELETE FROM k WHERE id = 3", "UPDATE o SET n = 1"))
    other = place.state("o")
    if not place.is_mariadb:
        gtids = [f"{first}-{gtids[-1].rpartition(':')[2]}"]
    words = [f"--gtid={gtid}" for gtid in gtids]
    place.refused(*words, why="ALTER TABLE o")
    place.refused(*words, "--table=shop.none", why="none of these transactions")
    done = place.undo(*words, "--table=shop.k", "--json")
    assert done.code == 0, done.err
    assert len(json.loads(done.out)["transactions"]) == 2
    assert (place.state("k"), place.state("o")) == (before, other)


def test_keys_that_changed_places_are_set_back(place: Place) -> None:
    """Swapped primary and unique keys, NULLs in unique keys, keys that ignore case."""
    place.begin(
        "CREATE TABLE k (k VARCHAR(10) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci, "
        "u INT NOT NULL, v INT NULL, PRIMARY KEY (k), UNIQUE (u), UNIQUE (v))",
        "INSERT INTO k VALUES ('A', 1, 1), ('b', 2, NULL), ('c', 3, NULL), ('d', 4, 4)",
    )
    before = place.state("k")
    gtid = place.transaction(
        "UPDATE k SET u = u + 10 ORDER BY u DESC",
        "DELETE FROM k WHERE k = 'A'",
        "INSERT INTO k VALUES ('a', 2, 9)",
        "UPDATE k SET k = 'B', u = 99 WHERE k = 'b'",
        "UPDATE k SET u = 12 WHERE k = 'a'",
        "UPDATE k SET u = 2, v = NULL WHERE k = 'd'",
    )
    place.undone(gtid)
    assert place.state("k") == before


@NEWEST
def test_a_unique_key_that_was_used_since_is_a_conflict(place: Place) -> None:
    """Another row has the value: everything is rolled back."""
    place.begin("CREATE TABLE k (id INT PRIMARY KEY, u INT UNIQUE)", "INSERT INTO k VALUES (1, 1)",
                "INSERT INTO k VALUES (2, 2)")  # fmt: skip
    gtid = place.transaction("DELETE FROM k")
    place.transaction("INSERT INTO k VALUES (9, 1)")
    state = place.state("k")
    place.refused(f"--gtid={gtid}", why="Duplicate entry")
    place.refused(f"--gtid={gtid}", "--skip-conflicts", why="Duplicate entry")
    assert place.state("k") == state


@BUT_OLDEST
def test_generated_and_invisible_columns_and_their_indexes(place: Place) -> None:
    """Functional and multi-valued indexes of MySQL, virtual columns in keys."""
    more = "" if place.is_mariadb else (
        ", j JSON, INDEX ((CAST(j->'$.z' AS UNSIGNED ARRAY))), INDEX ((b + 1))")  # fmt: skip
    place.begin(
        "CREATE TABLE k (a INT PRIMARY KEY, b INT, h INT INVISIBLE DEFAULT 3, "
        f"g INT GENERATED ALWAYS AS (b * 2) STORED, v INT GENERATED ALWAYS AS (b * 3) VIRTUAL, "
        f"KEY (v) {more})",
        "INSERT INTO k (a, b, h) VALUES (1, 1, 7), (2, 2, 8)",
        *([] if place.is_mariadb else ["UPDATE k SET j = '{\"z\": [1, 2]}'"]),
    )
    # CHECKSUM TABLE says something else each time if a table has a multi-valued index
    before = place.rows("k")
    gtid = place.transaction("UPDATE k SET b = 5, h = 1", "DELETE FROM k WHERE a = 2")
    place.undone(gtid)
    assert place.rows("k") == before
    assert place.server.query("CHECK TABLE shop.k EXTENDED")[0][3] == "OK"
    assert place.server.query("SELECT a FROM shop.k WHERE v = 6") == [(2,)]
    gtid = place.transaction("UPDATE k SET b = 6")
    place.transaction("UPDATE k SET h = 4 WHERE a = 2")
    place.refused(f"--gtid={gtid}", why="(a=2) changed")


@BUT_OLDEST
def test_partitions_and_indexes_of_texts(place: Place) -> None:
    """Rows that have changed their partition go back; FULLTEXT and prefix indexes do not matter."""
    place.begin(
        "CREATE TABLE k (id INT PRIMARY KEY, a INT, b VARCHAR(200)) "
        "PARTITION BY RANGE (id) (PARTITION p VALUES LESS THAN (10), "
        "PARTITION q VALUES LESS THAN MAXVALUE)",
        "CREATE TABLE f (id INT PRIMARY KEY, b TEXT, d INT DEFAULT (1 + 2) CHECK (d < 9), "
        "FULLTEXT (b), KEY (b(5)))",
        "INSERT INTO k VALUES (1, 1, 'x'), (20, 2, 'y')",
        "INSERT INTO f (id, b) VALUES (1, 'some words'), (2, 'others')",
    )
    before = place.state("k", "f")
    gtid = place.transaction(
        "UPDATE k SET id = id + 15", "DELETE FROM k WHERE id = 35", "UPDATE f SET b = 'none'",
        "DELETE FROM f WHERE id = 2",
    )  # fmt: skip
    place.undone(gtid)
    assert place.state("k", "f") == before
    assert place.server.query("SELECT id FROM shop.k PARTITION (q)") == [(20,)]
    found = "SELECT id FROM shop.f WHERE MATCH (b) AGAINST ('others')"
    assert place.server.query(found) == [(2,)]


@NEWEST
def test_large_values_and_impossible_dates(place: Place) -> None:
    """Blobs of 20 MB, and dates that a strict server would not take."""
    place.begin(
        "SET sql_mode = ''",
        "CREATE TABLE k (id INT PRIMARY KEY, l LONGBLOB, d DATE, t DATETIME(3), "
        "s TIMESTAMP(6) NULL)",
        "INSERT INTO k VALUES (1, REPEAT('y', 20000000), '0000-00-00', '0000-00-00', NULL), "
        "(2, REPEAT('z', 20000000), '2024-00-00', '2024-02-30', NOW(6))",
    )
    before = place.server.query("CHECKSUM TABLE shop.k EXTENDED")
    gtid = place.transaction("UPDATE k SET l = 'x', d = NULL, t = NULL", "DELETE FROM k")
    place.undone(gtid)
    assert place.server.query("CHECKSUM TABLE shop.k EXTENDED") == before


@NEWEST
def test_rows_that_triggers_changed_are_undone_and_none_fires(place: Place) -> None:
    """They are in the transaction itself."""
    place.begin(*K, "CREATE TABLE log (id INT PRIMARY KEY AUTO_INCREMENT, what VARCHAR(20))",
                "CREATE TRIGGER t AFTER DELETE ON k FOR EACH ROW "
                "INSERT INTO log (what) VALUES (OLD.b)",
                "CREATE TRIGGER i AFTER INSERT ON k FOR EACH ROW "
                "INSERT INTO log (what) VALUES ('again')")  # fmt: skip
    before = [place.state("k")[1:], place.server.query("SELECT * FROM shop.log")]
    gtid = place.transaction("DELETE FROM k")
    assert len(place.server.query("SELECT * FROM shop.log")) == 4
    assert "triggers do not fire" in place.undone(gtid).out
    assert [place.state("k")[1:], place.server.query("SELECT * FROM shop.log")] == before


FAMILY = (
    "CREATE TABLE p (id INT PRIMARY KEY, a INT, UNIQUE (a))",
    "INSERT INTO p VALUES (1, 1), (2, 2)",
    "CREATE TABLE c (id INT PRIMARY KEY, p INT, CONSTRAINT f FOREIGN KEY (p) REFERENCES p (id) {})",
)


@pytest.mark.parametrize("action", ["ON DELETE CASCADE", "ON DELETE SET NULL"])
@pytest.mark.parametrize("accident", ["INSERT INTO p VALUES (3, 3)", "DELETE FROM p WHERE id = 1"])
def test_what_would_cascade_is_refused(place: Place, action: str, accident: str) -> None:
    """Children written since, or those that are in no binlog, would be lost."""
    place.begin(*(one.format(action) for one in FAMILY), "INSERT INTO c VALUES (10, 1)")
    gtid = place.transaction(accident)
    place.refused(f"--gtid={gtid}", why="refers to it")
    renamed = place.transaction("UPDATE p SET id = 9, a = 9 WHERE id = 2")
    place.undone(renamed)


@WITH_OLDEST
def test_updates_that_would_cascade_are_refused(place: Place) -> None:
    """Only those: rows that are inserted or deleted cascade nothing."""
    place.begin(*(one.format("ON UPDATE CASCADE") for one in FAMILY))
    before = place.state("p")
    gtid = place.transaction("UPDATE p SET a = 7 WHERE id = 1")
    place.refused(f"--gtid={gtid}", why="refers to it")
    place.transaction("UPDATE p SET a = 1 WHERE id = 1")
    gtid = place.transaction("DELETE FROM p")
    place.undone(gtid)
    assert place.state("p") == before


@pytest.mark.parametrize("action", ["ON DELETE CASCADE", "ON DELETE SET NULL", "ON UPDATE CASCADE"])
def test_what_has_cascaded_is_refused_though_the_key_was_dropped_since(
    place: Place, action: str
) -> None:
    """The children that it deleted or changed are in no binlog: the parents would come back alone.

    Rows that were inserted have cascaded nothing.
    """
    place.begin(*(one.format(action) for one in FAMILY), "INSERT INTO c VALUES (10, 1)")
    accident = "UPDATE p SET id = 9 WHERE id = 1" if "UPDATE" in action else "DELETE FROM p"
    gtid = place.transaction(accident)
    inserted = place.transaction("INSERT INTO p VALUES (3, 3)")
    place.transaction("ALTER TABLE c DROP FOREIGN KEY f")
    place.refused(f"--gtid={gtid}", "--table=shop.p", why="DROP FOREIGN KEY f")
    place.undone(inserted)


@NEWEST
def test_a_foreign_key_is_checked(place: Place) -> None:
    """Also if the accident did not: a child of a row that is gone does not come back alone."""
    place.begin(*(one.format("") for one in FAMILY), "INSERT INTO c VALUES (10, 1)")
    before = place.state("p", "c")
    gtid = place.transaction("DELETE FROM c", "DELETE FROM p")
    for more in ([], ["--skip-conflicts"]):  # which would not help, and is not offered
        done = place.refused(f"--gtid={gtid}", "--table=shop.c", *more, why="foreign key")
        assert "hint: undo first what came since" in done.err
    place.undone(gtid)
    assert place.state("p", "c") == before
    gtid = place.transaction("SET foreign_key_checks = 0", "DELETE FROM p WHERE id = 1")
    place.undone(gtid)
    assert place.state("p", "c") == before


UNKNOWN = {
    "CREATE TABLE k (id INT, b VARCHAR(20))": "no primary key",
    "CREATE TABLE k (id INT NULL, b VARCHAR(20), UNIQUE (id))": "no primary key",
    "CREATE TABLE k (id INT PRIMARY KEY, b VARCHAR(20)) ENGINE = MyISAM": "not transactional",
}


@NEWEST
@pytest.mark.parametrize("table", UNKNOWN)
def test_tables_whose_rows_cannot_be_told_apart_are_refused(place: Place, table: str) -> None:
    """And those whose engine does not roll back."""
    place.begin(table, "INSERT INTO k VALUES (1, 'x'), (2, 'x')")
    gtid = place.transaction("UPDATE k SET b = 'y'")
    place.refused(f"--gtid={gtid}", why=UNKNOWN[table])


@BUT_OLDEST
def test_what_is_not_rows_is_refused(place: Place) -> None:
    """Statements, partial images, XA."""
    place.begin(*K)
    place.server.query("USE shop", "SET binlog_format = STATEMENT", "DELETE FROM k WHERE id = 1")
    place.refused(f"--gtid={place.last_gtid()}", why="DELETE FROM k")
    place.server.query("USE shop", "SET binlog_row_image = MINIMAL", "UPDATE k SET b = 'm'")
    place.refused(f"--gtid={place.last_gtid()}", why="binlog_row_image")
    place.server.query(
        "USE shop", "XA START 'x'", "UPDATE k SET b = 'xa'", "XA END 'x'", "XA PREPARE 'x'"
    )
    place.refused(f"--gtid={place.last_gtid()}", why="XA")
    place.server.query("XA COMMIT 'x'")
    place.server.query("USE shop", "TRUNCATE TABLE k")
    place.refused(f"--gtid={place.last_gtid()}", why="TRUNCATE")
    if not place.is_mariadb:
        place.begin("CREATE TABLE k (id INT PRIMARY KEY, j JSON)",
                    "INSERT INTO k VALUES (1, JSON_OBJECT('a', REPEAT('x', 99), 'b', 1))",
                    )  # fmt: skip
        place.server.query("USE shop", "SET binlog_row_value_options = PARTIAL_JSON",
                           "UPDATE k SET j = JSON_SET(j, '$.b', 2)")  # fmt: skip
        place.refused(f"--gtid={place.last_gtid()}", why="PARTIAL_JSON")
    else:
        place.begin("CREATE TABLE k (id INT PRIMARY KEY, b INT) WITH SYSTEM VERSIONING",
                    "INSERT INTO k VALUES (1, 1)")  # fmt: skip
        gtid = place.transaction("UPDATE k SET b = 2")
        place.refused(f"--gtid={gtid}", why="SYSTEM VERSIONED")


def test_servers_that_would_not_undo_exactly_are_refused(place: Place) -> None:
    """Read-only ones, and those that log statements."""
    place.begin(*K)
    gtid = place.transaction("UPDATE k SET b = 'y'")
    settings = {"read_only = 1": "read-only", "binlog_format = 'STATEMENT'": "binlog_format",
                "max_allowed_packet = 1024": "max_allowed_packet"}  # fmt: skip
    if place.is_mariadb:
        settings |= {"slave_exec_mode = IDEMPOTENT": "slave_exec_mode",
                     "slave_run_triggers_for_rbr = YES": "triggers"}  # fmt: skip
    for setting, why in settings.items():
        name = setting.split(" ")[0]
        old = place.server.query(f"SELECT @@global.{name}")[0][0]
        place.server.query(f"SET GLOBAL {setting}")
        try:
            place.refused(f"--gtid={gtid}", why=why)
        finally:
            value = f"'{old}'" if isinstance(old, str) else old
            place.server.query(f"SET GLOBAL {name} = {value}")


@NEWEST
def test_the_undo_is_written_as_a_binlog(place: Place, tmp_path: Path) -> None:
    """mysqlbinlog reads it; what it prints, a server executes."""
    place.begin(*K)
    before = place.state("k")
    gtid = place.transaction("UPDATE k SET b = 'y'", "DELETE FROM k WHERE id = 2")
    changed = place.state("k")
    file = tmp_path / "undo.binlog"
    assert place.undo(f"--gtid={gtid}", f"--output={file}").code == 0
    assert file.stat().st_mode & 0o777 == 0o600
    assert place.state("k") == changed
    printed = subprocess.run(
        [place.server.binaries.binlog, "--no-defaults", str(file)],
        capture_output=True, check=True,
    ).stdout.decode()  # fmt: skip
    assert len(re.findall(r"^BINLOG '", printed, re.MULTILINE)) >= 2
    assert place.undo(f"--gtid={gtid}", f"--output={file}").code == 8
    place.execute(printed)
    assert place.state("k") == before


@NEWEST
def test_a_plan_changes_nothing_and_needs_only_to_read(place: Place) -> None:
    """--dry-run and --json; no scratch table, no lock, no GTID."""
    place.begin(*K)
    gtid = place.transaction("UPDATE k SET b = 'y'")
    state = place.state("k")
    done = place.undo(f"--gtid={gtid}", "--dry-run", "--json")
    assert done.code == 0, done.err
    document = json.loads(done.out)
    assert document["tables"] == [{"table": "shop.k", "kind": "update", "rows": 4}]
    assert document["transactions"][0]["gtid"] == gtid
    assert not document["done"]
    assert place.state("k") == state
    assert place.last_gtid() == gtid
    at = f"{document['transactions'][0]['binlog']}:{document['transactions'][0]['position']}"
    done = place.undo(f"--at={at}", "--json")
    assert done.code == 0, done.err
    document = json.loads(done.out)
    assert (document["done"], document["rows"], document["gtid"]) == (True, 4, place.last_gtid())


GUIDE = Path(__file__).parents[2] / "docs/guides/undo.md"


def grants(flavour: str) -> list[str]:
    """The statements of the guide, without a password."""
    text = GUIDE.read_text(encoding="utf-8")
    block = text.partition(f"<!-- grants: undo-{flavour} -->")[2].split("```")[1]
    made = block.removeprefix("sql").replace(" BY '...'", " BY ''").split(";")
    return [one.strip() for one in made if one.strip()]


def without_each(statements: list[str]) -> Iterator[tuple[str, list[str]]]:
    """Each privilege, and the statements without it."""
    for at, one in enumerate(statements):
        if not one.startswith("GRANT"):
            continue
        listed, on, rest = one.removeprefix("GRANT ").partition(" ON ")
        names = listed.split(", ")
        for name in names:
            left = ", ".join(other for other in names if other != name) or "USAGE"
            fewer = [*statements[:at], f"GRANT {left}{on}{rest}", *statements[at + 1 :]]
            yield f"{name}{on}{rest.partition(' TO ')[0]}", fewer


NEEDLESS = {
    "mysql": {
        "PROCESS ON *.*",
        "INSERT ON shop.*",
        "DELETE ON shop.*",
        "INSERT ON binlog2s3_undo.*",
    },
    "mariadb": {"ALTER ON binlog2s3_undo.*"},
}
"""What 8.0 does not ask for, and 9.7 does; and what 10.11 asks for, and 11.8 does not."""


@BUT_OLDEST
def test_the_documented_privileges_are_enough_and_none_is_too_many(place: Place) -> None:
    """Without any one of them the undo fails, and nothing was changed."""
    statements = grants(place.server.binaries.flavour)

    def account(made: Sequence[str]) -> None:
        place.server.query("SET sql_log_bin = 0", "DROP USER IF EXISTS 'undo'@'%'", *made)

    place.begin(*K, "CREATE TABLE g (id INT PRIMARY KEY, b INT, s INT AS (b + 1) STORED)",
                "INSERT INTO g (id, b) VALUES (1, 1)")  # fmt: skip
    before = place.state("k")
    gtid = place.transaction("UPDATE k SET b = 'y'", "DELETE FROM k WHERE id = 1",
                             "INSERT INTO k VALUES (9, 9, 'z')", "UPDATE g SET b = 2")  # fmt: skip
    state = place.state("k")
    needless = set[str]()
    for privilege, fewer in without_each(statements):
        account(fewer)
        done = place.undo(f"--gtid={gtid}", user="undo")
        assert done.code in (0, 4, 8), (privilege, done.err)
        if not done.code:
            needless.add(privilege)
            assert place.state("k") == before
            place.undone(place.last_gtid())
        assert place.state("k") == state, privilege
        place.server.query("SET sql_log_bin = 0", "DROP DATABASE IF EXISTS binlog2s3_undo")
    assert needless <= NEEDLESS[place.server.binaries.flavour]
    account(statements)
    done = place.undo(f"--gtid={gtid}", user="undo")
    assert done.code == 0, done.err
    assert place.state("k") == before
    some = place.transaction("UPDATE k SET b = 'y'")
    place.transaction("UPDATE k SET b = 'later' WHERE id = 2")
    done = place.undo(f"--gtid={some}", "--skip-conflicts", user="undo")
    assert "1 row left out" in done.out, done.err
    reading = ["CREATE USER 'undo'@'%' IDENTIFIED BY ''",
               "GRANT PROCESS, REPLICATION CLIENT ON *.* TO 'undo'@'%'",
               "GRANT SELECT ON shop.* TO 'undo'@'%'"]  # fmt: skip
    account(reading)
    done = place.undo(f"--gtid={gtid}", "--dry-run", user="undo")
    assert done.code == 0, done.err


IDLE = 0.3
"""InnoDB's tables in information_schema are as they were for those who ask more often."""


def waiting_for_a_lock(place: Place) -> bool:
    rows = place.server.query(
        "SELECT COUNT(*) FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'"
    )
    return bool(rows[0][0])


@NEWEST
@pytest.mark.gate
@pytest.mark.parametrize("by", [signal.SIGKILL, signal.SIGINT])
def test_an_undo_that_is_ended_changes_nothing(
    place: Place, tmp_path: Path, by: signal.Signals
) -> None:
    """When other rows are undone already; the next undo removes what kill -9 leaves.

    Ctrl-C says that nothing was changed, and leaves no lock and no scratch table, although a row's
    lock is awaited for longer than those tables.
    """
    place.begin(*K)
    before = place.state("k")
    gtid = place.transaction("UPDATE k SET b = 'y' WHERE id = 1", "DELETE FROM k WHERE id = 3")
    state, golden = place.state("k"), place.bucket()
    with place.server.connect(autocommit=False) as other, other.cursor() as cursor:
        cursor.execute("SELECT * FROM shop.k WHERE id = 1 FOR UPDATE")
        child = os.fork()
        if not child:  # pragma: no cover - another process
            # no rows in its plan: the thread that starts mysqlbinlog stayed with the parent
            words = (f"--gtid={gtid}", "--yes", "--mysqlbinlog=/dev/null/none")
            execute.LOCK_WAIT = 1
            done = called(golden, place.words(*words))
            (tmp_path / "said").write_text(f"{done.code} {done.err}")
            os._exit(0)
        wait_until(
            lambda: waiting_for_a_lock(place), what="the undo waits for the row", interval=IDLE
        )
        os.kill(child, by)
        os.waitpid(child, 0)
        other.rollback()
    running = "SELECT * FROM information_schema.innodb_trx"
    wait_until(lambda: not place.server.query(running), what="it has noticed", interval=IDLE)
    assert place.state("k") == state
    assert place.last_gtid() == gtid
    if by == signal.SIGINT:
        said = (tmp_path / "said").read_text()
        assert said.strip() == "130 interrupted: nothing was changed, it is rolled back"
        assert place.server.query("SHOW DATABASES LIKE 'binlog2s3%'") == []
        place.undone(gtid)
    wait_until(
        lambda: place.state("k") == before or place.undo(f"--gtid={gtid}").code == 0,
        what="its lock is gone, too",
        interval=IDLE,
    )
    assert place.state("k") == before
    assert place.server.query("SHOW DATABASES LIKE 'binlog2s3%'") == []


class Cut(Switch):
    """Passes the COMMIT of the connection that has locked rows, and not its answer."""

    cuts = 0

    def _carry(self, client: socket.socket, server: socket.socket) -> None:
        locks = is_cut = False

        def up() -> None:
            nonlocal locks, is_cut
            with contextlib.suppress(OSError):
                while piece := client.recv(1 << 20):
                    locks |= b"FOR UPDATE" in piece
                    if locks and piece.endswith(b"\x03COMMIT") and not self.cuts:
                        is_cut = True
                        self.cuts += 1
                        server.sendall(piece)
                        server.recv(1)  # it has committed
                        break
                    server.sendall(piece)
            self._close(client, server)

        self._start(up)
        with contextlib.suppress(OSError):
            while piece := server.recv(1 << 20, socket.MSG_PEEK):
                if is_cut:
                    return
                client.sendall(server.recv(len(piece)))
        self._close(client, server)


@NEWEST
def test_a_lost_answer_of_commit_is_told(place: Place) -> None:
    """It says that it was committed, by the rows; and it is never done twice."""
    place.begin(*K)
    before = place.state("k")
    gtid = place.transaction("UPDATE k SET b = 'y'", "DELETE FROM k WHERE id = 3")
    place.server.query("SET sql_log_bin = 0", "DROP USER IF EXISTS 'undo'@'%'",
                       *grants(place.server.binaries.flavour))  # fmt: skip
    with Cut(place.server.port) as relay:
        where = ["--target-host=127.0.0.1", f"--target-port={relay.port}", "--target-user=undo",
                 "--target-ssl-mode=DISABLED"]  # fmt: skip
        done = called(place.bucket(), ["undo", "--s3-url=s3://acme/pre", "--source=orders",
                                       f"--gtid={gtid}", "--yes", *where])  # fmt: skip
        assert relay.cuts == 1
    assert done.code == 8
    assert "answer to COMMIT was lost" in done.err
    assert "it was committed" in done.err, done.err
    assert place.state("k") == before
    place.refused(f"--gtid={gtid}", why="undone already")


IDS, UNIQUE = st.integers(0, 5), st.integers(0, 7)
WORK = st.one_of(
    st.tuples(st.just("text"), IDS, st.sampled_from(["x", "X", "x ", "y", "NULL"])),
    st.tuples(st.just("unique"), IDS, UNIQUE),
    st.tuples(
        st.sampled_from(["delete", "insert", "again", "gone and back", "no key"]), IDS, UNIQUE
    ),
    st.tuples(st.sampled_from(["swap id", "swap unique"]), IDS, IDS),
)
TRANSACTION = st.lists(WORK, min_size=1, max_size=4)
Work = tuple[str, int, Any]


def statements_of(kind: str, one: int, other: Any) -> list[str]:
    """The SQL of a piece of work; whatever is in the tables, it is no error."""
    row = f"VALUES ({one}, {other}, 'r', 0)"
    swap_id = [(one, -1), (other, one), (-1, other)]
    return {
        "text": [f"UPDATE k SET b = {other if other == 'NULL' else repr(other)} WHERE id = {one}"],
        "unique": [f"UPDATE IGNORE k SET u = {other} WHERE id = {one}"],
        "delete": [f"DELETE FROM k WHERE id = {one}"],
        "insert": [f"INSERT IGNORE INTO k {row}"],
        "again": [f"DELETE FROM k WHERE id = {one}", f"INSERT IGNORE INTO k {row}"],
        "gone and back": [
            f"SET @u = (SELECT u FROM k WHERE id = {one}), @t = (SELECT t FROM k WHERE id = {one})",
            f"DELETE FROM k WHERE id = {one}", f"INSERT IGNORE INTO k VALUES ({one}, @u, 'g', @t)",
        ],
        "swap id": [f"UPDATE k SET id = {to} WHERE id = {at}" for at, to in swap_id]
        if one != other else [],
        "swap unique": [
            f"SET @a = (SELECT u FROM k WHERE id = {one})",
            f"SET @b = (SELECT u FROM k WHERE id = {other})",
            f"UPDATE k SET u = NULL WHERE id IN ({one}, {other})",
            f"UPDATE k SET u = @b WHERE id = {one}",
            f"UPDATE k SET u = @a WHERE id = {other}",
        ] if one != other else [],
        "no key": [f"INSERT INTO n VALUES ({one}, {other})"],
    }[kind]  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """A transaction, and the rows before and after it."""

    work: list[Work]
    gtid: str
    before: dict[str, dict[int, Any]]
    after: dict[str, dict[int, Any]]

    @property
    def ids(self) -> set[int]:
        """The rows of k that it may have touched."""
        swaps = {other for kind, _, other in self.work if kind.startswith("swap")}
        return {one for kind, one, _ in self.work if kind != "no key"} | swaps

    @property
    def unique(self) -> set[Any]:
        """The values of the unique key that these rows may have had meanwhile."""
        rows = [*self.before["k"].values(), *self.after["k"].values()]
        had = {row[1] for row in rows if row[0] in self.ids} - {None}
        return had | {other for kind, _, other in self.work if not kind.startswith("swap")}

    def expected(self, now: dict[str, dict[int, Any]]) -> dict[str, dict[int, Any]] | None:
        """The rows once it is undone; None if a row that it changed is not as it left it."""
        result = {name: dict(rows) for name, rows in now.items()}
        for name, rows in result.items():
            for key in self.before[name].keys() | self.after[name].keys():
                old, new = self.before[name].get(key), self.after[name].get(key)
                if old == new:
                    continue
                if now[name].get(key) != new:
                    return None
                rows.pop(key, None)
                if old is not None:
                    rows[key] = old
        return result


TABLES = (
    "CREATE TABLE k (id INT PRIMARY KEY, u INT UNIQUE, b VARCHAR(9), t INT) CHARSET utf8mb4",
    "CREATE TABLE log (id INT PRIMARY KEY AUTO_INCREMENT, what INT)",
    "CREATE TABLE n (a INT, b INT)",
    "INSERT INTO k VALUES (0, 0, 'x', 0), (1, 1, 'y', 0), (2, NULL, NULL, 0), (3, 3, 'x', 0)",
    "CREATE TRIGGER touched BEFORE UPDATE ON k FOR EACH ROW SET NEW.t = OLD.t + 1",
    "CREATE TRIGGER gone AFTER DELETE ON k FOR EACH ROW INSERT INTO log (what) VALUES (OLD.id)",
    "CREATE TRIGGER came AFTER INSERT ON k FOR EACH ROW INSERT INTO log (what) VALUES (NEW.id)",
)


def tables_of(place: Place) -> dict[str, dict[int, Any]]:
    return {
        name: {row[0]: row for row in place.server.query(f"SELECT * FROM shop.{name}")}
        for name in ("k", "log")
    }


@NEWEST
@settings(max_examples=20)
@given(transactions=st.lists(TRANSACTION, min_size=1, max_size=3), skips=st.booleans())
def test_an_undo_is_exact_or_refused(
    place: Place, transactions: list[list[Work]], skips: bool
) -> None:
    """Swapped keys, rows that went and came again, triggers, tables without a key; others since.

    The first transaction is undone: each of its rows is as before it, and all others are as they
    were; or nothing is changed, and only for a reason. With --skip-conflicts each row is one or the
    other.
    """
    place.begin(*TABLES)
    made: list[Made] = []
    for work in transactions:
        before, last = tables_of(place), place.last_gtid()
        texts = [text for one in work for text in statements_of(*one)]
        gtid = place.transaction("SET sql_mode = ''", *texts)
        if gtid != last:
            made.append(Made(work=work, gtid=gtid, before=before, after=tables_of(place)))
    assume(made)
    first, later = made[0], made[1:]
    now, last = tables_of(place), place.last_gtid()
    expected = first.expected(now)
    done = place.undo(f"--gtid={first.gtid}", *(["--skip-conflicts"] if skips else []))
    then = tables_of(place)
    assert done.code in (0, 8), done.err
    others = {row[1] for row in now["k"].values() if row[0] not in first.ids}
    is_without_key = any(kind == "no key" for kind, _, _ in first.work)
    if done.code:
        assert then == now
        assert place.last_gtid() == last
        reasons = {
            "without a key": is_without_key,
            "touched since": any(first.ids & one.ids for one in later),
            "unique key used since": bool(others & first.unique),
        }
        assert any(reasons.values()), done.err
        event(f"refused: {[reason for reason, given in reasons.items() if given]}")
        return
    assert not is_without_key
    if expected is not None and "left out" not in done.out:
        assert then == expected
        event("undone")
        return
    event("rows left out")
    assert skips, "a row that was changed since was overwritten"
    for name, rows in then.items():
        for key in rows.keys() | now[name].keys():
            assert rows.get(key) in (now[name].get(key), first.before[name].get(key))


def test_writers_go_on_while_transactions_are_undone(
    disk_tmp_path: Path, minio: MinioServer
) -> None:
    """With a streamer and a store: the archive catches up, and nobody else's rows are touched."""
    binaries = get.VERSIONS["mysql-9"]()
    with (
        server_of(binaries, disk_tmp_path / "db", options=["--binlog-format=ROW"]) as server,
        streamed(disk_tmp_path, server, minio) as (stream, name),
        writing(server) as written,
    ):
        server.query("CREATE DATABASE shop", "USE shop", *K)
        stream.wait_for_event("streaming", PATIENCE)
        place = Place(server=server, columns={})
        finder = Finder(minio, name)
        for kind in ("DELETE FROM shop.k", "UPDATE shop.k SET b = 'y', id = id + 50"):
            before = place.state("k")
            server.query(kind)
            gtid = wait_until(partial(newest, finder, kind[:6]), what="it is in the bucket")
            done = finder.run(f"--gtid={gtid}", f"--target-socket={server.socket}",
                              "--target-user=root", "--yes", command="undo")  # fmt: skip
            assert done.status == 0, done.stderr
            assert place.state("k") == before
        count = len(written)
        wait_until(lambda: len(written) > count, what="the writer goes on")
    assert written == sorted(written)


def newest(finder: Finder, kind: str) -> str:
    """The GTID of the newest transaction of this kind; "" if there is none yet."""
    return finder.run("--table=shop.k", f"--type={kind}", "--print=gtid").stdout.strip()


@contextlib.contextmanager
def writing(server: MysqlServer) -> Iterator[list[int]]:
    """Somebody who inserts rows into another table, until the end; the numbers of the rows."""
    server.query("CREATE DATABASE other", "CREATE TABLE other.w (id INT PRIMARY KEY)")
    written: list[int] = []
    over = threading.Event()

    def write() -> None:
        with server.connect() as connection, connection.cursor() as cursor:
            while not over.wait(0.05):
                cursor.execute("INSERT INTO other.w VALUES (%s)", (len(written),))
                written.append(len(written))

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield written
    finally:
        over.set()
        thread.join()
