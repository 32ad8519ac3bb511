"""The values of a point-in-time recovery: what is asked for, what is planned. Values only.

Law: a plan names exact byte ranges that begin and end between transactions, and the GTIDs in them.
To carry it out, nothing more has to be decided, and at the end the result can be compared with it.
"""

from bisect import bisect_right
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Self

from binlog2s3.archive.facts import BinlogId
from binlog2s3.binlog.content import Content
from binlog2s3.binlog.gtid import Flavour, Gtids, MariadbGtidList
from binlog2s3.binlog.names import BinlogName, FilePosition
from binlog2s3.binlog.scanner import Transaction
from binlog2s3.config.goal import Goal
from binlog2s3.formatting import count_text, iso_text, size_text

# What is wanted


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    """Where the base backup ends, as the operator or the backup itself says: `said_by`.

    `sets_gtids`: whether a target into which it is loaded has these GTIDs then. `innodb`: where the
    last transaction in its InnoDB data ended; None if that is unknown.
    """

    gtids: Gtids | None = None
    position: FilePosition | None = None
    said_by: str = "the base backup"
    sets_gtids: bool = False
    innodb: FilePosition | None = None


@dataclass(frozen=True, slots=True)
class Own:
    """The target itself: its server_uuid, and the statement that removes its GTIDs, for hints.

    `replicated`: its gtid_slave_pos, if it is a MariaDB on which no run was interrupted; else None.
    """

    uuid: str
    reset: str
    replicated: MariadbGtidList | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """What the target already has.

    `gtids`: all that it has executed; None if it keeps none, or was not asked. `position`: binlog
    and offset up to which its base backup goes. If both are None it has nothing, and everything
    from the first binlog of the history on is applied. `server`: the server_uuid of the backup's
    server, "" if the backup does not name it, None if the position is not a backup's. `lineage`:
    the lineage of the position or the GTIDs, if several have them. `base`: what is said of the base
    backup itself, which the target may be ahead of; None if only the target says what it has.
    `own`: the target, if it was asked.
    """

    gtids: Gtids | None = None
    position: FilePosition | None = None
    lineage: str | None = None
    server: str | None = None
    base: Base | None = None
    own: Own | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Where to stop, where to start, and what is allowed in between.

    `skip` are GTID sets to leave out (MariaDB: lists of single GTIDs); `holes`, in the same form,
    those that the target may lack although it has later ones, `any_holes`: whichever. `lineage`
    chooses the history that ends with that lineage; None: the last writer's. Not `is_chosen`:
    nobody chose it, so it does not say which history a base backup is of.
    """

    goal: Goal
    start: Start = Start()
    skip: tuple[str, ...] = ()
    holes: tuple[str, ...] = ()
    any_holes: bool = False
    lineage: str | None = None
    is_chosen: bool = True
    allow_gap: bool = False
    allow_extra_gtids: bool = False


# What is planned


@dataclass(frozen=True, slots=True, kw_only=True)
class BinlogPosition:
    """A position in a history, between two transactions."""

    lineage: str
    binlog: BinlogName
    offset: int

    @property
    def binlog_id(self) -> BinlogId:
        return self.lineage, self.binlog

    @property
    def file_position(self) -> FilePosition:
        """For comparison within a lineage."""
        return FilePosition(self.binlog, self.offset)

    @property
    def served_name(self) -> str:
        """The name of its binlog at the target; different for each lineage."""
        return f"{self.lineage}.{self.binlog}"

    @classmethod
    def served(cls, name: str, offset: int) -> Self | None:
        """The position that a binlog's name at the target and an offset mean; None if none."""
        lineage, _, binlog = name.partition(".")
        try:
            return cls(lineage=lineage, binlog=BinlogName.parse(binlog), offset=offset)
        except ValueError:
            return None

    def __str__(self) -> str:
        return str(self.file_position)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanPiece:
    """The part of one binlog that is applied: bytes [begin, end) except the ranges `left_out`.

    Both ends, and those of the ranges, are between transactions. It has so many `transactions`,
    with these GTIDs (empty if they have none).
    """

    lineage: str
    binlog: BinlogName
    begin: int
    end: int
    left_out: tuple[tuple[int, int], ...] = ()
    transactions: int
    gtids: Gtids
    greatest_commit_us: int | None = None

    @property
    def binlog_id(self) -> BinlogId:
        return self.lineage, self.binlog

    @property
    def served_name(self) -> str:
        """The name of its binlog at the target, different for each piece."""
        return self.position(self.begin).served_name

    def position(self, offset: int) -> BinlogPosition:
        """The position of an offset in its binlog."""
        return BinlogPosition(lineage=self.lineage, binlog=self.binlog, offset=offset)

    @property
    def size(self) -> int:
        """How many bytes are applied."""
        return self.end - self.begin - self.left_out_size

    @property
    def left_out_size(self) -> int:
        """How many bytes between its ends are not."""
        return sum(end - begin for begin, end in self.left_out)

    def applies(self, transaction: Transaction) -> bool:
        """Whether it applies this transaction of its binlog."""
        at = bisect_right(self.left_out, transaction.begin, key=lambda span: span[0]) - 1
        is_left_out = at >= 0 and transaction.begin < self.left_out[at][1]
        return self.begin <= transaction.begin and transaction.end <= self.end and not is_left_out


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """One transaction, shown so that people recognize it."""

    lineage: str
    binlog: BinlogName
    transaction: Transaction
    content: Content


@dataclass(frozen=True, slots=True, kw_only=True)
class Reachable:
    """What can be reached in the history that was chosen. Times in microseconds, UTC.

    From the first binlog after the last break up to the newest. `latest_us` is None if it has no
    commit and its writer guarantees no time. `is_behind_gap`: there was a break.
    """

    first: BinlogPosition
    last: BinlogPosition
    earliest_us: int
    latest_us: int | None
    gtids: Gtids | None
    is_behind_gap: bool = False

    @property
    def positions(self) -> str:
        """From where to where, in words."""
        if self.first == self.last:
            return f"only {self.first}, as nothing can be read behind it"
        return f"{self.first} to {self.last}"

    @property
    def times(self) -> str:
        """From when to when, in words; "" if only one position is within reach."""
        if self.first == self.last:
            return ""
        latest = "unknown" if self.latest_us is None else iso_text(self.latest_us)
        return f"{iso_text(self.earliest_us)} to {latest}"

    @property
    def besides(self) -> str:
        """What else is within reach, in words; "" if nothing is."""
        before = "and, from a base backup before the last gap, what comes before that gap"
        return before if self.is_behind_gap else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Exactly what will be done.

    `before`: the GTIDs that the target has; `adds`: those that the pieces add; `skipped`: those
    that --skip-gtid leaves out (MariaDB: the last of each server; `skipped_singly` has each). All
    are None if the history has no GTIDs. `holes`, as text: what is applied first although the
    target has later ones. `lacks`, as text: what the source had executed and no binlog has, and the
    target has not either. `kept` are the last transactions that are applied, or that the target
    has; `left_out` the first that are not; at most three each. `others` are the lineages outside of
    the history; those with later transactions are `newer`, too. `disorder`: transactions whose
    position and commit time do not fit the goal, the first few. `pending`: those that the goal cuts
    from their second phase (`pending.pending_at`). `begins_behind`: what a MariaDB has executed of
    the history before the first piece, with the GTID of each domain that was the last; None if
    nothing is applied to one.
    """

    flavour: Flavour
    server_version: str
    lineage: str
    goal: Goal
    stop: BinlogPosition
    pieces: tuple[PlanPiece, ...]
    before: Gtids | None
    adds: Gtids | None
    skipped: Gtids | None
    kept: tuple[Shown, ...]
    left_out: tuple[Shown, ...]
    commit_exact: bool
    reach: Reachable
    warnings: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    newer: tuple[str, ...] = ()
    disorder: tuple[Shown, ...] = ()
    pending: tuple[Shown, ...] = ()
    skipped_singly: tuple[str, ...] = ()
    holes: str = ""
    lacks: str = ""
    begins_behind: MariadbGtidList | None = None

    @property
    def skipped_text(self) -> str:
        """All GTIDs that are skipped, as text; "" if none are."""
        return ",".join(self.skipped_singly) or str(self.skipped or "")

    @property
    def lineages(self) -> Sequence[str]:
        """The ids of the lineages of its pieces, in the order of the history."""
        return list(dict.fromkeys(piece.lineage for piece in self.pieces))

    @property
    def begin(self) -> BinlogPosition:
        """Where the first piece begins; without one, where it stops."""
        return self.pieces[0].position(self.pieces[0].begin) if self.pieces else self.stop

    @property
    def transactions(self) -> int:
        """How many are applied."""
        return sum(piece.transactions for piece in self.pieces)

    @property
    def size(self) -> int:
        """Bytes of binlog that are applied."""
        return sum(piece.size for piece in self.pieces)

    @property
    def amount(self) -> str:
        """How much is applied, in words."""
        binlogs = count_text(len(self.pieces), "binlog")
        return f"{binlogs}, {size_text(self.size)}, {count_text(self.transactions, 'transaction')}"


# What is carried out


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """The next bytes of a piece, checked; `done`: the transactions that end in them."""

    data: bytes
    done: tuple[Transaction, ...] = ()


Stream = Iterator[tuple[PlanPiece, Iterator[Checked]]]
"""The bytes of each piece: the magic and the format event first, as a binlog begins."""
PieceStream = Generator[tuple[PlanPiece, Iterator[Checked]], None, None]
"""The same, which is closed to end it early."""
OpenStream = Callable[[Sequence[PlanPiece]], PieceStream]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressReport:
    """How far the work is: bytes and transactions that are done, and of how many."""

    size: int
    of_size: int
    transactions: int
    of_transactions: int
    commit_us: int | None


OnProgress = Callable[[ProgressReport], None]
