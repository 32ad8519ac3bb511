"""Nobody who is not proved to be the server gets the password."""

import socket
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from binlog2s3.errors import SourceError
from binlog2s3.server.connection import Server
from binlog2s3.server.login import Login
from binlog2s3.server.mysqlbinlog import safe_plugins
from tests.impostor import CLEAR, FULL, Impostor, Trick, decrypted, new_key, pem_of
from tests.login import ROOT

LOGIN = replace(ROOT, password="Open-Sesame", connect_timeout=10.0)


def refused(login: Login) -> SourceError:
    with closing(Server(lambda: login)) as server, pytest.raises(SourceError) as caught:
        server.rows("SELECT 1")
    return caught.value


@pytest.mark.parametrize("trick", CLEAR, ids=str)
def test_a_server_that_is_not_proved_gets_no_password(trick: Trick) -> None:
    """It may be anybody: the connection ends, with a hint at what would prove it."""
    with Impostor(trick, tls=False) as impostor:
        error = refused(replace(LOGIN, port=impostor.port))
    assert impostor.heard
    assert impostor.got(LOGIN.password) == "nothing"
    assert "clear text" in str(error)
    assert "VERIFY_IDENTITY" in error.hint


@pytest.mark.parametrize("tls", [True, False])
@pytest.mark.parametrize("trick", FULL, ids=str)
def test_only_the_owner_of_the_known_key_gets_it(trick: Trick, *, tls: bool) -> None:
    """Another server may send a key of its own, asked or not: the known one stays in use."""
    right = new_key()
    login = replace(LOGIN, ssl_mode="DISABLED", public_key=pem_of(right).decode())
    with Impostor(trick, tls=tls) as impostor:
        refused(replace(login, port=impostor.port))
    assert impostor.got(LOGIN.password) == "nothing"
    assert LOGIN.password.encode() + b"\0" in [decrypted(one, right) for one in impostor.heard]


def test_a_known_key_proves_no_server() -> None:
    """What would go in clear text is refused all the same."""
    login = replace(LOGIN, ssl_mode="DISABLED", public_key=pem_of(new_key()).decode())
    with Impostor(Trick(plugin="mysql_clear_password", first=False)) as impostor:
        assert "clear text" in str(refused(replace(login, port=impostor.port)))
    assert impostor.got(LOGIN.password) == "nothing"


def test_a_server_behind_a_socket_gets_it(tmp_path: Path) -> None:
    """The account may be one of PAM: the socket's path says whose server it is."""
    path = tmp_path / "my.sock"
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()
    trick = Trick(plugin="mysql_clear_password", first=False)
    with Impostor(trick, tls=False, listener=listener) as impostor:
        refused(replace(LOGIN, socket=str(path)))
    assert impostor.got(LOGIN.password) == "in clear text"


def test_plugins_that_are_safe(tmp_path: Path) -> None:
    """Of those installed beside the program: none that sends the password as it is."""
    program = tmp_path / "usr/bin/mariadb-binlog"
    place = tmp_path / "usr/lib/x86_64-linux-gnu/libmariadb3/plugin"
    for path in (
        program,
        *(place / f"{n}.so" for n in ("client_ed25519", "dialog", "x", "parsec")),
        place / "mysql_native_password.so",
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    link = tmp_path / "link"
    link.symlink_to(program)
    names = [path.name for path in safe_plugins(str(link), "mariadb")]
    assert names == ["client_ed25519.so", "parsec.so"]
    names = [path.name for path in safe_plugins(str(link), "mysql")]
    assert names == ["mysql_native_password.so"]
