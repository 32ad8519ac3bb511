"""Where lineages say that they come from, held against what is there. Pure.

Place in the flow: `verify` asks when all lineages have been walked.

Law: a parent's point is true only if the bytes up to there are there, and its GTIDs can be those
executed there. Where the entries do not tell, --deep reads up to the point.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from binlog2s3.archive.documents import Lineage, Parent
from binlog2s3.binlog.gtid import Gtids, GtidSet, parse
from binlog2s3.binlog.names import BinlogName
from binlog2s3.errors import ArchiveError
from binlog2s3.formatting import brief
from binlog2s3.inspect.verify.chain import Facts
from binlog2s3.inspect.verify.report import Gap

GtidsAt = Callable[[str, BinlogName, int], Gtids | str | None]
"""What is executed at a place of a lineage's binlog, by its bytes; a text: why that is no place.

None where nobody can tell."""


@dataclass(frozen=True, slots=True)
class Wrong:
    """What is wrong with a lineage's parent; `missing`: it is not there."""

    text: str
    missing: bool = False


def own_problems(lineage: Lineage) -> Iterator[str]:
    """What in a lineage.json contradicts itself."""
    time, server, _ = lineage.id.split("-")
    if f"{lineage.first_binlog_time:%Y%m%dT%H%M%SZ}" != time:
        yield f"first_binlog_time is {lineage.first_binlog_time.isoformat()}, its id says {time}"
    if lineage.server_uuid[:8].lower() != server:
        yield f"server.uuid is {lineage.server_uuid}, its id says {server}"
    if ("mariadb" in lineage.server_version.lower()) != (lineage.flavour == "mariadb"):
        yield f"server.flavour is {lineage.flavour}, server.version {lineage.server_version}"
    try:
        parse(lineage.gtid_set, lineage.flavour)
    except ValueError as error:
        yield f"gtid_set: {brief(error)}"


def gap_of(lineage: Lineage) -> Gap | None:
    """The gap that a lineage says lies before it, if any."""
    try:
        origin = lineage.origin
    except ArchiveError:
        return None
    if origin is None or origin.join == "exact":
        return None
    known = "the source had purged what comes between"
    why = known if origin.join == "gap" else "nothing proves how they are joined"
    return Gap(
        kind=origin.join,
        lineage=lineage.id,
        text=f"between {origin.place} and {lineage.id}: {why}",
        missing=origin.missing,
    )


def parent_problems(
    child: Lineage,
    lineages: Mapping[str, Lineage],
    facts: Mapping[tuple[str, str], Facts],
    gtids_at: GtidsAt | None,
) -> Iterator[Wrong]:
    """What is wrong with the parent of a lineage. `facts` are of the binlogs that parents name."""
    try:
        origin = child.origin
    except ArchiveError as error:
        yield Wrong(str(error))
        return
    if origin is None:
        return
    parent = lineages.get(origin.lineage)
    if parent is None:
        yield Wrong(f"it goes on from {origin.place}, and that lineage is not there", missing=True)
        return
    if parent.flavour != child.flavour:
        yield Wrong(f"its parent {parent.id} is of {parent.flavour}, it is of {child.flavour}")
        return
    if _leads_back(child, lineages):
        yield Wrong("its parents lead back to it")
        return
    try:
        executed = parse(origin.gtid_set, child.flavour) if origin.gtid_set else None
    except ValueError as error:
        yield Wrong(f"parent.gtid_set: {brief(error)}")
        return
    yield from _place_problems(origin, facts, executed, gtids_at)
    yield from _join_problems(child, origin, executed)


def _leads_back(child: Lineage, lineages: Mapping[str, Lineage]) -> bool:
    passed = {child.id}
    lineage: Lineage | None = child
    while lineage is not None:
        try:
            origin = lineage.origin
        except ArchiveError:
            return False
        lineage = lineages.get(origin.lineage) if origin else None
        if lineage is not None and lineage.id in passed:
            return lineage.id == child.id
        passed.add(lineage.id if lineage else "")
    return False


def _place_problems(
    origin: Parent,
    facts: Mapping[tuple[str, str], Facts],
    executed: Gtids | None,
    gtids_at: GtidsAt | None,
) -> Iterator[Wrong]:
    """The parent's binlog is there up to the offset, and has executed so much there."""
    if origin.binlog is None:
        if origin.offset:
            yield Wrong(f"parent.offset is {origin.offset} without a binlog")
        return
    there = facts.get((origin.lineage, origin.binlog))
    if there is None:
        yield Wrong(f"it goes on from {origin.place}, of which nothing is there")
        return
    if not 0 < origin.offset <= there.size:
        yield Wrong(f"it goes on from {origin.place}, of which {there.size} bytes are there")
        return
    if gtids_at is not None:
        found = gtids_at(origin.lineage, BinlogName.parse(origin.binlog), origin.offset)
        if isinstance(found, str):
            yield Wrong(f"it goes on from {origin.place}: {found}")
        elif executed is not None and found is not None and found != executed:
            yield Wrong(f"parent.gtid_set is {brief(executed)}, executed there is {brief(found)}")
        if found is not None:
            return
    if executed is not None:
        yield from _gtid_problems(origin, there, executed)


def _gtid_problems(origin: Parent, there: Facts, executed: Gtids) -> Iterator[Wrong]:
    """What was executed at the parent's point can have been, by the binlog's entry."""
    before, after = there.before, there.after
    if before is None or after is None:
        return
    if there.whole and origin.offset == there.size:
        if executed != after and not there.anonymous:
            text = f"parent.gtid_set is {brief(executed)}, {origin.binlog} ends with {brief(after)}"
            yield Wrong(text)
    elif isinstance(executed, GtidSet) and not (before <= executed <= after):
        yield Wrong(
            f"parent.gtid_set is {brief(executed)}, within {origin.binlog} it is from "
            f"{brief(before)} to {brief(after)}"
        )


def _join_problems(child: Lineage, origin: Parent, executed: Gtids | None) -> Iterator[Wrong]:
    """What the join says is missing, is missing."""
    if origin.join == "exact" and origin.missing:
        yield Wrong(f"parent.join is exact, and parent.missing {brief(origin.missing)}")
    if executed is None or not child.gtid_set or origin.join == "unknown":
        return
    try:
        before = parse(child.gtid_set, child.flavour)
    except ValueError:
        return  # said already
    if origin.join == "exact" and isinstance(before, GtidSet) and not before <= executed:
        yield Wrong(
            f"parent.join is exact, but it begins after {brief(before)}, its parent's point is "
            f"{brief(executed)}"
        )
    if origin.join == "gap" and before <= executed:
        yield Wrong(f"parent.join is gap, but all of {brief(before)} is executed in its parent")
    elif origin.join == "gap" and isinstance(before, GtidSet) and isinstance(executed, GtidSet):
        try:
            missing = GtidSet.parse(origin.missing)
        except ValueError:
            return  # names of binlogs
        if missing != before - executed:
            yield Wrong(
                f"parent.missing is {brief(missing)}, what lacks is {brief(before - executed)}"
            )
