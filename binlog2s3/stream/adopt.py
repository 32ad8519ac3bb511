"""What earlier runs left in the spool: which of it is correct and follows the archive.

Law: only what follows the archive without a break, and is what its checksums say, is taken. All
else is left in the spool, and the source is asked for it again.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing

from binlog2s3.archive.catalog import Catalog
from binlog2s3.archive.documents import Lineage
from binlog2s3.archive.history import is_unlogged_between
from binlog2s3.archive.parts import Grid
from binlog2s3.binlog.names import BinlogName
from binlog2s3.errors import ArchiveError, DamageError, ForkError
from binlog2s3.log import Log
from binlog2s3.server.connection import ServerBinlog
from binlog2s3.stream.archive_end import ArchiveEnd
from binlog2s3.stream.spool import Floor, SpoolRun
from binlog2s3.stream.tail import Tailer, Track, TrackState

_log = Log("start")


def adopt(
    runs: Iterable[SpoolRun], *, grid: Grid, end: ArchiveEnd, catalog: Catalog
) -> list[Track]:
    """The binlogs in the spool that follow the archive, in order and without a break.

    A run continues where the run before it ended, or reads a binlog from its begin. What is
    damaged is left out. So is what has no event checksums: nothing in the spool was synced, and
    without checksums a hole that a power cut left would not show.
    """
    tracks: list[Track] = []
    for run in runs:
        here = BinlogName.parse(run.facts.binlog)
        if not _is_of(run, end.lineage):
            continue
        open_track = tracks[-1] if tracks and not tracks[-1].closed else None
        whole = end.after(t for t in tracks if t.closed)
        begin = whole.next_binlog
        if run.facts.position > 4 and here >= begin:
            if open_track is not None and open_track.name == here:
                found = _extend(run, open_track, grid, catalog, end.lineage)
                open_track.judge({})
                tracks += _checked(found, end.after(tracks))
            continue
        if here > begin or begin not in run.files():
            continue
        found = _checked(_from(run, begin, grid, catalog, end.lineage), whole)
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
    """These tracks, up to the first that has no end of its own and is also on the server.

    That one is compared with the server's, because what came after it may be of another history.
    The last track always stays. `listed` is what the server lists.
    """
    there = {row.name for row in listed}
    for number, track in enumerate(tracks[:-1], start=1):
        if not track.scanner.ended and track.name in there:
            track.state = TrackState.GROWING
            _log.info("the binlog will be read again", error=f"{track.name} has no end of its own")
            return tuple(tracks[:number])
    return tuple(tracks)


def _is_of(run: SpoolRun, lineage: Lineage) -> bool:
    """Whether a run is of this lineage; one that ended before it had one may have begun it."""
    if run.facts.lineage is None and run.facts.server_uuid == lineage.server_uuid:
        return run.facts.binlog == str(lineage.first_binlog)
    return run.facts.lineage == lineage.id


def _checked(found: list[Track], end: ArchiveEnd) -> list[Track]:
    """Those that follow the archive, one after the other, with checksums in every event."""
    good: list[Track] = []
    for track in found:
        if not track.begun or track.scanner.damage:
            break
        if any(form.checksum != "crc32" for form in track.scanner.formats):
            break
        if why := end.contradiction(track):
            _log.warning("left in the spool, to be fetched again", error=f"{track.path}: {why}")
            break
        rotated = end.rotates_to == track.name
        if is_unlogged_between(rotated=rotated, started=track.started):
            break  # it begins another lineage
        track.judge({})
        good.append(track)
        end = end.after([track])  # if it is open, the source tells later whether it is complete
    return good


def _from(
    run: SpoolRun, begin: BinlogName, grid: Grid, catalog: Catalog, lineage: Lineage
) -> list[Track]:
    """A run's binlogs from this one on, as far as their checksums are correct."""
    floor = run.facts.floors.get(str(begin))
    if floor is None:
        return read_run(Tailer(run, grid, begin))
    track = Track(begin, run.directory / str(begin), grid)
    return [track, *_above_floor(run, track, floor, grid, catalog, lineage)]


def _extend(
    run: SpoolRun, track: Track, grid: Grid, catalog: Catalog, lineage: Lineage
) -> list[Track]:
    """Extend this track by a run that began in the middle of its binlog; the run's next binlogs."""
    if floor := run.facts.floors.get(str(track.name)):
        return _above_floor(run, track, floor, grid, catalog, lineage)
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
    return read_run(Tailer(run, grid, overlap=overlap, track=track))


def _above_floor(
    run: SpoolRun, track: Track, floor: Floor, grid: Grid, catalog: Catalog, lineage: Lineage
) -> list[Track]:
    """As `_extend`, but read the bytes below the floor from the bucket, which alone has them."""
    at = track.scanner.position
    if at < floor.offset and grid.at(floor.offset).begin != floor.offset:
        return []  # what is below was in an earlier run's file, which is gone
    try:
        if at < floor.offset:
            readable = catalog.binlog(lineage, track.name)
            for block in readable.blocks(at, floor.offset):
                track.feed(memoryview(block), readable.received_us(track.scanner.position))
    except (ArchiveError, DamageError) as error:
        _log.warning("left in the spool, to be fetched again", binlog=track.name, error=error)
        return []
    if at < floor.offset:
        track.floor = floor.offset
    start_at = floor.at + max(0, at - floor.offset)
    return read_run(Tailer(run, grid, track.name, track=track, start_at=start_at))


def read_run(tailer: Tailer) -> list[Track]:
    """Everything that a run has, up to its end or the first error."""
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
