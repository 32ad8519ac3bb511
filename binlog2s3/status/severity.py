"""How bad a stream's status is: the one judge that every rendering asks.

Place in the flow: over `model.Status`. /health, /metrics, `status` with `--all`, `--watch` and
`--json`, and the check for monitors take severity and troubles from here, so they cannot disagree;
`nagios` adds the limits that its options set, and nothing else does.

Law: pure. What could not be found out is unknown, never ok; what is critical already is no less so
because something else is not known.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from binlog2s3.status.model import WELL, Gap, Status, Trouble

Severity = Literal["ok", "warning", "unknown", "critical"]
RISING: tuple[Severity, ...] = ("ok", "warning", "unknown", "critical")
"""Not to know may hide what is worse than a warning."""

_NEWS_SECONDS = 7 * 86400.0
"""A gap between two lineages is a warning for so long; then it is history."""
GAP_HINT = "take a new base backup: no recovery crosses a gap"


@dataclass(frozen=True, slots=True)
class Judgement:
    """The severity, and all that is wrong, the worst first."""

    severity: Severity
    troubles: tuple[Trouble, ...]

    @property
    def healthy(self) -> bool:
        """What /health says: the streamer needs nobody at once."""
        return self.severity in ("ok", "warning")


def judged(status: Status) -> Judgement:
    """Judge a status by its state, its troubles and its gaps; of one that is ignored, nothing."""
    if status.ignored:
        return Judgement("ok", ())
    troubles = sorted(_troubles(status), key=lambda trouble: trouble.level != "critical")
    severities = [severity_of(trouble, status) for trouble in troubles]
    if status.state == "unknown":
        severities.append("unknown")
    return Judgement(worst(severities), tuple(troubles))


def severity_of(trouble: Trouble, status: Status) -> Severity:
    """How bad one trouble is: of a streamer of which nothing is known, nobody knows that."""
    if trouble.level == "warning":
        return "warning"
    return "unknown" if status.state == "unknown" and trouble.code != "missing" else "critical"


def worst(severities: list[Severity]) -> Severity:
    """The worst of them; ok if there is none."""
    return max(severities, key=RISING.index, default="ok")


def urgency(status: Status) -> tuple[int, float, str]:
    """What to show first: the worst, then the greater lag; a lag that is not known is great.

    What is ignored comes last.
    """
    severity, lag = judged(status).severity, status.lag.seconds
    great = 0.0 if severity in ("ok", "warning") else -math.inf if lag is None else -lag
    return (1 if status.ignored else -RISING.index(severity)), great, status.source


def _troubles(status: Status) -> Iterator[Trouble]:
    """What was found wrong, and what follows from the state and from the gaps."""
    for trouble in status.troubles:
        if trouble.code != "gap" or status.history is None:  # else judged from the gaps themselves
            yield trouble
    if status.state == "unknown" and not status.troubles:
        yield Trouble(code="unknown", level="critical", text="nothing is known of its streamer")
    elif status.state not in WELL and not status.troubles:
        text = f"it does not stream, it is: {status.state}"
        yield Trouble(code="unknown", level="critical", text=text)
    news = [gap for gap in (status.history.gaps if status.history else ()) if is_news(gap, status)]
    if news:
        more = f" (and {len(news) - 1} more)" if len(news) > 1 else ""
        text = f"gap in {news[-1].lineage}: {news[-1].text}{more}"
        yield Trouble(code="gap", level="warning", text=text, hint=GAP_HINT)


def is_news(gap: Gap, status: Status) -> bool:
    """Whether a gap is a warning: old joins are history, a missing binlog should be there still."""
    if gap.join == "missing" or gap.at is None:
        return True
    return (status.at - gap.at).total_seconds() < _NEWS_SECONDS
