"""The objects of `backup run`: who stores a base backup now, and why the last run failed.

A run puts its object before anything else, and again at each interval. One that registers its
backup deletes it; one that fails leaves it, with the reason, until a later run succeeds. One that
was killed is not renewed any more. A document that breaks the format is foreign.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import ClassVar, Literal

from binlog2s3.archive.backups import Backup
from binlog2s3.archive.catalog import Catalog
from binlog2s3.archive.codec import BackupId, Count, Document, Moment, SourceName, Text

INTERVAL_SECONDS = 30.0
DEAD_AFTER = timedelta(minutes=5)
"""A run that has not renewed its object for this long, by the store's clock, was killed."""
KILLED = "it was killed, or its host went down: it reports no more"

RunState = Literal["running", "failed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BackupRun(Document):
    """One run of `backup run`: the document of live/<source>/backups/.

    `id` is the backup's, `read_bytes` what its program has written. `at`: when it put this, by its
    own clock. `error`: why it failed, "" while it runs.
    """

    id: BackupId
    source: SourceName
    host: Text
    pid: Count
    version: Text
    tool: Text
    since: Moment
    at: Moment
    state: RunState = "running"
    read_bytes: Count = 0
    error: Text = ""

    MOST: ClassVar[int] = 1 << 16

    @property
    def key_end(self) -> tuple[str, ...]:
        return ("live", self.source, "backups", f"{self.id}.json")


def runs_of(catalog: Catalog, now: datetime) -> list[BackupRun]:
    """The runs of a source, oldest first; those that were killed have failed.

    `now` is by the store's clock. One listing, one small GET for each.
    """
    found = []
    for run, info in catalog.documents(catalog.layout.backup_runs, "backup-run", BackupRun):
        if run.state == "running" and info.last_modified < now - DEAD_AFTER:
            found.append(replace(run, state="failed", error=KILLED))
        else:
            found.append(run)
    return sorted(found, key=lambda run: (run.since, run.id))


def last_failure(runs: Sequence[BackupRun], backups: Iterable[Backup]) -> BackupRun | None:
    """The last run, if it failed; None if one has registered its backup since."""
    stored = {backup.id: backup for backup in backups if backup.stored is not None}
    since = max((backup.registered_at for backup in stored.values()), default=None)
    failed = [run for run in runs if run.state == "failed" and run.id not in stored]
    if not failed or (since is not None and failed[-1].at <= since):
        return None
    return failed[-1]
