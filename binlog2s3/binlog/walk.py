"""Cuts the bytes of transactions into events, and passes each event to a callback. No I/O.

Place: `content` and `client_text` read transactions with it, and `find` looks for names of tables.
The bytes were checked before.

Law: large events are passed on in pieces, so memory is bounded. Bytes that are no events raise
nothing; `lost` says so.
"""

import struct
from collections.abc import Callable
from typing import TypeAlias

from binlog2s3.binlog.compression import Sink
from binlog2s3.binlog.events import HEADER, HEADER_SIZE, Buffer

HEAD_MOST = 128 * 1024
"""The first so many bytes of an event's body contain all that is decoded, except rows. Status
variables and extra information have at most 64 KiB each, 4096 columns 12 KiB."""
UNDECODABLE = (ValueError, IndexError, KeyError, OverflowError, struct.error)

Begin: TypeAlias = Callable[[int, bytes], Sink | None]
"""Called with an event's type and the beginning of its body. The sink that it returns, if any, gets
the rest of the body."""


def wanted_types(*types: int) -> bytes:
    """A table of the 256 event types: 1 for each of these."""
    return bytes(event_type in types for event_type in range(256))


class EventWalk:
    """Cuts bytes into events, and calls `begin` for each event of a wanted type.

    `lost`: something was not an event, or could not be decoded.
    """

    def __init__(self, trailer: int, begin: Begin, *, wanted: bytes) -> None:
        """`trailer`: the size of each event's checksum. `wanted`: from `wanted_types`."""
        self._trailer = trailer
        self._is_wanted = wanted
        self._begin = begin
        self.lost = False
        self._is_broken = False  # where the next event begins is not known
        self._head = bytearray()  # header and body of the event that has begun, up to `_wanted`
        self._wanted = HEADER_SIZE
        self._size = 0  # of it, without checksum; 0 until its header has come
        self._rest = 0  # bytes of a body that still go to `_sink`
        self._skip = 0  # bytes to ignore
        self._sink: Sink | None = None

    @property
    def is_whole(self) -> bool:
        """Whether all events could be read, and the last one is complete."""
        return not (self.lost or self._head or self._rest or self._skip)

    def feed(self, data: Buffer) -> None:
        """Take the next bytes, cut anywhere."""
        with memoryview(data) as view:
            at, size = 0, len(view)
            while at < size and not self._is_broken:
                if self._skip:
                    skipped = min(self._skip, size - at)
                    self._skip -= skipped
                    at += skipped
                elif self._rest:
                    piece = bytes(view[at : at + self._rest])
                    at += len(piece)
                    self._pass_on(piece)
                else:
                    at = self._take(view, at if self._head else self._walk(view, at))

    def _walk(self, view: memoryview, at: int) -> int:
        """The fast path: take the events that are whole in `view`, except large ones."""
        unpack, last, trailer = HEADER.unpack_from, len(view) - HEADER_SIZE, self._trailer
        least = HEADER_SIZE + trailer
        while at <= last:
            _, event_type, _, size, _, _ = unpack(view, at)
            end = at + size
            if size < least or end > len(view):
                break
            if self._is_wanted[event_type]:
                if size > HEAD_MOST:
                    break
                self._take_whole(event_type, bytes(view[at + HEADER_SIZE : end - trailer]))
            at = end
        return at

    def _take_whole(self, event_type: int, body: bytes) -> None:
        try:
            sink = self._begin(event_type, body)
            if sink is not None:
                sink.close(whole=True)
        except UNDECODABLE:
            self.lost = True

    def _take(self, view: memoryview, at: int) -> int:
        """Take bytes of an event's header, and of the beginning of its body."""
        piece = view[at : at + self._wanted - len(self._head)]
        self._head += piece
        if len(self._head) == self._wanted and not self._size:
            self._take_header()
        if self._size and len(self._head) == self._wanted:
            self._take_head()
        return at + len(piece)

    def _take_header(self) -> None:
        _, event_type, _, size, _, _ = HEADER.unpack_from(self._head)
        if size < HEADER_SIZE + self._trailer:
            self.lost = self._is_broken = True
        elif self._is_wanted[event_type]:
            self._size = size - self._trailer
            self._wanted = min(self._size, HEADER_SIZE + HEAD_MOST)
        else:
            self._skip = size - HEADER_SIZE
            self._head.clear()

    def _take_head(self) -> None:
        self._rest = self._size - self._wanted
        try:
            self._sink = self._begin(self._head[4], bytes(self._head[HEADER_SIZE:]))
        except UNDECODABLE:
            self.lost = True
        self._head.clear()
        self._wanted, self._size = HEADER_SIZE, 0
        if not self._rest or self._sink is None:
            self._close(whole=True)

    def _pass_on(self, piece: bytes) -> None:
        """Pass a piece of the body to the sink."""
        self._rest -= len(piece)
        whole = True
        try:
            if self._sink is not None:
                self._sink.feed(piece)
        except UNDECODABLE:
            whole = False
        if not self._rest or not whole:
            self._close(whole=whole)

    def _close(self, *, whole: bool) -> None:
        """End the event. Ignore the rest of it, if there is any."""
        self._skip, self._rest = self._rest + self._trailer, 0
        sink, self._sink = self._sink, None
        try:
            if sink is not None:
                sink.close(whole=whole)
        except UNDECODABLE:
            self.lost = True


class Inside:
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
