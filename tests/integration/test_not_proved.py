"""What a recovery cannot prove with the documented account of a target: real servers say nothing.

MySQL leaves out what an account may not see, without an error.
"""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from lab.mysql import MysqlServer
from lab.s3 import MinioServer
from tests.integration.least_privilege import PASSWORD, as_root, grants
from tests.integration.test_two_phases import archived, prepared
from tests.waiting import wait_until
from tests.world.streamed import Streamed

ACCOUNT = "'pitr'@'localhost'"
PARENT = "REPLACE INTO shop.p VALUES (1, 2)"
KEY = "CONSTRAINT f FOREIGN KEY (p) REFERENCES shop.p (id) ON DELETE CASCADE"


@pytest.fixture
def archive(minio: MinioServer, bucket: str, disk_tmp_path: Path) -> Iterator[Streamed]:
    """Of a MySQL that cascades itself, and does not for a REPLACE."""
    with archived("mysql-9", minio, bucket, disk_tmp_path) as made:
        yield made


def last_line(archive: Streamed, target: MysqlServer, *goal: str) -> str:
    """Of `pitr` with that account."""
    password = archive.folder / "password"
    password.write_text(PASSWORD)
    password.chmod(0o600)
    done = archive.recovery.run(
        None,
        "--yes",
        *(goal or ("--latest",)),
        f"--target-socket={target.socket}",
        "--target-user=pitr",
        f"--target-password-file={password}",
    )
    assert done.status == 0, f"{done.stdout}\n{done.stderr}"
    return " ".join(done.stdout.split())


def children(server: MysqlServer) -> list[tuple[object, ...]]:
    return list(server.query("SELECT id FROM shop.c"))


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ((), "rows of shop.p were replaced"),
        (("ALTER TABLE shop.c DROP FOREIGN KEY f",), "rows of shop.p were replaced"),
        (("RENAME TABLE shop.p TO shop.q", "DROP TABLE shop.q"), "rows of shop.p were replaced"),
    ],
    ids=["stays", "is dropped", "another name"],
)
def test_rows_that_a_replace_took_away(archive: Streamed, more: tuple[str, ...], says: str) -> None:
    """Whether the account may see the foreign key or not, and whether it is still there."""
    archive.commit(
        "CREATE DATABASE shop",
        "CREATE TABLE shop.p (id INT PRIMARY KEY, v INT)",
        f"CREATE TABLE shop.c (id INT PRIMARY KEY, p INT, {KEY})",
        "INSERT INTO shop.p VALUES (1, 1)",
        "INSERT INTO shop.c VALUES (1, 1)",
        PARENT,
        *(("SET SESSION foreign_key_checks = 0", *more) if more else ()),
    )
    assert children(archive.source) == [(1,)]
    for number, privilege in enumerate(("", "PROCESS"), start=7):
        target = archive.another(server_id=number)
        as_root(target, *grants("mysql target"))
        if privilege:
            as_root(target, f"GRANT {privilege} ON *.* TO {ACCOUNT}")
        said = last_line(archive, target)
        assert children(target) == []
        assert f"not proved: {says}" in said
        assert ("GRANT PROCESS" in said) == (not privilege)


@pytest.mark.parametrize(
    ("changes", "tables", "says"),
    [
        ((PARENT,), (), "rows of shop.p were replaced"),
        (
            ("SET SESSION binlog_format = STATEMENT", "DELETE FROM shop.c"),
            ("--table=shop.p", "--table=shop.late"),
            "statements in statement format were filtered",
        ),
    ],
    ids=["a REPLACE", "a statement that is filtered"],
)
def test_what_an_interrupted_run_has_applied(
    archive: Streamed, changes: tuple[str, ...], tables: tuple[str, ...], says: str
) -> None:
    """The run that continues it looks at that once more."""
    archive.commit(
        "CREATE DATABASE shop",
        "CREATE TABLE shop.p (id INT PRIMARY KEY, v INT)",
        f"CREATE TABLE shop.c (id INT PRIMARY KEY, p INT, {KEY})",
        "CREATE TABLE shop.late (id INT PRIMARY KEY)",
        "INSERT INTO shop.p VALUES (1, 1)",
        "INSERT INTO shop.c VALUES (1, 1)",
    )
    target = archive.another("--skip-replica-start")
    archive.recovery.to(target, "--latest", *tables)
    archive.commit(*changes, "SET SESSION binlog_format = ROW", "INSERT INTO shop.late VALUES (1)")
    before = target.query("SELECT @@global.gtid_executed")
    with target.connect() as connection, connection.cursor() as cursor:
        for statement in ("SET sql_log_bin = 0", "BEGIN", "INSERT INTO shop.late VALUES (1)"):
            cursor.execute(statement)
        with archive.recovery.started(target, "--yes", "--latest", *tables) as process:

            def is_in_the_middle() -> bool:
                assert process.poll() is None, process.returncode
                return target.query("SELECT @@global.gtid_executed") != before

            wait_until(is_in_the_middle, what="the first transaction", interval=0.01)
            process.kill()
        cursor.execute("ROLLBACK")
    done = archive.recovery.run(target, "--yes", "--latest", *tables)
    assert done.status == 0, done.stderr
    assert f"not proved: {says}" in " ".join(done.stdout.split())
    archive.commit("INSERT INTO shop.late VALUES (2)")
    done = archive.recovery.run(target, "--yes", "--latest", *tables)
    assert "no more and no less" in " ".join(done.stdout.split()), "nothing of this is in it"


def test_a_replace_of_what_nothing_refers_to(archive: Streamed) -> None:
    """It is proved if the account may see that there is no such key."""
    archive.commit(
        "CREATE DATABASE shop",
        "CREATE TABLE shop.p (id INT PRIMARY KEY, v INT)",
        "CREATE TABLE shop.o (id INT PRIMARY KEY, v INT)",
        f"CREATE TABLE shop.c (id INT PRIMARY KEY, p INT, {KEY})",
        "INSERT INTO shop.o VALUES (1, 1)",
        "REPLACE INTO shop.o VALUES (1, 2)",
    )
    target = archive.another()
    as_root(target, *grants("mysql target"), f"GRANT PROCESS ON *.* TO {ACCOUNT}")
    assert "no more and no less" in last_line(archive, target)


def test_an_account_of_a_session_in_another_character_set(archive: Streamed) -> None:
    """It has another name at every server that applies the binlog."""
    made = "SELECT HEX(user) FROM mysql.user WHERE user LIKE 'caf%'"
    archive.commit("CREATE USER 'cafe'@'%'")
    first, second = archive.another(server_id=7), archive.another(server_id=8)
    for target in (first, second):
        as_root(target, *grants("mysql target"))
    assert "no more and no less" in last_line(archive, first)
    archive.commit("SET NAMES latin1", "CREATE USER 'caf\u00e9'@'%'")
    said = last_line(archive, second)
    assert "not proved: the source logged this statement in UTF-8" in said
    assert second.query(made) != archive.source.query(made)


def insert_crosswise(archive: Streamed) -> None:
    """Two sessions insert a row each, and the first one commits last."""
    with closing(archive.source.connect()) as first, closing(archive.source.connect()) as second:
        for session, name in ((first, "first"), (second, "second")):
            session.begin()
            session.cursor().execute("INSERT INTO shop.items (name) VALUES (%s)", (name,))
        second.commit()
        first.commit()


@pytest.mark.parametrize("action", ["ADD", "MODIFY", "ADD KEY, MODIFY"])
def test_numbers_in_the_order_of_the_rows(archive: Streamed, action: str) -> None:
    """Two sessions insert, and the first one commits last: at the target it comes last.

    Of two workers there, either may insert first. Another doubt is told beside that one. A key may
    have been made by a statement before.
    """
    number = "" if action == "ADD" else ", id INT NOT NULL DEFAULT 0"
    archive.commit("CREATE DATABASE shop", f"CREATE TABLE shop.items (name VARCHAR(9){number})")
    insert_crosswise(archive)
    long = f"/* {'long ' * 60_000} */"
    change, key = action, " PRIMARY KEY"
    if action == "ADD KEY, MODIFY":
        archive.commit("ALTER TABLE shop.items ADD KEY k (id)")
        change, key = "MODIFY", ""
    archive.commit(
        f"ALTER TABLE shop.items {long} {change} id INT AUTO_INCREMENT{key}",
        *([] if key else ["ALTER TABLE shop.items ADD PRIMARY KEY (id)"]),
        "DELETE FROM shop.items WHERE id = 1",
        "SET NAMES latin1",
        "CREATE USER 'caf\u00e9'@'%'",
    )
    target = archive.another("--replica-parallel-workers=1")
    as_root(target, *grants("mysql target"))
    said = last_line(archive, target)
    assert "not proved: the binlog does not tell what this statement made of the rows" in said
    assert "not proved: the source logged this statement in UTF-8" in said
    names = "SELECT name FROM shop.items"
    assert (archive.source.query(names), target.query(names)) == ([("second",)], [("first",)])


@pytest.mark.parametrize("zone", ["SYSTEM", "+09:00"])
def test_what_a_mariadb_computes_in_its_own_zone(
    minio: MinioServer, bucket: str, disk_tmp_path: Path, zone: str
) -> None:
    """The same event of a row, whatever zone its session had; rows of other tables are proved."""
    with archived("mariadb-11.8", minio, bucket, disk_tmp_path) as archive:
        archive.commit(
            "CREATE DATABASE shop",
            "CREATE TABLE shop.t (id INT PRIMARY KEY, ts TIMESTAMP, h INT AS (HOUR(ts)) STORED)",
            "CREATE TABLE shop.u (id INT PRIMARY KEY, ts TIMESTAMP, s BIGINT AS (id) STORED)",
            "INSERT INTO shop.u (id, ts) VALUES (1, '2026-01-01 12:00:00')",
        )
        begin = ("--from-binlog=mysql-bin.000001", "--from-position=4")
        done = archive.recovery.run(archive.another(), "--yes", "--latest", *begin)
        assert done.status == 0, done.stderr
        assert "computes stored columns" not in " ".join(done.stdout.split())
        archive.commit(
            f"SET time_zone = '{zone}'",
            "INSERT INTO shop.t (id, ts) VALUES (1, '2026-01-01 12:00:00')",
        )
        target = archive.another(server_id=8)
        done = archive.recovery.run(target, "--yes", "--latest", *begin)
        said = " ".join(done.stdout.split())
        assert "not proved: a MariaDB computes stored columns" in said, (said, done.stderr)
        assert "(shop.t: h)" in said
        hours = "SELECT h FROM shop.t"
        assert (archive.source.query(hours) == target.query(hours)) == (zone == "SYSTEM")


def test_rows_in_the_order_of_the_server(archive: Streamed) -> None:
    """MIXED logs such statements as they are. Two sessions insert; the first commits last."""
    archive.commit("CREATE DATABASE shop", "CREATE TABLE shop.items (name VARCHAR(9), n INT)")
    insert_crosswise(archive)
    archive.commit(
        "SET SESSION binlog_format = MIXED, sql_mode = ''",
        "SET @i = 0",
        "CREATE TABLE shop.lists (names VARCHAR(90))",
        "CREATE TABLE shop.copies (name VARCHAR(9))",
        "CREATE TRIGGER shop.each AFTER INSERT ON shop.copies FOR EACH ROW "
        "UPDATE shop.lists SET names = CONCAT(names, ' ', NEW.name)",
        "INSERT INTO shop.lists SELECT name FROM shop.items GROUP BY n",
        "UPDATE shop.lists JOIN shop.items SET names = CONCAT(names, ' ', name)",
        "INSERT INTO shop.copies SELECT name FROM shop.items",
        "UPDATE shop.items SET n = (@i := @i + 1)",
        "INSERT INTO shop.lists SELECT GROUP_CONCAT(name) FROM shop.items",
    )
    target = archive.another("--replica-parallel-workers=1")
    as_root(target, *grants("mysql target"))
    said = last_line(archive, target)
    assert "not proved: the binlog does not tell what this statement and 3 more made" in said
    assert "not proved: this statement used a function, trigger, view or DEFAULT" in said
    query = "SELECT n, names FROM shop.items, shop.lists WHERE name = 'first' ORDER BY names"
    assert archive.source.query(query) == [(1, "first first first second"), (1, "first,second")]
    assert target.query(query) == [(2, "second second second first"), (2, "second,first")]


def test_what_a_statement_calls_without_naming_it(archive: Streamed) -> None:
    """The definitions come with the plan, or are there already: who sees them can say which."""
    archive.commit(
        "SET SESSION binlog_format = STATEMENT",
        "CREATE DATABASE shop",
        "CREATE TABLE shop.ids (id INT PRIMARY KEY, u CHAR(36) DEFAULT (UUID()))",
        "CREATE TABLE shop.plain (u CHAR(36))",
        "INSERT INTO shop.ids (id) VALUES (1)",
    )
    target = archive.another()
    as_root(target, *grants("mysql target"))
    ids = "SELECT u FROM shop.ids ORDER BY id"
    assert "not proved: this statement used a function" in last_line(archive, target)
    assert archive.source.query(ids) != target.query(ids)
    archive.commit("SET SESSION binlog_format = STATEMENT", "INSERT INTO shop.ids (id) VALUES (2)")
    assert "GRANT SELECT, SHOW VIEW, TRIGGER ON *.*" in last_line(archive, target)
    as_root(target, f"GRANT SELECT, SHOW VIEW, TRIGGER ON *.* TO {ACCOUNT}")
    archive.commit("SET SESSION binlog_format = STATEMENT", "INSERT INTO shop.ids (id) VALUES (3)")
    assert "not proved: this statement used a function" in last_line(archive, target)
    assert archive.source.query(ids)[1:] != target.query(ids)[1:]
    plain = "INSERT INTO shop.plain VALUES ('a')"
    archive.commit(
        "SET SESSION binlog_format = STATEMENT", plain, "UPDATE shop.ids SET id = id + 3"
    )
    assert "no more and no less" in last_line(archive, target)


def test_what_is_prepared_since_before_the_plan(archive: Streamed) -> None:
    """Only XA_RECOVER_ADMIN shows whether the target has it."""
    source = archive.source
    source.query("CREATE DATABASE shop", "CREATE TABLE shop.items (id INT PRIMARY KEY)")
    connection = prepared(source)
    archive.wait()
    target = archive.another()
    as_root(target, *grants("mysql target"))
    assert "no more and no less" in last_line(archive, target), "the plan had it"
    archive.commit("INSERT INTO shop.items VALUES (1)")
    said = last_line(archive, target)
    assert "not proved: the source had prepared XA X'616263',X'71',7" in said
    assert "GRANT XA_RECOVER_ADMIN" in said
    as_root(target, f"GRANT XA_RECOVER_ADMIN ON *.* TO {ACCOUNT}")
    archive.commit("INSERT INTO shop.items VALUES (2)")
    assert "no more and no less" in last_line(archive, target)
    as_root(target, "XA ROLLBACK 'abc', 'q', 7")
    archive.commit("INSERT INTO shop.items VALUES (3)")
    assert "and the target has not" in last_line(archive, target)
    connection.close()


def test_what_cannot_be_read_before_the_plan(archive: Streamed) -> None:
    """An XA transaction may be prepared there, whose rows a dump does not have."""
    xa = ("XA START 'a'", "INSERT INTO shop.big VALUES (0, '')", "XA END 'a'", "XA PREPARE 'a'")
    archive.commit(
        "CREATE DATABASE shop",
        "CREATE TABLE shop.big (id INT PRIMARY KEY, b LONGBLOB)",
        *xa,
        "XA COMMIT 'a'",
        *(f"INSERT INTO shop.big VALUES ({n}, REPEAT('x', 1000000))" for n in range(1, 11)),
    )
    target = archive.another()
    archive.recovery.to(target, "--latest")
    archive.commit("INSERT INTO shop.big VALUES (11, '')", "FLUSH BINARY LOGS")
    archive.wait_archived(1)
    (key,) = (one for one in archive.there.keys("pre") if one.endswith("binlogs/mysql-bin.000001"))
    data = bytearray(archive.there.get(key))
    data[1 << 20] ^= 1
    with closing(archive.minio.client()) as client:
        client.put_object(Bucket=archive.bucket, Key=key, Body=bytes(data))
    done = archive.recovery.run(target, "--yes", "--latest")
    assert done.status == 0, done.stderr
    said = " ".join(done.stdout.split())
    assert "not proved: what comes before the plan cannot be read" in said
