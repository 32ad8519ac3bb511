"""What a recovery notes in its target is out of reach of what it replays, and of dumps.

The source has used the name that version 0.2.0 gave the database of its notes, as a DBA who tidies
up does, or a tenant who may create databases.
"""

import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from lab.disk import temporary_directory
from lab.get import ServerBinaries
from lab.mysql import MariadbServer, MysqlServer
from lab.s3 import MinioServer
from tests.integration.bucket import Bucket
from tests.integration.stream_process import StreamProcess
from tests.waiting import wait_until
from tests.world.archive import wait_durable
from tests.world.commands import Recovery, read_only
from tests.world.servers import RELAXED, dump_of, load
from tests.world.writes import HOLD, held_up

OLD_NAME = "binlog2s3_recovery"
NOTES = f"SHOW DATABASES LIKE '{OLD_NAME}%'"
ROWS = "SELECT * FROM shop.n ORDER BY i"
OTHERS = "SELECT i FROM shop.other ORDER BY i"
ONLY = "--table=shop.n"
FIRST = ("--from-binlog=mysql-bin.000001", "--from-position=4")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tidied:
    """A source that was streamed and is gone; what it had."""

    recovery: Recovery
    binaries: ServerBinaries
    gtid: bool
    rows: list[tuple[object, ...]]

    @property
    def begin(self) -> list[str]:
        """From its beginning; a MySQL with GTIDs says so itself."""
        if self.gtid and self.binaries.flavour == "mysql":
            return ["--latest"]
        return ["--latest", *FIRST]

    def started(self, directory: Path, number: int = 2) -> MysqlServer:
        """An empty server, to be entered."""
        kind = MysqlServer if self.binaries.flavour == "mysql" else MariadbServer
        options = [*RELAXED, "--event-scheduler=OFF", "--skip-slave-start"]
        return kind(self.binaries, directory, server_id=number, gtid=self.gtid, options=options)


@pytest.fixture(scope="module", params=["mysql", "mysql without GTIDs", "mariadb"])
def tidied(request: pytest.FixtureRequest, minio: MinioServer) -> Iterator[Tidied]:
    flavour, gtid = request.param.partition(" ")[0], "without" not in request.param
    binaries: ServerBinaries = request.getfixturevalue(f"{flavour}_binaries")
    kind = MysqlServer if flavour == "mysql" else MariadbServer
    bucket = minio.make_bucket()
    with temporary_directory() as directory:
        with kind(binaries, directory / "source", gtid=gtid, options=RELAXED) as source:
            source.query("RESET MASTER" if flavour == "mariadb" else "RESET BINARY LOGS AND GTIDS")
            source.query(
                "CREATE DATABASE shop",
                "CREATE TABLE shop.n (i INT PRIMARY KEY, v INT)",
                "CREATE TABLE shop.other (i INT PRIMARY KEY)",
                "INSERT INTO shop.n VALUES (0, 1)",
                "INSERT INTO shop.other VALUES (1)",
                f"CREATE DATABASE {OLD_NAME}",
                f"DROP DATABASE {OLD_NAME}",
                f"DROP DATABASE IF EXISTS {OLD_NAME}",
                f"CREATE DATABASE {OLD_NAME}",
                f"CREATE TABLE {OLD_NAME}.run (asked TEXT, reached TEXT)",
                f"DROP DATABASE {OLD_NAME}",
                *(f"UPDATE shop.n SET v = v * 3 + {n} WHERE i = 0" for n in range(12)),
                *HOLD,
                "INSERT INTO shop.other VALUES (2)",
                "UPDATE shop.n SET v = v + 1",
            )
            with StreamProcess(directory / "stream", source, minio, bucket) as stream:
                wait_durable(stream, Bucket(minio, bucket), source)
                stream.kill()
            rows = source.query(ROWS)
        yield Tidied(
            recovery=Recovery(minio, bucket, read_only(minio)),
            binaries=binaries,
            gtid=gtid,
            rows=rows,
        )


@pytest.fixture
def empty(tidied: Tidied, disk_tmp_path: Path) -> Iterator[MysqlServer]:
    with tidied.started(disk_tmp_path / "target") as server:
        if tidied.binaries.flavour == "mysql":
            server.query("RESET BINARY LOGS AND GTIDS")
        else:
            server.query("RESET MASTER")
        yield server


@pytest.mark.gate("mysql", "mariadb")
def test_the_source_cannot_remove_the_mark(tidied: Tidied, empty: MysqlServer) -> None:
    """A server that has only some tables is not taken for a whole one, whatever was replayed."""
    tidied.recovery.to(empty, ONLY, *tidied.begin)
    assert empty.query(ROWS) == tidied.rows
    assert empty.query("SHOW TABLES FROM shop") == [("n",)]
    assert "scratch server" in tidied.recovery.refused(empty, *tidied.begin)


@pytest.mark.parametrize("tidied", ["mysql", "mariadb"], indirect=True, scope="module")
def test_a_source_that_uses_the_name(tidied: Tidied, empty: MysqlServer) -> None:
    """It creates and drops a database of that name: replayed like any other."""
    tidied.recovery.to(empty, *tidied.begin)
    assert (empty.query(ROWS), empty.query(OTHERS)) == (tidied.rows, [(1,), (2,)])
    assert empty.query(NOTES) == []


def test_how_far_it_came_is_not_lost(tidied: Tidied, empty: MysqlServer) -> None:
    """Ended behind the DROP, it goes on from there: nothing twice, nothing left out.

    The table that holds it up makes a target that is not empty, so each says where it begins.
    """
    begin = ["--latest", *FIRST]
    with tidied.recovery.started(empty, "--yes", *begin) as process:
        with held_up(empty) as is_awaited:

            def is_held() -> bool:
                assert process.poll() is None, process.returncode
                return is_awaited()

            def is_stopping() -> bool:
                asked = empty.query("SELECT info FROM information_schema.processlist")
                return process.poll() is not None or any(
                    str(info).startswith("STOP") for (info,) in asked
                )

            wait_until(is_held, 120, "the applier is held up")
            process.send_signal(signal.SIGTERM)
            # freed before that, the target could apply all that it has got
            wait_until(is_stopping, what="the channel is told to stop")
        assert process.wait(180) == 130
    assert len(empty.query(NOTES)) == 1
    tidied.recovery.to(empty, *begin)
    assert (empty.query(ROWS), empty.query(OTHERS)) == (tidied.rows, [(1,), (2,)])
    assert empty.query(NOTES) == []


@pytest.mark.parametrize("tidied", ["mysql"], indirect=True)
def test_a_note_that_came_with_a_dump(
    tidied: Tidied, empty: MysqlServer, disk_tmp_path: Path
) -> None:
    """Of a marked server, all of it: the note in it is named, and nothing in it is believed."""
    tidied.recovery.to(empty, ONLY, *tidied.begin)
    ((noted,),) = empty.query(NOTES)
    dump = disk_tmp_path / "dump.sql"
    dump_of(empty, dump)
    assert noted in dump.read_text(errors="replace")
    with tidied.started(disk_tmp_path / "another", number=5) as another:
        if tidied.binaries.flavour == "mysql":
            another.query("RESET BINARY LOGS AND GTIDS")
        load(another, dump)
        for words in ([], [ONLY]):
            said = tidied.recovery.refused(another, *words, *tidied.begin)
            assert f"{noted}.note" in said
            assert "restore the base backup into an empty server" in said
