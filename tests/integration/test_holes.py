"""A target that has not exactly a beginning of the history: on real servers, from a real bucket.

The source writes one row again and again, so that what is applied too late shows in it.
"""

import secrets
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from lab.disk import temporary_directory
from lab.get import ServerBinaries
from lab.mysql import MysqlServer
from lab.s3 import MinioServer
from tests.waiting import PATIENCE, wait_until
from tests.world.commands import Recovery
from tests.world.servers import dump_of, executed, load, locked, reset, uuid_of
from tests.world.streamed import Streamed, streamed

SCHEMA = (
    "CREATE DATABASE shop",
    "CREATE TABLE shop.kv (k INT PRIMARY KEY, v INT)",
    "CREATE TABLE shop.one (n INT PRIMARY KEY)",
    "CREATE TABLE shop.two (n INT PRIMARY KEY)",
    "INSERT INTO shop.kv VALUES (1, 0)",
)
UPDATES = ("UPDATE shop.kv SET v = 1", "UPDATE shop.kv SET v = 2")
REST = (
    "INSERT INTO shop.one VALUES (1)",
    "INSERT INTO shop.two VALUES (1)",
    "DELETE FROM shop.one",
    "INSERT INTO shop.two VALUES (2)",
    "INSERT INTO shop.two VALUES (3)",
)
Fresh = Callable[..., MysqlServer]
Rows = list[list[tuple[object, ...]]]


class Lived(Streamed):
    """A bucket with all that the source wrote: three dumps, and what its tables hold in the end."""

    rows: Rows
    updates = len(SCHEMA) + 1
    """The number of the first of UPDATES."""

    def gtid(self, number: int, last: int | None = None) -> str:
        """Of the source's transaction, or of several."""
        return f"{uuid_of(self.source)}:{number}" + (
            f"-{last}" if last not in (None, number) else ""
        )

    @property
    def end(self) -> int:
        """The number of the last transaction."""
        return self.updates + len(UPDATES) + len(REST) - 1

    def dump(self, name: str) -> Path:
        return self.folder / f"{name}.sql"


def rows(server: MysqlServer) -> Rows:
    """What its tables hold."""
    return [
        [tuple(row) for row in server.query(f"SELECT * FROM shop.{table} ORDER BY 1")]
        for table in ("kv", "one", "two")
    ]


@pytest.fixture(scope="module")
def lived(mysql_binaries: ServerBinaries, minio: MinioServer) -> Iterator[Lived]:
    """Monday's dump is before both updates, tuesday's between; `plain`: monday's without GTIDs."""
    bucket = minio.make_bucket()
    with (
        temporary_directory() as folder,
        streamed(mysql_binaries, minio, bucket, folder, *SCHEMA, kind=Lived) as found,
    ):
        source = found.source
        dump_of(source, found.dump("monday"), "--set-gtid-purged=ON")
        dump_of(source, found.dump("plain"), "--set-gtid-purged=OFF")
        source.query(UPDATES[0])
        dump_of(source, found.dump("tuesday"), "--set-gtid-purged=ON")
        source.query(UPDATES[1], *REST, "FLUSH BINARY LOGS")
        found.wait_archived(1)
        assert found.stream.terminate() == 0
        found.rows = rows(source)
        yield found


@pytest.fixture
def command(lived: Lived) -> Recovery:
    return lived.recovery


@pytest.fixture
def fresh(mysql_binaries: ServerBinaries) -> Iterator[Fresh]:
    """Empty servers, or with a dump that was loaded; they are ended in the end."""
    with ExitStack() as stack:

        def start(dump: Path | None = None, *, is_logged: bool = False) -> MysqlServer:
            place = stack.enter_context(temporary_directory())
            made = MysqlServer(mysql_binaries, place, server_id=secrets.randbelow(9000) + 1000)
            server = stack.enter_context(made)
            reset(server, "SET GLOBAL event_scheduler = OFF")
            if dump is not None:
                load(server, dump, *([] if is_logged else ["--init-command=SET sql_log_bin = 0"]))
                server.query("FLUSH LOCAL PRIVILEGES")
            return server

        yield start


def by_hand(server: MysqlServer, lived: Lived, *numbers: int) -> None:
    """Commit these transactions of the source, and no others."""
    every = [*SCHEMA, *UPDATES, *REST]
    for number in numbers:
        server.query(
            f"SET gtid_next = '{lived.gtid(number)}'",
            every[number - 1],
            "SET gtid_next = 'AUTOMATIC'",
        )


def test_holes_that_are_allowed_are_filled_first(
    lived: Lived, command: Recovery, fresh: Fresh
) -> None:
    """Of a replica that does not keep the order of commits; then it equals the source."""
    server, one = fresh(), lived.updates + 2
    by_hand(server, lived, *range(1, one), one + 1)
    hole = lived.gtid(one)
    assert hole in command.refused(server, "--latest")
    more = f"{hole},{lived.gtid(one + 2)}"
    said = command.refused(server, "--latest", f"--allow-holes={more}")
    assert f"{lived.gtid(one + 2)} is no hole of the target" in said
    done = command.run(server, "--latest", "--dry-run", f"--allow-holes={hole}")
    assert done.status == 0, done.stderr
    assert f"holes      {hole} (applied first: --allow-holes)" in done.stdout
    document = command.to(server, "--latest", f"--allow-holes={hole}")
    assert document["plan"]["gtids_holes"] == hole
    assert f"{hole} came after later ones (--allow-holes)" in document["result"]["proved"]
    assert rows(server) == lived.rows
    assert executed(server) == lived.gtid(1, lived.end)


@pytest.mark.parametrize("way", ["--from-backup", "--from-backup-id"])
def test_another_backup_than_was_restored_is_refused(
    lived: Lived, command: Recovery, fresh: Fresh, way: str
) -> None:
    """Monday was restored, tuesday is named: the transactions in between would be left out."""
    server, monday = fresh(lived.dump("monday")), lived.updates - 1
    tuesday = lived.dump("tuesday")
    named = str(tuesday)
    if way == "--from-backup-id":
        added = lived.document("backup", "add", f"--from-backup={tuesday}")
        named = added["backups"][0]["id"]
    said = command.refused(server, "--latest", f"{way}={named}")
    assert f" has {lived.gtid(lived.updates)}, the target has only {lived.gtid(1, monday)}" in said
    assert executed(server) == lived.gtid(1, monday)
    right = lived.dump("monday") if way == "--from-backup" else None
    command.to(server, "--latest", *([f"{way}={right}"] if right else []))
    assert rows(server) == lived.rows


def test_a_skip_that_left_a_hole_is_not_applied_later(
    lived: Lived, command: Recovery, fresh: Fresh
) -> None:
    """The next run refuses; with --skip-gtid again it goes on, and commits it empty in the end."""
    server, delete = fresh(lived.dump("monday")), lived.gtid(lived.updates + 4)
    skip = f"--skip-gtid={delete}"
    upto = lived.gtid(lived.end - 1)
    document = command.to(server, f"--to-gtid={upto}", skip, "--skip-leaves-hole")
    assert f"without {delete} (--skip-leaves-hole)" in document["result"]["proved"]
    said = command.refused(server, "--latest")
    assert f"is missing {delete}" in said
    assert "--skip-gtid leaves them out again" in said
    assert server.query("SELECT n FROM shop.one") == [(1,)]
    command.to(server, "--latest", skip)
    assert server.query("SELECT n FROM shop.one") == [(1,)]
    assert executed(server) == lived.gtid(1, lived.end)


def test_killed_with_a_skip_the_same_command_goes_on(
    lived: Lived, command: Recovery, fresh: Fresh
) -> None:
    """What it left out is committed empty at the end, so until then it is a hole: no refusal."""
    server, delete = fresh(lived.dump("monday")), lived.gtid(lived.updates + 4)
    words = ("--latest", f"--skip-gtid={delete}")
    with ExitStack() as lock:
        server.query("SET GLOBAL replica_parallel_workers = 4")
        is_awaited = lock.enter_context(locked(server, "shop.two"))
        process = lock.enter_context(command.started(server, "--yes", *words))
        wait_until(is_awaited, PATIENCE, "the apply stands at the lock")
        process.kill()
        process.wait(PATIENCE)
        server.kill()
    server.start()
    server.query("SET GLOBAL event_scheduler = OFF")
    command.to(server, *words)
    assert rows(server)[0] == lived.rows[0]
    assert server.query("SELECT n FROM shop.one") == [(1,)]
    assert rows(server)[2] == lived.rows[2]
    assert executed(server) == lived.gtid(1, lived.end)
    command.to(server, *words)


def test_the_load_of_the_backup_was_logged(lived: Lived, command: Recovery, fresh: Fresh) -> None:
    """The hint names what removes these GTIDs; then the same command goes to the end."""
    plain = lived.dump("plain")
    server = fresh(plain, is_logged=True)
    assert executed(server)
    words = ("--latest", f"--from-backup={plain}")
    assert "run RESET BINARY LOGS AND GTIDS there" in command.refused(server, *words)
    reset(server)
    command.to(server, *words)
    assert rows(server) == lived.rows
    said = command.refused(server, "--latest")
    assert "name it: --from-backup" in said
