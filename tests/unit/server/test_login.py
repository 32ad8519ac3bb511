"""The login: options, a password file and an option file, merged as the manual says."""

import socket
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import given
from hypothesis import strategies as st

from binlog2s3.config.stream import LocalSocket, MysqlConfig
from binlog2s3.errors import SourceError
from binlog2s3.server.login import (
    Login,
    addresses_of,
    parse_options,
    readable_by_others,
    render_options,
    resolve,
)
from tests.impostor import new_key, pem_of

EC = (
    ec.generate_private_key(ec.SECP256R1())
    .public_key()
    .public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
)


def login(**given: Any) -> Login:
    """The login of a configuration with these values."""
    return resolve(MysqlConfig(**given))


@pytest.fixture
def option_file(tmp_path: Path) -> Path:
    """An option file that says everything."""
    path = tmp_path / "my.cnf"
    path.write_text(
        "[client]\nuser=alice\npassword=one\nhost=db1\nport=3307\nsocket=/run/my.sock\n"
        "ssl-mode=verify_ca\nssl_ca=/ca.pem\nssl-cert=/cert.pem\nssl-key=/key.pem\n"
        "[mysqld]\nuser=mysql\n[binlog2s3]\npassword=two\n"
    )
    return path


def test_defaults() -> None:
    """A user alone: this host, the usual port, no password, TLS if it can be had."""
    found = login(user="repl")
    assert (found.host, found.port, found.socket) == ("127.0.0.1", 3306, None)
    assert (found.user, found.password, found.ssl_mode) == ("repl", "", "PREFERRED")
    assert found.address == "127.0.0.1:3306"
    assert replace(found, host="::1").address == "[::1]:3306"


OTHERS = ("db1", "192.0.2.7", "localhost.example.com", "127.0.0.1.example.com", "0.0.0.0")
UNPROVED = (None, "DISABLED", "PREFERRED", "REQUIRED")


@pytest.mark.parametrize(
    ("given_", "mode"),
    [
        *(({"host": host, "accept_unverified_server": True}, "REQUIRED") for host in OTHERS),
        ({"host": "LOCALHOST"}, "PREFERRED"),
        ({"host": "127.9.9.9"}, "PREFERRED"),
        ({"host": "::1"}, "PREFERRED"),
        ({"socket": Path("/run/my.sock")}, "DISABLED"),
        (
            {
                "socket": Path("/run/my.sock"),
                "ssl_cert": Path("/cert.pem"),
                "ssl_key": Path("/key.pem"),
            },
            "PREFERRED",
        ),
        ({"host": "db1", "ssl_ca": Path("/ca.pem")}, "VERIFY_CA"),
        (
            {"host": "db1", "ssl_mode": "PREFERRED", "accept_unverified_server": True},
            "PREFERRED",
        ),
    ],
)
def test_a_server_on_another_host_needs_tls(given_: dict[str, Any], mode: str) -> None:
    """By default; without it is only for a connection that never leaves this host, or on demand."""
    for prefix in ("mysql", "target"):
        assert login(user="repl", prefix=prefix, **given_).ssl_mode == mode


@pytest.mark.parametrize("host", OTHERS)
@pytest.mark.parametrize("mode", UNPROVED)
@pytest.mark.parametrize("prefix", ["mysql", "target"])
def test_a_server_on_another_host_proves_itself(host: str, mode: str | None, prefix: str) -> None:
    """Or there is no login; the refusal has the options that would prove it, and the risk's."""
    with pytest.raises(SourceError, match=f"nothing proves which server answers at {host}") as no:
        login(user="repl", host=host, ssl_mode=mode, prefix=prefix)
    assert no.value.refused
    key = ("server-public-key",) if mode == "DISABLED" else ()
    for option in ("ssl-ca", "accept-unverified-server", *key):
        assert f"--{prefix}-{option}" in no.value.hint
    assert len(no.value.hint) < (160 if mode != "DISABLED" else 320), "it is read at night"
    with pytest.raises(SourceError) as no:  # certificates that are given and not used
        login(user="repl", host="db1", ssl_mode="REQUIRED", ssl_ca=Path("/ca.pem"))
    assert "verify it by /ca.pem: --mysql-ssl-mode VERIFY_CA" in no.value.hint


def test_a_server_on_this_host_by_its_name() -> None:
    """Its socket is the way."""
    with pytest.raises(SourceError) as no:
        login(user="repl", host=socket.gethostname())
    assert "--mysql-socket FILE instead of --mysql-host" in no.value.hint


@pytest.mark.parametrize(
    ("given_", "is_guarded"),
    [
        ({"socket": Path("/run/my.sock")}, True),
        ({"host": "db1", "ssl_ca": Path("/ca.pem")}, True),
        ({"host": "db1", "ssl_ca": Path("/ca.pem"), "ssl_mode": "VERIFY_IDENTITY"}, True),
        ({"host": "127.0.0.1"}, False),
        ({"host": "127.0.0.1", "ssl_mode": "REQUIRED"}, False),
        ({"host": "db1", "accept_unverified_server": True}, False),
    ],
)
def test_what_guards_a_password(given_: dict[str, Any], *, is_guarded: bool) -> None:
    """A socket and a verified certificate; neither a loopback address nor TLS alone."""
    assert login(user="repl", **given_).guarded is is_guarded


def key_file(tmp_path: Path) -> Path:
    path = tmp_path / "public_key.pem"
    path.write_bytes(pem_of(KEY))
    return path


KEY = new_key()


def test_the_key_of_the_server(tmp_path: Path) -> None:
    """Without TLS it guards the password, given as an option or as MySQL's own clients have it."""
    path = key_file(tmp_path)
    found = login(user="repl", host="db1", ssl_mode="DISABLED", server_public_key=path)
    assert (found.guarded, found.proved) == (True, False)
    assert found.public_key == pem_of(KEY).decode()
    file = tmp_path / "my.cnf"
    file.write_text(
        f"[client]\nuser=a\nhost=db1\nssl_mode=DISABLED\nserver_public_key_path={path}\n"
    )
    assert login(defaults_file=file).public_key == found.public_key


@pytest.mark.parametrize("mode", [None, "PREFERRED", "REQUIRED", "VERIFY_CA"])
def test_the_key_is_of_no_use_inside_tls(tmp_path: Path, mode: str | None) -> None:
    """There both clients send the password itself, so that is no guard."""
    given_ = {"ssl_mode": mode, "ssl_ca": Path("/ca.pem"), "server_public_key": key_file(tmp_path)}
    with pytest.raises(SourceError, match="no key is used") as no:
        login(user="repl", host="db1", **given_)
    assert "--mysql-ssl-mode DISABLED" in no.value.hint


@pytest.mark.parametrize("content", [b"", b"no key", b"-----BEGIN PUBLIC KEY-----\nAAAA\n", EC])
def test_a_file_without_a_key(tmp_path: Path, content: bytes) -> None:
    """A client that could not read it would take the key that a server sends."""
    path = tmp_path / "public_key.pem"
    path.write_bytes(content)
    with pytest.raises(SourceError, match=f"{path} has no public RSA key") as no:
        login(user="repl", host="db1", ssl_mode="DISABLED", server_public_key=path)
    assert "public_key.pem" in no.value.hint


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Path]:
    """The socket of a server on this host."""
    path = tmp_path / "here.sock"
    with closing(socket.socket(socket.AF_UNIX)) as listener:
        listener.bind(str(path))
        yield path


def test_the_server_of_this_host_is_asked_through_its_socket(here: Path) -> None:
    """With TLS where it has that, unless something says another way."""
    found = LocalSocket([here])
    by_socket = login(user="repl", local_socket=found)
    assert (by_socket.socket, by_socket.ssl_mode) == (str(here), "PREFERRED")
    assert login(user="repl", local_socket=None).address == "127.0.0.1:3306"
    for other in (
        {"host": "127.0.0.1"},
        {"port": 3307},
        {"ssl_mode": "REQUIRED"},
        {"ssl_ca": Path("/ca.pem")},
        {"ssl_cert": Path("/cert.pem"), "ssl_key": Path("/key.pem")},
    ):
        assert login(user="repl", local_socket=found, **other).socket is None


def test_a_socket_that_was_seen_once_stays_the_way(tmp_path: Path) -> None:
    """Until then each login looks for it: the server may have been down at the start."""
    path = tmp_path / "late.sock"
    config = MysqlConfig(user="repl", local_socket=LocalSocket([path]))
    assert resolve(config).address == "127.0.0.1:3306"
    with closing(socket.socket(socket.AF_UNIX)) as listener:
        listener.bind(str(path))
        assert resolve(config).address == str(path)
    path.unlink()
    assert resolve(config).address == str(path)


@pytest.mark.parametrize(
    "line",
    ["host=127.0.0.1", "port=3307", "ssl-mode=REQUIRED", "ssl-cert=/c.pem\nssl-key=/k.pem"],
)
def test_an_option_file_may_say_another_way(tmp_path: Path, here: Path, line: str) -> None:
    """Its address is not put aside for the socket; one of user and password alone has none."""
    file, found = tmp_path / "my.cnf", LocalSocket([here])
    file.write_text("[client]\nuser=a\n")
    assert login(defaults_file=file, local_socket=found).socket == str(here)
    file.write_text(f"[client]\nuser=a\n{line}\n")
    assert login(defaults_file=file, local_socket=found).socket is None


def test_options_win_over_the_option_file(option_file: Path, tmp_path: Path) -> None:
    """What is given is taken; an address given by hand puts the file's socket aside.

    Of the file its [client] group counts, and [binlog2s3] over it; other groups are not ours.
    """
    found = login(defaults_file=option_file)
    assert (found.user, found.password) == ("alice", "two")
    assert (found.host, found.port, found.address) == ("db1", 3307, "/run/my.sock")
    assert (found.ssl_mode, found.ssl_ca) == ("VERIFY_CA", "/ca.pem")
    assert (found.ssl_cert, found.ssl_key) == ("/cert.pem", "/key.pem")
    secret = tmp_path / "secret"
    secret.write_text("three\n")
    found = login(
        defaults_file=option_file,
        user="bob",
        password_file=secret,
        port=3308,
        ssl_mode="VERIFY_IDENTITY",
        ssl_ca=Path("/other.pem"),
    )
    assert (found.user, found.password, found.ssl_mode) == ("bob", "three", "VERIFY_IDENTITY")
    assert (found.host, found.port, found.socket) == ("db1", 3308, None)
    assert found.ssl_ca == "/other.pem"


def test_a_password_is_never_shown() -> None:
    """Neither repr nor str of a login has it."""
    shown = replace(login(user="repl"), password="Hidden-Word")
    assert "Hidden-Word" not in f"{shown!r} {shown}"


@pytest.mark.parametrize(
    ("content", "password"),
    [
        (b"secret", "secret"),
        (b"secret\n", "secret"),
        (b"secret\r\n", "secret"),
        (b" a b \n", " a b "),
        (b"", ""),
        (b"\n", ""),
        ("pä€\n".encode(), "pä€"),
    ],
)
def test_password_file(tmp_path: Path, content: bytes, password: str) -> None:
    """It holds the password and nothing else but a line's end."""
    path = tmp_path / "secret"
    path.write_bytes(content)
    assert login(user="repl", password_file=path).password == password


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"[client]\npassword=x\n", "more than one line"),
        (b"\xff\xfe", "not UTF-8 text"),
        (b"a\0b", "more than one line"),
        (None, "No such file"),
    ],
)
def test_wrong_password_files(tmp_path: Path, content: bytes | None, says: str) -> None:
    """The file and what is wrong with it are named, never what it holds."""
    path = tmp_path / "secret"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(SourceError, match=says) as caught:
        login(user="repl", password_file=path)
    assert str(path) in str(caught.value)
    assert caught.value.hint
    assert "password=x" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("[client]\nhost=db1\n", "no user"),
        ("[client]\nuser=a\nport=x1\n", "invalid port 'x1'"),
        ("[client]\nuser=a\nport=70000\n", "invalid port '70000'"),
        ("[client]\nuser=a\nssl-mode=MAYBE\n", "unknown ssl-mode 'MAYBE'"),
        ("[client]\nuser=a\nssl-mode=VERIFY_IDENTITY\n", "VERIFY_IDENTITY without ssl-ca"),
        ("[client]\nuser=a\nssl-cert=/c.pem\n", "ssl-cert and ssl-key need each other"),
        ("[client]\nuser=a\n!include /etc/other\n", "line 3: !include"),
        ("[client]\nuser=a\n(password)=Hidden\n", "line 3: not an option"),
    ],
)
def test_wrong_option_files(tmp_path: Path, content: str, says: str) -> None:
    """The file is named, with what is wrong and what would be right; no value of a line is."""
    path = tmp_path / "my.cnf"
    path.write_text(content)
    with pytest.raises(SourceError) as caught:
        login(defaults_file=path)
    assert says in str(caught.value)
    assert str(path) in str(caught.value)
    assert caught.value.hint
    assert "Hidden" not in str(caught.value) + caught.value.hint


# The value that MySQL's own programs take of a line; the integration tests ask them.
LANGUAGE = [
    ("plain", "plain"),
    ("  spaced out  ", "spaced out"),
    ("a#b", "a"),
    ("a # b", "a"),
    ('"a#b"', "a#b"),
    ("'a#b'  # comment", "a#b"),
    ('"a\\"b"', 'a"b'),
    ("a'b#c", "a'b#c"),
    ("a'b'#c", "a'b'"),
    ('"a"b', '"a"b'),
    ('"', '"'),
    ('""', ""),
    ("", ""),
    ("a\\nb\\tc\\sd\\\\e\\xf\\", "a\nb\tc d\\e\\xf\\"),
    ("a=b=c", "a=b=c"),
    ("a;b", "a;b"),
    ("\"mixed'", "\"mixed'"),
]


@pytest.mark.parametrize(("written", "value"), LANGUAGE)
def test_the_language_of_option_files(written: str, value: str) -> None:
    """Quotes, comments and escapes mean what they mean to MySQL's programs."""
    assert parse_options(f"[client]\npassword = {written}\n", "f") == {"password": value}


def test_option_names_and_lines() -> None:
    """Underscores are dashes, the later line wins, bare words and comments are passed over."""
    text = (
        "no group\n# c\n; c\n[ client ]\nSSL_CA=1\nssl-ca=2\nquick\npassword=x\x85y\u2028z\r\n"
        "[mysql]\nuser=no\n"
    )
    assert parse_options(text, "f") == {"ssl-ca": "2", "password": "x\x85y\u2028z"}


@given(st.dictionaries(st.sampled_from(["user", "password", "socket"]), st.text()))
def test_what_is_rendered_is_read_back(values: dict[str, str]) -> None:
    """Whatever a value holds, a child's option file gives it back as it was."""
    assert parse_options(render_options(values), "f") == values


def test_authorities_alone_are_there_to_be_checked(tmp_path: Path) -> None:
    """As in MySQL's own clients a CA without a mode means VERIFY_CA; a mode that is given wins."""
    assert login(user="repl", ssl_ca=Path("/ca.pem")).ssl_mode == "VERIFY_CA"
    path = tmp_path / "my.cnf"
    path.write_text("[client]\nuser=a\nssl-ca=/ca.pem\n")
    assert login(defaults_file=path).ssl_mode == "VERIFY_CA"
    given = login(defaults_file=path, ssl_mode="PREFERRED")
    assert (given.ssl_mode, given.ssl_ca) == ("PREFERRED", "/ca.pem")


def test_the_addresses_of_a_name() -> None:
    """An address is its own; nothing is known of a name that nobody knows, and of no name."""
    assert addresses_of("192.0.2.1") == {"192.0.2.1"}
    assert "127.0.0.1" in addresses_of("localhost")
    assert addresses_of("") == frozenset()
    assert addresses_of("a" * 64 + ".invalid") == frozenset()


def test_files_that_every_user_can_read(tmp_path: Path) -> None:
    """Both that may contain the password; one that is not there is reported by who reads it."""
    own, open_ = tmp_path / "own", tmp_path / "open"
    for path, mode in ((own, 0o640), (open_, 0o644)):
        path.write_text("x")
        path.chmod(mode)
    missing = tmp_path / "missing"
    assert readable_by_others(MysqlConfig(password_file=own, defaults_file=missing)) == []
    assert readable_by_others(MysqlConfig(password_file=open_, defaults_file=own)) == [open_]
    assert readable_by_others(MysqlConfig(defaults_file=open_)) == [open_]
