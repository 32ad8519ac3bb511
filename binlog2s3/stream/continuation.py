"""How a history continues: in the same lineage, in a new one, or in a contradiction. Pure.

Law: a lineage continues only with what follows it by the server's own account (UUID, binlog names,
GTIDs), and the bytes must then prove that account. A join that is not proved says so: a gap names
what is missing, an unknown join is never crossed.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from binlog2s3.archive.documents import Join, Lineage, Parent
from binlog2s3.archive.reading import BinlogReading
from binlog2s3.archive.writers import Position
from binlog2s3.binlog.gtid import Flavour, Gtids, GtidSet, MariadbGtidList, parse
from binlog2s3.binlog.names import BinlogName, FilePosition
from binlog2s3.server.connection import ServerBinlog
from binlog2s3.stream.tail import Overlap, Track

Before = Callable[[BinlogName], str | None]
"""Returns the GTID set before a binlog of the source, None if the source keeps none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tip:
    """The end of what is known of a lineage: after `size` bytes of the binlog `last`.

    `last` is None if nothing is known, `size` 0 if nothing is known of its end. `closed`: `last` is
    complete. `gtids` is the GTID set there, and `gtids_before` the one at the begin of `last`; both
    are None if unknown. `rotates_to` is the binlog that its rotate event names. `overlap`: the
    bytes that a run that continues here reads again. `track`: `last`, if it was read back from the
    bucket and nobody has taken it in yet. `goes_back`: numbers of a MariaDB's domain and server go
    back in `last`: they do not tell what of it another server has executed.

    Where the archive alone ends, the bucket may have `next_size` bytes of the binlog that follows
    as chunks. `in_parts`: which of its last few binlogs were multipart uploads, whose clean-up may
    have been interrupted.
    """

    lineage: Lineage
    last: BinlogName | None = None
    size: int = 0
    closed: bool = False
    gtids: Gtids | None = None
    gtids_before: Gtids | None = None
    rotates_to: BinlogName | None = None
    overlap: Overlap | None = None
    track: Track | None = None
    goes_back: bool = False
    next_size: int = 0
    in_parts: tuple[BinlogName, ...] = ()

    @property
    def end(self) -> FilePosition:
        """Up to where the lineage is known."""
        return FilePosition(self.last or self.following, self.size)

    @property
    def read(self) -> FilePosition:
        """Up to where the source was read; the bucket has more of a binlog that is read again."""
        return FilePosition(self.end.binlog, self.overlap.end) if self.overlap else self.end

    @property
    def following(self) -> BinlogName:
        """The first binlog of which nothing is known."""
        return self.last.next() if self.last else self.lineage.begin

    @property
    def incomplete(self) -> BinlogName:
        """The first binlog that is not known completely."""
        return self.last if self.last is not None and not self.closed else self.following

    @property
    def rotated_to(self) -> BinlogName | None:
        """As `rotates_to`; None if the bucket has some of what follows: that was looked at then."""
        return self.rotates_to if self.closed and not self.next_size else None

    @property
    def position(self) -> Position | None:
        """The end as a position in the history; None if nothing is known."""
        if self.last is None or not self.size:
            return None
        return Position.of(self.end, self.gtids)

    def after(self, binlogs: Iterable[BinlogReading]) -> "Tip":
        """The end once these complete binlogs, which follow in order, are known too."""
        end = self
        for binlog in binlogs:
            end = Tip(
                lineage=self.lineage,
                last=binlog.name,
                size=binlog.size,
                closed=True,
                gtids=binlog.gtids_after(),
                gtids_before=binlog.gtids_before(),
                rotates_to=binlog.next_binlog,
                goes_back=binlog.scanner.gtids_go_back,
                in_parts=self.in_parts,
            )
        return end

    def contradiction(self, binlog: BinlogReading) -> str:
        """Why a binlog cannot be the one that follows; "" if it can."""
        name, lineage = binlog.name, self.lineage
        begun = binlog.created_at
        if name == lineage.first_binlog and begun != lineage.first_binlog_time:
            return f"it was created at {begun}, the lineage's at {lineage.first_binlog_time}"
        if binlog.next_binlog not in (None, name.next()):
            return f"it ends with a rotation to {binlog.next_binlog}"
        if self.rotates_to not in (None, name):
            return f"{self.last} ends with a rotation to {self.rotates_to}"
        before = binlog.gtids_before()
        if before is not None and self.gtids is not None and before != self.gtids:
            return f"it begins after {before or 'no GTIDs'}, not after {self.gtids or 'none'}"
        return ""


def nothing_of(lineage: Lineage) -> Tip:
    """The end of a lineage of which nothing is there: it begins with its first binlog, or floor."""
    before = lineage.floor.gtid_set if lineage.floor is not None else lineage.gtid_set
    return Tip(lineage=lineage, gtids=parse(before, lineage.flavour))


@dataclass(frozen=True, slots=True, kw_only=True)
class GoOn:
    """The lineage continues after its end `tip`; `again`: in a binlog of which a part is known."""

    tip: Tip
    again: bool

    @property
    def begin(self) -> BinlogName:
        """The binlog that it continues with."""
        return self.tip.last if self.again and self.tip.last is not None else self.tip.following

    @property
    def overlap(self) -> Overlap | None:
        """The known bytes that come again; None if the binlog is read from its first byte on."""
        return self.tip.overlap if self.again else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Begin:
    """A new lineage begins with this binlog; `parent` is None for the first lineage of a source."""

    begin: BinlogName
    parent: Parent | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Contradicts:
    """The server cannot have this history: its bytes must be compared."""

    why: str


Course = GoOn | Begin | Contradicts


def parent(
    tip: Tip,
    join: Join,
    *,
    place: FilePosition | None = None,
    gtids: Gtids | None = None,
    missing: str = "",
) -> Parent:
    """The parent of a lineage that begins after this tip, or after a place before it."""
    binlog, offset = place or (tip.last, tip.size)
    executed = gtids if place is not None else tip.gtids
    return Parent(
        lineage=tip.lineage.id,
        binlog=binlog,
        offset=offset,
        gtid_set=str(executed) if executed is not None else "",
        join=join,
        missing=missing,
    )


def same_server(tip: Tip, listed: Sequence[ServerBinlog], before: Before) -> Course:
    """How the history of the server that wrote this lineage continues, by its own account.

    `listed` are the server's binlogs, oldest first, at least one.
    """
    rows = {row.name: row for row in listed}
    last, following = tip.last, tip.following
    row = rows.get(last) if last else None
    if last is not None and row is not None:
        if row.size < tip.size or (tip.closed and row.size != tip.size):
            return Contradicts(why=f"its {last} has {row.size} bytes, {tip.size} are known")
        newer = any(name > last for name in rows)
        if tip.closed and newer and following not in rows:
            return Contradicts(why=f"it has no {following}")
        return GoOn(tip=tip, again=True)
    if following in rows:
        return _next(tip, following, before)
    return _elsewhere(tip, listed[0].name, before)


def _elsewhere(tip: Tip, oldest: BinlogName, before: Before) -> Course:
    """The server has neither the last known binlog nor the next one."""
    following = tip.following
    if oldest.prefix == following.prefix and oldest > following:
        return _behind_a_gap(tip, oldest, before)
    if tip.last is None and tip.lineage.floor is not None:  # all of it was pruned
        previous = _parsed(before(oldest), tip.lineage.flavour)
        if tip.gtids is not None and previous is not None and tip.gtids <= previous:
            return _gap(tip, oldest, previous)
        return Begin(begin=oldest, parent=parent(tip, "unknown"))
    if tip.last is None:  # the lineage has no byte yet: replace it
        return Begin(begin=oldest, parent=tip.lineage.parent)
    if oldest.prefix != following.prefix and tip.gtids:  # a RESET keeps the prefix, and no GTIDs
        previous = _parsed(before(oldest), tip.lineage.flavour)
        if previous is not None and tip.gtids <= previous:
            return _gap(tip, oldest, previous)
    return Contradicts(why=f"it has no {following}")


def _next(tip: Tip, following: BinlogName, before: Before) -> Course:
    """The server has the next binlog, but no longer the last known one.

    The first binlog of a lineage is compared with lineage.json, one at a floor by its GTIDs.
    """
    if tip.last is None and tip.lineage.floor is None:
        return GoOn(tip=tip, again=False)
    previous = _parsed(before(following), tip.lineage.flavour)
    if tip.gtids is not None and previous is not None:
        if previous == tip.gtids:
            return GoOn(tip=tip, again=False)
        if tip.gtids <= previous and not tip.closed:
            return _gap(tip, following, previous)
        return Contradicts(why=f"its {following} begins after {previous or 'no GTIDs'}, what is "
                           f"known ends with {tip.gtids or 'none'}")  # fmt: skip
    if tip.closed and tip.rotates_to in (None, following):
        return GoOn(tip=tip, again=False)
    return _gap(tip, following, previous)


def _behind_a_gap(tip: Tip, oldest: BinlogName, before: Before) -> Course:
    """The server's oldest binlog comes after the one that would be next."""
    previous = _parsed(before(oldest), tip.lineage.flavour)
    if tip.gtids is not None and previous is not None and not tip.gtids <= previous:
        return Contradicts(why=f"its {oldest} begins after {previous or 'no GTIDs'}, what is "
                           f"known ends with {tip.gtids or 'none'}")  # fmt: skip
    return _gap(tip, oldest, previous)


def unservable(
    tip: Tip,
    listed: Sequence[ServerBinlog],
    before: Before,
    unreadable: BinlogName | None = None,
) -> Begin | None:
    """How the history continues if the server cannot read out the rest of the last binlog.

    Or a later binlog, which is `unreadable` then. None if there is no binlog after it.
    """
    behind = unreadable or tip.last
    later = [row.name for row in listed if behind is not None and row.name > behind]
    if not later:
        return None
    return _gap(tip, later[0], _parsed(before(later[0]), tip.lineage.flavour))


def left_out(tip: Tip, listed: Sequence[ServerBinlog], before: Before) -> Begin | None:
    """The lineage after rows that are in no binlog: it begins with the binlog after the tip.

    None if the tip is no end of a binlog, or the server does not have the next one.
    """
    begin = tip.following
    if not tip.closed or begin not in {row.name for row in listed}:
        return None
    found = _gap(tip, begin, _parsed(before(begin), tip.lineage.flavour)).parent
    assert found is not None  # noqa: S101 - it has the tip
    named = found.missing if found.gtid_set else ""
    return Begin(begin=begin, parent=replace(found, join="gap", missing=named, unlogged=True))


def _gap(tip: Tip, begin: BinlogName, previous: Gtids | None) -> Begin:
    """A lineage that begins after what the source no longer has."""
    if tip.gtids is not None and previous is not None and (tip.gtids or previous):
        missing = _difference(previous, tip.gtids)
        join: Join = "gap" if missing else "exact"
        return Begin(begin=begin, parent=parent(tip, join, missing=missing))
    return Begin(begin=begin, parent=parent(tip, "gap", missing=_names(tip, begin)))


def _names(tip: Tip, begin: BinlogName) -> str:
    """The names of what is between the tip and this binlog."""
    first, last = tip.following, begin.number - 1
    names = [] if tip.closed or tip.last is None else [f"{tip.last} from {tip.size} on"]
    if first.number == last:
        names.append(str(first))
    elif first.number < last:
        names.append(f"{first} to {BinlogName(begin.prefix, last, begin.width)}")
    return ", ".join(names)


def _difference(larger: Gtids, smaller: Gtids) -> str:
    if isinstance(larger, GtidSet) and isinstance(smaller, GtidSet):
        return str(larger - smaller)
    return "" if larger == smaller else f"after {smaller or 'nothing'} up to {larger}"


def acceptable(tip: Tip, executed: Gtids | None) -> bool:
    """Whether another server has taken over: it has all transactions before the tip's last binlog.

    It must also have a transaction of the lineage's own server: two clones of one image have the
    same beginning, but neither is the successor of the other.
    """
    if executed is None or tip.gtids is None or not has(executed, tip.gtids_before):
        return False
    return _shares_own(tip, executed)


def _shares_own(tip: Tip, executed: Gtids) -> bool:
    own = tip.lineage.server_uuid
    if isinstance(executed, GtidSet) and isinstance(tip.gtids, GtidSet):
        return any(uuid == own.lower() for uuid, _, _ in (tip.gtids & executed).runs())
    if isinstance(executed, MariadbGtidList) and isinstance(tip.gtids, MariadbGtidList):
        there = {(domain, server) for domain, server, _ in executed.gtids()}
        return any(
            own.startswith(f"{server:08x}-") and (domain, server) in there
            for domain, server, _ in tip.gtids.gtids()
        )
    return False


def has(executed: Gtids, gtids: Gtids | None) -> bool:
    """Whether all of these GTIDs are executed; False if they are unknown (None)."""
    return gtids is not None and type(executed) is type(gtids) and gtids <= executed


def successor(
    tip: Tip,
    executed: Gtids | None,
    listed: Sequence[ServerBinlog],
    before: Before,
    *,
    cut: Callable[[Gtids], Parent | None],
) -> Begin:
    """The lineage of another server, which has executed these GTIDs.

    `cut` returns the last place of the known history up to which the server has everything, as a
    parent. The new lineage begins with the server's newest binlog before which it had executed
    nothing else.
    """
    oldest = listed[0].name
    whole = executed is not None and has(executed, tip.gtids)
    found = parent(tip, "exact") if whole else cut(executed) if executed is not None else None
    if tip.goes_back:
        found = None
    if found is None or not found.gtid_set:
        return Begin(begin=oldest, parent=parent(tip, "unknown"))
    known = parse(found.gtid_set, tip.lineage.flavour)
    previous: Gtids | None = None
    for row in reversed(listed):
        previous = _parsed(before(row.name), tip.lineage.flavour)
        if previous is not None and previous <= known:
            return Begin(begin=row.name, parent=found)
    if previous is None:
        return Begin(begin=oldest, parent=replace(found, join="unknown"))
    missing = _difference(previous, known)
    return Begin(begin=oldest, parent=replace(found, join="gap", missing=missing))


def _parsed(text: str | None, flavour: Flavour) -> Gtids | None:
    return parse(text, flavour) if text is not None else None
