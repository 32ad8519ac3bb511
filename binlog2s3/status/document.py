"""A `Status` as a JSON document, and back. Pure.

`status --json`, /status and the writer's object in the bucket contain this document. It has every
field; a reader ignores fields of newer versions. A Status that is read back is judged as it was
when it was written.
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
    """The document for --json, /status and, without GTID sets, for the writer's object."""
    found: dict[str, Any] = {"format": FORMAT, **_encode(status)}
    judgement = judged(status)
    found["troubles"] = [_encode(trouble) for trouble in judgement.troubles]
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
        return _decode(Status, found)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"not a status document: {type(error).__name__} {error}") from error


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
    """A dataclass from a JSON object; missing fields get their defaults."""
    if not isinstance(value, Mapping):
        raise TypeError(f"{value!r:.40} is not an object")
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
        raise TypeError(f"{value!r:.40} is not a {plain.__name__}")
    return value


def _moment(text: str) -> datetime:
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError(f"{text!r} has no time zone")
    return moment
