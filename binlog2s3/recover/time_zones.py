"""Whether the target's system time zone is the source's, and what in a plan depends on it.

A statement that has used the session's time zone carries that zone's name, also in row format: an
ALTER with a literal as the DEFAULT of a TIMESTAMP, CREATE EVENT, statements that MIXED does not
log as rows. `SYSTEM` is the zone of the server's process, so a target whose zone is another one
stores other moments, without an error. Rows are the same in every zone.

Law: where the zones differ, or where they may, no such statement is applied without a message.
Offsets are compared, names never (`binlog.zone`).
"""

import re
import zoneinfo
from collections.abc import Callable, Collection, Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from binlog2s3.archive.facts import BinlogId
from binlog2s3.binlog.compression import Sink
from binlog2s3.binlog.content import statement_in
from binlog2s3.binlog.events import (
    QUERIES,
    EventType,
    FormatEvent,
    query_layout,
    status_time_zone,
)
from binlog2s3.binlog.names import BinlogName
from binlog2s3.binlog.scanner import Transaction
from binlog2s3.binlog.statements import Statement, without_secrets
from binlog2s3.binlog.walk import EventWalk, payload_sink, wanted_types
from binlog2s3.binlog.zone import SystemZone, differs, fixed_tz, sampled_days
from binlog2s3.errors import RecoveryError
from binlog2s3.formatting import count_text, cut, size_text, some
from binlog2s3.recover.applier_error import Transactions, next_transaction
from binlog2s3.recover.extract import headed, through
from binlog2s3.recover.model import BinlogPosition, Checked, OpenStream, Plan, PlanPiece, Stream
from binlog2s3.recover.one_table import LOOKED_AT_MOST
from binlog2s3.server.connection import Server

_WANTED = wanted_types(*QUERIES, EventType.TRANSACTION_PAYLOAD)
_SYSTEM = b"SYSTEM"
_NAMED = re.compile(r"(['\"])SYSTEM\1", re.IGNORECASE)
_UNTOLD = re.compile(rb"CONVERT_TZ|FROM_UNIXTIME", re.IGNORECASE)
_MOST_TEXT = 160
_AREAS = ("Europe", "America", "Asia", "Australia", "Pacific", "Africa", "Atlantic", "Indian")
"""Which zone of several is named first."""

ZoneOf = Callable[[str, BinlogName], SystemZone | None]
"""The source's system time zone while it wrote a binlog of a lineage; None if it is unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dependent:
    """A transaction whose result depends on the system time zone, and its statement."""

    position: BinlogPosition
    gtid: str | None
    statement: str

    def __str__(self) -> str:
        return f"{self.gtid or f'the transaction at {self.position}'} ({self.statement})"


class TimeZones:
    """The time zones of a plan's binlogs, compared with the target's.

    `refusal`: why the plan cannot be applied as it is; `warnings`: what else there is to say. What
    was not looked at before is looked at in the stream of `watched`; `unknown` is then the first
    transaction whose right zone nobody knows.
    """

    def __init__(
        self,
        plan: Plan,
        zone_of: ZoneOf,
        target: Callable[[int], SystemZone | None],
        *,
        accepted: bool,
    ) -> None:
        """`target`: the target's zone in a year, None if it is not known (yet).

        `accepted`: other values are wanted.
        """
        self._accepted = accepted
        self._doubtful = list[PlanPiece]()
        self._differences = dict[BinlogId, str]()
        self._zones = dict[BinlogId, SystemZone]()
        targets = dict[int, SystemZone | None]()
        for piece in plan.pieces:
            key = piece.binlog_id
            zone = zone_of(*key)
            if zone is None:
                self._doubtful.append(piece)
                continue
            self._zones[key] = zone
            if zone.year not in targets:
                targets[zone.year] = target(zone.year)
            other = targets[zone.year]
            if other is None:
                self._doubtful.append(piece)
            elif difference := differs(zone, other):
                self._doubtful.append(piece)
                self._differences[key] = difference
        self._is_looked = False
        self.refusal: RecoveryError | None = None
        self.unknown: Dependent | None = None
        self._unknown_zone: SystemZone | None = None

    @property
    def difference(self) -> str:
        """How the zones differ where they first do; "" if they do not, as far as is known."""
        return next(iter(self._differences.values()), "")

    def look(
        self, open_stream: OpenStream, transactions: Transactions, *, most: int = LOOKED_AT_MOST
    ) -> None:
        """Look through the binlogs of another or unknown zone, unless they exceed `most` bytes."""
        if self._accepted or sum(piece.size for piece in self._doubtful) > most:
            return
        self._is_looked = True
        hits = list[tuple[PlanPiece, _Hit]]()
        if self._doubtful:
            with closing(open_stream(self._doubtful)) as stream:
                hits += self._first_hits(stream)
        for piece, hit in hits:
            self._take(piece, hit, transactions)

    def _first_hits(self, stream: Stream) -> Iterator[tuple[PlanPiece, "_Hit"]]:
        """The first hit of an unknown zone, and up to the first one of another zone."""
        has_unknown = False
        for piece, data in stream:
            differs_here = self._difference_of(piece) != ""
            for _, hit in _looked_at(piece, data):
                if hit is None or (has_unknown and not differs_here):
                    continue
                yield piece, hit
                if differs_here:
                    return
                has_unknown = True

    def _difference_of(self, piece: PlanPiece) -> str:
        return self._differences.get(piece.binlog_id, "")

    def _take(
        self, piece: PlanPiece, hit: "_Hit", transactions: Transactions = lambda *_: iter(())
    ) -> bool:
        """Note a transaction that depends on the zone; whether it must not be applied."""
        difference = self._difference_of(piece)
        if difference:
            self.refusal = self._refusal(_named(piece, hit, transactions), difference)
        elif self.unknown is None:
            self.unknown = _named(piece, hit, transactions)
            self._unknown_zone = self._zones.get(piece.binlog_id)
        return difference != ""

    def _refusal(self, dependent: Dependent, difference: str) -> RecoveryError:
        value = _tz_text({self._zones[key] for key in self._differences})
        goal = (
            f"--before-gtid {dependent.gtid}"
            if dependent.gtid
            else f"--to-position {dependent.position}"
        )
        restart = (
            f"restart the target's mysqld with the source's zone, {value} in its environment "
            "(Environment= of its systemd unit, or --timezone of mysqld_safe)"
        )
        if self._is_looked:
            hint = f"{restart}, and run the same command again; {goal} stops before it"
        else:  # a run that has begun must end before a restart: that would look like a crash
            hint = (
                f"run the same command with the goal {goal}, so that it ends there; then "
                f"{restart}, and continue; MariaDB: with --from-gtid-set and its gtid_slave_pos "
                "instead of the base backup"
            )
        return RecoveryError(
            f"{dependent} depends on the system time zone, and the source's and the target's are "
            f"{difference}: the target would store other times",
            hint=f"{hint}; --accept-time-zone applies it all the same",
        )

    def warnings(self) -> Iterator[str]:
        """What to say with the plan."""
        if self.difference and self._accepted:
            yield (
                f"the source's and the target's system time zones are {self.difference}: what "
                "depends on them gets other values (--accept-time-zone)"
            )
        elif self.difference and self.refusal is None:
            then = (
                "nothing in the plan depends on that"
                if self._is_looked
                else "the apply stops before the first transaction that depends on that, if there "
                f"is one (more than {size_text(LOOKED_AT_MOST)} is looked at while it is sent)"
            )
            yield f"the source's and the target's system time zones are {self.difference}; {then}"
        if self.unknown is not None:
            yield self.unknown_text()

    def unknown_text(self) -> str:
        """That the zone of a transaction that depends on it is unknown; there must be one."""
        depends = f"{self.unknown} depends on the system time zone"
        if self._unknown_zone is not None:
            return (
                f"{depends}, and the source's is {self._unknown_zone}: the server that applies it "
                f"needs the same, {_tz_text([self._unknown_zone])} in the environment of its mysqld"
            )
        return (
            f"{depends}, and the archive does not tell the source's: if the target's is another "
            "one, times are wrong"
        )

    @property
    def is_news(self) -> bool:
        """Whether `unknown` was found in the stream of `watched`, and not before."""
        return self.unknown is not None and not self._is_looked

    def watched(self, open_stream: OpenStream) -> OpenStream:
        """The same stream, if all was looked at; else it ends before what must not be applied.

        Then it raises the refusal, after the bytes of the transactions before that one.
        """
        if self._is_looked or self._accepted or not self._doubtful:
            return open_stream
        doubtful = {piece.binlog_id for piece in self._doubtful}

        def passed_on(piece: PlanPiece, data: Iterator[Checked]) -> Iterator[Checked]:
            is_doubtful = piece.binlog_id in doubtful
            return self._guarded(piece, data) if is_doubtful else data

        return through(open_stream, passed_on)

    def _guarded(self, piece: PlanPiece, data: Iterator[Checked]) -> Iterator[Checked]:
        for checked, hit in _looked_at(piece, data):
            if hit is not None and self._take(piece, hit):
                assert self.refusal is not None  # noqa: S101 - what `_take` has noted
                if hit.begin:
                    yield Checked(data=checked.data[: hit.begin], done=checked.done[: hit.number])
                raise self.refusal
            yield checked


def _tz_text(zones: Collection[SystemZone]) -> str:
    tz = tz_of(zones)
    return f"TZ='{tz}'" if tz is not None else "TZ set to the source's time zone"


def events_warning(server: Server, difference: str) -> Iterator[str]:
    """A warning of the target's events that its base backup brought: they keep the word SYSTEM."""
    rows = server.rows(
        "SELECT event_schema AS db, event_name AS name FROM information_schema.events "
        "WHERE time_zone = 'SYSTEM' ORDER BY 1, 2"
    )
    if difference and rows:
        names = some([f"{row['db']}.{row['name']}" for row in rows])
        yield (
            f"{count_text(len(rows), 'event')} of the target run in its system time zone ({names}),"
            f" and the source's and the target's are {difference}: they run at other times there"
        )


# What depends on it


@dataclass(frozen=True, slots=True, kw_only=True)
class _Hit:
    """A statement that depends on the zone.

    `begin`: so many bytes of its part come before its transaction, and the ends of `number` others.
    `offset`: in the binlog, after these. `transaction`: None if it does not end there.
    """

    begin: int
    number: int
    offset: int
    transaction: Transaction | None
    statement: str


class _Reader:
    """Looks for statements that were executed in the zone SYSTEM, and depend on it.

    `found` is the text of one; "" if there is none. BEGIN and COMMIT carry the zone, too, because
    of rows that were made with it: those are rows.
    """

    def __init__(self, format_event: FormatEvent) -> None:
        self._events = EventWalk(format_event.trailer, self._begin, wanted=_WANTED)
        self._flavour = format_event.flavour
        self.found = ""

    def feed(self, data: memoryview) -> None:
        self._events.feed(data)
        if self._events.lost:
            self.found = self.found or "an event that cannot be read"

    def _begin(self, event_type: int, head: bytes, _: int) -> Sink | None:
        if event_type == EventType.TRANSACTION_PAYLOAD:
            return payload_sink(head, self._begin, self._take_end, wanted=_WANTED)
        status_at, db_at, _ = query_layout(event_type, head, 0)
        zone = status_time_zone(head[status_at:db_at])
        is_compressed = event_type == EventType.QUERY_COMPRESSED
        if zone == _SYSTEM or is_compressed or _UNTOLD.search(head):
            statement = statement_in(event_type, head, self._flavour)
            if statement is not None and (zone == _SYSTEM or _is_untold(statement, zone)):
                text = " ".join(without_secrets(statement.clear.text).split())
                self.found = self.found or cut(text, _MOST_TEXT)
        return None

    def _take_end(self, whole: bool) -> None:
        if not whole:
            self.found = self.found or "a compressed transaction that cannot be read"


def _is_untold(statement: Statement, zone: bytes | None) -> bool:
    """Whether a statement uses the system time zone, although its event does not say so.

    CONVERT_TZ with SYSTEM never tells, and MariaDB 11.8 does not of a FROM_UNIXTIME of a constant.
    """
    words = set(statement.clear.keywords())
    if "CONVERT_TZ" in words and _NAMED.search(statement.clear.text):
        return True
    return "FROM_UNIXTIME" in words and zone is None


def _looked_at(piece: PlanPiece, data: Iterator[Checked]) -> Iterator[tuple[Checked, _Hit | None]]:
    """Each part of a piece, and the first transaction in it that depends on the zone."""
    head, form = headed(data)
    reader, at = _Reader(form), max(piece.begin, len(head.data))
    yield head, None
    for checked in data:
        begin, hit = 0, None
        view = memoryview(checked.data)
        for number, transaction in enumerate([*checked.done, None]):
            until = len(view) if transaction is None else begin + _size(piece, at, transaction.end)
            reader.feed(view[begin:until])
            if reader.found:
                hit = hit or _Hit(
                    begin=begin,
                    number=number,
                    offset=at,
                    transaction=transaction,
                    statement=reader.found,
                )
                reader.found = ""
            begin, at = until, at if transaction is None else transaction.end
        yield checked, hit


def _size(piece: PlanPiece, begin: int, end: int) -> int:
    """How many bytes of a piece are applied between two positions, both between transactions."""
    gone = sum(high - low for low, high in piece.left_out if begin <= low and high <= end)
    return end - begin - gone


def _named(piece: PlanPiece, hit: _Hit, transactions: Transactions) -> Dependent:
    position = piece.position(hit.offset)
    one = hit.transaction
    if one is None and (following := next_transaction([piece], position, transactions)) is not None:
        one = following[1]
    if one is not None:
        position = piece.position(one.begin)
    return Dependent(
        position=position, gtid=one.gtid if one is not None else None, statement=hit.statement
    )


# Names for a zone that is known by its offsets


def tz_of(zones: Collection[SystemZone]) -> str | None:
    """A value of the variable TZ with these offsets, for a server's process; None without one.

    It is never a text of the bucket: made of numbers, or a name in this machine's own database.
    """
    offsets = {offset for zone in zones for offset in zone.sampled}
    names = {zone.name for zone in zones}
    known = zoneinfo.available_timezones()
    if len(offsets) == 1 and not names & known:
        return fixed_tz(*offsets)
    ranks = {area: number for number, area in enumerate(_AREAS)}

    def rank(name: str) -> tuple[bool, int, str]:
        return name not in names, ranks.get(name.partition("/")[0], len(ranks)), name

    for name in sorted(known, key=rank):
        if _is_installed(name) and all(_fits(name, zone) for zone in zones):
            return name
    return fixed_tz(*offsets) if len(offsets) == 1 else None


def _is_installed(name: str) -> bool:
    """Whether servers find it, too: Python may have a database of its own."""
    return any((Path(directory) / name).is_file() for directory in zoneinfo.TZPATH)


def _fits(name: str, zone: SystemZone) -> bool:
    of_name = zoneinfo.ZoneInfo(name)
    for day, offset in zip(sampled_days(zone.year), zone.sampled, strict=True):
        moment = datetime(day.year, day.month, day.day, tzinfo=UTC)
        offset_there = moment.astimezone(of_name).utcoffset()
        if offset_there is None or offset_there.total_seconds() != offset:
            return False
    return True
