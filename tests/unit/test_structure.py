"""The sizes and names that keep the program easy to find one's way in."""

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MOST_LINES = 500
MOST_METHODS = 20


def sources(*folders: str) -> list[Path]:
    """The Python files below these folders."""
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def classes(*folders: str) -> Iterator[tuple[Path, ast.ClassDef]]:
    """All classes below these folders, also those in functions."""
    for path in sources(*folders):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                yield path.relative_to(ROOT), node


def test_each_class_has_a_name_of_its_own() -> None:
    """A name means one thing in the whole package."""
    counts = Counter(node.name for _, node in classes("binlog2s3"))
    assert [name for name, count in counts.items() if count > 1] == []


@pytest.mark.parametrize("folder", ["binlog2s3", "bench", "lab"])
def test_no_module_is_too_long(folder: str) -> None:
    """Split it by what it does, or remove a mechanism."""
    counts = {path: path.read_bytes().count(b"\n") for path in sources(folder)}
    assert {str(path): lines for path, lines in counts.items() if lines > MOST_LINES} == {}


def test_a_large_class_says_why() -> None:
    """The docstring of a class with more than 20 methods says why it has so many methods."""
    silent = [
        f"{path}: {node.name}"
        for path, node in classes("binlog2s3", "bench", "lab", "tests")
        if sum(isinstance(one, ast.FunctionDef) for one in node.body) > MOST_METHODS
        and "method" not in (ast.get_docstring(node) or "")
    ]
    assert silent == []
