"""Chunks: ranges of a growing binlog that lie in the bucket as objects of their own.

Place in the flow: `stream.decide.decide` says which to put and which to delete, the uploader does
it, `catalog` joins them for whoever reads. Pure.

Law: a chunk is deleted only where longer ones hold its bytes (of equal ones, the one that is
greater in `rank`). So whoever deletes, and however old what he knows of the others is, the greatest
chunk over a byte stays, and what was durable once stays readable. A rule that let two chunks each
stand in for the other would lose bytes to two writers who delete at the same time.
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
"""Flushes of a level that the next flush covers together: the base of the counter."""
_LEVELS = 4


@dataclass(frozen=True, slots=True, order=True)
class Chunk:
    """Bytes [begin, end) of a binlog and their CRC64NVME: all that its object is called by."""

    begin: int
    end: int
    crc64: int

    @property
    def size(self) -> int:
        """How many bytes."""
        return self.end - self.begin

    @property
    def rank(self) -> tuple[int, int, int]:
        """Of two over the same bytes the greater one stays."""
        return (self.size, self.begin, self.crc64)

    @classmethod
    def parse(cls, name: str) -> Self:
        """The chunk of this name; ValueError if it is the name of none."""
        match = _NAME.fullmatch(name)
        if match is None or not int(match[1]) < int(match[2]):
            raise ValueError(f"not the name of a chunk: {name!r}")
        return cls(int(match[1]), int(match[2]), crc64_from_hex(match[3]))

    def __str__(self) -> str:
        return f"{self.begin:016d}-{self.end:016d}-{crc64_hex(self.crc64)}"


@dataclass(frozen=True, slots=True)
class Piece:
    """Bytes [begin, end) of a binlog, to be taken from this chunk, which has them and may more."""

    chunk: Chunk
    begin: int
    end: int


def join(chunks: Iterable[Chunk]) -> list[Piece]:
    """The pieces that make the binlog's first bytes, as many as there are without a hole.

    From offset 0 on, among the chunks that begin at or before what one has, the one with the
    greatest end, cut.
    """
    waiting = sorted(chunks, reverse=True)
    pieces: list[Piece] = []
    have = 0
    best: Chunk | None = None
    while True:
        while waiting and waiting[-1].begin <= have:
            chunk = waiting.pop()
            best = chunk if best is None or chunk.end > best.end else best
        if best is None or best.end <= have:
            return pieces
        pieces.append(Piece(best, have, best.end))
        have = best.end


@dataclass(frozen=True)
class Chunks:
    """The chunks of one binlog that are known to lie in the bucket. Frozen: `plus` and `minus`."""

    all: frozenset[Chunk] = field(default_factory=frozenset)

    def plus(self, chunks: Iterable[Chunk]) -> "Chunks":
        """With these too."""
        return Chunks(self.all | frozenset(chunks))

    def minus(self, chunks: Iterable[Chunk]) -> "Chunks":
        """Without these."""
        return Chunks(self.all - frozenset(chunks))

    def __bool__(self) -> bool:
        return bool(self.all)

    def __iter__(self) -> Iterator[Chunk]:
        return iter(self.all)

    @cached_property
    def end(self) -> int:
        """The binlog's first bytes up to there can be read from the chunks."""
        pieces = join(self.all)
        return pieces[-1].end if pieces else 0

    def exact(self, begin: int, end: int) -> Chunk | None:
        """A chunk of exactly these bytes."""
        return self._by_range.get((begin, end))

    def first(self, least: int) -> int:
        """The binlog's first bytes up to there lie in chunks of at least this size."""
        spans = self._spans(least)
        return spans[0][1] if spans and spans[0][0] == 0 else 0

    def cover(self, begin: int, end: int, least: int) -> bool:
        """Whether chunks of at least this size hold all of these bytes."""
        spans = self._spans(least)
        at = bisect_right(spans, (begin, 1 << 64)) - 1
        return at >= 0 and spans[at][1] >= end

    @cached_property
    def superfluous(self) -> frozenset[Chunk]:
        """Those whose bytes lie in greater ones, and which may therefore be deleted."""
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
    """Add a range to sorted, disjoint ones that do not touch."""
    first = bisect_left(union, (begin, 0))
    if first and union[first - 1][1] >= begin:
        first -= 1
    last = bisect_right(union, (end, 1 << 64))
    if first < last:
        begin, end = min(begin, union[first][0]), max(end, union[last - 1][1])
    union[first:last] = [(begin, end)]


@dataclass(frozen=True, slots=True)
class Flushes:
    """How the small chunks from `base` to `end` lie, and which of them want to be one.

    Each flush is a chunk of its own, so that it is small; sixteen of a level are then put again as
    one of the next, and sixteen of the last level together with all before them, back to `base`. So
    at most 15 of a level are left, and a byte is sent about 1 + log16(flushes) times. `begins` has
    the beginnings of those chunks, level by level.
    """

    base: int
    end: int
    begins: tuple[tuple[int, ...], ...] = ((),) * _LEVELS

    @classmethod
    def start(cls, base: int) -> Self:
        """Before the first flush, which covers all from `base` on."""
        return cls(base, base)

    def flushed(self, end: int) -> Self:
        """After a flush of the bytes from the last one up to `end`."""
        return replace(self, end=end, begins=((*self.begins[0], self.end), *self.begins[1:]))

    @property
    def merge(self) -> tuple[int, int] | None:
        """The range of the chunk that should stand for sixteen, if there are so many."""
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
