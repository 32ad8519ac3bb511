"""The last writer's heartbeat in the bucket: what it says, and what its age means.

Law: what a writer says is valid as long as it renews its object, by the store's clock. A writer
that does not is dead after two intervals and some slack, or at once if its socket refuses the
connection. A writer that recorded its end is stopped. If the object cannot be read, the state is
unknown. A lag is never smaller than what can be proved: seconds count on from the heartbeat, and
bytes and transactions count up to where the source was then.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import get_args

from binlog2s3.archive.catalog import Catalog, Contents
from binlog2s3.archive.documents import Lineage
from binlog2s3.archive.writers import Heartbeat, Position, WriterState
from binlog2s3.binlog.gtid import Flavour
from binlog2s3.binlog.names import BinlogName
from binlog2s3.config.outside import DEFAULT
from binlog2s3.formatting import duration_text
from binlog2s3.status.ask import Unanswered
from binlog2s3.status.lag import aged, counted, lag_bytes, lag_transactions, purge_seconds
from binlog2s3.status.model import (
    WELL,
    Lag,
    Level,
    State,
    Status,
    Trouble,
    from_document,
    latest_of,
    writer_status,
)
from binlog2s3.store.contract import ObjectInfo

_STALE_SECONDS = 15.0  # a Status is made every second or two
_STATES: tuple[WriterState, ...] = get_args(WriterState)
_CODES: Mapping[str, str] = {
    "starting": "starting",
    "paused": "paused",
    "stalled": "stalled",
    "source unreachable": "source",
    "unlogged": "unlogged",
    "store unreachable": "store",
}
"""The trouble's code for a state, if the writer's object contains no status that can be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LifeSign:
    """The object of the writer with the greatest rank, and what follows from it now.

    `exists`: there is an object, readable or not. `reported`: the status in it, None if it has none
    that can be read. `clock`: now, or the store's clock if that is later.
    """

    exists: bool
    beat: Heartbeat | None = None
    reported: Status | None = None
    renewed_at: datetime | None = None
    clock: datetime
    state: State = "unknown"
    troubles: tuple[Trouble, ...] = ()

    @property
    def alive(self) -> bool:
        """Whether the writer works, so that what it said is valid now."""
        return self.beat is not None and self.state not in ("dead", "stopped")

    def status(
        self,
        blank: Status,
        lineage: Lineage | None,
        contents: Contents | None,
        durable: Position | None,
    ) -> Status:
        """`blank` with what the writer said and is still valid, and with what is durable now."""
        beat = self.beat
        if beat is None:
            return replace(blank, durable=durable)
        base = self.reported or blank
        flavour = lineage.flavour if lineage is not None else base.server.flavour
        server = replace(
            base.server,
            uuid=beat.server_uuid,
            flavour=flavour,
            position=beat.server,
            silent_seconds=None,  # its silence at that time says nothing about now
        )
        if not self.alive:  # what ran at that time no longer runs; the source may be another one
            unsafe = replace(base.purge, newest_safe=None, to=None)
            base = replace(base, uploads=None, child=None, rates=None, purge=unsafe)
            server = replace(server, read_only=None, error="")
        lag = _lag(self, beat, flavour, contents, durable)
        return replace(
            base,
            source=blank.source,
            target=blank.target,
            seen_from="bucket",
            at=blank.at,
            state=self.state,
            writer=writer_status(beat, self.renewed_at),
            server=server,
            durable=durable,
            covered_until=beat.covered_until,
            latest=latest_of([beat.vouched_until, base.latest], beat.at),
            lag=lag,
            purge=replace(base.purge, seconds=purge_seconds(base.purge.expire_seconds, lag)),
        )


def life_sign(
    catalog: Catalog,
    now: datetime,
    *,
    listed: Mapping[tuple[int, str], ObjectInfo] | None = None,
    silent: Unanswered | None = None,
) -> LifeSign:
    """Look at the last writer's object. `listed`: the writers that a listing has already shown."""
    writer = catalog.last_writer(listed)
    if writer is not None and writer.error is not None:
        text = f"the last writer's object cannot be read: {writer.error}"
        hint = writer.error.hint
        trouble = Trouble(code="unreadable", level="critical", text=text, hint=hint)
        return LifeSign(exists=True, clock=now, troubles=(trouble,))
    if writer is not None and writer.beat is not None:
        return _judged(writer.beat, writer.info.last_modified, now, silent)
    trouble = Trouble(
        code="unknown",
        level="critical",
        text=f"there is no writer's object under {catalog.layout.writers}: no streamer reports",
        hint="a streamer writes it when it starts, and then at each heartbeat",
    )
    return LifeSign(exists=False, clock=now, troubles=(trouble,))


def last_report(sign: LifeSign) -> str:
    """When the streamer last reported, in words, and that the source may have more since then."""
    more = "the source may have more than the bucket"
    if sign.beat is None or sign.renewed_at is None:
        unread = "the last streamer's report cannot be read: it is unknown whether one runs"
        why = unread if sign.exists else "no streamer has ever reported here"
        return f"{why}; {more}"
    age, interval = (sign.clock - sign.renewed_at).total_seconds(), sign.beat.interval
    ago = f"{duration_text(age)} ago"
    if sign.state == "stopped":
        return f"the streamer was stopped {ago}: {more}"
    if not sign.alive:
        due = f"its last report, due every {duration_text(interval)}, came {ago}"
        return f"the streamer is DEAD: {due}; {more}"
    if age > interval + DEFAULT.soon_seconds:
        return (
            f"the streamer last reported {ago}, and is late: it does so every "
            f"{duration_text(interval)}, unless it is dead; {more}"
        )
    return f"the streamer last reported {ago}, as it does every {duration_text(interval)}: {more}"


def _judged(
    beat: Heartbeat, renewed_at: datetime, now: datetime, silent: Unanswered | None
) -> LifeSign:
    clock, reported = max(now, renewed_at), _reported(beat)
    state, troubles = _state(beat, reported, (clock - renewed_at).total_seconds())
    if silent is not None and silent.matters and state not in ("dead", "stopped"):
        is_ours = silent.concerns(beat, reported)
        state = "dead" if is_ours and silent.kind == "refused" else state
        troubles = (_unanswered(silent, beat, clock - renewed_at, is_ours=is_ours), *troubles)
    behind = (renewed_at - now).total_seconds()
    if behind > DEFAULT.heartbeat_slack_seconds:
        text = f"the clock of this host is {duration_text(behind)} or more behind the store's"
        hint = "set it right: until then, a dead streamer is noticed too late"
        troubles += (Trouble(code="clock", level="warning", text=text, hint=hint),)
    return LifeSign(
        exists=True,
        beat=beat,
        reported=reported,
        renewed_at=renewed_at,
        clock=clock,
        state=state,
        troubles=troubles,
    )


def _state(
    beat: Heartbeat, reported: Status | None, age: float
) -> tuple[State, tuple[Trouble, ...]]:
    """The state and troubles of a writer whose object was renewed `age` seconds ago."""
    interval, where = beat.interval, f"on {beat.host} (process {beat.pid})"
    if beat.state == "stopped":
        text = f"no streamer runs: the one {where} was stopped {duration_text(age)} ago"
        hint = "restart it, there or on another host"
        return "stopped", (Trouble(code="stopped", level="critical", text=text, hint=hint),)
    if age > 2 * interval + DEFAULT.heartbeat_slack_seconds:
        text = (
            f"the streamer {where} has not renewed its heartbeat for {duration_text(age)}; its "
            f"interval is {duration_text(interval)}, its last state was: {beat.state}"
        )
        hint = "check that it runs and reaches the bucket; its log says more"
        return "dead", (Trouble(code="dead", level="critical", text=text, hint=hint),)
    for state in _STATES:
        if state == beat.state:
            return state, _troubles_of(beat, reported)
    text = f"the streamer {where} has a state that this version does not know: {beat.state!r}"
    hint = "a newer binlog2s3 wrote it: use that version"
    return "unknown", (Trouble(code="unreadable", level="critical", text=text, hint=hint),)


def _unanswered(silent: Unanswered, beat: Heartbeat, age: timedelta, *, is_ours: bool) -> Trouble:
    """The trouble that a streamer of this host does not answer; a warning if another one writes."""
    heard = f"{duration_text(max(0.0, age.total_seconds()))} ago"
    if is_ours and silent.kind == "refused":
        text = (
            f"{silent}: the streamer on this host (process {beat.pid}) died; its last "
            f"heartbeat came {heard}"
        )
        hint = "restart it; its log, or that of its service manager, says why it ended"
        return Trouble(code="dead", level="critical", text=text, hint=hint)
    where = "this host" if is_ours else f"{beat.host} (process {beat.pid})"
    text = f"{silent}; the last heartbeat came {heard}, from the streamer on {where}"
    hint = "if no streamer should run here, use --from bucket"
    level: Level = "critical" if is_ours and silent.kind == "hangs" else "warning"
    return Trouble(code="unanswered", level=level, text=text, hint=hint)


def _reported(beat: Heartbeat) -> Status | None:
    """The status in a writer's object; None if it has none that this version can read."""
    if beat.status is None:
        return None
    try:
        reported = from_document(beat.status)
    except ValueError:
        return None
    seconds, expire = reported.lag.seconds, reported.purge.expire_seconds
    return replace(
        reported,
        lag=replace(reported.lag, seconds=seconds if _is_amount(seconds) else None),
        purge=replace(reported.purge, expire_seconds=expire if _is_amount(expire) else None),
    )


def _is_amount(value: float | None) -> bool:
    """Whether this is a finite number that is not negative; JSON may contain NaN."""
    return value is not None and math.isfinite(value) and value >= 0


def _troubles_of(beat: Heartbeat, reported: Status | None) -> tuple[Trouble, ...]:
    """The writer's own troubles; without a readable status, one that follows from its state."""
    if reported is not None:
        stale = (beat.at - reported.at).total_seconds()
        troubles = [
            trouble
            if trouble.level in ("warning", "critical")
            else replace(trouble, level="critical")
            for trouble in reported.troubles
        ]
        if stale > _STALE_SECONDS:
            text = f"its status is {duration_text(stale)} older than its heartbeat: it hangs"
            troubles.append(Trouble(code="stuck", level="critical", text=text))
        return tuple(troubles)
    if beat.state in WELL:
        return ()
    age = (beat.at - beat.since).total_seconds()
    began = beat.state == "starting" and age < DEFAULT.start_seconds
    return (
        Trouble(
            code=_CODES.get(beat.state, "unknown"),
            level="warning" if began else "critical",
            text=f"the streamer on {beat.host} reports the state: {beat.state}",
        ),
    )


# Its lag now


def _lag(
    sign: LifeSign,
    beat: Heartbeat,
    flavour: Flavour | None,
    contents: Contents | None,
    durable: Position | None,
) -> Lag:
    """The writer's lag, less what has become durable since; of a dead writer only the seconds.

    The status in the object may be older than its positions: then the positions count. The source
    has at least what it had at the heartbeat, and while that is fresh, not more.
    """
    covered, reported = beat.covered_until, sign.reported
    if not sign.alive:  # what the source has written since is unknown
        since = _age(covered, sign.clock) if covered is not None else -math.inf
        return Lag(seconds=max(0.0, since) if since > -DEFAULT.heartbeat_slack_seconds else None)
    heard = _since_heard(sign, beat)
    is_same = reported is not None and _same(reported.server.position, beat.server)
    silent = (reported.server.silent_seconds if reported is not None else None) or 0.0
    seconds = reported.lag.seconds if reported is not None else None
    if reported is not None and is_same and _same(reported.durable, durable):
        lag = reported.lag
    else:
        archived = contents.binlogs if contents is not None else {}
        sizes = {name: info.size for name, info in archived.items()}
        lag = _lag_since(beat, reported if is_same else None, flavour, durable, sizes)
        if seconds is None and covered is not None and _age(covered, beat.at) > -1:
            seconds = max(0.0, _age(covered, beat.at))
    if seconds is not None:
        seconds += heard
    return aged(replace(lag, seconds=seconds), heard + silent)


def _lag_since(
    beat: Heartbeat,
    reported: Status | None,
    flavour: Flavour | None,
    durable: Position | None,
    sizes: Mapping[BinlogName, int],
) -> Lag:
    """Bytes and transactions from what is durable now to the source's position at the heartbeat."""
    behind = waiting = None
    if beat.server is not None and durable is not None:
        behind = lag_bytes(durable.file_position, beat.server.file_position, sizes)
    if behind is None and reported is not None and reported.lag.bytes is not None:
        came = None
        if reported.durable is not None and durable is not None:
            came = lag_bytes(reported.durable.file_position, durable.file_position, sizes)
        behind = max(0, reported.lag.bytes - came) if came is not None else None
    if _same(beat.durable, durable):  # otherwise the GTIDs of what came since are unknown
        ours = beat.durable.gtid_set if beat.durable is not None else ""
        if beat.server is not None and flavour and ours:
            waiting = lag_transactions(ours, beat.server.gtid_set, flavour)
    return Lag(bytes=behind, transactions=counted(behind, waiting))


def _since_heard(sign: LifeSign, beat: Heartbeat) -> float:
    """How old the writer's words are: commits since then may not be durable."""
    age = _age(sign.renewed_at, sign.clock) if sign.renewed_at is not None else 0.0
    before = _age(sign.reported.at, beat.at) if sign.reported is not None else 0.0
    return max(0.0, age) + max(0.0, before)


def _same(left: Position | None, right: Position | None) -> bool:
    """Whether both are the same place; the GTIDs are not compared, a status has none."""
    if left is None or right is None:
        return left is right
    return (left.binlog, left.offset) == (right.binlog, right.offset)


def _age(moment: datetime, now: datetime) -> float:
    return (now - moment).total_seconds()
