"""Questions to real servers: who they are, what they have, where they stand."""

import socket
import socketserver
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from binlog2s3.binlog.events import IN_USE_FLAG, MAGIC
from binlog2s3.binlog.names import BinlogName
from binlog2s3.binlog.scanner import Scanner
from binlog2s3.errors import SourceError
from binlog2s3.server.connection import Server, ServerFacts, ServerPosition
from binlog2s3.server.dump import MOST_BYTES
from lab.get import ServerBinaries
from lab.load import Load
from lab.mysql import MariadbServer, MysqlServer
from lab.verify import closed_binlogs
from tests.waiting import wait_until
from tests.world.logins import login_to
from tests.world.servers import open_binlog

FLAGS_OFFSET = 17
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@contextmanager
def asking(server: MysqlServer, **changes: Any) -> Iterator[Server]:
    with Server(lambda: login_to(server, **changes)) as asks:
        yield asks


# What it answers


def test_facts_of_mysql(mysql_tls: MysqlServer) -> None:
    """The uuid is the server's own; flavour, version, server id and GTIDs as it says."""
    ((uuid, version),) = mysql_tls.query("SELECT @@server_uuid, @@version")
    with asking(mysql_tls) as server:
        assert server.facts() == ServerFacts(
            uuid=uuid, flavour="mysql", version=version, server_id=7, gtid_mode=True, tls=True
        )


def test_facts_of_mariadb(mariadb_tls: MariadbServer) -> None:
    """Server id and domain stand in for a uuid."""
    ((version,),) = mariadb_tls.query("SELECT @@version")
    with asking(mariadb_tls, ssl_mode="DISABLED") as server:
        assert server.facts() == ServerFacts(
            uuid="00000007-00000000",
            flavour="mariadb",
            version=version,
            server_id=7,
            gtid_mode=True,
            tls=False,
        )


def test_without_gtids(mysql_binaries: ServerBinaries, disk_tmp_path: Path) -> None:
    """gtid_mode OFF is said, and the set is empty everywhere."""
    with MysqlServer(mysql_binaries, disk_tmp_path, gtid=False) as one:
        one.query("CREATE DATABASE a", "FLUSH BINARY LOGS")
        with asking(one) as server:
            assert not server.facts().gtid_mode
            assert server.previous_gtids(BinlogName.parse("mysql-bin.000002")) == ""
            assert server.position().gtid_set == ""


def _fill(server: MysqlServer) -> None:
    """A few binlogs with GTIDs, tagged ones and other domains included."""
    name = f"filled_{len(server.binlogs())}"
    if server.binaries.flavour == "mysql":
        server.query(
            f"CREATE DATABASE {name}",
            "FLUSH BINARY LOGS",
            "SET gtid_next = 'AUTOMATIC:blue'",
            f"CREATE TABLE {name}.t (a INT PRIMARY KEY)",
            f"INSERT INTO {name}.t VALUES (1)",
            "SET gtid_next = 'AUTOMATIC:green_2'",
            f"INSERT INTO {name}.t VALUES (2)",
            "FLUSH BINARY LOGS",
            "SET gtid_next = 'AUTOMATIC'",
            f"INSERT INTO {name}.t VALUES (3)",
            "FLUSH BINARY LOGS",
        )
    else:
        server.query(
            f"CREATE DATABASE {name}",
            "FLUSH BINARY LOGS",
            "SET gtid_domain_id = 5",
            f"CREATE TABLE {name}.t (a INT PRIMARY KEY)",
            "FLUSH BINARY LOGS",
            "SET gtid_domain_id = 0, server_id = 99",
            f"INSERT INTO {name}.t VALUES (3)",
            "FLUSH BINARY LOGS",
        )


def test_binlogs_and_the_gtids_before_them(either_tls: MysqlServer) -> None:
    """Names, sizes and bytes as they lie on disk; previous GTIDs as the scanner reads them."""
    _fill(either_tls)
    with asking(either_tls) as server:
        # MariaDB notes a checkpoint in the newest one when it comes to it
        wait_until(
            lambda: (
                [row.size for row in server.binlogs()]
                == [(either_tls.datadir / str(row.name)).stat().st_size for row in server.binlogs()]
            ),
            what="sizes as they lie on disk",
        )
        listed = server.binlogs()
        assert len(listed) > 3
        for row in listed:
            path = either_tls.datadir / str(row.name)
            assert not row.encrypted
            scanner = Scanner()
            scanner.feed(memoryview(path.read_bytes()))
            assert server.previous_gtids(row.name) == str(scanner.previous_gtids)
            most = min(row.size, MOST_BYTES)
            found = bytearray(server.beginning(row.name, most))
            if row is listed[-1]:
                found[len(MAGIC) + FLAGS_OFFSET] |= IN_USE_FLAG
            assert found == path.read_bytes()[:most]
        last = server.previous_gtids(listed[-1].name) or ""
    assert (":blue:1-" in last) if either_tls.binaries.flavour == "mysql" else ("5-7-1" in last)


def test_gtids_that_no_binlog_ever_had(mysql_binaries: ServerBinaries, disk_tmp_path: Path) -> None:
    """Those that came with a dump, not those of binlogs that were purged, after a restart too."""
    other = "5d8d3c9e-0000-0000-0000-00000000000a"
    with MysqlServer(mysql_binaries, disk_tmp_path) as one, asking(one) as server:

        def outside() -> str:
            return server.gtids_outside(server.binlogs()[0].name)

        assert outside() == ""
        one.query("CREATE DATABASE a", f"SET GLOBAL gtid_purged = '+{other}:1-7:9'")
        assert outside() == f"{other}:1-7:9"
        one.query("FLUSH BINARY LOGS", "CREATE DATABASE b", "FLUSH BINARY LOGS")
        one.query("PURGE BINARY LOGS TO 'mysql-bin.000003'", "CREATE DATABASE c")
        assert outside() == f"{other}:1-7:9"
        one.restart()
        server.close()
        assert outside() == f"{other}:1-7:9"


def test_an_unknown_binlog(either_tls: MysqlServer) -> None:
    """It is an error that names it, not a set of GTIDs."""
    with (
        asking(either_tls) as server,
        pytest.raises(SourceError, match="Could not find target log"),
    ):
        server.previous_gtids(BinlogName.parse("mysql-bin.000099"))


def test_position(either_tls: MysqlServer) -> None:
    """File, offset and GTIDs are those at the end; the time is UTC, taken before."""
    open_binlog(either_tls)
    began = datetime.now(UTC)
    with asking(either_tls) as server:
        before = server.position()
        either_tls.query(f"CREATE DATABASE position_{before.place.offset}")
        after = server.position()
    open_one = max(either_tls.datadir.glob("mysql-bin.0*"))
    assert after.place.offset == open_one.stat().st_size > before.place.offset
    assert str(after.place.binlog) == open_one.name
    mine = "gtid_executed" if either_tls.binaries.flavour == "mysql" else "gtid_binlog_pos"
    ((executed,),) = either_tls.query(f"SELECT @@{mine}")
    assert after.gtid_set == executed.replace("\n", "") != before.gtid_set
    assert after.uuid == before.uuid
    second = timedelta(seconds=1)
    assert began - second < before.asked_at < after.asked_at < datetime.now(UTC) + second


def test_encrypted_binlogs(mysql_binaries: ServerBinaries, disk_tmp_path: Path) -> None:
    """The size is that of the stream: the encryption's header, 512 bytes, is taken off."""
    with MysqlServer(mysql_binaries, disk_tmp_path, encrypted=True) as one:
        one.query("CREATE DATABASE a")
        streamed = {binlog.name: binlog for binlog in closed_binlogs(one)}
        one.query("FLUSH BINARY LOGS")
        streamed |= {binlog.name: binlog for binlog in closed_binlogs(one, flush=False)}
        with asking(one) as server:
            rows = {str(row.name): row for row in server.binlogs()}
            assert len(streamed) == 2
            for name, binlog in streamed.items():
                assert rows[name].encrypted
                assert rows[name].size == binlog.size == (one.datadir / name).stat().st_size - 512
            second = BinlogName.parse("mysql-bin.000002")
            scanner = Scanner()
            scanner.feed(memoryview(streamed[str(second)].path.read_bytes()))
            assert server.previous_gtids(second) == str(scanner.previous_gtids)
            position = server.position()
            assert position.place.offset == rows[str(position.place.binlog)].size


@pytest.mark.parametrize(
    ("granted", "elsewhere", "lacking"),
    [
        ("REPLICATION SLAVE, REPLICATION CLIENT ON *.*", "", None),
        ("ALL PRIVILEGES ON *.*", "", None),
        ("REPLICATION CLIENT ON *.*", "", "REPLICATION SLAVE"),
        ("REPLICATION SLAVE ON *.*", "", "REPLICATION CLIENT"),
        # those of one database are no global ones, in MariaDB's list neither
        ("USAGE ON *.*", "ALL PRIVILEGES ON other.*", "REPLICATION CLIENT"),
        ("REPLICATION CLIENT ON *.*", "ALL PRIVILEGES ON other.*", "REPLICATION SLAVE"),
    ],
)
def test_privileges(
    either_tls: MysqlServer, granted: str, elsewhere: str, lacking: str | None
) -> None:
    """What it takes to stream is found out by doing, and what is missing is named."""
    either_tls.query(
        "SET sql_log_bin = 0",
        "CREATE USER IF NOT EXISTS poor@'%' IDENTIFIED BY 'pw'",
        "REVOKE ALL PRIVILEGES, GRANT OPTION FROM poor@'%'",
        *(f"GRANT {one} TO poor@'%'" for one in (granted, elsewhere) if one),
    )
    with asking(either_tls, user="poor", password="pw") as server:
        name = BinlogName.parse(either_tls.binlogs()[0][0])
        if lacking is None:
            server.check_privileges(name)
            return
        with pytest.raises(
            SourceError, match=f"'poor' .* is missing the privilege .*{lacking}"
        ) as caught:
            server.check_privileges(name)
    assert "GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO poor@" in caught.value.hint


def test_a_question_after_a_lost_connection(either_tls: MysqlServer) -> None:
    """A connection that the server ended costs one question; the next one connects again."""
    with asking(either_tls) as server:
        uuid = server.facts().uuid
        idle = "FROM information_schema.processlist WHERE user = 'repl' AND command = 'Sleep'"
        asked = f"SELECT id {idle}"
        wait_until(lambda: either_tls.query(asked), what="the server shows it as idle")
        for (number,) in either_tls.query(asked):
            either_tls.query(f"KILL {number}")
        wait_until(lambda: not either_tls.query(asked), what="it is ended")
        with pytest.raises(SourceError) as caught:
            server.facts()
        assert caught.value.transient
        assert server.facts().uuid == uuid


# What answers that is no MySQL


@contextmanager
def _greeter(greeting: bytes) -> Iterator[int]:
    """Listens, says this, and closes; the port."""

    class Greet(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.sendall(greeting)

    with socketserver.TCPServer(("127.0.0.1", 0), Greet) as listener:
        thread = threading.Thread(target=listener.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield listener.server_address[1]
        finally:
            listener.shutdown()
            thread.join()


@pytest.mark.parametrize(
    "greeting",
    [
        b"SSH-2.0-OpenSSH_9.2p1 Debian-2\r\n",
        b"\x05\x00\x00\x00\x0b\x08\x05\x1a\x00",  # the X protocol, port 33060
        b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n",
        b"\x01\x00\x00\x00\x0a",
        b"\x0a\x00\x00\x00\x0a" + b"9.7.4\x00abc",
        b"",
    ],
    ids=["ssh", "x protocol", "http", "short", "cut", "nothing"],
)
def test_what_is_no_mysql(mysql_tls: MysqlServer, greeting: bytes) -> None:
    """Whatever answers there, it leaves as a SourceError with a hint."""
    with (
        _greeter(greeting) as port,
        asking(mysql_tls, port=port) as server,
        pytest.raises(SourceError) as caught,
    ):
        server.facts()
    assert str(caught.value).startswith(f"mysql at 127.0.0.1:{port}: ")
    assert caught.value.hint


def test_silence_ends_in_time(mysql_tls: MysqlServer) -> None:
    """Something that listens and says nothing is given the connect timeout."""
    with (
        closing(socket.create_server(("127.0.0.1", 0))) as mute,
        asking(mysql_tls, port=mute.getsockname()[1], connect_timeout=1.0) as server,
        pytest.raises(SourceError, match="no answer within 1 s") as caught,
    ):
        server.facts()
    assert caught.value.transient


@pytest.mark.gate
@pytest.mark.parametrize("flavour", ["mysql", "mariadb"])
def test_what_is_settled(request: pytest.FixtureRequest, flavour: str) -> None:
    """What comes behind a position was committed later, also by a statement that took long."""
    server: MysqlServer = request.getfixturevalue(flavour)
    server.query("CREATE DATABASE shop", "CREATE TABLE shop.t (a INT)")
    if flavour == "mariadb":
        server.query(f"GRANT PROCESS ON *.* TO {server.repl_user}@'%'")
    sights: list[ServerPosition] = []
    over = threading.Event()

    def ask() -> None:
        with asking(server) as asks:
            while not over.is_set():
                sights.append(asks.position())

    asker = threading.Thread(target=ask)
    asker.start()
    try:
        with Load(server, threads=3, seconds=120) as load:
            server.query("INSERT INTO shop.t SELECT SLEEP(4)")
            wait_until(lambda: min(load.acknowledged) >= 100, what="transactions")
    finally:
        over.set()
        asker.join()
    found = []
    for name, _ in server.binlogs():
        data = memoryview((server.datadir / name).read_bytes())
        found += [(BinlogName.parse(name), one.end, one.commit_us) for one in Scanner().feed(data)]
    assert len(sights) > 20
    for sight in sights:
        settled = (sight.settled_at - EPOCH) // timedelta(microseconds=1)
        behind = (
            us for name, end, us in found if (name, end) > (sight.place.binlog, sight.place.offset)
        )
        assert min(behind, default=settled + 1) > settled
    ages = [(sight.asked_at - sight.settled_at).total_seconds() for sight in sights]
    assert min(ages) <= (3 if flavour == "mariadb" else 0)
