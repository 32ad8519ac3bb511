"""A long quiet run: load, rotations, restarts of the server; `make soak MINUTES=30`."""

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import pytest

from lab.get import ServerBinaries
from lab.load import Load, Shape
from lab.mysql import MysqlServer
from lab.s3 import MinioServer
from tests.integration.bucket import Bucket
from tests.integration.stream_process import StreamProcess
from tests.integration.streaming import documents, uploads, wait_until_archived

MINUTES = float(os.environ.get("MINUTES", "5"))
RESTART_SECONDS = min(300.0, MINUTES * 60 / 3)
WARM_SECONDS = min(60.0, MINUTES * 60 / 6)
MOST_MORE_KIB = 32 * 1024

pytestmark = pytest.mark.soak


@dataclass(frozen=True)
class Figures:
    """What a process has: resident memory in KiB, open file descriptors, threads."""

    memory_kib: int
    descriptors: int
    threads: int

    @classmethod
    def of(cls, pid: int) -> Self:
        """As /proc tells it now."""
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        status = dict(line.split(":", 1) for line in lines if ":" in line)
        return cls(
            memory_kib=int(status["VmRSS"].split()[0]),
            descriptors=len(list(Path(f"/proc/{pid}/fd").iterdir())),
            threads=int(status["Threads"]),
        )


def test_a_long_quiet_run(
    mysql_binaries: ServerBinaries, minio: MinioServer, bucket: str, disk_tmp_path: Path
) -> None:
    """Byte-identical at the end, one lineage; memory, file descriptors and threads stay flat."""
    there = Bucket(minio, bucket)
    with (
        MysqlServer(mysql_binaries, disk_tmp_path / "server") as server,
        StreamProcess(disk_tmp_path / "one", server, minio, bucket) as stream,
    ):
        load = Load(
            server,
            threads=3,
            flush_seconds=4,
            seconds=MINUTES * 60,
            pause_seconds=0.01,
            shape=Shape(large_chance=0.01),
            reconnects=True,
        )
        begun = time.monotonic()
        seen: list[tuple[float, Figures]] = []
        restart_at = begun + RESTART_SECONDS
        with load:
            while (now := time.monotonic()) < begun + MINUTES * 60:
                assert stream.process.poll() is None, stream.stderr()[-3000:]
                seen.append((now - begun, Figures.of(stream.pid)))
                if now >= restart_at:
                    restart_at += RESTART_SECONDS
                    server.restart()
                time.sleep(5)
        wait_until_archived(stream, server, minio, bucket, timeout=300)
        last = Figures.of(stream.pid)
        binlogs, total = len(server.binlogs()), sum(size for _, size in server.binlogs())
        archived = there.archived()
        restarts = len(stream.events("mysqlbinlog ended"))
        assert stream.terminate() == 0
    warm = next(figures for at, figures in seen if at >= WARM_SECONDS)
    print(f"\n{MINUTES:g} minutes, {binlogs} binlogs, {total / 1e6:.0f} MB, {restarts} restarts")  # noqa: T201
    print(f"start {seen[0][1]}\nwarm  {warm}\nend   {last}")  # noqa: T201
    assert len(archived) >= binlogs - 1
    assert len(documents(minio, bucket, "lineage.json")) == 1
    assert uploads(minio, bucket) == []
    assert restarts >= 1
    assert last.memory_kib <= warm.memory_kib + MOST_MORE_KIB
    assert last.descriptors <= max(figures.descriptors for at, figures in seen) + 2
    assert last.descriptors <= warm.descriptors + 5
    assert last.threads <= warm.threads + 2
