"""The options of `pitr` beside those that it shares with `stream`.

Place in the flow: as `options`, for `pitr_config` to judge and `cli` to declare. How to reach the
target may stand in the configuration file, in the table `[target]`; what is to be done to it may
not: that is said each time.
"""

from dataclasses import replace
from typing import Any

from binlog2s3.options import BY_NAME, Kind, Option

GOALS = ("to-time", "to-gtid", "before-gtid", "to-position", "latest")
"""Where to stop: exactly one of them."""


def _like(name: str, **changes: Any) -> Option:
    """As the option --mysql-... of the streamer, for the target."""
    own = name.replace("mysql-", "target-", 1)
    return replace(BY_NAME[name], name=own, table="target", **changes)


TARGET_OPTIONS: tuple[Option, ...] = (
    _like("mysql-host", help="Server to bring forward, restored from a base backup.", otherwise=""),
    _like("mysql-port"),
    _like("mysql-socket"),
    _like("mysql-user", help="User that may execute everything that is in the binlogs."),
    _like("mysql-password-file"),
    _like("mysql-defaults-file"),
    _like("mysql-ssl-mode"),
    _like("mysql-ssl-ca"),
    _like("mysql-ssl-cert"),
    _like("mysql-ssl-key"),
    _like("mysql-connect-timeout", default=None, otherwise="10"),
    Option(
        name="mysql-client",
        table="target",
        key="mysql_client",
        kind="path",
        metavar="PATH",
        help="mysql (MySQL) or mariadb (MariaDB), the client program.",
        otherwise="the right one on PATH",
    ),
    Option(
        name="target-relay-log-dir",
        table="target",
        key="relay_log_dir",
        kind="path",
        metavar="DIR",
        help="The target's relay log directory, as this machine sees it.",
        otherwise="where the target says it is",
    ),
)


def _own(name: str, kind: Kind, metavar: str, help_: str, **more: Any) -> Option:
    key = name.replace("-", "_")
    return Option(name=name, table="", key=key, kind=kind, metavar=metavar, help=help_, **more)


PITR_OPTIONS: tuple[Option, ...] = (
    _own(
        "to-time",
        "time",
        "TIME",
        "Stop before the first transaction that was committed later, by the source's clock: "
        "2026-01-02T03:04:05.123456Z, or with +02:00; the zone must be there.",
    ),
    _own("to-gtid", "gtid", "GTID", "Stop behind this transaction."),
    _own("before-gtid", "gtid", "GTID", "Stop just before this transaction."),
    _own(
        "to-position",
        "position",
        "NAME:N",
        "Stop at this offset of a binlog, between two transactions.",
    ),
    _own("latest", "flag", "", "Go on to the end of what is in the bucket."),
    _own(
        "skip-gtid",
        "gtid set",
        "SET",
        "Leave these transactions out; may be given several times. They are committed empty at the "
        "end, so that no replica fetches them again.",
        repeatable=True,
    ),
    _own(
        "skip-leaves-hole",
        "flag",
        "",
        "Do not commit the skipped ones empty: their GTIDs stay free.",
    ),
    _own(
        "from-gtid-set",
        "gtid set",
        "SET",
        "What the base backup has.",
        otherwise="the target's own @@gtid_executed",
    ),
    _own("from-binlog", "binlog", "NAME", "Binlog that the base backup goes up to."),
    _own("from-position", "integer", "N", "And the offset in it.", least=4),
    _own(
        "from-lineage",
        "text",
        "ID",
        "The lineage whose binlog that is, where several have one of that name.",
    ),
    _own(
        "from-backup",
        "path",
        "PATH",
        "The base backup itself, which tells where it stands: a dump of mysqldump, or the "
        "directory of xtrabackup, mariabackup, mydumper or MySQL Shell, or the file in it that "
        "tells.",
    ),
    _own(
        "lineage",
        "text",
        "ID",
        "Follow the history that ends in this lineage.",
        otherwise="the last writer's",
    ),
    _own("allow-gap", "flag", "", "Go on across gaps and damage that are known: data will lack."),
    _own(
        "allow-source",
        "flag",
        "",
        "The target may be the server that was streamed, or have its server_uuid.",
    ),
    _own(
        "allow-extra-gtids",
        "flag",
        "",
        "The target may have GTIDs that the history does not have.",
    ),
    _own("no-target-binlog", "flag", "", "Do not write what is applied into the target's binlog."),
    _own(
        "stop-target-threads",
        "flag",
        "",
        "Stop the target's event scheduler (MySQL's is on by default) and replication, and leave "
        "them off; else a target where they run is refused.",
    ),
    _own(
        "apply",
        "choice",
        "HOW",
        "How to bring it into the target. relay-log: its own applier reads the binlogs, where its "
        "relay log directory is within reach; pipe: mysqlbinlog | mysql, several times slower.",
        choices=("auto", "relay-log", "pipe"),
        otherwise="auto: relay-log where it can be",
    ),
    _own(
        "output-dir",
        "path",
        "DIR",
        "Instead of applying: write the binlogs' parts there, ready for mysqlbinlog.",
    ),
    _own("stdout", "flag", "", "Instead of applying: print SQL."),
    _own("dry-run", "flag", "", "Show the plan, and change nothing."),
    _own("json", "flag", "", "One JSON document, for programs."),
    _own("yes", "flag", "", "Do not ask before applying."),
)

_SOURCE = "The source, where the file has it: it is refused as the target."
SHARED_OPTIONS: tuple[Option, ...] = (
    replace(BY_NAME["source"], help="Server in the bucket whose history is wanted."),
    replace(BY_NAME["s3-url"], help="Where the archive is: s3://bucket/prefix."),
    BY_NAME["endpoint-url"],
    BY_NAME["region"],
    BY_NAME["addressing-style"],
    BY_NAME["profile"],
    BY_NAME["concurrency"],
    BY_NAME["mysqlbinlog"],
    replace(BY_NAME["mysql-host"], help=_SOURCE, otherwise=""),
    replace(BY_NAME["mysql-port"], help="Its port.", otherwise=""),
    replace(BY_NAME["mysql-socket"], help="Its socket."),
)
"""Options that `pitr` has as `stream` has them."""

ALL_OPTIONS = (*PITR_OPTIONS, *TARGET_OPTIONS, *SHARED_OPTIONS)
"""All of `pitr`'s, in the order of its help."""
