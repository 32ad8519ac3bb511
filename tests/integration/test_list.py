"""`binlog2s3 list` as a user meets it: real processes on a real store, beside a real stream."""

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from lab.load import Load, Shape
from lab.mysql import MysqlServer
from lab.s3 import MinioServer, allow, environment_for
from tests import command
from tests.integration.stream_process import StreamProcess
from tests.waiting import wait_until
from tests.world.commands import where

READ_ONLY = ("s3:GetObject", "s3:ListBucket")


class List:
    """The command, with these credentials and no other settings."""

    def __init__(self, minio: MinioServer, bucket: str, rights: Mapping[str, str]) -> None:
        self.where = where(minio, bucket)
        self.rights = rights

    def text(self, *arguments: str) -> str:
        done = command.run("list", *self.where, *arguments, **self.rights)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    def json(self, *arguments: str) -> dict[str, Any]:
        document = json.loads(self.text("--json", *arguments))
        assert isinstance(document, dict)
        assert document["format"] == 1
        return document

    def lineages(self, *arguments: str) -> list[dict[str, Any]]:
        (source,) = self.json(*arguments)["sources"]
        assert isinstance(source["lineages"], list)
        return source["lineages"]


@pytest.fixture
def listing(minio: MinioServer, bucket: str) -> List:
    """With credentials that may only read."""
    return List(minio, bucket, environment_for(**minio.restricted(allow(*READ_ONLY))))


def sizes(binlogs: Sequence[Mapping[str, Any]]) -> list[tuple[str, int]]:
    return [(binlog["name"], binlog["size"]) for binlog in binlogs]


@pytest.mark.gate
def test_it_agrees_with_the_server_while_it_is_streamed(
    mysql: MysqlServer, minio: MinioServer, bucket: str, disk_tmp_path: Path, listing: List
) -> None:
    """Under load and rotations it shows no gap; afterwards names, sizes, times and GTIDs agree."""
    begun = datetime.now(UTC)
    with StreamProcess(disk_tmp_path, mysql, minio, bucket) as stream:
        stream.wait_for_event("new lineage")
        shape = Shape(row_bytes=(1, 3000))
        with Load(mysql, threads=2, flush_seconds=0.3, seconds=3600, shape=shape) as load:
            for _ in range(3):
                goal = load.transactions + 1
                wait_until(lambda goal=goal: load.transactions >= goal, what="a transaction")
                goal = load.flushes + 3
                wait_until(lambda goal=goal: load.flushes >= goal, what="rotations")
                (seen,) = listing.lineages()
                there = dict(mysql.binlogs())
                for binlog in seen["binlogs"]:
                    assert binlog["size"] <= there[binlog["name"]]
                    if binlog["state"] == "archived":
                        assert binlog["size"] == there[binlog["name"]]
                assert not [missing for missing in seen["missing"] if not missing["under_way"]]
                assert "GAP" not in listing.text()
            load.stop()

        def agrees() -> dict[str, Any] | None:
            assert stream.process.poll() is None, stream.stderr()
            (lineage,) = listing.lineages("--source", "test")
            archived = [b for b in lineage["binlogs"] if b["state"] == "archived"]
            same = sizes(lineage["binlogs"]) == mysql.binlogs()
            return lineage if same and len(archived) == len(mysql.binlogs()) - 1 else None

        lineage = wait_until(agrees, 90, "the list and SHOW BINARY LOGS agree")
        assert lineage is not None
        text = listing.text()
        assert stream.terminate() == 0
    uuid = mysql.query("SELECT @@server_uuid")[0][0]
    assert lineage["server"]["uuid"] == uuid
    assert (lineage["current"], lineage["parent"], lineage["missing"]) == (True, None, [])
    *archived, last = lineage["binlogs"]
    assert (last["state"], last["archived_at"], last["gtid_set_added"]) == ("open", None, None)
    assert len(archived) >= 9
    added = ",".join(binlog["gtid_set_added"] for binlog in archived if binlog["gtid_set_added"])
    executed = mysql.query("SELECT @@gtid_executed")[0][0].replace("\n", "")
    with mysql.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SELECT GTID_SUBSET(%s, %s)", (added, executed))
        assert cursor.fetchone() == (1,)
    times = [b["least_commit_us"] for b in archived if b["transactions"]]
    assert len(times) >= 2
    assert times == sorted(times)
    latest = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=times[-1])
    assert begun <= latest <= datetime.now(UTC)
    rows = [line.split() for line in text.splitlines() if line.startswith("  mysql-bin.")]
    assert [(name, int(size), state) for name, size, state, *_ in rows] == [
        (binlog["name"], binlog["size"], binlog["state"]) for binlog in lineage["binlogs"]
    ]
    assert f"lineage {lineage['lineage']} (current)" in text
