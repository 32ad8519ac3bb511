"""The demo's mistakes: a DELETE is undone, then a table is dropped, and a server with it is made.

A DELETE without WHERE under load: `binlog2s3 undo` takes it back on the live server while the
others write. What the table must hold then is what it held before, as nobody else changes it.

An early backup, a DROP TABLE under load, then, from the bucket alone, a second server that stops
just before the DROP. What it must hold was recorded by the source itself in the moment
before the DROP, while a lock kept everybody else from writing.
"""

import os
import re
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep
from typing import TYPE_CHECKING

import pymysql
from rich.console import Console

from lab.get import ServerBinaries
from lab.mysql import MysqlServer

if TYPE_CHECKING:
    from pymysql.connections import Connection
    from pymysql.cursors import Cursor

DROPPED = "demo.orders"
TABLES = (DROPPED, "lab_load.record")
ROWS = 1_000
TIMEOUT_SECONDS = 600


class RecoveryFailedError(Exception):
    """The second server is not what the source was."""


def prepare(server: MysqlServer) -> None:
    """The table that will be dropped."""
    server.query(
        "CREATE DATABASE demo",
        f"CREATE TABLE {DROPPED} (id INT PRIMARY KEY, item VARCHAR(100), price DECIMAL(9, 2))",
    )
    order(server, 0)


def order(server: MysqlServer, first: int) -> None:
    """Some more rows."""
    rows = ", ".join(f"({n}, 'item {n}', {n % 90}.99)" for n in range(first, first + ROWS))
    server.query(f"INSERT INTO {DROPPED} VALUES {rows}")


def backup_options(server: MysqlServer) -> list[str]:
    """What names the source and the tool for `binlog2s3 backup run`."""
    tool = "mariadb-dump" if server.binaries.flavour == "mariadb" else "mysqldump"
    empty = server.directory / "root.password"
    empty.touch(0o600)
    return [
        f"--tool={tool}",
        f"--program={server.binaries.client.with_name(tool)}",
        f"--mysql-socket={server.socket}",
        "--mysql-user=root",
        f"--mysql-password-file={empty}",
    ]


def drop(server: MysqlServer) -> dict[str, int]:
    """DROP TABLE; the tables' checksums of the moment before, while nobody else can write."""
    checksums = {}
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("LOCK TABLES " + ", ".join(f"{table} WRITE" for table in TABLES))
        for table in TABLES:
            cursor.execute(f"CHECKSUM TABLE {table}")
            ((_name, checksum),) = cursor.fetchall()
            checksums[table] = int(checksum)
        cursor.execute(f"DROP TABLE {DROPPED}")
        cursor.execute("UNLOCK TABLES")
    return checksums


def delete_all(server: MysqlServer) -> int:
    """DELETE without WHERE; the table's checksum before it."""
    checksum = checksum_of(server)
    server.query(f"DELETE FROM {DROPPED}")
    return checksum


def checksum_of(server: MysqlServer) -> int:
    """CHECKSUM TABLE of the table that others do not write to."""
    return int(str(server.query(f"CHECKSUM TABLE {DROPPED}")[0][1]))


def undo_options(server: MysqlServer, gtid: str) -> list[str]:
    """What `binlog2s3 undo` takes back, and on which server."""
    return [
        f"--gtid={gtid}",
        f"--mysqlbinlog={server.binaries.binlog}",
        f"--target-socket={server.socket}",
        "--target-user=root",
        "--yes",
    ]


def find_drop(server: MysqlServer) -> str:
    """The GTID of the DROP TABLE, as an operator finds it: in SHOW BINLOG EVENTS, newest first."""
    dropped = re.compile(r"DROP TABLE `?" + DROPPED.replace(".", "`?.`?") + r"\b")
    for name, _size in reversed(server.binlogs()):
        gtid = ""
        for _name, _begin, kind, _server, _end, info in server.query(
            f"SHOW BINLOG EVENTS IN '{name}'"
        ):
            if kind == "Gtid":
                gtid = re.split(r"GTID |'", str(info))[1]
            elif kind == "Query" and dropped.search(str(info)):
                return gtid
    raise RecoveryFailedError(f"there is no DROP TABLE {DROPPED} in the server's binlogs")


def restore_options(binaries: ServerBinaries, data: Path) -> list[str]:
    """What names the programs and the data directory for `binlog2s3 restore`."""
    as_root = ["--mysqld-option=--user=root"] if os.geteuid() == 0 else []
    return [
        f"--mysqld={binaries.server}",
        f"--program={binaries.client}",
        f"--data-dir={data}",
        *as_root,
    ]


@contextmanager
def running(data: Path) -> Iterator["Connection[Cursor]"]:
    """The server that `binlog2s3 restore --keep-running` has left; it is shut down at the end."""
    pid = int((data / "mysqld.pid").read_text())
    try:
        with pymysql.connect(unix_socket=str(data / "mysql.sock"), user="root") as connection:
            yield connection
    finally:
        os.kill(pid, signal.SIGTERM)
        until = monotonic() + TIMEOUT_SECONDS
        while (data / "mysqld.pid").exists() and monotonic() < until:
            sleep(0.1)


def run(console: Console, argv: Sequence[str], environment: Mapping[str, str]) -> None:
    """Run one of our commands and show what it says, its question aside."""
    words = next(at for at, word in enumerate(argv) if word in ("backup", "restore", "undo"))
    console.print("$ binlog2s3 " + " ".join(argv[words:]), highlight=False, soft_wrap=True)
    done = subprocess.run(
        argv,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env=environment,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )
    for line in done.stdout.splitlines():
        console.print(f"  {line}", markup=False, highlight=False, soft_wrap=True)
    if done.returncode != 0:
        what, said = argv[words], done.stderr.strip()
        raise RecoveryFailedError(f"{what} ended with exit code {done.returncode}: {said}")


def compare(
    second: "Connection[Cursor]", flavour: str, checksums: Mapping[str, int], gtid: str
) -> None:
    """Raise where the second server differs from the source just before the DROP."""
    with second.cursor() as cursor:
        for table, wanted in checksums.items():
            cursor.execute(f"CHECKSUM TABLE {table}")
            ((_name, found),) = cursor.fetchall()
            if found != wanted:
                raise RecoveryFailedError(f"{table} has checksum {found}, the source had {wanted}")
        if flavour == "mariadb":
            return  # its tables say it: the dropped one is there
        cursor.execute(f"SELECT GTID_SUBSET('{gtid}', @@gtid_executed)")
        ((dropped,),) = cursor.fetchall()
        if dropped:
            raise RecoveryFailedError(f"the server has executed the DROP TABLE, {gtid}")
