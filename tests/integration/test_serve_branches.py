"""Real replicas of `binlog2s3 serve` when the source was put back to a snapshot.

A replica that follows by file and position has no GTIDs that show which history it has. The two
branches write transactions of equal size under the same names: offsets meet.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.mysql import MysqlServer
from lab.s3 import MinioServer
from tests.waiting import wait_until
from tests.world.pair import Pair
from tests.world.servers import (
    content,
    forget,
    image_of,
    in_its_words,
    on_disk,
    put_back,
    replica_status,
    reset,
    two,
)
from tests.world.serving import Scene

PLAIN = ("--gtid-mode=OFF", "--enforce-gtid-consistency=OFF")


@pytest.fixture(params=["mysql", "mysql-without-gtids", "mariadb"])
def scene(
    request: pytest.FixtureRequest, minio: MinioServer, disk_tmp_path: Path
) -> Iterator[Scene]:
    flavour, _, without = request.param.partition("-")
    binaries = request.getfixturevalue(f"{flavour}_binaries")
    with two(binaries, PLAIN if without else ()) as (source, target):
        scene = Scene(Pair(source, target), minio, minio.make_bucket(), disk_tmp_path)
        with scene.ends:
            scene.serve.start()
            yield scene


def insert(scene: Scene, letter: str, count: int) -> None:
    """So many transactions, each of the same size."""
    statement = f"INSERT INTO d.t (x) VALUES (REPEAT('{letter}', 100))"
    scene.source.query(*[statement] * count)


def has_gtids(scene: Scene) -> bool:
    """Whether its transactions have GTIDs that a replica can follow."""
    return not scene.pair.is_mysql or "OFF" not in str(scene.source.query("SELECT @@gtid_mode"))


def begin(scene: Scene, at: tuple[str, int]) -> None:
    """The target is a replica by file and position."""
    if scene.pair.is_mysql and has_gtids(scene):
        scene.target.query("SET GLOBAL gtid_mode = ON_PERMISSIVE")
    scene.replicate(at)


def empty(scene: Scene) -> None:
    """The target has nothing and follows nobody."""
    forget(scene.target)
    scene.target.query("DROP DATABASE d")
    reset(scene.target)


def place(scene: Scene) -> tuple[str, int]:
    """Up to where the replica has read."""
    found = replica_status(scene.target)
    return str(found["Source_Log_File"]), int(found["Read_Source_Log_Pos"])


def letters(server: MysqlServer) -> str:
    """The rows by their content, in the order of their keys."""
    return "".join(row[0] for row in server.query("SELECT LEFT(x, 1) FROM d.t ORDER BY id"))


def refused(scene: Scene) -> str:
    """What the replica says once it was refused."""

    def said() -> str:
        found = replica_status(scene.target)
        return str(found["Last_IO_Error"]) if found["Last_IO_Errno"] in (1236, 13114) else ""

    return wait_until(said, what="error 1236")


def threads(scene: Scene, what: str) -> None:
    """START or STOP the thread that receives."""
    scene.target.query(in_its_words(scene.target, f"{what} REPLICA IO_THREAD"))


def current(scene: Scene) -> str:
    """The last binlog that is served."""
    return str(scene.serve.status()["last"])


def put_back_to_a_snapshot(scene: Scene, place: Path, *, follows: bool = False) -> None:
    """The source loses what it writes after a crash, and writes other transactions.

    `follows`: the replica gets what is lost, and is stopped then.
    """
    scene.source.kill()
    image = image_of(scene.source, place / "image")
    scene.source.start()
    insert(scene, "d", 4)
    closed = scene.pair.names[-1]
    scene.source.query("FLUSH BINARY LOGS")
    insert(scene, "d", 4)
    scene.stream.wait_for_event("binlog archived", binlog=closed)
    if follows:
        scene.wait_until_equal()
        threads(scene, "STOP")
    newest = scene.pair.names[-1]
    wait_until(lambda: current(scene).endswith(newest), what="the binlog that is lost is served")
    served = current(scene)
    scene.source.kill()
    put_back(scene.source, image)
    scene.source.start()
    insert(scene, "o", 9)
    scene.source.query("FLUSH BINARY LOGS")
    insert(scene, "o", 9)
    name = max(on_disk(scene.source))
    wait_until(
        lambda: current(scene) != served and current(scene).endswith(name),
        300,
        "the other branch is served",
        interval=0.5,
    )


@pytest.mark.parametrize("scene", ["mysql-without-gtids"], indirect=True)
def test_a_replica_of_a_dead_branch_gets_nothing_of_the_other(
    scene: Scene, disk_tmp_path: Path
) -> None:
    """Error 1236 that says so, by its position in both; a new replica gets the current history."""
    insert(scene, "c", 3)
    scene.source.query("FLUSH BINARY LOGS")
    insert(scene, "c", 3)
    first = scene.pair.names[0]
    begin(scene, (first, 4))
    scene.wait_until_equal()
    put_back_to_a_snapshot(scene, disk_tmp_path, follows=True)
    where, dead = place(scene), content(scene.target)
    assert letters(scene.target) == "c" * 6 + "d" * 8
    assert where[0] in on_disk(scene.source), "both have such a binlog"

    threads(scene, "START")
    text = refused(scene)
    assert "dead branch" in text
    assert content(scene.target) == dead

    empty(scene)
    begin(scene, (first, 4))
    scene.wait_until_equal()
    insert(scene, "o", 2)
    scene.wait_until_equal()
    for _ in range(2):  # it asks by the name that it was told
        threads(scene, "STOP")
        insert(scene, "o", 3)
        threads(scene, "START")
        scene.wait_until_equal()
    assert letters(scene.target) == letters(scene.source) == "c" * 6 + "o" * 26


@pytest.mark.parametrize(
    ("scene", "by"),
    [
        ("mysql", "gtids"),
        ("mariadb", "position"),
    ],
    indirect=["scene"],
)
def test_a_slow_replica_goes_on_where_both_branches_are_the_same(
    scene: Scene, disk_tmp_path: Path, by: str
) -> None:
    """It had stopped before the snapshot: it gets the rest of what both have, and the new one."""
    insert(scene, "c", 3)
    scene.source.query("FLUSH BINARY LOGS")
    insert(scene, "c", 1)
    if by == "gtids":
        scene.replicate()
    else:
        begin(scene, (scene.pair.names[0], 4))
    scene.wait_until_equal()
    threads(scene, "STOP")
    insert(scene, "c", 2)
    put_back_to_a_snapshot(scene, disk_tmp_path)
    assert letters(scene.target) == "c" * 4
    threads(scene, "START")
    scene.wait_until_equal()
    assert letters(scene.target) == letters(scene.source) == "c" * 6 + "o" * 18
