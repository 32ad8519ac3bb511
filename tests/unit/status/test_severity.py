"""Every rendering of a status says how bad it is, and all of them say the same."""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from io import StringIO
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from binlog2s3.output import Plain
from binlog2s3.status.ask import ask_health
from binlog2s3.status.http import Listener, applications
from binlog2s3.status.metrics import registry_of
from binlog2s3.status.model import (
    GAP_HINT,
    RISING,
    WELL,
    Gap,
    HistoryStatus,
    Lag,
    State,
    Status,
    Trouble,
    WriterStatus,
    document,
    from_document,
    urgency,
)
from binlog2s3.status.nagios import CODES, Thresholds, verdict, verdict_of_all
from binlog2s3.status.page import ReportPage
from binlog2s3.status.text import counts_of, line_of_all, print_status, style_of

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
STYLES = {"ok": "green", "warning": "yellow", "unknown": "bold red", "critical": "bold red"}


def trouble(level: Any, code: str = "source") -> Trouble:
    return Trouble(code=code, level=level, text=f"{code} is {level}")


def gap(join: str, days: float | None) -> Gap:
    at = None if days is None else NOW - timedelta(days=days)
    return Gap(lineage="L", join=join, text="b.000001 is not there", at=at)


TROUBLES = st.lists(
    st.builds(
        trouble,
        st.sampled_from(["warning", "critical"]),
        st.sampled_from(["source", "missing", "dead", "unreadable"]),
    ),
    max_size=3,
)
GAPS = st.lists(
    st.builds(
        gap, st.sampled_from(["gap", "unknown", "missing"]), st.none() | st.floats(0.0, 30.0)
    ),
    max_size=3,
)
STATUSES = st.builds(
    Status,
    source=st.sampled_from(["a", "b"]),
    target=st.just("s3://b/p"),
    seen_from=st.sampled_from(["daemon", "bucket"]),
    at=st.just(NOW),
    state=st.sampled_from(get_args(State)),
    troubles=TROUBLES.map(tuple),
    writer=st.none()
    | st.builds(
        WriterStatus,
        host=st.just("h"),
        pid=st.just(1),
        version=st.just("1"),
        since=st.just(NOW),
        heartbeat_at=st.floats(0, 1000).map(lambda age: NOW - timedelta(seconds=age)),
    ),
    lag=st.builds(Lag, seconds=st.floats(0.0, 60.0)),  # within the limits of --check
    history=st.none() | st.builds(HistoryStatus, gaps=GAPS.map(tuple)),
)


@given(status=STATUSES)
def test_all_renderings_agree(status: Status) -> None:
    """JSON, /metrics, the check of one and of all, the table, the lines and the colours."""
    severity = status.severity
    found = document(status)
    assert (found["severity"], found["healthy"]) == (severity, severity in ("ok", "warning"))
    assert [one["text"] for one in found["troubles"]] == [one.text for one in status.all_troubles]
    again = from_document(json.loads(json.dumps(found)))
    assert (again.severity, again.all_troubles) == (severity, status.all_troubles)
    samples = {
        (sample.name, sample.labels.get("code")): sample.value
        for family in text_string_to_metric_families(
            generate_latest(registry_of(lambda: status)).decode()
        )
        for sample in family.samples
    }
    assert samples["binlog2s3_healthy", None] == found["healthy"]
    codes = {code for name, code in samples if name == "binlog2s3_troubles"}
    assert codes == {one.code for one in status.all_troubles}
    assert verdict(status, Thresholds()).code == CODES[severity]
    many = verdict_of_all([status], Thresholds())
    assert many.code == CODES[severity]
    assert f" {severity}=1;" in many.line
    shown = "well" if severity == "ok" else severity
    assert counts_of([status]) == f"1 source: 1 {shown}"
    line = line_of_all([status], NOW)
    assert all(f" {one}={int(one == severity)}" in line for one in RISING if one != "ok")
    assert (" worst=" in line) == (severity != "ok")
    assert style_of(status) == STYLES[severity]
    page = StringIO()
    print_status(status, Plain(page), now=NOW)
    text = page.getvalue()
    assert all(f"{one.text} [{one.code}]" in text for one in status.all_troubles)


@given(status=STATUSES)
def test_the_judge_is_no_better_than_any_part(status: Status) -> None:
    """What is critical stays so; what is not known is never ok; no trouble is left out."""
    levels = {one.level for one in status.all_troubles}
    assert {*status.troubles} <= {*status.all_troubles} | {
        one for one in status.troubles if one.code == "gap"
    }
    if status.state == "unknown":
        assert status.severity in ("unknown", "critical")
    elif "critical" in levels:
        assert status.severity == "critical"
    if status.severity == "ok":
        assert not status.all_troubles
        assert status.state in WELL
    assert RISING.index(status.severity) >= (1 if levels else 0)


@pytest.mark.parametrize("statuses", [("ok", "warning"), ("warning", "unknown", "critical", "ok")])
def test_the_worst_is_shown_first(statuses: tuple[str, ...]) -> None:
    """Then the greater lag, and one that nobody knows before all."""
    base = Status(source="s", target="t", seen_from="bucket", at=NOW, state="idle")
    made = {
        "ok": base,
        "warning": replace(base, troubles=(trouble("warning"),)),
        "unknown": replace(base, state="unknown"),
        "critical": replace(base, troubles=(trouble("critical"),), lag=Lag(seconds=5.0)),
    }
    order = sorted((made[one] for one in statuses), key=urgency)
    assert [one.severity for one in order] == [one for one in reversed(RISING) if one in statuses]
    worse = [replace(made["critical"], lag=Lag(seconds=lag)) for lag in (5.0, None, 9.0)]
    assert [one.lag.seconds for one in sorted(worse, key=urgency)] == [None, 9.0, 5.0]


@pytest.mark.parametrize(
    ("join", "days", "is_news"),
    [("gap", 6.9, True), ("gap", 7.1, False), ("unknown", 1, True), ("missing", 99, True),
     ("gap", None, True)],
)  # fmt: skip
def test_a_gap_is_a_warning_with_what_to_do(
    join: str, days: float | None, is_news: bool, tmp_path: Path
) -> None:
    """In the page, in JSON, in the check, and over the spool's socket: take a new base backup."""
    status = Status(
        source="s",
        target="t",
        seen_from="daemon",
        at=NOW,
        state="idle",
        lag=Lag(seconds=0.0),
        history=HistoryStatus(lineages=2, gaps=(gap(join, days),)),
    )
    assert [one.code for one in status.all_troubles] == (["gap"] if is_news else [])
    hints = [one["hint"] for one in document(status)["troubles"]]
    assert hints == ([GAP_HINT] if is_news else [])
    page = StringIO()
    print_status(status, Plain(page), now=NOW)
    said = [page.getvalue(), verdict(status, Thresholds()).line]
    assert ["take a new base backup" in text for text in said] == [is_news] * 2
    listener = Listener(applications(lambda: status, page=ReportPage(()), clock=lambda: NOW))
    listener.listen_socket(tmp_path)
    try:
        well, text = ask_health(tmp_path)
    finally:
        listener.close()
    assert (well, "gap in L" in text) == (True, is_news)
