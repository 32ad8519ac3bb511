"""The directory of one drill below --work-dir, and what earlier drills have left there.

Law: only one drill runs in a work directory (a lock that the kernel holds). Only directories that
drill made are deleted: their name is `drill-<id>` or `failed-<id>`, and the file `drill.json` in
them names that id. What another user has made there is neither read nor followed (`private`), but
for the user of the scratch server, to whom a drill of root gives its directory.
After a `kill -9` the next drill ends the processes that are left, deletes the
data, and reports what was interrupted.
"""

import fcntl
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from binlog2s3 import private
from binlog2s3.archive.codec import BACKUP_ID, Moment, as_fields, converted
from binlog2s3.archive.drills import DrillStep
from binlog2s3.errors import RecoveryError
from binlog2s3.restore.children import end_all
from binlog2s3.restore.workspace import LOGS, Workspace, empty, read_marker, remove, remove_unmarked

_MARKER = "drill.json"
_MOST_FAILED = 3
"""The logs of so many failed drills are kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrillMarker:
    """How far a drill is: drill.json. `backup`: the id of the base backup, once it is chosen."""

    id: str
    source: str
    pid: int = field(default_factory=os.getpid)
    step: DrillStep = "choose"
    backup: str | None = None
    started_at: Moment


@contextmanager
def locked(work_dir: Path) -> Iterator[None]:
    """Hold the work directory. Raises RecoveryError if another drill has it, or it is no use."""
    try:
        path = work_dir
        private.check_directory(path)
        path = work_dir / "lock"
        opened = private.open_own(path, os.O_RDWR | os.O_CREAT)
    except OSError as error:
        raise RecoveryError(
            f"the work directory {work_dir} cannot be used: {path}: {error.strerror}",
            hint="--work-dir must be a directory of the user of drill, to which nobody else writes",
        ) from error
    try:
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise RecoveryError(
                f"another drill runs in {work_dir}", hint="wait for it, or use another --work-dir"
            ) from error
        yield
    finally:
        os.close(opened)


class DrillWorkspace(Workspace):
    """The private directory of one drill, `drill-<id>` below --work-dir."""

    def __init__(
        self, work_dir: Path, begun: DrillMarker, *, server_user: int | None = None
    ) -> None:
        super().__init__(work_dir / f"drill-{begun.id}", _MARKER, server_user=server_user)
        self._begun = begun

    def make(self) -> None:
        """Make the directory with its marker. Raises RecoveryError."""
        self.make_with(as_fields(self._begun))

    def at(self, step: DrillStep, backup: str | None) -> None:
        """Note the step, for the next drill if this one is killed."""
        self.note(as_fields(replace(self._begun, step=step, backup=backup)))

    def remove(self, *, failed: bool) -> Path | None:
        """End all processes of the drill and delete its data; returns where failed logs are kept.

        An interrupt is raised when all is removed. Raises RecoveryError if something is left.
        """
        try:
            return _remove(self.directory, self._begun.id, failed=failed)
        except KeyboardInterrupt:  # a first SIGTERM; a second one ends the process at once
            if self.directory.is_dir():
                _remove(self.directory, self._begun.id, failed=True)
            raise


def clean_up(
    work_dir: Path, report: Callable[[DrillMarker], None], *, server_user: int | None = None
) -> list[Path]:
    """Remove what killed drills have left, the oldest first; returns what is unknown and stays.

    `server_user`: see `Workspace`.
    Each one is reported when its data are gone; if that raises, the next call reports it again.
    Needs the lock. Raises RecoveryError if something cannot be removed.
    """
    unknown, others = [], () if server_user is None else (server_user,)
    for directory in sorted(work_dir.glob("drill-*")):
        id_ = directory.name.removeprefix("drill-")
        if not BACKUP_ID.fullmatch(id_) or directory.is_symlink() or not directory.is_dir():
            continue
        if not private.is_own_directory(directory, others=others):
            unknown.append(directory)
            continue
        left = _read(directory, id_)
        if left is None:
            try:
                remove_unmarked(directory, _MARKER)
            except OSError:
                unknown.append(directory)
            continue
        _remove(directory, id_, failed=True, report=partial(report, left))
    return unknown


def _read(directory: Path, id_: str) -> DrillMarker | None:
    """What a marker says; None if there is none, or if it is of another directory."""
    try:
        marker = converted(json.loads(read_marker(directory / _MARKER)), DrillMarker)
    except (OSError, ValueError):
        return None
    return marker if marker.id == id_ else None


def _remove(
    directory: Path, id_: str, *, failed: bool, report: Callable[[], None] | None = None
) -> Path | None:
    if not end_all(id_):
        raise RecoveryError(
            f"processes of drill {id_} do not end", hint="does the disk hang? see ps and dmesg"
        )
    try:
        empty(directory, _MARKER)  # first the data: the disk may be full
        kept = _keep_logs(directory, id_) if failed else None
        if report is not None:
            report()
        remove(directory, _MARKER)
    except OSError as error:
        raise RecoveryError(
            f"{directory} cannot be removed: {error}", hint="remove it by hand"
        ) from error
    _forget_failures(directory.parent)
    return kept


def _keep_logs(directory: Path, id_: str) -> Path | None:
    """Move the logs of a failed drill to where they are kept; None if there are none."""
    logs = [directory / name for name in LOGS if (directory / name).exists()]
    if not logs:
        return None
    kept = directory.with_name(f"failed-{id_}")
    with suppress(FileExistsError):
        kept.mkdir(mode=0o700)
    private.check_inner(kept)
    with open(private.create(kept / _MARKER), "w") as file:  # noqa: PTH123 - a descriptor
        file.write(read_marker(directory / _MARKER))
    for log in logs:
        log.replace(kept / log.name)
    return kept


def _forget_failures(work_dir: Path) -> None:
    """Delete the logs of all failed drills but the newest."""
    folders = [
        path
        for path in sorted(work_dir.glob("failed-*"))
        if private.is_own_directory(path)
        and _read(path, path.name.removeprefix("failed-")) is not None
    ]
    for path in folders[:-_MOST_FAILED]:
        with suppress(OSError):
            shutil.rmtree(path)
