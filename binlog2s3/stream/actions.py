"""The actions that bring a binlog into the store: requests, and what their answers teach.

Law: the bytes of an object are a function of (lineage, binlog, range), so an action that is done
twice or late wastes a request and harms nothing. What an answer teaches depends on the action and
on what is known, on nothing else.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Protocol

from binlog2s3.archive.chunks import Chunk, Chunks
from binlog2s3.archive.parts import Part
from binlog2s3.store.s3 import PartInfo
from binlog2s3.stream.remote import Compared, Held, RemoteBinlog
from binlog2s3.stream.tail import Track

Request = Callable[[], object]


class Binlog(Protocol):
    """What a request is made of. A `Job` is one."""

    track: Track
    place: RemoteBinlog
    held: Held

    @property
    def is_failing(self) -> bool:
        """Whether a request for it has failed, and not succeeded since."""


@dataclass(frozen=True, slots=True)
class _Action:
    """`teaches`: what is true once the request of the action has succeeded."""

    teaches: ClassVar[Mapping[str, Any]] = {}

    @property
    def subject(self) -> "int | type[_Action]":
        """What it is about: the number of a part, whose bytes go in three ways, or its kind."""
        return type(self)

    @property
    def brings(self) -> int:
        """How many bytes of a binlog that still grows it sends."""
        return 0

    def learned(self, held: Held, answer: Any) -> Held:  # noqa: ARG002 - most answers say: done
        """What is known once the answer to its request has come."""
        return replace(held, **self.teaches)


@dataclass(frozen=True, slots=True)
class Look(_Action):
    """Ask the store what it has."""

    def request(self, binlog: Binlog) -> Request:
        place, track = binlog.place, binlog.track
        is_new = not (binlog.is_failing or binlog.held.chunks)
        if is_new and track.closed and track.size < place.grid.length(1):
            return place.look_at_chunks
        return partial(place.look, place.wanted())

    def learned(self, held: Held, answer: Held) -> Held:
        known = answer.listed.all & held.chunks.all
        return replace(
            answer,
            chunks=Chunks(known),
            listed=answer.listed.minus(known),
            named=held.named & known,
        )


@dataclass(frozen=True, slots=True)
class Compare(_Action):
    """Compare these chunks with our bytes; by their names, unless they are to be `read`."""

    chunks: frozenset[Chunk]
    read: bool = False

    def request(self, binlog: Binlog) -> Request:
        return partial(binlog.place.compare, self.chunks, read=self.read)

    def learned(self, held: Held, answer: Compared) -> Held:
        others = held.without(self.chunks)
        return replace(
            others,
            chunks=others.chunks.plus(answer.same),
            listed=held.listed.minus(self.chunks),
            named=others.named | answer.named,
        )


@dataclass(frozen=True, slots=True)
class _ChunkPut(_Action):
    """The answer is the chunk that the store has acknowledged; `Job.request` makes the request."""

    def learned(self, held: Held, answer: Chunk) -> Held:
        return replace(held, chunks=held.chunks.plus([answer]), named=held.named - {answer})


@dataclass(frozen=True, slots=True)
class Flush(_ChunkPut):
    """Put bytes [begin, end) as a small chunk. They are a range of one part, and not all of it."""

    begin: int
    end: int

    @property
    def brings(self) -> int:
        return self.end - self.begin


@dataclass(frozen=True, slots=True)
class Merge(_ChunkPut):
    """Put bytes [begin, end), which are in sixteen small chunks, as one chunk instead."""

    begin: int
    end: int

    @property
    def subject(self) -> type[_Action]:
        return Flush


@dataclass(frozen=True, slots=True)
class _OfPart(_Action):
    part: Part

    @property
    def subject(self) -> int:
        return self.part.number


@dataclass(frozen=True, slots=True)
class PutChunk(_OfPart, _ChunkPut):
    """Put the bytes of a whole part as a full chunk."""

    @property
    def brings(self) -> int:
        return self.part.end - self.part.begin


@dataclass(frozen=True, slots=True)
class DeleteChunks(_Action):
    """Delete chunks whose bytes are in longer chunks."""

    chunks: frozenset[Chunk]

    def request(self, binlog: Binlog) -> Request:
        return partial(binlog.place.delete_chunks, self.chunks)

    def learned(self, held: Held, answer: object) -> Held:  # noqa: ARG002 - it says: done
        return held.without(self.chunks)


@dataclass(frozen=True, slots=True)
class PutWhole(_Action):
    """Put the closed binlog as one object.

    The answer says whether it is proved, and whether nothing else can be there of the binlog; of
    uploads under its key the audit takes care.
    """

    def request(self, binlog: Binlog) -> Request:
        place, is_first = binlog.place, not binlog.is_failing
        return lambda: (place.put_whole(), is_first)

    def learned(self, held: Held, answer: tuple[bool, bool]) -> Held:
        verified, is_first = answer
        cleared = is_first and not held.there
        return replace(held, object_there=True, verified=verified, cleared=cleared)


@dataclass(frozen=True, slots=True)
class CreateUpload(_Action):
    """Begin a multipart upload. `copying`: some parts will be copied from chunks."""

    copying: bool = False

    def request(self, binlog: Binlog) -> Request:
        return partial(binlog.place.create_upload, copying=self.copying)

    def learned(self, held: Held, answer: str) -> Held:
        return replace(held, upload_id=answer, parts={}, offered={})


@dataclass(frozen=True, slots=True)
class TakeUp(_OfPart):
    """See whether a part that was in the upload already has our bytes."""

    info: PartInfo

    def request(self, binlog: Binlog) -> Request:
        crc64 = binlog.track.digest.part_crc64(self.part)
        return partial(binlog.place.is_ours, self.info, self.part, crc64)

    def learned(self, held: Held, answer: bool) -> Held:
        offered = {at: info for at, info in held.offered.items() if at != self.part.number}
        parts = {**held.parts, self.part.number: self.info} if answer else held.parts
        return replace(held, parts=parts, offered=offered)


@dataclass(frozen=True, slots=True)
class PutPart(_OfPart):
    """Send one part."""

    @property
    def brings(self) -> int:
        return self.part.end - self.part.begin

    def request(self, binlog: Binlog) -> Request:
        crc64 = binlog.track.digest.part_crc64(self.part)
        return partial(binlog.place.put_part, binlog.held.upload_id or "", self.part, crc64)

    def learned(self, held: Held, answer: PartInfo) -> Held:
        return replace(held, parts={**held.parts, self.part.number: answer})


@dataclass(frozen=True, slots=True)
class CopyPart(_OfPart):
    """Have the store copy a chunk, which has exactly the bytes of a part, into that part."""

    chunk: Chunk

    def request(self, binlog: Binlog) -> Request:
        return partial(binlog.place.copy_part, binlog.held.upload_id or "", self.part, self.chunk)

    def learned(self, held: Held, answer: PartInfo) -> Held:
        return replace(held, parts={**held.parts, self.part.number: answer})


@dataclass(frozen=True, slots=True)
class Complete(_Action):
    """Complete the multipart upload: all parts are there."""

    teaches: ClassVar = {"object_there": True}

    def request(self, binlog: Binlog) -> Request:
        parts = [info for _, info in sorted(binlog.held.parts.items())]
        return partial(binlog.place.complete, binlog.held.upload_id or "", parts)


@dataclass(frozen=True, slots=True)
class Verify(_Action):
    """Compare the object under the key with our bytes."""

    teaches: ClassVar = {"verified": True}

    def request(self, binlog: Binlog) -> Request:
        return binlog.place.verify


@dataclass(frozen=True, slots=True)
class PutEntry(_Action):
    """Write the entry. From then on the binlog is archived."""

    teaches: ClassVar = {"entry_there": True}

    def request(self, binlog: Binlog) -> Request:
        return binlog.place.put_entry


@dataclass(frozen=True, slots=True)
class Clear(_Action):
    """Delete the archived binlog's chunks and abort its unfinished uploads."""

    teaches: ClassVar = {"cleared": True}

    def request(self, binlog: Binlog) -> Request:
        return binlog.place.clear


@dataclass(frozen=True, slots=True)
class Release(_Action):
    """Delete the local copy: it is archived, or chunks have all that there will ever be.

    It has no request: the uploader does it.
    """


Subject = int | type[_Action]
PutsChunk = Flush | Merge | PutChunk
ForChunks = Compare | PutsChunk | DeleteChunks
ForUpload = PutWhole | CreateUpload | TakeUp | PutPart | CopyPart | Complete
ForArchive = ForUpload | Verify | PutEntry | Clear | Release
Action = Look | ForChunks | ForArchive
