"""How a streamer begins: what is there, what speaks against it, where to go on.

Place in the flow: `daemon` has it begin, and streams with what it found; `start` reads the bucket
and the spool, `resume` asks the source.

Law: everything that can be refused is refused before anything is written to the bucket. A store or
a source that cannot be reached is waited for.
"""

import os
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from binlog2s3 import __version__
from binlog2s3.archive.catalog import Catalog
from binlog2s3.archive.documents import Lineage
from binlog2s3.archive.layout import Layout
from binlog2s3.archive.parts import Grid
from binlog2s3.binlog.names import BinlogName
from binlog2s3.config.values import Config
from binlog2s3.errors import GapError, SourceError, StoreError
from binlog2s3.log import Log
from binlog2s3.server.connection import Server, ServerFacts
from binlog2s3.server.login import resolve
from binlog2s3.server.mysqlbinlog import Child, Tool
from binlog2s3.status.model import SourceStatus, Status, Vitals, WriterStatus, judge
from binlog2s3.store.s3 import MendableError, Store
from binlog2s3.stream.compare import Finder
from binlog2s3.stream.continuation import Tip
from binlog2s3.stream.resume import Heading, Pilot
from binlog2s3.stream.retry import may_be_mended, wait_for
from binlog2s3.stream.shutdown import Stop
from binlog2s3.stream.spool import RunFacts, Spool, SpoolRun
from binlog2s3.stream.standby import Bystander
from binlog2s3.stream.start import (
    PROBE,
    Found,
    find,
    known_end,
    proved,
    tip_of,
    tip_of_archive,
)
from binlog2s3.stream.writer import Vacancy

_log = Log("beginning")


def target(config: Config) -> str:
    """Where the archive lies, for people and for the spool's own notes."""
    return f"s3://{config.s3.bucket}/{config.s3.prefix}".rstrip("/")


class Begun:
    """What a start found: `tip` is None for a source that is new to the bucket.

    `heading` is None where the source could not be asked, and the spool has what the bucket lacks.
    `refusal`: what the spool has is brought in, and then this ends it.
    """

    def __init__(
        self,
        found: Found,
        tip: Tip | None,
        heading: Heading | None,
        refusal: SourceError | None = None,
    ) -> None:
        self.found = found
        self.tip = tip
        self.heading = heading
        self.refusal = refusal


class Beginning:
    """Everything that can be refused, refused before anything is written to the bucket."""

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
        self._since = datetime.now(UTC)
        self._began = time.monotonic()
        self._source_error: BaseException | None = None
        self._store_error: StoreError | None = None
        self._failing_since = 0.0
        self._bystander = None if takes_over else self._stands_by()
        self.vacancy: Vacancy | None = None

    def _stands_by(self) -> Bystander:
        """Who waits for as long as another writer of this source works."""
        stream, login = self._config.stream, lambda: resolve(self._config.mysql)

        def reach() -> str:
            with Server(login) as server:
                return server.facts().uuid

        return Bystander(
            store=self._store,
            layout=self._layout,
            spool=self._spool,
            target=target(self._config),
            interval_seconds=stream.heartbeat_interval,
            exits=stream.exit_on_other_writer,
            reach=reach,
            refuses=lambda error: not (error.transient or self._is_used()),
            stop=self._stop.event,
        )

    def status(self) -> Status:
        """Until the stream begins: how long it has been starting, and what it waits for."""
        now, standing = time.monotonic(), self._standing()
        vitals = self._vitals(now)
        if standing is not None:
            vitals = self._standby_vitals(now, standing)
        state, troubles = judge(vitals, self._config.timing)
        me = WriterStatus(
            host=socket.gethostname(),
            pid=os.getpid(),
            version=__version__,
            since=self._since,
            heartbeat_interval_seconds=self._config.stream.heartbeat_interval,
        )
        return Status(
            source=self._layout.source,
            target=target(self._config),
            seen_from="daemon",
            at=datetime.now(UTC),
            state=state,
            troubles=troubles,
            writer=standing.writer if standing is not None else me,
            standbys=(standing.status,) if standing is not None else None,
            server=SourceStatus(
                uuid=standing.source.uuid if standing is not None else "",
                error=vitals.source_error,
            ),
            flush_interval=self._config.stream.flush_interval,
        )

    def _standing(self) -> Bystander | None:
        """The bystander, while it stands by."""
        bystander = self._bystander
        return bystander if bystander is not None and bystander.is_standing else None

    def _vitals(self, now: float) -> Vitals:
        seconds, error, failed = now - self._began, self._source_error, self._store_error
        return Vitals(
            phase="starting",
            phase_seconds=seconds,
            source_error=str(error) if error is not None else "",
            source_hint=getattr(error, "hint", ""),
            source_silent=seconds if error is not None else 0.0,
            store_error=str(failed) if failed is not None else "",
            store_hint=failed.hint if failed is not None else "",
            store_failing=now - self._failing_since if failed is not None else None,
        )

    @staticmethod
    def _standby_vitals(now: float, standing: Bystander) -> Vitals:
        error, failed = standing.source.error, standing.store_error
        return Vitals(
            phase="standby",
            source_error=str(error) if error is not None else "",
            source_hint=error.hint if error is not None else "",
            source_silent=now - standing.source.silent_since if error is not None else 0.0,
            store_error=str(failed[1]) if failed is not None else "",
            store_hint=failed[1].hint if failed is not None else "",
            store_failing=now - failed[0] if failed is not None else None,
            unsaved_bytes=standing.me.unsaved_bytes,
            may_be_last_copy=standing.may_be_last_copy,
        )

    @property
    def waits(self) -> bool:
        """Whether it waits for the store, the source, or its turn to write."""
        failing = self._source_error is not None or self._store_error is not None
        return failing or self._standing() is not None

    def waits_for(self, error: BaseException | None) -> None:
        """It waits, for this; None: the store has answered."""
        if isinstance(error, StoreError):
            self._failing_since = self._failing_since if self._store_error else time.monotonic()
            self._store_error = error
        elif error is None:
            self._store_error = None
        else:
            self._source_error = error

    def begin(self) -> Begun:
        """Stand by while another writer works; then find the way.

        A store that cannot be reached is waited for, and then all is looked at from the beginning:
        what was found before would be old. One that refuses is waited for only by a spool that has
        something: else somebody looks on.
        """
        begun = wait_for(
            self._look,
            self._stop.event,
            tell=self.waits_for,
            passes=self.passes,
            timing=self._config.timing,
        )
        self._source_error = None
        return begun

    def passes(self, error: BaseException) -> bool:
        """Whether it is waited for: the store cannot be reached, or refuses what it did not."""
        if not isinstance(error, StoreError):
            return False
        return error.transient or (self._is_used() and isinstance(error, MendableError))

    def _is_used(self) -> bool:
        """Whether the spool has anything: else this is the first start here, and somebody looks."""
        return any(run.files() for run in self._spool.runs())

    def _look(self) -> Begun:
        """In this order: what is found would be old after the wait for the other writer.

        And mysqlbinlog must not be started while that one works, which it would evict.
        """
        spool = self._spool
        if self._bystander is not None:
            self.vacancy = self._waited(self._bystander)
        spool.drop_prefixes()
        with Server(lambda: resolve(self._config.mysql)) as server:
            unheard = self._try_server(server)
            try:
                found = find(self._store, self._layout, spool, target(self._config), self._grid)
            except StoreError as error:
                if unheard is None or self.passes(error):
                    raise
                raise unheard from error
            self.waits_for(None)
            return self._begin(server, found, unheard)

    def _waited(self, bystander: Bystander) -> Vacancy:
        """Wait for the other writer. If store and source both refuse, the source's error counts."""
        try:
            return bystander.wait()
        except StoreError as error:
            if self.passes(error):
                raise
            with Server(lambda: resolve(self._config.mysql)) as server:
                unheard = self._try_server(server)
            if unheard is None:
                raise
            raise unheard from error

    def _try_server(self, server: Server) -> SourceError | None:
        """What speaks against the source from the first: told before what else is wrong."""
        try:
            server.facts()
        except SourceError as error:
            return error
        self._source_error = None
        return None

    def _begin(self, server: Server, found: Found, unheard: SourceError | None) -> Begun:
        new = found.known is None or not found.described
        empty = not self._is_used()
        if new and empty:
            if unheard is not None and not unheard.transient:
                raise unheard
            self._spool.check_room(self._config.spool_limits)
        found = self._proved(server, found)
        tip, pilot = self._tip(found), self._pilot()
        try:
            return Begun(found, tip, pilot.heading(server, tip))
        except (SourceError, GapError) as error:
            if found.tracks:
                _log.warning(
                    "the source cannot go on; what the spool has is brought in",
                    error=error,
                    hint=error.hint,
                )
                if isinstance(error, SourceError) and error.refused:
                    return Begun(found, tip, None, refusal=error)
                return Begun(found, tip, None)
            if isinstance(error, GapError) or error.refused:
                raise
            if (new or empty) and not error.transient:  # the first start here: somebody looks on
                raise
        heading = wait_for(
            lambda: pilot.heading(server, tip),
            self._stop.event,
            tell=self.waits_for,
            passes=_passes_by_itself if new else may_be_mended,
            timing=self._config.timing,
        )
        return Begun(found, tip, heading)

    def _proved(self, server: Server, found: Found) -> Found:
        """What was found, without what the spool has behind a binlog that nothing has ended.

        After a RESET the names go on, and equal GTIDs may: it is read again, and compared. A server
        that cannot be asked is not waited for: what is here may be nowhere else.
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

    def _tip(self, found: Found) -> Tip | None:
        if found.known is None or not (found.described or found.tracks):
            return None
        if found.tracks:
            last = found.tracks[-1]
            return tip_of(found.known.lineage, last, closed=last.closed)
        if found.undescribed:
            return tip_of(found.known.lineage, found.undescribed[-1], closed=True)
        return tip_of_archive(self.catalog, self._store, self._layout, found.known)

    def _pilot(self) -> Pilot:
        return make_pilot(self._config, self.catalog, self._store, self._layout, self._spool,
                          self._stop, self._stop.event.wait)  # fmt: skip


def _passes_by_itself(error: BaseException) -> bool:
    return isinstance(error, SourceError) and error.transient and not error.refused


def make_pilot(  # noqa: PLR0917
    config: Config,
    catalog: Catalog,
    store: Store,
    layout: Layout,
    spool: Spool,
    stop: Stop,
    work: Callable[[float], object],
) -> Pilot:
    """A pilot whose probes run in the spool, into directories that are discarded.

    `work` is what goes on meanwhile, for so many seconds.
    """

    def finder(facts: ServerFacts, tool: Tool, lineage: Lineage) -> Finder:
        def probe(name: BinlogName) -> tuple[SpoolRun, Child]:
            run = spool.begin(
                RunFacts(
                    source=config.stream.source,
                    target=target(config),
                    server_uuid=facts.uuid,
                    binlog=str(name),
                    position=4,
                    lineage=PROBE,
                )
            )
            child = Child(
                tool,
                resolve(config.mysql),
                server_id=0,
                directory=run.directory,
                binlog=name,
                one_binlog=True,
                on_line=lambda line: _log.info("mysqlbinlog says", line=line),
            )
            return run, child

        return Finder(
            catalog,
            lineage,
            probe=probe,
            discard=spool.discard,
            stopped=stop.event.is_set,
            work=work,
        )

    def others(uuid: str) -> Sequence[Tip]:
        ours = [lineage for lineage in catalog.lineages() if lineage.server_uuid == uuid]
        return [
            tip_of_archive(catalog, store, layout, known_end(catalog, lineage))
            for lineage in reversed(ours)
        ]

    return Pilot(config, catalog, finder, others)
