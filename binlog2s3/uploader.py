"""Brings binlogs from the spool into the archive: does what `archive.decide` says.

Place in the flow: behind the tailer, whose tracks it is given, in front of the store. Runs in the
daemon's loop; blocking requests run in `Workers`, whose outcomes come back to the loop.

Law: it holds no truth of its own. After any error of the store it forgets what it knew of that
binlog and looks again, because the answer may be lost where the act was done. A body is a range of
a file, read again at each attempt. Nothing under the archive is replaced.
"""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from binlog2s3.archive import (
    Action,
    Complete,
    CreateUpload,
    Grid,
    Held,
    Look,
    Observed,
    PutEntry,
    PutPart,
    PutWhole,
    Release,
    Verify,
    decide,
)
from binlog2s3.binlog import BinlogName
from binlog2s3.catalog import Layout
from binlog2s3.errors import PreconditionError, StoreError, StoreSettingError
from binlog2s3.log import Log
from binlog2s3.place import Looked, Place
from binlog2s3.spool import Spool
from binlog2s3.store import PartInfo, Store
from binlog2s3.tailer import Track
from binlog2s3.workers import Outcome, Workers

_log = Log("uploader")
_LONGEST_WAIT = 60.0


@dataclass(slots=True)
class _Job:
    """One binlog on its way.

    By number: `parts` that the store has from us; `listed` ones that lay there already and count
    once our own bytes have come that far.
    """

    track: Track
    place: Place
    held: Held | None = None
    parts: dict[int, PartInfo] = field(default_factory=dict)
    listed: dict[int, PartInfo] = field(default_factory=dict)
    flying: set[Action] = field(default_factory=set)
    failures: int = 0
    not_before: float = 0.0
    sent_bytes: int = 0
    taken_up: int = 0
    begun_at: float = 0.0


@dataclass(frozen=True, slots=True)
class _Token:
    job: _Job
    action: Action
    upload_id: str | None


def backoff(failures: int) -> float:
    """Seconds until the store is looked at again after so many failures in a row: jittered."""
    return random.uniform(0, min(_LONGEST_WAIT, 0.5 * 2**failures))  # noqa: S311 - no secret


class Uploader:
    """Archives the tracks it is given, oldest first, several requests at a time."""

    def __init__(
        self,
        *,
        store: Store,
        layout: Layout,
        lineage: str,
        grid: Grid,
        spool: Spool,
        workers: Workers,
        on_archived: Callable[[Track], None],
        backoff: Callable[[int], float] = backoff,
    ) -> None:
        self._store = store
        self._layout = layout
        self._lineage = lineage
        self._grid = grid
        self._spool = spool
        self._workers = workers
        self._on_archived = on_archived
        self._backoff = backoff
        self._jobs: dict[BinlogName, _Job] = {}

    def add(self, track: Track) -> None:
        """Take a binlog in; it may still be growing."""
        place = Place(self._store, self._layout, self._lineage, self._grid, track)
        self._jobs[track.name] = _Job(track, place)

    @property
    def pending(self) -> int:
        """Closed binlogs that are not archived yet."""
        return sum(job.track.closed for job in self._jobs.values())

    @property
    def flying(self) -> int:
        """Requests that are on their way."""
        return sum(len(job.flying) for job in self._jobs.values())

    def step(self) -> None:
        """Start whatever can be started now."""
        now = time.monotonic()
        for job in list(self._jobs.values()):
            if self._workers.busy >= self._workers.count:
                return
            if job.not_before > now:
                continue
            observed = Observed(size=job.track.size, closed=job.track.closed, held=job.held)
            for action in decide(observed, self._grid):
                if self._workers.busy >= self._workers.count:
                    return
                if isinstance(action, Release):
                    self._release(job)
                elif self._may_fly(job, action) and not self._take_up(job, action):
                    self._start(job, action)

    def take(self, outcome: Outcome) -> None:
        """Learn from the outcome of a request. Raises what no waiting mends."""
        token = outcome.token
        assert isinstance(token, _Token)  # noqa: S101 - only `_start` submits here
        job = token.job
        job.flying.discard(token.action)
        if outcome.error is not None:
            self._failed(job, token.action, outcome.error)
        elif job.held is None and not isinstance(token.action, Look):
            return  # an answer to a question from before a doubt; the look will tell
        elif job.held is not None and token.upload_id != job.held.upload_id:
            return
        else:
            if not isinstance(token.action, Look):
                job.failures = 0  # having looked is no progress yet
            self._learn(job, token.action, outcome.value)

    def _take_up(self, job: _Job, action: Action) -> bool:
        """Count a part that lay there already, if it holds our bytes, instead of sending it."""
        if not isinstance(action, PutPart) or job.held is None:
            return False
        part = action.part
        info = job.listed.pop(part.number, None)
        if info is None or not job.place.is_ours(info, part, job.track.digest.part_crc64(part)):
            return False
        job.parts[part.number] = info
        job.taken_up += 1
        job.held = replace(job.held, parts=frozenset(job.parts))
        return True

    def _may_fly(self, job: _Job, action: Action) -> bool:
        """Parts fly together, each once; everything else alone."""
        if isinstance(action, PutPart):
            return action not in job.flying
        return not job.flying

    def _start(self, job: _Job, action: Action) -> None:
        job.flying.add(action)
        job.begun_at = job.begun_at or time.monotonic()
        upload_id = job.held.upload_id if job.held else None
        work = self._work(job, action, upload_id or "")
        self._workers.submit(_Token(job, action, upload_id), work)

    def _work(self, job: _Job, action: Action, upload_id: str) -> Callable[[], object]:  # noqa: PLR0911
        """The request for an action, with everything it needs taken from the track now."""
        place, track = job.place, job.track
        match action:
            case PutPart(part):
                job.sent_bytes += part.end - part.begin
                crc = track.digest.part_crc64(part)
                return lambda: place.put_part(upload_id, part, crc)
            case PutWhole():
                job.sent_bytes += track.size
                return place.put_whole
            case CreateUpload():
                return place.create_upload
            case Complete():
                parts = [job.parts[number] for number in sorted(job.parts)]
                return lambda: place.complete(upload_id, parts)
            case Verify():
                return place.verify
            case PutEntry():
                return place.put_entry
            case _:
                wanted = place.wanted()
                return lambda: place.look(wanted)

    def _learn(self, job: _Job, action: Action, value: object) -> None:
        held = job.held or Held()
        match action:
            case Look():
                assert isinstance(value, Looked)  # noqa: S101 - what look returns
                job.parts = {}
                job.listed = {info.number: info for info in value.parts}
                held = Held(object_there=value.object_there, upload_id=value.upload_id)
                if job.listed:
                    parts = len(job.listed)
                    _log.info("upload taken up again", binlog=job.track.name, parts=parts)
            case CreateUpload():
                job.parts = {}
                held = replace(held, upload_id=str(value), parts=frozenset())
            case PutPart(part):
                assert isinstance(value, PartInfo)  # noqa: S101 - what upload_part returns
                job.parts[part.number] = value
                held = replace(held, parts=frozenset(job.parts))
            case PutWhole() | Complete():
                held = replace(held, object_there=True)
            case Verify():
                held = replace(held, verified=True)
            case PutEntry():
                held = replace(held, entry_there=True)
        job.held = held

    def _failed(self, job: _Job, action: Action, error: BaseException) -> None:
        if not isinstance(error, StoreError) or isinstance(error, StoreSettingError):
            raise error
        job.held = None
        job.parts = {}
        job.failures += 1
        first = isinstance(error, PreconditionError) and job.failures == 1
        delay = 0.0 if first else self._backoff(job.failures)
        job.not_before = time.monotonic() + delay
        _log.warning(
            "looking again at the store",
            binlog=job.track.name,
            after=type(action).__name__,
            error=error,
            hint=error.hint,
            seconds=round(delay, 1),
        )

    def _release(self, job: _Job) -> None:
        track = job.track
        del self._jobs[track.name]
        freed = self._spool.release(track.name, self._lineage)
        _log.info(
            "binlog archived",
            binlog=track.name,
            size=track.size,
            transactions=track.scanner.transactions,
            parts=len(job.parts) or 1,
            taken_up=job.taken_up,
            sent=job.sent_bytes,
            freed=freed,
            seconds=round(time.monotonic() - job.begun_at, 3),
        )
        self._on_archived(track)
