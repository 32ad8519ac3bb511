"""Hints for the errors of a target's applier."""

import pytest

from binlog2s3.binlog.names import BinlogName
from binlog2s3.recover.model import BinlogPosition
from binlog2s3.recover.replicate import advised

AGAIN = "run the same command again"
PLACE = BinlogPosition(lineage="a", binlog=BinlogName.parse("b.000007"), offset=123)


def hint(code: int, *, gtid: str | None = "a:7", reached: BinlogPosition | None = PLACE) -> str:
    return advised(code, reached=reached, gtid=gtid, again=AGAIN)


@pytest.mark.parametrize("code", [1062, 1032, 1146])
def test_what_can_be_left_out_is_named(code: int) -> None:
    """Only a transaction that has a GTID can be skipped."""
    assert "--start-position=123 b.000007 " in hint(code)
    assert hint(code).endswith(
        f"; fix the target, or leave the transaction out (--skip-gtid a:7); {AGAIN}"
    )
    assert hint(code, gtid=None, reached=None) == f"fix the target; {AGAIN}"


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (1153, "max_allowed_packet"),
        (1666, "SET GLOBAL binlog_format = ROW"),
        (1950, "gtid_strict_mode = OFF"),
    ],
)
def test_what_is_fixed_at_the_target(code: int, words: str) -> None:
    """It says what, and how to go on; nothing is to be left out for that."""
    text = hint(code)
    assert words in text
    assert text.endswith(AGAIN)
    assert "--skip-gtid" not in text


def test_what_needs_the_base_backup_again() -> None:
    """No second run from there can fix it."""
    text = hint(1397)
    assert "XA RECOVER" in text
    assert AGAIN not in text
    assert "estore" in text
