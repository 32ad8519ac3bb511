"""The directory where the target keeps relay logs, as it is seen from here.

Place in the flow: `relay_batch` writes files here, beside those of the server; `relay` has them
moved in when it is their turn.

Law: a file gets a name that the server would read only when it is whole, and on disk; the index
gets it only while the applier is stopped. Files belong to whom the server's own belong.
"""

import errno
import os
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Self

from binlog2s3.errors import RecoveryError

_BESIDE = "binlog2s3-"
_LEAST_FREE = 64 << 10
_BUFFER = 128 << 10


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayFiles:
    """Of one channel: `stem` is what its files are called before the number.

    `seen_as`: the directory as the server names it, to say so where it is not here.
    """

    path: Path
    stem: str
    index_name: str
    seen_as: str

    @classmethod
    def of(cls, basename: str, index: str, channel: str, directory: Path | None) -> Self:
        """From @@relay_log_basename and @@relay_log_index; `directory`: where that is here."""
        server = PurePosixPath(basename)
        name = PurePosixPath(index).name.removesuffix(".index")
        return cls(
            path=directory or Path(server.parent),
            stem=f"{server.name}-{channel}",
            index_name=f"{name}-{channel}.index",
            seen_as=str(server.parent),
        )

    @property
    def index(self) -> Path:
        """The list of the channel's relay logs."""
        return self.path / self.index_name

    def has(self, name: str) -> bool:
        """Whether there is a file of this name."""
        return bool(name) and (self.path / name).is_file()

    def unreachable(self) -> str:
        """Why files cannot be put here, before the channel exists; "" where nothing shows."""
        named = str(self.path)
        if not self.path.is_dir():
            return f"its relay log directory, {self.seen_as}, is not here ({named} is no directory)"
        if not os.access(self.path, os.W_OK | os.X_OK):
            return f"this user may not write into its relay log directory, {named}"
        owner = self.path.stat().st_uid
        if os.geteuid() not in (0, owner):
            return (
                f"this user (id {os.geteuid()}) is neither root nor the owner (id {owner}) of its "
                f"relay log directory, {named}"
            )
        return ""

    def numbered(self) -> list[Path]:
        """The channel's files, by their numbers."""
        pattern = re.compile(re.escape(self.stem) + r"\.(\d+)")
        matches = ((pattern.fullmatch(path.name), path) for path in self.path.iterdir())
        return [
            path for _, path in sorted((int(match[1]), path) for match, path in matches if match)
        ]

    def appeared(self, before: Sequence[Path]) -> bool:
        """Whether the server has begun a file since, and its index is here."""
        return self.index.is_file() and bool(set(self.numbered()) - set(before))

    def begin(self, number: int) -> "Beside":
        """A file of ours that the server does not know of yet."""
        return Beside(self.path / f"{self.stem}.{_BESIDE}{number:08d}", self.path)

    def move_in(self, files: Sequence[Path]) -> list[Path]:
        """Give these the next numbers and put them into the index; the applier is stopped.

        Raises RecoveryError where the server would have no room for a file of its own: it would
        wait for that, and answer nobody.
        """
        lines = self._lines()
        prefix = lines[-1][: lines[-1].rfind("/") + 1] if lines else ""
        last = self.numbered()
        number = int(last[-1].suffix[1:]) if last else 0
        moved = []
        try:
            there = os.statvfs(self.path)
            if there.f_bavail * there.f_frsize < _LEAST_FREE:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))  # noqa: TRY301 - told alike
            for number, path in enumerate(files, number + 1):  # noqa: B020 - it goes on there
                name = f"{self.stem}.{number:06d}"
                moved.append(path.rename(self.path / name))
            with self.index.open("ab", buffering=0) as index:
                index.write("".join(f"{prefix}{path.name}\n" for path in moved).encode())
        except OSError as error:
            raise self.failed(error) from error
        return moved

    def _lines(self) -> list[str]:
        try:
            return self.index.read_text().splitlines()
        except OSError as error:
            raise self.failed(error) from error

    def remove(self, *, numbered: bool) -> None:
        """Remove ours that the server does not know of; `numbered`: it knows of none any more."""
        with suppress(OSError):
            found = self.numbered() if numbered else []
            for path in (*found, *self.path.glob(f"{self.stem}.{_BESIDE}*")):
                path.unlink(missing_ok=True)

    def unlink(self, files: Sequence[Path]) -> None:
        """Remove these, which the server has read and leaves."""
        for path in files:
            with suppress(OSError):
                path.unlink()

    def failed(self, error: OSError) -> RecoveryError:
        """As an error of ours."""
        return _failed(self.path, error)


class Beside:
    """One file on its way; `done` when it is on disk."""

    def __init__(self, path: Path, directory: Path) -> None:
        self.path = path
        self.size = 0
        self._directory = directory
        try:
            number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o640)
            self._file = os.fdopen(number, "wb", buffering=_BUFFER)
            if os.geteuid() == 0:
                owner = directory.stat()
                os.fchown(number, owner.st_uid, owner.st_gid)
        except OSError as error:
            raise _failed(directory, error) from error

    def write(self, data: bytes | memoryview) -> None:
        """The next bytes. Raises RecoveryError where there is no room.

        Some is left for the server, which would wait for it without an answer to anybody.
        """
        try:
            there = os.fstatvfs(self._file.fileno())
            if there.f_bavail * there.f_frsize < _LEAST_FREE + _BUFFER + len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))  # noqa: TRY301 - told alike
            self.size += self._file.write(data)
        except OSError as error:
            raise _failed(self._directory, error) from error

    def done(self, size: int | None = None) -> None:
        """All was written, of which the first `size` bytes count: put it on disk."""
        try:
            self._file.flush()
            if size is not None:
                self._file.truncate(size)
            os.fsync(self._file.fileno())
            self._file.close()
        except OSError as error:
            self.drop()
            raise _failed(self._directory, error) from error

    def drop(self) -> None:
        """It is not wanted."""
        with suppress(OSError):
            self.path.unlink()
        with suppress(OSError):
            self._file.close()


def _failed(directory: Path, error: OSError) -> RecoveryError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return RecoveryError(
            f"the target's relay log directory, {directory}, is full: {error.strerror}",
            hint="free some space there: relay logs of about 256 MiB lie there at a time, and the "
            "target's own data and binlogs may grow on the same disk",
        )
    return RecoveryError(
        f"the target's relay log directory, {directory}: {error.strerror or error}",
        hint="is it writable for this user? --apply pipe does without it",
    )
