"""What can be said of one stream at one moment: the value that every rendering shows.

Place in the flow: the daemon makes one each second out of its `Vitals`, `from_bucket` makes one out
of the bucket alone. `status`, `/metrics`, `/health`, the check for monitors and the writer's object
in the bucket are renderings of it, so they cannot disagree.

Law: pure. What is not known is None, never 0; a lag is an upper bound, never a guess that flatters.
Whether a stream is well is judged by what has become durable, not by what is running.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from binlog2s3.archive.documents import Lineage
from binlog2s3.archive.history import line_of
from binlog2s3.archive.writers import Position, Standby, WriterState
from binlog2s3.binlog.gtid import Flavour
from binlog2s3.config.timing import DEFAULT, Timing

State = Literal[WriterState, "standby", "dead", "unknown"]
"""What a writer says of itself. A process that waits beside another writer is `standby`. From the
bucket also `dead` (its heartbeat is too old) and `unknown` (no writer's object could be read)."""

WELL = frozenset({"streaming", "idle", "catching up", "standby"})
Level = Literal["warning", "critical"]
Phase = Literal["starting", "standby", "running", "stopping"]
SeenFrom = Literal["daemon", "bucket"]
SilentKind = Literal["absent", "refused", "hangs", "expected", "unclear"]
"""Why no streamer answers on a spool's socket, see `writer_state.Silent`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """Something that is wrong. `code` is a fixed word; critical ones turn /health to 503."""

    code: str
    level: Level
    text: str
    hint: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterStatus:
    """Who writes, and when its object in the bucket was renewed."""

    host: str
    pid: int
    version: str
    since: datetime
    generation: int = 0
    heartbeat_at: datetime | None = None
    heartbeat_interval_seconds: float = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StandbyStatus:
    """A process that waits to become the writer.

    `unsaved_bytes`: what its spool holds and the bucket is not known to have.
    """

    host: str
    pid: int
    version: str
    since: datetime
    heartbeat_at: datetime | None = None
    heartbeat_interval_seconds: float = 30.0
    unsaved_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceStatus:
    """The server. `position` is from `asked_at`, by its own clock; `silent_seconds` since then."""

    uuid: str = ""
    flavour: Flavour | None = None
    position: Position | None = None
    asked_at: datetime | None = None
    silent_seconds: float | None = None
    read_only: bool | None = None
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lag:
    """What is committed and not durable; each None where it is not known.

    `seconds` is the greatest age that the oldest such commit can have, 0 when there is none.
    `at_least`: the source's position is old, so `bytes` and `transactions` are lower bounds.
    """

    bytes: int | None = None
    transactions: int | None = None
    seconds: float | None = None
    at_least: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SpoolStatus:
    """Bytes that the spool takes and that are free beside it; `paused`: it has no room."""

    directory: str = ""
    bytes: int = 0
    free_bytes: int = 0
    max_bytes: int | None = None
    min_free_bytes: int = 0
    paused: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadStatus:
    """What is on its way to the bucket.

    `binlogs` are in the spool, `closed_binlogs` of them wait for the archive; `open_uploads` are
    multipart uploads; `parts_in_flight` and `requests_in_flight` are requests; `unsaved_bytes`
    should be in the bucket by now and are not known to be.
    """

    binlogs: int = 0
    closed_binlogs: int = 0
    open_uploads: int = 0
    chunks: int = 0
    parts_in_flight: int = 0
    requests_in_flight: int = 0
    unsaved_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildStatus:
    """mysqlbinlog. `restarts` counts its ends; `last_error`: why it ended, or did not begin."""

    pid: int | None = None
    restarts: int = 0
    last_error: str = ""
    last_error_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreStatus:
    """Requests to the store: when one last succeeded, what the last error was, how many failed."""

    last_success_at: datetime | None = None
    last_error: str = ""
    last_error_at: datetime | None = None
    errors: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """Since the process began: bytes read from mysqlbinlog, sent as bodies, made durable."""

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
    """What the source deletes, and may.

    `expires`: whether it deletes by itself, None if not known. `expire_seconds`: how long it keeps
    a closed binlog, None if for ever or not known. `seconds`: it keeps what is not durable for at
    least so long from now on, None likewise; 0: it may delete it at any time. `to`: all of its
    binlogs before this one are archived; `statement` deletes those there.
    """

    expires: bool | None = None
    expire_seconds: float | None = None
    seconds: float | None = None
    newest_safe: str | None = None
    to: str | None = None

    @property
    def statement(self) -> str | None:
        """What deletes on the source what the archive has; None where nothing is to be deleted."""
        return f"PURGE BINARY LOGS TO '{self.to}'" if self.to and self.newest_safe else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """A place that no recovery can cross: what lies between two lineages, or is not there."""

    lineage: str
    join: str  # gap, unknown, missing
    text: str
    at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """The lineages in the bucket; `earliest` is the first moment that is reachable without a gap.

    `complete`: every archived binlog of them was looked for; else how they join, and from the
    bucket both ends of each.
    """

    lineages: int = 0
    gaps: tuple[Gap, ...] = ()
    earliest: datetime | None = None
    complete: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """One stream at one moment. Sizes in bytes, times in UTC by the clock of who looked.

    `ignored`: nobody is to be alarmed for this source, and nothing of it was looked at.
    """

    source: str
    target: str
    seen_from: SeenFrom
    at: datetime
    state: State
    troubles: tuple[Trouble, ...] = ()
    writer: WriterStatus | None = None
    standbys: tuple[StandbyStatus, ...] | None = None
    server: SourceStatus = field(default_factory=SourceStatus)
    lineage: str | None = None
    durable: Position | None = None
    covered_until: datetime | None = None
    latest: datetime | None = None
    lag: Lag = field(default_factory=Lag)
    flush_interval: float | None = None
    spool: SpoolStatus | None = None
    uploads: UploadStatus | None = None
    child: ChildStatus | None = None
    store: StoreStatus | None = None
    totals: Totals | None = None
    rates: Rates | None = None
    purge: Purge = field(default_factory=Purge)
    history: History | None = None
    ignored: bool = False


# Judging


@dataclass(frozen=True, slots=True, kw_only=True)
class Vitals:
    """The daemon's own readings, from which state and troubles follow; ages in seconds.

    `source_silent`: since the source last told its position (or since the process began).
    `child_gone`: since mysqlbinlog was last running, 0 while it is and while nothing is to be read.
    `unread`: it has not been running since the process began.
    `store_failing`: since the first failure behind the last success, None while there is none.
    `store_silent`: since nothing has come into the bucket that was due, 0 while nothing is.
    `read_idle`: since a byte last came while the source had more, 0 else. `beat_late`: since the
    writer's object should have been renewed. Of a standby, `unsaved_bytes`: what its spool holds
    and the bucket is not known to have; `may_be_last_copy`: the writer does not reach the source.
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
    read_idle: float = 0.0
    store_error: str = ""
    store_hint: str = ""
    store_failing: float | None = None
    store_silent: float = 0.0
    beat_late: float = 0.0
    loop_idle: float = 0.0
    unsaved_bytes: int = 0
    may_be_last_copy: bool = False

    @property
    def begun_in_vain(self) -> bool:
        """Whether mysqlbinlog could not be run, not once: nobody waits to see whether it lasts."""
        return self.unread and bool(self.child_error)


def judge(vitals: Vitals, timing: Timing = DEFAULT) -> tuple[State, tuple[Trouble, ...]]:
    """The state's name, and what is wrong; a catch-up that goes on and idleness are well."""
    troubles = tuple(_troubles(vitals, timing))
    return _state(vitals, timing), troubles


def _state(vitals: Vitals, timing: Timing) -> State:
    starting = vitals.phase == "starting"
    failing = vitals.store_failing is not None
    failing = failing and (starting or (vitals.store_failing or 0.0) >= timing.soon_seconds)
    silent = vitals.store_silent >= timing.store_failing_seconds
    silent = silent or vitals.beat_late >= timing.heartbeat_slack_seconds
    unheard = vitals.source_error or vitals.source_silent >= timing.source_seconds
    gone = vitals.child_gone >= timing.soon_seconds or vitals.begun_in_vain
    stalled = vitals.read_idle >= timing.stall_seconds or vitals.loop_idle >= timing.loop_seconds
    rules: tuple[tuple[object, State], ...] = (
        (vitals.phase == "standby", "standby"),
        (vitals.phase == "stopping", "stopped"),
        (vitals.paused is not None, "paused"),
        (failing or silent, "store unreachable"),
        (starting and not vitals.source_error, "starting"),
        (unheard or gone, "source unreachable"),
        (vitals.unread, "starting"),
        (stalled, "stalled"),
        (vitals.idle, "idle"),
        (vitals.behind, "catching up"),
    )
    return next((state for holds, state in rules if holds), "streaming")


def _trouble(code: str, since: float, limit: float, text: str, hint: str = "") -> Trouble:
    level: Level = "critical" if since >= limit else "warning"
    return Trouble(code=code, level=level, text=text, hint=hint)


def _troubles(vitals: Vitals, timing: Timing) -> Iterator[Trouble]:
    if vitals.phase == "stopping":
        yield _trouble("stopping", 0, 0, "the streamer is ending")
    elif vitals.phase == "starting" or (vitals.unread and vitals.phase == "running"):
        text = f"not streaming yet, for {vitals.phase_seconds:.0f} s"
        failing = vitals.source_error or vitals.store_failing is not None
        waits = failing and vitals.phase == "starting"
        yield _trouble("starting", vitals.phase_seconds, 0 if waits else timing.start_seconds, text)
    if vitals.source_error or vitals.source_silent >= timing.source_seconds:
        what = vitals.source_error or "the source does not answer"
        text = f"{what} (for {vitals.source_silent:.0f} s)"
        since, hint = vitals.source_silent, vitals.source_hint
        yield _trouble("source", since, timing.source_seconds, text, hint)
    elif vitals.child_gone >= timing.soon_seconds or vitals.begun_in_vain:
        why = f": {vitals.child_error}" if vitals.child_error else ""
        text = f"mysqlbinlog has not been running for {vitals.child_gone:.0f} s{why}"
        limit = 0 if vitals.begun_in_vain else timing.source_seconds
        yield _trouble("source", vitals.child_gone, limit, text)
    yield from _store_troubles(vitals, timing)
    if vitals.unsaved_bytes:
        text = f"the bucket may not have {vitals.unsaved_bytes} bytes that are in this spool"
        hint = "the writer reads them from the source; if the source has lost them, restart this "
        hint += "streamer with --take-over, which uploads them"
        yield _trouble("unsaved", int(vitals.may_be_last_copy), 1, text, hint)
    if vitals.paused is not None:
        text = "the spool has no room: nothing is read from the source"
        hint = "it goes on when there is room; the source keeps its binlogs meanwhile"
        yield _trouble("paused", vitals.paused, timing.paused_seconds, text, hint)
    unheard = vitals.source_error or vitals.source_silent >= timing.source_seconds
    if vitals.read_idle >= timing.soon_seconds and not unheard:
        text = f"the source has more, and nothing has come for {vitals.read_idle:.0f} s"
        yield _trouble("stalled", vitals.read_idle, timing.stall_seconds, text)
    if vitals.loop_idle >= timing.soon_seconds:
        text = f"the streamer's loop has not gone round for {vitals.loop_idle:.0f} s"
        hint = "does the spool's disk hang?"
        yield _trouble("stuck", vitals.loop_idle, timing.loop_seconds, text, hint)


def _store_troubles(vitals: Vitals, timing: Timing) -> Iterator[Trouble]:
    failing = vitals.store_failing or 0.0
    waits = vitals.phase == "starting" and vitals.store_failing is not None
    if failing >= timing.soon_seconds or waits:
        text = f"{vitals.store_error} (for {failing:.0f} s)"
        # requests that time out begin to fail when they have been silent for long
        silent = vitals.store_silent + timing.store_failing_seconds - timing.store_silent_seconds
        since = max(failing, silent)
        yield _trouble("store", since, timing.store_failing_seconds, text, vitals.store_hint)
    elif vitals.store_silent >= timing.store_failing_seconds:
        text = f"nothing has become durable for {vitals.store_silent:.0f} s, though something waits"
        hint = "is the way to the endpoint open, and wide enough?"
        yield _trouble("store", vitals.store_silent, timing.store_silent_seconds, text, hint)
    if vitals.beat_late > 0:
        text = f"the heartbeat in the bucket is {vitals.beat_late:.0f} s late"
        yield _trouble("heartbeat", vitals.beat_late, timing.heartbeat_slack_seconds, text)


# History


def history_of(lineages: Iterable[Lineage], current: str | None) -> History:
    """The gaps that lineages record, and `earliest`: from when on `current` has none before it."""
    by_id = {lineage.id: lineage for lineage in lineages}
    gaps = []
    for lineage in by_id.values():
        parent = lineage.parent
        if parent is not None and parent.join != "exact":
            what = f": {parent.missing}" if parent.missing else ""
            gaps.append(
                Gap(
                    lineage=lineage.id,
                    join=parent.join,
                    text=f"between {parent.place} and {lineage.first_binlog}{what}",
                    at=lineage.first_binlog_time,
                )
            )
    earliest = None
    if current in by_id:
        legs = line_of([*by_id.values()], current).legs
        after_gaps = [leg for leg in legs if leg.missing]
        earliest = (after_gaps or legs[:1])[-1].lineage.first_binlog_time
    return History(lineages=len(by_id), gaps=tuple(gaps), earliest=earliest)


def standby_status(standby: Standby, heartbeat_at: datetime) -> StandbyStatus:
    """What the object of a process that stands by says; it was renewed at that moment."""
    return StandbyStatus(
        host=standby.host,
        pid=standby.pid,
        version=standby.version,
        since=standby.since,
        heartbeat_at=heartbeat_at,
        heartbeat_interval_seconds=standby.interval_seconds,
        unsaved_bytes=standby.unsaved_bytes,
    )


# Words
