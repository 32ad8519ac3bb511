"""Compressed events, decompressed piece by piece as their bytes come. No I/O.

Place: `content` feeds what lies in a compressed event, and is fed what was in it.

Law: neither the compressed nor the decompressed bytes are ever held as a whole: what goes on is in
pieces of at most `PIECE` bytes. Whatever cannot be decompressed raises ValueError, and so does what
is more than its own header says, or than any server compresses: nothing expands without end.
"""

import zlib
from typing import Protocol

import zstandard

from binlog2s3.binlog.events import Buffer

PIECE = 128 * 1024

_WINDOW_MOST = 1 << 27
"""The most that the server's own compression levels need."""
DECOMPRESSED_MOST = 4 << 30
"""Bytes that one event may have decompressed. No event is larger either."""
_SKIPPABLE_FRAME = b"\x50\x2a\x4d\x18" + bytes(4)
"""A frame with nothing in it. Behind the payload's own it makes zstd hand out all it still has."""
_ZSTD, _NONE = 0, 255


class Sink(Protocol):
    """What takes bytes as they come."""

    def feed(self, data: bytes, /) -> None:
        """Take the next bytes."""

    def close(self, *, whole: bool) -> None:
        """That was all; `whole`: and nothing is missing."""


class _ZstdOutput:
    """A sink as zstandard wants it, for so many bytes."""

    def __init__(self, sink: Sink, most: int) -> None:
        self._sink = sink
        self._left = min(most, DECOMPRESSED_MOST)

    def write(self, data: bytes) -> int:
        self._left -= len(data)
        if self._left < 0:
            raise ValueError("more is compressed in it than its header says")
        self._sink.feed(data)
        return len(data)


class Zstd:
    """The payload of MySQL's TRANSACTION_PAYLOAD, which has `most` bytes when decompressed."""

    def __init__(self, into: Sink, most: int = DECOMPRESSED_MOST) -> None:
        self._into = into
        self._writer = zstandard.ZstdDecompressor(max_window_size=_WINDOW_MOST).stream_writer(
            _ZstdOutput(into, most),  # type: ignore[arg-type]  # it only writes
            write_size=PIECE,
            closefd=False,
        )

    def feed(self, data: bytes) -> None:
        """Take compressed bytes."""
        try:
            self._writer.write(data)
        except zstandard.ZstdError as error:
            raise ValueError(f"not compressed by zstd: {error}") from error

    def close(self, *, whole: bool) -> None:
        """Hand out what is left."""
        try:
            if whole:
                self.feed(_SKIPPABLE_FRAME)
        except ValueError:
            whole = False
        self._into.close(whole=whole)


class Zlib:
    """What MariaDB compresses, `most` bytes of it; behind the header of `mariadb_header_size`."""

    def __init__(self, into: Sink, most: int = DECOMPRESSED_MOST) -> None:
        self._into = into
        self._limited = _ZstdOutput(into, most)
        self._stream = zlib.decompressobj()

    def feed(self, data: bytes) -> None:
        """Take compressed bytes."""
        try:
            while data:
                self._limited.write(self._stream.decompress(data, PIECE))
                data = self._stream.unconsumed_tail
        except zlib.error as error:
            raise ValueError(f"not compressed by zlib: {error}") from error
        if self._stream.unused_data:
            raise ValueError("bytes behind what was compressed by zlib")

    def close(self, *, whole: bool) -> None:
        """Hand out what is left."""
        self._into.close(whole=whole and self._stream.eof)


def mariadb_header_size(head: Buffer) -> int:
    """Bytes of the header in front of what MariaDB compressed: one, and the length's own.

    Its bits: 0x80, 3 for the algorithm (0: zlib), 3 for how many bytes the length has.
    """
    if head[0] & 0xF8 != 0x80 or not 1 <= head[0] & 0x07 <= 4:
        raise ValueError(f"unknown compression: {head[0]:#x}")
    return 1 + (head[0] & 0x07)


def mariadb_size(head: Buffer) -> int:
    """How many bytes MariaDB compressed, as the header in front of it says."""
    return int.from_bytes(head[1 : mariadb_header_size(head)], "big")


def mariadb_text(data: Buffer, most: int) -> bytes:
    """The first `most` bytes of what MariaDB compressed."""
    try:
        return zlib.decompressobj().decompress(data[mariadb_header_size(data) :], most)
    except zlib.error as error:
        raise ValueError(f"not compressed by zlib: {error}") from error


def _packed(head: Buffer, at: int) -> tuple[int, int]:
    """A length-encoded integer, and where the next field begins."""
    first = head[at]
    if first < 251:
        return first, at + 1
    size = {252: 2, 253: 3, 254: 8}[first]
    return int.from_bytes(head[at + 1 : at + 1 + size], "little"), at + 1 + size


def decode_payload(head: Buffer) -> tuple[bool, int, int]:
    """The beginning of a TRANSACTION_PAYLOAD: whether it is compressed, where it begins, its size.

    The size is that when decompressed, `DECOMPRESSED_MOST` where the event does not say.

    Fields of a type (1 size, 2 compression, 3 size when decompressed), a length and a value, each
    length-encoded; the type 0 ends them.
    """
    compression, at, size = _payload_fields(head)
    return compression == _ZSTD, at, size or DECOMPRESSED_MOST


def whole_payload(body: bytes, most: int) -> bytes | None:
    """The events in a TRANSACTION_PAYLOAD; None if they are more than `most` bytes, or unsure."""
    compression, at, size = _payload_fields(body)
    if compression == _NONE:
        return body[at:]
    if not 0 < size <= most:
        return None
    try:
        claimed = zstandard.frame_content_size(body[at:])
    except zstandard.ZstdError as error:
        raise ValueError(f"not compressed by zstd: {error}") from error
    if claimed > size:  # that much would be allocated
        raise ValueError("more is compressed in it than its header says")
    try:
        return zstandard.ZstdDecompressor(max_window_size=_WINDOW_MOST).decompress(
            body[at:], max_output_size=size, allow_extra_data=False
        )
    except zstandard.ZstdError as error:
        raise ValueError(f"not compressed by zstd: {error}") from error


def _payload_fields(head: Buffer) -> tuple[int, int, int]:
    """How it is compressed, where it begins, its size when decompressed (0: unknown)."""
    at, compression, whole = 0, _ZSTD, 0
    try:
        while True:
            what, at = _packed(head, at)
            if what == 0:
                break
            size, at = _packed(head, at)
            if what == 2:
                compression, _ = _packed(head, at)
            elif what == 3:
                whole, _ = _packed(head, at)
            at += size
    except (IndexError, KeyError) as error:
        raise ValueError("transaction payload event too short") from error
    if compression not in (_ZSTD, _NONE):
        raise ValueError(f"unknown compression of a transaction: {compression}")
    return compression, at, whole
