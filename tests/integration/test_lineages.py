"""Histories of real servers: which go on, which end, where the next one begins, and who is refused.

Each test ends with every byte of the bucket held against the servers' own files of that time.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from lab.get import ServerBinaries
from lab.load import Load, Shape
from lab.mysql import MariadbServer, MysqlServer
from lab.s3 import MinioServer
from lab.tcp import Switch
from tests.integration.lineage_lab import (
    Archive,
    CopiedServer,
    by_two_doors,
    caught_up,
    create_table,
    executed,
    flush,
    follow,
    image_of,
    on_disk,
    put_back,
    reset,
    uuid_of,
    write,
)
from tests.integration.stream_process import StreamProcess, run_to_end
from tests.waiting import wait_until

GTIDS = pytest.mark.parametrize("gtid", [True, False], ids=["gtid", "no-gtid"])
Start = Callable[..., StreamProcess]


@pytest.fixture
def archive(minio: MinioServer, bucket: str) -> Iterator[Archive]:
    with closing(Archive(minio, bucket)) as made:
        yield made


@pytest.fixture
def start(archive: Archive, disk_tmp_path: Path) -> Iterator[Start]:
    """Starts a streamer; all are over in the end."""
    count = 0
    with ExitStack() as stack:

        def begin(
            server: MysqlServer, *, spool: str = "spool", **options: Any
        ) -> StreamProcess:
            nonlocal count
            count += 1
            chosen = {name.replace("_", "-"): value for name, value in options.items()}
            chosen = {"stall-timeout": 5, "spool": disk_tmp_path / spool, **chosen}
            place = disk_tmp_path / f"stream-{count}"
            store, bucket = archive.bucket.store, archive.bucket.name
            return stack.enter_context(
                StreamProcess(place, server, store, bucket, options=chosen)
            )

        yield begin


@pytest.fixture
def servers(disk_tmp_path: Path) -> Iterator[ExitStack]:
    """Ends servers in the end."""
    with ExitStack() as stack:
        yield stack


@pytest.fixture(params=["gtid", "no-gtid", "mariadb"])
def server(
    request: pytest.FixtureRequest, mysql_binaries: ServerBinaries, disk_tmp_path: Path
) -> Iterator[MysqlServer]:
    """A server with a table, of each kind."""
    place = disk_tmp_path / "server"
    if request.param == "mariadb":
        made: MysqlServer = MariadbServer(request.getfixturevalue("mariadb_binaries"), place)
    else:
        made = MysqlServer(mysql_binaries, place, gtid=request.param == "gtid")
    with made:
        create_table(made)
        yield made


@pytest.fixture(params=["gtid", "no-gtid"])
def mysqld(
    request: pytest.FixtureRequest, mysql_binaries: ServerBinaries, disk_tmp_path: Path
) -> Iterator[MysqlServer]:
    """A MySQL with a table, with GTIDs and without."""
    gtid = request.param == "gtid"
    with MysqlServer(mysql_binaries, disk_tmp_path / "server", gtid=gtid) as made:
        create_table(made)
        yield made


def has_gtids(server: MysqlServer) -> bool:
    return bool(executed(server))


def parent(archive: Archive, lineage: str) -> Mapping[str, Any]:
    found = archive.lineages()[lineage]["parent"]
    assert isinstance(found, dict)
    return found


def only(archive: Archive) -> str:
    (lineage,) = archive.lineages()
    return lineage


def other(archive: Archive, *known: str) -> str:
    (lineage,) = set(archive.lineages()) - set(known)
    return lineage


# the same server, its history goes on


def test_a_clean_restart_goes_on_in_the_middle(
    server: MysqlServer, archive: Archive, start: Start
) -> None:
    """A server that is stopped and started: its STOP event arrives, its lineage goes on."""
    stream = start(server)
    archive.arrived(stream, server)
    write(server, "before", 20)
    first = archive.arrived(stream, server)
    archive.remember()
    closed = server.binlogs()[-1][0]
    server.stop()
    archive.keep("it", server)
    server.start()
    assert archive.works(stream, server, "it") == first
    assert archive.archived(first)[closed] == archive.kept["it"][closed]
    again = [line for line in stream.events("streaming") if line["binlog"] == closed]
    assert again[-1]["position"] > 4
    assert stream.terminate() == 0
    archive.holds({first: "it"})


def test_a_crash_under_load_goes_on(
    server: MysqlServer, archive: Archive, start: Start
) -> None:
    """kill -9 of a server that is written to: the same lineage, and no byte of it is lost."""
    stream = start(server)
    shape = Shape(row_bytes=(1, 3000))
    with Load(server, threads=2, seconds=60, reconnects=True, shape=shape) as load:
        stream.wait_for_event("new lineage")
        for goal in (100, 300):
            wait_until(lambda goal=goal: load.transactions > goal, 30, "load")
            server.kill()
            archive.keep("it", server)
            server.start()
        load.stop()
    lineage = archive.works(stream, server, "it")
    assert stream.terminate() == 0
    archive.holds({lineage: "it"})


# RESET


def test_a_reset_while_it_is_streamed(
    server: MysqlServer, archive: Archive, start: Start
) -> None:
    """All binlogs deleted and begun anew: a new lineage that nothing joins to the old one."""
    stream = start(server)
    flush(server)
    write(server, "before")
    first = archive.arrived(stream, server)
    archive.remember()
    archive.keep("first", server)
    reset(server)
    write(server, "after")
    second = archive.works(stream, server, "second")
    assert second != first
    assert parent(archive, second)["join"] == "unknown"
    assert parent(archive, second)["lineage"] == first
    assert stream.terminate() == 0
    archive.holds({first: "first", second: "second"}, begins={second: "mysql-bin.000001"})


def test_a_reset_in_the_first_binlog(
    server: MysqlServer, archive: Archive, start: Start
) -> None:
    """mysqlbinlog notices nothing where the name stays the same; it is noticed all the same."""
    stream = start(server)
    write(server, "before", 9)
    first = archive.arrived(stream, server)
    archive.keep("first", server)
    reset(server)
    write(server, "after")
    second = archive.works(stream, server, "second")
    assert parent(archive, second)["join"] == "unknown"
    assert stream.terminate() == 0
    archive.holds({first: "first", second: "second"}, begins={second: "mysql-bin.000001"})


@pytest.mark.parametrize("longer", [False, True], ids=["shorter", "longer"])
def test_a_reset_while_nobody_streams(
    server: MysqlServer, archive: Archive, start: Start, longer: bool
) -> None:
    """Also where the new binlogs of the same names are longer than the old ones."""
    stream = start(server)
    flush(server)
    write(server, "before")
    first = archive.arrived(stream, server)
    assert stream.terminate() == 0
    archive.remember()
    archive.keep("first", server)
    reset(server)
    if longer:
        write(server, "after", 20)
        flush(server)
        write(server, "after", 20)
        flush(server)
    write(server, "after")
    stream = start(server)
    second = archive.works(stream, server, "second")
    assert parent(archive, second)["join"] == "unknown"
    assert stream.terminate() == 0
    archive.holds({first: "first", second: "second"}, begins={second: "mysql-bin.000001"})


def test_two_resets_within_a_second(
    server: MysqlServer, archive: Archive, start: Start
) -> None:
    """What the format event's time cannot tell apart, the bytes do."""
    stream = start(server)
    write(server, "before", 9)
    first = archive.arrived(stream, server)
    archive.keep("first", server)
    reset(server)
    write(server, "between", 9)
    archive.keep("between", server)
    reset(server)
    write(server, "after", 9)
    last = archive.works(stream, server, "last")
    assert stream.terminate() == 0
    eras = {first: "first", last: "last"}
    eras |= dict.fromkeys(archive.lineages().keys() - eras.keys(), "between")
    assert len(eras) <= 3
    assert all(parent(archive, one)["join"] == "unknown" for one in eras if one != first)
    archive.holds(eras)


# a server that was rolled back


@pytest.mark.parametrize("running", [True, False], ids=["running", "down"])
@pytest.mark.parametrize("frozen", [True, False], ids=["snapshot", "crash"])
def test_a_server_that_is_rolled_back(
    server: MysqlServer,
    archive: Archive,
    start: Start,
    disk_tmp_path: Path,
    running: bool,
    frozen: bool,
) -> None:
    """Same uuid, same names, GTIDs used again: the branch begins at the last common transaction."""
    stream = start(server)
    flush(server)
    write(server, "common")
    archive.arrived(stream, server)
    if frozen:
        server.freeze()
    else:
        server.kill()
    name, size = list(on_disk(server).items())[-1][0], len(list(on_disk(server).values())[-1])
    image = image_of(server, disk_tmp_path / "image")
    archive.keep("first", server)
    archive.keep("second", server)
    if frozen:
        server.thaw()
    else:
        server.start()
    gtids = executed(server)
    write(server, "lost")
    flush(server)
    write(server, "lost", 5)
    flush(server)
    write(server, "lost", 2)
    first = archive.arrived(stream, server)
    if not running:
        assert stream.terminate() == 0
    server.kill()
    archive.keep("first", server)
    archive.remember()
    put_back(server, image)
    server.start()
    write(server, "other")
    if not running:
        stream = start(server)
    second = archive.works(stream, server, "second")
    assert second != first
    found = parent(archive, second)
    assert (found["lineage"], found["join"], found["missing"]) == (first, "exact", "")
    assert (found["binlog"], found["offset"]) == (name, size)
    if gtids:
        assert found["gtid_set"] == gtids
    assert stream.terminate() == 0
    archive.holds({first: "first", second: "second"})
    assert all(b"lost" in body for body in list(archive.binlogs(first).values())[-1:])
