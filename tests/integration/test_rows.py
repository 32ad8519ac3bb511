"""The rows that `rows` and `find --rows` show are those of the server's own mysqlbinlog -vv.

Real servers write rows of every type; their binlogs lie in a bucket in memory. mysqlbinlog prints
the same file as it is, and this is the witness: row by row, value by value.
"""

import json
import re
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pymysql
import pytest
from pymysql.constants import ER

from binlog2s3.binlog.names import BinlogName
from binlog2s3.binlog.rows import VALUE_MOST
from binlog2s3.output import clean
from lab import get
from lab.disk import temporary_directory
from lab.mysql import MysqlServer, server_of
from lab.s3 import MinioServer
from tests.documents import LINEAGE, TIME, like
from tests.golden.buckets import HOUR, Golden
from tests.golden.outputs import Called, called
from tests.integration.bucket import Bucket as IntegrationBucket
from tests.integration.test_content import (
    COMMON,
    MARIADB,
    MYSQL,
    PLACES,
    binlog_of,
    create_every,
    work_on_every,
)
from tests.integration.test_find import Finder, arrived, streamed
from tests.memory_client import MemoryClient
from tests.snapshots import Bucket
from tests.waiting import wait_until

COLUMNS: Mapping[str, Mapping[str, str]] = {
    "mysql-9": MYSQL,
    "mysql-8.0.31": COMMON,
    "mysql-5.7.22": COMMON,
    "mariadb-10.11": MARIADB,
    "mariadb-11.8": MARIADB,
}
HOSTILE = "x\n### DELETE FROM `t`.`1`\n\x1b[31m"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A server, and the columns of shop.every in their order; `named`: the binlog has the names."""

    server: MysqlServer
    columns: Mapping[str, str]
    named: bool

    @property
    def is_mariadb(self) -> bool:
        return self.server.binaries.flavour == "mariadb"

    def write(self, *statements: str) -> Path:
        return binlog_of(self.server, statements)

    def shown(self, file: Path, command: str, *words: str) -> Called:
        """What a command prints of a bucket with this binlog."""
        lineage = like(
            LINEAGE,
            flavour=self.server.binaries.flavour,
            server_version=self.server.binaries.version,
            first_binlog=BinlogName.parse(file.name),
            gtid_set="",
        )
        bucket = Bucket(lineage)
        bucket.archive(file.read_bytes(), name=BinlogName.parse(file.name))
        now = TIME + HOUR
        golden = Golden(client=MemoryClient(bucket, lambda: now), now=now)
        where = ["--s3-url=s3://acme/pre", "--source=orders"]
        return called(
            golden, [command, *where, f"--mysqlbinlog={self.server.binaries.binlog}", *words]
        )

    def witness(self, file: Path) -> list[str]:
        """The lines of rows that mysqlbinlog prints of the binlog, in the form of `rows`."""
        done = subprocess.run(
            [self.server.binaries.binlog, "--no-defaults", "--base64-output=decode-rows", "-vv",
             file],
            env={"TZ": "UTC", "TMPDIR": str(self.server.directory / "tmp")},
            capture_output=True, check=True, timeout=300,
        )  # fmt: skip
        lines = [line for line in done.stdout.split(b"\n") if line.startswith(b"###")]
        names = ["id", *self.columns]

        def in_our_form(line: str) -> str:
            found = re.fullmatch(r"###   @(\d+)=(.*?)( /\* [^*]* \*/)", line, re.DOTALL)
            if found is None:
                return line.replace("`", "")
            column = names[int(found[1]) - 1] if self.named else f"@{found[1]}"
            text, size = found[2], len(found[2].encode("utf-8", "surrogateescape"))
            if len(text) > VALUE_MOST:
                text = f"{text[:VALUE_MOST]}... (cut, of {size:,} bytes)"
            return f"###   {column}={text}{found[3]}"

        texts = (line.decode(errors="backslashreplace") for line in lines)
        return [clean(in_our_form(text)) for text in texts]


@pytest.fixture(scope="module", params=COLUMNS)
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    """A server for its tests, with a table of every type."""
    binaries = get.VERSIONS[request.param]()
    is_old = request.param.startswith("mysql-5.7")
    options = ["--binlog-format=ROW", *([] if is_old else ["--binlog-row-metadata=FULL"])]
    with (
        temporary_directory() as directory,
        server_of(binaries, directory, options=options) as server,
    ):
        columns = COLUMNS[request.param]
        server.query("CREATE DATABASE shop", create_every(dict(columns)))
        yield Place(server=server, columns=columns, named=not is_old)


def rows_in(done: Called) -> list[str]:
    return [line for line in done.out.splitlines() if line.startswith("###")]


NEWEST, OLDER = ("mysql-9", "mariadb-11.8"), ("mysql-8.0.31", "mysql-5.7.22", "mariadb-10.11")


@pytest.mark.parametrize(
    ("place", "image", "compressed"),
    [
        *((place, "FULL", "OFF") for place in NEWEST),
        *((place, "FULL", "ON") for place in (*NEWEST, *OLDER)),
        *((place, "MINIMAL", "OFF") for place in NEWEST),
    ],
    indirect=["place"],
)
def test_rows_are_those_of_mysqlbinlog(place: Place, image: str, compressed: str) -> None:
    """Of every type, with names, compressed or not, with whole and minimal images."""
    settings = ["DELETE FROM shop.every", f"SET binlog_row_image = '{image}'"]
    if place.is_mariadb:
        place.server.query(f"SET GLOBAL log_bin_compress = {compressed}")
    elif place.named:
        settings.append(f"SET binlog_transaction_compression = {compressed}")
        settings.append(f"SET binlog_row_value_options = '{'PARTIAL_JSON' * (image == 'MINIMAL')}'")
    file = place.write(*settings, *work_on_every(dict(place.columns), len(image)))
    done = place.shown(file, "find", "--rows", "--order=oldest", "--limit=0")
    assert done.code == 0, done.err
    pairs = zip_longest(rows_in(done), place.witness(file))
    assert [pair for pair in pairs if pair[0] != pair[1]][:3] == []
    assert image != "MINIMAL" or "columns that are not shown" in done.out
    assert not re.search("events? not shown|mysqlbinlog printed|did not print", done.out)
    assert ("compressed" in done.out) == (compressed == "ON" and (place.named))


def test_nothing_that_a_tenant_wrote_looks_like_a_row(place: Place) -> None:
    """Neither names nor values nor statements; and nothing of them reaches the terminal raw."""
    table = f"shop.`{HOSTILE.replace('`', '``')}`"
    value = HOSTILE.encode().hex()
    file = place.write(
        f"CREATE TABLE {table} (id INT PRIMARY KEY, `{HOSTILE.replace('`', '``')}c` BLOB)",
        f"INSERT INTO {table} VALUES (1, x'{value}'), (2, x'{value}') /* \n### UPDATE x\n */",
        f"DROP TABLE {table}",
    )
    done = place.shown(file, "find", "--rows", "--order=oldest", "--limit=0")
    assert done.code == 0, done.err
    lines = rows_in(done)
    assert [line for line in lines if not line.startswith(("###   ", "### SET"))] == [
        f"### INSERT INTO {clean('shop.`' + HOSTILE.replace('`', '``') + '`')}"
    ] * 2
    assert all(c.isprintable() or c == "\n" for c in done.out)
    document = json.loads(place.shown(file, "find", "--rows", "--json", "--limit=0").out)
    (found,) = (one["rows"] for one in document["transactions"] if one["rows"])
    assert [row["after"].get("id", row["after"].get("@1")) for row in found] == ["1", "2"]


def test_rows_with_places(place: Place) -> None:
    """Which MySQL's mysqlbinlog cannot print as GEOMETRY: no row after it is lost."""
    listed = ", ".join(f"`{name}` {kind}" for name, kind in PLACES.items())
    some = ", ".join(["ST_GeomFromText('POINT(1 2)')"] * len(PLACES))
    file = place.write(
        f"CREATE TABLE shop.places (id INT PRIMARY KEY, {listed}, z INT)",
        f"INSERT INTO shop.places VALUES (1, {some}, 7), (2, {some}, 8)",
        "UPDATE shop.places SET z = 9",
        "DROP TABLE shop.places",
    )
    done = place.shown(file, "find", "--rows", "--json", "--order=oldest", "--limit=0")
    found = [row for one in json.loads(done.out)["transactions"] for row in one["rows"]]
    last = "z" if place.named else "@4"
    assert [(row["kind"], row["after"][last]) for row in found] == [
        ("insert", "7"), ("insert", "8"), ("update", "9"), ("update", "9")
    ]  # fmt: skip
    assert not any(one["rows_problems"] for one in json.loads(done.out)["transactions"])


def committed(server: MysqlServer, xid: str) -> bool:
    """XA COMMIT of a prepared transaction; False while it belongs to a connection that ends."""
    try:
        server.query(f"XA COMMIT '{xid}'")
    except pymysql.OperationalError as error:
        if error.args[0] != ER.XAER_NOTA:
            raise
        return False
    return True


def test_an_xa_commit_has_its_rows(place: Place) -> None:
    """Those of its XA PREPARE, which may be in sight."""
    insert = "INSERT INTO shop.every (id) VALUES"
    server = place.server
    server.query("DELETE FROM shop.every", "FLUSH BINARY LOGS")
    server.query("XA START 'a'", f"{insert} (1), (2)", "XA END 'a'", "XA PREPARE 'a'")
    server.query(f"{insert} (3)")  # of another connection: this one is in the transaction
    wait_until(lambda: committed(server, "a"), what="the connection that prepared it has ended")
    file = server.datadir / server.binlogs()[-1][0]
    server.query("FLUSH BINARY LOGS")
    done = place.shown(file, "find", "--rows", "--json", "--order=oldest", "--limit=0")
    found: list[dict[str, Any]] = json.loads(done.out)["transactions"]
    counts = [(one["xa"] and one["xa"]["phase"], len(one["rows"])) for one in found]
    assert counts[-3:] == [("prepare", 2), (None, 1), ("commit", 2)]
    at = f"--at={found[-1]['binlog']}:{found[-1]['begin']}"
    one = place.shown(file, "rows", at, "--json", "--limit=1")
    (alone,) = json.loads(one.out)["transactions"]
    assert (alone["rows"], alone["rows_more"]) == (found[-1]["rows"][:1], True)


def test_a_large_transaction_of_an_encrypted_source(
    mysql_binaries: get.ServerBinaries, minio: MinioServer, disk_tmp_path: Path
) -> None:
    """Of the open binlog, by a reader that may only read; no more memory than a small one takes."""
    with (
        MysqlServer(mysql_binaries, disk_tmp_path / "server", encrypted=True) as server,
        streamed(disk_tmp_path, server, minio) as (stream, name),
    ):
        some = "WITH RECURSIVE n AS (SELECT 0 i UNION ALL SELECT i + 1 FROM n WHERE i < 999)"
        server.query(
            "CREATE DATABASE shop",
            "CREATE TABLE shop.large (id INT PRIMARY KEY, v VARCHAR(400))",
            f"INSERT INTO shop.large {some} SELECT a.i * 1000 + b.i, REPEAT('x', 300) "
            "FROM n a JOIN n b WHERE a.i < 300",
            "DELETE FROM shop.large",
        )
        arrived(stream, IntegrationBucket(minio, name), server)
        finder = Finder(minio, name)
        (deleted,) = finder.found("--type=delete")
        (change,) = deleted["changes"]
        words = (f"--gtid={deleted['gtid']}", f"--mysqlbinlog={mysql_binaries.binlog}")
        done = finder.run(*words, command="rows")
        all_of_it = finder.run(*words, "--limit=0", "--json", command="rows")
    assert change["rows"] == 300_000
    assert deleted["end"] - deleted["begin"] > 90_000_000
    assert done.status == all_of_it.status == 0, done.stderr
    assert done.stdout.count("### DELETE FROM shop.large") == 100
    assert "300,000 rows" in done.stdout
    assert len(all_of_it.document["transactions"][0]["rows"]) == 300_000
    assert max(done.peak_kib, all_of_it.peak_kib) < 350 * 1024
