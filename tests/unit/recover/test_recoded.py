"""Statements that a server has logged in UTF-8, of a session with another character set."""

from collections.abc import Iterator, Sequence
from typing import Any, cast

import pytest

from binlog2s3.binlog.events import EventType
from binlog2s3.recover.extract import walked
from binlog2s3.recover.model import Checked, PlanPiece
from binlog2s3.recover.plan_source import OpenStream
from binlog2s3.recover.recoded import Recoded
from lab import pitr_examples
from tests.binlog_writer import UUID_A, XID, BinlogWriter, query_body, statement
from tests.unit.binlog.test_content import compressed

LATIN1, CP1251, GBK, UTF8MB3, UTF8MB4, BINARY = 8, 51, 28, 33, 255, 63


def of_session(text: str, charset: int, encoding: str = "utf-8") -> tuple[int, bytes]:
    """A statement whose event names this charset, in this encoding."""
    status = b"\4" + charset.to_bytes(2, "little") * 3
    return EventType.QUERY, query_body(text, status=status, encoding=encoding)


def seen(*events: tuple[int, bytes], packed: bool = False) -> Recoded:
    made = BinlogWriter()
    inside = [statement("BEGIN"), *events, XID]
    made.transaction([compressed(inside)] if packed else inside, gtid=(UUID_A, "", 1))
    head = made.ends[1]

    def opened(pieces: Sequence[PlanPiece]) -> Iterator[Any]:
        data = bytes(made.data)
        yield pieces[0], iter([Checked(data=data[:head]), Checked(data=data[head:])])

    found = Recoded()
    stream: Iterator[Any] = walked(cast("OpenStream", opened), [found])(
        pitr_examples.PLAN.pieces[:1]
    )
    assert sum(len(one.data) for _, parts in stream for one in parts) == len(made.data)
    return found


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
