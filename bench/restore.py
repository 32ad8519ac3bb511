"""A recovery by `pitr` and by `mysqlbinlog | mysql`, side by side: `python -m bench.restore`.

    python -m bench.restore                    # 300 MB of small transactions of 8 writers, MySQL
    python -m bench.restore --flavour mariadb
    python -m bench.restore --megabytes 20     # a first look; kept nowhere

Law: both bring the same binlogs to a server of their own with the same settings, one after the
other, and each counts only if all tables are the source's in the end. `pitr` reads the bucket, the
client programs get the files beside them on the disk.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from threading import Event, Thread
from time import monotonic
from typing import Any

import pymysql

from bench import ways
from bench.reach import Bucket, covers, look
from bench.rpo import RESULTS, keep
from lab import get
from lab.cache import Unavailable
from lab.child import ServerFailedError
from lab.disk import temporary_directory
from lab.get import Flavour, ServerBinaries
from lab.mysql import MariadbServer, MysqlServer
from lab.s3 import REGION, MinioServer, environment_for

WRITERS = 8
WANTED = {"mysql": 8.0, "mariadb": 4.0}
WORKERS = 4
MEGABYTES = 300
WAYS = ("pitr", "client")
RELAXED = ("--sync-binlog=0", "--innodb-flush-log-at-trx-commit=2", "--event-scheduler=OFF")
ARCHIVED_SECONDS = 600.0
BYTES_EACH = 860
ROUND = 2000
"""So many transactions one call of the procedure makes."""
SCHEMA = (
    "CREATE DATABASE bench",
    """CREATE TABLE bench.t (
      writer INT, n INT, v CHAR(150) CHARACTER SET latin1, changed INT, PRIMARY KEY (writer, n)
    )""",
    """CREATE PROCEDURE bench.work(who INT, first INT, many INT)
    BEGIN
      DECLARE at INT DEFAULT first;
      WHILE at < first + many DO
        START TRANSACTION;
        INSERT INTO bench.t VALUES (who, at, RPAD(RAND(), 150, 'binlog'), 0);
        UPDATE bench.t SET changed = changed + 1 WHERE writer = who AND n = at DIV 2;
        COMMIT;
        SET at = at + 1;
      END WHILE;
    END""",
)


@dataclass(frozen=True, slots=True)
class Lab:
    """A source whose binlogs are in the bucket and on the disk, and what its table is."""

    server: MysqlServer
    binlogs: list[Path]
    where: Bucket
    checksum: int
    transactions: int
    size: int


def measure(flavour: Flavour, megabytes: int) -> dict[str, Any]:
    """Make the archive, restore from it by both ways; what the report is made from."""
    binaries = get.mariadb() if flavour == "mariadb" else get.mysql()
    load_before = os.getloadavg()[0]
    started = datetime.now(UTC)
    with ExitStack() as stack:
        folder = stack.enter_context(temporary_directory("binlog2s3-restore-"))
        store = stack.enter_context(MinioServer(get.minio(), folder / "store"))
        source = stack.enter_context(_archived(binaries, store, folder, megabytes))
        source.server.kill()  # it is lost, and takes no processor from what follows
        done = {}
        for number, (way, restore) in enumerate(zip(WAYS, (_pitr, _client), strict=True), 2):
            done[way] = _restored(binaries, source, folder / way, number, restore)
            print(f"{way}: {done[way]}", flush=True)
    speeds = [done[way]["transactions_per_second"] for way in WAYS]
    return {
        "name": f"restore-{flavour}",
        "started": started.isoformat(timespec="seconds").replace("+00:00", "Z"),
        "load_average": [round(load_before, 1), round(os.getloadavg()[0], 1)],
        "server": binaries.version,
        "writers": WRITERS,
        "size": source.size,
        "transactions": source.transactions,
        "ways": done,
        "ratio": round(speeds[0] / speeds[1], 1),
    }


@contextmanager
def _archived(
    binaries: ServerBinaries, store: MinioServer, folder: Path, megabytes: int
) -> Iterator[Lab]:
    """A source with so much in its binlogs, all of which is in the bucket."""
    where = Bucket.made_in(store)
    kind = MariadbServer if binaries.flavour == "mariadb" else MysqlServer
    options = [*RELAXED, "--max-binlog-size=100M", "--binlog-format=ROW"]
    with kind(binaries, folder / "source", server_id=1, options=options) as server:
        with ways.streamer(where, store.endpoint_url, server, folder, flush_interval=1) as alive:
            transactions = _write(server, megabytes)
            _wait(server, where, alive)
        size = sum(size for _, size in server.binlogs())
        print(
            f"{transactions} transactions, {size} bytes, {size / transactions:.0f} each", flush=True
        )
        binlogs = [server.datadir / name for name, _ in server.binlogs()]
        yield Lab(server, binlogs, where, _checksum(server), transactions, size)


def _write(server: MysqlServer, megabytes: int) -> int:
    """So many transactions by so many sessions at once; their number."""
    server.query(*SCHEMA)
    rounds = max(1, megabytes * 1_000_000 // (BYTES_EACH * ROUND * WRITERS))
    failures: list[pymysql.Error] = []

    def work(writer: int) -> None:
        try:
            with server.connect() as connection, connection.cursor() as cursor:
                for number in range(rounds):
                    cursor.execute("CALL bench.work(%s, %s, %s)", (writer, number * ROUND, ROUND))
        except pymysql.Error as error:
            failures.append(error)

    threads = [Thread(target=work, args=(writer,)) for writer in range(WRITERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise ServerFailedError(f"the load failed: {failures[0]}")
    return rounds * ROUND * WRITERS


def _wait(server: MysqlServer, where: Bucket, alive: ways.Alive) -> None:
    """Until all that was committed can be read from the bucket."""
    done, client = server.binlogs(), where.client()
    deadline, pause = monotonic() + ARCHIVED_SECONDS, Event()
    while not covers(look(client, where), done):
        alive()
        if monotonic() > deadline:
            raise ServerFailedError("what was committed does not reach the bucket")
        pause.wait(0.5)
    client.close()


def _restored(
    binaries: ServerBinaries,
    source: Lab,
    folder: Path,
    server_id: int,
    restore: Callable[[Lab, MysqlServer, Path], float],
) -> dict[str, Any]:
    """A new server, brought to where the source was. Raises where it is not that."""
    kind = MariadbServer if binaries.flavour == "mariadb" else MysqlServer
    options = [*RELAXED, *(["--log-slave-updates=ON"] if kind is MariadbServer else [])]
    with kind(binaries, folder, server_id=server_id, options=options) as target:
        began = monotonic()
        seconds = restore(source, target, folder)
        in_all = monotonic() - began
        if (found := _checksum(target)) != source.checksum:
            raise ServerFailedError(
                f"the table's checksum is {found}, the source's was {source.checksum}"
            )
    return {
        "seconds": round(seconds, 1),
        "seconds_in_all": round(in_all, 1),
        "transactions_per_second": round(source.transactions / seconds),
        "bytes_per_second": round(source.size / seconds),
    }


def _client(source: Lab, target: MysqlServer, folder: Path) -> float:
    """All binlogs through `mysqlbinlog | mysql`; the seconds."""
    login = [f"--socket={target.socket}", "--user=root"]
    began = monotonic()
    with (folder / "client.log").open("wb") as log:
        reader = subprocess.Popen(
            [str(target.binaries.binlog), "--no-defaults", *map(str, source.binlogs)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
        )
        client = subprocess.run(
            [str(target.binaries.client), "--no-defaults", "--binary-mode", *login],
            stdin=reader.stdout,
            stdout=log,
            stderr=log,
            check=False,
        )
        assert reader.stdout is not None
        reader.stdout.close()
        status = reader.wait()
    if client.returncode or status:
        raise ServerFailedError(f"the client failed: {(folder / 'client.log').read_text()[-500:]}")
    return monotonic() - began


def _pitr(source: Lab, target: MysqlServer, folder: Path) -> float:
    """The command, as an operator calls it; the seconds of the apply."""
    empty = folder / "root.password"
    empty.touch(0o600)
    options = {
        "source": source.where.source,
        "s3-url": f"s3://{source.where.bucket}/{source.where.prefix}",
        "endpoint-url": source.where.endpoint_url,
        "region": REGION,
        "addressing-style": "path",
        "target-socket": target.socket,
        "target-user": "root",
        "target-password-file": empty,
        "workers": WORKERS,
    }
    argv = [sys.executable, "-m", "binlog2s3", "pitr", "--latest", "--yes", "--json"]
    if target.binaries.flavour == "mariadb":  # it is empty, and its GTIDs do not say so
        argv += [f"--from-binlog={source.binlogs[0].name}", "--from-position=4"]
    argv += [f"--{name}={value}" for name, value in options.items()]
    keys = environment_for(source.where.access_key, source.where.secret_key)
    done = subprocess.run(
        argv,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env={**os.environ, **keys},
        check=False,
    )
    if done.returncode != 0:
        raise ServerFailedError(f"pitr ended with {done.returncode}: {done.stderr.strip()}")
    return float(json.loads(done.stdout)["result"]["seconds"])


def _checksum(server: MysqlServer) -> int:
    ((_name, checksum),) = server.query("CHECKSUM TABLE bench.t")
    return int(checksum)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; 0 when both were measured and `pitr` is as fast as is wanted."""
    given = _arguments(arguments)
    try:
        result = measure(given.flavour, given.megabytes)
    except (Unavailable, ServerFailedError) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    print(f"{result['name']}: {result['ratio']} times as fast as mysqlbinlog | mysql")
    if given.megabytes >= MEGABYTES:
        keep(given.results, result)
    if result["ratio"] < (wanted := WANTED[given.flavour]):
        print(f"bench: {wanted:g} times was wanted", file=sys.stderr)
        return 1
    return 0


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.restore",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--flavour", choices=["mysql", "mariadb"], default="mysql")
    parser.add_argument("--megabytes", type=int, default=MEGABYTES, help="of binlogs, about")
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="FILE")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
