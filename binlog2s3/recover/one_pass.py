"""One pass over the bytes of a binlog that has no entry.

Place in the flow: beneath `snapshot`, for the open binlog and for one that is not described yet.

Law: what comes after damage that cannot be passed over is told by its checksums alone.
"""

from binlog2s3.archive.parts import Digest, Grid
from binlog2s3.archive.reader import Readable
from binlog2s3.binlog.scanner import Scanner
from binlog2s3.errors import DamageError

_ANY_GRID = Grid(5 << 20)  # nobody asks for the parts


class Pass:
    """One pass over a binlog's first `size` bytes.

    An event that its source itself has damaged was put as it is: one that is, alone among others
    that are whole, is noted and passed over. From any other damage on, nothing is told of the rest
    but its checksums.
    """

    def __init__(self, readable: Readable, size: int) -> None:
        self._readable = readable
        self._size = size
        self._accepted = -1
        self.scanner = Scanner()
        self.digest = Digest(_ANY_GRID)
        self.commit_exact = True
        self.damaged: list[tuple[int, int]] = []
        self.reached = 0

    def run(self) -> None:
        """Read all of it. Raises ArchiveError from where it cannot be read."""
        begin = 0
        while True:
            try:
                for block in self._readable.blocks(begin, self._size):
                    self.reached = max(self.reached, begin + len(block))
                    self._take(begin, block)
                    begin += len(block)
            except DamageError as damage:
                if self._passes_over(damage):
                    begin = damage.offset
                    continue
                self.damaged = [one for one in self.scanner.damaged if one[1] <= damage.offset] + [
                    (damage.offset, self._size)
                ]
                for block in self._readable.blocks(self.digest.size, self._size):
                    self.digest.feed(memoryview(block))
            else:
                self.damaged = list(self.scanner.damaged)
            return

    def _take(self, begin: int, block: bytes) -> None:
        self.digest.feed(memoryview(block)[max(0, self.digest.size - begin) :])
        try:
            self.scanner.feed(block)
        finally:
            for transaction in self.scanner.completed:
                self.digest.note(transaction)
                self.commit_exact = self.commit_exact and transaction.commit_exact

    def _passes_over(self, damage: DamageError) -> bool:
        """Whether the event that is damaged may be taken as it is, and what follows be read.

        Not where the one before it was taken so: then its header led astray.
        """
        scanner = self.scanner
        behind = scanner.damaged[-1][1] if scanner.damaged else -1
        if damage.offset in (behind, self._accepted) or not scanner.rewind():
            return False
        self._accepted = damage.offset
        scanner.accept(damage.offset)
        return True
