"""Reads one binlog from the bucket: finds its bytes, and checks all bytes that are read.

Law: bytes that fail their check are an error, never a shorter or different result. Chunks come and
go during a read, so missing bytes are looked up again, and the bytes that were already returned are
compared with what is found then.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from typing import Literal

from binlog2s3.archive.chunks import Chunk, join
from binlog2s3.binlog.checksum import crc64_hex, crc64nvme
from binlog2s3.errors import ArchiveError, ObjectMissingError
from binlog2s3.formatting import us_of
from binlog2s3.store.contract import Store

State = Literal["archived", "open"]
LOOKS = 8
"""How many looks at the bucket without progress are an error."""
_PIECE = 1 << 20


@dataclass(frozen=True, slots=True)
class Range:
    """Bytes [begin, end) of a binlog, which are in the object `key`.

    The object is the archived binlog, or a chunk, which may have more bytes than these. It was put
    `at` this time, by the store's clock.
    """

    key: str
    begin: int
    end: int
    at: datetime
    chunk: Chunk | None = None


def ranges_of(prefix: str, chunks: Mapping[Chunk, datetime]) -> tuple[Range, ...]:
    """The ranges of chunks that make up a binlog's first bytes; their keys begin with `prefix`.

    `chunks`: when each was put. Raises ArchiveError if two chunks of the same range have different
    checksums.
    """
    needed = join(chunks)
    for chunk, other in pairwise(sorted(chunks)):
        is_same_range = (chunk.begin, chunk.end) == (other.begin, other.end)
        if is_same_range and (chunk in needed or other in needed):
            raise _disagreement(f"{prefix}{chunk}", f"{prefix}{other}", chunk.begin, chunk.end)
    begins = [0, *(chunk.end for chunk in needed)]
    return tuple(
        Range(f"{prefix}{chunk}", begin, chunk.end, chunks[chunk], chunk)
        for begin, chunk in zip(begins, needed, strict=False)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Readable:
    """A binlog as the bucket showed it: its first `size` bytes, and where they are.

    `state` is archived (all of it, one object) or open (chunks, so far). `crc64` is that of the
    whole binlog, if it is known. `again` looks at the bucket again.
    """

    name: str
    state: State
    ranges: tuple[Range, ...]
    store: Store
    again: Callable[[], "Readable"]
    crc64: int | None = None

    @property
    def size(self) -> int:
        """How many bytes can be read, starting with offset 0."""
        return self.ranges[-1].end if self.ranges else 0

    def received_us(self, offset: int) -> int:
        """When the byte at this offset had been received, at the latest; microseconds, UTC.

        That is when its object was put, by the store's clock. For one that came since the bucket
        was looked at, it is now.
        """
        found = next((part.at for part in self.ranges if part.begin <= offset < part.end), None)
        return us_of(found or datetime.now(UTC))

    def blocks(self, begin: int = 0, end: int | None = None) -> Iterator[bytes]:
        """Bytes [begin, end), in blocks of at most 1 MiB; the default end is `size`.

        - Each chunk is read as a whole and checked against the CRC64 in its name, even if the
          caller asked for a part of it. Bytes that two chunks share are compared.
        - An archived binlog is checked against its entry, if the caller asked for all of it.

        Blocks are not held back for these checks. Damage raises an ArchiveError that names the
        objects, at the latest where the damaged chunk ends, and always before the iterator ends.
        Also raises ArchiveError if the bucket does not have these bytes.
        """
        if begin < 0 or (end is not None and end < begin):
            raise ValueError(f"no range: {begin} to {end}")
        return _Reading(self, begin, self.size if end is None else end).blocks()

    def from_chunks(self, end: int) -> Iterator[bytes]:
        """The first `end` bytes, as `blocks`, each of which a chunk has proved at the end.

        Raises ArchiveError also if the binlog was archived meanwhile: then no chunk says what they
        have to be.
        """
        reading = _Reading(self, 0, end)
        yield from reading.blocks()
        if reading.checked < end:
            raise ArchiveError(f"{self.name} was archived while its chunks were read")

    def proved(self, begin: int, end: int) -> bytes | None:
        """Bytes [begin, end), after their chunks' checks; raises as `blocks`.

        None if the binlog was archived meanwhile: then no chunk says what they have to be.
        """
        reading = _Reading(self, begin, end)
        found = b"".join(reading.blocks())
        return found if reading.checked == end else None

    def proved_blocks(self, begin: int, before: int) -> Iterator[bytes]:
        """Bytes from `begin` to the end, each block only after its check; raises as `blocks`.

        They are read twice. `before`: the CRC64NVME of the bytes before them: together those of an
        archived binlog have the one of its entry. If there is no entry yet, nothing; then it does
        not read them, either.
        """
        if self.state == "archived" and self.crc64 is None:
            return
        reading = _Reading(self, begin, self.size)
        sums, whole = list[int](), before
        for block in _pieces(reading.blocks()):
            sums.append(crc64nvme(block))
            whole = crc64nvme(block, whole)
        if reading.checked < self.size:
            now = reading.binlog
            if now.crc64 is None or now.size != self.size:
                return
            _check_whole(now, whole)
        again = _pieces(self.blocks(begin, self.size))
        for block, expected in zip(again, sums, strict=True):
            if crc64nvme(block) != expected:
                raise ArchiveError(f"{self.name}: its bytes were others when they were read again")
            yield block


class _Reading:
    """One pass over a range of a binlog, in as many tries as it needs.

    The bytes before `at` were returned, those before `checked` are proved by their chunks. `given`
    is the CRC64 of the bytes between, which came from the object `giver`; `whole` is that of all
    returned bytes. `binlog` is what the last look has found.
    """

    def __init__(self, binlog: Readable, begin: int, end: int) -> None:
        self.binlog = binlog
        self._begin, self._end = begin, end
        self.checked = self._at = begin
        self._given = self._whole = 0
        self._giver = ""

    def blocks(self) -> Iterator[bytes]:
        looks = 0
        while self.checked < self._end:
            reached, why = self.checked, ""
            if self.binlog.size >= self._end:
                try:
                    yield from self._try()
                except ObjectMissingError as error:
                    why = f"; {error}"
                else:
                    return
            looks = 1 if self.checked > reached else looks + 1
            if looks > LOOKS:
                raise ArchiveError(
                    f"{self.binlog.name}: bytes up to {self._end} are not in the bucket, "
                    f"those up to {self.binlog.size} were listed{why}",
                    hint="where the source still has the binlog, a running `binlog2s3 stream` puts "
                    "missing chunks again; otherwise history ends there",
                )
            self.binlog = self.binlog.again()

    def _try(self) -> Iterator[bytes]:
        """Continue from `checked`. Bytes that were already returned are only compared."""
        before = _Expected(self.checked, self._at, self._given, self._giver)
        seam: _Expected | None = None
        binlog, start = self.binlog, self.checked
        wanted = [r for r in binlog.ranges if r.end > start and r.begin < self._end]
        for place, following in zip(wanted, [*wanted[1:], None], strict=True):
            chunk = place.chunk
            begin, end = (chunk.begin, chunk.end) if chunk else (start, self._end)
            origin = chunk.begin if chunk else 0
            both = following.chunk.begin if following and following.chunk else end
            tail = _Sum(both, end)
            expected = [before, *([seam] if seam else [])]
            if chunk:
                expected.append(_Expected(begin, end, chunk.crc64, place.key))
            for block in binlog.store.open(place.key, begin - origin, end - origin):
                view = memoryview(block)
                tail.feed(begin, view)
                for expectation in expected:
                    expectation.check(begin, view, place.key)
                fresh = _cut(view, begin, self._at, min(place.end, self._end))
                begin += len(block)
                self._note(fresh, place.key)
                if begin == end and before.at == before.end and chunk:
                    self.checked, self._given = self._at, 0
                if fresh:
                    yield block if len(fresh) == len(block) else bytes(fresh)
            seam = _Expected(both, end, tail.crc64, place.key)

    def _note(self, fresh: memoryview, key: str) -> None:
        """Count the bytes that are returned next. Raises if they end a damaged archived binlog."""
        self._whole = crc64nvme(fresh, self._whole)
        self._given = crc64nvme(fresh, self._given)
        self._at += len(fresh)
        self._giver = key
        binlog = self.binlog
        all_of_it = binlog.state == "archived" and (self._begin, self._at) == (0, binlog.size)
        if all_of_it and binlog.crc64 is not None:
            _check_whole(binlog, self._whole)


def _check_whole(binlog: Readable, crc64: int) -> None:
    """Raise ArchiveError if an archived binlog has another CRC64 than its entry says."""
    if crc64 != binlog.crc64:
        raise ArchiveError(
            f"{binlog.ranges[0].key} is damaged: its CRC64NVME is {crc64_hex(crc64)}, its entry "
            f"says {crc64_hex(binlog.crc64 or 0)}",
            hint="an older version of the object may be whole, where the bucket is versioned",
        )


def _pieces(blocks: Iterator[bytes]) -> Iterator[bytes]:
    """The same bytes in blocks of the same size, however they came."""
    held = bytearray()
    for block in blocks:
        held += block
        while len(held) >= _PIECE:
            yield bytes(held[:_PIECE])
            del held[:_PIECE]
    if held:
        yield bytes(held)


@dataclass(slots=True)
class _Sum:
    """The running CRC64 of the bytes up to `end`; those before `at` are included."""

    at: int
    end: int
    crc64: int = 0

    def feed(self, offset: int, block: memoryview) -> None:
        piece = _cut(block, offset, self.at, self.end)
        self.crc64 = crc64nvme(piece, self.crc64)
        self.at += len(piece)


class _Expected(_Sum):
    """Bytes [begin, end) that must have this CRC64, as the object `key` has or claims."""

    def __init__(self, begin: int, end: int, crc64: int, key: str) -> None:
        super().__init__(begin, end)
        self._begin = begin
        self._crc64 = crc64
        self._key = key

    def check(self, offset: int, block: memoryview, key: str) -> None:
        """Take bytes of the object `key`. Raises ArchiveError if all have come and they differ."""
        self.feed(offset, block)
        if self.at < self.end or self.crc64 == self._crc64:
            return
        if key == self._key:
            raise ArchiveError(
                f"{key} is damaged: its bytes have the CRC64NVME {crc64_hex(self.crc64)}, not the "
                f"{crc64_hex(self._crc64)} that it was put with",
                hint="the source may still have these bytes, or the bucket an older version of the "
                "object",
            )
        raise _disagreement(self._key, key, self._begin, self.end)


def _cut(block: memoryview, offset: int, begin: int, end: int) -> memoryview:
    """The part of a block that is in [begin, end); the block begins at `offset`."""
    return block[max(begin - offset, 0) : max(end - offset, 0)]


def _disagreement(key: str, other: str, begin: int, end: int) -> ArchiveError:
    return ArchiveError(
        f"{key} and {other} disagree on the binlog's bytes from {begin} to {end}",
        hint="two histories with one name, or damage: nothing shows which one is right; compare "
        "them with the source, and do not restore beyond that point",
    )
