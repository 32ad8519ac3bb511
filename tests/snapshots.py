"""A bucket in memory with binlogs as a streamer leaves them, and a snapshot of it."""

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any

from binlog2s3.archive.catalog import Catalog
from binlog2s3.archive.chunks import Chunk
from binlog2s3.archive.documents import Lineage
from binlog2s3.archive.layout import Layout
from binlog2s3.archive.reading import BinlogReading
from binlog2s3.archive.writers import Heartbeat
from binlog2s3.binlog.checksum import crc64nvme
from binlog2s3.binlog.events import HEADER
from binlog2s3.binlog.gtid import Gtids, GtidSet, MariadbGtidList
from binlog2s3.binlog.names import BinlogName
from binlog2s3.binlog.scanner import Scanner, Transaction
from binlog2s3.errors import ObjectMissingError
from binlog2s3.recover.model import Checked, PlanPiece
from binlog2s3.recover.snapshot import Snapshot
from binlog2s3.workers import Advance, Workers
from tests.binlog_writer import UUID_A, XID, BinlogWriter, statement
from tests.documents import BEAT, ID, LINEAGE, NAME, TIME, like, turn_of
from tests.memory_store import MemoryStore

LAYOUT = Layout("pre", "orders")
KEY = LAYOUT.binlog(ID, NAME)
BLOCK = 4 << 20
MARIADB = like(LINEAGE, flavour="mariadb", server_version="11.4.2-MariaDB-log")


@cache
def workers() -> Workers:
    return Workers(4)


@dataclass(frozen=True)
class Asked:
    key: str
    begin: int
    end: int


class Bucket(MemoryStore):
    """Remembers what was read; `before_open` runs before that, `rot` may change what is given."""

    def __init__(self, lineage: Lineage = LINEAGE, **store: Any) -> None:
        super().__init__(**store)
        self.asked: list[Asked] = []
        self.lock = threading.Lock()
        self.before_open: Callable[[str, int], None] = lambda *_: None
        self.rot: Callable[[str, int, bytes], bytes] = lambda _, __, data: data
        self.archived_at = TIME
        self.lineage = lineage
        self.put(LAYOUT.lineage(lineage.id), lineage.to_json())

    def open(self, key: str, begin: int, end: int) -> Iterator[bytes]:
        with self.lock:
            self.asked.append(Asked(key, begin, end))
        self.before_open(key, begin)
        for block in super().open(key, begin, end):
            yield self.rot(key, begin, block)
            begin += len(block)

    @property
    def fetched(self) -> int:
        """Bytes of binlogs that were asked for."""
        return sum(one.end - one.begin for one in self.asked)

    def archive(
        self,
        data: bytes | bytearray,
        name: BinlogName = NAME,
        *,
        accept: Sequence[int] = (),
        entry: bool = True,
    ) -> None:
        """Put a binlog, and its entry as a streamer makes it."""
        self.put(LAYOUT.binlog(self.lineage.id, name), bytes(data))
        if not entry:
            return
        reading = BinlogReading(name)
        for offset in accept:
            reading.scanner.accept(offset)
        reading.feed(memoryview(bytes(data)))
        self.put(LAYOUT.entry(self.lineage.id, name), reading.entry(self.archived_at).to_json())

    def chunk(self, data: bytes | bytearray, begin: int, end: int, name: BinlogName = NAME) -> str:
        piece = bytes(data[begin:end])
        key = LAYOUT.chunk(self.lineage.id, name, Chunk(begin, end, crc64nvme(piece)))
        self.put(key, piece)
        return key

    def chunks(self, data: bytes | bytearray, *bounds: int, name: BinlogName = NAME) -> list[str]:
        return [self.chunk(data, begin, end, name) for begin, end in pairwise(bounds)]

    def beat(self, beat: Heartbeat = BEAT) -> None:
        self.put(LAYOUT.writer(beat.generation, beat.token), beat.to_json())
        if beat.lineage is not None:
            self.put(LAYOUT.turn(beat.generation), turn_of(beat).to_json())

    def snapshot(self, advance: Advance = lambda _, __: None) -> Snapshot:
        return Snapshot(Catalog(self, LAYOUT), workers(), advance=advance)


class Leaky(Bucket):
    """Of these keys, each is gone at the next read that begins at or behind the offset."""

    def __init__(self) -> None:
        super().__init__()
        self.lose: dict[str, Callable[[], None]] = {}

    def open(self, key: str, begin: int, end: int) -> Iterator[bytes]:
        if key in self.lose:
            self.lose.pop(key)()
            if key not in self.objects:
                raise ObjectMissingError(f"no {key}")
        yield from super().open(key, begin, end)


def gtids_of(transactions: Sequence[Transaction]) -> Gtids:
    """Of MySQL's or MariaDB's, from their texts alone."""
    texts = [one.gtid for one in transactions if one.gtid]
    if texts and ":" not in texts[0]:
        last: dict[tuple[int, int], int] = {}
        for domain, server, seq in (map(int, text.split("-")) for text in texts):
            last[domain, server] = seq
        return MariadbGtidList(last)
    return GtidSet.parse(",".join(texts))


def piece_of(
    transactions: Sequence[Transaction],
    first: int,
    last: int,
    *,
    without: Sequence[int] = (),
    name: BinlogName = NAME,
    lineage: str = ID,
) -> PlanPiece:
    """Transactions first to last (exclusive), by number, but for some."""
    kept = [transactions[n] for n in range(first, last) if n not in without]
    return PlanPiece(
        lineage=lineage,
        binlog=name,
        begin=transactions[first].begin,
        end=transactions[last - 1].end,
        left_out=tuple((transactions[n].begin, transactions[n].end) for n in without),
        transactions=len(kept),
        gtids=gtids_of(kept),
    )


def expected(data: bytes | bytearray, piece: PlanPiece, head: int = 4) -> bytes:
    """The magic, the format event, and the piece's bytes."""
    size = HEADER.unpack_from(data, head)[3]
    bounds = [piece.begin, *(at for pair in piece.left_out for at in pair), piece.end]
    kept = b"".join(data[a:b] for a, b in zip(bounds[::2], bounds[1::2], strict=True))
    return bytes(data[:4]) + bytes(data[head : head + size]) + kept


def checked_of(binlog: BinlogWriter, piece: PlanPiece, cut: int = 1 << 20) -> Iterator[Checked]:
    """As `Extract` gives a piece: the head, then its bytes, cut anywhere, and what ends in them."""
    head = 4 + HEADER.unpack_from(binlog.data, 4)[3]
    yield Checked(data=bytes(binlog.data[:head]))
    left_out = (at for pair in piece.left_out for at in pair)
    bounds = [max(piece.begin, head), *left_out, piece.end]
    for begin, end in zip(bounds[::2], bounds[1::2], strict=True):
        for at in range(begin, end, cut):
            part = bytes(binlog.data[at : min(at + cut, end)])
            done = tuple(one for one in binlog.transactions if at < one.end <= at + len(part))
            yield Checked(data=part, done=done)


def taken(checked: Sequence[Checked]) -> tuple[bytes, list[Transaction]]:
    return b"".join(c.data for c in checked), [one for c in checked for one in c.done]


def written(
    transactions: int = 12,
    row_bytes: int = 150,
    *,
    checksum: bool = True,
    rotate: bool = True,
    first: int = 1,
    created: int = 0,
    begin_us: int = 1_795_253_309_000_000,
    apart_us: int = 1,
    end: tuple[int, bytes] = XID,
) -> BinlogWriter:
    """A MySQL binlog of transactions with one row each; `created`: when a start began it.

    The first one is committed at `begin_us`; each ends with the event `end`.
    """
    binlog = BinlogWriter(checksum=checksum, created=created)
    binlog.previous_gtids(GtidSet.parse(f"{UUID_A}:1-{first - 1}" if first > 1 else ""))
    for number in range(transactions):
        row = statement(f"INSERT {number} {'x' * row_bytes}")
        binlog.transaction(
            [statement("BEGIN"), row, end],
            gtid=(UUID_A, "", first + number),
            commit_us=begin_us + number * apart_us,
        )
    if rotate:
        binlog.rotate()
    return binlog


def scanned(data: bytes | bytearray) -> list[Transaction]:
    return Scanner().feed(data)
