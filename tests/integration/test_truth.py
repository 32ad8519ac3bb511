"""The truth table: what breaks is told, and nothing else is.

Each row is a real stream on which a writer commits, and one fault: /health turns to 503, the state
is none of the well ones, the lag rises, and when the fault is gone all of it comes back. In
production that takes up to 90 seconds (binlog2s3/config/timing.py); here the streamer hurries.
"""

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from binlog2s3.config.outside import DEFAULT, Timing
from lab.fault import Answer, on
from lab.mysql import MysqlServer
from lab.proxy import RecordingProxy
from lab.s3 import MinioServer
from lab.tcp import Switch
from lab.toxiproxy import Toxiproxy
from tests.integration.asking import Commits, Monitor, Watching, told
from tests.integration.bucket import Bucket
from tests.integration.stream_process import StreamProcess
from tests.integration.streaming import MB, wait_until_archived, write
from tests.integration.test_disk import MIB, Disk, commit_large, large_server
from tests.timed import hurried
from tests.waiting import wait_until

__all__ = ["large_server"]

RELIEF_SECONDS = 90
QUICK = hurried(10)
DENIED = Answer(
    403,
    {"Content-Type": "application/xml"},
    b"<Error><Code>AccessDenied</Code><Message>Access Denied.</Message></Error>",
)


@dataclass(kw_only=True)
class Scene:
    """A stream, and the places where it can be hurt."""

    server: MysqlServer
    to_server: Switch
    to_store: Switch
    proxy: RecordingProxy
    stream: StreamProcess
    monitor: Monitor
    spool: Path
    others: ExitStack = field(default_factory=ExitStack)


Fault = Callable[[Scene], AbstractContextManager[object]]


@contextmanager
def frozen_child(scene: Scene) -> Iterator[None]:
    """SIGSTOP of mysqlbinlog; there may be another one by the end."""
    pid = scene.monitor.status()["child"]["pid"]
    os.kill(pid, signal.SIGSTOP)
    yield
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)


@contextmanager
def dark(door: Switch) -> Iterator[None]:
    """Connections are accepted, and nothing is answered."""
    door.hold()
    yield
    door.cut()
    door.release()


@contextmanager
def denied(scene: Scene) -> Iterator[None]:
    """The store's policy has been taken away for what is put."""
    rule = on(DENIED, method="PUT")
    scene.proxy.rules.append(rule)
    yield
    scene.proxy.rules.remove(rule)


@contextmanager
def refused_connections(scene: Scene) -> Iterator[None]:
    """Nobody listens where the store was; and what is written is more than the spool may hold."""
    scene.to_store.turn(1)
    write(scene.server, 24)
    yield
    scene.to_store.turn(_port(scene.proxy))


@contextmanager
def foreign_file(scene: Scene) -> Iterator[None]:
    """Somebody else fills the spool's file system."""
    path = scene.spool.parent / "foreign"
    space = os.statvfs(scene.spool)
    with path.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, space.f_bavail * space.f_frsize - MIB // 2)
    yield
    path.unlink()


def _port(proxy: RecordingProxy) -> int:
    return int(proxy.url.rpartition(":")[2])


# name: the fault, the streamer's options, its state, the code of the trouble that is critical
ROWS: dict[str, tuple[Fault, dict[str, Any], str, str]] = {
    "mysqlbinlog is frozen": (frozen_child, {}, "stalled", "stalled"),
    "black hole before S3": (lambda scene: dark(scene.to_store), {}, "store unreachable", "store"),
    "black hole before MySQL": (
        lambda scene: dark(scene.to_server),
        {},
        "source unreachable",
        "source",
    ),
    "full spool": (refused_connections, {"spool-max-bytes": 16 * MIB}, "paused", "store"),
    "full file system": (foreign_file, {"spool-min-free-bytes": 8 * MIB}, "paused", "paused"),
    "PutObject denied": (denied, {}, "store unreachable", "store"),
}


@pytest.fixture
def stage(minio: MinioServer, bucket: str, disk_tmp_path: Path) -> Iterator[Callable[..., Scene]]:
    """Makes scenes: a running streamer with doors before its server and its store."""
    with ExitStack() as stack:

        def make(
            server: MysqlServer,
            options: dict[str, Any],
            place: str = "one",
            timing: Timing = DEFAULT,
            arguments: Sequence[str] = (),
        ) -> Scene:
            proxy = stack.enter_context(RecordingProxy(minio.endpoint_url))
            to_store = stack.enter_context(Switch(_port(proxy)))
            to_server = stack.enter_context(Switch(server.port))
            monitor = Monitor()
            chosen = {
                "heartbeat-interval": None if timing == DEFAULT else 1,
                "mysql-port": to_server.port,
                "endpoint-url": f"http://127.0.0.1:{to_store.port}",
                **monitor.options,
                **options,
            }
            stream = StreamProcess(
                disk_tmp_path / place, server, minio, bucket,
                options=chosen, timing=timing, arguments=arguments,
            )  # fmt: skip
            stack.enter_context(stream)
            return Scene(
                server=server,
                to_server=to_server,
                to_store=to_store,
                proxy=proxy,
                stream=stream,
                monitor=monitor,
                spool=Path(chosen.get("spool", stream.spool)),
            )

        yield make


Stage = Callable[..., Scene]


@pytest.mark.gate("PutObject denied")
@pytest.mark.parametrize("row", ROWS)
def test_a_fault_is_told(
    mysql: MysqlServer,
    stage: Stage,
    request: pytest.FixtureRequest,
    record_property: Callable[[str, object], None],
    row: str,
) -> None:
    """/health turns to 503 and stays it, the lag rises; the fault gone, it is 200 again."""
    fault, options, state, code = ROWS[row]
    if fault is foreign_file:
        make: Disk = request.getfixturevalue("disk")
        options = {**options, "spool": make(64 * MIB) / "spool"}
    scene = stage(mysql, options, timing=QUICK)
    monitor = scene.monitor
    with Commits(mysql) as commits:
        before = monitor.wait_until_well()
        begun = monotonic()
        with fault(scene):
            first = monitor.wait_until_distress()
            record_property("seconds until 503", round(monotonic() - begun, 1))
            assert first["state"] == state
            assert code in {t["code"] for t in first["troubles"] if t["level"] == "critical"}
            assert first["covered_until"] >= before["covered_until"]
            if row in ("mysqlbinlog is frozen", "PutObject denied"):
                command_says = told(scene.stream)
                assert command_says["seen_from"] == "daemon"
                assert command_says["state"] == first["state"]
                assert not command_says["healthy"]
            until = first["lag"]["seconds"] + 5

            def risen() -> bool:
                assert monitor.health().code == 503
                found = monitor.status()
                assert not found["healthy"]
                return bool(found["lag"]["seconds"] >= until)

            wait_until(risen, what="a lag that is 5 s greater", interval=0.2)
        begun = monotonic()
        known = len(commits.done)
        wait_until(monitor.is_well, RELIEF_SECONDS, "/health 200 again", interval=0.5)
        record_property("seconds until 200", round(monotonic() - begun, 1))
        monitor.wait_for_lag(lambda seconds: seconds < 5)
        wait_until(lambda: len(commits.done) > known + 5, 60, "commits go on")
    assert scene.stream.terminate() == 0
    assert "Traceback" not in scene.stream.stderr()


def test_a_writer_that_steps_back_answers_all_the_time(mysql: MysqlServer, stage: Stage) -> None:
    """It becomes a standby beside the other one; port and socket stay, /health is always 200."""
    with Commits(mysql):
        one = stage(mysql, {"heartbeat-interval": 10})
        one.monitor.wait_until_well()
        with Watching(one.monitor, 0.1) as watching:
            two = stage(mysql, {"heartbeat-interval": 10}, "two", arguments=["--take-over"])
            one.monitor.wait_for(lambda status: status["state"] == "standby")
            two.monitor.wait_until_well()
            assert told(one.stream)["state"] == "standby"
            one.monitor.wait_for(
                lambda status: (
                    [other["pid"] for other in status["standbys"] or ()] == [one.stream.pid]
                )
            )
        well = watching.since(lambda health: health.code == 200)
        assert {health.code for health in well} == {200}
        assert one.monitor.health().code == 200
        assert one.stream.terminate() == 0
        assert two.monitor.is_well()
        assert two.stream.terminate() == 0


# What is no fault


def many_binlogs(server: MysqlServer, count: int, megabytes: int) -> None:
    """So many closed binlogs of so many megabytes each."""
    server.query("CREATE DATABASE big", "CREATE TABLE big.t (v LONGBLOB) ENGINE=BLACKHOLE")
    with server.connect() as connection, connection.cursor() as cursor:
        for _ in range(count):
            for _ in range(megabytes):
                cursor.execute("INSERT INTO big.t VALUES (REPEAT('c', 1000000))")
            cursor.execute("FLUSH BINARY LOGS")


def test_a_catch_up_is_well(
    mysql: MysqlServer,
    minio: MinioServer,
    bucket: str,
    toxiproxy_binary: Path,
    disk_tmp_path: Path,
) -> None:
    """100 MB wait at the start, the store is slow: it catches up for long, and says it is well."""
    many_binlogs(mysql, 10, 10)
    monitor = Monitor()
    with Toxiproxy(toxiproxy_binary, disk_tmp_path) as toxiproxy:
        door = toxiproxy.door("store", minio.port)
        rate = {"type": "bandwidth", "stream": "upstream", "attributes": {"rate": 5400}}
        toxiproxy.ask("POST", f"/proxies/{door.name}/toxics", {"name": "rate", **rate})
        options: dict[str, Any] = {
            "endpoint-url": door.url,
            "heartbeat-interval": None,
            "concurrency": 3,  # so that requests end in good time, however busy the machine
            **monitor.options,
        }
        with (
            StreamProcess(disk_tmp_path / "one", mysql, minio, bucket, options=options) as stream,
            Watching(monitor) as watching,
        ):
            there = Bucket(minio, bucket)
            wait_until(lambda: len(there.archived()) >= 10, 120, "all of it", interval=1)
            monitor.wait_for(lambda status: status["state"] == "idle")
            assert watching.never_ill() >= 15
            states = {one.document["state"] for one in watching.seen if one.code}
            assert states - {"starting"} <= {"catching up", "streaming", "idle"}
            assert "catching up" in states
            assert stream.terminate() == 0


def test_rotations_a_killed_child_and_a_large_transaction_are_well(
    large_server: MysqlServer, stage: Stage, minio: MinioServer, bucket: str
) -> None:
    """A rotation each half second, `kill -9` of mysqlbinlog, 100 MB in one commit: never ill.

    The restart counts; the large commit is durable in the end.
    """
    scene = stage(large_server, {})
    pause = threading.Event()
    with Commits(large_server, pause=0.02):
        before = scene.monitor.wait_until_well()
        with Watching(scene.monitor, 0.2) as watching:
            for number in range(16):
                large_server.query("FLUSH BINARY LOGS")
                pause.wait(0.5)
                if number == 5:
                    os.kill(before["child"]["pid"], signal.SIGKILL)
            found = wait_until(lambda: _restarted(scene.monitor), what="the restart is counted")
            assert found["child"]["pid"] != before["child"]["pid"]
            assert "signal 9" in found["child"]["last_error"]
            wait_until_archived(scene.stream, large_server, minio, bucket)
            commit_large(large_server, 100 * MB)
            durable = scene.monitor.wait_for(lambda status: status["durable"]["offset"] > 100 * MB)
            assert durable["lag"]["seconds"] is not None
    watching.never_ill()


def _restarted(monitor: Monitor) -> dict[str, Any] | None:
    found = monitor.status()
    return found if found["child"]["restarts"] == 1 and found["child"]["pid"] else None


def test_an_open_binlog_without_flushes_is_well(mysql: MysqlServer, stage: Stage) -> None:
    """With --flush-interval 0 it is durable much later: the lag is told, nothing is ill."""
    scene = stage(mysql, {"flush-interval": 0, "heartbeat-interval": 10}, timing=hurried(3))
    with Commits(mysql), Watching(scene.monitor) as watching:
        scene.monitor.wait_for(lambda status: status["state"] == "streaming")
        found = scene.monitor.wait_for_lag(lambda seconds: seconds > 25)
        assert found["flush_interval"] == 0
        assert found["lag"]["bytes"] > 0
        mysql.query("FLUSH BINARY LOGS")
        scene.monitor.wait_for_lag(lambda seconds: seconds < 20)
    watching.never_ill()
