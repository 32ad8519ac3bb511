"""The registered base backups of a source, and who stores one now: their documents, and lists.

A backup's document is written once; `location` says where the backup itself is. A run of
`backup run` puts its object before anything else, and again at each interval. One that registers
its backup deletes it; one that fails leaves it, with the reason, until a later run succeeds. One
that was killed is not renewed any more. A document that breaks the format, or does not belong to
its key, is reported and ignored.
"""

import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import ClassVar, Literal

from binlog2s3.archive.catalog import Catalog, read
from binlog2s3.archive.codec import (
    BackupId,
    Count,
    Document,
    GtidText,
    LineageId,
    Moment,
    ServerUuid,
    SourceName,
    Text,
    later,
)
from binlog2s3.archive.layout import Layout
from binlog2s3.archive.stored import Stored
from binlog2s3.binlog.gtid import Flavour
from binlog2s3.binlog.names import BinlogName, FilePosition
from binlog2s3.errors import ArchiveError, ObjectMissingError

INTERVAL_SECONDS = 30.0
DEAD_AFTER = timedelta(minutes=5)
"""A run that has not renewed its object for this long, by the store's clock, was killed."""
KILLED = "it was killed, or its host went down: it reports no more"

RunState = Literal["running", "failed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Backup(Document):
    """A base backup: where it ends, and where it is. backups/<id>.json in the bucket.

    It ends after the transactions `gtid_set`, or at `position` of `binlog`, or both. `lineage`: the
    lineage of that place, if several could be meant. `tool` is a name for people. `taken_at`: when
    it was made; `registered_at`: when it was registered. `checked`: all of it was read then, and
    it is whole. `defects`: why it is no base backup of the whole server; `accepted`: why it was
    registered all the same, "" without defects. `settings` of the server that was backed up, each
    as `setting=value` (`server.applied`). `stored`: its stream, if the bucket has it.
    """

    id: BackupId
    source: SourceName
    label: Text
    location: Text
    tool: Text
    flavour: Flavour
    server_uuid: ServerUuid
    gtid_set: GtidText | None
    binlog: BinlogName | None
    position: Count | None
    lineage: LineageId | None
    taken_at: Moment
    registered_at: Moment
    checked: bool = False
    defects: tuple[Text, ...] = ()
    accepted: Text = ""
    settings: tuple[Text, ...] = later((), compare=True)
    stored: Stored | None = later(compare=True)

    MOST: ClassVar[int] = 16 << 20

    def __post_init__(self) -> None:
        if bool(self.defects) != bool(self.accepted):
            raise ValueError("it has defects that nobody accepted, or the other way round")
        if (self.binlog is None) != (self.position is None):
            raise ValueError("it has a binlog without a position, or the other way round")
        if self.gtid_set is None and self.binlog is None:
            raise ValueError("it has neither GTIDs nor a position")

    @property
    def key_end(self) -> tuple[str, ...]:
        return ("archive", self.source, "backups", f"{self.id}.json")

    @property
    def ends_at(self) -> FilePosition | None:
        """The position at which it ends; None if only its GTIDs say that."""
        if self.binlog is None or self.position is None:
            return None
        return FilePosition(self.binlog, self.position)

    @property
    def counts(self) -> bool:
        """Whether it is a base backup of the whole server, as far as anybody knows."""
        return not self.defects

    @property
    def name(self) -> str:
        """The backup in a message."""
        return f"backup {self.id}{f' ({self.label})' if self.label else ''}"


def new_id(now: datetime) -> str:
    """`<UTC time>-<8 random hex digits>`."""
    return f"{now.astimezone(UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(4)}"


def registered(catalog: Catalog, unreadable: list[ArchiveError] | None = None) -> list[Backup]:
    """The backups of a source, oldest first. One listing, one small GET for each.

    The error of one that cannot be read is added to `unreadable`, if that is given. So is that of
    one that is listed and not there, and listed again: a store may show it later.
    """
    found, missing = [], set[str]()
    for _, info in catalog.listed(catalog.layout.backups, "backup"):
        try:
            found.append(read(catalog.store, info.key, Backup))
        except ObjectMissingError:
            missing.add(info.key)
        except ArchiveError as error:
            if unreadable is not None:
                unreadable.append(error)
    if missing and unreadable is not None:
        listed = (info.key for info in catalog.store.list(catalog.layout.backups))
        unreadable += [
            ArchiveError(
                f"{key} is listed, and the store says that it is not there: it was removed just "
                "now, or the store shows late what is written"
            )
            for key in listed
            if key in missing  # others were removed meanwhile
        ]
    return sorted(found, key=lambda backup: (backup.taken_at, backup.id))


def lost_of(catalog: Catalog, backups: Sequence[Backup]) -> dict[str, str]:
    """What is wrong with each stored backup that the bucket does not have whole, by its id.

    By the sizes of its objects: one listing, if there are stored ones.
    """
    stored = [(backup, backup.stored) for backup in backups if backup.stored is not None]
    if not stored:
        return {}
    sizes = {info.key: info.size for info in catalog.store.list(catalog.layout.stored_backups)}
    found = dict[str, str]()
    for backup, what in stored:
        for _, why in lost_objects(catalog.layout, backup.id, what, sizes):
            found.setdefault(backup.id, f"{backup.name} cannot be restored: {why}")
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Registered:
    """The registered backups of a source at one look, oldest first.

    `unreadable`: the errors of those that cannot be read. `lost`: as `lost_of` says.
    """

    backups: Sequence[Backup]
    unreadable: Sequence[ArchiveError]
    lost: Mapping[str, str]

    @property
    def restorable(self) -> list[Backup]:
        """Those that count; of stored ones, those that the bucket has whole."""
        return [backup for backup in self.backups if backup.counts and backup.id not in self.lost]


def look_up(catalog: Catalog) -> Registered:
    """All registered backups. A small GET for each, and one or two listings."""
    unreadable: list[ArchiveError] = []
    backups = registered(catalog, unreadable)
    return Registered(backups=backups, unreadable=unreadable, lost=lost_of(catalog, backups))


def lost_objects(
    layout: Layout, id_: str, stored: Stored, sizes: Mapping[str, int]
) -> Iterator[tuple[str, str]]:
    """The objects of a stored backup that are missing, or have another size, and what is wrong.

    `sizes` of those that are there, by key.
    """
    for number, stored_object in enumerate(stored.objects, 1):
        key = layout.stored(id_, number)
        if (size := sizes.get(key)) is None:
            yield key, f"{key} is missing"
        elif size != stored_object.size:
            yield key, f"{key} has {size} bytes, not {stored_object.size}"


def one_of(backups: Sequence[Backup], id_: str) -> Backup:
    """The backup with this id or label, or the only one whose id begins so. Raises ArchiveError."""
    found = id_of({backup.id: backup.label for backup in backups}, id_)
    return next(backup for backup in backups if backup.id == found)


def id_of(labels: Mapping[str, str], named: str, *, exact: bool = False) -> str:
    """The only id that is this one, or has this label, or (not `exact`) begins so.

    `labels`: of each id, "" if it has none. Raises ArchiveError.
    """
    ids = list(labels)
    found = [id_ for id_ in ids if id_ == named]
    found = found or [id_ for id_ in ids if named and labels[id_] == named]
    near = [id_ for id_ in ids if named and id_.startswith(named)]
    if not found and not exact:
        found = near
    if len(found) == 1:
        return found[0]
    if found:
        what, hint = f"{named} is the name of {len(found)} backups", "give the whole id: "
    elif near:
        what, hint = f"{named} is only the beginning of an id", "give the whole id or the label: "
    else:
        what, hint = f"no backup {named} is registered", "registered: "
    shown = ", ".join(
        f"{id_} ({labels[id_]})" if labels[id_] else id_ for id_ in (found or near or ids)[-5:]
    )
    raise ArchiveError(what, hint=f"{hint}{shown or 'none'}; see `binlog2s3 backup list`")


# Runs


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
