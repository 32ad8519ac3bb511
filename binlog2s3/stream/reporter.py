"""Makes the daemon's `Status` from the parts of the stream.

The `board`'s thread makes the Status from the latest counts of the loop, so that a loop that hangs
or a store that does not answer becomes visible.

Law: reporting changes nothing of the stream and never waits for the store, the source or the
spool's disk. One thread at a time makes a Status: the board's lock.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import takewhile

from binlog2s3.archive.backups import look_up, runs_of
from binlog2s3.archive.catalog import Catalog
from binlog2s3.archive.documents import Lineage
from binlog2s3.archive.drills import latest, newest
from binlog2s3.archive.index import Index
from binlog2s3.archive.writers import Position
from binlog2s3.binlog.names import BinlogName, FilePosition
from binlog2s3.config.stream import Config
from binlog2s3.errors import ArchiveError, UnloggedError
from binlog2s3.formatting import moment_of, us_of
from binlog2s3.log import Log
from binlog2s3.status.lag import (
    counted,
    lag_bytes,
    lag_seconds,
    lag_transactions,
    purge_seconds,
)
from binlog2s3.status.model import (
    BackupsStatus,
    ChildStatus,
    DrillStatus,
    HistoryStatus,
    Lag,
    Measurements,
    Phase,
    Purge,
    SourceStatus,
    SpoolStatus,
    Status,
    StoreStatus,
    Totals,
    backups_of,
    drill_of,
    history_of,
    judge,
    latest_of,
    writer_status,
)
from binlog2s3.stream.run import Runs
from binlog2s3.stream.source_watch import SourceState, Watch
from binlog2s3.stream.spool import Room
from binlog2s3.stream.tracking import Tracking
from binlog2s3.stream.uploader import Uploader, Uploading, least
from binlog2s3.stream.waiting import Stop
from binlog2s3.stream.writer import Writer

_log = Log("reporter")
_LOOK_SECONDS, _LATER_LOOK_SECONDS = 1.0, 5.0
_HISTORY_SECONDS = 600.0
_BEAT_SLACK_SECONDS = 5.0
_RESTART = (
    "find out who deletes in this bucket; the next start archives again what the source still has:"
    " do not purge there before that"
)


class Reporter:
    """Reports on a stream. Any thread may call its methods."""

    def __init__(
        self,
        config: Config,
        *,
        watch: Watch,
        runs: Runs,
        tracking: Tracking,
        uploads: Uploader,
        writer: Writer,
        stop: Stop,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config = config
        self._watch = watch
        self._runs = runs
        self._tracking = tracking
        self._uploads = uploads
        self._writer = writer
        self._stop = stop
        self._clock = clock
        self._began = now = clock()
        self._running_at = now
        self._has_run = False
        self._acts = 0
        self._act_at: float | None = None
        self._work_since: float | None = None
        self._answered_at = now
        self._ahead_since: float | None = None
        self._paused_since: float | None = None
        self._history: HistoryStatus | None = None
        self._backups: BackupsStatus | None = None
        self._drill: DrillStatus | None = None
        self._looked_at: tuple[str, float] = ("", 0.0)  # a lineage, and when
        self._vanished = ("", "")  # a lineage whose archive was seen, and a key that it has no more

    def _note_work(self, now: float) -> None:
        """Note since when there is something to upload, and when the last request succeeded."""
        uploading, counts = self._uploads.uploading, self._uploads.counts
        if counts.acts != self._acts:
            self._acts, self._act_at = counts.acts, now
        self._work_since = (self._work_since or now) if _due(uploading) else None

    @property
    def phase(self) -> Phase:
        """What the stream does. It stands by if it ends only because of another writer."""
        if self._stop.superseded and not self._config.stream.exit_on_other_writer:
            return "standby"
        return "stopping" if self._stop.event.is_set() else "running"

    def measured(self) -> Measurements:
        """The measurements that state and troubles follow from."""
        now, source_state = self._clock(), self._watch.source_state
        at, reached = source_state.position, self._runs.reached()
        server_at = at.place if at is not None else None
        self._answered_at = max(self._answered_at, source_state.position_at)
        ahead = server_at is not None and (reached is None or reached < server_at)
        paused = self._runs.pressure.paused
        self._ahead_since = (self._ahead_since or now) if ahead and not paused else None
        self._paused_since = (self._paused_since or now) if paused else None
        if paused or self._runs.is_running:
            self._running_at = now
        self._has_run |= self._runs.run is not None or self._runs.restarts > 0
        self._note_work(now)
        uploading, counts = self._uploads.uploading, self._uploads.counts
        child_error = self._runs.last_error
        due = _due(uploading)
        silent = self._since(now, self._work_since, self._act_at)
        job = uploading.failing if uploading else None
        failing = least([job.since if job else None, counts.retried.failing_since])
        _, error, hint = counts.last_error
        if job is not None and job.since == failing:
            error, hint = job.error, job.hint
        beaten = self._writer.beaten_at
        interval = self._config.stream.heartbeat_interval
        return Measurements(
            phase=self.phase,
            phase_seconds=now - self._began,
            paused=self._since(now, self._paused_since, self._act_at) if paused else None,
            child_gone=now - self._running_at,
            child_error=child_error[1] if child_error else "",
            unread=not (self._has_run or paused),
            idle=server_at is not None and reached == server_at and not due,
            behind=due > self._config.s3.part_size or self._behind(reached, server_at),
            source_error=str(source_state.error or ""),
            source_hint=getattr(source_state.error, "hint", ""),
            source_silent=now - self._answered_at,
            unlogged=isinstance(source_state.error, UnloggedError),
            read_idle=self._since(now, self._ahead_since, self._runs.read_at),
            store_error=error,
            store_hint=hint,
            store_takes=self._takes(now),
            clean_up_error=counts.clean_up_error,
            store_failing=now - failing if failing is not None else None,
            store_silent=max(0.0, silent - self._uploads.pace.flush_interval),
            beat_late=0.0
            if beaten is None
            else max(0.0, now - beaten - 2 * interval - _BEAT_SLACK_SECONDS),
            loop_idle=now - self._uploads.round_at,
            planted=tuple(sorted(self._uploads.plants.planted)),
        )

    def _takes(self, now: float) -> bool:
        """Whether the store has taken something lately."""
        return self._act_at is not None and now - self._act_at < self._config.timing.soon_seconds

    @staticmethod
    def _since(now: float, begun: float | None, later: float | None) -> float:
        """Seconds since the later of the two; 0 if `begun` is None."""
        return 0.0 if begun is None else now - max(begun, later or begun)

    def _behind(self, reached: FilePosition | None, server_at: FilePosition | None) -> bool:
        if reached is None or server_at is None:
            return False
        return (
            reached.binlog < server_at.binlog
            or server_at.offset - reached.offset > self._config.s3.part_size
        )

    def status(self) -> Status:
        """The status at this moment."""
        now, source_state, uploading, config = (
            self._clock(),
            self._watch.source_state,
            self._uploads.uploading,
            self._config,
        )
        state, troubles = judge(self.measured(), config.timing)
        coverage = self._tracking.newest
        durable = coverage.durable if coverage is not None and coverage.grows else None
        named = coverage.lineage.id if coverage is not None else None
        covered = self._writer.furthest_covered(named, self._tracking.covered_until(coverage))
        lag = self._lag(now, source_state, uploading, durable, covered)
        me = self._writer.me
        moment, text, _ = self._uploads.counts.last_error
        child, run, source = self._runs, self._runs.run, self._source(now, source_state)
        paused, room = child.pressure.paused, child.pressure.room
        newest, at = uploading.newest_commit_us if uploading else None, datetime.now(UTC)
        return Status(
            source=config.stream.source,
            target=config.target,
            seen_from="daemon",
            at=at,
            state=state,
            troubles=troubles,
            writer=writer_status(me, me.at if self._writer.beaten_at is not None else None),
            standbys=self._writer.standbys,
            server=source,
            lineage=named,
            durable=durable,
            covered_until=covered,
            latest=latest_of([covered, moment_of(newest) if newest else None], at),
            lag=lag,
            flush_interval=self._uploads.pace.flush_interval,
            spool=self._spool(room, paused=paused) if room is not None else None,
            uploads=uploading.uploads if uploading else None,
            child=ChildStatus(
                pid=run.child.pid if run is not None else None,
                restarts=child.restarts,
                last_error=child.last_error[1] if child.last_error else "",
                last_error_at=child.last_error[0] if child.last_error else None,
            ),
            store=StoreStatus(
                last_success_at=self._wall(now, self._act_at),
                last_error=text,
                last_error_at=moment,
                errors=self._uploads.counts.failures,
            ),
            totals=self._totals() if uploading else None,
            purge=self._purge(source_state, lag),
            history=self._history,
            backups=self._backups,
            drill=self._drill,
        )

    def _spool(self, room: Room, *, paused: bool) -> SpoolStatus:
        return SpoolStatus(
            directory=str(self._config.spool.absolute()),
            bytes=room.used,
            free_bytes=room.free,
            max_bytes=room.max_bytes,
            min_free_bytes=room.min_free,
            paused=paused,
        )

    def _totals(self) -> Totals:
        counts = self._uploads.counts
        read, transactions = self._runs.read_totals
        return Totals(
            read_bytes=read,
            sent_bytes=counts.sent_bytes,
            durable_bytes=counts.durable_bytes,
            transactions=transactions,
            archived_binlogs=counts.archived_binlogs,
        )

    @staticmethod
    def _wall(now: float, at: float | None) -> datetime | None:
        return None if at is None else datetime.now(UTC) - timedelta(seconds=now - at)

    def _source(self, now: float, source_state: SourceState) -> SourceStatus:
        at, newest = source_state.position, self._tracking.newest
        return SourceStatus(
            uuid=self._tracking.server_uuid,
            flavour=newest.lineage.flavour if newest is not None else None,
            position=position_of(source_state),
            asked_at=at.asked_at if at is not None else None,
            silent_seconds=now - source_state.position_at if at is not None else None,
            read_only=at.read_only if at is not None else None,
            error=str(source_state.error or ""),
        )

    def _lag(
        self,
        now: float,
        source_state: SourceState,
        uploading: Uploading | None,
        durable: Position | None,
        covered: datetime | None,
    ) -> Lag:
        at, coverage, timing = source_state.position, self._tracking.coverage, self._config.timing
        if at is not None and coverage is not None and at.uuid != coverage.lineage.server_uuid:
            at = None  # the watch has not asked this server yet
        answer_age = (
            now - source_state.position_at
            if at is not None and source_state.error is None
            else None
        )
        # commit times are by the source's clock
        source_now = datetime.now(UTC)
        if at is not None:
            source_now = at.asked_at + timedelta(seconds=now - source_state.position_at)
        oldest = uploading.oldest_commit_us if uploading is not None else None
        durable_to = durable.file_position if durable is not None else None
        all_durable = (
            at is not None
            and durable_to is not None
            and durable_to >= at.place
            and oldest is None
            and not self._tracking.is_behind
            and not source_state.behind
            and self._runs.is_reading
        )
        seconds = lag_seconds(
            answer_age=answer_age,
            all_durable=all_durable,
            covered_age=(source_now - covered).total_seconds() if covered is not None else None,
            oldest_commit_age=None if oldest is None else (us_of(source_now) - oldest) / 1e6,
            timing=timing,
        )
        unheard = answer_age is None or answer_age > timing.fresh_seconds
        if unheard or at is None or coverage is None:
            return Lag(seconds=seconds)
        if source_state.behind > 1:
            return Lag(seconds=seconds)
        sizes = {row.name: row.size for row in source_state.listed}
        # what was read since then is committed, too
        server_at = max(at.place, self._runs.reached() or at.place)
        behind = lag_bytes(durable_to or FilePosition(coverage.following, 0), server_at, sizes)
        waiting = None
        if durable is None or durable.gtid_set:
            lineage = coverage.lineage
            ours = durable.gtid_set if durable is not None else lineage.gtid_set
            ours = ",".join(filter(None, (ours, lineage.gtids_outside)))
            waiting = lag_transactions(ours, at.gtid_set, lineage.flavour)
        if not behind and not self._runs.is_reading:
            return Lag(seconds=seconds)  # after a RESET its binlogs may only have the names
        return Lag(bytes=behind, transactions=counted(behind, waiting), seconds=seconds)

    def _purge(self, source_state: SourceState, lag: Lag) -> Purge:
        coverage, names = self._tracking.coverage, [row.name for row in source_state.listed]
        at = source_state.position
        if coverage is not None and (at is None or at.uuid != coverage.lineage.server_uuid):
            return Purge()  # the answers are of another server, whose binlogs have the same names
        purge = Purge(
            expires=source_state.expires,
            expire_seconds=source_state.expire_seconds,
            seconds=purge_seconds(source_state.expire_seconds, lag),
        )
        if coverage is None or source_state.behind:
            return purge
        if self._vanished != (coverage.lineage.id, ""):
            return purge
        if not self._runs.is_reading:
            return purge  # after a RESET its binlogs may only have the names, until it is compared
        if not self._watch.streams(coverage.lineage.server_uuid):
            return purge
        # the statement deletes all that the source lists before: in this archive or not
        archived = list(takewhile(coverage.has, names))
        if not 0 < len(archived) < len(names):
            return purge
        return replace(purge, newest_safe=str(archived[-1]), to=str(names[len(archived)]))

    def look_at_history(self, catalog: Catalog) -> float:
        """Read lineages, base backups and drills every ten minutes, and when the lineage changes.

        And see whether the archive still has what the source lists: if not, no PURGE is advised.
        Returns the seconds until this is to be asked again.
        """
        coverage, (seen, then) = self._tracking.coverage, self._looked_at
        if coverage is None:
            return _LOOK_SECONDS
        lineage = coverage.lineage
        if lineage.id == seen and self._clock() - then < _HISTORY_SECONDS:
            return _LATER_LOOK_SECONDS
        try:
            unreadable: list[ArchiveError] = []
            listed = sorted(row.name for row in self._watch.source_state.listed)
            archived = [name for name in listed if coverage.has(name)]
            lineages = catalog.lineages(unreadable)
            self._history = history_of(lineages, lineage.id)
            runs = runs_of(catalog, datetime.now(UTC))
            self._backups = backups_of(look_up(catalog).restorable, runs)
            self._drill = drill_of(*newest(latest(catalog)))
            self._vanished = lineage.id, vanished(catalog, lineages, lineage.id, archived)
            if key := self._vanished[1]:
                _log.recurring("vanished from the archive", key=key, hint=_RESTART)
        except Exception as error:  # noqa: BLE001 - a status without them is better than no stream
            _log.recurring("lineages not looked at", error=error)
        self._looked_at = lineage.id, self._clock()
        return _LATER_LOOK_SECONDS


def vanished(
    catalog: Catalog, lineages: Sequence[Lineage], id_: str, archived: Sequence[BinlogName]
) -> str:
    """The first key that the archive had for these binlogs of a lineage, and has no more, or "".

    `archived` is ascending. What was pruned has not vanished. Raises StoreError.
    """
    layout, lineage = (
        catalog.layout,
        next((candidate for candidate in lineages if candidate.id == id_), None),
    )
    if lineage is None:
        key = layout.lineage(id_)
        return key if archived and catalog.store.head(key) is None else ""
    names = [name for name in archived if not lineage.is_below_floor(name)]
    if not names:
        return ""
    archived_now = Index(catalog, lineage, entries=False).tail(names[0].number - 1).binlogs
    gone = [name for name in names if name not in archived_now]
    if gone:  # the source may have ended one later, which was left as chunks
        chunked = catalog.chunked(lineage).chunks
        gone = [name for name in gone if name not in chunked]
    keys = (layout.binlog(id_, name) for name in gone)  # a store may list some seconds late
    return next((key for key in keys if catalog.store.head(key) is None), "")


def position_of(source_state: SourceState) -> Position | None:
    """The source's position; None before it has answered."""
    at = source_state.position
    if at is None:
        return None
    return Position(binlog=at.place.binlog, offset=at.place.offset, gtid_set=at.gtid_set)


def _due(uploading: Uploading | None) -> int:
    """Greater than 0 if there is something to upload."""
    return (
        uploading.uploads.unsaved_bytes + uploading.uploads.closed_binlogs
        if uploading is not None
        else 0
    )
