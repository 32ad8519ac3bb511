"""What a search is for: the words of `find`. Values only.

Place in the flow: `config` makes it, `scan` looks for it, `view` says it.
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
    """What is looked for, and where.

    Times in microseconds, UTC, both included. `gtids` are texts, as the flavour has them.
    `lineage`: the history that ends there, None: the last writer's; `everywhere`: every lineage
    as a whole.
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
        """Whether anything between these may be in time; not `exact`: seconds, rounded down."""
        if not exact:
            greatest_us += _SECOND_US - 1
        return (self.since_us is None or greatest_us >= self.since_us) and (
            self.until_us is None or least_us <= self.until_us
        )


@dataclass(frozen=True, slots=True)
class XaLink:
    """That a transaction is one phase of an XA transaction: what became of that, and by which one.

    `binlog` and `transaction` are of the other phase, None where it is not in sight.
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
    """A transaction that was found, where, what it does, and how sure that is.

    Of an XA COMMIT the content is that of what it commits, where that is in sight.
    """

    lineage: str
    binlog: BinlogName
    transaction: Transaction
    content: Content
    match: Match
    link: XaLink | None = None


@dataclass(slots=True)
class SearchStats:
    """What was looked through so far, in bytes of `of_size`; `left_out`: without being read.

    `ended_early`: the limit was reached before the end. `covered_us`: all that was committed until
    then is in the bucket, None: nobody knows. `close`: tables with names like those that were asked
    for, where nothing was certainly found.
    """

    binlogs: int = 0
    size: int = 0
    left_out: int = 0
    of_size: int = 0
    lineages: tuple[str, ...] = ()
    ended_early: bool = False
    covered_us: int | None = None
    similar_tables: tuple[str, ...] = ()
