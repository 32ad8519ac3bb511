"""One pass over the bytes of a binlog that has no entry: the open one, or one not described yet.

Of what comes after damage that cannot be passed over, only the checksums are known.
"""

from binlog2s3.archive.reader import Readable
from binlog2s3.archive.reading import BinlogReading
from binlog2s3.binlog.names import BinlogName
from binlog2s3.errors import DamageError


class Pass:
    """One pass over a binlog's first `size` bytes.

    The streamer archives an event that is damaged on the source as it is. One such event between
    good ones is noted in `damaged` and passed over. After any other damage only the checksums of
    the rest are computed. `reached` bytes could be read.
    """

    def __init__(self, name: BinlogName, readable: Readable, size: int) -> None:
        self._readable = readable
        self._size = size
        self._accepted = -1
        self.reading = BinlogReading(name)
        self.damaged: list[tuple[int, int]] = []
        self.reached = 0

    def run(self) -> None:
        """Read all of it. Raises ArchiveError from where it cannot be read."""
        reading, scanner, begin = self.reading, self.reading.scanner, 0
        while True:
            try:
                for block in self._readable.blocks(begin, self._size):
                    received_us = self._readable.received_us(begin)
                    begin += len(block)
                    self.reached = max(self.reached, begin)
                    reading.feed(memoryview(block), received_us)
            except DamageError as damage:
                if self._passes_over(damage):
                    begin = reading.size
                    continue
                self.damaged = [one for one in scanner.damaged if one[1] <= damage.offset] + [
                    (damage.offset, self._size)
                ]
                for block in self._readable.blocks(reading.digest.size, self._size):
                    reading.digest.feed(memoryview(block))
            else:
                self.damaged = list(scanner.damaged)
            return

    def _passes_over(self, damage: DamageError) -> bool:
        """Whether the damaged event may be taken as it is, and what follows be read.

        Not if the event before it was taken so: then its header gave a wrong length.
        """
        scanner = self.reading.scanner
        behind = scanner.damaged[-1][1] if scanner.damaged else -1
        if damage.offset in (behind, self._accepted) or not self.reading.rewind():
            return False
        self._accepted = damage.offset
        scanner.accept(damage.offset)
        return True
