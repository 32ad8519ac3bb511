"""The spool's disk: too small, full, gone, or lying; and the source's own disk, which lies too.

Each test ends with every closed binlog in the bucket as the source has it, byte for byte.
"""

import contextlib
import os
import signal
import struct
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pymysql
import pytest

from binlog2s3.binlog.scanner import EventType
from lab.get import ServerBinaries
from lab.mysql import MysqlServer
from lab.proxy import RecordingProxy
from lab.s3 import MinioServer
from tests.beside import Beside
from tests.ear import Ear
from tests.integration.bucket import Bucket
from tests.integration.small_disk import mount
from tests.integration.stream_process import StreamProcess
from tests.integration.streaming import (
    MB,
    Start,
    all_came,
    came,
    documents,
    finish,
    no_binlogs,
    parts_there,
    wait_until_archived,
    write,
    write_binlog,
)
from tests.waiting import wait_until
from tests.world.servers import FLAG
from tests.world.streamed import streamed

MIB = 1 << 20
HEADER = struct.Struct("<IBIIIH")
Disk = Callable[[int], Path]


def allocated(spool: Path) -> int:
    """Bytes of disk that the spool's files take."""
    while True:
        with contextlib.suppress(FileNotFoundError):  # a run that is being removed
            return sum(path.stat().st_blocks * 512 for path in spool.glob("run-*/*"))


class Sampler(Beside):
    """The most that a spool took on its disk in a `with` block."""

    def __init__(self, spool: Path) -> None:
        super().__init__()
        self._spool = spool
        self.most = 0

    def run(self) -> None:
        while not self.over.wait(0.02):
            self.most = max(self.most, allocated(self._spool))


# The limits


@pytest.mark.gate
def test_the_reading_pauses_and_goes_on(
    mysql: MysqlServer, start: Start, minio: MinioServer, bucket: str
) -> None:
    """While the store takes nothing the spool stops at its limit, says so, and resumes."""
    most = 16 * MIB
    options = {"spool_max_bytes": most, "spool_min_free_bytes": 0}
    there = Bucket(minio, bucket)
    with (
        Ear() as ear,
        RecordingProxy(minio.endpoint_url) as proxy,
        start(mysql, environment=looks_told(ear), endpoint_url=proxy.url, **options) as stream,
    ):
        stream.wait_for_event("new lineage")
        proxy.rules.append(no_binlogs)
        with Sampler(stream.spool) as sample:
            write(mysql, most // MIB - 1)
            for _ in range(30):
                write(mysql, 1)
                if looked(stream, mysql, ear):
                    break
            line = stream.wait_for_event("paused: the spool has no room")
            assert "max_bytes" in line["why"]
            wait_until(lambda: there.heartbeat()["state"] == "paused", what="the heartbeat")
            stream.wait_for_event("mysqlbinlog ended")
            took = allocated(stream.spool)
            assert took > most * 3 // 4
            write(mysql, 20)
            beats = len(proxy.matching(method="PUT", path="/writers/"))
            wait_until(
                lambda: len(proxy.matching(method="PUT", path="/writers/")) > beats + 1,
                what="two heartbeats",
            )
            assert allocated(stream.spool) <= took
        assert sample.most < most + 12 * MIB
        assert not stream.events("resumed: the spool has room")
        proxy.rules.clear()
        stream.wait_for_event("resumed: the spool has room")
        wait_until(lambda: there.heartbeat()["state"] != "paused", what="the heartbeat")
        finish(stream, mysql, minio, bucket)


def looks_told(ear: Ear) -> dict[str, str]:
    """Variables of a streamer that says five times a second that its loop goes round."""
    return {"NOTIFY_SOCKET": ear.address, "WATCHDOG_USEC": "1200000"}


def looked(stream: StreamProcess, server: MysqlServer, ear: Ear) -> bool:
    """Whether it has paused, when it has all and has looked at its spool: it does each 0.5 s."""
    name, size = server.binlogs()[-1]

    def paused() -> bool:
        return bool(stream.events("paused: the spool has no room"))

    wait_until(lambda: paused() or came(stream.spool, name) >= size, what="all in the spool")
    ear.wait_until_fed(4)
    return paused()


# A transaction that is larger than the spool may be


LARGE = 500 * MB


@pytest.fixture
def large_server(mysql_binaries: ServerBinaries, disk_tmp_path: Path) -> Iterator[MysqlServer]:
    """A server that takes very large rows quickly: it keeps none of them."""
    with MysqlServer(mysql_binaries, disk_tmp_path / "server") as server:
        server.query("CREATE DATABASE big", "CREATE TABLE big.t (v LONGBLOB) ENGINE=BLACKHOLE")
        yield server


def commit_large(server: MysqlServer, total: int = LARGE) -> None:
    """One transaction of so many bytes, in rows of 16 to 60 MB."""
    with server.connect(read_timeout=300) as connection, connection.cursor() as cursor:
        cursor.execute("BEGIN")
        left = total
        for row in (16, 60, 30, 60, 16, 60, 16, 30, 60, 60, 60, 60, 60, 60):
            size = min(row * MB, left)
            cursor.execute(f"INSERT INTO big.t VALUES (REPEAT('{row % 10}', {size}))")
            left -= size
        assert left == 0
        connection.commit()


def test_a_transaction_larger_than_the_spool(
    large_server: MysqlServer, start: Start, minio: MinioServer, bucket: str, disk: Disk
) -> None:
    """500 MB go through 64 MiB: what the bucket has leaves the spool, and the next run goes on.

    The disk would not take more than the limit, an event that comes again, one that is not whole,
    and one that has just come.
    """
    options: dict[str, Any] = {"spool_max_bytes": 64 * MIB, "spool_min_free_bytes": 0}
    options["spool"] = disk(380 * MIB) / "spool"
    with (
        RecordingProxy(minio.endpoint_url) as proxy,
        start(large_server, endpoint_url=proxy.url, **options) as stream,
    ):
        stream.wait_for_event("streaming")
        proxy.rules.append(no_binlogs)
        commit_large(large_server)
        _name, size = large_server.binlogs()[-1]
        assert size > LARGE > 380 * MIB
        stream.wait_for_event("paused: the spool has no room")
        proxy.rules.clear()
        wait_until_archived(stream, large_server, minio, bucket)
        finish(stream, large_server, minio, bucket)


@pytest.mark.parametrize("flush_interval", [1, 0])
def test_a_full_spool_and_kill_9(
    large_server: MysqlServer, start: Start, minio: MinioServer, bucket: str, flush_interval: int
) -> None:
    """kill -9 inside a binlog that is larger than the spool: it goes on where the bucket ends."""
    total = 106 * MB
    options = {"spool_max_bytes": 24 * MIB, "flush_interval": flush_interval}
    there = Bucket(minio, bucket)
    with ExitStack() as stack:
        stream = stack.enter_context(start(large_server, **options))
        stream.wait_for_event("streaming")
        name = large_server.binlogs()[-1][0]
        commit_large(large_server, total)
        for part in (1, 2):
            wait_until(
                lambda part=part, stream=stream: (
                    in_bucket(there, name) > part * total // 4
                    and stream.events("left the spool: all is in the bucket")
                ),
                600,
                f"{part} quarters",
            )
            stream.kill()
            stream = stack.enter_context(start(large_server, **options))
        stream.wait_for_event("streaming")
        wait_until_archived(stream, large_server, minio, bucket)
        wait_until(lambda: not there.chunks(name), what="its chunks are gone")
        finish(stream, large_server, minio, bucket)
    assert there.chunks(name) == []


def in_bucket(there: Bucket, name: str) -> int:
    """How far its chunks go, or its parts."""
    chunks = max((chunk.end for chunk in there.chunks(name)), default=0)
    return max(chunks, 5 * MIB * parts_there(there.store, there.name))


# A disk that fills up


@pytest.mark.parametrize(
    ("size", "rotates"), [(700, True), (20_000, False)], ids=["small-rotates", "large-one-binlog"]
)
def test_a_disk_that_is_full_leaves_no_hole(
    mysql_binaries: ServerBinaries,
    start: Start,
    minio: MinioServer,
    bucket: str,
    disk: Disk,
    disk_tmp_path: Path,
    size: int,
    rotates: bool,
) -> None:
    """No limits and a store that is away: mysqlbinlog's hole never gets to the bucket."""
    place = disk(16 * MIB)
    spool = {"spool": place / "spool", "spool_min_free_bytes": 0}
    options = ["--binlog-row-event-max-size=1024"]
    with (
        MysqlServer(mysql_binaries, disk_tmp_path / "server", options=options) as server,
        RecordingProxy(minio.endpoint_url) as proxy,
        start(server, endpoint_url=proxy.url, **spool) as stream,
    ):
        server.query("CREATE DATABASE small", "CREATE TABLE small.t (v LONGBLOB) ENGINE=BLACKHOLE")
        stream.wait_for_event("new lineage")
        proxy.rules.append(no_binlogs)
        stream.process.send_signal(signal.SIGSTOP)  # so that nobody watches the disk
        for number in range(7):
            insert_rows(server, 3 * MB // size, size)
            if rotates and number % 3 == 2:
                server.query("FLUSH BINARY LOGS")
        wait_until(lambda: full(place), what="a full disk")
        stream.process.send_signal(signal.SIGCONT)
        stream.wait_for_event("paused: the spool has no room")
        proxy.rules.clear()
        finish(stream, server, minio, bucket)


def insert_rows(server: MysqlServer, count: int, size: int) -> None:
    """One transaction of so many rows, each an event of its own."""
    server.query(
        f"SET SESSION cte_max_recursion_depth = {count}",
        f"INSERT INTO small.t WITH RECURSIVE n AS (SELECT 1 AS i UNION ALL SELECT i + 1 FROM n "
        f"WHERE i < {count}) SELECT REPEAT('s', {size}) FROM n",
    )


def full(place: Path) -> bool:
    space = os.statvfs(place)
    return space.f_bavail * space.f_frsize < 16384


class Inserts(Beside):
    """Commits rows in a `with` block until the server no longer takes them."""

    def __init__(self, server: MysqlServer) -> None:
        super().__init__()
        self._server = server

    def run(self) -> None:
        with contextlib.suppress(pymysql.Error):
            while not self.over.is_set():
                self._server.query("INSERT INTO shop.items (v) VALUES (REPEAT('v', 400000))")


@pytest.mark.parametrize("binaries", ["mysql_binaries", "mariadb_binaries"])
def test_a_source_whose_disk_fills_up(
    request: pytest.FixtureRequest,
    minio: MinioServer,
    bucket: str,
    disk: Disk,
    disk_tmp_path: Path,
    binaries: str,
) -> None:
    """It waits in the middle of an event, and is killed there, with more room then.

    MySQL cuts the event off. MariaDB leaves it behind; the next binlog begins a lineage, which
    joins exactly, and a recovery crosses that.
    """
    place = disk(6 * MIB)
    programs: ServerBinaries = request.getfixturevalue(binaries)
    table = "CREATE TABLE shop.items (id INT AUTO_INCREMENT PRIMARY KEY, v LONGBLOB)"
    made = ("CREATE DATABASE shop", table)
    options = [f"--log-bin={place}/mysql-bin", "--sync-binlog=1", "--binlog-format=ROW"]
    with streamed(programs, minio, bucket, disk_tmp_path / "world", *made, options=options) as it:
        it.wait()
        with Inserts(it.source):
            wait_until(lambda: full(place), what="a full disk")
            torn = (place / "mysql-bin.000001").read_bytes()
            it.source.kill()
        assert mount("-o", "remount,size=64m", place).returncode == 0
        it.source.start()
        it.commit("INSERT INTO shop.items (v) VALUES ('after')", "FLUSH BINARY LOGS")
        it.wait_archived(1)
        durable = it.there.binlogs()
        assert sorted(durable) == [name for name, _ in it.source.binlogs()]
        for name, data in durable.items():
            there = (place / name).read_bytes()
            cut = there[: len(data)] if name == "mysql-bin.000001" and it.is_mariadb else there
            assert data[FLAG + 1 :] == cut[FLAG + 1 :], name
        assert len(durable["mysql-bin.000001"]) < len(torn)
        assert it.run("verify").returncode == 0
        target = it.another()
        begin = ("--from-binlog=mysql-bin.000001", "--from-position=4") if it.is_mariadb else ()
        it.recovery.to(target, "--latest", *begin)
        rows = "CHECKSUM TABLE shop.items"
        assert target.query(rows) == it.source.query(rows)


# A spool that is gone


def ended_by(stream: StreamProcess, spool: Path) -> tuple[str, str]:
    """Wait for its end, for that spool's sake: message and hint."""
    assert stream.wait() == 5, stream.stderr()
    line = stream.log()[-1]
    assert (line["event"], line["exit_code"]) == ("process_ended", 5)
    assert str(spool) in line["error"]
    assert "Traceback" not in stream.stderr()
    return line["error"].lower(), line["hint"]


@pytest.mark.gate
def test_a_spool_that_vanishes_ends_it(
    mysql: MysqlServer, start: Start, minio: MinioServer, bucket: str
) -> None:
    """Its directory is no longer there: exit 5, which one and what to do; the next start mends."""
    with start(mysql) as stream:
        write(mysql, 2)
        wait_until_archived(stream, mysql, minio, bucket)
        subprocess.run(["rm", "-rf", stream.spool], check=True)
        write_binlog(mysql, 1)
        write(mysql, 1)
        error, hint = ended_by(stream, stream.spool)
        assert "no such file or directory" in error
        assert "unmounted" in hint
    with start(mysql) as stream:
        finish(stream, mysql, minio, bucket)


def test_a_spool_that_becomes_read_only_ends_it(
    mysql: MysqlServer, start: Start, minio: MinioServer, bucket: str, disk: Disk
) -> None:
    """The kernel takes the right to write away: exit 5, and the hint says so."""
    place = disk(64 * MIB)
    spool = place / "spool"
    with start(mysql, spool=spool, spool_min_free_bytes=0) as stream:
        write(mysql, 2)
        wait_until_archived(stream, mysql, minio, bucket)
        child = stream.wait_for_event("streaming")["pid"]
        assert mount("--bind", spool, spool).returncode == 0
        assert mount("-o", "remount,bind,ro", spool).returncode == 0
        os.kill(child, signal.SIGKILL)  # so that there is something to write
        error, hint = ended_by(stream, spool)
        assert "read-only" in error
        assert "mounted read-only" in hint
    subprocess.run(["umount", spool], check=True)
    with start(mysql, spool=spool, spool_min_free_bytes=0) as stream:
        finish(stream, mysql, minio, bucket)


# A power cut


@pytest.mark.parametrize(
    ("checksum", "offset"),
    [("NONE", 4096), ("NONE", 1_200_000), ("CRC32", -8192)],
    ids=["NONE-begin", "NONE-middle", "CRC32-end"],
)
def test_zeros_that_a_power_cut_left(
    mysql_binaries: ServerBinaries,
    start: Start,
    minio: MinioServer,
    bucket: str,
    disk_tmp_path: Path,
    checksum: str,
    offset: int,
) -> None:
    """A block of the open binlog's file is zeros after the start: they never reach the bucket."""
    options = [f"--binlog-checksum={checksum}"]
    with MysqlServer(mysql_binaries, disk_tmp_path / "server", options=options) as server:
        with (
            RecordingProxy(minio.endpoint_url) as proxy,
            start(server, endpoint_url=proxy.url) as stream,
        ):
            stream.wait_for_event("new lineage")
            write_binlog(server, 1)
            proxy.rules.append(no_binlogs)
            write(server, 3)
            name, _ = all_came(stream, server)
            stream.kill()
        (path,) = stream.spool.glob(f"run-*/{name}")
        with path.open("r+b") as file:
            file.seek(offset, os.SEEK_SET if offset > 0 else os.SEEK_END)
            file.write(bytes(4096))
        with start(server) as stream:
            finish(stream, server, minio, bucket)


# Damage that the source has on its own disk


def events(body: bytes) -> Iterator[tuple[int, int, int]]:
    """Type, begin and end of each event of a whole binlog."""
    at = 4
    while at < len(body):
        _, kind, _, size, _, _ = HEADER.unpack_from(body, at)
        yield kind, at, at + size
        at += size


DAMAGES: Mapping[str, tuple[int, int]] = {
    # event type, place in the event
    "rows": (EventType.WRITE_ROWS, 200),
    "gtid": (EventType.GTID, 30),
    "previous": (EventType.PREVIOUS_GTIDS, 22),
    "position": (EventType.QUERY, 14),
    "type": (EventType.TABLE_MAP, 4),
}


def damage(server: MysqlServer, name: str, what: str) -> list[dict[str, int]]:
    """Flip bytes of a binlog on the server's disk; the ranges of the events, as an entry has them.

    Of rows, in two events.
    """
    kind, place = DAMAGES[what]
    path = server.datadir / name
    found = [event for event in events(path.read_bytes()) if event[0] == kind]
    chosen = found[-2:] if what == "rows" else found[len(found) // 2 :][:1]
    for _, begin, _ in chosen:
        flip(path, begin + place)
    return [{"begin": begin, "end": end} for _, begin, end in chosen]


def flip(path: Path, offset: int) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        (byte,) = file.read(1)
        file.seek(offset)
        file.write(bytes([byte ^ 0x40]))


def more(server: MysqlServer, count: int) -> list[str]:
    """So many more closed binlogs, and one that is open; the names of the closed ones."""
    names = []
    for _ in range(count):
        write(server, 2)
        names.append(server.binlogs()[-1][0])
        server.query("FLUSH BINARY LOGS")
    return names


def first_archived(
    stream: StreamProcess, server: MysqlServer, minio: MinioServer, bucket: str
) -> None:
    """The first binlog is archived, and the streamer has ended."""
    with stream:
        write(server, 1)
        wait_until_archived(stream, server, minio, bucket)
        assert stream.terminate() == 0


@pytest.mark.gate
def test_damage_that_the_source_serves_is_archived(
    mysql: MysqlServer, start: Start, minio: MinioServer, bucket: str
) -> None:
    """As served, with the range in the entry, loud; what comes after it arrives.

    kill -9 while a damaged binlog lies in chunks alone: the next start, elsewhere, goes on.
    """
    first_archived(start(mysql), mysql, minio, bucket)
    names = more(mysql, 2 * len(DAMAGES))
    ranges = {
        name: damage(mysql, name, what) for name, what in zip(names[1::2], DAMAGES, strict=True)
    }
    write(mysql, 2)
    last, size = mysql.binlogs()[-1]
    ranges[last] = damage(mysql, last, "rows")
    there = Bucket(minio, bucket)
    with start(mysql, "two") as stream:
        wait_until(lambda: any(c.end == size for c in there.chunks(last)), what="all in chunks")
        for name in names[1::2]:
            line = stream.wait_for_event(
                "the source's binlog is damaged: archived as it is", binlog=name
            )
            assert line["level"] == "error"
        stream.kill()
    with start(mysql, "three") as stream:
        stream.wait_for_event("streaming")
        write(mysql, 1)
        wait_until_archived(stream, mysql, minio, bucket)
        entries = documents(minio, bucket, "/entries/")
        told = {Path(key).stem: entry["damaged"] for key, entry in entries.items()}
        assert {name: found for name, found in told.items() if found} == ranges
        finish(stream, mysql, minio, bucket)


def test_damage_in_the_first_binlog_of_all(
    mysql: MysqlServer, start: Start, minio: MinioServer, bucket: str
) -> None:
    """Before there is any lineage one of which nothing can be read is passed."""
    names = more(mysql, 3)
    flip(mysql.datadir / names[0], 30)
    there = Bucket(minio, bucket)
    with start(mysql) as stream:
        wait_until(lambda: set(names[1:]) <= set(there.archived()), what="those behind it")
        line = stream.wait_for_event("the archive begins after a binlog that cannot be read")
        assert (line["binlog"], line["begin"]) == (names[0], names[1])
        assert names[0] not in there.archived()
        assert stream.terminate() == 0
    assert "Traceback" not in stream.stderr()
    assert len(documents(minio, bucket, "lineage.json")) == 1


@pytest.mark.parametrize("what", ["size", "format"])
def test_damage_that_the_source_cannot_serve_is_a_gap(
    mysql: MysqlServer, start: Start, minio: MinioServer, bucket: str, what: str
) -> None:
    """A size, or a first event, that leads nowhere: what can be had is kept, then a lineage begins.

    It begins with the next binlog.
    """
    first_archived(start(mysql), mysql, minio, bucket)
    names = more(mysql, 3)
    path = mysql.datadir / names[1]
    body = path.read_bytes()
    rows = [event for event in events(body) if event[0] == EventType.WRITE_ROWS]
    begin = rows[len(rows) // 2][1]
    with path.open("r+b") as file:
        file.seek(begin + 9 if what == "size" else 30)
        file.write(b"\xff\xff\xff\x7f" if what == "size" else b"\xff" * 40)
    there = Bucket(minio, bucket)
    with start(mysql, "two") as stream:
        wait_until(lambda: names[2] in there.archived(), 120, "the binlog behind it")
        write_binlog(mysql, 1)
        last = mysql.binlogs()[-2][0]
        wait_until(lambda: last in there.archived(), what="the newest one")
        found = there.binlogs()
        for name in (names[0], names[2], last):
            assert found[name] == (mysql.datadir / name).read_bytes()
        kept = found.get(names[1], b"")
        assert body.startswith(kept)
        assert (len(kept) > 4) == (what == "size")
        assert stream.terminate() == 0
    assert "Traceback" not in stream.stderr()
    lineages = documents(minio, bucket, "lineage.json").values()
    (parent,) = [one["parent"] for one in lineages if one["parent"]]
    assert parent["join"] == "gap"
    assert parent["missing"]
