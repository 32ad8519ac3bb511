"""What shows that a restored server is the registered backup; nothing is taken for right."""

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from binlog2s3.binlog.names import BinlogName
from binlog2s3.errors import RecoveryError
from binlog2s3.restore.engine import is_position_sure
from binlog2s3.restore.identity import (
    by_binlogs,
    by_file,
    by_gtids,
    unknown,
)
from tests.binlog_writer import BinlogWriter
from tests.documents import BACKUP, UUID
from tests.history_model import HEAD, Model
from tests.unit.recover.fake_server import fake

NAME = BinlogName("mysql-bin", 2)
PLACED = replace(BACKUP, flavour="mariadb", gtid_set="0-1-5", binlog=NAME, position=157)


@pytest.mark.parametrize(
    ("slave", "own", "shown"),
    [
        ("0-1-5", "0-9-3", "its gtid_slave_pos"),
        ("0-7-2", "0-1-5", "its gtid_binlog_pos"),
        ("", "0-9-3", ""),
        ("0-1-4", "", None),
        ("0-1-6", "", None),
        ("0-1-5,1-1-1", "", None),
    ],
)
def test_the_gtids_of_mariadb_are_compared_both_ways(
    slave: str, own: str, shown: str | None, tmp_path: Path
) -> None:
    """What a dump has set, or what the binlogs end with; nothing set says nothing."""
    asked = fake({"SELECT": [{"slave": slave, "own": own}]})
    if shown is None:
        with pytest.raises(RecoveryError, match="is not backup"):
            by_gtids(asked, tmp_path, PLACED, "mariadb")
    else:
        assert by_gtids(asked, tmp_path, PLACED, "mariadb") == shown


@pytest.mark.parametrize(("has", "text"), [("1-4", "is missing"), ("1-6", "in addition")])
def test_the_gtids_of_mysql_are_compared_both_ways(has: str, text: str, tmp_path: Path) -> None:
    """No more and no less."""
    backup = replace(BACKUP, gtid_set=f"{UUID}:1-5")
    asked = fake({"SELECT": [{"it": f"{UUID}:{has}"}]})
    with pytest.raises(RecoveryError, match=text):
        by_gtids(asked, tmp_path, backup, "mysql")
    asked = fake({"SELECT": [{"it": f"{UUID}:1-5"}]})
    assert by_gtids(asked, tmp_path, backup, "mysql") == "its GTIDs"
    assert by_gtids(asked, tmp_path, replace(backup, gtid_set=None), "mysql") == ""


def test_a_file_of_the_tool_is_of_this_backup_or_of_another(tmp_path: Path) -> None:
    """Without one nothing is known."""
    assert by_file(tmp_path, PLACED) == ""
    info = tmp_path / "xtrabackup_binlog_info"
    info.write_text("mysql-bin.000002\t157\t0-1-5\n")
    assert by_file(tmp_path, PLACED) == "the position file of mariabackup"
    for text in ("mysql-bin.000002\t158\t0-1-5\n", "mysql-bin.000002\t157\t0-1-6\n"):
        info.write_text(text)
        with pytest.raises(RecoveryError, match="its own position file says"):
            by_file(tmp_path, PLACED)


def test_the_binlogs_that_came_along(tmp_path: Path) -> None:
    """They end there, but for the mark of a shutdown; a later binlog may only be a rotation."""
    data = BinlogWriter(checksum=True)
    data.rotate()
    place = len(data.data)
    backup = replace(PLACED, position=place)
    (tmp_path / "mysql-bin.index").write_text("./mysql-bin.000001\n./mysql-bin.000002\n")
    path = tmp_path / "mysql-bin.000002"
    assert by_binlogs(tmp_path, backup) == ""
    path.write_bytes(bytes(data.data))
    assert by_binlogs(tmp_path, backup) == "its own binlogs"
    stop = bytearray(23)
    stop[4], stop[9] = 3, 23
    path.write_bytes(bytes(data.data) + bytes(stop))
    assert by_binlogs(tmp_path, backup) == "its own binlogs"
    stop[4] = 16
    for more in (bytes(stop), b"x"):
        path.write_bytes(bytes(data.data) + more)
        with pytest.raises(RecoveryError, match="its binlogs end at"):
            by_binlogs(tmp_path, backup)
    with pytest.raises(RecoveryError, match="its binlogs end at"):
        by_binlogs(tmp_path, replace(backup, binlog=NAME.next(), position=4))
    (tmp_path / "mysql-bin.000003").write_bytes(b"")
    (tmp_path / "mysql-bin.index").write_text("./mysql-bin.000003\n")
    assert by_binlogs(tmp_path, backup) == ""
    assert by_binlogs(tmp_path, replace(backup, binlog=None, position=None)) == ""


def test_what_is_unknown_says_how_to_make_it_known() -> None:
    """By the kind of the backup."""
    for flavour, is_dump, text in (
        ("mariadb", True, "--master-data=1 --gtid"),
        ("mysql", True, "only GTIDs leave a trace"),
        ("mysql", False, "_binlog_info"),
    ):
        error = unknown(BACKUP, cast("Any", flavour), is_dump=is_dump)
        assert text in error.hint
        assert "--trust-restore-command" in error.hint


def test_a_place_that_two_histories_have_says_nothing_of_a_backup() -> None:
    """After a RESET, the position file of an older backup can name the very same place."""
    model = Model(gtids=False)
    for _ in range(3):
        model.commit(100, 10)
    placed = replace(PLACED, gtid_set=None, binlog=model.open.name, position=HEAD + 100)
    assert is_position_sure(placed, model)
    model.put_back(1)  # the same bytes up to there
    assert is_position_sure(placed, model)
    model.reset()
    model.commit(100, 10)
    assert not is_position_sure(placed, model)
    assert is_position_sure(replace(placed, gtid_set="0-1-5"), model)
