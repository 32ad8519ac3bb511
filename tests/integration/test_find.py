"""What `find` finds in a bucket is what the test has written, transaction by transaction.

Real servers, a real store, the streamer between them; the truth is what each statement said when it
was executed: rows by the server's own count, times by its own clock, GTIDs as it gave them.
"""

import json
import random
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from binlog2s3.binlog.gtid import GtidSet
from binlog2s3.config.points import parse_time
from lab.get import ServerBinaries
from lab.many import measured
from lab.mysql import MariadbServer, MysqlServer
from lab.s3 import MinioServer, environment_for
from tests.command import argv, environment
from tests.integration.bucket import Bucket
from tests.integration.stream_process import StreamProcess
from tests.waiting import PATIENCE
from tests.world.archive import wait_durable
from tests.world.commands import READ_ONLY, where

pytestmark = [pytest.mark.mysql, pytest.mark.minio]
RELAXED = ("--sync-binlog=0", "--innodb-flush-log-at-trx-commit=0")
KINDS = ("insert", "update", "delete")
TABLES = ("orders", "order_items", "stock")


# the command


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A command that has ended; `peak_kib` is the most memory that it had."""

    status: int
    stdout: str
    stderr: str
    peak_kib: int = 0

    @property
    def document(self) -> dict[str, Any]:
        found = json.loads(self.stdout)
        assert isinstance(found, dict)
        return found


class Finder:
    """`binlog2s3 find` as users call it, with credentials that may only read."""

    def __init__(self, store: MinioServer, bucket: str) -> None:
        self.environment = environment(**environment_for(**store.restricted(READ_ONLY)))
        self.where = ("--source=test", *where(store, bucket))

    def run(self, *arguments: str, command: str = "find") -> Ended:
        """To its end."""
        done = measured(argv(command, *self.where, *arguments), self.environment, timeout=900)
        assert "Traceback" not in done.stderr, done.stderr
        return Ended(
            status=done.status,
            stdout=done.stdout,
            stderr=done.stderr,
            peak_kib=done.rss >> 10,
        )

    def found(self, *arguments: str) -> list[dict[str, Any]]:
        """The transactions, oldest first unless it is said; nothing went wrong."""
        order = () if any(a.startswith("--order") for a in arguments) else ("--order=oldest",)
        done = self.run("--json", "--limit=0", *order, *arguments)
        assert done.status == 0, done.stderr
        document = done.document
        assert document["warnings"] == []
        assert document["found"] == len(document["transactions"])
        return document["transactions"]  # type: ignore[no-any-return]


# the truth


@dataclass(slots=True, kw_only=True)
class Written:
    """A transaction as the server took it; times in microseconds, by its clock."""

    gtid: str
    changes: dict[tuple[str, str], int | None]
    begun_us: int
    ended_us: int
    statement: str = ""
    compressed: bool = False


@dataclass(slots=True)
class Truth:
    """Writes, and remembers."""

    server: MysqlServer
    written: list[Written] = field(default_factory=list)

    @property
    def is_mariadb(self) -> bool:
        return self.server.binaries.flavour == "mariadb"

    def transaction(
        self, cursor: Any, statements: Sequence[tuple[str, str, str]], *, compressed: bool = False
    ) -> None:
        """Statements as (kind, table, text); their rows are those that the server counts."""
        changes: dict[tuple[str, str], int | None] = {}
        begun_us = self._now(cursor)
        cursor.execute("BEGIN")
        for kind, table, text in statements:
            rows = cursor.execute(text)
            if rows:
                key = (kind, table)
                changes[key] = (changes.get(key) or 0) + rows
        cursor.execute("COMMIT")
        if changes:
            self._remember(cursor, changes, begun_us, compressed=compressed)

    def statement(self, cursor: Any, text: str, changes: dict[tuple[str, str], int | None]) -> None:
        """One that commits by itself."""
        begun_us = self._now(cursor)
        cursor.execute(text)
        self._remember(cursor, changes, begun_us, statement=text)

    def _remember(
        self,
        cursor: Any,
        changes: dict[tuple[str, str], int | None],
        begun_us: int,
        *,
        statement: str = "",
        compressed: bool = False,
    ) -> None:
        one = Written(
            gtid=self._last_gtid(cursor),
            changes=changes,
            begun_us=begun_us,
            ended_us=self._now(cursor),
            statement=statement,
            compressed=compressed,
        )
        self.written.append(one)

    def _now(self, cursor: Any) -> int:
        cursor.execute("SELECT CAST(UNIX_TIMESTAMP(SYSDATE(6)) * 1000000 AS UNSIGNED)")
        return int(cursor.fetchall()[0][0])

    def _last_gtid(self, cursor: Any) -> str:
        if self.is_mariadb:
            cursor.execute("SELECT @@last_gtid")
            return str(cursor.fetchall()[0][0])
        cursor.execute("SELECT @@server_uuid, @@global.gtid_executed")
        own, executed = map(str, cursor.fetchall()[0])
        last = {uuid: runs[-1][1] for uuid, _, runs in GtidSet.parse(executed).runs()}
        return f"{own}:{last[own]}"


def wanted(
    written: Sequence[Written],
    *,
    tables: Sequence[str] = (),
    kinds: Sequence[str] = (),
    min_rows: int = 0,
) -> list[str]:
    """The GTIDs of those that must be found, by what was written."""
    found = []
    for one in written:
        rows = [
            count
            for (kind, table), count in one.changes.items()
            if (not tables or table in tables) and (not kinds or kind in kinds)
        ]
        if rows and sum(count or 0 for count in rows) >= min_rows:
            found.append(one.gtid)
    return found


def gtids(found: Sequence[Mapping[str, Any]]) -> list[str]:
    return [one["gtid"] for one in found]


def told(one: Mapping[str, Any]) -> dict[tuple[str, str], int | None]:
    return {(c["kind"], c["table"]): c["rows"] for c in one["changes"]}


# a bucket


@contextmanager
def streamed(
    folder: Path, server: MysqlServer, store: MinioServer, **options: Any
) -> Iterator[tuple[StreamProcess, str]]:
    """A streamer, and its bucket."""
    bucket = store.make_bucket()
    chosen = {"flush-interval": 0.2, **options}
    with StreamProcess(folder / "stream", server, store, bucket, options=chosen) as stream:
        yield stream, bucket


def arrived(
    stream: StreamProcess, reader: Bucket, server: MysqlServer, timeout: float = PATIENCE
) -> None:
    """Wait until all that the server has written is in the bucket."""
    stream.wait_for_event("streaming", timeout)
    wait_durable(stream, reader, server, timeout)


def create(server: MysqlServer) -> None:
    columns = "(id INT PRIMARY KEY, v VARCHAR(300), n INT, b LONGBLOB)"
    server.query(
        "CREATE DATABASE shop",
        "CREATE DATABASE other",
        *[f"CREATE TABLE shop.{name} {columns}" for name in TABLES],
        f"CREATE TABLE other.orders {columns}",
    )


def write_rows(truth: Truth, seed: int, count: int, *, large: int = 10) -> None:
    """Transactions of one to three statements of some rows each, on four tables.

    Some rows are of `large` bytes.
    """
    dice = random.Random(seed)
    names = [f"shop.{name}" for name in TABLES] + ["other.orders"]
    compress = (
        "SET SESSION binlog_transaction_compression = {}" if not truth.is_mariadb else "DO {}"
    )
    number = seed * 1_000_000
    with truth.server.connect() as connection, connection.cursor() as cursor:
        for _ in range(count):
            statements = []
            for _ in range(dice.choice([1, 1, 2, 3])):
                table = dice.choice(names)
                rows = dice.choice([1, 1, 2, 7, 40])
                kind = dice.choice([*KINDS, "insert"])
                if kind == "insert":
                    size = dice.choice([0, 10, large])
                    values = []
                    for _ in range(rows):
                        number += 1
                        values.append(f"({number}, 'x{number}', 0, REPEAT('y', {size}))")
                    text = f"INSERT INTO {table} VALUES {', '.join(values)}"
                elif kind == "update":
                    text = f"UPDATE {table} SET n = n + 1 ORDER BY id LIMIT {rows}"
                else:
                    text = f"DELETE FROM {table} ORDER BY id LIMIT {rows}"
                statements.append((kind, table, text))
            compressed = not truth.is_mariadb and dice.random() < 0.3
            cursor.execute(compress.format(int(compressed)))
            truth.transaction(cursor, statements, compressed=compressed)


SERVERS = {
    "mysql": (MysqlServer, (*RELAXED,)),
    "mariadb-compressed": (
        MariadbServer,
        (*RELAXED, "--binlog-format=ROW", "--log-bin-compress=ON",
         "--log-bin-compress-min-len=10"),
    ),
}  # fmt: skip


@pytest.fixture(params=["mysql", "mariadb-compressed"])
def server(request: pytest.FixtureRequest, disk_tmp_path: Path) -> Iterator[MysqlServer]:
    """Each flavour in turn."""
    kind, options = SERVERS[request.param]
    flavour = "mysql" if kind is MysqlServer else "mariadb"
    binaries: ServerBinaries = request.getfixturevalue(f"{flavour}_binaries")
    with kind(binaries, disk_tmp_path / "db", options=options) as made:
        yield made


def test_rows_are_found_as_they_were_written(
    server: MysqlServer, minio: MinioServer, disk_tmp_path: Path
) -> None:
    """By table, type, number of rows, time and GTID; in the archive, and in the open binlog.

    Large and small transactions, compressed ones, over several binlogs and blocks of 4 MiB.
    """
    truth = Truth(server)
    create(server)
    with streamed(disk_tmp_path, server, minio) as (stream, bucket):
        for seed in range(1, 4):
            write_rows(truth, seed, 60, large=60_000 if seed == 2 else 10)
            server.query("FLUSH BINARY LOGS")
        write_rows(truth, 4, 60, large=60_000)
        arrived(stream, Bucket(minio, bucket), server)
        assert stream.terminate() == 0
    finder = Finder(minio, bucket)
    of_rows = ("--type=insert", "--type=update", "--type=delete")
    found = finder.found(*of_rows)
    assert gtids(found) == [one.gtid for one in truth.written]
    for one, was in zip(found, truth.written, strict=True):
        assert told(one) == was.changes
        assert one["certain"]
        at_us = parse_time(one["committed"])
        assert was.begun_us - (1_000_000 if truth.is_mariadb else 0) <= at_us <= was.ended_us
        assert one["commit_time"] == ("seconds" if truth.is_mariadb else "exact")
        assert one["compressed"] >= was.compressed
    backwards = finder.found(*of_rows, "--order=newest")
    assert backwards == found[::-1]
    for tables, kinds, min_rows in (
        (("shop.orders",), (), 0),
        (("other.orders",), ("delete",), 0),
        (("shop.stock", "shop.orders"), ("update", "insert"), 20),
        (("shop.order_items",), ("insert",), 41),
        ((), ("delete",), 0),
        ((), (), 60),
    ):
        arguments = [*(f"--table={one}" for one in tables), *(f"--type={one}" for one in kinds)]
        arguments += [f"--min-rows={min_rows}"] if min_rows else []
        arguments += [] if kinds else of_rows
        expected = wanted(truth.written, tables=tables, kinds=kinds, min_rows=min_rows)
        assert expected, arguments
        for order in ("oldest", "newest"):
            got = gtids(finder.found(*arguments, f"--order={order}"))
            assert got == (expected if order == "oldest" else expected[::-1]), arguments
    _by_time_and_gtid(finder, truth, found)


def _by_time_and_gtid(finder: Finder, truth: Truth, found: Sequence[Mapping[str, Any]]) -> None:
    """Both ends of an interval count; GTIDs are found one by one and as a set."""
    first, last = found[25], found[-20]
    inside = [one["gtid"] for one in found if first["committed"] <= one["committed"]
              <= last["committed"]]  # fmt: skip
    between = f"{first['committed']}/{last['committed']}"
    of_rows = ("--type=insert", "--type=update", "--type=delete")
    assert gtids(finder.found(*of_rows, f"--between={between}")) == inside
    since = gtids(finder.found(*of_rows, f"--between={first['committed']}/"))
    assert since == [one["gtid"] for one in found if one["committed"] >= first["committed"]]
    chosen = [truth.written[n].gtid for n in (3, 77, len(truth.written) - 1)]
    many = [f"--gtid={gtid}" for gtid in chosen]
    assert gtids(finder.found(*many)) == chosen
    assert gtids(finder.found(f"--gtid={','.join(chosen)}")) == chosen


DDL = {
    "DROP TABLE orders": ("shop", True),
    "drop table if exists `orders`, shop.`stock`": ("shop", True),
    "DROP /* why? */ TABLE -- now\n other.x, shop.orders": ("", True),
    "TRUNCATE shop.orders": ("", True),
    "RENAME TABLE shop.orders TO shop.was": ("", True),
    "RENAME TABLE shop.stock TO shop.orders2, shop.orders TO other.was": ("", True),
    "ALTER TABLE orders ADD added INT": ("shop", True),
    "CREATE INDEX i ON orders (n)": ("shop", True),
    "DROP DATABASE shop": ("", True),
    "ALTER TABLE shop.stock RENAME TO shop.gone": ("", None),
    "DROP TABLE other.orders": ("", None),
    "DROP TABLE order_items": ("shop", None),
    "CREATE TABLE other.of_orders (orders INT)": ("", None),
    "CREATE VIEW shop.v AS SELECT * FROM shop.orders": ("", False),
    "CREATE TRIGGER shop.t BEFORE INSERT ON shop.orders FOR EACH ROW SET NEW.n = 1": ("", False),
    "GRANT SELECT ON shop.* TO CURRENT_USER()": ("", False),
}
"""Statements; the database that they are run in; found for sure, perhaps (False), or not."""


@pytest.mark.gate("mysql")
@pytest.mark.parametrize("flavour", ["mysql", "mariadb"])
def test_who_dropped_it(
    flavour: str, request: pytest.FixtureRequest, minio: MinioServer, disk_tmp_path: Path
) -> None:
    """All that defines a table is found by its name, however it is written, and nothing else.

    And whoever runs the command that is printed comes to just before it.
    """
    kind = MysqlServer if flavour == "mysql" else MariadbServer
    binaries = request.getfixturevalue(f"{flavour}_binaries")
    with (
        kind(binaries, disk_tmp_path / "db", options=RELAXED) as server,
        streamed(disk_tmp_path, server, minio) as (stream, bucket),
    ):
        truth = Truth(server)
        for text, (db, _) in DDL.items():
            server.query("DROP DATABASE IF EXISTS other", "DROP DATABASE IF EXISTS shop")
            create(server)
            server.query("CREATE TABLE other.x (a INT)")
            with server.connect(database=db or None) as connection, connection.cursor() as cursor:
                truth.statement(cursor, text, {})
        arrived(stream, Bucket(minio, bucket), server)
        assert stream.terminate() == 0
    finder = Finder(minio, bucket)
    found = {one["gtid"]: one for one in finder.found("--table=shop.orders", "--type=ddl")}
    for one, (text, (_, certain)) in zip(truth.written, DDL.items(), strict=True):
        assert (one.gtid in found) == (certain is not None), text
        if certain is not None:
            assert found[one.gtid]["certain"] == certain, text
            shown = found[one.gtid]["statements"][0].split()[0]  # servers write much of it anew
            assert shown.upper() == text.split()[0].upper()
    drop = found[truth.written[0].gtid]
    at = drop["committed"]
    narrow = ("--table=shop.orders", "--type=ddl", f"--between={at}/{at}", f"--gtid={drop['gtid']}")
    done = finder.run(*narrow)
    assert done.status == 0
    (command,) = [
        line.strip() for line in done.stdout.splitlines() if line.startswith("  binlog2s3 ")
    ]
    words = shlex.split(drop["pitr"])
    assert words[:2] == ["binlog2s3", "pitr"]
    assert shlex.split(command) == ["binlog2s3", "restore", *words[2:]]
    assert drop["undo"] is None
    output = disk_tmp_path / "files"
    ended = subprocess.run(
        [sys.executable, "-m", *words, f"--output-dir={output}", "--json"],
        env=finder.environment,
        capture_output=True,
        timeout=120,
        check=False,
        text=True,
    )
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout)["plan"]["left_out"][0]["gtid"] == drop["gtid"]


def test_a_transaction_of_200_mb(
    mysql_binaries: ServerBinaries, minio: MinioServer, disk_tmp_path: Path
) -> None:
    """Its rows are counted, what lies behind it is found, and memory stays small."""
    options = (*RELAXED, "--innodb-redo-log-capacity=512M")
    with (
        MysqlServer(mysql_binaries, disk_tmp_path / "db", options=options) as server,
        streamed(disk_tmp_path, server, minio) as (stream, bucket),
    ):
        create(server)
        truth = Truth(server)
        with server.connect() as connection, connection.cursor() as cursor:
            many = ", ".join(f"({n}, '', 0, REPEAT('z', 100000))" for n in range(200))
            texts = [
                f"INSERT INTO shop.stock SELECT id + {1000 * n}, v, n, b FROM other.orders"
                for n in range(10)
            ]
            inserts = [("insert", "shop.stock", text) for text in texts]
            truth.transaction(
                cursor, [("insert", "other.orders", f"INSERT INTO other.orders VALUES {many}")]
            )
            truth.transaction(cursor, inserts)
            truth.transaction(
                cursor, [("insert", "shop.orders", "INSERT INTO shop.orders VALUES (1, '', 1, '')")]
            )
        arrived(stream, Bucket(minio, bucket), server, timeout=180)
        assert stream.terminate() == 0
    finder = Finder(minio, bucket)
    done = finder.run("--json", "--type=insert")
    assert done.status == 0, done.stderr
    found = done.document["transactions"]
    assert [told(one) for one in found] == [one.changes for one in reversed(truth.written)]
    assert found[1]["changes"][0]["rows"] == 2000
    assert found[1]["end"] - found[1]["begin"] > 200_000_000
    assert done.peak_kib < 350 * 1024
    behind = finder.found("--table=shop.orders")
    assert told(behind[-1]) == truth.written[-1].changes


def test_without_gtids(
    mysql_binaries: ServerBinaries, minio: MinioServer, disk_tmp_path: Path
) -> None:
    """A position takes the place of the GTID, in what is shown and in the command."""
    with (
        MysqlServer(mysql_binaries, disk_tmp_path / "db", gtid=False, options=RELAXED) as server,
        streamed(disk_tmp_path, server, minio) as (stream, bucket),
    ):
        create(server)
        ends = []
        for n in range(5):
            server.query(f"INSERT INTO shop.orders VALUES ({n}, '', 0, '')")
            ends.append(server.binlogs()[-1])
        arrived(stream, Bucket(minio, bucket), server)
        assert stream.terminate() == 0
    finder = Finder(minio, bucket)
    found = finder.found("--table=shop.orders", "--type=insert")
    assert [(one["binlog"], one["end"], one["gtid"]) for one in found] == [
        (name, size, None) for name, size in ends
    ]
    for one in found:
        assert one["pitr"].endswith(f" --to-position {one['binlog']}:{one['begin']}")
