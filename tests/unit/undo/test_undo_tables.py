"""Which generated columns an undo refuses, from what a server says of a table."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from binlog2s3.binlog.undo import ChangedTable
from binlog2s3.errors import RecoveryError
from binlog2s3.undo.tables import Definition, definition_of
from tests.unit.recover.fake_server import fake

CODES = {"int": (3, 0), "datetime": (18, 0), "timestamp": (17, 0), "date": (10, 0)}
"""Of the types in a table map."""
T = {"its_schema": "shop", "its_table": "k"}


def column(name: str, kind: str, expression: str = "", extra: str = "") -> dict[str, Any]:
    return {
        **T, "name": name, "kind": kind, "type": kind, "nullable": "NO" if name == "id" else "YES",
        "octets": None, "digits": None, "scale": None, "decimals": 0, "expression": expression,
        "charset": None, "collation": None, "extra": extra,
    }  # fmt: skip


def stored(name: str, kind: str, expression: str) -> dict[str, Any]:
    return column(name, kind, expression, "STORED GENERATED")


def virtual(name: str, kind: str, expression: str) -> dict[str, Any]:
    return column(name, kind, expression, "VIRTUAL GENERATED")


def index(name: str, part: str | None, expression: str | None = None) -> dict[str, Any]:
    return {**T, "index_name": name, "column_name": part, "seq_in_index": 1, "sub_part": None,
            "non_unique": int(name != "PRIMARY"), "expression": expression}  # fmt: skip


def asked(columns: list[dict[str, Any]], indexes: list[dict[str, Any]]) -> Definition:
    """The definition of a table with an id, a DATETIME `d` and these, whose updates are undone."""
    rows = [column("id", "int"), column("d", "datetime"), *columns]
    rows = [{**row, "number": number} for number, row in enumerate(rows, 1)]
    server = fake({
        "information_schema.columns": rows,
        "information_schema.statistics": [index("PRIMARY", "id"), *indexes],
        "information_schema.tables": [{**T, "kind": "BASE TABLE", "engine": "InnoDB"}],
        "sql_mode": [{"it": ""}],
        "SHOW CREATE TABLE": [{"Create Table": "CREATE TABLE k"}],
    })  # fmt: skip
    nullable = sum((row["nullable"] == "YES") << at for at, row in enumerate(rows))
    body = SimpleNamespace(
        database="shop", table="k", columns=(), types=bytes(len(rows)),
        nullable=nullable.to_bytes(2, "little"), type_metadata=[CODES[row["kind"]] for row in rows],
    )  # fmt: skip
    changed = SimpleNamespace(name="shop.k", body=body, missing=frozenset())
    return definition_of(server, "mysql", cast("ChangedTable", changed), {"update"})


OF_NO_ZONE = [
    ([], []),
    ([stored("g", "datetime", "`d`")], []),
    ([virtual("g", "datetime", "`d`")], [index("k", "g")]),
    ([virtual("g", "timestamp", "`d`")], []),
    ([column("t", "timestamp"), stored("g", "date", "`d`")], [index("k", "t")]),
]
OF_A_ZONE = [
    ([column("t", "timestamp"), stored("g", "date", "cast(`t` as date)")], []),
    ([stored("g", "datetime", "from_unixtime(`id`)")], []),
    # its own type makes the DATETIME a moment
    ([stored("g", "timestamp", "`d`")], []),
    ([virtual("g", "timestamp", "`d`")], [index("k", "g")]),
    ([virtual("G", "timestamp", "`d`"), stored("h", "date", "cast(`g` as date)")], []),
    ([virtual("g", "timestamp", "`d`"), virtual("h", "datetime", "`g`")], [index("k", "h")]),
    ([virtual("g", "timestamp", "`d`")], [index("k", None, "year(`g`)")]),
]


@pytest.mark.parametrize(("columns", "indexes"), OF_NO_ZONE)
def test_what_depends_on_no_time_zone_is_undone(columns: list[Any], indexes: list[Any]) -> None:
    """Nor does a TIMESTAMP that is only shown, or that was written."""
    assert asked(columns, indexes).index == "PRIMARY"


@pytest.mark.parametrize(("columns", "indexes"), OF_A_ZONE)
def test_what_is_stored_by_a_time_zone_is_refused(columns: list[Any], indexes: list[Any]) -> None:
    """A TIMESTAMP in an expression, or one that is generated, also through other columns."""
    with pytest.raises(RecoveryError, match="time zone of the session"):
        asked(columns, indexes)


@pytest.mark.parametrize(
    ("columns", "indexes"),
    [
        ([virtual("g", "datetime", "cast(`s` as datetime)")], [index("k", "g")]),
        ([virtual("g", "datetime", "timestamp(`s`)")], [index("k", "g")]),
        ([], [index("k", None, "cast(`s` as datetime(6))")]),
    ],
)
def test_a_string_may_have_an_offset(columns: list[Any], indexes: list[Any]) -> None:
    """MySQL takes '2024-01-01 03:00:00+02:00' for a time in the session's zone."""
    with pytest.raises(RecoveryError, match="settings of the session"):
        asked(columns, indexes)
