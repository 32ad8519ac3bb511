"""How people write GTIDs."""

import pytest

from binlog2s3.config.points import parse_gtid


@pytest.mark.parametrize("text", ["0-11-284,0-11-285", "0-11-284,0-12-7"])
def test_two_gtids_of_mariadb_are_not_one(text: str) -> None:
    """Of one server, too: the last of them is not what is meant."""
    with pytest.raises(ValueError, match="has 2 GTIDs; give one"):
        parse_gtid(text)
    assert parse_gtid(" 0-11-284,") == "0-11-284"
