"""A real replica fetches a recovery's pieces from our source, and has what is in them."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import pytest

from binlog2s3.recover.model import PlanPiece
from binlog2s3.recover.plan_source import PlanSource, Window
from binlog2s3.replication.login import Account
from binlog2s3.replication.queries import Identity
from lab.get import ServerBinaries
from lab.mysql import MariadbServer, MysqlServer
from tests.own_files import Own
from tests.waiting import wait_until
from tests.world.pair import Pair
from tests.world.servers import (
    RELAXED,
    content,
    gtids_off,
    gtids_on,
    in_its_words,
    replica_status,
    replicate_from,
    two,
)
from tests.world.writes import write_rows

ACCOUNT = Account("binlog2s3", 'it\'s "secret"')
ROW = "SET SESSION binlog_format = ROW"
UUID = "5e5e5e5e-0000-11f1-8000-000000000001"


@pytest.fixture(scope="module")
def mysql_pair(mysql_binaries: ServerBinaries) -> Iterator[Pair]:
    with two(MysqlServer, mysql_binaries, (*RELAXED, "--local-infile=1")) as (source, target):
        yield Pair(source, target)


@pytest.fixture(scope="module")
def mariadb_pair(mariadb_binaries: ServerBinaries) -> Iterator[Pair]:
    with two(MariadbServer, mariadb_binaries, RELAXED) as (source, target):
        yield Pair(source, target)


@pytest.fixture(params=["mysql", "mariadb"])
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    found: Pair = request.getfixturevalue(f"{request.param}_pair")
    found.clear()
    yield found
    forget(found.target)


def forget(server: MysqlServer) -> None:
    """No channel any more, and nothing that one knew."""
    if server.binaries.flavour == "mysql":
        server.query("STOP REPLICA", "RESET REPLICA ALL")
    else:
        server.query("STOP ALL SLAVES", "RESET SLAVE ALL", "SET GLOBAL gtid_slave_pos = ''")


def identity(pair: Pair, **changes: object) -> Identity:
    version = str(pair.source.query("SELECT VERSION()")[0][0])
    found = (
        Identity(version=version, flavour="mysql", server_id=4242, server_uuid=UUID)
        if pair.is_mysql
        else Identity(
            version=f"5.5.5-{version}", flavour="mariadb", server_id=4242, server_uuid=UUID,
            plugin="mysql_native_password",
        )
    )  # fmt: skip
    return replace(found, **changes)  # type: ignore[arg-type]


@contextmanager
def serving(
    pair: Pair, files: Own, *, window: Window | None = None, **changes: object
) -> Iterator[PlanSource]:
    """Our source, of these files."""

    def opened(pieces: Sequence[PlanPiece]) -> "Iterator[object]":
        return replace(files, pieces=tuple(pieces)).stream()

    who = identity(pair, **changes)
    with PlanSource(who, ACCOUNT, files.pieces, opened, window=window) as source:  # type: ignore[arg-type]
        yield source


def replicate(pair: Pair, source: PlanSource, *, at: tuple[str, int] | None = None) -> None:
    """The target becomes its replica: by GTIDs, or from a position."""
    more = ["SOURCE_CONNECT_RETRY=1", "SOURCE_SSL=0"]
    more += ["SOURCE_RETRY_COUNT=1"] if pair.is_mysql else []
    replicate_from(pair.target, source.address[1], ACCOUNT.user, ACCOUNT.password, at, *more)
    pair.target.query(in_its_words(pair.target, "START REPLICA"))


def failed(found: dict[str, object]) -> str:
    return f"{found.get('Last_IO_Error')}{found.get('Last_SQL_Error')}"


def wait_for_all(pair: Pair, source: PlanSource, files: Own) -> None:
    """Until the target has executed the last byte of what is served."""
    name, position = files.pieces[-1].served_name, files.pieces[-1].end

    def has_all() -> bool:
        found = replica_status(pair.target)
        assert not failed(found), failed(found)
        assert source.failure is None
        source.window.reached(
            str(found["Relay_Source_Log_File"]), int(str(found["Exec_Source_Log_Pos"]))
        )
        return (found["Relay_Source_Log_File"], found["Exec_Source_Log_Pos"]) == (name, position)

    wait_until(has_all)


def rows(server: MysqlServer) -> list[tuple[object, ...]]:
    return server.query("SELECT id, v FROM shop.a ORDER BY id")


def test_the_source_does_not_run_ahead(pair: Pair) -> None:
    """It waits while the target has not executed enough: its disk may have no room for more."""
    pair.source.query(
        "CREATE DATABASE shop", "CREATE TABLE shop.a (id INT PRIMARY KEY, v LONGBLOB)"
    )
    for number in range(24):
        pair.source.query(ROW, f"INSERT INTO shop.a VALUES ({number}, REPEAT('x', 1 << 20))")
    files = pair.files(cut=1 << 18)
    window = Window(4 << 20)
    with serving(pair, files, window=window) as source:
        replicate(pair, source)

        def received() -> int:
            found = replica_status(pair.target)
            assert not failed(found), failed(found)
            return int(str(found["Read_Source_Log_Pos"]))

        wait_until(lambda: received() > 3 << 20)
        assert not source.has_sent_all.wait(2.0)
        assert received() < 7 << 20
        assert window.size() == 0
        wait_for_all(pair, source, files)
        assert source.has_sent_all.is_set()
    assert rows(pair.target) == rows(pair.source)


def test_a_transaction_larger_than_the_window(pair: Pair) -> None:
    """It is sent whole, in events of more than a packet's 16 MiB."""
    for server in (pair.source, pair.target):
        server.query(f"SET GLOBAL max_allowed_packet = {1 << 30}")
    pair.source.query(
        ROW,
        "CREATE DATABASE shop",
        "CREATE TABLE shop.a (id INT PRIMARY KEY, v LONGBLOB)",
        "BEGIN",
        f"INSERT INTO shop.a VALUES (1, REPEAT('x', {40 << 20}))",
        f"INSERT INTO shop.a VALUES (2, REPEAT('y', {(1 << 24) - 100}))",
        "COMMIT",
        "INSERT INTO shop.a VALUES (3, 'z')",
    )
    files = pair.files()
    with serving(pair, files, window=Window(1 << 20)) as source:
        replicate(pair, source)
        wait_for_all(pair, source, files)
    assert content(pair.target) == content(pair.source)


@pytest.mark.parametrize("pair", ["mysql"], indirect=True)
def test_a_place_that_is_not_served(pair: Pair) -> None:
    """Is refused, and named: the replica stops."""
    for server in (pair.source, pair.target):
        gtids_off(server)
    try:
        write_rows(pair.source)
        files = pair.files()
        first, second = files.pieces[:2]
        with serving(pair, replace(files, pieces=(second,)), gtid_mode="OFF") as source:
            for place in (
                ("binlog.000099", 4),
                (first.served_name, 4),
                (second.served_name, second.begin + 1),
            ):
                replicate(pair, source, at=place)
                wait_until(
                    lambda place=place: place[0] in failed(replica_status(pair.target)),
                    what=f"{place} is refused",
                )
                forget(pair.target)
    finally:
        for server in (pair.source, pair.target):
            gtids_on(server)
