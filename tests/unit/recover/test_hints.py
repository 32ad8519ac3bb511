"""Hints for what a target refuses."""

import pytest

from binlog2s3.binlog.gtid import Flavour
from binlog2s3.recover.hints import advised

AGAIN = "run the same command again"


def hint(code: int, *, flavour: Flavour = "mysql", gtid: str | None = "a:7") -> str:
    return advised(code, flavour, look="LOOK; ", gtid=gtid, again=AGAIN)


@pytest.mark.parametrize("code", [1062, 1032, 1146])
def test_what_can_be_left_out_is_named(code: int) -> None:
    """Only a transaction that has a GTID can be skipped."""
    assert hint(code) == (
        f"LOOK; mend the target, or leave the transaction out (--skip-gtid a:7); {AGAIN}"
    )
    assert hint(code, gtid=None) == f"LOOK; mend the target; {AGAIN}"


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (1153, "max_allowed_packet"),
        (1227, "GRANT"),
        (3948, "local_infile"),
        (1666, "SET GLOBAL binlog_format = ROW"),
        (1950, "gtid_strict_mode = OFF"),
    ],
)
def test_what_is_mended_at_the_target(code: int, words: str) -> None:
    """It says what, and how to go on; nothing is to be left out for that."""
    text = hint(code, flavour="mariadb" if code == 1950 else "mysql")
    assert words in text
    assert text.endswith(AGAIN)
    assert "--skip-gtid" not in text


@pytest.mark.parametrize(("code", "words"), [(1397, "XA RECOVER"), (1953, "--apply relay-log")])
def test_what_needs_the_base_backup_again(code: int, words: str) -> None:
    """No second run from there can mend it."""
    text = hint(code)
    assert words in text
    assert AGAIN not in text
    assert "estore" in text
