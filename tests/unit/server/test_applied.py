"""Settings of the source on which depends what another server makes of its binlogs."""

import pytest

from binlog2s3.errors import SourceError
from binlog2s3.server.applied import applied_settings, differing, folding, server_options
from tests.unit.recover.fake_server import fake


def told(**values: str) -> tuple[str, ...]:
    rows = [{"Variable_name": name, "Value": value} for name, value in values.items()]
    return applied_settings(fake({"SHOW GLOBAL VARIABLES": rows}))


def test_they_become_options() -> None:
    """Only known ones, and only with values that a server of any version takes."""
    found = told(
        lower_case_table_names="1",
        default_storage_engine="MyISAM",
        div_precision_increment="12",
        group_concat_max_len="1048576",
        old_mode="",
        sql_mode="ANSI",
    )
    assert server_options(found) == (
        "--loose-lower-case-table-names=1",
        "--loose-default-storage-engine=MyISAM",
        "--loose-div-precision-increment=12",
        "--loose-group-concat-max-len=1048576",
        "--loose-old-mode=",
    )
    assert told(default_storage_engine="ROCKSDB", old_mode="NO_PROGRESS_INFO") == ()
    bad = ("init_file=/x", "lower_case_table_names=2", "div_precision_increment=4 --x", "old_mode")
    assert server_options(bad) == ("--loose-old-mode=",)


def test_what_the_option_file_needs() -> None:
    """A server does not start on these files without it."""
    assert folding(("lower_case_table_names=1",)) == ("lower_case_table_names = 1",)
    assert folding(("lower_case_table_names=0", "default_week_format=3")) == ()


def test_what_differs() -> None:
    """Of those that both told; names of engines have no case."""
    source = ("lower_case_table_names=1", "default_storage_engine=InnoDB", "default_week_format=3")
    target = ("lower_case_table_names=0", "default_storage_engine=INNODB")
    assert differing(source, target) == {"lower_case_table_names": ("1", "0")}


def test_a_server_that_refuses_to_tell() -> None:
    """Is no reason to make no backup; one that is gone is."""
    assert applied_settings(fake({"SHOW": SourceError("denied", answered=True)})) == ()
    with pytest.raises(SourceError):
        applied_settings(fake({"SHOW": SourceError("gone", transient=True)}))
