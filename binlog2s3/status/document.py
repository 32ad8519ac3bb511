"""A `Status` as a JSON document, and back.

Place in the flow: `status --json`, /status and the writer's object in the bucket are this document;
`from_bucket` and the socket's client read it back.

Law: pure. A document has every field; what a newer version adds is passed over. A Status that is
read back is judged as it was when it was written.
"""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from datetime import datetime
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from binlog2s3.formatting import iso_text
from binlog2s3.status.model import Status
from binlog2s3.status.severity import judged

FORMAT = 1


def document(status: Status) -> dict[str, Any]:
    """The document of --json, of /status and, without GTID sets, of the writer's object."""
    found: dict[str, Any] = {"format": FORMAT, **_encode(status)}
    judgement = judged(status)
    found["troubles"] = [_encode(trouble) for trouble in judgement.troubles]
    found["severity"] = judgement.severity
    found["healthy"] = judgement.healthy
    found["purge"]["statement"] = status.purge.statement
    return found


def without_gtids(found: Mapping[str, Any]) -> dict[str, Any]:
    """A document whose GTID sets, which may be long, are empty: they stand beside it."""
    short = dict(found)
    if short.get("durable"):
        short["durable"] = {**short["durable"], "gtid_set": ""}
    server = short.get("server") or {}
    if server.get("position"):
        short["server"] = {**server, "position": {**server["position"], "gtid_set": ""}}
    return short


def from_document(found: Mapping[str, Any]) -> Status:
    """Read a document back; what a newer version adds is passed over. Raises ValueError."""
    if found.get("format") != FORMAT:
        raise ValueError(f"status of format {found.get('format')!r}, this version knows {FORMAT}")
    try:
        return _decode(Status, found)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"no status document: {type(error).__name__} {error}") from error


def _encode(value: Any) -> Any:
    if is_dataclass(value):
        return {one.name: _encode(getattr(value, one.name)) for one in fields(value)}
    if isinstance(value, datetime):
        return iso_text(value)
    if isinstance(value, tuple):
        return [_encode(one) for one in value]
    return value


T = TypeVar("T")


def _decode(kind: type[T], value: Any) -> T:
    """A dataclass out of a JSON object; fields that are not there have their defaults."""
    if not isinstance(value, Mapping):
        raise TypeError(f"{value!r:.40} is no object")
    hints = get_type_hints(kind)
    given = {
        one.name: _decoded(hints[one.name], value[one.name])
        for one in fields(kind)  # type: ignore[arg-type]
        if one.name in value
    }
    return kind(**given)


def _decoded(kind: Any, value: Any) -> Any:
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        some = next(one for one in inner if one is not NoneType)
        return None if value is None else _decoded(some, value)
    if origin is tuple:
        return tuple(_decoded(inner[0], one) for one in value)
    if isinstance(kind, type) and is_dataclass(kind):
        return _decode(kind, value)
    if kind is datetime:
        return _moment(value)
    plain = {Literal: str}.get(origin, kind)
    if plain is float and type(value) is int:
        return float(value)
    if not isinstance(value, plain):
        raise TypeError(f"{value!r:.40} is no {plain.__name__}")
    return value


def _moment(text: str) -> datetime:
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError(f"{text!r} has no time zone")
    return moment
