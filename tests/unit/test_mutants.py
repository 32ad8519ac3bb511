"""The mutants of tests/mutants fit the tree, and what runs them tells red from broken."""

import ast
import json
import shutil
import tomllib
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.mutants.edits import (
    DoesNotApplyError,
    Edit,
    answers,
    arithmetic,
    becomes,
    call,
    definition,
    gone,
    never,
    operand,
    part,
    returned,
    swapped,
    when,
)
from tests.mutants.mutants import MUTANTS, Mutant, Promise
from tests.mutants.pure import JUDGED, entries, judged, kind, new_survivors, results, stale
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


SUMS = """
def add(one, two):
    if one is None:
        raise ValueError
    if one > 5 and two > 5:
        return two
    note(one)
    return sum([one, two])
"""


def add() -> None:
    """Stands for the function of a tree of its own."""


add.__module__ = "binlog2s3.sums"


def note() -> None:
    """Stands for what it calls."""


@pytest.mark.parametrize(
    "edit",
    [
        never(when()),
        never(when(1, of=3)),
        never(part(when(2, of=2), 1, of=3)),
        gone(call(print)),
        swapped(call(sum), call(note)),
    ],
)
def test_a_place_is_not_guessed(edit: Edit) -> None:
    """What is there more or fewer times than the mutant says does not apply."""
    with pytest.raises(DoesNotApplyError):
        edit(definition(ast.parse(SUMS), add))


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


# What mutmut leaves, judged once

BEFORE = "def f(a: int, b):\n    return a is not None and 1 < a and (b or a == b) and b < a\n"


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ("is not None", "is None", "IsNot>Is 1"),
        ("1 < a", "1 <= a", "Lt>LtE 1"),
        ("b < a", "b <= a", "Lt>LtE 2"),
        ("b or a", "b and a", "Or>And 1"),
        ("1 <", "2 <", "1>2 1"),
    ],
)
def test_a_mutation_is_named_by_what_became_of_what(old: str, new: str, named: str) -> None:
    """And its number, however the text is laid out."""
    for text in (BEFORE, BEFORE.replace("a: int", "a: str").replace("(b ", "(\nb ")):
        assert kind(ast.parse(text), ast.parse(text.replace("(\nb", "(b").replace(old, new))) == (
            named
        )


@pytest.fixture
def mutated(tmp_path: Path) -> SimpleNamespace:
    """A folder as mutmut leaves it, and what writes down how its mutations ended."""
    (tmp_path / "sums.py").write_text(
        "def x_add__mutmut_orig(a, b):\n    return a < b\n"
        "def x_add__mutmut_1(a, b):\n    return a <= b\n"
        "class Sum:\n"
        "    def xǁSumǁadd__mutmut_orig(self, a, b):\n        return self and a and b\n"
        "    def xǁSumǁadd__mutmut_1(self, a, b):\n        return self and a or b\n"
        "    def xǁSumǁadd__mutmut_2(self, a, b):\n        return self or a and b\n"
    )
    names = ["x_add__mutmut_1", "xǁSumǁadd__mutmut_1", "xǁSumǁadd__mutmut_2"]
    keys = [f"binlog2s3.sums.{name}" for name in names]

    def ended(*codes: int | None) -> list[tuple[str, str, str]]:
        noted = {"exit_code_by_key": dict(zip(keys, codes, strict=True))}
        (tmp_path / "sums.py.meta").write_text(json.dumps(noted))
        return list(results(tmp_path))

    return SimpleNamespace(ended=ended)


def test_what_nobody_has_judged_is_told(mutated: SimpleNamespace) -> None:
    """As an entry of the file; two mutations of one condition are two, `*` judges a function."""
    found = mutated.ended(0, 0, 0)
    assert found == [
        ("sums:add", "Lt>LtE 1", "survived"),
        ("sums:Sum.add", "And>Or 1", "survived"),
        ("sums:Sum.add", "And>Or 1.2", "survived"),
    ]
    known = {"sums:add": {"Lt>LtE 1": "why"}, "sums:Sum.add": {"And>Or 1": "why"}}
    new = new_survivors(found, known)
    assert new == {"sums:Sum.add": {"And>Or 1.2": ""}}
    assert tomllib.loads(entries(new)) == new
    assert new_survivors(found, known | {"sums:Sum.add": {"*": "why"}}) == {}


def test_what_survives_no_more_is_told(mutated: SimpleNamespace) -> None:
    """And what is not there; a run that did not come to its end proves nothing."""
    known = {"sums:add": {"Lt>LtE 1": "why"}, "sums:Sum.add": {"*": "why"}, "x": {"Or>And 1": "w"}}
    assert stale(mutated.ended(1, 0, 1), known) == ["sums:add Lt>LtE 1", "x Or>And 1"]
    with pytest.raises(ValueError, match="did not come to"):
        mutated.ended(1, 1, None)


def test_every_entry_has_its_reason() -> None:
    """For a function of a module that is there."""
    for where, reasons in judged(ROOT / JUDGED).items():
        module, _, _ = where.partition(":")
        assert (ROOT / f"binlog2s3/{module.replace('.', '/')}.py").is_file(), where
        assert reasons, where
        assert all(len(why) > 10 for why in reasons.values()), where
