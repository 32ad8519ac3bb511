"""What a goal cuts in two: XA transactions that are prepared there, ALTERs that have only begun.

An XA transaction stays prepared in the target, with its locks. An ALTER that MariaDB wrote in two
phases has not changed its table yet.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from binlog2s3.binlog.content import AlterName, Content, TwoPhase, Xid
from binlog2s3.binlog.gtid import GtidSet
from binlog2s3.binlog.names import BinlogName
from binlog2s3.binlog.scanner import Transaction
from binlog2s3.formatting import some
from binlog2s3.recover.model import Plan, PlanPiece, Shown

LOOKED_BACK = 16 << 20
"""So many bytes before the goal are looked at."""
_MOST = 20

PhasesOf = Callable[[str, BinlogName, int, int], Iterator[tuple[Transaction, TwoPhase]]]
"""The phases in a range of a binlog of a lineage, each with its transaction."""


def pending_at(
    plan: Plan,
    phases_of: PhasesOf,
    content_of: Callable[[str, BinlogName, Transaction], Content],
    *,
    most: int = LOOKED_BACK,
) -> tuple[tuple[Shown, ...], bool]:
    """The transactions shortly before a plan's goal whose second phase comes after it, at most 20.

    Also whether that is all: False if there may be older ones, because the history has such
    transactions, and not all of the plan was looked at. Raises ArchiveError if they cannot be read.
    """
    size = sum(piece.end - piece.begin for piece in plan.pieces)
    is_all, has_some = size <= most, False
    found: dict[Xid | AlterName | None, tuple[PlanPiece, Transaction]] = {}
    for piece, begin in _last(plan.pieces, most):
        for one, phase in phases_of(piece.lineage, piece.binlog, begin, piece.end):
            has_some = True
            if any(low <= one.begin < high for low, high in piece.left_out):
                continue
            if phase.phase == "prepare":
                found.pop(phase.name, None)
                found[phase.name] = piece, one
                if len(found) > _MOST:
                    del found[next(iter(found))]
                    is_all = False
            else:
                found.pop(phase.name, None)
    shown = tuple(
        Shown(
            lineage=piece.lineage,
            binlog=piece.binlog,
            transaction=one,
            content=content_of(piece.lineage, piece.binlog, one),
        )
        for piece, one in found.values()
    )
    return shown, is_all or not has_some


def with_before(plan: Plan) -> Plan:
    """The plan with what comes shortly before it in its first binlog: the target has that."""
    at = plan.begin if plan.pieces else plan.stop
    before = PlanPiece(
        lineage=at.lineage,
        binlog=at.binlog,
        begin=max(0, at.offset - LOOKED_BACK),
        end=at.offset,
        transactions=0,
        gtids=plan.before if plan.before is not None else GtidSet(),
    )
    return replace(plan, pieces=(before, *plan.pieces))


def lost_preparation(pending: Sequence[Shown], there: Sequence[str] | None) -> str:
    """Why a target that has these XA transactions prepared lacks some of the history; "" if not.

    `there` is None if it does not tell. A dump has the GTID of an XA PREPARE, and not its rows.
    """
    phases = (one.content.two_phase for one in pending)
    names = [str(one.name) for one in phases if one is not None and isinstance(one.name, Xid)]
    lost = [name for name in names if there is not None and name not in there]
    if not lost:
        return ""
    return (
        f"the source had prepared XA {some(lost)}, and the target has not: the base backup was "
        "made meanwhile, and a dump does not have such rows; an older one, or a copy of files, does"
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
