"""The transactions that a server has executed, in the way of its flavour. Pure.

MySQL has sets of GTIDs. MariaDB has the last GTID of each domain, which stands for all lower
numbers of the domain: this is right along one history, where numbers only grow within a domain.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol, Self

from binlog2s3.binlog.gtid import Flavour, Gtids, GtidSet, GtidSetBuilder, MariadbGtidList


class Executed(Protocol):
    """What a server of either flavour has executed."""

    @property
    def gtids(self) -> Gtids:
        """The same as GTIDs."""

    def has(self, gtid: str) -> bool:
        """Whether this GTID, in the scanner's form, was executed."""

    def covers(self, gtids: Gtids) -> bool:
        """Whether all of these were executed."""

    def touches(self, before: Gtids | None, added: Gtids) -> bool:
        """Whether any GTID was executed that a binlog adds to those before it."""

    def beyond(self, others: Gtids) -> str:
        """The GTIDs that are not among the others, as text; "" if there are none."""

    def plus(self, gtids: Gtids) -> Self:
        """The same with these GTIDs added."""


@dataclass(frozen=True, slots=True)
class MysqlExecuted:
    """A set of GTIDs."""

    gtids: GtidSet

    def has(self, gtid: str) -> bool:
        """See `Executed`."""
        uuid, *tag, gno = gtid.split(":")
        return (uuid, tag[0] if tag else "", int(gno)) in self.gtids

    def covers(self, gtids: Gtids) -> bool:
        """See `Executed`."""
        return gtids <= self.gtids

    def touches(self, before: Gtids | None, added: Gtids) -> bool:
        """See `Executed`."""
        del before
        return isinstance(added, GtidSet) and bool(added & self.gtids)

    def beyond(self, others: Gtids) -> str:
        """See `Executed`."""
        return str(self.gtids - others) if isinstance(others, GtidSet) else ""

    def plus(self, gtids: Gtids) -> Self:
        """See `Executed`."""
        return type(self)(self.gtids | gtids) if isinstance(gtids, GtidSet) else self


@dataclass(frozen=True, slots=True)
class MariadbExecuted:
    """The last GTID of each domain, of any server."""

    gtids: MariadbGtidList
    _last: dict[int, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_last", _last_of(self.gtids))

    def has(self, gtid: str) -> bool:
        """See `Executed`."""
        domain, _, number = map(int, gtid.split("-"))
        return number <= self._last.get(domain, -1)

    def covers(self, gtids: Gtids) -> bool:
        """See `Executed`."""
        if not isinstance(gtids, MariadbGtidList):
            return False
        return all(number <= self._last.get(domain, -1) for domain, _, number in gtids.gtids())

    def touches(self, before: Gtids | None, added: Gtids) -> bool:
        """See `Executed`."""
        if not isinstance(added, MariadbGtidList):
            return False
        then = _last_of(before) if isinstance(before, MariadbGtidList) else {}
        domains = {domain for domain, _, _ in added.gtids()}
        return any(self._last.get(domain, -1) > then.get(domain, -1) for domain in domains)

    def beyond(self, others: Gtids) -> str:
        """See `Executed`."""
        known = (
            {(d, s): n for d, s, n in others.gtids()} if isinstance(others, MariadbGtidList) else {}
        )
        return ",".join(
            f"{domain}-{server}-{number}"
            for domain, server, number in self.gtids.gtids()
            if number > known.get((domain, server), -1)
        )

    def plus(self, gtids: Gtids) -> Self:
        """See `Executed`."""
        return type(self)(self.gtids | gtids) if isinstance(gtids, MariadbGtidList) else self


def _last_of(gtids: MariadbGtidList) -> dict[int, int]:
    last: dict[int, int] = {}
    for domain, _, number in gtids.gtids():
        last[domain] = max(number, last.get(domain, -1))
    return last


def executed(gtids: Gtids) -> Executed:
    """The value for GTIDs of either flavour."""
    return MysqlExecuted(gtids) if isinstance(gtids, GtidSet) else MariadbExecuted(gtids)


class Gathering:
    """Collects GTIDs in the scanner's form. It keeps runs of numbers, not every GTID."""

    def __init__(self, flavour: Flavour) -> None:
        self._mysql = GtidSetBuilder() if flavour == "mysql" else None
        self._last: dict[tuple[int, int], int] = {}

    def add(self, gtid: str) -> None:
        """Add a GTID. MariaDB: the last one of each (domain, server) counts."""
        if self._mysql is not None:
            uuid, *tag, number = gtid.split(":")
            self._mysql.add(uuid, tag[0] if tag else "", int(number))
            return
        domain, server, sequence = map(int, gtid.split("-"))
        self._last[domain, server] = sequence

    def build(self) -> Gtids:
        """All of them so far; more can be added."""
        return self._mysql.build() if self._mysql is not None else MariadbGtidList(self._last)


def gathered(gtids: Iterable[str], flavour: Flavour) -> Gtids:
    """These GTIDs, in the scanner's form, as one value."""
    gathering = Gathering(flavour)
    for gtid in gtids:
        gathering.add(gtid)
    return gathering.build()
