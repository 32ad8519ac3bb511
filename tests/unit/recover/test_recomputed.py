"""Stored columns of a TIMESTAMP, which a MariaDB computes anew while it applies rows."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from binlog2s3.binlog.events import EventType
from binlog2s3.errors import SourceError
from binlog2s3.recover.recomputed import Recomputed
from tests.unit.binlog.test_content import table_map
from tests.unit.recover.fake_server import fake
from tests.unit.recover.watched import saw

Rows = Sequence[Mapping[str, Any]]
STORED = {
    "db": "shop", "tab": "Orders", "name": "h", "type": "int", "expression": "hour(`ts`)",
    "extra": "STORED GENERATED",
}  # fmt: skip
TIMESTAMP = {"db": "shop", "tab": "Orders", "name": "ts"}


def doubt(watcher: Recomputed, **changes: str) -> str:
    """By a target with such a column, but for this."""
    answers: Mapping[str, Rows] = {
        "data_type = 'timestamp'": [TIMESTAMP],
        "information_schema.statistics": [],
        "generation_expression": [{**STORED, **changes}],
    }
    return watcher.doubt(fake(answers))


@pytest.mark.parametrize("packed", [False, True])
def test_rows_of_such_a_table(packed: bool) -> None:
    """Named with the column; the id of the table, which changes, makes no difference."""
    found = saw(Recomputed(), *(table_map(number, "orders") for number in (7, 8)), packed=packed)
    assert "(shop.Orders: h)" in doubt(found)


def test_what_is_none() -> None:
    """Another table, a column of another kind or a virtual one, and no rows at all."""
    orders = table_map(7, "orders")
    assert doubt(saw(Recomputed(), table_map(7, "lines"))) == ""
    assert doubt(saw(Recomputed(), orders), expression="unix_timestamp(`ts`)") == ""
    assert doubt(saw(Recomputed(), orders), extra="VIRTUAL GENERATED") == ""
    assert doubt(saw(Recomputed())) == ""


def test_what_cannot_be_told() -> None:
    """Rows may be of any table if an event was not understood; nor may the target answer."""
    broken = (EventType.TABLE_MAP, table_map(7, "lines")[1][:12])
    assert "(shop.Orders: h)" in doubt(saw(Recomputed(), broken))
    lost = SourceError("no answer", transient=True)
    found = saw(Recomputed(), table_map(7, "lines"))
    assert "no answer" in found.doubt(fake({"generation_expression": lost}))
