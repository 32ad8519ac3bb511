"""The severity of a stream's status: the one judgement that every output uses. Pure.

/health, /metrics, all forms of `status` and the check for monitors take severity and troubles from
here, so they cannot disagree. Only `nagios` adds limits, those of its options.

Law: what could not be found out is unknown, never ok. What is critical stays critical even if
something else is unknown.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from binlog2s3.formatting import count_text
from binlog2s3.status.model import WELL, Gap, Status, Trouble

Severity = Literal["ok", "warning", "unknown", "critical"]
RISING: tuple[Severity, ...] = ("ok", "warning", "unknown", "critical")
"""What is unknown may be worse than a warning."""

_NEWS_SECONDS = 7 * 86400.0
"""How long a gap between two lineages is a warning."""
DRILL_HINT = "docs/drill.md says what to look at; if it has logs, they are in its work directory"
BACKUP_HINT = "nothing was registered: run it again, and look at its output"
GAP_HINT = "take a new base backup: no recovery crosses a gap"


@dataclass(frozen=True, slots=True)
class Judgement:
    """The severity, and all troubles, the worst first."""

    severity: Severity
    troubles: tuple[Trouble, ...]

    @property
    def healthy(self) -> bool:
        """What /health says: nobody has to act at once."""
        return self.severity in ("ok", "warning")


def judged(status: Status) -> Judgement:
    """Judge a status by its state, troubles and gaps. An ignored source is ok."""
    if status.ignored:
        return Judgement("ok", ())
    troubles = sorted(_troubles(status), key=lambda trouble: trouble.level != "critical")
    severities = [severity_of(trouble, status) for trouble in troubles]
    if status.state == "unknown":
        severities.append("unknown")
    return Judgement(worst(severities), tuple(troubles))


def severity_of(trouble: Trouble, status: Status) -> Severity:
    """The severity of one trouble: unknown if nothing is known of the streamer."""
    if trouble.level == "warning":
        return "warning"
    return "unknown" if status.state == "unknown" and trouble.code != "missing" else "critical"


def worst(severities: list[Severity]) -> Severity:
    """The worst severity; ok if there is none."""
    return max(severities, key=RISING.index, default="ok")


def urgency(status: Status) -> tuple[int, float, str]:
    """A sort key: the worst severity first, then the greatest lag; an unknown lag counts as great.

    Ignored sources come last.
    """
    severity, lag = judged(status).severity, status.lag.seconds
    great = 0.0 if severity in ("ok", "warning") else -math.inf if lag is None else -lag
    return (1 if status.ignored else -RISING.index(severity)), great, status.source


def _troubles(status: Status) -> Iterator[Trouble]:
    """The status's own troubles, and those that follow from its state and its gaps."""
    for trouble in status.troubles:
        if trouble.code == "gap" and status.history is not None:
            continue  # judged by its gaps
        if trouble.code == "drill" and status.drill is not None and status.drill.failed:
            continue  # judged by the last drill
        if trouble.code == "backup-run" and status.backups is not None:
            continue  # judged by the last run
        yield trouble
    if status.state == "unknown" and not status.troubles:
        yield Trouble(code="unknown", level="critical", text="nothing is known about its streamer")
    elif status.state not in WELL and not status.troubles:
        text = f"it is not streaming; its state is: {status.state}"
        yield Trouble(code="unknown", level="critical", text=text)
    drill = status.drill
    if drill is not None and drill.failed:
        text = f"the last drill failed at the step {drill.step}: {drill.error}"
        yield Trouble(code="drill", level="warning", text=text, hint=DRILL_HINT)
    if status.backups is not None and status.backups.run_failed:
        text = f"the last `backup run` failed: {status.backups.run_error}"
        yield Trouble(code="backup-run", level="warning", text=text, hint=BACKUP_HINT)
    news = [gap for gap in (status.history.gaps if status.history else ()) if is_news(gap, status)]
    if news:
        more = f" (and {len(news) - 1} more)" if len(news) > 1 else ""
        text = f"{gap_text(news[-1])}{more}"
        yield Trouble(code="gap", level="warning", text=text, hint=GAP_HINT)


def but_for_gaps(status: Status) -> str:
    """The exception to what is in the bucket until a time: what is in a gap is nowhere."""
    count = len(status.history.gaps) if status.history is not None else 0
    return f", but for {count_text(count, 'gap')}" if count else ""


def gap_text(gap: Gap) -> str:
    """A gap in words."""
    kind = "possible gap" if gap.join == "unknown" else "gap"
    return f"{kind} in {gap.lineage}: {gap.text}"


def is_news(gap: Gap, status: Status) -> bool:
    """Whether a gap is a warning: an old join is not, a missing binlog always is."""
    if gap.join == "missing" or gap.at is None:
        return True
    return (status.at - gap.at).total_seconds() < _NEWS_SECONDS
