"""Each test is in a tier, each of the full run alone in a sixth that CI runs once in six landings.

What the documents and the mutants name is a test, and of the tier that they say.
"""

import random
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from zlib import crc32

import pytest

from tests import sampling, tiers
from tests.mutants.mutants import MUTANTS
from tests.mutants.run import ROOT, exists

RELIABILITY, PROOF = ROOT / "docs/reliability.md", ROOT / "docs/proof.md"


FULL = SimpleNamespace(name="full", args=())


def collect(*arguments: str) -> "subprocess.CompletedProcess[str]":
    """What pytest says of the tests that it would run."""
    return subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "--quiet", *arguments],
        cwd=ROOT,
        capture_output=True,
        check=False,
        text=True,
        timeout=300,
    )


def collected(*arguments: str) -> frozenset[str]:
    """The node ids of these tests."""
    done = collect(*arguments)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return frozenset(line for line in done.stdout.splitlines() if "::" in line)


@pytest.fixture(scope="module")
def cases_in_gate() -> frozenset[str]:
    return collected("--tier", "gate")


@pytest.fixture(scope="module")
def in_gate(cases_in_gate: frozenset[str]) -> frozenset[str]:
    """Without the ids of their cases."""
    return frozenset(case.partition("[")[0] for case in cases_in_gate)


def test_markers_and_sixths_fit_the_tree(cases_in_gate: frozenset[str]) -> None:
    """No marker names a case that its test lacks; a sixth is of what the full run has more of.

    The collection of the gate fails where a marker does.
    """
    full = collected("--tier", "full", "tests/contract")
    sixth = collected("--tier", "full", "--sixth", "0", "tests/contract")
    more = full - cases_in_gate
    assert full & cases_in_gate
    assert sixth
    assert sixth == {case for case in more if crc32(case.encode()) % tiers.SIXTHS == 0}


def test_a_sixth_of_the_gate_is_refused() -> None:
    """It would be a gate that proves less and says nothing."""
    done = collect("--sixth", "1", "tests/contract")
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "--sixth is a part of --tier full" in done.stderr


def item(node_id: str, *marks: Any, module: object = None) -> Any:
    """As much of a test as the rules look at."""
    return SimpleNamespace(
        nodeid=node_id,
        path=ROOT / node_id.partition("::")[0],
        fixturenames=(),
        module=module,
        iter_markers=lambda name: (mark for mark in marks if mark.name == name),
    )


def sixths(one: Any) -> list[int]:
    return [number for number in range(tiers.SIXTHS) if tiers.is_in_sixth(one, number)]


def test_each_test_of_the_full_run_alone_is_in_one_sixth() -> None:
    """The same on each machine; six numbers in a row are all sixths, and none is much larger."""
    items = [item(f"tests/unit/test_{n % 9}.py::test_x[{n}]", FULL) for n in range(3000)]
    numbers = [number for one in items for (number,) in [sixths(one)]]
    assert all(400 < numbers.count(number) < 600 for number in range(tiers.SIXTHS))
    assert tiers.is_in_sixth(items[0], numbers[0] + 6_000_000)
    assert sixths(item("tests/unit/test_a.py::test_two[x-1]", FULL)) == [4]


@pytest.mark.parametrize(("draws", "count"), [(None, 0), (sampling.examples, 1), ([1], 0)])
def test_what_the_gate_runs_whole_is_in_no_sixth(draws: object, count: int) -> None:
    """What it only tries less of is, by what its module draws with."""
    one = item("tests/unit/test_a.py::test_one", module=SimpleNamespace(examples=draws))
    assert len(sixths(one)) == count


def test_ci_runs_the_sixth_of_the_landing(tmp_path: Path) -> None:
    """The committed counter is a whole number, and `make landing` adds one."""
    assert re.fullmatch(r"\d+\n", (ROOT / ".ci/landing").read_text())
    assert "\nmake sixth\n" in (ROOT / ".ci/run").read_text()
    for name in (".ci/landing", "pyproject.toml", "lab/venv.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("9\n")

    def make(*arguments: str) -> str:
        argv = ["make", "--no-print-directory", "-f", str(ROOT / "Makefile"), *arguments]
        done = subprocess.run(argv, cwd=tmp_path, capture_output=True, check=False, text=True)
        return done.stdout

    assert make("landing") == "10\n"
    assert (tmp_path / ".ci/landing").read_text() == "10\n"
    assert "--tier full --sixth 10 " in make("-n", "sixth")


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


@pytest.mark.parametrize("count", [1, 2, 3, 4, 7, 50])
def test_the_workers_get_every_test_once(count: int) -> None:
    """Whatever is to be dealt; each begins with tests that need servers, where there are enough."""
    chance = random.Random(count)
    for _ in range(50):
        items: list[Any] = []
        for number in range(chance.randrange(12)):
            path = Path(f"tests/{chance.choice(['integration', 'unit'])}/test_{number}.py")
            items += [SimpleNamespace(path=path) for _ in range(chance.randrange(1, 9))]
        found = tiers.dealt(items, count)
        assert sorted(map(id, found)) == sorted(map(id, items))
    even = [
        SimpleNamespace(path=Path(f"tests/{folder}/test_{number}.py"))
        for folder in ("integration", "unit")
        for number in range(50)
    ]
    found = tiers.dealt(even, 2)  # type: ignore[arg-type]
    assert ["integration" in item.path.parts for item in found] == ([True] * 25 + [False] * 25) * 2
