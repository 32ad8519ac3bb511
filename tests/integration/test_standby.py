"""A pair of streamers of one source: one writes, the other one stands by and takes over.

Both run on one machine, each with a spool of its own. What is lost or doubled shows when every byte
in the bucket is compared with the server's own files.
"""

import contextlib
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from binlog2s3.config.outside import DEFAULT, Timing
from binlog2s3.status.ask import ask, ask_health
from binlog2s3.status.model import Status
from lab import get
from lab.fault import Answer, on
from lab.mysql import MariadbServer, MysqlServer
from lab.proxy import RecordingProxy
from lab.s3 import Store
from lab.tcp import Switch
from lab.verify import FLAG_OFFSET
from tests.integration.bucket import Bucket
from tests.integration.stream_process import StreamProcess
from tests.integration.streaming import (
    MB,
    all_came,
    child_of,
    reach,
    wait_until_proved,
    write,
    write_binlog,
    written,
)
from tests.timed import hurried
from tests.waiting import wait_until
from tests.world.servers import open_binlog

BEAT = 2  # seconds
WHY = {
    "killed": "silent for",
    "no source": "not reached the source for",
    "no store": "silent for",
}
QUICK = hurried(by=10)


def standing(stream: StreamProcess) -> Status:
    """Wait until it stands by, and its status says so."""
    stream.wait_for_event("standing by")
    return says(stream, lambda status: status.state == "standby", "standby")


def says(stream: StreamProcess, holds: Callable[[Status], object], what: str) -> Status:
    """Wait until its own status is so."""

    def look() -> Status | None:
        status = told(stream)
        return status if status is not None and holds(status) else None

    found = wait_until(look, what=what, interval=0.1)
    assert found is not None
    return found


def told(stream: StreamProcess) -> Status | None:
    """What it says of itself; None where it does not answer."""
    found = ask(stream.spool)
    return found if isinstance(found, Status) else None


def standbys(store: Store, bucket: str) -> list[str]:
    """The keys of the standbys' objects."""
    return [key for key in written(store, bucket, "live") if "/standbys/" in key]


class Scene:
    """Streamers of one server, in one bucket."""

    def __init__(self, place: Path, server: MysqlServer, store: Store, bucket: str) -> None:
        self.place = place
        self.server = server
        self.store = store
        self.bucket = bucket
        self.ends = contextlib.ExitStack()
        self._count = 0

    def start(
        self,
        *arguments: str,
        spool: Path | None = None,
        options: Mapping[str, Any] | None = None,
        timing: Timing = DEFAULT,
    ) -> StreamProcess:
        """One more; with `spool` on that of an earlier one."""
        self._count += 1
        chosen = {"heartbeat-interval": BEAT, **(options or {})}
        chosen |= {"spool": spool} if spool else {}
        stream = StreamProcess(
            self.place / f"{self._count}", self.server, self.store, self.bucket,
            options=chosen, arguments=arguments, timing=timing,
        )  # fmt: skip
        if spool:
            stream.spool = spool
        return self.ends.enter_context(stream)

    def writer(self, *arguments: str, **more: Any) -> StreamProcess:
        """One more, that writes; a first binlog is archived."""
        stream = self.start(*arguments, **more)
        stream.wait_for_event("streaming")
        write_binlog(self.server, 1)
        self.compare(stream)
        return stream

    def standby(self, *arguments: str, **more: Any) -> StreamProcess:
        """One more, that stands by."""
        stream = self.start(*arguments, **more)
        standing(stream)
        return stream

    def compare(self, stream: StreamProcess) -> None:
        """Wait until it has archived all; every byte is the server's, and there is one lineage."""
        wait_until_proved(stream, self.server, self.store, self.bucket)

    def promoted(self, stream: StreamProcess, *, after: StreamProcess) -> None:
        """Wait until it writes, and reads all from there on."""
        stream.wait_for_event("this process is the writer")
        write_binlog(self.server, 1)
        self.compare(stream)
        assert not stream.events("another writer works")
        if after.process.poll() is None:
            assert standing(after).healthy


@pytest.fixture
def scene(mysql: MysqlServer, store: Store, bucket: str, disk_tmp_path: Path) -> Iterator[Scene]:
    """Streamers of a MySQL."""
    scene = Scene(disk_tmp_path, mysql, store, bucket)
    with scene.ends:
        yield scene


# Beside a writer


@pytest.mark.gate("minio")
@pytest.mark.stores("minio", "nanio")
def test_a_second_start_stands_by(scene: Scene) -> None:
    """It says so everywhere, changes nothing but its own object, and ends at once with 0.

    The writer's mysqlbinlog is not evicted.
    """
    a = scene.writer()
    child = child_of(a)
    b = scene.standby()
    (key,) = standbys(scene.store, scene.bucket)
    status = told(b)
    assert status is not None
    assert status.healthy
    assert not status.troubles
    assert status.writer is not None
    assert status.writer.pid == a.pid
    assert [one.pid for one in status.standbys] == [b.pid]
    assert ask_health(b.spool) == (True, "test: standby")
    seen = says(a, lambda status: status.standbys, "the writer sees it")
    assert [(one.host, one.pid) for one in seen.standbys] == [(socket.gethostname(), b.pid)]
    write_binlog(scene.server, 1)
    scene.compare(a)
    assert child_of(a) == child
    assert not a.events("mysqlbinlog says")
    assert [path.name for path in b.spool.glob("run-*")] == []
    before = {key for key in written(scene.store, scene.bucket, "live") if "/standbys/" in key}
    assert before == {key}
    assert b.terminate() == 0
    assert not b.events("this process is the writer")
    assert not standbys(scene.store, scene.bucket)
    says(a, lambda status: not status.standbys, "the writer sees that it is gone")
    assert a.terminate() == 0


@pytest.mark.gate("killed")
@pytest.mark.parametrize("how", WHY)
def test_the_standby_takes_over(scene: Scene, how: str) -> None:
    """Within three heartbeats of the writer; that one stands by, should it come back.

    Commits go on all the time. Nothing is lost, nothing is there twice.
    """
    to_source = scene.ends.enter_context(Switch(scene.server.port))
    to_store = scene.ends.enter_context(Switch(int(scene.store.endpoint_url.rpartition(":")[2])))
    options = {"mysql-port": to_source.port, "endpoint-url": f"http://127.0.0.1:{to_store.port}"}
    a = scene.writer(options=options, timing=QUICK)
    b = scene.standby()
    write(scene.server, 1)
    if how == "killed":
        a.kill()
    elif how == "no source":
        to_source.turn(1)
    else:
        to_store.turn(1)
    write(scene.server, 1)
    b.wait_for_event("this process is the writer")
    (gone,) = b.events("the other writer is gone")
    assert WHY[how] in gone["why"]
    write_binlog(scene.server, 1)
    if how == "no store":
        to_store.turn(int(scene.store.endpoint_url.rpartition(":")[2]))
    scene.promoted(b, after=a)
    assert b.terminate() == 0
    if a.process.poll() is None:  # and back again
        a.wait_for_event("the other writer is gone", why="it has stopped")
        if how != "no source":
            write_binlog(scene.server, 1)
            scene.compare(a)
        assert a.terminate() == 0


def test_a_take_over_with_an_empty_disk_reads_the_bucket(scene: Scene) -> None:
    """Of the open binlog the source sends the end again, and what is new; no more.

    Then the new one is killed, too, and its own spool has only the end of that binlog.
    """
    a = scene.writer()
    b = scene.standby()
    take_over(scene, a, b, megabytes=40)
    b.kill()
    c = scene.start(spool=b.spool)
    c.wait_for_event("streaming")
    write_binlog(scene.server, 1)
    scene.compare(c)
    assert c.terminate() == 0


def test_a_take_over_at_a_mariadb_whose_events_have_no_positions(
    store: Store, bucket: str, disk_tmp_path: Path
) -> None:
    """From 11.4: a run begins before such events, and goes on among them."""
    options = ["--binlog-format=ROW"]
    with MariadbServer(
        get.VERSIONS["mariadb-11.8"](), disk_tmp_path / "server", server_id=7, options=options
    ) as server:
        scene = Scene(disk_tmp_path, server, store, bucket)
        with scene.ends:
            a = scene.writer()
            b = scene.standby()
            take_over(scene, a, b, megabytes=20)
            write_binlog(server, 1)
            scene.compare(b)
            assert b.terminate() == 0


def take_over(scene: Scene, a: StreamProcess, b: StreamProcess, *, megabytes: int) -> float:
    """The writer is killed; seconds from then until a new commit is durable again."""
    there = Bucket(scene.store, scene.bucket)
    write(scene.server, megabytes)
    name, size = open_binlog(scene.server)
    wait_until(lambda: reach(there, name) == size, 600, "all in chunks")
    killed = time.monotonic()
    a.kill()
    write(scene.server, 1)
    _, size = open_binlog(scene.server)
    wait_until(lambda: reach(there, name) == size, 600, "all in chunks")
    seconds = time.monotonic() - killed
    (line,) = b.events("streaming")
    (read,) = b.events("read back from the bucket")
    assert read["size"] >= megabytes * MB
    assert 0 <= read["size"] - line["position"] <= 16 << 20
    assert sum(path.stat().st_size for path in b.spool.glob("run-*/*")) <= 18 << 20
    return seconds


def test_two_standbys_at_once(scene: Scene) -> None:
    """The writer dies: one of them writes, the other one stands by beside it.

    Both are killed: whichever starts first goes on, and what they left in the bucket is deleted.
    """
    a = scene.writer()
    both = [scene.standby(), scene.standby()]
    assert len(standbys(scene.store, scene.bucket)) == 2
    a.kill()
    write_binlog(scene.server, 1)

    def settled() -> list[StreamProcess]:
        found = [status.state for one in both if (status := told(one)) is not None]
        writes = [state for state in found if state in ("idle", "streaming", "catching up")]
        if len(writes) != 1 or found.count("standby") != 1:
            return []
        return sorted(both, key=lambda one: found[both.index(one)] == "standby")

    writes, waits = wait_until(settled, what="one writer and one standby", interval=0.2)
    write_binlog(scene.server, 1)
    scene.compare(writes)
    assert ask_health(waits.spool) == (True, "test: standby")
    wait_until(lambda: len(standbys(scene.store, scene.bucket)) == 1, what="one standby's object")
    writes.kill()
    waits.kill()
    write_binlog(scene.server, 1)
    last = scene.start(spool=waits.spool)
    last.wait_for_event("the other writer is gone")
    last.wait_for_event("this process is the writer")
    beside = scene.standby(spool=writes.spool)
    scene.promoted(last, after=beside)
    wait_until(
        lambda: len(standbys(scene.store, scene.bucket)) == 1, what="the dead one's object goes"
    )
    assert last.terminate() == 0
    assert beside.terminate() == 0


@pytest.mark.own_server("it is killed")
def test_bytes_that_only_a_standby_has(scene: Scene) -> None:
    """Cut off from the store, then taken over from, with the source gone for good.

    Its spool keeps what the bucket lacks, it says so, and --take-over uploads it.
    """
    to_store = scene.ends.enter_context(Switch(int(scene.store.endpoint_url.rpartition(":")[2])))
    options = {"endpoint-url": f"http://127.0.0.1:{to_store.port}"}
    a = scene.writer(options=options, timing=QUICK)
    reads_nothing = scene.place / "mysqlbinlog"
    reads_nothing.write_text(
        f'#!/bin/sh\ncase "$*" in *--version*|*--help*) exec {scene.server.binaries.binlog} "$@";; '
        "*) exec sleep 1000;; esac\n"
    )
    reads_nothing.chmod(0o755)
    b = scene.standby(options={"mysqlbinlog": reads_nothing}, timing=QUICK)
    to_store.turn(1)
    write(scene.server, 1)
    name, size = all_came(a, scene.server)
    truth = (scene.server.datadir / name).read_bytes()[:size]
    b.wait_for_event("streaming")
    scene.server.kill()
    says(b, lambda status: status.state == "source unreachable", "the writer has no source")
    # nothing of it comes into the bucket before it notices the other writer
    proxy = scene.ends.enter_context(RecordingProxy(scene.store.endpoint_url))
    proxy.rules.append(on(Answer(503), method="PUT", path=r"live/[^/]+/2|archive/"))
    to_store.turn(int(proxy.url.rpartition(":")[2]))
    a.wait_for_event("standing by")
    seen = says(a, lambda status: not status.healthy, "critical: it may have the only copy")
    (trouble,) = [trouble for trouble in seen.troubles if trouble.code == "unsaved"]
    assert "--take-over" in trouble.hint
    assert b.terminate() == 0
    assert a.terminate() == 0
    here = Bucket(scene.store, scene.bucket)
    assert len(here.binlogs().get(name, b"")) < size
    again = scene.start("--take-over", spool=a.spool, timing=QUICK)
    again.wait_for_event("this process is the writer")
    wait_until(lambda: len(here.binlogs()[name]) >= size, what="its bytes in the bucket")
    found = bytearray(here.binlogs()[name])
    found[FLAG_OFFSET] = truth[FLAG_OFFSET]  # the server's file says that it is in use
    assert found == truth
