"""The stream of a base backup that is stored in the bucket: what it is, and how it is read back.

Law: no byte is passed on before the part that has it was read as a whole and has the checksum of
the backup's document. What is passed on, all together, has the size and the checksum of what the
backup program wrote; otherwise the end is an ArchiveError. At most two parts are in memory.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, Self

from binlog2s3.archive.fields import count, each, mapping, moment
from binlog2s3.archive.layout import Layout
from binlog2s3.archive.parts import Grid, Part
from binlog2s3.binlog.checksum import (
    crc64_from_hex,
    crc64_hex,
    crc64_of_both,
    crc64nvme,
)
from binlog2s3.binlog.compression import unzstd
from binlog2s3.errors import ArchiveError, ObjectMissingError
from binlog2s3.formatting import iso_text
from binlog2s3.store.contract import Store

PART_SIZE = 8 << 20
"""Of the first 1,000 parts of an object; see `Grid`."""
MOST_PARTS = 4000
"""Of an object: the last ones have 64 MiB. What follows is the next object, which begins anew."""
MOST_OBJECTS = 240
"""More would not fit into the backup's document."""
_PART_SIZES = (1, 64 << 20)

Compression = Literal["none", "zstd"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredObject:
    """One object of a stream: its size, and the CRC64NVME of each of its parts."""

    size: int
    parts: tuple[int, ...]

    def ranges(self, grid: Grid) -> list[tuple[Part, int]]:
        """Its parts with their checksums."""
        return list(zip(grid.parts(self.size), self.parts, strict=True))

    def crc64(self, grid: Grid) -> int:
        """The CRC64NVME of the whole object."""
        found = 0
        for part, crc64 in self.ranges(grid):
            found = crc64_of_both(found, crc64, part.end - part.begin)
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """What the bucket has of a base backup's stream: objects, one after the other.

    `size` bytes with the CRC64NVME `crc64` are what the backup program wrote. `part_size` is that
    of the grid of each object. The program ran from `began_at` to `ended_at`.
    """

    compression: Compression
    part_size: int
    objects: tuple[StoredObject, ...]
    size: int
    crc64: int
    began_at: datetime
    ended_at: datetime

    @property
    def grid(self) -> Grid:
        """The offsets of the parts of each object."""
        return Grid(self.part_size)

    @property
    def stored_size(self) -> int:
        """The bytes in the bucket."""
        return sum(one.size for one in self.objects)

    @property
    def seconds(self) -> float:
        """How long the program ran."""
        return (self.ended_at - self.began_at).total_seconds()

    def summary(self) -> dict[str, Any]:
        """What it is, without the parts."""
        return {
            "compression": self.compression,
            "size": self.size,
            "crc64": crc64_hex(self.crc64),
            "stored_size": self.stored_size,
            "began_at": iso_text(self.began_at),
            "ended_at": iso_text(self.ended_at),
        }

    def document(self) -> dict[str, Any]:
        """The field `stored` of a backup's document."""
        return {
            **self.summary(),
            "part_size": self.part_size,
            "objects": [
                {
                    "size": one.size,
                    "crc64": crc64_hex(one.crc64(self.grid)),
                    "parts": " ".join(map(crc64_hex, one.parts)),
                }
                for one in self.objects
            ],
        }

    @classmethod
    def of(cls, value: Any) -> Self:
        """Read that field. Raises ValueError and the like if it contradicts itself."""
        document = mapping(value)
        part_size = count(document["part_size"])
        if not _PART_SIZES[0] <= part_size <= _PART_SIZES[1]:
            raise ValueError(f"{part_size} is no size of a part")
        found = cls(
            compression=_compression(document["compression"]),
            part_size=part_size,
            objects=each(lambda one: _object(one, Grid(part_size)), document["objects"]),
            size=count(document["size"]),
            crc64=crc64_from_hex(document["crc64"]),
            began_at=moment(document["began_at"]),
            ended_at=moment(document["ended_at"]),
        )
        if not 1 <= len(found.objects) <= MOST_OBJECTS or not found.size:
            raise ValueError("it has no objects, or too many, or no bytes")
        if found.stored_size != count(document["stored_size"]):
            raise ValueError("its objects have another size than all of it")
        return found


def _compression(value: Any) -> Compression:
    if value not in ("none", "zstd"):
        raise ValueError(f"{value!r:.40} is no compression that is known")
    return "zstd" if value == "zstd" else "none"


def _object(value: Any, grid: Grid) -> StoredObject:
    document = mapping(value)
    found = StoredObject(
        size=count(document["size"]),
        parts=tuple(map(crc64_from_hex, document["parts"].split(" "))),
    )
    if not 1 <= len(found.parts) <= MOST_PARTS:
        raise ValueError(f"it has {len(found.parts)} parts")
    if not found.size or found.crc64(grid) != crc64_from_hex(document["crc64"]):
        raise ValueError("its parts do not have its checksum")
    return found


def read_stored(
    store: Store,
    layout: Layout,
    id_: str,
    stored: Stored,
    advance: Callable[[int, int], object] = lambda _done, _total: None,
) -> Iterator[bytes]:
    """The stream as the backup program wrote it, checked, in pieces of at most a part.

    `advance` gets the bytes that were read of the bucket's, and all. Raises ArchiveError if an
    object is missing or damaged, StoreError.
    """
    blocks = _parts(store, layout, id_, stored, advance)
    pieces = blocks if stored.compression == "none" else unzstd(_Blocks(blocks))
    size = crc64 = 0
    try:
        for piece in pieces:
            size, crc64 = size + len(piece), crc64nvme(piece, crc64)
            if size > stored.size:
                break
            yield piece
    except ValueError as error:
        raise _damaged(f"backup {id_} cannot be decompressed: {error}") from error
    if (size, crc64) != (stored.size, stored.crc64):
        raise _damaged(f"backup {id_} does not have the bytes that its program wrote")


def _parts(
    store: Store, layout: Layout, id_: str, stored: Stored, advance: Callable[[int, int], object]
) -> Iterator[bytes]:
    """The bytes of all objects, a part at a time, each checked; the next one is read meanwhile."""
    wanted = [
        (layout.stored(id_, number), part, crc64)
        for number, one in enumerate(stored.objects, 1)
        for part, crc64 in one.ranges(stored.grid)
    ]
    done, total = 0, stored.stored_size
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="stored") as ahead:
        coming = ahead.submit(_part, store, *wanted[0])
        for after in [*wanted[1:], None]:
            data = coming.result()
            if after is not None:
                coming = ahead.submit(_part, store, *after)
            yield data
            done += len(data)
            advance(done, total)


def _part(store: Store, key: str, part: Part, crc64: int) -> bytes:
    try:
        data = store.get(key, part.begin, part.end)
    except ObjectMissingError as error:
        raise ArchiveError(
            f"{key}, which a base backup consists of, is missing",
            hint="use another base backup: `binlog2s3 backup list`",
        ) from error
    if len(data) != part.end - part.begin or crc64nvme(data) != crc64:
        raise _damaged(f"{key} is damaged between {part.begin} and {part.end}")
    return data


def _damaged(what: str) -> ArchiveError:
    return ArchiveError(
        what,
        hint="do not use what was written so far; use another base backup (`binlog2s3 backup "
        "list`), or an older version of the object, where the bucket is versioned",
    )


class _Blocks:
    """Blocks as something to read from, for a decompressor."""

    def __init__(self, blocks: Iterator[bytes]) -> None:
        self._blocks = blocks
        self._rest = memoryview(b"")

    def read(self, size: int) -> bytes:
        if not self._rest:
            self._rest = memoryview(next(self._blocks, b""))
        piece, self._rest = self._rest[:size], self._rest[size:]
        return bytes(piece)
