"""The options of `verify`, and one frozen `VerifyConfig` of them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from binlog2s3.config.bucket import BACKUP_FORMS, AsJson, FromLineage, of_source, reading
from binlog2s3.config.given import (
    CommandOptions,
    Given,
    exclusive,
    file_problems,
    needs,
    path_problems,
)
from binlog2s3.config.options import Option, options_of
from binlog2s3.config.points import Moment
from binlog2s3.config.stream import (
    LOGIN_OPTIONS,
    MysqlConfig,
    S3Config,
    login_problems,
    server_of,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyConfig:
    """What to verify, and how thoroughly. `source` None: all below the prefix.

    `server`: how to reach the server to compare with, None without --against-source.
    """

    s3: S3Config
    source: str | None = None
    server: MysqlConfig | None = None
    lineage: Annotated[
        str | None,
        Option(
            "ID",
            "Only the history that ends in this lineage: it and its ancestors.",
            otherwise="all lineages",
        ),
    ] = None
    deep: Annotated[
        bool,
        Option("", "Read every byte, and check each event's CRC32, each block and each entry."),
    ] = False
    since: Annotated[
        Moment | None,
        Option(
            "TIME",
            "Only binlogs that end at this time or later.",
            "time",
            otherwise="from the first one on",
        ),
    ] = None
    last: Annotated[
        int | None,
        Option(
            "N",
            "Only the last N binlogs of each lineage.",
            otherwise="all",
            least=1,
            most=1_000_000_000,
        ),
    ] = None
    against_source: Annotated[
        bool,
        Option(
            "",
            "Compare with what the server still has: names, sizes, first events. Needs "
            "--mysql-host or --mysql-socket, and so on.",
        ),
    ] = False
    from_backup: Annotated[
        Path | None,
        Option(
            "PATH",
            f"Check whether this base backup can still be brought to now: {BACKUP_FORMS}",
        ),
    ] = None
    from_gtid_set: Annotated[
        str | None, Option("SET", "The same, for a base backup that has these GTIDs.", "gtid set")
    ] = None
    from_lineage: FromLineage = None
    repair: Annotated[
        bool,
        Option("", "Rebuild missing entries from whole binlogs; nothing else is ever changed."),
    ] = False
    as_json: AsJson = False

    @property
    def asks(self) -> bool:
        """Whether it is asked about a base backup."""
        return self.from_backup is not None or self.from_gtid_set is not None


VERIFY_OPTIONS = options_of(VerifyConfig)
"""Those that only `verify` has."""
_SHARED = (
    *reading("Only this source.", required=False, otherwise="all below the prefix"),
    *LOGIN_OPTIONS,
)


def _server(values: Mapping[str, Any]) -> MysqlConfig | None:
    return server_of(values, LOGIN_OPTIONS) if values.get("against-source") else None


def _problems(given: Given) -> Iterable[str]:
    yield from exclusive(given, ("from-backup", "from-gtid-set"))
    yield from path_problems(given, "from-backup")
    yield from needs(given, "from-lineage", "from-backup", "from-gtid-set")
    yield from exclusive(given, ("since", "last"))
    if given.wants("against-source"):
        yield from login_problems(given, "mysql")
        yield from file_problems(given, LOGIN_OPTIONS)


VERIFY = CommandOptions(
    (*VERIFY_OPTIONS, *_SHARED), _problems, of_source(VerifyConfig, VERIFY_OPTIONS, server=_server)
)
