"""The line for Nagios and its kin, and when it alarms."""

import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from binlog2s3.status.model import Gap, HistoryStatus, Lag, Purge, SpoolStatus, Status, Trouble
from binlog2s3.status.nagios import PluginResult, Thresholds, verdict, verdict_of_all

NOW = datetime(2026, 1, 2, 12, 3, 30, tzinfo=UTC)
DAY = 86400.0
LIMITS = Thresholds()
IDLE = Status(
    source="orders-primary",
    target="s3://bucket/pre",
    seen_from="daemon",
    at=NOW,
    state="idle",
    covered_until=NOW - timedelta(seconds=3),
    lag=Lag(bytes=0, transactions=0, seconds=0.0),
    purge=Purge(expire_seconds=30 * DAY, seconds=30 * DAY),
    history=HistoryStatus(lineages=1, complete=True),
)
PERFDATUM = re.compile(
    r"[a-z_]+=(U|-?[0-9.]+(s|%|B)?)"  # label=value[unit]
    r"(;(-?[0-9.]*:?)?(;(-?[0-9.]*:?)?(;[0-9.]*(;[0-9.]*)?)?)?)?"  # warning, critical, min, max
)


def judged(status: Status = IDLE, limits: Thresholds = LIMITS, **changed: Any) -> PluginResult:
    return verdict(replace(status, **changed), limits)


def trouble(level: Any, code: str = "source", text: str = "the source is away") -> Trouble:
    return Trouble(code=code, level=level, text=text)


def perfdata(found: PluginResult) -> dict[str, str]:
    """By label; each as the guidelines have it."""
    message, mark, data = found.line.partition(" | ")
    assert mark
    assert "|" not in message + data
    assert all(PERFDATUM.fullmatch(datum) for datum in data.split(" ")), data
    return dict(datum.split("=") for datum in data.split(" "))


def test_a_stream_that_is_well_is_ok() -> None:
    """The whole line."""
    assert judged() == PluginResult(
        0,
        "BINLOG2S3 OK - orders-primary: idle, everything until 12:03:27Z is in the bucket | "
        "lag_seconds=0s;60;300;0 lag_bytes=0B;;;0 lag_transactions=0;;;0 "
        "purge_seconds=2592000s;86400:;21600:;0 gaps=0;;;0",
    )


def test_another_day_is_named() -> None:
    """The time alone would say today."""
    line = judged(covered_until=NOW - timedelta(days=1)).line
    assert "until 2026-01-01T12:03:30Z is" in line
    assert "until" not in judged(covered_until=None).line


@pytest.mark.parametrize(
    ("seconds", "code"), [(60, 0), (60.1, 1), (300, 1), (300.1, 2), (100_000, 2)]
)
def test_a_lag_alarms_beyond_its_limit(seconds: float, code: int) -> None:
    """At the limit it is well."""
    found = judged(state="catching up", lag=Lag(seconds=seconds))
    assert found.code == code
    assert ("the lag is up to" in found.line) == (code > 0)


def test_a_lag_that_is_not_known_is_unknown() -> None:
    """Also of a source that is idle; unless something is critical already. U stands for it."""
    lag = Lag()
    found = judged(state="streaming", lag=lag)
    assert (found.code, found.line.split(" - ")[0]) == (3, "BINLOG2S3 UNKNOWN")
    assert perfdata(found) == {
        "lag_seconds": "U;60;300;0",
        "lag_bytes": "U;;;0",
        "lag_transactions": "U;;;0",
        "purge_seconds": "2592000s;86400:;21600:;0",
        "gaps": "0;;;0",
    }
    assert judged(state="idle", lag=lag).code == 3
    assert judged(state="streaming", lag=lag, troubles=(trouble("critical"),)).code == 2
    assert judged(state="streaming", lag=lag, troubles=(trouble("warning"),)).code == 3


def test_what_could_not_be_found_out_is_unknown() -> None:
    """However critical that is for /health; but a source that should be there is missing."""
    blank = replace(IDLE, state="unknown", lag=Lag(), covered_until=None)
    assert judged(blank).code == 3
    found = judged(blank, troubles=(trouble("critical", "unreadable", "k is not JSON"),))
    assert found.code == 3
    assert "k is not JSON" in found.line
    assert judged(blank, troubles=(trouble("critical", "missing", "not there"),)).code == 2


@pytest.mark.parametrize(
    ("expire", "left", "code"),
    [
        (30 * DAY, 24 * 3600, 0),
        (30 * DAY, 24 * 3600 - 1, 1),
        (30 * DAY, 6 * 3600, 1),
        (30 * DAY, 6 * 3600 - 1, 2),
        (30 * DAY, 0, 2),
        (DAY, DAY, 0),
        (DAY, DAY / 2, 0),
        (DAY, DAY / 2 - 1, 1),
        (DAY, 6 * 3600 - 1, 2),
        (3600, 3590, 0),
        (3600, 1799, 1),
        (3600, 899, 2),
        (3600, 0, 2),
    ],
)
def test_a_purge_that_comes_near_alarms(expire: float, left: float, code: int) -> None:
    """A source that keeps its binlogs for a short time only does not alarm for ever."""
    found = judged(purge=Purge(expire_seconds=expire, seconds=float(left)))
    assert found.code == code
    assert ("may delete" in found.line) == (code > 0)


def test_a_source_that_deletes_nothing_does_not_alarm() -> None:
    """Nor is there a limit to show."""
    for purge in (Purge(), Purge(expire_seconds=0.0, seconds=0.0)):
        found = judged(purge=purge)
        assert found.code == 0
        assert "purge_seconds" not in perfdata(found)
    found = judged(purge=Purge(expire_seconds=DAY))
    assert (found.code, perfdata(found)["purge_seconds"]) == (0, "U;43200:;21600:;0")


@pytest.mark.parametrize(("used", "code"), [(800, 0), (801, 1), (950, 1), (951, 2), (2000, 2)])
def test_a_spool_that_fills_alarms(used: int, code: int) -> None:
    """In percent of its limit."""
    found = judged(spool=SpoolStatus(bytes=used, max_bytes=1000))
    assert found.code == code
    assert perfdata(found)["spool_used"].endswith("%;80;95;0")
    unlimited = judged(spool=SpoolStatus(bytes=used))
    assert unlimited.code == 0
    assert "spool_used" not in perfdata(unlimited)


def test_thresholds_are_the_users() -> None:
    """Each of them."""
    status = replace(
        IDLE,
        lag=Lag(seconds=10.0),
        spool=SpoolStatus(bytes=50, max_bytes=100),
        purge=Purge(expire_seconds=30 * DAY, seconds=10 * DAY),
    )
    assert judged(status).code == 0
    for code, limits in (
        (1, Thresholds(lag_warning=9)),
        (2, Thresholds(lag_critical=9)),
        (1, Thresholds(spool_warning=49)),
        (2, Thresholds(spool_critical=49)),
        (1, Thresholds(purge_warning=11 * DAY)),
    ):
        assert judged(status, limits).code == code, limits
    left = Purge(expire_seconds=30 * DAY, seconds=5 * DAY)
    assert judged(status, Thresholds(purge_critical=6 * DAY), purge=left).code == 2


def test_a_critical_limit_below_the_warning_still_counts() -> None:
    """Whatever order they are given in."""
    used = SpoolStatus(bytes=60, max_bytes=100)
    limits = Thresholds(spool_warning=90, spool_critical=50, lag_warning=90, lag_critical=50)
    assert judged(limits=limits, spool=used).code == 2
    assert judged(limits=limits, lag=Lag(seconds=60.0)).code == 2


def test_the_worst_comes_first_and_nothing_is_left_out() -> None:
    """What is unknown stands before warnings, behind what is critical."""
    found = judged(
        state="streaming",
        lag=Lag(),
        troubles=(trouble("warning", text="one"), trouble("critical", text="two")),
    )
    assert found.line.startswith(
        "BINLOG2S3 CRITICAL - orders-primary: streaming, two; the lag is unknown; one, everything"
    )


@given(text=st.text(), state=st.sampled_from(["dead", "streaming"]))
def test_no_text_can_break_the_line(text: str, state: Any) -> None:
    """Neither end it, nor begin the performance data, nor quote; and it has an end."""
    gap = Gap(lineage=text, join="missing", text=text)
    status = replace(
        IDLE,
        state=state,
        troubles=(trouble("critical", text=text),),
        history=HistoryStatus(gaps=(gap,)),
    )
    for found in (verdict(status, LIMITS), verdict_of_all([status, IDLE], LIMITS)):
        assert found.line.isprintable()
        assert found.line.count("|") == 1
        assert "'" not in found.line
        assert perfdata(found)


def test_a_long_text_is_cut() -> None:
    """Monitors take a few kilobytes at most."""
    found = judged(troubles=(trouble("critical", text="x" * 100_000),))
    assert len(found.line) < 1000
    assert "..." in found.line
    assert perfdata(found)


# Many sources


def many(*codes: int) -> Sequence[Status]:
    """Sources a, b, c … with these verdicts."""
    kinds = {
        0: IDLE,
        1: replace(IDLE, troubles=(trouble("warning", text="is slow"),)),
        2: replace(IDLE, state="dead", troubles=(trouble("critical", text="is gone"),)),
        3: replace(IDLE, state="unknown", lag=Lag()),
    }
    return [replace(kinds[code], source=chr(97 + at)) for at, code in enumerate(codes)]


def test_all_that_are_well_are_ok() -> None:
    """How many they are, and the greatest lag."""
    statuses = [*many(0, 0), replace(IDLE, lag=Lag(seconds=1.25))]
    assert verdict_of_all(statuses, LIMITS) == PluginResult(
        0,
        "BINLOG2S3 OK - 3 sources well | sources=3;;;0 ok=3;;;0;3 warning=0;;;0;3 "
        "critical=0;;;0;3 unknown=0;;;0;3 lag_seconds=1.2s;60;300;0",
    )


def test_the_worst_of_many_are_named_first() -> None:
    """Counts and names, and of the first what is wrong."""
    found = verdict_of_all(many(0, 1, 2, 3, 2), LIMITS)
    assert found.code == 2
    assert found.line.startswith(
        "BINLOG2S3 CRITICAL - 2 of 5 sources critical: c, e; 1 unknown: d; 1 warning: b; "
        "c is dead, is gone, everything until 12:03:27Z is in the bucket | sources=5;;;0 ok=1;"
    )
    assert perfdata(found)["critical"] == "2;;;0;5"


@pytest.mark.parametrize(
    ("codes", "code"), [((0, 1), 1), ((0, 1, 3), 3), ((3, 2, 1), 2), ((0,), 0), ((), 3)]
)
def test_many_are_as_badly_off_as_the_worst(codes: Sequence[int], code: int) -> None:
    """To know nothing is worse than a warning; no source at all is not well."""
    found = verdict_of_all(many(*codes), LIMITS)
    assert found.code == code
    assert perfdata(found)["sources"] == f"{len(codes)};;;0"


def test_of_many_names_a_few_are_shown() -> None:
    """And how many more there are."""
    statuses = [replace(many(2)[0], source=f"s{number}") for number in range(300)]
    found = verdict_of_all(statuses, LIMITS)
    assert "300 of 300 sources critical: s0, s1," in found.line
    assert "s9 and 290 more" in found.line
    assert len(found.line) < 1000


def test_a_lag_that_nobody_knows_is_shown_as_such() -> None:
    """Not as 0."""
    assert perfdata(verdict_of_all(many(3), LIMITS))["lag_seconds"] == "U;60;300;0"
