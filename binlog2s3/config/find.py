"""The options of `find`, and one frozen `FindConfig` of them.

Its own options cannot be in the configuration file: the operator says each time what to look for.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from binlog2s3.config.bucket import AsJson, of_source, reading
from binlog2s3.config.given import CommandOptions, Given, excludes
from binlog2s3.config.goal import flavour_problems
from binlog2s3.config.options import Option, options_of
from binlog2s3.config.stream import BY_NAME, S3Config

Searched = Annotated[
    str | None,
    Option(
        "ID",
        "Search the history that ends in this lineage; all: search every lineage.",
        otherwise="the last writer's",
    ),
]
"""Which history is searched."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FindConfig:
    """What to look for, and where.

    `tables` are pairs of database and table. `between` has both ends in microseconds, None where
    the interval is open. `given` are the words of the command line that another command needs to
    read the same bucket.
    """

    s3: S3Config
    source: str
    tables: Annotated[
        tuple[tuple[str, str], ...],
        Option(
            "DB.TABLE",
            "Transactions that change or define this table, or (DB.*) anything in this database. "
            "Put a name with a dot in backquotes. May be given several times.",
            "table",
            name="table",
            otherwise="any",
        ),
    ] = ()
    kinds: Annotated[
        tuple[Literal["insert", "update", "delete", "ddl", "drop"], ...],
        Option(
            "TYPE",
            "Transactions that do this, to the table if one is given. ddl is every definition: "
            "CREATE, ALTER, DROP, TRUNCATE, RENAME, GRANT and so on; drop is every DROP, and no "
            "TRUNCATE. May be given several times.",
            name="type",
            otherwise="any",
        ),
    ] = ()
    between: Annotated[
        tuple[int | None, int | None],
        Option(
            "FROM/TO",
            "Committed in this time, by the source's clock, both ends included: "
            "2026-01-02T15:00Z/2026-01-02T16:00Z. Time zones are required; either end may be "
            "omitted.",
            "interval",
            otherwise="any time",
        ),
    ] = (None, None)
    gtids: Annotated[
        tuple[str, ...],
        Option(
            "SET",
            "Only these transactions; may be given several times.",
            "gtid set",
            name="gtid",
        ),
    ] = ()
    min_rows: Annotated[
        int,
        Option(
            "N",
            "Transactions that change at least this number of rows; only the given tables and "
            "types count.",
            least=1,
        ),
    ] = 0
    order: Annotated[Literal["newest", "oldest"], Option("ORDER", "Which come first.")] = "newest"
    limit: Annotated[int, Option("N", "End after this number; 0: show all.", least=0)] = 100
    lineage: Searched = None
    print_only: Annotated[
        Literal["gtid"] | None,
        Option(
            "WHAT",
            "Print nothing but the GTID of each transaction, a line each, for a script. The exit "
            "code is 7 if none is found.",
            name="print",
        ),
    ] = None
    rows: Annotated[
        bool,
        Option(
            "",
            "Show what each transaction changed, row by row, before and after: of the given tables "
            "and types, up to 100 rows. mysqlbinlog prints them.",
        ),
    ] = False
    as_json: AsJson = False
    mysqlbinlog: Path | None = None
    given: tuple[str, ...] = ()


FIND_OPTIONS = options_of(FindConfig)
"""Those that only `find` has."""
SHARED_OPTIONS = reading("Server in the bucket whose history is searched.")
MYSQLBINLOG = BY_NAME["mysqlbinlog"]
"""The program that prints rows: an option of the streamer's, which may be in its file."""


def _problems(given: Given) -> Iterable[str]:
    yield from flavour_problems(given, ("gtid",))
    yield from excludes(given, "print", ("json", "rows"), "give one of them")


_FILLED = (*FIND_OPTIONS, MYSQLBINLOG)
FIND = CommandOptions((*_FILLED, *SHARED_OPTIONS), _problems, of_source(FindConfig, _FILLED))
