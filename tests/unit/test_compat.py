"""The matrix of docs/compatibility.md: what a cell may say, and how it is read from a report."""

import re
import subprocess
from pathlib import Path

import pytest

from binlog2s3.archive.sources import nothing_of
from lab.compat import BEGIN, CELLS, END, NOT_HERE, PAGE, ROOT, Matrix, blockers, read, unusable
from lab.get import VERSIONS
from tests.compat.place import Place
from tests.memory_store import MemoryStore

CELL = re.compile(r"works|refused: \S.*|not run(: \S.*)?")
REPORT = """<?xml version="1.0"?><testsuites><testsuite>
<testcase name="test_stream[mysql-9]"><properties><property name="server" value="MySQL 9.7.4"/>
</properties></testcase>
<testcase name="test_pitr[mysql-9]"><properties>
<property name="refused" value="too old"/></properties></testcase>
<testcase name="test_serve[mysql-9]"><skipped message="it needs a second server"/></testcase>
<testcase name="test_find[mysql-9]"><failure message="x"/></testcase>
<testcase name="test_check[mysql-9]"><error message="x"/></testcase>
<testcase name="test_other[mysql-9]"/><testcase name="test_stream"/>
</testsuite></testsuites>"""


def test_the_cells_of_a_report(tmp_path: Path) -> None:
    """A cell that failed fails, whatever else there is; one that is not there was not run."""
    path = tmp_path / "report.xml"
    path.write_text(REPORT)
    found = read(path)
    assert found.cells == {
        ("mysql-9", "stream"): "works",
        ("mysql-9", "pitr"): "refused: too old",
        ("mysql-9", "serve"): "not run: it needs a second server",
        ("mysql-9", "find"): "fails",
        ("mysql-9", "check"): "fails",
    }
    assert found.fails
    row = found.table(["mysql-9"]).splitlines()[2]
    assert row.startswith("| MySQL 9.7.4 | works | not run | not run | not run: it needs")
    assert not Matrix({("a", "find"): "works"}, {}).fails
    assert Matrix({}, {}).fails


def test_what_no_cell_can_do_without() -> None:
    """Such a row of `check` blocks the tests; any other that fails is for the matrix to show."""
    rows = [
        ("server", "reachable", "fail"),
        ("settings", "log_bin", "fail"),
        ("settings", "binlog_format", "fail"),
        ("store", "reachable", "fail"),
        ("store", "put if absent", "fail"),
        ("privileges", "REPLICATION SLAVE", "skipped"),
    ]
    names = ("part", "name", "result")
    checked = [{**dict(zip(names, row, strict=True)), "found": "x", "hint": "y"} for row in rows]
    assert blockers({"parts": checked}) == [
        "server, reachable: x\n  hint: y",
        "settings, log_bin: x\n  hint: y",
        "store, reachable: x\n  hint: y",
    ]


def test_a_place_that_cannot_be_used(tmp_path: Path) -> None:
    """Why is said in a line with `check`'s exit code; there is no report of cells that fail."""
    defaults = tmp_path / "my.cnf"
    defaults.write_text("[client]\nuser=u\n")
    where = {"COMPAT_MYSQL": "db:x", "COMPAT_S3": "no-url", "COMPAT_DEFAULTS": str(defaults)}
    code, why = unusable(where)
    assert code == 3
    assert "--mysql-port: 'x'" in " ".join(why)
    assert "--s3-url: 'no-url'" in " ".join(why)


def page_rows() -> list[list[str]]:
    """The cells of the page's matrix, row by row."""
    _, _, text = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    return [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in text.partition(END)[0].splitlines()
    ]


def test_no_cell_of_the_page_promises_anything() -> None:
    """Each says what its test did; each version that the lab has is there, in its order."""
    rows = page_rows()
    assert rows[0] == ["server", *CELLS.values()]
    servers = [row[0] for row in rows[2:]]
    assert len(servers) == len(set(servers)) == len(VERSIONS) + len(NOT_HERE)
    for version, server in zip(VERSIONS, servers, strict=False):
        title = server.lower().replace(" ", "-")
        assert f"{title}.".startswith(f"{version}."), (version, server)
    assert servers[len(VERSIONS) :] == [*NOT_HERE]
    for row in rows[2:]:
        assert [cell for cell in row[1:] if not CELL.fullmatch(cell)] == []
    assert all(set(row[1:]) == {"not run"} for row in rows[2 + len(VERSIONS) :])


def test_the_readme_names_what_the_page_shows() -> None:
    """The series of the servers that were run, and no other."""
    text = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    found = re.search(r"Tested with MySQL (.+?) and MariaDB (.+?) \(", text)
    assert found is not None
    named = [f"MySQL {number}" for number in re.findall(r"\d+\.\d+", found[1])]
    named += [f"MariaDB {number}" for number in re.findall(r"\d+\.\d+", found[2])]
    run = [row[0].rpartition(".")[0] for row in page_rows()[2 : 2 + len(VERSIONS)]]
    assert list(dict.fromkeys(named)) == list(dict.fromkeys(run))


class Unlisted(Place):
    """`list` ends with what it says of a bucket that has only this key."""

    def run(
        self, name: str, *arguments: str, server: bool = False
    ) -> "subprocess.CompletedProcess[str]":
        assert (name, arguments, server) == ("list", ("--json",), False)
        store = MemoryStore()
        store.put(self.table, b"")
        error = nothing_of(store, "p", "test", "s3://b/p")
        text = f"error: {error}\nhint: {error.hint}\n"
        return subprocess.CompletedProcess([], error.exit_code, "", text)


def test_a_streamer_that_has_only_begun_is_waited_for(tmp_path: Path) -> None:
    """At an own server `list` may come before the first binlog does; another error is one."""

    def there(key: str) -> Place:
        return Unlisted(server=None, directory=tmp_path, options={}, environment={}, table=key)  # type: ignore[arg-type]

    assert there("p/live/test/writers/1").lineages() == []
    with pytest.raises(AssertionError, match="there is nothing of source test"):
        there("p/live/other/writers/1").lineages()
