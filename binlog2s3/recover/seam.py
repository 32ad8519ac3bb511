"""Whether a target that was interrupted in the middle of a statement has carried it out.

`interrupted` asks for the first transaction after the position that the target names, before
anything is applied again.

A transaction of rows commits together with the target's position. A statement like ALTER TABLE does
not, on MariaDB and before MySQL 8.0: first it takes effect, then the target's own binlog gets it,
and then the position. A crash in between leaves a position that is too early. MariaDB from 10.6 on
rolls most statements back, or writes them to its binlog under a GTID of its own; a statement about
partitions stays without a trace (seen with 10.11.19, killed at each of these positions).

Law: what the target's own binlog has was executed. Where it is unknown, and executing the statement
twice would not end with an error, the recovery is refused.
"""

import re
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeGuard

from binlog2s3.binlog.content import ROW_KINDS, TEXT_MOST, Content
from binlog2s3.binlog.gtid import Gtids, MariadbGtidList, mariadb_gtid
from binlog2s3.binlog.statements import Statement
from binlog2s3.errors import RecoveryError, SourceError
from binlog2s3.recover.target import Target, TargetFacts

_OF_TABLES = frozenset({"OPTIMIZE", "ANALYZE", "REPAIR", "FLUSH"})
"""Statements that change no rows, and commit like a definition."""
_SHOWN = 160
_BINLOGS, _EVENTS = 100, 1000
"""So many of the target's last binlogs are read, and events of each: a start begins a new one."""
_USE = re.compile(r"\Ause `(?:[^`]|``)*`; ")


@dataclass(frozen=True, slots=True)
class Next:
    """The first transaction after the position that a target names: its GTID, what it does.

    `statements`: all of it, parsed as their events say that they are written.
    """

    gtid: str | None
    content: Content
    statements: tuple[Statement, ...]


def is_executed(target: Target, upcoming: Next, replicated: Gtids | None, *, crashed: bool) -> bool:
    """Whether the target has executed it, although what it has `replicated` ends before it.

    `crashed`: the target was started again since the interrupted run began. Raises RecoveryError if
    it cannot be known, SourceError.
    """
    facts = target.facts
    is_atomic = facts.release.has_atomic_statements
    if not _is_statement(upcoming) or (facts.flavour == "mysql" and is_atomic):
        return False
    trace = is_atomic and facts.log_bin and facts.logs_replicated
    if facts.flavour == "mariadb" and facts.log_bin and upcoming.gtid is not None:
        own = _OwnBinlog(target)
        if own.has(upcoming.gtid):
            return True
        if crashed and own.ends_with_its_own and trace:
            if own.has_after(replicated, upcoming):
                return True
            trace = False
    if crashed and _is_silent(upcoming, leaves_trace=trace):
        raise _unknown(facts, upcoming, replicated)
    return False


class _OwnBinlog:
    """What a MariaDB's own binlog says: the last GTIDs in it, and a statement of its own."""

    def __init__(self, target: Target) -> None:
        self._server = target.server
        row = self._server.rows(
            "SELECT @@global.gtid_binlog_state AS state, @@global.gtid_binlog_pos AS last"
        )[0]
        self._logged = set(MariadbGtidList.parse(str(row["state"])).gtids())
        last = MariadbGtidList.parse(str(row["last"])).gtids()
        self._own = [gtid for gtid in last if gtid[1] == target.facts.server_id]

    def has(self, gtid: str) -> bool:
        """Whether it is the last one of its server."""
        return mariadb_gtid(gtid) in self._logged

    @property
    def ends_with_its_own(self) -> bool:
        """Whether this server's own GTID is the last one of a domain."""
        return bool(self._own)

    def has_after(self, replicated: Gtids | None, upcoming: Next) -> bool:
        """Whether this statement, under the server's own GTID, is the last after `replicated`.

        When it starts after a crash, a MariaDB writes so what it has completed. False if the
        account may not look.
        """
        assert upcoming.gtid is not None  # noqa: S101 - the caller has seen it
        domain = mariadb_gtid(upcoming.gtid)[0]
        own = [gtid for gtid in self._own if gtid[0] == domain]
        before = (
            {gtid for gtid in replicated.gtids() if gtid[0] == domain}
            if _is_list(replicated)
            else set()
        )
        text = upcoming.content.statements[0].strip() if not upcoming.content.lost else ""
        if not own or not before or not before <= self._logged or not 0 < len(text) < TEXT_MOST:
            return False
        return self._text_of("{}-{}-{}".format(*own[0])) == text

    def _text_of(self, gtid: str) -> str | None:
        """The statement of that GTID; only the last binlogs, and little of each, are read."""
        with suppress(SourceError):
            names = [str(row["Log_name"]) for row in self._server.rows("SHOW BINARY LOGS")]
            for name in names[: -_BINLOGS - 1 : -1]:
                events = self._server.rows(
                    f"SHOW BINLOG EVENTS IN %s LIMIT {_EVENTS}",
                    (name,),
                )
                for event, following in pairwise(events):
                    if str(event["Info"]).rpartition("GTID ")[2].split(" ")[0] == gtid:
                        return _USE.sub("", str(following["Info"])).strip()
        return None


def _is_list(replicated: Gtids | None) -> TypeGuard[MariadbGtidList]:
    return isinstance(replicated, MariadbGtidList)


def after(replicated: MariadbGtidList, gtid: str) -> MariadbGtidList:
    """The position after this transaction: one GTID of each domain."""
    domain, wrote, number = mariadb_gtid(gtid)
    others = {(d, s): n for d, s, n in replicated.gtids() if d != domain}
    return MariadbGtidList({**others, (domain, wrote): number})


def _is_statement(upcoming: Next) -> bool:
    """Whether it is a statement that does not commit together with the target's position."""
    content = upcoming.content
    is_xa = content.two_phase is not None and not content.two_phase.is_alter
    if is_xa or any(change.kind in ROW_KINDS for change in content.changes):
        return False
    if content.lost or len(upcoming.statements) != 1:
        return content.lost
    (statement,) = upcoming.statements
    return statement.kind == "ddl" or statement.word in _OF_TABLES


def _is_silent(upcoming: Next, *, leaves_trace: bool) -> bool:
    """Whether executing it twice may change something without an error.

    `leaves_trace`: if the target has executed it, its binlog says so, except about partitions.
    """
    if upcoming.content.lost:
        return True
    (statement,) = upcoming.statements
    words, is_cut = statement.clear.keywords(), statement.clear.cut
    if statement.word == "ALTER":
        about_rows = is_cut or "PARTITION" in words or not leaves_trace
        return about_rows and (is_cut or "TABLE" in words)
    return statement.word == "RENAME" and not leaves_trace


def told_executed(replicated: Gtids | None, gtid: str | None) -> str:
    """What tells a MariaDB that it has executed this transaction; "" for others."""
    if gtid is None or not isinstance(replicated, MariadbGtidList):
        return ""
    return f"SET GLOBAL gtid_slave_pos = '{after(replicated, gtid)}'"


def _unknown(facts: TargetFacts, upcoming: Next, replicated: Gtids | None) -> RecoveryError:
    named = f" {upcoming.gtid}" if upcoming.gtid else ""
    text = " ".join(" ".join(upcoming.content.statements).split())[:_SHOWN]
    statement = told_executed(replicated, upcoming.gtid)
    look = (
        "look at the target: if it has carried it out, {} there, and run the same command again; "
    )
    return facts.refusal(
        f"crashed where transaction{named} was next, and it is "
        f"unknown whether it has carried it out: {text!r}; twice would be wrong without an error",
        (look.format(statement) + "if not, " if statement else "")
        + "restore the base backup again",
    )
