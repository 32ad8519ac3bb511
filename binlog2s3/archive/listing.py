"""Lists a source in the bucket: its lineages, their binlogs, and what is missing between them.

`gather` only reads, and returns values; `document` is their JSON; `inspect.list` prints them. If
one binlog cannot be read, it is reported, and the others are listed.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
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
from binlog2s3.archive.facts import Binlog, BinlogId
from binlog2s3.archive.history import MissingBinlogs, current_of, missing_binlogs, parents_first
from binlog2s3.archive.index import Index
from binlog2s3.archive.layout import Layout
from binlog2s3.archive.sources import nothing_of, sources
from binlog2s3.binlog.names import BinlogName
from binlog2s3.config.bucket import ListConfig
from binlog2s3.errors import ArchiveError, ObjectMissingError
from binlog2s3.store.s3 import Store
from binlog2s3.workers import Advance, Workers, unseen

ReadEntries = Callable[[Sequence[Binlog], int], Iterator[Binlog | ArchiveError]]
"""Binlogs with their entries; the number is of those that are known already."""

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
    store: Store, config: ListConfig, workers: Workers, advance: Advance = unseen
) -> Listing:
    """List every source that is asked for. Raises ArchiveError if there is nothing."""
    target = config.s3.url
    listing = Listing(target=target)
    names, foreign = [config.source or ""], list[str]()
    if not config.source:
        names, foreign = sources(store, config.s3.prefix)
    seen: list[str] = []
    for name in names:
        layout = Layout(config.s3.prefix, name)
        catalog = Catalog(store, layout)
        read = partial(_read, workers, advance, catalog)
        lineages = _look(catalog, name, config.lineage, listing, read)
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
    read: ReadEntries,
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
    problems: list[str] = []
    listed: list[LineageListing] = []
    wanted: list[Binlog] = []
    for lineage in lineages:
        if only not in (None, lineage.id):
            continue
        contents, index = catalog.contents(lineage), Index(catalog, lineage)
        is_current = lineage.id == current
        binlogs = tuple(_binlogs(lineage, contents, index, is_current=is_current))
        listed.append(
            LineageListing(
                lineage=lineage,
                current=is_current,
                parent_there=lineage.parent is None or lineage.parent.lineage in known,
                binlogs=binlogs,
                missing=tuple(missing_binlogs(lineage, contents.names, writer)),
            )
        )
        wanted += [
            binlog
            for binlog in binlogs
            if binlog.state == "undescribed" and binlog.name in contents.entries
        ]
        problems += [f"{error} ({error.hint})" for error in index.problems]
    if listed:
        listed = _with_entries(listed, wanted, read, problems)
        listing.warnings += sorted(problems)
        listing.sources.append(SourceListing(name=name, lineages=tuple(listed)))
    return lineages


def _with_entries(
    listed: Sequence[LineageListing],
    wanted: Sequence[Binlog],
    read: ReadEntries,
    problems: list[str],
) -> list[LineageListing]:
    """These lineages with the entries that no page has; those that cannot be used are problems."""
    paged = sum(binlog.entry is not None for lineage in listed for binlog in lineage.binlogs)
    described: dict[BinlogId, Binlog] = {}
    for seen in read(wanted, paged):
        if isinstance(seen, ArchiveError):
            problems.append(f"{seen} ({seen.hint})")
        else:
            described[seen.lineage.id, seen.name] = seen
    found = []
    for lineage in listed:
        id_ = lineage.lineage.id
        binlogs = tuple(described.get((id_, binlog.name), binlog) for binlog in lineage.binlogs)
        found.append(replace(lineage, binlogs=binlogs))
    return found


def _binlogs(
    lineage: Lineage, contents: Contents, index: Index, *, is_current: bool
) -> Iterator[Binlog]:
    """A lineage's binlogs in order; the archived ones with their entries, where a page has them."""
    names = contents.names
    for name in names:
        info = contents.binlogs.get(name)
        if info is None:
            chunks = contents.chunks_of(name)
            beyond = [chunk.begin for chunk in chunks if chunk.begin > chunks.end]
            yield Binlog(
                lineage=lineage,
                name=name,
                size=chunks.end,
                state="open" if is_current and name == names[-1] else "unfinished",
                hole=min(beyond, default=None),
            )
            continue
        binlog = Binlog(lineage=lineage, name=name, size=info.size, state="undescribed")
        written = contents.entries.get(name)
        entry = index.entry(name, written.last_modified) if written is not None else None
        is_right = entry is not None and entry.size == info.size
        yield _described(binlog, entry) if entry is not None and is_right else binlog


def _described(binlog: Binlog, entry: EntryRow) -> Binlog:
    return replace(binlog, state="archived", entry=replace(entry, formats=()))


def _read(
    workers: Workers, advance: Advance, catalog: Catalog, wanted: Sequence[Binlog], paged: int
) -> Iterator[Binlog | ArchiveError]:
    """These binlogs with their entries, as they arrive; those of `paged` others are known."""
    group = min(_MOST_GROUP, len(wanted) // (8 * workers.count) + 1)
    starts = range(0, len(wanted), group)
    tasks = {at: partial(_read_some, catalog, wanted[at : at + group]) for at in starts}
    done = 0
    for outcome in workers.batch(tasks):
        if outcome.error is not None:
            raise outcome.error
        found = cast("list[Binlog | ArchiveError]", outcome.value)
        done += len(found)
        advance(paged + done, paged + len(wanted))
        yield from found


def _read_some(catalog: Catalog, wanted: Sequence[Binlog]) -> list[Binlog | ArchiveError]:
    """Read some entries, one after the other, because waking a thread for each would be slow."""
    found: list[Binlog | ArchiveError] = []
    for binlog in wanted:
        try:
            entry = catalog.entry(binlog.lineage, binlog.name)
            entry.check_size(binlog.lineage.id, binlog.size)
            found.append(_described(binlog, entry.row))
        except ObjectMissingError:
            found.append(binlog)
        except ArchiveError as error:
            found.append(error)
    return found


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
