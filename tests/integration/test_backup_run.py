"""`backup run` and `backup get`: base backups in the bucket, of real servers under load."""

import json
import os
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest

from lab.disk import temporary_directory
from lab.get import ServerBinaries
from lab.mysql import MysqlServer, server_of
from lab.s3 import MinioServer
from tests import command
from tests.beside import Beside
from tests.integration.least_privilege import PAGE, SOURCE, given, policy
from tests.integration.stream_process import StreamProcess
from tests.waiting import wait_until
from tests.world.servers import RELAXED, load
from tests.world.streamed import Streamed, streamed

TOOLS = {"mysqldump": "mysql", "mariadb-dump": "mariadb", "mariabackup": "mariadb"}
ACCOUNTS = {"mysqldump": "mysql", "mariadb-dump": "mariadb", "mariabackup": "mariabackup"}
PASSWORD = "backup's own"
TABLES = (
    "CREATE DATABASE shop",
    "CREATE TABLE shop.t (id INT PRIMARY KEY, n INT, filler BLOB)",
    "CREATE PROCEDURE shop.p() SELECT 1",
    "CREATE EVENT shop.e ON SCHEDULE EVERY 1 DAY DISABLE DO SELECT 1",
    "CREATE TRIGGER shop.r BEFORE INSERT ON shop.t FOR EACH ROW SET NEW.n = NEW.n + 1",
)
CHANGED = "Table definition has changed"
BACKUPS = 1


@dataclass(kw_only=True)
class Place(Streamed):
    """A source whose binlogs go into a bucket, and an account for backups."""

    tool: str = ""
    program: Path = Path()

    def run_argv(self, *more: str) -> list[str]:
        words = [f"--tool={self.tool}", f"--program={self.program}", "--json"]
        words += [f"--mysql-socket={self.source.socket}", "--mysql-user=backup"]
        words += [f"--mysql-password-file={self.folder / 'password'}"]
        return ["backup", "run", *self.where, *words, *more]

    def backup(self, *more: str) -> dict[str, Any]:
        """Make one; a dump that a DDL came between registers nothing, and is made again.

        The bucket must have the source's first binlog: that is waited for.
        """
        wait_until(
            lambda: (
                self.keys("live/test/2")
                or [key for key in self.keys("archive/test/2") if "/binlogs/" in key]
            ),
            what="the first bytes",
        )
        for _ in range(20):
            done = command.run(*self.run_argv(*more), **self.minio.env())
            if CHANGED not in done.stderr:
                break
            assert done.returncode == 8, done.stderr
        assert done.returncode == 0, done.stderr
        (found,) = json.loads(done.stdout)["backups"]
        return dict(found)

    def get(self, id_: str, path: Path) -> None:
        argv = command.argv("backup", "get", *self.where, id_)
        with path.open("wb") as out:
            done = subprocess.run(
                argv,
                stdout=out,
                stderr=subprocess.PIPE,
                env=command.environment(**self.minio.env()),
                check=False,
                timeout=300,
            )
        assert done.returncode == 0, done.stderr

    def keys(self, prefix: str) -> list[str]:
        return [key.removeprefix("pre/") for key in self.there.keys(f"pre/{prefix}")]

    def uploads(self) -> list[str]:
        with closing(self.minio.client()) as client:
            found = client.list_multipart_uploads(Bucket=self.bucket)
        return [one["Key"] for one in found.get("Uploads", ()) if "/base/" in one["Key"]]


class Load(Beside):
    """Writes without end: rows, DDL, rotations."""

    def __init__(self, server: MysqlServer, seed: int) -> None:
        super().__init__()
        self._server = server
        self._chance = random.Random(seed)
        self.errors: list[Exception] = []
        self.written = 0

    def stop(self) -> None:
        super().stop()
        assert self.errors == []

    def run(self) -> None:
        try:
            with self._server.connect() as connection, connection.cursor() as cursor:
                while not self.over.is_set():
                    for statement in self._statements():
                        cursor.execute(statement)
                    self.written += 1
        except Exception as error:  # noqa: BLE001 - the test shows it
            self.errors.append(error)

    def _statements(self) -> Iterator[str]:
        n, chance = self.written, self._chance
        yield "BEGIN"
        for _ in range(chance.randrange(1, 6)):
            yield (
                f"REPLACE INTO shop.t VALUES ({chance.randrange(500)}, {n}, RANDOM_BYTES(90))"
                if (self._server.binaries.flavour == "mysql")
                else f"REPLACE INTO shop.t VALUES ({chance.randrange(500)}, {n}, SHA2({n}, 256))"
            )
        yield "COMMIT"
        if n % 500 == 20:
            yield f"CREATE TABLE shop.t{n} (a INT PRIMARY KEY)"
            yield f"INSERT INTO shop.t{n} VALUES ({n})"
        if n % 100 == 40:
            yield "FLUSH BINARY LOGS"


def account_of(tool: str) -> list[str]:
    """The account as docs/guides/permissions.md makes it."""
    block = rf"<!-- grants: {ACCOUNTS[tool]} backup -->\n\n```sql\n(.*?)```"
    (text,) = re.findall(block, PAGE, re.DOTALL)
    text = text.replace("'...'", "'" + PASSWORD.replace("'", "''") + "'")
    return [one.strip() for one in text.split(";\n") if one.strip()]


@contextmanager
def placed(
    tool: str,
    request: pytest.FixtureRequest,
    minio: MinioServer,
    bucket: str,
    *,
    binaries: ServerBinaries | None = None,
    **server: Any,
) -> Iterator[Place]:
    if binaries is None:
        binaries = cast("ServerBinaries", request.getfixturevalue(f"{TOOLS[tool]}_binaries"))
    program = binaries.client.with_name(tool)
    if tool == "mariabackup":
        program = Path(request.getfixturevalue("mariadb_backup")) / tool
    words = (*account_of(tool), *TABLES)
    with (
        temporary_directory() as folder,
        streamed(binaries, minio, bucket, folder, *words, kind=Place, **server) as place,
    ):
        place.tool, place.program = tool, program
        (folder / "password").write_text(PASSWORD)
        place.stream.wait_for_event("streaming")
        yield place


@pytest.fixture(params=TOOLS)
def place(request: pytest.FixtureRequest, minio: MinioServer, bucket: str) -> Iterator[Place]:
    with placed(request.param, request, minio, bucket) as found:
        yield found


def truth_of(server: MysqlServer) -> dict[str, Any]:
    """The rows of all tables, and what else a dump has."""
    tables = [str(row[0]) for row in server.query("SHOW TABLES IN shop")]
    return {
        **{table: server.query(f"SELECT * FROM shop.{table} ORDER BY 1") for table in tables},
        "routines": server.query(
            "SELECT routine_schema, routine_name FROM information_schema.routines"
            " WHERE routine_schema = 'shop'"
        ),
        "events": server.query("SELECT event_name FROM information_schema.events"),
        "triggers": server.query("SHOW TRIGGERS IN shop")[0][:4],
        "accounts": sorted(
            server.query("SELECT user, host FROM mysql.user WHERE user IN ('backup', 'root')")
        ),
    }


def unpacked(place: Place, path: Path, folder: Path) -> None:
    """The stream of mariabackup as a prepared data directory, by hand."""
    folder.mkdir(parents=True)
    with path.open("rb") as given:
        argv = [str(place.program.with_name("mbstream")), "-x", "-C", str(folder)]
        subprocess.run(argv, stdin=given, check=True, timeout=300)
    argv = [str(place.program), "--no-defaults", "--prepare", f"--target-dir={folder}"]
    subprocess.run(argv, check=True, capture_output=True, timeout=300)


@contextmanager
def restored(place: Place, path: Path, folder: Path) -> Iterator[MysqlServer]:
    """A server that has the backup."""
    options = [*RELAXED, "--event-scheduler=OFF"]
    with server_of(place.binaries, folder, options=options, server_id=7) as server:
        if place.tool == "mariabackup":
            server.stop()
            shutil.rmtree(server.datadir)
            unpacked(place, path, server.datadir)
            server.start()
        else:
            load(server, path)
        yield server


def roll_forward(place: Place, server: MysqlServer, id_: str) -> None:
    place.recovery.to(server, "--latest", f"--from-backup-id={id_}")


def test_backups_under_load_are_restored_and_rolled_forward(place: Place) -> None:
    """Each one by hand from `backup get`; then the server has what the source has."""
    count = int(os.environ.get("BACKUPS_OF_A_TEST", BACKUPS))
    with Load(place.source, seed=7) as writing:
        wait_until(lambda: writing.written > 60, what="there is load")
        found = [place.backup(f"--label=number {n}") for n in range(count)]
    place.source.query("INSERT INTO shop.t VALUES (1000, 1, 'last')")
    place.wait()
    truth = truth_of(place.source)
    assert place.uploads() == []
    assert place.keys("live/test/backups/") == []
    for number, backup in enumerate(found):
        assert backup["reach"]["complete"], backup
        path = place.folder / "backup"
        place.get(backup["id"], path)
        assert path.stat().st_size == backup["stored"]["size"]
        folder = place.folder / f"r{number}"
        with restored(place, path, folder) as server:
            roll_forward(place, server, backup["id"])
            assert truth_of(server) == truth
        shutil.rmtree(folder)


@pytest.fixture
def mysql_place(request: pytest.FixtureRequest, minio: MinioServer, bucket: str) -> Iterator[Place]:
    with placed("mysqldump", request, minio, bucket) as found:
        yield found


def failed(place: Place, *more: str, environment: dict[str, str] | None = None) -> tuple[int, str]:
    """Exit code and message of a run that registers nothing and leaves nothing but its reason."""
    done = command.run(*place.run_argv(*more), **(environment or place.minio.env()))
    assert place.uploads() == []
    assert place.keys("archive/test/base/") == []
    assert place.keys("archive/test/backups/") == []
    return done.returncode, done.stderr


def test_the_policies_are_enough(mysql_place: Place) -> None:
    """Those of the guide: one stores, registers and reads back; the other removes."""
    place = mysql_place
    place.wait()

    def allowed(name: str) -> dict[str, str]:
        text = json.dumps(policy(name, place.bucket)).replace("/prod", "/pre")
        return given(place.minio, json.loads(text.replace(SOURCE, "test")))

    done = command.run(*place.run_argv(), **allowed("backup"))
    assert done.returncode == 0, done.stderr
    (found,) = json.loads(done.stdout)["backups"]
    argv = ["backup", "get", *place.where, found["id"]]
    assert "-- Dump completed" in command.run(*argv, **allowed("backup")).stdout
    remove = ["backup", "remove", *place.where, "--yes", found["id"]]
    assert command.run(*remove, **allowed("backup")).returncode == 6
    place.backup()
    done = command.run(*remove, **allowed("pruner"))
    assert done.returncode == 0, done.stderr
    assert len(place.keys("archive/test/base/")) == 1


LOST = (
    ("CREATE DATABASE SYS", "DROP DATABASE SYS", "leaves out the database SYS"),
    ("CREATE TABLE sys.mine (a INT)", "DROP TABLE sys.mine", "your table sys.mine"),
    (
        "CREATE TABLE shop.z (id INT PRIMARY KEY, at TIMESTAMP, day DATE AS (DATE(at)) STORED)",
        "DROP TABLE shop.z",
        "shop.z: day",
    ),
    (
        "CREATE TABLE shop.z (id INT, `ÄT` TIMESTAMP, s VARCHAR(9) AS (CONCAT('`', `ät`)) STORED)",
        "DROP TABLE shop.z",
        "shop.z: s",
    ),
)
SPATIAL_SYSTEM = (
    "CREATE SPATIAL REFERENCE SYSTEM 990001 NAME 'mine' DEFINITION 'GEOGCS[\"mine\","
    'DATUM["d",SPHEROID["s",6378137,298.257223563]],PRIMEM["Greenwich",0],'
    'UNIT["degree",0.017453292519943278],AXIS["Lat",NORTH],AXIS["Lon",EAST]]\''
)
LOST_OF_MARIADB = (
    (
        (
            "CREATE DATABASE app; CREATE TABLE app.z (d DATETIME, s DATETIME AS "
            "(CONVERT_TZ(d, 'MET', '+00:00')) STORED)"
        ),
        "DROP DATABASE app",
        "app.z: s",
    ),
)
LOST_OF_MYSQL = (
    ("CREATE TABLE shop.z (at TIMESTAMP, KEY k ((HOUR(at))))", "DROP TABLE shop.z", "shop.z: k"),
    ("CREATE TABLESPACE `s\n1` ADD DATAFILE 's.ibd'", "DROP TABLESPACE `s\n1`", "tablespace: s 1;"),
    (
        SPATIAL_SYSTEM,
        "DROP SPATIAL REFERENCE SYSTEM 990001",
        "990001",
    ),
)


@pytest.mark.parametrize("tool", ["mysqldump", "mariadb-dump"])
def test_a_dump_that_would_lose_something_is_refused(
    tool: str, request: pytest.FixtureRequest, minio: MinioServer, bucket: str
) -> None:
    """By the account of the guide, in a zone that is not UTC; what it changes is a warning."""
    lost = (*LOST, *(LOST_OF_MYSQL if tool == "mysqldump" else LOST_OF_MARIADB))
    zone = {"TZ": "Asia/Tokyo"}
    with placed(tool, request, minio, bucket, environment=zone) as place:
        place.wait()
        for make, drop, names in lost:
            place.source.query(*make.split("; "))
            code, said = failed(place)
            assert (code, names in said, f"{tool} is not run" in said) == (8, True, True), said
            place.source.query(drop)
        place.source.query("CREATE TABLE shop.gone (a INT)")
        place.source.query("CREATE VIEW shop.bad AS SELECT a FROM shop.gone")
        place.source.query("DROP TABLE shop.gone")
        code, said = failed(place)
        assert (code, "hint: a view shop.bad is not valid" in said) == (8, True), said
        place.source.query("DROP VIEW shop.bad")
        place.source.query("CREATE TABLE shop.keyed (id INT PRIMARY KEY, f FLOAT)")
        place.source.query("CREATE TABLE shop.bare (n INT, f FLOAT)")
        place.source.query("CREATE TABLE shop.checked (at TIMESTAMP, CHECK (HOUR(at) > 1))")
        place.source.query(
            "CREATE TABLE shop.u (id INT PRIMARY KEY, d DATETIME, y INT AS (YEAR(d)) STORED)"
        )
        if tool == "mysqldump":
            with place.source.connect() as connection, connection.cursor() as cursor:
                cursor.execute("SET restrict_fk_on_non_standard_key = OFF")
                cursor.execute("CREATE TABLE shop.p (a INT, b INT, UNIQUE (a, b))")
                cursor.execute("CREATE TABLE shop.c (a INT, FOREIGN KEY (a) REFERENCES shop.p (a))")
        done = command.run(*place.run_argv(), **place.minio.env())
        assert done.returncode == 0, done.stderr
        assert "without a primary key: shop.bare. " in done.stderr
        assert "six digits: shop.keyed" in done.stderr
        assert "time zone: shop.checked: " in done.stderr
        assert ("shop.c: c_ibfk_1" in done.stderr) == (tool == "mysqldump")


SLOW = """
import sys, time
text = open(sys.argv[1], "rb").read()
body = text.rindex(b"-- Dump completed")
sys.stdout.buffer.write(text[:body])
for _ in range(int(sys.argv[2])):
    sys.stdout.buffer.write(b"-- " + b"%r" % [__import__("os").urandom(1 << 19)] + b"\\n")
sys.stdout.buffer.flush()
open(sys.argv[1] + ".sent", "w").close()
time.sleep(float(sys.argv[3]))
sys.stdout.buffer.write(text[body:])
"""


def slow_argv(place: Place, seconds: float, *more: str, megabytes: int = 20) -> list[str]:
    """A dump that the real program has made, with megabytes more, and a pause before its end."""
    made, script = place.folder / "made.sql", place.folder / "slow.py"
    script.write_text(SLOW)
    if not made.exists():
        options = ["--all-databases", "--single-transaction", "--source-data=2", "--events"]
        argv = [str(place.program), "--no-defaults", f"--socket={place.source.socket}", "-uroot"]
        made.write_bytes(subprocess.run([*argv, *options], check=True, capture_output=True).stdout)
    words = f"{sys.executable} {script} {made} {megabytes} {seconds}"
    run = ["backup", "run", *place.where, "--json", f"--command={words}"]
    return [*run, "--position-from=dump-header", *more]


@pytest.mark.parametrize("stage", ["sending", "waiting for the archive"])
def test_a_run_that_is_killed_leaves_nothing_behind_the_next_one(
    mysql_place: Place, stage: str
) -> None:
    """kill -9: nothing is registered, its program ends, its uploads are aborted by the next run."""
    place = mysql_place
    place.wait()
    argv = slow_argv(place, 600.0 if stage == "sending" else 0.0)
    if stage != "sending":
        (place.folder / "made.sql").unlink()
        place.stream.kill()
        place.source.query("INSERT INTO shop.t VALUES (1, 1, 'not in the archive')")
        argv = slow_argv(place, 0.0)
    run = subprocess.Popen(
        command.argv(*argv),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=command.environment(**place.minio.env()),
    )
    try:
        wait_until((place.folder / "made.sql.sent").exists, what="all but the end is sent")
        wait_until(lambda: len(place.uploads()) == 1, what="there is an upload")
        if stage != "sending":
            wait_until(lambda: children_of(run.pid) == [], what="the program has ended")
    finally:
        (*programs,) = children_of(run.pid)
        run.kill()
        run.wait()
    wait_until(lambda: not any(map(is_alive, programs)), what="its program is gone")
    assert place.keys("archive/test/backups/") == []
    assert place.keys("archive/test/base/") == []
    done = command.run(*place.run_argv(), **place.minio.env())
    assert (done.returncode, "works on" in done.stderr) == (8, True), done.stderr
    make_old(place)
    with StreamProcess(place.folder / "again", place.source, place.minio, place.bucket) as stream:
        if stage != "sending":
            stream.wait_for_event("streaming")
        backup = place.backup()
    assert place.uploads() == []
    assert place.keys("archive/test/base/") == [f"archive/test/base/{backup['id']}/0001"]
    assert place.keys("live/test/backups/") == []


def children_of(pid: int) -> list[int]:
    """The processes that it has started."""
    found = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        found += [int(word) for word in task.read_text().split()]
    return found


def is_alive(pid: int) -> bool:
    try:
        return " Z " not in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False


def make_old(place: Place) -> None:
    """The object of the killed run says that it has failed: five minutes would tell the same."""
    (key,) = place.keys("live/test/backups/")
    with closing(place.minio.client()) as client:
        said = json.loads(place.there.get(f"pre/{key}"))
        assert said["state"] == "running"
        failed = json.dumps({**said, "state": "failed"}).encode()
        client.put_object(Bucket=place.bucket, Key=f"pre/{key}", Body=failed)
