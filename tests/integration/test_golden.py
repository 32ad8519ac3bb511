"""Archives that released versions wrote: every later version restores from them, and goes on."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from lab.get import ServerBinaries
from lab.mysql import MysqlServer
from lab.s3 import MinioServer
from tests.golden import bucket as golden_bucket
from tests.golden.bucket import VERSIONS, Golden
from tests.integration.bucket import Bucket
from tests.integration.stream_process import StreamProcess
from tests.waiting import wait_until
from tests.world.servers import load, state_of

pytestmark = pytest.mark.gate


@pytest.fixture(params=VERSIONS)
def golden(request: pytest.FixtureRequest, minio: MinioServer, bucket: str) -> Golden:
    return golden_bucket.put(request.param, minio, bucket)


@pytest.fixture
def target(mysql_binaries: ServerBinaries, disk_tmp_path: Path) -> Iterator[MysqlServer]:
    """An empty server to recover into."""
    options = ("--event-scheduler=OFF",)
    with MysqlServer(
        mysql_binaries, disk_tmp_path / "target", server_id=77, options=options
    ) as server:
        server.query("RESET BINARY LOGS AND GTIDS")
        yield server


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_golden_bucket_is_restored(golden: Golden, target: MysqlServer, when: str) -> None:
    """From a dump to the newest of its history, before the RESET and after it."""
    dump = golden.folder / f"{when}.sql"
    load(target, dump)
    lineage = golden.lineages[0 if when == "before" else 1]
    password = target.directory / "no-password"
    password.touch(0o600)
    golden.call(
        "pitr",
        f"--target-socket={target.socket}",
        "--target-user=root",
        f"--target-password-file={password}",
        f"--from-backup={dump}",
        "--accept-backup",  # of one database, which is all that this source had
        f"--lineage={lineage}",
        "--latest",
        "--yes",
    )
    found = state_of(target)
    # accounts are not in the dumps
    assert {name: found[name] for name in golden.truth[when]} == golden.truth[when]
    assert found.keys() - golden.truth[when].keys() <= {"accounts"}


class SourceAgain(MysqlServer):
    """The server that the golden bucket was streamed from: its uuid, its binlogs, no data."""

    golden: Golden

    def _copy_template(self) -> None:
        super()._copy_template()
        uuid = self.golden.truth["server_uuid"]
        (self.datadir / "auto.cnf").write_text(f"[auto]\nserver-uuid={uuid}\n")
        names = []
        for name, data in current_binlogs(self.golden).items():
            (self.datadir / name).write_bytes(data)
            names.append(f"./{name}\n")
        (self.datadir / "mysql-bin.index").write_text("".join(names))


def current_binlogs(golden: Golden) -> dict[str, bytes]:
    """The binlogs of the current lineage: those that are archived, and the open one's chunks."""
    lineage, found = golden.lineages[-1], dict[str, bytes]()
    for key, data in sorted(golden.objects.items()):
        if f"archive/test/{lineage}/binlogs/" in key:
            found[key.rpartition("/")[2]] = data
        elif f"live/test/{lineage}/" in key:
            name = key.split("/")[-2]
            found[name] = found.get(name, b"") + data
    return found


def test_a_golden_bucket_goes_on(
    golden: Golden, minio: MinioServer, mysql_binaries: ServerBinaries, disk_tmp_path: Path
) -> None:
    """In the same lineage, with an empty spool; what was open is archived, and nothing changed."""
    server = SourceAgain(mysql_binaries, disk_tmp_path / "source")
    server.golden = golden
    with ExitStack() as stack:
        stack.enter_context(server)
        server.query("CREATE DATABASE later", "CREATE TABLE later.t (a INT PRIMARY KEY)")
        server.query("INSERT INTO later.t VALUES (1)", "FLUSH BINARY LOGS")
        wanted = {name for name, _size in server.binlogs()[:-1]}
        stack.enter_context(StreamProcess(disk_tmp_path / "stream", server, minio, golden.bucket))
        after = Bucket(minio, golden.bucket)
        prefix = f"pre/archive/test/{golden.lineages[-1]}/entries/"

        def archived() -> bool:
            keys = after.keys(prefix)
            return wanted <= {key.removeprefix(prefix).removesuffix(".json") for key in keys}

        wait_until(archived, what="what the server has closed")
        for key, data in golden.objects.items():
            if key.startswith("pre/archive/"):
                assert after.get(key) == data, key
    found: dict[str, Any] = golden.truth["list"]
    assert len(golden.lineages) == len(found["sources"][0]["lineages"]) == 2
    assert len({key.split("/")[3] for key in after.keys("pre/archive/test/2")}) == 2
