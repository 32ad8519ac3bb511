"""Which transactions of a line of binlogs a server has executed. Pure.

`recover.route` and `serve` are lines, and ask here where a GTID state ends in them. Plans, dumps,
`backup`, `prune`, `drill` and `find` leave out what is executed by it.

Law: MySQL's GTIDs are a set. A MariaDB GTID is a position: of its domain, everything in the line up
to the transaction with exactly this GTID, and nothing after it. Numbers may go back (two servers in
a domain, SET gtid_seq_no), so they only say where to look. A GTID that is at two positions, or at
none, is never guessed.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, Self, TypeAlias

from binlog2s3.binlog.gtid import (
    Flavour,
    Gtids,
    GtidSet,
    GtidSetBuilder,
    MariadbGtidList,
    mariadb_gtid,
    mysql_gtid,
)
from binlog2s3.binlog.scanner import Transaction
from binlog2s3.errors import RecoveryError


class LinePosition(NamedTuple):
    """A binlog's number in its line, and an offset in it."""

    number: int
    offset: int


NOWHERE = LinePosition(-1, -1)
_GAP = 1 << 63  # an offset after the end of any binlog
Gtid: TypeAlias = tuple[int, int, int]
"""Domain, server, sequence number."""


class ExecutedPart(Protocol):
    """The transactions of a line that a server has executed."""

    def has(self, number: int, one: Transaction) -> bool:
        """Whether it has executed this transaction of the line's binlog `number`."""

    def touches(self, number: int, added: Gtids) -> bool:
        """Whether it may have executed any of the transactions that a binlog adds."""


@dataclass(frozen=True, slots=True)
class MysqlPart:
    """Those with a GTID of a set, wherever they are."""

    gtids: GtidSet

    def has(self, number: int, one: Transaction) -> bool:
        del number
        return one.gtid is not None and is_in(self.gtids, one.gtid)

    def touches(self, number: int, added: Gtids) -> bool:
        del number
        return isinstance(added, GtidSet) and bool(added & self.gtids)


@dataclass(frozen=True, slots=True)
class MariadbPart:
    """Those of each domain that end at or before a position. Of other domains, none."""

    upto: Mapping[int, LinePosition]

    def has(self, number: int, one: Transaction) -> bool:
        if one.gtid is None:
            return False
        return (number, one.end) <= self.upto.get(domain_of(one.gtid), NOWHERE)

    def touches(self, number: int, added: Gtids) -> bool:
        if not isinstance(added, MariadbGtidList):
            return False
        return any(self.upto.get(one, NOWHERE) > (number, 0) for one in added.domains())


def is_in(gtids: GtidSet, gtid: str) -> bool:
    """Whether a MySQL GTID, in the scanner's form, is in a set."""
    return mysql_gtid(gtid) in gtids


def precedes(first: str | None, gtid: str) -> bool:
    """Whether one GTID is of the same series as another, and not greater."""
    if first is None:
        return False
    series, _, number = first.replace("-", ":").rpartition(":")
    wanted, _, limit = gtid.replace("-", ":").rpartition(":")
    return series == wanted and int(number) <= int(limit)


def domain_of(gtid: str) -> int:
    """The domain of a MariaDB GTID."""
    return int(gtid.partition("-")[0])


def gtid_text(gtid: Gtid) -> str:
    """A MariaDB GTID in the scanner's form."""
    return "{}-{}-{}".format(*gtid)


# Where a MariaDB state is


@dataclass(frozen=True, slots=True, kw_only=True)
class AddedGtids:
    """What is known of the GTIDs of one binlog, before it is read.

    `before`: those executed before it; `added`: the last one of each domain and server in it; None
    if that is not known. `count`: how many of its transactions have one. `back`: whether numbers of
    a domain and server go back in it; None in what an older version wrote.
    """

    before: MariadbGtidList | None
    added: MariadbGtidList | None
    count: int
    back: bool | None = None

    @classmethod
    def of(
        cls, before: Gtids | None, added: Gtids | None, count: int, *, back: bool | None = None
    ) -> Self:
        """These of a binlog of MariaDB; a set of MySQL's tells nothing here."""
        return cls(
            before=before if isinstance(before, MariadbGtidList) else None,
            added=added if isinstance(added, MariadbGtidList) else None,
            count=count,
            back=back,
        )

    def may_have(self, gtid: Gtid) -> bool:
        """Whether a transaction of it may have this GTID."""
        domain, server, number = gtid
        if self.added is None or self.before is None:
            return self.added is None or self.added.number(domain, server) is not None
        last = self.added.number(domain, server)
        if last is None:
            return False
        return self.goes_back or (self.before.number(domain, server) or 0) < number <= last

    @property
    def _steps(self) -> Iterator[int]:
        """By how much the number of each domain and server grows."""
        before = self.before or MariadbGtidList()
        most = {domain: number for domain, _, number in sorted(before.gtids(), key=lambda g: g[2])}
        for domain, server, last in self.added.gtids() if self.added is not None else ():
            begin = before.number(domain, server)
            # a server's first ones continue the domain's numbers
            yield last - (most.get(domain, 0) if begin is None else begin)

    @property
    def goes_back(self) -> bool:
        """Whether numbers of a domain and server go back in it, or may.

        If nothing says so, they do where there are more transactions than numbers. A binlog that
        also leaves out as many numbers is not recognized then.
        """
        if self.back is not None:
            return self.back
        steps = list(self._steps)
        return any(step <= 0 for step in steps) or self.count > sum(steps)

    @property
    def is_plain(self) -> bool:
        """Whether each number between `before` and `added` occurs exactly once."""
        if self.added is None or self.before is None or self.goes_back:
            return False
        steps = list(self._steps)
        return all(step > 0 for step in steps) and self.count == sum(steps)


class GtidLine(Protocol):
    """The binlogs of one history of a MariaDB, in order."""

    def added_gtids(self) -> Sequence[AddedGtids]:
        """What is known of each binlog, without reading it."""

    def leads_up(self, number: int) -> bool:
        """Whether nothing is missing between the binlog before and this one."""

    def gtid_list(self, number: int) -> MariadbGtidList | None:
        """The GTIDs that a binlog itself begins with, with the newest of each domain."""

    def gtid_transactions(
        self, number: int, gtids: Collection[str], near: str = ""
    ) -> Iterable[Transaction]:
        """The transactions of a binlog that no binlog before it has, in order.

        At least those with these GTIDs, and the last one of each domain. `near`: those before the
        one with this GTID may be left out, if each number occurs once.
        """

    def position_text(self, number: int, offset: int) -> str:
        """A position for a message."""


class NoStateEndError(RecoveryError):
    """A GTID state does not tell where it ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateEnd:
    """Where a MariaDB state ends in a line.

    `upto`: where each of its domains ends. `newest`: its GTID at that position. `start`: the first
    binlog with a transaction that was not executed, or the last one; None if some that come before
    the line were not executed. `unknown`: its GTIDs of domains of the line that are not in the
    line; `foreign`: those of other domains.
    """

    upto: Mapping[int, LinePosition]
    newest: MariadbGtidList
    start: int | None
    unknown: tuple[str, ...] = ()
    foreign: tuple[str, ...] = ()

    @property
    def part(self) -> MariadbPart:
        """The transactions of the line that the state has."""
        return MariadbPart(self.upto)

    @property
    def extra(self) -> str:
        """Its GTIDs that are not in the line."""
        return ",".join((*self.unknown, *self.foreign))

    def beyond(self, position: LinePosition) -> Iterator[str]:
        """Its GTIDs that come after a position."""
        for gtid in self.newest.gtids():
            if self.upto.get(gtid[0], NOWHERE) > position:
                yield gtid_text(gtid)


@dataclass(slots=True)
class _Looked:
    """What was found in the binlogs that may have the GTIDs: where they are, and domains' ends."""

    positions: dict[Gtid, list[tuple[LinePosition, Transaction | None]]] = field(
        default_factory=dict
    )
    ends: dict[int, dict[int, int]] = field(default_factory=dict)


def transactions_with(line: GtidLine, gtid: Gtid) -> list[tuple[int, Transaction]]:
    """All transactions of a line with this GTID, each with the number of its binlog."""
    looked = _look(line, line.added_gtids(), [gtid], is_sure=False)
    return [
        (position[0], one) for position, one in looked.positions.get(gtid, []) if one is not None
    ]


def state_end(line: GtidLine, state: MariadbGtidList, *, is_sure: bool = False) -> StateEnd:
    """Where a state ends in a line. Raises NoStateEndError if a GTID of it is at two positions.

    `is_sure`: a binlog is not read if what is known of it says that it has the GTID exactly once.
    That offset is after the binlog's end then.
    """
    added = line.added_gtids()
    return _StateEnd(line, added, state, _look(line, added, list(state.gtids()), is_sure)).found()


def _look(
    line: GtidLine, added: Sequence[AddedGtids], gtids: Sequence[Gtid], is_sure: bool
) -> _Looked:
    found = _Looked()
    holders = {one: [n for n, at in enumerate(added) if at.may_have(one)] for one in gtids}
    wanted: dict[int, list[Gtid]] = {}
    for gtid, numbers in holders.items():
        if is_sure and len(numbers) == 1 and added[numbers[0]].is_plain:
            found.positions[gtid] = [(LinePosition(numbers[0], _GAP), None)]
            continue
        for number in numbers:
            wanted.setdefault(number, []).append(gtid)
    for number, sought in wanted.items():
        texts = {gtid_text(gtid): gtid for gtid in sought}
        is_one = len(sought) == 1 and not added[number].goes_back
        near = next(iter(texts)) if is_one else ""
        ends = found.ends.setdefault(number, {})
        for one in line.gtid_transactions(number, texts, near):
            if one.gtid is None:
                continue
            ends[domain_of(one.gtid)] = one.end
            if one.gtid in texts:
                found.positions.setdefault(texts[one.gtid], []).append(
                    (LinePosition(number, one.end), one)
                )
    return found


class _StateEnd:
    """Finds `StateEnd`."""

    def __init__(
        self,
        line: GtidLine,
        added: Sequence[AddedGtids],
        state: MariadbGtidList,
        looked: _Looked,
    ) -> None:
        self._line = line
        self._added = added
        self._state = state
        self._looked = looked
        self._fresh = [n for n in range(len(added)) if n == 0 or not line.leads_up(n)]

    def found(self) -> StateEnd:
        lists = [before for n in self._fresh if (before := self._added[n].before) is not None]
        adds = [one.added for one in self._added if one.added is not None]
        domains = {domain for gtids in (*lists, *adds) for domain in gtids.domains()}
        first = self._added[0].before if self._added else None
        upto: dict[int, LinePosition] = {}
        newest: dict[int, Gtid] = {}
        rest: list[Gtid] = []
        unknown: list[str] = []
        foreign: list[str] = []
        is_behind = first is not None and not first.domains() <= self._state.domains()
        for domain in sorted(self._state.domains()):
            gtids = [one for one in self._state.gtids() if one[0] == domain]
            positions = {one: found for one in gtids if (found := self._positions(one))}
            if positions:
                newest[domain] = max(positions, key=lambda one: positions[one][-1])
                upto[domain] = self._single(newest[domain], positions[newest[domain]])
                is_behind |= upto[domain] == (0, 0) and not self._is_all(0, domain)
                continue
            rest += gtids
            if first is not None and any(_is_older(one, first) for one in gtids):
                is_behind = True
            else:
                away = unknown if domain in domains else foreign
                away += map(gtid_text, gtids)
        starts = (
            self._next(one, upto.get(one, LinePosition(0, 0)), newest.get(one)) for one in domains
        )
        start = min(starts, default=max(0, len(self._added) - 1))
        return StateEnd(
            upto=upto,
            newest=MariadbGtidList({(d, s): n for d, s, n in (*newest.values(), *rest)}),
            start=None if is_behind else start,
            unknown=tuple(unknown),
            foreign=tuple(foreign),
        )

    def _positions(self, gtid: Gtid) -> list[LinePosition]:
        """Where a GTID is, in order: transactions, and lists of GTIDs that have it as the last."""
        found = [position for position, _ in self._looked.positions.get(gtid, [])]
        domain, server, number = gtid
        for fresh in self._fresh:
            before = self._added[fresh].before
            there = before.number(domain, server) if before is not None else None
            if there is None or number > there or any(position < (fresh, 0) for position in found):
                continue
            if number == there and (fresh == 0 or self._is_all(fresh, domain)):
                found = [LinePosition(fresh, 0), *found]
            elif fresh and not found and not self._had(fresh, gtid):
                found = [LinePosition(fresh - 1, _GAP)]
        return sorted(found)

    def _had(self, fresh: int, gtid: Gtid) -> bool:
        """Whether it was executed before the gap before a binlog, by the number of its server."""
        there = self._end_of(fresh - 1).number(gtid[0], gtid[1])
        return there is not None and gtid[2] <= there

    def _end_of(self, number: int) -> MariadbGtidList:
        at = self._added[number]
        return (at.before or MariadbGtidList()).then(at.added or MariadbGtidList())

    def _is_all(self, number: int, domain: int) -> bool:
        """Whether the state has all of a domain that was executed before a binlog."""
        before = self._added[number].before or MariadbGtidList()
        ours = set(self._state.gtids())
        if all(one in ours for one in before.gtids() if one[0] == domain):
            return True
        itself = self._line.gtid_list(number)
        return itself is not None and itself.newest(domain) in ours

    def _single(self, gtid: Gtid, positions: Sequence[LinePosition]) -> LinePosition:
        """The position of the GTID that decides for its domain."""
        if len(positions) > 1:
            shown = " and ".join(self._line.position_text(*position) for position in positions[:3])
            raise NoStateEndError(
                f"{gtid_text(gtid)} is at {len(positions)} places of this history, {shown}: a GTID "
                "that was used twice does not tell what was executed",
            )
        return positions[0]

    def _next(self, domain: int, position: LinePosition, gtid: Gtid | None) -> int:
        """The first binlog that has, or lacks, a transaction of a domain after its position."""
        number, offset = position
        if offset:
            added = self._added[number].added
            is_last = added is not None and gtid is not None and added.newest(domain) == gtid
            if not is_last and self._looked.ends.get(number, {}).get(domain, _GAP) > offset:
                return number
            if not is_last and offset == _GAP:
                return number
            if self._is_lost(number + 1, domain):
                return number
            number += 1
        for later in range(number, len(self._added)):
            added = self._added[later].added
            if added is None or domain in added.domains() or self._is_lost(later + 1, domain):
                return later
        return max(0, len(self._added) - 1)

    def _is_lost(self, number: int, domain: int) -> bool:
        """Whether something of a domain is missing just before a binlog."""
        if number not in self._fresh or not number:
            return False
        then, now = self._end_of(number - 1), self._added[number].before or MariadbGtidList()
        return _of(then, domain) != _of(now, domain)


def _of(gtids: MariadbGtidList, domain: int) -> list[Gtid]:
    return [one for one in gtids.gtids() if one[0] == domain]


def _is_older(gtid: Gtid, first: MariadbGtidList) -> bool:
    there = first.number(gtid[0], gtid[1])
    return there is not None and gtid[2] < there


def state_end_at(
    state: MariadbGtidList,
    there: MariadbGtidList,
    position: LinePosition,
    *,
    domains: Iterable[int],
) -> StateEnd | None:
    """Where a state ends, if that is at a position where `there` was executed; else None.

    `domains`: those of the line.
    """
    if not is_state(state, there):
        return None
    newest = {one: there.newest(one) or _of(state, one)[0] for one in state.domains()}
    return StateEnd(
        upto=dict.fromkeys({*domains, *state.domains()}, position),
        newest=MariadbGtidList({(d, s): n for d, s, n in newest.values()}),
        start=position[0],
    )


def is_state(state: MariadbGtidList, there: MariadbGtidList) -> bool:
    """Whether a state is that of a position where `there` was executed: the newest of each domain.

    It may have the last GTID of each server, too.
    """
    ours = set(state.gtids())
    for domain in there.domains() | state.domains():
        listed = _of(there, domain)
        if there.newest(domain) not in ours and not (listed and ours.issuperset(listed)):
            return False
    return True


@dataclass(frozen=True, slots=True)
class WithGtids:
    """Finds those with one of these GTIDs, and the last one of each domain, in order."""

    gtids: frozenset[str]

    def __call__(self, transactions: Iterable[Transaction]) -> Sequence[Transaction]:
        found: list[Transaction] = []
        last: dict[int, Transaction] = {}
        for one in transactions:
            if one.gtid is not None:
                last[domain_of(one.gtid)] = one
                if one.gtid in self.gtids:
                    found.append(one)
        others = (one for one in last.values() if one.gtid not in self.gtids)
        return sorted([*found, *others], key=lambda one: one.end)


def repeated_upto(transactions: Iterable[Transaction], state: MariadbGtidList) -> Mapping[int, int]:
    """Up to where a lineage's first binlog repeats what came before it, by domain.

    `state`: what had been executed at the end of that.
    """
    wanted = {gtid_text(one) for one in state.gtids()}
    return {domain_of(one.gtid): one.end for one in transactions if one.gtid in wanted}


@dataclass(frozen=True, slots=True)
class ExactGtids:
    """GTIDs, each one for itself.

    MariaDB's are kept one by one, because a list of MariaDB's keeps only the last of each server.
    """

    mysql: GtidSet = field(default_factory=GtidSet)
    mariadb: frozenset[str] = frozenset()

    @classmethod
    def parse(cls, texts: Iterable[str], flavour: Flavour, option: str) -> Self:
        """Those that an option names. Raises RecoveryError for what is no GTID of the flavour."""
        mysql, mariadb = GtidSet(), set[str]()
        try:
            for text in texts:
                if flavour == "mysql":
                    mysql |= GtidSet.parse(text)
                    continue
                for one in text.split(","):
                    gtids = MariadbGtidList.parse(one).gtids()
                    mariadb |= {f"{domain}-{server}-{n}" for domain, server, n in gtids}
        except ValueError as error:
            raise RecoveryError(f"{option}: {error}", hint="see --help") from None
        return cls(mysql, frozenset(mariadb))

    @classmethod
    def of(cls, gtids: Iterable[str], flavour: Flavour) -> Self:
        """Those of transactions, in the scanner's form."""
        if flavour == "mariadb":
            return cls(mariadb=frozenset(gtids))
        builder = GtidSetBuilder()
        for one in gtids:
            builder.add(*mysql_gtid(one))
        return cls(builder.build())

    def has(self, gtid: str) -> bool:
        """Whether this one, in the scanner's form, is among them."""
        if self.mariadb:
            return gtid in self.mariadb
        return bool(self.mysql) and is_in(self.mysql, gtid)

    def within(self, have: ExecutedPart, line: GtidLine) -> "ExactGtids":
        """Those that were executed; of MariaDB, all positions that they have in the line count."""
        if isinstance(have, MysqlPart):
            return ExactGtids(self.mysql & have.gtids)
        return ExactGtids(mariadb=frozenset(one for one in self.mariadb if _has(have, line, one)))

    def __or__(self, other: "ExactGtids") -> "ExactGtids":
        return ExactGtids(self.mysql | other.mysql, self.mariadb | other.mariadb)

    def __sub__(self, other: "ExactGtids") -> "ExactGtids":
        return ExactGtids(self.mysql - other.mysql, self.mariadb - other.mariadb)

    def __bool__(self) -> bool:
        return bool(self.mysql or self.mariadb)

    def __str__(self) -> str:
        return str(self.mysql) or ",".join(sorted(self.mariadb, key=mariadb_gtid))


def _has(have: ExecutedPart, line: GtidLine, gtid: str) -> bool:
    found = transactions_with(line, mariadb_gtid(gtid))
    return bool(found) and all(have.has(number, one) for number, one in found)
