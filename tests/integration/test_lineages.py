"""Histories of real servers: which go on, which end, where the next one begins, and who is refused.

Each test ends with every byte of the bucket held against the servers' own files of that time. Of
servers with GTIDs, without them and of MariaDB each has what differs there.
"""

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from lab.load import Load, Shape
from lab.mysql import MysqlServer, server_of
from lab.s3 import MinioServer
from lab.tcp import Switch
from tests.integration.stream_process import StreamProcess, run_to_end
from tests.waiting import wait_until
from tests.world.archive import Archive
from tests.world.commands import Recovery, read_only
from tests.world.servers import (
    executed,
    flush,
    follow,
    forget,
    image_of,
    is_mariadb,
    of_image,
    on_disk,
    put_back,
    reset,
    uuid_of,
)
from tests.world.writes import caught_up, create_table, write

KINDS = {"gtid": "mysql", "no-gtid": "mysql_without_gtids", "mariadb": "mariadb"}
FIRST = "mysql-bin.000001"


@dataclass(slots=True)
class Life:
    """A server with a table, its bucket, and what is started beside them."""

    server: MysqlServer
    archive: Archive
    place: Path
    stack: ExitStack
    streams: int = 0

    def start(
        self, *flags: str, server: MysqlServer | None = None, spool: str = "spool", **options: Any
    ) -> StreamProcess:
        """A streamer."""
        self.streams += 1
        chosen = {name.replace("_", "-"): value for name, value in options.items()}
        process = StreamProcess(
            self.place / f"stream-{self.streams}",
            server or self.server,
            self.archive.bucket.store,
            self.archive.bucket.name,
            options={"stall-timeout": 5, "spool": self.place / spool, **chosen},
            arguments=flags,
        )
        return self.stack.enter_context(process)

    @property
    def has_gtids(self) -> bool:
        return bool(executed(self.server))

    def door(self, port: int | None = None) -> Switch:
        """A port that leads to the server, or to another one."""
        return self.stack.enter_context(Switch(port or self.server.port))

    def sibling(self, name: str, server_id: int = 2) -> MysqlServer:
        """Another server of the same kind, with the same account."""
        made = server_of(
            self.server.binaries,
            self.place / name,
            server_id=server_id,
            gtid=self.has_gtids,
            options=["--log-slave-updates"] if is_mariadb(self.server) else [],
        )
        made.password = self.server.password
        return self.stack.enter_context(made)

    def replica(self) -> MysqlServer:
        """One that replicates from the server, and has all that it has now."""
        made = self.sibling("replica")
        follow(made, self.server)
        caught_up(made, self.server)
        return made

    def copy(self, image: Path, name: str) -> MysqlServer:
        """A server that begins with the data of an image of this one, and has a uuid of its own."""
        binaries, password = self.server.binaries, self.server.password
        gtid = "--gtid-mode=ON" in self.server._argv()
        place = self.place / name
        made = of_image(binaries, place, image, 1, password, gtid=gtid, own_uuid=True)
        return self.stack.enter_context(made)

    def parent(self, lineage: str) -> dict[str, Any]:
        found = self.archive.lineages()[lineage]["parent"]
        assert isinstance(found, dict)
        return found

    def first(self) -> str:
        """The lineage that comes first, once it is there."""
        return wait_until(lambda: next(iter(self.archive.lineages()), ""), what="a lineage")

    def wait_spooled(self, name: str, size: int) -> None:
        """Until so much of a binlog is in the spool."""

        def come() -> bool:
            files = (self.place / "spool").glob(f"run-*/{name}")
            return any(path.stat().st_size >= size for path in files)

        wait_until(come, what=f"{name} in the spool")

    def recover(self, *arguments: str) -> dict[str, Any]:
        """The document of `pitr --latest` without a target."""
        store: Any = self.archive.bucket.store
        recovery = Recovery(store, self.archive.bucket.name, read_only(store))
        done = recovery.run(None, "--latest", "--json", *arguments)
        assert done.status == 0, done.stderr
        return done.document


@pytest.fixture(params=KINDS)
def life(
    request: pytest.FixtureRequest, minio: MinioServer, bucket: str, disk_tmp_path: Path
) -> Iterator[Life]:
    """Of each kind of server."""
    server: MysqlServer = request.getfixturevalue(KINDS[request.param])
    create_table(server)
    with ExitStack() as stack:
        yield Life(server, Archive(minio, bucket), disk_tmp_path, stack)


def cells(*rows: Any, names: str = "") -> pytest.MarkDecorator:
    """The kinds of servers for a test, each with the values of `names`."""
    return pytest.mark.parametrize(f"life{names}", rows, indirect=["life"])


# the same server, its history goes on


@pytest.mark.own_server("it is restarted")
@cells("no-gtid", "mariadb")
def test_a_clean_restart_goes_on_in_the_middle(life: Life) -> None:
    """A server that is stopped and started: its STOP event arrives, its lineage goes on."""
    server, archive = life.server, life.archive
    stream = life.start()
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
@cells("gtid", "no-gtid", "mariadb")
def test_a_crash_under_load_goes_on(life: Life) -> None:
    """kill -9 of a server that is written to: the same lineage, and no byte of it is lost."""
    server, archive = life.server, life.archive
    stream = life.start()
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
@cells("gtid", "mariadb")
def test_a_reset_while_it_is_streamed(life: Life) -> None:
    """All binlogs deleted and begun anew: a new lineage that nothing joins to the old one.

    First in the first binlog, whose name stays the same, so that mysqlbinlog notices nothing.
    """
    server, archive = life.server, life.archive
    stream = life.start()
    write(server, "before", 9)
    eras = {archive.arrived(stream, server): "first"}
    for era in ("second", "third"):
        before = list(eras)[-1]
        archive.remember()
        archive.keep(eras[before], server)
        reset(server)
        write(server, "after")
        lineage = archive.works(stream, server, era)
        assert lineage not in eras
        assert life.parent(lineage)["join"] == "unknown"
        assert life.parent(lineage)["lineage"] == before
        eras[lineage] = era
    assert stream.terminate() == 0
    archive.holds(eras, begins=dict.fromkeys(eras, FIRST))


ROTATE_BYTES = 19 + 8 + len("mysql-bin.000002") + 4


def other_era(server: MysqlServer, longer: int = 0) -> None:
    """A new history of eleven transactions, all in the first binlog, so many bytes longer."""
    texts = ["after" + "!" * longer, *["after"] * 10]
    reset(server, *[f"INSERT INTO shop.t VALUES ('{text}')" for text in texts])


@cells(("gtid", ROTATE_BYTES, False), ("no-gtid", ROTATE_BYTES, True), names=",longer,killed")
def test_a_reset_that_uses_the_same_gtids_again(life: Life, longer: int, killed: bool) -> None:
    """As many transactions as before, and on to the next binlog: equal GTIDs prove nothing then.

    Nor do equal sizes. Behind a `kill -9` before anybody asked the server, what the spool has of
    both is not taken for one history.
    """
    server, archive = life.server, life.archive
    other_era(server, longer)
    stream = life.start()
    first = archive.arrived(stream, server)
    archive.keep("first", server)
    if killed:
        os.kill(stream.pid, signal.SIGSTOP)
    before = server.binlogs()[0][1]
    other_era(server)
    flush(server)
    assert (server.binlogs()[0][1] == before) is (longer == ROTATE_BYTES)
    if killed:
        write(server, "after")
        life.wait_spooled(*server.binlogs()[-1])
        stream.kill()
        stream = life.start()
    second = archive.works(stream, server, "second")
    assert life.parent(second)["join"] == "unknown"
    assert stream.terminate() == 0
    archive.holds({first: "first", second: "second"}, begins={second: FIRST})


@pytest.mark.gate
@cells("gtid")
def test_host_and_streamer_die_soon_behind_a_reset(life: Life) -> None:
    """No heartbeat has told of the new history: it is the one that is restored all the same."""
    server, archive, place = life.server, life.archive, life.place / "restored"
    stream = life.start(heartbeat_interval=3600)
    write(server, "before")
    first = life.first()
    wait_until(lambda: archive.bucket.heartbeat()["lineage"] == first, what="a heartbeat")
    reset(server, "INSERT INTO shop.t VALUES ('after')")
    flush(server)
    write(server, "after")
    wait_until(lambda: len(archive.lineages()) == 2, what="the second lineage")
    (second,) = set(archive.lineages()) - {first}
    key = f"/{second}/binlogs/{FIRST}"
    wait_until(lambda: key in "".join(archive.bucket.keys()), what=key)
    stream.kill()
    assert archive.bucket.heartbeat()["lineage"] == first
    begin = (f"--from-lineage={second}", f"--from-binlog={FIRST}", "--from-position=4")
    document = life.recover(f"--output-dir={place}", *begin)
    assert document["plan"]["lineage"] == second
    assert [path.name for path in place.iterdir() if path.is_dir()] == [second]
    assert document["result"]["transactions"] >= 1
    stream = life.start()
    assert archive.works(stream, server, "second") == second
    assert stream.terminate() == 0


@cells("mariadb")
def test_what_a_reset_left_in_the_spool_alone_is_brought_in(life: Life) -> None:
    """The server has destroyed it, the bucket had none of it: it becomes durable all the same."""
    server, archive = life.server, life.archive
    stream = life.start(flush_interval=0)
    write(server, "before", 9)
    name, size = server.binlogs()[-1]
    life.wait_spooled(name, size)
    first = life.first()
    archive.keep("first", server)
    reset(server)
    for _ in range(2):
        write(server, "after")
        flush(server)
    archive.keep("second", server)
    closed = server.binlogs()[-2][0]

    def second() -> str:
        found = [one for one in archive.lineages() if one != first]
        return next((one for one in found if closed in archive.described(one)), "")

    new = wait_until(second, what=f"the entry of {closed}")
    found = life.parent(new)
    assert (found["join"], found["binlog"], found["offset"]) == ("unknown", name, size)
    assert stream.terminate() == 0
    archive.holds({first: "first", new: "second"})
    assert len(archive.in_chunks(first)[name]) == size


# a server that was rolled back


@pytest.mark.own_server("it is rolled back to a copy")
@cells(
    ("gtid", "snapshot", "running"),
    ("no-gtid", "crash", "running"),
    ("mariadb", "snapshot", "down"),
    names=",copied,streamer",
)
def test_a_server_that_is_rolled_back(life: Life, copied: str, streamer: str) -> None:
    """Same uuid, same names, GTIDs used again: the branch begins at the last common transaction."""
    server, archive = life.server, life.archive
    stream = life.start()
    flush(server)
    write(server, "common")
    archive.arrived(stream, server)
    server.freeze() if copied == "snapshot" else server.kill()
    name, body = list(on_disk(server).items())[-1]
    image = image_of(server, life.place / "image")
    archive.keep("first", server)
    archive.keep("second", server)
    server.thaw() if copied == "snapshot" else server.start()
    gtids = executed(server)
    for count in (3, 5):
        write(server, "lost", count)
        flush(server)
    write(server, "lost", 2)
    first = archive.arrived(stream, server)
    if streamer == "down":
        assert stream.terminate() == 0
    server.kill()
    archive.keep("first", server)
    archive.remember()
    put_back(server, image)
    server.start()
    write(server, "other")
    if streamer == "down":
        stream = life.start()
    second = archive.works(stream, server, "second")
    assert second != first
    found = life.parent(second)
    assert (found["lineage"], found["join"], found["missing"]) == (first, "exact", "")
    assert (found["binlog"], found["offset"]) == (name, len(body))
    if gtids:
        assert found["gtid_set"] == gtids
    assert stream.terminate() == 0
    archive.holds({first: "first", second: "second"})
    assert all(b"lost" in body for body in list(archive.binlogs(first).values())[-1:])
    begin = (f"--from-lineage={first}", f"--from-binlog={FIRST}", "--from-position=4")
    warnings = life.recover("--dry-run", *begin)["plan"]["warnings"]
    said = f"without the transactions that lineage {first} has from {name}:{len(body)} on"
    assert any(said in one for one in warnings)


# another server


def wait_for_refusals(stream: StreamProcess, uuid: str) -> None:
    """Until it has said twice that it refuses this server; it goes on to ask."""

    def refusals() -> int:
        lines = [line for line in stream.log() if uuid in str(line.get("error"))]
        return sum(f"--accept-new-server {uuid}" in line["hint"] for line in lines)

    wait_until(lambda: refusals() >= 2, what="it refuses, and asks again")
    assert stream.process.poll() is None


def refused_at_start(life: Life, server: MysqlServer, ours: str) -> None:
    """A start against this server that does not stand by ends with exit 4 and names both."""
    store, bucket = life.archive.bucket.store, life.archive.bucket.name
    place = life.place / "refused"
    status, log, stderr = run_to_end(place, server, store, bucket, arguments=["--take-over"])
    assert status == 4, stderr
    assert ours in log[-1]["error"]
    assert uuid_of(server) in log[-1]["error"]
    assert f"--accept-new-server {uuid_of(server)}" in log[-1]["hint"]


def led_by(life: Life, door: Switch) -> Path:
    """A mysqlbinlog that goes to a door of its own, whatever port the questions go to."""
    program = life.place / "mysqlbinlog-by-another-door"
    real = life.server.binaries.binlog
    words = f'exec "{real}" "$first" --port={door.port} "$@"'
    program.write_text(f"#!/bin/sh\nfirst=$1\nshift\n{words}\n")
    program.chmod(0o755)
    return program


@pytest.mark.own_server("it is killed")
@cells(("gtid", "running"), ("no-gtid", "down"), names=",streamer")
def test_a_server_restored_from_a_backup(life: Life, streamer: str) -> None:
    """It lacks what was archived since: refused, until --accept-new-server names it."""
    server, archive = life.server, life.archive
    door = life.door()
    stream = life.start(mysql_port=door.port)
    write(server, "in the backup")
    archive.arrived(stream, server)
    server.kill()
    image = image_of(server, life.place / "image")
    server.start()
    gtids, ours = executed(server), uuid_of(server)
    for _ in range(2):
        write(server, "lost")
        flush(server)
    write(server, "lost")
    first = archive.works(stream, server, "first")
    if streamer == "down":
        assert stream.terminate() == 0
    server.kill()
    archive.keep("first", server)
    archive.remember()
    restored = life.copy(image, "restored")
    reset(restored, *([f"SET GLOBAL gtid_purged = '{gtids}'"] if gtids else []))
    write(restored, "restored")
    door.turn(restored.port)
    uuid = uuid_of(restored)
    if streamer == "down":
        refused_at_start(life, restored, ours)
    else:
        wait_for_refusals(stream, uuid)
        assert stream.terminate() == 0
    assert list(archive.lineages()) == [first]
    stream = life.start(mysql_port=door.port, accept_new_server=uuid)
    second = archive.works(stream, restored, "second")
    found = life.parent(second)
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
    archive.holds({first: "first", second: "second"}, begins={second: FIRST})


@cells("gtid")
def test_another_server_under_the_same_address(life: Life) -> None:
    """A stranger answers for a while: refused, loudly; then it goes on as if nothing had been."""
    server, archive = life.server, life.archive
    stranger = life.sibling("stranger", 1)
    create_table(stranger)
    door = life.door()
    stream = life.start(mysql_port=door.port)
    write(server, "before")
    first = archive.arrived(stream, server)
    write(stranger, "strange", 20)
    door.turn(stranger.port)
    write(server, "meanwhile")
    wait_for_refusals(stream, uuid_of(stranger))
    door.turn(server.port)
    assert archive.works(stream, server, "it") == first
    assert stream.terminate() == 0
    archive.holds({first: "it"})


@cells(("gtid", "start"), ("no-gtid", "taken-over"), names=",led")
def test_mysqlbinlog_alone_is_led_to_another_server(life: Life, led: str) -> None:
    """Once, between the question and mysqlbinlog's connection, and for a while: no byte is taken.

    At the very first start too, and at one with an empty disk, whose first run begins where the
    bucket ends; then it goes on.
    """
    server, archive = life.server, life.archive
    stranger = life.sibling("stranger", 1)
    create_table(stranger)
    write(stranger, "strange", 20)
    door = life.door(stranger.port if led == "start" else server.port)
    stream = life.start(mysqlbinlog=led_by(life, door))
    write(server, "before")
    if led != "start":
        archive.arrived(stream, server)
        door.turn(stranger.port)
    if led == "taken-over":
        assert stream.terminate() == 0
        write(server, "meanwhile")
        stream = life.start(mysqlbinlog=led_by(life, door), spool="another")
    wait_until(lambda: door.led.count(stranger.port) >= 3, what="mysqlbinlog is led astray")
    door.turn(server.port)
    first = archive.arrived(stream, server)
    before = door.led.count(stranger.port)
    door.lead_once(stranger.port)
    door.cut()
    wait_until(lambda: door.led.count(stranger.port) > before, what="it is led astray once")
    assert archive.works(stream, server, "it") == first
    assert stream.terminate() == 0
    archive.holds({first: "it"})


@cells("gtid")
def test_a_streamer_ends_before_its_first_run_is_proved(life: Life) -> None:
    """What another server's bytes are in the spool then, no later start takes."""
    server, archive = life.server, life.archive
    stranger = life.sibling("stranger", 1)
    create_table(stranger)
    write(stranger, "strange", 20)
    asked, door = life.door(), life.door(stranger.port)
    door.hold()
    options = {"mysql_port": asked.port, "mysqlbinlog": led_by(life, door)}
    stream = life.start(**options)
    wait_until(lambda: door.waiting, what="mysqlbinlog connects")
    asked.hold()
    door.release()
    life.wait_spooled(*stranger.binlogs()[0])
    stream.kill()
    door.turn(server.port)
    asked.release()
    assert not archive.lineages()
    stream = life.start(**options)
    write(server, "afterwards")
    first = archive.works(stream, server, "it")
    assert stream.terminate() == 0
    archive.holds({first: "it"})


@pytest.mark.own_server("it is killed")
@cells(("gtid", 2), ("no-gtid", 0), ("mariadb", 5), names=",lacking")
def test_a_fail_over(life: Life, lacking: int) -> None:
    """To a replica that has everything, or lacks the last: the branch begins where both agree.

    On MariaDB two primaries use the same sequence numbers: the greater one is no proof.
    """
    server, archive, gtid = life.server, life.archive, life.has_gtids
    door = life.door()
    stream = life.start(mysql_port=door.port)
    write(server, "before")
    flush(server)
    write(server, "before")
    replica = life.replica()
    if not is_mariadb(server):
        flush(replica)
    write(server, "replicated")
    caught_up(replica, server)
    name, offset = server.binlogs()[-1]
    gtids = executed(server)
    if lacking:
        forget(replica)
        write(server, "lost", lacking)
    first = archive.arrived(stream, server)
    archive.keep("first", server)
    server.kill()
    archive.remember()
    forget(replica)
    begin = replica.binlogs()[-1][0]
    uuid = uuid_of(replica)
    write(replica, "promoted", 12)
    door.turn(replica.port)
    if not gtid:
        wait_for_refusals(stream, uuid)
        assert stream.terminate() == 0
        stream = life.start(mysql_port=door.port, accept_new_server=uuid)
        begin = FIRST
    second = archive.works(stream, replica, "second")
    found = life.parent(second)
    assert found["lineage"] == first
    if gtid:
        assert (found["join"], found["gtid_set"], found["missing"]) == ("exact", gtids, "")
        assert (found["binlog"], found["offset"]) == (name, offset)
    else:
        assert found["join"] == "unknown"
    assert stream.terminate() == 0
    archive.holds({first: "first", second: "second"}, begins={second: begin})
    assert archive.binlogs(first)[name].count(b"lost") == lacking


@pytest.mark.own_server("it is killed")
@cells(("gtid", True), ("no-gtid", False), names=",golden")
def test_the_source_of_another_live_server(life: Life, golden: bool) -> None:
    """--source copied from another machine: refused, and the one that works is not disturbed.

    So also with --take-over, without which it would stand by.
    """
    archive, gtids = life.archive, ""
    if golden:
        write(life.server, "golden")
        gtids = executed(life.server)
        life.server.kill()
        image = image_of(life.server, life.place / "image")
        ours, mistaken = life.copy(image, "ours"), life.copy(image, "mistaken")
    else:
        ours, mistaken = life.server, life.sibling("mistaken", 1)
        create_table(mistaken)
    # else a slow machine's server would be given up
    stream = life.start("--exit-on-other-writer", server=ours, stall_timeout=600)
    for text in ("ours", "more of ours"):
        write(ours, text)
        if not golden:  # else the image's GTIDs are all that went before the open binlog
            flush(ours)
    first = archive.arrived(stream, ours)
    archive.remember()
    write(mistaken, "mistaken", 9)
    pid = stream.wait_for_event("streaming")["pid"]
    writers = archive.writers()
    refused_at_start(life, mistaken, uuid_of(ours))
    assert archive.works(stream, ours, "ours") == first
    assert [line["pid"] for line in stream.events("streaming")] == [pid]
    assert Path(f"/proc/{pid}").exists()
    assert archive.writers() == writers
    uuid = uuid_of(mistaken)
    taken = life.start("--take-over", server=mistaken, spool="taken", accept_new_server=uuid)
    second = archive.works(taken, mistaken, "mistaken")
    assert stream.wait() == 9
    found = life.parent(second)
    assert found["lineage"] == first
    assert found["join"] == ("exact" if gtids else "unknown")
    if gtids:
        assert found["gtid_set"] == gtids
    assert taken.terminate() == 0
    archive.keep("ours", ours)
    archive.holds({first: "ours", second: "mistaken"})


@cells("gtid")
def test_mysqlbinlog_is_kept_on_the_old_primary(life: Life) -> None:
    """Questions go to the new primary, the stream stays on the old one: the run ends, unmixed."""
    server, archive = life.server, life.archive
    replica = life.replica()
    asked, door = life.door(), life.door()
    options = {"mysql_port": asked.port, "mysqlbinlog": led_by(life, door)}
    stream = life.start(**options, accept_new_server=uuid_of(replica))
    write(server, "before")
    first = archive.arrived(stream, server)
    caught_up(replica, server)
    forget(replica)
    write(replica, "promoted")
    asked.turn(replica.port)
    write(server, "split")
    stream.wait_for_event("mysqlbinlog ended")
    wait_until(lambda: len(stream.events("mysqlbinlog ended")) >= 3, what="it is tried again")
    archive.keep("first", server)
    assert list(archive.lineages()) == [first]
    door.turn(replica.port)
    second = archive.works(stream, replica, "second")
    assert life.parent(second)["join"] == "exact"
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


def write_unseen(life: Life, era: str) -> str:
    """Two binlogs that are purged before anybody has read them; the GTIDs with them."""
    for _ in range(2):
        write(life.server, "missing")
        flush(life.server)
    life.archive.keep(era, life.server)
    return executed(life.server)


@cells("gtid", "no-gtid")
def test_a_gap(life: Life) -> None:
    """What was purged unseen is named; what there is stays readable, and leaves the spool."""
    server, archive = life.server, life.archive
    stream = life.start()
    flush(server)
    write(server, "before")
    first = archive.arrived(stream, server)
    assert stream.terminate() == 0
    archive.remember()
    unfinished, size = server.binlogs()[-1]
    gtids = executed(server)
    both = write_unseen(life, "first")
    begin = purge(server)
    write(server, "after")
    stream = life.start()
    second = archive.works(stream, server, "second")
    found = life.parent(second)
    assert (found["lineage"], found["join"]) == (first, "gap")
    assert (found["binlog"], found["offset"]) == (unfinished, size)
    if not gtids:
        assert found["missing"] == f"{unfinished} from {size} on, mysql-bin.000003"
    else:
        lacks = server.query(f"SELECT GTID_SUBTRACT('{both}', '{gtids}')")[0][0]
        assert found["missing"] == lacks
    assert stream.terminate() == 0
    archive.holds({first: "first", second: "second"}, begins={second: begin})
    assert len(archive.in_chunks(first)[unfinished]) == size
    spooled = (life.place / "spool").glob("run-*/mysql-bin.*")
    assert unfinished not in {path.name for path in spooled if path.stat().st_size}


@pytest.mark.own_server("it is stopped")
@cells("gtid")
def test_a_lost_stop_event_is_no_gap(life: Life) -> None:
    """A purged binlog that lacked its STOP alone: the lineage goes on, as the GTIDs prove."""
    server, archive = life.server, life.archive
    stream = life.start()
    write(server, "before")
    first = archive.arrived(stream, server)
    assert stream.terminate() == 0
    archive.remember()
    name, size = server.binlogs()[-1]
    server.stop()
    archive.keep("it", server)
    server.start()
    archive.keep("it", server)
    purge(server)
    stream = life.start()
    assert archive.works(stream, server, "it") == first
    assert stream.terminate() == 0
    archive.holds({first: "it"})
    assert len(archive.in_chunks(first)[name]) == size
