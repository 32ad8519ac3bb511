"""Whether what a target has executed of a history is a beginning of it.

Pure but for what the route asks the history.

Law: what the history has before a transaction is never applied after it, unless the operator named
exactly that. GTIDs of which only the beginning of a binlog tells have no place, and are no holes.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from binlog2s3.binlog.gtid import (
    Gtids,
    GtidSet,
    either,
)
from binlog2s3.binlog.place import (
    ExactGtids,
    ExecutedPart,
    Spot,
)
from binlog2s3.errors import RecoveryError
from binlog2s3.formatting import gtids_text
from binlog2s3.recover.model import Base, PlanPiece
from binlog2s3.recover.route import Route


@dataclass(frozen=True, slots=True)
class Holes:
    """What the target lacks although it has something that comes later: `later` is the first."""

    gtids: ExactGtids = field(default_factory=ExactGtids)
    later: str = ""


def holes(
    route: Route,
    have: ExecutedPart,
    pieces: Sequence[PlanPiece],
    start: Spot,
    stop: Spot,
) -> Holes:
    """What these pieces would apply after something later that the target has already.

    They hold all that is applied of [`start`, `stop`). Only binlogs that hold both something that
    is applied and something that the target has are read, from the first that is applied on; of
    MariaDB also those that are in a hole as a whole.
    """
    walk = _Walk(route, have, start)
    there = {piece.binlog_id: piece for piece in pieces}
    for number in range(start.number, stop.number + 1):
        begin = start.offset if number == start.number else 0
        end = stop.offset if number == stop.number else route.size(number)
        place = (route.lineage(number), route.binlogs[number].name)
        walk.look(number, begin, end, there.get(place))
    return Holes(walk.found, walk.later)


class _Walk:
    """Goes along the route. `waiting`: what is applied, after which nothing was found there yet."""

    def __init__(self, route: Route, have: ExecutedPart, start: Spot) -> None:
        self._route = route
        self._have = have
        self._first = start.number
        self._waiting: list[tuple[int, PlanPiece]] = []
        self._one_by_one: list[str] = []
        self.found = ExactGtids()
        self.later = ""

    def look(self, number: int, begin: int, end: int, piece: PlanPiece | None) -> None:
        """Look at the next binlog, of which `piece` is applied."""
        known = self._route.known(number)
        has_some = self._have.touches(number, known.gtids_added)
        if has_some and (self._waiting or self._one_by_one):
            self._read(number, begin, piece.begin if piece is not None else end, None)
        if piece is None:
            return
        if piece.left_out and has_some:
            self._read(number, piece.begin, end, piece)
            return
        self._waiting.append((number, piece))
        if has_some and piece.end < end:
            self._read(number, piece.end, end, None)

    def _read(self, number: int, begin: int, end: int, piece: PlanPiece | None) -> None:
        """See what the target has there; without a piece, only whether it has anything."""
        is_repeated = self._route.is_repeated(number, self._first)
        for one in self._route.transactions(number, begin, end):
            if one.gtid is None or is_repeated(one):
                continue
            if self._have.has(number, one):
                self._settle(one.gtid)
                if piece is None:
                    return
            elif piece is not None and piece.applies(one):
                self._one_by_one.append(one.gtid)

    def _settle(self, later: str) -> None:
        """What was waiting is a hole: the target has this one, which comes after it."""
        if not (self._waiting or self._one_by_one):
            return
        for number, piece in self._waiting:
            self.found |= self._gtids(number, piece)
        self.found |= ExactGtids.of(self._one_by_one, self._route.flavour)
        self.later = self.later or later
        self._waiting, self._one_by_one = [], []

    def _gtids(self, number: int, piece: PlanPiece) -> ExactGtids:
        if isinstance(piece.gtids, GtidSet):
            return ExactGtids(piece.gtids)
        inside = self._route.transactions(number, piece.begin, piece.end)
        taken = (one.gtid for one in inside if one.gtid is not None and piece.applies(one))
        return ExactGtids.of(taken, self._route.flavour)


def executed_with(have: Gtids | None, base: Base, reset: str) -> Gtids | None:
    """What a target has executed, together with what its base backup has.

    If it has none of the backup's GTIDs, they do not tell what was restored: the backup does. If it
    has some, it must have all. Raises RecoveryError. `reset`: the target's statement that removes
    its GTIDs, for the hint.
    """
    if have is None or base.gtids is None:
        return base.gtids if have is None else have
    if isinstance(have, GtidSet) and isinstance(base.gtids, GtidSet):
        missing, part = base.gtids - have, base.gtids & have
        if missing and not part and base.sets_gtids:
            raise RecoveryError(
                f"the target was not restored from what is named: loading {base.said_by} sets its "
                f"GTIDs, {gtids_text(base.gtids)}, and the target has none of them",
                hint="name the base backup that was restored, or restore this one. If this one was "
                f"restored without that statement: {reset}; SET GLOBAL gtid_purged = '...' with "
                "them, at the target",
            )
        if missing and part:
            more = have - base.gtids
            besides = f", and has {gtids_text(more)} besides" if more else ""
            raise RecoveryError(
                f"the target was not restored from what is named: {base.said_by} has "
                f"{gtids_text(missing)}, the target has only {gtids_text(part)} of it{besides}",
                hint="name the base backup that was restored, or restore this one; without such an "
                "option the target's own GTIDs say where it continues. If this one was restored by "
                f"a tool that does not set all of its GTIDs: {reset}; SET GLOBAL gtid_purged = "
                "'...' with them, at the target",
            )
    return either(have, base.gtids) if type(have) is type(base.gtids) else have
