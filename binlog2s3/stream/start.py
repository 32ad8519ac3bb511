"""What a start finds without the source: where the bucket's history ends, what the spool still has.

Place in the flow: the daemon asks once, before it claims anything. Everything is read from the
bucket and the spool; there is no state file. `resume` then asks the source how it goes on.

Law: a start never splices two histories. Of the spool only what follows the bucket's history, and
is what its checksums say, is taken; everything else is left and fetched again.
"""

import secrets
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial

from binlog2s3.archive.catalog import Archived, Catalog
from binlog2s3.archive.documents import EntryEnd, Lineage, Parent, lineage_id
from binlog2s3.archive.history import current_of
from binlog2s3.archive.index import Index
from binlog2s3.archive.inventory import inventory
from binlog2s3.archive.layout import Layout
from binlog2s3.archive.pages import name_at
from binlog2s3.archive.parts import Grid
from binlog2s3.archive.reading import BinlogReading
from binlog2s3.archive.writers import Position
from binlog2s3.binlog.checksum import crc64_of_blocks
from binlog2s3.binlog.gtid import Flavour, Gtids, joined, parse
from binlog2s3.binlog.names import BinlogName
from binlog2s3.errors import ArchiveError, DamageError, ForkError, SpoolError, StoreError
from binlog2s3.log import Log
from binlog2s3.server.connection import ServerBinlog
from binlog2s3.store.s3 import Store
from binlog2s3.stream.continuation import Tip
from binlog2s3.stream.remote import put_entry
from binlog2s3.stream.spool import Floor, Spool, SpoolRun
from binlog2s3.stream.tail import Overlap, Tailer, Track, TrackState, overlap_of

_log = Log("start")
_LAST_FEW = 8
PROBE = "probe"
"""Instead of a lineage: the run only compares, and is discarded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """Where a lineage's archive ends: `next_binlog` is the first that it lacks.

    `last` is the one before and `end` its entry's end, both None if nothing is archived yet;
    `next_size` bytes of the next one lie there as chunks. `in_parts`: which of the last few were
    multipart uploads: what clears them away may have been stopped.
    """

    lineage: Lineage
    next_binlog: BinlogName
    last: BinlogName | None
    end: EntryEnd | None
    next_size: int = 0
    in_parts: tuple[BinlogName, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What the bucket and the spool say: the history that the last writer wrote, and where it ends.

    `known` is None where the bucket has nothing of this source. `undescribed` are archived binlogs
    whose entry a writer before us had no time to make. `tracks` follow the archive, from the spool,
    in order; the last may be one that is still open. `durable`: what the archive alone proves.
    `left_behind`: what the spool still has of histories that have ended. Not `described`: the
    bucket has nothing of this source, the lineage is the spool's own. `foreign`: keys that are not
    of this format, and were named.
    """

    known: Known | None
    lineages: tuple[Lineage, ...]
    undescribed: tuple[BinlogReading, ...]
    tracks: tuple[Track, ...]
    durable: Position | None
    left_behind: tuple[tuple[Known, tuple[Track, ...]], ...] = ()
    described: bool = True
    foreign: frozenset[str] = frozenset()

    @property
    def lineage(self) -> Lineage | None:
        """The lineage of all that."""
        return self.known.lineage if self.known else None


def find(store: Store, layout: Layout, spool: Spool, target: str, grid: Grid) -> Found:
    """Read it all, and write nothing. Raises what the store and the spool have to say."""
    runs = spool.runs()
    check_spool(runs, layout.source, target)
    store.check_access(layout.archive)
    catalog = Catalog(store, layout)
    lineages = catalog.lineages()
    known = current(catalog, lineages)
    undescribed: list[BinlogReading] = []
    if known is not None:
        undescribed = read_undescribed(store, layout, known)
        known = advance(known, undescribed)
    foreign = [*sorted(catalog.foreign), *_strange_uploads(catalog)]
    for key in foreign:
        _log.warning("left alone: not of this archive's format", key=key)
    tracks: list[Track] = []
    left_behind = []
    described = known is not None
    if known is None:
        known = _undescribed_lineage(runs, layout.source, grid)
    if known is not None:
        tracks = adopt(runs, grid=grid, known=known, catalog=catalog)
        spooled = {run.facts.lineage for run in runs} - {known.lineage.id}
        for lineage in lineages:
            if lineage.id in spooled:
                end = known_end(catalog, lineage)
                left_behind.append((end, tuple(adopt(runs, grid=grid, known=end, catalog=catalog))))
    return Found(
        known=known,
        lineages=tuple(lineages),
        undescribed=tuple(undescribed),
        tracks=tuple(tracks),
        durable=position_of(known) if known else None,
        left_behind=tuple(left_behind),
        described=described,
        foreign=frozenset(foreign),
    )


def _strange_uploads(catalog: Catalog) -> list[str]:
    """Foreign uploads; a store that does not show them is not asked twice."""
    try:
        return catalog.strange_uploads()
    except StoreError as error:
        _log.info("unfinished uploads are not shown", error=error)
        return []


def _undescribed_lineage(runs: Iterable[SpoolRun], source: str, grid: Grid) -> Known | None:
    """The lineage of a spool whose streamer died before it had described any in the bucket."""
    for run in runs:
        if run.facts.lineage is not None or run.facts.position > 4:
            continue
        found = [track for track in _pump(Tailer(run, grid)) if track.begun]
        if found and not found[0].scanner.damage and (flavour := found[0].scanner.flavour):
            lineage = describe(source, run.facts.server_uuid, flavour, found[0])
            return Known(lineage=lineage, next_binlog=found[0].name, last=None, end=None)
    return None


def current(catalog: Catalog, lineages: Sequence[Lineage]) -> Known | None:
    """Where the history that the last writer wrote ends; None before the first.

    Raises ArchiveError where its lineage.json is gone.
    """
    wanted = current_of(lineages, catalog.turn())
    if not wanted:
        return None
    for lineage in lineages:
        if lineage.id == wanted:
            return known_end(catalog, lineage)
    raise ArchiveError(
        f"the last writer wrote lineage {wanted}, and its lineage.json is gone",
        hint="put it back, from an older version of the bucket maybe; `binlog2s3 verify` names it",
    )


def known_end(catalog: Catalog, lineage: Lineage) -> Known:
    """The end of the unbroken run of archived binlogs from a lineage's first one on.

    A binlog that is only in chunks ends it, unless an archived one begins where those end: then the
    source could not finish it, and the lineage has gone on. Whether that is so up to the end of the
    last page was found out before that was written.
    """
    there = inventory(catalog, lineage, partial(Index, catalog, lineage))
    growing = {name: chunks.end for name, chunks in there.open.items() if chunks.end}
    name, archived = _beginning(there.index)
    last: BinlogName | None = None
    in_parts: list[BinlogName] = []
    while name in archived.binlogs or name in growing:
        if name not in archived.binlogs:
            if name.next() not in archived.entries or not _lost_end(catalog, lineage, name):
                break
        elif name not in archived.entries:
            break
        elif "-" in archived.binlogs[name].etag:
            in_parts.append(name)
        name, last = name.next(), name
    return Known(
        lineage=lineage,
        next_binlog=name,
        last=last,
        end=catalog.entry_end(lineage, last) if last in archived.entries and last else None,
        next_size=growing.get(name, 0) if name not in archived.binlogs else 0,
        in_parts=tuple(in_parts[-_LAST_FEW:]),
    )


def _beginning(index: Index) -> tuple[BinlogName, Archived]:
    """Where to begin to look for the end, and what is archived from there on.

    The last few before the end of the last page, if its last binlog is there with its entry.
    """
    page, first = index.last_page(), index.lineage.first_binlog
    if page is not None:
        begin = max(page.last + 1 - _LAST_FEW, first.number)
        there, last = index.tail(begin - 1), name_at(index.lineage, page.last)
        if last in there.binlogs and last in there.entries:
            return name_at(index.lineage, begin), there
    return first, index.tail(first.number - 1)


def describe(
    source: str,
    server_uuid: str,
    flavour: Flavour,
    first: BinlogReading,
    parent: Parent | None = None,
) -> Lineage:
    """A new lineage of this server that begins with this binlog."""
    begun, before = first.created_at, first.gtids_before()
    return Lineage(
        id=lineage_id(begun, server_uuid, secrets.token_hex(2)),
        source=source,
        server_uuid=server_uuid,
        flavour=flavour,
        server_version=first.scanner.formats[0].server_version,
        first_binlog=first.name,
        first_binlog_time=begun,
        gtid_set=str(before) if before is not None else "",
        parent=parent,
    )


def _lost_end(catalog: Catalog, lineage: Lineage, name: BinlogName) -> bool:
    """Whether the binlog behind this one begins with just the GTIDs at the end of its chunks."""
    chunks = read_chunks(catalog, lineage, name)
    after = chunks.gtids_after()
    if after is None or chunks.scanner.ended:
        return False
    following = catalog.entry_end(lineage, name.next())
    return parse(following.gtid_set_before, lineage.flavour) == after


def read_chunks(catalog: Catalog, lineage: Lineage, name: BinlogName) -> BinlogReading:
    """Read what the bucket has of a binlog, up to the first damage."""
    reading = BinlogReading(name)
    try:
        for block in catalog.binlog(lineage, name).blocks():
            reading.feed(memoryview(block))
    except (ArchiveError, DamageError) as error:  # it is read from the source again, and compared
        _log.warning("the bucket has damage", lineage=lineage.id, binlog=name, error=error)
    return reading


def position_of(known: Known) -> Position | None:
    """Where the archive ends, as a place in its history."""
    if known.last is None or known.end is None:
        return None
    after = gtids_at_end(known)
    return Position(
        binlog=str(known.last),
        offset=known.end.size,
        gtid_set=str(after) if after is not None else "",
    )


def tip_of_archive(catalog: Catalog, store: Store, layout: Layout, known: Known) -> Tip:
    """Where a lineage ends in the bucket, chunks counted in."""
    lineage = known.lineage
    if known.next_size:
        chunks = read_chunks(catalog, lineage, known.next_binlog)
        return replace(tip_of(lineage, chunks, closed=False), overlap=None)
    if known.last is None or known.end is None:
        return Tip(lineage=lineage, gtids=gtids_at_end(known))
    end = known.end
    return Tip(
        lineage=lineage,
        last=known.last,
        size=end.size,
        closed=True,
        gtids=gtids_at_end(known),
        gtids_before=parse(end.gtid_set_before, lineage.flavour),
        rotates_to=end.next_binlog,
        overlap=_archived_overlap(catalog, store, layout, lineage, known.last),
    )


def _archived_overlap(
    catalog: Catalog, store: Store, layout: Layout, lineage: Lineage, name: BinlogName
) -> Overlap:
    """The last of an archived binlog's bytes, from a transaction's begin on, for comparison."""
    entry = catalog.entry(lineage, name)
    starts = [b.first_offset for b in entry.blocks if b.first_offset and b.first_offset < 1 << 32]
    begin = starts[-1] if starts else 0
    if begin == 0:
        return Overlap(binlog=name, begin=0, end=entry.size, crc64=entry.crc64)
    crc64 = crc64_of_blocks(store.open(layout.binlog(lineage.id, name), begin, entry.size))
    return Overlap(binlog=name, begin=begin, end=entry.size, crc64=crc64)


def tip_of(lineage: Lineage, binlog: BinlogReading, *, closed: bool) -> Tip:
    """Where a history ends with this binlog, which may still grow if it is not closed."""
    overlap = overlap_of(binlog)
    return Tip(
        lineage=lineage,
        last=binlog.name,
        size=binlog.size,
        closed=closed,
        gtids=binlog.gtids_after(),
        gtids_before=binlog.gtids_before(),
        rotates_to=binlog.next_binlog,
        overlap=overlap,
    )


def advance(known: Known, binlogs: Iterable[BinlogReading]) -> Known:
    """What is known once these complete binlogs, which follow the archive, are counted as in it."""
    for binlog in binlogs:
        name, end = binlog.name, binlog.entry_end()
        known = replace(known, next_binlog=name.next(), last=name, end=end, next_size=0)
    return known


def breaks(known: Known, binlog: BinlogReading) -> str:
    """Why a binlog cannot be the one that follows the archive; "" if it can."""
    name, end, lineage = binlog.name, known.end, known.lineage
    begun = binlog.created_at
    if name == lineage.first_binlog and begun != lineage.first_binlog_time:
        return f"it was begun at {begun}, the lineage's at {lineage.first_binlog_time}"
    if binlog.next_binlog not in (None, str(name.next())):
        return f"it ends with a rotation to {binlog.next_binlog}"
    if end is not None and end.next_binlog not in (None, str(name)):
        return f"{known.last} ends with a rotation to {end.next_binlog}"
    before, expected = binlog.gtids_before(), gtids_at_end(known)
    if before is not None and expected is not None and before != expected:
        return f"it begins after {before or 'no GTIDs'}, not after {expected or 'none'}"
    return ""


def read_undescribed(store: Store, layout: Layout, known: Known) -> list[BinlogReading]:
    """Archived binlogs behind the last entry, read back: a writer before us has completed them.

    One that is damaged stops it: what the source has will tell whether it is served so. Raises
    ArchiveError for an object that cannot be the next binlog.
    """
    found: list[BinlogReading] = []
    while True:
        name = known.next_binlog
        key = layout.binlog(known.lineage.id, name)
        if store.head(key) is None:
            break
        binlog = read_back(store, key, name)
        if binlog is None:
            break
        if why := breaks(known, binlog):
            raise ArchiveError(
                f"{key} cannot be the next binlog of this archive: {why}",
                hint="was it put there by something else? move it away",
            )
        found.append(binlog)
        known = advance(known, [binlog])
    return found


def gtids_at_end(known: Known) -> Gtids | None:
    """The GTID set where the archive ends, None where it cannot be known."""
    if known.last is None:
        return parse(known.lineage.gtid_set, known.lineage.flavour)
    if known.end is None or known.end.anonymous_transactions:
        return None
    before = parse(known.end.gtid_set_before, known.lineage.flavour)
    return joined(before, parse(known.end.gtid_set_added, known.lineage.flavour))


def check_spool(runs: Iterable[SpoolRun], source: str, target: str) -> None:
    """See that the spool is this source's and this bucket's; SpoolError if not."""
    for run in runs:
        if (run.facts.source, run.facts.target) != (source, target):
            raise SpoolError(
                f"spool {run.directory.parent} holds binlogs of {run.facts.source} for "
                f"{run.facts.target}, not of {source} for {target}",
                hint="give each source and bucket a spool of its own: --spool",
            )


def adopt(runs: Iterable[SpoolRun], *, grid: Grid, known: Known, catalog: Catalog) -> list[Track]:
    """Binlogs that earlier runs left in the spool and the archive lacks, in order.

    From where the archive ends, without a break; each run goes on where the one before it was
    ended, or begins anew. What is damaged, or without event checksums that would show damage (a
    power cut leaves holes: nothing in the spool was synced), is left: the source is asked again.
    """
    tracks: list[Track] = []
    for run in runs:
        here = BinlogName.parse(run.facts.binlog)
        if not _is_of(run, known.lineage):
            continue
        open_track = tracks[-1] if tracks and not tracks[-1].closed else None
        whole = advance(known, [t for t in tracks if t.closed])
        begin = whole.next_binlog
        if run.facts.position > 4 and here >= begin:
            if open_track is not None and open_track.name == here:
                found = _go_on(run, open_track, grid, catalog, known.lineage)
                open_track.judge({})
                tracks += _checked(found, advance(known, tracks))
            continue
        if here > begin or begin not in run.files():
            continue
        found = _checked(_from(run, begin, grid, catalog, known.lineage), whole)
        if open_track is not None:
            if not found or (len(found) == 1 and found[0].size <= open_track.size):
                continue
            tracks.pop()
        tracks += found
    if tracks:
        _log.info(
            "taken from the spool",
            first=tracks[0].name,
            last=tracks[-1].name,
            size=tracks[-1].size,
            closed=tracks[-1].closed,
        )
    return tracks


def proved(tracks: Sequence[Track], listed: Iterable[ServerBinlog]) -> tuple[Track, ...]:
    """These, up to the first one that is not the last, has no end of its own, and is at the server.

    Whether the server's is still the same will be compared: what came behind it may be of another
    history. `listed` is what the server lists.
    """
    there = {row.name for row in listed}
    for number, track in enumerate(tracks[:-1], start=1):
        if not track.scanner.ended and track.name in there:
            track.state = TrackState.GROWING
            _log.info("left to be read again", error=f"{track.name} has no end of its own")
            return tuple(tracks[:number])
    return tuple(tracks)


def _is_of(run: SpoolRun, lineage: Lineage) -> bool:
    """Whether a run is of this lineage; one that died before it knew can only have begun it."""
    if run.facts.lineage is None and run.facts.server_uuid == lineage.server_uuid:
        return run.facts.binlog == str(lineage.first_binlog)
    return run.facts.lineage == lineage.id


def _checked(found: list[Track], known: Known) -> list[Track]:
    """Those that follow what is known, one after the other, with checksums in every event."""
    good: list[Track] = []
    for track in found:
        if not track.begun or track.scanner.damage:
            break
        if any(form.checksum != "crc32" for form in track.scanner.formats):
            break
        if why := breaks(known, track):
            _log.warning("left in the spool, to be fetched again", error=f"{track.path}: {why}")
            break
        track.judge({})
        good.append(track)
        known = advance(known, [track])  # where it is open, the source will tell if it is whole
    return good


def _from(
    run: SpoolRun, begin: BinlogName, grid: Grid, catalog: Catalog, lineage: Lineage
) -> list[Track]:
    """A run's binlogs from this one on, as far as their bytes are what their checksums say."""
    floor = run.facts.floors.get(str(begin))
    if floor is None:
        return _pump(Tailer(run, grid, begin))
    track = Track(begin, run.directory / str(begin), grid)
    return [track, *_behind_floor(run, track, floor, grid, catalog, lineage)]


def _go_on(
    run: SpoolRun, track: Track, grid: Grid, catalog: Catalog, lineage: Lineage
) -> list[Track]:
    """Let a run that went on in the middle of this track's binlog make it grow; what came then."""
    if floor := run.facts.floors.get(str(track.name)):
        return _behind_floor(run, track, floor, grid, catalog, lineage)
    begin = run.facts.position

    def blocks() -> Iterator[bytes]:
        if begin < track.floor:
            yield from catalog.binlog(lineage, track.name).blocks(begin, track.floor)
        with closing(track.body(max(begin, track.floor), track.size).open()) as reader:
            while data := reader.read(1 << 20):
                yield data

    overlap = track.overlap_at(begin, blocks())
    if overlap is None:
        return []
    return _pump(Tailer(run, grid, overlap=overlap, track=track))


def _behind_floor(  # noqa: PLR0917
    run: SpoolRun, track: Track, floor: Floor, grid: Grid, catalog: Catalog, lineage: Lineage
) -> list[Track]:
    """As `_go_on`, where the bucket alone has the bytes before a floor: read back from there."""
    at = track.scanner.position
    if at < floor.offset and grid.at(floor.offset).begin != floor.offset:
        return []  # what lies before it was in an earlier run's file, and is not there any more
    try:
        if at < floor.offset:
            for block in catalog.binlog(lineage, track.name).blocks(at, floor.offset):
                track.feed(memoryview(block))
    except (ArchiveError, DamageError) as error:
        _log.warning("left in the spool, to be fetched again", binlog=track.name, error=error)
        return []
    if at < floor.offset:
        track.floor = floor.offset
    start_at = floor.at + max(0, at - floor.offset)
    return _pump(Tailer(run, grid, track.name, track=track, start_at=start_at))


def _pump(tailer: Tailer) -> list[Track]:
    """All that a run has, until its end or the first thing that is wrong."""
    found: list[Track] = []
    with closing(tailer):
        before: object = None
        try:
            while tailer.pump() or tailer.place != before:
                before = tailer.place
                found += tailer.take_new()
        except (DamageError, ForkError) as error:
            found += tailer.take_new()
            _log.warning("left in the spool, to be fetched again", error=error)
    return found


def read_back(store: Store, key: str, name: BinlogName) -> BinlogReading | None:
    """Read an archived binlog that has no entry; None if the object is not a complete binlog."""
    info = store.head(key)
    size = info.size if info else 0
    reading = BinlogReading(name)
    try:
        for block in store.open(key, 0, size):
            reading.feed(memoryview(block))
    except DamageError as error:
        _log.warning("an archived binlog without an entry has damage", key=key, error=error,
                     hint="it is compared with what the source has")  # fmt: skip
        return None
    if reading.size != size or not size:
        _log.warning("an archived binlog without an entry is not whole", key=key, size=reading.size,
                     hint="it is compared with what the source has")  # fmt: skip
        return None
    return reading


def mend_entries(store: Store, layout: Layout, found: Found) -> None:
    """Write the entries that the writer before us had no time to write, from the objects."""
    for binlog in found.undescribed:
        lineage = found.lineage.id if found.lineage else ""
        put_entry(store, layout.entry(lineage, binlog.name), binlog)
        _log.info("entry made from the archived binlog", binlog=binlog.name)


def _has_begun(run: SpoolRun) -> bool:
    """Whether a run brought enough to be of some history: else its streamer died before that."""
    return any(track.begun for track in _pump(Tailer(run, Grid(5 << 20))))


def sweep_spool(spool: Spool, found: Found) -> None:
    """Delete what a run before us archived but had no time to delete, and runs without events."""
    names = {name for run in spool.runs() for name in run.files()}
    ends = [found.known] if found.known is not None else []
    for known in [*ends, *(end for end, _ in found.left_behind)]:
        for name in names:  # a run whose last file is released goes
            if known.lineage.first_binlog <= name < known.next_binlog:
                spool.release(name, known.lineage.id)
    taken = {segment.path.parent for track in found.tracks for segment in track.segments}
    for run in spool.runs():
        nobodys = run.facts.lineage is None and run.directory not in taken and not _has_begun(run)
        if nobodys or run.facts.lineage == PROBE:
            spool.discard(run)
    spool.sweep(spool.runs())
