import random
import zlib
from collections.abc import Callable

import pytest
import zstandard

from binlog2s3.binlog.compression import (
    DECOMPRESSED_MOST,
    PIECE,
    Zlib,
    Zstd,
    decode_payload,
    mariadb_header_size,
    mariadb_text,
    whole_payload,
)
from tests.binlog_writer import packed

MIB = 1 << 20


class Taken:
    """A sink that keeps what it gets."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.whole: bool | None = None

    def feed(self, data: bytes, /) -> None:
        self.pieces.append(data)

    def close(self, *, whole: bool) -> None:
        self.whole = whole


def noise(size: int) -> bytes:
    return random.Random(size).randbytes(size)


def flushed_often(data: bytes, size: int) -> bytes:
    """Compressed in blocks that are not as large as they could be."""
    stream = zstandard.ZstdCompressor().compressobj()
    made = b""
    for at in range(0, len(data), size):
        made += stream.compress(data[at : at + size])
        made += stream.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)
    return made + stream.flush()


def in_blocks(size: int) -> tuple[type[Zstd], Callable[[bytes], bytes]]:
    return Zstd, lambda data: flushed_often(data, size)


@pytest.mark.parametrize("cut", [1, 1000, 10 * MIB])
@pytest.mark.parametrize(
    ("stream_of", "compress"),
    [(Zlib, zlib.compress), *map(in_blocks, (1000, 77_777, 128 * 1024, 10 * MIB))],
)
@pytest.mark.parametrize("size", [0, 1, PIECE, PIECE + 1, 3 * PIECE + 5])
def test_what_was_compressed_comes_out_whole(
    size: int, stream_of: type[Zstd | Zlib], compress: Callable[[bytes], bytes], cut: int
) -> None:
    """To the last byte, however it was compressed and is cut, in pieces of limited size."""
    for data in (noise(size), bytes(size), (noise(100) * (size // 100 + 1))[:size]):
        into, compressed = Taken(), compress(data)
        if cut == 1 and len(compressed) > 20_000:
            continue
        stream = stream_of(into)
        for at in range(0, len(compressed), cut):
            stream.feed(compressed[at : at + cut])
        stream.close(whole=True)
        assert b"".join(into.pieces) == data
        assert into.whole
        assert max(map(len, into.pieces), default=0) <= PIECE


@pytest.mark.parametrize("kind", ["zstd", "zlib"])
def test_what_swells_is_never_held(kind: str) -> None:
    """A few kilobytes that are many megabytes of zeros come out in small pieces."""
    into = Taken()
    stream: Zstd | Zlib
    if kind == "zstd":
        stream, compressed = Zstd(into), zstandard.ZstdCompressor().compress(bytes(64 * MIB))
    else:
        stream, compressed = Zlib(into), zlib.compress(bytes(64 * MIB))
    stream.feed(compressed)
    stream.close(whole=True)
    assert into.whole
    assert sum(map(len, into.pieces)) == 64 * MIB
    assert max(map(len, into.pieces)) <= PIECE


def test_what_ends_too_early_is_not_whole() -> None:
    """And neither is what another event was cut off from."""
    for make, compressed in (
        (Zlib, zlib.compress(noise(999))),
        (Zstd, zstandard.ZstdCompressor().compress(noise(999))),
    ):
        for size, whole in ((len(compressed) - 1, True), (len(compressed), False)):
            into = Taken()
            stream = make(into)
            stream.feed(compressed[:size])
            stream.close(whole=whole)
            assert into.whole is False


def test_what_is_not_compressed_is_refused() -> None:
    """With an error of ours."""
    with pytest.raises(ValueError, match="zstd"):
        Zstd(Taken()).feed(b"no such thing" * 9)
    with pytest.raises(ValueError, match="zlib"):
        Zlib(Taken()).feed(b"no such thing" * 9)
    stream = Zlib(Taken())
    stream.feed(zlib.compress(b"abc"))
    with pytest.raises(ValueError, match="after the end"):
        stream.feed(b"more")
    with pytest.raises(ValueError, match="zlib"):
        mariadb_text(b"\x81\x09no such thing", 100)


def test_the_head_of_a_compressed_transaction() -> None:
    """Fields in any order, and such as nobody knows."""
    size, unknown = packed(3) + packed(9) + packed(1 << 40), packed(77) + packed(300) + bytes(300)
    for what, expected in ((packed(0), True), (packed(255), False)):
        compression = packed(2) + packed(len(what)) + what
        for fields in ([size, unknown, compression], [compression], [compression, size]):
            head = b"".join(fields) + b"\0"
            most = 1 << 40 if size in fields else DECOMPRESSED_MOST
            assert decode_payload(head + b"\2\2\2") == (expected, len(head), most)
    with pytest.raises(ValueError, match="unknown compression"):
        decode_payload(b"\2\1\7\0")
    for cut in range(1, len(head)):
        with pytest.raises(ValueError, match="too short"):
            decode_payload(head[:cut])


def test_the_head_of_what_mariadb_compressed() -> None:
    """Zlib with a length of one to four bytes."""
    text = b"INSERT INTO a VALUES (1)" * 50
    for count in (2, 3, 4):
        head = bytes([0x80 | count]) + len(text).to_bytes(count, "big")
        assert mariadb_header_size(head) == 1 + count
        assert mariadb_text(head + zlib.compress(text), 9999) == text
        assert mariadb_text(head + zlib.compress(text), 30) == text[:30]
    for first in (0x00, 0x02, 0x80, 0x85, 0x90, 0xFF):
        with pytest.raises(ValueError, match="unknown compression"):
            mariadb_header_size(bytes([first]))


@pytest.mark.parametrize("kind", ["zstd", "zlib"])
@pytest.mark.parametrize("cut", [1000, 10 * MIB])
def test_what_expands_beyond_what_its_header_says_is_refused(kind: str, cut: int) -> None:
    """Of a few kilobytes that are many megabytes no more comes than was announced."""
    into = Taken()
    stream: Zstd | Zlib
    if kind == "zstd":
        stream, compressed = Zstd(into, MIB), zstandard.ZstdCompressor().compress(bytes(64 * MIB))
    else:
        stream, compressed = Zlib(into, MIB), zlib.compress(bytes(64 * MIB))

    def feed() -> None:
        for at in range(0, len(compressed), cut):
            stream.feed(compressed[at : at + cut])

    with pytest.raises(ValueError, match="more bytes after decompression"):
        feed()
    assert sum(map(len, into.pieces)) <= MIB


@pytest.mark.parametrize("size", [101, 1 << 31, 1 << 40, 1 << 62])
def test_no_memory_is_taken_for_what_a_frame_claims(size: int) -> None:
    """The event says 100 bytes, the zstd frame in it very many."""
    frame = b"\x28\xb5\x2f\xfd\xe0" + size.to_bytes(8, "little") + b"\x01\x00\x00"
    with pytest.raises(ValueError, match="more bytes after decompression"):
        whole_payload(b"\x03\x01\x64\x00" + frame, 32 * MIB)


def test_what_lies_behind_a_payload_is_refused() -> None:
    """And one of just the size that is allowed is read; one byte more is left."""
    frame = zstandard.ZstdCompressor().compress(bytes(100))
    body = b"\x03\x01\x64\x00" + frame
    assert whole_payload(body, 100) == bytes(100)
    assert whole_payload(body, 99) is None
    with pytest.raises(ValueError, match="not compressed"):
        whole_payload(body + b"more", 100)
    assert whole_payload(b"\x03\x01\x00\x00" + frame, 100) is None
