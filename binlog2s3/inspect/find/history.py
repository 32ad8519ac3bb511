"""The history that is searched: its binlogs, and how its transactions relate to each other.

Law: a transaction counts as a duplicate only if the earlier lineage's copy can be found. What was
rolled back or only prepared is never shown as done. Two phases of an XA transaction or an ALTER
belong together only if nothing of the same name, and nothing unreadable, lies between them.
Otherwise the other phase counts as not found.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache

from binlog2s3.archive.blocks import Blocks
from binlog2s3.archive.facts import BinlogId, Facts
from binlog2s3.archive.parts import BLOCK_SIZE
from binlog2s3.binlog.content import TwoPhase
from binlog2s3.binlog.executed import domain_of, is_in, repeated_upto
from binlog2s3.binlog.gtid import GtidSet, MariadbGtidList, parse
from binlog2s3.binlog.names import BinlogName
from binlog2s3.binlog.scanner import Transaction
from binlog2s3.errors import ArchiveError
from binlog2s3.inspect.find.match import Criteria, FoundPhase, WantedGtids
from binlog2s3.inspect.find.one_binlog import Span, SpanSearcher, spans_of
from binlog2s3.inspect.find.prefilter import phase_rules
from binlog2s3.recover.route import Route
from binlog2s3.recover.snapshot import Snapshot

MOST_BLOCKS = 16_384
"""What is known of this number of blocks stays in memory: about 6 MB, for 64 GiB of binlogs."""
_BLOCKS_MORE = 8
"""What is known of a binlog takes as much as this number of blocks, besides its blocks."""

_Held = tuple[GtidSet, GtidSet | None]
"""All GTIDs executed up to the cut of a part, and those executed before its first binlog."""


class SearchedHistory:
    """The binlogs of one history, and which of their transactions an earlier part already has."""

    def __init__(
        self,
        route: Route,
        numbers: list[int],
        named: WantedGtids | None,
        snapshot: Snapshot,
        *,
        alone: bool,
        most_blocks: int = MOST_BLOCKS,
    ) -> None:
        self.route = route
        self._most_blocks = most_blocks
        self._kept: OrderedDict[int, int] = OrderedDict()
        self._blocks = 0
        self.numbers = numbers
        self.named = named
        self.alone = alone
        self._snapshot = snapshot
        self._held = cache(self._find_held)

    def known(self, number: int) -> Facts:
        """A binlog with what is needed to read it. What was asked for last is kept."""
        known = self.route.known(number)
        if number not in self._kept:
            self._kept[number] = len(known.blocks) + _BLOCKS_MORE
            self._blocks += self._kept[number]
        self._kept.move_to_end(number)
        while self._blocks > self._most_blocks and len(self._kept) > 1:
            oldest, blocks = self._kept.popitem(last=False)
            self._blocks -= blocks
            self._snapshot.forget(*self._key(oldest))
        return known

    def load(self, numbers: Sequence[int]) -> None:
        """Read the entries of these binlogs, several at a time."""
        wanted: dict[str, list[BinlogName]] = {}
        for number in numbers:
            lineage, name = self._key(number)
            wanted.setdefault(lineage, []).append(name)
        for lineage, names in wanted.items():
            self._snapshot.load(lineage, names)

    def _key(self, number: int) -> BinlogId:
        return self.route.lineage(number), self.route.binlogs[number].name

    def size(self, number: int) -> int:
        """The bytes of a binlog that belong to this history, by the listing."""
        name = self.route.binlogs[number].name
        line_part = self.route.line_part(number)
        size = self._snapshot.size(line_part.lineage.id, name)
        return size if self.alone else line_part.end_of(name, size)

    def end(self, number: int, known: Facts) -> int:
        """The bytes of a binlog that belong to this history, by its entry or its bytes."""
        return (
            known.size
            if self.alone
            else self.route.line_part(number).end_of(known.name, known.size)
        )

    def spans(self, number: int) -> list[Span]:
        """The spans of a binlog that have to be searched."""
        known = self.known(number)
        return spans_of(known, min(self.end(number, known), known.transaction_end))

    def duplicates(self, number: int) -> Callable[[Transaction], bool]:
        """A test whether an earlier part already has a transaction of this binlog."""
        line_part = self.route.binlogs[number].line_part
        if self.alone or line_part == 0:
            return lambda _: False
        if self.route.flavour == "mariadb":
            return self._mariadb_duplicates(number)
        before = list(filter(None, map(self._held, range(line_part))))
        shared = self.route.line_part(number).begin if self._is_shared(number) else 0

        def double(transaction: Transaction) -> bool:
            gtid = transaction.gtid
            if gtid is None:
                return transaction.end <= shared
            return any(
                is_in(upto, gtid) and not (since is not None and is_in(since, gtid))
                for upto, since in before
            )

        return double

    def _mariadb_duplicates(self, number: int) -> Callable[[Transaction], bool]:
        """The same for MariaDB: by the place where the part begins to have more than those before.

        What was executed before the first binlog of the parts before has no copy there.
        """
        first = self.route.part_numbers(number)[0]
        try:
            repeated = self.route.repeated(number) if self._is_whole(first) else None
            since = self._since(first) if repeated is not None else {}
        except ArchiveError:
            return lambda _: False

        def double(transaction: Transaction) -> bool:
            if repeated is None or not repeated.has(number, transaction):
                return False
            begin = since.get(domain_of(transaction.gtid), 0) if transaction.gtid is not None else 0
            return (number, transaction.end) > (first, begin)

        return double

    def _is_whole(self, first: int) -> bool:
        """Whether the part before the one that begins with this binlog has no gaps."""
        return first > 0 and not any(
            self.route.binlogs[n].broken for n in self.route.part_numbers(first - 1)[1:]
        )

    def _since(self, first: int) -> Mapping[int, int]:
        """Up to where a part repeats what came before the oldest binlog, by domain."""
        before = self.route.known(0).gtids_before
        if not isinstance(before, MariadbGtidList) or not before:
            return {}
        return repeated_upto(self.route.transactions(first), before)

    def _is_shared(self, number: int) -> bool:
        """Whether it is the first of its part, and the part before has one of its name."""
        if number == 0:
            return False
        before, this = self.route.binlogs[number - 1 : number + 1]
        return before.line_part != this.line_part and before.name == this.name

    def _find_held(self, line_part: int) -> "_Held | None":
        """GTIDs of a part: all up to its cut, and those executed before its first binlog.

        None if the part has gaps: a later part may have what is missing in it.
        """
        cut = self.route.line.parts[line_part].cut
        numbers = [
            n for n, binlog in enumerate(self.route.binlogs) if binlog.line_part == line_part
        ]
        if cut is None or not cut.gtid_set or not numbers:
            return None
        if any(self.route.binlogs[n].broken for n in numbers[1:]):
            return None
        try:
            before = self.route.known(numbers[0]).gtids_before
            upto = parse(cut.gtid_set, "mysql")
        except (ArchiveError, ValueError):
            return None
        return upto, before if isinstance(before, GtidSet) else None


SIGHT = 64 * BLOCK_SIZE
"""How many bytes before or after one phase are searched for the other."""
_MOST_KEPT = 50_000


class OtherPhases:
    """Searches along one history."""

    def __init__(self, line: SearchedHistory, blocks: Blocks) -> None:
        self._line = line
        self._blocks = blocks
        self._numbers: dict[BinlogId, int] = {
            (line.route.line_part(number).lineage.id, line.route.binlogs[number].name): number
            for number in line.numbers
        }
        self._searched = frozenset(line.numbers)
        self._kept: OrderedDict[tuple[int, int], tuple[list[FoundPhase], bool]] = OrderedDict()
        self._count = 0

    def other(self, span: Span, transaction: Transaction, phase: TwoPhase) -> FoundPhase | None:
        """The other phase of a transaction in a span; None if it is not found."""
        forward, left = phase.phase == "prepare", SIGHT
        for number, place in self._from(span, forward=forward):
            if left <= 0:
                break
            left -= place.size
            try:
                phases, is_whole = self._inside(number, place)
            except ArchiveError:
                break
            is_own = place.begin == span.begin and place.known.name == span.known.name
            for found in phases if forward else reversed(phases):
                at = found.transaction.begin
                if is_own and (at <= transaction.begin if forward else at >= transaction.begin):
                    continue
                if found.two_phase.name in (phase.name, None):
                    is_first = found.two_phase.phase == "prepare"
                    is_other = found.two_phase.name is not None and forward != is_first
                    return found if is_other else None
            if not is_whole:
                break
        return None

    def _from(self, span: Span, *, forward: bool) -> Iterator[tuple[int, Span]]:
        """The span and those after it, or before it, up to where history is broken."""
        number = self._numbers[span.known.lineage.id, span.known.name]
        spans = self._line.spans(number)
        own = [other.begin for other in spans].index(span.begin)
        spans = spans[own:] if forward else spans[: own + 1]
        while True:
            yield from ((number, other) for other in (spans if forward else reversed(spans)))
            later = number + 1 if forward else number
            number += 1 if forward else -1
            if number not in self._searched or self._line.route.binlogs[later].broken:
                return
            try:
                spans = self._line.spans(number)
            except ArchiveError:
                return

    def _inside(self, number: int, span: Span) -> tuple[list[FoundPhase], bool]:
        """See `SpanSearcher.phases`."""
        key = (number, span.begin)
        if key not in self._kept:
            made = self._read(number, span)
            self._count += len(made[0])
            while self._count > _MOST_KEPT and self._kept:
                self._count -= len(self._kept.popitem(last=False)[1][0])
            self._kept[key] = made
        return self._kept[key]

    def _read(self, number: int, span: Span) -> tuple[list[FoundPhase], bool]:
        is_duplicate = self._line.duplicates(number)
        searcher = SpanSearcher(
            blocks=self._blocks,
            wanted=Criteria(),
            rules=phase_rules(),
            keep=lambda transaction: not is_duplicate(transaction),
            newest_first=False,
        )
        return searcher.phases(span)
