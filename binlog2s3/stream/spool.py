"""The spool: the directory that holds what is not archived yet.

Place in the flow: each run of mysqlbinlog writes into a directory of its own below it, the tailer
reads there, the uploader deletes there what is archived.

Law: no checked byte that an earlier run wrote is cut off or overwritten; a file is deleted only
when the archive has it, or another copy that has all of its bytes; a deletion is made durable
before it is counted on. One streamer holds the spool, by a lock that ends with its process.
"""

import errno
import fcntl
import json
import os
import re
import secrets
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from binlog2s3.binlog.names import BinlogName
from binlog2s3.binlog.scanner import MADE_UP_BYTES, made_up_size
from binlog2s3.config.values import SpoolLimits
from binlog2s3.errors import DamageError, SpoolError
from binlog2s3.log import Log
from binlog2s3.stream.punch import allocated, punch

_log = Log("spool")
_LOCK = "lock"
_BLOCK = 1 << 20
_MIN_FREE = 1 << 30
_MIN_FREE_PARTS = 20  # 5 %
_MOST_RESERVE = 256 << 20
_MAGIC_SIZE = 4
_RUN = "run.json"
_CLAIM = "claim.json"
_RESERVE = "reserve"
_RESERVE_BYTES = 64 << 10
Rank = tuple[int, str]
"""A writer's generation and token; the greatest is the writer."""

_RUN_DIRECTORY = re.compile(r"run-\d{8}T\d{12}Z-[0-9a-f]{4}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Floor:
    """From where on a file of the spool can be read: an offset of the binlog, `at` in the file."""

    offset: int
    at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """What a run of mysqlbinlog was started for. `lineage` is None until it was known.

    `position` is its --start-position in `binlog`, its first one. `floors`, by binlog: what lies
    below was given back to the file system; it must never be read again, the bucket has it.
    """

    source: str
    target: str
    server_uuid: str
    binlog: str
    position: int
    lineage: str | None = None
    floors: Mapping[str, Floor] = field(default_factory=dict)

    @property
    def whole(self) -> bool:
        """Whether the file of the first binlog begins at the binlog's first byte, and has it."""
        return self.position <= _MAGIC_SIZE and self.binlog not in self.floors


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """What the spool takes and what is left of its file system, with the limits of both; bytes."""

    used: int
    free: int
    max_bytes: int | None
    min_free: int

    def short_of(self) -> str:
        """What there is not enough of, in one sentence; "" if the spool may grow."""
        wrong = []
        if self.max_bytes is not None and self.used > self.max_bytes:
            wrong.append(f"the spool takes {self.used} bytes, above {self.max_bytes} (max_bytes)")
        if self.free < self.min_free:
            wrong.append(
                f"the spool's file system has {self.free} bytes left, "
                f"below {self.min_free} (min_free_bytes)"
            )
        return "; ".join(wrong)

    @property
    def lacks_free_space(self) -> bool:
        """Whether it is the file system that has too little, whatever the spool takes."""
        return self.free < self.min_free

    def has_room_again(self) -> bool:
        """Whether there is so much room that it is worth going on: more than at the limits.

        Without the difference a spool at its limit would start mysqlbinlog for a few bytes at a
        time.
        """
        reserve = min(self.min_free // 4, _MOST_RESERVE)
        below_most = self.max_bytes is None or self.used * 4 <= self.max_bytes * 3
        return below_most and self.free >= self.min_free + reserve


@dataclass(frozen=True, slots=True)
class Run:
    """One run's directory."""

    directory: Path
    facts: RunFacts

    def files(self) -> dict[BinlogName, Path]:
        """The binlogs that are there now, by name."""
        found = {}
        with _as_spool_error(self.directory), os.scandir(self.directory) as entries:
            for entry in entries:
                try:
                    found[BinlogName.parse(entry.name)] = Path(entry.path)
                except ValueError:
                    continue  # run.json
        return found

    def end_of(self, name: BinlogName) -> int:
        """Up to which offset of this binlog its file goes; its last event may not be whole."""
        path = self.directory / str(name)
        with _as_spool_error(path):
            size = path.stat().st_size
            floor = self.facts.floors.get(str(name))
            if floor is not None:
                return floor.offset + max(0, size - floor.at)
            start = self.facts.position
            if str(name) != self.facts.binlog or start <= _MAGIC_SIZE:
                return size
            with path.open("rb") as file:
                head = file.read(MADE_UP_BYTES)
        try:
            made_up = made_up_size(head, start)
        except DamageError:
            made_up = 0
        return start + max(0, size - made_up) if made_up is not None else start


class Spool:
    """The spool directory, held by a lock from construction until `close`.

    Raises SpoolError if it cannot be made, written to, or is held by another streamer.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.reading: Path | None = None  # a copy that is only compared, and must stay for that
        with _as_spool_error(directory):
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = os.open(directory / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = self._holder()
            os.close(self._lock)
            raise SpoolError(
                f"spool {directory} is in use by another streamer{holder}",
                hint="each streamer needs a spool of its own: --spool",
            ) from error
        with _as_spool_error(directory):
            os.ftruncate(self._lock, 0)
            os.pwrite(self._lock, f"{os.getpid()}\n".encode(), 0)

    def close(self) -> None:
        """Give the lock back."""
        os.close(self._lock)

    def runs(self) -> list[Run]:
        """The runs that left something here, oldest first; half-made ones are removed.

        What does not have the name of a run is not ours and is left alone.
        """
        found = []
        with _as_spool_error(self.directory):
            for path in sorted(self.directory.iterdir()):
                if not _RUN_DIRECTORY.fullmatch(path.name):
                    continue
                try:
                    facts = _parse_facts((path / _RUN).read_bytes())
                except FileNotFoundError:
                    _remove_half_made(path)
                except (ValueError, KeyError, TypeError, RecursionError) as error:
                    raise SpoolError(
                        f"{path / _RUN} is damaged: {error}",
                        hint="move that run's directory aside; the source still has the binlogs",
                    ) from error
                else:
                    found.append(Run(path, facts))
        return found

    def begin(self, facts: RunFacts) -> Run:
        """A new, empty directory for a run, made durable with its run.json."""
        name = f"run-{datetime.now(UTC):%Y%m%dT%H%M%S%fZ}-{secrets.token_hex(2)}"
        run = Run(self.directory / name, facts)
        with _as_spool_error(run.directory):
            run.directory.mkdir(mode=0o700)
            self.note(run)
            _sync_directory(self.directory)
        self._keep_reserve()
        return run

    def note(self, run: Run) -> None:
        """Write run.json, whole or not at all; on a disk that is full in the reserve's place.

        Without this note nothing could be given back, and a full disk would stay full.
        """
        document = {"format": 1, **asdict(run.facts)}
        try:
            _write_whole(run.directory / _RUN, document)
        except SpoolError as error:
            if not error.transient or not (self.directory / _RESERVE).exists():
                raise
            (self.directory / _RESERVE).unlink()
            _write_whole(run.directory / _RUN, document)

    def _keep_reserve(self) -> None:
        """Hold a little room for `note`; where there is none, later."""
        path = self.directory / _RESERVE
        if path.exists():
            return
        try:
            path.write_bytes(b"-" * _RESERVE_BYTES)
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        except OSError:
            path.unlink(missing_ok=True)

    def note_claim(self, source: str, target: str, rank: Rank) -> None:
        """Record which writer this spool's streamer is about to become, before its claim."""
        claim = {"source": source, "target": target, "generation": rank[0], "token": rank[1]}
        _write_whole(self.directory / _CLAIM, {"format": 1, **claim})

    def last_claim(self, source: str, target: str) -> Rank | None:
        """The writer that this spool's streamer last was, if of this source in this archive.

        A record that cannot be read is logged and counts as none: the start then waits until that
        writer has been silent for long enough.
        """
        path = self.directory / _CLAIM
        with _as_spool_error(path):
            try:
                data = path.read_bytes()
            except FileNotFoundError:
                return None
        try:
            claim = json.loads(data)
            if (claim["source"], claim["target"]) != (source, target):
                return None
            return (int(claim["generation"]), str(claim["token"]))
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
            _log.warning("the record of the last claim is damaged", path=path, error=error)
            return None

    def release(self, name: BinlogName, lineage: str) -> int:
        """Delete every run's copy of a binlog of this lineage; the bytes that were freed.

        Runs that hold nothing any more are removed, but for the newest. Call it only for what the
        archive has.
        """
        freed = 0
        runs = self.runs()
        for run in runs:
            if run.facts.lineage != lineage:
                continue
            path = run.directory / str(name)
            if path != self.reading:
                freed += _delete(path)
        self.sweep(runs[:-1])
        return freed

    def delete(self, paths: Iterable[Path]) -> int:
        """Delete these files, and runs that hold nothing any more; the bytes that were freed.

        Call it only for what the bucket has.
        """
        freed = sum(_delete(path) for path in paths)
        self.sweep(self.runs()[:-1])
        return freed

    def drop_prefixes(self) -> int:
        """Delete copies that are byte for byte the beginning of another one; the bytes freed.

        Each start asks the source for the open binlog anew, so without this every restart would
        leave one more copy. Only files that begin at the binlog's first byte are compared: one
        that begins elsewhere, or whose beginning was given back, stays and lets no other go.
        """
        copies: dict[tuple[str | None, BinlogName], list[Path]] = {}
        for run in self.runs():
            for name, path in run.files().items():
                if run.facts.whole or str(name) != run.facts.binlog:
                    copies.setdefault((run.facts.lineage, name), []).append(path)
        freed = 0
        for paths in copies.values():
            with _as_spool_error(self.directory):
                paths.sort(key=lambda path: path.stat().st_size)
                longest = paths.pop()
                for path in paths:
                    if _is_prefix(path, longest):
                        freed += path.stat().st_size
                        path.unlink()
                        _sync_directory(path.parent)
        return freed

    def sweep(self, runs: list[Run]) -> None:
        """Remove those of these runs' directories that hold no binlog any more."""
        for run in runs:
            if not run.files():
                self.discard(run)

    def discard(self, run: Run) -> None:
        """Delete a run's directory with all that is in it: its bytes are not of our history.

        The newest binlog goes first and run.json last, so that a crash on the way leaves a run as
        it was earlier, which the next start judges alike.
        """
        for _, path in sorted(run.files().items(), reverse=True):
            with _as_spool_error(path):
                path.unlink()
                _sync_directory(run.directory)
        with _as_spool_error(run.directory):
            shutil.rmtree(run.directory)
            _sync_directory(self.directory)

    def give_back(self, path: Path, floor: Floor) -> None:
        """Give a binlog's whole blocks below the floor back; noted first, so never read again.

        Raises PunchUnsupportedError where the file system cannot: the spool goes on as it is.
        """
        with _as_spool_error(path):
            facts = _parse_facts((path.parent / _RUN).read_bytes())
        floors = {**facts.floors, path.name: floor}
        self.note(Run(path.parent, replace(facts, floors=floors)))
        punch(path, floor.at)

    def cut(self, path: Path, end: int) -> None:
        """Forget what lies behind `end` in a file whose writer has ended: it is fetched again.

        Only for what is no whole event, or was found damaged. A file that is gone is left alone.
        """
        with _as_spool_error(path), suppress(FileNotFoundError):
            if path.stat().st_size > end:
                os.truncate(path, end)

    def sync(self) -> None:
        """Make everything in the spool durable, files and directories."""
        for run in self.runs():
            for path in run.files().values():
                with _as_spool_error(path):
                    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                    try:
                        os.fsync(descriptor)
                    finally:
                        os.close(descriptor)
            _sync_directory(run.directory)

    def check_room(self, limits: SpoolLimits) -> None:
        """Raise SpoolError if there is no room to begin in.

        mysqlbinlog does not tell: a flush of small events that fails is ignored, it lives on and
        goes on with a hole in its file when there is room again.
        """
        if why := self.room(limits).short_of():
            raise SpoolError(f"spool {self.directory}: {why}", hint=_HINTS[errno.ENOSPC])

    def used_bytes(self) -> int:
        """Bytes that the binlogs in the spool take on its disk: a hole in a file takes none."""
        with _as_spool_error(self.directory):
            return sum(allocated(path) for run in self.runs() for path in run.files().values())

    def room(self, limits: SpoolLimits, passing: int = 0) -> Room:
        """How much the spool takes and how much is left, beside the limits.

        `passing`: bytes that do not count, as those of an event that is not whole yet.
        """
        used = max(0, self.used_bytes() - passing)
        with _as_spool_error(self.directory):
            space = os.statvfs(self.directory)
        min_free = limits.min_free_bytes
        if min_free is None:
            min_free = default_min_free(space.f_blocks * space.f_frsize)
        return Room(
            used=used,
            free=space.f_bavail * space.f_frsize,
            max_bytes=limits.max_bytes,
            min_free=min_free,
        )

    def _holder(self) -> str:
        text = os.pread(self._lock, 20, 0).decode("ascii", "replace").strip()
        return f" (process {text})" if text.isdigit() else ""


def default_min_free(size: int) -> int:
    """What to leave free of a file system of this size, where nothing else is asked for."""
    return max(_MIN_FREE, size // _MIN_FREE_PARTS)


def _parse_facts(data: bytes) -> RunFacts:
    """What a run.json says; those of older runs have no floors. Raises where it is damaged."""
    document = {"floors": {}, **json.loads(data)}
    if not isinstance(document["floors"], dict):
        raise TypeError(f"its floors are {document['floors']!r:.40}")
    floors = {
        str(name): Floor(offset=_number(floor, "offset"), at=_number(floor, "at"))
        for name, floor in document["floors"].items()
    }
    _number(document, "position")
    facts = {key: document[key] for key in RunFacts.__slots__}
    return RunFacts(**{**facts, "floors": floors})


def _number(document: Mapping[str, object], key: str) -> int:
    value = document[key]
    if type(value) is not int or value < 0:
        raise ValueError(f"its {key} is {value!r:.40}")
    return value


def _delete(path: Path) -> int:
    """Delete a file if it is there, durably; its size."""
    with _as_spool_error(path):
        try:
            size = path.stat().st_size
            path.unlink()
        except FileNotFoundError:
            return 0
        _sync_directory(path.parent)
        return size


def _write_whole(path: Path, document: Mapping[str, object]) -> None:
    """Write a JSON file, whole or not at all, and make it durable with its name."""
    with _as_spool_error(path):
        new = path.with_name(f"{path.name}.new")
        with new.open("w", encoding="utf-8") as file:
            json.dump(document, file)
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)
        _sync_directory(path.parent)


def _remove_half_made(path: Path) -> None:
    """Remove a run that died before its run.json: mysqlbinlog never started, it holds nothing."""
    (path / f"{_RUN}.new").unlink(missing_ok=True)
    try:
        path.rmdir()
    except OSError as error:
        raise SpoolError(
            f"{path} holds something but has no {_RUN}",
            hint="move that directory aside; the source still has the binlogs",
        ) from error


def _is_prefix(path: Path, longer: Path) -> bool:
    with path.open("rb") as one, longer.open("rb") as other:
        while block := one.read(_BLOCK):
            if block != other.read(len(block)):
                return False
    return True


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


_HINTS: Mapping[int, str] = {
    2: "was it deleted, or its file system unmounted? put it back, or start again: what the bucket "
    "lacks is fetched anew",
    13: "this program's user must own the spool directory",
    17: "something that is no directory is in its place: name another with --spool",
    20: "something that is no directory is in its place: name another with --spool",
    28: "make room on the spool's file system, but never delete run-*: it may be the only copy",
    30: "the spool's file system is mounted read-only",
    122: "the user's disk quota is exceeded",
}


@contextmanager
def _as_spool_error(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise SpoolError(
            f"spool: {path}: {(error.strerror or str(error)).lower()}",
            hint=_HINTS.get(error.errno or 0, "check --spool"),
            transient=error.errno in (errno.ENOSPC, errno.EDQUOT),
        ) from error
