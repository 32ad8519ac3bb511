"""Two servers: what one has written the other replicates from us."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Any

from binlog2s3.binlog.gtid import GtidSet, MariadbGtidList
from binlog2s3.binlog.names import BinlogName
from binlog2s3.recover import target
from binlog2s3.recover.model import BinlogPosition, PlanPiece, ProgressReport
from binlog2s3.recover.preflight import obstacles
from binlog2s3.recover.replicate import Replication, left_over, settle
from binlog2s3.server.connection import Server
from binlog2s3.server.login import Login
from lab.child import ServerFailedError, tail
from lab.mysql import MysqlServer
from tests.integration import apply_pair
from tests.integration.apply_pair import HOLD
from tests.own_files import Own, planned
from tests.waiting import wait_until

LARGE_BYTES = 12 * 300_000
_NOTHING = planned(
    Own(
        pieces=(
            PlanPiece(
                lineage="own",
                binlog=BinlogName.parse("b.000001"),
                begin=4,
                end=4,
                transactions=0,
                gtids=GtidSet(),
            ),
        ),
        transactions=(),
        directory=Path("/none"),
        cut=1,
    )
)


@dataclass(frozen=True, slots=True)
class Pair(apply_pair.Pair):
    """Two servers: what one has written the other replicates from us."""

    @property
    def version(self) -> str:
        return str(self.source.query("SELECT VERSION()")[0][0])

    def obstacle(self, login: Login | None = None, **changes: Any) -> str | None:
        """Why it cannot be had; the first reason."""
        login = login or self.login()
        asked: dict[str, Any] = {"server_ids": {1}, "plan": _NOTHING} | changes
        with Server(lambda: login) as server:
            found = obstacles(server, target.facts(server, login), asked.pop("plan"), **asked)
            return next((f"{one}: {one.hint}" for one in found), None)

    def apply(
        self,
        files: Own,
        told: Callable[[ProgressReport], None] = lambda _: None,
        *,
        login: Login | None = None,
        **options: Any,
    ) -> None:
        """Bring them to the target; nothing of ours is there afterwards."""
        login = login or self.login()
        opened = options.pop("opened", files.opened)
        options.setdefault("transactions", files.those_of)
        with Server(lambda: login) as server:
            if not self.is_mysql:
                text = self.target.query("SELECT @@global.gtid_slave_pos")[0][0]
                options.setdefault("state", MariadbGtidList.parse(str(text)))
            made = Replication(
                server, target.facts(server, login), planned(files, self.version), opened, **options
            )
            made.apply(told)

    def settle(self) -> tuple[bool, BinlogPosition | None]:
        """As the next run begins: what was left is removed; whether it was there, and its place."""
        login = self.login()
        with Server(lambda: login) as server:
            found = target.facts(server, login)
            left, place = left_over(server, found), None
            if left is not None:
                left.stop()
                place = None if found.keeps_gtids else left.reached(())
            settle(server, found)
            return left is not None, place

    def left(self) -> list[str]:
        """What there is of ours: files, notes, the channel."""
        show = "SHOW REPLICA STATUS" if self.is_mysql else "SHOW ALL SLAVES STATUS"
        rows = self.target.query(show)
        files = sorted(path.name for path in self.target.datadir.glob("*binlog2s3*"))
        return files + ["the channel" for row in rows if "binlog2s3" in row]


class Process(apply_pair.Process):
    """An apply in a process of its own."""

    def __init__(self, pair: Pair, note: Path, **changes: Any) -> None:
        told = {
            "socket": str(pair.target.socket),
            "directory": str(pair.source.datadir),
            "names": pair.names,
            "note": str(note),
            "version": pair.version,
        }
        super().__init__("tests.replicate_process", told | changes)


def write_counting(server: MysqlServer, rounds: int = 150) -> None:
    """What shows if anything is executed twice, or not, or in another order; HOLD is in it."""
    is_mysql = server.binaries.flavour == "mysql"
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


def start_again(server: MysqlServer) -> None:
    """Start a server that was killed; a MariaDB that refuses to as the reference says."""
    try:
        server.start()
    except ServerFailedError:
        if "Failed to initialize multi master structures" not in tail(server.log):
            raise
        for path in server.datadir.glob("*binlog2s3*"):
            path.unlink()
        note = server.datadir / "multi-master.info"
        names = [line for line in note.read_text().splitlines() if line != "binlog2s3"]
        note.write_text("".join(f"{name}\n" for name in names))
        server.start()


def kill_again_and_again(
    chance: random.Random,
    begin: Callable[[], apply_pair.Process],
    server: MysqlServer,
    what: str,
    rounds: int,
) -> tuple[int, str]:
    """Where HOLD is, and then so often at any moment: "us", "the server" or "both".

    Returns how often we were not done yet, and what we said on standard error.
    """
    kills, said = 0, ""

    def kill(run: apply_pair.Process) -> None:
        nonlocal kills
        kills += run.process.poll() is None
        if what != "us":
            server.kill()
        if what != "the server":
            run.process.kill()

    def see_it_end(run: apply_pair.Process) -> None:
        nonlocal said
        said += run.end()
        if what != "us":
            start_again(server)

    with apply_pair.held_up(server) as stands:
        run = begin()
        wait_until(lambda: stands() or run.process.poll() is not None, what="it is held up")
        kill(run)
    see_it_end(run)
    for _ in range(rounds):
        run = begin()
        run.wait_for(chance.randrange(0, 4))
        Event().wait(chance.random() * 0.4)  # any moment will do
        kill(run)
        see_it_end(run)
    return kills, said


def write_large(server: MysqlServer) -> None:
    """Rows of 300,000 bytes, and one transaction of LARGE_BYTES, without checksums."""
    server.query(
        "SET GLOBAL binlog_checksum = NONE",
        "CREATE DATABASE shop",
        "CREATE TABLE shop.a (id INT PRIMARY KEY AUTO_INCREMENT, b LONGBLOB)",
        *("INSERT INTO shop.a (b) VALUES (REPEAT('x', 300000))" for _ in range(12)),
        "FLUSH BINARY LOGS",
        "INSERT INTO shop.a (b) SELECT b FROM shop.a",
        *("INSERT INTO shop.a (b) VALUES (REPEAT('y', 300000))" for _ in range(12)),
        "SET GLOBAL binlog_checksum = CRC32",
    )
