"""A password that changes: the command gives the new one, and nothing tells it."""

import shlex
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from binlog2s3.binlog.names import BinlogName
from binlog2s3.server.mysqlbinlog import Child, find
from lab.get import ServerBinaries
from lab.mysql import MysqlServer
from lab.s3 import MinioServer
from tests.impostor import Impostor, Trick
from tests.integration.bucket import Bucket
from tests.integration.stream_process import StreamProcess
from tests.login import ROOT
from tests.waiting import wait_until
from tests.world.archive import wait_durable


@pytest.mark.gate("mysql")
@pytest.mark.parametrize("kind", ["mysql", "mariadb"])
def test_tokens_that_expire(
    kind: str, request: pytest.FixtureRequest, minio: MinioServer, bucket: str, disk_tmp_path: Path
) -> None:
    """While the token is not valid it tries again; the next one continues where it stopped."""
    server: MysqlServer = request.getfixturevalue(kind)
    token = disk_tmp_path / "token"

    def change(password: str, *, known: bool) -> None:
        """Another password, and all connections of the account end."""
        if known:
            token.write_text(f"{password}\n")
        server.query(
            "SET sql_log_bin = 0",
            f"ALTER USER {server.repl_user}@'%' IDENTIFIED BY '{password}'",
        )
        for number, user in server.query("SELECT id, user FROM information_schema.processlist"):
            if user == server.repl_user:
                server.query(f"KILL {number}")

    server.query("CREATE DATABASE d", "CREATE TABLE d.t (i INT)")
    change("First-Token-1", known=True)
    options = {
        "mysql-password-file": None,
        "mysql-password-command": shlex.join(["cat", str(token)]),
    }
    with StreamProcess(disk_tmp_path, server, minio, bucket, options=options) as stream:
        stream.wait_for_event("streaming")
        server.query("INSERT INTO d.t VALUES (1)")
        wait_durable(stream, Bucket(minio, bucket), server)
        change("Second-Token-2", known=False)
        server.query("INSERT INTO d.t VALUES (2)")
        wait_until(lambda: "Access denied" in stream.stderr(), what="the old token is refused")
        token.unlink()  # the command fails
        wait_until(lambda: "exited with status 1" in stream.stderr(), what="the command's failure")
        token.write_text("Second-Token-2\n")
        wait_durable(stream, Bucket(minio, bucket), server)
        change("Third-Token-3", known=True)
        server.query("INSERT INTO d.t VALUES (3)")
        wait_durable(stream, Bucket(minio, bucket), server)
        assert stream.terminate() == 0
        said = stream.stderr()
    assert [word for word in ("First-", "Second-", "Third-") if word in said] == []


@pytest.mark.parametrize("proved", [True, False])
def test_mysqlbinlog_sends_a_token_to_a_proved_server_only(
    mysql_binaries: ServerBinaries, disk_tmp_path: Path, *, proved: bool
) -> None:
    """A server that asks in clear text gets it behind a socket, and not over the network."""
    path = disk_tmp_path / "s"
    family, address = (socket.AF_UNIX, str(path)) if proved else (socket.AF_INET, ("127.0.0.1", 0))
    listener = socket.socket(family)
    listener.bind(address)
    listener.listen()
    login = replace(ROOT, password="Open-Sesame")
    if proved:
        login = replace(login, socket=str(path))
    else:
        login = replace(login, port=listener.getsockname()[1])
    (disk_tmp_path / "run").mkdir()
    trick = Trick(plugin="mysql_clear_password", first=False)
    with Impostor(trick, tls=False, listener=listener) as impostor:
        child = Child(
            find("mysql", mysql_binaries.binlog),
            login,
            server_id=7,
            directory=disk_tmp_path / "run",
            binlog=BinlogName.parse("b.000001"),
            on_line=lambda _line: None,
        )
        try:
            wait_until(lambda: child.poll() is not None, what="mysqlbinlog gives up")
        finally:
            child.stop()
    assert impostor.got(login.password) == ("in clear text" if proved else "nothing"), child.lines
