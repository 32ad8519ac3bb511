"""What the uploads remember of one binlog, and what an action is. No requests, no clock.

That is its `Job`, with what each answer of the store teaches, and what may be tried when.

Law: nothing here is needed to continue. If all of it is lost, a look at the store leads to the same
actions. It only saves requests and bytes. The bytes of an object are a function of (lineage,
binlog, range), so an action that is done twice or late wastes a request and harms nothing. What an
answer teaches depends on the action and on what is known, on nothing else.
"""

import math
from collections import deque
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar

from binlog2s3.archive.chunks import Chunk, Chunks, Flushes
from binlog2s3.archive.parts import Mark, Part
from binlog2s3.archive.writers import Position
from binlog2s3.binlog.gtid import Gtids
from binlog2s3.binlog.names import FilePosition
from binlog2s3.errors import StoreError
from binlog2s3.store.s3 import PartInfo
from binlog2s3.stream.coverage import Coverage
from binlog2s3.stream.remote import Compared, Held, RemoteBinlog
from binlog2s3.stream.tail import Track

Request = Callable[[], object]


# Actions


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

    def request(self, job: "Job") -> Request:
        remote, track = job.remote, job.track
        is_new = not (job.is_failing or job.held.chunks)
        if is_new and track.closed and track.size < remote.grid.length(1):
            return remote.look_at_chunks
        return partial(remote.look, remote.wanted())

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

    def request(self, job: "Job") -> Request:
        return partial(job.remote.compare, self.chunks, read=self.read)

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

    def request(self, job: "Job") -> Request:
        return partial(job.remote.delete_chunks, self.chunks)

    def learned(self, held: Held, answer: object) -> Held:  # noqa: ARG002 - it says: done
        return held.without(self.chunks)


@dataclass(frozen=True, slots=True)
class PutWhole(_Action):
    """Put the closed binlog as one object.

    The answer says whether it is proved, and whether nothing else can be there of the binlog; of
    uploads under its key the audit takes care.
    """

    def request(self, job: "Job") -> Request:
        remote, is_first = job.remote, not job.is_failing
        return lambda: (remote.put_whole(), is_first)

    def learned(self, held: Held, answer: tuple[bool, bool]) -> Held:
        verified, is_first = answer
        cleared = is_first and not held.all_chunks
        return replace(held, object_there=True, verified=verified, cleared=cleared)


@dataclass(frozen=True, slots=True)
class CreateUpload(_Action):
    """Begin a multipart upload. `copying`: some parts will be copied from chunks."""

    copying: bool = False

    def request(self, job: "Job") -> Request:
        return partial(job.remote.create_upload, copying=self.copying)

    def learned(self, held: Held, answer: str) -> Held:
        return replace(held, upload_id=answer, parts={}, offered={})


@dataclass(frozen=True, slots=True)
class TakeUp(_OfPart):
    """See whether a part that was in the upload already has our bytes."""

    info: PartInfo

    def request(self, job: "Job") -> Request:
        crc64 = job.track.digest.part_crc64(self.part)
        return partial(job.remote.is_ours, self.info, self.part, crc64)

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

    def request(self, job: "Job") -> Request:
        crc64 = job.track.digest.part_crc64(self.part)
        return partial(job.remote.put_part, job.held.upload_id or "", self.part, crc64)

    def learned(self, held: Held, answer: PartInfo) -> Held:
        return replace(held, parts={**held.parts, self.part.number: answer})


@dataclass(frozen=True, slots=True)
class CopyPart(_OfPart):
    """Have the store copy a chunk, which has exactly the bytes of a part, into that part."""

    chunk: Chunk

    def request(self, job: "Job") -> Request:
        return partial(job.remote.copy_part, job.held.upload_id or "", self.part, self.chunk)

    def learned(self, held: Held, answer: PartInfo) -> Held:
        return replace(held, parts={**held.parts, self.part.number: answer})


@dataclass(frozen=True, slots=True)
class Complete(_Action):
    """Complete the multipart upload: all parts are there."""

    teaches: ClassVar = {"object_there": True}

    def request(self, job: "Job") -> Request:
        parts = [info for _, info in sorted(job.held.parts.items())]
        return partial(job.remote.complete, job.held.upload_id or "", parts)


@dataclass(frozen=True, slots=True)
class Verify(_Action):
    """Compare the object under the key with our bytes."""

    teaches: ClassVar = {"verified": True}

    def request(self, job: "Job") -> Request:
        return job.remote.verify


@dataclass(frozen=True, slots=True)
class PutEntry(_Action):
    """Write the entry. From then on the binlog is archived."""

    teaches: ClassVar = {"entry_there": True}

    def request(self, job: "Job") -> Request:
        return job.remote.put_entry


@dataclass(frozen=True, slots=True)
class Clear(_Action):
    """Delete the archived binlog's chunks and abort its unfinished uploads."""

    teaches: ClassVar = {"cleared": True}

    def request(self, job: "Job") -> Request:
        return job.remote.clear


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


# A binlog

_PRESSED_SECONDS, _OLDEST_SECONDS = 30.0, 60.0
_HOUR_SECONDS = 3600.0
_QUICKLY = 2
_LEAST_SIZE = 16 << 20


@dataclass(slots=True)
class InVain:
    """The bodies of one binlog that a store took over the network and then refused.

    In any hour they are at most three times the binlog's bytes: two in quick succession, for what
    passes by itself, and the third over the hour. A binlog below 16 MiB counts as 16 MiB.
    """

    _sent: deque[tuple[float, int]] = field(default_factory=deque)

    def add(self, sent_bytes: int, now: float) -> None:
        """Count so many bytes."""
        if sent_bytes:
            self._sent.append((now, sent_bytes))

    def wait(self, body: int, size: int, now: float) -> float:
        """Seconds until so many bytes of a binlog of this size may be sent once more."""
        while self._sent and self._sent[0][0] <= now - _HOUR_SECONDS:
            self._sent.popleft()
        if not self._sent:
            return 0.0
        size, total = max(size, _LEAST_SIZE), sum(sent for _, sent in self._sent) + body
        if total <= _QUICKLY * size:
            return 0.0
        paced = self._sent[-1][0] + min(1.0, body / size) * _HOUR_SECONDS
        return max(0.0, paced - now)

    def forget(self) -> None:
        """Begin anew: the store has changed."""
        self._sent.clear()

    @property
    def latest(self) -> float:
        """When the last body was refused; -inf if none was."""
        return self._sent[-1][0] if self._sent else -math.inf


@dataclass(slots=True)
class Failing:
    """A request that failed, and has not succeeded since.

    `passes`: the error was one that may pass by itself. `sent_bytes`: by the last attempt, which
    may have been two requests. Times are of the uploader's clock.
    """

    since: float
    error: str = ""
    hint: str = ""
    failures: int = 0
    at: float = 0.0
    not_before: float = 0.0
    passes: bool = False
    sent_bytes: int = 0


@dataclass(slots=True, eq=False)
class Job:
    """One binlog and its requests. Times are of the uploader's clock.

    `held` is what the store has of it; `known_since` says since when its chunks are known to have
    our bytes. `direct`: the source had finished the binlog long ago, and it will be whole in the
    bucket within seconds, so it gets no chunks; None until that is decided. `copies`: the store
    can copy its chunks into parts. `is_taken`:
    somebody wrote under its entry's key before; it gets an entry there once it `is_past`.
    `coverage` is told how far the lineage's binlogs are in the bucket.
    """

    track: Track
    remote: RemoteBinlog
    coverage: Coverage
    held: Held = field(default_factory=lambda: Held(asked=False))
    known_since: dict[Chunk, float] = field(default_factory=dict)
    flying: set[Action] = field(default_factory=set)
    flushes: Flushes = field(default_factory=lambda: Flushes.start(0))
    flushed_at: float = -math.inf
    copies: bool = True
    deletes_from: float = 0.0
    failing: dict[Subject, Failing] = field(default_factory=dict)
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
    def lineage(self) -> str:
        """The id of its lineage."""
        return self.coverage.lineage.id

    @property
    def is_past(self) -> bool:
        """Whether the history of its lineage has ended."""
        return not self.coverage.grows

    @property
    def is_failing(self) -> bool:
        """Whether a request has failed, and not succeeded since."""
        return bool(self.failing)

    @property
    def longest_failing(self) -> Failing | None:
        """The failing request that is longest without success; None if none fails."""
        return min(self.failing.values(), key=lambda failing: failing.since, default=None)

    def failed(self, action: Action, error: StoreError, now: float) -> Failing:
        """Note a failure. What fails for longest is tried alone: see `may_be_tried`."""
        failing = self.failing.setdefault(action.subject, Failing(now))
        failing.failures += 1
        failing.at, failing.passes, failing.error, failing.hint = (
            now,
            error.transient,
            str(error),
            error.hint,
        )
        failing.sent_bytes = error.sent_bytes
        self.in_vain.add(error.sent_bytes, now)
        return failing

    def succeeded(self, action: Action) -> None:
        """Note that a request succeeded: what failed of the same bytes does not fail any more."""
        if isinstance(action, TakeUp):  # the part is still to be sent, if it is not ours
            return
        if isinstance(action, PutEntry | Clear):
            self.failing.clear()
            return
        self.failing.pop(action.subject, None)
        if isinstance(action, PutChunk):
            self.failing.pop(Flush, None)

    def try_again(self) -> None:
        """Try everything again at once: the store has changed."""
        self.not_before = 0.0
        self.in_vain.forget()
        for failing in self.failing.values():
            failing.not_before = 0.0

    def only(self, actions: Iterable[Action]) -> None:
        """Forget the failures of what is not wanted any more.

        The store may have acted although its answer was lost. A flush is wanted until all is there,
        also while it is not due.
        """
        wanted = {action.subject for action in actions}
        if wanted & {CreateUpload, Compare}:
            return  # the parts come after it
        over = {CreateUpload, Compare} if self.unsaved else {CreateUpload, Compare, Flush}
        for subject in [*self.failing]:
            if subject not in wanted and (isinstance(subject, int) or subject in over):
                del self.failing[subject]

    def may_be_tried(
        self,
        action: Action,
        now: float,
        taken_at: Mapping[type[Action], float],
        urgent_seconds: float = math.inf,
    ) -> bool:
        """Whether an action may be tried now.

        A failed one waits; while a part of this binlog fails, no other part is sent. No bytes are
        sent beyond what `InVain` allows, unless the store has taken others meanwhile: `taken_at` is
        when it did so last, for each kind. For bytes that it has refused these have to be of their
        kind, and it may only be overloaded; for others, any chunk is a sign. After
        `urgent_seconds`, a part is tried whatever it costs.
        """
        if isinstance(action, DeleteChunks):
            return now >= self.deletes_from
        if isinstance(action, TakeUp):  # it sends nothing, however often the part failed
            return True
        subject = action.subject
        known = self.failing.get(subject)
        refused_at = known.at if known is not None else self.in_vain.latest
        is_urgent = now >= refused_at + urgent_seconds
        if known is not None and known.not_before > now and not is_urgent:
            return False
        body = self.track.size if isinstance(action, PutWhole) else action.brings
        cost = max(body, known.sent_bytes) if known is not None else body
        if known is not None:
            is_taken = known.passes and taken_at.get(type(action), -math.inf) >= known.since
        else:
            alike = PutsChunk if isinstance(action, PutsChunk) else type(action)
            is_taken = any(
                at >= refused_at for kind, at in taken_at.items() if issubclass(kind, alike)
            )
        is_paced = not (is_taken or is_urgent)
        if body and is_paced and self.in_vain.wait(cost, self.track.size, now) > 0:
            return False
        if not isinstance(action, PutPart | PutChunk | PutWhole):
            return True
        parts = [number for number in self.failing if isinstance(number, int)]
        if parts and subject != parts[0]:
            return False
        return not (parts and any(isinstance(a, PutPart | PutChunk) for a in self.flying))

    def urgent_seconds(self, action: Action, *, pressed: bool, oldest: bool) -> float:
        """How long bytes that the store refused may wait at most.

        `pressed`: the spool is full, and the source, which is not read, may purge. `oldest`: it is
        the first of those with bytes that are not durable; for a store that may only be overloaded.
        """
        known = self.failing.get(action.subject)
        if pressed:
            return _PRESSED_SECONDS
        may_pass = isinstance(action, PutsChunk) and (known is None or known.passes)
        return _OLDEST_SECONDS if oldest and may_pass else math.inf

    @property
    def unsaved(self) -> bool:
        """Whether there may be checked bytes that are neither in chunks nor archived."""
        if not self.held.asked:
            return self.track.size > 0
        return not self.held.object_there and self.track.size > self.held.all_chunks.end

    @property
    def unsaved_bytes(self) -> int:
        """How many bytes are not known to be in chunks or archived."""
        if not self.held.asked:
            known = max(self.track.floor, self.held.chunks.end)
        else:
            known = self.track.size if self.held.object_there else self.held.all_chunks.end
        return max(0, self.track.size - known)

    def continues_at(self, floor: int) -> None:
        """Begin the next flush there: the chunks have what comes before it."""
        part, track = self.remote.grid.at(floor), self.track
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
            case PutPart(part) | CopyPart(part) | TakeUp(part):
                same = PutPart | CopyPart | TakeUp | PutChunk
                return not any(isinstance(o, same) and o.part == part for o in self.flying)
            case CreateUpload(copying=False):  # what flies as a chunk now may want to be copied
                return all(isinstance(other, Flush | Merge | DeleteChunks) for other in self.flying)
        return all(isinstance(other, ForChunks) for other in self.flying)

    def request(self, action: Action, now: float, interval: float) -> Callable[[], object] | None:
        """The request for an action, with everything that it needs of the track as it is now.

        None if the checksum of its bytes is not known.
        """
        assert not isinstance(action, Release)  # noqa: S101 - it has none
        if not isinstance(action, PutsChunk):
            self.sent_bytes += self.track.size if isinstance(action, PutWhole) else action.brings
            return action.request(self)
        chunk = self._chunk_for(action, now, interval)
        if chunk is None:
            return None
        self.sent_bytes += chunk.size
        return partial(self.remote.put_chunk, chunk)

    def learn(self, action: Action, answer: Any, now: float) -> None:
        """Note the answer to a request."""
        if isinstance(action, PutsChunk):
            self._count_flush(action, answer)
            self.known_since[answer] = now
        self.copied += isinstance(action, CopyPart)
        self.taken_up += isinstance(action, TakeUp) and bool(answer)
        self._hold(action.learned(self.held, answer), now)

    def _hold(self, held: Held, now: float) -> None:
        before, self.held, since = self.held, held, self.known_since
        if held.chunks is not before.chunks:
            self.known_since = {chunk: since.get(chunk, now) for chunk in held.chunks}

    def late(self, now: float, interval: float) -> bool:
        """Whether the full chunk that a flush waited for is still on its way a flush later."""
        return self._waiting_since is not None and now - self._waiting_since >= interval

    def wait_for_chunk(self, now: float) -> None:
        """Note that a flush is due and a full chunk with its bytes is on its way."""
        if self._waiting_since is None:
            self._waiting_since = now

    def _chunk_for(self, action: PutsChunk, now: float, interval: float) -> Chunk | None:
        """The chunk that an action puts; None if the checksum of its bytes is not known.

        Remembers the GTID set here, so that it is known for the chunk's end.
        """
        digest = self.track.digest
        if isinstance(action, PutChunk):
            part = action.part
            if now - self._snapshot_at >= interval:
                self.remember(now)
            return Chunk(part.begin, part.end, digest.part_crc64(part))
        part = self.remote.grid.at(action.begin)
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

    def _count_flush(self, action: PutsChunk, chunk: Chunk) -> None:
        """Note where the next flush begins: the store has this chunk."""
        self._waiting_since = None
        part = self.remote.grid.at(chunk.begin)
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
        if not self.held.asked or self.held.object_there:
            return frozenset()
        going = {chunk for a in self.flying if isinstance(a, DeleteChunks) for chunk in a.chunks}
        lost = frozenset(
            chunk
            for chunk in self.held.chunks.all - going
            if self.known_since[chunk] < asked_at and str(chunk) not in names
        )
        self._hold(self.held.without(lost), asked_at)
        return lost

    def forget(self) -> None:
        """Forget what the store has, but for the chunks that it has acknowledged."""
        self.held = self.held.after_error()
        self._waiting_since = None

    def tell(self, action: Action) -> list[int]:
        """Tell the lineage how far this binlog can be read from the bucket, after this action.

        Returns when those were committed that it made durable, in microseconds since 1970.
        """
        track, passed = self.track, list[int]()
        if isinstance(action, PutEntry):
            self.coverage.archived(track)
            passed = track.commits.passed(track.size)
        is_of_chunks = isinstance(action, Look | Flush | PutChunk | Compare)
        if is_of_chunks and (reached := self._reached()):
            whole = track.closed and reached.offset == track.size
            self.coverage.reached(reached, whole=whole)
            passed = track.commits.passed(reached.offset)
        # what was there already took another time
        return [] if isinstance(action, Look | Compare) else passed

    def _reached(self) -> Position | None:
        """How far the chunks reach; None if nothing new is known.

        If the GTID set at their end is not known, an earlier offset where it is.
        """
        durable = self.held.chunks.end
        if durable >= self.track.size:
            self._snapshots.clear()
            return Position.of(self.track.end, self.track.gtids_after())
        passed = [snapshot for snapshot in self._snapshots if snapshot[0] <= durable]
        del self._snapshots[: len(passed)]
        if not passed:
            return None
        offset, gtids = passed[-1]
        return Position.of(FilePosition(self.track.name, offset), gtids)

    def remember(self, now: float) -> None:
        """Remember the size and the GTID set; `tell` uses them once that much is durable."""
        self._snapshot_at = now
        self._snapshots.append((self.track.size, self.track.gtids_after()))


def urgency(job: Job) -> int:
    """The smaller, the sooner.

    A binlog that is whole in the bucket needs a few short requests until it can leave the spool.
    Bytes that are not durable yet go before copies of those that are.
    """
    if job.held.object_there:
        return 0
    return 1 if job.unsaved else 2
