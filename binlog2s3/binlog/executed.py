"""GTIDs that were executed, compared and joined without regard to their order. Pure.

Errors say with it what is missing. Whether a transaction was executed is another question:
`binlog.place` answers it.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

from binlog2s3.binlog.gtid import (
    Flavour,
    Gtids,
    GtidSet,
    GtidSetBuilder,
    MariadbGtidList,
    mariadb_gtid,
    mysql_gtid,
)


@dataclass(frozen=True, slots=True)
class Executed:
    """What a server of either flavour says that it has executed."""

    gtids: Gtids

    def beyond(self, others: Gtids) -> str:
        """The GTIDs that are not among the others, as text; "" if there are none.

        Of MariaDB, those with a greater number than the others have of the same domain and server.
        """
        mine = self.gtids
        if isinstance(mine, GtidSet):
            return str(mine - others) if isinstance(others, GtidSet) else ""
        known = others if isinstance(others, MariadbGtidList) else MariadbGtidList()
        return ",".join(
            f"{domain}-{server}-{number}"
            for domain, server, number in mine.gtids()
            if (there := known.number(domain, server)) is None or number > there
        )

    def plus(self, gtids: Gtids) -> Self:
        """The same with these GTIDs added."""
        if isinstance(self.gtids, GtidSet) and isinstance(gtids, GtidSet):
            return type(self)(self.gtids | gtids)
        if isinstance(self.gtids, MariadbGtidList) and isinstance(gtids, MariadbGtidList):
            return type(self)(self.gtids | gtids)
        return self


def executed(gtids: Gtids) -> Executed:
    """The value for GTIDs of either flavour."""
    return Executed(gtids)


class Gathering:
    """Collects GTIDs in the scanner's form. It keeps runs of numbers, not every GTID."""

    def __init__(self, flavour: Flavour) -> None:
        self._mysql = GtidSetBuilder() if flavour == "mysql" else None
        self._last: dict[tuple[int, int], int] = {}
        self._newest: dict[int, int] = {}

    def add(self, gtid: str) -> None:
        """Add a GTID. MariaDB: the last one of each (domain, server) counts."""
        if self._mysql is not None:
            self._mysql.add(*mysql_gtid(gtid))
            return
        domain, server, sequence = mariadb_gtid(gtid)
        self._last[domain, server] = sequence
        self._newest[domain] = server

    def build(self) -> Gtids:
        """All of them so far; more can be added."""
        if self._mysql is not None:
            return self._mysql.build()
        return MariadbGtidList(self._last, self._newest)


def gathered(gtids: Iterable[str], flavour: Flavour) -> Gtids:
    """These GTIDs, in the scanner's form, as one value."""
    gathering = Gathering(flavour)
    for gtid in gtids:
        gathering.add(gtid)
    return gathering.build()
