"""`binlog2s3 list` as a user meets it: real processes on a real store, beside a real stream."""

import json
import re
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from binlog2s3.archive.chunks import Chunk
from binlog2s3.archive.layout import Layout
from binlog2s3.binlog.names import BinlogName
from lab.load import Load, Shape
from lab.mysql import MysqlServer
from lab.proxy import RecordingProxy
from lab.s3 import MinioServer, allow, environment_for
from tests import command
from tests.documents import ENTRY, ID, LINEAGE, like, parent_of
from tests.integration.stream_process import StreamProcess
from tests.waiting import wait_until
from tests.world.commands import opened, where

LAYOUT = Layout("pre", "test")
CHILD = "20260103T000000Z-3e11fa47-b2c3"
READ_ONLY = ("s3:GetObject", "s3:ListBucket")
FIRST, SECOND, THIRD = (BinlogName.parse(f"mysql-bin.00000{n}") for n in range(1, 4))


class List:
    """The command, with these credentials and no other settings."""

    def __init__(self, minio: MinioServer, bucket: str, rights: Mapping[str, str]) -> None:
        self.minio, self.bucket = minio, bucket
        self.endpoint_url = minio.endpoint_url
        self.rights = rights

    def words(self, *arguments: str) -> list[str]:
        there = [*where(self.minio, self.bucket), f"--endpoint-url={self.endpoint_url}"]
        return ["list", *there, *arguments]

    def run(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        return command.run(*self.words(*arguments), **self.rights)

    def text(self, *arguments: str, warnings: str = "") -> str:
        done = self.run(*arguments)
        assert (done.returncode, done.stderr) == (0, warnings)
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


def fill(minio: MinioServer, bucket: str) -> None:
    """Two lineages with a gap between them, a missing number, and something foreign."""
    parent = parent_of(ID, binlog=str(THIRD), offset=10, join="gap", missing="mysql-bin.000004")
    child = like(LINEAGE, id=CHILD, source="test", parent=parent)
    with opened(minio, bucket) as store:
        for lineage in (replace(LINEAGE, source="test"), child):
            store.put(LAYOUT.lineage(lineage.id), lineage.to_json())
        for name in (FIRST, THIRD):
            store.put(LAYOUT.binlog(ID, name), bytes(10))
            entry = replace(ENTRY, name=name, size=10)
            store.put(LAYOUT.entry(ID, name), entry.to_json())
        store.put(LAYOUT.binlog(CHILD, FIRST), bytes(20))
        store.put(LAYOUT.chunk(CHILD, SECOND, Chunk(0, 30, 5)), bytes(30))
        store.put(f"{LAYOUT.archive}notes.txt", b"")


NOTES = f"warning: ignored, not part of this archive's format: {LAYOUT.archive}notes.txt\n"
GAPS = [
    f"GAP: missing in {ID}: {SECOND}",
    f"GAP: missing between {ID} at {THIRD}:10 and {CHILD}: mysql-bin.000004",
]


def keys(minio: MinioServer, bucket: str) -> dict[str, datetime]:
    with closing(minio.client()) as client:
        rows = client.list_objects_v2(Bucket=bucket)["Contents"]
        return {row["Key"]: row["LastModified"] for row in rows}


@pytest.mark.gate
def test_it_only_reads(minio: MinioServer, bucket: str, listing: List) -> None:
    """GET alone, to the wire; what is foreign is named once, and stays."""
    fill(minio, bucket)
    before = keys(minio, bucket)
    with RecordingProxy(minio.endpoint_url) as proxy:
        listing.endpoint_url = proxy.url
        text = listing.text(warnings=NOTES)
        assert {record.request.method for record in proxy.records} == {"GET"}
        assert len(proxy.matching(path="/entries/.*json")) == 2
    assert keys(minio, bucket) == before
    assert [line for line in text.splitlines() if line.startswith("GAP")] == GAPS
    states = re.findall(r"^  mysql-bin\.\d+ +\d+  (\w+)", text, re.MULTILINE)
    assert states == ["archived", "archived", "undescribed", "open"]
    assert "\x1b" not in text
