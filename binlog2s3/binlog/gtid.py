"""GTIDs of both flavours as values: parsed, compared, joined, printed. No I/O.

Law: a set is immutable and canonical: two sets are equal exactly if they have the same GTIDs, and
then their texts are equal. Sets of different flavours are not comparable: equality is False, all
other operators raise TypeError.

- MySQL: a `GtidSet` is a true set, `uuid:1-5:7:tag:1-3`. (Manual: "GTID Sets"; server class
  `Gtid_set`.)
- MariaDB: a `MariadbGtidList` has the last GTID of each (domain, server), `0-1-5,1-2-7`. It is a
  place in a history: all that was executed up to there. Numbers may go back, so a lower number
  proves nothing. (Knowledge base: "Global Transaction ID"; `GTID_LIST` event.)
"""

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from typing import Literal, Self, TypeAlias, overload

Flavour: TypeAlias = Literal["mysql", "mariadb"]
Interval: TypeAlias = tuple[int, int]
"""First and last number of a run of GTIDs, both included."""

MOST_GTIDS = 4 << 20
"""The most characters of a GTID set that is read from a document, a file or a dump.

A server that lost every second one of a million transactions has two million.
"""
GNO_MAX = 2**63 - 2
"""The greatest transaction number of a MySQL GTID."""

_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_TAG = re.compile(r"[a-z_][a-z0-9_]{0,31}")
_INTERVAL = re.compile(r"([0-9]{1,19})(?:\s*-\s*([0-9]{1,19}))?")
_MARIADB = re.compile(r"([0-9]{1,10})-([0-9]{1,10})-([0-9]{1,20})")


def tag_of(raw: bytes) -> str:
    """The tag in an event, "" for none. Raises ValueError if no server can have made it."""
    tag = raw.decode("ascii")
    if tag and not _TAG.fullmatch(tag):
        raise ValueError(f"not a tag: {tag!r:.60}")
    return tag


def _merged(intervals: Iterable[Interval]) -> tuple[Interval, ...]:
    """The same numbers as sorted intervals with gaps between them."""
    merged: list[Interval] = []
    for first, last in sorted(intervals):
        if merged and first <= merged[-1][1] + 1:
            if last > merged[-1][1]:
                merged[-1] = (merged[-1][0], last)
        else:
            merged.append((first, last))
    return tuple(merged)


def _without(left: tuple[Interval, ...], right: tuple[Interval, ...]) -> tuple[Interval, ...]:
    """The numbers of `left` that are not in `right`; all three are merged intervals."""
    kept: list[Interval] = []
    at = 0
    for interval in left:
        first, last = interval
        while at < len(right) and right[at][1] < first:
            at += 1
        probe = at
        while probe < len(right) and right[probe][0] <= last:
            if right[probe][0] > first:
                kept.append((first, right[probe][0] - 1))
            first = right[probe][1] + 1
            probe += 1
        if first <= last:
            kept.append((first, last))
    return tuple(kept)


class GtidSet:
    """An immutable set of MySQL GTIDs, tags included.

    >>> str(GtidSet.parse("3E11FA47-71CA-11E1-9E33-C80AA9429562:4-5:1-3:blue:7"))
    '3e11fa47-71ca-11e1-9e33-c80aa9429562:1-5:blue:7'
    """

    __slots__ = ("_hash", "_runs")

    def __init__(self, runs: Mapping[tuple[str, str], Iterable[Interval]] | None = None) -> None:
        """From intervals by (uuid, tag): uuid in canonical lower case, tag "" for none.

        Intervals may come in any order and overlap. Nothing is checked: use `parse` for texts.
        """
        merged = {key: _merged(intervals) for key, intervals in (runs or {}).items()}
        self._runs = {key: merged[key] for key in sorted(merged) if merged[key]}
        self._hash: int | None = None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a set: `uuid:1-5:7,uuid:tag:1-3:othertag:9`; "" is the empty set.

        White space and line breaks between the pieces, and case, are ignored. Raises ValueError
        with the first piece that is not a GTID set.
        """
        runs: dict[tuple[str, str], list[Interval]] = {}
        for piece in text.split(","):
            if not piece.strip():
                continue
            uuid, *rest = (part.strip().lower() for part in piece.split(":"))
            if not _UUID.fullmatch(uuid):
                raise ValueError(f"not a server uuid: {uuid!r} in GTID set {piece.strip()!r}")
            if not rest:
                raise ValueError(f"no transaction numbers after uuid in {piece.strip()!r}")
            tag, numbered = "", True
            for part in rest:
                if numbered and _TAG.fullmatch(part):
                    tag, numbered = part, False
                    continue
                runs.setdefault((uuid, tag), []).append(_parse_interval(part, piece.strip()))
                numbered = True
            if not numbered:
                raise ValueError(f"no transaction numbers after tag {tag!r} in {piece.strip()!r}")
        return cls(runs)

    def runs(self) -> Iterator[tuple[str, str, tuple[Interval, ...]]]:
        """(uuid, tag or "", intervals), in the order of the text."""
        for (uuid, tag), intervals in self._runs.items():
            yield uuid, tag, intervals

    def each(self) -> Iterator[str]:
        """Each GTID, in the order of `runs`."""
        for uuid, tag, intervals in self.runs():
            prefix = f"{uuid}:{tag}" if tag else uuid
            for first, last in intervals:
                yield from (f"{prefix}:{number}" for number in range(first, last + 1))

    @property
    def count(self) -> int:
        return sum(last - first + 1 for runs in self._runs.values() for first, last in runs)

    def __str__(self) -> str:
        texts: dict[str, list[str]] = {}
        for uuid, tag, intervals in self.runs():
            parts = texts.setdefault(uuid, [uuid])
            if tag:
                parts.append(tag)
            parts += (f"{a}-{b}" if a != b else str(a) for a, b in intervals)
        return ",".join(":".join(parts) for parts in texts.values())

    def __repr__(self) -> str:
        return f"GtidSet.parse({str(self)!r})"

    def __bool__(self) -> bool:
        return bool(self._runs)

    def __eq__(self, other: object) -> bool:
        return self._runs == other._runs if isinstance(other, GtidSet) else NotImplemented

    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = hash(tuple(self._runs.items()))
        return self._hash

    def __contains__(self, gtid: tuple[str, str, int]) -> bool:
        """Whether (uuid, tag or "", number) is in the set."""
        uuid, tag, gno = gtid
        runs = self._runs.get((uuid.lower(), tag.lower()), ())
        at = bisect_right(runs, (gno, GNO_MAX + 1)) - 1
        return at >= 0 and gno <= runs[at][1]

    def __or__(self, other: object) -> "GtidSet":
        if not isinstance(other, GtidSet):
            return NotImplemented
        ours, theirs = self._runs, other._runs
        return GtidSet({k: ours.get(k, ()) + theirs.get(k, ()) for k in ours.keys() | theirs})

    def __sub__(self, other: object) -> "GtidSet":
        if not isinstance(other, GtidSet):
            return NotImplemented
        theirs = other._runs
        return GtidSet({k: _without(v, theirs.get(k, ())) for k, v in self._runs.items()})

    def __and__(self, other: object) -> "GtidSet":
        return self - (self - other)

    def __le__(self, other: object) -> bool:
        """Whether every GTID of this set is in the other."""
        if not isinstance(other, GtidSet):
            return NotImplemented
        theirs = other._runs
        return not any(_without(v, theirs.get(k, ())) for k, v in self._runs.items())

    def __ge__(self, other: object) -> bool:
        return other <= self if isinstance(other, GtidSet) else NotImplemented


def _parse_interval(part: str, piece: str) -> Interval:
    match = _INTERVAL.fullmatch(part)
    if not match:
        raise ValueError(f"not a transaction number, interval or tag: {part!r} in {piece!r}")
    first = int(match[1])
    last = int(match[2]) if match[2] else first
    if not 1 <= first <= last <= GNO_MAX:
        raise ValueError(f"interval out of order or out of range: {part!r} in {piece!r}")
    return first, last


class GtidSetBuilder:
    """Collects MySQL GTIDs one by one. The usual next number costs O(1) and no memory.

    Numbers may come out of order (parallel replicas), and more than once.
    """

    __slots__ = ("_limits", "_runs")

    def __init__(self) -> None:
        self._runs: dict[tuple[str, str], list[list[int]]] = {}
        self._limits: dict[tuple[str, str], int] = {}

    def add(self, uuid: str, tag: str, gno: int) -> None:
        """Add a GTID; `uuid` in canonical lower case, `tag` "" for none."""
        self.add_run(uuid, tag, gno, gno)

    def add_run(self, uuid: str, tag: str, first: int, last: int) -> None:
        """Add the GTIDs with the numbers `first` to `last`."""
        key = (uuid, tag)
        runs = self._runs.setdefault(key, [])
        if runs and runs[-1][0] <= first <= runs[-1][1] + 1:
            runs[-1][1] = max(last, runs[-1][1])
            return
        runs.append([first, last])
        if len(runs) > self._limits.get(key, 1000):
            self._settle(key)

    def _settle(self, key: tuple[str, str]) -> None:
        """Merge runs that came out of order; doubling limits keep the cost per number constant."""
        merged = [list(run) for run in _merged((a, b) for a, b in self._runs[key])]
        self._runs[key] = merged
        self._limits[key] = max(1000, 2 * len(merged))

    def build(self) -> GtidSet:
        """The set of all GTIDs so far; more can be added."""
        return GtidSet({k: [(a, b) for a, b in runs] for k, runs in self._runs.items()})


class MariadbGtidList:
    """An immutable list of MariaDB GTIDs: the last one of each (domain, server).

    `<=` compares the sequence number of each (domain, server): servers that were primaries at the
    same time use the same numbers, so a greater one of another server proves nothing.

    Which server's GTID is the newest of its domain, see `newest`, is no part of the text or of
    `==`.

    >>> str(MariadbGtidList.parse("1-2-7, 0-1-5"))
    '0-1-5,1-2-7'
    """

    __slots__ = ("_last", "_newest")

    def __init__(
        self,
        last: Mapping[tuple[int, int], int] | None = None,
        newest: Mapping[int, int] | None = None,
    ) -> None:
        """From the sequence number of the last GTID by (domain, server).

        `newest`: the server that executed last, by domain, as far as it is known.
        """
        self._last = dict(sorted((last or {}).items()))
        self._newest = dict(newest or {})

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a list: `domain-server-sequence`, separated by commas; "" is the empty list.

        If a (domain, server) occurs twice, the greater number counts. Raises ValueError with the
        first piece that is not a MariaDB GTID.
        """
        last: dict[tuple[int, int], int] = {}
        for piece in (part.strip() for part in text.split(",")):
            if not piece:
                continue
            match = _MARIADB.fullmatch(piece)
            domain, server, seq = map(int, match.groups()) if match else (2**32, 0, 0)
            if domain >= 2**32 or server >= 2**32 or seq >= 2**64:
                raise ValueError(f"not a MariaDB GTID (domain-server-sequence): {piece!r}")
            last[domain, server] = max(seq, last.get((domain, server), 0))
        return cls(last)

    def gtids(self) -> Iterator[tuple[int, int, int]]:
        """(domain, server, sequence number), sorted."""
        for (domain, server), seq in self._last.items():
            yield domain, server, seq

    def number(self, domain: int, server: int) -> int | None:
        """The sequence number of the last GTID of a (domain, server); None if there is none."""
        return self._last.get((domain, server))

    def greatest(self, domain: int) -> int:
        """The greatest number in a domain, whichever server gave it; 0 if there is none."""
        return max((seq for (one, _), seq in self._last.items() if one == domain), default=0)

    def domains(self) -> frozenset[int]:
        """The domains that have a GTID."""
        return frozenset(domain for domain, _ in self._last)

    def newest(self, domain: int) -> tuple[int, int, int] | None:
        """The GTID of a domain that was executed last; None if that is not known.

        It is known of a list that a binlog begins with, and where only one server has GTIDs.
        """
        servers = [server for one, server in self._last if one == domain]
        server = servers[0] if len(servers) == 1 else self._newest.get(domain)
        return (domain, server, self._last[domain, server]) if server in servers else None

    def then(self, later: "MariadbGtidList") -> "MariadbGtidList":
        """The list after the GTIDs of `later` were executed: its numbers replace ours."""
        newest = {one: self.newest(one) for one in self.domains()}
        newest |= {one: later.newest(one) for one in later.domains()}
        servers = {domain: gtid[1] for domain, gtid in newest.items() if gtid is not None}
        last = {(domain, server): seq for domain, server, seq in later.gtids()}
        return MariadbGtidList(self._last | last, servers)

    def __str__(self) -> str:
        return ",".join(f"{domain}-{server}-{seq}" for domain, server, seq in self.gtids())

    def __repr__(self) -> str:
        return f"MariadbGtidList.parse({str(self)!r})"

    def __bool__(self) -> bool:
        return bool(self._last)

    def __eq__(self, other: object) -> bool:
        return self._last == other._last if isinstance(other, MariadbGtidList) else NotImplemented

    def __hash__(self) -> int:
        return hash(tuple(self._last.items()))

    def __or__(self, other: object) -> "MariadbGtidList":
        """The greater number of each (domain, server)."""
        if not isinstance(other, MariadbGtidList):
            return NotImplemented
        ours, theirs = self._last, other._last
        keys = ours.keys() | theirs
        return MariadbGtidList({k: max(ours.get(k, 0), theirs.get(k, 0)) for k in keys})

    def __le__(self, other: object) -> bool:
        """Whether the other one has each (domain, server) with the same or a greater number."""
        if not isinstance(other, MariadbGtidList):
            return NotImplemented
        theirs = other._last
        return all(seq <= theirs.get(key, -1) for key, seq in self._last.items())

    def __ge__(self, other: object) -> bool:
        return other <= self if isinstance(other, MariadbGtidList) else NotImplemented


def mysql_gtid(text: str) -> tuple[str, str, int]:
    """One GTID, in the scanner's form: uuid, tag or "", number. ValueError if it is none."""
    uuid, *tag, number = text.split(":")
    return uuid, tag[0] if tag else "", int(number)


def mariadb_gtid(text: str) -> tuple[int, int, int]:
    """One GTID, in the scanner's form: domain, server, number. ValueError if it is none."""
    domain, server, number = map(int, text.split("-"))
    return domain, server, number


Gtids: TypeAlias = GtidSet | MariadbGtidList
"""Either flavour: `==`, `<=`, `>=`, `|`, `str` and `bool` work on both alike."""


@overload
def parse(text: str, flavour: Literal["mysql"]) -> GtidSet: ...
@overload
def parse(text: str, flavour: Literal["mariadb"]) -> MariadbGtidList: ...
@overload
def parse(text: str, flavour: Flavour) -> Gtids: ...
def parse(text: str, flavour: Flavour) -> Gtids:
    """Parse GTIDs in the syntax of the flavour. Raises ValueError with what is wrong."""
    return GtidSet.parse(text) if flavour == "mysql" else MariadbGtidList.parse(text)


def empty(flavour: Flavour) -> Gtids:
    """No GTIDs, in the type of the flavour."""
    return GtidSet() if flavour == "mysql" else MariadbGtidList()


def joined(before: Gtids | None, added: Gtids | None) -> Gtids | None:
    """The GTIDs executed at the end of a binlog; None if one of the two is not known."""
    if isinstance(before, GtidSet) and isinstance(added, GtidSet):
        return before | added
    if isinstance(before, MariadbGtidList) and isinstance(added, MariadbGtidList):
        return before.then(added)
    return None


def either(gtids: Gtids, others: Gtids) -> Gtids:
    """The union. Raises TypeError for different flavours."""
    if isinstance(gtids, GtidSet) and isinstance(others, GtidSet):
        return gtids | others
    if isinstance(gtids, MariadbGtidList) and isinstance(others, MariadbGtidList):
        return gtids | others
    raise TypeError


def intersection(gtids: Gtids, others: Gtids) -> Gtids:
    """What is in both; of MariaDB's, the last of each server that both have."""
    if isinstance(gtids, GtidSet) and isinstance(others, GtidSet):
        return gtids & others
    if isinstance(gtids, MariadbGtidList) and isinstance(others, MariadbGtidList):
        last = {(d, s): n for d, s, n in others.gtids()}
        return MariadbGtidList(
            {(d, s): n for d, s, n in gtids.gtids() if n <= last.get((d, s), -1)}
        )
    raise TypeError


def beyond(gtids: Gtids, others: Gtids) -> str:
    """Those that are not among the others, as text; "" if there are none.

    Of MariaDB, those with a greater number than the others have of the same domain and server.
    """
    if isinstance(gtids, GtidSet):
        return str(gtids - others) if isinstance(others, GtidSet) else ""
    known = others if isinstance(others, MariadbGtidList) else MariadbGtidList()
    return ",".join(
        f"{domain}-{server}-{number}"
        for domain, server, number in gtids.gtids()
        if (there := known.number(domain, server)) is None or number > there
    )


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
