"""The data directory that a restore fills, and how far it is.

Law: until all of it is there, everything is in one directory below it, which says what it is, and
with which no server starts by mistake. At the end the files are moved into their place, none over
another one; then that directory goes. Killed anywhere, the same command continues, or begins again.
"""

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from binlog2s3 import private
from binlog2s3.archive.codec import BackupId, Moment, as_fields, converted
from binlog2s3.config.restore import ALLOWED, WORK, stranger_in
from binlog2s3.errors import ConfigError, RecoveryError
from binlog2s3.recover.events import Event
from binlog2s3.restore.engine import Reached
from binlog2s3.restore.workspace import Workspace, empty, read_marker, remove, remove_unmarked

Stage = Literal["restore", "start", "apply", "finish", "place"]
"""What a restore does, or did when it was killed. What was before `start` begins again."""
MARKER = "restore.json"
_WHAT = (
    "an unfinished restore of binlog2s3: the same command continues it; to give it up, delete what "
    "is in the data directory. No server can run on it"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Marker:
    """How far a restore is: restore.json. Texts of the bucket in it are data.

    `id`: it is in the name of our account, and our processes are known by it. `events`: those of
    the backup. `wanted`: those whose status at the goal is known, with it. `tables`: only these are
    applied; none: all. `settings`: the backup's. `reached`: None until the backup is restored.
    """

    id: BackupId
    source: str
    goal: str
    stage: Stage
    started_at: Moment
    tz: str | None = None
    has_gtids: bool = False
    events: tuple[Event, ...] = ()
    wanted: tuple[Event, ...] = ()
    tables: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()
    reached: Reached | None = None
    what: str = _WHAT


class DataDirectory:
    """The data directory, and the workspace in it. `server_user`: see `Workspace`."""

    def __init__(self, path: Path, server_user: int | None) -> None:
        self.path = path.absolute()
        self._server_user = server_user
        self.workspace = Workspace(self.path / WORK, MARKER, server_user=server_user)

    def left(self) -> Marker | None:
        """What an earlier restore has left here; None if nothing.

        Raises RecoveryError if that is no restore's, or cannot be read.
        """
        directory = self.workspace.directory
        if not directory.exists():
            return None
        others = () if self._server_user is None else (self._server_user,)
        try:
            private.check_inner(directory, others=others)
            marker = converted(json.loads(read_marker(directory / MARKER)), Marker)
        except FileNotFoundError:
            try:
                remove_unmarked(directory, MARKER)
            except OSError as error:
                raise self._unknown(f"it has no {MARKER}") from error
            self._refuse_stranger("a restore into it that was interrupted at its very end is whole")
            return None
        except (OSError, ValueError) as error:
            raise self._unknown(str(error)) from error
        is_over = marker.stage in ("finish", "place")
        if is_over and (marker.reached is None or not marker.reached.binlog):
            raise self._unknown("it does not say what was reached")
        if marker.stage != "place":  # then they are the restored files
            self._refuse_stranger("move it away")
        return marker

    def _refuse_stranger(self, hint: str) -> None:
        stranger = min({path.name for path in self.path.iterdir()} - ALLOWED, default="")
        if stranger:
            raise RecoveryError(f"{self.path} is not empty: {stranger!r:.100} is in it", hint=hint)

    def _unknown(self, why: str) -> RecoveryError:
        return RecoveryError(
            f"{self.workspace.directory} is not what a restore of this user left: {why}",
            hint="delete it, or name another --data-dir",
        )

    def begin(self, marker: Marker) -> None:
        """Make the workspace, or empty the one that is there, for a restore from the beginning.

        The data directory is given to the server's user, who must be able to reach it.
        """
        try:
            self.workspace.give(self.path)
        except OSError as error:
            raise RecoveryError(
                f"{self.path} cannot be given to the server's user: {error.strerror}",
                hint="does the file system allow it?",
            ) from error
        if not self.workspace.directory.exists():
            self.workspace.make_with(as_fields(marker))
            return
        self.note(marker)
        try:
            empty(self.workspace.directory, MARKER)
            tmp = self.workspace.directory / "tmp"
            tmp.mkdir(mode=0o700)
            self.workspace.give(tmp)
        except OSError as error:
            raise RecoveryError(
                f"{self.workspace.directory} cannot be emptied: {error}", hint="delete it by hand"
            ) from error

    def note(self, marker: Marker) -> None:
        """Write how far the restore is; it is on the disk afterwards."""
        self.workspace.note(as_fields(marker))

    def place(self) -> None:
        """Move the files to where they belong, and remove the workspace. May be repeated."""
        work = self.workspace
        try:
            if work.data.exists():
                for path in sorted(work.data.iterdir()):
                    target = self.path / path.name
                    if target.exists() or target.is_symlink():
                        raise RecoveryError(
                            f"{target} is there already, and the restore did not put it there",
                            hint="move it away, and run the same command again",
                        )
                    path.rename(target)
                work.data.rmdir()
            os.sync()
            remove(work.directory, MARKER)
        except OSError as error:
            raise RecoveryError(
                f"the restored files cannot be moved to {self.path}: {error}",
                hint="run the same command again: it continues",
            ) from error


@contextmanager
def held(path: Path, *, server_user: int | None, dry_run: bool) -> Iterator[DataDirectory]:
    """The data directory, for this process alone; it is made, unless this is a dry run.

    Raises ConfigError if it has something else, RecoveryError if another restore runs there.
    """
    is_new = not dry_run and not path.exists()
    try:
        if is_new:
            path.mkdir(mode=0o700)
        if os.geteuid() == 0 and path.exists():  # whose directory it is could lead root anywhere
            private.check_directory(path, others=() if server_user is None else (server_user,))
        stranger = stranger_in(path)
    except OSError as error:
        raise RecoveryError(
            f"the data directory {path} cannot be used: {error.strerror}",
            hint="--data-dir must be a directory, or one that can be made",
        ) from error
    if stranger:
        raise ConfigError([f"--data-dir {path} is not empty: {stranger!r:.100} is in it"])
    if not path.exists():
        yield DataDirectory(path, server_user)
        return
    opened = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise RecoveryError(
                f"another restore runs in {path}", hint="wait for it, or use another --data-dir"
            ) from error
        yield DataDirectory(path, server_user)
    finally:
        os.close(opened)
        if is_new:  # nothing may have been made in it
            with suppress(OSError):
                path.rmdir()
