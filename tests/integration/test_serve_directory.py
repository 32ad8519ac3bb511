"""Real replicas of what `pitr --output-dir` wrote, and what it leaves when it is killed."""

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.disk import temporary_directory
from lab.get import ServerBinaries
from lab.mysql import MysqlServer
from lab.s3 import MinioServer
from tests import command
from tests.integration.bucket import Bucket
from tests.integration.stream_process import StreamProcess
from tests.waiting import wait_until
from tests.world.archive import wait_durable
from tests.world.commands import Recovery, read_only
from tests.world.pair import Pair
from tests.world.servers import (
    RELAXED,
    content,
    executed,
    follow,
    forget,
    in_its_words,
    replica_status,
)
from tests.world.serving import Scene, Served

BEATS = 5


class FailOver:
    """A source, a server that has taken over from it, and one that is to be their replica.

    The second server was started first, so its lineage has the smaller id.
    """

    def __init__(self, scene: Scene, second: MysqlServer) -> None:
        self.scene = scene
        self.second = second
        scene.write(10)
        scene.source.query("FLUSH BINARY LOGS")
        scene.write(5)
        follow(second, scene.source)
        wait_until(lambda: scene.count(second) == 15, what="the second server has all")
        bucket = Bucket(scene.minio, scene.bucket)
        wait_durable(scene.stream, bucket, scene.source)
        assert scene.stream.terminate() == 0
        scene.source.kill()
        second.query(in_its_words(second, "STOP REPLICA"))
        stream = StreamProcess(
            scene.place / "stream-second", second, scene.minio, scene.bucket,
            options={"spool": scene.place / "spool", "spool-min-free-bytes": 0},
        )  # fmt: skip
        with stream:
            stream.wait_for_event("streaming")
            self.write("promoted", 7)
            second.query("FLUSH BINARY LOGS")
            self.write("promoted", 3)
            wait_durable(stream, bucket, second)
            assert stream.terminate() == 0

    def write(self, text: str, count: int) -> None:
        self.second.query(*[f"INSERT INTO d.t (x) VALUES ('{text}')"] * count)

    @property
    def recovery(self) -> Recovery:
        return Recovery(self.scene.minio, self.scene.bucket, read_only(self.scene.minio))

    def earlier(self, count: int) -> str:
        """What the second server had executed so many transactions ago."""
        ask = "SELECT GTID_SUBTRACT(@@gtid_executed, CONCAT(@@server_uuid, ':{}-10'))"
        return str(self.second.query(ask.format(11 - count))[0][0])

    def beats(self) -> int:
        """The heartbeats that the replica has received."""
        table = "performance_schema.replication_connection_status"
        ask = f"SELECT COUNT_RECEIVED_HEARTBEATS FROM {table}"
        return int(self.scene.target.query(ask)[0][0])


@pytest.fixture
def fail_over(
    mysql_binaries: ServerBinaries, minio: MinioServer, disk_tmp_path: Path
) -> Iterator[FailOver]:
    with contextlib.ExitStack() as stack:

        def server(number: int) -> MysqlServer:
            place = stack.enter_context(temporary_directory())
            one = MysqlServer(mysql_binaries, place, server_id=number, options=RELAXED)
            return stack.enter_context(one)

        second = server(2)
        begun = time.time()  # the first binlog is at least as old
        wait_until(lambda: int(time.time()) > int(begun), what="the next second")
        source, target = server(1), server(3)
        scene = Scene(Pair(source, target), minio, minio.make_bucket(), disk_tmp_path)
        stack.enter_context(scene.ends)
        yield FailOver(scene, second)


def cpu_seconds(pid: int) -> float:
    """What a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_a_replica_of_what_was_written(fail_over: FailOver, disk_tmp_path: Path) -> None:
    """Two lineages whose ids are in the other order; once it has all, it costs next to nothing.

    Files that begin where a base backup ends, which the replica is not restored from, it does not
    get.
    """
    scene, out, later = fail_over.scene, disk_tmp_path / "out", disk_tmp_path / "later"
    start = f"--from-gtid-set={fail_over.earlier(5)}"
    done = fail_over.recovery.run(None, "--latest", start, f"--output-dir={later}")
    assert done.status == 0, done.stderr
    scene.serve = Served(disk_tmp_path / "serve", ["--dir", str(later)], command.environment())
    scene.serve.start()
    scene.replicate()

    def error() -> str:
        found = replica_status(scene.target)
        return str(found["Last_IO_Error"]) if found["Last_IO_Errno"] else ""

    assert "missing GTIDs" in wait_until(error, what="error 1236")
    assert scene.count(scene.target) == -1
    forget(scene.target)
    assert scene.serve.end() == 0
    done = fail_over.recovery.run(None, "--latest", "--json", f"--output-dir={out}")
    assert done.status == 0, done.stderr
    lineages = [one["lineage"] for one in done.document["plan"]["pieces"]]
    assert sorted(set(lineages)) == list(dict.fromkeys(lineages))[::-1]
    scene.serve = Served(disk_tmp_path / "dir", ["--dir", str(out)], command.environment())
    scene.serve.start()
    scene.replicate()
    wait_until(lambda: scene.count(scene.target) == 25, what="the replica has all")
    assert content(scene.target) == content(fail_over.second)
    wanted = executed(fail_over.second)
    wait_until(lambda: executed(scene.target, "gtid_slave_pos") == wanted, what="GTIDs")
    assert scene.serve.process is not None
    pid = scene.serve.process.pid
    beats = wait_until(fail_over.beats, what="a heartbeat")
    used = cpu_seconds(pid)
    wait_until(lambda: fail_over.beats() >= beats + BEATS, what="heartbeats, one in a second")
    assert cpu_seconds(pid) - used < 0.3 * BEATS  # a loop that does not wait uses all of it
    found = replica_status(scene.target)
    assert (found["Replica_IO_Running"], found["Replica_SQL_Running"]) == ("Yes", "Yes")
    assert scene.serve.end() == 0
