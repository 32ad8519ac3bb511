"""Whether a statement was executed that a crashed target may have been in the middle of."""

from dataclasses import replace
from typing import Any

import pytest

from binlog2s3.binlog.content import Change, Content, TwoPhase
from binlog2s3.binlog.gtid import MariadbGtidList
from binlog2s3.binlog.statements import ANSI_QUOTES, PLAIN, Writing, statement_of
from binlog2s3.errors import RecoveryError
from binlog2s3.recover.seam import Next, after, is_executed
from binlog2s3.recover.target import TargetFacts
from tests.unit.recover.fake_server import Rows, target_of
from tests.unit.recover.test_preflight import MARIADB
from tests.unit.recover.test_target import FACTS

TARGET = replace(MARIADB, version="10.11.6-MariaDB", log_bin=True, logs_replicated=True)
PLACE = MariadbGtidList.parse("0-1-81")
ADD = "ALTER TABLE a ADD INDEX (v)"
SWAP = "RENAME TABLE a TO x, b TO a, x TO b"
SWAPPED = "EXCHANGE PARTITION p0 WITH TABLE"
EXCHANGE = f"ALTER TABLE a {SWAPPED} b"
CP932, ANSI = Writing(sql_mode=0, apart=False, is_utf8=False), Writing(sql_mode=ANSI_QUOTES)
"""A character of Shift_JIS may end with a grave accent, and a name in "" with a backslash."""


def following(
    text: str, kind: str = "ddl", *, cut: bool = False, writing: Writing = PLAIN, **more: Any
) -> Next:
    content = Content(changes=(Change(kind=kind, table="shop.a"),), statements=(text,), **more)  # type: ignore[arg-type]
    statement = statement_of(text, "shop", cut=cut, writing=writing)
    return Next("0-1-82", content, (statement,) if statement is not None else ())


def asked(
    found: str | Next,
    state: str,
    *,
    last: str = "",
    facts: TargetFacts = TARGET,
    crashed: bool = True,
    logged: str = "",
) -> bool | str:
    """What comes out; "unknown" if it is refused."""
    answers: dict[str, Rows] = {
        "gtid_binlog_state": [{"state": state, "last": last or state}],
        "SHOW BINARY LOGS": [{"Log_name": "b.000001"}],
        "SHOW BINLOG EVENTS": [{"Info": f"GTID {last}"}, {"Info": f"use `shop`; {logged}"}],
    }
    found = following(found) if isinstance(found, str) else found
    try:
        place = PLACE if facts.flavour == "mariadb" else None
        return is_executed(target_of(facts, answers), found, place, crashed=crashed)
    except RecoveryError as error:
        told = "SET GLOBAL gtid_slave_pos = '0-1-82'" in error.hint
        return "unknown" if told is (facts.flavour == "mariadb") else f"{error} {error.hint}"


@pytest.mark.parametrize(
    "text", [ADD, SWAP, EXCHANGE, "CREATE DATABASE d", "GRANT ALL ON *.* TO a"]
)
def test_what_the_binlog_has_was_executed(text: str) -> None:
    """Whether the target was started again or not, and whatever comes after it there."""
    assert asked(text, "0-1-82") is True
    assert asked(text, "0-1-82", crashed=False) is True
    assert asked(text, "0-1-82,0-9-83", last="0-9-83") is True
    assert asked(text, "0-7-82") is not True


@pytest.mark.parametrize(
    ("found", "atomic", "not_logged"),
    [
        (ADD, False, "unknown"),
        (SWAP, False, "unknown"),
        (EXCHANGE, "unknown", "unknown"),
        (following("ALTER TABLE a ADD COLUMN c INT, ADD", cut=True), "unknown", "unknown"),
        (following(f"ALTER TABLE \x82` {SWAPPED}", writing=CP932), "unknown", "unknown"),
        (following(f'ALTER TABLE "a\\" {SWAPPED} "b"', writing=ANSI), "unknown", "unknown"),
        ("CREATE TABLE a (i INT)", False, False),
        ("DROP TABLE a", False, False),
        ("ALTER USER a ACCOUNT LOCK", False, False),
        ("TRUNCATE a", False, False),
    ],
)
def test_what_it_does_not_have(
    found: str | Next, atomic: bool | str, not_logged: bool | str
) -> None:
    """Executed again where that is right or an error, refused where it may do harm silently."""
    assert asked(found, "0-1-81") == atomic
    assert asked(found, "0-1-81", crashed=False) is False
    for facts in (
        replace(TARGET, log_bin=False),
        replace(TARGET, logs_replicated=False),
        replace(TARGET, version="10.5.20-MariaDB"),
        replace(FACTS, version="5.7.44"),
    ):
        assert asked(found, "0-1-81", facts=facts) == not_logged
    assert asked(found, "", facts=FACTS) is False


def test_what_a_start_has_completed() -> None:
    """It is in the binlog under a GTID of the target's own; another one there proves nothing."""
    own = {"last": f"0-{TARGET.server_id}-82"}
    state = f"0-1-81,{own['last']}"
    assert asked(ADD, state, **own, logged=ADD) is True
    assert asked(ADD, state, **own, logged="ALTER TABLE b ADD INDEX (v)") == "unknown"
    assert asked(ADD, own["last"], **own, logged=ADD) == "unknown"
    assert asked(SWAP, state, **own, logged="DELETE FROM m") == "unknown"


def test_what_commits_with_its_place() -> None:
    """Rows, and XA: the place is right, whatever the binlog has."""
    assert asked(following("INSERT INTO a VALUES (1)", "insert"), "0-1-82") is False
    assert asked(following(ADD, two_phase=TwoPhase("commit", None)), "0-1-82") is False


def test_what_cannot_be_read() -> None:
    """Is refused behind a crash."""
    assert asked(following(ADD, lost=True), "0-1-81") == "unknown"


def test_the_place_after_it() -> None:
    """One GTID of each domain."""
    place = MariadbGtidList.parse("0-1-81,3-1-7")
    assert str(after(place, "0-5-4")) == "0-5-4,3-1-7"


def test_what_a_mysql_takes_for_a_comment() -> None:
    """Of what MariaDB executes in a comment, a MySQL executes nothing."""
    text, old = f"/*M! CREATE */ {ADD}", replace(FACTS, version="5.7.44")
    ours = following(text, writing=Writing(sql_mode=0, mysql=True))
    assert asked(ours, "", facts=old) == "unknown"
    assert asked(following(text), "", facts=old) is False
