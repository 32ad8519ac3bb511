"""What the documents and the mutants name is a test, and of the tier that they say."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.mutants.mutants import MUTANTS
from tests.mutants.run import ROOT, exists

RELIABILITY, PROOF = ROOT / "docs/reliability.md", ROOT / "docs/proof.md"


@pytest.fixture(scope="module")
def in_gate() -> frozenset[str]:
    """The tests of the gate, without their cases; a marker that names no case ends it."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "--quiet", "--tier", "gate"],
        cwd=ROOT,
        capture_output=True,
        check=False,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    lines = done.stdout.splitlines()
    return frozenset(line.partition("[")[0] for line in lines if "::" in line)


def rows(page: Path, heading: str) -> list[tuple[str, str]]:
    """The two columns of the table below a heading."""
    text = page.read_text(encoding="utf-8")
    part = text.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    cells = [line.split(" | ") for line in part.splitlines() if line.startswith("| ")]
    return [(left.strip("| "), right.strip("| ")) for left, right in cells[1:]]


def named(shown: str, tier: str) -> list[str]:
    """The node ids of one tier in a cell: `gate: ...; full: ...; chaos`."""
    part = next((one for one in shown.split("; ") if one.startswith(f"{tier}: ")), "")
    found = re.findall(r"`([^`]+)`", part)
    return [one if one.startswith("tests/") else f"tests/integration/{one}" for one in found]


def test_every_fault_has_its_tests(in_gate: frozenset[str]) -> None:
    """Each row names tests that exist, of the tier that it says, and one of them is in the gate."""
    shown_by = rows(PROOF, "Tests of each fault")
    faults = [fault for fault, _ in rows(RELIABILITY, "Which fault is survived how")]
    assert len(faults) >= 16
    assert [fault for fault, _ in shown_by] == faults
    for fault, shown in shown_by:
        gate, full = named(shown, "gate"), named(shown, "full")
        count = shown.count("::")
        assert gate, f"{fault}: nothing in the gate"
        assert any("/integration/" in test for test in gate), f"{fault}: no real server in the gate"
        assert len(gate) + len(full) == count, f"{fault}: not all of it is under gate: or full:"
        assert [test for test in gate + full if not exists(test, ROOT)] == [], fault
        assert [test for test in gate if test not in in_gate] == [], fault
        assert [test for test in full if test in in_gate] == [], f"{fault}: is in the gate"


def test_every_mutant_dies_in_the_gate(in_gate: frozenset[str]) -> None:
    """Otherwise `make mutants` and `make test` run different tests."""
    for mutant in MUTANTS:
        tests = {test.partition("[")[0] for test in mutant.tests}
        assert tests <= in_gate, (mutant.name, tests - in_gate)


def test_there_is_a_recovery_of_each_flavour_and_a_run_of_each_command(
    in_gate: frozenset[str],
) -> None:
    """With real servers."""
    with_servers = {Path(test.partition("::")[0]).name for test in in_gate if "integration" in test}
    commands = {"stream", "list", "status", "preflight", "verify", "find", "pitr"}
    assert {f"test_{name}.py" for name in commands} <= with_servers
    assert "test_pitr_positions.py" in with_servers, "MariaDB"
