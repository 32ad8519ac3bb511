"""Lists a source in the bucket: its lineages, their binlogs, and what is missing between them.

`gather` only reads, and returns values; `document` is their JSON; `inspect.list` prints them. If
one binlog cannot be read, it is reported, and the others are listed.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, cast

from binlog2s3.archive.catalog import Archived, Catalog, Contents
from binlog2s3.archive.codec import as_fields
from binlog2s3.archive.documents import Facts, Lineage, LineageFloor
from binlog2s3.archive.history import MissingBinlogs, current_of, missing_binlogs, parents_first
from binlog2s3.archive.index import Index
from binlog2s3.archive.layout import Layout
from binlog2s3.archive.sources import nothing_of, sources
from binlog2s3.archive.writers import Heartbeat
from binlog2s3.binlog.names import BinlogName
from binlog2s3.config.bucket import ListConfig, url
from binlog2s3.errors import ArchiveError, ObjectMissingError
from binlog2s3.formatting import iso_text
from binlog2s3.store.s3 import Store
from binlog2s3.workers import Workers

FORMAT = 1
State = Literal["archived", "open", "unfinished", "undescribed"]
Advance = Callable[[int, int], None]
"""Called as entries arrive: how many of how many."""

_MOST_WARNINGS = 20
_MOST_NAMES = 20
_MOST_GROUP = 32  # entries that a thread reads between two reports


@dataclass(frozen=True, slots=True, kw_only=True)
class Binlog:
    """One binlog. `size` bytes can be read; `hole` is where chunks after a hole begin.

    `entry` is without its blocks and formats, which take most of the memory.
    """

    name: BinlogName
    size: int
    state: State
    entry: Facts | None = None
    hole: int | None = None


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
    entries_of: Callable[[Catalog, Sequence[Contents]], "_Entries"],
) -> list[Lineage]:
    """Add a source to the listing, if it has what was asked for; returns all of its lineages.

    It reads in the order that docs/format.md gives: writers, live/, archive/.
    """
    last = catalog.last_writer()
    writer = last.beat if last is not None else None
    if last is not None and last.error is not None:
        catalog.foreign.add(last.info.key)
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
    contents = [catalog.contents(one) for one in lineages if only in (None, one.id)]
    if contents:
        entries = entries_of(catalog, contents)
        listing.warnings += entries.problems
        listed = [_listed(one, entries, known, current=current, writer=writer) for one in contents]
        listing.sources.append(SourceListing(name=name, lineages=tuple(listed)))
    return lineages


_Found = tuple[Archived, BinlogName, Facts | ArchiveError | None]


@dataclass(frozen=True, slots=True)
class _Entries:
    """Entries by lineage and binlog, and the problems of those that cannot be used."""

    found: Mapping[tuple[str, BinlogName], Facts]
    problems: Sequence[str]


def _entries(
    workers: Workers,
    advance: Advance,
    index_of: Callable[[Lineage], Index],
    catalog: Catalog,
    contents: Sequence[Contents],
) -> _Entries:
    """All entries: from pages if possible, otherwise read, several at a time."""
    entries: dict[tuple[str, BinlogName], Facts] = {}
    problems: list[str] = []
    wanted: list[tuple[Archived, BinlogName]] = []
    for archived in (found.archived for found in contents):
        index = index_of(archived.lineage)
        for name, entry in _from_pages(index, archived):
            if entry is None:
                wanted.append((archived, name))
            else:
                entries[archived.lineage.id, name] = entry
        problems += [f"{error} ({error.hint})" for error in index.problems]
    paged, total = len(entries), len(entries) + len(wanted)

    def tell(read: int) -> None:
        advance(paged + read, total)

    for archived, name, seen in _read(workers, catalog, wanted, tell):
        if isinstance(seen, ArchiveError):
            problems.append(f"{seen} ({seen.hint})")
        elif seen is not None:
            entries[archived.lineage.id, name] = seen
    return _Entries(entries, sorted(problems))


def _from_pages(index: Index, archived: Archived) -> Iterator[tuple[BinlogName, Facts | None]]:
    """The binlogs that have an entry, in order; None if no page has it."""
    for name in sorted(archived.binlogs.keys() & archived.entries.keys()):
        entry = index.entry(name, archived.entries[name].last_modified)
        if entry is not None and entry.size != archived.binlogs[name].size:
            entry = None
        yield name, _small(entry) if entry is not None else None


def _read(
    workers: Workers,
    catalog: Catalog,
    wanted: Sequence[tuple[Archived, BinlogName]],
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


def _read_some(catalog: Catalog, wanted: Sequence[tuple[Archived, BinlogName]]) -> "list[_Found]":
    """Read some entries, one after the other, because waking a thread for each would be slow."""
    found: list[_Found] = []
    for archived, name in wanted:
        try:
            found.append((archived, name, _entry(catalog, archived, name)))
        except ArchiveError as error:
            found.append((archived, name, error))
    return found


def _entry(catalog: Catalog, archived: Archived, name: BinlogName) -> Facts | None:
    lineage, size = archived.lineage, archived.binlogs[name].size
    try:
        entry = catalog.entry(lineage, name)
    except ObjectMissingError:
        return None
    entry.check_size(lineage.id, size)
    return _small(entry.facts)


def _small(entry: Facts) -> Facts:
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
    contents: Contents,
    entries: _Entries,
    known: set[str],
    *,
    current: str,
    writer: Heartbeat | None,
) -> LineageListing:
    archived, lineage, names = contents.archived, contents.archived.lineage, contents.names
    is_current = lineage.id == current
    binlogs = []
    for name in names:
        if name in archived.binlogs:
            entry = entries.found.get((lineage.id, name))
            state: State = "archived" if entry else "undescribed"
            size = archived.binlogs[name].size
            binlogs.append(Binlog(name=name, size=size, state=state, entry=entry))
        else:
            chunks = contents.open[name]
            beyond = [chunk.begin for chunk in chunks if chunk.begin > chunks.end]
            is_open = is_current and name == names[-1]
            binlogs.append(
                Binlog(
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


def document(listing: Listing) -> dict[str, Any]:
    """The JSON document of --json, which docs/reference/list.md describes."""
    return {
        "format": FORMAT,
        "target": listing.target,
        "sources": [
            {
                "source": source.name,
                "lineages": [_lineage_document(listed) for listed in source.lineages],
            }
            for source in listing.sources
        ],
    }


def _lineage_document(listed: LineageListing) -> dict[str, Any]:
    lineage = listed.lineage
    written = as_fields(lineage)
    fields = ("lineage", "server", "first_binlog", "first_binlog_time", "gtid_set", "parent")
    return {
        **{name: written[name] for name in fields},
        "parent_there": listed.parent_there,
        "current": listed.current,
        "floor": _floor_document(lineage.floor),
        "missing": [
            {
                "first": str(missing.first),
                "last": str(missing.last),
                "count": missing.count,
                "under_way": missing.under_way,
            }
            for missing in listed.missing
        ],
        "binlogs": [_binlog_document(binlog) for binlog in listed.binlogs],
    }


def _floor_document(floor: LineageFloor | None) -> dict[str, str] | None:
    if floor is None:
        return None
    return {
        "binlog": str(floor.binlog),
        "gtid_set": floor.gtid_set,
        "raised_at": iso_text(floor.raised_at),
    }


_OF_ENTRY = (
    "least_commit_us",
    "greatest_commit_us",
    "reached_us",
    "commit_times",
    "gtid_set_added",
    "transactions",
    "damaged",
    "archived_at",
)


def _binlog_document(binlog: Binlog) -> dict[str, Any]:
    row = as_fields(binlog.entry) if binlog.entry is not None else {}
    return {
        "name": str(binlog.name),
        "size": binlog.size,
        "state": binlog.state,
        "hole": binlog.hole,
        **{name: row.get(name) for name in _OF_ENTRY},
    }
