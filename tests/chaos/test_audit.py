"""The audit of chaos sees what it is there for: each kind of difference, made by hand."""

import json
import signal
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import pytest

from binlog2s3.binlog.checksum import crc64_hex, crc64nvme
from lab.disk import temporary_directory
from lab.get import ServerBinaries
from lab.mysql import MysqlServer
from lab.proxy import RecordingProxy
from lab.s3 import MinioServer
from tests.chaos.audit import Audit
from tests.integration.bucket import Bucket
from tests.integration.stream_process import StreamProcess
from tests.waiting import wait_until

FIRST = "mysql-bin.000001"
Change = Callable[["Tampered"], None]


@dataclass(frozen=True)
class Filled:
    server: MysqlServer
    bucket: str
    proxy: RecordingProxy


class Tampered(Bucket):
    """A bucket that a streamer has filled in order, and the means to spoil it."""

    def __init__(self, audit: Audit, store: MinioServer, bucket: str) -> None:
        super().__init__(store, bucket)
        self.audit = audit

    def named(self, part: str) -> list[str]:
        return [key for key in self.keys() if part in key]

    def put(self, key: str, body: bytes) -> None:
        with closing(self.store.client()) as client:
            client.put_object(Bucket=self.name, Key=key, Body=body)

    def delete(self, key: str) -> None:
        with closing(self.store.client()) as client:
            client.delete_object(Bucket=self.name, Key=key)

    def change(self, part: str, change: Callable[[dict[str, Any]], object]) -> None:
        """Rewrite a JSON document."""
        (key,) = self.named(part)
        document = json.loads(self.get(key))
        change(document)
        self.put(key, json.dumps(document).encode())

    def entry(self, **changes: Any) -> None:
        self.change(f"/entries/{FIRST}", lambda entry: entry.update(changes))


def flip(bucket: Tampered) -> None:
    (key,) = bucket.named(f"/binlogs/{FIRST}")
    data = bytearray(bucket.get(key))
    data[len(data) // 2] ^= 1
    bucket.put(key, bytes(data))


def lose(part: str) -> Change:
    return lambda bucket: bucket.delete(bucket.named(part)[0])


def foreign_chunk(bucket: Tampered) -> None:
    folder = bucket.named("live/test/2")[0].rpartition("/")[0]
    body = b"x" * 100
    bucket.put(f"{folder}/{0:016}-{100:016}-{crc64_hex(crc64nvme(body))}", body)


def ahead(writer: dict[str, Any]) -> None:
    writer["durable"]["offset"] += 1


def other_gtids(writer: dict[str, Any]) -> None:
    writer["durable"]["gtid_set"] += "9"


CHANGES: dict[str, tuple[Change, str]] = {
    "byte": (flip, "is not the server's file"),
    "chunk": (lose("live/test/2"), "was durable up to"),
    "object": (lose(f"/binlogs/{FIRST}"), "acknowledged bytes"),
    "entry": (lose(f"/entries/{FIRST}"), "has no entry"),
    "foreign": (foreign_chunk, "disagrees with"),
    "strange": (
        lambda bucket: bucket.put("pre/live/test/strange", b"x"),
        "a strange object",
    ),
    "ahead": (lambda bucket: bucket.change("/writers/", ahead), "was durable up to"),
    "gtids": (lambda bucket: bucket.change("/writers/", other_gtids), "durable GTIDs"),
    "count": (lambda bucket: bucket.entry(transactions=99), "transactions is 99"),
    "added": (lambda bucket: bucket.entry(gtid_set_added=""), "gtid_set_added is ''"),
    "times": (lambda bucket: bucket.entry(least_commit_us=1), "least_commit_us is 1"),
    "end": (lambda bucket: bucket.entry(end="stop"), "end is 'stop'"),
    "blocks": (lambda bucket: bucket.entry(blocks=[]), "blocks are not"),
    "crc": (lambda bucket: bucket.entry(crc64nvme="0" * 16), "crc64nvme is"),
}


@pytest.fixture(scope="module")
def filled(mysql_binaries: ServerBinaries, minio: MinioServer) -> Iterator[Filled]:
    """One archived binlog, one open one; the streamer has ended."""
    bucket = minio.make_bucket()
    with (
        temporary_directory() as directory,
        MysqlServer(mysql_binaries, directory / "server") as mysql,
        RecordingProxy(minio.endpoint_url) as proxy,
    ):
        mysql.query("CREATE DATABASE d", "CREATE TABLE d.t (v LONGBLOB)")
        options = {"endpoint-url": proxy.url}
        with StreamProcess(directory, mysql, minio, bucket, options=options) as stream:
            stream.wait_for_event("new lineage")
            wait_until(lambda: proxy.matching(method="PUT", path=f"/{FIRST}/"), what="a chunk")
            stream.process.send_signal(signal.SIGSTOP)  # one flush has all of the open binlog
            mysql.query("INSERT INTO d.t VALUES (REPEAT('x', 1000))", "FLUSH BINARY LOGS")
            mysql.query("INSERT INTO d.t VALUES (REPEAT('x', 1000))")
            name, size = mysql.query("SHOW BINARY LOG STATUS")[0][:2]
            files = [*stream.spool.glob(f"*/{FIRST}")]
            assert len(files) == 1
            wait_until(
                lambda: (file := files[0].with_name(name)).exists() and file.stat().st_size == size,
                what="mysqlbinlog has written it",
            )
            stream.process.send_signal(signal.SIGCONT)
            with closing(Audit(mysql, minio, bucket, proxy)) as audit:
                wait_until(lambda: is_at_rest(audit), what="all is at rest")
            stream.kill()
        yield Filled(mysql, bucket, proxy)


def is_at_rest(audit: Audit) -> bool:
    """Whether all is there, and what is open in one chunk alone: none can be done without."""
    return not audit.settled(chunked=True) and [
        len(chunks) for chunks in audit._list().chunks.values()
    ] == [1]


@pytest.fixture
def tampered(filled: Filled, minio: MinioServer) -> Iterator[Tampered]:
    """What lies there, to be spoilt; it is put in order again afterwards."""
    with closing(Audit(filled.server, minio, filled.bucket, filled.proxy)) as audit:
        audit.look()
        found = Tampered(audit, minio, filled.bucket)
        before = {key: found.get(key) for key in found.named("")}
        yield found
        for key in found.named(""):
            if key not in before:
                found.delete(key)
        for key, body in before.items():
            found.put(key, body)


def test_what_is_in_order_is_called_so(tampered: Tampered) -> None:
    """Nothing was spoilt, nothing differs."""
    tampered.audit.compare()
    assert tampered.audit.differences == []
    assert tampered.audit.binlogs == 1


@pytest.mark.parametrize("name", CHANGES)
def test_a_difference_is_seen(tampered: Tampered, name: str) -> None:
    """Each of them, by its name."""
    change, said = CHANGES[name]
    change(tampered)
    tampered.audit.compare()
    assert any(said in line for line in tampered.audit.differences), tampered.audit.differences
