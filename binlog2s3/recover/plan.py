"""What a recovery will do, decided before anything is done.

`route` is the way through the archive, `goal` finds positions on it, `pieces` the transactions.
Pure but for what it asks the history.

Law: a plan reaches exactly what was asked for, or it is refused with a reason and what can be
reached instead. Nothing is applied twice, nothing is left out that was not named, and no gap, no
damage and no join that cannot be proved is crossed without a message.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import islice

from binlog2s3.archive.documents import UNLOGGED
from binlog2s3.archive.facts import LeftOut
from binlog2s3.binlog.content import AlterName, Content
from binlog2s3.binlog.executed import ExactGtids, Gtid, LinePosition, gtid_text, transactions_with
from binlog2s3.binlog.gtid import (
    Gtids,
    GtidSet,
    MariadbGtidList,
    beyond,
    either,
    empty,
    intersection,
    mariadb_gtid,
    parse,
)
from binlog2s3.binlog.scanner import Transaction
from binlog2s3.config.goal import Latest
from binlog2s3.errors import ArchiveError, Binlog2s3Error, RecoveryError
from binlog2s3.formatting import gtids_text
from binlog2s3.recover.goal import Search
from binlog2s3.recover.holes import Holes
from binlog2s3.recover.model import Plan, PlanPiece, Request, Shown
from binlog2s3.recover.origin import Origin, outside, standing, unlogged_at, unnamed_before
from binlog2s3.recover.pieces import WHERE_IT_ENDS, PieceBuilder, Skip, without_gtids
from binlog2s3.recover.route import Route, RouteExecuted, last_lineage, refuse_unknown
from binlog2s3.recover.snapshot import Snapshot
from binlog2s3.server.omissions import IGNORES, gtids_that_came_in

_SHOWN = 3
_BACK = 50
"""How many binlogs are searched for the last transactions that are kept."""


def make(request: Request, history: Snapshot) -> Plan:
    """The plan for this request. Raises RecoveryError with what can be reached instead.

    Pages say where to look. If something is not as a page says, the plan is made again.
    """
    tip = last_lineage(history, request.lineage)
    refuse_unknown(tip, history)
    while True:
        doubts = history.doubts
        try:
            plan = _Planner(request, _route(history, tip)).plan()
        except Binlog2s3Error:
            if history.doubts == doubts:
                raise
        else:
            if history.doubts == doubts:
                return plan


def _route(history: Snapshot, tip: str) -> Route:
    route = Route(history, tip)
    if not len(route):
        pruned = route.pruned
        raise RecoveryError(
            f"no binlog of lineage {tip} can be read{f': {pruned}' if pruned else ''}",
            hint="see `binlog2s3 list`; --lineage chooses another history",
        )
    return route


class _Planner:
    def __init__(self, request: Request, route: Route) -> None:
        self._request = request
        self._route = route
        self._search = Search(route, request)
        self._origin = Origin(self._search)
        self._flavour = route.flavour
        gtids = request.start.gtids
        if gtids is not None and not isinstance(gtids, type(empty(self._flavour))):
            raise RecoveryError(
                f"the history is {self._flavour}'s, the GTIDs to start from are not",
                hint="a target of the other flavour cannot take these binlogs",
            )
        self._have = gtids
        self._stands: RouteExecuted | None = None
        self._skip = Skip(request.skip, self._flavour)
        self._allowed = ExactGtids.parse(request.holes, self._flavour, "--allow-holes")
        self._pieces = PieceBuilder(self._search, self._skip)
        self._warnings = self._search.warnings

    def plan(self) -> Plan:
        route = self._route
        self._origin.check_named()
        start = self._start()
        self._check_base(start)
        self._check_position(start)
        self._check_replicated(start)
        part = self._stands.part if self._stands is not None else None
        stop = self._search.stop(start, part)
        first = min(start.number, stop.number)
        route.load(first, stop.number + 1)
        self._check_end(stop)
        lacks = self._say_what_is_left_out(first, stop)
        before_stop = self._before_stop(first, stop)
        everything = self._route.gtids_from(first) if before_stop is not None else None
        if stop < start and (self._have is None or self._request.start.position is not None):
            raise self._search.refused(
                f"{route.position(stop.number, stop.offset)} lies before "
                f"{route.position(start.number, start.offset)}, where the target is",
                "restore an older base backup",
            )
        pieces = tuple(self._pieces.build(start, stop, part)) if start <= stop else ()
        wanted = self._check_past(stop, before_stop, everything)
        self._check_skipped(is_done=not pieces)
        self._check_phases(start)
        filled = self._check_holes(pieces, start, stop)
        self._check_whole(wanted)
        newer = tuple(self._newer_others())
        return Plan(
            flavour=self._flavour,
            server_version=route.line_part(stop.number).lineage.server_version,
            lineage=route.tip.id,
            goal=self._request.goal,
            stop=route.position(stop.number, stop.offset),
            pieces=pieces,
            before=self._before(),
            adds=self._pieces.applied,
            skipped=self._skip.found(),
            skipped_singly=self._skip.found_singly(),
            holes=str(filled),
            lacks=lacks,
            kept=tuple(self._last_kept(stop, first)),
            left_out=tuple(self._first_left_out(stop, first)),
            commit_exact=all(
                route.known(number).commit_exact for number in range(first, stop.number + 1)
            ),
            reach=self._search.reach(),
            warnings=tuple(dict.fromkeys(self._warnings)),
            others=tuple(self._search.branches.lineages()),
            newer=newer,
            disorder=tuple(self._shown(*found) for found in self._search.disorder[:_SHOWN]),
        )

    # Where it begins, and where the history ends

    def _start(self) -> LinePosition:
        given, route = self._request.start.position, self._route
        if self._have is not None:
            self._stands = standing(self._search, self._have)
        if given is not None:
            wanted = self._request.start
            return self._search.line_position(*given, wanted.lineage, wanted.server)
        if self._have is None or self._stands is None:
            before = route.known(0).gtids_before
            if before:
                self._warnings.append(
                    f"the history begins after {gtids_text(before)}: the target must have these"
                )
            return LinePosition(0, 0)
        number = self._stands.start
        if number is None:
            raise self._not_covered(self._have)
        self._check_unlogged(self._stands)
        if (unnamed := unnamed_before(route, self._stands.part, number)) is not None:
            raise without_gtids(self._search, unnamed)
        return LinePosition(number, 0)

    def _check_unlogged(self, stands: RouteExecuted) -> None:
        """See that rows that the source left out of its binlogs are not missing in the target."""
        route = self._route
        number = unlogged_at(route, stands, self._request.start)
        if number is None:
            return
        name, lineage = route.binlogs[number].name, route.lineage(number)
        self._search.leave_out(
            f"{self._search.who_has()} ends at a gap, before {name} of {lineage}: {UNLOGGED}; "
            "GTIDs do not tell whether it has those rows",
            "if the base backup was made after the source wrote binlogs again, say so: "
            f"--from-lineage {lineage}; else restore one from after that; --allow-gap goes on "
            "without those rows",
        )

    def _not_covered(self, have: Gtids) -> RecoveryError:
        before = self._route.known(0).gtids_before
        if before is None:
            name = self._route.binlogs[0].name
            return self._search.refused(
                f"{name} does not say which GTIDs came before it", WHERE_IT_ENDS
            )
        missing = beyond(before, have)
        pruned = self._route.pruned
        return self._search.refused(
            f"{self._search.who_has()} is missing GTIDs that were executed before the archive "
            f"begins: {gtids_text(missing)}{f'; {pruned}' if pruned else ''}",
            "restore a base backup that has them",
        )

    def _check_end(self, stop: LinePosition) -> None:
        """For `Latest`, see that nothing unreadable comes after the stop."""
        if not isinstance(self._request.goal, Latest):
            return
        known = self._route.known(stop.number)
        texts = [
            f"bytes {begin} to {end} of {known.name} are damaged or missing"
            for begin, end in known.damaged
            if end > max(stop.offset, known.transaction_end)
        ]
        if lost := self._route.history.lost_end(self._route.tip.id):
            texts.append(f"nothing can be read of {lost}")
        if texts and not self._request.allow_gap:
            raise self._search.refused(
                f"the newest transactions cannot be reached: {'; '.join(texts)}",
                f"--to-position {known.name}:{stop.offset} is the last place that can be reached; "
                "--allow-gap takes it for the newest",
            )
        self._warnings += [f"the newest transactions are left out: {text}" for text in texts]

    def _say_what_is_left_out(self, first: int, stop: LinePosition) -> str:
        """Warn of what the source said that its binlogs do not have, and of what it forgot.

        Returns the GTIDs that came to it without a binlog, and that the target does not have.
        """
        route, left_out, came_in = self._route, LeftOut(), GtidSet()
        for number in range(first, stop.number + 1):
            known = route.known(number)
            left_out.add(known)
            came_in |= gtids_that_came_in(known.leaves_out or ())
            if known.crashed and number < stop.number and IGNORES in (known.leaves_out or ()):
                self._warnings.append(
                    f"{known.name} ends as after a crash of the source, which had {IGNORES}: if it "
                    "was no crash, what it committed until its next start is missing"
                )
        now, is_last = self._search.left_out(), stop.number == len(route) - 1
        is_open = is_last and route.known(stop.number).leaves_out is None
        if isinstance(self._request.goal, Latest) or is_open:
            came_in |= gtids_that_came_in(now)
        self._warnings += [
            *left_out.texts(now),
            *self._search.branches.forgotten(first, stop.number),
        ]
        everything = self._route.gtids_from(first) if came_in else None
        if self._have is None or everything is None:
            return ""
        return beyond(came_in, either(self._have, everything))

    # What the target has, and is to have

    def _check_base(self, start: LinePosition) -> None:
        """See that the target has nothing that is not of this history."""
        if self._have is None:
            return
        everything = self._route.gtids_from(start.number)
        state_end = self._stands.state_end if self._stands is not None else None
        if everything is not None:
            apart = outside(self._route, start.number)
            self._check_outside(apart, everything)
            everything = either(everything, either(apart, self._came_in(start.number)))
            extra = beyond(self._have, everything)
            self._origin.check_target(
                self._have,
                everything,
                begins_in=self._route.lineage(start.number),
                extra=state_end.extra if state_end is not None else extra,
            )
        if state_end is not None and state_end.unknown and self._request.start.position is None:
            raise self._search.refused(
                f"{', '.join(state_end.unknown)} is not in this history: nothing tells where it "
                "continues",
                WHERE_IT_ENDS,
            )

    def _came_in(self, number: int) -> Gtids:
        """What a base backup may have that the source got without a binlog, while it wrote some."""
        if self._flavour == "mariadb":
            return empty(self._flavour)
        route, came_in = self._route, gtids_that_came_in(self._search.left_out())
        for at in range(number, min(number + 2, len(route))):  # it may end where the next begins
            with suppress(ArchiveError):  # one that the plan needs is refused elsewhere
                came_in |= gtids_that_came_in(route.brief(at).leaves_out or ())
        return came_in

    def _check_outside(self, apart: Gtids, everything: Gtids) -> None:
        """See that the target has what a source got without its binlogs, before it wrote them."""
        assert self._have is not None  # noqa: S101 - the caller has looked
        missing = beyond(apart, either(self._have, everything))
        if not missing or self._request.start.position is not None:
            return
        self._search.leave_out(
            f"{self._search.who_has()} is missing {gtids_text(missing)}, which no binlog of the "
            "source ever had: its data came with a dump or a clone of another server",
            "restore a base backup that has them, made of this source or of that server; "
            "--allow-gap goes on without them",
        )

    def _before(self) -> Gtids | None:
        """What the target has. Of MariaDB, the GTID of each domain that was executed last."""
        if self._stands is not None and self._stands.state_end is not None:
            return self._stands.state_end.newest
        return self._have

    def _check_position(self, start: LinePosition) -> None:
        """If the target has some of what comes before the given position, see that it has all.

        If it has none of that, its GTIDs do not tell what its base backup had: the position does.
        """
        have = self._have
        if self._request.start.position is None:
            return
        if have is None or isinstance(have, MariadbGtidList):
            return
        before = self._route.gtids_at(*start)
        if before is None:
            return
        missing = beyond(before, have)
        if missing and intersection(have, before):
            position = self._route.position(start.number, start.offset)
            self._search.leave_out(
                f"{self._search.who_has()} is not at {position}: it is missing "
                f"{gtids_text(missing)}, which come before it",
                "without the place, its GTIDs say where it continues; or restore the base backup "
                "that goes up to it",
                then=": THEY ARE LEFT OUT",
            )

    def _check_replicated(self, start: LinePosition) -> None:
        """See that a MariaDB has replicated nothing of what would be applied.

        A run that has ended leaves gtid_slave_pos where it ended. A copy of a former replica has
        an older one: if that is before the start, it is a warning.
        """
        own, base = self._request.start.own, self._request.start.base
        if own is None or own.replicated is None:
            return
        is_set = base is not None and base.sets_gtids
        if is_set and base is not None and base.gtids and not own.replicated:
            raise self._not_loaded("its gtid_slave_pos is empty")
        for gtid in own.replicated.gtids():
            text = gtid_text(gtid)
            try:
                transactions = transactions_with(self._route, gtid)
            except ArchiveError as error:
                self._warnings.append(f"it is unknown where the target's {text} is: {error}")
                continue
            if transactions and not any(
                self._is_before(start, *transaction) for transaction in transactions
            ):
                raise self._search.refused(
                    f"the target has replicated {text} (gtid_slave_pos), which comes after the "
                    "place where this run begins: it would be applied a second time",
                    "to continue where an earlier run has ended: --from-gtid-set with its "
                    "gtid_slave_pos, instead of the base backup; if the base backup was restored "
                    "again since: SET GLOBAL gtid_slave_pos there to that of the base backup",
                )
            if transactions and not self._is_newest(gtid):
                if is_set:
                    raise self._not_loaded(f"it is at {text}, which comes before that")
                self._warnings.append(
                    f"the target's gtid_slave_pos has {text}, which comes before the place where "
                    "this run begins: if the restore has set it, another base backup was restored "
                    "than the one that is named, and WHAT LIES IN BETWEEN IS LEFT OUT"
                )

    def _not_loaded(self, why: str) -> RecoveryError:
        base = self._request.start.base
        assert base is not None  # noqa: S101 - it is what the target contradicts
        return self._search.refused(
            f"the target was not restored from what is named: loading {base.said_by} sets "
            f"gtid_slave_pos to {gtids_text(base.gtids or '')}, but {why}",
            "name the base backup that was restored, or restore this one. If this one was restored "
            "without that statement: SET GLOBAL gtid_slave_pos = '...' with it, at the target",
        )

    def _is_before(self, start: LinePosition, number: int, transaction: Transaction) -> bool:
        """Whether a transaction of the route comes before the start, so that it is not applied."""
        if self._request.start.position is None and self._stands is not None:
            return self._stands.part.has(number, transaction)
        return (number, transaction.end) <= (start.number, start.offset)

    def _is_newest(self, gtid: Gtid) -> bool:
        """Whether the start is just behind this GTID, in its domain; True if that is unknown."""
        state_end = self._stands.state_end if self._stands is not None else None
        return state_end is None or gtid in state_end.newest.gtids()

    def _before_stop(self, first: int, stop: LinePosition) -> Gtids | None:
        """All GTIDs that were executed before the binlog of the stop; None if that is unknown."""
        before = self._route.known(first).gtids_before
        if self._have is None or before is None:
            return None
        executed = either(before, empty(self._flavour))
        for number in range(first, stop.number):
            executed = either(executed, self._route.adds(number))
        return executed

    def _check_past(
        self, stop: LinePosition, before_stop: Gtids | None, everything: Gtids | None
    ) -> Gtids | None:
        """See that the target has nothing that comes after the stop; all GTIDs up to the stop."""
        have = self._have
        if have is None or everything is None or before_stop is None:
            return before_stop
        wanted = either(before_stop, self._added_before(stop))
        if self._stands is not None and self._stands.state_end is not None:
            past = ",".join(self._stands.state_end.beyond(stop))
        else:
            past = beyond(intersection(have, everything), wanted)
        if past:
            position = self._route.position(stop.number, stop.offset)
            who = self._search.who_has(parse(past, self._flavour))
            raise self._search.refused(
                f"{who} is already past {position}: it has {gtids_text(past)}",
                "restore an older base backup",
            )
        return wanted

    def _added_before(self, stop: LinePosition) -> Gtids:
        """The GTIDs that the binlog of the stop adds before it."""
        if stop.offset >= self._route.end(stop.number):
            return self._route.adds(stop.number)
        gtids_read = self._pieces.gtids_read(stop)
        return (
            self._route.adds_before(stop.number, stop.offset) if gtids_read is None else gtids_read
        )

    def _check_skipped(self, *, is_done: bool) -> None:
        """Refuse a --skip-gtid that has no effect.

        If nothing is left to apply, an earlier run may have committed it empty: that comes last.
        One that several transactions have does not tell which of them is meant.
        """
        if again := self._skip.found_again():
            raise self._search.refused(
                f"--skip-gtid {again[0]} would leave out several transactions: that GTID was used "
                "more than once",
                "recover in two runs, with --skip-gtid in the one that has what is to be left out: "
                "the first ends between them, with --to-position (`binlog2s3 find` shows where "
                "they are)",
            )
        rest = self._skip.not_found()
        if not rest:
            return
        have = self._have
        executed = intersection(have, parse(rest, self._flavour)) if have is not None else None
        if executed and is_done:
            self._warnings.append(
                f"the target has {gtids_text(executed)} already: an earlier run committed it "
                "empty, or it was applied"
            )
            return
        if executed:
            raise self._search.refused(
                f"the target has {gtids_text(executed)} already: it cannot be left out any more",
                "if an earlier run of this command left it out, do not name it again; else restore "
                "an older base backup",
            )
        raise self._search.refused(
            f"{gtids_text(rest)} is not among what would be applied",
            "--dry-run shows what would be applied",
        )

    def _check_phases(self, start: LinePosition) -> None:
        """See that an ALTER of MariaDB in two phases is left out as a whole.

        A replica that has only the second one carries it out then; with only the first one it waits
        for the second.
        """
        if self._flavour != "mariadb":
            return
        route, firsts, seconds = self._route, set[str](), dict[str, str]()
        for number, transaction in self._pieces.skipped:
            position = route.position(number, transaction.begin)
            phase = route.history.content(position.lineage, position.binlog, transaction).two_phase
            if (
                phase is not None
                and isinstance(phase.name, AlterName)
                and transaction.gtid is not None
            ):
                first = f"{transaction.gtid.rpartition('-')[0]}-{phase.name.number}"
                if phase.phase == "prepare":
                    firsts.add(first)
                else:
                    seconds[first] = transaction.gtid
        for first in firsts - seconds.keys():
            raise self._search.refused(
                f"--skip-gtid {first} is only the beginning of an ALTER in two phases, whose end "
                "would carry it out",
                "name its end, too: a later transaction with the same statement (`binlog2s3 find` "
                "shows it); if that comes after the goal, this one has no effect",
            )
        for first in seconds.keys() - firsts:
            begun = transactions_with(route, mariadb_gtid(first))
            if any(not self._is_before(start, *transaction) for transaction in begun):
                raise self._search.refused(
                    f"--skip-gtid {seconds[first]} is only the end of an ALTER in two phases, and "
                    f"a replica that has its beginning waits for it",
                    f"name its beginning, too: {first}",
                )

    def _check_holes(
        self, pieces: Sequence[PlanPiece], start: LinePosition, stop: LinePosition
    ) -> ExactGtids:
        """See that what the target has is a beginning of the history, but for holes: these.

        A hole that --skip-gtid leaves out, or --allow-gap as damaged, is not applied, so it is not
        applied too late. One that is named and was filled may be a run's that was interrupted.
        """
        have, allowed, gtids = None, self._allowed, ExactGtids()
        if self._stands is not None:
            have = self._stands.part
            holes = Holes(self._route, have, pieces, start, stop)
            gtids = holes.gtids
            if not self._request.any_holes and (rest := gtids - allowed):
                raise self._hole(rest, holes.later)
        unknown = allowed - gtids
        executed = unknown.within(have, self._route) if have is not None else ExactGtids()
        if unknown - executed:
            raise self._search.refused(
                f"--allow-holes: {gtids_text(unknown - executed)} is no hole of the target that "
                "would be filled",
                "--dry-run without it names the holes",
            )
        if executed:
            self._warnings.append(f"--allow-holes: the target has {gtids_text(executed)} already")
        return gtids

    def _hole(self, gtids: ExactGtids, later: str) -> RecoveryError:
        start = self._request.start
        hint = (
            "applied now they would come too late, after what they were committed before: restore "
            "the base backup again. If an earlier run left them out (--skip-leaves-hole), "
            "--skip-gtid leaves them out again; --allow-holes with exactly these applies them "
            "first, in the history's order, as is right for a copy of a replica that does not keep "
            "the order of commits"
        )
        if start.base is None and start.position is None:
            hint += "; if a base backup was loaded without its GTIDs, name it: --from-backup"
        return self._search.refused(
            f"{self._search.who_has(parse(later, self._flavour))} has a hole: it has {later}, and "
            f"is missing {gtids_text(gtids)}, which the history has before that",
            hint,
        )

    def _check_whole(self, wanted: Gtids | None) -> None:
        """See that the target will have all GTIDs up to the stop: the pieces, checked once more."""
        if self._have is None or wanted is None or self._request.allow_gap:
            return
        if self._request.start.position is not None:
            return
        if isinstance(wanted, MariadbGtidList):
            return  # its positions tell what is applied, and breaks what is missing
        has = either(self._have, self._pieces.applied)
        skipped = self._skip.found()
        missing = beyond(wanted, has)
        if skipped is not None and missing:
            missing = beyond(parse(missing, self._flavour), skipped)
        if missing:
            raise self._search.refused(
                f"the target would be missing {gtids_text(missing)}",
                "the GTIDs in the archive do not tell enough about this history: restore a later "
                "base backup",
            )

    def _newer_others(self) -> Iterator[str]:
        """The lineages with newer transactions outside of this history: none without a message."""
        tip = self._route.tip.id
        for other, text in self._search.branches.newer(self._warnings):
            if self._request.lineage is None and isinstance(self._request.goal, Latest):
                raise RecoveryError(text, hint=f"choose: --lineage {tip}, or --lineage {other}")
            self._warnings.append(text)
            yield other

    # What is shown

    def _last_kept(self, stop: LinePosition, first: int) -> list[Shown]:
        """The last transactions before the stop that the target has, or gets."""
        kept: list[Shown] = []
        limit: int | None = stop.offset
        for number in range(stop.number, max(-1, stop.number - _BACK), -1):
            is_repeated = self._route.is_repeated(number, first)
            begins = [b.first_offset for b in self._route.known(number).blocks if b.first_offset]
            for begin in reversed([at for at in begins if limit is None or at < limit]):
                transactions = self._route.transactions(number, begin, limit)
                last = _last(transactions, is_repeated, self._skip)
                kept = [self._shown(number, transaction) for transaction in last] + kept
                limit = begin
                if len(kept) >= _SHOWN:
                    return kept[-_SHOWN:]
            limit = None
        return kept

    def _first_left_out(self, stop: LinePosition, first: int) -> list[Shown]:
        """The first transactions after the stop."""
        left_out: list[Shown] = []
        for number in range(stop.number, len(self._route)):
            is_repeated = self._route.is_repeated(number, first)
            begin = stop.offset if number == stop.number else 0
            try:
                transactions = self._route.transactions(number, begin)
                new = (transaction for transaction in transactions if not is_repeated(transaction))
                left_out += [
                    self._shown(number, transaction)
                    for transaction in islice(new, _SHOWN - len(left_out))
                ]
            except Binlog2s3Error as error:
                self._warnings.append(f"what comes after the stop cannot be read: {error}")
                return left_out
            if len(left_out) >= _SHOWN:
                break
        return left_out

    def _shown(self, number: int, transaction: Transaction) -> Shown:
        position = self._route.position(number, transaction.begin)
        try:
            content = self._route.history.content(position.lineage, position.binlog, transaction)
        except Binlog2s3Error:
            content = Content()
        return Shown(
            lineage=position.lineage,
            binlog=position.binlog,
            transaction=transaction,
            content=content,
        )


def _last(
    transactions: Iterator[Transaction],
    is_repeated: Callable[[Transaction], bool],
    skip: Skip,
) -> list[Transaction]:
    """The last few that are neither repeated nor skipped."""
    kept: list[Transaction] = []
    for transaction in transactions:
        if not (
            is_repeated(transaction)
            or (transaction.gtid is not None and skip.names(transaction.gtid))
        ):
            kept.append(transaction)
        if len(kept) > 4 * _SHOWN:
            del kept[:-_SHOWN]
    return kept[-_SHOWN:]
