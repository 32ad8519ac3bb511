"""A source and a bucket with just the rights of the guide, and what the tests of them do.

The S3 policies are applied as they are in docs/policies to MinIO's temporary credentials (a session
has the rights of its policy and no others); only the bucket's name is another. The document's own
statements make the accounts.
"""

import json
import re
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Event
from typing import Any

import boto3
from botocore.exceptions import ClientError

from binlog2s3.config.stream import Config, MysqlConfig, S3Config, StreamConfig
from binlog2s3.inspect.check.bucket import BucketCheck, wanted_rule
from binlog2s3.inspect.check.probes import ArchiveProbes, LiveProbes
from binlog2s3.inspect.check.report import Row
from binlog2s3.store.contract import StoreConfig
from binlog2s3.store.s3 import S3Store
from lab.child import free_port
from lab.disk import temporary_directory
from lab.fault import Record
from lab.get import ServerBinaries
from lab.mysql import MysqlServer, server_of
from lab.proxy import RecordingProxy
from lab.s3 import REGION, MinioServer, environment_for
from tests import command
from tests.integration.bucket import Bucket
from tests.integration.stream_process import StreamProcess
from tests.timed import PATIENT_END
from tests.waiting import wait_until
from tests.world.commands import Done, where
from tests.world.servers import is_mariadb, reset

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/guides/permissions.md").read_text(encoding="utf-8")
SOURCE, BUCKET = "orders-primary", "acme-binlogs"
PASSWORD = "Of-a-test-1"
PART = 5 << 20
FIRST = "mysql-bin.000001"
Policy = dict[str, Any]
BLOCK = re.DOTALL | re.MULTILINE


def policy(name: str, bucket: str) -> Policy:
    """A document of docs/policies, for this bucket."""
    text = (ROOT / f"docs/policies/{name}.json").read_text(encoding="utf-8")
    found = json.loads(text.replace(BUCKET, bucket))
    assert isinstance(found, dict)
    return found


def grants(name: str) -> list[str]:
    """The statements of one block of the page."""
    found = re.search(rf"^<!-- grants: {name} -->\n\n```sql\n(.*?)^```", PAGE, BLOCK)
    assert found, f"no block {name}"
    statements = found[1].replace("'...'", f"'{PASSWORD}'").split(";")
    return [one.strip() for one in statements if one.strip()]


def given(minio: MinioServer, document: Policy) -> dict[str, str]:
    """Variables of a process that may do what the policy says."""
    return environment_for(**minio.restricted(document))


def as_root(server: MysqlServer, *statements: str) -> None:
    server.query("SET sql_log_bin = 0", *statements)


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """A source, streamed with the least rights, and the bucket that came of it."""

    server: MysqlServer
    minio: MinioServer
    bucket: str
    password_file: Path
    records: Sequence[Record]
    status: str

    @property
    def options(self) -> list[str]:
        """How every command reaches the bucket."""
        return where(self.minio, self.bucket, "prod")

    @property
    def login(self) -> list[str]:
        """How they reach the source."""
        return [
            "--mysql-host=127.0.0.1",
            f"--mysql-port={self.server.port}",
            "--mysql-user=binlog2s3",
            f"--mysql-password-file={self.password_file}",
        ]

    def run(self, rights: Policy, *words: str) -> Done:
        done = command.run(*words, *self.options, **given(self.minio, rights))
        return Done(status=done.returncode, stdout=done.stdout, stderr=done.stderr)

    def read(self, *words: str) -> str:
        """What a reader's command prints; it ends well."""
        done = self.run(policy("reader", self.bucket), *words)
        assert done.status == 0, done.stderr
        return done.stdout


def bucket_as_advised(minio: MinioServer) -> str:
    """Versioned, with the one lifecycle rule."""
    bucket = minio.make_bucket()
    with closing(minio.client()) as client:
        client.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
        rules: Any = {"Rules": [wanted_rule("prod/live/")]}
        client.put_bucket_lifecycle_configuration(Bucket=bucket, LifecycleConfiguration=rules)
    return bucket


def streamed(server: MysqlServer, minio: MinioServer, directory: Path) -> World:
    """Two archived binlogs, one of them of parts, and an open one; nothing was denied."""
    bucket = bucket_as_advised(minio)
    as_root(server, *grants(f"{server.binaries.flavour} source"))
    password_file = directory / "password"
    password_file.touch(0o600)
    password_file.write_text(PASSWORD)
    with ExitStack() as stack:
        proxy = stack.enter_context(RecordingProxy(minio.endpoint_url))
        options: dict[str, str | Path] = {
            "source": SOURCE,
            "s3-url": f"s3://{bucket}/prod",
            "endpoint-url": proxy.url,
            "mysql-user": "binlog2s3",
            "mysql-password-file": password_file,
        }
        rights = given(minio, policy("streamer", bucket))
        stream = stack.enter_context(
            StreamProcess(
                directory / "stream",
                server,
                minio,
                bucket,
                options=options,
                environment=rights,
                timing=PATIENT_END,
            )
        )
        server.query(
            "CREATE DATABASE shop",
            "CREATE TABLE shop.orders (id INT PRIMARY KEY AUTO_INCREMENT, text LONGTEXT)",
            "INSERT INTO shop.orders (text) VALUES ('a'), ('b')",
            f"INSERT INTO shop.orders (text) VALUES ('{'x' * (12 << 20)}')",
        )
        there = Bucket(minio, bucket)
        wait_until(lambda: sum(c.end - c.begin >= PART for c in there.chunks()) == 2, what="parts")
        server.query(
            "FLUSH BINARY LOGS",
            "UPDATE shop.orders SET text = 'c' WHERE id = 1",
            "FLUSH BINARY LOGS",
            "DELETE FROM shop.orders WHERE id = 2",
        )
        wait_until(lambda: len(there.archived()) == 2, what="two archived binlogs")
        world = World(
            server=server,
            minio=minio,
            bucket=bucket,
            password_file=password_file,
            records=proxy.records,
            status="",
        )
        status = world.read("status", f"--source={SOURCE}", "--json")
        assert stream.terminate() == 0
        quiet = [line for line in stream.log() if line["level"] not in ("debug", "info", "warning")]
        assert quiet == []
        assert "denied" not in stream.stderr().lower()
        records = proxy.records
    assert any("x-amz-copy-source" in one.request.headers for one in records)
    # None has no answer: it was on its way at the end; 412: the store was asked to replace its own
    # writer's object, to see that it refuses
    assert {one.status for one in records} <= {200, 204, 206, 404, 412, None}
    assert sum(one.status == 412 for one in records) <= 1
    return replace(world, records=records, status=status)


def make_world(binaries: ServerBinaries, minio: MinioServer) -> Iterator[World]:
    with (
        temporary_directory() as directory,
        server_of(binaries, directory / "server") as server,
    ):
        yield streamed(server, minio, directory)


@contextmanager
def served(
    world: World, rights: Policy, place: Path
) -> Iterator[tuple[int, int, Sequence[Record]]]:
    """`serve` with these rights: its port, that of its status, and what it asks of the store."""
    port, status_port = free_port(), free_port()
    with ExitStack() as stack:
        proxy = stack.enter_context(RecordingProxy(world.minio.endpoint_url))
        words = [*world.options, f"--endpoint-url={proxy.url}", f"--source={SOURCE}"]
        words += [f"--listen=127.0.0.1:{port}", f"--status-listen=127.0.0.1:{status_port}"]
        words += ["--user=replica", f"--password-file={world.password_file}"]
        log = stack.enter_context((place / "serve.stderr").open("wb"))
        process = subprocess.Popen(
            command.argv("serve", *words),
            env=command.environment(**given(world.minio, rights)),
            stdin=subprocess.DEVNULL,
            stderr=log,
        )
        try:
            yield port, status_port, proxy.records
            process.terminate()
            assert process.wait(60) == 0
        finally:
            process.kill()
            process.wait(60)


def clients_of(status_port: int) -> Done:
    """What `status` says of a serve."""
    done = command.run("status", f"--serve-url=http://127.0.0.1:{status_port}", "--json")
    return Done(status=done.returncode, stdout=done.stdout, stderr=done.stderr)


def empty(server: MysqlServer) -> None:
    """As new."""
    noted = server.query("SHOW DATABASES LIKE 'binlog2s3_recovery%'")
    as_root(
        server,
        "DROP DATABASE IF EXISTS shop",
        *(f"DROP DATABASE {name}" for (name,) in noted),
        "DROP USER IF EXISTS 'pitr'@'localhost'",
    )
    reset(server, *(["SET GLOBAL gtid_slave_pos = ''"] if is_mariadb(server) else []))


def recovered(
    world: World, target: MysqlServer, statements: Sequence[str], how: str = "--yes"
) -> Done:
    """`pitr` with the reader's rights and an account that has just these."""
    as_root(target, *statements)
    begin = ["--from-binlog=mysql-bin.000001", "--from-position=4"]
    return world.run(
        policy("reader", world.bucket),
        *("pitr", f"--source={SOURCE}", "--latest", how, "--json"),
        *(begin if target.binaries.flavour == "mariadb" else []),
        f"--target-socket={target.socket}",
        "--target-user=pitr",
        f"--target-password-file={world.password_file}",
    )


def account(world: World) -> list[str]:
    return grants(f"{world.server.binaries.flavour} target")


def denied(act: Callable[[], object]) -> bool:
    """Whether the store refuses it for want of a permission."""
    try:
        act()
    except ClientError as error:
        if error.response["Error"]["Code"] in ("AccessDenied", "403"):
            return True
        raise
    return False


def without(document: Policy, action: str, resource: str) -> Policy:
    """The same policy, but that this one thing is not allowed."""
    statements = []
    for one in document["Statement"]:
        if action in one["Action"] and resource in one["Resource"]:
            others = [other for other in one["Action"] if other != action]
            left = [other for other in one["Resource"] if other != resource]
            parts = ((others, one["Resource"]), ([action], left))
        else:
            parts = ((one["Action"], one["Resource"]),)
        statements += [
            {"Effect": "Allow", "Action": actions, "Resource": resources}
            for actions, resources in parts
            if actions and resources
        ]
    return {"Statement": statements}


def looked_at(
    minio: MinioServer, bucket: str, rights: Policy, where: str = "/live/ /archive/"
) -> dict[str, Row]:
    """What `check` says of the bucket that is not well; it writes only where it is told to."""
    keys = minio.restricted(rights)
    session = boto3.Session(
        keys["access_key"], keys["secret_key"], keys["session_token"], region_name=REGION
    )
    plain: dict[str, Any] = dict.fromkeys(S3Config.__slots__)
    of_s3 = {
        **plain,
        "bucket": bucket,
        "prefix": "prod",
        "endpoint_url": minio.endpoint_url,
        "region": REGION,
        "addressing_style": "path",
        "checksum": "auto",
        "part_size": PART,
        "concurrency": 4,
    }
    nothing: dict[str, Any] = dict.fromkeys(MysqlConfig.__slots__)
    config = Config(
        mysql=MysqlConfig(**{**nothing, "connect_timeout": 1.0, "prefix": "mysql"}),
        s3=S3Config(**of_s3),
        stream=StreamConfig(
            source=SOURCE,
            start_binlog=None,
            start_at="oldest",
            flush_interval=1.0,
            heartbeat_interval=30.0,
        ),
        spool=Path(),
    )
    reached = StoreConfig(
        bucket=bucket,
        endpoint_url=minio.endpoint_url,
        addressing_style="path",
        region=REGION,
        concurrency=4,
    )
    with closing(S3Store(reached, stop=Event(), session=lambda **_: session)) as store:
        look = BucketCheck(config, store, store.settings)
        rows = [*look.reading_rows()]
        tried: list[LiveProbes | ArchiveProbes] = []
        tried += [LiveProbes(config, store, store.settings)] if "/live/" in where else []
        tried += [ArchiveProbes(config, store)] if "/archive/" in where else []
        for probes in tried:
            rows += probes.rows()
            cleaned = probes.clean()
            rows += [cleaned] if cleaned is not None else []
        rows += look.setting_rows()
    return {row.name: row for row in rows if row.result in ("warn", "fail")}


def privileges(statements: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Each privilege of these GRANTs, and the statements without it."""
    for number, statement in enumerate(statements):
        found = re.fullmatch(r"GRANT (.+) ON (\S+) TO (\S+)", statement)
        if found is None:
            assert statement.startswith("CREATE USER ")
            continue
        words = found[1].split(", ")
        for word in words:
            others = ", ".join(other for other in words if other != word)
            left = [f"GRANT {others} ON {found[2]} TO {found[3]}"] if others else []
            yield f"{word} ON {found[2]}", [*statements[:number], *left, *statements[number + 1 :]]
