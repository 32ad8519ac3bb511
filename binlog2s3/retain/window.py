"""The recovery window of a source for `status`, and how old its newest base backup is.

A status is asked for often, so this follows the route of `pitr` and reads few entries; `backup
list` makes plans. A window begins at the oldest backup after which no binlog of the current history
is missing.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from binlog2s3.archive.backups import Backup, registered
from binlog2s3.archive.catalog import Catalog
from binlog2s3.archive.drills import newest
from binlog2s3.archive.layout import Layout
from binlog2s3.binlog.executed import executed
from binlog2s3.binlog.gtid import Gtids
from binlog2s3.binlog.place import ExecutedPart, NoPlaceError
from binlog2s3.errors import ArchiveError, RecoveryError
from binlog2s3.formatting import duration_text, moment_of
from binlog2s3.recover.backup import start_of_registered
from binlog2s3.recover.origin import unlogged_at
from binlog2s3.recover.reach import earliest_us
from binlog2s3.recover.route import Route, RouteExecuted, RouteGtids
from binlog2s3.recover.snapshot import Survey
from binlog2s3.status.model import (
    BackupsStatus,
    DrillStatus,
    Status,
    Trouble,
    backups_of,
    drill_of,
)
from binlog2s3.store.contract import Store
from binlog2s3.workers import Workers


@dataclass(frozen=True, slots=True)
class Proofs:
    """The registered base backups of a source, and what its drills have shown."""

    backups: BackupsStatus
    drill: DrillStatus | None


def proofs_of(store: Store, prefix: str, source: str, workers: Workers | None) -> Proofs:
    """Look at them; without `workers`, not at the recovery window, which needs more of the archive.

    Two listings if there are none. Raises StoreError.
    """
    catalog = Catalog(store, Layout(prefix, source))
    backups = registered(catalog)
    window = None
    if backups and workers is not None:
        try:
            window = _window(backups, Survey(store, catalog, workers))
        except (ArchiveError, RecoveryError):  # what is wrong with the archive is said elsewhere
            window = None
    return Proofs(backups_of(backups, window), drill_of(*newest(catalog)))


def with_proofs(
    status: Status, proofs: Proofs, *, max_age: float | None, drill_max_age: float | None = None
) -> Status:
    """The status with these, and a trouble for what is older than that."""
    # what the streamer says of drills is up to ten minutes old: these proofs are newer
    troubles = [trouble for trouble in status.troubles if trouble.code != "drill"]
    troubles += _troubles(status, proofs.backups.newest_at, max_age)
    troubles += _drill_troubles(status, proofs.drill, drill_max_age)
    return replace(status, backups=proofs.backups, drill=proofs.drill, troubles=tuple(troubles))


def _drill_troubles(
    status: Status, drill: DrillStatus | None, max_age: float | None
) -> list[Trouble]:
    if max_age is None or (drill is not None and drill.failed):  # a failure is a trouble itself
        return []
    if drill is None or drill.proven_at is None:
        text = "no recovery was ever proved by a drill"
    else:
        age = (status.at - drill.proven_at).total_seconds()
        if age <= max_age:
            return []
        text = f"the last proof by a drill is {duration_text(age)} old, more than "
        text += duration_text(max_age)
    hint = "does the timer of `binlog2s3 drill` run? docs/drill.md"
    return [Trouble(code="drill", level="warning", text=text, hint=hint)]


def _troubles(status: Status, newest: datetime | None, max_age: float | None) -> list[Trouble]:
    if max_age is None:
        return []
    if newest is None:
        text = "no base backup is registered"
    else:
        age = (status.at - newest).total_seconds()
        if age <= max_age:
            return []
        text = f"the newest base backup is {duration_text(age)} old, more than "
        text += duration_text(max_age)
    hint = "make a base backup and register it: `binlog2s3 backup add`"
    return [Trouble(code="backup", level="warning", text=text, hint=hint)]


def _window(backups: Sequence[Backup], survey: Survey) -> datetime | None:
    """The earliest time that a backup can be brought to and on to now; None if there is none."""
    if not survey.lineages:
        return None
    route = Route(survey, survey.current)
    if not len(route):
        return None
    unbroken = max((n for n, one in enumerate(route.stretches) if one.broken), default=0)
    gtids, found = RouteGtids(route), list[int]()
    for backup in backups:
        try:
            start = start_of_registered(backup, route.flavour)
        except RecoveryError:
            continue
        have: ExecutedPart | None = None
        if start.gtids is not None:
            try:
                stands = gtids.executed(start.gtids)
            except NoPlaceError:
                continue
            number, offset, have = stands.start, 0, stands.part
            if number is None or _has_more(start.gtids, stands, gtids.from_stretch(number)):
                continue  # it has something of another history
            if unlogged_at(route, stands, start) is not None:
                continue  # it may lack rows that are in no binlog
        elif start.place is not None:
            number = max(route.numbers_of(*start.place), default=None)
            offset = start.place[1]
        if number is not None and number >= unbroken:
            found.append(earliest_us(route, number, offset, have))
    return moment_of(min(found)) if found else None


def _has_more(have: Gtids, stands: RouteExecuted, everything: Gtids | None) -> bool:
    if stands.places is not None:
        return bool(stands.places.extra)
    return everything is None or bool(executed(have).beyond(everything))
