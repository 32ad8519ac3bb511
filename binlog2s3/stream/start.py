"""The start of a streamer: waits for its turn, reads bucket, spool and source, refuses early.

What is found without the source comes first: where the archive ends, and what the spool still has.
There is no state file.

Law: everything that can be refused is refused before anything is written to the bucket. A start
waits for a store or a source that cannot be reached. It never splices two histories: from the
spool, it takes only what follows the archive without a break, and is what its checksums say. All
else is left there, and the source is asked for it again.
"""

import threading
import time
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial

from binlog2s3.archive.catalog import Catalog
from binlog2s3.archive.documents import Lineage
from binlog2s3.archive.history import current_of, is_unlogged_between
from binlog2s3.archive.layout import Layout
from binlog2s3.archive.parts import Grid
from binlog2s3.archive.reading import ANY_GRID, BinlogReading
from binlog2s3.archive.writers import Turn
from binlog2s3.binlog.names import BinlogName
from binlog2s3.config.stream import Config
from binlog2s3.errors import (
    ArchiveError,
    DamageError,
    ForkError,
    GapError,
    SourceError,
    StoreError,
    UnloggedError,
)
from binlog2s3.log import Log
from binlog2s3.server.connection import Server, ServerBinlog
from binlog2s3.server.login import resolve
from binlog2s3.status.model import Measurements, SourceStatus, Status, judge, writer_status
from binlog2s3.store.requests import crc64_of
from binlog2s3.store.s3 import FileRange, MendableError, Store
from binlog2s3.stream.archive_end import archive_end, from_bucket, known_end_of_archive
from binlog2s3.stream.continuation import KnownEnd, known_end_of, nothing_of
from binlog2s3.stream.remote import put_entry, read_archived
from binlog2s3.stream.resume import NextRun, Resumption
from binlog2s3.stream.spool import Spool, SpoolFile, SpoolRun, check_spool
from binlog2s3.stream.standby import StandbyLoop
from binlog2s3.stream.tail import Overlap, Tailer, Track, TrackState
from binlog2s3.stream.tracking import describe
from binlog2s3.stream.waiting import Stop, may_be_mended, wait_for
from binlog2s3.stream.writer import Vacancy, this_process
from binlog2s3.workers import both

_log = Log("start")


# Without the source


@dataclass(frozen=True, slots=True, kw_only=True)
class StartState:
    """What a start has found: what the last writer wrote, and where the source goes on from there.

    `known` is the end of its archive, None if the bucket has nothing of this source. `undescribed`
    are archived binlogs whose entry the last writer had no time to write. `tracks` are the
    binlogs that follow the archive, in order; the last one may still be open. `left_behind`: what
    the spool still has of other lineages. Not `described`: the bucket has nothing of this source,
    and the lineage comes from the spool.
    `foreign`: keys that are not of this format, and were logged. `turn` is the last one.

    `next_run` is None if the source could not be asked and the spool has what is missing in the
    bucket. `refusal` ends the stream as soon as that is uploaded. `unlogged`: the UUID of the
    source, if it was seen to write no binlog.
    """

    known: KnownEnd | None
    undescribed: tuple[BinlogReading, ...]
    tracks: tuple[Track, ...]
    left_behind: tuple[tuple[KnownEnd, tuple[Track, ...]], ...] = ()
    described: bool = True
    foreign: frozenset[str] = frozenset()
    turn: Turn | None = None
    next_run: NextRun | None = None
    refusal: SourceError | None = None
    unlogged: str = ""

    @property
    def server_uuid(self) -> str:
        """The UUID of the source, "" if it is not known."""
        if self.next_run is not None:
            return self.next_run.facts.uuid
        return self.lineage.server_uuid if self.lineage is not None else ""

    @property
    def lineage(self) -> Lineage | None:
        """The lineage that the last writer wrote."""
        return self.known.lineage if self.known else None

    @property
    def spool_has_more(self) -> bool:
        """Whether the spool has bytes of that history that may not be in the bucket."""
        return any(track.size > track.floor for track in self.tracks)


@dataclass(frozen=True, slots=True)
class Histories:
    """The lineages in the bucket and the last turn."""

    lineages: Sequence[Lineage]
    turn: Turn | None


def histories(catalog: Catalog) -> Histories:
    """Read them. Raises StoreError and ArchiveError."""
    return Histories(*both(catalog.lineages, catalog.turn))


def find(
    catalog: Catalog, runs: Sequence[SpoolRun], grid: Grid, ahead: Histories | None = None
) -> StartState:
    """Read bucket and spool, and write nothing. Raises StoreError, ArchiveError and SpoolError.

    `ahead`: what was read already, if nobody can have written since.
    """
    read = ahead if ahead is not None else histories(catalog)
    known = current_end(catalog, read.lineages, read.turn)
    undescribed: list[BinlogReading] = []
    if known is not None:
        undescribed = read_undescribed(catalog, known)
        known = known.after(undescribed)
    for key in sorted(catalog.foreign):
        _log.warning("left alone: not of this archive's format", key=key)
    tracks: list[Track] = []
    left_behind = []
    described = known is not None
    if known is None:
        known = _undescribed_lineage(runs, catalog.layout.source, grid)
    if known is not None:
        tracks = adopt(runs, grid=grid, end=known, catalog=catalog)
        spooled = {run.facts.lineage for run in runs} - {known.lineage.id}
        for lineage in read.lineages:
            if lineage.id in spooled:
                end = archive_end(catalog, lineage)
                left = adopt(runs, grid=grid, end=end, catalog=catalog, onward=False)
                left_behind.append((end, tuple(left)))
    return StartState(
        known=known,
        undescribed=tuple(undescribed),
        tracks=tuple(tracks),
        left_behind=tuple(left_behind),
        described=described,
        foreign=frozenset(catalog.foreign),
        turn=read.turn,
    )


def _undescribed_lineage(runs: Iterable[SpoolRun], source: str, grid: Grid) -> KnownEnd | None:
    """The lineage of a spool whose streamer died before it wrote a lineage.json."""
    for run in runs:
        if run.facts.lineage is not None or run.facts.position > 4:
            continue
        begun = [track for track in read_run(Tailer(run, grid)) if track.begun]
        if begun and not begun[0].scanner.damage and (flavour := begun[0].scanner.flavour):
            lineage = describe(source, run.facts.server_uuid, flavour, begun[0])
            return nothing_of(lineage)
    return None


def current_end(
    catalog: Catalog, lineages: Sequence[Lineage], turn: Turn | None
) -> KnownEnd | None:
    """The end of the current lineage's archive, by the last turn; None if there is no lineage.

    Raises ArchiveError if its lineage.json is missing.
    """
    wanted = current_of(lineages, turn)
    if not wanted:
        return None
    for lineage in lineages:
        if lineage.id == wanted:
            return archive_end(catalog, lineage)
    raise ArchiveError(
        f"the last writer wrote lineage {wanted}, but its lineage.json is missing",
        hint="restore it, for example from an older version of the object; `binlog2s3 verify` "
        "names it",
    )


def read_undescribed(catalog: Catalog, end: KnownEnd) -> list[BinlogReading]:
    """Read the archived binlogs after the last entry, which an earlier writer completed.

    Stops at a damaged one: it is compared with the source's later. Raises ArchiveError for an
    object that cannot be the next binlog.
    """
    undescribed: list[BinlogReading] = []
    while True:
        name = end.following
        key = catalog.layout.binlog(end.lineage.id, name)
        try:
            binlog = read_archived(catalog.store, key, name)
        except ArchiveError as error:
            _log.warning("an archived binlog without an entry is not whole", key=key, error=error,
                         hint="it is compared with what the source has")  # fmt: skip
            break
        if binlog is None:
            break
        if why := end.contradiction(binlog):
            raise ArchiveError(
                f"{key} cannot be the next binlog of this archive: {why}",
                hint="if another program put it there, move it away",
            )
        undescribed.append(binlog)
        end = end.after([binlog])
    return undescribed


def mend_entries(catalog: Catalog, begun: StartState) -> None:
    """Write the entries that the last writer had no time to write, from the objects."""
    for binlog in begun.undescribed:
        lineage = begun.lineage.id if begun.lineage else ""
        put_entry(catalog.store, catalog.layout.entry(lineage, binlog.name), binlog)
        _log.info("entry made from the archived binlog", binlog=binlog.name)


def sweep_spool(spool: Spool, begun: StartState) -> None:
    """Delete what an earlier run archived and had no time to delete, and runs without events.

    And files that have only bytes below a floor, which the bucket has by checksum.
    """
    names = {name for run in spool.runs() for name in run.files()}
    ours = [(begun.known, begun.tracks)] if begun.known is not None else []
    for known, tracks in [*ours, *begun.left_behind]:
        lineage = known.lineage
        if known.last is not None:  # else all was pruned: what the bucket had of these is unknown
            for name in names:  # this deletes a run with its last file
                if lineage.first_binlog <= name < known.following:
                    spool.release(name, lineage.id)
        runs = [run for run in spool.runs() if _is_of(run, lineage)]
        spare = [
            file.path
            for track in tracks
            for file in (_files(runs, track.name) if track.floor else ())
            if _is_below_floor(file, track)
        ]
        spool.delete(spare)
    taken = {segment.path.parent for track in begun.tracks for segment in track.segments}
    for run in spool.runs():
        nobodys = run.facts.lineage is None and run.directory not in taken and not _has_begun(run)
        if nobodys or not run.facts.is_proved:
            spool.discard(run)
    spool.sweep()


def _has_begun(run: SpoolRun) -> bool:
    """Whether a run has the first events of a binlog, which say which history it is of.

    So has one of which they were freed: see `SpoolRun`.
    """
    return bool(run.freed) or any(track.begun for track in read_run(Tailer(run, ANY_GRID)))


def adopt(
    runs: Sequence[SpoolRun],
    *,
    grid: Grid,
    end: KnownEnd,
    catalog: Catalog,
    onward: bool = True,
) -> list[Track]:
    """The binlogs that follow the archive, from spool and bucket, in order and without a break.

    A run continues where the run before it ended, or reads a binlog from its begin. What is
    damaged is left out. So is what has no event checksums: nothing in the spool was synced, and
    without checksums a hole that a power cut left would not show. What the bucket alone has of a
    binlog that is not archived is read from there: if a run goes on behind it and, with `onward`,
    if the spool has less of it.
    """
    bucket = _Bucket(catalog, end, grid, runs)
    tracks: list[Track] = []
    for run in runs:
        open_track = tracks[-1] if tracks and not tracks[-1].closed else None
        whole = end.after(t for t in tracks if t.closed)
        begin = whole.following
        if not _is_of(run, end.lineage) or begin not in run.files():
            continue
        if start := run.start_of(begin):
            if open_track is None or open_track.size < start:
                from_chunks = bucket.instead_of(open_track, whole)
                if from_chunks is not None:
                    open_track = from_chunks
                    tracks = [*(track for track in tracks if track.closed), from_chunks]
            if open_track is not None:
                later = _extend(run, open_track, start, grid, bucket)
                open_track.judge({})
                tracks += _checked(later, end.after(tracks))
            continue
        from_run = _checked(read_run(Tailer(run, grid, begin)), whole)
        if open_track is not None:
            if not from_run or (len(from_run) == 1 and from_run[0].size <= open_track.size):
                continue
            tracks.pop()
        tracks += from_run
    if onward:
        tracks = bucket.onward(tracks, end)
    if tracks and tracks[-1].floor:
        last = tracks[-1]
        _log.info("read back from the bucket", binlog=last.name, size=last.floor)
    if tracks and tracks[-1].size > tracks[-1].floor:
        _log.info(
            "taken from the spool",
            first=tracks[0].name,
            last=tracks[-1].name,
            size=tracks[-1].size,
            closed=tracks[-1].closed,
        )
    return tracks


class _Bucket:
    """What the bucket has of binlogs that are not archived; each is read once."""

    def __init__(
        self, catalog: Catalog, end: KnownEnd, grid: Grid, runs: Iterable[SpoolRun]
    ) -> None:
        self._catalog = catalog
        self._end = end
        self._lineage = end.lineage
        self._grid = grid
        self._runs = [run for run in runs if _is_of(run, end.lineage)]
        self._read: set[BinlogName] = set()

    def onward(self, tracks: list[Track], end: KnownEnd) -> list[Track]:
        """The tracks, with what the bucket alone has, up to the end of its chunks."""
        while True:
            closed = [track for track in tracks if track.closed]
            last = tracks[-1] if len(tracks) > len(closed) else None
            chunked = self.instead_of(last, end.after(closed))
            if chunked is None:
                return tracks
            tracks = [*closed, chunked]
            if not chunked.closed:
                return tracks

    def instead_of(self, track: Track | None, end: KnownEnd) -> Track | None:
        """The next binlog from the bucket, if that has more of it than `track`, and the same."""
        name = end.following
        if name in self._read:
            return None
        have = track.size if track is not None and track.name == name else 0
        size = self._end.next_size if name == self._end.following else None
        if size is None:
            size = self._catalog.chunks(self._lineage, name).end
        if size <= have:
            return None
        self._read.add(name)
        files = _files(self._runs, name)
        sums_at = {have, *(at for file in files for at in (file.begin, file.end))}
        chunked = from_bucket(self._catalog, self._lineage, name, self._grid, sums_at)
        if chunked is None or chunked.size <= have or not _checked([chunked], end):
            return None
        if track is not None and have and chunked.sums[have] != track.digest.crc64:
            return None  # the spool's has other bytes: the chunks are compared with them
        return chunked

    def feed(self, track: Track, upto: int) -> bool:
        """Feed a track, which the bucket alone has, with the beginning of an event up to there.

        A part of a file that was freed did not end with an event.
        """
        if not track.rewind() or upto < track.size:
            return False
        if upto == track.size:
            return True
        if track.segments:
            return False
        try:
            binlog = self._catalog.binlog(self._lineage, track.name)
            for block in binlog.blocks(track.size, upto):
                track.feed(memoryview(block), binlog.received_us(track.scanner.position))
        except (ArchiveError, DamageError) as error:
            _log.warning("left in the spool, to be fetched again", error=f"{track.name}: {error}")
            track.rewind()
            return False
        track.floor, track.sums[upto] = upto, track.digest.crc64
        return True


def _files(runs: Iterable[SpoolRun], name: BinlogName) -> list[SpoolFile]:
    """The files that these runs have of a binlog."""
    files = [run.file_of(name) for run in runs if name in run.files()]
    return [file for file in files if file is not None]


def _is_below_floor(file: SpoolFile, track: Track) -> bool:
    """Whether all its bytes are, by checksum, bytes of the track that the bucket has."""
    if not file.begin < file.end <= track.floor or not {file.begin, file.end} <= track.sums.keys():
        return False
    file_range = FileRange(file.path, file.at, file.at + file.end - file.begin)
    return crc64_of(file_range) == track.crc64_between(file.begin, file.end)


def proved(tracks: Sequence[Track], listed: Iterable[ServerBinlog]) -> tuple[Track, ...]:
    """These tracks, up to the first that has no end of its own and is also on the server.

    That one is compared with the server's, because what came after it may be of another history.
    The last track always stays. `listed` is what the server lists.
    """
    names = {row.name for row in listed}
    for number, track in enumerate(tracks[:-1], start=1):
        if not track.scanner.ended and track.name in names:
            track.state = TrackState.GROWING
            _log.info("the binlog will be read again", error=f"{track.name} has no end of its own")
            return tuple(tracks[:number])
    return tuple(tracks)


def _is_of(run: SpoolRun, lineage: Lineage) -> bool:
    """Whether a run is of this lineage; one that ended before it had one may have begun it."""
    if run.facts.lineage is None and run.facts.server_uuid == lineage.server_uuid:
        return run.facts.binlog == str(lineage.first_binlog)
    return run.facts.lineage == lineage.id


def _checked(candidates: list[Track], end: KnownEnd) -> list[Track]:
    """Those that follow the archive, one after the other, with checksums in every event."""
    good: list[Track] = []
    for track in candidates:
        if not track.begun or track.scanner.damage:
            break
        if track.size > track.floor and not _has_checksums(track):
            break
        if why := end.contradiction(track):
            _log.warning("left in the spool, to be fetched again", error=f"{track.path}: {why}")
            break
        rotated = end.rotated_to == track.name
        if is_unlogged_between(rotated=rotated, started=track.started):
            break  # it begins another lineage
        track.judge({})
        good.append(track)
        end = end.after([track])  # if it is open, the source tells later whether it is complete
    return good


def _has_checksums(track: Track) -> bool:
    return all(form.checksum == "crc32" for form in track.scanner.formats)


def _extend(run: SpoolRun, track: Track, start: int, grid: Grid, bucket: _Bucket) -> list[Track]:
    """Extend this track by a run whose file begins at `start`, in the middle of its binlog.

    Returns the run's next binlogs.
    """
    if not _has_checksums(track):
        return []
    overlap, floor = track.overlap_at(start), track.floor
    if overlap is None and str(track.name) in run.freed and bucket.feed(track, start):
        overlap = Overlap(binlog=track.name, begin=start, end=start, crc64=0)
    if overlap is None:
        return []
    later = read_run(Tailer(run, grid, track.name, overlap=overlap, track=track))
    if track.size < track.floor:  # the event at its floor is not whole
        del track.sums[track.floor]
        track.floor, track.segments = floor, ()
        track.rewind()
    return later


def read_run(tailer: Tailer) -> list[Track]:
    """Everything that a run has, up to its end or the first error."""
    tracks: list[Track] = []
    with closing(tailer):
        before: object = None
        try:
            while tailer.pump() or tailer.progress != before:
                before = tailer.progress
                tracks += tailer.take_new()
        except (DamageError, ForkError) as error:
            tracks += tailer.take_new()
            _log.warning("left in the spool, to be fetched again", error=error)
    return tracks


# With the source


class Startup:
    """One startup. Any thread may read `status` and `waits` meanwhile.

    `takes_over`: do not wait for another writer.
    """

    def __init__(
        self, config: Config, store: Store, spool: Spool, stop: Stop, *, takes_over: bool = False
    ) -> None:
        self._config = config
        self._spool = spool
        self._stop = stop
        self.catalog = Catalog(store, Layout(config.s3.prefix, config.stream.source))
        self._grid = Grid(config.s3.part_size)
        self._me = this_process(config.stream.source, config.stream.heartbeat_interval)
        self._began = time.monotonic()
        self._source_error: BaseException | None = None
        self._store_error: tuple[float, StoreError] | None = None  # since when, and the last one
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
            catalog=Catalog(self.catalog.store, self.catalog.layout),
            spool=self._spool,
            interval_seconds=stream.heartbeat_interval,
            exits=stream.exit_on_other_writer,
            reach=reach,
            refuses=lambda error: not (error.transient or self._is_used()),
            stop=self._stop.event,
        )

    def status(self) -> Status:
        """The status until the stream begins: how long it has been starting, what it waits for."""
        now, standing = time.monotonic(), self._standing()
        measured = self._measured(now, standing)
        state, troubles = judge(measured, self._config.timing)
        return Status(
            source=self._spool.source,
            target=self._spool.target,
            seen_from="daemon",
            at=datetime.now(UTC),
            state=state,
            troubles=troubles,
            writer=standing.writer if standing is not None else writer_status(self._me, None),
            standbys=(standing.status,) if standing is not None else None,
            server=SourceStatus(
                uuid=standing.source.uuid if standing is not None else "",
                error=measured.source_error,
            ),
            flush_interval=self._config.stream.flush_interval,
        )

    def _standing(self) -> StandbyLoop | None:
        """The standby loop while it waits, else None."""
        standby = self._standby
        return standby if standby is not None and standby.is_standing else None

    def _measured(self, now: float, standing: StandbyLoop | None) -> Measurements:
        error, silent_since, failing = self._source_error, self._began, self._store_error
        if standing is not None:
            error, silent_since = standing.source.error, standing.source.silent_since
            failing = standing.store_error
        since, failed = failing or (now, None)
        return Measurements(
            phase="starting" if standing is None else "standby",
            phase_seconds=now - self._began,
            source_error=str(error or ""),
            source_hint=getattr(error, "hint", ""),
            source_silent=now - silent_since if error is not None else 0.0,
            unlogged=standing is None and isinstance(error, UnloggedError),
            store_error=str(failed or ""),
            store_hint=getattr(failed, "hint", ""),
            store_failing=now - since if failed is not None else None,
            unsaved_bytes=standing.me.unsaved_bytes if standing is not None else 0,
            may_be_last_copy=standing is not None and standing.may_be_last_copy,
        )

    @property
    def waits(self) -> bool:
        """Whether the startup waits for the store, the source, or another writer."""
        failing = self._source_error is not None or self._store_error is not None
        return failing or self._standing() is not None

    def _note_unlogged(self, error: BaseException) -> None:
        if isinstance(error, UnloggedError):
            self._unlogged = error.uuid or self._unlogged

    def waits_for(self, error: BaseException) -> None:
        """Note the error that the startup waits to end."""
        if isinstance(error, StoreError):
            since, _ = self._store_error or (time.monotonic(), None)
            self._store_error = since, error
        else:
            self._note_unlogged(error)
            self._source_error = error

    def begin(self) -> StartState:
        """Stand by while another writer works; then find where the stream continues.

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

    def _look(self) -> StartState:
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
                runs = spool.runs()
                check_spool(runs, spool.source, spool.target)
                begun = find(self.catalog, runs, self._grid, ahead)
            except StoreError as error:
                if unheard is None or self.passes(error):
                    raise
                raise unheard from error
            self._store_error = None
            return self._begin(server, begun, unheard)

    def _ahead(self) -> Histories | None:
        """The histories in the bucket; None if they have to be asked for again, for the error."""
        try:
            return histories(self.catalog)
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

    def _begin(self, server: Server, begun: StartState, unheard: SourceError | None) -> StartState:
        new = begun.known is None or not begun.described
        empty = not self._is_used()
        if new and empty:
            if unheard is not None and not unheard.transient:
                raise unheard
            self._spool.check_room()
        begun = _proved(server, begun)
        known_end = _known_end(self.catalog, begun)
        resumption = self._resumption()
        try:
            return replace(begun, next_run=resumption.next_run(server, known_end))
        except (SourceError, GapError) as error:
            self._note_unlogged(error)
            if begun.spool_has_more:
                _log.warning(
                    "the source cannot continue; uploading what the spool has",
                    error=error,
                    hint=error.hint,
                )
                if isinstance(error, SourceError) and error.refused:
                    return replace(begun, refusal=error)
                return begun
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
        return replace(begun, next_run=next_run)

    def _resumption(self) -> Resumption:
        return Resumption(self._config, self.catalog, self._spool, self._stop.event)


def rehearse(config: Config, catalog: Catalog, runs: Sequence[SpoolRun], server: Server) -> NextRun:
    """Where a streamer that is started now would begin. Writes nothing, and compares no binlogs.

    Raises what would end it: SourceError, GapError, StoreError, ArchiveError; and UncomparedError.
    """
    begun = _proved(server, find(catalog, runs, Grid(config.s3.part_size)))
    resumption = Resumption(config, catalog, None, threading.Event())
    return resumption.next_run(server, _known_end(catalog, begun))


def _proved(server: Server, begun: StartState) -> StartState:
    """What was found, without the spool's binlogs after one that has no end of its own.

    After a RESET, names and even GTIDs may continue from there, so such a binlog is read again
    and compared. This does not wait for a server that does not answer: the spool may have the
    only copy.
    """
    endless = any(not track.scanner.ended for track in begun.tracks[:-1])
    if begun.lineage is None or not endless:
        return begun
    try:
        if server.facts().uuid != begun.lineage.server_uuid:
            return begun
        tracks = proved(begun.tracks, server.binlogs())
    except SourceError:
        return begun
    return replace(begun, tracks=tracks)


def _known_end(catalog: Catalog, begun: StartState) -> KnownEnd | None:
    if begun.known is None or not (begun.described or begun.tracks):
        return None
    if begun.tracks:
        last = begun.tracks[-1]
        return known_end_of(begun.known.lineage, last, closed=last.closed)
    if begun.undescribed:
        return known_end_of(begun.known.lineage, begun.undescribed[-1], closed=True)
    return known_end_of_archive(catalog, begun.known)


def _passes_by_itself(error: BaseException) -> bool:
    return isinstance(error, SourceError) and error.transient and not error.refused
