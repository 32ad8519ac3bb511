"""Reads the newest binlog of a history once, as it grows, and keeps its last bytes for all dumps.

Memory is bounded. Damaged bytes are never shown.
"""

import threading
from collections import deque
from dataclasses import dataclass

from binlog2s3.archive.facts import BinlogId
from binlog2s3.archive.reader import Readable
from binlog2s3.archive.reading import BinlogReading
from binlog2s3.binlog.gtid import Gtids
from binlog2s3.binlog.scanner import Scanner
from binlog2s3.errors import ArchiveError, DamageError
from binlog2s3.serve.model import ServedBinlog

_RECENT_BYTES = 32 << 20
_RECENT_MOST = 512
_MARK_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class TransactionBoundary:
    """A place between two transactions of the open binlog, and all GTIDs before it, if known."""

    offset: int
    gtids: Gtids | None


class Tail:
    """The newest binlog, read once as it grows.

    `reading` has the checksums of its bytes, which prove them later.
    """

    def __init__(self, binlog: ServedBinlog) -> None:
        self.binlog = binlog
        self.reading = BinlogReading(binlog.name)
        self.read = 0
        self.readable: Readable | None = None
        self.is_archived = False
        self.marks: list[TransactionBoundary] = []

    @property
    def scanner(self) -> Scanner:
        """What is known of its events."""
        return self.reading.scanner

    @property
    def has_checksums(self) -> bool:
        """Whether its events have checksums, which show damage before anything is passed on."""
        formats = self.scanner.formats
        return bool(formats) and all(form.checksum == "crc32" for form in formats)

    @property
    def whole(self) -> int:
        """Where the last whole transaction ends."""
        return self.scanner.transaction_end

    @property
    def is_complete(self) -> bool:
        """Whether all of the binlog was read, and the server has finished it."""
        ended = self.scanner.ended and self.scanner.event_end == self.read
        if self.readable is None or self.read < self.readable.size:
            return False
        return ended or self.is_archived

    def take(self, data: bytes) -> None:
        """Take the next bytes. Raises ArchiveError for a damaged event.

        Then the next bytes are those after the last good event: the damage may be repaired. Where
        that is impossible, every later call fails.
        """
        try:
            self.reading.feed(memoryview(data))
        except DamageError as error:
            if self.reading.rewind():
                self.read = self.reading.size
            raise ArchiveError(f"{self.binlog.name}: {error}") from error
        self.read += len(data)
        last = self.marks[-1].offset if self.marks else 0
        if self.whole - last >= _MARK_BYTES:
            self.marks.append(TransactionBoundary(self.whole, self.scanner.gtids_at_end))


class Recent:
    """The newest bytes, for the dumps that wait for them. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._blocks: deque[tuple[BinlogId, int, bytes]] = deque()
        self._size = 0

    def add(self, binlog: ServedBinlog, begin: int, data: bytes) -> None:
        """Keep these bytes of a binlog, and drop the oldest."""
        with self._lock:
            self._blocks.append((binlog.binlog_id, begin, data))
            self._size += len(data)
            while self._size > _RECENT_BYTES or len(self._blocks) > _RECENT_MOST:
                self._size -= len(self._blocks.popleft()[2])

    def clear(self) -> None:
        """Keep nothing: some of it turned out to be damaged."""
        with self._lock:
            self._blocks.clear()
            self._size = 0

    def find(self, binlog: ServedBinlog, begin: int, end: int) -> list[bytes] | None:
        """Bytes [begin, end) of a binlog; None if not all are there."""
        with self._lock:
            blocks = [block for block in self._blocks if block[0] == binlog.binlog_id]
        found: list[bytes] = []
        for _, at, data in blocks:
            until = at + len(data)
            if until <= begin or at >= end:
                continue
            if at > begin:
                return None
            found.append(data[begin - at : end - at])
            begin = until
        return found if begin >= end else None
