"""Histories of real servers: which go on, which end, where the next one begins, and who is refused.

Each test ends with every byte of the bucket held against the servers' own files of that time.
"""

import os
import signal
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
from tests.integration.stream_process import StreamProcess, run_to_end
from tests.waiting import wait_until
from tests.world.archive import Archive
from tests.world.commands import Recovery, read_only
from tests.world.servers import (
    ImageServer,
    executed,
    flush,
    follow,
    image_of,
    on_disk,
    put_back,
    reset,
    uuid_of,
)
from tests.world.writes import caught_up, create_table, write

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
            server: MysqlServer, *flags: str, spool: str = "spool", **options: Any
        ) -> StreamProcess:
            nonlocal count
            count += 1
            chosen = {name.replace("_", "-"): value for name, value in options.items()}
            chosen = {"stall-timeout": 5, "spool": disk_tmp_path / spool, **chosen}
            place = disk_tmp_path / f"stream-{count}"
            store, bucket = archive.bucket.store, archive.bucket.name
            process = StreamProcess(place, server, store, bucket, options=chosen, arguments=flags)
            return stack.enter_context(process)

        yield begin


@pytest.fixture
def servers(disk_tmp_path: Path) -> Iterator[ExitStack]:  # outlives them
    """Ends servers in the end."""
    with ExitStack() as stack:
        yield stack


@pytest.fixture(params=["gtid", "no-gtid", "mariadb"])
def server(request: pytest.FixtureRequest) -> MysqlServer:
    """A server with a table, of each kind."""
    return prepared(request)


@pytest.fixture(params=["gtid", "no-gtid"])
def mysqld(request: pytest.FixtureRequest) -> MysqlServer:
    """A MySQL with a table, with GTIDs and without."""
    return prepared(request)


def prepared(request: pytest.FixtureRequest) -> MysqlServer:
    """The server that the fixture's parameter names, with a table."""
    name = {"gtid": "mysql", "no-gtid": "mysql_without_gtids", "mariadb": "mariadb"}[request.param]
    made: MysqlServer = request.getfixturevalue(name)
    create_table(made)
    return made


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


@pytest.mark.own_server("it is restarted")
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


@pytest.mark.gate("gtid")
@pytest.mark.own_server("it is killed")
def test_a_crash_under_load_goes_on(server: MysqlServer, archive: Archive, start: Start) -> None:
    """kill -9 of a server that is written to: the same lineage, and no byte of it is lost."""
    stream = start(server)
    shape = Shape(row_bytes=(1, 3000))
    with Load(server, threads=2, seconds=3600, reconnects=True, shape=shape) as load:
        stream.wait_for_event("new lineage")
        for goal in (100, 300):
            wait_until(lambda goal=goal: load.transactions > goal, what="load")
            server.kill()
            archive.keep("it", server)
            server.start()
        load.stop()
    lineage = archive.works(stream, server, "it")
    assert stream.terminate() == 0
    archive.holds({lineage: "it"})


# RESET


@pytest.mark.gate("gtid")
def test_a_reset_while_it_is_streamed(server: MysqlServer, archive: Archive, start: Start) -> None:
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


def test_a_reset_in_the_first_binlog(server: MysqlServer, archive: Archive, start: Start) -> None:
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


ROTATE_BYTES = 19 + 8 + len("mysql-bin.000002") + 4
ALIKE = pytest.mark.parametrize("longer", [20, ROTATE_BYTES], ids=["longer", "as-long"])


def other_era(server: MysqlServer, longer: int = 0) -> None:
    """A new history of eleven transactions, all in the first binlog, so many bytes longer."""
    texts = ["after" + "!" * longer, *["after"] * 10]
    reset(server, *[f"INSERT INTO shop.t VALUES ('{text}')" for text in texts])


@ALIKE
def test_a_reset_that_uses_the_same_gtids_again(
    mysqld: MysqlServer, archive: Archive, start: Start, longer: int
) -> None:
    """As many transactions as before, and on to the next binlog: equal GTIDs prove nothing then.

    Nor do equal sizes.
    """
    other_era(mysqld, longer)
    stream = start(mysqld)
    first = archive.arrived(stream, mysqld)
    archive.keep("first", mysqld)
    before = mysqld.binlogs()[0][1]
    other_era(mysqld)
    flush(mysqld)
    assert (mysqld.binlogs()[0][1] == before) is (longer == ROTATE_BYTES)
    second = archive.works(stream, mysqld, "second")
    assert parent(archive, second)["join"] == "unknown"
    assert stream.terminate() == 0
    archive.holds({first: "first", second: "second"}, begins={second: "mysql-bin.000001"})


@ALIKE
def test_a_reset_that_uses_the_same_gtids_again_behind_a_kill_9(
    mysqld: MysqlServer, archive: Archive, start: Start, disk_tmp_path: Path, longer: int
) -> None:
    """Before anybody asked the server: what the spool has of both is not taken for one history."""
    other_era(mysqld, longer)
    stream = start(mysqld)
    first = archive.arrived(stream, mysqld)
    archive.keep("first", mysqld)
    os.kill(stream.pid, signal.SIGSTOP)
    before = mysqld.binlogs()[0][1]
    other_era(mysqld)
    flush(mysqld)
    assert (mysqld.binlogs()[0][1] == before) is (longer == ROTATE_BYTES)
    write(mysqld, "after")
    name, size = mysqld.binlogs()[-1]

    def come() -> bool:
        files = (disk_tmp_path / "spool").glob(f"run-*/{name}")
        return any(path.stat().st_size >= size for path in files)

    wait_until(come, what=f"{name} in the spool")
    stream.kill()
    stream = start(mysqld)
    second = archive.works(stream, mysqld, "second")
    assert parent(archive, second)["join"] == "unknown"
    assert stream.terminate() == 0
    archive.holds({first: "first", second: "second"}, begins={second: "mysql-bin.000001"})


@pytest.mark.gate("gtid")
def test_host_and_streamer_die_soon_behind_a_reset(
    server: MysqlServer, archive: Archive, start: Start, minio: MinioServer, disk_tmp_path: Path
) -> None:
    """No heartbeat has told of the new history: it is the one that is restored all the same."""
    recovery = Recovery(minio, archive.bucket.name, read_only(minio))
    place = disk_tmp_path / "restored"
    stream = start(server, heartbeat_interval=3600)
    write(server, "before")
    wait_until(lambda: len(archive.lineages()) == 1, what="the first lineage")
    first = only(archive)
    wait_until(lambda: archive.bucket.heartbeat()["lineage"] == first, what="a heartbeat")
    reset(server, "INSERT INTO shop.t VALUES ('after')")
    flush(server)
    write(server, "after")
    wait_until(lambda: len(archive.lineages()) == 2, what="the second lineage")
    second = other(archive, first)
    key = f"/{second}/binlogs/mysql-bin.000001"
    wait_until(lambda: key in "".join(archive.bucket.keys()), what=key)
    stream.kill()
    assert archive.bucket.heartbeat()["lineage"] == first
    begin = (f"--from-lineage={second}", "--from-binlog=mysql-bin.000001", "--from-position=4")
    done = recovery.run(None, "--latest", "--json", f"--output-dir={place}", *begin)
    assert done.status == 0, done.stderr
    assert done.document["plan"]["lineage"] == second
    assert [path.name for path in place.iterdir() if path.is_dir()] == [second]
    assert done.document["result"]["transactions"] >= 1
    stream = start(server)
    assert archive.works(stream, server, "second") == second
    assert stream.terminate() == 0


def test_what_a_reset_left_in_the_spool_alone_is_brought_in(
    server: MysqlServer, archive: Archive, start: Start, disk_tmp_path: Path
) -> None:
    """The server has destroyed it, the bucket had none of it: it becomes durable all the same."""
    stream = start(server, flush_interval=0)
    write(server, "before", 9)
    name, size = server.binlogs()[-1]

    def spooled() -> int:
        files = (disk_tmp_path / "spool").glob(f"run-*/{name}")
        return max((path.stat().st_size for path in files), default=0)

    wait_until(lambda: spooled() == size, what=f"{name} in the spool")
    first = wait_until(lambda: next(iter(archive.lineages()), ""), what="a lineage")
    archive.keep("first", server)
    reset(server)
    write(server, "after")
    flush(server)
    write(server, "after")
    flush(server)
    archive.keep("second", server)
    closed = server.binlogs()[-2][0]

    def second() -> str:
        found = [one for one in archive.lineages() if one != first]
        return next((one for one in found if closed in archive.described(one)), "")

    new = wait_until(second, what=f"the entry of {closed}")
    assert parent(archive, new)["join"] == "unknown"
    assert (parent(archive, new)["binlog"], parent(archive, new)["offset"]) == (name, size)
    assert stream.terminate() == 0
    archive.holds({first: "first", new: "second"})
    assert len(archive.in_chunks(first)[name]) == size


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


def test_two_resets_within_a_second(server: MysqlServer, archive: Archive, start: Start) -> None:
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


@pytest.mark.own_server("it is rolled back to a copy")
@pytest.mark.parametrize("running", [True, False], ids=["running", "down"])
@pytest.mark.parametrize("frozen", [True, False], ids=["snapshot", "crash"])
def test_a_server_that_is_rolled_back(
    server: MysqlServer,
    archive: Archive,
    start: Start,
    minio: MinioServer,
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
    recovery = Recovery(minio, archive.bucket.name, read_only(minio))
    begin = (f"--from-lineage={first}", "--from-binlog=mysql-bin.000001", "--from-position=4")
    done = recovery.run(None, "--latest", "--json", "--dry-run", *begin)
    assert done.status == 0, done.stderr
    said = f"without the transactions that lineage {first} has from {name}:{size} on"
    assert any(said in one for one in done.document["plan"]["warnings"])


# another server


def by_two_doors(directory: Path, binaries: ServerBinaries, port: int) -> Path:
    """A mysqlbinlog that goes to a port of its own, whatever port the questions go to."""
    program = directory / "mysqlbinlog-by-another-door"
    real = binaries.binlog
    program.write_text(f'#!/bin/sh\nfirst=$1\nshift\nexec "{real}" "$first" --port={port} "$@"\n')
    program.chmod(0o755)
    return program


def sibling(server: MysqlServer, directory: Path, *, server_id: int) -> MysqlServer:
    """Another server with the same account, of the same kind."""
    made = MysqlServer(
        server.binaries, directory, server_id=server_id, gtid="--gtid-mode=ON" in server._argv()
    )
    made.password = server.password
    return made


def copy_of(server: MysqlServer, image: Path, directory: Path) -> MysqlServer:
    """A server that begins with the data of this one, and has a uuid of its own."""
    gtid = "--gtid-mode=ON" in server._argv()
    return ImageServer(
        server.binaries, directory, image, 1, server.password, gtid=gtid, own_uuid=True
    )


def refusals(stream: StreamProcess, uuid: str) -> int:
    """How often it has said that it refuses this server."""
    lines = [line for line in stream.log() if uuid in str(line.get("error"))]
    return sum(f"--accept-new-server {uuid}" in line["hint"] for line in lines)


def wait_for_refusals(stream: StreamProcess, uuid: str) -> None:
    wait_until(lambda: refusals(stream, uuid) >= 2, what="it refuses, and asks again")
    assert stream.process.poll() is None


def refused_at_start(archive: Archive, place: Path, server: MysqlServer, ours: str) -> None:
    """A start against this server that does not stand by ends with exit 4 and names both."""
    store, bucket = archive.bucket.store, archive.bucket.name
    status, log, stderr = run_to_end(place, server, store, bucket, arguments=["--take-over"])
    assert status == 4, stderr
    assert ours in log[-1]["error"]
    assert uuid_of(server) in log[-1]["error"]
    assert f"--accept-new-server {uuid_of(server)}" in log[-1]["hint"]


@pytest.mark.own_server("it is killed")
@pytest.mark.parametrize("running", [True, False], ids=["running", "down"])
def test_a_server_restored_from_a_backup(
    mysqld: MysqlServer,
    archive: Archive,
    start: Start,
    servers: ExitStack,
    disk_tmp_path: Path,
    running: bool,
) -> None:
    """It lacks what was archived since: refused, until --accept-new-server names it."""
    door = servers.enter_context(Switch(mysqld.port))
    stream = start(mysqld, mysql_port=door.port)
    write(mysqld, "in the backup")
    archive.arrived(stream, mysqld)
    mysqld.kill()
    image = image_of(mysqld, disk_tmp_path / "image")
    mysqld.start()
    gtids, ours = executed(mysqld), uuid_of(mysqld)
    for _ in range(2):
        write(mysqld, "lost")
        flush(mysqld)
    write(mysqld, "lost")
    first = archive.works(stream, mysqld, "first")
    if not running:
        assert stream.terminate() == 0
    mysqld.kill()
    archive.keep("first", mysqld)
    archive.remember()
    place = disk_tmp_path / "restored"
    restored = servers.enter_context(copy_of(mysqld, image, place))
    reset(restored, *([f"SET GLOBAL gtid_purged = '{gtids}'"] if gtids else []))
    write(restored, "restored")
    door.turn(restored.port)
    uuid = uuid_of(restored)
    if running:
        wait_for_refusals(stream, uuid)
        assert stream.terminate() == 0
    else:
        refused_at_start(archive, disk_tmp_path / "refused", restored, ours)
    assert only(archive) == first
    stream = start(mysqld, mysql_port=door.port, accept_new_server=uuid)
    second = archive.works(stream, restored, "second")
    found = parent(archive, second)
    assert found["lineage"] == first
    assert archive.lineages()[second]["server"]["uuid"] == uuid
    if gtids:
        assert (found["join"], found["gtid_set"], found["missing"]) == ("exact", gtids, "")
        body = archive.kept["first"][found["binlog"]]
        assert b"lost" not in body[: found["offset"]]
        assert b"lost" in body[found["offset"] :]
    else:
        assert found["join"] == "unknown"
    assert stream.terminate() == 0
    archive.holds({first: "first", second: "second"}, begins={second: "mysql-bin.000001"})


def test_another_server_under_the_same_address(
    mysqld: MysqlServer, archive: Archive, start: Start, servers: ExitStack, disk_tmp_path: Path
) -> None:
    """A stranger answers for a while: refused, loudly; then it goes on as if nothing had been."""
    stranger = servers.enter_context(sibling(mysqld, disk_tmp_path / "stranger", server_id=1))
    create_table(stranger)
    door = servers.enter_context(Switch(mysqld.port))
    stream = start(mysqld, mysql_port=door.port)
    write(mysqld, "before")
    first = archive.arrived(stream, mysqld)
    write(stranger, "strange", 20)
    door.turn(stranger.port)
    write(mysqld, "meanwhile")
    wait_for_refusals(stream, uuid_of(stranger))
    door.turn(mysqld.port)
    assert archive.works(stream, mysqld, "it") == first
    assert stream.terminate() == 0
    archive.holds({first: "it"})


@pytest.mark.parametrize("server_id", [1, 2], ids=["same-id", "other-id"])
def test_mysqlbinlog_alone_is_led_to_another_server_once(
    mysqld: MysqlServer,
    archive: Archive,
    start: Start,
    servers: ExitStack,
    disk_tmp_path: Path,
    server_id: int,
) -> None:
    """Between the question and mysqlbinlog's connection the address changes: no byte is taken."""
    stranger = servers.enter_context(
        sibling(mysqld, disk_tmp_path / "stranger", server_id=server_id)
    )
    create_table(stranger)
    write(stranger, "strange", 20)
    door = servers.enter_context(Switch(mysqld.port))
    tool = by_two_doors(disk_tmp_path, mysqld.binaries, door.port)
    stream = start(mysqld, mysqlbinlog=tool)
    write(mysqld, "before")
    first = archive.arrived(stream, mysqld)
    door.lead_once(stranger.port)
    door.cut()
    wait_until(lambda: stranger.port in door.led, what="mysqlbinlog was led astray")
    assert archive.works(stream, mysqld, "it") == first
    assert stream.terminate() == 0
    archive.holds({first: "it"})


@pytest.mark.parametrize("new", [True, False], ids=["new", "known"])
def test_mysqlbinlog_alone_is_led_to_another_server_for_a_while(
    mysqld: MysqlServer,
    archive: Archive,
    start: Start,
    servers: ExitStack,
    disk_tmp_path: Path,
    new: bool,
) -> None:
    """As long as it lasts nothing is taken, at the very first start too; then it goes on."""
    stranger = servers.enter_context(sibling(mysqld, disk_tmp_path / "stranger", server_id=2))
    create_table(stranger)
    write(stranger, "strange", 20)
    door = servers.enter_context(Switch(stranger.port if new else mysqld.port))
    tool = by_two_doors(disk_tmp_path, mysqld.binaries, door.port)
    stream = start(mysqld, mysqlbinlog=tool)
    write(mysqld, "before")
    if not new:
        archive.arrived(stream, mysqld)
        door.turn(stranger.port)
    wait_until(lambda: door.led.count(stranger.port) >= 3, what="mysqlbinlog is led astray")
    door.turn(mysqld.port)
    first = archive.works(stream, mysqld, "it")
    assert stream.terminate() == 0
    archive.holds({first: "it"})


@pytest.mark.own_server("it is killed")
@pytest.mark.parametrize("lacking", [True, False], ids=["lacking", "whole"])
def test_a_fail_over(
    mysqld: MysqlServer,
    archive: Archive,
    start: Start,
    servers: ExitStack,
    disk_tmp_path: Path,
    lacking: bool,
) -> None:
    """To a replica that has everything, or lacks the last: the branch begins where both agree."""
    gtid = has_gtids(mysqld)
    door = servers.enter_context(Switch(mysqld.port))
    stream = start(mysqld, mysql_port=door.port)
    write(mysqld, "before")
    flush(mysqld)
    write(mysqld, "before")
    replica = servers.enter_context(sibling(mysqld, disk_tmp_path / "replica", server_id=2))
    follow(replica, mysqld)
    caught_up(replica, mysqld)
    flush(replica)
    write(mysqld, "replicated")
    caught_up(replica, mysqld)
    name, offset = mysqld.binlogs()[-1]
    gtids = executed(mysqld)
    if lacking:
        replica.query("STOP REPLICA")
        write(mysqld, "lost", 2)
    first = archive.arrived(stream, mysqld)
    archive.keep("first", mysqld)
    mysqld.kill()
    archive.remember()
    replica.query("STOP REPLICA", "RESET REPLICA ALL")
    begin = replica.binlogs()[-1][0]
    uuid = uuid_of(replica)
    write(replica, "promoted")
    door.turn(replica.port)
    if not gtid:
        wait_for_refusals(stream, uuid)
        assert stream.terminate() == 0
        stream = start(mysqld, mysql_port=door.port, accept_new_server=uuid)
        begin = "mysql-bin.000001"
    second = archive.works(stream, replica, "second")
    found = parent(archive, second)
    assert found["lineage"] == first
    if gtid:
        assert (found["join"], found["gtid_set"], found["missing"]) == ("exact", gtids, "")
        assert (found["binlog"], found["offset"]) == (name, offset)
    else:
        assert found["join"] == "unknown"
    assert stream.terminate() == 0
    archive.holds({first: "first", second: "second"}, begins={second: begin})
    assert archive.binlogs(first)[name].count(b"lost") == (2 if lacking else 0)


@pytest.mark.parametrize("lacking", [True, False], ids=["lacking", "whole"])
def test_a_mariadb_fail_over(
    mariadb_binaries: ServerBinaries,
    archive: Archive,
    start: Start,
    servers: ExitStack,
    disk_tmp_path: Path,
    lacking: bool,
) -> None:
    """Two primaries use the same sequence numbers: the greater one is no proof."""
    primary = servers.enter_context(MariadbServer(mariadb_binaries, disk_tmp_path / "server"))
    create_table(primary)
    door = servers.enter_context(Switch(primary.port))
    stream = start(primary, mysql_port=door.port)
    write(primary, "before")
    flush(primary)
    write(primary, "before")
    place, options = disk_tmp_path / "replica", ["--log-slave-updates"]
    replica = MariadbServer(mariadb_binaries, place, server_id=2, options=options)
    replica.password = primary.password
    servers.enter_context(replica)
    replica.query(
        f"CHANGE MASTER TO MASTER_HOST='127.0.0.1', MASTER_PORT={primary.port}, "
        f"MASTER_USER='{primary.repl_user}', MASTER_PASSWORD='{primary.password}', "
        "MASTER_USE_GTID=slave_pos",
        "START SLAVE",
    )
    caught_up(replica, primary)
    name, offset = primary.binlogs()[-1]
    if lacking:
        replica.query("STOP SLAVE")
        write(primary, "lost", 5)
    first = archive.arrived(stream, primary)
    archive.keep("first", primary)
    primary.kill()
    archive.remember()
    replica.query("STOP SLAVE", "RESET SLAVE ALL")
    write(replica, "promoted", 12)
    door.turn(replica.port)
    second = archive.works(stream, replica, "second")
    found = parent(archive, second)
    assert (found["lineage"], found["join"], found["missing"]) == (first, "exact", "")
    assert (found["binlog"], found["offset"]) == (name, offset)
    assert stream.terminate() == 0
    archive.holds({first: "first", second: "second"}, begins={second: "mysql-bin.000001"})
    assert archive.binlogs(first)[name].count(b"lost") == (5 if lacking else 0)


@pytest.mark.own_server("it is killed")
@pytest.mark.parametrize("golden", [True, False], ids=["golden-image", "unrelated"])
def test_the_source_of_another_live_server(
    mysqld: MysqlServer,
    archive: Archive,
    start: Start,
    servers: ExitStack,
    disk_tmp_path: Path,
    golden: bool,
) -> None:
    """--source copied from another machine: refused, and the one that works is not disturbed.

    So also with --take-over, without which it would stand by.
    """
    ours, mistaken = mysqld, sibling(mysqld, disk_tmp_path / "mistaken", server_id=1)
    gtids = ""
    if golden:
        write(mysqld, "golden")
        gtids = executed(mysqld)
        mysqld.kill()
        image = image_of(mysqld, disk_tmp_path / "image")
        ours = servers.enter_context(copy_of(mysqld, image, disk_tmp_path / "ours"))
        mistaken = copy_of(mysqld, image, disk_tmp_path / "mistaken")
    servers.enter_context(mistaken)
    if not golden:
        create_table(mistaken)
    # else a slow machine's server would be given up
    stream = start(ours, "--exit-on-other-writer", stall_timeout=600)
    for text in ("ours", "more of ours"):
        write(ours, text)
        if not golden:  # else the image's GTIDs are all that went before the open binlog
            flush(ours)
    first = archive.arrived(stream, ours)
    archive.remember()
    write(mistaken, "mistaken", 9)
    pid = stream.wait_for_event("streaming")["pid"]
    writers = archive.writers()
    refused_at_start(archive, disk_tmp_path / "refused", mistaken, uuid_of(ours))
    assert archive.works(stream, ours, "ours") == first
    assert [line["pid"] for line in stream.events("streaming")] == [pid]
    assert Path(f"/proc/{pid}").exists()
    assert archive.writers() == writers
    uuid = uuid_of(mistaken)
    taken = start(mistaken, "--take-over", spool="taken", accept_new_server=uuid)
    second = archive.works(taken, mistaken, "mistaken")
    assert stream.wait() == 9
    found = parent(archive, second)
    assert found["lineage"] == first
    assert found["join"] == ("exact" if gtids else "unknown")
    if gtids:
        assert found["gtid_set"] == gtids
    assert taken.terminate() == 0
    archive.keep("ours", ours)
    archive.holds({first: "ours", second: "mistaken"})


def test_mysqlbinlog_is_kept_on_the_old_primary(
    mysqld: MysqlServer, archive: Archive, start: Start, servers: ExitStack, disk_tmp_path: Path
) -> None:
    """Questions go to the new primary, the stream stays on the old one: the run ends, unmixed."""
    gtid = has_gtids(mysqld)
    replica = servers.enter_context(sibling(mysqld, disk_tmp_path / "replica", server_id=2))
    follow(replica, mysqld)
    caught_up(replica, mysqld)
    asked = servers.enter_context(Switch(mysqld.port))
    door = servers.enter_context(Switch(mysqld.port))
    tool = by_two_doors(disk_tmp_path, mysqld.binaries, door.port)
    options = {"mysql_port": asked.port, "mysqlbinlog": tool}
    stream = start(mysqld, **options, accept_new_server=uuid_of(replica))
    write(mysqld, "before")
    first = archive.arrived(stream, mysqld)
    caught_up(replica, mysqld)
    replica.query("STOP REPLICA", "RESET REPLICA ALL")
    write(replica, "promoted")
    asked.turn(replica.port)
    write(mysqld, "split")
    stream.wait_for_event("mysqlbinlog ended")
    wait_until(lambda: len(stream.events("mysqlbinlog ended")) >= 3, what="it is tried again")
    archive.keep("first", mysqld)
    assert only(archive) == first
    door.turn(replica.port)
    second = archive.works(stream, replica, "second")
    assert parent(archive, second)["join"] == ("exact" if gtid else "unknown")
    assert stream.terminate() == 0
    archive.holds({first: "first", second: "second"})


# what the source purges


def purge(server: MysqlServer) -> str:
    """All but the open binlog, whose name is returned."""
    name = server.binlogs()[-1][0]

    def purged() -> bool:  # what a killed streamer's connection still reads is spared at first
        server.query(f"PURGE BINARY LOGS TO '{name}'")
        return [row[0] for row in server.binlogs()] == [name]

    wait_until(purged, what=f"all before {name} are purged")
    return name


@pytest.mark.parametrize("interval", [1, 0], ids=["open-known", "open-unknown"])
def test_what_is_archived_is_purged(
    server: MysqlServer, archive: Archive, start: Start, interval: int
) -> None:
    """The source needs none of what the bucket has: no gap, the lineage goes on."""
    stream = start(server, flush_interval=interval)
    write(server, "before")
    flush(server)
    closed = server.binlogs()[-2][0]
    first = wait_until(lambda: next(iter(archive.lineages()), ""), what="a lineage")
    wait_until(lambda: closed in archive.described(first), what=f"the entry of {closed}")
    assert stream.terminate() == 0
    archive.remember()
    archive.keep("it", server)
    write(server, "meanwhile")
    purge(server)
    stream = start(server, spool="another")
    assert archive.works(stream, server, "it") == first
    assert stream.terminate() == 0
    archive.holds({first: "it"})


def in_spool(stream: StreamProcess, spool: Path) -> list[str]:
    """The binlogs that take room there."""
    assert stream.process.poll() is not None
    return sorted({path.name for path in spool.glob("run-*/mysql-bin.*") if path.stat().st_size})


def test_a_gap(server: MysqlServer, archive: Archive, start: Start, disk_tmp_path: Path) -> None:
    """What was purged unseen is named; what there is stays readable, and leaves the spool."""
    stream = start(server)
    flush(server)
    write(server, "before")
    first = archive.arrived(stream, server)
    assert stream.terminate() == 0
    archive.remember()
    unfinished, size = server.binlogs()[-1]
    gtids = executed(server)
    write(server, "missing")
    flush(server)
    write(server, "missing")
    flush(server)
    archive.keep("first", server)
    both = executed(server)
    begin = purge(server)
    write(server, "after")
    stream = start(server)
    second = archive.works(stream, server, "second")
    found = parent(archive, second)
    assert (found["lineage"], found["join"]) == (first, "gap")
    assert (found["binlog"], found["offset"]) == (unfinished, size)
    if not gtids:
        named = f"{unfinished} from {size} on, mysql-bin.000003"
        assert found["missing"] == named
    elif server.binaries.flavour == "mysql":
        lacks = server.query(f"SELECT GTID_SUBTRACT('{both}', '{gtids}')")[0][0]
        assert found["missing"] == lacks
    else:
        assert both in found["missing"]
    assert stream.terminate() == 0
    archive.holds({first: "first", second: "second"}, begins={second: begin})
    assert len(archive.in_chunks(first)[unfinished]) == size
    assert unfinished not in in_spool(stream, disk_tmp_path / "spool")


def test_a_gap_that_is_to_stop_it(
    server: MysqlServer, archive: Archive, start: Start, disk_tmp_path: Path
) -> None:
    """--on-gap stop: exit 7, once all that the spool alone had is in the bucket."""
    stream = start(server, flush_interval=0)
    write(server, "before")
    flush(server)
    write(server, "in the spool")
    name, size = server.binlogs()[-1]
    spool = disk_tmp_path / "spool"

    def spooled() -> int:
        return max((path.stat().st_size for path in spool.glob(f"run-*/{name}")), default=0)

    wait_until(lambda: spooled() == size, what=f"{name} in the spool")
    first = wait_until(lambda: next(iter(archive.lineages()), ""), what="a lineage")
    wait_until(lambda: archive.described(first), what="the entry of the first")
    stream.kill()
    write(server, "missing")
    flush(server)
    write(server, "missing")
    flush(server)
    archive.keep("it", server)
    purge(server)
    archive.remember()
    stream = start(server, on_gap="stop")
    assert stream.wait() == 7, stream.stderr()
    assert "gap" in stream.events("ended")[0]["error"]
    assert len(archive.in_chunks(first)[name]) == size
    archive.holds({first: "it"})
    stream = start(server, spool="another", on_gap="stop")
    assert stream.wait() == 7
    archive.holds({first: "it"})


@pytest.mark.own_server("it is stopped")
def test_a_lost_stop_event_is_no_gap(server: MysqlServer, archive: Archive, start: Start) -> None:
    """A purged binlog that lacked its STOP alone: the lineage goes on, as the GTIDs prove."""
    stream = start(server)
    write(server, "before")
    first = archive.arrived(stream, server)
    assert stream.terminate() == 0
    archive.remember()
    name, size = server.binlogs()[-1]
    gtids = executed(server)
    server.stop()
    archive.keep("first", server)
    server.start()
    archive.keep("first", server)
    purge(server)
    stream = start(server)
    last = archive.works(stream, server, "second")
    assert stream.terminate() == 0
    if gtids:
        assert last == first
        archive.keep("first", server)
        archive.holds({first: "first"})
    else:
        assert parent(archive, last)["join"] == "gap"
        assert parent(archive, last)["missing"] == f"{name} from {size} on"
        archive.holds({first: "first", last: "second"})
    assert len(archive.in_chunks(first)[name]) == size
