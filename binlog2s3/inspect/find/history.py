"""The history that is searched: its binlogs, and which transactions an earlier lineage already has.

Place in the flow: between `scan` and `recover.route`, which decides what follows what.

Law: a transaction counts as a duplicate only if the earlier lineage's copy can be found.
"""

from collections.abc import Callable, Iterable

from binlog2s3.archive.ancestry import Leg
from binlog2s3.archive.blocks import Found
from binlog2s3.archive.known import Known
from binlog2s3.binlog.executed import Executed, executed
from binlog2s3.binlog.gtid import Flavour, parse
from binlog2s3.binlog.names import BinlogName
from binlog2s3.binlog.scanner import Transaction
from binlog2s3.errors import ArchiveError
from binlog2s3.inspect.find.match import WantedGtids
from binlog2s3.inspect.find.one_binlog import Span, spans_of
from binlog2s3.recover.route import Route
from binlog2s3.recover.snapshot import Survey

_Held = tuple[Executed, Executed | None]
"""All GTIDs executed up to the cut of a leg, and those executed before its first binlog."""


class SearchedHistory:
    """The binlogs of one history, and which of their transactions an earlier leg already has."""

    def __init__(
        self,
        route: Route,
        numbers: list[int],
        named: WantedGtids | None,
        survey: Survey,
        *,
        alone: bool,
    ) -> None:
        self.route = route
        self.numbers = numbers
        self.named = named
        self.alone = alone
        self._survey = survey
        self._helds: dict[int, _Held | None] = {}

    def leg(self, number: int) -> Leg:
        """The leg that a stretch belongs to."""
        return self.route.leg(number)

    def known(self, number: int) -> Known:
        """What is known of a stretch's binlog."""
        return self.route.known(number)

    def found(self, number: int) -> Found:
        """A stretch's binlog with what is needed to read it."""
        self.route.known(number)
        return self._survey.find(self.leg(number).lineage.id, self.route.stretches[number].name)

    def size(self, number: int) -> int:
        """The bytes of a stretch's binlog that belong to this history, by the listing."""
        name = self.route.stretches[number].name
        leg = self.leg(number)
        size = self._survey.size(leg.lineage.id, name)
        return size if self.alone else leg.end_of(name, size)

    def end(self, number: int, known: Known) -> int:
        """The bytes of a binlog that belong to this history, by its entry or its bytes."""
        return known.size if self.alone else self.leg(number).end_of(known.name, known.size)

    def spans(self, number: int) -> list[Span]:
        """The spans of a stretch that have to be searched."""
        found = self.found(number)
        return spans_of(found, min(self.end(number, found.known), found.known.transaction_end))

    def load(self, numbers: Iterable[int]) -> None:
        """Read the entries of these stretches together."""
        wanted: dict[str, list[BinlogName]] = {}
        for number in numbers:
            names = wanted.setdefault(self.leg(number).lineage.id, [])
            names.append(self.route.stretches[number].name)
        for lineage, names in wanted.items():
            self._survey.load(lineage, names)

    def duplicates(self, number: int) -> Callable[[Transaction], bool]:
        """A test whether an earlier leg already has a transaction of this stretch."""
        leg = self.route.stretches[number].leg
        if self.alone or leg == 0:
            return lambda _: False
        before = list(filter(None, map(self._held, range(leg))))
        shared = self.leg(number).begin if self._is_shared(number) else 0

        def double(one: Transaction) -> bool:
            if one.gtid is None:
                return one.end <= shared
            return any(
                upto.has(one.gtid) and not (since is not None and since.has(one.gtid))
                for upto, since in before
            )

        return double

    def _is_shared(self, number: int) -> bool:
        """Whether it is the first of its leg, and the leg before has a binlog of the same name."""
        if number == 0:
            return False
        before, one = self.route.stretches[number - 1 : number + 1]
        return before.leg != one.leg and before.name == one.name

    def _held(self, leg: int) -> "_Held | None":
        """The result of `_find_held`, cached."""
        if leg not in self._helds:
            self._helds[leg] = self._find_held(leg)
        return self._helds[leg]

    def _find_held(self, leg: int) -> "_Held | None":
        """GTIDs of a leg: all up to its cut, and those executed before its first binlog.

        None if the leg has gaps: a later leg may have what is missing in it.
        """
        cut = self.route.line.legs[leg].cut
        numbers = [n for n, one in enumerate(self.route.stretches) if one.leg == leg]
        if cut is None or not cut.gtid_set or not numbers:
            return None
        if any(self.route.stretches[n].broken for n in numbers[1:]):
            return None
        flavour: Flavour = self.route.line.legs[leg].lineage.flavour
        try:
            before = self.known(numbers[0]).gtids_before
            upto = executed(parse(cut.gtid_set, flavour))
        except (ArchiveError, ValueError):
            return None
        return upto, executed(before) if before is not None else None
