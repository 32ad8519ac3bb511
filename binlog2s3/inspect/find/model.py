"""The values of `find`: what to search for, and what was found. Values only.

Place in the flow: `command` makes the query, `scan` runs it, `view` prints the results.
"""

from dataclasses import dataclass
from typing import Literal

from binlog2s3.binlog.content import Content, Xa
from binlog2s3.binlog.names import BinlogName
from binlog2s3.binlog.scanner import Transaction
from binlog2s3.inspect.find.match import Criteria, Match

_SECOND_US = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchQuery:
    """What to search for, and where.

    Times are in microseconds, UTC, both included. `gtids` are texts of either flavour. `lineage`:
    search the history that ends in it, None: the current one; `everywhere`: search every lineage as
    a whole.
    """

    wanted: Criteria
    since_us: int | None = None
    until_us: int | None = None
    gtids: tuple[str, ...] = ()
    order: Literal["newest", "oldest"] = "newest"
    limit: int = 0
    lineage: str | None = None
    everywhere: bool = False

    def in_time(self, least_us: int, greatest_us: int, *, exact: bool) -> bool:
        """Whether a commit between these times may match; not `exact`: seconds, rounded down."""
        if not exact:
            greatest_us += _SECOND_US - 1
        return (self.since_us is None or greatest_us >= self.since_us) and (
            self.until_us is None or least_us <= self.until_us
        )


@dataclass(frozen=True, slots=True)
class XaLink:
    """The other phase of an XA transaction, and the state that follows from it.

    `binlog` and `transaction` are those of the other phase, None if it was not found.
    """

    xa: Xa
    state: Literal["prepared", "committed", "rolled back"]
    binlog: BinlogName | None = None
    transaction: Transaction | None = None

    @property
    def is_settled(self) -> bool:
        """Whether both phases are known, and it was committed."""
        return self.state == "committed" and self.transaction is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """A transaction that was found: where it is, what it does, and how certain the match is.

    For an XA COMMIT, the content is that of the prepared transaction, if it was found.
    """

    lineage: str
    binlog: BinlogName
    transaction: Transaction
    content: Content
    match: Match
    link: XaLink | None = None


@dataclass(slots=True)
class SearchStats:
    """The progress and the outcome of a search. `size` of `of_size` bytes are done.

    `left_out`: binlogs that did not have to be read. `ended_early`: the limit was reached.
    `covered_us`: everything committed until then is in the bucket, None: not known.
    `similar_tables`: names similar to those asked for, if no match was certain.
    """

    binlogs: int = 0
    size: int = 0
    left_out: int = 0
    of_size: int = 0
    lineages: tuple[str, ...] = ()
    ended_early: bool = False
    covered_us: int | None = None
    similar_tables: tuple[str, ...] = ()
