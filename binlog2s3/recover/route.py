"""The binlogs of a line of lineages, one after the other, and the breaks between them.

Pure but for what it asks the history.

Law: a binlog follows the one before it without a break only if names, GTIDs and sizes say so.
"""

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TypeVar

from binlog2s3.archive.documents import Parent
from binlog2s3.archive.facts import Facts, added_gtids
from binlog2s3.archive.history import (
    Interval,
    Line,
    LineBinlog,
    LinePart,
    break_between,
    cut_is_missing,
    extent,
    is_unlogged_between,
    is_within,
    line_binlogs,
    line_of,
)
from binlog2s3.binlog.executed import (
    AddedGtids,
    ExecutedPart,
    LinePosition,
    MariadbPart,
    MysqlPart,
    StateEnd,
    WithGtids,
    gtid_text,
    precedes,
    repeated_upto,
    state_end,
    state_end_at,
)
from binlog2s3.binlog.gtid import (
    Flavour,
    Gtids,
    GtidSet,
    MariadbGtidList,
    either,
    empty,
    gathered,
    joined,
    parse,
)
from binlog2s3.binlog.names import BinlogName
from binlog2s3.binlog.scanner import MAGIC, Transaction
from binlog2s3.errors import ArchiveError, RecoveryError
from binlog2s3.recover.model import BinlogPosition
from binlog2s3.recover.snapshot import Search, Snapshot

Result = TypeVar("Result")
SECOND_US = 1_000_000


class Route:
    """All binlogs of a line, numbered from 0. `binlogs` is empty if none can be read.

    `load` and `known` ask the history for what is applied; `brief`, `later_hint` and `not_later`
    ask a cache, to look at many binlogs.
    """

    def __init__(self, history: Snapshot, tip: str) -> None:
        self.history = history
        self.line: Line = line_of(history.lineages, tip)
        self.tip = self.line.parts[-1].lineage
        self.flavour: Flavour = self.tip.flavour
        self.binlogs = tuple(line_binlogs(self.line, history.names))
        self._repeated: dict[int, ExecutedPart | None] = {}
        self._added: list[AddedGtids] = []
        self._line_parts: dict[int, range] = {}
        for number, line_binlog in enumerate(self.binlogs):
            begun = self._line_parts.get(line_binlog.line_part, range(number, number))
            self._line_parts[line_binlog.line_part] = range(begun.start, number + 1)

    @property
    def pruned(self) -> str:
        """What was pruned before its first binlog, in words; "" if nothing was."""
        first = self.binlogs[0].line_part if self.binlogs else len(self.line.parts) - 1
        for line_part in reversed(self.line.parts[: first + 1]):
            floor, is_first = line_part.lineage.floor, line_part is self.line.parts[first]
            if floor is None or (is_first and self._begins_at(line_part.lineage.first_binlog)):
                continue
            begin = floor.binlog  # those below it that are still there can be read
            if is_first and self.binlogs:
                begin = min(begin, self.binlogs[0].name)
            return f"the binlogs before {begin} of {line_part.lineage.id} were pruned"
        return ""

    @property
    def begins_us(self) -> int:
        """The earliest time to which who has nothing of it can be brought.

        If something was executed before it began, that time is known to the second.
        """
        known = self.known(0)
        return known.first_us + (SECOND_US - 1 if known.gtids_before or self.pruned else 0)

    def _begins_at(self, name: BinlogName) -> bool:
        return bool(self.binlogs) and self.binlogs[0].name == name

    def __len__(self) -> int:
        return len(self.binlogs)

    def line_part(self, number: int) -> LinePart:
        return self.line.parts[self.binlogs[number].line_part]

    def lineage(self, number: int) -> str:
        """The id of a binlog's lineage."""
        return self.line_part(number).lineage.id

    def by_part(self) -> Sequence[range]:
        """The numbers of the binlogs, part by part."""
        return list(self._line_parts.values())

    def part_numbers(self, number: int) -> range:
        """The numbers of all binlogs of this binlog's part."""
        return self._line_parts[self.binlogs[number].line_part]

    def position(self, number: int, offset: int) -> BinlogPosition:
        """The position of an offset in a binlog."""
        return BinlogPosition(
            lineage=self.lineage(number), binlog=self.binlogs[number].name, offset=offset
        )

    def load(self, begin: int, end: int) -> None:
        """Read the entries of binlogs [begin, end) together."""
        wanted: dict[str, list[BinlogName]] = {}
        for number in range(begin, end):
            wanted.setdefault(self.lineage(number), []).append(self.binlogs[number].name)
        for lineage, names in wanted.items():
            self.history.load(lineage, names)

    def known(self, number: int) -> Facts:
        """What is known of a binlog."""
        return self.history.known(self.lineage(number), self.binlogs[number].name)

    def brief(self, number: int) -> Facts:
        """The same from a cache, perhaps without blocks; not to be used for what is applied."""
        return self.history.brief(self.lineage(number), self.binlogs[number].name)

    def later_hint(self, number: int, at_us: int) -> int:
        """The first binlog from this one on that may have a commit later than this.

        It comes from a cache. Without one it is the part's last, and each has to be looked at.
        """
        last = self.part_numbers(number)[-1]
        begin = self.binlogs[number].name
        name = self.history.first_later(self.lineage(number), at_us, begin)
        return min(last, self.number_of(name, number)) if name is not None else last

    def not_later(self, begin: int, at_us: int) -> Iterator[int]:
        """The binlogs from this one on that may have a commit up to this time, in order."""
        for numbers in self._line_parts.values():
            if numbers[-1] < begin:
                continue
            first = max(begin, numbers[0])
            names = self.history.not_later(self.lineage(first), at_us, self.binlogs[first].name)
            for name in names:
                number = self.number_of(name, first)
                if number > numbers[-1]:
                    break
                if self.binlogs[number].name == name:
                    yield number

    def number_of(self, name: BinlogName, like: int) -> int:
        """Where this binlog is, or would be, in the part of binlog `like`."""
        numbers = self.part_numbers(like)
        return bisect_left(self.binlogs, name, numbers[0], numbers[-1] + 1, key=_name)

    def size(self, number: int) -> int:
        """How many of the binlog's first bytes belong to the line."""
        return self.line_part(number).end_of(self.binlogs[number].name, self.known(number).size)

    def end(self, number: int) -> int:
        """The end of the binlog's last whole transaction, as far as that is known."""
        return min(self.size(number), self.known(number).transaction_end)

    def is_cut(self, number: int) -> bool:
        """Whether the binlog has bytes after those that belong to the line."""
        cut = self.line_part(number).cut
        if cut is None or cut.binlog != self.binlogs[number].name:
            return False
        return self.size(number) < self.known(number).size

    def begin(self, number: int) -> int:
        """Where the binlog's first transaction begins; the binlog's end if it has none."""
        for block in self.known(number).blocks:
            if block.first_offset is not None:
                return min(block.first_offset, self.end(number))
        return max(self.end(number), len(MAGIC))

    def transactions(
        self, number: int, begin: int = 0, end: int | None = None
    ) -> Iterator[Transaction]:
        """The transactions of a binlog that lie in [begin, end)."""
        upto = self.size(number) if end is None else min(end, self.size(number))
        name = self.binlogs[number].name
        for transaction in self.history.transactions(self.lineage(number), name, begin, upto):
            if transaction.end <= upto:
                yield transaction

    def searched(
        self, number: int, search: Search[Result], begin: int = 0, end: int | None = None
    ) -> Result:
        """What a search finds in the transactions of a binlog that lie in [begin, end)."""
        upto = self.size(number) if end is None else min(end, self.size(number))
        name = self.binlogs[number].name
        return self.history.searched(self.lineage(number), name, begin, upto, search)

    def numbers_of(self, name: BinlogName, offset: int) -> list[int]:
        """The binlogs of this name that have this offset."""
        numbers = []
        for number, line_binlog in enumerate(self.binlogs):
            if line_binlog.name != name:
                continue
            if is_within(offset, self.shared(number, 0), self.size(number)):
                numbers.append(number)
        return numbers

    def shared(self, number: int, start: int) -> int:
        """How many first bytes of a binlog are also in a binlog before it, from `start` on."""
        if number <= start or self.part_numbers(number)[0] != number:
            return 0
        return self.line_part(number).begin

    def is_repeated(self, number: int, first: int) -> Callable[[Transaction], bool]:
        """A test whether a transaction of this binlog is also in a part before, from `first` on."""
        if self.binlogs[number].line_part == self.binlogs[first].line_part:
            return lambda _: False
        shared = self.shared(number, first)
        before = self.repeated(number)

        def repeated(transaction: Transaction) -> bool:
            if transaction.gtid is None:
                return transaction.end <= shared
            return before is not None and before.has(number, transaction)

        return repeated

    def newest_own_us(self, number: int, *, is_brief: bool = False) -> int | None:
        """When the newest credible commit of a binlog was made that is in no part before.

        None if it has none. What a server after a fail-over repeats has other times there.
        `is_brief`: as a cache says it.
        """
        known = self.brief(number) if is_brief else self.known(number)
        if known.reached_us is None:
            return None
        is_first = self.binlogs[number].line_part == self.binlogs[0].line_part
        before = None if is_first else self.repeated(number)
        repeats = before is not None and before.touches(number, known.gtids_added)
        if not (repeats or self.shared(number, 0) or self.is_cut(number)):
            return known.reached_us
        is_repeated, known = self.is_repeated(number, 0), self.known(number)
        own = (
            transaction.commit_us
            for transaction in self.transactions(number)
            if known.is_credible(transaction) and not is_repeated(transaction)
        )
        return max(own, default=None)

    def repeated(self, number: int) -> ExecutedPart | None:
        """What the part of a binlog has in common with the binlogs before that part."""
        first = self.part_numbers(number)[0]
        if first not in self._repeated:
            self._repeated[first] = self._find_repeated(first)
        return self._repeated[first]

    def _find_repeated(self, first: int) -> ExecutedPart | None:
        line_part = self.binlogs[first].line_part
        cut = self.line.parts[line_part - 1].cut if line_part else None
        if cut is None or not first:
            return None
        if self.flavour == "mysql":
            gtids = parse(cut.gtid_set, "mysql")
            return MysqlPart(gtids) if gtids else None
        if shared := self.line_part(first).begin:
            return _UpTo(LinePosition(first, shared))
        before = self.known(first).gtids_before
        end = self.known(first - 1).gtids_after
        if (
            self.binlogs[first - 1].line_part == line_part - 1
            and cut.binlog == self.binlogs[first - 1].name
        ):
            end = parse(cut.gtid_set, "mariadb") if cut.gtid_set else None
        if not isinstance(end, MariadbGtidList) or end == before:
            return None
        upto = repeated_upto(
            self.searched(first, WithGtids(frozenset(map(gtid_text, end.gtids())))), end
        )
        return MariadbPart({domain: LinePosition(first, offset) for domain, offset in upto.items()})

    def breaks(
        self, begin: int, end: int, *, is_brief: bool = False
    ) -> Iterator[tuple[int, str, str]]:
        """The breaks just before the binlogs after `begin` up to `end`.

        Each as (number of the binlog, why, what is missing); "" if that is unknown. `is_brief`: as
        a cache says it, for those who apply nothing.
        """
        for number in range(begin + 1, end + 1):
            line_binlog = self.binlogs[number]
            if why := line_binlog.broken or self._broken(number, is_brief=is_brief):
                yield number, why, line_binlog.missing

    def extent(self, first: int) -> Iterator[Interval]:
        """The intervals of binlogs, from this one on, between which nothing is missing."""
        return extent(self.binlogs, self._broken, first)

    def _broken(self, number: int, *, is_brief: bool = False) -> str:
        """Why a binlog does not follow the one before, although their names do; "" if it does."""
        known = self.brief if is_brief else self.known
        before, after = known(number - 1), known(number)
        if self.part_numbers(number)[0] == number:
            return cut_is_missing(self.line_part(number - 1), before.name, before.size)
        gap = break_between(before, after)
        return gap.text if gap is not None else ""

    def is_unlogged_before(self, number: int) -> bool:
        """Whether the source left rows out just before this binlog."""
        line_part = self.binlogs[number].line_part
        if self.part_numbers(number)[0] == number:
            cut = self.line.parts[line_part - 1].cut if line_part else None
            return cut is not None and cut.unlogged
        one, other = self.brief(number - 1), self.brief(number)
        if one.rotated and other.started is None:  # a page of an older version
            other = self.known(number)
        return is_unlogged_between(rotated=one.rotated, started=other.started)

    # Its GTIDs, and where a GTID set ends

    def adds(self, number: int) -> Gtids:
        """The GTIDs that a binlog adds. Some of them may have been executed before it."""
        cut = self.line_part(number).cut
        if not self.is_cut(number):
            return self.brief(number).gtids_added
        if cut is not None and cut.gtid_set:
            return parse(cut.gtid_set, self.flavour)
        return self.adds_before(number, self.size(number))

    def adds_before(self, number: int, offset: int) -> Gtids:
        """The GTIDs that a binlog adds before an offset, found by reading it."""
        return self.searched(number, _Gathered(self.flavour), 0, offset)

    def gtids_at(self, number: int, offset: int) -> Gtids | None:
        """See `gtids_at`."""
        name = self.binlogs[number].name
        return gtids_at(self.history, self.lineage(number), name, offset)

    def gtids_from(self, number: int) -> Gtids | None:
        """All GTIDs executed before this binlog, with those that it and all later ones add.

        None if the binlog does not say what was executed before it.
        """
        before = self.known(number).gtids_before
        if before is None:
            return None
        everything = either(before, empty(self.flavour))
        while number < len(self):
            last = self._unbroken_to(number)
            if last > number and has_all(everything, self.brief(number).gtids_before):
                end = self.brief(last)
                everything = either(either(everything, end.gtids_before or before), end.gtids_added)
                number = last + 1
            else:
                everything = either(everything, self.adds(number))
                number += 1
        return everything

    def _unbroken_to(self, number: int) -> int:
        """The last whole binlog of the part to which GTIDs lead from this one without a break."""
        last = self.part_numbers(number)[-1] - (self.line_part(number).cut is not None)
        if last <= number:
            return number
        begin = self.binlogs[number].name
        end = min(
            self.number_of(self.history.unbroken_to(self.lineage(number), begin), number), last
        )
        is_whole = self.binlogs[end].name.number - begin.number == end - number
        with suppress(ArchiveError):
            if is_whole and self.brief(end).gtids_before is not None:
                return end
        return number

    def executed(self, gtids: Gtids) -> "RouteExecuted":
        """What a state has of this route, and where it continues.

        Raises NoStateEndError if the state does not tell where it ends.
        """
        if isinstance(gtids, GtidSet):
            return RouteExecuted(part=MysqlPart(gtids), start=self._first_covered(gtids))
        return _executed(state_end(self, gtids))

    def executed_at(
        self, gtids: MariadbGtidList, line_position: LinePosition
    ) -> "RouteExecuted | None":
        """The same if the state is that at this binlog and offset; None if it is not."""
        executed, added = self.gtids_at(*line_position), self.added_gtids()
        if not isinstance(executed, MariadbGtidList):
            return None
        domains = {domain for binlog in added if binlog.added for domain in binlog.added.domains()}
        end = state_end_at(gtids, executed, line_position, domains=domains)
        return _executed(end) if end is not None else None

    def _first_covered(self, have: GtidSet) -> int | None:
        """The last binlog before which nothing came that is not in `have`; None if none.

        It is in the first part that has more than that. In a later part a transaction may come
        again, with another commit time.
        """
        covered: int | None = None
        for numbers in self.by_part():
            cut = self.line_part(numbers[0]).cut
            last = last_where(numbers, lambda number: has_all(have, self.begins_after(number)))
            covered = covered if last is None else last
            is_past = cut is not None and self._covers_cut(numbers[-1], cut, have)
            if covered is not None and not is_past:
                return covered
        return covered

    def _covers_cut(self, number: int, cut: Parent, have: GtidSet) -> bool:
        """Whether a state has all before a cut, which is in this binlog if that is there.

        A cut without GTIDs does not say whether there were none: the bytes before it do.
        """
        if cut.gtid_set:
            return parse(cut.gtid_set, "mysql") <= have
        if cut.binlog != self.binlogs[number].name:
            return False
        return self.gtids_at(number, self.size(number)) == empty("mysql")

    def begins_after(self, number: int) -> Gtids | None:
        """The GTIDs executed before a binlog; None if it does not say them.

        If it cannot be read, those at the end of the one before: a search is not ended by damage to
        what it passes. Raises ArchiveError if that cannot be read either.
        """
        try:
            return self.known(number).gtids_before
        except ArchiveError:
            if number == self.part_numbers(number)[0]:
                raise
            return self.known(number - 1).gtids_after

    # As a `executed.GtidLine`

    def added_gtids(self) -> Sequence[AddedGtids]:
        """See `GtidLine`. From the same cache as `brief`; the entries that it lacks are read."""
        if not self._added:
            for numbers in self._line_parts.values():
                names = [self.binlogs[number].name for number in numbers]
                self.history.load(self.lineage(numbers[0]), names, is_brief=True)
            self._added = [self._added_by(number) for number in range(len(self))]
        return self._added

    def _added_by(self, number: int) -> AddedGtids:
        """Of what comes after the cut, nothing: that is a dead branch's."""
        facts = added_gtids(self.brief(number))
        added = self.adds(number) if self.is_cut(number) else None
        if not isinstance(added, MariadbGtidList):
            return facts
        return replace(facts, added=added, count=-1)  # unknown, so nothing is taken for sure

    def leads_up(self, number: int) -> bool:
        if not number or self.binlogs[number].broken:
            return False
        if self.part_numbers(number)[0] == number:
            return True
        one, other = self.added_gtids()[number - 1 : number + 1]
        return other.before is None or joined(one.before, one.added) in (None, other.before)

    def gtid_list(self, number: int) -> MariadbGtidList | None:
        gtids = self.history.gtid_list(self.lineage(number), self.binlogs[number].name)
        return gtids if isinstance(gtids, MariadbGtidList) else None

    def gtid_transactions(
        self, number: int, gtids: Collection[str], near: str = ""
    ) -> Iterator[Transaction]:
        before = self.repeated(number)
        begin = self.near(number, near) if near else 0
        for transaction in self.searched(number, WithGtids(frozenset(gtids)), begin):
            if before is None or not before.has(number, transaction):
                yield transaction

    def near(self, number: int, gtid: str) -> int:
        """Where the last block begins that begins with a lower number of the same server."""
        offset = 0
        for block in self.known(number).blocks:
            if block.first_offset is not None and precedes(block.first_gtid, gtid):
                offset = block.first_offset
        return offset

    def position_text(self, number: int, offset: int) -> str:
        if not offset:
            return f"before {self.binlogs[number].name}"
        return f"{self.position(number, min(offset, self.size(number)))}"


@dataclass(frozen=True, slots=True)
class _UpTo:
    """Everything up to a position, of all domains."""

    position: LinePosition

    def has(self, number: int, transaction: Transaction) -> bool:
        return (number, transaction.end) <= self.position

    def touches(self, number: int, added: Gtids) -> bool:
        return bool(added) and (number, 0) < self.position


@dataclass(frozen=True, slots=True)
class _Gathered:
    """Finds all GTIDs."""

    flavour: Flavour

    def __call__(self, transactions: Iterable[Transaction]) -> Gtids:
        return gathered(
            (transaction.gtid for transaction in transactions if transaction.gtid), self.flavour
        )


def gtids_at(history: Snapshot, lineage: str, name: BinlogName, offset: int) -> Gtids | None:
    """All GTIDs executed before an offset of a binlog; None if it does not say what came before.

    Of MariaDB a state, with the newest of each domain.
    """
    before = history.known(lineage, name).gtids_before
    if before is None:
        return None
    if isinstance(before, GtidSet):
        return joined(before, history.searched(lineage, name, 0, offset, _Gathered("mysql")))
    added = history.searched(lineage, name, 0, offset, _Gathered("mariadb"))
    return joined(history.gtid_list(lineage, name), added)


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteExecuted:
    """What a state has of a route: `part`, and the binlog where it continues.

    `start` is None if something that comes before the route was not executed. `state_end` is of
    MariaDB.
    """

    part: ExecutedPart
    start: int | None
    state_end: StateEnd | None = None


def _executed(state_end: StateEnd) -> RouteExecuted:
    return RouteExecuted(part=state_end.part, start=state_end.start, state_end=state_end)


def _name(line_binlog: LineBinlog) -> BinlogName:
    return line_binlog.name


def has_all(gtids: Gtids | None, others: Gtids | None) -> bool:
    """Whether the first have all of the others; of MariaDB's, the last of each server count."""
    if gtids is None or others is None or type(gtids) is not type(others):
        return False
    return others <= gtids


def last_where(numbers: range, is_so: Callable[[int], bool]) -> int | None:
    """The last of a part's binlogs of which this is true; it is so up to one, and none after."""
    past = bisect_left(numbers, x=True, key=lambda number: not is_so(number))
    return numbers[past - 1] if past else None


def history_flavour(history: Snapshot, lineage: str | None) -> Flavour:
    """The flavour of the history that ends in this lineage; None: in the current one.

    Raises RecoveryError if the bucket has no lineage.
    """
    tip = last_lineage(history, lineage)
    flavours = {known.id: known.flavour for known in history.lineages}
    return flavours.get(tip, history.lineages[-1].flavour)


def last_lineage(history: Snapshot, lineage: str | None) -> str:
    """The id of the lineage in which a history ends: this one, or the current one.

    Raises RecoveryError if the bucket has no lineage.
    """
    if not history.lineages:
        raise RecoveryError("there is no history in the bucket", hint="see `binlog2s3 list`")
    return lineage or history.current


def refuse_unknown(lineage: str, history: Snapshot) -> None:
    """Raise RecoveryError if the bucket has no such lineage."""
    ids = [known.id for known in history.lineages]
    if lineage not in ids:
        raise RecoveryError(f"there is no lineage {lineage}", hint=f"there are: {', '.join(ids)}")
