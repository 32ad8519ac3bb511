"""Relay logs for a real MariaDB's own applier: all arrives, nothing twice, nothing is left."""

import os
import random
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from binlog2s3.errors import ArchiveError, RecoveryError, SourceError
from binlog2s3.recover import relay
from binlog2s3.recover.mariadb_channel import Channel, Reach
from binlog2s3.recover.model import Place, Progress, Stream
from binlog2s3.server.connection import Server
from lab.get import ServerBinaries
from lab.mysql import MariadbServer
from tests.integration import relay_pair
from tests.integration.apply_pair import (
    HOLD,
    RELAXED,
    content,
    gtids,
    held_up,
    same,
    two,
    write_all_kinds,
)
from tests.integration.relay_pair import LARGE_BYTES, Process, kill_again_and_again, write_large
from tests.own_files import Own
from tests.waiting import wait_until

# CREATE TABLE ... SELECT comes as two transactions, the second without a GTID
OPTIONS = (*RELAXED, "--gtid-strict-mode=OFF", "--log-slave-updates=ON")


@dataclass(frozen=True, slots=True)
class Pair(relay_pair.Pair):
    """Two of MariaDB."""

    def refused(self, files: Own, **options: Any) -> RecoveryError:
        """The error; nothing of ours is left."""
        with pytest.raises(RecoveryError) as caught:
            self.apply(files, **options)
        assert self.left() == []
        return caught.value

    def forget(self) -> None:
        """What it has applied, it has not."""
        self.target.query("SET GLOBAL gtid_slave_pos = ''")


@pytest.fixture(scope="module")
def servers(mariadb_binaries: ServerBinaries) -> Iterator[Pair]:
    """Two of MariaDB."""
    with two(MariadbServer, mariadb_binaries, OPTIONS) as both:
        yield Pair(*both)


@pytest.fixture
def pair(servers: Pair) -> Iterator[Pair]:
    """Both as new, and in the end nothing of ours is left."""
    servers.clear()
    servers.forget()
    yield servers
    try:
        assert servers.left() == []
    finally:
        servers.settle()


# Everything arrives


@pytest.mark.parametrize(("cut", "batch_bytes"), [(333, 2000), (1 << 20, 1), (1 << 20, 1 << 20)])
def test_everything_arrives(pair: Pair, disk_tmp_path: Path, cut: int, batch_bytes: int) -> None:
    """All kinds of statements and rows, in one batch or several; temporary tables go through all.

    How far it is comes from the server, and never goes back; the places that are noted neither.
    """
    write_all_kinds(pair.source, disk_tmp_path)
    files = pair.files(cut=cut)
    told: list[Progress] = []
    noted: list[Place] = []
    assert pair.obstacle() is None
    assert pair.left() == []
    made: list[relay.Way] = []
    pair.apply(files, told.append, made=made, batch_bytes=batch_bytes, on_place=noted.append)
    same(pair)
    assert made[0].touched
    last = told[-1]
    assert (last.size, last.transactions) == (files.size, files.count)
    assert (last.of_size, last.of_transactions) == (files.size, files.count)
    assert [at.transactions for at in told] == sorted(at.transactions for at in told)
    assert [at.size for at in told] == sorted(at.size for at in told)
    piece, end = files.transactions[-1]
    assert noted[-1] == Place(lineage="own", binlog=piece.binlog, offset=end.end)
    assert noted == sorted(noted, key=lambda place: (place.binlog, place.offset))


def test_it_ends_exactly_where_it_shall(pair: Pair) -> None:
    """At whatever transaction the plan ends, that one is the last, and no other was passed over."""
    seed = random.randrange(1 << 32)
    write_counting(pair.source, 20)
    every = pair.files().transactions
    for upto, files in pair.parts(random.Random(seed)):
        pair.apply(files)
        newest = {str(one.gtid).split("-")[0]: str(one.gtid) for _, one in every[:upto]}
        wanted = ",".join(newest[domain] for domain in sorted(newest))
        assert gtids(pair.target) == wanted, f"seed {seed}"
    assert pair.target.query("SELECT @@gtid_slave_pos") == [(wanted,)]


def test_what_is_left_out_is_not_applied(pair: Pair) -> None:
    """Bytes of a piece that the plan leaves out; what stands behind them is found all the same."""
    pair.source.query(
        "CREATE DATABASE shop",
        "CREATE TABLE shop.a (id INT PRIMARY KEY)",
        *(f"INSERT INTO shop.a VALUES ({number})" for number in range(40)),
    )
    every = [str(one.gtid) for _, one in pair.files().transactions]
    skip = [every[5], every[6], every[20], every[41]]
    noted: list[Place] = []
    files = pair.files(skip=skip, cut=700)
    pair.apply(files, batch_bytes=1, on_place=noted.append)
    rows = {row[0] for row in pair.target.query("SELECT id FROM shop.a")}
    assert rows == set(range(40)) - {3, 4, 18, 39}
    assert noted[-1].offset == files.transactions[-1][1].end


@pytest.mark.parametrize("batch_bytes", [1 << 20, 1 << 30])
def test_large_transactions(pair: Pair, batch_bytes: int) -> None:
    """One that is greater than a batch goes whole; the directory has two batches at most."""
    write_large(pair.source)
    sizes = [0]

    def look(_progress: Progress) -> None:
        sizes.append(pair.left_size())

    pair.apply(pair.files(cut=1 << 18), look, batch_bytes=batch_bytes)
    same(pair)
    if batch_bytes < LARGE_BYTES:
        assert 0 < max(sizes) < 2 * (batch_bytes + LARGE_BYTES)


def test_temporary_tables_end_with_the_server_that_had_them(pair: Pair) -> None:
    """Behind a crash of the source, its thread 7 is another one."""
    for turn in (1, 2):
        pair.source.query(
            "CREATE DATABASE IF NOT EXISTS shop",
            "CREATE TABLE IF NOT EXISTS shop.a (id INT PRIMARY KEY)",
            "SET SESSION binlog_format = 'STATEMENT'",
            "SET SESSION pseudo_thread_id = 7",
            "CREATE TEMPORARY TABLE shop.tmp (i INT)",
            f"INSERT INTO shop.tmp VALUES ({turn})",
            "INSERT INTO shop.a SELECT i FROM shop.tmp",
            "SET sql_log_bin = 0",
        )
        if turn == 1:
            pair.source.kill()
            pair.source.start()
    pair.apply(pair.files(), batch_bytes=1)
    assert content(pair.target) == content(pair.source)


# Killed, and again


def write_counting(server: MariadbServer, rounds: int = 150) -> None:
    """What shows if anything is executed twice, or not, or in another order; HOLD is in it."""
    statements = [
        "CREATE DATABASE shop",
        "USE shop",
        "CREATE TABLE n (i INT PRIMARY KEY, v BIGINT)",
        "CREATE TABLE log (i INT AUTO_INCREMENT PRIMARY KEY, v BIGINT)",
        *(f"INSERT INTO n VALUES ({number}, {number})" for number in range(4)),
    ]
    for number in range(rounds):
        statements += [
            f"SET SESSION gtid_domain_id = {number // 7 % 2}",
            f"SET SESSION binlog_format = {('ROW', 'STATEMENT')[number % 3 == 0]}",
            f"UPDATE n SET v = v + {number} WHERE i = {number % 4}",
            f"UPDATE n SET v = v * 3 % 1000003 WHERE i = {(number + 1) % 4}",
            f"INSERT INTO log (v) VALUES ({number})",
        ]
        if number % 10 == 3:
            statements += [f"CREATE TABLE t{number} LIKE n", "FLUSH BINARY LOGS"]
        if number == 20:
            statements += HOLD
    server.query(*statements)


@pytest.mark.parametrize("what", ["us", "the server", "both"])
def test_killed_anywhere_and_again(pair: Pair, disk_tmp_path: Path, what: str) -> None:
    """Killed at random moments, it goes on where it was: nothing twice, nothing left out."""
    seed = random.randrange(1 << 32)
    chance = random.Random(seed)
    write_counting(pair.source)
    note = disk_tmp_path / "note"

    def begin() -> Process:
        return Process(pair, note, batch_bytes=chance.choice([1, 10_000, 40_000, 1 << 20]))

    rounds = int(os.environ.get("ROUNDS", "3"))
    kills, said = kill_again_and_again(chance, begin, pair.target, what, rounds)
    assert "Traceback" not in said, f"seed {seed}: {said}"
    assert Process(pair, note).end() == "", f"seed {seed}"
    assert kills, f"seed {seed}"
    assert content(pair.target) == content(pair.source), f"seed {seed}"
    assert gtids(pair.target) == gtids(pair.source), f"seed {seed}"


def test_a_crashed_server_applies_nothing_by_itself(pair: Pair, disk_tmp_path: Path) -> None:
    """It does not know exactly where it was: of its relay logs it applies none, and we go on."""
    write_counting(pair.source, 400)
    note = disk_tmp_path / "note"
    with held_up(pair.target) as stands:
        run = Process(pair, note, cut=1 << 20)
        wait_until(stands, what="some transactions")
        pair.target.kill()
    run.end(signal.SIGKILL)
    pair.target.start()
    now = _applied(pair)
    assert pair.target.query("SHOW ALL SLAVES STATUS") == []
    assert 30 < now < len(pair.files().transactions)
    assert Process(pair, note).end() == ""
    assert content(pair.target) == content(pair.source)


@pytest.mark.gate
def test_killed_while_the_channel_is_made(pair: Pair) -> None:
    """The server starts again: its note on the channel is whole at any moment."""
    home = pair.target.datadir
    login = pair.login()
    with Server(lambda: login) as server:
        reach = Reach.of(server, None)
        with reach.announced() as note:
            assert note is not None
            whole = note.read_bytes()
            Channel(server).create(reach)
            assert note.read_bytes() != whole, "the server has made it its own"
        Channel(server).remove()
    pair.target.stop()
    (home / "multi-master.info").write_text("pitr\n")
    note.write_bytes(whole)
    try:
        _start_again(pair.target)
    except BaseException:
        note.unlink()
        pair.target.start()  # for the tests behind this one
        raise
    assert pair.settle() is not None
    assert pair.left() == []
    write_counting(pair.source, 20)
    pair.apply(pair.files())
    assert content(pair.target) == content(pair.source)


@pytest.mark.parametrize("rounds", [2, 40])
def test_killed_at_any_moment_of_that(pair: Pair, rounds: int) -> None:
    """Whatever lies there then, it starts, and the next run begins as on the first day."""
    seed = random.randrange(1 << 32)
    chance = random.Random(seed)
    for _ in range(rounds):
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(pair.obstacle)
            Event().wait(0.03 + chance.random() * 0.08)  # any moment will do
            pair.target.kill()
            assert asked.exception() is None or isinstance(asked.exception(), SourceError)
        _start_again(pair.target)
        pair.settle()
        assert pair.obstacle() is None, f"seed {seed}"
        assert pair.left() == [], f"seed {seed}"


def _start_again(server: MariadbServer) -> None:
    """It answers a moment before it has read what channels it has."""
    server.start()
    listed = server.datadir / "multi-master.info"
    if listed.exists() and "pitr" in listed.read_text():
        wait_until(lambda: server.query("SHOW ALL SLAVES STATUS") != [], what="the channel")


def _applied(pair: Pair) -> int:
    text = str(pair.target.query("SELECT @@gtid_slave_pos")[0][0])
    return sum(int(gtid.split("-")[2]) for gtid in text.split(",") if gtid)


@pytest.mark.parametrize("how", ["SIGTERM", "SIGINT"])
def test_interrupted(pair: Pair, disk_tmp_path: Path, how: str) -> None:
    """Ctrl-C: all of ours is gone, and the place is noted."""
    write_counting(pair.source, 400)
    note = disk_tmp_path / "note"
    with held_up(pair.target) as stands:
        run = Process(pair, note, cut=1 << 20)
        wait_until(stands, what="some transactions")
        run.process.send_signal(signal.Signals[how])
    run.end()
    assert run.process.returncode == 130
    assert pair.left() == []
    assert note.exists()
    assert Process(pair, note).end() == ""
    assert content(pair.target) == content(pair.source)


def test_somebody_else_moved_the_target(pair: Pair, disk_tmp_path: Path) -> None:
    """Behind a run that was cut off, GTIDs that it did not bring: nobody knows where it stands."""
    write_counting(pair.source, 400)
    note = disk_tmp_path / "note"
    with held_up(pair.target) as stands:
        run = Process(pair, note, cut=1 << 20)
        wait_until(stands, what="some transactions")
        run.process.kill()
    run.end()
    pair.target.query("STOP SLAVE 'pitr'", "SET GLOBAL gtid_slave_pos = '0-9-77'")
    said = Process(pair, note).end()
    assert "0-9-77" in said
    assert "Traceback" not in said
    pair.forget()
    pair.settle()


# What goes wrong


def test_a_transaction_that_fails_is_named(pair: Pair) -> None:
    """All before it is applied; the rest goes when the cause is mended."""
    pair.source.query(
        "CREATE DATABASE shop",
        "CREATE TABLE shop.a (id INT PRIMARY KEY)",
        *(f"INSERT INTO shop.a VALUES ({number})" for number in range(9)),
    )
    pair.target.query(
        "SET sql_log_bin = 0",
        "CREATE DATABASE shop",
        "CREATE TABLE shop.a (id INT PRIMARY KEY)",
        "INSERT INTO shop.a VALUES (5)",
    )
    files = pair.files()
    begin = files.transactions[2][1].begin
    noted: list[Place] = []
    error = pair.refused(pair.files(begin=begin), batch_bytes=1, on_place=noted.append)
    failed = files.transactions[7][1]
    assert f"{failed.gtid} at mysql-bin.000001:{failed.begin}" in str(error)
    assert "Duplicate entry" in str(error)
    assert f"--skip-gtid {failed.gtid}" in error.hint
    assert noted[-1].offset == failed.begin
    pair.target.query("SET sql_log_bin = 0", "DELETE FROM shop.a WHERE id = 5")
    pair.apply(pair.files(begin=failed.begin))
    assert content(pair.target) == content(pair.source)


def test_what_breaks_off_in_the_bucket(pair: Pair) -> None:
    """What comes before it is applied, and then it is said."""
    write_counting(pair.source, 20)
    files = pair.files()

    def broken() -> Stream:
        for piece, data in files.stream():
            yield piece, data
            if piece is files.pieces[0]:
                raise ArchiveError("gone", hint="")

    with pytest.raises(ArchiveError, match="gone"):
        pair.apply(files, stream=broken())
    last = [one for piece, one in files.transactions if piece is files.pieces[0]][-1]
    assert gtids(pair.target) == last.gtid
    pair.forget()


def test_a_server_id_of_its_own_in_the_middle(pair: Pair) -> None:
    """It is seen before the applier passes it over; what comes before it may be applied."""
    pair.source.query(
        "CREATE DATABASE shop",
        "CREATE TABLE shop.a (id INT PRIMARY KEY)",
        "INSERT INTO shop.a VALUES (1)",
        "SET SESSION server_id = 2",
        "INSERT INTO shop.a VALUES (2)",
    )
    error = pair.refused(pair.files(cut=100), batch_bytes=1)
    assert "0-2-4" in str(error)
    assert "server_id" in error.hint
    assert "0-2-4" not in gtids(pair.target)


def test_obstacles(pair: Pair) -> None:
    """What would leave something out or change it silently is said, and nothing is left of it."""
    assert "server_id" in str(pair.obstacle(server_ids={1, 2}))
    assert "log_slave_updates" in str(pair.obstacle(binlog_off=True))
    for name, value, usual in (
        ("slave_exec_mode", "IDEMPOTENT", "STRICT"),
        ("slave_parallel_threads", "4", "0"),
        ("replicate_do_db", "'shop'", "''"),
        ("replicate_wild_ignore_table", "'shop.a%'", "''"),
        ("gtid_ignore_duplicates", "ON", "OFF"),
        ("replicate_events_marked_for_skip", "FILTER_ON_REPLICA", "REPLICATE"),
        ("slave_run_triggers_for_rbr", "YES", "NO"),
        ("init_slave", "'DO 1'", "''"),
        ("relay_log_purge", "OFF", "ON"),
    ):
        text = value.replace("REPLICA", "SLAVE") if "marked" in name else value
        pair.target.query(f"SET GLOBAL {name} = {text}")
        try:
            assert name in str(pair.obstacle())
        finally:
            pair.target.query(f"SET GLOBAL {name} = {usual}")
    assert pair.obstacle() is None


def test_a_directory_that_is_not_the_servers(pair: Pair, disk_tmp_path: Path) -> None:
    """Said before anything is done."""
    assert "no index there" in str(pair.obstacle(directory=disk_tmp_path))
    assert "--target-relay-log-dir" in str(pair.obstacle(directory=disk_tmp_path))
    missing = disk_tmp_path / "missing"
    assert str(missing) in str(pair.obstacle(directory=missing))


def test_a_channel_of_somebody_else(pair: Pair) -> None:
    """It is not touched."""
    pair.target.query("CHANGE MASTER 'pitr' TO master_host = '192.0.2.1', master_use_gtid = no")
    try:
        assert "192.0.2.1" in str(pair.obstacle())
        assert pair.settle() is None
        pair.source.query("CREATE DATABASE shop")
        with pytest.raises(RecoveryError, match="pitr"):
            pair.apply(pair.files())
        assert len(pair.target.query("SHOW ALL SLAVES STATUS")) == 1
    finally:
        pair.target.query("RESET SLAVE 'pitr' ALL")


def test_the_least_privileges(pair: Pair) -> None:
    """What the hint names is enough; without it the pipe is left, and it is said why."""
    pair.target.query(
        "SET sql_log_bin = 0",
        "CREATE USER theirs@localhost IDENTIFIED BY 'x'",
        "GRANT BINLOG MONITOR, BINLOG ADMIN, BINLOG REPLAY, SLAVE MONITOR ON *.* TO"
        " theirs@localhost",
    )
    login = pair.login(user="theirs", password="x")
    assert "REPLICATION SLAVE ADMIN" in str(pair.obstacle(login))
    assert pair.left() == []
    pair.target.query("SET sql_log_bin = 0", "DROP USER theirs@localhost")
