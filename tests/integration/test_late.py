"""A start before the store, the source, or both: waited for, shown, and gone on from by itself."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from http.client import HTTPException
from pathlib import Path
from typing import Any

import pytest

from lab.disk import temporary_directory
from lab.mysql import MysqlServer
from lab.s3 import MinioServer
from tests import command
from tests.ear import Ear
from tests.integration.asking import Monitor
from tests.integration.bucket import Bucket
from tests.integration.stream_process import StreamProcess
from tests.relay import Relay
from tests.waiting import wait_until

WATCHED = {"WATCHDOG_USEC": "3000000"}  # then it is fed twice a second


@pytest.fixture
def late_minio(minio_binary: Path) -> Iterator[MinioServer]:
    """One that can be stopped."""
    with temporary_directory() as directory, MinioServer(minio_binary, directory) as server:
        yield server


def write(server: MysqlServer) -> None:
    """Two binlogs that are closed, and one that is open."""
    server.query("CREATE DATABASE IF NOT EXISTS shop", "CREATE TABLE IF NOT EXISTS shop.t (n INT)")
    for number in range(3):
        server.query(f"INSERT INTO shop.t VALUES ({number})")
        if number < 2:
            server.query("FLUSH BINARY LOGS")


def has_all(bucket: Bucket, server: MysqlServer) -> bool:
    """Whether every closed binlog is archived, byte for byte."""
    closed = [name for name, _ in server.binlogs()][:-1]
    if bucket.archived() != closed:
        return False
    there = bucket.binlogs()
    for name in closed:
        assert there[name] == (server.datadir / name).read_bytes()
    return True


def answers(monitor: Monitor, path: str) -> int:
    """The code, 0 where there is none: a busy streamer may not come to it in time."""
    try:
        return monitor.get(path)[0]
    except (OSError, HTTPException):
        return 0


@pytest.mark.gate("both")
@pytest.mark.own_server("it is stopped")
@pytest.mark.parametrize("used", [False, True], ids=["both", "both with a spool"])
def test_a_start_waits(
    mysql: MysqlServer, late_minio: MinioServer, tmp_path: Path, *, used: bool
) -> None:
    """Without store and source: ready, alive and unhealthy; then it streams, touched by nobody."""
    name, monitor = late_minio.make_bucket(), Monitor()
    bucket = Bucket(late_minio, name)

    def streamer(what: str, **environment: str) -> StreamProcess:
        return StreamProcess(
            tmp_path / what,
            mysql,
            late_minio,
            name,
            options={**monitor.options, "spool": tmp_path / "spool"},
            environment=environment,
        )

    write(mysql)
    if used:
        with streamer("first") as stream:
            wait_until(lambda: has_all(bucket, mysql), what="the archive")
            assert stream.terminate() == 0
        write(mysql)
    late_minio.kill()
    mysql.kill()
    with (
        Ear(tmp_path / "notify") as ear,
        streamer("late", NOTIFY_SOCKET=ear.address, **WATCHED) as stream,
    ):
        words = "waiting for the store"
        wait_until(lambda: ear.lines("READY"), what="READY")
        wait_until(lambda: any(s.startswith(words) for s in ear.lines("STATUS")), what=words)
        wait_until(lambda: monitor.health().code == 503, what="/health")
        monitor.wait_for(lambda told: "starting" in critical(told), what="the start is critical")
        wait_until(lambda: answers(monitor, "/metrics") == 200, what="/metrics")
        wait_until(lambda: len(stream.events("waiting for the store")) >= 2, what="said again")
        assert not stream.events("this process is the writer"), "the bucket was not read yet"
        ear.wait_until_fed(12)
        mysql.start()
        late_minio.start()
        stream.wait_for_event("streaming")
        write(mysql)
        wait_until(lambda: has_all(bucket, mysql), what="the archive")
        wait_until(lambda: monitor.health().code == 200, what="/health")
        going = ("streaming mysql-bin.", "idle mysql-bin.")
        wait_until(lambda: ear.lines("STATUS")[-1].startswith(going), what="its status")
        ear.wait_until_fed(4)
        assert stream.terminate() == 0
    assert ear.lines("READY") == ["1"]
    assert ear.lines("STOPPING") == ["1"]


def critical(told: Mapping[str, Any]) -> set[str]:
    """The codes of what is critical in a status."""
    return {trouble["code"] for trouble in told["troubles"] if trouble["level"] == "critical"}


def test_sigterm_while_it_waits(
    mysql: MysqlServer, late_minio: MinioServer, tmp_path: Path
) -> None:
    """It ends with 0 in the middle of an answer that takes minutes, and has claimed nothing."""
    bucket = late_minio.make_bucket()
    with ExitStack() as stack:
        relay = stack.enter_context(Relay(late_minio.endpoint_url))
        relay.drips = True
        ear = stack.enter_context(Ear())
        stream = stack.enter_context(
            StreamProcess(
                tmp_path / "streamer",
                mysql,
                late_minio,
                bucket,
                options={"endpoint-url": relay.url},
                environment={"NOTIFY_SOCKET": ear.address},
            )
        )
        wait_until(lambda: ear.lines("READY"), what="READY")
        wait_until(lambda: relay.dripping, what="the answer begins")
        assert stream.terminate() == 0
        assert ear.lines("STOPPING") == ["1"]
        assert "Traceback" not in stream.stderr()
    assert Bucket(late_minio, bucket).keys() == []


def test_a_spool_waits_for_a_store_that_refuses(
    mysql: MysqlServer, late_minio: MinioServer, tmp_path: Path
) -> None:
    """Keys that are wrong for a while end no start of a spool that has something."""
    name = late_minio.make_bucket()
    keys = tmp_path / "keys"

    def put_keys(secret: str) -> None:
        keys.write_text(
            f"[default]\naws_access_key_id={late_minio.access_key}\n"
            f"aws_secret_access_key={secret}\n"
        )

    environment = {
        "AWS_ACCESS_KEY_ID": None,
        "AWS_SECRET_ACCESS_KEY": None,
        "AWS_SHARED_CREDENTIALS_FILE": str(keys),
    }

    def streamer() -> StreamProcess:
        return StreamProcess(
            tmp_path / "streamer", mysql, late_minio, name, environment=environment
        )

    bucket = Bucket(late_minio, name)
    put_keys(late_minio.secret_key)
    write(mysql)
    with streamer() as stream:
        wait_until(lambda: has_all(bucket, mysql), what="the archive")
        assert stream.terminate() == 0
    put_keys("wrong")
    write(mysql)
    with streamer() as stream:
        line = stream.wait_for_event("waiting for the store")
        assert "SignatureDoesNotMatch" in line["error"]
        put_keys(late_minio.secret_key)
        wait_until(lambda: has_all(bucket, mysql), what="the archive")
        assert stream.terminate() == 0


def test_a_start_with_a_wrong_password_never_says_that_it_streams(
    mysql: MysqlServer, minio: MinioServer, bucket: str, tmp_path: Path
) -> None:
    """Whoever restarts it and looks once must not take what was durable before for a success."""
    wrong = tmp_path / "password"
    wrong.write_text("Not-The-Secret")
    place = tmp_path / "streamer"
    mysql.query("CREATE DATABASE shop")
    with StreamProcess(place, mysql, minio, bucket) as stream:
        stream.wait_for_event("streaming")
        wait_until(lambda: Bucket(minio, bucket).chunks(), what="something in the bucket")
        assert stream.terminate() == 0
    options = {"mysql-password-file": wrong}
    said: list[str] = []

    def refused() -> bool:
        said.append(command.run("health", "--spool", str(stream.spool)).stdout)
        unreachable = said[-1].startswith("unhealthy: test: source unreachable")
        return unreachable and "Access denied" in said[-1]

    with StreamProcess(place, mysql, minio, bucket, options=options) as stream:
        wait_until(refused, what="health tells the refusal")
        assert not any("streaming;" in one or one.endswith("streaming\n") for one in said)
        assert stream.terminate() == 0
