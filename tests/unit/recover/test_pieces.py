"""Which transactions --skip-gtid leaves out."""

import pytest

from binlog2s3.recover.pieces import Skip


@pytest.mark.parametrize(
    "texts", [("0-11-284,0-11-285, 0-12-7",), ("0-11-284", "0-11-285", "0-12-7")]
)
def test_each_gtid_of_mariadb_that_is_named_is_skipped(texts: tuple[str, ...]) -> None:
    """Not only the last of each server, however they are given; and all are told."""
    skip = Skip(texts, "mariadb")
    named = ["0-11-284", "0-11-285", "0-12-7"]
    assert skip.not_found() == ",".join(named)
    assert [one for one in ("0-11-283", *named, "0-11-286", "0-12-6") if skip.has(one)] == named
    assert skip.found_singly() == tuple(named)
    assert skip.not_found() == ""


def test_a_set_of_mysql_is_skipped_as_it_is() -> None:
    """A range, and the pieces of several options."""
    uuid = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
    skip = Skip((f"{uuid}:3-4", f"{uuid}:7"), "mysql")
    assert [n for n in range(1, 9) if skip.has(f"{uuid}:{n}")] == [3, 4, 7]
    assert (str(skip.found()), skip.found_singly()) == (f"{uuid}:3-4:7", ())
