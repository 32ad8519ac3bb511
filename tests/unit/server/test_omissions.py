"""What a server says that its binlogs do not have."""

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from binlog2s3.binlog.gtid import GtidSet
from binlog2s3.errors import SourceError
from binlog2s3.server.omissions import came_in, gtids_that_came_in, omissions
from binlog2s3.server.version import ServerVersion
from tests.documents import UUID

Answers = Mapping[str, list[dict[str, Any]] | SourceError]
MARIADB = "11.8.2-MariaDB"
DENIED = SourceError("denied", needs_privilege=True)


def server(version: str, answers: Answers) -> Any:
    """It answers each statement by its first words."""

    def rows(statement: str) -> list[dict[str, Any]]:
        found = next(answers[words] for words in answers if statement.startswith(words))
        if isinstance(found, SourceError):
            raise found
        return found

    ask: Callable[[str], list[dict[str, Any]]] = rows
    return SimpleNamespace(rows=ask, version=ServerVersion(version))


def variables(**values: str) -> Answers:
    rows = [{"Variable_name": name, "Value": value} for name, value in values.items()]
    return {"SHOW GLOBAL VARIABLES": rows}


def status(statement: str, **row: str) -> Answers:
    return {statement: [row]}


NOT_LOGGED = variables(log_slave_updates="OFF")
FILTERED = variables(log_slave_updates="OFF", replicate_wild_ignore_table="a.%")
NODE = status("SHOW GLOBAL STATUS LIKE 'wsrep_connected'", Value="ON")
"""Of a Galera cluster, with wsrep_on = OFF."""
DO = status("SHOW BINARY LOG STATUS", Binlog_Do_DB="a,b", Binlog_Ignore_DB="")
IGNORE = status("SHOW MASTER STATUS", Binlog_Do_DB="", Binlog_Ignore_DB="tmp\x1b")
REPLICA = status("SHOW REPLICA STATUS", Replicate_Do_DB="shop", Replicate_Wild_Do_Table="")
APPLIED = {"SHOW ALL SLAVES STATUS": DENIED, **status("SHOW GLOBAL STATUS", Value="1")}


@pytest.mark.parametrize(
    ("version", "answers", "found"),
    [
        ("9.7.4", {}, ()),
        ("9.7.4", DO, ("binlog_do_db=a,b",)),
        ("8.0.40", IGNORE, ("binlog_ignore_db=tmp\ufffd",)),
        (
            "9.7.4",
            variables(binlog_error_action="IGNORE_ERROR"),
            ("binlog_error_action=IGNORE_ERROR",),
        ),
        ("9.7.4", variables(binlog_error_action="ABORT_SERVER"), ()),
        ("9.7.4", variables(log_replica_updates="OFF"), ()),
        (
            "9.7.4",
            {**variables(log_replica_updates="OFF"), **REPLICA},
            ("replicate_do_db=shop", "log_replica_updates=OFF"),
        ),
        (
            MARIADB,
            {**NODE, **FILTERED},
            ("replicate_wild_ignore_table=a.%", "log_slave_updates=OFF"),
        ),
        (MARIADB, {**NOT_LOGGED, **APPLIED}, ("log_slave_updates=OFF",)),
        ("9.7.4", variables(ndb_log_bin="OFF"), ("ndb_log_bin=OFF",)),
        ("9.7.4", {"SHOW GLOBAL VARIABLES": DENIED}, None),
    ],
)
def test_what_a_server_says(version: str, answers: Answers, found: tuple[str, ...] | None) -> None:
    """Filters, and what is written without a binlog; what is denied is not known."""
    nothing = {**status("SHOW GLOBAL STATUS", Value="0"), "SHOW": [], "SELECT": [{"applied": ""}]}
    alone: Answers = {"SHOW GLOBAL VARIABLES LIKE 'wsrep_on'": []}
    assert omissions(server(version, {**alone, **answers, **nothing} | answers)) == found


def test_what_may_be_a_node_and_does_not_tell() -> None:
    """A proxy that refuses the question does not end a streamer: the rest is said."""
    refused = {"SHOW GLOBAL VARIABLES LIKE 'wsrep_on'": DENIED, **NOT_LOGGED, "SHOW": []}
    nothing: Answers = {"SELECT": [{"applied": ""}], **variables(ndb_log_bin="OFF")}
    assert omissions(server("9.7.4", {**refused, **nothing})) == ("ndb_log_bin=OFF",)


def test_a_server_that_is_away_has_said_nothing() -> None:
    """It is asked again: silence is no answer."""
    away = SourceError("away", transient=True)
    with pytest.raises(SourceError, match="away"):
        omissions(server("9.7.4", {"SHOW": away}))


def test_what_came_in_is_known_whole_however_many_pieces_it_has() -> None:
    """A replica that lacks one of them must be refused; of a huge set at least whole servers."""
    pieces = GtidSet.parse(f"{UUID}:" + ":".join(str(number) for number in range(1, 900, 2)))
    assert gtids_that_came_in([came_in(pieces)]) == pieces
    servers = (f"3e11fa47-71ca-11e1-9e33-{number:012x}:1-9" for number in range(3000))
    huge = GtidSet.parse(",".join(servers))
    found = gtids_that_came_in([came_in(huge)])
    assert found <= huge
    assert found.count > 9000
