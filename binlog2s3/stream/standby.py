"""Waits beside another writer of the same source, until that writer's place is free.

Law: a standby writes and deletes only its own object under `live/<source>/standbys/`, changes
nothing in its spool, and never runs mysqlbinlog, which would disconnect the writer's. When to take
over is a heuristic. The archive stays correct with any number of writers, so a wrong answer costs
work but never data.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta

from binlog2s3.archive.catalog import Catalog
from binlog2s3.archive.writers import DEFAULT_INTERVAL, Heartbeat, Standby
from binlog2s3.binlog.names import BinlogName
from binlog2s3.errors import ArchiveError, SourceError, SpoolError, StoreError, SupersededError
from binlog2s3.formatting import duration_text
from binlog2s3.log import Log
from binlog2s3.status.model import StandbyStatus, WriterStatus, standby_status, writer_status
from binlog2s3.store.contract import ObjectInfo
from binlog2s3.stream.spool import Rank, Spool
from binlog2s3.stream.waiting import Periodic
from binlog2s3.stream.writer import Vacancy, this_process, where

_log = Log("standby")
SILENT_INTERVALS = 3
"""A writer is dead if it does not renew its object for this many heartbeat intervals."""
_LEAST_PATIENCE_SECONDS = 5.0
_CLOCK_SECONDS = 2.0  # the store's clock has whole seconds, and its nodes may differ
_PAUSES = (0.25, 10.0)
_LOOKS_EACH_INTERVAL = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenWriter:
    """The object of the writer with the greatest rank, at one moment.

    `beat` is None if it cannot be read. `store_now` is the store's clock, None if unknown.
    `reached` is the UUID of the server that this process reaches, "" if it reaches none.
    """

    rank: Rank
    info: ObjectInfo
    beat: Heartbeat | None
    store_now: datetime | None = None
    reached: str = ""


class FailureDetector:
    """Decides from what is seen of writers whether the writer's place is free. Pure.

    `now` is monotonic seconds. `own` is the rank of the last writer on this spool. Its process is
    dead, because this process holds the spool's lock. `is_alive`: the writer's object has changed
    since it was first seen.
    """

    def __init__(self, own: Rank | None) -> None:
        self._own = own
        self._last: tuple[Rank, ObjectInfo] | None = None
        self._moved_at = 0.0
        self._cut_off_since: float | None = None
        self.is_alive = False

    def judge(self, seen: SeenWriter | None, now: float) -> Vacancy | None:
        """The vacancy, or None while another writer works or may work."""
        is_first = self._last is None
        if seen is None:
            return Vacancy(why="there is no writer", is_calm=is_first)
        if seen.rank == self._own:
            why = "it was the streamer of this spool"
            return Vacancy(rank=seen.rank, why=why, is_calm=is_first)
        self._follow(seen, now)
        if seen.beat is not None and seen.beat.state == "stopped":
            return Vacancy(rank=seen.rank, info=seen.info, why="it has stopped")
        patience = patience_of(seen.beat)
        silent = now - self._moved_at
        if not self.is_alive and seen.store_now is not None:
            age = seen.store_now - seen.info.last_modified - timedelta(seconds=_CLOCK_SECONDS)
            silent = max(silent, age.total_seconds())
        if silent >= patience:
            why = f"it has been silent for {duration_text(silent)}"
            return Vacancy(rank=seen.rank, info=seen.info, why=why)
        cut_off = now - self._cut_off_since if self._cut_off_since is not None else 0.0
        same = seen.beat is not None and seen.reached and seen.reached == seen.beat.server_uuid
        if same and cut_off >= patience:
            why = f"it has not reached the source for {duration_text(cut_off)}"
            return Vacancy(rank=seen.rank, why=why)
        return None

    def _follow(self, seen: SeenWriter, now: float) -> None:
        observed = (seen.rank, seen.info)
        if self._last != observed:
            self.is_alive = self._last is not None
            self._last, self._moved_at = observed, now
        cut_off = seen.beat is not None and seen.beat.state == "source unreachable"
        if not cut_off:
            self._cut_off_since = None
        elif self._cut_off_since is None:
            self._cut_off_since = now


def patience_of(beat: Heartbeat | None) -> float:
    """Seconds that a writer may be silent; bounded, whatever its object says."""
    interval = beat.interval if beat is not None else DEFAULT_INTERVAL
    return max(SILENT_INTERVALS * interval, _LEAST_PATIENCE_SECONDS)


class StandbyLoop:
    """Stands by for this process. `wait` may be called again after a StoreError: it continues.

    `reach` returns the UUID of the source or raises SourceError; a thread of its own calls it at
    each heartbeat. `refuses` says which of its errors end a start.
    """

    def __init__(
        self,
        *,
        catalog: Catalog,
        spool: Spool,
        interval_seconds: float,
        exits: bool,
        reach: Callable[[], str],
        refuses: Callable[[SourceError], bool],
        stop: threading.Event,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._spool = spool
        self._catalog = catalog
        self._exits = exits
        self._refuses = refuses
        self._stop = stop
        self._clock = clock
        self._detector = FailureDetector(spool.last_claim())
        self._seen: SeenWriter | None = None
        self._sizes: dict[str, dict[BinlogName, int]] = {}
        self._due = 0.0
        self.is_standing = False
        self.store_error: tuple[float, StoreError] | None = None
        self.source = SourceProbe(reach, interval_seconds, clock)
        process = this_process(spool.source, interval_seconds)
        self.me = Standby(**asdict(process), unsaved_bytes=0)
        self._key = catalog.layout.standby(process.token)

    @property
    def writer(self) -> WriterStatus | None:
        """The other writer; None if its object cannot be read."""
        seen = self._seen  # once: the status is told by another thread
        if seen is None or seen.beat is None:
            return None
        return writer_status(seen.beat, seen.info.last_modified)

    @property
    def _beat(self) -> Heartbeat | None:
        """The other writer's heartbeat, None if there is none that can be read."""
        seen = self._seen
        return seen.beat if seen is not None else None

    @property
    def status(self) -> StandbyStatus:
        """What the status shows of this process."""
        return standby_status(self.me, self.me.at)

    @property
    def may_be_last_copy(self) -> bool:
        """Whether what is missing in the bucket may be only here: the writer has no source."""
        return self._beat is None or self._beat.state == "source unreachable"

    def wait(self) -> Vacancy:
        """Return when the writer's place is free.

        Raises SupersededError at a stop, and if another writer works and this process is to exit
        then; StoreError only before it stands by; SourceError if `refuses` says so.
        """
        try:
            while True:
                vacancy = self._look()
                if vacancy is not None:
                    if vacancy.rank is not None:
                        host = self.writer.host if self.writer else ""
                        _log.info("the other writer is gone", host=host, why=vacancy.why)
                    return vacancy
                if self._stop.wait(self._pause()):
                    raise SupersededError("this standby was stopped")
        finally:
            self._leave()

    def _look(self) -> Vacancy | None:
        """Look at the writers once, and renew our object if that is due."""
        try:
            vacancy = self._judge(None)
            if vacancy is None:
                self._stand()
                vacancy = self._renew()
        except StoreError as error:
            if not self.is_standing:
                raise
            if self.store_error is None:
                _log.warning("the store cannot be asked about the writer", error=error)
            self.store_error = self.store_error or (self._clock(), error)
            return None
        if self.store_error is not None:
            after = round(self._clock() - self.store_error[0], 1)
            _log.info("the store answers again", after_seconds=after)
            self.store_error = None
        return vacancy

    def _judge(self, store_now: datetime | None) -> Vacancy | None:
        looked_at = self._clock()
        writers = self._catalog.writers()
        before, seen = self._seen, None
        if writers:
            rank = max(writers)
            info = writers[rank]
            if before is not None and (before.rank, before.info) == (rank, info):
                beat = before.beat
            else:
                beat = next(iter(self._catalog.heartbeats([rank])), None)
            seen = SeenWriter(
                rank=rank, info=info, beat=beat, store_now=store_now, reached=self.source.uuid
            )
        self._seen = seen
        vacancy = self._detector.judge(seen, self._clock())
        if vacancy is None:
            return None
        beat = seen.beat if seen is not None else None
        return replace(vacancy, writers=writers, looked_at=looked_at, beat=beat)

    def _stand(self) -> None:
        """Stand by from now on. Raises SupersededError or SourceError if this process must not."""
        seen = self._seen
        assert seen is not None  # noqa: S101 - without a writer there is a vacancy
        if self._exits and self._detector.is_alive:
            raise SupersededError(
                f"another writer of {self._spool.source} works{where(seen.beat)}: "
                f"it is writer number {seen.rank[0]}",
                hint="without --exit-on-other-writer this process would stand by",
            )
        if self.is_standing:
            return
        self.source.ask()
        error = self.source.error
        if error is not None and self._refuses(error):
            raise error
        self.is_standing = True
        self.source.start()
        beat = seen.beat
        _log.info(
            "standing by",
            host=beat.host if beat else "",
            pid=beat.pid if beat else 0,
            writer=seen.rank[0],
            takes_over_after_seconds=patience_of(beat),
        )

    def _renew(self) -> Vacancy | None:
        """Renew our object, and judge again by the store's clock, which its answer contains."""
        now = self._clock()
        if now < self._due:
            return None
        try:
            self.me = replace(self.me, at=datetime.now(UTC), unsaved_bytes=self._unsaved())
        except SpoolError as error:
            _log.warning("the spool cannot be read", error=error)
        info = self._catalog.store.put(self._key, self.me.to_json())
        self._due = now + self.me.interval_seconds
        return self._judge(info.last_modified)

    def _pause(self) -> float:
        """Seconds until the next look."""
        least, most = _PAUSES
        interval = patience_of(self._beat) / SILENT_INTERVALS
        interval = min(interval, self.me.interval_seconds)
        return min(max(interval / _LOOKS_EACH_INTERVAL, least), most)

    def _leave(self) -> None:
        """Delete our object. If the store fails, the writer deletes it later."""
        if not self.is_standing:
            return
        self.is_standing, self._due = False, 0.0
        self.source.close()
        try:
            self._catalog.store.delete([self._key])
        except StoreError as error:
            _log.warning("the standby's object was not deleted", error=error)

    def _unsaved(self) -> int:
        """Bytes of the spool that are not known to be in the bucket."""
        ends: dict[tuple[str, BinlogName], int] = {}
        for run in self._spool.runs():
            if not run.facts.is_proved:
                continue
            lineage = run.facts.lineage or self._lineage_of(run.facts.server_uuid)
            for name in run.files():
                file = run.file_of(name)
                end = file.end if file is not None else run.start_of(name)
                ends[lineage, name] = max(ends.get((lineage, name), 0), end)
        return sum(max(0, end - self._durable(*binlog)) for binlog, end in ends.items())

    def _lineage_of(self, server_uuid: str) -> str:
        """The lineage of a run that ended before it had one: the writer's, if on its server."""
        beat = self._beat
        return (beat.lineage or "") if beat is not None and beat.server_uuid == server_uuid else ""

    def _durable(self, lineage: str, name: BinlogName) -> int:
        """Bytes of a binlog that are in the bucket; of the writer's own lineage, as it says."""
        beat = self._beat
        if beat is not None and beat.lineage == lineage and beat.durable is not None:
            last, offset = beat.durable.file_position
            return 1 << 62 if name < last else offset if name == last else 0
        if lineage and lineage not in self._sizes:  # a lineage that nobody writes any more
            try:
                known = [
                    known_lineage
                    for known_lineage in self._catalog.lineages([])
                    if known_lineage.id == lineage
                ]
            except ArchiveError:
                known = []
            self._sizes[lineage] = self._catalog.sizes(known[0]) if known else {}
        return self._sizes.get(lineage, {}).get(name, 0)


class SourceProbe:
    """Asks the source for its UUID at each interval, in a thread of its own.

    `uuid` is "" and `error` is set while it does not answer; `silent_since` is monotonic seconds.
    """

    def __init__(
        self, ask: Callable[[], str], interval_seconds: float, clock: Callable[[], float]
    ) -> None:
        self._ask = ask
        self._interval = interval_seconds
        self._clock = clock
        self._ended = threading.Event()
        self.uuid = ""
        self.error: SourceError | None = None
        self.silent_since = clock()

    def ask(self) -> float:
        """Ask once. Returns the seconds until the next time."""
        try:
            self.uuid, self.error = self._ask(), None
            self.silent_since = self._clock()
        except SourceError as error:
            if self.error is None:
                _log.warning("the server does not answer", error=error, hint=error.hint)
            self.uuid, self.error = "", error
        return self._interval

    def start(self) -> None:
        """Begin to ask at each interval."""
        self._ended = threading.Event()
        Periodic("reach", self.ask, self._ended).start(self._interval)

    def close(self) -> None:
        """Stop asking."""
        self._ended.set()
