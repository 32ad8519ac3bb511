"""What the last writer of a source says in its object in the bucket, and what that is worth now.

Place in the flow: under `from_bucket`; the object is from `stream.writer`, the status in it from
`stream.reporter`.

Law: what a writer said holds as long as it renews its object, by the store's clock. One that ended
without a word is dead after two intervals and some slack, or as soon as its own socket refuses us;
one that said so, stopped. An object that cannot be read is neither: unknown.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import get_args

from binlog2s3.archive.catalog import Catalog
from binlog2s3.archive.writers import Heartbeat, WriterState
from binlog2s3.config.timing import DEFAULT
from binlog2s3.formatting import duration_text
from binlog2s3.status.document import from_document
from binlog2s3.status.model import WELL, Level, SilentKind, State, Status, Trouble
from binlog2s3.store.contract import ObjectInfo

_STALE_SECONDS = 15.0  # a Status is made each second
_STATES: tuple[WriterState, ...] = get_args(WriterState)
_CODES: Mapping[str, str] = {
    "starting": "starting",
    "paused": "paused",
    "stalled": "stalled",
    "source unreachable": "source",
    "store unreachable": "store",
}
"""The code of the trouble that stands for a state, where the writer told no troubles itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Silent:
    """A spool of this host whose streamer did not answer, and why not.

    `refused`: its socket is there, and no process listens. `hangs`: one does, and does not answer
    in time. `absent`: there is no socket; `expected`: but there should be, the spool was named. Of
    the others nothing follows.
    """

    host: str
    spool: Path
    why: str
    kind: SilentKind

    @property
    def matters(self) -> bool:
        """Whether a streamer should answer and does not."""
        return self.kind in ("refused", "hangs", "expected")

    def concerns(self, beat: Heartbeat, said: Status | None) -> bool:
        """Whether it is the streamer that wrote this heartbeat."""
        directory = said.spool.directory if said is not None and said.spool is not None else ""
        return beat.host == self.host and directory == str(self.spool.absolute())


@dataclass(frozen=True, slots=True, kw_only=True)
class LifeSign:
    """The greatest writer's object, and what follows from it at this moment.

    `exists`: there is one, readable or not. `said`: what it told of itself, None from an older
    version. `clock`: now, as far as the store's clock does not prove that it is later already.
    """

    exists: bool
    beat: Heartbeat | None = None
    said: Status | None = None
    renewed_at: datetime | None = None
    clock: datetime
    state: State = "unknown"
    troubles: tuple[Trouble, ...] = ()

    @property
    def alive(self) -> bool:
        """Whether it writes, so that what it said is of this moment."""
        return self.beat is not None and self.state not in ("dead", "stopped")


def life_sign(
    catalog: Catalog,
    now: datetime,
    *,
    listed: Mapping[tuple[int, str], ObjectInfo] | None = None,
    silent: Silent | None = None,
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
        text=f"there is no writer's object below {catalog.layout.writers}: no streamer reports",
        hint="a streamer puts one when it starts, and then at each heartbeat",
    )
    return LifeSign(exists=False, clock=now, troubles=(trouble,))


def _judged(
    beat: Heartbeat, renewed_at: datetime, now: datetime, silent: Silent | None
) -> LifeSign:
    clock, said = max(now, renewed_at), _said(beat)
    state, troubles = _state(beat, said, (clock - renewed_at).total_seconds())
    if silent is not None and silent.matters and state not in ("dead", "stopped"):
        is_ours = silent.concerns(beat, said)
        state = "dead" if is_ours and silent.kind == "refused" else state
        troubles = (_unanswered(silent, beat, clock - renewed_at, is_ours=is_ours), *troubles)
    behind = (renewed_at - now).total_seconds()
    if behind > DEFAULT.heartbeat_slack_seconds:
        text = f"this clock is {duration_text(behind)} or more behind the store's"
        hint = "until it is set right, a streamer that dies is noticed too late"
        troubles += (Trouble(code="clock", level="warning", text=text, hint=hint),)
    return LifeSign(
        exists=True,
        beat=beat,
        said=said,
        renewed_at=renewed_at,
        clock=clock,
        state=state,
        troubles=troubles,
    )


def _state(beat: Heartbeat, said: Status | None, age: float) -> tuple[State, tuple[Trouble, ...]]:
    """What a writer is, whose object was renewed so long ago, and what is wrong with it."""
    interval, where = beat.interval, f"on {beat.host} (process {beat.pid})"
    if beat.state == "stopped":
        text = f"nobody streams: the streamer {where} was stopped {duration_text(age)} ago"
        hint = "start it again, there or on another host"
        return "stopped", (Trouble(code="stopped", level="critical", text=text, hint=hint),)
    if age > 2 * interval + DEFAULT.heartbeat_slack_seconds:
        text = (
            f"the streamer {where} has not renewed its heartbeat for {duration_text(age)}, "
            f"it should each {interval:.0f} s; it said last that it is: {beat.state}"
        )
        hint = "does it run, and does it reach the bucket? its log says more"
        return "dead", (Trouble(code="dead", level="critical", text=text, hint=hint),)
    for state in _STATES:
        if state == beat.state:
            return state, _told(beat, said)
    text = f"the streamer {where} is in a state that this version does not know: {beat.state!r}"
    hint = "a newer binlog2s3 wrote it: use that one"
    return "unknown", (Trouble(code="unreadable", level="critical", text=text, hint=hint),)


def _unanswered(silent: Silent, beat: Heartbeat, age: timedelta, *, is_ours: bool) -> Trouble:
    """That the streamer of this host does not answer; a warning where another one writes."""
    heard = f"{duration_text(max(0.0, age.total_seconds()))} ago"
    if is_ours and silent.kind == "refused":
        text = (
            f"{silent.why}: the streamer on this host (process {beat.pid}) has ended without a "
            f"word; its last heartbeat came {heard}"
        )
        hint = "start it again; its log, or that of its service manager, says why it ended"
        return Trouble(code="dead", level="critical", text=text, hint=hint)
    where = "this host" if is_ours else f"{beat.host} (process {beat.pid})"
    text = f"{silent.why}; the last heartbeat came {heard}, from the streamer on {where}"
    hint = "is a streamer meant to run here? if not, look with --from bucket"
    level: Level = "critical" if is_ours and silent.kind == "hangs" else "warning"
    return Trouble(code="unanswered", level=level, text=text, hint=hint)


def _said(beat: Heartbeat) -> Status | None:
    """The status in a writer's object, if it has one that this version can read."""
    if beat.status is None:
        return None
    try:
        said = from_document(beat.status)
    except ValueError:
        return None
    seconds, expire = said.lag.seconds, said.purge.expire_seconds
    return replace(
        said,
        lag=replace(said.lag, seconds=seconds if _is_amount(seconds) else None),
        purge=replace(said.purge, expire_seconds=expire if _is_amount(expire) else None),
    )


def _is_amount(value: float | None) -> bool:
    """Whether it is a number that JSON should have: NaN is none, and nothing is below 0."""
    return value is not None and math.isfinite(value) and value >= 0


def _told(beat: Heartbeat, said: Status | None) -> tuple[Trouble, ...]:
    """What the writer itself finds wrong; of an older one only its state tells that."""
    if said is not None:
        stale = (beat.at - said.at).total_seconds()
        troubles = [
            trouble
            if trouble.level in ("warning", "critical")
            else replace(trouble, level="critical")
            for trouble in said.troubles
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
            text=f"the streamer on {beat.host} says that it is: {beat.state}",
        ),
    )
