"""What many streamers on one machine take: `python -m bench.instances 1 10 50`.

    python -m bench.instances 1 10 50 --write   # and put the table into docs/guides/many-sources.md

One real MySQL serves them all, each streams it under a source's name of its own into one MinIO,
with the default settings. Two minutes of each number: in the first nobody commits, in the second
one small row is committed each second, which all of them stream.

Law: what counts is the streamer with its mysqlbinlog. Memory is PSS, which shares what processes
have in common and so can be added up, and USS, what goes when one ends. A run counts only if all
of them are idle before, and had nothing left to send at the end.
"""

import argparse
import json
import os
import sys
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Event
from time import monotonic

from bench.processes import children, cpu_seconds
from bench.reach import Bucket
from bench.ways import start_streamer
from lab import get
from lab.child import ServerFailedError, end, tail
from lab.disk import temporary_directory
from lab.mysql import MysqlServer
from lab.s3 import MinioServer

SECONDS = 60.0
READY_SECONDS = 300.0
AT_ONCE = 4
"""So many are started together: Python's start takes a second of a processor."""
PAGE = Path(__file__).parents[1] / "docs/guides/many-sources.md"
BEGIN, END = "<!-- begin instances -->", "<!-- end instances -->"
HEAD = (
    "instances",
    "PSS MiB",
    "each",
    "of it mysqlbinlog",
    "USS MiB each",
    "idle CPU s/min",
    "each",
    "at 1 commit/s CPU s/min",
    "each",
    "threads at the source",
    "load average",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Bytes, of one process or of several."""

    pss: int
    uss: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Of so many streamers together. CPU seconds are of a minute; `load` is before and after."""

    count: int
    streamers: Memory
    decoders: Memory
    idle_cpu: float
    busy_cpu: float
    threads: int
    load: tuple[float, float]

    @property
    def row(self) -> tuple[str, ...]:
        """A line of the table."""
        pss = self.streamers.pss + self.decoders.pss
        uss = self.streamers.uss + self.decoders.uss
        return (
            f"{self.count}",
            f"{pss / (1 << 20):,.0f}",
            f"{pss / self.count / (1 << 20):.1f}",
            f"{self.decoders.pss / self.count / (1 << 20):.1f}",
            f"{uss / self.count / (1 << 20):.1f}",
            f"{self.idle_cpu:.1f}",
            f"{self.idle_cpu / self.count:.2f}",
            f"{self.busy_cpu:.1f}",
            f"{self.busy_cpu / self.count:.2f}",
            f"{self.threads}",
            f"{self.load[0]:.1f} to {self.load[1]:.1f}",
        )


@dataclass(slots=True)
class Streamer:
    """One of them: its source's name, its process, its log."""

    source: str
    pid: int
    log: Path


def measure(count: int, *, seconds: float = SECONDS) -> Measured:
    """Start so many, and see what they take."""
    before = os.getloadavg()[0]
    with ExitStack() as stack:
        folder = stack.enter_context(temporary_directory("binlog2s3-instances-"))
        store = stack.enter_context(MinioServer(get.minio(), folder / "store"))
        options = ["--max-connections=1000"]
        server = stack.enter_context(MysqlServer(get.mysql(), folder / "mysql", options=options))
        server.query("CREATE DATABASE bench", "CREATE TABLE bench.t (id INT PRIMARY KEY)")
        where = Bucket.made_in(store)
        streamers: list[Streamer] = []
        for number in range(1, count + 1):
            streamers.append(_started(stack, server, where, folder / f"source-{number}"))
            if number % AT_ONCE == 0:
                _wait_started(streamers)
        _wait_idle(store, where.bucket, streamers)
        idle = _cpu_of_a_minute(streamers, seconds)
        threads = int(server.query("SHOW STATUS LIKE 'Threads_connected'")[0][1]) - 1
        decoders = [child for one in streamers for child in children(one.pid)]
        of_streamers = _memory(one.pid for one in streamers)
        of_decoders = _memory(decoders)
        busy = _cpu_of_a_minute(streamers, seconds, server)
        _wait_idle(store, where.bucket, streamers)
        return Measured(
            count=count,
            streamers=of_streamers,
            decoders=of_decoders,
            idle_cpu=idle * 60 / seconds,
            busy_cpu=busy * 60 / seconds,
            threads=threads,
            load=(before, os.getloadavg()[0]),
        )


def _started(stack: ExitStack, server: MysqlServer, where: Bucket, folder: Path) -> Streamer:
    folder.mkdir()
    source = folder.name
    process = start_streamer(
        replace(where, source=source), where.endpoint_url, server, folder, more={}
    )
    stack.callback(end, process, grace_seconds=20)
    return Streamer(source, process.pid, folder / "stream.log")


def _wait_started(streamers: Iterable[Streamer]) -> None:
    """Until each one has put its first bytes."""
    deadline, pause = monotonic() + READY_SECONDS, Event()
    for one in streamers:
        while b"new lineage" not in one.log.read_bytes():
            if monotonic() > deadline or not Path(f"/proc/{one.pid}").exists():
                raise ServerFailedError(f"{one.source} does not stream\n{tail(one.log)}")
            pause.wait(0.2)


def _wait_idle(store: MinioServer, bucket: str, streamers: Sequence[Streamer]) -> None:
    """Until each one's heartbeat, as the bucket has it, says that nothing is left to send."""
    deadline, pause = monotonic() + READY_SECONDS, Event()
    with closing(store.client()) as client:
        for one in streamers:
            while True:
                if not Path(f"/proc/{one.pid}").exists():
                    raise ServerFailedError(f"{one.source} has ended\n{tail(one.log)}")
                listed = client.list_objects_v2(
                    Bucket=bucket, Prefix=f"pre/live/{one.source}/writers/"
                )
                keys = [item["Key"] for item in listed.get("Contents", ())]
                if keys:
                    body = client.get_object(Bucket=bucket, Key=max(keys))["Body"].read()
                    if json.loads(body)["state"] == "idle":
                        break
                if monotonic() > deadline:
                    raise ServerFailedError(f"{one.source} is not idle\n{tail(one.log)}")
                pause.wait(0.5)


def _cpu_of_a_minute(
    streamers: Sequence[Streamer], seconds: float, server: MysqlServer | None = None
) -> float:
    """CPU seconds that they and their children take meanwhile; at `server` a row is committed."""
    pause = Event()
    before, begun = _cpu(streamers), monotonic()
    committed = 0
    while (left := begun + seconds - monotonic()) > 0:
        if server is not None:
            server.query("INSERT INTO bench.t SELECT COALESCE(MAX(id), 0) + 1 FROM bench.t")
            committed += 1
        due = begun + committed - monotonic() if server is not None else left
        pause.wait(max(0.0, min(left, due)))
    return _cpu(streamers) - before


def _cpu(streamers: Iterable[Streamer]) -> float:
    return sum(sum(cpu_seconds(pid)) for one in streamers for pid in (one.pid, *children(one.pid)))


def _memory(pids: Iterable[int]) -> Memory:
    pss = uss = 0
    for pid in pids:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="utf-8").splitlines():
            name, _, value = line.partition(":")
            if name == "Pss":
                pss += int(value.split()[0]) << 10
            elif name in ("Private_Clean", "Private_Dirty"):
                uss += int(value.split()[0]) << 10
    return Memory(pss=pss, uss=uss)


def table(measured: Iterable[Measured]) -> str:
    """As it stands in the document."""
    lines = [HEAD, ("---:",) * len(HEAD), *(one.row for one in measured)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def written(page: str, shown: str) -> str:
    """The document with this table in it."""
    before, begin, rest = page.partition(BEGIN)
    _, found, after = rest.partition(END)
    if not (begin and found):
        raise ValueError(f"{PAGE} has no place for the table")
    return f"{before}{begin}\n\n{shown}\n\n{found}{after}"


def main() -> None:
    """Measure each number in turn, and show the table."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("counts", type=int, nargs="+", metavar="COUNT")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of each of the two spans")
    parser.add_argument(
        "--write", action="store_true", help="put it into docs/guides/many-sources.md"
    )
    given = parser.parse_args()
    done = []
    for count in given.counts:
        done.append(measure(count, seconds=given.seconds))
        print(f"{count}: {done[-1]}", file=sys.stderr, flush=True)
    print(table(done))
    if given.write:
        text = written(PAGE.read_text(encoding="utf-8"), table(done))
        PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
