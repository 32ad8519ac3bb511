"""The offsets of a binlog's parts, and the checksums of its parts and blocks. Pure.

Law: parts depend only on the part size, so every process makes the same ones. A checksum is that of
the bytes that the scanner saw, not of what the file contains later.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from binlog2s3.archive.codec import Count, Crc64, GtidText, Microseconds
from binlog2s3.binlog.checksum import crc64_of_both, crc64_of_rest, crc64nvme
from binlog2s3.binlog.scanner import Transaction

BLOCK_SIZE = 4 << 20
MAX_PARTS = 10_000  # https://docs.aws.amazon.com/AmazonS3/latest/userguide/qfacts.html
_GREATEST_PART = 5 << 30
_TIER = 1_000
_MARKS_WITHIN = 1 << 20
_MARKS_APART = 64 << 10
_LEAST_MARKS = 3
_GREATEST_LOW_MARK = (1 << 32) - 1


@dataclass(frozen=True, slots=True)
class Grid:
    """The offsets of the parts of every binlog, for one part size.

    The first 1,000 parts have `part_size` bytes each, the next 1,000 twice that, and so on. So
    10,000 parts hold 5 TiB with the default of 5 MiB. No part exceeds 5 GiB.
    """

    part_size: int

    def length(self, number: int) -> int:
        """Bytes of part `number`."""
        if not 1 <= number <= MAX_PARTS:
            raise ValueError(f"part {number} is not one of 1 to {MAX_PARTS}")
        return min(self.part_size << ((number - 1) // _TIER), max(_GREATEST_PART, self.part_size))

    def begin(self, number: int) -> int:
        """The offset at which part `number` begins."""
        tiers = range(0, number - 1, _TIER)
        return sum(self.length(first + 1) * min(_TIER, number - 1 - first) for first in tiers)

    def at(self, offset: int) -> "Part":
        """The whole part that contains this byte."""
        number, begin = 1, 0
        while True:
            length = self.length(number)
            tier_end = begin + length * (_TIER - (number - 1) % _TIER)
            if offset < tier_end:
                skipped = (offset - begin) // length
                begin += skipped * length
                return Part(number=number + skipped, begin=begin, end=begin + length)
            number, begin = number + _TIER, tier_end

    def parts(self, size: int, begin: int = 0) -> Iterator["Part"]:
        """The parts of the first `size` bytes, in order, starting with the one that has `begin`.

        The last one may be short.
        """
        first = self.at(begin)
        begin, number = first.begin, first.number
        while begin < size:
            end = begin + self.length(number)
            yield Part(number=number, begin=begin, end=min(end, size), full=end <= size)
            begin = end
            number += 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Bytes [begin, end) of a binlog as part `number` of its multipart upload."""

    number: int
    begin: int
    end: int
    full: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A range of 4 MiB of a binlog; the last one may be shorter.

    `first_offset`, `first_commit_us` and `first_gtid` are those of the first transaction that
    begins in it, None if none does. The GTID of an anonymous transaction is None, too.
    """

    offset: Count
    size: Count
    crc64: Crc64
    first_offset: Count | None
    first_commit_us: Microseconds | None
    first_gtid: GtidText | None


@dataclass(frozen=True, slots=True)
class Mark:
    """An offset in a binlog, and the CRC64NVME of the bytes before it, of the part or the whole."""

    offset: int = 0
    crc64: int = 0

    def crc64_since(self, earlier: "Mark") -> int:
        """The checksum of the bytes after an earlier mark of the same part or the whole."""
        return crc64_of_rest(earlier.crc64, self.crc64, self.offset - earlier.offset)


class Digest:
    """The CRC64NVME of a binlog: of the whole, of each part, of each block."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self.size = 0
        self.crc64 = 0
        self._parts: list[int] = []
        self._part_crc = 0
        self._part_end = grid.length(1)
        self._blocks: list[int] = []
        self._block_crc = 0
        self._firsts: dict[int, Transaction] = {}
        self.mark = Mark()
        self.marks: list[Mark] = []
        self.low_mark = Mark()
        self._saved = (0, 0, 0, 0, self._part_end, 0, 0)

    def set_mark(self) -> None:
        """Remember this offset: a range of its part can end here.

        It is also added to `marks`, a few offsets of the last MiB, each with the checksum of all
        bytes before it. `low_mark` is the last one below 4 GiB.
        """
        self.mark = Mark(self.size, self._part_crc)
        parts, blocks = len(self._parts), len(self._blocks)
        self._saved = (self.size, self.crc64, parts, self._part_crc, self._part_end, blocks,
                       self._block_crc)  # fmt: skip
        mark, marks = Mark(self.size, self.crc64), self.marks
        if len(marks) > 1 and mark.offset - marks[-2].offset < _MARKS_APART:
            marks.pop()
        marks.append(mark)
        while len(marks) > _LEAST_MARKS and marks[0].offset < mark.offset - _MARKS_WITHIN:
            del marks[0]
        if mark.offset <= _GREATEST_LOW_MARK:
            self.low_mark = mark

    def rewind(self) -> None:
        """Go back to the last mark; the next bytes continue there."""
        self.size, self.crc64, parts, self._part_crc, self._part_end, blocks, self._block_crc = (
            self._saved
        )
        del self._parts[parts:]
        del self._blocks[blocks:]

    def feed(self, data: memoryview) -> None:
        """Take the next bytes of the binlog."""
        while data:
            block_end = (len(self._blocks) + 1) * BLOCK_SIZE
            length = min(len(data), self._part_end - self.size, block_end - self.size)
            piece, data = data[:length], data[length:]
            crc64 = crc64nvme(piece)  # the bytes are read once; to combine costs next to nothing
            self.crc64 = crc64_of_both(self.crc64, crc64, length)
            self._part_crc = crc64_of_both(self._part_crc, crc64, length)
            self._block_crc = crc64_of_both(self._block_crc, crc64, length)
            self.size += length
            if self.size == self._part_end:
                self._parts.append(self._part_crc)
                self._part_crc = 0
                self._part_end += self._grid.length(len(self._parts) + 1)
            if self.size == block_end:
                self._blocks.append(self._block_crc)
                self._block_crc = 0

    def note(self, transaction: Transaction) -> None:
        """Remember a transaction if it is the first that begins in its block."""
        self._firsts.setdefault(transaction.begin // BLOCK_SIZE, transaction)

    def part_crc64(self, part: Part) -> int:
        """The checksum of a part whose bytes have all been fed.

        A short last part has one only if no more bytes were fed after it.
        """
        if part.number <= len(self._parts):
            return self._parts[part.number - 1]
        if part.number == len(self._parts) + 1 and part.end == self.size:
            return self._part_crc
        raise ValueError(f"not all bytes of part {part.number} were fed")

    def blocks(self) -> tuple[Block, ...]:
        """All blocks of the bytes that were fed."""
        crcs = list(self._blocks)
        if self.size % BLOCK_SIZE:
            crcs.append(self._block_crc)
        return tuple(self._block(number, crc) for number, crc in enumerate(crcs))

    def _block(self, number: int, crc: int) -> Block:
        first = self._firsts.get(number)
        offset = number * BLOCK_SIZE
        return Block(
            offset=offset,
            size=min(BLOCK_SIZE, self.size - offset),
            crc64=Crc64(crc),
            first_offset=first.begin if first else None,
            first_commit_us=first.commit_us if first else None,
            first_gtid=first.gtid if first else None,
        )
