"""The options of `drill`, and one frozen `DrillConfig` of them.

How a backup is restored is said by the options that `restore` has, too.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

from binlog2s3.config.bucket import WRITING, of_source, reading
from binlog2s3.config.given import CommandOptions, Given, file_problems, path_problems
from binlog2s3.config.goal import GOAL_OPTIONS, goal_of
from binlog2s3.config.options import Option, options_of
from binlog2s3.config.restore import Restoring, restoring_problems

IoClass = Literal["idle", "best-effort", "none"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DrillConfig(Restoring):
    """What to restore, with what, and how much a drill may take."""

    work_dir: Annotated[
        Path,
        Option(
            "DIR",
            "Directory for the scratch server's data, on a disk with enough space. Drill makes "
            "directories in it, and deletes only those.",
            required=True,
        ),
    ]
    check_sql: Annotated[
        Path | None,
        Option(
            "FILE",
            "Check with these statements instead of CHECK TABLE. Each ends with ; at the end of a "
            "line. It passes if the first column of its first row is neither 0 nor NULL.",
            "file",
        ),
    ] = None
    max_disk: Annotated[
        int | None,
        Option("SIZE", "Stop, and fail, if the drill takes more disk space.", "size", least=1),
    ] = None
    timeout: Annotated[
        float,
        Option("TIME", "Stop, and fail, after this time.", "duration", least=1, most=31 * 86_400),
    ] = 12 * 3600.0
    nice: Annotated[int, Option("N", "Lower the CPU priority by this much.", least=0, most=19)] = 10
    ionice: Annotated[
        IoClass, Option("CLASS", "Disk priority, by the program ionice; none leaves it.")
    ] = "idle"
    as_json: Annotated[bool, Option("", "Print the result as JSON.", name="json")] = False


_TO_TIME, _ACCEPT_TIMES = (
    option for option in GOAL_OPTIONS if option.name in ("to-time", "accept-times")
)
_OWN = options_of(DrillConfig)
DRILL_OPTIONS = (
    replace(_TO_TIME, help="Recover to this time, as `pitr` does.", otherwise="now"),
    _ACCEPT_TIMES,
    *_OWN,
)
"""Those that `drill` has for itself."""
_SHARED = (*reading("Server in the bucket whose recovery is proved."), *WRITING)


def _problems(given: Given) -> Iterable[str]:
    yield from restoring_problems(given, "drill")
    yield from path_problems(given, "work-dir")
    yield from file_problems(given, DRILL_OPTIONS)


DRILL = CommandOptions(
    (*_SHARED, *DRILL_OPTIONS), _problems, of_source(DrillConfig, _OWN, goal=goal_of)
)
