"""Who may import what: foreign libraries have one room each, and dependencies point one way."""

import ast
from functools import cache
from pathlib import Path

import pytest

import binlog2s3

PACKAGE = Path(binlog2s3.__file__).parent

# Each layer may import those below it, and its own modules, as long as there is no cycle.
LAYERS = (
    {"__main__"},
    {"cli", "examples"},
    {"daemon", "pitr", "preflight_run", "find"},
    {"beginning"},
    {"ending"},
    {"verify"},
    {"verify_one", "verify_source", "verify_view"},
    {"verify_walk", "verify_answer", "verify_deep", "verify_repair"},
    {"verify_open", "verify_parent", "verify_stock"},
    {"verify_chain", "verify_entry", "verify_report"},
    {"apply"},
    {"standing"},
    {"listing_view", "status_view"},
    {"find_progress", "find_view"},
    {"board", "status_watch", "export", "pitr_view", "progress"},
    {"preflight_view"},
    {"endpoint", "deadman", "notify", "status_text"},
    {"search"},
    {"past"},
    {"survey", "extract"},
    {"supervisor", "listing", "overview", "extent", "lifesign"},
    {"pipe", "relay"},
    {"relay_mysql", "relay_mariadb"},
    {"relay_obstacle", "mariadb_obstacle"},
    {"mariadb_channel", "relay_ledger"},
    {"decoder", "client", "target"},
    {"plan"},
    {"stop", "choice", "skip", "haystack", "agenda"},
    {"route"},
    {"relay_batch", "relay_channel", "relay_cut"},
    {"ancestry", "executed", "blocks", "trace"},
    {"advice", "relay_files", "relay_log"},
    {"pressure"},
    {"course", "intake"},
    {"start", "fork", "writer", "watch"},
    {"history"},
    {"uploader"},
    {"job"},
    {"place", "coverage"},
    {"tailer"},
    {"check", "metrics"},
    {
        "preflight_archive",
        "preflight_bucket",
        "preflight_probes",
        "preflight_source",
        "preflight_spool",
    },
    {"preflight", "preflight_rules", "preflight_settings"},
    {"status", "pitr_config", "find_config", "verify_config", "manual", "sample"},
    {"known", "recovery", "sought", "named"},
    {"catalog", "documents", "reader", "backup"},
    {
        "server",
        "mysqlbinlog",
        "spool",
        "punch",
        "store",
        "store_quick",
        "store_requests",
        "store_errors",
        "store_settings",
        "workers",
    },
    {"child"},
    {"bucket", "login"},
    {"log", "config", "page"},
    {"pitr_options", "find_options", "verify_options"},
    {"options", "status_options"},
    {"points"},
    {"store_contract"},
    {"dump_header"},
    {"backup_format"},
    {"about", "quick", "sieve"},
    {"content"},
    {"exchange", "signature"},
    {"rows", "payload", "statement"},
    {
        "archive",
        "binlog",
        "checksum",
        "chunk",
        "commits",
        "event",
        "grid",
        "gtid",
        "names",
        "transaction",
    },
    {"errors", "timing", "__init__"},
)
ROOMS = {
    "boto3": {"store_requests"},
    "botocore": {"store_requests", "store_quick"},  # quick: signs and sends as boto3 just did
    "urllib3": {"store_requests"},
    "tenacity": {"store_requests", "supervisor"},
    "pymysql": {"server"},
    "click": {"cli"},
    "rich": {"page", "progress", "status_watch", "find_progress"},
    "awscrt": {"checksum", "signature"},
    "prometheus_client": {"metrics"},
    "zstandard": {"backup", "payload"},
}
PURE = ("about", "find_options", "named", "quick", "sieve", "sought", "advice", "ancestry",
        "archive", "backup_format", "binlog", "check", "choice", "chunk", "commits", "content",
        "documents", "dump_header", "event", "examples", "executed", "extent", "grid", "gtid",
        "history", "known", "manual", "names", "sample",
        "options", "payload", "pitr_options", "plan", "points", "recovery", "route", "preflight",
        "preflight_rules", "preflight_settings", "relay_cut", "relay_log", "rows", "skip",
        "statement", "stop", "trace", "transaction", "verify_chain", "verify_entry",
        "timing", "verify_options", "verify_parent", "verify_report", "errors")  # fmt: skip
NOT_PURE = {"os", "io", "socket", "subprocess", "threading", "time", "logging", "random", "secrets"}


@cache
def imports(module: str) -> frozenset[str]:
    """The modules that a module of the package names, ours as `binlog2s3.x`, lazy ones too."""
    tree = ast.parse((PACKAGE / f"{module}.py").read_text(encoding="utf-8"))
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports are not used here"
            assert node.module is not None
            if node.module == "binlog2s3":
                names = {alias.name for alias in node.names}
                found |= {f"binlog2s3.{n if n in MODULES else '__init__'}" for n in names}
            else:
                found.add(node.module)
    return frozenset(found)


MODULES = sorted(path.stem for path in PACKAGE.glob("*.py"))
OURS = {
    module: {
        name.removeprefix("binlog2s3.") for name in imports(module) if name.startswith("binlog2s3.")
    }
    for module in MODULES
}
LEVEL = {module: level for level, layer in enumerate(LAYERS) for module in layer}


def test_every_module_has_a_layer() -> None:
    """A new module wants a place in the order, and the package stays flat."""
    assert sorted(LEVEL) == MODULES
    assert not [path for path in PACKAGE.iterdir() if path.is_dir() and path.name != "__pycache__"]


@pytest.mark.parametrize("library", ROOMS)
def test_a_library_has_its_room(library: str) -> None:
    """Foreign exceptions and habits stay there."""
    rooms = {
        module
        for module in MODULES
        if any(name.split(".")[0] == library for name in imports(module))
    }
    assert rooms == ROOMS[library]


@pytest.mark.parametrize("module", MODULES)
def test_dependencies_point_one_way(module: str) -> None:
    """From the command line down to the errors; never up."""
    upwards = {name for name in OURS[module] if LEVEL[name] < LEVEL[module]}
    assert upwards == set()


def test_there_are_no_cycles() -> None:
    """Not within a layer either: the modules can be put in one line."""
    placed: set[str] = set()
    left = set(MODULES)
    while left:
        ready = {module for module in left if OURS[module] - {module} <= placed}
        assert ready, f"a cycle among {sorted(left)}"
        placed |= ready
        left -= ready


@pytest.mark.parametrize("module", PURE)
def test_pure_modules_have_no_way_out(module: str) -> None:
    """No files, no clock, no threads, no log: they take values and return values."""
    roots = {name.split(".")[0] for name in imports(module)}
    assert roots & NOT_PURE == set()
    assert "log" not in OURS[module]
