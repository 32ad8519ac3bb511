"""Each cell of the compatibility matrix in docs/compatibility.md: one version, one ability.

`make compat` runs them and writes what came out. A cell that a version or a place cannot have is
skipped with its reason, which the matrix shows as "not run". Where the program refuses a version,
the test holds it to its message and records that.
"""

import re

import pytest

from lab.mysql import MysqlServer
from tests.compat.place import DATABASE, Lab, Place
from tests.integration.bucket import Bucket
from tests.world.commands import Recovery, read_only
from tests.world.pair import Pair
from tests.world.servers import content, masked, on_disk
from tests.world.serving import Scene


def lab_of(place: Place) -> Lab:
    """The lab's server and store, or the cell is not run."""
    if place.lab is None:
        pytest.skip("it would change more of a server than a database of its own")
    return place.lab


def equal_bytes(place: Place) -> None:
    """What is in the bucket are the server's files, as far as the lab can look into both."""
    if place.lab is not None:
        theirs = on_disk(place.lab.server)
        ours = Bucket(place.lab.store, place.lab.bucket).binlogs()
        assert ours.keys() == theirs.keys()
        for name, body in ours.items():
            assert masked(body) == theirs[name][: len(body)], name


def written(place: Place) -> None:
    """Stream a table's creation and changes in two binlogs, and end."""
    with place.stream() as stream:
        stream.wait_for_event("streaming")
        place.create()
        place.write("first")
        place.rotate()
        place.write("second")
        place.wait_durable(stream)
        equal_bytes(place)
        assert stream.terminate() == 0


def test_stream(place: Place) -> None:
    """What is committed is in the bucket, over a rotation, byte for byte."""
    written(place)


def test_resume(place: Place) -> None:
    """After kill -9 it goes on where it was; what was written meanwhile comes too."""
    with place.stream() as stream:
        stream.wait_for_event("streaming")
        place.create()
        place.write("before")
        place.wait_durable(stream)
        stream.kill()
    place.write("meanwhile")
    place.rotate()
    place.write("meanwhile, too")
    with place.stream(2) as stream:
        stream.wait_for_event("streaming")
        place.write("after")
        place.wait_durable(stream)
        equal_bytes(place)
        assert stream.terminate() == 0
    (only,) = place.lineages()
    assert only["missing"] == []


def test_lineage_after_reset(place: Place) -> None:
    """RESET while it streams: the new history is a new lineage, and the old one stays."""
    lab = lab_of(place)
    with place.stream() as stream:
        stream.wait_for_event("streaming")
        place.create()
        place.write("before")
        place.rotate()
        place.write("before, too")
        place.wait_durable(stream)
        new = not place.is_mariadb and lab.server.binaries.version >= "Ver 8.2"
        place.server.query("RESET BINARY LOGS AND GTIDS" if new else "RESET MASTER")
        for number in range(3):
            place.write(f"after {number}")
            place.rotate()
        place.wait_durable(stream)
        assert stream.terminate() == 0
    old, later = place.lineages()
    assert later["parent"] is not None
    assert old["binlogs"]
    held = Bucket(lab.store, lab.bucket)
    lines = {key.split("/")[3] for key in held.keys("pre/archive/")}
    assert {old["lineage"], later["lineage"]} <= lines


def test_serve(place: Place, another: MysqlServer) -> None:
    """A replica of the same version follows the bucket, over kill -9 of streamer and `serve`."""
    lab = lab_of(place)
    scene = Scene(Pair(lab.server, another), lab.store, lab.bucket, place.directory / "scene")
    with scene.ends:
        scene.serve.start()
        scene.write(20)
        scene.source.query("FLUSH BINARY LOGS")
        scene.write(20)
        scene.replicate()
        scene.wait_until_equal()
        scene.survives_kills()


def test_pitr(place: Place, another: MysqlServer) -> None:
    """An empty server of the same version becomes what the source is."""
    lab = lab_of(place)
    written(place)
    recovery = Recovery(lab.store, lab.bucket, read_only(lab.store))
    first = place.server.binlogs()[0][0]
    begin = [f"--from-binlog={first}", "--from-position=4"] if place.is_mariadb else []
    recovery.to(another, "--latest", "--stop-target-threads", *begin)
    assert content(another) == content(lab.server)


def test_find(place: Place) -> None:
    """Every transaction of the table, its creation too, and nothing else."""
    written(place)
    found = place.document("find", f"--table={place.table}", "--order=oldest")["transactions"]
    others = len(found) - 2 - 2 * 7  # another cell's DROP and CREATE of the database
    assert others == 0 if place.lab is not None else others >= 0
    inserted = place.document("find", f"--table={place.table}", "--type=insert")["transactions"]
    assert len(inserted) == 2 * 5
    assert place.document("find", f"--table={DATABASE}_other.t")["transactions"] == []


def test_verify(place: Place) -> None:
    """Every byte is looked at, and compared with what the server has."""
    written(place)
    document = place.document("verify", "--deep", "--against-source", server=True)
    (source,) = document["sources"]
    assert source["defects"] == []
    assert source["against_source"]["compared"] >= 2


def test_check(place: Place) -> None:
    """Nothing fails, mysqlbinlog could read the newest binlog, and PROCESS only if it is needed."""
    document = place.document("check", server=True)
    rows = {(row["part"], row["name"]): row for row in document["parts"]}
    assert rows["server", "reachable"]["result"] == "ok"
    assert rows["mysqlbinlog", "connection"]["result"] == "ok"
    numbers = tuple(int(one) for one in re.findall(r"\d+", place.version)[:3])
    stamps_commits = not place.is_mariadb and numbers >= (8, 0, 2)
    assert (("privileges", "PROCESS") in rows) == (not stamps_commits)
