"""Pruning a real archive: what is kept can be restored, what is given up is refused.

A source writes a row with each transaction, and a binlog for each; base backups are made by
mysqldump on the way and registered. Then the archive is pruned to a window.
"""

import json
import random
import re
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from botocore.exceptions import ClientError

from binlog2s3.binlog.scanner import MAGIC
from lab.disk import temporary_directory
from lab.fault import DropAnswer, Gate, Request
from lab.get import ServerBinaries
from lab.mysql import MariadbServer, MysqlServer, server_of
from lab.proxy import RecordingProxy
from lab.s3 import MinioServer, environment_for
from tests import command
from tests.integration.bucket import Bucket
from tests.integration.stream_process import StreamProcess
from tests.waiting import PATIENCE, wait_until
from tests.world.commands import Recovery, read_only, where
from tests.world.servers import dump_of, executed, load, reset
from tests.world.serving import PASSWORD, Served

ROOT = Path(__file__).parents[2]
BINLOGS = 40
BACKUPS = (4, 15, 28)
"""After so many transactions a base backup is made."""
WINDOW = 20
"""The window begins after so many, within a pause of so many seconds."""
PAUSE_SECONDS = 10.0
TABLE = (
    "CREATE DATABASE shop",
    "CREATE TABLE shop.t (n INT PRIMARY KEY, at DATETIME(6))",
)


def policy(name: str, bucket: str) -> dict[str, Any]:
    """A document of docs/policies for this bucket, prefix and source."""
    text = (ROOT / f"docs/policies/{name}.json").read_text(encoding="utf-8")
    text = text.replace("acme-binlogs", bucket).replace("/prod/", "/pre/")
    found = json.loads(text.replace("orders-primary", "test"))
    assert isinstance(found, dict)
    return found


@dataclass
class World:
    """A source, its bucket, and when each row was committed."""

    server: MysqlServer | None
    minio: MinioServer
    bucket: str
    folder: Path
    at: list[datetime] = field(default_factory=list)
    """`at[n]` is after the commit of row n + 1, and before that of the next one."""

    def run(self, *words: str, rights: str = "pruner") -> "subprocess.CompletedProcess[str]":
        """A command with the rights of a policy."""
        return command.run(*words, *self.where(self.minio.endpoint_url), **self.rights(rights))

    def where(self, endpoint_url: str) -> list[str]:
        """The options that name the archive."""
        return [*where(self.minio, self.bucket), f"--endpoint-url={endpoint_url}", "--source=test"]

    def rights(self, name: str) -> dict[str, str]:
        """The credentials of a policy, as an environment."""
        return environment_for(**self.minio.restricted(policy(name, self.bucket)))

    def good(self, *words: str) -> str:
        done = self.run(*words)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def write(self, count: int) -> None:
        """So many rows, each in a binlog of its own."""
        assert self.server is not None
        for _ in range(count):
            number = len(self.at) + 1
            self.server.query(f"INSERT INTO shop.t VALUES ({number}, NOW(6))")
            time.sleep(0.02)
            ((now,),) = self.server.query("SELECT UTC_TIMESTAMP(6)")
            self.at.append(now.replace(tzinfo=UTC))
            time.sleep(PAUSE_SECONDS if number == WINDOW else 0.02)
            self.server.query("FLUSH BINARY LOGS")

    def fill(self, *, old: int, kept: int, rest: int) -> None:
        """So many transactions, the backup "old", so many, the backup "kept", and the rest."""
        assert self.server is not None
        with StreamProcess(self.folder, self.server, self.minio, self.bucket) as stream:
            stream.wait_for_event("new lineage")
            self.server.query(*TABLE)
            for count, label in ((old, "old"), (kept, "kept"), (rest, "")):
                self.write(count)
                self.wait_archived(len(self.at))
                if label:
                    self.back_up(label)
            assert stream.terminate() == 0

    def back_up(self, label: str) -> Path:
        """A base backup by mysqldump, registered."""
        assert self.server is not None
        path = self.folder / f"{label}.sql"
        dump_of(self.server, path)
        self.good("backup", "add", f"--from-backup={path}", f"--label={label}")
        return path

    def archived(self) -> list[str]:
        keys = Bucket(self.minio, self.bucket).keys("pre/archive/")
        return [key.rpartition("/")[2] for key in keys if "/binlogs/" in key]

    def versions(self, prefix: str) -> list[tuple[str, str]]:
        """Key and id of all versions and delete markers, except of floors."""
        found: list[Any] = []
        with closing(self.minio.client()) as client:
            pages = client.get_paginator("list_object_versions")
            for page in pages.paginate(Bucket=self.bucket, Prefix=prefix):
                found += [*page.get("Versions", ()), *page.get("DeleteMarkers", ())]
        keys = [(str(one["Key"]), str(one["VersionId"])) for one in found]
        return sorted(one for one in keys if "/floors/" not in one[0])

    def wait_archived(self, count: int) -> None:
        wait_until(lambda: len(self.archived()) >= count, what=f"{count} archived binlogs")

    def wait_prunable(self, count: int) -> None:
        """The store's dates are whole seconds: what was just written is not old at once."""

        def plan() -> int:
            document = json.loads(self.good("prune", "--keep=0", "--dry-run", "--json"))
            return sum(int(one["binlogs"]) for one in document["given_up"])

        wait_until(lambda: plan() >= count, what=f"{count} binlogs to prune")

    def copied(self) -> "World":
        """The same archive in another bucket."""
        bucket = self.minio.make_bucket()
        with closing(self.minio.client()) as client:
            for key in Bucket(self.minio, self.bucket).keys("pre/"):
                source = {"Bucket": self.bucket, "Key": key}
                client.copy_object(Bucket=bucket, Key=key, CopySource=source)
        return World(self.server, self.minio, bucket, self.folder, self.at)

    def kill_prune(self, method: str, resource: str, after_seconds: float) -> None:
        """Start to prune, and kill -9 so long after the first such request reached the store.

        The process never gets the answer.
        """
        began, dead = Event(), Event()

        def rule(request: Request) -> DropAnswer | None:
            if request.method != method or resource not in f"{request.path}?{request.query}":
                return None
            began.set()
            return DropAnswer(done=lambda: dead.wait(PATIENCE))

        with RecordingProxy(self.minio.endpoint_url, [rule]) as proxy:
            words = ["prune", "--keep=0", "--grace=0", "--yes", *self.where(proxy.url)]
            process = subprocess.Popen(
                command.argv(*words),
                env=command.environment(**self.rights("pruner")),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            try:
                assert began.wait(PATIENCE), f"prune made no {method} of {resource}"
                time.sleep(after_seconds)
            finally:
                process.kill()
                status = process.wait(PATIENCE)
                dead.set()
        assert status == -signal.SIGKILL

    def numbers(self, count: int, begin: int) -> Sequence[int]:
        """Rows whose moments are tried, by chance."""
        return sorted(random.sample(range(begin, len(self.at) - 1), count))


def to_time(moment: datetime) -> str:
    """The option of this goal."""
    return f"--to-time={moment.isoformat()}"


def restored(binaries: ServerBinaries, to: str, pitr: Recovery) -> int:
    """Do what pitr without a target says, and bring that there; the rows that it has."""
    said = pitr.run(None, to)
    assert said.status == 0, said.stderr
    found = re.search(r"restore backup \S+ \((\w+)\) from (\S+\.sql)", said.stdout)
    assert found, said.stdout
    is_mariadb = binaries.flavour == "mariadb"
    with (
        temporary_directory() as directory,
        server_of(binaries, directory, server_id=random.randint(100, 10_000)) as target,
    ):
        reset(target)
        load(target, Path(found[2]))
        if is_mariadb:  # the load is in the target's own binlogs
            reset(target)
        # a dump of MariaDB leaves no GTIDs in the target
        end = [f"--from-backup={found[2]}"] if is_mariadb else []
        pitr.to(target, to, "--stop-target-threads", *end)
        rows = target.query("SELECT COUNT(*), MAX(n) FROM shop.t")
        assert rows[0][0] == rows[0][1]
        return int(rows[0][0])


def test_a_window_of_forty_binlogs(
    mysql_binaries: ServerBinaries, minio: MinioServer, bucket: str, disk_tmp_path: Path
) -> None:
    """Random moments of the window are restored and compared, earlier ones are refused."""
    with (
        temporary_directory() as directory,
        MysqlServer(mysql_binaries, directory) as server,
        StreamProcess(disk_tmp_path, server, minio, bucket) as stream,
    ):
        world = World(server, minio, bucket, disk_tmp_path)
        stream.wait_for_event("new lineage")
        server.query(*TABLE)
        for after, following in zip((0, *BACKUPS), (*BACKUPS, BINLOGS), strict=True):
            if after:
                world.wait_archived(after)
                world.back_up(f"after{after}")
            world.write(following - after)
        world.wait_archived(BINLOGS)
        listed = world.good("backup", "list")
        assert listed.count("Z, the newest ") == len(BACKUPS), listed
        before = world.archived()

        # the streamer's own rights cannot prune
        age = datetime.now(UTC) - world.at[WINDOW - 1]
        keep = f"--keep={age / timedelta(seconds=1):.3f}s"
        plan = world.good("prune", keep, "--dry-run")
        assert "(after4)" in plan
        denied = world.run("prune", keep, "--grace=0", "--yes", rights="streamer")
        assert denied.returncode == 6, denied.stdout
        assert world.archived() == before

        done = world.run("prune", keep, "--grace=0", "--yes")
        assert done.returncode == 0, done.stderr
        left = world.archived()
        assert len(left) < len(before) - 10
        assert left == before[-len(left) :]
        gone = len(before) - len(left)
        # on a busy machine the window may begin behind the last backup when prune looks
        oldest = int(left[0].rpartition(".")[2])
        first = max(WINDOW, oldest)

        pitr = Recovery(minio, bucket, read_only(minio))
        for number in world.numbers(2, first):
            assert restored(mysql_binaries, to_time(world.at[number]), pitr) == number + 1
        for number in (0, BACKUPS[0], BACKUPS[1] - 3):
            refused = pitr.refused_without_target(to_time(world.at[number]))
            assert "were pruned" in refused, refused

        # readers see no gap, a restart continues in the same lineage, and no page or status alarms
        verified = world.run("verify", rights="reader")
        assert verified.returncode == 0, verified.stdout + verified.stderr
        assert "pruned  before" in world.run("list", rights="reader").stdout
        stream.terminate()
        with StreamProcess(disk_tmp_path, server, minio, bucket) as again:
            world.write(2)
            world.wait_archived(len(left) + 2)
            assert len(again.events("new lineage")) == 1, again.stderr()
        assert gone > 0
        listed = world.good("backup", "list")
        usable = [after for after in BACKUPS if after + 1 >= oldest]
        assert usable
        assert listed.count("Z, the newest ") == len(usable), listed


def needed_is_there(world: World, needed: Sequence[str]) -> None:
    """What the kept backup needs is there, it reaches now, and a reader finds nothing wrong."""
    assert set(needed) <= set(world.archived())
    backups = json.loads(world.good("backup", "list", "--json"))["backups"]
    assert [one["reach"]["complete"] for one in backups if one["label"] == "kept"] == [True]
    verified = world.run("verify", rights="reader")
    assert verified.returncode == 0, verified.stdout + verified.stderr


@pytest.mark.gate
def test_a_kill_while_it_deletes(
    mysql: MysqlServer, minio: MinioServer, bucket: str, disk_tmp_path: Path
) -> None:
    """What is needed is there at once, and the next run ends as if nothing had happened."""
    origin = World(mysql, minio, bucket, disk_tmp_path)
    origin.fill(old=2, kept=9, rest=4)
    whole = origin.copied()
    whole.wait_prunable(8)
    whole.good("prune", "--keep=0", "--grace=0", "--yes")
    needed = whole.archived()
    assert 4 < len(needed) < len(origin.archived()) - 7

    kills = [("PUT", "/floors/", 0.0), ("POST", "?delete", 0.0)]
    kills += [("POST", "?delete", random.uniform(0, 0.03))]
    for kill in kills:
        world = origin.copied()
        world.wait_prunable(8)
        world.kill_prune(*kill)
        needed_is_there(world, needed)
        world.good("prune", "--keep=0", "--grace=0", "--yes")
        needed_is_there(world, needed)
        assert Bucket(minio, world.bucket).keys() == Bucket(minio, whole.bucket).keys(), kill
    pitr = Recovery(minio, world.bucket, read_only(minio))
    for at in origin.at[11:-1]:
        planned = pitr.run(None, to_time(at))
        assert planned.status == 0, planned.stderr
        assert "(kept)" in planned.stdout
    assert restored(mysql.binaries, to_time(origin.at[13]), pitr) == 14


def test_mariadb(
    mariadb: MariadbServer, minio: MinioServer, bucket: str, disk_tmp_path: Path
) -> None:
    """What the backup needs stays and is restored; a moment before it is refused."""
    world = World(mariadb, minio, bucket, disk_tmp_path)
    with StreamProcess(disk_tmp_path, mariadb, minio, bucket) as stream:
        stream.wait_for_event("new lineage")
        mariadb.query(*TABLE)
        world.write(4)
        world.wait_archived(4)
        world.back_up("kept")
        world.write(2)
        world.wait_archived(6)
        assert stream.terminate() == 0
    before = world.archived()
    world.wait_prunable(3)
    world.good("prune", "--keep=0", "--grace=0", "--yes")
    left = world.archived()
    assert left == before[3:]
    needed_is_there(world, left)
    pitr = Recovery(minio, bucket, read_only(minio))
    assert restored(mariadb.binaries, "--latest", pitr) == 6
    # MariaDB's commit times are whole seconds
    refused = pitr.refused_without_target(to_time(world.at[0] - timedelta(seconds=5)))
    assert "were pruned" in refused, refused


@pytest.mark.gate
def test_object_lock_survives_an_administrator(
    mysql: MysqlServer, minio: MinioServer, disk_tmp_path: Path
) -> None:
    """All keys are overwritten and deleted: readers use the oldest versions, and say so."""
    bucket = minio.make_bucket(ObjectLockEnabledForBucket=True)
    world = World(mysql, minio, bucket, disk_tmp_path)
    mysql.query(*TABLE)
    locked = {"object-lock": "COMPLIANCE:1d"}
    with StreamProcess(disk_tmp_path, mysql, minio, bucket, options=locked) as stream:
        world.write(4)
        world.wait_archived(4)
        world.good("backup", "add", f"--gtid-set={executed(mysql)}", "--object-lock=COMPLIANCE:1d")
        assert stream.terminate() == 0
    world.wait_prunable(2)
    before = Bucket(minio, bucket).keys("pre/archive/")
    with closing(minio.client()) as client:
        for key in before:
            kept = client.get_object_retention(Bucket=bucket, Key=key)["Retention"]["Mode"]
            assert kept == "COMPLIANCE", key
        for key in Bucket(minio, bucket).keys("pre/live/"):
            with pytest.raises(ClientError):
                client.get_object_retention(Bucket=bucket, Key=key)
        # what is pruned would only be hidden: it is reported, and nothing is deleted
        told = world.good("prune", "--keep-binlogs-for=0", "--grace=0", "--allow-empty", "--yes")
        assert "Object Lock" in told
        after = Bucket(minio, bucket).keys("pre/archive/")
        assert [key for key in after if "/floors/" not in key] == before
        shorter = {"Mode": "COMPLIANCE", "RetainUntilDate": datetime.now(UTC) + timedelta(hours=1)}
        for key in before:
            [kept] = client.list_object_versions(Bucket=bucket, Prefix=key)["Versions"]
            its = {"Bucket": bucket, "Key": key, "VersionId": kept["VersionId"]}
            with pytest.raises(ClientError, match="WORM protected"):
                client.delete_object(**its, BypassGovernanceRetention=True)
            with pytest.raises(ClientError, match="WORM protected"):
                client.put_object_retention(**its, Retention=shorter)
        for key in after:
            client.put_object(Bucket=bucket, Key=key, Body=b"rubbish")
            client.delete_object(Bucket=bucket, Key=key)
    assert Bucket(minio, bucket).keys("pre/archive/") == []
    verified = world.run("verify", rights="reader")
    assert verified.returncode == 0, verified.stdout + verified.stderr
    assert "Object Lock keeps their oldest versions" in verified.stdout
    planned = world.run("pitr", "--latest", rights="reader")
    assert planned.returncode == 0, planned.stderr
    assert "restore backup" in planned.stdout
    assert "Object Lock keeps their oldest versions" in planned.stdout
    begin = (f"--from-binlog={mysql.binlogs()[0][0]}", "--from-position=4")
    read = world.run("pitr", "--latest", f"--output-dir={disk_tmp_path / 'read'}", *begin, "--yes",
                     "--json", rights="reader")  # fmt: skip
    assert read.returncode == 0, read.stderr
    assert json.loads(read.stdout)["result"]["transactions"] >= 4
    # and so do those who decide what goes; a lock that ends before the window does is a warning
    listed = world.run("backup", "list")
    assert listed.returncode == 0, listed.stderr
    assert "Z, the newest " in listed.stdout
    assert "Object Lock keeps their oldest versions" in listed.stderr
    versions = world.versions("pre/archive/")
    keep = ["--keep=0", "--grace=0", "--yes", "--json"]
    pruned = world.run("prune", *keep)
    assert pruned.returncode == 0, pruned.stderr
    assert "Object Lock keeps their oldest versions" in pruned.stderr
    document = json.loads(pruned.stdout)
    assert document["kept"]
    (below,) = document["below"]
    assert below["objects"] == 0
    assert below["locked"] >= 4
    assert world.versions("pre/archive/") == versions
    warned = world.run("prune", "--keep=2d", "--dry-run", "--object-lock=COMPLIANCE:1d")
    assert warned.returncode == 0, warned.stderr
    assert "ends before the recovery window of 2 days does" in warned.stderr


@pytest.mark.gate
def test_what_no_lock_keeps_any_more_is_pruned(
    mysql: MysqlServer, minio: MinioServer, disk_tmp_path: Path
) -> None:
    """A retention and a legal hold keep it before; readers pass over what was deleted."""
    bucket = minio.make_bucket(ObjectLockEnabledForBucket=True)
    world = World(mysql, minio, bucket, disk_tmp_path)
    mysql.query(*TABLE)
    lock = "--object-lock=GOVERNANCE:1d"
    with StreamProcess(
        disk_tmp_path, mysql, minio, bucket, options={"object-lock": "GOVERNANCE:1d"}
    ) as stream:
        world.write(6)
        world.wait_archived(6)
        world.good("backup", "add", f"--gtid-set={executed(mysql)}", lock)
        assert stream.terminate() == 0
    world.wait_prunable(4)
    before = world.archived()
    prune = ("prune", "--keep=0", "--grace=0", "--yes", "--json", lock)
    (below,) = json.loads(world.good(*prune))["below"]
    count = below["locked"] // 2
    assert count >= 4
    assert (below["objects"], world.archived()) == (0, before)
    ended = datetime.now(UTC) + timedelta(seconds=2)
    with closing(minio.client()) as client:
        for key, version in world.versions("pre/archive/"):
            if key.rpartition("/")[2].removesuffix(".json") in before[:count]:
                client.put_object_retention(
                    Bucket=bucket,
                    Key=key,
                    VersionId=version,
                    BypassGovernanceRetention=True,
                    Retention={"Mode": "GOVERNANCE", "RetainUntilDate": ended},
                )
            if key.endswith(f"/binlogs/{before[1]}"):
                held = {"Bucket": bucket, "Key": key, "VersionId": version}
        client.put_object_legal_hold(**held, LegalHold={"Status": "ON"})
        wait_until(lambda: datetime.now(UTC) > ended + timedelta(seconds=2), what="the lock's end")
        (below,) = json.loads(world.good(*prune))["deleted"]
        assert (below["objects"], below["locked"], below["held"]) == (2 * count - 1, 1, 1)
        assert world.archived() == [before[1], *before[count:]]
        client.put_object_legal_hold(**held, LegalHold={"Status": "OFF"})
        world.good(*prune)
    assert world.archived() == before[count:]
    verified = world.run("verify", rights="reader")
    assert verified.returncode == 0, verified.stdout + verified.stderr
    assert "Object Lock" not in verified.stdout
    listed = world.run("list", rights="reader")
    assert f"pruned  before {before[count]}" in listed.stdout, listed.stdout
    assert before[1] not in listed.stdout


def test_a_pitr_that_has_its_plan_and_a_serve_go_on(
    mysql: MysqlServer, minio: MinioServer, bucket: str, disk_tmp_path: Path
) -> None:
    """Within the grace they get what was given up; after it, a client is refused, and told why."""
    world = World(mysql, minio, bucket, disk_tmp_path)
    world.fill(old=1, kept=5, rest=2)
    before = world.archived()
    world.wait_prunable(5)
    old, _ = json.loads(world.good("backup", "list", "--json"))["backups"]
    serve = Served(
        disk_tmp_path / "serve",
        world.where(minio.endpoint_url),
        command.environment(**world.rights("reader")),
    )
    serve.start()
    try:
        goes_on(world, mysql, serve, old["id"], before)
    finally:
        serve.kill()


def goes_on(
    world: World, mysql: MysqlServer, serve: Served, backup: str, before: Sequence[str]
) -> None:
    """A prune between the plan and the first byte of a pitr, and another one after the grace."""
    folder = world.folder
    words = ["pitr", "--latest", f"--from-backup-id={backup}"]
    assert world.run(*words, f"--output-dir={folder}/whole", rights="reader").returncode == 0
    gate = Gate(method="GET", path=f"binlogs/{before[3]}")
    with RecordingProxy(world.minio.endpoint_url, [gate]) as proxy:
        into = folder / "restored"
        pitr = subprocess.Popen(
            command.argv(*words, f"--output-dir={into}", *world.where(proxy.url)),
            env=command.environment(**world.rights("reader")),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
        try:
            assert gate.held.wait(PATIENCE)
            for _ in range(2):
                world.good("prune", "--keep=0", "--yes")
            assert world.archived() == before
            got = fetched(mysql, serve.port, before[0], folder / "raw")
            assert got.returncode == 0, got.stderr
            raw = sorted((folder / "raw").iterdir())
            assert [path.name for path in raw][: len(before)] == before
            gate.open()
            assert pitr.wait(PATIENCE) == 0
        finally:
            gate.open()
            pitr.kill()
            pitr.wait(PATIENCE)
    whole, restored = (
        [
            data
            for path in sorted(one.rglob("*"))
            if path.is_file() and (data := path.read_bytes())[:4] == MAGIC
        ]
        for one in (folder / "whole", into)
    )
    assert len(whole) >= len(before) - 1
    assert restored == whole
    world.good("prune", "--keep=0", "--grace=0", "--yes")
    assert before[0] not in world.archived()
    refused = fetched(mysql, serve.port, before[0], folder / "gone")
    assert refused.returncode != 0
    assert "Traceback" not in serve.log()
    got = fetched(mysql, serve.port, world.archived()[0], folder / "left")
    assert got.returncode == 0, got.stderr
    assert serve.end() == 0


def fetched(
    server: MysqlServer, port: int, binlog: str, into: Path
) -> "subprocess.CompletedProcess[bytes]":
    """What mysqlbinlog gets of a `serve`, from this binlog on, to the last that is there."""
    into.mkdir()
    words = [
        str(server.binaries.binlog), "--no-defaults", "--read-from-remote-server", "--raw",
        "--host=127.0.0.1", f"--port={port}", "--user=replica", f"--password={PASSWORD}",
        "--ssl-mode=DISABLED", "--to-last-log", f"--result-file={into}/", binlog,
    ]  # fmt: skip
    return subprocess.run(words, capture_output=True, timeout=600, check=False)
