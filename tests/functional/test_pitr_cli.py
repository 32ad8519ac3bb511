"""Base backups that `pitr` and `verify` are given: whose they have to be."""

from pathlib import Path

import pytest

from tests.binlog_writer import UUID_A, UUID_B
from tests.golden.buckets import Source, golden, name
from tests.golden.outputs import Called, called


@pytest.mark.parametrize("command", ["pitr", "verify"])
def test_a_backup_of_another_server(command: str, tmp_path: Path) -> None:
    """Without GTIDs it is refused, with both servers; with GTIDs it counts, whoever was dumped."""
    source = Source()
    end = source.grows().transactions[1].end
    source.beats()
    bucket = golden(source)
    asked = ["--latest", "--dry-run"] if command == "pitr" else []

    def done(server: str, gtids: str = "") -> Called:
        (tmp_path / "xtrabackup_binlog_info").write_text(f"{name(1)}\t{end}{gtids}\n")
        (tmp_path / "backup-my.cnf").write_text(f"[mysqld]\nserver_uuid={server}\n")
        where = ("--s3-url=s3://acme/pre", "--source=orders", f"--from-backup={tmp_path}")
        return called(bucket, [command, *where, *asked])

    its_own = done(UUID_A)
    assert its_own.code == 0, its_own.err
    assert f"of server {UUID_A}" in its_own.out
    refused = done(UUID_B)
    assert refused.code == (8 if command == "pitr" else 7)
    said = refused.err + refused.out
    assert f"of server {UUID_B}, {name(1)}:{end} of the archive is of {UUID_A}" in said
    assert done(UUID_B, f"\t{UUID_A}:1-2").code == 0
