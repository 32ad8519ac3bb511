"""The startup of a streamer: waits for its turn, reads bucket, spool and source, refuses early.

Law: everything that can be refused is refused before anything is written to the bucket. A startup
waits for a store or a source that cannot be reached.
"""

import time
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial

from binlog2s3.archive.catalog import Catalog
from binlog2s3.archive.layout import Layout
from binlog2s3.archive.parts import Grid
from binlog2s3.config.values import Config
from binlog2s3.errors import ArchiveError, GapError, SourceError, StoreError, UnloggedError
from binlog2s3.log import Log
from binlog2s3.server.connection import Server
from binlog2s3.server.login import resolve
from binlog2s3.status.model import SourceStatus, Status, Vitals, judge, writer_status
from binlog2s3.store.s3 import MendableError, Store
from binlog2s3.stream.archive_end import known_end_of, known_end_of_archive
from binlog2s3.stream.continuation import KnownEnd
from binlog2s3.stream.resume import NextRun, Resumption
from binlog2s3.stream.spool import Spool
from binlog2s3.stream.standby import StandbyLoop
from binlog2s3.stream.start import Histories, StartState, find, histories, proved
from binlog2s3.stream.waiting import Stop, may_be_mended, wait_for
from binlog2s3.stream.writer import Vacancy, this_process
from binlog2s3.workers import both

_log = Log("startup")


@dataclass(frozen=True, slots=True)
class StartResult:
    """What a startup found.

    `next_run` is None if the source could not be asked and the spool has what is missing in the
    bucket. `refusal` ends the stream as soon as that is uploaded. `unlogged`: the UUID of the
    source, if it was seen to write no binlog.
    """

    found: StartState
    next_run: NextRun | None
    refusal: SourceError | None = None
    unlogged: str = ""

    @property
    def server_uuid(self) -> str:
        """The UUID of the source, "" if it is not known."""
        if self.next_run is not None:
            return self.next_run.facts.uuid
        return self.found.lineage.server_uuid if self.found.lineage is not None else ""


class Startup:
    """One startup. Any thread may read `status` and `waits` meanwhile.

    `takes_over`: do not wait for another writer.
    """

    def __init__(
        self, config: Config, store: Store, spool: Spool, stop: Stop, *, takes_over: bool = False
    ) -> None:
        self._config = config
        self._store = store
        self._spool = spool
        self._stop = stop
        self._layout = Layout(config.s3.prefix, config.stream.source)
        self.catalog = Catalog(store, self._layout)
        self._grid = Grid(config.s3.part_size)
        self._me = this_process(config.stream.source, config.stream.heartbeat_interval)
        self._began = time.monotonic()
        self._source_error: BaseException | None = None
        self._store_error: StoreError | None = None
        self._failing_since = 0.0
        self._unlogged = ""
        self._standby = None if takes_over else self._standby_loop()
        self.vacancy: Vacancy | None = None

    def _standby_loop(self) -> StandbyLoop:
        """Waits while another writer of this source works."""
        stream, login = self._config.stream, lambda: resolve(self._config.mysql)

        def reach() -> str:
            with Server(login) as server:
                return server.facts().uuid

        return StandbyLoop(
            store=self._store,
            layout=self._layout,
            spool=self._spool,
            target=self._config.target,
            interval_seconds=stream.heartbeat_interval,
            exits=stream.exit_on_other_writer,
            reach=reach,
            refuses=lambda error: not (error.transient or self._is_used()),
            stop=self._stop.event,
        )

    def status(self) -> Status:
        """The status until the stream begins: how long it has been starting, what it waits for."""
        now, standing = time.monotonic(), self._standing()
        vitals = self._vitals(now) if standing is None else self._standby_vitals(now, standing)
        state, troubles = judge(vitals, self._config.timing)
        return Status(
            source=self._layout.source,
            target=self._config.target,
            seen_from="daemon",
            at=datetime.now(UTC),
            state=state,
            troubles=troubles,
            writer=standing.writer if standing is not None else writer_status(self._me, None),
            standbys=(standing.status,) if standing is not None else None,
            server=SourceStatus(
                uuid=standing.source.uuid if standing is not None else "",
                error=vitals.source_error,
            ),
            flush_interval=self._config.stream.flush_interval,
        )

    def _standing(self) -> StandbyLoop | None:
        """The standby loop while it waits, else None."""
        standby = self._standby
        return standby if standby is not None and standby.is_standing else None

    def _vitals(self, now: float) -> Vitals:
        seconds, error, failed = now - self._began, self._source_error, self._store_error
        return Vitals(
            phase="starting",
            phase_seconds=seconds,
            source_error=str(error or ""),
            source_hint=getattr(error, "hint", ""),
            source_silent=seconds if error is not None else 0.0,
            unlogged=isinstance(error, UnloggedError),
            store_error=str(failed or ""),
            store_hint=getattr(failed, "hint", ""),
            store_failing=now - self._failing_since if failed is not None else None,
        )

    @staticmethod
    def _standby_vitals(now: float, standing: StandbyLoop) -> Vitals:
        error = standing.source.error
        since, failed = standing.store_error or (now, None)
        return Vitals(
            phase="standby",
            source_error=str(error or ""),
            source_hint=getattr(error, "hint", ""),
            source_silent=now - standing.source.silent_since if error is not None else 0.0,
            store_error=str(failed or ""),
            store_hint=getattr(failed, "hint", ""),
            store_failing=now - since if failed is not None else None,
            unsaved_bytes=standing.me.unsaved_bytes,
            may_be_last_copy=standing.may_be_last_copy,
        )

    @property
    def waits(self) -> bool:
        """Whether the startup waits for the store, the source, or another writer."""
        failing = self._source_error is not None or self._store_error is not None
        return failing or self._standing() is not None

    def _note_unlogged(self, error: BaseException) -> None:
        if isinstance(error, UnloggedError):
            self._unlogged = error.uuid or self._unlogged

    def waits_for(self, error: BaseException | None) -> None:
        """Note the error that the startup waits to end; None: the store has answered."""
        if isinstance(error, StoreError):
            self._failing_since = self._failing_since if self._store_error else time.monotonic()
            self._store_error = error
        elif error is None:
            self._store_error = None
        else:
            self._note_unlogged(error)
            self._source_error = error

    def begin(self) -> StartResult:
        """Stand by while another writer works; then decide where the stream continues.

        If the store cannot be reached, wait, and then read everything again, because what was found
        before would be out of date. If it refuses, wait only if the spool has binlogs: otherwise
        this is a first start, and its user is watching. Raises Binlog2s3Error for what is refused.
        """
        result = wait_for(
            self._look,
            self._stop.event,
            tell=self.waits_for,
            passes=self.passes,
            timing=self._config.timing,
        )
        self._source_error = None
        return replace(result, unlogged=self._unlogged)

    def passes(self, error: BaseException) -> bool:
        """Whether to wait: the store cannot be reached, or refuses what it allowed before."""
        if not isinstance(error, StoreError):
            return False
        return error.transient or (self._is_used() and isinstance(error, MendableError))

    def _is_used(self) -> bool:
        """Whether the spool has binlogs; if not, this is a first start and its user is watching."""
        return any(run.files() for run in self._spool.runs())

    def _look(self) -> StartResult:
        """Wait for another writer first: what is read before the wait would be out of date.

        Also, mysqlbinlog would disconnect that writer's mysqlbinlog. If there is nothing to wait
        for, what was read beside the look for a writer counts.
        """
        spool, ahead = self._spool, None
        if self._standby is not None:
            vacancy, read = both(partial(self._waited, self._standby), self._ahead)
            self.vacancy, ahead = vacancy, read if vacancy.is_calm else None
        spool.drop_prefixes()
        with Server(lambda: resolve(self._config.mysql)) as server:
            unheard = self._try_server(server)
            try:
                target, grid = self._config.target, self._grid
                found = find(self._store, self._layout, spool, target, grid, ahead)
            except StoreError as error:
                if unheard is None or self.passes(error):
                    raise
                raise unheard from error
            self.waits_for(None)
            return self._begin(server, found, unheard)

    def _ahead(self) -> Histories | None:
        """The histories in the bucket; None if they have to be asked for again, for the error."""
        try:
            return histories(self._store, self._layout)
        except (StoreError, ArchiveError):
            return None

    def _waited(self, standby: StandbyLoop) -> Vacancy:
        """Wait for another writer. If store and source both refuse, raise the source's error."""
        try:
            return standby.wait()
        except StoreError as error:
            if self.passes(error):
                raise
            with Server(lambda: resolve(self._config.mysql)) as server:
                unheard = self._try_server(server)
            if unheard is None:
                raise
            raise unheard from error

    def _try_server(self, server: Server) -> SourceError | None:
        """The source's error, None if it answers. It is shown before any other error."""
        try:
            server.facts()
        except SourceError as error:
            self._note_unlogged(error)
            return error
        self._source_error = None
        return None

    def _begin(self, server: Server, found: StartState, unheard: SourceError | None) -> StartResult:
        new = found.known is None or not found.described
        empty = not self._is_used()
        if new and empty:
            if unheard is not None and not unheard.transient:
                raise unheard
            self._spool.check_room(self._config.spool_limits)
        found = self._proved(server, found)
        known_end, resumption = self._known_end(found), self._resumption()
        try:
            return StartResult(found, resumption.next_run(server, known_end))
        except (SourceError, GapError) as error:
            self._note_unlogged(error)
            if found.spool_has_more:
                _log.warning(
                    "the source cannot continue; uploading what the spool has",
                    error=error,
                    hint=error.hint,
                )
                if isinstance(error, SourceError) and error.refused:
                    return StartResult(found, None, refusal=error)
                return StartResult(found, None)
            if isinstance(error, GapError) or error.refused:
                raise
            waits = error.transient or (isinstance(error, UnloggedError) and not new)
            if (new or empty) and not waits:  # a first start: its user is watching
                raise
        next_run = wait_for(
            lambda: resumption.next_run(server, known_end),
            self._stop.event,
            tell=self.waits_for,
            passes=_passes_by_itself if new else may_be_mended,
            timing=self._config.timing,
        )
        return StartResult(found, next_run)

    def _proved(self, server: Server, found: StartState) -> StartState:
        """What was found, without the spool's binlogs after one that has no end of its own.

        After a RESET, names and even GTIDs may continue from there, so such a binlog is read again
        and compared. This does not wait for a server that does not answer: the spool may have the
        only copy.
        """
        endless = any(not track.scanner.ended for track in found.tracks[:-1])
        if found.lineage is None or not endless:
            return found
        try:
            if server.facts().uuid != found.lineage.server_uuid:
                return found
            tracks = proved(found.tracks, server.binlogs())
        except SourceError:
            return found
        return replace(found, tracks=tracks)

    def _known_end(self, found: StartState) -> KnownEnd | None:
        if found.known is None or not (found.described or found.tracks):
            return None
        if found.tracks:
            last = found.tracks[-1]
            return known_end_of(found.known.lineage, last, closed=last.closed)
        if found.undescribed:
            return known_end_of(found.known.lineage, found.undescribed[-1], closed=True)
        return known_end_of_archive(self.catalog, found.known)

    def _resumption(self) -> Resumption:
        return Resumption(self._config, self.catalog, self._spool, self._stop.event)


def _passes_by_itself(error: BaseException) -> bool:
    return isinstance(error, SourceError) and error.transient and not error.refused
