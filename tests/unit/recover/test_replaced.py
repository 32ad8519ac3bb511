"""A REPLACE of rows that others refer to: MySQL 9.6 and later do not log what it cascades to."""

from typing import Any

import pytest

from binlog2s3.binlog.events import EventType
from binlog2s3.errors import SourceError
from binlog2s3.recover.replaced import Replaced, referring
from binlog2s3.server.foreign_keys import ForeignKey
from tests.binlog_writer import statement
from tests.unit.binlog.test_content import rows, table_map
from tests.unit.recover.fake_server import fake
from tests.unit.recover.watched import saw

ORDERS, LINES = table_map(7, "orders"), table_map(8, "lines")
DELETE, WRITE = EventType.DELETE_ROWS, EventType.WRITE_ROWS
END, BY_SQL = 1, 16


def flagged(event_type: int, number: int, flags: int) -> tuple[int, bytes]:
    return rows(event_type, number, 1, flags=flags)


def seen(*events: tuple[int, bytes], packed: bool = False, cut: int = 0) -> Replaced:
    return saw(Replaced(), *events, packed=packed, without=cut)


@pytest.mark.parametrize("packed", [False, True])
def test_a_row_in_the_place_of_another_one(packed: bool) -> None:
    """Deleted and written by one statement, by a server that cascades itself."""
    both = (ORDERS, flagged(DELETE, 7, BY_SQL), flagged(WRITE, 7, BY_SQL | END))
    found = seen(*both, packed=packed)
    assert found.tables == {("shop", "orders")}
    assert found.doubt(()) == ""


@pytest.mark.parametrize(
    "events",
    [
        (ORDERS, flagged(DELETE, 7, 0), flagged(WRITE, 7, END)),
        (ORDERS, flagged(DELETE, 7, BY_SQL | END), ORDERS, flagged(WRITE, 7, BY_SQL | END)),
        (ORDERS, LINES, flagged(DELETE, 7, BY_SQL), flagged(WRITE, 8, BY_SQL | END)),
    ],
    ids=["the engine cascades", "two statements", "two tables"],
)
def test_what_is_no_replace(events: tuple[tuple[int, bytes], ...]) -> None:
    """Or is one that is logged with all that it does."""
    found = seen(*events)
    assert found.tables == set()
    assert found.doubt(None) == ""


REPLACED = (ORDERS, flagged(DELETE, 7, BY_SQL), flagged(WRITE, 7, BY_SQL | END))


def key(parent: str, kind: int = 1) -> dict[str, Any]:
    return {"child": "shop/lines", "parent": parent, "type": kind}


def keys(*rows: dict[str, Any]) -> list[ForeignKey]:
    found = referring(fake({"innodb_foreign": rows}))
    assert found is not None
    return found


@pytest.mark.parametrize("parent", ["shop/orders", "SHOP/Orders"])
@pytest.mark.parametrize("kind", [1, 2, 1 | 8, 2 | 32])
def test_tables_that_others_refer_to_are_told(parent: str, kind: int) -> None:
    """By foreign keys that delete or change rows."""
    doubt = seen(*REPLACED).doubt(keys(key("shop/lines"), key(parent, kind)))
    assert "rows of shop.orders were replaced" in doubt


@pytest.mark.parametrize(("parent", "kind"), [("shop/lines", 1), ("shop/orders", 16 | 4)])
def test_other_keys_are_no_doubt(parent: str, kind: int) -> None:
    """Those to other tables, and those that only follow an update."""
    assert seen(*REPLACED).doubt(keys(key(parent, kind))) == ""


def test_the_engine_is_asked() -> None:
    """The list in information_schema lacks tables that the account has no privilege for."""
    filtered = fake({"referential_constraints": [], "innodb_foreign": [key("shop/orders")]})
    assert "shop.orders were replaced" in seen(*REPLACED).doubt(referring(filtered))


def test_without_the_privilege_all_are_in_doubt() -> None:
    """PROCESS, which the documented account does not have."""
    denied = SourceError("(1227) PROCESS", answered=True, needs_privilege=True)
    doubt = seen(*REPLACED).doubt(referring(fake({"innodb_foreign": denied})))
    assert "rows of shop.orders were replaced" in doubt
    assert "GRANT PROCESS ON *.*" in doubt


@pytest.mark.parametrize(
    "text",
    [
        "RENAME TABLE orders TO o2",
        "ALTER TABLE a RENAME COLUMN b TO c, RENAME TO orders",
        "alter table orders rename o2",
        "ALTER TABLE x RENAME AS orders",
    ],
)
def test_a_name_that_changes_tells_nothing(text: str) -> None:
    """The foreign key may be one of another name of the table; without any, there is no doubt."""
    found = seen(*REPLACED, statement(text))
    assert "rows of shop.orders were replaced" in found.doubt(keys(key("shop/elsewhere")))
    assert found.doubt(()) == ""


def test_a_foreign_key_that_comes_and_goes() -> None:
    """Neither before the apply nor after it is there any."""
    made = statement("ALTER TABLE l ADD FOREIGN KEY (p) REFERENCES orders(id) ON DELETE CASCADE")
    gone = statement("ALTER TABLE l DROP /* it */ FOREIGN KEY f")
    assert "shop.orders were replaced" in seen(made, *REPLACED, gone).doubt(())
    assert seen(made, *REPLACED).doubt(()) == "", "it is there afterwards, or its table is gone"
    assert seen(*REPLACED, gone).doubt(()) == "", "it was there before"


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("bad", [ORDERS[1][:12], ORDERS[1].replace(b"orders", b"ord\xffrs")])
def test_a_table_that_cannot_be_read(bad: bytes, packed: bool) -> None:
    """It may be one that others refer to."""
    found = seen((ORDERS[0], bad), *REPLACED[1:], packed=packed)
    assert "not known" in found.doubt(())


def test_a_row_of_no_table() -> None:
    """Its table map is missing."""
    assert "not known" in seen(*REPLACED[1:]).doubt(())


@pytest.mark.parametrize("packed", [False, True])
def test_what_cannot_be_read(packed: bool) -> None:
    """An event too short to be one of rows; bytes that are missing at the end."""
    assert "not known" in seen((DELETE, b"\7"), packed=packed).doubt(())
    assert "not known" in seen(*REPLACED, packed=packed, cut=5).doubt(())
    assert seen(*REPLACED, packed=packed).doubt(()) == ""


def test_more_tables_than_are_kept() -> None:
    """The rest is in doubt."""
    events = list[tuple[int, bytes]]()
    for number in range(1001):
        events += [
            table_map(number, f"t{number}"),
            flagged(DELETE, number, BY_SQL),
            flagged(WRITE, number, BY_SQL | END),
        ]
    most = seen(*events[:-3])
    assert len(most.tables) == 1000
    assert most.doubt(()) == ""
    assert "not known" in seen(*events).doubt(())
    assert seen(*events[:-3], *events[:3]).doubt(()) == "", "one of them again"


@pytest.mark.parametrize("kind", ["COLUMN", "index", "KEY"])
def test_other_names_do_not_matter(kind: str) -> None:
    """Those of columns and indexes."""
    found = seen(*REPLACED, statement(f"ALTER TABLE orders RENAME {kind} a TO b"))
    assert found.doubt(keys(key("shop/elsewhere"))) == ""
