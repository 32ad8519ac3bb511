"""What a loaded dump leaves at a target: accounts that are not in force yet, rows that are missing.

Real servers, streamed into a bucket, and loaded as users load a dump: the target is not restarted.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import pymysql
import pytest

from lab.get import ServerBinaries
from lab.mysql import MysqlServer
from lab.s3 import MinioServer
from tests.world.servers import accounts_of, dump_of, executed, load
from tests.world.streamed import Streamed, streamed

LEAKED, STRONG = "leaked-Aa1!", "strong-Aa1!"


class Loaded(Streamed):
    """Its dump, and an empty second server."""

    dump: Path
    target: MysqlServer

    @property
    def is_mysql(self) -> bool:
        return not self.is_mariadb

    @property
    def start(self) -> list[str]:
        """Where it begins: only MySQL's GTIDs tell."""
        return [f"--from-backup={self.dump}"] if self.is_mariadb else []

    def logs_in(self, user: str, password: str) -> bool:
        """Whether the account gets into the recovered server, its tables being in force."""
        self.target.query("FLUSH LOCAL PRIVILEGES")
        try:
            self.target.connect(user, password=password, host="127.0.0.1").close()
        except pymysql.OperationalError as error:
            if error.args[0] in (1045, 3118, 4151):  # refused, or locked
                return False
            raise
        return True

    def load(self, dump: Path | None = None) -> None:
        """Into a server without transactions of its own, which stays up."""
        load(self.target, dump or self.dump, "--init-command=SET sql_log_bin = 0")


@pytest.fixture
def loaded(
    binaries: ServerBinaries, minio: MinioServer, bucket: str, disk_tmp_path: Path
) -> Iterator[Loaded]:
    """With accounts, roles, and tables with and without rows; nothing is loaded yet."""
    with streamed(
        binaries,
        minio,
        bucket,
        disk_tmp_path,
        "CREATE DATABASE shop",
        "CREATE TABLE shop.empty (id INT PRIMARY KEY)",
        "CREATE TABLE shop.orders (id INT PRIMARY KEY)",
        "CREATE TABLE shop.`odd ``name` (id INT PRIMARY KEY)",
        "INSERT INTO shop.orders VALUES (1), (2)",
        "INSERT INTO shop.`odd ``name` VALUES (1)",
        "CREATE VIEW shop.seen AS SELECT * FROM shop.orders",
        f"CREATE USER app@'%' IDENTIFIED BY '{LEAKED}'",
        f"CREATE USER rotated@'%' IDENTIFIED BY '{LEAKED}'",
        "CREATE USER leaves@'%'",
        "CREATE ROLE may_read, may_write",
        "GRANT SELECT ON shop.* TO may_read",
        "GRANT INSERT ON shop.orders TO may_write",
        "GRANT may_read TO app@'%'",
        kind=Loaded,
    ) as found:
        found.dump = disk_tmp_path / "dump.sql"
        dump_of(found.source, found.dump)
        found.target = found.another()
        yield found


def change_accounts(source: MysqlServer) -> None:
    """As happens after a leak, and by routine: each statement needs accounts of the dump."""
    maria = source.binaries.flavour == "mariadb"
    default = (
        "SET DEFAULT ROLE may_write FOR app@'%'" if maria else "SET DEFAULT ROLE may_write TO app"
    )
    source.query(
        f"ALTER USER IF EXISTS app@'%' IDENTIFIED BY '{STRONG}' ACCOUNT LOCK",
        f"ALTER USER rotated@'%' IDENTIFIED BY '{STRONG}'",
        "GRANT may_write TO app@'%'",
        "REVOKE may_read FROM app@'%'",
        default,
        "DROP USER IF EXISTS leaves@'%'",
        "DROP ROLE IF EXISTS may_read",
        "CREATE USER new@'%'",
        "GRANT SELECT ON shop.orders TO new@'%'",
        "INSERT INTO shop.orders VALUES (3)",
    )


# Accounts


@pytest.mark.gate("mysql", "mariadb")
def test_the_accounts_of_the_history_are_those_of_the_source(loaded: Loaded) -> None:
    """A lock, a rotated password, roles and grants after a dump that was only loaded.

    Nothing of that is a transaction of the target's own.
    """
    change_accounts(loaded.source)
    loaded.wait()
    loaded.load()
    loaded.recovery.to(loaded.target, *loaded.start, "--latest")
    assert accounts_of(loaded.target) == accounts_of(loaded.source)
    assert not loaded.logs_in("app", LEAKED)
    assert not loaded.logs_in("rotated", LEAKED)
    assert loaded.logs_in("rotated", STRONG)
    if loaded.is_mysql:
        assert executed(loaded.target) == executed(loaded.source)


@pytest.mark.parametrize("binaries", ["mysql"], indirect=True)
def test_accounts_after_a_run_that_had_only_begun(loaded: Loaded) -> None:
    """Each run flushes: one that continues, and one that applies a single table."""
    loaded.source.query("INSERT INTO shop.orders VALUES (9)")
    first = executed(loaded.source)
    loaded.source.query(f"ALTER USER IF EXISTS app@'%' IDENTIFIED BY '{STRONG}' ACCOUNT LOCK")
    loaded.wait()
    loaded.load()
    uuid, _, last = first.rpartition(":")
    loaded.recovery.to(loaded.target, f"--to-gtid={uuid}:{last.rpartition('-')[2]}")
    loaded.target.query(
        "SET sql_log_bin = 0",
        "UPDATE mysql.user SET max_questions = 5 WHERE user = 'app'",  # as another load would
    )
    loaded.recovery.to(loaded.target, "--latest")
    assert not loaded.logs_in("app", LEAKED)


@pytest.mark.parametrize("binaries", ["mariadb"], indirect=True)
def test_an_account_that_is_not_let_in_any_more(loaded: Loaded) -> None:
    """The dump's accounts are in force, and pitr's own is none of them: it says so, and why."""
    loaded.source.query("INSERT INTO shop.orders VALUES (3)")
    loaded.wait()
    loaded.load()
    with loaded.target.connect() as connection, connection.cursor() as cursor:
        lock = (
            "UPDATE mysql.global_priv SET priv = JSON_SET(priv, '$.account_locked', true) "
            "WHERE user = 'root'"
        )
        for statement in ("SET sql_log_bin = 0", lock):
            cursor.execute(statement)  # as a dump would, whose root is another one
        said = loaded.recovery.refused(loaded.target, *loaded.start, "--latest")
        assert "the accounts of the base backup are in force now" in said
        assert "'root'" in said
        assert "--target-password-file" in said
        cursor.execute("SELECT COUNT(*) FROM shop.orders")
        assert list(cursor.fetchall()) == [(2,)]


@pytest.mark.parametrize("binaries", ["mysql"], indirect=True)
def test_a_server_without_accounts_is_refused(loaded: Loaded) -> None:
    """With --skip-grant-tables, a flush would put the accounts in force: nothing is done."""
    loaded.source.query("INSERT INTO shop.orders VALUES (3)")
    loaded.wait()
    loaded.load()
    loaded.target.restart((*loaded.target.options, "--skip-grant-tables"))
    said = loaded.recovery.refused(loaded.target, *loaded.start, "--latest")
    assert "--skip-grant-tables" in said
    assert loaded.target.query("SELECT COUNT(*) FROM shop.orders") == [(2,)]


@pytest.mark.parametrize("binaries", ["mariadb"], indirect=True)
def test_without_any_account_nobody_is_locked_out(loaded: Loaded) -> None:
    """As of a dump without rows, or one that broke off there: it is refused before the flush."""
    without = loaded.dump.with_name("without.sql")
    dump_of(loaded.source, without, "--no-data")
    loaded.source.query("INSERT INTO shop.orders VALUES (3)")
    loaded.wait()
    loaded.load(without)
    start = [f"--from-backup={without}"]
    said = loaded.recovery.refused(loaded.target, *start, "--latest")
    assert "is no base backup" in said
    said = loaded.recovery.refused(loaded.target, *start, "--accept-backup", "--latest")
    assert "has no account in mysql.user" in said
    loaded.target.query("SELECT 1")


@pytest.mark.parametrize("binaries", ["mysql"], indirect=True)
def test_what_only_a_start_loads(loaded: Loaded) -> None:
    """Functions that a dump brought: until a restart a DROP FUNCTION would be lost.

    And who opens a MEMORY table first behind it has the server log its TRUNCATE, which would be a
    transaction of the target's own: looking at a table writes nothing. Nor is it a load by half.
    """
    name = "service_get_write_locks"
    loaded.source.query(
        f"CREATE FUNCTION {name} RETURNS INTEGER SONAME 'locking_service.so'",
        "CREATE TABLE shop.fleeting (id INT PRIMARY KEY) ENGINE=MEMORY",
        "INSERT INTO shop.fleeting VALUES (1)",
    )
    again = loaded.dump.with_name("again.sql")
    dump_of(loaded.source, again)
    loaded.source.query(f"DROP FUNCTION IF EXISTS {name}", "INSERT INTO shop.orders VALUES (3)")
    loaded.wait()
    loaded.load(again)
    said = loaded.recovery.refused(loaded.target, "--latest")
    assert name in said
    assert "restart" in said
    loaded.target.restart()
    document = loaded.recovery.to(loaded.target, f"--from-backup={again}", "--latest")
    assert loaded.target.query("SELECT name FROM mysql.func") == []
    assert executed(loaded.target) == executed(loaded.source)
    words = document["result"]["base_backup"]["words"]
    assert "the rows of 1 MEMORY table were not looked for" in words


# The rows


def half_of(dump: Path, table: str) -> Path:
    """What `head` leaves of it: up to the rows of this table."""
    text = dump.read_text()
    found = re.search(rf"^LOCK TABLES `{table}` WRITE;$", text, re.MULTILINE)
    assert found is not None
    half = dump.with_name("half.sql")
    half.write_text(text[: found.start()])
    return half


def load_anew(loaded: Loaded) -> None:
    """Load the dump, as into a server without transactions."""
    if loaded.is_mysql:
        loaded.target.query("RESET BINARY LOGS AND GTIDS")
    loaded.load()


@pytest.mark.gate("mysql", "mariadb")
def test_a_dump_that_was_loaded_by_half(loaded: Loaded) -> None:
    """Its GTIDs claim all of it; with the dump, pitr names what is missing, and changes nothing.

    Loaded whole, the last line says what was proved, and what was checked.
    """
    loaded.source.query("INSERT INTO shop.orders VALUES (3)", "DROP TABLE shop.empty")
    loaded.wait()
    loaded.load(half_of(loaded.dump, "orders"))
    named = f"--from-backup={loaded.dump}"
    said = loaded.recovery.refused(loaded.target, named, "--latest")
    assert "does not have all of the base backup" in said
    assert "shop.orders" in said
    assert "shop.empty" not in said
    assert loaded.target.query("SELECT COUNT(*) FROM shop.orders") == [(0,)]
    loaded.target.query("SET sql_log_bin = 0", "DROP TABLE shop.empty")
    said = loaded.recovery.refused(loaded.target, named, "--latest")
    assert "missing table shop.empty" in said
    where = "mysql.user" if loaded.is_mysql else "mysql.global_priv"
    load_anew(loaded)
    loaded.target.query("SET sql_log_bin = 0", f"DELETE FROM {where} WHERE user = 'leaves'")
    said = loaded.recovery.refused(loaded.target, named, "--latest")
    assert "missing account leaves@%" in said
    load_anew(loaded)
    done = loaded.recovery.run(loaded.target, "--yes", named, "--latest")
    assert done.status == 0, done.stderr
    last = done.stdout.splitlines()[-1]
    assert "no more and no less" in last if loaded.is_mysql else last.startswith("not proved: ")
    assert f"the base backup {loaded.dump} was checked: its 3 tables exist" in last


@pytest.mark.parametrize("binaries", ["mariadb"], indirect=True)
def test_an_older_backup_than_the_one_named_is_told_by_its_numbers(
    loaded: Loaded, disk_tmp_path: Path
) -> None:
    """Without GTIDs that tell: monday was loaded, tuesday is named, and what lies between is lost.

    Its own load is taken for what it is, also after a restart of the target.
    """
    source, target = loaded.source, loaded.target
    more = "INSERT INTO shop.numbered (v) VALUES (1), (2)"
    source.query(
        "CREATE TABLE shop.numbered (id INT AUTO_INCREMENT PRIMARY KEY, v INT)",
        "INSERT INTO shop.orders VALUES (4)",
        more,
    )
    monday, tuesday = disk_tmp_path / "monday.sql", disk_tmp_path / "tuesday.sql"
    dump_of(source, monday)
    source.query(more, "DELETE FROM shop.numbered ORDER BY id DESC LIMIT 1")
    dump_of(source, tuesday)
    source.query("INSERT INTO shop.orders VALUES (5)")
    loaded.wait()
    loaded.load(monday)
    start = [f"--from-backup={tuesday}", "--stop-target-threads"]
    said = loaded.recovery.refused(target, *start, "--latest")
    assert "shop.numbered goes on with number 3, and in the dump with 5" in said
    loaded.load(tuesday)
    target.restart()
    loaded.recovery.to(target, *start, "--latest")
    rows = "SELECT id FROM shop.numbered ORDER BY id"
    assert target.query(rows) == source.query(rows)


@pytest.mark.parametrize("binaries", ["mysql"], indirect=True)
def test_a_target_that_is_past_the_backup_is_not_held_against_it(loaded: Loaded) -> None:
    """Tables of the dump that were dropped since are no lack; the last line says that."""
    loaded.source.query("DROP TABLE shop.empty")
    loaded.wait()
    loaded.load()
    named = f"--from-backup={loaded.dump}"
    loaded.recovery.to(loaded.target, named, "--latest")
    loaded.source.query("INSERT INTO shop.orders VALUES (3)")
    loaded.wait()
    document = loaded.recovery.to(loaded.target, named, "--latest")
    assert document["result"]["base_backup"]["checked"] == "no"
    done = loaded.recovery.run(loaded.target, "--yes", "--latest")
    assert done.stdout.splitlines()[-1].endswith("the base backup was not checked")


@pytest.mark.parametrize("binaries", ["mysql"], indirect=True)
def test_gtids_that_are_not_those_of_the_dump(loaded: Loaded) -> None:
    """A set that was read after the dump's position: a row would be missing, unnoticed.

    Without any GTIDs and without --from-backup all would be applied from the beginning on: a server
    without tables begins there. Nor is a dump believed that would have set them. The same dump
    unchanged is taken.
    """
    target, recovery = loaded.target, loaded.recovery
    loaded.source.query("INSERT INTO shop.orders VALUES (3)")
    later = executed(loaded.source)
    loaded.source.query("INSERT INTO shop.orders VALUES (4)")
    loaded.wait()
    text = loaded.dump.read_text()
    wrong, without = loaded.dump.with_name("wrong.sql"), loaded.dump.with_name("without.sql")
    claims = re.compile(r"(GTID_PURGED=[^']*'\+'\*/ ')[^']*")
    wrong.write_text(claims.sub(rf"\g<1>{later}", text))
    without.write_text(re.sub(r"SET @@GLOBAL.GTID_PURGED=[^;]*;", "", text))
    loaded.load(wrong)
    said = recovery.refused(target, f"--from-backup={wrong}", "--latest")
    assert "its GTIDs are not those of its place" in said
    assert f"it claims also {later.partition(':')[0]}:" in said
    target.query("RESET BINARY LOGS AND GTIDS")
    loaded.load(without)
    said = recovery.refused(target, "--latest")
    assert "has 3 tables but no GTIDs" in said
    assert "--from-backup" in said
    named = (f"--from-backup={loaded.dump}", "--latest")
    said = recovery.refused(target, *named)
    assert "was not restored from what is named" in said
    assert "SET GLOBAL gtid_purged" in said
    (gtids,) = re.findall(r"GTID_PURGED=[^;']*(?:'\+'[^;']*)?'([^']*)'\s*;", text)
    target.query(f"SET GLOBAL gtid_purged = '{gtids}'")
    recovery.to(target, *named)
    assert target.query("SELECT COUNT(*) FROM shop.orders") == [(4,)]
