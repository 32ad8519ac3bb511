"""The options of `stream`, and one frozen `Config` of them.

The other commands take their options for the server and the bucket from here. No password is ever
in a `Config`, only the path of its file.
"""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal

from binlog2s3.binlog.names import BinlogName
from binlog2s3.config.given import (
    CommandOptions,
    Given,
    contradiction,
    excludes,
    exclusive,
    file_problems,
    pair,
)
from binlog2s3.config.options import MIB, Option, fill, options_of, split_s3_url
from binlog2s3.config.outside import DEFAULT, Timing
from binlog2s3.store.contract import IMMEDIATE_STORAGE_CLASSES, ObjectLock, Picks

SSL_MODES = ("DISABLED", "PREFERRED", "REQUIRED", "VERIFY_CA", "VERIFY_IDENTITY")
MIN_PART_SIZE = 5 * MIB  # S3's smallest inner part
MAX_PART_SIZE = 5 << 30  # S3's largest part
_LEAST_FLUSH_SECONDS = 0.05
_READING_MOST = 16
"""This many requests at once are enough to read small objects."""
_BOTO = "the AWS SDK's own chain"
WITHOUT_TLS = "inside TLS the password itself is sent, and no key is used"
LOCAL_SOCKETS = (Path("/run/mysqld/mysqld.sock"), Path("/var/lib/mysql/mysql.sock"))
"""Where the packages of MySQL and MariaDB have it; only the server's user can create one there."""
Prefix = Literal["mysql", "target"]
"""What the options for a server begin with: the source, or the target of a recovery."""


class LocalSocket:
    """The socket of this host's server: the first of these paths where one is seen.

    It stays the answer: a server that is down may have removed its socket, and then anybody on this
    host could answer at its port.
    """

    def __init__(self, paths: Iterable[Path] = LOCAL_SOCKETS) -> None:
        self._paths = tuple(paths)
        self._seen: Path | None = None

    def find(self) -> Path | None:
        """Its path, None if none was ever seen; each call looks again until one was."""
        for path in self._paths if self._seen is None else ():
            with suppress(OSError):
                if path.is_socket():
                    self._seen = path
                    break
        return self._seen


@dataclass(frozen=True, slots=True, kw_only=True)
class MysqlConfig:
    """How to reach the source, or a recovery's target. `server.login` reads the password."""

    host: Annotated[
        str | None,
        Option(
            "HOST",
            "Server to stream from.",
            "host",
            otherwise="this host's server: its socket if there is one, else 127.0.0.1",
        ),
    ] = None
    port: Annotated[
        int | None, Option("PORT", "Its port.", otherwise="3306", least=1, most=65535)
    ] = None
    socket: Annotated[Path | None, Option("PATH", "Unix socket, instead of host and port.")] = None
    user: Annotated[
        str | None,
        Option(
            "USER",
            "User with REPLICATION SLAVE and REPLICATION CLIENT.",
            otherwise="that of the option file",
        ),
    ] = None
    password_file: Annotated[
        Path | None,
        Option(
            "FILE",
            "File that contains the password and nothing else; an empty file is an empty password.",
            "file",
            otherwise="the password of the option file, else none",
        ),
    ] = None
    password_command: Annotated[
        str | None,
        Option(
            "COMMAND",
            "Command that prints the password, run again for each connection and without a shell; "
            "for tokens that expire.",
            "command",
        ),
    ] = None
    defaults_file: Annotated[
        Path | None,
        Option(
            "FILE",
            "MySQL option file; its groups [client] and [binlog2s3] apply where no option is "
            "given here.",
            "file",
        ),
    ] = None
    ssl_mode: Annotated[
        str | None,
        Option(
            "MODE",
            "TLS to the server, as --ssl-mode of the mysql client. The default is VERIFY_CA if "
            "certificate authorities are given, else DISABLED through a socket that is given "
            "without a client certificate, else PREFERRED on this host, else REQUIRED.",
            choices=SSL_MODES,
        ),
    ] = None
    ssl_ca: Annotated[Path | None, Option("FILE", "Certificate authorities (PEM).", "file")] = None
    ssl_cert: Annotated[Path | None, Option("FILE", "Client certificate (PEM).", "file")] = None
    ssl_key: Annotated[Path | None, Option("FILE", "Client key (PEM).", "file")] = None
    server_public_key: Annotated[
        Path | None,
        Option(
            "FILE",
            "The server's RSA key (PEM), with which the password is encrypted without TLS; only "
            "with ssl-mode DISABLED.",
            "file",
        ),
    ] = None
    accept_unverified_server: Annotated[
        bool,
        Option(
            "",
            "Connect to a server on another host although nothing proves which server answers: "
            "whoever answers in its place, or is on the way, can get the password.",
            otherwise="false",
        ),
    ] = False
    mysqlbinlog: Annotated[
        Path | None,
        Option(
            "PATH",
            "mysqlbinlog (MySQL) or mariadb-binlog (MariaDB).",
            name="mysqlbinlog",
            otherwise="the right one on PATH",
        ),
    ] = None
    server_id: Annotated[
        int | None,
        Option(
            "ID",
            "Server id of the streamer; no replica of the server may have the same.",
            otherwise="derived from source, bucket and host name",
            least=1,
            most=2**32 - 1,
        ),
    ] = None
    connect_timeout: Annotated[
        float,
        Option(
            "SECONDS",
            "Longest wait for a connection to the server, for its answer, or for the password "
            "command.",
            least=1,
            most=3600,
        ),
    ] = 10.0
    prefix: Prefix = "mysql"
    local_socket: LocalSocket | None = field(default=None, compare=False)
    """The socket of this host's server, for a source of which nothing else says where it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Config:
    """The bucket, and how to reach it. `prefix` has no slash at either end and may be empty.

    `picks` is for commands that read: which versions of objects count.
    """

    bucket: str
    prefix: str
    endpoint_url: Annotated[
        str | None,
        Option("URL", "S3 endpoint, for stores other than AWS.", "endpoint", otherwise=_BOTO),
    ] = None
    region: Annotated[str | None, Option("REGION", "AWS region.", otherwise=_BOTO)] = None
    addressing_style: Annotated[
        Literal["auto", "path", "virtual"],
        Option("STYLE", "Whether the bucket is in the host name (virtual) or in the path."),
    ] = "auto"
    profile: Annotated[str | None, Option("NAME", "AWS profile.", otherwise=_BOTO)] = None
    expected_bucket_owner: Annotated[
        str | None,
        Option(
            "ACCOUNT",
            "Number of the AWS account that owns the bucket: requests to a bucket of another "
            "account are refused by S3.",
            "account",
            otherwise="not checked",
        ),
    ] = None
    storage_class: Annotated[
        str | None,
        Option(
            "CLASS",
            "Storage class of archived binlogs. Only classes that answer a GET at once are "
            "allowed.",
            choices=tuple(sorted(IMMEDIATE_STORAGE_CLASSES)),
            otherwise="the store's own",
        ),
    ] = None
    sse: Annotated[
        Literal["AES256", "aws:kms"] | None,
        Option(
            "MODE",
            "Server-side encryption to request; it is an error if the store does not confirm it.",
            otherwise="the bucket's own",
        ),
    ] = None
    sse_kms_key_id: Annotated[
        str | None, Option("KEY", "KMS key, with --sse aws:kms.", otherwise="the account's own")
    ] = None
    object_lock: Annotated[
        ObjectLock | None,
        Option(
            "MODE:TIME",
            "Object Lock for everything below archive/ except pages: GOVERNANCE:30d or "
            "COMPLIANCE:30d. The bucket must have Object Lock.",
            "object lock",
            otherwise="the bucket's own",
        ),
    ] = None
    checksum: Annotated[
        Literal["auto", "crc64nvme", "md5", "none"],
        Option("MODE", "Checksum sent with each body; auto: CRC64NVME if the store supports it."),
    ] = "auto"
    part_size: Annotated[
        int,
        Option(
            "SIZE",
            "Size of the first 1,000 parts of a multipart upload; it doubles every 1,000 parts.",
            "size",
            least=MIN_PART_SIZE,
            most=MAX_PART_SIZE,
        ),
    ] = MIN_PART_SIZE
    concurrency: Annotated[
        int, Option("N", "Most requests at the same time.", least=1, most=256)
    ] = 32
    max_bandwidth: Annotated[
        int | None,
        Option(
            "SIZE",
            "Most bytes sent to the store each second, at least 64 KiB; the newest bytes go first.",
            "size",
            otherwise="no limit",
            least=64 << 10,
        ),
    ] = None
    picks: Picks = field(default_factory=Picks)

    @property
    def url(self) -> str:
        """Where the archive is: s3://bucket/prefix."""
        return f"s3://{self.bucket}/{self.prefix}".rstrip("/")

    @property
    def threads(self) -> int:
        """The most requests at the same time of a command that reads small objects."""
        return min(self.concurrency, _READING_MOST)


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamConfig:
    """What is streamed under which name, where it begins, and how often it is reported.

    `accept_new_server` is a server_uuid, or what replaces one (`ServerFacts.uuid`).
    """

    source: Annotated[
        str, Option("NAME", "Name of the server in the bucket, e.g. orders-primary.", "source")
    ]
    start_binlog: Annotated[
        BinlogName | None,
        Option(
            "NAME", "First binlog of an empty archive.", otherwise="the oldest that the server has"
        ),
    ] = None
    start_at: Annotated[
        Literal["oldest", "now"],
        Option(
            "WHERE",
            "First binlog of an empty archive: the oldest one, or (now) the open one.",
            otherwise="oldest",
        ),
    ] = "oldest"
    flush_interval: Annotated[
        float,
        Option(
            "SECONDS",
            "Longest time between two uploads of new bytes of the open binlog; at least 0.05. "
            "0: a binlog is durable only when it is closed.",
            least=0,
            most=3600,
        ),
    ] = 1.0
    heartbeat_interval: Annotated[
        float,
        Option(
            "SECONDS",
            "Time between two updates of the writer's heartbeat in the bucket.",
            least=1,
            most=3600,
        ),
    ] = 30.0
    stall_timeout: Annotated[
        float,
        Option(
            "SECONDS",
            "If mysqlbinlog sends nothing for this time although the server has more, it is "
            "restarted.",
            least=1,
            most=3600,
        ),
    ] = 60.0
    on_gap: Annotated[
        Literal["continue", "stop"],
        Option(
            "WHAT",
            "What to do if the server has purged the next binlog: continue with its oldest one "
            "and record the gap in the bucket, or stop.",
        ),
    ] = "continue"
    accept_new_server: Annotated[
        str | None,
        Option(
            "UUID",
            "Continue although another server answers, if it has this server_uuid.",
            "server uuid",
        ),
    ] = None
    take_over: Annotated[
        bool,
        Option(
            "",
            "Become the writer at once although another writer works, which then stands by; for a "
            "single start by hand, not for a service.",
            otherwise="false",
        ),
    ] = False
    exit_on_other_writer: Annotated[
        bool,
        Option(
            "",
            "Exit with code 9 where another writer of this source works, instead of standing by.",
            otherwise="false",
        ),
    ] = False
    metrics_listen: Annotated[
        str | None,
        Option(
            "HOST:PORT",
            "Address for GET /health, /live, /metrics, /status and the page at /, e.g. "
            "127.0.0.1:9275; an IPv6 address is in brackets.",
            "listen",
        ),
    ] = None
    heartbeat_url_file: Annotated[
        Path | None,
        Option(
            "FILE",
            "File that contains a URL, which may be a secret. The streamer sends a GET to it when "
            "more has become durable or the source is idle, at most once per heartbeat interval.",
            "file",
        ),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SpoolLimits:
    """How much the spool may use, and how much it leaves free. None: no limit; the default."""

    max_bytes: Annotated[
        int | None,
        Option(
            "SIZE",
            "Most disk space that the spool uses, at least 16 MiB. At the limit, nothing is read "
            "from the server until space is free.",
            "size",
            otherwise="no limit",
            least=16 * MIB,
        ),
    ] = None
    min_free_bytes: Annotated[
        int | None,
        Option(
            "SIZE",
            "Least space to leave free on the spool's file system. Below it, nothing is read from "
            "the server until space is free.",
            "size",
            otherwise="the larger of 1 GiB and 5 % of the file system",
            least=0,
        ),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    """The format of the log, and its lowest level."""

    format: Annotated[
        Literal["auto", "text", "json", "ecs"],
        Option("FORMAT", "auto: text on a terminal, JSON lines elsewhere."),
    ] = "auto"
    level: Annotated[
        Literal["debug", "info", "warning", "error"], Option("LEVEL", "Lowest level to log.")
    ] = "info"


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Everything that `stream` was asked for; `timing` has no option."""

    mysql: MysqlConfig
    s3: S3Config
    stream: StreamConfig
    spool: Annotated[
        Path,
        Option(
            "DIR",
            "Directory for what is not archived yet; each streamer needs its own.",
            name="spool",
            key="dir",
        ),
    ] = Path("/var/lib/binlog2s3")
    spool_limits: SpoolLimits = field(default_factory=SpoolLimits)
    log: LogConfig = field(default_factory=LogConfig)
    timing: Timing = DEFAULT

    @property
    def target(self) -> str:
        """The URL of the archive, for people and for the spool's records."""
        return self.s3.url


S3_URL = Option(
    "URL",
    "Bucket and prefix to stream to: s3://bucket/prefix.",
    "s3 url",
    name="s3-url",
    table="s3",
    key="url",
    required=True,
)
MYSQL_OPTIONS = options_of(MysqlConfig, table="mysql", prefix="mysql-")
LOGIN_OPTIONS = tuple(o for o in MYSQL_OPTIONS if o.field not in ("mysqlbinlog", "server_id"))
"""Those of a command that asks the server, and does not stream from it."""
_SPOOL = options_of(Config, table="spool")
_LIMITS = options_of(SpoolLimits, table="spool", prefix="spool-")
_S3 = options_of(S3Config, table="s3")
_STREAM = options_of(StreamConfig, table="stream")
_LOG = options_of(LogConfig, table="log", prefix="log-")
OPTIONS = (_STREAM[0], *MYSQL_OPTIONS, *_SPOOL, *_LIMITS, S3_URL, *_S3, *_STREAM[1:], *_LOG)
"""Those of `stream`, in the order of its help."""
BY_NAME = {option.name: option for option in OPTIONS}


def target_options(helps: Mapping[str, str]) -> tuple[Option, ...]:
    """The options of a server that a command changes, with its own words for some, by name."""
    return tuple(
        replace(
            option,
            help=helps.get(option.name, option.help),
            otherwise="" if option.name == "target-host" else option.otherwise,
        )
        for option in options_of(MysqlConfig, table="target", prefix="target-")
        if option.field in {login.field for login in LOGIN_OPTIONS}
    )


def server_of(values: Mapping[str, Any], options: Iterable[Option]) -> MysqlConfig:
    """How to reach the source."""
    return fill(MysqlConfig, options, values, local_socket=LocalSocket())


def target_of(values: Mapping[str, Any], options: Iterable[Option]) -> MysqlConfig:
    """How to reach a server that the command changes."""
    return fill(MysqlConfig, options, values, prefix="target")


def s3_of(values: Mapping[str, Any]) -> S3Config:
    """Where the bucket is."""
    bucket, prefix = split_s3_url(values["s3-url"])
    before = values.get("versions-before")
    picks = Picks(
        dict(values.get("object-version") or ()),
        datetime.fromtimestamp(before.at_us / 1e6, UTC) if before is not None else None,
    )
    return fill(S3Config, _S3, values, bucket=bucket, prefix=prefix, picks=picks)


def _config(values: Mapping[str, Any]) -> Config:
    return fill(
        Config,
        _SPOOL,
        values,
        mysql=server_of(values, MYSQL_OPTIONS),
        s3=s3_of(values),
        stream=fill(StreamConfig, _STREAM, values),
        spool_limits=fill(SpoolLimits, _LIMITS, values),
        log=fill(LogConfig, _LOG, values),
    )


def _problems(given: Given) -> Iterable[str]:
    yield from exclusive(given, ("start-binlog", "start-at"))
    if 0 < given.values.get("flush-interval", 0) < _LEAST_FLUSH_SECONDS:
        yield (
            f"{given.called('flush-interval')}: below {_LEAST_FLUSH_SECONDS:g} seconds; "
            "with 0, a binlog is durable only when it is closed"
        )
    yield from login_problems(given, "mysql")
    kms = given.values.get("sse") == "aws:kms" or "sse" in given.wrong
    if given.has("sse-kms-key-id") and not kms:
        yield f"{given.called('sse-kms-key-id')} needs --sse aws:kms"
    yield from file_problems(given, OPTIONS)


def login_problems(given: Given, prefix: Prefix) -> Iterable[str]:
    """What is wrong with the options for the login to a server."""
    if given.is_missing(f"{prefix}-user") and given.is_missing(f"{prefix}-defaults-file"):
        yield f"--{prefix}-user is missing (or a --{prefix}-defaults-file that names it)"
    addresses = (f"{prefix}-host", f"{prefix}-port")
    yield from excludes(given, f"{prefix}-socket", addresses, "give one way to connect")
    passwords = (f"{prefix}-password-file", f"{prefix}-password-command")
    yield from exclusive(given, passwords, "give one source of the password")
    yield from _tls_problems(given, prefix)


def _tls_problems(given: Given, prefix: Prefix) -> Iterable[str]:
    ca, cert, key = (f"{prefix}-ssl-{what}" for what in ("ca", "cert", "key"))
    own_mode, defaults, socket = (f"{prefix}-{w}" for w in ("ssl-mode", "defaults-file", "socket"))
    mode, called = given.values.get(own_mode), given.called(own_mode)
    if (
        mode in ("VERIFY_CA", "VERIFY_IDENTITY")
        and given.is_missing(ca)
        and given.is_missing(defaults)
    ):
        yield f"{called} {mode} needs --{ca} (or a --{defaults} that has ssl-ca)"
    if mode == "VERIFY_IDENTITY" and given.has(socket):
        yield f"{called} {mode} needs a host name, and {given.called(socket)} has none"
    if mode == "DISABLED":
        yield from excludes(given, own_mode, (ca, cert, key), "DISABLED uses no certificates")
    yield from pair(given, cert, key)
    yield from _public_key_problems(given, prefix)


def _public_key_problems(given: Given, prefix: Prefix) -> Iterable[str]:
    key, mode, socket = (f"{prefix}-{w}" for w in ("server-public-key", "ssl-mode", "socket"))
    in_file = given.is_missing(mode) and not given.is_missing(f"{prefix}-defaults-file")
    if given.has(key) and given.has(socket):
        yield contradiction(given, key, socket, "a socket needs no key")
    elif given.has(key) and given.values.get(mode) != "DISABLED" and not in_file:
        yield f"{given.called(key)} needs --{mode} DISABLED: {WITHOUT_TLS}"


STREAM = CommandOptions(OPTIONS, _problems, _config)
