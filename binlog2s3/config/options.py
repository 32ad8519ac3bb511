"""What an option is, and how the text of its value becomes a value. Pure, but that @FILE is read.

A config dataclass declares its options: a field is `Annotated` with an `Option`, and `options_of`
completes that from the field's name, type and default. So each option is declared once. `cli`
declares the same options to click, `config.file` reads them from a file, and `lab.reference`
generates docs/reference/options.md from them.

Law: a value is parsed the same way from every origin. An error message is one line and never
repeats a password: of a URL it shows only what follows the last "@".
"""

import dataclasses
import math
import re
import shlex
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from types import UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin
from urllib.parse import urlsplit

from binlog2s3.binlog.gtid import MOST_GTIDS
from binlog2s3.binlog.names import BinlogName
from binlog2s3.config.points import (
    gtids_text,
    parse_between,
    parse_gtid,
    parse_moment,
    parse_position,
    parse_table,
)
from binlog2s3.store.contract import ObjectLock

ENVIRONMENT_PREFIX = "BINLOG2S3"
MIB = 1 << 20
MAX_PREFIX = 512  # S3 allows keys of 1,024 bytes, and ours add up to 400 to the prefix

# https://docs.aws.amazon.com/AmazonS3/latest/userguide/storage-class-intro.html
SLOW_STORAGE_CLASSES = ("DEEP_ARCHIVE", "GLACIER")

Kind = Literal[
    "",
    "text",
    "source",
    "server uuid",
    "path",
    "file",
    "command",
    "binlog",
    "s3 url",
    "endpoint",
    "listen",
    "serve address",
    "choice",
    "integer",
    "size",
    "duration",
    "flag",
    "time",
    "interval",
    "gtid",
    "gtid set",
    "position",
    "table",
    "host",
    "account",
    "object lock",
    "object version",
]
Value = str | int | float | bool | Path
_KINDS: Mapping[object, Kind] = {
    bool: "flag",
    int: "integer",
    float: "duration",
    str: "text",
    Path: "path",
    BinlogName: "binlog",
}
Made = TypeVar("Made")


@dataclass(frozen=True, slots=True)
class Option:
    """One option: `--name` on the command line, `[table] key` in the file.

    A declaration gives what its field does not: `options_of` fills in the rest. An option without
    `table` cannot be in a file.

    A flag takes no value on the command line; elsewhere it is true or false. `otherwise` describes
    what applies if the option is not given and there is no fixed default. `least` and `most` limit
    numbers: bytes for sizes, seconds for durations. `needs_unit`: only 0 may be without a unit,
    because people think of days where a bare number means seconds. A `repeatable` option may be
    given several times; its value is a tuple.
    """

    metavar: str
    help: str
    kind: Kind = ""
    _: dataclasses.KW_ONLY
    name: str = ""
    table: str = ""
    key: str = ""
    field: str = ""
    default: Value | None = None
    otherwise: str = ""
    required: bool = False
    choices: tuple[str, ...] = ()
    least: float | None = None
    most: float | None = None
    needs_unit: bool = False
    repeatable: bool = False

    @property
    def parameter(self) -> str:
        """The name as a Python identifier."""
        return self.name.replace("-", "_")

    @property
    def environment(self) -> str:
        """The name of its environment variable."""
        return f"{ENVIRONMENT_PREFIX}_{self.parameter.upper()}"

    @property
    def default_text(self) -> str:
        """What applies if the option is not given, in words; "" if nothing does."""
        if self.default is None:
            return self.otherwise
        if isinstance(self.default, str | Path):
            return str(self.default)
        return _amount(self, self.default)


def options_of(config: type, *, table: str = "", prefix: str = "") -> tuple[Option, ...]:
    """The options that a config dataclass declares, in the order of its fields.

    `table` is their table in the file, and `prefix` is put before the names of the fields. A field
    without a default is a required option.
    """
    return tuple(
        _completed(field, declared, table, prefix)
        for field in dataclasses.fields(config)
        for declared in getattr(field.type, "__metadata__", ())
    )


def _completed(
    field: "dataclasses.Field[Any]", declared: Option, table: str, prefix: str
) -> Option:
    base, repeatable = _base_of(get_args(field.type)[0])
    words = get_args(base) if get_origin(base) is Literal else ()
    required = field.default is dataclasses.MISSING
    default: Any = None if required or declared.otherwise else field.default
    return replace(
        declared,
        name=declared.name or f"{prefix}{field.name}".replace("_", "-"),
        table=declared.table or table,
        key=declared.key or field.name,
        field=field.name,
        kind=declared.kind or ("choice" if words or declared.choices else _KINDS[base]),
        default=default or None,
        required=required,
        choices=declared.choices or words,
        repeatable=repeatable,
    )


def _base_of(declared: Any) -> tuple[Any, bool]:
    """The type of one value, without None; and whether the field is a tuple of such values."""
    if get_origin(declared) in (Union, UnionType):
        (declared,) = (kind for kind in get_args(declared) if kind is not type(None))
    if get_origin(declared) is tuple and get_args(declared)[-1] is Ellipsis:
        return get_args(declared)[0], True
    return declared, False


def fill(
    config: Callable[..., Made],
    options: Iterable[Option],
    values: Mapping[str, Any],
    **more: Any,
) -> Made:
    """The config with the values of these options; a field without a value keeps its default."""
    given = {o.field: values[o.name] for o in options if values.get(o.name) is not None}
    return config(**given, **more)


_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_NUMBER = r"([0-9]{1,18}(?:\.[0-9]{1,18})?)"
_SIZE = re.compile(rf"{_NUMBER}\s*(?:([KMGT])(?:i?B)?|B)?", re.IGNORECASE)
_SECONDS = re.compile(rf"{_NUMBER}\s*(ms|s|m|min|h|d)?")
_SECOND_UNITS = {
    None: 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0,
}  # fmt: skip
_HOUR = 3600
_MOST_LOCK_DAYS = 36_500
_FLAGS = {"true": True, "1": True, "yes": True, "on": True}
_FLAGS |= {"false": False, "0": False, "no": False, "off": False}
_EXPECTED: dict[Kind, str] = {
    "integer": "a whole number",
    "size": "a size such as 5MiB, 64M or 1G",
    "duration": "a duration such as 30, 30s or 5m",
}


def parse(option: Option, raw: object) -> Any:
    """The value of one option, from text (command line, environment) or from TOML.

    Raises ValueError that says what is wrong and what is expected.
    """
    if option.kind in _EXPECTED:
        value = _bounded(option, _parse_number(option, raw), raw)
        if option.needs_unit and value and not str(raw).strip()[-1:].isalpha():
            raise ValueError(f"{_shown(raw)} has no unit: write 30d for days, 12h for hours")
        return value
    if option.kind == "flag":
        return _parse_flag(raw)
    if not isinstance(raw, str | Path):
        raise ValueError(f"{_shown(raw)} is not a string in quotes")
    return _parse_text(option, str(raw))


def parse_size(text: str) -> int:
    """The bytes of "5242880", "5MiB", "64M" or "1.5G"; units are powers of 1024."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{_shown(text)} is not {_EXPECTED['size']}")
    return int(Fraction(match[1]) * _UNITS[(match[2] or "").upper()])


def parse_seconds(text: str) -> float:
    """The seconds of "30", "0.5", "250ms", "30s", "5m", "1h" or "30d"."""
    match = _SECONDS.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{_shown(text)} is not {_EXPECTED['duration']}")
    return float(match[1]) * _SECOND_UNITS[match[2]]


def split_s3_url(url: str) -> tuple[str, str]:
    """Bucket and prefix of s3://bucket/prefix; the prefix has no slash at either end.

    Raises ValueError. It refuses what S3 allows and nobody intends: empty parts, `.` and `..`.
    """
    shown = _shown_url(url)
    match = re.fullmatch(r"s3://([^/?#@]+)(?:/([^?#]*))?", url)
    if match is None:
        raise ValueError(f"{shown} is not of the form s3://bucket/prefix")
    bucket, prefix = match[1], (match[2] or "").removesuffix("/")
    if bucket.startswith("arn:"):
        raise ValueError(f"{shown}: give the alias of the access point (...-s3alias), not its ARN")
    if not re.fullmatch(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]", bucket):
        raise ValueError(f"{shown}: a bucket name has 3 to 63 of the characters a-z 0-9 . -")
    if not re.fullmatch(r"[A-Za-z0-9!_.*'()/-]*", prefix) or len(prefix) > MAX_PREFIX:
        raise ValueError(
            f"{shown}: the prefix has at most {MAX_PREFIX} of the characters "
            "A-Z a-z 0-9 ! _ . * ' ( ) - /"
        )
    if any(part in ("", ".", "..") for part in prefix.split("/")) and (prefix or match[2]):
        raise ValueError(f"{shown}: the prefix must not have an empty part, . or ..")
    return bucket, prefix


def parse_account(text: str) -> str:
    """The number of an AWS account. Raises ValueError.

    >>> parse_account("012345678901")
    '012345678901'
    """
    if not re.fullmatch(r"[0-9]{12}", text):
        raise ValueError(f"{_shown(text)} is not the number of an AWS account: 12 digits")
    return text


def parse_object_lock(text: str) -> ObjectLock:
    """The mode and the time of GOVERNANCE:30d or COMPLIANCE:30d. Raises ValueError."""
    match = re.fullmatch(r"(GOVERNANCE|COMPLIANCE):([0-9]{1,5})d", text.strip(), re.IGNORECASE)
    if match is None or not 0 < int(match[2]) <= _MOST_LOCK_DAYS:
        raise ValueError(f"{_shown(text)} is not of the form GOVERNANCE:30d or COMPLIANCE:30d")
    return ObjectLock("GOVERNANCE" if match[1][:1] in "Gg" else "COMPLIANCE", int(match[2]))


def parse_object_version(text: str) -> tuple[str, str]:
    """The key and the version's id of KEY=ID. Raises ValueError."""
    key, sign, version = text.strip().rpartition("=")
    if not (key and sign and version):
        raise ValueError(f"{_shown(text)} is not of the form KEY=ID")
    return key, version


def split_listen(text: str) -> tuple[str, int]:
    """Host and port of HOST:PORT or [IPV6]:PORT. Raises ValueError."""
    match = re.fullmatch(r"(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9._-]+)):([0-9]{1,5})", text)
    if match is None or not 0 < int(match[3]) < 1 << 16:
        raise ValueError(f"{_shown(text)} is not of the form HOST:PORT, e.g. 127.0.0.1:9275")
    return match[1] or match[2], int(match[3])


def split_serve_address(text: str) -> tuple[str, int | None]:
    """Host and port of HOST, HOST:PORT, IPV6 or [IPV6]:PORT. Raises ValueError."""
    if re.fullmatch(r"[A-Za-z0-9._-]+|[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*", text):
        return text, None
    try:
        return split_listen(text)
    except ValueError:
        raise ValueError(f"{_shown(text)} is not of the form HOST or HOST:PORT") from None


def _check_endpoint(url: str) -> None:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
    if "@" in parts.netloc:
        raise ValueError(f"{_shown_url(url)} must not contain a user or a password")
    host = re.fullmatch(r"[A-Za-z0-9._-]+|[0-9a-f:.]*:[0-9a-f:.]*", parts.hostname or "")
    path = re.fullmatch(r"[A-Za-z0-9._~/-]*", parts.path)
    if parts.scheme not in ("http", "https") or not host or not path or port == 0:
        raise ValueError(f"{_shown_url(url)} is not of the form https://host:port")
    if parts.query or parts.fragment:
        raise ValueError(f"{_shown_url(url)} must not have a query or a fragment")


def _check_command(text: str) -> None:
    """The messages do not repeat the command, in case somebody put a password into it."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ValueError(f"not a command: {str(error).lower()}") from None
    if not words or not words[0]:
        raise ValueError("not a command: it names no program")


def _parse_path(text: str) -> Path:
    try:
        return Path(text).expanduser()
    except RuntimeError as error:
        raise ValueError(f"{_shown(text)}: there is no such user") from error


_MADE: Mapping[Kind, Callable[[str], object]] = {
    "path": _parse_path,
    "file": _parse_path,
    "binlog": BinlogName.parse,
    "gtid": parse_gtid,
    "time": parse_moment,
    "interval": parse_between,
    "position": parse_position,
    "table": parse_table,
    "account": parse_account,
    "object lock": parse_object_lock,
    "object version": parse_object_version,
}
_CHECKED: Mapping[Kind, Callable[[str], object]] = {
    "command": _check_command,
    "s3 url": split_s3_url,
    "endpoint": _check_endpoint,
    "listen": split_listen,
    "serve address": split_serve_address,
}
_CHARACTERS: Mapping[Kind, tuple[str, str]] = {
    "source": (r"(?!\.\.?$)[A-Za-z0-9._-]{1,64}", "A-Z a-z 0-9 . _ -"),
    "server uuid": (r"[0-9A-Za-z-]{1,64}", "0-9 A-Z a-z -"),
}


def _text_of_file(path: str) -> str:
    """What @FILE stands for: no argument of a program is longer than 128 KiB. ValueError."""
    try:
        with Path(path).open("rb") as file:
            data = file.read(MOST_GTIDS + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise ValueError(f"@{_shown(path)} cannot be read: {reason.lower()}") from None
    if len(data) > MOST_GTIDS:
        raise ValueError(f"@{_shown(path)} has more than {MOST_GTIDS:,} bytes")
    return data.decode(errors="replace")


def _parse_text(option: Option, text: str) -> object:
    if option.kind == "gtid set" and text.strip():  # servers print it on several lines
        return gtids_text(_text_of_file(text[1:]) if text.startswith("@") else text)
    is_path = option.kind in ("path", "file")
    if not text or "\0" in text or "\n" in text or not (is_path or text.isprintable()):
        where = "" if option.kind in ("s3 url", "endpoint", "command") else f"{_shown(text)} "
        raise ValueError(f"{where}is empty or has control characters".strip())
    if option.kind == "choice":
        return _parse_choice(option, text)
    if option.kind == "host":
        return _parse_host(option, text)
    if make := _MADE.get(option.kind):
        return make(text)
    if check := _CHECKED.get(option.kind):
        check(text)
    pattern, characters = _CHARACTERS.get(option.kind, (".*", ""))
    if not re.fullmatch(pattern, text):
        raise ValueError(f"{_shown(text)} is not 1 to 64 of the characters {characters}")
    return text


def _parse_host(option: Option, text: str) -> str:
    """A host without a port; an IPv6 address may be in brackets, as in a URL."""
    match = re.fullmatch(r"(?:\[([^\[\]]*)\]|([^:]*))(?::([^:]*))?", text)
    if match is None:  # an IPv6 address
        return text
    host, port = match[1] or match[2], match[3]
    if port is None and host:
        return host
    own = option.name.replace("host", "port")
    raise ValueError(
        f"{_shown(text)} is not a host; the port is an option of its own: --{own}, or port in "
        f"[{option.table}] of a file"
    )


def _parse_choice(option: Option, text: str) -> str:
    for choice in option.choices:
        if text.lower() == choice.lower():
            return choice
    choices = ", ".join(option.choices)
    if option.name == "storage-class" and text.upper() in SLOW_STORAGE_CLASSES:
        raise ValueError(
            f"{text} needs a restore request and hours before a binlog can be read; "
            f"use one of {choices}"
        )
    raise ValueError(f"{_shown(text)} is not one of {choices}")


def _parse_flag(raw: object) -> bool:
    if isinstance(raw, bool):
        return raw
    if isinstance(raw, str) and raw.strip().lower() in _FLAGS:
        return _FLAGS[raw.strip().lower()]
    raise ValueError(f"{_shown(raw)} is not true or false")


def _parse_number(option: Option, raw: object) -> float:
    if isinstance(raw, str) and option.kind == "duration":
        return parse_seconds(raw)
    if isinstance(raw, str) and option.kind == "size":
        return parse_size(raw)
    if isinstance(raw, str) and re.fullmatch(r"[0-9]{1,18}", raw.strip()):
        return int(raw)
    if isinstance(raw, int) and not isinstance(raw, bool):
        return raw
    if isinstance(raw, float) and option.kind == "duration" and math.isfinite(raw):
        return raw
    raise ValueError(f"{_shown(raw)} is not {_EXPECTED[option.kind]}")


def _bounded(option: Option, value: float, raw: object) -> float:
    if option.least is not None and value < option.least:
        raise ValueError(f"{_shown(raw)} is below the minimum, {_amount(option, option.least)}")
    if option.most is not None and value > option.most:
        raise ValueError(f"{_shown(raw)} is above the maximum, {_amount(option, option.most)}")
    return float(value) if option.kind == "duration" else value


def _amount(option: Option, value: float) -> str:
    if option.kind == "size" and value >= MIB:
        return f"{value / MIB:g} MiB"
    if option.kind == "duration" and value >= _HOUR and not value % _HOUR:
        return f"{value / _HOUR:g}h"
    return f"{value:.10g}"


def _shown(raw: object) -> str:
    """A wrong value in a message: shortened; of a table or an array only that it is one.

    >>> _shown(True), _shown({"password": "x"}), _shown("5 apples")
    ('true', 'a table', "'5 apples'")
    """
    if isinstance(raw, bool):
        return str(raw).lower()
    if isinstance(raw, str | Path):
        text = repr(str(raw))
        return text if len(text) <= 80 else f"{text[:76]}...{text[0]}"
    if isinstance(raw, int):
        return str(raw) if abs(raw) < 10**18 else "this number"
    if isinstance(raw, float):
        return repr(raw)
    return {"dict": "a table", "list": "an array"}.get(type(raw).__name__, "a date or time")


def _shown_url(url: str) -> str:
    """A URL in a message, without what may be secret: user, password and query.

    >>> _shown_url("http://me:secret@host/x?key=secret")
    "'http://***@host/x'"
    """
    login, at, rest = url.rpartition("@")
    rest = re.split("[?#]", rest, maxsplit=1)[0]
    scheme, colon, _ = login.partition("://")
    return _shown((scheme + colon + "***@" if colon else "***@") + rest if at else rest)
