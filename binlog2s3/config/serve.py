"""The options of `serve`, and one frozen `ServeConfig` of them.

How to reach the bucket may be in the configuration file; what is served to whom is said on the
command line or in the environment. Nothing listens outside of this machine without TLS and a
password.
"""

import ipaddress
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from binlog2s3.config.bucket import reading
from binlog2s3.config.given import (
    CommandOptions,
    Given,
    contradiction,
    exclusive,
    file_problems,
    pair,
    path_problems,
)
from binlog2s3.config.options import Option, fill, options_of, split_listen
from binlog2s3.config.stream import BY_NAME, LogConfig, S3Config, s3_of

_DIRECTORIES = ("dir", "binlog-dir")
_LOG = tuple(BY_NAME[name] for name in ("log-format", "log-level"))


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeConfig:
    """What is served, where, and to whom: `s3` and `source`, `directory`, or `binlog_dir` is set.

    `users` and `password_files` have one entry for each account, in the same order.
    """

    s3: S3Config | None
    source: str | None
    log: LogConfig
    listen: Annotated[
        str,
        Option(
            "HOST:PORT",
            "Address for replicas and other clients, e.g. 127.0.0.1:3307; an IPv6 address is in "
            "brackets. Outside of this machine's loopback, TLS is required.",
            "listen",
        ),
    ]
    users: Annotated[
        tuple[str, ...],
        Option(
            "USER",
            "Name of the account with which clients log in. May be given several times, with a "
            "--password-file each.",
            name="user",
        ),
    ] = ()
    password_files: Annotated[
        tuple[Path, ...],
        Option(
            "FILE",
            "File that contains the password of the --user and nothing else; not empty.",
            name="password-file",
        ),
    ] = ()
    directory: Annotated[
        Path | None,
        Option(
            "DIR",
            "Serve what `pitr --output-dir` wrote to this directory, and no bucket.",
            name="dir",
        ),
    ] = None
    binlog_dir: Annotated[
        Path | None,
        Option(
            "DIR",
            "Serve a server's own binlogs, which are all in this directory and do not change any "
            "more, and no bucket.",
            name="binlog-dir",
        ),
    ] = None
    lineage: Annotated[
        str | None,
        Option("ID", "Serve the history that ends in this lineage.", otherwise="the last writer's"),
    ] = None
    tls_cert: Annotated[
        Path | None,
        Option("FILE", "Certificate for clients that use TLS, with its chain (PEM).", "file"),
    ] = None
    tls_key: Annotated[Path | None, Option("FILE", "Its key (PEM).", "file")] = None
    max_connections: Annotated[
        int,
        Option("N", "Most connections that have logged in.", least=1, most=10_000),
    ] = 100
    max_user_connections: Annotated[
        int, Option("N", "Most of them that one user may have.", least=1, most=10_000)
    ] = 50
    max_user_bandwidth: Annotated[
        int | None,
        Option(
            "SIZE",
            "Most bytes a second that all connections of one user get together.",
            "size",
            otherwise="no limit",
            least=1 << 10,
        ),
    ] = None
    poll_interval: Annotated[
        float,
        Option(
            "SECONDS",
            "How often the bucket is asked for more while a client waits for it.",
            least=0.1,
            most=60,
        ),
    ] = 0.5
    serve_id: Annotated[
        int,
        Option(
            "ID",
            "Server id that clients see; no replica may have the same.",
            name="serve-id",
            least=1,
            most=2**32 - 1,
        ),
    ] = 4_294_967_203
    status_listen: Annotated[
        str | None,
        Option(
            "HOST:PORT",
            "Address for GET /health, /live, /metrics, /status and the page at /, e.g. "
            "127.0.0.1:9276.",
            "listen",
        ),
    ] = None


SERVE_OPTIONS = options_of(ServeConfig)
"""Those that only `serve` has."""
_BUCKET = tuple(
    replace(option, required=False)
    for option in reading("Server in the bucket whose history is served.", required=False)
)


def _config(values: Mapping[str, Any]) -> ServeConfig:
    is_bucket = all(values.get(name) is None for name in _DIRECTORIES)
    return fill(
        ServeConfig,
        SERVE_OPTIONS,
        values,
        s3=s3_of(values) if is_bucket else None,
        source=values.get("source") if is_bucket else None,
        log=fill(LogConfig, _LOG, values),
    )


def is_loopback(host: str) -> bool:
    """Whether only this machine can connect to this address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _problems(given: Given) -> Iterable[str]:
    yield from _what_problems(given)
    yield from _account_problems(given)
    yield from pair(given, "tls-cert", "tls-key")
    if given.has("listen"):
        host, _ = split_listen(given.values["listen"])
        if not is_loopback(host) and given.is_missing("tls-cert"):
            yield (
                f"{given.called('listen')} {host} can be reached from outside of this machine: "
                "that needs --tls-cert and --tls-key"
            )
    yield from file_problems(given, SERVE_OPTIONS)


def _what_problems(given: Given) -> Iterable[str]:
    directories = [name for name in _DIRECTORIES if given.has(name)]
    yield from exclusive(given, directories, "serve one directory")
    for directory in directories:
        for name in ("source", "s3-url", "lineage"):
            if given.on_command_line(name):
                yield contradiction(given, directory, name, "serve a bucket or a directory")
        yield from path_problems(given, directory)
    if directories:
        return
    for name in ("source", "s3-url"):
        if given.is_missing(name):
            yield f"--{name} is missing (or --dir, --binlog-dir)"


def _account_problems(given: Given) -> Iterable[str]:
    users, files = given.values.get("user") or (), given.values.get("password-file") or ()
    if given.is_missing("user"):
        yield "--user is missing"
    elif len(users) != len(files):
        yield f"there are {len(users)} --user and {len(files)} --password-file: one for each"
    if len(set(users)) < len(users):
        yield "each --user may be given once"
    for path in files:
        if not path.is_file():
            yield f"--password-file: {path}: not a file"


SERVE = CommandOptions((*SERVE_OPTIONS, *_BUCKET, *_LOG), _problems, _config)
