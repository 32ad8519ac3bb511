"""Logging in to real servers: TLS modes, passwords, sockets, option files.

All of it on both ways to the source, pymysql's and mysqlbinlog's, which must agree; and through the
whole process.
"""

import random
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from binlog2s3.config.stream import LocalSocket, MysqlConfig
from binlog2s3.errors import SourceError
from binlog2s3.server.login import Login, parse_options, resolve
from lab.disk import temporary_directory
from lab.get import ServerBinaries
from lab.mysql import MariadbServer, MysqlServer
from lab.s3 import MinioServer
from tests.impostor import new_key, pem_of
from tests.integration.bucket import Bucket
from tests.integration.stream_process import StreamProcess
from tests.integration.streaming import all_came
from tests.world.logins import (
    NASTY,
    Keys,
    both_accept,
    both_refuse,
    login_to,
    try_child,
    try_server,
)

TLS = {"user": "tls", "password": "pw"}  # may come in over TLS alone: whoever is in, has it
CERTIFIED = {"user": "certified", "password": "pw"}
ANY: dict[str, str] = {}


def given(
    server: MysqlServer,
    keys: Keys,
    account: dict[str, str],
    mode: str,
    ca: str = "",
    host: str = "",
) -> Login:
    """A login of this account, which has its certificate if it needs one."""
    changes: dict[str, Any] = {**account, "ssl_mode": mode}
    if ca:
        changes["ssl_ca"] = str(getattr(keys, ca))
    if host:
        changes["host"] = host
    if account is CERTIFIED:
        changes |= {"ssl_cert": str(keys.client.cert), "ssl_key": str(keys.client.key)}
    return login_to(server, **changes)


WORKS = {
    "preferred": (TLS, "PREFERRED"),
    "required does not verify": (TLS, "REQUIRED", "wrong_ca"),
    "preferred does not verify": (TLS, "PREFERRED", "wrong_ca"),
    "the right CA, another name": (TLS, "VERIFY_CA", "ca"),
    "the right CA and name": (TLS, "VERIFY_IDENTITY", "ca", "localhost"),
    "client certificate": (CERTIFIED, "PREFERRED"),
    "client certificate, identity verified": (CERTIFIED, "VERIFY_IDENTITY", "ca", "localhost"),
}
FAILS = {
    "the wrong CA": (ANY, "VERIFY_CA", "wrong_ca"),
    "the right name, the wrong CA": (ANY, "VERIFY_IDENTITY", "wrong_ca", "localhost"),
    "the right CA, the wrong name": (ANY, "VERIFY_IDENTITY", "ca"),
}


@pytest.mark.parametrize("way", WORKS)
def test_tls_that_must_work(either_tls: MysqlServer, keys: Keys, tmp_path: Path, way: str) -> None:
    """What one way accepts, the other accepts too, and it is really TLS."""
    assert both_accept(either_tls, given(either_tls, keys, *WORKS[way]), tmp_path).tls


@pytest.mark.parametrize("way", FAILS)
def test_tls_that_must_fail(either_tls: MysqlServer, keys: Keys, tmp_path: Path, way: str) -> None:
    """A server that cannot prove itself is refused by both, with the options that decide it."""
    for error in both_refuse(either_tls, given(either_tls, keys, *FAILS[way]), tmp_path):
        assert "--mysql-ssl-mode and --mysql-ssl-ca" in error.hint, (str(error), error.hint)
        assert not error.transient


def test_certificates_that_mysql_made_itself(mysql_shared: MysqlServer, tmp_path: Path) -> None:
    """They prove the server by their authority; they carry no name that could be checked."""
    login = login_to(mysql_shared, ssl_mode="VERIFY_CA", ssl_ca=str(mysql_shared.ca))
    assert both_accept(mysql_shared, login, tmp_path / "ca").tls
    both_refuse(mysql_shared, replace(login, ssl_mode="VERIFY_IDENTITY"), tmp_path / "identity")


@pytest.mark.parametrize(
    "change", [TLS | {"ssl_mode": "DISABLED"}, CERTIFIED | {"ssl_mode": "REQUIRED"}]
)
def test_accounts_that_want_more(
    either_tls: MysqlServer, tmp_path: Path, change: dict[str, Any]
) -> None:
    """Access denied that TLS or a client certificate would mend says so."""
    for error in both_refuse(either_tls, login_to(either_tls, **change), tmp_path):
        assert "Access denied" in str(error)
        assert "REQUIRE SSL or X509" in error.hint


def test_disabled_is_without_tls(either_tls: MysqlServer, tmp_path: Path) -> None:
    """DISABLED is plain on both ways; MySQL's password goes encrypted with the server's key."""
    if either_tls.binaries.flavour == "mysql":
        either_tls.query("FLUSH PRIVILEGES")  # empties the cache of caching_sha2_password
    assert not both_accept(either_tls, login_to(either_tls, ssl_mode="DISABLED"), tmp_path).tls


def test_the_child_alone_with_a_cold_cache(mysql_tls: MysqlServer, tmp_path: Path) -> None:
    """Nor does mysqlbinlog live on pymysql's having logged in before it."""
    mysql_tls.query("FLUSH PRIVILEGES")
    login = login_to(mysql_tls, ssl_mode="DISABLED")
    assert try_child(mysql_tls, login, tmp_path / "run") is None


RSA_ACCOUNTS = {"caching": "caching_sha2_password", "rsa": "sha256_password"}


@pytest.fixture
def rsa(mysql_tls: MysqlServer) -> Iterator[MysqlServer]:
    """A MySQL that knows no password yet, with an account of each plugin that encrypts one."""
    for user, plugin in RSA_ACCOUNTS.items():
        mysql_tls.query(
            f"CREATE USER {user}@'%' IDENTIFIED WITH {plugin} BY 'pw'",
            f"GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO {user}@'%'",
        )
    yield mysql_tls
    mysql_tls.query(*(f"DROP USER {user}@'%'" for user in RSA_ACCOUNTS))


@pytest.mark.parametrize("user", RSA_ACCOUNTS)
def test_the_key_of_the_server(rsa: MysqlServer, tmp_path: Path, user: str) -> None:
    """Without TLS both ways encrypt the password with it, also if the server has cached nothing."""
    key = (rsa.datadir / "public_key.pem").read_text()
    login = login_to(rsa, user=user, password="pw", ssl_mode="DISABLED", public_key=key)
    rsa.query("FLUSH PRIVILEGES")
    assert not isinstance(try_server(login), SourceError)
    rsa.query("FLUSH PRIVILEGES")
    assert try_child(rsa, login, tmp_path / "run") is None


@pytest.mark.parametrize("user", RSA_ACCOUNTS)
def test_the_key_of_another_server(rsa: MysqlServer, tmp_path: Path, user: str) -> None:
    """It is refused, and the option is named; neither way asks the server for its key."""
    key = pem_of(new_key()).decode()
    login = login_to(rsa, user=user, password="pw", ssl_mode="DISABLED", public_key=key)
    rsa.query("FLUSH PRIVILEGES")
    mine, childs = both_refuse(rsa, login, tmp_path)
    assert "--mysql-server-public-key is not the key of this server" in mine.hint
    assert "--mysql-server-public-key" in childs.hint


def test_an_address_in_the_certificate(either_tls: MysqlServer, keys: Keys, tmp_path: Path) -> None:
    """VERIFY_IDENTITY of an address: both find it among the certificate's alternative names."""
    saved = {path: path.read_bytes() for path in (keys.server.cert, keys.server.key)}
    reload = (
        "FLUSH SSL" if either_tls.binaries.flavour == "mariadb" else "ALTER INSTANCE RELOAD TLS"
    )
    try:
        keys.server.cert.write_bytes(keys.address.cert.read_bytes())
        keys.server.key.write_bytes(keys.address.key.read_bytes())
        either_tls.query(reload)
        login = login_to(either_tls, ssl_mode="VERIFY_IDENTITY", ssl_ca=str(keys.ca))
        assert both_accept(either_tls, login, tmp_path).tls
    finally:
        for path, content in saved.items():
            path.write_bytes(content)
        either_tls.query(reload)


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


def test_a_server_without_tls(plain: MysqlServer, keys: Keys, tmp_path: Path) -> None:
    """It is read if TLS is only preferred, or by its socket; else refused, and the hint says why.

    MariaDB's client refuses only where the name is to be verified as well; pymysql comes first.
    """
    assert not both_accept(plain, login_to(plain), tmp_path / "preferred").tls
    assert not both_accept(plain, by_socket(plain, tmp_path), tmp_path / "socket").tls
    login = login_to(plain, ssl_mode="VERIFY_IDENTITY", ssl_ca=str(keys.ca), host="localhost")
    errors = [*both_refuse(plain, login, tmp_path / "verified")]
    login = login_to(plain, ssl_mode="REQUIRED")
    errors.append(try_server(login))
    if plain.binaries.flavour == "mysql":
        errors.append(try_child(plain, login, tmp_path / "required"))
    for error in errors:
        assert isinstance(error, SourceError)
        assert "--mysql-ssl-mode" in error.hint, (str(error), error.hint)


def by_socket(server: MysqlServer, directory: Path, user: str = "", password: str = "") -> Login:
    """What a server without an address is reached by: the socket of this host."""
    (directory / "pw").write_text(password or server.password)
    config = MysqlConfig(
        user=user or server.repl_user,
        password_file=directory / "pw",
        connect_timeout=60.0,
        local_socket=LocalSocket([server.socket]),
    )
    login = resolve(config)
    assert login.socket == str(server.socket)
    return login


def test_a_key_that_does_not_fit(mysql_tls: MysqlServer, keys: Keys) -> None:
    """Certificate and key of two owners: the files are named as the cause, at once."""
    login = login_to(
        mysql_tls,
        ssl_mode="REQUIRED",
        ssl_cert=str(keys.client.cert),
        ssl_key=str(keys.address.key),
    )
    error = try_server(login)
    assert isinstance(error, SourceError)
    assert "cannot use the TLS files" in str(error)
    assert "--mysql-ssl-key" in error.hint
    assert not error.transient


def test_passwords(either_tls: MysqlServer, tmp_path: Path) -> None:
    """Quotes, comment signs, spaces, other alphabets and none reach the server both ways."""
    for mode in ("DISABLED", "REQUIRED"):
        login = login_to(either_tls, user="nasty", password=NASTY, ssl_mode=mode)
        both_accept(either_tls, login, tmp_path / mode)
    both_accept(either_tls, login_to(either_tls, user="naked", password=""), tmp_path / "none")


def test_the_socket(either_tls: MysqlServer, tmp_path: Path) -> None:
    """One that is given wins over host and port, and needs no TLS; PREFERRED takes it.

    Of this host's server it is the way, with the TLS that an account may require. One that is not
    there is named; MariaDB's client cuts long paths short.
    """
    (tmp_path / "own").write_text(either_tls.password)
    config = MysqlConfig(
        user=either_tls.repl_user,
        password_file=tmp_path / "own",
        socket=either_tls.socket,
        connect_timeout=60.0,
    )
    login = replace(resolve(config), host="nowhere.invalid", port=1)
    assert not both_accept(either_tls, login, tmp_path / "given").tls
    preferred = replace(login, ssl_mode="PREFERRED")
    assert both_accept(either_tls, preferred, tmp_path / "preferred").tls
    assert both_accept(either_tls, by_socket(either_tls, tmp_path, **TLS), tmp_path / "here").tls
    with temporary_directory() as directory:
        login = login_to(either_tls, socket=str(directory / "no.sock"))
        for error in both_refuse(either_tls, login, tmp_path / "none"):
            assert str(directory / "no.sock") in str(error)
            assert error.transient


# The whole process


@pytest.fixture
def archives(minio: MinioServer, bucket: str, tmp_path: Path) -> "Archives":
    """Streams with these options until a binlog that was just closed is archived."""

    def run(server: MysqlServer, options: dict[str, Any], *arguments: str) -> None:
        server.query("FLUSH BINARY LOGS")
        closed = server.binlogs()[-2][0]
        options = {"start-binlog": closed, **options}
        place = (tmp_path / "stream", server, minio, bucket)
        with StreamProcess(*place, options=options, arguments=arguments) as stream:
            stream.wait_for_event("binlog archived", binlog=closed)
            assert stream.terminate() == 0
            assert server.password not in stream.stderr()

    return run


Archives = Callable[..., None]


def test_tls_through_the_process(
    archives: Archives,
    either_tls: MysqlServer,
    keys: Keys,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The options' TLS is that of the questions and of the stream.

    Paths are taken from where the program was started, for the child as well.
    """
    (tmp_path / "secret").write_text("pw")
    (tmp_path / "ca.pem").write_bytes(keys.ca.read_bytes())
    (tmp_path / "binlog-tool").symlink_to(either_tls.binaries.binlog)
    monkeypatch.chdir(tmp_path)
    options = {
        "spool": "spool",
        "mysqlbinlog": "./binlog-tool",
        "mysql-user": "certified",
        "mysql-password-file": "secret",
        "mysql-ssl-mode": "VERIFY_IDENTITY",
        "mysql-host": "localhost",
        "mysql-ssl-ca": "ca.pem",
        "mysql-ssl-cert": keys.client.cert,
        "mysql-ssl-key": keys.client.key,
    }
    archives(either_tls, options)


ELSEWHERE = "0.0.0.0"
"""It leads to this machine, and is no loopback address: all that is known of another host."""


def test_a_server_on_another_host(archives: Archives, mysql_tls: MysqlServer, keys: Keys) -> None:
    """It is streamed if its certificate is verified."""
    archives(mysql_tls, {"mysql-host": ELSEWHERE, "mysql-ssl-ca": keys.ca})


def test_the_risk_is_accepted(archives: Archives, mariadb_tls: MariadbServer) -> None:
    """It is streamed though nothing proves it."""
    archives(mariadb_tls, {"mysql-host": ELSEWHERE}, "--mysql-accept-unverified-server")


def test_a_client_that_does_not_insist_on_tls(
    minio: MinioServer, bucket: str, mariadb_tls: MariadbServer, keys: Keys, tmp_path: Path
) -> None:
    """MariaDB's before 11.4 is refused at the start, where only the authority is verified."""
    options = {"mysql-host": ELSEWHERE, "mysql-ssl-ca": keys.ca}
    with StreamProcess(tmp_path, mariadb_tls, minio, bucket, options=options) as stream:
        assert stream.wait() == 4
    assert "does not insist on TLS" in stream.stderr()
    assert "VERIFY_IDENTITY" in stream.stderr()


def test_a_mysql_on_another_host_without_tls(archives: Archives, mysql_tls: MysqlServer) -> None:
    """It is streamed with its key."""
    mysql_tls.query("FLUSH PRIVILEGES")
    key = mysql_tls.datadir / "public_key.pem"
    options = {"mysql-ssl-mode": "DISABLED", "mysql-server-public-key": key}
    archives(mysql_tls, {"mysql-host": ELSEWHERE, **options})


def test_a_server_on_another_host_that_is_not_proved(
    minio: MinioServer, bucket: str, either_tls: MysqlServer, tmp_path: Path
) -> None:
    """It is refused before it is sent anything, with the options that would prove it."""
    options = {"mysql-host": ELSEWHERE, "mysql-ssl-mode": "REQUIRED"}
    before = either_tls.query("SHOW GLOBAL STATUS LIKE 'Connections'")[0][1]
    with StreamProcess(tmp_path, either_tls, minio, bucket, options=options) as stream:
        assert stream.wait() == 4
    assert int(either_tls.query("SHOW GLOBAL STATUS LIKE 'Connections'")[0][1]) - int(before) == 1
    said = stream.stderr()
    assert f"nothing proves which server answers at {ELSEWHERE}:{either_tls.port}" in said
    assert "--mysql-ssl-ca" in said
    assert "accept-unverified-server" in said
    assert "--mysql-server-public-key" not in said, "that is for TLS off"


def test_an_old_configuration_at_an_upgrade(
    minio: MinioServer, bucket: str, mysql_tls: MysqlServer, tmp_path: Path
) -> None:
    """What the old streamer left in its spool is uploaded; then it ends, and says why."""
    place, there = (tmp_path, mysql_tls, minio, bucket), Bucket(minio, bucket)
    mysql_tls.query("FLUSH BINARY LOGS")
    name = mysql_tls.binlogs()[-1][0]
    old = {"start-binlog": name, "flush-interval": 3600}
    with StreamProcess(*place, options=old) as stream:
        stream.wait_for_event("streaming")
        mysql_tls.query("CREATE DATABASE upgraded", "DROP DATABASE upgraded")
        _, size = all_came(stream, mysql_tls)
        stream.kill()
    assert there.binlogs() == {}
    with StreamProcess(*place, options={"mysql-host": ELSEWHERE}) as stream:
        assert stream.wait() == 4
    assert {key: len(data) for key, data in there.binlogs().items()} == {name: size}
    assert "uploading what the spool has" in stream.stderr()
    assert f"nothing proves which server answers at {ELSEWHERE}" in stream.stderr()


def test_an_option_file(archives: Archives, either_tls: MysqlServer, tmp_path: Path) -> None:
    """User, password and socket, quoted as the manual has it, come from there alone."""
    place = f"socket='{either_tls.socket}'  # here"
    quoted = NASTY.replace("\\", "\\\\").replace('"', '\\"')
    file = tmp_path / "my.cnf"
    file.write_text(
        f"# of another program\n[mysqld]\nuser=mysql\n\n[client]\nuser = nasty\n{place}\n"
        f'password = "{quoted}"  # with a # inside\n',
        encoding="utf-8",
    )
    options = {"mysql-defaults-file": file}
    without = ("mysql-host", "mysql-port", "mysql-user", "mysql-password-file")
    archives(either_tls, {**dict.fromkeys(without), **options})


def _odd_values(count: int) -> list[str]:
    """Values of option lines that are full of what has a meaning there; always the same ones."""
    chance = random.Random(6)
    letters = "'\"\\#=; \tabnrst"
    return ["".join(chance.choices(letters, k=chance.randint(1, 10))) for _ in range(count)]


@pytest.mark.parametrize("flavour", ["mysql", "mariadb"])
def test_option_files_mean_what_they_mean_to_mysqls_programs(
    mysql_binaries: ServerBinaries, mariadb_binaries: ServerBinaries, tmp_path: Path, flavour: str
) -> None:
    """Of each line the program and we take the same value."""
    binaries = mysql_binaries if flavour == "mysql" else mariadb_binaries
    lines = [f"o{number}={value}x" for number, value in enumerate(_odd_values(500))]
    lines += [f"q{number}={value}" for number, value in enumerate(_odd_values(500))]
    file = tmp_path / "my.cnf"
    file.write_text("[client]\n" + "\n".join(lines) + "\n")
    done = subprocess.run(
        [str(binaries.binlog), f"--defaults-file={file}", "--print-defaults"],
        capture_output=True,
        check=True,
    )
    ours = parse_options(file.read_text(), str(file))
    assert len(ours) == len(lines)
    theirs = done.stdout.decode().partition("arguments:\n")[2]
    assert theirs.strip() == " ".join(f"--{name}={value}" for name, value in ours.items()).strip()
