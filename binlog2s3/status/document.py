"""A `Status` as a JSON document, and back. Pure.

`status --json`, /status and the writer's object in the bucket contain this document. It has every
field; a reader ignores fields of newer versions. A Status that is read back is judged as it was
when it was written.
"""

from collections.abc import Mapping
from typing import Any

from binlog2s3.archive.codec import FORMAT, as_fields, converted
from binlog2s3.status.model import Status
from binlog2s3.status.severity import judged


def document(status: Status) -> dict[str, Any]:
    """The document for --json, /status and, without GTID sets, for the writer's object."""
    found: dict[str, Any] = {"format": FORMAT, **as_fields(status)}
    judgement = judged(status)
    found["troubles"] = [as_fields(trouble) for trouble in judgement.troubles]
    found["severity"] = judgement.severity
    found["healthy"] = judgement.healthy
    found["purge"]["statement"] = status.purge.statement
    return found


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
