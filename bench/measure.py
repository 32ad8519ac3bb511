"""One measurement: servers, a way into the bucket, a load, a reader, and what came out as values.

Law: the moment a transaction could be restored is the first at which the reader's own listing
covered its last byte and every byte before it; each is then found in what GET returns.
"""

import multiprocessing
import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Event
from time import monotonic
from typing import Any

from bench import ways
from bench.link import SlowLink
from bench.load import FILLERS, TABLE, Done, Plan, drive
from bench.reach import Bucket, History, covers, look, watch
from bench.readback import Contents, read_back, scan
from bench.traffic import FULL_CHUNK_BYTES, Traffic, traffic_of
from lab import get
from lab.child import ServerFailedError
from lab.disk import temporary_directory
from lab.mysql import MysqlServer
from lab.proxy import RecordingProxy
from lab.s3 import MinioServer
from lab.verify import file_pieces

ROUND_TRIP_SECONDS = 0.09
BYTES_PER_SECOND = 2_000_000
START_SECONDS = 90.0
QUANTILES = (*(i / 100 for i in range(100)), 0.995, 0.999, 1.0)
_processes = multiprocessing.get_context("spawn")


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What is measured. `drain_seconds` is how long it may take to catch up after the load."""

    name: str
    plan: Plan
    way: str = "stream"
    flush_interval: float = 1.0
    slow_link: bool = False
    drain_seconds: float = 60.0
    keep_log: Path | None = None


def measure(setting: Setting) -> dict[str, Any]:
    """Measure; what the report is made from."""
    load_before = os.getloadavg()[0]
    started = datetime.now(UTC)
    with ExitStack() as stack:
        folder = stack.enter_context(temporary_directory("binlog2s3-bench-"))
        store = stack.enter_context(MinioServer(get.minio(), folder / "store"))
        server = stack.enter_context(MysqlServer(get.mysql(), folder / "mysql"))
        where = Bucket.made_in(store)
        proxy = stack.enter_context(RecordingProxy(store.endpoint_url))
        endpoint = proxy.url
        if setting.slow_link:
            link = SlowLink(
                proxy.url,
                round_trip_seconds=ROUND_TRIP_SECONDS,
                bytes_per_second=BYTES_PER_SECOND,
            )
            endpoint = stack.enter_context(link).url
        server.query(*TABLE)
        with _way(setting, where, endpoint, server, folder) as alive:
            seen = _observe(setting, where, server, alive)
        if setting.keep_log is not None:
            setting.keep_log.parent.mkdir(parents=True, exist_ok=True)
            setting.keep_log.write_bytes((folder / "stream.log").read_bytes())
        contents = _contents(setting, where, server)
        traffic = traffic_of(
            record for record in proxy.records if seen.begin <= record.end <= seen.end
        )
    return {
        "name": setting.name,
        "way": setting.way,
        "flush_interval": setting.flush_interval,
        "slow_link": setting.slow_link,
        "plan": asdict(setting.plan),
        "started": f"{started:%Y-%m-%dT%H:%M:%SZ}",
        "load_average": [round(load_before, 1), round(os.getloadavg()[0], 1)],
        **summary(setting.plan, seen, contents),
        **_sent(traffic, seen),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What was observed. `before` and `after` the load: binlogs and sizes at the server."""

    begin: float
    end: float
    done: Done
    history_end: float
    samples: Sequence[Any]
    before: list[tuple[str, int]]
    after: list[tuple[str, int]]
    drained_seconds: float | None

    @property
    def binlog_bytes(self) -> int:
        """How many bytes the load has made."""
        return sum(size for _, size in self.after) - sum(size for _, size in self.before)


def summary(plan: Plan, seen: Seen, contents: Contents) -> dict[str, Any]:
    """The numbers about time. A transaction that was never seen counts with the time it waited."""
    sizes = {**contents.sizes, **_closed(seen.after)}
    history = History(seen.samples, sizes)
    delays: list[float] = []
    fillers: list[float] = []
    behind = missing = 0
    for number, moment in seen.done.commits:
        place = contents.places.get(number)
        at = history.restorable_at(place.binlog, place.end) if place else None
        missing += place is None
        behind += at is None
        delays.append((seen.history_end if at is None else at) - moment)
        if number >= FILLERS:
            fillers.append(delays[-1])
    delays.sort()
    reach = history.reach_at(seen.done.end)
    lag = sum(max(0, size - reach.get(name, 0)) for name, size in seen.after)
    return {
        "seconds": round(seen.done.end - seen.begin, 1),
        "offered": None if not plan.rate else round(plan.rate * plan.seconds) + plan.fillers,
        "commits": len(delays),
        "behind": behind,
        "missing": missing,
        "p50": quantile(delays, 0.5),
        "p99": quantile(delays, 0.99),
        "max": quantile(delays, 1.0),
        "fillers": [round(delay, 3) for delay in sorted(fillers)],
        "curve": [quantile(delays, share) for share in QUANTILES],
        "lag_bytes": lag,
        "drained_seconds": seen.drained_seconds,
        "binlogs": len(seen.after) - len(seen.before) + 1,
        "binlog_bytes": seen.binlog_bytes,
        "part_ends": sum(size // FULL_CHUNK_BYTES for size in sizes.values()),
        "read_back_bytes": sum(contents.sizes.values()),
    }


def quantile(ordered: Sequence[float], share: float) -> float | None:
    """The smallest value that at least this share of them does not exceed."""
    if not ordered:
        return None
    at = max(0, -int(-share * len(ordered) // 1) - 1)
    return round(ordered[min(at, len(ordered) - 1)], 3)


def _sent(traffic: Traffic, seen: Seen) -> dict[str, Any]:
    sent = traffic.head_bytes + traffic.body_bytes
    return {
        "observed_seconds": round(seen.end - seen.begin, 1),
        "requests": traffic.kinds,
        "head_bytes": traffic.head_bytes,
        "body_bytes": traffic.body_bytes,
        "sent_ratio": round(sent / seen.binlog_bytes, 3) if seen.binlog_bytes else None,
    }


def _closed(binlogs: list[tuple[str, int]]) -> dict[str, int]:
    """Sizes that are final."""
    return dict(binlogs[:-1])


@contextmanager
def _way(
    setting: Setting, where: Bucket, endpoint: str, server: MysqlServer, folder: Path
) -> Iterator[ways.Alive]:
    """The way into the bucket, with its end in order."""
    way: AbstractContextManager[ways.Alive]
    match setting.way:
        case "plain":
            way = ways.plain(where, endpoint, server)
        case "wal-g":
            way = ways.wal_g_pushes(where, endpoint, server)
        case _:
            way = ways.streamer(
                where,
                endpoint,
                server,
                folder,
                flush_interval=setting.flush_interval,
                log_level="debug" if setting.keep_log else "info",
            )
    with way as alive:
        yield alive


def _observe(setting: Setting, where: Bucket, server: MysqlServer, alive: ways.Alive) -> Seen:
    """Start the reader, run the load, wait until it can be read or the time is up."""
    client = where.client()
    pause = Event()

    def wait(done: list[tuple[str, int]], seconds: float) -> float | None:
        """Seconds until all of these could be read; None if they cannot in this time."""
        begin = monotonic()
        while not covers(look(client, where), done):
            alive()
            if monotonic() - begin > seconds:
                return None
            pause.wait(0.2)
        return round(monotonic() - begin, 1)

    if setting.flush_interval == 0:
        server.query("FLUSH BINARY LOGS")
    first = server.binlogs()
    if wait(first[:-1] if setting.flush_interval == 0 else first, START_SECONDS) is None:
        raise ServerFailedError("what was committed before the load does not reach the bucket")
    stop = _processes.Event()
    with child(watch, where, stop) as reader, child(drive, server.socket, setting.plan) as load:
        answer(reader, alive, START_SECONDS)
        before = server.binlogs()
        done = answer(load, alive, setting.plan.seconds + START_SECONDS)
        if not isinstance(done, Done):
            raise ServerFailedError(str(done))
        after = server.binlogs()
        if setting.flush_interval == 0:
            server.query("FLUSH BINARY LOGS")
        drained = wait(after, setting.drain_seconds)
        end = monotonic()
        pause.wait(0.2)  # the reader looks as often as every 50 ms
        stop.set()
        history_end, samples = answer(reader, alive, START_SECONDS)
    client.close()
    return Seen(
        begin=done.begin,
        end=end,
        done=done,
        history_end=history_end,
        samples=samples,
        before=before,
        after=after,
        drained_seconds=drained,
    )


@contextmanager
def child(target: Any, *arguments: Any) -> Iterator[Connection]:
    """A process of its own that answers through a pipe."""
    ours, theirs = _processes.Pipe(duplex=False)
    process = _processes.Process(target=target, args=(*arguments, theirs), daemon=True)
    process.start()
    theirs.close()
    try:
        yield ours
    finally:
        ours.close()
        process.join(10)
        if process.is_alive():
            process.kill()
            process.join(10)
        process.close()


def answer(process: Connection, alive: ways.Alive, seconds: float) -> Any:
    """The next answer of a process. Raises ServerFailedError when it does not come."""
    deadline = monotonic() + seconds
    while not process.poll(0.5):
        alive()
        if monotonic() > deadline:
            raise ServerFailedError(f"a process of the benchmark says nothing for {seconds:.0f} s")
    try:
        return process.recv()
    except EOFError:
        raise ServerFailedError("a process of the benchmark has ended by itself") from None


def _contents(setting: Setting, where: Bucket, server: MysqlServer) -> Contents:
    """Every transaction's place; of wal-g's compressed binlogs from the server's own files."""
    if setting.way != "wal-g":
        return read_back(where)
    contents = Contents({}, {})
    for name, _size in server.binlogs():
        scan(name, file_pieces(server.datadir / name), contents)
    return contents
