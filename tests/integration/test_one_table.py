"""One table back: `pitr --table` at a real MySQL and a real MariaDB, which hold a base backup.

The source and the streamer are gone. Its tables at each goal were looked at before.
"""

import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from lab.disk import temporary_directory
from lab.get import ServerBinaries
from lab.mysql import MysqlServer, server_of
from lab.s3 import MinioServer
from tests.waiting import wait_until
from tests.world.servers import (
    RELAXED,
    dump_of,
    executed,
    last_gtid,
    load,
    locked,
    of_image,
    reset,
    restored,
)
from tests.world.streamed import Streamed, streamed

Rows = list[tuple[Any, ...]]
TABLES = ("shop.orders", "shop.items", "shop.`odd name`")


def rows_of(server: MysqlServer, table: str) -> Rows:
    return sorted(server.query(f"SELECT * FROM {table}"))


def all_of(server: MysqlServer) -> dict[str, Rows]:
    return {table: rows_of(server, table) for table in TABLES}


def write(source: MysqlServer, first: int) -> None:
    """Rows in all tables, in one transaction and in many, over two binlogs."""
    for n in range(first, first + 20):
        source.query(
            "BEGIN",
            f"INSERT INTO shop.orders VALUES ({n}, 'new')",
            f"INSERT INTO shop.items VALUES ({n}, 'new')",
            "COMMIT",
            f"UPDATE shop.orders SET v = CONCAT(v, {n}) WHERE id = {n - 3}",
            f"DELETE FROM shop.items WHERE id = {n - 7}",
            f"INSERT INTO shop.`odd name` VALUES ({n}, 'o')",
            *(("FLUSH BINARY LOGS",) if n == first + 9 else ()),
        )


class Past(Streamed):
    """What the source had: in the base backup, just before the DROP, and after a RENAME.

    It is gone, and scratch servers are restored from the base backup.
    """

    dump: Path
    image: Path
    backup: dict[str, Rows]
    before: dict[str, Rows]
    dropped: str
    renamed: Rows
    password: str
    scratches = 0

    def begin(self) -> None:
        """Up to the base backup, and on."""
        self.dump, self.image = self.folder / "dump.sql", self.folder / "image"
        self.password = self.source.password
        self.source.query(
            "CREATE DATABASE shop",
            *(f"CREATE TABLE {table} (id INT PRIMARY KEY, v VARCHAR(90))" for table in TABLES),
        )
        write(self.source, 100)
        dump_of(self.source, self.dump)
        self.backup = all_of(self.source)
        write(self.source, 200)

    def end(self) -> None:
        """The hosts are gone."""
        self.wait()
        self.stream.kill()
        self.source.kill()
        gtid, place = self.source._gtid, self.folder / "r"
        with server_of(self.binaries, place, server_id=3, options=RELAXED, gtid=gtid) as one:
            restored(one, self.dump, self.image)

    def scratch(self) -> MysqlServer:
        """A server restored from the base backup."""
        self.scratches += 1
        maria = self.is_mariadb
        made = of_image(
            self.binaries,
            self.folder / f"scratch-{self.scratches}",
            self.image,
            70 + self.scratches,
            self.password,
            gtid=self.source._gtid,
        )
        if not maria:
            made.options = (*made.options, "--skip-replica-start")
        return self.stack.enter_context(made)

    @property
    def goal(self) -> list[str]:
        return [f"--from-backup={self.dump}", f"--before-gtid={self.dropped}"]


OPTIONS = [*RELAXED, "--binlog-format=ROW"]


@pytest.fixture(scope="module", params=["mysql", "mariadb"])
def lived(request: pytest.FixtureRequest, minio: MinioServer) -> Iterator[Past]:
    binaries: ServerBinaries = request.getfixturevalue(f"{request.param}_binaries")
    with (
        temporary_directory() as folder,
        streamed(binaries, minio, minio.make_bucket(), folder, options=OPTIONS, kind=Past) as found,
    ):
        source = found.source
        found.begin()
        source.query("ALTER TABLE shop.orders ADD COLUMN more INT DEFAULT 7")
        source.query("CREATE DATABASE elsewhere", "CREATE TABLE elsewhere.t (i INT)")
        source.query("INSERT INTO shop.orders (id, v) VALUES (5000, 'with more')")
        found.before = all_of(source)
        source.query("DROP TABLE shop.items")
        found.dropped = last_gtid(source)
        source.query(
            "CREATE TABLE shop._orders_new LIKE shop.orders",
            "INSERT INTO shop._orders_new SELECT * FROM shop.orders",
            "INSERT INTO shop._orders_new VALUES (9000, 'after', 1)",
            "RENAME TABLE shop.orders TO shop._orders_old, shop._orders_new TO shop.orders",
            "INSERT INTO shop.orders VALUES (9001, 'after', 2)",
        )
        found.renamed = rows_of(source, "shop.orders")
        found.end()
        yield found


@pytest.fixture
def past(lived: Past) -> Iterator[Past]:
    """It, whose scratch servers are this test's."""
    whole = lived.stack
    with ExitStack() as lived.stack:
        yield lived
    lived.stack = whole


@pytest.mark.gate("mysql", "mariadb")
def test_one_table_back(past: Past) -> None:
    """Its rows are the source's, the other tables are the backup's, also after a kill -9.

    Nobody takes that server for a whole one.
    """
    recovery, server = past.recovery, past.scratch()
    goal = past.goal
    only = ["--table=shop.orders", "--table=shop.`odd name`"]
    shown = recovery.run(server, "--dry-run", "--json", *only, *goal)
    assert shown.status == 0, shown.stderr
    assert shown.document["plan"]["only_tables"]["tables"] == ["shop.odd name", "shop.orders"]
    assert not server.query("SHOW DATABASES LIKE 'binlog2s3%'")
    with (
        locked(server, "shop.orders") as is_awaited,
        recovery.started(server, "--yes", *only, *goal) as process,
    ):

        def held() -> bool:
            assert process.poll() is None, process.returncode
            return is_awaited()

        wait_until(held, 120, "the applier waits for the table")
        process.kill()
        process.wait()
    for words in ([], ["--table=shop.orders"], ["--table=shop.items"]):
        said = recovery.refused(server, *words, *goal)
        assert "scratch server" in said, said
    document = recovery.to(server, *only, *goal)
    assert document["result"]["only_tables"] == ["shop.odd name", "shop.orders"]
    found = all_of(server)
    assert found == {**past.before, "shop.items": past.backup["shop.items"]}
    assert found["shop.items"] != past.before["shop.items"]
    for words in ([], ["--table=shop.orders"]):
        said = recovery.refused(server, *words, *goal)
        assert "scratch server" in said, said
    if not past.is_mariadb:
        recovery.to(server, *only, *goal)  # nothing is left to do
        uuid, _, last = past.dropped.rpartition(":")
        assert executed(server) == f"{uuid}:1-{int(last) - 1}"
    else:
        said = recovery.refused(server, *only, *goal)  # it would be applied twice
        assert "gtid_slave_pos" in said or "second time" in said, said
    assert found == all_of(server)
    assert not [row for row in server.query(status_of(server)) if "binlog2s3" in row]


def test_the_target_crashes(past: Past) -> None:
    """While it applies; it starts again by itself, and the same command goes on: only the tables.

    What it had fetched and not applied is not applied without the filter.
    """
    recovery, server = past.recovery, past.scratch()
    goal = past.goal
    only = ["--table=shop.orders", "--table=shop.`odd name`"]
    for table in ("shop.orders", "shop.`odd name`"):
        with recovery.started(server, "--yes", *only, *goal) as process:
            with locked(server, table) as is_awaited:

                def held(process: "subprocess.Popen[bytes]" = process) -> bool:
                    assert process.poll() is None, process.returncode
                    return is_awaited()

                wait_until(held, 120, "the applier waits for the table")
                server.kill()
            assert process.wait(120) != 0
        server.start()
        seen = rows_of(server, "shop.items")
        wait_until(lambda: _is_at_rest(server), 60, "what it fetched is dealt with")
        assert rows_of(server, "shop.items") == seen == past.backup["shop.items"]
    recovery.to(server, *only, *goal)
    assert all_of(server) == {**past.before, "shop.items": past.backup["shop.items"]}
    if not past.is_mariadb:
        uuid, _, last = past.dropped.rpartition(":")
        assert executed(server) == f"{uuid}:1-{int(last) - 1}"
    assert "scratch server" in recovery.refused(server, *goal)


def test_mysql_without_gtids(
    mysql_binaries: ServerBinaries, minio: MinioServer, bucket: str, disk_tmp_path: Path
) -> None:
    """By position, also after a crash of the target: its table is the source's, others are not."""
    with streamed(
        mysql_binaries, minio, bucket, disk_tmp_path, options=OPTIONS, kind=Past, gtid=False
    ) as past:
        past.begin()
        before = all_of(past.source)
        past.end()
        recovery, server = past.recovery, past.scratch()
        goal = [f"--from-backup={past.dump}", "--latest", "--table=shop.orders"]
        with recovery.started(server, "--yes", *goal) as process:
            with locked(server, "shop.orders") as is_awaited:
                wait_until(is_awaited, 120, "the applier waits for the table")
                server.kill()
            assert process.wait(120) != 0
        server.start()
        recovery.to(server, *goal)
        expected = {**past.backup, "shop.orders": before["shop.orders"]}
        assert all_of(server) == expected
        assert expected != before
        assert "scratch server" in recovery.refused(server, *goal[:2])


def _is_at_rest(server: MysqlServer) -> bool:
    """No thread of a replica applies anything."""
    return not [row for row in server.query("SHOW PROCESSLIST") if "applying" in str(row).lower()]


@contextmanager
def dumped(
    binaries: ServerBinaries, minio: MinioServer, bucket: str, folder: Path, *statements: str
) -> Iterator[tuple[Streamed, Callable[..., MysqlServer], str]]:
    """A source that has executed these; servers with its dump, and the option that names it."""
    with streamed(binaries, minio, bucket, folder, *statements, options=OPTIONS) as place:
        dump = folder / "dump.sql"
        dump_of(place.source, dump)

        def another(server_id: int = 7) -> MysqlServer:
            server = place.another("--skip-replica-start=ON", server_id=server_id)
            reset(server)
            load(server, dump)
            return server

        yield place, another, f"--from-backup={dump}"


def test_a_session_in_another_character_set(
    mysql_binaries: ServerBinaries, minio: MinioServer, bucket: str, disk_tmp_path: Path
) -> None:
    """It exchanges the table under a name that looks different in its bytes: refused."""
    tables = (f"CREATE TABLE shop.{name} (id INT PRIMARY KEY)" for name in ("таблица", "new"))
    with dumped(mysql_binaries, minio, bucket, disk_tmp_path, "CREATE DATABASE shop", *tables) as (
        place,
        another,
        backup,
    ):
        server = another()
        with closing(place.source.connect(charset="cp1251")) as session:
            session.cursor().execute("INSERT INTO shop.new VALUES (7)")
            session.cursor().execute(
                "RENAME TABLE shop.таблица TO shop.old, shop.new TO shop.таблица"
            )
        place.wait()
        goal = ["--dry-run", backup, "--latest", "--table=shop.таблица"]
        said = place.recovery.refused(server, *goal)
        assert "--table cannot be applied safely: 1 statement exchanges rows" in said


def test_what_came_through_a_view_is_not_proved(
    mysql_binaries: ServerBinaries, minio: MinioServer, bucket: str, disk_tmp_path: Path
) -> None:
    """A statement names the view, and the filter leaves it out: the GTIDs prove nothing then."""
    with dumped(
        mysql_binaries,
        minio,
        bucket,
        disk_tmp_path,
        "CREATE DATABASE shop",
        "CREATE TABLE shop.t (id INT PRIMARY KEY, v INT)",
        "CREATE VIEW shop.active AS SELECT * FROM shop.t WHERE v < 1000",
        "INSERT INTO shop.t VALUES (1, 1), (2, 2)",
    ) as (place, another, backup):
        proved, doubted = another(), another(8)
        goal = [backup, "--table=shop.t", "--latest"]
        place.commit("UPDATE shop.t SET v = 5 WHERE id = 1")
        assert place.recovery.to(proved, *goal)["result"]["proved"]
        place.commit(
            "SET SESSION binlog_format = 'STATEMENT'",
            "UPDATE shop.active SET v = 7 WHERE id = 1",
        )
        assert place.recovery.to(doubted, *goal)["result"]["proved"] is None
        assert doubted.query("SELECT v FROM shop.t WHERE id = 1") == [(5,)]


def status_of(server: MysqlServer) -> str:
    maria = server.binaries.flavour == "mariadb"
    return "SHOW ALL SLAVES STATUS" if maria else "SHOW REPLICA STATUS"


def test_what_is_no_scratch_server(past: Past) -> None:
    """One with transactions of its own, one that is a replica; keys and names that do not fit."""
    recovery, server = past.recovery, past.scratch()
    goal = past.goal
    said = recovery.refused(server, "--table=shop.ordres", *goal)
    assert "does not show a table shop.ordres" in said
    server.query(
        "SET sql_log_bin = 0",
        "CREATE TABLE shop.parents (id INT PRIMARY KEY)",
        "INSERT INTO shop.parents SELECT id FROM shop.orders",
        "ALTER TABLE shop.orders ADD FOREIGN KEY (id) REFERENCES shop.parents (id) "
        "ON DELETE CASCADE",
    )
    said = recovery.refused(server, "--table=shop.orders", *goal)
    assert "add --table 'shop.parents'" in said
    maria = past.is_mariadb
    server.query(
        "CHANGE MASTER 'theirs' TO MASTER_HOST = '127.0.0.1', MASTER_USER = 'x'"
        if maria
        else "CHANGE REPLICATION SOURCE TO SOURCE_HOST = '127.0.0.1' FOR CHANNEL 'theirs'"
    )
    said = recovery.refused(server, "--table=shop.items", *goal)
    assert "is set up as a replica (channel: theirs)" in said
    server.query("RESET SLAVE 'theirs' ALL" if maria else "RESET REPLICA ALL FOR CHANNEL 'theirs'")
    if not maria:
        server.restart([one for one in server.options if one != "--skip-replica-start"])
        said = recovery.refused(server, "--table=shop.items", *goal)
        assert "set skip_replica_start = ON" in said
        server.restart([*server.options, "--skip-replica-start"])
    if maria:
        other = f"0-1-{int(past.dropped.rpartition('-')[2]) - 1}"
        server.query(f"SET GLOBAL gtid_slave_pos = '{other}'")
        wanted = "gtid_slave_pos"
    else:
        server.query("CREATE DATABASE mine")
        wanted = "GTIDs that are not in the archive"
    said = recovery.refused(server, "--table=shop.items", *goal)
    assert wanted in said
    assert rows_of(server, "shop.items") == past.backup["shop.items"]
    assert not server.query("SHOW DATABASES LIKE 'binlog2s3%'")
