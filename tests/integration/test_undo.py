"""Transactions are taken back on real servers: every row as it was, or nothing at all.

The server's own binlogs lie in a bucket in memory. The witness is the server: CHECKSUM TABLE and
the rows before the accident and after the undo.
"""

import json
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from binlog2s3.binlog.names import BinlogName
from binlog2s3.server.version import ServerVersion
from lab import get
from lab.disk import temporary_directory
from lab.mysql import MysqlServer, server_of
from tests.documents import LINEAGE, TIME, like
from tests.golden.buckets import HOUR, Golden
from tests.golden.outputs import Called, called
from tests.integration.test_content import (
    COMMON,
    MARIADB,
    MYSQL,
    PLACES,
    create_every,
    work_on_every,
)
from tests.memory_client import MemoryClient
from tests.surveyed import Bucket

COLUMNS: Mapping[str, Mapping[str, str]] = {
    "mysql-9": {**MYSQL, **PLACES},
    "mysql-8.0.31": {**COMMON, **PLACES},
    "mariadb-10.11": MARIADB,
    "mariadb-11.8": MARIADB,
}
STATE = "SELECT * FROM {} ORDER BY 1, 2"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A server, and the columns of shop.every."""

    server: MysqlServer
    columns: Mapping[str, str]

    @property
    def is_mariadb(self) -> bool:
        return self.server.binaries.flavour == "mariadb"

    def begin(self, *statements: str) -> None:
        """An empty database, and a history that begins here."""
        self.server.query(
            "SET sql_log_bin = 0",
            "DROP DATABASE IF EXISTS shop",
            "CREATE DATABASE shop",
            "USE shop",
            *statements,
        )
        version = str(self.server.query("SELECT VERSION()")[0][0])
        self.server.query(ServerVersion(version).reset_statement)

    def transaction(self, *statements: str) -> str:
        """One transaction of these statements; its GTID."""
        self.server.query("USE shop", "BEGIN", *statements, "COMMIT")
        return self.last_gtid()

    def last_gtid(self) -> str:
        if self.is_mariadb:
            return str(self.server.query("SELECT @@gtid_binlog_pos")[0][0])
        text = str(self.server.query("SELECT @@global.gtid_executed")[0][0])
        uuid, _, numbers = text.replace("\n", "").partition(":")
        return f"{uuid}:{numbers.rpartition('-')[2]}"

    def state(self, *tables: str) -> list[Any]:
        """Checksums and rows."""
        found: list[Any] = []
        for table in tables:
            found += self.server.query(f"CHECKSUM TABLE shop.{table} EXTENDED")
            found += sorted(map(repr, self.server.query(f"SELECT * FROM shop.{table}")))
        return found

    def bucket(self) -> Golden:
        """All of its binlogs in a bucket, the last one open."""
        names = [name for name, _ in self.server.binlogs()]
        lineage = like(
            LINEAGE,
            server_uuid=self.uuid,
            flavour=self.server.binaries.flavour,
            server_version=self.server.binaries.version,
            first_binlog=BinlogName.parse(names[0]),
            gtid_set="",
        )
        bucket = Bucket(lineage)
        for name in names[:-1]:
            data = (self.server.datadir / name).read_bytes()
            bucket.archive(data, name=BinlogName.parse(name))
        data = (self.server.datadir / names[-1]).read_bytes()
        bucket.chunk(data, 0, len(data), name=BinlogName.parse(names[-1]))
        now = TIME + HOUR
        return Golden(client=MemoryClient(bucket, lambda: now), now=now)

    @property
    def uuid(self) -> str:
        if self.is_mariadb:
            return "00000001-00000000"
        return str(self.server.query("SELECT @@server_uuid")[0][0])

    def undo(self, *words: str, user: str = "root") -> Called:
        where = ["--s3-url=s3://acme/pre", "--source=orders"]
        target = [f"--target-socket={self.server.socket}", f"--target-user={user}"]
        yes = [] if {"--dry-run"} & {*words} or any("--output" in w for w in words) else ["--yes"]
        return called(self.bucket(), ["undo", *where, *target, *yes, *words])

    def undone(self, *gtids: str, **more: Any) -> Called:
        """An undo that has to succeed."""
        done = self.undo(*(f"--gtid={gtid}" for gtid in gtids), **more)
        assert done.code == 0, done.err
        assert self.server.query("SHOW DATABASES LIKE 'binlog2s3%'") == []
        return done

    def refused(self, *words: str, why: str = "") -> Called:
        """An undo that is refused, and changes nothing."""
        before, done = self.last_gtid(), self.undo(*words)
        assert done.code == 8, (done.out, done.err)
        assert why in done.err, done.err
        assert self.last_gtid() == before
        assert self.server.query("SHOW DATABASES LIKE 'binlog2s3%'") == []
        return done


@pytest.fixture(scope="module", params=COLUMNS)
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    """A server for its tests."""
    binaries = get.VERSIONS[request.param]()
    with (
        temporary_directory() as directory,
        server_of(binaries, directory, options=["--binlog-format=ROW"]) as server,
    ):
        yield Place(server=server, columns=COLUMNS[request.param])


K = ("CREATE TABLE k (id INT PRIMARY KEY, a INT, b VARCHAR(20), KEY (a))",
     "INSERT INTO k VALUES (1,1,'x'),(2,2,'x'),(3,3,'x'),(4,4,NULL)")  # fmt: skip


@pytest.mark.parametrize(
    "accident",
    [
        ["UPDATE k SET b = 'y'"],
        ["DELETE FROM k"],
        ["INSERT INTO k VALUES (9,9,'z'),(10,10,NULL)"],
        ["UPDATE k SET b = 'y'", "UPDATE k SET b = 'z', a = a + 1", "DELETE FROM k WHERE id = 2"],
        ["UPDATE k SET id = id + 100", "INSERT INTO k VALUES (1, 7, 'new')"],
        ["DELETE FROM k WHERE id = 1", "INSERT INTO k VALUES (1, 7, 'again')",
         "UPDATE k SET id = 55 WHERE id = 1", "DELETE FROM k WHERE id = 55"],
    ],
)  # fmt: skip
def test_a_transaction_is_taken_back(place: Place, accident: list[str]) -> None:
    """Exactly, with a GTID of its own, which can be undone; and never twice."""
    place.begin(*K)
    before = place.state("k")
    gtid = place.transaction(*accident)
    after = place.state("k")
    done = place.undone(gtid)
    assert place.state("k") == before
    own = place.last_gtid()
    assert own != gtid
    assert f"GTID is {own}" in done.out
    place.refused(f"--gtid={gtid}", why="undone already")
    assert place.state("k") == before
    place.undone(own)
    assert place.state("k") == after


def test_what_came_after_is_never_overwritten(place: Place) -> None:
    """A change of any column, in case only too; the later transaction is named."""
    for later, why in (
        ("UPDATE k SET b = 'later' WHERE id = 2", "changed"),
        ("UPDATE k SET b = 'Y' WHERE id = 2", "changed"),
        ("UPDATE k SET b = NULL WHERE id = 2", "changed"),
        ("DELETE FROM k WHERE id = 2", "missing"),
    ):
        place.begin(*K)
        gtid = place.transaction("UPDATE k SET b = 'y'")
        culprit = place.transaction(later)
        state = place.state("k")
        done = place.refused(f"--gtid={gtid}", why=f"(id=2) {why}")
        assert f"by {culprit}" in done.err
        assert place.state("k") == state
