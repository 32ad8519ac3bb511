"""Where throwaway servers may keep their data: on a disk, for a file system in memory fills it."""

import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lab.cache import cache_folder, remove

IN_MEMORY = ("tmpfs", "ramfs", "devtmpfs")


def on_disk(path: Path) -> bool:
    """Whether an existing path lies on a file system that is not kept in memory."""
    mounts = Path("/proc/mounts")
    if not mounts.is_file():
        return True
    kinds: dict[str, str] = {}
    for line in mounts.read_text().splitlines():
        _device, mounted, kind = line.split()[:3]
        kinds[re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), mounted)] = kind
    real = path.resolve()
    for folder in (real, *real.parents):
        if str(folder) in kinds:
            return kinds[str(folder)] not in IN_MEMORY
    return True


@contextmanager
def temporary_directory(prefix: str = "binlog2s3-") -> Iterator[Path]:
    """A new directory on disk that is gone afterwards, whatever happens."""
    parent = Path(tempfile.gettempdir())
    if not on_disk(parent):
        parent = cache_folder() / "tmp"
        parent.mkdir(parents=True, exist_ok=True)
    directory = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
    try:
        yield directory
    finally:
        remove(directory)
