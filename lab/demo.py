"""`make demo`: a real MySQL (--flavour mariadb: MariaDB) under load, streamed into S3, and back.

Starts throwaway servers, runs `binlog2s3 stream` as a process of its own, and shows what reaches
the bucket. `binlog2s3 backup run` stores a base backup early. Later a DELETE loses its WHERE, and
`binlog2s3 undo` takes it back while the writers go on; then a table is dropped, the source is
killed, and `binlog2s3 restore` makes a second server of the moment before the DROP. The last line
says whether every object equals the server's own file, and whether both servers hold what the
source held before the mistakes. Leaves no process and no file behind, Ctrl-C included.
"""

import argparse
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from threading import Event
from time import monotonic
from typing import TYPE_CHECKING, NoReturn

from rich.console import Console

from lab import get, recovery
from lab.cache import Unavailable, say
from lab.child import ServerFailedError, end, spawn, tail
from lab.disk import temporary_directory
from lab.load import Load, Shape
from lab.mysql import MariadbServer, MysqlServer
from lab.s3 import REGION, MinioServer, MotoServer
from lab.verify import archived_keys, closed_binlogs, compare
from lab.view import Look, Row, shown, size_text

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

SOURCE = "demo"
PREFIX = "binlogs"
LOOK_SECONDS = 0.25
FLUSH_SECONDS = 2.0
BACKUP_AT, DELETE_AT, DROP_AT = 0.3, 0.5, 0.7
"""When the backup is made, rows are deleted and the table dropped, in parts of the time."""
ARCHIVE_TIMEOUT_SECONDS = 60
STOP_TIMEOUT_SECONDS = 20
SHAPE = Shape(row_bytes=(10, 2_000), large_chance=0.01, large_bytes=(100_000, 2_000_000))

INTERRUPTED = 130


class DemoFailedError(Exception):
    """What the demo set out to show is not so; `log` is the end of the streamer's."""

    log = ""


class Streamer:
    """The `binlog2s3 stream` process and its log."""

    def __init__(self, argv: list[str], log: Path, environment: dict[str, str]) -> None:
        self.log = log
        self._process = spawn(argv, log, environment=environment)

    def check(self) -> None:
        """Raise when it has ended by itself."""
        if self._process.poll() is not None:
            raise DemoFailedError(f"the streamer ended with exit code {self._process.returncode}")

    def stop(self) -> None:
        """SIGTERM, as systemd would; raise when that does not end it with exit code 0."""
        status = end(self._process, grace_seconds=STOP_TIMEOUT_SECONDS)
        if status != 0:
            raise DemoFailedError(f"the streamer ended with exit code {status} on SIGTERM")

    def abandon(self) -> None:
        """End it, whatever it thinks of that; nothing happens where it has ended."""
        end(self._process, grace_seconds=5)


class Watcher:
    """Looks at server, bucket and spool."""

    def __init__(
        self, server: MysqlServer, client: "S3Client", bucket: str, spool: Path, load: Load
    ) -> None:
        self._server = server
        self._client = client
        self._bucket = bucket
        self._spool = spool
        self._load = load
        self._begin = monotonic()
        self._before = (self._begin, 0)
        self._rate = 0.0

    def look(self, phase: str) -> Look:
        """What is where, now. The server is asked first, so that nothing is ahead of it."""
        binlogs = self._server.binlogs()
        archived = self.archived()
        uploads = self._uploads()
        rows: list[Row] = []
        for name, size in binlogs:
            parts = uploads.get(name, 0)
            state = "writing" if name == binlogs[-1][0] else "waiting"
            if name in archived:
                state, parts = "archived", 0
            elif parts and state != "writing":
                state = "uploading"
            rows.append(Row(name=name, size=size, state=state, parts=parts))
        return Look(
            phase=phase,
            seconds=monotonic() - self._begin,
            rows=tuple(rows),
            transactions=self._load.transactions,
            rate=self._commit_rate(),
            spool_bytes=_size_of(self._spool),
        )

    def archived(self) -> set[str]:
        """The binlogs whose object and entry are both there."""
        objects = archived_keys(self._client, self._bucket, PREFIX, SOURCE)
        entries = archived_keys(self._client, self._bucket, PREFIX, SOURCE, folder="entries")
        return {name for name in objects if f"{name}.json" in entries}

    def _uploads(self) -> dict[str, int]:
        """Unfinished uploads: name of the binlog, and how many parts are sent."""
        found: dict[str, int] = {}
        for upload in self._client.list_multipart_uploads(Bucket=self._bucket).get("Uploads", []):
            try:
                listed = self._client.list_parts(
                    Bucket=self._bucket, Key=upload["Key"], UploadId=upload["UploadId"]
                )
            except self._client.exceptions.ClientError:
                continue  # completed in between
            found[upload["Key"].rpartition("/")[2]] = len(listed.get("Parts", []))
        return found

    def _commit_rate(self) -> float:
        """Commits a second, smoothed over about two seconds."""
        now, count = monotonic(), self._load.transactions
        then, counted = self._before
        if now - then >= 1:
            self._rate = (count - counted) / (now - then)
            self._before = (now, count)
        return self._rate


def _size_of(folder: Path) -> int:
    """Bytes of the files below a folder, whatever comes and goes meanwhile."""
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except FileNotFoundError:
            continue
    return total


def _store(stack: ExitStack, folder: Path) -> MinioServer | MotoServer:
    """MinIO, or moto where it cannot be had."""
    try:
        return stack.enter_context(MinioServer(get.minio(), folder))
    except Unavailable as error:
        say(str(error))
        say("falling back to moto's server, which keeps everything in its memory")
        return stack.enter_context(MotoServer(folder))


def _argv(
    server: MysqlServer, store: MinioServer | MotoServer, bucket: str, spool: Path
) -> list[str]:
    """The streamer's command as an operator would give it."""
    options = {
        "mysql-host": "127.0.0.1",
        "mysql-port": server.port,
        "mysql-user": server.repl_user,
        "mysql-password-file": server.password_file,
        "mysqlbinlog": server.binaries.binlog,
        "spool": spool,
    }
    return [
        *_program(),
        "stream",
        *_archive(store, bucket),
        *(f"--{name}={value}" for name, value in options.items()),
    ]


def _kind(binaries: get.ServerBinaries) -> type[MysqlServer]:
    return MariadbServer if binaries.flavour == "mariadb" else MysqlServer


def _program() -> list[str]:
    script = Path(sys.executable).with_name("binlog2s3")
    return [str(script)] if script.is_file() else [sys.executable, "-m", "binlog2s3"]


def _archive(store: MinioServer | MotoServer, bucket: str) -> list[str]:
    """Where the source's binlogs are, for each command."""
    return [
        f"--source={SOURCE}",
        f"--s3-url=s3://{bucket}/{PREFIX}",
        f"--endpoint-url={store.endpoint_url}",
        f"--region={REGION}",
        "--addressing-style=path",
    ]


def run(console: Console, *, seconds: float, threads: int, flavour: get.Flavour) -> str:
    """The whole demo; returns its last line. Raises what went wrong."""
    with ExitStack() as stack:
        binaries = get.mariadb() if flavour == "mariadb" else get.mysql()
        folder = stack.enter_context(temporary_directory("binlog2s3-demo-"))
        store = _store(stack, folder / "store")
        rows = ["--binlog-format=ROW"]  # MariaDB's default writes a DELETE as a statement
        server = stack.enter_context(_kind(binaries)(binaries, folder / "mysql", options=rows))
        bucket = store.make_bucket("demo")
        client = stack.enter_context(closing(store.client()))
        spool = folder / "spool"
        spool.mkdir()
        console.print(
            f"{flavour} {server.query('SELECT VERSION()')[0][0]} on port {server.port},"
            f" {store.name} on port {store.port}; {threads} writers for {seconds:.0f} s,"
            f" a new binlog every {FLUSH_SECONDS:.0f} s",
            highlight=False,
            soft_wrap=True,
        )
        streamer = Streamer(_argv(server, store, bucket, spool), folder / "stream.log", store.env())
        stack.callback(streamer.abandon)
        load = Load(
            server,
            threads=threads,
            seconds=seconds + recovery.TIMEOUT_SECONDS,  # the `with` block ends it
            flush_seconds=FLUSH_SECONDS,
            shape=SHAPE,
        )
        watcher = Watcher(server, client, bucket, spool, load)

        def backup() -> None:
            argv = [*_program(), "backup", "run", *_archive(store, bucket)]
            argv += recovery.backup_options(server)
            recovery.run(console, argv, {**os.environ, **store.env()})

        def undo(gtid: str) -> None:
            argv = [*_program(), "undo", *_archive(store, bucket)]
            argv += recovery.undo_options(server, gtid)
            recovery.run(console, argv, {**os.environ, **store.env()})

        def found() -> str:
            argv = [*_program(), "find", *_archive(store, bucket), f"--table={recovery.DROPPED}"]
            argv += ["--type=delete", "--limit=1", "--print=gtid"]
            environment = {**os.environ, **store.env()}
            done = subprocess.run(
                argv, env=environment, capture_output=True, text=True, timeout=60, check=False
            )
            return done.stdout.strip()

        try:
            checksums = _stream(
                console, watcher, streamer, load,
                seconds=seconds, backup=backup, found=found, undo=undo,
            )  # fmt: skip
            streamer.stop()
            equal = _prove(console, server, client, bucket, folder)
        except DemoFailedError as error:
            error.log = tail(streamer.log, 25)
            raise
        gtid = recovery.find_drop(server)
        server.kill()
        console.print(
            f"the source is killed; its {recovery.DROPPED} was dropped by {gtid}",
            highlight=False,
            soft_wrap=True,
        )
        _recover(
            console,
            folder,
            binaries=binaries,
            store=store,
            bucket=bucket,
            gtid=gtid,
            checksums=checksums,
        )
        return (
            f"OK: {equal}; a DELETE without WHERE was undone on the live server;"
            f" {recovery.DROPPED} is back after its DROP: a second server, restored to"
            f" just before the DROP, holds what the source held then (CHECKSUM TABLE)"
        )


def _recover(
    console: Console,
    folder: Path,
    *,
    binaries: get.ServerBinaries,
    store: MinioServer | MotoServer,
    bucket: str,
    gtid: str,
    checksums: Mapping[str, int],
) -> None:
    """A second server, from the bucket alone; raises where it is not as it should."""
    data = folder / "second"
    argv = [
        *_program(),
        "restore",
        *_archive(store, bucket),
        *recovery.restore_options(binaries, data),
        f"--before-gtid={gtid}",
        "--keep-running",
        "--yes",
    ]
    recovery.run(console, argv, {**os.environ, **store.env()})
    with recovery.running(data) as second:
        recovery.compare(second, binaries.flavour, checksums, gtid)
    for table, checksum in checksums.items():
        console.print(
            f"CHECKSUM TABLE {table}: {checksum}, as on the source just before the DROP",
            highlight=False,
            soft_wrap=True,
        )


def _stream(
    console: Console,
    watcher: Watcher,
    streamer: Streamer,
    load: Load,
    *,
    seconds: float,
    backup: Callable[[], None],
    found: Callable[[], str],
    undo: Callable[[str], None],
) -> dict[str, int]:
    """Write, look, close the last binlog, and wait until all that is closed is archived.

    Meanwhile a backup, a DELETE that is undone, and a DROP TABLE; the answer are the tables'
    checksums just before that. `found`: the GTID of the DELETE, "" if it is not in the bucket yet.
    """
    recovery.prepare(load.server)
    pause = Event()
    with shown(console) as show:

        def until(condition: Callable[[], bool], timeout: float, phase: str) -> bool:
            deadline = monotonic() + timeout
            while not condition():
                streamer.check()
                show(watcher.look(phase))
                if monotonic() > deadline:
                    return False
                pause.wait(LOOK_SECONDS)
            return True

        with load:
            until(lambda: False, seconds * BACKUP_AT, "writing")
            backup()
            recovery.order(load.server, recovery.ROWS)
            until(lambda: False, seconds * (DELETE_AT - BACKUP_AT), "backed up, writing")
            before, count = recovery.delete_all(load.server), load.transactions
            if not until(lambda: found() != "", ARCHIVE_TIMEOUT_SECONDS, "deleted, writing"):
                raise DemoFailedError(f"the DELETE was not found in {ARCHIVE_TIMEOUT_SECONDS} s")
            undo(found())
            _check_undone(console, load, before, count)
            until(lambda: False, seconds * (DROP_AT - DELETE_AT), "undone, writing")
            checksums = recovery.drop(load.server)
            until(lambda: False, seconds * (1 - DROP_AT), "dropped, writing")
        closed = {binlog.name for binlog in closed_binlogs(load.server)}
        done = until(lambda: closed <= watcher.archived(), ARCHIVE_TIMEOUT_SECONDS, "closing")
        show(watcher.look("all archived" if done else "late"))
    if not done:
        late = ", ".join(sorted(closed - watcher.archived())[:5])
        raise DemoFailedError(f"not archived {ARCHIVE_TIMEOUT_SECONDS} s after closing: {late}")
    return checksums


def _check_undone(console: Console, load: Load, before: int, count: int) -> None:
    """Raise where the table is not as it was before the DELETE, or nobody wrote meanwhile."""
    checksum, more = recovery.checksum_of(load.server), load.transactions - count
    if checksum != before or not more:
        raise DemoFailedError(
            f"{recovery.DROPPED} has checksum {checksum}, and had {before} before the DELETE; "
            f"{more} transactions of others since"
        )
    console.print(
        f"CHECKSUM TABLE {recovery.DROPPED}: {checksum}, as before the DELETE; others have"
        f" committed {more:,} transactions meanwhile",
        highlight=False,
        soft_wrap=True,
    )


def _prove(
    console: Console, server: MysqlServer, client: "S3Client", bucket: str, folder: Path
) -> str:
    """Every closed binlog equals its object, and stock mysqlbinlog reads one to its end."""
    binlogs = closed_binlogs(server, flush=False)
    result = compare(server, client, bucket, PREFIX, SOURCE, binlogs=binlogs)
    if not result.ok:
        wrong = [f"{name} missing" for name in result.missing]
        wrong += [f"{name} different" for name in result.different]
        raise DemoFailedError(f"the bucket differs from the server: {', '.join(wrong)}")
    largest = max(binlogs, key=lambda binlog: binlog.size)
    (key,) = archived_keys(client, bucket, PREFIX, SOURCE)[largest.name]
    copy = folder / largest.name
    client.download_file(bucket, key, str(copy))
    read = subprocess.run(
        [str(server.binaries.binlog), "--no-defaults", "--verify-binlog-checksum", str(copy)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        timeout=300,
        check=False,
    )
    if read.returncode != 0:
        raise DemoFailedError(f"mysqlbinlog cannot read {key}: {read.stderr.strip()}")
    console.print(
        f"mysqlbinlog reads s3://{bucket}/{key} ({size_text(largest.size)}) to its end",
        highlight=False,
        soft_wrap=True,
    )
    return (
        f"{len(result.equal)} binlogs, {size_text(result.equal_bytes)}"
        f" in s3://{bucket}/{PREFIX}, every object equals the server's file (SHA-256)"
    )


def _interrupt(_number: int, _frame: object) -> NoReturn:
    raise KeyboardInterrupt


def main() -> int:
    """Exit code: 0 all equal and brought back, 1 something is wrong or missing, 130 interrupted."""
    parser = argparse.ArgumentParser(prog="lab.demo", description=__doc__)
    parser.add_argument("--seconds", type=float, default=25, help="how long to write")
    parser.add_argument("--threads", type=int, default=4, help="how many writers")
    parser.add_argument("--flavour", choices=["mysql", "mariadb"], default="mysql")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, _interrupt)
    console = Console()
    try:
        line = run(
            console,
            seconds=arguments.seconds,
            threads=arguments.threads,
            flavour=arguments.flavour,
        )
    except KeyboardInterrupt:
        console.print("interrupted; everything is stopped and removed")
        return INTERRUPTED
    except (
        DemoFailedError,
        recovery.RecoveryFailedError,
        ServerFailedError,
        Unavailable,
    ) as error:
        if isinstance(error, DemoFailedError) and error.log:
            print(f"the end of the streamer's log:\n{error.log}")
        console.print(
            f"FAILED: {error}", style="bold red", markup=False, highlight=False, soft_wrap=True
        )
        return 1
    console.print(line, style="bold green", highlight=False, soft_wrap=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
