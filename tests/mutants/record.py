"""A pytest plugin: writes what became of each test, and why, into the file MUTANTS_RECORD names."""

import json
import os
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

import binlog2s3

_outcomes: dict[str, dict[str, str]] = {}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Keep what is worst of a test's set-up, call and end: with the kind of what it raised."""
    report = yield
    known = _outcomes.get(item.nodeid, {"outcome": "passed"})
    if known["outcome"] != "passed":
        return report
    found: dict[str, Any] = {"outcome": report.outcome}
    if report.failed:
        found["outcome"] = "failed" if report.when == "call" else "error"
        found["kind"] = call.excinfo.type.__name__ if call.excinfo else ""
        found["why"] = str(call.excinfo.value).partition("\n")[0] if call.excinfo else ""
    if report.when == "call" or report.outcome != "passed":
        _outcomes[item.nodeid] = found
    return report


def pytest_sessionfinish() -> None:
    """Write it all down; the file is not there where pytest did not come so far."""
    document = {"package": str(Path(binlog2s3.__file__).parent), "tests": _outcomes}
    Path(os.environ["MUTANTS_RECORD"]).write_text(json.dumps(document), encoding="utf-8")
