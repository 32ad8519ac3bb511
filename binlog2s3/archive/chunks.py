"""Chunks: ranges of a growing binlog, each an object in the bucket. Pure.

Law: a chunk is deleted only if longer chunks contain its bytes; of two equally long chunks, the one
with the greater `rank` stays. So the greatest chunk over a byte always stays, even if a writer
deletes with outdated knowledge, and bytes that were durable stay readable. If two chunks could each
replace the other, two writers that delete at the same time could lose bytes.
"""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Self

from binlog2s3.binlog.checksum import crc64_from_hex, crc64_hex

_NAME = re.compile(r"([0-9]{16})-([0-9]{16})-([0-9a-f]{16})")
_DIGITS = 16
"""How many chunks of a level become one of the next level."""
_LEVELS = 4


@dataclass(frozen=True, slots=True, order=True)
class Chunk:
    """Bytes [begin, end) of a binlog and their CRC64NVME. These three are the object's name."""

    begin: int
    end: int
    crc64: int

    @property
    def size(self) -> int:
        return self.end - self.begin

    @property
    def rank(self) -> tuple[int, int, int]:
        """Of two chunks with the same bytes, the one with the greater rank stays."""
        return (self.size, self.begin, self.crc64)

    @classmethod
    def parse(cls, name: str) -> Self:
        """The chunk with this name. Raises ValueError if no chunk has such a name."""
        match = _NAME.fullmatch(name)
        if match is None or not int(match[1]) < int(match[2]):
            raise ValueError(f"not the name of a chunk: {name!r}")
        return cls(int(match[1]), int(match[2]), crc64_from_hex(match[3]))

    def __str__(self) -> str:
        return f"{self.begin:016d}-{self.end:016d}-{crc64_hex(self.crc64)}"


def join(chunks: Iterable[Chunk]) -> list[Chunk]:
    """The chunks that have the binlog's first bytes, up to the first hole.

    Each one has the greatest end of those that begin at or before the end of the one before, from
    where on it is needed.
    """
    waiting = sorted(chunks, reverse=True)
    needed: list[Chunk] = []
    have = 0
    best: Chunk | None = None
    while True:
        while waiting and waiting[-1].begin <= have:
            chunk = waiting.pop()
            best = chunk if best is None or chunk.end > best.end else best
        if best is None or best.end <= have:
            return needed
        needed.append(best)
        have = best.end


@dataclass(frozen=True)
class Chunks:
    """The chunks of one binlog in the bucket, as far as known. Frozen: use `plus` and `minus`."""

    all: frozenset[Chunk] = field(default_factory=frozenset)

    def plus(self, chunks: Iterable[Chunk]) -> "Chunks":
        """The chunks with these added."""
        return Chunks(self.all | frozenset(chunks))

    def minus(self, chunks: Iterable[Chunk]) -> "Chunks":
        """The chunks without these."""
        return Chunks(self.all - frozenset(chunks))

    def __bool__(self) -> bool:
        return bool(self.all)

    def __iter__(self) -> Iterator[Chunk]:
        return iter(self.all)

    @cached_property
    def end(self) -> int:
        """How many of the binlog's first bytes can be read from the chunks."""
        needed = join(self.all)
        return needed[-1].end if needed else 0

    def exact(self, begin: int, end: int) -> Chunk | None:
        """A chunk with exactly this range."""
        return self._by_range.get((begin, end))

    def first(self, least: int) -> int:
        """How many of the binlog's first bytes are in chunks of at least this size."""
        spans = self._spans(least)
        return spans[0][1] if spans and spans[0][0] == 0 else 0

    def cover(self, begin: int, end: int, least: int) -> bool:
        """Whether chunks of at least this size contain all of these bytes."""
        spans = self._spans(least)
        at = bisect_right(spans, (begin, 1 << 64)) - 1
        return at >= 0 and spans[at][1] >= end

    @cached_property
    def superfluous(self) -> frozenset[Chunk]:
        """The chunks whose bytes are in greater ones, and which may therefore be deleted."""
        found: list[Chunk] = []
        union: list[tuple[int, int]] = []
        for chunk in sorted(self.all, key=lambda chunk: chunk.rank, reverse=True):
            at = bisect_right(union, (chunk.begin, 1 << 64)) - 1
            if at >= 0 and union[at][1] >= chunk.end:
                found.append(chunk)
            else:
                _add(union, chunk.begin, chunk.end)
        return frozenset(found)

    @cached_property
    def _by_range(self) -> dict[tuple[int, int], Chunk]:
        return {(chunk.begin, chunk.end): chunk for chunk in sorted(self.all)}

    def _spans(self, least: int) -> list[tuple[int, int]]:
        if least not in self._cached_spans:
            union: list[tuple[int, int]] = []
            for chunk in sorted(self.all):
                if chunk.size >= least:
                    _add(union, chunk.begin, chunk.end)
            self._cached_spans[least] = union
        return self._cached_spans[least]

    @cached_property
    def _cached_spans(self) -> dict[int, list[tuple[int, int]]]:
        return {}


def _add(union: list[tuple[int, int]], begin: int, end: int) -> None:
    """Add a range to sorted, disjoint ranges that do not touch."""
    first = bisect_left(union, (begin, 0))
    if first and union[first - 1][1] >= begin:
        first -= 1
    last = bisect_right(union, (end, 1 << 64))
    if first < last:
        begin, end = min(begin, union[first][0]), max(end, union[last - 1][1])
    union[first:last] = [(begin, end)]


@dataclass(frozen=True, slots=True)
class Flushes:
    """The small chunks from `base` to `end`, and which of them should be merged into one.

    Each flush puts a small chunk. Sixteen chunks of a level are then put again as one chunk of the
    next level; sixteen of the last level as one with everything before them, back to `base`. So at
    most 15 chunks of a level are left, and a byte is sent about 1 + log16(flushes) times. `begins`:
    where the chunks begin, by level.
    """

    base: int
    end: int
    begins: tuple[tuple[int, ...], ...] = ((),) * _LEVELS

    @classmethod
    def start(cls, base: int) -> Self:
        """Before the first flush, which begins at `base`."""
        return cls(base, base)

    def flushed(self, end: int) -> Self:
        """After a flush of the bytes from the last one up to `end`."""
        return replace(self, end=end, begins=((*self.begins[0], self.end), *self.begins[1:]))

    @property
    def merge(self) -> tuple[int, int] | None:
        """The range of the chunk that should replace sixteen; None if no level has so many."""
        level = self._full_level
        if level is None:
            return None
        begins = self.begins[level]
        later = [at for lower in self.begins[:level] for at in lower[:1]]
        end = begins[_DIGITS] if len(begins) > _DIGITS else min(later, default=self.end)
        return (begins[0] if level + 1 < _LEVELS else self.base, end)

    def merged(self) -> Self:
        """After the chunk of `merge` was put."""
        level = self._full_level
        if level is None:
            return self
        begins = list(self.begins)
        first, begins[level] = begins[level][0], begins[level][_DIGITS:]
        if level + 1 < _LEVELS:
            begins[level + 1] = (*begins[level + 1], first)
        return replace(self, begins=tuple(begins))

    @property
    def _full_level(self) -> int | None:
        for level, begins in enumerate(self.begins):
            if len(begins) >= _DIGITS:
                return level
        return None
