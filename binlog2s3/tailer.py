"""Reads what mysqlbinlog writes, as it grows, and knows how far it can be trusted.

Place in the flow: after mysqlbinlog, before the uploader. For each file of a run it keeps a
`Track`: a scanner (what is checked) and a digest (checksums of what passed).

Law: reads forward only and by slices, so memory does not grow with a binlog; says of a file that it
is finished only after it has seen the next one *and then* read this one to its end.
"""

import os
from pathlib import Path

from binlog2s3.archive import is_closed
from binlog2s3.binlog import BinlogName, Scanner
from binlog2s3.errors import ArchiveError, DamageError, SpoolError
from binlog2s3.grid import Digest, Grid
from binlog2s3.gtid import Gtids
from binlog2s3.server import ServerBinlog
from binlog2s3.spool import Run

_SLICE = 4 << 20


class Track:
    """One binlog in the spool. `size` bytes of it are checked and may leave."""

    def __init__(self, name: BinlogName, path: Path, grid: Grid) -> None:
        self.name = name
        self.path = path
        self.scanner = Scanner()
        self.digest = Digest(grid)
        self.next_in_run = False
        self.history_goes_on = False
        self.closed = False
        self.commit_exact = True

    @property
    def size(self) -> int:
        """Bytes up to the last event end whose chain and checksum are right."""
        return self.scanner.event_end

    @property
    def begun(self) -> bool:
        """Whether the events that say which history this is have passed."""
        scanner = self.scanner
        return scanner.previous_gtids is not None or scanner.events > 1

    def gtids_before(self) -> Gtids | None:
        """The GTID set when this binlog began, None where the server keeps none."""
        return self.scanner.previous_gtids

    def gtids_after(self) -> Gtids | None:
        """The GTID set at the end of what is checked, None where it cannot be known."""
        return None if self.scanner.anonymous else self.scanner.gtids_at_end

    def feed(self, data: memoryview) -> None:
        """Take the next bytes of the file. Raises DamageError; what was checked stays so."""
        try:
            transactions = self.scanner.feed(data)
        except DamageError:
            self._mark(data)
            raise
        self.digest.feed(self._mark(data))
        for transaction in transactions:
            self.digest.note(transaction)
            self.commit_exact = self.commit_exact and transaction.commit_exact

    def _mark(self, data: memoryview) -> memoryview:
        """Digest up to the last event end, where a chunk can end; the rest that is left."""
        checked = max(0, self.size - self.digest.size)
        if checked:
            self.digest.feed(data[:checked])
            self.digest.set_mark()
        return data[checked:]

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


class Tailer:
    """Follows one run's directory, from the binlog `first` on (default: the run's own first)."""

    def __init__(self, run: Run, grid: Grid, first: BinlogName | None = None) -> None:
        self._run = run
        self._grid = grid
        self._first = first or BinlogName.parse(run.facts.binlog)
        self._file: int | None = None
        self._current: Track | None = None
        self._previous: Track | None = None
        self._fresh: list[Track] = []
        self._buffer = memoryview(bytearray(_SLICE))

    @property
    def current(self) -> Track | None:
        """The binlog that is read now, None before the first."""
        return self._current

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

        Raises DamageError for bytes that are no binlog, ArchiveError if the next file is not the
        next binlog, SpoolError if the spool cannot be read.
        """
        if self._current is None:
            if self._first in self._run.files():
                self._open(self._first)
            return 0
        if count := self._read():
            return count
        following = self._following(self._current)
        if following is None:
            return 0
        if count := self._read():  # what came between the first look and the next file's coming
            return count
        self._finish(self._current)
        self._open(following)
        return 0

    def _read(self) -> int:
        assert self._file is not None and self._current is not None  # noqa: S101, PT018
        try:
            count = os.readv(self._file, [self._buffer])
        except OSError as error:
            raise SpoolError(f"cannot read {self._current.path}: {error.strerror}") from error
        if count:
            try:
                self._current.feed(self._buffer[:count])
            except DamageError as error:
                raise DamageError(
                    f"{self._current.path}: {error}",
                    offset=error.offset,
                    hint=error.hint
                    or "nothing behind this place has left the spool; start again "
                    "to fetch the binlog anew, and look at the spool's disk",
                ) from error
            self._judge_history(self._current)
        return count

    def _following(self, current: Track) -> BinlogName | None:
        files = self._run.files()
        if current.scanner.rotate is not None:
            name = BinlogName.parse(current.scanner.rotate.next_binlog)
            found = name if name in files else None
        else:
            found = min((name for name in files if name > current.name), default=None)
        if found is not None and found != current.name.next():
            raise ArchiveError(
                f"after {current.name} the server goes on with {found}",
                hint="its binary log was renamed or reset: stream it under a new --source",
            )
        return found

    def _finish(self, track: Track) -> None:
        if track.scanner.position != track.size:
            raise DamageError(
                f"{track.path} ends in the middle of an event at {track.size}",
                offset=track.size,
                hint="start again to fetch the binlog anew, and look at the spool's disk",
            )
        track.next_in_run = True

    def _open(self, name: BinlogName) -> None:
        self.close()
        path = self._run.directory / str(name)
        try:
            self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise SpoolError(f"cannot read {path}: {error.strerror}") from error
        self._previous = self._current
        self._current = Track(name, path, self._grid)
        self._fresh.append(self._current)

    def _judge_history(self, track: Track) -> None:
        """Let the binlog before this one know whether its GTIDs go on here."""
        previous, before = self._previous, track.gtids_before()
        if previous is not None and before is not None and not previous.history_goes_on:
            after = previous.gtids_after()
            previous.history_goes_on = after is not None and after == before
