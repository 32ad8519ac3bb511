"""A real target replicates a plan from us: all arrives, nothing twice, nothing is left behind."""

import os
import random
import re
import sys
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from binlog2s3.binlog.gtid import GtidSet, MariadbGtidList
from binlog2s3.errors import ArchiveError, RecoveryError
from binlog2s3.recover.model import BinlogPosition, Checked, PlanPiece, ProgressReport
from binlog2s3.recover.plan_source import Window
from lab.get import ServerBinaries
from tests.own_files import Own, own, planned, without
from tests.waiting import wait_until
from tests.world.pair import Noted, Pair, Process, kill_again_and_again, same
from tests.world.servers import RELAXED, content, executed, two
from tests.world.writes import (
    held_up,
    stand_in_the_way,
    write_all_kinds,
    write_counting,
    write_definitions,
    write_large,
    write_rows,
)

NAMES_ANOTHER = (
    "INSERT INTO shop.a VALUES (50, 'Worker 1 failed executing transaction ''0-1-9'' at source "
    "log b.000001, end_log_pos 9; the event''s master log own.mysql-bin.000001, end_log_pos 9')"
)
"""A row that speaks like an error of a server."""
STATE = "gtid_binlog_state"
STATEMENT = "SET SESSION binlog_format = 'STATEMENT'"


@pytest.fixture(scope="module")
def mysql_pair(mysql_binaries: ServerBinaries) -> Iterator[Pair]:
    with two(mysql_binaries) as both:
        yield Pair(*both)


@pytest.fixture(scope="module")
def mariadb_pair(mariadb_binaries: ServerBinaries) -> Iterator[Pair]:
    logs = [*RELAXED, "--log-slave-updates=ON"]
    with two(mariadb_binaries, logs) as both:
        yield Pair(*both)


def as_new(pair: Pair) -> Iterator[Pair]:
    """Both, and in the end nothing of ours is left."""
    if pair.target._process is None:  # a test has failed that killed it
        pair.target.start()
    pair.clear()
    if not pair.is_mysql:
        pair.target.query("SET GLOBAL gtid_slave_pos = ''")
    yield pair
    try:
        assert pair.left() == []
    finally:
        pair.settle()


@pytest.fixture(params=["mysql", "mariadb"])
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    """Each flavour in turn."""
    yield from as_new(request.getfixturevalue(f"{request.param}_pair"))


@pytest.fixture(scope="module")
def off_pair(mysql_binaries: ServerBinaries) -> Iterator[Pair]:
    """MySQL, both with gtid_mode OFF."""
    off = [*RELAXED, "--gtid-mode=OFF", "--enforce-gtid-consistency=OFF"]
    with two(mysql_binaries, off) as both:
        yield Pair(*both)


@pytest.fixture(params=["mysql", "mariadb", "off"])
def any_pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    """Each flavour, and MySQL without GTIDs."""
    yield from as_new(request.getfixturevalue(f"{request.param}_pair"))


# Everything arrives


def cells(*rows: object, names: str = "") -> pytest.MarkDecorator:
    """The pairs for a test, each with the values of `names`."""
    return pytest.mark.parametrize(f"any_pair{names}", rows, indirect=["any_pair"])


@pytest.mark.gate
def test_everything_arrives(pair: Pair, disk_tmp_path: Path) -> None:
    """All kinds of statements and rows, over several binlogs; how far it is never goes back."""
    write_all_kinds(pair.source, disk_tmp_path)
    files = pair.files(cut=333)
    told: list[ProgressReport] = []
    assert pair.obstacle() is None
    pair.apply(files, told.append)
    same(pair)
    last = told[-1]
    assert (last.size, last.transactions) == (files.size, files.count)
    assert (last.of_size, last.of_transactions) == (files.size, files.count)
    assert [at.transactions for at in told] == sorted(at.transactions for at in told)
    assert [at.size for at in told] == sorted(at.size for at in told)


def test_large_transactions(pair: Pair) -> None:
    """One that is greater than what may be ahead goes whole; and without checksums."""
    write_large(pair.source)
    pair.apply(pair.files(cut=1 << 18), window=Window(1 << 20))
    same(pair)


def test_it_ends_exactly_where_it_shall(any_pair: Pair) -> None:
    """At whatever transaction the plan ends, that one is the last, and no other was passed over."""
    pair, seed = any_pair, random.randrange(1 << 32)
    write_counting(pair.source, 12)
    every, upto = pair.files(), 0
    for upto, files in pair.parts(random.Random(seed)):
        noted: list[BinlogPosition] = []
        pair.apply(files, notes=Noted(noted))
        piece, last = every.transactions[upto - 1]
        assert [one.offset for one in noted] in ([last.end], []), f"seed {seed}"
        if last.gtid is not None:
            assert has(pair) == [str(one.gtid) for _, one in every.transactions[:upto]]
    piece, first = every.transactions[upto]
    names = pair.names[pair.names.index(str(piece.binlog)) :]
    pair.apply(own(pair.source.datadir, names, begin=first.begin))
    same(pair, with_gtids=first.gtid is not None)


def has(pair: Pair) -> list[str]:
    """The GTIDs of the transactions in the target's own binlogs, in their order."""
    pair.target.query("FLUSH BINARY LOGS")
    names = [name for name, _ in pair.target.binlogs()]
    there = own(pair.target.datadir, names)
    return [str(one.gtid) for _, one in there.transactions]


@cells(
    ("mysql", (2, 6, 7, 9, 28, 29)),
    ("mariadb", (2, 6, 7, 9, 28, 29)),
    ("off", (2, 6, 7, 9, 28, 29)),
    ("off", tuple(range(2, 30))),
    names=",numbers",
)
def test_what_is_left_out(any_pair: Pair, numbers: tuple[int, ...]) -> None:
    """It ends all the same; the place behind what was left out is the one that is noted."""
    pair = any_pair
    write_rows(pair.source)
    every = pair.files()
    files, noted = without(every, numbers), list[BinlogPosition]()
    pair.apply(files, notes=Noted(noted))
    assert [one.offset for one in noted] in ([every.pieces[-1].end], [])
    kept = [one for number, (_, one) in enumerate(every.transactions) if number not in numbers]
    if kept[0].gtid is not None:
        assert has(pair) == [str(one.gtid) for one in kept]
    else:
        rows = pair.target.query("SELECT COUNT(*) FROM shop.a")[0][0]
        assert rows == 30 - len([n for n in numbers if n != 22]) - 3 * (22 in numbers)


def test_temporary_tables_end_with_the_server_that_had_them(pair: Pair) -> None:
    """Behind a crash of the source, its thread 7 is another one."""
    pair.source.query(
        "CREATE DATABASE shop",
        "CREATE TABLE shop.a (id INT PRIMARY KEY)",
        STATEMENT,
        "SET SESSION pseudo_thread_id = 7",
        "CREATE TEMPORARY TABLE shop.tmp (i INT)",
        "INSERT INTO shop.tmp VALUES (1)",
        "INSERT INTO shop.a SELECT i FROM shop.tmp",
        "SET sql_log_bin = 0",
    )
    pair.source.kill()
    pair.source.start()
    pair.source.query(
        STATEMENT,
        "SET SESSION pseudo_thread_id = 7",
        "CREATE TEMPORARY TABLE shop.tmp (i INT)",
        "INSERT INTO shop.tmp VALUES (2)",
        "INSERT INTO shop.a SELECT i FROM shop.tmp",
    )
    pair.apply(pair.files())
    same(pair, with_gtids=False)


def leave_temporary_table(pair: Pair) -> tuple[Own, str]:
    """A session has one and goes on: what the source has written until then, and its GTIDs."""
    with pair.source.connect() as connection, connection.cursor() as cursor:
        cursor.execute("CREATE DATABASE shop")
        cursor.execute("SET SESSION binlog_format = 'STATEMENT'")
        cursor.execute("CREATE TEMPORARY TABLE shop.tmp (i INT)")
        cursor.execute("INSERT INTO shop.tmp VALUES (1)")
        return pair.files(), executed(pair.source, STATE)


@cells(("mariadb", "STATEMENT"), ("mysql", "ROW"), ("mysql", "MIXED"), names=",form")
def test_a_temporary_table_that_is_left(any_pair: Pair, form: str) -> None:
    """The target drops it at the end, and logs nothing of its own for that."""
    pair = any_pair
    files, there = leave_temporary_table(pair)
    before = pair.target.query("SELECT @@global.binlog_format")[0][0]
    pair.target.query(f"SET GLOBAL binlog_format = '{form}'")
    try:
        pair.apply(files)
    finally:
        pair.target.query(f"SET GLOBAL binlog_format = '{before}'")
    if pair.is_mysql:
        assert executed(pair.target, STATE) == there
    else:  # what it logs of a temporary table is its own affair
        assert pair.target.query("SELECT @@global.gtid_slave_pos") == [(there,)]


# Killed, and again


@pytest.mark.gate("mysql-both", "mariadb-both")
@cells(
    ("mysql", "both"),
    ("mariadb", "both"),
    ("mariadb", "the server"),
    ("off", "both"),
    ("off", "us"),
    names=",what",
)
def test_killed_anywhere_and_again(any_pair: Pair, disk_tmp_path: Path, what: str) -> None:
    """Killed at random moments, it goes on where it was: nothing twice, nothing left out."""
    pair, seed = any_pair, random.randrange(1 << 32)
    chance = random.Random(seed)
    write_counting(pair.source)
    note = disk_tmp_path / "note"
    by_gtid = pair.files().transactions[0][1].gtid is not None

    def begin() -> Process:
        return Process(pair, note)

    rounds = int(os.environ.get("ROUNDS", "2"))
    kills, said = kill_again_and_again(chance, begin, pair.target, what, rounds)
    assert "Traceback" not in said, f"seed {seed}: {said}"
    assert Process(pair, note).end() == "", f"seed {seed}"
    assert kills, f"seed {seed}"
    same(pair, with_gtids=by_gtid)


def test_a_mariadb_that_was_killed_while_it_made_the_channel(
    mariadb_pair: Pair, disk_tmp_path: Path
) -> None:
    """Then it has no host: its applier runs after the restart, and no statement shows it."""
    pair = mariadb_pair
    pair.clear()
    pair.target.query("SET GLOBAL gtid_slave_pos = ''")
    write_counting(pair.source)
    pair.target.query("CHANGE MASTER 'binlog2s3' TO MASTER_CONNECT_RETRY = 1")
    pair.target.kill()
    pair.target.start()
    assert pair.target.query("SHOW ALL SLAVES STATUS") == []
    assert pair.target.query("SHOW GLOBAL STATUS LIKE 'Slaves_running'") == [
        ("Slaves_running", "1")
    ]
    assert Process(pair, disk_tmp_path / "note").end() == ""
    same(pair)
    assert pair.left() == []


PARTS = "CREATE TABLE shop.p (id INT, v INT) PARTITION BY HASH (id) PARTITIONS 2"
DEFINITIONS = {
    "CREATE OR REPLACE TABLE shop.a (id INT)": [],
    "ALTER TABLE shop.a ADD INDEX (v)": [],
    "ALTER TABLE shop.p ADD PARTITION PARTITIONS 1": [PARTS],
    "ALTER TABLE shop.p EXCHANGE PARTITION p0 WITH TABLE shop.q": [
        PARTS,
        "CREATE TABLE shop.q (id INT, v INT)",
        "INSERT INTO shop.q VALUES (2, 2)",
    ],
    "RENAME TABLE shop.a TO shop.x, shop.b TO shop.a, shop.x TO shop.b": [
        "CREATE TABLE shop.b (other INT)"
    ],
    "CREATE USER theirs@localhost IDENTIFIED BY 'x'": [],
}
"""Statements, each behind others; done twice, some fail, and some do harm."""


def up_to(pair: Pair, statement: str) -> Own:
    """The source has executed this one last; the target all that comes before it."""
    pair.source.query(
        "CREATE DATABASE shop",
        "CREATE TABLE shop.a (id INT PRIMARY KEY, v INT)",
        "INSERT INTO shop.a VALUES (1, 1)",
        *DEFINITIONS[statement],
        statement,
    )
    files = pair.files()
    begin = files.transactions[-1][1].begin
    pair.apply(own(pair.source.datadir, pair.names, end=begin))
    return own(pair.source.datadir, pair.names, begin=begin)


@pytest.mark.gate("ALTER TABLE shop.a ADD INDEX (v)")
@pytest.mark.parametrize("statement", [one for one in DEFINITIONS if "EXCHANGE" not in one])
def test_killed_between_a_definition_and_its_place(
    mariadb_pair: Pair, disk_tmp_path: Path, statement: str
) -> None:
    """The target's own binlog has it and its place does not: it is not executed again."""
    pair, note = mariadb_pair, disk_tmp_path / "note"
    pair.clear()
    pair.target.query("SET GLOBAL gtid_slave_pos = ''")
    files = up_to(pair, statement)
    before = pair.target.query("SELECT @@global.gtid_slave_pos")[0][0]
    pair.apply(files)
    pair.target.query(f"SET GLOBAL gtid_slave_pos = '{before}'")  # as after a crash there
    pair.target.kill()
    pair.target.start()
    assert str(files.transactions[-1][1].gtid) in executed(pair.target, STATE)
    pair.source.query("CREATE DATABASE later")
    assert Process(pair, note).end() == ""
    same(pair)
    assert pair.left() == []


SILENT = [one for one in DEFINITIONS if "PARTITION" in one]


@pytest.mark.gate("ALTER TABLE shop.p ADD PARTITION PARTITIONS 1")
@pytest.mark.parametrize("statement", SILENT)
def test_killed_between_a_definition_and_the_binlog(
    mariadb_pair: Pair, disk_tmp_path: Path, statement: str
) -> None:
    """It took effect, and nothing says so: refused, for done twice it does harm without an error.

    Told that it was executed, the next run goes on behind it.
    """
    pair, note = mariadb_pair, disk_tmp_path / "note"
    pair.clear()
    pair.target.query("SET GLOBAL gtid_slave_pos = ''")
    up_to(pair, statement)
    pair.target.query("SET sql_log_bin = 0", statement)
    pair.target.kill()
    pair.target.start()
    before = content(pair.target)
    said = Process(pair, note).end()
    assert "it is unknown whether it has carried it out" in said
    assert content(pair.target) == before
    told = re.search(r"(SET GLOBAL gtid_slave_pos = '[-0-9,]+') there", said)
    assert told is not None
    pair.target.query(told[1])
    assert Process(pair, note).end() == ""
    same(pair, with_gtids=False)


@pytest.mark.gate("mariadb-both")
@cells(("mariadb", "both"), ("mariadb", "the server"), names=",what")
def test_killed_in_definitions_and_again(any_pair: Pair, disk_tmp_path: Path, what: str) -> None:
    """Killed at random moments of a history of definitions: nothing twice, nothing left out."""
    pair, seed = any_pair, random.randrange(1 << 32)
    write_definitions(pair.source)
    note = disk_tmp_path / "note"
    rounds = int(os.environ.get("ROUNDS", "2"))
    kills, said = kill_again_and_again(
        random.Random(seed), lambda: Process(pair, note), pair.target, what, rounds
    )
    sys.stdout.write(f"{kills} kills\n")
    assert "Traceback" not in said, f"seed {seed}: {said}"
    assert Process(pair, note).end() == "", f"seed {seed}"
    assert kills, f"seed {seed}"
    same(pair, with_gtids=False)  # its binlog has statements that a start completed
    ((place,),) = pair.source.query("SELECT @@global.gtid_binlog_pos")
    assert pair.target.query("SELECT @@global.gtid_slave_pos") == [(place,)]


def test_a_target_that_starts_again_goes_no_further(any_pair: Pair, disk_tmp_path: Path) -> None:
    """It does not connect to anybody, and applies at most what it had got."""
    pair = any_pair
    write_counting(pair.source, 60)
    files = own(pair.source.datadir, pair.names[:3])
    by_gtid = files.transactions[0][1].gtid is not None

    class EndedError(Exception):
        pass

    made = (
        "SELECT COUNT(*) FROM information_schema.tables "
        "WHERE table_schema = 'shop' AND table_name = 'log'"
    )

    def kill(_progress: ProgressReport) -> None:
        # a MariaDB that dies inside of CREATE DATABASE cannot know that it has carried it out
        wait_until(lambda: pair.target.query(made) == [(1,)], what="the first definitions are done")
        pair.target.kill()
        raise EndedError

    with pytest.raises(EndedError):
        pair.apply(files, kill)
    pair.target.start()
    was_there, place = pair.settle()
    assert was_there
    note = disk_tmp_path / "note"
    if place is not None:
        note.write_text(str(place))
        assert (str(place.binlog), place.offset) <= (pair.names[2], files.pieces[-1].end)
    assert Process(pair, note).end() == ""
    same(pair, with_gtids=by_gtid)


# What stands against it


SETTINGS = {
    "mysql": (
        ("replica_exec_mode", "'IDEMPOTENT'", "'STRICT'"),
        ("replica_checkpoint_period", "60000", "300"),
        ("init_replica", "'SET @a = 1'", "''"),
        ("innodb_flush_log_at_trx_commit", "0", "2"),
    ),
    "mariadb": (
        ("innodb_flush_log_at_trx_commit", "0", "2"),
        ("slave_exec_mode", "'IDEMPOTENT'", "'STRICT'"),
        ("init_slave", "'SET @a = 1'", "''"),
        ("slave_run_triggers_for_rbr", "YES", "NO"),
        ("gtid_ignore_duplicates", "ON", "OFF"),
        ("replicate_events_marked_for_skip", "FILTER_ON_SLAVE", "REPLICATE"),
        ("replicate_do_db", "'shop'", "''"),
    ),
}
"""Of each flavour: a name, the value that stands against it, and the one that does not."""


def test_settings_that_stand_against_it(pair: Pair) -> None:
    """Each is named before anything was changed."""
    for name, value, otherwise in SETTINGS["mysql" if pair.is_mysql else "mariadb"]:
        pair.target.query(f"SET GLOBAL {name} = {value}")
        try:
            assert name in str(pair.obstacle())
        finally:
            pair.target.query(f"SET GLOBAL {name} = {otherwise}")
        assert pair.obstacle() is None


def test_filters(mysql_pair: Pair) -> None:
    """A new channel has those that the server was started with: nothing is applied through them."""
    pair = mysql_pair
    pair.clear()
    write_rows(pair.source)
    pair.target.restart([*RELAXED, "--replicate-do-db=another"])
    try:
        with pytest.raises(RecoveryError, match="would leave something out: Replicate_Do_DB"):
            pair.apply(pair.files())
    finally:
        pair.target.restart(RELAXED)
    assert pair.left() == []
    pair.apply(pair.files())
    same(pair)


def test_a_server_id_of_its_own(pair: Pair) -> None:
    """A replica passes over its own server_id: refused before, and where only an event has it."""
    write_rows(pair.source)
    assert "server_id" in str(pair.obstacle(server_ids={2}))
    pair.source.query(
        "SET SESSION server_id = 2" if not pair.is_mysql else "SET GLOBAL server_id = 2",
        "INSERT INTO shop.a VALUES (100, 'of the other')",
        "SET SESSION server_id = 1" if not pair.is_mysql else "SET GLOBAL server_id = 1",
        "INSERT INTO shop.a VALUES (101, 'of this one')",
    )
    files = pair.files()
    with pytest.raises(RecoveryError, match="server_id 2, which is the target's own"):
        pair.apply(files)
    assert pair.left() == []
    assert pair.target.query("SELECT MAX(id) FROM shop.a") == [(29,)]


@cells("off")
def test_gtids_into_a_target_without_them(any_pair: Pair) -> None:
    """Is refused, with what to set."""
    files = any_pair.files()
    piece = replace(files.pieces[0], gtids=GtidSet.parse("3e11fa47-71ca-11e1-9e33-c80aa9429562:1"))
    said = any_pair.obstacle(plan=planned(replace(files, pieces=(piece,))))
    assert "gtid_mode" in str(said)


def test_a_channel_of_somebody_else(pair: Pair) -> None:
    """Stays as it is."""
    make = (
        "CHANGE REPLICATION SOURCE TO SOURCE_HOST = 'db.example', SOURCE_USER = 'x' "
        "FOR CHANNEL 'binlog2s3'"
        if pair.is_mysql
        else "CHANGE MASTER 'binlog2s3' TO master_host = 'db.example', master_user = 'x'"
    )
    pair.target.query(make)
    try:
        assert "did not make" in str(pair.obstacle())
        write_rows(pair.source)
        with pytest.raises(RecoveryError, match="has a channel 'binlog2s3' already"):
            pair.apply(pair.files())
        assert pair.settle() == (False, None)
        assert pair.left()
    finally:
        pair.target.query(
            "RESET REPLICA ALL FOR CHANNEL 'binlog2s3'"
            if pair.is_mysql
            else "RESET SLAVE 'binlog2s3' ALL"
        )


@pytest.mark.gate
def test_what_is_there_already_is_not_replaced(mariadb_pair: Pair) -> None:
    """MariaDB's own setting has a CREATE replace it, rows and all; it comes back afterwards.

    Also where an earlier run was cut off: its note, and what is to be done, are in the hint.
    """
    pair, mode = mariadb_pair, "SELECT @@global.slave_ddl_exec_mode"
    pair.clear()
    write_rows(pair.source)
    pair.apply(pair.files())
    pair.target.query("CREATE TABLE shop.own (id INT PRIMARY KEY)", "RESET MASTER")
    before = content(pair.target)
    with pytest.raises(RecoveryError, match="Can't create database 'shop'") as caught:
        pair.apply(pair.files(), begins_behind=MariadbGtidList())
    assert "does the base backup end later" in str(caught.value.hint)
    assert (content(pair.target), pair.target.query(mode)) == (before, [("IDEMPOTENT",)])
    pair.target.query("DROP TABLE shop.own")
    state = MariadbGtidList.parse("0-1-1")  # the database's; the table is there without its GTID
    pair.target.query("TRUNCATE shop.a", "RESET MASTER")
    files = own(pair.source.datadir, pair.names, begin=pair.files().transactions[1][1].begin)
    with pytest.raises(RecoveryError, match="Table 'a' already exists") as caught:
        pair.apply(files, begins_behind=state, notes=Noted(half_way="0-1-2"))
    assert "SET GLOBAL gtid_slave_pos = '0-1-2' there" in str(caught.value.hint)
    assert (pair.target.query(mode), pair.left()) == ([("IDEMPOTENT",)], [])


@pytest.mark.gate
def test_domains_come_in_the_order_of_the_binlog(mariadb_pair: Pair) -> None:
    """MariaDB's workers keep the order within a domain only; these ones depend on each other."""
    pair, workers = mariadb_pair, "SELECT @@global.slave_parallel_threads"
    pair.clear()
    pair.target.query("SET GLOBAL gtid_slave_pos = ''")
    before = pair.target.query(workers)
    pair.source.query(
        "CREATE DATABASE shop",
        "CREATE TABLE shop.n (i INT PRIMARY KEY, v BIGINT)",
        "INSERT INTO shop.n VALUES (1, 1)",
    )
    pair.source.query(
        "SET SESSION binlog_format = 'STATEMENT'",
        *(
            statement
            for number in range(300)
            for statement in (
                f"SET SESSION gtid_domain_id = {number % 3}",
                f"UPDATE shop.n SET v = (v * 3 + {number}) % 1000003",
            )
        ),
    )
    pair.apply(pair.files(), workers=4)
    same(pair)
    assert pair.target.query(workers) == before
    assert pair.left() == []


# What goes wrong


@pytest.mark.gate("mysql-True", "mariadb-True")
@cells(("mysql", True), ("mariadb", True), ("off", False), names=",compressed")
def test_a_transaction_that_fails_is_named(any_pair: Pair, compressed: bool) -> None:
    """The server's own words; all before it is applied, no more, and the next run goes on."""
    pair = any_pair
    name = "binlog_transaction_compression" if pair.is_mysql else "log_bin_compress"
    if compressed:
        pair.source.query(f"SET GLOBAL {name} = ON")
    write_rows(pair.source)
    pair.source.query(f"SET GLOBAL {name} = OFF")
    stand_in_the_way(pair.target)
    every = pair.files()
    files = own(pair.source.datadir, pair.names, begin=every.transactions[2][1].begin)
    wrong, noted = files.transactions[-8][1], list[BinlogPosition]()
    state = {} if pair.is_mysql else {"begins_behind": MariadbGtidList.parse("0-1-2")}
    with pytest.raises(RecoveryError) as caught:
        pair.apply(files, notes=Noted(noted), **state)
    said, hint = str(caught.value), str(caught.value.hint)
    assert "Duplicate entry '21' for key" in said
    assert "1062" in said
    assert "was applied" in said
    assert said.count(f"{wrong.begin}") <= 1
    assert "end_log_pos" not in said
    if wrong.gtid is not None:
        assert f"refused transaction {wrong.gtid}" in said
        assert f"leave the transaction out (--skip-gtid {wrong.gtid}); " in hint
    else:
        assert noted[-1].offset == wrong.begin
    got = [row[0] for row in pair.target.query("SELECT id FROM shop.a ORDER BY id")]
    assert got == [*range(20), 21]
    assert pair.left() == []
    pair.target.query("SET sql_log_bin = 0", "DELETE FROM shop.a WHERE id = 21")
    rest = own(pair.source.datadir, pair.names[1:], begin=wrong.begin)
    pair.apply(rest)
    assert pair.target.query("SELECT COUNT(*) FROM shop.a") == [(30,)]


@pytest.mark.gate
@pytest.mark.parametrize(
    ("kind", "workers"), [("rows", 4), ("statement", 0), ("statement", 4), ("table", 4)]
)
def test_the_transaction_that_a_mariadb_refuses(
    mariadb_pair: Pair, workers: int, kind: str
) -> None:
    """It is named, or none is: with several workers only if the server's message has its place."""
    pair = mariadb_pair
    pair.clear()
    pair.target.query("SET GLOBAL gtid_slave_pos = ''")
    pair.source.query(
        "CREATE DATABASE shop",
        "CREATE TABLE shop.a (id INT PRIMARY KEY, v VARCHAR(200))",
        *(f"INSERT INTO shop.a VALUES ({n}, 'x')" for n in range(40)),
        "FLUSH BINARY LOGS",
        STATEMENT.replace("STATEMENT", "ROW") if kind == "rows" else STATEMENT,
        "CREATE TABLE shop.there (id INT)" if kind == "table" else NAMES_ANOTHER,
        *(f"INSERT INTO shop.a VALUES ({n}, 'x')" for n in range(100, 400)),
    )
    files = pair.files()
    wrong = files.transactions[42][1]
    pair.apply(own(pair.source.datadir, pair.names, end=files.transactions[45][1].end))
    pair.target.query(
        "SET sql_log_bin = 0",
        "DROP TABLE IF EXISTS shop.there",
        "DELETE FROM shop.a WHERE id BETWEEN 50 AND 102",
        "CREATE TABLE shop.there (id INT)" if kind == "table" else "DO 0",
        "INSERT INTO shop.a VALUES (50, 'there')" if kind != "table" else "DO 0",
        "RESET MASTER",
    )
    pair.target.query(f"SET GLOBAL gtid_slave_pos = '{files.transactions[41][1].gtid}'")
    rest = own(pair.source.datadir, pair.names[1:])
    with pytest.raises(RecoveryError) as caught:
        pair.apply(rest, workers=workers)
    said, hint = str(caught.value), str(caught.value.hint)
    assert ("1050" if kind == "table" else "1062") in said
    is_certain = kind == "rows" or not workers
    assert (f"refused transaction {wrong.gtid}" in said) is is_certain, said
    assert (f"--skip-gtid {wrong.gtid}" in hint) is is_certain, hint
    assert ("--skip-gtid" in hint) is is_certain, hint
    assert pair.target.query("SELECT COUNT(*) FROM shop.a WHERE id >= 100") == [(0,)]
    if is_certain:
        pair.apply(
            without(rest, [0]),
            begins_behind=MariadbGtidList.parse(str(wrong.gtid)),
            workers=workers,
        )
        assert pair.target.query("SELECT COUNT(*) FROM shop.a WHERE id >= 100") == [(300,)]


@cells("mariadb", "off")
def test_the_target_goes_down(any_pair: Pair, disk_tmp_path: Path) -> None:
    """It is said so, and the same again finishes the work."""
    pair = any_pair
    write_counting(pair.source)
    files = pair.files(cut=100)
    by_gtid = files.transactions[0][1].gtid is not None

    with ExitStack() as stack:
        stands = stack.enter_context(held_up(pair.target))

        def kill(_progress: ProgressReport) -> None:
            if stands():
                stack.pop_all()  # its connection is gone with the server
                pair.target.kill()

        with pytest.raises(RecoveryError, match="lost the target") as caught:
            pair.apply(files, kill)
    assert caught.value.transient
    pair.target.start()
    note = disk_tmp_path / "note"
    assert Process(pair, note).end() == ""
    same(pair, with_gtids=by_gtid)


def test_somebody_stops_it(pair: Pair) -> None:
    """It is said so; nothing of ours is left, and the next run goes on."""
    write_counting(pair.source)
    with ExitStack() as stack:
        stands = stack.enter_context(held_up(pair.target))

        def stop(_progress: ProgressReport) -> None:
            if stands():
                stack.close()
                pair.target.query(
                    "STOP REPLICA SQL_THREAD FOR CHANNEL 'binlog2s3'"
                    if pair.is_mysql
                    else "STOP SLAVE 'binlog2s3' SQL_THREAD"
                )

        with pytest.raises(RecoveryError, match="somebody stopped the applier"):
            pair.apply(pair.files(cut=100), stop)
    assert pair.left() == []


@cells("mariadb")
def test_what_comes_before_damage_is_applied(any_pair: Pair) -> None:
    """Where the bucket breaks off within a transaction, all that is whole before it is applied."""
    pair = any_pair
    write_rows(pair.source)
    files, noted = pair.files(cut=50), list[BinlogPosition]()
    end = files.transactions[17][1].end

    def broken(
        pieces: Sequence[PlanPiece],
    ) -> Generator[tuple[PlanPiece, Iterator[Checked]], None, None]:
        for piece, data in files.opened(pieces):
            last = piece.binlog == files.pieces[1].binlog
            yield piece, upto(data, piece.begin, end + 120) if last else data

    with pytest.raises(ArchiveError, match="torn"):
        pair.apply(files, opened=broken, notes=Noted(noted))
    got = [row[0] for row in pair.target.query("SELECT id FROM shop.a ORDER BY id")]
    assert got == list(range(16))
    assert [one.offset for one in noted] in ([end], [])
    assert pair.left() == []


def upto(data: Iterator[Checked], begin: int, end: int) -> Iterator[Checked]:
    """The same, until it is torn there."""
    yield next(data)
    for checked in data:
        begin += len(checked.data)
        if begin > end:
            raise ArchiveError("torn")
        yield checked
