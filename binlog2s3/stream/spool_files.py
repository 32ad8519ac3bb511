"""The spool's files: written, compared, deleted and made durable.

An OSError leaves here as a SpoolError with a hint; a deletion is durable when it returns.
"""

import errno
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from binlog2s3 import private
from binlog2s3.errors import SpoolError

_BLOCK = 1 << 20


def delete_file(path: Path) -> int:
    """Delete a file if it is there, durably; its size."""
    with as_spool_error(path):
        try:
            size = path.stat().st_size
            path.unlink()
        except FileNotFoundError:
            return 0
        sync_directory(path.parent)
        return size


def write_whole(path: Path, document: Mapping[str, object]) -> None:
    """Write a JSON file, whole or not at all, and make it durable with its name."""
    with as_spool_error(path):
        new = path.with_name(f"{path.name}.new")
        with open(private.create(new), "w", encoding="utf-8") as file:  # noqa: PTH123
            json.dump(document, file)
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)
        sync_directory(path.parent)


def is_part(path: Path, skip: int, other_path: Path, at: int) -> bool:
    """Whether the bytes of a file after `skip` are in another one at `at`. Raises OSError."""
    with path.open("rb") as one, other_path.open("rb") as other:
        one.seek(skip)
        other.seek(at)
        while block := one.read(_BLOCK):
            if block != other.read(len(block)):
                return False
    return True


def sync_directory(path: Path) -> None:
    """Make a directory durable: which names are in it. Raises OSError."""
    sync_file(path, os.O_DIRECTORY)


def sync_file(path: Path, flags: int = 0) -> None:
    """Make a file durable. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


HINTS: Mapping[int, str] = {
    1: "the spool and what is in it must belong to the user that streams, also if that is root",
    2: "was it deleted, or its file system unmounted? put it back, or restart: what is missing in "
    "the bucket is fetched again",
    13: "this program's user must own the spool directory",
    17: "something that is not a directory is in its place: name another one with --spool",
    20: "something that is not a directory is in its place: name another one with --spool",
    28: "free space on the spool's file system, but never delete run-*: it may be the only copy",
    22: "somebody else made it: look at it, and remove it",
    40: "somebody else made it: look at it, and remove it",
    30: "the spool's file system is mounted read-only",
    122: "the user's disk quota is exceeded",
}


@contextmanager
def as_spool_error(path: Path) -> Iterator[None]:
    """Raise an OSError as a SpoolError that names the path. A full disk is transient."""
    try:
        yield
    except OSError as error:
        raise SpoolError(
            f"spool: {path}: {(error.strerror or str(error)).lower()}",
            hint=HINTS.get(error.errno or 0, "check --spool"),
            transient=error.errno in (errno.ENOSPC, errno.EDQUOT),
        ) from error
