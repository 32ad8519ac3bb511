"""What `rows` and `find --rows` show of a transaction, with a program in mysqlbinlog's place."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from binlog2s3.binlog.events import EventType
from tests import rows_printer
from tests.binlog_writer import UUID_A, XID
from tests.documents import TIME
from tests.golden.buckets import (
    CHANGES,
    DROP,
    HOUR,
    Events,
    Golden,
    Source,
    fork,
    golden,
    name,
    query,
)
from tests.golden.outputs import Called, called
from tests.memory_client import MemoryClient
from tests.unit.binlog.test_content import compressed, rows, table_map
from tests.unit.inspect.find.test_scan import COMMIT_A, COMMIT_B, xa_history
from tests.unit.test_docs import page
from tests.unit.test_docs import rows as rows_of_table

WRITE, UPDATE, DELETE = EventType.WRITE_ROWS, EventType.UPDATE_ROWS, EventType.DELETE_ROWS
HOSTILE = b"a\x1b[31m\xff' /* x */"
BIG: Events = [
    query("BEGIN"),
    table_map(7, "orders"),
    table_map(8, "sto\x1bck"),
    rows(WRITE, 7, 2, flags=0),
    rows(UPDATE, 8, 1, value=HOSTILE, flags=0),
    rows(DELETE, 7, 3),
    query("UPDATE stock SET a = 1"),
    XID,
]
"""The transaction number 1."""


def bucket(*changes: Events) -> Any:
    """An open binlog with these transactions."""
    source = Source()
    source.grows(changes or [BIG, *CHANGES, DROP])
    source.beats()
    return golden(source)


@pytest.fixture
def tool(tmp_path: Path) -> str:
    return f"--mysqlbinlog={rows_printer.install(tmp_path)}"


WHERE = ("--s3-url=s3://acme/pre", "--source=orders")


def shown(of: Any, *words: str, command: str = "rows") -> Called:
    return called(of, [command, *WHERE, *words])


def gtid(number: int) -> str:
    return f"--gtid={UUID_A}:{number}"


def rows_in(done: Called, at: int = 0) -> list[tuple[str, str]]:
    document = json.loads(done.out)
    return [(row["kind"], row["table"]) for row in document["transactions"][at]["rows"]]


def test_a_transaction_is_shown_row_by_row(tool: str) -> None:
    """In mysqlbinlog's form; nothing of a row controls the terminal; statements are named."""
    done = shown(bucket(), gtid(1), tool)
    blob = "/* LONGBLOB meta=4 nullable=1 is_null=0 */"
    value = f"###   @2='a\\x1b[31m\\xff' /* x */' {blob}"
    number = "###   @1=1 /* INT meta=0 nullable=0 is_null=0 */"
    lines = done.out.splitlines()
    begin = lines.index("### UPDATE shop.sto\\x1bck")
    assert done.code == 0
    assert lines[begin : begin + 7] == [
        "### UPDATE shop.sto\\x1bck", "### WHERE", number, value, "### SET", number, value
    ]  # fmt: skip
    assert lines.count("### INSERT INTO shop.orders") == 2
    assert lines.count("### DELETE FROM shop.orders") == 3
    assert "    UPDATE stock SET a = 1" in lines
    assert any(line.startswith("    @1 is the first column") for line in lines)
    assert "    not all can be counted: statements have no rows" in lines
    assert f"--before-gtid {UUID_A}:1" in done.out
    assert "\x1b" not in done.out


def test_a_document_has_all_of_it(tool: str) -> None:
    """The fields of `find`, and the rows."""
    (found,) = json.loads(shown(bucket(), gtid(2), tool, "--json").out)["transactions"]
    assert found["changes"] == [
        {"kind": "insert", "table": "shop.orders", "rows": 1, "matched": True}
    ]
    row = {"kind": "insert", "table": "shop.orders", "before": None,
           "after": {"@1": "1", "@2": "'abc'"}, "cut": []}  # fmt: skip
    assert found["rows"] == [row]
    assert (found["rows_total"], found["rows_more"], found["rows_problems"]) == (1, False, [])
    documented = [cells[0].strip("`") for cells in rows_of_table(page("rows"), "field with rows")]
    assert [*found][-len(documented) :] == documented


@pytest.mark.parametrize("of", [[BIG], [[compressed([*BIG]), XID]]])
@pytest.mark.parametrize(
    ("words", "expected", "total"),
    [
        ([], [("insert", "shop.orders")] * 2 + [("update", "shop.sto\x1bck")]
         + [("delete", "shop.orders")] * 3, None),
        (["--limit=0"], [("insert", "shop.orders")] * 2 + [("update", "shop.sto\x1bck")]
         + [("delete", "shop.orders")] * 3, None),
        (["--limit=1"], [("insert", "shop.orders")], None),
        (["--table=shop.orders", "--limit=5"],
         [("insert", "shop.orders")] * 2 + [("delete", "shop.orders")] * 3, 5),
        (["--table=shop.*"], [("insert", "shop.orders")] * 2 + [("update", "shop.sto\x1bck")]
         + [("delete", "shop.orders")] * 3, None),
        (["--table=other.*"], [], 0),
    ],
)  # fmt: skip
def test_which_rows(
    tool: str, of: Sequence[Events], words: list[str], expected: list[object], total: int | None
) -> None:
    """Of the given tables, up to the limit; compressed or not."""
    done = shown(bucket(*of), gtid(1), tool, "--json", *words)
    (found,) = json.loads(done.out)["transactions"]
    assert done.code == 0, done.err
    assert rows_in(done) == expected
    assert found["rows_more"] == ("--limit=1" in words)
    assert found["rows_total"] == total  # the statement's are not known


def test_by_position(tool: str) -> None:
    """Any byte of it names a transaction; what lies between two, none."""
    of = bucket()
    begins = [
        t["begin"] for t in json.loads(shown(of, "--json", command="find").out)["transactions"]
    ]
    for at, gno in ((0, 5), (1, 4), (4, 1)):
        for more in (0, 60):
            done = shown(of, f"--at={name(1)}:{begins[at] + more}", tool, "--json")
            assert [t["gtid"] for t in json.loads(done.out)["transactions"]] == [f"{UUID_A}:{gno}"]
    for nowhere in (f"{name(1)}:4", f"{name(1)}:999999999", f"{name(7)}:{begins[0]}"):
        done = shown(of, f"--at={nowhere}", tool)
        assert (done.code, "no transaction at" in done.err) == (7, True)


def test_find_shows_the_rows_it_was_asked_for(tool: str) -> None:
    """Of the given tables and types, of each transaction."""
    words = ("--rows", "--table=shop.orders", "--type=delete", "--json", tool)
    done = shown(bucket(), *words, command="find")
    assert rows_in(done, 0) == rows_in(done, 1) == [("delete", "shop.orders")] * 3
    assert len(json.loads(done.out)["transactions"]) == 2


def test_a_transaction_of_another_lineage(tool: str) -> None:
    """It is found where it is asked for in all lineages; otherwise the hint says so."""
    done = shown(fork(), gtid(9), tool)
    assert (done.code, "--lineage all" in done.err) == (7, True)
    assert (
        rows_in(shown(fork(), gtid(9), tool, "--lineage=all", "--json"))
        == [("delete", "shop.orders")] * 3
    )


def test_an_xa_commit_has_the_rows_of_what_it_commits(tool: str) -> None:
    """None if that was not found."""
    for end, expected in ((COMMIT_A, 3), (COMMIT_B, 0)):
        source = xa_history(end)
        of = golden_of(source)
        count = len(json.loads(shown(of, "--json", command="find").out)["transactions"])
        done = shown(of, gtid(count), tool, "--json")
        (found,) = json.loads(done.out)["transactions"]
        assert found["xa"]["phase"] == "commit"
        assert len(found["rows"]) == expected


def golden_of(source: Any) -> Any:
    """A bucket that no streamer of the golden ones has filled."""
    now = TIME + HOUR
    return Golden(client=MemoryClient(source, lambda: now), now=now)


def test_damaged_rows_are_not_shown(tool: str) -> None:
    """Nor is it silent about them: the exit code is 7."""
    source = Source()
    made = source.binlog([BIG], ends=True)
    at = next(n for n in range(len(made.data)) if made.data[n + 4 : n + 5] == b"\x1f"
              and n in made.ends)  # fmt: skip
    made.data[at + 30] ^= 1
    source.archived_at = source.at
    source.archive(made.data, name(1), accept=[at])
    done = shown(golden(source), gtid(1), tool, "--json")
    assert done.code == 7
    assert "are damaged" in done.err
    assert rows_in(done) == [("insert", "shop.orders")] * 2 + [("delete", "shop.orders")] * 3


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        ((), 3, "which transaction? Give --gtid or --at"),
        ((gtid(1), f"--at={name(1)}:4"), 3, "contradict each other"),
        ((gtid(99),), 7, f"no transaction {UUID_A}:99 was found in the bucket"),
        ((gtid(1), "--lineage=nope"), 7, "there is no lineage nope"),
        (("--gtid=0-1-5",), 7, "is not a GTID of mysql"),
        ((gtid(1), "--mysqlbinlog=/dev/null/no"), 4, "is not an executable program"),
    ],
)
def test_refused(tool: str, words: tuple[str, ...], code: int, says: str) -> None:
    """With a reason, and what to do."""
    done = shown(bucket(), tool, *words)
    assert (done.code, says in done.err, "hint" in done.err or code == 3) == (code, True, True)


def test_the_wrong_program_is_refused_first(tmp_path: Path) -> None:
    """Before anything is searched."""
    other = rows_printer.install(tmp_path, mariadb=True)
    done = shown(bucket(), gtid(1), f"--mysqlbinlog={other}")
    assert (done.code, done.out) == (4, "")
    assert "is of MariaDB" in done.err


@pytest.mark.parametrize(
    ("lines", "says"),
    [(9, "mysqlbinlog printed 2 rows of 3"), (12, "did not print every column of a row")],
)
def test_rows_that_are_missing_in_the_text_are_told(tmp_path: Path, lines: int, says: str) -> None:
    """A program that prints less than the transaction has does not pass for all of it."""
    path = rows_printer.install(tmp_path)
    path.write_text(path.read_text().replace('"$@"\n', f'"$@" | head -n {lines}\n'))
    done = shown(bucket(), gtid(4), f"--mysqlbinlog={path}")
    assert done.code == 7
    assert says in done.err


def test_a_program_that_fails_ends_it(tmp_path: Path) -> None:
    """With what it said, and its version."""
    path = rows_printer.install(tmp_path)
    path.write_text(path.read_text().replace("exec ", "echo ERROR: no such event >&2; exit 1 # "))
    done = shown(bucket(), gtid(4), f"--mysqlbinlog={path}")
    assert done.code == 4
    assert "mysqlbinlog ended: no such event" in done.err
    assert "its version is 9.7.4" in done.err
