"""The recovery window of a source for `status`, and how old its newest base backup is.

A window begins at the oldest backup that `backup list` brings to now without a gap: the same
function says so.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from binlog2s3.archive.backup_runs import runs_of
from binlog2s3.archive.backups import Backup, Registered, look_up
from binlog2s3.archive.catalog import Catalog
from binlog2s3.archive.drills import DrillResult, latest, newest
from binlog2s3.errors import ArchiveError, RecoveryError
from binlog2s3.formatting import duration_text, moment_of
from binlog2s3.recover.snapshot import Snapshot
from binlog2s3.retain.backup import reaches_of_backup
from binlog2s3.status.model import (
    BackupsStatus,
    DrillStatus,
    Status,
    Trouble,
    backups_of,
    drill_of,
)


@dataclass(frozen=True, slots=True)
class Proofs:
    """The registered base backups of a source, and what its drills have shown."""

    backups: BackupsStatus
    drill: DrillStatus | None


def proofs_of(
    catalog: Catalog,
    snapshot: Snapshot | None,
    *,
    there: Registered | None = None,
    drills: Iterable[DrillResult] | None = None,
) -> Proofs:
    """Look at them; without a `snapshot`, not at the recovery window.

    `there`, `drills`: what the caller has read already, the newest drills first. Else three
    listings, four with stored backups. Raises StoreError.
    """
    there = there or look_up(catalog)
    backups = there.restorable
    runs = runs_of(catalog, datetime.now(UTC))
    found = backups_of(backups, runs)
    drill = drill_of(*newest(latest(catalog) if drills is None else drills))
    if snapshot is None:
        return Proofs(found, drill)
    if there.unreadable:
        return Proofs(replace(found, window_why=str(there.unreadable[0])), drill)
    try:
        window, why = _window(backups, snapshot)
    except (ArchiveError, RecoveryError) as error:
        return Proofs(replace(found, window_why=str(error)), drill)
    known = replace(found, window_from=window, window_known=True, window_why=why)
    return Proofs(known, drill)


def with_proofs(
    status: Status, proofs: Proofs, *, max_age: float | None, drill_max_age: float | None = None
) -> Status:
    """The status with these, and a trouble for what is older than that."""
    # what the streamer says of drills is up to ten minutes old: these proofs are newer
    replaced = ("drill", "backup-run")
    troubles = [trouble for trouble in status.troubles if trouble.code not in replaced]
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
    hint = "make a base backup: `binlog2s3 backup run`, or register one: `binlog2s3 backup add`"
    return [Trouble(code="backup", level="warning", text=text, hint=hint)]


def _window(backups: Sequence[Backup], snapshot: Snapshot) -> tuple[datetime | None, str]:
    """The earliest time that a backup can be brought to and on to now; or None, and why.

    The reason is that of the newest backup that counts.
    """
    if not snapshot.lineages:
        return None, ""
    why = ""
    for backup in backups:  # oldest first
        reaches = reaches_of_backup(backup, snapshot)
        for reach in reaches:
            if reach.is_complete and reach.from_us is not None:
                return moment_of(reach.from_us), ""
        reason = reaches[0].why or "its end is in no archived history"
        why = reason if backup.name in reason else f"{backup.name}: {reason}"
    return None, why
