"""What a startup finds without the source: where the archive ends, and what the spool still has.

Everything is read from the bucket and the spool, before anything is claimed; there is no state
file.

Law: a startup never splices two histories. From the spool, it takes only what follows the archive.
"""

import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from binlog2s3.archive.catalog import Catalog
from binlog2s3.archive.documents import Lineage, Parent, SourceServer, lineage_id
from binlog2s3.archive.history import current_of
from binlog2s3.archive.layout import Layout
from binlog2s3.archive.parts import Grid
from binlog2s3.archive.reading import BinlogReading
from binlog2s3.archive.writers import Position, Turn
from binlog2s3.binlog.gtid import Flavour
from binlog2s3.binlog.names import BinlogName
from binlog2s3.errors import ArchiveError, DamageError, SpoolError
from binlog2s3.formatting import us_of
from binlog2s3.log import Log
from binlog2s3.store.s3 import Store
from binlog2s3.stream.adopt import adopt, read_run
from binlog2s3.stream.archive_end import ArchiveEnd, archive_end
from binlog2s3.stream.remote import put_entry
from binlog2s3.stream.retry import both
from binlog2s3.stream.spool import Spool, SpoolRun
from binlog2s3.stream.tail import Tailer, Track

_log = Log("start")
PROBE = "probe"
"""In place of a lineage: the run only compares, or is not proved yet. A start discards it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartState:
    """What the bucket and the spool have of the history that the last writer wrote.

    `known` is the end of its archive, None if the bucket has nothing of this source. `undescribed`
    are archived binlogs whose entry the last writer had no time to write. `tracks` are the
    binlogs that follow the archive, in order; the last one may still be open. `durable` is what the
    archive alone proves. `left_behind`: what the spool still has of other lineages. Not
    `described`: the bucket has nothing of this source, and the lineage comes from the spool.
    `foreign`: keys that are not of this format, and were logged.
    """

    known: ArchiveEnd | None
    lineages: tuple[Lineage, ...]
    undescribed: tuple[BinlogReading, ...]
    tracks: tuple[Track, ...]
    durable: Position | None
    left_behind: tuple[tuple[ArchiveEnd, tuple[Track, ...]], ...] = ()
    described: bool = True
    foreign: frozenset[str] = frozenset()

    @property
    def lineage(self) -> Lineage | None:
        """The lineage that the last writer wrote."""
        return self.known.lineage if self.known else None

    @property
    def spool_has_more(self) -> bool:
        """Whether the spool has bytes of that history that may not be in the bucket."""
        return any(track.size > track.floor for track in self.tracks)


def find(store: Store, layout: Layout, spool: Spool, target: str, grid: Grid) -> StartState:
    """Read bucket and spool, and write nothing. Raises StoreError, ArchiveError and SpoolError."""
    runs = spool.runs()
    check_spool(runs, layout.source, target)
    catalog = Catalog(store, layout)
    lineages, turn = both(catalog.lineages, catalog.turn)
    known = current_end(catalog, lineages, turn)
    undescribed: list[BinlogReading] = []
    if known is not None:
        undescribed = read_undescribed(store, layout, known)
        known = known.after(undescribed)
    for key in sorted(catalog.foreign):
        _log.warning("left alone: not of this archive's format", key=key)
    tracks: list[Track] = []
    left_behind = []
    described = known is not None
    if known is None:
        known = _undescribed_lineage(runs, layout.source, grid)
    if known is not None:
        tracks = adopt(runs, grid=grid, end=known, catalog=catalog)
        spooled = {run.facts.lineage for run in runs} - {known.lineage.id}
        for lineage in lineages:
            if lineage.id in spooled:
                end = archive_end(catalog, lineage)
                left = adopt(runs, grid=grid, end=end, catalog=catalog, onward=False)
                left_behind.append((end, tuple(left)))
    return StartState(
        known=known,
        lineages=tuple(lineages),
        undescribed=tuple(undescribed),
        tracks=tuple(tracks),
        durable=known.position if known else None,
        left_behind=tuple(left_behind),
        described=described,
        foreign=frozenset(catalog.foreign),
    )


def _undescribed_lineage(runs: Iterable[SpoolRun], source: str, grid: Grid) -> ArchiveEnd | None:
    """The lineage of a spool whose streamer died before it wrote a lineage.json."""
    for run in runs:
        if run.facts.lineage is not None or run.facts.position > 4:
            continue
        found = [track for track in read_run(Tailer(run, grid)) if track.begun]
        if found and not found[0].scanner.damage and (flavour := found[0].scanner.flavour):
            lineage = describe(source, run.facts.server_uuid, flavour, found[0])
            return ArchiveEnd(lineage=lineage, next_binlog=found[0].name, last=None, end=None)
    return None


def current_end(
    catalog: Catalog, lineages: Sequence[Lineage], turn: Turn | None
) -> ArchiveEnd | None:
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


def describe(
    source: str,
    server_uuid: str,
    flavour: Flavour,
    first: BinlogReading,
    parent: Parent | None = None,
) -> Lineage:
    """A new lineage of this server, which begins with this binlog."""
    begun, before = first.created_at, first.gtids_before()
    return Lineage(
        lineage=lineage_id(begun, server_uuid, secrets.token_hex(2)),
        source=source,
        server=SourceServer(
            uuid=server_uuid,
            flavour=flavour,
            version=first.scanner.formats[0].server_version,
        ),
        first_binlog=first.name,
        first_binlog_time=begun,
        gtid_set=str(before) if before is not None else "",
        parent=parent,
        time_zone=first.time_zone,
        gtids_outside=first.gtids_outside,
    )


def renamed(lineage: Lineage) -> Lineage:
    """The same new lineage with another id."""
    id_ = lineage_id(lineage.first_binlog_time, lineage.server_uuid, secrets.token_hex(2))
    return replace(lineage, lineage=id_)


def read_undescribed(store: Store, layout: Layout, end: ArchiveEnd) -> list[BinlogReading]:
    """Read the archived binlogs after the last entry, which an earlier writer completed.

    Stops at a damaged one: it is compared with the source's later. Raises ArchiveError for an
    object that cannot be the next binlog.
    """
    found: list[BinlogReading] = []
    while True:
        name = end.next_binlog
        key = layout.binlog(end.lineage.id, name)
        if store.head(key) is None:
            break
        binlog = read_back(store, key, name)
        if binlog is None:
            break
        if why := end.contradiction(binlog):
            raise ArchiveError(
                f"{key} cannot be the next binlog of this archive: {why}",
                hint="if another program put it there, move it away",
            )
        found.append(binlog)
        end = end.after([binlog])
    return found


def read_back(store: Store, key: str, name: BinlogName) -> BinlogReading | None:
    """Read an archived binlog that has no entry; None if the object is not a complete binlog."""
    info = store.head(key)
    if info is None:
        return None
    size, received_us = info.size, us_of(info.last_modified)
    reading = BinlogReading(name)
    try:
        for block in store.open(key, 0, size):
            reading.feed(memoryview(block), received_us)
    except DamageError as error:
        _log.warning("an archived binlog without an entry has damage", key=key, error=error,
                     hint="it is compared with what the source has")  # fmt: skip
        return None
    if reading.size != size or not size:
        _log.warning("an archived binlog without an entry is not whole", key=key, size=reading.size,
                     hint="it is compared with what the source has")  # fmt: skip
        return None
    return reading


def check_spool(runs: Iterable[SpoolRun], source: str, target: str) -> None:
    """Raises SpoolError if the spool is of another source or bucket."""
    for run in runs:
        if (run.facts.source, run.facts.target) != (source, target):
            raise SpoolError(
                f"spool {run.directory.parent} holds binlogs of {run.facts.source} for "
                f"{run.facts.target}, not of {source} for {target}",
                hint="give each source and bucket a spool of its own: --spool",
            )


def mend_entries(store: Store, layout: Layout, found: StartState) -> None:
    """Write the entries that the last writer had no time to write, from the objects."""
    for binlog in found.undescribed:
        lineage = found.lineage.id if found.lineage else ""
        put_entry(store, layout.entry(lineage, binlog.name), binlog)
        _log.info("entry made from the archived binlog", binlog=binlog.name)


def sweep_spool(spool: Spool, found: StartState) -> None:
    """Delete what an earlier run archived and had no time to delete, and runs without events.

    And files that have only bytes below a floor, which the bucket has by checksum.
    """
    names = {name for run in spool.runs() for name in run.files()}
    ends = [found.known] if found.known is not None else []
    for known in [*ends, *(end for end, _ in found.left_behind)]:
        if known.last is None:  # all was pruned: what the bucket had of these is unknown
            continue
        for name in names:  # this deletes a run with its last file
            if known.lineage.first_binlog <= name < known.next_binlog:
                spool.release(name, known.lineage.id)
    for tracks in (found.tracks, *(left for _, left in found.left_behind)):
        spool.delete(path for track in tracks for path in track.spare)
    taken = {segment.path.parent for track in found.tracks for segment in track.segments}
    for run in spool.runs():
        nobodys = run.facts.lineage is None and run.directory not in taken and not _has_begun(run)
        if nobodys or run.facts.lineage == PROBE:
            spool.discard(run)
    spool.sweep()


def _has_begun(run: SpoolRun) -> bool:
    """Whether a run has the first events of a binlog, which say which history it is of.

    So has one of which they were freed: see `SpoolRun`.
    """
    return bool(run.freed) or any(track.begun for track in read_run(Tailer(run, Grid(5 << 20))))
