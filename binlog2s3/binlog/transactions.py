"""Where transactions begin and end in a binlog, when they were committed, which GTIDs they add.

The `scanner` passes every event that is good to a `Boundaries`. No I/O.

Law: a transaction counts once its last event has passed, and only if its first event was seen. A
body that cannot be decoded raises an error and changes nothing.

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
| any | INCIDENT outside BEGIN (MariaDB's has no GTID event) | that INCIDENT |
| MariaDB | GTID event with the standalone flag | the next statement event (QUERY and the like) |
| any | none of these before the next GTID event | where that GTID event begins |

MariaDB's GTID event without the standalone flag stands for BEGIN. Without GTID events (before
MySQL 5.6 and MariaDB 10.0; MySQL 5.6 with gtid_mode off) QUERY `BEGIN` or `XA START` begins a
transaction, and so does a QUERY outside one, or the INTVAR, RAND, USER_VAR before it. SAVEPOINT,
ROLLBACK TO and XA END are statements like others.
"""

from dataclasses import dataclass
from enum import IntEnum
from struct import Struct

from binlog2s3.binlog.events import (
    HEADER_SIZE,
    Buffer,
    EventType,
    decode_gtid,
    decode_mariadb_gtid,
    decode_query,
    decode_tagged_gtid,
    uuid_text,
)
from binlog2s3.binlog.gtid import GtidSet, GtidSetBuilder, MariadbGtidList


@dataclass(frozen=True, slots=True, kw_only=True)
class Transaction:
    """A whole transaction: the bytes from `begin` up to `end` of its binlog.

    `gtid` is "uuid:5", "uuid:tag:5" or MariaDB's "0-1-5"; None for an anonymous transaction.
    `commit_us` is the time of the commit on this server, in microseconds since the epoch, UTC: the
    immediate_commit_timestamp if `commit_exact`, otherwise the header time of the last event, in
    whole seconds. `original_commit_us` is the time of the commit on the server that the transaction
    came from (None before MySQL 8.0.1).
    """

    begin: int
    end: int
    gtid: str | None
    commit_us: int
    commit_exact: bool
    original_commit_us: int | None


CLAIM_SLACK_US = 60_000_000
"""So much later than it was received a transaction may say it was committed: clocks differ."""


def is_credible(commit_us: int, received_us: int) -> bool:
    """Whether a transaction that was received then may have been committed at that time.

    A commit time is what the server's clock and, but for MySQL from 8.0.1 on, the session
    (`SET timestamp`) say. The time of the commit is never later than that of the receipt. Both in
    microseconds, UTC.
    """
    return commit_us <= received_us + CLAIM_SLACK_US


def credible(commit_us: int | None, received_us: int) -> int | None:
    """The greatest commit time of a binlog, None if that is not credible."""
    return commit_us if commit_us is not None and is_credible(commit_us, received_us) else None


class Kind(IntEnum):
    """What an event means for the transaction around it.

    Kinds from GTID on begin a transaction or stand between two; BETWEEN and later are not about
    transactions at all. Inside a transaction of known length, all others are only counted.
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
"""The kind of each event type. Bytes, because the loops cannot afford an enum."""

DEFERRABLE = bytes(
    event_type in EventType.__members__.values() and KINDS[event_type] < Kind.GTID
    for event_type in range(256)
)
"""By event type: 1 if it may be inside a transaction. There, MariaDB from 11.4 leaves the position
out of all events except the first and the last."""

_QUERY, _STATEMENT, _BEFORE, _COMMIT, _INCIDENT = map(int, list(Kind)[1:6])
_GTID, _ANONYMOUS, _TAGGED, _MARIADB, _BETWEEN = map(int, list(Kind)[6:])

# The state after an event: outside any transaction; unknown, in the middle of a binlog; after a
# GTID event (or INTVAR and the like), where one statement is the whole transaction; after BEGIN.
_OUTSIDE, _UNKNOWN, _BEGUN, _GROUP = range(4)


_TIME_AND_SERVER = Struct("<IxI").unpack_from
"""Of an event's header: its time in seconds, and the id of its server."""


class Boundaries:
    """The open transaction, and the sums over the whole ones.

    `until` is the offset at which the open transaction ends if its GTID event says so, else 0.
    `last_end` and `last_commit_us` belong to the last whole transaction (0 before the first).
    `reached_us` is the greatest commit time that is credible (-1 before the first): only those up
    to `limit_us` are, which the reader sets for the events that follow. It is no limit at first.
    `completed` collects whole transactions: the first after `collect`, and the first that begins in
    each range of `stride` bytes. One that begins before `wanted` is not collected.
    """

    __slots__ = (
        "_commit_us",
        "_gtid",
        "_mariadb",
        "_mariadb_gtid",
        "_mysql",
        "_original_us",
        "_state",
        "_stride",
        "_timestamp",
        "anonymous",
        "begin",
        "commit_exact",
        "completed",
        "goes_back",
        "greatest_us",
        "gtid_events",
        "last_commit_us",
        "last_end",
        "least",
        "least_us",
        "limit_us",
        "reached_us",
        "transactions",
        "until",
        "wanted",
    )

    def __init__(self, *, in_the_middle: bool, stride: int) -> None:
        """`in_the_middle`: a transaction may be open before the first event."""
        self._state = _UNKNOWN if in_the_middle else _OUTSIDE
        self._stride = stride
        self.wanted = 0
        self.gtid_events = True
        self.begin = 0
        self.until = 0
        self.completed: list[Transaction] = []
        self.transactions = 0
        self.anonymous = 0
        self.commit_exact = True
        self.last_end = self.last_commit_us = 0
        self.least_us, self.greatest_us = 1 << 64, -1
        self.limit_us, self.reached_us = 1 << 64, -1
        self._gtid: tuple[str, str, int] | None = None
        self._mariadb_gtid: tuple[int, int, int] | None = None
        self._commit_us = 0
        self._original_us = 0
        self._timestamp = 0
        self._mysql = GtidSetBuilder()
        self._mariadb: dict[tuple[int, int], int] = {}
        self.goes_back = False
        self.least: dict[tuple[int, int], int] = {}

    @property
    def is_outside(self) -> bool:
        """Whether certainly no transaction is open."""
        return self._state == _OUTSIDE

    @property
    def is_unknown(self) -> bool:
        """Whether a transaction may be open: no event has shown it yet."""
        return self._state == _UNKNOWN

    def mysql_gtids(self) -> GtidSet:
        """The GTIDs of the whole transactions."""
        return self._mysql.build()

    def mariadb_gtids(self) -> MariadbGtidList:
        """The last GTID of each (domain, server) among the whole transactions."""
        return MariadbGtidList(self._mariadb)

    def collect(self) -> list[Transaction]:
        """Begin a new `completed` list, and return it."""
        self.completed = []
        self.wanted = 0
        return self.completed

    def event(  # one call for many an event: no object, no keywords
        self, kind: int, buf: Buffer, at: int, stop: int, begin: int, end: int
    ) -> None:
        """Take the event `buf[at:stop]` (without its checksum): [begin, end) of the binlog."""
        body = at + HEADER_SIZE
        if _GTID <= kind <= _TAGGED:
            decode = decode_tagged_gtid if kind == _TAGGED else decode_gtid
            gtid, immediate, original, length = decode(buf, body, stop)
            if self._state != _OUTSIDE:
                self.close(begin)
            self._state, self.begin = _BEGUN, begin
            self._gtid = None if kind == _ANONYMOUS else gtid
            self._commit_us, self._original_us = immediate, original
            if not immediate:
                self._timestamp, _ = _TIME_AND_SERVER(buf, at)
            elif length:
                self.until = begin + length
        elif kind == _MARIADB:
            seq, domain, standalone = decode_mariadb_gtid(buf, body, stop)
            self._start(begin)
            self._timestamp, server_id = _TIME_AND_SERVER(buf, at)
            self._mariadb_gtid = (domain, server_id, seq)
            self._state = _BEGUN if standalone else _GROUP
        elif kind != _BETWEEN:
            query = decode_query(buf, body, stop) if kind == _QUERY else None
            self._timestamp, _ = _TIME_AND_SERVER(buf, at)
            if self.until:
                # no event ends at that length: it is wrong, so look for the last event instead
                self.until, self._state = 0, _GROUP
            if query == "begin":
                self._open(begin)
            elif query == "end" or (query == "xa end" and self._state in (_GROUP, _UNKNOWN)):
                self.close(end)
            else:
                self._part(kind, begin, end)
        elif self._state == _UNKNOWN:
            self._state = _OUTSIDE

    def _part(self, kind: int, begin: int, end: int) -> None:
        """Take an event that may be a transaction's first, its last, or both."""
        if self._state == _OUTSIDE and kind in (_QUERY, _STATEMENT, _BEFORE, _INCIDENT):
            self._start(begin)
        is_whole = self._state == _BEGUN and kind in (_QUERY, _STATEMENT, _INCIDENT)
        if kind == _COMMIT or is_whole:
            self.close(end)

    def _open(self, begin: int) -> None:
        """Take a BEGIN, with a GTID event before it or without one."""
        if self._state == _OUTSIDE or (self._state == _UNKNOWN and not self.gtid_events):
            self._start(begin)
        if self._state == _BEGUN:
            self._state = _GROUP

    def _start(self, begin: int) -> None:
        """Begin a transaction. If one is still open, it ends here."""
        if self._state != _OUTSIDE:
            self.close(begin)
        self._state, self.begin = _BEGUN, begin
        self._gtid = self._mariadb_gtid = None
        self._commit_us = self._original_us = 0

    def add_whole(self, count: int, anonymous: int, end: int, times: tuple[int, int, int]) -> None:
        """Count whole transactions of MySQL that came while none was open; `add_run` their GTIDs.

        The last one ends at `end`. `times` are its commit time, then the least and the greatest.
        """
        self.transactions += count
        self.anonymous += anonymous
        self.last_end = end
        self.last_commit_us, least_us, greatest_us = times
        self.least_us = min(self.least_us, least_us)
        self.greatest_us = max(self.greatest_us, greatest_us)
        # of times that are not all credible, only these are known
        for us in (least_us, self.last_commit_us, greatest_us):
            if us <= self.limit_us:
                self.reached_us = max(self.reached_us, us)

    def add_run(self, uuid: bytes, first: int, last: int) -> None:
        """Count the GTIDs from number `first` to `last` of one server."""
        self._mysql.add_run(uuid_text(uuid), "", first, last)

    def close(self, end: int) -> None:
        """End the open transaction at offset `end`, and count it."""
        state, self._state, self.until = self._state, _OUTSIDE, 0
        if state <= _UNKNOWN:
            return
        commit_us = self._commit_us
        if not commit_us:
            commit_us = self._timestamp * 1_000_000
            self.commit_exact = False
        if self.begin >= self.wanted:
            self.wanted = (self.begin // self._stride + 1) * self._stride
            self.completed.append(self._transaction(end, commit_us))
        if self._gtid is not None:
            uuid, tag, gno = self._gtid
            self._mysql.add(uuid, tag, gno)
        elif self._mariadb_gtid is not None:
            domain, server_id, seq = self._mariadb_gtid
            key = (domain, server_id)
            if seq <= self._mariadb.get(key, self.least.get(key, -1)):
                self.goes_back = True
            self._mariadb[key] = seq
        else:
            self.anonymous += 1
        self.transactions += 1
        self.last_end, self.last_commit_us = end, commit_us
        self.least_us = min(self.least_us, commit_us)
        self.greatest_us = max(self.greatest_us, commit_us)
        if commit_us <= self.limit_us:
            self.reached_us = max(self.reached_us, commit_us)

    def _transaction(self, end: int, commit_us: int) -> Transaction:
        """The open transaction as a value."""
        gtid = None
        if self._gtid is not None:
            uuid, tag, gno = self._gtid
            gtid = f"{uuid}:{tag}:{gno}" if tag else f"{uuid}:{gno}"
        elif self._mariadb_gtid is not None:
            domain, server_id, seq = self._mariadb_gtid
            gtid = f"{domain}-{server_id}-{seq}"
        return Transaction(
            begin=self.begin,
            end=end,
            gtid=gtid,
            commit_us=commit_us,
            commit_exact=self._commit_us != 0,
            original_commit_us=self._original_us or None,
        )


_MOST_GROUPS = 1000


class Commits:
    """When the transactions of a growing binlog were committed, as far as a lag needs it.

    The tailer notes each slice that it has read, the uploader says how much is durable. The
    transactions of a slice are one group: until the last one is durable, the first one counts, so
    a lag is never reported as smaller than it is. Memory is bounded: neighbours are merged.
    Times are in microseconds, UTC. `newest_us` is the greatest credible commit time of what is
    durable, None before the first.
    """

    def __init__(self) -> None:
        self._groups: list[tuple[int, int | None, int]] = []  # first commit, reached, end
        self.newest_us: int | None = None

    @property
    def oldest_us(self) -> int | None:
        """A time not after the commit of the oldest one that is not durable; None without any."""
        return self._groups[0][0] if self._groups else None

    def note(self, first_us: int, reached_us: int | None, end: int) -> None:
        """Add a slice: when its first transaction was committed, and where its last one ends.

        `reached_us`: the greatest credible commit time up to there, None if none is.
        """
        self._groups.append((first_us, reached_us, end))
        if len(self._groups) > _MOST_GROUPS:
            pairs = zip(self._groups[::2], self._groups[1::2], strict=False)
            odd = self._groups[-1:] if len(self._groups) % 2 else []
            self._groups = [(one[0], other[1], other[2]) for one, other in pairs] + odd

    def passed(self, offset: int) -> list[int]:
        """The binlog's first `offset` bytes are durable. Returns when the first of each group was.

        Those are the groups that were not durable before.
        """
        found = []
        for first_us, reached_us, end in self._groups:
            if end > offset:
                break
            self.newest_us = reached_us
            found.append(first_us)
        del self._groups[: len(found)]
        return found
