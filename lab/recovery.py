"""The demo's second half: a table is dropped by mistake, and a server without the mistake is made.

An early dump, a DROP TABLE under load, then, from the dump and the bucket alone, a second server
that stops just before the DROP. What it must hold was recorded by the source itself in the moment
before the DROP, while a lock kept everybody else from writing.
"""

import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console

from lab.mysql import MysqlServer

DROPPED = "demo.orders"
TABLES = (DROPPED, "lab_load.record")
ROWS = 1_000
TIMEOUT_SECONDS = 600
OPTIONS = ("--sync-binlog=0", "--innodb-flush-log-at-trx-commit=2", "--event-scheduler=OFF")
"""Of the second server: it is thrown away, and no event of its own may write in between."""


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


def dump(server: MysqlServer, path: Path) -> None:
    """The base backup, as anybody makes it, while others write."""
    options = ["--all-databases", "--single-transaction", "--routines", "--events"]
    if server.binaries.flavour == "mariadb":
        _run(server, "mariadb-dump", [*options, "--master-data=2", "--gtid"], stdout=path)
    else:
        options += ["--source-data=2", "--set-gtid-purged=ON"]
        _run(server, "mysqldump", options, stdout=path)


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


def restore(server: MysqlServer, path: Path) -> None:
    """The base backup into the second server."""
    _run(server, server.binaries.client.name, [], stdin=path)


def target_options(server: MysqlServer) -> list[str]:
    """What names the second server for `binlog2s3 pitr`."""
    empty = server.directory / "root.password"
    empty.touch(0o600)
    return [
        f"--target-socket={server.socket}",
        "--target-user=root",
        f"--target-password-file={empty}",
    ]


def recover(console: Console, argv: Sequence[str], environment: Mapping[str, str]) -> None:
    """Run `binlog2s3 pitr` and show what it says, its question aside."""
    console.print(
        "$ binlog2s3 " + " ".join(argv[argv.index("pitr") :]), highlight=False, soft_wrap=True
    )
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
        said = done.stderr.strip()
        raise RecoveryFailedError(f"pitr ended with exit code {done.returncode}: {said}")


def compare(server: MysqlServer, checksums: Mapping[str, int], gtid: str) -> None:
    """Raise where the second server differs from the source just before the DROP."""
    for table, wanted in checksums.items():
        ((_name, found),) = server.query(f"CHECKSUM TABLE {table}")
        if found != wanted:
            raise RecoveryFailedError(f"{table} has checksum {found}, the source had {wanted}")
    if server.binaries.flavour == "mariadb":
        return  # its tables say it: the dropped one is there
    ((dropped,),) = server.query(f"SELECT GTID_SUBSET('{gtid}', @@gtid_executed)")
    if dropped:
        raise RecoveryFailedError(f"the server has executed the DROP TABLE, {gtid}")


def _run(
    server: MysqlServer,
    program: str,
    options: Sequence[str],
    *,
    stdin: Path | None = None,
    stdout: Path | None = None,
) -> None:
    """One of MySQL's own programs at this server."""
    argv = [
        str(server.binaries.client.with_name(program)),
        *("--no-defaults", "--user=root", f"--socket={server.socket}", *options),
    ]
    if not Path(argv[0]).is_file():
        raise RecoveryFailedError(f"there is no {argv[0]}")
    with (
        (stdin or Path("/dev/null")).open("rb") as given,
        (stdout or Path("/dev/null")).open("wb") as out,
    ):
        done = subprocess.run(
            argv,
            stdin=given,
            stdout=out,
            stderr=subprocess.PIPE,
            timeout=TIMEOUT_SECONDS,
            check=False,
        )
    if done.returncode != 0:
        said = done.stderr.decode(errors="replace").strip()
        raise RecoveryFailedError(f"{program} ended with exit code {done.returncode}: {said}")
