"""The spool: the directory that holds what is not archived yet.

Each run of mysqlbinlog writes into a directory of its own.

Law: no checked byte of an earlier run is cut off or overwritten. A file is deleted only if the
archive has it, or another copy has all of its bytes. A deletion is durable before anything relies
on it. One streamer holds the spool, by a lock that ends with its process. Its threads see changes
whole. Nothing that another user has put there is followed, read or written (`private`). An OSError
leaves here as a SpoolError with a hint.
"""

import errno
import fcntl
import json
import os
import re
import secrets
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import wraps
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

from binlog2s3 import private
from binlog2s3.binlog.names import BinlogName
from binlog2s3.binlog.scanner import MADE_UP_BYTES, made_up_size
from binlog2s3.config.stream import SpoolLimits
from binlog2s3.durable import sync_directory, sync_file, write_json
from binlog2s3.errors import DamageError, SpoolError
from binlog2s3.log import Log

_log = Log("spool")
_LOCK = "lock"
_MIN_FREE = 1 << 30
_LEAST_FREE = 1 << 20
_DEFAULT_LIMITS = SpoolLimits()
_MIN_FREE_PARTS = 20  # 5 %
_MOST_RESERVE = 256 << 20
_MAGIC_SIZE = 4
_BLOCK = 1 << 20
_RUN = "run.json"
_STAT_BLOCK = 512  # the unit of st_blocks, whatever the file system's blocks are
_CLAIM = "claim.json"
PROBE = "probe"
"""In place of a lineage, in a run.json: see `RunFacts.is_proved`."""
Rank = tuple[int, str]
"""A writer's generation and token; the greatest is the writer."""

_ELSEWHERE = "pass another directory with --spool"
_FULL = "free space there, but never delete run-*: it may be the only copy"
_HINTS: Mapping[int, str] = {
    errno.EPERM: "the spool and what is in it must belong to the user that streams, also if that "
    "is root",
    errno.ENOENT: "was it deleted, or its file system unmounted? put it back, or restart: what is "
    "missing in the bucket is fetched again",
    errno.EACCES: "this program's user must own the spool directory",
    errno.EEXIST: f"a file has this name: {_ELSEWHERE}",
    errno.ENOTDIR: f"a file has this name: {_ELSEWHERE}",
    errno.ENOSPC: f"{_FULL}; or {_ELSEWHERE}",
    errno.EDQUOT: f"the user's disk quota is exceeded: {_FULL}; or {_ELSEWHERE}",
    errno.EINVAL: "somebody else made it: look at it, and remove it",
    errno.ELOOP: "somebody else made it: look at it, and remove it",
    errno.EROFS: "its file system is mounted read-only (in a systemd unit: add it to "
    f"ReadWritePaths=); or {_ELSEWHERE}",
}
_RUN_DIRECTORY = re.compile(r"run-(\d{8})T(\d{12})Z-[0-9a-f]{4}")
P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """What a run of mysqlbinlog was started for. `lineage` is None until it is known.

    `position` is its --start-position in `binlog`, its first one.
    """

    source: str
    target: str
    server_uuid: str
    binlog: str
    position: int
    lineage: str | None = None

    @property
    def is_proved(self) -> bool:
        """Whether the run has shown that it continues what is known; else nothing is taken of it.

        A start discards one that has not, as it does one that only compared.
        """
        return self.lineage != PROBE


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """Bytes that the spool takes and that its file system has free, with the limits of both."""

    used: int
    free: int
    max_bytes: int | None
    min_free: int

    def short_of(self) -> str:
        """Which limits are exceeded, in one sentence; "" if the spool may grow."""
        wrong = []
        if self.max_bytes is not None and self.used > self.max_bytes:
            wrong.append(f"the spool takes {self.used} bytes, above {self.max_bytes} (max_bytes)")
        if self.free < self.min_free:
            wrong.append(
                f"the spool's file system has {self.free} bytes left, "
                f"below {self.min_free} (min_free_bytes)"
            )
        return "; ".join(wrong)

    def without(self, passing: int) -> "Room":
        """The same, without bytes that do not count, such as those of an incomplete event."""
        return replace(self, used=max(0, self.used - passing))

    @property
    def lacks_free_space(self) -> bool:
        """Whether the file system has too little free space, whatever the spool takes."""
        return self.free < self.min_free

    def has_room_again(self) -> bool:
        """Whether there is clearly more space than at the limits.

        Otherwise a spool at its limit would start mysqlbinlog again and again for a few bytes.
        """
        reserve = min(self.min_free // 4, _MOST_RESERVE)
        below_most = self.max_bytes is None or self.used * 4 <= self.max_bytes * 3
        return below_most and self.free >= self.min_free + reserve


@dataclass(frozen=True, slots=True)
class SpoolRun:
    """One run's directory.

    `freed`: of which files a program before 0.3 freed the beginning, which reads as zeros since
    then; the offset in the binlog and the one in the file up to which the bucket has it.
    """

    directory: Path
    facts: RunFacts
    freed: Mapping[str, tuple[int, int]] = field(default_factory=dict)

    def files(self) -> dict[BinlogName, Path]:
        """The files of the binlogs that are there now, by name."""
        files = {}
        with as_spool_error(self.directory), os.scandir(self.directory) as entries:
            for entry in entries:
                try:
                    files[BinlogName.parse(entry.name)] = Path(entry.path)
                except ValueError:
                    continue  # run.json
        return files

    def has(self, name: BinlogName) -> bool:
        """Whether the file of this binlog is there now. A backlog makes thousands of files."""
        path = self.directory / str(name)
        with as_spool_error(path):
            return path.exists()

    def file_of(self, name: BinlogName) -> "SpoolFile | None":
        """The file of a binlog that is there; None if its first byte has not come yet.

        Or if what came is not what was asked for.
        """
        path, start = self.directory / str(name), self.start_of(name)
        at: int | None = 0
        with as_spool_error(path):
            if str(name) in self.freed:
                at = self.freed[str(name)][1]
            elif start:
                with path.open("rb") as file:
                    head = file.read(MADE_UP_BYTES)
                try:
                    at = made_up_size(head, start)
                except DamageError:
                    at = None
        return SpoolFile(path, start, at) if at is not None else None

    def start_of(self, name: BinlogName) -> int:
        """The offset at which its file begins."""
        if str(name) in self.freed:
            return self.freed[str(name)][0]
        start = self.facts.position
        return start if str(name) == self.facts.binlog and start > _MAGIC_SIZE else 0


@dataclass(frozen=True, slots=True)
class SpoolFile:
    """A file with a binlog's bytes from `begin` on, which are in it from the offset `at` on."""

    path: Path
    begin: int
    at: int

    @property
    def end(self) -> int:
        """The offset in the binlog at its end, as it is now; the last event may be incomplete."""
        with as_spool_error(self.path):
            return self.begin + max(0, self.path.stat().st_size - self.at)

    def is_part_of(self, other: "SpoolFile") -> bool:
        """Whether the other file has all bytes of this one. Raises OSError."""
        ahead = self.begin - other.begin
        if ahead < 0 or other.end < self.end:
            return False
        with self.path.open("rb") as part, other.path.open("rb") as whole:
            part.seek(self.at)
            whole.seek(other.at + ahead)
            while block := part.read(_BLOCK):
                if block != whole.read(len(block)):
                    return False
        return True


def _alone(
    method: Callable[Concatenate["Spool", P], T],
) -> Callable[Concatenate["Spool", P], T]:
    """One thread at a time does this with a spool; none after it was closed."""

    @wraps(method)
    def alone(self: "Spool", /, *args: P.args, **kwargs: P.kwargs) -> T:
        with self.mutex:
            if self.is_closed:
                raise SpoolError(f"spool {self.directory} is closed")
            return method(self, *args, **kwargs)

    return alone


class Spool:
    """The spool directory, held by a lock from construction until `close`.

    It is of one `source` and of one `target`, the archive's URL. A run is live from `begin` to
    `end`: mysqlbinlog writes into its directory, which stays. Any thread may call its methods.
    `limits`: how much it may take, and what it leaves free.

    Raises SpoolError if it cannot be made, written to, is another user's, or is held by another
    streamer.
    """

    def __init__(
        self, directory: Path, limits: SpoolLimits = _DEFAULT_LIMITS, *, source: str, target: str
    ) -> None:
        self.directory = directory
        self.source = source
        self.target = target
        self._limits = limits
        self.mutex = threading.RLock()
        self.is_closed = False
        self._live: set[Path] = set()
        self.reading: Path | None = None  # a copy that is being compared and must stay
        with as_spool_error(directory):
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            private.check_directory(directory)
        with as_spool_error(directory / _LOCK):
            self._lock = private.open_own(directory / _LOCK, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            process = _written(self._lock)
            os.close(self._lock)
            named = f" (process {process})" if process else ""
            raise SpoolError(
                f"spool {directory} is in use by another streamer{named}",
                hint="each streamer needs a spool of its own: --spool",
            ) from error
        with as_spool_error(directory):
            os.ftruncate(self._lock, 0)
            os.pwrite(self._lock, f"{os.getpid()}\n".encode(), 0)

    def close(self) -> None:
        """Release the lock, after what another thread does at the moment."""
        with self.mutex:
            self.is_closed = True
            os.close(self._lock)

    @_alone
    def runs(self) -> list[SpoolRun]:
        """The runs, oldest first. Removes runs that died before they had a run.json.

        A directory that is not named like a run is not ours and stays.
        """
        runs = []
        with as_spool_error(self.directory):
            for path in run_directories(self.directory):
                with as_spool_error(path):
                    private.check_inner(path)
                run = read_run(path)
                if run is None:
                    _remove_half_made(path)
                else:
                    runs.append(run)
        return runs

    @_alone
    def begin(self, facts: RunFacts) -> SpoolRun:
        """Make a new, empty directory for a run, durable together with its run.json."""
        run = SpoolRun(self.directory / self._next_name(), facts)
        with as_spool_error(run.directory):
            run.directory.mkdir(mode=0o700)
            self.note(run)
            sync_directory(self.directory)
        self._live.add(run.directory)
        return run

    def started(
        self, server_uuid: str, binlog: BinlogName, position: int, start: Callable[[SpoolRun], T]
    ) -> tuple[SpoolRun, T]:
        """A new run, of which nothing is proved, and the mysqlbinlog that `start` starts for it.

        No run if that fails.
        """
        facts = RunFacts(
            source=self.source,
            target=self.target,
            server_uuid=server_uuid,
            binlog=str(binlog),
            position=position,
            lineage=PROBE,
        )
        run = self.begin(facts)
        try:
            return run, start(run)
        except Exception:
            self.discard(run)
            raise

    def _next_name(self) -> str:
        """A name after those of all runs: the time, unless the clock was set back."""
        number = int(f"{datetime.now(UTC):%Y%m%d%H%M%S%f}")
        with as_spool_error(self.directory):
            for path in self.directory.iterdir():
                if match := _RUN_DIRECTORY.fullmatch(path.name):
                    number = max(number, int("".join(match.groups())) + 1)
        digits = f"{number:020}"
        return f"run-{digits[:8]}T{digits[8:]}Z-{secrets.token_hex(2)}"

    @_alone
    def end(self, run: SpoolRun) -> None:
        """Note that mysqlbinlog writes no more into a run's directory."""
        self._live.discard(run.directory)

    def note(self, run: SpoolRun) -> None:
        """Write run.json, all of it or not at all."""
        self._write(run.directory / _RUN, asdict(run.facts))

    def note_claim(self, rank: Rank) -> None:
        """Record, before the claim, which writer this streamer is about to become."""
        of = {"source": self.source, "target": self.target}
        self._write(self.directory / _CLAIM, {**of, "generation": rank[0], "token": rank[1]})

    @staticmethod
    def _write(path: Path, fields: Mapping[str, object]) -> None:
        with as_spool_error(path):
            write_json(path, {"format": 1, **fields})

    def last_claim(self) -> Rank | None:
        """The writer that the streamer on this spool last was; None if of another source or target.

        A record that cannot be read is logged and counts as none. The start then waits until that
        writer has been silent for long enough.
        """
        path = self.directory / _CLAIM
        with as_spool_error(path):
            try:
                with open(private.open_own(path, os.O_RDONLY), "rb") as file:  # noqa: PTH123
                    data = file.read()
            except FileNotFoundError:
                return None
        try:
            claim = json.loads(data)
            if (claim["source"], claim["target"]) != (self.source, self.target):
                return None
            return (int(claim["generation"]), str(claim["token"]))
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
            _log.warning("the record of the last claim is damaged", path=path, error=error)
            return None

    @_alone
    def release(self, name: BinlogName, lineage: str, paths: Iterable[Path] = ()) -> int:
        """Delete every run's copy of a binlog of this lineage. Returns how many bytes this freed.

        Also the copies at `paths`, whose run may not have its lineage noted, and runs that have
        ended and have no binlogs. Call it only for archived binlogs.
        """
        freed, copies = 0, set(paths)
        for run in self.runs():
            if run.facts.lineage != lineage:
                continue
            copies.add(run.directory / str(name))
        for path in sorted(copies):
            if path != self.reading:
                freed += delete_file(path)
        self.sweep()
        return freed

    @_alone
    def delete(self, paths: Iterable[Path]) -> int:
        """Delete these files, and runs that have ended and have no binlogs.

        Returns how many bytes this freed. Call it only for what the bucket has.
        """
        freed = sum(delete_file(path) for path in paths)
        self.sweep()
        return freed

    @_alone
    def drop_prefixes(self) -> int:
        """Delete copies that are a part of another copy. Returns how many bytes this freed.

        Each start fetches the end of the open binlog again, so without this every restart would
        leave one more copy of it. What a program before 0.3 freed of a file is not compared.
        """
        copies: dict[tuple[str | None, BinlogName], list[SpoolFile]] = {}
        for run in reversed(self.runs()):  # of two equal ones the newer one stays
            for name in run.files():
                copy = run.file_of(name)
                if copy is not None:
                    copies.setdefault((run.facts.lineage, name), []).append(copy)
        freed = 0
        for group in copies.values():
            kept: list[SpoolFile] = []
            for copy in sorted(group, key=lambda copy: (copy.begin, -copy.end)):
                with as_spool_error(copy.path):
                    is_part = any(copy.is_part_of(other) for other in kept)
                if is_part:
                    freed += delete_file(copy.path)
                else:
                    kept.append(copy)
        return freed

    @_alone
    def sweep(self) -> None:
        """Remove the runs that have ended and have no binlog any more."""
        for run in self.runs():
            if run.directory not in self._live and not run.files():
                self.discard(run)

    @_alone
    def discard(self, run: SpoolRun) -> None:
        """Delete a run with all that is in it: its bytes are not of our history.

        The newest binlog is deleted first and run.json last, so that after a crash the next start
        finds the run as it was earlier.
        """
        for _, path in sorted(run.files().items(), reverse=True):
            with as_spool_error(path):
                path.unlink()
                sync_directory(run.directory)
        with as_spool_error(run.directory):
            shutil.rmtree(run.directory)
            sync_directory(self.directory)
        self._live.discard(run.directory)

    def cut(self, path: Path, end: int) -> None:
        """Cut off what is after `end` in a file whose mysqlbinlog has ended: it is fetched again.

        Call it only for an incomplete or damaged event. A missing file is no error.
        """
        with as_spool_error(path), suppress(FileNotFoundError):
            if path.stat().st_size > end:
                os.truncate(path, end)

    @_alone
    def sync(self) -> None:
        """Make everything in the spool durable, files and directories."""
        for run in self.runs():
            for path in run.files().values():
                with as_spool_error(path):
                    sync_file(path)
            sync_directory(run.directory)

    def check_room(self) -> None:
        """Raise SpoolError if there is too little space to begin.

        mysqlbinlog does not report it: if a flush of small events fails, it continues, with a hole
        in its file once there is space again.
        """
        if why := self.room().short_of():
            raise SpoolError(f"spool {self.directory}: {why}", hint=_HINTS[errno.ENOSPC])

    @_alone
    def used_bytes(self) -> int:
        """Bytes that the binlogs in the spool take on its disk."""
        with as_spool_error(self.directory):
            return _used_bytes(self.directory)

    @_alone
    def room(self) -> Room:
        """See `room_of`."""
        return room_of(self.directory, self._limits)


def room_of(directory: Path, limits: SpoolLimits) -> Room:
    """How much a spool takes and how much is free, with the limits. Raises SpoolError.

    At least 1 MiB is to be kept free, whatever was asked for: on a full disk nothing works.
    """
    with as_spool_error(directory):
        used, space = _used_bytes(directory), os.statvfs(directory)
    min_free = limits.min_free_bytes
    if min_free is None:
        min_free = default_min_free(space.f_blocks * space.f_frsize)
    return Room(
        used=used,
        free=space.f_bavail * space.f_frsize,
        max_bytes=limits.max_bytes,
        min_free=max(min_free, _LEAST_FREE),
    )


def holder(directory: Path) -> int | None:
    """The process that holds a spool, 0 if its id is not known; None if nobody does.

    Raises OSError.
    """
    try:
        lock = os.open(directory / _LOCK, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)  # a shared lock, released at once
    except BlockingIOError:
        return _written(lock)
    else:
        return None
    finally:
        os.close(lock)


def _written(lock: int) -> int:
    """The process that a lock file names; 0 if it names none."""
    text = os.pread(lock, 20, 0).decode("ascii", "replace").strip()
    return int(text) if text.isdigit() else 0


def run_directories(directory: Path) -> list[Path]:
    """The directories of a spool's runs, oldest first. Raises OSError."""
    return sorted(path for path in directory.iterdir() if _RUN_DIRECTORY.fullmatch(path.name))


def runs_in(directory: Path) -> list[SpoolRun]:
    """The runs of a spool that another process may hold; none if it does not exist.

    A run that it has just deleted is left out. Raises SpoolError and OSError.
    """
    if not directory.exists():
        return []
    return [run for path in run_directories(directory) if (run := read_run(path)) is not None]


def read_run(directory: Path) -> SpoolRun | None:
    """The run in a directory; None if it has no run.json.

    Raises SpoolError if that is damaged, OSError if it cannot be read.
    """
    path = directory / _RUN
    try:
        return _parse_run(directory, path.read_bytes())
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise SpoolError(
            f"{path} is damaged: {error}",
            hint="move that run's directory aside; the source still has the binlogs",
        ) from error


def check_spool(runs: Iterable[SpoolRun], source: str, target: str) -> None:
    """Raises SpoolError if the spool is of another source or bucket."""
    for run in runs:
        if (run.facts.source, run.facts.target) != (source, target):
            raise SpoolError(
                f"spool {run.directory.parent} holds binlogs of {run.facts.source} for "
                f"{run.facts.target}, not of {source} for {target}",
                hint="give each source and bucket a spool of its own: --spool",
            )


def _used_bytes(directory: Path) -> int:
    return sum(map(_used_by_run, run_directories(directory)))


def _used_by_run(directory: Path) -> int:
    """What a streamer deletes meanwhile takes nothing."""
    total = 0
    with suppress(FileNotFoundError), os.scandir(directory) as entries:
        for entry in entries:
            if not entry.name.startswith(_RUN):
                with suppress(FileNotFoundError):
                    total += allocated(entry)
    return total


def allocated(path: "Path | os.DirEntry[str]") -> int:
    """Bytes that a file takes on its disk. Raises OSError."""
    return path.stat().st_blocks * _STAT_BLOCK


def default_min_free(size: int) -> int:
    """How much of a file system of this size to leave free by default."""
    return max(_MIN_FREE, size // _MIN_FREE_PARTS)


def _parse_run(directory: Path, data: bytes) -> SpoolRun:
    """Parse a run.json. Raises ValueError, KeyError or TypeError."""
    document = json.loads(data)
    _number(document, "position")
    floors = document.get("floors", {})
    if not isinstance(floors, dict):
        raise TypeError(f"its floors are {floors!r:.40}")
    freed = {
        str(name): (_number(floor, "offset"), _number(floor, "at"))
        for name, floor in floors.items()
    }
    facts = RunFacts(**{key: document[key] for key in RunFacts.__slots__})
    return SpoolRun(directory, facts, freed)


def _number(document: Mapping[str, object], key: str) -> int:
    value = document[key]
    if type(value) is not int or value < 0:
        raise ValueError(f"its {key} is {value!r:.40}")
    return value


def _remove_half_made(path: Path) -> None:
    """Remove a run without a run.json: it died before mysqlbinlog started, so it is empty."""
    (path / f"{_RUN}.new").unlink(missing_ok=True)
    try:
        path.rmdir()
    except OSError as error:
        raise SpoolError(
            f"{path} holds something but has no {_RUN}",
            hint="move that directory aside; the source still has the binlogs",
        ) from error


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


def hint_of(error: OSError) -> str:
    """What to do about an error of the spool's file system."""
    return _HINTS.get(error.errno or 0, _ELSEWHERE)


@contextmanager
def as_spool_error(path: Path) -> Iterator[None]:
    """Raise an OSError as a SpoolError that names the path. A full disk is transient."""
    try:
        yield
    except OSError as error:
        raise SpoolError(
            f"spool: {path}: {(error.strerror or str(error)).lower()}",
            hint=hint_of(error),
            transient=error.errno in (errno.ENOSPC, errno.EDQUOT),
        ) from error
