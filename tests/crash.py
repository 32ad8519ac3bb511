"""Deaths of a process: each thing that it does, and what outlives it before and after that.

A `Recorder` notes the points of one run, a `World` is the bucket and the source that it has, with
what was promised of them; both are put back to what they were at a point, as often as one likes.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Literal

from binlog2s3.archive.writers import Heartbeat
from binlog2s3.binlog.names import BinlogName
from tests.memory_store import Contents, MemoryStore
from tests.process import Clock, Process, Shown
from tests.promises import Kept, Place, Promises, chunk_at
from tests.streamer import LAYOUT, Source

CHANGES = {"put", "delete", "create_upload", "upload_part", "copy_part", "complete_upload",
           "abort_upload"}  # fmt: skip
FOLDER = b"/"

Fate = Literal["before", "after", "halfway", "late", "last"]


@dataclass(frozen=True, slots=True)
class State:
    """What outlives a process: bucket and spool; what the source has by then, what was told."""

    bucket: Contents
    files: dict[str, bytes]
    shown: dict[BinlogName, int]
    now: float
    moments: tuple[tuple[datetime, BinlogName, int], ...]
    told: Kept

    @property
    def same(self) -> object:
        """Equal for states that a start cannot tell apart."""
        uploads = {key: tuple(upload.parts) for key, upload in self.bucket.uploads.items()}
        return (
            frozenset((key, id(there)) for key, there in self.bucket.objects.items()),
            frozenset(uploads.items()),
            frozenset(self.files.items()),
            frozenset(self.shown.items()),
        )


@dataclass(slots=True)
class Point:
    """Something that a process does, and what there is before and after it.

    `act` is what a store may do later, `keys` what that is about.
    """

    what: str
    before: State
    after: State | None = None
    act: Callable[[], object] | None = None
    operation: str = ""
    keys: tuple[str, ...] = ()

    @property
    def changes(self) -> bool:
        return not self.operation or self.operation in CHANGES

    def fates(self) -> dict[Fate, State]:
        """How a process can die there: a question that is asked or not makes no difference."""
        assert self.after is not None
        found: dict[Fate, State] = {"before": self.before}
        if self.changes:
            found["after"] = self.after
        if self.act is not None and self.changes:
            found["late"] = found["last"] = self.before
        if not self.operation and (files := halfway(self.before.files, self.after.files)):
            found["halfway"] = replace(self.before, files=files)
        return found


def halfway(before: dict[str, bytes], after: dict[str, bytes]) -> dict[str, bytes] | None:
    """What a spool is like while it is changed; None where it is the one or the other."""
    files = dict(before)
    gone = [path for path in before if path not in after and before[path] != FOLDER]
    gone.sort(key=lambda path: path.endswith("run.json"))
    for path in gone[: (len(gone) + 1) // 2]:
        del files[path]
    for path, data in after.items():
        if path.endswith(".json") and before.get(path) != data:  # written beside, then renamed
            files[f"{path}.new"] = data[: len(data) // 2]
        elif data == FOLDER or len(before.get(path, b"")) == len(data):
            files[path] = data[: len(data) // 2] + before.get(path, data)[len(data) // 2 :]
    return files if files not in (before, after) else None


class World:
    """A bucket and a source, and what is promised of them; `broken` is what was found wrong."""

    def __init__(self, source: Source, parts: Sequence[int]) -> None:
        self.parts = parts
        self.store = MemoryStore(min_part_bytes=1)
        self.shown = Shown(source, Clock())
        self.promises = Promises(self.store, self.shown)
        self.store.on_acted = self.acted
        self.broken: list[BaseException] = []
        self._carried: dict[str, tuple[Heartbeat, ...]] = {}

    def acted(self, operation: str, keys: Sequence[str], *, live: bool = True) -> None:
        """A request was performed: nothing that was ever reported may be unreadable now.

        It is `live` unless who asked for it is dead.
        """
        if operation not in CHANGES:
            return
        try:
            self.promises.changed(keys)
            if operation == "put" and keys[0].startswith(LAYOUT.writers):
                if keys[0] not in self._carried:
                    self._carried[keys[0]] = tuple(self.beats()) if live else ()
                self.told(keys[0])
            elif operation == "put" and LAYOUT.is_of("standby", keys[0]):
                pass
            elif operation == "put" and keys[0].startswith(LAYOUT.live):
                self.ends_well(keys[0])
        except BaseException as error:
            self.broken.append(error)
            raise

    def ends_well(self, key: str) -> None:
        """A chunk ends where an event does, or a part."""
        found = chunk_at(key)
        assert found is not None
        place, chunk = found
        filled = any(chunk.end % part == 0 for part in self.parts)
        assert filled or chunk.end in self.shown.binlogs[place.name].ends, key

    def beats(self) -> Iterator[Heartbeat]:
        """What the writers say."""
        for key in self.store.objects:
            if key.startswith(LAYOUT.writers):
                yield Heartbeat.from_json(self.store.objects[key].data, key)

    def told(self, key: str) -> None:
        """What a heartbeat says is durable is so, and is no less than what its writer found."""
        beat = Heartbeat.from_json(self.store.objects[key].data, key)
        for other in self._carried.get(key, ()):
            if other.rank == beat.rank:
                continue
            if other.covered_until is not None and other.lineage == beat.lineage:
                assert beat.covered_until is not None, key
                assert beat.covered_until >= other.covered_until, key
            if other.durable is not None and beat.lineage == other.lineage:
                assert beat.durable is not None, key
                assert beat.durable.file_position >= other.durable.file_position, key
        if beat.lineage is not None:
            self.promise(beat, beat.lineage)

    def promise(self, beat: Heartbeat, lineage: str) -> None:
        """A place, and all that was committed by a moment."""
        places = [beat.durable.file_position] if beat.durable is not None else []
        if beat.covered_until is not None:
            passed = [place for at, *place in self.shown.moments if at <= beat.covered_until]
            places.append((passed[-1][0], passed[-1][1]))
        for name, offset in places:
            self.promises.promise_all(lineage, name, offset)
            for binlog in self.shown.binlogs:
                self.promises.still_there(Place(lineage, binlog))

    def remember(self, process: Process) -> None:
        """What a process believes, and has told its heartbeat."""
        coverage = process.tracking.coverage
        if coverage is not None:
            self.promises.remember(process.uploads, coverage, process.writer)

    def keep(self, directory: Path) -> State:
        files = {
            str(path.relative_to(directory)): path.read_bytes() if path.is_file() else FOLDER
            for path in sorted(directory.rglob("*"))
            if path.name != "lock"
        }
        self.spool_is_right(files)
        return State(
            self.store.contents(), files, dict(self.shown.sizes), self.shown.clock.now,
            tuple(self.shown.moments), self.promises.keep(),
        )  # fmt: skip

    def spool_is_right(self, files: dict[str, bytes]) -> None:
        """What the spool says that it has is the source's."""
        for path, data in files.items():
            folder, _, text = path.partition("/")
            if text.endswith(".json") or not text or f"{folder}/run.json" not in files:
                continue
            facts, name = json.loads(files[f"{folder}/run.json"]), BinlogName.parse(text)
            whole = text != facts["binlog"] or facts["position"] <= 4
            source = self.shown.binlogs[name]
            wanted = source.data if whole else source.from_position(facts["position"])
            assert data == wanted[: len(data)], path

    def restore(self, state: State) -> None:
        self.store.restore(state.bucket)
        self.shown.set(state.shown)
        self.shown.clock.now = state.now
        self.shown.moments = list(state.moments)
        self.promises.restore(state.told)
        self.broken = []
        self._carried = {}


class Recorder:
    """Notes each point of one run."""

    def __init__(self, world: World, directory: Path) -> None:
        self.world = world
        self.directory = directory
        self.points: list[Point] = []
        self._asked: list[Point] = []
        self.process: Process | None = None

    def now(self) -> State:
        if self.process is not None:
            self.world.remember(self.process)
        return self.world.keep(self.directory)

    def on_act(self, operation: str, keys: Sequence[str], act: Callable[[], object]) -> None:
        kind = self.process.requests.action if self.process is not None else ""
        point = Point(
            f"{kind} {operation} {kind_of(keys)}".strip(), self.now(), None, act, operation,
            tuple(keys),
        )  # fmt: skip
        self.points.append(point)
        self._asked.append(point)

    def on_acted(self, operation: str, keys: Sequence[str]) -> None:
        self.world.acted(operation, keys)
        point = self._asked.pop()
        point.after = self.now() if point.changes else point.before

    @contextmanager
    def local(self, what: str) -> Iterator[None]:
        """The spool is changed. What changes nothing is no point."""
        point = Point(what, self.now())
        self.points.append(point)
        yield
        point.after = self.now()
        if point.after.files == point.before.files and what != "child start":
            self.points.remove(point)


def kind_of(keys: Sequence[str]) -> str:
    """What lies under such a key."""
    signs = {
        LAYOUT.writers: "writer",
        LAYOUT.standbys: "standby",
        "lineage.json": "lineage",
        "/entries/": "entry",
        "/binlogs/": "binlog",
        LAYOUT.live: "chunk",
    }
    return next((kind for sign, kind in signs.items() if keys and sign in keys[0]), "")
