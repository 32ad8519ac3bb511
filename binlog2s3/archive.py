"""The archive's arithmetic and its one decision: what to do next about a binlog.

Place in the flow: the tailer feeds bytes into a `Digest`; the uploader shows what it knows of a
binlog (`Observed`) to `decide` and does what that returns. Start, steady work and recovery are the
same question asked again.

Law: pure and total. Bytes are a function of (lineage, binlog, range), so an action done twice, or
done late, is waste and never harm; nothing is concluded from not knowing.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from binlog2s3.binlog import Transaction
from binlog2s3.checksum import crc64nvme

BLOCK_SIZE = 4 << 20
MAX_PARTS = 10_000  # https://docs.aws.amazon.com/AmazonS3/latest/userguide/qfacts.html
_GREATEST_PART = 5 << 30
_TIER = 1_000


@dataclass(frozen=True, slots=True)
class Grid:
    """Where the parts of every binlog lie, given the part size alone.

    Part n (from 1) is `part_size` bytes for the first 1,000, twice that for the next 1,000, and so
    on, so that 10,000 parts hold 5 TiB at the default of 5 MiB; no part exceeds 5 GiB.
    """

    part_size: int

    def length(self, number: int) -> int:
        """Bytes of part `number`."""
        if not 1 <= number <= MAX_PARTS:
            raise ValueError(f"part {number} is not one of 1 to {MAX_PARTS}")
        return min(self.part_size << ((number - 1) // _TIER), max(_GREATEST_PART, self.part_size))

    def parts(self, size: int) -> Iterator["Part"]:
        """The parts of the first `size` bytes, the last one possibly short, in order."""
        begin = 0
        number = 1
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
    """One of the 4 MiB ranges of a binlog, the last one possibly shorter.

    `first_offset`, `first_commit_us` and `first_gtid` are of the first transaction that begins in
    it, None where none does (a GTID is also None for an anonymous transaction).
    """

    offset: int
    size: int
    crc64: int
    first_offset: int | None = None
    first_commit_us: int | None = None
    first_gtid: str | None = None


class Digest:
    """CRC64NVME of a binlog's bytes as they pass: of the whole, of each part, of each block."""

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

    def feed(self, data: memoryview) -> None:
        """Take the next bytes of the binlog."""
        self.crc64 = crc64nvme(data, self.crc64)
        while data:
            block_end = (len(self._blocks) + 1) * BLOCK_SIZE
            length = min(len(data), self._part_end - self.size, block_end - self.size)
            piece, data = data[:length], data[length:]
            self._part_crc = crc64nvme(piece, self._part_crc)
            self._block_crc = crc64nvme(piece, self._block_crc)
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

        A short last part has one only when nothing was fed behind it.
        """
        if part.number <= len(self._parts):
            return self._parts[part.number - 1]
        if part.number == len(self._parts) + 1 and part.end == self.size:
            return self._part_crc
        raise ValueError(f"part {part.number} has not passed whole")

    def blocks(self) -> tuple[Block, ...]:
        """All blocks of what was fed."""
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
            crc64=crc,
            first_offset=first.begin if first else None,
            first_commit_us=first.commit_us if first else None,
            first_gtid=first.gtid if first else None,
        )


def is_closed(
    *,
    ended: bool,
    size: int,
    next_in_run: bool,
    history_goes_on: bool,
    newer_on_server: bool,
    size_on_server: int | None,
) -> bool:
    """Whether the server has finished a binlog and all of it is here.

    `ended`: its last event is ROTATE or STOP. `next_in_run`: the same run of mysqlbinlog has gone
    on to the next file, with the event chain whole to the end of this one; `history_goes_on`: that
    file's previous GTIDs are those at our end, which anonymous transactions cannot show.
    `newer_on_server`: it lists a newer binlog; `size_on_server`: what it lists for this one, as the
    stream delivers it. Size alone, or a newer file alone, proves nothing: a stream can end in the
    middle of a binlog, and the server can be another one.
    """
    if ended or (next_in_run and history_goes_on):
        return True
    return newer_on_server and size_on_server == size


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What the store was seen to hold of a binlog.

    `object_there`: something lies under its key; `verified`: it was compared with our bytes;
    `entry_there`: its entry is written. `upload_id` and `parts` are of our unfinished upload.
    """

    object_there: bool = False
    verified: bool = False
    entry_there: bool = False
    upload_id: str | None = None
    parts: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """What is known of a binlog: `size` checked bytes are in the spool, `held` in the store.

    `held` is None until the store was asked, and again after any doubt.
    """

    size: int
    closed: bool
    held: Held | None


@dataclass(frozen=True, slots=True)
class Look:
    """Ask the store what it holds."""


@dataclass(frozen=True, slots=True)
class PutWhole:
    """Put the closed binlog as one object."""


@dataclass(frozen=True, slots=True)
class CreateUpload:
    """Begin a multipart upload."""


@dataclass(frozen=True, slots=True)
class PutPart:
    """Send one part."""

    part: Part


@dataclass(frozen=True, slots=True)
class Complete:
    """Complete the multipart upload: all parts are there."""


@dataclass(frozen=True, slots=True)
class Verify:
    """Compare what lies under the key with our bytes."""


@dataclass(frozen=True, slots=True)
class PutEntry:
    """Write the entry: the binlog is archived from then on."""


@dataclass(frozen=True, slots=True)
class Release:
    """Delete the local copy: the archive has it."""


Action = Look | PutWhole | CreateUpload | PutPart | Complete | Verify | PutEntry | Release


def decide(observed: Observed, grid: Grid) -> tuple[Action, ...]:
    """What to do next, in the order of use; nothing if there is nothing to do yet.

    Several actions are returned only where they may run at the same time (parts).
    """
    held, small = observed.held, observed.size < grid.length(1)
    if held is None:
        return () if small and not observed.closed else (Look(),)
    if held.verified:
        return (Release(),) if held.entry_there else (PutEntry(),)
    if held.object_there:
        return (Verify(),) if observed.closed else ()
    if held.upload_id is None and small:
        return (PutWhole(),) if observed.closed else ()
    if held.upload_id is None:
        return (CreateUpload(),)
    return _parts(observed, held, grid)


def _parts(observed: Observed, held: Held, grid: Grid) -> tuple[Action, ...]:
    wanted = [part for part in grid.parts(observed.size) if part.full or observed.closed]
    missing = tuple(PutPart(part) for part in wanted if part.number not in held.parts)
    if missing:
        return missing
    return (Complete(),) if observed.closed else ()
