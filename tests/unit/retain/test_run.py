"""`backup run` with scripts as programs: what is registered, and what is left when it fails."""

import re
import shlex
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import pytest
from botocore.exceptions import EndpointConnectionError

from binlog2s3.archive.backups import KILLED, Backup, BackupRun, last_failure, registered, runs_of
from binlog2s3.archive.catalog import Catalog
from binlog2s3.archive.stored import read_stored
from binlog2s3.binlog.names import BinlogName
from binlog2s3.config.backup import BackupConfig
from binlog2s3.config.outside import Outside
from binlog2s3.config.stream import MysqlConfig, S3Config
from binlog2s3.errors import ArchiveError, PreconditionError, RecoveryError, SourceError, StoreError
from binlog2s3.retain.leftovers import Bucket as Place
from binlog2s3.retain.leftovers import clear, leftovers_of
from binlog2s3.retain.run import BackupStorer, run
from binlog2s3.server import dump_losses
from binlog2s3.server.connection import Server, ServerFacts
from binlog2s3.status.model import backups_of
from binlog2s3.store.contract import PREFLIGHT
from binlog2s3.store.versions import Hold
from tests.binlog_writer import UUID_A, UUID_B
from tests.documents import BACKUP, BACKUP_RUN, LINEAGE, STORED
from tests.memory_client import MemoryClient
from tests.snapshots import LAYOUT, Bucket, written
from tests.unit.recover.fake_server import FakeServer, Rows

NAME = BinlogName("mysql-bin", 1)


def now() -> datetime:
    return datetime.now(UTC)


ROWS = "".join(f"INSERT INTO `t` VALUES ({n},'{n * 7919}');\n" for n in range(4000))
DUMP = f"""-- MySQL dump 10.13  Distrib 9.7.4, for Linux (x86_64)
--
-- Host: localhost    Database:{" "}
-- ------------------------------------------------------
-- Server version	9.7.4
/*!40103 SET TIME_ZONE='+00:00' */;
SET @@GLOBAL.GTID_PURGED=/*!80000 '+'*/ '{UUID_A}:1-GTIDS';
--
-- Position to start replication or point-in-time recovery from
--
-- CHANGE REPLICATION SOURCE TO SOURCE_LOG_FILE='mysql-bin.000001', SOURCE_LOG_POS=POSITION;
CREATE DATABASE `shop`;
USE `shop`;
CREATE TABLE `t` (
  `id` int
) ENGINE=InnoDB;
{ROWS}-- Dump completed on 2026-01-02  3:04:05
"""
LOG = """[00] 2026-01-02 03:04:05 mariabackup: Last MySQL binlog file position 900
[00] 2026-01-02 03:04:05 MySQL binlog position: filename 'mysql-bin.000001', position 'POSITION', \
GTID of the last change 'UUID:1-GTIDS'
[00] 2026-01-02 03:04:05 completed OK!
"""


BINLOG = written(12, apart_us=1_000_000)
DATA, POSITION = bytes(BINLOG.data), BINLOG.transactions[5].end
LOGIN = MysqlConfig(user="backup", host="127.0.0.1")
SOURCE = ServerFacts(
    uuid=LINEAGE.server_uuid, flavour="mysql", version="9.7.4", server_id=1, gtid_mode=True
)
OTHER = replace(SOURCE, uuid=UUID_B)


def said(text: str, gtids: int = 6) -> str:
    text = text.replace("UUID", UUID_A) if text is LOG else text
    return text.replace("POSITION", str(POSITION)).replace("GTIDS", str(gtids))


class Source(FakeServer):
    """The next server that answers there."""

    def __init__(self, servers: list[ServerFacts], answers: Mapping[str, Rows | Exception]) -> None:
        super().__init__(answers)
        self._servers = servers

    def facts(self) -> ServerFacts:
        return self._servers.pop(0)


@dataclass
class World:
    """A bucket with a binlog, a program that is a script, and a clock that waits for nobody."""

    folder: Path
    store: Bucket = field(default_factory=lambda: Bucket(min_part_bytes=1))
    slept: list[float] = field(default_factory=list)
    on_sleep: Callable[[], object] = lambda: None
    late: timedelta = timedelta()
    servers: list[ServerFacts] = field(default_factory=list)
    answers: dict[str, Rows | Exception] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.store.archive(DATA, NAME)

    @property
    def catalog(self) -> Catalog:
        return Catalog(self.store, LAYOUT)

    def program(self, output: str, log: str = "", status: int = 0, more: str = "") -> str:
        """A command that writes these, and ends so."""
        (self.folder / "output").write_text(output)
        (self.folder / "log").write_text(log)
        script = self.folder / "program.py"
        script.write_text(
            f"import shutil, sys, time\n"
            f"{more}\n"
            f"sys.stdout.write(open({str(self.folder / 'output')!r}).read())\n"
            f"sys.stdout.flush()\n"
            f"sys.stderr.write(open({str(self.folder / 'log')!r}).read())\n"
            f"sys.exit({status})\n"
        )
        return f"{shlex.quote(sys.executable)} {shlex.quote(str(script))}"

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.on_sleep()

    def run(self, command: str, **options: Any) -> Backup:
        return self.run_as(
            command=command, **{"position_from": "dump-header", "label": "monday", **options}
        )

    def run_as(self, **options: Any) -> Backup:
        """With these options alone."""
        config = BackupConfig(s3=S3Config(bucket="b", prefix="pre"), source="orders", **options)
        place, look = Place(self.catalog, lambda: self.now), self.store.snapshot
        outside = Outside(sleep=self.sleep)
        storer = BackupStorer(config, place, look, outside, connect=self.connect, part_size=20_000)
        backup, _ = storer.run()
        return backup

    @property
    def now(self) -> datetime:
        """By the earlier of two clocks."""
        return datetime.now(UTC) - self.late

    def connect(self, config: MysqlConfig) -> Server:
        """The server that answers there."""
        assert config == LOGIN
        return cast("Server", Source(self.servers, self.answers))

    def content(self, backup: Backup) -> str:
        assert backup.stored is not None
        return b"".join(read_stored(self.store, LAYOUT, backup.id, backup.stored)).decode()

    def left(self) -> tuple[int, list[str], list[Backup]]:
        """Uploads, objects, registered backups."""
        keys = [key for key in self.store.objects if key.startswith(LAYOUT.stored_backups)]
        return len(self.store.uploads), keys, registered(self.catalog)

    def age(self, by: timedelta) -> None:
        """Let so much time pass for what is there."""
        for key, there in self.store.objects.items():
            info = replace(there.info, last_modified=there.info.last_modified - by)
            self.store.objects[key] = replace(there, info=info)

    def runs(self) -> list[BackupRun]:
        return runs_of(self.catalog, datetime.now(UTC))


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@pytest.mark.parametrize("no_compress", [False, True])
def test_a_dump_is_stored_and_registered(world: World, no_compress: bool) -> None:
    """With its place, all of it read; nothing else is left, and it is read back as it was."""
    backup = world.run(world.program(said(DUMP)), no_compress=no_compress)
    assert (backup.tool, backup.checked, backup.label) == ("mysqldump", True, "monday")
    assert (backup.gtid_set, backup.position) == (f"{UUID_A}:1-6", POSITION)
    uploads, keys, (found,) = world.left()
    assert (uploads, keys, found) == (0, [LAYOUT.stored(backup.id, 1)], backup)
    assert world.content(backup) == said(DUMP)
    assert world.runs() == []
    assert backup.stored is not None
    assert backup.stored.compression == ("none" if no_compress else "zstd")
    assert backup.location == f"s3://b/{LAYOUT.stored_backups}{backup.id}/"


def test_a_physical_backup_has_the_place_of_its_log(world: World) -> None:
    """Which is the last that it says but for that it is done."""
    command = world.program("XBSTCK01 and more", said(LOG))
    backup = world.run(command, position_from="xtrabackup-log")
    assert (backup.gtid_set, str(backup.binlog)) == (f"{UUID_A}:1-6", "mysql-bin.000001")
    assert backup.tool == "xtrabackup"
    assert not backup.checked
    assert world.content(backup) == "XBSTCK01 and more"


TABLESPACES = """mysqldump: Error: 'Access denied; you need (at least one of) the PROCESS \
privilege(s) for this operation' when trying to dump tablespaces
"""
"""A program may end with exit code 0 all the same."""
COMPACT = "\n".join(
    line
    for line in said(DUMP).splitlines()
    if line.startswith("-- CHANGE") or not line.startswith(("--", "/*!40103"))
)


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ({"output": said(DUMP), "log": "Access denied\n", "status": 2}, "status 2: Access denied"),
        ({"output": said(DUMP)[:-60]}, "cut off"),
        ({"output": said(DUMP).replace(ROWS, "")}, "no rows"),
        ({"output": ""}, "wrote nothing"),
        ({"output": "not a dump at all\n"}, "not a known kind"),
        ({"output": said(DUMP, 99), "log": "-"}, "not in the archive|does not have all"),
        ({"output": said(DUMP), "more": "import os; os.kill(os.getpid(), 9)"}, "signal 9"),
        ({"output": said(DUMP), "log": TABLESPACES}, "Access denied; you need"),
        ({"output": said(DUMP), "log": "/usr/bin/mariadb-dump: Got error: 1\n-- "}, "Got error"),
        ({"output": COMPACT}, "nothing in it says that it is complete"),
        (
            {"output": said(DUMP), "log": "\x1b[2J\x1b]0;x\x07boom", "status": 1},
            r"1: \[2J \]0;x boom",
        ),
    ],
)
def test_what_fails_registers_nothing(world: World, how: dict[str, Any], why: str) -> None:
    """No upload is left, no object; and the run's object says why."""
    with pytest.raises(RecoveryError, match=why):
        world.run(world.program(**how), wait=4.0)
    assert world.left() == (0, [], [])
    (run,) = world.runs()
    assert (run.state, run.id) == ("failed", run.id)
    assert run.error
    assert last_failure(world.runs(), []) == run


@pytest.mark.parametrize(
    ("log", "why"),
    [
        (said(LOG).replace("completed OK!", "error"), "does not end with"),
        ("completed OK!\n", "no binlog position"),
        (said(LOG) + said(LOG).replace("000001", "000002"), "contradicts itself"),
    ],
)
def test_a_log_that_does_not_say_it_registers_nothing(world: World, log: str, why: str) -> None:
    """Not a log without its end, without a position, or with two."""
    with pytest.raises(RecoveryError, match=why):
        world.run(world.program("XBSTCK01", log), position_from="xtrabackup-log")
    assert world.left() == (0, [], [])


def test_the_archive_is_waited_for(world: World) -> None:
    """Its place comes with the next binlog; without a streamer at work that is said."""
    second = written(8, first=13, begin_us=1_795_253_322_000_000, apart_us=1_000_000)
    later = said(DUMP, 16).replace(f"SOURCE_LOG_POS={POSITION}", "SOURCE_LOG_POS=4")
    later = later.replace("-- CHANGE REPLICATION", "-- NO CHANGE")
    with pytest.raises(RecoveryError, match="no streamer works"):
        world.run(world.program(later), wait=4.0)
    assert len(world.slept) == 2
    world.on_sleep = lambda: world.store.archive(bytes(second.data), NAME.next())
    backup = world.run(world.program(later), wait=60.0)
    assert backup.gtid_set == f"{UUID_A}:1-16"
    assert world.runs() == [], "the run that failed before is forgotten"


@pytest.mark.parametrize("operation", ["create_upload", "upload_part", "complete_upload", "put"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_store_that_fails_at_any_step(world: World, operation: str, when: Any) -> None:
    """Either it is registered and whole, or not registered; what is left can be cleared."""
    if operation == "put":
        calls = [0]

        def second(name: str) -> Any:
            calls[0] += name == "put"
            is_it = name == "put" and calls[0] == 2  # the first one is the run's object
            return (when, StoreError("the store is away")) if is_it else None

        world.store.on_call = second
    else:
        world.store.fail_next(operation, when, StoreError("the store is away"))
    with pytest.raises(StoreError):
        world.run(world.program(said(DUMP)))
    world.store.on_call = lambda _: None
    _, _, found = world.left()
    if found:
        assert (operation, when) == ("put", "after")
        assert world.content(found[0]) == said(DUMP)
        assert last_failure(world.runs(), found) is None
        return
    later = datetime.now(UTC) + timedelta(days=2)
    clear(world.catalog, leftovers_of(Place(world.catalog, lambda: later)))
    assert world.left() == (0, [], [])


def test_a_lost_answer_to_the_document_is_looked_up(world: World) -> None:
    """The store repeats the write, finds its own first attempt, and that is it."""
    calls = [0]

    def second(name: str) -> Any:
        calls[0] += name == "put"
        is_it = name == "put" and calls[0] == 2
        return ("after", PreconditionError("it is there")) if is_it else None

    world.store.on_call = second
    backup = world.run(world.program(said(DUMP)))
    assert world.content(backup) == said(DUMP)


class _Away(MemoryClient):
    """Nobody answers; it counts the requests."""

    asked = 0

    def __getattribute__(self, name: str) -> Any:
        if name in ("list_objects_v2", "get_object", "get_object_lock_configuration"):
            return self._fail
        return super().__getattribute__(name)

    def _fail(self, **_: object) -> None:
        self.asked += 1
        raise EndpointConnectionError(endpoint_url="http://127.0.0.1:1")


def test_a_store_that_is_away_when_it_begins_is_not_waited_for() -> None:
    """Nothing is held open yet that would be lost: few attempts, and the reason."""
    away = _Away(Bucket(), lambda: datetime.now(UTC))
    config = BackupConfig(
        s3=S3Config(bucket="b", prefix="pre"),
        source="orders",
        command="true",
        position_from="dump-header",
    )
    with pytest.raises(StoreError, match="cannot reach the store"):
        run(config, Outside(session=away.session))
    assert away.asked == PREFLIGHT.attempts


def killed_run(world: World, *, at: datetime, uploads: int = 1, objects: int = 1) -> str:
    """What one leaves that was killed: its own object, an upload, an object."""
    run = replace(BACKUP_RUN, source="orders", since=at, at=at, state="running", error="")
    world.store._now = lambda: at
    world.store.put(LAYOUT.backup_run(run.id), run.to_json())
    for number in range(uploads):
        upload = world.store.create_upload(LAYOUT.stored(run.id, number + 1))
        world.store.upload_part(LAYOUT.stored(run.id, number + 1), upload, 1, b"part")
    for number in range(objects):
        world.store.put(LAYOUT.stored(run.id, 7 + number), b"object")
    world.store._now = lambda: datetime.now(UTC)
    return run.id


def test_what_a_killed_run_left_is_cleared_by_the_next(world: World) -> None:
    """And named by `status` until then; not what is younger than a day, nor what is locked."""
    killed_run(world, at=now() - timedelta(days=2), uploads=2)
    (run,) = world.runs()
    assert (run.state, run.error) == ("failed", KILLED)
    status = backups_of([], world.runs())
    assert (status.run_failed, status.run_error) == (True, KILLED)
    backup = world.run(world.program(said(DUMP)))
    assert world.left() == (0, [LAYOUT.stored(backup.id, 1)], [backup])
    assert world.runs() == []


@pytest.mark.parametrize(
    ("age", "hold", "why"),
    [
        (timedelta(hours=20), Hold(), "it is younger than a day"),
        (timedelta(days=2), Hold(is_legal=True), "Object Lock keeps it"),
    ],
)
def test_objects_that_stay_are_named(world: World, age: timedelta, hold: Hold, why: str) -> None:
    """Uploads are aborted all the same."""
    id_ = killed_run(world, at=now() - age)
    left = leftovers_of(Place(world.catalog, now, lambda _: hold))
    assert left.kept == {LAYOUT.stored(id_, 7): why}
    clear(world.catalog, left)
    assert world.left() == (0, [LAYOUT.stored(id_, 7)], [])


def test_a_run_that_works_is_left_alone(world: World) -> None:
    """A second one is refused, and touches neither its uploads nor its objects."""
    killed_run(world, at=now() - timedelta(minutes=2))
    before = world.left()
    with pytest.raises(RecoveryError, match="another `backup run` of orders works on db1"):
        world.run(world.program(said(DUMP)))
    assert world.left() == before
    left = leftovers_of(Place(world.catalog, lambda: now() + timedelta(seconds=1)))
    assert (left.uploads, left.objects) == ([], [])


def test_what_is_registered_is_no_leftover(world: World) -> None:
    """However old it is, and even if its document cannot be read."""
    backup = world.run(world.program(said(DUMP)))
    later = now() + timedelta(days=99)
    assert leftovers_of(Place(world.catalog, lambda: later)).objects == []
    world.store.put(LAYOUT.backup(backup.id), b"rotten")
    assert leftovers_of(Place(world.catalog, lambda: later)).objects == []


def test_a_program_that_is_not_there_is_refused(world: World) -> None:
    """Before anything is run, and before anything is written."""
    before = world.store.calls["put"]
    with pytest.raises(SourceError, match="not an executable program"):
        world.run("/nowhere/program")
    assert world.store.calls["put"] == before


def test_a_dump_that_would_lose_something_is_not_made(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before the program is looked for, and before anything is written; a warning is only said."""
    before = world.store.calls["put"]
    floats = {"db": "d", "tab": "t", "name": "f", "type": "float"}
    world.answers = {
        dump_losses.DATABASES: [{"db": "SYS"}],
        dump_losses.COLUMNS: [{**floats, "expression": "", "extra": ""}],
    }
    asked = {"tool": "mysqldump", "program": Path("/nowhere/mysqldump"), "server": LOGIN}
    with pytest.raises(RecoveryError, match=r"mysqldump is not run: the dump .* SYS") as raised:
        world.run_as(**asked)
    assert raised.value.hint.startswith("give the database another name")
    assert "FLOAT in a table without a primary key: d.t" in capsys.readouterr().err
    del world.answers[dump_losses.DATABASES]
    with pytest.raises(SourceError, match="not an executable program"):
        world.run_as(**asked)
    assert world.store.calls["put"] == before


def test_status_tells_of_a_run_that_failed() -> None:
    """Until one has registered its backup; one of `backup add` shows nothing of it."""
    newer = replace(
        BACKUP, registered_at=BACKUP_RUN.at + timedelta(hours=1), id=f"{BACKUP.id[:-1]}d"
    )
    assert backups_of([newer], [BACKUP_RUN]).run_failed
    assert not backups_of([replace(newer, stored=STORED)], [BACKUP_RUN]).run_failed


def test_an_interrupted_run_leaves_nothing(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ctrl-C or SIGTERM while it sends: its program ends, its upload is aborted, it says so."""
    calls = [0]

    def interrupt(name: str) -> None:
        calls[0] += name == "upload_part"
        if calls[0] == 2:
            calls[0] += 1
            raise KeyboardInterrupt

    world.store.on_call = interrupt  # type: ignore[assignment]  # it fails no call by itself
    with pytest.raises(KeyboardInterrupt):
        world.run(world.program(said(DUMP)), no_compress=True)
    assert capsys.readouterr().err.endswith("interrupted: nothing was registered\n")
    assert world.left() == (0, [], [])
    (run,) = world.runs()
    assert (run.state, run.error) == ("failed", "it was interrupted")


def test_a_run_that_is_interrupted_while_it_registers_says_where_to_look(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    """It does not know whether the store has taken it."""
    calls = list[str]()

    def interrupt(name: str) -> None:
        calls.append(name)
        if name == "put" and "complete_upload" in calls[:-1]:
            world.store.on_call = lambda _: None
            raise KeyboardInterrupt

    world.store.on_call = interrupt  # type: ignore[assignment]  # it fails no call by itself
    with pytest.raises(KeyboardInterrupt):
        world.run(world.program(said(DUMP)), no_compress=True)
    assert "interrupted: `binlog2s3 backup list` shows whether" in capsys.readouterr().err


PLAIN = re.sub("SET @@GLOBAL.GTID_PURGED.*\n", "", said(DUMP))
"""Without GTIDs: its position means the server that it was made of."""


@pytest.mark.parametrize(
    ("dump", "servers", "error", "why"),
    [
        (said(DUMP), [replace(SOURCE, flavour="mariadb")], SourceError, "the server is mariadb"),
        (PLAIN, [OTHER, OTHER], RecoveryError, UUID_B),
        (PLAIN, [SOURCE, OTHER], RecoveryError, "another server answers there now"),
    ],
)
def test_a_dump_of_another_server_is_refused(
    world: World, dump: str, servers: list[ServerFacts], error: Any, why: str
) -> None:
    """Of the other flavour; of one whose position would mean another place; a fail-over."""
    world.servers = servers
    with pytest.raises(error, match=why):
        world.run(world.program(dump), server=LOGIN)
    assert world.left() == (0, [], [])


def test_the_server_is_asked_again_only_where_a_position_is_all(world: World) -> None:
    """GTIDs name transactions on every server."""
    world.answers = {
        "Variable_name IN": [{"Variable_name": "lower_case_table_names", "Value": "1"}]
    }
    world.servers = [SOURCE]
    backup = world.run(world.program(said(DUMP)), server=LOGIN)
    assert (backup.server_uuid, backup.settings) == (SOURCE.uuid, ("lower_case_table_names=1",))
    world.servers = [SOURCE, SOURCE]
    backup = world.run(world.program(PLAIN), server=LOGIN)
    assert (backup.gtid_set, backup.server_uuid) == (None, SOURCE.uuid)
    assert world.servers == []


def test_a_clock_that_is_ahead_makes_no_backup_newer(world: World) -> None:
    """The earlier of two clocks counts: otherwise no alert would tell that it is too old."""
    world.late = timedelta(days=3)
    backup = world.run(world.program(said(DUMP)))
    assert backup.stored is not None
    for at in (backup.taken_at, backup.registered_at, backup.stored.began_at):
        assert at < datetime.now(UTC) - timedelta(days=2)
    assert backup.id < f"{datetime.now(UTC) - timedelta(days=2):%Y%m%d}"


def test_objects_that_go_before_it_is_registered_are_missed(world: World) -> None:
    """A run that stood still for a day looks killed, and its objects like leftovers."""
    calls = [0]

    def take_away(name: str) -> None:
        calls[0] += name == "put"
        if name == "put" and calls[0] == 2:
            keys = [key for key in world.store.objects if key.startswith(LAYOUT.stored_backups)]
            world.store.delete(keys)

    world.store.on_call = take_away  # type: ignore[assignment]  # it fails no call by itself
    with pytest.raises(ArchiveError, match="is missing"):
        world.run(world.program(said(DUMP)))
    assert world.left() == (0, [], [])


@pytest.mark.parametrize(
    ("operation", "number", "minutes", "are_left"),
    [("put", 1, 0, 2), ("upload_part", 3, 10, 1), ("put", 2, 10, 2), ("put", 2, 3000, 1)],
    ids=["both begin at once", "it sends", "it registers", "it has stood still for days"],
)
def test_two_runs_at_once_harm_no_backup(
    world: World, operation: str, number: int, minutes: int, are_left: int
) -> None:
    """One stands still while it does this, and looks killed to another: what stays is whole."""
    command, calls = f"cat {world.folder / 'output'}", [0]
    (world.folder / "output").write_text(said(DUMP))

    def other(name: str) -> None:
        calls[0] += name == operation
        if name == operation and calls[0] == number:
            world.store.on_call = lambda _: None
            world.age(timedelta(minutes=minutes))
            thread = threading.Thread(target=world.run, args=[command])
            thread.start()
            thread.join()

    world.store.on_call = other  # type: ignore[assignment]  # it fails no call by itself
    with suppress(StoreError, ArchiveError):
        world.run(command, no_compress=True)
    uploads, keys, found = world.left()
    assert (uploads, len(found)) == (0, are_left)
    assert sorted(keys) == sorted(LAYOUT.stored(one.id, 1) for one in found)
    for backup in found:
        assert world.content(backup) == said(DUMP)


class Killed(BaseException):
    """What a test means by kill -9: nothing of the process does anything any more."""


CHANGES = ("put", "delete", "create_upload", "upload_part", "complete_upload")


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("at", range(1, 13))
def test_a_run_that_is_killed_at_any_step(world: World, at: int, when: Any) -> None:
    """Whatever it did last: what is registered is whole, and the next run clears the rest.

    It puts its own object, sends eight parts of an upload, completes it, registers, forgets.
    """
    (world.folder / "output").write_text(said(DUMP))
    command, done = f"cat {world.folder / 'output'}", [0]

    def die(name: str) -> Any:
        done[0] += name in CHANGES
        if done[0] > at or (done[0] == at and when == "before"):
            raise Killed
        return ("after", Killed()) if done[0] == at else None

    world.store.on_call = die
    with pytest.raises(Killed):
        world.run(command, no_compress=True)
    world.store.on_call = lambda _: None
    _, _, found = world.left()
    for backup in found:
        assert world.content(backup) == said(DUMP)
    world.age(timedelta(days=2))
    later = world.run(command)
    uploads, keys, both = world.left()
    assert (uploads, later in both, world.runs()) == (0, True, [])
    assert sorted(keys) == sorted(LAYOUT.stored(one.id, 1) for one in both)
    assert len(both) == len(found) + 1
