"""What killed runs of `backup run` left in the bucket: unfinished uploads, and objects.

Law: only what no document of a backup names, and no run that reports, is touched. It is listed
before runs and documents are: a run puts its object before its first upload, and its document
before it deletes that. An object is deleted a day after it was put, an upload is aborted at once.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from binlog2s3.archive.backups import BackupRun, runs_of
from binlog2s3.archive.catalog import Catalog, refuse_left
from binlog2s3.errors import UnsupportedError
from binlog2s3.store.contract import ObjectInfo, UploadInfo
from binlog2s3.store.versions import Hold
from binlog2s3.stream.remote import abort_uploads

_QUIET = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Bucket:
    """A source's part of the bucket.

    `now` is the earlier of two clocks, so that nothing looks older than it is. `hold_on` says how
    Object Lock keeps a key; None if the bucket has none, or may not be asked.
    """

    catalog: Catalog
    now: Callable[[], datetime]
    hold_on: Callable[[str], Hold] | None = None


@dataclass(slots=True, kw_only=True)
class Leftovers:
    """What runs left that failed. `objects` may be deleted; `kept` may not, for a reason each."""

    runs: list[BackupRun] = field(default_factory=list)
    """All runs: one that still works among them, if there is one."""
    uploads: list[UploadInfo] = field(default_factory=list)
    objects: list[ObjectInfo] = field(default_factory=list)
    kept: dict[str, str] = field(default_factory=dict)

    @property
    def working(self) -> BackupRun | None:
        """The run that works now."""
        return next((run for run in self.runs if run.state == "running"), None)

    @property
    def size(self) -> int:
        """The bytes of the objects that may be deleted."""
        return sum(info.size for info in self.objects)


def leftovers_of(bucket: Bucket) -> Leftovers:
    """Look for them."""
    catalog, now, hold_on = bucket.catalog, bucket.now(), bucket.hold_on
    layout = catalog.layout
    uploads = _uploads(catalog)
    objects = [*catalog.listed(layout.stored_backups, "stored")]
    found = Leftovers(runs=runs_of(catalog, now))
    for run in found.runs:  # a store may list uploads of whole keys only
        uploads += [] if run.state == "running" else _uploads_of(catalog, run.id, uploads)
    known = {run.id for run in found.runs if run.state == "running"}
    known.update(key.id for key, _ in catalog.listed(layout.backups, "backup"))
    found.uploads = [upload for upload in uploads if _is_left(catalog, upload.key, known)]
    for key, info in objects:
        if key.id in known:
            continue
        if info.last_modified > now - _QUIET:
            found.kept[info.key] = "it is younger than a day"
        elif hold_on is not None and (hold := hold_on(info.key)).keeps(now):
            found.kept[info.key] = "Object Lock keeps it"
            if hold.until is not None:
                found.kept[info.key] += f" until {hold.until:%Y-%m-%dT%H:%M:%SZ}"
        else:
            found.objects.append(info)
    return found


def clear(catalog: Catalog, left: Leftovers) -> None:
    """Abort the uploads and delete the objects. Raises StoreError."""
    for upload in left.uploads:
        catalog.store.abort_upload(upload.key, upload.upload_id)
    keys = [info.key for info in left.objects]
    if keys:
        catalog.store.delete(keys)
        refuse_left(catalog.store, keys)


def delete_stored(catalog: Catalog, id_: str) -> None:
    """Delete the objects of a backup whose document is gone. Raises StoreError if one is left."""
    keys = [info.key for info in catalog.store.list(catalog.layout.stored_folder(id_))]
    if keys:
        catalog.store.delete(keys)
        refuse_left(catalog.store, keys)
    abort_uploads(catalog.store, catalog.layout.stored(id_, 1))


def _is_left(catalog: Catalog, key: str, known: Collection[str]) -> bool:
    parsed = catalog.layout.parsed(key)
    return parsed is not None and parsed.kind == "stored" and parsed.id not in known


def _uploads(catalog: Catalog) -> list[UploadInfo]:
    try:
        return [*catalog.store.uploads_below(catalog.layout.stored_backups)]
    except UnsupportedError:
        return []


def _uploads_of(catalog: Catalog, id_: str, known: Collection[UploadInfo]) -> list[UploadInfo]:
    """The uploads of a run's first object that are not known yet."""
    ids = {upload.upload_id for upload in known}
    try:
        found = catalog.store.list_uploads(catalog.layout.stored(id_, 1))
    except UnsupportedError:
        return []
    return [upload for upload in found if upload.upload_id not in ids]
