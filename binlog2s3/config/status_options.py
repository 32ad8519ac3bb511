"""The options of `status` beside those that it shares with `stream`. Pure.

Place in the flow: as `options`, for `values` to judge and `cli` to declare. They have no place in
the configuration file: that is the streamer's.
"""

from collections.abc import Mapping
from typing import Any

from binlog2s3.config.options import Kind, Option, Value

INTERVAL_SECONDS = 2.0
THRESHOLDS: Mapping[str, float] = {
    "lag-warning": 60.0,
    "lag-critical": 300.0,
    "purge-warning": 24 * 3600.0,
    "purge-critical": 6 * 3600.0,
    "spool-warning": 80.0,
    "spool-critical": 95.0,
}


def _own(name: str, kind: Kind, metavar: str, help_: str, **more: Any) -> Option:
    key = name.replace("-", "_")
    return Option(name=name, table="", key=key, kind=kind, metavar=metavar, help=help_, **more)


def _threshold(name: str, kind: Kind, metavar: str, help_: str) -> Option:
    number = THRESHOLDS[name]
    shown = f"{number / 3600:g}h" if number >= 3600 else f"{number:g}"
    most: Value = 100 if kind == "integer" else 366 * 86400
    return _own(name, kind, metavar, f"--check: {help_}", otherwise=shown, least=0, most=most)


STATUS_OPTIONS: tuple[Option, ...] = (
    _own("all", "flag", "", "Every source below the prefix, in one table."),
    _own(
        "expect",
        "path",
        "FILE",
        "--all: names of sources, one a line, that must be there.",
    ),
    _own(
        "from",
        "choice",
        "WHERE",
        "Ask the streamer by its spool's socket (daemon), look into the bucket, or (auto) the one "
        "and then the other.",
        choices=("auto", "daemon", "bucket"),
        otherwise="auto",
    ),
    _own("json", "flag", "", "One JSON document, for programs."),
    _own("watch", "flag", "", "Look again and again, until Ctrl-C."),
    _own(
        "interval",
        "duration",
        "SECONDS",
        "--watch: from one look to the next, at least 0.1.",
        otherwise=f"{INTERVAL_SECONDS:g}",
        least=0,
        most=3600,
    ),
    _own("count", "integer", "N", "--watch: end after so many looks.", least=1, most=10**9),
    _own("check", "flag", "", "One line and an exit code for Nagios and its like."),
    _threshold("lag-warning", "duration", "SECONDS", "warning above this lag."),
    _threshold("lag-critical", "duration", "SECONDS", "critical above this lag."),
    _threshold(
        "purge-warning",
        "duration",
        "SECONDS",
        "warning if the source keeps what is not durable for less.",
    ),
    _threshold("purge-critical", "duration", "SECONDS", "critical if for less than this."),
    _threshold("spool-warning", "integer", "PERCENT", "warning above this use of the spool."),
    _threshold("spool-critical", "integer", "PERCENT", "critical above this use of the spool."),
)
