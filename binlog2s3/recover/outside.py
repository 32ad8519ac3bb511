"""Newer transactions that a recovery leaves out, because they are not of the history it follows.

Place in the flow: `plan` asks before it is done. Pure but for what it asks the history.

Law: nothing newer than the history is left out without a word, be it in another lineage or behind
the place where this history left a lineage.
"""

from collections.abc import Iterable, Iterator

from binlog2s3.archive.history import Leg
from binlog2s3.archive.known import Known
from binlog2s3.binlog.scanner import Transaction
from binlog2s3.errors import Binlog2s3Error
from binlog2s3.formatting import time_text
from binlog2s3.recover.model import History
from binlog2s3.recover.route import Route


def newer_outside(route: Route, warnings: list[str]) -> Iterator[tuple[str, str]]:
    """The lineages with transactions that are left out and newer than all of this history.

    Each with a text that says so. `warnings` gets those of which nobody can tell.
    """
    history, legs = route.history, route.line.legs
    newest = _newest(route)
    for lineage in history.lineages:
        leg = next((one for one in legs if one.lineage.id == lineage.id), None)
        try:
            later = _newest_outside(history, lineage.id, leg, newest)
        except Binlog2s3Error as error:
            warnings.append(f"lineage {lineage.id} may have newer transactions: {error}")
            continue
        if later > newest:
            yield (
                lineage.id,
                (
                    f"lineage {lineage.id}, which is left out{_from(leg)}, has transactions up to "
                    f"{time_text(later)}: later than all in lineage {legs[-1].lineage.id}"
                ),
            )


def _from(leg: Leg | None) -> str:
    if leg is None or leg.cut is None:
        return ""
    return f" from {leg.cut.binlog}:{leg.cut.offset} on" if leg.cut.binlog else ""


def _newest(route: Route) -> int:
    """When the newest transaction of the history was committed; 0 without any."""
    for number in range(len(route) - 1, -1, -1):
        known = route.known(number)
        found = known.greatest_commit_us or 0
        if found and route.is_cut(number):
            begin = _last_block(known, route.size(number))
            found = _newest_of(route.transactions(number, begin))
        if found:
            return found
    return 0


def _newest_outside(history: History, lineage: str, leg: Leg | None, newest: int) -> int:
    """When the newest transaction of a lineage was committed that the history does not have.

    0 without any. Not later than `newest`, it may be of one that the history has.
    """
    for name in reversed(history.names(lineage)):
        known = history.known(lineage, name)
        ours = leg.end_of(name, known.size) if leg is not None and leg.holds(name) else 0
        if ours == known.size:
            return 0
        found = known.greatest_commit_us or 0
        if ours and found > newest:  # it may be of the part that the history has
            begin = max(ours, _last_block(known, known.size))
            found = _newest_of(history.transactions(lineage, name, begin))
        if found:
            return found
    return 0


def _last_block(known: Known, size: int) -> int:
    """Where the last block of a binlog's first `size` bytes begins that begins a transaction."""
    begins = (block.first_offset or 0 for block in known.blocks)
    return max((begin for begin in begins if begin < size), default=0)


def _newest_of(transactions: Iterable[Transaction]) -> int:
    return max((one.commit_us for one in transactions), default=0)
