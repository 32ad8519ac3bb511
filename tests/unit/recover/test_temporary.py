"""Statements that use a temporary table from before the recovery begins."""

import struct

from binlog2s3.binlog.events import EventType
from binlog2s3.recover.temporary import OlderTemporary
from tests.binlog_writer import query_body
from tests.unit.binlog.test_content import Event
from tests.unit.recover.watched import saw

MAKES = "/* x */ CREATE TEMPORARY TABLE perm (id INT)"
DROPS = "DROP /*!40005 TEMPORARY */ TABLE IF EXISTS `perm`"


def of(session: int, text: str) -> Event:
    """A statement of a session."""
    return EventType.QUERY, struct.pack("<I", session) + query_body(text)[4:]


def seen(*events: Event, flags: int = 4) -> OlderTemporary:
    return saw(OlderTemporary(), *events, flags=flags)


def test_a_change_by_a_session_that_made_none_since_is_a_doubt() -> None:
    """Whatever other sessions made; that it ends, which drops the table, changes nothing."""
    found = seen(of(7, MAKES), of(8, "DELETE FROM perm"), of(8, "INSERT INTO perm VALUES (1)"))
    assert found.number == 2
    assert "this statement and 1 more used a temporary table" in found.doubt
    assert found.doubt.endswith(": DELETE FROM perm")
    assert seen(of(8, DROPS)).doubt == ""


def test_a_table_that_was_made_since_is_in_the_target_too() -> None:
    """Also for the statements after it is dropped."""
    assert seen(of(8, MAKES), of(8, "DELETE FROM perm"), of(8, DROPS)).doubt == ""


def test_other_statements_are_none() -> None:
    """Their events do not have the flag, or have it for the number of their session."""
    assert seen(of(8, "DELETE FROM perm"), flags=0).doubt == ""
    assert seen(of(8, "INSERT INTO t VALUES (connection_id())")).doubt == ""
