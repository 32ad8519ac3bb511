"""The documents of a source's writers: heartbeats, turns and standbys. Pure.

docs/format.md describes them. A document that breaks the format, or does not belong to its key, is
reported and ignored; `fields` has the rules for each field.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any, ClassVar, Literal, Self

from binlog2s3.archive.documents import said
from binlog2s3.archive.fields import (
    FORMAT,
    binlog_text,
    check_place,
    count,
    gtids,
    lineage_name,
    mapping,
    moment,
    number,
    or_none,
    parse,
    reading,
    render,
    server_uuid,
    source_name,
    text,
    time_zone,
    time_zone_field,
)
from binlog2s3.binlog.names import BinlogName
from binlog2s3.binlog.transactions import is_credible
from binlog2s3.binlog.zone import SystemZone
from binlog2s3.formatting import iso_text, us_of

WriterState = Literal[
    "starting",
    "streaming",
    "idle",
    "catching up",
    "paused",
    "stalled",
    "source unreachable",
    "unlogged",
    "store unreachable",
    "stopped",
]
"""The states that a writer can have in its heartbeat."""

_INTERVALS = (1.0, 3600.0)  # as the bounds of --heartbeat-interval
DEFAULT_INTERVAL = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """A writer, of this generation and token, writes this lineage from now on."""

    number: int
    lineage: str
    generation: int
    token: str

    MOST: ClassVar[int] = 1 << 20

    def to_json(self) -> bytes:
        """The document turns/<number>.json."""
        return render({"format": FORMAT, **asdict(self)})

    @classmethod
    def from_json(cls, data: bytes, key: str) -> Self:
        """Read a turn; ArchiveError if it breaks the format, or has another key."""
        document = parse(data, key, cls.MOST)
        with reading(key):
            turn = cls(
                number=count(document["number"]),
                lineage=lineage_name(document["lineage"]),
                generation=count(document["generation"]),
                token=text(document["token"]),
            )
        check_place(key, "turns", f"{turn.number:08d}.json")
        return turn


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """A position in a lineage: an offset in a binlog, and the GTIDs executed before it."""

    binlog: str
    offset: int
    gtid_set: str

    @property
    def place(self) -> tuple[BinlogName, int]:
        """For comparison within a lineage. Raises ValueError if `binlog` is not a valid name."""
        return (BinlogName.parse(self.binlog), self.offset)


@dataclass(frozen=True, slots=True, kw_only=True)
class Unlogged:
    """The source was seen to write no binlog: rows are missing before its next start.

    That start began one of the binlogs from `first` to `last`; `last` is None until the source was
    seen to write a binlog again. `since`: when it was first seen, by the writer's clock.
    """

    since: datetime
    first: str
    last: str | None = None

    def covers(self, name: BinlogName) -> bool:
        """Whether a start of the server that began this binlog may have ended it."""
        if self.is_renamed(name) or name < BinlogName.parse(self.first):
            return False
        return self.last is None or name <= BinlogName.parse(self.last)

    def is_renamed(self, name: BinlogName) -> bool:
        """Whether this binlog has another base name: a start has ended it, and changed log_bin."""
        return name.prefix != BinlogName.parse(self.first).prefix

    def to_document(self) -> dict[str, Any]:
        """As it is in a heartbeat."""
        return {"since": iso_text(self.since), "first": self.first, "last": self.last}

    @classmethod
    def from_document(cls, value: Any) -> Self:
        """Read it from a heartbeat. Raises KeyError, TypeError or ValueError."""
        document = mapping(value)
        return cls(
            since=moment(document["since"]),
            first=binlog_text(document["first"]),
            last=or_none(binlog_text, document["last"]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """The process that writes an object below `live/`, and renews it every `interval_seconds`.

    `since` is when it started, `at` when it last wrote the object, both by its own clock.
    """

    token: str
    source: str
    host: str
    pid: int
    version: str
    since: datetime
    at: datetime
    interval_seconds: float

    @property
    def interval(self) -> float:
        """Seconds between two heartbeats; 30 if the object has a value that no option allows."""
        least, most = _INTERVALS
        return self.interval_seconds if least <= self.interval_seconds <= most else DEFAULT_INTERVAL

    def _document(self) -> dict[str, Any]:
        return {
            "token": self.token,
            "source": self.source,
            "host": self.host,
            "pid": self.pid,
            "version": self.version,
            "since": iso_text(self.since),
            "at": iso_text(self.at),
            "interval_seconds": self.interval_seconds,
        }


def _process(document: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a Process. Raises KeyError, TypeError or ValueError."""
    return {
        "token": text(document["token"]),
        "source": source_name(document["source"]),
        "host": text(document["host"]),
        "pid": count(document["pid"]),
        "version": text(document["version"]),
        "since": moment(document["since"]),
        "at": moment(document["at"]),
        "interval_seconds": number(document["interval_seconds"]),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat(Process):
    """A writer's own object: who writes, what is durable, and up to when nothing is missing.

    `covered_until`: all commits up to this time, by the source's clock, are durable. `status`: the
    rest of its status (`status.document`); None from an older version. `unlogged`: of `lineage`.
    `leaves_out`: as in an entry. `time_zone`: the source's when it was last asked; None if it was
    not.
    """

    generation: int
    state: str
    lineage: str | None
    server_uuid: str
    durable: Position | None
    server: Position | None
    covered_until: datetime | None
    status: Mapping[str, Any] | None = None
    unlogged: Unlogged | None = None
    leaves_out: tuple[str, ...] | None = None
    time_zone: SystemZone | None = None

    MOST: ClassVar[int] = 1 << 20

    @property
    def rank(self) -> tuple[int, str]:
        """The writer with the greatest rank continues, the others stop."""
        return (self.generation, self.token)

    @property
    def vouched_until(self) -> datetime | None:
        """`covered_until`, or when the writer said so, if it cannot be as late as that."""
        until = self.covered_until
        return self.at if until and not is_credible(us_of(until), us_of(self.at)) else until

    def to_json(self) -> bytes:
        """The document of live/<source>/writers/.

        Without GTIDs and status if it would exceed `MOST` bytes with them.
        """
        whole = self.rendered()
        if len(whole) <= self.MOST:
            return whole
        places = (replace(one, gtid_set="") if one else None for one in (self.durable, self.server))
        durable, server = places
        return replace(self, durable=durable, server=server, status=None).rendered()

    def rendered(self) -> bytes:
        """The complete document, of any size."""
        return render(
            {
                "format": FORMAT,
                "generation": self.generation,
                **self._document(),
                "state": self.state,
                "lineage": self.lineage,
                "server_uuid": self.server_uuid,
                "durable": asdict(self.durable) if self.durable else None,
                "server": asdict(self.server) if self.server else None,
                "covered_until": iso_text(self.covered_until) if self.covered_until else None,
                "status": self.status,
                "unlogged": self.unlogged.to_document() if self.unlogged else None,
                "leaves_out": None if self.leaves_out is None else list(self.leaves_out),
                **time_zone_field(self.time_zone),
            }
        )

    @classmethod
    def from_json(cls, data: bytes, key: str) -> Self:
        """Read a heartbeat; ArchiveError if it breaks the format, or has another key."""
        document = parse(data, key, cls.MOST)
        with reading(key):
            found = cls(
                generation=count(document["generation"]),
                **_process(document),
                state=text(document["state"]),
                lineage=or_none(lineage_name, document["lineage"]),
                server_uuid=server_uuid(document["server_uuid"]),
                durable=or_none(_position, document["durable"]),
                server=or_none(_position, document["server"]),
                covered_until=or_none(moment, document["covered_until"]),
                status=or_none(mapping, document.get("status")),
                unlogged=or_none(Unlogged.from_document, document.get("unlogged")),
                leaves_out=or_none(said, document.get("leaves_out")),
                time_zone=or_none(time_zone, document.get("time_zone")),
            )
        name = f"{found.generation:06d}-{found.token}.json"
        check_place(key, "live", found.source, "writers", name)
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Standby(Process):
    """The object of a process that waits to become the writer.

    `unsaved_bytes`: bytes in its spool that may not be in the bucket.
    """

    unsaved_bytes: int = 0

    MOST: ClassVar[int] = 1 << 16

    def to_json(self) -> bytes:
        """The document of live/<source>/standbys/."""
        return render({"format": FORMAT, **self._document(), "unsaved_bytes": self.unsaved_bytes})

    @classmethod
    def from_json(cls, data: bytes, key: str) -> Self:
        """Read it; ArchiveError if it breaks the format, or has another key."""
        document = parse(data, key, cls.MOST)
        with reading(key):
            found = cls(
                **_process(document),
                unsaved_bytes=count(document["unsaved_bytes"]),
            )
        check_place(key, "live", found.source, "standbys", f"{found.token}.json")
        return found


def _position(value: Any) -> Position:
    document = mapping(value)
    return Position(
        binlog=binlog_text(document["binlog"]),
        offset=count(document["offset"]),
        gtid_set=gtids(document["gtid_set"]),
    )
