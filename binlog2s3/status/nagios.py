"""The output line and the exit code of a monitoring plugin, for one or more Status. Pure.

The format is that of Nagios and compatible monitors
(https://nagios-plugins.org/doc/guidelines.html).

Law: the result is never better than `Status.severity`; only the limits of its options make it
worse. Foreign texts can end neither the line nor the message.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from binlog2s3.config.status import Thresholds
from binlog2s3.formatting import count_text, duration_text, moment_text, one_line, some
from binlog2s3.status.model import RISING, Severity, Status, worst
from binlog2s3.status.text import but_for_gaps

CODES: dict[Severity, int] = {"ok": 0, "warning": 1, "critical": 2, "unknown": 3}
_MOST_TEXT = 600
_MOST_NAMES = 10
_FORBIDDEN = str.maketrans({"|": "/", "'": "`"})


@dataclass(frozen=True, slots=True)
class PluginResult:
    """The exit code and the line that a plugin prints."""

    code: int
    line: str


@dataclass(frozen=True, slots=True)
class _Finding:
    severity: Severity
    text: str


def verdict(status: Status, thresholds: Thresholds) -> PluginResult:
    """Judge one source."""
    findings = _findings(status, thresholds)
    severity = _severity(status, findings)
    perfdata = " ".join(_perfdata(status, thresholds))
    line = f"{_head(severity)} - {status.source}: {_text(status, findings)} | {perfdata}"
    return PluginResult(CODES[severity], line)


def verdict_of_all(statuses: Sequence[Status], thresholds: Thresholds) -> PluginResult:
    """Judge many sources: the result is that of the worst, which comes first."""
    if not statuses:
        return PluginResult(
            CODES["unknown"], f"{_head('unknown')} - there is no source | sources=0;;;0"
        )
    judged = [(status, _findings(status, thresholds)) for status in statuses]
    severities = [_severity(status, findings) for status, findings in judged]
    whole = worst(severities)
    by_severity: dict[Severity, list[str]] = {
        severity: [
            status.source
            for status, its in zip(statuses, severities, strict=True)
            if its == severity and not status.ignored
        ]
        for severity in RISING
    }
    total = len(statuses)
    ignored = sum(status.ignored for status in statuses)
    parts = [
        f"{len(names)} {severity}: {_names(names)}"
        for severity in reversed(RISING)
        if severity != "ok" and (names := by_severity[severity])
    ]
    left_alone = [f"{ignored} ignored"] if ignored else []
    if parts:
        count, _, rest = parts[0].partition(" ")
        parts[0] = f"{count} of {total} sources {rest}"
        first, findings = judged[severities.index(whole)]
        parts += [*left_alone, f"{first.source} is {_text(first, findings)}"]
    else:
        well = total - ignored
        parts = [f"{count_text(well, 'source')} well", *left_alone]
    lags = [status.lag.seconds for status in statuses if status.lag.seconds is not None]
    limits = _limits(thresholds.lag_warning, thresholds.lag_critical)
    perfdata = [
        f"sources={total};;;0",
        *(f"{severity}={len(by_severity[severity])};;;0;{total}" for severity in CODES),
        _metric("lag_seconds", max(lags, default=None), "s", limits),
    ]
    return PluginResult(CODES[whole], f"{_head(whole)} - {'; '.join(parts)} | {' '.join(perfdata)}")


def _severity(status: Status, findings: Sequence[_Finding]) -> Severity:
    return worst([status.severity, *(finding.severity for finding in findings)])


def _findings(status: Status, thresholds: Thresholds) -> list[_Finding]:
    """The findings, the worst first."""
    if status.ignored:
        return []
    findings = [
        *_troubles(status),
        *_lag(status, thresholds),
        *_purge(status, thresholds),
        *_spool(status, thresholds),
    ]
    return sorted(findings, key=lambda finding: -RISING.index(finding.severity))


def _troubles(status: Status) -> Iterator[_Finding]:
    for trouble in status.all_troubles:
        hint = f"; {trouble.hint}" if trouble.code == "gap" else ""
        yield _Finding(status.severity_of(trouble), f"{trouble.text}{hint}")


def _lag(status: Status, thresholds: Thresholds) -> Iterator[_Finding]:
    seconds = status.lag.seconds
    if seconds is None:
        if status.state != "standby":
            yield _Finding("unknown", "the lag is unknown")
        return
    limits: tuple[tuple[Severity, float], ...] = (
        ("critical", thresholds.lag_critical),
        ("warning", thresholds.lag_warning),
    )
    for severity, limit in limits:
        if seconds > limit:
            text = f"the lag is up to {duration_text(seconds)}, more than {duration_text(limit)}"
            yield _Finding(severity, text)
            return


def _purge_limits(status: Status, thresholds: Thresholds) -> tuple[float, float] | None:
    """The limits for warning and critical; None if the source deletes nothing, or if unknown."""
    expire = status.purge.expire_seconds
    if expire is None or expire <= 0:
        return None
    return min(thresholds.purge_warning, expire / 2), min(thresholds.purge_critical, expire / 4)


def _purge(status: Status, thresholds: Thresholds) -> Iterator[_Finding]:
    seconds, limits = status.purge.seconds, _purge_limits(status, thresholds)
    if seconds is None or limits is None:
        return
    warning, critical = limits
    if seconds < max(warning, critical):
        text = f"the source may delete what is not in the bucket in {duration_text(seconds)}"
        yield _Finding("critical" if seconds < critical else "warning", text)


def _spool_used(status: Status) -> float | None:
    """The used part of the spool's limit in percent; None without a limit."""
    if status.spool is None or not status.spool.max_bytes:
        return None
    return 100.0 * status.spool.bytes / status.spool.max_bytes


def _spool(status: Status, thresholds: Thresholds) -> Iterator[_Finding]:
    used = _spool_used(status)
    if used is not None and used > min(thresholds.spool_warning, thresholds.spool_critical):
        severity: Severity = "critical" if used > thresholds.spool_critical else "warning"
        yield _Finding(severity, f"the spool takes {_number(used)}% of its limit")


# The line


def _head(severity: Severity) -> str:
    return f"BINLOG2S3 {severity.upper()}"


def _text(status: Status, findings: Sequence[_Finding]) -> str:
    """The state, the findings, and until when everything is in the bucket."""
    text = "; ".join(_clean(finding.text) for finding in findings)
    if len(text) > _MOST_TEXT:
        text = f"{text[:_MOST_TEXT]}..."
    parts = [_clean(status.state), *([text] if text else [])]
    if status.covered_until is not None:
        today = moment_text(status.at)[: len("2026-01-02T")]
        until = moment_text(status.covered_until).removeprefix(today)
        parts.append(f"everything until {until} is in the bucket{but_for_gaps(status)}")
    return ", ".join(parts)


def _names(names: Sequence[str]) -> str:
    return _clean(some(names, _MOST_NAMES))


def _clean(text: str) -> str:
    """One line, without the characters that have a meaning in a plugin's output."""
    return one_line(text.translate(_FORBIDDEN))


def _perfdata(status: Status, thresholds: Thresholds) -> Iterator[str]:
    lag, purge = status.lag, _purge_limits(status, thresholds)
    limits = _limits(thresholds.lag_warning, thresholds.lag_critical)
    yield _metric("lag_seconds", lag.seconds, "s", limits)
    yield _metric("lag_bytes", None if lag.at_least else lag.bytes, "B")
    yield _metric("lag_transactions", None if lag.at_least else lag.transactions, "")
    if purge is not None:
        below = f"{_number(purge[0])}:;{_number(purge[1])}:"
        yield _metric("purge_seconds", status.purge.seconds, "s", below)
    if (used := _spool_used(status)) is not None:
        limits = _limits(thresholds.spool_warning, thresholds.spool_critical)
        yield _metric("spool_used", used, "%", limits)
    if status.history is not None:
        yield _metric("gaps", len(status.history.gaps), "")


def _metric(label: str, value: float | None, unit: str, limits: str = ";") -> str:
    """`label=value[unit];warning;critical;minimum`; the value is U if unknown."""
    shown = "U" if value is None else f"{_number(value)}{unit}"
    return f"{label}={shown};{limits};0"


def _limits(warning: float, critical: float) -> str:
    return f"{_number(warning)};{_number(critical)}"


def _number(value: float) -> str:
    """A number without an exponent, with at most one decimal."""
    return f"{value:.1f}".removesuffix(".0")
