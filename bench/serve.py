"""The archive as a replication source: `python -m bench.serve`.

    python -m bench.serve                      # 1 GB of rows of 8 KB, and two minutes of 100 tx/s
    python -m bench.serve --flavour mariadb
    python -m bench.serve --megabytes 100 --seconds 10     # a first look; kept nowhere

Two measurements. *Speed*: closed binlogs are in a local MinIO, and `binlog2s3 serve` sends them to
one replica, to ten replicas at once, and to `mysqlbinlog --raw`, which also gets them from the
server itself. *Delay*: a server commits 100 transactions a second; a streamer brings them into
MinIO, `serve` reads them from there, and a replica applies them. The delay is the time from the
moment at which the client has the source's answer until the row can be read at the replica.

Law: each speed counts only if every byte has come. Files of mysqlbinlog are compared with the
server's own.
"""

import argparse
import json
import os
import secrets
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from threading import Event
from time import monotonic
from typing import Any

import pymysql

from bench import ways
from bench.catchup import BINLOGS, Backlog, backlog
from bench.drain import Door, drain_all, speed
from bench.load import TABLE, Done, Plan, drive
from bench.measure import START_SECONDS, answer, child, quantile
from bench.processes import cpu_seconds, peak_bytes
from bench.reach import Bucket
from bench.report import serve_section
from bench.rpo import RESULTS, keep
from lab import get
from lab.cache import Unavailable
from lab.child import ServerFailedError, end, free_port, spawn, tail, wait_ready
from lab.disk import temporary_directory
from lab.get import Flavour, ServerBinaries
from lab.mysql import MariadbServer, MysqlServer
from lab.s3 import REGION, MinioServer, environment_for
from lab.verify import archived_keys

USER = "replica"
ROW_BYTES = 8_000
MEGABYTES = 1000
SECONDS = 120.0
ROUNDS = 3
CLIENTS = (1, 10)
RATE = 100
DELAY_ROW_BYTES = 300
POLL_SECONDS = 0.02
ARCHIVED_SECONDS = 600.0
RELAXED = ("--sync-binlog=0", "--innodb-flush-log-at-trx-commit=2")


@dataclass(frozen=True, slots=True)
class Serve:
    """A running `binlog2s3 serve`."""

    process: "subprocess.Popen[bytes]"
    door: Door
    status_port: int
    log: Path

    def fetched(self) -> int:
        """Bytes that it has read from the bucket for its clients so far."""
        url = f"http://127.0.0.1:{self.status_port}/status"
        with urllib.request.urlopen(url, timeout=60) as page:
            return int(json.load(page)["fetched_bytes"])


def measure(flavour: Flavour, *, megabytes: int, seconds: float, rounds: int) -> dict[str, Any]:
    """Both measurements with the servers of one flavour; what the report is made from."""
    binaries = get.mariadb() if flavour == "mariadb" else get.mysql()
    load_before, started = os.getloadavg()[0], datetime.now(UTC)
    speeds = _speeds(binaries, megabytes, rounds)
    delay = _delay(binaries, seconds)
    return {
        "name": f"serve-{flavour}",
        "started": f"{started:%Y-%m-%dT%H:%M:%SZ}",
        "load_average": [round(load_before, 1), round(os.getloadavg()[0], 1)],
        "server": binaries.version,
        "cores": os.cpu_count(),
        "row_bytes": ROW_BYTES,
        "binlogs": BINLOGS,
        "rounds": rounds,
        **speeds,
        "delay": delay,
    }


def _speeds(binaries: ServerBinaries, megabytes: int, rounds: int) -> dict[str, Any]:
    """The first measurement."""
    with ExitStack() as stack:
        folder = stack.enter_context(temporary_directory("binlog2s3-serve-"))
        source = stack.enter_context(backlog(folder, ROW_BYTES, megabytes, binaries=binaries))
        store = stack.enter_context(MinioServer(get.minio(), folder / "store"))
        where = _where(store)
        with ways.streamer(
            where, where.endpoint_url, source.server, folder, flush_interval=0
        ) as ok:
            _wait_archived(where, source, ok)
        serve = stack.enter_context(serving(where, folder, binaries.flavour))
        after = "0-1-1"
        if binaries.flavour == "mysql":
            after = f"{source.server.query('SELECT @@server_uuid')[0][0]}:1"
        found: dict[str, Any] = {"size": source.size, "clients": {}, "mysqlbinlog": {}}
        for clients in CLIENTS:
            each = [_drained(serve, source, after, clients) for _ in range(rounds)]
            found["clients"][str(clients)] = _medians(each)
            print(f"{clients} clients: {each}", flush=True)
        doors = {
            "server": Door(
                port=source.server.port, user=source.server.repl_user,
                password=source.server.password, flavour=binaries.flavour,
            ),
            "serve": serve.door,
        }  # fmt: skip
        taken: dict[str, list[float]] = {"server": [], "serve": []}
        for _ in range(rounds):
            for name, door in doors.items():
                taken[name].append(_fetched(door, source))
        print(f"mysqlbinlog: {taken}", flush=True)
        for name, times in taken.items():
            found["mysqlbinlog"][name] = {
                "seconds": round(median(times), 2),
                "seconds_each": [round(one, 2) for one in times],
                "bytes_per_second": round(source.size / median(times)),
            }
        found["peak_bytes"] = peak_bytes(serve.process.pid)
        return found


def _drained(serve: Serve, source: Backlog, after: str, clients: int) -> dict[str, float]:
    """One round: so many clients take everything at once."""
    fetched, used = serve.fetched(), cpu_seconds(serve.process.pid)[0]
    drained = drain_all(serve.door, after=after, clients=clients)
    used = cpu_seconds(serve.process.pid)[0] - used
    if min(one.size for one in drained) < source.size * 0.99:  # all but the first transaction
        raise ServerFailedError(f"of {source.size} bytes a client got {drained}")
    return {
        "bytes_per_second": round(speed(drained)),
        "cpu_seconds_per_gb": round(used / (clients * source.size / 1e9), 2),
        "fetched_per_block": round((serve.fetched() - fetched) / source.size, 3),
    }


def _medians(each: Sequence[dict[str, float]]) -> dict[str, float]:
    return {name: median(one[name] for one in each) for name in each[0]}


def _fetched(door: Door, source: Backlog) -> float:
    """The seconds in which mysqlbinlog writes all closed binlogs; they are the server's own."""
    with temporary_directory("binlog2s3-serve-") as into:
        login = into / "login.cnf"
        login.touch(0o600)
        login.write_text(f"[client]\nuser={door.user}\npassword={door.password}\n")
        (into / "files").mkdir()
        tls = "--skip-ssl" if door.flavour == "mariadb" else "--ssl-mode=DISABLED"
        names = [binlog.name for binlog in source.binlogs]
        begin = monotonic()
        done = subprocess.run(
            [
                source.server.binaries.binlog, f"--defaults-file={login}", "--host=127.0.0.1",
                f"--port={door.port}", tls, "--read-from-remote-server", "--raw",
                f"--result-file={into / 'files'}/", "--to-last-log", names[0],
            ],
            capture_output=True,
            text=True,
            check=False,
        )  # fmt: skip
        seconds = monotonic() - begin
        if done.returncode != 0:
            raise ServerFailedError(f"mysqlbinlog ended with {done.returncode}: {done.stderr}")
        for name in names:
            own = source.server.datadir / name
            if subprocess.run(["cmp", own, into / "files" / name], check=False).returncode != 0:
                raise ServerFailedError(f"{name} is not the server's own")
    return seconds


def _delay(binaries: ServerBinaries, seconds: float) -> dict[str, Any]:
    kind = MariadbServer if binaries.flavour == "mariadb" else MysqlServer
    plan = Plan(rate=RATE, row_bytes=DELAY_ROW_BYTES, seconds=seconds, connections=8, rotations=2)
    with ExitStack() as stack:
        folder = stack.enter_context(temporary_directory("binlog2s3-serve-"))
        store = stack.enter_context(MinioServer(get.minio(), folder / "store"))
        where = _where(store)
        options = ["--binlog-format=ROW"]
        source = stack.enter_context(kind(binaries, folder / "source", options=options))
        replica = stack.enter_context(
            kind(binaries, folder / "replica", server_id=2, options=[*options, *RELAXED])
        )
        alive = stack.enter_context(
            ways.streamer(where, where.endpoint_url, source, folder, flush_interval=1)
        )
        source.query(*TABLE)
        _wait_durable(where, alive)
        serve = stack.enter_context(serving(where, folder, binaries.flavour))
        _follow(replica, serve.door)
        with child(drive, source.socket, plan) as load:
            seen = _watch(replica, plan, alive)
            done = answer(load, alive, START_SECONDS)
        if not isinstance(done, Done):
            raise ServerFailedError(str(done))
    delays = sorted(seen[number] - moment for number, moment in done.commits)
    return {
        "rate": RATE,
        "row_bytes": DELAY_ROW_BYTES,
        "seconds": seconds,
        "rotations": plan.rotations,
        "commits": len(delays),
        **{name: quantile(delays, at) for name, at in (("p50", 0.5), ("p99", 0.99), ("max", 1))},
    }


def _follow(replica: MysqlServer, door: Door) -> None:
    """The server becomes a replica of `serve`."""
    if door.flavour == "mariadb":
        replica.query(
            f"CHANGE MASTER TO MASTER_HOST='127.0.0.1', MASTER_PORT={door.port}, "
            f"MASTER_USER='{door.user}', MASTER_PASSWORD='{door.password}', MASTER_SSL=0, "
            "MASTER_USE_GTID=slave_pos, MASTER_CONNECT_RETRY=1",
            "START SLAVE",
        )
    else:
        replica.query(
            f"CHANGE REPLICATION SOURCE TO SOURCE_HOST='127.0.0.1', SOURCE_PORT={door.port}, "
            f"SOURCE_USER='{door.user}', SOURCE_PASSWORD='{door.password}', SOURCE_SSL=0, "
            "SOURCE_AUTO_POSITION=1, SOURCE_CONNECT_RETRY=1",
            "START REPLICA",
        )


def _watch(replica: MysqlServer, plan: Plan, alive: ways.Alive) -> dict[int, float]:
    """When each row could be read at the replica, by its number; until all have come.

    Raises ServerFailedError if they do not come.
    """
    wanted = round(RATE * plan.seconds)
    seen: dict[int, float] = {}
    low, pause = 0, Event()  # all rows before `low` were seen
    deadline = monotonic() + plan.seconds + START_SECONDS
    with closing(replica.connect()) as connection, connection.cursor() as cursor:
        while len(seen) < wanted:
            rows: Sequence[tuple[int]] = ()
            # the table comes through replication, too; a cursor has no rows to fetch until then
            with suppress(pymysql.err.ProgrammingError, pymysql.err.OperationalError):
                cursor.execute("SELECT id FROM bench.t WHERE id >= %s", (low,))
                rows = cursor.fetchall()
            now = monotonic()
            for (number,) in rows:
                seen.setdefault(number, now)
            while low in seen:
                low += 1
            alive()
            if now > deadline:
                raise ServerFailedError(f"the replica has {len(seen)} of {wanted} rows")
            pause.wait(POLL_SECONDS)
    return seen


@contextmanager
def serving(where: Bucket, folder: Path, flavour: Flavour) -> Iterator[Serve]:
    """`binlog2s3 serve`, with its default options."""
    door = Door(port=free_port(), user=USER, password=secrets.token_hex(16), flavour=flavour)
    status_port, log = free_port(), folder / "serve.log"
    password = folder / "serve.password"
    password.touch(0o600)
    password.write_text(door.password)
    options = {
        "source": where.source,
        "s3-url": f"s3://{where.bucket}/{where.prefix}",
        "endpoint-url": where.endpoint_url,
        "region": REGION,
        "addressing-style": "path",
        "listen": f"127.0.0.1:{door.port}",
        "user": USER,
        "password-file": password,
        "status-listen": f"127.0.0.1:{status_port}",
    }
    argv = [sys.executable, "-m", "binlog2s3", "serve"]
    argv += [f"--{name}={value}" for name, value in options.items()]
    process = spawn(argv, log, environment=environment_for(where.access_key, where.secret_key))
    try:
        wait_ready(process, lambda: "serving" in tail(log), log, what="binlog2s3 serve")
        yield Serve(process, door, status_port, log)
    finally:
        end(process, grace_seconds=20)


def _where(store: MinioServer) -> Bucket:
    return Bucket(
        endpoint_url=store.endpoint_url,
        access_key=store.access_key,
        secret_key=store.secret_key,
        bucket=store.make_bucket(),
        prefix="pre",
        source="bench",
    )


def _wait_archived(where: Bucket, source: Backlog, alive: ways.Alive) -> None:
    """Until each closed binlog has its entry."""
    names = {f"{binlog.name}.json" for binlog in source.binlogs}
    deadline, pause = monotonic() + ARCHIVED_SECONDS, Event()
    with closing(where.client()) as client:
        while (
            not names
            <= archived_keys(
                client, where.bucket, where.prefix, where.source, folder="entries"
            ).keys()
        ):
            alive()
            if monotonic() > deadline:
                raise ServerFailedError("the binlogs are not archived")
            pause.wait(0.5)


def _wait_durable(where: Bucket, alive: ways.Alive) -> None:
    """Until there is something to serve."""
    deadline, pause = monotonic() + START_SECONDS, Event()
    with closing(where.client()) as client:
        while not client.list_objects_v2(Bucket=where.bucket, Prefix=where.live).get("KeyCount"):
            alive()
            if monotonic() > deadline:
                raise ServerFailedError("nothing reaches the bucket")
            pause.wait(0.2)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; 0 when all was measured."""
    given = _arguments(arguments)
    try:
        result = measure(
            given.flavour, megabytes=given.megabytes, seconds=given.seconds, rounds=given.rounds
        )
    except (Unavailable, ServerFailedError, pymysql.Error) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    # figures of a first look must not get into the document
    is_whole = given.megabytes >= MEGABYTES and given.seconds >= SECONDS and given.rounds >= ROUNDS
    if is_whole or given.results != RESULTS:
        keep(given.results, result)
    print(serve_section({result["name"]: result}))
    return 0


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.serve",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--flavour", choices=["mysql", "mariadb"], default="mysql")
    parser.add_argument("--megabytes", type=int, default=MEGABYTES, help="of binlogs, about")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of the load")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="the medians are of these")
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="FILE")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
