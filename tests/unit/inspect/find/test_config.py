"""What the operator asks of `find` is judged as a whole before anything is opened."""

import pytest

from binlog2s3.cli import commands as cli
from binlog2s3.cli.options import config_of
from binlog2s3.config.find import FIND, FindConfig
from binlog2s3.config.points import parse_between
from binlog2s3.inspect.find.command import _query
from binlog2s3.inspect.find.match import Criteria, SearchQuery, Tables
from tests.binlog_writer import UUID_A

NEEDED = ("--source=orders", "--s3-url=s3://bucket/pre")


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for option in FIND.options:
        monkeypatch.delenv(option.environment, raising=False)
    monkeypatch.delenv("BINLOG2S3_CONFIG", raising=False)


def configured(*arguments: str) -> FindConfig:
    """The config of a command line, or ConfigError."""
    with cli.find.make_context("binlog2s3 find", list(arguments)) as ctx:
        return config_of(ctx, ctx.params, FIND)


def test_every_value_reaches_its_place() -> None:
    """Each option has its place."""
    config = configured(
        *NEEDED,
        "--table=shop.orders",
        "--table=`a.b`.*",
        "--type=ddl",
        "--type=DELETE",
        "--between=1970-01-01T00:00:01Z/1970-01-01 01:00:02+01:00",
        f"--gtid={UUID_A}:1-5",
        "--min-rows=7",
        "--order=oldest",
        "--limit=0",
        "--lineage=x",
        "--json",
    )
    assert _query(configured(*NEEDED, "--lineage=all")).everywhere
    assert config.as_json
    assert _query(config) == SearchQuery(
        wanted=Criteria(
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
    query = SearchQuery(wanted=Criteria(), since_us=1_500_000, until_us=2_500_000)
    assert query.in_time(1_500_000, 1_500_000, exact=True)
    assert query.in_time(2_500_000, 2_500_000, exact=True)
    assert not query.in_time(1_499_999, 1_499_999, exact=True)
    assert not query.in_time(2_500_001, 2_500_001, exact=True)
    assert query.in_time(1_000_000, 1_000_000, exact=False)
    assert not query.in_time(0, 0, exact=False)
    assert query.in_time(0, 9_000_000, exact=True)
