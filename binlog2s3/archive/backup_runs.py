"""The objects of `backup run`: who stores a base backup now, and why the last run failed.

A run puts its object before anything else, and again at each interval. One that registers its
backup deletes it; one that fails leaves it, with the reason, until a later run succeeds. One that
was killed is not renewed any more. A document that breaks the format is foreign.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, ClassVar, Literal, Self

from binlog2s3.archive.backups import Backup
from binlog2s3.archive.catalog import Catalog, read
from binlog2s3.archive.fields import (
    FORMAT,
    backup_name,
    check_place,
    count,
    moment,
    parse,
    reading,
    render,
    source_name,
    text,
)
from binlog2s3.errors import ArchiveError, ObjectMissingError
from binlog2s3.formatting import iso_text

INTERVAL_SECONDS = 30.0
DEAD_AFTER = timedelta(minutes=5)
"""A run that has not renewed its object for this long, by the store's clock, was killed."""
KILLED = "it was killed, or its host went down: it reports no more"

RunState = Literal["running", "failed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BackupRun:
    """One run of `backup run`. `id` is the backup's, `read_bytes` what its program has written.

    `at`: when it put this, by its own clock. `error`: why it failed, "" while it runs.
    """

    id: str
    source: str
    host: str
    pid: int
    version: str
    tool: str
    since: datetime
    at: datetime
    state: RunState = "running"
    read_bytes: int = 0
    error: str = ""

    MOST: ClassVar[int] = 1 << 16

    def to_json(self) -> bytes:
        """The document of live/<source>/backups/."""
        return render(
            {
                "format": FORMAT,
                "id": self.id,
                "source": self.source,
                "host": self.host,
                "pid": self.pid,
                "version": self.version,
                "tool": self.tool,
                "since": iso_text(self.since),
                "at": iso_text(self.at),
                "state": self.state,
                "read_bytes": self.read_bytes,
                "error": self.error,
            }
        )

    @classmethod
    def from_json(cls, data: bytes, key: str) -> Self:
        """Read it; ArchiveError if it breaks the format, or has another key."""
        document = parse(data, key, cls.MOST)
        with reading(key):
            found = cls(
                id=backup_name(document["id"]),
                source=source_name(document["source"]),
                host=text(document["host"]),
                pid=count(document["pid"]),
                version=text(document["version"]),
                tool=text(document["tool"]),
                since=moment(document["since"]),
                at=moment(document["at"]),
                state=_state(document["state"]),
                read_bytes=count(document["read_bytes"]),
                error=text(document["error"]),
            )
        check_place(key, "live", found.source, "backups", f"{found.id}.json")
        return found


def _state(value: Any) -> RunState:
    if value not in ("running", "failed"):
        raise ValueError(f"{value!r:.40} is no state of a run")
    return "running" if value == "running" else "failed"


def runs_of(catalog: Catalog, now: datetime) -> list[BackupRun]:
    """The runs of a source, oldest first; those that were killed have failed.

    `now` is by the store's clock. One listing, one small GET for each.
    """
    found = []
    for info in [*catalog.store.list(catalog.layout.backup_runs)]:
        if catalog.layout.backup_run_id(info.key) is None:
            catalog.foreign.add(info.key)
            continue
        try:
            run = read(catalog.store, info.key, BackupRun)
        except ObjectMissingError:  # it has ended
            continue
        except ArchiveError:
            catalog.foreign.add(info.key)
            continue
        if run.state == "running" and info.last_modified < now - DEAD_AFTER:
            run = replace(run, state="failed", error=KILLED)
        found.append(run)
    return sorted(found, key=lambda run: (run.since, run.id))


def last_failure(runs: Sequence[BackupRun], backups: Iterable[Backup]) -> BackupRun | None:
    """The last run, if it failed; None if one has registered its backup since."""
    stored = {one.id: one for one in backups if one.stored is not None}
    since = max((one.registered_at for one in stored.values()), default=None)
    failed = [run for run in runs if run.state == "failed" and run.id not in stored]
    if not failed or (since is not None and failed[-1].at <= since):
        return None
    return failed[-1]
