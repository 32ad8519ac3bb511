"""Every crash point of a scripted run: whatever is on its way, nothing is lost and all comes home.

A run of the daemon's own code is recorded once: every request to the store, every change of the
spool, every start of mysqlbinlog. At each of these a process dies: before, after, or so that the
act is performed only when another process has begun. What is in the bucket and the spool then is
what the next process finds, on the same machine or on an empty one, alone or beside another writer.

The full run tries all of them. The gate draws some, anew each time: a failure names its CRASH_SEED,
which draws the same again.
"""

import itertools
import json
import random
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from itertools import takewhile
from pathlib import Path

import pytest

from binlog2s3.archive.catalog import Catalog
from binlog2s3.archive.chunks import Chunk
from binlog2s3.archive.parts import Grid
from binlog2s3.binlog.names import BinlogName
from binlog2s3.binlog.scanner import made_up_size
from binlog2s3.errors import StoreError, SupersededError
from tests.crash import CHANGES, FOLDER, Fate, Point, Recorder, State, World
from tests.documents import BEAT
from tests.process import Process
from tests.promises import Place
from tests.sampling import all_of_it, crash_seed
from tests.streamer import FIRST, LAYOUT, Source

PART, OTHER_PART = 4400, 2900
GROWS, BACKLOG, SMALL, OPEN = (BinlogName(FIRST.prefix, number) for number in range(1, 5))
OLD = replace(
    BEAT, generation=1, token="00000001", source=LAYOUT.source, state="stopped", lineage=None,
    durable=None, server=None, covered_until=None,
)  # fmt: skip

WANTED = {
    "list writer", "get writer", "put writer", "delete writer", "put lineage", "Look head binlog",
    "Flush put chunk", "PutChunk put chunk", "Merge put chunk", "DeleteChunks delete chunk",
    "CreateUpload create_upload binlog", "CopyPart copy_part binlog",
    "PutPart upload_part binlog", "Complete complete_upload binlog", "PutWhole put binlog",
    "Verify head binlog", "PutEntry put entry", "Clear delete chunk", "begin", "note",
    "child start", "first byte", "discard", "release", "delete",
    "list standby", "note the claim",
}  # fmt: skip
WITH_HALVES = {"note the claim", "begin", "note", "discard", "delete"}

FATES: tuple[tuple[Fate, ...], ...] = (("before", "after", "halfway"), ("late",), ("last",))
RESTARTS = [
    pytest.param(kept, beside, id=f"{'same' if kept else 'empty'}-{'two' if beside else 'alone'}")
    for kept in (True, False)
    for beside in (False, True)
]


@cache
def written() -> Source:
    """Four binlogs: two of several parts, a small one, and one that stays open."""
    source = Source()
    for count, length, end in ((24, 300, "rotate"), (9, 1200, "stop"), (2, 30, "rotate")):
        for _ in range(count):
            source.write(length)
        source.rotate(end)
    for _ in range(6):
        source.write(40)
    return source


def script(process: Process) -> Iterator[None]:
    """A life in which everything happens once."""
    shown = process.shown

    def rounds(count: int, seconds: float = 1.1) -> Iterator[None]:
        for _ in range(count):
            while process.child.fetch():
                pass
            process.clock.now += seconds
            yield

    process.child.fetch(1)
    yield
    yield from rounds(2)
    process.look()
    process.beat()
    for _ in range(18):  # a flush each, and one more for all of them
        shown.show(GROWS, 1)
        yield from rounds(1)
    yield from rounds(2)
    process._store.fail_next("put", "before", StoreError("again", transient=True))
    shown.show(GROWS, 1)
    yield from rounds(3)  # the store is looked at: nobody else can have put the lineage's first
    shown.show(GROWS, 21)  # full chunks
    yield from rounds(3)
    process.beat()
    process.runs.pressure.paused = True  # room is wanted, and mysqlbinlog begins again
    process.child.status = 1
    yield
    process.child.fetch(1)
    yield
    yield from rounds(2)
    shown.show(GROWS)
    for name in (BACKLOG, SMALL):
        shown.show(name)
    shown.show(OPEN, 3)
    process.look()
    yield from rounds(12)
    process.look()
    process.beat(audit=True)
    yield from rounds(2)
    process.beat(audit=True)
    yield from rounds(1)
    shown.show(OPEN, 2)
    yield from rounds(2)


def memory() -> Path | None:
    """Where making a directory durable costs nothing, if there is such a place."""
    place = Path("/dev/shm")
    return place if place.is_dir() else None


@cache
def recording() -> tuple[list[Point], World]:
    """The points of the scripted run."""
    world = World(written(), (PART, OTHER_PART))
    with tempfile.TemporaryDirectory(dir=memory()) as folder:
        directory = Path(folder, "spool")
        directory.mkdir()
        world.store.put(LAYOUT.writer(*OLD.rank), OLD.to_json())
        world.shown.show(GROWS, 3)
        recorder = Recorder(world, directory)
        world.store.on_act, world.store.on_acted = recorder.on_act, recorder.on_acted

        def life(process: Process) -> Iterator[None]:
            recorder.process = process
            yield from script(process)

        process = Process(
            store=world.store, shown=world.shown, directory=directory, part=PART,
            token="77777777", life=life, noting=recorder.local,
        )  # fmt: skip
        assert process.run() == 0
        process.close()
    world.store.on_act, world.store.on_acted = lambda *_: None, world.acted
    assert not world.broken
    return recorder.points, world


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Deaths that leave the same behind, and who begins after them."""

    deaths: tuple[tuple[Point, Fate], ...]
    state: State
    kept: bool
    beside: bool
    number: int

    def __str__(self) -> str:
        told = dict.fromkeys(f"{fate} {point.what}" for point, fate in self.deaths)
        return f"case {self.number}: {', '.join(told)}"

    @property
    def fate(self) -> Fate:
        """How it died; late and last have cases of their own."""
        return self.deaths[0][1]

    @property
    def late(self) -> Point | None:
        """What is performed only after the death."""
        return self.deaths[0][0] if self.fate in ("late", "last") else None


def cases(fates: Sequence[Fate], *, kept: bool, beside: bool) -> list[Case]:
    """Every point at which a process can die so, but once where a start cannot tell them apart."""
    points, _ = recording()
    groups: dict[object, list[tuple[Point, Fate]]] = {}
    for number, point in enumerate(points):
        for fate, state in point.fates().items():
            if fate in fates:
                same = number if fate in ("late", "last") else state.same
                groups.setdefault(same, []).append((point, fate))
    return [
        Case(
            deaths=tuple(group),
            state=group[-1][0].fates()[group[-1][1]],  # what was told only grows
            kept=kept,
            beside=beside,
            number=number,
        )
        for number, group in enumerate(groups.values())
    ]


def kinds(found: Iterable[Case]) -> set[str]:
    """The kinds of points, and of deaths."""
    return {kind for case in found for point, fate in case.deaths for kind in (point.what, fate)}


def drawn(found: Sequence[Case], seed: int) -> list[Case]:
    """Some of them, by chance, with each kind of point and of death among them."""
    chosen: list[Case] = []
    told = f"{seed} {found[0].kept} {found[0].beside} {found[0].fate}"
    for case in random.Random(told).sample(found, len(found)):
        if not kinds([case]) <= kinds(chosen):
            chosen.append(case)
    return chosen


def to_try(found: Sequence[Case]) -> Sequence[Case]:
    """What this run tries of them."""
    return found if all_of_it() else drawn(found, crash_seed())


class Afterwards:
    """What follows a death: one process, or two, until all has come home."""

    def __init__(self, world: World, case: Case, folder: Path) -> None:
        self.world = world
        self.case = case
        self.folder = folder
        self.files = case.state.files
        self.late = case.late
        self.requests = 0
        self.nested = False
        self.home = False
        world.restore(case.state)

    def unfold(self) -> None:
        """Begin again until it comes home: a start gives way to a writer that does not work."""
        mine = self.folder / "mine"
        mine.mkdir()
        if self.case.kept:
            for path, data in self.files.items():
                if data == FOLDER:
                    (mine / path).mkdir(parents=True)
                else:
                    (mine / path).write_bytes(data)
        for _ in range(3):
            with suppress(SupersededError):
                self.one_or_two(mine)
            if self.home:
                return
        raise AssertionError("no process comes to its end")

    def one_or_two(self, mine: Path) -> None:
        first, second = (mine, PART), (self.folder / "other", OTHER_PART)
        if self.case.beside and self.case.number % 2:
            first, second = second, first
        outer = self.process(*first, self.alone if not self.case.beside else self.under)
        self.second, self.outer = second, outer
        try:
            status = outer.run()
            assert status == 0
        except SupersededError:
            if not self.case.beside:
                raise
        finally:
            outer.close()

    def process(
        self, directory: Path, part: int, life: Callable[[Process], Iterator[None]]
    ) -> Process:
        directory.mkdir(exist_ok=True)
        odd = self.case.number % 4 < 2
        process = Process(
            store=self.world.store, shown=self.world.shown, directory=directory, part=part,
            token="11111111" if odd else "eeeeeeee", life=life, last_first=odd,
        )  # fmt: skip
        process.requests.before = lambda: self.before_request(process)
        return process

    def before_request(self, process: Process) -> None:
        """Others may act between any two requests."""
        self.requests += 1
        self.world.remember(process)
        if self.case.fate == "late" and self.requests > self.case.number % 12:
            self.act_late()
        if process is not self.outer and not self.nested and self.requests % 3 == 0:
            self.let_outer(process)

    def act_late(self) -> None:
        """What the dead one has asked for is performed."""
        point, self.late = self.late, None
        if point is not None and point.act is not None:
            with suppress(StoreError):
                point.act()
            self.world.acted(point.operation, point.keys, live=False)

    def let_outer(self, process: Process) -> None:
        """The other one, which began before, does a round; its heartbeat comes at some time."""
        self.nested = True
        self.outer.clock.now = process.clock.now
        if not self.outer.ended:
            self.outer.child.fetch(2000)
            self.outer.round()
            self.world.remember(self.outer)
        if not self.outer.ended and self.requests > self.case.number % 50 + 10:
            self.outer.beat()
        self.nested = False

    def under(self, outer: Process) -> Iterator[None]:
        """It begins; another one does too, and lives on."""
        outer.child.fetch(2000)
        yield
        inner = self.process(*self.second, self.alone)
        try:
            assert inner.run() == 0
        finally:
            inner.close()

    def alone(self, process: Process) -> Iterator[None]:
        """The source goes on to its end, and all comes home."""
        for number in itertools.count():
            if number == 3:
                process.beat(audit=True)
            if number == 4:
                self.world.shown.show_all()
            more = process.child.fetch(3000)
            process.look()
            process.clock.now += 0.6
            yield
            self.world.remember(process)
            if number > 4 and not more and process.has_all:
                break
        self.act_late()
        if process is not self.outer and not self.outer.ended:
            self.outer.beat()  # at the latest: what it puts until then is swept
        for _ in range(2):
            process.beat(audit=True)
            yield
            while not process.has_all:
                process.clock.now += 0.6
                yield
        self.is_home(process)

    def is_home(self, process: Process) -> None:
        promises, lineage = self.world.promises, process.tracking.lineage
        assert lineage is not None
        promises.objects_are_right()
        for place in promises.promised:
            promises.still_there(place)
        for name in (GROWS, BACKLOG, SMALL):
            promises.is_home(Place(lineage.id, name))
        promises.is_durable(Place(lineage.id, OPEN), Grid(process._config.s3.part_size))
        for place in promises.left_uploads():
            assert self.case.fate == "last", place
        here = [path for run in process._spool.runs() for path in run.files().values()]
        assert {path.name for path in here} == {str(OPEN)}
        writers = [key for key in self.world.store.objects if key.startswith(LAYOUT.writers)]
        assert writers == [LAYOUT.writer(*process.writer._me.rank)]
        for key in self.world.store.objects:
            known = key in writers or key.startswith(LAYOUT.turns) or key.endswith("/lineage.json")
            assert lineage.id in key or known, key
        turn = Catalog(self.world.store, LAYOUT).turn()
        assert turn is not None
        assert turn.lineage == lineage.id
        self.home = True


def test_the_script_has_everything() -> None:
    """Each kind of request, of change of the spool, and what begins and ends a process."""
    points, _ = recording()
    found = Counter(point.what for point in points)
    assert found.keys() >= WANTED, WANTED - found.keys()
    assert found["Flush put chunk"] > 16
    assert found["release"] == found["PutEntry put entry"] == 3
    assert found["begin"] == found["child start"] == 2


def test_every_point_is_tried() -> None:
    """The cases are as many as the recording says.

    Four deaths at each request that changes something, one where a question is asked, two or three
    where the spool changes.
    """
    points, _ = recording()
    stored = sum(point.operation in CHANGES for point in points)
    asked = sum(bool(point.operation) for point in points) - stored
    local = len(points) - stored - asked
    halved = [point.what for point in points if "halfway" in point.fates()]
    assert set(halved) == WITH_HALVES
    for restart in RESTARTS:
        kept, beside = restart.values
        tried = [c.deaths for fates in FATES for c in cases(fates, kept=kept, beside=beside)]
        deaths = [(id(point), fate) for those in tried for point, fate in those]
        assert len(deaths) == len(set(deaths)) == 4 * stored + asked + 2 * local + len(halved)
    assert stored > 45


def test_enough_is_tried() -> None:
    """All of it in the full run. In the gate each kind of point and of death, at each restart."""
    every, tried = 0, 0
    for restart, fates in itertools.product(RESTARTS, FATES):
        kept, beside = restart.values
        found = cases(fates, kept=kept, beside=beside)
        chosen = to_try(found)
        assert kinds(chosen) == kinds(found) >= {*fates}
        assert [case.number for case in to_try(found)] == [case.number for case in chosen]
        every, tried = every + len(found), tried + len(chosen)
    assert tried == every if all_of_it() else tried >= 150
    assert every > 750


@pytest.mark.parametrize("fates", FATES, ids=("dies", "late", "last"))
@pytest.mark.parametrize(("kept", "beside"), RESTARTS)
def test_a_death_at_every_point(fates: Sequence[Fate], *, kept: bool, beside: bool) -> None:
    """Nothing that was reported durable is ever unreadable, nothing archived changes, all is home.

    A request may be performed late: once others are at work, or last of all. Where a start finds
    the same after several deaths, it is tried once.
    """
    _, world = recording()
    for case in to_try(cases(fates, kept=kept, beside=beside)):
        with tempfile.TemporaryDirectory(dir=memory()) as folder:
            try:
                Afterwards(world, case, Path(folder)).unfold()
                assert not world.broken, world.broken
            except BaseException as error:
                error.add_note(str(case) if all_of_it() else f"{case}; CRASH_SEED={crash_seed()}")
                raise


@pytest.mark.parametrize("beside", [False, True])
def test_a_death_of_a_program_before_0_3_that_had_freed_what_it_could(*, beside: bool) -> None:
    """Its full spool has zeros below a floor; this program is what begins after the death."""
    _, world = recording()
    floors = 0
    for case in to_try(cases(("before", "after"), kept=True, beside=beside)):
        with tempfile.TemporaryDirectory(dir=memory()) as folder:
            afterwards = Afterwards(world, case, Path(folder))
            files, freed = freed_by_an_old_program(case.state)
            afterwards.files, floors = files, floors + freed
            try:
                afterwards.unfold()
                assert not world.broken, world.broken
            except BaseException as error:
                error.add_note(str(case) if all_of_it() else f"{case}; CRASH_SEED={crash_seed()}")
                raise
    assert floors > 5 or not all_of_it()


def freed_by_an_old_program(state: State) -> tuple[dict[str, bytes], int]:
    """The spool without the full chunks that the bucket has of it; how many floors there are."""
    there: dict[str, set[tuple[int, int]]] = {}
    for key in state.bucket.objects:
        place = LAYOUT.parsed(key)
        if place is not None and place.kind == "chunk":
            chunk = Chunk.parse(key.rpartition("/")[2])
            there.setdefault(str(place.binlog), set()).add((chunk.begin, chunk.end))
    files, freed = dict(state.files), 0
    for path, data in state.files.items():
        run, _, name = path.rpartition("/")
        if data == FOLDER or name not in there:
            continue
        facts = json.loads(files[f"{run}/run.json"])
        start = facts["position"] if facts["binlog"] == name and facts["position"] > 4 else 0
        made_up = made_up_size(data, start) if start else 0
        if made_up is None:
            continue
        parts = Grid(PART).parts(start + len(data) - made_up)
        ends = [(part.begin, part.end) for part in parts]
        floor = max((end for _, end in takewhile(there[name].__contains__, ends)), default=0)
        if floor <= start:
            continue
        at = floor - start + made_up
        facts["floors"] = {**facts.get("floors", {}), name: {"offset": floor, "at": at}}
        files[f"{run}/run.json"] = json.dumps(facts).encode()
        files[path] = bytes(at) + data[at:]
        freed += 1
    return files, freed
