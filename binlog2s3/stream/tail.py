"""Reads what mysqlbinlog writes, as it grows, and knows how far it can be trusted.

Place in the flow: after mysqlbinlog, before the uploader. For each file of a run it keeps a
`Track`: a scanner (what is checked) and a digest (checksums of what passed). A run that goes on in
the middle of a binlog brings some bytes again, its `Overlap`: those are compared and dropped.

Law: reads forward only and by slices, so memory does not grow with a binlog; says of a file that it
is finished only after it has seen the next one *and then* read this one to its end; takes no byte
of a run that does not begin with what is known already.
"""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from binlog2s3.archive.parts import Grid, Mark, Part
from binlog2s3.archive.reading import BinlogReading
from binlog2s3.binlog.checksum import crc64nvme
from binlog2s3.binlog.names import BinlogName
from binlog2s3.binlog.scanner import MADE_UP_BYTES, made_up_size
from binlog2s3.errors import DamageError, ForkError, SpoolError
from binlog2s3.server.connection import ServerBinlog
from binlog2s3.store.s3 import Body, FileSlice, Pieces
from binlog2s3.stream.decide import is_closed
from binlog2s3.stream.spool import Floor, Run, Spool

_SLICE = 4 << 20
_MAGIC_SIZE = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlap:
    """Bytes [begin, end) of a binlog that a run brings again, and their checksum.

    `begin` is 0 where the run starts with the binlog.
    """

    binlog: BinlogName
    begin: int
    end: int
    crc64: int

    @property
    def position(self) -> int:
        """The start position to ask for: 4 is a binlog's first."""
        return max(self.begin, _MAGIC_SIZE)


@dataclass(frozen=True, slots=True)
class Segment:
    """From offset `begin` on, up to the next segment, a binlog's bytes are in this file at `at`."""

    path: Path
    begin: int
    at: int


class Track(BinlogReading):
    """One binlog in the spool. `size` bytes of it are checked and may leave.

    `floor`: the bytes before it are in the bucket and no longer in the spool. `md5s` of parts that
    were computed while their bytes were at hand.
    """

    def __init__(self, name: BinlogName, path: Path, grid: Grid) -> None:
        super().__init__(name, grid)
        self.segments = [Segment(path, 0, 0)]
        self.floor = 0
        self.md5s: dict[Part, bytes] = {}
        self.next_in_run = False
        self.history_goes_on = False
        self.closed = False

    @property
    def path(self) -> Path:
        """The file that has its last bytes."""
        return self.segments[-1].path

    @property
    def gained(self) -> bool:
        """Whether its last segment has any whole event that the ones before have not."""
        segment = self.segments[-1]
        return len(self.segments) == 1 or self.size > segment.begin

    def lies_in(self, directory: Path) -> bool:
        """Whether any of its bytes are in this directory."""
        return any(segment.path.parent == directory for segment in self.segments)

    def body(self, begin: int, end: int) -> Body:
        """Bytes [begin, end), to be read from the spool at each attempt."""
        ends = [segment.begin for segment in self.segments[1:]] + [end]
        slices = [
            FileSlice(
                segment.path,
                segment.at + max(begin, segment.begin) - segment.begin,
                segment.at + min(end, its_end) - segment.begin,
            )
            for segment, its_end in zip(self.segments, ends, strict=True)
            if max(begin, segment.begin) < min(end, its_end)
        ]
        return slices[0] if len(slices) == 1 else Pieces(tuple(slices))

    def overlap_at(self, begin: int, blocks: Iterable[bytes]) -> Overlap | None:
        """As `overlap_of`, but from the offset `begin`; `blocks` are the bytes from there on."""
        if not self.rewind() or not _MAGIC_SIZE < begin < self.size:
            return None
        crc64 = 0
        for block in blocks:
            crc64 = crc64nvme(block, crc64)
        return Overlap(binlog=self.name, begin=begin, end=self.size, crc64=crc64)

    def judge(self, listed: dict[BinlogName, ServerBinlog]) -> bool:
        """Whether it is closed, given what the server lists; once closed it stays so."""
        row = listed.get(self.name)
        whole = self.scanner.position == self.size
        self.closed = self.closed or (
            whole
            and is_closed(
                ended=self.scanner.ended,
                size=self.size,
                next_in_run=self.next_in_run,
                history_goes_on=self.history_goes_on,
                newer_on_server=any(name > self.name for name in listed),
                size_on_server=row.size if row else None,
            )
        )
        return self.closed


def overlap_of(binlog: BinlogReading) -> Overlap | None:
    """What a run that continues after `binlog.size` sends again; None if no run can continue there.

    Drops an incomplete event at the end. After None the binlog has to be read again from its
    beginning, into another track.
    """
    if not binlog.rewind():
        return None
    digest = binlog.digest
    here = Mark(digest.size, digest.crc64)
    earlier = next((place for place in digest.places if place.offset < here.offset), Mark())
    if earlier.offset > digest.low_place.offset:
        earlier = digest.low_place
    return Overlap(
        binlog=binlog.name,
        begin=earlier.offset,
        end=here.offset,
        crc64=here.crc64_since(earlier),
    )


def give_back(spool: Spool, track: Track, end: int) -> None:
    """Give the room of a binlog's bytes before `end` back: the bucket has them for good.

    Raises PunchUnsupportedError where the file system cannot.
    """
    ends = [segment.begin for segment in track.segments[1:]] + [end]
    for segment, its_end in zip(track.segments, ends, strict=True):
        upto = min(end, its_end)
        if upto > max(segment.begin, track.floor):
            floor = Floor(offset=upto, at=segment.at + upto - segment.begin)
            spool.give_back(segment.path, floor)
    track.floor = end


class Tailer:
    """Follows one run's directory, from the binlog `first` on (default: the run's own first).

    `overlap`: how the run's first file begins, which is of this binlog; `track`, if it is given,
    takes what follows there, else nothing may follow. `start_at`: the track goes on at this place
    of the first file, without comparison.
    """

    def __init__(
        self,
        run: Run,
        grid: Grid,
        first: BinlogName | None = None,
        *,
        overlap: Overlap | None = None,
        track: Track | None = None,
        start_at: int | None = None,
    ) -> None:
        self._run = run
        self._start_at = start_at
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
        """The binlog that is read now, None before the first."""
        return self._current

    @property
    def place(self) -> tuple[object, ...]:
        """Changes with each step that reads nothing: another file, or one that is known again."""
        return (self._name, self._current, self._compared, self._overlap is None)

    @property
    def settled(self) -> bool:
        """Whether the run has shown that it goes on with what is known."""
        return self._overlap is None and self._name is not None

    def take_new(self) -> list[Track]:
        """The tracks that were begun since the last call, in order."""
        fresh, self._fresh = self._fresh, []
        return fresh

    def close(self) -> None:
        """Close the file that is read."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def pump(self) -> int:
        """Read and check at most one slice; the bytes that were read, 0 if there is nothing new.

        Raises DamageError for bytes that are no binlog, ForkError if the run does not go on with
        what is known, or the next file is not the next binlog, SpoolError if the spool cannot be
        read.
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
        if count := self._read():  # what came between the first look and the next file's coming
            return count
        self._finish(self._name)
        self._open(following)
        return 0

    def _read(self) -> int:
        """Read a slice, and have it checked."""
        if self._overlap is not None:
            return self._read_again(self._overlap)
        count = self._take(_SLICE)
        track = self._current
        if count and track is None:
            raise self._forked("goes on where the archive's has ended")
        if count and track is not None:
            before = track.scanner.transactions
            try:
                track.feed(self._buffer[:count])
            except DamageError as error:
                raise DamageError(
                    f"{track.path}: {error}",
                    offset=error.offset,
                    hint=error.hint
                    or "nothing behind this place has left the spool: it is fetched anew; look at "
                    "the spool's disk",
                ) from error
            self.read_transactions += track.scanner.transactions - before
            self._judge_history(track)
        return count

    def _read_again(self, overlap: Overlap) -> int:
        """Read a slice of what is known already, and compare it once it has come whole."""
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
                self._current.segments.append(Segment(path, at, self._offset()))
            self._overlap = None
        return count

    def _skip(self, overlap: Overlap) -> bool:
        """Go to where the binlog's own bytes begin; False if too little is there yet."""
        if overlap.begin:
            assert self._file is not None  # noqa: S101
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
        files, current = self._run.files(), self._current
        if current is not None and current.scanner.rotate is not None:
            rotated = BinlogName.parse(current.scanner.rotate.next_binlog)
            found = rotated if rotated in files else None
        else:
            found = min((other for other in files if other > name), default=None)
        if found is not None and found != name.next():
            raise ForkError(f"after {name} the server goes on with {found}")
        return found

    def _finish(self, name: BinlogName) -> None:
        if self._overlap is not None:
            raise self._forked(f"ends before {self._overlap.end}")
        track = self._current
        if track is None:  # it was only compared, and nothing followed
            (self._run.directory / str(name)).unlink(missing_ok=True)
            return
        if track.scanner.position != track.size:
            raise DamageError(
                f"{self._run.directory / str(name)} ends in the middle of an event at {track.size}",
                offset=track.size,
                hint="it is fetched anew; look at the spool's disk",
            )
        track.next_in_run = True

    def _open(self, name: BinlogName) -> None:
        self.close()
        path = self._run.directory / str(name)
        try:
            self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise SpoolError(f"cannot read {path}: {error.strerror}") from error
        self._name = name
        if self._start_at is not None and self._current is not None:
            os.lseek(self._file, self._start_at, os.SEEK_SET)
            self._current.segments.append(
                Segment(path, self._current.scanner.position, self._start_at)
            )
            self._start_at = None
        elif self._overlap is None:
            self._previous = self._current
            self._current = Track(name, path, self._grid)
            self._fresh.append(self._current)

    def _judge_history(self, track: Track) -> None:
        """Let the binlog before this one know whether its GTIDs go on here."""
        previous, before = self._previous, track.gtids_before()
        if previous is not None and before is not None and not previous.history_goes_on:
            after = previous.gtids_after()
            previous.history_goes_on = after is not None and after == before
