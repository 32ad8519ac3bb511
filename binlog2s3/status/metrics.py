"""A Status as metrics for Prometheus.

`METRICS` is the one list of metrics; tests compare docs/reference/metrics.md, the alert rules and
the dashboard with it.

Law: a function of a Status and of the process's Timings; nothing is kept between two calls. What is
unknown is absent, because a 0 would be believed. A label has few values: no binlog's name, no GTID,
no error text. The values that this program chooses have no blanks.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Literal, get_args

from prometheus_client import CollectorRegistry, Histogram, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from binlog2s3.binlog.names import BinlogName
from binlog2s3.status.model import State, Status

Kind = Literal["gauge", "counter", "info", "histogram"]
_BOUNDS = {
    "durable": (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 15, 30, 60, 120, 300, 900, 3600),
    "requests": (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60),
}
"""The upper bounds of the buckets of the histograms, in seconds."""


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric: its `name`, and the `field` of the /status document that it shows.

    Each metric has the label `source`; `labels` are its others. The name shows kind and unit.
    """

    name: str
    field: str
    help: str
    labels: tuple[str, ...] = ()

    @property
    def kind(self) -> Kind:
        """The metric type of Prometheus; an info is a gauge that is always 1."""
        if self.name.endswith("_info"):
            return "info"
        if self.field in _BOUNDS:
            return "histogram"
        return "counter" if self.name.endswith("_total") else "gauge"

    @property
    def unit(self) -> str:
        """Seconds, bytes, or "" for a count."""
        last = self.name.removesuffix("_total").rpartition("_")[2]
        return last if last in {"seconds", "bytes"} else ""


# fmt: off
METRICS = (
    Metric("binlog2s3_info", "target",
           "Always 1; the labels say what is streamed, by whom, and where to.",
           ("target", "lineage", "host", "version", "server_uuid", "flavour")),
    Metric("binlog2s3_healthy", "healthy",
           "1 if nothing is critical or unknown, as /health says; else 0."),
    Metric("binlog2s3_state", "state",
           "1 for the current state, 0 for each other state.",
           ("state",)),
    Metric("binlog2s3_troubles", "troubles",
           "Number of troubles of each code and level; absent without troubles.",
           ("code", "level")),
    Metric("binlog2s3_status_timestamp_seconds", "at",
           "When this status was made."),
    Metric("binlog2s3_writer_since_timestamp_seconds", "writer.since",
           "When this streamer became the writer."),
    Metric("binlog2s3_heartbeat_timestamp_seconds", "writer.heartbeat_at",
           "When the writer's object in the bucket was last renewed."),
    Metric("binlog2s3_heartbeat_interval_seconds", "writer.heartbeat_interval_seconds",
           "How often that object is renewed."),
    Metric("binlog2s3_writer_generation", "writer.generation",
           "Generation of the writer: a later writer of a source has a greater one."),
    Metric("binlog2s3_standbys", "standbys",
           "Standby processes; a standby counts itself."),
    Metric("binlog2s3_lag_seconds", "lag.seconds",
           "Greatest possible age of a commit that is not in the bucket; 0 if all are in it."),
    Metric("binlog2s3_lag_bytes", "lag.bytes",
           "Bytes of binlogs on the source that are not in the bucket."),
    Metric("binlog2s3_lag_transactions", "lag.transactions",
           "Transactions on the source that are not in the bucket, by their GTIDs."),
    Metric("binlog2s3_covered_until_timestamp_seconds", "covered_until",
           "Everything committed until then is in the bucket, except in gaps; the source's clock."),
    Metric("binlog2s3_latest_recoverable_timestamp_seconds", "latest",
           "Latest time that can be recovered from the bucket."),
    Metric("binlog2s3_earliest_recoverable_timestamp_seconds", "history.earliest",
           "Earliest time from which there is no gap."),
    Metric("binlog2s3_flush_interval_seconds", "flush_interval",
           "The flush interval: as configured, or 10 s over a slow link; 0: a binlog becomes "
           "durable only when it is closed."),
    Metric("binlog2s3_durable_binlog_number", "durable.binlog",
           "Number of the binlog up to which everything is in the bucket."),
    Metric("binlog2s3_durable_offset_bytes", "durable.offset",
           "Offset in that binlog."),
    Metric("binlog2s3_source_binlog_number", "server.position.binlog",
           "Number of the binlog that the source is writing."),
    Metric("binlog2s3_source_offset_bytes", "server.position.offset",
           "The source's offset in that binlog."),
    Metric("binlog2s3_source_silent_seconds", "server.silent_seconds",
           "Time since the source last answered its position."),
    Metric("binlog2s3_source_read_only", "server.read_only",
           "1 if the source is read_only, else 0."),
    Metric("binlog2s3_expire_seconds", "purge.expire_seconds",
           "How long the source keeps a binlog; absent if forever or unknown."),
    Metric("binlog2s3_purge_seconds", "purge.seconds",
           "How long it still keeps what is not in the bucket, at least; absent likewise."),
    Metric("binlog2s3_spool_bytes", "spool.bytes",
           "Disk space that the spool uses."),
    Metric("binlog2s3_spool_free_bytes", "spool.free_bytes",
           "Free space on its file system."),
    Metric("binlog2s3_spool_max_bytes", "spool.max_bytes",
           "Limit of the spool's size; absent without a limit."),
    Metric("binlog2s3_spool_min_free_bytes", "spool.min_free_bytes",
           "Space on the file system that the spool leaves free."),
    Metric("binlog2s3_spool_paused", "spool.paused",
           "1 while nothing is read because the spool is full, else 0."),
    Metric("binlog2s3_spool_binlogs", "uploads.binlogs",
           "Binlogs in the spool."),
    Metric("binlog2s3_spool_closed_binlogs", "uploads.closed_binlogs",
           "Closed binlogs in the spool that are not archived yet."),
    Metric("binlog2s3_open_uploads", "uploads.open_uploads",
           "Multipart uploads in progress."),
    Metric("binlog2s3_chunks", "uploads.chunks",
           "Chunks in the bucket of binlogs in the spool."),
    Metric("binlog2s3_parts_in_flight", "uploads.parts_in_flight",
           "Parts that are being sent."),
    Metric("binlog2s3_requests_in_flight", "uploads.requests_in_flight",
           "Requests to the store without an answer so far."),
    Metric("binlog2s3_unsaved_bytes", "uploads.unsaved_bytes",
           "Bytes that should be in the bucket by now, but are not known to be."),
    Metric("binlog2s3_flush_interval_stretched", "uploads.stretched",
           "1 while flushes are rarer than asked for because the link is slow, else 0."),
    Metric("binlog2s3_child_restarts_total", "child.restarts",
           "How often mysqlbinlog has exited."),
    Metric("binlog2s3_child_last_error_timestamp_seconds", "child.last_error_at",
           "When mysqlbinlog last exited with an error."),
    Metric("binlog2s3_store_errors_total", "store.errors",
           "Failed requests to the store."),
    Metric("binlog2s3_store_last_error_timestamp_seconds", "store.last_error_at",
           "When a request to the store last failed."),
    Metric("binlog2s3_store_last_success_timestamp_seconds", "store.last_success_at",
           "When a request to the store last succeeded."),
    Metric("binlog2s3_read_bytes_total", "totals.read_bytes",
           "Bytes read from mysqlbinlog."),
    Metric("binlog2s3_sent_bytes_total", "totals.sent_bytes",
           "Bytes sent to the store as bodies, including retries."),
    Metric("binlog2s3_durable_bytes_total", "totals.durable_bytes",
           "Bytes of binlogs that became durable in the bucket."),
    Metric("binlog2s3_transactions_total", "totals.transactions",
           "Transactions read."),
    Metric("binlog2s3_archived_binlogs_total", "totals.archived_binlogs",
           "Binlogs archived."),
    Metric("binlog2s3_lineages", "history.lineages",
           "Lineages in the bucket."),
    Metric("binlog2s3_gaps", "history.gaps",
           "Places in the bucket's history that no recovery can cross."),
    Metric("binlog2s3_backups", "backups.count",
           "Registered base backups; absent if they were not looked for."),
    Metric("binlog2s3_newest_backup_timestamp_seconds", "backups.newest_at",
           "When the newest registered base backup was taken."),
    Metric("binlog2s3_recovery_window_timestamp_seconds", "backups.window_from",
           "Earliest time from which a registered base backup reaches now without a gap."),
    Metric("binlog2s3_backup_run_failed", "backups.run_failed",
           "1 if the last `backup run` failed or was killed, else 0."),
    Metric("binlog2s3_drill_proven_timestamp_seconds", "drill.proven_at",
           "When the last drill ended that proved a recovery; absent if none did."),
    Metric("binlog2s3_drill_proven_until_timestamp_seconds", "drill.proven_until",
           "Everything committed until then was restored by that drill."),
    Metric("binlog2s3_drill_duration_seconds", "drill.proven_seconds",
           "How long that drill took."),
    Metric("binlog2s3_drill_last_timestamp_seconds", "drill.last_at",
           "When the newest drill ended, whatever it showed."),
    Metric("binlog2s3_drill_failed", "drill.failed",
           "1 if the newest drill failed, else 0; absent without drills."),
)
# fmt: on


# fmt: off
PROCESS_METRICS = (
    Metric("binlog2s3_start_time_seconds", "started_at",
           "When this process started."),
    Metric("binlog2s3_commit_to_durable_seconds", "durable",
           "From a commit, by the source's clock, until a request of this process had brought it "
           "into the bucket. Transactions that were read together count once, as old as the first "
           "of them."),
    Metric("binlog2s3_store_request_seconds", "requests",
           "How long an attempt of a request to the store took, until the answer's headers; "
           "`code` is the answer's HTTP status, or `none` without an answer.",
           ("operation", "code")),
)
# fmt: on
"""What is known of the process that streams; `field` is one of its Timings."""


def _histogram(field: str) -> Histogram:
    (metric,) = (described for described in PROCESS_METRICS if described.field == field)
    return Histogram(metric.name, metric.help, metric.labels, registry=None, buckets=_BOUNDS[field])


@dataclass(frozen=True, slots=True)
class Timings:
    """What only the process itself knows. Any thread may add to it.

    `durable`: seconds from a commit until it is in the bucket. `requests`: seconds of each.
    """

    started_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    durable: Histogram = field(default_factory=partial(_histogram, "durable"))
    requests: Histogram = field(default_factory=partial(_histogram, "requests"))

    def requested(self, operation: str, code: str, seconds: float) -> None:
        """Count a request to the store."""
        self.requests.labels(operation, code).observe(seconds)


def registry_of(current: Callable[[], Status], own: Timings | None = None) -> CollectorRegistry:
    """All metrics of the Status that `current` returns; `own` adds those of this process.

    Among those are CPU, memory and open files, under the usual names of exporters.
    """
    registry = CollectorRegistry()
    registry.register(_Metrics(current, own))
    if own is not None:
        ProcessCollector(registry=registry)
    return registry


class _Metrics(Collector):
    def __init__(self, current: Callable[[], Status], own: Timings | None) -> None:
        self._current = current
        self._own = own

    def collect(self) -> Iterator[Family]:
        status = self._current()
        for metric in METRICS:
            family = _family(metric)
            for labels, value in _samples(metric, status):
                family.add_sample(metric.name, {**labels}, value)
            yield from _of_source(status.source, family)
        if self._own is None:
            return
        started, *_ = PROCESS_METRICS
        family = GaugeMetricFamily(started.name, started.help, self._own.started_at.timestamp())
        yield from _of_source(status.source, family)
        for timed in (*self._own.durable.collect(), *self._own.requests.collect()):
            if any(sample.value for sample in timed.samples if sample.name.endswith("_count")):
                yield from _of_source(status.source, timed)


def _of_source(source: str, family: Family) -> Iterator[Family]:
    """The family with the source as a label, if it has samples."""
    family.samples = [
        sample._replace(
            labels={"source": _label(source)}
            | {name: _label(value) for name, value in sample.labels.items()}
        )
        for sample in family.samples
        if not sample.name.endswith("_created")
    ]
    if family.samples:
        yield family


def _family(metric: Metric) -> Family:
    if metric.kind == "counter":
        return CounterMetricFamily(metric.name.removesuffix("_total"), metric.help)
    if metric.kind == "info":
        return InfoMetricFamily(metric.name.removesuffix("_info"), metric.help)
    return GaugeMetricFamily(metric.name, metric.help)


def _samples(metric: Metric, status: Status) -> Iterator[tuple[Mapping[str, str], float]]:
    """The labels, except `source`, and the value of each sample; no sample if it is unknown."""
    if metric.kind == "info":
        yield _info(status), 1.0
    elif metric.field == "state":
        for state in get_args(State):
            yield {"state": state.replace(" ", "_")}, float(state == status.state)
    elif metric.field == "healthy":
        yield {}, float(status.healthy)
    elif metric.field == "troubles":
        troubles = status.all_troubles
        for (code, level), count in Counter((t.code, t.level) for t in troubles).items():
            yield {"code": code, "level": level}, float(count)
    else:
        value = _number(_found(status, metric.field))
        if value is not None:
            yield {}, value


def _info(status: Status) -> Mapping[str, str]:
    """The labels of the info metric; Prometheus treats an empty label as absent."""
    return {
        "target": status.target,
        "lineage": status.lineage or "",
        "host": status.writer.host if status.writer else "",
        "version": status.writer.version if status.writer else "",
        "server_uuid": status.server.uuid,
        "flavour": status.server.flavour or "",
    }


def _found(status: Status, field: str) -> object:
    """The value at `a.b.c`; None if `a` or `a.b` is None."""
    value: object = status
    for name in field.split("."):
        if value is None:
            return None
        value = getattr(value, name)
    return value


def _number(value: object) -> float | None:
    """A value as a number: a time in Unix seconds, a binlog's number, a tuple's length."""
    if value is None:
        return None
    if isinstance(value, datetime):
        return value.timestamp()
    if isinstance(value, tuple):
        return float(len(value))
    if isinstance(value, BinlogName):
        return float(value.number)
    assert isinstance(value, (int, float)), value  # noqa: S101 - METRICS names no other field
    return float(value)


def _label(text: str) -> str:
    """A text that can be encoded as UTF-8: a host name may contain other bytes."""
    return text.encode("utf-8", "replace").decode("utf-8")
