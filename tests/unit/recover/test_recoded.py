"""Statements that a server has logged in UTF-8, of a session with another character set."""

import pytest

from binlog2s3.binlog.events import EventType
from binlog2s3.recover.recoded import Recoded
from tests.binlog_writer import query_body, statement
from tests.unit.binlog.test_content import squeezed
from tests.unit.recover.watched import saw

LATIN1, CP1251, GBK, UTF8MB3, UTF8MB4, BINARY = 8, 51, 28, 33, 255, 63


def of_session(text: str, charset: int, encoding: str = "utf-8") -> tuple[int, bytes]:
    """A statement whose event names this charset, in this encoding."""
    status = b"\4" + charset.to_bytes(2, "little") * 3
    return EventType.QUERY, query_body(text, status=status, encoding=encoding)


def seen(*events: tuple[int, bytes], packed: bool = False) -> Recoded:
    return saw(Recoded(), *events, packed=packed)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(
    "text",
    [
        "CREATE USER 'é'@'%' IDENTIFIED WITH 'caching_sha2_password'",
        "GRANT SELECT ON `shop`.* TO 'é'@'%'",
        "CREATE TABLE `t` (`e` enum('é') DEFAULT NULL)",
        "/*M!999999 it's */ CREATE TABLE `t` (`e` enum('é'))",
    ],
)
def test_what_the_server_wrote_anew(text: str, packed: bool) -> None:
    """Its letters are UTF-8, and its event says latin1."""
    found = seen(of_session(text, LATIN1), packed=packed)
    assert found.number == 1
    assert text[:20] in found.doubt


def test_a_body_as_the_session_sent_it() -> None:
    """Behind a name that the server wrote anew: both encodings are in one text."""
    text = "CREATE VIEW `%s` AS SELECT 'é'"
    both = text.replace("%s", "é".encode().decode("latin-1"))
    assert seen(of_session(both, LATIN1, "latin-1")).number == 1
    assert seen(of_session(text, LATIN1, "latin-1")).number == 0


@pytest.mark.parametrize(
    ("text", "charset", "encoding"),
    [
        ("CREATE USER 'é'@'%'", UTF8MB4, "utf-8"),
        ("CREATE USER 'é'@'%'", UTF8MB3, "utf-8"),
        ("CREATE USER 'é'@'%'", BINARY, "utf-8"),
        ("CREATE TABLE `é` (a INT)", LATIN1, "latin-1"),
        ("ALTER TABLE t COMMENT 'Привет'", CP1251, "cp1251"),
        ("CREATE TABLE t (a INT)", GBK, "gbk"),
        ("INSERT INTO t VALUES ('é')", LATIN1, "utf-8"),
    ],
)
def test_what_is_as_it_says(text: str, charset: int, encoding: str) -> None:
    """Or are the values of rows, as the session sent them."""
    assert seen(of_session(text, charset, encoding)).doubt == ""


def test_an_event_that_names_no_charset() -> None:
    assert seen(statement("CREATE USER 'é'@'%'")).doubt == ""


def test_several_without_their_passwords() -> None:
    """The first one is named."""
    first = of_session("SET PASSWORD FOR 'é'@'%' = 'secret'", LATIN1)
    doubt = seen(first, of_session("CREATE ROLE 'ü'", LATIN1)).doubt
    assert "this statement and 1 more" in doubt
    assert "secret" not in doubt
    assert "SET PASSWORD FOR" in doubt


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(
    "text",
    [
        f"CREATE TABLE `t` (`a` int COMMENT '{'x' * 200_000}', `e` enum('é'))",
        f"/* {'x' * 20_000} */ CREATE TABLE `t` (`e` enum('é'))",
    ],
)
def test_a_long_definition(text: str, packed: bool) -> None:
    """All of it is looked at, also where a letter is cut in two."""
    for at in range(131_072 - 70, 131_072 - 50):
        halved = f"CREATE TABLE `{'t' * at}é` (a int)"
        assert seen(of_session(halved, LATIN1), packed=packed).number == 1, at
    event_type, body = of_session(text, LATIN1)
    assert seen((event_type, body), packed=packed).number == 1
    begins = len(body) - len(text.encode())
    shut = body[:begins] + squeezed(body[begins:])
    assert seen((EventType.QUERY_COMPRESSED, shut), packed=packed).number == 1


def test_a_long_bulk_insert() -> None:
    """Its letters are values of rows."""
    assert seen(of_session(f"INSERT INTO t VALUES ('{'é' * 200_000}')", LATIN1)).doubt == ""
