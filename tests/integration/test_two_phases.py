"""Transactions of two phases at real servers: XA, and MariaDB's ALTER, cut in two by a goal."""

import threading
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from lab import get
from lab.mysql import MysqlServer, server_of
from lab.s3 import MinioServer
from tests.waiting import wait_until
from tests.world.servers import RELAXED, position_of
from tests.world.streamed import Streamed, streamed

START = ("--from-binlog=mysql-bin.000001", "--from-position=4")
NAME = "X'616263',X'71',7"


def archived(
    version: str, minio: MinioServer, bucket: str, folder: Path, *statements: str
) -> AbstractContextManager[Streamed]:
    """A source of this version, and its streamer."""
    options = [*RELAXED, "--binlog-format=ROW"]
    binaries = get.VERSIONS[version]()
    return streamed(binaries, minio, bucket, folder, *statements, options=options)


def quiet(version: str) -> list[str]:
    """The options of a target that does nothing by itself; `pitr --table` wants them of MySQL."""
    skip = (
        "skip-slave-start" if version in ("mysql-8.0.15", "mariadb-10.11") else "skip-replica-start"
    )
    return [*RELAXED, "--event-scheduler=OFF", f"--{skip}"]


def prepared(source: MysqlServer) -> Any:
    """A connection that has prepared a row of shop.items, and not committed it."""
    connection = source.connect(database="shop")
    with connection.cursor() as cursor:
        for act in ("XA START", "INSERT INTO items VALUES (100)", "XA END", "XA PREPARE"):
            cursor.execute(f"{act} 'abc', 'q', 7" if act.startswith("XA") else act)
    return connection


def commit(connection: Any) -> None:
    with connection.cursor() as cursor:
        cursor.execute("XA COMMIT 'abc', 'q', 7")
    connection.close()


@pytest.mark.parametrize("version", ["mysql-8.0.15", "mariadb-10.11"])
def test_a_goal_between_prepare_and_commit(
    version: str, minio: MinioServer, bucket: str, disk_tmp_path: Path
) -> None:
    """The plan and the result name the prepared transaction; a later run goes on from there."""
    with archived(version, minio, bucket, disk_tmp_path) as archive:
        source = archive.source
        source.query("CREATE DATABASE shop", "CREATE TABLE shop.items (id INT PRIMARY KEY)")
        connection = prepared(source)
        source.query("INSERT INTO shop.items VALUES (1)")
        between = "{}:{}".format(*position_of(source))
        commit(connection)
        archive.wait()
        recovery = archive.recovery
        with server_of(
            archive.binaries, disk_tmp_path / "target", server_id=2, options=quiet(version)
        ) as target:
            document = recovery.to(target, *START, f"--to-position={between}")
            (pending,) = document["plan"]["pending"]
            assert [one["table"] for one in pending["changes"]] == ["shop.items"]
            assert document["result"]["prepared"] == [NAME]
            assert len(target.query("XA RECOVER")) == 1
            assert target.query("SELECT id FROM shop.items") == [(1,)]
            stop = document["plan"]["stop"]
            place = [f"--from-lineage={stop['lineage']}", f"--from-binlog={stop['binlog']}"]
            maria = version.startswith("mariadb")
            more = [*place, f"--from-position={stop['offset']}"] if maria else [*START]
            document = recovery.to(target, *more, "--latest")
            assert document["plan"]["pending"] == []
            assert document["result"]["prepared"] == []
            assert not target.query("XA RECOVER")
            assert sorted(target.query("SELECT id FROM shop.items")) == [(1,), (100,)]


@pytest.mark.parametrize("version", ["mysql-8.0.15", "mysql-9", "mariadb-10.11"])
def test_one_table_of_each_version(
    version: str, minio: MinioServer, bucket: str, disk_tmp_path: Path
) -> None:
    """In the words of the version, names of tables as they are; XA is refused by MySQL's alone."""
    with archived(version, minio, bucket, disk_tmp_path) as archive:
        source = archive.source
        source.query(
            "CREATE DATABASE shop",
            "CREATE TABLE shop.items (id INT PRIMARY KEY)",
            "CREATE TABLE shop.REPLICA_SOURCE_t (id INT PRIMARY KEY)",
            "INSERT INTO shop.items VALUES (1)",
            "INSERT INTO shop.REPLICA_SOURCE_t VALUES (2)",
        )
        before = "{}:{}".format(*position_of(source))
        commit(prepared(source))
        source.query("INSERT INTO shop.REPLICA_SOURCE_t VALUES (3)")
        archive.wait()
        recovery = archive.recovery
        options = quiet(version)
        only = "--table=shop.REPLICA_SOURCE_t"
        with server_of(
            archive.binaries, disk_tmp_path / "t", server_id=2, options=options
        ) as target:
            document = recovery.to(target, *START, f"--to-position={before}", only)
            assert document["result"]["only_tables"] == ["shop.REPLICA_SOURCE_t"]
            assert target.query("SELECT id FROM shop.REPLICA_SOURCE_t") == [(2,)]
            assert target.query("SHOW TABLES FROM shop") == [("REPLICA_SOURCE_t",)]
        with server_of(
            archive.binaries, disk_tmp_path / "t2", server_id=3, options=options
        ) as target:
            if version.startswith("mariadb"):
                recovery.to(target, *START, "--latest", only)
                assert target.query("SELECT id FROM shop.REPLICA_SOURCE_t") == [(2,), (3,)]
                return
            said = recovery.refused(target, *START, "--latest", only)
            assert "there are XA transactions" in said
            assert not target.query("SHOW DATABASES LIKE 'binlog2s3%'")
            assert not target.query("SHOW DATABASES LIKE 'shop'")


def altered(source: MysqlServer, statement: str) -> None:
    """In two phases, with a row of another table between them."""

    def run() -> None:
        with source.connect(database="shop") as connection, connection.cursor() as cursor:
            cursor.execute("SET SESSION binlog_alter_two_phase = ON")
            try:
                cursor.execute(statement)
            except Exception:  # noqa: BLE001 - one of them fails, as it should
                return

    with source.connect(database="shop", autocommit=False) as holder, holder.cursor() as lock:
        lock.execute("SELECT * FROM wide")  # the ALTER waits for it at its end
        thread = threading.Thread(target=run)
        before = len(gtids_of_alters(source))
        thread.start()
        wait_until(lambda: len(gtids_of_alters(source)) > before, what="the START")
        source.query("INSERT INTO shop.items VALUES (NULL)")
        holder.rollback()
    thread.join(60)
    wait_until(lambda: len(gtids_of_alters(source)) > before + 1, what="the end")


def gtids_of_alters(source: MysqlServer) -> list[tuple[str, str]]:
    """Each phase so far: its word and its GTID, as the server shows them."""
    found = []
    for row in source.query("SHOW BINLOG EVENTS IN 'mysql-bin.000001'"):
        words = str(row[5]).split()
        if row[2] == "Gtid" and "ALTER" in words:
            found.append((words[words.index("ALTER") - 1], words[words.index("GTID") + 1]))
    return found


@pytest.mark.parametrize("version", ["mariadb-11.8"])
def test_the_phases_of_an_alter(
    version: str, minio: MinioServer, bucket: str, disk_tmp_path: Path
) -> None:
    """`find` and the plan tell START, COMMIT and ROLLBACK apart, by the server's own account."""
    with archived(version, minio, bucket, disk_tmp_path) as archive:
        source = archive.source
        source.query(
            "CREATE DATABASE shop",
            "CREATE TABLE shop.items (id INT PRIMARY KEY AUTO_INCREMENT)",
            "CREATE TABLE shop.wide (id INT PRIMARY KEY, v INT)",
            "INSERT INTO shop.wide VALUES (1, 7), (2, 7)",
        )
        altered(source, "ALTER TABLE wide ADD c INT, ALGORITHM=COPY")
        altered(source, "ALTER TABLE wide ADD UNIQUE KEY (v), ALGORITHM=COPY")
        told = gtids_of_alters(source)
        assert [word for word, _ in told] == ["START", "COMMIT", "START", "ROLLBACK"]
        archive.wait()
        words = ["--table=shop.wide", "--type=ddl", "--order=oldest"]
        found = {one["gtid"]: one for one in archive.document("find", *words)["transactions"]}
        (start, end, second, back) = (gtid for _, gtid in told)
        phases = [
            (start, "prepare", "committed", end, False),
            (end, "commit", "committed", start, True),
            (second, "prepare", "rolled back", back, False),
            (back, "rollback", "rolled back", second, False),
        ]
        for gtid, phase, state, other, certain in phases:
            alter = found[gtid]["alter"]
            assert (alter["phase"], alter["state"], alter["gtid"]) == (phase, state, other)
            assert found[gtid]["certain"] is certain
        recovery = archive.recovery
        with server_of(archive.binaries, disk_tmp_path / "target", server_id=2) as target:
            shown = recovery.run(target, "--dry-run", *START, f"--to-gtid={start}")
            assert "begins an ALTER, which takes effect with its COMMIT only" in shown.stdout
            assert "begun, and neither committed nor rolled back" in shown.stdout
            document = recovery.to(target, *START, f"--to-gtid={start}")
            assert [one["gtid"] for one in document["plan"]["pending"]] == [start]
            columns = "SELECT column_name FROM information_schema.columns WHERE table_name = 'wide'"
            assert sorted(target.query(columns)) == [("id",), ("v",)]
            shown = recovery.run(None, "--dry-run", "--json", *START, f"--to-gtid={end}")
            assert shown.document["plan"]["pending"] == []
