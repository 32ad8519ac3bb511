"""`binlog2s3 verify` on a real store: damage, beside a real stream, against its server."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from binlog2s3.store.s3 import S3Store
from lab.load import Load, Shape
from lab.mysql import MariadbServer, MysqlServer
from lab.proxy import RecordingProxy
from lab.s3 import MinioServer, allow, environment_for
from tests import command
from tests.damage import NEW, OLD, fill
from tests.integration.stream_process import StreamProcess
from tests.waiting import wait_until
from tests.world.commands import Done, opened, where
from tests.world.servers import dump_of

BUSY = {"heartbeat-interval": 10}
"""Its writer counts as dead after half a minute: a busy machine renews the object before."""
READ_ONLY = ("s3:GetObject", "s3:ListBucket")


class Verified(Done):
    @property
    def source(self) -> dict[str, Any]:
        (source,) = self.document["sources"]
        assert isinstance(source, dict)
        return source

    def kinds(self) -> set[str]:
        return {one["kind"] for one in self.source["defects"] if not one["mended"]}


class Verify:
    """The command, with these credentials and no other settings."""

    def __init__(self, minio: MinioServer, bucket: str) -> None:
        self.minio, self.bucket = minio, bucket
        self.endpoint_url = minio.endpoint_url
        self.rights: Mapping[str, str] = environment_for(**minio.restricted(allow(*READ_ONLY)))

    def run(self, *arguments: str) -> Verified:
        words = [*where(self.minio, self.bucket), f"--endpoint-url={self.endpoint_url}"]
        done = command.run("verify", *words, *arguments, **self.rights)
        return Verified(status=done.returncode, stdout=done.stdout, stderr=done.stderr)

    def json(self, *arguments: str) -> Verified:
        done = self.run("--json", *arguments)
        assert done.status in (0, 7), done.stderr
        assert done.document["sound"] == (done.status == 0), done.stderr
        return done


@pytest.fixture
def verify(minio: MinioServer, bucket: str) -> Verify:
    """With credentials that may only read."""
    return Verify(minio, bucket)


@pytest.fixture
def store(minio: MinioServer, bucket: str) -> Iterator[S3Store]:
    with opened(minio, bucket) as made:
        yield made


def contents(minio: MinioServer, bucket: str) -> dict[str, str]:
    with closing(minio.client()) as client:
        pages = client.get_paginator("list_objects_v2").paginate(Bucket=bucket)
        keys = [row["Key"] for page in pages for row in page.get("Contents", ())]
        found = {}
        for key in keys:
            body = client.get_object(Bucket=bucket, Key=key)["Body"]
            with body:
                found[key] = hashlib.sha256(body.read()).hexdigest()
        return found


@pytest.mark.gate
def test_a_sound_archive(minio: MinioServer, bucket: str, store: S3Store, verify: Verify) -> None:
    """Exit 0, only GET and HEAD on the wire, and nothing in the bucket has changed."""
    archive = fill(store)
    before = contents(minio, bucket)
    with RecordingProxy(minio.endpoint_url) as proxy:
        verify.endpoint_url = proxy.url
        looked, deep = verify.json(), verify.json("--deep")
        assert {record.request.method for record in proxy.records} == {"GET", "HEAD"}
    verify.endpoint_url = minio.endpoint_url
    for done in (looked, deep):
        assert done.source["defects"] == []
        (whole,) = done.source["recoverable"]
        assert whole["first"] == {"lineage": OLD, "binlog": "mysql-bin.000001"}
        size = len(archive.data[NEW, 4])
        assert whole["last"] == {"lineage": NEW, "binlog": "mysql-bin.000004", "offset": size}
    everything = sum(len(data) for data in archive.data.values())
    assert deep.source["read_bytes"] == everything
    assert contents(minio, bucket) == before
    text = verify.run()
    assert text.status == 0
    assert "no defects" in text.stdout
    assert "recoverable with a base backup of that time, along the history" in text.stdout
    assert text.stderr == ""


def repairing(minio: MinioServer, verify: Verify) -> None:
    verify.rights = environment_for(**minio.restricted(allow(*READ_ONLY, "s3:PutObject")))


def source_options(mysql: MysqlServer) -> Sequence[str]:
    return (
        "--source=test",
        "--against-source",
        "--mysql-host=127.0.0.1",
        f"--mysql-port={mysql.port}",
        f"--mysql-user={mysql.repl_user}",
        f"--mysql-password-file={mysql.password_file}",
    )


def test_beside_a_stream_and_against_the_server(
    mysql: MysqlServer, minio: MinioServer, bucket: str, disk_tmp_path: Path, verify: Verify
) -> None:
    """Under load and rotations nothing is called a defect; then what is taken away is found."""
    dump = disk_tmp_path / "dump.sql"
    with StreamProcess(disk_tmp_path, mysql, minio, bucket, options=BUSY) as stream:
        stream.wait_for_event("new lineage")
        dump_of(mysql, dump)
        shape = Shape(row_bytes=(1, 3000))
        with Load(mysql, threads=2, flush_seconds=0.3, seconds=1800, shape=shape) as load:
            for rotations in (3, 6):
                wait_until(lambda rotations=rotations: load.flushes >= rotations, 90, "rotations")
                for arguments in ((), ("--deep",), source_options(mysql)):
                    done = verify.json(*arguments)
                    assert done.source["defects"] == [], done.stdout
                    assert stream.process.poll() is None, stream.stderr()
            load.stop()
        last = mysql.binlogs()[-1][0]

        def all_there() -> bool:
            compared = verify.json(*source_options(mysql)).source["against_source"]
            return bool(compared["lag_bytes"] == 0)

        wait_until(all_there, 300, "everything is in the bucket")
        done = verify.json("--deep", f"--from-backup={dump}", *source_options(mysql))
        assert done.status == 0, done.stdout
        compared, answer = done.source["against_source"], done.source["answer"]
        assert compared["listed"] == compared["compared"] == len(mysql.binlogs())
        assert answer["possible"]
        assert answer["to"].startswith(f"{last}:")
        assert stream.terminate() == 0
    with closing(minio.client()) as client:
        (lineage,) = (one["lineage"] for one in done.source["lineages"])
        for key in (
            f"pre/archive/test/{lineage}/binlogs/mysql-bin.000002",
            f"pre/archive/test/{lineage}/entries/mysql-bin.000002.json",
        ):
            client.delete_object(Bucket=bucket, Key=key)
    gone = verify.json(*source_options(mysql))
    assert gone.kinds() == {"binlog-missing", "source-has-it"}
    asked = verify.json(f"--from-backup={dump}", "--source=test")
    assert asked.status == 7
    assert not asked.source["answer"]["possible"]


def test_a_mariadb_and_a_repair_while_it_streams(
    mariadb: MariadbServer, minio: MinioServer, bucket: str, disk_tmp_path: Path, verify: Verify
) -> None:
    """Its archive is sound by its bytes and its server; an entry that is lost is made again."""
    with StreamProcess(disk_tmp_path, mariadb, minio, bucket) as stream:
        stream.wait_for_event("new lineage")
        mariadb.query("CREATE DATABASE d", "CREATE TABLE d.t (a INT PRIMARY KEY)")
        for number in range(4):
            mariadb.query(f"INSERT INTO d.t VALUES ({number})", "FLUSH BINARY LOGS")
        closed = len(mariadb.binlogs()) - 1
        wait_until(lambda: len(stream.events("binlog archived")) >= closed, what="all archived")

        def sound() -> Verified | None:
            done = verify.json("--deep", *source_options(mariadb))
            assert done.source["defects"] == [], done.stdout
            return done if done.source["against_source"]["lag_bytes"] == 0 else None

        done = wait_until(sound, 300, "nothing lags")
        assert done is not None
        assert done.source["against_source"]["compared"] == closed + 1
        (lineage,) = (one["lineage"] for one in done.source["lineages"])
        key = f"pre/archive/test/{lineage}/entries/{mariadb.binlogs()[1][0]}.json"
        with closing(minio.client()) as client:
            client.delete_object(Bucket=bucket, Key=key)
        assert verify.json().kinds() == {"entry-missing"}
        repairing(minio, verify)
        mended = verify.json("--repair")
        assert (mended.status, [one["object"] for one in mended.source["repaired"]]) == (0, [key])
        assert verify.json("--deep", *source_options(mariadb)).status == 0
        assert stream.terminate() == 0
