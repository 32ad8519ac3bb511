"""The history of a source: which lineage is current, how lineages join, what is missing. Pure.

Law: an unknown join is never crossed; history begins after it. What follows a cut in a parent is a
dead branch and not part of the history. The streamer and all readers ask here, so they agree.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from binlog2s3.archive.documents import UNLOGGED, Lineage, Parent
from binlog2s3.archive.facts import Facts
from binlog2s3.archive.writers import Heartbeat, Turn
from binlog2s3.binlog.gtid import Flavour, Gtids, GtidSet, either, parse
from binlog2s3.binlog.names import BinlogName
from binlog2s3.binlog.scanner import MAGIC
from binlog2s3.formatting import brief


def current_of(lineages: Sequence[Lineage], turn: Turn | None) -> str:
    """The id of the current lineage: the last turn's, even if it has no lineage.json.

    Before the first turn, it is the newest lineage that has no child, "" if there is none.
    """
    if turn is not None:
        return turn.lineage
    ids = {lineage.id for lineage in lineages}
    parents = {lineage.parent.lineage for lineage in lineages if lineage.parent}
    return max(ids - parents or ids, default="")


# How lineages join


def parents_first(lineages: Iterable[Lineage]) -> list[Lineage]:
    """The lineages, parents before their children, otherwise oldest first; each once."""
    by_id = {lineage.id: lineage for lineage in sorted(lineages, key=lambda lineage: lineage.id)}
    children: dict[str, list[Lineage]] = {}
    for lineage in by_id.values():
        parent = lineage.parent.lineage if lineage.parent else ""
        children.setdefault(parent if parent in by_id else "", []).append(lineage)
    placed: dict[str, Lineage] = {}
    # lineages in a circle of parents are below no root, but are shown too
    for root in [*children.get("", ()), *by_id.values()]:
        waiting = [root]
        while waiting:
            lineage = waiting.pop()
            if lineage.id not in placed:
                placed[lineage.id] = lineage
                waiting += reversed(children.get(lineage.id, ()))
    return list(placed.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class LinePart:
    """The part of a lineage that belongs to a line: up to `cut`, where the next lineage continues.

    `cut` is None for the last lineage, which belongs to it as a whole. `begin`: how many bytes of
    its first binlog the part before has, too; 0 if it does not have that binlog. `missing`: what is
    missing between the part before and this one, "" if nothing is.
    """

    lineage: Lineage
    cut: Parent | None = None
    begin: int = 0
    missing: str = ""

    def holds(self, name: BinlogName) -> bool:
        """Whether any byte of this binlog of the lineage belongs to the line."""
        if name < self.lineage.first_binlog:
            return False
        return self.cut is None or (self.cut.binlog is not None and name <= self.cut.binlog)

    def end_of(self, name: BinlogName, size: int) -> int:
        """How many of a binlog's first `size` bytes belong to the line."""
        if self.cut is not None and self.cut.binlog == name:
            return min(size, self.cut.offset)
        return size


def is_within(offset: int, begin: int, end: int) -> bool:
    """Whether a position is in the part [`begin`, `end`) of a binlog: its last byte is.

    So a position where two parts meet is in the first one: whoever is there has all of that, and
    nothing of the second. A part that begins with the binlog has the position before its events.
    """
    return max(begin, len(MAGIC) - 1) < offset <= end


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """The history that ends in one lineage, as parts, oldest first; there is at least one.

    `barrier`: why it does not begin earlier, "" if its first lineage has no parent.
    """

    parts: tuple[LinePart, ...]
    barrier: str = ""


def line_of(lineages: Sequence[Lineage], tip: str) -> Line:
    """The line that ends in the lineage `tip`, which is one of these."""
    by_id = {lineage.id: lineage for lineage in lineages}
    lineage, cut = by_id[tip], None
    line_parts: list[LinePart] = []
    passed = {tip}
    while True:
        origin, crossed = origin_of(lineage, by_id)
        barrier = _barrier(origin, by_id, passed, cut, lineage)
        parent = by_id[origin.lineage] if origin is not None and not barrier else None
        line_parts.append(
            LinePart(
                lineage=lineage,
                cut=cut,
                begin=_shared(lineage, parent, origin),
                missing=(crossed or _unnamed(origin)) if parent and _is_gap(origin) else "",
            )
        )
        if parent is None:
            return Line(parts=tuple(reversed(line_parts)), barrier=barrier)
        passed.add(parent.id)
        lineage, cut = parent, origin


def origin_of(lineage: Lineage, by_id: Mapping[str, Lineage]) -> tuple[Parent | None, str]:
    """The parent that has bytes, skipping parents without any; and what is missing on the way.

    Its join is the worst one on the way.
    """
    passed = {lineage.id}
    missing: list[str] = []
    worst, unlogged = "exact", False
    while True:
        origin = lineage.parent
        if origin is None:
            return None, ""
        missing += [origin.missing] if origin.missing else []
        unlogged |= origin.unlogged
        sure = _is_gtid_set(origin.gtid_set, lineage.flavour)
        worst = max(
            worst, origin.join if sure else "unknown", key=("exact", "gap", "unknown").index
        )
        above = by_id.get(origin.lineage)
        if origin.binlog is not None or above is None or above.id in passed:
            found = Parent(
                lineage=origin.lineage,
                binlog=origin.binlog,
                offset=origin.offset,
                gtid_set=origin.gtid_set,
                join="unknown" if worst == "unknown" else "gap" if worst == "gap" else "exact",
                missing=origin.missing,
                unlogged=unlogged,
            )
            return found, ", ".join(reversed(missing))
        passed.add(above.id)
        lineage = above


def _is_gtid_set(text: str, flavour: Flavour) -> bool:
    try:
        return not text or parse(text, flavour) is not None
    except ValueError:
        return False


def _barrier(
    origin: Parent | None,
    by_id: Mapping[str, Lineage],
    passed: set[str],
    cut: Parent | None,
    lineage: Lineage,
) -> str:
    """Why the line does not continue to the parent; "" if it does, or if there is none."""
    if origin is None:
        return ""
    if origin.join == "unknown":
        return f"nothing proves that {lineage.id} continues from {origin.point}"
    if origin.lineage not in by_id or origin.binlog is None:
        return f"{lineage.id} continues from {origin.point}, which is not in the bucket"
    if origin.lineage in passed:
        return f"the parents of {lineage.id} lead back to it"
    if cut is not None and _is_before(cut, origin, lineage, by_id[origin.lineage]):
        return (
            f"history left {lineage.id} at {cut.binlog}:{cut.offset}, before {lineage.id} itself "
            f"left {origin.point}"
        )
    return ""


def _is_before(cut: Parent, origin: Parent, lineage: Lineage, parent: Lineage) -> bool:
    """Whether the line leaves a lineage at a point before the lineage left its own parent.

    Only its first binlog repeats something of the parent. MariaDB's numbers may go back after that.
    """
    if lineage.flavour == "mariadb" and cut.binlog not in (None, lineage.first_binlog):
        return False
    if cut.gtid_set and origin.gtid_set:
        try:
            then = parse(origin.gtid_set, lineage.flavour)
            return not then <= parse(cut.gtid_set, lineage.flavour)
        except (ValueError, TypeError):
            return True
    return cut.binlog == lineage.first_binlog and _shared(lineage, parent, origin) > cut.offset


def _shared(lineage: Lineage, parent: Lineage | None, origin: Parent | None) -> int:
    """How many bytes of its first binlog the parent has, too: the same file of the same server."""
    if parent is None or origin is None or origin.binlog != lineage.first_binlog:
        return 0
    return origin.offset if parent.server_uuid == lineage.server_uuid else 0


def _unnamed(origin: Parent | None) -> str:
    return "rows without GTIDs" if origin is not None and origin.unlogged else "unknown"


def _is_gap(origin: Parent | None) -> bool:
    return origin is not None and origin.join == "gap"


# Whether one binlog follows another


def is_unlogged_between(*, rotated: bool, started: bool | None) -> bool:
    """Whether a server went on without a binlog after one binlog, as its bytes and the next show.

    `rotated`: the first ends with a rotate event: the running server makes the next one at once.
    `started`: a start of the server began the next one (None: not known). A server that ends writes
    a stop event before that, and one that crashes neither, so a rotation has failed. A crash just
    between the rotate event and the new binlog leaves the same bytes, and cannot be told apart.
    """
    return rotated and bool(started)


@dataclass(frozen=True, slots=True, kw_only=True)
class Break:
    """Why a binlog does not follow the one before it, in words.

    `gtids`: it begins after other GTIDs than those at the end of the one before. `unfinished`: the
    end of the one before is not there. `unlogged`: the source left rows out in between.
    """

    kind: Literal["gtids", "unfinished", "unlogged"]
    text: str


def break_between(before: Facts, other: Facts) -> Break | None:
    """Why a binlog does not follow another one of its lineage; None if nothing shows a break.

    That its name is the next one is for `missing_binlogs`. A transaction in damaged bytes may have
    a GTID that only the next binlog shows: then that is a break, as nothing else tells of it.
    """
    if text := gtids_break(before.name, before.gtids_after, other.name, other.gtids_before):
        return Break(kind="gtids", text=text)
    if not _is_complete(before, other):
        text = f"only the first {before.size} bytes of {before.name} are there"
        return Break(kind="unfinished", text=text)
    if is_unlogged_between(rotated=before.rotated, started=other.started):
        return Break(kind="unlogged", text=UNLOGGED)
    return None


def gtids_break(
    before: BinlogName, end: Gtids | None, other: BinlogName, begin: Gtids | None
) -> str:
    """Why a binlog that begins after these GTIDs does not follow the one that ends with those.

    "" if it does, or if either is not known.
    """
    if end is None or begin is None or end == begin:
        return ""
    text = f"{other} begins after {brief(begin)}, {before} ends with {brief(end)}"
    if not (isinstance(begin, GtidSet) and isinstance(end, GtidSet)):
        return text
    parts = [f"{brief(begin - end)} is in no binlog"] if begin - end else []
    parts += [f"{brief(end - begin)} is executed, but missing there"] if end - begin else []
    return f"{text}: {', '.join(parts)}"


def follows(one: Facts, other: Facts) -> bool:
    """Whether the other one is the next binlog and begins with exactly the GTIDs at this one's end.

    That is more than no break: both say their GTIDs, and this one's end shows them all, which it
    does not if numbers go back in it, as MariaDB's may.
    """
    before, end = one.gtids_before, one.gtids_after
    is_more = before is None or end == either(before, one.gtids_added)
    same = (end or None) == (other.gtids_before or None)  # no GTIDs, or none yet
    is_next = one.name.next() == other.name
    return is_next and is_more and same and break_between(one, other) is None


def _is_complete(before: Facts, other: Facts) -> bool:
    """Whether nothing is missing at a binlog's end: it has ended, or the next one proves it.

    The next one proves it by beginning after exactly its GTIDs, if they are all it has. Where one
    of them has transactions without a GTID, so may the end that is missing.
    """
    end, all_named = before.gtids_after, not (before.anonymous or other.anonymous)
    return before.ended or (all_named and bool(end) and end == other.gtids_before)


# How far, without a break


@dataclass(frozen=True, slots=True, kw_only=True)
class LineBinlog:
    """One binlog of a line; `line_part` is the number of its part.

    `broken`: why the binlog before does not lead up to this one, "" if it does. `missing`: what is
    known to be missing between them, "" if that is unknown.
    """

    line_part: int
    name: BinlogName
    broken: str = ""
    missing: str = ""


def line_binlogs(
    line: Line,
    names_of: Callable[[str], Sequence[BinlogName]],
    is_next: Callable[[str, BinlogName, BinlogName], bool] | None = None,
) -> Iterator[LineBinlog]:
    """The binlogs of a line, one after the other, and the breaks that their names show.

    `names_of`: those of a lineage that are there. `is_next`: whether nothing of it is missing
    between two of them; else their names tell.
    """
    begun, gone = False, ""
    for number, line_part in enumerate(line.parts):
        id_, first = line_part.lineage.id, line_part.lineage.first_binlog
        names = [name for name in names_of(id_) if line_part.holds(name)]
        why, missing = gone, ""
        if begun and line_part.missing:
            why, missing = why_gap(line, number), line_part.missing
        elif begun and names[:1] != [first]:
            why = f"{first} of {id_} is missing"
        for name in names[:1]:
            yield LineBinlog(
                line_part=number, name=name, broken=why if begun else "", missing=missing
            )
        for before, other in pairwise(names):
            text = f"the binlogs between {before} and {other} are missing"
            is_there = (
                is_next(id_, before, other) if is_next is not None else other == before.next()
            )
            broken = "" if is_there else text
            yield LineBinlog(line_part=number, name=other, broken=broken)
        begun = begun or bool(names)
        gone = "" if names else f"all of {id_} is missing"


def why_gap(line: Line, number: int) -> str:
    """Why something is missing between a part and the one before; "" if nothing is."""
    line_part, cut = line.parts[number], line.parts[number - 1].cut if number else None
    if cut is None or not line_part.missing:
        return ""
    if cut.unlogged:
        return UNLOGGED
    lineage = line_part.lineage
    return f"the source had purged what comes before {lineage.first_binlog} of {lineage.id}"


def cut_is_missing(line_part: LinePart, name: BinlogName, size: int) -> str:
    """Why a part does not lead up to the next one, if its last binlog has this name and size."""
    cut = line_part.cut
    if cut is None or (cut.binlog == name and size >= cut.offset):
        return ""
    return f"{line_part.lineage.id} does not reach up to {cut.binlog}:{cut.offset}"


@dataclass(frozen=True, slots=True)
class Interval:
    """Binlogs `first` to `last`, by number in their line, between which nothing is missing.

    `why_it_ends`: why the next one does not follow; "" for the last one of a history.
    """

    first: int
    last: int
    why_it_ends: str


def extent(
    binlogs: Sequence[LineBinlog], broken: Callable[[int], str] = lambda _: "", first: int = 0
) -> Iterator[Interval]:
    """The intervals that can be recovered without a break, in order, from binlog `first` on.

    `broken`: why a binlog does not follow the one before, by more than their names; "" if it does.
    """
    for number in range(first + 1, len(binlogs)):
        if why := binlogs[number].broken or broken(number):
            yield Interval(first, number - 1, why)
            first = number
    if first < len(binlogs):
        yield Interval(first, len(binlogs) - 1, "")


# What is missing


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingBinlogs:
    """Binlogs `first` to `last` are missing; `under_way`: the writer has not reached them yet."""

    first: BinlogName
    last: BinlogName
    under_way: bool

    @property
    def count(self) -> int:
        """How many are missing."""
        return self.last.number - self.first.number + 1


def missing_binlogs(
    lineage: Lineage,
    names: Sequence[BinlogName],
    writer: Heartbeat | None,
    *,
    from_start: bool = True,
) -> Iterator[MissingBinlogs]:
    """The binlog numbers that are missing between these names, from the lineage's floor on.

    `from_start`: those between the lineage's begin and the first name are missing, too. What is
    missing below the floor was pruned.
    Several binlogs are archived at the same time, so one that the last writer has not reported as
    durable can arrive after a later one.
    """
    first, floor = lineage.begin, lineage.floor
    gaps = [(first, names[0])] if from_start and names and first < names[0] else []
    gaps += [
        (before.next(), other)
        for before, other in pairwise(names)
        if before.prefix == other.prefix and before.next() < other
    ]
    for first, behind in gaps:
        if floor is not None and first.number < floor.binlog.number:
            if behind.number <= floor.binlog.number:
                continue
            first = floor.binlog  # noqa: PLW2901
        under_way = (
            writer is not None
            and writer.lineage == lineage.id
            and (writer.durable is None or first > writer.durable.binlog)
        )
        yield MissingBinlogs(first=first, last=_previous(behind, first), under_way=under_way)


def _previous(name: BinlogName, least: BinlogName) -> BinlogName:
    if name.prefix != least.prefix or name.number <= least.number:
        return least
    number = name.number - 1
    return BinlogName(name.prefix, number, max(least.width, len(str(number))))
