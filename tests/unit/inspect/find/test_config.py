"""What the operator asks of `find` is judged as a whole before anything is opened."""

import pytest

from binlog2s3.inspect.find.config import build_find, parse_between
from binlog2s3.inspect.find.match import Tables, Wanted
from binlog2s3.inspect.find.model import Sought
from tests.binlog_writer import UUID_A

NEEDED = {"source": "orders", "s3-url": "s3://bucket/pre"}


def test_what_holds_where_nothing_is_said() -> None:
    """Every transaction of the last writer's history, the newest 100."""
    config, problems = build_find(NEEDED)
    assert problems == []
    assert config is not None
    assert config.sought == Sought(wanted=Wanted(), order="newest", limit=100)
    assert config.sought.wanted.is_any
    assert (config.s3.bucket, config.s3.prefix, config.source) == ("bucket", "pre", "orders")


def test_all_that_can_be_said() -> None:
    """Each option has its place."""
    config, problems = build_find(
        {
            **NEEDED,
            "table": ("shop.orders", "`a.b`.*"),
            "type": ("ddl", "delete"),
            "between": "1970-01-01T00:00:01Z/1970-01-01 01:00:02+01:00",
            "gtid": (f"{UUID_A}:1-5",),
            "min-rows": 7,
            "order": "oldest",
            "limit": 0,
            "lineage": "x",
            "json": True,
        }
    )
    assert problems == []
    assert config is not None
    assert config.as_json
    assert config.sought == Sought(
        wanted=Wanted(
            tables=Tables((("shop", "orders"), ("a.b", "*"))),
            kinds=frozenset({"ddl", "delete"}),
            min_rows=7,
        ),
        since_us=1_000_000,
        until_us=2_000_000,
        gtids=(f"{UUID_A}:1-5",),
        order="oldest",
        limit=0,
        lineage="x",
    )


def test_every_lineage() -> None:
    """The word all is no lineage's id."""
    config, _ = build_find({**NEEDED, "lineage": "all"})
    assert config is not None
    assert (config.sought.everywhere, config.sought.lineage) == (True, None)


def test_all_problems_are_told_at_once() -> None:
    """Each with the option as it was given."""
    _, problems = build_find(
        {
            "table": ("orders", "shop.orders"),
            "between": "2026-01-02T15:00/2026-01-02T16:00Z",
            "gtid": (f"{UUID_A}:1", "0-1-5"),
        },
        places={"between": "BINLOG2S3_BETWEEN"},
    )
    assert [problem[:60] for problem in problems] == [
        "--source is missing",
        "--s3-url is missing",
        "--table: 'orders' is not of the form DB.TABLE, e.g. shop.ord",
        "BINLOG2S3_BETWEEN: '2026-01-02T15:00' has no time zone: add ",
        "--gtid has GTIDs of MySQL and of MariaDB",
    ]


@pytest.mark.parametrize(
    "text",
    ["2026-01-02T15:00Z", "/", "../..", "2026-01-02T15:00Z/2026-01-02T14:00Z", "a/b", "1/2/3",
     "2026-01-02T15:00Z/2026-01-02T16:00Z/"],
)  # fmt: skip
def test_what_is_no_interval_is_refused(text: str) -> None:
    """No guess is made."""
    with pytest.raises(ValueError, match=r"."):
        parse_between(text)


def test_times_are_in_time() -> None:
    """Both ends included; of whole seconds any part."""
    sought = Sought(wanted=Wanted(), since_us=1_500_000, until_us=2_500_000)
    assert sought.in_time(1_500_000, 1_500_000, exact=True)
    assert sought.in_time(2_500_000, 2_500_000, exact=True)
    assert not sought.in_time(1_499_999, 1_499_999, exact=True)
    assert not sought.in_time(2_500_001, 2_500_001, exact=True)
    assert sought.in_time(1_000_000, 1_000_000, exact=False)
    assert not sought.in_time(0, 0, exact=False)
    assert sought.in_time(0, 9_000_000, exact=True)
