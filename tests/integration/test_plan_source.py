"""A real replica fetches a recovery's pieces from our source, and has what is in them."""

import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import pymysql
import pytest

from binlog2s3.errors import ArchiveError
from binlog2s3.recover.model import PlanPiece
from binlog2s3.recover.plan_source import PlanSource, Served, Window
from binlog2s3.replication.login import Account
from binlog2s3.replication.queries import Identity
from lab.get import ServerBinaries
from lab.mysql import MariadbServer, MysqlServer
from tests.own_files import Own, own, without
from tests.waiting import wait_until
from tests.world.pair import Pair
from tests.world.servers import (
    RELAXED,
    content,
    executed,
    gtids_off,
    gtids_on,
    in_its_words,
    replica_status,
    replicate_from,
    two,
)
from tests.world.writes import write_all_kinds, write_rows

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

    served = Served(pieces=files.pieces, name_of=lambda piece: str(piece.binlog), open=opened)  # type: ignore[arg-type]
    with PlanSource(identity(pair, **changes), ACCOUNT, served, window=window) as source:
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
    name, position = str(files.pieces[-1].binlog), files.pieces[-1].end

    def has_all() -> bool:
        found = replica_status(pair.target)
        assert not failed(found), failed(found)
        assert source.failure is None
        source.window.reached(
            str(found["Relay_Source_Log_File"]), int(str(found["Exec_Source_Log_Pos"]))
        )
        return (found["Relay_Source_Log_File"], found["Exec_Source_Log_Pos"]) == (name, position)

    wait_until(has_all)


@pytest.mark.gate
def test_all_kinds_of_statements(pair: Pair) -> None:
    """Every kind, over several binlogs, by GTIDs: the target is what the source is."""
    directory = pair.source.datadir
    write_all_kinds(pair.source, directory)
    files = pair.files()
    with serving(pair, files) as source:
        replicate(pair, source)
        wait_for_all(pair, source, files)
    found, expected = content(pair.target), content(pair.source)
    events = found.pop("events")
    assert [row[:3] for row in events] == [row[:3] for row in expected.pop("events")]
    assert found == expected
    if pair.is_mysql:
        assert executed(pair.target) == executed(pair.source)


@contextmanager
def without_gtids(pair: Pair) -> Iterator[None]:
    """MySQL with gtid_mode OFF; a MariaDB always has them, and may be asked by position."""
    if not pair.is_mysql:
        yield
        return
    for server in (pair.source, pair.target):
        gtids_off(server)
    try:
        yield
    finally:
        for server in (pair.source, pair.target):
            gtids_on(server)


def rows(server: MysqlServer) -> list[tuple[object, ...]]:
    return server.query("SELECT id, v FROM shop.a ORDER BY id")


@pytest.mark.gate
def test_what_is_left_out_moves_the_position(pair: Pair) -> None:
    """The next run, behind transactions that were left out, begins at the right place.

    The receiver counts bytes: without a rotate event behind the omission it would be too early.
    """
    with without_gtids(pair):
        pair.clear()
        write_rows(pair.source)
        every, first = pair.files(), pair.names[0]
        stops = every.transactions[9][1].begin
        upto = without(own(every.directory, [first], end=stops), (6, 7))
        with serving(pair, upto, gtid_mode="OFF") as source:
            replicate(pair, source, at=(first, every.pieces[0].begin))
            wait_for_all(pair, source, upto)
        found = replica_status(pair.target)
        place = (str(found["Source_Log_File"]), int(str(found["Read_Source_Log_Pos"])))
        assert place == (first, stops)
        forget(pair.target)
        rest = own(every.directory, pair.names, begin=stops)
        with serving(pair, rest, gtid_mode="OFF") as source:
            replicate(pair, source, at=place)
            wait_for_all(pair, source, rest)
        present = {row[0] for row in rows(pair.target)}
        assert len(present) == len(rows(pair.source)) - 2


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


def test_a_stream_that_fails_stops_the_replica(pair: Pair) -> None:
    """It is told why, and nothing of the rest arrives."""
    write_rows(pair.source)
    files = pair.files()

    def opened(_: Sequence[PlanPiece]) -> "Iterator[object]":
        for piece, data in files.stream():
            if piece is files.pieces[1]:
                raise ArchiveError(f"{piece.binlog} is damaged")
            yield piece, data

    served = Served(pieces=files.pieces, name_of=lambda piece: str(piece.binlog), open=opened)  # type: ignore[arg-type]
    with PlanSource(identity(pair), ACCOUNT, served) as source:
        replicate(pair, source)
        wait_until(
            lambda: f"{files.pieces[1].binlog} is damaged" in failed(replica_status(pair.target))
        )
        assert str(source.failure) == f"{files.pieces[1].binlog} is damaged"
    assert 0 < len(rows(pair.target)) < len(rows(pair.source))


@pytest.mark.parametrize("at", ["an unknown binlog", "before what is served", "not a boundary"])
def test_a_place_that_is_not_served(pair: Pair, at: str) -> None:
    """Is refused, and named: the replica stops."""
    with without_gtids(pair):
        pair.clear()
        write_rows(pair.source)
        files = pair.files()
        second = files.pieces[1]
        place = {
            "an unknown binlog": ("binlog.000099", 4),
            "before what is served": (str(files.pieces[0].binlog), 4),
            "not a boundary": (str(second.binlog), second.begin + 1),
        }[at]
        pieces = replace(files, pieces=files.pieces[1:])
        with serving(pair, pieces, gtid_mode="OFF") as source:
            replicate(pair, source, at=place)
            wait_until(lambda: place[0] in failed(replica_status(pair.target)))


def test_strangers_do_no_harm(pair: Pair) -> None:
    """Wrong passwords, silence, rubbish and too many connections, while a replica is served."""
    write_rows(pair.source)
    files = pair.files()
    with serving(pair, files) as source:
        host, port = source.address
        with pytest.raises(pymysql.err.OperationalError, match="1045"):
            pymysql.connect(host=host, port=port, user=ACCOUNT.user, password="another")
        silent = [socket.create_connection((host, port)) for _ in range(6)]
        silent[0].sendall(b"GET / HTTP/1.1\r\n\r\n")
        silent[1].sendall(b"\xff\xff\xff\xff" * 100)
        replicate(pair, source)
        wait_for_all(pair, source, files)
        for one in silent:
            one.close()
        assert source.failure is None
    assert rows(pair.target) == rows(pair.source)
    with pytest.raises(OSError, match="refused"):
        socket.create_connection((host, port))
