"""What the uploader remembers of one binlog between two steps. No requests, no clock.

Law: nothing here is needed to continue. If all of it is lost, a look at the store leads to the same
actions. It only saves requests and bytes.
"""

import math
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass, field, replace

from binlog2s3.archive.chunks import Chunk, Chunks, Flushes
from binlog2s3.archive.parts import Mark
from binlog2s3.binlog.gtid import Gtids
from binlog2s3.errors import StoreError
from binlog2s3.store.s3 import PartInfo
from binlog2s3.stream.decide import (
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
    Held,
    Look,
    Merge,
    PutChunk,
    PutEntry,
    PutPart,
    PutWhole,
    Verify,
    sent_by,
    subject_of,
)
from binlog2s3.stream.remote import Looked, RemoteBinlog
from binlog2s3.stream.tail import Track
from binlog2s3.stream.upload_counts import Failing, InVain

_URGENT_SECONDS = 30.0


@dataclass(slots=True)
class Job:
    """One binlog and its requests. Times are of the uploader's clock.

    By part number: `parts` that the store has from us, and `listed` parts that were there already,
    which count once they were compared with our bytes. `acknowledged` says since when a chunk is
    known to have our bytes, and `named` which of them nobody has read (`decide.Held`); both are
    kept after an error. `direct` is None until it is decided whether the binlog goes without
    chunks: see `decide.Observed`. `is_taken`: somebody wrote under its
    entry's key before; it gets an entry there when its history has ended.
    """

    track: Track
    place: RemoteBinlog
    held: Held | None = None
    parts: dict[int, PartInfo] = field(default_factory=dict)
    listed: dict[int, PartInfo] = field(default_factory=dict)
    flying: set[Action] = field(default_factory=set)
    acknowledged: dict[Chunk, float] = field(default_factory=dict)
    named: set[Chunk] = field(default_factory=set)
    flushes: Flushes = field(default_factory=lambda: Flushes.start(0))
    flushed_at: float = -math.inf
    copies: bool = True
    deletes_from: float = 0.0
    failing: dict[int | type[Action], Failing] = field(default_factory=dict)
    in_vain: InVain = field(default_factory=InVain)
    not_before: float = 0.0
    sent_bytes: int = 0
    taken_up: int = 0
    copied: int = 0
    begun_at: float = 0.0
    unfinishable: bool = False
    is_taken: bool = False
    direct: bool | None = None
    _marks: dict[int, Mark] = field(default_factory=dict)
    _waiting_since: float | None = None
    _snapshots: list[tuple[int, Gtids | None]] = field(default_factory=list)
    _snapshot_at: float = 0.0

    @property
    def longest_failing(self) -> Failing | None:
        """The failing request that is longest without success; None if none fails."""
        return min(self.failing.values(), key=lambda one: one.since, default=None)

    def failed(self, action: Action, error: StoreError, now: float) -> Failing:
        """Note a failure. What fails for longest is tried alone: see `may_be_tried`."""
        one = self.failing.setdefault(subject_of(action), Failing(now))
        one.failures += 1
        one.at, one.passes, one.error, one.hint = now, error.transient, str(error), error.hint
        one.sent_bytes = error.sent_bytes
        self.in_vain.add(error.sent_bytes, now)
        return one

    def succeeded(self, action: Action) -> None:
        """Note that a request succeeded: what failed of the same bytes does not fail any more."""
        if isinstance(action, PutEntry | Clear):
            self.failing.clear()
            return
        self.failing.pop(subject_of(action), None)
        if isinstance(action, PutChunk):
            self.failing.pop(Flush, None)

    def only(self, actions: Iterable[Action]) -> None:
        """Forget the failures of parts and uploads that are not wanted any more."""
        wanted = {subject_of(action) for action in actions}
        if wanted & {CreateUpload, Compare}:
            return  # the parts come after it
        for subject in [*self.failing]:
            if subject not in wanted and (isinstance(subject, int) or subject is CreateUpload):
                del self.failing[subject]

    def may_be_tried(
        self, action: Action, now: float, taken_at: float = -math.inf, *, pressed: bool = False
    ) -> bool:
        """Whether an action may be tried now.

        A failed one waits; while a part of this binlog fails, no other part is sent. No bytes are
        sent again beyond what `InVain` allows, unless the store may be overloaded, and has taken
        others of this kind meanwhile, at `taken_at`. `pressed`: the spool is full, and the source,
        which is not read, may purge: then a part is tried each 30 s.
        """
        if isinstance(action, DeleteChunks):
            return now >= self.deletes_from
        subject = subject_of(action)
        known = self.failing.get(subject)
        is_urgent = pressed and known is not None and now >= known.at + _URGENT_SECONDS
        if known is not None and known.not_before > now and not is_urgent:
            return False
        body = self.track.size if isinstance(action, PutWhole) else sent_by(action)
        cost = max(body, known.sent_bytes) if known is not None else body
        is_taken = known is not None and known.passes and taken_at >= known.since
        is_paced = not (is_taken or is_urgent)
        if body and is_paced and self.in_vain.wait(cost, self.track.size, now) > 0:
            return False
        if not isinstance(action, PutPart | PutChunk | PutWhole):
            return True
        parts = [one for one in self.failing if isinstance(one, int)]
        if parts and subject != parts[0]:
            return False
        return not (parts and any(isinstance(a, PutPart | PutChunk) for a in self.flying))

    @property
    def unsaved(self) -> bool:
        """Whether there may be checked bytes that are neither in chunks nor archived."""
        if self.held is None:
            return self.track.size > 0
        return not self.held.object_there and self.track.size > self.held.there.end

    @property
    def unsaved_bytes(self) -> int:
        """How many bytes are not known to be in chunks or archived."""
        if self.held is None:
            known = max(self.track.floor, Chunks(frozenset(self.acknowledged)).end)
        else:
            known = self.track.size if self.held.object_there else self.held.there.end
        return max(0, self.track.size - known)

    def continues_at(self, floor: int) -> None:
        """Begin the next flush there: the chunks have what comes before it."""
        part, track = self.place.grid.at(floor), self.track
        if part.begin in track.sums:
            self.flushes = Flushes(part.begin, floor)
            self._marks[floor] = Mark(floor, track.crc64_between(part.begin, floor))

    def may_fly(self, action: Action) -> bool:
        """Whether this action may run beside the requests that run now.

        Parts and full chunks run together, each range once. Small chunks run one at a time. Other
        requests for the archive run beside requests for chunks only. A look, and the clearing at
        the end, run alone.
        """
        match action:
            case Look() | Clear():
                return not self.flying
            case PutChunk():
                return action not in self.flying
            case Flush() | Merge() | DeleteChunks() | Compare():
                return not any(isinstance(other, type(action)) for other in self.flying)
            case PutPart(part) | CopyPart(part, _):
                same = PutPart | CopyPart | PutChunk
                return not any(isinstance(o, same) and o.part == part for o in self.flying)
            case CreateUpload(copying=False):  # what flies as a chunk now may want to be copied
                return all(isinstance(other, Flush | Merge | DeleteChunks) for other in self.flying)
        return all(isinstance(other, ForChunks) for other in self.flying)

    def request(self, action: Action, chunk: Chunk | None) -> Callable[[], object]:
        """The request for an action, with everything that it needs of the track as it is now."""
        place, track = self.place, self.track
        upload_id = (self.held.upload_id if self.held else None) or ""
        match action:
            case Flush() | Merge() | PutChunk():
                assert chunk is not None  # noqa: S101 - from `chunk_for`
                self.sent_bytes += chunk.size
                return lambda: place.put_chunk(chunk)
            case Compare(chunks, read):
                return lambda: place.compare(chunks, read=read)
            case DeleteChunks(chunks):
                return lambda: place.delete_chunks(chunks)
            case PutPart(part):
                self.sent_bytes += part.end - part.begin
                crc = track.digest.part_crc64(part)
                return lambda: place.put_part(upload_id, part, crc)
            case CopyPart(part, source):
                return lambda: place.copy_part(upload_id, part, source)
            case PutWhole():
                self.sent_bytes += track.size
                return place.put_whole
            case CreateUpload(copying):
                return lambda: place.create_upload(copying=copying)
            case Complete():
                parts = [self.parts[number] for number in sorted(self.parts)]
                return lambda: place.complete(upload_id, parts)
            case Verify():
                return place.verify
            case PutEntry():
                return place.put_entry
            case Clear():
                return place.clear
            case _:
                is_new = not (self.failing or self.parts or self.acknowledged)
                if is_new and track.closed and track.size < place.grid.length(1):
                    return place.look_at_chunks
                wanted = place.wanted()
                return lambda: place.look(wanted)

    def learn(self, action: Action, chunk: Chunk | None, value: object, now: float) -> None:
        """Note the answer to a request."""
        held = self.held or Held()
        if isinstance(action, Look):
            assert isinstance(value, Looked)  # noqa: S101 - what look returns
            self.held = self._looked(value)
        elif isinstance(action, ForChunks):
            self.held = self._learned_chunks(held, action, chunk, value, now)
        else:
            self.held = self._learned_archive(held, action, value)

    def _learned_chunks(
        self, held: Held, action: ForChunks, chunk: Chunk | None, value: object, now: float
    ) -> Held:
        match action:
            case Compare(chunks, read):
                assert isinstance(value, frozenset)  # noqa: S101 - what compare returns
                self._lose(chunks - value)
                self.acknowledged.update(dict.fromkeys(value, now))
                if read:
                    self.named -= chunks
                else:
                    self.named |= {one for one in value if one.end > self.track.floor}
                there = held.chunks.minus(chunks).plus(value)
                named = frozenset(self.named) & there.all
                return replace(held, chunks=there, listed=held.listed.minus(chunks), named=named)
            case DeleteChunks(chunks):
                self._lose(chunks)
                chunks_left, named = held.chunks.minus(chunks), held.named - chunks
                return replace(held, chunks=chunks_left, named=named)
        assert chunk is not None  # noqa: S101 - from `chunk_for`
        return replace(held, chunks=held.chunks.plus([chunk]))

    def _lose(self, chunks: Iterable[Chunk]) -> None:
        """Note that these are not there any more."""
        for chunk in chunks:
            self.acknowledged.pop(chunk, None)
            self.named.discard(chunk)

    def _learned_archive(self, held: Held, action: ForArchive, value: object) -> Held:
        match action:
            case CreateUpload():
                self.parts = {}
                return replace(held, upload_id=str(value), parts=frozenset())
            case PutPart(part) | CopyPart(part, _):
                assert isinstance(value, PartInfo)  # noqa: S101 - what a part's request returns
                self.parts[part.number] = value
                self.copied += isinstance(action, CopyPart)
                return replace(held, parts=frozenset(self.parts))
            case Verify():
                return replace(held, verified=True)
            case PutEntry():
                return replace(held, entry_there=True)
            case Clear():
                return replace(held, cleared=True)
            case PutWhole():  # of uploads under its key, the audit takes care
                is_alone = not held.there and not self.failing
                return replace(held, object_there=True, verified=value is True, cleared=is_alone)
        return replace(held, object_there=True)  # Complete

    def _looked(self, found: Looked) -> Held:
        self.parts = {}
        self.listed = {info.number: info for info in found.parts}
        known = found.chunks.all & frozenset(self.acknowledged)
        return Held(
            object_there=found.object_there,
            upload_id=found.upload_id,
            copies=self.copies,
            chunks=Chunks(known),
            listed=found.chunks.minus(known),
            named=frozenset(self.named) & known,
        )

    def has_taken_up(self, action: Action) -> bool:
        """Count a part that was there already instead of sending it, if it has our bytes."""
        if self.held is None or not isinstance(action, PutPart | CopyPart):
            return False
        part = action.part
        info = self.listed.pop(part.number, None)
        if info is None:
            return False
        if not self.place.is_ours(info, part, self.track.digest.part_crc64(part)):
            return False
        self.parts[part.number] = info
        self.taken_up += 1
        self.held = replace(self.held, parts=frozenset(self.parts))
        return True

    def late(self, now: float, interval: float) -> bool:
        """Whether the full chunk that a flush waited for is still on its way a flush later."""
        return self._waiting_since is not None and now - self._waiting_since >= interval

    def wait_for_chunk(self, now: float) -> None:
        """Note that a flush is due and a full chunk with its bytes is on its way."""
        if self._waiting_since is None:
            self._waiting_since = now

    def chunk_for(
        self, action: Flush | Merge | PutChunk, now: float, interval: float
    ) -> Chunk | None:
        """The chunk that an action puts; None if the checksum of its bytes is not known.

        Remembers the GTID set here, so that it is known for the chunk's end.
        """
        digest = self.track.digest
        if isinstance(action, PutChunk):
            part = action.part
            if now - self._snapshot_at >= interval:
                self.remember(now)
            return Chunk(part.begin, part.end, digest.part_crc64(part))
        part = self.place.grid.at(action.begin)
        if action.end == part.end:
            mark: Mark | None = Mark(part.end, digest.part_crc64(part))
        elif isinstance(action, Flush) and digest.mark.offset == action.end:
            mark = self._marks[action.end] = digest.mark
        else:
            mark = self._marks.get(action.end)
        since = Mark(part.begin) if action.begin == part.begin else self._marks.get(action.begin)
        if since is None or mark is None:
            return None
        if isinstance(action, Flush):
            self.remember(now)
        return Chunk(action.begin, action.end, mark.crc64_since(since))

    def acknowledge(self, action: Flush | Merge | PutChunk, chunk: Chunk, now: float) -> None:
        """The store has this chunk."""
        self.acknowledged[chunk] = now
        self.named.discard(chunk)
        self._waiting_since = None
        part = self.place.grid.at(chunk.begin)
        if isinstance(action, Merge):
            if self.flushes.merge == (action.begin, action.end):
                self.flushes = self.flushes.merged()
        elif isinstance(action, PutChunk) or chunk.end == part.end:
            self._marks = {at: mark for at, mark in self._marks.items() if at > part.begin}
        else:
            if (chunk.begin, part.begin) != (self.flushes.end, self.flushes.base):
                self.flushes = Flushes.start(part.begin)
            self.flushes = self.flushes.flushed(chunk.end)

    def lost_chunks(self, names: Container[str], asked_at: float) -> frozenset[Chunk]:
        """Forget and return the chunks that a listing since `asked_at` should have, and has not."""
        if self.held is None or self.held.object_there:
            return frozenset()
        going = {chunk for a in self.flying if isinstance(a, DeleteChunks) for chunk in a.chunks}
        lost = frozenset(
            chunk
            for chunk in self.held.chunks
            if chunk not in going
            and self.acknowledged.get(chunk, asked_at) < asked_at
            and str(chunk) not in names
        )
        chunks, named = self.held.chunks.minus(lost), self.held.named - lost
        self.held = replace(self.held, chunks=chunks, named=named)
        self._lose(lost)
        return lost

    def forget(self) -> None:
        """Forget what the store has, but for the chunks that it has acknowledged."""
        self.held = None
        self.parts = {}
        self._waiting_since = None

    def give_up_clearing(self) -> None:
        """Leave the archived binlog's leftovers in the store: they do no harm."""
        if self.held is not None:
            self.held = replace(self.held, cleared=True)

    def without_copies(self) -> None:
        """Note that the store cannot copy chunks into parts."""
        self.copies = False
        if self.held is not None:
            self.held = replace(self.held, copies=False)

    def reached(self) -> tuple[int, Gtids | None] | None:
        """How far the chunks reach, with the GTID set there; None if nothing new is known.

        If the GTID set at their end is not known, an earlier offset where it is.
        """
        durable = self.held.chunks.end if self.held else 0
        if durable >= self.track.size:
            self._snapshots.clear()
            return self.track.size, self.track.gtids_after()
        passed = [snapshot for snapshot in self._snapshots if snapshot[0] <= durable]
        del self._snapshots[: len(passed)]
        return passed[-1] if passed else None

    def remember(self, now: float) -> None:
        """Remember the size and the GTID set; `reached` tells them once that much is durable."""
        self._snapshot_at = now
        self._snapshots.append((self.track.size, self.track.gtids_after()))


def urgency(job: Job) -> int:
    """The smaller, the sooner.

    A binlog that is whole in the bucket needs a few short requests until it can leave the spool.
    Bytes that are not durable yet go before copies of those that are.
    """
    if job.held is not None and job.held.object_there:
        return 0
    return 1 if job.unsaved else 2
