"""Questions to real servers: who they are, what they have, how one logs in.

TLS and passwords are tried on both ways to the source: pymysql's (`Server`) and mysqlbinlog's
(`Child`), which must agree.
"""

import ipaddress
import socket
import socketserver
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509

from binlog2s3.binlog import BinlogName, Scanner
from binlog2s3.errors import SourceError
from binlog2s3.login import Login
from binlog2s3.mysqlbinlog import Child, find
from binlog2s3.server import Server, ServerFacts
from lab.disk import temporary_directory
from lab.get import ServerBinaries
from lab.mysql import MariadbServer, MysqlServer
from lab.s3 import MinioServer
from lab.verify import closed_binlogs
from tests.integration.certificates import Authority, Pair
from tests.integration.stream_process import StreamProcess
from tests.waiting import wait_until

NASTY = "a#b\"c\\d'e;f = é€ü%"  # everything an option file or a charset can get wrong
ZONE = "--default-time-zone=+05:00"  # a server's zone must never get into our times


@dataclass(frozen=True, slots=True, kw_only=True)
class Keys:
    """What TLS needs: the server's certificate is good for the name `localhost` alone."""

    ca: Path
    wrong_ca: Path
    server: Pair
    client: Pair
    address: Pair


@pytest.fixture(scope="module")
def keys() -> Iterator[Keys]:
    """An authority, another one, and what the first one signed."""
    with temporary_directory() as directory:
        authority = Authority(directory, "authority")
        address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
        yield Keys(
            ca=authority.ca,
            wrong_ca=Authority(directory, "stranger").ca,
            server=authority.sign("server", x509.DNSName("localhost")),
            client=authority.sign("client"),
            address=authority.sign("address", address),
        )


def _options(keys: Keys) -> list[str]:
    return [
        ZONE,
        f"--ssl-ca={keys.ca}",
        f"--ssl-cert={keys.server.cert}",
        f"--ssl-key={keys.server.key}",
    ]


ACCOUNTS = {
    "tls": "IDENTIFIED BY 'pw' REQUIRE SSL",
    "certified": "IDENTIFIED BY 'pw' REQUIRE X509",
    "nasty": f"IDENTIFIED BY '{NASTY.replace(chr(92), chr(92) * 2).replace(chr(39), chr(39) * 2)}'",
    "naked": "IDENTIFIED BY ''",
}


def _create_accounts(server: MysqlServer) -> None:
    for user, how in ACCOUNTS.items():
        server.query(
            "SET sql_log_bin = 0",
            f"CREATE USER {user}@'%' {how}",
            f"GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO {user}@'%'",
        )


@pytest.fixture(scope="module")
def mysql_here(mysql_binaries: ServerBinaries, keys: Keys) -> Iterator[MysqlServer]:
    """A MySQL with our certificate and accounts of all kinds."""
    with (
        temporary_directory() as directory,
        MysqlServer(mysql_binaries, directory, options=_options(keys), server_id=7) as server,
    ):
        _create_accounts(server)
        yield server


@pytest.fixture(scope="module")
def mariadb_here(mariadb_binaries: ServerBinaries, keys: Keys) -> Iterator[MariadbServer]:
    """A MariaDB with our certificate and accounts of all kinds."""
    with (
        temporary_directory() as directory,
        MariadbServer(mariadb_binaries, directory, options=_options(keys), server_id=7) as server,
    ):
        _create_accounts(server)
        yield server


@pytest.fixture(params=["mysql", "mariadb"])
def either(
    request: pytest.FixtureRequest, mysql_here: MysqlServer, mariadb_here: MariadbServer
) -> MysqlServer:
    """Each flavour in turn."""
    return mysql_here if request.param == "mysql" else mariadb_here


def login_to(server: MysqlServer, **changes: Any) -> Login:
    """The streamer's login over TCP; `changes` are fields of Login."""
    login = Login(
        host="127.0.0.1",
        port=server.port,
        socket=None,
        user=server.repl_user,
        password=server.password,
        ssl_mode="PREFERRED",
        ssl_ca=None,
        ssl_cert=None,
        ssl_key=None,
        connect_timeout=5.0,
    )
    return replace(login, **changes)


@contextmanager
def asking(server: MysqlServer, **changes: Any) -> Iterator[Server]:
    """A Server that asks this one."""
    with Server(lambda: login_to(server, **changes)) as asks:
        yield asks


# What it answers


def test_facts_of_mysql(mysql_here: MysqlServer) -> None:
    """The uuid is the server's own; flavour, version, server id and GTIDs as it says."""
    ((uuid, version),) = mysql_here.query("SELECT @@server_uuid, @@version")
    with asking(mysql_here) as server:
        assert server.facts() == ServerFacts(
            uuid=uuid, flavour="mysql", version=version, server_id=7, gtid_mode=True, tls=True
        )


def test_facts_of_mariadb(mariadb_here: MariadbServer) -> None:
    """Server id and domain stand in for a uuid."""
    ((version,),) = mariadb_here.query("SELECT @@version")
    with asking(mariadb_here, ssl_mode="DISABLED") as server:
        assert server.facts() == ServerFacts(
            uuid="00000007-00000000",
            flavour="mariadb",
            version=version,
            server_id=7,
            gtid_mode=True,
            tls=False,
        )


def test_without_gtids(mysql_binaries: ServerBinaries, disk_tmp_path: Path) -> None:
    """gtid_mode OFF is said; an empty set comes before each binlog; no position is lost."""
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


def test_binlogs_and_the_gtids_before_them(either: MysqlServer) -> None:
    """Names and sizes as they lie on disk; previous GTIDs as the scanner reads them there."""
    _fill(either)
    with asking(either) as server:
        listed = server.binlogs()
        assert len(listed) > 3
        for row in listed:
            path = either.datadir / str(row.name)
            assert (row.size, row.encrypted) == (path.stat().st_size, False)
            scanner = Scanner()
            scanner.feed(memoryview(path.read_bytes()))
            assert server.previous_gtids(row.name) == str(scanner.previous_gtids)
        last = server.previous_gtids(listed[-1].name) or ""
    assert (":blue:1-" in last) if either.binaries.flavour == "mysql" else ("5-7-1" in last)


def test_an_unknown_binlog(either: MysqlServer) -> None:
    """It is an error that names it, not a set of GTIDs."""
    with asking(either) as server, pytest.raises(SourceError, match="Could not find target log"):
        server.previous_gtids(BinlogName.parse("mysql-bin.000099"))


def test_position(either: MysqlServer) -> None:
    """File, offset and GTIDs are those at the end; the time is UTC, taken before."""
    with asking(either) as server:
        before = server.position()
        either.query(f"CREATE DATABASE position_{before.offset}")
        after = server.position()
    open_one = max(either.datadir.glob("mysql-bin.0*"))
    assert after.offset == open_one.stat().st_size > before.offset
    assert str(after.binlog) == open_one.name
    mine = "gtid_executed" if either.binaries.flavour == "mysql" else "gtid_binlog_pos"
    ((executed,),) = either.query(f"SELECT @@{mine}")
    assert after.gtid_set == executed.replace("\n", "") != before.gtid_set
    assert after.uuid == before.uuid
    assert timedelta(0) < after.asked_at - before.asked_at < timedelta(seconds=30)
    assert abs(datetime.now(UTC) - after.asked_at) < timedelta(seconds=30)


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
            assert position.offset == rows[str(position.binlog)].size


@pytest.mark.parametrize(
    ("granted", "lacking"),
    [
        ("REPLICATION SLAVE, REPLICATION CLIENT ON *.*", None),
        ("ALL PRIVILEGES ON *.*", None),
        ("REPLICATION CLIENT ON *.*", "REPLICATION SLAVE"),
        ("REPLICATION SLAVE ON *.*", "REPLICATION CLIENT"),
        ("ALL PRIVILEGES ON other.*", "REPLICATION CLIENT"),
    ],
)
def test_privileges(either: MysqlServer, granted: str, lacking: str | None) -> None:
    """What it takes to stream is found out by doing, and what lacks is named."""
    either.query(
        "SET sql_log_bin = 0",
        "CREATE USER IF NOT EXISTS poor@'%' IDENTIFIED BY 'pw'",
        "REVOKE ALL PRIVILEGES, GRANT OPTION FROM poor@'%'",
        f"GRANT {granted} TO poor@'%'",
    )
    with asking(either, user="poor", password="pw") as server:
        name = BinlogName.parse(either.binlogs()[0][0])
        if lacking is None:
            server.check_privileges(name)
            return
        with pytest.raises(SourceError, match=f"'poor' .* lacks the privilege .*{lacking}") as caught:
            server.check_privileges(name)
    assert "GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO poor@" in caught.value.hint


def test_a_privilege_on_one_database_is_not_enough(mariadb_here: MariadbServer) -> None:
    """MariaDB's list is read with care: ALL PRIVILEGES there may be those of one database."""
    mariadb_here.query(
        "SET sql_log_bin = 0",
        "CREATE USER narrow@'%' IDENTIFIED BY 'pw'",
        "GRANT BINLOG MONITOR ON *.* TO narrow@'%'",
        "GRANT ALL PRIVILEGES ON other.* TO narrow@'%'",
    )
    with (
        asking(mariadb_here, user="narrow", password="pw") as server,
        pytest.raises(SourceError, match="lacks the privilege REPLICATION SLAVE"),
    ):
        server.check_privileges(BinlogName.parse("mysql-bin.000001"))


def test_a_question_after_a_lost_connection(either: MysqlServer) -> None:
    """A connection that the server ended costs one question; the next one connects again."""
    with asking(either) as server:
        uuid = server.facts().uuid
        mine = "SELECT id FROM information_schema.processlist WHERE user = 'repl' AND command = 'Sleep'"
        for (number,) in either.query(mine):
            either.query(f"KILL {number}")
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
def test_what_is_no_mysql(mysql_here: MysqlServer, greeting: bytes) -> None:
    """Whatever answers there, it leaves as a SourceError with a hint."""
    with (
        _greeter(greeting) as port,
        asking(mysql_here, port=port) as server,
        pytest.raises(SourceError) as caught,
    ):
        server.facts()
    assert str(caught.value).startswith(f"mysql at 127.0.0.1:{port}: ")
    assert caught.value.hint


def test_silence_ends_in_time(mysql_here: MysqlServer) -> None:
    """Something that listens and says nothing is given the connect timeout."""
    with (
        closing(socket.create_server(("127.0.0.1", 0))) as mute,
        asking(mysql_here, port=mute.getsockname()[1], connect_timeout=1.0) as server,
        pytest.raises(SourceError, match="no answer within 1 s") as caught,
    ):
        server.facts()
    assert caught.value.transient


# Logging in, both ways


def try_server(server: MysqlServer, login: Login) -> ServerFacts | SourceError:
    """pymysql's way: what it found, or why not."""
    del server
    with Server(lambda: login) as asks:
        try:
            return asks.facts()
        except SourceError as error:
            return error


def try_child(server: MysqlServer, login: Login, directory: Path) -> SourceError | None:
    """mysqlbinlog's way: None if it streams, or why it ended."""
    directory.mkdir()
    tool = find(server.binaries.flavour, server.binaries.binlog)
    name = BinlogName.parse(server.binlogs()[0][0])
    child = Child(
        tool,
        login,
        server_id=4711,
        directory=directory,
        binlog=name,
        server_tls=True,
        on_line=lambda _line: None,
    )
    try:
        copy = directory / str(name)
        ended = wait_until(
            lambda: (child.poll() is not None and "ended") or (copy.exists() and "streams"),
            30,
            "mysqlbinlog streams or ends",
        )
        return child.failure() if ended == "ended" else None
    finally:
        child.stop()


def both_accept(server: MysqlServer, login: Login, directory: Path) -> ServerFacts:
    """Both ways must work; what the server said."""
    found = try_server(server, login)
    assert isinstance(found, ServerFacts), found
    assert try_child(server, login, directory / "run") is None
    return found


def both_refuse(server: MysqlServer, login: Login, directory: Path) -> tuple[SourceError, ...]:
    """Both ways must fail; why."""
    mine, childs = try_server(server, login), try_child(server, login, directory / "run")
    assert isinstance(mine, SourceError), mine
    assert isinstance(childs, SourceError), "mysqlbinlog accepts what pymysql refuses"
    return mine, childs


Change = Callable[[Keys], dict[str, Any]]
TLS = {"user": "tls", "password": "pw"}  # may come in over TLS alone: whoever is in, has it
CERTIFIED = {"user": "certified", "password": "pw"}


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda _: TLS | {"ssl_mode": "PREFERRED"}, id="preferred"),
        pytest.param(lambda _: TLS | {"ssl_mode": "REQUIRED"}, id="required"),
        pytest.param(
            lambda k: TLS | {"ssl_mode": "REQUIRED", "ssl_ca": str(k.wrong_ca)},
            id="required does not verify",
        ),
        pytest.param(
            lambda k: TLS | {"ssl_mode": "PREFERRED", "ssl_ca": str(k.wrong_ca)},
            id="preferred does not verify",
        ),
        pytest.param(
            lambda k: TLS | {"ssl_mode": "VERIFY_CA", "ssl_ca": str(k.ca)},
            id="the right CA, another name",
        ),
        pytest.param(
            lambda k: TLS
            | {"ssl_mode": "VERIFY_IDENTITY", "ssl_ca": str(k.ca), "host": "localhost"},
            id="the right CA and name",
        ),
        pytest.param(
            lambda k: CERTIFIED
            | {"ssl_mode": "REQUIRED", "ssl_cert": str(k.client.cert), "ssl_key": str(k.client.key)},
            id="client certificate",
        ),
        pytest.param(
            lambda k: CERTIFIED
            | {"ssl_mode": "PREFERRED", "ssl_cert": str(k.client.cert), "ssl_key": str(k.client.key)},
            id="client certificate, preferred",
        ),
        pytest.param(
            lambda k: CERTIFIED
            | {
                "ssl_mode": "VERIFY_IDENTITY",
                "ssl_ca": str(k.ca),
                "host": "localhost",
                "ssl_cert": str(k.client.cert),
                "ssl_key": str(k.client.key),
            },
            id="client certificate, identity verified",
        ),
    ],
)
def test_tls_that_must_work(either: MysqlServer, keys: Keys, tmp_path: Path, change: Change) -> None:
    """What one way accepts, the other accepts too, and it is really TLS."""
    assert both_accept(either, login_to(either, **change(keys)), tmp_path).tls


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(
            lambda k: {"ssl_mode": "VERIFY_CA", "ssl_ca": str(k.wrong_ca)}, id="the wrong CA"
        ),
        pytest.param(
            lambda k: {
                "ssl_mode": "VERIFY_IDENTITY",
                "ssl_ca": str(k.wrong_ca),
                "host": "localhost",
            },
            id="the right name, the wrong CA",
        ),
        pytest.param(
            lambda k: {"ssl_mode": "VERIFY_IDENTITY", "ssl_ca": str(k.ca)},
            id="the right CA, the wrong name",
        ),
    ],
)
def test_tls_that_must_fail(either: MysqlServer, keys: Keys, tmp_path: Path, change: Change) -> None:
    """A server that cannot prove itself is refused by both, with the options that decide it."""
    for error in both_refuse(either, login_to(either, **change(keys)), tmp_path):
        assert "--mysql-ssl-mode and --mysql-ssl-ca" in error.hint, (str(error), error.hint)
        assert not error.transient


@pytest.mark.parametrize(
    "change", [TLS | {"ssl_mode": "DISABLED"}, CERTIFIED | {"ssl_mode": "REQUIRED"}]
)
def test_accounts_that_want_more(
    either: MysqlServer, tmp_path: Path, change: dict[str, Any]
) -> None:
    """Access denied that TLS or a client certificate would mend says so."""
    for error in both_refuse(either, login_to(either, **change), tmp_path):
        assert "Access denied" in str(error)
        assert "REQUIRE SSL or X509" in error.hint


def test_disabled_is_without_tls(either: MysqlServer, tmp_path: Path) -> None:
    """DISABLED is plain on both ways; MySQL's password goes encrypted with the server's key."""
    if either.binaries.flavour == "mysql":
        either.query("FLUSH PRIVILEGES")  # empties the cache of caching_sha2_password
    assert not both_accept(either, login_to(either, ssl_mode="DISABLED"), tmp_path).tls


def test_the_child_alone_with_a_cold_cache(mysql_here: MysqlServer, tmp_path: Path) -> None:
    """Nor does mysqlbinlog live on pymysql's having logged in before it."""
    mysql_here.query("FLUSH PRIVILEGES")
    login = login_to(mysql_here, ssl_mode="DISABLED")
    assert try_child(mysql_here, login, tmp_path / "run") is None


def test_an_address_in_the_certificate(either: MysqlServer, keys: Keys, tmp_path: Path) -> None:
    """VERIFY_IDENTITY of an address: both find it among the certificate's alternative names."""
    saved = {path: path.read_bytes() for path in (keys.server.cert, keys.server.key)}
    reload = "FLUSH SSL" if either.binaries.flavour == "mariadb" else "ALTER INSTANCE RELOAD TLS"
    try:
        keys.server.cert.write_bytes(keys.address.cert.read_bytes())
        keys.server.key.write_bytes(keys.address.key.read_bytes())
        either.query(reload)
        login = login_to(either, ssl_mode="VERIFY_IDENTITY", ssl_ca=str(keys.ca))
        assert both_accept(either, login, tmp_path).tls
    finally:
        for path, content in saved.items():
            path.write_bytes(content)
        either.query(reload)


@pytest.fixture(scope="module", params=["mysql", "mariadb"])
def plain(
    request: pytest.FixtureRequest, mysql_binaries: ServerBinaries, mariadb_binaries: ServerBinaries
) -> Iterator[MysqlServer]:
    """Each flavour in turn, without TLS."""
    with temporary_directory() as directory:
        server: MysqlServer
        if request.param == "mysql":
            server = MysqlServer(mysql_binaries, directory, options=["--tls-version="])
        else:
            server = MariadbServer(mariadb_binaries, directory, options=["--skip-ssl"])
        with server:
            yield server


def test_preferred_goes_on_without_tls(plain: MysqlServer, tmp_path: Path) -> None:
    """A server that has no TLS is read all the same when TLS is only preferred."""
    login = login_to(plain)
    found = try_server(plain, login)
    assert isinstance(found, ServerFacts), found
    assert not found.tls
    with StreamlessChild(plain, login, tmp_path / "run") as child:
        assert child is None


def test_required_ends_without_tls(plain: MysqlServer, tmp_path: Path) -> None:
    """A server that has no TLS is refused when TLS is required, and the hint says by what."""
    for error in both_refuse(plain, login_to(plain, ssl_mode="REQUIRED"), tmp_path):
        assert "--mysql-ssl-mode" in error.hint, (str(error), error.hint)


def test_a_key_that_does_not_fit(mysql_here: MysqlServer, keys: Keys) -> None:
    """Certificate and key of two owners: the files are named as the cause, at once."""
    login = login_to(
        mysql_here,
        ssl_mode="REQUIRED",
        ssl_cert=str(keys.client.cert),
        ssl_key=str(keys.address.key),
    )
    error = try_server(mysql_here, login)
    assert isinstance(error, SourceError)
    assert "the files for TLS cannot be used" in str(error)
    assert "--mysql-ssl-key" in error.hint
    assert not error.transient


def test_passwords(either: MysqlServer, tmp_path: Path) -> None:
    """Quotes, comment signs, backslashes, spaces and other alphabets reach the server both ways."""
    for mode in ("DISABLED", "REQUIRED"):
        login = login_to(either, user="nasty", password=NASTY, ssl_mode=mode)
        both_accept(either, login, tmp_path / mode)


def test_an_empty_password(either: MysqlServer, tmp_path: Path) -> None:
    """It is a password like any other."""
    both_accept(either, login_to(either, user="naked", password=""), tmp_path)


def test_the_socket(either: MysqlServer, tmp_path: Path) -> None:
    """A socket wins over host and port; TLS is not preferred there."""
    login = login_to(either, socket=str(either.socket), host="nowhere.invalid", port=1)
    assert not both_accept(either, login, tmp_path).tls


def test_no_socket(either: MysqlServer, tmp_path: Path) -> None:
    """A socket that is not there is named."""
    login = login_to(either, socket=str(tmp_path / "no.sock"))
    for error in both_refuse(either, login, tmp_path):
        assert str(tmp_path / "no.sock") in str(error)
        assert error.transient
