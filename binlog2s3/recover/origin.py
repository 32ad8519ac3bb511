"""Which history a base backup is of, if its GTIDs alone do not tell.

After a RESET, or on a server that was restored, the same GTIDs are given to other transactions, in
another lineage. Pure but for what it asks the history.

Law: this is never guessed. File, position and GTIDs of a backup together name a lineage only if the
binlog has exactly these GTIDs at exactly this position.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from binlog2s3.archive.documents import Lineage, Parent
from binlog2s3.archive.facts import Facts
from binlog2s3.archive.history import Line, LinePart, is_within, line_of
from binlog2s3.binlog.executed import (
    ExecutedPart,
    LinePosition,
    MysqlPart,
    NoStateEndError,
    is_state,
)
from binlog2s3.binlog.gtid import (
    Flavour,
    Gtids,
    GtidSet,
    MariadbGtidList,
    either,
    empty,
    intersection,
    parse,
)
from binlog2s3.binlog.names import BinlogName, FilePosition
from binlog2s3.binlog.scanner import Transaction
from binlog2s3.errors import ArchiveError, RecoveryError
from binlog2s3.formatting import count_text, gtids_text, moment_text
from binlog2s3.recover.goal import Search
from binlog2s3.recover.model import Base, Start
from binlog2s3.recover.pieces import WHERE_IT_ENDS
from binlog2s3.recover.route import Route, RouteExecuted, gtids_at, refuse_unknown
from binlog2s3.recover.snapshot import Snapshot
from binlog2s3.server.omissions import gtids_that_came_in


@dataclass(frozen=True, slots=True, kw_only=True)
class Meeting:
    """How far two lines are the same.

    `line_part` is the number, on the first line, of the last part that both have; -1 if they have
    nothing in common, as before and after a RESET. `gtids`: what was executed where they part, as
    far as joins prove it. `goes_on`: whether the first line has more of that part than the other.
    """

    line_part: int
    gtids: Gtids
    goes_on: bool

    def is_behind(self, line: Line, lineage: str) -> bool:
        """Whether what the first line has of this lineage comes after the meeting."""
        for number, line_part in enumerate(line.parts):
            if line_part.lineage.id == lineage:
                return number > self.line_part or (number == self.line_part and self.goes_on)
        return False


def meeting(line: Line, other: Line) -> Meeting:
    """Where two lines part."""
    flavour: Flavour = line.parts[-1].lineage.flavour
    numbers = {line_part.lineage.id: number for number, line_part in enumerate(line.parts)}
    for theirs in reversed(other.parts):
        if theirs.lineage.id in numbers:
            number = numbers[theirs.lineage.id]
            ours = line.parts[number]
            return Meeting(
                line_part=number,
                gtids=_shared(ours, theirs, flavour),
                goes_on=_ends_later(ours, theirs),
            )
    return Meeting(line_part=-1, gtids=empty(flavour), goes_on=False)


def _shared(ours: LinePart, other: LinePart, flavour: Flavour) -> Gtids:
    """What was executed at the end of the shorter of two parts of one lineage."""
    at_cuts = [
        _gtids(line_part.cut, flavour) for line_part in (ours, other) if line_part.cut is not None
    ]
    return intersection(at_cuts[0], at_cuts[-1]) if at_cuts else empty(flavour)


def _gtids(cut: Parent, flavour: Flavour) -> Gtids:
    with suppress(ValueError):  # somebody has changed it: it proves nothing
        return parse(cut.gtid_set, flavour)
    return empty(flavour)


def _ends_later(line_part: LinePart, other: LinePart) -> bool:
    if line_part.cut is None or other.cut is None:
        return other.cut is not None
    return _end_of(line_part.cut) > _end_of(other.cut)


def _end_of(cut: Parent) -> tuple[int, int]:
    return (cut.binlog.number if cut.binlog else -1, cut.offset)


def tip_of(lineages: Sequence[Lineage], lineage: str, line: Line) -> str:
    """The newest lineage whose history has the part of this one that the line does not have."""
    if any(line_part.lineage.id == lineage for line_part in line.parts):
        return lineage
    for newer in reversed(lineages):
        if any(line_part.lineage.id == lineage for line_part in line_of(lineages, newer.id).parts):
            return newer.id
    return lineage


def lineages_of(base: Base, history: Snapshot) -> frozenset[str]:
    """The lineages that have exactly the backup's GTIDs at exactly its position.

    What their server has without its binlogs is at no position in them, and does not count. Empty
    if the backup does not say both. What cannot be read proves nothing and is left out.
    """
    if base.gtids is None or base.position is None:
        return frozenset()
    return frozenset(_lineages_of(base.gtids, *base.position, history))


def lineages_at(name: BinlogName, offset: int, history: Snapshot) -> frozenset[str]:
    """The lineages with this position between two transactions; what cannot be read has none."""
    ids = set[str]()
    for lineage in _with_bytes(name, offset, history):
        with suppress(ArchiveError):
            ids |= {lineage.id} if history.is_boundary(lineage.id, name, offset) else set()
    return frozenset(ids)


def _with_bytes(name: BinlogName, offset: int, history: Snapshot) -> Iterator[Lineage]:
    """The lineages whose own bytes of a binlog go up to this offset."""
    for lineage in history.lineages:
        if name not in history.names(lineage.id):
            continue
        line_part = line_of(history.lineages, lineage.id).parts[-1]
        shared = (
            line_part.begin if name == lineage.first_binlog else 0
        )  # those bytes are its parent's
        with suppress(ArchiveError):
            if is_within(offset, shared, history.known(lineage.id, name).size):
                yield lineage


def _lineages_of(gtids: Gtids, name: BinlogName, offset: int, history: Snapshot) -> Iterator[str]:
    for lineage in _with_bytes(name, offset, history):
        with suppress(ArchiveError):
            if _has_at(history, lineage, name, offset, gtids):
                yield lineage.id


def _has_at(
    history: Snapshot, lineage: Lineage, name: BinlogName, offset: int, gtids: Gtids
) -> bool:
    """Whether this lineage had executed these GTIDs, no more and no less, at this position."""
    known = history.known(lineage.id, name)
    before = known.gtids_before
    if type(before) is not type(gtids):
        return False
    most, apart = either(before, known.gtids_added), GtidSet()
    if isinstance(gtids, GtidSet):
        apart = without_binlogs(lineage, known, history)
        if not before <= gtids | apart or not gtids <= either(most, apart):
            return False
    if not history.is_boundary(lineage.id, name, offset):
        return False
    executed = gtids_at(history, lineage.id, name, offset)
    if isinstance(gtids, MariadbGtidList) and isinstance(executed, MariadbGtidList):
        return is_state(gtids, executed)
    return executed is not None and either(executed, apart) == either(gtids, apart)


def without_binlogs(lineage: Lineage, known: Facts, history: Snapshot) -> GtidSet:
    """What a MySQL had executed during a binlog of a lineage, and none of its binlogs ever had."""
    leaves_out = known.leaves_out
    with suppress(ArchiveError):
        if leaves_out is None and lineage.id == history.current:  # it is open, and has no entry
            leaves_out = history.left_out
    return GtidSet.parse(lineage.gtids_outside) | gtids_that_came_in(leaves_out or ())


def refuse_other_position(base: Base, history: Snapshot) -> None:
    """Raise RecoveryError if a backup's GTIDs are not those of its position in the archive.

    Then its rows are of one of the two, and what lies in between would be missing or applied twice.
    Only for MySQL, and only for a position between two transactions of a binlog: the beginning of
    one is a position in the binlogs of every server, and the backup may be of another one.
    """
    if not isinstance(base.gtids, GtidSet) or base.position is None or lineages_of(base, history):
        return
    name, offset = base.position
    for lineage in history.lineages:
        if name not in history.names(lineage.id):
            continue
        with suppress(ArchiveError):
            known = history.known(lineage.id, name)
            before = known.gtids_before
            if not isinstance(before, GtidSet) or offset > known.size:
                continue
            if not history.is_boundary(lineage.id, name, offset):
                continue
            had = gtids_at(history, lineage.id, name, offset)
            if had == before or not isinstance(had, GtidSet):
                continue
            had |= without_binlogs(lineage, known, history) & base.gtids
            words = [
                f"{verb} {gtids_text(gtids)}"
                for verb, gtids in (
                    ("it claims also", base.gtids - had),
                    ("it does not claim", had - base.gtids),
                )
                if gtids
            ]
            raise RecoveryError(
                f"{base.said_by} contradicts itself: its GTIDs are not those of its place, "
                f"{name}:{offset} of {lineage.id}: {' and '.join(words)}",
                hint="its rows may be those of the place: restore another base backup; if it is "
                "of another server than this binlog, say only its GTIDs: --from-gtid-set",
            )


def executed_with(have: Gtids | None, base: Base, reset: str) -> Gtids | None:
    """What a target has executed, together with what its base backup has.

    If it has none of the backup's GTIDs, they do not tell what was restored: the backup does. If it
    has some, it must have all. Raises RecoveryError. `reset`: the target's statement that removes
    its GTIDs, for the hint.
    """
    if have is None or base.gtids is None:
        return base.gtids if have is None else have
    if isinstance(have, GtidSet) and isinstance(base.gtids, GtidSet):
        missing, part = base.gtids - have, base.gtids & have
        if missing and not part and base.sets_gtids:
            raise RecoveryError(
                f"the target was not restored from what is named: loading {base.said_by} sets its "
                f"GTIDs, {gtids_text(base.gtids)}, and the target has none of them",
                hint="name the base backup that was restored, or restore this one. If this one was "
                f"restored without that statement: {reset}; SET GLOBAL gtid_purged = '...' with "
                "them, at the target",
            )
        if missing and part:
            more = have - base.gtids
            besides = f", and has {gtids_text(more)} besides" if more else ""
            raise RecoveryError(
                f"the target was not restored from what is named: {base.said_by} has "
                f"{gtids_text(missing)}, the target has only {gtids_text(part)} of it{besides}",
                hint="name the base backup that was restored, or restore this one; without such an "
                "option the target's own GTIDs say where it continues. If this one was restored by "
                f"a tool that does not set all of its GTIDs: {reset}; SET GLOBAL gtid_purged = "
                "'...' with them, at the target",
            )
    return either(have, base.gtids) if type(have) is type(base.gtids) else have


def innodb_lacks(base: Base, history: Snapshot) -> str:
    """Why the InnoDB data of a physical backup are not those of its position; "" if they are.

    After --no-lock the position is later than the data. A position behind statements, rotations and
    other engines' transactions, of which InnoDB has nothing, is right. "" as well if the archive
    does not have what lies in between.
    """
    has, position = base.innodb, base.position
    if (
        has is None
        or position is None
        or has == position
        or has.binlog.prefix != position.binlog.prefix
    ):
        return ""
    if has > position:
        return f"its InnoDB data go on to {has}, behind its position"
    candidates = lineages_of(base, history) or [known.id for known in history.lineages]
    lacks = [_engine_commits(history, lineage, has, position) for lineage in candidates]
    if not any(lacks) or 0 in lacks:
        return ""
    return (
        f"its InnoDB data end at {has}, before its position {position}: "
        f"{count_text(max(filter(None, lacks)), 'transaction')} in between would be missing"
    )


def _engine_commits(
    history: Snapshot, lineage: str, begin: FilePosition, end: FilePosition
) -> int | None:
    """How many transactions InnoDB has between two positions of a lineage; None if unknown."""
    names = [name for name in history.names(lineage) if begin.binlog <= name <= end.binlog]
    if len(names) != end.binlog.number - begin.binlog.number + 1:
        return None
    count = 0
    for name in names:
        since = begin.offset if name == begin.binlog else 0
        until = end.offset if name == end.binlog else None
        try:
            for transaction in history.transactions(lineage, name, since, until):
                count += history.is_engine_commit(lineage, name, transaction)
        except ArchiveError:
            return None
    return count


def standing(search: Search, have: Gtids) -> RouteExecuted:
    """What a target with these GTIDs has of the route.

    Of MariaDB, the file and position of its base backup decide if the route has them: a GTID may
    have been used twice. The GTIDs must be those executed there. Raises RecoveryError.
    """
    try:
        executed = _at_its_position(search, have) if isinstance(have, MariadbGtidList) else None
        return executed or search.route.executed(have)
    except NoStateEndError as error:
        raise search.refused(
            str(error), f"{WHERE_IT_ENDS}; or restore another base backup"
        ) from None


def _at_its_position(search: Search, have: MariadbGtidList) -> RouteExecuted | None:
    """The same by the position that the base backup names; None if the route does not have it.

    A position where no transaction ends is that of another server, such as a replica.
    """
    start, route = search.request.start, search.route
    base = start.base
    if base is None or base.position is None or base.gtids != have or start.position is not None:
        return None
    name, offset = base.position
    other = ""
    for number in route.numbers_of(name, offset):
        lineage = route.lineage(number)
        if start.lineage not in (None, lineage):
            continue
        if not route.history.is_boundary(lineage, name, offset):
            continue
        if (executed := route.executed_at(have, LinePosition(number, offset))) is not None:
            return executed
        archived = route.gtids_at(number, offset)
        other = f"{name}:{offset} of {lineage} is behind {archived or 'no GTIDs'}"
    if other:
        raise search.refused(
            f"{base.said_by} contradicts itself: it ends behind {have or 'no GTIDs'} and at "
            f"{name}:{offset}, but {other}",
            "if it is a backup of another server, such as a replica, its position means nothing "
            "here: pass its GTIDs alone, with --from-gtid-set",
        )
    return None


def unlogged_at(route: Route, stands: RouteExecuted, start: Start) -> int | None:
    """The binlog before which the source left rows out, if a state may end on either side of it.

    Those rows have no GTIDs, so the GTIDs just before and just after them are the same. The
    position of the base backup, or its lineage, tells them apart. None if nothing is in doubt.
    """
    number = stands.start
    while number is not None and not stands.part.touches(number, _own_gtids(route, number)):
        if route.is_unlogged_before(number):
            return None if _is_behind(route, number, start) else number
        if not number:
            return None
        number -= 1
    return None


def _own_gtids(route: Route, number: int) -> Gtids:
    """The GTIDs that a binlog adds, without those that it repeats: they show no later state."""
    added, before = route.brief(number).gtids_added, route.repeated(number)
    if isinstance(added, GtidSet) and isinstance(before, MysqlPart):
        return added - before.gtids
    return added


def outside(route: Route, start: int) -> Gtids:
    """What the sources of a route had without their binlogs, from binlog `start` on.

    See `Lineage.gtids_outside`; MariaDB has none.
    """
    gtids: Gtids = empty(route.flavour)
    for line_part in route.line.parts[route.binlogs[start].line_part :]:
        gtids = either(gtids, parse(line_part.lineage.gtids_outside, route.flavour))
    return gtids


def _is_behind(route: Route, number: int, start: Start) -> bool:
    """Whether a base backup is known to be of the history from this binlog on."""
    base, line_part = start.base, route.binlogs[number].line_part
    behind = {later.lineage.id for later in route.line.parts[line_part:]}
    if start.lineage is not None and start.lineage not in behind:
        return False
    if start.position is not None:
        return True
    if base is not None and (origins := lineages_of(base, route.history)):
        name = route.binlogs[number].name
        is_later = base.position is not None and base.position.binlog >= name
        return origins <= behind and (is_later or route.lineage(number) not in origins)
    return start.lineage is not None and route.part_numbers(number)[0] == number


@dataclass(frozen=True, slots=True)
class _Lacks:
    """Finds whether there are transactions without a GTID after the last one that a server has.

    `at`: the number of their binlog; of which it has some or not.
    """

    part: ExecutedPart
    at: int
    has_some: bool

    def __call__(self, transactions: Iterable[Transaction]) -> bool:
        lacks = False
        for transaction in transactions:
            lacks = transaction.gtid is None or (lacks and not self.part.has(self.at, transaction))
            if lacks and not self.has_some:
                break
        return lacks


def unnamed_before(route: Route, part: ExecutedPart, number: int) -> int | None:
    """The binlog before this one with transactions without a GTID that a server may lack.

    They come after the last transaction with one that it has: its GTIDs are the same before and
    behind them, however many binlogs follow. None if there are none. `number` may be that of the
    binlog after the last one.
    """
    for at in range(min(number, len(route) - 1), -1, -1):
        known = route.brief(at)
        has_some = part.touches(at, known.gtids_added)
        if at < number and known.anonymous and route.searched(at, _Lacks(part, at, has_some)):
            return at
        if has_some:
            return None
    return None


def given_twice(
    have: Gtids, gtids: Gtids, common: Gtids, everything: Gtids, *, is_open: bool
) -> str:
    """The target's GTIDs that this history and another lineage gave to different transactions.

    None if it also has GTIDs that only this history has. But a lineage that is still written
    (`is_open`) may get those too.
    """
    if isinstance(have, GtidSet) and isinstance(gtids, GtidSet):
        if not (isinstance(common, GtidSet) and isinstance(everything, GtidSet)):
            return ""
        twice = have & (gtids - common) & everything
        return str(twice) if is_open or have & everything <= gtids else ""
    if isinstance(have, MariadbGtidList):
        first, other, ours = (
            {(domain, server): number for domain, server, number in executed.gtids()}
            for executed in (common, gtids, everything)
            if isinstance(executed, MariadbGtidList)
        )
        return ",".join(
            f"{domain}-{server}-{number}"
            for domain, server, number in have.gtids()
            if first.get((domain, server), -1) < number <= ours.get((domain, server), -1)
            and other.get((domain, server), -1)
            > (first.get((domain, server), -1) if is_open else number - 1)
        )
    return ""


class Origin:
    """Whether the base backup, and so the target, is of the history that a search follows."""

    def __init__(self, search: Search) -> None:
        self._search = search
        self._line = search.route.line
        self._history = search.route.history
        self._start = search.request.start
        self._of: frozenset[str] | None = None

    def check_named(self) -> None:
        """See that the lineage that the operator named exists and is part of this history."""
        if (lineage := self._start.lineage) is not None:
            refuse_unknown(lineage, self._history)
            self._check_on_line([lineage])

    def check_target(self, have: Gtids, everything: Gtids, *, begins_in: str, extra: str) -> None:
        """See that a server with these GTIDs has nothing of a dead branch, ambiguous or unknown.

        `everything`: the GTIDs of this history, up to its end. `extra`: those of the server that
        it does not have (of MariaDB, numbers do not tell). Raises RecoveryError.
        """
        flavour = self._search.route.flavour
        branches = list(self._search.branches.gtids())
        for other, gtids in branches:
            lost = intersection(parse(extra, flavour), gtids) if extra else None
            if lost:
                raise self._search.refused(
                    f"{self._search.who_has(lost)} has GTIDs of a dead branch, which this history "
                    f"left: {gtids_text(lost)} of {other}",
                    f"{self.choosing(other)} continues that history; or restore a base "
                    f"backup from before they were executed{self.or_wait(other)}",
                )
        if extra:
            who = self._search.who_has(parse(extra, flavour))
            text = f"{who} has GTIDs that are not in the archive: {gtids_text(extra)}"
            if not self._search.request.allow_extra_gtids:
                raise self._search.refused(
                    text,
                    f"is it the right source? {self._cause(extra, who)}. If you know what these "
                    "transactions are, --allow-extra-gtids accepts them",
                )
            self._search.warnings.append(text)
        if self._start.position is None:
            self.check(have, everything, branches, begins_in=begins_in)

    def _cause(self, extra: str, who: str) -> str:
        """Where these GTIDs may come from, and what to do then."""
        if who != "the target":
            return "If so, pass exactly the GTIDs that the base backup contains"
        start, again = self._start, "restore the base backup again"
        cause = (
            "If something wrote to the target after it was restored (its event scheduler, FLUSH "
            f"PRIVILEGES, an operator), {again} and start it with event_scheduler=OFF"
        )
        is_named = start.base is not None or start.position is not None
        gtids = parse(extra, self._search.route.flavour)
        if start.own is None or not is_named or not isinstance(gtids, GtidSet):
            return cause
        if any(uuid != start.own.uuid.lower() for uuid, _, _ in gtids.runs()):
            return cause
        return (
            "These are the target's own transactions. If they are the load of the base backup, "
            f"which it has logged, run {start.own.reset} there, which keeps the rows, and then the "
            f"same command again. {cause}"
        )

    def check(
        self, have: Gtids, everything: Gtids, others: Iterable[tuple[str, Gtids]], *, begins_in: str
    ) -> None:
        """See that no GTID is ambiguous, unless it is known which transaction is meant.

        `others`: the lineages outside of this history, with all their GTIDs. `begins_in`: the
        lineage in which the recovery would begin by its GTIDs. Raises RecoveryError.
        """
        base = self._start.base
        for lineage, gtids in others:
            met = self._met(lineage)
            given = partial(
                given_twice,
                gtids=gtids,
                common=met.gtids,
                everything=everything,
                is_open=self._search.may_grow(lineage),
            )
            twice = given(have)
            if not twice:
                continue
            # both continue from such a backup: it does not tell which one the target followed since
            if base is not None and met.line_part >= 0 and not (base.gtids and given(base.gtids)):
                raise self._search.refused(
                    f"{gtids_text(twice)} are GTIDs of two different histories, this one and "
                    f"{lineage}: both continue from the base backup, and it is unknown which one "
                    "the target followed since",
                    "restore the base backup again",
                )
            if not self._is_settled(met, twice, lineage):
                raise self._ambiguous(twice, lineage, begins_in)

    def choosing(self, lineage: str) -> str:
        """The options that say that the target is of the history that ends in this lineage.

        If the two have nothing in common, that history may still get GTIDs that this one uses too:
        --lineage alone would not say which of the two the target has.
        """
        if self._met(lineage).line_part >= 0:
            return f"--lineage {lineage}"
        return f"--lineage {lineage} --from-lineage {lineage}"

    def or_wait(self, lineage: str) -> str:
        """For a hint: another reason why only this lineage has a GTID."""
        if self._met(lineage).line_part >= 0:
            return ""
        begins = self._line.parts[0].lineage.first_binlog_time
        return (
            f"; if the backup was made after {moment_text(begins)}, when this history begins, the "
            "bucket does not have all of its GTIDs yet"
        )

    def _met(self, lineage: str) -> Meeting:
        return meeting(self._line, line_of(self._history.lineages, lineage))

    def _is_settled(self, met: Meeting, twice: str, lineage: str) -> bool:
        """Whether the base backup is known to be of this history, and not of that lineage."""
        origins = self._origins()
        if origins:
            self._check_on_line(origins)
        if origins and all(met.is_behind(self._line, id_) for id_ in origins):
            return True
        if origins == {lineage}:
            raise self._search.refused(
                f"the base backup is of {lineage}, from after the place where this history left "
                "it: a dead branch",
                f"--lineage {lineage} continues that history; or restore a base backup from "
                "before that place",
            )
        request, base = self._search.request, self._start.base
        chosen = request.lineage if request.is_chosen else None
        if chosen is None or base is None or not (origins or base.position is None):
            return False
        self._search.warnings.append(
            f"{gtids_text(twice)} are GTIDs of {lineage}, too: because of --lineage {chosen}, the "
            "base backup is assumed to be of that history"
        )
        return True

    def _origins(self) -> frozenset[str]:
        """The lineages that the base backup can be of; empty if that is unknown."""
        if self._of is None:
            start = self._start
            lineages = lineages_of(start.base, self._history) if start.base else frozenset()
            if start.lineage is not None and lineages and start.lineage not in lineages:
                raise RecoveryError(
                    "by its file, position and GTIDs, the base backup is of "
                    f"{' or '.join(sorted(lineages))}, not of {start.lineage}",
                    hint=f"--from-lineage {max(lineages)}",
                )
            self._of = frozenset({start.lineage}) if start.lineage is not None else lineages
        return self._of

    def _check_on_line(self, origins: Collection[str]) -> None:
        """See that the base backup's lineage is part of this history."""
        if any(line_part.lineage.id in origins for line_part in self._line.parts):
            return
        of, tip = max(origins), self._line.parts[-1].lineage.id
        raise self._search.refused(
            f"the base backup is of {of}, which is no part of the history that ends in {tip}",
            f"--lineage {tip_of(self._history.lineages, of, self._line)} chooses the history of "
            "the backup",
        )

    def _ambiguous(self, twice: str, lineage: str, ours: str) -> RecoveryError:
        begins = {
            known.id: moment_text(known.first_binlog_time) for known in self._history.lineages
        }
        other = tip_of(self._history.lineages, lineage, self._line)
        return self._search.refused(
            f"{gtids_text(twice)} are GTIDs of two different histories, this one and {lineage}: "
            "they do not tell which one the target has",
            "choose the history of the base backup: "
            f"--from-lineage {ours} (begins {begins[ours]}), or "
            f"--lineage {other} --from-lineage {lineage} (begins {begins[lineage]})",
        )
