"""mysqlbinlog is supervised: whatever ends it, freezes it or lies beside it, the stream goes on.

Each test ends with every closed binlog in the bucket, byte for byte, and in one lineage.
"""

import os
import signal
import socket
import threading
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from time import monotonic

import pymysql
import pytest

from binlog2s3.binlog.names import BinlogName
from binlog2s3.server.mysqlbinlog import Child, Tool
from lab.get import ServerBinaries
from lab.load import Load
from lab.mysql import MariadbServer, MysqlServer
from lab.proxy import RecordingProxy
from lab.s3 import MinioServer
from lab.tcp import Switch
from lab.verify import closed_binlogs
from tests.integration.bucket import Bucket
from tests.integration.stream_process import Line, StreamProcess
from tests.integration.streaming import (
    MB,
    MIXED,
    Start,
    alive,
    all_came,
    came,
    child_of,
    documents,
    finish,
    kill_connections,
    reach,
    sent,
    wait_until_archived,
    write,
)
from tests.login import ROOT
from tests.waiting import wait_until
from tests.world.servers import open_binlog

STALL = 3
LONG_STALL = 20  # where it must not pass: a busy machine answers within that


# The child dies


def brought(stream: StreamProcess, name: str) -> int:
    """The size of this binlog's file, as the newest mysqlbinlog writes it."""
    try:
        return (max(stream.spool.glob("run-*")) / name).stat().st_size
    except FileNotFoundError:
        return 0


def test_the_child_is_killed_again_and_again(
    mariadb: MariadbServer, start: Start, minio: MinioServer, bucket: str
) -> None:
    """Under load: each run goes on where the one before it was, and nothing is sent twice.

    Each brings something, so none counts as a further failure. (A busy server lets go of the
    connection of a killed child only after a while: runs that it ends meanwhile may.)
    """
    with RecordingProxy(minio.endpoint_url) as proxy:
        # no small chunks, which send each byte once more by design
        with start(mariadb, endpoint_url=proxy.url, flush_interval=3600) as stream:
            child_of(stream)
            first, there = mariadb.binlogs()[0][0], Bucket(minio, bucket)
            wait_until(lambda: there.chunks(first), what="the first flush, which is due at once")
            write(mariadb, 6)
            with Load(mariadb, threads=2, seconds=1200, shape=MIXED, pause_seconds=0.005):
                for number in range(4):
                    child_of(stream, number + 1)
                    run = stream.events("streaming")[-1]
                    known = dict(mariadb.binlogs())[first] - run["position"]
                    wait_until(
                        lambda known=known: brought(stream, first) > known + 300_000,
                        300,
                        "more binlog in the spool",
                    )
                    os.kill(run["pid"], signal.SIGKILL if number % 2 else signal.SIGTERM)
            child_of(stream, 5)
            write(mariadb, 6)
            finish(stream, mariadb, minio, bucket)
        records = proxy.records
    runs = stream.events("streaming")
    assert [line["position"] for line in runs[1:] if line["position"] <= 4] == []
    written = sum(binlog.size for binlog in closed_binlogs(mariadb, flush=False))
    assert written < sent(records) < written * 1.01 + 100_000
    assert sum(line["failures"] == 0 for line in stream.events("reading again")) >= 4


@pytest.mark.gate
def test_the_child_is_killed_inside_a_big_event(
    mysql: MysqlServer, start: Start, minio: MinioServer, bucket: str
) -> None:
    """Killed while it gets an event of 40 MB, and while it writes one: both arrive whole."""
    mysql.query("CREATE DATABASE big", "CREATE TABLE big.t (v LONGBLOB)")
    insert = "INSERT INTO big.t VALUES (REPEAT('b', 40000000))"
    with Switch(mysql.port) as door, start(mysql, mysql_port=door.port) as stream:
        first = child_of(stream)
        write(mysql, 1)
        name, _ = all_came(stream, mysql)
        door.hold()
        mysql.query(insert)
        os.kill(first, signal.SIGKILL)
        door.cut()
        door.release()
        second = child_of(stream, 2)
        wait_until(lambda: came(stream.spool, name) > 40 * MB, what="the first one")
        size = came(stream.spool, name)
        mysql.query(insert)
        wait_until(lambda: came(stream.spool, name) > size, what="it grows", interval=0)
        os.kill(second, signal.SIGTERM)
        finish(stream, mysql, minio, bucket)
    assert all(line["position"] > 4 for line in stream.events("streaming")[2:])


# The account


@pytest.mark.gate
def test_a_password_that_is_rotated_is_waited_for(
    mysql: MysqlServer, start: Start, minio: MinioServer, bucket: str
) -> None:
    """The server knows a new one already, the file does not: loud, no end; then it goes on."""
    with start(mysql) as stream:
        write(mysql, 1)
        child_of(stream)
        wait_until_archived(stream, mysql, minio, bucket)
        mysql.query(
            "SET sql_log_bin = 0", f"ALTER USER {mysql.repl_user}@'%' IDENTIFIED BY 'Another-1'"
        )
        kill_connections(mysql)
        wait_until(
            lambda: any(
                "Access denied" in line["error"] and line["failures"] >= 2
                for line in stream.events("reading again")
            ),
            what="refused again and again",
        )
        write(mysql, 1)
        there = Bucket(minio, bucket)
        wait_until(
            lambda: there.heartbeat()["state"] == "source unreachable", what="the heartbeat says so"
        )
        many = len(stream.events("streaming"))
        mysql.password_file.write_text("Another-1")
        child_of(stream, many + 1)
        finish(stream, mysql, minio, bucket)
    denied = [line for line in stream.events("reading again") if "Access denied" in line["error"]]
    assert all("password" in line["hint"] for line in denied)


# The server, or the way to it, is silent


@pytest.mark.own_server("it is frozen")
def test_a_frozen_server_is_noticed(
    mariadb: MariadbServer, start: Start, minio: MinioServer, bucket: str
) -> None:
    """Its connections are open and silent: the child is ended; after the thaw it goes on."""
    with start(mariadb, stall_timeout=STALL, mysql_connect_timeout=2) as stream:
        write(mariadb, 1)
        wait_until_archived(stream, mariadb, minio, bucket)
        child, runs = child_of(stream), len(stream.events("streaming"))
        before = len(stream.events("reading again"))
        mariadb.freeze()
        try:
            line = said_again(stream, before)
            assert "no answer" in line["error"]
            assert "--stall-timeout" in line["hint"]
            wait_until(lambda: not alive(child), what="the child is ended")
            said_again(stream, before + 1)
        finally:
            mariadb.thaw()
        child_of(stream, runs + 1)
        finish(stream, mariadb, minio, bucket)


@pytest.mark.gate
def test_a_network_that_is_cut_without_a_word_is_noticed(
    mysql: MysqlServer, start: Start, minio: MinioServer, bucket: str
) -> None:
    """Nothing passes and nobody is told: another connection is tried until one gets through."""
    options = {"stall_timeout": STALL, "mysql_connect_timeout": 2}
    with Switch(mysql.port) as door, start(mysql, mysql_port=door.port, **options) as stream:
        write(mysql, 1)
        wait_until_archived(stream, mysql, minio, bucket)
        child, runs = child_of(stream), len(stream.events("streaming"))
        before = len(stream.events("reading again"))
        door.hold()
        write(mysql, 1)
        line = said_again(stream, before)
        assert "no answer" in line["error"] or "although the server writes" in line["error"]
        wait_until(lambda: not alive(child), what="the child is ended")
        door.cut()
        door.release()
        child_of(stream, runs + 1)
        finish(stream, mysql, minio, bucket)


def said_again(stream: StreamProcess, before: int) -> Line:
    """What it says of the next end of a run, after so many."""
    wait_until(lambda: len(stream.events("reading again")) > before, what="the next end of a run")
    return stream.events("reading again")[before]


class Lane(Switch):
    """A relay whose first connection that reads the binary log can be made a dead end."""

    def __init__(self, target: int) -> None:
        super().__init__(target)
        self.stopped: set[socket.socket] = set()
        self.dumping: list[socket.socket] = []

    def block_dumps(self) -> None:
        """Let those that read the binary log now read no more, and keep them open."""
        self.stopped.update(self.dumping)

    def _delay(self, piece: bytes, source: socket.socket, target: socket.socket) -> None:
        if piece[4:5] in (b"\x12", b"\x1e") and target.getpeername()[1] == self._target:
            self.dumping.append(target)  # COM_BINLOG_DUMP, COM_BINLOG_DUMP_GTID
        gate = threading.Event()
        while source in self.stopped and not self._over.is_set():
            gate.wait(0.1)


def test_a_dead_connection_of_the_child_alone_is_noticed(
    mysql: MysqlServer, start: Start, minio: MinioServer, bucket: str
) -> None:
    """The questions are answered, the server goes on, and nothing comes: the child is ended."""
    options = {"stall_timeout": 2 * STALL, "mysql_ssl_mode": "DISABLED"}
    with Lane(mysql.port) as door, start(mysql, mysql_port=door.port, **options) as stream:
        write(mysql, 1)
        wait_until_archived(stream, mysql, minio, bucket)
        child = child_of(stream)
        assert door.dumping
        door.block_dumps()
        write(mysql, 1)
        wait_until(lambda: stands_still(stream), what="it is said")
        wait_until(lambda: not alive(child), what="the child is ended")
        finish(stream, mysql, minio, bucket)


def stands_still(stream: StreamProcess) -> bool:
    """Whether it has ended a run for that reason."""
    words = "although the server writes"
    return any(words in line["error"] for line in stream.events("reading again"))


def test_an_idle_server_keeps_its_child(
    mariadb: MariadbServer, start: Start, minio: MinioServer, bucket: str
) -> None:
    """Nothing to read for longer than --stall-timeout: the same child all the time.

    That is long enough for a busy machine to answer the streamer's questions.
    """
    there = Bucket(minio, bucket)
    with start(mariadb, stall_timeout=LONG_STALL) as stream:
        write(mariadb, 1)
        wait_until_archived(stream, mariadb, minio, bucket)
        wait_until(lambda: durable_at(there, mariadb), what="all is durable")
        first = wait_until(lambda: covered(there), what="a moment up to which all is covered")
        wait_until(
            lambda: covered(there) - first > LONG_STALL + 5, 300, "a long time", interval=0.3
        )
        assert len(stream.events("streaming")) == 1
        assert alive(child_of(stream))
        finish(stream, mariadb, minio, bucket)
    assert stream.events("reading again") == []


def durable_at(there: Bucket, server: MysqlServer) -> bool:
    """Whether the bucket has what the server has."""
    name, size = server.binlogs()[-1]
    durable = there.heartbeat()["durable"]
    return bool(durable) and (durable["binlog"], durable["offset"]) == (name, size)


def covered(there: Bucket) -> float:
    """Up to when all is durable, as the heartbeat has it; 0 until that is known."""
    until = there.heartbeat()["covered_until"]
    return datetime.fromisoformat(until).timestamp() if until else 0.0


# The server has no time for us


def ask_as_repl(server: MysqlServer) -> None:
    """What our own connections would meet there."""
    with (
        server.connect(server.repl_user, host="127.0.0.1") as connection,
        connection.cursor() as cursor,
    ):
        for _ in range(2):
            cursor.execute("SELECT 1")


def test_a_server_at_a_limit_keeps_its_stream(
    mysql_binaries: ServerBinaries,
    start: Start,
    minio: MinioServer,
    bucket: str,
    disk_tmp_path: Path,
) -> None:
    """It refuses our questions, which is an answer: the child reads on, the same one."""
    limit = "ALTER USER repl@'%' WITH MAX_QUERIES_PER_HOUR"
    there = Bucket(minio, bucket)
    with MysqlServer(mysql_binaries, disk_tmp_path / "server") as server:
        with start(server, stall_timeout=LONG_STALL) as stream:
            write(server, 1)
            wait_until_archived(stream, server, minio, bucket)
            child = child_of(stream)
            with server.connect() as root, root.cursor() as ask:
                ask.execute("SET sql_log_bin = 0")
                ask.execute(f"{limit} 1")
                ask.execute(
                    "SELECT id FROM information_schema.processlist "
                    "WHERE user = 'repl' AND command NOT LIKE 'Binlog Dump%'"
                )
                for (connection,) in ask.fetchall():
                    ask.execute(f"KILL {connection}")
                ask.execute("SET sql_log_bin = 1")
                with pytest.raises(pymysql.Error, match=r"^\(1226, "):
                    ask_as_repl(server)
                stream.wait_for_event("the server does not answer")
                until = monotonic() + LONG_STALL + 5
                while monotonic() < until:
                    ask.execute("INSERT INTO bulk.t (v) VALUES ('row at the limit')")
                    ask.execute("SHOW BINARY LOGS")
                    name, size, *_ = ask.fetchall()[-1]
                    wait_until(
                        lambda name=name, size=size: reach(there, name) >= size,
                        what="the row is durable",
                        interval=0.2,
                    )
                ask.execute("SET sql_log_bin = 0")
                ask.execute(f"{limit} 0")
                ask.execute("FLUSH USER_RESOURCES")
            stream.wait_for_event("the server answers again")
            assert child_of(stream) == child
            assert alive(child)
            finish(stream, server, minio, bucket)
        assert stream.events("reading again") == []


class Slow(Switch):
    """A relay that lets each of the server's answers wait, but no bulk."""

    seconds = 0.0

    def _delay(self, piece: bytes, source: socket.socket, _target: socket.socket) -> None:
        if self.seconds and len(piece) < 1000 and source.getpeername()[1] == self._target:
            threading.Event().wait(self.seconds)


def test_a_slow_server_keeps_its_stream(
    mysql: MysqlServer, start: Start, minio: MinioServer, bucket: str
) -> None:
    """Answers that take longer than --mysql-connect-timeout but come are answers."""
    options = {"stall_timeout": 600, "mysql_connect_timeout": 2}
    with Slow(mysql.port) as door, start(mysql, mysql_port=door.port, **options) as stream:
        write(mysql, 1)
        wait_until_archived(stream, mysql, minio, bucket)
        child, before = child_of(stream), len(stream.events("reading again"))
        silent = len(stream.events("the server does not answer"))
        door.seconds = 2.5
        there = Bucket(minio, bucket)
        write(mysql, 1)
        name, size = mysql.binlogs()[-1]
        wait_until(lambda: reach(there, name) >= size, what="it arrives")
        wait_until(
            lambda: answered(there) >= (name, size),
            300,
            "an answer to the question where the server stands",
        )
        door.seconds = 0.0
        assert child_of(stream) == child
        assert alive(child)
        finish(stream, mysql, minio, bucket)
    assert len(stream.events("reading again")) == before
    assert len(stream.events("the server does not answer")) == silent


def answered(there: Bucket) -> tuple[str, int]:
    """Where the server stood when it was last asked, as the heartbeat has it."""
    server = there.heartbeat()["server"]
    return (server["binlog"], server["offset"]) if server else ("", 0)


def test_two_with_one_server_id_both_go_on(
    mysql: MysqlServer, start: Start, minio: MinioServer, bucket: str
) -> None:
    """They end each other's child, which the log names; when one leaves, the other has it all."""
    one = start(mysql, "one", mysql_server_id=777)
    two = start(mysql, "two", mysql_server_id=777, source="other")
    with one, two:
        wait_until(lambda: len(one.events("reading again")) >= 2, what="ended twice")
        for line in one.events("reading again"):
            assert "with the same server_uuid/server_id" in line["error"]
            assert "another --mysql-server-id" in line["hint"]
        assert two.terminate() == 0
        write(mysql, 2)
        wait_until_archived(one, mysql, minio, bucket)
        assert one.terminate() == 0


# The streamer, or a part of it, ends


def test_the_thread_that_started_a_child_may_end(disk_tmp_path: Path) -> None:
    """The kernel ends a child with its parent, not with the thread that made it."""
    program = disk_tmp_path / "mysqlbinlog"
    program.write_text("#!/bin/sh\necho begun >&2\nexec sleep 3600\n")
    program.chmod(0o755)
    told: list[str] = []
    children: list[Child] = []

    def begin() -> None:
        children.append(
            Child(
                Tool(path=str(program), flavour="mysql", version="9", connection_server_id=True),
                replace(
                    ROOT, port=1, user="u", password="p", ssl_mode="DISABLED", connect_timeout=1
                ),
                server_id=1,
                directory=disk_tmp_path,
                binlog=BinlogName.parse("mysql-bin.000001"),
                on_line=told.append,
            )
        )

    thread = threading.Thread(target=begin)
    thread.start()
    thread.join()
    (child,) = children
    try:
        wait_until(lambda: told, what="it runs")
        native = thread.native_id
        wait_until(lambda: not Path(f"/proc/self/task/{native}").exists(), what="the thread's end")
        assert child.poll() is None
        assert alive(child.pid)
    finally:
        assert child.stop(grace_seconds=60) == -signal.SIGTERM


@pytest.mark.gate
@pytest.mark.own_server("it is stopped")
def test_a_restart_while_the_server_is_down_waits(
    mariadb: MariadbServer, start: Start, minio: MinioServer, bucket: str
) -> None:
    """The bucket has the history, the spool is empty: it waits, and goes on when it is up."""
    with start(mariadb) as stream:
        write(mariadb, 2)
        wait_until_archived(stream, mariadb, minio, bucket)
        write(mariadb, 1)
        assert stream.terminate() == 0
    mariadb.kill()
    with start(mariadb, "two") as stream:
        wait_until(lambda: len(stream.events("waiting for the source")) >= 2, what="it waits")
        mariadb.start()
        stream.wait_for_event("streaming")
        finish(stream, mariadb, minio, bucket)


@pytest.mark.own_server("it is killed")
def test_a_torn_end_that_mariadb_left_is_passed(
    mariadb: MariadbServer, start: Start, minio: MinioServer, bucket: str
) -> None:
    """Half an event at a crashed binlog's end: what was there stays, the next binlog comes."""
    there = Bucket(minio, bucket)
    with start(mariadb) as stream:
        write(mariadb, 2)
        wait_until_archived(stream, mariadb, minio, bucket)
        write(mariadb, 1)
        name, size = open_binlog(mariadb)
        wait_until(lambda: reach(there, name) == size, what="all is durable")
        mariadb.kill()
        torn = mariadb.datadir / name
        body = torn.read_bytes()
        assert len(body) == size
        with torn.open("ab") as file:
            file.write(bytes(4) + b"\xa2" + bytes(4) + (42).to_bytes(4, "little") + b"half")
        mariadb.start()
        write(mariadb, 2)
        mariadb.query("FLUSH BINARY LOGS")
        names = [other for other, _ in mariadb.binlogs()[:-1] if other > name]
        wait_until(lambda: set(names) <= set(there.archived()), what="the later ones")
        assert there.binlogs()[name][22:] == body[22:]
        for other in names:
            assert there.binlogs()[other] == (mariadb.datadir / other).read_bytes()
        assert stream.terminate() == 0
    assert "Traceback" not in stream.stderr()
    lineages = sorted(documents(minio, bucket, "lineage.json").values(), key=lambda d: d["lineage"])
    assert [(one["parent"] or {}).get("join") for one in lineages] in ([None], [None, "exact"])
