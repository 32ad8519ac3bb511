"""Thousands of small binlogs with their entries, straight into a store: what a year leaves.

    python -m lab.many --count 10000    # fills a throwaway MinIO, runs `list` and `verify`

Law: the bytes are those of a server (`tests/binlog_writer.py`), the entries those that a streamer
makes of them, so nothing that reads them can tell the difference.
"""

import argparse
import io
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic, sleep, time
from typing import Self

from binlog2s3.archive.chunks import Chunk
from binlog2s3.archive.documents import Entry, Lineage, SourceServer
from binlog2s3.archive.layout import Layout
from binlog2s3.archive.pages import SPAN, Page, build, first_of
from binlog2s3.archive.parts import Grid
from binlog2s3.archive.reading import BinlogReading
from binlog2s3.archive.writers import Heartbeat, Position, Turn
from binlog2s3.binlog.checksum import crc64nvme
from binlog2s3.binlog.gtid import GtidSet
from binlog2s3.binlog.names import BinlogName
from lab import get
from lab.disk import temporary_directory
from lab.s3 import REGION, MinioServer
from tests.binlog_writer import NOW, XID, BinlogWriter, statement
from tests.binlog_writer import UUID_A as UUID

LAYOUT = Layout("pre", "test")
ID = f"{datetime.fromtimestamp(NOW, UTC):%Y%m%dT%H%M%SZ}-{UUID[:8]}-a1b2"
FIRST = BinlogName("mysql-bin", 1)
_GRID = Grid(5 << 20)
_SECONDS_EACH = 300
_VERSION = "9.7.4"
_LOOK_SECONDS = 0.05
_AT_ONCE = 10_000


@dataclass(frozen=True, slots=True)
class Measured:
    """What a command took. `cpu_seconds` are its own alone; `rss` are bytes, at its peak."""

    status: int
    seconds: float
    cpu_seconds: float
    rss: int
    stdout: str
    stderr: str


def lineage() -> Lineage:
    """The one that all are of."""
    return Lineage(
        lineage=ID,
        source=LAYOUT.source,
        server=SourceServer(uuid=UUID, flavour="mysql", version=_VERSION),
        first_binlog=FIRST,
        first_binlog_time=datetime.fromtimestamp(NOW, UTC),
        gtid_set="",
        parent=None,
    )


def binlog(number: int, transactions: int, row_bytes: int, *, rotate: bool = True) -> bytes:
    """The bytes of the binlog of this number, from 1 on, as MySQL writes them."""
    began = NOW + (number - 1) * _SECONDS_EACH
    writer = BinlogWriter(server_version=_VERSION, timestamp=began)
    before = (number - 1) * transactions
    writer.previous_gtids(GtidSet({(UUID, ""): [(1, before)]} if before else {}))
    for at in range(transactions):
        row = statement(f"INSERT INTO t VALUES ({before + at}, '{'x' * row_bytes}')")
        commit_us = began * 1_000_000 + at * 1_000
        writer.transaction(
            [statement("BEGIN"), row, XID], gtid=(UUID, "", before + at + 1), commit_us=commit_us
        )
    if rotate:
        writer.rotate(str(name(number + 1)))
    return bytes(writer.data)


def name(number: int) -> BinlogName:
    """The name of the binlog of this number."""
    return BinlogName(FIRST.prefix, number)


def fill(
    minio: MinioServer, bucket: str, count: int, *, transactions: int = 3, row_bytes: int = 100,
    pages: bool = True,
) -> int:  # fmt: skip
    """Put lineage.json, so many archived binlogs, an open one and a heartbeat; their bytes.

    MinIO unpacks archives of many objects, which is much faster than a request for each.
    """
    size = 0
    with _Pour(minio, bucket) as pour:
        pour.put(LAYOUT.lineage(ID), lineage().to_json())
        entries: dict[int, Entry] = {}
        page: Page | None = None
        paged: list[tuple[str, bytes]] = []
        for number in range(1, count + 1):
            data = binlog(number, transactions, row_bytes)
            size += len(data)
            reading = BinlogReading(name(number))
            reading.feed(memoryview(data))
            entry = reading.entry(datetime.now(UTC))
            pour.put(LAYOUT.binlog(ID, name(number)), data)
            pour.put(LAYOUT.entry(ID, name(number)), entry.to_json())
            entries[number] = entry
            if number % SPAN == SPAN - 1:
                page = build(lineage(), first_of(number), entries, page)
                entries.clear()
                if pages:
                    paged.append((LAYOUT.page(ID, page.first), page.to_json()))
        last = binlog(count + 1, transactions, row_bytes, rotate=False)
        chunk = Chunk(0, len(last), crc64nvme(last))
        pour.put(LAYOUT.chunk(ID, name(count + 1), chunk), last)
        beat = _beat(name(count + 1), len(last))
        pour.put(LAYOUT.turn(1), _turn(beat).to_json())
        pour.put(LAYOUT.writer(1, "9c2d41aa"), beat.to_json())
    with _Pour(minio, bucket) as pour:  # later than the entries, as a streamer writes them
        for key, document in paged:
            pour.put(key, document)
    return size


class _Pour:
    """Puts objects, many in one request."""

    def __init__(self, minio: MinioServer, bucket: str) -> None:
        self._client = minio.client()
        self._bucket = bucket
        self._waiting: list[tuple[str, bytes]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._send()
        self._client.close()

    def put(self, key: str, data: bytes) -> None:
        self._waiting.append((key, data))
        if len(self._waiting) == _AT_ONCE:
            self._send()

    def _send(self) -> None:
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as tar:
            for key, data in self._waiting:
                info = tarfile.TarInfo(key)
                info.size, info.mtime = len(data), int(time())
                tar.addfile(info, io.BytesIO(data))
        self._waiting.clear()
        self._client.put_object(
            Bucket=self._bucket,
            Key="many.tar",
            Body=packed.getvalue(),
            Metadata={"snowball-auto-extract": "true"},
        )


def _turn(beat: Heartbeat) -> Turn:
    return Turn(number=1, lineage=ID, generation=beat.generation, token=beat.token)


def _beat(durable: BinlogName, offset: int) -> Heartbeat:
    now = datetime.now(UTC)
    return Heartbeat(
        generation=1,
        token="9c2d41aa",
        source=LAYOUT.source,
        host="db1",
        pid=4711,
        version="0.3.0",
        since=now,
        at=now,
        interval_seconds=30.0,
        state="stopped",
        lineage=ID,
        server_uuid=UUID,
        durable=Position(binlog=durable, offset=offset, gtid_set=""),
        server=None,
        covered_until=datetime.fromtimestamp(NOW + durable.number * _SECONDS_EACH, UTC),
    )


def measured(argv: Sequence[str], environment: Mapping[str, str], timeout: float) -> Measured:
    """Run a command to its end, and see what it took."""
    with temporary_directory() as directory:
        out, err = directory / "out", directory / "err"
        began = monotonic()
        with out.open("wb") as stdout, err.open("wb") as stderr:
            process = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, env=environment
            )
        rss = 0
        while not (ended := os.wait4(process.pid, os.WNOHANG))[0]:
            rss = max(rss, _peak(process.pid))
            if monotonic() - began > timeout:
                process.kill()
            sleep(_LOOK_SECONDS)
        _, status, usage = ended
        process.returncode = os.waitstatus_to_exitcode(status)
        return Measured(
            process.returncode,
            monotonic() - began,
            usage.ru_utime + usage.ru_stime,
            rss,
            out.read_text(),
            err.read_text(),
        )


def _peak(pid: int) -> int:
    """The most memory that a process ever had, in bytes; 0 once it has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM")), 0)


def _cpu_seconds(minio: MinioServer) -> float:
    """What a store has taken so far."""
    words = Path(f"/proc/{minio.pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def command(minio: MinioServer, bucket: str, *words: str) -> tuple[list[str], dict[str, str]]:
    """Arguments and environment of `binlog2s3` on this store."""
    argv = [sys.executable, "-m", "binlog2s3", *words, f"--s3-url=s3://{bucket}/{LAYOUT.prefix}"]
    argv += [f"--endpoint-url={minio.endpoint_url}", "--addressing-style=path"]
    given = {k: v for k, v in os.environ.items() if not k.startswith(("AWS_", "BINLOG2S3_"))}
    return [*argv, f"--region={REGION}"], {**given, **minio.env()}


def _lines(minio: MinioServer, bucket: str, runs: Sequence[Sequence[str]]) -> Iterator[str]:
    for words in runs:
        argv, environment = command(minio, bucket, *words)
        before = _cpu_seconds(minio)
        found = measured(argv, environment, 1800)
        store = _cpu_seconds(minio) - before
        yield (
            f"{' '.join(words)}: exit {found.status}, {found.seconds:.1f} s "
            f"({found.cpu_seconds:.1f} s of CPU, the store's {store:.1f} s), "
            f"{found.rss / (1 << 20):.0f} MiB, {len(found.stdout)} characters"
        )
        if found.stderr:
            yield found.stderr[-500:]


def main() -> None:
    """Fill a throwaway MinIO, measure, and say it."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--transactions", type=int, default=3)
    parser.add_argument("--row-bytes", type=int, default=100)
    parser.add_argument("--no-pages", action="store_true", help="as a streamer before pages")
    parser.add_argument("--keep", action="store_true", help="wait for Enter in the end")
    parser.add_argument(
        "--run", action="append", help="a command with its options, instead of the usual ones"
    )
    given = parser.parse_args()
    with temporary_directory() as directory, MinioServer(get.minio(), directory) as minio:
        bucket = minio.make_bucket()
        began = monotonic()
        size = fill(
            minio,
            bucket,
            given.count,
            transactions=given.transactions,
            row_bytes=given.row_bytes,
            pages=not given.no_pages,
        )
        print(f"{given.count} binlogs, {size} bytes, in {monotonic() - began:.1f} s")
        runs = [run.split() for run in given.run or ("list", "verify", "verify --deep")]
        for line in _lines(minio, bucket, runs):
            print(line)
        if given.keep:
            argv, _ = command(minio, bucket)
            print(" ".join(argv))
            print({key: value for key, value in minio.env().items() if key.startswith("AWS_")})
            input("Enter ends it")


if __name__ == "__main__":
    main()
