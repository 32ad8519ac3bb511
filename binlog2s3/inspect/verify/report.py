"""The values of a `verify` report: what can be recovered, what is wrong. Values only.

Law: a defect contradicts an entry, a lineage or a heartbeat, and says what follows and what to do.
A gap that the archive itself records is not a defect: it was reported when it happened, nobody can
fix it, and it ends an interval.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from binlog2s3.archive.documents import Lineage
from binlog2s3.binlog.names import BinlogName
from binlog2s3.recover.model import Plan

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
    "storage-class",
    "bytes",
    "gtids",
    "chunk-hole",
    "chunk-disagrees",
    "chunk-bytes",
    "durable-missing",
    "writer-unreadable",
    "turn-unreadable",
    "backup-damaged",
    "backup-unreadable",
    "foreign",
    "source-differs",
    "source-has-it",
    "source-is-another",
]

_VERSIONED = "if the bucket is versioned, an older version may be right: copy it back"
_AGAIN = (
    "if the source still has the binlog, delete the object and restart `stream` to archive it again"
)
_BACKUP = "make a new base backup: from there on, the history is complete"


class Meaning(NamedTuple):
    """What a kind of defect is, what follows for a recovery, and what to do.

    `is_on_the_way`: a recovery that needs the binlog hits it, or must not trust it.
    """

    what: str
    follows: str
    todo: str
    is_on_the_way: bool = False


WORDS: Mapping[Kind, Meaning] = {
    "lineage-missing": Meaning(
        "binlogs, entries, chunks or the last turn of a lineage without a lineage.json",
        "a recovery cannot find this lineage",
        f"{_VERSIONED}; docs/format.md describes the file",
    ),
    "lineage-unreadable": Meaning(
        "a lineage.json that does not follow format 1",
        "a recovery cannot find this lineage",
        f"{_VERSIONED}; a newer format needs a newer binlog2s3",
    ),
    "lineage-lies": Meaning(
        "a lineage.json that contradicts its key, its first binlog, or itself",
        "a recovery may follow the wrong history",
        _VERSIONED,
    ),
    "parent-missing": Meaning(
        "a lineage whose parent is missing",
        "a recovery cannot begin before this lineage",
        f"nothing, if it was deleted on purpose; otherwise {_VERSIONED}",
    ),
    "parent-lies": Meaning(
        "a parent whose point, GTIDs or join contradict its binlogs",
        "a recovery that begins before this lineage would stop at the wrong place, or is refused",
        _VERSIONED,
    ),
    "binlog-missing": Meaning(
        "missing binlogs, without object and entry, that the writer has passed",
        "no recovery crosses it: from an earlier backup, only up to there",
        f"if all before it was deleted on purpose: --last or --since; else {_VERSIONED}; {_BACKUP}",
        is_on_the_way=True,
    ),
    "object-missing": Meaning(
        "an entry without its binlog",
        "no recovery crosses it: from an earlier backup, only up to there",
        f"{_VERSIONED}; or delete its entry, if the source still has the binlog; else {_BACKUP}",
        is_on_the_way=True,
    ),
    "entry-missing": Meaning(
        "an archived binlog without an entry",
        "a recovery and `find` read the whole binlog instead; `list` shows no times and no GTIDs",
        "verify --repair makes the entry again from the object",
    ),
    "entry-unreadable": Meaning(
        "an entry that does not follow format 1, or has an unknown encoding or encryption",
        "a recovery that needs this binlog is refused",
        f"{_VERSIONED}; or delete the entry, and verify --repair makes it again",
        is_on_the_way=True,
    ),
    "entry-lies": Meaning(
        "an entry that contradicts itself, or the bytes",
        "a recovery may stop at the wrong place, or is refused",
        f"{_VERSIONED}; or delete the entry, and verify --repair makes it again",
        is_on_the_way=True,
    ),
    "size": Meaning(
        "a binlog whose size differs from its entry",
        "the binlog is incomplete, or is another one",
        f"{_VERSIONED}; or {_AGAIN}",
        is_on_the_way=True,
    ),
    "checksum": Meaning(
        "a binlog whose CRC64NVME in the store differs from its entry",
        "the binlog's bytes differ from what was archived",
        f"{_VERSIONED}; or {_AGAIN}",
        is_on_the_way=True,
    ),
    "storage-class": Meaning(
        "a binlog in a storage class that answers no GET (not with --deep, which tries to read it)",
        "a recovery that needs this binlog fails, for hours, until the object was brought back",
        "delete the lifecycle rule; `aws s3api restore-object`, then copy the object over itself",
        is_on_the_way=True,
    ),
    "bytes": Meaning(
        "bytes that do not match the entry's checksums, or damaged events",
        "a recovery is refused when it reaches these bytes",
        f"{_VERSIONED}; or {_AGAIN}",
        is_on_the_way=True,
    ),
    "gtids": Meaning(
        "a binlog that does not begin with the GTIDs that the one before it ends with",
        "no recovery crosses it: transactions are missing, or an entry is wrong",
        f"--deep finds out which; {_BACKUP}",
        is_on_the_way=True,
    ),
    "chunk-hole": Meaning(
        "chunks of a binlog with a hole between them",
        "what follows cannot be recovered",
        "a running `stream` uploads missing chunks again, as long as the source has the binlog",
        is_on_the_way=True,
    ),
    "chunk-disagrees": Meaning(
        "chunks of the same range with different checksums",
        "what follows must not be applied: nothing shows which chunk is right",
        "compare them with the source's binlog",
        is_on_the_way=True,
    ),
    "chunk-bytes": Meaning(
        "chunks whose bytes do not match their names",
        "what follows cannot be recovered",
        f"{_VERSIONED}; or restart `stream`, which uploads it again if the source still has it",
        is_on_the_way=True,
    ),
    "durable-missing": Meaning(
        "missing bytes that the last writer reported as durable",
        "transactions that were durable cannot be recovered",
        "a running `stream` uploads missing chunks again, as long as the source has the binlog",
        is_on_the_way=True,
    ),
    "writer-unreadable": Meaning(
        "the last writer's object does not follow format 1",
        "how much is durable is not known",
        "a running `stream` writes it again; a newer format needs a newer binlog2s3",
    ),
    "turn-unreadable": Meaning(
        "the last object of `turns/` does not follow format 1",
        "which lineage is current is not known: a recovery is refused without --lineage",
        f"{_VERSIONED}; a newer format needs a newer binlog2s3",
    ),
    "backup-damaged": Meaning(
        "an object of a stored base backup that is missing, or other bytes than its document says",
        "no recovery can begin at it",
        "`backup remove` forgets it; make a new one, or restore an older version of the object",
    ),
    "backup-unreadable": Meaning(
        "a document of a registered base backup that does not follow format 1",
        "the backup is not used, and `prune` is refused",
        "`backup add` registers it again; a newer format needs a newer binlog2s3",
    ),
    "foreign": Meaning(
        "an object below `archive/` or `live/` that is not part of the format",
        "none: it is ignored",
        "find out who put it there, and delete it",
    ),
    "source-differs": Meaning(
        "a binlog's size, server id or previous GTIDs differ on the server",
        "a recovery restores other data than the source has",
        "the server was reset or restored, or the archive was changed: run with --deep",
    ),
    "source-has-it": Meaning(
        "the server still has something that is missing in the bucket",
        "what is missing in the bucket cannot be recovered",
        "restart `stream`, which archives it as long as the source has it",
    ),
    "source-is-another": Meaning(
        "the archive is not of this server",
        "nothing that this server writes is archived here",
        "check that --source and --mysql-host name the same server",
    ),
}
"""For each kind of defect: what it is, what follows for a recovery, and what to do."""

NO_WRITER = (
    "no writer's object is below {}, so nobody seems to stream. No data is lost by that: a running "
    "streamer writes its object again with its next heartbeat; otherwise start `stream`, which "
    "makes one and continues where the bucket ends. Until then it is not known how much was "
    "durable, and whether something is missing at the end"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Defect:
    """One defect: `text` says what is wrong, `key` is the object or the prefix.

    `repaired`: --repair has fixed it.
    """

    kind: Kind
    lineage: str = ""
    binlog: BinlogName | None = None
    key: str
    text: str
    repaired: bool = False

    @property
    def follows(self) -> str:
        """What follows for a recovery."""
        return WORDS[self.kind].follows

    @property
    def todo(self) -> str:
        """What to do about it."""
        return WORDS[self.kind].todo


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedGap:
    """A break in the history that the archive itself records: not a defect.

    `kind`: how a parent joins, or damage that the source itself sent. `missing` is "" if not known.
    """

    kind: Literal["gap", "unknown", "damaged"]
    lineage: str
    text: str
    missing: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """Binlogs without a break: a base backup from within can be recovered to any later point in it.

    It reaches from the beginning of `first` to `last_offset` of `last`, which may be in a later
    lineage. Times are in microseconds. `to_us` is None if the end time is not known; `untimed` says
    why. GTIDs are texts, None if not known. `why`: why it ends; "" if it is the newest.
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
    """The result for a lineage. Of its `binlogs`, `looked_at` were checked."""

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
    """The result of --against-source: of the `listed` binlogs, `compared` agree.

    `lag`: the bytes of these binlogs that are not in the bucket yet.
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
    """Whether a base backup can be recovered to now: why not, and by which plan, if there is one.

    `start`: the backup, in words.
    """

    start: str
    plan: Plan | None = None
    why: str = ""
    hint: str = ""
    warnings: tuple[str, ...] = ()

    @property
    def possible(self) -> bool:
        return not self.why


@dataclass(frozen=True, slots=True, kw_only=True)
class Repaired:
    """An entry that was made again, or `why` it was not."""

    lineage: str
    binlog: BinlogName
    key: str
    why: str = ""


@dataclass(slots=True, kw_only=True)
class SourceReport:
    """The result for a source. `history`: the intervals along the history that ends in `tip`.

    `line`: the lineages of that history.
    """

    name: str
    tip: str = ""
    line: tuple[str, ...] = ()
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
        """Whether no defect is left, and the backup's answer, if asked for, is yes."""
        left = [defect for defect in self.defects if not defect.repaired]
        return not left and (self.answer is None or self.answer.possible)


@dataclass(slots=True, kw_only=True)
class Report:
    """The result for everything that was asked for."""

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
        """Whether all sources are sound, and there are no foreign objects."""
        return not self.foreign and all(source.sound for source in self.sources)
