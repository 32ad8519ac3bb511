"""What the bucket alone says of a real streamer: idle, stuck, dead and stopped are four things."""

import threading
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import boto3
import pytest

from binlog2s3.status.from_bucket import look, look_all
from binlog2s3.status.model import Status
from binlog2s3.store.s3 import S3Store, StoreConfig
from binlog2s3.workers import Workers
from lab.mysql import MysqlServer
from lab.s3 import REGION, MinioServer
from tests.integration.stream_process import StreamProcess
from tests.timed import PATIENT_END
from tests.waiting import wait_until

TARGET = "s3://bucket/pre"


@pytest.fixture
def store(minio: MinioServer, bucket: str) -> Iterator[S3Store]:
    """The bucket, as a command on another machine opens it."""
    session = boto3.session.Session(minio.access_key, minio.secret_key, region_name=REGION)
    config = StoreConfig(bucket=bucket, endpoint_url=minio.endpoint_url, addressing_style="path")
    with closing(S3Store(config, stop=threading.Event(), session=lambda **_: session)) as opened:
        yield opened


def seen(store: S3Store, *, later: float = 0.0) -> Status:
    """The source as it looks now, or would so many seconds later."""
    now = datetime.now(UTC) + timedelta(seconds=later)
    return look(store, "pre", "test", TARGET, now=now)


def first_rows(mysql: MysqlServer) -> None:
    mysql.query(
        "CREATE DATABASE d", "CREATE TABLE d.t (i INT PRIMARY KEY)", "INSERT INTO d.t VALUES (1)"
    )


def settled(stream: StreamProcess, mysql: MysqlServer, store: S3Store) -> Status:
    """The source as it looks when all is well, all durable, and the heartbeat says so."""

    def is_idle() -> Status | None:
        assert stream.process.poll() is None, stream.stderr()
        status = seen(store)
        name, size = mysql.binlogs()[-1]
        durable = status.durable
        there = durable is not None and (str(durable.binlog), durable.offset) == (name, size)
        known = status.server.position is not None and status.server.position.offset == size
        well = status.state == "idle" and not status.troubles
        return status if there and known and well else None

    return wait_until(is_idle, what="idle, and all is durable") or seen(store)


@pytest.mark.gate
def test_a_streamer_that_stopped_says_so(
    mysql: MysqlServer, minio: MinioServer, bucket: str, disk_tmp_path: Path, store: S3Store
) -> None:
    """SIGTERM: it is not dead, at once and hours later; all that it knew of is durable."""
    first_rows(mysql)
    with StreamProcess(disk_tmp_path, mysql, minio, bucket, timing=PATIENT_END) as stream:
        stream.wait_for_event("streaming")
        settled(stream, mysql, store)
        mysql.query("INSERT INTO d.t SELECT MAX(i) + 1 FROM d.t")
        assert stream.terminate() == 0
    for later in (0, 36_000):
        status = seen(store, later=later)
        assert (status.state, status.healthy) == ("stopped", False)
        assert [trouble.code for trouble in status.troubles] == ["stopped"]
        assert status.lag.seconds is not None
        assert status.lag.seconds >= later
    (found,) = look_all(store, "pre", TARGET, Workers(2), now=datetime.now(UTC))
    assert (found.source, found.state, found.durable) == ("test", "stopped", status.durable)
