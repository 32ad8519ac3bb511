"""How binlogs and lineages follow one another, and which intervals can be recovered. Pure.

Law: names, GTIDs, sizes and checksums show no break within an interval. Only the GTID sets at its
ends are kept, so memory does not grow with the number of binlogs. A parent's point is correct only
if the bytes up to it are there, and its GTIDs can be those executed there. If the entries do not
show this, --deep reads up to the point.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import reduce

from binlog2s3.archive.documents import EntryRow, Lineage, Parent
from binlog2s3.archive.facts import Binlog, Facts, facts_of
from binlog2s3.archive.history import (
    Break,
    Line,
    LinePart,
    break_between,
    cut_is_missing,
    extent,
    line_binlogs,
)
from binlog2s3.binlog.gtid import Gtids, GtidSet, parse
from binlog2s3.binlog.names import BinlogName
from binlog2s3.errors import ArchiveError
from binlog2s3.formatting import brief, us_of
from binlog2s3.inspect.verify.report import Interval, Kind, RecordedGap
from binlog2s3.server.version import ServerVersion


def of_entry(entry: EntryRow, size: int, lineage: Lineage) -> Binlog | Facts:
    """What an entry says; only the object's `size` if its GTIDs cannot be parsed."""
    try:
        return replace(facts_of(entry, lineage), size=size)
    except (ArchiveError, LookupError, TypeError, ValueError):  # reported as a defect
        return Binlog(lineage=lineage, name=entry.name, size=size, state="undescribed")


def _before(binlog: Binlog | Facts) -> Gtids | None:
    """The GTIDs executed at its beginning, None if not known."""
    return binlog.gtids_before if isinstance(binlog, Facts) else None


def _after(binlog: Binlog | Facts) -> Gtids | None:
    """The GTIDs executed at its end, None if not known."""
    return binlog.gtids_after if isinstance(binlog, Facts) else None


def break_before(other: Binlog | Facts, before: Binlog | Facts) -> Break | None:
    """Why a binlog does not follow the one before it; None if nothing shows a break.

    That GTIDs are missing in one with damaged bytes is no defect: they are in those.
    """
    if isinstance(before, Facts) and isinstance(other, Facts):
        found = break_between(before, other)
        if found is not None and found.kind == "gtids" and before.damaged:
            return break_between(replace(before, gtids_before=None), other)
        return found
    return None if before.ended else Break(kind="unfinished", text=f"{before.name} is not whole")


class Intervals:
    """Collects the intervals of one lineage; the last one of `found` may be without an end.

    What `history.extent` groups when all binlogs are known, one after the other: breaks are those
    of `break_between` and `missing_binlogs`, and what the walk itself finds wrong. Only sums stay.
    """

    def __init__(self) -> None:
        self.found: list[Interval] = []
        self._is_open = False

    def add(self, binlog: Binlog | Facts, broken: str = "") -> None:
        """Add the next binlog; `broken`: why it does not follow the one before."""
        if broken:
            self.end(broken)
        interval = _interval_of(binlog)
        if self._is_open:
            interval = _merged(self.found.pop(), interval)
        self.found.append(interval)
        self._is_open = True

    def end(self, why: str = "", vouched_us: int | None = None, gtids: str | None = None) -> None:
        """End the interval.

        At the end of the lineage, the writer's heartbeat may know more: up to when nothing is
        missing, and which GTIDs were executed.
        """
        if self._is_open:
            interval = self.found.pop()
            times = [us for us in (interval.to_us, vouched_us) if us is not None]
            known = interval.gtids_after
            self.found.append(
                replace(
                    interval,
                    to_us=max(times, default=None),
                    untimed="" if times else interval.untimed,
                    gtids_after=gtids if known is None else known,
                    why=why,
                )
            )
        self._is_open = False


def _interval_of(binlog: Binlog | Facts) -> Interval:
    """One binlog alone."""
    facts = binlog if isinstance(binlog, Facts) else None
    to_us = facts.reached_us if facts is not None else None
    return Interval(
        lineage=binlog.lineage.id,
        first=binlog.name,
        last_lineage=binlog.lineage.id,
        last=binlog.name,
        last_offset=binlog.size,
        from_us=_from_us(binlog),
        to_us=to_us,
        untimed="" if to_us is not None else _untimed(binlog),
        gtids_before=_text(_before(binlog)),
        gtids_after=_text(_after(binlog)),
        binlogs=1,
        size=binlog.size,
        transactions=facts.transactions if facts is not None else 0,
    )


def _from_us(first: Binlog | Facts) -> int | None:
    """When it begins; of one that was not read, a lineage.json may say it."""
    if isinstance(first, Facts):
        return first.first_us
    lineage = first.lineage
    is_begun = first.name == lineage.first_binlog and not first.ended
    return us_of(lineage.first_binlog_time) if is_begun else None


def _untimed(last: Binlog | Facts) -> str:
    """Why the end time of an interval that ends with this binlog is not known."""
    if isinstance(last, Facts):
        return "it has no commits, and no heartbeat tells up to when it is complete"
    if last.ended:
        return f"{last.name} has no entry and was not read"
    return f"{last.name} is open and was not read; --deep reads it"


def _text(gtids: Gtids | None) -> str | None:
    return None if gtids is None else str(gtids)


def along(
    line: Line,
    intervals: Mapping[str, Sequence[Interval]],
    cuts: Mapping[tuple[str, str], Binlog | Facts],
) -> list[Interval]:
    """The intervals of a line of lineages; those that continue from part to part are merged.

    `cuts` are the binlogs at which lineages were left. What follows a cut is left out.
    """
    parts = {
        line_part.lineage.id: [
            _within(line_part, interval, cuts)
            for interval in intervals.get(line_part.lineage.id, ())
            if line_part.holds(interval.first)
        ]
        for line_part in line.parts
    }
    held = [interval for line_part in line.parts for interval in parts[line_part.lineage.id]]
    binlogs = [
        *line_binlogs(
            line, lambda id_: [interval.first for interval in parts[id_]], lambda *_: False
        )
    ]

    def broken(number: int) -> str:
        before = held[number - 1]
        line_part = line.parts[binlogs[number - 1].line_part]
        return before.why or cut_is_missing(line_part, before.last, before.last_offset)

    found: list[Interval] = []
    for run in extent(binlogs, broken):
        merged = reduce(_merged, held[run.first : run.last + 1])
        if run.why_it_ends and not merged.why:
            line_part = line.parts[binlogs[run.last + 1].line_part]
            missing = line_part.missing if line_part.missing != "unknown" else ""
            why = (
                f"missing: {missing}"
                if missing
                else f"{line_part.lineage.id} does not continue from there"
            )
            merged = replace(merged, why=why)
        found.append(merged)
    return found


def _within(
    line_part: LinePart, interval: Interval, cuts: Mapping[tuple[str, str], Binlog | Facts]
) -> Interval:
    """The part of a lineage's interval that belongs to a line."""
    name = line_part.cut.binlog if line_part.cut is not None else None
    if line_part.cut is None or name is None or not interval.first <= name <= interval.last:
        return interval
    facts = cuts.get((line_part.lineage.id, str(name)))
    short = "" if facts is None else cut_is_missing(line_part, name, facts.size)
    return _until(interval, line_part.cut, name, facts, short)


def _until(
    interval: Interval, cut: Parent, name: BinlogName, facts: Binlog | Facts | None, short: str
) -> Interval:
    """An interval up to a cut in its binlog `name`; `short`: why the bytes do not reach it."""
    to_us = interval.to_us
    if name < interval.last or facts is None or cut.offset < facts.size:
        to_us = facts.least_commit_us if isinstance(facts, Facts) else None
    if facts is not None and cut.offset >= facts.size:
        to_us = interval.to_us
        if name != interval.last:
            to_us = facts.reached_us if isinstance(facts, Facts) else None
    untimed = ""
    if to_us is None:
        untimed = f"{name} has no commit before that point"
        if isinstance(facts, Binlog):
            untimed = _untimed(facts)
    return replace(
        interval,
        last=name,
        last_offset=facts.size if short and facts is not None else cut.offset,
        to_us=to_us,
        untimed=untimed,
        gtids_after=_text(_after(facts)) if short and facts is not None else cut.gtid_set or None,
        binlogs=name.number - interval.first.number + 1,
        why=short,
    )


def _merged(interval: Interval, other: Interval) -> Interval:
    times = [us for us in (interval.to_us, other.to_us) if us is not None]
    return replace(
        other,
        lineage=interval.lineage,
        first=interval.first,
        from_us=interval.from_us,
        to_us=max(times, default=None),
        untimed="" if times else other.untimed,
        gtids_before=interval.gtids_before,
        binlogs=interval.binlogs + other.binlogs,
        size=interval.size + other.size,
        transactions=interval.transactions + other.transactions,
    )


GtidsAt = Callable[[str, BinlogName, int], Gtids | str | None]
"""The GTIDs executed at an offset, by the binlog's bytes; a text: why the offset is wrong.

None if not known."""


def own_problems(lineage: Lineage) -> Iterator[str]:
    """What contradicts itself in a lineage.json."""
    time, server, _ = lineage.id.split("-")
    if f"{lineage.first_binlog_time:%Y%m%dT%H%M%SZ}" != time:
        yield f"first_binlog_time is {lineage.first_binlog_time.isoformat()}, its id says {time}"
    if lineage.server_uuid[:8].lower() != server:
        yield f"server.uuid is {lineage.server_uuid}, its id says {server}"
    if ServerVersion(lineage.server_version).flavour != lineage.flavour:
        yield f"server.flavour is {lineage.flavour}, server.version {lineage.server_version}"
    try:
        parse(lineage.gtid_set, lineage.flavour)
    except ValueError as error:
        yield f"gtid_set: {brief(error)}"


def gap_of(lineage: Lineage) -> RecordedGap | None:
    """The gap before a lineage that its lineage.json records, if any."""
    origin = lineage.parent
    if origin is None or origin.join == "exact":
        return None
    why = origin.cause if origin.join == "gap" else "nothing proves how they join"
    return RecordedGap(
        kind=origin.join,
        lineage=lineage.id,
        text=f"between {origin.point} and {lineage.id}: {why}",
        missing=origin.missing,
    )


def parent_problems(
    child: Lineage,
    lineages: Mapping[str, Lineage],
    facts: Mapping[tuple[str, str], Binlog | Facts],
    gtids_at: GtidsAt | None,
) -> Iterator[tuple[Kind, str]]:
    """What is wrong with the parent of a lineage. `facts` are of the binlogs that parents name."""
    origin = child.parent
    if origin is None:
        return
    if (parent := lineages.get(origin.lineage)) is None:
        yield "parent-missing", f"it continues from {origin.point}, but that lineage is missing"
        return
    for text in _parent_lies(child, parent, origin, lineages, facts, gtids_at):
        yield "parent-lies", text


def _parent_lies(
    child: Lineage,
    parent: Lineage,
    origin: Parent,
    lineages: Mapping[str, Lineage],
    facts: Mapping[tuple[str, str], Binlog | Facts],
    gtids_at: GtidsAt | None,
) -> Iterator[str]:
    if parent.flavour != child.flavour:
        yield f"its parent {parent.id} is {parent.flavour}, it is {child.flavour}"
        return
    if _leads_back(child, lineages):
        yield "its parents lead back to it"
        return
    try:
        executed = parse(origin.gtid_set, child.flavour) if origin.gtid_set else None
    except ValueError as error:
        yield f"parent.gtid_set: {brief(error)}"
        return
    is_pruned = origin.binlog is not None and parent.is_below_floor(origin.binlog)
    if not is_pruned or (origin.lineage, str(origin.binlog)) in facts:
        yield from _place_problems(origin, facts, executed, gtids_at)
    yield from _join_problems(child, origin, executed)


def _leads_back(child: Lineage, lineages: Mapping[str, Lineage]) -> bool:
    passed = {child.id}
    lineage: Lineage | None = child
    while lineage is not None:
        lineage = lineages.get(lineage.parent.lineage) if lineage.parent else None
        if lineage is not None and lineage.id in passed:
            return lineage.id == child.id
        passed.add(lineage.id if lineage else "")
    return False


def _place_problems(
    origin: Parent,
    facts: Mapping[tuple[str, str], Binlog | Facts],
    executed: Gtids | None,
    gtids_at: GtidsAt | None,
) -> Iterator[str]:
    """Whether the parent's binlog reaches the offset, and has executed these GTIDs there."""
    if origin.binlog is None:
        if origin.offset:
            yield f"parent.offset is {origin.offset} without a binlog"
        return
    binlog = facts.get((origin.lineage, str(origin.binlog)))
    if binlog is None:
        yield f"it continues from {origin.point}, but that binlog is missing"
        return
    if not 0 < origin.offset <= binlog.size:
        yield f"it continues from {origin.point}, but only {binlog.size} bytes are there"
        return
    if gtids_at is not None:
        found = gtids_at(origin.lineage, origin.binlog, origin.offset)
        if isinstance(found, str):
            yield f"it continues from {origin.point}: {found}"
        elif executed is not None and found is not None and found != executed:
            yield f"parent.gtid_set is {brief(executed)}, executed there is {brief(found)}"
        if found is not None:
            return
    if executed is not None:
        yield from _gtid_problems(origin, binlog, executed)


def _gtid_problems(origin: Parent, binlog: Binlog | Facts, executed: Gtids) -> Iterator[str]:
    """Whether these GTIDs can have been executed at the parent's point, by the binlog's entry."""
    before, after = _before(binlog), _after(binlog)
    if before is None or after is None:
        return
    if binlog.ended and origin.offset == binlog.size:
        if executed != after and isinstance(binlog, Facts) and not binlog.anonymous:
            yield f"parent.gtid_set is {brief(executed)}, {origin.binlog} ends with {brief(after)}"
    elif isinstance(executed, GtidSet) and not (before <= executed <= after):
        yield (
            f"parent.gtid_set is {brief(executed)}, within {origin.binlog} it is from "
            f"{brief(before)} to {brief(after)}"
        )


def _join_problems(child: Lineage, origin: Parent, executed: Gtids | None) -> Iterator[str]:
    """Whether what the join calls missing is missing."""
    if origin.join == "exact" and origin.missing:
        yield f"parent.join is exact, and parent.missing {brief(origin.missing)}"
    if executed is None or not child.gtid_set or origin.join == "unknown":
        return
    try:
        before = parse(child.gtid_set, child.flavour)
    except ValueError:
        return  # reported already
    if origin.join == "exact" and isinstance(before, GtidSet) and not before <= executed:
        yield (
            f"parent.join is exact, but it begins after {brief(before)}, and its parent's point is "
            f"{brief(executed)}"
        )
    if origin.join == "gap" and before <= executed and not origin.unlogged:
        yield f"parent.join is gap, but all of {brief(before)} is executed in its parent"
    elif origin.join == "gap" and isinstance(before, GtidSet) and isinstance(executed, GtidSet):
        try:
            missing = GtidSet.parse(origin.missing)  # empty if only rows without GTIDs are
        except ValueError:
            return  # binlog names instead of GTIDs
        if missing != before - executed:
            yield f"parent.missing is {brief(missing)}, {brief(before - executed)} is missing"
