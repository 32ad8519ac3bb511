"""The servers that tests share: whatever one leaves behind, the next one finds nothing of it."""

from collections.abc import Sequence
from typing import Any

import pymysql
import pytest

from lab.mysql import MysqlServer
from tests.pool import Pool, shared

LEFT: Sequence[tuple[str, ...]] = [
    ("CREATE DATABASE d", "CREATE TABLE d.t (n INT)", "INSERT INTO d.t VALUES (1)"),
    ("FLUSH BINARY LOGS", "FLUSH BINARY LOGS"),
    ("CREATE USER somebody@localhost IDENTIFIED BY 'Secret-1'",),
    ("SET GLOBAL max_connections = 77", "SET GLOBAL read_only = 1"),
    ("ALTER USER repl@'%' IDENTIFIED BY 'Another-1'",),
    ("REVOKE REPLICATION SLAVE ON *.* FROM repl@'%'",),
    ("CREATE TABLE mysql.rds_configuration (name INT)",),
    ("CREATE EVENT mysql.e ON SCHEDULE EVERY 1 DAY DO SELECT 1",),
    ("CREATE SERVER s FOREIGN DATA WRAPPER mysql OPTIONS (HOST '127.0.0.1')",),
    ("CREATE DATABASE x", "CREATE TABLE x.t (n INT)", "XA START 'a'", "INSERT INTO x.t VALUES (1)",
     "XA END 'a'", "XA PREPARE 'a'"),
]  # fmt: skip


def found(server: MysqlServer) -> list[Any]:
    """What a test may see of a server."""
    statements = ("SHOW DATABASES", "SHOW BINARY LOGS", "SELECT user, host FROM mysql.user",
                  "SHOW GRANTS FOR repl@'%'", "SHOW TABLES FROM mysql", "XA RECOVER",
                  "SELECT * FROM mysql.servers",
                  "SELECT event_name FROM information_schema.events")  # fmt: skip
    with server.connect(user="repl", host="127.0.0.1"):
        """Its password is the one in the file."""
    assert server.password_file.read_text() == server.password
    rows = [server.query(statement) for statement in statements]
    rows[3] = [(text.partition(" IDENTIFIED")[0],) for (text,) in rows[3]]
    names = ("max_connections", "read_only", "binlog_format")
    return [*rows, *(server.query(f"SELECT @@GLOBAL.{name}") for name in names)]


@pytest.mark.gate
@pytest.mark.parametrize("flavour", ["mysql", "mariadb"])
def test_nothing_is_left_to_the_next_test(request: pytest.FixtureRequest, flavour: str) -> None:
    """Each of these, and an open session with a lock, is gone when the server is taken again."""
    binaries = request.getfixturevalue(f"{flavour}_binaries")
    pool = Pool(lambda directory: shared(binaries, directory))
    try:
        server = pool.take()
        fresh, uuid = found(server), server.pid
        for statements in LEFT:
            with pytest.raises(AssertionError, match="own_server"):
                server.kill()
            held = server.connect()
            held.cursor().execute("SELECT GET_LOCK('held', 0)")
            server.query(*statements)
            again = pool.take()
            assert [*map(sorted, found(again))] == [*map(sorted, fresh)], statements
            with pytest.raises(pymysql.Error):
                held.ping(reconnect=False)
            server = again
        assert server.pid != uuid, "what cannot be taken back gets a new server"
    finally:
        pool.close()
