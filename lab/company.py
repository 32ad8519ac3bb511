"""A company whose database is streamed: what accidents happen to.

    with company(folder, binaries, minio) as site:
        site.trade()

What a server holds is asked of the server itself while it is there.
"""

import json
import os
import secrets
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from time import monotonic

from botocore.exceptions import ClientError

from lab import get
from lab.child import end, free_port, spawn, tail
from lab.mysql import MariadbServer, MysqlServer
from lab.s3 import REGION, MinioServer

SOURCE = "orders-primary"
BUCKET = "acme-binlogs"
PREFIX = "prod"
ACCOUNT = "binlog2s3"
TIMEOUT_SECONDS = 60
RELAXED = ("--sync-binlog=0", "--innodb-flush-log-at-trx-commit=2")

SCHEMA = (
    "CREATE DATABASE shop",
    "CREATE TABLE shop.customers (id INT PRIMARY KEY)",
    (
        "CREATE TABLE shop.orders (id INT AUTO_INCREMENT PRIMARY KEY, item TEXT, "
        "placed DATETIME(6), customer INT NOT NULL DEFAULT 1, "
        "FOREIGN KEY (customer) REFERENCES customers (id))"
    ),
    (
        "CREATE TABLE shop.parcels (id INT PRIMARY KEY, of_order INT NOT NULL, "
        "FOREIGN KEY (of_order) REFERENCES orders (id))"
    ),
    "CREATE TABLE shop.stock (item VARCHAR(40) PRIMARY KEY, amount INT)",
    "CREATE TABLE shop.audit (id INT AUTO_INCREMENT PRIMARY KEY, what VARCHAR(80))",
    "INSERT INTO shop.customers VALUES (1)",
    "INSERT INTO shop.stock VALUES ('lamp', 10000), ('desk', 10000)",
)
TABLES = ("orders", "stock", "audit")
Checksums = Mapping[str, int | None]


class CompanyFailedError(Exception):
    """Servers or streamer did not do what they were to do."""


@dataclass(slots=True, kw_only=True)
class Site:
    """A company's servers and its bucket; what happens to them is up to the accident.

    `variables` are those at the top of the page, `environment` what the AWS tools need; `held` is
    what the servers said they held, by moment; `gtids` are GTID sets and GTIDs of note.
    """

    stack: ExitStack
    folder: Path
    binaries: get.ServerBinaries
    store: MinioServer
    source: MysqlServer
    variables: dict[str, str] = field(default_factory=dict)
    held: dict[str, Checksums] = field(default_factory=dict)
    gtids: dict[str, str] = field(default_factory=dict)
    streamers: list["Streamer"] = field(default_factory=list)
    gtid: bool = True

    @property
    def is_mariadb(self) -> bool:
        """Whether the servers are MariaDB."""
        return self.binaries.flavour == "mariadb"

    @property
    def environment(self) -> dict[str, str]:
        """Keys, region and endpoint, for every tool that speaks to the bucket."""
        return {
            **self.store.env(),
            "AWS_DEFAULT_REGION": REGION,
            "AWS_ENDPOINT_URL": self.store.endpoint_url,
        }

    def trade(self, count: int = 20, server: MysqlServer | None = None) -> None:
        """So many orders, a transaction each."""
        with (server or self.source).connect() as connection, connection.cursor() as cursor:
            for number in range(count):
                item = ("lamp", "desk")[number % 2]
                cursor.execute("BEGIN")
                cursor.execute("INSERT INTO shop.orders (item, placed) VALUES (%s, NOW(6))", [item])
                cursor.execute("UPDATE shop.stock SET amount = amount - 1 WHERE item = %s", [item])
                cursor.execute("COMMIT")

    def note(self, what: str, count: int = 5, server: MysqlServer | None = None) -> None:
        """So many rows in shop.audit, a transaction each."""
        (server or self.source).query(
            *[f"INSERT INTO shop.audit (what) VALUES ('{what} {n}')" for n in range(count)]
        )

    def flush(self, server: MysqlServer | None = None) -> None:
        """The next binlog."""
        (server or self.source).query("FLUSH BINARY LOGS")

    def remember(self, moment: str, server: MysqlServer | None = None) -> None:
        """What the server holds now, and where it stands."""
        asked = server or self.source
        self.held[moment] = checksums(asked)
        if not self.is_mariadb:
            ((text,),) = asked.query("SELECT @@gtid_executed")
            self.gtids[moment] = str(text).replace("\n", "")

    def dump(self, name: str, *options: str, server: MysqlServer | None = None) -> Path:
        """A base backup, as the page says that it was made."""
        asked = server or self.source
        path = self.folder / f"{name}.sql"
        program = "mariadb-dump" if self.is_mariadb else "mysqldump"
        if self.is_mariadb:
            chosen = ["--master-data=2", "--gtid"]
        else:
            chosen = ["--source-data=2", f"--set-gtid-purged={'ON' if self.gtid else 'OFF'}"]
        chosen += ["--all-databases", "--triggers", "--routines", "--events"]
        argv = [str(self.binaries.client.with_name(program)), "--no-defaults", "--user=root"]
        argv += [f"--socket={asked.socket}", "--single-transaction", *chosen, *options]
        with path.open("wb") as out:
            done = subprocess.run(
                argv, stdout=out, stderr=subprocess.PIPE, timeout=300, check=False
            )
        if done.returncode != 0:
            raise CompanyFailedError(f"{program} fails: {done.stderr.decode(errors='replace')}")
        return path

    def stream(self, server: MysqlServer | None = None) -> "Streamer":
        """Stream a server, on the same spool as before."""
        made = Streamer(self, server or self.source)
        self.streamers.append(made)
        self.stack.callback(made.kill)
        return made

    def arrived(self, server: MysqlServer | None = None) -> None:
        """Wait until the bucket has all that the server has written, and its writer says so."""
        asked = server or self.source
        row = asked.query("SHOW MASTER STATUS" if self.is_mariadb else "SHOW BINARY LOG STATUS")[0]
        uuid = "" if self.is_mariadb else str(asked.query("SELECT @@server_uuid")[0][0])
        self.arrives(uuid, str(row[0]), int(row[1]), now(asked), self.streamers[-1].check)

    def arrives(
        self,
        uuid: str,
        binlog: str,
        offset: int,
        covered: str = "",
        check: Callable[[], None] = lambda: None,
    ) -> None:
        """Wait until the writer of that server says that this is durable, and until when."""

        def is_there() -> bool:
            check()
            said = self.heartbeat()
            durable = said.get("durable")
            if not isinstance(durable, dict):
                return False
            return (
                uuid in ("", said.get("server_uuid"))
                and durable["binlog"] == binlog
                and durable["offset"] >= offset  # MariaDB writes a checkpoint of its own behind it
                and str(said.get("covered_until") or "") >= covered
            )

        wait_for(is_there, f"{binlog}:{offset} is durable")

    def says(self, state: str) -> None:
        """Wait until the writer says that it is in this state."""
        wait_for(lambda: self.heartbeat().get("state") == state, f"the streamer is {state}")

    def seems_dead(self) -> None:
        """Wait until who reads the bucket takes the writer for dead."""
        options = [f"--source={SOURCE}", f"--s3-url={self.variables['S3URL']}", "--json"]

        def is_dead() -> bool:
            done = subprocess.run(
                [*program(), "status", *options],
                capture_output=True,
                env={**os.environ, **self.environment},
                timeout=TIMEOUT_SECONDS,
                check=False,
            )
            return done.returncode == 0 and json.loads(done.stdout).get("state") == "dead"

        wait_for(is_dead, "the streamer is taken for dead")

    def heartbeat(self) -> dict[str, object]:
        """The last writer's object; {} where there is none yet."""
        with closing(self.store.client()) as client:
            listed = client.list_objects_v2(
                Bucket=BUCKET, Prefix=f"{PREFIX}/live/{SOURCE}/writers/"
            ).get("Contents", [])
            if not listed:
                return {}
            key = max(row["Key"] for row in listed)
            found = json.loads(client.get_object(Bucket=BUCKET, Key=key)["Body"].read())
        return found if isinstance(found, dict) else {}

    def live(self, server: MysqlServer) -> None:
        """The option file of the server that the applications use."""
        path = self.folder / "live.cnf"
        path.write_text(f"[client]\nuser = root\nsocket = {server.socket}\n")
        path.chmod(0o600)
        self.variables["LIVE"] = str(path)


def program() -> list[str]:
    """The command `binlog2s3`."""
    script = Path(sys.executable).with_name("binlog2s3")
    return [str(script)] if script.is_file() else [sys.executable, "-m", "binlog2s3"]


class Streamer:
    """`binlog2s3 stream` on a host of its own."""

    def __init__(self, site: Site, server: MysqlServer) -> None:
        self.log = site.folder / f"stream-{len(site.streamers)}.log"
        self.spool = site.folder / "spool"
        options = {
            "source": SOURCE,
            "s3-url": site.variables["S3URL"],
            "mysql-host": "127.0.0.1",
            "mysql-port": server.port,
            "mysql-user": ACCOUNT,
            "mysql-password-file": site.variables["PASSWORD_FILE"],
            "mysqlbinlog": site.binaries.binlog,
            "spool": self.spool,
            "heartbeat-interval": 1,
        }
        argv = [*program(), "stream", *(f"--{name}={value}" for name, value in options.items())]
        self._process = spawn(argv, self.log, environment=site.environment)

    def check(self) -> None:
        """Raise where it has ended by itself."""
        if (status := self._process.poll()) is not None:
            raise CompanyFailedError(f"the streamer ended with {status}:\n{tail(self.log)}")

    def wait(self) -> int:
        """Its own end; the exit code."""
        return self._process.wait(TIMEOUT_SECONDS)

    def stop(self) -> None:
        """As a service manager does it."""
        end(self._process, grace_seconds=20)

    def kill(self) -> None:
        end(self._process)


def checksums(server: MysqlServer) -> Checksums:
    """Of the shop's tables, None for one that is not there."""
    rows = server.query("CHECKSUM TABLE " + ", ".join(f"shop.{table}" for table in TABLES))
    return {str(name): None if found is None else int(found) for name, found in rows}


def wait_for(condition: Callable[[], bool], what: str) -> None:
    """Return once it is so; raise, naming `what`, where that takes too long."""
    deadline = monotonic() + TIMEOUT_SECONDS
    pause = Event()
    while not condition():
        if monotonic() > deadline:
            raise CompanyFailedError(f"not within {TIMEOUT_SECONDS} s: {what}")
        pause.wait(0.1)


def _has_made_bucket(store: MinioServer) -> bool:
    """Not while the store, on a busy machine, still says that it is not initialised."""
    try:
        store.make_bucket(BUCKET)
    except ClientError as error:
        if error.response["Error"]["Code"] != "XMinioServerNotInitialized":
            raise
        return False
    return True


# A company before anything happens


@contextmanager
def company(
    folder: Path, binaries: get.ServerBinaries, minio: Path, *, gtid: bool = True
) -> Iterator[Site]:
    """A source under way, streamed, a base backup of it, and some work since."""
    with ExitStack() as stack:
        store = stack.enter_context(MinioServer(minio, folder / "store"))
        wait_for(lambda: _has_made_bucket(store), "the store is ready")
        source = stack.enter_context(server_of(binaries, folder / "source", 1, gtid=gtid))
        site = Site(
            stack=stack,
            folder=folder,
            binaries=binaries,
            store=store,
            source=source,
            gtid=gtid,
        )
        password = secrets.token_urlsafe(12)
        file = folder / "password"
        file.write_text(password)
        file.chmod(0o600)
        site.variables = {
            "S3URL": f"s3://{BUCKET}/{PREFIX}",
            "SOURCE": SOURCE,
            "PASSWORD_FILE": str(file),
            "WORK": str(folder / "work"),
            "PORT": str(free_port()),
            "LIVE": "",
            "DB": "shop",
            "TABLE": "orders",
            "WHEN": "",
            "LATER": "",
            "SNAPSHOT": "",
        }
        source.query(
            *SCHEMA,
            f"CREATE USER {ACCOUNT}@'%' IDENTIFIED BY '{password}'",
            f"GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO {ACCOUNT}@'%'",
        )
        site.live(source)
        site.stream()
        site.trade()
        site.flush()
        site.trade()
        site.variables["BACKUP"] = str(site.dump("monday"))
        site.trade()
        site.note("opened")
        site.flush()
        site.trade()
        yield site


def now(server: MysqlServer) -> str:
    """The time by a server's clock, as the commands take it."""
    ((text,),) = server.query("SELECT DATE_FORMAT(UTC_TIMESTAMP(6), '%Y-%m-%dT%H:%i:%s.%fZ')")
    return str(text)


def server_of(
    binaries: get.ServerBinaries, directory: Path, number: int, *, gtid: bool = True
) -> MysqlServer:
    """One that writes quickly: nobody cuts its power."""
    kind = MariadbServer if binaries.flavour == "mariadb" else MysqlServer
    return kind(binaries, directory, server_id=number, gtid=gtid, options=RELAXED)
