"""Recoveries by position: of a MySQL without GTIDs, and of a MariaDB.

What must come out is what a replica holds that the server itself stopped at the same place (START
REPLICA ... UNTIL a position of its source).
"""

import os
import random
import re
import secrets
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest

from lab.get import ServerBinaries
from lab.mysql import MysqlServer, server_of
from lab.s3 import MinioServer
from tests.integration.bucket import Bucket
from tests.integration.stream_process import StreamProcess
from tests.waiting import wait_until
from tests.world.archive import wait_durable
from tests.world.commands import Recovery, read_only
from tests.world.happened import Happened, apply_until, history_of
from tests.world.servers import (
    RELAXED,
    State,
    differences,
    dump_of,
    fetch_all,
    in_its_words,
    of_image,
    replica_status,
    restored,
    state_of,
)
from tests.world.writes import SCHEMA, Writers

LINES = 1500
DUMPED = re.compile(r"_LOG_FILE='(.+?)', \w+_LOG_POS=(\d+);")


@dataclass(frozen=True, kw_only=True)
class Lost:
    """A source that is gone: its history, ten places in it, what a replica held at each."""

    history: Sequence[Happened]
    targets: Sequence[tuple[str, int]]
    states: dict[int, State]
    lines_from: int
    dump: Path
    image: Path
    password: str
    binaries: ServerBinaries

    def start(self, directory: Path) -> MysqlServer:
        """A server restored from the dump, to be entered."""
        maria = self.binaries.flavour == "mariadb"
        return of_image(self.binaries, directory, self.image, 77, self.password, gtid=maria)

    def place(self, applied: int) -> list[str]:
        """Behind so many transactions."""
        last = self.history[applied - 1]
        return [f"--from-binlog={last.binlog}", f"--from-position={last.end}"]

    def check(self, server: MysqlServer, applied: int) -> None:
        wrong = differences(state_of(server), self.states[applied])
        assert wrong == [], wrong


@pytest.fixture(params=["no-gtid", "mariadb"])
def binaries(request: pytest.FixtureRequest) -> ServerBinaries:
    name = "mariadb_binaries" if request.param == "mariadb" else "mysql_binaries"
    found: ServerBinaries = request.getfixturevalue(name)
    return found


@pytest.fixture
def lost(
    binaries: ServerBinaries, minio: MinioServer, bucket: str, disk_tmp_path: Path
) -> Iterator[Lost]:
    """A source that lived, was streamed, and is gone; its last binlog was never closed."""
    seed = int(os.environ.get("PITR_SEED") or secrets.randbelow(1_000_000))
    sys.stdout.write(f"PITR_SEED={seed}\n")
    chance = random.Random(seed)
    maria = binaries.flavour == "mariadb"
    dump, image = disk_tmp_path / "dump.sql", disk_tmp_path / "image"
    with ExitStack() as stack:
        place = disk_tmp_path / "source"
        source = stack.enter_context(server_of(binaries, place, gtid=maria, options=RELAXED))
        stream = stack.enter_context(StreamProcess(disk_tmp_path / "stream", source, minio, bucket))
        _live(source, dump, seed)
        wait_durable(stream, Bucket(minio, bucket), source)
        stream.kill()
        place = disk_tmp_path / "r"
        with server_of(binaries, place, server_id=3, gtid=maria, options=RELAXED) as one:
            restored(one, dump, image)
        found = DUMPED.search(dump.read_text(errors="replace"))
        assert found
        base = found[1], int(found[2])
        witness = stack.enter_context(
            of_image(binaries, disk_tmp_path / "w", image, 4, source.password, gtid=maria)
        )
        fetch_all(witness, source, base)
        source.kill()
        history = history_of(source, "")
        first = next(n for n, one in enumerate(history) if (one.binlog, one.begin) >= base)
        lines_from = len(history) - LINES
        targets = _ten(history, first, lines_from, chance, maria=maria)
        states = {}
        for applied in sorted({*(applied for _, applied in targets), len(history)}):
            apply_to(witness, history[applied - 1], at_end=applied == len(history))
            states[applied] = state_of(witness)
        witness.kill()
        yield Lost(
            history=history,
            targets=targets,
            states=states,
            lines_from=lines_from,
            dump=dump,
            image=image,
            password=source.password,
            binaries=binaries,
        )


def apply_to(witness: MysqlServer, last: Happened, *, at_end: bool) -> None:
    """Let the server stop behind it; MariaDB does not notice where nothing follows."""
    if not at_end:
        place = f"SOURCE_LOG_FILE = '{last.binlog}', SOURCE_LOG_POS = {last.end}"
        apply_until(witness, place)
        return
    witness.query(in_its_words(witness, "START REPLICA SQL_THREAD"))

    def done() -> bool:
        status = replica_status(witness)
        assert not status["Last_SQL_Error"], status["Last_SQL_Error"]
        # MariaDB may have a checkpoint of its own behind it
        is_there = status["Exec_Source_Log_Pos"] >= last.end
        return bool(is_there and status["Relay_Source_Log_File"] == last.binlog)

    wait_until(done, what="the replica has applied all")
    witness.query(in_its_words(witness, "STOP REPLICA SQL_THREAD"))


def _live(source: MysqlServer, dump: Path, seed: int) -> None:
    """Concurrent writers with a dump in between, quiet moments, then one writer alone."""
    chosen = {"seed": seed, "gtid": False}
    source.query(*SCHEMA, "CREATE TABLE shop.line (n INT PRIMARY KEY)")
    Writers(source, each=30, first=0, rotations=1, **chosen).run()
    during = Writers(source, each=60, first=100, ddl=False, xa=False, **chosen)
    during.start()
    dump_of(source, dump)
    during.join()
    _quiet(source)
    for first, rotations in ((200, 2), (300, 1), (400, 0)):
        Writers(source, each=50, first=first, rotations=rotations, **chosen).run()
        _quiet(source)
    source.query("FLUSH BINARY LOGS", "FLUSH BINARY LOGS")
    source.query(*[f"INSERT INTO shop.line VALUES ({n})" for n in range(LINES)])


def _quiet(source: MysqlServer) -> None:
    """Until the server's clock has shown two more seconds."""
    ((begin,),) = source.query("SELECT UNIX_TIMESTAMP()")
    wait_until(lambda: source.query("SELECT UNIX_TIMESTAMP()")[0][0] >= begin + 2, what="seconds")


def _ten(
    history: Sequence[Happened],
    first: int,
    end: int,
    chance: random.Random,
    *,
    maria: bool,
) -> list[tuple[str, int]]:
    """Options, and behind how many transactions each stops; in order."""
    numbers = range(first + 1, end + 1)
    times = [one.commit_us for one in history]
    latest = list(accumulate(times, max))
    earliest = list(accumulate(reversed(times), min))[::-1]
    made = []
    for applied in chance.sample([n for n in numbers if latest[n - 1] < earliest[n]], 3):
        least, most = latest[applied - 1], earliest[applied] - 1
        at_us = chance.choice([least, most, chance.randint(least, most)])
        at = datetime.fromtimestamp(at_us // 1_000_000, UTC).replace(microsecond=at_us % 1_000_000)
        made.append((f"--to-time={at.isoformat(timespec='microseconds')}", applied))
    for applied in chance.sample(numbers, 6):
        last, behind = history[applied - 1 : applied + 1]
        option = f"--to-position={last.binlog}:{last.end}"
        if maria:
            option = chance.choice(
                [option, f"--to-gtid={last.gtid}", f"--before-gtid={behind.gtid}"]
            )
        made.append((option, applied))
    last = history[end - 1]
    made.append((f"--to-position={last.binlog}:{last.end}", end))
    return sorted(made, key=lambda one: one[1])


@pytest.mark.gate("mariadb")
def test_ten_places_and_a_killed_run(
    lost: Lost, minio: MinioServer, bucket: str, disk_tmp_path: Path
) -> None:
    """Each as the replica was. A run that was cut off goes on from where it was.

    The settings that it had changed are restored by the next one.
    """
    recovery = Recovery(minio, bucket, read_only(minio))
    with lost.start(disk_tmp_path / "target") as server:
        start = [f"--from-backup={lost.dump}"]
        for option, applied in lost.targets:
            recovery.to(server, option, *start)
            lost.check(server, applied)
            start = lost.place(applied)
        assert not server.query("SHOW DATABASES LIKE 'binlog2s3%'")
        said = recovery.refused(server, "--latest")
        assert "--from-b" in said
        before = settings_of(server)
        held = ["--latest", "--workers=3", *start]
        with _killed_with_its_channel(recovery, server, held):
            done = recovery.run(server, "--dry-run", "--latest", *start)
        assert "where a run was interrupted" in done.stdout
        assert "still applies" in done.stdout
        recovery.to(server, "--latest", *start)
        lost.check(server, len(lost.history))
        assert not server.query("SHOW DATABASES LIKE 'binlog2s3%'")
        assert settings_of(server) == before


def settings_of(server: MysqlServer) -> list[tuple[Any, ...]]:
    """What a recovery may change for a while."""
    if server.binaries.flavour == "mysql":
        return server.query("SELECT @@global.replica_parallel_workers")
    return server.query("SELECT @@global.slave_parallel_threads, @@global.slave_ddl_exec_mode")


@contextmanager
def line_locked(server: MysqlServer) -> Iterator[int]:
    """In this block nobody can write one of the lines, whose number this is.

    Who wants to waits for it, and so is in the middle of them, however slow the test is.
    """
    number = random.randrange(LINES // 10, LINES)
    ((before,),) = server.query("SELECT @@global.innodb_lock_wait_timeout")
    server.query("SET GLOBAL innodb_lock_wait_timeout = 3600")
    try:
        with server.connect() as connection, connection.cursor() as cursor:
            for statement in ("SET sql_log_bin = 0", "BEGIN"):
                cursor.execute(statement)
            cursor.execute("INSERT INTO shop.line VALUES (%s)", (number,))
            yield number
            cursor.execute("ROLLBACK")
    finally:
        server.query(f"SET GLOBAL innodb_lock_wait_timeout = {before}")


@contextmanager
def _killed_with_its_channel(
    recovery: Recovery, server: MysqlServer, arguments: Sequence[str]
) -> Iterator[None]:
    """Start it, and kill -9 it as soon as its channel runs there, which goes on by itself.

    In this block it cannot, for somebody holds a line that it will write.
    """
    statement = "SELECT 'Yes' FROM performance_schema.replication_applier_status "
    statement += "WHERE channel_name = 'binlog2s3' AND service_state = 'ON'"
    if server.binaries.flavour == "mariadb":
        statement = "SELECT 'Yes' FROM information_schema.processlist WHERE command = 'Slave_SQL'"
    with (
        line_locked(server),
        recovery.started(server, "--yes", *arguments) as process,
    ):

        def is_there() -> bool:
            assert process.poll() is None, process.returncode
            return any("Yes" in row for row in server.query(statement))

        wait_until(is_there, what="a channel that runs", interval=0.002)
        process.kill()
        count = "SELECT COUNT(*) FROM information_schema.processlist WHERE user = 'root'"
        wait_until(lambda: server.query(count)[0][0] == 2, what="its sessions are over")
        yield
