"""A large recovery: little memory, and next to nothing on disk outside the target; `make soak`."""

import os
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from bench.processes import children, peak_bytes
from lab.get import ServerBinaries
from lab.mysql import MysqlServer
from lab.s3 import MinioServer
from tests.beside import Beside
from tests.integration.bucket import Bucket
from tests.integration.stream_process import StreamProcess
from tests.world.archive import wait_durable
from tests.world.commands import Recovery, read_only
from tests.world.servers import RELAXED, differences, dump_of, of_image, restored, state_of

MIB = 1 << 20
SIZE = int(float(os.environ.get("RECOVERY_GB", "2")) * 1_000_000_000)
ROW = 400_000
MOST_MEMORY = 256 * MIB
MOST_DISK = 100 * MIB
MOST_RELAY_LOGS = 384 * MIB
ROOM = ("--innodb-redo-log-capacity=1G", "--max-binlog-size=200M", "--max-allowed-packet=64M")

pytestmark = pytest.mark.soak


class Watch(Beside):
    """The most that a process and its children took, and that grew in a directory."""

    def __init__(self, pid: int, directory: Path, datadir: Path) -> None:
        super().__init__()
        self._pid = pid
        self._directory = directory
        self._datadir = datadir
        self.memory = self.disk = self.written = self.relay_logs = self.samples = 0

    def run(self) -> None:
        while not self.over.wait(0.05):
            with suppress(OSError):  # a process that ends, a file that goes
                family = [self._pid, *children(self._pid)]
                self.memory = max(self.memory, sum(map(peak_bytes, family)))
                self.written = max(self.written, sum(map(_written, family)))
                self.disk = max(self.disk, _size(self._directory))
                self.relay_logs = max(self.relay_logs, _size(self._datadir, "*-binlog2s3.*"))
                self.samples += 1


def _written(pid: int) -> int:
    """Bytes that went to a disk."""
    lines = Path(f"/proc/{pid}/io").read_text(encoding="utf-8").splitlines()
    (found,) = (line.split()[1] for line in lines if line.startswith("write_bytes:"))
    return int(found)


def _size(directory: Path, pattern: str = "*") -> int:
    return sum(path.lstat().st_blocks * 512 for path in directory.rglob(pattern))


def test_a_large_archive(
    mysql_binaries: ServerBinaries, minio: MinioServer, bucket: str, disk_tmp_path: Path
) -> None:
    """2 GB: under 256 MiB of memory, under 100 MB of disk beside the target.

    Relay logs lie in the target's own directory: what it was sent ahead, and no more.
    """
    dump, image = disk_tmp_path / "dump.sql", disk_tmp_path / "image"
    options = (*RELAXED, *ROOM)
    with MysqlServer(mysql_binaries, disk_tmp_path / "source", options=options) as source:
        source.query("CREATE DATABASE big", "CREATE TABLE big.t (id INT PRIMARY KEY, v LONGBLOB)")
        dump_of(source, dump, "--set-gtid-purged=ON")
        with StreamProcess(disk_tmp_path / "stream", source, minio, bucket) as stream:
            _fill(source)
            wait_durable(stream, Bucket(minio, bucket), source, timeout=1200)
            stream.kill()
        wanted = state_of(source)
        password = source.password
    with MysqlServer(mysql_binaries, disk_tmp_path / "r", options=RELAXED) as one:
        restored(one, dump, image)
    recovery = Recovery(minio, bucket, read_only(minio))
    beside = disk_tmp_path / "beside"
    beside.mkdir()
    places = {name: str(beside) for name in ("TMPDIR", "HOME", "XDG_RUNTIME_DIR", "XDG_CACHE_HOME")}
    server = of_image(mysql_binaries, disk_tmp_path / "target", image, 9, password)
    server.options = (*server.options, *ROOM)
    with (
        server,
        recovery.started(server, "--yes", "--latest", environment=places) as process,
    ):
        watch = Watch(process.pid, beside, server.datadir)
        with watch:
            assert process.wait(3600) == 0
        assert differences(state_of(server), wanted) == []
    said = f"memory {watch.memory >> 20} MiB, disk {watch.disk} B"
    said += f", written {watch.written} B, relay logs {watch.relay_logs >> 20} MiB"
    sys.stdout.write(f"{said}, {watch.samples} samples\n")
    assert watch.samples > 20
    assert watch.memory < MOST_MEMORY, said
    assert watch.disk < MOST_DISK, said
    assert watch.written < MOST_DISK, said
    assert 0 < watch.relay_logs < MOST_RELAY_LOGS


def _fill(source: MysqlServer) -> None:
    """Large rows, several to a transaction, and small ones between them."""
    with source.connect(read_timeout=600) as connection, connection.cursor() as cursor:
        for number in range(SIZE // (8 * ROW)):
            cursor.execute("BEGIN")
            for line in range(8):
                value = f"REPEAT('{number:08}', {ROW // 8})"
                cursor.execute(f"INSERT INTO big.t VALUES ({number * 10 + line}, {value})")
            cursor.execute("COMMIT")
            cursor.execute(f"INSERT INTO big.t VALUES ({number * 10 + 9}, 'small')")
