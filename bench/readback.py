"""Reads every binlog back from the bucket and finds each committed transaction in it.

Law: nothing but GETs. The scanner checks every event, so a transaction that is found here is whole
and right, and the byte it ends at is what must be readable before it can be restored.
"""

import re
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bench.reach import Bucket, chunks_and_binlogs
from binlog2s3.archive.chunks import join
from binlog2s3.binlog.names import BinlogName
from binlog2s3.binlog.scanner import Scanner

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

PIECE_BYTES = 1024 * 1024
_MARK = re.compile(rb"<([0-9]{12}) [0-9]{10}\.[0-9]{6}>")
_MARK_BYTES = 32


def mark(number: int, now: float) -> str:
    """What a row carries: its number and when the client sent it (seconds since 1970)."""
    return f"<{number:012d} {now:017.6f}>"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a transaction ends."""

    binlog: str
    end: int


@dataclass(frozen=True, slots=True)
class Contents:
    """What lies in the bucket: sizes by binlog, places by the number in the row."""

    sizes: dict[str, int]
    places: dict[int, Place]


def read_back(where: Bucket) -> Contents:
    client = where.client()
    chunks, binlogs = chunks_and_binlogs(client, where)
    contents = Contents({}, {})
    for name in sorted({*chunks, *binlogs}, key=BinlogName.parse):
        if name in binlogs:
            pieces = _object(client, where.bucket, binlogs[name][0])
        else:
            needed = join(chunks[name])
            begins = [0, *(chunk.end for chunk in needed)]
            pieces = (
                _object_bytes(client, where.bucket, chunks[name][chunk])[begin - chunk.begin :]
                for begin, chunk in zip(begins, needed, strict=False)
            )
        scan(name, pieces, contents)
    client.close()
    return contents


def scan(name: str, pieces: Iterable[bytes], into: Contents) -> None:
    """Scan one binlog. Raises DamageError where its bytes are wrong."""
    scanner = Scanner()
    marks: deque[tuple[int, int]] = deque()
    offset, tail = 0, b""
    for piece in pieces:
        window = tail + piece
        base = offset - len(tail)
        for found in _MARK.finditer(window):
            if base + found.end() > offset:
                marks.append((base + found.end(), int(found[1])))
        offset += len(piece)
        tail = window[-(_MARK_BYTES - 1) :]
        for transaction in scanner.feed(piece):
            while marks and marks[0][0] <= transaction.end:
                _at, number = marks.popleft()
                into.places[number] = Place(name, transaction.end)
    into.sizes[name] = offset


def _object(client: "S3Client", bucket: str, key: str) -> Iterator[bytes]:
    body = client.get_object(Bucket=bucket, Key=key)["Body"]
    with body:
        yield from body.iter_chunks(PIECE_BYTES)


def _object_bytes(client: "S3Client", bucket: str, key: str) -> bytes:
    return b"".join(_object(client, bucket, key))
