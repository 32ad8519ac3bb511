"""Where real dumps stand, against what the server itself said while nothing wrote."""

import gzip
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import zstandard

from binlog2s3.binlog.gtid import parse
from binlog2s3.errors import RecoveryError
from binlog2s3.recover.backup import BackupPoint, read_backup
from lab.disk import temporary_directory
from lab.get import ServerBinaries
from lab.mysql import MariadbServer, MysqlServer
from tests.waiting import wait_until

COMPRESSIONS: dict[str, Callable[[bytes], bytes]] = {
    "plain": lambda data: data,
    "gz": gzip.compress,
    "zst": zstandard.ZstdCompressor().compress,
}
STRANGER = "00000000-1111-2222-3333-444444444444"


@pytest.fixture(scope="module")
def source(mysql_binaries: ServerBinaries) -> Iterator[MysqlServer]:
    """A MySQL with a GTID set over many lines, a tag in it, and a procedure that misleads."""
    with temporary_directory() as directory, MysqlServer(mysql_binaries, directory) as server:
        server.query(
            f"SET GLOBAL gtid_purged = '+{STRANGER}:1-7:9'",
            "CREATE DATABASE shop",
            "CREATE TABLE shop.t (a INT PRIMARY KEY, b TEXT)",
            "CREATE DATABASE zoned",
            "CREATE TABLE zoned.t (ts TIMESTAMP NULL)",
            "INSERT INTO shop.t VALUES (1, 'x')",
            "FLUSH BINARY LOGS",
            "SET gtid_next = 'AUTOMATIC:blue'",
            "INSERT INTO shop.t VALUES (2, 'CHANGE MASTER TO MASTER_LOG_FILE=')",
        )
        yield server


@pytest.fixture(scope="module")
def mariadb_source(mariadb_binaries: ServerBinaries) -> Iterator[MariadbServer]:
    """A MariaDB with two domains."""
    with temporary_directory() as directory, MariadbServer(mariadb_binaries, directory) as server:
        server.query(
            "CREATE DATABASE shop",
            "CREATE TABLE shop.t (a INT PRIMARY KEY)",
            "CREATE DATABASE zoned",
            "CREATE TABLE zoned.t (ts TIMESTAMP NULL)",
            "SET gtid_domain_id = 3",
            "INSERT INTO shop.t VALUES (1)",
            "FLUSH BINARY LOGS",
            "CREATE PROCEDURE shop.p() BEGIN\nSET GLOBAL gtid_slave_pos='0-9-999';\nEND",
        )
        # it notes a little later, by itself, from which binlog on it would recover
        wait_until(lambda: checkpoint(server) == "mysql-bin.000002", what="the binlog checkpoint")
        yield server


def checkpoint(server: MariadbServer) -> str:
    """The binlog that the last checkpoint event of the open one names."""
    events = server.query("SHOW BINLOG EVENTS IN 'mysql-bin.000002'")
    found = [str(event[5]) for event in events if event[2] == "Binlog_checkpoint"]
    return found[-1] if found else ""


def dump(server: MysqlServer, program: str, *options: str) -> bytes:
    command = server.binaries.client.with_name(program)
    if not command.is_file():
        assert not os.environ.get("CI"), f"there is no {command}"
        pytest.skip(f"there is no {program} beside {server.binaries.client}")
    how = ["--no-defaults", "--user=root", f"--socket={server.socket}", *options]
    done = subprocess.run([str(command), *how], check=True, capture_output=True, timeout=300)
    return done.stdout


def read(directory: Path, data: bytes, how: str = "plain") -> BackupPoint:
    path = directory / "dump"
    path.write_bytes(COMPRESSIONS[how](data))
    return read_backup(path)


def coordinates(point: BackupPoint) -> tuple[str, int]:
    assert point.ends_at is not None
    return str(point.ends_at.binlog), point.ends_at.offset


@pytest.mark.parametrize(("source_data", "purged"), [(1, "ON"), (2, "OFF"), (2, "COMMENTED")])
def test_mysqldump(source_data: int, purged: str, source: MysqlServer, tmp_path: Path) -> None:
    """The server's own position and GTIDs, whatever the options and the compression."""
    told = source.query("SHOW BINARY LOG STATUS")
    data = dump(
        source,
        "mysqldump",
        "--all-databases",
        "--routines",
        "--single-transaction",
        f"--source-data={source_data}",
        f"--set-gtid-purged={purged}",
    )
    assert source.query("SHOW BINARY LOG STATUS") == told  # nothing wrote meanwhile
    ((name, position, *_),) = told
    ((executed,),) = source.query("SELECT @@gtid_executed")
    assert "\n" in executed
    assert "blue" in executed
    for how in COMPRESSIONS:
        point = read(tmp_path, data, how)
        assert coordinates(point) == (name, position)
        assert point.gtid_set == (None if purged == "OFF" else str(parse(executed, "mysql")))
        assert (point.tool, point.flavour) == ("mysqldump", "mysql")
        assert len(point.warnings) == (purged == "COMMENTED")


def test_mysqldump_of_one_database(source: MysqlServer, tmp_path: Path) -> None:
    """Without --source-data: GTIDs alone, and what is doubtful about it; --compact tells all."""
    ((executed,),) = source.query("SELECT @@gtid_executed")
    point = read(tmp_path, dump(source, "mysqldump", "--single-transaction", "shop"))
    assert (point.ends_at, point.gtid_set) == (None, str(parse(executed, "mysql")))
    assert len(point.warnings) == 2
    point = read(tmp_path, dump(source, "mysqldump", "--compact", "--source-data=2", "shop"))
    ((name, position, *_),) = source.query("SHOW BINARY LOG STATUS")
    assert coordinates(point) == (name, position)
    assert point.gtid_set == str(parse(executed, "mysql"))
    with pytest.raises(RecoveryError):
        read(tmp_path, dump(source, "mysqldump", "--set-gtid-purged=OFF", "shop"))


@pytest.mark.parametrize(("master_data", "gtid"), [(1, []), (2, ["--gtid"])])
def test_mariadb_dump(
    master_data: int, gtid: list[str], mariadb_source: MariadbServer, tmp_path: Path
) -> None:
    """The server's own position and GTIDs, which stand behind all tables and procedures."""
    told = mariadb_source.query("SHOW MASTER STATUS")
    data = dump(
        mariadb_source,
        "mariadb-dump",
        "--all-databases",
        "--routines",
        "--single-transaction",
        f"--master-data={master_data}",
        *gtid,
    )
    assert mariadb_source.query("SHOW MASTER STATUS") == told
    ((name, position, *_),) = told
    ((current,),) = mariadb_source.query("SELECT @@gtid_binlog_pos")
    for how in COMPRESSIONS:
        point = read(tmp_path, data, how)
        assert coordinates(point) == (name, position)
        assert point.gtid_set == str(parse(current, "mariadb"))
        assert (point.tool, point.flavour, point.warnings) == ("mariadb-dump", "mariadb", ())


def test_dumps_that_set_no_zone(
    source: MysqlServer, mariadb_source: MariadbServer, tmp_path: Path
) -> None:
    """--skip-tz-utc and --compact; a dump as usual has no such warning."""
    for server, program in ((source, "mysqldump"), (mariadb_source, "mariadb-dump")):
        named = ("--source-data=2" if server is source else "--master-data=2", "--databases")
        for option, count in (("--opt", 0), ("--skip-tz-utc", 1), ("--compact", 1)):
            point = read(tmp_path, dump(server, program, option, *named, "zoned"))
            said = [one for one in point.warnings if "does not set a time zone" in one]
            assert len(said) == count, (program, option)


def test_mysqldump_of_a_replica(mysql_binaries: ServerBinaries, tmp_path: Path) -> None:
    """--dump-replica tells the source's place, and the answer says so; --source-data its own."""
    with (
        temporary_directory() as directory,
        MysqlServer(mysql_binaries, directory, server_id=2) as replica,
    ):
        # the place of an applier that has not begun: no connection is needed for it
        replica.query(
            "CHANGE REPLICATION SOURCE TO SOURCE_HOST='127.0.0.1', SOURCE_USER='repl', "
            "SOURCE_LOG_FILE='upstream.000009', SOURCE_LOG_POS=900",
            "CREATE DATABASE shop",
        )
        ((name, position, *_),) = replica.query("SHOW BINARY LOG STATUS")
        options = ["--all-databases", "--single-transaction"]
        own = read(tmp_path, dump(replica, "mysqldump", *options, "--source-data=2"))
        theirs = read(tmp_path, dump(replica, "mysqldump", *options, "--dump-replica=2"))
    assert (coordinates(own), own.warnings) == ((name, position), ())
    assert coordinates(theirs) == ("upstream.000009", 900)
    assert ["the source of the server that was dumped" in text for text in theirs.warnings] == [
        True
    ]
    assert own.gtid_set == theirs.gtid_set
