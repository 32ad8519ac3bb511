"""What a recovery notes in its target is out of reach of what it replays, and of dumps.

The source has used the name that version 0.2.0 gave the database of its notes, as a DBA who tidies
up does, or a tenant who may create databases.
"""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.disk import temporary_directory
from lab.get import ServerBinaries
from lab.mysql import MysqlServer, server_of
from lab.s3 import MinioServer
from tests.waiting import wait_until
from tests.world.servers import RELAXED, reset
from tests.world.streamed import Streamed, streamed
from tests.world.writes import HOLD, held_up

OLD_NAME = "binlog2s3_recovery"
NOTES = f"SHOW DATABASES LIKE '{OLD_NAME}%'"
ROWS = "SELECT * FROM shop.n ORDER BY i"
OTHERS = "SELECT i FROM shop.other ORDER BY i"
ONLY = "--table=shop.n"
FIRST = ("--from-binlog=mysql-bin.000001", "--from-position=4")


class Tidied(Streamed):
    """A source that was streamed and is gone; what it had."""

    gtid: bool
    rows: list[tuple[object, ...]]

    @property
    def begin(self) -> list[str]:
        """From its beginning; a MySQL with GTIDs says so itself."""
        return ["--latest", *(FIRST if self.is_mariadb or not self.gtid else ())]


@pytest.fixture(scope="module", params=["mysql", "mysql without GTIDs", "mariadb"])
def tidied(request: pytest.FixtureRequest, minio: MinioServer) -> Iterator[Tidied]:
    flavour, gtid = request.param.partition(" ")[0], "without" not in request.param
    binaries: ServerBinaries = request.getfixturevalue(f"{flavour}_binaries")
    bucket = minio.make_bucket()
    with (
        temporary_directory() as directory,
        streamed(
            binaries,
            minio,
            bucket,
            directory,
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
            kind=Tidied,
            gtid=gtid,
        ) as found,
    ):
        found.wait()
        found.stream.kill()
        found.gtid, found.rows = gtid, found.source.query(ROWS)
        found.source.stop()
        yield found


@pytest.fixture
def empty(tidied: Tidied, disk_tmp_path: Path) -> Iterator[MysqlServer]:
    """An empty server, to be entered."""
    options = [*RELAXED, "--event-scheduler=OFF", "--skip-slave-start"]
    with server_of(
        tidied.binaries, disk_tmp_path / "target", server_id=2, gtid=tidied.gtid, options=options
    ) as server:
        reset(server)
        yield server


@pytest.mark.gate("mysql", "mariadb")
def test_the_source_cannot_remove_the_mark(tidied: Tidied, empty: MysqlServer) -> None:
    """A server that has only some tables is not taken for a whole one, whatever was replayed."""
    tidied.recovery.to(empty, ONLY, *tidied.begin)
    assert empty.query(ROWS) == tidied.rows
    assert empty.query("SHOW TABLES FROM shop") == [("n",)]
    assert "scratch server" in tidied.recovery.refused(empty, *tidied.begin)


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
