"""The Status of streams from the bucket alone: what the last writer said, and what is there.

If a daemon can be asked, its own Status is better.

Law: it only reads, in the order of docs/format.md: writers, live/, archive/. What cannot be known,
for example what the source of a dead writer has written since, is None. An error in one source does
not hide another source.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from itertools import count
from pathlib import Path

from binlog2s3.archive.catalog import (
    Catalog,
    Contents,
    read,
    settled,
)
from binlog2s3.archive.documents import Entry, Lineage
from binlog2s3.archive.drills import latest, newest
from binlog2s3.archive.history import current_of
from binlog2s3.archive.index import Index
from binlog2s3.archive.layout import Layout
from binlog2s3.archive.pages import name_at
from binlog2s3.archive.sources import all_sources, nothing_of
from binlog2s3.archive.writers import Heartbeat, Position, Retired
from binlog2s3.binlog.names import BinlogName
from binlog2s3.config.options import parse
from binlog2s3.config.stream import BY_NAME
from binlog2s3.errors import ArchiveError, ConfigError, ObjectMissingError, StoreError
from binlog2s3.formatting import moment_of
from binlog2s3.status.ask import Unanswered
from binlog2s3.status.model import (
    DrillStatus,
    Lag,
    StandbyStatus,
    Status,
    Trouble,
    drill_of,
    history_of,
    standby_status,
    urgency,
)
from binlog2s3.status.reach import Extent, short_of
from binlog2s3.status.writer_state import LifeSign, life_sign
from binlog2s3.store.contract import Store
from binlog2s3.workers import Workers

_LOOKS = 3
"""Listings for what the writer said is durable: a single listing may have missed it."""
_MOST_TROUBLES = 5
_MAX_EXPECTED_BYTES = 1 << 20
_SOURCE = BY_NAME["source"]


# Looking


@dataclass(frozen=True, slots=True)
class Expected:
    """The sources that must exist, and those that are ignored.

    A source is ignored only by its own name; a line that cannot be parsed is an error.
    """

    names: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()


def read_expected(path: Path) -> Expected:
    """Read a file with one source or `ignore NAME` per line; `#` begins a comment.

    Raises ConfigError with every line that is wrong, and every source that is in both lists.
    """
    hint = "write one source or `ignore SOURCE` per line; a # begins a comment"
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_EXPECTED_BYTES + 1)
        text = data.decode()
    except OSError as error:
        raise ConfigError([f"{path}: {error.strerror or error}"], hint=hint) from error
    except UnicodeDecodeError as error:
        raise ConfigError([f"{path} is not UTF-8: {error.reason}"], hint=hint) from error
    if len(data) > _MAX_EXPECTED_BYTES:
        raise ConfigError([f"{path} has more than {_MAX_EXPECTED_BYTES} bytes"], hint=hint)
    ignores: dict[str, bool] = {}
    problems = []
    for number, line in enumerate(text.split("\n"), 1):
        words = line.partition("#")[0].split()
        ignore = len(words) == 2 and words[0] == "ignore"
        name = words[1] if ignore else " ".join(words)
        try:
            source = str(parse(_SOURCE, name)) if name else ""
        except ValueError as error:
            problems.append(f"{path}:{number}: {error}")
            continue
        if source and ignores.setdefault(source, ignore) is not ignore:
            problems.append(f"{path}:{number}: {source} is both expected and ignored")
    if problems:
        raise ConfigError(problems, hint=hint)
    return Expected(
        names=tuple(name for name, ignore in ignores.items() if name and not ignore),
        ignored=tuple(name for name, ignore in ignores.items() if ignore),
    )


def look(
    store: Store,
    prefix: str,
    source: str,
    target: str,
    *,
    now: datetime,
    silent: Unanswered | None = None,
) -> Status:
    """The Status of one source; `silent`: its streamer on this host does not answer.

    Raises ArchiveError if the bucket has nothing of it, and StoreError.
    """
    layout = Layout(prefix, source)
    catalog = Catalog(store, layout)
    writers, growing = catalog.growing()
    chunked = growing.keys()
    sign = life_sign(catalog, now, listed=writers, silent=silent)
    lineages, wrong, current = _lineages(catalog, layout)
    if not (sign.exists or chunked or lineages or wrong or catalog.foreign):
        raise nothing_of(store, prefix, source, target)
    wrong += [
        f"there are chunks of lineage {id_}, but {layout.lineage(id_)} is missing"
        for id_ in sorted(chunked - lineages.keys())
        if not any(id_ in text for text in wrong)
    ]
    reader = _ContentsReader(catalog, growing)
    extent = reader.extent(lineages, current, sign)
    contents = extent.here
    lineage = lineages.get(extent.current or "")
    blank = _blank(source, target, now)
    status = sign.status(blank, lineage, contents, extent.durable())
    status = replace(status, standbys=_standbys(sign, catalog))
    lost = _lost(extent.current or "", contents, sign.beat)
    if lost is not None:  # what the writer said of it is not true any more
        status = replace(status, covered_until=None, latest=None, durable=lost[0], lag=Lag())
    written = sign.beat.lineage if sign.beat is not None else None
    if written is not None and written not in lineages:  # nobody can read what it writes
        status = replace(status, covered_until=None, latest=None, lag=Lag())
    troubles = [*_troubles(sign, catalog, wrong, extent.current, lineages)]
    troubles += [] if lost is None else [lost[1]]
    newest = (
        _last_commit(catalog, lineage, contents) if lost is None and not status.latest else None
    )
    history, gaps = history_of(lineages.values(), extent.current), extent.gaps()
    purge = status.purge  # not of binlogs that are missing here: the source may be the last copy
    if contents is None or any(gap.lineage == extent.current for gap in gaps):
        purge = replace(purge, newest_safe=None, to=None)
    return replace(
        status,
        lineage=extent.current,
        troubles=tuple(troubles),
        latest=status.latest or newest,
        purge=purge,
        history=replace(
            history,
            gaps=(*history.gaps, *gaps),
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
    expect: Expected | None = None,
) -> list[Status]:
    """The Status of every source under the prefix, and of those that are expected; worst first.

    Reads only the writers' objects and the lineages' documents, and nothing of ignored sources.
    If no living writer says what drills have shown, it also reads their newest results. Raises
    StoreError if the bucket cannot be listed; a source that cannot be read is `unknown`.
    """
    expect, names = expect or Expected(), {*all_sources(store, prefix)[0]}
    ignored = names & {*expect.ignored}
    looked_at = names - ignored
    statuses = [_absent(name, target, now) for name in {*expect.names} - names]
    statuses += [replace(_blank(name, target, now), ignored=True) for name in ignored]
    tasks = {name: partial(_glance, store, prefix, name, target, now) for name in looked_at}
    for outcome in workers.batch(tasks):
        if isinstance(outcome.value, Status):
            statuses.append(outcome.value)
        elif isinstance(outcome.error, StoreError | ArchiveError):
            statuses.append(unread(str(outcome.token), target, now, outcome.error))
        elif outcome.error is not None:
            raise outcome.error
    return sorted(statuses, key=urgency)


def _glance(store: Store, prefix: str, source: str, target: str, now: datetime) -> Status:
    """A Status from few requests: what the writer says, and how the lineages join."""
    layout = Layout(prefix, source)
    catalog = Catalog(store, layout)
    sign = life_sign(catalog, now)
    lineages, wrong, current = _lineages(catalog, layout)
    if catalog.has_retired and not sign.alive and _is_retired(catalog, sign.beat):
        return replace(_blank(source, target, now), ignored=True)
    durable = sign.beat.durable if sign.beat else None
    lineage = lineages.get(current or "")
    status = sign.status(_blank(source, target, now), lineage, None, durable)
    status = replace(status, standbys=_standbys(sign, catalog))
    return replace(
        status,
        lineage=current,
        drill=_drill(catalog, sign, status.drill),
        troubles=tuple(_troubles(sign, catalog, wrong, current, lineages)),
        history=history_of(lineages.values(), current),
    )


def _drill(catalog: Catalog, sign: LifeSign, reported: DrillStatus | None) -> DrillStatus | None:
    """What drills have shown: as a living writer says, else from the results, if there are any.

    A result that cannot be read does not hide what else is known of the source.
    """
    if not catalog.has_drills or (sign.alive and reported is not None):
        return reported
    try:
        return drill_of(*newest(latest(catalog)))
    except StoreError:
        return reported


def _is_retired(catalog: Catalog, beat: Heartbeat | None) -> bool:
    """Whether the operator said that the source has ended, after its last heartbeat."""
    try:
        retired = read(catalog.store, catalog.layout.retired, Retired)
    except (ObjectMissingError, ArchiveError):
        return False
    return beat is None or beat.at <= retired.retired_at


def _absent(source: str, target: str, now: datetime) -> Status:
    trouble = Trouble(
        code="missing",
        level="critical",
        text=f"source {source} is expected, but {target} has nothing of it",
        hint="check that its streamer was started with this bucket and prefix",
    )
    return replace(_blank(source, target, now), troubles=(trouble,))


def unread(source: str, target: str, now: datetime, error: StoreError | ArchiveError) -> Status:
    """The Status of a source that could not be read: nothing is known of it."""
    code = "store" if isinstance(error, StoreError) else "unreadable"
    trouble = Trouble(code=code, level="critical", text=str(error), hint=error.hint)
    return replace(_blank(source, target, now), troubles=(trouble,))


def _blank(source: str, target: str, now: datetime) -> Status:
    return Status(source=source, target=target, seen_from="bucket", at=now, state="unknown")


# What lies in the bucket


def _lineages(catalog: Catalog, layout: Layout) -> tuple[dict[str, Lineage], list[str], str | None]:
    """The readable lineages by id; what is wrong with the others; the id of the current one.

    The id is None if there is none, or if the turn that names it cannot be read.
    """
    unreadable: list[ArchiveError] = []
    turn, is_known = None, True
    try:
        turn = catalog.turn()
    except ArchiveError as error:
        unreadable.append(error)
        is_known = False
    readable = {lineage.id: lineage for lineage in catalog.lineages(unreadable)}
    bare = [key for key in catalog.foreign if layout.parsed(f"{key}lineage.json") is not None]
    wrong = [*map(str, unreadable), *(f"{key}lineage.json is missing" for key in sorted(bare))]
    current = current_of([*readable.values()], turn) if is_known else ""
    return readable, wrong, current or None


class _ContentsReader:
    """Lists what lineages have: the first binlogs, and of a long lineage also the last ones.

    It does not find a binlog that is missing in the middle of a long lineage; `verify` does.
    """

    def __init__(self, catalog: Catalog, growing: Mapping[str, Contents]) -> None:
        self._catalog = catalog
        self._growing = growing
        self._passed: dict[str, BinlogName] = {}

    def extent(
        self, lineages: Mapping[str, Lineage], current: str | None, sign: LifeSign
    ) -> Extent:
        """What each lineage has at its end, or at the cut where its child begins."""
        cuts: dict[str, int] = {}
        for lineage in lineages.values():
            origin = lineage.parent
            if origin is not None and origin.binlog is not None:
                cut = origin.binlog.number
                cuts[origin.lineage] = min(cut, cuts.get(origin.lineage, cut))
        contents = {
            id_: self._contents(described, sign.beat, cuts.get(id_) if id_ != current else None)
            for id_, described in lineages.items()
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
        """A lineage's binlogs. Lists again if something that should be durable is missing."""
        looks = count()

        def look() -> Contents:
            if next(looks):
                self._growing = self._catalog.growing()[1]
            return self._once(lineage, beat, cut)

        return settled(
            look,
            lambda contents: (
                not contents.has_holes and short_of(lineage.id, contents, beat) is None
            ),
        )

    def _once(self, lineage: Lineage, beat: Heartbeat | None, cut: int | None) -> Contents:
        binlogs, is_all = self._catalog.first(lineage)
        if not is_all:
            index = Index(self._catalog, lineage, entries=False)
            begin = self._end(lineage, beat, cut, index)
            last = max((name.number for name in binlogs), default=-1)
            if begin > last + 1:
                self._passed[lineage.id] = name_at(lineage, begin)
            binlogs |= index.tail(max(last, begin - 1)).binlogs
        growing = self._growing.get(lineage.id)
        return Contents(binlogs=binlogs, chunks=growing.chunks if growing is not None else {})

    @staticmethod
    def _end(lineage: Lineage, beat: Heartbeat | None, cut: int | None, index: Index) -> int:
        """The number of the binlog from which on everything is listed."""
        if beat is not None and beat.lineage == lineage.id and beat.durable is not None:
            durable = beat.durable.binlog.number - 1
            return max(0, durable if cut is None else min(cut, durable))
        if cut is not None:
            return cut
        last = index.last_page()
        return last.last if last is not None else 0


def _standbys(sign: LifeSign, catalog: Catalog) -> tuple[StandbyStatus, ...] | None:
    """The standbys as the writer last saw them; without a living writer, as the bucket says."""
    if sign.alive:
        return sign.reported.standbys if sign.reported is not None else None
    return tuple(
        standby_status(standby, info.last_modified) for standby, info in catalog.standbys()
    )


def _troubles(
    sign: LifeSign,
    catalog: Catalog,
    wrong: Sequence[str],
    current: str | None,
    lineages: Mapping[str, Lineage],
) -> Iterator[Trouble]:
    """The writer's troubles, and what cannot be read: critical only in the current lineage."""
    yield from sign.troubles
    hint = "somebody changed or deleted it, or a newer binlog2s3 wrote it"
    named = (current, sign.beat.lineage if sign.beat is not None else None)
    lost = next((id_ for id_ in named if id_ and id_ not in lineages), None)
    of_lost = [text for text in wrong if (lost and lost in text) or "/turns/" in text]
    if lost and not of_lost:
        of_lost = [f"the current lineage {lost} has no lineage.json"]
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


def _lost(
    lineage: str, contents: Contents | None, beat: Heartbeat | None
) -> tuple[Position, Trouble] | None:
    """Something is missing that the writer said is durable: up to where it is there, and that."""
    short = short_of(lineage, contents, beat) if contents is not None else None
    if contents is None or short is None:
        return None
    have = contents.size(short.binlog)
    trouble = Trouble(
        code="lost",
        level="critical",
        text=f"bytes {have} to {short.offset} of {short.binlog} were durable and are missing",
        hint="find out who deletes in this bucket; a streamer that still has the bytes uploads "
        "them again",
    )
    return Position(binlog=short.binlog, offset=have, gtid_set=""), trouble


def _last_commit(
    catalog: Catalog, lineage: Lineage | None, contents: Contents | None
) -> datetime | None:
    """The last commit of the last archived binlog, for a bucket without a heartbeat."""
    if lineage is None or contents is None:
        return None
    entry = _described(catalog, lineage, sorted(contents.binlogs)[::-1])
    if entry is None or entry.reached_us is None:
        # what was committed before a binlog began is in the binlogs before it
        return entry.first_time if entry is not None else None
    return moment_of(entry.reached_us)


def _described(catalog: Catalog, lineage: Lineage, names: Sequence[BinlogName]) -> Entry | None:
    """The entry of the first of these binlogs that has one; it is written after the binlog."""
    for name in names[:_LOOKS]:
        try:
            return catalog.entry(lineage, name)
        except ObjectMissingError:
            continue
        except ArchiveError:
            return None
    return None


def _earliest(catalog: Catalog, extent: Extent) -> datetime | None:
    """The creation time of the first binlog after which nothing is missing, as far as is known."""
    begin = extent.begin()
    if begin is None:
        return None
    lineage, names = begin
    if names[0] == lineage.first_binlog:
        return lineage.first_binlog_time
    archived = extent.contents[lineage.id].binlogs
    entry = _described(catalog, lineage, [name for name in names if name in archived])
    return entry.first_time if entry is not None else None
