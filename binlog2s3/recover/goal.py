"""Where in a history a recovery begins and ends: places, GTIDs and times, found along a route.

Place in the flow: under `plan`. Pure but for what the route asks the history.

Law: a place is found once or not at all. What cannot be reached, or could mean two things, is a
RecoveryError that says what can be reached.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field

from binlog2s3.binlog.executed import Executed, executed
from binlog2s3.binlog.gtid import Gtids, parse
from binlog2s3.binlog.names import BinlogName
from binlog2s3.binlog.scanner import Transaction
from binlog2s3.errors import ArchiveError, RecoveryError
from binlog2s3.formatting import time_text
from binlog2s3.recover.model import BeforeGtid, Latest, Reach, Request, ToGtid, ToPosition, ToTime
from binlog2s3.recover.route import Route

_MOST_CHARACTERS = 200


@dataclass(frozen=True, slots=True, order=True)
class At:
    """An offset in a stretch of a route."""

    number: int
    offset: int


@dataclass(slots=True)
class Search:
    """Looks for places on a route. `warnings` collects what does not stand in the way."""

    route: Route
    request: Request
    warnings: list[str] = field(default_factory=list)

    # What can be reached

    def reach(self) -> Reach:
        """From the oldest binlog that leads up to the newest without a break."""
        route, last = self.route, len(self.route) - 1
        broken = [number for number, one in enumerate(route.stretches) if one.broken]
        first = max(broken, default=0)
        oldest, newest = route.known(first), route.known(last)
        before = newest.gtids_before
        return Reach(
            first=route.place(first, route.begin(first)),
            last=route.place(last, route.end(last)),
            earliest_us=oldest.first_us,
            latest_us=self._latest_us(),
            gtids=executed(before).plus(newest.gtids_added).gtids if before is not None else None,
        )

    def _latest_us(self) -> int | None:
        """Up to when all is there: the newest commit, or what the writer vouches for."""
        found = [self.covered_us()] if self.covered_us() is not None else []
        for number in range(len(self.route) - 1, -1, -1):
            if (newest := self.route.known(number).greatest_commit_us) is not None:
                return max([newest, *(one for one in found if one is not None)])
        return found[0] if found else None

    def covered_us(self) -> int | None:
        """What the writer vouches for, if it is of this history."""
        tip = self.route.line.legs[-1].lineage.id
        return self.route.history.covered_us if tip == self._current() else None

    def may_grow(self, lineage: str) -> bool:
        """Whether this lineage is the one that is written, as far as that is known."""
        return self._current() in (None, lineage)

    def _current(self) -> str | None:
        """None where it cannot be read: --lineage can be followed without it."""
        try:
            return self.route.history.current
        except ArchiveError:
            return None

    def refused(self, why: str, hint: str = "") -> RecoveryError:
        """The error for what cannot be done, with what can."""
        reach = self.reach()
        latest = time_text(reach.latest_us) if reach.latest_us is not None else "?"
        can = (
            f"within reach: {reach.first} to {reach.last}, "
            f"{time_text(reach.earliest_us)} to {latest}"
        )
        if self.route.line.barrier:
            can += f" ({self.route.line.barrier})"
        return RecoveryError(why, hint=f"{hint}; {can}" if hint else can)

    # Places

    def place(
        self,
        name: BinlogName,
        offset: int,
        lineage: str | None = None,
        server: str | None = None,
        *,
        option: str = "--from-lineage",
    ) -> At:
        """Where this offset of a binlog, of a lineage, lies, between two transactions.

        `server` is that of a backup (see `model.Start`): only what that server wrote counts.
        `option`: what names the lineage that is meant, where several have such a place.
        """
        found, elsewhere = self._holders(name, offset, lineage, server)
        if not found:
            raise self._nowhere(name, offset, elsewhere)
        here = list(dict.fromkeys(self.route.leg(number).lineage.id for number in found))
        if len(found) > 1 or (elsewhere and not self.request.lineage):
            more = "" if option == "--lineage" else "--lineage {0} "
            named = [f"{option} {one}" for one in here]
            named += [f"{more}{option} {{0}}".format(one) for one in elsewhere]
            raise self.refused(
                f"{name}:{offset} is in several histories: {', '.join([*here, *elsewhere])}",
                f"say which one is meant: {', or '.join(named)}",
            )
        (number,) = found
        if not self.route.history.is_boundary(self.route.leg(number).lineage.id, name, offset):
            raise self.refused(
                f"{name}:{offset} is not between two transactions",
                "`mysqlbinlog` shows the positions: take one behind a COMMIT, or where a "
                "transaction's GTID event begins",
            )
        if server == "":
            self.warnings.append(
                "the backup has no GTIDs, and does not say which server it is of: "
                f"{name}:{offset} is right only if that is "
                f"{self._server_of(self.route.leg(number).lineage.id)}, which wrote this binlog"
            )
        return At(number, offset)

    def _holders(
        self, name: BinlogName, offset: int, lineage: str | None, server: str | None
    ) -> tuple[list[int], list[str]]:
        """The stretches that have this place, and the lineages that have it elsewhere.

        Of several only those count in which it is between two transactions.
        """
        found = self.route.numbers_of(name, offset)
        elsewhere = self._elsewhere(name, offset)
        if lineage is not None:
            found = [n for n in found if self.route.leg(n).lineage.id == lineage]
            elsewhere = [one for one in elsewhere if one == lineage]
        if server:
            there = [self.route.leg(n).lineage.id for n in found] + elsewhere
            found = [n for n in found if self._wrote(server, self.route.leg(n).lineage.id)]
            elsewhere = [one for one in elsewhere if self._wrote(server, one)]
            if not found and not elsewhere:
                raise self._of_another(name, offset, server, there)
        if len(found) + len(elsewhere) > 1:
            ids = [self.route.leg(n).lineage.id for n in found]
            fit = {one for one in (*ids, *elsewhere) if self._fits(one, name, offset)}
            if fit:
                found = [n for n in found if self.route.leg(n).lineage.id in fit]
                elsewhere = [one for one in elsewhere if one in fit]
        return found, elsewhere

    def _fits(self, lineage: str, name: BinlogName, offset: int) -> bool:
        """Whether a place can be between two transactions there."""
        try:
            return self.route.history.is_boundary(lineage, name, offset)
        except ArchiveError:  # nobody can tell
            return True

    def _server_of(self, lineage: str) -> str:
        return next(o.server_uuid for o in self.route.history.lineages if o.id == lineage)

    def _wrote(self, server: str, lineage: str) -> bool:
        return self._server_of(lineage).lower() == server.lower()

    def _of_another(
        self, name: BinlogName, offset: int, server: str, there: list[str]
    ) -> RecoveryError:
        """No lineage that has this place is of the server that was backed up."""
        lineages = there or [lineage.id for lineage in self.route.history.lineages]
        writers = dict.fromkeys(map(self._server_of, lineages))
        which = f"{name}:{offset} of the archive is" if there else "the archive is"
        return self.refused(
            f"the backup has no GTIDs and is of server {server}, {which} of {', '.join(writers)}: "
            "the name of a binlog and a position mean nothing on another server",
            "restore a backup of a server of the archive, or one with GTIDs, which count on every "
            "server; if that server's binlogs are the same files, --from-gtid-set, or, for pitr, "
            "--from-binlog and --from-position say where the backup stands",
        )

    def _elsewhere(self, name: BinlogName, offset: int) -> list[str]:
        """The lineages that have this place outside of the route."""
        found = []
        legs = {leg.lineage.id: leg for leg in self.route.line.legs}
        for lineage in self.route.history.lineages:
            if name not in self.route.history.names(lineage.id):
                continue
            leg = legs.get(lineage.id)
            size = self.route.history.known(lineage.id, name).size
            is_on = leg is not None and leg.holds(name) and offset <= leg.end_of(name, size)
            if not is_on and offset <= size:
                found.append(lineage.id)
        return found

    def _nowhere(self, name: BinlogName, offset: int, elsewhere: list[str]) -> RecoveryError:
        if elsewhere:
            return self.refused(
                f"{name}:{offset} is not part of this history: it is in {', '.join(elsewhere)}, "
                "which history left before",
                f"--lineage {elsewhere[-1]} chooses that history instead",
            )
        sizes = [
            self.route.size(number)
            for number, stretch in enumerate(self.route.stretches)
            if stretch.name == name
        ]
        if sizes:
            return self.refused(f"{name} has no byte at {offset}: it has {max(sizes)}")
        return self.refused(f"{name} is not in this history")

    # GTIDs

    def gtid(self, gtid: str, first: int, have: Executed | None) -> tuple[int, Transaction]:
        """The transaction that has this GTID, and the stretch that it is in.

        One that is in several legs counts in the first; but if the target lacks it, in the first of
        those that are not all before stretch `first`, where the target stands.
        """
        route = self.route
        flavour = route.line.legs[-1].lineage.flavour
        try:
            wanted = parse(gtid, flavour)
        except ValueError as error:
            raise RecoveryError(
                f"not a GTID of {flavour}: {error}", hint="as `binlog2s3 list` shows them"
            ) from None
        is_there = have is not None and have.has(str(wanted))
        earlier: tuple[int, Transaction] | None = None
        for numbers in route.by_leg():
            number = _holder(numbers, lambda n: wanted_in(route.known(n).gtids_before, wanted))
            if number is None or not wanted_in(route.known(number).gtids_added, wanted):
                continue
            if (found := self._scanned(number, str(wanted))) is not None:
                if is_there or numbers[-1] >= first:
                    return number, found
                earlier = earlier or (number, found)
        if earlier is not None:
            return earlier
        if wanted_in(route.known(0).gtids_before, wanted):
            raise self.refused(f"{gtid} was executed before the archive begins")
        where = self._dead(wanted)
        if where:
            raise self.refused(
                f"{gtid} is on a dead branch: it is in {where}, which is no part of this history",
                f"--lineage {where} chooses that history instead",
            )
        raise self.refused(f"{gtid} is not in this history")

    def _scanned(self, number: int, gtid: str) -> Transaction | None:
        """Found by reading: from the block on that seems to have it, else all."""
        hints = [
            block.first_offset
            for block in self.route.known(number).blocks
            if block.first_offset is not None and _precedes(block.first_gtid, gtid)
        ]
        for begin in dict.fromkeys([max(hints, default=0), 0]):
            for found in self.route.transactions(number, begin):
                if found.gtid == gtid:
                    return found
        return None

    def _dead(self, wanted: Gtids) -> str:
        """The lineage that has a GTID which the route has not."""
        for lineage, gtids in self.ends():
            if wanted_in(gtids, wanted):
                return lineage
        return ""

    def ends(self) -> Iterator[tuple[str, Gtids]]:
        """All GTIDs of each lineage that has bytes outside of the route."""
        history = self.route.history
        legs = {leg.lineage.id: leg for leg in self.route.line.legs}
        for lineage in history.lineages:
            names = history.names(lineage.id)
            if not names:
                continue
            leg = legs.get(lineage.id)
            last = history.known(lineage.id, names[-1])
            held = leg is not None and leg.holds(names[-1])
            if held and leg is not None and leg.end_of(names[-1], last.size) == last.size:
                continue
            if last.gtids_before is not None:
                yield lineage.id, executed(last.gtids_before).plus(last.gtids_added).gtids

    # The goal

    def stop(self, start: At, have: Executed | None) -> At:
        """Where the goal is."""
        match self.request.goal:
            case ToTime() as goal:
                return _Clock(self, start, have).stop(goal)
            case ToGtid(gtid):
                number, found = self.gtid(gtid, start.number, have)
                return At(number, found.end)
            case BeforeGtid(gtid):
                number, found = self.gtid(gtid, start.number, have)
                return At(number, found.begin)
            case ToPosition(binlog, offset):
                return self.place(binlog, offset, self._chosen(binlog, offset), option="--lineage")
            case Latest():
                last = len(self.route) - 1
                return At(last, self.route.end(last))

    def _chosen(self, name: BinlogName, offset: int) -> str | None:
        """The lineage that was chosen, if this place is in it: of several, that one is meant."""
        wanted = self.request.lineage
        found = {
            self.route.leg(number).lineage.id for number in self.route.numbers_of(name, offset)
        }
        return wanted if wanted in found else None

    def too_early(self, goal: ToTime) -> RecoveryError:
        """The error for a time before this history begins, with the lineage that has it."""
        begins = time_text(self.route.known(0).first_us)
        other = self._lineage_at(goal.at_us)
        if not other:
            return self.refused(f"{goal.text} is before the archive begins, at {begins}")
        return self.refused(
            f"{goal.text} is before this history begins, at {begins}: lineage {other} has it",
            f"--lineage {other} chooses that history instead",
        )

    def _lineage_at(self, at_us: int) -> str:
        """The lineage outside of the route that began the last before this; "" where none did."""
        history = self.route.history
        legs = {leg.lineage.id for leg in self.route.line.legs}
        found: list[tuple[int, str]] = []
        for lineage in history.lineages:
            if lineage.id in legs or not (names := history.names(lineage.id)):
                continue
            with suppress(ArchiveError):
                begins_us = history.known(lineage.id, names[0]).first_us
                found += [(begins_us, lineage.id)] if begins_us <= at_us else []
        return max(found)[1] if found else ""

    def is_double(self, number: int, first: int) -> Callable[[Transaction], bool]:
        """Whether a transaction of this stretch is also in a leg before, from `first` on."""
        stretch = self.route.stretches[number]
        if stretch.leg == self.route.stretches[first].leg:
            return lambda _: False
        shared = self.route.shared(number, first)
        cut = self.route.line.legs[stretch.leg - 1].cut if stretch.leg else None
        before: Executed | None = None
        if cut is not None and cut.gtid_set:
            before = executed(parse(cut.gtid_set, self.route.leg(number).lineage.flavour))

        def double(one: Transaction) -> bool:
            if one.gtid is None:
                return one.end <= shared
            return before is not None and before.has(one.gtid)

        return double


class _Clock:
    """Finds the place that a time means."""

    def __init__(self, search: Search, start: At, have: Executed | None) -> None:
        self._search = search
        self._route = search.route
        self._start = start
        self._have = have

    def stop(self, goal: ToTime) -> At:
        route, start = self._route, self._start
        if goal.at_us < route.known(0).first_us:
            raise self._search.too_early(goal)
        self._check_before(goal)
        number = start.number
        while number < len(route):
            upto = route.later_hint(number, goal.at_us) + 1
            route.load(number, upto)
            for one in range(number, upto):
                is_later = _is_later(route.known(one).greatest_commit_us, goal)
                if is_later and (found := self._first_later(one, goal)) is not None:
                    return found
            number = upto
        covered = self._search.covered_us()
        if covered is None or covered < goal.at_us:
            raise self._search.refused(
                f"{goal.text} is not reached: nothing in the bucket is as late",
                "--latest takes all that there is",
            )
        last = len(route) - 1
        return At(last, route.end(last))

    def _check_before(self, goal: ToTime) -> None:
        """The newest transaction before the start, which the target has, is not later."""
        route = self._route
        for number in range(self._start.number - 1, -1, -1):
            greatest = route.known(number).greatest_commit_us
            if _is_later(greatest, goal):
                is_double = self._search.is_double(number, 0)
                for one in route.transactions(number):
                    if one.commit_us > goal.at_us and not is_double(one):
                        raise self._past(goal, one)
            if greatest is not None:
                return

    def _first_later(self, number: int, goal: ToTime) -> At | None:
        """Where the first transaction begins that was committed later."""
        is_double = self._search.is_double(number, self._start.number)
        found: Transaction | None = None
        for one in self._route.transactions(number):
            if is_double(one):
                continue
            if found is None:
                if one.commit_us > goal.at_us:
                    if self._is_there(number, one):
                        raise self._past(goal, one)
                    found = one
            elif one.commit_us <= goal.at_us:
                self._behind(goal, number, found, number, one)
                return At(number, found.begin)
        if found is None:
            return None
        self._look_behind(number, found, goal)
        return At(number, found.begin)

    def _is_there(self, number: int, one: Transaction) -> bool:
        """Whether the target has it already."""
        if At(number, one.end) <= self._start:
            return True
        return self._have is not None and one.gtid is not None and self._have.has(one.gtid)

    def _past(self, goal: ToTime, one: Transaction) -> RecoveryError:
        name = f"{one.gtid} of " if one.gtid else "a transaction of "
        return self._search.refused(
            f"the target is already past {goal.text}: it has {name}{time_text(one.commit_us)}",
            "restore an older base backup",
        )

    def _look_behind(self, number: int, found: Transaction, goal: ToTime) -> None:
        """See that nothing in later binlogs was committed before, by a clock that stepped."""
        for later in self._route.not_later(number + 1, goal.at_us):
            is_double = self._search.is_double(later, self._start.number)
            try:
                least = self._route.known(later).least_commit_us
                if least is None or least > goal.at_us:
                    continue
                for one in self._route.transactions(later):
                    if one.commit_us <= goal.at_us and not is_double(one):
                        self._behind(goal, number, found, later, one)
                        return
            except ArchiveError as error:
                self._search.warnings.append(
                    f"what comes behind {goal.text} cannot be read, so whether the clock stepped "
                    f"there is not known: {error}"
                )

    def _behind(
        self, goal: ToTime, number: int, found: Transaction, later: int, one: Transaction
    ) -> None:
        """A transaction behind the stop that was committed before it."""
        route = self._route
        first = f"{found.gtid or route.place(number, found.begin)} ({time_text(found.commit_us)})"
        second = f"{one.gtid or route.place(later, one.begin)} ({time_text(one.commit_us)})"
        if not (found.commit_exact and one.commit_exact):
            self._search.warnings.append(
                f"commit times are whole seconds and not in order here: {first} is left out, and "
                f"{second} behind it too"
            )
            return
        raise self._search.refused(
            f"{goal.text} means two places: {first} is later, {second} comes behind it and is not",
            "the server's clock was set back; name the transaction: --before-gtid, --to-gtid or "
            "--to-position",
        )


def _is_later(greatest_us: int | None, goal: ToTime) -> bool:
    return greatest_us is not None and greatest_us > goal.at_us


def wanted_in(gtids: Gtids | None, wanted: Gtids) -> bool:
    """Whether this single GTID is among these, which of MariaDB's are the last of each server."""
    return gtids is not None and type(gtids) is type(wanted) and wanted <= gtids


def _holder(numbers: range, is_before: Callable[[int], bool]) -> int | None:
    """The last of these stretches of a leg before which something was not executed yet."""
    past = bisect_left(numbers, x=True, key=is_before)
    return numbers[past - 1] if past else None


def _precedes(first: str | None, gtid: str) -> bool:
    """Whether one GTID is of the same series as another, and not greater."""
    if first is None:
        return False
    series, _, number = first.replace("-", ":").rpartition(":")
    wanted, _, limit = gtid.replace("-", ":").rpartition(":")
    return series == wanted and int(number) <= int(limit)


def short(text: str) -> str:
    """GTIDs for a message, which may be a great many."""
    return text if len(text) <= _MOST_CHARACTERS else f"{text[: _MOST_CHARACTERS - 3]}..."
