"""What strangers, other accounts and damage do to the replicas of a real `serve`: nothing."""

import contextlib
import re
import resource
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pymysql
import pytest

from binlog2s3.recover.listen import Listen
from lab.child import free_port
from lab.mysql import MysqlServer
from lab.s3 import MinioServer
from tests.own_files import own
from tests.waiting import PATIENCE, wait_until
from tests.world.pair import Pair
from tests.world.servers import two
from tests.world.serving import PASSWORD, Scene, scene_of
from tests.world.writes import write_counting


@pytest.fixture
def scene(mysql_binaries: Any, minio: MinioServer, disk_tmp_path: Path) -> Iterator[Scene]:
    with scene_of(MysqlServer, mysql_binaries, minio, minio.make_bucket(), disk_tmp_path) as found:
        yield found


def client_of(scene: Scene, user: str = "replica") -> "pymysql.connections.Connection[Any]":
    return pymysql.connect(
        host="127.0.0.1", port=scene.serve.port, user=user, password=PASSWORD, ssl_disabled=True,
        connect_timeout=PATIENCE, read_timeout=PATIENCE,
    )  # fmt: skip


def is_served(scene: Scene) -> bool:
    with contextlib.suppress(pymysql.err.OperationalError), client_of(scene) as client:
        return client.query("SELECT VERSION()") == 1
    return False


def number_of_replica(scene: Scene) -> int:
    replicas = [
        one for one in scene.serve.status()["clients"]
        if one["kind"] == "replica" and one["server_id"] == 2
    ]  # fmt: skip
    assert len(replicas) == 1, replicas
    return int(replicas[0]["number"])


def idle(scene: Scene) -> socket.socket:
    """A connection that says nothing."""
    return socket.create_connection(("127.0.0.1", scene.serve.port), PATIENCE)


def threads_of(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/task").iterdir()))


def status_of(pid: int, name: str) -> int:
    text = Path(f"/proc/{pid}/status").read_text()
    found = re.search(rf"{name}:\s+(\d+) kB", text)
    assert found is not None
    return int(found[1])


def test_strangers_and_a_limit_of_threads_end_no_replica(scene: Scene) -> None:
    """Connections without a login take no place; where no thread can start, serve goes on after."""
    scene.serve.end()
    scene.serve.start("--max-connections", "4")
    scene.write(10)
    scene.replicate()
    scene.wait_until_equal()
    number = number_of_replica(scene)
    process = scene.serve.process
    assert process is not None
    with contextlib.ExitStack() as ends:
        for _ in range(300):
            ends.callback(idle(scene).close)
        assert is_served(scene)
    wait_until(lambda: threads_of(process.pid) < 20, what="they have left")
    with contextlib.ExitStack() as ends:
        pid, endless = process.pid, resource.RLIM_INFINITY
        before = resource.prlimit(pid, resource.RLIMIT_AS)

        def is_starved() -> bool:
            """Whether a thread could not start; the C library keeps stacks of some that ended."""
            less_than_a_stack = 1024 * status_of(pid, "VmSize") + (2 << 20)
            resource.prlimit(pid, resource.RLIMIT_AS, (less_than_a_stack, endless))
            ends.callback(idle(scene).close)
            return "can't start new thread" in scene.serve.log()

        try:
            wait_until(is_starved, what="none starts")
            assert not is_served(scene)
        finally:
            resource.prlimit(pid, resource.RLIMIT_AS, before)
        wait_until(lambda: is_served(scene), what="it serves again")
    scene.write(10)
    scene.wait_until_equal()
    assert number_of_replica(scene) == number, "the same connection all the time"
    assert scene.serve.get("/health")[0] == 200, scene.serve.log()
    assert "a connection was turned away" in scene.serve.log()
    assert scene.serve.end() == 0


def test_strangers_do_not_block_a_recovery(mysql_binaries: Any, tmp_path: Path) -> None:
    """Twenty connections that say nothing, at the port where its target fetches the binlogs."""
    with two(MysqlServer, mysql_binaries) as (source, target):
        pair = Pair(source, target)
        write_counting(source, 60)
        source.query("FLUSH BINARY LOGS")
        files = own(source.datadir, pair.names[:-1])
        port, over = free_port(), threading.Event()

        def crowd() -> None:
            with contextlib.ExitStack() as ends:
                while not over.wait(0.01):
                    with contextlib.suppress(OSError):
                        idle = socket.create_connection(("127.0.0.1", port), 1)
                        ends.callback(idle.close)

        thread = threading.Thread(target=crowd, daemon=True)
        thread.start()
        try:
            pair.apply(files, listen=Listen(port=port))
        finally:
            over.set()
            thread.join(PATIENCE)
        assert target.query("SELECT COUNT(*) FROM shop.log") == [(60,)]
