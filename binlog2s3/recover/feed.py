"""The events that a recovery sends to its target, with rotates between them. Pure.

Place in the flow: `extract` makes the stream, `plan_source` sends what comes out here.

Law: only whole transactions of the plan are sent, and the events that tell a replica where it is. A
replica counts the bytes that it gets: after everything that is left out, a rotate event with the
true position and a format event follow, so that a reconnect by position asks for the right place.
Memory is bounded by one part of the stream and one event of up to 64 KiB.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from binlog2s3.binlog.events import CHECKSUM_SIZE, HEADER, EventType, decode_format
from binlog2s3.binlog.executed import Executed
from binlog2s3.binlog.scanner import MAGIC
from binlog2s3.binlog.walk import EventPart, EventSplitter
from binlog2s3.errors import ArchiveError, RecoveryError
from binlog2s3.recover.model import Checked, PlanPiece, Stream
from binlog2s3.replication.events import (
    GTID_EVENTS,
    WHOLE_MOST,
    format_event,
    gtid_of,
    rotate_event,
)
from binlog2s3.replication.source import NotServedError

_WRAP = 1 << 32
_NOT_SENT = frozenset({EventType.ROTATE, EventType.STOP, EventType.PREVIOUS_GTIDS})


@dataclass(slots=True)
class Feed:
    """What one dump sends.

    `server_id`: the source's own. `checksum`: as the replica was told; the first rotate event is
    made so, later ones as the format event before them says. `name_of`: the name of a piece's
    binlog at the replica. `has`: transactions that the replica has; None if it names a position.
    `at`: that position, as (name, offset). `not_of`: the replica's server_id; events with it, which
    the replica would skip, are refused. `sent` is how many bytes of the stream were sent or left
    out so far; `name` and `position` are where the replica is after them.
    """

    server_id: int
    checksum: bool
    name_of: Callable[[PlanPiece], str]
    has: Executed | None = None
    at: tuple[str, int] | None = None
    not_of: int | None = None
    name: str = ""
    position: int = 0
    sent: int = 0
    _skipping: bool = field(default=False, init=False)
    _format: bytes = field(default=b"", init=False)
    _told: int = field(default=0, init=False)  # where the replica believes to be

    def parts(self, stream: Stream) -> Iterator[EventPart]:
        """All that is sent. Raises what the stream raises, and ArchiveError for bad events."""
        before: PlanPiece | None = None
        for piece, data in stream:
            checked = iter(data)
            head = next(checked).data
            yield from self._begin(piece, head)
            for part in events(checked):
                yield from self._event(part)
            before = piece
        if self.at is not None and self.at != (self.name, self.position):
            raise _not_between(*self.at)
        if before is not None:
            self.position = max(self.position, before.end)
            yield from self.settled()

    def settled(self) -> Iterator[EventPart]:
        """The events that tell the replica where it is, if something was left out."""
        if self._told != self.position:
            yield self._rotate(self.position)
            yield EventPart(self._format, len(self._format))  # MariaDB forgets its own at a rotate

    def _begin(self, piece: PlanPiece, head: bytes) -> Iterator[EventPart]:
        """The rotate and the format event that every binlog begins with at the replica."""
        self.name = self.name_of(piece)
        starts = piece.begin < len(head)  # the piece has the binlog's own first bytes
        self.position = len(MAGIC) if starts else piece.begin
        is_asked = self.at is not None and self.at[0] == self.name
        yield self._rotate(self.at[1] if self.at and is_asked else self.position)
        wrote = decode_format(head[len(MAGIC) :], offset=len(MAGIC))
        self._format = format_event(head[len(MAGIC) :], is_start=False, in_place=False)
        event = format_event(head[len(MAGIC) :], is_start=True, in_place=starts)
        self.checksum = wrote.checksum == "crc32"
        yield EventPart(event, len(event))
        if starts:
            self.sent += len(head)
            self.position = self._told = len(head)
        self._skipping = False

    def _event(self, part: EventPart) -> Iterator[EventPart]:
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
        if kind in GTID_EVENTS and self.at is None:
            self._skipping = self._has(kind, server_id, part.data)
        if kind == EventType.FORMAT_DESCRIPTION:
            part = self._another_format(bytes(part.data))
        if kind not in _NOT_SENT and not self._skipping:
            if server_id == self.not_of and kind != EventType.FORMAT_DESCRIPTION:
                raise _own_event(server_id, self.name, self.position)
            yield from self.settled()
            yield part
            self._told += size
        self.sent += len(part.data)
        self.position += size

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
            raise _not_between(name, offset)
        self.at = None
        return False

    def _has(self, kind: int, server_id: int, event: bytes | memoryview) -> bool:
        """Whether the replica has the transaction that begins with this event."""
        if self.has is None or kind == EventType.ANONYMOUS_GTID:
            return False
        trailer = CHECKSUM_SIZE if self.checksum else 0
        return self.has.has(gtid_of(kind, server_id, event, trailer))


def _own_event(server_id: int, name: str, position: int) -> RecoveryError:
    return RecoveryError(
        f"the event at {name}:{position} is of server_id {server_id}, which is the target's own: "
        "it would skip it",
        hint="SET GLOBAL server_id = N at the target, with a number that no server of the archive "
        "had; then run the same command again",
    )


def _not_between(name: str, offset: int) -> NotServedError:
    return NotServedError(f"{name[:100]}:{offset} is not between two transactions that are served")


def events(data: Iterable[Checked]) -> Iterator[EventPart]:
    """The events of a piece's bytes: small ones whole, large ones in parts.

    Raises ArchiveError if the bytes are no events, or do not end with an event.
    """
    splitter = EventSplitter(most=WHOLE_MOST)
    for checked in data:
        try:
            yield from splitter.feed(checked.data)
        except ValueError as error:
            raise ArchiveError(str(error)) from error
    if not splitter.is_between:
        raise ArchiveError("the bytes of a piece end within an event")
