"""Documents as JSON, and back, by the types of their fields.

A document of the bucket is a frozen dataclass below `Document`. Its annotations, made of the types
below, say what each field may be; `to_json` and `from_json` follow them. Field names are those of
docs/format.md.

Law: every value that is accepted here is safe in a path, a key, a statement or a log line. Names
follow the grammar of docs/format.md, texts are printable, numbers have bounds, and a document
belongs to its key. Everything else is an ArchiveError that names the document. Unknown fields are
ignored.
"""

import json
import math
import re
from collections.abc import Callable, Hashable, Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from datetime import datetime
from functools import cache, lru_cache, partial
from operator import attrgetter
from threading import Lock
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    ClassVar,
    Protocol,
    Self,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

import msgspec
from msgspec import Meta

from binlog2s3.binlog.checksum import crc64_from_hex, crc64_hex
from binlog2s3.errors import ArchiveError, MisplacedError
from binlog2s3.formatting import iso_text

FORMAT = 1
LINEAGE_ID = re.compile(r"[0-9]{8}T[0-9]{6}Z-[0-9a-f]{8}-[0-9a-f]{4}")
BACKUP_ID = re.compile(r"[0-9]{8}T[0-9]{6}Z-[0-9a-f]{8}")
SOURCE = re.compile(r"(?!\.\.?\Z)[A-Za-z0-9._-]{1,64}")

_MOST_NUMBER = 2**63 - 1
_MOST_DIGITS = 20
_MOST_US = 253_402_300_799_999_999
"""The last microsecond of the year 9999."""
_MOST_ERROR = 200
_LATER, _BESIDE, _UNCHECKED = "later", "beside", "unchecked"
_BYTES_PER_OBJECT = 16
"""The least average length of lists and objects: empty ones need 30 times as much memory."""


def _or_null(value: Any) -> str | None:
    return None if value is None else str(value) or None


def _commit_times(is_exact: bool) -> str:
    return "exact" if is_exact else "seconds"


def _whole(pattern: "re.Pattern[str]") -> Meta:
    return Meta(pattern=rf"\A(?:{pattern.pattern})\Z")


Count = Annotated[int, Meta(ge=0, le=_MOST_NUMBER)]
"""A number of bytes, events and the like."""
Microseconds = Annotated[int, Meta(ge=0, le=_MOST_US)]
"""A moment, in microseconds since 1970."""
Moment = Annotated[datetime, Meta(tz=True)]
"""A time in UTC."""
Text = Annotated[str, Meta(max_length=1024)]
"""A text on one line. All texts are printable."""
GtidText = Annotated[str, Meta(pattern=r"\A[0-9A-Za-z_:, -]*\Z")]
"""A GTID, or a set of them."""
LineageId = Annotated[str, _whole(LINEAGE_ID)]
BackupId = Annotated[str, _whole(BACKUP_ID)]
SourceName = Annotated[str, _whole(SOURCE)]
ServerUuid = Annotated[str, Meta(pattern=r"\A[0-9A-Za-z-]{0,64}\Z")]


When = Annotated[str, lru_cache(maxsize=16)(iso_text)]
"""What is printed of a time: of microseconds since 1970, or of a datetime."""
TextOrNull = Annotated[str, _or_null]
"""What is printed of a text that may be empty."""
CommitTimes = Annotated[str, _commit_times]
"""What is printed of whether commit times are exact."""
Seconds = Annotated[float, partial(round, ndigits=3)]
"""What is printed of a duration."""
Many = Annotated[int, len]
"""What is printed of a list of which the number counts."""
AsText = Annotated[str, str]
"""What is printed as its text."""
Named = Annotated[str, attrgetter("name")]
"""What is printed of what has a name."""


class Crc64(int):
    """A CRC64NVME: 16 lower-case hex digits in a document."""

    __slots__ = ()

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read it. Raises ValueError."""
        return cls(crc64_from_hex(text))

    def __str__(self) -> str:
        return crc64_hex(self)


def later(default: Any = None, *, compare: bool = False) -> Any:
    """A field that a later version added: it is not written while it has its default."""
    return field(default=default, compare=compare, metadata={_LATER: True})


def beside() -> Any:
    """A field of the dataclass that is no part of the document."""
    return field(default=None, compare=False, metadata={_BESIDE: True})


def unchecked() -> Any:
    """A field whose texts need not be printable: whoever reads them checks them."""
    return field(default=None, metadata={_UNCHECKED: True})


class Document:
    """A document of the bucket, of at most `MOST` bytes."""

    __slots__ = ()
    MOST: ClassVar[int]

    @property
    def key_end(self) -> tuple[str, ...]:
        """The names that the key ends with."""
        raise NotImplementedError

    @classmethod
    def prepare(cls, document: dict[str, Any]) -> str:  # noqa: ARG003 - those below look at it
        """Bring the fields of an older version up to date; what only a newer one can read."""
        return ""

    def to_json(self) -> bytes:
        """The bytes: JSON, one field on a line."""
        document = {"format": FORMAT, **as_fields(self)}
        return json.dumps(document, indent=1, ensure_ascii=False).encode() + b"\n"

    @classmethod
    def from_json(cls, data: bytes, key: str) -> Self:
        """Read it. Raises ArchiveError if it breaks the format, or does not belong to the key."""
        document = parse(data, key, cls.MOST)
        for name in _beside(cast("Hashable", cls)):
            document.pop(name, None)
        if unknown := cls.prepare(document):
            raise ArchiveError(
                f"{key}: {unknown}, is not known to this version",
                hint="a newer binlog2s3 wrote it: use that one",
            )
        found = _checked_document(document, cls, key)
        check_key(key, *found.key_end)
        return found


class OneText(Protocol):
    """A type that is one text in a document, and more in the program."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read it. Raises ValueError."""


Kind = TypeVar("Kind")


_look = Lock()
_looked_at: set[type] = set()


def converted(value: Any, kind: type[Kind]) -> Kind:
    """What was parsed, as this type; its texts may be unprintable. Raises ValueError."""
    if kind not in _looked_at:
        with _look:  # msgspec 0.22 crashes if two threads let it look at a type for the first time
            msgspec.json.Decoder(kind)
            _looked_at.add(kind)
    try:
        return msgspec.convert(value, kind, dec_hook=_from_text)
    except (TypeError, OverflowError, RecursionError) as error:
        raise ValueError(f"{error!s:.{_MOST_ERROR}}") from error


def _checked_document(value: Any, kind: type[Kind], key: str) -> Kind:
    try:
        found = converted(value, kind)
        _check(found)
    except ValueError as error:
        raise ArchiveError(
            f"{key} is not as format {FORMAT} says: {error!s:.{_MOST_ERROR}}",
            hint="was it changed by hand?",
        ) from error
    return found


def _from_text(kind: type[OneText], value: Any) -> Any:
    return kind.parse(value)


def _check(value: Any, name: str = "a text") -> None:
    """Raise ValueError unless all texts are printable, and all times in UTC."""
    kind = type(value)
    if kind is str:
        if not value.isprintable():
            raise ValueError(f"{name} {value!r:.40} is not printable")
    elif kind is datetime:
        if value.utcoffset():
            raise ValueError(f"{name} {value} is not in UTC")
    elif kind is tuple:
        for item in value:
            _check(item, name)
    elif kind is dict:
        for key in value:
            _check(value[key], str(key))
    elif is_dataclass(value):
        for own in _checked(cast("Hashable", kind)):
            _check(getattr(value, own), own)


@cache
def _checked(kind: Any) -> tuple[str, ...]:
    left_out = {_BESIDE, _UNCHECKED}
    return tuple(own.name for own in fields(kind) if left_out.isdisjoint(own.metadata))


@cache
def _beside(kind: Any) -> tuple[str, ...]:
    return tuple(own.name for own in fields(kind) if _BESIDE in own.metadata)


@cache
def _written(kind: Any) -> tuple[tuple[str, Any], ...]:
    """The fields of a dataclass that JSON has, each with the value that is left out."""
    return tuple(
        (own.name, own.default if _LATER in own.metadata else MISSING)
        for own in fields(kind)
        if _BESIDE not in own.metadata
    )


def as_fields(value: Any) -> dict[str, Any]:
    """A dataclass as JSON has it, by the names of its fields."""
    pairs = (
        (name, getattr(value, name), left_out)
        for name, left_out in _written(cast("Hashable", type(value)))
    )
    return {
        name: as_json(field_value)
        for name, field_value, left_out in pairs
        if field_value != left_out
    }


def as_json(value: Any) -> Any:
    """A value as JSON has it; a type that is one text, as its text."""
    if value is None or type(value) in (str, int, bool, float):
        return value
    if isinstance(value, datetime):
        return iso_text(value)
    if isinstance(value, (tuple, list)):
        return [as_json(item) for item in value]
    if isinstance(value, Mapping):
        return {name if type(name) is str else str(name): as_json(value[name]) for name in value}
    return as_fields(value) if is_dataclass(value) else str(value)


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
    found = document.get("format") if isinstance(document, dict) else type(document).__name__
    if not isinstance(document, dict) or type(found) is not int or found != FORMAT:
        raise ArchiveError(
            f"{key} is of format {found!r:.40}, this version knows {FORMAT}",
            hint="a newer binlog2s3 may have written it: use that one",
        )
    return document


def _loads(data: bytes) -> Any:
    """Parse JSON strictly: msgspec's parser would keep the last of two equal fields."""
    if data.count(b"{") + data.count(b"[") > 64 + len(data) // _BYTES_PER_OBJECT:
        raise ValueError("it has too many lists and objects")
    return json.loads(
        data.decode(),
        object_pairs_hook=_object,
        parse_int=_integer,
        parse_float=_finite,
        parse_constant=_finite,
    )


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
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


def too_large(key: str, most: int) -> ArchiveError:
    """The error for a document that is too large to be read."""
    return ArchiveError(
        f"{key} is larger than {most} bytes, the limit for documents of its kind",
        hint="was it written by something else? `binlog2s3 verify` says what to do",
    )


def check_key(key: str, *names: str) -> None:
    """Raise MisplacedError unless the key ends with these names, as the document says."""
    own = "/".join(names)
    if key != own and not key.endswith(f"/{own}"):
        raise MisplacedError(
            f"{key} is in the wrong place: according to its content, its key ends with {own}",
            hint="was it copied by hand? it is ignored",
        )


# What commands print


class Printed:
    """A JSON object that a command prints: a class of which no value is ever made.

    Each of its fields is an attribute of what is printed, by the same name or by that which `of`
    says, and is written as the field's type says. `from_` is the field `from`.
    """

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class _Of:
    """Where a field is taken from; or what it always is."""

    path: str | None = None
    value: Any = None


def of(path: str) -> Any:
    """A field that is printed of another attribute, `entry.size`; null if there is no entry."""
    return _Of(path)


def always(value: Any) -> Any:
    """A field that has always this value."""
    return _Of(value=value)


class PrintedDocument(Printed):
    """All that a command prints."""

    format: int = always(FORMAT)


def members(value: Any) -> dict[str, Any]:
    """The fields of a dataclass as they are: to print them together with others."""
    return {own.name: getattr(value, own.name) for own in fields(value)}


def as_printed(kind: type[Printed], value: Any) -> dict[str, Any]:
    """What is printed of a value, or of a mapping of several."""
    return {name: of_value(value) for name, of_value in _printed(cast("Hashable", kind))}


def printed(kind: type[Printed], value: Any) -> str:
    """The JSON that a command prints."""
    return json.dumps(as_printed(kind, value), indent=1)


def hints_of(kind: type[Printed]) -> dict[str, Any]:
    """The fields of what is printed, in order, with their types."""
    hints = get_type_hints(kind, include_extras=True)
    own = {name: hint for name, hint in hints.items() if get_origin(hint) is not ClassVar}
    return {name.rstrip("_"): hint for name, hint in own.items()}


@cache
def _printed(kind: Any) -> tuple[tuple[str, Callable[[Any], Any]], ...]:
    return tuple(
        (name, _reader(getattr(kind, name, getattr(kind, f"{name}_", None)), name, _writer(hint)))
        for name, hint in hints_of(kind).items()
    )


def _reader(marked: Any, name: str, write: Callable[[Any], Any]) -> Callable[[Any], Any]:
    where = marked if isinstance(marked, _Of) else _Of(name)
    if where.path is None:
        return lambda _: where.value
    if not where.path:
        return write
    first, *rest = where.path.split(".")

    def read(value: Any) -> Any:
        found = value[first] if isinstance(value, dict) else getattr(value, first)
        for step in rest:
            if found is None:
                break
            found = getattr(found, step)
        return write(found)

    return read


def _writer(kind: Any) -> Callable[[Any], Any]:
    """What makes JSON of a value, by its type."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Annotated:
        made = [mark for mark in inner[1:] if callable(mark)]
        return made[0] if made else _writer(inner[0])
    if origin in (Union, UnionType):
        write = _writer(next(argument for argument in inner if argument is not NoneType))
        return lambda value: None if value is None else write(value)
    if origin is tuple:
        each = _writer(inner[0])
        return lambda values: [each(value) for value in values]
    if kind in (str, int, float, bool):
        return _itself
    is_printed = isinstance(kind, type) and issubclass(kind, Printed)
    return partial(as_printed, kind) if is_printed else as_json


def _itself(value: Any) -> Any:
    return value
