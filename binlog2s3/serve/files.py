"""The files of a directory that is served: opened safely, and always the same ones.

Law: below the directory no link is followed, and only regular files are read. A file that is not
the one that was there at first is an error. Every error is a RecoveryError that names the file.
"""

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from binlog2s3.archive.parts import BLOCK_SIZE
from binlog2s3.binlog.checksum import crc64_of_blocks
from binlog2s3.errors import RecoveryError


class SealedFile:
    """A file that does not change any more. `name` has the directories below `directory`, too.

    Raises RecoveryError if it cannot be read, or is no regular file.
    """

    def __init__(self, directory: Path, name: str) -> None:
        self.path = directory / name
        self._directory = directory
        self._names = name.split("/")
        with self._opened() as descriptor:
            self._seal = _seal(descriptor)
            self.size = os.fstat(descriptor).st_size

    def read(self, begin: int, end: int) -> bytes:
        """Its bytes [begin, end), fewer at its end. Raises RecoveryError if it has changed."""
        parts = []
        with self._opened() as descriptor:
            if _seal(descriptor) != self._seal:
                raise RecoveryError(
                    f"{self.path} has changed since it was opened",
                    hint="serve files that nothing writes any more, and start again",
                )
            while begin < end and (part := os.pread(descriptor, end - begin, begin)):
                parts.append(part)
                begin += len(part)
        return b"".join(parts)

    def blocks(self) -> Iterator[bytes]:
        """All of its bytes, in blocks."""
        for begin in range(0, self.size, BLOCK_SIZE):
            yield self.read(begin, min(begin + BLOCK_SIZE, self.size))

    def crc64(self, on_block: Callable[[int], object]) -> int:
        """The CRC64NVME of all of it; `on_block` gets the size of each block that was read."""

        def told() -> Iterator[bytes]:
            for block in self.blocks():
                on_block(len(block))
                yield block

        return crc64_of_blocks(told())

    @contextmanager
    def _opened(self) -> Iterator[int]:
        """A descriptor of it, opened name by name."""
        *folders, last = self._names
        opened: list[int] = []
        try:
            opened.append(os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
            inner = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
            for folder in folders:
                opened.append(os.open(folder, inner | os.O_DIRECTORY, dir_fd=opened[-1]))
            # a pipe would block
            opened.append(os.open(last, inner | os.O_NONBLOCK, dir_fd=opened[-1]))
            if not stat.S_ISREG(os.fstat(opened[-1]).st_mode):
                raise RecoveryError(f"{self.path} is no regular file")
            yield opened[-1]
        except OSError as error:
            why = os.strerror(error.errno or 0).lower()
            raise RecoveryError(f"{self.path} cannot be read: {why}") from error
        finally:
            for descriptor in opened:
                os.close(descriptor)


def _seal(descriptor: int) -> tuple[int, int, int, int]:
    """What is another number if the file is another one, or was written to."""
    found = os.fstat(descriptor)
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
