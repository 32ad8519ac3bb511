"""The ways from a server into the bucket that are compared; each is a context.

`stream` is binlog2s3 with a flush interval; `rotated` binlog2s3 with 0, durable when a binlog is
closed; `plain` closes the binlog each second and uploads the file, which is what tools do that
ship whole binlogs; `wal-g` does the same with `wal-g binlog-push`.
"""

import contextlib
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import boto3.exceptions
import botocore.exceptions

from bench.reach import Bucket
from lab.child import ServerFailedError, end, spawn, tail
from lab.mysql import MysqlServer
from lab.s3 import REGION, client_for, environment_for

CLOSE_SECONDS = 1.0
Alive = Callable[[], None]
"""Raises ServerFailedError when the way has ended by itself."""


def start_streamer(
    where: Bucket,
    endpoint_url: str,
    server: MysqlServer,
    folder: Path,
    *,
    more: Mapping[str, object],
) -> "subprocess.Popen[bytes]":
    """Start binlog2s3 with `more` options; its log is `stream.log` in the folder.

    Its environment has what the systemd units and the image have: few arenas of malloc.
    """
    options = {
        "source": where.source,
        "mysql-host": "127.0.0.1",
        "mysql-port": server.port,
        "mysql-user": server.repl_user,
        "mysql-password-file": server.password_file,
        "mysqlbinlog": server.binaries.binlog,
        "spool": folder / "spool",
        "s3-url": f"s3://{where.bucket}/{where.prefix}",
        "endpoint-url": endpoint_url,
        "region": REGION,
        "addressing-style": "path",
        **more,
    }
    argv = [sys.executable, "-m", "binlog2s3", "stream"]
    argv += [f"--{name}={value}" for name, value in options.items()]
    keys = {**environment_for(where.access_key, where.secret_key), "MALLOC_ARENA_MAX": "2"}
    return spawn(argv, folder / "stream.log", environment=keys)


@contextlib.contextmanager
def streamer(
    where: Bucket,
    endpoint_url: str,
    server: MysqlServer,
    folder: Path,
    *,
    flush_interval: float,
    log_level: str = "info",
) -> Iterator[Alive]:
    """binlog2s3."""
    log = folder / "stream.log"
    more = {"flush-interval": flush_interval, "log-level": log_level}
    process = start_streamer(where, endpoint_url, server, folder, more=more)

    def alive() -> None:
        if process.poll() is not None:
            text = f"binlog2s3 ended with {process.returncode}\n{tail(log)}"
            raise ServerFailedError(text)

    try:
        yield alive
    finally:
        end(process, grace_seconds=20)


@contextlib.contextmanager
def each_second(server: MysqlServer, ship: Callable[[], None]) -> Iterator[Alive]:
    """Close the binlog each second and ship what is closed, in a thread."""
    stop = threading.Event()
    failures: list[Exception] = []

    def run() -> None:
        try:
            while not stop.wait(CLOSE_SECONDS):
                server.query("FLUSH BINARY LOGS")
                ship()
        except (
            OSError,
            ServerFailedError,
            botocore.exceptions.BotoCoreError,
            botocore.exceptions.ClientError,
            boto3.exceptions.Boto3Error,
        ) as error:
            failures.append(error)

    def alive() -> None:
        if failures:
            raise ServerFailedError(f"the shipping of binlogs failed: {failures[0]}")

    thread = threading.Thread(target=run, name="shipping")
    thread.start()
    try:
        yield alive
    finally:
        stop.set()
        thread.join()


@contextlib.contextmanager
def plain(where: Bucket, endpoint_url: str, server: MysqlServer) -> Iterator[Alive]:
    """Each closed file, one upload after the other."""
    client = client_for(endpoint_url, where.access_key, where.secret_key)
    shipped: set[str] = set()

    def ship() -> None:
        for name, _size in server.binlogs()[:-1]:
            if name not in shipped:
                key = f"{where.archive}plain/binlogs/{name}"
                client.upload_file(str(server.datadir / name), where.bucket, key)
                shipped.add(name)

    with contextlib.closing(client), each_second(server, ship) as alive:
        yield alive


def wal_g() -> str | None:
    """wal-g for MySQL, if it is on PATH."""
    return shutil.which("wal-g-mysql") or shutil.which("wal-g")


@contextlib.contextmanager
def wal_g_pushes(where: Bucket, endpoint_url: str, server: MysqlServer) -> Iterator[Alive]:
    """`wal-g binlog-push` each second; settings of the caller's environment go first."""
    program = wal_g()
    if program is None:
        raise ServerFailedError("wal-g is not on PATH")
    server.query(
        "SET sql_log_bin = 0",
        "CREATE USER walg@'%' IDENTIFIED WITH caching_sha2_password BY 'walg'",
        "GRANT ALL ON *.* TO walg@'%'",
    )
    settings = {
        "WALG_S3_PREFIX": f"s3://{where.bucket}/{where.archive}walg",
        "AWS_ENDPOINT": endpoint_url,
        "AWS_REGION": REGION,
        "AWS_S3_FORCE_PATH_STYLE": "true",
        "WALG_MYSQL_DATASOURCE_NAME": f"walg:walg@tcp(127.0.0.1:{server.port})/mysql",
        **environment_for(where.access_key, where.secret_key),
    }
    given = {k: v for k, v in os.environ.items() if k.startswith("WALG_")}

    def ship() -> None:
        done = subprocess.run(
            [program, "binlog-push"],
            env={**os.environ, **settings, **given},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        if done.returncode != 0:
            raise ServerFailedError(f"wal-g ended with {done.returncode}: {done.stderr[-500:]}")

    with each_second(server, ship) as alive:
        yield alive
