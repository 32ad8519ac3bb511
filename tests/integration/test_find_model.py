"""What `find` finds is held against a model that knows every change made on a real server.

The model executes each statement on tables of its own, which are the server's at the end, so that
it knows what each transaction has done: to which tables, which kinds of changes, when, and whether
it was committed. Nothing of it may be absent from what is found, and what is not so is never
certain.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

import pytest

from binlog2s3.binlog.gtid import GtidSet
from binlog2s3.binlog.names import BinlogName
from binlog2s3.binlog.tables import table_name
from binlog2s3.inspect.find.match import Criteria, Hit, SearchQuery, Tables
from binlog2s3.inspect.find.scan import TransactionSearch
from lab.disk import temporary_directory
from lab.get import ServerBinaries
from lab.mysql import MariadbServer, MysqlServer, server_of
from tests.documents import BEAT, ID, LINEAGE
from tests.snapshots import MARIADB, Bucket

pytestmark = [pytest.mark.mysql]
Table = tuple[str, str]
Rows = dict[int, int]
Effect = tuple[frozenset[str], str]
"""Kinds, one of which at least the change is, and the table."""

TABLES: tuple[Table, ...] = (("shop", "orders"), ("shop", "stock"), ("x", "y.t"), ("x.y", "t"))
MYISAM: Table = ("shop", "old")
OTHERS: tuple[Table, ...] = (("shop", "later"), ("shop", "made"))
KINDS = ("insert", "update", "delete", "ddl", "drop")
SECOND = 1_000_000
ROW_FORMAT, STATEMENT = "ROW", "STATEMENT"


def sql(table: Table) -> str:
    return ".".join(f"`{name}`" for name in table)


def effect(table: Table, *kinds: str) -> Effect:
    return frozenset(kinds), table_name(*table)


@dataclass(slots=True, kw_only=True)
class Done:
    """A transaction as it is in the binlog; times in microseconds, by the server's clock.

    `called`: what a statement is by its first word, whatever it has done. Not `real`: it was rolled
    back, or nobody knows yet.
    """

    gtid: str
    begun_us: int
    ended_us: int
    effects: set[Effect]
    called: set[Effect] = field(default_factory=set)
    real: bool = True

    def is_meant(self, kinds: Sequence[str], tables: Sequence[str], *, called: bool) -> bool:
        """Whether it has done one of these; `called`: or is said to."""
        return any(
            (not kinds or not possible.isdisjoint(kinds)) and (not tables or table in tables)
            for possible, table in self.effects | (self.called if called else set())
        )

    def must(self, kinds: Sequence[str], tables: Sequence[str]) -> bool:
        """Whether it must be found: where a change may be of several kinds, if all are asked for.

        Which of them the server has made of it, a REPLACE in rows, only the server knows.
        """
        return any(
            (not kinds or possible <= set(kinds)) and (not tables or table in tables)
            for possible, table in self.effects
        )


class Model:
    """Writes on a server, and remembers."""

    def __init__(self, server: MysqlServer, cursor: Any, seed: int) -> None:
        self.cursor = cursor
        self.dice = random.Random(seed)
        self.is_mariadb = isinstance(server, MariadbServer)
        self.file = server.directory / "rows.txt"
        self.tables: dict[Table, Rows] = {table: {} for table in (*TABLES, MYISAM)}
        self.done: list[Done] = []
        self.format = ROW_FORMAT
        self._number = 0
        self._xids = 0
        for database in ("shop", "x", "x.y"):
            self.cursor.execute(f"CREATE DATABASE `{database}`")
        for table in self.tables:
            engine = "MyISAM" if table == MYISAM else "InnoDB"
            self.cursor.execute(
                f"CREATE TABLE {sql(table)} (id INT PRIMARY KEY, v INT) ENGINE={engine}"
            )
        self.cursor.execute("USE shop")

    # The server's own word

    def now_us(self) -> int:
        self.cursor.execute("SELECT CAST(UNIX_TIMESTAMP(SYSDATE(6)) * 1000000 AS UNSIGNED)")
        return int(self.cursor.fetchall()[0][0])

    def last_gtid(self) -> str:
        if self.is_mariadb:
            self.cursor.execute("SELECT @@global.gtid_binlog_pos")
            return str(self.cursor.fetchall()[0][0])
        self.cursor.execute("SELECT @@server_uuid, @@global.gtid_executed")
        own, executed = map(str, self.cursor.fetchall()[0])
        last = {uuid: runs[-1][1] for uuid, _, runs in GtidSet.parse(executed).runs()}
        return f"{own}:{last.get(own, 0)}"

    def run(
        self,
        texts: Sequence[str],
        effects: set[Effect],
        called: set[Effect] = frozenset(),  # type: ignore[assignment]
        *,
        real: bool = True,
        at_us: int | None = None,
    ) -> Done | None:
        """Statements of one transaction; None if the server has written nothing of it."""
        before, begun_us = self.last_gtid(), self.now_us()
        for text in texts:
            self.cursor.execute(text)
        gtid, ended_us = self.last_gtid(), self.now_us()
        if gtid == before:
            assert not effects, texts
            return None
        if at_us is not None:
            begun_us = ended_us = at_us
        done = Done(
            gtid=gtid, begun_us=begun_us, ended_us=ended_us, effects=set(effects),
            called=set(called), real=real,
        )  # fmt: skip
        self.done.append(done)
        return done

    # Statements: their text, what they do, what they are called

    def statement(self, tables: Sequence[Table] = TABLES) -> tuple[str, set[Effect], set[Effect]]:
        """One at random, which is carried out on the model's tables."""
        table = self.dice.choice(tables)
        rows, name = self.tables[table], sql(table)
        old = self.dice.sample(sorted(rows), min(len(rows), 2))
        self._number += 1
        new, v = self._number, self._number
        before = dict(rows)
        kind = self.dice.choice(["insert", "upsert", "replace", "update", "delete", "several"])
        ids = [*old, new]
        if kind == "insert" or not old:
            kind, text = "insert", f"INSERT INTO {name} VALUES ({new}, {v})"
            rows[new] = v
        elif kind == "upsert":
            ids = old if self.dice.random() < 0.5 else ids
            values = ", ".join(f"({one}, {v})" for one in ids)
            text = f"INSERT INTO {name} VALUES {values} ON DUPLICATE KEY UPDATE v = {v}"
            rows.update(dict.fromkeys(ids, v))
            return text, self._difference(table, before), self._called("insert", table)
        elif kind == "replace":
            text = f"REPLACE INTO {name} VALUES {', '.join(f'({one}, {v})' for one in ids)}"
            if self.dice.random() < 0.3:
                self.file.write_text("".join(f"{one}\t{v}\n" for one in ids))
                text = f"LOAD DATA INFILE '{self.file}' REPLACE INTO TABLE {name}"
            rows.update(dict.fromkeys(ids, v))
            replaced = ("insert", "delete") if self.format == STATEMENT else ("update", "delete")
            effects = {effect(table, "insert"), effect(table, *replaced)}
            if self.format == STATEMENT:
                effects |= {effect(table, "delete")}
            return text, effects, set()
        elif kind == "update":
            text = f"UPDATE {name} SET v = {v} WHERE id IN ({', '.join(map(str, old))})"
            rows.update(dict.fromkeys(old, v))
        elif kind == "delete":
            text = f"DELETE FROM {name} WHERE id IN ({', '.join(map(str, old))})"
            if self.is_mariadb and self.format == STATEMENT and self.dice.random() < 0.5:
                text = (
                    self.dice.choice(["SET STATEMENT max_statement_time=60 FOR ", "ANALYZE "])
                    + text
                )
            for one in old:
                del rows[one]
        else:
            other = self.dice.choice([one for one in tables if one != table])
            return self._several(table, other, v)
        return text, self._difference(table, before), set()

    def _several(self, one: Table, other: Table, v: int) -> tuple[str, set[Effect], set[Effect]]:
        """A statement of two tables."""
        both = [id_ for id_ in self.tables[one] if id_ in self.tables[other]]
        effects: set[Effect] = set()
        joined = f"{sql(one)} a JOIN {sql(other)} b USING (id)"
        if self.dice.random() < 0.5:
            for table in (one, other) if both else ():
                self.tables[table].update(dict.fromkeys(both, v))
                effects.add(effect(table, "update"))
            text = f"UPDATE {joined} SET a.v = {v}, b.v = {v}"
            return text, effects, self._called("update", one, other)
        for table in (one, other) if both else ():
            for id_ in both:
                del self.tables[table][id_]
            effects.add(effect(table, "delete"))
        return f"DELETE a, b FROM {joined}", effects, self._called("delete", one, other)

    def _called(self, kind: str, *tables: Table) -> set[Effect]:
        """A statement is what its first word says, also where it changes nothing."""
        return {effect(table, kind) for table in tables} if self.format == STATEMENT else set()

    def _difference(self, table: Table, before: Rows) -> set[Effect]:
        after = self.tables[table]
        found = set()
        if after.keys() - before.keys():
            found.add(effect(table, "insert"))
        if before.keys() - after.keys():
            found.add(effect(table, "delete"))
        if any(after[one] != before[one] for one in after.keys() & before.keys()):
            found.add(effect(table, "update"))
        return found

    def statements(
        self, tables: Sequence[Table] = TABLES
    ) -> tuple[list[str], set[Effect], set[Effect]]:
        texts: list[str] = []
        effects: set[Effect] = set()
        called: set[Effect] = set()
        for _ in range(self.dice.choice([1, 1, 2, 3])):
            text, done, said = self.statement(tables)
            texts.append(text)
            effects |= done
            called |= said
        return texts, effects, called

    def _undo(self, act: Callable[[], None]) -> None:
        kept = {table: dict(rows) for table, rows in self.tables.items()}
        act()
        self.tables = kept

    # Transactions

    def plain(self) -> None:
        texts, effects, called = self.statements()
        self.run(["BEGIN", *texts, "COMMIT"], effects, called)

    def by_itself(self) -> None:
        text, effects, called = self.statement()
        self.run([text], effects, called)

    def rolled_back(self) -> None:
        """Nothing of it is written, but where a table cannot be rolled back."""

        def act() -> None:
            texts, _, _ = self.statements()
            if self.is_mariadb and self.format == STATEMENT:
                self._number += 1
                texts.append(f"INSERT INTO {sql(MYISAM)} VALUES ({self._number}, 0)")
                kept = self._number
                self.run(["BEGIN", *texts, "ROLLBACK"], {effect(MYISAM, "insert")})
                left.append(kept)
                return
            self.run(["BEGIN", *texts, "ROLLBACK"], set())

        left: list[int] = []
        self._undo(act)
        for one in left:
            self.tables[MYISAM][one] = 0

    def xa(self) -> None:
        """Committed or rolled back, with others in between, or left."""
        end = self.dice.choice(["COMMIT", "COMMIT", "ROLLBACK", ""])
        self._xids += 1
        xid = f"'a{self._xids}', 'b', {self._xids}"

        def act() -> Done | None:
            texts, effects, called = self.statements(TABLES[:2])
            return self.run(
                [f"XA START {xid}", *texts, f"XA END {xid}", f"XA PREPARE {xid}"],
                effects,
                called,
                real=end == "COMMIT",
            )

        if end == "COMMIT":
            prepared = act()
            others = [0] if self.is_mariadb else [0, 1, 3]  # its session is busy
            for _ in range(self.dice.choice(others)):  # of tables that it has not locked
                text, effects, called = self.statement(TABLES[2:])
                self.run([text], effects, called)
            effects = prepared.effects if prepared is not None else set()
            called = prepared.called if prepared is not None else set()
            self.run([f"XA COMMIT {xid}"], effects, called)
            return
        self._undo(lambda: (act(), None)[1])
        self.cursor.execute(f"XA ROLLBACK {xid}")

    def defined(self) -> None:
        """Tables that are renamed, emptied, made and dropped."""
        table, later, made = TABLES[0], *OTHERS
        self.cursor.execute("SET sql_mode = 'NO_BACKSLASH_ESCAPES'")
        rename = "ALTER TABLE {} COMMENT 'C:\\', RENAME TO {}, COMMENT ''"
        both = {effect(table, "ddl"), effect(later, "ddl")}
        self.run([rename.format(sql(table), sql(later))], both)
        self.run([rename.format(sql(later), sql(table))], both)
        self.cursor.execute("SET sql_mode = DEFAULT")
        filled = {effect(made, "ddl")}
        if self.tables[table]:
            filled.add(effect(made, "insert"))
        self.run(
            [f"CREATE TABLE {sql(made)} (id INT PRIMARY KEY, v INT) SELECT * FROM {sql(table)}"],
            filled,
        )
        self.run([f"DROP TABLE {sql(made)}"], {effect(made, "ddl"), effect(made, "drop")})
        emptied = self.dice.choice(TABLES)
        effects = {effect(emptied, "ddl"), effect(emptied, "delete")}
        self.run([f"TRUNCATE TABLE {sql(emptied)}"], effects)
        self.tables[emptied] = {}

    def stepped(self) -> None:
        """MariaDB takes the time of an event from the session; a clock that stepped looks so."""
        if not self.is_mariadb:
            return self.plain()
        step = self.dice.choice([-86_400, -100, 100, 86_400])
        at = self.now_us() // SECOND + step
        text, effects, called = self.statement()
        self.cursor.execute(f"SET timestamp = {at}")
        self.cursor.execute("BEGIN")
        self.cursor.execute("ROLLBACK")
        before = self.last_gtid()
        self.cursor.execute(text)
        self.cursor.execute("SET timestamp = DEFAULT")
        if self.last_gtid() != before:
            self.done.append(
                Done(gtid=self.last_gtid(), begun_us=at * SECOND, ended_us=(at + 1) * SECOND,
                     effects=effects, called=called)
            )  # fmt: skip
        return None

    def step(self) -> None:
        """Something, in one of the formats, compressed or not."""
        self.format = self.dice.choice([ROW_FORMAT, STATEMENT])
        self.cursor.execute(f"SET SESSION binlog_format = {self.format}")
        compress = self.dice.choice(["OFF", "ON"])
        self.cursor.execute(
            f"SET GLOBAL log_bin_compress = {compress}"
            if self.is_mariadb
            else f"SET SESSION binlog_transaction_compression = {compress}"
        )
        acts = (self.plain, self.by_itself, self.rolled_back, self.xa, self.defined, self.stepped)
        self.dice.choices(acts, (4, 6, 2, 4, 1, 1))[0]()


@pytest.fixture(params=["mysql", "mariadb"])
def server(request: pytest.FixtureRequest) -> Iterator[MysqlServer]:
    """Of its own: what is prepared stays on it, and its compression is changed."""
    flavour = str(request.param)
    binaries: ServerBinaries = request.getfixturevalue(f"{flavour}_binaries")
    options = ["--sync-binlog=0", "--innodb-flush-log-at-trx-commit=0"]
    if flavour == "mariadb":
        options.append("--log-bin-compress-min-len=10")
    with (
        temporary_directory() as directory,
        server_of(binaries, directory, options=options) as made,
    ):
        yield made


def bucket_of(server: MysqlServer) -> Bucket:
    """All that the server has written, as a streamer would have archived it."""
    server.query("FLUSH BINARY LOGS")
    names = [BinlogName.parse(name) for name, _ in server.binlogs()][:-1]
    lineage = MARIADB if isinstance(server, MariadbServer) else LINEAGE
    bucket = Bucket(replace(lineage, gtid_set="", parent=None, first_binlog=names[0]))
    for name in names:
        bucket.archive((server.datadir / str(name)).read_bytes(), name=name)
    bucket.beat(replace(BEAT, lineage=ID, durable=None, covered_until=None))
    return bucket


def searched(bucket: Bucket, query: SearchQuery) -> dict[str, Hit]:
    warnings: list[str] = []
    search = TransactionSearch(
        bucket.snapshot(), query, threads=2, warn=warnings.append, advance=lambda _: None
    )
    found = {hit.transaction.gtid or "": hit for hit in search.hits()}
    assert warnings == []
    return found


@pytest.mark.gate
@pytest.mark.own_server("prepared transactions stay on it")
def test_nothing_that_was_changed_is_absent_and_nothing_else_is_certain(
    server: MysqlServer,
) -> None:
    """By table, kind and time, in every format, with XA, DDL, and clocks that step."""
    with server.connect() as connection, connection.cursor() as cursor:
        model = Model(server, cursor, 1)
        for number in range(120):
            model.step()
            if number % 30 == 29:
                cursor.execute("FLUSH BINARY LOGS")
        for table, rows in model.tables.items():
            cursor.execute(f"SELECT id, v FROM {sql(table)}")
            assert dict(cursor.fetchall()) == rows, table
    bucket = bucket_of(server)
    some = [done for done in model.done if done.effects and done.real]
    choices = [(), *((table,) for table in (*TABLES, *OTHERS, MYISAM))]
    asked = list(product(choices, ("", *KINDS)))
    searches: list[tuple[tuple[Table, ...], str, int | None, int | None]] = [
        (tables, kind, None, None) for tables, kind in asked
    ]
    for done in model.dice.sample(some, 12):
        for tables, kind in model.dice.sample(asked, 8):
            searches.append((tables, kind, done.begun_us - SECOND, done.ended_us))
    for tables, kind, since, until in searches:
        kinds = [kind] if kind else []
        names = [table_name(*table) for table in tables]
        query = SearchQuery(
            wanted=Criteria(
                tables=Tables(tables) if tables else None, kinds=frozenset(kinds), min_rows=0
            ),
            since_us=since,
            until_us=until,
            order="oldest",
        )
        found = searched(bucket, query)
        for done in model.done:
            inside = since is None or (done.begun_us >= since and done.ended_us <= (until or 0))
            what = (names, kinds, since, until, done)
            if inside and done.real and done.must(kinds, names):
                assert done.gtid in found, what
            hit = found.get(done.gtid)
            if hit is not None and hit.match.certain and (tables or kinds):
                assert done.real, what
                assert done.is_meant(kinds, names, called=True), what
