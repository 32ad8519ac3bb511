"""The Status that the last writer's object gives, as far as what it says is still valid. Pure.

Law: a lag is never smaller than what can be proved: seconds count on from the heartbeat, and bytes
and transactions count up to where the source was then.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime

from binlog2s3.archive.catalog import Contents
from binlog2s3.archive.documents import Lineage
from binlog2s3.archive.writers import Heartbeat, Position
from binlog2s3.binlog.gtid import Flavour
from binlog2s3.binlog.names import BinlogName
from binlog2s3.config.timing import DEFAULT
from binlog2s3.status.lag import aged, counted, lag_bytes, lag_transactions, purge_seconds
from binlog2s3.status.model import Lag, SourceStatus, Status, latest_of, writer_status
from binlog2s3.status.writer_state import LifeSign


def status_of(
    blank: Status,
    sign: LifeSign,
    lineage: Lineage | None,
    contents: Contents | None,
    durable: Position | None,
) -> Status:
    """`blank` with what the writer said and is still valid, and with what is durable now."""
    beat = sign.beat
    if beat is None:
        return replace(blank, durable=durable)
    base = sign.said or blank
    flavour = lineage.flavour if lineage is not None else base.server.flavour
    server = replace(
        base.server,
        uuid=beat.server_uuid,
        flavour=flavour,
        position=beat.server,
        silent_seconds=None,  # its silence at that time says nothing about now
    )
    if not sign.alive:  # what ran at that time no longer runs
        base = replace(base, uploads=None, child=None, rates=None)
        server = SourceStatus(
            uuid=server.uuid,
            flavour=server.flavour,
            position=server.position,
            asked_at=server.asked_at,
        )
    lag = _lag(sign, beat, flavour, contents, durable)
    return replace(
        base,
        source=blank.source,
        target=blank.target,
        seen_from="bucket",
        at=blank.at,
        state=sign.state,
        writer=writer_status(beat, sign.renewed_at),
        server=server,
        durable=durable,
        covered_until=beat.covered_until,
        latest=latest_of([beat.vouched_until, base.latest], beat.at),
        lag=lag,
        purge=replace(base.purge, seconds=purge_seconds(base.purge.expire_seconds, lag)),
    )


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
    covered, said = beat.covered_until, sign.said
    if not sign.alive:  # what the source has written since is unknown
        since = _age(covered, sign.clock) if covered is not None else -math.inf
        return Lag(seconds=max(0.0, since) if since > -DEFAULT.heartbeat_slack_seconds else None)
    heard = _since_heard(sign, beat)
    is_same = said is not None and _same(said.server.position, beat.server)
    silent = (said.server.silent_seconds if said is not None else None) or 0.0
    seconds = said.lag.seconds if said is not None else None
    if said is not None and is_same and _same(said.durable, durable):
        lag = said.lag
    else:
        there = contents.binlogs if contents is not None else {}
        sizes = {name: info.size for name, info in there.items()}
        lag = _lag_since(beat, said if is_same else None, flavour, durable, sizes)
        if seconds is None and covered is not None and _age(covered, beat.at) > -1:
            seconds = max(0.0, _age(covered, beat.at))
    if seconds is not None:
        seconds += heard
    return aged(replace(lag, seconds=seconds), heard + silent)


def _lag_since(
    beat: Heartbeat,
    said: Status | None,
    flavour: Flavour | None,
    durable: Position | None,
    sizes: Mapping[BinlogName, int],
) -> Lag:
    """Bytes and transactions from what is durable now to the source's position at the heartbeat."""
    behind = waiting = None
    if beat.server is not None and durable is not None:
        behind = lag_bytes(durable.place, beat.server.place, sizes)
    if behind is None and said is not None and said.lag.bytes is not None:
        came = None
        if said.durable is not None and durable is not None:
            came = lag_bytes(said.durable.place, durable.place, sizes)
        behind = max(0, said.lag.bytes - came) if came is not None else None
    if _same(beat.durable, durable):  # otherwise the GTIDs of what came since are unknown
        ours = beat.durable.gtid_set if beat.durable is not None else ""
        if beat.server is not None and flavour and ours:
            waiting = lag_transactions(ours, beat.server.gtid_set, flavour)
    return Lag(bytes=behind, transactions=counted(behind, waiting))


def _since_heard(sign: LifeSign, beat: Heartbeat) -> float:
    """How old the writer's words are: commits since then may not be durable."""
    age = _age(sign.renewed_at, sign.clock) if sign.renewed_at is not None else 0.0
    before = _age(sign.said.at, beat.at) if sign.said is not None else 0.0
    return max(0.0, age) + max(0.0, before)


def _same(one: Position | None, other: Position | None) -> bool:
    """Whether both are the same place; the GTIDs are not compared, a status has none."""
    if one is None or other is None:
        return one is other
    return (one.binlog, one.offset) == (other.binlog, other.offset)


def _age(moment: datetime, now: datetime) -> float:
    return (now - moment).total_seconds()
