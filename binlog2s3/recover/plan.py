"""What a recovery will do, decided before anything is done.

Place in the flow: `pitr` asks for a plan and carries it out. `route` is the way through the
archive, `goal` finds places on it, `choice` the transactions of one binlog. Pure but for what it
asks the history.

Law: a plan reaches exactly what was asked for, or it is refused with a reason and what can be
reached instead. Nothing is applied twice, nothing is left out that was not named, and no gap, no
damage and no join that nobody can prove is crossed in silence.
"""

from collections.abc import Callable, Iterator
from itertools import islice

from binlog2s3.binlog.content import Content
from binlog2s3.binlog.executed import Executed, Gathering, executed, gathered
from binlog2s3.binlog.gtid import Gtids, GtidSet, MariadbGtidList, either, empty, parse
from binlog2s3.binlog.scanner import Transaction
from binlog2s3.errors import Binlog2s3Error, RecoveryError
from binlog2s3.recover.choice import Choice
from binlog2s3.recover.goal import At, Search, short
from binlog2s3.recover.model import History, Latest, Piece, Plan, Request, Shown
from binlog2s3.recover.origin import Origin
from binlog2s3.recover.outside import newer_outside
from binlog2s3.recover.route import Route
from binlog2s3.recover.skip import Skip, both

_SHOWN = 3
_BACK = 50
"""How many binlogs are looked through for the last transactions that are kept."""


def make(request: Request, history: History) -> Plan:
    """The plan for this request. Raises RecoveryError with what can be reached instead.

    Pages are believed about what to look at. If something is not as one says, it is planned again.
    """
    if not history.lineages:
        raise RecoveryError("there is no history in the bucket", hint="see `binlog2s3 list`")
    tip = request.lineage or history.current
    ids = [lineage.id for lineage in history.lineages]
    if tip not in ids:
        raise RecoveryError(f"there is no lineage {tip}", hint=f"there are: {', '.join(ids)}")
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


def _route(history: History, tip: str) -> Route:
    route = Route(history, tip)
    if not len(route):
        raise RecoveryError(
            f"of lineage {tip} no binlog can be read",
            hint="see `binlog2s3 list`; --lineage chooses another history",
        )
    return route


class _Planner:
    def __init__(self, request: Request, route: Route) -> None:
        self._request = request
        self._route = route
        self._search = Search(route, request)
        self._origin = Origin(self._search)
        self._flavour = route.line.legs[-1].lineage.flavour
        gtids = request.start.gtids
        if gtids is not None and not isinstance(gtids, type(empty(self._flavour))):
            raise RecoveryError(
                f"the history is {self._flavour}'s, the GTIDs to start from are not",
                hint="a target of the other flavour cannot take these binlogs",
            )
        self._have: Executed | None = executed(gtids) if gtids is not None else None
        self._skip = Skip(request.skip, self._flavour)
        self._warnings = self._search.warnings
        self._applied = empty(self._flavour)
        self._wanted: Gtids | None = None  # all up to the stop
        self._everything: Gtids | None = None  # all of the history
        self._seen, self._seen_at = Gathering(self._flavour), At(-1, 0)  # read on the way

    def plan(self) -> Plan:
        route = self._route
        self._origin.check_named()
        start = self._start()
        self._check_base(start)
        stop = self._search.stop(start, self._have)
        route.load(min(start.number, stop.number), stop.number + 1)
        self._check_end(stop)
        self._check_history(start, stop)
        if stop < start and (self._have is None or self._request.start.place is not None):
            raise self._search.refused(
                f"{route.place(stop.number, stop.offset)} lies before "
                f"{route.place(start.number, start.offset)}, where the target stands",
                "restore an older base backup",
            )
        pieces = tuple(self._pieces(start, stop)) if start <= stop else ()
        self._check_past(stop)
        self._check_skipped(is_done=not pieces)
        self._check_whole()
        self._check_others()
        lineage = route.leg(stop.number).lineage
        numbers = range(min(start.number, stop.number), stop.number + 1)
        return Plan(
            flavour=self._flavour,
            server_version=lineage.server_version,
            lineage=route.line.legs[-1].lineage.id,
            goal=self._request.goal,
            stop=route.place(stop.number, stop.offset),
            pieces=pieces,
            before=self._have.gtids if self._have is not None else None,
            adds=self._applied,
            skipped=self._skip.found(),
            kept=tuple(self._before(stop, numbers[0])),
            left_out=tuple(self._behind(stop, numbers[0])),
            commit_exact=all(route.known(number).commit_exact for number in numbers),
            reach=self._search.reach(),
            warnings=tuple(dict.fromkeys(self._warnings)),
            others=tuple(self._others()),
        )

    # Where it begins

    def _start(self) -> At:
        given, route = self._request.start.place, self._route
        if given is not None:
            wanted = self._request.start
            return self._search.place(*given, wanted.lineage, wanted.server)
        if self._have is None:
            before = route.known(0).gtids_before
            if before:
                self._warnings.append(
                    f"the history begins after {short(str(before))}: what takes it must have these"
                )
            return At(0, 0)
        number = route.first_covered(self._have)
        if number is None:
            raise self._not_covered(self._have)
        if number and not route.known(number - 1).gtids_added:
            before_it = route.known(number - 1)
            if before_it.anonymous:
                raise self._anonymous(number - 1)
        return At(number, 0)

    def _not_covered(self, have: Executed) -> RecoveryError:
        before = self._route.known(0).gtids_before
        where = "say where the base backup stands: --from-binlog and --from-position"
        if before is None:
            return self._search.refused(
                f"{self._route.stretches[0].name} does not say which GTIDs came before it", where
            )
        missing = executed(before).beyond(have.gtids)
        return self._search.refused(
            "the target lacks GTIDs that were executed before the archive begins: "
            f"{short(missing)}",
            "restore a base backup that has them",
        )

    def _anonymous(self, number: int) -> RecoveryError:
        return self._search.refused(
            f"{self._route.stretches[number].name} has transactions without a GTID: GTIDs do not "
            "tell which of them the target has",
            "say where the base backup stands: --from-binlog and --from-position",
        )

    def _check_end(self, stop: At) -> None:
        """All that there is does not end before what cannot be read of it."""
        if not isinstance(self._request.goal, Latest):
            return
        known = self._route.known(stop.number)
        texts = [
            f"bytes {begin} to {end} of {known.name} are damaged or not there"
            for begin, end in known.damaged
            if end > max(stop.offset, known.transaction_end)
        ]
        if lost := self._route.history.lost_end(self._route.line.legs[-1].lineage.id):
            texts.append(f"nothing can be read of {lost}")
        if texts and not self._request.allow_gap:
            raise self._search.refused(
                f"the newest transactions cannot be reached: {'; '.join(texts)}",
                f"--to-position {known.name}:{stop.offset} is as far as it goes; --allow-gap takes "
                "that for the newest",
            )
        self._warnings += [f"the newest transactions are left out: {text}" for text in texts]

    # What the target has

    def _check_base(self, start: At) -> None:
        """The target has nothing that is not of this history."""
        have, route = self._have, self._route
        if have is None:
            return
        everything = route.gtids_from(start.number, self._added)
        if everything is not None:
            self._check_branches(have, everything, route.leg(start.number).lineage.id)

    def _check_history(self, start: At, stop: At) -> None:
        """Gather what the target has to have in the end, and all of the history."""
        have, route = self._have, self._route
        if have is None:
            return
        low = min(start.number, stop.number)
        before = route.known(low).gtids_before
        if before is None:
            return
        self._wanted = either(before, empty(self._flavour))
        for number in range(low, stop.number):
            self._wanted = either(self._wanted, self._added(number))
        self._everything = route.gtids_from(low, self._added)

    def _check_past(self, stop: At) -> None:
        """The target has nothing that lies behind the stop."""
        have, everything = self._have, self._everything
        if have is None or everything is None or self._wanted is None:
            return
        self._wanted = either(self._wanted, self._added_upto(stop))
        past = executed(both(have.gtids, everything)).beyond(self._wanted)
        if past:
            place = self._route.place(stop.number, stop.offset)
            raise self._search.refused(
                f"the target is already past {place}: it has {short(past)}",
                "restore an older base backup",
            )

    def _check_branches(self, have: Executed, everything: Gtids, lineage: str) -> None:
        """Nothing of a dead branch, nothing that could be of one, nothing unknown."""
        extra = have.beyond(everything)
        dead = list(self._search.ends())
        for other, gtids in dead:
            lost = both(parse(extra, self._flavour), gtids) if extra else None
            if lost:
                raise self._search.refused(
                    f"the target has GTIDs of a dead branch, which this history left: "
                    f"{short(str(lost))} of {other}",
                    f"{self._origin.choosing(other)} goes on with that history; else restore a "
                    f"base backup from before they were executed{self._origin.or_wait(other)}",
                )
        if extra and not self._request.allow_extra_gtids:
            raise self._search.refused(
                f"the target has GTIDs that the archive does not know: {short(extra)}",
                "is it the right source? Or something wrote to the target since it was restored: "
                "its event scheduler (start it with event_scheduler=OFF), FLUSH PRIVILEGES, an "
                "operator; then restore the base backup again. --allow-extra-gtids is for who "
                "knows what that was",
            )
        if extra:
            self._warnings.append(
                f"the target has GTIDs that the archive does not know: {short(extra)}"
            )
        if self._request.start.place is None:
            self._origin.check(have.gtids, everything, dead, begins_in=lineage)

    def _added(self, number: int) -> Gtids:
        """The GTIDs that a stretch adds, and perhaps some that were there before."""
        route = self._route
        cut = route.leg(number).cut
        if not route.is_cut(number):
            return route.brief(number).gtids_added
        if cut is not None and cut.gtid_set:
            return parse(cut.gtid_set, self._flavour)
        return self._read(number, route.size(number))

    def _added_upto(self, stop: At) -> Gtids:
        """Those that the stretch of the stop adds before it."""
        if stop.offset >= self._route.end(stop.number):
            return self._added(stop.number)
        if stop == self._seen_at:
            return self._seen.build()
        return self._read(stop.number, stop.offset)

    def _read(self, number: int, upto: int) -> Gtids:
        found = (one.gtid for one in self._route.transactions(number, 0, upto) if one.gtid)
        return gathered(found, self._flavour)

    # What is applied

    def _pieces(self, start: At, stop: At) -> Iterator[Piece]:
        route = self._route
        self._check_breaks(start, stop)
        exclude, leg = self._have, -1
        for number in range(start.number, stop.number + 1):
            if route.stretches[number].leg != leg:
                leg = route.stretches[number].leg
                if self._applied:
                    base = exclude if exclude is not None else executed(empty(self._flavour))
                    exclude = base.plus(self._applied)
            begin = start.offset if number == start.number else 0
            end = stop.offset if number == stop.number else None
            if end is not None and end >= route.end(number):
                end = None
            piece = self._piece(number, begin, end, exclude, start.number)
            if piece is not None:
                self._applied = either(self._applied, piece.gtids)
                yield piece

    def _check_breaks(self, start: At, stop: At) -> None:
        for number, why, missing in self._route.breaks(start.number, stop.number):
            text = f"history is broken before {self._route.stretches[number].name}: {why}"
            text += f"; missing: {short(missing)}" if missing else ""
            if not self._request.allow_gap:
                before = self._route.place(number - 1, self._route.end(number - 1))
                raise self._search.refused(
                    text,
                    f"--to-position {before} is as far as it goes from there; what lies behind "
                    "needs a base backup from behind it; --allow-gap leaves out what is missing",
                )
            self._warnings.append(text)

    def _piece(
        self, number: int, begin: int, end: int | None, exclude: Executed | None, first: int
    ) -> Piece | None:
        """What is applied of a stretch, from one offset to another."""
        route, known = self._route, self._route.known(number)
        upto = route.end(number) if end is None else end
        damaged = [(a, b) for a, b in known.damaged if a < upto and b > begin]
        shared = route.shared(number, first)
        is_mixed = exclude is not None and exclude.touches(known.gtids_before, known.gtids_added)
        whole = begin == 0 and end is None and not route.is_cut(number) and not shared
        if known.anonymous:
            self._check_anonymous(number)
        if whole and not (is_mixed or damaged or self._skip.touches(known.gtids_added)):
            return self._whole(number)
        choice = Choice(self._flavour)
        order = _Order(self._flavour if exclude is not None else "mysql")
        hint = self._hint(number, begin, end, exclude)
        self._seen = Gathering(self._flavour)
        self._seen_at = At(number, end or -1) if hint == 0 else At(-1, 0)
        for one in route.transactions(number, hint, end):
            if one.gtid is not None:
                self._seen.add(one.gtid)
            if one.begin < begin or (one.gtid is None and one.end <= shared):
                continue
            if not order.goes_on(one):
                raise self._search.refused(
                    f"the GTIDs of {known.name} are not in order at {one.gtid}: they do not tell "
                    "what the target has",
                    "say where the base backup stands: --from-binlog and --from-position",
                )
            is_there = one.gtid is not None and exclude is not None and exclude.has(one.gtid)
            if is_there or self._skip.has(one.gtid):
                choice.leave(one)
            elif any(a < one.end and one.begin < b for a, b in damaged):
                self._leave_damaged(number, one)
                choice.leave(one)
            else:
                choice.take(one)
        return choice.piece(route.place(number, begin))

    def _whole(self, number: int) -> Piece | None:
        route, known = self._route, self._route.known(number)
        if not known.transactions:
            return None
        return Piece(
            lineage=route.leg(number).lineage.id,
            binlog=known.name,
            begin=route.begin(number),
            end=route.end(number),
            transactions=known.transactions,
            gtids=known.gtids_added,
            greatest_commit_us=known.greatest_commit_us,
        )

    def _hint(self, number: int, begin: int, end: int | None, exclude: Executed | None) -> int:
        """From where on to look for what is not executed yet.

        Blocks that begin with what is executed are passed over only if all that is wanted is found
        behind them: the entry says what there is.
        """
        route, known = self._route, self._route.known(number)
        gtids = known.gtids_added
        if exclude is None or end is not None or known.anonymous or route.is_cut(number):
            return begin
        if not (isinstance(gtids, GtidSet) and isinstance(exclude.gtids, GtidSet)):
            return begin
        hint = begin
        for block in known.blocks:
            if block.first_offset is not None and block.first_gtid is not None:
                if not exclude.has(block.first_gtid):
                    break
                hint = max(hint, block.first_offset)
        if hint == begin:
            return begin
        found = (one.gtid for one in route.transactions(number, hint) if one.gtid)
        wanted = gtids - exclude.gtids
        seen = gathered(found, self._flavour)
        return hint if isinstance(seen, GtidSet) and wanted <= seen else begin

    def _check_anonymous(self, number: int) -> None:
        if self._have is not None and self._request.start.place is None:
            raise self._anonymous(number)

    def _leave_damaged(self, number: int, one: Transaction) -> None:
        """A transaction that would be applied is damaged: refused, or left out with a warning."""
        name = self._route.stretches[number].name
        text = (
            f"{one.gtid or 'a transaction'} at {name}:{one.begin} is damaged, as the source served "
            "it"
        )
        if not self._request.allow_gap:
            raise self._search.refused(
                text,
                f"--to-position {name}:{one.begin} is as far as it goes; --allow-gap leaves out "
                "what is damaged",
            )
        self._warnings.append(f"{text}: it is left out")

    def _check_skipped(self, *, is_done: bool) -> None:
        """Refuse a wish that would come to nothing.

        Where nothing is left to apply, an earlier run may have committed it empty: that comes last.
        """
        rest = self._skip.not_found()
        if not rest:
            return
        there = both(self._have.gtids, parse(rest, self._flavour)) if self._have else None
        if there and is_done:
            self._warnings.append(
                f"the target has {short(str(there))} already: committed empty by an earlier run, "
                "or with all that it did"
            )
            return
        if there:
            raise self._search.refused(
                f"the target has {short(str(there))} already: it cannot be left out any more",
                "if an earlier run of this command left it out, do not name it again; else restore "
                "an older base backup",
            )
        raise self._search.refused(
            f"{short(rest)} is not among what would be applied", "--dry-run shows what would be"
        )

    def _check_whole(self) -> None:
        """The target will have all GTIDs up to the stop: what was decided above, seen once more."""
        if self._have is None or self._wanted is None or self._request.allow_gap:
            return
        if self._request.start.place is not None:
            return
        has = self._have.plus(self._applied)
        skipped = self._skip.found()
        if isinstance(self._wanted, MariadbGtidList) and has.covers(self._wanted):
            return
        missing = executed(self._wanted).beyond(has.gtids)
        if skipped is not None and missing:
            missing = executed(parse(missing, self._flavour)).beyond(skipped)
        if missing:
            raise self._search.refused(
                f"the target would lack {short(missing)}",
                "this history is not told well enough by GTIDs: restore a later base backup",
            )

    # What is shown

    def _before(self, stop: At, first: int) -> list[Shown]:
        """The last transactions before the stop that the target has, or gets."""
        found: list[Shown] = []
        limit: int | None = stop.offset
        for number in range(stop.number, max(-1, stop.number - _BACK), -1):
            is_double = self._search.is_double(number, first)
            begins = [b.first_offset for b in self._route.known(number).blocks if b.first_offset]
            for begin in reversed([at for at in begins if limit is None or at < limit]):
                those = [
                    self._shown(number, one)
                    for one in _last(self._route.transactions(number, begin, limit), is_double,
                                     self._skip)
                ]  # fmt: skip
                found = those + found
                limit = begin
                if len(found) >= _SHOWN:
                    return found[-_SHOWN:]
            limit = None
        return found

    def _behind(self, stop: At, first: int) -> list[Shown]:
        """The first transactions behind the stop."""
        found: list[Shown] = []
        for number in range(stop.number, len(self._route)):
            is_double = self._search.is_double(number, first)
            begin = stop.offset if number == stop.number else 0
            try:
                new = (one for one in self._route.transactions(number, begin) if not is_double(one))
                found += [self._shown(number, one) for one in islice(new, _SHOWN - len(found))]
            except Binlog2s3Error as error:
                self._warnings.append(f"what comes behind the stop cannot be read: {error}")
                return found
            if len(found) >= _SHOWN:
                break
        return found

    def _shown(self, number: int, one: Transaction) -> Shown:
        place = self._route.place(number, one.begin)
        try:
            content = self._route.history.content(place.lineage, place.binlog, one)
        except Binlog2s3Error:
            content = Content()
        return Shown(lineage=place.lineage, binlog=place.binlog, transaction=one, content=content)

    def _check_others(self) -> None:
        """See that no newer transactions outside of this history are left out without a word."""
        tip = self._route.line.legs[-1].lineage.id
        for other, text in newer_outside(self._route, self._warnings):
            if self._request.lineage is None and isinstance(self._request.goal, Latest):
                raise RecoveryError(text, hint=f"choose: --lineage {tip}, or --lineage {other}")
            self._warnings.append(text)

    def _others(self) -> Iterator[str]:
        """Lineages that are no part of this history."""
        legs = {leg.lineage.id for leg in self._route.line.legs}
        for lineage in self._route.history.lineages:
            if lineage.id not in legs:
                yield lineage.id


class _Order:
    """Whether the numbers of each domain only grow, as MariaDB's must to be told by the last."""

    def __init__(self, flavour: str) -> None:
        self._last: dict[str, int] | None = {} if flavour == "mariadb" else None

    def goes_on(self, one: Transaction) -> bool:
        if self._last is None or one.gtid is None:
            return True
        domain, _, number = one.gtid.split("-")
        is_greater = int(number) > self._last.get(domain, -1)
        self._last[domain] = int(number)
        return is_greater


def _last(
    transactions: Iterator[Transaction],
    is_double: Callable[[Transaction], bool],
    skip: Skip,
) -> list[Transaction]:
    """The last few that count."""
    found: list[Transaction] = []
    for one in transactions:
        if not (is_double(one) or (one.gtid is not None and skip.names(one.gtid))):
            found.append(one)
        if len(found) > 4 * _SHOWN:
            del found[:-_SHOWN]
    return found[-_SHOWN:]
