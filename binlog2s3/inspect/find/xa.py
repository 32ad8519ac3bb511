"""Finds the other phase of an XA transaction: its XA COMMIT or ROLLBACK, or its XA PREPARE.

Place in the flow: `scan` makes one for each history, `one_binlog` asks for each phase it finds.

Law: what was rolled back or only prepared is never shown as done. Two phases belong together only
if nothing of the same name, and nothing unreadable, lies between them. Otherwise the other phase
counts as not found.
"""

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass

from binlog2s3.archive.blocks import Blocks
from binlog2s3.archive.parts import BLOCK_SIZE
from binlog2s3.binlog.content import Xa
from binlog2s3.binlog.names import BinlogName
from binlog2s3.binlog.scanner import Transaction
from binlog2s3.errors import ArchiveError
from binlog2s3.inspect.find.history import SearchedHistory
from binlog2s3.inspect.find.match import Criteria
from binlog2s3.inspect.find.one_binlog import Span, SpanSearcher, XaPhase
from binlog2s3.inspect.find.prefilter import xa_rules

SIGHT = 64 * BLOCK_SIZE
"""How many bytes before or after one phase are searched for the other."""
_MOST_KEPT = 50_000


@dataclass(slots=True)
class _InSpan:
    """The phases in a span, in order; `whole`: all of it could be read."""

    others: list[XaPhase]
    whole: bool


class XaPhases:
    """Searches along one history."""

    def __init__(self, line: SearchedHistory, blocks: Blocks) -> None:
        self._line = line
        self._blocks = blocks
        self._numbers: dict[tuple[str, BinlogName], int] = {
            (line.leg(number).lineage.id, line.route.stretches[number].name): number
            for number in line.numbers
        }
        self._searched = frozenset(line.numbers)
        self._kept: OrderedDict[tuple[int, int], _InSpan] = OrderedDict()
        self._count = 0

    def other(self, span: Span, one: Transaction, xa: Xa) -> XaPhase | None:
        """The other phase of a transaction in a span; None if it is not found."""
        forward, left = xa.phase == "prepare", SIGHT
        for number, place in self._from(span, forward=forward):
            if left <= 0:
                break
            left -= place.size
            try:
                inside = self._inside(number, place)
            except ArchiveError:
                break
            is_own = place.begin == span.begin and place.found.known.name == span.found.known.name
            for found in inside.others if forward else reversed(inside.others):
                at = found.transaction.begin
                if is_own and (at <= one.begin if forward else at >= one.begin):
                    continue
                if found.xa.xid == xa.xid or found.xa.xid is None:
                    is_other = found.xa.xid is not None and forward != (found.xa.phase == "prepare")
                    return found if is_other else None
            if not inside.whole:
                break
        return None

    def _from(self, span: Span, *, forward: bool) -> Iterator[tuple[int, Span]]:
        """The span and those after it, or before it, up to where history is broken."""
        number = self._numbers[span.found.lineage.id, span.found.known.name]
        spans = self._line.spans(number)
        own = [one.begin for one in spans].index(span.begin)
        spans = spans[own:] if forward else spans[: own + 1]
        while True:
            yield from ((number, one) for one in (spans if forward else reversed(spans)))
            later = number + 1 if forward else number
            number += 1 if forward else -1
            if number not in self._searched or self._line.route.stretches[later].broken:
                return
            try:
                spans = self._line.spans(number)
            except ArchiveError:
                return

    def _inside(self, number: int, span: Span) -> _InSpan:
        key = (number, span.begin)
        if key not in self._kept:
            made = self._read(number, span)
            self._count += len(made.others)
            while self._count > _MOST_KEPT and self._kept:
                self._count -= len(self._kept.popitem(last=False)[1].others)
            self._kept[key] = made
        return self._kept[key]

    def _read(self, number: int, span: Span) -> _InSpan:
        is_duplicate = self._line.duplicates(number)
        searcher = SpanSearcher(
            blocks=self._blocks,
            wanted=Criteria(),
            rules=xa_rules(),
            keep=lambda one: not is_duplicate(one),
            newest_first=False,
        )
        return _InSpan(*searcher.phases(span))
