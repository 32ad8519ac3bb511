"""Frees the disk space of the beginning of a file. The file keeps its size and the rest.

The system call is one that Python does not have.

Law: no byte at or after `end` changes, and no byte of a block that is only partly before it. A
freed range reads as zeros, so the caller first notes that it must not be read.
"""

import ctypes
import errno
import os
from collections.abc import Callable
from pathlib import Path

from binlog2s3.errors import SpoolError

_KEEP_SIZE, _PUNCH_HOLE = 1, 2  # linux/falloc.h
_STAT_BLOCK = 512  # the unit of st_blocks, whatever the file system's blocks are
_UNSUPPORTED = frozenset({errno.EOPNOTSUPP, errno.ENOSYS})


class PunchUnsupportedError(SpoolError):
    """The file system cannot free a part of a file. The streamer can continue without."""


def allocated(path: "Path | os.DirEntry[str]") -> int:
    """Bytes that a file takes on its disk: less than its size if a range of it was freed.

    Raises OSError.
    """
    return path.stat().st_blocks * _STAT_BLOCK


def punch(path: Path, end: int) -> int:
    """Free the file's whole blocks in [0, end). Returns how many bytes of disk this freed.

    If the file grows meanwhile, the number is too small, but never negative.
    Raises PunchUnsupportedError if the file system cannot do it, SpoolError if it fails.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        raise _refused(path, error.errno or 0) from error
    try:
        before = os.fstat(descriptor)
        length = end - end % before.st_blksize
        if length <= 0:
            return 0
        if number := _punch_hole(descriptor, length):
            raise _refused(path, number)
        return max(0, before.st_blocks - os.fstat(descriptor).st_blocks) * _STAT_BLOCK
    finally:
        os.close(descriptor)


def _punch_hole(descriptor: int, length: int) -> int:
    """Returns the errno, 0 after success. A signal may interrupt the call."""
    fallocate = _fallocate()
    if fallocate is None:
        return errno.ENOSYS
    while fallocate(descriptor, _PUNCH_HOLE | _KEEP_SIZE, 0, length):
        if (number := ctypes.get_errno()) != errno.EINTR:
            return number
    return 0


def _fallocate() -> Callable[[int, int, int, int], int] | None:
    """fallocate(2) with 64-bit offsets; glibc calls it fallocate64 if `long` has 32 bits."""
    libc = ctypes.CDLL(None, use_errno=True)
    function = getattr(libc, "fallocate64", None) or getattr(libc, "fallocate", None)
    if function is None:
        return None
    function.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    function.restype = ctypes.c_int
    return function  # type: ignore[no-any-return]


def _refused(path: Path, number: int) -> SpoolError:
    reason = os.strerror(number).lower()
    if number in _UNSUPPORTED:
        return PunchUnsupportedError(
            f"{path}: its file system cannot free a part of a file ({reason})",
            hint="put the spool on ext4, xfs, btrfs or zfs, or give it space for a whole binlog",
        )
    return SpoolError(
        f"{path}: its disk space cannot be freed: {reason}",
        hint="this program's user must own the spool and its files",
    )
