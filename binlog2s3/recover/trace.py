"""Where in the binlogs a line of mysqlbinlog's text comes from. No I/O.

Place in the flow: `pipe` shows every piece of text that it hands on to a `Trace`, which counts
lines as the client does; when the client names the line of an error, it finds the transaction.

Law: memory is bounded: the last megabytes of text are kept, of older text one mark for each part of
it, which is enough to place a single statement of up to a gigabyte. What was handed on and lies
before that has been executed: a client reads no further ahead.

mysqlbinlog puts "# at N" before each event, N counted in what it was given: the binlog's head and
the piece's bytes. For events inside of a compressed one it is where that ends in the server's own
binlog, modulo 2**32, and "end_log_pos" in the next line is the same.
"""

import re
from collections import deque
from dataclasses import dataclass

from binlog2s3.binlog.scanner import Transaction
from binlog2s3.recover.model import Piece

_KEPT_BYTES = 4 << 20
_TAIL_BYTES = 200  # in which the two lines that begin an event may be cut
_MARKS = 1 << 15
_AT = b"\n# at "
_NEXT = re.compile(rb"@@SESSION\.GTID_NEXT= '([^'\n]{1,200})'")
_EVENT = re.compile(rb"\n# at (\d{1,19})\n#[^\n]*?end_log_pos (\d+) ")


class Offsets:
    """From what mysqlbinlog says of an event to the server's offsets."""

    def __init__(self, piece: Piece, head_size: int) -> None:
        self._piece = piece
        self._head = head_size
        self._begin = max(piece.begin, head_size)  # a piece from the binlog's very first byte on

    def of(self, at: int) -> int:
        """Of an offset in what was given; the piece's beginning for what lies in the head."""
        offset = self._begin + max(at - self._head, 0)
        for begin, end in sorted(self._piece.left_out):
            if begin <= offset:
                offset += end - begin
        return offset

    def of_compressed(self, at: int) -> int:
        """Of the end of a compressed event, which wraps at 4 GiB."""
        return self._piece.begin + ((at - self._piece.begin) & 0xFFFF_FFFF)

    def given(self, offset: int) -> int:
        """How many of the piece's bytes lie before an offset of the server's."""
        left = sum(
            min(end, offset) - begin for begin, end in self._piece.left_out if begin < offset
        )
        return min(max(offset - self._piece.begin - left, 0), self._piece.size)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spot:
    """Where a statement comes from: the event's offset, the transaction as far as it is known.

    `compressed`: the event lies inside of a compressed one, and `offset` is where that ends.
    """

    piece: Piece
    offset: int
    compressed: bool
    gtid: str | None
    transaction: Transaction | None


@dataclass(frozen=True, slots=True)
class _Part:
    """A piece of text that was handed on. `line`: how many lines end before it."""

    line: int
    text: bytes
    run: "_Run | None"
    handed: int


@dataclass(frozen=True, slots=True)
class _Mark:
    """The last event that older text speaks of."""

    line: int
    event: "_Event"
    gtid: bytes | None
    run: "_Run"


@dataclass(frozen=True, slots=True)
class _Event:
    """Where an event begins in the server's binlog; where the compressed one around it ends."""

    offset: int
    compressed: bool


@dataclass(frozen=True, slots=True)
class _Run:
    """One mysqlbinlog, from this line on."""

    piece: Piece
    offsets: Offsets


class Trace:
    """What was handed on, as far as it may matter still."""

    def __init__(self) -> None:
        self._lines = 0
        self._parts: deque[_Part] = deque()
        self._size = 0
        self._marks: deque[_Mark] = deque(maxlen=_MARKS)
        self._run: _Run | None = None
        self._read: deque[tuple[Piece, Transaction]] = deque()  # by mysqlbinlog
        self._handed: deque[tuple[Piece, Transaction]] = deque()  # as text, to the client
        self._handed_before = 0  # those that left `_handed`
        self._tail = b""  # of the text, where an event's line may have been cut
        self._offset = 0  # of the last event that the text began, in this run
        self._base = 0
        self._gtid: bytes | None = None
        self.transactions = 0
        self.size = 0
        self.commit_us: int | None = None

    @property
    def line(self) -> int:
        """The line that comes next."""
        return self._lines + 1

    def restart(self) -> None:
        """The client is another one: it counts lines from the first on again."""
        self._lines = self._size = 0
        self._parts.clear()
        self._marks.clear()
        self._gtid = None

    def begin(self, piece: Piece, head_size: int) -> None:
        """The text of another piece follows."""
        self._run = _Run(piece, Offsets(piece, head_size))
        self._base = self.size
        self._offset, self._tail = 0, b""

    def end(self) -> bool:
        """All of the piece's text was handed on; what follows is ours.

        False where it does not reach the last transaction that was read.
        """
        if self._run is None:
            return True
        piece = self._run.piece
        whole = not self._read or self._read[-1][1].begin <= self._offset
        self._hand(piece.end)
        self.size = self._base + piece.size
        self._run = None
        return whole

    def read(self, transactions: tuple[Transaction, ...]) -> None:
        """The bytes of these were given to mysqlbinlog, up to their end."""
        if self._run is not None:
            self._read.extend((self._run.piece, one) for one in transactions)

    def hand(self, text: bytes) -> None:
        """Take text that is handed on now."""
        self._parts.append(
            _Part(self._lines, text, self._run, self._handed_before + len(self._handed))
        )
        self._lines += text.count(b"\n")
        self._size += len(text)
        while self._size > _KEPT_BYTES and len(self._parts) > 2:
            self._forget()
        if self._run is None:
            return
        joined = self._tail + text
        event = _last_event(joined, len(joined), self._run.offsets)
        self._tail = joined[-_TAIL_BYTES:]
        if event is not None:
            self._offset = min(event.offset, self._run.piece.end)
            self._hand(self._offset)
            self.size = max(self.size, self._base + self._run.offsets.given(self._offset))

    def _hand(self, upto: int) -> None:
        """Transactions that end by there are wholly in the client's hands."""
        piece = self._run.piece if self._run is not None else None
        while self._read and self._read[0][0] is piece and self._read[0][1].end <= upto:
            self._handed.append(self._read.popleft())
            self.transactions += 1
            self.commit_us = self._handed[-1][1].commit_us

    def _forget(self) -> None:
        part = self._parts.popleft()
        self._size -= len(part.text)
        while self._handed_before < part.handed and self._handed:
            self._handed.popleft()
            self._handed_before += 1
        if part.run is None:
            return
        if found := list(_NEXT.finditer(part.text)):
            self._gtid = found[-1][1]
        event = _last_event(part.text, len(part.text), part.run.offsets)
        if event is not None:
            line = part.line + part.text.count(b"\n", 0, part.text.rfind(_AT)) + 1
            self._marks.append(_Mark(line, event, self._gtid, part.run))

    def find(self, line: int) -> Spot | None:
        """Where the statement comes from that begins in this line; None if it is none of theirs."""
        if not self._parts or line - 1 < self._parts[0].line:
            return self._older(line)
        text = b"".join(part.text for part in self._parts)
        upto = 0
        for _ in range(line - 1 - self._parts[0].line):
            upto = text.find(b"\n", upto) + 1
        run, begin = self._run_at(upto)
        if run is None:
            return None
        before = text[begin:upto]
        event = _last_event(before, len(before), run.offsets)
        if event is None:
            return self._older(line) if begin == 0 else None
        gtids = list(_NEXT.finditer(before))
        gtid = gtids[-1][1] if gtids else self._gtid if begin == 0 else None
        return self._spot(run.piece, event, gtid)

    def _run_at(self, upto: int) -> tuple[_Run | None, int]:
        """Whose text lies there, and where in what is kept that begins."""
        at, begin, run = 0, 0, None
        for part in self._parts:
            if at > upto:
                break
            if part.run is not run:
                run, begin = part.run, at
            at += len(part.text)
        return run, begin

    def _older(self, line: int) -> Spot | None:
        for mark in reversed(self._marks):
            if mark.line <= line:
                return self._spot(mark.run.piece, mark.event, mark.gtid)
        return None

    def _spot(self, piece: Piece, event: _Event, gtid: bytes | None) -> Spot:
        offset, compressed = event.offset, event.compressed
        known = gtid.decode("ascii", "replace") if gtid else None
        within = offset - 1 if compressed else offset
        for where, one in (*self._handed, *self._read):
            if where is piece and one.begin <= within < one.end:
                return Spot(
                    piece=piece,
                    offset=offset,
                    compressed=compressed,
                    gtid=one.gtid,
                    transaction=one,
                )
        return Spot(
            piece=piece,
            offset=offset,
            compressed=compressed,
            gtid=known if known not in ("AUTOMATIC", "ANONYMOUS") else None,
            transaction=None,
        )


def _last_event(text: bytes, end: int, offsets: Offsets) -> _Event | None:
    """The last event that begins in a text, of those whose first two lines are whole."""
    while (end := text.rfind(_AT, 0, end)) >= 0:
        if found := _EVENT.match(text, end):
            at, log_end = int(found[1]), int(found[2])
            if at == log_end:
                return _Event(offsets.of_compressed(at), compressed=True)
            return _Event(offsets.of(at), compressed=False)
    return None
