"""The events of binlogs as a replication source sends them, with rotates between them. Pure.

Law: a replica counts the bytes that it gets. After everything that is left out, a rotate event with
the true position and a format event follow, so that a reconnect by position asks for the right
position. Memory is bounded by one event of up to 64 KiB.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol

from binlog2s3.binlog.events import (
    CHECKSUM_SIZE,
    HEADER,
    HEADER_SIZE,
    EventType,
    decode_format,
    decode_gtid_list,
    decode_rotate,
)
from binlog2s3.binlog.executed import Gtid, domain_of, gtid_text, is_in
from binlog2s3.binlog.gtid import Gtids, GtidSet
from binlog2s3.binlog.scanner import MAGIC
from binlog2s3.binlog.walk import EventPart, EventSplitter
from binlog2s3.errors import RecoveryError
from binlog2s3.replication.events import (
    GTID_EVENTS,
    WHOLE_MOST,
    format_event,
    gtid_of,
    rotate_event,
)

_WRAP = 1 << 32
_RUN_MOST = 1 << 18
_RUN_ENOUGH = _RUN_MOST // 2
"""After so many bytes a run ends before the next transaction, where a source may have to wait.

One that began within a transaction ends before the next one, whatever its size."""
_TYPE = 4  # offset of the type in an event's header
_DECIDED = frozenset({EventType.ROTATE, EventType.FORMAT_DESCRIPTION, EventType.GTID_LIST})
"""Types that `event` has to look at."""
_NOT_SENT = frozenset({EventType.ROTATE, EventType.STOP, EventType.PREVIOUS_GTIDS})


class NotServedError(RecoveryError):
    """A client asked for something that is not served. It gets the message and the error `code`."""

    code = 1236


class Had(Protocol):
    """The transactions that a replica has, asked in the order in which they are sent."""

    def has(self, gtid: str) -> bool:
        """Whether it has the transaction with this GTID that comes next."""

    def passed(self, gtid: str) -> None:
        """That transaction was left out."""


@dataclass(frozen=True, slots=True)
class MysqlHad:
    """Those with a GTID of a set."""

    gtids: GtidSet

    def has(self, gtid: str) -> bool:
        """See `Had`."""
        return is_in(self.gtids, gtid)

    def passed(self, gtid: str) -> None:
        """Nothing changes."""


class MariadbHad:
    """Those of each domain up to its place, as a MariaDB's source leaves them out.

    Nothing of a domain is sent until all of its GTIDs in `awaited` were seen, and everything after
    that, whatever its number.
    """

    def __init__(self, awaited: Iterable[Gtid]) -> None:
        self._awaited: dict[int, set[str]] = {}
        for gtid in awaited:
            self._awaited.setdefault(gtid[0], set()).add(gtid_text(gtid))

    def has(self, gtid: str) -> bool:
        """See `Had`."""
        return bool(self._awaited.get(domain_of(gtid)))

    def passed(self, gtid: str) -> None:
        """See `Had`."""
        self._awaited.get(domain_of(gtid), set()).discard(gtid)

    def awaits(self, gtid: Gtid) -> bool:
        """Whether this one was not seen yet."""
        return gtid_text(gtid) in self._awaited.get(gtid[0], ())

    def listed(self, gtids: Iterable[Gtid]) -> None:
        """The binlog that comes next says that these come before it."""
        for gtid in gtids:
            self.passed(gtid_text(gtid))

    def await_also(self, gtids: Iterable[Gtid]) -> None:
        """Leave out more: everything of their domains up to these."""
        for gtid in gtids:
            self._awaited.setdefault(gtid[0], set()).add(gtid_text(gtid))


def had(gtids: Gtids) -> Had:
    """What a replica with these GTIDs has, of a history that has all of them."""
    return MysqlHad(gtids) if isinstance(gtids, GtidSet) else MariadbHad(gtids.gtids())


@dataclass(slots=True)
class Feed:
    """What one dump sends, binlog by binlog: `begin`, each `event`, and `end` if `verbatim`.

    `server_id`: the source's own. `checksum`: as the replica was told; the first rotate event is
    made so, later ones as the format event before them says. `has`: transactions that the replica
    has; None if it names a position. `at`: that position, as (name, offset). `not_of`: the
    replica's server_id; events with it, which the replica would skip, are refused. `verbatim`:
    events that a replica does not need are sent too, as a server does. `sent` is how many bytes of
    the binlogs were sent or left out so far; `name` and `position` are where the replica is after
    them.
    """

    server_id: int
    checksum: bool
    has: Had | None = None
    at: tuple[str, int] | None = None
    not_of: int | None = None
    verbatim: bool = False
    name: str = ""
    position: int = 0
    sent: int = 0
    _skipping: bool = field(default=False, init=False)
    _format: bytes = field(default=b"", init=False)
    _told: int = field(default=0, init=False)  # where the replica believes to be
    _rotate_event: bytes = field(default=b"", init=False)  # the binlog's own last event

    def begin(self, name: str, begin: int, head: bytes) -> Iterator[EventPart]:
        """The rotate and the format event that every binlog begins with at the replica.

        `begin`: where the first event begins that is passed to `event`. `head`: the format event
        that applies there. If `begin` is 0, it is the binlog's own, and the next event is the one
        after it. Raises NotServedError if the replica names a place in the binlog before, and no
        event begins or ends there.
        """
        if self.at is not None and self.at[0] == self.name:  # the binlog before ends there
            if self.at[1] != self.position:
                raise not_between(*self.at)
            self.at = None
        self.name = name
        self.position = begin or len(MAGIC)
        asked = self.at[1] if self.at is not None and self.at[0] == self.name else self.position
        yield self._rotate(asked)
        self._format = format_event(head, is_start=False, in_place=False)
        event = self._format  # a replica in the middle keeps its position and temporary tables
        if not begin and asked == len(MAGIC):
            event = format_event(head, is_start=True, in_place=True)
        if begin and not self.verbatim:  # the plan's first events are the replica's first ones
            event = format_event(head, is_start=True, in_place=False)
        self.checksum = decode_format(head, offset=len(MAGIC)).checksum == "crc32"
        yield EventPart(event, len(event))
        if not begin:
            self.sent += len(MAGIC) + len(head)
            self.position = self._told = len(MAGIC) + len(head)
        self._skipping = False

    def event(self, part: EventPart) -> Iterator[EventPart]:
        """What is sent for the next event, or part of one."""
        if not part.size:
            self.sent += len(part.data)
            if not self._skipping:
                yield part
            return
        _, kind, server_id, size, end, _ = HEADER.unpack_from(part.data)
        begins = (end - size) % _WRAP
        if end and begins != self.position % _WRAP:  # a range was left out of the plan
            self.position += (begins - self.position) % _WRAP
        if self.at is not None:
            self._skipping = self._is_before(*self.at)
        if self.at is None:
            self._decide(kind, server_id, part.data)
        if kind == EventType.ROTATE and self.verbatim and not self._skipping:
            self._rotate_event = bytes(part.data)
            return
        if kind == EventType.FORMAT_DESCRIPTION:
            part = self._another_format(bytes(part.data))
        if not self._skipping and (self.verbatim or kind not in _NOT_SENT):
            if server_id == self.not_of and kind != EventType.FORMAT_DESCRIPTION:
                raise _own_event(server_id, self.name, self.position)
            yield from self.settled()
            yield part
            self._told += size
        self.sent += len(part.data)
        self.position += size

    def unchanged(self, data: memoryview) -> list[int]:
        """The sizes of the whole events with which `data` begins, if they are sent as they are.

        It does for many events at once what `event` does for each, and is much faster. It ends
        before the first event that only `event` can decide, that is larger than `WHOLE_MOST`, or
        that is not complete; before a transaction as `_RUN_ENOUGH` says, and anywhere after
        `_RUN_MOST` bytes.
        """
        if self._skipping or self.at or self._told != self.position:
            return []
        sizes: list[int] = []
        decided = _DECIDED if self.verbatim else _DECIDED | _NOT_SENT
        enough = _RUN_ENOUGH if begins_transaction(data) else 1
        unpack, position, at = HEADER.unpack_from, self.position, 0
        last_header = min(len(data) - HEADER_SIZE, _RUN_MOST)
        while at <= last_header:
            _, kind, server_id, size, end, _ = unpack(data, at)
            until = at + size
            if not HEADER_SIZE <= size <= WHOLE_MOST or until > len(data) or kind in decided:
                break
            if server_id == self.not_of:
                break
            if end and (end - size - position) % _WRAP:
                break
            if kind in GTID_EVENTS:
                if at >= enough:
                    break
                gtid = self._gtid(kind, server_id, data[at:until])
                if gtid is not None and self.has is not None and self.has.has(gtid):
                    break
            sizes.append(size)
            position += size
            at = until
        self.position = self._told = position
        self.sent += at
        return sizes

    def settled(self) -> Iterator[EventPart]:
        """The events that tell the replica where it is, if something was left out."""
        if self._told != self.position:
            yield self._rotate(self.position)
            yield EventPart(self._format, len(self._format))  # MariaDB forgets its own at a rotate

    def end(self, successor: str | None) -> Iterator[EventPart]:
        """The binlog's own rotate event, held until its successor can be sent, too.

        A replica that has it asks for the binlog that it names, so it is left out if that is not
        the `successor`. None: there is none, and the client only reads.
        """
        event, self._rotate_event = self._rotate_event, b""
        if not event:
            return
        trailer = CHECKSUM_SIZE if self.checksum else 0
        names = decode_rotate(event, HEADER_SIZE, len(event) - trailer).next_binlog
        if successor is None or str(names) == successor:
            yield from self.settled()
            yield EventPart(event, len(event))
            self.position += len(event)
            self._told = self.position
        self.sent += len(event)

    def _another_format(self, event: bytes) -> EventPart:
        """A format event in the middle of a binlog; no server was started there."""
        self._format = format_event(event, is_start=False, in_place=False)
        self.checksum = decode_format(event, offset=len(MAGIC)).checksum == "crc32"
        return EventPart(format_event(event, is_start=False, in_place=True), len(event))

    def _rotate(self, position: int) -> EventPart:
        self._told = position
        event = rotate_event(self.name, position, server_id=self.server_id, checksum=self.checksum)
        return EventPart(event, len(event))

    def _is_before(self, name: str, offset: int) -> bool:
        """Whether the event that begins here is before the place where the replica begins."""
        if name != self.name or self.position < offset:
            return True
        if self.position > offset:
            raise not_between(name, offset)
        self.at = None
        return False

    def _decide(self, kind: int, server_id: int, event: bytes | memoryview) -> None:
        """Decide whether what begins with this event is left out; each event comes once."""
        if kind == EventType.GTID_LIST and isinstance(self.has, MariadbHad):
            end = len(event) - (CHECKSUM_SIZE if self.checksum else 0)
            with suppress(ValueError):  # a part: what is awaited and not seen is an error later
                self.has.listed(decode_gtid_list(event, HEADER_SIZE, end).gtids())
        if kind not in GTID_EVENTS:
            return
        gtid = self._gtid(kind, server_id, event)
        self._skipping = gtid is not None and self.has is not None and self.has.has(gtid)
        if self._skipping and gtid is not None and self.has is not None:
            self.has.passed(gtid)

    def _gtid(self, kind: int, server_id: int, event: bytes | memoryview) -> str | None:
        """The GTID of the transaction that begins with this event; None if it has none."""
        if self.has is None or kind == EventType.ANONYMOUS_GTID:
            return None
        return gtid_of(kind, server_id, event, CHECKSUM_SIZE if self.checksum else 0)


def begins_transaction(data: bytes | memoryview) -> bool:
    """Whether an event that begins here, as far as it is there, begins a transaction."""
    return len(data) > _TYPE and data[_TYPE] in GTID_EVENTS


class EventSink(Protocol):
    """Where events are sent; `source.Client` is one."""

    def send_event(self, data: bytes | memoryview, size: int | None = None) -> None:
        """Send an event, or a part of one (`walk.EventPart`) if `size` is given."""

    def send_events(self, data: memoryview, sizes: Sequence[int]) -> None:
        """Send whole events of these sizes, which follow each other in `data`."""


def pass_on(
    data: memoryview,
    splitter: EventSplitter,
    feed: Feed,
    sink: EventSink,
    *,
    before: Callable[[], None] | None = None,
) -> None:
    """Send what the next bytes of a binlog hold, cut anywhere.

    `before` is called before a transaction, at least once in about `_RUN_MOST` bytes. Raises
    ValueError if they are not events.
    """
    while data:
        sizes = []
        if splitter.is_between:
            if before is not None and begins_transaction(data):
                before()
            sizes = feed.unchanged(data)
        if sizes:
            count = sum(sizes)
            sink.send_events(data[:count], sizes)
        else:
            count = splitter.rest(data)
            for part in splitter.feed(data[:count]):
                if before is not None and part.size and begins_transaction(part.data):
                    before()
                for out in feed.event(part):
                    sink.send_event(out.data, out.size)
        data = data[count:]


def _own_event(server_id: int, name: str, position: int) -> RecoveryError:
    return RecoveryError(
        f"the event at {name}:{position} is of server_id {server_id}, which is the target's own: "
        "it would skip it",
        hint="SET GLOBAL server_id = N at the target, with a number that no server of the archive "
        "had; then run the same command again",
    )


def not_between(name: str, offset: int) -> NotServedError:
    """The error for a position that is inside of an event."""
    return NotServedError(f"{name[:100]}:{offset} is not between two events that are served")
