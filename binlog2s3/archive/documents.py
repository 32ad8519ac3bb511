"""The documents of format 1: lineages, entries, heartbeats. Pure.

Place in the flow: `catalog` finds and reads them; the uploader, the daemon and `verify --repair`
write them. docs/format.md describes them for strangers.

Law: a document that is not as the format says is never guessed at: it is named and left alone.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, Literal, Self, get_args

from binlog2s3.archive.parts import BLOCK_SIZE, Block
from binlog2s3.binlog.checksum import crc64_from_hex, crc64_hex
from binlog2s3.binlog.gtid import Flavour
from binlog2s3.binlog.names import BinlogName
from binlog2s3.errors import ArchiveError

FORMAT = 1
_MOST = 2**63 - 1
Join = Literal["exact", "gap", "unknown"]
WriterState = Literal[
    "starting",
    "streaming",
    "idle",
    "catching up",
    "paused",
    "stalled",
    "source unreachable",
    "store unreachable",
    "superseded",
    "stopped",
]
"""What a writer may say of itself in its object."""


def lineage_id(first_event: datetime, server_uuid: str, token: str) -> str:
    """`<UTC time of its first binlog's format event>-<first 8 of the uuid>-<4 random>`."""
    return f"{first_event.astimezone(UTC):%Y%m%dT%H%M%SZ}-{server_uuid[:8].lower()}-{token}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Parent:
    """Where a lineage's history came from: the end, or the last common point, of another one.

    `binlog` is None where the other one has not a byte. `missing` is what lies between them, as
    GTIDs or as names of binlogs; "" where nothing does or nobody knows.
    """

    lineage: str
    binlog: str | None
    offset: int
    gtid_set: str
    join: Join
    missing: str

    @property
    def place(self) -> str:
        """Where that is, for people."""
        return f"{self.lineage} at {f'{self.binlog}:{self.offset}' if self.binlog else 'its begin'}"

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Self:
        """Read it from lineage.json. Raises KeyError, TypeError or ValueError."""
        name, join = document["binlog"], document["join"]
        if join not in get_args(Join):
            raise ValueError(f"{join!r} is no join")
        return cls(
            lineage=str(document["lineage"]),
            binlog=str(BinlogName.parse(name)) if name is not None else None,
            offset=_count(document["offset"]),
            gtid_set=str(document["gtid_set"]),
            join=join,
            missing=str(document["missing"]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Lineage:
    """One unbroken history of one server. `gtid_set` is what was executed before it begins."""

    id: str
    source: str
    server_uuid: str
    flavour: Flavour
    server_version: str
    first_binlog: BinlogName
    first_binlog_time: datetime
    gtid_set: str
    parent: Mapping[str, Any] | None = None

    @property
    def origin(self) -> Parent | None:
        """The parent, field by field; ArchiveError if it is not as format 1 says."""
        if not self.parent:
            return None
        with _reading(f"the parent in the lineage.json of {self.id}"):
            return Parent.from_document(self.parent)

    def to_json(self) -> bytes:
        """The document lineage.json."""
        return _render(
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
                "first_binlog_time": _time(self.first_binlog_time),
                "gtid_set": self.gtid_set,
                "parent": self.parent,
            }
        )

    @classmethod
    def from_json(cls, data: bytes, key: str) -> Self:
        """Read lineage.json; ArchiveError if it is not one of this format."""
        document = _parse(data, key)
        with _reading(key):
            return cls(
                id=str(document["lineage"]),
                source=str(document["source"]),
                server_uuid=str(document["server"]["uuid"]),
                flavour=_flavour(document["server"]["flavour"]),
                server_version=str(document["server"]["version"]),
                first_binlog=BinlogName.parse(document["first_binlog"]),
                first_binlog_time=_from_time(document["first_binlog_time"]),
                gtid_set=str(document["gtid_set"]),
                parent=document["parent"],
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """From here on a writer, of this generation and token, writes this lineage."""

    number: int
    lineage: str
    generation: int
    token: str

    def to_json(self) -> bytes:
        """The document turns/<number>.json."""
        return _render({"format": FORMAT, **asdict(self)})

    @classmethod
    def from_json(cls, data: bytes, key: str) -> Self:
        """Read a turn; ArchiveError if it is not one of this format."""
        document = _parse(data, key)
        with _reading(key):
            return cls(
                number=_count(document["number"]),
                lineage=str(document["lineage"]),
                generation=_count(document["generation"]),
                token=str(document["token"]),
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """What is known of an archived binlog without reading it. Sizes in bytes, `_us` in UTC.

    `end` is how it ends: rotate, stop or crash. `next_binlog` is what its ROTATE names.
    """

    name: BinlogName
    size: int
    crc64: int
    first_time: datetime
    server_id: int
    least_commit_us: int | None
    greatest_commit_us: int | None
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

    def to_json(self) -> bytes:
        """The document entries/<name>.json."""
        return _render(
            {
                "format": FORMAT,
                "name": str(self.name),
                "size": self.size,
                "crc64nvme": crc64_hex(self.crc64),
                "format_event_time": _time(self.first_time),
                "server_id": self.server_id,
                "least_commit_us": self.least_commit_us,
                "greatest_commit_us": self.greatest_commit_us,
                "commit_times": "exact" if self.commit_exact else "seconds",
                "gtid_set_before": self.gtid_set_before,
                "gtid_set_added": self.gtid_set_added,
                "transactions": self.transactions,
                "anonymous_transactions": self.anonymous_transactions,
                "events": self.events,
                "formats": list(self.formats),
                "block_size": BLOCK_SIZE,
                "blocks": [
                    asdict(block) | {"crc64": crc64_hex(block.crc64)} for block in self.blocks
                ],
                "damaged": list(self.damaged),
                "end": self.end,
                "next_binlog": self.next_binlog,
                "encoding": "none",
                "encryption": "none",
                "archived_at": _time(self.archived_at),
            }
        )

    @classmethod
    def from_json(cls, data: bytes, key: str) -> Self:
        """Read an entry; ArchiveError if this is none that this version knows."""
        document = _parse_entry(data, key)
        with _reading(key):
            return cls(
                name=BinlogName.parse(document["name"]),
                size=_count(document["size"]),
                crc64=crc64_from_hex(document["crc64nvme"]),
                first_time=_from_time(document["format_event_time"]),
                server_id=_count(document["server_id"]),
                least_commit_us=_integer_or_none(document["least_commit_us"]),
                greatest_commit_us=_integer_or_none(document["greatest_commit_us"]),
                commit_exact=document["commit_times"] == "exact",
                gtid_set_before=str(document["gtid_set_before"]),
                gtid_set_added=str(document["gtid_set_added"]),
                transactions=_count(document["transactions"]),
                anonymous_transactions=_count(document["anonymous_transactions"]),
                events=_count(document["events"]),
                formats=tuple(dict(format_) for format_ in document["formats"]),
                blocks=tuple(_block(block) for block in document["blocks"]),
                end=str(document["end"]),
                next_binlog=_text_or_none(document["next_binlog"]),
                archived_at=_from_time(document["archived_at"]),
                damaged=tuple(dict(range_) for range_ in document["damaged"]),
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryEnd:
    """The part of an entry that the next binlog must fit to."""

    size: int
    gtid_set_before: str
    gtid_set_added: str
    anonymous_transactions: int
    next_binlog: str | None

    @classmethod
    def from_json(cls, data: bytes, key: str) -> Self:
        """Read it from an entry; ArchiveError if this is no entry that this version knows."""
        document = _parse_entry(data, key)
        with _reading(key):
            return cls(
                size=_count(document["size"]),
                gtid_set_before=str(document["gtid_set_before"]),
                gtid_set_added=str(document["gtid_set_added"]),
                anonymous_transactions=_count(document["anonymous_transactions"]),
                next_binlog=document["next_binlog"],
            )


def crc64_of(data: bytes, key: str) -> int:
    """The CRC64NVME of the whole binlog that an entry is of; ArchiveError as for an entry."""
    with _reading(key):
        return crc64_from_hex(_parse(data, key)["crc64nvme"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """A place in a history: `offset` bytes into a binlog, with the GTIDs executed up to there."""

    binlog: str
    offset: int
    gtid_set: str

    @property
    def place(self) -> tuple[BinlogName, int]:
        """To be compared within a lineage. Raises ValueError if `binlog` is no name."""
        return (BinlogName.parse(self.binlog), self.offset)


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """A writer's own object: who writes, what is durable, until when everything is here.

    `covered_until` is the source's clock at a moment up to which all commits are durable. `status`
    is what else it knew of itself then (`status.model.document`); None from an older version.
    """

    generation: int
    token: str
    source: str
    host: str
    pid: int
    version: str
    since: datetime
    at: datetime
    interval_seconds: float
    state: str
    lineage: str | None
    server_uuid: str
    durable: Position | None
    server: Position | None
    covered_until: datetime | None
    status: Mapping[str, Any] | None = None

    @property
    def rank(self) -> tuple[int, str]:
        """Greater is the writer that goes on."""
        return (self.generation, self.token)

    def to_json(self) -> bytes:
        """The document of live/<source>/writers/."""
        return _render(
            {
                "format": FORMAT,
                "generation": self.generation,
                "token": self.token,
                "source": self.source,
                "host": self.host,
                "pid": self.pid,
                "version": self.version,
                "since": _time(self.since),
                "at": _time(self.at),
                "interval_seconds": self.interval_seconds,
                "state": self.state,
                "lineage": self.lineage,
                "server_uuid": self.server_uuid,
                "durable": asdict(self.durable) if self.durable else None,
                "server": asdict(self.server) if self.server else None,
                "covered_until": _time(self.covered_until) if self.covered_until else None,
                "status": self.status,
            }
        )

    @classmethod
    def from_json(cls, data: bytes, key: str) -> Self:
        """Read a writer's object; ArchiveError if it is not one of this format."""
        document = _parse(data, key)
        with _reading(key):
            return cls(
                generation=_count(document["generation"]),
                token=str(document["token"]),
                source=str(document["source"]),
                host=str(document["host"]),
                pid=_count(document["pid"]),
                version=str(document["version"]),
                since=_from_time(document["since"]),
                at=_from_time(document["at"]),
                interval_seconds=float(document["interval_seconds"]),
                state=str(document["state"]),
                lineage=_name_or_none(document["lineage"]),
                server_uuid=str(document["server_uuid"]),
                durable=_position(document["durable"]),
                server=_position(document["server"]),
                covered_until=_from_time(document["covered_until"])
                if document["covered_until"]
                else None,
                status=_mapping_or_none(document.get("status")),
            )


def _position(document: Mapping[str, Any] | None) -> Position | None:
    if not document:
        return None
    return Position(
        binlog=str(BinlogName.parse(document["binlog"])),
        offset=_count(document["offset"]),
        gtid_set=str(document["gtid_set"]),
    )


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= _MOST:
        raise ValueError(f"{value!r:.40} is no count or size")
    return value


def _integer_or_none(value: Any) -> int | None:
    return None if value is None else int(value)


def _text_or_none(value: Any) -> str | None:
    return None if value is None else str(value)


def _name_or_none(value: Any) -> str | None:
    if not isinstance(value, str | None):
        raise TypeError(f"{value!r} is no text")
    return value


def _mapping_or_none(value: Any) -> Mapping[str, Any] | None:
    return value if isinstance(value, Mapping) else None


def _block(document: Mapping[str, Any]) -> Block:
    return Block(
        offset=_count(document["offset"]),
        size=_count(document["size"]),
        crc64=crc64_from_hex(document["crc64"]),
        first_offset=_integer_or_none(document["first_offset"]),
        first_commit_us=_integer_or_none(document["first_commit_us"]),
        first_gtid=_text_or_none(document["first_gtid"]),
    )


def _flavour(text: str) -> Flavour:
    if text == "mysql":
        return "mysql"
    if text == "mariadb":
        return "mariadb"
    raise ValueError(f"{text!r} is no flavour")


def _render(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, indent=1, ensure_ascii=False).encode() + b"\n"


def _parse(data: bytes, key: str) -> dict[str, Any]:
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ArchiveError(
            f"{key} is no JSON: {error}",
            hint="was it written by something else? `binlog2s3 verify` says what to do",
        ) from error
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        found = document.get("format") if isinstance(document, dict) else type(document).__name__
        raise ArchiveError(
            f"{key} is of format {found!r}, this version knows {FORMAT}",
            hint="a newer binlog2s3 may have written it: use that one",
        )
    return document


def _parse_entry(data: bytes, key: str) -> dict[str, Any]:
    document = _parse(data, key)
    ways = (document.get("encoding"), document.get("encryption"))
    if ways != ("none", "none"):
        raise ArchiveError(
            f"{key}: its encoding or encryption, {ways}, is not known to this version",
            hint="a newer binlog2s3 wrote it: use that one",
        )
    return document


class _reading:  # noqa: N801 - reads as a verb
    """Turn a missing or wrong field into an ArchiveError that names the document."""

    def __init__(self, key: str) -> None:
        self._key = key

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, (KeyError, TypeError, ValueError, OverflowError)):
            raise ArchiveError(
                f"{self._key} is not as format {FORMAT} says: {type(error).__name__} {error}",
                hint="was it changed by hand?",
            ) from error


def _time(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def _from_time(text: str) -> datetime:
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError(f"{text!r} has no time zone")
    return moment
