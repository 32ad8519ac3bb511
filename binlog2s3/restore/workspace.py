"""The private directory in which a server is restored: data, logs, socket, and a marker.

Law: the marker says whose directory it is and how far the work is; it is written before the step
that it names begins, and is there as long as the directory is. A marker or a log in the place of
which somebody put a link is not followed (`private`).
"""

import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from binlog2s3 import private
from binlog2s3.durable import write_json
from binlog2s3.errors import RecoveryError

LOGS = ("restore.log", "server.log")
_MOST_MARKER = 1 << 20


class Workspace:
    """One such directory; everything that is made is below it.

    `marker`: the name of the marker. `server_user`: the number of the server's user, to whom root
    gives it; None: its own.
    """

    def __init__(self, directory: Path, marker: str, *, server_user: int | None = None) -> None:
        self._marker = marker
        self.server_user = server_user
        self.directory = directory
        self.data = directory / "data"
        self.restore_log, self.server_log = (directory / name for name in LOGS)

    def make_with(self, marker: Mapping[str, object]) -> None:
        """Make the directory with its marker. Raises RecoveryError."""
        try:
            self.directory.mkdir(mode=0o700)
            self.note(marker)
            (self.directory / "tmp").mkdir(mode=0o700)
            self.give(self.directory)
            self.give(self.directory / "tmp")
        except OSError as error:
            raise RecoveryError(
                f"{self.directory} cannot be made: {error.strerror}",
                hint="check the disk and the permissions of the directory that it is in",
            ) from error

    def give(self, made: Path | int) -> None:
        """Give a directory, or the descriptor of a file, to the server's user."""
        if self.server_user is not None:
            os.chown(made, self.server_user, -1)

    def make_data(self) -> None:
        """Make the empty data directory."""
        self.data.mkdir(mode=0o700)
        self.give(self.data)

    def set_logs_aside(self) -> None:
        """Rename the logs of an earlier run: what a message quotes is of this one."""
        for log in (self.restore_log, self.server_log):
            with suppress(FileNotFoundError):
                log.replace(log.with_name(f"{log.name}.before"))

    def note(self, marker: Mapping[str, object]) -> None:
        """Replace the marker; it is on the disk afterwards."""
        write_json(self.directory / self._marker, marker)


def read_marker(path: Path) -> str:
    """The text of a marker, which the server's user may have made. Raises OSError."""
    opened = private.open_here(path, os.O_RDONLY)
    with open(opened) as file:  # noqa: PTH123 - a descriptor
        return file.read(_MOST_MARKER)


def delete(path: Path) -> None:
    """Delete a file, a link or a whole directory. Raises OSError."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def empty(directory: Path, marker: str) -> None:
    """Delete all but the marker and the logs. Raises OSError."""
    for path in directory.iterdir():
        if path.name not in (marker, *LOGS):
            delete(path)


def remove(directory: Path, marker: str) -> None:
    """Delete a directory, its marker last: until then it is known. Raises OSError."""
    for path in sorted(directory.iterdir(), key=lambda path: path.name == marker):
        delete(path)
    directory.rmdir()


def remove_unmarked(directory: Path, marker: str) -> None:
    """Delete one whose maker was killed before the marker was whole. Raises OSError if it has more.

    It has nothing else then.
    """
    (directory / f"{marker}.new").unlink(missing_ok=True)
    directory.rmdir()


def size_of(directory: Path) -> int:
    """Bytes on the disk of all files below a directory; what vanishes meanwhile counts as 0."""
    total = 0
    for folder, _, names in os.walk(directory):
        for name in names:
            with suppress(OSError):
                total += 512 * (Path(folder) / name).lstat().st_blocks
    return total
