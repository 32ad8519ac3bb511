"""Gives the beginning of a file back to the file system; the file keeps its size and its rest.

Place in the flow: beneath `spool`, for an open binlog that is larger than the spool may be. Owns
the one system call that Python does not have.

Law: not a byte at or behind `end` changes, nor one of a block that only partly lies before it.
What was given back reads as zeros, so whoever calls this has noted first that nobody may read it.
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
    """The file system cannot give back a part of a file: one can go on without."""


def allocated(path: Path) -> int:
    """Bytes that a file takes on its disk: less than its size where something was punched out.

    Raises OSError.
    """
    return path.stat().st_blocks * _STAT_BLOCK


def punch(path: Path, end: int) -> int:
    """Give back the file's whole blocks in [0, end); the bytes of disk that this freed.

    Beside a writer that makes the file grow the number is too small, but never negative.
    Raises PunchUnsupportedError where the file system cannot, SpoolError where it will not.
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
    """The errno, 0 if it is done. A signal may interrupt it, as any call."""
    fallocate = _fallocate()
    if fallocate is None:
        return errno.ENOSYS
    while fallocate(descriptor, _PUNCH_HOLE | _KEEP_SIZE, 0, length):
        if (number := ctypes.get_errno()) != errno.EINTR:
            return number
    return 0


def _fallocate() -> Callable[[int, int, int, int], int] | None:
    """fallocate(2) with 64-bit offsets: glibc has it under another name where `long` is short."""
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
            f"{path}: its file system cannot give back a part of a file ({reason})",
            hint="put the spool on ext4, xfs, btrfs or zfs, or give it room for a whole binlog",
        )
    return SpoolError(
        f"{path}: its room cannot be given back: {reason}",
        hint="this program's user must own the spool and its files",
    )
