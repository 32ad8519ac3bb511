"""The mutants of tests/mutants fit the tree and the documents."""

import ast

import pytest

from tests.mutants.mutants import MUTANTS, Mutant, Promise
from tests.mutants.pure import JUDGED, judged
from tests.mutants.run import ROOT, changed, exists


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


# What mutmut leaves, judged once


def test_every_entry_has_its_reason() -> None:
    """For a function of a module that is there."""
    for where, reasons in judged(ROOT / JUDGED).items():
        module, _, _ = where.partition(":")
        assert (ROOT / f"binlog2s3/{module.replace('.', '/')}.py").is_file(), where
        assert reasons, where
        assert all(len(why) > 10 for why in reasons.values()), where
