"""What the full run has more than the gate comes in six parts: CI runs one for each landing."""

import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests import sampling, tiers

ROOT = Path(__file__).parents[2]
FULL = SimpleNamespace(name="full", args=())


def item(node_id: str, *marks: Any, module: object = None) -> Any:
    """As much of a test as the rule looks at."""
    return SimpleNamespace(
        nodeid=node_id,
        path=ROOT / node_id.partition("::")[0],
        fixturenames=(),
        module=module,
        iter_markers=lambda name: (mark for mark in marks if mark.name == name),
    )


def collected(*arguments: str) -> set[str]:
    """The node ids that pytest collects of one folder."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "--quiet", *arguments, "tests/contract"],
        cwd=ROOT,
        capture_output=True,
        check=False,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return {line for line in done.stdout.splitlines() if "::" in line}


def test_each_test_of_the_full_run_alone_is_in_one_sixth() -> None:
    """Six in a row, from any number on, are everything and disjoint; no sixth is much larger."""
    ids = [f"tests/unit/test_{n % 9}.py::test_x[{n}]" for n in range(3000)]
    items = [item(one, FULL) for one in ids]
    for first in (0, 5, 1234567):
        parts = [
            [one.nodeid for one in items if tiers.is_in_sixth(one, number)]
            for number in range(first, first + tiers.SIXTHS)
        ]
        assert sorted(one for part in parts for one in part) == sorted(ids)
        assert all(400 < len(part) < 600 for part in parts)


def test_a_sixth_is_the_same_everywhere() -> None:
    """Two processes, two machines, two versions of Python: nothing of theirs is in the choice."""
    known = {
        "tests/unit/test_a.py::test_one": 5,
        "tests/unit/test_a.py::test_two[x-1]": 4,
        "tests/integration/test_b.py::test_ü": 4,
    }
    found = {
        one: [number for number in range(6) if tiers.is_in_sixth(item(one, FULL), number)]
        for one in known
    }
    assert found == {one: [number] for one, number in known.items()}


def test_what_the_gate_runs_whole_is_in_no_sixth() -> None:
    """What it only tries less of is, by what its module draws with."""
    in_gate = item("tests/unit/test_a.py::test_one")
    drawn = item(
        "tests/unit/test_a.py::test_one", module=SimpleNamespace(examples=sampling.examples)
    )
    other = item("tests/unit/test_a.py::test_one", module=SimpleNamespace(examples=[1]))
    sixths = [
        [tiers.is_in_sixth(one, n) for n in range(6)].count(True) for one in (in_gate, drawn, other)
    ]
    assert sixths == [0, 1, 0]


def test_pytest_collects_the_sixths() -> None:
    """Of a folder with tests of both tiers: what --tier full has more is in --sixth 0 to 5."""
    gate, full = collected(), collected("--tier", "full")
    parts = [collected("--tier", "full", "--sixth", str(number)) for number in range(6, 12)]
    assert full > gate
    assert set().union(*parts) == full - gate
    assert sum(map(len, parts)) == len(full - gate)


def test_a_sixth_of_the_gate_is_refused() -> None:
    """It would be a gate that proves less and says nothing."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "--sixth", "1", "tests/contract"],
        cwd=ROOT,
        capture_output=True,
        check=False,
        text=True,
    )
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "--sixth is a part of --tier full" in done.stderr


def test_ci_runs_the_sixth_of_the_landing(tmp_path: Path) -> None:
    """The committed counter is a whole number, and `make landing` adds one."""
    text = (ROOT / ".ci/landing").read_text()
    assert re.fullmatch(r"\d+\n", text)
    assert "\nmake sixth\n" in (ROOT / ".ci/run").read_text()
    for name in (".ci/landing", "pyproject.toml", "lab/venv.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("9\n")
    makefile = str(ROOT / "Makefile")
    argv = ["make", "--no-print-directory", "-f", makefile, "landing"]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, check=True, text=True)
    assert (done.stdout, (tmp_path / ".ci/landing").read_text()) == ("10\n", "10\n")
    shown = subprocess.run(
        ["make", "-n", "-f", makefile, "sixth"],
        cwd=tmp_path,
        capture_output=True,
        check=False,
        text=True,
    )
    assert "--tier full --sixth 10 " in shown.stdout, shown.stderr
