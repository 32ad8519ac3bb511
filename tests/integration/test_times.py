"""`--to-time` on servers whose times lie: sessions that set theirs, and a clock that is wrong.

MariaDB, and MySQL before 8.0.1, say when a statement began; `SET timestamp` says it for them.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from lab.get import VERSIONS
from lab.mysql import MysqlServer, faketime, server_of
from lab.s3 import MinioServer
from tests import command
from tests.integration.asking import Monitor
from tests.integration.bucket import Bucket
from tests.integration.stream_process import StreamProcess
from tests.waiting import wait_until
from tests.world.archive import wait_durable
from tests.world.commands import Recovery, read_only, where
from tests.world.servers import flush

LIE = 2_145_916_800
"""2038"""
FROM_THE_BEGINNING = ("--from-binlog=mysql-bin.000001", "--from-position=4", "--dry-run", "--json")


def now(server: MysqlServer) -> datetime:
    """By the server's clock."""
    return datetime.fromtimestamp(float(server.query("SELECT UNIX_TIMESTAMP(NOW(6))")[0][0]), UTC)


def seconds_pass(server: MysqlServer, seconds: float = 2.1) -> datetime:
    """A time after which, and before which, it has committed nothing in its second."""
    begin = now(server)
    wait_until(lambda: now(server) >= begin + timedelta(seconds=seconds), what="its clock")
    return begin + timedelta(seconds=seconds / 2)


def told(minio: MinioServer, bucket: str, what: str, *arguments: str) -> Any:
    """The JSON of a command."""
    words = [*where(minio, bucket), "--json", *arguments]
    done = command.run(what, *words, **read_only(minio))
    assert done.stdout, done.stderr
    return json.loads(done.stdout)


class Liar:
    """A streamed server with the rows 1 to 6: 2 says 2038, and 4 says 2000."""

    def __init__(
        self, server: MysqlServer, directory: Path, minio: MinioServer, bucket: str
    ) -> None:
        monitor, there = Monitor(), Bucket(minio, bucket)
        self.pitr = Recovery(minio, bucket, read_only(minio))
        server.query("CREATE DATABASE d", "CREATE TABLE d.t (n INT PRIMARY KEY)")
        with (
            StreamProcess(directory, server, minio, bucket, options=monitor.options) as stream,
            closing(server.connect()) as session,
        ):

            def do(*statements: str) -> None:
                with session.cursor() as cursor:
                    for statement in statements:
                        cursor.execute(statement)
                session.commit()

            do("INSERT INTO d.t VALUES (1)")
            self.between = seconds_pass(server)
            do(f"SET timestamp = {LIE}", "INSERT INTO d.t VALUES (2)")
            do("SET timestamp = DEFAULT", "INSERT INTO d.t VALUES (3)")
            do("SET timestamp = 946684800", "INSERT INTO d.t VALUES (4)")
            wait_durable(stream, there, server)
            self.open = monitor.wait_for(lambda status: status["lag"]["seconds"] == 0)
            self.open_metrics = monitor.get("/metrics")[1].decode()
            self.open_refusal = self.refusal(self.between)
            do("SET timestamp = DEFAULT", "INSERT INTO d.t VALUES (5)")
            flush(server)
            do("INSERT INTO d.t VALUES (6)")
            self.after = seconds_pass(server)
            wait_durable(stream, there, server)
            wait_until(there.archived, what="the first binlog is archived")
            self.archived = monitor.wait_for(
                lambda status: datetime.fromisoformat(status["covered_until"]) >= self.after
            )
            assert stream.terminate() == 0

    def refusal(self, at: datetime) -> str:
        """What pitr says to this goal."""
        return self.pitr.refused(None, *FROM_THE_BEGINNING, f"--to-time={at.isoformat()}")


@pytest.fixture(params=["mariadb-10.11", "mysql-5.7.22"])
def liar(
    request: pytest.FixtureRequest, minio: MinioServer, bucket: str, disk_tmp_path: Path
) -> Iterator[Liar]:
    with server_of(VERSIONS[request.param](), disk_tmp_path / "server") as server:
        yield Liar(server, disk_tmp_path / "stream", minio, bucket)


@pytest.mark.full("mysql-5.7.22")
def test_sessions_that_set_their_time(liar: Liar, minio: MinioServer, bucket: str) -> None:
    """No row is left out in silence, no goal counts as reached, nothing says 2038."""
    hour = datetime.now(UTC) + timedelta(hours=1)
    for said in (liar.open_refusal, liar.refusal(liar.between), liar.refusal(liar.after)):
        assert "is ambiguous" in said
        assert "2038-01-01" in said
        assert "--accept-times" in said
    assert "is not reached" in liar.refusal(hour)
    accepted = liar.pitr.run(
        None, *FROM_THE_BEGINNING, "--accept-times", f"--to-time={liar.between.isoformat()}"
    ).document["plan"]
    assert [one["committed"][:4] for one in accepted["left_out"][:1]] == ["2038"]
    assert [one["changes"][0]["table"] for one in accepted["disorder"]] == ["d.t"]
    for status in (liar.open, liar.archived, told(minio, bucket, "status", "--source=test")):
        assert datetime.fromisoformat(status["latest"]) < hour
    (latest,) = [
        float(line.rpartition(" ")[2])
        for line in liar.open_metrics.splitlines()
        if line.startswith("binlog2s3_latest_recoverable_timestamp_seconds")
    ]
    assert latest < hour.timestamp()
    (lineage,) = told(minio, bucket, "list")["sources"][0]["lineages"]
    first = lineage["binlogs"][0]
    assert first["greatest_commit_us"] == LIE * 1_000_000
    assert first["reached_us"] < hour.timestamp() * 1e6
    (line,) = told(minio, bucket, "verify")["sources"][0]["recoverable"]
    assert datetime.fromisoformat(line["to"]) < hour


def test_a_clock_that_is_ahead(
    minio: MinioServer, bucket: str, disk_tmp_path: Path, faketime_library: Path
) -> None:
    """Its exact times are all later than the receipt: asked about, and right by its own clock."""
    clock = faketime(faketime_library, "+1h")
    place, there = disk_tmp_path / "server", Bucket(minio, bucket)
    pitr = Recovery(minio, bucket, read_only(minio))
    with (
        MysqlServer(VERSIONS["mysql-9"](), place, environment=clock) as server,
        StreamProcess(disk_tmp_path / "stream", server, minio, bucket) as stream,
    ):
        server.query("CREATE DATABASE d", "CREATE TABLE d.t (n INT PRIMARY KEY)")
        server.query("INSERT INTO d.t VALUES (1)")
        between = seconds_pass(server)
        server.query("INSERT INTO d.t VALUES (2)")
        flush(server)
        server.query("INSERT INTO d.t VALUES (3)")
        wait_durable(stream, there, server)
        assert stream.terminate() == 0

    def asked(at: datetime, *more: str) -> Mapping[str, Any] | str:
        goal = f"--to-time={at.isoformat()}"
        if not more:
            return pitr.refused(None, *FROM_THE_BEGINNING, goal)
        plan = pitr.run(None, *FROM_THE_BEGINNING, goal, *more).document["plan"]
        assert isinstance(plan, dict)
        return plan

    real = between - timedelta(hours=1)
    said = str(asked(between))
    assert "is not reached" in said
    assert "was received by" in said
    assert "--accept-times" in said
    assert "archive begins" in str(asked(real))
    plan = asked(between, "--accept-times")
    assert isinstance(plan, dict)
    assert plan["transactions"] == 3
