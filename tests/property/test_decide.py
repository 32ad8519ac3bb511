"""The decision holds its laws for whatever is observed, also what no process could have come to."""

from dataclasses import replace

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from binlog2s3.archive.chunks import Chunk, Chunks, Flushes
from binlog2s3.archive.parts import Grid
from binlog2s3.store.contract import PartInfo
from binlog2s3.stream.decide import Limits, Observed, decide
from binlog2s3.stream.job import (
    Action,
    Clear,
    Compare,
    Complete,
    CopyPart,
    CreateUpload,
    DeleteChunks,
    Flush,
    ForArchive,
    Look,
    Merge,
    PutChunk,
    PutEntry,
    PutPart,
    PutWhole,
    Release,
    TakeUp,
    Verify,
)
from binlog2s3.stream.remote import Compared, Held
from tests.sampling import examples

LENGTH = 60
OFFSETS = st.integers(0, LENGTH)


def ranges(length: int = LENGTH) -> st.SearchStrategy[tuple[int, int]]:
    return st.tuples(st.integers(0, length - 1), st.integers(1, length)).map(
        lambda pair: (pair[0], min(length, pair[0] + pair[1]))
    )


def chunks_of(grid: Grid) -> st.SearchStrategy[Chunks]:
    """Of any range; of whole parts, side by side from 0 on, more often than chance would."""
    parts = [(part.begin, part.end) for part in grid.parts(LENGTH)]
    some = st.lists(st.one_of(ranges(), st.sampled_from(parts)), max_size=6)
    front = st.integers(0, len(parts)).map(lambda count: parts[:count])
    return st.tuples(front, some).map(
        lambda found: Chunks(frozenset(Chunk(*span, 0) for span in found[0] + found[1]))
    )


def info(number: int) -> PartInfo:
    """A part in an upload."""
    return PartInfo(number=number, size=1, etag="x", crc64=None)


@st.composite
def flushes(draw: st.DrawFn, grid: Grid) -> Flushes:
    base = draw(st.one_of(OFFSETS, st.sampled_from([p.begin for p in grid.parts(LENGTH)])))
    made = Flushes.start(base)
    for step in draw(st.lists(st.integers(1, 3), max_size=20)):
        made = made.flushed(made.end + step)
    return made


@st.composite
def held(draw: st.DrawFn, grid: Grid) -> Held:
    progress = draw(st.sampled_from([0, 0, 0, 0, 1, 2, 3, 4]))
    numbers = [part.number for part in grid.parts(LENGTH)]
    some = st.frozensets(st.sampled_from(numbers))
    return Held(
        object_there=progress > 0,
        verified=progress > 1,
        entry_there=progress > 2 or draw(st.booleans()),
        cleared=progress > 3,
        upload_id=draw(st.sampled_from([None, "u"])),
        parts={number: info(number) for number in draw(some)},
        offered={number: info(number) for number in draw(some)},
        chunks=draw(chunks_of(grid)),
        listed=draw(st.one_of(st.just(Chunks()), chunks_of(grid))),
    )


@st.composite
def cases(draw: st.DrawFn) -> tuple[Observed, Limits]:
    grid = Grid(draw(st.integers(1, 40)))
    limits = Limits(grid=grid, full_chunk=draw(st.integers(1, grid.part_size)))
    size = draw(OFFSETS)
    end = draw(st.sampled_from(["open", "closed", "unfinishable"])) if size else "open"
    pressed = draw(st.booleans())
    observed = Observed(
        size=size,
        closed=end == "closed",
        held=draw(st.one_of(st.just(Held(asked=False)), held(grid), held(grid), held(grid))),
        chunked=end == "unfinishable" or pressed or draw(st.booleans()),
        copies=draw(st.booleans()),
        flushes=draw(flushes(grid)),
        due=draw(st.booleans()),
        late=draw(st.booleans()),
        unfinishable=end == "unfinishable",
        pressed=pressed,
    )
    return observed, limits


def is_kept(observed: Observed, known: Held) -> bool:
    """Whether the bucket has all that there will ever be of an unfinishable binlog."""
    return observed.unfinishable and (known.object_there or known.chunks.end >= observed.size)


def only(actions: tuple[Action, ...], kind: type[Action]) -> list[Action]:
    return [action for action in actions if isinstance(action, kind)]


@settings(max_examples=examples(250))
@given(cases())
def test_each_action_has_its_reason(case: tuple[Observed, Limits]) -> None:
    """An answer to everything, and none that what is known does not bear out."""
    observed, limits = case
    known, size, grid = observed.held, observed.size, limits.grid
    actions = decide(observed, limits)
    assert len(set(actions)) == len(actions)
    if not known.asked:
        assert actions in ((), (Look(),))
        return
    wanted = [part for part in grid.parts(size) if part.full or observed.closed]
    for action in actions:
        match action:
            case Look():
                raise AssertionError("nothing is in doubt")
            case Compare(chunks):
                assert actions == (action,)
                assert chunks
                assert chunks <= known.listed.all
                for chunk in chunks:
                    is_last = observed.unfinishable and chunk.begin < size
                    assert observed.closed or chunk.end <= size or is_last
            case Flush(begin, end):
                assert observed.chunked
                assert observed.due
                assert begin <= known.all_chunks.end < end <= size
                assert grid.at(begin) == grid.at(end - 1)
                assert (begin, end) != (grid.at(begin).begin, grid.at(begin).end)
            case PutChunk(part):
                assert observed.chunked
                goes_on = observed.copies and bool(known.all_chunks)
                assert goes_on or not observed.closed
                assert part in wanted
                # a part of an upload is not durable; what is closed will be, completed
                assert part.number not in known.parts or observed.pressed or not observed.closed
                assert part.full
                assert not known.all_chunks.cover(part.begin, part.end, limits.full_chunk)
            case DeleteChunks(chunks):
                assert not observed.closed
                assert chunks
                assert chunks == known.chunks.superfluous
            case PutWhole():
                assert observed.closed
                assert size < grid.length(1)
            case CreateUpload():
                assert known.upload_id is None
                assert wanted
            case PutPart(part) | CopyPart(part) | TakeUp(part):
                assert known.upload_id is not None
                assert part in wanted
                assert part.number not in known.parts
                assert (part.number in known.offered) is isinstance(action, TakeUp)
            case Complete():
                assert observed.closed
                assert known.upload_id is not None
                assert {part.number for part in wanted} <= known.parts.keys()
            case Verify():
                assert observed.closed
                assert known.object_there
            case PutEntry():
                assert known.verified
                assert not known.entry_there
            case Clear():
                assert known.verified
                assert known.entry_there
                assert not known.cleared
            case Release():
                archived = known.verified and known.entry_there and known.cleared
                assert archived or is_kept(observed, known)
                assert archived or not known.listed or known.object_there


@settings(max_examples=examples(250))
@given(cases())
def test_actions_that_may_run_together(case: tuple[Observed, Limits]) -> None:
    """No range twice, and of steps that build on each other one at a time."""
    observed, limits = case
    actions = decide(observed, limits)
    numbers = [a.part.number for a in actions if isinstance(a, PutPart | CopyPart | TakeUp)]
    assert len(set(numbers)) == len(numbers)
    archiving = [action for action in actions if isinstance(action, ForArchive)]
    assert len(archiving) == (len(numbers) or len(archiving[:1]))
    assert len(only(actions, Flush)) <= 1
    assert not {a.part.number for a in actions if isinstance(a, PutChunk)} & set(numbers)
    if observed.unfinishable:
        assert not numbers
    for action in actions:
        if isinstance(action, CopyPart):
            assert observed.copies
            assert action.chunk in observed.held.chunks.all
            span = (action.part.begin, action.part.end)
            assert (action.chunk.begin, action.chunk.end) == span
    if observed.chunked and not observed.closed and not observed.held.verified:
        assert all(isinstance(action, Release) for action in archiving)


@settings(max_examples=examples(250))
@given(cases())
def test_there_is_always_something_to_do_until_there_is_not(
    case: tuple[Observed, Limits],
) -> None:
    """A closed binlog is never stuck; bytes that are due are on their way, or soon compared."""
    observed, limits = case
    known, size = observed.held, observed.size
    actions = decide(observed, limits)
    if observed.closed or (observed.unfinishable and observed.due):
        assert actions
    elif observed.chunked and known.asked and observed.due and not known.object_there:
        durable = known.all_chunks.end
        if durable < size:
            spans = [(a.begin, a.end) for a in actions if isinstance(a, Flush)]
            spans += [(a.part.begin, a.part.end) for a in actions if isinstance(a, PutChunk)]
            on_its_way = any(begin <= durable < end for begin, end in spans)
            assert on_its_way or only(actions, Compare)


@settings(max_examples=100)
@given(cases(), st.data())
def test_it_ends(case: tuple[Observed, Limits], data: st.DataObject) -> None:
    """If all that is decided is done, a binlog is released within a bounded time.

    One that is closed, and one that the source can no longer finish: of that all lies in chunks.
    """
    observed, limits = case
    assume(observed.size)
    unfinishable = observed.unfinishable
    listed = [chunk for chunk in observed.held.listed if chunk.end <= observed.size]
    observed = replace(observed, held=replace(observed.held, listed=Chunks(frozenset(listed))))
    size, state = observed.size, observed.held
    for number in range(150):
        now = Observed(
            size=size,
            closed=not unfinishable,
            held=state,
            chunked=observed.chunked,
            copies=observed.copies,
            due=number > 90 or data.draw(st.booleans()),
            unfinishable=unfinishable,
            pressed=number < 30 and observed.pressed,
        )
        actions = decide(now, limits)
        if actions == (Release(),):
            assert state.verified or is_kept(now, state)
            return
        if not actions:  # it waits for the next flush
            assert not now.due
            continue
        state = done(state, data.draw(st.sampled_from(actions)), data.draw(st.booleans()))
    raise AssertionError(state)


def done(state: Held, action: Action, ours: bool) -> Held:
    """What is known after an action; `ours`: a part that was there has our bytes."""
    match action:
        case Look():
            return Held()
        case Compare(chunks):
            answer: object = Compared(same=chunks, named=frozenset())
        case Flush(begin, end) | Merge(begin, end):
            answer = Chunk(begin, end, 0)
        case PutChunk(part):
            answer = Chunk(part.begin, part.end, 0)
        case CreateUpload():
            answer = "u"
        case TakeUp():
            answer = ours
        case PutPart(part) | CopyPart(part):
            answer = info(part.number)
        case PutWhole():
            answer = (ours, ours)
        case _:
            answer = None
    return action.learned(state, answer)  # type: ignore[arg-type]


@given(
    part_size=st.integers(1, 50),
    size=st.integers(0, 5000),
    more=st.integers(0, 5000),
)
def test_full_parts_stay_what_they_are_while_a_binlog_grows(
    part_size: int, size: int, more: int
) -> None:
    """A part is a function of the part size and its number alone."""
    grid = Grid(part_size)
    full = [part for part in grid.parts(size) if part.full]
    assert list(grid.parts(size + more))[: len(full)] == full
