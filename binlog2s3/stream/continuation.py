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
from binlog2s3.stream.tail import Overlap, Track, overlap_of

Before = Callable[[BinlogName], str | None]
"""Returns the GTID set before a binlog of the source, None if the source keeps none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownEnd:
    """The end of what is known of a lineage: after `size` bytes of the binlog `last`.

    `last` is None if nothing is known, `size` 0 if nothing is known of its end. `closed`: `last` is
    complete. `gtids` is the GTID set there, and `gtids_before` the one at the begin of `last`; both
    are None if unknown. `rotates_to` is the binlog that its rotate event names. `overlap`: the
    bytes that a run that continues here reads again. `track`: `last`, if it was read back from the
    bucket and nobody has taken it in yet. `goes_back`: numbers of a MariaDB's domain and server go
    back in `last`: they do not tell what of it another server has executed.

    Where the archive alone ends, the bucket may have `next_size` bytes of the binlog that follows
    as chunks; None if that was not listed. `in_parts`: which of its last few binlogs were multipart
    uploads, whose clean-up may have been interrupted.
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
    next_size: int | None = None
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

    def after(self, binlogs: Iterable[BinlogReading]) -> "KnownEnd":
        """The end once these complete binlogs, which follow in order, are known too."""
        end = self
        for binlog in binlogs:
            end = KnownEnd(
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


def nothing_of(lineage: Lineage) -> KnownEnd:
    """The end of a lineage of which nothing is there: it begins with its first binlog, or floor."""
    before = lineage.floor.gtid_set if lineage.floor is not None else lineage.gtid_set
    return KnownEnd(lineage=lineage, gtids=parse(before, lineage.flavour))


def known_end_of(lineage: Lineage, binlog: BinlogReading, *, closed: bool) -> KnownEnd:
    """Where a history ends with this binlog, which may still grow if it is not closed."""
    end = KnownEnd(lineage=lineage).after([binlog])
    return replace(end, closed=closed, overlap=overlap_of(binlog))


@dataclass(frozen=True, slots=True, kw_only=True)
class GoOn:
    """The lineage continues after its known end; `again`: in a binlog of which a part is known."""

    known_end: KnownEnd
    again: bool

    @property
    def begin(self) -> BinlogName:
        """The binlog that it continues with."""
        return (
            self.known_end.last
            if self.again and self.known_end.last is not None
            else self.known_end.following
        )

    @property
    def overlap(self) -> Overlap | None:
        """The known bytes that come again; None if the binlog is read from its first byte on."""
        return self.known_end.overlap if self.again else None


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
    known_end: KnownEnd, join: Join, *, at: Position | None = None, missing: str = ""
) -> Parent:
    """The parent of a lineage that begins after this end, or `at` a position before it."""
    end = at or Position.of(known_end.end, known_end.gtids)
    return Parent(
        lineage=known_end.lineage.id,
        binlog=end.binlog if at is not None else known_end.last,
        offset=end.offset,
        gtid_set=end.gtid_set,
        join=join,
        missing=missing,
    )


def same_server(known_end: KnownEnd, listed: Sequence[ServerBinlog], before: Before) -> Course:
    """How the history of the server that wrote this lineage continues, by its own account.

    `listed` are the server's binlogs, oldest first, at least one.
    """
    rows = {row.name: row for row in listed}
    last, following = known_end.last, known_end.following
    row = rows.get(last) if last else None
    if last is not None and row is not None:
        if row.size < known_end.size or (known_end.closed and row.size != known_end.size):
            return Contradicts(why=f"its {last} has {row.size} bytes, {known_end.size} are known")
        newer = any(name > last for name in rows)
        if known_end.closed and newer and following not in rows:
            return Contradicts(why=f"it has no {following}")
        return GoOn(known_end=known_end, again=True)
    if following in rows:
        return _next(known_end, following, before)
    return _elsewhere(known_end, listed[0].name, before)


def _elsewhere(known_end: KnownEnd, oldest: BinlogName, before: Before) -> Course:
    """The server has neither the last known binlog nor the next one."""
    following = known_end.following
    if oldest.prefix == following.prefix and oldest > following:
        return _behind_a_gap(known_end, oldest, before)
    if known_end.last is None and known_end.lineage.floor is not None:  # all of it was pruned
        previous = _parsed(before(oldest), known_end.lineage.flavour)
        if known_end.gtids is not None and previous is not None and known_end.gtids <= previous:
            return _gap(known_end, oldest, previous)
        return Begin(begin=oldest, parent=parent(known_end, "unknown"))
    if known_end.last is None:  # the lineage has no byte yet: replace it
        return Begin(begin=oldest, parent=known_end.lineage.parent)
    if (
        oldest.prefix != following.prefix and known_end.gtids
    ):  # a RESET keeps the prefix, and no GTIDs
        previous = _parsed(before(oldest), known_end.lineage.flavour)
        if previous is not None and known_end.gtids <= previous:
            return _gap(known_end, oldest, previous)
    return Contradicts(why=f"it has no {following}")


def _next(known_end: KnownEnd, following: BinlogName, before: Before) -> Course:
    """The server has the next binlog, but no longer the last known one.

    The first binlog of a lineage is compared with lineage.json, one at a floor by its GTIDs.
    """
    if known_end.last is None and known_end.lineage.floor is None:
        return GoOn(known_end=known_end, again=False)
    previous = _parsed(before(following), known_end.lineage.flavour)
    if known_end.gtids is not None and previous is not None:
        if previous == known_end.gtids:
            return GoOn(known_end=known_end, again=False)
        if known_end.gtids <= previous and not known_end.closed:
            return _gap(known_end, following, previous)
        return Contradicts(why=f"its {following} begins after {previous or 'no GTIDs'}, what is "
                           f"known ends with {known_end.gtids or 'none'}")  # fmt: skip
    if known_end.closed and known_end.rotates_to in (None, following):
        return GoOn(known_end=known_end, again=False)
    return _gap(known_end, following, previous)


def _behind_a_gap(known_end: KnownEnd, oldest: BinlogName, before: Before) -> Course:
    """The server's oldest binlog comes after the one that would be next."""
    previous = _parsed(before(oldest), known_end.lineage.flavour)
    if known_end.gtids is not None and previous is not None and not known_end.gtids <= previous:
        return Contradicts(why=f"its {oldest} begins after {previous or 'no GTIDs'}, what is "
                           f"known ends with {known_end.gtids or 'none'}")  # fmt: skip
    return _gap(known_end, oldest, previous)


def unservable(
    known_end: KnownEnd,
    listed: Sequence[ServerBinlog],
    before: Before,
    unreadable: BinlogName | None = None,
) -> Begin | None:
    """How the history continues if the server cannot read out the rest of the last binlog.

    Or a later binlog, which is `unreadable` then. None if there is no binlog after it.
    """
    behind = unreadable or known_end.last
    later = [row.name for row in listed if behind is not None and row.name > behind]
    if not later:
        return None
    return _gap(known_end, later[0], _parsed(before(later[0]), known_end.lineage.flavour))


def left_out(
    known_end: KnownEnd,
    listed: Sequence[ServerBinlog],
    before: Before,
    *,
    aborted: bool = False,
) -> Begin | None:
    """The lineage after rows that are in no binlog: it begins with the binlog after the known end.

    `aborted`: the server ended itself there, so that there are none; equal GTIDs must show it, too.
    None if that is no end of a binlog, or the server does not have the next one.
    """
    begin = known_end.following
    if not known_end.closed or begin not in {row.name for row in listed}:
        return None
    origin = _gap(known_end, begin, _parsed(before(begin), known_end.lineage.flavour)).parent
    assert origin is not None  # noqa: S101 - it has the known end
    if aborted and origin.join == "exact":
        return Begin(begin=begin, parent=origin)
    named = origin.missing if origin.gtid_set else ""
    return Begin(begin=begin, parent=replace(origin, join="gap", missing=named, unlogged=True))


def _gap(known_end: KnownEnd, begin: BinlogName, previous: Gtids | None) -> Begin:
    """A lineage that begins after what the source no longer has."""
    if known_end.gtids is not None and previous is not None and (known_end.gtids or previous):
        missing = _difference(previous, known_end.gtids)
        join: Join = "gap" if missing else "exact"
        return Begin(begin=begin, parent=parent(known_end, join, missing=missing))
    return Begin(begin=begin, parent=parent(known_end, "gap", missing=_names(known_end, begin)))


def _names(known_end: KnownEnd, begin: BinlogName) -> str:
    """The names of what is between the known end and this binlog."""
    first, last = known_end.following, begin.number - 1
    names = (
        []
        if known_end.closed or known_end.last is None
        else [f"{known_end.last} from {known_end.size} on"]
    )
    if first.number == last:
        names.append(str(first))
    elif first.number < last:
        names.append(f"{first} to {BinlogName(begin.prefix, last, begin.width)}")
    return ", ".join(names)


def _difference(larger: Gtids, smaller: Gtids) -> str:
    if isinstance(larger, GtidSet) and isinstance(smaller, GtidSet):
        return str(larger - smaller)
    return "" if larger == smaller else f"after {smaller or 'nothing'} up to {larger}"


def acceptable(known_end: KnownEnd, executed: Gtids | None) -> bool:
    """Whether another server has taken over: it has all transactions before the last known binlog.

    It must also have a transaction of the lineage's own server: two clones of one image have the
    same beginning, but neither is the successor of the other.
    """
    if executed is None or known_end.gtids is None or not has(executed, known_end.gtids_before):
        return False
    return _shares_own(known_end, executed)


def _shares_own(known_end: KnownEnd, executed: Gtids) -> bool:
    own = known_end.lineage.server_uuid
    if isinstance(executed, GtidSet) and isinstance(known_end.gtids, GtidSet):
        return any(uuid == own.lower() for uuid, _, _ in (known_end.gtids & executed).runs())
    if isinstance(executed, MariadbGtidList) and isinstance(known_end.gtids, MariadbGtidList):
        pairs = {(domain, server) for domain, server, _ in executed.gtids()}
        return any(
            own.startswith(f"{server:08x}-") and (domain, server) in pairs
            for domain, server, _ in known_end.gtids.gtids()
        )
    return False


def has(executed: Gtids, gtids: Gtids | None) -> bool:
    """Whether all of these GTIDs are executed; False if they are unknown (None)."""
    return gtids is not None and type(executed) is type(gtids) and gtids <= executed


def successor(
    known_end: KnownEnd,
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
    whole = executed is not None and has(executed, known_end.gtids)
    origin = (
        parent(known_end, "exact") if whole else cut(executed) if executed is not None else None
    )
    if known_end.goes_back:
        origin = None
    if origin is None or not origin.gtid_set:
        return Begin(begin=oldest, parent=parent(known_end, "unknown"))
    known = parse(origin.gtid_set, known_end.lineage.flavour)
    previous: Gtids | None = None
    for row in reversed(listed):
        previous = _parsed(before(row.name), known_end.lineage.flavour)
        if previous is not None and previous <= known:
            return Begin(begin=row.name, parent=origin)
    if previous is None:
        return Begin(begin=oldest, parent=replace(origin, join="unknown"))
    missing = _difference(previous, known)
    return Begin(begin=oldest, parent=replace(origin, join="gap", missing=missing))


def _parsed(text: str | None, flavour: Flavour) -> Gtids | None:
    return parse(text, flavour) if text is not None else None
