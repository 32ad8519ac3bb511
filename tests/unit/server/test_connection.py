"""What is said of a server that refuses."""

from dataclasses import replace
from datetime import datetime
from typing import Any, cast

import pymysql
import pytest

from binlog2s3.errors import SourceError, UnloggedError
from binlog2s3.server.connection import Server
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


def test_what_was_asked_for_when_the_connection_ended() -> None:
    """A proxy that ends this question only, each time, is not to be taken for a restart."""
    cut = pymysql.err.OperationalError(2013, "Lost connection")
    error = translate(cut, ROOT, "the first bytes of mysql-bin.000001")
    assert f"{ROOT.address}, asked for the first bytes of mysql-bin.000001: Lost" in str(error)
    assert error.transient


def test_a_password_that_ends_in_a_blank() -> None:
    """Where the login is refused the hint begins with it, and other refusals do not have it."""
    doubt = "the password in /etc/pw ends in whitespace"
    login = replace(ROOT, doubt=doubt)
    denied = pymysql.err.OperationalError(1045, "Access denied for user 'repl'@'localhost'")
    assert translate(denied, login).hint.startswith(doubt)
    full = pymysql.err.OperationalError(1040, "Too many connections")
    assert doubt not in translate(full, login).hint


@pytest.mark.parametrize("code", [1045, 2002])
def test_a_socket_that_is_not_the_way(code: int) -> None:
    """It may have been found, and not given: the other way is named, and the socket."""
    refused = pymysql.err.OperationalError(code, "Access denied, or cannot connect")
    error = translate(refused, replace(ROOT, socket="/run/mysqld/mysqld.sock"))
    assert "/run/mysqld/mysqld.sock" in str(error)
    assert "--mysql-host 127.0.0.1" in error.hint


def test_a_privilege_is_named_also_if_only_super_is_enough() -> None:
    """As it is for a MariaDB's event scheduler; where another one is enough, that one is named."""
    text = "Access denied; you need (at least one of) the {} privilege(s) for this operation"
    for needed, named in (("SUPER", "SUPER"), ("SUPER, BINLOG ADMIN", "BINLOG ADMIN")):
        denied = pymysql.err.OperationalError(1227, text.format(needed))
        assert str(translate(denied, ROOT)).endswith(f"is missing the privilege {named}")


def test_after_ctrl_c_the_connection_is_not_used_again() -> None:
    """The interrupted statement's answer is never taken for that of the next one."""
    server, connection = Server(lambda: ROOT), Interrupted()
    server._connection = cast("Any", connection)
    with pytest.raises(KeyboardInterrupt):
        server.rows("SELECT 1")
    assert connection.is_closed
    assert server._connection is None


class Interrupted:
    """A connection that never answers: the operator has enough."""

    is_closed = False

    def cursor(self) -> Any:
        raise KeyboardInterrupt

    def _force_close(self) -> None:
        self.is_closed = True


class Told(Server):
    """A server whose answers are given: its global variables, and one row for each SELECT."""

    def __init__(self, **variables: str) -> None:
        super().__init__(lambda: ROOT)
        self._used = ROOT
        self._variables = variables
        self.said = "8.0.39"
        self.read_only_is: object = 0

    def rows(self, statement: str, _: tuple[object, ...] = ()) -> list[dict[str, Any]]:
        if statement.startswith("SHOW GLOBAL VARIABLES"):
            return [{"Variable_name": k, "Value": v} for k, v in self._variables.items()]
        uuid = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
        return [
            {
                "version": self.said,
                "domain": 0,
                "read_only": self.read_only_is,
                "id": 1,
                "log_bin": 1,
                "uuid": uuid,
                "gtid_mode": "ON",
                "Value": "",
                "now": datetime(2026, 1, 1),  # noqa: DTZ001 - as the driver gives it
                "seconds": None,
                "File": "b.000001",
                "Position": 4,
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
    ("version", "engine", "refused"),
    [
        ("12.3.1-MariaDB-log", "InnoDB", True),
        ("12.3.1-MariaDB-log", "", False),
        ("11.8.9-MariaDB", None, False),
    ],
)
def test_a_binlog_that_is_not_in_files(version: str, engine: str | None, refused: bool) -> None:
    """MariaDB 12.3 can keep it in InnoDB: what is committed meanwhile is in no archive."""
    variables = {} if engine is None else {"binlog_storage_engine": engine}
    source = Told(**variables)
    source.said = version
    if not refused:
        assert source.facts().flavour == "mariadb"
        return
    with pytest.raises(
        UnloggedError, match=r"'InnoDB' \(binlog_storage_engine\), not in files"
    ) as no:
        source.facts()
    assert no.value.uuid == "00000001-00000000"
    assert "remove binlog_storage_engine" in no.value.hint
    assert "new base backup" in no.value.hint


@pytest.mark.parametrize("answer", [0, 1, "OFF", "ON", "NO_LOCK", "NO_LOCK_NO_ADMIN"])
def test_a_server_that_refuses_writes(answer: object) -> None:
    """MariaDB 12 has words for it; a number of older versions is no error."""
    source = Told()
    source.read_only_is = answer
    assert source.position().read_only is (answer not in (0, "OFF"))
