"""What a base backup can be brought to, and which registered backup reaches a goal.

Every answer is a plan that `plan.make` made, so nothing is reachable that `pitr` would refuse.
Pure but for what it asks the history.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from binlog2s3.archive.backups import Backup
from binlog2s3.binlog.executed import LinePosition, NoStateEndError
from binlog2s3.binlog.gtid import MariadbGtidList, beyond, intersection
from binlog2s3.config.goal import Latest, ToPosition, ToTime
from binlog2s3.errors import ArchiveError, RecoveryError
from binlog2s3.formatting import gtids_text, us_of
from binlog2s3.recover.backup import start_of_registered
from binlog2s3.recover.branches import Branches
from binlog2s3.recover.model import BinlogPosition, Plan, Request, Start
from binlog2s3.recover.origin import refuse_other_position
from binlog2s3.recover.plan import make
from binlog2s3.recover.route import Route, history_flavour
from binlog2s3.recover.snapshot import Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class BackupReach:
    """What a backup can be brought to, without a gap. Times in microseconds, UTC.

    `is_complete`: up to the newest transaction of the current history. Otherwise `why` it ends
    before that, and `hint`; a hint without that: what `pitr` needs. `lineage`: the history that it
    is brought along; "" if it cannot be used at all. `begin` is in the first binlog that its
    recovery looks at, `end` where it ends.
    `from_us` is the earliest time that it can be brought to, `to_us` the latest; None if unknown.
    `unknown`: why it may reach more than this says: something of the bucket could not be read.
    """

    is_complete: bool
    lineage: str = ""
    begin: BinlogPosition | None = None
    end: BinlogPosition | None = None
    from_us: int | None = None
    to_us: int | None = None
    why: str = ""
    hint: str = ""
    unknown: ArchiveError | None = None


def reaches_of(start: Start, history: Snapshot) -> list[BackupReach]:
    """What a backup that ends there can be brought to, along each history that fits it.

    The current history comes first, then the newest one; branches that the current one left are
    there, too. If none fits: one that says why. If the same GTIDs mean different transactions, and
    nothing says which ones the backup has, none fits.
    """
    current = history.current
    try:
        _refuse_other_position(start, history)
    except RecoveryError as error:
        return [BackupReach(is_complete=False, why=str(error), hint=error.hint)]
    tips = [
        current,
        *(lineage.id for lineage in reversed(history.lineages) if lineage.id != current),
    ]
    fitting, refused, left = list[BackupReach](), list[BackupReach](), {*tips}
    for tip in tips:
        if tip not in left:
            continue  # all of it is in what was found
        request = Request(goal=Latest(), start=start, lineage=tip, is_chosen=False, any_holes=True)
        reach = _along(request, history)
        if not reach.lineage:
            refused.append(reach)
            continue
        fitting.append(reach)
        left &= {lineage for lineage, _ in Branches(Route(history, reach.lineage)).outside()}
    unknown = next(
        (reach.unknown for reach in (*fitting, *refused) if reach.unknown is not None), None
    )
    return [replace(reach, unknown=unknown) for reach in fitting or refused[:1]]


def reach_of(start: Start, history: Snapshot) -> BackupReach:
    """The first of these."""
    return reaches_of(start, history)[0]


def _along(request: Request, history: Snapshot) -> BackupReach:
    """What a backup can be brought to along one history; without a lineage if it does not fit."""
    try:
        plan = make(request, history)
        reach = _reach(plan, request.start, history)
    except (RecoveryError, ArchiveError) as error:
        try:
            reached = _up_to_break(request, history, error)
        except ArchiveError:
            reached = None
        reached = reached or BackupReach(is_complete=False, why=str(error), hint=error.hint)
        return replace(reached, unknown=error if isinstance(error, ArchiveError) else None)
    if plan.holes:
        holes = f"`pitr` needs --allow-holes {gtids_text(plan.holes)}: the backup has later ones"
        reach = replace(reach, hint=holes)
    if plan.lineage != history.current:
        why = f"it is of lineage {plan.lineage}, a branch that the current history left"
        return replace(reach, is_complete=False, why=why)
    if not plan.newer:
        return reach
    newer = " and ".join(plan.newer)
    return replace(
        reach,
        hint=f"{reach.hint + '; ' if reach.hint else ''}`pitr` needs --lineage {plan.lineage}, "
        f"because {newer}, which is left out, has later transactions",
    )


def is_ahead(start: Start, history: Snapshot) -> bool:
    """Whether a backup ends after all that the bucket has of the current history: it may come."""
    route = Route(history, history.current)
    if not len(route):
        return True
    if start.gtids is None:
        last = len(route) - 1
        name, end = route.binlogs[last].name, route.size(last)
        return (
            start.position is not None
            and start.position.binlog.prefix == name.prefix
            and start.position > (name, end)
        )
    try:
        stands = route.executed(start.gtids)
    except NoStateEndError:
        return False
    everything = route.gtids_from(stands.start) if stands.start is not None else None
    if everything is None:
        return False
    if stands.state_end is not None and not stands.state_end.extra:
        return False
    is_same = (
        not everything
        or isinstance(start.gtids, MariadbGtidList)
        or bool(intersection(start.gtids, everything))
    )
    return is_same and bool(beyond(start.gtids, everything))


def plan_for(backup: Backup, request: Request, history: Snapshot) -> Plan:
    """The plan that brings a registered backup to a goal. Raises RecoveryError, ArchiveError.

    `request`: of its start, only the lineage counts, if it names one.
    """
    start = start_of_registered(backup, history_flavour(history, request.lineage))
    start = replace(start, lineage=request.start.lineage or start.lineage)
    _refuse_other_position(start, history)
    return make(replace(request, start=start), history)


def _refuse_other_position(start: Start, history: Snapshot) -> None:
    """See that a backup's GTIDs are those of its position, unless that has told its lineage."""
    if start.base is not None and start.lineage is None:
        refuse_other_position(start.base, history)


def choose(
    backups: Sequence[Backup], request: Request, history: Snapshot
) -> tuple[Backup, Plan | RecoveryError | ArchiveError]:
    """The newest of these backups that can be brought to a goal, with `plan_for` it.

    If none can: one that says why not, with its refusal. That is the newest one from before the
    time of a goal, or, if all are later, the oldest one. There is at least one backup.
    """
    refusals: dict[str, RecoveryError | ArchiveError] = {}
    for backup in reversed(backups):
        try:
            return backup, plan_for(backup, request, history)
        except (RecoveryError, ArchiveError) as error:
            refusals[backup.id] = error
    nearest = backups[-1]
    if isinstance(request.goal, ToTime):
        before = [other for other in backups if us_of(other.taken_at) <= request.goal.at_us]
        nearest = before[-1] if before else backups[0]
    return nearest, refusals[nearest.id]


def _reach(plan: Plan, start: Start, history: Snapshot) -> BackupReach:
    first, route = _first(plan.begin, start, history), Route(history, plan.lineage)
    needed, from_us = _begin(first, plan.begin, route)
    return BackupReach(
        is_complete=True,
        lineage=plan.lineage,
        begin=needed,
        end=plan.stop,
        from_us=from_us,
        to_us=plan.reach.latest_us,
    )


def _first(begin: BinlogPosition, start: Start, history: Snapshot) -> BinlogPosition:
    """The position in the first binlog that a plan from this start reads.

    A start at a position, or one whose lineage was found by its position, needs that binlog even if
    nothing after the position is in it.
    """
    position = start.position or (start.base.position if start.base is not None else None)
    if position is None or position.binlog not in history.names(begin.lineage):
        return begin
    if start.position is None and start.lineage != begin.lineage:
        return begin
    first = min(begin.file_position, position)
    return replace(begin, binlog=first.binlog, offset=first.offset)


def _begin(
    first: BinlogPosition, begin: BinlogPosition, route: Route
) -> tuple[BinlogPosition, int]:
    """The first binlog that a plan looks at, and the earliest time that it reaches.

    That is the newest commit before it begins. It is in the same binlog, or in the nearest one
    before it that has a commit: a plan looks there, too, whether the backup is past its goal. A
    binlog's own time says it only to the second.
    """
    number = _number(route, begin)
    earliest = _newest_us(route, number, begin.offset, number)
    earlier = _earlier(route, number)
    is_first = earlier is None or _number(route, first) <= earlier
    return (first if is_first or earlier is None else route.position(earlier, 0)), earliest


def _newest_us(route: Route, number: int, offset: int, first: int) -> int:
    """The newest commit before an offset of a binlog: who is there is brought to no earlier time.

    That of a binlog before it counts, if the binlog has none that is not repeated from `first` on.
    Microseconds, UTC.
    """
    known, is_repeated = route.known(number), route.is_repeated(number, first)
    before = [
        transaction.commit_us
        for transaction in route.transactions(number)
        if known.is_credible(transaction)
        and transaction.end <= offset
        and not is_repeated(transaction)
    ]
    earlier = _earlier(route, number)
    if earlier is not None:
        before.append(route.newest_own_us(earlier, is_brief=True) or 0)
    return max(before) if before else route.begins_us


def _earlier(route: Route, number: int) -> int | None:
    """The nearest binlog before this one that has a commit of its own; None if none has."""
    numbers = range(number - 1, -1, -1)
    return next((at for at in numbers if route.newest_own_us(at, is_brief=True) is not None), None)


def _number(route: Route, position: BinlogPosition) -> int:
    return next(
        number
        for number, line_binlog in enumerate(route.binlogs)
        if (route.lineage(number), line_binlog.name) == (position.lineage, position.binlog)
    )


def _up_to_break(
    request: Request, history: Snapshot, refusal: RecoveryError | ArchiveError
) -> BackupReach | None:
    """What the backup reaches before the first gap or damage; None if it cannot be used at all."""
    try:
        across = make(replace(request, allow_gap=True), history)
    except (RecoveryError, ArchiveError):
        return None
    reach = replace(
        _reach(across, request.start, history),
        is_complete=False,
        why=str(refusal),
        hint=refusal.hint,
    )
    route = Route(history, across.lineage)
    first = _number(route, across.begin)
    line_position = _last_position(route, first, across.begin.offset)
    if line_position is None:
        return replace(reach, end=None, to_us=None)
    end = route.position(*line_position)
    goal = ToPosition(end.file_position, end.lineage)
    try:
        make(replace(request, goal=goal), history)
    except (RecoveryError, ArchiveError):
        return replace(reach, end=None, to_us=None)
    return replace(reach, end=end, to_us=_newest_us(route, *line_position, first))


def _last_position(route: Route, first: int, offset: int) -> LinePosition | None:
    """Up to where a route can be read from an offset of a binlog on; None if not at all.

    That is before the first break, and before the first damaged bytes.
    """
    last = next(route.extent(first)).last
    while last > first and route.end(last) <= route.shared(last, first):
        last -= 1  # all of it is in the binlog before, too
    for number in range(first, last + 1):
        bad = [at for at, end in route.known(number).damaged if number > first or end > offset]
        if bad:
            ends = (
                transaction.end
                for transaction in route.transactions(number)
                if transaction.end <= min(bad)
            )
            if end := max(ends, default=0):
                return LinePosition(number, end)
            return LinePosition(number - 1, route.end(number - 1)) if number > first else None
    return LinePosition(last, route.end(last))
