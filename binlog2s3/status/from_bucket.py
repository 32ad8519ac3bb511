"""The Status of streams out of the bucket alone: what a writer said last, and what lies there.

Place in the flow: below `cli`, beside `archive.listing`; `writer_state` judges the writer, `reach`
what lies there. Where a daemon can be asked, its own Status is the better one.

Law: it only reads, in the order of docs/format.md: writers, live/, archive/. What nobody can know
(how far the source of a dead writer has gone on) is None. What cannot be read of one source hides
no other one.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial

from binlog2s3.archive.catalog import (
    Archived,
    Catalog,
    Contents,
    Growing,
    all_sources,
    has_hole,
    where_to_look,
)
from binlog2s3.archive.documents import Entry, Lineage
from binlog2s3.archive.history import current_of
from binlog2s3.archive.index import Index
from binlog2s3.archive.layout import Layout
from binlog2s3.archive.pages import name_at
from binlog2s3.archive.writers import Heartbeat, Position
from binlog2s3.binlog.gtid import Flavour
from binlog2s3.binlog.names import BinlogName
from binlog2s3.config.timing import DEFAULT
from binlog2s3.config.values import BY_NAME
from binlog2s3.errors import ArchiveError, ObjectMissingError, StoreError
from binlog2s3.formatting import moment_of
from binlog2s3.status.expected import NOTHING_EXPECTED, Expected
from binlog2s3.status.lag import aged, counted, lag_bytes, lag_transactions, purge_seconds
from binlog2s3.status.model import (
    Lag,
    SourceStatus,
    StandbyStatus,
    Status,
    Trouble,
    WriterStatus,
    history_of,
    standby_status,
)
from binlog2s3.status.reach import Extent, short_of, size_of
from binlog2s3.status.severity import urgency
from binlog2s3.status.writer_state import LifeSign, Silent, life_sign
from binlog2s3.store.contract import Store
from binlog2s3.workers import Workers

_LOOKS = 3
"""How often is listed for what the writer said is durable: the listing may have missed it."""
_MOST_NAMES = 20
_MOST_TROUBLES = 5
_SOURCE = BY_NAME["source"]


# Looking


def look(
    store: Store,
    prefix: str,
    source: str,
    target: str,
    *,
    now: datetime,
    silent: Silent | None = None,
) -> Status:
    """All that the bucket knows of one source; `silent`: its streamer here does not answer.

    Raises ArchiveError where it knows nothing.
    """
    layout = Layout(prefix, source)
    catalog = Catalog(store, layout)
    writers, growing = catalog.growing()
    chunked = growing.keys()
    sign = life_sign(catalog, now, listed=writers, silent=silent)
    lineages, wrong, current = _lineages(catalog, layout)
    if not (sign.exists or chunked or lineages or wrong or catalog.foreign):
        raise _nothing(store, prefix, source, target)
    wrong += [
        f"there are chunks of lineage {id_}, but {layout.lineage(id_)} is not there"
        for id_ in sorted(chunked - lineages.keys())
        if not any(id_ in text for text in wrong)
    ]
    looking = _Looking(store, catalog, layout, growing)
    extent = looking.extent(lineages, current, sign)
    here = extent.here
    lineage = lineages.get(extent.current or "")
    blank = _blank(source, target, now)
    status = _status(blank, sign, lineage, here, extent.durable())
    status = replace(status, standbys=_standbys(sign, catalog))
    troubles = [*_troubles(sign, catalog, wrong, extent.current, lineages), *_lost(here, sign.beat)]
    history = history_of(lineages.values(), extent.current)
    return replace(
        status,
        lineage=extent.current,
        troubles=_in_order(troubles),
        latest=status.latest or _last_commit(catalog, here),
        history=replace(
            history,
            gaps=(*history.gaps, *extent.gaps()),
            earliest=_earliest(catalog, extent),
            complete=not extent.passed,
        ),
    )


def look_all(
    store: Store,
    prefix: str,
    target: str,
    workers: Workers,
    *,
    now: datetime,
    expect: Expected = NOTHING_EXPECTED,
) -> list[Status]:
    """Every source below the prefix, and those that should be there; the worst first.

    Of each only the writers' objects and the lineages' documents are looked at, of those that are
    ignored nothing. Raises StoreError where the bucket as a whole cannot be listed; one source that
    cannot be read is `unknown`.
    """
    names = {*all_sources(store, prefix)[0]}
    ignored = names & {*expect.ignored}
    looked_at = names - ignored
    for name in looked_at:
        workers.submit(name, partial(_glance, store, prefix, name, target, now))
    found = [_absent(name, target, now) for name in {*expect.names} - names]
    found += [replace(_blank(name, target, now), ignored=True) for name in ignored]
    for _ in looked_at:
        outcome = None
        while outcome is None:
            outcome = workers.take(1.0)
        if isinstance(outcome.value, Status):
            found.append(outcome.value)
        elif isinstance(outcome.error, StoreError | ArchiveError):
            found.append(_unread(str(outcome.token), target, now, outcome.error))
        elif outcome.error is not None:
            raise outcome.error
    return sorted(found, key=urgency)


def _glance(store: Store, prefix: str, source: str, target: str, now: datetime) -> Status:
    """What its writer says, and how its lineages join: few requests."""
    layout = Layout(prefix, source)
    catalog = Catalog(store, layout)
    sign = life_sign(catalog, now)
    lineages, wrong, current = _lineages(catalog, layout)
    durable = sign.beat.durable if sign.beat else None
    lineage = lineages.get(current or "")
    status = _status(_blank(source, target, now), sign, lineage, None, durable)
    status = replace(status, standbys=_standbys(sign, catalog))
    return replace(
        status,
        lineage=current,
        troubles=_in_order(_troubles(sign, catalog, wrong, current, lineages)),
        history=history_of(lineages.values(), current),
    )


def _absent(source: str, target: str, now: datetime) -> Status:
    trouble = Trouble(
        code="missing",
        level="critical",
        text=f"source {source} is expected, and there is nothing of it below {target}",
        hint="has its streamer ever been started, with this bucket and prefix?",
    )
    return replace(_blank(source, target, now), troubles=(trouble,))


def _unread(source: str, target: str, now: datetime, error: StoreError | ArchiveError) -> Status:
    code = "store" if isinstance(error, StoreError) else "unreadable"
    trouble = Trouble(code=code, level="critical", text=str(error), hint=error.hint)
    return replace(_blank(source, target, now), troubles=(trouble,))


def _blank(source: str, target: str, now: datetime) -> Status:
    return Status(source=source, target=target, seen_from="bucket", at=now, state="unknown")


def _nothing(store: Store, prefix: str, source: str, target: str) -> ArchiveError:
    text = f"there is nothing of source {source} below {target}"
    return ArchiveError(text, hint=where_to_look(store, prefix))


def _in_order(troubles: Iterable[Trouble]) -> tuple[Trouble, ...]:
    return tuple(sorted(troubles, key=lambda trouble: trouble.level != "critical"))


# What follows from the writer's object


def _status(
    blank: Status,
    sign: LifeSign,
    lineage: Lineage | None,
    contents: Contents | None,
    durable: Position | None,
) -> Status:
    """What the writer said, as far as it still holds, around what is durable now."""
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
        silent_seconds=None,  # how long the source was silent then says nothing of now
    )
    if not sign.alive:  # what ran then runs no more
        base = replace(base, uploads=None, child=None, rates=None)
        server = SourceStatus(
            uuid=server.uuid,
            flavour=server.flavour,
            position=server.position,
            asked_at=server.asked_at,
        )
    lag = _lag(sign, beat, flavour, contents, durable)
    moments = [moment for moment in (beat.covered_until, base.latest) if moment is not None]
    return replace(
        base,
        source=blank.source,
        target=blank.target,
        seen_from="bucket",
        at=blank.at,
        state=sign.state,
        writer=WriterStatus(
            host=beat.host,
            pid=beat.pid,
            version=beat.version,
            since=beat.since,
            generation=beat.generation,
            heartbeat_at=sign.renewed_at,
            heartbeat_interval_seconds=beat.interval,
        ),
        server=server,
        durable=durable,
        covered_until=beat.covered_until,
        latest=max(moments, default=None),
        lag=lag,
        purge=replace(base.purge, seconds=purge_seconds(base.purge.expire_seconds, lag)),
    )


def _standbys(sign: LifeSign, catalog: Catalog) -> tuple[StandbyStatus, ...] | None:
    """Who stands by: as the writer last saw it; without a living writer, as the bucket says."""
    if sign.alive:
        return sign.said.standbys if sign.said is not None else None
    return tuple(standby_status(one, info.last_modified) for one, info in catalog.standbys())


def _lag(
    sign: LifeSign,
    beat: Heartbeat,
    flavour: Flavour | None,
    contents: Contents | None,
    durable: Position | None,
) -> Lag:
    """As the writer said, less what has become durable since; of a dead one only its age.

    Its status may be of a moment before its positions: then these count. Where the source was at
    the heartbeat bounds what it has now from below, and only as long as that is fresh from above.
    """
    covered, said = beat.covered_until, sign.said
    if not sign.alive:  # nobody knows what the source has written since
        since = _age(covered, sign.clock) if covered is not None else -math.inf
        return Lag(seconds=max(0.0, since) if since > -DEFAULT.heartbeat_slack_seconds else None)
    heard = _since_heard(sign, beat)
    is_same = said is not None and _same(said.server.position, beat.server)
    silent = (said.server.silent_seconds if said is not None else None) or 0.0
    seconds = said.lag.seconds if said is not None else None
    if said is not None and is_same and _same(said.durable, durable):
        lag = said.lag
    else:
        there = contents.archived.binlogs if contents is not None else {}
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
    """Bytes and transactions from what is durable now to where the source was at the heartbeat."""
    behind = waiting = None
    if beat.server is not None and durable is not None:
        behind = lag_bytes(durable.place, beat.server.place, sizes)
    if behind is None and said is not None and said.lag.bytes is not None:
        came = None
        if said.durable is not None and durable is not None:
            came = lag_bytes(said.durable.place, durable.place, sizes)
        behind = max(0, said.lag.bytes - came) if came is not None else None
    if _same(beat.durable, durable):  # else nobody tells the GTIDs of what has come since
        ours = beat.durable.gtid_set if beat.durable is not None else ""
        if beat.server is not None and flavour and ours:
            waiting = lag_transactions(ours, beat.server.gtid_set, flavour)
    return Lag(bytes=behind, transactions=counted(behind, waiting))


def _since_heard(sign: LifeSign, beat: Heartbeat) -> float:
    """How old what the writer said is: commits since then may not be durable, for all we know."""
    age = _age(sign.renewed_at, sign.clock) if sign.renewed_at is not None else 0.0
    before = _age(sign.said.at, beat.at) if sign.said is not None else 0.0
    return max(0.0, age) + max(0.0, before)


def _same(one: Position | None, other: Position | None) -> bool:
    """Whether they are one place; a status has no GTIDs."""
    if one is None or other is None:
        return one is other
    return (one.binlog, one.offset) == (other.binlog, other.offset)


def _age(moment: datetime, now: datetime) -> float:
    return (now - moment).total_seconds()


# What lies in the bucket


def _lineages(catalog: Catalog, layout: Layout) -> tuple[dict[str, Lineage], list[str], str | None]:
    """Those that can be read, by id; what is wrong with the others, naming keys; the current one.

    That is None where there is none, and where what says so cannot be read.
    """
    unreadable: list[ArchiveError] = []
    turn, is_known = None, True
    try:
        turn = catalog.turn()
    except ArchiveError as error:
        unreadable.append(error)
        is_known = False
    readable = {lineage.id: lineage for lineage in catalog.lineages(unreadable)}
    bare = [key for key in catalog.foreign if layout.is_binlog(f"{key}binlogs/x.1")]
    wrong = [*map(str, unreadable), *(f"{key}lineage.json is not there" for key in sorted(bare))]
    current = current_of([*readable.values()], turn) if is_known else ""
    return readable, wrong, current or None


class _Looking:
    """What the lineages have: of each one listing of its first binlogs; of a longer one its end.

    A binlog that is missing in the middle of a long lineage is not found: `verify` looks at all.
    """

    def __init__(
        self, store: Store, catalog: Catalog, layout: Layout, growing: Mapping[str, Growing]
    ) -> None:
        self._store = store
        self._catalog = catalog
        self._layout = layout
        self._growing = growing
        self._passed: dict[str, BinlogName] = {}

    def extent(
        self, lineages: Mapping[str, Lineage], current: str | None, sign: LifeSign
    ) -> Extent:
        """All that is needed of each lineage; the current one's end, and where others join."""
        cuts: dict[str, int] = {}
        for lineage in lineages.values():
            origin = lineage.parent
            if origin is not None and origin.binlog is not None:
                cut = BinlogName.parse(origin.binlog).number
                cuts[origin.lineage] = min(cut, cuts.get(origin.lineage, cut))
        contents = {
            id_: self._contents(one, sign.beat, cuts.get(id_) if id_ != current else None)
            for id_, one in lineages.items()
        }
        return Extent(
            lineages=lineages,
            contents=contents,
            current=current,
            beat=sign.beat,
            writing=sign.alive,
            passed=self._passed,
        )

    def _contents(self, lineage: Lineage, beat: Heartbeat | None, cut: int | None) -> Contents:
        """A lineage's binlogs; what falls short of the writer's word is looked at again."""
        contents = self._once(lineage, beat, cut)
        for _ in range(_LOOKS - 1):
            is_whole = not any(has_hole(chunks) for chunks in contents.open.values())
            if is_whole and short_of(contents, beat) is None:
                break
            self._growing = self._catalog.growing()[1]
            contents = self._once(lineage, beat, cut)
        return contents

    def _once(self, lineage: Lineage, beat: Heartbeat | None, cut: int | None) -> Contents:
        binlogs, is_all = self._catalog.first(lineage)
        if not is_all:
            index = Index(self._catalog, lineage, entries=False)
            begin = self._end(lineage, beat, cut, index)
            last = max((name.number for name in binlogs), default=-1)
            if begin > last + 1:
                self._passed[lineage.id] = name_at(lineage, begin)
            binlogs |= index.tail(max(last, begin - 1)).binlogs
        growing = self._growing.get(lineage.id, {})
        return Contents(
            archived=Archived(lineage=lineage, binlogs=binlogs, entries={}),
            open={name: growing[name] for name in growing.keys() - binlogs.keys()},
        )

    @staticmethod
    def _end(lineage: Lineage, beat: Heartbeat | None, cut: int | None, index: Index) -> int:
        """The number of the binlog from which on all is listed."""
        if beat is not None and beat.lineage == lineage.id and beat.durable is not None:
            durable = beat.durable.place[0].number - 1
            return max(0, durable if cut is None else min(cut, durable))
        if cut is not None:
            return cut
        last = index.last_page()
        return last.last if last is not None else 0


def _troubles(
    sign: LifeSign,
    catalog: Catalog,
    wrong: Sequence[str],
    current: str | None,
    lineages: Mapping[str, Lineage],
) -> Iterator[Trouble]:
    """The writer's, and what cannot be read: critical of the lineage that is written."""
    yield from sign.troubles
    hint = "was it changed or deleted by hand, or written by a newer binlog2s3?"
    named = (current, sign.beat.lineage if sign.beat is not None else None)
    lost = next((id_ for id_ in named if id_ and id_ not in lineages), None)
    of_lost = [text for text in wrong if (lost and lost in text) or "/turns/" in text]
    if lost and not of_lost:
        of_lost = [f"the lineage that is written, {lost}, has no lineage.json"]
    for text in of_lost:
        yield Trouble(code="unreadable", level="critical", text=text, hint=hint)
    others = [text for text in wrong if text not in of_lost]
    if sign.beat is None:
        others += [f"not of this archive's format: {key}" for key in sorted(catalog.foreign)]
    for text in others[:_MOST_TROUBLES]:
        yield Trouble(code="unreadable", level="warning", text=text, hint=hint)
    if len(others) > _MOST_TROUBLES:
        text = f"and {len(others) - _MOST_TROUBLES} more that cannot be read"
        yield Trouble(code="unreadable", level="warning", text=text, hint=hint)


def _lost(contents: Contents | None, beat: Heartbeat | None) -> Iterator[Trouble]:
    """What the writer said is durable, and is not there."""
    short = short_of(contents, beat) if contents is not None else None
    if contents is None or short is None:
        return
    have = size_of(contents, short.place[0])
    yield Trouble(
        code="lost",
        level="critical",
        text=f"bytes {have} to {short.offset} of {short.binlog} were durable and are not there",
        hint="who else deletes in this bucket? a streamer that still has them puts them again",
    )


def _last_commit(catalog: Catalog, contents: Contents | None) -> datetime | None:
    """The last moment that the last archived binlog proves, where no heartbeat tells of one."""
    if contents is None:
        return None
    names = sorted(contents.archived.binlogs)
    entry = _described(catalog, contents.archived.lineage, names[::-1])
    if entry is None or entry.greatest_commit_us is None:
        # all that was committed before a binlog is in the binlogs before
        return entry.first_time if entry is not None else None
    return moment_of(entry.greatest_commit_us)


def _described(catalog: Catalog, lineage: Lineage, names: Sequence[BinlogName]) -> Entry | None:
    """The entry of the first of these binlogs that has one: it comes soon after the binlog."""
    for name in names[:_LOOKS]:
        try:
            return catalog.entry(lineage, name)
        except ObjectMissingError:
            continue
        except ArchiveError:
            return None
    return None


def _earliest(catalog: Catalog, extent: Extent) -> datetime | None:
    """When the first binlog was begun from which on nothing is missing, as far as that is known."""
    reach = extent.reach()
    if reach is None:
        return None
    lineage, names = reach
    if names[0] == lineage.first_binlog:
        return lineage.first_binlog_time
    archived = extent.contents[lineage.id].archived.binlogs
    entry = _described(catalog, lineage, [name for name in names if name in archived])
    return entry.first_time if entry is not None else None
