"""Recoveries of a real MySQL with GTIDs, held against what replicas of its source hold.

The hosts are lost: a source, in the middle of whose life a replica took over that lacked its last
transactions, and the replica. Their servers' answers were collected before, see tests/world/lost.
"""

import os
import random
import secrets
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from shlex import quote

import pytest

from lab.get import ServerBinaries
from lab.mysql import MysqlServer
from lab.s3 import MinioServer
from tests.waiting import PATIENCE, wait_until
from tests.world.commands import Recovery, read_only
from tests.world.lost import Target, World, build, shared
from tests.world.servers import differences, executed, fetch_all, has, locked, state_of

Fresh = Callable[..., MysqlServer]
KILLS = 5


@pytest.fixture(scope="session")
def worlds(
    mysql_binaries: ServerBinaries,
    minio_binary: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Callable[[str], tuple[World, MinioServer]]]:
    """A world, "small" or "whole", and a store that has what the streamer left there.

    Made once, also where several processes run tests; PITR_SEED makes the same one again.
    """
    with ExitStack() as stack:

        @cache
        def found(kind: str) -> tuple[World, MinioServer]:
            def make(folder: Path) -> None:
                seed = int(os.environ.get("PITR_SEED") or secrets.randbelow(1_000_000))
                build(folder, mysql_binaries, minio_binary, seed=seed, small=kind == "small")

            folder = stack.enter_context(shared(tmp_path_factory, f"pitr-world-{kind}", make))
            world = World.load(folder)
            return world, stack.enter_context(world.store(minio_binary))

        yield found


@pytest.fixture
def lost(
    request: pytest.FixtureRequest, worlds: Callable[[str], tuple[World, MinioServer]]
) -> tuple[World, MinioServer]:
    return worlds(getattr(request, "param", "small"))


@pytest.fixture
def world(lost: tuple[World, MinioServer]) -> World:
    return lost[0]


@pytest.fixture
def command(lost: tuple[World, MinioServer]) -> Recovery:
    """The command, with credentials that can only read."""
    world, store = lost
    sys.stdout.write(f"PITR_SEED={world.seed}\n")
    return Recovery(store, world.bucket, read_only(store))


@pytest.fixture
def fresh(world: World, mysql_binaries: ServerBinaries, disk_tmp_path: Path) -> Iterator[Fresh]:
    """Servers restored from the dump; they are ended in the end."""
    count = 0
    with ExitStack() as stack:

        def start() -> MysqlServer:
            nonlocal count
            count += 1
            made = world.restored(mysql_binaries, disk_tmp_path / f"target-{count}", 100 + count)
            return stack.enter_context(made)

        yield start


def check(server: MysqlServer, world: World, target: Target) -> None:
    wrong = differences(state_of(server), world.state(target))
    assert wrong == [], f"{target}: {wrong}"


def one_of(world: World, kind: str) -> Target:
    return next(target for target in world.targets if target.kind == kind)


@pytest.mark.gate("small")
@pytest.mark.parametrize("lost", ["small", "whole"], indirect=True)
def test_fifty_places(world: World, command: Recovery, fresh: Fresh) -> None:
    """Times, GTIDs, positions, before a DROP, the newest: tables and GTIDs are the replica's.

    One server goes from each place to the next, and each time on from where it stands. In a small
    world ten places.
    """
    server = fresh()
    for target in (one for one in world.targets if not one.skipped):
        document = command.to(server, *target.arguments)
        check(server, world, target)
        assert document["result"] is not None, target


def test_in_one_go(world: World, command: Recovery, fresh: Fresh) -> None:
    """From the dump straight to it; a dry run changes nothing, and shows the DROP it leaves out."""
    server = fresh()
    before = state_of(server)
    target = one_of(world, "before-drop")
    done = command.run(server, "--dry-run", *target.arguments)
    assert done.status == 0, done.stderr
    assert world.history[target.applied].gtid in done.stdout
    assert "DROP TABLE" in done.stdout
    assert differences(state_of(server), before) == []
    command.to(server, *target.arguments)
    check(server, world, target)


@pytest.mark.parametrize("lost", ["whole"], indirect=True)
def test_transactions_that_are_skipped(world: World, command: Recovery, fresh: Fresh) -> None:
    """All but these; on to a later place it leaves one more out.

    The same command again has nothing to do: so it can be run again after a kill -9.
    """
    server = fresh()
    first, second = [one for one in world.targets if one.skipped]
    for _ in range(2):
        command.to(server, *first.arguments)
        check(server, world, first)
    again = f"--skip-gtid={first.skipped[0]}"
    command.to(server, *(word for word in second.arguments if word != again))
    check(server, world, second)


def test_what_is_skipped_is_not_fetched_again(
    world: World, command: Recovery, fresh: Fresh
) -> None:
    """A target that replicates from a server that has it; with --skip-leaves-hole it comes back."""
    number = world.first_alone
    left_out = world.history[number].gtid
    last = world.history[number + 20].gtid
    full = fresh()
    command.to(full, f"--to-gtid={last}")
    whole = state_of(full)
    for hole in (False, True):
        server = fresh()
        words = ["--skip-leaves-hole"] if hole else []
        command.to(server, f"--to-gtid={last}", f"--skip-gtid={left_out}", *words)
        assert has(server, left_out) is not hole
        before = state_of(server)
        wrong = [text.partition(":")[0] for text in differences(before, whole)]
        expected = ["tables shop.skippable"]
        assert [text for text in wrong if text.startswith("table")] == expected
        full.query("CREATE DATABASE sentinel")
        fetch_all(server, full)
        server.query("START REPLICA SQL_THREAD")
        wanted = executed(full)
        wait_until(
            lambda server=server, wanted=wanted: has(server, wanted), what="the target has followed"
        )
        found = state_of(server)["tables"]["shop.skippable"]
        assert (found == whole["tables"]["shop.skippable"]) is hole
        full.query("DROP DATABASE sentinel")


def test_killed_again_and_again(world: World, command: Recovery, fresh: Fresh) -> None:
    """kill -9 at some moments of the apply; run again it ends where it should.

    First it stands still when it is killed, so that it is in the middle; then at random moments.
    """
    server = fresh()
    chance = random.Random(world.seed)
    target = one_of(world, "latest")
    there, end = world.base, len(world.history)
    still = 1  # the server's own applier goes on with what it has, until the next run stops it
    for number in range(KILLS):
        with ExitStack() as stack:
            if number < still:
                lock = locked(server, not_written_next(world, there))
                is_awaited, goal = stack.enter_context(lock), there + 1
            else:
                most = there + max((end - there) // (KILLS - number), 2)
                is_awaited, goal = (lambda: True), chance.randrange(there + 1, most)
            process = stack.enter_context(
                command.started(server, "--yes", *target.arguments, stderr=subprocess.PIPE)
            )

            def came(
                process: "subprocess.Popen[bytes]" = process,
                is_awaited: Callable[[], bool] = is_awaited,
                goal: int = goal,
            ) -> bool:
                if process.poll() not in (None, 0):
                    raise AssertionError(process.communicate()[1])
                return process.poll() == 0 or (is_awaited() and world.count(server) >= goal)

            wait_until(came, 120, f"{goal} transactions", interval=0.005)
            process.kill()
            process.wait(PATIENCE)
            now = world.count(server)
        assert number >= still or there < now < end
        there = now
    command.to(server, *target.arguments)
    check(server, world, target)


def not_written_next(world: World, applied: int) -> str:
    """A table that the next transaction leaves alone, and one of those behind it writes."""
    is_next = world.history[applied].tables == ("skippable",)
    return "shop.legacy" if is_next else "shop.skippable"


def test_interrupted_in_the_middle(world: World, command: Recovery, fresh: Fresh) -> None:
    """Exit 130, with a word on how far it came; the same command goes on from there."""
    server, target = fresh(), one_of(world, "latest")
    with ExitStack() as lock:
        is_awaited = lock.enter_context(locked(server, not_written_next(world, world.base)))
        with command.started(server, "--yes", *target.arguments, stderr=subprocess.PIPE) as process:
            wait_until(
                lambda: is_awaited() and world.count(server) > world.base, 120, "a transaction"
            )
            process.send_signal(signal.SIGINT)
            lock.close()
            _, said = process.communicate(timeout=120)
    assert process.returncode == 130, said
    assert b"interrupted; " in said
    assert b"run the same command again: it continues where the target is now" in said
    assert b"Traceback" not in said
    command.to(server, *target.arguments)
    check(server, world, target)


def test_interrupted_while_the_channel_is_made(command: Recovery, fresh: Fresh) -> None:
    """Where it is tried whether it can be made, and where it is made: exit 130, nothing is left."""

    def interrupted(times: int, which: signal.Signals) -> bool:
        """Whether it was; where it has ended before we saw the files, on another server again."""
        server = fresh()
        folder = Path(server.query("SELECT @@datadir")[0][0])

        def is_there() -> bool:
            return any(folder.glob("*-binlog2s3.*"))

        with command.started(server, "--yes", "--latest") as process:

            def seen(*, there: bool) -> bool:
                return process.poll() is not None or is_there() is there

            for time in range(times):
                wait_until(lambda: seen(there=True), what="a file of the channel", interval=0.0005)
                if time + 1 < times:
                    wait_until(lambda: seen(there=False), what="it is gone", interval=0.0005)
            process.send_signal(which)
            status = process.wait(PATIENCE)
        assert status in (0, 130)
        assert not is_there()
        assert not server.query("SHOW REPLICA STATUS")
        return status == 130

    for chosen in ((1, signal.SIGINT), (2, signal.SIGTERM)):
        wait_until(lambda chosen=chosen: interrupted(*chosen), 300, "a signal before its end")


def test_files_give_the_same(world: World, command: Recovery, fresh: Fresh, tmp_path: Path) -> None:
    """--output-dir, as its README says to apply it: the database of the apply."""
    target = one_of(world, "before-drop")
    start = f"--from-gtid-set={world.base_gtids}"
    out = tmp_path / "out"
    done = command.run(None, f"--output-dir={out}", start, *target.arguments)
    assert done.status == 0, done.stderr
    server = fresh()
    run_readme(out, server)
    check(server, world, target)


def run_readme(out: Path, server: MysqlServer) -> None:
    """Do what the directory's README.txt says, word by word, at this server."""
    lines = (out / "README.txt").read_text().splitlines()
    begin = next(n for n, line in enumerate(lines) if line.strip().startswith("cd "))
    end = next(n for n, line in enumerate(lines) if line.strip().startswith("| mysql"))
    script = "\n".join(line.strip() for line in lines[begin : end + 1])
    tools = server.binaries
    script = script.replace("UTC mysqlbinlog ", f"UTC {quote(str(tools.binlog))} ")
    client = f"| {quote(str(tools.client))} --no-defaults --user=root"
    script = script.replace("| mysql ", f"{client} --socket={quote(str(server.socket))} ")
    subprocess.run(["bash", "-e", "-c", script], check=True, timeout=300)


def test_a_dead_branch(world: World, command: Recovery, fresh: Fresh) -> None:
    """What the replica lacked: refused by itself, had with --lineage, and then no way back."""
    server = fresh()
    last = world.lost[-1]
    said = command.refused(server, f"--to-gtid={last}")
    assert world.lineages[0] in said
    assert executed(server) == world.base_gtids
    command.to(server, f"--to-gtid={last}", f"--lineage={world.lineages[0]}")
    ((lost,),) = server.query("SELECT COUNT(*) FROM shop.skippable WHERE writer = -1")
    assert lost == len(world.lost)
    before = executed(server)
    said = command.refused(server, "--latest")
    assert world.lineages[0] in said
    assert executed(server) == before
