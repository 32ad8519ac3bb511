"""`pitr` as a user meets it: real processes, a bucket of moto's, what is printed and exit codes."""

import subprocess
from pathlib import Path

import pytest

from lab.s3 import MotoServer
from tests import command
from tests.binlog_writer import UUID_A, UUID_B
from tests.documents import BEAT
from tests.functional.open_archive import NAME, OpenArchive


def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return command.run("pitr", *arguments)


class Archive(OpenArchive):
    """A source with one open binlog of five transactions, one a second; the fourth is a DROP."""

    def __init__(self, moto: MotoServer) -> None:
        tables = [f"CREATE TABLE t.x{number} (a int)" for number in range(1, 6)]
        tables[3] = "DROP TABLE `t`.`orders`"
        super().__init__(moto, tables, db="t", durable=BEAT.durable)

    def pitr(self, *arguments: str, source: str = "orders") -> "subprocess.CompletedProcess[str]":
        return self.run("pitr", *arguments, source=source)


@pytest.fixture
def archive(moto: MotoServer) -> Archive:
    return Archive(moto)


@pytest.mark.parametrize("command", ["pitr", "verify"])
def test_a_backup_of_another_server(command: str, archive: Archive, tmp_path: Path) -> None:
    """Without GTIDs it is refused, with both servers; with GTIDs it counts, whoever was dumped."""
    asked = ["--latest", "--dry-run"] if command == "pitr" else []
    end = archive.end(2)

    def done(server: str, gtids: str = "") -> "subprocess.CompletedProcess[str]":
        (tmp_path / "xtrabackup_binlog_info").write_text(f"{NAME}\t{end}{gtids}\n")
        (tmp_path / "backup-my.cnf").write_text(f"[mysqld]\nserver_uuid={server}\n")
        return archive.run(command, f"--from-backup={tmp_path}", *asked)

    its_own = done(UUID_A)
    assert its_own.returncode == 0, its_own.stderr
    assert f"of server {UUID_A}" in its_own.stdout
    refused = done(UUID_B)
    assert refused.returncode == (8 if command == "pitr" else 7)
    said = refused.stderr + refused.stdout
    assert f"of server {UUID_B}, {NAME}:{end} of the archive is of {UUID_A}" in said
    assert done(UUID_B, f"\t{UUID_A}:1-2").returncode == 0
