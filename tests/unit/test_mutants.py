"""The mutants of tests/mutants fit the tree, and what runs them tells red from broken."""

import ast
import io
import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest
from rich.console import Console

from tests.mutants.run import (
    LIST,
    ROOT,
    Change,
    Mutant,
    Run,
    changed,
    check,
    exists,
    judge,
    mutants,
)

ALL = mutants(ROOT / LIST)
TEST = "tests/test_sums.py::test_sums"
Outcomes = Mapping[str, Mapping[str, str]]


@pytest.mark.parametrize("mutant", ALL, ids=lambda mutant: mutant.name)
def test_a_mutant_fits_the_tree(mutant: Mutant) -> None:
    """It changes the package alone, what comes of it can be compiled, and its tests are there."""
    files = changed(mutant.changes, ROOT)
    for path, text in files.items():
        assert path.parts[0] == "binlog2s3"
        assert text != (ROOT / path).read_text(encoding="utf-8")
        ast.parse(text)
    assert mutant.tests
    assert [test for test in mutant.tests if not exists(test, ROOT)] == []


def test_safeguards_are_named_once() -> None:
    """In one sentence each; and so is each mutant."""
    assert len({mutant.name for mutant in ALL}) == len(ALL)
    said = [mutant.safeguard for mutant in ALL]
    assert len(said) >= 45
    assert len(set(said)) == len(said)
    assert all(text.endswith(".") for text in said)


# A tree of its own


SUMS = "binlog2s3/sums.py"


def mutant(name: str, old: str, new: str, *, test: str = TEST) -> str:
    """A mutant of one change, as it stands in a list."""
    return (
        f'[[mutant]]\nname = "{name}"\nsafeguard = "Sums are right."\ntests = ["{test}"]\n'
        f'[[mutant.change]]\nfile = "{SUMS}"\n'
        f"find = {json.dumps(old)}\nreplace = {json.dumps(new)}\n"
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
    right, wrong = "one + two", "one - two"
    cases = {
        "caught": mutant("caught", right, wrong),
        "survives": mutant("survives", right, "two + one"),
        "spoiled": mutant("spoiled", right, "tow"),
        "no-python": mutant("no-python", right, "("),
        "elsewhere": mutant("elsewhere", "return 4", wrong),
        "no-test": mutant("no-test", right, wrong, test="tests/test_sums.py::test_products"),
        "no-file": mutant("no-file", right, wrong, test="tests/test_products.py::test_sums"),
    }
    path = tmp_path_factory.mktemp("list") / "mutants.toml"
    path.write_text("\n".join(cases.values()))
    chosen = mutants(path)
    said = io.StringIO()
    verdicts = check(tree, chosen, jobs=2, seconds=600, console=Console(file=said, width=200))
    results = {name: verdict.result for name, verdict in verdicts.items()}
    assert results == dict.fromkeys(cases, "broken") | {
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
    assert (tree / "binlog2s3/sums.py").read_text().endswith(f"return {right}\n"), (
        "only copies change"
    )


PASSED, FAILED, ERROR, SKIPPED = (
    {"outcome": outcome, "kind": "AssertionError", "why": "it was 3"}
    for outcome in ("passed", "failed", "error", "skipped")
)
SPOILED = {"outcome": "failed", "kind": "ImportError", "why": "no sums"}
OTHER = "tests/test_sums.py::test_products"


@pytest.mark.parametrize(
    ("mutated", "without", "result"),
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
def test_what_is_red(mutated: Outcomes, without: Outcomes, result: str) -> None:
    """Every test that is named fails by itself with the change, and passes without."""
    mutant = Mutant(name="m", safeguard="S.", tests=(TEST, OTHER), changes=())
    assert judge(mutant, Run(mutated), Run(without)).result == result
    assert judge(mutant, Run({}, "no end within 9 s"), Run(without)).result == "broken"


WHOLE = mutant("one", "a", "b")


@pytest.mark.parametrize(
    "text",
    ["", "[[mutant", 'mutant = ["one"]']
    + [WHOLE.replace(word, f"no_{word}") for word in ("name", "safeguard", "tests", "find")]
    + [WHOLE.replace("mutant.change", "mutant.patch"), f'{WHOLE}times = "2"\n'],
)
def test_a_list_that_is_not_whole_is_an_error(text: str, tmp_path: Path) -> None:
    """By its name."""
    (tmp_path / "list.toml").write_text(text)
    with pytest.raises(ValueError, match=r"list\.toml"):
        mutants(tmp_path / "list.toml")


def test_what_a_list_says_is_read(tmp_path: Path) -> None:
    """In its order."""
    (tmp_path / "list.toml").write_text(mutant("two", "a", "b") + mutant("one", "b", "a"))
    two, one = mutants(tmp_path / "list.toml")
    assert (two.name, two.safeguard, two.tests) == ("two", "Sums are right.", (TEST,))
    assert (two.changes, one.name) == ((Change(SUMS, "a", "b"),), "one")


def test_a_text_that_is_there_twice_is_not_guessed(tmp_path: Path) -> None:
    """Nor one in a file that is not there; changes are made one behind the other."""
    path = tmp_path / SUMS
    path.parent.mkdir()
    path.write_text("a\na\n")
    change = Change(SUMS, "a", "b")
    with pytest.raises(ValueError, match="2 times"):
        changed([change], tmp_path)
    path.write_text("a\n")
    assert changed([change, Change(SUMS, "b", "c")], tmp_path) == {Path(SUMS): "c\n"}
    path.unlink()
    with pytest.raises(ValueError, match="0 times"):
        changed([change], tmp_path)
