"""Relay logs for a real MariaDB's own applier: all arrives, nothing twice, nothing is left."""

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from binlog2s3 import relay, target
from binlog2s3.errors import ArchiveError, RecoveryError
from binlog2s3.login import Login
from binlog2s3.recovery import Place, Progress, Stream
from binlog2s3.server import Server
from lab.disk import temporary_directory
from lab.get import ServerBinaries
from lab.mysql import MariadbServer
from tests.integration.apply_pair import RELAXED, content, gtids, same, write_all_kinds
from tests.integration.apply_pair import Pair as Servers
from tests.own_files import Own, own
from tests.waiting import wait_until

# CREATE TABLE ... SELECT comes as two transactions, the second without a GTID
OPTIONS = (*RELAXED, "--gtid-strict-mode=OFF", "--log-slave-updates=ON")


@dataclass(frozen=True, slots=True)
class Pair(Servers):
    """Two servers: what one has written is brought to the other as relay logs."""

    def obstacle(self, login: Login | None = None, **changes: Any) -> str | None:
        """Why it cannot be had."""
        login = login or self.login()
        asked: dict[str, Any] = {"directory": None, "binlog_off": False, "server_ids": {1}}
        with Server(lambda: login) as server:
            return relay.obstacle(server, target.facts(server, login), **(asked | changes))

    def apply(
        self,
        files: Own,
        told: Callable[[Progress], None] = lambda _: None,
        *,
        stream: Stream | None = None,
        **options: Any,
    ) -> relay.Way:
        """Bring them to the target; nothing of ours is there afterwards."""
        login = self.login()
        with Server(lambda: login) as server:
            way = relay.way(
                server,
                login,
                target.facts(server, login),
                directory=None,
                size=files.size,
                transactions=files.count,
                **options,
            )
            way.apply(stream or files.stream(), told)
        return way

    def refused(self, files: Own, **options: Any) -> RecoveryError:
        """The error; nothing of ours is left."""
        with pytest.raises(RecoveryError) as caught:
            self.apply(files, **options)
        assert self.left() == []
        return caught.value

    def settle(self) -> relay.LeftOver | None:
        """As the next run begins: what was left is stopped and removed; what that was."""
        login = self.login()
        with Server(lambda: login) as server:
            found = target.facts(server, login)
            left = relay.halt(server, found)
            relay.settle(server, found, directory=None)
            return left

    def left(self) -> list[str]:
        """What there is of ours: files, the channel, notes."""
        found = [path.name for path in self.target.datadir.glob("*pitr*")]
        rows = self.target.query("SHOW ALL SLAVES STATUS")
        found += [str(row[0]) for row in self.target.query("SHOW DATABASES LIKE 'binlog2s3%'")]
        return sorted(found) + ["the channel" for row in rows if "pitr" in row]

    def forget(self) -> None:
        """What it has applied, it has not."""
        self.target.query("SET GLOBAL gtid_slave_pos = ''")


@pytest.fixture(scope="module")
def servers(mariadb_binaries: ServerBinaries) -> Iterator[Pair]:
    """Two of MariaDB."""
    with ExitStack() as stack:
        made = [
            stack.enter_context(
                MariadbServer(
                    mariadb_binaries,
                    stack.enter_context(temporary_directory()),
                    server_id=number,
                    options=OPTIONS,
                )
            )
            for number in (1, 2)
        ]
        yield Pair(*made)


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
    way = pair.apply(files, told.append, batch_bytes=batch_bytes, on_place=noted.append)
    same(pair)
    assert way.touched
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
    names = [name for name, _ in pair.source.binlogs()]
    every = pair.files().transactions
    chance = random.Random(seed)
    places = sorted(chance.sample(range(1, len(every)), int(os.environ.get("PLACES", "6"))))
    for before, upto in pairwise([0, *places]):
        (piece, first), (last_piece, last) = every[before], every[upto - 1]
        begin, end = (names.index(str(one.binlog)) for one in (piece, last_piece))
        pair.apply(
            own(pair.source.datadir, names[begin : end + 1], begin=first.begin, end=last.end)
        )
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
    pair.source.query(
        "SET GLOBAL binlog_checksum = NONE",
        "CREATE DATABASE shop",
        "CREATE TABLE shop.a (id INT PRIMARY KEY AUTO_INCREMENT, b LONGBLOB)",
        *("INSERT INTO shop.a (b) VALUES (REPEAT('x', 300000))" for _ in range(12)),
        "FLUSH BINARY LOGS",
        "INSERT INTO shop.a (b) SELECT b FROM shop.a",
        *("INSERT INTO shop.a (b) VALUES (REPEAT('y', 300000))" for _ in range(12)),
        "SET GLOBAL binlog_checksum = CRC32",
    )
    sizes = [0]

    def look(_progress: Progress) -> None:
        found = pair.target.datadir.glob("*pitr*")
        sizes.append(sum(path.stat().st_size for path in found if path.exists()))

    pair.apply(pair.files(cut=1 << 18), look, batch_bytes=batch_bytes)
    same(pair)
    large = 12 * 300_000
    if batch_bytes < large:
        assert 0 < max(sizes) < 2 * (batch_bytes + large)


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


class Process:
    """An apply in a process of its own."""

    def __init__(self, pair: Pair, note: Path, **changes: Any) -> None:
        told = {
            "socket": str(pair.target.socket),
            "directory": str(pair.source.datadir),
            "names": [name for name, _ in pair.source.binlogs()],
            "note": str(note),
            "by_place": True,
        } | changes
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.relay_process", json.dumps(told)],
            cwd=Path(__file__).parents[2],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def wait_for(self, lines: int) -> None:
        """Until it has told so often how far it is, or has ended."""
        assert self.process.stdout is not None
        for _ in range(lines):
            self.process.stdout.readline()

    def end(self, by: signal.Signals | None = None, timeout: float = 120) -> str:
        """Wait for its end; what it said on standard error."""
        if by is not None:
            self.process.send_signal(by)
        return self.process.communicate(timeout=timeout)[1]


def write_counting(server: MariadbServer, rounds: int = 150) -> None:
    """What shows if anything is executed twice, or not, or in another order."""
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
    server.query(*statements)


@pytest.mark.parametrize("what", ["us", "the server", "both"])
def test_killed_anywhere_and_again(pair: Pair, disk_tmp_path: Path, what: str) -> None:
    """Killed at random moments, it goes on where it was: nothing twice, nothing left out."""
    seed = random.randrange(1 << 32)
    chance = random.Random(seed)
    write_counting(pair.source)
    note, kills = disk_tmp_path / "note", 0
    for _ in range(int(os.environ.get("ROUNDS", "3"))):
        run = Process(pair, note, batch_bytes=chance.choice([1, 10_000, 40_000, 1 << 20]))
        run.wait_for(chance.randrange(0, 4))
        Event().wait(chance.random() * 0.4)  # any moment will do
        kills += run.process.poll() is None
        if what != "us":
            pair.target.kill()
        said = run.end(signal.SIGKILL if what != "the server" else None)
        assert "Traceback" not in said, f"seed {seed}: {said}"
        if what != "us":
            pair.target.start()
    assert Process(pair, note).end() == "", f"seed {seed}"
    assert kills, f"seed {seed}"
    assert content(pair.target) == content(pair.source), f"seed {seed}"
    assert gtids(pair.target) == gtids(pair.source), f"seed {seed}"


def test_a_crashed_server_applies_nothing_by_itself(pair: Pair, disk_tmp_path: Path) -> None:
    """It does not know exactly where it was: of its relay logs it applies none, and we go on."""
    write_counting(pair.source, 400)
    note = disk_tmp_path / "note"
    run = Process(pair, note, cut=1 << 20)
    wait_until(lambda: _applied(pair) > 30, 60, "some transactions", interval=0.005)
    pair.target.kill()
    run.end(signal.SIGKILL)
    pair.target.start()
    now = _applied(pair)
    assert pair.target.query("SHOW ALL SLAVES STATUS") == []
    assert 30 < now < len(pair.files().transactions)
    assert Process(pair, note).end() == ""
    assert content(pair.target) == content(pair.source)


def _applied(pair: Pair) -> int:
    text = str(pair.target.query("SELECT @@gtid_slave_pos")[0][0])
    return sum(int(gtid.split("-")[2]) for gtid in text.split(",") if gtid)


@pytest.mark.parametrize("how", ["SIGTERM", pytest.param("SIGINT", marks=pytest.mark.wide)])
def test_interrupted(pair: Pair, disk_tmp_path: Path, how: str) -> None:
    """Ctrl-C: all of ours is gone, and the place is noted."""
    write_counting(pair.source, 400)
    note = disk_tmp_path / "note"
    run = Process(pair, note, cut=1 << 20)
    wait_until(lambda: _applied(pair) > 30, 60, "some transactions", interval=0.005)
    run.end(signal.Signals[how])
    assert run.process.returncode == 130
    assert pair.left() == []
    assert note.exists()
    assert Process(pair, note).end() == ""
    assert content(pair.target) == content(pair.source)


def test_somebody_else_moved_the_target(pair: Pair, disk_tmp_path: Path) -> None:
    """Behind a run that was cut off, GTIDs that it did not bring: nobody knows where it stands."""
    write_counting(pair.source, 400)
    note = disk_tmp_path / "note"
    run = Process(pair, note, cut=1 << 20)
    wait_until(lambda: _applied(pair) > 30, 60, "some transactions", interval=0.005)
    run.end(signal.SIGKILL)
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
