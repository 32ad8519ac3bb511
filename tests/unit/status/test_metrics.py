"""Metrics: what a Status says, in Prometheus' words; what is not known is not there."""

import os
import re
import subprocess
from collections.abc import Iterator
from dataclasses import is_dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import NoneType
from typing import Any, get_args, get_type_hints

import pytest
from prometheus_client import REGISTRY, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from binlog2s3.archive.writers import Position
from binlog2s3.binlog.names import BinlogName
from binlog2s3.status.metrics import METRICS, Timings, registry_of
from binlog2s3.status.model import (
    BackupsStatus,
    ChildStatus,
    DrillStatus,
    Gap,
    HistoryStatus,
    Lag,
    Purge,
    Rates,
    SourceStatus,
    SpoolStatus,
    StandbyStatus,
    State,
    Status,
    StoreStatus,
    Totals,
    Trouble,
    UploadStatus,
    WriterStatus,
)

OWN = Timings(started_at=datetime(2026, 1, 2, 3, 0, tzinfo=UTC))
OWN.durable.observe(0.3)
OWN.durable.observe(7200)
OWN.requested("PutObject", "200", 0.02)
OWN.requested("PutObject", "503", 0.02)
OWN.requested("GetObject", "none", 61)
AT = datetime(2026, 1, 2, 3, 4, 5, 250_000, tzinfo=UTC)
BARE = Status(source="orders", target="s3://acme/prod", seen_from="daemon", at=AT, state="unknown")
FULL = replace(
    BARE,
    standbys=(StandbyStatus(host="db2", pid=1, version="1", since=AT),) * 2,
    state="catching up",
    troubles=(
        Trouble(code="store", level="critical", text="a"),
        Trouble(code="store", level="critical", text="b"),
        Trouble(code="heartbeat", level="warning", text="c"),
    ),
    writer=WriterStatus(
        host="db1",
        pid=4711,
        version="0.1.0",
        since=AT - timedelta(seconds=100),
        generation=7,
        heartbeat_at=AT - timedelta(seconds=4),
        heartbeat_interval_seconds=30.0,
    ),
    server=SourceStatus(
        uuid="3e11fa47-71ca-11e1-9e33-c80aa9429562",
        flavour="mysql",
        position=Position(binlog=BinlogName.parse("mysql-bin.000043"), offset=900, gtid_set=""),
        asked_at=AT,
        silent_seconds=1.5,
        read_only=True,
    ),
    lineage="20260102T030405Z-3e11fa47-a1b2",
    durable=Position(binlog=BinlogName.parse("mysql-bin.000042"), offset=157, gtid_set=""),
    covered_until=AT - timedelta(seconds=2),
    latest=AT - timedelta(seconds=1),
    lag=Lag(bytes=743, transactions=3, seconds=2.25),
    flush_interval=0.5,
    spool=SpoolStatus(
        directory="/spool", bytes=11, free_bytes=12, max_bytes=13, min_free_bytes=14, paused=True
    ),
    uploads=UploadStatus(
        binlogs=21,
        closed_binlogs=22,
        open_uploads=23,
        chunks=24,
        parts_in_flight=25,
        requests_in_flight=26,
        unsaved_bytes=27,
        stretched=True,
    ),
    child=ChildStatus(pid=1, restarts=31, last_error_at=AT - timedelta(seconds=31)),
    store=StoreStatus(
        last_success_at=AT - timedelta(seconds=41),
        last_error_at=AT - timedelta(seconds=42),
        errors=43,
    ),
    totals=Totals(
        read_bytes=51, sent_bytes=52, durable_bytes=53, transactions=54, archived_binlogs=55
    ),
    rates=Rates(window_seconds=15, read_bytes=1, durable_bytes=1, transactions=1),
    purge=Purge(expire_seconds=2_592_000.0, seconds=2_591_997.75),
    history=HistoryStatus(
        lineages=61,
        gaps=(Gap(lineage="x", join="gap", text=""), Gap(lineage="y", join="unknown", text="")),
        earliest=AT - timedelta(days=30),
        complete=True,
    ),
    backups=BackupsStatus(
        count=3,
        newest_at=AT - timedelta(seconds=71),
        window_from=AT - timedelta(seconds=72),
        run_failed=True,
    ),
    drill=DrillStatus(
        proven_at=AT - timedelta(seconds=73),
        proven_until=AT - timedelta(seconds=74),
        proven_seconds=75.0,
        last_at=AT - timedelta(seconds=76),
    ),
)
ENOUGH = {
    "binlog2s3_standbys": 2,
    "binlog2s3_healthy": 0,
    "binlog2s3_status_timestamp_seconds": AT.timestamp(),
    "binlog2s3_writer_since_timestamp_seconds": AT.timestamp() - 100,
    "binlog2s3_heartbeat_timestamp_seconds": AT.timestamp() - 4,
    "binlog2s3_heartbeat_interval_seconds": 30,
    "binlog2s3_writer_generation": 7,
    "binlog2s3_lag_seconds": 2.25,
    "binlog2s3_lag_bytes": 743,
    "binlog2s3_lag_transactions": 3,
    "binlog2s3_covered_until_timestamp_seconds": AT.timestamp() - 2,
    "binlog2s3_latest_recoverable_timestamp_seconds": AT.timestamp() - 1,
    "binlog2s3_earliest_recoverable_timestamp_seconds": AT.timestamp() - 30 * 86400,
    "binlog2s3_flush_interval_seconds": 0.5,
    "binlog2s3_durable_binlog_number": 42,
    "binlog2s3_durable_offset_bytes": 157,
    "binlog2s3_source_binlog_number": 43,
    "binlog2s3_source_offset_bytes": 900,
    "binlog2s3_source_silent_seconds": 1.5,
    "binlog2s3_source_read_only": 1,
    "binlog2s3_expire_seconds": 2_592_000,
    "binlog2s3_purge_seconds": 2_591_997.75,
    "binlog2s3_spool_bytes": 11,
    "binlog2s3_spool_free_bytes": 12,
    "binlog2s3_spool_max_bytes": 13,
    "binlog2s3_spool_min_free_bytes": 14,
    "binlog2s3_spool_paused": 1,
    "binlog2s3_spool_binlogs": 21,
    "binlog2s3_spool_closed_binlogs": 22,
    "binlog2s3_open_uploads": 23,
    "binlog2s3_chunks": 24,
    "binlog2s3_parts_in_flight": 25,
    "binlog2s3_requests_in_flight": 26,
    "binlog2s3_unsaved_bytes": 27,
    "binlog2s3_flush_interval_stretched": 1,
    "binlog2s3_child_restarts_total": 31,
    "binlog2s3_child_last_error_timestamp_seconds": AT.timestamp() - 31,
    "binlog2s3_store_errors_total": 43,
    "binlog2s3_store_last_error_timestamp_seconds": AT.timestamp() - 42,
    "binlog2s3_store_last_success_timestamp_seconds": AT.timestamp() - 41,
    "binlog2s3_read_bytes_total": 51,
    "binlog2s3_sent_bytes_total": 52,
    "binlog2s3_durable_bytes_total": 53,
    "binlog2s3_transactions_total": 54,
    "binlog2s3_archived_binlogs_total": 55,
    "binlog2s3_lineages": 61,
    "binlog2s3_gaps": 2,
    "binlog2s3_backups": 3,
    "binlog2s3_newest_backup_timestamp_seconds": AT.timestamp() - 71,
    "binlog2s3_recovery_window_timestamp_seconds": AT.timestamp() - 72,
    "binlog2s3_backup_run_failed": 1,
    "binlog2s3_drill_proven_timestamp_seconds": AT.timestamp() - 73,
    "binlog2s3_drill_proven_until_timestamp_seconds": AT.timestamp() - 74,
    "binlog2s3_drill_duration_seconds": 75.0,
    "binlog2s3_drill_last_timestamp_seconds": AT.timestamp() - 76,
    "binlog2s3_drill_failed": 0,
}
LABELLED = {"binlog2s3_info", "binlog2s3_state", "binlog2s3_troubles"}


def render(status: Status, own: Timings | None = None) -> bytes:
    """What Prometheus gets."""
    return generate_latest(registry_of(lambda: status, own))


Sample = tuple[dict[str, str], float]


def samples(status: Status, own: Timings | None = None) -> dict[str, list[Sample]]:
    """The samples of each name, as a reader of the exposition finds them."""
    found: dict[str, list[Sample]] = {}
    for family in text_string_to_metric_families(render(status, own).decode()):
        for sample in family.samples:
            found.setdefault(sample.name, []).append((sample.labels, sample.value))
    return found


def test_every_field_is_told() -> None:
    """With its value, and the source as its one label."""
    found = samples(FULL)
    plain = {name: rows for name, rows in found.items() if name not in LABELLED}
    assert plain == {name: [({"source": "orders"}, value)] for name, value in ENOUGH.items()}
    assert set(found) == {metric.name for metric in METRICS}


def test_what_is_not_known_is_absent() -> None:
    """Never 0: of a Status that knows nothing, who it is, that this is not well, and its state."""
    assert set(samples(BARE)) == {
        "binlog2s3_info",
        "binlog2s3_healthy",
        "binlog2s3_state",
        "binlog2s3_troubles",
        "binlog2s3_status_timestamp_seconds",
    }


def test_one_thing_that_is_not_known_is_absent_alone() -> None:
    """What stands beside it and is 0 is told as 0."""
    lag = {"bytes": 0, "transactions": 0, "seconds": 0}
    for unknown in lag:
        found = samples(replace(FULL, lag=Lag(**{**lag, unknown: None})))  # type: ignore[arg-type]
        told = {name: rows[0][1] for name, rows in found.items() if "_lag_" in name}
        assert told == {f"binlog2s3_lag_{one}": 0 for one in lag if one != unknown}


@pytest.mark.parametrize("state", get_args(State))
def test_one_state_is_1_and_all_others_are_0(state: Any) -> None:
    """So that each can be asked for, drawn and counted."""
    found = samples(replace(BARE, state=state))["binlog2s3_state"]
    assert {labels["state"]: value for labels, value in found} == {
        one.replace(" ", "_"): float(one == state) for one in get_args(State)
    }


def test_troubles_have_code_and_level() -> None:
    """As many as there are of each; their texts are no labels. None: no sample."""
    found = samples(FULL)["binlog2s3_troubles"]
    assert sorted((labels["code"], labels["level"], value) for labels, value in found) == [
        ("backup-run", "warning", 1),
        ("gap", "warning", 1),
        ("heartbeat", "warning", 1),
        ("store", "critical", 2),
    ]
    assert "binlog2s3_troubles" not in samples(
        replace(FULL, troubles=(), history=None, backups=None)
    )


def test_info_says_who_and_where_to() -> None:
    """An empty label where that is not known."""
    assert samples(FULL)["binlog2s3_info"] == [
        (
            {
                "source": "orders",
                "target": "s3://acme/prod",
                "lineage": "20260102T030405Z-3e11fa47-a1b2",
                "host": "db1",
                "version": "0.1.0",
                "server_uuid": "3e11fa47-71ca-11e1-9e33-c80aa9429562",
                "flavour": "mysql",
            },
            1,
        )
    ]
    ((labels, _),) = samples(BARE)["binlog2s3_info"]
    assert {name for name, value in labels.items() if value} == {"source", "target"}


def test_texts_break_nothing() -> None:
    """A host's name of any bytes comes out as one label."""
    name = os.fsdecode(b'db"1\\\n\xff')
    assert FULL.writer is not None
    status = replace(FULL, writer=replace(FULL.writer, host=name))
    ((labels, _),) = samples(status)["binlog2s3_info"]
    assert labels["host"] == 'db"1\\\n?'


def test_nothing_is_kept_between_two() -> None:
    """A counter that a restart set back is told as it is; no registry of the process is touched."""
    before = {family.name for family in REGISTRY.collect()}
    assert render(FULL) != render(BARE)
    assert render(FULL) == render(FULL)
    assert {family.name for family in REGISTRY.collect()} == before


def test_the_process_comes_along_if_asked() -> None:
    """Under the names of every exporter, and not otherwise."""
    found = samples(FULL, OWN)
    assert found["process_resident_memory_bytes"][0][1] > 1_000_000
    assert found["binlog2s3_start_time_seconds"] == [
        ({"source": "orders"}, OWN.started_at.timestamp())
    ]
    assert {name for name in found if not name.startswith("binlog2s3_")} >= {
        "process_cpu_seconds_total",
        "process_open_fds",
        "process_start_time_seconds",
    }
    assert not [name for name in samples(FULL) if not name.startswith("binlog2s3_")]


def test_histograms() -> None:
    """How many were at most as long as each bound, how many at all, and how long all were."""
    found = samples(FULL, OWN)
    buckets = found["binlog2s3_commit_to_durable_seconds_bucket"]
    durable = {row["le"]: value for row, value in buckets}
    assert [durable[bound] for bound in ("0.25", "0.5", "3600.0", "+Inf")] == [0, 1, 1, 2]
    assert found["binlog2s3_commit_to_durable_seconds_sum"] == [({"source": "orders"}, 7200.3)]
    requests = {
        (row["operation"], row["code"]): value
        for row, value in found["binlog2s3_store_request_seconds_count"]
    }
    assert requests == {("PutObject", "200"): 1, ("PutObject", "503"): 1, ("GetObject", "none"): 1}
    assert not [name for name in samples(FULL, Timings()) if name.endswith("_bucket")]


def leaves(kind: type, path: str) -> Iterator[str]:
    """The fields of a Status that are numbers, times or tuples, down through its parts."""
    for name, hint in get_type_hints(kind).items():
        inner = [one for one in get_args(hint) if one is not NoneType] or [hint]
        if is_dataclass(inner[0]) and not isinstance(hint, str) and "tuple" not in str(hint):
            yield from leaves(inner[0], f"{path}{name}.")
        elif inner[0] in (int, float, bool, datetime) or "tuple" in str(hint):
            yield f"{path}{name}"


def test_no_number_of_a_status_is_forgotten() -> None:
    """Each one is a metric, or left out on purpose."""
    left_out = {
        "purge.expires",
        "writer.pid",  # changes with each start, and means nothing to a graph
        "child.pid",
        "server.asked_at",  # server.silent_seconds says it without the source's clock
        "history.complete",  # always so
        "backups.window_known",  # then the window is a metric, or absent
        "drill.on_trust",
        "drill.doubts",  # texts
        "ignored",  # of status --all only
        "lag.at_least",  # seen from the bucket only
        "rates.window_seconds",  # rates are Prometheus' own work
        "rates.read_bytes",
        "rates.durable_bytes",
        "rates.transactions",
    }
    fields = set(leaves(Status, ""))
    assert {"lag.bytes", "history.gaps", "spool.paused", "durable.offset"} <= fields
    assert fields - left_out == {metric.field for metric in METRICS} & fields
    assert left_out <= fields


def test_types_are_exposed() -> None:
    """As the table has them; an info is a gauge in this format."""
    exposed = dict(re.findall(r"^# TYPE (\S+) (\S+)$", render(FULL).decode(), re.MULTILINE))
    kinds = {metric.name: metric.kind for metric in METRICS}
    assert len(kinds) == len(METRICS)
    assert exposed == {name: "gauge" if kind == "info" else kind for name, kind in kinds.items()}
    assert all((kind == "counter") is name.endswith("_total") for name, kind in kinds.items())


def test_labels_are_as_the_table_says() -> None:
    """Each sample of a metric has its labels, no other ones, and the source."""
    for metric in METRICS:
        for labels, _ in samples(FULL)[metric.name]:
            assert set(labels) == {"source", *metric.labels}


def test_promtool_finds_nothing(promtool: Path) -> None:
    """Neither an error in the format nor a name against convention."""
    done = subprocess.run(
        [promtool, "check", "metrics"],
        input=render(FULL, OWN),
        check=False,
        capture_output=True,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
