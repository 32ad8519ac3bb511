"""`restore` at real servers: what it restores is what the source was, at any moment."""

import json
import os
import random
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pymysql
import pytest

from binlog2s3.config.restore import WORK
from lab.mysql import MysqlServer
from lab.s3 import MinioServer
from tests import command
from tests.integration.test_backup_run import Place, placed
from tests.waiting import wait_until

MOMENTS = 2
FLAVOURS = ("mysqldump", "mariadb-dump", "mariabackup")
STAGES = ("restore", "start", "apply", "finish", "place")
SCHEMAS = "('mysql', 'sys', 'information_schema', 'performance_schema')"
EVENT = "ON SCHEDULE EVERY 1 DAY STARTS '2030-01-01 00:00:00'"


class Restores:
    """A place with a stored backup, and what restores from it."""

    def __init__(self, place: Place, folder: Path) -> None:
        self.place = place
        self.folder = folder
        program = place.program
        if place.tool != "mariabackup":
            program = place.binaries.client
        self._words = [
            f"--mysqld={place.binaries.server}",
            "--mysqld-option=--innodb-buffer-pool-size=64M",
            f"--program={program}",
        ]
        if os.geteuid() == 0:
            self._words += ["--mysqld-option=--user=root"]

    def argv(self, data: Path, *more: str) -> list[str]:
        return ["restore", *self.place.where, *self._words, f"--data-dir={data}", "--yes", *more]

    def run(self, data: Path, *more: str) -> "subprocess.CompletedProcess[str]":
        return command.run(*self.argv(data, *more), **self.place.minio.env())

    def done(self, data: Path, *more: str) -> dict[str, Any]:
        done = self.run(data, "--json", *more)
        assert done.returncode == 0, done.stderr
        return dict(json.loads(done.stdout))

    @contextmanager
    def running(self, data: Path, *more: str) -> Iterator[tuple[dict[str, Any], "Restored"]]:
        said = self.done(data, "--keep-running", *more)
        pid = int((data / "mysqld.pid").read_text())
        try:
            yield said, Restored(Path(said["socket"]))
        finally:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
            wait_until(lambda: not (data / "mysqld.pid").exists(), what="the server ends")


class Restored:
    """The server that a restore has left running."""

    def __init__(self, socket: Path) -> None:
        self.socket = socket

    def query(self, statement: str) -> list[tuple[Any, ...]]:
        with (
            pymysql.connect(unix_socket=str(self.socket), user="root") as connection,
            connection.cursor() as cursor,
        ):
            cursor.execute(statement)
            return list(cursor.fetchall())


def state_of(server: MysqlServer | Restored) -> dict[str, Any]:
    """All that a restored server must have from its source."""

    def ask(statement: str) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in server.query(statement)]

    tables = ask(
        "SELECT table_schema, table_name FROM information_schema.tables WHERE table_type = "
        f"'BASE TABLE' AND table_schema NOT IN {SCHEMAS} ORDER BY 1, 2"
    )
    found: dict[str, Any] = {
        "databases": sorted(ask("SHOW DATABASES")),
        "routines": ask(
            "SELECT routine_schema, routine_name, routine_type, routine_definition, sql_mode, "
            "definer, security_type, database_collation FROM information_schema.routines WHERE "
            "routine_schema NOT IN ('sys') ORDER BY 1, 2, 3"
        ),
        "events": ask(
            "SELECT event_schema, event_name, status, event_definition, definer, sql_mode, "
            "time_zone, interval_value, interval_field, starts, on_completion, event_comment "
            "FROM information_schema.events ORDER BY 1, 2"
        ),
        "triggers": ask(
            "SELECT trigger_schema, trigger_name, action_statement, sql_mode, definer FROM "
            "information_schema.triggers WHERE trigger_schema <> 'sys' ORDER BY 1, 2"
        ),
        "time zones": ask("CHECKSUM TABLE mysql.time_zone_name, mysql.time_zone_transition_type"),
    }
    for schema, name in tables:
        where = f"`{schema}`.`{name}`"
        found[where] = (ask(f"CHECKSUM TABLE {where}"), ask(f"SHOW CREATE TABLE {where}"))
    for user, host in ask("SELECT user, host FROM mysql.user ORDER BY 1, 2"):
        named = f"`{user}`@`{host}`"
        grants = []
        with suppress(pymysql.err.OperationalError):  # MariaDB: a role is no account
            grants = ask(f"SHOW GRANTS FOR {named}")
        with suppress(pymysql.err.OperationalError):
            grants += ask(f"SHOW CREATE USER {named}")
        found[named] = grants
    return found


def shown(state: dict[str, Any], truth: dict[str, Any]) -> dict[str, Any]:
    """Where two differ."""
    names = sorted({*state, *truth})
    return {n: (state.get(n), truth.get(n)) for n in names if state.get(n) != truth.get(n)}


class Life:
    """Random statements of all kinds, and the truth after each of them."""

    def __init__(self, server: MysqlServer, seed: int) -> None:
        self._server = server
        self._chance = random.Random(seed)
        self._number = 0

    def go_on(self, count: int) -> None:
        for _ in range(count):
            self._server.query(*self._statements())

    def _statements(self) -> list[str]:
        n, chance = self._number, self._chance
        self._number += 1
        rows = [
            f"REPLACE INTO shop.t VALUES ({chance.randrange(300)}, {n}, REPEAT('{n} ', 40))"
            for _ in range(chance.randrange(1, 8))
        ]
        other = {
            3: [f"CREATE TABLE shop.n{n} (a INT)", f"INSERT INTO shop.n{n} VALUES ({n})"],
            9: [f"ALTER USER IF EXISTS u{n - 2} IDENTIFIED BY 'q{n}'"],
            11: ["SET SESSION sql_mode = 'ANSI_QUOTES'", f'CREATE PROCEDURE shop."p{n}"() SELECT 1',
                 "SET SESSION sql_mode = DEFAULT"],
            13: [f"CREATE EVENT shop.on{n} {EVENT} DO DELETE FROM shop.t WHERE id < 0",
                 f"CREATE EVENT shop.off{n} {EVENT} DISABLE DO SET @a = 'ENABLE'"],
            15: [f"ALTER EVENT shop.on{n - 2} DISABLE", f"ALTER EVENT shop.off{n - 2} ENABLE",
                 f"ALTER EVENT shop.off{n - 2} COMMENT 'DISABLE it?'"],
            17: ["FLUSH BINARY LOGS"],
            18: ["UPDATE shop.t SET n = n + 1"],
        }  # fmt: skip
        return [*rows, *other.get(n % 20, [])]

    def moment(self) -> tuple[str, dict[str, Any]]:
        """A goal, and what the server is there."""
        words = "MASTER" if self._server.binaries.flavour == "mariadb" else "BINARY LOG"
        (row, *_) = self._server.query(f"SHOW {words} STATUS")
        return f"--to-position={row[0]}:{row[1]}", state_of(self._server)


@pytest.fixture(params=FLAVOURS)
def place(request: pytest.FixtureRequest, minio: MinioServer, bucket: str) -> Iterator[Place]:
    with placed(request.param, request, minio, bucket) as found:
        yield found


@pytest.fixture
def restores(place: Place, disk_tmp_path: Path) -> Restores:
    return Restores(place, place.folder)


def test_what_is_restored_is_what_the_source_was(restores: Restores) -> None:
    """At random moments: rows, definitions, accounts, grants, routines, events, their status."""
    place, count = restores.place, int(os.environ.get("MOMENTS_OF_A_TEST", MOMENTS))
    life = Life(place.source, seed=int(os.environ.get("SEED_OF_A_TEST", "1")))
    life.go_on(30)
    backups = [place.backup()["id"]]
    chance = random.Random(5)
    moments = []
    for number in range(count):
        life.go_on(chance.randrange(1, 25) if number else 22)
        moments.append(life.moment())
        if number == count // 2:
            backups.append(place.backup()["id"])
    life.go_on(10)
    place.wait()
    moments.append(("--latest", state_of(place.source)))
    for number, (goal, truth) in enumerate(moments):
        data = restores.folder / f"d{number}"
        with restores.running(data, goal) as (said, server):
            assert shown(state_of(server), truth) == {}, goal
            assert said["events"] == []
            assert said["restored"], said
            if place.tool == "mysqldump":
                assert said["is_proved"], said
        assert not (data / WORK).exists()
