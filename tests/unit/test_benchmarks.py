"""The pure parts of the benchmark of backlogs, and what docs/benchmarks.md says of it."""

import os
import re
from collections.abc import Callable
from typing import Any

import pytest

from bench.catchup import BINLOGS, WRITERS, Run, Used, medians, name_of, requests_in
from bench.catchup import transactions_each as each
from bench.processes import children, cpu_seconds, peak_bytes
from bench.report import Results, catchup_section, catchup_table, serve_section, size
from bench.rpo import RESULTS, ROOT, load_results

METRICS = """# HELP minio_api_requests_total Total number of requests
# TYPE minio_api_requests_total counter
minio_api_requests_total{name="PutObject",server="127.0.0.1:1",type="s3"} 12
minio_api_requests_total{name="CopyObjectPart",server="127.0.0.1:1",type="s3"} 1e+02
minio_api_requests_4xx_errors_total{name="HeadObject",server="127.0.0.1:1",type="s3"} 7
"""


def run(seconds: float, cpu: float, peak: int, **requests: int) -> Run:
    main = Used(seconds=seconds, cpu_seconds=cpu, peak_bytes=peak)
    child = Used(seconds=1.0, cpu_seconds=0.25, peak_bytes=1 << 20)
    return Run(seconds=seconds, main=main, child=child, requests=requests)


def result(link: str, row_bytes: int, seconds: float) -> dict[str, Any]:
    """500 MB; the way with the AWS CLI takes 10 s."""
    return {
        "name": name_of(link, row_bytes),
        "cores": 2,
        "link": link,
        "row_bytes": row_bytes,
        "size": 500_000_000,
        "binlogs": 4,
        "ways": {
            "stream": medians([run(seconds, 2.0, 90 << 20, PutObject=100, HeadObject=20)]),
            "aws": medians([run(10.0, 1.0, 70 << 20, PutObject=4)]),
        },
    }


@pytest.mark.parametrize(("megabytes", "row_bytes"), [(1000, 300), (1000, 8000), (50, 8000)])
def test_a_backlog_is_about_as_large_as_was_asked(megabytes: int, row_bytes: int) -> None:
    """Rows and what the binlog has beside them add up to it, within a tenth."""
    found = each(megabytes, row_bytes) * BINLOGS * WRITERS * (row_bytes + 290)
    assert 0.9 < found / (megabytes * 1_000_000) < 1.1


def test_the_smallest_backlog_has_a_row_of_each_writer() -> None:
    """However little is asked for, no binlog is empty."""
    assert each(1, 1_000_000) == 1


def test_requests_are_read_from_the_metrics() -> None:
    """The counter of requests, by kind, and nothing else of the text."""
    assert requests_in(METRICS) == {"PutObject": 12, "CopyObjectPart": 100}


def test_each_number_has_its_own_median() -> None:
    """A kind of request that a run did not have counts as none in it."""
    runs = [
        run(3.0, 9.0, 10, PutObject=5),
        run(1.0, 7.0, 30, PutObject=6, GetObject=2),
        run(2.0, 8.0, 20, PutObject=9),
    ]
    found = medians(runs)
    assert found["seconds"] == 2.0
    assert found["seconds_each"] == [3.0, 1.0, 2.0]
    assert found["main"] == {"seconds": 2.0, "cpu_seconds": 8.0, "peak_bytes": 20}
    assert found["child"]["cpu_seconds"] == 0.25
    assert found["requests"] == {"GetObject": 0, "PutObject": 6}


def test_the_table_shows_speeds_and_their_ratio() -> None:
    """MB/s of the whole way, and CPU seconds for each GB of binlog."""
    lines = catchup_table([result("far", 8000, 5.0)]).splitlines()
    assert lines[2] == "| far | 8 kB | binlog2s3 | 100 | 1.00 | 4.0 | 0.5 | 90 | 1 | 120 |"
    assert lines[3].startswith("| far | 8 kB | `mysqlbinlog --raw`, then `aws s3 cp` | 50 | 2.00 |")
    assert len(lines) == 4


def test_the_section_is_there_only_once_something_was_measured() -> None:
    """Near comes first, and small rows."""
    assert catchup_section({"idle": {}}) == ""
    measured = [result("far", 300, 9.0), result("near", 8000, 5.0), result("near", 300, 5.0)]
    text = catchup_section({one["name"]: one for one in measured})
    assert text.startswith("## Catching up\n")
    assert "4 closed binlogs of about 500 MB" in text
    assert re.findall(r"^\| (\w+) \| (\w+ \w+) \| binlog2s3", text, re.MULTILINE) == [
        ("near", "300 B"),
        ("near", "8 kB"),
        ("far", "300 B"),
    ]


@pytest.mark.parametrize(
    ("name", "section"), [("catchup", catchup_section), ("serve", serve_section)]
)
def test_the_document_says_what_was_measured(name: str, section: Callable[[Results], str]) -> None:
    """Its sections are made from docs/benchmarks.json, so no figure in them is anything else."""
    page = (ROOT / "docs/benchmarks.md").read_text(encoding="utf-8")
    shown = re.search(rf"<!-- begin {name} -->(.*?)<!-- end {name} -->", page, re.DOTALL)
    assert shown
    assert shown[1].strip() == section(load_results(RESULTS)).strip()


def test_the_section_of_serve() -> None:
    """MySQL comes first; mysqlbinlog's ratio is that of the seconds."""
    one = {"bytes_per_second": 2e8, "cpu_seconds_per_gb": 3.21, "fetched_per_block": 1.0}
    measured = {
        "size": 1_000_000_000,
        "row_bytes": 8000,
        "binlogs": 4,
        "cores": 2,
        "rounds": 3,
        "clients": {"1": one, "10": {**one, "fetched_per_block": 1.25}},
        "mysqlbinlog": {
            "server": {"seconds": 4.0, "bytes_per_second": 250_000_000},
            "serve": {"seconds": 5.0, "bytes_per_second": 200_000_000},
        },
        "delay": {
            "rate": 100, "row_bytes": 300, "rotations": 2, "commits": 12_000,
            "p50": 0.9, "p99": 1.5, "max": 2.0,
        },
    }  # fmt: skip
    names = ("serve-mariadb", "serve-mysql")
    lines = serve_section({name: {"name": name, **measured} for name in names}).splitlines()
    assert "| mysql | 1 client | 200 | 3.2 | 1.00 |  |" in lines
    assert "| mysql | 10 clients, in all | 200 | 3.2 | 1.25 |  |" in lines
    assert "| mysql | mysqlbinlog, from `serve` | 200 |  |  | 0.80 |" in lines
    assert "| mariadb | 100 | 12,000 | 0.90 | 1.50 | 2.00 |" in lines
    assert serve_section({"idle": {}}) == ""


@pytest.mark.parametrize(
    ("count", "shown"), [(300, "300 B"), (8000, "8 kB"), (1_000_000, "1 MB"), (100, "100 B")]
)
def test_sizes_for_a_reader(count: int, shown: str) -> None:
    """In the greatest unit that it fills."""
    assert size(count) == shown


def test_what_the_kernel_says_about_a_process() -> None:
    """The one that runs has used CPU time and memory; one that does not exist has no memory."""
    assert cpu_seconds(os.getpid())[0] > 0
    assert peak_bytes(os.getpid()) > 1_000_000
    assert peak_bytes(1 << 30) == 0
    assert os.getpid() not in children(os.getpid())
