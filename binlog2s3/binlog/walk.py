"""Splits checked bytes into events. No I/O.

The `scanner` has loops of its own: it checks bytes, so it computes a CRC32 over each event and
reports the first one that is wrong.

Bytes may be cut anywhere. An event is split only if it is larger than a limit, so memory is
bounded. The reader takes each part before it asks for the next one.
"""

import struct
from collections.abc import Callable, Generator, Iterator
from typing import NamedTuple, TypeAlias

from binlog2s3.binlog.compression import Sink, Zstd, decode_payload
from binlog2s3.binlog.events import HEADER_SIZE, Buffer

HEAD_MOST = 128 * 1024
"""The first so many bytes of an event's body contain all that is decoded, except rows. Status
variables and extra information have at most 64 KiB each, 4096 columns 12 KiB."""
UNDECODABLE = (ValueError, IndexError, KeyError, OverflowError, struct.error)

_TYPE_AND_SIZE = struct.Struct("<4xB4xI")
_TYPE_OFFSET, _FLAGS_OFFSET = 4, 17

Begin: TypeAlias = Callable[[int, bytes, int], Sink | None]
"""Called with an event's type, the beginning of its body, and the size of the whole body. The sink
that it returns, if any, gets the rest of the body."""


def wanted_types(*types: int) -> bytes:
    """A table of the 256 event types: 1 for each of these."""
    return bytes(event_type in types for event_type in range(256))


_ALL_TYPES = bytes([1]) * 256


class EventPart(NamedTuple):
    """Bytes of an event. `size`: they begin an event of so many bytes; 0: they continue one."""

    data: bytes | memoryview
    size: int = 0


class EventSplitter:
    """Splits bytes into the events of the `wanted` types.

    An event of up to `most` bytes is one part. A larger one has a first part of `most` bytes, and
    then parts as they come. `least`: no event is smaller.
    """

    def __init__(self, *, most: int, least: int = HEADER_SIZE, wanted: bytes = _ALL_TYPES) -> None:
        self._most = most
        self._least = least
        self._wanted = wanted
        self._held = bytearray()  # an event's beginning, up to `_needed` bytes
        self._needed = HEADER_SIZE
        self._left = 0  # bytes of an event that are still to come after its first part
        self._passes = False  # whether its type is wanted

    @property
    def is_between(self) -> bool:
        """Whether the bytes end with an event."""
        return not self._held and not self._left

    @property
    def is_inside(self) -> bool:
        """Whether a part of an event was returned, and more of it is to come."""
        return bool(self._left)

    def rest(self, data: Buffer) -> int:
        """How many of the next bytes complete the event that they begin or continue.

        All of them if they do not complete it, or if no event has such a size.
        """
        known = self._left
        if not known:
            head = bytes(self._held) + bytes(data[: max(0, HEADER_SIZE - len(self._held))])
            if len(head) >= HEADER_SIZE:
                known = _TYPE_AND_SIZE.unpack_from(head)[1] - len(self._held)
        return min(known, len(data)) if known > 0 else len(data)

    def feed(self, data: Buffer) -> Iterator[EventPart]:
        """Split the next bytes, cut anywhere.

        Raises ValueError at a size that no event has; nothing can be split after that.
        """
        view, at = memoryview(data), 0
        while at < len(view):
            if self._left:
                begin, at = at, min(at + self._left, len(view))
                self._left -= at - begin
                if self._passes:
                    yield EventPart(view[begin:at])
            elif self._held:
                begin, at = at, min(at + self._needed - len(self._held), len(view))
                self._held += view[begin:at]
                if len(self._held) == self._needed and (part := self._taken()) is not None:
                    yield part
            else:
                at = yield from self._split(view, at)

    def _split(self, view: memoryview, at: int) -> Generator[EventPart, None, int]:
        """The fast loop, where an event begins at `at`. Returns where it stopped."""
        unpack, wanted = _TYPE_AND_SIZE.unpack_from, self._wanted
        most, least, end = self._most, self._least, len(view)
        last_header = end - HEADER_SIZE
        while at <= last_header:
            event_type, size = unpack(view, at)
            if size < least:
                raise _no_event(size)
            if not wanted[event_type]:
                at += size
                continue
            until = at + size if size <= most else at + most
            if until > end:
                self._needed = until - at
                break
            yield EventPart(view[at:until], size)
            at = until
            if size > most:
                self._left, self._passes = size - most, True
                return at
        if at > end:
            self._left, self._passes = at - end, False
        else:
            self._held += view[at:]
        return end

    def _taken(self) -> EventPart | None:
        """The first part of the event that is held, if it is complete and wanted."""
        event_type, size = _TYPE_AND_SIZE.unpack_from(self._held)
        if size < self._least:
            raise _no_event(size)
        self._passes = bool(self._wanted[event_type])
        if self._passes:
            self._needed = min(size, self._most)
            if len(self._held) < self._needed:
                return None
        part = EventPart(bytes(self._held), size)
        self._left = size - len(self._held)
        self._held.clear()
        self._needed = HEADER_SIZE
        return part if self._passes else None


def _no_event(size: int) -> ValueError:
    return ValueError(f"an event of {size} bytes")


class EventWalk:
    """Passes events to `begin`, by type and body.

    `lost`: something was not an event, or could not be decoded. It raises nothing. `flags`: of the
    event that begins.
    """

    def __init__(self, trailer: int, begin: Begin, *, wanted: bytes) -> None:
        """`trailer`: the size of each event's checksum. `wanted`: from `wanted_types`."""
        self._trailer = trailer
        self._begin = begin
        least = HEADER_SIZE + trailer
        self._splitter = EventSplitter(most=least + HEAD_MOST, least=least, wanted=wanted)
        self._is_broken = False  # where the next event begins is not known
        self._sink: Sink | None = None  # of a large event
        self._rest = 0  # bytes that it still gets
        self.lost = False
        self.flags = 0

    @property
    def is_whole(self) -> bool:
        """Whether all events could be read, and the last one is complete."""
        return self._splitter.is_between and not self.lost

    def feed(self, data: Buffer) -> None:
        """Take the next bytes, cut anywhere."""
        if self._is_broken:
            return
        try:
            for data_of_part, size in self._splitter.feed(data):
                if size:
                    self._take(data_of_part, size)
                elif self._sink is not None:
                    self._pass_on(bytes(data_of_part[: self._rest]))
        except ValueError:
            self.lost = self._is_broken = True

    def _take(self, data: bytes | memoryview, size: int) -> None:
        """Take an event, or the beginning of a large one."""
        end = size - self._trailer
        body = bytes(data[HEADER_SIZE:end])
        self._rest = end - HEADER_SIZE - len(body)
        self.flags = int.from_bytes(data[_FLAGS_OFFSET:HEADER_SIZE], "little")
        try:
            self._sink = self._begin(data[_TYPE_OFFSET], body, end - HEADER_SIZE)
        except UNDECODABLE:
            self.lost, self._sink = True, None
        if not self._rest:
            self._close(whole=True)

    def _pass_on(self, piece: bytes) -> None:
        """Pass a piece of the body to the sink."""
        self._rest -= len(piece)
        is_whole = True
        try:
            if self._sink is not None:
                self._sink.feed(piece)
        except UNDECODABLE:
            is_whole = False
        if not self._rest or not is_whole:
            self._close(whole=is_whole)

    def _close(self, *, whole: bool) -> None:
        """The sink gets nothing more of this event."""
        sink, self._sink = self._sink, None
        try:
            if sink is not None:
                sink.close(whole=whole)
        except UNDECODABLE:
            self.lost = True


def payload_sink(head: bytes, begin: Begin, done: Callable[[bool], None], *, wanted: bytes) -> Sink:
    """A sink for the body of a TRANSACTION_PAYLOAD that begins with `head`, which it already has.

    It passes the events in the payload to `begin`, and calls `done` with whether all could be read.
    Raises ValueError if the head cannot be decoded.
    """
    compressed, at, size = decode_payload(head)
    inside = _Inside(begin, done, wanted=wanted)
    sink: Sink = Zstd(inside, size) if compressed else inside
    sink.feed(head[at:])
    return sink


class _Inside:
    """The events in a compressed transaction, which have no checksums."""

    def __init__(self, begin: Begin, done: Callable[[bool], None], *, wanted: bytes) -> None:
        self._events = EventWalk(0, begin, wanted=wanted)
        self._done = done

    def feed(self, data: bytes) -> None:
        """Take the next bytes, decompressed."""
        self._events.feed(data)

    def close(self, *, whole: bool) -> None:
        """No more bytes follow. `whole`: all could be decompressed."""
        self._done(whole and self._events.is_whole)
