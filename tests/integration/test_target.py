"""Questions to a real target, and what is done to it besides the apply."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from threading import Thread
from typing import Any

import pytest

from binlog2s3.binlog.gtid import GtidSet
from binlog2s3.config.goal import Latest
from binlog2s3.config.pitr import PitrConfig
from binlog2s3.config.stream import S3Config
from binlog2s3.drill.checks import check_tables
from binlog2s3.errors import RecoveryError
from binlog2s3.recover import target
from binlog2s3.recover.notes import Note, Notes
from binlog2s3.recover.preflight import problems
from binlog2s3.recover.target import (
    DATABASE,
    TargetFacts,
    alone,
    commit_empty,
    executed,
    refuse_lacking,
    stop_threads,
)
from binlog2s3.server.connection import Server
from binlog2s3.server.login import Login
from lab.disk import temporary_directory
from lab.get import ServerBinaries
from lab.mysql import MysqlServer, server_of
from tests.login import ROOT
from tests.waiting import wait_until
from tests.world.servers import reset

UUID = "3e11fa47-71ca-11e1-9e33-c80aa9429562"


def login_of(server: MysqlServer, **changes: Any) -> Login:
    there = {"port": server.port, "socket": str(server.socket), "prefix": "target"}
    return replace(ROOT, **(there | changes))


def ask(server: MysqlServer, **changes: Any) -> TargetFacts:
    login = login_of(server, **changes)
    with Server(lambda: login) as asks:
        return target.ask(asks).facts


@pytest.fixture(scope="module", params=["mysql", "mariadb"])
def server(request: pytest.FixtureRequest) -> Iterator[MysqlServer]:
    """One of each flavour in turn."""
    binaries = request.getfixturevalue(f"{request.param}_binaries")
    with temporary_directory() as directory, server_of(binaries, directory, server_id=5) as made:
        yield made


def is_mysql(server: MysqlServer) -> bool:
    return server.binaries.flavour == "mysql"


def lacking(server: MysqlServer, grants: str) -> tuple[str, ...]:
    server.query(
        "SET sql_log_bin = 0",
        "DROP USER IF EXISTS applier@localhost",
        "CREATE USER applier@localhost",
        f"GRANT {grants} ON *.* TO applier@localhost",
    )
    return ask(server, user="applier").missing_privileges


def test_tables_with_versions_and_sequences_are_tables(server: MysqlServer) -> None:
    """MariaDB's: a crash may lose their rows, too, and a drill checks them."""
    if is_mysql(server):
        return
    with Server(lambda: login_of(server)) as asks:
        tables, checked = ask(server).tables, check_tables(asks)
        server.query(
            "SET sql_log_bin = 0",
            "CREATE DATABASE old",
            "CREATE TABLE old.v (id INT PRIMARY KEY) ENGINE=Aria WITH SYSTEM VERSIONING",
            "CREATE SEQUENCE old.s",
        )
        try:
            found = ask(server)
            assert "old.v (Aria)" in found.not_transactional
            assert found.tables == tables + 2
            assert check_tables(asks) == checked + 2
        finally:
            server.query("SET sql_log_bin = 0", "DROP DATABASE old")


def test_facts(server: MysqlServer) -> None:
    """As the server itself says."""
    found = ask(server)
    assert [(found.version,)] == server.query("SELECT @@version")
    assert (found.flavour, found.server_id, found.log_bin) == (server.binaries.flavour, 5, True)
    assert found.missing_privileges == ()
    assert found.channels == ()
    assert not found.read_only
    assert not found.transaction_read_only
    assert found.binlog_format == ("ROW" if is_mysql(server) else "MIXED")
    ((events,),) = server.query("SELECT @@event_scheduler")
    assert found.event_scheduler == (events == "ON")
    assert found.keeps_gtids == is_mysql(server)
    if is_mysql(server):
        ((uuid, gtids),) = server.query("SELECT @@server_uuid, @@global.gtid_executed")
        assert (found.uuid, str(found.executed)) == (uuid, gtids.replace("\n", ""))
    else:
        assert (found.uuid, found.executed) == ("00000005-00000000", None)


def test_a_server_without_binary_log(mysql_binaries: ServerBinaries) -> None:
    """It may be a target, with and without GTIDs."""
    with temporary_directory() as directory:
        options = ["--skip-log-bin", "--log-replica-updates=OFF"]
        with MysqlServer(mysql_binaries, directory, options=options, gtid=False) as one:
            found = ask(one)
            assert (found.log_bin, found.executed) == (False, None)


def test_read_only_and_the_events(server: MysqlServer) -> None:
    """Both are seen, and the events are stopped on demand."""
    transactions = "transaction_read_only" if is_mysql(server) else "tx_read_only"
    server.query("SET GLOBAL read_only = ON", "SET GLOBAL event_scheduler = ON")
    server.query(f"SET GLOBAL {transactions} = ON")
    login = login_of(server)
    try:
        with Server(lambda: login) as asks:
            asked = target.ask(asks)
            found = asked.facts
            assert found.read_only
            assert found.transaction_read_only
            assert found.event_scheduler
            config = PitrConfig(
                s3=S3Config(bucket="b", prefix="p"), source="s", goal=Latest(), from_gtid_set="x"
            )
            refused = list(problems(found, login, config, flavour=found.flavour, server_uuids=[]))
            assert len(refused) == 3
            stop_threads(asked)
            assert not target.ask(asks).facts.event_scheduler
    finally:
        server.query("SET GLOBAL read_only = OFF", f"SET GLOBAL {transactions} = OFF")


def test_replica_threads(server: MysqlServer) -> None:
    """A channel that runs is named and stopped."""
    make, start, end = (
        (
            (
                "CHANGE REPLICATION SOURCE TO SOURCE_HOST = '127.0.0.1', SOURCE_PORT = 1 "
                "FOR CHANNEL 'other'"
            ),
            "START REPLICA",
            "RESET REPLICA ALL FOR CHANNEL 'other'",
        )
        if is_mysql(server)
        else (
            "CHANGE MASTER 'other' TO MASTER_HOST = '127.0.0.1', MASTER_PORT = 1",
            "START SLAVE 'other'",
            "RESET SLAVE 'other' ALL",
        )
    )
    server.query(make, start)
    login = login_of(server)
    with Server(lambda: login) as asks:
        asked = target.ask(asks)
        assert asked.facts.channels == ("other",)
        stop_threads(asked)
        assert target.ask(asks).facts.channels == ()
    server.query(end)


def test_what_an_account_lacks(server: MysqlServer) -> None:
    """What asking and leaving a note need, found by trying, without any harm."""
    if is_mysql(server):
        asks, writes = "REPLICATION CLIENT", "SESSION_VARIABLES_ADMIN"
    else:
        asks, writes = "SLAVE MONITOR", "BINLOG ADMIN"
    before = server.query("SHOW BINARY LOGS")
    assert lacking(server, "SELECT") == (asks,)
    assert lacking(server, asks) == ()
    login = login_of(server, user="applier")
    with Server(lambda: login) as account:
        with pytest.raises(RecoveryError, match="is missing the privilege"):
            refuse_lacking(target.ask(account))
        server.query("SET sql_log_bin = 0", f"GRANT {writes} ON *.* TO applier@localhost")
        refuse_lacking(target.ask(account))
    assert server.query("SHOW BINARY LOGS") == before


def test_empty_transactions(mysql: MysqlServer) -> None:
    """Each GTID is executed afterwards, tagged ones too, and a replica will not fetch it again."""
    login = login_of(mysql)
    wanted = GtidSet.parse(f"{UUID}:3-5:9:blue:2-3")
    with Server(lambda: login) as asks:
        commit_empty(asks, wanted)
        assert executed(asks) == wanted
        commit_empty(asks, wanted | GtidSet.parse(f"{UUID}:1"))
        assert executed(asks) == wanted | GtidSet.parse(f"{UUID}:1")
    logged = [row[5] for row in mysql.query("SHOW BINLOG EVENTS") if ":blue:" in str(row[5])]
    assert len(logged) == 2
    mysql.query("CREATE DATABASE afterwards")  # under a GTID of its own
    assert len(list(GtidSet.parse(str(mysql.query("SELECT @@gtid_executed")[0][0])).runs())) == 3


def test_a_note(server: MysqlServer) -> None:
    """It says what the run was that left it, how far it came, and what it changed.

    What it changed stays in the note until it is restored. The binary log has none of it.
    """
    login = login_of(server)
    reset(server)
    before = server.query("SHOW BINLOG EVENTS")
    names: set[str] = set()
    with Server(lambda: login) as asks:
        asked = target.ask(asks)
        notes = Notes(asked)
        assert notes.find() is None
        notes.write(asked="b.000001:4", reached="", started="then", since="l.b.000001:4")
        assert (
            target.ask(asks).facts.tables == asked.facts.tables
        )  # it is no table of a base backup
        found = note(notes)
        assert found.is_of("b.000001:4")
        assert found.reached == ""
        assert found.begun.endswith(" UTC")
        names.add(notes.database)
        notes.reach("l/b.000002:157")
        assert note(notes).reached == "l/b.000002:157"
        notes.write(asked="x", reached="", started="then", since="l.b.000002:157")
        names.add(notes.database)
        assert note(notes).is_of("x")
        assert note(notes).since == "l.b.000001:4", "where the first of them began"
        assert note(notes).before == {}
        notes.keep({"slave_parallel_threads": 0, "slave_ddl_exec_mode": "IDEMPOTENT"})
        notes.write(asked="y", reached="", started="then", since="l.b.000003:157")
        names.add(notes.database)
        expected = {"slave_parallel_threads": "0", "slave_ddl_exec_mode": "IDEMPOTENT"}
        assert note(notes).before == expected
        notes.keep({})
        assert note(notes).before == {}
        assert len(names) == len(server.query(NOTED)) + 2
        notes.remove()
        assert notes.find() is None
    assert server.query(NOTED) == []
    assert server.query("SHOW BINLOG EVENTS") == before


NOTED = f"SHOW DATABASES LIKE '{DATABASE}%'"


def note(notes: Notes) -> Note:
    """The one that is there."""
    found = notes.find()
    assert found is not None
    return found


class KilledError(Exception):
    """The process is gone."""


class Dying(Server):
    """Its process is killed before it can send a statement that begins like this."""

    at = "DROP DATABASE"

    def rows(self, statement: str, *values: Any) -> list[dict[str, Any]]:
        if statement.startswith(self.at):
            raise KilledError
        return super().rows(statement, *values)


@pytest.mark.parametrize("tables", [None, frozenset({"shop.a"})])
def test_a_run_that_is_killed_beside_an_older_note(
    server: MysqlServer, tables: frozenset[str] | None
) -> None:
    """The newer one counts, and at the end none is left that says where the target was before."""
    login = login_of(server)
    with Server(lambda: login) as asks, Dying(lambda: login) as dies:
        asked = target.ask(asks)
        notes = Notes(asked)
        notes.write(asked="x", reached="old", started="", since="", tables=tables)
        with pytest.raises(KilledError):
            Notes(replace(asked, server=dies)).write(asked="x", reached="new", started="", since="")
        assert len(server.query(NOTED)) == 2
        assert note(notes).reached == "new"
        notes.remove()
        assert (notes.find(), notes.mark()) == (None, tables)
        assert len(server.query(NOTED)) == (1 if tables else 0)
        notes.remove_all()
    assert server.query(NOTED) == []


@pytest.mark.gate("mysql-CREATE TABLE", "mariadb-INSERT INTO")
@pytest.mark.parametrize("at", ["CREATE TABLE", "INSERT INTO"])
def test_a_run_that_is_killed_before_its_note_is_there(server: MysqlServer, at: str) -> None:
    """The next one removes the database that it left, and no other that is empty, or is not."""
    login = login_of(server)
    strange = f"{DATABASE}_{'0' * 16}"
    with Server(lambda: login) as asks, Dying(lambda: login) as dies:
        asked, dies.at = target.ask(asks), at
        notes = Notes(asked)
        for _ in range(2):
            with pytest.raises(KilledError):
                Notes(replace(asked, server=dies)).write(
                    asked="x", reached="", started="", since=""
                )
        assert notes.find() is None
        (used,), (left,) = server.query(NOTED)
        server.query(f"CREATE DATABASE {strange}", f"CREATE TABLE {used}.rows_of_somebody (i INT)")
        notes.write(asked="y", reached="", started="", since="")
        notes.remove()
        assert sorted(server.query(NOTED)) == sorted([(strange,), (used,)]), left
        server.query(f"DROP DATABASE {strange}", f"DROP DATABASE {used}")


@pytest.mark.gate("mysql-dump", "mariadb-dump")
@pytest.mark.parametrize("how", ["dump", "rows", "shape", "older", "older mark"])
def test_a_note_of_another_server(server: MysqlServer, how: str) -> None:
    """One that came out of a dump, or that 0.2.0 wrote, is named, and nothing in it is believed.

    Also where somebody writes what he can know of this server. A note of this server's own counts
    beside it.
    """
    login = login_of(server)
    with Server(lambda: login) as asks:
        notes = Notes(target.ask(asks))
        notes.write(asked="x", reached="", started="", since="", tables=frozenset({"shop.a"}))
        mine = notes.database
        dumped = server.query(f"SELECT * FROM {mine}.note")[0]
        other = f"{DATABASE}_{'0' * 16}"
        off = "SET sql_log_bin = 0"
        there = f"{other}.note"
        if how.startswith("older"):
            other = DATABASE
            there = f"{other}.run" if how == "older" else f"{other}.only_tables"
            made = [f"CREATE TABLE {there} (id INT)", f"INSERT INTO {there} VALUES (1)"]
        elif how == "shape":
            made = [f"CREATE TABLE {there} (id INT)", f"INSERT INTO {there} VALUES (1)"]
        else:
            texts = ", ".join(f"'{one}'" for one in dumped)
            if how == "rows":
                texts = f"{texts}), (2, {texts.partition(', ')[2]}"
            made = [
                f"CREATE TABLE {there} LIKE {mine}.note",
                f"INSERT INTO {there} VALUES ({texts})",
                f"UPDATE {there} SET made = made - 60",
            ]
        server.query(off, f"CREATE DATABASE {other}", *made)
        try:
            assert notes.mark() == {"shop.a"}
            server.query(off, f"DROP DATABASE {mine}")
            for ask in (notes.find, notes.mark):
                with pytest.raises(RecoveryError, match="has a note of a recovery") as caught:
                    ask()
                assert there in str(caught.value)
                assert f"DROP TABLE {there}" in caught.value.hint
            server.query(off, f"DROP TABLE {there}")
            assert notes.find() is None
        finally:
            server.query(off, f"DROP DATABASE {other}")


def test_one_recovery_at_a_time(server: MysqlServer) -> None:
    """A second one is refused as long as the first has its connection, and not afterwards."""
    login = login_of(server)
    with alone(lambda: login):
        with (
            pytest.raises(RecoveryError, match="another recovery is running"),
            alone(lambda: login),
        ):
            pass
        with pytest.raises(RecoveryError, match="its connection") as refused, alone(lambda: login):
            pass
        assert "KILL" in refused.value.hint
    wait_until_free(server)
    with alone(lambda: login):
        pass


def wait_until_free(server: MysqlServer) -> None:
    """Wait until the server has given back what a recovery holds."""
    free = f"SELECT IS_FREE_LOCK('{DATABASE}')"
    wait_until(lambda: server.query(free) == [(1,)], what="the lock is given back")


def test_a_recovery_that_is_just_ending_is_waited_for(server: MysqlServer) -> None:
    """The server gives the lock back a moment after the first one's end.

    The second one waits for two seconds: where a busy machine needs more, both come once more.
    """
    login = login_of(server)
    waiting = "SELECT id FROM information_schema.processlist WHERE state = 'User lock'"
    lucky: list[bool] = []

    def come_second() -> None:
        with suppress(RecoveryError), alone(lambda: login):
            lucky.append(True)

    def waited_for() -> bool:
        wait_until_free(server)
        second = Thread(target=come_second)
        with alone(lambda: login):
            second.start()
            wait_until(lambda: server.query(waiting) or not second.is_alive(), what="it waits")
        second.join()
        return bool(lucky)

    wait_until(waited_for, what="the second one has its turn")
