"""What the bucket has besides the history that a recovery follows: other lineages, dead branches.

Pure but for what it asks the history.

Law: nothing newer than the history is left out without a message, neither in another lineage nor
after the point where the history left a lineage.
"""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import pairwise

from binlog2s3.archive.facts import Facts
from binlog2s3.archive.history import LinePart, is_within
from binlog2s3.binlog.gtid import Gtids, either
from binlog2s3.binlog.names import BinlogName
from binlog2s3.binlog.scanner import Transaction
from binlog2s3.errors import ArchiveError, Binlog2s3Error, VersionConflictError
from binlog2s3.formatting import iso_text
from binlog2s3.recover.route import Route

_ENDLESS = 1 << 63


class Branches:
    """The lineages, or parts of lineages, that are not on a route."""

    def __init__(self, route: Route) -> None:
        self._route = route
        self._history = route.history
        self._line_parts = {line_part.lineage.id: line_part for line_part in route.line.parts}

    def lineages(self) -> list[str]:
        """The lineages that are not on the route at all, oldest first."""
        return [
            lineage.id for lineage in self._history.lineages if lineage.id not in self._line_parts
        ]

    def names(self) -> Iterator[BinlogName]:
        """The names of the binlogs of which a lineage may have bytes outside of the route."""
        for lineage in self._left():
            for name in self._history.names(lineage):
                if self._end_on_route(lineage, name, _ENDLESS) < _ENDLESS:
                    yield name

    def with_position(self, name: BinlogName, offset: int, *, is_here: bool) -> list[str]:
        """The lineages that have this offset of a binlog of this name outside of the route.

        `is_here`: the route has it, too. Then those count as well that the archive does not know
        the end of: the server may have written it there, and died before it was archived.
        """
        lineages = []
        for lineage in self._left():
            names = self._history.names(lineage)
            if name not in names:
                continue
            known = self._known(lineage, name)
            if known is None:
                continue
            begin = self._end_on_route(lineage, name, known.size)
            is_lost = is_here and name == names[-1] and not known.ended and offset > known.size
            if is_lost or is_within(offset, begin, known.size):
                lineages.append(lineage)
        return lineages

    def _left(self) -> Iterator[str]:
        """The lineages that are not on the route, or only up to a cut, oldest first."""
        for lineage in self._history.lineages:
            line_part = self._line_parts.get(lineage.id)
            if line_part is None or line_part.cut is not None:
                yield lineage.id

    def gtids(self) -> Iterator[tuple[str, Gtids]]:
        """All GTIDs of each lineage that has bytes outside of the route."""
        for lineage, last in self.outside():
            if last.gtids_before is not None:
                yield lineage, either(last.gtids_before, last.gtids_added)

    def outside(self) -> Iterator[tuple[str, Facts]]:
        """The lineages that have bytes outside of the route, each with its last binlog.

        Not those of which nothing shows what their binlogs are: they prove nothing.
        """
        for lineage in self._history.lineages:
            names = reversed(self._history.names(lineage.id))
            newest_first = (self._known(lineage.id, name) for name in names)
            last = next((facts for facts in newest_first if facts is not None), None)
            if last is None:
                continue
            if self._end_on_route(lineage.id, last.name, last.size) != last.size:
                yield lineage.id, last

    def _known(self, lineage: str, name: BinlogName) -> Facts | None:
        """What is known of a binlog; None if it is not on the route and its versions differ."""
        try:
            return self._history.known(lineage, name)
        except VersionConflictError:
            line_part = self._line_parts.get(lineage)
            if line_part is not None and line_part.holds(name):
                raise
            return None

    def begun_before(self, at_us: int) -> str:
        """The last lineage not on the route that began at or before this time; "" if none did."""
        begun: list[tuple[int, str]] = []
        for lineage in self.lineages():
            for name in self._history.names(lineage)[:1]:
                with suppress(ArchiveError):
                    begins_us = self._history.known(lineage, name).first_us
                    begun += [(begins_us, lineage)] if begins_us <= at_us else []
        return max(begun)[1] if begun else ""

    def newer(self, warnings: list[str]) -> Iterator[tuple[str, str]]:
        """The lineages with transactions that are left out and newer than all of this history.

        Each with a text that says so. `warnings` gets those for which it cannot be found out.
        """
        newest = self._newest_on_route()
        for lineage in self._history.lineages:
            line_part = self._line_parts.get(lineage.id)
            try:
                later = self._newest_outside(lineage.id, newest)
            except Binlog2s3Error as error:
                warnings.append(f"lineage {lineage.id} may have newer transactions: {error}")
                continue
            if later > newest:
                yield (
                    lineage.id,
                    (
                        f"lineage {lineage.id}, which is left out{_from(line_part)}, has "
                        f"transactions up to {iso_text(later)}: later than all in lineage "
                        f"{self._route.tip.id}"
                    ),
                )

    def forgotten(self, first: int, last: int) -> Iterator[str]:
        """What the server was left without between two binlogs of the route, in words.

        Put back to a snapshot, it has nothing of that. After a crash only the end of its binlog may
        be lost: its tables have the rows then, and what it wrote later may build on them.
        """
        crossed = {self._route.line_part(number).lineage.id for number in range(first, last + 1)}
        for line_part, following in pairwise(self._route.line.parts):
            id_, server = line_part.lineage.id, line_part.lineage.server_uuid
            is_crossed = {id_, following.lineage.id} <= crossed
            if not is_crossed or following.lineage.server_uuid != server:
                continue
            if self._newest_outside(id_, 0):
                yield (
                    f"the source continued without the transactions that lineage {id_} has"
                    f"{_from(line_part)}: this history does not have them. If the source was not "
                    "put back but crashed (sync_binlog not 1), it may have their rows all the same"
                )

    def _end_on_route(self, lineage: str, name: BinlogName, size: int) -> int:
        """How many of a binlog's first `size` bytes are on the route; -1 if it is not on it."""
        line_part = self._line_parts.get(lineage)
        return (
            line_part.end_of(name, size) if line_part is not None and line_part.holds(name) else -1
        )

    def _newest_on_route(self) -> int:
        """When the newest transaction of the route was committed; 0 if there is none."""
        route = self._route
        for number in range(len(route) - 1, -1, -1):
            known = route.known(number)
            newest_us = known.reached_us or 0
            if newest_us and route.is_cut(number):
                begin = known.boundary(route.size(number) - 1)
                newest_us = _newest_of(route.transactions(number, begin), known)
            if newest_us:
                return newest_us
        return 0

    def _newest_outside(self, lineage: str, newest: int) -> int:
        """When the newest transaction of a lineage was committed that is not on the route.

        0 if there is none. If it is not later than `newest`, it may be of one that is on the route.
        """
        for name in reversed(self._history.names(lineage)):
            known = self._history.known(lineage, name)
            ours = max(0, self._end_on_route(lineage, name, known.size))
            if ours == known.size:
                return 0
            newest_us = known.reached_us or 0
            if ours and newest_us > newest:  # it may be in the part that is on the route
                begin = max(ours, known.boundary(known.size - 1))
                newest_us = _newest_of(self._history.transactions(lineage, name, begin), known)
            if newest_us:
                return newest_us
        return 0


def _from(line_part: LinePart | None) -> str:
    if line_part is None or line_part.cut is None:
        return ""
    return f" from {line_part.cut.binlog}:{line_part.cut.offset} on" if line_part.cut.binlog else ""


def _newest_of(transactions: Iterable[Transaction], known: Facts) -> int:
    return max(
        (transaction.commit_us for transaction in transactions if known.is_credible(transaction)),
        default=0,
    )
