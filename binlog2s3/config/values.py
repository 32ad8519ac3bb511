"""What the operator asked for: the configuration file's shape, and one frozen `Config`.

Place in the flow: `options` holds the table of options and parses single values; `cli` lets click
merge command line, environment, file and defaults; this module reads the file and judges the whole.

Law: it looks at files, and does nothing else. Nothing is half right: every problem that can be seen
is reported, each in one line that names the option as it was given. No password ever enters a
`Config`, only the path of its file.
"""

import difflib
import os
import stat
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from binlog2s3.binlog.names import BinlogName
from binlog2s3.config.options import BY_NAME, OPTIONS, SSL_MODES, Option, Value, parse, split_s3_url
from binlog2s3.config.pitr_options import TARGET_OPTIONS
from binlog2s3.config.status_options import INTERVAL_SECONDS, THRESHOLDS
from binlog2s3.config.timing import DEFAULT, Timing

__all__ = [
    "BY_NAME",
    "FILE_OPTIONS",
    "OPTIONS",
    "SSL_MODES",
    "Config",
    "FileValues",
    "Given",
    "ListConfig",
    "LogConfig",
    "MysqlConfig",
    "Option",
    "Prefix",
    "S3Config",
    "SpoolLimits",
    "StatusConfig",
    "StreamConfig",
    "Value",
    "build",
    "build_list",
    "build_status",
    "contradiction",
    "file_problems",
    "login_problems",
    "parse",
    "read_file",
    "s3_of",
]

FILE_OPTIONS = (*OPTIONS, *TARGET_OPTIONS)
"""What may stand in a file: one file may serve the streamer and a recovery."""
_FILE_TABLES = tuple(dict.fromkeys(option.table for option in FILE_OPTIONS))
_MAX_FILE = 1 << 20
_LEAST_FLUSH_SECONDS = 0.05
_LEAST_INTERVAL_SECONDS = 0.1
LookAt = Literal["auto", "daemon", "bucket"]
Output = Literal["text", "json", "watch", "check"]
Prefix = Literal["mysql", "target"]
"""How the options begin that say how to reach a server: the source, or a recovery's target."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MysqlConfig:
    """How to reach the source, or a recovery's target. The password is not here: see `login`."""

    host: str | None
    port: int | None
    socket: Path | None
    user: str | None
    password_file: Path | None
    defaults_file: Path | None
    ssl_mode: str | None
    ssl_ca: Path | None
    ssl_cert: Path | None
    ssl_key: Path | None
    mysqlbinlog: Path | None
    server_id: int | None
    connect_timeout: float
    prefix: Prefix = "mysql"


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
    """What is streamed under which name, from where on, how often it is reported.

    `accept_new_server` is a server_uuid, or what stands in for one (`server.ServerFacts.uuid`).
    """

    source: str
    start_binlog: BinlogName | None
    start_at: Literal["oldest", "now"]
    flush_interval: float
    heartbeat_interval: float
    take_over: bool = False
    stall_timeout: float = 60.0
    on_gap: Literal["continue", "stop"] = "continue"
    accept_new_server: str | None = None
    metrics_listen: str | None = None
    heartbeat_url_file: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SpoolLimits:
    """What the spool may take and what it leaves free. None: no limit, and the spool's default."""

    max_bytes: int | None = None
    min_free_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    """How the log looks, and from which level on it is written."""

    format: Literal["auto", "text", "json"] = "auto"
    level: Literal["debug", "info", "warning", "error"] = "info"


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Everything the operator asked for, judged as a whole; `timing` is not asked for."""

    mysql: MysqlConfig
    s3: S3Config
    stream: StreamConfig
    spool: Path
    spool_limits: SpoolLimits = field(default_factory=SpoolLimits)
    log: LogConfig = field(default_factory=LogConfig)
    timing: Timing = DEFAULT


@dataclass(frozen=True, slots=True, kw_only=True)
class ListConfig:
    """What `list` is to show: all sources and lineages where none is named."""

    s3: S3Config
    source: str | None
    lineage: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusConfig:
    """What `status` and `health` look at: a streamer, by its spool, or what the bucket says.

    `whole`: all sources of the bucket. `spool_given`: it was named, and is not the default.
    `count`: how many looks to show, None: until it is ended. `thresholds`: by their options' names.
    """

    s3: S3Config | None
    source: str | None
    spool: Path
    spool_given: bool
    whole: bool = False
    look_at: LookAt = "auto"
    expect: Path | None = None
    output: Output = "text"
    interval: float = INTERVAL_SECONDS
    count: int | None = None
    thresholds: Mapping[str, float] = field(default_factory=lambda: dict(THRESHOLDS))


@dataclass(frozen=True, slots=True)
class FileValues:
    """A TOML file's values by option name, with the problems found on the way.

    `places` says for each option in the file what to call it in a message. `wrong` are the options
    whose value is not usable, or not known: they are not missing.
    """

    values: Mapping[str, Value] = field(default_factory=dict)
    places: Mapping[str, str] = field(default_factory=dict)
    problems: tuple[str, ...] = ()
    wrong: frozenset[str] = frozenset()


def read_file(path: Path) -> FileValues:
    """Read a TOML configuration file. Never raises: what is wrong is among the `problems`.

    Of a file that cannot be read every option is `wrong`, because nobody knows what it says.
    """
    try:
        document = _load(path)
    except OSError as error:
        return _unread(path, (error.strerror or str(error)).lower())
    except UnicodeDecodeError:
        return _unread(path, "not UTF-8 text")
    except tomllib.TOMLDecodeError as error:
        return _unread(path, f'not TOML: {error} (texts stand in quotes: host = "db1")')
    except (ValueError, RecursionError) as error:
        return _unread(path, str(error))
    return _read_tables(document, path)


def _load(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        data = file.read(_MAX_FILE + 1)
    if len(data) > _MAX_FILE:
        raise ValueError(f"larger than {_MAX_FILE >> 20} MiB, this is no configuration file")
    return tomllib.loads(data.decode("utf-8-sig"))  # editors elsewhere put a mark before the text


def _unread(path: Path, why: str) -> FileValues:
    return FileValues(
        problems=(f"{path}: {why}",), wrong=frozenset(option.name for option in FILE_OPTIONS)
    )


def _read_tables(document: Mapping[str, Any], path: Path) -> FileValues:
    by_place = {(option.table, option.key): option for option in FILE_OPTIONS}
    values: dict[str, Value] = {}
    places: dict[str, str] = {}
    problems: list[str] = []
    for table, content in document.items():
        if not isinstance(content, dict):
            wrong = "must be a table, " if table in _FILE_TABLES else "stands outside a table"
            meant = f"[{table}]" if table in _FILE_TABLES else _meant("", table)
            problems.append(f"{path}: {table} {wrong}{meant}")
            continue
        if table not in _FILE_TABLES:
            problems.append(f"{path}: unknown table [{table}]{_nearest(table, _FILE_TABLES)}")
            continue
        for key, raw in content.items():
            option = by_place.get((table, key.replace("-", "_")))
            if option is None:
                problems.append(f"{path}: unknown key [{table}] {key}{_meant(table, key)}")
            elif option.name in places:
                problems.append(f"{path}: [{table}] {option.key} is there twice")
            else:
                places[option.name] = f"[{table}] {option.key} of {path}"
                try:
                    values[option.name] = _parse_typed(option, raw)
                except ValueError as error:
                    problems.append(f"{places[option.name]}: {error}")
    return FileValues(values, places, tuple(problems), frozenset(places) - frozenset(values))


def _parse_typed(option: Option, raw: object) -> Value:
    """As `parse`, but in TOML a whole number has no quotes, nor have true and false."""
    value = parse(option, raw)
    if option.kind == "integer" and isinstance(raw, str):
        raise ValueError(f"{raw!r} is a text; write the number without quotes")
    if option.kind == "flag" and isinstance(raw, str):
        raise ValueError(f"{raw!r} is a text; write true or false without quotes")
    return value


def _meant(table: str, key: str) -> str:
    """Which key of the file an unknown one may be meant for."""
    word = key.replace("-", "_")
    for option in FILE_OPTIONS:
        if word in (option.key, option.parameter):
            return f" (did you mean [{option.table}] {option.key}?)"
    return _nearest(word, [option.key for option in FILE_OPTIONS if table in ("", option.table)])


def _nearest(word: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(word, list(known), n=1)
    return f" (did you mean {near[0]}?)" if near else f" (known: {', '.join(sorted(known))})"


@dataclass(frozen=True, slots=True)
class Given:
    """All values, and what to call them. `wrong` are given, but were already reported."""

    values: Mapping[str, Any]
    places: Mapping[str, str]
    wrong: frozenset[str]

    def has(self, name: str) -> bool:
        """Whether it has a value."""
        return self.values.get(name) is not None

    def lacks(self, name: str) -> bool:
        """Whether it was not given at all."""
        return not self.has(name) and name not in self.wrong

    def called(self, name: str) -> str:
        """An option as it was given."""
        return self.places.get(name, f"--{name}")


def build(
    values: Mapping[str, Any],
    wrong: Iterable[str] = (),
    places: Mapping[str, str] | None = None,
) -> tuple[Config | None, list[str]]:
    """Judge all values together: (config, problems); there is no config where anything is wrong.

    `values` maps option names to parsed values, None where nothing was given; `wrong` are names
    already reported, whose absence is not a second problem; `places` says what to call an option,
    where that is not `--name`.
    """
    given = Given(values, places or {}, frozenset(wrong))
    problems = [
        f"--{option.name} is missing"
        for option in OPTIONS
        if option.required and given.lacks(option.name)
    ]
    problems += [*_stream_problems(given), *login_problems(given, "mysql")]
    problems += [*_s3_problems(given), *file_problems(given, OPTIONS)]
    if problems or given.wrong:
        return None, problems
    return _config(values), []


def _config(values: Mapping[str, Any]) -> Config:
    def table(name: str) -> dict[str, Any]:
        return {o.key: values.get(o.name, o.default) for o in OPTIONS if o.table == name}

    spool, stream = table("spool"), table("stream")
    start = stream["start_binlog"]
    stream["start_binlog"] = BinlogName.parse(start) if start else None
    stream["start_at"] = stream["start_at"] or "oldest"
    stream["take_over"] = bool(stream["take_over"])
    return Config(
        mysql=MysqlConfig(**table("mysql")),
        s3=s3_of(values),
        stream=StreamConfig(**stream),
        spool=spool.pop("dir"),
        spool_limits=SpoolLimits(**spool),
        log=LogConfig(**table("log")),
    )


def build_list(
    values: Mapping[str, Any],
    wrong: Iterable[str] = (),
    places: Mapping[str, str] | None = None,
) -> tuple[ListConfig | None, list[str]]:
    """As `build`, for `list`: of what `stream` wants, only where the bucket is."""
    given = Given(values, places or {}, frozenset(wrong))
    problems = ["--s3-url is missing"] if given.lacks("s3-url") else []
    if problems or given.wrong:
        return None, problems
    return ListConfig(s3=s3_of(values), source=values.get("source")), []


def build_status(
    values: Mapping[str, Any],
    wrong: Iterable[str] = (),
    places: Mapping[str, str] | None = None,
) -> tuple[StatusConfig | None, list[str]]:
    """As `build`, for `status` and `health`: a spool, or where the bucket is, or both.

    `values` may have those of STATUS_OPTIONS, too.
    """
    given = Given(values, places or {}, frozenset(wrong))
    problems = [*_status_problems(given), *_threshold_problems(given)]
    if problems or given.wrong:
        return None, problems
    outputs: tuple[Output, ...] = ("json", "watch", "check")
    spool: Any = values.get("spool") or BY_NAME["spool"].default
    config = StatusConfig(
        s3=s3_of(values) if given.has("s3-url") else None,
        source=values.get("source"),
        spool=spool,
        spool_given=given.has("spool"),
        whole=bool(values.get("all")),
        look_at=values.get("from", "auto"),
        expect=values.get("expect"),
        output=next((one for one in outputs if values.get(one)), "text"),
        interval=values.get("interval", INTERVAL_SECONDS),
        count=values.get("count"),
        thresholds={name: values.get(name, least) for name, least in THRESHOLDS.items()},
    )
    return config, []


def _status_problems(given: Given) -> Iterable[str]:
    whole, look_at = bool(given.values.get("all")), given.values.get("from")
    if (whole or look_at == "bucket") and given.lacks("s3-url"):
        yield "--s3-url is missing"
    if look_at == "bucket" and not whole and given.lacks("source"):
        yield "--source is missing (or --all)"
    for name in ("source", "spool"):  # a streamer's file has both, which is meant for one
        if whole and given.has(name) and given.called(name) == f"--{name}":
            yield contradiction(given, "all", name, "it shows every source, from the bucket")
    if whole and look_at == "daemon":
        yield contradiction(given, "all", "from", "a streamer knows its own source alone")
    yield from _output_problems(given)


def _output_problems(given: Given) -> Iterable[str]:
    outputs = [name for name in ("json", "watch", "check") if given.values.get(name)]
    if len(outputs) > 1:
        yield contradiction(given, outputs[0], outputs[1], "give one of them")
    needs = {"expect": "all", "interval": "watch", "count": "watch"}
    needs |= dict.fromkeys(THRESHOLDS, "check")
    for name, other in needs.items():
        if given.has(name) and given.called(name) == f"--{name}" and not given.values.get(other):
            yield f"--{name} needs --{other}"
    if given.values.get("interval", INTERVAL_SECONDS) < _LEAST_INTERVAL_SECONDS:
        yield f"{given.called('interval')}: below the least, {_LEAST_INTERVAL_SECONDS:g}"


def _threshold_problems(given: Given) -> Iterable[str]:
    if not given.values.get("check"):
        return
    for one, other in (
        ("lag-warning", "lag-critical"),
        ("purge-critical", "purge-warning"),
        ("spool-warning", "spool-critical"),
    ):
        less, more = (given.values.get(name, THRESHOLDS[name]) for name in (one, other))
        if less > more:
            yield (
                f"{given.called(one)} ({less:g}) must not be above {given.called(other)} ({more:g})"
            )


def s3_of(values: Mapping[str, Any]) -> S3Config:
    """Where the bucket is."""
    s3 = {o.key: values.get(o.name, o.default) for o in OPTIONS if o.table == "s3"}
    bucket, prefix = split_s3_url(s3.pop("url"))
    return S3Config(bucket=bucket, prefix=prefix, **s3)


def _stream_problems(given: Given) -> Iterable[str]:
    if given.has("start-binlog") and given.has("start-at"):
        yield contradiction(given, "start-binlog", "start-at", "give one of them")
    if 0 < float(str(given.values.get("flush-interval", 0))) < _LEAST_FLUSH_SECONDS:
        yield (
            f"{given.called('flush-interval')}: below {_LEAST_FLUSH_SECONDS:g} seconds; "
            "0 would mean that a binlog is durable only when it is closed"
        )


def login_problems(given: Given, prefix: Prefix) -> Iterable[str]:
    """What is wrong with the options that say how to log in to a server."""
    if given.lacks(f"{prefix}-user") and given.lacks(f"{prefix}-defaults-file"):
        yield f"--{prefix}-user is missing (or a --{prefix}-defaults-file that names it)"
    for name in (f"{prefix}-host", f"{prefix}-port"):
        if given.has(f"{prefix}-socket") and given.has(name):
            yield contradiction(given, f"{prefix}-socket", name, "give one way to connect")
    yield from _tls_problems(given, prefix)


def _tls_problems(given: Given, prefix: Prefix) -> Iterable[str]:
    ca, cert, key = (f"{prefix}-ssl-{what}" for what in ("ca", "cert", "key"))
    own_mode, defaults, socket = (f"{prefix}-{w}" for w in ("ssl-mode", "defaults-file", "socket"))
    mode, called = given.values.get(own_mode), given.called(own_mode)
    if mode in ("VERIFY_CA", "VERIFY_IDENTITY") and given.lacks(ca) and given.lacks(defaults):
        yield f"{called} {mode} needs --{ca} (or a --{defaults} that has ssl-ca)"
    if mode == "VERIFY_IDENTITY" and given.has(socket):
        yield f"{called} {mode} needs a host's name, which {given.called(socket)} has not"
    for name in (ca, cert, key):
        if mode == "DISABLED" and given.has(name):
            yield contradiction(given, own_mode, name, "DISABLED uses no certificates")
    for one, other in ((cert, key), (key, cert)):
        if given.has(one) and given.lacks(other):
            yield f"{given.called(one)} needs --{other}"


def _s3_problems(given: Given) -> Iterable[str]:
    kms = given.values.get("sse") == "aws:kms" or "sse" in given.wrong
    if given.has("sse-kms-key-id") and not kms:
        yield f"{given.called('sse-kms-key-id')} needs --sse aws:kms"


def file_problems(given: Given, options: Iterable[Option]) -> Iterable[str]:
    """Which of the files that must be readable are not."""
    for option in options:
        if option.kind == "file" and given.has(option.name):
            path = given.values[option.name]
            if reason := _unreadable(path):
                yield f"{given.called(option.name)}: {path}: {reason}"


def contradiction(given: Given, one: str, other: str, advice: str) -> str:
    """That two options cannot both be meant."""
    return f"{given.called(one)} and {given.called(other)} contradict each other: {advice}"


def _unreadable(path: Path) -> str:
    """Why a file cannot be read again and again; "" if it can. A pipe gives its bytes but once."""
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError) as error:
        return (getattr(error, "strerror", None) or str(error)).lower()
    if not (stat.S_ISREG(mode) or stat.S_ISCHR(mode)):
        return "is a directory" if stat.S_ISDIR(mode) else "is no file that can be read twice"
    return "" if os.access(path, os.R_OK) else "permission denied"
