"""The events that a recovery sends to its target. Pure.

Law: only whole transactions of the plan are sent, and the events that tell a replica where it is
(`replication.feed`). Memory is bounded by one part of the stream and one event of up to 64 KiB.
"""

from collections.abc import Callable, Iterable, Iterator

from binlog2s3.binlog.scanner import MAGIC
from binlog2s3.binlog.walk import EventPart, EventSplitter
from binlog2s3.errors import ArchiveError
from binlog2s3.recover.model import Checked, PlanPiece, Stream
from binlog2s3.replication.events import WHOLE_MOST
from binlog2s3.replication.feed import Feed


def parts(feed: Feed, stream: Stream, name_of: Callable[[PlanPiece], str]) -> Iterator[EventPart]:
    """All that is sent. `name_of`: the name of a piece's binlog at the replica.

    Raises what the stream raises, and ArchiveError for bad events.
    """
    before: PlanPiece | None = None
    for piece, data in stream:
        checked = iter(data)
        head = next(checked).data
        is_whole = piece.begin < len(head)  # the piece has the binlog's own first bytes
        yield from feed.begin(name_of(piece), 0 if is_whole else piece.begin, head[len(MAGIC) :])
        for part in events(checked):
            yield from feed.event(part)
        before = piece
    if before is not None:
        feed.position = max(feed.position, before.end)
        yield from feed.settled()


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
