"""What docs/benchmarks.md says was measured, as the bench counts it."""

import re
from collections.abc import Callable

import pytest

from bench.reach import WHOLE, History, Sample
from bench.report import Results, catchup_section, serve_section
from bench.rpo import RESULTS, ROOT, load_results


@pytest.mark.parametrize(
    ("name", "section"), [("catchup", catchup_section), ("serve", serve_section)]
)
def test_the_document_says_what_was_measured(name: str, section: Callable[[Results], str]) -> None:
    """Its sections are made from docs/benchmarks.json, so no figure in them is anything else."""
    page = (ROOT / "docs/benchmarks.md").read_text(encoding="utf-8")
    shown = re.search(rf"<!-- begin {name} -->(.*?)<!-- end {name} -->", page, re.DOTALL)
    assert shown
    assert shown[1].strip() == section(load_results(RESULTS)).strip()


def test_a_transaction_counts_from_when_all_before_it_can_be_read() -> None:
    """Earlier binlogs must be whole, and the binlog must reach the transaction's last byte."""
    samples = [
        Sample(1.0, "mysql-bin.000009", 50),
        Sample(2.0, "mysql-bin.000010", 70),
        Sample(3.0, "mysql-bin.000009", 100),
        Sample(4.0, "mysql-bin.000010", 90),
    ]
    history = History(samples, {"mysql-bin.000009": 100, "mysql-bin.000010": 95})
    assert history.restorable_at("mysql-bin.000009", 51) == 3
    assert history.restorable_at("mysql-bin.000010", 60) == 3
    assert history.restorable_at("mysql-bin.000010", 91) is None
    behind_a_hole = History([Sample(1.0, "b.2", WHOLE)], {"b.1": 10, "b.2": 10})
    assert behind_a_hole.restorable_at("b.2", 5) is None
