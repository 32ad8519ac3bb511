"""Lists a source in the bucket: its lineages, their binlogs, and what is missing between them.

`gather` only reads, and returns values; `document` is their JSON; `inspect.list` prints them. If
one binlog cannot be read, it is reported, and the others are listed.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import cast

from binlog2s3.archive.catalog import Catalog, Contents
from binlog2s3.archive.codec import Printed, PrintedDocument, When, of
from binlog2s3.archive.documents import (
    Damage,
    EntryRow,
    Lineage,
    Parent,
    SourceServer,
)
from binlog2s3.archive.facts import Binlog, State
from binlog2s3.archive.history import MissingBinlogs, current_of, missing_binlogs, parents_first
from binlog2s3.archive.index import Index
from binlog2s3.archive.layout import Layout
from binlog2s3.archive.sources import nothing_of, sources
from binlog2s3.archive.writers import Heartbeat
from binlog2s3.binlog.names import BinlogName
from binlog2s3.config.bucket import ListConfig, url
from binlog2s3.errors import ArchiveError, ObjectMissingError
from binlog2s3.store.s3 import Store
from binlog2s3.workers import Workers

_Listed = tuple[Lineage, Contents]
Advance = Callable[[int, int], None]
"""Called as entries arrive: how many of how many."""

_MOST_WARNINGS = 20
_MOST_NAMES = 20
_MOST_GROUP = 32  # entries that a thread reads between two reports


@dataclass(frozen=True, slots=True, kw_only=True)
class LineageListing:
    """A lineage with its binlogs. `current`: it is being written, or was the last one."""

    lineage: Lineage
    current: bool
    parent_there: bool
    binlogs: tuple[Binlog, ...]
    missing: tuple[MissingBinlogs, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceListing:
    """A source's lineages, parents before children."""

    name: str
    lineages: tuple[LineageListing, ...]


@dataclass(slots=True, kw_only=True)
class Listing:
    """Everything that was asked for; `warnings` are for standard error.

    `unreadable`: lineages that are not shown, because their lineage.json cannot be read.
    """

    target: str
    sources: list[SourceListing] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    unreadable: list[ArchiveError] = field(default_factory=list)


# Reading


def gather(
    store: Store, config: ListConfig, workers: Workers, advance: Advance = lambda _, __: None
) -> Listing:
    """List every source that is asked for. Raises ArchiveError if there is nothing."""
    target = url(config.s3)
    listing = Listing(target=target)
    names, foreign = [config.source or ""], list[str]()
    if not config.source:
        names, foreign = sources(store, config.s3.prefix)
    seen: list[str] = []
    for name in names:
        layout = Layout(config.s3.prefix, name)
        catalog = Catalog(store, layout)
        index_of = partial(Index, catalog)
        lineages = _look(
            catalog, name, config.lineage, listing, partial(_entries, workers, advance, index_of)
        )
        seen += [lineage.id for lineage in lineages]
        foreign += catalog.foreign
    if not listing.sources and listing.unreadable:
        raise listing.unreadable[0]
    if not listing.sources:
        raise _nothing(store, config, target, seen)
    listing.warnings += [f"{error}; its lineage is not shown" for error in listing.unreadable]
    listing.warnings += _left_alone(foreign)
    return listing


def _look(
    catalog: Catalog,
    name: str,
    only: str | None,
    listing: Listing,
    entries_of: Callable[[Catalog, Sequence[_Listed]], "_Entries"],
) -> list[Lineage]:
    """Add a source to the listing, if it has what was asked for; returns all of its lineages.

    It reads in the order that docs/format.md gives: writers, live/, archive/.
    """
    last = catalog.last_writer()
    writer = last.beat if last is not None else None
    if last is not None and last.error is not None:
        catalog.foreign[last.info.key] = ""
    live = catalog.live_lineages()
    turn = catalog.turn()
    lineages = parents_first(catalog.lineages(listing.unreadable))
    known = {lineage.id for lineage in lineages}
    listing.warnings += [
        f"{name}: there are chunks of lineage {id_}, but it has no lineage.json"
        for id_ in sorted(live - known)
    ]
    if turn is not None and turn.lineage not in known:
        listing.warnings.append(
            f"{name}: lineage {turn.lineage} is the current one, but it has no readable "
            "lineage.json"
        )
    current = current_of(lineages, turn)
    contents = [(one, catalog.contents(one)) for one in lineages if only in (None, one.id)]
    if contents:
        entries = entries_of(catalog, contents)
        listing.warnings += entries.problems
        listed = [_listed(*one, entries, known, current=current, writer=writer) for one in contents]
        listing.sources.append(SourceListing(name=name, lineages=tuple(listed)))
    return lineages


_Found = tuple[_Listed, BinlogName, EntryRow | ArchiveError | None]


@dataclass(frozen=True, slots=True)
class _Entries:
    """Entries by lineage and binlog, and the problems of those that cannot be used."""

    found: Mapping[tuple[str, BinlogName], EntryRow]
    problems: Sequence[str]


def _entries(
    workers: Workers,
    advance: Advance,
    index_of: Callable[[Lineage], Index],
    catalog: Catalog,
    contents: Sequence[_Listed],
) -> _Entries:
    """All entries: from pages if possible, otherwise read, several at a time."""
    entries: dict[tuple[str, BinlogName], EntryRow] = {}
    problems: list[str] = []
    wanted: list[tuple[_Listed, BinlogName]] = []
    for lineage, listed in contents:
        index = index_of(lineage)
        for name, entry in _from_pages(index, listed):
            if entry is None:
                wanted.append(((lineage, listed), name))
            else:
                entries[lineage.id, name] = entry
        problems += [f"{error} ({error.hint})" for error in index.problems]
    paged, total = len(entries), len(entries) + len(wanted)

    def tell(read: int) -> None:
        advance(paged + read, total)

    for (lineage, _), name, seen in _read(workers, catalog, wanted, tell):
        if isinstance(seen, ArchiveError):
            problems.append(f"{seen} ({seen.hint})")
        elif seen is not None:
            entries[lineage.id, name] = seen
    return _Entries(entries, sorted(problems))


def _from_pages(index: Index, listed: Contents) -> Iterator[tuple[BinlogName, EntryRow | None]]:
    """The binlogs that have an entry, in order; None if no page has it."""
    for name in sorted(listed.binlogs.keys() & listed.entries.keys()):
        entry = index.entry(name, listed.entries[name].last_modified)
        if entry is not None and entry.size != listed.binlogs[name].size:
            entry = None
        yield name, _small(entry) if entry is not None else None


def _read(
    workers: Workers,
    catalog: Catalog,
    wanted: Sequence[tuple[_Listed, BinlogName]],
    tell: Callable[[int], None],
) -> Iterator[_Found]:
    """These entries, as they arrive; `tell` is called with how many have."""
    group = min(_MOST_GROUP, len(wanted) // (8 * workers.count) + 1)
    starts = range(0, len(wanted), group)
    tasks = {at: partial(_read_some, catalog, wanted[at : at + group]) for at in starts}
    done = 0
    for outcome in workers.batch(tasks):
        if outcome.error is not None:
            raise outcome.error
        found = cast("list[_Found]", outcome.value)
        done += len(found)
        tell(done)
        yield from found


def _read_some(catalog: Catalog, wanted: Sequence[tuple[_Listed, BinlogName]]) -> "list[_Found]":
    """Read some entries, one after the other, because waking a thread for each would be slow."""
    found: list[_Found] = []
    for listed, name in wanted:
        try:
            found.append((listed, name, _entry(catalog, *listed, name)))
        except ArchiveError as error:
            found.append((listed, name, error))
    return found


def _entry(
    catalog: Catalog, lineage: Lineage, listed: Contents, name: BinlogName
) -> EntryRow | None:
    size = listed.binlogs[name].size
    try:
        entry = catalog.entry(lineage, name)
    except ObjectMissingError:
        return None
    entry.check_size(lineage.id, size)
    return _small(entry.row)


def _small(entry: EntryRow) -> EntryRow:
    return replace(entry, formats=())


def _left_alone(foreign: Iterable[str]) -> list[str]:
    keys = sorted(foreign)
    shown = [f"ignored, not part of this archive's format: {key}" for key in keys[:_MOST_WARNINGS]]
    more = len(keys) - len(shown)
    return [*shown, *([f"and {more} more ignored objects"] if more else [])]


def _nothing(store: Store, config: ListConfig, target: str, seen: Sequence[str]) -> ArchiveError:
    if not seen:
        return nothing_of(store, config.s3.prefix, config.source, target)
    whose = f" of source {config.source}" if config.source else ""
    return ArchiveError(
        f"there is no lineage {config.lineage}{whose} below {target}",
        hint=f"there are: {', '.join(seen[-_MOST_NAMES:])}",
    )


# Lineages


def _listed(
    lineage: Lineage,
    contents: Contents,
    entries: _Entries,
    known: set[str],
    *,
    current: str,
    writer: Heartbeat | None,
) -> LineageListing:
    names = contents.names
    is_current = lineage.id == current
    binlogs = []
    for name in names:
        if name in contents.binlogs:
            entry = entries.found.get((lineage.id, name))
            state: State = "archived" if entry else "undescribed"
            size = contents.binlogs[name].size
            binlogs.append(Binlog(lineage=lineage, name=name, size=size, state=state, entry=entry))
        else:
            chunks = contents.chunks_of(name)
            beyond = [chunk.begin for chunk in chunks if chunk.begin > chunks.end]
            is_open = is_current and name == names[-1]
            binlogs.append(
                Binlog(
                    lineage=lineage,
                    name=name,
                    size=chunks.end,
                    state="open" if is_open else "unfinished",
                    hole=min(beyond, default=None),
                )
            )
    return LineageListing(
        lineage=lineage,
        current=is_current,
        parent_there=lineage.parent is None or lineage.parent.lineage in known,
        binlogs=tuple(binlogs),
        missing=tuple(missing_binlogs(lineage, names, writer)),
    )


# JSON


class PrintedBinlog(Printed):
    name: BinlogName
    size: int
    state: str
    hole: int | None
    least_commit_us: int | None = of("entry.least_commit_us")
    greatest_commit_us: int | None = of("entry.greatest_commit_us")
    reached_us: int | None = of("entry.reached_us")
    commit_times: str | None = of("entry.commit_times")
    gtid_set_added: str | None = of("entry.gtid_set_added")
    transactions: int | None = of("entry.transactions")
    damaged: tuple[Damage, ...] | None = of("entry.damaged")
    archived_at: When | None = of("entry.archived_at")


class PrintedFloor(Printed):
    binlog: BinlogName
    gtid_set: str
    raised_at: When


class PrintedMissing(Printed):
    first: BinlogName
    last: BinlogName
    count: int
    under_way: bool


class PrintedLineage(Printed):
    lineage: str = of("lineage.lineage")
    server: SourceServer = of("lineage.server")
    first_binlog: BinlogName = of("lineage.first_binlog")
    first_binlog_time: When = of("lineage.first_binlog_time")
    gtid_set: str = of("lineage.gtid_set")
    parent: Parent | None = of("lineage.parent")
    parent_there: bool
    current: bool
    floor: PrintedFloor | None = of("lineage.floor")
    missing: tuple[PrintedMissing, ...]
    binlogs: tuple[PrintedBinlog, ...]


class PrintedSource(Printed):
    source: str = of("name")
    lineages: tuple[PrintedLineage, ...] = of("lineages")


class PrintedListing(PrintedDocument):
    target: str
    sources: tuple[PrintedSource, ...]
