"""The table of options, and what each single value may be.

Place in the flow: beneath `values`, which judges all values together, and `cli`, which declares the
same table to click. docs/reference.md is generated from it. Owns name, kind, default, bounds and
meaning of every option.

Law: pure. A value is parsed alike wherever it comes from, and what is wrong with it is said in one
line that never repeats a password: of a URL only what stands behind the last "@" is shown.
"""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from binlog2s3.binlog.names import BinlogName
from binlog2s3.config.points import gtids_text, parse_gtid, parse_position, parse_time
from binlog2s3.store.contract import IMMEDIATE_STORAGE_CLASSES

ENVIRONMENT_PREFIX = "BINLOG2S3"
MIB = 1 << 20
MIN_PART_SIZE = 5 * MIB  # S3's least size of an inner part
MAX_PART_SIZE = 5 << 30  # S3's greatest size of a part
MIN_SPOOL_SIZE = 16 * MIB
MAX_PREFIX = 512  # a key has at most 1,024 bytes, and ours go on for up to 400 behind the prefix

SSL_MODES = ("DISABLED", "PREFERRED", "REQUIRED", "VERIFY_CA", "VERIFY_IDENTITY")
# https://docs.aws.amazon.com/AmazonS3/latest/userguide/storage-class-intro.html
STORAGE_CLASSES = tuple(sorted(IMMEDIATE_STORAGE_CLASSES))
SLOW_STORAGE_CLASSES = ("DEEP_ARCHIVE", "GLACIER")

Kind = Literal[
    "text",
    "source",
    "server uuid",
    "path",
    "file",
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
    "gtid",
    "gtid set",
    "position",
]
Value = str | int | float | bool | Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One option: `--name` on the command line, `[table] key` in the file.

    A flag has no value on the command line, elsewhere it is true or false; it has no `default`.
    `least` and `most` bound numbers: bytes for sizes, seconds for durations. `otherwise` says what
    holds where neither a value nor a `default` is there. One that is `repeatable` may be given
    several times; its value is a tuple.
    """

    name: str
    table: str
    key: str
    kind: Kind
    metavar: str
    help: str
    default: Value | None = None
    otherwise: str = ""
    required: bool = False
    choices: tuple[str, ...] = ()
    least: int | None = None
    most: int | None = None
    repeatable: bool = False

    @property
    def parameter(self) -> str:
        """The name as a Python identifier."""
        return self.name.replace("-", "_")

    @property
    def environment(self) -> str:
        """The name in the environment."""
        return f"{ENVIRONMENT_PREFIX}_{self.parameter.upper()}"

    @property
    def default_text(self) -> str:
        """What holds where nothing is given, in words; "" if nothing does."""
        if self.default is None:
            return self.otherwise
        if isinstance(self.default, str | Path):
            return str(self.default)
        return _amount(self, self.default)


def of_command(name: str, kind: Kind, metavar: str, help_: str, **more: Any) -> Option:
    """An option that one command has for itself: it has no place in the configuration file."""
    key = name.replace("-", "_")
    return Option(name=name, table="", key=key, kind=kind, metavar=metavar, help=help_, **more)


def _in(table: str, name: str, kind: Kind, metavar: str, help_: str, **more: Any) -> Option:
    key = name.removeprefix(f"{table}-").replace("-", "_")
    return Option(name=name, table=table, key=key, kind=kind, metavar=metavar, help=help_, **more)


OPTIONS: tuple[Option, ...] = (
    _in(
        "stream",
        "source",
        "source",
        "NAME",
        "Name of the server in the bucket, e.g. orders-primary.",
        required=True,
    ),
    _in("mysql", "mysql-host", "text", "HOST", "Server to stream from.", otherwise="127.0.0.1"),
    _in(
        "mysql", "mysql-port", "integer", "PORT", "Its port.", otherwise="3306", least=1, most=65535
    ),
    _in("mysql", "mysql-socket", "path", "PATH", "Unix socket, instead of host and port."),
    _in(
        "mysql",
        "mysql-user",
        "text",
        "USER",
        "User with REPLICATION SLAVE and REPLICATION CLIENT.",
        otherwise="that of the option file",
    ),
    _in(
        "mysql",
        "mysql-password-file",
        "file",
        "FILE",
        "File that holds the password and nothing else; an empty file is an empty password.",
        otherwise="the password of the option file, else none",
    ),
    _in(
        "mysql",
        "mysql-defaults-file",
        "file",
        "FILE",
        "MySQL option file; its groups [client] and [binlog2s3] fill in what is not given here.",
    ),
    _in(
        "mysql",
        "mysql-ssl-mode",
        "choice",
        "MODE",
        "TLS to the server, as the mysql client's --ssl-mode "
        "(default: REQUIRED, with authorities given VERIFY_CA, by a socket or a loopback address "
        "PREFERRED).",
        choices=SSL_MODES,
    ),
    _in("mysql", "mysql-ssl-ca", "file", "FILE", "Certificate authorities (PEM)."),
    _in("mysql", "mysql-ssl-cert", "file", "FILE", "Client certificate (PEM)."),
    _in("mysql", "mysql-ssl-key", "file", "FILE", "Client key (PEM)."),
    _in(
        "mysql",
        "mysqlbinlog",
        "path",
        "PATH",
        "mysqlbinlog (MySQL) or mariadb-binlog (MariaDB).",
        otherwise="the right one on PATH",
    ),
    _in(
        "mysql",
        "mysql-server-id",
        "integer",
        "ID",
        "Server id to stream under; no replica of the server may have the same.",
        otherwise="derived from source, bucket and host name",
        least=1,
        most=2**32 - 1,
    ),
    _in(
        "mysql",
        "mysql-connect-timeout",
        "duration",
        "SECONDS",
        "Longest wait for a connection or an answer of the server.",
        default=10.0,
        least=1,
        most=3600,
    ),
    Option(
        name="spool",
        table="spool",
        key="dir",
        kind="path",
        metavar="DIR",
        help="Directory for what is not archived yet; one streamer each.",
        default=Path("/var/lib/binlog2s3"),
    ),
    _in(
        "spool",
        "spool-max-bytes",
        "size",
        "SIZE",
        "Most disk space that the spool takes, at least 16 MiB; past it nothing more is read from "
        "the server until there is room.",
        otherwise="no limit",
        least=MIN_SPOOL_SIZE,
    ),
    _in(
        "spool",
        "spool-min-free-bytes",
        "size",
        "SIZE",
        "Least space to leave free on the spool's file system; below it nothing more is read from "
        "the server until there is room.",
        otherwise="the larger of 1 GiB and 5 % of the file system",
        least=0,
    ),
    _in("s3", "s3-url", "s3 url", "URL", "Where to: s3://bucket/prefix.", required=True),
    _in(
        "s3",
        "endpoint-url",
        "endpoint",
        "URL",
        "S3 endpoint, for stores other than AWS.",
        otherwise="boto3's own chain",
    ),
    _in("s3", "region", "text", "REGION", "AWS region.", otherwise="boto3's own chain"),
    _in(
        "s3",
        "addressing-style",
        "choice",
        "STYLE",
        "Bucket in the host name (virtual) or in the path.",
        choices=("auto", "path", "virtual"),
        default="auto",
    ),
    _in("s3", "profile", "text", "NAME", "AWS profile.", otherwise="boto3's own chain"),
    _in(
        "s3",
        "storage-class",
        "choice",
        "CLASS",
        "Storage class of archived binlogs; only those that answer a GET at once.",
        choices=STORAGE_CLASSES,
        otherwise="the store's own",
    ),
    _in(
        "s3",
        "sse",
        "choice",
        "MODE",
        "Server-side encryption to ask for; a store that does not confirm it is an error.",
        choices=("AES256", "aws:kms"),
        otherwise="the bucket's own",
    ),
    _in(
        "s3",
        "sse-kms-key-id",
        "text",
        "KEY",
        "KMS key, with --sse aws:kms.",
        otherwise="the account's own",
    ),
    _in(
        "s3",
        "checksum",
        "choice",
        "MODE",
        "Checksum sent with each body; auto: CRC64NVME where the store has it.",
        choices=("auto", "crc64nvme", "md5", "none"),
        default="auto",
    ),
    _in(
        "s3",
        "part-size",
        "size",
        "SIZE",
        "Size of the first 1,000 parts of a multipart upload; it doubles every 1,000 parts.",
        default=MIN_PART_SIZE,
        least=MIN_PART_SIZE,
        most=MAX_PART_SIZE,
    ),
    _in(
        "s3",
        "concurrency",
        "integer",
        "N",
        "Most requests in flight.",
        default=8,
        least=1,
        most=256,
    ),
    _in(
        "stream",
        "start-binlog",
        "binlog",
        "NAME",
        "First binlog of an empty archive.",
        otherwise="the oldest that the server has",
    ),
    _in(
        "stream",
        "start-at",
        "choice",
        "WHERE",
        "First binlog of an empty archive: the oldest, or (now) the one that is open.",
        choices=("oldest", "now"),
        otherwise="oldest",
    ),
    _in(
        "stream",
        "flush-interval",
        "duration",
        "SECONDS",
        "How often new bytes of the open binlog are put into the bucket, at most; "
        "at least 0.05; 0: a binlog is durable only when it is closed.",
        default=1.0,
        least=0,
        most=3600,
    ),
    _in(
        "stream",
        "heartbeat-interval",
        "duration",
        "SECONDS",
        "How often the writer's object in the bucket is renewed.",
        default=30.0,
        least=1,
        most=3600,
    ),
    _in(
        "stream",
        "stall-timeout",
        "duration",
        "SECONDS",
        "How long mysqlbinlog may bring nothing though the server has more, before it is started "
        "anew.",
        default=60.0,
        least=1,
        most=3600,
    ),
    _in(
        "stream",
        "on-gap",
        "choice",
        "WHAT",
        "Where the server no longer has what comes next: go on with the oldest that it has, the "
        "gap noted in the bucket, or stop.",
        choices=("continue", "stop"),
        default="continue",
    ),
    _in(
        "stream",
        "accept-new-server",
        "server uuid",
        "UUID",
        "Go on though another server answers, if it is the one with this server_uuid.",
    ),
    _in(
        "stream",
        "take-over",
        "flag",
        "",
        "Start as the writer though another one has taken over from this spool and still works; "
        "for one start by hand, not for a service.",
        otherwise="false",
    ),
    _in(
        "stream",
        "metrics-listen",
        "listen",
        "HOST:PORT",
        "Where to answer GET /health, /live, /metrics and /status, e.g. 127.0.0.1:9275; a host in "
        "brackets is IPv6.",
    ),
    _in(
        "stream",
        "heartbeat-url-file",
        "file",
        "FILE",
        "File that holds a URL, for it may be a secret; a GET goes there when more has become "
        "durable or the source is seen to be idle, at most once a heartbeat interval.",
    ),
    _in(
        "log",
        "log-format",
        "choice",
        "FORMAT",
        "auto: text on a terminal, JSON lines elsewhere.",
        choices=("auto", "text", "json"),
        default="auto",
    ),
    _in(
        "log",
        "log-level",
        "choice",
        "LEVEL",
        "Least level of what is logged.",
        choices=("debug", "info", "warning", "error"),
        default="info",
    ),
)
BY_NAME = {option.name: option for option in OPTIONS}
TABLES = tuple(dict.fromkeys(option.table for option in OPTIONS))

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_NUMBER = r"([0-9]{1,18}(?:\.[0-9]{1,18})?)"
_SIZE = re.compile(rf"{_NUMBER}\s*(?:([KMGT])(?:i?B)?|B)?", re.IGNORECASE)
_SECONDS = re.compile(rf"{_NUMBER}\s*(ms|s|m|min|h)?")
_SECOND_UNITS = {None: 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_FLAGS = {"true": True, "1": True, "yes": True, "on": True}
_FLAGS |= {"false": False, "0": False, "no": False, "off": False}
_EXPECTED: dict[Kind, str] = {
    "integer": "a whole number",
    "size": "a size such as 5MiB, 64M or 1G",
    "duration": "a duration such as 30, 30s or 5m",
}


def parse(option: Option, raw: object) -> Value:
    """The value of one option, from text (command line, environment), TOML or its own default.

    What it returns it takes again. Raises ValueError with what is wrong and what would be right.
    """
    if option.kind in _EXPECTED:
        return _bounded(option, _parse_number(option, raw), raw)
    if option.kind == "flag":
        return _parse_flag(raw)
    if not isinstance(raw, str | Path):
        raise ValueError(f"{_shown(raw)} is not a text in quotes")
    return _parse_text(option, str(raw))


def parse_size(text: str) -> int:
    """Bytes of "5242880", "5MiB", "64M" or "1.5G"; units are powers of 1024."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{_shown(text)} is not {_EXPECTED['size']}")
    return int(Fraction(match[1]) * _UNITS[(match[2] or "").upper()])


def parse_seconds(text: str) -> float:
    """Seconds of "30", "0.5", "250ms", "30s", "5m" or "1h"."""
    match = _SECONDS.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{_shown(text)} is not {_EXPECTED['duration']}")
    return float(match[1]) * _SECOND_UNITS[match[2]]


def split_s3_url(url: str) -> tuple[str, str]:
    """Bucket and prefix of s3://bucket/prefix; the prefix has no slash at either end.

    Raises ValueError. Refuses what S3 would take but people do not mean: empty parts, `.`, `..`.
    """
    shown = _shown_url(url)
    match = re.fullmatch(r"s3://([^/?#@]+)(?:/([^?#]*))?", url)
    if match is None:
        raise ValueError(f"{shown} is not of the form s3://bucket/prefix")
    bucket, prefix = match[1], (match[2] or "").removesuffix("/")
    if not re.fullmatch(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]", bucket):
        raise ValueError(f"{shown}: a bucket's name has 3 to 63 of the characters a-z 0-9 . -")
    if not re.fullmatch(r"[A-Za-z0-9!_.*'()/-]*", prefix) or len(prefix) > MAX_PREFIX:
        raise ValueError(
            f"{shown}: the prefix has at most {MAX_PREFIX} of the characters "
            "A-Z a-z 0-9 ! _ . * ' ( ) - /"
        )
    if any(part in ("", ".", "..") for part in prefix.split("/")) and (prefix or match[2]):
        raise ValueError(f"{shown}: the prefix must not have an empty part, . or ..")
    return bucket, prefix


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
        raise ValueError(f"{_shown_url(url)} must not carry a user or a password")
    host = re.fullmatch(r"[A-Za-z0-9._-]+|[0-9a-f:.]*:[0-9a-f:.]*", parts.hostname or "")
    path = re.fullmatch(r"[A-Za-z0-9._~/-]*", parts.path)
    if parts.scheme not in ("http", "https") or not host or not path or port == 0:
        raise ValueError(f"{_shown_url(url)} is not of the form https://host:port")
    if parts.query or parts.fragment:
        raise ValueError(f"{_shown_url(url)} must not have a query or a fragment")


_MADE: Mapping[Kind, Callable[[str], str]] = {
    "binlog": lambda text: str(BinlogName.parse(text)),
    "gtid": parse_gtid,
}
_CHECKED: Mapping[Kind, Callable[[str], object]] = {
    "s3 url": split_s3_url,
    "endpoint": _check_endpoint,
    "listen": split_listen,
    "serve address": split_serve_address,
    "time": parse_time,
    "position": parse_position,
}


def _parse_text(option: Option, text: str) -> Value:
    is_path = option.kind in ("path", "file")
    if option.kind == "gtid set" and text.strip():  # servers print it on several lines
        return gtids_text(text)
    if not text or "\0" in text or "\n" in text or not (is_path or text.isprintable()):
        where = "" if option.kind in ("s3 url", "endpoint") else f"{_shown(text)} "
        raise ValueError(f"{where}is empty or has control characters".strip())
    if is_path:
        return _parse_path(text)
    if option.kind == "choice":
        return _parse_choice(option, text)
    if make := _MADE.get(option.kind):
        return make(text)
    if check := _CHECKED.get(option.kind):
        check(text)
    if option.kind == "source" and (
        not re.fullmatch(r"[A-Za-z0-9._-]{1,64}", text) or text in (".", "..")
    ):
        raise ValueError(f"{_shown(text)} is not 1 to 64 of the characters A-Z a-z 0-9 . _ -")
    if option.kind == "server uuid" and not re.fullmatch(r"[0-9A-Za-z-]{1,64}", text):
        raise ValueError(f"{_shown(text)} is not 1 to 64 of the characters 0-9 A-Z a-z -")
    return text


def _parse_path(text: str) -> Path:
    try:
        return Path(text).expanduser()
    except RuntimeError as error:
        raise ValueError(f"{_shown(text)}: there is no such user") from error


def _parse_choice(option: Option, text: str) -> str:
    for choice in option.choices:
        if text.lower() == choice.lower():
            return choice
    choices = ", ".join(option.choices)
    if option.name == "storage-class" and text.upper() in SLOW_STORAGE_CLASSES:
        raise ValueError(
            f"{text} needs a restore request and hours before a binlog can be read; "
            f"choose one of {choices}"
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
        raise ValueError(f"{_shown(raw)} is below the least, {_amount(option, option.least)}")
    if option.most is not None and value > option.most:
        raise ValueError(f"{_shown(raw)} is above the greatest, {_amount(option, option.most)}")
    return float(value) if option.kind == "duration" else value


def _amount(option: Option, value: float) -> str:
    if option.kind == "size" and value >= MIB:
        return f"{value / MIB:g} MiB"
    return f"{value:.10g}"


def _shown(raw: object) -> str:
    """A wrong value as a message shows it: cut short; of a table or an array only that it is one.

    >>> _shown(True), _shown({"password": "x"}), _shown("5 apples")
    ('true', 'a table', "'5 apples'")
    """
    if isinstance(raw, bool):
        return str(raw).lower()
    if isinstance(raw, str | Path):
        text = repr(str(raw))
        return text if len(text) <= 80 else f"{text[:76]}...{text[0]}"
    if isinstance(raw, int):
        return str(raw) if abs(raw) < 10**18 else "so great a number"
    if isinstance(raw, float):
        return repr(raw)
    return {"dict": "a table", "list": "an array"}.get(type(raw).__name__, "a date or time")


def _shown_url(url: str) -> str:
    """A URL as a message shows it, without what may be secret: user, password and query.

    >>> _shown_url("http://me:secret@host/x?key=secret")
    "'http://***@host/x'"
    """
    login, at, rest = url.rpartition("@")
    rest = re.split("[?#]", rest, maxsplit=1)[0]
    scheme, colon, _ = login.partition("://")
    return _shown((scheme + colon + "***@" if colon else "***@") + rest if at else rest)
