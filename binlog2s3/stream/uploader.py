"""Uploads binlogs from the spool into the bucket: it does what `decide.decide` says.

It runs in the daemon's loop; the requests run in `Workers`, whose outcomes come back to the loop.

Law: nothing that it remembers has to be true. After any error of the store it forgets what it knew
of that binlog and looks again, because the store may have acted although its answer was lost. A
body is a range of a file, read again at each attempt. No archived object is replaced.
"""

import math
import random
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from types import UnionType

from binlog2s3.archive.chunks import Chunk
from binlog2s3.archive.layout import Layout
from binlog2s3.binlog.names import BinlogName
from binlog2s3.errors import (
    ForkError,
    ObjectMissingError,
    PreconditionError,
    StoreError,
    StoreSettingError,
    TakenError,
    UnsupportedError,
    UploadMissingError,
)
from binlog2s3.formatting import us_of
from binlog2s3.log import Log
from binlog2s3.store.s3 import Store
from binlog2s3.stream.decide import (
    Action,
    Clear,
    Compare,
    Complete,
    CopyPart,
    DeleteChunks,
    Flush,
    ForArchive,
    ForChunks,
    Limits,
    Look,
    Merge,
    Observed,
    PutChunk,
    PutEntry,
    PutPart,
    PutWhole,
    Release,
    decide,
    sent_by,
)
from binlog2s3.stream.job import Job, urgency
from binlog2s3.stream.leftovers import Leftovers
from binlog2s3.stream.plants import Plants
from binlog2s3.stream.remote import RemoteBinlog
from binlog2s3.stream.retry import doubled
from binlog2s3.stream.spool import Spool
from binlog2s3.stream.tail import Track
from binlog2s3.stream.upload_counts import Counts, UploadPace
from binlog2s3.stream.watermark import Coverage
from binlog2s3.workers import Outcome, Workers

_log = Log("uploader")
_LONGEST_WAIT = 10.0
_DIRECT_SECONDS = 10.0
_LATEST = 900.0
_DELETE_SECONDS = 60.0
_WORTH = 4 << 20
"""A file with so many bytes is deleted in a full spool."""
_ACTS = Flush | Merge | PutChunk | PutPart | CopyPart | PutWhole | Complete | PutEntry


@dataclass(frozen=True, slots=True, eq=False)
class _Token:
    """What was asked for, by which uploader, and which upload it knew of then."""

    owner: "Uploader"
    job: Job
    action: Action
    chunk: Chunk | None
    at: float
    upload_id: str | None


def take(outcome: Outcome) -> None:
    """Give an outcome to the uploader that asked. Raises an error that no retry can fix."""
    if isinstance(outcome.token, _Token):
        outcome.token.owner.take(outcome)
    elif outcome.error is not None:  # of `Leftovers`, which log the store's errors
        raise outcome.error


def backoff(failures: int) -> float:
    """Seconds until the next look at the store after this many failures in a row, with jitter."""
    return random.uniform(0, doubled(0.5, failures, _LONGEST_WAIT))  # noqa: S311 - no secret


class Uploader:
    """Uploads the tracks that it is given, the oldest first, several requests at a time.

    `flush_interval` is in seconds; with 0 nothing is uploaded as chunks. `coverage` is told how far
    everything is in the bucket, `totals` counts what was done. `bodies` is the same store for what
    sends bytes of binlogs: it does not repeat them, the uploader decides when they go again.
    """

    def __init__(
        self,
        *,
        store: Store,
        layout: Layout,
        lineage: str,
        limits: Limits,
        flush_interval: float,
        spool: Spool,
        workers: Workers,
        coverage: Coverage,
        bodies: Store | None = None,
        totals: Counts | None = None,
        backoff: Callable[[int], float] = backoff,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._bodies = bodies if bodies is not None else store
        self._layout = layout
        self._lineage = lineage
        self._limits = limits
        self._spool = spool
        self._workers = workers
        self._coverage = coverage
        self.pace = UploadPace(workers.count, flush_interval)
        self._backoff = backoff
        self._clock = clock
        self._jobs: dict[BinlogName, Job] = {}
        self._pressed = False
        self._is_past = False
        self._gone = 0  # bytes of the binlogs that it has no job for any more
        self.newest_commit_us: int | None = None
        self.totals = totals if totals is not None else Counts()
        self._plants = Plants(store, layout, self.totals)
        self.leftovers = Leftovers(store, layout, lineage, workers, self.totals)
        self._taken_at: dict[type[Action], float] = {}
        self._without_entry: BinlogName | None = None

    def add(self, track: Track) -> None:
        """Upload this binlog, which may still grow."""
        place = RemoteBinlog(
            self._store,
            self._layout,
            self._lineage,
            self._limits.grid,
            track,
            self._is_hidden,
            bodies=self._bodies,
        )
        self._jobs[track.name] = job = Job(track, place)
        if track.floor:
            job.continues_at(track.floor)

    def _is_hidden(self, entry: str) -> bool:
        """Whether this entry may be hidden by another. Not asked in a history that has ended."""
        return not self._is_past and self._plants.hide_entry(entry)

    def abandon(self, track: Track) -> None:
        """Upload what there is as chunks and free the spool: the source cannot send the rest."""
        job = self._jobs.get(track.name)
        if job is not None and job.track is track and not track.closed:
            job.unfinishable = True

    def end_history(self) -> None:
        """End the history: from now on, a binlog that contradicts the bucket stays in the spool."""
        self._is_past = True

    def drop(self, track: Track) -> None:
        """Upload no more of a binlog. What is in the bucket of it stays."""
        job = self._jobs.get(track.name)
        if job is not None and job.track is track:
            self._forget(track)

    def _forget(self, track: Track) -> None:
        del self._jobs[track.name]
        self._gone += track.size

    def press(self, *, pressed: bool) -> None:
        """Say whether the spool is full. While it is, everything is uploaded as chunks.

        Call it between two runs only: a binlog that is all in chunks leaves the spool, unless that
        frees next to nothing, and the next run continues behind it.
        """
        self._pressed = pressed
        for job in list(self._jobs.values()) if pressed else ():
            self._relieve(job)

    def _relieve(self, job: Job) -> None:
        track, held = job.track, job.held
        if not track.segments or track.closed or job.unfinishable or job.flying:
            return
        if track.size - track.floor < min(self._limits.grid.length(1), _WORTH):
            return
        if held is None or held.object_there or held.named or held.chunks.end < track.size:
            return
        if not track.rewind():  # no run could continue there
            return
        for part in self._limits.grid.parts(track.size, track.floor):
            if part.full and part.begin >= track.floor:
                job.place.md5(part)  # archiving needs it, and will not have these bytes
        paths = {segment.path for segment in track.segments}
        track.raise_floor(self._limits.grid)
        freed = self._spool.delete(paths)
        _log.info("left the spool: all is in the bucket", binlog=track.name, size=track.size,
                  freed=freed)  # fmt: skip

    @property
    def jobs(self) -> list[Job]:
        """The binlogs that are not done yet."""
        return list(self._jobs.values())

    @property
    def pending(self) -> int:
        """How many closed binlogs are not archived, and unfinishable ones not all in chunks."""
        return sum(job.track.closed or job.unfinishable for job in self._jobs.values())

    @property
    def done(self) -> bool:
        """Whether everything that can be uploaded is in the bucket."""
        for job in self._jobs.values():
            in_chunks = self._chunked(job) and (self._pressed or not job.direct)
            if job.flying or (job.unsaved and in_chunks):
                return False
        return not self.pending

    @property
    def empty(self) -> bool:
        """Whether there is no binlog to upload."""
        return not self._jobs

    @property
    def unsaved_bytes(self) -> int:
        """Checked bytes that are not known to be in chunks or in the archive."""
        return sum(job.unsaved_bytes for job in self._jobs.values() if self._chunked(job))

    def _chunked(self, job: Job) -> bool:
        return self._limits.chunked or job.unfinishable or self._pressed

    def flush(self) -> None:
        """Upload what is new at the next step, whenever the last flush was."""
        for job in self._jobs.values():
            job.flushed_at = -math.inf

    def step(self) -> None:
        """Start the requests that can be started now."""
        now = self._clock()
        jobs = list(self._jobs.values())
        self.pace.grown(self._gone + sum(job.track.size for job in jobs), now)
        interval = self.pace.flush_interval
        if self._for_archive:
            jobs.sort(key=urgency)
        self._without_entry = min(
            (j.track.name for j in jobs if not (j.unfinishable or (j.held and j.held.entry_there))),
            default=None,
        )
        for job in jobs:
            held = job.held
            waits = held is not None and held.verified and not held.entry_there
            if waits and self._comes_after_another(job):
                continue
            free = self._workers.count - self._workers.busy
            if free <= 0:
                return
            due = self._chunked(job) and job.unsaved and now >= job.flushed_at + interval
            if job.not_before > now or (free <= self._reserved and not due):
                continue
            self._step(job, due=due, now=now)

    def _step(self, job: Job, *, due: bool, now: float) -> None:
        observed = Observed(
            size=job.track.size,
            closed=job.track.closed,
            held=job.held,
            flushes=job.flushes,
            due=due,
            late=job.late(now, self.pace.flush_interval),
            unfinishable=job.unfinishable,
            pressed=self._pressed,
            direct=self._goes_directly(job),
        )
        actions = decide(observed, self._limits)
        if job.held is not None:
            job.only(actions)
        if due and job.held is not None and not any(isinstance(a, Flush) for a in actions):
            job.wait_for_chunk(now)
        for action in actions:
            free = self._workers.count - self._workers.busy
            if free <= (0 if isinstance(action, Flush | Look) else self._reserved):
                continue
            if isinstance(action, PutChunk) and self._flying(PutChunk) >= self._most_full_chunks:
                continue
            if isinstance(action, PutEntry) and (
                self._comes_after_another(job) or (job.is_taken and not self._is_past)
            ):
                continue
            if isinstance(action, Release):
                self._release(job)
            elif (
                job.may_fly(action)
                and not job.has_taken_up(action)
                and job.may_be_tried(
                    action,
                    now,
                    self._taken_at.get(type(action), -math.inf),
                    pressed=self._pressed,
                )
            ):
                self._start(job, action)

    def _goes_directly(self, job: Job) -> bool:
        """Whether a binlog goes into its upload as it comes, without chunks.

        It has to be whole in the bucket within seconds: until then none of it can be read there.
        That is so while a backlog is caught up. What the source still writes gets chunks, and so
        does what comes before the link's pace is known.
        """
        if job.direct is None and job.held is not None and self.pace.bytes_per_second:
            size = None if self._pressed else job.track.source_size
            job.direct = size is not None and self.pace.carries(size, _DIRECT_SECONDS)
        return bool(job.direct)

    def _comes_after_another(self, job: Job) -> bool:
        """Whether an earlier binlog has no entry yet: entries are written in order.

        A start takes a binlog that is only in chunks, with an entry after it, for a binlog that the
        source could not finish.
        """
        return self._without_entry is not None and self._without_entry < job.track.name

    def _flying(self, kind: UnionType | type[Action]) -> int:
        jobs = self._jobs.values()
        return sum(isinstance(action, kind) for job in jobs for action in job.flying)

    @property
    def _most_full_chunks(self) -> int:
        """How many full chunks may be sent at a time.

        If closed binlogs wait, some workers are left to archiving. Otherwise a server that writes
        as fast as the store takes it would fill the spool with binlogs that are all durable.
        """
        bulk = max(1, self._workers.count - self._reserved)
        return min(self.pace.most, bulk - (self._for_archive if self.pending else 0))

    @property
    def _for_archive(self) -> int:
        """How many workers full chunks leave to archiving; 0 if there are too few to share."""
        return 2 if self._workers.count >= 4 else 0

    @property
    def _reserved(self) -> int:
        """How many workers full chunks, parts and copies leave to the next flush.

        None if nothing needs a flush now, and a worker is free again before one is late.
        """
        parts = self._workers.count * self._limits.grid.length(1)
        quick = self.pace.carries(parts, self.pace.flush_interval)
        if quick and all(job.direct for job in self._jobs.values()):
            return 0
        return 1 if self._limits.chunked and self._workers.count > 1 else 0

    def take(self, outcome: Outcome) -> None:
        """Learn from the outcome of a request. Raises an error that no retry can fix."""
        token = outcome.token
        assert isinstance(token, _Token)  # noqa: S101 - `take` has seen it
        job, action = token.job, token.action
        job.flying.discard(action)
        if self._jobs.get(job.track.name) is not job:
            if error := outcome.error:
                _log.info(
                    "a failed request is no longer needed", binlog=job.track.name, error=error
                )
            return
        if outcome.error is not None:
            self._failed(job, action, outcome.error)
            return
        seconds = self._clock() - token.at
        self.pace.sent(sent_by(action), seconds, 1 + self._flying(PutChunk | PutPart))
        failing = job.longest_failing
        job.succeeded(action)
        if failing is not None and not job.failing:
            after = round(self._clock() - failing.since, 1)
            _log.over(
                "uploading again",
                "looking again at the store",
                binlog=job.track.name,
                after_seconds=after,
            )
        if isinstance(action, PutPart | PutChunk):
            self._taken_at[type(action)] = self._clock()
        elif isinstance(action, Clear | DeleteChunks):
            self.totals.clean_up_error = ""
        if token.chunk is not None:
            assert isinstance(action, Flush | Merge | PutChunk)  # noqa: S101 - they alone put chunks
            job.acknowledge(action, token.chunk, self._clock())
            if isinstance(action, PutChunk):
                self.pace.took(seconds)
            _log.debug("chunk put", binlog=job.track.name, chunk=token.chunk)
        if job.held is None and not isinstance(action, Look):
            return  # asked before an error; the look that follows tells
        known_upload = job.held.upload_id if job.held else None
        if token.upload_id == known_upload or isinstance(action, ForChunks):
            unsaved = job.unsaved_bytes
            job.learn(action, token.chunk, outcome.value, self._clock())
            if not isinstance(action, Look):  # a look is no progress
                self.totals.acts += isinstance(action, _ACTS)
                self.totals.durable_bytes += max(0, unsaved - job.unsaved_bytes)
            self._tell(job, action)

    def audit(self, keys: Iterable[str], asked_at: float) -> None:
        """Compare what is known with all keys below `live/`, which were listed since `asked_at`.

        A chunk that is missing is uploaded again. Leftovers of archived binlogs are deleted: see
        `Leftovers`.
        """
        prefix = f"{self._layout.live}{self._lineage}/"
        found: dict[str, set[str]] = {}
        for key in keys:
            if key.startswith(prefix):
                binlog, _, chunk = key.removeprefix(prefix).partition("/")
                found.setdefault(binlog, set()).add(chunk)
        for name, job in self._jobs.items():
            for lost in sorted(job.lost_chunks(found.pop(str(name), ()), asked_at)):
                job.flushed_at = -math.inf
                if job.held and not job.held.chunks.cover(lost.begin, lost.end, 0):
                    _log.warning("chunk vanished, putting it again", binlog=name, chunk=lost)
        for name in self._archived_names(found):
            self.leftovers.sweep(name)
        self.leftovers.audit()

    def _archived_names(self, texts: Iterable[str]) -> Iterator[BinlogName]:
        for text in texts:
            try:
                name = BinlogName.parse(text)
            except ValueError:
                continue
            if self._coverage.has(name):
                yield name

    def _start(self, job: Job, action: Action) -> None:
        now = self._clock()
        chunk = None
        if isinstance(action, Flush | Merge | PutChunk):
            chunk = job.chunk_for(action, now, self.pace.flush_interval)
            if chunk is None:
                return
        if isinstance(action, Flush):
            job.flushed_at = now
        if isinstance(action, Compare):
            job.remember(now)
        if isinstance(action, ForArchive):
            job.begun_at = job.begun_at or now
        job.flying.add(action)
        before = job.sent_bytes
        request = job.request(action, chunk)
        self.totals.sent_bytes += job.sent_bytes - before
        upload_id = job.held.upload_id if job.held else None
        self._workers.submit(_Token(self, job, action, chunk, now, upload_id), request)

    def _tell(self, job: Job, action: Action) -> None:
        """Tell the coverage how far this binlog can be read from the bucket."""
        track = job.track
        if isinstance(action, Look):
            if job.listed:
                _log.info(
                    "continuing an unfinished upload", binlog=track.name, parts=len(job.listed)
                )
            if job.held is not None and job.held.listed:
                _log.info("continuing with the chunks in the bucket", binlog=track.name,
                          chunks=len(job.held.listed.all))  # fmt: skip
        elif isinstance(action, PutEntry):
            self._coverage.archived(track)
            self._time(track.commits.passed(track.size))
        if isinstance(action, Look | Flush | PutChunk | Compare) and (reached := job.reached()):
            offset, gtids = reached
            whole = track.closed and offset == track.size
            self._coverage.reached(track.name, offset, gtids, whole=whole)
            passed = track.commits.passed(offset)
            if not isinstance(action, Look | Compare):  # what was there already took another time
                self._time(passed)

    def _time(self, commits_us: list[int]) -> None:
        """Count how long these commits took to become durable, by the source's clock and ours."""
        now = us_of(datetime.now(UTC))
        for commit_us in commits_us:
            self.totals.durable.add(max(0, now - commit_us) / 1e6)

    def _failed(self, job: Job, action: Action, error: BaseException) -> None:
        if isinstance(error, TakenError):
            job.is_taken = True
            if self._is_past:  # it was asked before
                return
        elif isinstance(error, ForkError):
            self._leave_from(job.track.name, error)
            if self._is_past:
                return
        if not isinstance(error, StoreError) or isinstance(error, StoreSettingError):
            raise error
        missing = isinstance(error, ObjectMissingError | UploadMissingError)
        if isinstance(action, Clear | DeleteChunks) and not missing:
            if isinstance(action, Clear):
                job.give_up_clearing()
            job.deletes_from = self._clock() + _DELETE_SECONDS
            self.leftovers.failed(job.track.name, error)
            return
        if isinstance(action, CopyPart) and isinstance(error, UnsupportedError):
            job.without_copies()
            self._limits = replace(self._limits, copies=False)
            _log.warning("the store copies no parts: they are sent", binlog=job.track.name,
                         error=error)  # fmt: skip
            return
        job.forget()
        now = self._clock()
        failing = job.failed(action, error, now)
        self.totals.failures += 1
        self.totals.last_error = (datetime.now(UTC), str(error), error.hint)
        quick = isinstance(error, PreconditionError) and failing.failures == 1
        if isinstance(action, CopyPart) and not error.transient and not missing:
            quick = True
            job.copies = False
        delay = 0.0 if quick else self._backoff(failing.failures)
        job.not_before = now + delay
        if failing.sent_bytes and job.in_vain.wait(failing.sent_bytes, job.track.size, now) > 0:
            delay = doubled(1.0, 2 * failing.failures, _LATEST)
        failing.not_before = now + delay
        _log.recurring(
            "looking again at the store",
            binlog=job.track.name,
            after=type(action).__name__,
            error=error,
            hint=error.hint,
            again_in_seconds=round(delay, 1),
        )

    def _leave_from(self, name: BinlogName, error: ForkError) -> None:
        """Upload no more of a binlog, nor of those after it: they are of another history."""
        for job in [*self._jobs.values()]:
            if job.track.name >= name:
                self._forget(job.track)
                _log.error("left in the spool: the bucket has other bytes", error,
                           binlog=job.track.name)  # fmt: skip

    def try_again(self) -> None:
        """Try everything again: the store did not answer at all, and does now."""
        for job in self._jobs.values():
            job.not_before = 0.0
            job.in_vain.forget()
            for failing in job.failing.values():
                failing.not_before = 0.0

    def _release(self, job: Job) -> None:
        track = job.track
        if self._jobs.get(track.name) is job:
            self._forget(track)
        track.commits.passed(track.size)
        self.newest_commit_us = track.commits.newest_us or self.newest_commit_us
        if job.unfinishable and job.held is not None and job.held.object_there:
            # it was never compared with ours, so ours stays, and nothing is claimed
            _log.warning("left in the spool: an archived one is there", binlog=track.name)
            return
        if job.unfinishable:
            self.leftovers.sweep(track.name)  # its upload will never be completed
            freed = self._spool.delete({segment.path for segment in track.segments})
            self._coverage.archived(track)
            _log.warning("kept as chunks", binlog=track.name, size=track.size, freed=freed)
            return
        paths = {segment.path for segment in track.segments}
        freed = self._spool.release(track.name, self._lineage, paths)
        self.leftovers.note_archived(track.name)
        self.totals.archived_binlogs += 1
        _log.info(
            "binlog archived",
            binlog=track.name,
            size=track.size,
            transactions=track.scanner.transactions,
            parts=len(job.parts) or 1,
            copied=job.copied,
            taken_up=job.taken_up,
            sent=job.sent_bytes,
            freed=freed,
            took_seconds=round(self._clock() - job.begun_at, 3),
        )
