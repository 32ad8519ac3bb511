"""Binlogs of one version are applied to a server of another one, or that is refused."""

from contextlib import ExitStack
from pathlib import Path

import pytest

from lab.mysql import MysqlServer, server_of
from lab.s3 import MinioServer
from tests.compat.conftest import binaries_of
from tests.integration.apply_pair import content
from tests.integration.bucket import Bucket
from tests.integration.recovery_command import Recovery, read_only
from tests.integration.recovery_world import wait_durable
from tests.integration.stream_process import StreamProcess

WRITES = (
    "CREATE DATABASE shop CHARACTER SET utf8mb4",
    "USE shop",
    (
        "CREATE TABLE a (id INT PRIMARY KEY AUTO_INCREMENT, v VARCHAR(200), j JSON,"
        " d DECIMAL(20,5), ts TIMESTAMP(6) NULL, e ENUM('x','y'))"
    ),
    (
        "INSERT INTO a (v, j, d, ts, e) VALUES ('ünï', '{\"k\": [1, null]}', -3.14159,"
        " '2026-01-02 03:04:05.678901', 'y'), ('b', '[]', 0, NULL, 'x')"
    ),
    "FLUSH BINARY LOGS",
    "UPDATE a SET v = CONCAT(v, '!')",
    "ALTER TABLE a ADD COLUMN n INT DEFAULT 5, ADD INDEX (v)",
    "CREATE TRIGGER t BEFORE INSERT ON a FOR EACH ROW SET NEW.v = CONCAT(NEW.v, '?')",
    "INSERT INTO a (v) VALUES ('c')",
    "CREATE USER theirs@localhost IDENTIFIED BY 'a''b'",
    "DELETE FROM a WHERE id = 2",
)


def rows(server: MysqlServer) -> object:
    """What must be the same; tables and users as a version shows them may differ."""
    users = {key: value for key, value in content(server).items() if key == "users"}
    return server.query("SELECT * FROM shop.a ORDER BY id"), users


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("mysql-8.0.31", "mysql-9"),
        ("mysql-8.0.15", "mysql-8.0.31"),
        ("mariadb-10.11", "mariadb-11.4"),
        ("mariadb-10.11", "mariadb-11.8"),
        ("mysql-9", "mysql-8.0.31"),
        ("mariadb-11.4", "mariadb-10.11"),
    ],
)
def test_into_another_version(
    source: str, target: str, minio: MinioServer, bucket: str, disk_tmp_path: Path
) -> None:
    """A later version takes them; an older MySQL is refused, an older MariaDB is warned of."""
    with ExitStack() as stack:
        one, other = (
            stack.enter_context(
                server_of(binaries_of(name), disk_tmp_path / f"server-{n}", server_id=n)
            )
            for n, name in enumerate((source, target), 1)
        )
        stream = stack.enter_context(StreamProcess(disk_tmp_path / "stream", one, minio, bucket))
        stream.wait_for_event("streaming")
        one.query(*WRITES)
        wait_durable(stream, Bucket(minio, bucket), one)
        assert stream.terminate() == 0
        recovery = Recovery(minio, bucket, read_only(minio))
        words = ["--latest", "--stop-target-threads"]
        if "mariadb" in source:
            words += [f"--from-binlog={one.binlogs()[0][0]}", "--from-position=4"]
        if (source, target) == ("mysql-9", "mysql-8.0.31"):
            said = recovery.refused(other, *words)
            assert "MySQL does not support a replica of an older series" in said
            assert "--output-dir" in said
            return
        document = recovery.to(other, *words)
        older = [one for one in document["plan"]["warnings"] if "older than the binlogs'" in one]
        assert bool(older) is ((source, target) == ("mariadb-11.4", "mariadb-10.11"))
        assert rows(other) == rows(one)
