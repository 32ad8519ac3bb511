"""A start before the store, the source, or both: waited for, shown, and gone on from by itself."""

import signal
import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing
from itertools import pairwise
from pathlib import Path
from time import monotonic

import pytest

from lab.child import free_port
from lab.disk import temporary_directory
from lab.mysql import MysqlServer
from lab.s3 import MinioServer
from tests import command
from tests.ear import Ear
from tests.integration.asking import Monitor
from tests.integration.bucket import Bucket
from tests.integration.stream_process import StreamProcess
from tests.waiting import wait_until

STORE, SOURCE = "store", "source"
AWAY_SECONDS = 8


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


@pytest.mark.parametrize(
    ("away", "used"),
    [
        ([STORE], False),
        ([SOURCE], False),
        ([STORE, SOURCE], False),
        ([STORE, SOURCE], True),
    ],
    ids=["store", "source", "both", "both with a spool"],
)
def test_a_start_waits(
    mysql: MysqlServer, late_minio: MinioServer, tmp_path: Path, away: list[str], used: bool
) -> None:
    """Ready, alive and unhealthy meanwhile; then it streams, and nobody has touched it."""
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
            wait_until(lambda: has_all(bucket, mysql), 60, "the archive")
            assert stream.terminate() == 0
        write(mysql)
    if STORE in away:
        late_minio.kill()
    if SOURCE in away:
        mysql.kill()
    with (
        Ear(tmp_path / "notify") as ear,
        streamer("late", NOTIFY_SOCKET=ear.address, WATCHDOG_USEC="3000000") as stream,
    ):
        words = "waiting for the store" if STORE in away else "waiting for MySQL"
        wait_until(lambda: ear.lines("READY"), 20, "READY")
        wait_until(lambda: any(s.startswith(words) for s in ear.lines("STATUS")), 20, words)
        begin = monotonic()
        wait_until(lambda: monitor.health().code == 503, 20, "/health")
        trouble = {t["code"] for t in monitor.status()["troubles"] if t["level"] == "critical"}
        assert "starting" in trouble
        assert monitor.get("/metrics")[0] == 200
        if STORE in away:
            wait_until(lambda: len(stream.events("waiting for the store")) >= 2, 30, "said again")
            assert not stream.events("writer"), "nothing is claimed before the bucket was read"
        wait_until(lambda: monotonic() - begin > AWAY_SECONDS, 60, "a while")
        if SOURCE in away:
            mysql.start()
        if STORE in away:
            late_minio.start()
        stream.wait_for_event("streaming", 60)
        if SOURCE in away:
            write(mysql)
        wait_until(lambda: has_all(bucket, mysql), 60, "the archive")
        wait_until(lambda: monitor.health().code == 200, 60, "/health")
        going = ("streaming mysql-bin.", "idle mysql-bin.")
        wait_until(lambda: ear.lines("STATUS")[-1].startswith(going), 20, "its status")
        assert stream.terminate() == 0
    fed = [at for at, said in ear.heard if said == "WATCHDOG=1"]
    assert max(b - a for a, b in pairwise(fed)) < 3
    assert ear.lines("READY") == ["1"]
    assert ear.lines("STOPPING") == ["1"]


def longest_silence(ear: Ear, since: float) -> float:
    """Seconds between two times that the watchdog was fed, from then on."""
    fed = [since, *(at for at, said in ear.heard if said == "WATCHDOG=1" and at > since)]
    return max(b - a for a, b in pairwise([*fed, monotonic()]))


def test_the_watchdog_is_fed_idle_and_without_a_store(
    mysql: MysqlServer, late_minio: MinioServer, tmp_path: Path
) -> None:
    """As long as the loop goes round; a process that stands still is not fed."""
    name = late_minio.make_bucket()
    with (
        Ear() as ear,
        StreamProcess(
            tmp_path / "streamer",
            mysql,
            late_minio,
            name,
            environment={"NOTIFY_SOCKET": ear.address, "WATCHDOG_USEC": "3000000"},
        ) as stream,
    ):
        stream.wait_for_event("new lineage")
        begin = monotonic()
        wait_until(lambda: monotonic() - begin > 4, 30, "a while of idleness")
        assert longest_silence(ear, begin) < 2
        late_minio.kill()
        write(mysql)
        begin = monotonic()
        wait_until(lambda: monotonic() - begin > AWAY_SECONDS, 30, "a while without a store")
        assert longest_silence(ear, begin) < 2
        waiting = "waiting for the store"
        wait_until(lambda: ear.lines("STATUS")[-1].startswith(waiting), 20, "its status")
        stream.process.send_signal(signal.SIGSTOP)
        begin = monotonic()
        wait_until(lambda: monotonic() - begin > 3, 30, "a while of frost")
        assert longest_silence(ear, begin) > 2
        stream.process.send_signal(signal.SIGCONT)
        late_minio.start()
        wait_until(lambda: has_all(Bucket(late_minio, name), mysql), 60, "the archive")
        assert stream.terminate() == 0


@pytest.mark.parametrize("how", ["refuses", "is silent", "has no name"])
def test_sigterm_while_it_waits(
    mysql: MysqlServer, late_minio: MinioServer, tmp_path: Path, how: str
) -> None:
    """It ends with 0, within 10 s, whatever it waits in."""
    with ExitStack() as stack:
        if how == "is silent":
            mute = stack.enter_context(closing(socket.create_server(("127.0.0.1", 0))))
            url = f"http://127.0.0.1:{mute.getsockname()[1]}"
        elif how == "refuses":
            url = f"http://127.0.0.1:{free_port()}"
        else:
            url = "http://nobody.invalid:9000"
        ear = stack.enter_context(Ear())
        stream = stack.enter_context(
            StreamProcess(
                tmp_path / "streamer",
                mysql,
                late_minio,
                "bucket",
                options={"endpoint-url": url},
                environment={"NOTIFY_SOCKET": ear.address},
            )
        )
        wait_until(lambda: ear.lines("READY"), 30, "READY")
        begin = monotonic()
        assert stream.terminate(20) == 0
        assert monotonic() - begin < 10
        assert ear.lines("STOPPING") == ["1"]
        assert "Traceback" not in stream.stderr()


def test_a_source_that_refuses_is_told_behind_the_wait(
    mysql: MysqlServer, late_minio: MinioServer, tmp_path: Path
) -> None:
    """The first start of all, while the store is away: a wrong password still ends it then."""
    name = late_minio.make_bucket()
    late_minio.kill()
    wrong = tmp_path / "password"
    wrong.write_text("Not-The-Secret")
    options = {"mysql-password-file": wrong}
    with StreamProcess(tmp_path / "streamer", mysql, late_minio, name, options=options) as stream:
        stream.wait_for_event("waiting for the store", 30)
        late_minio.start()
        assert stream.wait(60) == 4
        assert "Access denied" in stream.log()[-1]["error"]
    assert Bucket(late_minio, name).keys() == []


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
        wait_until(lambda: has_all(bucket, mysql), 60, "the archive")
        assert stream.terminate() == 0
    put_keys("wrong")
    write(mysql)
    with streamer() as stream:
        line = stream.wait_for_event("waiting for the store", 30)
        assert "SignatureDoesNotMatch" in line["error"]
        put_keys(late_minio.secret_key)
        wait_until(lambda: has_all(bucket, mysql), 60, "the archive")
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
        wait_until(lambda: Bucket(minio, bucket).chunks(), 30, "something in the bucket")
        assert stream.terminate() == 0
    options = {"mysql-password-file": wrong}
    said: list[str] = []

    def refused() -> bool:
        said.append(command.run("health", "--spool", str(stream.spool)).stdout)
        return "Access denied" in said[-1]

    with StreamProcess(place, mysql, minio, bucket, options=options) as stream:
        wait_until(refused, 30, "health tells the refusal")
        assert said[-1].startswith("unhealthy: test: source unreachable")
        assert not any("streaming;" in one or one.endswith("streaming\n") for one in said)
        assert stream.terminate() == 0
