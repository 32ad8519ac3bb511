"""What a server can write into a binlog: each feature is streamed, found, served and recovered.

One server of each flavour writes all features, each into a database of its own; a replica follows
the bucket through `serve`, and an empty server is brought to the newest by `pitr`. Law: a feature
is right if both have its database as the source has it, and `find` finds its transactions.
"""

import contextlib
import secrets
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pymysql
import pytest

from binlog2s3.binlog import gtid
from binlog2s3.binlog.events import EventType
from lab.child import free_port
from lab.disk import temporary_directory
from lab.get import ServerBinaries
from lab.mysql import MysqlServer, server_of
from lab.s3 import MinioServer
from tests.binlog_writer import BinlogWriter, previous_gtids_body, query_body
from tests.integration.bucket import Bucket
from tests.integration.test_find import Finder
from tests.world.commands import Recovery, read_only
from tests.world.pair import Pair
from tests.world.servers import RELAXED, content
from tests.world.serving import Scene

pytestmark = [pytest.mark.mysql, pytest.mark.minio]

TEMPORARY = (
    "CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(20))",
    "SET SESSION binlog_format = STATEMENT",
    "CREATE TEMPORARY TABLE tmp (i INT)",
    "INSERT INTO tmp VALUES (1), (2)",
    "FLUSH BINARY LOGS",
    "INSERT INTO t SELECT i, 'one' FROM tmp",
    "FLUSH BINARY LOGS",
    "INSERT INTO tmp VALUES (3)",
    "INSERT INTO t SELECT i + 10, 'two' FROM tmp",
    "DROP TEMPORARY TABLE tmp",
)
MINIMAL = (
    "CREATE TABLE t (id INT PRIMARY KEY, a INT, b VARCHAR(20) DEFAULT 'x')",
    "SET SESSION binlog_row_image = MINIMAL",
    "INSERT INTO t (id, a) VALUES (1, 1), (2, 2), (3, 3)",
    "UPDATE t SET b = 'changed' WHERE a = 2",
    "DELETE FROM t WHERE id = 3",
)
OF_MYSQL: Mapping[str, tuple[str, ...]] = {
    "partial_json": (
        "CREATE TABLE t (id INT PRIMARY KEY, j JSON)",
        'INSERT INTO t VALUES (1, \'{"a": [1, 2, 3], "b": {"c": "long text"}}\'), (2, \'[]\')',
        "SET SESSION binlog_row_value_options = PARTIAL_JSON, binlog_row_image = MINIMAL",
        "UPDATE t SET j = JSON_SET(j, '$.a[1]', 20) WHERE id = 1",
        "UPDATE t SET j = JSON_REPLACE(j, '$.b.c', 'x') WHERE id = 1",
        "UPDATE t SET j = JSON_REMOVE(j, '$.a[0]') WHERE id = 1",
    ),
    "minimal_row_image": MINIMAL,
    "invisible_columns": (
        "SET SESSION sql_generate_invisible_primary_key = ON",
        "CREATE TABLE t (a INT, b INT INVISIBLE DEFAULT 7, g INT AS (a + 1) STORED)",
        "INSERT INTO t (a) VALUES (1), (2), (3)",
        "UPDATE t SET b = 8 WHERE a = 2",
        "DELETE FROM t WHERE a = 1",
    ),
    "transaction_compression": (
        "CREATE TABLE t (id INT PRIMARY KEY, v TEXT)",
        "SET SESSION binlog_transaction_compression = ON",
        "INSERT INTO t VALUES (1, REPEAT('x', 9000)), (2, REPEAT('y', 9000))",
        "UPDATE t SET v = CONCAT(v, 'z')",
    ),
    "rows_query_log_events": (
        "CREATE TABLE t (id INT PRIMARY KEY, v TEXT)",
        "SET SESSION binlog_rows_query_log_events = ON",
        "INSERT INTO t VALUES (1, 'a'), (2, 'b')",
        "DELETE FROM t WHERE id = 1",
    ),
    "temporary_tables": TEMPORARY,
}
OF_MARIADB: Mapping[str, tuple[str, ...]] = {
    "log_bin_compress": (
        "CREATE TABLE t (id INT PRIMARY KEY, v TEXT)",
        "SET GLOBAL log_bin_compress = ON",
        "SET GLOBAL log_bin_compress_min_len = 10",
        "INSERT INTO t VALUES (1, REPEAT('x', 9000)), (2, REPEAT('y', 9000))",
        "UPDATE t SET v = CONCAT(v, 'z')",
        "SET GLOBAL log_bin_compress = OFF",
    ),
    "gtid_domains": (
        "CREATE TABLE t (id INT PRIMARY KEY, v INT)",
        *(
            statement
            for number in range(6)
            for statement in (
                f"SET SESSION gtid_domain_id = {number % 3}",
                f"INSERT INTO t VALUES ({number}, {number})",
            )
        ),
        "SET SESSION gtid_domain_id = 0",
    ),
    "system_versioned_tables": (
        "CREATE TABLE t (id INT PRIMARY KEY, v INT) WITH SYSTEM VERSIONING",
        "INSERT INTO t VALUES (1, 1), (2, 2)",
        "UPDATE t SET v = 10 WHERE id = 1",
        "DELETE FROM t WHERE id = 2",
    ),
    "sequences": (
        "CREATE SEQUENCE s START WITH 100 INCREMENT BY 10",
        "CREATE TABLE t (id INT PRIMARY KEY DEFAULT (NEXT VALUE FOR s), v INT)",
        "INSERT INTO t (v) VALUES (1), (2), (3)",
        "SELECT NEXT VALUE FOR s",
        "INSERT INTO t (v) VALUES (4)",
    ),
    "minimal_row_image": MINIMAL,
    "invisible_columns": (
        "CREATE TABLE t (a INT PRIMARY KEY, b INT INVISIBLE DEFAULT 7, g INT AS (a + 1) STORED)",
        "INSERT INTO t (a) VALUES (1), (2), (3)",
        "UPDATE t SET b = 8 WHERE a = 2",
    ),
    "temporary_tables": TEMPORARY,
}
FEATURES = {"mysql": OF_MYSQL, "mariadb": OF_MARIADB}
EVERY_VERSION = (
    "SELECT id, v, ROW_START, ROW_END FROM f_system_versioned_tables.t FOR SYSTEM_TIME ALL"
)


@dataclass(frozen=True, slots=True)
class Written:
    """Servers that have all features of a flavour, and the bucket through which they got them."""

    source: MysqlServer
    replica: MysqlServer
    recovered: MysqlServer
    finder: Finder

    def is_right(self, feature: str) -> None:
        """Replica and recovered server have its database; `find` finds its table."""
        name = f"f_{feature}"
        ours = of_database(self.source, name)
        assert of_database(self.replica, name) == ours
        assert of_database(self.recovered, name) == ours
        found = self.finder.run("--json", f"--table={name}.t", "--limit=0")
        assert found.status == 0, found.stderr
        kinds = {one["kind"] for row in found.document["transactions"] for one in row["changes"]}
        assert "insert" in kinds or feature == "temporary_tables", kinds


def of_database(server: MysqlServer, name: str) -> dict[str, Any]:
    """What is in it, comparable."""
    found = {key: value for key, value in content(server).items() if name in key}
    assert len(found) > 1, name
    return found


def written(scene: Scene, kind: str, recovered: MysqlServer) -> Written:
    """Write all features, and let both servers have them."""
    for feature, statements in FEATURES[kind].items():
        scene.source.query(f"CREATE DATABASE f_{feature}", f"USE f_{feature}", *statements)
        scene.source.query("FLUSH BINARY LOGS")
    scene.replicate()
    scene.compare_gtids()
    recovery = Recovery(scene.minio, scene.bucket, read_only(scene.minio))
    first = scene.pair.names[0]
    begin = [f"--from-binlog={first}", "--from-position=4"] if kind == "mariadb" else []
    recovery.to(recovered, "--latest", "--stop-target-threads", *begin)
    return Written(scene.source, scene.target, recovered, Finder(scene.minio, scene.bucket))


@contextlib.contextmanager
def world(
    kind: str, binaries: ServerBinaries, minio: MinioServer, **settings: Any
) -> Iterator[Written]:
    """The three servers and the stream between them."""
    with contextlib.ExitStack() as stack:
        places = [Path(stack.enter_context(temporary_directory())) for _ in range(4)]
        source, target, recovered = (
            stack.enter_context(
                server_of(
                    binaries,
                    place,
                    server_id=number,
                    **{"options": RELAXED, **(settings if number == 1 else {})},
                )
            )
            for number, place in enumerate(places[:3], 1)
        )
        scene = Scene(Pair(source, target), minio, minio.make_bucket(), places[3])
        stack.enter_context(scene.ends)
        scene.serve.start()
        yield written(scene, kind, recovered)


@pytest.fixture(scope="module")
def mysql_world(mysql_binaries: ServerBinaries, minio: MinioServer) -> Iterator[Written]:
    """Its binlogs are encrypted on its disk."""
    with world("mysql", mysql_binaries, minio, encrypted=True) as found:
        assert {row[2] for row in found.source.query("SHOW BINARY LOGS")} == {"Yes"}
        yield found


@pytest.fixture(scope="module")
def mariadb_world(
    mariadb_binaries: ServerBinaries, mariadb_encryption: Path, minio: MinioServer
) -> Iterator[Written]:
    """Its GTIDs are strict, and its binlogs are encrypted on its disk."""
    with temporary_directory() as directory:
        keys = directory / "keys"
        keys.write_text(f"1;{secrets.token_hex(32)}\n")
        own = (
            f"--plugin-dir={mariadb_encryption}",
            "--plugin-load-add=file_key_management",
            f"--file-key-management-filename={keys}",
            "--encrypt-binlog=ON",
        )
        with world("mariadb", mariadb_binaries, minio, options=(*RELAXED, *own)) as found:
            asked = "SELECT @@gtid_strict_mode, @@encrypt_binlog"
            assert found.source.query(asked) == [(1, 1)]
            first = found.source.datadir / found.source.binlogs()[0][0]
            assert b"f_sequences" not in first.read_bytes()
            yield found


@pytest.mark.parametrize("feature", OF_MYSQL)
def test_mysql(mysql_world: Written, feature: str) -> None:
    """Of a server whose binlogs are encrypted, too."""
    mysql_world.is_right(feature)


@pytest.mark.parametrize("feature", OF_MARIADB)
def test_mariadb(mariadb_world: Written, feature: str) -> None:
    """With gtid_strict_mode, of a server whose binlogs are encrypted."""
    mariadb_world.is_right(feature)
    if feature == "system_versioned_tables":
        ours = mariadb_world.source.query(EVERY_VERSION)
        assert len(ours) == 3
        for server in (mariadb_world.replica, mariadb_world.recovered):
            assert [row[:2] for row in server.query(EVERY_VERSION)] == [row[:2] for row in ours]


GROUP = "aaaaaaaa-bbbb-4ccc-8ddd-eeeeeeeeeeee"


def bootstrap(server: MysqlServer) -> None:
    """Start a group of this member alone; a port that is taken leads to another."""
    for attempt in range(1, 4):
        address = f"127.0.0.1:{free_port()}"
        try:
            server.query(
                f"SET GLOBAL group_replication_local_address = '{address}'",
                "SET GLOBAL group_replication_bootstrap_group = ON",
                "START GROUP_REPLICATION",
                "SET GLOBAL group_replication_bootstrap_group = OFF",
            )
        except pymysql.err.OperationalError:  # after a minute, with the reason in its log
            if attempt == 3:
                raise AssertionError(server.log.read_text(errors="replace")[-5000:]) from None
        else:
            return


def test_a_member_of_a_group(
    mysql_binaries: ServerBinaries, minio: MinioServer, disk_tmp_path: Path
) -> None:
    """Its GTIDs are the group's, and it leaves and starts the group again while it streams."""
    options = (
        *RELAXED,
        "--plugin-load-add=group_replication.so",
        "--performance-schema=ON",
        f"--loose-group-replication-group-name={GROUP}",
        "--loose-group-replication-start-on-boot=OFF",
    )
    with contextlib.ExitStack() as stack:
        source, target = (
            stack.enter_context(
                MysqlServer(mysql_binaries, disk_tmp_path / f"{n}", server_id=n, options=own)
            )
            for n, own in ((1, options), (2, RELAXED))
        )
        scene = Scene(Pair(source, target), minio, minio.make_bucket(), disk_tmp_path)
        stack.enter_context(scene.ends)
        scene.serve.start()
        bootstrap(source)
        scene.write(5)
        source.query("STOP GROUP_REPLICATION", "SET GLOBAL super_read_only = OFF")
        bootstrap(source)
        scene.write(5)
        assert GROUP in source.query("SELECT @@gtid_executed")[0][0]
        scene.replicate()
        scene.wait_until_equal()
        scene.compare_gtids()


def view_change(view: str) -> bytes:
    """The body of a VIEW_CHANGE event as MySQL 8.0 writes it when a member joins.

    The id of the view (40 bytes), a number, how many rows of the certification follow, and each:
    a hash of what was written, and the GTIDs that wrote it.
    """
    rows = {b"MTIzNDU2Nzg5": previous_gtids_body(gtid.parse(f"{GROUP}:1-3", "mysql"))}
    body = struct.pack("<40sQI", view.encode(), 7, len(rows))
    for key, value in rows.items():
        body += struct.pack("<H", len(key)) + key + struct.pack("<I", len(value)) + value
    return body


def test_a_change_of_a_groups_view(
    mysql_binaries: ServerBinaries, minio: MinioServer, disk_tmp_path: Path
) -> None:
    """What a group of MySQL 8.0 writes when a member joins: a transaction without a change.

    MySQL 9 writes no such event any more, so it is appended to the server's closed binlog. From
    there on all is real: the server reads, shows and sends it, a replica and a target apply it.
    """
    with contextlib.ExitStack() as stack:
        source, target, recovered = (
            stack.enter_context(
                MysqlServer(mysql_binaries, disk_tmp_path / f"{n}", server_id=n, options=RELAXED)
            )
            for n in (1, 2, 3)
        )
        scene = Scene(Pair(source, target), minio, minio.make_bucket(), disk_tmp_path)
        stack.enter_context(scene.ends)
        scene.serve.start()
        scene.write(5)
        source.query("FLUSH BINARY LOGS")
        assert scene.stream.terminate() == 0
        name = source.binlogs()[-1][0]
        source.stop()
        path = source.datadir / name
        writer = BinlogWriter(server_id=1)
        stop = writer.size_of(b"")
        writer.data = bytearray(path.read_bytes()[:-stop])
        begin, commit = ((EventType.QUERY, query_body(text, db="")) for text in ("BEGIN", "COMMIT"))
        change = (EventType.VIEW_CHANGE, view_change("17956120510083446:2"))
        writer.transaction([begin, change, commit], gtid=(GROUP, "", 1))
        writer.stop()
        path.write_bytes(writer.data)
        source.start()
        shown = {row[2]: row[5] for row in source.query(f"SHOW BINLOG EVENTS IN '{name}'")}
        assert "17956120510083446:2" in shown["View_change"]
        assert f"{GROUP}:1" in source.query("SELECT @@gtid_executed")[0][0]
        scene.streamed()
        scene.write(5)
        scene.replicate()
        scene.wait_until_equal()
        scene.compare_gtids()
        ours, theirs = Bucket(minio, scene.bucket).binlogs()[name], path.read_bytes()
        assert ours == theirs
        found = Finder(minio, scene.bucket).found()
        (row,) = [one for one in found if one["gtid"] == f"{GROUP}:1"]
        assert row["changes"] == []
        recovery = Recovery(minio, scene.bucket, read_only(minio))
        recovery.to(recovered, "--latest", "--stop-target-threads")
        assert content(recovered) == content(source)
        asked = "SELECT @@gtid_executed"
        assert recovered.query(asked) == source.query(asked)
