"""A source and targets in several system time zones: nothing is restored as another moment."""

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from binlog2s3.binlog.zone import sampled_days
from binlog2s3.server.connection import Server
from lab.disk import temporary_directory
from lab.get import VERSIONS, ServerBinaries
from lab.mysql import MysqlServer, server_of
from lab.s3 import MinioServer
from tests.login import ROOT
from tests.world.servers import RELAXED
from tests.world.streamed import Streamed, streamed

TOKYO = {"TZ": "Asia/Tokyo"}
UTC_ZONE = {"TZ": "UTC"}
HOURS = 9
VALUES = "SELECT n, UNIX_TIMESTAMP(ts) FROM z.t ORDER BY n"
DEFAULTS = "SELECT n, UNIX_TIMESTAMP(d) FROM z.t ORDER BY n"
EVENT = "SELECT UNIX_TIMESTAMP(EXECUTE_AT) FROM information_schema.EVENTS WHERE EVENT_NAME = 'e'"


class World(Streamed):
    """A source in Tokyo; its history is in the bucket. Places in it: binlog:offset."""

    rows: str
    before_event: str
    values: list[tuple[Any, ...]]
    defaults: list[tuple[Any, ...]]

    @property
    def start(self) -> tuple[str, ...]:
        """Where an empty target begins."""
        place = ("--from-binlog=mysql-bin.000001", "--from-position=4")
        return (*(place if self.is_mariadb else ()), "--stop-target-threads")

    def place(self, reached: str) -> tuple[str, ...]:
        """Where a target of an earlier run, which has reached this place, continues."""
        if not self.is_mariadb:
            return ("--stop-target-threads",)
        name, _, offset = reached.partition(":")
        return (f"--from-binlog={name}", f"--from-position={offset}", "--stop-target-threads")

    def documents(self) -> Iterator[dict[str, Any]]:
        for key in self.there.keys("pre/"):
            if re.search(r"lineage\.json|/entries/|/writers/", key):
                yield json.loads(self.there.get(key))


def place_of(server: MysqlServer) -> str:
    name, size = server.binlogs()[-1]
    return f"{name}:{size}"


@pytest.fixture(scope="module", params=["mysql", "mariadb"])
def world(request: pytest.FixtureRequest, minio: MinioServer) -> Iterator[World]:
    binaries: ServerBinaries = request.getfixturevalue(f"{request.param}_binaries")
    bucket = minio.make_bucket(f"zones-{request.param}")
    with (
        temporary_directory() as directory,
        streamed(binaries, minio, bucket, directory, kind=World, environment=TOKYO) as found,
    ):
        source = found.source
        in_rows = ["SET SESSION binlog_format = ROW"] if found.is_mariadb else []
        source.query("CREATE DATABASE z", "CREATE TABLE z.t (n INT PRIMARY KEY, ts TIMESTAMP NULL)")
        source.query(*in_rows, "INSERT INTO z.t VALUES (1, '2026-06-01 12:00:00')")
        source.query(*in_rows, "INSERT INTO z.t VALUES (2, FROM_UNIXTIME(1780000000))")
        found.rows = place_of(source)
        if found.is_mariadb:  # MIXED, its default: as a statement
            source.query("INSERT INTO z.t VALUES (3, '2026-06-01 12:00:00')")
        source.query("ALTER TABLE z.t ADD d TIMESTAMP NOT NULL DEFAULT '2026-01-01 00:00:00'")
        found.before_event = place_of(source)
        source.query("CREATE EVENT z.e ON SCHEDULE AT '2030-01-01 00:00:00' DO DELETE FROM z.t")
        source.query("FLUSH BINARY LOGS")
        found.wait_archived(1)
        found.wait()
        found.values, found.defaults = source.query(VALUES), source.query(DEFAULTS)
        assert found.stream.terminate() == 0
        source.stop()
        yield found


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


def test_it_stops_before_another_moment_is_stored(world: World, target: MysqlServer) -> None:
    """A plan of rows alone is not stopped; before a statement or an event it is refused.

    With the TZ that the hint names, all is as it was.
    """
    done = world.recovery.to(target, *world.start, f"--to-position={world.rows}")
    (said,) = (one for one in done["plan"]["warnings"] if "time zone" in one)
    assert "UTC+09:00 and UTC+00:00" in said
    assert said.endswith("nothing in the plan depends on that")
    assert target.query(VALUES) == world.values[:2]
    start = world.place(world.rows)
    said = world.recovery.refused(target, *start, "--latest")
    first = "INSERT INTO z.t VALUES (3" if world.is_mariadb else "ALTER TABLE z.t ADD d"
    assert first in said
    assert "depends on the system time zone" in said
    assert target.query(VALUES) == world.values[:2]
    dry = world.recovery.run(target, *start, "--latest", "--dry-run", "--json")
    assert dry.status == 8
    assert any(first in one for one in dry.document["plan"]["warnings"])
    wanted = re.search(r"TZ='([^']+)'", said)
    assert wanted is not None
    in_zone(target, wanted[1])
    world.recovery.to(target, *start, f"--to-position={world.before_event}")
    in_zone(target, "UTC")
    start = world.place(world.before_event)
    said = world.recovery.refused(target, *start, "--latest")
    assert "EVENT" in said
    assert "depends on the system time zone" in said
    in_zone(target, wanted[1])
    done = world.recovery.to(target, *start, "--latest")
    assert not [one for one in done["plan"]["warnings"] if "time zone" in one]
    assert target.query(VALUES) == world.values
    assert target.query(DEFAULTS) == world.defaults


def in_zone(server: MysqlServer, zone: str) -> None:
    """Start it again there."""
    server.environment["TZ"] = zone
    server.restart()


def test_other_values_can_be_accepted(world: World, target: MysqlServer) -> None:
    """Then they are others: nine hours later. The events that came with it are named next time."""
    done = world.recovery.to(target, *world.start, "--latest", "--accept-time-zone")
    (said,) = (one for one in done["plan"]["warnings"] if "--accept-time-zone" in one)
    assert "UTC+09:00 and UTC+00:00" in said
    theirs = dict(target.query(DEFAULTS))
    assert {theirs[n] - ours for n, ours in world.defaults} == {HOURS * 3600}
    wrong = {n for n, ours in world.values if dict(target.query(VALUES))[n] != ours}
    assert wrong == ({3} if world.is_mariadb else set())


@pytest.mark.parametrize("version", ["mysql-5.7.22", "mysql-9", "mariadb-10.11"])
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


@pytest.mark.parametrize("world", ["mariadb"], indirect=True, scope="module")
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
    there = world.minio.make_bucket(f"named-{world.binaries.flavour}")
    with streamed(
        world.binaries, world.minio, there, disk_tmp_path, *tables, environment=dict(UTC_ZONE)
    ) as other:
        other.source.query(
            "CREATE DATABASE z", "CREATE TABLE z.t (n INT PRIMARY KEY, ts TIMESTAMP NULL)"
        )
        other.commit(
            "SET time_zone = 'Test/Zone'",
            "ALTER TABLE z.t ADD d TIMESTAMP NOT NULL DEFAULT '2026-01-01 00:00:00'",
        )
        assert other.stream.terminate() == 0
        pitr = other.recovery
    said = pitr.refused(target, *world.start, "--latest")
    assert "1298" in said
    assert "mysql_tzinfo_to_sql" in said
    assert "--skip-gtid" not in said
    target.query(*tables)
    pitr.to(target, *world.start, "--latest")
    assert target.query("SHOW COLUMNS FROM z.t LIKE 'd'")


def test_a_source_that_was_started_in_another_zone_while_nobody_streamed(
    mysql_binaries: ServerBinaries, minio: MinioServer, bucket: str, disk_tmp_path: Path
) -> None:
    """What it had written before has the zone of then: a target in the new zone is refused."""
    with streamed(mysql_binaries, minio, bucket, disk_tmp_path, environment=dict(TOKYO)) as archive:
        source = archive.source
        archive.commit("CREATE DATABASE z", "CREATE TABLE z.t (n INT PRIMARY KEY)")
        assert archive.stream.terminate() == 0
        source.query("ALTER TABLE z.t ADD d TIMESTAMP NOT NULL DEFAULT '2026-01-01 00:00:00'")
        source.query("INSERT INTO z.t (n) VALUES (1)")
        in_zone(source, "UTC")
        source.query("INSERT INTO z.t (n) VALUES (2)")
        with archive.stream:  # again
            archive.wait()
            archive.wait_archived(1)
            assert archive.stream.terminate() == 0
        target = archive.another()
        in_zone(target, "UTC")
        start = "--stop-target-threads"
        said = archive.recovery.refused(target, start, "--latest")
        assert "ALTER TABLE z.t ADD d" in said
        assert "depends on the system time zone" in said
        in_zone(target, "Asia/Tokyo")
        archive.recovery.to(target, start, "--latest")
        assert target.query(DEFAULTS) == source.query(DEFAULTS)
