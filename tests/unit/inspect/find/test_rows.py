"""What `rows` and `find --rows` show of a transaction, with a program in mysqlbinlog's place."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests import rows_printer
from tests.binlog_writer import UUID_A
from tests.documents import TIME
from tests.golden.buckets import BIG, HOUR, Golden, Source, golden, name, row_by_row
from tests.golden.outputs import Called, called
from tests.memory_client import MemoryClient
from tests.unit.inspect.find.test_scan import COMMIT_A, COMMIT_B, xa_history
from tests.unit.test_docs import page, printed
from tests.unit.test_docs import rows as rows_of_table

WHERE = ("--s3-url=s3://acme/pre", "--source=orders")


def shown(of: Any, *words: str, command: str = "rows") -> Called:
    return called(of, [command, *WHERE, *words])


def gtid(number: int) -> str:
    return f"--gtid={UUID_A}:{number}"


def test_each_has_what_find_tells_and_its_rows() -> None:
    """In the order of the documentation."""
    tables = [("find", "field of what was found"), ("rows", "field with rows")]
    documented = [
        cells[0].strip("`") for of, table in tables for cells in rows_of_table(page(of), table)
    ]
    found = printed("rows", "transactions")
    assert found
    assert all([*one] == documented for one in found)


def test_find_shows_the_rows_it_was_asked_for() -> None:
    """Of the given tables and types, of each transaction."""
    words = ("--rows", "--table=shop.orders", "--type=delete", "--json")
    found = json.loads(shown(row_by_row(), *words, command="find").out)["transactions"]
    rows = [[(row["kind"], row["table"]) for row in one["rows"]] for one in found]
    assert rows == [[("delete", "shop.orders")] * 3] * 3


def test_an_xa_commit_has_the_rows_of_what_it_commits() -> None:
    """None if that was not found."""
    for end, expected in ((COMMIT_A, 3), (COMMIT_B, 0)):
        source = xa_history(end)
        of = golden_of(source)
        count = len(json.loads(shown(of, "--json", command="find").out)["transactions"])
        done = shown(of, gtid(count), "--json")
        (found,) = json.loads(done.out)["transactions"]
        assert found["xa"]["phase"] == "commit"
        assert len(found["rows"]) == expected


def golden_of(source: Any) -> Any:
    """A bucket that no streamer of the golden ones has filled."""
    now = TIME + HOUR
    return Golden(client=MemoryClient(source, lambda: now), now=now)


def test_damaged_rows_are_not_shown() -> None:
    """Nor is it silent about them: the exit code is 7."""
    source = Source()
    made = source.binlog([BIG], ends=True)
    at = next(n for n in range(len(made.data)) if made.data[n + 4 : n + 5] == b"\x1f"
              and n in made.ends)  # fmt: skip
    made.data[at + 30] ^= 1
    source.archived_at = source.at
    source.archive(made.data, name(1), accept=[at])
    done = shown(golden(source), gtid(1), "--json")
    assert done.code == 7
    assert "are damaged" in done.err
    (found,) = json.loads(done.out)["transactions"]
    kinds = [(row["kind"], row["table"]) for row in found["rows"]]
    assert kinds == [("insert", "shop.orders")] * 2 + [("delete", "shop.orders")] * 3


def test_the_wrong_program_is_refused_first(tmp_path: Path) -> None:
    """Before anything is searched."""
    other = rows_printer.install(tmp_path, mariadb=True)
    done = shown(row_by_row(), gtid(1), f"--mysqlbinlog={other}")
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
    done = shown(row_by_row(), gtid(4), f"--mysqlbinlog={path}")
    assert done.code == 7
    assert says in done.err


def test_a_program_that_fails_ends_it(tmp_path: Path) -> None:
    """With what it said, and its version."""
    path = rows_printer.install(tmp_path)
    path.write_text(path.read_text().replace("exec ", "echo ERROR: no such event >&2; exit 1 # "))
    done = shown(row_by_row(), gtid(4), f"--mysqlbinlog={path}")
    assert done.code == 4
    assert "mysqlbinlog ended: no such event" in done.err
    assert "its version is 9.7.4" in done.err
