"""All uploads of a stream: an uploader for each lineage, and the workers that they share."""

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from queue import SimpleQueue
from typing import TypeVar

from binlog2s3.archive.documents import Lineage
from binlog2s3.archive.layout import Layout
from binlog2s3.archive.parts import Grid
from binlog2s3.binlog.names import BinlogName
from binlog2s3.config.values import MIN_PART_SIZE, Config
from binlog2s3.errors import SpoolError, StoreError
from binlog2s3.log import Log
from binlog2s3.status.metrics import Timings
from binlog2s3.status.model import UploadStatus
from binlog2s3.store.s3 import Store
from binlog2s3.stream.decide import CopyPart, Limits, PutChunk, PutPart
from binlog2s3.stream.retry import unless
from binlog2s3.stream.shutdown import Stop
from binlog2s3.stream.spool import Room, Spool
from binlog2s3.stream.systemd import Alive
from binlog2s3.stream.tail import Track
from binlog2s3.stream.upload_counts import Counts, Failing
from binlog2s3.stream.uploader import Uploader, backoff, take
from binlog2s3.stream.watermark import Coverage
from binlog2s3.workers import Workers

T = TypeVar("T")
N = TypeVar("N", int, float)
_log = Log("daemon")
_POLL_SECONDS = 0.05
_COUNT_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class LiveKeys:
    """All keys below `live/`, which were listed since `asked_at`."""

    keys: list[str]
    asked_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Stock:
    """What the loop has counted, at one moment.

    `room` is None if the spool could never be measured. `failing`: the request that is longest
    without success, None if none fails. `oldest_commit_us`: of the oldest
    transaction that is not durable; `newest_commit_us`: of the newest that is. `flush_interval`: in
    seconds, longer than asked for if the link is slow.
    """

    uploads: UploadStatus
    flush_interval: float
    room: Room | None = None
    failing: Failing | None = None
    oldest_commit_us: int | None = None
    newest_commit_us: int | None = None


class Uploads:
    """The uploaders: `current` of the lineage that grows, `older` of lineages that have ended.

    The loop calls its methods, other threads only `hand_in` and the attributes. `foreign` are the
    keys that were logged already because they are not of our format. `stock` is counted about once
    a second; `round_at` is when `step` was last called. `bodies`: see `Uploader`.
    """

    def __init__(
        self,
        config: Config,
        *,
        store: Store,
        layout: Layout,
        spool: Spool,
        workers: Workers,
        alive: Alive,
        stop: Stop,
        foreign: frozenset[str] = frozenset(),
        bodies: Store | None = None,
        timings: Timings | None = None,
        full_chunk: int = MIN_PART_SIZE,
        backoff: Callable[[int], float] = backoff,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config = config
        self._store = store
        self._bodies = bodies
        self._layout = layout
        self._spool = spool
        self._workers = workers
        self._alive = alive
        self._stop = stop
        self._foreign = set(foreign)
        self._full_chunk = full_chunk
        self._backoff = backoff
        self._clock = clock
        self._listings: SimpleQueue[LiveKeys] = SimpleQueue()
        self._count_at = 0.0
        self.counts = Counts() if timings is None else Counts(timings=timings)
        self._is_back = threading.Event()
        self.current: Uploader | None = None
        self.older: list[Uploader] = []
        self.stock: Stock | None = None
        self.round_at = clock()

    @property
    def all(self) -> list[Uploader]:
        """The uploaders, the one of the oldest lineage first."""
        return [*self.older, *([self.current] if self.current is not None else [])]

    def open(self, lineage: Lineage, coverage: Coverage) -> None:
        """Open the uploader of the lineage that grows from now on."""
        stream = self._config.stream
        self.current = Uploader(
            store=self._store,
            layout=self._layout,
            lineage=lineage.id,
            limits=Limits(
                grid=Grid(self._config.s3.part_size),
                chunked=stream.flush_interval > 0,
                copies=True,
                full_chunk=self._full_chunk,
            ),
            flush_interval=stream.flush_interval,
            spool=self._spool,
            workers=self._workers,
            coverage=coverage,
            bodies=self._bodies,
            totals=self.counts,
            backoff=self._backoff,
            clock=self._clock,
        )

    def add(self, track: Track) -> None:
        """Upload this binlog of the lineage that grows."""
        assert self.current is not None  # noqa: S101 - opened before
        self.current.add(track)

    def sweep(self, name: BinlogName) -> None:
        """Delete what is left of an archived binlog's upload."""
        assert self.current is not None  # noqa: S101 - opened before
        self.current.leftovers.sweep(name)

    def end_history(self) -> None:
        """End the lineage that grows: what is left of it is still uploaded."""
        if self.current is not None and not self.current.empty:
            self.current.end_history()
            self.older = self.all
        self.current = None

    def abandon(self, track: Track) -> None:
        """Upload what there is of a binlog as chunks: the source cannot send the rest."""
        for uploader in self.all:
            uploader.abandon(track)

    def drop(self, track: Track) -> None:
        """Upload no more of a binlog."""
        for uploader in self.all:
            uploader.drop(track)

    def press(self, *, pressed: bool) -> None:
        """Say whether the spool is full."""
        for uploader in self.all:
            uploader.press(pressed=pressed)

    def flush(self) -> None:
        """Upload what is new at the next step."""
        for uploader in self.all:
            uploader.flush()

    @property
    def done(self) -> bool:
        """Whether everything that can be uploaded is in the bucket."""
        return all(uploader.done for uploader in self.all)

    def count(self) -> Stock:
        """Count what is on its way."""
        jobs = [job for uploader in self.all for job in uploader.jobs]
        parts = PutPart | CopyPart | PutChunk
        commits = [job.track.commits for job in jobs]
        newest = [uploader.newest_commit_us for uploader in self.all]
        current = self.current
        return Stock(
            flush_interval=current.pace.flush_interval
            if current is not None
            else self._config.stream.flush_interval,
            uploads=UploadStatus(
                binlogs=len(jobs),
                closed_binlogs=sum(uploader.pending for uploader in self.all),
                open_uploads=sum(bool(job.held and job.held.upload_id) for job in jobs),
                chunks=sum(len(job.acknowledged) for job in jobs),
                parts_in_flight=sum(isinstance(a, parts) for job in jobs for a in job.flying),
                requests_in_flight=self._workers.busy,
                unsaved_bytes=sum(uploader.unsaved_bytes for uploader in self.all),
                stretched=current is not None and current.pace.stretched,
            ),
            failing=min(
                (one for job in jobs if (one := job.longest_failing) is not None),
                key=lambda one: one.since,
                default=None,
            ),
            oldest_commit_us=least(one.oldest_us for one in commits),
            newest_commit_us=_greatest([*newest, *(one.newest_us for one in commits)]),
        )

    def try_again(self) -> None:
        """Have the next step try again what waits after a failure. Called by any thread."""
        self._is_back.set()

    def hand_in(self, listing: LiveKeys) -> None:
        """Have the next step compare this listing with what is known. Called by any thread."""
        self._listings.put(listing)

    def step(self, wait_seconds: float) -> None:
        """Start the requests that can be started, and take their outcomes for at most this long."""
        self._count()
        self._alive.tell()
        listings = []
        while not self._listings.empty():
            listings.append(self._listings.get())
            self._name_foreign(listings[-1].keys)
        self.older = [uploader for uploader in self.older if not uploader.empty]
        if self._is_back.is_set():
            self._is_back.clear()
            for uploader in self.all:
                uploader.try_again()
        if not self.all and not self._workers.busy:
            self._stop.event.wait(wait_seconds)
            return
        for uploader in self.all:
            for listing in listings:
                uploader.audit(listing.keys, listing.asked_at)
            uploader.step()
        outcome = self._workers.take(wait_seconds)
        while outcome is not None:
            take(outcome)
            outcome = self._workers.take(0.0)

    def wait_for(self, request: Callable[[], T]) -> T:
        """What a request returns that the loop waits for; after a stop, for a few seconds more.

        Raises what `request` raises; StoreError if the store has not answered by then.
        """

        def meanwhile() -> None:
            self._alive.tell()
            time.sleep(_POLL_SECONDS)

        found = unless(self.is_drained, request, name="lineage", meanwhile=meanwhile)
        if found is None:
            raise StoreError("not waited for the store's answer: stopping", transient=True)
        return found

    def is_drained(self) -> bool:
        """Whether a stop has given running requests their time."""
        return self._stop.is_over(self._config.timing.drain_seconds)

    def settle(self) -> None:
        """Wait until no request reads from the spool: the process continues as a standby.

        Requests are not tried again after a stop, so each ends within its own timeout.
        """
        while self._workers.busy and not self._stop.signal:
            self._alive.tell()
            self._workers.take(_POLL_SECONDS)

    def _count(self) -> None:
        self.round_at = now = self._clock()
        if now < self._count_at:
            return
        stock, before = self.count(), self.stock
        room = before.room if before is not None else None
        newest = before.newest_commit_us if before is not None else None
        try:
            room = self._spool.room(self._config.spool_limits)
        except SpoolError as error:
            _log.debug("spool not measured", error=error)
        newest = _greatest((newest, stock.newest_commit_us))  # of a lineage that is gone, too
        self.stock = replace(stock, room=room, newest_commit_us=newest)
        self._count_at = self._clock() + _COUNT_SECONDS

    def _name_foreign(self, keys: list[str]) -> None:
        """Log each key below `live/` that is not of our format, once."""
        for key in keys:
            place = self._layout.place_of(key)
            if key not in self._foreign and (place is None or place.kind != "chunk"):
                self._foreign.add(key)
                _log.warning("left alone: not of this archive's format", key=key)


def least(values: Iterable[N | None]) -> N | None:
    """The least of the values that are known; None if none is."""
    return min((value for value in values if value is not None), default=None)


def _greatest(values: Iterable[int | None]) -> int | None:
    return max((value for value in values if value is not None), default=None)
