"""`verify` as a user meets it: real processes, a bucket of moto's, what is printed, exit codes."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path

import boto3
import pytest

from binlog2s3.store.s3 import S3Store, StoreConfig
from lab.s3 import REGION, MotoServer
from tests.damage import LAYOUT, OLD, Archive, fill
from tests.documents import UUID


def run(
    *arguments: str, command: str = "verify", **environment: str
) -> "subprocess.CompletedProcess[str]":
    given = {k: v for k, v in os.environ.items() if not k.startswith(("AWS_", "BINLOG2S3_"))}
    done = subprocess.run(
        [sys.executable, "-m", "binlog2s3", command, *arguments],
        capture_output=True,
        check=False,
        env=given | environment,
        stdin=subprocess.DEVNULL,
        text=True,
        timeout=180,
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done


class Bucket:
    """An archive in a bucket, and the command that proves it."""

    def __init__(self, moto: MotoServer) -> None:
        self.moto = moto
        bucket = moto.make_bucket()
        self.url = f"s3://{bucket}/pre"
        session = boto3.session.Session(moto.access_key, moto.secret_key, region_name=REGION)
        config = StoreConfig(bucket=bucket, endpoint_url=moto.endpoint_url)
        stop = threading.Event()
        self.store = S3Store(config, stop=stop, session=lambda **_: session)
        self.archive: Archive = fill(self.store)

    def run(self, *arguments: str, command: str = "verify") -> "subprocess.CompletedProcess[str]":
        where = ("--s3-url", self.url, "--endpoint-url", self.moto.endpoint_url)
        options = (*where, "--addressing-style", "path", "--region", REGION)
        return run(*options, *arguments, command=command, **self.moto.env())


@pytest.fixture
def bucket(moto: MotoServer) -> Bucket:
    return Bucket(moto)


def test_help_has_an_example_for_each_case() -> None:
    """All, deep and since, a backup, the source, repair; each can be copied."""
    done = run("-h")
    assert (done.returncode, done.stderr) == (0, "")
    examples = done.stdout.split("Examples")[1].split("Exit codes")[0]
    for words in ("--deep --since", "--from-backup", "--against-source", "--repair"):
        assert words in examples


def test_all_problems_at_once(tmp_path: Path) -> None:
    """Exit 3, before anything is connected to."""
    done = run(
        "--since=2026-01-02 03:04:05",
        "--last=0",
        f"--from-backup={tmp_path / 'none'}",
        f"--from-gtid-set={UUID}:1",
        "--against-source",
        "--json",
    )
    assert (done.returncode, done.stdout) == (3, "")
    *errors, hint = done.stderr.splitlines()
    assert [line.removeprefix("error: ")[:44] for line in errors] == [
        "--since: '2026-01-02 03:04:05' has no time z",
        "--last: '0' is below the minimum, 1",
        "--s3-url is missing",
        "--from-backup and --from-gtid-set contradict",
        f"--from-backup: {tmp_path / 'none'}: no such file or directory"[:44],
        "--mysql-user is missing (or a --mysql-defaul",
    ]
    assert hint == "hint: see python -m binlog2s3 verify -h"
    both = run("--s3-url=s3://bucket", "--since=2026-01-02T03:04:05Z", "--last=3")
    assert both.returncode == 3
    assert "--since and --last contradict each other" in both.stderr


@pytest.mark.parametrize(
    ("arguments", "looked_at", "kinds"),
    [
        ((), 9, {"object-missing"}),
        (("--last=2",), 4, set()),
        (("--since=2026-11-21T09:58:30Z",), 6, set()),
        (("--since=2026-11-21T09:28:30Z",), 9, {"object-missing"}),
        (("--lineage", OLD), 5, {"object-missing"}),
        (("--source=test",), 9, {"object-missing"}),
    ],
)
def test_what_is_looked_at(
    bucket: Bucket, arguments: tuple[str, ...], looked_at: int, kinds: set[str]
) -> None:
    """The last ones, those since a time, one history: said, and nothing else is judged."""
    with closing(bucket.store):
        bucket.store.delete([bucket.archive.key(OLD, 2)])
    done = bucket.run("--json", *arguments)
    document = json.loads(done.stdout)
    (source,) = document["sources"]
    assert sum(one["looked_at"] for one in source["lineages"]) == looked_at
    assert {one["kind"] for one in source["defects"]} == kinds
    assert done.returncode == (7 if kinds else 0)
    text = bucket.run(*arguments).stdout
    assert f"checked {looked_at} of " in text


GARBAGE: Mapping[str, tuple[Callable[[Archive], str], str]] = {
    "an entry": (lambda a: a.entry(OLD, 2), "entry-unreadable"),
    "a lineage.json": (lambda _: LAYOUT.lineage(OLD), "lineage-unreadable"),
    "a writer's object": (lambda _: LAYOUT.writer(1, "9c2d41aa"), "writer-unreadable"),
}


@pytest.mark.parametrize("what", GARBAGE)
def test_garbage_never_ends_in_a_traceback(bucket: Bucket, what: str, tmp_path: Path) -> None:
    """`verify` names it; the other commands show what they can, or say what is wrong."""
    key_of, kind = GARBAGE[what]
    key = key_of(bucket.archive)
    with closing(bucket.store):
        bucket.store.put(key, b"\xff{")
    for arguments in ((), ("--deep",)):
        done = bucket.run(*arguments)
        assert (done.returncode, done.stderr) == (7, "")
        assert f"DEFECT {kind}: {key}" in done.stdout
        assert "to do: " in done.stdout.split(f"DEFECT {kind}: {key}")[1]
    source = "--source=test"
    dry = (f"--from-gtid-set={UUID}:1-4", "--latest", "--dry-run", f"--output-dir={tmp_path / 'o'}")
    for command, more in (
        ("list", (source,)),
        ("status", (source, "--from=bucket")),
        ("find", (source,)),
        ("pitr", (source, *dry)),
    ):
        done = bucket.run(*more, command=command)
        assert done.returncode in (0, 7, 8)
        assert (done.returncode == 0) == ("error: " not in done.stderr)
