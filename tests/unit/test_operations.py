"""Guides of operators and docs/policies: they show what the code says and the files have."""

import json
import re
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from bench import instances
from bench.cost import (
    BINLOG_BYTES,
    DOLLARS_DEAR,
    HOURS_OF_MONTH,
    Load,
    dear,
    requests_for,
    requests_of_standby,
)
from binlog2s3.inspect.check.bucket import wanted_rule
from lab.reference import ROOT

POLICIES = sorted((ROOT / "docs/policies").glob("*.json"))
BLOCK = re.DOTALL | re.MULTILINE
INTERVALS = (1.0, 5.0, 30.0)
TIMES = "\N{MULTIPLICATION SIGN}"
LOADS = {
    "idle": Load(0, 0),
    "1 commit/s of 600 bytes": Load(1, 600),
    "100 commits/s of 600 bytes": Load(100, 600),
    "10 MB/s": Load(10, 1_000_000),
}


def read(path: Path) -> dict[str, Any]:
    found = json.loads(path.read_text(encoding="utf-8"))
    assert isinstance(found, dict)
    return found


def guide(name: str) -> str:
    return (ROOT / f"docs/guides/{name}.md").read_text(encoding="utf-8")


def between(page: str, name: str) -> str:
    found = re.search(rf"<!-- begin {name} -->\n(.*?)<!-- end {name} -->", guide(page), re.DOTALL)
    assert found, name
    return found[1].strip()


@pytest.mark.parametrize(
    ("page", "name"),
    [
        *(
            ("permissions", name)
            for name in ("streamer", "reader", "serve", "backup", "pruner", "drill")
        ),
        ("bucket", "write-once"),
    ],
)
def test_the_page_shows_the_policies_as_they_are(page: str, name: str) -> None:
    """What is pasted from the page is the file that the test of least privilege applies."""
    shown = re.search(rf"<!-- policy: {name} -->\n\n```json\n(.*?)^```", guide(page), BLOCK)
    assert shown
    assert shown[1] == (ROOT / f"docs/policies/{name}.json").read_text(encoding="utf-8")


def test_every_policy_is_on_a_page() -> None:
    """No file there is without an explanation."""
    text = guide("permissions") + guide("bucket")
    assert [path.name for path in POLICIES] == [
        "backup.json",
        "drill.json",
        "kms.json",
        "pruner.json",
        "reader.json",
        "serve.json",
        "streamer.json",
        "write-once.json",
    ]
    for path in POLICIES:
        assert f"(../policies/{path.name})" in text


def test_nothing_below_the_archive_may_be_deleted() -> None:
    """Only the pruner's policy allows it, and no policy of a version; no wildcard hides it."""
    for path in POLICIES:
        for statement in read(path)["Statement"]:
            if statement["Effect"] == "Deny":
                continue
            for action in statement["Action"]:
                assert "*" not in action
                if "Delete" in action and path.name == "pruner.json":
                    lineage = f"{'?' * 8}T{'?' * 6}Z-{'?' * 8}-{'?' * 4}"
                    chunks = f"/live/orders-primary/{lineage}/*"
                    names = ("binlogs", "entries", "pages", "turns", "backups", "base")
                    kinds = (*(f"/{name}/*" for name in names), chunks)
                    assert all(arn.endswith(kinds) for arn in statement["Resource"])
                elif "Delete" in action:
                    assert all("/live/" in arn for arn in statement["Resource"])
                assert action != "s3:DeleteObjectVersion"


@pytest.mark.parametrize("name", ["reader", "serve"])
def test_the_reader_has_nothing_but_reading(name: str) -> None:
    """Actions that read, and on a bucket with Object Lock see every version."""
    statements = read(ROOT / f"docs/policies/{name}.json")["Statement"]
    actions = chain.from_iterable(one["Action"] for one in statements)
    assert sorted(actions) == [
        "s3:GetBucketObjectLockConfiguration",
        "s3:GetObject",
        "s3:GetObjectLegalHold",
        "s3:GetObjectRetention",
        "s3:GetObjectVersion",
        "s3:ListBucket",
        "s3:ListBucketVersions",
    ]


def test_the_lifecycle_rule_is_the_one_that_check_wants() -> None:
    """The one of the page, in the words of the one that `check` prints."""
    (shown,) = re.findall(r"cat > rules\.json <<END\n(.*?)\nEND\n", guide("bucket"), re.DOTALL)
    assert json.loads(shown) == {"Rules": [wanted_rule("prod/live/")]}


def requests_a_month(load: Load, flush_interval: float) -> float:
    """Those that cost most, as bench.cost has it."""
    seconds = HOURS_OF_MONTH * 3600.0
    binlogs = max(load.bytes_per_second * seconds / BINLOG_BYTES, HOURS_OF_MONTH / 24)
    return dear(requests_for(load, flush_interval, seconds=seconds, binlogs=binlogs))


def table() -> str:
    """Requests a month, as they stand on the page."""
    lines = ["| source | " + " | ".join(f"{each:g} s" for each in INTERVALS) + " |"]
    lines.append("| --- |" + " ---: |" * len(INTERVALS))
    for name, load in LOADS.items():
        counts = (f"{round(requests_a_month(load, each), -3):,.0f}" for each in INTERVALS)
        lines.append(f"| {name} | {' | '.join(counts)} |")
    standby = f"{round(dear(requests_of_standby(HOURS_OF_MONTH * 3600.0)), -3):,.0f}"
    lines.append(f"| in addition, a standby | {' | '.join([standby] * len(INTERVALS))} |")
    return "\n".join(lines)


def test_requests_a_month_are_those_of_the_formula() -> None:
    """The table is what bench.cost says."""
    assert between("costs", "requests a month") == table()


def worked_sum() -> str:
    """One source of 1 MB/s for a month, as it stands on the page."""
    month, gb_a_day = HOURS_OF_MONTH * 3600.0, 86.4
    streamer = requests_a_month(Load(1000, 1000), 1.0)
    standby = dear(requests_of_standby(month))
    kept = 30 + 7 + 1
    stored = [
        (
            "binlogs: 30 days, 7 between two base backups, 1 of `--grace`",
            f"{kept} {TIMES} {gb_a_day} GB",
            kept * gb_a_day,
        ),
        ("pruned binlogs, as old versions", f"30 {TIMES} {gb_a_day} GB", 30 * gb_a_day),
        ("base backups: 6, and 4 as old versions", f"10 {TIMES} 100 GB", 1000.0),
        (
            "deleted chunks, as old versions: twice the binlog, for up to 2 days",
            f"2 {TIMES} 2 {TIMES} {gb_a_day} GB",
            4 * gb_a_day,
        ),
    ]
    rows = [
        ("requests of the streamer", f"{round(streamer, -3):,.0f}", streamer * DOLLARS_DEAR),
        ("requests of the standby", f"{round(standby, -3):,.0f}", standby * DOLLARS_DEAR),
        *((name, f"{how} = {size:,.0f} GB", size * 0.023) for name, how, size in stored),
    ]
    lines = ["| what | how much | a month |", "| --- | --- | ---: |"]
    lines += [f"| {name} | {how} | {price:.2f} |" for name, how, price in rows]
    total = sum(round(price, 2) for _name, _how, price in rows)
    return "\n".join([*lines, f"| sum | | {total:.2f} |"])


def test_the_worked_sum_is_that_of_the_formula() -> None:
    """The requests are bench.cost's; the rest of it adds up."""
    assert between("costs", "worked sum") == worked_sum()


def test_the_table_of_instances_is_one_that_was_measured() -> None:
    """With 1, 10 and 50 of them, in the columns that bench.instances has now."""
    lines = [
        line.strip("| ").split(" | ") for line in between("many-sources", "instances").splitlines()
    ]
    assert lines[0] == list(instances.HEAD)
    assert [line[0] for line in lines[2:]] == ["1", "10", "50"]
    assert all(len(line) == len(instances.HEAD) for line in lines[2:])
    for line in lines[2:]:
        whole, each = float(line[1].replace(",", "")), float(line[2])
        assert whole == pytest.approx(int(line[0]) * each, rel=0.02)
