"""State, troubles and lag, from readings; and the document, there and back."""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from binlog2s3.archive.documents import Lineage
from binlog2s3.archive.writers import Position, WriterState
from binlog2s3.binlog.names import BinlogName, FilePosition
from binlog2s3.status import model as module
from binlog2s3.status.lag import (
    counted,
    lag_bytes,
    lag_seconds,
    lag_transactions,
    purge_seconds,
)
from binlog2s3.status.model import (
    HistoryStatus,
    Lag,
    Measurements,
    Purge,
    Status,
    document,
    from_document,
    history_of,
    judge,
    without_gtids,
)
from tests.documents import LINEAGE, TIME, UUID, like, parent_of
from tests.unit.status import test_metrics as metrics
from tests.unit.stream.builders import name

FULL = replace(
    metrics.FULL,
    durable=Position(binlog=BinlogName.parse("b.000002"), offset=400, gtid_set=f"{UUID}:1-8"),
    server=replace(
        metrics.FULL.server,
        position=Position(binlog=BinlogName.parse("b.000002"), offset=500, gtid_set=f"{UUID}:1-9"),
    ),
)
LEAST = Status(source="s", target="t", seen_from="bucket", at=TIME, state="unknown")


@pytest.mark.parametrize("status", [FULL, LEAST])
def test_a_document_can_be_read_back(status: Status) -> None:
    """All of it, as JSON."""
    found = json.loads(json.dumps(document(status)))
    assert from_document(found) == replace(status, troubles=status.all_troubles)
    again = from_document(found)
    assert (again.severity, again.all_troubles) == (status.severity, status.all_troubles)
    assert found["severity"] == status.severity
    assert found["healthy"] is status.healthy


def test_what_is_not_known_here_is_passed_over() -> None:
    """A newer version may say more, an older one less."""
    found = document(FULL) | {"more": 1}
    del found["rates"], found["purge"]
    shown = FULL.all_troubles
    assert from_document(found) == replace(FULL, rates=None, purge=Purge(), troubles=shown)


@pytest.mark.parametrize(
    "changes",
    [
        {"format": 2},
        {"format": None},
        {"source": None},
        {"at": "2026-01-01T00:00:00"},
        {"at": 7},
        {"durable": {"binlog": "b.000001"}},
        {"durable": {"binlog": "?", "offset": 5, "gtid_set": ""}},
        {"troubles": 5},
        {"lag": []},
        {"history": {"lineages": "two"}},
        {"totals": {"read_bytes": 1.5}},
    ],
)
def test_what_is_no_document_is_refused(changes: dict[str, Any]) -> None:
    """With a ValueError, whatever is wrong."""
    with pytest.raises(ValueError, match=r"status|document"):
        from_document(document(FULL) | changes)


def test_the_gtid_sets_can_be_left_out() -> None:
    """Nothing else changes."""
    short = without_gtids(document(FULL))
    assert UUID not in json.dumps(short["durable"])
    assert UUID not in json.dumps(short["server"]["position"])
    status = from_document(short)
    assert status.durable is not None
    assert replace(status.durable, gtid_set=f"{UUID}:1-8") == FULL.durable
    assert document(FULL)["durable"]["gtid_set"] == f"{UUID}:1-8"
    assert from_document(without_gtids(document(LEAST))) == from_document(document(LEAST))


# State and troubles


@pytest.mark.parametrize(
    ("measured", "state", "healthy"),
    [
        (Measurements(), "streaming", True),
        (Measurements(idle=True), "idle", True),
        (Measurements(behind=True), "catching up", True),
        (Measurements(phase="starting", phase_seconds=59), "starting", True),
        (Measurements(phase="starting", phase_seconds=60), "starting", False),
        (
            Measurements(phase="starting", source_error="no", source_silent=5),
            "source unreachable",
            False,
        ),
        (
            Measurements(phase="starting", store_error="no", store_failing=0),
            "store unreachable",
            False,
        ),
        (Measurements(phase="standby", idle=True), "standby", True),
        (Measurements(phase="standby", phase_seconds=1e6, unread=True), "standby", True),
        (Measurements(phase="standby", source_error="no", source_silent=30), "standby", False),
        (Measurements(phase="standby", store_error="no", store_failing=30), "standby", False),
        (Measurements(phase="standby", unsaved_bytes=1), "standby", True),
        (Measurements(phase="standby", unsaved_bytes=1, may_be_last_copy=True), "standby", False),
        (Measurements(phase="stopping", idle=True), "stopped", False),
        (Measurements(child_gone=4), "streaming", True),
        (Measurements(child_gone=5), "source unreachable", True),
        (Measurements(child_gone=30), "source unreachable", False),
        (Measurements(unread=True), "starting", True),
        (
            Measurements(unread=True, child_gone=1, child_error="denied"),
            "source unreachable",
            False,
        ),
        (Measurements(unread=True, paused=1), "paused", True),
        (Measurements(source_error="refused", source_silent=29), "source unreachable", True),
        (Measurements(source_error="refused", source_silent=30), "source unreachable", False),
        (Measurements(source_silent=29, idle=True), "idle", True),
        (Measurements(source_silent=30, idle=True), "source unreachable", False),
        (Measurements(source_error="no binlog", unlogged=True, source_silent=1), "unlogged", False),
        (
            Measurements(phase="starting", source_error="no binlog", unlogged=True),
            "unlogged",
            False,
        ),
        (Measurements(read_idle=29), "streaming", True),
        (Measurements(read_idle=30), "stalled", False),
        (Measurements(loop_idle=29), "streaming", True),
        (Measurements(loop_idle=30), "stalled", False),
        (Measurements(paused=0.0), "paused", True),
        (Measurements(paused=59), "paused", True),
        (Measurements(paused=60), "paused", False),
        (Measurements(store_failing=4), "streaming", True),
        (Measurements(store_failing=5), "store unreachable", True),
        (Measurements(store_failing=30), "store unreachable", False),
        (Measurements(store_silent=29), "streaming", True),
        (Measurements(store_silent=59), "store unreachable", True),
        (Measurements(store_silent=60), "store unreachable", False),
        (Measurements(beat_late=14, idle=True), "idle", True),
        (Measurements(beat_late=15, idle=True), "store unreachable", False),
        (Measurements(store_failing=6, store_silent=59), "store unreachable", True),
        (Measurements(store_failing=6, store_silent=60), "store unreachable", False),
    ],
)
def test_the_state_and_the_health(
    measured: Measurements, state: WriterState, healthy: bool
) -> None:
    """What has a name at once turns /health only when it lasts."""
    found, troubles = judge(measured)
    assert found == state
    assert (not any(trouble.level == "critical" for trouble in troubles)) is healthy
    assert replace(LEAST, state=found, troubles=troubles).healthy is healthy


def test_all_well_has_no_troubles() -> None:
    """Not even warnings, idle or catching up."""
    assert [
        judge(v)[1] for v in (Measurements(), Measurements(idle=True), Measurements(behind=True))
    ] == [(), (), ()]


@pytest.mark.parametrize("field", ["source_silent", "child_gone", "read_idle", "store_failing",
                                   "store_silent", "beat_late", "loop_idle", "paused"])  # fmt: skip
def test_what_is_not_well_is_never_called_well(field: str) -> None:
    """Whatever is critical, and for however long; each reading alone is enough."""
    for seconds in range(120):
        state, troubles = judge(replace(Measurements(idle=True), **{field: float(seconds)}))
        critical = any(trouble.level == "critical" for trouble in troubles)
        assert not (critical and state in module.WELL), seconds
        assert troubles or state == "idle" or field == "paused", seconds
    assert critical, "what lasts"


# Lag


@pytest.mark.parametrize(
    ("answer", "durable", "covered", "oldest", "lag"),
    [
        (1.0, True, 1.0, None, 0.0),  # idle
        (6.0, True, 7.0, None, 0.0),
        (6.1, True, 7.0, None, 7.0),  # nobody knows what the source did since
        (None, True, 7.0, None, 7.0),
        (1.0, False, 3.0, None, 3.0),  # not read yet
        (1.0, False, 3.0, 1.2, 1.2),  # read, and known exactly
        (1.0, False, 3.0, 9.0, 3.0),  # header times may be those of the statement's begin
        (1.0, False, None, 86400.0, 86400.0),  # a backlog
        (1.0, False, None, None, None),
        (None, False, None, None, None),
        (1.0, False, -0.5, None, 0.0),
        (1.0, False, -3600.0, None, None),  # the source's clock was set back
        (1.0, False, -3600.0, 4.0, 4.0),
        (1.0, True, -3600.0, None, 0.0),
    ],
)
def test_lag_in_seconds(
    answer: float | None,
    durable: bool,
    covered: float | None,
    oldest: float | None,
    lag: float | None,
) -> None:
    """0 only where it is proved; else the least upper bound that is known."""
    assert (
        lag_seconds(
            answer_age=answer,
            all_durable=durable,
            covered_age=covered,
            oldest_commit_age=oldest,
        )
        == lag
    )


def test_lag_in_bytes() -> None:
    """By the sizes that the source lists; None where one of them is not known."""
    sizes = {name(1): 1000, name(2): 2000, name(3): 3000, name(4): 50}
    server, first = FilePosition(name(4), 50), FilePosition(name(1), 0)
    assert lag_bytes(server, server, sizes) == 0
    assert lag_bytes(FilePosition(name(4), 60), server, sizes) == 0
    assert lag_bytes(FilePosition(name(4), 10), server, {}) == 40
    assert lag_bytes(FilePosition(name(3), 2900), server, sizes) == 150
    assert lag_bytes(first, server, sizes) == 6050
    assert lag_bytes(first, server, sizes | {}) == 6050
    del sizes[name(2)]
    assert lag_bytes(first, server, sizes) is None
    assert lag_bytes(FilePosition(name(2), 0), server, sizes) is None
    other = BinlogName("a", 3)
    assert lag_bytes(FilePosition(other, 0), server, {other: 9}) is None


def test_lag_in_transactions() -> None:
    """A difference of sets; for MariaDB by the greatest number of each domain."""
    assert lag_transactions("", "", "mysql") is None
    assert lag_transactions(f"{UUID}:1-5", f"{UUID}:1-5", "mysql") == 0
    assert lag_transactions(f"{UUID}:1-3:5", f"{UUID}:1-9:tag:1-2", "mysql") == 7
    assert lag_transactions("", f"{UUID}:1-9", "mysql") == 9
    assert lag_transactions("0-1-5", "0-1-8", "mariadb") == 3
    assert lag_transactions("0-1-5,0-2-7", "0-2-9,1-1-4", "mariadb") == 6
    assert lag_transactions("0-1-9", "0-1-8", "mariadb") == 0
    assert lag_transactions("rubbish", f"{UUID}:1", "mysql") is None


@pytest.mark.parametrize(
    ("behind_bytes", "waiting_transactions", "transactions"),
    [
        (0, 0, 0),
        (0, 3, 0),  # the server executed them, but never wrote them into a binlog
        (0, None, 0),
        (900, 3, 3),
        (900, 0, None),  # read since the source was asked for its GTIDs
        (900, None, None),
        (None, 3, 3),
        (None, 0, 0),
        (None, None, None),
    ],
)
def test_bytes_and_transactions_do_not_contradict_each_other(
    behind_bytes: int | None, waiting_transactions: int | None, transactions: int | None
) -> None:
    """Without missing bytes there are 0; beside missing bytes, 0 transactions means unknown."""
    assert counted(behind_bytes, waiting_transactions) == transactions


def test_what_is_not_durable_is_kept_at_least_so_long() -> None:
    """The source's time from its last write on, less the greatest age of what is not durable."""
    assert purge_seconds(None, Lag(seconds=5.0)) is None
    assert purge_seconds(3600.0, Lag()) is None
    assert purge_seconds(3600.0, Lag(seconds=0.0)) == 3600
    assert purge_seconds(3600.0, Lag(seconds=600.0)) == 3000
    assert purge_seconds(3600.0, Lag(seconds=7200.0)) == 0
    assert purge_seconds(0.0, Lag(seconds=0.0)) == 0


# History


def lineage(hours: int, parent: Lineage | None = None, join: str = "exact") -> Lineage:
    moment = TIME + timedelta(hours=hours)
    missing = "b.000002" if join == "gap" else ""
    return like(
        LINEAGE,
        id=f"{moment:%Y%m%dT%H%M%SZ}-3e11fa47-0000",
        first_binlog_time=moment,
        parent=parent_of(parent.id, join=join, missing=missing) if parent else None,
    )


def test_the_earliest_moment_is_behind_the_last_gap() -> None:
    """Exact joins are followed back, others are gaps; branches that are not ours do not count."""
    one = lineage(0)
    two = lineage(1, one)
    three = lineage(2, two, "gap")
    four = lineage(3, three)
    side = lineage(4, one, "unknown")
    history = history_of([one, two, three, four, side], four.id)
    assert (history.lineages, history.earliest) == (5, three.first_binlog_time)
    assert [(gap.lineage, gap.join) for gap in history.gaps] == [
        (three.id, "gap"),
        (side.id, "unknown"),
    ]
    assert history_of([one, two], two.id).earliest == one.first_binlog_time
    assert history_of([two], two.id).earliest == two.first_binlog_time
    assert history_of([one], None).earliest is None
    assert history_of([], "x") == HistoryStatus()


def test_parents_in_a_circle_end() -> None:
    """Whatever somebody wrote there."""
    one = lineage(0)
    two = lineage(1, one)
    circle = replace(one, parent=parent_of(two.id))
    assert history_of([circle, two], two.id).lineages == 2


def test_times_have_a_zone() -> None:
    """In the document all are UTC."""
    east = datetime(2026, 1, 2, 5, tzinfo=UTC).astimezone()
    assert document(replace(LEAST, at=east))["at"] == "2026-01-02T05:00:00.000000Z"
