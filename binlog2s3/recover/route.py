"""The binlogs of a line of lineages, one behind the other, and what is broken between them.

Place in the flow: `plan` decides along it; `archive.history` says which lineages, `model.History`
what the bucket has of them. Pure but for what it asks the history.

Law: a stretch follows the one before it without a break only if names, GTIDs and sizes say so.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from binlog2s3.archive.documents import Parent
from binlog2s3.archive.history import Leg, Line, line_of
from binlog2s3.archive.known import Known
from binlog2s3.binlog.executed import Executed
from binlog2s3.binlog.gtid import Gtids, either, empty, joined, parse
from binlog2s3.binlog.names import BinlogName
from binlog2s3.binlog.scanner import Transaction
from binlog2s3.recover.model import History, Place

_MAGIC = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """One binlog of the line; `leg` is the number of the leg it is of.

    `broken`: why what comes before it does not lead up to it; "" where it does. `missing`: what is
    known to lie between; "" where nobody knows.
    """

    leg: int
    name: BinlogName
    broken: str = ""
    missing: str = ""


class Route:
    """All binlogs of a line, numbered from 0; there is at least one, or `stretches` is empty."""

    def __init__(self, history: History, tip: str) -> None:
        self.history = history
        self.line: Line = line_of(history.lineages, tip)
        self.stretches = tuple(_stretches(self.line, history))
        self._known: dict[int, Known] = {}
        self._legs: dict[int, range] = {}
        for number, stretch in enumerate(self.stretches):
            begun = self._legs.get(stretch.leg, range(number, number))
            self._legs[stretch.leg] = range(begun.start, number + 1)

    def __len__(self) -> int:
        return len(self.stretches)

    def leg(self, number: int) -> Leg:
        """The leg that a stretch is of."""
        return self.line.legs[self.stretches[number].leg]

    def place(self, number: int, offset: int) -> Place:
        """A place in a stretch."""
        return Place(
            lineage=self.leg(number).lineage.id,
            binlog=self.stretches[number].name,
            offset=offset,
        )

    def load(self, begin: int, end: int) -> None:
        """Look at stretches [begin, end) together."""
        wanted: dict[str, list[BinlogName]] = {}
        for number in range(begin, end):
            if number not in self._known:
                found = wanted.setdefault(self.leg(number).lineage.id, [])
                found.append(self.stretches[number].name)
        for lineage, names in wanted.items():
            self.history.load(lineage, names)

    def known(self, number: int) -> Known:
        """What is known of a stretch's binlog."""
        if number not in self._known:
            stretch = self.stretches[number]
            self._known[number] = self.history.known(self.leg(number).lineage.id, stretch.name)
        return self._known[number]

    def brief(self, number: int) -> Known:
        """The same from a cache, perhaps without blocks: to look at much, not to apply it."""
        if number in self._known:
            return self._known[number]
        return self.history.brief(self.leg(number).lineage.id, self.stretches[number].name)

    def later_hint(self, number: int, at_us: int) -> int:
        """How far to look for a commit later than this: the first stretch from this one on.

        That is what a cache says, and without one the leg's last: each is to be looked at.
        """
        numbers = self._legs[self.stretches[number].leg]
        name = self.history.first_later(
            self.leg(number).lineage.id, at_us, self.stretches[number].name
        )
        return min(numbers[-1], self._at(numbers, name)) if name is not None else numbers[-1]

    def not_later(self, begin: int, at_us: int) -> Iterator[int]:
        """The stretches from this one on that may have a commit until then, in order."""
        for numbers in self._legs.values():
            if numbers[-1] < begin:
                continue
            first = max(begin, numbers[0])
            lineage = self.leg(first).lineage.id
            for name in self.history.not_later(lineage, at_us, self.stretches[first].name):
                number = self._at(numbers, name)
                if number > numbers[-1]:
                    break
                if self.stretches[number].name == name:
                    yield number

    def _at(self, numbers: range, name: BinlogName) -> int:
        """Where this binlog is in a leg, or would be."""
        return bisect_left(self.stretches, name, numbers[0], numbers[-1] + 1, key=_name)

    def gtids_from(self, number: int, added: Callable[[int], Gtids]) -> Gtids | None:
        """All GTIDs that were executed before this stretch, and that it and the others bring.

        `added`: those of one stretch. None if it does not say what came before it.
        """
        before = self.known(number).gtids_before
        if before is None:
            return None
        everything = either(before, empty(self.line.legs[-1].lineage.flavour))
        while number < len(self):
            last = self._unbroken_to(number)
            if last > number and _covers(everything, self.brief(number).gtids_before):
                end = self.brief(last)
                everything = either(either(everything, end.gtids_before or before), end.gtids_added)
                number = last + 1
            else:
                everything = either(everything, added(number))
                number += 1
        return everything

    def _unbroken_to(self, number: int) -> int:
        """The last stretch of the leg, none of it cut off, to which GTIDs lead from this one."""
        numbers = self._legs[self.stretches[number].leg]
        last = numbers[-1] - (self.leg(number).cut is not None)
        if last <= number:
            return number
        name = self.history.unbroken_to(self.leg(number).lineage.id, self.stretches[number].name)
        found = min(self._at(numbers, name), last)
        is_whole = self.stretches[found].name.number - self.stretches[number].name.number
        if is_whole != found - number or self.brief(found).gtids_before is None:
            return number
        return found

    def size(self, number: int) -> int:
        """How many of the binlog's first bytes belong to the line."""
        return self.leg(number).end_of(self.stretches[number].name, self.known(number).size)

    def end(self, number: int) -> int:
        """Behind the stretch's last whole transaction, as far as that is known."""
        return min(self.size(number), self.known(number).transaction_end)

    def is_cut(self, number: int) -> bool:
        """Whether the binlog goes on behind what belongs to the line."""
        cut = self.leg(number).cut
        if cut is None or cut.binlog != str(self.stretches[number].name):
            return False
        return self.size(number) < self.known(number).size

    def begin(self, number: int) -> int:
        """Where the stretch's first transaction begins; its end where it has none."""
        for block in self.known(number).blocks:
            if block.first_offset is not None:
                return min(block.first_offset, self.end(number))
        return max(self.end(number), _MAGIC)

    def transactions(
        self, number: int, begin: int = 0, end: int | None = None
    ) -> Iterator[Transaction]:
        """Those of a stretch that lie in [begin, end)."""
        upto = self.size(number) if end is None else min(end, self.size(number))
        name = self.stretches[number].name
        for found in self.history.transactions(self.leg(number).lineage.id, name, begin, upto):
            if found.end <= upto:
                yield found

    def first_covered(self, executed: Executed) -> int | None:
        """The last stretch before which nothing else came than what was executed; None if none.

        Of the first leg that has more than that, so that no transaction is met in a later one
        first, where it would have another time.
        """
        found: int | None = None
        for numbers in self.by_leg():
            cut = self.leg(numbers[0]).cut
            past = bisect_left(numbers, x=True, key=lambda n: not self._is_covered(n, executed))
            if past:
                found = numbers[past - 1]
            if found is None or (cut is not None and self._covers_cut(cut, executed)):
                continue
            return found
        return found

    def by_leg(self) -> Sequence[range]:
        """The numbers of the stretches, leg by leg."""
        return list(self._legs.values())

    def _covers_cut(self, cut: Parent, executed: Executed) -> bool:
        flavour = self.line.legs[-1].lineage.flavour
        return bool(cut.gtid_set) and executed.covers(parse(cut.gtid_set, flavour))

    def _is_covered(self, number: int, executed: Executed) -> bool:
        before = self.known(number).gtids_before
        return before is not None and executed.covers(before)

    def numbers_of(self, name: BinlogName, offset: int) -> list[int]:
        """The stretches in which this place of a binlog of this name lies."""
        found = []
        for number, stretch in enumerate(self.stretches):
            if stretch.name != name or not _MAGIC <= offset <= self.size(number):
                continue
            shared = self.leg(number).begin if self._is_first_of_leg(number) else 0
            if offset > shared or number == 0:
                found.append(number)
        return found

    def _is_first_of_leg(self, number: int) -> bool:
        return number == 0 or self.stretches[number - 1].leg != self.stretches[number].leg

    def shared(self, number: int, start: int) -> int:
        """So many first bytes of a stretch are also in one before it, from `start` on."""
        if number <= start or not self._is_first_of_leg(number):
            return 0
        return self.leg(number).begin

    def breaks(self, begin: int, end: int) -> Iterator[tuple[int, str, str]]:
        """What is broken just before the stretches behind `begin` up to `end`: number, why, what.

        What is missing is "" where that is not known.
        """
        for number in range(begin + 1, end + 1):
            stretch = self.stretches[number]
            if stretch.broken:
                yield number, stretch.broken, stretch.missing
            elif why := self._contradiction(number - 1, number):
                yield number, why, ""

    def _contradiction(self, one: int, other: int) -> str:
        """Why a stretch does not lead up to the next one, though their names do."""
        before, after = self.known(one), self.known(other)
        if not self._is_first_of_leg(other):
            known, then = after.gtids_before, joined(before.gtids_before, before.gtids_added)
            if known is not None and then is not None and known != then:
                return (
                    f"{after.name} begins after {known or 'no GTIDs'}, "
                    f"{before.name} ends with {then or 'none'}"
                )
            proved = known is not None and then is not None and not before.anonymous and bool(then)
            if not before.ended and not proved:
                return f"of {before.name} only the first {before.size} bytes are there"
            return ""
        cut = self.leg(one).cut
        if cut is not None and (cut.binlog != str(before.name) or before.size < cut.offset):
            return f"{self.leg(one).lineage.id} is not there up to {cut.binlog}:{cut.offset}"
        return ""


def _name(stretch: Stretch) -> BinlogName:
    return stretch.name


def _covers(gtids: Gtids, others: Gtids | None) -> bool:
    return others is not None and type(gtids) is type(others) and others <= gtids


def _stretches(line: Line, history: History) -> Iterator[Stretch]:
    begun, gone = False, ""
    for number, leg in enumerate(line.legs):
        names = [name for name in history.names(leg.lineage.id) if leg.holds(name)]
        first = leg.lineage.first_binlog
        why, missing = gone, ""
        if begun and leg.missing:
            why = f"the source had purged what comes before {first} of {leg.lineage.id}"
            missing = leg.missing
        elif begun and names[:1] != [first]:
            why = f"{first} of {leg.lineage.id} is not there"
        yield from _numbered(number, names, why if begun else "", missing)
        begun = begun or bool(names)
        gone = "" if names else f"nothing of {leg.lineage.id} is there"


def _numbered(leg: int, names: Sequence[BinlogName], why: str, missing: str) -> Iterator[Stretch]:
    for name in names[:1]:
        yield Stretch(leg=leg, name=name, broken=why, missing=missing)
    for one, other in pairwise(names):
        broken = "" if other == one.next() else f"binlogs between {one} and {other} are not there"
        yield Stretch(leg=leg, name=other, broken=broken)
