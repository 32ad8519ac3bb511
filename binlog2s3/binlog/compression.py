"""Decompresses events incrementally, as their bytes arrive. No I/O.

Law: memory is bounded: decompressed bytes are passed on in pieces of at most `PIECE` bytes.
ValueError is raised for bytes that cannot be decompressed, and for more bytes than the event's
header says or any server compresses. So nothing expands without end.
"""

import zlib
from collections.abc import Iterator
from typing import Protocol

import zstandard

from binlog2s3.binlog.events import Buffer, length_encoded

PIECE = 128 * 1024

_WINDOW_MOST = 1 << 27
"""No compression level of the server needs more."""
DECOMPRESSED_MOST = 4 << 30
"""The most bytes that an event may have after decompression. No event is larger."""
_SKIPPABLE_FRAME = b"\x50\x2a\x4d\x18" + bytes(4)
"""An empty frame. After the frame of the payload, it makes zstd return all that is left."""
_ZSTD, _NONE = 0, 255


class Source(Protocol):
    """Gives bytes when it is asked."""

    def read(self, size: int, /) -> bytes:
        """Up to `size` bytes; b"" at the end."""


class Sink(Protocol):
    """Takes bytes as they come."""

    def feed(self, data: bytes, /) -> None:
        """Take the next bytes."""

    def close(self, *, whole: bool) -> None:
        """No more bytes follow. `whole`: none are missing."""


class _ZstdOutput:
    """A sink in the form that zstandard wants, limited to `most` bytes."""

    def __init__(self, sink: Sink, most: int) -> None:
        self._sink = sink
        self._left = min(most, DECOMPRESSED_MOST)

    def write(self, data: bytes) -> int:
        self._left -= len(data)
        if self._left < 0:
            raise ValueError("it has more bytes after decompression than its header says")
        self._sink.feed(data)
        return len(data)


class Zstd:
    """Decompresses the payload of MySQL's TRANSACTION_PAYLOAD, at most `most` bytes."""

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
        """Pass on what is left."""
        try:
            if whole:
                self.feed(_SKIPPABLE_FRAME)
        except ValueError:
            whole = False
        self._into.close(whole=whole)


class Zlib:
    """Decompresses what MariaDB compressed, at most `most` bytes, without its header."""

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
            raise ValueError("bytes after the end of what zlib compressed")

    def close(self, *, whole: bool) -> None:
        """Pass on what is left."""
        self._into.close(whole=whole and self._stream.eof)


def mariadb_header_size(head: Buffer) -> int:
    """The size of the header before bytes that MariaDB compressed.

    It has one byte, and a length. The byte's bits: 0x80, three for the algorithm (0: zlib), three
    for the size of the length.
    """
    if head[0] & 0xF8 != 0x80 or not 1 <= head[0] & 0x07 <= 4:
        raise ValueError(f"unknown compression: {head[0]:#x}")
    return 1 + (head[0] & 0x07)


def mariadb_size(head: Buffer) -> int:
    """The size before MariaDB compressed it, by the header."""
    return int.from_bytes(head[1 : mariadb_header_size(head)], "big")


def mariadb_text(data: Buffer, most: int) -> bytes:
    """The first `most` bytes of what MariaDB compressed."""
    try:
        return zlib.decompressobj().decompress(data[mariadb_header_size(data) :], most)
    except zlib.error as error:
        raise ValueError(f"not compressed by zlib: {error}") from error


def decode_payload(head: Buffer) -> tuple[bool, int, int]:
    """The beginning of a TRANSACTION_PAYLOAD: whether it is compressed, where it begins, its size.

    The size is the one after decompression; `DECOMPRESSED_MOST` if the event does not say.

    The event has fields of a type (1 size, 2 compression, 3 size after decompression), a length
    and a value, each length-encoded; the type 0 ends them.
    """
    compression, at, size = _payload_fields(head)
    return compression == _ZSTD, at, size or DECOMPRESSED_MOST


def whole_payload(body: bytes, most: int) -> bytes | None:
    """The events in a TRANSACTION_PAYLOAD; None if their size is unknown or exceeds `most`."""
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
        raise ValueError("it has more bytes after decompression than its header says")
    try:
        return zstandard.ZstdDecompressor(max_window_size=_WINDOW_MOST).decompress(
            body[at:], max_output_size=size, allow_extra_data=False
        )
    except zstandard.ZstdError as error:
        raise ValueError(f"not compressed by zstd: {error}") from error


def _payload_fields(head: Buffer) -> tuple[int, int, int]:
    """The compression, where the payload begins, its size after decompression (0: unknown)."""
    at, compression, whole = 0, _ZSTD, 0
    try:
        while True:
            what, at = length_encoded(head, at)
            if what == 0:
                break
            size, at = length_encoded(head, at)
            if what == 2:
                compression, _ = length_encoded(head, at)
            elif what == 3:
                whole, _ = length_encoded(head, at)
            at += size
    except (IndexError, ValueError) as error:
        raise ValueError("transaction payload event too short") from error
    if compression not in (_ZSTD, _NONE):
        raise ValueError(f"unknown compression of a transaction: {compression}")
    return compression, at, whole


class ZstdStream:
    """Compresses a stream of any length as one frame, which ends with a checksum of its content."""

    def __init__(self) -> None:
        self._compressor = zstandard.ZstdCompressor(level=3, write_checksum=True).compressobj()

    def feed(self, data: bytes) -> bytes:
        """Take the next bytes; what of the frame is there now."""
        return self._compressor.compress(data)

    def end(self) -> bytes:
        """The rest of the frame."""
        return self._compressor.flush()


def unzstd(source: Source) -> Iterator[bytes]:
    """The content of all frames, as far as they go, in pieces. Raises ValueError.

    What is cut off ends without an error: whoever needs all of it knows the size.
    """
    decompressor = zstandard.ZstdDecompressor(max_window_size=_WINDOW_MOST)
    reader = decompressor.stream_reader(source, read_across_frames=True, closefd=False)  # type: ignore[arg-type]  # it only reads
    try:
        while piece := reader.read(PIECE):
            yield piece
    except zstandard.ZstdError as error:
        raise ValueError(str(error).lower()) from error
