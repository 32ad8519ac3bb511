"""What is said of a server that refuses."""

from dataclasses import replace
from typing import Any

import pymysql
import pytest

from binlog2s3.errors import SourceError
from binlog2s3.server.connection import Server, ServerVersion
from binlog2s3.server.errors import translate
from tests.login import ROOT


@pytest.mark.parametrize("by_systemd", [False, True])
def test_a_password_that_is_refused(monkeypatch: pytest.MonkeyPatch, by_systemd: bool) -> None:
    """Under systemd the file that is looked at is not the one that was mended."""
    monkeypatch.delenv("CREDENTIALS_DIRECTORY", raising=False)
    if by_systemd:
        monkeypatch.setenv("CREDENTIALS_DIRECTORY", "/run/credentials/binlog2s3@orders.service")
    denied = pymysql.err.OperationalError(1045, "Access denied for user 'repl'@'localhost'")
    error = translate(denied, ROOT)
    assert "check --mysql-user, the password file" in error.hint
    assert ("restart" in error.hint) is by_systemd
    cut = translate(pymysql.err.OperationalError(2006, "gone away"), ROOT)
    assert "systemd" not in cut.hint


def test_a_password_that_ends_in_a_blank() -> None:
    """Where the login is refused the hint begins with it, and other refusals do not have it."""
    doubt = "the password in /etc/pw ends in whitespace"
    login = replace(ROOT, doubt=doubt)
    denied = pymysql.err.OperationalError(1045, "Access denied for user 'repl'@'localhost'")
    assert translate(denied, login).hint.startswith(doubt)
    full = pymysql.err.OperationalError(1040, "Too many connections")
    assert doubt not in translate(full, login).hint


class Told(Server):
    """A server whose answers are given: its global variables, and one row for each SELECT."""

    def __init__(self, **variables: str) -> None:
        super().__init__(lambda: ROOT)
        self._used = ROOT
        self._variables = variables

    def _all(self, statement: str, _: tuple[object, ...] = ()) -> list[dict[str, Any]]:
        if statement.startswith("SHOW GLOBAL VARIABLES"):
            return [{"Variable_name": k, "Value": v} for k, v in self._variables.items()]
        uuid = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
        return [
            {
                "version": "8.0.39",
                "id": 1,
                "log_bin": 1,
                "uuid": uuid,
                "gtid_mode": "ON",
                "Value": "",
            }
        ]


def test_a_reader_of_aurora_is_refused() -> None:
    """Its name may lead to the writer later, so a stream that runs tries again."""
    reader = Told(aurora_server_id="orders-2", innodb_read_only="ON")
    with pytest.raises(SourceError, match="reader of an Aurora cluster") as caught:
        reader.facts()
    assert "writer endpoint" in caught.value.hint
    assert not caught.value.refused
    for other in (
        Told(aurora_server_id="orders-1", innodb_read_only="OFF"),
        Told(innodb_read_only="ON"),
    ):
        assert other.facts().flavour == "mysql"


@pytest.mark.parametrize(
    ("version", "stamps"),
    [
        ("5.7.22-log", False),
        ("8.0.1", False),
        ("8.0.2", True),
        ("8.0.31", True),
        ("9.7.4-2", True),
        ("10.11.18-MariaDB-0+deb12u1-log", False),
        ("5.5.5-11.4.5-MariaDB", False),
    ],
)
def test_which_servers_stamp_commits(version: str, stamps: bool) -> None:
    """Only the others need PROCESS, so only of them `check` asks for it."""
    assert ServerVersion(version).stamps_commits is stamps
