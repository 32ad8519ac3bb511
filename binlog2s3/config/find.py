"""The options of `find`, and one frozen `FindConfig` of them.

Its own options cannot be in the configuration file: the operator says each time what to look for.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from binlog2s3.config.bucket import reading
from binlog2s3.config.given import CommandOptions, Given, contradiction
from binlog2s3.config.options import Option, fill, options_of
from binlog2s3.config.points import flavour_of, parse_gtids
from binlog2s3.config.values import MYSQL_OPTIONS, S3Config, s3_of

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
    as_json: Annotated[bool, Option("", "Print one JSON document.", name="json")] = False
    mysqlbinlog: Path | None = None
    given: tuple[str, ...] = ()


FIND_OPTIONS = options_of(FindConfig)
"""Those that only `find` has."""
SHARED_OPTIONS = reading("Server in the bucket whose history is searched.")


MYSQLBINLOG = next(o for o in MYSQL_OPTIONS if o.field == "mysqlbinlog")
"""The program that prints rows: an option of the streamer's, which may be in its file."""


def _config(values: Mapping[str, Any]) -> FindConfig:
    options = (*FIND_OPTIONS, MYSQLBINLOG)
    return fill(FindConfig, options, values, s3=s3_of(values), source=values["source"])


def _problems(given: Given) -> Iterable[str]:
    flavours = {flavour_of(parse_gtids(text)) for text in given.values.get("gtid") or ()}
    if len(flavours) > 1:
        yield f"{given.called('gtid')} has GTIDs of MySQL and of MariaDB"
    if given.has("print") and given.wants("json"):
        yield contradiction(given, "print", "json", "give one of them")
    if given.has("print") and given.wants("rows"):
        yield contradiction(given, "print", "rows", "give one of them")


FIND = CommandOptions((*FIND_OPTIONS, MYSQLBINLOG, *SHARED_OPTIONS), _problems, _config)
