"""The archived binlogs of a history, the first one after them, and which clients they suit."""

from collections.abc import Sequence

from binlog2s3.archive.catalog import Catalog
from binlog2s3.archive.history import why_gap
from binlog2s3.binlog.gtid import Gtids, beyond, either, parse
from binlog2s3.config.goal import Latest
from binlog2s3.errors import NoBinlogError, RecoveryError
from binlog2s3.recover.goal import Search
from binlog2s3.recover.model import Base, Request, Start
from binlog2s3.recover.origin import Origin, outside
from binlog2s3.recover.route import Route
from binlog2s3.replication.feed import NotServedError
from binlog2s3.serve.model import ServedBinlog


def archived(route: Route) -> list[ServedBinlog]:
    """The archived binlogs of a route."""
    found = []
    for number, line_binlog in enumerate(route.binlogs):
        line_part = route.line_part(number)
        is_first = route.part_numbers(number)[0] == number
        cut = (
            line_part.cut
            if line_part.cut is not None and line_part.cut.binlog == line_binlog.name
            else None
        )
        before = (
            route.line.parts[line_binlog.line_part - 1].cut
            if is_first and line_binlog.line_part
            else None
        )
        found.append(
            ServedBinlog(
                lineage=line_part.lineage,
                name=line_binlog.name,
                begin=route.shared(number, 0),
                end=cut.offset if cut is not None else None,
                broken=f"{line_binlog.broken}; missing: {line_binlog.missing}"
                if line_binlog.missing
                else line_binlog.broken,
                joined=parse(before.gtid_set, line_part.lineage.flavour)
                if before is not None
                else None,
                unlogged=before is not None and before.unlogged,
            )
        )
    return found


def first_open(
    catalog: Catalog, route: Route, binlogs: Sequence[ServedBinlog]
) -> ServedBinlog | None:
    """The first binlog after those that are archived; None if there is none yet.

    Raises ArchiveError if it is damaged.
    """
    line_part = route.line.parts[-1]
    last = binlogs[-1] if binlogs else None
    is_same = last is not None and last.lineage.id == line_part.lineage.id
    name = last.name.next() if last is not None and is_same else line_part.lineage.begin
    try:
        catalog.binlog(line_part.lineage, name)
    except NoBinlogError:
        return None
    line = route.line
    cut = line.parts[-2].cut if not is_same and len(line.parts) > 1 else None
    why = why_gap(line, len(line.parts) - 1) if cut is not None and binlogs else ""
    return ServedBinlog(
        lineage=line_part.lineage,
        name=name,
        begin=line_part.begin if binlogs and not is_same else 0,
        is_open=True,
        broken=f"{why}; missing: {line_part.missing}" if why else "",
        unlogged=cut is not None and cut.unlogged,
        joined=parse(cut.gtid_set, line_part.lineage.flavour) if cut is not None else None,
    )


def check_gtids(
    route: Route,
    have: Gtids,
    everything: Gtids,
    *,
    begins_in: str,
    lineage: str | None,
    extra: str | None = None,
) -> None:
    """Check that a replica with these GTIDs has followed this history, and no other.

    `everything`: the GTIDs of this history, up to its end. `lineage`: GTIDs that are in two
    histories count as those of the one that ends in it, as the operator says. `extra`: see
    `Origin.check_target`; None: GTIDs tell. Raises NotServedError.
    """
    start = Start(gtids=have, base=Base() if lineage is not None else None)
    request = Request(goal=Latest(), start=start, allow_extra_gtids=True, lineage=lineage)
    try:
        origin = Origin(_Search(route, request))
        if extra is None:
            everything = either(everything, outside(route, 0)) if len(route) else everything
            extra = beyond(have, everything)
        origin.check_target(have, everything, begins_in=begins_in, extra=extra)
    except RecoveryError as error:
        raise NotServedError(str(error)) from error


class _Search(Search):
    """A search whose errors have only the given hint, because a client shows one text."""

    def refused(self, why: str, hint: str = "") -> RecoveryError:
        return RecoveryError(why, hint=hint)
