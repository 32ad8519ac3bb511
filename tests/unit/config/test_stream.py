"""Options, environment, file and defaults become one Config, or one list of all problems."""

import json
import os
import socket
from collections.abc import Mapping
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from binlog2s3.binlog.names import BinlogName
from binlog2s3.cli import commands as cli
from binlog2s3.cli.options import config_of
from binlog2s3.config.file import read_file
from binlog2s3.config.options import (
    Option,
    options_of,
    parse,
    parse_seconds,
    parse_size,
    split_s3_url,
)
from binlog2s3.config.prune import PruneConfig
from binlog2s3.config.stream import BY_NAME, OPTIONS, STREAM, Config, LocalSocket, SpoolLimits
from binlog2s3.errors import ConfigError

TABLES = tuple(dict.fromkeys(option.table for option in OPTIONS))
LEAST = {"source": "orders", "s3-url": "s3://bucket/p", "mysql-user": "repl"}
MIB = 1 << 20

WORDS = ("one", "two", "three")
BY_KIND: Mapping[str, tuple[str, str, str]] = {
    "path": ("/one", "/two", "/three"),
    "file": ("/one", "/two", "/three"),
    "flag": ("true", "false", "true"),
    "integer": ("1", "2", "3"),
    "duration": ("1", "2s", "3m"),
    "size": ("16MiB", "1G", "33554432"),
    "binlog": ("b.000001", "b.000002", "b.000003"),
}
OF_THEIR_OWN: Mapping[str, tuple[str, str, str]] = {
    "mysql-password-command": ("one", "two 'a b'", "three"),
    "s3-url": ("s3://one", "s3://two", "s3://three"),
    "endpoint-url": ("http://one", "http://two", "http://three"),
    "expected-bucket-owner": ("111111111111", "222222222222", "333333333333"),
    "object-lock": ("GOVERNANCE:1d", "COMPLIANCE:2d", "GOVERNANCE:30d"),
    "flush-interval": ("1", "2", "3"),
    "accept-new-server": ("3e11fa47-71ca-11e1-9e33-c80aa9429562", "00000001-00000000", "X"),
    "metrics-listen": ("127.0.0.1:1", "127.0.0.1:2", "[::1]:3"),
    "heartbeat-url-file": ("/dev/null", "/dev/zero", "/dev/full"),
}


def samples(option: Option) -> tuple[str, str, str]:
    """Three good values, as texts: for the command line, the environment, the file."""
    if option.choices:
        first, second = option.choices[0], option.choices[-1]
        return first, second, first.swapcase()
    return OF_THEIR_OWN.get(option.name) or BY_KIND.get(option.kind, WORDS)


def toml(option: Option, text: str) -> str:
    """A TOML line with this value, as the option's kind wants it."""
    bare = option.kind in ("integer", "flag")
    return f"{option.key} = {text if bare else json.dumps(text)}\n"


def toml_file(directory: Path, values: Mapping[str, str]) -> Path:
    """A configuration file with these options."""
    path = directory / "config.toml"
    tables = {
        table: [toml(BY_NAME[name], text) for name, text in values.items()
                if BY_NAME[name].table == table]
        for table in TABLES
    }  # fmt: skip
    path.write_text("".join(f"[{table}]\n{''.join(lines)}" for table, lines in tables.items()))
    return path


def merged(arguments: list[str]) -> dict[str, Any]:
    """What click makes of command line, environment and file, by option name."""
    with cli.stream.make_context("binlog2s3 stream", arguments) as ctx:
        return {option.name: ctx.params[option.parameter] for option in OPTIONS}


def configured(arguments: list[str]) -> Config:
    """The Config of a command line, or ConfigError."""
    with cli.stream.make_context("binlog2s3 stream", arguments) as ctx:
        return config_of(ctx, ctx.params, STREAM)


def arguments(values: Mapping[str, str]) -> list[str]:
    """A command line; a flag has no value there."""
    return [
        f"--{name}" if BY_NAME[name].kind == "flag" else f"--{name}={text}"
        for name, text in values.items()
    ]


def problems(*extra: str, least: Mapping[str, str] = LEAST) -> tuple[str, ...]:
    """All problems of a command line."""
    with pytest.raises(ConfigError) as caught:
        configured([*arguments(least), *extra])
    assert caught.value.exit_code == 3
    assert caught.value.hint
    return caught.value.problems


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for option in OPTIONS:
        monkeypatch.delenv(option.environment, raising=False)
    monkeypatch.delenv("BINLOG2S3_CONFIG", raising=False)


@pytest.mark.parametrize("name", BY_NAME)
def test_option_beats_environment_beats_file_beats_default(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For each option: command line, then environment, then file, then default."""
    option = BY_NAME[name]
    on_line, in_environment, in_file = samples(option)

    def value(*given: str) -> object:
        raw = merged(list(given))[name]
        return parse(option, raw) if isinstance(raw, str) else raw

    assert value() is None
    from_file = f"--config={toml_file(tmp_path, {name: in_file})}"
    assert value(from_file) == parse(option, in_file)
    monkeypatch.setenv(option.environment, in_environment)
    assert value() == value(from_file) == parse(option, in_environment)
    assert value(from_file, *arguments({name: on_line})) == parse(option, on_line)


def test_every_value_reaches_its_place(tmp_path: Path) -> None:
    """What the file says stands in the Config, under the name of the table's key."""
    pem = tmp_path / "pem"
    pem.touch()
    values = {name: samples(option)[0] for name, option in BY_NAME.items()} | {
        name: str(pem) for name, option in BY_NAME.items() if option.kind == "file"
    }
    for other_way in ("mysql-socket", "mysql-password-command", "mysql-server-public-key"):
        del values[other_way]
    del values["start-at"]
    values |= {"s3-url": "s3://one/a/b/", "sse": "aws:kms", "flush-interval": "0"}
    values |= {"mysql-ssl-mode": "REQUIRED", "checksum": "md5", "log-level": "debug"}
    values |= {"expected-bucket-owner": "012345678901"}
    values |= {"addressing-style": "path", "on-gap": "stop", "storage-class": "STANDARD"}
    values |= {"part-size": "6MiB", "spool-min-free-bytes": "0", "log-format": "text"}
    config = configured([f"--config={toml_file(tmp_path, values)}"])

    assert (config.mysql.host, config.mysql.port, config.mysql.socket) == ("one", 1, None)
    assert (config.mysql.user, config.mysql.password_file) == ("one", pem)
    assert (config.mysql.defaults_file, config.mysql.ssl_mode) == (pem, "REQUIRED")
    assert (config.mysql.ssl_ca, config.mysql.ssl_cert, config.mysql.ssl_key) == (pem, pem, pem)
    assert (config.mysql.mysqlbinlog, config.mysql.server_id) == (Path("/one"), 1)
    assert config.mysql.connect_timeout == 1.0
    assert (config.s3.bucket, config.s3.prefix) == ("one", "a/b")
    assert (config.s3.endpoint_url, config.s3.region) == ("http://one", "one")
    assert (config.s3.addressing_style, config.s3.profile) == ("path", "one")
    assert config.s3.expected_bucket_owner == "012345678901"
    assert (config.s3.storage_class, config.s3.checksum) == ("STANDARD", "md5")
    assert (config.s3.sse, config.s3.sse_kms_key_id) == ("aws:kms", "one")
    assert (config.s3.part_size, config.s3.concurrency) == (6 * MIB, 1)
    assert (config.stream.source, config.stream.start_at) == ("one", "oldest")
    assert config.stream.start_binlog == BinlogName.parse("b.000001")
    assert (config.stream.flush_interval, config.stream.heartbeat_interval) == (0.0, 1.0)
    assert config.stream.take_over is True
    assert (config.stream.stall_timeout, config.stream.on_gap) == (1.0, "stop")
    assert config.stream.accept_new_server == "3e11fa47-71ca-11e1-9e33-c80aa9429562"
    assert (config.spool, config.log.format, config.log.level) == (Path("/one"), "text", "debug")
    assert config.spool_limits == SpoolLimits(max_bytes=16 * MIB, min_free_bytes=0)


def test_the_socket_of_this_host(tmp_path: Path) -> None:
    """The first that is one, and no other file; what cannot be looked at is none."""
    file, there = tmp_path / "file.sock", tmp_path / "my.sock"
    file.touch()
    paths = (tmp_path / "none.sock", file, file / "x.sock", there)
    assert LocalSocket(paths).find() is None
    with closing(socket.socket(socket.AF_UNIX)) as listener:
        listener.bind(str(there))
        assert LocalSocket(paths).find() == there


def test_defaults_are_good_values() -> None:
    """Every default is a value that the option itself would take."""
    for option in OPTIONS:
        if option.default is not None:
            assert parse(option, option.default) == option.default


def test_missing() -> None:
    """All that is missing is named at once."""
    assert problems(least={}) == (
        "--source is missing",
        "--s3-url is missing",
        "--mysql-user is missing (or a --mysql-defaults-file that names it)",
    )


def test_a_wrong_value_is_not_missing_too() -> None:
    """One mistake, one line."""
    assert len(problems(least={"source": "a b", "s3-url": "x", "mysql-user": ""})) == 3


def test_an_option_file_may_name_the_user(tmp_path: Path) -> None:
    """Without a user, an option file is enough; and it may have the certificate authorities."""
    path = tmp_path / "my.cnf"
    path.touch()
    given = ["--source=a", "--s3-url=s3://bucket", f"--mysql-defaults-file={path}"]
    assert configured([*given, "--mysql-ssl-mode=VERIFY_CA"]).mysql.user is None


def test_everything_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Problems of file, environment and command line come in one error, each by its own name."""
    path = tmp_path / "x.toml"
    path.write_text(
        '[mysql]\nport = "3306"\nsocket = "/s"\n[s3]\nurll = "s3://b"\n[streem]\na = 1\n'
    )
    monkeypatch.setenv("BINLOG2S3_CONFIG", str(path))
    monkeypatch.setenv("BINLOG2S3_CONCURRENCY", "many")
    monkeypatch.setenv("BINLOG2S3_MYSQL_HOST", "db1")
    assert problems("--source=a/b", "--part-size=1K", least={}) == (
        f"[mysql] port of {path}: '3306' is a string; write the number without quotes",
        f"{path}: unknown key [s3] urll (did you mean url?)",
        f"{path}: unknown table [streem] (did you mean stream?)",
        "--source: 'a/b' is not 1 to 64 of the characters A-Z a-z 0-9 . _ -",
        "--part-size: '1K' is below the minimum, 5 MiB",
        "BINLOG2S3_CONCURRENCY: 'many' is not a whole number",
        "--mysql-user is missing (or a --mysql-defaults-file that names it)",
        (
            f"[mysql] socket of {path} and BINLOG2S3_MYSQL_HOST contradict each other: "
            "give one way to connect"
        ),
    )


@pytest.mark.parametrize("name", [n for n, o in BY_NAME.items() if o.kind not in ("path", "file")])
def test_a_wrong_value_is_named_as_it_was_given(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`--name`, `BINLOG2S3_NAME` or `[table] key of FILE`, whichever has the wrong value."""
    option, wrong = BY_NAME[name], "\t"
    others = {key: value for key, value in LEAST.items() if key != name}
    if option.kind != "flag":
        assert problems(f"--{name}={wrong}", least=others)[0].startswith(f"--{name}: ")
    path = tmp_path / "x.toml"
    path.write_text(f'[{option.table}]\n{option.key} = "\\t"\n')
    in_file = problems(f"--config={path}", least=others)
    assert in_file[0].startswith(f"[{option.table}] {option.key} of {path}: ")
    monkeypatch.setenv(option.environment, wrong)
    assert problems(least=others)[0].startswith(f"{option.environment}: ")


WRONG_VALUES = """
[mysql] port = true | true is not a whole number
[mysql] port = 3306.0 | 3306.0 is not a whole number
[mysql] port = 0 | 0 is below the minimum, 1
[mysql] port = 65536 | 65536 is above the maximum, 65535
[mysql] port = -1 | -1 is below the minimum, 1
[mysql] host = 5 | 5 is not a string in quotes
[mysql] host = false | false is not a string in quotes
[mysql] host = ["a"] | an array is not a string in quotes
[mysql] host = {p = "x"} | a table is not a string in quotes
[mysql] host = 2026-01-01 | a date or time is not a string in quotes
[s3] part_size = true | true is not a size such as 5MiB, 64M or 1G
[s3] part_size = 5242880.0 | 5242880.0 is not a size such as 5MiB, 64M or 1G
[s3] part_size = [5] | an array is not a size such as 5MiB, 64M or 1G
[stream] heartbeat_interval = nan | nan is not a duration such as 30, 30s or 5m
[stream] heartbeat_interval = inf | inf is not a duration such as 30, 30s or 5m
[stream] heartbeat_interval = 0.5 | 0.5 is below the minimum, 1
[stream] start_binlog = '../x.1' | not the name of a binlog: '../x.1'
[stream] stall_timeout = 0.9 | 0.9 is below the minimum, 1
[stream] on_gap = 'go on' | 'go on' is not one of continue, stop
[spool] max_bytes = '16383K' | '16383K' is below the minimum, 16 MiB
[spool] min_free_bytes = -1 | -1 is below the minimum, 0
[spool] min_free_bytes = '5 %' | '5 %' is not a size such as 5MiB, 64M or 1G
[stream] take_over = 1 | 1 is not true or false
[stream] take_over = [] | an array is not true or false
[stream] take_over = 'true' | 'true' is a string; write true or false without quotes
"""


@pytest.mark.parametrize("row", WRONG_VALUES.strip().splitlines())
def test_wrong_values_in_a_file(row: str, tmp_path: Path) -> None:
    """Wrong types, and values out of range: each with what would be right."""
    setting, _, complaint = row.partition(" | ")
    table, key, *value = setting.split(" ")
    path = tmp_path / "x.toml"
    path.write_text(f"{table}\n{key} {' '.join(value)}\n")
    (found,) = problems(f"--config={path}")
    assert found.startswith(f"{table} {key} of {path}: {complaint}")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (f"[mysql]\nport = 0x{'f' * 5000}", "[mysql] port of {}: this number is above the maximum"),
        ("[s3]\npart-size = '5M'\npart_size = '6M'", "{}: [s3] part_size is given twice"),
        ("mysql = 'x'", "{}: mysql must be a table, [mysql]"),
        ("source = 'x'", "{}: source is outside a table (did you mean [stream] source?)"),
        ("[mysql]\npassword = 'x'", "{}: unknown key [mysql] password (did you mean password_"),
        ("[mysql]\nmysql_port = 1", "{}: unknown key [mysql] mysql_port (did you mean [mysql] "),
        ("[s3]\nsource = 'x'", "{}: unknown key [s3] source (did you mean [stream] source?)"),
        ("[spool]\nzzz = 'x'", "{}: unknown key [spool] zzz (known: dir, max_bytes, min_"),
        ("[zzz]", "{}: unknown table [zzz] (known: log, mysql, s3, spool, stream, target)"),
    ],
)  # fmt: skip
def test_what_is_unknown_in_a_file(text: str, problem: str, tmp_path: Path) -> None:
    """Tables and keys, with what may be meant."""
    path = tmp_path / "x.toml"
    path.write_text(text)
    (found,) = problems(f"--config={path}")
    assert found.startswith(problem.format(path))


def test_good_types_in_a_file(tmp_path: Path) -> None:
    """Sizes and durations may be numbers or texts with units; dashes and underscores are one."""
    path = tmp_path / "x.toml"
    path.write_text(
        "[s3]\npart-size = 6291456\n[stream]\nheartbeat-interval = 2\n"
        "[mysql]\nconnect_timeout = 2.5\n"
    )
    config = configured([*arguments(LEAST), f"--config={path}"])
    assert config.s3.part_size == 6 * MIB
    assert (config.stream.heartbeat_interval, config.mysql.connect_timeout) == (2.0, 2.5)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"host = ", "not TOML: "),
        (b"[mysql]\nhost = db1\n", 'strings need quotes: host = "db1"'),
        (b"[mysql]\n[mysql]\n", "not TOML: "),
        (b"# \xff", "not UTF-8 text"),
        (b"a = " + b"9" * 5000, "digits"),
        (b"a = " + b"[" * 5000, "recursion"),
        (b"#" * (1 << 20) + b"#", "larger than 1 MiB"),
    ],
)
def test_what_is_no_configuration_file(content: bytes, words: str, tmp_path: Path) -> None:
    """A file that cannot be understood is one problem; what it may hold is not called missing."""
    path = tmp_path / "x.toml"
    path.write_bytes(content)
    found = problems(f"--config={path}", "--concurrency=x", least={})
    assert len(found) == 2
    assert found[0].startswith(f"{path}: ")
    assert words in found[0]
    assert found[1].startswith("--concurrency: ")


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    """A directory, a file that is not there: named with the reason."""
    assert problems(f"--config={tmp_path}") == (f"{tmp_path}: is a directory",)
    assert problems("--config=/no/x") == ("/no/x: no such file or directory",)
    assert problems(f"--mysql-ssl-ca={tmp_path}") == (
        f"--mysql-ssl-ca: {tmp_path}: is a directory",
    )
    assert problems("--mysql-password-file=/no/x") == (
        "--mysql-password-file: /no/x: no such file or directory",
    )


def test_a_password_file_is_read_more_than_once(tmp_path: Path) -> None:
    """/dev/null is an empty password; a pipe would be empty at the second connection."""
    assert configured([*arguments(LEAST), "--mysql-password-file=/dev/null"])
    os.mkfifo(tmp_path / "pipe")
    (found,) = problems(f"--mysql-password-file={tmp_path / 'pipe'}")
    assert found.endswith("cannot be read twice (a pipe or socket)")


NO_KEY = (
    "--mysql-server-public-key needs --mysql-ssl-mode DISABLED: inside TLS the password itself is "
    "sent, and no key is used"
)


@pytest.mark.parametrize(
    ("extra", "problem"),
    [
        ("--mysql-socket=/s --mysql-port=1",
         "--mysql-socket and --mysql-port contradict each other: give one way to connect"),
        ("--mysql-password-file=/dev/null --mysql-password-command=p",
         "--mysql-password-file and --mysql-password-command contradict each other: "),
        ("--start-binlog=b.000001 --start-at=now",
         "--start-binlog and --start-at contradict each other: give one of them"),
        ("--mysql-ssl-mode=VERIFY_CA",
         "--mysql-ssl-mode VERIFY_CA needs --mysql-ssl-ca "),
        ("--mysql-ssl-mode=VERIFY_IDENTITY --mysql-ssl-ca=/dev/null --mysql-socket=/s",
         "--mysql-ssl-mode VERIFY_IDENTITY needs a host name, and --mysql-socket has none"),
        ("--mysql-ssl-mode=disabled --mysql-ssl-ca=/dev/null",
         "--mysql-ssl-mode and --mysql-ssl-ca contradict each other: "),
        ("--mysql-server-public-key=/dev/null", NO_KEY),
        ("--mysql-server-public-key=/dev/null --mysql-ssl-mode=REQUIRED", NO_KEY),
        ("--mysql-server-public-key=/dev/null --mysql-socket=/s",
         "--mysql-server-public-key and --mysql-socket contradict each other: "),
        ("--mysql-ssl-cert=/dev/null", "--mysql-ssl-cert needs --mysql-ssl-key"),
        ("--mysql-ssl-key=/dev/null", "--mysql-ssl-key needs --mysql-ssl-cert"),
        ("--sse-kms-key-id=k", "--sse-kms-key-id needs --sse aws:kms"),
        ("--sse-kms-key-id=k --sse=AES256", "--sse-kms-key-id needs --sse aws:kms"),
        ("--flush-interval=40ms",
         "--flush-interval: below 0.05 seconds; "),
    ],
)  # fmt: skip
def test_contradictions(extra: str, problem: str) -> None:
    """What cannot be meant together is refused, in one line."""
    (found,) = problems(*extra.split())
    assert found.startswith(problem)


@pytest.mark.parametrize(
    "sse", [["--sse=AES256"], ["--sse=aws:kms"], ["--sse=aws:kms", "--sse-kms-key-id=k"]]
)
def test_encryption_that_can_be_meant(sse: list[str]) -> None:
    """AES256, KMS with the account's own key, KMS with a key."""
    config = configured([*arguments(LEAST), *sse])
    assert (config.s3.sse, config.s3.sse_kms_key_id) == (
        sse[0].removeprefix("--sse="),
        "k" if len(sse) == 2 else None,
    )


@pytest.mark.parametrize("name", ["GLACIER", "DEEP_ARCHIVE", "glacier"])
def test_storage_classes_one_must_wait_for_are_refused(name: str) -> None:
    """A recovery cannot wait for hours, and the message says so."""
    (found,) = problems(f"--storage-class={name}")
    assert found.startswith(
        f"--storage-class: {name} needs a restore request and hours before a binlog can be read; "
        "use one of "
    )
    assert "GLACIER_IR" in found


@pytest.mark.parametrize(
    ("url", "bucket", "prefix"),
    [
        ("s3://bucket", "bucket", ""),
        ("s3://bucket/", "bucket", ""),
        ("s3://bucket/a", "bucket", "a"),
        ("s3://bucket/a/b/", "bucket", "a/b"),
        ("s3://my.bucket-1/A_b.c!*'()", "my.bucket-1", "A_b.c!*'()"),
        ("s3://abc/" + "x" * 512, "abc", "x" * 512),
    ],
)
def test_s3_urls(url: str, bucket: str, prefix: str) -> None:
    """A bucket, and a prefix without slashes around it."""
    assert split_s3_url(url) == (bucket, prefix)
    config = configured(arguments(LEAST | {"s3-url": url}))
    assert (config.s3.bucket, config.s3.prefix) == (bucket, prefix)


FORM = "is not of the form s3://bucket/prefix"
NAME = "a bucket name has 3 to 63 of the characters a-z 0-9 . -"
EMPTY = "the prefix must not have an empty part, . or .."
CHARACTERS = "the prefix has at most 512 of the characters"
ARN = "s3://arn:aws:s3:eu-central-1:123456789012:accesspoint/binlogs/pre"


@pytest.mark.parametrize(
    ("words", "url"),
    [
        *((FORM, url) for url in ("bucket", "s3://", "s3:///prefix", "https://bucket")),
        (FORM, "s3://bucket/a?versionId=1"),
        (NAME, "s3://Bucket/a"),
        *((NAME, f"s3://{bucket}") for bucket in ("my_bucket", "ab", "a" * 64)),
        ("give the alias of the access point (...-s3alias), not its ARN", ARN),
        *((EMPTY, f"s3://bucket/{path}") for path in ("/", "/a", "a//b", "a//", "./a", "a/..")),
        *((CHARACTERS, f"s3://abc/{path}") for path in ("a b", "ä", "x" * 513)),
    ],
)
def test_wrong_s3_urls(words: str, url: str) -> None:
    """What S3 would refuse, and what it would take but nobody means."""
    (found,) = problems(f"--s3-url={url}", least={k: v for k, v in LEAST.items() if k != "s3-url"})
    assert found.startswith("--s3-url: ")
    assert words in found


@pytest.mark.parametrize(
    "url",
    ["http://minio:9000", "https://s3.example.com", "https://s3.example.com/",
     "http://127.0.0.1:9000/base", "http://[::1]:9000", "http://my_store"],
)  # fmt: skip
def test_endpoints(url: str) -> None:
    """Host names, addresses of both kinds, a port, a path."""
    assert configured([*arguments(LEAST), f"--endpoint-url={url}"]).s3.endpoint_url == url


@pytest.mark.parametrize(
    "url",
    ["minio:9000", "s3://bucket", "http://", "http://:9000", "http://host:port", "http://host:0",
     "http://host:65536", "http://[::1", "http://[zz]", "http://ho st", "http://höst",
     "http://host/a b", "http://host?x=1", "http://host/#x"],
)  # fmt: skip
def test_wrong_endpoints(url: str) -> None:
    """What cannot be an endpoint is refused before the first request."""
    (found,) = problems(f"--endpoint-url={url}")
    assert found.startswith("--endpoint-url: ")
    assert found.endswith(("is not of the form https://host:port", "a query or a fragment"))


@pytest.mark.parametrize("name", ["endpoint-url", "s3-url"])
@pytest.mark.parametrize(
    "url",
    ["http://me:hunter2@host", "http://me:hunter2@host:port", "http://me:hun?ter2@host",
     "http://me:hun/hunter2@host", "http://hunter2@host", "http://me:hunter2@[bad",
     "http://host?key=hunter2", "http://host/#hunter2", "me:hunter2@host",
     "s3://key:hunter2@bucket/prefix", "s3://key:hunter2@bucket\x01", "s3://bucket?key=hunter2"],
)  # fmt: skip
def test_what_may_be_secret_in_a_url_is_not_repeated(name: str, url: str, tmp_path: Path) -> None:
    """A user and password in a URL are refused, and not printed by the refusal."""
    others = {key: value for key, value in LEAST.items() if key != name}
    path = toml_file(tmp_path, {name: url})
    for given_as in (f"--{name}={url}", f"--config={path}"):
        (line,) = problems(given_as, least=others)
        assert "hun" not in line


def test_secrets_in_wrong_places_of_a_file_are_not_repeated(tmp_path: Path) -> None:
    """A password under a key of its own guess, or as a table's value, is not printed."""
    path = tmp_path / "x.toml"
    path.write_text(
        "password = 'hunter2'\n[mysql]\npassword = 'hunter2'\nuser = {password = 'hunter2'}\n"
        "host = ['hunter2']\n[pw]\na = 'hunter2'\n"
    )
    found = problems(f"--config={path}")
    assert len(found) == 5
    assert "hunter2" not in "".join(found)


def test_a_config_holds_no_secret(tmp_path: Path) -> None:
    """The password's file is named, never read: repr(Config) may be logged."""
    path = tmp_path / "pw"
    path.write_text("hunter2")
    config = configured([*arguments(LEAST), f"--mysql-password-file={path}"])
    assert str(path) in repr(config)
    assert "hunter2" not in repr(config)


@pytest.mark.parametrize(
    ("text", "size"),
    [("0", 0), ("5242880", 5 * MIB), ("5MiB", 5 * MIB), ("5 MB", 5 * MIB), ("5m", 5 * MIB),
     (" 64K ", 65536), ("1.5G", 3 << 29), ("1T", 1 << 40), ("7B", 7)],
)  # fmt: skip
def test_sizes(text: str, size: int) -> None:
    """Bytes, or units that are powers of 1024."""
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "x", "-1", "5iB", "5 P", "1e3", "٣", "9" * 400, "1.", "0x10"])
def test_wrong_sizes(text: str) -> None:
    """Anything else says what a size looks like."""
    with pytest.raises(ValueError, match="is not a size such as"):
        parse_size(text)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("30", 30.0), ("0.5", 0.5), ("250ms", 0.25), ("30s", 30.0), ("5m", 300.0), ("5 min", 300.0),
     ("1h", 3600.0), (" 2 ", 2.0)],
)  # fmt: skip
def test_durations(text: str, seconds: float) -> None:
    """Seconds, or with a unit."""
    assert parse_seconds(text) == seconds


@pytest.mark.parametrize("text", ["", "x", "-1", "1w", "1e3", "inf", "nan", "٣", "9" * 400])
def test_wrong_durations(text: str) -> None:
    """Anything else says what a duration looks like."""
    with pytest.raises(ValueError, match="is not a duration such as"):
        parse_seconds(text)


@pytest.mark.parametrize(
    ("text", "on"),
    [("true", True), ("TRUE", True), ("1", True), ("yes", True), (" on ", True),
     ("false", False), ("False", False), ("0", False), ("no", False), ("off", False)],
)  # fmt: skip
def test_flags_in_the_environment(text: str, on: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The words that people write there."""
    monkeypatch.setenv("BINLOG2S3_TAKE_OVER", text)
    assert configured(arguments(LEAST)).stream.take_over is on
    assert configured([*arguments(LEAST), "--take-over"]).stream.take_over is True


@pytest.mark.parametrize("text", ["maybe", " ", "2", "-", "truee"])
def test_wrong_flags_in_the_environment(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Anything else is not silently off; an empty variable is as none."""
    monkeypatch.setenv("BINLOG2S3_TAKE_OVER", text)
    assert problems() == (f"BINLOG2S3_TAKE_OVER: {text!r} is not true or false",)
    monkeypatch.setenv("BINLOG2S3_TAKE_OVER", "")
    assert configured(arguments(LEAST)).stream.take_over is False


@pytest.mark.parametrize("text", ["a b", "a_b", "a.b", "x" * 65, "é", "٣", "3e11fa47:1-5"])
def test_what_is_no_server_to_accept(text: str) -> None:
    """A GTID set or a host's name, for example."""
    (found,) = problems(f"--accept-new-server={text}")
    assert found.startswith("--accept-new-server: ")
    assert found.endswith("is not 1 to 64 of the characters 0-9 A-Z a-z -")


def test_a_home_directory_may_be_meant(monkeypatch: pytest.MonkeyPatch) -> None:
    """~ is the home directory; that of nobody is an error."""
    monkeypatch.setenv("HOME", "/home/me")
    assert configured([*arguments(LEAST), "--spool=~/spool"]).spool == Path("/home/me/spool")
    assert problems("--spool=~nosuchuser/x") == ("--spool: '~nosuchuser/x': there is no such user",)


def test_long_values_are_cut_in_messages() -> None:
    """A message stays on a line."""
    (found,) = problems(f"--mysql-port={'x' * 10_000}")
    assert len(found) < 200


SLOW = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture]  # a shared machine
TOML_VALUES = st.recursive(
    st.text()
    | st.integers()
    | st.floats()
    | st.booleans()
    | st.sampled_from([datetime(2026, 1, 1, tzinfo=UTC), 1 << 10000, "1" * 5000]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(), inner, max_size=2),
    max_leaves=3,
)
HINTS = st.sampled_from(
    ["s3://", "s3://b@", "http://", "http://[", "~", "1", ".", "/", "e", "\0", "\ud800", "٣", "KiB"]
)
TEXTS = st.text() | st.lists(HINTS | st.text(max_size=3), max_size=5).map("".join)


@settings(suppress_health_check=SLOW)
@given(option=st.sampled_from(OPTIONS), raw=TOML_VALUES | TEXTS)
@example(option=BY_NAME["part-size"], raw="9" * 400)
@example(option=BY_NAME["heartbeat-interval"], raw=1 << 10000)
def test_parse_gives_a_value_or_a_value_error(option: Option, raw: Any) -> None:
    """Whatever comes, there is a value or one line that says what is wrong with it."""
    value, complaint = parsed(option, raw)
    assert (value is None) == (complaint is not None)
    assert complaint is None or (complaint and "\n" not in complaint)


def parsed(option: Option, raw: Any) -> tuple[Any, str | None]:
    """The value, or the complaint."""
    try:
        return parse(option, raw), None
    except ValueError as error:
        return None, str(error)


def complaints(given_: list[str]) -> tuple[str, ...] | None:
    """The problems of a command line, None if there are none."""
    try:
        configured(given_)
    except ConfigError as error:
        return error.problems
    return None


@settings(suppress_health_check=SLOW, deadline=None)
@given(values=st.dictionaries(st.sampled_from(sorted(BY_NAME)), TEXTS, max_size=4))
def test_any_command_line_gives_a_config_or_a_config_error(values: dict[str, str]) -> None:
    """Random text at any options: no other exception, and no problem without its option's name."""
    found = complaints(arguments(LEAST | values))
    assert found is None or found
    assert all(line.startswith("--") and "\n" not in line for line in found or ())


@settings(suppress_health_check=SLOW, deadline=None)
@given(
    document=st.dictionaries(
        st.sampled_from(TABLES) | st.text(),
        st.dictionaries(
            st.sampled_from([option.key for option in OPTIONS]) | st.text(), TEXTS, max_size=4
        )
        | TEXTS,
        max_size=3,
    )
)
def test_any_file_gives_a_config_or_a_config_error(
    document: dict[str, Any], tmp_path: Path
) -> None:
    """Random tables, keys and values in a file: no other exception."""
    path = tmp_path / "x.toml"
    lines = [f"{json.dumps(key)} = {_inline(value)}" for key, value in document.items()]
    path.write_text("\n".join(lines), encoding="utf-8", errors="surrogateescape")
    found = complaints([*arguments(LEAST), f"--config={path}"])
    assert found is None or found


def _inline(value: Any) -> str:
    if isinstance(value, str):
        return json.dumps(value)
    return "{" + ", ".join(f"{json.dumps(k)} = {_inline(v)}" for k, v in value.items()) + "}"


@settings(suppress_health_check=SLOW)
@given(data=st.binary())
def test_any_bytes_may_be_a_file(data: bytes, tmp_path: Path) -> None:
    """Random bytes are read, or are a problem."""
    path = tmp_path / "x.toml"
    path.write_bytes(data)
    found = read_file(path)
    assert found.problems or not data.strip() or data.lstrip().startswith((b"#", b"["))


@pytest.mark.parametrize(
    ("text", "host"),
    [("db1", "db1"), ("127.0.0.1", "127.0.0.1"), ("::1", "::1"), ("[::1]", "::1"),
     ("fe80::1%eth0", "fe80::1%eth0")],
)  # fmt: skip
def test_a_host(text: str, host: str) -> None:
    """A name or an address; an IPv6 address also as in a URL."""
    assert parse(BY_NAME["mysql-host"], text) == host


@pytest.mark.parametrize(
    "text", ["127.0.0.1:21002", "db1:3306", "[::1]:3306", "db1:", ":3306", "[]"]
)
def test_a_host_has_no_port(text: str) -> None:
    """The message names the option that has it."""
    with pytest.raises(ValueError, match="is not a host") as caught:
        parse(BY_NAME["mysql-host"], text)
    assert "--mysql-port, or port in [mysql] of a file" in str(caught.value)


@pytest.mark.parametrize("name", ["keep", "keep-binlogs-for", "grace"])
def test_what_prune_keeps_has_a_unit(name: str) -> None:
    """Days are meant, and seconds would be kept."""
    (option,) = (one for one in options_of(PruneConfig) if one.name == name)
    for text in ("30", "1.5", 30, 0.5):
        with pytest.raises(ValueError, match="has no unit: write 30d"):
            parse(option, text)
    assert [parse(option, text) for text in ("0", "30d", "36h")] == [0.0, 2_592_000.0, 129_600.0]
