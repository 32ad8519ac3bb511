"""The documents of a source's writers: heartbeats, turns, standbys, and their end. Pure.

docs/format.md describes them. A document that breaks the format, or does not belong to its key, is
reported and ignored; `codec` has the rules for each field.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, ClassVar, Literal

from binlog2s3.archive.codec import (
    Count,
    Document,
    GtidText,
    LineageId,
    Moment,
    ServerUuid,
    SourceName,
    Text,
    later,
    unchecked,
)
from binlog2s3.binlog.gtid import Gtids
from binlog2s3.binlog.names import BinlogName, FilePosition
from binlog2s3.binlog.transactions import is_credible
from binlog2s3.binlog.zone import SystemZone
from binlog2s3.formatting import us_of

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
class Turn(Document):
    """A writer, of this generation and token, writes this lineage from now on.

    turns/<number>.json in the bucket.
    """

    number: Count
    lineage: LineageId
    generation: Count
    token: Text

    MOST: ClassVar[int] = 1 << 20

    @property
    def key_end(self) -> tuple[str, ...]:
        return ("turns", f"{self.number:08d}.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """A position in a lineage: an offset in a binlog, and the GTIDs executed before it."""

    binlog: BinlogName
    offset: Count
    gtid_set: GtidText

    @classmethod
    def of(cls, position: FilePosition, gtids: Gtids | None) -> "Position":
        """A position after these GTIDs; None: they are not known."""
        text = str(gtids) if gtids is not None else ""
        return cls(binlog=position.binlog, offset=position.offset, gtid_set=text)

    @property
    def file_position(self) -> FilePosition:
        """For comparison within a lineage."""
        return FilePosition(self.binlog, self.offset)


@dataclass(frozen=True, slots=True, kw_only=True)
class Unlogged:
    """The source was seen to write no binlog: rows are missing before its next start.

    That start began one of the binlogs from `first` to `last`; `last` is None until the source was
    seen to write a binlog again. `since`: when it was first seen, by the writer's clock.
    """

    since: Moment
    first: BinlogName
    last: BinlogName | None

    def covers(self, name: BinlogName) -> bool:
        """Whether a start of the server that began this binlog may have ended it."""
        if self.is_renamed(name) or name < self.first:
            return False
        return self.last is None or name <= self.last

    def is_renamed(self, name: BinlogName) -> bool:
        """Whether this binlog has another base name: a start has ended it, and changed log_bin."""
        return name.prefix != self.first.prefix


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """The process that writes an object below `live/`, and renews it every `interval_seconds`.

    `since` is when it started, `at` when it last wrote the object, both by its own clock.
    """

    token: Text
    source: SourceName
    host: Text
    pid: Count
    version: Text
    since: Moment
    at: Moment
    interval_seconds: float

    @property
    def interval(self) -> float:
        """Seconds between two heartbeats; 30 if the object has a value that no option allows."""
        least, most = _INTERVALS
        return self.interval_seconds if least <= self.interval_seconds <= most else DEFAULT_INTERVAL


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat(Process, Document):
    """A writer's own object: who writes, what is durable, and up to when nothing is missing.

    `covered_until`: all commits up to this time, by the source's clock, are durable. `status`: the
    rest of its status (`status.model`); None from an older version. `unlogged`: of `lineage`.
    `leaves_out`: as in an entry. `time_zone`: the source's when it was last asked; None if it was
    not.
    """

    generation: Count
    state: Text
    lineage: LineageId | None
    server_uuid: ServerUuid
    durable: Position | None
    server: Position | None
    covered_until: Moment | None
    status: Mapping[str, Any] | None = unchecked()
    unlogged: Unlogged | None = None
    leaves_out: tuple[str, ...] | None = None
    time_zone: SystemZone | None = later(compare=True)

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

    @property
    def key_end(self) -> tuple[str, ...]:
        return ("live", self.source, "writers", f"{self.generation:06d}-{self.token}.json")

    @property
    def fitting(self) -> "Heartbeat":
        """It, without GTIDs and status if it would exceed `MOST` bytes with them."""
        if len(self.to_json()) <= self.MOST:
            return self
        positions = (
            replace(position, gtid_set="") if position else None
            for position in (self.durable, self.server)
        )
        durable, server = positions
        return replace(self, durable=durable, server=server, status=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Standby(Process, Document):
    """The object of a process that waits to become the writer.

    `unsaved_bytes`: bytes in its spool that may not be in the bucket.
    """

    unsaved_bytes: Count

    MOST: ClassVar[int] = 1 << 16

    @property
    def key_end(self) -> tuple[str, ...]:
        return ("live", self.source, "standbys", f"{self.token}.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class Retired(Document):
    """A source that has ended, as its operator said then, so that it raises no more alarms.

    `prune --retire` writes it: retired.json in the bucket. A writer that was alive later overrides
    it.
    """

    source: SourceName
    retired_at: Moment

    MOST: ClassVar[int] = 1 << 20

    @property
    def key_end(self) -> tuple[str, ...]:
        return ("archive", self.source, "retired.json")
