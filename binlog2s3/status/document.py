"""A `Status` as a JSON document, and back. Pure.

`status --json`, /status and the writer's object in the bucket contain this document. It has every
field; a reader ignores fields of newer versions. A Status that is read back is judged as it was
when it was written.
"""

from collections.abc import Mapping
from typing import Annotated, Any

from binlog2s3.archive.codec import (
    FORMAT,
    Printed,
    PrintedDocument,
    as_printed,
    converted,
    members,
    of,
)
from binlog2s3.status.model import Purge, Severity, Status


class PrintedPurge(Purge, Printed):
    statement: str | None


class PrintedStatus(Status, PrintedDocument):
    """The document: what is known, and how it is judged."""

    purge: PrintedPurge
    severity: Severity
    healthy: bool


def document(status: Status) -> dict[str, Any]:
    """The document for --json, /status and, without GTID sets, for the writer's object."""
    judged = {"troubles": status.all_troubles, "severity": status.severity}
    return as_printed(PrintedStatus, members(status) | judged | {"healthy": status.healthy})


class PrintedStatuses(PrintedDocument):
    """The document of several sources."""

    target: str
    sources: tuple[Annotated[dict[str, Any], document], ...] = of("statuses")


def without_gtids(found: Mapping[str, Any]) -> dict[str, Any]:
    """The document with empty GTID sets: they may be long, and are elsewhere in the same object."""
    short = dict(found)
    if short.get("durable"):
        short["durable"] = {**short["durable"], "gtid_set": ""}
    server = short.get("server") or {}
    if server.get("position"):
        short["server"] = {**server, "position": {**server["position"], "gtid_set": ""}}
    return short


def from_document(found: Mapping[str, Any]) -> Status:
    """Read a document back; fields of newer versions are ignored. Raises ValueError."""
    if found.get("format") != FORMAT:
        raise ValueError(f"status of format {found.get('format')!r}, this version reads {FORMAT}")
    try:
        return converted(found, Status)
    except ValueError as error:
        raise ValueError(f"not a status document: {error}") from error
