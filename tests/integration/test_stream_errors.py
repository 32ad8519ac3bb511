"""What goes wrong for real, through the real process: exit code, message, hint, and no traceback.

Each kind of mistake once; test_store_errors.py and test_server.py have the others, without a
process. The message must name the values, the hint what to do.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from lab.child import free_port
from lab.disk import temporary_directory
from lab.get import ServerBinaries
from lab.mysql import MariadbServer, MysqlServer
from lab.s3 import MinioServer
from tests.integration.stream_process import Line, StreamProcess
from tests.integration.streaming import Start, alive, is_proved
from tests.waiting import wait_until


@pytest.fixture(scope="module")
def mysql_here(mysql_binaries: ServerBinaries) -> Iterator[MysqlServer]:
    """A MySQL for this file; tests leave it running."""
    with temporary_directory() as directory, MysqlServer(mysql_binaries, directory) as server:
        yield server


@pytest.fixture(scope="module")
def mariadb_here(mariadb_binaries: ServerBinaries) -> Iterator[MariadbServer]:
    """A MariaDB for this file; tests leave it running."""
    with temporary_directory() as directory, MariadbServer(mariadb_binaries, directory) as server:
        yield server


@pytest.fixture(params=["mysql", "mariadb"])
def mortal(
    request: pytest.FixtureRequest, mysql_here: MysqlServer, mariadb_here: MariadbServer
) -> MysqlServer:
    """Each flavour in turn."""
    return mysql_here if request.param == "mysql" else mariadb_here


def last_words(stream: StreamProcess, code: int) -> tuple[str, str]:
    """Wait for the end; the message and the hint of its last line, and no secret anywhere."""
    assert stream.wait() == code, stream.stderr()
    said = stream.stderr()
    assert "Traceback" not in said
    secrets = [Path(stream.argv[stream.argv.index("--mysql-password-file") + 1]).read_text()]
    secrets += [v for k, v in stream.environment.items() if k == "AWS_SECRET_ACCESS_KEY"]
    assert not [secret for secret in secrets if secret in said]
    line: Line = stream.log()[-1]
    assert (line["event"], line["level"], line["exit_code"]) == ("process_ended", "error", code)
    return line["error"], line["hint"]


WRONG: dict[str, tuple[int, dict[str, Any], dict[str, str | None], str, str]] = {
    # exit code, options, environment, words of the message, words of the hint
    "secret key": (
        6, {}, {"AWS_SECRET_ACCESS_KEY": "wrong-secret"},
        "the store refuses the signature (SignatureDoesNotMatch) at {store}",
        "does not belong to the access key id",
    ),
    "bucket": (6, {"s3_url": "s3://no-such-bucket/pre"}, {},
               "there is no bucket 'no-such-bucket' at {store}", "--s3-url"),
    "password": (4, {"mysql_password_file": "{file}"}, {},
                 "Access denied for user 'repl'@'localhost' (using password: YES) (1045)",
                 "--mysql-user, the password file"),
    "start binlog": (4, {"start_binlog": "mysql-bin.000099"}, {},
                     "the server has no binlog mysql-bin.000099: it has mysql-bin.000001 to",
                     "--start-binlog"),
    "no program": (4, {"mysqlbinlog": "/nowhere/mysqlbinlog"}, {},
                   "/nowhere/mysqlbinlog is not an executable program", "mysql-client"),
    "other program": (4, {"mysqlbinlog": "/bin/true"}, {},
                      "/bin/true is not a mysqlbinlog that can stream", "--mysqlbinlog"),
    "other flavour": (4, {"mysqlbinlog": "{mariadb}"}, {},
                      "{mariadb} is of MariaDB, but the server is MySQL", "mysql-client"),
    "spool": (5, {"spool": "{file}/below"}, {}, "spool: {file}/below: not a directory", "--spool"),
}  # fmt: skip


@pytest.mark.parametrize("what", WRONG)
def test_a_mistake_ends_the_start(
    start: Start,
    mysql_here: MysqlServer,
    mariadb_binaries: ServerBinaries,
    minio: MinioServer,
    tmp_path: Path,
    what: str,
) -> None:
    """The exit code is that of its kind; the message names it, the hint what to do."""
    code, options, environment, message, wanted = WRONG[what]
    (tmp_path / "file").write_text("Not-The-Secret")
    names = {
        "store": minio.endpoint_url,
        "file": tmp_path / "file",
        "mariadb": mariadb_binaries.binlog,
    }
    options = {name: value.format(**names) for name, value in options.items()}
    with start(mysql_here, environment=environment, **options) as stream:
        error, hint = last_words(stream, code)
    assert message.format(**names) in error
    assert wanted in hint


def test_log_bin_off(start: Start, mysql_binaries: ServerBinaries, disk_tmp_path: Path) -> None:
    """A server without a binary log has nothing to stream, and the setting is named."""
    options = ["--skip-log-bin"]
    with (
        MysqlServer(mysql_binaries, disk_tmp_path / "server", options=options) as server,
        start(server) as stream,
    ):
        error, hint = last_words(stream, 4)
    assert error == f"127.0.0.1:{server.port} writes no binlog (log_bin is OFF)"
    assert "set log_bin" in hint


@pytest.mark.gate
def test_endpoint_refuses(start: Start, mysql_here: MysqlServer) -> None:
    """Nobody listens there yet: the endpoint and the system's own word, and it waits."""
    url = f"http://127.0.0.1:{free_port()}"
    with start(mysql_here, endpoint_url=url) as stream:
        line = stream.wait_for_event("waiting for the store")
        assert stream.terminate() == 0
    assert "Traceback" not in stream.stderr()
    assert line["error"].startswith(f"cannot reach the store at {url}: ")
    assert "Connection refused" in line["error"]
    assert "--endpoint-url" in line["hint"]


# The child dies under the stream


@contextmanager
def reading_again(stream: StreamProcess) -> Iterator[dict[str, str]]:
    """Something is done to the child: why it begins anew, in `error` and `hint`; it still runs."""
    count, line = len(stream.events("reading again")), {"error": "", "hint": ""}
    yield line
    wait_until(lambda: len(stream.events("reading again")) > count, what="why it begins anew")
    assert stream.process.poll() is None
    line |= stream.events("reading again")[count]


def test_what_ends_the_child_is_told(start: Start, mortal: MysqlServer) -> None:
    """KILL of its connection, `kill -9` of the server and a clean shutdown: in the child's words.

    MySQL's child leaves without a word at a shutdown, so the hint asks.
    """
    dumps = "SELECT id FROM information_schema.processlist WHERE command LIKE 'Binlog Dump%'"

    known = {number for (number,) in mortal.query(dumps)}  # a child that was killed may be there

    def reads() -> int:
        """The new child's connection."""
        new = wait_until(
            lambda: {number for (number,) in mortal.query(dumps)} - known, what="the child reads"
        )
        known.update(new)
        # until then an end of the server may be told in the words of the comparison
        wait_until(
            lambda: any(map(is_proved, sorted(stream.spool.glob("run-*"))[-1:])),
            what="what the child reads is the server's",
        )
        return int(max(new))

    with start(mortal) as stream:
        stream.wait_for_event("new lineage")
        with reading_again(stream) as said:
            mortal.query(f"KILL {reads()}")
        assert said["error"].startswith("mysqlbinlog ended: Got error reading packet from server:")
        assert "KILL ended the dump" in said["hint"]
        wait_until(lambda: len(stream.events("streaming")) >= 2, what="the next run")
        reads()
        with reading_again(stream) as said:
            mortal.kill()
        assert said["error"].startswith("mysqlbinlog ended: ")
        assert "Lost connection to" in said["error"] or "Can't connect to" in said["error"]
        assert "the server" in said["hint"]
        mortal.start()
        known.clear()
        wait_until(lambda: len(stream.events("streaming")) >= 3, what="the next run")
        reads()
        with reading_again(stream) as said:
            mortal.stop()
        if mortal.binaries.flavour == "mysql":
            assert said["error"] == "mysqlbinlog exited with status 0 and no error message"
            assert "this happens when the server shuts down" in said["hint"]
        else:
            assert "Lost connection to server" in said["error"]
            assert "it went down" in said["hint"]
        assert stream.terminate() == 0
    mortal.start()


# What the child knows


def test_no_secret_in_the_child(start: Start, mortal: MysqlServer, minio: MinioServer) -> None:
    """Neither password nor keys are in its arguments or environment, nor in anything said.

    After kill -9, when no `finally` runs, the kernel ends it.
    """
    with start(mortal) as stream:
        child = int(stream.wait_for_event("streaming")["pid"])
        told = Path(f"/proc/{child}/cmdline")
        wait_until(
            lambda: b"--read-from-remote-server" in told.read_bytes(),
            what="the child has become mysqlbinlog",
        )
        arguments = told.read_bytes()
        environment = Path(f"/proc/{child}/environ").read_bytes()
        assert b"TZ=UTC" in environment
        own_arguments = Path(f"/proc/{stream.pid}/cmdline").read_bytes()
        own_environment = Path(f"/proc/{stream.pid}/environ").read_bytes()
        assert minio.secret_key.encode() in own_environment  # so that the next line can fail
        for secret in (mortal.password, minio.secret_key, minio.access_key):
            assert secret.encode() not in arguments + environment + own_arguments
        assert mortal.password.encode() not in own_environment
        for name in (b"AWS_", b"BINLOG2S3_", b"MYSQL_PWD"):
            assert name not in environment
        assert alive(child)
        stream.kill()
        wait_until(lambda: not alive(child), what="mysqlbinlog is gone")
    for secret in (mortal.password, minio.secret_key):
        assert secret not in stream.stderr()
