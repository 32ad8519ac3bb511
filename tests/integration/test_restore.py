"""`restore` at real servers: what it restores is what the source was, at any moment."""

import json
import os
import pwd
import random
import re
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import pymysql
import pytest

from binlog2s3.config.restore import WORK
from binlog2s3.restore.scratch import greets
from lab import get
from lab.disk import temporary_directory
from lab.mysql import MysqlServer, anywhere
from lab.s3 import MinioServer
from tests import command
from tests.integration.least_privilege import given, policy
from tests.integration.small_disk import mount_small
from tests.integration.stream_process import StreamProcess
from tests.integration.test_backup_run import Place, placed
from tests.waiting import PATIENCE, wait_until
from tests.world.commands import their_server
from tests.world.servers import RELAXED, dump_of, executed, last_gtid

MOMENTS = 1
KINDS = ("position", "gtid", "time")
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
            f"--program={program}",
            *their_server(),
        ]
        text = json.dumps(policy("reader", place.bucket)).replace("/prod", "/pre")
        self.rights = given(place.minio, json.loads(text))

    def argv(self, data: Path, *more: str) -> list[str]:
        return ["restore", *self.place.where, *self._words, f"--data-dir={data}", "--yes", *more]

    def run(self, data: Path, *more: str) -> "subprocess.CompletedProcess[str]":
        return command.run(*self.argv(data, *more), **self.rights)

    def done(self, data: Path, *more: str) -> dict[str, Any]:
        done = self.run(data, "--json", *more)
        assert done.returncode == 0, done.stderr
        return dict(json.loads(done.stdout))

    @contextmanager
    def running(self, data: Path, *more: str) -> Iterator[tuple[dict[str, Any], "Restored"]]:
        said = self.done(data, "--keep-running", *more)
        assert said["socket"] == str(data / "mysql.sock")
        with left_running(data) as server:
            yield said, server


@contextmanager
def left_running(data: Path) -> Iterator["Restored"]:
    """The server that a restore has left running here; it is ended."""
    pid = int((data / "mysqld.pid").read_text())
    try:
        yield Restored(data / "mysql.sock")
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
            "time_zone, interval_value, interval_field, starts, on_completion, event_comment, "
            "character_set_client, collation_connection FROM information_schema.events "
            "ORDER BY 1, 2"
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
                 f"CREATE EVENT shop.off{n} {EVENT} DISABLE DO SET @a = 'ENABLE'",
                 "SET NAMES latin1 COLLATE latin1_german1_ci, sql_mode = 'ANSI_QUOTES'",
                 f'CREATE EVENT shop.set{n} {EVENT} DO SELECT "n" FROM shop.t'],
            15: [f"ALTER EVENT shop.on{n - 2} DISABLE", f"ALTER EVENT shop.off{n - 2} ENABLE",
                 f"ALTER EVENT shop.off{n - 2} COMMENT 'DISABLE it?'"],
            17: ["FLUSH BINARY LOGS"],
            18: ["UPDATE shop.t SET n = n + 1"],
        }  # fmt: skip
        return [*rows, *other.get(n % 20, [])]

    def moment(self, kind: str = "position") -> tuple[str, dict[str, Any]]:
        """A goal, and what the server is there."""
        return getattr(self, f"_{kind}")(), state_of(self._server)

    def _position(self) -> str:
        name, offset = self._server.binlogs()[-1]
        return f"--to-position={name}:{offset}"

    def _gtid(self) -> str:
        """The last one that was executed; there is one server and one domain."""
        return f"--to-gtid={last_gtid(self._server)}"

    def _time(self) -> str:
        """What is committed from now on is of another second: MariaDB has no exact times."""
        text = "SELECT UNIX_TIMESTAMP(), DATE_FORMAT(UTC_TIMESTAMP(), '%Y-%m-%dT%H:%i:%sZ')"
        [(now, at)] = self._server.query(text)
        wait_until(
            lambda: self._server.query("SELECT UNIX_TIMESTAMP()")[0][0] > now,
            what="another second",
        )
        return f"--to-time={at.replace('Z', '.999999Z')}"


@pytest.fixture(params=FLAVOURS)
def place(request: pytest.FixtureRequest, minio: MinioServer, bucket: str) -> Iterator[Place]:
    with placed(request.param, request, minio, bucket) as found:
        yield found


@pytest.fixture
def restores(place: Place, disk_tmp_path: Path) -> Restores:
    return Restores(place, place.folder)


def test_what_is_restored_is_what_the_source_was(restores: Restores) -> None:
    """Then and now: rows, definitions, accounts, grants, routines, events, their status.

    Each flavour of backup has another kind of goal; the environment's MOMENTS_OF_A_TEST says how
    many moments.
    """
    place, count = restores.place, int(os.environ.get("MOMENTS_OF_A_TEST", MOMENTS))
    life = Life(place.source, seed=int(os.environ.get("SEED_OF_A_TEST", "1")))
    life.go_on(30)
    backups = [place.backup()["id"]]
    chance = random.Random(5)
    moments = []
    for number in range(count):
        life.go_on(chance.randrange(1, 25) if number else 22)
        moments.append(life.moment(KINDS[(number + FLAVOURS.index(place.tool)) % len(KINDS)]))
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
                assert said["is_proved"], "\n".join(map(str, said.items()))
        assert not (data / WORK).exists()


def stage_of(data: Path) -> str:
    """How far the restore in this directory is; "" if none is."""
    with suppress(FileNotFoundError, NotADirectoryError):
        return str(json.loads((data / WORK / "restore.json").read_text())["stage"])
    return ""


def killed(restores: Restores, argv: list[str], data: Path, stage: str, pause: float) -> str:
    """Kill a restore a while after it has come to a stage; the stage that it was killed in."""
    environment = command.environment(**restores.rights)
    late = STAGES[STAGES.index(stage) :]
    with subprocess.Popen(
        command.argv(*argv),
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        try:
            wait_until(
                lambda: stage_of(data) in late or process.poll() is not None,
                3 * PATIENCE,
                f"stage {stage}",
                interval=0.001,
            )
            time.sleep(pause)
        finally:
            process.send_signal(signal.SIGKILL)
    return stage_of(data)


def lived(place: Place) -> tuple[str, dict[str, Any]]:
    """A goal behind a base backup, with all that comes after it in the bucket; its state."""
    life = Life(place.source, seed=3)
    life.go_on(20)
    place.backup()
    life.go_on(60)
    goal, truth = life.moment()
    life.go_on(5)
    place.wait()
    return goal, truth


@pytest.mark.parametrize(
    ("place", "stages"),
    [("mysqldump", ("restore", "apply")), ("mariabackup", STAGES)],
    indirect=["place"],
    ids=["mysqldump", "mariabackup"],
)
def test_a_killed_restore_goes_on(restores: Restores, stages: tuple[str, ...]) -> None:
    """At each stage; of a dump, where it is another: the same command ends with the source's."""
    chance = random.Random(int(os.environ.get("SEED_OF_A_TEST", "3")))
    goal, truth = lived(restores.place)
    seen = []
    for stage in stages:
        data = restores.folder / f"k-{stage}"
        pause = chance.choice((0.0, 0.2, 0.7)) if stage != "place" else 0.0
        seen.append(killed(restores, restores.argv(data, goal), data, stage, pause))
        if not seen[-1] and data.exists() and (data / "mysql").exists():
            continue  # it was done before it could be killed
        with restores.running(data, goal) as (_, server):
            assert shown(state_of(server), truth) == {}, (stage, seen)
    print("killed in", seen)  # noqa: T201
    assert {"restore", "apply"} <= set(seen)


@pytest.mark.parametrize("place", ["mariabackup"], indirect=True)
def test_a_kill_that_cuts_the_files_of_the_channel_off(restores: Restores) -> None:
    """A MariaDB does not start with them, and the same command goes on all the same."""
    goal, truth = lived(restores.place)
    data = restores.folder / "torn"
    assert killed(restores, restores.argv(data, goal), data, "apply", 0.0) == "apply"
    files = next(data.rglob("ibdata1")).parent
    (files / "master-binlog2s3.info").write_bytes(b"33\n")
    (files / "multi-master.info").write_bytes(b"binlog2s3\n")
    with restores.running(data, goal) as (_, server):
        assert shown(state_of(server), truth) == {}


@contextmanager
def started_on(restores: Restores, data: Path) -> Iterator[Restored]:
    """A server that is started by hand on what was restored."""
    socket = data / "by-hand.sock"
    argv = [str(restores.place.binaries.server), "--no-defaults", *anywhere()]
    argv += [f"--datadir={data}"]
    argv += [f"--socket={socket}", "--skip-networking", "--server-id=9", "--log-bin=mysql-bin"]
    argv += [
        "--event-scheduler=OFF",
        f"--pid-file={data / 'by-hand.pid'}",
        f"--tmpdir={data.parent}",
    ]
    if restores.place.binaries.flavour == "mysql":
        argv += ["--secure-file-priv=NULL", "--mysqlx=OFF"]
        argv += ["--gtid-mode=ON", "--enforce-gtid-consistency=ON"]
    with (data / "by-hand.err").open("wb") as log:
        process = subprocess.Popen(argv, stdout=log, stderr=log)
    try:
        server = Restored(socket)

        wait_until(lambda: greets(socket), what="the server answers")
        yield server
    finally:
        process.terminate()
        process.wait(60)


@pytest.mark.parametrize("place", FLAVOURS, indirect=True)
def test_a_restored_server_is_the_successor(restores: Restores) -> None:
    """It has the archive's transactions in its own binlogs, so the streamer goes on with it.

    What it commits then is of the same history: another restore has it. A new base backup of it has
    GTIDs that came with the old one, and are in none of its binlogs.
    """
    place = restores.place
    life = Life(place.source, seed=6)
    life.go_on(5)
    place.backup()
    life.go_on(20)
    place.wait()
    assert place.stream.terminate() == 0
    is_mysql = place.binaries.flavour == "mysql"
    last = last_gtid(place.source) if is_mysql else executed(place.source)
    data, goal = restores.folder / "d", f"--to-gtid={last}"
    first = restores.done(data, "--latest")
    with started_on(restores, data) as server:
        by_socket = {"mysql-host": None, "mysql-port": None, "mysql-socket": server.socket}
        follower = StreamProcess(
            restores.folder / "follower", place.source, place.minio, place.bucket, options=by_socket
        )
        with follower:
            assert follower.wait_for_event("new lineage")["parent_join"] == "exact"
            server.query("CREATE TABLE shop.later AS SELECT 7 AS n")
            truth = state_of(server)
            later = ("find", "--table=shop.later", "--print=gtid")
            wait_until(lambda: place.run(*later).stdout, what="it is in the bucket", interval=0.5)
            argv = place.run_argv("--wait=30s", f"--mysql-socket={server.socket}")
            done = command.run(*argv, **place.minio.env())
            assert done.returncode == 0, done.stderr
            assert follower.terminate() == 0
    with restores.running(restores.folder / "again", "--latest") as (_, restored):
        assert restored.query("SELECT n FROM shop.later") == [(7,)]
        assert shown(state_of(restored), truth) == {}
    reached = restores.done(restores.folder / "before", goal)
    place_of = ("lineage", "binlog", "position")
    assert [reached[name] for name in place_of] == [first[name] for name in place_of]


@pytest.fixture(scope="module")
def one_dump(request: pytest.FixtureRequest, minio: MinioServer) -> Iterator[Place]:
    """A MySQL with a stored dump, and some binlogs after it; who harms its bucket mends it."""
    with placed("mysqldump", request, minio, minio.make_bucket()) as place:
        life = Life(place.source, seed=5)
        life.go_on(5)
        place.backup()
        life.go_on(45)
        place.source.query("FLUSH BINARY LOGS")
        place.wait()
        place.wait_archived(2)
        yield place


@pytest.fixture
def dumped(one_dump: Place) -> Iterator[Restores]:
    """It, with a folder of the test's own, whose path is short: sockets are in it."""
    with temporary_directory() as folder:
        yield Restores(one_dump, folder)


def test_nothing_is_overwritten_and_a_dry_run_makes_nothing(dumped: Restores) -> None:
    """A directory with something in it is a wrong option; so is one where another restore is."""
    data = dumped.folder / "d"
    done = dumped.run(data, "--latest", "--dry-run")
    assert done.returncode == 0, done.stderr
    assert "dry run: nothing was changed" in done.stdout
    assert re.search(r"disk +about .* needed, .* free", done.stdout), done.stdout
    assert re.search(r"time +not known", done.stdout)
    assert not data.exists()
    said = json.loads(dumped.run(data, "--latest", "--dry-run", "--json").stdout)
    assert said["backup_bytes"] < said["needed_bytes"] < said["free_bytes"]
    assert said["plan"]["transactions"] > 0
    data.mkdir()
    (data / "precious").write_text("x")
    done = dumped.run(data, "--latest")
    assert (done.returncode, "is not empty: 'precious'" in done.stderr) == (3, True), done.stderr
    assert [path.name for path in data.iterdir()] == ["precious"]
    other = dumped.folder / "o"
    killed(dumped, dumped.argv(other, "--latest"), other, "finish", 0.0)
    if stage_of(other):
        done = dumped.run(other, "--to-position=mysql-bin.000001:4")
        assert (done.returncode, "has an unfinished restore" in done.stderr) == (8, True)


def put(place: Place, key: str, data: bytes) -> None:
    with closing(place.minio.client()) as client:
        client.put_object(Bucket=place.bucket, Key=key, Body=data)


@contextmanager
def damaged(place: Place, what: str) -> Iterator[str]:
    """A byte in the middle of this object is another one; its key. It comes back."""
    [key] = [key for key in place.there.keys("pre") if what in key]
    good = place.there.get(key)
    bad = bytearray(good)
    bad[len(bad) // 2] ^= 0xFF
    put(place, key, bytes(bad))
    try:
        yield key
    finally:
        put(place, key, good)


def test_damage_and_a_missing_binlog_are_told(dumped: Restores) -> None:
    """A restore never ends before the goal without a word; with the bytes back it goes on."""
    place, data = dumped.place, dumped.folder / "d"
    truth = state_of(place.source)
    with damaged(place, "/binlogs/mysql-bin.000002") as key:
        done = dumped.run(data, "--latest")
    assert (done.returncode, "mysql-bin.000002" in done.stderr) == (8, True), done.stderr
    assert "the same command goes on" in done.stderr
    assert stage_of(data) in STAGES
    assert not (data / "ibdata1").exists()
    with dumped.running(data, "--latest") as (_, server):
        assert shown(state_of(server), truth) == {}
    entry = key.replace("/binlogs/", "/entries/") + ".json"
    there = {one: place.there.get(one) for one in (key, entry)}
    with closing(place.minio.client()) as client:
        for one in there:
            client.delete_object(Bucket=place.bucket, Key=one)
    try:
        done = dumped.run(dumped.folder / "e", "--latest")
    finally:
        for one, body in there.items():
            put(place, one, body)
    assert done.returncode == 8, done.stderr
    assert "no registered base backup reaches the goal" in done.stderr, done.stderr
    assert "mysql-bin.000003 are missing" in done.stderr, done.stderr
    done = dumped.run(dumped.folder / "e", "--to-time=2099-01-01T00:00:00Z", "--dry-run")
    assert done.returncode == 8, done.stderr
    assert "--latest takes all that there is" in " ".join(done.stderr.split()), done.stderr


@pytest.mark.gate
def test_a_restore_that_is_killed_once_goes_on(dumped: Restores) -> None:
    """The same command ends with what was to be restored, and says that it is proved.

    Also if a process has the number again that the killed server had.
    """
    data, truth = dumped.folder / "killed", state_of(dumped.place.source)
    assert killed(dumped, dumped.argv(data, "--latest"), data, "apply", 0.0) in STAGES
    [lock] = data.rglob("mysql.sock.lock")
    lock.write_text(f"{os.getpid()}\n")
    with dumped.running(data, "--latest") as (said, server):
        assert shown(state_of(server), truth) == {}
        assert said["is_proved"], said


@pytest.mark.gate
def test_a_damaged_backup_is_told(dumped: Restores) -> None:
    """Before the server has it all; with the bytes back the same command begins again."""
    place, data = dumped.place, dumped.folder / "d"
    with damaged(place, "/base/"):
        done = dumped.run(data, "--latest")
    assert (done.returncode, "is damaged between" in done.stderr) == (7, True), done.stderr
    assert stage_of(data) == "restore"
    assert dumped.done(data, "--latest")["is_proved"]


def test_a_full_disk_is_told_and_the_restore_goes_on(dumped: Restores) -> None:
    """With what is free; when there is more, the same command continues."""
    small = dumped.folder / "small"
    mount_small(small, 96 << 20)
    try:
        done = dumped.run(small / "data", "--latest")
        assert done.returncode == 8, done.stderr
        assert re.search(r"the disk of .* has .* free", done.stderr), done.stderr
        assert "the same command" in done.stderr
        argv = ["mount", "-o", f"remount,size={1 << 30}", str(small)]
        subprocess.run(argv, check=True)
        assert dumped.done(small / "data", "--latest")["is_proved"]
    finally:
        subprocess.run(["umount", small], check=True)


def impostor(program: Path, path: Path, version: str) -> Path:
    """A server program that says that it is of another version."""
    path.write_text(
        f'#!/bin/sh\nfor one; do [ "$one" = --version ] && echo "x Ver {version}" && exit; done\n'
        f'exec {program} "$@"\n'
    )
    path.chmod(0o755)
    return path


@pytest.mark.parametrize("place", ["mariabackup", "mariadb-dump"], indirect=True)
def test_another_version_of_the_server_is_told(place: Place, restores: Restores) -> None:
    """Before anything is made: files are refused, a dump is warned of."""
    place.backup()
    place.commit("INSERT INTO shop.t VALUES (1, 1, 'x')")
    data = restores.folder / "d"
    program = impostor(place.binaries.server, restores.folder / "mariadbd", "10.5.1-MariaDB")
    done = restores.run(data, "--latest", f"--mysqld={program}", "--dry-run")
    assert "is of version 10.5.1-MariaDB, the source of" in done.stderr, done.stderr
    assert done.returncode == (8 if place.tool == "mariabackup" else 0)
    program = impostor(place.binaries.server, restores.folder / "mysqld", "9.7.4")
    done = restores.run(data, "--latest", f"--mysqld={program}")
    assert (done.returncode, "is not a MariaDB server" in done.stderr) == (8, True), done.stderr
    assert not (data / WORK).exists()


def test_an_older_server_is_refused_before_anything_is_made(dumped: Restores) -> None:
    """And what a server of another series has made is made again."""
    restores, server = dumped, dumped.place.binaries.server
    data = restores.folder / "d"
    program = impostor(server, restores.folder / "mysqld", "8.0.31")
    done = restores.run(data, "--latest", f"--mysqld={program}")
    assert (done.returncode, "of a later series" in done.stderr) == (8, True), done.stderr
    assert not (data / WORK).exists()
    program = impostor(server, restores.folder / "later", "10.9.1")
    argv = [*restores.argv(data, "--latest"), f"--mysqld={program}"]
    assert killed(restores, argv, data, "start", 0.0) == "start"
    done = restores.run(data, "--latest")
    assert done.returncode == 0, done.stderr
    assert "a server of version 10.9.1 has made it: it begins again" in done.stderr


def test_files_of_another_page_size(
    request: pytest.FixtureRequest, minio: MinioServer, bucket: str
) -> None:
    """They are prepared and served with what the backup says of them; the last lines name it."""
    options = ("--innodb-page-size=8k", "--innodb-data-file-path=ibdata1:20M:autoextend")
    with placed("mariabackup", request, minio, bucket, options=options) as place:
        place.backup()
        place.commit("INSERT INTO shop.t VALUES (1, 1, 'x')")
        truth = state_of(place.source)
        place.wait()
        restores = Restores(place, place.folder)
        data = restores.folder / "d"
        done = restores.run(data, "--latest", "--keep-running")
        assert done.returncode == 0, done.stderr
        with left_running(data) as server:
            assert shown(state_of(server), truth) == {}
        said = "innodb_data_file_path = ibdata1:20M:autoextend; innodb_page_size = 8192"
        assert said in done.stdout


@pytest.mark.parametrize("place", ["mariabackup"], indirect=True)
def test_a_table_that_the_source_has_elsewhere_is_restored_here(
    place: Place, restores: Restores
) -> None:
    """On the source's machine, too: its file is neither opened nor taken for the restored one.

    So also by a drill, which needs no restore command for what is stored.
    """
    elsewhere, data = restores.folder / "elsewhere", restores.folder / "d"
    elsewhere.mkdir()
    place.commit(
        f"CREATE TABLE shop.far (a INT PRIMARY KEY) ENGINE=InnoDB DATA DIRECTORY='{elsewhere}'"
    )
    place.backup()
    place.source.query(
        "INSERT INTO shop.far VALUES (1)", "FLUSH TABLES shop.far FOR EXPORT", "UNLOCK TABLES"
    )
    place.wait()
    with restores.running(data, "--latest") as (_, server):
        assert server.query("SELECT a FROM shop.far") == [(1,)]
        server.query("DROP TABLE shop.far")
    work = restores.folder / "w"
    work.mkdir(mode=0o700)
    words = [word for word in restores.argv(work) if word not in ("restore", "--yes")]
    words = [word for word in words if not word.startswith("--data-dir")]
    argv = ["drill", *words, f"--work-dir={work}", "--nice=0", "--ionice=none", "--json"]
    done = command.run(*argv, **place.minio.env())
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert (said["outcome"], said["transactions"]) == ("proved", 1)
    assert said["restored"] == "its stream in the bucket"
    assert (elsewhere / "shop/far.ibd").is_file()
    assert place.source.query("SELECT a FROM shop.far") == [(1,)]


@pytest.mark.parametrize("place", ["mariadb-dump"], indirect=True)
def test_variables_do_not_lead_a_dump_to_another_server(place: Place, restores: Restores) -> None:
    """MYSQL_HOST does so, past --socket: here to the source. No server gets the bucket's keys."""
    place.backup()
    place.commit("INSERT INTO shop.t VALUES (1, 1, 'after the backup')")
    truth, data = state_of(place.source), restores.folder / "d"
    elsewhere = {"MYSQL_HOST": "127.0.0.1", "MYSQL_TCP_PORT": str(place.source.port)}
    restores.rights |= elsewhere
    with restores.running(data, "--latest") as (_, server):
        assert shown(state_of(place.source), truth) == {}
        assert shown(state_of(server), truth) == {}
        pid = int((data / "mysqld.pid").read_text())
        variables = Path(f"/proc/{pid}/environ").read_text()
    assert restores.rights["AWS_SECRET_ACCESS_KEY"] not in variables
    assert "AWS_" not in variables


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
@pytest.mark.parametrize("place", ["mysqldump", "mariabackup"], indirect=True)
def test_the_files_belong_to_the_servers_user(place: Place, restores: Restores) -> None:
    """Root gives everything to that one, and to nobody else; settings of the option file hold."""
    place.backup()
    place.commit("INSERT INTO shop.t VALUES (1, 1, 'x')")
    place.folder.chmod(0o711)
    data, file = restores.folder / "d", restores.folder / "my.cnf"
    file.write_text("[mysqld]\ncharacter_set_server = latin1\ninnodb_undo_directory = /fast\n")
    words = [word for word in restores.argv(data, "--latest") if "--user=root" not in word]
    words += ["--mysqld-option=--user=nobody", f"--defaults-file={file}"]
    done = command.run(*words, **restores.rights)
    assert done.returncode == 0, done.stderr
    assert "innodb_undo_directory = /fast: these files are in the data directory" in done.stderr
    assert f"start it: {place.binaries.server} --defaults-file={file}" in done.stdout
    user = pwd.getpwnam("nobody").pw_uid
    assert {path.lstat().st_uid for path in (data, *data.rglob("*"))} == {user}
    others = {path.name for path in data.rglob("*") if path.stat().st_mode & 0o007}
    assert others <= {"ca.pem", "client-cert.pem", "server-cert.pem", "public_key.pem"}


def test_without_gtids_nothing_is_applied_twice(
    request: pytest.FixtureRequest, minio: MinioServer, bucket: str
) -> None:
    """A MySQL that cannot say what it has: killed while the binlogs are applied, or right after."""
    with placed("mysqldump", request, minio, bucket, gtid=False) as place:
        restores, life = Restores(place, place.folder), Life(place.source, seed=6)
        life.go_on(5)
        place.backup()
        life.go_on(60)
        goal, truth = life.moment()
        place.wait()
        pause, data = random.choice((0.0, 0.5, 1.0)), place.folder / "d"
        seen = killed(restores, restores.argv(data, goal), data, "apply", pause)
        print("killed in", seen, "after", pause)  # noqa: T201
        with restores.running(data, goal) as (said, server):
            assert shown(state_of(server), truth) == {}, (seen, pause)
            assert not said["is_proved"]
            assert said["proof"][0].startswith("not proved: the target keeps no GTIDs")


def test_a_backup_elsewhere_is_restored_by_the_operators_command(
    request: pytest.FixtureRequest, minio: MinioServer, bucket: str
) -> None:
    """A dump that is only registered; without a command it is refused, with how to go on."""
    with placed("mysqldump", request, minio, bucket) as place:
        restores, life = Restores(place, place.folder), Life(place.source, seed=7)
        life.go_on(10)
        dump = place.folder / "dump.sql"
        dump_of(place.source, dump)
        place.wait()
        place.document("backup", "add", f"--from-backup={dump}", f"--location={dump}")
        life.go_on(20)
        place.wait()
        data = place.folder / "d"
        done = restores.run(data, "--latest")
        assert (done.returncode, "say how it is restored: --restore-command" in done.stderr) == (
            8,
            True,
        ), done.stderr
        assert not data.exists()
        client = shlex.quote(str(place.binaries.client))
        pipe = f'{client} --no-defaults --binary-mode -uroot -S "$DRILL_SOCKET" < "$DRILL_LOCATION"'
        active = "SET PERSIST event_scheduler = ON; CHANGE REPLICATION SOURCE TO SOURCE_HOST = 'x'"
        pipe += f' && {client} --no-defaults -uroot -S "$DRILL_SOCKET" -e "{active}"'
        words = [word for word in restores.argv(data, "--latest") if "--program" not in word]
        words += [f"--restore-command=sh -c {shlex.quote(pipe)}", "--json", "--keep-running"]
        done = command.run(*words, **restores.rights)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["is_proved"]
        with left_running(data) as server:
            assert shown(state_of(server), state_of(place.source)) == {}
            assert server.query("SELECT @@event_scheduler, @@skip_networking") == [("OFF", 1)]
            threads = server.query("SELECT command FROM information_schema.processlist")
            assert {("Query",)} == set(threads)


OLDER = {"mysql-8.0.31": "mysqldump", "mariadb-11.8": "mariadb-dump"}
ZONES = "SELECT COUNT(*) FROM mysql.time_zone_name"


def dump_program_of_8_0(place: Place) -> Path:
    """The program of 9.x, which an 8.0 does not tell its place: nobody writes there meanwhile."""
    name, offset = place.source.binlogs()[-1]
    said = f"-- CHANGE MASTER TO MASTER_LOG_FILE='{name}', MASTER_LOG_POS={offset};"
    path = place.folder / "mysqldump"
    path.write_text(
        "#!/bin/sh\n"
        f'case "$*" in *--version*|*--help*) exec {place.program} "$@";; esac\n'
        'for one; do shift; [ "$one" = --source-data=2 ] || set -- "$@" "$one"; done\n'
        f"""{place.program} "$@" | sed "0,/^-- Current Database/s//{said}\\n\\n&/"\n"""
    )
    path.chmod(0o755)
    return path


@pytest.mark.parametrize("version", OLDER)
def test_servers_of_other_series_are_restored(
    version: str, request: pytest.FixtureRequest, minio: MinioServer, bucket: str
) -> None:
    """With the programs of theirs, as the source was."""
    binaries = get.VERSIONS[version]()
    with placed(OLDER[version], request, minio, bucket, binaries=binaries) as place:
        restores, life = Restores(place, place.folder), Life(place.source, seed=8)
        life.go_on(20)
        if version == "mysql-8.0.31":
            place.program = dump_program_of_8_0(place)
        place.backup()
        life.go_on(25)
        goal, truth = life.moment()
        place.wait()
        with restores.running(place.folder / "d", goal) as (_, server):
            assert shown(state_of(server), truth) == {}


def test_settings_by_which_data_are_kept_are_those_of_the_option_file(
    request: pytest.FixtureRequest, minio: MinioServer, bucket: str
) -> None:
    """Names in lower case, pages of 8 KiB; filled time zone tables and their zones come along."""
    kept = ("--lower-case-table-names=1", "--innodb-page-size=8k")
    with placed("mysqldump", request, minio, bucket, options=(*RELAXED, *kept)) as place:
        restores, source = Restores(place, place.folder), place.source
        source.query(
            "INSERT INTO mysql.time_zone (Time_zone_id, Use_leap_seconds) VALUES (1, 'N')",
            "INSERT INTO mysql.time_zone_name VALUES ('Europe/Berlin', 1)",
            "INSERT INTO mysql.time_zone_transition_type VALUES (1, 0, 3600, 0, 'CET')",
            "CREATE TABLE shop.UPPER (a INT PRIMARY KEY)",
        )
        place.backup()
        source.query("INSERT INTO shop.upper VALUES (1)")
        place.wait()
        file = place.folder / "my.cnf"
        file.write_text("[mysqld]\nlower_case_table_names = 1\ninnodb_page_size = 8k\n")
        truth, data = state_of(source), place.folder / "d"
        with restores.running(data, "--latest", f"--defaults-file={file}") as (_, server):
            assert shown(state_of(server), truth) == {}
            asked = "SELECT @@lower_case_table_names, @@innodb_page_size"
            assert server.query(asked) == [(1, 8192)]
            assert server.query(ZONES) == [(1,)]


def test_settings_that_no_event_has_are_those_of_the_source(
    request: pytest.FixtureRequest, minio: MinioServer, bucket: str
) -> None:
    """Of names, of engines, of what generated columns are computed with; nobody names them."""
    kept = ("--lower-case-table-names=1", "--default-storage-engine=MyISAM",
            "--div-precision-increment=12")  # fmt: skip
    with placed("mysqldump", request, minio, bucket, options=(*RELAXED, *kept)) as place:
        restores, source = Restores(place, place.folder), place.source
        source.query("CREATE TABLE shop.Orders (a INT PRIMARY KEY) ENGINE=InnoDB")
        place.backup()
        source.query(
            "CREATE TABLE IF NOT EXISTS shop.Orders (a INT PRIMARY KEY)",
            "CREATE TABLE shop.third (a INT PRIMARY KEY, b DECIMAL(30, 20) AS (a / 7) STORED)",
            "INSERT INTO shop.THIRD (a) VALUES (1)",
        )
        place.wait()
        truth, data = state_of(source), place.folder / "d"
        with restores.running(data, "--latest") as (said, server):
            assert shown(state_of(server), truth) == {}
            assert said["is_proved"], said
        again = restores.run(
            place.folder / "e", "--latest", "--mysqld-option=--lower-case-table-names=0"
        )
        assert again.returncode == 8, again.stderr
        assert "has lower_case_table_names = 0, and the source had 1" in again.stderr


@pytest.mark.parametrize("version", ["mysql-9", "mysql-8.0.15", "mysql-5.7.22"])
def test_a_copy_of_the_files_of_a_mysql_gets_a_new_uuid(
    version: str, request: pytest.FixtureRequest, minio: MinioServer, bucket: str
) -> None:
    """It would be the source's, and no replica of it. Older servers have other options' names."""
    binaries = get.VERSIONS[version]()
    with placed("mysqldump", request, minio, bucket, binaries=binaries) as place:
        restores, source, copy = Restores(place, place.folder), place.source, place.folder / "copy"
        source.query("INSERT INTO shop.t VALUES (1, 1, 'x')")
        gtids = str(source.query("SELECT @@global.gtid_executed")[0][0])
        source.stop()
        shutil.copytree(source.datadir, copy)
        source.start()
        place.wait()
        place.document(
            "backup", "add", f"--gtid-set={gtids}", f"--location={copy}", "--label=files"
        )
        source.query("INSERT INTO shop.t VALUES (2, 1, 'x')")
        place.wait()
        data = place.folder / "d"
        words = [word for word in restores.argv(data, "--latest") if "--program" not in word]
        words += ["--restore-command=cp -a {location}/. {datadir}", "--restore-into=directory"]
        done = command.run(*words, "--keep-running", "--json", **restores.rights)
        assert done.returncode == 0, done.stderr
        with left_running(data) as server:
            assert server.query("SELECT COUNT(*) FROM shop.t") == [(2,)]
            uuid = source.query("SELECT @@server_uuid")
            assert server.query("SELECT @@server_uuid") != [tuple(row) for row in uuid]


def test_one_table_alone_is_restored(dumped: Restores) -> None:
    """Only its changes are applied, also after a kill; the server is marked."""
    restores, source = dumped, dumped.place.source
    data, asked = restores.folder / "d", ("--latest", "--table=shop.t")
    killed(restores, restores.argv(data, *asked), data, "apply", 0.1)
    with restores.running(data, *asked) as (said, server):
        assert said["only_tables"] == ["shop.t"]
        checked, tables = "CHECKSUM TABLE shop.t", "SHOW TABLES FROM shop LIKE 'n%'"
        assert server.query(checked) == [tuple(row) for row in source.query(checked)]
        assert server.query(tables) == [("n3",)]
        assert len(source.query(tables)) == 3
        marks = server.query("SHOW DATABASES LIKE 'binlog2s3_recovery_%'")
        assert len(marks) == 1


VERSIONED = (
    "CREATE TABLE shop.v (id INT PRIMARY KEY, n INT) WITH SYSTEM VERSIONING",
    "INSERT INTO shop.v VALUES (1, 1)",
    "UPDATE shop.v SET n = 2",
)
OF_A_SEQUENCE = (
    "USE shop",
    "CREATE SEQUENCE s START WITH 5",
    "CREATE TABLE of_s (id INT PRIMARY KEY DEFAULT NEXTVAL(s), v INT)",
    "INSERT INTO of_s (v) VALUES (1), (2)",
)


@pytest.mark.parametrize("place", ["mariadb-dump"], indirect=True)
def test_the_past_of_versioned_tables_and_values_of_sequences_are_restored(
    place: Place, restores: Restores
) -> None:
    """As it was on the source; a dump without it is told when it is made and when it is loaded.

    A lock on a table whose values come from a sequence would not be one on its sequence.
    """
    numbers = "SELECT * FROM shop.of_s ORDER BY id"
    ask = "SELECT id, n, ROW_START, ROW_END FROM shop.v FOR SYSTEM_TIME ALL ORDER BY n"
    place.source.query(*VERSIONED, *OF_A_SEQUENCE)
    place.backup("--label=with")
    without = command.run(
        *place.run_argv("--label=without", "--tool-option=--skip-dump-history"),
        **place.minio.env(),
    )
    assert without.returncode == 0, without.stderr
    assert "leaves out the history of the system-versioned tables shop.v" in without.stderr
    place.commit("INSERT INTO shop.t VALUES (1, 1, 'x')", "INSERT INTO shop.of_s (v) VALUES (3)")
    data = restores.folder / "with"
    with restores.running(data, "--latest", "--from-backup-id=with") as (said, server):
        assert said["without_history"] == []
        for rows in (ask, numbers):
            assert server.query(rows) == [tuple(row) for row in place.source.query(rows)]
    data = restores.folder / "without"
    with restores.running(data, "--latest", "--from-backup-id=without") as (said, server):
        assert said["without_history"] == ["shop.v"]
        assert [row[:2] for row in server.query(ask)] == [(1, 2)]


def running_on(data: Path) -> list[str]:
    """The processes that were started with this data directory."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if f"--datadir={data}".encode() in file.read_bytes().split(b"\0"):
                found.append(file.parent.name)
    return found


def test_sigterm_while_the_server_is_started_ends_it(dumped: Restores) -> None:
    """Nobody was told of it; the data directory is whole."""
    data = dumped.folder / "d"
    with subprocess.Popen(
        command.argv(*dumped.argv(data, "--latest", "--keep-running")),
        env=command.environment(**dumped.rights),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        wait_until(
            lambda: (data / "mysqld.err").exists() or process.poll() is not None,
            3 * PATIENCE,
            "the server is started",
            interval=0.001,
        )
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate()
    assert process.returncode == 130, said
    assert f"interrupted; {data} is restored" in said
    assert not running_on(data)
    with started_on(dumped, data) as server:
        assert shown(state_of(server), state_of(dumped.place.source)) == {}


@pytest.mark.parametrize("place", ["mysqldump"], indirect=True)
def test_a_policy_for_passwords_and_events_that_have_expired_since(restores: Restores) -> None:
    """The private server's own account follows the policy; the restored server has it again.

    Where no password of ours satisfies it, the server's own words come at once. The events' end
    came after the backup; the source, whose scheduler is off, calls them enabled.
    """
    place, source = restores.place, restores.place.source
    source.query(
        "INSTALL COMPONENT 'file://component_validate_password'",
        "SET GLOBAL event_scheduler = OFF",
        "CREATE EVENT shop.kept ON SCHEDULE EVERY 1 DAY ENDS CURRENT_TIMESTAMP + INTERVAL 1 MINUTE "
        "ON COMPLETION PRESERVE DO SELECT 1",
        "CREATE EVENT shop.gone ON SCHEDULE EVERY 1 DAY ENDS CURRENT_TIMESTAMP + INTERVAL 1 MINUTE "
        "DO SELECT 1",
    )
    place.backup()
    place.commit("INSERT INTO shop.t VALUES (7000, 1, 'later')")
    place.wait()
    strict = "--mysqld-option=--loose-validate-password.length=99"
    done = restores.run(restores.folder / "refused", "--latest", strict)
    assert done.returncode == 8, done.stderr
    assert "could not make an account" in done.stderr
    assert "does not satisfy the current policy" in done.stderr
    assert "Traceback" not in done.stderr
    expired = "SELECT 1 FROM information_schema.events WHERE event_name = 'gone' AND ends < NOW()"
    wait_until(lambda: bool(source.query(expired)), 3 * PATIENCE, "the events expire")
    truth = state_of(source)
    kept = {row[1]: row[2] for row in truth.pop("events") if row[1] in ("kept", "gone")}
    assert kept == {"kept": "ENABLED", "gone": "ENABLED"}
    with restores.running(restores.folder / "d", "--latest") as (said, server):
        found = state_of(server)
        assert {row[1]: row[2] for row in found.pop("events")}["kept"] == "ENABLED"
        assert shown(found, truth) == {}
        assert said["is_proved"], said
        assert said["events"] == []
        assert server.query("SELECT component_urn FROM mysql.component") == [
            ("file://component_validate_password",)
        ]
