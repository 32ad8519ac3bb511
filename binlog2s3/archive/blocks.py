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
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing, suppress
from functools import partial
from itertools import pairwise
from operator import eq
from queue import SimpleQueue
from typing import Generic, TypeVar

from binlog2s3.archive.documents import Entry, EntryRow, Lineage
from binlog2s3.archive.facts import Facts
from binlog2s3.archive.parts import BLOCK_SIZE
from binlog2s3.archive.reader import LOOKS, Readable
from binlog2s3.binlog.checksum import crc64_hex, crc64nvme
from binlog2s3.binlog.events import CHECKSUM_SIZE, HEADER, HEADER_SIZE, EventType, decode_format
from binlog2s3.binlog.names import BinlogName
from binlog2s3.binlog.scanner import MADE_UP_BYTES, MAGIC, Scanner
from binlog2s3.errors import ArchiveError, DamageError, ObjectMissingError, StoreError
from binlog2s3.workers import start_thread

Result = TypeVar("Result")
MOST_AHEAD = 8
"""How many blocks are in memory at a time, at most: fetched ahead, or in use."""
MOST_THREADS = 6

_MOST_SMALL = 64 << 10
_HUGE_PAGE = 2 << 20

_SIZE = struct.Struct("<I")
_SIZE_OFFSET, _END_OFFSET, _FLAGS_OFFSET = 9, 13, 17
_MOST_SHOWN = 8
_MOST_PLACES = 4096


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
    yield from place_problems(entry)


def place_problems(entry: EntryRow) -> Iterator[str]:
    """The same, without the blocks."""
    size = entry.size
    if size <= len(MAGIC):
        yield f"size is {size}: no binlog is so small"
        return
    offsets = [int(one["offset"]) for one in entry.formats]
    if offsets[:1] != [len(MAGIC)] or not all(a < b for a, b in pairwise(offsets)):
        yield f"formats are at {offsets[:_MOST_SHOWN]}: the first is at {len(MAGIC)}"
    elif offsets[-1] >= size:
        yield f"formats has one at {offsets[-1]}, of {size} bytes"
    before = 0
    for one in entry.damaged:
        begin, end = int(one["begin"]), int(one["end"])
        if not before <= begin < end <= size:
            yield f"damaged has a range from {begin} to {end} of {size} bytes"
        before = end


class Blocks:
    """Reads blocks. `find` says what is known of a binlog. Any thread may call the other methods.

    `where` looks up where a binlog's bytes are; the caller may `note` it if it knows already. The
    last `keep` blocks stay in memory until `forget`. `read` uses `threads` threads.
    """

    def __init__(
        self,
        find: Callable[[str, BinlogName], Facts],
        where: Callable[[Lineage, BinlogName], Readable],
        *,
        keep: int = 4,
        threads: int = MOST_THREADS,
    ) -> None:
        self.find = find
        self._where = where
        self._threads = min(threads, MOST_THREADS)
        self._keep = keep
        self._kept: dict[tuple[str, BinlogName, int], memoryview] = {}
        self._places: dict[tuple[str, BinlogName], Readable] = {}
        self._lock = threading.Lock()

    def forget(self) -> None:
        """Drop all blocks from memory."""
        with self._lock:
            self._kept.clear()

    def note(self, lineage: Lineage, name: BinlogName, place: Readable) -> None:
        """Where a binlog's bytes are now."""
        with self._lock:
            self._places[lineage.id, name] = place
            while len(self._places) > _MOST_PLACES:
                del self._places[next(iter(self._places))]

    def block(self, known: Facts, number: int, *, keep: bool = False) -> memoryview:
        """The bytes of a block. Raises ArchiveError if they are missing or damaged."""
        key = (known.lineage.id, known.name, number)
        with self._lock:
            kept = self._kept.get(key)
        if kept is not None:
            return kept
        data = self._block(known, number)
        if keep and self._keep:
            with self._lock:
                while len(self._kept) >= self._keep:
                    del self._kept[next(iter(self._kept))]
                self._kept[key] = data
        return data

    def _block(self, known: Facts, number: int) -> memoryview:
        block = known.blocks[number]
        begin, end = block.offset, block.offset + block.size
        crc64 = 0
        for _ in range(2):  # a second read tells damage in the store from damage on the way
            data = self._read(known, begin, end)
            crc64 = crc64nvme(data)
            if crc64 == block.crc64:
                return data
        where = ", ".join(_keys(self._place(known), begin, end))
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
            place = self._place(known)
            try:
                if place.size >= end:
                    return _gather(place, begin, end)
            except ObjectMissingError as error:
                why = f"; {error}"
            self._look_again(known, place)
        raise ArchiveError(
            f"{known.name} of {known.lineage.id}: bytes {begin} to {end} were in the bucket "
            f"and are missing now{why}",
            hint="where the source still has the binlog, a running `binlog2s3 stream` puts missing "
            "chunks again; otherwise history ends there",
        )

    def _place(self, known: Facts) -> Readable:
        place = self._places.get((known.lineage.id, known.name))
        if place is None:
            place = self._where(known.lineage, known.name)
            self.note(known.lineage, known.name, place)
        return place

    def _look_again(self, known: Facts, place: Readable) -> None:
        """Look up where the binlog's bytes are now, unless another thread has done it already."""
        key = (known.lineage.id, known.name)
        with self._lock:
            if self._places.get(key) is place:
                self._places[key] = place.again()


def _gather(place: Readable, begin: int, end: int) -> memoryview:
    """Bytes [begin, end), range by range. Of a chunk, it reads only the range that is asked for."""
    data = _memory(end - begin)
    for one in place.ranges:
        origin = one.chunk.begin if one.chunk else 0
        at, until = max(one.begin, begin), min(one.end, end)
        if at < until:
            for piece in place.store.open(one.key, at - origin, until - origin):
                data[at - begin : at - begin + len(piece)] = piece
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


def _keys(place: Readable, begin: int, end: int) -> Iterable[str]:
    return (one.key for one in place.ranges if one.end > begin and one.begin < end)


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
    size = HEADER_SIZE + (CHECKSUM_SIZE if form.checksum == "crc32" else 0)
    kind = EventType.BINLOG_CHECKPOINT
    between = HEADER.pack(form.timestamp, kind, form.server_id, size, boundary % 2**32, 0)
    if form.checksum == "crc32":
        between += _SIZE.pack(zlib.crc32(between))
    scanner = Scanner(boundary - size)
    scanner.feed(MAGIC + made_up + between)
    return scanner


class _Slot(Generic[Result]):
    """A task, and then its result or error."""

    def __init__(self, task: Callable[[], Result]) -> None:
        self.task: Callable[[], Result] | None = task
        self.result: list[Result] = []
        self.error: BaseException | None = None
        self.done = threading.Event()

    def run(self) -> None:
        task, self.task = self.task, None
        try:
            if task is not None:
                self.result.append(task())
        except BaseException as error:  # noqa: BLE001 - it is raised where the result is wanted
            self.error = error
        self.done.set()


class Ahead(Iterator[Result]):
    """The results of tasks, in order. Its own threads run some of the tasks ahead.

    At most `most` tasks are started before their result is taken: `first` of them at the beginning,
    one more with each result. The threads are daemons and end with `close`, which does not wait. If
    the system starts none, that is a transient StoreError.
    """

    def __init__(
        self,
        tasks: Iterable[Callable[[], Result]],
        *,
        threads: int = MOST_THREADS,
        most: int = MOST_AHEAD,
        first: int = MOST_AHEAD,
    ) -> None:
        self._tasks: Iterator[Callable[[], Result]] = iter(tasks)
        self._threads = threads
        self._most = most
        self._window = min(first, most)
        self._slots: deque[_Slot[Result]] = deque()
        self._queue: SimpleQueue[_Slot[Result] | None] = SimpleQueue()
        self._running = 0

    def __next__(self) -> Result:
        if self._window == 1 and not self._slots and self._most > 1:
            return self._alone()
        self._fill()
        if not self._slots:
            self.close()
            raise StopIteration
        slot = self._slots.popleft()
        slot.done.wait()
        if slot.error is not None:
            self.close()
            raise slot.error
        self._window = min(self._window + 1, self._most)
        return slot.result.pop()

    def _alone(self) -> Result:
        """The first result, if nothing is to be ahead of it: a thread would only be waited for."""
        task = next(self._tasks, None)
        if task is None:
            raise StopIteration
        self._window += 1
        try:
            return task()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Start no more tasks. Results of running tasks are dropped."""
        self._tasks = iter(())
        while self._slots:
            self._slots.popleft().task = None
        for _ in range(self._running):
            self._queue.put(None)
        self._running = 0

    def _fill(self) -> None:
        while len(self._slots) < self._window:
            task = next(self._tasks, None)
            if task is None:
                return
            if self._running < min(self._threads, len(self._slots) + 1):
                try:
                    start_thread(self._work, f"ahead-{self._running + 1}")
                    self._running += 1
                except StoreError:
                    if not self._running:
                        raise
            slot = _Slot(task)
            self._slots.append(slot)
            self._queue.put(slot)

    def _work(self) -> None:
        while (slot := self._queue.get()) is not None:
            slot.run()
            del slot  # otherwise its result would stay in memory until the next task
