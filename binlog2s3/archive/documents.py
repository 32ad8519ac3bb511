"""The documents of a lineage: what it is, its floors, the entries of its binlogs. Pure.

docs/format.md describes them. A document that breaks the format, or does not belong to its key, is
reported and ignored; `fields` has the rules for each field.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any, ClassVar, Literal, Self, get_args

from binlog2s3.archive.fields import (
    FORMAT,
    binlog_text,
    check_place,
    count,
    each,
    gtids,
    lineage_name,
    mapping,
    microseconds,
    moment,
    or_none,
    parse,
    printable,
    reading,
    render,
    server_uuid,
    source_name,
    text,
    time_zone,
    time_zone_field,
)
from binlog2s3.archive.parts import BLOCK_SIZE, Block
from binlog2s3.binlog.checksum import crc64_from_hex, crc64_hex
from binlog2s3.binlog.gtid import Flavour
from binlog2s3.binlog.names import BinlogName
from binlog2s3.binlog.transactions import credible
from binlog2s3.binlog.zone import SystemZone
from binlog2s3.errors import ArchiveError
from binlog2s3.formatting import iso_text, us_of

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

    lineage: str
    binlog: str | None
    offset: int
    gtid_set: str
    join: Join
    missing: str
    unlogged: bool = False

    @property
    def cause(self) -> str:
        """Why something is missing at a gap, for people."""
        return UNLOGGED if self.unlogged else "the source had purged the binlogs in between"

    @property
    def place(self) -> str:
        """The point, for people."""
        return f"{self.lineage} at {f'{self.binlog}:{self.offset}' if self.binlog else 'its begin'}"

    @classmethod
    def from_document(cls, value: Any) -> Self:
        """Read it from lineage.json. Raises KeyError, TypeError or ValueError."""
        document = mapping(value)
        join = document["join"]
        if join not in get_args(Join):
            raise ValueError(f"{join!r:.40} is not a join")
        return cls(
            lineage=lineage_name(document["lineage"]),
            binlog=or_none(binlog_text, document["binlog"]),
            offset=count(document["offset"]),
            gtid_set=gtids(document["gtid_set"]),
            join=join,
            missing=printable(document["missing"]),
            unlogged=flag(document.get("unlogged", False)),
        )

    def to_document(self) -> dict[str, Any]:
        """As it is in lineage.json."""
        document = asdict(self)
        return document if self.unlogged else {k: document[k] for k in document if k != "unlogged"}


@dataclass(frozen=True, slots=True, kw_only=True)
class LineageFloor:
    """The binlogs of a lineage before `binlog` may have been deleted: they are not missing.

    `gtid_set`: the GTIDs executed before that binlog began; "" if there were none, or if the server
    keeps none.
    """

    source: str
    lineage: str
    binlog: BinlogName
    gtid_set: str
    raised_at: datetime

    MOST: ClassVar[int] = 16 << 20

    def to_json(self) -> bytes:
        """The document floors/<number>.json."""
        return render(
            {
                "format": FORMAT,
                "source": self.source,
                "lineage": self.lineage,
                "binlog": str(self.binlog),
                "gtid_set": self.gtid_set,
                "raised_at": iso_text(self.raised_at),
            }
        )

    @classmethod
    def from_json(cls, data: bytes, key: str) -> Self:
        """Read a floor; ArchiveError if it breaks the format, or has another key."""
        document = parse(data, key, cls.MOST)
        with reading(key):
            found = cls(
                source=source_name(document["source"]),
                lineage=lineage_name(document["lineage"]),
                binlog=BinlogName.parse(document["binlog"]),
                gtid_set=gtids(document["gtid_set"]),
                raised_at=moment(document["raised_at"]),
            )
        name = floor_name(found.binlog.number)
        check_place(key, "archive", found.source, found.lineage, "floors", name)
        return found


def floor_name(number: int) -> str:
    """The name of the floor at the binlog of this number: `0000000042.json`."""
    return f"{number:010d}.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Lineage:
    """One unbroken history of one server. `gtid_set`: the GTIDs executed before it began.

    `time_zone`: the server's when the lineage began; None if it was not asked (0.2.0 did not).
    `gtids_outside`: what the server had executed then, and no binlog of it ever had: its data came
    with a dump or a clone; "" also if it was not asked.
    `floor` is no part of the document: it is the greatest floor in the bucket, as `Catalog` found
    it.
    """

    id: str
    source: str
    server_uuid: str
    flavour: Flavour
    server_version: str
    first_binlog: BinlogName
    first_binlog_time: datetime
    gtid_set: str
    parent: Parent | None = None
    time_zone: SystemZone | None = field(default=None, compare=False)
    gtids_outside: str = field(default="", compare=False)
    floor: LineageFloor | None = field(default=None, compare=False)

    MOST: ClassVar[int] = 16 << 20
    """Bytes of the document."""

    @property
    def begin(self) -> BinlogName:
        """The first binlog that must be there: that of the floor, or the lineage's first."""
        return self.first_binlog if self.floor is None else self.floor.binlog

    def is_below_floor(self, name: BinlogName) -> bool:
        """Whether this binlog may have been pruned: it is not missing if it is not there."""
        return self.floor is not None and name.number < self.floor.binlog.number

    def to_json(self) -> bytes:
        """The document lineage.json."""
        return render(
            {
                "format": FORMAT,
                "lineage": self.id,
                "source": self.source,
                "server": {
                    "uuid": self.server_uuid,
                    "flavour": self.flavour,
                    "version": self.server_version,
                },
                "first_binlog": str(self.first_binlog),
                "first_binlog_time": iso_text(self.first_binlog_time),
                "gtid_set": self.gtid_set,
                "parent": self.parent.to_document() if self.parent else None,
                **({"gtids_outside": self.gtids_outside} if self.gtids_outside else {}),
                **time_zone_field(self.time_zone),
            }
        )

    @classmethod
    def from_json(cls, data: bytes, key: str) -> Self:
        """Read lineage.json; ArchiveError if it breaks the format, or has another key."""
        document = parse(data, key, cls.MOST)
        with reading(f"the parent in {key}"):
            parent = or_none(Parent.from_document, document["parent"])
        with reading(key):
            server = mapping(document["server"])
            found = cls(
                id=lineage_name(document["lineage"]),
                source=source_name(document["source"]),
                server_uuid=server_uuid(server["uuid"]),
                flavour=flavour_name(server["flavour"]),
                server_version=text(server["version"]),
                first_binlog=BinlogName.parse(document["first_binlog"]),
                first_binlog_time=moment(document["first_binlog_time"]),
                gtid_set=gtids(document["gtid_set"]),
                gtids_outside=gtids(document.get("gtids_outside", "")),
                parent=parent,
                time_zone=or_none(time_zone, document.get("time_zone")),
            )
        check_place(key, "archive", found.source, found.id, "lineage.json")
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """The description of an archived binlog. Sizes are in bytes, `_us` in UTC.

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
    size: int
    crc64: int
    first_time: datetime
    server_id: int
    least_commit_us: int | None
    greatest_commit_us: int | None
    reached_us: int | None
    commit_exact: bool
    gtid_set_before: str
    gtid_set_added: str
    transactions: int
    anonymous_transactions: int
    events: int
    formats: tuple[Mapping[str, Any], ...]
    blocks: tuple[Block, ...]
    end: str
    next_binlog: str | None
    archived_at: datetime
    damaged: tuple[Mapping[str, Any], ...] = ()
    gtids_go_back: bool | None = field(default=None, compare=False)
    started: bool | None = field(default=None, compare=False)
    leaves_out: tuple[str, ...] | None = field(default=None, compare=False)
    time_zone: SystemZone | None = field(default=None, compare=False)

    MOST: ClassVar[int] = 64 << 20

    def to_json(self) -> bytes:
        """The document entries/<name>.json."""
        blocks = [asdict(block) | {"crc64": crc64_hex(block.crc64)} for block in self.blocks]
        document = {"format": FORMAT, **self.row(), "block_size": BLOCK_SIZE, "blocks": blocks}
        return render(document | {"encoding": "none", "encryption": "none"})

    def row(self) -> dict[str, Any]:
        """The fields of the entry without its blocks: its row in a page."""
        said = None if self.leaves_out is None else list(self.leaves_out)
        later = {
            "gtids_go_back": self.gtids_go_back,
            "started": self.started,
            "leaves_out": said,
        }
        return {
            "name": str(self.name),
            "size": self.size,
            "crc64nvme": crc64_hex(self.crc64),
            "format_event_time": iso_text(self.first_time),
            "server_id": self.server_id,
            "least_commit_us": self.least_commit_us,
            "greatest_commit_us": self.greatest_commit_us,
            "reached_us": self.reached_us,
            "commit_times": "exact" if self.commit_exact else "seconds",
            "gtid_set_before": self.gtid_set_before,
            "gtid_set_added": self.gtid_set_added,
            "transactions": self.transactions,
            "anonymous_transactions": self.anonymous_transactions,
            "events": self.events,
            "formats": list(self.formats),
            "damaged": list(self.damaged),
            "end": self.end,
            "next_binlog": self.next_binlog,
            "archived_at": iso_text(self.archived_at),
            **{name: value for name, value in later.items() if value is not None},
            **time_zone_field(self.time_zone),
        }

    def check_size(self, lineage: str, size: int) -> None:
        """Raise ArchiveError if the archived binlog does not have the entry's size."""
        if size != self.size:
            raise ArchiveError(
                f"{lineage}: {self.name} has {size} bytes, its entry says {self.size}",
                hint="one of them was changed; an older version may be right, if the bucket is "
                "versioned",
            )

    @classmethod
    def from_json(cls, data: bytes, key: str) -> Self:
        """Read an entry; ArchiveError if this version does not know it."""
        document = _parse_entry(data, key)
        with reading(key):
            return cls.from_row(document, blocks=each(_block, document["blocks"]))

    @classmethod
    def from_row(cls, value: Any, *, blocks: tuple[Block, ...] = ()) -> Self:
        """Read a row of a page. Raises KeyError, TypeError or ValueError."""
        document = mapping(value)
        archived_at = moment(document["archived_at"])
        greatest_us = or_none(microseconds, document["greatest_commit_us"])
        if "reached_us" in document:
            reached_us = or_none(microseconds, document["reached_us"])
        else:  # 0.2.0 did not write it
            reached_us = credible(greatest_us, us_of(archived_at))
        return cls(
            name=BinlogName.parse(document["name"]),
            size=count(document["size"]),
            crc64=crc64_from_hex(document["crc64nvme"]),
            first_time=moment(document["format_event_time"]),
            server_id=count(document["server_id"]),
            least_commit_us=or_none(microseconds, document["least_commit_us"]),
            greatest_commit_us=greatest_us,
            reached_us=reached_us,
            commit_exact=document["commit_times"] == "exact",
            gtid_set_before=gtids(document["gtid_set_before"]),
            gtid_set_added=gtids(document["gtid_set_added"]),
            transactions=count(document["transactions"]),
            anonymous_transactions=count(document["anonymous_transactions"]),
            events=count(document["events"]),
            formats=each(_format, document["formats"]),
            blocks=blocks,
            end=text(document["end"]),
            next_binlog=or_none(binlog_text, document["next_binlog"]),
            archived_at=archived_at,
            damaged=each(_range, document["damaged"]),
            gtids_go_back=or_none(flag, document.get("gtids_go_back")),
            started=or_none(flag, document.get("started")),
            leaves_out=or_none(said, document.get("leaves_out")),
            time_zone=or_none(time_zone, document.get("time_zone")),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryEnd:
    """The part of an entry that says which bytes it describes, and what the next one must match.

    A start and a reader of the bytes need no more: they pass over damage elsewhere in an entry.
    """

    size: int
    crc64: int
    gtid_set_before: str
    gtid_set_added: str
    anonymous_transactions: int
    next_binlog: str | None

    MOST: ClassVar[int] = Entry.MOST

    @classmethod
    def from_json(cls, data: bytes, key: str) -> Self:
        """Read it from an entry; ArchiveError if this version does not know it."""
        document = _parse_entry(data, key)
        with reading(key):
            return cls(
                size=count(document["size"]),
                crc64=crc64_from_hex(document["crc64nvme"]),
                gtid_set_before=gtids(document["gtid_set_before"]),
                gtid_set_added=gtids(document["gtid_set_added"]),
                anonymous_transactions=count(document["anonymous_transactions"]),
                next_binlog=or_none(binlog_text, document["next_binlog"]),
            )


def _block(value: Any) -> Block:
    document = mapping(value)
    return Block(
        offset=count(document["offset"]),
        size=count(document["size"]),
        crc64=crc64_from_hex(document["crc64"]),
        first_offset=or_none(count, document["first_offset"]),
        first_commit_us=or_none(microseconds, document["first_commit_us"]),
        first_gtid=or_none(gtids, document["first_gtid"]),
    )


def _format(value: Any) -> Mapping[str, Any]:
    document = mapping(value)
    return {
        "offset": count(document["offset"]),
        "server_version": text(document["server_version"]),
        "checksum": text(document["checksum"]),
    }


def _range(value: Any) -> Mapping[str, Any]:
    document = mapping(value)
    return {"begin": count(document["begin"]), "end": count(document["end"])}


def said(value: Any) -> tuple[str, ...]:
    """What a source said of itself, each as `setting=value`. Raises ValueError or TypeError."""
    return each(printable, value)


def flag(value: Any) -> bool:
    """A boolean. Raises ValueError."""
    if not isinstance(value, bool):
        raise ValueError(f"{value!r:.40} is neither true nor false")
    return value


def flavour_name(value: Any) -> Flavour:
    """A flavour. Raises ValueError."""
    if value == "mysql":
        return "mysql"
    if value == "mariadb":
        return "mariadb"
    raise ValueError(f"{value!r:.40} is not a flavour")


def _parse_entry(data: bytes, key: str) -> dict[str, Any]:
    document = parse(data, key, Entry.MOST)
    ways = (document.get("encoding"), document.get("encryption"))
    if ways != ("none", "none"):
        raise ArchiveError(
            f"{key}: its encoding or encryption, {ways!r:.100}, is not known to this version",
            hint="a newer binlog2s3 wrote it: use that one",
        )
    with reading(key):
        check_place(key, "entries", f"{binlog_text(document['name'])}.json")
    return document
