"""The open binlog's chunks on a real store: read by our code, and without it."""

import os
import re
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from binlog2s3.archive.chunks import Chunk
from binlog2s3.archive.layout import Layout
from binlog2s3.binlog.checksum import crc64nvme
from binlog2s3.store.s3 import S3Store
from lab.disk import temporary_directory
from lab.get import ServerBinaries
from lab.mysql import MysqlServer
from lab.reference import ROOT
from lab.s3 import REGION, MinioServer
from tests.documents import ID, NAME
from tests.world.commands import opened

LAYOUT = Layout("a/b", "orders")
ARCHIVED = LAYOUT.binlog(ID, NAME)
PART = 5 << 20
FLAG_OFFSET = 21


@pytest.fixture(scope="module")
def data(mysql_binaries: ServerBinaries) -> bytes:
    """A real server's open binlog, a part and some, with the in-use flag cleared as in a stream."""
    with temporary_directory() as directory, MysqlServer(mysql_binaries, directory) as server:
        server.query(
            "CREATE DATABASE shop",
            "CREATE TABLE shop.t (id INT AUTO_INCREMENT PRIMARY KEY, v LONGBLOB)",
            *["INSERT INTO shop.t (v) VALUES (RANDOM_BYTES(1000))"] * 20,
            *["INSERT INTO shop.t (v) VALUES (REPEAT(RANDOM_BYTES(1024), 1024))"] * 6,
            *["INSERT INTO shop.t (v) VALUES (RANDOM_BYTES(300))"] * 20,
            "CREATE TABLE shop.the_last (id INT PRIMARY KEY)",
        )
        found = bytearray((server.datadir / server.binlogs()[-1][0]).read_bytes())
    assert found[FLAG_OFFSET] == 1
    found[FLAG_OFFSET] = 0
    return bytes(found)


@pytest.fixture
def store(minio: MinioServer, bucket: str) -> Iterator[S3Store]:
    with opened(minio, bucket) as made:
        yield made


def event_ends(data: bytes) -> list[int]:
    ends = [4]
    while ends[-1] < len(data):
        ends.append(ends[-1] + struct.unpack_from("<I", data, ends[-1] + 9)[0])
    assert ends[-1] == len(data)
    return ends


def put_chunk(store: S3Store, data: bytes, begin: int, end: int) -> str:
    piece = data[begin:end]
    key = LAYOUT.chunk(ID, NAME, Chunk(begin, end, crc64nvme(piece)))
    store.put(key, piece)
    return key


def put_chunks(store: S3Store, data: bytes) -> list[str]:
    """As a streamer leaves them in the worst case: a full chunk, others within and across it.

    The keys of those that make the binlog, in order.
    """
    ends = [end for end in event_ends(data) if end > PART]
    put_chunk(store, data, 0, ends[0] // 2)
    full = put_chunk(store, data, 0, PART)
    put_chunk(store, data, PART - 10, PART)
    across = put_chunk(store, data, ends[0] // 2, ends[2])
    put_chunk(store, data, PART, ends[1])
    follows = put_chunk(store, data, ends[2], ends[10])
    last = put_chunk(store, data, ends[7], len(data))
    for odd in ("notes.txt", str(Chunk(0, len(data) + 1, 5)), "0-9-f"):
        store.put(LAYOUT.chunks(ID, NAME) + odd, b"no chunk")
    store.put(f"{ARCHIVED}9", b"another binlog")
    return [full, across, follows, last]


# Without our code


class Script:
    """The script of docs/format.md, with an `aws` before which `hook` runs once, at the n-th cp."""

    def __init__(self, directory: Path, aws: Path, minio: MinioServer, bucket: str) -> None:
        text = (ROOT / "docs/format.md").read_text(encoding="utf-8")
        found = re.findall(r"^```sh\n(#!/bin/sh\n.*?)^```", text, re.DOTALL | re.MULTILINE)
        assert len(found) == 1
        self.path = directory / "join.sh"
        self.path.write_text(found[0])
        self.file = directory / "joined"
        self.hook = directory / "hook"
        self.bucket = bucket
        programs = directory / "programs"
        programs.mkdir()
        (programs / "aws").write_text(
            f"""#!/bin/sh
if [ "$2" = cp ] && [ -e "{self.hook}" ]; then
    echo >> "{self.hook}.calls"
    if [ "$(wc -l < "{self.hook}.calls")" -eq "$(head -n 1 "{self.hook}" | tr -d '# ')" ]; then
        aws() {{ "{aws}" "$@" > /dev/null; }}
        . "{self.hook}"
    fi
fi
exec "{aws}" "$@"
"""
        )
        (programs / "aws").chmod(0o755)
        self.env = {
            **os.environ,
            **minio.env(),
            "PATH": f"{programs}:{os.environ['PATH']}",
            "AWS_ENDPOINT_URL": minio.endpoint_url,
            "AWS_DEFAULT_REGION": REGION,
            "AWS_MAX_ATTEMPTS": "1",
        }

    def at_copy(self, number: int, *commands: str) -> None:
        """Run these before the n-th `aws s3 cp` of the script; KEY: stands for s3://bucket/."""
        lines = [command.replace("KEY:", f"s3://{self.bucket}/") for command in commands]
        self.hook.write_text("\n".join([f"# {number}", *lines, ""]))

    def run(self, bucket: str = "") -> "subprocess.CompletedProcess[str]":
        url = f"s3://{bucket or self.bucket}/{LAYOUT.prefix}"
        return subprocess.run(
            ["sh", self.path, url, LAYOUT.source, ID, str(NAME), self.file],
            check=False,
            capture_output=True,
            text=True,
            timeout=300,
            env=self.env,
        )

    def joined(self) -> bytes:
        """What it has made; it must have succeeded and left nothing else."""
        done = self.run()
        assert done.returncode == 0, done.stderr
        assert list(self.file.parent.glob("joined.*")) == []
        return self.file.read_bytes()


@pytest.fixture
def script(disk_tmp_path: Path, aws_command: Path, minio: MinioServer, bucket: str) -> Script:
    return Script(disk_tmp_path, aws_command, minio, bucket)


def test_a_shell_and_aws_read_the_open_binlog(
    store: S3Store, data: bytes, script: Script, mysql_binaries: ServerBinaries, tmp_path: Path
) -> None:
    """Every byte by the document's own script; and MySQL's mysqlbinlog reads what it has made."""
    put_chunks(store, data)
    assert script.joined() == data
    servers = tmp_path / "of-the-server"
    servers.write_bytes(data)
    texts = []
    for file in (script.file, servers):
        done = subprocess.run(
            [mysql_binaries.binlog, "--verify-binlog-checksum", file],
            check=False,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert (done.returncode, done.stderr) == (0, "")
        texts.append(done.stdout)
    assert texts[0] == texts[1]
    assert "CREATE TABLE shop.the_last" in texts[0]


def test_the_script_looks_again_where_a_chunk_vanishes(
    store: S3Store, data: bytes, script: Script
) -> None:
    """It goes on at the byte it had reached, with the chunk that holds the vanished one's bytes."""
    keys = put_chunks(store, data)
    piece = data[PART - 99 :]
    cover = LAYOUT.chunk(ID, NAME, Chunk(PART - 99, len(data), crc64nvme(piece)))
    store.put("held", piece)
    script.at_copy(
        2, f"aws s3 cp KEY:held KEY:{cover}", *(f"aws s3 rm KEY:{key}" for key in keys[1:])
    )
    assert script.joined() == data
    assert store.head(keys[1]) is None


def test_the_script_finds_what_was_archived_meanwhile(
    store: S3Store, data: bytes, script: Script
) -> None:
    """Chunks that went away because the binlog was archived: then it takes the archived one."""
    keys = put_chunks(store, data)
    store.put("held", data)
    script.at_copy(
        3, f"aws s3 cp KEY:held KEY:{ARCHIVED}", *(f"aws s3 rm KEY:{key}" for key in keys)
    )
    assert script.joined() == data
    assert store.head(keys[2]) is None


def test_the_script_fails_rather_than_give_too_little(
    store: S3Store, data: bytes, script: Script
) -> None:
    """Nothing is there, or for another reason no bucket; a hole; two histories.

    With the archived binlog, chunks that are left do not matter.
    """
    done = script.run()
    assert done.returncode == 1
    assert f"nothing of {NAME}" in done.stderr
    done = script.run("no-such-bucket-here")
    assert done.returncode not in (0, 1) or "NoSuchBucket" in done.stderr
    assert f"nothing of {NAME}" not in done.stderr
    put_chunk(store, data, 0, 900)
    put_chunk(store, data, 901, 2000)
    done = script.run()
    assert done.returncode == 1
    assert "from 900 on cannot be had" in done.stderr
    other = bytearray(data[:2000])
    other[850] ^= 1
    key = put_chunk(store, bytes(other), 800, 2000)
    done = script.run()
    assert done.returncode == 1
    assert f"{key} disagrees" in done.stderr
    store.put(ARCHIVED, data)
    assert script.joined() == data
