"""The options of `verify` beside those that it shares with `stream`. Pure.

Place in the flow: as `options`, for `inspect.verify.config` to judge and `cli` to declare.
"""

from dataclasses import replace
from typing import Any

from binlog2s3.config.options import BY_NAME, OPTIONS, Kind, Option


def _own(name: str, kind: Kind, metavar: str, help_: str, **more: Any) -> Option:
    key = name.replace("-", "_")
    return Option(name=name, table="", key=key, kind=kind, metavar=metavar, help=help_, **more)


VERIFY_OPTIONS: tuple[Option, ...] = (
    _own(
        "lineage",
        "text",
        "ID",
        "Only the history that ends in this lineage: it, and those that it goes on from.",
        otherwise="all lineages",
    ),
    _own(
        "deep",
        "flag",
        "",
        "Read every byte: each event's CRC32, each block, and what the entries say of them.",
    ),
    _own(
        "since",
        "time",
        "TIME",
        "Only binlogs that end at this time or later.",
        otherwise="from the first one on",
    ),
    _own(
        "last",
        "integer",
        "N",
        "Only the last N binlogs of each lineage.",
        otherwise="all",
        least=1,
        most=1_000_000_000,
    ),
    _own(
        "against-source",
        "flag",
        "",
        "Compare with what the server still has: names, sizes, first events. Needs --mysql-host "
        "or --mysql-socket, and so on.",
    ),
    _own(
        "from-backup",
        "path",
        "PATH",
        "Can this base backup still be brought to now? A dump of mysqldump, or the directory of "
        "xtrabackup, mariabackup, mydumper or MySQL Shell, or the file in it that tells.",
    ),
    _own("from-gtid-set", "gtid set", "SET", "The same, of a base backup that has these GTIDs."),
    _own(
        "from-lineage",
        "text",
        "ID",
        "The lineage that the base backup is of, where several have such a place or such GTIDs.",
    ),
    _own(
        "repair",
        "flag",
        "",
        "Make entries that lack again, from whole binlogs; nothing else is ever changed.",
    ),
    _own("json", "flag", "", "One JSON document, for programs."),
)

_LISTING = ("s3-url", "endpoint-url", "region", "addressing-style", "profile", "concurrency")
_MYSQL = tuple(
    option
    for option in OPTIONS
    if option.table == "mysql" and option.key not in ("mysqlbinlog", "server_id")
)
SHARED_OPTIONS: tuple[Option, ...] = (
    replace(
        BY_NAME["source"],
        required=False,
        help="Only this source.",
        otherwise="all below the prefix",
    ),
    *(BY_NAME[name] for name in _LISTING),
    *_MYSQL,
)
"""Options that `verify` has as `stream` has them; those of the server for --against-source."""

ALL_OPTIONS = (*VERIFY_OPTIONS, *SHARED_OPTIONS)
"""All of `verify`'s, in the order of its help."""
