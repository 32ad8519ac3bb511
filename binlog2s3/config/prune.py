"""The options of `prune`, and one frozen `PruneConfig` of them.

What to keep is said on the command line each time.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from binlog2s3.config.bucket import WRITING, AsJson, DryRun, FromLineage, of_source, reading
from binlog2s3.config.given import CommandOptions, Given, exclusive, needs, path_problems
from binlog2s3.config.options import Option, options_of
from binlog2s3.config.stream import S3Config

KEEPS = ("keep", "keep-from-gtid-set", "keep-from-backup", "keep-binlogs-for")
"""What to keep: exactly one of them, or --retire."""
_CENTURY_SECONDS = 36_500 * 86_400


@dataclass(frozen=True, slots=True, kw_only=True)
class PruneConfig:
    """What to keep of a source. At most one of the `keep...` is set; none with `retire`."""

    s3: S3Config
    source: str
    keep: Annotated[
        float | None,
        Option(
            "TIME",
            "Recovery window, for example 30d: keep what the registered base backups need to reach "
            "any moment of this time.",
            "duration",
            least=0,
            most=_CENTURY_SECONDS,
            needs_unit=True,
        ),
    ] = None
    keep_from_gtid_set: Annotated[
        str | None,
        Option(
            "SET",
            "Keep what a base backup that has these GTIDs needs, and nothing before that.",
            "gtid set",
        ),
    ] = None
    keep_from_backup: Annotated[
        Path | None,
        Option("PATH", "Keep what this base backup needs, and nothing before that."),
    ] = None
    keep_binlogs_for: Annotated[
        float | None,
        Option(
            "TIME",
            "Keep binlogs for this time after their last commit, whatever base backups need.",
            "duration",
            least=0,
            most=_CENTURY_SECONDS,
            needs_unit=True,
        ),
    ] = None
    from_lineage: FromLineage = None
    grace: Annotated[
        float,
        Option(
            "TIME",
            "How long binlogs stay after they were given up: a `pitr` or `serve` that runs may "
            "still need them.",
            "duration",
            least=0,
            most=_CENTURY_SECONDS,
            needs_unit=True,
        ),
    ] = 24 * 3600.0
    retire: Annotated[
        bool,
        Option(
            "",
            "The source has ended: the status of all sources raises no alarm for it. Its archive "
            "stays until it is pruned.",
        ),
    ] = False
    allow_empty: Annotated[
        bool, Option("", "Prune although no registered base backup can be recovered afterwards.")
    ] = False
    dry_run: DryRun = False
    yes: Annotated[bool, Option("", "Do not ask.")] = False
    as_json: AsJson = False


PRUNE_OPTIONS = options_of(PruneConfig)
"""Those that only `prune` has."""
_SHARED = (*reading("Server in the bucket whose archive is pruned."), *WRITING)


def _problems(given: Given) -> Iterable[str]:
    ways = (*KEEPS, "retire")
    if not any(map(given.wants, ways)) and not given.wrong.intersection(KEEPS):
        yield f"what to keep is missing: one of {', '.join(f'--{name}' for name in KEEPS)}"
    yield from exclusive(given, ways)
    yield from path_problems(given, "keep-from-backup")
    yield from needs(given, "from-lineage", "keep-from-gtid-set", "keep-from-backup")


PRUNE = CommandOptions((*_SHARED, *PRUNE_OPTIONS), _problems, of_source(PruneConfig, PRUNE_OPTIONS))
