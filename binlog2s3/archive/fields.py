"""The rules for the documents in the bucket and for each of their fields. Pure.

A new kind of document needs a class with `MOST` and `from_json`, made of these functions.

Law: every value that is accepted here is safe in a path, a key, a statement or a log line. Names
follow the grammar of docs/format.md, texts are printable, numbers have bounds, and a document
belongs to its key. Everything else is an ArchiveError that names the document.
"""

import json
import math
import re
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime
from typing import Any, TypeVar

from binlog2s3.binlog.names import BinlogName
from binlog2s3.binlog.zone import SystemZone
from binlog2s3.errors import ArchiveError, MisplacedError

FORMAT = 1
LINEAGE_ID = re.compile(r"[0-9]{8}T[0-9]{6}Z-[0-9a-f]{8}-[0-9a-f]{4}")
BACKUP_ID = re.compile(r"[0-9]{8}T[0-9]{6}Z-[0-9a-f]{8}")
SOURCE = re.compile(r"(?!\.\.?\Z)[A-Za-z0-9._-]{1,64}")

_MOST_NUMBER = 2**63 - 1
_MOST_DIGITS = 20
_MOST_US = 253_402_300_799_999_999
"""The last microsecond of the year 9999."""
_MOST_TEXT = 1024
_MOST_ERROR = 200
_SERVER_UUID = re.compile(r"[0-9A-Za-z-]{0,64}")
_GTIDS = re.compile(r"[0-9A-Za-z_:, -]*")
_BYTES_PER_OBJECT = 16
"""The least average length of lists and objects: empty ones need 30 times as much memory."""

Value = TypeVar("Value")


def parse(data: bytes, key: str, most: int) -> dict[str, Any]:
    """The fields of a document. Raises ArchiveError if it is not of format 1, or too large."""
    if len(data) > most:
        raise too_large(key, most)
    try:
        document = _loads(data)
    except (ValueError, RecursionError) as error:
        raise ArchiveError(
            f"{key} is not JSON: {error!s:.{_MOST_ERROR}}",
            hint="was it written by something else? `binlog2s3 verify` says what to do",
        ) from error
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        found = document.get("format") if isinstance(document, dict) else type(document).__name__
        raise ArchiveError(
            f"{key} is of format {found!r:.40}, this version knows {FORMAT}",
            hint="a newer binlog2s3 may have written it: use that one",
        )
    return document


def render(document: Mapping[str, Any]) -> bytes:
    """The bytes of a document: JSON, one field on a line."""
    return json.dumps(document, indent=1, ensure_ascii=False).encode() + b"\n"


def _loads(data: bytes) -> Any:
    if data.count(b"{") + data.count(b"[") > 64 + len(data) // _BYTES_PER_OBJECT:
        raise ValueError("it has too many lists and objects")
    return json.loads(
        data.decode(),
        object_pairs_hook=_fields,
        parse_int=_integer,
        parse_float=_finite,
        parse_constant=_finite,
    )


def too_large(key: str, most: int) -> ArchiveError:
    """The error for a document that is too large to be read."""
    return ArchiveError(
        f"{key} is larger than {most} bytes, the limit for documents of its kind",
        hint="was it written by something else? `binlog2s3 verify` says what to do",
    )


def _fields(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a field is there twice")
    return found


def _integer(digits: str) -> int:
    if len(digits) > _MOST_DIGITS:
        raise ValueError(f"a number of {len(digits)} digits")
    return int(digits)


def _finite(text: str) -> float:
    if not math.isfinite(number := float(text)):
        raise ValueError(f"{text:.40} is not a number")
    return number


class reading:  # noqa: N801 - reads as a verb
    """Turn a missing or wrong field into an ArchiveError that names the document."""

    def __init__(self, key: str) -> None:
        self._key = key

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, (KeyError, TypeError, ValueError, OverflowError, AttributeError)):
            raise ArchiveError(
                f"{self._key} is not as format {FORMAT} says: "
                f"{f'{type(error).__name__} {error}':.{_MOST_ERROR}}",
                hint="was it changed by hand?",
            ) from error


def check_place(key: str, *names: str) -> None:
    """Raise MisplacedError unless the key ends with these names, as the document says."""
    own = "/".join(names)
    if key != own and not key.endswith(f"/{own}"):
        raise MisplacedError(
            f"{key} is in the wrong place: according to its content, its key ends with {own}",
            hint="was it copied by hand? it is ignored",
        )


def count(value: Any) -> int:
    """A number of bytes, events and the like."""
    if type(value) is not int or not 0 <= value <= _MOST_NUMBER:
        raise ValueError(f"{value!r:.40} is not a count or size")
    return value


def microseconds(value: Any) -> int:
    """A moment, in microseconds since 1970."""
    if count(value) > _MOST_US:
        raise ValueError(f"{value} is after the year 9999")
    return int(value)


def number(value: Any) -> float:
    """A number, perhaps with a fraction."""
    if type(value) not in (int, float):
        raise TypeError(f"{value!r:.40} is not a number")
    return float(value)


def or_none(read: Callable[[Any], Value], value: Any) -> Value | None:
    """The value as `read` returns it; None for null."""
    return None if value is None else read(value)


def text(value: Any) -> str:
    """A printable text on one line."""
    if not isinstance(value, str) or not value.isprintable() or len(value) > _MOST_TEXT:
        raise ValueError(f"{value!r:.40} is not a text of up to {_MOST_TEXT} printable characters")
    return value


def _matching(pattern: "re.Pattern[str]", what: str) -> Callable[[Any], str]:
    def read(value: Any) -> str:
        if not isinstance(value, str) or not pattern.fullmatch(value):
            raise ValueError(f"{value!r:.60} is not a {what}")
        return value

    return read


lineage_name = _matching(LINEAGE_ID, "lineage's id")
source_name = _matching(SOURCE, "source's name")
backup_name = _matching(BACKUP_ID, "backup's id")
server_uuid = _matching(_SERVER_UUID, "server's uuid")
gtids = _matching(_GTIDS, "GTID set")


def binlog_text(value: Any) -> str:
    """A binlog's name, as text."""
    return str(BinlogName.parse(value))


def printable(value: Any) -> str:
    """Like `text`, of any length: GTID sets and names of binlogs, for people."""
    if not isinstance(value, str) or not value.isprintable():
        raise ValueError(f"{value!r:.40} is not a printable text")
    return value


def mapping(value: Any) -> Mapping[str, Any]:
    """An object. The caller checks its fields."""
    if not isinstance(value, dict):
        raise TypeError(f"{value!r:.40} is not an object")
    return value


def each(read: Callable[[Any], Value], values: Any) -> tuple[Value, ...]:
    """The values of a list, each as `read` returns it."""
    if not isinstance(values, list):
        raise TypeError(f"{values!r:.40} is not a list")
    return tuple(map(read, values))


def moment(value: Any) -> datetime:
    """A time with its zone, in UTC."""
    found = datetime.fromisoformat(value)
    if found.tzinfo is None:
        raise ValueError(f"{value!r:.40} has no time zone")
    return found.astimezone(UTC)


def time_zone(value: Any) -> SystemZone:
    """The source's system time zone."""
    document = mapping(value)
    return SystemZone(
        name=text(document["name"]),
        changes=tuple(
            (date.fromisoformat(day), _offset(seconds))
            for day, seconds in mapping(document["offsets"]).items()
        ),
    )


def _offset(value: Any) -> int:
    if type(value) is not int:
        raise ValueError(f"{value!r:.40} is not an offset from UTC")
    return value


def time_zone_field(zone: SystemZone | None) -> dict[str, Any]:
    """The field `time_zone` of a document; none if the zone is not known."""
    if zone is None:
        return {}
    offsets = {day.isoformat(): seconds for day, seconds in zone.changes}
    return {"time_zone": {"name": zone.name, "offsets": offsets}}
