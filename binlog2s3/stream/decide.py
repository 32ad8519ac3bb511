"""Decides what to do next about a binlog: chunk, part or wait. Pure.

A start, steady work and recovery use the same function.

Law: `decide` is total. Nothing is concluded from what is not known.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count

from binlog2s3.archive.chunks import Chunk, Flushes
from binlog2s3.archive.parts import Grid, Part
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
    ForChunks,
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
from binlog2s3.stream.remote import Held


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What is the same for all binlogs.

    A chunk of at least `full_chunk` bytes is never replaced by a longer one.
    """

    grid: Grid
    full_chunk: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """What is known of a binlog: `size` checked bytes are here, `held` is in the store.

    `chunked`: its bytes are uploaded as chunks while it grows, and its parts wait until it is
    closed; otherwise parts are sent as they fill. `copies`: the store can copy chunks into parts.
    `due`: it is time for a flush. `late`: the flush before waited for a full chunk, which is still
    on its way. `unfinishable`: the source cannot send the rest. `pressed`: the spool is full.
    """

    size: int
    closed: bool
    held: Held
    chunked: bool
    copies: bool = True
    flushes: Flushes = field(default_factory=lambda: Flushes.start(0))
    due: bool = False
    late: bool = False
    unfinishable: bool = False
    pressed: bool = False


def decide(observed: Observed, limits: Limits) -> tuple[Action, ...]:
    """The next actions, the most urgent first; none if there is nothing to do yet.

    All of them may run at the same time.
    """
    held = observed.held
    if not held.asked:
        return (Look(),) if _worth_a_look(observed, limits) else ()
    if held.verified:
        return _archived(held)
    if held.object_there:  # the writer that closed it had all of it
        closed = (Verify(),) if observed.closed else ()
        return (Release(),) if observed.unfinishable else closed
    comparable = _comparable(observed, held)
    if comparable:
        return (Compare(comparable),)
    return _growing(observed, held, limits)


def _growing(observed: Observed, held: Held, limits: Limits) -> tuple[Action, ...]:
    leaves = observed.unfinishable or (observed.pressed and not observed.closed)
    if leaves and held.chunks.end >= observed.size:
        if held.named:  # the spool's bytes go only for what is known to be there
            return (Compare(held.named, read=True),)
        if observed.unfinishable:
            return (Release(),)
    return (*_chunks(observed, held, limits), *_archive(observed, held, limits))


def _worth_a_look(observed: Observed, limits: Limits) -> bool:
    if observed.chunked:
        return observed.size > 0
    return observed.closed or observed.size >= limits.grid.length(1)


def _archived(held: Held) -> tuple[Action, ...]:
    if not held.entry_there:
        return (PutEntry(),)
    return (Release(),) if held.cleared else (Clear(),)


def _comparable(observed: Observed, held: Held) -> frozenset[Chunk]:
    """The listed chunks that can be compared: we have their bytes, or will never have more."""
    return frozenset(
        chunk
        for chunk in held.listed
        if chunk.end <= observed.size
        or observed.closed
        or (observed.unfinishable and chunk.begin < observed.size)
    )


def _chunks(observed: Observed, held: Held, limits: Limits) -> Iterator[ForChunks]:
    """Put the bytes that are not durable yet, and delete chunks whose bytes are in longer ones.

    A closed binlog gets no small chunk if one request can archive all of it.
    """
    if observed.chunked:
        flush = _flush(observed, held, limits.grid)
        if flush is not None and not (observed.closed and _is_small(observed, limits)):
            yield flush
        yield from map(PutChunk, _parts_to_chunk(observed, held, limits))
        if not observed.closed and (merge := _merge(observed, held, limits.grid)):
            yield merge
    if held.chunks.superfluous and not observed.closed:
        yield DeleteChunks(held.chunks.superfluous)


def _parts_to_chunk(observed: Observed, held: Held, limits: Limits) -> Iterator[Part]:
    """Full parts that need a full chunk.

    A binlog that was closed before any of it was durable gets none: its parts are sent. A binlog
    that has chunks gets more of them, so that each part is durable at once and not only when the
    upload is completed.
    """
    copies = observed.copies and bool(held.all_chunks)
    if not observed.chunked or (observed.closed and not copies):
        return
    chunks, least = held.all_chunks, limits.full_chunk
    for part in limits.grid.parts(observed.size, chunks.first(least)):
        in_upload = observed.closed and part.number in held.parts and not observed.pressed
        if part.full and not in_upload and not chunks.cover(part.begin, part.end, least):
            yield part


def _merge(observed: Observed, held: Held, grid: Grid) -> Merge | None:
    """The merge that is due in the part that is not full yet; None if there is none."""
    wanted, base = observed.flushes.merge, observed.flushes.base
    if wanted is None or wanted[1] > held.chunks.end or grid.at(base).end <= observed.size:
        return None
    return Merge(*wanted)


def _flush(observed: Observed, held: Held, grid: Grid) -> Flush | None:
    """The small chunk that is due after the durable bytes; None if there is none."""
    durable = held.all_chunks.end
    if not observed.due or observed.size <= durable:
        return None
    part = grid.at(durable)
    if observed.size < part.end:
        flushes = observed.flushes
        goes_on = flushes.base == part.begin and flushes.end <= durable
        return Flush(flushes.end if goes_on else part.begin, observed.size)
    # Its full chunk, or the closed binlog's part, is on its way and has all of this. If that takes
    # long, the few missing bytes need not wait for it.
    few = part.begin < durable and observed.size - durable < part.end - part.begin
    return Flush(durable, part.end) if few and observed.late else None


def _archive(observed: Observed, held: Held, limits: Limits) -> tuple[ForArchive, ...]:
    if not observed.closed and (observed.chunked or _is_small(observed, limits)):
        return ()
    if held.upload_id is None and _is_small(observed, limits):
        return (PutWhole(),)
    begin = limits.grid.begin(next(number for number in count(1) if number not in held.parts))
    rest = limits.grid.parts(observed.size, begin) if begin < observed.size else ()
    missing = [
        part for part in rest if part.number not in held.parts and (part.full or observed.closed)
    ]
    chunks = {part.number: _chunk_for(part, observed) for part in missing}
    coming = {part.number for part in _parts_to_chunk(observed, held, limits)}
    if held.upload_id is None:
        return (CreateUpload(copying=bool(coming) or any(chunks.values())),)
    if missing:
        return tuple(
            _bring(part, held, chunks[part.number]) for part in missing if part.number not in coming
        )
    return (Complete(),) if observed.closed else ()


def _bring(part: Part, held: Held, chunk: Chunk | None) -> TakeUp | CopyPart | PutPart:
    """How a part gets into the upload: it is there already, is in a chunk, or is sent."""
    if part.number in held.offered:
        return TakeUp(part, held.offered[part.number])
    return CopyPart(part, chunk) if chunk is not None else PutPart(part)


def _chunk_for(part: Part, observed: Observed) -> Chunk | None:
    """The chunk that the store can copy into this part; None without one."""
    if not (observed.copies and part.full):
        return None
    return observed.held.chunks.exact(part.begin, part.end)


def _is_small(observed: Observed, limits: Limits) -> bool:
    return observed.size < limits.grid.length(1)
