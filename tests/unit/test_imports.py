"""Who may import what: dependencies point one way, and foreign libraries have a room each."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

import binlog2s3

PACKAGE = Path(binlog2s3.__file__).parent

# The rule: a module may import its own package and those before it; "" are the modules at the root.
ORDER = (
    {""},
    {"binlog"},
    {"store"},
    {"config"},
    {"server"},
    {"archive"},
    {"status"},
    {"replication"},
    {"stream", "recover", "inspect"},
    {"serve", "retain", "undo"},
    {"restore", "report"},
    {"drill"},
    {"cli"},
)
# `inspect` looks with the eyes of those that it looks for; nothing else goes sideways.
SIDEWAYS = {
    "recover": {"backup", "model", "origin", "plan", "progress", "route", "snapshot"},
    "stream": {"continuation", "remote", "spool", "start", "telling"},
}
ROOMS = {
    "awscrt": {"binlog"},
    "botocore": {"store"},
    "click": {"cli"},
    "jinja2": {"report"},
    "msgspec": {"archive"},
    "prometheus_client": {"serve", "status"},
    "pymysql": {"server"},
    "rich": {"", "cli"},
    "tenacity": {"store"},
    "zstandard": {"binlog"},
    "cryptography": {"replication", "server"},
}
NOT_PURE = {"os", "io", "socket", "subprocess", "threading", "time", "logging", "random", "secrets"}
LEVEL = {package: level for level, packages in enumerate(ORDER) for package in packages}


def name_of(path: Path) -> str:
    """`stream.tail`; a package has the name of its folder."""
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__")


MODULES = {name_of(path): path for path in sorted(PACKAGE.rglob("*.py"))}


def package_of(module: str) -> str:
    """The package at the top that a module is in; `__main__` counts as the command line."""
    return "cli" if module == "__main__" else module.rpartition(".")[0].partition(".")[0]


@cache
def imports(module: str) -> frozenset[str]:
    """The modules that a module names, ours without `binlog2s3.`, foreign ones by their library."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(MODULES[module].read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports are not used here"
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            names = {n for n in inner if n.removeprefix("binlog2s3.") in MODULES}
            names |= {str(node.module)} if len(names) < len(inner) else set()
        else:
            continue
        found |= {
            n.removeprefix("binlog2s3.") if n.startswith("binlog2s3.") else n.partition(".")[0]
            for n in names
        }
    return frozenset(found)


def ours(module: str) -> set[str]:
    """Those of this program."""
    return {name for name in imports(module) if name in MODULES}


def may_import(module: str, other: str) -> bool:
    """As the rule says."""
    package, others = package_of(module), package_of(other)
    if package == "inspect" and other.removeprefix(f"{others}.") in SIDEWAYS.get(others, set()):
        return True
    return package == others or LEVEL[others] < LEVEL[package]


def test_every_package_has_its_place() -> None:
    """A new one wants a place in the order; and names that nothing imports are none."""
    packages = {package_of(module) for module in MODULES if module != "binlog2s3"}
    packages |= {module for module in MODULES if MODULES[module].name == "__init__.py"} - {
        module for module in MODULES if "." in module
    }
    assert packages - {"__init__"} == set(LEVEL)


@pytest.mark.parametrize("module", MODULES)
def test_dependencies_point_one_way(module: str) -> None:
    """From the command line down to the errors; never up, and sideways as it is listed."""
    assert [other for other in sorted(ours(module)) if not may_import(module, other)] == []


def test_what_goes_sideways_does() -> None:
    """The list is not longer than it has to be."""
    named = {name for module in MODULES if package_of(module) == "inspect" for name in ours(module)}
    assert {package: {n for n in names if f"{package}.{n}" in named}
            for package, names in SIDEWAYS.items()} == SIDEWAYS  # fmt: skip


def test_there_are_no_cycles() -> None:
    """Not within a package either: the modules can be put in one line."""
    left, placed = set(MODULES), set[str]()
    while left:
        ready = {module for module in left if ours(module) - {module} <= placed}
        assert ready, f"a cycle among {sorted(left)}"
        placed |= ready
        left -= ready


@pytest.mark.parametrize("library", ROOMS)
def test_a_library_has_its_room(library: str) -> None:
    """Foreign exceptions and habits stay there."""
    assert {package_of(m) for m in MODULES if library in imports(m)} == ROOMS[library]


CLAIM = re.compile(r"\bpure\b|\bNo I/O\b|\bValues only\b", re.IGNORECASE)


@pytest.mark.parametrize(
    "module",
    [m for m, path in MODULES.items()
     if CLAIM.search(ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "")],
)  # fmt: skip
def test_what_says_that_it_is_pure_has_no_way_out(module: str) -> None:
    """No files, no clock, no threads, no log: it takes values and returns values."""
    assert imports(module) & (NOT_PURE | {"log"}) == set()


@pytest.mark.parametrize("module", [module for module in MODULES if package_of(module) == "stream"])
def test_a_log_lines_part_is_its_module(module: str) -> None:
    """From a line of the streamer's log one finds the file."""
    parts = re.findall(r'\bLog\("(.*?)"\)', MODULES[module].read_text(encoding="utf-8"))
    assert parts in ([], [module.partition(".")[2]])


ARCHITECTURE = (PACKAGE.parent / "docs/architecture.md").read_text(encoding="utf-8")
SPANS = sorted(set(re.findall(r"`([\w/.]+)`", re.sub(r"(?ms)^```.*?^```$", "", ARCHITECTURE))))


def defined(module: str) -> set[str]:
    """The classes of a module, and its functions; a method as `Class.method`."""
    names = set[str]()
    for node in ast.parse(MODULES[module].read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            names.add(node.name)
            names |= {
                f"{node.name}.{inner.name}"
                for inner in getattr(node, "body", ())
                if isinstance(inner, ast.FunctionDef)
            }
    return names


def test_the_architecture_has_the_order_of_the_packages() -> None:
    """As it is checked here."""
    text = ARCHITECTURE.partition("in this order:")[2].partition(".")[0]
    levels = [
        {"" if name.strip() == "root" else name.strip() for name in level.split(",")}
        for level in text.split("<")
    ]
    assert levels == list(ORDER)


def test_the_architecture_names_modules_and_types_that_exist() -> None:
    """Who follows a name from there finds it: a path, a class, a method."""
    names = set[str]().union(*map(defined, MODULES))
    modules = {name.replace(".", "/") for name in MODULES}
    paths = [span for span in SPANS if "/" in span and not span.endswith("/")]
    types = [span for span in SPANS if span[0].isupper()]
    assert len(paths) > 20
    assert len(types) > 10
    assert [path for path in paths if path not in modules] == []
    assert [name for name in types if name not in names] == []
