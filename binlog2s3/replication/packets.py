"""The packets of MySQL's client/server protocol, in both directions. Pure.

Memory is bounded by the size of one packet.

Source: MySQL's "Client/Server Protocol" (dev.mysql.com/doc/dev/mysql-server), page MySQL Packets.
"""

import struct
from collections.abc import Iterator, Sequence
from typing import TypeAlias

PACKET_MOST = 0xFFFFFF
"""The most bytes in the payload of one packet; larger ones continue in the next packet."""

_EVENT_HEAD = struct.Struct("<IB")
"""A packet's size and number, and the zero with which an event's packet begins."""

Buffer: TypeAlias = bytes | bytearray | memoryview


class PacketError(ValueError):
    """A packet that is not accepted. `code` is the server error number for it."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


class Packets:
    """The packets of one connection. Both sides count them in one sequence."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._out: list[bytes] = []
        self._sequence = 0
        self._event_left = self._packet_left = 0
        self._is_full = False

    # What the client sends

    @property
    def has_bytes(self) -> bool:
        """Whether bytes came that were not taken yet."""
        return bool(self._buffer)

    def feed(self, data: bytes) -> None:
        """Add what the client sent, cut anywhere."""
        self._buffer += data

    def take(self, most: int, *, restarts: bool, is_counted: bool) -> bytes | None:
        """The payload of the next packet; None until all of it is there.

        `restarts`: the packet may begin a new sequence. `is_counted`: it has its place in the
        sequence. Raises PacketError for a packet of more than `most` bytes, or out of order.
        """
        if len(self._buffer) < 4:
            return None
        size, sequence = int.from_bytes(self._buffer[:3], "little"), self._buffer[3]
        if size > most:
            self._sequence = sequence + 1  # that of the error, or the client does not take it
            raise PacketError(f"a packet of {size} bytes, of at most {most}", 1153)
        if restarts and sequence == 0:
            self._sequence = 0
        if is_counted and sequence != self._sequence & 0xFF:
            raise PacketError("packets out of order", 1156)
        if len(self._buffer) < 4 + size:
            return None
        payload = bytes(self._buffer[4 : 4 + size])
        del self._buffer[: 4 + size]
        self._sequence += is_counted
        return payload

    def drop(self) -> None:
        """Forget the bytes that were not taken."""
        self._buffer.clear()

    # What the client gets

    def send(self, payload: bytes) -> None:
        """Add a packet to what `to_send` returns."""
        self._out.append(self._header(len(payload)) + payload)

    def to_send(self) -> bytes:
        """The packets that have to be sent now; each byte is returned once."""
        out = b"".join(self._out)
        self._out.clear()
        return out

    def event_head(self, size: int) -> bytes:
        """What is sent before a whole event of fewer than `PACKET_MOST` bytes."""
        return self._header(size + 1) + b"\0"

    def whole_events(self, data: memoryview, sizes: Sequence[int]) -> list[Buffer]:
        """Events that follow each other in `data`, each with what is sent before it.

        None of them fills a packet.
        """
        found: list[Buffer] = []
        sequence, at = self._sequence, 0
        for size in sizes:
            found += (_EVENT_HEAD.pack(size + 1 | (sequence & 0xFF) << 24, 0), data[at : at + size])
            sequence, at = sequence + 1, at + size
        self._sequence = sequence
        return found

    def event_packets(self, data: Buffer, *, size: int) -> Iterator[Buffer]:
        """The next bytes of a dump's events, as buffers to be sent one after the other.

        `size`: `data` begins an event of this size; 0: it continues the event that was begun.
        """
        if size:
            self._event_left = size + 1
            yield from self._begin_packet(b"\0")
        rest = memoryview(data)
        while rest:
            part, rest = rest[: self._packet_left], rest[self._packet_left :]
            if not part:
                raise ValueError("more bytes than the event has")
            self._packet_left -= len(part)
            yield part
            if not self._packet_left and self._is_full:
                yield from self._begin_packet(b"")

    def _begin_packet(self, first: bytes) -> Iterator[bytes]:
        size = min(self._event_left, PACKET_MOST)
        self._event_left -= size
        self._packet_left = size - len(first)
        self._is_full = size == PACKET_MOST
        yield self._header(size) + first

    def _header(self, size: int) -> bytes:
        header = size.to_bytes(3, "little") + bytes([self._sequence & 0xFF])
        self._sequence += 1
        return header
