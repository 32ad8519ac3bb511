"""What servers hold and are told, whatever their flavour and version; images and replicas of them.

Law: nothing here is the product's.
"""

import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pymysql

from lab.disk import temporary_directory
from lab.get import ServerBinaries
from lab.mysql import MariadbServer, MysqlServer, server_of
from tests.waiting import wait_until

RELAXED = ("--sync-binlog=0", "--innodb-flush-log-at-trx-commit=2")
PREFIX = "mysql-bin."
OWN = ("mysql", "information_schema", "performance_schema", "sys")
FLAG = 21
State = dict[str, Any]
"""What a server holds: its GTIDs, its accounts, and of each table checksum and definition."""


# its own words


def is_mariadb(server: MysqlServer) -> bool:
    return server.binaries.flavour == "mariadb"


def version_of(server: MysqlServer) -> tuple[int, ...]:
    text = str(server.query("SELECT VERSION()")[0][0])
    return tuple(map(int, re.findall(r"\d+", text)[:3]))


def in_its_words(server: MysqlServer, statement: str) -> str:
    """A statement on replication in MySQL's words; MariaDB and MySQL before 8.0.23 have others."""
    if not is_mariadb(server) and version_of(server) >= (8, 0, 23):
        return statement
    for new, old in (
        ("REPLICATION SOURCE TO", "MASTER TO"),
        ("SOURCE_", "MASTER_"),
        ("REPLICA", "SLAVE"),
    ):
        statement = statement.replace(new, old)
    return statement


def flush(server: MysqlServer) -> None:
    """The next binlog."""
    server.query("FLUSH BINARY LOGS")
    open_binlog(server)


def open_binlog(server: MysqlServer) -> tuple[str, int]:
    """Name and size of the open binlog, to which nothing is added that nobody writes.

    MariaDB notes in it about a second later, by itself, that it needs no earlier one to recover.
    """
    name, _ = server.binlogs()[-1]

    def is_noted() -> bool:
        events = server.query(f"SHOW BINLOG EVENTS IN '{name}'")
        return [row[5] for row in events if row[2] == "Binlog_checkpoint"][-1:] == [name]

    if is_mariadb(server):
        wait_until(is_noted, what=f"the checkpoint in {name}")
    return server.binlogs()[-1]


def reset(server: MysqlServer, *more: str) -> None:
    """All binary logs begin anew; `more` runs on the same connection."""
    words = "RESET MASTER" if is_mariadb(server) else "RESET BINARY LOGS AND GTIDS"
    server.query(words, *more)


def clear(server: MysqlServer) -> None:
    """As new."""
    found = [str(row[0]) for row in server.query("SHOW DATABASES")]
    users = server.query("SELECT user, host FROM mysql.user WHERE user LIKE 'their%'")
    server.query(
        "DO 0",
        *(f"DROP DATABASE `{name}`" for name in found if name not in OWN),
        *(f"DROP USER {user}@'{host}'" for user, host in users),
    )
    reset(server, f"SET GLOBAL max_allowed_packet = {1 << 30}")


# who and where it is


def uuid_of(server: MysqlServer) -> str:
    """As the product knows it."""
    if is_mariadb(server):
        return f"{int(server.query('SELECT @@server_id')[0][0]):08x}-00000000"
    return str(server.query("SELECT @@server_uuid")[0][0])


def executed(server: MysqlServer, of_mariadb: str = "gtid_binlog_pos") -> str:
    """All GTIDs that it has executed, by this variable of a MariaDB; "" without GTIDs."""
    name = of_mariadb if is_mariadb(server) else "gtid_executed"
    return str(server.query(f"SELECT @@global.{name}")[0][0]).replace("\n", "")


def last_gtid(server: MysqlServer) -> str:
    """The newest of a server whose transactions are all its own, in one domain."""
    uuid, _, numbers = executed(server).partition(":")
    return f"{uuid}:{re.split('[-:]', numbers)[-1]}" if numbers else uuid


def has(server: MysqlServer, gtids: str) -> bool:
    """Whether a MySQL has executed them all."""
    return bool(server.query(f"SELECT GTID_SUBSET('{gtids}', @@gtid_executed)")[0][0])


def position_of(server: MysqlServer) -> tuple[str, int]:
    """The binlog that it writes, and up to where."""
    older = is_mariadb(server) or version_of(server) < (8, 2)
    row = server.query("SHOW MASTER STATUS" if older else "SHOW BINARY LOG STATUS")[0]
    return str(row[0]), int(row[1])


def binlog_files(server: MysqlServer) -> list[Path]:
    """In their order."""
    return sorted(p for p in server.datadir.glob(f"{PREFIX}*") if p.suffix[1:].isdigit())


def masked(body: bytes) -> bytes:
    """Without the in-use flag, which is the server's own business."""
    return body[:FLAG] + bytes([body[FLAG] & 0xFE]) + body[FLAG + 1 :] if len(body) > FLAG else body


def on_disk(server: MysqlServer) -> dict[str, bytes]:
    """The server's binlogs as they lie there."""
    return {path.name: masked(path.read_bytes()) for path in binlog_files(server)}


# what it holds


def state_of(server: MysqlServer) -> State:
    """Of all databases of users; nobody writes meanwhile."""
    names = server.query(
        "SELECT table_schema, table_name FROM information_schema.tables WHERE table_type ="
        f" 'BASE TABLE' AND table_schema NOT IN {OWN}"
        " AND table_schema NOT LIKE 'binlog2s3_recovery%'"
        " ORDER BY 1, 2"
    )
    tables = {}
    with server.connect() as connection, connection.cursor() as cursor:
        for schema, table in names:
            cursor.execute(f"CHECKSUM TABLE `{schema}`.`{table}`")
            ((_name, checksum),) = cursor.fetchall()
            cursor.execute(f"SHOW CREATE TABLE `{schema}`.`{table}`")
            ((_name, created),) = cursor.fetchall()
            created = re.sub(r" AUTO_INCREMENT=\d+", "", created)
            tables[f"{schema}.{table}"] = [checksum, created]
    gtids = "" if is_mariadb(server) else executed(server)
    return {"gtids": gtids, "tables": tables, "accounts": accounts_of(server)}


def accounts_of(server: MysqlServer) -> dict[str, list[str]]:
    """Each account and role: password, lock, default roles, and what it was granted."""
    maria = is_mariadb(server)
    is_role = "is_role" if maria else "'N'"
    found = {}
    with server.connect() as connection, connection.cursor() as cursor:
        if not maria:
            cursor.execute("SET SESSION print_identified_with_as_hex = ON")
        cursor.execute(f"SELECT user, host, {is_role} FROM mysql.user ORDER BY 1, 2")
        for user, host, role in cursor.fetchall():
            name = f"`{user}`" if role == "Y" else f"`{user}`@`{host}`"
            lines: list[str] = []
            for statement in ("SHOW CREATE USER", "SHOW GRANTS FOR")[role == "Y" :]:
                cursor.execute(f"{statement} {name}")
                lines += sorted(str(row[0]) for row in cursor.fetchall())
            found[name] = lines
    return found


def differences(found: State, wanted: State) -> list[str]:
    """In words; [] where a server holds what it must."""
    words = []
    if found["gtids"] != wanted["gtids"]:
        words.append(f"GTIDs {found['gtids']}, not {wanted['gtids']}")
    for kind in ("accounts", "tables"):
        ours, theirs = found[kind], wanted[kind]
        words += [
            f"{kind} {name}: {ours.get(name)}, not {theirs.get(name)}"
            for name in sorted(ours.keys() | theirs.keys())
            if list(ours.get(name, ())) != list(theirs.get(name, ()))
        ]
    return words


def content(server: MysqlServer) -> dict[str, Any]:
    """Everything in a server's databases, comparable, with its views and programs."""
    found: dict[str, Any] = {}
    for (name,) in server.query("SHOW DATABASES"):
        if name in OWN:
            continue
        found[name] = server.query(f"SHOW CREATE DATABASE `{name}`")
        for table, kind in server.query(f"SHOW FULL TABLES FROM `{name}`"):
            full = f"`{name}`.`{table.replace('`', '``')}`"
            found[full] = (
                server.query(f"SHOW CREATE TABLE {full}"),
                server.query(f"CHECKSUM TABLE {full}") if "BASE" in kind else None,
            )
    for kind, schema, columns in (
        ("routines", "routine_schema", "routine_name, routine_definition"),
        ("triggers", "trigger_schema", "trigger_name, action_statement"),
        ("events", "event_schema", "event_name, event_definition"),
    ):
        found[kind] = sorted(
            server.query(
                f"SELECT {schema}, {columns}, sql_mode, definer FROM information_schema.{kind}"
                f" WHERE {schema} NOT IN {OWN}"
            )
        )
    found["users"] = sorted(server.query("SELECT user, host FROM mysql.user"))
    return found


@contextmanager
def locked(server: MysqlServer, table: str) -> Iterator[Callable[[], bool]]:
    """In this block nobody can write this table; whether an applier waits for it."""
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute(f"LOCK TABLES {table} READ")

        def is_awaited() -> bool:
            return any(
                "metadata lock" in str(row[6]) and row[1] == "system user"
                for row in server.query("SHOW PROCESSLIST")
            )

        yield is_awaited


# dumps and images


EVERYTHING = ("--all-databases", "--single-transaction", "--routines", "--events")


def dump_of(server: MysqlServer, path: Path, *options: str, of: Sequence[str] = EVERYTHING) -> None:
    """As users dump it, with its place."""
    maria = is_mariadb(server)
    program = server.binaries.client.with_name("mariadb-dump" if maria else "mysqldump")
    assert program.is_file(), f"there is no {program}"
    chosen = ["--master-data=2", "--gtid"] if maria else ["--source-data=2"]
    chosen += [*of, *options]
    with path.open("wb") as out:
        subprocess.run(
            [program, "--no-defaults", "--user=root", f"--socket={server.socket}", *chosen],
            stdout=out,
            check=True,
            timeout=300,
        )


def load(server: MysqlServer, path: Path, *options: str) -> None:
    """Run a file of SQL by the server's own client."""
    with path.open("rb") as given:
        subprocess.run(
            [
                *(server.binaries.client, "--no-defaults", "--user=root", "--binary-mode"),
                *(f"--socket={server.socket}", *options),
            ],
            stdin=given,
            check=True,
            timeout=600,
        )


def image_of(server: MysqlServer, place: Path) -> Path:
    """A copy of its data, as a backup or a snapshot; the server must stand still."""
    shutil.copytree(server.datadir, place / "data", ignore=shutil.ignore_patterns("*.pid"))
    return place


def put_back(server: MysqlServer, image: Path) -> None:
    """Replace the data of a server that is down."""
    shutil.rmtree(server.datadir)
    shutil.copytree(image / "data", server.datadir)


def restored(server: MysqlServer, path: Path, place: Path) -> Path:
    """Restore a dump into a server and keep its data, to begin others with."""
    load(server, path)
    server.stop()
    image = image_of(server, place)
    (image / "data" / "auto.cnf").unlink(missing_ok=True)
    for one in (image / "data").glob(f"{PREFIX}*"):
        one.unlink()
    return image


class _FromImage(MysqlServer):
    """A server that begins with an image's data and accounts, and their uuid unless `own_uuid`."""

    def __init__(
        self,
        binaries: ServerBinaries,
        directory: Path,
        image: Path,
        server_id: int,
        password: str,
        *,
        gtid: bool = True,
        own_uuid: bool = False,
    ) -> None:
        options = [*RELAXED, "--event-scheduler=OFF"]
        if binaries.flavour == "mariadb":
            options.append("--log-slave-updates")
        super().__init__(binaries, directory, server_id=server_id, gtid=gtid, options=options)
        self._image = image
        self._own_uuid = own_uuid
        self.password = password

    def _template(self) -> Path:
        return self._image

    def _prepare(self) -> None:
        super()._prepare()
        if self._own_uuid:
            (self.datadir / "auto.cnf").unlink(missing_ok=True)

    def _create_users(self) -> None:
        """They came with the data."""


class _MariadbFromImage(_FromImage, MariadbServer):
    """A MariaDB."""


def of_image(
    binaries: ServerBinaries,
    directory: Path,
    image: Path,
    server_id: int,
    password: str,
    **settings: bool,
) -> MysqlServer:
    """A server of an image; `gtid`, and `own_uuid`: not that of the image."""
    kind = _MariadbFromImage if binaries.flavour == "mariadb" else _FromImage
    return kind(binaries, directory, image, server_id, password, **settings)


@contextmanager
def two(
    binaries: ServerBinaries,
    options: Sequence[str] = RELAXED,
    *,
    target_options: Sequence[str] | None = None,
) -> Iterator[tuple[MysqlServer, MysqlServer]]:
    """Two servers, with the ids 1 and 2; where `target_options` are given the second has those."""
    both = (options, options if target_options is None else target_options)
    with ExitStack() as stack:
        first, second = (
            stack.enter_context(
                server_of(
                    binaries,
                    stack.enter_context(temporary_directory()),
                    server_id=number,
                    options=own_options,
                )
            )
            for number, own_options in enumerate(both, 1)
        )
        yield first, second


# replicas


def replicate_from(
    replica: MysqlServer,
    port: int,
    user: str,
    password: str,
    at: tuple[str, int] | None = None,
    *more: str,
) -> None:
    """Make it a replica, from a place or by GTIDs; it is not started."""
    by_gtid, by_place = (
        ("MASTER_USE_GTID=slave_pos", "MASTER_USE_GTID=no")
        if is_mariadb(replica)
        else ("SOURCE_AUTO_POSITION=1", "SOURCE_AUTO_POSITION=0")
    )
    where = by_gtid
    if at is not None:
        where = f"{by_place}, SOURCE_LOG_FILE='{at[0]}', SOURCE_LOG_POS={at[1]}"
    quoted = password.replace("'", "''")
    words = [f"SOURCE_HOST='127.0.0.1', SOURCE_PORT={port}, {where}", *more]
    login = f"SOURCE_USER='{user}', SOURCE_PASSWORD='{quoted}'"
    said = f"CHANGE REPLICATION SOURCE TO {', '.join(words)}, {login}"
    replica.query(in_its_words(replica, said))


def follow(
    replica: MysqlServer,
    source: MysqlServer,
    at: tuple[str, int] | None = None,
    *,
    only: str = "",
) -> None:
    """Let one server replicate from another one, `only` by this thread."""
    if at is None and not is_mariadb(source) and not executed(source):
        at = (f"{PREFIX}000001", 4)
    ssl = f"SOURCE_SSL={int(not is_mariadb(source))}"
    replicate_from(replica, source.port, source.repl_user, source.password, at, ssl)
    replica.query(in_its_words(replica, f"START REPLICA {only}"))


def forget(replica: MysqlServer) -> None:
    """It is no replica any more."""
    replica.query(
        *(
            ("STOP ALL SLAVES", "RESET SLAVE ALL")
            if is_mariadb(replica)
            else ("STOP REPLICA", "RESET REPLICA ALL")
        )
    )


def replica_status(server: MysqlServer) -> dict[str, Any]:
    """With MySQL's new names; {} where it is no replica."""
    with server.connect() as connection, connection.cursor(pymysql.cursors.DictCursor) as cursor:
        cursor.execute(in_its_words(server, "SHOW REPLICA STATUS"))
        found = cursor.fetchone() or {}
    return {
        key.replace("Master", "Source").replace("Slave", "Replica"): value
        for key, value in found.items()
    }


def fetch_all(
    replica: MysqlServer, source: MysqlServer, place: tuple[str, int] | None = None
) -> None:
    """Have all that the source has, from a place or by GTIDs, in the relay logs; apply nothing."""
    follow(replica, source, place, only="IO_THREAD")

    def come() -> bool:
        status = replica_status(replica)
        assert not status["Last_IO_Error"], status["Last_IO_Error"]
        # asked each time: MariaDB writes a checkpoint of its own a little later
        return (status["Source_Log_File"], status["Read_Source_Log_Pos"]) == position_of(source)

    wait_until(come, what="all is in the relay logs")
    replica.query(in_its_words(replica, "STOP REPLICA IO_THREAD"))
