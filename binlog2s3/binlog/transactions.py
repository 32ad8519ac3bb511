"""Where transactions begin and end in a binlog, when they were committed, which GTIDs they add.

Place: the `scanner` shows every event that passed its checks to a `Boundaries`, which
keeps the transaction that is open and counts those that are whole. No I/O.

Law: a transaction counts when its last event has passed; one whose first event was not seen never
does. A body that cannot be decoded raises and changes nothing.

A transaction begins with its GTID event (GTID, ANONYMOUS_GTID, GTID_TAGGED) and ends as this
table says:

| server | transaction | ends with |
|---|---|---|
| MySQL from 8.0.2 | all | the byte that its GTID event names: begin + transaction length |
| any | transactional tables | XID |
| any | other tables; mixed; rolled back | QUERY that is `COMMIT` or `ROLLBACK`, the word alone |
| any | DDL, account statements: QUERY outside BEGIN | that QUERY (EXECUTE_LOAD_QUERY) |
| any | first phase of XA; one-phase XA | XA_PREPARE |
| any | second phase: QUERY `XA COMMIT`, `XA ROLLBACK` | that QUERY |
| MySQL | compressed, no transaction length | TRANSACTION_PAYLOAD |
| MySQL | INCIDENT outside BEGIN | that INCIDENT |
| MariaDB | GTID event with the standalone flag | the next statement event (QUERY and the like) |
| any | none of these before the next GTID event | where that GTID event begins |

MariaDB's GTID event without the standalone flag stands for BEGIN. Without GTID events (before
MySQL 5.6 and MariaDB 10.0; MySQL 5.6 with gtid_mode off) QUERY `BEGIN` or `XA START` begins a
transaction, and so does a QUERY outside one, or the INTVAR, RAND, USER_VAR before it. SAVEPOINT,
ROLLBACK TO and XA END are statements like others.
"""

from dataclasses import dataclass
from enum import IntEnum

from binlog2s3.binlog.events import (
    Buffer,
    EventType,
    decode_gtid,
    decode_mariadb_gtid,
    decode_query,
    decode_tagged_gtid,
)
from binlog2s3.binlog.gtid import GtidSet, GtidSetBuilder, MariadbGtidList


@dataclass(frozen=True, slots=True, kw_only=True)
class Transaction:
    """A whole transaction: the bytes from `begin` up to `end` of its binlog.

    `gtid` is "uuid:5", "uuid:tag:5" or MariaDB's "0-1-5", None for an anonymous one. `commit_us`
    is when this server committed it, in microseconds since the epoch, UTC: its
    immediate_commit_timestamp if `commit_exact`, else the header time of its last event, in whole
    seconds. `original_commit_us` is when the server it came from did (None before MySQL 8.0.1).
    """

    begin: int
    end: int
    gtid: str | None
    commit_us: int
    commit_exact: bool
    original_commit_us: int | None


class Kind(IntEnum):
    """What an event means for the transaction around it.

    From GTID on, events stand between transactions; from BETWEEN on they are not about
    transactions at all. Inside a transaction whose length is known, all others are only counted.
    """

    SKIP = 0
    QUERY = 1
    STATEMENT = 2
    BEFORE_STATEMENT = 3
    COMMIT = 4
    INCIDENT = 5
    GTID = 6
    ANONYMOUS_GTID = 7
    GTID_TAGGED = 8
    MARIADB_GTID = 9
    BETWEEN = 10


_KINDS: dict[int, Kind] = {
    EventType.QUERY: Kind.QUERY,
    EventType.QUERY_COMPRESSED: Kind.STATEMENT,  # COMMIT is too short to be compressed
    EventType.LOAD: Kind.STATEMENT,
    EventType.EXEC_LOAD: Kind.STATEMENT,
    EventType.EXECUTE_LOAD_QUERY: Kind.STATEMENT,
    EventType.INTVAR: Kind.BEFORE_STATEMENT,
    EventType.RAND: Kind.BEFORE_STATEMENT,
    EventType.USER_VAR: Kind.BEFORE_STATEMENT,
    EventType.BEGIN_LOAD_QUERY: Kind.BEFORE_STATEMENT,
    EventType.XID: Kind.COMMIT,
    EventType.XA_PREPARE: Kind.COMMIT,
    EventType.TRANSACTION_PAYLOAD: Kind.COMMIT,
    EventType.INCIDENT: Kind.INCIDENT,
    EventType.GTID: Kind.GTID,
    EventType.ANONYMOUS_GTID: Kind.ANONYMOUS_GTID,
    EventType.GTID_TAGGED: Kind.GTID_TAGGED,
    EventType.MARIADB_GTID: Kind.MARIADB_GTID,
    EventType.FORMAT_DESCRIPTION: Kind.BETWEEN,
    EventType.ROTATE: Kind.BETWEEN,
    EventType.STOP: Kind.BETWEEN,
    EventType.PREVIOUS_GTIDS: Kind.BETWEEN,
    EventType.GTID_LIST: Kind.BETWEEN,
    EventType.BINLOG_CHECKPOINT: Kind.BETWEEN,
    EventType.START_ENCRYPTION: Kind.BETWEEN,
}
KINDS = bytes(_KINDS.get(event_type, Kind.SKIP) for event_type in range(256))
"""The kind of each event type, for a loop that cannot afford an enum."""

DEFERRABLE = bytes(
    event_type in EventType.__members__.values() and KINDS[event_type] < Kind.GTID
    for event_type in range(256)
)
"""By event type: 1 if it may stand inside a transaction, where MariaDB from 11.4 leaves the
position out of all events but the first and the last."""

_QUERY, _STATEMENT, _BEFORE, _COMMIT, _INCIDENT = map(int, list(Kind)[1:6])
_GTID, _ANONYMOUS, _TAGGED, _MARIADB, _BETWEEN = map(int, list(Kind)[6:])

# Where the last event left us: outside any transaction; behind a GTID event (or an INTVAR and the
# like), where one statement is all; behind BEGIN; in the middle of a binlog, before the first
# event that tells.
_OUTSIDE, _BEGUN, _GROUP, _UNKNOWN = range(4)


class Boundaries:
    """The transaction that is open, and what the whole ones add up to.

    `until` is the offset at which the open transaction ends if its GTID event said so, else 0.
    `completed` collects transactions; whoever takes them puts a new list there.
    """

    __slots__ = (
        "_commit_us",
        "_mariadb",
        "_mariadb_gtid",
        "_mysql",
        "_mysql_gtid",
        "_original_us",
        "_state",
        "_timestamp",
        "anonymous",
        "begin",
        "completed",
        "greatest_commit_us",
        "gtid_events",
        "least_commit_us",
        "transactions",
        "until",
    )

    def __init__(self, *, in_the_middle: bool) -> None:
        """`in_the_middle`: the first event may belong to a transaction that began before it."""
        self._state = _UNKNOWN if in_the_middle else _OUTSIDE
        self.gtid_events = True
        self.begin = 0
        self.until = 0
        self.completed: list[Transaction] = []
        self.transactions = 0
        self.anonymous = 0
        self.least_commit_us: int | None = None
        self.greatest_commit_us: int | None = None
        self._mysql_gtid: tuple[str, str, int] | None = None
        self._mariadb_gtid: tuple[int, int, int] | None = None
        self._commit_us = 0
        self._original_us = 0
        self._timestamp = 0
        self._mysql = GtidSetBuilder()
        self._mariadb: dict[tuple[int, int], int] = {}

    @property
    def is_outside(self) -> bool:
        """Whether it is known that no transaction is open."""
        return self._state == _OUTSIDE

    @property
    def is_unknown(self) -> bool:
        """Whether no event has told yet if a transaction is open."""
        return self._state == _UNKNOWN

    def mysql_gtids(self) -> GtidSet:
        """The GTIDs of the whole transactions."""
        return self._mysql.build()

    def mariadb_gtids(self) -> MariadbGtidList:
        """The last GTID of each (domain, server) among the whole transactions."""
        return MariadbGtidList(self._mariadb)

    def event(  # noqa: PLR0917  # one call for many an event: no object, no keywords
        self,
        kind: int,
        buf: Buffer,
        body: tuple[int, int],
        span: tuple[int, int],
        timestamp: int,
        server_id: int,
    ) -> None:
        """Take in one event: its body lies in `buf` at `body`, it spans `span` of the binlog."""
        begin, end = span
        if _GTID <= kind < _BETWEEN:
            self._gtid_event(kind, buf, body, begin, server_id)
        elif kind == _BETWEEN:
            if self._state == _UNKNOWN:
                self._state = _OUTSIDE
            return
        else:
            query = decode_query(buf, *body) if kind == _QUERY else None
            if self.until:
                # the length that the GTID event named is no event's end: the events must tell
                self.until, self._state = 0, _GROUP
            if query == "begin":
                self._open(begin)
            elif query == "end" or (query == "xa end" and self._state in (_GROUP, _UNKNOWN)):
                self.close(end, timestamp)
            else:
                self._part(kind, begin, end, timestamp)
        self._timestamp = timestamp

    def _part(self, kind: int, begin: int, end: int, timestamp: int) -> None:
        """An event of a transaction, which may be its first, its last, or both."""
        if self._state == _OUTSIDE and kind in (_QUERY, _STATEMENT, _BEFORE):
            self._start(begin)
        is_whole = self._state == _BEGUN and kind in (_QUERY, _STATEMENT, _INCIDENT)
        if kind == _COMMIT or is_whole:
            self.close(end, timestamp)

    def _open(self, begin: int) -> None:
        """A BEGIN: of the transaction that its GTID event began, or of one without such."""
        if self._state == _OUTSIDE or (self._state == _UNKNOWN and not self.gtid_events):
            self._start(begin)
        if self._state == _BEGUN:
            self._state = _GROUP

    def _gtid_event(
        self, kind: int, buf: Buffer, body: tuple[int, int], begin: int, server_id: int
    ) -> None:
        """Another transaction begins: one that is open has ended, however that was."""
        if kind == _MARIADB:
            seq, domain, standalone = decode_mariadb_gtid(buf, *body)
            self.close(begin, self._timestamp)
            self._start(begin)
            self._mariadb_gtid = (domain, server_id, seq)
            self._state = _BEGUN if standalone else _GROUP
            return
        decode = decode_tagged_gtid if kind == _TAGGED else decode_gtid
        uuid, tag, gno, immediate, original, length = decode(buf, *body)
        self.close(begin, self._timestamp)
        self._start(begin)
        self._mysql_gtid = None if kind == _ANONYMOUS else (uuid, tag, gno)
        self._commit_us, self._original_us = immediate, original
        self.until = begin + length if length else 0

    def _start(self, begin: int) -> None:
        self._state = _BEGUN
        self.begin = begin
        self._mysql_gtid = self._mariadb_gtid = None
        self._commit_us = self._original_us = 0

    def close(self, end: int, timestamp: int) -> None:
        """The open transaction ends at `end`, with an event of this header time in seconds."""
        state, self._state, self.until = self._state, _OUTSIDE, 0
        if state in (_OUTSIDE, _UNKNOWN):
            return
        commit_us = self._commit_us or timestamp * 1_000_000
        self.completed.append(
            Transaction(
                begin=self.begin,
                end=end,
                gtid=self._add_gtid(),
                commit_us=commit_us,
                commit_exact=self._commit_us != 0,
                original_commit_us=self._original_us or None,
            ),
        )
        self.transactions += 1
        if self.least_commit_us is None or commit_us < self.least_commit_us:
            self.least_commit_us = commit_us
        if self.greatest_commit_us is None or commit_us > self.greatest_commit_us:
            self.greatest_commit_us = commit_us

    def _add_gtid(self) -> str | None:
        """Count the open transaction's GTID in, and return its text."""
        if self._mysql_gtid is not None:
            uuid, tag, gno = self._mysql_gtid
            self._mysql.add(uuid, tag, gno)
            return f"{uuid}:{tag}:{gno}" if tag else f"{uuid}:{gno}"
        if self._mariadb_gtid is not None:
            domain, server_id, seq = self._mariadb_gtid
            self._mariadb[domain, server_id] = seq
            return f"{domain}-{server_id}-{seq}"
        self.anonymous += 1
        return None
