"""`pitr` by TLS, to a target that does not reach it, and what it changes there and what not."""

import ipaddress
import re
import shlex
import socket
import subprocess
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography import x509

from binlog2s3.errors import RecoveryError
from binlog2s3.recover import target
from binlog2s3.recover.listen import Certificate, Listen
from binlog2s3.recover.replicate import Replication, Work
from binlog2s3.replication.source import Source
from binlog2s3.server.connection import Server
from lab import get
from lab.disk import temporary_directory
from lab.get import ServerBinaries
from lab.mysql import MysqlServer, server_of
from lab.s3 import MinioServer
from tests.conftest import _had
from tests.integration.certificates import Authority, Pair
from tests.login import ROOT
from tests.waiting import wait_until
from tests.world.pair import NOTHING, Noted, start_again
from tests.world.servers import RELAXED
from tests.world.streamed import Streamed, streamed

ROWS = 300
NO_WORK = Work(plan=NOTHING, open_stream=lambda _: (one for one in ()))
HOLDS = "SELECT 1 + SLEEP(3)"
"""So long each server is within this transaction."""
SEEN = "SELECT id, SHA2(text, 256) FROM shop.orders ORDER BY id"


class Archive(Streamed):
    """A source that was streamed and is gone; what it had."""

    rows: list[tuple[object, ...]]

    @property
    def begin(self) -> list[str]:
        """A MariaDB that is empty does not say so."""
        return ["--from-binlog=mysql-bin.000001", "--from-position=4"] if self.is_mariadb else []

    def started(self, directory: Path, *options: str) -> MysqlServer:
        return server_of(self.binaries, directory, server_id=2, options=[*RELAXED, *options])


@pytest.fixture(scope="module", params=["mysql", "mariadb"])
def archive(request: pytest.FixtureRequest, minio: MinioServer) -> Iterator[Archive]:
    binaries: ServerBinaries = request.getfixturevalue(f"{request.param}_binaries")
    with (
        temporary_directory() as directory,
        streamed(
            binaries,
            minio,
            minio.make_bucket(),
            directory,
            "CREATE DATABASE shop",
            "CREATE TABLE shop.orders (id INT PRIMARY KEY, text LONGTEXT)",
            "CREATE TABLE shop.held (id INT PRIMARY KEY)",
            "CREATE TABLE shop.old (id INT PRIMARY KEY) ENGINE=MyISAM",
            "INSERT INTO shop.old VALUES (1)",
            "CREATE EVENT shop.nightly ON SCHEDULE EVERY 1 DAY DO DELETE FROM shop.held",
            *(f"INSERT INTO shop.orders VALUES ({n}, '{n}')" for n in range(ROWS // 2)),
            "SET SESSION binlog_format = 'STATEMENT'",
            f"INSERT INTO shop.held {HOLDS}",
            "SET SESSION binlog_format = 'ROW'",
            *(f"INSERT INTO shop.orders VALUES ({n}, '{n}')" for n in range(ROWS // 2, ROWS)),
            "FLUSH BINARY LOGS",
            kind=Archive,
        ) as found,
    ):
        found.wait_archived(1)
        found.wait()
        found.stream.kill()
        found.rows = found.source.query(SEEN)
        found.source.stop()
        yield found


@pytest.fixture
def empty(archive: Archive, disk_tmp_path: Path) -> Iterator[MysqlServer]:
    with archive.started(disk_tmp_path / "target", "--event-scheduler=OFF") as server:
        yield server


def own_address() -> str:
    """One of this machine that is not loopback."""
    with suppress(OSError), closing(socket.socket(type=socket.SOCK_DGRAM)) as probe:
        probe.connect(("192.0.2.1", 9))
        return str(probe.getsockname()[0])
    pytest.skip("this machine has no address but loopback")


def channel(server: MysqlServer) -> dict[str, object]:
    is_mysql = server.binaries.flavour == "mysql"
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SHOW REPLICA STATUS" if is_mysql else "SHOW ALL SLAVES STATUS")
        names = [str(one[0]).replace("Master", "Source") for one in cursor.description or ()]
        rows = cursor.fetchall()
    return dict(zip(names, rows[0], strict=True)) if rows else {}


def signed(directory: Path, address: str, *names: x509.GeneralName) -> list[str]:
    """The options for a certificate of this address, and its authority's file at the target."""
    authority = Authority(directory, "authority")
    pair = authority.sign("pitr", *(names or [x509.IPAddress(ipaddress.ip_address(address))]))
    return [
        *(f"--serve-address={address}", f"--serve-tls-ca={authority.ca}"),
        *(f"--serve-tls-cert={pair.cert}", f"--serve-tls-key={pair.key}"),
    ]


@pytest.mark.parametrize("way", ["verified", "accepted"])
def test_what_may_leave_the_machine_is_tls(
    archive: Archive, empty: MysqlServer, tmp_path: Path, way: str
) -> None:
    """The target is told the address, connects by TLS, and has all in the end; nothing is left.

    It verifies the certificate that it is shown.
    """
    is_verified = way == "verified"
    address = own_address()
    seen: dict[str, set[object]] = defaultdict(set)
    arguments = ["--latest", "--yes", *archive.begin]
    if is_verified:
        arguments += signed(tmp_path, address)
    else:
        arguments += [f"--serve-address={address}", "--target-accept-unverified-server"]
    with archive.recovery.started(empty, *arguments, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None

        def has_ended() -> bool:
            for name, value in channel(empty).items():
                seen[name].add(value)
            return process.poll() is not None

        wait_until(has_ended, what="the recovery", interval=0.02)
        assert process.returncode == 0, process.stderr.read()
    assert seen["Source_Host"] - {""} == {address}
    assert "Yes" in seen["Source_SSL_Allowed"]
    assert ("Yes" in seen["Source_SSL_Verify_Server_Cert"]) is is_verified
    assert empty.query(SEEN) == archive.rows
    assert channel(empty) == {}


@pytest.mark.parametrize("wrong", ["name", "pinned"])
def test_a_target_that_does_not_trust_it(
    archive: Archive, empty: MysqlServer, tmp_path: Path, wrong: str
) -> None:
    """Another name, or another certificate than the pinned one: it ends."""
    address = own_address()
    names = [x509.DNSName("pitr.example.com")] if wrong == "name" else []
    arguments = signed(tmp_path, address, *names)
    if wrong != "name":
        (tmp_path / "other").mkdir()
        other = Authority(tmp_path / "other", "other")
        pinned = other.sign("pitr", x509.IPAddress(ipaddress.ip_address(address))).cert
        arguments = [one for one in arguments if "tls-ca" not in one]
        arguments.append(f"--serve-tls-ca={pinned}")
    done = archive.recovery.run(empty, "--latest", "--yes", *arguments, *archive.begin)
    assert done.status == 8, done.stderr
    assert "does not reach this process" in done.stderr
    assert "--serve-tls-ca must be a file on its machine" in done.stderr
    assert channel(empty) == {}
    assert ("shop",) not in empty.query("SHOW DATABASES")


def test_a_pinned_certificate(archive: Archive, empty: MysqlServer, tmp_path: Path) -> None:
    """It signed itself, as the one that docs/guides/pitr.md makes; the target has a copy."""
    address = own_address()
    page = (Path(__file__).parents[2] / "docs/guides/pitr.md").read_text()
    found = re.search(r"^ {4}(openssl req (?:.*\\\n)*.*)$", page, re.MULTILINE)
    assert found
    words = shlex.split(found[1].replace("\\\n", " ").replace("192.0.2.7", address))
    subprocess.run(words, cwd=tmp_path, check=True, capture_output=True)
    arguments = [
        *(f"--serve-address={address}", f"--serve-tls-ca={tmp_path / 'pitr.pem'}"),
        *(
            f"--serve-tls-cert={tmp_path / 'pitr.pem'}",
            f"--serve-tls-key={tmp_path / 'pitr-key.pem'}",
        ),
    ]
    archive.recovery.to(empty, "--latest", *arguments, *archive.begin)
    assert empty.query(SEEN) == archive.rows


@pytest.mark.parametrize(
    "version", ["mysql-8.0.15", "mysql-8.0.31", "mariadb-11.4", "mariadb-11.8"]
)
def test_each_version_verifies(version: str, disk_tmp_path: Path) -> None:
    """An authority and a name; it connects if both are right, and only then."""
    right, other = (Authority(disk_tmp_path, name) for name in ("right", "other"))
    named = right.sign("named", x509.DNSName("localhost"))
    unnamed = right.sign("unnamed", x509.DNSName("pitr.example.com"))
    with server_of(_had(get.VERSIONS[version]), disk_tmp_path / "target", server_id=2) as server:
        server.query("SET GLOBAL event_scheduler = OFF")
        login = replace(ROOT, socket=str(server.socket))

        def connect(pair: Pair, authority: Authority) -> None:
            certificate = Certificate(
                name="localhost", cert=pair.cert, key=pair.key, ca=str(authority.ca)
            )
            there = Listen(host="0.0.0.0", certificate=certificate)
            with Server(lambda: login) as asked:
                Replication(target.ask(asked), NO_WORK, Noted(), listen=there).probe()

        connect(named, right)
        for pair, authority in ((named, other), (unnamed, right)):
            with pytest.raises(RecoveryError, match="does not reach this process"):
                connect(pair, authority)


def test_a_target_that_does_not_reach_it(
    empty: MysqlServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is said so before anything is changed."""
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        nobody = taken.getsockname()
    monkeypatch.setattr(Source, "address", nobody)
    login = replace(ROOT, socket=str(empty.socket))
    databases = empty.query("SHOW DATABASES")
    with Server(lambda: login) as server:
        asked = target.ask(server)
        with pytest.raises(RecoveryError, match=f"does not reach this process at .*:{nobody[1]}"):
            Replication(asked, NO_WORK, Noted(), listen=Listen()).probe()
    assert channel(empty) == {}
    assert empty.query("SHOW DATABASES") == databases


@pytest.mark.gate
def test_what_is_changed_there(archive: Archive, empty: MysqlServer) -> None:
    """A dry run only asks. Workers are given back; events are disabled, and listed."""
    name = "replica" if archive.binaries.flavour == "mysql" else "slave"
    workers = f"{name}_parallel_{'workers' if name == 'replica' else 'threads'}"
    empty.query("SET GLOBAL log_output = 'TABLE'", "SET GLOBAL general_log = ON")
    done = archive.recovery.run(empty, "--latest", "--dry-run", *archive.begin)
    empty.query("SET GLOBAL general_log = OFF")
    assert done.status == 0, done.stderr
    asked = [
        (row[0].decode() if isinstance(row[0], bytes) else str(row[0])).strip()
        for row in empty.query(
            "SELECT argument FROM mysql.general_log WHERE command_type = 'Query' "
            "AND argument NOT LIKE '%general_log%'"
        )
    ]
    assert len(asked) > 5
    session = ("SET AUTOCOMMIT = ", "SET NAMES ", "SET SESSION time_zone = ")
    allowed = ("SELECT ", "SHOW ", *session)
    assert [one for one in asked if not one.startswith(allowed)] == []
    before = empty.query(f"SELECT @@global.{workers}")
    document = archive.recovery.to(empty, "--latest", "--workers=3", *archive.begin)
    assert empty.query(f"SELECT @@global.{workers}") == before
    assert empty.query(SEEN) == archive.rows
    (statement,) = document["result"]["disabled_events"]
    assert statement.endswith("EVENT `shop`.`nightly` ENABLE;")
    empty.query(statement)
    assert empty.query("SELECT status FROM information_schema.events") == [("ENABLED",)]


@pytest.mark.gate("mysql")
def test_a_dry_run_warns_of_what_stands_against_it(archive: Archive, empty: MysqlServer) -> None:
    """Each of them, and shows the plan; the first of them ends it, with and without --dry-run."""
    empty.query("SET GLOBAL read_only = ON", "SET GLOBAL event_scheduler = ON")
    try:
        wanted = ["--latest", "--serve-address=192.0.2.1", *archive.begin]
        wanted.append("--target-accept-unverified-server")
        done = archive.recovery.run(empty, "--dry-run", *wanted)
        assert done.status == 8, done.stderr
        assert "without --dry-run this is refused: " in done.stderr
        for words in ("(read_only is ON)", "its event scheduler", "cannot listen on 192.0.2.1:0"):
            assert words in done.stdout
        assert "the target replicates it from this process" in done.stdout
        done = archive.recovery.run(empty, "--yes", *wanted)
        assert (done.status, "(read_only is ON)" in done.stderr) == (8, True)
    finally:
        empty.query("SET GLOBAL read_only = OFF", "SET GLOBAL event_scheduler = OFF")


def test_tables_without_transactions(archive: Archive, disk_tmp_path: Path) -> None:
    """Behind a crash of the target in the middle nobody goes on without a word of the operator."""
    with archive.started(disk_tmp_path / "target", "--event-scheduler=OFF") as server:
        held = ["--latest", "--yes", *archive.begin]
        with archive.recovery.started(server, *held) as process:

            def is_within() -> bool:
                assert process.poll() is None, process.returncode
                return any(HOLDS in str(row[7]) for row in server.query("SHOW FULL PROCESSLIST"))

            wait_until(is_within, what="the transaction", interval=0.02)
            process.kill()
            server.kill()
        start_again(server)
        done = archive.recovery.run(server, *held)
        assert done.status == 8, done.stderr
        assert "shop.old" in done.stderr
        assert "--allow-non-transactional" in done.stderr
        archive.recovery.to(server, "--latest", "--allow-non-transactional", *archive.begin)
        assert server.query(SEEN) == archive.rows
