"""What servers hold, as they say themselves, and what happened, as their own mysqlbinlog tells it.

Law: nothing here is the product's. Which transactions there are, in which order, when and where:
stock mysqlbinlog's text of the servers' files. What the tables hold behind one of them: a replica
that was restored from the same dump, and that the server itself stopped there (START REPLICA ...
UNTIL).
"""

import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab.get import ServerBinaries
from lab.mysql import MariadbServer, MysqlServer
from tests.integration.lineage_lab import image_of
from tests.waiting import wait_until
from tests.witness import INSIDE_COMPRESSED, Witness

RELAXED = ("--sync-binlog=0", "--innodb-flush-log-at-trx-commit=2")

State = dict[str, Any]
"""What a server holds: its GTIDs, its accounts, and of each table checksum and definition."""


# what servers say


def state_of(server: MysqlServer) -> State:
    """Of all databases of users; nobody writes meanwhile."""
    names = server.query(
        "SELECT table_schema, table_name FROM information_schema.tables WHERE table_type ="
        " 'BASE TABLE' AND table_schema NOT IN"
        " ('mysql', 'sys', 'information_schema', 'performance_schema')"
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
    return {"gtids": gtids_of(server), "tables": tables, "accounts": accounts_of(server)}


def accounts_of(server: MysqlServer) -> dict[str, list[str]]:
    """Each account and role: password, lock, default roles, and what it was granted."""
    maria = server.binaries.flavour == "mariadb"
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


def gtids_of(server: MysqlServer) -> str:
    """All GTIDs that it has executed; "" for a server that does not keep them."""
    if server.binaries.flavour == "mariadb":
        return ""
    return str(server.query("SELECT @@gtid_executed")[0][0]).replace("\n", "")


def dump_of(server: MysqlServer, path: Path, *options: str) -> None:
    """Everything, as users dump it."""
    maria = server.binaries.flavour == "mariadb"
    program = server.binaries.client.with_name("mariadb-dump" if maria else "mysqldump")
    assert program.is_file(), f"there is no {program}"
    chosen = ["--master-data=2", "--gtid"] if maria else ["--source-data=2"]
    chosen += ["--all-databases", "--single-transaction", "--routines", "--events", *options]
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


def restored(server: MysqlServer, path: Path, place: Path) -> Path:
    """Restore a dump into a server and keep its data, to begin others with."""
    load(server, path)
    server.stop()
    image = image_of(server, place)
    (image / "data" / "auto.cnf").unlink(missing_ok=True)
    for one in (image / "data").glob("mysql-bin.*"):
        one.unlink()
    return image


# what happened, by mysqlbinlog


@dataclass(frozen=True, slots=True, kw_only=True)
class Happened:
    """One transaction of the history: where it is, when it was committed, what its text shows."""

    gtid: str
    commit_us: int
    host: str
    binlog: str
    begin: int
    end: int
    tables: tuple[str, ...] = ()
    drops: bool = False


def history_of(server: MysqlServer, host: str) -> list[Happened]:
    """All transactions of a server's files, in order; it may be down."""
    found = []
    maria = server.binaries.flavour == "mariadb"
    for path in binlog_files(server):
        if maria:
            transactions = Witness.of(server.binaries.binlog, path).mariadb_transactions()
            parts = [""] * len(transactions)
        else:
            text = decoded(server.binaries, path)
            transactions = Witness(text=text, bounds=[], headers=[]).mysql_transactions()
            parts = re.split(r"(?m)^SET @@SESSION\.GTID_NEXT= '.*?'", text)[1:]
            parts = parts[: len(transactions)]  # behind the last one it is set to AUTOMATIC
        for one, part in zip(transactions, parts, strict=True):
            found.append(
                Happened(
                    gtid=one.gtid or "",
                    commit_us=one.commit_us,
                    host=host,
                    binlog=path.name,
                    begin=one.begin,
                    end=one.end,
                    tables=tuple(sorted(set(re.findall(r"Table_map: `shop`\.`(\w+)`", part)))),
                    drops="DROP TABLE `shop`.`precious`" in part,
                )
            )
    return found


def binlog_files(server: MysqlServer) -> list[Path]:
    """In their order."""
    return sorted(p for p in server.datadir.glob("mysql-bin.*") if p.suffix[1:].isdigit())


def decoded(binaries: ServerBinaries, path: Path) -> str:
    """A binlog as the stock client prints it; of compressed transactions only the outside."""
    done = subprocess.run(
        [str(binaries.binlog), "--no-defaults", "--base64-output=decode-rows", str(path)],
        env={"TZ": "UTC", "TMPDIR": str(path.parent)},
        capture_output=True,
        check=True,
        timeout=300,
    )
    return re.sub(INSIDE_COMPRESSED, "", done.stdout.decode(errors="replace"))


def len_of(gtids: str) -> int:
    """How many transactions a MySQL GTID set has."""
    ranges = re.findall(r":(\d+)(?:-(\d+))?(?=[:,\s]|$)", gtids)
    return sum(int(last or first) - int(first) + 1 for first, last in ranges)


# a replica that the server itself stops


def position_of(server: MysqlServer) -> tuple[str, int]:
    """The binlog that it writes, and up to where."""
    maria = server.binaries.flavour == "mariadb"
    version = str(server.query("SELECT VERSION()")[0][0])
    older = maria or tuple(map(int, re.findall(r"\d+", version)[:2])) < (8, 2)
    row = server.query("SHOW MASTER STATUS" if older else "SHOW BINARY LOG STATUS")[0]
    return str(row[0]), int(row[1])


def fetch_all(
    witness: MysqlServer, source: MysqlServer, place: tuple[str, int] | None = None
) -> None:
    """Have all that the source has, from a place or by GTIDs, in the relay logs; apply nothing."""
    chosen: dict[str, str | int] = {
        "SOURCE_HOST": "127.0.0.1",
        "SOURCE_PORT": source.port,
        "SOURCE_USER": source.repl_user,
        "SOURCE_PASSWORD": source.password,
        "SOURCE_SSL": 1,
    }
    if place is None:
        chosen["SOURCE_AUTO_POSITION"] = 1
    else:
        chosen |= {"SOURCE_LOG_FILE": place[0], "SOURCE_LOG_POS": place[1]}
    if source.binaries.flavour == "mariadb":
        chosen = {**chosen, "SOURCE_SSL": 0, "SOURCE_USE_GTID": "no"}
    words = [
        f"{name}={value!r}" if value != "no" else f"{name}=no" for name, value in chosen.items()
    ]
    said = f"CHANGE REPLICATION SOURCE TO {', '.join(words)}"
    witness.query(in_its_words(witness, said), in_its_words(witness, "START REPLICA IO_THREAD"))

    def come() -> bool:
        status = replica_status(witness)
        assert not status["Last_IO_Error"], status["Last_IO_Error"]
        # asked each time: MariaDB writes a checkpoint of its own a little later
        return (status["Source_Log_File"], status["Read_Source_Log_Pos"]) == position_of(source)

    wait_until(come, what="all is in the relay logs")
    witness.query(in_its_words(witness, "STOP REPLICA IO_THREAD"))


def in_its_words(server: MysqlServer, statement: str) -> str:
    """MariaDB has kept the old ones."""
    if server.binaries.flavour == "mysql":
        return statement
    old = statement.replace("CHANGE REPLICATION SOURCE", "CHANGE MASTER")
    return old.replace("SOURCE_", "MASTER_").replace(" REPLICA", " SLAVE")


def replica_status(server: MysqlServer) -> dict[str, Any]:
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute(in_its_words(server, "SHOW REPLICA STATUS"))
        assert cursor.description
        names = [
            column[0].replace("Master", "Source").replace("Slave", "Replica")
            for column in cursor.description
        ]
        return dict(zip(names, cursor.fetchall()[0], strict=True))


def _errors_of(replica: MysqlServer) -> str:
    """What each worker says of its own failure, and the end of the server's log."""
    text = "performance_schema.replication_applier_status_by_worker"
    if replica.binaries.flavour == "mariadb":
        said = ()
    else:
        said = replica.query(f"SELECT * FROM {text} WHERE LAST_ERROR_NUMBER > 0")
    lines = replica.log.read_text(errors="replace").splitlines()[-20:]
    return "\n".join([*(str(row) for row in said), *lines])


def apply_until(witness: MysqlServer, until: str) -> None:
    """Let the server apply, and stop by itself, there: `SQL_AFTER_GTIDS = '...'`."""
    start = in_its_words(witness, f"START REPLICA SQL_THREAD UNTIL {until}")
    witness.query(start)
    again = _Again(witness, start)

    def stopped() -> bool:
        status = again.status()
        return str(status["Replica_SQL_Running"]) == "No"

    wait_until(stopped, 120, f"the replica has stopped at {until}")


class _Again:
    """An applier that fails by a lock or the like is started again, as an operator would.

    What cannot be applied fails each time: then this raises AssertionError with all that the
    server says of it.
    """

    def __init__(self, replica: MysqlServer, start: str) -> None:
        self._replica = replica
        self._start = start
        self._left = 2

    def status(self) -> dict[str, Any]:
        """Of the replica, which has no error."""
        status = replica_status(self._replica)
        while status["Last_SQL_Error"]:
            text = f"{status['Last_SQL_Error']}\n{_errors_of(self._replica)}"
            assert self._left > 0, text
            self._left -= 1
            sys.stderr.write(f"started again after: {text}\n")
            wait_until(self._has_stopped, what="the applier has stopped")
            self._replica.query(self._start)
            status = replica_status(self._replica)
        return status

    def _has_stopped(self) -> bool:
        return str(replica_status(self._replica)["Replica_SQL_Running"]) == "No"


class _FromImage(MysqlServer):
    """A server that begins with restored data; its uuid is its own unless the data have one."""

    def __init__(
        self,
        binaries: ServerBinaries,
        directory: Path,
        image: Path,
        server_id: int,
        password: str,
        *,
        gtid: bool = True,
    ) -> None:
        options: tuple[str, ...] = (*RELAXED, "--event-scheduler=OFF")
        if binaries.flavour == "mariadb":
            options = (*options, "--log-slave-updates")
        super().__init__(binaries, directory, server_id=server_id, gtid=gtid, options=options)
        self._image = image
        self.password = password

    def _template(self) -> Path:
        return self._image

    def _create_users(self) -> None:
        """They came with the data."""


class ImageServer(_FromImage):
    """A MySQL."""


class MariadbImageServer(_FromImage, MariadbServer):
    """A MariaDB."""


def apply_all(witness: MysqlServer, gtids: str) -> None:
    """Let the server apply until it has these."""
    start = "START REPLICA SQL_THREAD"
    witness.query(start)
    again = _Again(witness, start)

    def done() -> bool:
        again.status()
        return has(witness, gtids)

    wait_until(done, 120, "the replica has applied all")
    witness.query("STOP REPLICA SQL_THREAD")


def has(server: MysqlServer, gtids: str) -> bool:
    """Whether it has executed them all."""
    return bool(server.query(f"SELECT GTID_SUBSET('{gtids}', @@gtid_executed)")[0][0])


def differences(found: State, wanted: State) -> list[str]:
    """In words; [] where a server holds what it must."""
    words = []
    if found["gtids"] != wanted["gtids"]:
        words.append(f"GTIDs {found['gtids']}, not {wanted['gtids']}")
    words += [
        f"account {name}: {found['accounts'].get(name)}, not {wanted['accounts'].get(name)}"
        for name in found["accounts"].keys() | wanted["accounts"].keys()
        if found["accounts"].get(name) != wanted["accounts"].get(name)
    ]
    ours, theirs = found["tables"], wanted["tables"]
    words += [f"table {name} is missing" for name in theirs.keys() - ours.keys()]
    words += [f"table {name} is there" for name in ours.keys() - theirs.keys()]
    words += [
        f"table {name}: {ours[name]}, not {theirs[name]}"
        for name in ours.keys() & theirs.keys()
        if list(ours[name]) != list(theirs[name])
    ]
    return words
