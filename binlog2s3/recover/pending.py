"""What a goal cuts in two: XA transactions that are prepared there, ALTERs that have only begun.

An XA transaction stays prepared in the target, with its locks. An ALTER that MariaDB wrote in two
phases has not changed its table yet.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from binlog2s3.binlog.content import AlterName, Xid, xa_phase
from binlog2s3.binlog.events import QUERIES, EventType
from binlog2s3.binlog.gtid import Flavour, GtidSet
from binlog2s3.binlog.scanner import Transaction
from binlog2s3.binlog.walk import wanted_types
from binlog2s3.formatting import some
from binlog2s3.recover.extract import Watcher
from binlog2s3.recover.model import Plan, PlanPiece, Shown
from binlog2s3.recover.snapshot import Snapshot

LOOKED_BACK = 16 << 20
"""So many bytes before the goal are looked at, and so many before the plan begins."""
_MOST = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Pending:
    """What a goal cuts in two.

    `shown`: the transactions whose second phase comes after it, at most 20. `is_all`: False if
    there may be older ones, because the history has such transactions, and not all was looked at.
    `before`: the XA transactions that were prepared before the plan, and not ended in what was
    looked at of it.
    """

    shown: tuple[Shown, ...]
    is_all: bool
    before: tuple[Xid, ...]


def pending_at(
    plan: Plan,
    snapshot: Snapshot,
    *,
    before: PlanPiece | None = None,
    most: int = LOOKED_BACK,
) -> Pending:
    """What the goal of a plan cuts in two, by its last `most` bytes and the piece before it.

    Raises ArchiveError if they cannot be read.
    """
    is_long = sum(piece.end - piece.begin for piece in plan.pieces) > most
    is_all, has_some = not is_long and (before is None or before.begin == 0), False
    open_phases: dict[Xid | AlterName | None, tuple[PlanPiece, Transaction]] = {}
    open_before: dict[Xid | AlterName | None, None] = {}
    looked_at = [(before, before.begin)] if before is not None else []
    for piece, begin in (*looked_at, *_last(plan.pieces, most)):
        for transaction, phase in snapshot.phases(piece.lineage, piece.binlog, begin, piece.end):
            has_some = True
            if not piece.applies(transaction):
                continue
            open_phases.pop(phase.name, None)
            open_before.pop(phase.name, None)
            if phase.phase == "prepare":
                open_phases[phase.name] = piece, transaction
                if piece is before:
                    open_before[phase.name] = None
                if len(open_phases) > _MOST:
                    del open_phases[next(iter(open_phases))]
                    is_all = False
    shown = tuple(
        Shown(
            lineage=piece.lineage,
            binlog=piece.binlog,
            transaction=transaction,
            content=snapshot.content(piece.lineage, piece.binlog, transaction),
        )
        for piece, transaction in open_phases.values()
        if not (is_long and piece is before)  # it may have ended in the rest of the plan
    )
    return Pending(
        shown=shown,
        is_all=is_all or not has_some,
        before=tuple(name for name in open_before if isinstance(name, Xid)),
    )


def piece_before(plan: Plan, *, most: int = LOOKED_BACK) -> PlanPiece:
    """What comes shortly before a plan in its first binlog: the target has that."""
    at = plan.begin
    return PlanPiece(
        lineage=at.lineage,
        binlog=at.binlog,
        begin=max(0, at.offset - most),
        end=at.offset,
        transactions=0,
        gtids=plan.before if plan.before is not None else GtidSet(),
    )


class PreparedBefore(Watcher):
    """XA transactions that were prepared before a plan: a base backup may not have them.

    A dump has the GTID of an XA PREPARE, and not its rows. One that ends in the plan is no loss:
    where it is missing, its XA COMMIT cannot be applied. `unread`: why what comes before the plan
    could not be looked at; "" if it was.
    """

    wanted = wanted_types(*QUERIES, EventType.XA_PREPARE)

    def __init__(self, names: Collection[Xid] = (), *, unread: str = "") -> None:
        self._open = dict.fromkeys(names)
        self._unread = unread

    def see(self, event_type: int, head: bytes, _: int, __: Flavour, ___: int, /) -> None:
        """See `Watcher`. An end that is not seen is none."""
        phase = xa_phase(event_type, head) if self._open else None
        if phase is not None and isinstance(phase.name, Xid):
            self._open.pop(phase.name, None)

    def doubts(self, pending: Sequence[Shown], prepared: Collection[str] | None) -> Iterator[str]:
        """Why the target may lack some of the history.

        `pending`: what the goal cuts in two. `prepared`: what the target has prepared; None if it
        does not tell.
        """
        if self._unread:
            yield (
                f"what comes before the plan cannot be read: {self._unread}; the rows of an XA "
                "transaction that was prepared there, and not yet ended, are in no dump"
            )
        if prepared is None:
            if self._open:
                yield (
                    f"the source had prepared XA {some([str(name) for name in self._open])} before "
                    "the target's base backup ended or its last recovery did, and whether the "
                    "target has it is not known (GRANT XA_RECOVER_ADMIN ON *.* shows it, by XA "
                    "RECOVER); a dump that was made meanwhile does not have such rows"
                )
            return
        phases = (shown.content.two_phase for shown in pending)
        shown = (
            phase.name for phase in phases if phase is not None and isinstance(phase.name, Xid)
        )
        names = dict.fromkeys(str(name) for name in (*self._open, *shown))
        if lost := [name for name in names if name not in prepared]:
            yield (
                f"the source had prepared XA {some(lost)}, and the target has not: the base backup "
                "was made meanwhile, and a dump does not have such rows; an older one, or a copy "
                "of files, does"
            )


def _last(pieces: Sequence[PlanPiece], most: int) -> Iterator[tuple[PlanPiece, int]]:
    """The last pieces of at most so many bytes, in order, and from where on each is looked at."""
    chosen: list[tuple[PlanPiece, int]] = []
    for piece in reversed(pieces):
        if most <= 0:
            break
        begin = max(piece.begin, piece.end - most)
        most -= piece.end - begin
        chosen.append((piece, begin))
    return reversed(chosen)
