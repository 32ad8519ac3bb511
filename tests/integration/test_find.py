"""What `find` finds in a bucket is what the test has written, transaction by transaction.

Real servers, a real store, the streamer between them; the truth is what each statement said when it
was executed: rows by the server's own count, times by its own clock, GTIDs as it gave them.
"""

import json
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from lab.many import measured
from lab.mysql import MysqlServer, server_of
from lab.s3 import MinioServer, environment_for
from tests.command import argv, environment
from tests.integration.bucket import Bucket
from tests.integration.stream_process import StreamProcess
from tests.waiting import PATIENCE
from tests.world.archive import wait_durable
from tests.world.commands import READ_ONLY, Done, where
from tests.world.servers import last_gtid

pytestmark = [pytest.mark.mysql, pytest.mark.minio]
RELAXED = ("--sync-binlog=0", "--innodb-flush-log-at-trx-commit=0")
TABLES = ("orders", "order_items", "stock")


# the command


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended(Done):
    """`peak_kib` is the most memory that it had."""

    peak_kib: int


class Finder:
    """`binlog2s3 find` as users call it, with credentials that may only read."""

    def __init__(self, store: MinioServer, bucket: str) -> None:
        self.environment = environment(**environment_for(**store.restricted(READ_ONLY)))
        self.where = ("--source=test", *where(store, bucket))

    def run(self, *arguments: str, command: str = "find") -> Ended:
        """To its end."""
        done = measured(argv(command, *self.where, *arguments), self.environment, timeout=900)
        assert "Traceback" not in done.stderr, done.stderr
        return Ended(
            status=done.status,
            stdout=done.stdout,
            stderr=done.stderr,
            peak_kib=done.rss >> 10,
        )

    def found(self, *arguments: str) -> list[dict[str, Any]]:
        """The transactions, oldest first unless it is said; nothing went wrong."""
        order = () if any(a.startswith("--order") for a in arguments) else ("--order=oldest",)
        done = self.run("--json", "--limit=0", *order, *arguments)
        assert done.status == 0, done.stderr
        document = done.document
        assert document["warnings"] == []
        assert document["found"] == len(document["transactions"])
        return document["transactions"]  # type: ignore[no-any-return]


# a bucket


@contextmanager
def streamed(
    folder: Path, server: MysqlServer, store: MinioServer, **options: Any
) -> Iterator[tuple[StreamProcess, str]]:
    """A streamer, and its bucket."""
    bucket = store.make_bucket()
    chosen = {"flush-interval": 0.2, **options}
    with StreamProcess(folder / "stream", server, store, bucket, options=chosen) as stream:
        yield stream, bucket


def arrived(
    stream: StreamProcess, reader: Bucket, server: MysqlServer, timeout: float = PATIENCE
) -> None:
    """Wait until all that the server has written is in the bucket."""
    stream.wait_for_event("streaming", timeout)
    wait_durable(stream, reader, server, timeout)


def create(server: MysqlServer) -> None:
    columns = "(id INT PRIMARY KEY, v VARCHAR(300), n INT, b LONGBLOB)"
    server.query(
        "CREATE DATABASE shop",
        "CREATE DATABASE other",
        *[f"CREATE TABLE shop.{name} {columns}" for name in TABLES],
        f"CREATE TABLE other.orders {columns}",
    )


DDL = {
    "DROP TABLE orders": ("shop", True),
    "drop table if exists `orders`, shop.`stock`": ("shop", True),
    "DROP /* why? */ TABLE -- now\n other.x, shop.orders": ("", True),
    "TRUNCATE shop.orders": ("", True),
    "RENAME TABLE shop.orders TO shop.was": ("", True),
    "RENAME TABLE shop.stock TO shop.orders2, shop.orders TO other.was": ("", True),
    "ALTER TABLE orders ADD added INT": ("shop", True),
    "CREATE INDEX i ON orders (n)": ("shop", True),
    "DROP DATABASE shop": ("", True),
    "ALTER TABLE shop.stock RENAME TO shop.gone": ("", None),
    "DROP TABLE other.orders": ("", None),
    "DROP TABLE order_items": ("shop", None),
    "CREATE TABLE other.of_orders (orders INT)": ("", None),
    "CREATE VIEW shop.v AS SELECT * FROM shop.orders": ("", False),
    "CREATE TRIGGER shop.t BEFORE INSERT ON shop.orders FOR EACH ROW SET NEW.n = 1": ("", False),
    "GRANT SELECT ON shop.* TO CURRENT_USER()": ("", False),
}
"""Statements; the database that they are run in; found for sure, perhaps (False), or not."""


@pytest.mark.gate("mysql")
@pytest.mark.parametrize("flavour", ["mysql", "mariadb"])
def test_who_dropped_it(
    flavour: str, request: pytest.FixtureRequest, minio: MinioServer, disk_tmp_path: Path
) -> None:
    """All that defines a table is found by its name, however it is written, and nothing else.

    And whoever runs the command that is printed comes to just before it.
    """
    binaries = request.getfixturevalue(f"{flavour}_binaries")
    with (
        server_of(binaries, disk_tmp_path / "db", options=RELAXED) as server,
        streamed(disk_tmp_path, server, minio) as (stream, bucket),
    ):
        gtids = []
        for text, (db, _) in DDL.items():
            server.query("DROP DATABASE IF EXISTS other", "DROP DATABASE IF EXISTS shop")
            create(server)
            server.query("CREATE TABLE other.x (a INT)")
            server.query(*([f"USE {db}"] if db else []), text)
            gtids.append(last_gtid(server))
        arrived(stream, Bucket(minio, bucket), server)
        assert stream.terminate() == 0
    finder = Finder(minio, bucket)
    found = {one["gtid"]: one for one in finder.found("--table=shop.orders", "--type=ddl")}
    for gtid, (text, (_, certain)) in zip(gtids, DDL.items(), strict=True):
        assert (gtid in found) == (certain is not None), text
        if certain is not None:
            assert found[gtid]["certain"] == certain, text
            shown = found[gtid]["statements"][0].split()[0]  # servers write much of it anew
            assert shown.upper() == text.split()[0].upper()
    drop = found[gtids[0]]
    at = drop["committed"]
    narrow = ("--table=shop.orders", "--type=ddl", f"--between={at}/{at}", f"--gtid={drop['gtid']}")
    done = finder.run(*narrow)
    assert done.status == 0
    (command,) = [
        line.strip() for line in done.stdout.splitlines() if line.startswith("  binlog2s3 ")
    ]
    words = shlex.split(drop["pitr"])
    assert words[:2] == ["binlog2s3", "pitr"]
    assert shlex.split(command) == ["binlog2s3", "restore", *words[2:]]
    assert drop["undo"] is None
    output = disk_tmp_path / "files"
    ended = subprocess.run(
        [sys.executable, "-m", *words, f"--output-dir={output}", "--json"],
        env=finder.environment,
        capture_output=True,
        timeout=120,
        check=False,
        text=True,
    )
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout)["plan"]["left_out"][0]["gtid"] == drop["gtid"]
