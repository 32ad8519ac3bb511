"""A REPLACE of rows that others refer to: MySQL 9.6 and later do not log what it cascades to."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, cast

import pytest

from binlog2s3.binlog.events import EventType
from binlog2s3.recover.model import Checked, PlanPiece
from binlog2s3.recover.plan_source import OpenStream
from binlog2s3.recover.replaced import Replaced, cascades_itself, doubt_of, parents
from lab import pitr_examples
from tests.binlog_writer import UUID_A, XID, BinlogWriter, statement
from tests.unit.binlog.test_content import compressed, rows, table_map
from tests.unit.recover.fake_server import fake
from tests.unit.recover.test_target import FACTS

ORDERS, LINES = table_map(7, "orders"), table_map(8, "lines")
DELETE, WRITE = EventType.DELETE_ROWS, EventType.WRITE_ROWS
END, BY_SQL = 1, 16


def flagged(event_type: int, number: int, flags: int) -> tuple[int, bytes]:
    return rows(event_type, number, 1, flags=flags)


def seen(*events: tuple[int, bytes], packed: bool = False) -> set[str]:
    made = BinlogWriter()
    inside = [statement("BEGIN"), *events, XID]
    made.transaction([compressed(inside)] if packed else inside, gtid=(UUID_A, "", 1))
    head = made.ends[1]

    def opened(pieces: Sequence[PlanPiece]) -> Any:
        data = bytes(made.data)
        parts = iter([Checked(data=data[:head]), Checked(data=data[head:])])
        return iter([(pieces[0], parts)])

    found = Replaced()
    stream: Iterator[Any] = found.watched(cast("OpenStream", _closing(opened)))(
        pitr_examples.PLAN.pieces[:1]
    )
    assert sum(len(one.data) for _, parts in stream for one in parts) == len(made.data)
    return found.tables


def _closing(opened: Any) -> Any:
    def generator(pieces: Sequence[PlanPiece]) -> Any:
        yield from opened(pieces)

    return generator


@pytest.mark.parametrize("packed", [False, True])
def test_a_row_in_the_place_of_another_one(packed: bool) -> None:
    """Deleted and written by one statement, by a server that cascades itself."""
    both = (ORDERS, flagged(DELETE, 7, BY_SQL), flagged(WRITE, 7, BY_SQL | END))
    assert seen(*both, packed=packed) == {"shop.orders"}


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
    assert seen(*events) == set()


def test_only_tables_that_others_refer_to_are_told() -> None:
    """By foreign keys that delete or change rows; a target of an older version has no such rows."""
    server = fake({"referential_constraints": [{"db": "shop", "name": "orders"}]})
    assert parents(server) == {"shop.orders"}
    assert doubt_of({"shop.lines"}, {"shop.orders"}) == ""
    assert "rows of shop.orders were replaced" in doubt_of({"shop.orders"}, {"shop.orders"})
    assert cascades_itself(replace(FACTS, version="9.7.4"))
    assert not cascades_itself(replace(FACTS, version="9.5.0"))
