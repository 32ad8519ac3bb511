"""What takes minutes and tens of gigabytes of disk: `make soak`."""

from pathlib import Path

import pytest

from lab.get import ServerBinaries
from lab.mysql import MysqlServer
from lab.s3 import MinioServer
from tests.integration.bucket import Bucket
from tests.integration.stream_process import StreamProcess
from tests.integration.streaming import uploads, wait_until_archived
from tests.waiting import wait_until

MIB = 1 << 20
ROW = 16 * MIB
ROWS = 336  # 5.25 GiB: past 4 GiB, where positions wrap, and past the first 1,000 parts
FOUR_GIB = 4 << 30

pytestmark = pytest.mark.soak


def test_a_transaction_of_five_gigabytes(
    mysql_binaries: ServerBinaries, minio: MinioServer, bucket: str, disk_tmp_path: Path
) -> None:
    """kill -9 past 4 GiB of it: the next start goes on, and the binlog is the server's."""
    there = Bucket(minio, bucket)
    options = ["--max-allowed-packet=64M", "--innodb-redo-log-capacity=1G"]
    with MysqlServer(mysql_binaries, disk_tmp_path / "server", options=options) as server:
        server.query("CREATE DATABASE big", "CREATE TABLE big.t (id INT PRIMARY KEY, v LONGBLOB)")
        name = server.binlogs()[-1][0]
        with StreamProcess(disk_tmp_path / "one", server, minio, bucket) as stream:
            stream.wait_for_event("new lineage")
            with server.connect(read_timeout=1200) as connection, connection.cursor() as cursor:
                cursor.execute("BEGIN")
                for number in range(ROWS):
                    cursor.execute(f"INSERT INTO big.t VALUES ({number}, REPEAT('b', {ROW}))")
                connection.commit()

            def past_four_gib() -> bool:
                assert stream.process.poll() is None, stream.stderr()
                return any(chunk.end > FOUR_GIB for chunk in there.chunks(name))

            wait_until(past_four_gib, 600, "a chunk past 4 GiB", interval=0.2)
            stream.kill()
        before = len(there.chunks(name))
        with StreamProcess(disk_tmp_path / "one", server, minio, bucket) as stream:
            wait_until_archived(stream, server, minio, bucket, timeout=900)
            line = max(stream.events("binlog archived"), key=lambda line: line["size"])
            assert line["size"] > 5_000_000_000
            assert line["sent"] < line["size"] - 4_000_000_000, "what lay there was sent again"
            assert line["copied"] >= before - 70
            assert stream.terminate() == 0
    assert uploads(minio, bucket) == []
    assert [chunk for chunk in there.chunks() if chunk.binlog == name] == []
