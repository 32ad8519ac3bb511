"""The options of `status` and `health`, and one frozen `StatusConfig` of them.

The options that only `status` has cannot be in the configuration file, which is the streamer's.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from binlog2s3.config.bucket import PICK_OPTIONS, AsJson, reading
from binlog2s3.config.given import CommandOptions, Given, contradiction, excludes, exclusive
from binlog2s3.config.options import Option, fill, options_of
from binlog2s3.config.stream import BY_NAME, S3Config, s3_of

_YEAR_SECONDS = 366 * 86400
Output = Literal["text", "json", "watch", "check"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """Limits of --check: durations in seconds, the spool in percent of its limit.

    If a source keeps its binlogs only for a short time, half and a quarter of that time are the
    limits of the purge, if they are lower.
    """

    lag_warning: Annotated[
        float, Option("SECONDS", "--check: warning above this lag.", least=0, most=_YEAR_SECONDS)
    ] = 60.0
    lag_critical: Annotated[
        float, Option("SECONDS", "--check: critical above this lag.", least=0, most=_YEAR_SECONDS)
    ] = 300.0
    purge_warning: Annotated[
        float,
        Option(
            "SECONDS",
            "--check: warning if the source keeps what is not durable for less than this.",
            least=0,
            most=_YEAR_SECONDS,
        ),
    ] = 24 * 3600.0
    purge_critical: Annotated[
        float,
        Option(
            "SECONDS",
            "--check: critical if the source keeps what is not durable for less than this.",
            least=0,
            most=_YEAR_SECONDS,
        ),
    ] = 6 * 3600.0
    spool_warning: Annotated[
        float,
        Option(
            "PERCENT", "--check: warning above this use of the spool.", "integer", least=0, most=100
        ),
    ] = 80.0
    spool_critical: Annotated[
        float,
        Option(
            "PERCENT",
            "--check: critical above this use of the spool.",
            "integer",
            least=0,
            most=100,
        ),
    ] = 95.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusConfig:
    """What `status` and `health` look at: a streamer, through its spool, the bucket, or a `serve`.

    `spool_given`: the spool was named, and is not the default. `count`: how often to look, None:
    until interrupted.
    """

    s3: S3Config | None
    source: str | None
    spool: Path
    spool_given: bool
    whole: Annotated[
        bool, Option("", "Every source below the prefix, in one table.", name="all")
    ] = False
    expect: Annotated[
        Path | None,
        Option(
            "FILE",
            "--all: file with the sources that must exist, one per line; `ignore NAME` for a "
            "disused one.",
        ),
    ] = None
    look_at: Annotated[
        Literal["auto", "daemon", "bucket"],
        Option(
            "WHERE",
            "Ask the streamer through the socket in its spool (daemon), read the bucket, or (auto) "
            "read the bucket if no streamer answers.",
            name="from",
        ),
    ] = "auto"
    serve_url: Annotated[
        str | None,
        Option(
            "URL",
            "List the clients of the `serve` with this status address, e.g. http://127.0.0.1:9276.",
            "endpoint",
        ),
    ] = None
    backup_max_age: Annotated[
        float | None,
        Option(
            "TIME",
            "Warning if the newest registered base backup of a source is older than this, or none "
            "is registered.",
            "duration",
            least=0,
            most=100 * _YEAR_SECONDS,
        ),
    ] = None
    drill_max_age: Annotated[
        float | None,
        Option(
            "TIME",
            "Warning if the last drill that proved a recovery is older than this, or none did.",
            "duration",
            least=0,
            most=100 * _YEAR_SECONDS,
        ),
    ] = None
    as_json: AsJson = False
    watch: Annotated[bool, Option("", "Update continuously, until Ctrl-C.")] = False
    interval: Annotated[
        float, Option("SECONDS", "--watch: time between two updates.", least=0.1, most=3600)
    ] = 2.0
    count: Annotated[
        int | None, Option("N", "--watch: end after this number of updates.", least=1, most=10**9)
    ] = None
    check: Annotated[
        bool, Option("", "Print one line and exit with a code for Nagios and similar monitors.")
    ] = False
    thresholds: Thresholds = field(default_factory=Thresholds)

    @property
    def output(self) -> Output:
        """How the status is shown."""
        if self.as_json:
            return "json"
        return "watch" if self.watch else "check" if self.check else "text"


_OWN = options_of(StatusConfig)
_LIMITS = options_of(Thresholds)
STATUS_OPTIONS = (*_OWN, *_LIMITS)
"""Those that only `status` has."""
_SPOOL = replace(BY_NAME["spool"], help="Spool of the streamer to ask.")
_SHARED = tuple(
    replace(option, required=False)
    for option in reading("Source to show.", otherwise="that of the streamer that answers")
    if option not in PICK_OPTIONS
)


def _config(values: Mapping[str, Any]) -> StatusConfig:
    spool = values.get("spool")
    return fill(
        StatusConfig,
        _OWN,
        values,
        s3=s3_of(values) if values.get("s3-url") else None,
        source=values.get("source"),
        spool=_SPOOL.default if spool is None else spool,
        spool_given=spool is not None,
        thresholds=fill(Thresholds, _LIMITS, values),
    )


def _problems(given: Given) -> Iterable[str]:
    whole, look_at = given.wants("all"), given.values.get("from")
    if (whole or look_at == "bucket") and given.is_missing("s3-url"):
        yield "--s3-url is missing"
    if look_at == "bucket" and not whole and given.is_missing("source"):
        yield "--source is missing (or --all)"
    for name in ("source", "spool"):  # a streamer's file has both, and they do not matter here
        if whole and given.on_command_line(name):
            yield contradiction(given, "all", name, "it shows every source, from the bucket")
    if whole and look_at == "daemon":
        yield contradiction(given, "all", "from", "a streamer knows its own source alone")
    for age in ("backup-max-age", "drill-max-age"):
        if given.has(age) and look_at == "daemon":
            yield contradiction(given, age, "from", "the bucket has what it asks for")
        elif given.has(age) and given.is_missing("s3-url"):
            yield f"{given.called(age)} needs --s3-url"
    yield from _output_problems(given)
    yield from _serve_problems(given)
    if given.wants("check"):
        yield from _threshold_problems(given)


def _output_problems(given: Given) -> Iterable[str]:
    yield from exclusive(given, ("json", "watch", "check"))
    needs = {"expect": "all", "interval": "watch", "count": "watch"}
    needs |= dict.fromkeys((option.name for option in _LIMITS), "check")
    for name, other in needs.items():
        if given.on_command_line(name) and not given.wants(other):
            yield f"--{name} needs --{other}"


def _serve_problems(given: Given) -> Iterable[str]:
    if not given.has("serve-url"):
        return
    if not given.values["serve-url"].startswith("http://"):
        yield f"{given.called('serve-url')}: --status-listen speaks http://, without TLS"
    outputs = ("all", "watch", "check")
    yield from excludes(given, "serve-url", outputs, "it lists the clients once")
    for name in ("source", "s3-url", "spool", "from"):  # the file may have them
        if given.on_command_line(name):
            yield contradiction(given, "serve-url", name, "`serve` answers for itself")


def _threshold_problems(given: Given) -> Iterable[str]:
    limits = fill(Thresholds, _LIMITS, given.values)
    for first, second in (
        ("lag-warning", "lag-critical"),
        ("purge-critical", "purge-warning"),
        ("spool-warning", "spool-critical"),
    ):
        less, more = (getattr(limits, name.replace("-", "_")) for name in (first, second))
        if less > more:
            below = f"{given.called(first)} ({less:g})"
            yield f"{below} must not be above {given.called(second)} ({more:g})"


STATUS = CommandOptions((_SHARED[0], _SPOOL, *_SHARED[1:], *STATUS_OPTIONS), _problems, _config)
HEALTH = CommandOptions((_SPOOL,), lambda _: (), _config)
