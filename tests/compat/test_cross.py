"""Binlogs of one version are applied to a server of another one, or that is refused."""

import json
import re
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from lab import get
from lab.mysql import MysqlServer, server_of
from lab.s3 import MinioServer
from tests.compat.conftest import binaries_of, of_lab
from tests.integration.bucket import Bucket
from tests.integration.stream_process import StreamProcess
from tests.world.archive import wait_durable
from tests.world.commands import Recovery, read_only
from tests.world.servers import content

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
        ("mysql-8.0.15", "mysql-9"),
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


def as_version(number: str, tool: Path, place: Path) -> Path:
    """The program as it would be in another version: it only says so. The lab has no older one."""
    made = place / "mysqlbinlog"
    made.write_text(
        "#!/bin/sh\n"
        f'case "$*" in *--version*) echo "mysqlbinlog  Ver {number} for Linux"; exit ;; esac\n'
        f'exec "{tool}" "$@"\n'
    )
    made.chmod(0o755)
    return made


@pytest.mark.parametrize(
    ("server", "tool", "said"),
    [
        ("mysql-5.7.22", "mysql-9", "newer"),
        ("mysql-9", "8.0.31", "older"),
        ("mariadb-10.11", "mariadb-11.8", "newer"),
        ("mariadb-11.4", "mariadb-10.11", "older"),
    ],
)
def test_mysqlbinlog_of_another_version(
    server: str, tool: str, said: str, minio: MinioServer, disk_tmp_path: Path
) -> None:
    """`check` says if it is newer, and warns if it is older; it tries to read the binlog.

    MariaDB 10.11's reads nothing from an 11.4: it does not know that version.
    """
    with server_of(binaries_of(server), disk_tmp_path / "source") as source:
        place = of_lab(source, minio, disk_tmp_path)
        if tool in get.VERSIONS:
            program = binaries_of(tool).binlog
        else:
            program = as_version(tool, source.binaries.binlog, disk_tmp_path)
        asking = replace(place, options={**place.options, "mysqlbinlog": str(program)})
        done = asking.run("check", "--json", server=True)
    rows = {(row["part"], row["name"]): row for row in json.loads(done.stdout)["parts"]}
    row = rows["mysqlbinlog", "program"]
    assert row["result"] == ("warn" if said == "older" else "ok"), row
    assert re.findall("newer|older", row["found"]) == [said], row
    connection = rows["mysqlbinlog", "connection"]
    if (server, tool) == ("mariadb-11.4", "mariadb-10.11"):
        assert connection["result"] == "fail"
        assert "unrecognized MariaDB version '11.4" in connection["found"]
        assert "not older" in connection["hint"]
    else:
        assert connection["result"] == "ok", connection
