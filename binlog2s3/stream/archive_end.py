"""Where the archive of a lineage ends, and what the bucket has of the binlog that follows.

Law: only what the bucket has counts.
"""

import hashlib
from bisect import bisect_right
from collections.abc import Collection, Iterable
from dataclasses import replace
from functools import partial

from binlog2s3.archive.catalog import Catalog, Contents
from binlog2s3.archive.documents import Lineage
from binlog2s3.archive.index import Index, inventory
from binlog2s3.archive.pages import name_at
from binlog2s3.archive.parts import Grid
from binlog2s3.archive.reader import Readable
from binlog2s3.archive.reading import ANY_GRID
from binlog2s3.binlog.checksum import crc64_of_blocks, crc64nvme
from binlog2s3.binlog.gtid import joined, parse
from binlog2s3.binlog.names import BinlogName
from binlog2s3.errors import ArchiveError, DamageError, NoBinlogError
from binlog2s3.log import Log
from binlog2s3.stream.continuation import KnownEnd, known_end_of, nothing_of
from binlog2s3.stream.tail import Overlap, Track
from binlog2s3.workers import both

_log = Log("archive_end")
_LAST_FEW = 8
_PASSES = 4


def archive_end(catalog: Catalog, lineage: Lineage) -> KnownEnd:
    """The end of the unbroken sequence of archived binlogs that begins with the lineage's first.

    A binlog that exists only as chunks ends it, unless an archived one begins exactly where the
    chunks end: then the source could not finish that binlog, and the lineage continued. Up to the
    end of the last page this was checked before the page was written. What is missing below the
    lineage's floor was pruned, and ends nothing. What a run that continues here would read again is
    not looked up: see `known_end_of_archive`.
    """
    inventoried = inventory(catalog, lineage, partial(Index, catalog, lineage))
    growing = {name: chunks.end for name, chunks in inventoried.open.items() if chunks.end}
    name, archived = _search_from(inventoried.index)
    last: BinlogName | None = None
    in_parts: list[BinlogName] = []
    whole = (archived.binlogs.keys() & archived.entries.keys()) | growing.keys()
    name = _above_pruned(lineage, name, whole)
    while name in archived.binlogs or name in growing:
        if name not in archived.binlogs:
            if name.next() not in archived.entries or not _lost_end(catalog, lineage, name):
                break
        elif name not in archived.entries:
            break
        elif "-" in archived.binlogs[name].etag:
            in_parts.append(name)
        name, last = name.next(), name
        name = _above_pruned(lineage, name, whole)
    end = nothing_of(lineage)
    if last is not None and name == last.next():  # else all from there up to the floor was pruned
        end = _end_of(catalog, lineage, last, described=last in archived.entries)
    grows = name == end.following and name not in archived.binlogs
    return replace(
        end,
        next_size=growing.get(name, 0) if grows else 0,
        in_parts=tuple(in_parts[-_LAST_FEW:]),
    )


def _end_of(catalog: Catalog, lineage: Lineage, last: BinlogName, *, described: bool) -> KnownEnd:
    """The end of a binlog of the archive: what its entry says."""
    if not described:
        return KnownEnd(lineage=lineage, last=last, closed=True)
    end, flavour = catalog.entry_end(lineage, last), lineage.flavour
    before, added = parse(end.gtid_set_before, flavour), parse(end.gtid_set_added, flavour)
    return KnownEnd(
        lineage=lineage,
        last=last,
        size=end.size,
        closed=True,
        gtids=None if end.anonymous_transactions else joined(before, added),
        gtids_before=before,
        rotates_to=end.next_binlog,
    )


def _above_pruned(lineage: Lineage, name: BinlogName, whole: Collection[BinlogName]) -> BinlogName:
    """The first binlog from this one on that is whole, or is at the floor; else this one.

    If all after this one is missing, up to a floor that is beyond, the archive ends here: a floor
    excuses what is missing before something that is there, or before the whole lineage.
    """
    if name in whole or not lineage.is_below_floor(name):
        return name
    following = min((other for other in whole if other > name), default=None)
    floor = lineage.begin
    if following is None:
        return floor if not whole else name
    return min(following, floor)


def _search_from(index: Index) -> tuple[BinlogName, Contents]:
    """The binlog to search the end from, and what is archived from there on.

    A few binlogs before the end of the last page, if the page's last binlog has object and entry.
    """
    page, first = index.last_page(), index.lineage.first_binlog
    if page is not None:
        begin = max(page.last + 1 - _LAST_FEW, first.number)
        tail, last = index.tail(begin - 1), name_at(index.lineage, page.last)
        if last in tail.binlogs and last in tail.entries:
            return name_at(index.lineage, begin), tail
    return first, index.tail(first.number - 1)


def _lost_end(catalog: Catalog, lineage: Lineage, name: BinlogName) -> bool:
    """Whether the binlog after this one begins with exactly the GTIDs at the end of its chunks."""
    chunks = from_bucket(catalog, lineage, name)
    after = chunks.gtids_after() if chunks is not None else None
    if chunks is None or after is None or chunks.scanner.ended:
        return False
    following = catalog.entry_end(lineage, name.next())
    return parse(following.gtid_set_before, lineage.flavour) == after


def known_end_of_archive(catalog: Catalog, end: KnownEnd, grid: Grid | None = None) -> KnownEnd:
    """Where a lineage ends in the bucket, including its chunks.

    With `grid`, a binlog of which there are only chunks can be continued: it is `KnownEnd.track`.
    Otherwise, and if it cannot be the one that follows, it is read from its beginning again.
    """
    lineage = end.lineage
    if end.next_size and (chunks := from_bucket(catalog, lineage, end.following, grid or ANY_GRID)):
        known_end = known_end_of(lineage, chunks, closed=False)
        if grid is None or not chunks.begun or end.contradiction(chunks):
            return replace(known_end, overlap=None)
        return replace(known_end, track=chunks)
    if end.last is None or not end.size:
        return KnownEnd(lineage=lineage, gtids=end.gtids)
    return replace(
        end,
        overlap=_archived_overlap(catalog, lineage, end.last),
        goes_back=bool(catalog.entry(lineage, end.last).gtids_go_back),
        next_size=0,
    )


def _archived_overlap(catalog: Catalog, lineage: Lineage, name: BinlogName) -> Overlap:
    """The last bytes of an archived binlog, from the begin of a transaction, for comparison."""
    entry = catalog.entry(lineage, name)
    starts = [b.first_offset for b in entry.blocks if b.first_offset and b.first_offset < 1 << 32]
    begin = starts[-1] if starts else 0
    if begin == 0:
        return Overlap(binlog=name, begin=0, end=entry.size, crc64=entry.crc64)
    key = catalog.layout.binlog(lineage.id, name)
    crc64 = crc64_of_blocks(catalog.store.open(key, begin, entry.size))
    return Overlap(binlog=name, begin=begin, end=entry.size, crc64=crc64)


def from_bucket(
    catalog: Catalog,
    lineage: Lineage,
    name: BinlogName,
    grid: Grid = ANY_GRID,
    sums_at: Iterable[int] = (),
) -> Track | None:
    """What the bucket has of a binlog that is not archived: a track that can be continued.

    Its floor is its end: the last event that the chunks have, up to the first damage. `sums_at`:
    offsets whose `Track.sums` are wanted, beside those of parts and chunks. None if there is
    nothing, or if no run could continue there.
    """
    end: int | None = None
    for _ in range(_PASSES):
        try:
            binlog, chunks = both(
                partial(catalog.binlog, lineage, name), partial(catalog.chunks, lineage, name)
            )
        except NoBinlogError:
            return None
        except ArchiveError as error:  # two chunks contradict each other: the source is asked
            _log.warning("the bucket has damage", lineage=lineage.id, binlog=name, error=error)
            return None
        end = binlog.size if end is None else min(end, binlog.size)
        if binlog.state == "archived" or not end:
            return None
        ends = (at for chunk in chunks for at in (chunk.begin, chunk.end))
        reading = _Pass(Track(name, None, grid), {*sums_at, *ends})
        try:
            reading.read(binlog, end)
        except (ArchiveError, DamageError) as error:  # up to the last chunk that is proved
            _log.warning("the bucket has damage", lineage=lineage.id, binlog=name, error=error)
            end = max((part.end for part in binlog.ranges if part.end <= reading.at), default=0)
            continue
        if reading.ends():
            return reading.track
        end = reading.track.size  # events without a position come after it
    return None


class _Pass:
    """Reads the first bytes of a binlog from the bucket into a track; `at`: how many have come."""

    def __init__(self, track: Track, wanted: Iterable[int]) -> None:
        self.track = track
        self.at = 0
        self._wanted = sorted(wanted)
        self._part = track.grid.at(0)
        self._crc64 = 0
        self._md5 = hashlib.md5(usedforsecurity=False)

    def read(self, binlog: Readable, end: int) -> None:
        """Raises ArchiveError and DamageError."""
        for block in binlog.from_chunks(end):
            view = memoryview(block)
            self.track.feed(view, binlog.received_us(self.at))
            while view:
                view = self._sum(view)

    def _sum(self, view: memoryview) -> memoryview:
        """Take the bytes up to the next offset that is wanted, or the part's end; the rest."""
        following = bisect_right(self._wanted, self.at)
        stops = [self._part.end, *self._wanted[following : following + 1]]
        piece = view[: min(stops) - self.at]
        self._crc64 = crc64nvme(piece, self._crc64)
        self._md5.update(piece)
        self.at += len(piece)
        if self.at in stops:
            self.track.sums[self.at] = self._crc64
        if self.at == self._part.end:
            self.track.md5s[self._part] = self._md5.digest()
            self._md5 = hashlib.md5(usedforsecurity=False)
            self._part = self.track.grid.at(self.at)
        return view[len(piece) :]

    def ends(self) -> bool:
        """Let the track end, and its floor be, after its last event; False if it cannot."""
        track = self.track
        if not track.rewind():
            return False
        track.floor = size = track.size
        track.sums = {at: crc64 for at, crc64 in track.sums.items() if at < size}
        track.sums[size] = track.digest.crc64
        track.md5s = {part: md5 for part, md5 in track.md5s.items() if part.end <= size}
        track.commits.passed(size)
        return True
