"""The documents of a lineage: what it is, its floors, the entries of its binlogs. Pure.

docs/format.md describes them. A document that breaks the format, or does not belong to its key, is
reported and ignored; `codec` has the rules for each field.
"""

from contextlib import suppress
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from typing import Any, ClassVar, Literal, TypedDict

from binlog2s3.archive.codec import (
    Count,
    Crc64,
    Document,
    GtidText,
    LineageId,
    Microseconds,
    Moment,
    ServerUuid,
    SourceName,
    Text,
    beside,
    later,
)
from binlog2s3.archive.parts import BLOCK_SIZE, Block
from binlog2s3.binlog.gtid import Flavour
from binlog2s3.binlog.names import BinlogName
from binlog2s3.binlog.transactions import credible
from binlog2s3.binlog.zone import SystemZone
from binlog2s3.errors import ArchiveError
from binlog2s3.formatting import us_of

Join = Literal["exact", "gap", "unknown"]
UNLOGGED = "the source went on without a binlog: what it committed in between is nowhere"
"""Why something is missing that had no GTIDs, and was in no binlog."""


def lineage_id(first_event: datetime, server_uuid: str, token: str) -> str:
    """`<UTC time of its first binlog's format event>-<first 8 of the uuid>-<4 random>`."""
    return f"{first_event.astimezone(UTC):%Y%m%dT%H%M%SZ}-{server_uuid[:8].lower()}-{token}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Parent:
    """The point of another lineage from which a lineage continues: its end, or the fork.

    `binlog` is None if the other lineage has no bytes. `missing` is what is missing between them,
    as GTIDs or as names of binlogs; "" if nothing is, or if it is not known. `unlogged`: the source
    went on without a binlog in between, so rows are missing that no GTID counts.
    """

    lineage: LineageId
    binlog: BinlogName | None
    offset: Count
    gtid_set: GtidText
    join: Join
    missing: str
    unlogged: bool = later(default=False, compare=True)

    @property
    def cause(self) -> str:
        """Why something is missing at a gap, for people."""
        return UNLOGGED if self.unlogged else "the source had purged the binlogs in between"

    @property
    def point(self) -> str:
        """Lineage and position, for people."""
        return f"{self.lineage} at {f'{self.binlog}:{self.offset}' if self.binlog else 'its begin'}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LineageFloor(Document):
    """The binlogs of a lineage before `binlog` may have been deleted: they are not missing.

    `gtid_set`: the GTIDs executed before that binlog began; "" if there were none, or if the server
    keeps none. floors/<number>.json in the bucket.
    """

    source: SourceName
    lineage: LineageId
    binlog: BinlogName
    gtid_set: GtidText
    raised_at: Moment

    MOST: ClassVar[int] = 16 << 20

    @property
    def key_end(self) -> tuple[str, ...]:
        name = floor_name(self.binlog.number)
        return ("archive", self.source, self.lineage, "floors", name)


def floor_name(number: int) -> str:
    """The name of the floor at the binlog of this number: `0000000042.json`."""
    return f"{number:010d}.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceServer:
    """The server that a lineage is of."""

    uuid: ServerUuid
    flavour: Flavour
    version: Text


@dataclass(frozen=True, slots=True, kw_only=True)
class Lineage(Document):
    """One unbroken history of one server. `gtid_set`: the GTIDs executed before it began.

    `time_zone`: the server's when the lineage began; None if it was not asked (0.2.0 did not).
    `gtids_outside`: what the server had executed then, and no binlog of it ever had: its data came
    with a dump or a clone; "" also if it was not asked.
    `floor` is no part of the document: it is the greatest floor in the bucket, as `Catalog` found
    it. lineage.json in the bucket.
    """

    lineage: LineageId
    source: SourceName
    server: SourceServer
    first_binlog: BinlogName
    first_binlog_time: Moment
    gtid_set: GtidText
    parent: Parent | None
    gtids_outside: GtidText = later("")
    time_zone: SystemZone | None = later()
    floor: LineageFloor | None = beside()

    MOST: ClassVar[int] = 16 << 20
    """Bytes of the document."""

    @property
    def id(self) -> str:
        """Its id, in keys and messages."""
        return self.lineage

    @property
    def server_uuid(self) -> str:
        """The server's uuid, or what stands for it."""
        return self.server.uuid

    @property
    def flavour(self) -> Flavour:
        """The server's flavour."""
        return self.server.flavour

    @property
    def server_version(self) -> str:
        """The server's version when the lineage began."""
        return self.server.version

    @property
    def begin(self) -> BinlogName:
        """The first binlog that must be there: that of the floor, or the lineage's first."""
        return self.first_binlog if self.floor is None else self.floor.binlog

    def is_below_floor(self, name: BinlogName) -> bool:
        """Whether this binlog may have been pruned: it is not missing if it is not there."""
        return self.floor is not None and name.number < self.floor.binlog.number

    @property
    def key_end(self) -> tuple[str, ...]:
        return ("archive", self.source, self.lineage, "lineage.json")


class Form(TypedDict):
    """From where on a server of this version wrote a binlog, with which checksum."""

    offset: Count
    server_version: Text
    checksum: Text


class Damage(TypedDict):
    """Bytes that the source had already damaged."""

    begin: Count
    end: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryRow:
    """What an entry says of an archived binlog, without its blocks: a row of a page.

    Sizes are in bytes, `_us` in UTC. `format_event_time`: when the server began the binlog.
    `reached_us`: the greatest commit time that was credible when the transaction was received, None
    if none was. `end`: how the binlog ends: rotate, stop or crash. `next_binlog`: the one that its
    ROTATE names. `gtids_go_back`: whether numbers of a MariaDB's domain and server go back; None in
    the entries of older versions, and so in their pages, which are equal to the entries for that.
    `started`: whether a start of the server began it, not a rotation; None likewise. `leaves_out`:
    what the source said that its binlogs do not have, each `setting=value`; None if that is not
    known.
    `time_zone`: the source's while it wrote the binlog; None in those, too, in an entry that is
    made from the object alone, and if nobody had asked before the source was started again.
    """

    name: BinlogName
    size: Count
    crc64nvme: Crc64
    format_event_time: Moment
    server_id: Count
    least_commit_us: Microseconds | None
    greatest_commit_us: Microseconds | None
    reached_us: Microseconds | None
    commit_times: Text
    gtid_set_before: GtidText
    gtid_set_added: GtidText
    transactions: Count
    anonymous_transactions: Count
    events: Count
    formats: tuple[Form, ...]
    damaged: tuple[Damage, ...]
    end: Text
    next_binlog: BinlogName | None
    archived_at: Moment
    gtids_go_back: bool | None = later()
    started: bool | None = later()
    leaves_out: tuple[str, ...] | None = later()
    time_zone: SystemZone | None = later()

    @property
    def row(self) -> "EntryRow":
        """The same without the blocks that an entry has."""
        return self

    @property
    def crc64(self) -> int:
        """The CRC64NVME of the whole."""
        return self.crc64nvme

    @property
    def first_time(self) -> datetime:
        """When the server began the binlog."""
        return self.format_event_time

    @property
    def commit_exact(self) -> bool:
        """Whether commit times are exact, not those of seconds."""
        return self.commit_times == "exact"

    def check_size(self, lineage: str, size: int) -> None:
        """Raise ArchiveError if the archived binlog does not have the entry's size."""
        if size != self.size:
            raise ArchiveError(
                f"{lineage}: {self.name} has {size} bytes, its entry says {self.size}",
                hint="one of them was changed; an older version may be right, if the bucket is "
                "versioned",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry(EntryRow, Document):
    """The description of an archived binlog: entries/<name>.json in the bucket."""

    block_size: Count = BLOCK_SIZE
    blocks: tuple[Block, ...]
    encoding: Text = "none"
    encryption: Text = "none"

    MOST: ClassVar[int] = 64 << 20

    @property
    def key_end(self) -> tuple[str, ...]:
        return ("entries", f"{self.name}.json")

    @classmethod
    def prepare(cls, document: dict[str, Any]) -> str:
        prepare_row(document)
        ways = (document.get("encoding"), document.get("encryption"))
        return "" if ways == ("none", "none") else f"its encoding or encryption, {ways!r:.100}"

    @property
    def row(self) -> EntryRow:
        """The entry without its blocks."""
        return EntryRow(**{field_.name: getattr(self, field_.name) for field_ in fields(EntryRow)})


def prepare_row(document: Any) -> None:
    """Complete what 0.2.0 wrote of a binlog: `reached_us` is missing."""
    if not isinstance(document, dict) or "reached_us" in document:
        return
    greatest_us, written_at = document.get("greatest_commit_us"), document.get("archived_at")
    with suppress(ValueError, TypeError):  # other fields are wrong: they are reported
        at_us = us_of(datetime.fromisoformat(str(written_at)))
        document["reached_us"] = None if greatest_us is None else credible(int(greatest_us), at_us)


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryEnd(Document):
    """The part of an entry that says which bytes it describes, and what the next one must match.

    A start and a reader of the bytes need no more: they pass over damage elsewhere in an entry.
    """

    name: BinlogName = field(compare=False)
    size: Count
    crc64nvme: Crc64
    gtid_set_before: GtidText
    gtid_set_added: GtidText
    anonymous_transactions: Count
    next_binlog: BinlogName | None

    MOST: ClassVar[int] = Entry.MOST

    @property
    def crc64(self) -> int:
        """The CRC64NVME of the whole."""
        return self.crc64nvme

    @property
    def key_end(self) -> tuple[str, ...]:
        return ("entries", f"{self.name}.json")

    @classmethod
    def prepare(cls, document: dict[str, Any]) -> str:
        return Entry.prepare(document)
