"""Uploads binlogs from the spool into the bucket: it does what `decide.decide` says.

It runs in the daemon's loop; the requests run in `Workers`, whose outcomes come back to the loop.
Binlogs of all lineages are in one list.

Law: nothing that it remembers has to be true. After any error of the store it forgets what it knew
of that binlog and looks again, because the store may have acted although its answer was lost. A
body is a range of a file, read again at each attempt. No archived object is replaced. Chunks are
deleted only if longer chunks or an archived object have their bytes; nothing waits for a deletion
that fails.
"""

import math
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from queue import SimpleQueue
from types import UnionType
from typing import TypeVar

from binlog2s3.archive.catalog import Catalog
from binlog2s3.archive.parts import Grid
from binlog2s3.binlog.names import BinlogName
from binlog2s3.config.stream import MIN_PART_SIZE, Config
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
from binlog2s3.status.metrics import Timings
from binlog2s3.status.model import UploadStatus
from binlog2s3.store.s3 import Store
from binlog2s3.stream.coverage import Coverage
from binlog2s3.stream.decide import Limits, Observed, decide
from binlog2s3.stream.job import (
    Action,
    Clear,
    Compare,
    Complete,
    CopyPart,
    DeleteChunks,
    Failing,
    Flush,
    ForArchive,
    ForChunks,
    Job,
    Look,
    PutChunk,
    PutEntry,
    PutPart,
    PutsChunk,
    PutWhole,
    Release,
    urgency,
)
from binlog2s3.stream.remote import Held, Plants, RemoteBinlog, abort_uploads, sweep
from binlog2s3.stream.spool import Spool
from binlog2s3.stream.tail import Track
from binlog2s3.stream.telling import Alive
from binlog2s3.stream.waiting import Stop, delay, doubled, unless
from binlog2s3.workers import Outcome, Workers

T = TypeVar("T")
N = TypeVar("N", int, float)
_log = Log("uploader")
_POLL_SECONDS = 0.05
_COUNT_SECONDS = 1.0
_DIRECT_SECONDS = 10.0
_LATEST = 900.0
_DELETE_SECONDS = 60.0
_WORTH = 4 << 20
"""A file with so many bytes is deleted in a full spool."""
_ACTS = PutsChunk | PutPart | CopyPart | PutWhole | Complete | PutEntry


class RetriedRequests:
    """Since when requests that are being retried have failed. Thread-safe.

    A thread makes one request at a time, so its failure ends with that request. If the request is
    given up, the next one that succeeds shows that the store is back.
    """

    def __init__(self) -> None:
        self._failing: dict[int, float] = {}  # by thread: since when its request has been failing
        self._given_up: float | None = None  # since when one failed that was given up
        self._lock = threading.Lock()
        self._back_at = -math.inf  # when a request that had failed succeeded, the last time

    @property
    def failing_since(self) -> float | None:
        """When the request that has been failing for longest began to fail; None without one."""
        return min(self._failing.copy().values(), default=None)

    def failed(self, now: float) -> None:
        """The calling thread's request failed and is retried."""
        self._failing.setdefault(threading.get_ident(), now)

    def over(self, *, succeeded: bool, now: float) -> tuple[float, bool] | None:
        """The calling thread's request succeeded, or was given up after a failure.

        Returns, if requests that failed are over with this success: for how many seconds they had
        failed, and whether it is the first success since then.
        """
        since = self._failing.pop(threading.get_ident(), None)
        if since is None and self._given_up is None:
            return None
        with self._lock:
            since = least([since, self._given_up])
            self._given_up = None if succeeded else since
            if since is None or not succeeded:
                return None
            known, self._back_at = self._back_at, now
        return now - since, since > known


@dataclass(slots=True)
class Counts:
    """Since a stream began: what it sent, made durable and archived, requests that failed.

    `acts`: requests that brought bytes, or an entry, into the bucket. `last_error`: when, its text
    and its hint; "" before the first. `clean_up_error`: why leftovers in the bucket could not be
    deleted, the last time that it was tried; "" if they could. `timings`: those of the process.
    `retried`: what fails and is being tried again.
    """

    sent_bytes: int = 0
    durable_bytes: int = 0
    archived_binlogs: int = 0
    acts: int = 0
    failures: int = 0
    last_error: tuple[datetime | None, str, str] = (None, "", "")
    clean_up_error: str = ""
    timings: Timings = field(default_factory=Timings)
    retried: RetriedRequests = field(default_factory=RetriedRequests)

    def failed(self, error: StoreError) -> None:
        """Count a request that failed, also one that is repeated. Called by any thread."""
        self.failures += 1
        self.last_error = (datetime.now(UTC), str(error), error.hint)


# What the link carries

_WINDOW_SECONDS = 2.0
_WEIGHT = 0.3
_TELLING = 512 << 10
_LONGEST_FLUSH = 10.0
_PARTS_SECONDS = 5.0
AT_A_TIME = 15
"""Large bodies, or copies, on their way at a time if the link is not known to carry more."""
_TWICE, _BACK = 2.1, 3.0
"""Flushes get rarer if the link carries less than the first times the growth, until it carries the
second times."""


class UploadPace:
    """What the link carries, and what follows from it for the uploads.

    - `most`: so many full chunks are sent at a time. Seven that share a slow link arrive together,
      and until then none of them is durable.
    - `parts`: so many parts are sent at a time. Far away a connection carries little, and more of
      them carry more; over a slow link each one would only take longer.
    - `bytes_per_second`: what all uploads together reached lately; 0 if that is not known yet.
    - `flush_interval`: seconds between two small chunks. A byte that is sent in a small chunk is
      sent again in the full one. If the link cannot carry both, the interval is 10 s, or what was
      asked for if that is longer.
    """

    def __init__(self, workers: int, flush_interval: float) -> None:
        self._greatest = max(1, workers - 1)
        self._least = min(2, self._greatest)
        self._asked_for = flush_interval
        self._growth: float | None = None
        self._measured: tuple[float, int] | None = None
        self.most = min(AT_A_TIME, self._greatest)
        self.bytes_per_second = 0.0
        self.flush_interval = flush_interval

    @property
    def stretched(self) -> bool:
        """Whether the flush interval is longer than what was asked for."""
        return self.flush_interval > self._asked_for

    def carries(self, size: int, seconds: float) -> bool:
        """Whether the link carries so many bytes in this time; False if that is not known yet."""
        return size <= self.bytes_per_second * seconds

    def parts(self, length: int) -> int:
        """So many parts of this many bytes at a time: what the link carries in five seconds."""
        return max(AT_A_TIME, int(self.bytes_per_second * _PARTS_SECONDS / length))

    def sent(self, size: int, seconds: float, at_a_time: int) -> None:
        """Learn from bytes that arrived while so many full chunks and parts were on their way.

        Small bodies tell nothing: they take as long as the answer.
        """
        if size < _TELLING:
            return
        reached = size * at_a_time / max(seconds, 0.001)
        known = self.bytes_per_second
        self.bytes_per_second = known + _WEIGHT * (reached - known) if known else reached

    def took(self, seconds: float) -> None:
        """Learn from a full chunk that has arrived: more or fewer at a time from now on."""
        soon = 2 * self._asked_for
        if seconds > soon:
            self.most = max(self._least, self.most - 1)
        elif seconds < soon / 2:
            self.most = min(self._greatest, self.most + 1)

    def grown(self, size: int, now: float) -> None:
        """Learn how fast the binlogs grow. `size`: of all that was read so far."""
        if self._measured is None:
            self._measured = (now, size)
        since, before = self._measured
        if now - since < _WINDOW_SECONDS:
            return
        rate, known = max(0, size - before) / (now - since), self._growth
        self._measured = (now, size)
        self._growth = rate if known is None else known + _WEIGHT * (rate - known)
        needed = self._growth * (_BACK if self.stretched else _TWICE)
        slow = 0 < self.bytes_per_second < needed
        self.flush_interval = max(self._asked_for, _LONGEST_FLUSH if slow else 0.0)


# The uploads


@dataclass(frozen=True, slots=True)
class LiveKeys:
    """All keys below `live/`, which were listed since `asked_at`."""

    keys: list[str]
    asked_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Uploading:
    """What the loop has counted, at one moment.

    `failing`: the request that is longest without success, None if none fails. `oldest_commit_us`:
    of the oldest transaction that is not durable; `newest_commit_us`: of the newest that is.
    """

    uploads: UploadStatus
    failing: Failing | None = None
    oldest_commit_us: int | None = None
    newest_commit_us: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class _Token:
    """What was asked for, and which upload was known of then."""

    job: Job
    action: Action
    at: float
    upload_id: str | None


class Uploader:
    """Uploads the tracks that it is given, the oldest first, several requests at a time.

    The loop calls its methods, other threads only `hand_in`, `try_again`, `is_behind` and the
    attributes. `coverage` is of the lineage that grows, None while there is none. With a flush
    interval of 0 nothing is uploaded as chunks. `bodies` is the same store for what sends bytes of
    binlogs: it does not repeat them, the uploader decides when they go again. `plants` looks for
    what somebody put there before. `foreign` are the keys that were logged already because they are
    not of our format. `counts` says what was done; `uploading` what is on its way, counted about
    once a second; `round_at` is when `step` was last called.
    """

    def __init__(
        self,
        *,
        catalog: Catalog,
        spool: Spool,
        workers: Workers,
        alive: Alive,
        stop: Stop,
        bodies: Store,
        config: Config,
        foreign: frozenset[str] = frozenset(),
        timings: Timings | None = None,
        full_chunk: int = MIN_PART_SIZE,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        flush_interval = config.stream.flush_interval
        self._limits = Limits(grid=Grid(config.s3.part_size), full_chunk=full_chunk)
        self._flushes = flush_interval > 0
        self._copies = True  # until the store has said that it copies no parts
        self._catalog = catalog
        self._bodies = bodies
        self._spool = spool
        self._workers = workers
        self._alive = alive
        self._stop = stop
        self._foreign = set(foreign)
        self._timing = config.timing
        self._clock = clock
        self._listings: SimpleQueue[LiveKeys] = SimpleQueue()
        self._is_back = threading.Event()
        self._jobs: dict[Track, Job] = {}
        self.coverage: Coverage | None = None
        self._empty_from: BinlogName | None = None
        self._pressed = False
        self._gone = 0  # bytes of the binlogs that it has no job for any more
        self._newest_commit_us: int | None = None
        self._archived: list[tuple[BinlogName, str]] = []  # and their keys, since the last audit
        self._archived_before: list[tuple[BinlogName, str]] = []  # since the audit before that one
        self._taken_at: dict[type[Action], float] = {}
        self._count_at = 0.0
        self.pace = UploadPace(workers.count, flush_interval)
        self.counts = Counts() if timings is None else Counts(timings=timings)
        self.plants = Plants(catalog)
        self._without_entry: dict[Coverage, BinlogName] = {}  # the first one, by history
        self.uploading: Uploading | None = None
        self.round_at = clock()

    def open(self, coverage: Coverage, empty_from: BinlogName | None = None) -> None:
        """Upload what is added from now on under this lineage, and tell it how far it is.

        `empty_from`: of this binlog, and those after it, nobody has put anything yet.
        """
        coverage.grows = True
        self.coverage, self._empty_from = coverage, empty_from

    def end_history(self) -> None:
        """End the lineage that grows: what is left of it is still uploaded.

        From now on, a binlog of it that contradicts the bucket stays in the spool.
        """
        if self.coverage is not None:
            self.coverage.grows = False
        self.coverage = None

    def add(self, track: Track) -> None:
        """Upload this binlog of the lineage that grows. It may still grow."""
        coverage = self.coverage
        assert coverage is not None  # noqa: S101 - opened before
        for other in self.jobs:
            if other.coverage is coverage and other.track.name == track.name:
                self._forget(other)
        coverage.added(track.name)
        remote = RemoteBinlog(
            self._catalog,
            coverage.lineage.id,
            track,
            # another entry may hide this one; not asked in a history that has ended
            lambda entry: not job.is_past and self.plants.hide_entry(entry),
            bodies=self._bodies,
        )
        is_empty = track.name == self._empty_from  # the first time that it is added
        self._empty_from = track.name.next() if is_empty else None
        self._jobs[track] = job = Job(track, remote, coverage, held=Held(asked=is_empty))
        if track.floor:
            job.continues_at(track.floor)

    def abandon(self, track: Track) -> None:
        """Upload what there is as chunks and free the spool: the source cannot send the rest."""
        job = self._jobs.get(track)
        if job is not None and not track.closed:
            job.unfinishable = True

    def drop(self, track: Track) -> None:
        """Upload no more of a binlog. What is in the bucket of it stays."""
        job = self._jobs.get(track)
        if job is not None:
            self._forget(job)

    def _forget(self, job: Job) -> None:
        del self._jobs[job.track]
        self._gone += job.track.size

    def press(self, *, pressed: bool) -> None:
        """Say whether the spool is full. While it is, everything is uploaded as chunks.

        Call it between two runs only: a binlog that is all in chunks leaves the spool, unless that
        frees next to nothing, and the next run continues behind it.
        """
        self._pressed = pressed
        for job in self.jobs if pressed else ():
            self._relieve(job)

    def _relieve(self, job: Job) -> None:
        track, held = job.track, job.held
        if not track.segments or track.closed or job.unfinishable or job.flying:
            return
        if track.size - track.floor < min(self.grid.length(1), _WORTH):
            return
        if not held.asked or held.object_there or held.named or held.chunks.end < track.size:
            return
        if not track.rewind():  # no run could continue there
            return
        for part in self.grid.parts(track.size, track.floor):
            if part.full and part.begin >= track.floor:
                job.remote.md5(part)  # archiving needs it, and will not have these bytes
        paths = {segment.path for segment in track.segments}
        track.raise_floor()
        freed = self._spool.delete(paths)
        _log.info("left the spool: all is in the bucket", binlog=track.name, size=track.size,
                  freed=freed)  # fmt: skip

    @property
    def grid(self) -> Grid:
        """The parts of all binlogs."""
        return self._limits.grid

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
            if job.flying or (job.unsaved and self._in_chunks(job)):
                return False
        return not self.pending

    def is_behind(self, newest: Coverage | None) -> bool:
        """Whether something of another lineage is not uploaded yet. Any thread may ask."""
        return any(job.coverage is not newest for job in self.jobs)

    @property
    def unsaved_bytes(self) -> int:
        """Checked bytes that are not known to be in chunks or in the archive.

        With a flush interval of 0 those of a growing binlog do not count.
        """
        jobs = self._jobs.values()
        return sum(j.unsaved_bytes for j in jobs if self._flushes or self._in_chunks(j))

    def _in_chunks(self, job: Job) -> bool:
        """Whether a binlog's bytes go into chunks as they come.

        A full spool needs that, unless the binlog is all there and will leave the spool anyway.
        """
        if job.unfinishable or (self._pressed and not (job.direct and job.track.closed)):
            return True
        return self._flushes and not job.direct

    def flush(self) -> None:
        """Upload what is new at the next step, whenever the last flush was."""
        for job in self._jobs.values():
            job.flushed_at = -math.inf

    def count(self) -> Uploading:
        """Count what is on its way."""
        jobs = self.jobs
        parts = PutPart | CopyPart | PutChunk
        commits = [job.track.commits for job in jobs]
        return Uploading(
            uploads=UploadStatus(
                binlogs=len(jobs),
                closed_binlogs=self.pending,
                open_uploads=sum(bool(job.held.upload_id) for job in jobs),
                chunks=sum(len(job.held.chunks.all) for job in jobs),
                parts_in_flight=sum(isinstance(a, parts) for job in jobs for a in job.flying),
                requests_in_flight=self._workers.busy,
                unsaved_bytes=self.unsaved_bytes,
                stretched=self.pace.stretched,
            ),
            failing=min(
                (failing for job in jobs if (failing := job.longest_failing) is not None),
                key=lambda failing: failing.since,
                default=None,
            ),
            oldest_commit_us=least(commit_times.oldest_us for commit_times in commits),
            newest_commit_us=_greatest([self._newest_commit_us, *(c.newest_us for c in commits)]),
        )

    def _count(self) -> None:
        self.round_at = now = self._clock()
        if now < self._count_at:
            return
        self.uploading = self.count()
        self._newest_commit_us = self.uploading.newest_commit_us  # also of a binlog that is dropped
        self._count_at = self._clock() + _COUNT_SECONDS

    def try_again(self) -> None:
        """Have the next step try again what waits after a failure. Called by any thread.

        The store did not answer at all, and does now.
        """
        self._is_back.set()

    def hand_in(self, listing: LiveKeys) -> None:
        """Have the next step compare this listing with what is known. Called by any thread."""
        self._listings.put(listing)

    def step(self, wait_seconds: float) -> None:
        """Start the requests that can be started, and take their outcomes for at most this long."""
        self._count()
        self._alive.tell()
        while not self._listings.empty():
            listing = self._listings.get()
            self._name_foreign(listing.keys)
            self.audit(listing.keys, listing.asked_at)
        if self._is_back.is_set():
            self._is_back.clear()
            for job in self._jobs.values():
                job.try_again()
        if self.coverage is None and not self._jobs and not self._workers.busy:
            self._stop.event.wait(wait_seconds)
            return
        self.start()
        outcome = self._workers.take(wait_seconds)
        while outcome is not None:
            self.take(outcome)
            outcome = self._workers.take(0.0)

    def _name_foreign(self, keys: list[str]) -> None:
        """Log each key below `live/` that is not of our format, once."""
        for key in keys:
            if key not in self._foreign and not self._catalog.layout.is_of("chunk", key):
                self._foreign.add(key)
                _log.warning("left alone: not of this archive's format", key=key)

    def wait_for(self, request: Callable[[], T]) -> T:
        """What a request returns that the loop waits for; after a stop, for a few seconds more.

        Raises what `request` raises; StoreError if the store has not answered by then.
        """

        def meanwhile() -> None:
            self._alive.tell()
            time.sleep(_POLL_SECONDS)

        answer = unless(self.is_drained, request, name="lineage", meanwhile=meanwhile)
        if answer is None:
            raise StoreError("not waited for the store's answer: stopping", transient=True)
        return answer

    def is_drained(self) -> bool:
        """Whether a stop has given running requests their time."""
        return self._stop.is_over(self._timing.drain_seconds)

    def settle(self) -> None:
        """Wait until no request reads from the spool: the process continues as a standby.

        Requests are not tried again after a stop, so each ends within its own timeout.
        """
        while self._workers.busy and not self._stop.signal:
            self._alive.tell()
            self._workers.take(_POLL_SECONDS)

    def start(self) -> None:
        """Start the requests that can be started now."""
        now = self._clock()
        jobs = self.jobs
        self.pace.grown(self._gone + sum(job.track.size for job in jobs), now)
        interval = self.pace.flush_interval
        if self._for_archive:
            jobs.sort(key=urgency)
        self._without_entry = {}
        for job in jobs:
            if not (job.unfinishable or job.held.entry_there):
                first = self._without_entry.get(job.coverage, job.track.name)
                self._without_entry[job.coverage] = min(first, job.track.name)
        for job in jobs:
            waits = job.held.verified and not job.held.entry_there
            if waits and self._comes_after_another(job):
                continue
            free = self._workers.count - self._workers.busy
            if free <= 0:
                return
            self._judge_direct(job)
            due = self._in_chunks(job) and job.unsaved and now >= job.flushed_at + interval
            if job.not_before > now or (free <= self._reserved and not due):
                continue
            self._step(job, due=due, now=now)

    def _step(self, job: Job, *, due: bool, now: float) -> None:
        observed = Observed(
            size=job.track.size,
            closed=job.track.closed,
            held=job.held,
            chunked=self._in_chunks(job),
            copies=self._copies and job.copies,
            flushes=job.flushes,
            due=due,
            late=job.late(now, self.pace.flush_interval),
            unfinishable=job.unfinishable,
            pressed=self._pressed,
        )
        actions = decide(observed, self._limits)
        if job.held.asked:
            failing = job.longest_failing
            job.only(actions)
            self._tell_if_over(job, failing)
        if due and job.held.asked and not any(isinstance(a, Flush) for a in actions):
            job.wait_for_chunk(now)
        for action in actions:
            free = self._workers.count - self._workers.busy
            if free <= (0 if isinstance(action, Flush | Look) else self._reserved):
                continue
            if self._are_enough(action):
                continue
            if isinstance(action, PutEntry) and (
                self._comes_after_another(job) or (job.is_taken and not job.is_past)
            ):
                continue
            if isinstance(action, Release):
                self._release(job)
            elif job.may_fly(action) and job.may_be_tried(
                action, now, self._taken_at, self._urgent_seconds(job, action)
            ):
                self._start(job, action)

    def _urgent_seconds(self, job: Job, action: Action) -> float:
        oldest = next((other for other in self._jobs.values() if other.unsaved), None)
        return job.urgent_seconds(action, pressed=self._pressed, oldest=job is oldest)

    def _tell_if_over(self, job: Job, failing: Failing | None) -> None:
        """Log it if requests for this binlog failed, this one for longest, and none does now."""
        if failing is not None and not job.failing:
            _log.over(
                "uploading again",
                "looking again at the store",
                binlog=job.track.name,
                after_seconds=round(self._clock() - failing.since, 1),
            )

    def _judge_direct(self, job: Job) -> None:
        """Decide once whether a binlog goes into its upload as it comes, without chunks.

        It has to be whole in the bucket within seconds: until then none of it can be read there.
        That is so while a backlog is caught up. What the source still writes gets chunks, and so
        does what comes before the link's pace is known.
        """
        if job.direct is None and job.held.asked and self.pace.bytes_per_second:
            size = None if self._pressed else job.track.source_size
            job.direct = size is not None and self.pace.carries(size, _DIRECT_SECONDS)

    def _comes_after_another(self, job: Job) -> bool:
        """Whether an earlier binlog has no entry yet: entries are written in order.

        A start takes a binlog that is only in chunks, with an entry after it, for a binlog that the
        source could not finish.
        """
        first = self._without_entry.get(job.coverage)
        return first is not None and first < job.track.name

    def _flying(self, kind: UnionType | type[Action]) -> int:
        jobs = self._jobs.values()
        return sum(isinstance(action, kind) for job in jobs for action in job.flying)

    def _are_enough(self, action: Action) -> bool:
        """Whether as many of its kind are on their way as the link, or the store, should get."""
        if isinstance(action, PutChunk):
            return self._flying(PutChunk) >= self._most_full_chunks
        if isinstance(action, PutPart):
            return self._flying(PutPart) >= self.pace.parts(action.brings)
        return isinstance(action, CopyPart) and self._flying(CopyPart) >= AT_A_TIME

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
        parts = self._workers.count * self.grid.length(1)
        quick = self.pace.carries(parts, self.pace.flush_interval)
        if quick and all(job.direct for job in self._jobs.values()):
            return 0
        return 1 if self._flushes and self._workers.count > 1 else 0

    def take(self, outcome: Outcome) -> None:
        """Learn from the outcome of a request. Raises an error that no retry can fix."""
        token = outcome.token
        if not isinstance(token, _Token):  # of `_tidy`, which logs the store's errors
            if outcome.error is not None:
                raise outcome.error
            return
        job, action = token.job, token.action
        job.flying.discard(action)
        if self._jobs.get(job.track) is not job:
            if error := outcome.error:
                _log.info(
                    "a failed request is no longer needed", binlog=job.track.name, error=error
                )
            return
        if outcome.error is not None:
            self._failed(job, action, outcome.error)
            return
        seconds = self._clock() - token.at
        self.pace.sent(action.brings, seconds, 1 + self._flying(PutChunk | PutPart))
        failing = job.longest_failing
        job.succeeded(action)
        self._tell_if_over(job, failing)
        if isinstance(action, PutPart | PutsChunk):
            self._taken_at[type(action)] = self._clock()
        elif isinstance(action, Clear | DeleteChunks):
            self.counts.clean_up_error = ""
        if isinstance(action, PutsChunk):
            _log.debug("chunk put", binlog=job.track.name, chunk=outcome.value)
        if isinstance(action, PutChunk):
            self.pace.took(seconds)
        is_known = isinstance(action, Look | PutsChunk) or (
            # else asked before an error, or of another upload; the look that follows tells
            job.held.asked
            and (token.upload_id == job.held.upload_id or isinstance(action, ForChunks))
        )
        if not is_known:
            return
        unsaved = job.unsaved_bytes
        job.learn(action, outcome.value, self._clock())
        if not job.held.asked:
            return
        if not isinstance(action, Look):  # a look is no progress
            self.counts.acts += isinstance(action, _ACTS)
            self.counts.durable_bytes += max(0, unsaved - job.unsaved_bytes)
        self._tell(job, action)

    def audit(self, keys: Iterable[str], asked_at: float) -> None:
        """Compare what is known with all keys below `live/`, which were listed since `asked_at`.

        A chunk that is missing is uploaded again. What is left of archived binlogs is deleted; the
        uploads of those archived before the last audit are aborted once, because the store may
        perform a request long after it was made.
        """
        chunks_by_lineage: dict[str, dict[str, set[str]]] = {}  # chunks by binlog by lineage
        for key in keys:
            lineage, _, rest = key.removeprefix(self._catalog.layout.live).partition("/")
            binlog, _, chunk = rest.partition("/")
            chunks_by_lineage.setdefault(lineage, {}).setdefault(binlog, set()).add(chunk)
        grown = [self.coverage] if self.coverage is not None else []
        coverages = {*(job.coverage for job in self._jobs.values()), *grown}
        growing = {(job.lineage, str(job.track.name)) for job in self._jobs.values()}
        for job in self._jobs.values():
            name = job.track.name
            for lost in sorted(
                job.lost_chunks(chunks_by_lineage.get(job.lineage, {}).get(str(name), ()), asked_at)
            ):
                job.flushed_at = -math.inf
                if not job.held.chunks.cover(lost.begin, lost.end, 0):
                    _log.warning("chunk vanished, putting it again", binlog=name, chunk=lost)
        for coverage in coverages:
            lineage = coverage.lineage.id
            for text in chunks_by_lineage.get(lineage, ()):
                if (lineage, text) not in growing and _is_archived(text, coverage):
                    self._sweep(lineage, BinlogName.parse(text))
        for name, key in self._archived_before:
            self._tidy(name, partial(abort_uploads, self._catalog.store, key))
        self._archived_before, self._archived = self._archived, []

    def sweep(self, name: BinlogName) -> None:
        """Delete what is left of the upload of an archived binlog of the lineage that grows."""
        assert self.coverage is not None  # noqa: S101 - opened before
        self._sweep(self.coverage.lineage.id, name)

    def _sweep(self, lineage: str, name: BinlogName) -> None:
        self._tidy(name, partial(sweep, self._catalog, lineage, name))

    def _tidy(self, name: BinlogName, request: Callable[[], None]) -> None:
        def tidy() -> None:
            try:
                request()
            except StoreError as error:
                self._left(name, error)
            else:
                self.counts.clean_up_error = ""

        self._workers.submit(name, tidy)

    def _left(self, name: BinlogName, error: StoreError) -> None:
        """Note that something was not deleted: the next audit tries it again."""
        self.counts.clean_up_error = str(error)
        _log.recurring("leftovers not deleted", binlog=name, error=error, hint=error.hint)

    def _start(self, job: Job, action: Action) -> None:
        now, before = self._clock(), job.sent_bytes
        request = job.request(action, now, self.pace.flush_interval)
        if request is None:
            return
        if isinstance(action, Flush):
            job.flushed_at = now
        if isinstance(action, Compare):
            job.remember(now)
        if isinstance(action, ForArchive):
            job.begun_at = job.begun_at or now
        job.flying.add(action)
        self.counts.sent_bytes += job.sent_bytes - before
        self._workers.submit(_Token(job, action, now, job.held.upload_id), request)

    def _tell(self, job: Job, action: Action) -> None:
        """Tell the lineage how far it is, and what a look has found.

        Count how long commits took to become durable, by the source's clock and ours.
        """
        track = job.track
        if isinstance(action, Look):
            if offered := len(job.held.offered):
                _log.info("continuing an unfinished upload", binlog=track.name, parts=offered)
            if job.held.listed:
                _log.info("continuing with the chunks in the bucket", binlog=track.name,
                          chunks=len(job.held.listed.all))  # fmt: skip
        now = us_of(datetime.now(UTC))
        for commit_us in job.tell(action):
            self.counts.timings.durable.observe(max(0, now - commit_us) / 1e6)

    def _failed(self, job: Job, action: Action, error: BaseException) -> None:
        if isinstance(error, TakenError):
            job.is_taken = True
            if job.is_past:  # it was asked before
                return
        elif isinstance(error, ForkError):
            self._leave_from(job, error)
            if job.is_past:
                return
        if not isinstance(error, StoreError) or isinstance(error, StoreSettingError):
            raise error
        missing = isinstance(error, ObjectMissingError | UploadMissingError)
        if isinstance(action, Clear | DeleteChunks) and not missing:
            if isinstance(action, Clear):  # what is left does no harm
                job.held = action.learned(job.held, None)
            job.deletes_from = self._clock() + _DELETE_SECONDS
            self._left(job.track.name, error)
            return
        if isinstance(action, CopyPart) and isinstance(error, UnsupportedError):
            self._copies = False
            _log.warning("the store copies no parts: they are sent", binlog=job.track.name,
                         error=error)  # fmt: skip
            return
        job.forget()
        now = self._clock()
        failing = job.failed(action, error, now)
        self.counts.failed(error)
        quick = isinstance(error, PreconditionError) and failing.failures == 1
        if isinstance(action, CopyPart) and not error.transient and not missing:
            quick = True
            job.copies = False
        pause = 0.0 if quick else delay(failing.failures, self._timing)
        job.not_before = now + pause
        paced = 0.0
        if failing.sent_bytes:
            paced = job.in_vain.wait(failing.sent_bytes, job.track.size, now)
        pause = max(pause, min(doubled(1.0, 2 * failing.failures, _LATEST), paced))
        failing.not_before = now + pause
        latest = max(pause, paced)  # sooner, if the store takes others
        _log.recurring(
            "looking again at the store",
            binlog=job.track.name,
            after=type(action).__name__,
            error=error,
            hint=error.hint,
            again_in_seconds=round(min(latest, self._urgent_seconds(job, action)), 1),
        )

    def _leave_from(self, first: Job, error: ForkError) -> None:
        """Upload no more of a binlog, nor of those after it: they are of another history."""
        for job in self.jobs:
            if job.coverage is first.coverage and job.track.name >= first.track.name:
                self._forget(job)
                _log.error("left in the spool: the bucket has other bytes", error,
                           binlog=job.track.name)  # fmt: skip

    def _release(self, job: Job) -> None:
        track = job.track
        self._forget(job)
        track.commits.passed(track.size)
        self._newest_commit_us = _greatest((self._newest_commit_us, track.commits.newest_us))
        if job.unfinishable and job.held.object_there:
            # it was never compared with ours, so ours stays, and nothing is claimed
            _log.warning("left in the spool: an archived one is there", binlog=track.name)
            return
        if job.unfinishable:
            self._sweep(job.lineage, track.name)  # its upload will never be completed
            freed = self._spool.delete({segment.path for segment in track.segments})
            job.coverage.given_up(track)
            _log.warning("kept as chunks", binlog=track.name, size=track.size, freed=freed)
            return
        paths = {segment.path for segment in track.segments}
        freed = self._spool.release(track.name, job.lineage, paths)
        self._archived.append((track.name, job.remote.key))
        self.counts.archived_binlogs += 1
        _log.info(
            "binlog archived",
            binlog=track.name,
            size=track.size,
            transactions=track.scanner.transactions,
            parts=len(job.held.parts) or 1,
            copied=job.copied,
            taken_up=job.taken_up,
            sent=job.sent_bytes,
            freed=freed,
            took_seconds=round(self._clock() - job.begun_at, 3),
        )


def _is_archived(text: str, coverage: Coverage) -> bool:
    try:
        return coverage.has(BinlogName.parse(text))
    except ValueError:  # not of our format
        return False


def least(values: Iterable[N | None]) -> N | None:
    """The least of the values that are known; None if none is."""
    return min((value for value in values if value is not None), default=None)


def _greatest(values: Iterable[int | None]) -> int | None:
    return max((value for value in values if value is not None), default=None)
