"""How fast a backlog of closed binlogs gets into S3: `python -m bench.catchup`.

    python -m bench.catchup                                  # all of it, half an hour
    python -m bench.catchup --megabytes 20 --rounds 1        # a first look; kept nowhere
    python -m bench.catchup --rows 8000 --links far --option concurrency=16
    python -m bench.catchup --rows 8000 --links near --binlogs 1000 --rounds 1

These ways move the same binlogs, one after the other, in each round:

- `stream`: binlog2s3, from its start until every closed binlog has its entry in the archive;
- `kms`: the same, encrypted with SSE-KMS;
- `aws`: `mysqlbinlog --raw` fetches all of them, then `aws s3 cp` uploads the files;
- `s5cmd`: the same files, uploaded by `s5cmd cp -c 16 -p 10` (16 parts of 10 MiB at a time).

`near` is MinIO on the loopback interface. `far` adds toxiproxy between client and store: each
answer comes 90 ms later, and each connection carries 10 MB/s towards the store. The fetch is always
local.

Law: each run has a new store, and counts only if every object equals the server's own file.
"""

import argparse
import os
import resource
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from threading import Event
from time import monotonic
from typing import Any

import pymysql

from bench import ways
from bench.processes import children, cpu_seconds, peak_bytes
from bench.reach import Bucket
from bench.report import EVENT_BYTES, catchup_table
from bench.rpo import RESULTS, keep, load_results
from lab import get
from lab.cache import Unavailable
from lab.child import ServerFailedError, end, spawn, tail
from lab.disk import temporary_directory
from lab.get import ServerBinaries
from lab.mysql import MariadbServer, MysqlServer
from lab.s3 import REGION, MinioServer, environment_for
from lab.toxiproxy import Toxiproxy
from lab.verify import Binlog, archived_keys, closed_binlogs, compare

ROWS = (300, 8_000, 1_000_000)
LINKS = ("near", "far")
MEGABYTES = 1000
ROUNDS = 3
BINLOGS = 4
WRITERS = 8
LATENCY_MILLISECONDS = 90
KILOBYTES_PER_SECOND = 10_000
RUN_SECONDS = 600.0
LOOK_SECONDS = 0.1
RELAXED = ("--sync-binlog=0", "--innodb-flush-log-at-trx-commit=0", "--binlog-format=ROW")
SCHEMA = (
    "CREATE DATABASE bench",
    """CREATE TABLE bench.t (
      writer INT, n INT, v LONGTEXT CHARACTER SET latin1, PRIMARY KEY (writer, n)
    )""",
    """CREATE PROCEDURE bench.work(who INT, first INT, many INT, size INT)
    BEGIN
      DECLARE at INT DEFAULT first;
      WHILE at < first + many DO
        INSERT INTO bench.t VALUES (who, at, RPAD(RAND(), size, 'binlog'));
        SET at = at + 1;
      END WHILE;
    END""",
)
_REQUESTS = "minio_api_requests_total{"
_LOOK = "ListObjectsV2"


@dataclass(frozen=True, slots=True, kw_only=True)
class Used:
    """What one or more processes used: wall-clock seconds, CPU seconds, peak memory in bytes."""

    seconds: float = 0.0
    cpu_seconds: float = 0.0
    peak_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run of one way.

    `main` is the streamer or the upload program, `child` the streamer's mysqlbinlog or the fetch.
    `seconds` are those of the whole; `requests` are what the store counted, by its names.
    """

    seconds: float
    main: Used
    child: Used
    requests: dict[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Backlog:
    """A server with closed binlogs of rows of one size."""

    server: MysqlServer
    row_bytes: int
    binlogs: list[Binlog]

    @property
    def size(self) -> int:
        """Bytes of all closed binlogs."""
        return sum(binlog.size for binlog in self.binlogs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A new store: where the archive is, and the endpoint a way has to go through."""

    store: MinioServer
    where: Bucket
    endpoint_url: str


class _CountingMinio(MinioServer):
    """MinIO that tells its metrics to everyone."""

    def _environment(self) -> dict[str, str]:
        return {**super()._environment(), "MINIO_PROMETHEUS_AUTH_TYPE": "public"}


def transactions_each(megabytes: int, row_bytes: int, binlogs: int) -> int:
    """How many rows each writer inserts into each binlog, for so much in all; at least one."""
    return max(1, round(megabytes * 1e6 / binlogs / WRITERS / (row_bytes + EVENT_BYTES)))


def requests_in(metrics: str) -> dict[str, int]:
    """S3 requests by kind, from the text of MinIO's metrics.

    >>> requests_in('minio_api_requests_total{name="PutObject",server="a:1",type="s3"} 6')
    {'PutObject': 6}
    """
    found = {}
    for line in metrics.splitlines():
        if line.startswith(_REQUESTS):
            labels, _, value = line.rpartition(" ")
            found[labels.partition('name="')[2].partition('"')[0]] = int(float(value))
    return found


def medians(runs: Sequence[Run]) -> dict[str, Any]:
    """The median of each number; every run's seconds stay, because they show the spread."""

    def used(each: Sequence[Used]) -> dict[str, float]:
        return {
            "seconds": round(median(one.seconds for one in each), 2),
            "cpu_seconds": round(median(one.cpu_seconds for one in each), 2),
            "peak_bytes": round(median(one.peak_bytes for one in each)),
        }

    kinds = sorted({kind for run in runs for kind in run.requests})
    return {
        "seconds": round(median(run.seconds for run in runs), 2),
        "seconds_each": [round(run.seconds, 2) for run in runs],
        "main": used([run.main for run in runs]),
        "child": used([run.child for run in runs]),
        "requests": {kind: median(run.requests.get(kind, 0) for run in runs) for kind in kinds},
    }


@contextmanager
def backlog(
    folder: Path,
    row_bytes: int,
    megabytes: int,
    binlogs: int = BINLOGS,
    *,
    binaries: ServerBinaries | None = None,
) -> Iterator[Backlog]:
    """A server that has written the backlog; its table is gone again, to spare the disk."""
    options = [*RELAXED, "--max-binlog-size=1G"]
    binaries = binaries or get.mysql()
    kind = MariadbServer if binaries.flavour == "mariadb" else MysqlServer
    with kind(binaries, folder / "mysql", options=options) as server:
        server.query(*SCHEMA)
        many = transactions_each(megabytes, row_bytes, binlogs)

        def write(call: tuple[int, int]) -> None:
            writer, binlog = call
            server.query(f"CALL bench.work({writer}, {binlog * many}, {many}, {row_bytes})")

        with ThreadPoolExecutor(WRITERS) as pool:
            for binlog in range(binlogs):
                list(pool.map(write, [(writer, binlog) for writer in range(WRITERS)]))
                server.query("FLUSH BINARY LOGS")
        server.query("SET sql_log_bin = 0", "DROP DATABASE bench")
        closed = closed_binlogs(server, flush=False)
        yield Backlog(server=server, row_bytes=row_bytes, binlogs=closed)


@contextmanager
def target(folder: Path, link: str) -> Iterator[Target]:
    """A new store; `far` puts toxiproxy before it."""
    with _CountingMinio(get.minio(), folder / "store") as store:
        where = Bucket.made_in(store)
        if link == "near":
            yield Target(store=store, where=where, endpoint_url=store.endpoint_url)
            return
        with Toxiproxy(get.toxiproxy(), folder) as toxiproxy:
            door = toxiproxy.door("store", store.port)
            door.slow(milliseconds=LATENCY_MILLISECONDS)
            rate = {"type": "bandwidth", "attributes": {"rate": KILOBYTES_PER_SECOND}}
            toxic = {"name": "rate", "stream": "upstream", **rate}
            toxiproxy.ask("POST", f"/proxies/{door.name}/toxics", toxic)
            yield Target(store=store, where=where, endpoint_url=door.url)


def streamed(backlog: Backlog, into: Target, folder: Path, more: Mapping[str, Any]) -> Run:
    """binlog2s3, from its start until each closed binlog has its entry."""
    where, names = into.where, {f"{binlog.name}.json" for binlog in backlog.binlogs}
    begin, pause = monotonic(), Event()
    looks = peak = child_peak = 0
    process = ways.start_streamer(where, into.endpoint_url, backlog.server, folder, more=more)
    try:
        with closing(where.client()) as client:
            while True:
                looks += 1
                done = archived_keys(
                    client, where.bucket, where.prefix, where.source, folder="entries"
                )
                seconds = monotonic() - begin
                if process.poll() is not None or seconds > RUN_SECONDS:
                    raise ServerFailedError(
                        f"binlog2s3 has not archived the backlog after {seconds:.0f} s\n"
                        f"{tail(folder / 'stream.log')}"
                    )
                peak = peak_bytes(process.pid)
                child_peak = max([child_peak, *map(peak_bytes, children(process.pid))])
                if names <= done.keys():
                    break
                pause.wait(LOOK_SECONDS)
        own, ended = cpu_seconds(process.pid)
        running = sum(sum(cpu_seconds(pid)) for pid in children(process.pid))
        requests = _requests(into, looks=looks)
    finally:
        end(process, grace_seconds=20)
    return Run(
        seconds=seconds,
        main=Used(seconds=seconds, cpu_seconds=own, peak_bytes=peak),
        child=Used(seconds=seconds, cpu_seconds=ended + running, peak_bytes=child_peak),
        requests=requests,
    )


def fetched(backlog: Backlog, folder: Path) -> Used:
    """All closed binlogs into a folder, by mysqlbinlog over TCP, as the streamer gets them."""
    server = backlog.server
    login = folder / "login.cnf"
    login.touch(0o600)
    login.write_text(f"[client]\nuser={server.repl_user}\npassword={server.password}\n")
    address = ["--host=127.0.0.1", f"--port={server.port}"]
    (folder / "files").mkdir()
    what = ["--read-from-remote-server", "--raw", f"--result-file={folder / 'files'}/"]
    names = [binlog.name for binlog in backlog.binlogs]
    argv: list[str | Path] = [server.binaries.binlog, f"--defaults-file={login}", *address]
    return _ran([*argv, *what, *names], folder / "fetch.log", {})


def peers() -> dict[str, Path]:
    """The upload programs by way, as far as they can be had; the others are named on stdout."""
    found = {}
    for way, program in {"aws": get.aws, "s5cmd": get.s5cmd}.items():
        try:
            found[way] = program()
        except Unavailable as error:
            print(f"not measured: {error}", flush=True)
    return found


def uploaded(way: str, program: Path, files: Path, into: Target, folder: Path) -> Used:
    """Upload the files, to where `compare` finds them."""
    where = into.where
    goal = f"s3://{where.bucket}/{where.archive}peer/binlogs/"
    endpoint = ["--endpoint-url", into.endpoint_url]
    argv: list[str | Path] = [program, *endpoint]
    if way == "aws":
        argv += ["s3", "cp", "--recursive", "--only-show-errors", files, goal]
    else:
        argv += ["--log", "error", "cp", "-c", "16", "-p", "10"]
        argv += [f"{files}/", goal]
    environment = environment_for(where.access_key, where.secret_key)
    return _ran(argv, folder / f"{way}.log", {"AWS_REGION": REGION, **environment})


def _ran(argv: Sequence[str | Path], log: Path, environment: Mapping[str, str]) -> Used:
    """Run a program to its end. Raises ServerFailedError if it fails."""
    before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), monotonic()
    process = spawn(argv, log, environment=environment)
    peak = 0
    try:
        while process.poll() is None:
            # rusage's own peak starts with that of the process which forked
            peak = max(peak, peak_bytes(process.pid))
            try:
                process.wait(0.02)
            except subprocess.TimeoutExpired:
                if monotonic() - begin > RUN_SECONDS:
                    raise ServerFailedError(f"{argv[0]} runs too long\n{tail(log)}") from None
        seconds = monotonic() - begin
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    finally:
        end(process)
    if process.returncode != 0:
        raise ServerFailedError(f"{argv[0]} ended with {process.returncode}\n{tail(log)}")
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Used(seconds=seconds, cpu_seconds=used, peak_bytes=peak)


def _requests(into: Target, *, looks: int = 0) -> dict[str, int]:
    """What the store was asked so far, without what this benchmark itself asked."""
    url = f"{into.store.endpoint_url}/minio/metrics/v3/api/requests"
    with urllib.request.urlopen(url, timeout=60) as answer:
        found = requests_in(answer.read().decode())
    found.pop("PutBucket", None)
    found[_LOOK] = found.get(_LOOK, 0) - looks
    return {kind: count for kind, count in sorted(found.items()) if count}


def _check(backlog: Backlog, into: Target, way: str) -> None:
    """Raise ServerFailedError unless every closed binlog is in the bucket, byte for byte."""
    where = into.where
    with closing(where.client()) as client:
        found = compare(
            backlog.server,
            client,
            where.bucket,
            where.prefix,
            where.source,
            binlogs=backlog.binlogs,
        )
    if not found.ok or found.equal_bytes != backlog.size:
        raise ServerFailedError(f"{way}: the bucket is not equal to the server's files: {found}")


def one_round(
    backlog: Backlog, link: str, folder: Path, programs: Mapping[str, Path], more: Mapping[str, Any]
) -> dict[str, Run]:
    """Each way once. The peers upload the same fetched files."""
    runs = {}
    for way, extra in {"stream": {}, "kms": {"sse": "aws:kms"}}.items():
        with temporary_directory("binlog2s3-catchup-") as own, target(own, link) as into:
            runs[way] = streamed(backlog, into, own, {**more, **extra})
            _check(backlog, into, way)
    fetch = fetched(backlog, folder)
    for way, program in programs.items():
        with temporary_directory("binlog2s3-catchup-") as own, target(own, link) as into:
            upload = uploaded(way, program, folder / "files", into, folder)
            runs[way] = Run(
                seconds=fetch.seconds + upload.seconds,
                main=upload,
                child=fetch,
                requests=_requests(into),
            )
            _check(backlog, into, way)
    return runs


def measure(
    backlog: Backlog,
    link: str,
    programs: Mapping[str, Path],
    *,
    rounds: int,
    more: Mapping[str, Any],
) -> dict[str, Any]:
    """All rounds of one backlog over one link; what the report is made from."""
    load_before, started = os.getloadavg()[0], datetime.now(UTC)
    done = []
    for number in range(rounds):
        with temporary_directory("binlog2s3-catchup-") as own:
            done.append(one_round(backlog, link, own, programs, more))
        for way, run in done[-1].items():
            print(f"{link} {backlog.row_bytes} round {number + 1} {way}: {asdict(run)}", flush=True)
    return {
        "name": name_of(link, backlog.row_bytes),
        "started": f"{started:%Y-%m-%dT%H:%M:%SZ}",
        "load_average": [round(load_before, 1), round(os.getloadavg()[0], 1)],
        "server": backlog.server.binaries.version,
        "cores": os.cpu_count(),
        "link": link,
        "row_bytes": backlog.row_bytes,
        "size": backlog.size,
        "binlogs": len(backlog.binlogs),
        "options": dict(more),
        "ways": {way: medians([runs[way] for runs in done]) for way in done[0]},
    }


def name_of(link: str, row_bytes: int) -> str:
    """The name of a result in the results file."""
    return f"catchup-{link}-{row_bytes}"


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; 0 when all was measured."""
    given = _arguments(arguments)
    more = dict(option.split("=", 1) for option in given.option)
    # figures of a first look, or of other options, must not get into the document
    kept = given.results != RESULTS or (
        given.megabytes >= MEGABYTES
        and given.rounds >= ROUNDS
        and given.binlogs == BINLOGS
        and not more
    )
    try:
        programs = peers()
        for row_bytes in given.rows:
            there = load_results(given.results) if kept and not given.again else {}
            links = [link for link in given.links if name_of(link, row_bytes) not in there]
            if not links:
                print(f"rows of {row_bytes} bytes: is there")
                continue
            with (
                temporary_directory("binlog2s3-catchup-") as folder,
                backlog(folder, row_bytes, given.megabytes, given.binlogs) as waiting,
            ):
                for link in links:
                    result = measure(waiting, link, programs, rounds=given.rounds, more=more)
                    if kept:
                        keep(given.results, result)
                    print(catchup_table([result]), flush=True)
    except (Unavailable, ServerFailedError, pymysql.Error) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    return 0


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.catchup",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--megabytes", type=int, default=MEGABYTES, help="of binlogs, about")
    parser.add_argument("--binlogs", type=int, default=BINLOGS, help="so many; only 4 are kept")
    parser.add_argument("--rows", type=int, nargs="+", default=ROWS, help="bytes of a row")
    parser.add_argument("--links", nargs="+", choices=LINKS, default=LINKS)
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="the medians are of these")
    parser.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="another option of the streamer, such as concurrency=16; may be repeated",
    )
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="FILE")
    parser.add_argument("--again", action="store_true", help="measure what is there already")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
