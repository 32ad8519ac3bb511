"""The recovery window of a source for `status`, and how old its newest base backup is.

A window begins at the oldest backup that `backup list` brings to now without a gap: the same
function says so.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from binlog2s3.archive.backups import Registered, look_up, runs_of
from binlog2s3.archive.catalog import Catalog
from binlog2s3.archive.drills import Drill, latest, newest
from binlog2s3.errors import ArchiveError, RecoveryError
from binlog2s3.formatting import duration_text, moment_of
from binlog2s3.recover.snapshot import Snapshot
from binlog2s3.retain.backup import Row, reaches_of_backup
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
    drills: Iterable[Drill] | None = None,
    rows: Sequence[Row] | None = None,
) -> Proofs:
    """Look at them; without a `snapshot`, not at the recovery window.

    `there`, `drills`: what the caller has read already, the newest drills first; `rows`: what all
    of the backups reach, if that is known. Else three listings, four with stored backups, and the
    backups up to one that reaches now are planned. Raises StoreError.
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
        if rows is None:
            planned = ((backup, reaches_of_backup(backup, snapshot)) for backup in backups)
        else:
            planned = (row for row in rows if row[0] in backups)
        window, why = _window(planned) if snapshot.lineages else (None, "")
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
    drill, at = proofs.drill, status.at
    troubles += _too_old(_NO_BACKUP, "newest base backup", proofs.backups.newest_at, at, max_age)
    if drill is None or not drill.failed:  # a failure is a trouble itself
        proven_at = drill.proven_at if drill is not None else None
        troubles += _too_old(_NO_PROOF, "last proof by a drill", proven_at, at, drill_max_age)
    return replace(status, backups=proofs.backups, drill=drill, troubles=tuple(troubles))


_NO_BACKUP = Trouble(
    code="backup",
    level="warning",
    text="no base backup is registered",
    hint="make a base backup: `binlog2s3 backup run`, or register one: `binlog2s3 backup add`",
)
_NO_PROOF = Trouble(
    code="drill",
    level="warning",
    text="no recovery was ever proved by a drill",
    hint="does the timer of `binlog2s3 drill` run? docs/drill.md",
)


def _too_old(
    none: Trouble, newest: str, newest_at: datetime | None, now: datetime, max_age: float | None
) -> list[Trouble]:
    """The trouble if there is none, or if the newest is older than `max_age`, if that matters."""
    if max_age is None:
        return []
    if newest_at is None:
        return [none]
    age = (now - newest_at).total_seconds()
    text = f"the {newest} is {duration_text(age)} old, more than {duration_text(max_age)}"
    return [replace(none, text=text)] if age > max_age else []


def _window(rows: Iterable[Row]) -> tuple[datetime | None, str]:
    """The earliest time that a backup can be brought to and on to now; or None, and why.

    The reason is that of the newest backup that counts. The oldest backup comes first.
    """
    why = ""
    for backup, reaches in rows:
        for reach in reaches:
            if reach.is_complete and reach.from_us is not None:
                return moment_of(reach.from_us), ""
        reason = reaches[0].why or "its end is in no archived history"
        why = reason if backup.name in reason else f"{backup.name}: {reason}"
    return None, why
