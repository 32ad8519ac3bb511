"""The options of `rows`, and one frozen `RowsConfig` of them.

Its own options cannot be in the configuration file: the operator says each time what to show.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from binlog2s3.binlog.names import FilePosition
from binlog2s3.config.bucket import AsJson, of_source, reading
from binlog2s3.config.find import MYSQLBINLOG, Searched
from binlog2s3.config.given import CommandOptions, Given, exclusive
from binlog2s3.config.options import Option, options_of
from binlog2s3.config.stream import S3Config


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsConfig:
    """Which transaction, and which of its rows.

    `given` are the words of the command line that another command needs to read the same bucket.
    """

    s3: S3Config
    source: str
    gtid: Annotated[str | None, Option("GTID", "The transaction with this GTID.", "gtid")] = None
    at: Annotated[
        FilePosition | None,
        Option(
            "BINLOG:POSITION",
            "The transaction that begins at this position, or has it, as `find` and the server's "
            "errors name it.",
            "position",
        ),
    ] = None
    tables: Annotated[
        tuple[tuple[str, str], ...],
        Option(
            "DB.TABLE",
            "Only rows of this table, or (DB.*) of this database. May be given several times.",
            "table",
            name="table",
            otherwise="any",
        ),
    ] = ()
    limit: Annotated[int, Option("N", "End after this number of rows; 0: show all.", least=0)] = 100
    lineage: Searched = None
    as_json: AsJson = False
    mysqlbinlog: Path | None = None
    given: tuple[str, ...] = ()


ROWS_OPTIONS = options_of(RowsConfig)
"""Those that only `rows` has."""
_SHARED = reading("Server in the bucket whose transaction is shown.")


def _problems(given: Given) -> Iterable[str]:
    yield from exclusive(given, ("gtid", "at"))
    if given.is_missing("gtid") and given.is_missing("at"):
        yield "which transaction? Give --gtid or --at; `binlog2s3 find` finds it"


_FILLED = (*ROWS_OPTIONS, MYSQLBINLOG)
ROWS = CommandOptions((*_FILLED, *_SHARED), _problems, of_source(RowsConfig, _FILLED))
