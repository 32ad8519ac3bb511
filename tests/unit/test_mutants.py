"""The patches of tests/mutants fit the tree, and what runs them tells red from broken."""

import ast
import io
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest
from rich.console import Console

from tests.mutants.run import (
    BEGIN,
    DOCUMENT,
    END,
    ROOT,
    Mutant,
    Run,
    check,
    exists,
    judge,
    listed,
    mutants,
    patched,
    read,
    written,
)

ALL = mutants(ROOT / "tests/mutants")
TEST = "tests/test_sums.py::test_sums"
Outcomes = Mapping[str, Mapping[str, str]]


@pytest.mark.parametrize("mutant", ALL, ids=lambda mutant: mutant.name)
def test_a_patch_fits_the_tree(mutant: Mutant) -> None:
    """It changes the package alone, what comes of it can be compiled, and its tests are there."""
    files = patched(mutant.diff, ROOT)
    for path, text in files.items():
        assert path.parent == Path("binlog2s3")
        assert text != (ROOT / path).read_text(encoding="utf-8")
        ast.parse(text)
    assert mutant.tests
    assert [test for test in mutant.tests if not exists(test, ROOT)] == []


def test_safeguards_are_named_once() -> None:
    """In one sentence each, which fits into a table."""
    said = [mutant.safeguard for mutant in ALL]
    assert len(said) >= 45
    assert len(set(said)) == len(said)
    assert all(text.endswith(".") and "|" not in text for text in said)


def test_the_document_lists_them_all() -> None:
    """Otherwise: `python -m tests.mutants.run --write`."""
    text = (ROOT / DOCUMENT).read_text(encoding="utf-8")
    assert written(text, ALL) == text


def test_a_document_without_a_place_for_the_list() -> None:
    """It is not guessed where that might be."""
    with pytest.raises(ValueError, match="lacks"):
        written("# Reliability\n", ALL)
    assert (
        written(f"a\n{BEGIN}\nold\n{END}\nb\n", []) == f"a\n{BEGIN}\n\n{listed([])}\n\n{END}\nb\n"
    )


# A tree of its own


def patch(old: str, new: str, *, test: str = TEST, path: str = "binlog2s3/sums.py") -> str:
    """A patch of one line, with a head."""
    return (
        f"safeguard: Sums are\n    right.\ntest: {test}\n\n"
        f"diff --git a/{path} b/{path}\n--- a/{path}\n+++ b/{path}\n"
        f"@@ -1,2 +1,2 @@\n def add(one, two):\n-{old}\n+{new}\n"
    )


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A package of one function, with a test of it."""
    (tmp_path / "binlog2s3").mkdir()
    (tmp_path / "binlog2s3/__init__.py").touch()
    (tmp_path / "binlog2s3/sums.py").write_text("def add(one, two):\n    return one + two\n")
    (tmp_path / "tests/mutants").mkdir(parents=True)
    shutil.copy(ROOT / "tests/mutants/record.py", tmp_path / "tests/mutants/record.py")
    (tmp_path / "tests/test_sums.py").write_text(
        "import pytest\n"
        "from binlog2s3 import sums\n\n"
        "@pytest.mark.parametrize('two', [0, 2])\n"
        "def test_sums(two):\n"
        "    assert sums.add(1, two) == 1 + two\n"
    )
    (tmp_path / "pyproject.toml").write_text('[tool.pytest.ini_options]\npythonpath = ["."]\n')
    return tmp_path


def test_each_mutant_is_run_in_a_copy(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Caught is what its test misses by itself; all else survives, or is broken."""
    right, wrong = "    return one + two", "    return one - two"
    patches = {
        "caught": patch(right, wrong),
        "survives": patch(right, "    return two + one"),
        "spoiled": patch(right, "    return tow"),
        "no-python": patch(right, "    return ("),
        "elsewhere": patch("    return 4", wrong),
        "no-test": patch(right, wrong, test="tests/test_sums.py::test_products"),
        "no-file": patch(right, wrong, test="tests/test_products.py::test_sums"),
    }
    folder = tmp_path_factory.mktemp("patches")
    for name, text in patches.items():
        (folder / f"{name}.patch").write_text(text)
    chosen = mutants(folder)
    said = io.StringIO()
    verdicts = check(tree, chosen, jobs=2, seconds=600, console=Console(file=said, width=200))
    results = {name: verdict.result for name, verdict in verdicts.items()}
    assert results == dict.fromkeys(sorted(patches), "broken") | {
        "caught": "caught",
        "survives": "survives",
    }
    assert verdicts["caught"].why.startswith("AssertionError: assert -1 == (1 + 2)")
    for name, words in {
        "survives": "stays green",
        "spoiled": "NameError",
        "no-python": "never closed",
        "elsewhere": "does not apply",
        "no-test": "there is no",
        "no-file": "there is no",
    }.items():
        assert re.search(words, verdicts[name].why), (name, verdicts[name].why)
    assert (tree / "binlog2s3/sums.py").read_text().endswith(f"{right}\n"), "only copies change"


PASSED, FAILED, ERROR, SKIPPED = (
    {"outcome": outcome, "kind": "AssertionError", "why": "it was 3"}
    for outcome in ("passed", "failed", "error", "skipped")
)
SPOILED = {"outcome": "failed", "kind": "ImportError", "why": "no sums"}
OTHER = "tests/test_sums.py::test_products"


@pytest.mark.parametrize(
    ("with_patch", "without", "result"),
    [
        ({TEST: FAILED, OTHER: FAILED}, {TEST: PASSED, OTHER: PASSED}, "caught"),
        ({TEST: FAILED, OTHER: PASSED}, {TEST: PASSED, OTHER: PASSED}, "survives"),
        ({TEST: FAILED, OTHER: SPOILED}, {TEST: PASSED, OTHER: PASSED}, "broken"),
        ({TEST: FAILED, OTHER: ERROR}, {TEST: PASSED, OTHER: PASSED}, "broken"),
        ({TEST: FAILED, OTHER: SKIPPED}, {TEST: PASSED, OTHER: PASSED}, "broken"),
        ({TEST: FAILED}, {TEST: PASSED, OTHER: PASSED}, "broken"),
        ({TEST: FAILED, OTHER: FAILED}, {TEST: PASSED, OTHER: FAILED}, "broken"),
        ({TEST: FAILED, OTHER: FAILED}, {TEST: PASSED, OTHER: SKIPPED}, "broken"),
        ({TEST: FAILED, OTHER: FAILED}, {TEST: PASSED}, "broken"),
        # one case of several that is red is enough; all of them have to be green without
        (
            {f"{TEST}[0]": PASSED, f"{TEST}[2]": FAILED, OTHER: FAILED},
            {f"{TEST}[0]": PASSED, f"{TEST}[2]": PASSED, OTHER: PASSED},
            "caught",
        ),
        (
            {f"{TEST}[0]": PASSED, f"{TEST}[2]": FAILED, OTHER: FAILED},
            {f"{TEST}[0]": FAILED, f"{TEST}[2]": PASSED, OTHER: PASSED},
            "broken",
        ),
        ({f"{TEST}_of_many": FAILED, OTHER: FAILED}, {TEST: PASSED, OTHER: PASSED}, "broken"),
    ],
)
def test_what_is_red(with_patch: Outcomes, without: Outcomes, result: str) -> None:
    """Every test that is named fails by itself with the patch, and passes without."""
    mutant = Mutant(name="m", safeguard="S.", tests=(TEST, OTHER), diff="")
    assert judge(mutant, Run(with_patch), Run(without)).result == result
    assert judge(mutant, Run({}, "no end within 9 s"), Run(without)).result == "broken"


@pytest.mark.parametrize(
    "text",
    ["", "safeguard: S.\n\ndiff --git a/x b/x\n", "test: t\n\ndiff --git a/x b/x\n",
     "safeguard: S.\ntest: t\n"],
)  # fmt: skip
def test_a_patch_without_a_head_is_an_error(text: str, tmp_path: Path) -> None:
    """By its name."""
    (tmp_path / "one.patch").write_text(text)
    with pytest.raises(ValueError, match=r"one\.patch"):
        read(tmp_path / "one.patch")


def test_what_a_patch_says_is_read(tmp_path: Path) -> None:
    """Also over several lines."""
    (tmp_path / "one.patch").write_text(patch("a", "b"))
    found = read(tmp_path / "one.patch")
    assert (found.name, found.safeguard, found.tests) == ("one", "Sums are right.", (TEST,))
    assert found.diff.startswith("diff --git a/binlog2s3/sums.py")


def test_lines_that_are_there_twice_are_not_guessed(tmp_path: Path) -> None:
    """Nor is a patch taken that changes nothing, or a file that is not there."""
    (tmp_path / "binlog2s3").mkdir()
    path = tmp_path / "binlog2s3/sums.py"
    path.write_text("def add(one, two):\n    a\n" * 2)
    diff = patch("    a", "    b").partition("\n\n")[2]
    with pytest.raises(ValueError, match="2 times"):
        patched(diff, tmp_path)
    with pytest.raises(ValueError, match="changes nothing"):
        patched("diff --git a/x b/x\n", tmp_path)
    path.unlink()
    with pytest.raises(ValueError, match="0 times"):
        patched(diff, tmp_path)
