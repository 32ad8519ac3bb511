"""Searches a source's history for transactions: which binlogs, which blocks, in which order.

Entries show which binlogs cannot match, by their commit times and GTIDs. A block's entry has only
the time of its first commit, which says nothing about the others: the clock may have stepped within
the block.

Law: what is missing or cannot be read is skipped with a warning, at its place in the search. A
transaction that two lineages have is found in the earlier one.
"""

from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from functools import partial

from binlog2s3.archive.ahead import MOST_THREADS, Ahead
from binlog2s3.archive.facts import BinlogId, Facts
from binlog2s3.archive.parts import BLOCK_SIZE
from binlog2s3.binlog.scanner import Transaction
from binlog2s3.config.points import flavour_of, parse_gtids
from binlog2s3.errors import ArchiveError
from binlog2s3.inspect.find.history import MOST_BLOCKS, OtherPhases, SearchedHistory
from binlog2s3.inspect.find.match import Hit, SearchQuery, SearchStats, WantedGtids
from binlog2s3.inspect.find.one_binlog import Span, SpanSearcher, Unreadable
from binlog2s3.inspect.find.prefilter import rules_for
from binlog2s3.recover.route import Route
from binlog2s3.recover.snapshot import Snapshot

Item = Span | Callable[[], None]
"""A span to search, or a function to call."""
_BATCH = 64
"""How many entries are read together."""


class TransactionSearch:
    """One search. It calls `warn` for what it skips, and `advance` at each step."""

    def __init__(
        self,
        snapshot: Snapshot,
        query: SearchQuery,
        *,
        threads: int,
        warn: Callable[[str], None],
        advance: Callable[[SearchStats], None],
        most_blocks: int = MOST_BLOCKS,
    ) -> None:
        self._most_blocks = most_blocks
        self._snapshot = snapshot
        self._query = query
        self._threads = min(threads, MOST_THREADS)
        self._warn = warn
        self._advance = advance
        self._problems = 0
        self.stats = SearchStats()

    def hits(self) -> Generator[Hit, None, None]:
        """The matches, in the order of the query, up to its limit."""
        lines = self._lines()
        self.stats.of_size = sum(line.size(n) for line in lines for n in line.numbers)
        found = 0
        left = {line.route.line.parts[-1].lineage.flavour: _count(line.named) for line in lines}
        for line in lines:
            flavour = line.route.line.parts[-1].lineage.flavour
            with closing(self._in_line(line)) as hits:
                for hit in hits:
                    yield hit
                    found += 1
                    left[flavour] -= 1
                    if found == self._query.limit:
                        self.stats.ended_early = True
                        return
                    if not left[flavour] and not self._query.everywhere:
                        return  # all GTIDs are found

    # Where

    def _lines(self) -> list[SearchedHistory]:
        """The histories to search, in order."""
        newest = self._query.order == "newest"
        snapshot, query = self._snapshot, self._query
        if not query.everywhere:
            return [self._line(query.lineage or snapshot.current)]
        flavours = {flavour_of(parse_gtids(text)) for text in query.gtids}
        fitting = (
            lineage.id
            for lineage in snapshot.lineages
            if not flavours or lineage.flavour in flavours
        )
        ids = sorted(fitting, reverse=newest)
        return [self._line(id_, alone=True) for id_ in ids]

    def _line(self, tip: str, *, alone: bool = False) -> SearchedHistory:
        route = Route(self._snapshot, tip)
        last = len(route.line.parts) - 1
        flavour = route.line.parts[-1].lineage.flavour
        numbers = [
            n for n, binlog in enumerate(route.binlogs) if not alone or binlog.line_part == last
        ]
        if self._query.since is not None:
            first = _number_of(route, numbers, self._query.since)
            numbers = [number for number in numbers if number >= first]
        if self._query.until is not None:
            last = _number_of(route, numbers, self._query.until)
            numbers = [number for number in numbers if number <= last]
        if self._query.order == "newest":
            numbers.reverse()
        return SearchedHistory(
            route,
            numbers,
            WantedGtids(self._query.gtids, flavour) if self._query.gtids else None,
            self._snapshot,
            alone=alone,
            most_blocks=self._most_blocks,
        )

    # Through one history

    def _in_line(self, line: SearchedHistory) -> Generator[Hit, None, None]:
        query = self._query
        plain = query.wanted.is_any and line.named is None
        test = line.named.in_event if line.named is not None else None
        searcher = SpanSearcher(
            blocks=self._snapshot.blocks,
            wanted=query.wanted,
            rules=None if plain else rules_for(query.wanted, test),
            keep=lambda _: True,
            newest_first=query.order == "newest",
            other=OtherPhases(line, self._snapshot.blocks).other,
        )
        queued: deque[Item] = deque()
        tasks = self._tasks(self._items(line, searcher), queued)
        with closing(Ahead(tasks, threads=self._threads, first=2)) as ahead:
            for first in ahead:
                item = queued.popleft()
                if isinstance(item, Span):
                    yield from self._in_span(searcher, item, first, ahead)
                else:
                    item()

    def _tasks(
        self, items: Iterator[Item], queued: deque[Item]
    ) -> Iterator[Callable[[], memoryview | ArchiveError | None]]:
        """One task for each block of a span, and an empty one for each other item.

        `queued` gets the items whose first task is handed out.
        """
        for item in items:
            queued.append(item)
            if not isinstance(item, Span):
                yield lambda: None
                continue
            for number in item.numbers:
                yield partial(self._fetch, item.known, number)

    def _in_span(
        self,
        searcher: SpanSearcher,
        span: Span,
        first: memoryview | ArchiveError | None,
        ahead: Iterator[memoryview | ArchiveError | None],
    ) -> Iterator[Hit]:
        lost: list[Unreadable] = []

        def data() -> Iterator[memoryview | ArchiveError]:
            for number in span.numbers:
                block = first if number == span.numbers[0] else next(ahead)
                assert block is not None  # noqa: S101 - as the plan has it
                yield block
                begin, end = number * BLOCK_SIZE, (number + 1) * BLOCK_SIZE
                self._done(min(end, span.end) - max(begin, span.begin))

        try:
            yield from searcher.search(span, data(), lost)
        except ArchiveError as error:
            lost.append((span, error))
        for unread, why in lost:
            self._warn(
                f"not searched: bytes {unread.begin} to {unread.end} of {unread.known.name} of "
                f"{unread.known.lineage.id}: {why}"
            )

    def _fetch(self, known: Facts, number: int) -> memoryview | ArchiveError:
        """A block, which is kept for the neighbouring span."""
        try:
            return self._snapshot.blocks.block(known, number, keep=True)
        except ArchiveError as error:
            return error

    def _items(self, line: SearchedHistory, searcher: SpanSearcher) -> Iterator[Item]:
        """The items of a history: spans to search, and warnings to give in between."""
        yield partial(self._begin, line)
        at_once: list[int] = []
        wanted: set[int] = set()
        for place, number in enumerate(line.numbers):
            if not at_once:
                at_once = line.numbers[place : place + _BATCH]
                wanted = {each for each in at_once if self._is_wanted(line, each)}
                line.load(sorted(wanted))
            at_once.remove(number)
            if self._query.order == "newest":
                yield from self._of_binlog(line, number, searcher, is_wanted=number in wanted)
                yield from self._between(line, number)
            else:
                yield from self._between(line, number)
                yield from self._of_binlog(line, number, searcher, is_wanted=number in wanted)
        if self._query.order == "newest":
            yield partial(self._barrier, line)

    def _begin(self, line: SearchedHistory) -> None:
        """Give the warnings that come before the first binlog."""
        tip = line.route.line.parts[-1].lineage.id
        self.stats.lineages += (tip,)
        if tip == self._snapshot.current:
            self.stats.covered_us = self._snapshot.covered_us
        if lost := self._snapshot.lost_end(tip):
            self._warn(f"not searched: what follows the end of {tip}: {lost}")
        if self._query.order == "oldest":
            self._barrier(line)

    def _barrier(self, line: SearchedHistory) -> None:
        if self._query.since is not None:
            return
        if pruned := line.route.pruned:
            self._warn(f"earlier history is not searched: {pruned}")
        if line.route.line.barrier and not line.alone:
            self._warn(
                f"earlier history is not searched: {line.route.line.barrier}; "
                "--lineage all searches every lineage"
            )

    def _of_binlog(
        self, line: SearchedHistory, number: int, searcher: SpanSearcher, *, is_wanted: bool
    ) -> Iterator[Item]:
        size = line.size(number)
        if not is_wanted:
            yield from self._problems_of_snapshot()
            yield partial(self._pass, size)
            return
        try:
            known = line.known(number)
        except ArchiveError as error:
            line_binlog, lineage = (
                line.route.binlogs[number],
                line.route.line_part(number).lineage.id,
            )
            yield partial(self._warn, f"not searched: {line_binlog.name} of {lineage}: {error}")
            yield partial(self._lose, size)
            return
        yield from self._problems_of_snapshot()
        if not self._may_have(line, known):
            yield partial(self._pass, size)
            return
        yield partial(self._enter, known, searcher, self._counts_of(line, number))
        spans = [span for span in line.spans(number) if self._query.is_at(span.begin, span.end)]
        yield from reversed(spans) if self._query.order == "newest" else spans
        yield partial(self._done, size - sum(span.size for span in spans))

    def _problems_of_snapshot(self) -> Iterator[Item]:
        problems = self._snapshot.problems
        while self._problems < len(problems):
            yield partial(self._warn, f"not searched: {problems[self._problems]}")
            self._problems += 1

    def _counts_of(self, line: SearchedHistory, number: int) -> Callable[[Transaction], bool]:
        """Which transactions of a binlog count."""
        query, named = self._query, line.named
        is_duplicate = line.duplicates(number)

        def counts(transaction: Transaction) -> bool:
            return (
                query.in_time(
                    transaction.commit_us, transaction.commit_us, exact=transaction.commit_exact
                )
                and query.is_at(transaction.begin, transaction.end)
                and (
                    named is None or (transaction.gtid is not None and named.has(transaction.gtid))
                )
                and not is_duplicate(transaction)
            )

        return counts

    def _is_wanted(self, line: SearchedHistory, number: int) -> bool:
        """Whether a binlog can have matches, by its page if it has one: that costs no request.

        True where nothing is excluded, or its page cannot tell.
        """
        at = self._query.at
        if at is not None and line.route.binlogs[number].name != at.binlog:
            return False
        if not self._excludes(line):
            return True
        try:
            return self._may_have(line, line.route.brief(number))
        except ArchiveError:  # raised again when its entry is read
            return True

    def _excludes(self, line: SearchedHistory) -> bool:
        """Whether what is known of a binlog can exclude a match, but for one without transactions.

        If not, its entry is read anyway.
        """
        query = self._query
        return not (query.since_us is None and query.until_us is None and line.named is None)

    def _may_have(self, line: SearchedHistory, known: Facts) -> bool:
        """Whether a binlog can have matches, by its entry."""
        if known.damaged:
            return True
        least, greatest = known.least_commit_us, known.greatest_commit_us
        if least is None or greatest is None:
            return False
        if not self._query.in_time(least, greatest, exact=known.commit_exact):
            return False
        return line.named is None or line.named.touches(known)

    def _between(self, line: SearchedHistory, behind: int) -> Iterator[Item]:
        """Warn about what is missing before the binlog `behind`, if its time may match.

        Both neighbours count with their whole range, because the clock may have stepped in them.
        """
        line_binlogs = line.route.binlogs
        if self._query.at is not None:
            return
        if self._query.since is not None and behind == min(line.numbers):
            return
        if behind == 0 or (
            line.alone and line_binlogs[behind - 1].line_part != line_binlogs[behind].line_part
        ):
            return
        query, is_brief = self._query, self._excludes(line)
        try:
            known = line.route.brief if is_brief else line.route.known
            low, high = known(behind - 1).least_commit_us, known(behind).greatest_commit_us
            if (low is not None and query.until_us is not None and query.until_us < low) or (
                high is not None and query.since_us is not None and query.since_us > high
            ):
                return
            breaks = list(line.route.breaks(behind - 1, behind, is_brief=is_brief))
        except ArchiveError:
            breaks = [(behind, line_binlogs[behind].broken, line_binlogs[behind].missing)]
        for _, why, missing in breaks:
            if why:
                what = f" ({missing})" if missing else ""
                yield partial(self._warn, f"gap, its transactions cannot be found: {why}{what}")

    # Counting

    def _enter(
        self, known: Facts, searcher: SpanSearcher, counts: Callable[[Transaction], bool]
    ) -> None:
        searcher.keep = counts
        self.stats.binlogs += 1
        for begin, end in known.damaged:
            self._warn(
                f"damaged: bytes {begin} to {end} of {known.name} of {known.lineage.id}; the "
                "transactions there are not known"
            )

    def _pass(self, size: int) -> None:
        self.stats.left_out += 1
        self._done(size)

    def _lose(self, size: int) -> None:
        self.stats.unreadable += 1
        self._done(size)

    def _done(self, size: int) -> None:
        self.stats.size += size
        self._advance(self.stats)


def _number_of(route: Route, numbers: list[int], place: BinlogId) -> int:
    """The number of a lineage's binlog. Raises ArchiveError if it is not among them."""
    for number in numbers:
        if (route.lineage(number), route.binlogs[number].name) == place:
            return number
    raise ArchiveError(
        f"{place[1]} of {place[0]} is not in the history that is searched",
        hint="`binlog2s3 list` shows what is in the bucket",
    )


def _count(named: WantedGtids | None) -> int:
    """How many transactions can match; -1 if not known."""
    return named.count if named is not None else -1
