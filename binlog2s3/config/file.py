"""The configuration file as text: an example with every option, and what is in force.

Place in the flow: beneath `cli`, for the command `config`; docs/reference.md and the packages show
the same example. Owns an example value for each option that has no default.

Law: pure. The example is a good file as it stands, and it still has known names and values that
are taken when all of its settings are uncommented. No secret is in either text, for none can be in
the file.
"""

import difflib
import json
import textwrap
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from binlog2s3.config.given import Given
from binlog2s3.config.options import ENVIRONMENT_PREFIX, Option, Value, parse
from binlog2s3.config.pitr import TARGET_OPTIONS
from binlog2s3.config.values import OPTIONS

FILE_OPTIONS = (*OPTIONS, *TARGET_OPTIONS)
"""What a file may contain: one file may serve the streamer and a recovery."""
_FILE_TABLES = tuple(dict.fromkeys(option.table for option in FILE_OPTIONS))
_MAX_FILE = 1 << 20

WIDTH = 100
LEAST = ("source", "mysql-user", "s3-url")
"""What everybody must give: it stands in the example without a comment sign."""
PLACES = {
    "mysql-password-file": "/etc/binlog2s3/orders-primary.password",
    "spool": "/var/lib/binlog2s3/orders-primary",
}
"""Where the systemd unit has them: without a comment sign too, so that root's `check` and `status`
look where the service does."""

_HEAD = f"""\
# A configuration file of binlog2s3 with every option, as `binlog2s3 config --example` prints it.
#
# A line that begins with "#" and no blank is an option that need not be given: it shows the
# default or, where that is no fixed value, an example. The command line wins over the environment
# ({ENVIRONMENT_PREFIX}_<OPTION>), that over this file; `binlog2s3 config --show --config FILE`
# prints what is in force. No password belongs here: the server's is in a file of its own, AWS keys
# come from boto3's own chain (environment, ~/.aws, instance role).
#
# Password file and spool stand where binlog2s3@orders-primary.service has them, which reads this
# file as /etc/binlog2s3/orders-primary.toml and AWS keys from /etc/binlog2s3/orders-primary.aws.
# For another instance put its name in the place of orders-primary everywhere.
"""
_TITLES = {
    "stream": "What is streamed",
    "mysql": "The source",
    "spool": "The spool",
    "s3": "The bucket",
    "log": "The log",
    "target": "The target of a recovery, for `binlog2s3 pitr` alone",
}
_EXAMPLES: Mapping[str, Value] = {
    "source": "orders-primary",
    "start-binlog": "mysql-bin.000042",
    "start-at": "oldest",
    "accept-new-server": "3e11fa47-71ca-11e1-9e33-c80aa9429562",
    "take-over": False,
    "metrics-listen": "127.0.0.1:9275",
    "heartbeat-url-file": "/etc/binlog2s3/heartbeat-url",
    "mysql-host": "127.0.0.1",
    "mysql-port": 3306,
    "mysql-socket": "/run/mysqld/mysqld.sock",
    "mysql-user": "binlog2s3",
    "mysql-defaults-file": "/etc/binlog2s3/client.cnf",
    "mysql-ssl-mode": "VERIFY_IDENTITY",
    "mysql-ssl-ca": "/etc/binlog2s3/ca.pem",
    "mysql-ssl-cert": "/etc/binlog2s3/cert.pem",
    "mysql-ssl-key": "/etc/binlog2s3/key.pem",
    "mysqlbinlog": "/usr/bin/mysqlbinlog",
    "mysql-server-id": 4242,
    "spool-max-bytes": "10 GiB",
    "spool-min-free-bytes": "1 GiB",
    "s3-url": "s3://acme-binlogs/prod",
    "endpoint-url": "https://minio.example.com:9000",
    "region": "eu-central-1",
    "profile": "binlogs",
    "storage-class": "STANDARD_IA",
    "sse": "aws:kms",
    "sse-kms-key-id": "alias/binlogs",
    "target-host": "127.0.0.1",
    "target-port": 3306,
    "target-socket": "/run/mysqld/mysqld.sock",
    "target-user": "root",
    "target-password-file": "/etc/binlog2s3/target-password",
    "target-defaults-file": "/etc/binlog2s3/target.cnf",
    "target-ssl-mode": "VERIFY_IDENTITY",
    "target-ssl-ca": "/etc/binlog2s3/ca.pem",
    "target-ssl-cert": "/etc/binlog2s3/cert.pem",
    "target-ssl-key": "/etc/binlog2s3/key.pem",
    "serve-address": "192.0.2.7:3307",
}


def example() -> str:
    """A file with every option: what it means, its default, and a value."""
    parts = [_HEAD]
    for table, options in _tables(FILE_OPTIONS):
        parts.append(f"\n# {_TITLES[table]}\n[{table}]\n")
        parts += [_explained(option) for option in options]
    return "\n".join(parts)


def _tables(options: Iterable[Option]) -> Iterator[tuple[str, list[Option]]]:
    """The options of each table, in the order in which the tables first appear."""
    found: dict[str, list[Option]] = {}
    for option in options:
        found.setdefault(option.table, []).append(option)
    yield from found.items()


def _explained(option: Option) -> str:
    """One option of the example, with what is to be known of it above."""
    words = [option.help]
    if option.choices:
        words.append(f"One of {', '.join(option.choices)}.")
    if option.required:
        words.append("Required.")
    elif option.default_text:
        words.append(f"Default: {option.default_text}.")
    text = textwrap.fill(" ".join(words), WIDTH, initial_indent="# ", subsequent_indent="# ")
    sign = "" if option.name in LEAST or option.name in PLACES else "#"
    return f"{text}\n{sign}{option.key} = {literal(_shown(option))}\n"


def _shown(option: Option) -> Value:
    """The value in the example; a default as people write it: of a size with its unit."""
    if option.name in PLACES:
        return PLACES[option.name]
    if option.default is None:
        return _EXAMPLES[option.name]
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


@dataclass(frozen=True, slots=True)
class FileValues:
    """A TOML file's values by option name, with the problems found on the way.

    `places` says for each option in the file what to call it in a message. `wrong` are the options
    whose value is not usable, or not known: they are not missing.
    """

    values: Mapping[str, Any] = field(default_factory=dict)
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
    values: dict[str, Any] = {}
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


def _parse_typed(option: Option, raw: object) -> Any:
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
