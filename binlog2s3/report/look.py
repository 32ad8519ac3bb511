"""Reads what the page shows: what `status`, `list`, `backup list` and the drills say.

Law: nothing is judged or computed here that another command says, too. The page and the commands
cannot disagree about what can be recovered, because the same functions say it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial

from binlog2s3.archive.backups import look_up
from binlog2s3.archive.catalog import Catalog
from binlog2s3.archive.drills import Drill, latest
from binlog2s3.archive.layout import Layout
from binlog2s3.archive.listing import LineageListing, gather
from binlog2s3.archive.sources import nothing_of
from binlog2s3.config.bucket import ListConfig
from binlog2s3.config.report import ReportConfig
from binlog2s3.errors import ArchiveError, RecoveryError, StoreError
from binlog2s3.recover.snapshot import Snapshot
from binlog2s3.retain.backup import Row, listed
from binlog2s3.retain.window import proofs_of, with_proofs
from binlog2s3.status.from_bucket import look, look_all, read_expected, unread
from binlog2s3.status.model import Status, urgency
from binlog2s3.store.contract import Store
from binlog2s3.workers import Advance, Workers, unseen


@dataclass(frozen=True, slots=True, kw_only=True)
class Looked:
    """What was read of one source. `notes`: what could not be read, or was ignored."""

    status: Status
    lineages: Sequence[LineageListing] = ()
    backups: Sequence[Row] = ()
    drills: Sequence[Drill] = ()
    notes: Sequence[str] = ()


def look_at(
    store: Store,
    config: ReportConfig,
    workers: Workers,
    now: datetime,
    advance: Advance = unseen,
) -> list[Looked]:
    """The named source, or all of them, the worst first.

    Of many sources, one that cannot be read is `unknown`. Raises StoreError, ArchiveError if there
    is nothing to show, and ConfigError for the file of --expect.
    """
    read = partial(_one, store, config, workers, now, advance)
    if config.source is not None:
        return [read(config.source)]
    expected = read_expected(config.expect) if config.expect else None
    prefix, target = config.s3.prefix, config.s3.url
    glances = look_all(store, prefix, target, workers, now=now, expect=expected)
    if not glances:
        raise nothing_of(store, prefix, None, target)
    found = []
    for glance in glances:
        is_absent = any(trouble.code == "missing" for trouble in glance.troubles)
        if glance.ignored or is_absent:  # not looked at
            found.append(Looked(status=glance))
            continue
        try:
            found.append(read(glance.source))
        except (StoreError, ArchiveError) as error:
            found.append(Looked(status=unread(glance.source, glance.target, now, error)))
    return sorted(found, key=lambda looked: urgency(looked.status))


def _one(
    store: Store,
    config: ReportConfig,
    workers: Workers,
    now: datetime,
    advance: Advance,
    source: str,
) -> Looked:
    prefix = config.s3.prefix
    status = look(store, prefix, source, config.s3.url, now=now)
    catalog = Catalog(store, Layout(prefix, source))
    snapshot = Snapshot(catalog, workers)
    there, drills = look_up(catalog), [*latest(catalog)]
    rows: Sequence[Row] | None = None
    unlisted: list[str] = []
    try:
        rows = listed(there, snapshot)
    except (ArchiveError, RecoveryError) as error:
        unlisted.append(str(error))
    status = with_proofs(
        status,
        proofs_of(catalog, snapshot, there=there, drills=drills, rows=rows),
        max_age=config.backup_max_age,
        drill_max_age=config.drill_max_age,
    )
    notes: list[str] = []
    lineages: Sequence[LineageListing] = ()
    try:
        listing = gather(store, ListConfig(s3=config.s3, source=source), workers, advance)
    except ArchiveError as error:
        notes.append(str(error))
    else:
        lineages = [each for source in listing.sources for each in source.lineages]
        notes += listing.warnings
    return Looked(
        status=status,
        lineages=lineages,
        backups=rows or (),
        drills=drills,
        notes=[*notes, *unlisted],
    )
