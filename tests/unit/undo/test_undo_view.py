"""What `undo` takes from the archive, and what it shows of it: no server is asked."""

import io
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from binlog2s3.binlog.events import EventType
from binlog2s3.config.undo import UndoConfig
from binlog2s3.config.values import MysqlConfig, S3Config
from binlog2s3.inspect.find.match import Criteria
from binlog2s3.inspect.find.rows import RowPrinter
from binlog2s3.output import Plain
from binlog2s3.server.connection import ServerFacts
from binlog2s3.server.mysqlbinlog import find as find_mysqlbinlog
from binlog2s3.undo.transactions import TransactionSource
from binlog2s3.undo.view import SHOWN_ROWS, Plan, show
from tests import rows_printer
from tests.binlog_writer import BEGIN, UUID_A, XID
from tests.golden.buckets import Source
from tests.unit.binlog.test_content import table_map
from tests.unit.binlog.test_undo import Event, event, image

WRITE, UPDATE, DELETE = EventType.WRITE_ROWS, EventType.UPDATE_ROWS, EventType.DELETE_ROWS


def change(kind: int, *images: bytes, table: str = "a") -> list[Event]:
    """A transaction of one event of rows."""
    return [BEGIN, table_map(7, table), event(kind, 7, images), XID]


def history(*transactions: Sequence[Event]) -> Source:
    """A source whose binlogs have these transactions, two in each."""
    source = Source()
    for at in range(0, len(transactions), 2):
        source.closes(changes=transactions[at : at + 2])
    source.closes(changes=[change(WRITE, image(1), table="other")])
    return source


def gtid(number: int) -> str:
    return f"{UUID_A}:{number}"


def asked(*gtids: int, **more: Any) -> UndoConfig:
    """What the operator asks for."""
    s3, target = S3Config(bucket="acme", prefix="pre"), MysqlConfig(socket=Path("/x"), user="undo")
    words = tuple(map(gtid, gtids))
    return UndoConfig(s3=s3, source="orders", target=target, gtids=words, **more)


def planned(source: Source, config: UndoConfig) -> Plan:
    """The plan, as far as the archive has it."""
    survey, of = source.survey(), TransactionSource(config)
    hits = of.found(survey)
    changes, form = of.read(hits, survey, io.BytesIO())
    facts = ServerFacts(uuid=UUID_A, flavour="mysql", version="9.7.4", server_id=7, gtid_mode=True)
    return Plan(hits=tuple(hits), changes=changes, definitions={}, form=form, facts=facts)


def shown(source: Source, config: UndoConfig, tool: Path) -> list[str]:
    """The lines of the plan."""
    plan, out = planned(source, config), io.StringIO()
    printer = RowPrinter(
        survey=source.survey(),
        wanted=Criteria(tables=TransactionSource(config).wanted),
        limit=SHOWN_ROWS,
        tool=partial(find_mysqlbinlog, given=tool),
    )
    show(plan, config.source, "db1", Plain(out), printer)
    return out.getvalue().splitlines()


MANY = history(
    change(UPDATE, image(1, b"x\x1b[31m"), image(1, b"y")),
    change(DELETE, *map(image, range(9))),
    change(DELETE, *map(image, range(9)), table="b"),
)


def test_a_plan_has_the_first_rows_before_and_after(tmp_path: Path) -> None:
    """Five of all transactions together, of the wanted tables; nothing in them is a command."""
    tool = rows_printer.install(tmp_path)
    lines = shown(MANY, asked(1, 2, 3), tool)
    assert "the first 5 of 19 rows, as they were changed:" in lines
    (at,) = (n for n, line in enumerate(lines) if line == "  ### UPDATE shop.a")
    assert [line.partition(" /*")[0] for line in lines[at : at + 7]] == [
        "  ### UPDATE shop.a", "  ### WHERE", "  ###   @1=1", "  ###   @2='x\\x1b[31m'",
        "  ### SET", "  ###   @1=1", "  ###   @2='y'",
    ]  # fmt: skip
    assert lines.count("  ### DELETE FROM shop.a") == SHOWN_ROWS - 1
    assert lines[-1] == f"its rows: binlog2s3 rows --gtid {gtid(1)}"
    lines = shown(MANY, asked(1, 2, 3, tables=(("shop", "b"),)), tool)
    assert lines.count("  ### DELETE FROM shop.b") == SHOWN_ROWS
    assert not any("shop.a" in line for line in lines)
    lines = shown(MANY, asked(1), tool)
    assert "the row, as it was changed:" in lines


@pytest.mark.parametrize("program", ["none", "fails", "other"])
def test_a_plan_without_mysqlbinlog_says_how_to_see_rows(tmp_path: Path, program: str) -> None:
    """They only illustrate it: no program that is missing or broken stops an undo."""
    tool = tmp_path / "mysqlbinlog"
    if program == "fails":
        rows_printer.install(tmp_path)
        tool.write_text(tool.read_text().replace("exec ", "exit 3 # "))
    elif program == "other":
        tool = rows_printer.install(tmp_path, mariadb=True)
    lines = shown(MANY, asked(1, 2), tool)
    assert lines[-1] == f"its rows: binlog2s3 rows --gtid {gtid(1)}"
    assert any(line.startswith("rows are not shown: ") for line in lines)
