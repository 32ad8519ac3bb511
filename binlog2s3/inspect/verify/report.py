"""The words of `verify`: what was looked at, what can be recovered, what is wrong. Values only.

Place in the flow: all other modules of `verify` find, `view` shows.

Law: a defect is what contradicts an entry, a lineage or a heartbeat, and says what follows and what
to do. A gap that the archive itself records is none: it was told when it came, nobody can mend it,
and it ends an interval.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from binlog2s3.archive.documents import Lineage
from binlog2s3.binlog.names import BinlogName

Kind = Literal[
    "lineage-missing",
    "lineage-unreadable",
    "lineage-lies",
    "parent-missing",
    "parent-lies",
    "binlog-missing",
    "object-missing",
    "entry-missing",
    "entry-unreadable",
    "entry-lies",
    "size",
    "checksum",
    "bytes",
    "gtids",
    "chunk-hole",
    "chunk-disagrees",
    "chunk-bytes",
    "durable-missing",
    "writer-unreadable",
    "turn-unreadable",
    "foreign",
    "source-differs",
    "source-has-it",
    "source-is-another",
]

_VERSIONED = "where the bucket is versioned, an older version may be right: copy it back"
_AGAIN = "where the source still has it, take this one away and a new start of `stream` archives it"
_BACKUP = "make a new base backup: from then on the history is whole"
WORDS: Mapping[Kind, tuple[str, str, str]] = {
    "lineage-missing": (
        "binlogs, entries, chunks or the last turn of a lineage that has no lineage.json",
        "nothing of this lineage can be found by a recovery",
        f"{_VERSIONED}; docs/format.md says what stands in it",
    ),
    "lineage-unreadable": (
        "a lineage.json that is not of format 1",
        "nothing of this lineage can be found by a recovery",
        f"{_VERSIONED}; a newer format needs a newer binlog2s3",
    ),
    "lineage-lies": (
        "a lineage.json that contradicts its key, its first binlog, or itself",
        "a recovery may take it for another history than it is",
        _VERSIONED,
    ),
    "parent-missing": (
        "a lineage that goes on from one that is not there",
        "no recovery comes from before this lineage",
        f"if it was deleted on purpose, nothing; else {_VERSIONED}",
    ),
    "parent-lies": (
        "a parent whose point, GTIDs or join are not true of what is there",
        "a recovery from before this lineage would stop at the wrong place, or is refused",
        _VERSIONED,
    ),
    "binlog-missing": (
        "numbers that lack, with object and entry, and that the writer is past",
        "no recovery crosses it: from before, only up to there",
        f"if all before it was deleted on purpose: --last or --since; else {_VERSIONED}; {_BACKUP}",
    ),
    "object-missing": (
        "an entry without its binlog",
        "no recovery crosses it: from before, only up to there",
        f"{_VERSIONED}; or take its entry away, if the source still has the binlog; else {_BACKUP}",
    ),
    "entry-missing": (
        "an archived binlog without an entry",
        "a recovery and `find` read all of the binlog instead; `list` shows no times, no GTIDs",
        "verify --repair makes it again from the object",
    ),
    "entry-unreadable": (
        "an entry that is not of format 1, or of an unknown encoding or encryption",
        "a recovery that needs this binlog is refused",
        f"{_VERSIONED}; or take the entry away, and verify --repair makes it again",
    ),
    "entry-lies": (
        "an entry that contradicts itself, or the bytes",
        "a recovery may stop at the wrong place, or is refused",
        f"{_VERSIONED}; or take the entry away, and verify --repair makes it again",
    ),
    "size": (
        "a binlog that has not the size in its entry",
        "the binlog is not whole, or is another one",
        f"{_VERSIONED}; or {_AGAIN}",
    ),
    "checksum": (
        "a binlog whose CRC64NVME, as the store keeps it, is not that in its entry",
        "the binlog has other bytes than were archived",
        f"{_VERSIONED}; or {_AGAIN}",
    ),
    "bytes": (
        "bytes that are not those of the entry's checksums, or no sound events",
        "a recovery is refused where it comes to these bytes",
        f"{_VERSIONED}; or {_AGAIN}",
    ),
    "gtids": (
        "a binlog that does not begin with the GTIDs with which the one before it ends",
        "no recovery crosses it: transactions lack between, or an entry lies",
        f"--deep tells which; {_BACKUP}",
    ),
    "chunk-hole": (
        "chunks of a binlog that do not join",
        "what lies behind cannot be recovered",
        "a running `stream` puts missing chunks again, as long as the source has the binlog",
    ),
    "chunk-disagrees": (
        "chunks of the same bytes with different checksums",
        "what lies behind must not be applied: nothing tells which chunk is right",
        "compare them with the source's binlog",
    ),
    "chunk-bytes": (
        "chunks that do not have the bytes that their names say",
        "what lies behind cannot be recovered",
        f"{_VERSIONED}; a new start of `stream` puts it again, if the source still has it",
    ),
    "durable-missing": (
        "bytes that the last writer said are durable, and that are not there",
        "transactions that were durable cannot be recovered",
        "a running `stream` puts missing chunks again, as long as the source has the binlog",
    ),
    "writer-unreadable": (
        "a last writer's object that is not of format 1",
        "what is durable is not known",
        "a running `stream` puts it again; a newer format needs a newer binlog2s3",
    ),
    "turn-unreadable": (
        "the last of `turns/`, where it is not of format 1",
        "which lineage is current is not known: a recovery is refused without --lineage",
        f"{_VERSIONED}; a newer format needs a newer binlog2s3",
    ),
    "foreign": (
        "an object below `archive/` or `live/` that is of no kind of this format",
        "none: it is left alone",
        "find out who put it there, and take it away",
    ),
    "source-differs": (
        "the server has another size, server id or previous GTIDs of a binlog",
        "a recovery brings other data than the source has",
        "the server was reset or restored, or the archive changed: --deep tells",
    ),
    "source-has-it": (
        "the server still has what the bucket should have and lacks",
        "what the source still has, and the bucket should have, cannot be recovered",
        "a new start of `stream` archives it, as long as the source has it",
    ),
    "source-is-another": (
        "the server is none that the archive is of",
        "nothing of what this server writes is archived here",
        "are --source and --mysql-host of the same server?",
    ),
}
"""Of each kind of defect: what it is, what follows for a recovery, and what to do."""

NO_WRITER = (
    "no writer's object is below {}, so as far as the bucket tells nobody streams. That alone "
    "loses nothing: a streamer that runs puts its object again with its next heartbeat, else start "
    "`stream`, which makes one and goes on where the bucket ends. Until then nobody knows how much "
    "was durable, and whether something lacks at the end"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Defect:
    """One thing that is wrong: `text` says what, `key` is the object (or the prefix) it is about.

    `mended`: --repair has made it good.
    """

    kind: Kind
    lineage: str = ""
    binlog: BinlogName | None = None
    key: str
    text: str
    repaired: bool = False

    @property
    def follows(self) -> str:
        """What follows from it for a recovery."""
        return WORDS[self.kind][1]

    @property
    def todo(self) -> str:
        """What to do about it."""
        return WORDS[self.kind][2]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedGap:
    """A break in the history that the archive itself records: no defect.

    `kind`: the join of a parent, or damage that the source itself served. `missing` is "" where
    nobody knows.
    """

    kind: Literal["gap", "unknown", "damaged"]
    lineage: str
    text: str
    missing: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """Binlogs without a break: a base backup from within can be brought to any point behind it.

    From the beginning of `first` to `last_offset` of `last`, which may be of a later lineage. Times
    in microseconds; `to_us` is None where nothing was committed and nobody vouches for more, or
    where it was not read: `untimed` says which. GTIDs as texts, None where they are not known.
    `why`: why it ends; "" at what is newest.
    """

    lineage: str
    first: BinlogName
    last_lineage: str
    last: BinlogName
    last_offset: int
    from_us: int | None
    to_us: int | None
    gtids_before: str | None
    gtids_after: str | None
    binlogs: int
    size: int
    transactions: int
    why: str = ""
    untimed: str = ""


@dataclass(slots=True, kw_only=True)
class LineageReport:
    """What was found of a lineage. Of its `binlogs`, `looked_at` were looked at."""

    lineage: Lineage
    current: bool
    binlogs: int = 0
    open: int = 0
    looked_at: int = 0
    size: int = 0
    transactions: int = 0
    intervals: list[Interval] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedBinlogs:
    """What --against-source saw. Of its `listed` binlogs `compared` are in the bucket, and agree.

    `lag`: what the bucket does not have yet, in bytes, of these binlogs.
    """

    address: str
    server_uuid: str
    listed: int
    compared: int
    first: str
    last: str
    lag: int
    lagging: tuple[str, ...]
    not_archived: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BackupAnswer:
    """Whether a base backup can be brought to the newest. `why` not; else how far it is."""

    start: str
    possible: bool
    why: str = ""
    hint: str = ""
    begin: str = ""
    end: str = ""
    latest_us: int | None = None
    gtids_added: str = ""
    binlogs: int = 0
    size: int = 0
    transactions: int = 0
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Repaired:
    """An entry that was made again, or `why` it was not."""

    lineage: str
    binlog: BinlogName
    key: str
    why: str = ""


@dataclass(slots=True, kw_only=True)
class SourceReport:
    """All of one source. `history`: the intervals along the history that ends in `tip`.

    That is made of the lineages `legs`.
    """

    name: str
    tip: str = ""
    legs: tuple[str, ...] = ()
    writer: str = ""
    lineages: list[LineageReport] = field(default_factory=list)
    history: list[Interval] = field(default_factory=list)
    gaps: list[RecordedGap] = field(default_factory=list)
    defects: list[Defect] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    compared: ComparedBinlogs | None = None
    answer: BackupAnswer | None = None
    repaired: list[Repaired] = field(default_factory=list)
    read_bytes: int = 0

    @property
    def sound(self) -> bool:
        """No defect is left, and what was asked was answered with yes."""
        left = [defect for defect in self.defects if not defect.repaired]
        return not left and (self.answer is None or self.answer.possible)


@dataclass(slots=True, kw_only=True)
class Report:
    """Everything that was asked for."""

    target: str
    deep: bool
    since_us: int | None = None
    last: int | None = None
    lineage: str | None = None
    sources: list[SourceReport] = field(default_factory=list)
    foreign: list[Defect] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def sound(self) -> bool:
        """Of all sources, and nothing foreign lies beside them."""
        return not self.foreign and all(source.sound for source in self.sources)
