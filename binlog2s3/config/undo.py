"""The options of `undo`, and one frozen `UndoConfig` of them.

How to reach the server may be in the configuration file, in the table `[target]`, as for `pitr`.
What to undo may not: the operator says that each time.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from binlog2s3.binlog.names import FilePosition
from binlog2s3.config.bucket import AsJson, DryRun, of_source, reading
from binlog2s3.config.find import MYSQLBINLOG
from binlog2s3.config.given import (
    CommandOptions,
    Given,
    excludes,
    exclusive,
    file_problems,
    pair,
)
from binlog2s3.config.goal import flavour_problems
from binlog2s3.config.options import Option, options_of
from binlog2s3.config.stream import (
    MysqlConfig,
    S3Config,
    login_problems,
    target_of,
    target_options,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class UndoConfig:
    """Which transactions to take back, on which server, and what is allowed.

    `given` are the words of the command line that another command needs to read the same bucket.
    """

    s3: S3Config
    source: str
    target: MysqlConfig
    gtids: Annotated[
        tuple[str, ...],
        Option(
            "SET",
            "The transactions with these GTIDs; may be given several times. They are undone in "
            "reverse order.",
            "gtid set",
            name="gtid",
        ),
    ] = ()
    at: Annotated[
        FilePosition | None,
        Option(
            "BINLOG:POSITION",
            "The transaction that begins at this position, or has it, as `find` shows it.",
            "position",
        ),
    ] = None
    from_gtid: Annotated[
        str | None,
        Option(
            "GTID",
            "The first transaction of a stretch of the history, in the order of the archive; needs "
            "--to-gtid and --table.",
            "gtid",
        ),
    ] = None
    to_gtid: Annotated[
        str | None, Option("GTID", "The last transaction of the stretch.", "gtid")
    ] = None
    tables: Annotated[
        tuple[tuple[str, str], ...],
        Option(
            "DB.TABLE",
            "Undo only the changes of this table, or (DB.*) of this database. May be given several "
            "times.",
            "table",
            name="table",
            otherwise="all tables",
        ),
    ] = ()
    skip_conflicts: Annotated[
        bool,
        Option(
            "",
            "Leave out rows that were changed since, and undo the others; without it, one such row "
            "and nothing is undone.",
        ),
    ] = False
    output: Annotated[
        Path | None,
        Option(
            "FILE",
            "Write the undo to a new binlog file for mysqlbinlog, instead of executing it. Nothing "
            "is compared then.",
        ),
    ] = None
    dry_run: DryRun = False
    as_json: AsJson = False
    yes: Annotated[bool, Option("", "Do not ask before undoing.")] = False
    mysqlbinlog: Path | None = None
    given: tuple[str, ...] = ()


_HELP = {
    "target-host": "The live server on which the transactions are undone: the streamed one.",
    "target-user": "User that may undo: docs/guides/undo.md",
    "target-accept-unverified-server": "Connect to a server on another host although nothing "
    "proves which server answers: whoever answers in its place, or is on the way, can get the "
    "password.",
}
_SERVER = target_options(_HELP)
UNDO_OPTIONS = options_of(UndoConfig)
"""Those that only `undo` has."""
_ENDS = ("from-gtid", "to-gtid")
"""Those of a stretch."""
UNDO_SHARED = reading("Server in the bucket whose transactions are undone.")


def _problems(given: Given) -> Iterable[str]:
    yield from exclusive(given, ("gtid", "at", "from-gtid"))
    if all(given.is_missing(name) for name in ("gtid", "at", *_ENDS)):
        yield "which transaction? Give --gtid or --at; `binlog2s3 find` finds it"
    yield from pair(given, *_ENDS, why=": a stretch has two ends")
    if any(given.has(name) for name in _ENDS) and given.is_missing("table"):
        yield "a stretch needs --table: whose changes are undone?"
    yield from flavour_problems(given, ("gtid", *_ENDS))
    others = ("skip-conflicts", "dry-run", "yes")
    yield from excludes(given, "output", others, "with --output, no server is changed")
    addresses = ("target-host", "target-socket", "target-defaults-file")
    if all(given.is_missing(name) for name in addresses):
        yield "no server: --target-host or --target-socket is missing"
    else:
        yield from login_problems(given, "target")
    yield from file_problems(given, _SERVER)


UNDO = CommandOptions(
    (*UNDO_OPTIONS, MYSQLBINLOG, *_SERVER, *UNDO_SHARED),
    _problems,
    of_source(
        UndoConfig, (*UNDO_OPTIONS, MYSQLBINLOG), target=lambda values: target_of(values, _SERVER)
    ),
)
