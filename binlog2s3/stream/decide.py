"""The one decision: what to do next about a binlog.

Place in the flow: the uploader shows what it knows of a binlog (`Observed`) to `decide` and does
what that returns. Start, steady work and recovery are the same question asked again.

Law: pure and total. Bytes are a function of (lineage, binlog, range), so an action done twice, or
done late, is waste and never harm; nothing is concluded from not knowing.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from binlog2s3.archive.chunks import Chunk, Chunks, Flushes
from binlog2s3.archive.parts import Grid, Part


def is_closed(
    *,
    ended: bool,
    size: int,
    next_in_run: bool,
    history_goes_on: bool,
    newer_on_server: bool,
    size_on_server: int | None,
) -> bool:
    """Whether the server has finished a binlog and all of it is here.

    `ended`: its last event is ROTATE or STOP. `next_in_run`: the same run of mysqlbinlog has gone
    on to the next file, with the event chain whole to the end of this one; `history_goes_on`: that
    file's previous GTIDs are those at our end, which anonymous transactions cannot show.
    `newer_on_server`: it lists a newer binlog; `size_on_server`: what it lists for this one, as the
    stream delivers it. Size alone, or a newer file alone, proves nothing: a stream can end in the
    middle of a binlog, and the server can be another one.
    """
    if ended or (next_in_run and history_goes_on):
        return True
    return newer_on_server and size_on_server == size


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What holds for all binlogs.

    `chunked`: what grows is made durable as chunks, so that parts wait until it is closed; else
    parts are sent as they fill. `copies`: the store makes parts of chunks by itself. A chunk of at
    least `full_chunk` bytes needs no longer one in its place.
    """

    grid: Grid
    chunked: bool
    copies: bool
    full_chunk: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What the store was seen to hold of a binlog.

    `object_there`: something lies under its key; `verified`: it was compared with our bytes;
    `entry_there`: its entry is written; `cleared`: its chunks and unfinished uploads are gone.
    `upload_id` and `parts` are of our unfinished upload; `copies`: the store makes parts of chunks
    in it. `chunks` hold our bytes; `listed` are chunks that were not compared yet.
    """

    object_there: bool = False
    verified: bool = False
    entry_there: bool = False
    cleared: bool = False
    upload_id: str | None = None
    parts: frozenset[int] = frozenset()
    copies: bool = True
    chunks: Chunks = field(default_factory=Chunks)
    listed: Chunks = field(default_factory=Chunks)

    @property
    def there(self) -> Chunks:
        """All of its chunks."""
        return self.chunks.plus(self.listed) if self.listed else self.chunks


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """What is known of a binlog: `size` checked bytes are in the spool, `held` in the store.

    `held` is None until the store was asked, and again after any doubt. `due`: the time for a flush
    has come. `late`: and it came before while a full chunk was, and still is, on its way.
    `unfinishable`: the source can no longer give the rest. `pressed`: the spool needs room.
    """

    size: int
    closed: bool
    held: Held | None
    flushes: Flushes = field(default_factory=lambda: Flushes.start(0))
    due: bool = False
    late: bool = False
    unfinishable: bool = False
    pressed: bool = False


@dataclass(frozen=True, slots=True)
class Look:
    """Ask the store what it holds."""


@dataclass(frozen=True, slots=True)
class Compare:
    """See that these chunks hold our bytes."""

    chunks: frozenset[Chunk]


@dataclass(frozen=True, slots=True)
class Flush:
    """Put bytes [begin, end), which lie in one part and do not fill it, as a small chunk."""

    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class Merge:
    """Put bytes [begin, end), which sixteen small chunks hold, as one chunk in their place."""

    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class PutChunk:
    """Put the bytes of a whole part as a full chunk."""

    part: Part


@dataclass(frozen=True, slots=True)
class DeleteChunks:
    """Delete chunks whose bytes lie in longer ones."""

    chunks: frozenset[Chunk]


@dataclass(frozen=True, slots=True)
class PutWhole:
    """Put the closed binlog as one object."""


@dataclass(frozen=True, slots=True)
class CreateUpload:
    """Begin a multipart upload; `copying`: parts of it will be copied."""

    copying: bool = False


@dataclass(frozen=True, slots=True)
class PutPart:
    """Send one part."""

    part: Part


@dataclass(frozen=True, slots=True)
class CopyPart:
    """Have the store make a part of a chunk that has exactly its bytes."""

    part: Part
    chunk: Chunk


@dataclass(frozen=True, slots=True)
class Complete:
    """Complete the multipart upload: all parts are there."""


@dataclass(frozen=True, slots=True)
class Verify:
    """Compare what lies under the key with our bytes."""


@dataclass(frozen=True, slots=True)
class PutEntry:
    """Write the entry: the binlog is archived from then on."""


@dataclass(frozen=True, slots=True)
class Clear:
    """Delete the archived binlog's chunks, abort its unfinished uploads."""


@dataclass(frozen=True, slots=True)
class Release:
    """Delete the local copy: the archive has it, or chunks have all that there will ever be."""


ForChunks = Compare | Flush | Merge | PutChunk | DeleteChunks
ForArchive = (
    PutWhole | CreateUpload | PutPart | CopyPart | Complete | Verify | PutEntry | Clear | Release
)
Action = Look | ForChunks | ForArchive


def decide(observed: Observed, limits: Limits) -> tuple[Action, ...]:
    """What to do next, the most urgent first; nothing if there is nothing to do yet.

    All that is returned may run at the same time.
    """
    held = observed.held
    if observed.unfinishable or observed.pressed:
        limits = replace(limits, chunked=True)
    if held is None:
        return (Look(),) if _worth_a_look(observed, limits) else ()
    if held.verified:
        return _archived(held)
    if held.object_there:  # whoever closed an unfinishable one had all of it
        closed = (Verify(),) if observed.closed else ()
        return (Release(),) if observed.unfinishable else closed
    comparable = _comparable(observed, held)
    if comparable:
        return (Compare(comparable),)
    return _growing(observed, held, limits)


def _growing(observed: Observed, held: Held, limits: Limits) -> tuple[Action, ...]:
    if observed.unfinishable and held.chunks.end >= observed.size:
        return (Release(),)
    return (*_chunks(observed, held, limits), *_archive(observed, held, limits))


def _worth_a_look(observed: Observed, limits: Limits) -> bool:
    if limits.chunked:
        return observed.size > 0
    return observed.closed or observed.size >= limits.grid.length(1)


def _archived(held: Held) -> tuple[Action, ...]:
    if not held.entry_there:
        return (PutEntry(),)
    return (Release(),) if held.cleared else (Clear(),)


def _comparable(observed: Observed, held: Held) -> frozenset[Chunk]:
    """Chunks that were found and can be compared by now: their bytes have passed, or never will."""
    return frozenset(
        chunk
        for chunk in held.listed
        if observed.closed or observed.unfinishable or chunk.end <= observed.size
    )


def _chunks(observed: Observed, held: Held, limits: Limits) -> Iterator[ForChunks]:
    """What makes durable what is not, and takes away what is durable twice.

    A closed binlog gets no small chunk where one request archives it whole.
    """
    if limits.chunked:
        flush = _flush(observed, held, limits.grid)
        if flush is not None and not (observed.closed and _is_small(observed, limits)):
            yield flush
        yield from map(PutChunk, _parts_to_chunk(observed, held, limits))
        if not observed.closed and (merge := _merge(observed, held, limits.grid)):
            yield merge
    if held.chunks.superfluous and not observed.closed:
        yield DeleteChunks(held.chunks.superfluous)


def _parts_to_chunk(observed: Observed, held: Held, limits: Limits) -> Iterator[Part]:
    """Whole parts that want a full chunk.

    A binlog that was closed before any of it was durable gets none: its parts are sent. One that
    has chunks goes on with them, so that every part is durable as soon as it is there, and not
    only when the upload is completed.
    """
    copies = limits.copies and held.copies and bool(held.there)
    if not limits.chunked or (observed.closed and not copies):
        return
    there, least = held.there, limits.full_chunk
    for part in limits.grid.parts(observed.size, there.first(least)):
        in_upload = observed.closed and part.number in held.parts and not observed.pressed
        if part.full and not in_upload and not there.cover(part.begin, part.end, least):
            yield part


def _merge(observed: Observed, held: Held, grid: Grid) -> Merge | None:
    """Of the part that is not full yet, whose small chunks no full one will soon stand for."""
    wanted, base = observed.flushes.merge, observed.flushes.base
    if wanted is None or wanted[1] > held.chunks.end or grid.at(base).end <= observed.size:
        return None
    return Merge(*wanted)


def _flush(observed: Observed, held: Held, grid: Grid) -> Flush | None:
    """The small chunk that extends what is durable, if one is due and can."""
    durable = held.there.end
    if not observed.due or observed.size <= durable:
        return None
    part = grid.at(durable)
    if observed.size < part.end:
        flushes = observed.flushes
        goes_on = flushes.base == part.begin and flushes.end <= durable
        return Flush(flushes.end if goes_on else part.begin, observed.size)
    # Its full chunk, or the closed binlog's part, is on its way and has all of this. Where that
    # takes its time, the few bytes that are missing need not wait for it.
    few = part.begin < durable and observed.size - durable < part.end - part.begin
    return Flush(durable, part.end) if few and observed.late else None


def _archive(observed: Observed, held: Held, limits: Limits) -> tuple[ForArchive, ...]:
    if not observed.closed and (limits.chunked or _is_small(observed, limits)):
        return ()
    if held.upload_id is None and _is_small(observed, limits):
        return (PutWhole(),)
    wanted = [part for part in limits.grid.parts(observed.size) if part.full or observed.closed]
    chunks = {part.number: _chunk_for(part, held, limits) for part in wanted}
    coming = {part.number for part in _parts_to_chunk(observed, held, limits)}
    if held.upload_id is None:
        return (CreateUpload(copying=bool(coming) or any(chunks.values())),)
    missing = [part for part in wanted if part.number not in held.parts]
    if missing:
        return tuple(
            CopyPart(part, chunk) if (chunk := chunks[part.number]) else PutPart(part)
            for part in missing
            if part.number not in coming
        )
    return (Complete(),) if observed.closed else ()


def _chunk_for(part: Part, held: Held, limits: Limits) -> Chunk | None:
    """The chunk that the store can make this part of."""
    if not (limits.copies and held.copies and part.full):
        return None
    return held.chunks.exact(part.begin, part.end)


def _is_small(observed: Observed, limits: Limits) -> bool:
    return observed.size < limits.grid.length(1)
