"""What a recovery of only some tables refuses, and what it warns of."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, cast

import pytest

from binlog2s3.binlog.gtid import MariadbGtidList
from binlog2s3.errors import RecoveryError, SourceError
from binlog2s3.recover.interrupted import Standing
from binlog2s3.recover.model import Checked, OpenStream, Plan, PlanPiece
from binlog2s3.recover.one_table import (
    LOOKED_AT_MOST,
    OnlyTables,
    StatementCheck,
    watched,
)
from binlog2s3.recover.view import Result, proof_lines
from binlog2s3.server.connection import Server
from lab import pitr_examples
from tests.binlog_writer import BinlogWriter, query_body
from tests.unit.binlog.test_content import status_of
from tests.unit.recover.fake_server import NOTE_DATABASE, FakeServer, Rows, fake, note_of
from tests.unit.recover.test_interrupted import MARK
from tests.unit.recover.test_target import FACTS

ORDERS = (("shop", "orders"),)
HERE: dict[str, Rows] = {"table_schema = %s": [{"db": "shop", "name": "orders"}]}
STARTS = "'skip_replica_start'"
NAMES: dict[str, Rows] = {
    "lower_case_table_names": [{"it": 0}],
    STARTS: [{"Variable_name": "skip_replica_start", "Value": "ON"}],
}
MARIADB = replace(FACTS, flavour="mariadb", version="10.11.6-MariaDB", executed=None)
QUERY = 2


def binlog(*statements: str) -> BinlogWriter:
    made = BinlogWriter()
    for text in statements:
        made.event(QUERY, query_body(text, db="shop"))
    return made


def stream_of(made: BinlogWriter) -> OpenStream:
    def opened(pieces: Sequence[PlanPiece]) -> Any:
        data, head = bytes(made.data), made.ends[1]

        def parts() -> Iterator[Checked]:
            yield Checked(data=data[:head])
            for begin, end in zip(made.ends[1:], made.ends[2:], strict=False):
                yield Checked(data=data[begin:end])

        for piece in pieces:
            yield piece, parts()

    return cast("OpenStream", opened)


def seen(*statements: str, tables: Sequence[tuple[str, str]] = ORDERS) -> StatementCheck:
    check = StatementCheck(tables)
    for _, data in stream_of(binlog(*statements))(pitr_examples.PLAN.pieces[:1]):
        for _ in check.through(data):
            pass
    return check


@pytest.mark.parametrize(
    ("text", "others"),
    [
        ("RENAME TABLE orders TO _orders_old, _orders_new TO orders", "_orders_new _orders_old"),
        ("RENAME TABLE `shop`.`orders` TO `shop`.`_orders_del`", "_orders_del"),
        ("rename table elsewhere.x to shop.orders", "elsewhere.x"),
        ("ALTER TABLE _orders_gho RENAME TO orders", "_orders_gho"),
        ("ALTER TABLE _orders_gho ADD b INT, RENAME AS shop.orders", "_orders_gho"),
        ("ALTER TABLE orders RENAME old", "old"),
        ("ALTER TABLE orders EXCHANGE PARTITION p WITH TABLE other", "other"),
        ("ALTER TABLE other EXCHANGE PARTITION p WITH TABLE orders", "other"),
        ("ALTER TABLE orders CONVERT TABLE other TO PARTITION p VALUES LESS THAN (3)", "other"),
        ("CREATE TABLE orders LIKE old", "old"),
        ("CREATE TABLE orders (i INT, FOREIGN KEY (i) REFERENCES parents (i))", "parents"),
        ("ALTER TABLE orders ADD FOREIGN KEY (i) REFERENCES parents (i)", "parents"),
        ("CREATE TABLE m (i INT) ENGINE=MERGE UNION=(orders,`shop`.`older`)", "m older"),
        ("ALTER TABLE m UNION (elsewhere.x, ORDERS)", "elsewhere.x m"),
        ("ALTER TABLE orders UNION=(a)", "a"),
    ],
)
def test_rows_that_come_from_elsewhere(text: str, others: str) -> None:
    """Refused, and the tables to add are named; once they are named it is safe."""
    refusal = seen(text).refusal()
    assert refusal is not None
    names = [name if "." in name else f"shop.{name}" for name in others.split()]
    assert refusal.hint.startswith("add " + " ".join(f"--table '{name}'" for name in names))
    tables = [*ORDERS, *(cast("tuple[str, str]", tuple(name.split("."))) for name in names)]
    assert seen(text, tables=tables).refusal() is None


CP1251, GBK, UTF8 = (51, "cp1251", "таблица"), (28, "gbk", "表"), (255, "utf-8", "表")


def seen_in(writing: tuple[int, str, str], text: str) -> StatementCheck:
    """A statement of a session with this character set, where this table is wanted."""
    charset, encoding, table = writing
    made = BinlogWriter()
    status = status_of(0, charset=charset)
    made.event(QUERY, query_body(text, db="shop", status=status, encoding=encoding))
    check = StatementCheck((("shop", table),))
    for _, data in stream_of(made)(pitr_examples.PLAN.pieces[:1]):
        for _ in check.through(data):
            pass
    return check


@pytest.mark.parametrize("writing", [CP1251, GBK], ids=["cp1251", "gbk"])
@pytest.mark.parametrize(
    "text",
    [
        "RENAME TABLE {} TO old, new TO {}",
        "RENAME TABLE `{}` TO `shop`.`x`",
        "ALTER TABLE new RENAME {}",
        "ALTER TABLE {} EXCHANGE PARTITION p WITH TABLE other",
        "ALTER TABLE other EXCHANGE PARTITION p WITH TABLE {}",
    ],
)
def test_names_in_another_character_set(writing: tuple[int, str, str], text: str) -> None:
    """The server reads them as the table's; here they look different: refused."""
    check = seen_in(writing, text.format(writing[2], writing[2]))
    assert check.refusal() is not None
    assert not check.others


@pytest.mark.parametrize(
    ("writing", "text"),
    [
        (CP1251, "ALTER TABLE таблица ADD COLUMN a INT"),
        (CP1251, "CREATE TABLE таблица (a INT)"),
        (CP1251, "RENAME TABLE a TO b"),
        (GBK, "RENAME TABLE a TO b"),
        (GBK, "ALTER TABLE a COMMENT '表'"),
        (GBK, "CREATE TABLE 另 (a INT)"),
        (UTF8, "RENAME TABLE 另 TO b"),
        (UTF8, "ALTER TABLE 另 RENAME b"),
    ],
)
def test_other_tables_in_any_character_set(writing: tuple[int, str, str], text: str) -> None:
    """What exchanges nothing, or is certainly of another table, is not refused."""
    assert seen_in(writing, text).refusal() is None


@pytest.mark.parametrize(
    "text",
    [
        "ALTER TABLE orders RENAME COLUMN a TO b",
        "ALTER TABLE orders RENAME INDEX a TO b, RENAME KEY c TO d",
        "ALTER TABLE orders CONVERT TO CHARACTER SET utf8mb4",
        "ALTER TABLE orders ADD c VARCHAR(9) COMMENT 'RENAME TO x LIKE y'",
        "CREATE TABLE other LIKE orders",
        "CREATE TABLE m (i INT) ENGINE=MERGE UNION=(a,b)",
        "CREATE TABLE m AS SELECT 1 UNION (SELECT orders FROM orders)",
        "CREATE TABLE child (i INT, FOREIGN KEY (i) REFERENCES orders (i))",
        "RENAME TABLE a TO b",
        "RENAME USER a TO b",
        "DROP TABLE orders, other",
        "TRUNCATE TABLE orders",
        "CREATE USER a",
    ],
)
def test_what_is_safe(text: str) -> None:
    """Statements that need no other table."""
    assert seen(text).refusal() is None


def test_a_rename_that_cannot_be_read_to_its_end() -> None:
    """Is refused if it may be about the table."""
    text = f"RENAME TABLE orders TO a /* {'x' * 70_000} */, b TO orders"
    assert seen(text).refusal() is not None


def test_statement_format() -> None:
    """What writes to the table is shown; what may write to it by a trigger is counted."""
    check = seen(
        "INSERT INTO orders SELECT * FROM other",
        "UPDATE other JOIN orders USING (id) SET orders.a = 1",
        "DELETE FROM other",
        "CREATE TABLE orders SELECT 1 AS a",
    )
    assert [text.split()[0] for text in check.statements.shown] == ["INSERT", "UPDATE", "CREATE"]
    assert check.elsewhere == 1
    assert check.touched == {"shop.orders"}


def test_a_statement_after_with() -> None:
    """What it writes to is known; one that only reads may call a function."""
    check = seen(
        "WITH n AS (SELECT 1 AS a) UPDATE orders JOIN n SET orders.a = n.a",
        "WITH n AS (SELECT 1 AS a) DELETE FROM orders WHERE a IN (SELECT a FROM n)",
        "WITH n AS (SELECT 1 AS a) UPDATE stock SET a = 2",
        "WITH n AS (SELECT f() AS a) SELECT * FROM n",
        "OPTIMIZE TABLE stock",
        "FROBNICATE x",
    )
    assert [text.split()[-1] for text in check.statements.shown] == ["n.a", "n)"]
    assert check.elsewhere == 3


@pytest.mark.parametrize("text", ["XA COMMIT X'61',X'',1", "XA ROLLBACK X'61',X'',1"])
def test_xa_transactions_are_foreseen(text: str) -> None:
    """Of whatever table they are, a replica with a filter refuses them."""
    refusal = seen("INSERT INTO stock VALUES (1)", text).refusal()
    assert refusal is not None
    assert "XA transactions" in str(refusal)
    assert "without --table" in refusal.hint
    made = binlog("INSERT INTO orders VALUES (1)", text, "DROP TABLE t")
    stream = watched(stream_of(made), StatementCheck(ORDERS))(pitr_examples.PLAN.pieces[:1])
    with pytest.raises(RecoveryError, match="XA transactions"):
        [list(data) for _, data in stream]


def test_what_is_kept_does_not_grow() -> None:
    """Of statements, their number and the first few; of other tables, no more than can be named."""
    writes = [f"INSERT INTO orders VALUES ({n}) /* {n} */" for n in range(50)]
    moves = [f"RENAME TABLE orders TO old_{n}, new_{n} TO orders" for n in range(50)]
    check = seen(*writes, *moves)
    assert (check.statements.count, len(check.statements.shown)) == (50, 3)
    assert (check.moved.count, len(check.moved.shown)) == (50, 3)
    assert len(check.others) == 20
    refusal = check.refusal()
    assert refusal is not None
    assert refusal.hint == "without --table everything is applied"
    assert "50 statements exchange" in str(refusal)


def test_a_plan_that_was_not_looked_at_is_watched() -> None:
    """Nothing of the statement's bytes, or after it, is passed on."""
    made = binlog("INSERT INTO orders VALUES (1)", "RENAME TABLE orders TO x", "DROP TABLE t")
    passed: list[bytes] = []
    stream = watched(stream_of(made), StatementCheck(ORDERS))(pitr_examples.PLAN.pieces[:1])
    with pytest.raises(RecoveryError, match="1 statement exchanges rows") as caught:
        passed.extend(one.data for _, data in stream for one in data)
    assert b"".join(passed) == bytes(made.data[: made.ends[2]])
    assert "restore the base backup" in caught.value.hint


def examined(
    *statements: str,
    plan: Plan = pitr_examples.PLAN,
    answers: dict[str, Any] | None = None,
    state: str | None = None,
    maria: bool = False,
) -> tuple[OnlyTables, list[str]]:
    found = OnlyTables(ORDERS, plan, stream_of(binlog(*statements)))
    server = fake({**(answers or {}), **HERE, **NAMES, **(answers or {})})
    begins = MariadbGtidList.parse(state) if state is not None else None
    found.ask(server, MARIADB if maria else FACTS, begins)
    return found, [f"{one}; {one.hint}" for one in found.refusals]


def test_nothing_to_say() -> None:
    """A table that is there and is changed."""
    found, refusals = examined("ALTER TABLE orders ADD a INT")
    assert (found.tables, found.looked, found.unsafe, refusals) == (
        ("shop.orders",),
        True,
        (),
        [],
    )


def test_statements_of_other_tables_leave_a_doubt() -> None:
    """`active` may be a view of ours: whatever the GTIDs say, the table is not proved."""
    for text in ("UPDATE active SET v = 1", "UPDATE orders SET v = 1", "CALL shop.work()"):
        found, refusals = examined("ALTER TABLE orders ADD a INT", text)
        assert refusals == []
        assert "views, triggers and functions" in found.doubt
        result = Result(how="replication", gtids=None, doubt=found.doubt)
        assert [line for line, _ in proof_lines(result)] == [f"not proved: {found.doubt}"]
    found, _ = examined("UPDATE active SET v = 1")
    assert "nothing in these binlogs names shop.orders" in found.unsafe
    assert examined("ALTER TABLE orders ADD a INT")[0].doubt == ""


def test_what_is_found_while_it_is_applied_is_a_doubt_too() -> None:
    """Of a plan that was too large to be looked at before."""
    piece = replace(pitr_examples.PLAN.pieces[0], begin=4, end=LOOKED_AT_MOST + 5)
    found, _ = examined(plan=replace(pitr_examples.PLAN, pieces=(piece,)))
    assert (found.looked, found.doubt) == (False, "")
    made = binlog("INSERT INTO orders VALUES (1)")
    for _, data in watched(stream_of(made), found.check)([piece]):
        for _ in data:
            pass
    assert found.doubt


def test_a_large_plan_is_not_looked_at() -> None:
    """And says so."""
    piece = replace(pitr_examples.PLAN.pieces[0], begin=4, end=LOOKED_AT_MOST + 5)
    found, refusals = examined(
        "RENAME TABLE orders TO x", plan=replace(pitr_examples.PLAN, pieces=(piece,))
    )
    assert (found.looked, refusals) == (False, [])
    assert "not looked at" in found.unsafe[0]


def key(child: str, parent: str, rule: str) -> dict[str, object]:
    return {
        "db": "shop",
        "name": child,
        "parent_db": "shop",
        "parent": parent,
        "on_delete": rule,
        "on_update": "NO ACTION",
    }


@pytest.mark.parametrize("rule", ["CASCADE", "SET NULL"])
def test_rows_that_a_foreign_key_deletes(rule: str) -> None:
    """The parents whose rows take the table's along must be applied too, and theirs."""
    keys = [key("orders", "customers", rule), key("customers", "firms", rule), key("x", "y", rule)]
    _, (refusal,) = examined("TRUNCATE orders", answers={"referential_constraints": keys})
    assert "add --table 'shop.customers' --table 'shop.firms'" in refusal


def test_foreign_keys_that_only_refuse() -> None:
    """Are named with the plan."""
    keys = [key("orders", "customers", "RESTRICT"), key("lines", "orders", "CASCADE")]
    found, refusals = examined("TRUNCATE orders", answers={"referential_constraints": keys})
    assert refusals == []
    assert [text.split()[0] for text in found.unsafe] == ["shop.orders", "shop.lines,"]


def merged(table: str, shown: Rows | Exception) -> dict[str, Any]:
    return {"engine = %s": [{"db": "shop", "name": table}], "SHOW CREATE TABLE": shown}


def test_rows_behind_a_merge_table() -> None:
    """They are logged under the name of the MERGE table: refused without it and its others."""
    text = "CREATE TABLE `m` (`i` int) ENGINE=MRG_MyISAM UNION=(`orders`,`old`.`orders`)"
    _, (said,) = examined("TRUNCATE orders", answers=merged("m", [{"Create Table": text}]))
    assert "one MERGE table" in said
    assert "add --table 'old.orders' --table 'shop.m'" in said
    other = text.replace("`orders`,", "")
    assert examined("TRUNCATE orders", answers=merged("m", [{"Create Table": other}]))[1] == []
    denied = SourceError("denied", answered=True)
    _, (said,) = examined("TRUNCATE orders", answers=merged("m", denied))
    assert "has a MERGE table, shop.m" in said


def test_what_is_no_scratch_server() -> None:
    """A replica of anybody, a MariaDB that replicated beyond the base backup, an old MySQL."""
    _, (said,) = examined(
        "TRUNCATE orders", answers={"SHOW REPLICA STATUS": [{"Channel_Name": "theirs"}]}
    )
    assert "is set up as a replica (channel: theirs)" in said
    answers: dict[str, Rows] = {"gtid_slave_pos": [{"it": "0-1-7"}]}
    _, (said,) = examined("TRUNCATE orders", answers=answers, state="0-1-6", maria=True)
    assert "has replicated 0-1-7" in said
    assert examined("TRUNCATE orders", answers=answers, state="0-1-7", maria=True)[1] == []
    found = OnlyTables(ORDERS, pitr_examples.PLAN, stream_of(binlog("TRUNCATE orders")))
    found.ask(fake({**HERE, **NAMES}), replace(FACTS, version="5.7.44"), None)
    assert "cannot filter one channel" in str(found.refusals[0])


@pytest.mark.parametrize(
    ("rows", "refused", "unsafe"),
    [
        ([("skip_replica_start", "OFF"), ("skip_slave_start", "OFF")], True, False),
        ([("skip_slave_start", "OFF")], True, False),
        ([("skip_replica_start", "ON"), ("skip_slave_start", "ON")], False, False),
        ([], False, True),
    ],
)
def test_a_target_that_would_forget_the_filter(
    rows: list[tuple[str, str]], refused: bool, unsafe: bool
) -> None:
    """A MySQL that starts its replicas by itself is refused; an old one does not tell."""
    shown = [{"Variable_name": name, "Value": value} for name, value in rows]
    found, refusals = examined("TRUNCATE orders", answers={STARTS: shown})
    assert [one for one in refusals if "set skip_replica_start = ON" in one] == refusals
    assert len(refusals) == refused
    assert any("--skip-slave-start" in one for one in found.unsafe) == unsafe


def test_a_name_that_nothing_has() -> None:
    """Refused: the result would be a table that was not brought forward."""
    found = OnlyTables(
        (("shop", "ordres"),), pitr_examples.PLAN, stream_of(binlog("TRUNCATE orders"))
    )
    found.ask(fake(NAMES), FACTS, None)
    assert "does not show a table shop.ordres" in str(found.refusals[0])


def marked(names: str) -> Standing:
    return Standing(fake(note_of(FACTS, None, only_tables=names)), FACTS)


@pytest.mark.parametrize("names", ['["shop.orders"]', "[]", "nonsense", '{"a": 1}', "[1]"])
def test_a_marked_server(names: str) -> None:
    """Goes on with the same tables only; a mark that cannot be read stands against every run."""
    is_read = names == '["shop.orders"]'
    for tables in ((), ("shop.items",), ("shop.items", "shop.orders")):
        refusal = marked(names).refusal(tables)
        assert refusal is not None
        assert ("scratch server" if is_read else NOTE_DATABASE) in str(refusal)
    assert (marked(names).refusal(("shop.orders",)) is None) is is_read
    assert marked("").refusal(()) is None


def test_the_mark_comes_before_the_first_event() -> None:
    """When a run may begin to apply, the mark is there; it stays after an error."""
    server = FakeServer(
        {
            "table_name IN": [],
            "UTC_TIMESTAMP() AS": [{"it": datetime(2026, 1, 2, 4, 0, 0)}],  # noqa: DTZ001 - as the driver has it
            "Uptime": [{"Value": "60"}],
        }
    )
    one = Standing(cast("Server", server), FACTS)

    def fail() -> None:
        with one.noted(pitr_examples.PLAN, "x", ("shop.orders",), is_untouched=lambda: False):
            assert any('["shop.orders"]' in values for values in server.values)
            raise RecoveryError("in the middle")

    with pytest.raises(RecoveryError, match="in the middle"):
        fail()
    assert not any(at.startswith("DROP") for at in server.asked)


def test_the_mark_outlives_the_note() -> None:
    """At the end of a run only the note is removed; without a mark, the whole database."""
    for names, expected in (
        ('["shop.orders"]', f"UPDATE {NOTE_DATABASE}.note SET asked = ''"),
        ("", f"DROP DATABASE {NOTE_DATABASE}"),
    ):
        server = FakeServer(note_of(FACTS, MARK, only_tables=names))
        Standing(cast("Server", server), FACTS).put_away()
        changes = [one for one in server.asked if one.startswith(("DROP", "UPDATE"))]
        assert changes[-1].startswith(expected)
