"""Whether what a target has executed of a history is a beginning of it.

Pure but for what the route asks the history.

Law: what the history has before a transaction is never applied after it, unless the operator named
exactly that. GTIDs of which only the beginning of a binlog tells have no position, and are no
holes.
"""

from collections.abc import Sequence

from binlog2s3.binlog.executed import ExactGtids, ExecutedPart, LinePosition
from binlog2s3.binlog.gtid import GtidSet
from binlog2s3.recover.model import PlanPiece
from binlog2s3.recover.route import Route


class Holes:
    """What the target lacks although it has something that comes later: `later` is the first.

    `pieces` hold all that is applied of [`start`, `stop`). Only binlogs that hold both something
    that is applied and something that the target has are read, from the first that is applied on;
    of MariaDB also those that are in a hole as a whole.
    """

    def __init__(
        self,
        route: Route,
        have: ExecutedPart,
        pieces: Sequence[PlanPiece],
        start: LinePosition,
        stop: LinePosition,
    ) -> None:
        self._route = route
        self._have = have
        self._first = start.number
        # what is applied, after which nothing that the target has was found yet
        self._waiting: list[tuple[int, PlanPiece]] = []
        self._one_by_one: list[str] = []
        self.gtids = ExactGtids()
        self.later = ""
        by_binlog = {piece.binlog_id: piece for piece in pieces}
        for number in range(start.number, stop.number + 1):
            begin = start.offset if number == start.number else 0
            end = stop.offset if number == stop.number else route.size(number)
            binlog = (route.lineage(number), route.binlogs[number].name)
            self._look(number, begin, end, by_binlog.get(binlog))

    def _look(self, number: int, begin: int, end: int, piece: PlanPiece | None) -> None:
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
        for transaction in self._route.transactions(number, begin, end):
            if transaction.gtid is None or is_repeated(transaction):
                continue
            if self._have.has(number, transaction):
                self._settle(transaction.gtid)
                if piece is None:
                    return
            elif piece is not None and piece.applies(transaction):
                self._one_by_one.append(transaction.gtid)

    def _settle(self, later: str) -> None:
        """What was waiting is a hole: the target has this one, which comes after it."""
        if not (self._waiting or self._one_by_one):
            return
        for number, piece in self._waiting:
            self.gtids |= self._gtids(number, piece)
        self.gtids |= ExactGtids.of(self._one_by_one, self._route.flavour)
        self.later = self.later or later
        self._waiting, self._one_by_one = [], []

    def _gtids(self, number: int, piece: PlanPiece) -> ExactGtids:
        if isinstance(piece.gtids, GtidSet):
            return ExactGtids(piece.gtids)
        inside = self._route.transactions(number, piece.begin, piece.end)
        taken = (
            transaction.gtid
            for transaction in inside
            if transaction.gtid is not None and piece.applies(transaction)
        )
        return ExactGtids.of(taken, self._route.flavour)
