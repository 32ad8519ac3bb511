"""What follows the archive: what earlier runs left in the spool, and what the bucket alone has.

Law: only what follows the archive without a break, and is what its checksums say, is taken. All
else is left in the spool, and the source is asked for it again.
"""

from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from binlog2s3.archive.catalog import Catalog
from binlog2s3.archive.documents import Lineage
from binlog2s3.archive.history import is_unlogged_between
from binlog2s3.archive.parts import Grid
from binlog2s3.binlog.names import BinlogName
from binlog2s3.errors import ArchiveError, DamageError, ForkError
from binlog2s3.log import Log
from binlog2s3.server.connection import ServerBinlog
from binlog2s3.store.requests import crc64_of
from binlog2s3.store.s3 import FileSlice
from binlog2s3.stream.archive_end import ArchiveEnd, from_bucket
from binlog2s3.stream.spool import SpoolRun
from binlog2s3.stream.tail import Overlap, Tailer, Track, TrackState

_log = Log("start")


def adopt(
    runs: Sequence[SpoolRun],
    *,
    grid: Grid,
    end: ArchiveEnd,
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
    bucket = _Bucket(catalog, end.lineage, grid, runs)
    tracks: list[Track] = []
    for run in runs:
        open_track = tracks[-1] if tracks and not tracks[-1].closed else None
        whole = end.after(t for t in tracks if t.closed)
        begin = whole.next_binlog
        if not _is_of(run, end.lineage) or begin not in run.files():
            continue
        if start := run.start_of(begin):
            if open_track is None or open_track.size < start:
                found = bucket.instead_of(open_track, whole)
                if found is not None:
                    open_track = found
                    tracks = [*(track for track in tracks if track.closed), found]
            if open_track is not None:
                later = _extend(run, open_track, start, grid, bucket)
                open_track.judge({})
                tracks += _checked(later, end.after(tracks))
            continue
        those = _checked(read_run(Tailer(run, grid, begin)), whole)
        if open_track is not None:
            if not those or (len(those) == 1 and those[0].size <= open_track.size):
                continue
            tracks.pop()
        tracks += those
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
        self, catalog: Catalog, lineage: Lineage, grid: Grid, runs: Iterable[SpoolRun]
    ) -> None:
        self._catalog = catalog
        self._lineage = lineage
        self._grid = grid
        self._runs = [run for run in runs if _is_of(run, lineage)]
        self._read: set[BinlogName] = set()

    def onward(self, tracks: list[Track], end: ArchiveEnd) -> list[Track]:
        """The tracks, with what the bucket alone has, up to the end of its chunks."""
        while True:
            closed = [track for track in tracks if track.closed]
            last = tracks[-1] if len(tracks) > len(closed) else None
            found = self.instead_of(last, end.after(closed))
            if found is None:
                return tracks
            tracks = [*closed, found]
            if not found.closed:
                return tracks

    def instead_of(self, track: Track | None, end: ArchiveEnd) -> Track | None:
        """The next binlog from the bucket, if that has more of it than `track`, and the same."""
        name = end.next_binlog
        if name in self._read:
            return None
        have = track.size if track is not None and track.name == name else 0
        if self._catalog.chunks(self._lineage, name).end <= have:
            return None
        self._read.add(name)
        files = [file for run in self._runs if (file := _File.of(run, name)) is not None]
        sums_at = {have, *(at for file in files for at in (file.begin, file.end))}
        found = from_bucket(self._catalog, self._lineage, name, self._grid, sums_at)
        if found is None or found.size <= have or not _checked([found], end):
            return None
        if track is not None and have and found.sums[have] != track.digest.crc64:
            return None  # the spool's has other bytes: the chunks are compared with them
        found.spare = tuple(file.path for file in files if file.is_below_floor(found))
        return found

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
            there = self._catalog.binlog(self._lineage, track.name)
            for block in there.blocks(track.size, upto):
                track.feed(memoryview(block), there.received_us(track.scanner.position))
        except (ArchiveError, DamageError) as error:
            _log.warning("left in the spool, to be fetched again", error=f"{track.name}: {error}")
            track.rewind()
            return False
        track.floor, track.sums[upto] = upto, track.digest.crc64
        return True


@dataclass(frozen=True, slots=True)
class _File:
    """A file of the spool with the bytes [begin, end) of a binlog, which begin `at` this place."""

    path: Path
    begin: int
    end: int
    at: int

    @classmethod
    def of(cls, run: SpoolRun, name: BinlogName) -> "_File | None":
        begin = run.begin_of(name) if name in run.files() else None
        if begin is None:
            return None
        return cls(run.directory / str(name), begin[0], run.end_of(name), begin[1])

    def is_below_floor(self, track: Track) -> bool:
        """Whether all its bytes are, by checksum, bytes of the track that the bucket has."""
        if not self.begin < self.end <= track.floor:
            return False
        piece = FileSlice(self.path, self.at, self.at + self.end - self.begin)
        return crc64_of(piece) == track.crc64_between(self.begin, self.end)


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
        if track.size > track.floor and not _has_checksums(track):
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
