"""Where to begin: what the bucket, the spool and the source say together at a start.

Place in the flow: the daemon asks once, before it claims anything. Everything is read from the
bucket and the spool; there is no state file.

Law: a start never splices two histories. What cannot be shown to go on where the archive ends is
refused, with nothing written.
"""

import secrets
from collections import deque
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from binlog2s3.binlog import BinlogName
from binlog2s3.catalog import Archived, Catalog, EntryEnd, Layout, Lineage, Position, lineage_id
from binlog2s3.config import Config, StreamConfig
from binlog2s3.errors import (
    ArchiveError,
    DamageError,
    GapError,
    SourceError,
    SpoolError,
)
from binlog2s3.grid import Grid
from binlog2s3.gtid import Gtids, MariadbGtidList, parse
from binlog2s3.log import Log
from binlog2s3.mysqlbinlog import Tool, find
from binlog2s3.place import Place, end_of
from binlog2s3.server import Server, ServerBinlog, ServerFacts
from binlog2s3.spool import Run, Spool
from binlog2s3.store import Store
from binlog2s3.tailer import Tailer, Track

_log = Log("start")
_LAST_FEW = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a start found: who the source is, where to go on, what the spool still has.

    `begin` is the binlog to ask the source for, `following` the first one that the archive lacks,
    `durable` where it ends; `undescribed` are archived binlogs whose entry a writer before us had
    no time to make, and which the source no longer has. `refused`: the source has purged `begin`,
    but the spool has binlogs that the bucket lacks, `adopted` and perhaps the first bytes of
    `begin`, `unfinished`; they may be the only copy. `in_parts`: archived binlogs whose uploads a
    writer before us may have had no time to clear away.
    """

    facts: ServerFacts
    tool: Tool
    layout: Layout
    lineage: Lineage | None
    undescribed: tuple[Track, ...]
    adopted: tuple[Track, ...]
    begin: BinlogName
    durable: Position | None
    following: BinlogName
    unfinished: Track | None = None
    refused: GapError | None = None
    in_parts: tuple[BinlogName, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """Where a lineage's archive ends: `next_binlog` is the first that it lacks.

    `last` is the one before and `end` its entry's end, both None if nothing is archived yet.
    `in_parts`: which of the last few were multipart uploads.
    """

    lineage: Lineage
    next_binlog: BinlogName
    last: BinlogName | None
    end: EntryEnd | None
    in_parts: tuple[BinlogName, ...] = ()


def target(config: Config) -> str:
    """Where the archive lies, for people and for the spool's own notes."""
    return f"s3://{config.s3.bucket}/{config.s3.prefix}".rstrip("/")


def prepare(config: Config, server: Server, store: Store, spool: Spool) -> Plan:
    """Everything that can be refused, refused before anything is written to the bucket."""
    source, grid = config.stream.source, Grid(config.s3.part_size)
    runs = spool.runs()
    check_spool(runs, source, target(config))
    spool.drop_prefixes()
    facts = server.facts()
    tool = find(facts.flavour, config.mysql.mysqlbinlog)
    oldest = first_binlog(replace(config.stream, start_binlog=None), server.binlogs())
    server.check_privileges(oldest)
    layout = Layout(config.s3.prefix, source)
    store.check_access(layout.archive)
    catalog = Catalog(store, layout)
    known = furthest(catalog, of_server(catalog.lineages(), facts, source))
    # behind the bucket: a writer at work may archive what the server has just closed
    listed = server.binlogs()
    undescribed: list[Track] = []
    if known is not None:
        undescribed = read_undescribed(store, layout, known, listed, grid)
        known = advance(known, undescribed)
    lineage = known.lineage if known else None
    for key in sorted(catalog.foreign):
        _log.warning("left alone: not of this archive's format", key=key)
    adopted, unfinished = adopt(
        runs, grid=grid, facts=facts, source=source, known=known, listed=listed
    )
    refused: GapError | None = None
    if known is None and not adopted:
        begin = first_binlog(config.stream, listed)
    else:
        so_far = advance(known or nothing_archived(facts, source, adopted[0]), adopted)
        begin = so_far.next_binlog
        there = begin in {row.name for row in listed}
        try:
            check_history(so_far, listed, server.previous_gtids(begin) if there else None)
        except GapError as error:
            if not adopted and unfinished is None:
                raise
            refused = error
    durable = None
    if known and known.last and known.end:
        after = gtids_at_end(known)
        durable = Position(
            binlog=str(known.last),
            offset=known.end.size,
            gtid_set=str(after) if after is not None else "",
        )
    return Plan(
        facts=facts,
        tool=tool,
        layout=layout,
        lineage=lineage,
        undescribed=tuple(undescribed),
        adopted=tuple(adopted),
        begin=begin,
        durable=durable,
        following=known.next_binlog if known else (adopted[0].name if adopted else begin),
        unfinished=unfinished,
        refused=refused,
        in_parts=known.in_parts if known else (),
    )


def nothing_archived(facts: ServerFacts, source: str, first: Track) -> Known:
    """What is known of a source whose first binlog is in the spool alone."""
    lineage = describe(facts, source, first)
    return Known(lineage=lineage, next_binlog=first.name, last=None, end=None)


def advance(known: Known, tracks: Iterable[Track]) -> Known:
    """What is known with these binlogs, which follow the archive, counted in."""
    for track in tracks:
        name = track.name
        known = replace(known, next_binlog=name.next(), last=name, end=end_of(track))
    return known


def breaks(known: Known, track: Track) -> str:
    """Why a binlog cannot be the one that follows the archive; "" if nothing speaks against it."""
    rotate, end = track.scanner.rotate, known.end
    if rotate is not None and rotate.next_binlog != str(track.name.next()):
        return f"it ends with a rotation to {rotate.next_binlog}"
    if end is not None and end.next_binlog not in (None, str(track.name)):
        return f"{known.last} ends with a rotation to {end.next_binlog}"
    before, expected = track.gtids_before(), gtids_at_end(known)
    if before is not None and expected is not None and before != expected:
        return f"it begins after {before or 'no GTIDs'}, not after {expected or 'none'}"
    return ""


def describe(facts: ServerFacts, source: str, first: Track) -> Lineage:
    """A new lineage of this server that begins with this binlog."""
    begun = datetime.fromtimestamp(first.scanner.formats[0].timestamp, UTC)
    before = first.gtids_before()
    return Lineage(
        id=lineage_id(begun, facts.uuid, secrets.token_hex(2)),
        source=source,
        server_uuid=facts.uuid,
        flavour=facts.flavour,
        server_version=facts.version,
        first_binlog=first.name,
        first_binlog_time=begun,
        gtid_set=str(before) if before is not None else "",
    )


def known_end(catalog: Catalog, archived: Archived) -> Known:
    """The end of the unbroken run of archived binlogs from a lineage's first one on."""
    name, last = archived.lineage.first_binlog, None
    in_parts: deque[BinlogName] = deque(maxlen=_LAST_FEW)
    while name in archived.binlogs and name in archived.entries:
        if "-" in archived.binlogs[name].etag:
            in_parts.append(name)
        name, last = name.next(), name
    return Known(
        lineage=archived.lineage,
        next_binlog=name,
        last=last,
        end=catalog.entry_end(archived.lineage, last) if last is not None else None,
        in_parts=tuple(in_parts),
    )


def read_undescribed(
    store: Store, layout: Layout, known: Known, listed: Iterable[ServerBinlog], grid: Grid
) -> list[Track]:
    """Archived binlogs behind the last entry, read back, as far as the source has them no more.

    What the source still has is asked for again and compared with the object instead. Raises
    ArchiveError for an object that cannot be the next binlog.
    """
    there = {row.name for row in listed}
    found: list[Track] = []
    while (name := known.next_binlog) not in there:
        key = layout.binlog(known.lineage.id, name)
        if store.head(key) is None:
            break
        track = read_back(store, key, name, grid)
        if why := breaks(known, track):
            raise ArchiveError(
                f"{key} cannot be the next binlog of this archive: {why}",
                hint="was it put there by something else? move it away",
            )
        found.append(track)
        known = advance(known, [track])
    return found


def of_server(lineages: Iterable[Lineage], facts: ServerFacts, source: str) -> list[Lineage]:
    """The lineages of this server, none where the source is new to the bucket.

    Raises SourceError if the bucket holds only another server's under this name.
    """
    all_ = list(lineages)
    ours = [lineage for lineage in all_ if lineage.server_uuid == facts.uuid]
    if all_ and not ours:
        raise SourceError(
            f"the bucket holds source {source} of server {all_[-1].server_uuid}; "
            f"this server is {facts.uuid}",
            hint="was --source copied from another machine? each server needs a name of its own",
        )
    return ours


def furthest(catalog: Catalog, lineages: Iterable[Lineage]) -> Known | None:
    """Of several lineages of one server the one whose archive reaches furthest."""
    ends = [known_end(catalog, catalog.archived(lineage)) for lineage in lineages]
    return max(ends, key=lambda known: (known.next_binlog, known.lineage.id), default=None)


def first_binlog(config: StreamConfig, listed: tuple[ServerBinlog, ...]) -> BinlogName:
    """The first binlog of an empty archive. Raises SourceError if the server does not have it."""
    names = [row.name for row in listed]
    if not names:
        raise SourceError("the server lists no binary logs", hint="is log_bin set?")
    if config.start_binlog is None:
        return names[-1] if config.start_at == "now" else names[0]
    if config.start_binlog not in names:
        raise SourceError(
            f"the server has no binlog {config.start_binlog}: it has {names[0]} to {names[-1]}",
            hint="give --start-binlog one of SHOW BINARY LOGS, or leave it out",
        )
    return config.start_binlog


def check_history(
    known: Known, listed: tuple[ServerBinlog, ...], previous_gtids: str | None
) -> None:
    """See that the server goes on where the archive ends; ArchiveError if it does not.

    `previous_gtids` are those of `known.next_binlog` on the server, None where it keeps none.
    """
    rows = {row.name: row for row in listed}
    name, end = known.next_binlog, known.end
    if name not in rows:
        raise _missing(known, listed)
    if known.last in rows and end is not None and rows[known.last].size != end.size:
        raise _another(known, f"{known.last} has {rows[known.last].size} bytes there, "
                       f"{end.size} in the archive")  # fmt: skip
    if end is not None and end.next_binlog not in (None, str(name)):
        raise _another(known, f"{known.last} ends with a rotation to {end.next_binlog}")
    before = gtids_at_end(known)
    if previous_gtids is None or before is None:
        return
    if parse(previous_gtids, known.lineage.flavour) != before:
        raise _another(
            known, f"{name} begins after {previous_gtids or 'no GTIDs'}, "
            f"the archive ends with {before or 'none'}"
        )  # fmt: skip


def gtids_at_end(known: Known) -> Gtids | None:
    """The GTID set where the archive ends, None where it cannot be known."""
    if known.last is None:
        return parse(known.lineage.gtid_set, known.lineage.flavour)
    if known.end is None or known.end.anonymous_transactions:
        return None
    before = parse(known.end.gtid_set_before, known.lineage.flavour)
    added = parse(known.end.gtid_set_added, known.lineage.flavour)
    if isinstance(before, MariadbGtidList) and isinstance(added, MariadbGtidList):
        return before.then(added)
    return before | added


def _missing(known: Known, listed: tuple[ServerBinlog, ...]) -> ArchiveError:
    names = [row.name for row in listed]
    if names and known.next_binlog < names[0]:
        return GapError(
            f"gap: the server has purged {known.next_binlog}, the next binlog of the archive; "
            f"its oldest is {names[0]}",
            hint="what was purged and is not in the bucket (the first bytes of that binlog may lie "
            "there as chunks, under live/) is lost to the archive: take a new base backup and "
            "stream under a new --source",
        )
    return _another(known, f"it has no {known.next_binlog}")


def _another(known: Known, why: str) -> ArchiveError:
    return ArchiveError(
        f"the server's history is not the archive's (lineage {known.lineage.id}): {why}",
        hint="was it reset or restored from a backup? stream it under a new --source; "
        "the archive stays as it is",
    )


def check_spool(runs: Iterable[Run], source: str, target: str) -> None:
    """See that the spool is this source's and this bucket's; SpoolError if not."""
    for run in runs:
        if (run.facts.source, run.facts.target) != (source, target):
            raise SpoolError(
                f"spool {run.directory.parent} holds binlogs of {run.facts.source} for "
                f"{run.facts.target}, not of {source} for {target}",
                hint="give each source and bucket a spool of its own: --spool",
            )


def adopt(
    runs: Iterable[Run],
    *,
    grid: Grid,
    facts: ServerFacts,
    source: str,
    known: Known | None,
    listed: Iterable[ServerBinlog],
) -> tuple[list[Track], Track | None]:
    """Closed binlogs that earlier runs left in the spool and the archive lacks, in order.

    From where the archive ends, without a break; without a lineage, from the first binlog of a run
    that had not found one either. What is open, damaged, not what the server lists, or without
    event checksums that would show damage (a power cut leaves holes: nothing in the spool was
    synced) is left: the source is asked again. Also the longest copy of the open binlog that
    follows them, for the case that the source does not have it any more.
    """
    rows = {row.name: row for row in listed}
    usable = (None, known.lineage.id if known else None)  # None: it died before it knew it
    tracks: list[Track] = []
    unfinished: Track | None = None
    for run in runs:
        if run.facts.server_uuid != facts.uuid or run.facts.lineage not in usable:
            continue
        begin = known.next_binlog if known else BinlogName.parse(run.facts.binlog)
        if begin not in run.files():
            continue
        for track in _checked_from(run, begin, grid):
            known = known or nothing_archived(facts, source, track)
            row = rows.get(track.name)
            why = breaks(known, track)
            closed = track.judge(rows)
            if closed and row is not None and row.size != track.size:
                why = f"it has {track.size} bytes, the server's {row.size}"
            if why:
                _log.warning("left in the spool, to be fetched again", error=f"{track.path}: {why}")
                return tracks, None
            if not closed:
                unfinished = max(track, unfinished or track, key=lambda copy: copy.size)
                break
            tracks.append(track)
            known, unfinished = advance(known, [track]), None
    if tracks:
        _log.info("taken from the spool", first=tracks[0].name, last=tracks[-1].name)
    return tracks, unfinished


def _checked_from(run: Run, begin: BinlogName, grid: Grid) -> list[Track]:
    """A run's binlogs from this one on, as far as their bytes are what their checksums say."""
    found: list[Track] = []
    with closing(Tailer(run, grid, begin)) as tailer:
        current = None
        try:
            while tailer.pump() or tailer.current is not current:
                current = tailer.current
                found += tailer.take_new()
        except (DamageError, ArchiveError) as error:
            _log.warning("left in the spool, to be fetched again", error=error)
    checked: list[Track] = []
    for track in found:
        if not track.begun or track.scanner.damage:
            break
        if any(form.checksum != "crc32" for form in track.scanner.formats):
            break
        checked.append(track)
    return checked


def read_back(store: Store, key: str, name: BinlogName, grid: Grid) -> Track:
    """A track of an archived binlog, from the object itself, to make the entry it lacks.

    Raises ArchiveError if the object is no whole binlog.
    """
    info = store.head(key)
    size = info.size if info else 0
    track = Track(name, Path(), grid)
    try:
        for block in store.open(key, 0, size):
            track.feed(memoryview(block))
    except DamageError as error:
        raise ArchiveError(f"{key} is damaged: {error}", hint="see the store's own logs") from error
    if track.size != size or not size:
        raise ArchiveError(f"{key} ends in the middle of an event at {track.size}")
    return track


def mend_entries(store: Store, plan: Plan, grid: Grid) -> None:
    """Make the entries that a writer before us had no time to write, from the objects."""
    for track in plan.undescribed:
        lineage = plan.lineage.id if plan.lineage else ""
        Place(store, plan.layout, lineage, grid, track).put_entry()
        _log.info("entry made from the archived binlog", binlog=track.name)


def sweep_spool(spool: Spool, plan: Plan) -> None:
    """Delete what a run before us archived but had no time to delete, and empty runs."""
    runs, lineage = spool.runs(), plan.lineage
    for name in {name for run in runs for name in run.files()} if lineage else ():
        if lineage and lineage.first_binlog <= name < plan.following:
            spool.release(name, lineage.id)
    spool.sweep(spool.runs())
