"""Relay log files out of a piece's bytes: what stands at their head, and which events go in. Pure.

Place in the flow: `relay_files` writes what comes out; the target's applier reads it.

Law: an event goes in as the source wrote it, or not at all. Those that speak of the binlog itself
(format, rotate, stop, previous GTIDs) are left out: a real rotate event would rename the place
that the applier keeps. At the head stand a format event, the source's, and a rotate event that we
make up, which names lineage, binlog and offset to the applier; it keeps them through a crash.

The applier compares names of source logs as text, to find gaps between its workers. So the name
begins with a number that grows from file to file.
"""

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

from binlog2s3.binlog.events import (
    CHECKSUM_SIZE,
    HEADER,
    HEADER_SIZE,
    IN_USE_FLAG,
    EventType,
    FormatEvent,
    decode_format,
)
from binlog2s3.binlog.names import BinlogName
from binlog2s3.binlog.scanner import MAGIC
from binlog2s3.recover.model import Piece, Place

_ARTIFICIAL = 0x20  # LOG_EVENT_ARTIFICIAL_F
_OF_RELAY_LOG = 0x80 | 0x40  # LOG_EVENT_IGNORABLE_F, LOG_EVENT_RELAY_LOG_F
_NO_GTIDS = bytes(8)
_CREATED_OFFSET = HEADER_SIZE + 52
_SERVER_ID_OFFSET = 5
_LOG_POS_OFFSET = 13
_FLAGS_OFFSET = 17
_TYPE_ID_SIZE = struct.Struct("<4xBII")
_U32 = struct.Struct("<I")
_WRAP = 1 << 32
_LEFT_OUT = frozenset(
    {
        EventType.FORMAT_DESCRIPTION,
        EventType.ROTATE,
        EventType.STOP,
        EventType.PREVIOUS_GTIDS,
        EventType.HEARTBEAT,
        EventType.HEARTBEAT_V2,
    }
)


@dataclass(frozen=True, slots=True)
class Ident:
    """What a relay log file of ours calls the source's binlog.

    `number` grows from file to file; `begin` is the offset at which the file begins.
    """

    number: int
    lineage: str
    begin: int
    binlog: BinlogName

    @classmethod
    def parse(cls, text: str) -> "Ident | None":
        """The one that `text` is; None where it is none of ours."""
        parts = text.split(".", 3)
        try:
            number, lineage, begin, name = parts
            return cls(int(number), lineage, int(begin), BinlogName.parse(name))
        except ValueError:
            return None

    @property
    def before(self) -> "Ident":
        """One that comes before it, and begins where it does."""
        return Ident(self.number - 1, self.lineage, self.begin, self.binlog)

    def __str__(self) -> str:
        return f"{self.number:08d}.{self.lineage}.{self.begin}.{self.binlog}"

    @property
    def position(self) -> int:
        """Where the file begins, as servers count it: in 32 bits."""
        return max(self.begin % _WRAP, len(MAGIC))

    def place(self, position: int) -> Place:
        """The place that the applier means by a position, which wraps at 4 GiB."""
        offset = self.begin + (position - self.begin) % _WRAP
        return Place(lineage=self.lineage, binlog=self.binlog, offset=offset)


@dataclass(frozen=True, slots=True)
class Head:
    """How the relay log files of a piece begin. `raw` is the source's format event."""

    raw: bytes
    facts: FormatEvent

    @classmethod
    def of(cls, data: bytes) -> "Head":
        """From the magic and the format event of a binlog."""
        raw = bytes(data[len(MAGIC) :])
        return cls(raw, decode_format(raw, offset=len(MAGIC)))

    @property
    def created(self) -> int:
        """Not 0 in the first binlog behind a start of the server."""
        return int(_U32.unpack_from(self.raw, _CREATED_OFFSET)[0])

    def render(self, ident: Ident, *, server_id: int, new_sessions: bool) -> bytes:
        """The first bytes of a file: magic, format event, no previous GTIDs, rotate event.

        `server_id` must not be the target's own, else it would ignore both. `new_sessions`: the
        sessions of the source that come now are others than those before; the applier then drops
        their temporary tables.
        """
        event = bytearray(self.raw)
        _U32.pack_into(event, _SERVER_ID_OFFSET, server_id)
        _U32.pack_into(event, _LOG_POS_OFFSET, 0)  # else the place would move before it is named
        event[_FLAGS_OFFSET] &= ~IN_USE_FLAG
        created = (self.created or self.facts.timestamp or 1) if new_sessions else 0
        _U32.pack_into(event, _CREATED_OFFSET, created)
        if self.facts.has_checksum:
            _U32.pack_into(event, len(event) - CHECKSUM_SIZE, zlib.crc32(event[:-CHECKSUM_SIZE]))
        place = struct.pack("<Q", ident.position) + str(ident).encode()
        return (
            MAGIC
            + bytes(event)
            # a server that starts does not take a relay log without
            + self._event(EventType.PREVIOUS_GTIDS, server_id, _NO_GTIDS, _OF_RELAY_LOG)
            + self._event(EventType.ROTATE, server_id, place, _ARTIFICIAL)
        )

    def _event(self, event_type: EventType, server_id: int, body: bytes, flags: int) -> bytes:
        """One without a position, as the source's server would write it."""
        has_checksum = self.facts.checksum == "crc32"
        size = HEADER_SIZE + len(body) + (CHECKSUM_SIZE if has_checksum else 0)
        event = HEADER.pack(0, event_type, server_id, size, 0, flags) + body
        return event + _U32.pack(zlib.crc32(event)) if has_checksum else event


class Events:
    """Walks a piece's bytes, behind the head, however they are cut: which of them go in.

    `server_ids` are those of all events that went in. `offset` counts in the source's binlog.
    """

    def __init__(self, piece: Piece, head_size: int) -> None:
        self.server_ids: set[int] = set()
        begin = max(piece.begin, head_size)
        bounds = [begin, *(at for pair in piece.left_out for at in pair), piece.end]
        self._sections = [
            (low, high)
            for low, high in zip(bounds[::2], bounds[1::2], strict=True)
            if high > max(low, begin)
        ]
        self._sections.reverse()
        self.offset = self._sections[-1][0] if self._sections else piece.end
        self._header = b""  # of an event whose header is not whole yet
        self._rest = 0  # bytes of an event that has begun
        self._goes_in = True

    def upto(self, end: int, data: memoryview) -> memoryview:
        """The first bytes of `data`, up to this offset of the binlog, a boundary."""
        size, at = 0, self.offset
        for low, high in reversed(self._sections):
            if end <= at:
                break
            at = max(at, low)
            size += min(end, high) - at
            at = min(end, high)
        return data[:size]

    def feed(self, data: memoryview) -> Iterator[bytes | memoryview]:
        """Take the next bytes; those that go in, in order."""
        self._count(len(data))
        at, begin, size = 0, 0, len(data)  # from `begin` on all goes in that is not out yet
        while at < size:
            if self._rest:
                step = min(self._rest, size - at)
                self._rest -= step
                at += step
                if not self._goes_in:
                    begin = at
            elif not self._header and size - at >= HEADER_SIZE:
                self._begin(data, at)
                if not self._goes_in:
                    yield data[begin:at]
                    begin = at
            else:
                yield data[begin:at]
                part = data[at : at + HEADER_SIZE - len(self._header)]
                self._header += part
                at = begin = at + len(part)
                if len(self._header) == HEADER_SIZE:
                    header, self._header = self._header, b""
                    self._begin(header, 0)
                    self._rest -= HEADER_SIZE
                    if self._goes_in:
                        yield header
        yield data[begin:at]

    def _begin(self, data: bytes | memoryview, at: int) -> None:
        """An event begins here."""
        event_type, server_id, self._rest = _TYPE_ID_SIZE.unpack_from(data, at)
        self._goes_in = event_type not in _LEFT_OUT
        if self._goes_in:
            self.server_ids.add(server_id)

    def _count(self, size: int) -> None:
        while size and self._sections:
            low, high = self._sections[-1]
            step = min(size, high - max(self.offset, low))
            self.offset = max(self.offset, low) + step
            size -= step
            if self.offset == high:
                self._sections.pop()
