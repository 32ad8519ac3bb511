"""Reads binlogs in blocks whose checksums are known; each block is checked before it is used.

A block is a range of 4 MiB. Its checksum comes from the entry, or, for a binlog without an entry,
from our own first pass over it.

Law: bytes that do not match their checksum are an error and are never passed on. Bytes that have
moved meanwhile, into other chunks or into the archive, are looked up again.
"""

import mmap
import struct
import threading
import zlib
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing, suppress
from functools import partial
from itertools import pairwise
from operator import eq

from binlog2s3.archive.ahead import MOST_THREADS, Ahead, Kept
from binlog2s3.archive.documents import Entry, EntryRow, Lineage
from binlog2s3.archive.facts import BinlogId, Facts
from binlog2s3.archive.parts import BLOCK_SIZE
from binlog2s3.archive.reader import LOOKS, Readable
from binlog2s3.binlog.checksum import crc64_hex, crc64nvme
from binlog2s3.binlog.events import CHECKSUM_SIZE, HEADER, HEADER_SIZE, EventType, decode_format
from binlog2s3.binlog.names import BinlogName
from binlog2s3.binlog.scanner import MADE_UP_BYTES, MAGIC, Scanner
from binlog2s3.errors import ArchiveError, DamageError, ObjectMissingError

_MOST_SMALL = 64 << 10
_HUGE_PAGE = 2 << 20

_SIZE = struct.Struct("<I")
_SIZE_OFFSET, _END_OFFSET, _FLAGS_OFFSET = 9, 13, 17
_MOST_SHOWN = 8
_MOST_READABLES = 4096


def layout_problems(entry: Entry) -> Iterator[str]:
    """Why the offsets in an entry (of blocks, format events and damage) cannot be right.

    Blocks are found by their number, so an entry with such a problem is not used for reading.
    """
    size = entry.size
    ranges = ((block.offset, block.size) for block in entry.blocks)
    many = -(-size // BLOCK_SIZE)  # only compared, never allocated: the size may be wrong
    starts = (at * BLOCK_SIZE for at in range(len(entry.blocks)))
    wanted = ((at, min(BLOCK_SIZE, size - at)) for at in starts)
    if many != len(entry.blocks) or not all(map(eq, ranges, wanted)):
        yield f"blocks do not cover its size, {size}"
        return
    for block in entry.blocks:
        first = block.first_offset
        if first is not None and not block.offset <= first < block.offset + block.size:
            yield f"first_offset {first} does not lie in the block at {block.offset}"
    yield from offset_problems(entry)


def offset_problems(entry: EntryRow) -> Iterator[str]:
    """The same, without the blocks."""
    size = entry.size
    if size <= len(MAGIC):
        yield f"size is {size}: no binlog is so small"
        return
    offsets = [int(form["offset"]) for form in entry.formats]
    if offsets[:1] != [len(MAGIC)] or not all(a < b for a, b in pairwise(offsets)):
        yield f"formats are at {offsets[:_MOST_SHOWN]}: the first is at {len(MAGIC)}"
    elif offsets[-1] >= size:
        yield f"formats has one at {offsets[-1]}, of {size} bytes"
    before = 0
    for damage in entry.damaged:
        begin, end = int(damage["begin"]), int(damage["end"])
        if not before <= begin < end <= size:
            yield f"damaged has a range from {begin} to {end} of {size} bytes"
        before = end


class Blocks:
    """Reads blocks. Any thread may call it.

    `where` looks up where a binlog's bytes are; the caller may `note` it if it knows already. The
    last `keep` blocks stay in memory until `forget`. `read` uses `threads` threads.
    """

    def __init__(
        self,
        where: Callable[[Lineage, BinlogName], Readable],
        *,
        keep: int = 4,
        threads: int = MOST_THREADS,
    ) -> None:
        self._where = where
        self._threads = min(threads, MOST_THREADS)
        self._kept = Kept[memoryview](keep)
        self._readables: dict[BinlogId, Readable] = {}
        self._lock = threading.Lock()

    def forget(self) -> None:
        """Drop all blocks from memory."""
        self._kept.clear()

    def note(self, lineage: Lineage, name: BinlogName, readable: Readable) -> None:
        """Where a binlog's bytes are now."""
        with self._lock:
            self._readables[lineage.id, name] = readable
            while len(self._readables) > _MOST_READABLES:
                del self._readables[next(iter(self._readables))]

    def block(self, known: Facts, number: int, *, keep: bool = False) -> memoryview:
        """The bytes of a block. Raises ArchiveError if they are missing or damaged.

        `keep` them for who reads the same block next, or at the same time.
        """
        key, task = (known.lineage.id, known.name, number), partial(self._block, known, number)
        fetch = self._kept.get(key, task) if keep else self._kept.find(key)
        if fetch is None:
            return task()
        fetch.run()
        return fetch.result()

    def _block(self, known: Facts, number: int) -> memoryview:
        block = known.blocks[number]
        begin, end = block.offset, block.offset + block.size
        crc64 = 0
        for _ in range(2):  # a second read tells damage in the store from damage on the way
            data = self._read(known, begin, end)
            crc64 = crc64nvme(data)
            if crc64 == block.crc64:
                return data
        where = ", ".join(_keys(self._readable(known), begin, end))
        raise ArchiveError(
            f"{where}: bytes {begin} to {end} of {known.name} are damaged, read twice: their "
            f"CRC64NVME is {crc64_hex(crc64)}, not the {crc64_hex(block.crc64)} that they were "
            "written with",
            hint="an older version of the object may be whole, where the bucket is versioned",
        )

    def head(self, known: Facts, offset: int) -> bytes:
        """The format event that is valid at this offset, as it is in the binlog.

        Raises ArchiveError if there is no format event where the entry says.
        """
        at = known.format_at(offset)
        try:
            head = self._event(known, at)
            decode_format(head, offset=at)
        except (ValueError, IndexError, struct.error) as error:
            raise ArchiveError(
                f"{known.name} of {known.lineage.id}: byte {at} begins no format event: {error}",
                hint="`binlog2s3 verify --deep` compares the binlog with its entry",
            ) from error
        return head

    def _event(self, known: Facts, at: int) -> bytes:
        """The event at this offset, checked by its block's checksum or its own."""
        if at == len(MAGIC):
            data = self._read(known, 0, min(MADE_UP_BYTES, known.size))
            scanner = Scanner()
            with suppress(DamageError):
                scanner.feed(data)
            if scanner.formats and scanner.formats[0].has_checksum:
                return event_at(data, at)
        number = at // BLOCK_SIZE  # it has no checksum of its own
        begin = at - number * BLOCK_SIZE
        proved = bytes(self.block(known, number)[begin : begin + MADE_UP_BYTES])
        if len(proved) < MADE_UP_BYTES and number + 1 < len(known.blocks):
            proved += bytes(self.block(known, number + 1)[:MADE_UP_BYTES])
        return event_at(proved, 0)

    def scanner(self, known: Facts, boundary: int, head: bytes | None = None) -> Scanner:
        """A scanner for the bytes from this boundary on; 0 is the first byte.

        `head` is the format event that is valid there, if the caller has it.
        """
        scanner = Scanner()
        if boundary:
            scanner = scanner_at(head or self.head(known, boundary), boundary)
        for begin, _ in known.damaged:
            scanner.accept(begin)
        return scanner

    def read(
        self, known: Facts, begin: int, end: int, *, soon: int | None = None
    ) -> Generator[memoryview, None, None]:
        """Bytes [begin, end), block by block. It fetches more and more blocks ahead.

        Blocks after the one with `soon` are not fetched before the caller asks for them.
        """
        middle = end if soon is None else min(end, -(-soon // BLOCK_SIZE) * BLOCK_SIZE)
        for low, high in ((begin, middle), (max(begin, middle), end)):
            numbers = range(low // BLOCK_SIZE, -(-high // BLOCK_SIZE) if high > low else 0)
            tasks = (partial(self.block, known, number, keep=True) for number in numbers)
            with closing(Ahead(tasks, threads=self._threads, first=1)) as ahead:
                for number, data in zip(numbers, ahead, strict=True):
                    offset = number * BLOCK_SIZE
                    yield data[max(low - offset, 0) : high - offset]

    def _read(self, known: Facts, begin: int, end: int) -> memoryview:
        """Bytes that are not checked yet, from where they are now."""
        why = ""
        for _ in range(LOOKS):
            readable = self._readable(known)
            try:
                if readable.size >= end:
                    return gathered(_pieces(readable, begin, end), end - begin)
            except ObjectMissingError as error:
                why = f"; {error}"
            self._look_again(known, readable)
        raise ArchiveError(
            f"{known.name} of {known.lineage.id}: bytes {begin} to {end} were in the bucket "
            f"and are missing now{why}",
            hint="where the source still has the binlog, a running `binlog2s3 stream` puts missing "
            "chunks again; otherwise history ends there",
        )

    def _readable(self, known: Facts) -> Readable:
        readable = self._readables.get((known.lineage.id, known.name))
        if readable is None:
            readable = self._where(known.lineage, known.name)
            self.note(known.lineage, known.name, readable)
        return readable

    def _look_again(self, known: Facts, readable: Readable) -> None:
        """Look up where the binlog's bytes are now, unless another thread has done it already."""
        key = (known.lineage.id, known.name)
        with self._lock:
            if self._readables.get(key) is readable:
                self._readables[key] = readable.again()


def _pieces(readable: Readable, begin: int, end: int) -> Iterator[bytes]:
    """Bytes [begin, end), range by range. Of a chunk, it reads only the range that is asked for."""
    for part in readable.ranges:
        origin = part.chunk.begin if part.chunk else 0
        low, high = max(part.begin, begin), min(part.end, end)
        if low < high:
            yield from readable.store.open(part.key, low - origin, high - origin)


def gathered(pieces: Iterable[bytes], size: int) -> memoryview:
    """So many bytes that come in pieces, in memory that their last reader gives back."""
    data, at = _memory(size), 0
    for piece in pieces:
        data[at : at + len(piece)] = piece
        at += len(piece)
    return data


def _memory(size: int) -> memoryview:
    """Memory that is returned to the system with its last reference.

    The allocator would keep what many threads have freed: about as much as is in use. Whole blocks
    are in huge pages where the system has them: to get a block's 1,024 small pages takes longer
    than to fill them.
    """
    if size <= _MOST_SMALL:
        return memoryview(bytearray(size))
    room = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if size >= _HUGE_PAGE and hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a kernel without them
            room.madvise(mmap.MADV_HUGEPAGE)
    return memoryview(room)


def _keys(readable: Readable, begin: int, end: int) -> Iterable[str]:
    return (part.key for part in readable.ranges if part.end > begin and part.begin < end)


def event_at(data: bytes | memoryview, at: int) -> bytes:
    """The event that begins at this index."""
    return bytes(data[at : at + _SIZE.unpack_from(data, at + _SIZE_OFFSET)[0]])


def scanner_at(head: bytes, boundary: int) -> Scanner:
    """A scanner for the bytes from `boundary` on, where no transaction is open.

    `head` is the binlog's format event. The scanner first gets an artificial copy of it, as a
    server sends it before a start position, and then an artificial event between transactions.
    Without the second one it could not know, in a binlog without GTIDs, that no transaction is
    open.
    """
    form = decode_format(head, offset=0)
    made_up = bytearray(head)
    made_up[_END_OFFSET : _END_OFFSET + 4] = bytes(4)
    made_up[_FLAGS_OFFSET] &= ~1
    if form.has_checksum:
        made_up[-CHECKSUM_SIZE:] = _SIZE.pack(zlib.crc32(made_up[:-CHECKSUM_SIZE]))
    size = HEADER_SIZE + form.trailer
    kind = EventType.BINLOG_CHECKPOINT
    between = HEADER.pack(form.timestamp, kind, form.server_id, size, boundary % 2**32, 0)
    if form.checksum == "crc32":
        between += _SIZE.pack(zlib.crc32(between))
    scanner = Scanner(boundary - size)
    scanner.feed(MAGIC + made_up + between)
    return scanner
