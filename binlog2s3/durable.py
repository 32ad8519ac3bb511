"""Files that are whole, and on the disk, after a power cut. Every error is an OSError."""

import json
import os
from collections.abc import Mapping
from pathlib import Path

from binlog2s3 import private


def sync_directory(path: Path) -> None:
    """Make a directory durable: which names are in it."""
    sync_file(path, os.O_DIRECTORY)


def sync_file(path: Path, flags: int = 0) -> None:
    """Make a file durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_json(path: Path, document: Mapping[str, object]) -> None:
    """Replace a JSON file (mode 0600), whole or not at all, and make it durable with its name."""
    new = path.with_name(f"{path.name}.new")
    with open(private.create(new), "w", encoding="utf-8") as file:  # noqa: PTH123 - a descriptor
        json.dump(document, file)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)
    sync_directory(path.parent)
