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

import pytest

from binlog2s3.archive.layout import Layout
from binlog2s3.archive.reading import BinlogReading
from binlog2s3.binlog.names import BinlogName
from lab.disk import temporary_directory
from lab.mysql import MysqlServer
from lab.s3 import MinioServer, environment_for
from tests.integration.bucket import Bucket
from tests.integration.recovery_command import Recovery
from tests.integration.recovery_truth import binlog_files, gtids_of, load
from tests.integration.stream_process import StreamProcess
from tests.integration.test_prune import TABLE, World, policy
from tests.waiting import wait_until

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
    executed = gtids_of(world.server)
    ((uuid,),) = world.server.query("SELECT @@server_uuid")
    last = max(int(one) for one in re.findall(r"\d+", executed.rpartition(":")[2]))
    name = BinlogName.parse(world.server.binlogs()[-1][0])
    with (
        temporary_directory() as directory,
        MysqlServer(world.server.binaries, directory, server_id=99) as server,
    ):
        server.query(*TABLE)
        server.query("RESET BINARY LOGS AND GTIDS", f"SET GLOBAL gtid_purged = '{executed}'")
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
        binlog = replace(name, number=number)
        reading = BinlogReading(binlog)
        now = datetime.now(UTC)
        reading.feed(memoryview(files[str(binlog)]), round(now.timestamp() * 1e6))
        found[str(binlog)] = (files[str(binlog)], reading.entry(now).to_json())
    return found


def plant(world: World, lineage: str, binlogs: dict[str, tuple[bytes, bytes]]) -> None:
    """Put these binlogs and their entries, and delete them again."""
    with closing(world.minio.client()) as client:
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


@pytest.mark.parametrize("default_retention", [False, True])
def test_what_was_planted_before_is_not_restored(
    mysql: MysqlServer, minio: MinioServer, disk_tmp_path: Path, *, default_retention: bool
) -> None:
    """Under the keys of the binlog that is open then, and of two that come later.

    The streamer says so, and goes on in a lineage of its own; the recovered server is the source's.
    """
    bucket = locked_bucket(minio, default_retention=default_retention)
    world = World(mysql, minio, bucket, disk_tmp_path)
    mysql.query(*TABLE)
    with StreamProcess(disk_tmp_path, mysql, minio, bucket, options=LOCK) as stream:
        world.write(2)
        world.wait_archived(2)
        wait_until(lambda: len(entries(world)) == 2, what="two entries")
        world.back_up("kept")
        lineage = stream.wait_for_event("new lineage")["lineage"]
        plant(world, lineage, forged(world, [3, 4, 5]))
        if default_retention:  # now nothing shows that the open binlog is not the planted one
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


@pytest.mark.parametrize("default_retention", [False, True])
def test_what_a_streamer_could_not_see_is_not_chosen_in_silence(
    mysql: MysqlServer, minio: MinioServer, disk_tmp_path: Path, *, default_retention: bool
) -> None:
    """It may not list versions. The order of the entries decides, but for the binlog that was open.

    That one is refused, with the versions, their times and the option that picks one.
    """
    bucket = locked_bucket(minio, default_retention=default_retention)
    world = World(mysql, minio, bucket, disk_tmp_path)
    mysql.query(*TABLE)
    blind = policy("streamer", bucket)
    denied = {"Effect": "Deny", "Action": ["s3:ListBucketVersions"], "Resource": ["arn:aws:s3:::*"]}
    for statement in blind["Statement"]:
        if statement["Sid"] == "ReadAndAdd":
            statement["Action"].append("s3:PutObjectRetention")
    blind["Statement"].append(denied)
    with StreamProcess(
        disk_tmp_path,
        mysql,
        minio,
        bucket,
        options=LOCK,
        environment=environment_for(**minio.restricted(blind)),
    ) as stream:
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
