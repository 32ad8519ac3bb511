"""A source and targets in several system time zones: nothing is restored as another moment."""

import json
import os
import re
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from binlog2s3.binlog.zone import sampled_days
from binlog2s3.recover.backup import read_backup
from binlog2s3.server.connection import Server
from lab.disk import temporary_directory
from lab.get import VERSIONS, ServerBinaries
from lab.mysql import MysqlServer, server_of
from lab.s3 import MinioServer
from tests import command
from tests.integration.apply_pair import RELAXED
from tests.integration.bucket import Bucket
from tests.integration.recovery_command import Recovery, read_only
from tests.integration.recovery_truth import dump_of
from tests.integration.recovery_world import wait_durable
from tests.integration.stream_process import StreamProcess
from tests.login import ROOT
from tests.waiting import wait_until

TOKYO = {"TZ": "Asia/Tokyo"}
UTC_ZONE = {"TZ": "UTC"}
HOURS = 9
VALUES = "SELECT n, UNIX_TIMESTAMP(ts) FROM z.t ORDER BY n"
DEFAULTS = "SELECT n, UNIX_TIMESTAMP(d) FROM z.t ORDER BY n"
EVENT = "SELECT UNIX_TIMESTAMP(EXECUTE_AT) FROM information_schema.EVENTS WHERE EVENT_NAME = 'e'"


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """A source in Tokyo, gone; its history is in the bucket. Places in it: binlog:offset."""

    binaries: ServerBinaries
    minio: MinioServer
    bucket: str
    pitr: Recovery
    rows: str
    before_event: str
    values: list[tuple[Any, ...]]
    defaults: list[tuple[Any, ...]]

    @property
    def is_mariadb(self) -> bool:
        return self.binaries.flavour == "mariadb"

    @property
    def start(self) -> tuple[str, ...]:
        """Where an empty target begins."""
        place = ("--from-binlog=mysql-bin.000001", "--from-position=4")
        return (*(place if self.is_mariadb else ()), "--stop-target-threads")

    def place(self, server: MysqlServer) -> tuple[str, ...]:
        """Where a target of an earlier run continues."""
        if not self.is_mariadb:
            return ("--stop-target-threads",)
        name, _, offset = self.before_event.partition(":")
        return (f"--from-binlog={name}", f"--from-position={offset}", "--stop-target-threads")

    def documents(self) -> Iterator[dict[str, Any]]:
        there = Bucket(self.minio, self.bucket)
        for key in there.keys("pre/"):
            if re.search(r"lineage\.json|/entries/|/writers/", key):
                yield json.loads(there.get(key))


def place_of(server: MysqlServer) -> str:
    name, size = server.binlogs()[-1]
    return f"{name}:{size}"


@pytest.fixture(scope="module", params=["mysql", "mariadb"])
def world(request: pytest.FixtureRequest, minio: MinioServer) -> Iterator[World]:
    binaries: ServerBinaries = request.getfixturevalue(f"{request.param}_binaries")
    bucket = minio.make_bucket(f"zones-{request.param}")
    there = Bucket(minio, bucket)
    with ExitStack() as stack:
        directory = stack.enter_context(temporary_directory())
        source = stack.enter_context(
            server_of(binaries, directory / "source", options=RELAXED, environment=TOKYO)
        )
        stream = stack.enter_context(StreamProcess(directory / "stream", source, minio, bucket))
        is_mariadb = binaries.flavour == "mariadb"
        in_rows = ["SET SESSION binlog_format = ROW"] if is_mariadb else []
        source.query("CREATE DATABASE z", "CREATE TABLE z.t (n INT PRIMARY KEY, ts TIMESTAMP NULL)")
        source.query(*in_rows, "INSERT INTO z.t VALUES (1, '2026-06-01 12:00:00')")
        source.query(*in_rows, "INSERT INTO z.t VALUES (2, FROM_UNIXTIME(1780000000))")
        rows = place_of(source)
        if is_mariadb:  # MIXED, its default: as a statement
            source.query("INSERT INTO z.t VALUES (3, '2026-06-01 12:00:00')")
        source.query("ALTER TABLE z.t ADD d TIMESTAMP NOT NULL DEFAULT '2026-01-01 00:00:00'")
        before_event = place_of(source)
        source.query("CREATE EVENT z.e ON SCHEDULE AT '2030-01-01 00:00:00' DO DELETE FROM z.t")
        source.query("FLUSH BINARY LOGS")
        wait_until(there.archived, what="the first binlog is archived")
        wait_durable(stream, there, source)
        values, defaults = source.query(VALUES), source.query(DEFAULTS)
        assert stream.terminate() == 0
        yield World(
            binaries=binaries,
            minio=minio,
            bucket=bucket,
            pitr=Recovery(minio, bucket, read_only(minio)),
            rows=rows,
            before_event=before_event,
            values=[*values],
            defaults=[*defaults],
        )


@pytest.fixture
def target(world: World) -> Iterator[MysqlServer]:
    """Empty, and in UTC."""
    with (
        temporary_directory() as directory,
        server_of(
            world.binaries, directory, server_id=2, options=RELAXED, environment=dict(UTC_ZONE)
        ) as server,
    ):
        yield server


def test_the_bucket_has_the_sources_zone(world: World) -> None:
    """In the lineage, the entry, and the writer's object: by its offset."""
    told = [document.get("time_zone") for document in world.documents()]
    assert len(told) == 3
    year = datetime.now(UTC).year
    assert told == [{"name": "SYSTEM", "offsets": {f"{year}-01-01": HOURS * 3600}}] * 3


def test_rows_are_applied_in_any_zone(world: World, target: MysqlServer) -> None:
    """A plan of rows alone is not stopped; it says that the zones differ."""
    done = world.pitr.to(target, *world.start, f"--to-position={world.rows}")
    (said,) = (one for one in done["plan"]["warnings"] if "time zone" in one)
    assert "UTC+09:00 and UTC+00:00" in said
    assert said.endswith("nothing in the plan depends on that")
    assert target.query(VALUES) == world.values[:2]


def test_it_stops_before_another_moment_is_stored(world: World, target: MysqlServer) -> None:
    """Refused before anything is applied; with the TZ that the hint names, all is as it was."""
    said = world.pitr.refused(target, *world.start, "--latest")
    first = "INSERT INTO z.t VALUES (3" if world.is_mariadb else "ALTER TABLE z.t ADD d"
    assert first in said
    assert "depends on the system time zone" in said
    assert target.query("SHOW DATABASES LIKE 'z'") == []
    dry = world.pitr.run(target, *world.start, "--latest", "--dry-run", "--json")
    assert dry.status == 0
    assert any(first in one for one in dry.document["plan"]["warnings"])
    wanted = re.search(r"TZ='([^']+)'", said)
    assert wanted is not None
    target.environment["TZ"] = wanted[1]
    target.restart()
    done = world.pitr.to(target, *world.start, "--latest")
    assert not [one for one in done["plan"]["warnings"] if "time zone" in one]
    assert target.query(VALUES) == world.values
    assert target.query(DEFAULTS) == world.defaults


def test_an_event_stops_it_too(world: World, target: MysqlServer) -> None:
    """A target that was brought up to it in the right zone, and restarted in another one."""
    target.environment["TZ"] = "Asia/Tokyo"
    target.restart()
    world.pitr.to(target, *world.start, f"--to-position={world.before_event}")
    target.environment["TZ"] = "UTC"
    target.restart()
    said = world.pitr.refused(target, *world.place(target), "--latest")
    assert "EVENT" in said
    assert "depends on the system time zone" in said


def test_other_values_can_be_accepted(world: World, target: MysqlServer) -> None:
    """Then they are others: nine hours later. The events that came with it are named next time."""
    done = world.pitr.to(target, *world.start, "--latest", "--accept-time-zone")
    (said,) = (one for one in done["plan"]["warnings"] if "--accept-time-zone" in one)
    assert "UTC+09:00 and UTC+00:00" in said
    theirs = dict(target.query(DEFAULTS))
    assert {theirs[n] - ours for n, ours in world.defaults} == {HOURS * 3600}
    wrong = {n for n, ours in world.values if dict(target.query(VALUES))[n] != ours}
    assert wrong == ({3} if world.is_mariadb else set())


def test_files_for_a_server_that_nobody_asks(world: World, tmp_path: Path) -> None:
    """The README names the transaction, and the TZ that its server needs."""
    start = ("--from-binlog=mysql-bin.000001", "--from-position=4")
    done = world.pitr.run(None, *start, "--latest", f"--output-dir={tmp_path / 'out'}")
    assert done.status == 0, done.stderr
    said = (tmp_path / "out" / "README.txt").read_text()
    assert "depends on the system time zone, and the source's is UTC+09:00" in said
    assert "TZ='<+0900>-09:00'" in said


def test_a_drill_is_in_the_sources_zone(world: World, tmp_path: Path) -> None:
    """Wherever it runs: the values are the source's, and so is the event's time."""
    words = ["--source=test", f"--s3-url=s3://{world.bucket}/pre", "--region=us-east-1"]
    words += [f"--endpoint-url={world.minio.endpoint_url}", "--addressing-style=path"]
    start = ["--binlog=mysql-bin.000001", "--position=4"]
    add = command.run("backup", "add", *words, *start, "--label=empty", **world.minio.env())
    assert add.returncode == 0, add.stderr
    (moment,) = (ours for n, ours in world.values if n == len(world.values))
    checks = tmp_path / "check.sql"
    when = int(datetime(2030, 1, 1, tzinfo=ZoneInfo("Asia/Tokyo")).timestamp())
    checks.write_text(
        f"SELECT UNIX_TIMESTAMP(ts) = {moment} FROM z.t WHERE n = {len(world.values)};\n"
        f"SELECT MIN(UNIX_TIMESTAMP(d)) = {world.defaults[0][1]} FROM z.t;\n"
        f"SELECT UNIX_TIMESTAMP(EXECUTE_AT) = {when} FROM information_schema.EVENTS "
        "WHERE EVENT_NAME = 'e';\n"
    )
    with temporary_directory() as work:
        words += [f"--mysqld={world.binaries.server}", f"--work-dir={work}", "--ionice=none"]
        words += ["--mysqld-option=--user=root"] if os.geteuid() == 0 else []
        done = command.run(
            "drill",
            *words,
            "--restore-command=true",
            "--trust-restore-command",  # an empty server shows nothing of a backup
            "--restore-into=server",
            f"--check-sql={checks}",
            **world.minio.env(),
            TZ="UTC",
        )
    assert done.returncode == 0, done.stderr
    assert "time zone" not in done.stderr


@pytest.mark.parametrize("version", VERSIONS)
def test_every_server_tells_its_zone(version: str, disk_tmp_path: Path) -> None:
    """With daylight saving; the session stays as it was."""
    zone, year = ZoneInfo("Europe/Berlin"), 2026
    with (
        server_of(
            VERSIONS[version](), disk_tmp_path, options=RELAXED, environment={"TZ": zone.key}
        ) as server,
        Server(lambda: replace(ROOT, socket=str(server.socket))) as asked,
    ):
        before = asked.rows("SELECT @@session.time_zone AS zone")
        found = asked.time_zone(year)
        assert asked.rows("SELECT @@session.time_zone AS zone") == before
    assert found is not None
    assert found.name == "SYSTEM"
    for day, offset in zip(sampled_days(year), found.sampled, strict=True):
        moment = datetime(day.year, day.month, day.day, tzinfo=UTC)
        said = moment.astimezone(zone).utcoffset()
        assert said is not None
        assert offset == said.total_seconds()


def test_dumps_that_set_no_zone(world: World, target: MysqlServer, tmp_path: Path) -> None:
    """--skip-tz-utc and --compact; a dump as usual has no such warning."""
    target.query("CREATE DATABASE d", "CREATE TABLE d.t (ts TIMESTAMP NULL)")
    found = {}
    for option in ("--opt", "--skip-tz-utc", "--compact"):
        path = tmp_path / f"dump{option}.sql"
        dump_of(target, path, option)
        warnings = read_backup(path).warnings
        found[option] = [one for one in warnings if "does not set a time zone" in one]
    assert {option: len(said) for option, said in found.items()} == {
        "--opt": 0,
        "--skip-tz-utc": 1,
        "--compact": 1,
    }


def test_a_zone_that_the_target_does_not_know(
    world: World, target: MysqlServer, disk_tmp_path: Path
) -> None:
    """Error 1298: the hint is to load the tables, and then the same command continues."""
    tables = [
        "SET sql_log_bin = 0",
        "INSERT INTO mysql.time_zone VALUES (99, 'N')",
        "INSERT INTO mysql.time_zone_name VALUES ('Test/Zone', 99)",
        "INSERT INTO mysql.time_zone_transition_type VALUES (99, 0, 10800, 0, 'TST')",
    ]
    minio, there = world.minio, world.minio.make_bucket(f"named-{world.binaries.flavour}")
    with (
        server_of(
            world.binaries, disk_tmp_path / "source", options=RELAXED, environment=dict(UTC_ZONE)
        ) as source,
        StreamProcess(disk_tmp_path / "stream", source, minio, there) as stream,
    ):
        source.query(*tables)
        source.query("CREATE DATABASE z", "CREATE TABLE z.t (n INT PRIMARY KEY, ts TIMESTAMP NULL)")
        source.query(
            "SET time_zone = 'Test/Zone'",
            "ALTER TABLE z.t ADD d TIMESTAMP NOT NULL DEFAULT '2026-01-01 00:00:00'",
        )
        wait_durable(stream, Bucket(minio, there), source)
        assert stream.terminate() == 0
    pitr = Recovery(minio, there, read_only(minio))
    said = pitr.refused(target, *world.start, "--latest")
    assert "1298" in said
    assert "mysql_tzinfo_to_sql" in said
    assert "--skip-gtid" not in said
    target.query(*tables)
    pitr.to(target, *world.start, "--latest")
    assert target.query("SHOW COLUMNS FROM z.t LIKE 'd'")


@pytest.mark.parametrize("flavour", ["mysql", "mariadb"])
def test_a_source_that_was_started_in_another_zone_while_nobody_streamed(
    flavour: str, request: pytest.FixtureRequest, minio: MinioServer, bucket: str
) -> None:
    """What it had written before has the zone of then: a target in the new zone is refused."""
    binaries: ServerBinaries = request.getfixturevalue(f"{flavour}_binaries")
    there = Bucket(minio, bucket)
    with ExitStack() as stack:
        directory = stack.enter_context(temporary_directory())
        source = stack.enter_context(
            server_of(binaries, directory / "source", options=RELAXED, environment=dict(TOKYO))
        )
        with StreamProcess(directory / "stream", source, minio, bucket) as stream:
            source.query("CREATE DATABASE z", "CREATE TABLE z.t (n INT PRIMARY KEY)")
            wait_durable(stream, there, source)
            assert stream.terminate() == 0
        source.query("ALTER TABLE z.t ADD d TIMESTAMP NOT NULL DEFAULT '2026-01-01 00:00:00'")
        source.query("INSERT INTO z.t (n) VALUES (1)")
        source.environment.update(UTC_ZONE)
        source.restart()
        source.query("INSERT INTO z.t (n) VALUES (2)")
        with StreamProcess(directory / "stream", source, minio, bucket) as stream:
            wait_durable(stream, there, source)
            wait_until(there.archived, what="the first binlog is archived")
            assert stream.terminate() == 0
        target = stack.enter_context(
            server_of(
                binaries,
                directory / "target",
                server_id=2,
                options=RELAXED,
                environment=dict(UTC_ZONE),
            )
        )
        pitr = Recovery(minio, bucket, read_only(minio))
        place = ("--from-binlog=mysql-bin.000001", "--from-position=4")
        start = (*(place if flavour == "mariadb" else ()), "--stop-target-threads")
        said = pitr.refused(target, *start, "--latest")
        assert "ALTER TABLE z.t ADD d" in said
        assert "depends on the system time zone" in said
        target.environment.update(TOKYO)
        target.restart()
        pitr.to(target, *start, "--latest")
        assert target.query(DEFAULTS) == source.query(DEFAULTS)
