"""Runs of mysqlbinlog: the table of states, what an error teaches, and a whole loop that runs."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import replace
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from binlog2s3.archive.catalog import Catalog
from binlog2s3.archive.chunks import Chunk
from binlog2s3.archive.writers import Position
from binlog2s3.binlog.checksum import crc64nvme
from binlog2s3.binlog.gtid import GtidSet
from binlog2s3.binlog.names import FilePosition
from binlog2s3.binlog.scanner import MOST_ACCEPTED
from binlog2s3.errors import (
    AbortedError,
    DamageError,
    ElsewhereError,
    ForkError,
    LeftOutError,
    SourceError,
    TakenError,
)
from binlog2s3.stream.compare import Common
from binlog2s3.stream.continuation import KnownEnd
from binlog2s3.stream.resume import Doubt
from binlog2s3.stream.run import NEXT, BeingRead, Event, Memory, Runs, State
from binlog2s3.stream.spool import RunFacts
from tests.binlog_writer import UUID_A
from tests.memory_store import MemoryStore
from tests.process import Clock, Process, Shown, config
from tests.streamer import FIRST, HISTORY, LAYOUT, LINEAGE, Source
from tests.unit.stream.builders import spool_in

SECOND = FIRST.next()
READABLE, UNREADABLE = BeingRead(FIRST, is_readable=True), BeingRead(FIRST, is_readable=False)


# The table


def reached(start: State, without: Iterable[tuple[State, Event]] = ()) -> set[State]:
    """The states that follow this one, by whatever happens."""
    left = {step: then for step, then in NEXT.items() if step not in without}
    found, new = set[State](), {start}
    while new:
        new = {then for (state, _), then in left.items() if state in new} - found
        found |= new
    return found


RUNNING = {State.COMPARING, State.CONFIRMING, State.READING}
WAITING = {State.MAKING_ROOM, State.BRINGING_IN, State.ASKING}
ON = {
    State.MAKING_ROOM: {Event.DONE: State.BRINGING_IN},
    State.BRINGING_IN: {Event.DONE: State.ASKING},
    State.ASKING: {Event.SENDS_AGAIN: State.COMPARING, Event.SENDS_NEW: State.CONFIRMING},
    State.COMPARING: {Event.SAME: State.READING, Event.SAME_BEGINNING: State.CONFIRMING},
    State.CONFIRMING: {Event.CONFIRMED: State.READING},
    State.READING: {Event.GAINED: State.READING},
    State.ENDING: {Event.DONE: State.RESTING},
    State.RESTING: {Event.DONE: State.MAKING_ROOM},
}


@pytest.mark.parametrize("event", Event)
@pytest.mark.parametrize("state", State)
def test_what_leads_where(state: State, event: Event) -> None:
    """Every state with every event: what cannot happen there is a defect, and nothing is guessed.

    Nothing else is changed by it but how many runs have brought nothing.
    """
    expected = ON[state].get(event)
    if event is Event.FAILED and state in RUNNING | WAITING:
        expected = State.ENDING if state in RUNNING else State.RESTING
    if event is Event.FULL and state in RUNNING:
        expected = State.ENDING
    before = Memory(
        state=state, failures=3, at=FilePosition(FIRST, 7), refusals=1, stalls=2,
        doubt=Doubt(why="two histories"), damage=(FilePosition(FIRST, 9), "torn"),
        accepted={FIRST: frozenset({9})},
    )  # fmt: skip
    if expected is None:
        with pytest.raises(KeyError):
            before.after(event)
        return
    after = before.after(event)
    failures = {(State.MAKING_ROOM, Event.DONE): 4, (State.READING, Event.GAINED): 0}
    assert after == replace(before, state=expected, failures=failures.get((state, event), 3))


def test_nothing_is_read_before_it_is_proved() -> None:
    """Known bytes that came again, or the same bytes on a new connection: no other way leads in."""
    proofs = {(State.COMPARING, Event.SAME), (State.CONFIRMING, Event.CONFIRMED)}
    assert {step for step, then in NEXT.items() if then is State.READING} == {
        *proofs,
        (State.READING, Event.GAINED),
    }
    assert State.READING not in reached(State.MAKING_ROOM, without=proofs)


@pytest.mark.parametrize("state", State)
def test_an_error_teaches_the_same_in_each_state(state: State) -> None:
    """An upload shows it whenever it comes."""
    errors = [ForkError("f"), ElsewhereError("e"), TakenError("t"), SourceError("s"), damage()]
    for error, seen in product(errors, [READABLE, UNREADABLE, None]):
        expected = replace(Memory().learned(error, seen), state=state)
        assert Memory(state=state).learned(error, seen) == expected


# What an error teaches: the table of `Memory.learned`, line by line


def damage(offset: int = 120, what: str = "wrong CRC32") -> DamageError:
    return DamageError(f"/spool/run-1/b.000001: {what}", offset=offset)


def after(memory: Memory, *errors: Exception, seen: BeingRead | None = READABLE) -> Memory:
    for error in errors:
        memory = memory.learned(error, seen)
    return memory


@pytest.mark.parametrize(
    ("error", "doubt"),
    [
        # what is proved is kept; nothing is read on before the bytes were compared
        (ElsewhereError("went on"), Doubt(why="went on")),
        # the next run begins a lineage behind them
        (LeftOutError("without a binlog"), Doubt(why="without a binlog", kind="left out")),
        (AbortedError("ended"), Doubt(why="ended", kind="aborted")),
        # what the run brought is of another history than what is known
        (ForkError("other bytes"), Doubt(why="other bytes")),
        # nothing is forgotten and nothing compared: the bytes are the source's
        (TakenError("taken"), Doubt(why="taken", kind="taken")),
        # the next run tries the same again
        (SourceError("gone away"), None),
    ],
)
def test_what_is_doubted(error: Exception, doubt: Doubt | None) -> None:
    """And nothing else is remembered of it."""
    assert Memory().learned(error, READABLE) == Memory(doubt=doubt)


def test_damage_is_read_again_and_accepted_the_second_time() -> None:
    """The first time it may be the spool's disk; twice the same is what the source has."""
    once = Memory().learned(damage(), READABLE)
    assert (once.accepted_in(FIRST), once.doubt) == (frozenset(), None)
    twice = once.learned(damage(), READABLE)
    assert twice.accepted_in(FIRST) == {120}
    assert twice.accepted_in(SECOND) == frozenset()
    assert twice.learned(damage(), READABLE).refusals == 1


@pytest.mark.parametrize("other", [damage(offset=121), damage(what="broken chain")])
def test_other_damage_is_not_the_same_again(other: DamageError) -> None:
    """Another offset, or another fault, may be chance as well."""
    memory = after(Memory(), damage()).learned(other, READABLE)
    assert memory.accepted_in(FIRST) == frozenset()


def test_not_too_much_is_accepted() -> None:
    """A binlog with hundreds of damaged events is no binlog."""
    full = Memory(accepted={FIRST: frozenset(range(MOST_ACCEPTED))})
    memory = after(full, damage(9999), damage(9999))
    assert (len(memory.accepted_in(FIRST)), memory.refusals) == (MOST_ACCEPTED, 2)


def test_a_binlog_that_cannot_be_read_at_all() -> None:
    """After the second time the history may continue after it."""
    once = after(Memory(), damage(4), seen=UNREADABLE)
    assert once.doubt is None
    twice = after(once, damage(4), seen=UNREADABLE)
    assert twice.doubt is not None
    assert (twice.doubt.kind, twice.doubt.unreadable) == ("refused", FIRST)


@pytest.mark.parametrize("error", [damage(), SourceError("purged", unservable=True)])
def test_refusals_are_counted_at_one_place(error: Exception) -> None:
    """The second means to compare, the third that the source does not give it."""
    memory = Memory().asked_at(FilePosition(FIRST, 100)).learned(error, None)
    assert memory.doubt is None
    memory = after(memory.asked_at(FilePosition(FIRST, 100)), error, seen=None)
    assert memory.doubt is not None
    assert memory.doubt.kind == "other"
    again = after(memory.asked_at(FilePosition(FIRST, 100)), error, seen=None)
    assert again.doubt is not None
    assert again.doubt.kind == "refused"
    elsewhere = after(memory.asked_at(FilePosition(FIRST, 200)), error, seen=None)
    assert (elsewhere.refusals, elsewhere.doubt) == (1, None)


READ_ON = ["forget current"]
FORGOTTEN = ["forget fresh", "discard"]


@pytest.mark.parametrize("runs", [True, False])
@pytest.mark.parametrize(
    ("error", "seen", "done"),
    [
        (ElsewhereError("went on"), READABLE, ["go back"]),
        (LeftOutError("without a binlog"), READABLE, ["go back"]),
        (AbortedError("ended itself"), READABLE, ["go back"]),
        (TakenError("taken"), READABLE, []),
        (ForkError("other bytes"), READABLE, FORGOTTEN),
        (ForkError("other bytes"), None, FORGOTTEN),
        (ForkError("other bytes", binlog=str(SECOND)), None, [f"forget from {SECOND}", *FORGOTTEN]),
        (damage(), READABLE, READ_ON),
        (damage(), UNREADABLE, READ_ON),
        (damage(), None, []),
        (SourceError("purged", unservable=True), READABLE, []),
    ],
)
def test_what_becomes_of_what_was_read(
    error: Exception, seen: BeingRead | None, done: list[str], *, runs: bool
) -> None:
    """Between two runs there is nothing of a run to forget."""
    did: list[str] = []
    current = SimpleNamespace(rewind=lambda: False)
    names = {id(current): "current"}
    tracking = SimpleNamespace(
        go_back=lambda: did.append("go back"),
        forget=lambda track: did.append(f"forget {names.get(id(track), track)}"),
        forget_from=lambda binlog: did.append(f"forget from {binlog}"),
        last=None,
    )
    spool = SimpleNamespace(discard=lambda _: did.append("discard"))
    stand_in: Any = SimpleNamespace(memory=Memory(), _tracking=tracking, _spool=spool)
    run: Any = SimpleNamespace(
        seen=seen, is_over=False, fresh=["fresh"], run=None,
        tailer=SimpleNamespace(current=current),
    )  # fmt: skip
    Runs._learn(stand_in, error, run if runs else None)
    assert did == [what for what in done if runs or what not in (*FORGOTTEN, *READ_ON)]
    assert run.is_over is (runs and isinstance(error, DamageError | ForkError))
    assert stand_in.memory == Memory().learned(error, seen if runs else None)


# The whole loop


def written() -> Source:
    """Two binlogs, the second one open."""
    source = Source()
    for _ in range(4):
        source.write(60)
    source.rotate()
    for _ in range(9):
        source.write(60)
    return source


def all_equal(known_end: KnownEnd) -> Common:
    """The source has all bytes of the bucket."""
    at = Position.of(known_end.end, known_end.gtids)
    return Common(position=at, whole=True, transactions=1)


def life(process: Process) -> Iterator[None]:
    """All is read; mysqlbinlog ends twice meanwhile, and the spool is full once."""
    shown = process.shown
    for number in range(1, 10):
        process.child.fetch()
        if number in (3, 7):
            process.child.status = 1
        if number == 5:
            process.runs.pressure.paused = True
            process.child.status = 1
        yield
        process.clock.now += 1.1
        if number > 1:
            shown.show(SECOND, 1)
    for _ in range(40):
        while process.child.fetch():
            pass
        process.look()
        process.clock.now += 1.1
        yield


def begun(tmp_path: Path, store: MemoryStore, source: Source, *, spooled: bool = False) -> Process:
    """A process; `spooled`: an earlier one has left both binlogs in the spool."""
    shown = Shown(source, Clock())
    shown.show(FIRST)
    shown.show(SECOND, 1)
    if spooled:
        facts = RunFacts(
            source=LAYOUT.source,
            target=config(tmp_path, 400).target,
            server_uuid=UUID_A,
            binlog=str(FIRST),
            position=4,
            lineage=LINEAGE,
        )
        with closing(spool_in(tmp_path)) as spool:
            run = spool.begin(facts)
            for name in (FIRST, SECOND):
                (run.directory / str(name)).write_bytes(shown.data(name))
    process = Process(
        store=store, shown=shown, directory=tmp_path, part=400, token="77777777", life=life
    )
    process.resumption.compared = all_equal  # type: ignore[method-assign]
    return process


def reading(process: Process) -> bool:
    return process.runs.memory.state is State.READING and process.child.status is None


def ending(process: Process) -> bool:
    """mysqlbinlog has ended by itself, and what it wrote is read."""
    return process.runs.run is not None and process.child.is_stopped


def between(process: Process) -> bool:
    return process.runs.run is None and process.runs.restarts > 0


def full(process: Process) -> bool:
    return process.runs.run is None and process.runs.pressure.paused


@pytest.mark.parametrize("phase", [reading, ending, between, full])
@pytest.mark.parametrize("kind", [ForkError, ElsewhereError, TakenError])
def test_what_an_upload_shows_is_compared_whenever_it_comes(
    tmp_path: Path, phase: Callable[[Process], bool], kind: type[ForkError]
) -> None:
    """It never ends the process, and is never passed over.

    If the next entry's key is taken, the history goes on in a lineage beside.
    """
    store, source = MemoryStore(min_part_bytes=1), written()
    process = begun(tmp_path, store, source)
    raised: list[str] = []

    def before() -> None:
        if process.clock.now > 103 and not raised and phase(process):
            raised.append("two histories under one name")
            raise kind(raised[0])

    process.uploads.before = before  # type: ignore[method-assign]
    assert process.run() == 0
    process.close()
    assert raised
    assert process.resumption.doubts == raised
    catalog = Catalog(store, LAYOUT)
    lineages = catalog.lineages()
    assert len(lineages) == (2 if kind is TakenError else 1)
    for name in (FIRST, SECOND):
        having = [one for one in lineages if name in catalog.contents(one).names]
        read = [b"".join(catalog.binlog(one, name).blocks()) for one in having]
        assert process.shown.data(name) in read


def test_a_spool_that_parts_from_the_bucket(tmp_path: Path) -> None:
    """Another writer has put other bytes: the history goes on in a lineage beside that one.

    Nothing is spliced: what follows in the spool is not archived behind the other's bytes.
    """
    store, source = MemoryStore(min_part_bytes=1), written()
    store.put(LAYOUT.lineage(LINEAGE), HISTORY.to_json())
    common = source.binlogs[FIRST].transactions[1].end
    other = source.data(FIRST)[:common] + b"of another history"
    chunk = LAYOUT.chunk(LINEAGE, FIRST, Chunk(0, len(other), crc64nvme(other)))
    store.put(chunk, other)
    before = sorted(store.objects)
    process = begun(tmp_path, store, source, spooled=True)
    gtids = GtidSet.parse(source.gtids_at(FIRST, common))

    def compared(_: KnownEnd) -> Common:
        at = Position.of(FilePosition(FIRST, common), gtids)
        return Common(position=at, whole=False, transactions=2)

    process.resumption.compared = compared  # type: ignore[method-assign]
    assert process.run() == 0
    process.close()
    assert len(process.resumption.doubts) == 1
    catalog = Catalog(store, LAYOUT)
    (new,) = (lineage for lineage in catalog.lineages() if lineage.id != LINEAGE)
    assert new.parent is not None
    assert (new.parent.lineage, new.parent.binlog, new.parent.offset, new.parent.join) == (
        LINEAGE, FIRST, common, "exact",
    )  # fmt: skip
    for name in (FIRST, SECOND):
        assert b"".join(catalog.binlog(new, name).blocks()) == process.shown.data(name)
    assert LAYOUT.entry(new.id, FIRST) in store.objects
    assert sorted(key for key in store.objects if LINEAGE in key) == before
    assert store.get(chunk) == other


def test_a_mysqlbinlog_that_cannot_be_started_leaves_nothing_behind(tmp_path: Path) -> None:
    """It is tried again and again, perhaps for hours, and no binlog is archived meanwhile."""
    store, source = MemoryStore(min_part_bytes=1), written()
    process = begun(tmp_path, store, source)
    seen: list[int] = []

    def refuse() -> None:
        seen.append(len(list(tmp_path.glob("run-*"))))
        if len(seen) < 6:
            raise SourceError("cannot start mysqlbinlog", transient=True)

    process.runs.refuse = refuse  # type: ignore[method-assign]
    assert process.run() == 0
    process.close()
    assert seen[:6] == [1] * 6  # the directory of this attempt alone


@pytest.mark.parametrize("status", [None, 0])
def test_an_idle_run_is_waited_for_until_mysqlbinlog_ends(
    tmp_path: Path, status: int | None
) -> None:
    """Not until the next round, in which nothing would be read."""
    process = begun(tmp_path, MemoryStore(min_part_bytes=1), written())
    idle: Any = SimpleNamespace(
        tailer=SimpleNamespace(has_more=False), child=SimpleNamespace(poll=lambda: status)
    )
    waits: list[float] = []
    stop: Any = SimpleNamespace(wait=lambda seconds: not waits.append(seconds))
    process.runs._stop = stop
    process.runs._doze(idle)
    assert bool(waits) is (status is None)
