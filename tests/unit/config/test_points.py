"""How people write GTIDs."""

from pathlib import Path

import pytest

from binlog2s3.binlog.gtid import MOST_GTIDS
from binlog2s3.config.options import parse
from binlog2s3.config.pitr import PITR_OPTIONS
from binlog2s3.config.points import parse_gtid


@pytest.mark.parametrize("text", ["0-11-284,0-11-285", "0-11-284,0-12-7"])
def test_two_gtids_of_mariadb_are_not_one(text: str) -> None:
    """Of one server, too: the last of them is not what is meant."""
    with pytest.raises(ValueError, match="has 2 GTIDs; give one"):
        parse_gtid(text)
    assert parse_gtid(" 0-11-284,") == "0-11-284"


def test_a_set_of_gtids_can_be_in_a_file(tmp_path: Path) -> None:
    """One that is too long for an argument; the file is text, and has a limit."""
    option = next(one for one in PITR_OPTIONS if one.name == "from-gtid-set")
    path = tmp_path / "set"
    uuid = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
    path.write_text(f"{uuid}:1-5:\n7,\n11111111-{uuid[9:]}:1\n")
    assert parse(option, f"@{path}") == f"11111111-{uuid[9:]}:1,{uuid}:1-5:7"
    long = f"{uuid}:" + ":".join(str(number) for number in range(1, 400_000, 2))
    path.write_text(long)
    assert len(long) > 1 << 20
    assert parse(option, f"@{path}") == long
    path.write_text(" " * MOST_GTIDS + "x")
    for text, why in ((f"@{path}", "more than"), (f"@{tmp_path}", "cannot be"), ("@", "cannot be")):
        with pytest.raises(ValueError, match=why):
            parse(option, text)
    path.write_bytes(b"\xff\xfe\0")
    with pytest.raises(ValueError, match="is no GTID"):
        parse(option, f"@{path}")
