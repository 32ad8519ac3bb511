"""`binlog2s3` as users call it on a bucket: a process of its own, which may only read."""

import json
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any

import boto3

from binlog2s3.store.s3 import S3Store, StoreConfig
from lab.mysql import MysqlServer, anywhere
from lab.s3 import REGION, MinioServer, Store, environment_for
from tests import command
from tests.integration.bucket import Bucket
from tests.waiting import PATIENCE

READ_ONLY = {
    "Statement": [
        {
            "Effect": "Allow",
            "Action": ["s3:GetObject", "s3:ListBucket", "s3:GetBucketLocation"],
            "Resource": ["arn:aws:s3:::*"],
        }
    ]
}


def where(store: Store, bucket: str, prefix: str = "pre") -> list[str]:
    """The options that name the archive's place."""
    words = [f"--s3-url=s3://{bucket}/{prefix}", f"--endpoint-url={store.endpoint_url}"]
    return [*words, "--addressing-style=path", f"--region={REGION}"]


def their_server(*more: str) -> list[str]:
    """The options of drill and restore for the server that they start, with more for it."""
    small = "--innodb-buffer-pool-size=64M"
    return [f"--mysqld-option={option}" for option in (*anywhere(), small, *more)]


def read_only(store: MinioServer) -> dict[str, str]:
    """The environment with credentials that may look and read, and nothing else."""
    return environment_for(**store.restricted(READ_ONLY))


@contextmanager
def opened(store: MinioServer, bucket: str, *, endpoint_url: str = "") -> Iterator[S3Store]:
    """The product's own store of this bucket, with all rights."""
    session = boto3.session.Session(store.access_key, store.secret_key, region_name=REGION)
    config = StoreConfig(
        bucket=bucket, endpoint_url=endpoint_url or store.endpoint_url, addressing_style="path"
    )
    with closing(S3Store(config, stop=threading.Event(), session=lambda **_: session)) as made:
        yield made


def list_of(bucket: Bucket) -> dict[str, Any]:
    """What `binlog2s3 list --json` says."""
    done = command.run("list", "--json", *where(bucket.store, bucket.name), **bucket.store.env())
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    document = json.loads(done.stdout)
    assert isinstance(document, dict)
    return document


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """A command that has ended."""

    status: int
    stdout: str
    stderr: str

    @property
    def document(self) -> dict[str, Any]:
        """Of --json."""
        found = json.loads(self.stdout)
        assert isinstance(found, dict)
        return found


class Recovery:
    """`binlog2s3 pitr` as users call it, with credentials that may only read.

    Without a target server the outputs are others: --output-dir, --dry-run.
    """

    def __init__(self, store: Store, bucket: str, environment: Mapping[str, str]) -> None:
        self._store = store
        self._bucket = bucket
        self._environment = command.environment(**environment)

    def words(self, target: MysqlServer | None, arguments: Sequence[str]) -> list[str]:
        """What is called, behind the program's own name."""
        words = ["pitr", "--source=test", *where(self._store, self._bucket)]
        if target is not None:
            empty = target.directory / "no-password"
            empty.touch(0o600)
            words += [f"--target-socket={target.socket}"]
            words += ["--target-user=root", f"--target-password-file={empty}"]
        return [*words, *arguments]

    @contextmanager
    def started(
        self,
        target: MysqlServer | None,
        *arguments: str,
        stdout: int = subprocess.DEVNULL,
        stderr: int = subprocess.DEVNULL,
        environment: Mapping[str, str] | None = None,
    ) -> Iterator["subprocess.Popen[bytes]"]:
        """The process; killed at the end if it still runs."""
        process = subprocess.Popen(
            command.argv(*self.words(target, arguments)),
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            env={**self._environment, **(environment or {})},
        )
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()
            process.wait(PATIENCE)
            for stream in (process.stdout, process.stderr):
                if stream is not None:
                    stream.close()

    def run(self, target: MysqlServer | None, *arguments: str) -> Done:
        """To its end."""
        ended = command.run_in(self._environment, *self.words(target, arguments), timeout=600)
        return Done(status=ended.returncode, stdout=ended.stdout, stderr=ended.stderr)

    def to(self, target: MysqlServer, *arguments: str) -> dict[str, Any]:
        """Run it to its end, which is a good one; the document."""
        done = self.run(target, "--yes", "--json", *arguments)
        said = f"{done.status}\n{done.stderr}\n{done.stdout[-3000:]}"
        assert done.status == 0, f"{arguments}: {said}"
        document = done.document
        assert document["result"]["how"] in ("replication", "nothing")
        return document

    def refused(self, target: MysqlServer | None, *arguments: str) -> str:
        """What it says when it refuses: exit code 8, and nothing but the reason."""
        done = self.run(target, "--yes", *arguments)
        assert done.status == 8, f"{arguments}: {done.status}\n{done.stderr}\n{done.stdout[-3000:]}"
        assert "Traceback" not in done.stderr
        return done.stderr

    def refused_without_target(self, *arguments: str) -> str:
        """What it says when no registered backup reaches the goal: exit code 8, and the reason."""
        done = self.run(None, *arguments)
        assert done.status == 8, f"{arguments}: {done.status}\n{done.stderr}\n{done.stdout[-3000:]}"
        return done.stderr
