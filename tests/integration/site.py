"""A source with a table of numbers, its streamer and its bucket: which rows get through to whom."""

import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab.mysql import MysqlServer
from lab.s3 import MinioServer
from tests import command
from tests.integration.bucket import Bucket
from tests.integration.stream_process import StreamProcess
from tests.world.archive import Archive, wait_durable
from tests.world.commands import where

TABLE = ("CREATE DATABASE d", "CREATE TABLE d.t (n INT PRIMARY KEY)")
FIRST = ("--from-binlog=mysql-bin.000001", "--from-position=4")


@dataclass(frozen=True, kw_only=True)
class Site:
    """Its streamers, one after the other, have one spool."""

    source: MysqlServer
    minio: MinioServer
    bucket: str
    folder: Path

    def stream(self, **options: Any) -> StreamProcess:
        chosen = {"spool": self.folder / "spool", **options}
        return StreamProcess(
            self.folder / "stream", self.source, self.minio, self.bucket, options=chosen
        )

    def wait_durable(self, stream: StreamProcess) -> None:
        wait_durable(stream, Bucket(self.minio, self.bucket), self.source)

    def insert(self, first: int, last: int) -> None:
        self.source.query(*[f"INSERT INTO d.t VALUES ({n})" for n in range(first, last + 1)])

    def run(self, verb: str, *words: str) -> "subprocess.CompletedProcess[str]":
        """A command on this source's archive."""
        there = ["--source=test", *where(self.minio, self.bucket)]
        return command.run(*verb.split(), *there, *words, **self.minio.env())

    def pitr(self, target: MysqlServer, *words: str) -> "subprocess.CompletedProcess[str]":
        at = (f"--target-socket={target.socket}", "--target-user=root", "--stop-target-threads")
        return self.run("pitr", *at, "--yes", *words)

    def lineages(self) -> list[dict[str, Any]]:
        return list(Archive(self.minio, self.bucket).lineages().values())

    def joins(self) -> list[str | None]:
        """How each lineage is joined to its parent; None for the first."""
        return [one["parent"] and one["parent"]["join"] for one in self.lineages()]


def rows(server: MysqlServer) -> list[int]:
    return [int(row[0]) for row in server.query("SELECT n FROM d.t ORDER BY n")]
