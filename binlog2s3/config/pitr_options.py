"""The options of `pitr` beside those that it shares with `stream`. Pure.

Place in the flow: as `options`, for `recover.config` to judge and `cli` to declare. How to reach
the target may stand in the configuration file, in the table `[target]`; what is to be done to it
may not: that is said each time.
"""

from dataclasses import replace
from typing import Any

from binlog2s3.config.options import BY_NAME, Option, of_command

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
    _like("mysql-user", help="User that may make it a replica; docs/operations.md has the GRANTs."),
    _like("mysql-password-file"),
    _like("mysql-defaults-file"),
    _like("mysql-ssl-mode"),
    _like("mysql-ssl-ca"),
    _like("mysql-ssl-cert"),
    _like("mysql-ssl-key"),
    _like("mysql-connect-timeout", default=None, otherwise="10"),
    Option(
        name="serve-address",
        table="target",
        key="serve_address",
        kind="serve address",
        metavar="HOST[:PORT]",
        help="Where the target finds this process, which it replicates from: an address of this "
        "machine. Needed where the target is on another one; it fetches through TLS then.",
        otherwise="127.0.0.1 and a free port",
    ),
)


PITR_OPTIONS: tuple[Option, ...] = (
    of_command(
        "to-time",
        "time",
        "TIME",
        "Stop before the first transaction that was committed later, by the source's clock: "
        "2026-01-02T03:04:05.123456Z, or with +02:00; the zone must be there.",
    ),
    of_command("to-gtid", "gtid", "GTID", "Stop behind this transaction."),
    of_command("before-gtid", "gtid", "GTID", "Stop just before this transaction."),
    of_command(
        "to-position",
        "position",
        "NAME:N",
        "Stop at this offset of a binlog, between two transactions.",
    ),
    of_command("latest", "flag", "", "Go on to the end of what is in the bucket."),
    of_command(
        "skip-gtid",
        "gtid set",
        "SET",
        "Leave these transactions out; may be given several times. They are committed empty at the "
        "end, so that no replica fetches them again.",
        repeatable=True,
    ),
    of_command(
        "skip-leaves-hole",
        "flag",
        "",
        "Do not commit the skipped ones empty: their GTIDs stay free.",
    ),
    of_command(
        "from-gtid-set",
        "gtid set",
        "SET",
        "What the base backup has.",
        otherwise="the target's own @@gtid_executed",
    ),
    of_command("from-binlog", "binlog", "NAME", "Binlog that the base backup goes up to."),
    of_command("from-position", "integer", "N", "And the offset in it.", least=4),
    of_command(
        "from-lineage",
        "text",
        "ID",
        "The lineage that the base backup is of, where several have such a place or such GTIDs.",
    ),
    of_command(
        "from-backup",
        "path",
        "PATH",
        "The base backup itself, which tells where it stands: a dump of mysqldump, or the "
        "directory of xtrabackup, mariabackup, mydumper or MySQL Shell, or the file in it that "
        "tells.",
    ),
    of_command(
        "lineage",
        "text",
        "ID",
        "Follow the history that ends in this lineage.",
        otherwise="the last writer's",
    ),
    of_command(
        "allow-gap", "flag", "", "Go on across gaps and damage that are known: data will lack."
    ),
    of_command(
        "allow-source",
        "flag",
        "",
        "The target may be the server that was streamed, or have its server_uuid.",
    ),
    of_command(
        "allow-extra-gtids",
        "flag",
        "",
        "The target may have GTIDs that the history does not have.",
    ),
    of_command(
        "stop-target-threads",
        "flag",
        "",
        "Stop the target's event scheduler (MySQL's is on by default) and replication, and leave "
        "them off; else a target where they run is refused.",
    ),
    of_command(
        "workers",
        "integer",
        "N",
        "How many workers of the target apply at the same time, where its settings let several "
        "keep the order of commits.",
        least=1,
        most=1024,
        otherwise="as the target is set",
    ),
    of_command(
        "allow-non-transactional",
        "flag",
        "",
        "Go on after a crash of the target though it has tables without transactions (MyISAM, "
        "Aria): rows in them may be there twice, or lack.",
    ),
    of_command(
        "output-dir",
        "path",
        "DIR",
        "Instead of applying: write the binlogs' parts there, ready for mysqlbinlog.",
    ),
    of_command("dry-run", "flag", "", "Show the plan, and change nothing."),
    of_command("json", "flag", "", "One JSON document, for programs."),
    of_command("yes", "flag", "", "Do not ask before applying."),
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
    replace(BY_NAME["mysql-host"], help=_SOURCE, otherwise=""),
    replace(BY_NAME["mysql-port"], help="Its port.", otherwise=""),
    replace(BY_NAME["mysql-socket"], help="Its socket."),
)
"""Options that `pitr` has as `stream` has them."""

ALL_OPTIONS = (*PITR_OPTIONS, *TARGET_OPTIONS, *SHARED_OPTIONS)
"""All of `pitr`'s, in the order of its help."""
