"""Searches one binlog, span by span.

`scan` chooses the spans. This module filters their bytes with `prefilter`, reads what is left, and
asks `match`.

Law: memory is a few blocks, whatever the size of a transaction: a large span is not kept, and what
has to be read in it is fetched again.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Literal

from binlog2s3.archive.blocks import Blocks
from binlog2s3.archive.facts import Facts
from binlog2s3.archive.parts import BLOCK_SIZE
from binlog2s3.binlog.content import (
    LOOKED_MOST,
    Content,
    ContentReader,
    TwoPhase,
)
from binlog2s3.binlog.events import FormatEvent, Phase, decode_format
from binlog2s3.binlog.names import BinlogName
from binlog2s3.binlog.scanner import Transaction
from binlog2s3.errors import ArchiveError, DamageError
from binlog2s3.inspect.find.match import Criteria, FoundPhase, Hit, Match, Matcher, PhaseLink
from binlog2s3.inspect.find.prefilter import FilterRules, Prefilter, ranges_to_read

TEXT_MOST = 16 * 1024
"""A statement is kept up to this many characters."""
_KEPT_MOST = 3 * BLOCK_SIZE
"""A span up to this size stays in memory until its transactions have been read."""


@dataclass(frozen=True, slots=True)
class Span:
    """Bytes [begin, end) of a binlog. Both are the first byte of a transaction, or the end."""

    known: Facts
    begin: int
    end: int

    @property
    def numbers(self) -> range:
        """The numbers of the blocks that contain it."""
        return range(self.begin // BLOCK_SIZE, -(-self.end // BLOCK_SIZE))

    @property
    def size(self) -> int:
        return self.end - self.begin


def spans_of(known: Facts, end: int) -> list[Span]:
    """A binlog's first `end` bytes, cut where the first transaction of each block begins."""
    firsts = [b.first_offset for b in known.blocks if b.first_offset is not None]
    bounds = [first for first in firsts if first < end]
    if not bounds:
        return []
    return [Span(known, *both) for both in zip(bounds, [*bounds[1:], end], strict=True)]


Unreadable = tuple[Span, ArchiveError]
"""Bytes that could not be searched, and why."""
BytesAt = tuple[int, bytes]
"""An offset in the binlog, and the bytes from that offset on."""


@dataclass(slots=True)
class SpanSearcher:
    """Searches spans. `keep` decides which transactions count, before they are read.

    `other` finds the other phase of what has two.
    """

    blocks: Blocks
    wanted: Criteria
    rules: FilterRules | None
    keep: Callable[[Transaction], bool]
    newest_first: bool
    other: Callable[[Span, Transaction, TwoPhase], FoundPhase | None] | None = None
    _opened: dict[tuple[str, BinlogName, int], "_Opened"] = field(default_factory=dict)

    def search(
        self, span: Span, data: Iterable[memoryview | ArchiveError], lost: list[Unreadable]
    ) -> Iterator[Hit]:
        """The matches in a span. `data` are its blocks, in order; all of them are consumed."""
        known = span.known
        opened = self._open(known, span.begin)
        prefilter = Prefilter(
            self.rules or _ALL, span.begin, opened.form.trailer, dict(known.damaged)
        )
        kept: list[BytesAt] | None = [] if span.size <= _KEPT_MOST else None
        end, error = span.end, None
        for number, block in zip(span.numbers, data, strict=True):
            if error is not None:
                continue
            if isinstance(block, ArchiveError):
                error, end = block, max(span.begin, number * BLOCK_SIZE)
                continue
            at = number * BLOCK_SIZE
            low, high = max(span.begin - at, 0), min(span.end - at, len(block))
            piece = bytes(block[low:high])
            if self.rules is not None:
                prefilter.feed(piece)
            if kept is not None:
                kept.append((at + low, piece))
        if error is not None:
            lost.append((replace(span, begin=end), error))
        yield from self._look(span, opened, kept, self._to_read(prefilter, span, end), prefilter)

    def phases(self, span: Span) -> tuple[list[FoundPhase], bool]:
        """The phases of what has two in a span, and whether all of it could be read."""
        lost: list[Unreadable] = []
        blocks = (self.blocks.block(span.known, number) for number in span.numbers)
        hits = self.search(span, blocks, lost)
        others = [
            FoundPhase(span.known, hit.transaction, hit.content.two_phase)
            for hit in hits
            if hit.content.two_phase is not None
        ]
        return others, not lost

    def _to_read(self, prefilter: Prefilter, span: Span, end: int) -> list[range]:
        if end <= span.begin:
            return []
        if self.rules is None or prefilter.lost or (end == span.end and not prefilter.is_whole):
            return [range(span.begin, end)]
        return ranges_to_read(prefilter.starts, prefilter.found, span.begin, end)

    def _open(self, known: Facts, begin: int) -> "_Opened":
        key = (known.lineage.id, known.name, known.format_at(begin))
        if key not in self._opened:
            self._opened.clear()
            self._opened[key] = _Opened(self.blocks.head(known, begin))
        return self._opened[key]

    # Reading what the prefilter leaves

    def _look(
        self,
        span: Span,
        opened: "_Opened",
        kept: list[BytesAt] | None,
        chosen: list[range],
        prefilter: Prefilter,
    ) -> Iterator[Hit]:
        marks = None if self.rules is None or prefilter.lost else prefilter.found
        least = 0 if prefilter.compressed or self.rules is None else self.wanted.min_rows
        for offsets in reversed(chosen) if self.newest_first else chosen:
            data = None
            if kept is not None:
                data = b"".join(self._bytes(kept, offsets.start, offsets.stop))
            transactions = self._scan(span, opened, data, offsets)
            for transaction in reversed(transactions) if self.newest_first else transactions:
                # each row takes at least one byte
                if transaction.end - transaction.begin < least or not self.keep(transaction):
                    continue
                if marks is not None and not _has(marks, transaction):
                    continue
                own = (
                    None
                    if data is None
                    else data[transaction.begin - offsets.start : transaction.end - offsets.start]
                )
                content, match, link = self._match(span, opened, own, transaction)
                if match.found:
                    yield Hit(
                        lineage=span.known.lineage.id,
                        binlog=span.known.name,
                        transaction=transaction,
                        content=content,
                        match=match,
                        link=link,
                    )

    def _scan(
        self, span: Span, opened: "_Opened", data: bytes | None, offsets: range
    ) -> list[Transaction]:
        """The whole transactions that lie in these bytes."""
        scanner = self.blocks.scanner(span.known, offsets.start, opened.head)
        damaged = {high: low for low, high in span.known.damaged}
        transactions: list[Transaction] = []
        try:
            for view in self._all(span.known, data, offsets.start, offsets.stop):
                transactions += scanner.feed(view)
        except DamageError as error:
            raise ArchiveError(
                f"{span.known.name} of {span.known.lineage.id}: {error}; the entry "
                "records no such damage",
                hint="run `mysqlbinlog --verify-binlog-checksum` on the object to see more",
            ) from error
        return [_whole(transaction, damaged) for transaction in transactions]

    def _match(
        self, span: Span, opened: "_Opened", data: bytes | None, transaction: Transaction
    ) -> tuple[Content, Match, PhaseLink | None]:
        """What a transaction does, and whether it matches. `data` are its bytes, if in memory."""
        matcher = Matcher(self.wanted)
        content = self._read(span.known, opened, data, transaction, matcher)
        if content.two_phase is None or self.other is None:
            return content, matcher.match(content), None
        return self._linked(span, transaction, content, content.two_phase, matcher)

    def _linked(
        self,
        span: Span,
        transaction: Transaction,
        content: Content,
        phase: TwoPhase,
        matcher: Matcher,
    ) -> tuple[Content, Match, PhaseLink | None]:
        """Like `_match`, for one phase of what has two; uses the other phase, if it is found.

        An XA COMMIT does what it commits. If the prepared transaction is not found, it may be
        anything. An ALTER takes effect with its COMMIT, which has its text, and not before.
        """
        match = matcher.match(content)
        stands_for_rows = phase.phase == "commit" and not phase.is_alter and self.wanted.has_rows
        if self.other is None or not (match.found or stands_for_rows):
            return content, match, None
        other = self.other(span, transaction, phase)
        if stands_for_rows:
            match = Match(found=True, certain=False)
            if other is not None:
                try:
                    opened = self._open(other.known, other.transaction.begin)
                    content = self._read(other.known, opened, None, other.transaction, matcher)
                    match = matcher.match(content)
                except ArchiveError:
                    other = None
        last = phase if phase.phase != "prepare" or other is None else other.two_phase
        state = _STATES[last.phase]
        if state != "committed" or (phase.is_alter and phase.phase == "prepare"):
            match = replace(match, certain=False)
        return content, match, PhaseLink(phase, state, other)

    def _read(
        self,
        known: Facts,
        opened: "_Opened",
        data: bytes | None,
        transaction: Transaction,
        matcher: Matcher,
    ) -> Content:
        """The content of a transaction; the matcher gets its statements."""
        reader = ContentReader(
            opened.form, text_most=TEXT_MOST, looked_most=LOOKED_MOST, on_statement=matcher.take
        )
        for view in self._all(known, data, transaction.begin, transaction.end):
            reader.feed(view)
        return reader.content()

    def _all(
        self, known: Facts, data: bytes | None, begin: int, end: int
    ) -> Iterator[bytes | memoryview]:
        """The bytes in memory, or else these bytes, fetched again."""
        if data is not None:
            yield data
            return
        with closing(self.blocks.read(known, begin, end)) as views:
            yield from views

    @staticmethod
    def _bytes(kept: list[BytesAt], begin: int, end: int) -> Iterator[bytes]:
        for at, piece in kept:
            if at < end and at + len(piece) > begin:
                yield piece[max(begin - at, 0) : end - at]


class _Opened:
    """A binlog's format event, and how to read what follows it."""

    def __init__(self, head: bytes) -> None:
        self.head = head
        self.form: FormatEvent = decode_format(head, offset=0)


_STATES: dict[Phase, Literal["prepared", "committed", "rolled back"]] = {
    "prepare": "prepared",
    "commit": "committed",
    "rollback": "rolled back",
}
_ALL = FilterRules(meaning=bytes(256))


def _has(marks: list[int], transaction: Transaction) -> bool:
    at = bisect_left(marks, transaction.begin)
    return at < len(marks) and marks[at] < transaction.end


def _whole(transaction: Transaction, damaged: dict[int, int]) -> Transaction:
    """Include a damaged GTID event again, without which a transaction seems to have no GTID."""
    while transaction.gtid is None and transaction.begin in damaged:
        transaction = replace(transaction, begin=damaged[transaction.begin])
    return transaction
