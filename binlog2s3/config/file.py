"""The configuration file as text: an example with every option, and what is in force.

Place in the flow: beneath `cli`, for the command `config`; docs/reference.md and the packages show
the same example. Owns an example value for each option that has no default.

Law: pure. The example is a good file as it stands, and it still has known names and values that
are taken when all of its settings are uncommented. No secret is in either text, for none can be in
the file.
"""

import json
import textwrap
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from binlog2s3.config.options import ENVIRONMENT_PREFIX, Option, Value
from binlog2s3.config.values import FILE_OPTIONS

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
    "target-connect-timeout": 10,
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


def literal(value: Value) -> str:
    """A value in TOML.

    >>> literal(Path("/x")), literal(True), literal(1.0), literal(0.5)
    ('"/x"', 'true', '1', '0.5')
    """
    if isinstance(value, str | Path):
        return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.15g}" if isinstance(value, float) else str(value)


def in_force(
    values: Mapping[str, Any], places: Mapping[str, str], given: Collection[str], options: Any
) -> str:
    """What holds for these options, as a file: the values, and where they come from.

    `given` are the names of those that were given at all; `places` says where. What has no value
    stands there in words, as a comment.
    """
    parts = []
    for table, own in _tables(options):
        rows = [row for option in own if (row := _row(option, values, places, given))]
        if rows:
            parts.append("\n".join([f"[{table}]", *rows]) + "\n")
    return "\n".join(parts)


def _row(
    option: Option, values: Mapping[str, Any], places: Mapping[str, str], given: Collection[str]
) -> str:
    if option.name not in values:
        return f"# {option.key}: {option.default_text}" if option.default_text else ""
    origin = " ".join(places[option.name].split()) if option.name in given else "default"
    return f"{option.key} = {literal(values[option.name])}  # {origin}"
