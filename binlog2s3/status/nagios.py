"""The line and the exit code of a monitoring plugin, out of a Status.

Place in the flow: under `cli.status`; a rendering of `model`, as Nagios and its kin want it
(https://nagios-plugins.org/doc/guidelines.html).

Law: pure. What could not be found out is UNKNOWN, never OK; what is critical already is no less so
because something else is not known. Foreign texts can end neither the line nor the message.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC

from binlog2s3.config.status import Thresholds
from binlog2s3.status.model import WELL, Gap, Status, in_words

OK, WARNING, CRITICAL, UNKNOWN = 0, 1, 2, 3
_WORDS = ("OK", "WARNING", "CRITICAL", "UNKNOWN")
_SEVERITY = (OK, WARNING, UNKNOWN, CRITICAL)  # rising: not to know hides what is only a warning
_MOST_TEXT = 600
_MOST_NAMES = 10
_FORBIDDEN = str.maketrans({"|": "/", "'": "`"})


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a plugin ends with and prints."""

    code: int
    line: str


@dataclass(frozen=True, slots=True)
class _Finding:
    code: int
    text: str


def verdict(status: Status, thresholds: Thresholds) -> Verdict:
    """Judge one source."""
    findings = _findings(status, thresholds)
    code = _worst([finding.code for finding in findings])
    perfdata = " ".join(_perfdata(status, thresholds))
    return Verdict(code, f"{_head(code)} - {status.source}: {_text(status, findings)} | {perfdata}")


def verdict_of_all(statuses: Sequence[Status], thresholds: Thresholds) -> Verdict:
    """Judge many sources: as badly off as the worst, which comes first."""
    if not statuses:
        return Verdict(UNKNOWN, f"{_head(UNKNOWN)} - there is no source | sources=0;;;0")
    found = [(status, _findings(status, thresholds)) for status in statuses]
    judged = [(status, _worst([one.code for one in findings])) for status, findings in found]
    code = _worst([one for _, one in judged])
    by_code = {
        level: [status.source for status, one in judged if one == level] for level in _SEVERITY
    }
    total = len(statuses)
    parts = [
        f"{len(names)} {_WORDS[level].lower()}: {_names(names)}"
        for level in reversed(_SEVERITY)
        if level != OK and (names := by_code[level])
    ]
    if parts:
        count, _, rest = parts[0].partition(" ")
        parts[0] = f"{count} of {total} sources {rest}"
        worst, findings = next(
            (status, those)
            for (status, those), (_, one) in zip(found, judged, strict=True)
            if one == code
        )
        parts.append(f"{worst.source} is {_text(worst, findings)}")
    else:
        parts = [f"{total} source{'s' if total > 1 else ''} well"]
    lags = [status.lag.seconds for status in statuses if status.lag.seconds is not None]
    limits = _limits(thresholds.lag_warning, thresholds.lag_critical)
    perfdata = [
        f"sources={total};;;0",
        *(f"{_WORDS[level].lower()}={len(by_code[level])};;;0;{total}" for level in range(4)),
        _metric("lag_seconds", max(lags, default=None), "s", limits),
    ]
    return Verdict(code, f"{_head(code)} - {'; '.join(parts)} | {' '.join(perfdata)}")


def _findings(status: Status, thresholds: Thresholds) -> list[_Finding]:
    """What is wrong, the worst first."""
    found = [
        *_troubles(status),
        *_lag(status, thresholds),
        *_purge(status, thresholds),
        *_spool(status, thresholds),
        *_gaps(status, thresholds),
    ]
    return sorted(found, key=lambda finding: -_SEVERITY.index(finding.code))


def _troubles(status: Status) -> Iterator[_Finding]:
    for trouble in status.troubles:
        if trouble.level == "warning":
            yield _Finding(WARNING, trouble.text)
        elif status.state == "unknown" and trouble.code != "missing":
            yield _Finding(UNKNOWN, trouble.text)
        else:
            yield _Finding(CRITICAL, trouble.text)
    if status.state == "unknown":
        yield _Finding(UNKNOWN, "nothing is known of its streamer")
    elif status.state not in WELL and not status.troubles:
        yield _Finding(CRITICAL, "it does not stream")


def _lag(status: Status, thresholds: Thresholds) -> Iterator[_Finding]:
    seconds = status.lag.seconds
    if seconds is None:
        if status.state not in ("idle", "unknown"):
            yield _Finding(UNKNOWN, "the lag is not known")
        return
    for code, limit in (
        (CRITICAL, thresholds.lag_critical),
        (WARNING, thresholds.lag_warning),
    ):
        if seconds > limit:
            text = f"the lag is up to {in_words(seconds)}, more than {in_words(limit)}"
            yield _Finding(code, text)
            return


def _purge_limits(status: Status, thresholds: Thresholds) -> tuple[float, float] | None:
    """Warning and critical; None where the source deletes nothing, or when is not known."""
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
        text = f"the source may delete what is not in the bucket in {in_words(seconds)}"
        yield _Finding(CRITICAL if seconds < critical else WARNING, text)


def _spool_used(status: Status) -> float | None:
    """How full the spool is, in percent of its limit."""
    if status.spool is None or not status.spool.max_bytes:
        return None
    return 100.0 * status.spool.bytes / status.spool.max_bytes


def _spool(status: Status, thresholds: Thresholds) -> Iterator[_Finding]:
    used = _spool_used(status)
    if used is not None and used > min(thresholds.spool_warning, thresholds.spool_critical):
        code = CRITICAL if used > thresholds.spool_critical else WARNING
        yield _Finding(code, f"the spool takes {_number(used)}% of its limit")


def _gaps(status: Status, thresholds: Thresholds) -> Iterator[_Finding]:
    """Old joins are history; what lacks in the middle of a lineage should be there still."""

    def is_news(gap: Gap) -> bool:
        if gap.join == "missing" or gap.at is None:
            return True
        return (status.at - gap.at).total_seconds() < thresholds.gap_warning

    news = [gap for gap in (status.history.gaps if status.history else ()) if is_news(gap)]
    if news:
        more = f" (and {len(news) - 1} more)" if len(news) > 1 else ""
        yield _Finding(WARNING, f"gap in {news[-1].lineage}: {news[-1].text}{more}")


# The line


def _head(code: int) -> str:
    return f"BINLOG2S3 {_WORDS[code]}"


def _worst(codes: Sequence[int]) -> int:
    return max(codes, key=_SEVERITY.index, default=OK)


def _text(status: Status, findings: Sequence[_Finding]) -> str:
    """State, what is wrong, and until when everything is there."""
    text = "; ".join(_clean(finding.text) for finding in findings)
    if len(text) > _MOST_TEXT:
        text = f"{text[:_MOST_TEXT]}..."
    parts = [_clean(status.state), *([text] if text else [])]
    if status.covered_until is not None:
        until = status.covered_until.astimezone(UTC)
        form = (
            "%H:%M:%SZ"
            if until.date() == status.at.astimezone(UTC).date()
            else "%Y-%m-%d %H:%M:%SZ"
        )
        gaps = len(status.history.gaps) if status.history is not None else 0
        but = f" but for {gaps} {'gap' if gaps == 1 else 'gaps'}" if gaps else ""
        parts.append(f"everything until {until:{form}} is in the bucket{but}")
    return ", ".join(parts)


def _names(names: Sequence[str]) -> str:
    more = len(names) - _MOST_NAMES
    shown = ", ".join(_clean(name) for name in names[:_MOST_NAMES])
    return f"{shown} and {more} more" if more > 0 else shown


def _clean(text: str) -> str:
    """In one line, without what a monitor takes for its own."""
    shown = "".join(char if char.isprintable() else " " for char in text.translate(_FORBIDDEN))
    return " ".join(shown.split())


def _perfdata(status: Status, thresholds: Thresholds) -> Iterator[str]:
    lag, purge = status.lag, _purge_limits(status, thresholds)
    limits = _limits(thresholds.lag_warning, thresholds.lag_critical)
    yield _metric("lag_seconds", lag.seconds, "s", limits)
    yield _metric("lag_bytes", lag.bytes, "B")
    yield _metric("lag_transactions", lag.transactions, "")
    if purge is not None:
        below = f"{_number(purge[0])}:;{_number(purge[1])}:"
        yield _metric("purge_seconds", status.purge.seconds, "s", below)
    if (used := _spool_used(status)) is not None:
        limits = _limits(thresholds.spool_warning, thresholds.spool_critical)
        yield _metric("spool_used", used, "%", limits)
    if status.history is not None:
        yield _metric("gaps", len(status.history.gaps), "")


def _metric(label: str, value: float | None, unit: str, limits: str = ";") -> str:
    """`label=value[unit];warning;critical;least`; U where the value is not known."""
    shown = "U" if value is None else f"{_number(value)}{unit}"
    return f"{label}={shown};{limits};0"


def _limits(warning: float, critical: float) -> str:
    return f"{_number(warning)};{_number(critical)}"


def _number(value: float) -> str:
    """Without an exponent, and with one decimal at most."""
    return f"{value:.1f}".removesuffix(".0")
