"""The bytes of a plan's pieces: whole binlogs, checked, one after the other.

It fetches blocks ahead, across pieces, and writes nothing.

Law: no byte is passed on before the checksum of its block is right, and no last byte of an event
before that event's checksum is; nor the last bytes of a piece before its transactions are those
that the plan names.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import partial
from itertools import chain

from binlog2s3.archive.ahead import MOST_AHEAD, MOST_THREADS, Ahead
from binlog2s3.archive.blocks import Blocks, event_at
from binlog2s3.archive.facts import Facts
from binlog2s3.archive.parts import BLOCK_SIZE
from binlog2s3.binlog.compression import Sink, Zlib, mariadb_header_size, mariadb_size
from binlog2s3.binlog.content import StatementText, statement_text
from binlog2s3.binlog.events import QUERIES, EventType, FormatEvent, decode_format, query_layout
from binlog2s3.binlog.executed import is_in
from binlog2s3.binlog.gtid import Flavour, Gathering, GtidSet, mariadb_gtid
from binlog2s3.binlog.scanner import MAGIC, Scanner, Transaction
from binlog2s3.binlog.statements import Writing, without_secrets, writing_of
from binlog2s3.binlog.walk import UNDECODABLE, EventWalk, payload_sink, wanted_types
from binlog2s3.errors import ArchiveError, DamageError, RecoveryError
from binlog2s3.formatting import cut, one_line
from binlog2s3.recover.model import Checked, OpenStream, PieceStream, PlanPiece
from binlog2s3.recover.snapshot import Snapshot

_PAYLOAD = wanted_types(EventType.TRANSACTION_PAYLOAD)
_MOST_TEXT = 120
_UNREAD = (
    "not all statements of the binlogs could be read on their way, and the target may have made "
    "other rows or names of one"
)
_HINT = "the bucket has changed since the plan was made, or the plan is wrong: make it again"


def stream_of(
    snapshot: Snapshot, pieces: Sequence[PlanPiece], *, concurrency: int = MOST_THREADS
) -> PieceStream:
    """Piece by piece: the magic and the format event, then the bytes.

    `snapshot` is the one that the plan was made from. At most `concurrency` blocks of 4 MiB are
    fetched at a time, and at most nine held. Read each piece to its end before the next one; close
    it to end it early. Raises ArchiveError if the bucket's bytes are not what they were,
    RecoveryError if they are but the plan says otherwise; both before the bytes that are wrong.
    """
    blocks = snapshot.blocks
    readers = [_PieceReader(piece, snapshot.known(*piece.binlog_id), blocks) for piece in pieces]
    tasks = (
        partial(blocks.block, reader.known, number)
        for reader in readers
        for number in reader.numbers
    )
    blocks.forget()
    threads = min(concurrency, MOST_THREADS)
    with closing(Ahead(tasks, threads=threads, most=min(threads + 2, MOST_AHEAD))) as ahead:
        for reader in readers:
            yield reader.piece, reader.run(ahead)
            if not reader.ended:
                raise RecoveryError(f"{reader.piece.binlog} was not read to its end")


def headed(data: Iterator[Checked]) -> tuple[Checked, FormatEvent]:
    """The first bytes of a piece, magic and format event, and what that says."""
    head = next(data)
    return head, decode_format(head.data[len(MAGIC) :], offset=len(MAGIC))


def through(
    open_stream: OpenStream, passed_on: Callable[[PlanPiece, Iterator[Checked]], Iterator[Checked]]
) -> OpenStream:
    """The same streams, of which `passed_on` sees the bytes of each piece, or ends them."""

    def opened(pieces: Sequence[PlanPiece]) -> PieceStream:
        with closing(open_stream(pieces)) as stream:
            for piece, data in stream:
                yield piece, passed_on(piece, data)

    return opened


class Watcher(ABC):
    """Sees the events of the types `wanted` on their way to the target."""

    wanted: bytes

    @abstractmethod
    def see(
        self, event_type: int, head: bytes, size: int, flavour: Flavour, flags: int, /
    ) -> Sink | None:
        """Take the beginning of an event's body, which has `size` bytes. May raise UNDECODABLE.

        `flavour`: of the server that wrote it. `flags`: the event's, 0 in a compressed transaction.
        The sink that it returns gets the rest of the body.
        """

    def lose(self) -> None:  # noqa: B027 - most take what cannot be read for none of theirs
        """Note that something could not be read."""


class StatementWatcher(Watcher):
    """Counts statements, and keeps the first, of which the target may make something else."""

    wanted = wanted_types(*QUERIES)

    def __init__(self) -> None:
        self.number = 0
        self.first = ""
        self._is_all = True

    @property
    @abstractmethod
    def why(self) -> str:
        """Why what is in the target may not be the source's, by the first statement."""

    @property
    def doubt(self) -> str:
        """Why that may be so after this was applied, or ""."""
        if self.number:
            return self.why
        return "" if self._is_all else _UNREAD

    @property
    def and_more(self) -> str:
        """How many there are besides the first, in words."""
        return f" and {self.number - 1} more" if self.number > 1 else ""

    def note(self, begun: StatementText, writing: Writing) -> None:
        """Count this statement."""
        self.number += 1
        text = without_secrets(begun.text, writing)
        self.first = self.first or cut(one_line(text), _MOST_TEXT)

    def lose(self) -> None:
        self._is_all = False


class TextWatcher(StatementWatcher):
    """Finds these statements by their text alone."""

    may: "re.Pattern[bytes]"
    """Matches in the text of each of them."""

    def see(
        self, event_type: int, head: bytes, size: int, flavour: Flavour, _: int, /
    ) -> Sink | None:
        _, _, text_at = query_layout(event_type, head, 0)
        raw, is_compressed = head[text_at:], event_type == EventType.QUERY_COMPRESSED
        if size == len(head) and not is_compressed and self.may.search(raw) is None:
            return None
        begun = statement_text(event_type, head)
        writing = writing_of(begun.status, mysql=flavour == "mysql")
        sink = self.look(begun, writing)
        if sink is not None and is_compressed:
            sink = Zlib(sink, mariadb_size(raw))
            raw = raw[mariadb_header_size(raw) :]
        if sink is not None:
            sink.feed(raw)
        return sink

    @abstractmethod
    def look(self, begun: StatementText, writing: Writing, /) -> Sink | None:
        """What gets all of a statement's text; None: it is none of them."""


class _Sinks:
    """Passes an event's body to the sinks of several watchers."""

    def __init__(self, sinks: list[tuple[Watcher, Sink]]) -> None:
        self._sinks = sinks

    def feed(self, data: bytes) -> None:
        """Take the next bytes."""
        for pair in tuple(self._sinks):
            try:
                pair[1].feed(data)
            except UNDECODABLE:
                pair[0].lose()
                self._sinks.remove(pair)

    def close(self, *, whole: bool) -> None:
        """No more bytes follow."""
        for watcher, sink in self._sinks:
            try:
                sink.close(whole=whole)
            except UNDECODABLE:
                watcher.lose()


def walked(open_stream: OpenStream, watchers: Sequence[Watcher]) -> OpenStream:
    """The same streams, in which each watcher sees the events that it wants.

    Those in compressed transactions, too. All is decompressed and split once.
    """
    wanted = bytes(map(max, _PAYLOAD, *(watcher.wanted for watcher in watchers)))

    def read(whole: bool) -> None:
        for watcher in () if whole else watchers:
            watcher.lose()

    def begin(
        flavour: Flavour, flags: Callable[[], int], event_type: int, head: bytes, size: int
    ) -> Sink | None:
        if event_type == EventType.TRANSACTION_PAYLOAD:
            return payload_sink(head, partial(begin, flavour, int), read, wanted=wanted)
        sinks = list[tuple[Watcher, Sink]]()
        for watcher in watchers:
            if watcher.wanted[event_type]:
                try:
                    sink = watcher.see(event_type, head, size, flavour, flags())
                except UNDECODABLE:
                    watcher.lose()
                else:
                    sinks += [(watcher, sink)] if sink is not None else []
        return _Sinks(sinks) if sinks else None

    def passed_on(_: PlanPiece, data: Iterator[Checked]) -> Iterator[Checked]:
        head, form = headed(data)
        yield head
        walk: EventWalk
        begun = partial(begin, form.flavour, lambda: walk.flags)
        walk = EventWalk(form.trailer, begun, wanted=wanted)
        for checked in data:
            walk.feed(checked.data)
            read(not walk.lost)
            yield checked
        read(walk.is_whole)

    return through(open_stream, passed_on) if watchers else open_stream


class _PieceReader:
    """Reads one piece. `ended`: all of it was passed on.

    Scanning begins at a boundary in the first of the blocks `numbers`. Raises RecoveryError if the
    piece cannot be one of this binlog, ArchiveError if it has damaged bytes.
    """

    def __init__(self, piece: PlanPiece, known: Facts, blocks: Blocks) -> None:
        self.piece = piece
        self.known = known
        self.ended = False
        self._blocks = blocks
        self._tally = _Tally(piece)
        self._at = self._start = known.boundary(piece.begin)
        self.numbers = range(self._start // BLOCK_SIZE, -(-piece.end // BLOCK_SIZE))
        self._left = _sections(piece, known)[::-1]

    def run(self, ahead: Iterator[memoryview]) -> Iterator[Checked]:
        """Its bytes; `ahead` gives its blocks."""
        first = next(ahead)
        head = self._head(first)
        yield Checked(data=MAGIC + head)
        scanner = self._scanner(head)
        for number, data in zip(self.numbers, chain([first], ahead), strict=False):
            view = data[self._at - number * BLOCK_SIZE : self.piece.end - number * BLOCK_SIZE]
            out, done = self._take(scanner, view, head)
            self._tally.add(done)
            if number == self.numbers[-1]:
                self._tally.finish()
            if out or done:
                yield Checked(data=b"".join(out), done=tuple(done))
        self.ended = True

    def _scanner(self, head: bytes) -> Scanner:
        """It begins a little before the piece, where another format event may apply."""
        known, start = self.known, self._start
        is_same = known.format_at(start) == known.format_at(self.piece.begin)
        return self._blocks.scanner(known, start, head if is_same else None)

    def _head(self, first: memoryview) -> bytes:
        """The format event that applies where the piece begins."""
        at = self.known.format_at(self.piece.begin)
        if self.numbers[0] == 0 and at == len(MAGIC):
            return event_at(first, at)
        return self._blocks.head(self.known, self.piece.begin)

    def _take(
        self, scanner: Scanner, view: memoryview, head: bytes
    ) -> tuple[list[memoryview], list[Transaction]]:
        """Check the next bytes; those that are passed on, and the transactions that end in them."""
        out: list[memoryview] = []
        done: list[Transaction] = []
        # the head was passed on already
        after_head = self.known.format_at(self.piece.begin) + len(head)
        while True:
            end, is_kept = self._left[-1]
            part = view[: end - self._at]
            view = view[len(part) :]
            try:
                transactions = scanner.feed(part)
            except DamageError as error:
                raise contradicts(self.piece, str(error)) from error
            if is_kept:
                out.append(part[max(0, after_head - self._at) :])
                done += transactions
            self._at += len(part)
            if self._at < end:
                return out, done
            if end > len(MAGIC) and not scanner.event_end == end == scanner.transaction_end:
                raise contradicts(self.piece, f"{end} is not between two transactions")
            if len(self._left) == 1:
                return out, done
            self._left.pop()


def _sections(piece: PlanPiece, known: Facts) -> list[tuple[int, bool]]:
    """(end, whether it is passed on) of each section; no transaction may be open at an end."""
    bounds = [piece.begin, *(at for pair in piece.left_out for at in pair), piece.end]
    if bounds != sorted(bounds) or not 0 <= piece.begin < piece.end <= known.size:
        raise contradicts(piece, f"{known.size} bytes of it are known")
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
                    hint="stop before there, or leave the transaction out with --skip-gtid",
                )
        at = end
    return sections


class _Tally:
    """Compares what a piece has with what the plan says of it. `count`: of its transactions.

    Raises RecoveryError.
    """

    def __init__(self, piece: PlanPiece) -> None:
        self._piece = piece
        self.count = 0
        self._gtids = Gathering("mysql" if isinstance(piece.gtids, GtidSet) else "mariadb")

    def add(self, done: Sequence[Transaction]) -> None:
        """Count these transactions; raises as soon as one shows that the plan is wrong."""
        self.count += len(done)
        if self.count > self._piece.transactions:
            raise self._others()
        for transaction in done:
            self._note(transaction.gtid)

    def _note(self, gtid: str | None) -> None:
        if gtid is None:
            return
        if not self._may_have(gtid):
            raise contradicts(self._piece, f"the plan does not have {gtid} in it")
        self._gtids.add(gtid)

    def _may_have(self, gtid: str) -> bool:
        """Of MariaDB, the plan names the last one of each domain and server: `finish` compares."""
        gtids = self._piece.gtids
        if isinstance(gtids, GtidSet):
            return is_in(gtids, gtid)
        domain, server, _ = mariadb_gtid(gtid)
        return gtids.number(domain, server) is not None

    def finish(self) -> None:
        """Raises if anything is missing."""
        expected, gtids = self._piece.gtids, self._gtids.build()
        if self.count != self._piece.transactions:
            raise self._others()
        if gtids != expected:
            raise contradicts(
                self._piece, f"it has the GTIDs {gtids or 'none'}, the plan says {expected}"
            )

    def _others(self) -> RecoveryError:
        return contradicts(
            self._piece,
            f"{self.count} or more transactions are in it, the plan says "
            f"{self._piece.transactions}",
        )


def contradicts(piece: PlanPiece, what: str) -> RecoveryError:
    """The error for a piece that is not as planned."""
    return RecoveryError(
        f"{piece.binlog} of {piece.lineage}, bytes {piece.begin} to {piece.end}, is not as "
        f"planned: {what}",
        hint=_HINT,
    )
