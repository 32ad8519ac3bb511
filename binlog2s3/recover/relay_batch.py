"""Batches of relay logs out of a recovery's stream, written beside the target's own.

Place in the flow: `relay` takes one batch after the other; while the target applies one, the next
is written.

Law: a batch ends with a transaction, and holds nothing but whole ones. What breaks off in the
bucket ends a batch too: what comes before it is applied, and only then is the error raised.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from binlog2s3.binlog.executed import Gathering
from binlog2s3.binlog.gtid import Gtids
from binlog2s3.binlog.scanner import MAGIC, Transaction
from binlog2s3.errors import ArchiveError, RecoveryError, StoreError
from binlog2s3.recover.model import Checked, Piece, Place, Stream
from binlog2s3.recover.relay_files import Beside, RelayFiles
from binlog2s3.recover.relay_log import Events, Head, Ident

_MOST_FILES = 256


@dataclass(slots=True)
class RelayLog:
    """One file. `before`: bytes and transactions of the stream that come before it.

    Of its transactions: where they begin and end in the source's binlog, how many bytes of the
    stream end with each, when it was committed.
    """

    ident: Ident
    path: Path
    piece: Piece
    before: tuple[int, int]
    begins: "array[int]" = field(default_factory=lambda: array("Q"))
    ends: "array[int]" = field(default_factory=lambda: array("Q"))
    sizes: "array[int]" = field(default_factory=lambda: array("Q"))
    commits: "array[int]" = field(default_factory=lambda: array("q"))

    def add(self, transaction: Transaction, size: int) -> None:
        """One more that ends in it."""
        self.begins.append(transaction.begin)
        self.ends.append(transaction.end)
        self.sizes.append(size)
        self.commits.append(transaction.commit_us)

    @property
    def end(self) -> Place:
        """Behind its last transaction."""
        return self._place(self.ends[-1])

    def _place(self, offset: int) -> Place:
        return Place(lineage=self.ident.lineage, binlog=self.ident.binlog, offset=offset)

    def upto(self, offset: int) -> tuple[int, int, int | None]:
        """Bytes and transactions of the stream, and the last commit time, up to this offset."""
        count = bisect_right(self.ends, offset)
        size, number = self.before
        if not count:
            return size, number, None
        return self.sizes[count - 1], number + count, self.commits[count - 1]

    def around(self, offset: int) -> tuple[int, int] | None:
        """Begin and end of the transaction whose bytes go up to here, or beyond."""
        at = bisect_left(self.ends, offset)
        return (self.begins[at], self.ends[at]) if at < len(self.ends) else None


@dataclass(slots=True)
class Batch:
    """Files that are applied together, and the GTIDs in them."""

    files: list[RelayLog]
    gtids: Gtids

    def file(self, number: int) -> RelayLog | None:
        """The one with this number in its ident."""
        for one in self.files:
            if one.ident.number == number:
                return one
        return None


class Batches:
    """Writes the stream into batches of about `size` bytes. `server_id` is the target's own.

    `tick` is called between two writes: the caller looks after what is applied meanwhile.
    """

    def __init__(
        self, files: RelayFiles, *, size: int, server_id: int, tick: Callable[[], None]
    ) -> None:
        self.broken: ArchiveError | StoreError | None = None
        self._directory = files
        self._size = size
        self._server_id = server_id
        self._tick = tick
        self._number = 0
        self._done = (0, 0)  # bytes and transactions of the stream so far
        self._written: list[RelayLog] = []
        self._batch_size = 0
        self._gtids = Gathering("mysql")
        self._new_sessions = True
        self._piece: _Part | None = None
        self._open: _Open | None = None

    def run(self, stream: Stream) -> Generator[Batch, None, None]:
        """Batch after batch; `broken` is what ended the stream, behind the last that is whole."""
        try:
            try:
                for piece, data in stream:
                    yield from self._all_of(piece, data)
            except (ArchiveError, StoreError) as error:
                self.broken = error
            if batch := self._end():
                yield batch
        finally:
            self._drop()

    def _all_of(self, piece: Piece, data: Iterator[Checked]) -> Iterator[Batch]:
        first = next(data)
        part = _Part(piece, Head.of(first.data), Events(piece, len(first.data)))
        self._note_sessions(part)
        size, count = self._done
        self._done = (size + max(0, len(first.data) - piece.begin), count)
        for checked in data:
            yield from self._take(part, checked)
            self._tick()
        self._close()

    def _note_sessions(self, part: "_Part") -> None:
        """Whether the source was started in between, or is another one (as in `pipe`)."""
        before, self._piece = self._piece, part
        if before is None:
            return
        is_next = part.piece.lineage == before.piece.lineage
        if not is_next or (part.piece.binlog != before.piece.binlog and part.head.created):
            self._new_sessions = True

    def _take(self, part: "_Part", checked: Checked) -> Iterator[Batch]:
        view, done = memoryview(checked.data), checked.done
        while done:
            room = self._size - self._batch_size
            lengths = [len(part.events.upto(one.end, view)) for one in done]
            count = min(bisect_left(lengths, room) + 1, len(done))
            self._write(part, view[: lengths[count - 1]])
            self._add(part, done[:count], lengths)
            view, done = view[lengths[count - 1] :], done[count:]
            if self._batch_size >= self._size or len(self._written) >= _MOST_FILES:
                self._close()
                if batch := self._end():
                    yield batch
        self._write(part, view)

    def _write(self, part: "_Part", view: memoryview) -> None:
        """What of it goes in, into the file that is open, or a new one."""
        for data in part.events.feed(view):
            if data:
                (self._open or self._begin(part)).out.write(data)
        if self._server_id in part.events.server_ids:
            raise equal_server_id(self._server_id, f"in {part.piece.binlog}")
        self._batch_size += len(view)
        self._done = (self._done[0] + len(view), self._done[1])

    def _begin(self, part: "_Part") -> "_Open":
        self._number += 1
        piece = part.piece
        ident = Ident(self._number, piece.lineage, part.at, piece.binlog)
        out = self._directory.begin(self._number)
        self._open = _Open(RelayLog(ident, out.path, piece, self._done), out)
        other = 1 if self._server_id != 1 else 2
        out.write(part.head.render(ident, server_id=other, new_sessions=self._new_sessions))
        self._new_sessions = False
        return self._open

    def _add(self, part: "_Part", done: Sequence[Transaction], lengths: Sequence[int]) -> None:
        """These end in the file: the last of them where it ends now."""
        opened = self._open or self._begin(part)
        before = self._done[0] - lengths[len(done) - 1]
        for one, length in zip(done, lengths, strict=False):
            opened.log.add(one, before + length)
            if one.gtid is not None:
                self._gtids.add(one.gtid)
        opened.whole = opened.out.size
        self._done = (self._done[0], self._done[1] + len(done))
        part.at = done[-1].end

    def _close(self) -> None:
        """The file that is open is done: up to its last transaction."""
        opened, self._open = self._open, None
        if opened is None:
            return
        if not opened.log.ends:
            opened.out.drop()
            return
        opened.out.done(opened.whole)
        self._written.append(opened.log)

    def _end(self) -> Batch | None:
        """The batch that was written, if there is anything in it."""
        self._close()
        if not self._written:
            return None
        batch = Batch(self._written, self._gtids.build())
        self._written, self._batch_size, self._gtids = [], 0, Gathering("mysql")
        return batch

    def _drop(self) -> None:
        if self._open is not None:
            self._open.out.drop()


@dataclass(slots=True)
class _Part:
    """A piece on its way. `at`: the last offset between two transactions."""

    piece: Piece
    head: Head
    events: Events
    at: int = 0

    def __post_init__(self) -> None:
        self.at = max(self.piece.begin, len(MAGIC))


@dataclass(slots=True)
class _Open:
    """The file that is written. `whole`: its size behind the last transaction that has ended."""

    log: RelayLog
    out: Beside
    whole: int = 0


def equal_server_id(number: int, where: str) -> RecoveryError:
    """The applier would pass over these events without a word."""
    return RecoveryError(
        f"events {where} have the server_id {number}, which is the target's own: its applier would "
        "pass over them",
        hint="SET GLOBAL server_id at the target to one that none of the servers had, and run the "
        "same command again; or --apply pipe",
    )
