"""The stream of a base backup that is stored in the bucket: what it is, and how it is read back.

Law: no byte is passed on before the part that has it was read as a whole and has the checksum of
the backup's document. What is passed on, all together, has the size and the checksum of what the
backup program wrote; otherwise the end is an ArchiveError. At most two parts are in memory.
"""

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Annotated, Literal, Self

from msgspec import Meta

from binlog2s3.archive.codec import Count, Crc64, Moment
from binlog2s3.archive.layout import Layout
from binlog2s3.archive.parts import Grid, Part
from binlog2s3.binlog.checksum import crc64_of_both, crc64nvme
from binlog2s3.binlog.compression import unzstd
from binlog2s3.errors import ArchiveError, ObjectMissingError
from binlog2s3.store.contract import Store
from binlog2s3.workers import Advance, unseen

PART_SIZE = 8 << 20
"""Of the first 1,000 parts of an object; see `Grid`."""
MOST_PARTS = 4000
"""Of an object: the last ones have 64 MiB. What follows is the next object, which begins anew."""
MOST_OBJECTS = 240
"""More would not fit into the backup's document."""
MOST_PART_SIZE = 64 << 20

Compression = Literal["none", "zstd"]


class Crc64s:
    """The CRC64NVME of each part of an object: one text in a document, a blank between two."""

    __slots__ = ("values",)

    def __init__(self, values: Sequence[int]) -> None:
        self.values = tuple(map(Crc64, values))

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read them. Raises ValueError."""
        return cls([Crc64.parse(crc64) for crc64 in text.split(" ")])

    def __str__(self) -> str:
        return " ".join(map(str, self.values))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Crc64s) and self.values == other.values

    def __hash__(self) -> int:
        return hash(self.values)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredObject:
    """One object of a stream: its size, its CRC64NVME, and those of its parts."""

    size: Count
    crc64: Crc64
    parts: Crc64s

    def __post_init__(self) -> None:
        if not 1 <= len(self.parts.values) <= MOST_PARTS:
            raise ValueError(f"it has {len(self.parts.values)} parts")

    def ranges(self, grid: Grid) -> list[tuple[Part, int]]:
        """Its parts with their checksums. Raises ValueError if the grid has others."""
        return list(zip(grid.parts(self.size), self.parts.values, strict=True))

    @classmethod
    def of(cls, size: int, parts: Sequence[int], grid: Grid) -> Self:
        """An object whose parts have these checksums."""
        sums = Crc64s(parts)
        return cls(size=size, crc64=_crc64(zip(grid.parts(size), parts, strict=True)), parts=sums)


def _crc64(parts: Iterable[tuple[Part, int]]) -> Crc64:
    """The CRC64NVME of all parts together."""
    found = 0
    for part, crc64 in parts:
        found = crc64_of_both(found, crc64, part.end - part.begin)
    return Crc64(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """What the bucket has of a base backup's stream: objects, one after the other.

    `size` bytes with the CRC64NVME `crc64` are what the backup program wrote, `stored_size` those
    in the bucket. `part_size` is that of the grid of each object. The program ran from `began_at`
    to `ended_at`.
    """

    compression: Compression
    size: Count
    crc64: Crc64
    stored_size: Count
    began_at: Moment
    ended_at: Moment
    part_size: Annotated[int, Meta(ge=1, le=MOST_PART_SIZE)]
    objects: Annotated[tuple[StoredObject, ...], Meta(min_length=1, max_length=MOST_OBJECTS)]

    def __post_init__(self) -> None:
        if not self.size:
            raise ValueError("it has no bytes")
        if self.stored_size != sum(stored_object.size for stored_object in self.objects):
            raise ValueError("its objects have another size than all of it")
        for stored_object in self.objects:
            if (
                not stored_object.size
                or _crc64(stored_object.ranges(self.grid)) != stored_object.crc64
            ):
                raise ValueError("its parts do not have its checksum")

    @property
    def grid(self) -> Grid:
        """The offsets of the parts of each object."""
        return Grid(self.part_size)

    @property
    def seconds(self) -> float:
        """How long the program ran."""
        return (self.ended_at - self.began_at).total_seconds()


def read_stored(
    store: Store,
    layout: Layout,
    id_: str,
    stored: Stored,
    advance: Advance = unseen,
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
    store: Store, layout: Layout, id_: str, stored: Stored, advance: Advance
) -> Iterator[bytes]:
    """The bytes of all objects, a part at a time, each checked; the next one is read meanwhile."""
    wanted = [
        (layout.stored(id_, number), part, crc64)
        for number, stored_object in enumerate(stored.objects, 1)
        for part, crc64 in stored_object.ranges(stored.grid)
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
