"""The mutants of tests/mutants fit the tree, and what runs them tells red from broken."""

import ast
import importlib.util
import shutil
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.mutants.edits import (
    DoesNotApplyError,
    Edit,
    always,
    answers,
    arithmetic,
    becomes,
    call,
    choice,
    compared,
    comparison,
    definition,
    gone,
    keyword,
    loop,
    never,
    operand,
    part,
    reads,
    receiver,
    returned,
    swapped,
    when,
)
from tests.mutants.mutants import MUTANTS, Mutant, Promise
from tests.mutants.run import ROOT, Run, changed, check, exists, judge

TEST = "tests/test_sums.py::test_sums"
Outcomes = Mapping[str, Mapping[str, str]]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_fits_the_tree(mutant: Mutant) -> None:
    """It changes the package, what comes of it can be compiled, and its tests are there."""
    files = changed(mutant, ROOT)
    for path, text in files.items():
        assert path.parts[0] == "binlog2s3"
        assert text != ast.unparse(ast.parse((ROOT / path).read_text(encoding="utf-8")))
        compile(text, str(path), "exec")
    assert files
    assert mutant.tests
    assert [test for test in mutant.tests if not exists(test, ROOT)] == []


def test_safeguards_are_named_once() -> None:
    """In one sentence each, and so is each mutant; each promise has one."""
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)
    said = [mutant.safeguard for mutant in MUTANTS]
    assert len(set(said)) == len(said)
    assert all(text.endswith(".") for text in said)
    assert {mutant.promise for mutant in MUTANTS} == set(Promise)


@pytest.mark.parametrize("promise", Promise)
def test_a_promise_is_given_in_its_document(promise: Promise) -> None:
    """In bold."""
    document, words = promise.value
    text = " ".join((ROOT / document).read_text(encoding="utf-8").split())
    assert f"**{words}" in text


# What an edit does, to a module of its own

SUMS = """
def add(one, two, *, most=None):
    if one is None:
        raise ValueError
    if one > 5 and two > 5:
        return most
    while one and two:
        note(one, most=2)
        write(two)
        break
    return sum([one, two + 0], start=one.real.bit_length() if two else 0)

def note(one, most): ...
def write(one): ...
"""


@pytest.fixture(scope="module")
def sums(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    """The module."""
    path = tmp_path_factory.mktemp("sums") / "sums.py"
    path.write_text(SUMS)
    spec = importlib.util.spec_from_file_location("sums", path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


EDITS: list[tuple[Any, str, str]] = [
    (lambda _: never(when(2, of=2)), "if one > 5 and two > 5:", "if False:"),
    (lambda _: never(part(when(2, of=2), 2, of=2)), "and two > 5", "and False"),
    (lambda _: always(loop()), "while one and two:", "while True:"),
    (lambda _: always(part(loop(), 1, of=2)), "while one and", "while True and"),
    (lambda _: always(comparison(2, of=3)), "one > 5 and", "True and"),
    (lambda _: never(choice()), "if two else", "if False else"),
    (lambda _: becomes(returned(1, of=2), "7"), "return most", "return 7"),
    (lambda _: operand(arithmetic(), 1), "two + 0", "two"),
    (lambda _: operand(call(sum), 1), "sum([", "["),
    (lambda m: gone(call(m.note)), "note(one, most=2)", "pass"),
    (lambda m: keyword(call(m.note), most=None), "(one, most=2)", "(one)"),
    (lambda m: keyword(call(m.note), most="3"), "most=2", "most=3"),
    (lambda _: compared(comparison(2, of=3), ast.Lt()), "one > 5", "one < 5"),
    (lambda _: reads("real", "imag"), "one.real", "one.imag"),
    (lambda _: receiver(call(int.bit_length)), ".bit_length()", ""),
]  # fmt: skip


@pytest.mark.parametrize(("edit", "old", "new"), EDITS, ids=[old for _, old, _ in EDITS])
def test_an_edit_changes_its_place_alone(edit: Any, old: str, new: str, sums: ModuleType) -> None:
    """Whatever the variables are called, and however the text is laid out."""
    for text in (SUMS, SUMS.replace("two", "second").replace("5 and", "5 and \\\n")):
        tree = ast.parse(text)
        before = ast.unparse(tree)
        edit(sums)(definition(tree, sums.add))
        old_here, new_here = (one.replace("two", "second") if text != SUMS else one
                              for one in (old, new))  # fmt: skip
        wanted = before.replace(old_here, new_here)
        if old == "sum([":
            start = before.index("sum([")
            wanted = before[:start] + before[start:].partition("sum(")[2].partition("]")[0] + "]"
            wanted += before[before.index("\n", start) :]
        assert wanted != before
        assert ast.unparse(ast.fix_missing_locations(tree)) == wanted


def test_statements_change_places(sums: ModuleType) -> None:
    """Of one block; and a function's answer stands for all of it."""
    tree = ast.parse(SUMS)
    swapped(call(sums.note), call(sums.write))(definition(tree, sums.add))
    text = ast.unparse(tree)
    assert text.index("write(two)") < text.index("note(one")
    answers("4")(definition(tree, sums.add))
    assert ast.unparse(definition(tree, sums.add).body[0]) == "return 4"


def test_a_place_is_not_guessed(sums: ModuleType) -> None:
    """What is there more or fewer times than the mutant says does not apply."""
    edits: list[Edit] = [
        never(when()),
        never(when(1, of=3)),
        never(part(when(2, of=2), 1, of=3)),
        gone(call(sum)),
        gone(call(print)),
        keyword(call(sums.note), least="1"),
        swapped(call(sums.write), call(sums.note)),
        swapped(call(sums.note), call(sum)),
        reads("imag", "real"),
    ]
    for edit in edits:
        with pytest.raises(DoesNotApplyError):
            edit(definition(ast.parse(SUMS), sums.add))
    with pytest.raises(DoesNotApplyError):
        definition(ast.parse("def other(): ..."), sums.add)


# A tree of its own


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


def add() -> None:
    """Stands for the function of that tree."""


add.__module__ = "binlog2s3.sums"


def mutant(name: str, edit: Edit, *tests: str) -> Mutant:
    """A mutant of the function of that tree."""
    return Mutant(name, Promise.FILE, "Sums are right.", tests or (TEST,), ((add, edit),))


def test_each_mutant_is_run_in_a_copy(tree: Path) -> None:
    """Caught is what its test misses by itself; all else survives, or is broken."""
    cases = {
        "caught": (mutant("caught", operand(arithmetic(), 1)), "AssertionError: assert 1 == "),
        "survives": (mutant("survives", answers("one + two")), "stays green"),
        "spoiled": (mutant("spoiled", becomes(returned(), "tow")), "NameError"),
        "elsewhere": (mutant("elsewhere", never(when())), "0 times if"),
        "no-test": (mutant("no-test", answers("1"), f"{TEST}_of_many"), "there is no"),
        "no-file": (mutant("no-file", answers("1"), "tests/test_no.py::test_no"), "there is no"),
    }
    chosen = [one for one, _ in cases.values()]
    verdicts = dict(zip(cases, check(tree, chosen, jobs=2, seconds=600), strict=True))
    results = {name: verdict.result for name, verdict in verdicts.items()}
    known = {"caught": "caught", "survives": "survives"}
    assert results == dict.fromkeys(cases, "broken") | known
    for name, (_, words) in cases.items():
        assert words in verdicts[name].why, (name, verdicts[name].why)
    text = (tree / "binlog2s3/sums.py").read_text()
    assert text.endswith("return one + two\n"), "only copies change"


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
    one = mutant("m", answers("1"), TEST, OTHER)
    assert judge(one, Run(mutated), Run(without)).result == result
    assert judge(one, Run({}, "no end within 9 s"), Run(without)).result == "broken"
