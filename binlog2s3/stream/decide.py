"""Decides what to do next about a binlog: chunk, part or wait; and whether it is closed. Pure.

A start, steady work and recovery use the same function.

Law: `decide` is total. The bytes of an object are a function of (lineage, binlog, range), so an
action that is done twice or late wastes a request and harms nothing. Nothing is concluded from what
is not known.
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

    - `ended`: its last event is ROTATE or STOP.
    - `next_in_run`: it was read to its end, and the same run of mysqlbinlog has gone on to the next
      file.
    - `history_goes_on`: the previous GTIDs of that file are the GTIDs at our end. Anonymous
      transactions cannot show this.
    - `newer_on_server`: the server lists a newer binlog. `size_on_server`: the size that it lists
      for this one.

    The size alone or a newer file alone proves nothing: a stream can end in the middle of a binlog,
    and the server can be another one.
    """
    if ended or (next_in_run and history_goes_on):
        return True
    return newer_on_server and size_on_server == size


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What is the same for all binlogs.

    `chunked`: a growing binlog is uploaded as chunks, and its parts wait until it is closed.
    Otherwise parts are sent as they fill. `copies`: the store can copy chunks into parts. A chunk
    of at least `full_chunk` bytes is never replaced by a longer one.
    """

    grid: Grid
    chunked: bool
    copies: bool
    full_chunk: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What the store was seen to have of a binlog.

    `object_there`: there is an object under its key; `verified`: it was compared with our bytes;
    `entry_there`: its entry is written; `cleared`: its chunks and unfinished uploads are deleted.
    `upload_id` and `parts` are those of our unfinished upload; `copies`: the store can copy chunks
    into it. `chunks` have our bytes; `named` are those among them that another process has put:
    their names say so, and they were not read. `listed` are chunks that were not compared yet.
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
    named: frozenset[Chunk] = frozenset()

    @property
    def there(self) -> Chunks:
        """All of its chunks."""
        return self.chunks.plus(self.listed) if self.listed else self.chunks


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """What is known of a binlog: `size` checked bytes are here, `held` is in the store.

    `held` is None until the store was asked, and after each error. `due`: it is time for a flush.
    `late`: the flush before waited for a full chunk, which is still on its way. `unfinishable`: the
    source cannot send the rest. `pressed`: the spool is full. `direct`: the source had finished the
    binlog long ago, and it will be whole in the bucket within seconds, so it gets no chunks.
    """

    size: int
    closed: bool
    held: Held | None
    flushes: Flushes = field(default_factory=lambda: Flushes.start(0))
    due: bool = False
    late: bool = False
    unfinishable: bool = False
    pressed: bool = False
    direct: bool = False

    def chunked(self, limits: "Limits") -> bool:
        """Whether its bytes go into chunks as they come.

        A full spool needs that, unless the binlog is all there and will leave the spool anyway.
        """
        if self.unfinishable or (self.pressed and not (self.direct and self.closed)):
            return True
        return limits.chunked and not self.direct


@dataclass(frozen=True, slots=True)
class Look:
    """Ask the store what it has."""


@dataclass(frozen=True, slots=True)
class Compare:
    """Compare these chunks with our bytes; by their names, unless they are to be `read`."""

    chunks: frozenset[Chunk]
    read: bool = False


@dataclass(frozen=True, slots=True)
class Flush:
    """Put bytes [begin, end) as a small chunk. They are a range of one part, and not all of it."""

    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class Merge:
    """Put bytes [begin, end), which are in sixteen small chunks, as one chunk instead."""

    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class PutChunk:
    """Put the bytes of a whole part as a full chunk."""

    part: Part


@dataclass(frozen=True, slots=True)
class DeleteChunks:
    """Delete chunks whose bytes are in longer chunks."""

    chunks: frozenset[Chunk]


@dataclass(frozen=True, slots=True)
class PutWhole:
    """Put the closed binlog as one object."""


@dataclass(frozen=True, slots=True)
class CreateUpload:
    """Begin a multipart upload. `copying`: some parts will be copied from chunks."""

    copying: bool = False


@dataclass(frozen=True, slots=True)
class PutPart:
    """Send one part."""

    part: Part


@dataclass(frozen=True, slots=True)
class CopyPart:
    """Have the store copy a chunk, which has exactly the bytes of a part, into that part."""

    part: Part
    chunk: Chunk


@dataclass(frozen=True, slots=True)
class Complete:
    """Complete the multipart upload: all parts are there."""


@dataclass(frozen=True, slots=True)
class Verify:
    """Compare the object under the key with our bytes."""


@dataclass(frozen=True, slots=True)
class PutEntry:
    """Write the entry. From then on the binlog is archived."""


@dataclass(frozen=True, slots=True)
class Clear:
    """Delete the archived binlog's chunks and abort its unfinished uploads."""


@dataclass(frozen=True, slots=True)
class Release:
    """Delete the local copy: it is archived, or chunks have all that there will ever be."""


ForChunks = Compare | Flush | Merge | PutChunk | DeleteChunks
ForArchive = (
    PutWhole | CreateUpload | PutPart | CopyPart | Complete | Verify | PutEntry | Clear | Release
)
Action = Look | ForChunks | ForArchive


def sent_by(action: Action) -> int:
    """How many bytes of a binlog that still grows an action sends; 0 for all other actions."""
    match action:
        case PutChunk(part) | PutPart(part):
            return part.end - part.begin
        case Flush(begin, end):
            return end - begin
    return 0


def subject_of(action: Action) -> int | type[Action]:
    """What a request is about: the number of a part, whose bytes go in three ways, or its kind."""
    match action:
        case PutPart(part) | CopyPart(part, _) | PutChunk(part):
            return part.number
        case Merge():
            return Flush
    return type(action)


def decide(observed: Observed, limits: Limits) -> tuple[Action, ...]:
    """The next actions, the most urgent first; none if there is nothing to do yet.

    All of them may run at the same time.
    """
    held = observed.held
    limits = replace(limits, chunked=observed.chunked(limits))
    if held is None:
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
    if limits.chunked:
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
    """Full parts that need a full chunk.

    A binlog that was closed before any of it was durable gets none: its parts are sent. A binlog
    that has chunks gets more of them, so that each part is durable at once and not only when the
    upload is completed.
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
    """The merge that is due in the part that is not full yet; None if there is none."""
    wanted, base = observed.flushes.merge, observed.flushes.base
    if wanted is None or wanted[1] > held.chunks.end or grid.at(base).end <= observed.size:
        return None
    return Merge(*wanted)


def _flush(observed: Observed, held: Held, grid: Grid) -> Flush | None:
    """The small chunk that is due after the durable bytes; None if there is none."""
    durable = held.there.end
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
    """The chunk that the store can copy into this part; None without one."""
    if not (limits.copies and held.copies and part.full):
        return None
    return held.chunks.exact(part.begin, part.end)


def _is_small(observed: Observed, limits: Limits) -> bool:
    return observed.size < limits.grid.length(1)
