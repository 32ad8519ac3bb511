"""Which transactions of a route are applied, and the byte ranges that hold them.

Pure but for what the route asks the history.

Law: no transaction is applied twice, none is left out that was not named, and no gap and no damage
is crossed unless the operator allows it.
"""

from collections import Counter
from collections.abc import Iterator, Sequence

from binlog2s3.archive.documents import UNLOGGED
from binlog2s3.binlog.executed import ExactGtids, ExecutedPart, LinePosition, MysqlPart, is_in
from binlog2s3.binlog.gtid import Flavour, Gathering, Gtids, GtidSet, either, empty, gathered
from binlog2s3.binlog.scanner import Transaction
from binlog2s3.errors import RecoveryError
from binlog2s3.formatting import gtids_text
from binlog2s3.recover.goal import Search
from binlog2s3.recover.model import BinlogPosition, PlanPiece

WHERE_IT_ENDS = "say where the base backup ends: --from-binlog and --from-position"


class PieceBuilder:
    """Builds a plan's pieces.

    `applied`: the GTIDs of those that are built. `skipped`: the transactions, by binlog, that the
    operator leaves out.
    """

    def __init__(self, search: Search, skip: "Skip") -> None:
        self._search = search
        self._route = search.route
        self._request = search.request
        self._flavour = search.route.flavour
        self._have: ExecutedPart | None = None
        self._skip = skip
        self.applied = empty(self._flavour)
        self.skipped: list[tuple[int, Transaction]] = []
        self._read: tuple[LinePosition, Gathering] | None = None

    def gtids_read(self, stop: LinePosition) -> Gtids | None:
        """The GTIDs before `stop` in its binlog, if all of that was read for the last piece."""
        if self._read is None or self._read[0] != stop:
            return None
        return self._read[1].build()

    def build(
        self, start: LinePosition, stop: LinePosition, have: ExecutedPart | None
    ) -> Iterator[PlanPiece]:
        """What is applied from `start` to `stop`. Raises RecoveryError.

        `have`: what the target has executed; None if it does not say.
        """
        route = self._route
        self._have = have
        self._check_breaks(start, stop)
        excluded: list[ExecutedPart] = []
        line_part = -1
        for number in range(start.number, stop.number + 1):
            if route.binlogs[number].line_part != line_part:
                line_part = route.binlogs[number].line_part
                excluded = list(self._excluded(number, start))
            begin = start.offset if number == start.number else 0
            end = stop.offset if number == stop.number else None
            if end is not None and end >= route.end(number):
                end = None
            piece = self._piece(number, begin, end, excluded, start.number)
            if piece is not None:
                self.applied = either(self.applied, piece.gtids)
                yield piece

    def _excluded(self, number: int, start: LinePosition) -> Iterator[ExecutedPart]:
        """What is not applied of the part of a binlog: what the target has, or has got by then.

        A later part may repeat what comes before the start, which the base backup has: the target's
        GTIDs need not say so. Of MariaDB that is all that the part repeats: the target has it, or
        it is applied before.
        """
        if self._have is not None:
            yield self._have
        if self._flavour == "mysql":
            before = self._route.gtids_at(*start) if number > start.number else None
            for gtids in (self.applied, before):
                if isinstance(gtids, GtidSet) and gtids:
                    yield MysqlPart(gtids)
        elif self._have is not None or number > start.number:
            repeated = self._route.repeated(number)
            if repeated is not None:
                yield repeated

    def _check_breaks(self, start: LinePosition, stop: LinePosition) -> None:
        for number, why, missing in self._route.breaks(start.number, stop.number):
            text = f"history is broken before {self._route.binlogs[number].name}: {why}"
            text += f"; missing: {gtids_text(missing)}" if missing else ""
            before = self._route.position(number - 1, self._route.end(number - 1))
            hint = (
                f"--to-position {before} is the last place before the gap; to reach a place after "
                "it, restore a base backup from after it; --allow-gap leaves out what is missing"
            )
            if why == UNLOGGED:  # a crash in a rotation leaves the same binlogs
                hint += ": nothing, if the source's error log shows that it aborted or crashed then"
            self._search.leave_out(text, hint)

    def _piece(
        self,
        number: int,
        begin: int,
        end: int | None,
        excluded: Sequence[ExecutedPart],
        first: int,
    ) -> PlanPiece | None:
        """What is applied of a binlog, from one offset to another; None if nothing is."""
        route, known = self._route, self._route.known(number)
        upto = route.end(number) if end is None else end
        damaged = [(a, b) for a, b in known.damaged if a < upto and b > begin]
        shared = route.shared(number, first)
        is_mixed = any(part.touches(number, known.gtids_added) for part in excluded)
        whole = begin == 0 and end is None and not route.is_cut(number) and not shared
        if known.anonymous:
            self._check_anonymous(number)
        if whole and not (is_mixed or damaged or self._skip.touches(known.gtids_added)):
            return self._whole(number)
        choice = _Choice(self._flavour)
        hint = self._hint(number, begin, end, excluded)
        seen = Gathering(self._flavour)
        self._read = (LinePosition(number, end), seen) if hint == 0 and end else None
        for transaction in route.transactions(number, hint, end):
            if transaction.gtid is not None:
                seen.add(transaction.gtid)
            if transaction.begin < begin or (
                transaction.gtid is None and transaction.end <= shared
            ):
                continue
            if any(part.has(number, transaction) for part in excluded):
                choice.leave(transaction)
            elif self._skip.has(transaction.gtid):
                self.skipped.append((number, transaction))
                choice.leave(transaction)
            elif any(a < transaction.end and transaction.begin < b for a, b in damaged):
                self._leave_damaged(number, transaction)
                choice.leave(transaction)
            else:
                choice.take(transaction)
        return choice.piece(route.position(number, begin))

    def _whole(self, number: int) -> PlanPiece | None:
        route, known = self._route, self._route.known(number)
        if not known.transactions:
            return None
        return PlanPiece(
            lineage=route.lineage(number),
            binlog=known.name,
            begin=route.begin(number),
            end=route.end(number),
            transactions=known.transactions,
            gtids=known.gtids_added,
            greatest_commit_us=known.greatest_commit_us,
        )

    def _hint(
        self, number: int, begin: int, end: int | None, excluded: Sequence[ExecutedPart]
    ) -> int:
        """The offset from which to look for what is not executed yet.

        Blocks that begin with an executed transaction are skipped only if everything that is wanted
        is found after them: the entry says what there is.
        """
        route, known = self._route, self._route.known(number)
        gtids = known.gtids_added
        if not excluded or end is not None or known.anonymous or route.is_cut(number):
            return begin
        if not isinstance(gtids, GtidSet):
            return begin
        done = GtidSet()
        for part in excluded:
            done |= part.gtids if isinstance(part, MysqlPart) else GtidSet()
        hint = begin
        for block in known.blocks:
            if block.first_offset is not None and block.first_gtid is not None:
                if not is_in(done, block.first_gtid):
                    break
                hint = max(hint, block.first_offset)
        if hint == begin:
            return begin
        gtids_behind = (
            transaction.gtid for transaction in route.transactions(number, hint) if transaction.gtid
        )
        seen = gathered(gtids_behind, self._flavour)
        return hint if isinstance(seen, GtidSet) and gtids - done <= seen else begin

    def _check_anonymous(self, number: int) -> None:
        if self._have is not None and self._request.start.position is None:
            raise without_gtids(self._search, number)

    def _leave_damaged(self, number: int, transaction: Transaction) -> None:
        """Refuse a damaged transaction, or leave it out with a warning if that is allowed."""
        position = self._route.position(number, transaction.begin)
        self._search.leave_out(
            f"{transaction.gtid or 'a transaction'} at {position} is damaged: the source already "
            "sent it so",
            f"--to-position {position} is the last place before it; --allow-gap leaves out what is "
            "damaged",
            then="; it is left out",
        )


def without_gtids(search: Search, number: int) -> RecoveryError:
    """The error if only GTIDs say where to begin and a binlog has transactions without them."""
    return search.refused(
        f"{search.route.binlogs[number].name} has transactions without a GTID: GTIDs do not "
        "tell which of them the target has",
        WHERE_IT_ENDS,
    )


class _Choice:
    """Collects which transactions of a binlog are applied; the others between them are left out.

    Events between two transactions that are applied are sent along.
    """

    def __init__(self, flavour: Flavour) -> None:
        self._transactions = 0
        self._gtids = Gathering(flavour)
        self._begin = self._end = -1
        self._greatest_us: int | None = None
        self._left_out: list[tuple[int, int]] = []
        self._left_from: int | None = None

    def take(self, transaction: Transaction) -> None:
        """Apply it."""
        if self._begin < 0:
            self._begin = transaction.begin
        elif self._left_from is not None:
            self._left_out.append((self._left_from, transaction.begin))
        self._left_from = None
        self._end = transaction.end
        self._transactions += 1
        if transaction.gtid is not None:
            self._gtids.add(transaction.gtid)
        if self._greatest_us is None or transaction.commit_us > self._greatest_us:
            self._greatest_us = transaction.commit_us

    def leave(self, transaction: Transaction) -> None:
        """Do not apply it."""
        if self._left_from is None and self._begin >= 0:
            self._left_from = transaction.begin

    def piece(self, where: BinlogPosition) -> PlanPiece | None:
        """What was taken, of the binlog that is named; None if nothing was."""
        if not self._transactions:
            return None
        return PlanPiece(
            lineage=where.lineage,
            binlog=where.binlog,
            begin=self._begin,
            end=self._end,
            left_out=tuple(self._left_out),
            transactions=self._transactions,
            gtids=self._gtids.build(),
            greatest_commit_us=self._greatest_us,
        )


class Skip:
    """The transactions that --skip-gtid names, and which of them were found.

    Raises RecoveryError for a text that is no GTID set (MariaDB: no list of GTIDs).
    """

    def __init__(self, texts: tuple[str, ...], flavour: Flavour) -> None:
        self._flavour: Flavour = flavour
        self._named = ExactGtids.parse(texts, flavour, "--skip-gtid")
        self._found: list[str] = []

    def has(self, gtid: str | None) -> bool:
        """Whether to leave this one out; it counts as found then."""
        if gtid is None or not self.names(gtid):
            return False
        self._found.append(gtid)
        return True

    def names(self, gtid: str) -> bool:
        """Whether this one is named."""
        return self._named.has(gtid)

    def touches(self, gtids: Gtids) -> bool:
        """Whether any of these may be named."""
        if isinstance(gtids, GtidSet):
            return bool(self._named.mysql & gtids)
        return bool(self._named)

    def found(self) -> Gtids | None:
        """Those that are left out; None if none were named."""
        return gathered(self._found, self._flavour) if self._named else None

    def found_singly(self) -> tuple[str, ...]:
        """Of MariaDB, each that is left out; `found` has only the last of each server."""
        return tuple(dict.fromkeys(self._found)) if self._named.mariadb else ()

    def found_again(self) -> tuple[str, ...]:
        """Those that several transactions have: a GTID of MariaDB may have been used twice.

        Of MySQL, one that is found twice is the same transaction: a new primary's first binlog
        repeats it.
        """
        counts = Counter(self._found) if self._named.mariadb else Counter[str]()
        return tuple(gtid for gtid, count in counts.items() if count > 1)

    def not_found(self) -> str:
        """Those that were named and not found, as text."""
        return str(self._named - ExactGtids.of(self._found, self._flavour))
