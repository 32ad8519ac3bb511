"""What the operator asked for: one table of options, one frozen `Config`.

Place in the flow: `cli` declares the options of `OPTIONS` to click, which merges command line,
environment, TOML file and defaults; this module parses single values, reads the TOML file's shape
and judges the whole. Owns names, kinds, defaults and rules of every option.

Law: pure but for reading the TOML file. Nothing is half right: every problem that can be seen is
reported in one `ConfigError`. No password ever enters a `Config`, only the path of its file.
"""

import difflib
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from binlog2s3.binlog import BinlogName
from binlog2s3.errors import ConfigError

MIB = 1 << 20
MIN_PART_SIZE = 5 * MIB  # S3's least size of an inner part
MAX_PART_SIZE = 5 << 30  # S3's greatest size of a part

SSL_MODES = ("DISABLED", "PREFERRED", "REQUIRED", "VERIFY_CA", "VERIFY_IDENTITY")
# Storage classes that answer a GET at once; an archive one must wait for is no base for a recovery.
# https://docs.aws.amazon.com/AmazonS3/latest/userguide/storage-class-intro.html
STORAGE_CLASSES = (
    "STANDARD",
    "STANDARD_IA",
    "ONEZONE_IA",
    "INTELLIGENT_TIERING",
    "GLACIER_IR",
    "EXPRESS_ONEZONE",
    "REDUCED_REDUNDANCY",
)
_SLOW_STORAGE_CLASSES = ("GLACIER", "DEEP_ARCHIVE")

Kind = Literal["text", "path", "integer", "size", "seconds", "choice", "binlog"]
Value = str | int | float | Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One option: `--name` on the command line, `[table] key` in the file.

    In the environment it is `BINLOG2S3_` and the name in capitals, dashes as underscores.
    `least` and `most` bound numbers: bytes for sizes, seconds for durations.
    """

    name: str
    table: str
    key: str
    kind: Kind
    help: str
    metavar: str
    default: Value | None = None
    required: bool = False
    choices: tuple[str, ...] = ()
    least: float | None = None
    most: float | None = None

    @property
    def parameter(self) -> str:
        """The name as a Python identifier."""
        return self.name.replace("-", "_")


def _mysql(name: str, kind: Kind, metavar: str, help_: str, **more: Any) -> Option:
    key = name.removeprefix("mysql-").replace("-", "_")
    return Option(name=name, table="mysql", key=key, kind=kind, metavar=metavar, help=help_, **more)


def _s3(name: str, kind: Kind, metavar: str, help_: str, **more: Any) -> Option:
    key = name.removeprefix("s3-").replace("-", "_")
    return Option(name=name, table="s3", key=key, kind=kind, metavar=metavar, help=help_, **more)


def _stream(name: str, kind: Kind, metavar: str, help_: str, **more: Any) -> Option:
    key = name.replace("-", "_")
    return Option(
        name=name, table="stream", key=key, kind=kind, metavar=metavar, help=help_, **more
    )


OPTIONS: tuple[Option, ...] = (
    _stream(
        "source",
        "text",
        "NAME",
        "Name of the server in the bucket, e.g. orders-primary.",
        required=True,
    ),
    _mysql("mysql-host", "text", "HOST", "Server to stream from (default: 127.0.0.1)."),
    _mysql("mysql-port", "integer", "PORT", "Its port (default: 3306).", least=1, most=65535),
    _mysql("mysql-socket", "path", "PATH", "Unix socket, instead of host and port."),
    _mysql("mysql-user", "text", "USER", "User with REPLICATION SLAVE and REPLICATION CLIENT."),
    _mysql(
        "mysql-password-file",
        "path",
        "FILE",
        "File that holds the password and nothing else; an empty file is an empty password.",
    ),
    _mysql(
        "mysql-defaults-file",
        "path",
        "FILE",
        "MySQL option file; its groups [client] and [binlog2s3] fill in what is not given here.",
    ),
    _mysql(
        "mysql-ssl-mode",
        "choice",
        "MODE",
        "TLS to the server, as the mysql client's --ssl-mode.",
        choices=SSL_MODES,
        default="PREFERRED",
    ),
    _mysql("mysql-ssl-ca", "path", "FILE", "Certificate authorities (PEM)."),
    _mysql("mysql-ssl-cert", "path", "FILE", "Client certificate (PEM)."),
    _mysql("mysql-ssl-key", "path", "FILE", "Client key (PEM)."),
    _mysql(
        "mysqlbinlog",
        "path",
        "PATH",
        "mysqlbinlog (MySQL) or mariadb-binlog (MariaDB); default: the right one on PATH.",
    ),
    _mysql(
        "mysql-server-id",
        "integer",
        "ID",
        "Server id to stream under (default: derived from source and host name).",
        least=1,
        most=2**32 - 1,
    ),
    _mysql(
        "mysql-connect-timeout",
        "seconds",
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
    _s3("s3-url", "text", "URL", "Where to: s3://bucket/prefix.", required=True),
    _s3("endpoint-url", "text", "URL", "S3 endpoint, for stores other than AWS."),
    _s3("region", "text", "REGION", "AWS region (default: boto3's own chain)."),
    _s3(
        "addressing-style",
        "choice",
        "STYLE",
        "Bucket in the host name (virtual) or in the path.",
        choices=("auto", "path", "virtual"),
        default="auto",
    ),
    _s3("profile", "text", "NAME", "AWS profile (default: boto3's own chain)."),
    _s3(
        "storage-class",
        "choice",
        "CLASS",
        "Storage class of archived binlogs; only those that answer a GET at once.",
        choices=STORAGE_CLASSES,
    ),
    _s3(
        "sse",
        "choice",
        "MODE",
        "Server-side encryption to ask for; a store that does not confirm it is an error.",
        choices=("AES256", "aws:kms"),
    ),
    _s3("sse-kms-key-id", "text", "KEY", "KMS key, with --sse aws:kms."),
    _s3(
        "checksum",
        "choice",
        "MODE",
        "Checksum sent with each body: auto (CRC64NVME where the store has it), "
        "crc64nvme (required), md5, none.",
        choices=("auto", "crc64nvme", "md5", "none"),
        default="auto",
    ),
    _s3(
        "part-size",
        "size",
        "SIZE",
        "Size of the first 1,000 parts of a multipart upload; it doubles every 1,000 parts.",
        default=MIN_PART_SIZE,
        least=MIN_PART_SIZE,
        most=MAX_PART_SIZE,
    ),
    _s3(
        "concurrency",
        "integer",
        "N",
        "Requests in flight at most.",
        default=8,
        least=1,
        most=256,
    ),
    _stream(
        "start-binlog",
        "binlog",
        "NAME",
        "First binlog of an empty archive (default: the oldest the server has).",
    ),
    _stream(
        "start-at",
        "choice",
        "WHERE",
        "First binlog of an empty archive: the oldest, or the one that is open now.",
        choices=("oldest", "now"),
    ),
    _stream(
        "flush-interval",
        "seconds",
        "SECONDS",
        "0: a binlog is durable when it is closed. Other values are not supported yet.",
        default=0.0,
        least=0,
        most=3600,
    ),
    _stream(
        "heartbeat-interval",
        "seconds",
        "SECONDS",
        "How often the writer's object in the bucket is renewed.",
        default=30.0,
        least=1,
        most=3600,
    ),
)
BY_NAME = {option.name: option for option in OPTIONS}


@dataclass(frozen=True, slots=True, kw_only=True)
class MysqlConfig:
    """How to reach the source. The password is not here: see `login`."""

    host: str | None
    port: int | None
    socket: Path | None
    user: str | None
    password_file: Path | None
    defaults_file: Path | None
    ssl_mode: str
    ssl_ca: Path | None
    ssl_cert: Path | None
    ssl_key: Path | None
    mysqlbinlog: Path | None
    server_id: int | None
    connect_timeout: float


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Config:
    """Where the objects go and how. `prefix` has no slash at either end and may be empty."""

    bucket: str
    prefix: str
    endpoint_url: str | None
    region: str | None
    addressing_style: Literal["auto", "path", "virtual"]
    profile: str | None
    storage_class: str | None
    sse: Literal["AES256", "aws:kms"] | None
    sse_kms_key_id: str | None
    checksum: Literal["auto", "crc64nvme", "md5", "none"]
    part_size: int
    concurrency: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamConfig:
    """What is streamed under which name, from where on, how often it is reported."""

    source: str
    start_binlog: BinlogName | None
    start_at: Literal["oldest", "now"]
    flush_interval: float
    heartbeat_interval: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Everything the operator asked for, judged as a whole."""

    mysql: MysqlConfig
    s3: S3Config
    stream: StreamConfig
    spool: Path


_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", re.IGNORECASE)
_SECONDS = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|min|h)?")
_SECOND_UNITS = {None: 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}


def parse_size(text: str) -> int:
    """Bytes of "5242880", "5MiB", "64M" or "1.5G"; units are powers of 1024."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a size such as 5MiB, 64M or 1G")
    return int(float(match[1]) * _UNITS[match[2].upper()])


def parse_seconds(text: str) -> float:
    """Seconds of "30", "0.5", "250ms", "30s", "5m" or "1h"."""
    match = _SECONDS.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a duration such as 30, 30s or 5m")
    return float(match[1]) * _SECOND_UNITS[match[2]]


def parse(option: Option, raw: object) -> Value:
    """The value of one option from text (command line, environment) or from TOML.

    Raises ValueError with what is wrong and what would be right.
    """
    if isinstance(raw, bool) or not isinstance(raw, (str, int, float, Path)):
        raise ValueError(f"{_shown(raw)} is not {_expected(option)}")
    if option.kind in ("text", "path", "choice", "binlog"):
        if not isinstance(raw, (str, Path)):
            raise ValueError(f"{raw!r} is not {_expected(option)}")
        return _parse_text(option, str(raw))
    return _bounded(option, _parse_number(option, raw))


def _parse_text(option: Option, text: str) -> Value:
    if not text or "\0" in text or "\n" in text:
        raise ValueError(f"{text!r} is empty or has a line break")
    if option.kind == "choice":
        return _parse_choice(option, text)
    if option.kind == "binlog":
        return str(BinlogName.parse(text))
    return Path(text).expanduser() if option.kind == "path" else text


def _parse_choice(option: Option, text: str) -> str:
    for choice in option.choices:
        if text.lower() == choice.lower():
            return choice
    if option.name == "storage-class" and text.upper() in _SLOW_STORAGE_CLASSES:
        raise ValueError(
            f"{text!r} needs a restore request before an object can be read; "
            f"choose one of {', '.join(option.choices)}"
        )
    raise ValueError(f"{text!r} is not one of {', '.join(option.choices)}")


def _parse_number(option: Option, raw: str | float | Path) -> float:
    text = str(raw).strip()
    if option.kind == "seconds":
        return parse_seconds(text)
    if option.kind == "size" and not isinstance(raw, float):
        return parse_size(text)
    if not re.fullmatch(r"\d+", text):
        raise ValueError(f"{raw!r} is not a whole number")
    return int(text)


def _bounded(option: Option, value: float) -> float:
    if option.least is not None and value < option.least:
        raise ValueError(f"{value:g} is below the least, {_number(option, option.least)}")
    if option.most is not None and value > option.most:
        raise ValueError(f"{value:g} is above the greatest, {_number(option, option.most)}")
    return value


def _number(option: Option, value: float) -> str:
    if option.kind == "size" and value >= MIB:
        return f"{value / MIB:g} MiB"
    return f"{value:g}"


def _expected(option: Option) -> str:
    return {
        "integer": "a whole number",
        "size": "a size such as 5MiB",
        "seconds": "a duration such as 30 or 30s",
    }.get(option.kind, "a text")


def _shown(raw: object) -> str:
    return str(raw).lower() if isinstance(raw, bool) else repr(raw)


@dataclass(frozen=True, slots=True)
class FileValues:
    """A TOML file's values by option name, with the problems found on the way.

    `wrong` are the names whose value is there but not usable: they are not missing.
    """

    values: Mapping[str, Value]
    problems: tuple[str, ...]
    wrong: frozenset[str]


def read_file(path: Path) -> FileValues:
    """Read a TOML configuration file; problems are collected, not raised one by one.

    Raises ConfigError if the file cannot be read or is no TOML.
    """
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(
            [f"{path}: {error.strerror or error}"], hint="check --config and the file's owner"
        ) from error
    except UnicodeDecodeError as error:
        raise ConfigError([f"{path}: not UTF-8 text"]) from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(
            [f"{path}: not TOML: {error}"], hint='texts need quotes: host = "db1"'
        ) from error
    return _judge(document, path)


def _judge(document: Mapping[str, Any], path: Path) -> FileValues:
    by_place = {(option.table, option.key): option for option in OPTIONS}
    tables = sorted({option.table for option in OPTIONS})
    values: dict[str, Value] = {}
    problems: list[str] = []
    wrong: set[str] = set()
    for table, content in document.items():
        if table not in tables:
            problems.append(f"{path}: unknown table [{table}]{_nearest(table, tables)}")
            continue
        if not isinstance(content, dict):
            problems.append(f"{path}: [{table}] must be a table, not {content!r}")
            continue
        keys = [key for place, key in by_place if place == table]
        for key, raw in content.items():
            option = by_place.get((table, key.replace("-", "_")))
            if option is None:
                problems.append(f"{path}: unknown key {table}.{key}{_nearest(key, keys)}")
                continue
            try:
                values[option.name] = parse(option, raw)
            except ValueError as error:
                problems.append(f"{path}: {table}.{key}: {error}")
                wrong.add(option.name)
    return FileValues(values, tuple(problems), frozenset(wrong))


def _nearest(word: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(word, list(known), n=1)
    return f" (did you mean {near[0]}?)" if near else f" (known: {', '.join(sorted(known))})"


def build(values: Mapping[str, Any], wrong: Iterable[str] = ()) -> tuple[Config | None, list[str]]:
    """Judge all values together: (config, problems); config is None if there are problems.

    `values` maps option names to parsed values, None where nothing was given; `wrong` are names
    already reported, whose absence is not a second problem.
    """
    skip = set(wrong)
    problems = [
        f"--{option.name} is missing"
        for option in OPTIONS
        if option.required and values.get(option.name) is None and option.name not in skip
    ]
    problems += _source_problems(values)
    problems += _mysql_problems(values)
    problems += _s3_problems(values)
    if problems or skip:
        return None, problems
    return _config(values), []


def _config(values: Mapping[str, Any]) -> Config:
    def table(name: str) -> dict[str, Any]:
        return {o.key: values.get(o.name) for o in OPTIONS if o.table == name}

    s3 = table("s3")
    bucket, prefix = _split_url(s3.pop("url"))
    stream = table("stream")
    start = stream["start_binlog"]
    stream["start_binlog"] = BinlogName.parse(start) if start else None
    stream["start_at"] = stream["start_at"] or "oldest"
    return Config(
        mysql=MysqlConfig(**table("mysql")),
        s3=S3Config(bucket=bucket, prefix=prefix, **s3),
        stream=StreamConfig(**stream),
        spool=values["spool"],
    )


def _source_problems(values: Mapping[str, Any]) -> list[str]:
    problems = []
    source = values.get("source")
    if source and (not re.fullmatch(r"[A-Za-z0-9._-]{1,64}", source) or source in (".", "..")):
        problems.append(f"--source {source!r}: 1 to 64 of the characters A-Z a-z 0-9 . _ -")
    if values.get("start-binlog") and values.get("start-at"):
        problems.append("--start-binlog and --start-at contradict each other: give one")
    if values.get("flush-interval"):
        problems.append(
            "--flush-interval: only 0 is supported by this version "
            "(a binlog is durable when it is closed)"
        )
    return problems


def _mysql_problems(values: Mapping[str, Any]) -> list[str]:
    problems = []
    given = {name for name in values if values[name] is not None}
    mode = values.get("mysql-ssl-mode")
    problems += [
        f"--mysql-socket and --{name} contradict each other: give one way to connect"
        for name in ("mysql-host", "mysql-port")
        if "mysql-socket" in given and name in given
    ]
    if "mysql-user" not in given and "mysql-defaults-file" not in given:
        problems.append("--mysql-user is missing (or a --mysql-defaults-file that names it)")
    if mode in ("VERIFY_CA", "VERIFY_IDENTITY") and "mysql-ssl-ca" not in given:
        problems.append(f"--mysql-ssl-mode {mode} needs --mysql-ssl-ca")
    if mode == "VERIFY_IDENTITY" and "mysql-socket" in given:
        problems.append("--mysql-ssl-mode VERIFY_IDENTITY needs a host name, not --mysql-socket")
    problems += [
        f"--mysql-ssl-mode DISABLED contradicts --{name}"
        for name in ("mysql-ssl-ca", "mysql-ssl-cert", "mysql-ssl-key")
        if mode == "DISABLED" and name in given
    ]
    if ("mysql-ssl-cert" in given) != ("mysql-ssl-key" in given):
        problems.append("--mysql-ssl-cert and --mysql-ssl-key go together")
    problems += [
        f"--{option.name} {values[option.name]}: {reason}"
        for option in OPTIONS
        if option.kind == "path" and option.metavar == "FILE" and option.name in given
        if (reason := _unreadable(values[option.name]))
    ]
    return problems


def _unreadable(path: Path) -> str:
    try:
        with path.open("rb"):
            return ""
    except OSError as error:
        return (error.strerror or str(error)).lower()


def _s3_problems(values: Mapping[str, Any]) -> list[str]:
    problems = []
    if url := values.get("s3-url"):
        try:
            _split_url(url)
        except ValueError as error:
            problems.append(f"--s3-url {url!r}: {error}")
    if endpoint := values.get("endpoint-url"):
        parts = urlsplit(endpoint)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            problems.append(f"--endpoint-url {endpoint!r} is not http://host or https://host")
        elif parts.username or parts.password:
            problems.append("--endpoint-url must not carry a user or a password")
    if values.get("sse-kms-key-id") and values.get("sse") != "aws:kms":
        problems.append("--sse-kms-key-id needs --sse aws:kms")
    return problems


def _split_url(url: str) -> tuple[str, str]:
    match = re.fullmatch(r"s3://([a-z0-9][a-z0-9.-]{1,61}[a-z0-9])(?:/(.*))?", url)
    if match is None:
        raise ValueError("not of the form s3://bucket/prefix")
    prefix = (match[2] or "").strip("/")
    if not re.fullmatch(r"[A-Za-z0-9!_.*'()/-]*", prefix) or "//" in prefix:
        raise ValueError("the prefix may have A-Z a-z 0-9 ! _ . * ' ( ) - and single slashes")
    if any(part in (".", "..") for part in prefix.split("/")):
        raise ValueError("the prefix must not have . or .. as a part")
    return match[1], prefix
