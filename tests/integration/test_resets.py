"""Recoveries across a RESET: the same server, its names and GTIDs used again, two histories.

Each base backup is brought along its own history, or is refused with options that lead there when
they are followed literally. What comes out is held against what the source itself had.
"""

import json
import re
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pytest

from lab.disk import temporary_directory
from lab.get import ServerBinaries
from lab.mysql import MysqlServer, server_of
from lab.s3 import MinioServer
from tests import command
from tests.integration.bucket import Bucket
from tests.integration.stream_process import StreamProcess
from tests.waiting import PATIENCE, wait_until
from tests.world.archive import wait_durable
from tests.world.commands import Recovery, read_only, where
from tests.world.servers import (
    RELAXED,
    State,
    differences,
    dump_of,
    flush,
    locked,
    of_image,
    position_of,
    reset,
    restored,
    state_of,
)

Target = Callable[[str], MysqlServer]


@dataclass(frozen=True, kw_only=True)
class World:
    """Two histories of a server: `old` and `new` are their lineages, "a" and "b" dumps of them."""

    source: MysqlServer
    store: MinioServer
    bucket: str
    folder: Path
    old: str
    new: str
    places: dict[str, tuple[str, int]]
    states: dict[str, State]
    at: str

    def dump(self, name: str) -> str:
        """The option that gives this dump."""
        return f"--from-backup={self.folder / name}.sql"

    def place(self, name: str) -> list[str]:
        """The options that give its place by hand."""
        binlog, position = self.places[name]
        return [f"--from-binlog={binlog}", f"--from-position={position}"]

    def check(self, server: MysqlServer, state: str) -> None:
        """It holds what the source held then: tables and GTIDs."""
        assert differences(state_of(server), self.states[state]) == []


def insert(server: MysqlServer, text: str, count: int) -> None:
    """In turns into both tables, and over what came before."""
    for number in range(count):
        table = "tu"[number % 2]
        server.query(
            f"INSERT INTO shop.{table} (v) VALUES ('{text} {number}')",
            f"UPDATE shop.{table} SET v = CONCAT(v, '{text[0]}') ORDER BY n DESC LIMIT 1",
        )


def quiet(server: MysqlServer) -> str:
    """A time with a second without commits before and behind it."""

    def now() -> int:
        return int(server.query("SELECT UNIX_TIMESTAMP()")[0][0])

    begin = now()
    wait_until(lambda: now() >= begin + 4, what="four seconds")
    return datetime.fromtimestamp(begin + 2, UTC).isoformat()


@pytest.fixture(scope="module", params=["gtid", "no-gtid", "mariadb"])
def world(request: pytest.FixtureRequest, minio: MinioServer) -> Iterator[World]:
    """Dump a, a RESET, dump b with fewer GTIDs than the old history had, and many more then."""
    flavour = "mariadb" if request.param == "mariadb" else "mysql"
    binaries: ServerBinaries = request.getfixturevalue(f"{flavour}_binaries")
    with temporary_directory() as folder:
        with server_of(binaries, folder / "source", gtid=request.param != "no-gtid") as source:
            made = lived(source, minio, folder, is_gtid=request.param == "gtid")
        yield made


def lived(source: MysqlServer, minio: MinioServer, folder: Path, *, is_gtid: bool) -> World:
    bucket = minio.make_bucket()
    columns = "(n INT AUTO_INCREMENT PRIMARY KEY, v VARCHAR(200))"
    source.query("CREATE DATABASE shop", *[f"CREATE TABLE shop.{t} {columns}" for t in "tu"])
    store = Bucket(minio, bucket)
    places, states, options = {}, {}, ["--set-gtid-purged=ON"] if is_gtid else []

    def dump(of: str) -> None:
        places[of] = position_of(source)
        dump_of(source, folder / f"{of}.sql", *options)

    with StreamProcess(folder / "stream", source, minio, bucket) as stream:
        insert(source, "old", 10)
        flush(source)
        insert(source, "old", 4)
        dump("a")
        insert(source, "old", 6)
        states["then"] = state_of(source)
        at = quiet(source)
        insert(source, "old", 6)
        states["old"] = state_of(source)
        wait_durable(stream, store, source)
        reset(source)
        insert(source, "newer", 10)
        flush(source)
        insert(source, "newer", 8)
        dump("b")
        insert(source, "newer", 20)
        flush(source)
        insert(source, "newer", 4)
        states["new"] = state_of(source)
        wait_durable(stream, store, source)
        assert stream.terminate() == 0
    keys = [key for key in list(store.keys()) if key.endswith("/lineage.json")]
    old, new = sorted(json.loads(store.get(key))["lineage"] for key in keys)
    return World(
        source=source, store=minio, bucket=bucket, folder=folder, old=old, new=new,
        places=places, states=states, at=at,
    )  # fmt: skip


@pytest.fixture(scope="module")
def images(world: World) -> dict[str, Path]:
    """Data directories of the dumps that were restored."""
    return {}


@pytest.fixture
def target(world: World, images: dict[str, Path], disk_tmp_path: Path) -> Iterator[Target]:
    """Servers that hold a dump, each restored once."""
    with ExitStack() as stack:
        count = 0

        def start(of: str) -> MysqlServer:
            nonlocal count
            count += 1
            source = world.source
            maria = source.binaries.flavour == "mariadb"
            gtid = maria or bool(world.states["old"]["gtids"])
            if of not in images:
                place = world.folder / f"r-{of}"
                with server_of(
                    source.binaries, place, server_id=3, gtid=gtid, options=RELAXED
                ) as one:
                    images[of] = restored(one, world.folder / f"{of}.sql", world.folder / f"i-{of}")
            place, password = disk_tmp_path / f"target-{count}", source.password
            return stack.enter_context(
                of_image(source.binaries, place, images[of], 70 + count, password, gtid=gtid)
            )

        yield start


def lead(said: str, lineage: str) -> list[str]:
    """The options by which a hint leads along one of the histories, as it has them."""
    hint = said.partition("hint: ")[2]
    ways = re.split(r", or |; ", hint)
    found = [re.findall(r"(--(?:from-)?lineage) (\S+)", way) for way in ways]
    (chosen,) = [way for way in found if way and way[-1][1] == lineage]
    return [f"{option}={value}" for option, value in chosen]


def verified(world: World, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return command.run(
        *("verify", "--source=test", *where(world.store, world.bucket), *arguments),
        **read_only(world.store),
    )


@pytest.mark.gate("gtid")
def test_each_backup_is_brought_along_its_own_history(world: World, target: Target) -> None:
    """By verify and pitr: alone, to a time, with each option, each hint followed literally."""
    recovery = Recovery(world.store, world.bucket, read_only(world.store))
    # the backup from behind the RESET
    done = verified(world, world.dump("b"))
    assert done.returncode == 0, done.stdout
    server = target("b")
    recovery.to(server, world.dump("b"), "--latest")
    world.check(server, "new")
    # the one from before it, whose numbers were reached
    done = verified(world, world.dump("a"))
    assert done.returncode == 7, done.stdout
    assert world.old in done.stdout
    done = verified(world, world.dump("a"), f"--lineage={world.old}")
    assert done.returncode == 0, done.stdout
    server = target("a")
    said = recovery.refused(server, world.dump("a"), "--latest")
    assert lead(said, world.old) == [f"--lineage={world.old}"]
    said = recovery.refused(server, world.dump("a"), f"--to-time={world.at}")
    assert lead(said, world.old) == [f"--lineage={world.old}"]
    recovery.to(server, world.dump("a"), f"--to-time={world.at}", f"--lineage={world.old}")
    world.check(server, "then")
    # the wrong history is never applied
    recovery.refused(server, world.dump("a"), f"--lineage={world.new}", "--latest")
    recovery.refused(server, world.dump("a"), f"--from-lineage={world.new}", "--latest")
    world.check(server, "then")
    options = [f"--lineage={world.old}", f"--from-lineage={world.old}"]
    if world.states["old"]["gtids"]:  # else what was applied is known to nobody
        recovery.to(server, world.dump("a"), *options, "--latest")
        world.check(server, "old")
    server = target("a")
    recovery.to(server, world.dump("a"), *options, "--latest")
    world.check(server, "old")


@pytest.mark.parametrize("world", ["gtid"], indirect=True, scope="module")
def test_a_killed_run_is_resumed_by_the_same_command(world: World, target: Target) -> None:
    """It stands in the middle when it is killed; the rest is of the same history."""
    recovery = Recovery(world.store, world.bucket, read_only(world.store))
    server = target("a")
    words = [world.dump("a"), "--latest", f"--lineage={world.old}"]
    before = state_of(server)["tables"]["shop.t"]
    with (
        locked(server, "shop.u") as is_awaited,
        recovery.started(server, "--yes", *words) as process,
    ):

        def stands() -> bool:
            assert process.poll() is None, process.returncode
            return is_awaited() and state_of_table(server) != before[0]

        wait_until(stands, what="a run in its middle")
        process.kill()
        process.wait(PATIENCE)
    recovery.to(server, *words)
    world.check(server, "old")


def state_of_table(server: MysqlServer) -> object:
    return server.query("CHECKSUM TABLE shop.t")[0][1]
