"""The status of one stream at one moment: the value that every output shows. Pure.

The daemon makes one every second or two from its `Measurements`, `from_bucket` makes one from the
bucket alone. `status`, `/metrics`, `/health`, `status --check` and the writer's object in the
bucket all show this value, so they cannot disagree.

`document` is its form as JSON, for `status --json`, /status and the writer's object. It has every
field; a reader ignores fields of newer versions. A Status that is read back is judged as it was
when it was written.

Law: what is unknown is None, never 0. A lag is an upper bound. A stream is healthy because of what
has become durable, not because of what is running. A status is judged here alone, and `nagios` adds
only the limits of its options: what could not be found out is unknown, never ok, and what is
critical stays critical even if something else is unknown.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, Any, Literal

from binlog2s3.archive.backups import Backup, BackupRun, last_failure
from binlog2s3.archive.codec import (
    FORMAT,
    Moment,
    Printed,
    PrintedDocument,
    as_printed,
    converted,
    members,
    of,
)
from binlog2s3.archive.documents import Lineage
from binlog2s3.archive.drills import ON_TRUST, DrillResult, UnreadDrill
from binlog2s3.archive.history import line_of
from binlog2s3.archive.writers import Heartbeat, Position, Process, Standby, WriterState
from binlog2s3.binlog.gtid import Flavour
from binlog2s3.binlog.transactions import is_credible
from binlog2s3.config.outside import DEFAULT, Timing
from binlog2s3.formatting import duration_text, us_of

State = Literal[WriterState, "standby", "dead", "unknown"]
"""A writer's own state, or `standby` for a process that waits beside another writer. From the
bucket also `dead` (the heartbeat is too old) and `unknown` (no writer's object could be read)."""

WELL = frozenset({"streaming", "idle", "catching up", "standby"})
Level = Literal["warning", "critical"]
Severity = Literal["ok", "warning", "unknown", "critical"]
RISING: tuple[Severity, ...] = ("ok", "warning", "unknown", "critical")
"""What is unknown may be worse than a warning."""
Phase = Literal["starting", "standby", "running", "stopping"]
SeenFrom = Literal["daemon", "bucket"]
SilentKind = Literal["absent", "refused", "hangs", "expected", "unclear"]
"""Why no streamer answers on a spool's socket, see `ask.Unanswered`."""
_NEWS_SECONDS = 7 * 86400.0
"""How long a gap between two lineages is a warning."""
UNREAD_HINT = "`binlog2s3 verify` says what is wrong with it; run a new drill"
DRILL_HINT = "docs/drill.md says what to look at; if it has logs, they are in its work directory"
BACKUP_HINT = "nothing was registered: run it again, and look at its output"
GAP_HINT = "take a new base backup: no recovery crosses a gap"


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """A problem. `code` is a fixed word; a critical one makes /health answer 503."""

    code: str
    level: str
    text: str
    hint: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterStatus:
    """The writer, and when its object in the bucket was renewed."""

    host: str
    pid: int
    version: str
    since: Moment
    generation: int = 0
    heartbeat_at: Moment | None = None
    heartbeat_interval_seconds: float = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StandbyStatus:
    """A process that waits to become the writer.

    `unsaved_bytes`: bytes of its spool that are not known to be in the bucket.
    """

    host: str
    pid: int
    version: str
    since: Moment
    heartbeat_at: Moment | None = None
    heartbeat_interval_seconds: float = 30.0
    unsaved_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceStatus:
    """The server. `position` is from `asked_at` by its clock, which is `silent_seconds` ago."""

    uuid: str = ""
    flavour: Flavour | None = None
    position: Position | None = None
    asked_at: Moment | None = None
    silent_seconds: float | None = None
    read_only: bool | None = None
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lag:
    """What is committed and not durable; each field is None if unknown.

    `seconds` is the greatest age that the oldest such commit can have, 0 if there is none.
    `at_least`: the source's position is old, so `bytes` and `transactions` are lower bounds.
    """

    bytes: int | None = None
    transactions: int | None = None
    seconds: float | None = None
    at_least: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SpoolStatus:
    """Bytes of the spool, and free on its disk; `paused`: it is full, nothing is read."""

    directory: str = ""
    bytes: int = 0
    free_bytes: int = 0
    max_bytes: int | None = None
    min_free_bytes: int = 0
    paused: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadStatus:
    """What is being uploaded.

    `binlogs` are in the spool, `closed_binlogs` of them wait for the archive. `open_uploads` are
    multipart uploads. `parts_in_flight` and `requests_in_flight` are requests. `unsaved_bytes`
    should be in the bucket by now, but are not known to be. `stretched`: flushes are rarer than
    asked for, because the link to the store cannot carry each byte twice.
    """

    binlogs: int = 0
    closed_binlogs: int = 0
    open_uploads: int = 0
    chunks: int = 0
    parts_in_flight: int = 0
    requests_in_flight: int = 0
    unsaved_bytes: int = 0
    stretched: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildStatus:
    """mysqlbinlog. `restarts`: how often it exited; `last_error`: why it exited or never ran."""

    pid: int | None = None
    restarts: int = 0
    last_error: str = ""
    last_error_at: Moment | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreStatus:
    """Requests to the store: the last success, the last error, and how many failed."""

    last_success_at: Moment | None = None
    last_error: str = ""
    last_error_at: Moment | None = None
    errors: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """Since the process started: bytes read from mysqlbinlog, sent as bodies, made durable."""

    read_bytes: int = 0
    sent_bytes: int = 0
    durable_bytes: int = 0
    transactions: int = 0
    archived_binlogs: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Per second, over the last `window_seconds`."""

    window_seconds: float
    read_bytes: float
    durable_bytes: float
    transactions: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Purge:
    """Which binlogs the source deletes by itself, and which may be deleted.

    `expires`: whether the source deletes binlogs by itself, None if unknown. `expire_seconds`: how
    long it keeps a closed binlog, None if forever or unknown. `seconds`: how long it still keeps
    what is not durable, at least; None likewise, 0 if it may delete it at any time. `to`: all
    binlogs before this one are archived; `statement` deletes them.
    """

    expires: bool | None = None
    expire_seconds: float | None = None
    seconds: float | None = None
    newest_safe: str | None = None
    to: str | None = None

    @property
    def statement(self) -> str | None:
        """The statement that deletes archived binlogs on the source; None if there are none."""
        return f"PURGE BINARY LOGS TO '{self.to}'" if self.to and self.newest_safe else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """A place that no recovery can cross: between two lineages, or where binlogs are missing."""

    lineage: str
    join: str  # gap, unknown, missing
    text: str
    at: Moment | None = None

    @property
    def words(self) -> str:
        """The gap in words."""
        kind = "possible gap" if self.join == "unknown" else "gap"
        return f"{kind} in {self.lineage}: {self.text}"

    def is_news(self, now: datetime) -> bool:
        """Whether it is a warning: an old join is not, a missing binlog always is."""
        if self.join == "missing" or self.at is None:
            return True
        return (now - self.at).total_seconds() < _NEWS_SECONDS


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryStatus:
    """The lineages in the bucket; `earliest` is the first time that is reachable without a gap.

    `complete`: every archived binlog was checked for. Otherwise only the joins were checked, and
    from the bucket also both ends of each lineage.
    """

    lineages: int = 0
    gaps: tuple[Gap, ...] = ()
    earliest: Moment | None = None
    complete: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class BackupsStatus:
    """The registered base backups: so many, and when the newest was taken.

    Those that are no base backups of the whole server do not count. `window_from` is the earliest
    time from which a backup reaches now without a gap; None if there is none, or, unless
    `window_known`, if nobody has looked or could. `window_why`: why there is none, "" if there is
    one, or nobody has looked. `run_failed`: the last `backup run` did, as `run_error` says.
    """

    count: int = 0
    newest_at: Moment | None = None
    window_from: Moment | None = None
    window_known: bool = False
    window_why: str = ""
    run_failed: bool = False
    run_error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrillStatus:
    """What drills have shown: when the last proof ended, until when it has everything.

    `proven_seconds`: how long that drill took; None if nothing was proved. `on_trust`: nothing has
    shown that it restored the registered backup, and not another one. `doubts`: why its rows may
    not be those of the source. `unread`: the key of a newer result that cannot be read. `last_at`:
    when the newest drill ended. If it `failed`, `step` and `error` say where and why.
    """

    proven_at: Moment | None = None
    proven_until: Moment | None = None
    proven_seconds: float | None = None
    on_trust: bool = False
    doubts: tuple[str, ...] = ()
    unread: str = ""
    last_at: Moment | None = None
    failed: bool = False
    step: str = ""
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """One stream at one moment. Sizes in bytes; times in UTC, by the clock of the observer.

    `troubles`: those that whoever made it has seen. `ignored`: this source is to be ignored, and
    was not looked at.
    """

    source: str
    target: str
    seen_from: SeenFrom
    at: Moment
    state: str
    troubles: tuple[Trouble, ...] = ()
    writer: WriterStatus | None = None
    standbys: tuple[StandbyStatus, ...] | None = None
    server: SourceStatus = field(default_factory=SourceStatus)
    lineage: str | None = None
    durable: Position | None = None
    covered_until: Moment | None = None
    latest: Moment | None = None
    lag: Lag = field(default_factory=Lag)
    flush_interval: float | None = None
    spool: SpoolStatus | None = None
    uploads: UploadStatus | None = None
    child: ChildStatus | None = None
    store: StoreStatus | None = None
    totals: Totals | None = None
    rates: Rates | None = None
    purge: Purge = field(default_factory=Purge)
    history: HistoryStatus | None = None
    backups: BackupsStatus | None = None
    drill: DrillStatus | None = None
    ignored: bool = False

    @property
    def all_troubles(self) -> tuple[Trouble, ...]:
        """Its troubles, and those that follow from its state, gaps, drills and backups.

        The worst come first. An ignored source has none.
        """
        troubles = () if self.ignored else (*self._own_troubles(), *self._following())
        return tuple(sorted(troubles, key=lambda trouble: trouble.level != "critical"))

    @property
    def severity(self) -> Severity:
        """The severity of its worst trouble."""
        unknown: list[Severity] = ["unknown"] if self.state == "unknown" else []
        severities = [self.severity_of(trouble) for trouble in self.all_troubles]
        return "ok" if self.ignored else worst(severities + unknown)

    @property
    def healthy(self) -> bool:
        """What /health says: nobody has to act at once."""
        return self.severity in ("ok", "warning")

    def severity_of(self, trouble: Trouble) -> Severity:
        """The severity of one of its troubles: unknown if nothing is known of the streamer."""
        if trouble.level == "warning":
            return "warning"
        return "unknown" if self.state == "unknown" and trouble.code != "missing" else "critical"

    def _own_troubles(self) -> Iterator[Trouble]:
        judged_now = {  # in a document that was read back; what was looked at since counts
            "gap": self.history is not None,
            "drill": self.drill is not None and (self.drill.failed or self.drill.unread != ""),
            "backup-run": self.backups is not None,
        }
        yield from (trouble for trouble in self.troubles if not judged_now.get(trouble.code, False))

    def _following(self) -> Iterator[Trouble]:
        if not self.troubles and self.state not in WELL:
            text = f"it is not streaming; its state is: {self.state}"
            if self.state == "unknown":
                text = "nothing is known about its streamer"
            yield Trouble(code="unknown", level="critical", text=text)
        if self.drill is not None and self.drill.failed:
            text = f"the last drill failed at the step {self.drill.step}: {self.drill.error}"
            yield Trouble(code="drill", level="warning", text=text, hint=DRILL_HINT)
        elif self.drill is not None and self.drill.unread:
            text = f"a later drill may have failed: {self.drill.unread} cannot be read"
            yield Trouble(code="drill", level="warning", text=text, hint=UNREAD_HINT)
        if self.backups is not None and self.backups.run_failed:
            text = f"the last `backup run` failed: {self.backups.run_error}"
            yield Trouble(code="backup-run", level="warning", text=text, hint=BACKUP_HINT)
        gaps = self.history.gaps if self.history is not None else ()
        news = [gap for gap in gaps if gap.is_news(self.at)]
        if news:
            more = f" (and {len(news) - 1} more)" if len(news) > 1 else ""
            text = f"{news[-1].words}{more}"
            yield Trouble(code="gap", level="warning", text=text, hint=GAP_HINT)


def worst(severities: Sequence[Severity]) -> Severity:
    """The worst severity; ok if there is none."""
    return max(severities, key=RISING.index, default="ok")


def urgency(status: Status) -> tuple[int, float, str]:
    """A sort key: the worst severity first, then the greatest lag; an unknown lag counts as great.

    Ignored sources come last.
    """
    severity, lag = status.severity, status.lag.seconds
    great = 0.0 if severity in ("ok", "warning") else -math.inf if lag is None else -lag
    return (1 if status.ignored else -RISING.index(severity)), great, status.source


# What the daemon measures


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurements:
    """The daemon's measurements, which state and troubles follow from; ages in seconds.

    `source_silent`: since the source last answered its position (or the process started).
    `unlogged`: it answers, and `source_error` is that it writes no binlog.
    `child_gone`: since mysqlbinlog last ran, 0 while it runs or nothing is to be read.
    `unread`: it has not run since the process started.
    `store_failing`: since the first failure after the last success, None without failures.
    `store_silent`: how long nothing that is due has come into the bucket, 0 if nothing is due.
    `read_idle`: since the last byte came although the source had more, else 0. `beat_late`: since
    the writer's object should have been renewed. `store_takes`: it has
    taken something lately. `clean_up_error`: why leftovers in the bucket are
    not deleted, "" if they are. Of a standby, `unsaved_bytes`: bytes in its spool
    that are not known to be in the bucket; `may_be_last_copy`: the writer cannot reach the source.
    `planted`: keys of the archive under which somebody wrote before the streamer did.
    """

    phase: Phase = "running"
    phase_seconds: float = 0.0
    paused: float | None = None
    child_gone: float = 0.0
    child_error: str = ""
    unread: bool = False
    idle: bool = False
    behind: bool = False
    source_error: str = ""
    source_hint: str = ""
    source_silent: float = 0.0
    unlogged: bool = False
    read_idle: float = 0.0
    store_error: str = ""
    store_hint: str = ""
    store_failing: float | None = None
    store_silent: float = 0.0
    store_takes: bool = False
    clean_up_error: str = ""
    beat_late: float = 0.0
    loop_idle: float = 0.0
    unsaved_bytes: int = 0
    may_be_last_copy: bool = False
    planted: tuple[str, ...] = ()

    @property
    def never_ran(self) -> bool:
        """Whether mysqlbinlog failed before it ran even once: then the trouble is shown at once."""
        return self.unread and bool(self.child_error)


def latest_of(moments: Iterable[datetime | None], said_at: datetime) -> datetime | None:
    """The latest of these moments, but not later than when it was said; None without any.

    A moment is of the source's clock, or of a session there. Nothing that was known at `said_at`
    was committed later, but for the difference between two clocks.
    """
    latest = max((moment for moment in moments if moment is not None), default=None)
    return said_at if latest and not is_credible(us_of(latest), us_of(said_at)) else latest


def judge(measured: Measurements, timing: Timing = DEFAULT) -> tuple[State, tuple[Trouble, ...]]:
    """The troubles, and the state that follows from them. To be idle, or to catch up, is none."""
    troubles = tuple(_troubles(measured, timing))
    return _state(measured, {trouble.code: trouble.level for trouble in troubles}, timing), troubles


def _state(measured: Measurements, levels: Mapping[str, str], timing: Timing) -> State:
    """The state; `levels` are those of the troubles, by their codes."""
    silent = measured.store_silent >= timing.store_failing_seconds
    failing = "store" in levels and (silent or not measured.store_takes)
    rules: tuple[tuple[object, State], ...] = (
        (measured.phase == "standby", "standby"),
        (measured.phase == "stopping", "stopped"),
        ("paused" in levels, "paused"),
        (failing or levels.get("heartbeat") == "critical", "store unreachable"),
        ("unlogged" in levels, "unlogged"),
        (measured.phase == "starting" and not measured.source_error, "starting"),
        ("source" in levels, "source unreachable"),
        (measured.unread, "starting"),
        ("critical" in (levels.get("stalled"), levels.get("stuck")), "stalled"),
        (measured.idle, "idle"),
        (measured.behind, "catching up"),
    )
    return next((state for holds, state in rules if holds), "streaming")


def _trouble(code: str, since: float, limit: float, text: str, hint: str = "") -> Trouble:
    level: Level = "critical" if since >= limit else "warning"
    return Trouble(code=code, level=level, text=text, hint=hint)


def _troubles(measured: Measurements, timing: Timing) -> Iterator[Trouble]:
    if measured.phase == "stopping":
        yield _trouble("stopping", 0, 0, "the streamer is stopping")
    elif measured.phase == "starting" or (measured.unread and measured.phase == "running"):
        text = f"not streaming yet, for {duration_text(measured.phase_seconds)}"
        failing = measured.source_error or measured.store_failing is not None
        waits = failing and measured.phase == "starting"
        yield _trouble(
            "starting", measured.phase_seconds, 0 if waits else timing.start_seconds, text
        )
    if measured.source_error or measured.source_silent >= timing.source_seconds:
        what = measured.source_error or "the source does not answer"
        text = f"{what} (for {duration_text(measured.source_silent)})"
        since, hint = measured.source_silent, measured.source_hint
        if measured.unlogged:
            yield _trouble("unlogged", 0, 0, text, hint)
        else:
            yield _trouble("source", since, timing.source_seconds, text, hint)
    elif measured.child_gone >= timing.soon_seconds or measured.never_ran:
        why = f": {measured.child_error}" if measured.child_error else ""
        text = f"mysqlbinlog has not been running for {duration_text(measured.child_gone)}{why}"
        limit = 0 if measured.never_ran else timing.source_seconds
        yield _trouble("source", measured.child_gone, limit, text)
    yield from _store_troubles(measured, timing)
    if measured.planted:
        text = (
            f"somebody wrote under {len(measured.planted)} keys of the archive before the streamer "
            f"did, for example {measured.planted[0]}"
        )
        hint = "who has keys of this bucket? The log names the versions: docs/guides/bucket.md"
        yield _trouble("planted", 0, 1, text, hint)
    if measured.unsaved_bytes:
        text = f"the bucket may not have {measured.unsaved_bytes} bytes that are in this spool"
        hint = "the writer reads them from the source; if the source has lost them, restart this "
        hint += "streamer with --take-over, which uploads them"
        yield _trouble("unsaved", int(measured.may_be_last_copy), 1, text, hint)
    if measured.paused is not None:
        text = "the spool is full: nothing is read from the source"
        hint = "reading continues when there is space; the source keeps its binlogs meanwhile"
        yield _trouble("paused", measured.paused, timing.paused_seconds, text, hint)
    unheard = measured.source_error or measured.source_silent >= timing.source_seconds
    if measured.read_idle >= timing.soon_seconds and not unheard:
        idle = duration_text(measured.read_idle)
        text = f"the source has more to read, but nothing has come for {idle}"
        yield _trouble("stalled", measured.read_idle, timing.stall_seconds, text)
    if measured.loop_idle >= timing.soon_seconds:
        text = f"the streamer's main loop has not run for {duration_text(measured.loop_idle)}"
        hint = "check whether the spool's disk hangs"
        yield _trouble("stuck", measured.loop_idle, timing.loop_seconds, text, hint)


def _store_troubles(measured: Measurements, timing: Timing) -> Iterator[Trouble]:
    failing = measured.store_failing or 0.0
    waits = measured.phase == "starting" and measured.store_failing is not None
    if failing >= timing.soon_seconds or waits:
        text = f"{measured.store_error} (for {duration_text(failing)})"
        # a request that times out fails only after it has been silent for long
        silent = measured.store_silent + timing.store_failing_seconds - timing.store_silent_seconds
        since = max(failing, silent)
        yield _trouble("store", since, timing.store_failing_seconds, text, measured.store_hint)
    elif measured.store_silent >= timing.store_failing_seconds:
        silent_for = duration_text(measured.store_silent)
        text = f"nothing has become durable for {silent_for}, although uploads are due"
        hint = "check the network connection to the endpoint, and its bandwidth"
        yield _trouble("store", measured.store_silent, timing.store_silent_seconds, text, hint)
    if measured.clean_up_error:
        text = f"leftovers in the bucket are not deleted: {measured.clean_up_error}"
        hint = "they do no harm but take space; allow s3:DeleteObject and s3:AbortMultipartUpload"
        yield _trouble("clean-up", 0, 1, text, hint)
    if measured.beat_late > 0:
        text = f"the heartbeat in the bucket was due {duration_text(measured.beat_late)} ago"
        yield _trouble("heartbeat", measured.beat_late, timing.heartbeat_slack_seconds, text)


# History


def history_of(lineages: Iterable[Lineage], current: str | None) -> HistoryStatus:
    """The gaps that lineages record, and `earliest`: from when on `current` has none before it."""
    by_id = {lineage.id: lineage for lineage in lineages}
    gaps = []
    for lineage in by_id.values():
        parent = lineage.parent
        if parent is not None and parent.join != "exact":
            texts = [parent.cause] if parent.unlogged else []
            texts += [parent.missing] if parent.missing else []
            what = f": {'; '.join(texts)}" if texts else ""
            gaps.append(
                Gap(
                    lineage=lineage.id,
                    join=parent.join,
                    text=f"between {parent.point} and {lineage.first_binlog}{what}",
                    at=lineage.first_binlog_time,
                )
            )
    earliest = None
    if current in by_id:
        line_parts = line_of([*by_id.values()], current).parts
        after_gaps = [line_part for line_part in line_parts if line_part.missing]
        earliest = (after_gaps or line_parts[:1])[-1].lineage.first_binlog_time
    return HistoryStatus(lineages=len(by_id), gaps=tuple(gaps), earliest=earliest)


def backups_of(backups: Sequence[Backup], runs: Sequence[BackupRun] = ()) -> BackupsStatus:
    """The status of registered base backups and of `backup run`, without the recovery window."""
    taken = [backup.taken_at for backup in backups if backup.counts]
    failed = last_failure(runs, backups)
    return BackupsStatus(
        count=len(taken),
        newest_at=max(taken, default=None),
        run_failed=failed is not None,
        run_error=failed.error if failed is not None else "",
    )


def drill_of(
    last: DrillResult | None, proof: DrillResult | None, unread: UnreadDrill | None
) -> DrillStatus | None:
    """The status of the newest drill and of the newest proof; None if there was no drill.

    `unread`: a result after that proof.
    """
    if last is None:
        return DrillStatus(unread=unread.key) if unread is not None else None
    return DrillStatus(
        proven_at=proof.finished_at if proof is not None else None,
        proven_until=proof.proven_until if proof is not None else None,
        proven_seconds=proof.seconds if proof is not None else None,
        on_trust=proof is not None and proof.restored == ON_TRUST,
        doubts=proof.doubts if proof is not None else (),
        unread=unread.key if unread is not None else "",
        last_at=last.finished_at,
        failed=not last.is_proved,
        step=last.step or "",
        error=last.error,
    )


def writer_status(process: Process, heartbeat_at: datetime | None) -> WriterStatus:
    """The status of a writer; its object was renewed at that moment, None if never."""
    return WriterStatus(
        host=process.host,
        pid=process.pid,
        version=process.version,
        since=process.since,
        generation=process.generation if isinstance(process, Heartbeat) else 0,
        heartbeat_at=heartbeat_at,
        heartbeat_interval_seconds=process.interval,
    )


def standby_status(standby: Standby, heartbeat_at: datetime) -> StandbyStatus:
    """The status of a standby; its object was renewed at that moment."""
    return StandbyStatus(
        host=standby.host,
        pid=standby.pid,
        version=standby.version,
        since=standby.since,
        heartbeat_at=heartbeat_at,
        heartbeat_interval_seconds=standby.interval_seconds,
        unsaved_bytes=standby.unsaved_bytes,
    )


# As a JSON document


class PrintedPurge(Purge, Printed):
    statement: str | None


class PrintedStatus(Status, PrintedDocument):
    """The document: what is known, and how it is judged."""

    purge: PrintedPurge
    severity: Severity
    healthy: bool


def document(status: Status) -> dict[str, Any]:
    """The document for --json, /status and, without GTID sets, for the writer's object."""
    judged = {"troubles": status.all_troubles, "severity": status.severity}
    return as_printed(PrintedStatus, members(status) | judged | {"healthy": status.healthy})


class PrintedStatuses(PrintedDocument):
    """The document of several sources."""

    target: str
    sources: tuple[Annotated[dict[str, Any], document], ...] = of("statuses")


def without_gtids(printed: Mapping[str, Any]) -> dict[str, Any]:
    """The document with empty GTID sets: they may be long, and are elsewhere in the same object."""
    short = dict(printed)
    if short.get("durable"):
        short["durable"] = {**short["durable"], "gtid_set": ""}
    server = short.get("server") or {}
    if server.get("position"):
        short["server"] = {**server, "position": {**server["position"], "gtid_set": ""}}
    return short


def from_document(printed: Mapping[str, Any]) -> Status:
    """Read a document back; fields of newer versions are ignored. Raises ValueError."""
    if printed.get("format") != FORMAT:
        raise ValueError(f"status of format {printed.get('format')!r}, this version reads {FORMAT}")
    try:
        return converted(printed, Status)
    except ValueError as error:
        raise ValueError(f"not a status document: {error}") from error
