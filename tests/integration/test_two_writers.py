"""Two writers of one source: the greater goes on, the other stands by, the archive is right.

All run on one machine, each with a spool of its own, so the second one's mysqlbinlog evicts the
first one's, and the bucket decides between them. test_standby.py has the orderly ways.
"""

import contextlib
import json
import re
import socket
from pathlib import Path
from typing import Any

import pytest

from lab.fault import Gate
from lab.mysql import MysqlServer
from lab.proxy import RecordingProxy
from lab.s3 import Store
from tests.integration.bucket import Bucket, again
from tests.integration.stream_process import Line, StreamProcess
from tests.integration.streaming import (
    child_of,
    freeze,
    thaw,
    wait_until_proved,
    write_binlog,
    written,
)
from tests.timed import PATIENT_END
from tests.waiting import wait_until

# What a writer is frozen in the middle of: method and path of the request, megabytes to write. Of
# all but "body" the request has left its writer, and the store hears it while the writer is frozen.
REQUESTS = {
    "body": ("PUT", r"archive/.*/binlogs/", 4),
    "complete": ("POST", r"archive/.*/binlogs/", 12),
    "entry": ("PUT", r"archive/.*/entries/", 2),
}
BOTH = pytest.mark.stores("minio", "nanio")  # with conditional writes, and without
CELLS = [("minio", "body"), ("minio", "entry"), ("nanio", "complete")]
BUSY = 10  # seconds between heartbeats: a busy machine manages one in time


def writers(store: Store, bucket: str) -> dict[int, dict[str, Any]]:
    """The writers' objects by generation."""
    there = Bucket(store, bucket)

    def read() -> dict[int, dict[str, Any]]:
        keys = [key for key in there.keys("pre/live/") if "/writers/" in key]
        return {int(Path(key).name.partition("-")[0]): json.loads(there.get(key)) for key in keys}

    return again(read)


def heard_late(proxy: RecordingProxy, method: str, path: str) -> None:
    """Wait until the store has answered what was held."""
    wait_until(lambda: proxy.matching(method=method, path=path), what="the late request's answer")


def started(stream: StreamProcess) -> None:
    """Wait until it has claimed and reads."""
    stream.wait_for_event("streaming")


def ended_by_another(stream: StreamProcess) -> Line:
    """Wait for its end with exit 9; what it said, which names the other's host and the way out."""
    assert stream.wait() == 9, stream.stderr()
    line = stream.events("ended")[-1]
    assert re.search("taken over|works", line["error"])
    assert socket.gethostname() in line["error"]
    assert line["hint"]
    assert "Traceback" not in stream.stderr()
    return line


def stepped_back(stream: StreamProcess) -> None:
    """Wait until it has seen a greater writer, and stands by."""
    line = stream.wait_for_event("another writer works")
    assert "taken over" in line["error"]
    assert socket.gethostname() in line["error"]
    assert "--take-over" in line["hint"]
    stream.wait_for_event("standing by")
    assert "Traceback" not in stream.stderr()


def undisturbed(
    stream: StreamProcess, server: MysqlServer, store: Store, bucket: str, child: int
) -> None:
    """It is the only writer, its mysqlbinlog is the one that it started, and it goes on."""
    (generation,) = [line["writer"] for line in stream.events("this process is the writer")]
    wait_until(lambda: set(writers(store, bucket)) == {generation}, what="one writer's object")
    assert [line["pid"] for line in stream.events("streaming")] == [child]
    assert Path(f"/proc/{child}").exists()
    assert not stream.events("mysqlbinlog says")
    write_binlog(server, 1)
    wait_until_proved(stream, server, store, bucket)


@pytest.mark.gate("minio")
@BOTH
def test_exit_on_other_writer(mysql: MysqlServer, store: Store, disk_tmp_path: Path) -> None:
    """Exit 9 beside a writer that works: of the writer that it takes over from, and at each start.

    The other one does not notice; when that one has stopped, the first may start again.
    """
    bucket = store.make_bucket()
    exits = ["--exit-on-other-writer"]
    with contextlib.ExitStack() as stack:
        a = stack.enter_context(
            StreamProcess(disk_tmp_path / "a", mysql, store, bucket, arguments=exits)
        )
        a.wait_for_event("new lineage")
        b = stack.enter_context(
            StreamProcess(
                disk_tmp_path / "b", mysql, store, bucket, timing=PATIENT_END,
                options={"heartbeat-interval": 2}, arguments=["--take-over"],
            )
        )  # fmt: skip
        started(b)
        ended_by_another(a)
        child = child_of(b)
        for attempt in range(2):
            place = disk_tmp_path / f"again-{attempt}"
            options: dict[str, Any] = {"spool": a.spool}
            with StreamProcess(
                place, mysql, store, bucket, options=options, arguments=exits
            ) as again:
                ended_by_another(again)
                assert not again.events("this process is the writer")
                assert not again.events("streaming")
        undisturbed(b, mysql, store, bucket, child)
        assert b.terminate() == 0
        options = {"spool": a.spool}
        with StreamProcess(
            disk_tmp_path / "a2", mysql, store, bucket, options=options, arguments=exits
        ) as again:
            again.wait_for_event("the other writer is gone", why="it has stopped")
            started(again)
            wait_until_proved(again, mysql, store, bucket)
            assert again.terminate() == 0


def test_the_claim_of_a_killed_one_arrives_late(
    mysql: MysqlServer, store: Store, bucket: str, disk_tmp_path: Path
) -> None:
    """Killed while its claim was on the way: the store hears it when the next one has claimed.

    Both have the same generation. The dead one's claim ends nobody, each time, and is removed.
    """
    spool = disk_tmp_path / "spool"
    for attempt in range(2):
        claims = re.compile(r"live/.*/writers/")
        with RecordingProxy(store.endpoint_url) as proxy, contextlib.ExitStack() as stack:
            gate = Gate(method="PUT", path=claims.pattern)
            stack.callback(gate.open)
            proxy.rules.append(gate)
            options: dict[str, Any] = {"endpoint-url": proxy.url, "spool": spool}
            place = disk_tmp_path / f"dead-{attempt}"
            with StreamProcess(place, mysql, store, bucket, options=options) as dead:
                assert gate.held.wait(60)
                dead.kill()
            options = {"spool": spool, "heartbeat-interval": 1}
            place = disk_tmp_path / f"next-{attempt}"
            with StreamProcess(place, mysql, store, bucket, options=options) as after:
                started(after)
                gate.open()
                heard_late(proxy, "PUT", claims.pattern)
                undisturbed(after, mysql, store, bucket, child_of(after))
                assert after.terminate() == 0
                (line,) = after.events("this process is the writer")
                late = [one.request.path for one in proxy.matching(method="PUT", path="/writers/")]
                assert late
                assert all(f"/{line['writer']:06d}-" in path for path in late)


@pytest.mark.parametrize(("store", "held"), CELLS, indirect=["store"])
def test_the_older_one_is_frozen_in_the_middle_of_a_request(
    mysql: MysqlServer, store: Store, disk_tmp_path: Path, held: str
) -> None:
    """Frozen, overtaken, thawed: it stands by, and no byte of the archive is another one.

    Its request is heard late. Where the store has conditional writes, no object is written anew.
    """
    bucket = store.make_bucket()
    method, path, megabytes = REQUESTS[held]
    with contextlib.ExitStack() as stack:
        proxy = stack.enter_context(RecordingProxy(store.endpoint_url))
        gate = Gate(method=method, path=path)
        stack.callback(gate.open)
        options: dict[str, Any] = {"endpoint-url": proxy.url}
        a = stack.enter_context(
            StreamProcess(disk_tmp_path / "a", mysql, store, bucket, options=options)
        )
        a.wait_for_event("new lineage")
        proxy.clear()
        proxy.rules.append(gate)
        write_binlog(mysql, megabytes)
        wait_until(gate.held.is_set, what="a request that is held")
        frozen = freeze(a)
        options = {"heartbeat-interval": BUSY}
        b = stack.enter_context(
            StreamProcess(disk_tmp_path / "b", mysql, store, bucket, options=options)
        )
        started(b)
        write_binlog(mysql, 1)
        wait_until_proved(b, mysql, store, bucket)
        before = written(store, bucket, "archive")
        gate.open()
        if held != "body":
            heard_late(proxy, method, path)
        thaw(frozen)
        stepped_back(a)
        after = written(store, bucket, "archive")
        assert set(after) == set(before)
        if "conditions" not in store.lacks:
            assert after == before
        undisturbed(b, mysql, store, bucket, child_of(b))
        assert b.terminate() == 0


@BOTH
def test_both_start_at_once(mysql: MysqlServer, store: Store, disk_tmp_path: Path) -> None:
    """Both may claim; one of them goes on, the other one stands by; one history.

    The one that goes on may be evicted at the server by the other's last mysqlbinlog: it reads
    again, and it is the writer still.
    """
    bucket = store.make_bucket()
    with contextlib.ExitStack() as stack:
        both = [
            stack.enter_context(
                StreamProcess(
                    disk_tmp_path / name, mysql, store, bucket,
                    options={"heartbeat-interval": BUSY},
                )
            )
            for name in ("a", "b")
        ]  # fmt: skip
        write_binlog(mysql, 2)

        def settled() -> list[StreamProcess]:
            return [one for one in both if one.events("standing by")]

        (waits,) = wait_until(settled, what="one that stands by")
        (other,) = [one for one in both if one is not waits]
        wait_until_proved(other, mysql, store, bucket)
        assert not other.events("standing by")
        assert waits.terminate() == 0
        assert other.terminate() == 0
