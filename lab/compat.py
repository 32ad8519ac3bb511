"""The compatibility matrix: `make compat`, or `make compat MYSQL=host:port S3=s3://bucket/prefix`.

Runs tests/compat and prints a row for each version. On the lab's servers it also writes
docs/compatibility.md, between its comments; on a server of one's own it prints a report to send in.
A cell is what its test did: "works", "refused: why", "not run", or "fails", which ends it with 1
and is not written. If a server or a bucket of one's own cannot be used at all, there is no report,
and `check` says why.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from binlog2s3 import __version__
from binlog2s3.config.stream import MysqlConfig
from binlog2s3.errors import Binlog2s3Error
from binlog2s3.server.connection import Server
from binlog2s3.server.login import resolve
from lab.get import VERSIONS

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs/compatibility.md"
BEGIN, END = "<!-- begin matrix -->\n", "<!-- end matrix -->"
CELLS = {
    "stream": "stream",
    "resume": "resume",
    "lineage_after_reset": "lineage after RESET",
    "serve": "serve to a replica",
    "pitr": "pitr",
    "find": "find",
    "verify": "verify",
    "check": "check",
}
"""The tests of tests/compat/test_cells.py, and what the matrix calls them."""
NOT_HERE = ("MySQL 8.4", "Amazon RDS for MySQL", "Amazon Aurora MySQL", "Google Cloud SQL",
            "Azure Database for MySQL")  # fmt: skip
"""What nobody has run yet."""
DATABASE = "binlog2s3_compat"
"""The one database of a server of one's own that the tests make, write to and drop."""
_NEEDED = {
    **dict.fromkeys(("configuration", "server", "privileges")),
    "settings": "log_bin",
    "mysqlbinlog": "program",
    "store": "reachable",
}
"""What no cell can do without: parts of `check`, and the row that counts if it is not each one."""


@dataclass(frozen=True, slots=True)
class Matrix:
    """What came out: `cells` by version and test, `titles` by version as the server says it."""

    cells: Mapping[tuple[str, str], str]
    titles: Mapping[str, str]

    def table(self, versions: Sequence[str]) -> str:
        """A Markdown table, a row for each version."""
        rows = ["| server | " + " | ".join(CELLS.values()) + " |", "|---" * (1 + len(CELLS)) + "|"]
        for version in versions:
            found = [self.cells.get((version, name), "not run") for name in CELLS]
            rows.append(f"| {self.titles.get(version, version)} | " + " | ".join(found) + " |")
        return "\n".join(rows) + "\n"

    @property
    def fails(self) -> bool:
        """Whether a cell fails, or there is none."""
        return "fails" in self.cells.values() or not self.cells


def read(report: Path) -> Matrix:
    """The matrix of pytest's report (JUnit's XML)."""
    cells: dict[tuple[str, str], str] = {}
    titles: dict[str, str] = {}
    for case in ET.parse(report).getroot().iter("testcase"):
        match = re.fullmatch(r"test_(\w+)\[(.+)\]", case.get("name", ""))
        if match is None or match[1] not in CELLS:
            continue
        told = {one.get("name"): one.get("value", "") for one in case.iter("property")}
        skipped = case.find("skipped")
        if case.find("failure") is not None or case.find("error") is not None:
            cell = "fails"
        elif skipped is not None:
            cell = f"not run: {skipped.get('message', '')}"
        else:
            cell = f"refused: {told['refused']}" if told.get("refused") else "works"
        cells[match[2], match[1]] = cell
        if told.get("server"):
            titles[match[2]] = told["server"]
    return Matrix(cells, titles)


def address(text: str) -> tuple[str, str]:
    """Host and port of HOST or HOST:PORT; `check` says if the port is none."""
    host, _, port = text.rpartition(":")
    return (host, port) if host else (port, "3306")


def blockers(checked: Mapping[str, Any]) -> list[str]:
    """Why no test can run, one line each with its hint, from what `check --json` printed."""
    return [
        f"{row['part']}, {row['name']}: {row['found']}"
        + f"\n  hint: {row['hint']}" * bool(row["hint"])
        for row in checked["parts"]
        if row["result"] == "fail" and _NEEDED.get(row["part"], "") in (None, row["name"])
    ]


def unusable(where: Mapping[str, str]) -> tuple[int, list[str]]:
    """An exit code and why nothing can run at the server and the bucket; 0 if the tests can."""
    host, port = address(where["COMPAT_MYSQL"])
    defaults = Path(where.get("COMPAT_DEFAULTS") or "~/.my.cnf").expanduser()
    with tempfile.TemporaryDirectory(prefix="compat-") as spool:
        argv = [
            *(sys.executable, "-m", "binlog2s3", "check", "--json", "--source=compat"),
            *(f"--mysql-host={host}", f"--mysql-port={port}", f"--mysql-defaults-file={defaults}"),
            *(f"--s3-url={where['COMPAT_S3']}", f"--spool={spool}", "--spool-min-free-bytes=0"),
        ]
        done = subprocess.run(argv, check=False, stdin=subprocess.DEVNULL, capture_output=True)
    if not done.stdout:
        return done.returncode, [done.stderr.decode(errors="replace").strip()]
    checked = json.loads(done.stdout)
    if found := blockers(checked):
        return int(checked["exit_code"]), found
    try:
        login = resolve(MysqlConfig(host=host, port=int(port), defaults_file=defaults))
        with Server(lambda: login) as server:
            server.rows(f"CREATE DATABASE {DATABASE}")  # one that is there may be somebody's
            server.rows(f"DROP DATABASE {DATABASE}")
    except Binlog2s3Error as error:
        hint = (
            "docs/compatibility.md has the privileges; if a run that was killed left the database, "
            "drop it"
        )
        return error.exit_code, [f"{error}\n  hint: {hint}"]
    return 0, []


def main() -> int:
    """Run the cells, print the matrix, and write it where it is the lab's."""
    own = bool(os.environ.get("COMPAT_MYSQL"))
    if own != bool(os.environ.get("COMPAT_S3")):
        print("give both: make compat MYSQL=host:port S3=s3://bucket/prefix", file=sys.stderr)
        return 2
    if own:
        code, found_out = unusable(os.environ)
        if code:
            print("the tests cannot run there:", *found_out, sep="\n", file=sys.stderr)
            return code
    with tempfile.TemporaryDirectory(prefix="compat-") as directory:
        report = Path(directory) / "report.xml"
        argv = [
            *(sys.executable, "-m", "pytest", "--tier", "full", "-q", "tests/compat/test_cells.py"),
            *("-n", "1" if own else "2", f"--junit-xml={report}", "-o", "junit_family=xunit1"),
        ]
        environment = {**os.environ, "COMPAT_ALL": "1"}
        subprocess.run(argv, cwd=ROOT, env=environment, check=False, stdin=subprocess.DEVNULL)
        found = read(report) if report.is_file() else Matrix({}, {})
    versions = ["own"] if own else [*VERSIONS]
    if own:
        print("\nA report to send in; it names no host, no bucket and no account:\n")
        print(f"binlog2s3 {__version__}\n")
    print(found.table(versions))
    if own or found.fails:
        return int(found.fails)
    if len(found.cells) < len(versions) * len(CELLS):
        print("lab: cells are missing, so docs/compatibility.md is not written", file=sys.stderr)
        return 1
    write(found)
    return 0


def write(found: Matrix) -> None:
    """Write the lab's matrix into the page."""
    rest = "".join(f"| {one} |{' not run |' * len(CELLS)}\n" for one in NOT_HERE)
    head, _, after = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    _, _, tail = after.partition(END)
    table = found.table([*VERSIONS])
    PAGE.write_text(f"{head}{BEGIN}{table}{rest}{END}{tail}", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
