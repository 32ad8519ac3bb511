"""Where on a route a recovery begins and ends: positions, GTIDs and times.

Pure but for what the route asks the history.

Law: a position must be unambiguous. What is ambiguous or cannot be reached is a RecoveryError that
says what can be reached.
"""

from contextlib import suppress

from binlog2s3.archive.facts import Facts
from binlog2s3.archive.history import extent
from binlog2s3.binlog.executed import ExecutedPart, LinePosition, MysqlPart, transactions_with
from binlog2s3.binlog.gtid import Gtids, GtidSet, MariadbGtidList, either, intersection, parse
from binlog2s3.binlog.names import BinlogName
from binlog2s3.binlog.scanner import Transaction
from binlog2s3.binlog.transactions import is_credible
from binlog2s3.config.goal import BeforeGtid, Latest, ToGtid, ToPosition, ToTime
from binlog2s3.errors import ArchiveError, GoalError, RecoveryError
from binlog2s3.formatting import cut, iso_text
from binlog2s3.recover.branches import Branches
from binlog2s3.recover.model import Reachable, Request
from binlog2s3.recover.route import SECOND_US, Route, has_all, last_where

_SHORT_US = 10 * SECOND_US
_MOST_IN_A_ROW = 3
_MOST_BEHIND = 20
_MOST_SHOWN = 3
_GTIDS_SHOWN = 300
_ACCEPT = "--accept-times takes the times as they are"
_NAME_IT = (
    "name the place: --before-gtid, --to-gtid or --to-position (`binlog2s3 find` shows what is "
    f"there); {_ACCEPT}"
)


class Search:
    """Looks for positions on a route. `warnings` collects what does not prevent a recovery.

    `disorder`: the transactions, by binlog, that are on the other side of the goal's position than
    their commit times say.
    """

    def __init__(self, route: Route, request: Request) -> None:
        self.route = route
        self.request = request
        self.branches = Branches(route)
        self.warnings: list[str] = []
        self.disorder: list[tuple[int, Transaction]] = []

    def who_has(self, gtids: Gtids | None = None) -> str:
        """Who is said to have these, or all that was executed: the base backup, or the target."""
        base = self.request.start.base
        if base is None or base.gtids is None:
            return "the target"
        is_its = gtids is None or bool(intersection(gtids, base.gtids))
        return base.said_by if is_its else "the target"

    # What can be reached

    def reach(self) -> Reachable:
        """From the oldest binlog that can be read and leads up to the newest without a break."""
        route, last = self.route, len(self.route) - 1
        *_, newest_interval = extent(route.binlogs)
        first, oldest = self._readable(newest_interval.first)
        newest = route.known(last)
        before = newest.gtids_before
        return Reachable(
            first=route.position(first, route.begin(first)),
            last=route.position(last, route.end(last)),
            earliest_us=oldest.first_us,
            latest_us=self._latest_us(first),
            gtids=either(before, newest.gtids_added) if before is not None else None,
            is_behind_gap=newest_interval.first > 0,
        )

    def _readable(self, first: int) -> tuple[int, Facts]:
        """The first binlog from this one on of which something is known. Raises ArchiveError."""
        last = len(self.route) - 1
        for number in range(first, last):
            with suppress(ArchiveError):
                return number, self.route.known(number)
        return last, self.route.known(last)

    def _latest_us(self, first: int) -> int | None:
        """The newest credible commit from a binlog on; or what the writer vouches for."""
        covered = self.covered_us()
        for number in range(len(self.route) - 1, first - 1, -1):
            if (newest := self.route.known(number).reached_us) is not None:
                return newest if covered is None else max(newest, covered)
        return covered

    def covered_us(self) -> int | None:
        """The time up to which the writer guarantees all, if it writes this history."""
        return self.route.history.covered_us if self.route.tip.id == self._current() else None

    def left_out(self) -> tuple[str, ...]:
        """What the source says it leaves out of its binlogs, if it writes this history."""
        return self.route.history.left_out if self.route.tip.id == self._current() else ()

    def may_grow(self, lineage: str) -> bool:
        """Whether this lineage is being written, or may be."""
        return self._current() in (None, lineage)

    def _current(self) -> str | None:
        """None if it cannot be read: --lineage can be followed without it."""
        try:
            return self.route.history.current
        except ArchiveError:
            return None

    def refused(self, why: str, hint: str = "") -> RecoveryError:
        """The error for what cannot be done. Its hint says what can be reached.

        What prevents that answer is part of the hint: it never takes the place of the error.
        """
        try:
            reach = self.reach()
        except ArchiveError as error:
            can = f"what is within reach is unknown: {error}"
        else:
            words = (reach.positions, reach.times, reach.besides)
            can = f"within reach: {', '.join(filter(None, words))}"
        if before := self.route.pruned or self.route.line.barrier:
            can += f" ({before})"
        return RecoveryError(why, hint=f"{hint}; {can}" if hint else can)

    def leave_out(self, why: str, hint: str, *, then: str = "") -> None:
        """Warn of what the result will be missing, and `then`. Only --allow-gap allows that.

        Raises RecoveryError without it.
        """
        if not self.request.allow_gap:
            raise self.refused(why, hint)
        self.warnings.append(f"{why}{then}")

    # Positions

    def line_position(
        self,
        name: BinlogName,
        offset: int,
        lineage: str | None = None,
        server: str | None = None,
        *,
        option: str = "--from-lineage",
    ) -> LinePosition:
        """Where this offset of a binlog, of a lineage, is. It must be between two transactions.

        `server`: the server of a backup (see `model.Start`); only binlogs that it wrote count.
        `option`: the option that names the lineage, for the error if several have such a position.
        """
        numbers, elsewhere = self._holders(name, offset, lineage, server)
        if not numbers:
            raise self._nowhere(name, offset, elsewhere)
        on_route = list(dict.fromkeys(self.route.lineage(number) for number in numbers))
        is_chosen = self.request.is_chosen and bool(self.request.lineage)
        if len(numbers) > 1 or (elsewhere and not is_chosen):
            more = "" if option == "--lineage" else "--lineage {0} "
            named = [f"{option} {id_}" for id_ in on_route]
            named += [f"{more}{option} {{0}}".format(id_) for id_ in elsewhere]
            raise self.refused(
                f"{name}:{offset} is in several histories: {', '.join([*on_route, *elsewhere])}",
                f"choose one: {', or '.join(named)}",
            )
        (number,) = numbers
        if not self.route.history.is_boundary(self.route.lineage(number), name, offset):
            raise self.refused(
                f"{name}:{offset} is not between two transactions",
                "`mysqlbinlog` shows the positions: take one after a COMMIT, or where a "
                "transaction's GTID event begins",
            )
        if server == "":
            self.warnings.append(
                "the backup has no GTIDs and does not name its server: "
                f"{name}:{offset} is right only if it was made on server "
                f"{self._server_of(self.route.lineage(number))}, which wrote this binlog"
            )
        return LinePosition(number, offset)

    def _holders(
        self, name: BinlogName, offset: int, lineage: str | None, server: str | None
    ) -> tuple[list[int], list[str]]:
        """The binlogs that have this position, and the lineages that have it outside of the route.

        If there are several, only those count where it is between two transactions.
        """
        numbers = self.route.numbers_of(name, offset)
        elsewhere = self.branches.with_position(name, offset, is_here=bool(numbers))
        if lineage is not None:
            numbers = [n for n in numbers if self.route.lineage(n) == lineage]
            elsewhere = [id_ for id_ in elsewhere if id_ == lineage]
        if server:
            with_position = [self.route.lineage(n) for n in numbers] + elsewhere
            numbers = [n for n in numbers if self._wrote(server, self.route.lineage(n))]
            elsewhere = [id_ for id_ in elsewhere if self._wrote(server, id_)]
            if not numbers and not elsewhere:
                raise self._of_another(name, offset, server, with_position)
        if len(numbers) + len(elsewhere) > 1:
            ids = [self.route.lineage(n) for n in numbers]
            fit = {id_ for id_ in (*ids, *elsewhere) if self._fits(id_, name, offset)}
            if fit:
                numbers = [n for n in numbers if self.route.lineage(n) in fit]
                elsewhere = [id_ for id_ in elsewhere if id_ in fit]
        return numbers, elsewhere

    def _fits(self, lineage: str, name: BinlogName, offset: int) -> bool:
        """Whether a position can be between two transactions there."""
        history = self.route.history
        try:
            is_lost = offset > history.known(lineage, name).size  # unknown, too
            return is_lost or history.is_boundary(lineage, name, offset)
        except ArchiveError:  # unknown
            return True

    def _server_of(self, lineage: str) -> str:
        return next(o.server_uuid for o in self.route.history.lineages if o.id == lineage)

    def _wrote(self, server: str, lineage: str) -> bool:
        return self._server_of(lineage).lower() == server.lower()

    def _of_another(
        self, name: BinlogName, offset: int, server: str, with_position: list[str]
    ) -> RecoveryError:
        """The error if no lineage with this position is of the server that was backed up."""
        lineages = with_position or [lineage.id for lineage in self.route.history.lineages]
        writers = dict.fromkeys(map(self._server_of, lineages))
        which = f"{name}:{offset} of the archive is" if with_position else "the archive is"
        return self.refused(
            f"the backup has no GTIDs and is of server {server}, {which} of {', '.join(writers)}: "
            "the name of a binlog and a position mean nothing on another server",
            "restore a backup of a server of the archive, or one with GTIDs, which are valid on "
            "every server; if that server's binlogs are the same files, pass the backup's position "
            "with --from-gtid-set, or, for pitr, --from-binlog and --from-position",
        )

    def _nowhere(self, name: BinlogName, offset: int, elsewhere: list[str]) -> RecoveryError:
        if elsewhere:
            return self.refused(
                f"{name}:{offset} is not part of this history: it is in {', '.join(elsewhere)}, "
                "which this history left before that place",
                f"--lineage {elsewhere[-1]} chooses that history instead",
            )
        sizes = [
            self.route.size(number)
            for number, line_binlog in enumerate(self.route.binlogs)
            if line_binlog.name == name
        ]
        if sizes:
            return self.refused(f"{name} has no byte at {offset}: it has {max(sizes)} bytes")
        if any(
            line_part.lineage.is_below_floor(name) and line_part.holds(name)
            for line_part in self.route.line.parts
        ):
            return self.refused(f"{name} was pruned", "restore a later base backup")
        return self.refused(f"{name} is not in {self._searched()}")

    # GTIDs

    def gtid(self, gtid: str, first: int, have: ExecutedPart | None) -> tuple[int, Transaction]:
        """The binlog and the transaction that has this GTID.

        If several parts have it, the first one counts. But if the target does not have it, it is
        the first part that does not end before binlog `first`, where the recovery begins.
        """
        route = self.route
        try:
            wanted = parse(gtid, route.flavour)
        except ValueError as error:
            raise RecoveryError(
                f"not a GTID of {route.flavour}: {error}", hint="`binlog2s3 list` shows GTIDs"
            ) from None
        count = wanted.count if isinstance(wanted, GtidSet) else len(list(wanted.gtids()))
        if count != 1:
            raise RecoveryError(
                f"{gtid} has {count} GTIDs, and a goal is one transaction",
                hint="name one of them; a list of MariaDB's has the last one of each domain",
            )
        if isinstance(wanted, MariadbGtidList):
            return self._mariadb_gtid(gtid, wanted)
        is_there = isinstance(have, MysqlPart) and wanted <= have.gtids
        earlier: tuple[int, Transaction] | None = None
        for numbers in route.by_part():
            number = last_where(numbers, lambda n: not has_all(route.begins_after(n), wanted))
            if number is None or not has_all(route.known(number).gtids_added, wanted):
                continue
            if (transaction := self._scanned(number, str(wanted))) is not None:
                if is_there or numbers[-1] >= first:
                    return number, transaction
                earlier = earlier or (number, transaction)
        if earlier is not None:
            return earlier
        raise self._no_gtid(gtid, wanted)

    def _mariadb_gtid(self, gtid: str, wanted: MariadbGtidList) -> tuple[int, Transaction]:
        """The same for MariaDB, whose numbers may go back."""
        transactions = transactions_with(self.route, next(iter(wanted.gtids())))
        if not transactions:
            raise self._no_gtid(gtid, wanted)
        if len(transactions) > 1:
            positions = [
                str(self.route.position(number, transaction.begin))
                for number, transaction in transactions
            ]
            raise self.refused(
                f"{gtid} is at {len(positions)} places of this history: {', '.join(positions[:4])}",
                "name the place: --to-position",
            )
        return transactions[0]

    def _no_gtid(self, gtid: str, wanted: Gtids) -> RecoveryError:
        """The error for a GTID that no transaction of this history has."""
        if has_all(self.route.known(0).gtids_before, wanted):
            return self.refused(f"{gtid} was executed before the archive begins")
        for lineage, gtids in self.branches.gtids():
            if has_all(gtids, wanted):
                return self.refused(
                    f"{gtid} is on a dead branch: it is in {lineage}, which is not part of this "
                    "history",
                    f"--lineage {lineage} chooses that history instead",
                )
        refusal = self.refused(f"{gtid} is not in {self._searched()}")
        with suppress(ArchiveError):  # its hint says so
            if (reached := self.reach().gtids) is not None:
                refusal.hint += f", GTIDs {cut(reached, _GTIDS_SHOWN)}"
        return refusal

    def _searched(self) -> str:
        """Where it was looked for, in words: without other lineages that is all that there is."""
        return "this history" if len(self.route.history.lineages) > 1 else "the archive"

    def _scanned(self, number: int, gtid: str) -> Transaction | None:
        """Read from the block that seems to have it; if it is not there, read all."""
        for begin in dict.fromkeys([self.route.near(number, gtid), 0]):
            for transaction in self.route.transactions(number, begin):
                if transaction.gtid == gtid:
                    return transaction
        return None

    # The goal

    def stop(self, start: LinePosition, have: ExecutedPart | None) -> LinePosition:
        """Where the goal is. Raises GoalError if it is nowhere, whatever the base backup is."""
        if isinstance(self.request.goal, ToTime):
            return _TimeSearch(self, self.request.goal, start, have).stop()
        try:
            return self._line_position_of(self.request.goal, start, have)
        except RecoveryError as error:
            raise GoalError(str(error), hint=error.hint) from error

    def _line_position_of(
        self,
        goal: ToGtid | BeforeGtid | ToPosition | Latest,
        start: LinePosition,
        have: ExecutedPart | None,
    ) -> LinePosition:
        match goal:
            case ToGtid(gtid):
                number, transaction = self.gtid(gtid, start.number, have)
                return LinePosition(number, transaction.end)
            case BeforeGtid(gtid):
                number, transaction = self.gtid(gtid, start.number, have)
                return LinePosition(number, transaction.begin)
            case ToPosition((binlog, offset), lineage):
                lineage = lineage or self._chosen(binlog, offset)
                return self.line_position(binlog, offset, lineage, option="--lineage")
            case Latest():
                last = len(self.route) - 1
                return LinePosition(last, self.route.end(last))

    def _chosen(self, name: BinlogName, offset: int) -> str | None:
        """The lineage that --lineage names, if this position is in it; it wins over others."""
        wanted = self.request.lineage
        lineages = {self.route.lineage(number) for number in self.route.numbers_of(name, offset)}
        return wanted if wanted in lineages else None


class _TimeSearch:
    """Finds where to stop for a time: before the first transaction that was committed later.

    A transaction says when its commit, or its statement, began. So it was not committed before
    that, and neither was anything that comes after it: the first one that says a later time is
    where to stop, and a statement that took long comes after others that say a later time.

    Only a clock or a session that lies says a time that is later than the commit. That shows if it
    is later than the receipt (`Facts.is_credible`), or than what many that follow say
    (`_Disorder`).
    """

    def __init__(
        self, search: Search, goal: ToTime, start: LinePosition, have: ExecutedPart | None
    ) -> None:
        self._search = search
        self._route = search.route
        self._goal = goal
        self._start = start
        self._have = have
        self._lie: tuple[int, Transaction] | None = None
        self._passed = ""

    def stop(self) -> LinePosition:
        route, start, goal = self._route, self._start, self._goal
        if goal.at_us < route.known(0).first_us:
            raise self._too_early()
        self._check_before()
        number = start.number
        while number < len(route):
            upto = route.later_hint(number, goal.at_us) + 1
            route.load(number, upto)
            for binlog in range(number, upto):
                if self._may_be_later(binlog) and (later := self._first_later(binlog)) is not None:
                    self._check_credible(is_reached=True)
                    self._check_after(binlog, later)
                    return LinePosition(binlog, later.begin)
            number = upto
        covered = self._search.covered_us()
        self._check_credible(is_reached=covered is not None and covered >= goal.at_us)
        last = len(route) - 1
        return LinePosition(last, route.end(last))

    def _is_later(self, at_us: int | None) -> bool:
        return at_us is not None and at_us > self._goal.at_us

    def _may_be_later(self, number: int) -> bool:
        """Whether a binlog may have a transaction that was committed later."""
        known = self._route.known(number)
        if not self._is_later(known.greatest_commit_us):
            return False
        if self._goal.accepts or self._is_later(known.reached_us):
            return True
        received = known.received_us
        if received is None or is_credible(self._goal.at_us, received):
            return True
        self._passed = (
            f"{known.name} has commit times up to {iso_text(known.greatest_commit_us or 0)}, but "
            f"was received by {iso_text(received)}: all of it counts as committed by then"
        )
        self._search.warnings.append(self._passed)
        return False

    def _too_early(self) -> RecoveryError:
        """The error for a time before this history begins; it names the lineage that has it."""
        begins = iso_text(self._route.known(0).first_us)
        other = self._search.branches.begun_before(self._goal.at_us)
        if not other:
            pruned = self._route.pruned
            return self._search.refused(
                f"{self._goal.text} is before the archive begins, at {begins}"
                + (f": {pruned}" if pruned else "")
            )
        return self._search.refused(
            f"{self._goal.text} is before this history begins, at {begins}: lineage {other} has it",
            f"--lineage {other} chooses that history instead",
        )

    def _check_before(self) -> None:
        """See that the newest transaction before the start, which the target has, is not later.

        If it is before the archive begins, it is not later than the second in which that begins.
        """
        route = self._route
        for number in range(self._start.number - 1, -1, -1):
            newest_us = route.newest_own_us(number)
            if newest_us is None:
                continue
            if self._is_later(newest_us):
                known, is_repeated = route.known(number), route.is_repeated(number, 0)
                for transaction in route.transactions(number):
                    is_later = transaction.commit_us > self._goal.at_us and known.is_credible(
                        transaction
                    )
                    if is_later and not is_repeated(transaction):
                        raise self._past(transaction)
            return
        if self._goal.at_us < route.begins_us:
            raise self._too_early()  # when it began is known to the second

    def _first_later(self, number: int) -> Transaction | None:
        """The first transaction of a binlog that was committed later.

        One whose time is not credible is passed over, and remembered, unless times are accepted.
        """
        goal, known = self._goal, self._route.known(number)
        is_repeated = self._route.is_repeated(number, self._start.number)
        for transaction in self._route.transactions(number):
            if transaction.commit_us <= goal.at_us or is_repeated(transaction):
                continue
            if not (known.is_credible(transaction) or goal.accepts):
                self._lie = self._lie or (number, transaction)
                continue
            if self._is_there(number, transaction):
                raise self._past(transaction)
            return transaction
        return None

    def _is_there(self, number: int, transaction: Transaction) -> bool:
        """Whether the target has it already."""
        if LinePosition(number, transaction.end) <= self._start:
            return True
        return self._have is not None and self._have.has(number, transaction)

    def _past(self, transaction: Transaction) -> RecoveryError:
        name = f"{transaction.gtid} of " if transaction.gtid else "a transaction of "
        who = self._search.who_has(
            parse(transaction.gtid, self._route.flavour) if transaction.gtid else None
        )
        return self._search.refused(
            f"{who} is already past {self._goal.text}: it has {name}"
            f"{iso_text(transaction.commit_us)}",
            "restore an older base backup",
        )

    def _check_credible(self, *, is_reached: bool) -> None:
        """Refuse a goal that is not reached, or one before which a time is not credible."""
        goal = self._goal.text
        lie = ""
        if self._lie is not None:
            number, transaction = self._lie
            known = self._route.known(number)
            by = "" if known.received_us is None else f", by {iso_text(known.received_us)}"
            lie = f"{self._named(number, transaction)} was received before that time{by}"
        if not is_reached:
            why, hint = lie or self._passed, "--latest takes all that there is"
            raise self._search.refused(
                f"{goal} is not reached: the newest commit in the bucket is earlier"
                f"{why and f'; {why}'}",
                f"{hint}; {_ACCEPT}" if why else hint,
            )
        if lie:
            raise self._search.refused(f"{goal} is ambiguous: {lie}", _NAME_IT)

    def _check_after(self, number: int, stop_at: Transaction) -> None:
        """See that what comes after the stop and is not later can be explained."""
        disorder = _Disorder(stop_at, self._goal.at_us)
        self._look_behind(number, stop_at, disorder)
        self._search.disorder += disorder.left_out
        stop = self._named(number, stop_at)
        if disorder.contradiction is not None and not self._goal.accepts:
            raise self._search.refused(
                f"{self._goal.text} is ambiguous: {stop} is later, but "
                f"{self._named(*disorder.contradiction)} comes after it and is not later"
                + (f", as do at least {disorder.more} more" if disorder.more else ""),
                f"the server's clock was set back, or sessions set their time; {_NAME_IT}",
            )
        if disorder.left_out:
            more = ", as others do" if disorder.count > 1 else ""
            self._search.warnings.append(
                f"commit times are {'' if stop_at.commit_exact else 'whole seconds and '}not in "
                f"order here: {stop} is left out, and so is "
                f"{self._named(*disorder.left_out[0])}, which comes after it{more}"
            )

    def _look_behind(self, number: int, stop_at: Transaction, disorder: "_Disorder") -> None:
        """Show `disorder` what comes after the stop, until that is enough."""
        route, goal = self._route, self._goal
        is_repeated = route.is_repeated(number, self._start.number)
        for transaction in route.transactions(number, stop_at.end):
            if not is_repeated(transaction) and disorder.is_enough(number, transaction):
                return
        for later in route.not_later(number + 1, goal.at_us):
            is_repeated = route.is_repeated(later, self._start.number)
            try:
                known = route.known(later)
                if known.least_commit_us is None or known.least_commit_us > goal.at_us:
                    continue
                has_passed = known.first_us >= stop_at.commit_us
                for transaction in route.transactions(later):
                    if not is_repeated(transaction) and disorder.is_enough(
                        later, transaction, has_passed=has_passed
                    ):
                        return
            except ArchiveError as error:
                self._search.warnings.append(
                    f"what comes after {goal.text} cannot be read, so it is unknown whether the "
                    f"server's clock was set back there: {error}"
                )

    def _named(self, number: int, transaction: Transaction) -> str:
        name = transaction.gtid or self._route.position(number, transaction.begin)
        return f"{name} ({iso_text(transaction.commit_us)})"


class _Disorder:
    """What comes after the stop, and whether a statement's duration explains its time.

    `left_out` are the first few that are not later than the goal, of `count`. `contradiction`: one
    that no duration explains, None without any; and so many `more` are like it.

    - An exact time is that of the commit: if the stop's and its own are exact, nothing explains it.
    - Otherwise it began before the stop did, and was still running then. What began only seconds
      before is explained: many run at once, and a clock is corrected by seconds. Of those that
      began earlier, there are never many in a row without one that began later; nor many at all.
    - A binlog that the server created after the stop's time shows that its clock had come so far:
      what is in it is later than the stop, whatever its sessions say.
    """

    def __init__(self, stop: Transaction, at_us: int) -> None:
        self._stop = stop
        self._at_us = at_us
        self._first: tuple[int, Transaction] | None = None
        self._row = self._behind = 0
        self.left_out: list[tuple[int, Transaction]] = []
        self.count = 0
        self.contradiction: tuple[int, Transaction] | None = None
        self.more = 0

    def is_enough(self, number: int, transaction: Transaction, *, has_passed: bool = False) -> bool:
        """Take the next transaction, of this binlog; whether no more is needed.

        `has_passed`: it is in a binlog that the server created after the stop's time.
        """
        is_early = transaction.commit_us <= self._at_us
        if is_early:
            self.count += 1
            if self.count <= _MOST_SHOWN:
                self.left_out.append((number, transaction))
            if self._stop.commit_exact and transaction.commit_exact:
                self.contradiction = (number, transaction)
                return True
        if has_passed:
            return self.count >= _MOST_SHOWN
        if transaction.commit_us >= self._stop.commit_us - _SHORT_US:
            self._row = 0
            return False
        self._row += 1
        self._behind += 1
        if self._row == 1:
            self._first = (number, transaction)
        if self._row <= _MOST_IN_A_ROW and self._behind <= _MOST_BEHIND:
            return False
        self.contradiction, self.more = self._first, self._row - 1
        return True
