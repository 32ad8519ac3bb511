"""What is said of a server that refuses."""

from dataclasses import replace

import pymysql
import pytest

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
