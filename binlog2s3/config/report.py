"""The options of `report`, and one frozen `ReportConfig` of them."""

import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from binlog2s3.config.bucket import of_source, reading
from binlog2s3.config.given import CommandOptions, Given, contradiction
from binlog2s3.config.options import Option, options_of
from binlog2s3.config.status import STATUS_OPTIONS
from binlog2s3.config.stream import S3Config

STANDARD_OUTPUT = Path("-")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportConfig:
    """What the page is about, and where it goes; `source` None: all below the prefix.

    `expect`, `backup_max_age` and `drill_max_age`: as in `StatusConfig`.
    """

    s3: S3Config
    source: str | None = None
    html: Annotated[
        Path,
        Option(
            "FILE",
            "Write the page to this file, which is replaced as a whole; - is standard output.",
        ),
    ]
    expect: Path | None = None
    backup_max_age: float | None = None
    drill_max_age: float | None = None


_OF_STATUS = {option.name: option for option in STATUS_OPTIONS}
_EXPECT = "File with the sources that must exist, one per line; `ignore NAME` for a disused one."
REPORT_OPTIONS = (
    *options_of(ReportConfig),
    replace(_OF_STATUS["expect"], help=_EXPECT),
    _OF_STATUS["backup-max-age"],
    _OF_STATUS["drill-max-age"],
)
"""Those that only `report` has, with those of `status` that decide what is wrong."""


def _problems(given: Given) -> Iterable[str]:
    if given.has("expect") and given.on_command_line("source"):
        yield contradiction(given, "expect", "source", "it is for the page of all sources")
    if given.has("html") and (why := unwritable(given.values["html"])):
        yield f"{given.called('html')}: {why}"


def unwritable(path: Path) -> str:
    """Why no page can be put there; "" if nothing is known that is against it.

    What is no regular file is not replaced: a device would be gone, and a link leads elsewhere.
    """
    if path == STANDARD_OUTPUT:
        return ""
    try:
        if not stat.S_ISDIR(path.parent.stat().st_mode):
            return f"{path.parent} is no directory"
        if not os.access(path.parent, os.W_OK | os.X_OK):
            return f"{path.parent}: permission denied"
        if not stat.S_ISREG(path.lstat().st_mode):
            return f"{path} is there, and no regular file"
    except FileNotFoundError:
        return "" if path.parent.is_dir() else f"there is no directory {path.parent}"
    except (OSError, ValueError) as error:
        return f"{path}: {(getattr(error, 'strerror', None) or str(error)).lower()}"
    return ""


REPORT = CommandOptions(
    (*reading("Only this source.", required=False, otherwise="all below the prefix"),
     *REPORT_OPTIONS),
    _problems,
    of_source(ReportConfig, REPORT_OPTIONS),
)  # fmt: skip
