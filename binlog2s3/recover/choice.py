"""Which transactions of one binlog are applied, and the byte ranges that hold them. Pure.

Place in the flow: `plan` shows each transaction of a stretch to a `Choice`, in order, and takes the
piece at the end.
"""

from binlog2s3.binlog.executed import Gathering
from binlog2s3.binlog.gtid import Flavour
from binlog2s3.binlog.scanner import Transaction
from binlog2s3.recover.model import Piece, Place


class Choice:
    """Collects what is taken of a stretch; what lies between two that are taken is left out.

    Only if something was left out between: events between transactions go along.
    """

    def __init__(self, flavour: Flavour) -> None:
        self.transactions = 0
        self._gtids = Gathering(flavour)
        self._begin = self._end = -1
        self._greatest_us: int | None = None
        self._left_out: list[tuple[int, int]] = []
        self._left_from: int | None = None

    def take(self, one: Transaction) -> None:
        """Apply it."""
        if self._begin < 0:
            self._begin = one.begin
        elif self._left_from is not None:
            self._left_out.append((self._left_from, one.begin))
        self._left_from = None
        self._end = one.end
        self.transactions += 1
        if one.gtid is not None:
            self._gtids.add(one.gtid)
        if self._greatest_us is None or one.commit_us > self._greatest_us:
            self._greatest_us = one.commit_us

    def leave(self, one: Transaction) -> None:
        """Do not apply it."""
        if self._left_from is None and self._begin >= 0:
            self._left_from = one.begin

    def piece(self, place: Place) -> Piece | None:
        """What was taken; None if nothing was."""
        if not self.transactions:
            return None
        return Piece(
            lineage=place.lineage,
            binlog=place.binlog,
            begin=self._begin,
            end=self._end,
            left_out=tuple(self._left_out),
            transactions=self.transactions,
            gtids=self._gtids.build(),
            greatest_commit_us=self._greatest_us,
        )
