"""The bytes of a plan's pieces, as mysqlbinlog wants them: whole binlogs, proved, one by one.

Place in the flow: `pitr` makes it from what `snapshot` knows; `serve` and `export` take what comes
out. Blocks are fetched ahead, over the pieces' edges; nothing is written anywhere.

Law: no byte is handed on before its block's checksum is right and, of the end of an event, that
event's too; nor the last bytes of a piece before its transactions are those that the plan names.
"""

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial

from binlog2s3.archive.blocks import MOST_AHEAD, MOST_THREADS, Ahead, Blocks, Found, event_at
from binlog2s3.archive.parts import BLOCK_SIZE
from binlog2s3.binlog.executed import Gathering, executed
from binlog2s3.binlog.gtid import GtidSet
from binlog2s3.binlog.scanner import MAGIC, Scanner, Transaction
from binlog2s3.errors import ArchiveError, DamageError, RecoveryError
from binlog2s3.recover.model import Checked, Piece

_HINT = "the bucket has changed since the plan was made, or the plan is wrong: make it again"


class Extract:
    """Reads pieces. `blocks` are those of the survey that the plan was made from.

    At most `concurrency` blocks of 4 MiB are fetched at a time, and no more than nine are held.
    """

    def __init__(self, blocks: Blocks, *, concurrency: int = MOST_THREADS) -> None:
        self._blocks = blocks
        self._threads = min(concurrency, MOST_THREADS)
        self._most = min(self._threads + 2, MOST_AHEAD)

    def stream(
        self, pieces: Sequence[Piece]
    ) -> Generator[tuple[Piece, Iterator[Checked]], None, None]:
        """Piece by piece: the magic and the format event, then the bytes; a `model.Stream`.

        Each piece is to be read to its end before the next one. Close it to end it early. Raises
        ArchiveError where the bucket's bytes are not what they were, RecoveryError where they are
        but the plan says otherwise; both before the bytes that are wrong.
        """
        parts = [_Parts.of(one, self._blocks.find(one.lineage, one.binlog)) for one in pieces]
        self._blocks.forget()
        with closing(Ahead(self._tasks(parts), threads=self._threads, most=self._most)) as ahead:
            for part in parts:
                reading = _Reading(part, self._blocks, ahead)
                yield part.piece, reading.run()
                if not reading.ended:
                    raise RecoveryError(f"{part.piece.binlog} was not read to its end")

    def _tasks(self, all_parts: Sequence["_Parts"]) -> Iterator[Callable[[], memoryview]]:
        for parts in all_parts:
            for number in parts.numbers:
                yield partial(self._blocks.block, parts.found, number)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Parts:
    """How a piece lies in its binlog.

    Scanning begins at `start`, a boundary, in the first of the blocks `numbers`. `sections` are
    (end, whether it is handed on), from there on; at each end no transaction may be open.
    """

    piece: Piece
    found: Found
    start: int
    numbers: range
    sections: tuple[tuple[int, bool], ...]

    @classmethod
    def of(cls, piece: Piece, found: Found) -> "_Parts":
        """Raises where a piece cannot be one of this binlog, or is not to be handed on."""
        known = found.known
        bounds = [piece.begin, *(at for pair in piece.left_out for at in pair), piece.end]
        if bounds != sorted(bounds) or bounds[0] < 0 or bounds[-1] > known.size:
            raise _contradicts(piece, f"{known.size} bytes of it are known")
        start = found.boundary(piece.begin)
        begins = range(start // BLOCK_SIZE, -(-piece.end // BLOCK_SIZE))
        sections = [(piece.begin, False)]
        for begin, end in piece.left_out:
            sections += [(begin, True), (end, False)]
        sections.append((piece.end, True))
        at = piece.begin
        for end, is_kept in sections:
            for low, high in known.damaged:
                if is_kept and low < end and high > at:
                    raise ArchiveError(
                        f"{piece.binlog} of {piece.lineage} is damaged from {low} to {high}",
                        hint="stop before there, or leave the transaction out by --skip-gtid",
                    )
            at = end
        return cls(piece=piece, found=found, start=start, numbers=begins, sections=tuple(sections))


class _Reading:
    """One piece on its way. `ended`: all of it was handed on."""

    def __init__(self, parts: _Parts, blocks: Blocks, ahead: Iterator[memoryview]) -> None:
        self._parts = parts
        self._piece = parts.piece
        self._blocks = blocks
        self._ahead = ahead
        self._tally = _Tally(parts.piece)
        self._at = parts.start
        self._left = list(reversed(parts.sections))
        self.ended = False

    def run(self) -> Iterator[Checked]:
        parts = self._parts
        head: bytes | None = None
        scanner: Scanner | None = None
        for number in parts.numbers:
            data = next(self._ahead)
            if head is None or scanner is None:
                head = self._head(data)
                yield Checked(data=MAGIC + head)
                scanner = self._scanner(head)
            view = data[self._at - number * BLOCK_SIZE : self._piece.end - number * BLOCK_SIZE]
            out, done = self._take(scanner, view, head)
            self._tally.add(done)
            if number == parts.numbers[-1]:
                self._tally.finish()
            if out or done:
                yield Checked(data=b"".join(out), done=tuple(done))
        if head is None:
            self._tally.finish()
            yield Checked(data=MAGIC + self._blocks.head(parts.found, self._piece.begin))
        self.ended = True

    def _scanner(self, head: bytes) -> Scanner:
        """It begins a little before the piece does, where perhaps another format event holds."""
        found, start = self._parts.found, self._parts.start
        is_same = found.format_at(start) == found.format_at(self._piece.begin)
        return self._blocks.scanner(found, start, head if is_same else None)

    def _head(self, first: memoryview) -> bytes:
        """The format event that holds where the piece begins."""
        at = self._parts.found.format_at(self._piece.begin)
        if self._parts.numbers[0] == 0 and at == len(MAGIC):
            return event_at(first, at)
        return self._blocks.head(self._parts.found, self._piece.begin)

    def _take(
        self, scanner: Scanner, view: memoryview, head: bytes
    ) -> tuple[list[memoryview], list[Transaction]]:
        """Check the next bytes; those of them that are handed on, and whose transactions end."""
        out: list[memoryview] = []
        done: list[Transaction] = []
        # what came with the head already
        behind_head = self._parts.found.format_at(self._piece.begin) + len(head)
        while True:
            end, is_kept = self._left[-1]
            part = view[: end - self._at]
            view = view[len(part) :]
            try:
                transactions = scanner.feed(part)
            except DamageError as error:
                raise _contradicts(self._piece, str(error)) from error
            if is_kept:
                out.append(part[max(0, behind_head - self._at) :])
                done += transactions
            self._at += len(part)
            if self._at < end:
                return out, done
            if end > len(MAGIC) and not scanner.event_end == end == scanner.transaction_end:
                raise _contradicts(self._piece, f"{end} is not between two transactions")
            if len(self._left) == 1:
                return out, done
            self._left.pop()


class _Tally:
    """What a piece turns out to have, compared with what the plan says of it."""

    def __init__(self, piece: Piece) -> None:
        self._piece = piece
        self._count = 0
        self._gtids = Gathering("mysql" if isinstance(piece.gtids, GtidSet) else "mariadb")
        self._expected = executed(piece.gtids)

    def add(self, done: Sequence[Transaction]) -> None:
        """Count these; raises as soon as one shows that the plan is wrong."""
        self._count += len(done)
        if self._count > self._piece.transactions:
            raise self._others()
        for transaction in done:
            self._note(transaction.gtid)

    def _note(self, gtid: str | None) -> None:
        if gtid is None:
            return
        if not self._expected.has(gtid):
            raise _contradicts(self._piece, f"the plan does not know {gtid} in it")
        self._gtids.add(gtid)

    def finish(self) -> None:
        """Raises if anything lacks."""
        expected, found = self._piece.gtids, self._gtids.build()
        if self._count != self._piece.transactions:
            raise self._others()
        if found != expected:
            raise _contradicts(
                self._piece, f"it has the GTIDs {found or 'none'}, the plan says {expected}"
            )

    def _others(self) -> RecoveryError:
        return _contradicts(
            self._piece,
            f"{self._count} or more transactions are in it, the plan says "
            f"{self._piece.transactions}",
        )


def _contradicts(piece: Piece, what: str) -> RecoveryError:
    return RecoveryError(
        f"{piece.binlog} of {piece.lineage}, bytes {piece.begin} to {piece.end}: {what}",
        hint=_HINT,
    )
