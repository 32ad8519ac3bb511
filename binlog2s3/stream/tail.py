"""Reads the files that mysqlbinlog writes, while they grow.

The `Tailer` keeps a `Track` of each binlog. A run that starts in the middle of a binlog sends some
bytes again, its `Overlap`: they are compared and dropped.

Law: the tailer reads forward only, a slice at a time, so memory does not grow with a binlog. A file
is finished only if the next file was seen *and then* this one was read to its end. No byte of a run
is taken that does not begin with the bytes that are known.
"""

import os
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import IntEnum, auto
from pathlib import Path

from binlog2s3.archive.parts import Grid, Mark, Part
from binlog2s3.archive.reading import BinlogReading
from binlog2s3.binlog.checksum import crc64_of_rest, crc64nvme
from binlog2s3.binlog.names import BinlogName
from binlog2s3.binlog.scanner import MADE_UP_BYTES, made_up_size
from binlog2s3.errors import DamageError, ForkError, SpoolError
from binlog2s3.formatting import us_of
from binlog2s3.server.connection import ServerBinlog
from binlog2s3.store.requests import blocks_of
from binlog2s3.store.s3 import Body, FileRange, FileRanges
from binlog2s3.stream.spool import SpoolFile, SpoolRun

_SLICE = 1 << 20
_MAGIC_SIZE = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlap:
    """Bytes [begin, end) of a binlog that a run sends again, and their CRC64NVME.

    `begin` is 0 if the run starts at the beginning of the binlog.
    """

    binlog: BinlogName
    begin: int
    end: int
    crc64: int

    @property
    def position(self) -> int:
        """The start position to ask for; 4 is the first position of a binlog."""
        return max(self.begin, _MAGIC_SIZE)


class TrackState(IntEnum):
    """What is known of the end of a binlog.

    | state | set when |
    |---|---|
    | `GROWING` | it begins: more bytes may come |
    | `PASSED` | it was read to its end, and the run has gone on to the next file |
    | `FOLLOWED` | it is `PASSED`, and the next file's previous GTIDs are those at its end, which \
anonymous transactions cannot show |
    | `CLOSED` | `Track.judge` says so: the server has finished it, and all of it is here |

    A track goes forward only, and can become `CLOSED` in each state. `start.proved` alone sets one
    back to `GROWING`, if the server's own file has to be compared.
    """

    GROWING = auto()
    PASSED = auto()
    FOLLOWED = auto()
    CLOSED = auto()


class Track(BinlogReading):
    """One binlog that is being archived. The first `size` bytes are checked and may be uploaded.

    The bytes before `floor` are in the bucket, the others in the `segments`: each has them up to
    where the next one begins. They are replaced as a whole. `sums`: the CRC64NVME of all bytes
    before some offsets, among them 0 and the floor; so bytes that the spool does not have can be
    proved. `md5s` are of parts whose bytes were at hand. `source_size` is what the source listed
    for it, if the source had already finished it when the run began that reads it.
    """

    def __init__(self, name: BinlogName, path: Path | None, grid: Grid) -> None:
        super().__init__(name, grid)
        self.grid = grid
        self.segments: tuple[SpoolFile, ...] = (SpoolFile(path, 0, 0),) if path is not None else ()
        self.floor = 0
        self.sums: dict[int, int] = {0: 0}
        self.md5s: dict[Part, bytes] = {}
        self.source_size: int | None = None
        self.state = TrackState.GROWING

    @property
    def path(self) -> Path | None:
        """The file with the last bytes; None if the spool has none."""
        return self.segments[-1].path if self.segments else None

    @property
    def closed(self) -> bool:
        """Whether the server has finished it, and all of it is here."""
        return self.state is TrackState.CLOSED

    @property
    def passed(self) -> bool:
        """Whether the run has gone on to the next file, or it is closed."""
        return self.state >= TrackState.PASSED

    @property
    def gained(self) -> bool:
        """Whether the last segment has a complete event that nothing before it has."""
        begin = self.segments[-1].begin if self.segments else self.size
        return not begin or self.size > begin

    def lies_in(self, directory: Path) -> bool:
        """Whether any of its bytes are in this directory."""
        return any(segment.path.parent == directory for segment in self.segments)

    @property
    def is_spooled(self) -> bool:
        """Whether any of its files is in the spool."""
        return any(segment.path.exists() for segment in self.segments)

    def body(self, begin: int, end: int) -> Body:
        """Bytes [begin, end), which each attempt of a request reads from the spool again."""
        segments = self.segments
        ends = [segment.begin for segment in segments[1:]] + [end]
        ranges = [
            FileRange(
                segment.path,
                segment.at + max(begin, segment.begin) - segment.begin,
                segment.at + min(end, its_end) - segment.begin,
            )
            for segment, its_end in zip(segments, ends, strict=True)
            if max(begin, segment.begin) < min(end, its_end)
        ]
        return ranges[0] if len(ranges) == 1 else FileRanges(tuple(ranges))

    def crc64_between(self, begin: int, end: int) -> int:
        """CRC64NVME of the bytes between two offsets of `sums`."""
        return crc64_of_rest(self.sums[begin], self.sums[end], end - begin)

    def raise_floor(self) -> None:
        """Forget the files: the bucket has all bytes up to `size`, where an event ends."""
        digest, at = self.digest, 0
        for part in self.grid.parts(self.size):
            if part.full and part.begin == at:
                rest = digest.part_crc64(part)
                self.sums[part.end] = crc64_of_rest(self.sums[at], rest, part.end - at)
                at = part.end
        self.sums[self.size] = digest.crc64
        self.floor, self.segments = self.size, ()

    def overlap_at(self, begin: int) -> Overlap | None:
        """As `overlap_of`, but from the offset `begin`.

        None also if that is below the floor, and none of the `sums`.
        """
        known = begin in self.sums
        if not self.rewind() or not _MAGIC_SIZE < begin < self.size:
            return None
        if begin < self.floor and not known:
            return None
        crc64 = self.crc64_between(begin, self.floor) if begin < self.floor else 0
        if self.size > self.floor:
            for block in blocks_of(self.body(max(begin, self.floor), self.size)):
                crc64 = crc64nvme(block, crc64)
        return Overlap(binlog=self.name, begin=begin, end=self.size, crc64=crc64)

    def judge(self, listed: dict[BinlogName, ServerBinlog]) -> bool:
        """See whether it is closed, by what the server lists. Once closed it stays closed.

        It is by its last event (ROTATE or STOP), or if its history goes on in the run's next file,
        or if the server lists a newer binlog, and this one with this size. The size alone or a
        newer file alone proves nothing: a stream can end in the middle of a binlog, and the server
        can be another one.
        """
        row = listed.get(self.name)
        listed_so = row is not None and row.size == self.size
        is_older = any(name > self.name for name in listed)
        ends_here = self.scanner.ended or self.state is TrackState.FOLLOWED
        if self.scanner.position == self.size and (ends_here or (listed_so and is_older)):
            self.state = TrackState.CLOSED
        return self.closed


def overlap_of(binlog: BinlogReading) -> Overlap | None:
    """What a run that continues after `binlog.size` sends again; None if no run can continue there.

    Drops an incomplete event at the end. After None the binlog has to be read again from its
    beginning, into another track.
    """
    if not binlog.rewind():
        return None
    digest = binlog.digest
    end = Mark(digest.size, digest.crc64)
    earlier = next((mark for mark in digest.marks if mark.offset < end.offset), Mark())
    if earlier.offset > digest.low_mark.offset:
        earlier = digest.low_mark
    return Overlap(
        binlog=binlog.name,
        begin=earlier.offset,
        end=end.offset,
        crc64=end.crc64_since(earlier),
    )


class Tailer:
    """Reads the files of one run, from the binlog `first` on (default: the run's first).

    With `overlap` the run's first file begins with these known bytes. `track` takes the bytes after
    them; without `track` there may be none.
    """

    def __init__(
        self,
        run: SpoolRun,
        grid: Grid,
        first: BinlogName | None = None,
        *,
        overlap: Overlap | None = None,
        track: Track | None = None,
    ) -> None:
        self._run = run
        self._grid = grid
        self._first = first or BinlogName.parse(run.facts.binlog)
        self._overlap = overlap
        self._compared: tuple[int, int] | None = None  # up to where, and the checksum
        self._file: int | None = None
        self._name: BinlogName | None = None
        self._current: Track | None = track
        self._previous: Track | None = None
        self._fresh: list[Track] = []
        self._buffer = memoryview(bytearray(_SLICE))
        self.read_bytes = 0
        self.read_transactions = 0

    @property
    def current(self) -> Track | None:
        """The binlog that is read now; None before the first."""
        return self._current

    @property
    def progress(self) -> tuple[object, ...]:
        """Changes with each step that opens a file or completes a comparison, but reads nothing."""
        return (self._name, self._current, self._compared, self._overlap is None)

    @property
    def settled(self) -> bool:
        """Whether the run has shown that it continues what is known."""
        return self._overlap is None and self._name is not None

    @property
    def has_more(self) -> bool:
        """Whether the file that is read has grown. Another one may have begun."""
        return self._file is not None and os.fstat(self._file).st_size != self._offset()

    def take_new(self) -> list[Track]:
        """The tracks that began since the last call, in order."""
        fresh, self._fresh = self._fresh, []
        return fresh

    def close(self) -> None:
        """Close the file that is read."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def pump(self) -> int:
        """Read and check at most one slice. Returns the number of bytes, 0 if there are none.

        Raises DamageError if the bytes are not a binlog, ForkError if the run does not continue
        what is known or the next file is not the next binlog, and SpoolError if the spool cannot
        be read.
        """
        if self._name is None:
            if self._first in self._run.files():
                self._open(self._first)
            return 0
        if count := self._read():
            return count
        following = self._following(self._name)
        if following is None:
            return 0
        if count := self._read():  # what came before the next file was there
            return count
        self._finish(self._name)
        self._open(following)
        return 0

    def _read(self) -> int:
        """Read and check a slice."""
        if self._overlap is not None:
            return self._read_again(self._overlap)
        count = self._take(_SLICE)
        track = self._current
        if count and track is None:
            raise self._forked("continues after the end of the archived one")
        if count and track is not None:
            before = track.scanner.transactions
            try:
                track.feed(self._buffer[:count], us_of(datetime.now(UTC)))
            except DamageError as error:
                raise DamageError(
                    f"{track.path}: {error}",
                    offset=error.offset,
                    hint=error.hint
                    or "nothing after this place was uploaded: it is fetched again; check the "
                    "spool's disk",
                ) from error
            self.read_transactions += track.scanner.transactions - before
            self._judge_history(track)
        return count

    def _read_again(self, overlap: Overlap) -> int:
        """Read a slice of the known bytes, and compare them once all have come."""
        at, crc64 = self._compared or (overlap.begin, 0)
        if self._compared is None and not self._skip(overlap):
            return 0
        count = self._take(min(_SLICE, overlap.end - at))
        at, crc64 = at + count, crc64nvme(self._buffer[:count], crc64)
        self._compared = (at, crc64)
        if at == overlap.end:
            if crc64 != overlap.crc64:
                raise self._forked(f"has other bytes from {overlap.begin} to {overlap.end}")
            if self._current is not None:
                path = self._run.directory / str(overlap.binlog)
                segment = SpoolFile(path, at, self._offset())
                self._current.segments = (*self._current.segments, segment)
            self._overlap = None
        return count

    def _skip(self, overlap: Overlap) -> bool:
        """Go to the first byte of the binlog itself; False if too little is there yet."""
        if overlap.begin:
            assert self._file is not None  # noqa: S101
            size: int | None
            if str(overlap.binlog) in self._run.freed:
                _, size = self._run.freed[str(overlap.binlog)]
            else:
                size = made_up_size(os.pread(self._file, MADE_UP_BYTES, 0), overlap.begin)
            if size is None:
                return False
            os.lseek(self._file, size, os.SEEK_SET)
        return True

    def _offset(self) -> int:
        assert self._file is not None  # noqa: S101
        return os.lseek(self._file, 0, os.SEEK_CUR)

    def _take(self, most: int) -> int:
        assert self._file is not None  # noqa: S101
        try:
            count = os.readv(self._file, [self._buffer[:most]])
        except OSError as error:
            path = self._run.directory / str(self._name)
            raise SpoolError(f"cannot read {path}: {error.strerror}") from error
        self.read_bytes += count
        return count

    def _forked(self, what: str) -> ForkError:
        return ForkError(f"the source's {self._name} {what}: it is another history")

    def _following(self, name: BinlogName) -> BinlogName | None:
        current = self._current
        rotate = current.scanner.rotate if current is not None else None
        wanted = rotate.next_binlog if rotate is not None else name.next()
        following = wanted if self._run.has(wanted) else None
        if following is None and rotate is None:
            following = min((other for other in self._run.files() if other > name), default=None)
        if following is not None and following != name.next():
            raise ForkError(f"after {name} the server continues with {following}")
        return following

    def _finish(self, name: BinlogName) -> None:
        if self._overlap is not None:
            raise self._forked(f"ends before {self._overlap.end}")
        track = self._current
        if track is None:  # it was only compared, and nothing came after it
            (self._run.directory / str(name)).unlink(missing_ok=True)
            return
        if track.scanner.position != track.size:
            raise DamageError(
                f"{self._run.directory / str(name)} ends in the middle of an event at {track.size}",
                offset=track.size,
                hint="it is fetched again; check the spool's disk",
            )
        track.state = max(track.state, TrackState.PASSED)

    def _open(self, name: BinlogName) -> None:
        self.close()
        path = self._run.directory / str(name)
        try:
            self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise SpoolError(f"cannot read {path}: {error.strerror}") from error
        self._name = name
        if self._overlap is None:
            self._previous = self._current
            self._current = Track(name, path, self._grid)
            self._fresh.append(self._current)

    def _judge_history(self, track: Track) -> None:
        """Note on the binlog before this one if its history continues here."""
        previous, before = self._previous, track.gtids_before()
        if previous is None or before is None or previous.state is not TrackState.PASSED:
            return
        after = previous.gtids_after()
        if after is not None and after == before:
            previous.state = TrackState.FOLLOWED
