"""What `undo` takes from the archive, and what it shows of it: no server is asked."""

import io
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from binlog2s3.binlog.events import EventType
from binlog2s3.binlog.gtid import MariadbGtidList
from binlog2s3.binlog.names import BinlogName, FilePosition
from binlog2s3.config.stream import MysqlConfig, S3Config
from binlog2s3.config.undo import UndoConfig
from binlog2s3.errors import ArchiveError, Binlog2s3Error, RecoveryError
from binlog2s3.formatting import iso_text
from binlog2s3.inspect.find.match import Criteria
from binlog2s3.inspect.find.rows import RowPrinter
from binlog2s3.output import Plain
from binlog2s3.server.connection import ServerFacts
from binlog2s3.server.mysqlbinlog import find as find_mysqlbinlog
from binlog2s3.undo import transactions
from binlog2s3.undo.execute import Conflict, Undone
from binlog2s3.undo.transactions import Later, TransactionSource
from binlog2s3.undo.view import SHOWN_ROWS, Plan, document, show
from tests import rows_printer
from tests.binlog_writer import BEGIN, UUID_A, UUID_B, XID, BinlogWriter
from tests.golden.buckets import Source
from tests.snapshots import MARIADB, Bucket
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
    more.setdefault("gtids", tuple(map(gtid, gtids)))
    return UndoConfig(s3=s3, source="orders", target=target, **more)


def planned(source: Source, config: UndoConfig) -> Plan:
    """The plan, as far as the archive has it."""
    snapshot, of = source.snapshot(), TransactionSource(config)
    hits = of.found(snapshot)
    changes, form = of.read(hits, snapshot, io.BytesIO())
    facts = ServerFacts(uuid=UUID_A, flavour="mysql", version="9.7.4", server_id=7, gtid_mode=True)
    return Plan(hits=tuple(hits), changes=changes, definitions={}, form=form, facts=facts)


def shown(source: Source, config: UndoConfig, tool: Path) -> list[str]:
    """The lines of the plan."""
    plan, out = planned(source, config), io.StringIO()
    printer = RowPrinter(
        snapshot=source.snapshot(),
        wanted=Criteria(tables=TransactionSource(config).wanted),
        limit=SHOWN_ROWS,
        tool=partial(find_mysqlbinlog, given=tool),
    )
    show(plan, config, "db1", Plain(out), printer)
    return out.getvalue().splitlines()


def test_a_position_in_two_lineages_names_one_or_none() -> None:
    """Binlogs of both have this name, and a transaction there: only one that begins there."""
    source = Source()
    source.closes(changes=[change(DELETE, *map(image, range(9)))])
    snapshot = source.snapshot()
    end = snapshot.size(snapshot.current, BinlogName.parse("mysql-bin.000001"))
    source.before, source.gno = source.executed, 0
    of = {"binlog": "mysql-bin.000001", "offset": end, "gtid_set": source.before}
    source.continues(1, uuid=UUID_B, **of)
    source.closes(changes=[change(DELETE, *map(image, range(9)), table="b")])
    source.closes()
    snapshot = source.snapshot()
    (second,) = TransactionSource(asked(gtids=(f"{UUID_B}:1",))).found(snapshot)
    at = FilePosition(second.binlog, second.transaction.begin)
    assert TransactionSource(asked(at=at)).found(snapshot) == [second]
    with pytest.raises(RecoveryError, match=f"several lineages.*{UUID_A}:1 in.*{UUID_B}:1 in"):
        TransactionSource(asked(at=at._replace(offset=at.offset + 1))).found(snapshot)


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


def test_progress_is_told_while_the_archive_is_searched_and_read() -> None:
    """Bytes of all bytes, to the end."""
    told: list[tuple[str, int, int]] = []
    of = TransactionSource(asked(2), advance=lambda *one: told.append(one))
    snapshot = MANY.snapshot()
    (hit,) = of.found(snapshot)
    assert told[0][0] == "searched"
    of.read([hit], snapshot, io.BytesIO())
    size = hit.transaction.end - hit.transaction.begin
    assert told[-1] == (f"of {gtid(2)} read", size, size)
    assert all(done <= total for _, done, total in told)


def test_the_document_is_as_it_was() -> None:
    """Byte by byte, before and after it is done."""
    config = asked(1, output=Path("/x"), tables=(("shop", "a"),))
    plan = replace(planned(MANY, config), undone_by=gtid(9), notes=("n\u00e4",))
    (hit,) = plan.hits
    said: dict[str, Any] = {
        "source": "orders",
        "transactions": [
            {
                "gtid": gtid(1),
                "binlog": str(hit.binlog),
                "position": hit.transaction.begin,
                "lineage": hit.lineage,
                "committed_at": iso_text(hit.transaction.commit_us),
            }
        ],
        "tables": [{"table": "shop.a", "kind": "update", "rows": 1}],
        "undone_by": gtid(9),
        "notes": ["n\u00e4"],
        "done": False,
        "output": "/x",
        "gtid": None,
        "rows": None,
        "left_out": None,
        "conflicts": [],
    }
    assert document(plan, None, config) == json.dumps(said, indent=1)
    conflict = Conflict(table="shop.a", key="id=1", why="changed", image=b"")
    undone = Undone(rows=Counter({("shop.a", "update"): 3, ("shop.b", "insert"): 4}))
    undone.conflicts, undone.skipped = [conflict], 2
    config = asked(1)
    said |= {"done": True, "output": None, "rows": 7, "left_out": 2}
    said["conflicts"] = [{"table": "shop.a", "key": "id=1", "why": "changed"}]
    assert document(plan, undone, config) == json.dumps(said, indent=1)
    undone.gtid = said["gtid"] = gtid(8)
    assert document(plan, undone, config) == json.dumps(said, indent=1)


def undone_by(source: Source, *gtids: int, **more: Any) -> tuple[str, bool]:
    """What has undone them; and whether all that came after was looked at."""
    config = asked(*gtids, **more)
    plan = planned(source, config)
    return Later(TransactionSource(config), plan.hits, plan.changes, source.snapshot()).undone_by()


ACCIDENT = change(UPDATE, image(1), image(1, b"y"), image(2), image(2, b"y"))
UNDO = change(UPDATE, image(2, b"y"), image(2), image(1, b"y"), image(1))
HALF = change(UPDATE, image(1, b"y"), image(1))
OTHER = change(UPDATE, image(1, b"z"), image(1), image(2, b"y"), image(2))


@pytest.mark.parametrize(
    ("later", "by"),
    [
        ([], ""),
        ([UNDO], gtid(2)),
        ([HALF, OTHER, UNDO, change(DELETE, image(1))], gtid(4)),
        ([UNDO, ACCIDENT], ""),
        ([UNDO, ACCIDENT, UNDO], gtid(4)),
        ([HALF, OTHER], ""),
        ([change(UPDATE, image(1, b"y"), image(1), image(2, b"y"), image(2), table="b")], ""),
        ([[BEGIN, table_map(7, "a"), event(WRITE, 7, [image(9)]), *UNDO[1:]]], ""),
    ],
)
def test_a_plan_tells_what_was_undone_already(later: list[Sequence[Event]], by: str) -> None:
    """And not if that undo was undone; a transaction that has undone only part of it is none."""
    assert undone_by(history(ACCIDENT, *later), 1) == (by, True)


def test_one_undo_of_several_transactions_is_found() -> None:
    """As they are undone together, of the wanted tables alone; inserts are deleted."""
    first, second = change(WRITE, image(1)), change(UPDATE, image(1), image(1, b"y"))
    both = [BEGIN, table_map(7, "a"), event(UPDATE, 7, [image(1, b"y"), image(1)]),
            table_map(7, "a"), event(DELETE, 7, [image(1)]),
            table_map(8, "b"), event(DELETE, 8, [image(1)]), XID]  # fmt: skip
    source = history(first, second, both)
    assert undone_by(source, 1, 2, tables=(("shop", "a"),)) == (gtid(3), True)
    assert undone_by(source, 1, 2) == ("", True)
    assert undone_by(source, 2) == ("", True)


def test_too_much_that_came_after_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan is bounded: so many transactions; and so many bytes of those that look like it."""
    monkeypatch.setattr(transactions, "LATER_MOST", 50)
    source = Source()
    single = change(UPDATE, image(1), image(1, b"y"))
    source.closes(changes=[single, *[change(WRITE, image(1))] * 49])
    assert undone_by(source, 1) == ("", True)
    source.closes(changes=[change(WRITE, image(1))] * 2)
    assert undone_by(source, 1) == ("", False)
    source = history(single, *[change(UPDATE, image(1), image(1, b"z"))] * 40)
    assert undone_by(source, 1) == ("", True)
    plan = planned(source, asked(1))
    of, snapshot = TransactionSource(asked(1)), source.snapshot()
    assert Later(of, plan.hits, plan.changes, snapshot, read_least=0).undone_by() == ("", False)


def test_who_changed_a_row_is_found_behind_hundreds_of_others() -> None:
    """A busy table has them in a minute; of two changes the last one is named."""
    others = [change(WRITE, image(3))] * 600
    culprit = change(UPDATE, image(1, b"y"), image(1, b"z"))
    back = change(UPDATE, image(1, b"z"), image(1, b"y"))
    source = history(change(UPDATE, image(1), image(1, b"y")), *others, culprit, back, culprit)
    plan = planned(source, asked(1))
    later = Later(TransactionSource(asked(1)), plan.hits, plan.changes, source.snapshot())
    image_left = image(1, b"y")
    conflict = Conflict(table="shop.a", key="id=1", why="changed", image=image_left)
    assert later.culprits([conflict]).by_row == {("shop.a", image_left): gtid(604)}


def test_what_was_undone_already_is_said_and_not_refused(tmp_path: Path) -> None:
    """Rows may have been set by hand since; the undo itself compares."""
    plan, out = planned(history(ACCIDENT), asked(1)), io.StringIO()
    plan = replace(plan, undone_by=gtid(2))
    printer = RowPrinter(snapshot=history(ACCIDENT).snapshot(), wanted=Criteria(), limit=SHOWN_ROWS,
                         tool=partial(find_mysqlbinlog, given=tmp_path / "none"))  # fmt: skip
    config = replace(asked(1), given=("--config", "my orders.toml"))
    show(plan, config, "db1", Plain(out), printer)
    line = f"its rows: binlog2s3 rows --config 'my orders.toml' --gtid {gtid(1)}"
    assert line in out.getvalue().splitlines()
    assert f"undone already, by {gtid(2)}, which was not undone since\n" in out.getvalue()


def stretch(source: Bucket, first: str, last: str, table: str = "a") -> list[str | None]:
    """The GTIDs of what a stretch of one table takes back."""
    wanted = (("shop", table),)
    config = asked(from_gtid=first, to_gtid=last, tables=wanted)
    return [hit.transaction.gtid for hit in TransactionSource(config).found(source.snapshot())]


LONG = history(*(change(WRITE, image(n), table="ab"[n % 2]) for n in range(1, 8)))
"""The odd ones are of shop.b."""


def test_a_stretch_of_one_table_is_taken_in_the_order_of_the_archive() -> None:
    """Its ends need not be about the table; what is around it in the same binlogs stays."""
    assert stretch(LONG, gtid(2), gtid(6)) == [gtid(2), gtid(4), gtid(6)]
    assert stretch(LONG, gtid(3), gtid(5)) == [gtid(4)]
    assert stretch(LONG, gtid(4), gtid(4)) == [gtid(4)]
    assert stretch(LONG, gtid(1), gtid(7), "b") == [gtid(1), gtid(3), gtid(5), gtid(7)]


@pytest.mark.parametrize(
    ("first", "last", "why"),
    [
        (gtid(6), gtid(2), "before"),
        (gtid(2), gtid(1), "before"),
        (gtid(3), gtid(3), "none of these transactions of the stretch"),
        (gtid(2), gtid(99), ":99 was found"),
    ],
)
def test_a_stretch_that_is_empty_or_reversed_is_refused(first: str, last: str, why: str) -> None:
    """Also one of which an end is not there."""
    with pytest.raises(Binlog2s3Error, match=why):
        stretch(LONG, first, last)


def test_a_stretch_over_a_break_of_history_is_refused() -> None:
    """What is missing may have changed the same rows; on either side of it, a stretch is whole."""
    source = history(*(change(WRITE, image(n)) for n in range(1, 5)))
    source.number += 1
    source.gno += 2
    source.closes(changes=[change(WRITE, image(9))])
    assert stretch(source, gtid(1), gtid(4)) == [gtid(n) for n in range(1, 5)]
    assert stretch(source, gtid(8), gtid(8)) == [gtid(8)]
    with pytest.raises(ArchiveError, match="gap"):
        stretch(source, gtid(4), gtid(8))


def test_a_stretch_of_mariadb_goes_by_the_archive_and_not_by_numbers() -> None:
    """Two domains, of which each counts for itself; a GTID that was used twice names no place."""
    writer = BinlogWriter(server_version="11.4.2-MariaDB-log")
    writer.gtid_list(MariadbGtidList())
    for given in ((0, 9), (1, 2), (0, 10), (1, 3), (1, 3)):
        writer.mariadb_transaction(change(WRITE, image(1)), gtid=given)
    writer.rotate()
    source = Bucket(MARIADB)
    source.archive(writer.data)
    found = [stretch(source, *ends) for ends in (("1-7-2", "0-7-10"), ("0-7-9", "1-7-2"))]
    assert found == [["1-7-2", "0-7-10"], ["0-7-9", "1-7-2"]]
    with pytest.raises(RecoveryError, match="before"):
        stretch(source, "0-7-10", "1-7-2")
    with pytest.raises(RecoveryError, match="given twice"):
        stretch(source, "0-7-9", "1-7-3")
