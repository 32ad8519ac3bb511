"""Where the cells of the compatibility matrix run: a server, a bucket, and the options for both.

Two kinds of place: a server of the lab with a bucket in MinIO, or a server and a bucket of one's
own, which `make compat MYSQL=host:port S3=url` names. Law: on the latter, all that is changed is
the database DATABASE, and what lies under a new prefix of the bucket.
"""

import json
import secrets
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from binlog2s3.archive.sources import BEGUN
from binlog2s3.config.stream import MysqlConfig
from binlog2s3.server.connection import Server
from binlog2s3.server.login import resolve
from lab import compat
from lab.compat import DATABASE
from lab.mysql import MysqlServer
from lab.s3 import MinioServer
from tests import command
from tests.integration.bucket import Bucket
from tests.integration.stream_process import StreamProcess
from tests.waiting import wait_until


class Answering(Protocol):
    """What a cell asks of a server."""

    def query(self, *statements: str) -> list[tuple[Any, ...]]:
        """Run statements on one connection; the rows of the last one."""

    def binlogs(self) -> list[tuple[str, int]]:
        """Name and size of each binlog, oldest first."""


class OwnServer:
    """A server that somebody else runs; user and password are in an option file."""

    def __init__(self, address: str, defaults_file: Path) -> None:
        host, port = compat.address(address)
        self.options = {
            "mysql-host": host,
            "mysql-port": port,
            "mysql-defaults-file": str(defaults_file),
            "mysql-user": None,
            "mysql-password-file": None,
            "mysqlbinlog": None,
        }
        self._login = resolve(
            MysqlConfig(
                host=host,
                port=int(port),
                defaults_file=defaults_file,
            )
        )

    def query(self, *statements: str) -> list[tuple[Any, ...]]:
        """Run statements on one connection; the rows of the last one."""
        rows: list[dict[str, Any]] = []
        with Server(lambda: self._login) as server:
            for statement in statements:
                rows = server.rows(statement)
        return [tuple(row.values()) for row in rows]

    def binlogs(self) -> list[tuple[str, int]]:
        """Name and size of each binlog, oldest first."""
        with Server(lambda: self._login) as server:
            return [(str(one.name), one.size) for one in server.binlogs()]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lab:
    """A server and a store of the lab, which may be reset and looked into."""

    server: MysqlServer
    store: MinioServer
    bucket: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A server and a bucket; `lab` if they are the lab's own. `table` is no other cell's."""

    server: Answering
    directory: Path
    options: Mapping[str, str | None]
    environment: Mapping[str, str] = field(repr=False)
    lab: Lab | None = None
    table: str = field(default_factory=lambda: f"{DATABASE}.t_{secrets.token_hex(4)}")

    @property
    def version(self) -> str:
        """What the server says of itself."""
        return str(self.server.query("SELECT VERSION()")[0][0])

    @property
    def is_mariadb(self) -> bool:
        return "mariadb" in self.version.lower()

    @property
    def title(self) -> str:
        """Flavour and number, for people."""
        number = self.version.partition("-")[0]
        return f"{'MariaDB' if self.is_mariadb else 'MySQL'} {number}"

    def stream(self, number: int = 1) -> StreamProcess:
        """A streamer; all of a place have the same spool."""
        return StreamProcess(
            self.directory / f"stream-{number}",
            _Unasked(),  # type: ignore[arg-type]
            _Unasked(),  # type: ignore[arg-type]
            "",
            options={
                "endpoint-url": None,
                "addressing-style": None,
                "region": None,
                "start-at": "oldest" if self.lab else "now",
                "spool": self.directory / "spool",
                "spool-min-free-bytes": 0,
                **self.options,
            },
            environment=dict(self.environment),
        )

    def run(
        self, name: str, *arguments: str, server: bool = False
    ) -> "subprocess.CompletedProcess[str]":
        """One command on the bucket, where wanted with the options for the server."""
        words = [
            f"--{option}={value}"
            for option, value in self.options.items()
            if value is not None
            and (server or not option.startswith("mysql"))
            and (name == "check" or option != "mysqlbinlog")
        ]
        return command.run(name, *words, *arguments, **self.environment)

    def document(self, name: str, *arguments: str, server: bool = False) -> dict[str, Any]:
        """What a command says as JSON; it must end well."""
        return self._said(self.run(name, "--json", *arguments, server=server))

    def _said(self, done: "subprocess.CompletedProcess[str]") -> dict[str, Any]:
        assert done.returncode == 0, f"{done.returncode}\n{done.stderr}\n{done.stdout[-3000:]}"
        found = json.loads(done.stdout)
        assert isinstance(found, dict)
        return found

    def create(self) -> None:
        """The table."""
        self.server.query(
            f"CREATE DATABASE {DATABASE}",
            f"CREATE TABLE {self.table} (id INT AUTO_INCREMENT PRIMARY KEY, v VARCHAR(100), "
            "n DECIMAL(20,5), at TIMESTAMP(6) NULL, b BLOB)",
        )

    def write(self, text: str, count: int = 5) -> None:
        """So many transactions of one row, then one that changes and one that deletes rows."""
        inserts = [
            f"INSERT INTO {self.table} (v, n, at, b) VALUES "
            f"('{text} {number}', -{number}.14159, NOW(6), REPEAT('x', 3000))"
            for number in range(count)
        ]
        self.server.query(
            *inserts,
            f"UPDATE {self.table} SET v = CONCAT(v, '!') WHERE v LIKE '{text}%'",
            f"DELETE FROM {self.table} WHERE v LIKE '{text} 0%'",
        )

    def rotate(self) -> None:
        """The next binlog."""
        self.server.query("FLUSH BINARY LOGS")

    def lineages(self) -> list[dict[str, Any]]:
        """What `list` shows, oldest first; nothing while the streamer has only begun."""
        done = self.run("list", "--json")
        if BEGUN in done.stderr:
            return []
        found = [one for source in self._said(done)["sources"] for one in source["lineages"]]
        return sorted(found, key=lambda one: str(one["lineage"]))

    def wait_durable(self, stream: StreamProcess) -> None:
        """Until the bucket has all that the server had written when it was asked."""
        name, size = self.server.binlogs()[-1]

        def is_there() -> bool:
            assert stream.process.poll() is None, stream.stderr()
            if self.lab is not None:  # what its writer says takes no process to be read
                said = Bucket(self.lab.store, self.lab.bucket).heartbeat()["durable"] or {}
                return said.get("binlog") == name and int(said["offset"]) >= size
            shown = self.lineages()[-1:]
            rows = [row for one in shown for row in one["binlogs"]]
            return any(row["name"] == name and row["size"] >= size for row in rows)

        wait_until(is_there, 120, f"{name} up to {size} in the bucket", interval=0.5)


class _Unasked:
    """Stands where `StreamProcess` reads what the options replace."""

    port = 0
    repl_user = ""
    password_file = ""
    endpoint_url = ""

    @property
    def binaries(self) -> "_Unasked":
        return self

    binlog = ""

    def env(self) -> dict[str, str]:
        return {}
