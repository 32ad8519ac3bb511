"""The configuration file: read it, print an example, print the values that apply.

docs/reference/configuration.md and the packages have the same example. This module has an example
value for each option without a default.

Law: the example is a valid file; if all of its settings are uncommented, every name and value is
valid, too. A file has no secrets, so neither text has one. A relative path in a file is relative to
the file's directory, so that a file means the same wherever a command is started.
"""

import difflib
import json
import shlex
import textwrap
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from binlog2s3.config.given import Given
from binlog2s3.config.options import ENVIRONMENT_PREFIX, Option, Value, parse
from binlog2s3.config.pitr import TARGET_OPTIONS
from binlog2s3.config.stream import OPTIONS

FILE_OPTIONS = (*OPTIONS, *TARGET_OPTIONS)
"""What a file may contain: one file may serve the streamer and a recovery."""
_FILE_TABLES = tuple(dict.fromkeys(option.table for option in FILE_OPTIONS))
_MAX_FILE = 1 << 20

WIDTH = 100
LEAST = ("source", "mysql-user", "s3-url")
"""What every streamer needs: it is not commented out in the example."""
PLACES = {
    "mysql-password-file": "/etc/binlog2s3/orders-primary.password",
    "spool": "/var/lib/binlog2s3/orders-primary",
}
"""Where the systemd unit has them. They are not commented out, so that `check` and `status` of root
use the same paths as the service."""

_HEAD = f"""\
# A configuration file of binlog2s3 with every option, as `binlog2s3 config --example` prints it.
#
# A line that begins with "#" and no space is an optional setting. It shows the default or, if
# there is no fixed default, an example. The command line wins over the environment
# ({ENVIRONMENT_PREFIX}_<OPTION>), and that wins over this file. `binlog2s3 config --show` with
# `--config FILE` prints the values that apply. A relative path is relative to the directory of this
# file. Never put a password here: the server's password is in its own file, and AWS keys come from
# the AWS SDK's own chain (environment, ~/.aws, instance role).
#
# The paths of password file and spool are those of binlog2s3@orders-primary.service, which reads
# this file as /etc/binlog2s3/orders-primary.toml and AWS keys from
# /etc/binlog2s3/orders-primary.aws. For another instance replace orders-primary everywhere.
"""
_TITLES = {
    "stream": "What is streamed",
    "mysql": "The source",
    "spool": "The spool",
    "s3": "The bucket",
    "log": "The log",
    "target": "The target of `binlog2s3 pitr`, and the server of `binlog2s3 undo`",
}
_EXAMPLES: Mapping[str, Value] = {
    "source": "orders-primary",
    "expected-bucket-owner": "111122223333",
    "start-binlog": "mysql-bin.000042",
    "start-at": "oldest",
    "accept-new-server": "3e11fa47-71ca-11e1-9e33-c80aa9429562",
    "take-over": False,
    "exit-on-other-writer": False,
    "metrics-listen": "127.0.0.1:9275",
    "heartbeat-url-file": "/etc/binlog2s3/heartbeat-url",
    "mysql-host": "127.0.0.1",
    "mysql-port": 3306,
    "mysql-socket": "/run/mysqld/mysqld.sock",
    "mysql-user": "binlog2s3",
    "mysql-password-command": "/usr/local/bin/db-token orders-primary",
    "mysql-defaults-file": "/etc/binlog2s3/client.cnf",
    "mysql-ssl-mode": "VERIFY_IDENTITY",
    "mysql-ssl-ca": "/etc/binlog2s3/ca.pem",
    "mysql-ssl-cert": "/etc/binlog2s3/cert.pem",
    "mysql-ssl-key": "/etc/binlog2s3/key.pem",
    "mysql-server-public-key": "/etc/binlog2s3/public_key.pem",
    "mysql-accept-unverified-server": False,
    "mysqlbinlog": "/usr/bin/mysqlbinlog",
    "mysql-server-id": 4242,
    "spool-max-bytes": "10 GiB",
    "max-bandwidth": "20 MiB",
    "spool-min-free-bytes": "1 GiB",
    "s3-url": "s3://acme-binlogs/prod",
    "endpoint-url": "https://minio.example.com:9000",
    "region": "eu-central-1",
    "profile": "binlogs",
    "storage-class": "STANDARD_IA",
    "sse": "aws:kms",
    "sse-kms-key-id": "alias/binlogs",
    "object-lock": "GOVERNANCE:30d",
    "target-user": "root",
    "target-password-file": "/etc/binlog2s3/target-password",
    "target-password-command": "/usr/local/bin/db-token orders-new",
    "target-defaults-file": "/etc/binlog2s3/target.cnf",
    "serve-address": "192.0.2.7:3307",
    "serve-tls-cert": "/etc/binlog2s3/pitr.pem",
    "serve-tls-key": "/etc/binlog2s3/pitr-key.pem",
    "serve-tls-ca": "/etc/mysql/pitr.pem",
}


def example() -> str:
    """A file with every option: its meaning, its default, and a value."""
    parts = [_HEAD]
    for table, options in _tables(FILE_OPTIONS):
        parts.append(f"\n# {_TITLES[table]}\n[{table}]\n")
        parts += [_explained(option) for option in options]
    return "\n".join(parts)


def _tables(options: Iterable[Option]) -> Iterator[tuple[str, list[Option]]]:
    """The options of each table, in the order of the tables' first option."""
    by_table: dict[str, list[Option]] = {}
    for option in options:
        by_table.setdefault(option.table, []).append(option)
    yield from by_table.items()


def _explained(option: Option) -> str:
    """One option of the example, with its meaning in a comment above."""
    words = [option.help]
    if option.choices:
        words.append(f"One of {', '.join(option.choices)}.")
    if option.required:
        words.append("Required.")
    elif option.default_text:
        words.append(f"Default: {option.default_text}.")
    text = textwrap.fill(
        " ".join(words),
        WIDTH,
        initial_indent="# ",
        subsequent_indent="# ",
        break_on_hyphens=False,  # the name of an option stays whole
    )
    sign = "" if option.name in LEAST or option.name in PLACES else "#"
    return f"{text}\n{sign}{option.key} = {literal(_shown(option))}\n"


def _shown(option: Option) -> Value:
    """The value in the example; a size as people write it, with its unit."""
    if option.name in PLACES:
        return PLACES[option.name]
    if option.default is None:
        is_own = option.name in _EXAMPLES
        return _EXAMPLES[option.name if is_own else option.name.replace("target-", "mysql-")]
    return option.default_text if option.kind == "size" else option.default


def literal(value: object) -> str:
    """A value in TOML; anything but a number, true and false is a string.

    >>> literal(Path("/x")), literal(True), literal(1.0), literal(0.5)
    ('"/x"', 'true', '1', '0.5')
    """
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return f"{value:.15g}" if isinstance(value, float) else str(value)
    return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")


def in_force(given: Given, options: Iterable[Option]) -> str:
    """A file with the values that apply, and where each comes from.

    An option without a value is a comment that says what applies instead.
    """
    parts = []
    for table, own in _tables(options):
        rows = [row for option in own if (row := _row(option, given))]
        if rows:
            parts.append("\n".join([f"[{table}]", *rows]) + "\n")
    return "\n".join(parts)


def _row(option: Option, given: Given) -> str:
    if given.has(option.name):
        origin = " ".join(given.called(option.name).split())
        return f"{option.key} = {literal(given.values[option.name])}  # {origin}"
    if option.default is not None:
        return f"{option.key} = {literal(option.default)}  # default"
    return f"# {option.key}: {option.default_text}" if option.default_text else ""


def read_file(path: Path) -> Given:
    """Read a TOML configuration file. Never raises: what is wrong is in `problems`.

    If a file cannot be read, every option is `wrong`, because its value is unknown.
    """
    try:
        document = _load(path)
    except OSError as error:
        return _unread(path, (error.strerror or str(error)).lower())
    except UnicodeDecodeError:
        return _unread(path, "not UTF-8 text")
    except tomllib.TOMLDecodeError as error:
        return _unread(path, f'not TOML: {error} (strings need quotes: host = "db1")')
    except (ValueError, RecursionError) as error:
        return _unread(path, str(error))
    return _read_tables(document, path)


def _load(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        data = file.read(_MAX_FILE + 1)
    if len(data) > _MAX_FILE:
        raise ValueError(f"larger than {_MAX_FILE >> 20} MiB; this is not a configuration file")
    return tomllib.loads(data.decode("utf-8-sig"))  # some editors write a byte order mark


def _unread(path: Path, why: str) -> Given:
    return Given(
        problems=(f"{path}: {why}",), wrong=frozenset(option.name for option in FILE_OPTIONS)
    )


def _read_tables(document: Mapping[str, Any], path: Path) -> Given:
    by_place = {(option.table, option.key): option for option in FILE_OPTIONS}
    values: dict[str, Any] = {}
    places: dict[str, str] = {}
    problems: list[str] = []
    perhaps: set[str] = set()
    for table, content in document.items():
        if not isinstance(content, dict):
            wrong = "must be a table, " if table in _FILE_TABLES else "is outside a table"
            meant = f"[{table}]" if table in _FILE_TABLES else _meant("", table)
            problems.append(f"{path}: {table} {wrong}{meant}")
            continue
        if table not in _FILE_TABLES:
            problems.append(f"{path}: unknown table [{table}]{_nearest(table, _FILE_TABLES)}")
            perhaps |= {known.name for known in FILE_OPTIONS if known.key in content}
            continue
        for key, raw in content.items():
            option = by_place.get((table, key.replace("-", "_")))
            if option is None:
                suggestion = _meant(table, key)
                problems.append(f"{path}: unknown key [{table}] {key}{suggestion}")
                perhaps |= {
                    known.name
                    for known in FILE_OPTIONS
                    if f" {known.key}?" in suggestion
                    and (known.table == table or f"[{known.table}]" in suggestion)
                }
            elif option.name in places:
                problems.append(f"{path}: [{table}] {option.key} is given twice")
            else:
                places[option.name] = f"[{table}] {option.key} of {path}"
                try:
                    value = _parse_typed(option, raw)
                    values[option.name] = _beside(path, option, value, str(raw))
                except ValueError as error:
                    problems.append(f"{places[option.name]}: {error}")
    unusable = (frozenset(places) | perhaps) - frozenset(values)
    return Given(values, places, tuple(problems), unusable)


def _parse_typed(option: Option, raw: object) -> Any:
    """As `parse`; but in TOML an integer, true and false have no quotes."""
    value = parse(option, raw)
    if option.kind == "integer" and isinstance(raw, str):
        raise ValueError(f"{raw!r} is a string; write the number without quotes")
    if option.kind == "flag" and isinstance(raw, str):
        raise ValueError(f"{raw!r} is a string; write true or false without quotes")
    return value


def _beside(file: Path, option: Option, value: Any, raw: str) -> Any:
    """The value of an option; a relative path counts from the directory of the file.

    A program without a slash is left alone: it is looked up on PATH.
    """
    directory = file.absolute().parent
    if option.kind == "command":
        program, *words = shlex.split(raw)
        if "/" not in program or program.startswith("/"):
            return value
        return shlex.join([str(directory / Path(program).expanduser()), *words])
    is_program = option.name == "mysqlbinlog" and "/" not in raw
    return directory / value if option.kind in ("path", "file") and not is_program else value


def _meant(table: str, key: str) -> str:
    """A suggestion for an unknown key."""
    word = key.replace("-", "_")
    for option in FILE_OPTIONS:
        if word in (option.key, option.parameter):
            return f" (did you mean [{option.table}] {option.key}?)"
    return _nearest(word, [option.key for option in FILE_OPTIONS if table in ("", option.table)])


def _nearest(word: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(word, list(known), n=1)
    return f" (did you mean {near[0]}?)" if near else f" (known: {', '.join(sorted(known))})"
