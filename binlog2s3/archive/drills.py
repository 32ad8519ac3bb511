"""The results of drills: their documents, and the newest of them.

A document is written once. One that breaks the format, or does not belong to its key, proves
nothing.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from typing import ClassVar, Literal

from binlog2s3.archive.backups import Backup
from binlog2s3.archive.catalog import Catalog, read
from binlog2s3.archive.codec import (
    BackupId,
    Count,
    Document,
    LineageId,
    Moment,
    SourceName,
    Text,
)
from binlog2s3.binlog.names import BinlogName
from binlog2s3.errors import ArchiveError, ObjectMissingError

Outcome = Literal["proved", "failed"]
DrillStep = Literal["choose", "restore", "start", "apply", "check"]
ON_TRUST = "on trust"
"""Instead of what has shown it: the operator says that the registered backup was restored."""
_MOST_READ = 30
"""So many results are read, the newest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrillResult(Document):
    """What one drill has shown: drills/<id>.json in the bucket.

    `step` and `error` say where and why it failed. `backup` is the id of the registered base
    backup. `goal` is `now` or the time that was asked for. The recovery ended at `position` of
    `binlog`, and has everything that was committed until `proven_until`. `transactions` were
    applied, `tables` were checked by CHECK TABLE, `statements` of the operator were true.
    `restored`: what has shown that the registered backup was restored; "" if it failed before, or
    an older version did it; `ON_TRUST` if nothing has. `doubts`: why the rows may not be those
    of the source although the goal was reached.
    """

    id: BackupId
    source: SourceName
    outcome: Outcome
    step: DrillStep | None
    error: Text
    backup: BackupId | None
    label: Text
    goal: Text
    lineage: LineageId | None
    binlog: BinlogName | None
    position: Count | None
    proven_until: Moment | None
    transactions: Count
    tables: Count
    statements: Count
    restored: Text = ""
    doubts: tuple[Text, ...] = ()
    server_version: Text
    host: Text
    version: Text
    started_at: Moment
    finished_at: Moment

    MOST: ClassVar[int] = 1 << 20

    @property
    def is_proved(self) -> bool:
        """Whether the recovery succeeded and was checked."""
        return self.outcome == "proved"

    @property
    def is_of_backup(self) -> bool:
        """Whether something has shown that the registered backup was restored, and no other one."""
        return self.restored not in ("", ON_TRUST)

    @property
    def says_something(self) -> bool:
        """Whether it says something of its backup.

        One that failed before it restored a backup does not, nor one that may have restored
        another.
        """
        return self.is_of_backup if self.is_proved else self.step != "choose"

    @property
    def seconds(self) -> float:
        """How long it took."""
        return (self.finished_at - self.started_at).total_seconds()

    @property
    def key_end(self) -> tuple[str, ...]:
        return ("archive", self.source, "drills", f"{self.id}.json")


@dataclass(frozen=True, slots=True)
class UnreadDrill:
    """A result that cannot be read, as the store shows it: its drill may have failed."""

    key: str
    written_at: datetime


Drill = DrillResult | UnreadDrill


def newest(
    results: Iterable[Drill],
) -> tuple[DrillResult | None, DrillResult | None, UnreadDrill | None]:
    """The newest result, the newest one that proved a recovery, and an unread one after that.

    Each None if there is none.
    """
    last: DrillResult | None = None
    unread: UnreadDrill | None = None
    for drill in results:
        if isinstance(drill, UnreadDrill):
            unread = unread or drill
            continue
        last = last or drill
        if drill.is_proved:
            return last, drill, unread
    return last, None, unread


def latest(catalog: Catalog) -> Iterator[Drill]:
    """The newest results, at most 30, the newest first.

    One listing, and one small GET for each that is taken.
    """
    return islice(_looked_up(catalog), _MOST_READ)


def last_of(results: Iterable[Drill], backup: Backup) -> Drill | None:
    """The newest result that says something of this base backup, or that may, and is unread."""
    return next((drill for drill in results if _may_tell(drill, backup)), None)


def _may_tell(drill: Drill, backup: Backup) -> bool:
    if isinstance(drill, UnreadDrill):
        return backup.registered_at <= drill.written_at
    return drill.backup == backup.id and drill.says_something


def verdicts_of(catalog: Catalog, backups: Sequence[Backup]) -> dict[str, bool]:
    """Of each of these base backups that a drill has tried: whether the last one proved it.

    One that cannot be read may have failed, with any backup that was registered by then.
    One listing, and one small GET for each result since the oldest backup was registered, until
    there is one of each backup.
    """
    wanted, found = {backup.id: backup for backup in backups}, dict[str, bool]()
    since = min(
        (backup.registered_at for backup in backups), default=datetime.max.replace(tzinfo=UTC)
    )
    for drill in _looked_up(catalog):
        if not wanted or (isinstance(drill, DrillResult) and drill.finished_at < since):
            break
        for backup in [backup for backup in wanted.values() if _may_tell(drill, backup)]:
            found[backup.id] = isinstance(drill, DrillResult) and drill.is_proved
            del wanted[backup.id]
    return found


def _looked_up(catalog: Catalog) -> Iterator[Drill]:
    """The results, the newest first."""
    for _, info in reversed([*catalog.listed(catalog.layout.drills, "drill")]):
        try:
            yield read(catalog.store, info.key, DrillResult)
        except (ObjectMissingError, ArchiveError):
            yield UnreadDrill(info.key, info.last_modified)
