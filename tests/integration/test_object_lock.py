"""A bucket with Object Lock in which somebody else has written, too.

The keys of the bucket leaked for a minute. Whoever had them put what the streamer was going to
write, and deleted it again; or wrote over what it had written. The forged binlogs are real ones, of
a server that has the source's GTIDs: they make an account that may do everything.
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from threading import Event
from typing import Any

import boto3
import pytest

from binlog2s3.archive.backups import registered
from binlog2s3.archive.catalog import Catalog
from binlog2s3.archive.chunks import Chunk
from binlog2s3.archive.codec import Crc64
from binlog2s3.archive.evidence import Evidence
from binlog2s3.archive.layout import Layout
from binlog2s3.archive.reading import BinlogReading
from binlog2s3.binlog.checksum import crc64nvme
from binlog2s3.binlog.names import BinlogName
from binlog2s3.errors import ArchiveError, VersionConflictError
from binlog2s3.store.contract import NO_VERSION, ObjectLock, Picks, StoreConfig
from binlog2s3.store.s3 import S3Store
from lab.disk import temporary_directory
from lab.fault import Answer, on
from lab.mysql import MysqlServer
from lab.s3 import REGION, MinioServer, environment_for
from tests.documents import BACKUP, BEAT, ENTRY, FLOOR, ID, LINEAGE, NAME, turn_of
from tests.integration.bucket import Bucket
from tests.integration.stream_process import StreamProcess, proxied
from tests.integration.test_prune import TABLE, World, policy
from tests.waiting import wait_until
from tests.world.commands import Recovery
from tests.world.servers import binlog_files, executed, load

LOCK = {"object-lock": "COMPLIANCE:1d"}
DEFAULT = {"Mode": "GOVERNANCE", "Days": 1}
LAYOUT = Layout("pre", "test")


def locked_bucket(minio: MinioServer, *, default_retention: bool) -> str:
    """A bucket with Object Lock, which keeps each object if it has a default retention."""
    bucket = minio.make_bucket(ObjectLockEnabledForBucket=True)
    if default_retention:
        with closing(minio.client()) as client:
            client.put_object_lock_configuration(
                Bucket=bucket,
                ObjectLockConfiguration={  # type: ignore[typeddict-item]
                    "ObjectLockEnabled": "Enabled",
                    "Rule": {"DefaultRetention": DEFAULT},
                },
            )
    return bucket


def forged(world: World, numbers: Sequence[int]) -> dict[str, tuple[bytes, bytes]]:
    """Binlogs of these numbers that begin where the source is, and their entries, by name.

    The first one makes the account `evil`, which may do everything.
    """
    assert world.server is not None
    gtids = executed(world.server)
    ((uuid,),) = world.server.query("SELECT @@server_uuid")
    last = max(int(one) for one in re.findall(r"\d+", gtids.rpartition(":")[2]))
    name = BinlogName.parse(world.server.binlogs()[-1][0])
    with (
        temporary_directory() as directory,
        MysqlServer(world.server.binaries, directory, server_id=99) as server,
    ):
        server.query(*TABLE)
        server.query("RESET BINARY LOGS AND GTIDS", f"SET GLOBAL gtid_purged = '{gtids}'")
        for _ in range(numbers[0] - 1):
            server.query("FLUSH BINARY LOGS")
        statements = [
            "CREATE USER evil@'%' IDENTIFIED BY 'x'",
            "GRANT ALL ON *.* TO evil@'%' WITH GRANT OPTION",
            *(f"INSERT INTO shop.t VALUES ({1000 + n}, NOW(6))" for n in numbers),
        ]
        for number in numbers:
            ours = statements[:3] if number == numbers[0] else statements[:1]
            del statements[: len(ours)]
            for statement in ours:
                last += 1
                server.query(
                    f"SET GTID_NEXT = '{uuid}:{last}'", statement, "SET GTID_NEXT = 'AUTOMATIC'"
                )
            server.query("FLUSH BINARY LOGS")
        files = {path.name: path.read_bytes() for path in binlog_files(server)}
    found = {}
    for number in numbers:
        binlog = BinlogName(name.prefix, number, name.width)
        reading = BinlogReading(binlog)
        now = datetime.now(UTC)
        reading.feed(memoryview(files[str(binlog)]), round(now.timestamp() * 1e6))
        found[str(binlog)] = (files[str(binlog)], reading.entry(now).to_json())
    return found


def plant(world: World, lineage: str, binlogs: dict[str, tuple[bytes, bytes]]) -> None:
    """Put these binlogs and their entries, and delete them again.

    Of the first one, which is open, a chunk as well; and a part of an upload that stays.
    """
    with closing(world.minio.client()) as client:
        name, (binlog, _) = next(iter(binlogs.items()))
        chunk = Chunk(0, len(binlog), crc64nvme(binlog))
        key = LAYOUT.chunk(lineage, BinlogName.parse(name), chunk)
        client.put_object(Bucket=world.bucket, Key=key, Body=binlog)
        client.delete_object(Bucket=world.bucket, Key=key)
        key = LAYOUT.binlog(lineage, BinlogName.parse(name))
        begun = client.create_multipart_upload(Bucket=world.bucket, Key=key)["UploadId"]
        client.upload_part(Bucket=world.bucket, Key=key, UploadId=begun, PartNumber=1, Body=binlog)
        for name, (binlog, entry) in binlogs.items():
            ours = BinlogName.parse(name)
            keys = {LAYOUT.binlog(lineage, ours): binlog, LAYOUT.entry(lineage, ours): entry}
            for key, body in keys.items():
                client.put_object(Bucket=world.bucket, Key=key, Body=body)
                client.delete_object(Bucket=world.bucket, Key=key)


def entries(world: World) -> list[str]:
    """The keys of all entries."""
    return [key for key in Bucket(world.minio, world.bucket).keys("pre/archive/") if
            "/entries/" in key]  # fmt: skip


@contextmanager
def recovered(world: World, *options: str) -> Iterator[MysqlServer]:
    """A server with the backup, brought as far as the archive goes."""
    assert world.server is not None
    with (
        temporary_directory() as directory,
        MysqlServer(world.server.binaries, directory, server_id=77) as target,
    ):
        target.query("RESET BINARY LOGS AND GTIDS")
        load(target, world.folder / "kept.sql")
        reader(world).to(target, "--latest", "--stop-target-threads", *options)
        yield target


def reader(world: World) -> Recovery:
    """`pitr` with what a reader may do."""
    rights = environment_for(**world.minio.restricted(policy("reader", world.bucket)))
    return Recovery(world.minio, world.bucket, rights)


def is_the_sources(world: World, target: MysqlServer) -> None:
    """It has the rows of the source, and no account that the source has not."""
    assert world.server is not None
    rows = "SELECT n FROM shop.t ORDER BY n"
    assert target.query(rows) == world.server.query(rows)
    assert target.query("SELECT COUNT(*) FROM mysql.user WHERE user = 'evil'") == [(0,)]


def test_what_was_planted_before_is_not_restored(
    mysql: MysqlServer, minio: MinioServer, disk_tmp_path: Path
) -> None:
    """Under the keys of the binlog that is open then, and of two that come later.

    The streamer says so, and goes on in a lineage of its own; the recovered server is the source's.
    """
    bucket = locked_bucket(minio, default_retention=True)
    world = World(mysql, minio, bucket, disk_tmp_path)
    mysql.query(*TABLE)
    with StreamProcess(disk_tmp_path, mysql, minio, bucket, options=LOCK) as stream:
        world.write(2)
        world.wait_archived(2)
        wait_until(lambda: len(entries(world)) == 2, what="two entries")
        world.back_up("kept")
        lineage = stream.wait_for_event("new lineage")["lineage"]
        plant(world, lineage, forged(world, [3, 4, 5]))
        # now nothing shows that the open binlog is not the planted one
        planned = reader(world).run(None, "--latest")
        assert planned.status in (7, 8), planned.stdout
        assert "a lock keeps it" in planned.stderr
        world.write(4)
        wait_until(
            lambda: (
                len(stream.events("new lineage")) == 2
                and len({key.rpartition("/")[2] for key in entries(world)}) == 6
            ),
            what="all entries, in two lineages",
        )
        (_, beside) = stream.events("new lineage")
        assert beside["parent_lineage"] == lineage
        assert (beside["parent_binlog"], beside["parent_join"]) == ("mysql-bin.000002", "exact")
        assert beside["first_binlog"] == "mysql-bin.000003"
        assert stream.events("somebody wrote under this key before the streamer did")
        assert stream.terminate() == 0
    with recovered(world) as target:
        is_the_sources(world, target)
    # whoever asks for what is behind the fork does not get it
    asked = reader(world).run(None, "--latest", f"--lineage={lineage}")
    assert "evil" not in asked.stdout
    for words in (["list"], ["find", "--limit=0"], ["backup", "list"]):
        done = world.run(*words, rights="pruner" if words[0] == "backup" else "reader")
        assert done.returncode in (0, 7), done.stderr
        assert "Traceback" not in done.stderr
        assert "evil" not in done.stdout


def test_what_a_streamer_could_not_see_is_not_chosen_in_silence(
    mysql: MysqlServer, minio: MinioServer, disk_tmp_path: Path
) -> None:
    """It may not list versions. The order of the entries decides, but for the binlog that was open.

    That one is refused, with the versions, their times and the option that picks one.
    """
    bucket = locked_bucket(minio, default_retention=False)
    world = World(mysql, minio, bucket, disk_tmp_path)
    mysql.query(*TABLE)
    # MinIO takes s3:ListBucket for s3:ListBucketVersions
    body = b"<Error><Code>AccessDenied</Code><Message>no</Message></Error>"
    denied = Answer(403, headers={"x-amz-request-id": "1"}, body=body)
    rules = [on(denied, method="GET", query=r"(^|&)(versions|object-lock)(&|=|$)")]
    with proxied(disk_tmp_path, mysql, minio, bucket, rules, options=LOCK) as (stream, _):
        world.write(2)
        wait_until(lambda: len(entries(world)) == 2, what="two entries")
        world.back_up("kept")
        lineage = stream.wait_for_event("new lineage")["lineage"]
        plant(world, lineage, forged(world, [3, 4, 5]))
        world.write(4)
        wait_until(lambda: len(entries(world)) == 6, what="six entries")
        assert stream.events("not looked for what somebody put there before")
        assert stream.terminate() == 0
    key = LAYOUT.entry(lineage, BinlogName.parse("mysql-bin.000003"))
    with closing(minio.client()) as client:
        found = client.list_object_versions(Bucket=bucket, Prefix=key)["Versions"]
    real, planted = (one["VersionId"] for one in found)
    refused = reader(world).run(None, "--latest")
    assert refused.status in (7, 8), refused.stdout
    for said in (real, planted, f"--object-version {key}=", "--versions-before"):
        assert said in refused.stderr, refused.stderr
    verified = world.run("verify", rights="reader")
    assert verified.returncode == 7, verified.stdout + verified.stderr
    assert f"versions of '{key}' differ" in verified.stdout + verified.stderr
    with recovered(world, f"--object-version={key}={real}") as target:
        is_the_sources(world, target)
    verified = world.run("verify", f"--object-version={key}={real}", rights="reader")
    assert verified.returncode == 0, verified.stdout + verified.stderr
    assert "before they were written" in verified.stdout


def store_of(minio: MinioServer, bucket: str, **settings: Any) -> S3Store:
    """The bucket as a command sees it."""
    session = boto3.session.Session(minio.access_key, minio.secret_key)
    config = StoreConfig(
        bucket=bucket,
        endpoint_url=minio.endpoint_url,
        region=REGION,
        addressing_style="path",
        **settings,
    )
    return S3Store(config, stop=Event(), session=lambda **_: session, evidence=Evidence)


@pytest.mark.gate
@pytest.mark.parametrize("default_retention", [False, True])
def test_forged_documents_in_a_real_store(minio: MinioServer, *, default_retention: bool) -> None:
    """A turn, a lineage, a floor and a backup of somebody are not taken for ours; an entry neither.

    All were put, with and without a lock, and deleted before ours came.
    """
    bucket = locked_bucket(minio, default_retention=default_retention)
    layout = Layout("pre", "orders")
    turn = turn_of(BEAT)
    first = replace(ENTRY, name=LINEAGE.first_binlog, size=4, crc64nvme=Crc64(crc64nvme(b"true")))
    second = replace(first, name=NAME)
    theirs = replace(second, size=6, crc64nvme=Crc64(crc64nvme(b"forged")))
    documents = {
        layout.lineage(ID): (LINEAGE, replace(LINEAGE, gtid_set="")),
        layout.turn(turn.number): (turn, replace(turn, lineage=ID.replace("a1b2", "ffff"))),
        layout.floor(ID, NAME.number): (FLOOR, replace(FLOOR, gtid_set="")),
        layout.backup(BACKUP.id): (BACKUP, replace(BACKUP, location="s3://evil/backup")),
    }
    writer = store_of(minio, bucket, object_lock=ObjectLock("GOVERNANCE", 1))
    with closing(minio.client()) as client, closing(writer):

        def plant_one(key: str, body: bytes) -> None:
            client.put_object(Bucket=bucket, Key=key, Body=body)
            client.delete_object(Bucket=bucket, Key=key)

        def put(key: str, body: bytes) -> None:
            writer.put(key, body, if_absent=True, kept=True)

        put(layout.lineage(ID), LINEAGE.to_json())
        plant_one(layout.binlog(ID, NAME), b"forged")
        plant_one(layout.entry(ID, NAME), theirs.to_json())
        for entry, body in ((first, b"true"), (second, b"true")):
            put(layout.binlog(ID, entry.name), body)
            put(layout.entry(ID, entry.name), entry.to_json())
        ids = {}
        with closing(store_of(minio, bucket, written_once="pre/archive/")) as store:
            catalog = Catalog(store, layout)
            assert catalog.entry(LINEAGE, NAME) == second
            assert store.get(layout.binlog(ID, NAME)) == b"true"
            (note,) = store.version_notes()
            assert "2 objects before they were written" in note
        for key, (ours, forged_one) in documents.items():
            if key != layout.lineage(ID):
                plant_one(key, forged_one.to_json())
                put(key, ours.to_json())
            else:
                client.put_object(Bucket=bucket, Key=key, Body=forged_one.to_json())
            for row in client.list_object_versions(Bucket=bucket, Prefix=key)["Versions"]:
                id_ = row["VersionId"]
                found = client.get_object(Bucket=bucket, Key=key, VersionId=id_)
                if found["Body"].read() == ours.to_json():
                    ids[key] = id_
    with closing(store_of(minio, bucket, written_once="pre/archive/")) as store:
        catalog = Catalog(store, layout)
        for ask in (catalog.turn, catalog.lineages):
            with pytest.raises(VersionConflictError, match="nothing shows which one is right"):
                ask()
        unreadable: list[ArchiveError] = []
        assert registered(catalog, unreadable) == []
        assert "nothing shows which one is right" in str(unreadable[0])
    picks = Picks({**ids, layout.backup(BACKUP.id): NO_VERSION})
    with closing(store_of(minio, bucket, written_once="pre/archive/", picks=picks)) as store:
        catalog = Catalog(store, layout)
        assert catalog.turn() == turn
        assert catalog.lineages() == [replace(LINEAGE, floor=FLOOR)]
        assert registered(catalog) == []
