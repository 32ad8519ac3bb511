"""What mutmut leaves is named so that it can be judged once: tests/mutants/pure.py."""

import ast
import json
import tomllib
from pathlib import Path

import pytest

from tests.mutants.pure import JUDGED, entries, judged, kind, new_survivors, results, stale
from tests.mutants.run import ROOT

BEFORE = "def f(a: int | None, b):\n    return a is not None and 1 < a and (b or a == b)\n"


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ("is not None", "is None", "IsNot>Is 1"),
        ("1 < a", "1 <= a", "Lt>LtE 1"),
        ("b or a", "b and a", "Or>And 1"),
        ("a == b", "a != b", "Eq>NotEq 1"),
        ("1 <", "2 <", "1>2 1"),
        ("1 < a and", "1 < a or", "And>Or 1"),
    ],
)
def test_a_mutation_is_named_by_what_became_of_what(old: str, new: str, named: str) -> None:
    """And its number, whatever variables are called and how the text is laid out."""
    for text in (BEFORE, BEFORE.replace("a: int | None", "a: str").replace("(b ", "(\nb ")):
        renamed = text.replace("b", "other")
        assert kind(ast.parse(text), ast.parse(text.replace("(\nb", "(b").replace(old, new))) == (
            named
        )
        assert kind(ast.parse(renamed), ast.parse(renamed)) != named


def test_the_second_of_a_kind() -> None:
    """Is told from the first."""
    one = ast.parse("def f(a, b, c):\n    return a < b and b < c\n")
    other = ast.parse("def f(a, b, c):\n    return a < b and b <= c\n")
    assert kind(one, other) == "Lt>LtE 2"


@pytest.fixture
def mutated(tmp_path: Path) -> Path:
    """A folder as mutmut leaves it."""
    path = tmp_path / "binlog" / "sums.py"
    path.parent.mkdir()
    path.write_text(
        "def x_add__mutmut_orig(a, b):\n    return a < b\n"
        "def x_add__mutmut_1(a, b):\n    return a <= b\n"
        "class Sum:\n"
        "    def xǁSumǁadd__mutmut_orig(self):\n        return not self and True\n"
        "    def xǁSumǁadd__mutmut_1(self):\n        return self and True\n"
        "    def xǁSumǁadd__mutmut_2(self):\n        return not self and False\n"
        "    def xǁSumǁadd__mutmut_3(self):\n        return not self or True\n"
    )
    return tmp_path


def noted(mutated: Path, *codes: int | None) -> None:
    """What mutmut notes of them."""
    names = ["x_add__mutmut_1", *(f"xǁSumǁadd__mutmut_{number}" for number in (1, 2, 3))]
    keys = dict(zip((f"binlog2s3.binlog.sums.{name}" for name in names), codes, strict=True))
    (mutated / "binlog/sums.py.meta").write_text(json.dumps({"exit_code_by_key": keys}))


def test_what_nobody_has_judged_is_told(mutated: Path) -> None:
    """As an entry of the file; a whole function can be judged in one entry."""
    noted(mutated, 0, 0, 1, 33)
    found = list(results(mutated))
    assert found == [
        ("binlog.sums:add", "Lt>LtE 1", "survived"),
        ("binlog.sums:Sum.add", "UnaryOp>Name 1", "survived"),
        ("binlog.sums:Sum.add", "True>False 1", "killed"),
        ("binlog.sums:Sum.add", "And>Or 1", "without a test"),
    ]
    known = {"binlog.sums:add": {"Lt>LtE 1": "why"}}
    new = new_survivors(found, known)
    assert new == {"binlog.sums:Sum.add": {"UnaryOp>Name 1": ""}}
    assert tomllib.loads(entries(new)) == new
    assert new_survivors(found, known | {"binlog.sums:Sum.add": {"*": "why"}}) == {}


def test_two_mutations_of_one_condition_are_two(tmp_path: Path) -> None:
    """Whoever has judged the one has not judged the other."""
    path = tmp_path / "sums.py"
    path.write_text(
        "def x_f__mutmut_orig(a, b, c):\n    return a and b and c\n"
        "def x_f__mutmut_1(a, b, c):\n    return a and b or c\n"
        "def x_f__mutmut_2(a, b, c):\n    return a or b and c\n"
    )
    codes = {f"binlog2s3.sums.x_f__mutmut_{number}": 0 for number in (1, 2)}
    path.with_suffix(".py.meta").write_text(json.dumps({"exit_code_by_key": codes}))
    found = list(results(tmp_path))
    assert [what for _, what, _ in found] == ["And>Or 1", "And>Or 1.2"]
    new = new_survivors(found, {"sums:f": {"And>Or 1": "why"}})
    assert new == {"sums:f": {"And>Or 1.2": ""}}


def test_what_survives_no_more_is_told(mutated: Path) -> None:
    """And what is not there."""
    noted(mutated, 1, 0, 1, 1)
    known = {"binlog.sums:add": {"Lt>LtE 1": "why"}, "binlog.sums:Sum.add": {"*": "why"}, "x": {}}
    known["x"] = {"And>Or 1": "why"}
    assert stale(list(results(mutated)), known) == ["binlog.sums:add Lt>LtE 1", "x And>Or 1"]


def test_a_run_that_did_not_come_to_its_end_proves_nothing(mutated: Path) -> None:
    """It is an error, and no survivor is passed over."""
    noted(mutated, 1, 1, None, 1)
    with pytest.raises(ValueError, match="did not come to"):
        list(results(mutated))


def test_every_entry_has_its_reason() -> None:
    """For a function of a module that is there."""
    for where, reasons in judged(ROOT / JUDGED).items():
        module, _, _ = where.partition(":")
        assert (ROOT / f"binlog2s3/{module.replace('.', '/')}.py").is_file(), where
        assert reasons, where
        assert all(len(why) > 10 for why in reasons.values()), where
