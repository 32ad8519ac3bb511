"""What goes wrong for real, through the real process: exit code, message, hint, and no traceback.

Each test says what the operator would have done wrong, or what broke; the message must name the
values, the hint what to do.
"""

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from lab.child import free_port
from lab.disk import temporary_directory
from lab.fault import Answer, on
from lab.get import ServerBinaries
from lab.mysql import MariadbServer, MysqlServer
from lab.proxy import RecordingProxy
from lab.s3 import MinioServer, allow, environment_for
from tests.integration.stream_process import Line, StreamProcess
from tests.waiting import wait_until

GRANT = "GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO "


@pytest.fixture(scope="module")
def mysql_here(mysql_binaries: ServerBinaries) -> Iterator[MysqlServer]:
    """A MySQL for this file; tests leave it as it was, running."""
    with temporary_directory() as directory, MysqlServer(mysql_binaries, directory) as server:
        _create_poor_users(server)
        yield server


@pytest.fixture(scope="module")
def mariadb_here(mariadb_binaries: ServerBinaries) -> Iterator[MariadbServer]:
    """A MariaDB for this file; tests leave it as it was, running."""
    with temporary_directory() as directory, MariadbServer(mariadb_binaries, directory) as server:
        _create_poor_users(server)
        yield server


@pytest.fixture(params=["mysql", "mariadb"])
def either(
    request: pytest.FixtureRequest, mysql_here: MysqlServer, mariadb_here: MariadbServer
) -> MysqlServer:
    """Each flavour in turn."""
    return mysql_here if request.param == "mysql" else mariadb_here


@pytest.fixture
def bucket_name(minio: MinioServer) -> str:
    """A bucket of its own, so that no test meets another's archive."""
    return minio.make_bucket()


Start = Callable[..., StreamProcess]
Refused = Callable[..., tuple[str, str]]


@pytest.fixture
def start(minio: MinioServer, bucket_name: str, disk_tmp_path: Path) -> Start:
    """Makes a streamer in a directory of its own; use the answer in a `with`."""
    count = 0

    def make(server: MysqlServer, *, bucket: str = bucket_name, **more: Any) -> StreamProcess:
        nonlocal count
        count += 1
        return StreamProcess(disk_tmp_path / f"streamer-{count}", server, minio, bucket, **more)

    return make


@pytest.fixture
def refused(start: Start) -> Refused:
    """Runs a streamer that must end by itself with this code; its message and hint."""

    def run(code: int, server: MysqlServer, **more: Any) -> tuple[str, str]:
        with start(server, **more) as stream:
            return last_words(stream, code)

    return run


def waits(stream: StreamProcess, event: str) -> tuple[str, str]:
    """Wait until it says that it waits; the message and the hint; SIGTERM ends it with 0."""
    with stream:
        line = stream.wait_for_event(event)
        assert stream.terminate() == 0
    assert "Traceback" not in stream.stderr()
    return line["error"], line["hint"]


def last_words(stream: StreamProcess, code: int) -> tuple[str, str]:
    """Wait for the end; the message and the hint of its last line, and no secret anywhere."""
    assert stream.wait() == code, stream.stderr()
    said = stream.stderr()
    assert "Traceback" not in said
    secrets = [Path(stream.argv[stream.argv.index("--mysql-password-file") + 1]).read_text()]
    secrets += [v for k, v in stream.environment.items() if k == "AWS_SECRET_ACCESS_KEY"]
    assert not [secret for secret in secrets if secret in said]
    line: Line = stream.log()[-1]
    assert (line["event"], line["level"], line["exit_code"]) == ("ended", "error", code)
    return line["error"], line["hint"]


def _create_poor_users(server: MysqlServer) -> None:
    """Users that lack something; the password is `Secret-` and their name."""
    for user, privilege in (
        ("noslave", "REPLICATION CLIENT"),
        ("noclient", "REPLICATION SLAVE"),
        ("nothing", "USAGE"),
    ):
        server.query(
            "SET sql_log_bin = 0",
            f"CREATE USER {user}@'%' IDENTIFIED BY 'Secret-{user}'",
            f"GRANT {privilege} ON *.* TO {user}@'%'",
        )


def dumps(server: MysqlServer) -> list[int]:
    """The connection ids of those who read the server's binary log."""
    command = "SELECT id FROM information_schema.processlist WHERE command LIKE 'Binlog Dump%'"
    return [int(row[0]) for row in server.query(command)]


@contextmanager
def streaming(stream: StreamProcess, server: MysqlServer) -> Iterator[int]:
    """The streamer running, its child known to the server as one that reads; the child's pid."""
    before = set(dumps(server))
    with stream:
        child = stream.wait_for_event("streaming")["pid"]
        wait_until(lambda: set(dumps(server)) - before, what="the child reads the binary log")
        yield int(child)


# The store


def test_no_such_bucket(refused: Refused, mysql_here: MysqlServer) -> None:
    """A bucket that is not there is named, with the endpoint that was asked."""
    error, hint = refused(6, mysql_here, bucket="no-such-bucket")
    assert error.startswith("there is no bucket 'no-such-bucket' at http://127.0.0.1:")
    assert "create it" in hint
    assert "--s3-url" in hint


@pytest.mark.parametrize(
    ("allowed", "lacking"),
    [(["s3:GetObject", "s3:PutObject"], "s3:ListBucket"), (["s3:*Bucket"], "s3:PutObject")],
    ids=["no list", "no put"],
)
def test_no_permission(
    refused: Refused, mysql_here: MysqlServer, minio: MinioServer, allowed: list[str], lacking: str
) -> None:
    """The action that a policy must allow is named, before the first binlog is read."""
    rights = environment_for(**minio.restricted(allow(*allowed)))
    error, hint = refused(6, mysql_here, environment=rights)
    assert error.startswith("access denied: ")
    assert "bucket-" in error
    assert f"allow {lacking} " in hint


def test_wrong_secret_key(refused: Refused, mysql_here: MysqlServer, minio: MinioServer) -> None:
    """It is told apart from a missing right, and where boto3 looks is said."""
    error, hint = refused(6, mysql_here, environment={"AWS_SECRET_ACCESS_KEY": "wrong-secret"})
    assert error == (
        f"the store refuses the signature (SignatureDoesNotMatch) at {minio.endpoint_url}"
    )
    assert "does not belong to the access key id" in hint
    assert "~/.aws/credentials" in hint


def test_no_credentials(refused: Refused, mysql_here: MysqlServer) -> None:
    """No keys anywhere: where boto3 looks for them is said."""
    nothing = {"AWS_ACCESS_KEY_ID": None, "AWS_SECRET_ACCESS_KEY": None}
    error, hint = refused(6, mysql_here, environment=nothing)
    assert error.startswith("no usable AWS credentials: ")
    assert "AWS_ACCESS_KEY_ID" in hint


@pytest.mark.parametrize("status", [200, 403, 404])
def test_endpoint_is_a_web_server(
    refused: Refused,
    mysql_here: MysqlServer,
    minio: MinioServer,
    status: int,
) -> None:
    """An answer in HTML is never taken for the store's, whatever its status."""
    page = Answer(status, headers={"Content-Type": "text/html"}, body=b"<html>welcome</html>")
    with RecordingProxy(minio.endpoint_url, [on(page)]) as web:
        error, hint = refused(6, mysql_here, options={"endpoint-url": web.url})
        assert web.records
    assert error.startswith(f"{web.url} answers, but not like an S3 store: ")
    assert f"status {status} with text/html" in error
    assert "not its console or a web server" in hint


@pytest.mark.gate
def test_endpoint_refuses(start: Start, mysql_here: MysqlServer) -> None:
    """Nobody listens there yet: the endpoint and the system's own word, and it waits."""
    url = f"http://127.0.0.1:{free_port()}"
    stream = start(mysql_here, options={"endpoint-url": url})
    error, hint = waits(stream, "waiting for the store")
    assert error.startswith(f"cannot reach the store at {url}: ")
    assert "Connection refused" in error
    assert "--endpoint-url" in hint


def test_endpoint_never_answers(start: Start, mysql_here: MysqlServer) -> None:
    """Something takes the connection and is silent: that is said, and it waits."""
    with closing(socket.create_server(("127.0.0.1", 0))) as mute:
        url = f"http://127.0.0.1:{mute.getsockname()[1]}"
        stream = start(mysql_here, options={"endpoint-url": url})
        error, hint = waits(stream, "waiting for the store")
    assert error.startswith(f"the store at {url} did not answer ")
    assert "firewall" in hint


@pytest.mark.parametrize(("shift", "word"), [("+3600s", "ahead"), ("-3600s", "behind")])
def test_clock_skew(
    start: Start, mysql_here: MysqlServer, faketime_library: Path, shift: str, word: str
) -> None:
    """A clock that is an hour off is named as such, with how much and to which side."""
    fake = {"LD_PRELOAD": str(faketime_library), "FAKETIME": shift, "DONT_FAKE_MONOTONIC": "1"}

    def run() -> tuple[str, str] | None:
        with start(mysql_here, environment=fake) as stream:
            # libfaketime 0.9.10 answers a sleep until a time with EINVAL: try again then
            unlucky = stream.wait() == 4 and "Errno 22" in stream.log()[-1]["error"]
            return None if unlucky else last_words(stream, 6)

    error, hint = wait_until(run, 300, "an answer of the store") or ("", "")
    assert error.startswith("the clocks of this host and of the store differ too much: ours is 3")
    assert error.endswith(f" s {word}")
    assert "timedatectl" in hint


# The server


def test_server_refuses(start: Start, mysql_here: MysqlServer) -> None:
    """Nobody listens there yet: the address and the system's own word, and it waits."""
    port = free_port()
    stream = start(mysql_here, options={"mysql-port": port})
    error, hint = waits(stream, "waiting for the source")
    assert f"mysql at 127.0.0.1:{port}: " in error
    assert "Connection refused" in error
    assert "check that the server is running" in hint


def test_server_is_frozen(start: Start, mysql_here: MysqlServer) -> None:
    """A server that takes the connection and is silent: said as soon as asked, and it waits."""
    mysql_here.freeze()
    try:
        stream = start(mysql_here, options={"mysql-connect-timeout": 1})
        error, hint = waits(stream, "waiting for the source")
    finally:
        mysql_here.thaw()
    assert f"127.0.0.1:{mysql_here.port}: no answer within 1 s" in error
    assert "--mysql-connect-timeout" in hint


def test_wrong_password(refused: Refused, mysql_here: MysqlServer, tmp_path: Path) -> None:
    """Access denied: by whom, and for which user."""
    wrong = tmp_path / "password"
    wrong.write_text("Not-The-Secret")
    error, hint = refused(4, mysql_here, options={"mysql-password-file": wrong})
    assert "Access denied for user 'repl'@'localhost' (using password: YES) (1045)" in error
    assert f"127.0.0.1:{mysql_here.port}" in error
    assert "--mysql-user, the password file" in hint


def test_unknown_user(refused: Refused, mysql_here: MysqlServer) -> None:
    """The server does not say that the user is unknown; the hint names all that it can be."""
    error, hint = refused(4, mysql_here, options={"mysql-user": "nobody"})
    assert "Access denied for user 'nobody'@'localhost'" in error
    assert "the account's host part" in hint


@pytest.mark.parametrize(
    ("user", "lacking"),
    [
        ("noslave", "REPLICATION SLAVE"),
        ("noclient", "REPLICATION CLIENT"),
        ("nothing", "REPLICATION CLIENT"),
    ],
)
def test_missing_privilege(
    refused: Refused,
    either: MysqlServer,
    tmp_path: Path,
    user: str,
    lacking: str,
) -> None:
    """The privilege is named as it is granted, with the statement that grants all at once."""
    secret = tmp_path / "password"
    secret.write_text(f"Secret-{user}")
    options = {"mysql-user": user, "mysql-password-file": secret}
    error, hint = refused(4, either, options=options)
    assert error.startswith(f"user '{user}' at 127.0.0.1:{either.port} is missing the privilege ")
    assert lacking in error
    assert "SUPER" not in error
    assert hint.startswith(f"{GRANT}{user}@")


def test_log_bin_off(refused: Refused, mysql_binaries: ServerBinaries, disk_tmp_path: Path) -> None:
    """A server without a binary log has nothing to stream, and the setting is named."""
    options = ["--skip-log-bin"]
    with MysqlServer(mysql_binaries, disk_tmp_path / "server", options=options) as server:
        error, hint = refused(4, server)
        assert error == f"127.0.0.1:{server.port} writes no binlog (log_bin is OFF)"
        assert "set log_bin" in hint


def test_unknown_start_binlog(refused: Refused, mysql_here: MysqlServer) -> None:
    """What the server has is said."""
    error, hint = refused(4, mysql_here, options={"start-binlog": "mysql-bin.000099"})
    assert error == (
        "the server has no binlog mysql-bin.000099: it has mysql-bin.000001 to "
        f"{mysql_here.binlogs()[-1][0]}"
    )
    assert "--start-binlog" in hint


# mysqlbinlog


def test_mysqlbinlog_is_not_there(refused: Refused, either: MysqlServer) -> None:
    """A path that leads to nothing is named, with what to install for this flavour."""
    error, hint = refused(4, either, options={"mysqlbinlog": "/nowhere/mysqlbinlog"})
    assert error == "/nowhere/mysqlbinlog is not an executable program"
    assert _package(either) in hint


def test_no_mysqlbinlog_on_path(refused: Refused, either: MysqlServer, tmp_path: Path) -> None:
    """Nothing on PATH: which program for which server, and what to install."""
    nothing = {"PATH": str(tmp_path)}
    error, hint = refused(4, either, options={"mysqlbinlog": None}, environment=nothing)
    title = "MariaDB" if either.binaries.flavour == "mariadb" else "MySQL"
    assert error.startswith(f"no {either.binaries.binlog.name} ")
    assert error.endswith(f"on PATH, for a {title} server")
    assert _package(either) in hint


def _package(server: MysqlServer) -> str:
    return "mariadb-client" if server.binaries.flavour == "mariadb" else "mysql-client"


def test_not_a_mysqlbinlog(refused: Refused, mysql_here: MysqlServer) -> None:
    """Another program is not started as if it were one."""
    error, hint = refused(4, mysql_here, options={"mysqlbinlog": "/bin/true"})
    assert error.startswith("/bin/true is not a mysqlbinlog that can stream")
    assert "--mysqlbinlog" in hint


def test_mysqlbinlog_of_the_other_flavour(
    refused: Refused,
    either: MysqlServer,
    mysql_binaries: ServerBinaries,
    mariadb_binaries: ServerBinaries,
) -> None:
    """They do not mix: the program, both flavours, and what to install."""
    mine, other = ("MySQL", mariadb_binaries.binlog), ("MariaDB", mysql_binaries.binlog)
    title, wrong = mine if either.binaries.flavour == "mysql" else other
    whose = "MariaDB" if title == "MySQL" else "MySQL"
    error, hint = refused(4, either, options={"mysqlbinlog": wrong})
    assert error.startswith(f"{wrong} is of {whose}, but the server is {title}")
    assert _package(either) in hint


# The spool


def test_spool_is_a_file(refused: Refused, mysql_here: MysqlServer, tmp_path: Path) -> None:
    """Something else lies where the spool should be."""
    there = tmp_path / "file"
    there.touch()
    error, hint = refused(5, mysql_here, options={"spool": there})
    assert str(there) in error
    assert "--spool" in hint
    error, hint = refused(5, mysql_here, options={"spool": there / "below"})
    assert error == f"spool: {there / 'below'}: not a directory"
    assert "--spool" in hint


def test_spool_is_not_writable(start: Start, mysql_here: MysqlServer, tmp_path: Path) -> None:
    """A directory that this user may not write to: which one, and whose it must be."""
    there = tmp_path / "spool"
    there.mkdir(mode=0o500)
    stream = start(mysql_here, options={"spool": there})
    if os.geteuid() == 0:  # root may write everywhere, unless it has given that right away
        stream.argv = ["setpriv", "--bounding-set=-dac_override", "--", *stream.argv]
    with stream:
        error, hint = last_words(stream, 5)
    assert error == f"spool: {there}/lock: permission denied"
    assert "must own the spool directory" in hint


def test_spool_in_use(refused: Refused, start: Start, mysql_here: MysqlServer) -> None:
    """A second streamer on the same spool names the first one's process, and harms nothing."""
    first = start(mysql_here)
    with streaming(first, mysql_here):
        options = {"spool": first.spool, "source": "second"}
        error, hint = refused(5, mysql_here, options=options)
        assert error == f"spool {first.spool} is in use by another streamer (process {first.pid})"
        assert "each streamer needs a spool of its own" in hint
        assert first.terminate() == 0


def test_spool_of_another_source(refused: Refused, start: Start, mysql_here: MysqlServer) -> None:
    """A spool that still holds something of one source is not taken by another."""
    first = start(mysql_here)
    with streaming(first, mysql_here):
        wait_until(lambda: list(first.spool.glob("run-*/mysql-bin.*")), what="an open binlog")
        assert first.terminate() == 0
    error, hint = refused(5, mysql_here, options={"spool": first.spool, "source": "second"})
    assert f"spool {first.spool} holds binlogs of test for s3://" in error
    assert "not of second for s3://" in error
    assert "a spool of its own" in hint


# The child dies under the stream


@pytest.fixture(params=["mysql", "mariadb"])
def mortal(
    request: pytest.FixtureRequest, mysql_here: MysqlServer, mariadb_here: MariadbServer
) -> Iterator[MysqlServer]:
    """Each flavour in turn, for a test that ends the server; it is started again afterwards."""
    server = mysql_here if request.param == "mysql" else mariadb_here
    yield server
    server.kill()
    server.start()


def reading_again(stream: StreamProcess) -> tuple[str, str]:
    """Wait until it says why it begins anew; the message and the hint, and it still runs."""
    line = stream.wait_for_event("reading again")
    assert stream.process.poll() is None
    return line["error"], line["hint"]


def test_server_is_killed(start: Start, mortal: MysqlServer) -> None:
    """`kill -9` of the server: what mysqlbinlog said is told, and it is tried again."""
    stream = start(mortal)
    with streaming(stream, mortal):
        stream.wait_for_event("new lineage")
        mortal.kill()
        error, hint = reading_again(stream)
        assert error.startswith("mysqlbinlog ended: ")
        assert "Lost connection to" in error or "Can't connect to" in error
        assert "the server" in hint
        mortal.start()
        wait_until(lambda: len(stream.events("streaming")) >= 2, what="the next run")
        assert stream.terminate() == 0


def test_server_is_shut_down(start: Start, mortal: MysqlServer) -> None:
    """A clean shutdown too: MySQL's child leaves without a word, so the hint asks."""
    stream = start(mortal)
    with streaming(stream, mortal):
        stream.wait_for_event("new lineage")
        mortal.stop()
        error, hint = reading_again(stream)
        if mortal.binaries.flavour == "mysql":
            assert error == "mysqlbinlog exited with status 0 and no error message"
            assert "this happens when the server shuts down" in hint
        else:
            assert "Lost connection to server" in error
            assert "it went down" in hint
        assert stream.terminate() == 0


def test_dump_thread_is_killed(start: Start, either: MysqlServer) -> None:
    """KILL of the connection on the server: the next run goes on where it was."""
    stream = start(either)
    before = set(dumps(either))
    with streaming(stream, either):
        (mine,) = set(dumps(either)) - before
        either.query(f"KILL {mine}")
        error, hint = reading_again(stream)
        assert error.startswith("mysqlbinlog ended: Got error reading packet from server: Lost")
        assert "KILL ended the dump" in hint
        wait_until(lambda: len(stream.events("streaming")) >= 2, what="the next run")
        assert stream.terminate() == 0


def test_another_client_with_the_same_server_id(start: Start, either: MysqlServer) -> None:
    """The server ends the older one, which says why, loudly."""
    first = start(either, options={"mysql-server-id": 777, "source": "first"})
    second = start(either, options={"mysql-server-id": 777, "source": "second"})
    with streaming(first, either), second:
        error, hint = reading_again(first)
        assert "with the same server_uuid/server_id" in error
        assert "another --mysql-server-id" in hint


# What the child knows


def test_no_secret_in_the_child(start: Start, either: MysqlServer, minio: MinioServer) -> None:
    """Neither password nor keys are in its arguments or environment, nor in anything said."""
    stream = start(either)
    with streaming(stream, either) as child:
        arguments = Path(f"/proc/{child}/cmdline").read_bytes()
        environment = Path(f"/proc/{child}/environ").read_bytes()
        assert b"--read-from-remote-server" in arguments
        assert b"TZ=UTC" in environment
        own_arguments = Path(f"/proc/{stream.pid}/cmdline").read_bytes()
        own_environment = Path(f"/proc/{stream.pid}/environ").read_bytes()
        assert minio.secret_key.encode() in own_environment  # so that the next line can fail
        for secret in (either.password, minio.secret_key, minio.access_key):
            assert secret.encode() not in arguments + environment + own_arguments
        assert either.password.encode() not in own_environment
        for name in (b"AWS_", b"BINLOG2S3_", b"MYSQL_PWD"):
            assert name not in environment
        assert stream.terminate() == 0
    for secret in (either.password, minio.secret_key):
        assert secret not in stream.stderr()


def test_kill_9_leaves_no_mysqlbinlog(start: Start, either: MysqlServer) -> None:
    """No `finally` runs then; the kernel ends the child, which would go on for ever."""
    stream = start(either)
    with streaming(stream, either) as child:
        assert _alive(child)
        stream.kill()
        wait_until(lambda: not _alive(child), what="mysqlbinlog is gone")


def _alive(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"
