"""The words of a point-in-time recovery: what is wanted, what is planned. Values only.

Place in the flow: `pitr` makes a `Request`, `plan` turns it and what the bucket has
into a `Plan`, `extract` reads a plan's pieces, `serve` and `export` bring them to where they are
wanted.

Law: a plan names exact byte ranges that begin and end between transactions, and the GTIDs in them:
whoever carries it out needs to decide nothing, and can prove at the end that it was done.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from binlog2s3.archive.documents import Lineage
from binlog2s3.archive.known import Known
from binlog2s3.binlog.content import Content
from binlog2s3.binlog.gtid import Flavour, Gtids
from binlog2s3.binlog.names import BinlogName
from binlog2s3.binlog.scanner import Transaction

# What is wanted


@dataclass(frozen=True, slots=True)
class ToTime:
    """Stop before the first transaction, in binlog order, that was committed later than this.

    Microseconds since the epoch, UTC; `text` as the operator wrote it.
    """

    at_us: int
    text: str


@dataclass(frozen=True, slots=True)
class ToGtid:
    """Stop behind this transaction: "uuid:5", "uuid:tag:5", MariaDB's "0-1-5"."""

    gtid: str


@dataclass(frozen=True, slots=True)
class BeforeGtid:
    """Stop just before this transaction."""

    gtid: str


@dataclass(frozen=True, slots=True)
class ToPosition:
    """Stop at this offset of a binlog, which must lie between two transactions."""

    binlog: BinlogName
    offset: int


@dataclass(frozen=True, slots=True)
class Latest:
    """All that is in the bucket."""


Goal = ToTime | ToGtid | BeforeGtid | ToPosition | Latest


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    """All that the operator, or the base backup itself, says of where that stands."""

    gtids: Gtids | None = None
    place: tuple[BinlogName, int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """What the target has already.

    `gtids`: all that it has executed; None where it keeps none or nobody asked. `place`: name and
    offset of the binlog that its base backup goes up to. Neither: nothing, all is applied from the
    first binlog of the history on. `server`: the server_uuid of the server that the backup is of,
    "" if the backup does not tell, None if no backup names the place. `lineage`: which one that is
    of, where several have such a place, or such GTIDs. `base`: what is said of the base backup
    itself, which the target may be ahead of; None where only the target tells.
    """

    gtids: Gtids | None = None
    place: tuple[BinlogName, int] | None = None
    lineage: str | None = None
    server: str | None = None
    base: Base | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What is wanted, from what on, and what may be done on the way.

    `skip` are GTID sets to leave out (MariaDB: lists of single GTIDs). `lineage` chooses the
    history that ends with that one, None: the last writer's.
    """

    goal: Goal
    start: Start
    skip: tuple[str, ...] = ()
    lineage: str | None = None
    allow_gap: bool = False
    allow_extra_gtids: bool = False


class History(Protocol):
    """What a plan asks about the bucket; `snapshot.Survey` answers from a real one."""

    @property
    def lineages(self) -> Sequence[Lineage]:
        """All of the source's, oldest first."""

    @property
    def current(self) -> str:
        """The id of the one that is written, or was the last."""

    @property
    def covered_us(self) -> int | None:
        """All that was committed until then in the current lineage is in the bucket."""

    def names(self, lineage: str) -> Sequence[BinlogName]:
        """The binlogs of a lineage of which something can be read, in their order."""

    def lost_end(self, lineage: str) -> str:
        """What was durable behind these, and is not there any more; "" where nothing is lost."""

    def load(self, lineage: str, names: Sequence[BinlogName]) -> None:
        """Say that these will be asked for, so that they are looked at together."""

    def known(self, lineage: str, name: BinlogName) -> Known:
        """What is known of one of them."""

    @property
    def doubts(self) -> int:
        """How often something was not as `names` or the four below said: ask them again."""

    def brief(self, lineage: str, name: BinlogName) -> Known:
        """What a cache says of a binlog, perhaps without its blocks; else what is known."""

    def first_later(self, lineage: str, at_us: int, begin: BinlogName) -> BinlogName | None:
        """By the same cache: the first one from `begin` on with a commit later than this.

        None if none has. What has no entry is not looked at.
        """

    def not_later(self, lineage: str, at_us: int, begin: BinlogName) -> Iterator[BinlogName]:
        """By the same cache: those from `begin` on that may have a commit until then, in order."""

    def unbroken_to(self, lineage: str, name: BinlogName) -> BinlogName:
        """By the same cache: one to which GTIDs lead from this one, binlog by binlog."""

    def transactions(
        self, lineage: str, name: BinlogName, begin: int = 0, end: int | None = None
    ) -> Iterator[Transaction]:
        """The whole transactions that begin at or behind `begin` and before `end`, in order.

        Reads only the blocks that they lie in. Damaged events are passed over: a transaction that
        has such is among them all the same, as far as its bounds can be told.
        """

    def content(self, lineage: str, name: BinlogName, transaction: Transaction) -> Content:
        """What a transaction does."""

    def is_boundary(self, lineage: str, name: BinlogName, offset: int) -> bool:
        """Whether events end there and no transaction is open; also at the binlog's very end."""


# What is planned


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A place in a history, between two transactions."""

    lineage: str
    binlog: BinlogName
    offset: int

    def __str__(self) -> str:
        return f"{self.binlog}:{self.offset}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """The part of one binlog that is applied: bytes [begin, end) but for the ranges `left_out`.

    Both ends, and those of the ranges, lie between transactions. `transactions` of them, with
    these GTIDs (empty where they have none).
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
    def size(self) -> int:
        """Bytes that are applied."""
        return self.end - self.begin - sum(end - begin for begin, end in self.left_out)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """One transaction, for people to recognize."""

    lineage: str
    binlog: BinlogName
    transaction: Transaction
    content: Content


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """What can be reached at all in the history that was chosen. Times in microseconds, UTC.

    From the first binlog that is there without a break up to the newest. `latest_us` is None where
    nothing was ever committed in it and nobody vouches for more.
    """

    first: Place
    last: Place
    earliest_us: int
    latest_us: int | None
    gtids: Gtids | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What will be done, exactly.

    `before`: the GTIDs that the target has; `adds`: those that the pieces bring; `skipped`: those
    left out by wish. All None where the history has no GTIDs. `kept` are the last transactions that
    are applied (or were, in the target), `left_out` the first that are not, at most three each.
    """

    flavour: Flavour
    server_version: str
    lineage: str
    goal: Goal
    stop: Place
    pieces: tuple[Piece, ...]
    before: Gtids | None
    adds: Gtids | None
    skipped: Gtids | None
    kept: tuple[Shown, ...]
    left_out: tuple[Shown, ...]
    commit_exact: bool
    reach: Reach
    warnings: tuple[str, ...] = ()
    others: tuple[str, ...] = ()

    @property
    def begin(self) -> Place:
        """Where the first piece begins; there has to be one."""
        first = self.pieces[0]
        return Place(lineage=first.lineage, binlog=first.binlog, offset=first.begin)

    @property
    def transactions(self) -> int:
        """How many are applied."""
        return sum(piece.transactions for piece in self.pieces)

    @property
    def size(self) -> int:
        """Bytes of binlog that are applied."""
        return sum(piece.size for piece in self.pieces)


# What is carried out


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """The next bytes of a piece for mysqlbinlog, proved; `done`: transactions that end in them."""

    data: bytes
    done: tuple[Transaction, ...] = ()


Stream = Iterator[tuple[Piece, Iterator[Checked]]]
"""Piece by piece, its bytes: the magic and the format event first, as a binlog begins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far an apply is: bytes and transactions that were handed on, of how many."""

    size: int
    of_size: int
    transactions: int
    of_transactions: int
    commit_us: int | None


OnProgress = Callable[[Progress], None]
