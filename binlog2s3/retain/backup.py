"""`binlog2s3 backup`: registers base backups, and lists what each one reaches.

Law: only the document is written or deleted, never a backup that is elsewhere; what `backup run`
has stored is deleted after its document. A backup to which nothing in the archive can be applied is
not registered; one that does not have the whole server is only if its operator accepts that, and
counts nowhere then.
"""

import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Annotated, BinaryIO

from binlog2s3.archive.backups import Backup, Registered, id_of, look_up, new_id, one_of, registered
from binlog2s3.archive.catalog import Catalog, refuse_left
from binlog2s3.archive.codec import (
    AsText,
    Crc64,
    Printed,
    PrintedDocument,
    TextOrNull,
    When,
    as_printed,
    members,
    of,
    printed,
)
from binlog2s3.archive.evidence import Evidence
from binlog2s3.archive.layout import Layout
from binlog2s3.archive.stored import Stored, read_stored
from binlog2s3.binlog.gtid import Flavour
from binlog2s3.binlog.names import FilePosition
from binlog2s3.config.backup import Action, BackupConfig
from binlog2s3.config.bucket import for_writing
from binlog2s3.config.outside import OUTSIDE, Outside
from binlog2s3.errors import ArchiveError, RecoveryError
from binlog2s3.formatting import (
    count_text,
    duration_text,
    gtids_text,
    iso_text,
    moment_of,
    moment_text,
    size_text,
)
from binlog2s3.output import Column, Field, Plain, Table, confirm, page_on, say
from binlog2s3.progress import progress_of
from binlog2s3.recover.backup import (
    examined,
    refuse_defects,
    start_of_gtids,
    start_of_registered,
)
from binlog2s3.recover.backup_format import BackupPoint
from binlog2s3.recover.origin import innodb_lacks, lineages_of
from binlog2s3.recover.reach import BackupReach, is_ahead, reaches_of
from binlog2s3.recover.route import history_flavour
from binlog2s3.recover.snapshot import Snapshot, snapshot_of
from binlog2s3.retain.leftovers import delete_stored
from binlog2s3.status.writer_state import last_report, life_sign
from binlog2s3.store.s3 import opened
from binlog2s3.store.versions import Hold
from binlog2s3.stream.remote import put_once
from binlog2s3.workers import Workers

_ROOM = 10
_LOOK_SECONDS = 2.0
_WAIT_SECONDS = 30.0
_SKEW = timedelta(minutes=5)
MOST_DEFECTS = 20
_WORDS = 12
_COLUMNS = (
    Column(name="id"),
    Column(name="label", least=_WORDS),
    Column(name="taken", least=_WORDS),
    Column(name="tool"),
    Column(name="reaches", least=_WORDS),
    Column(name="ends at", least=len("3e11fa47-71ca-11e1-9e33-c80aa9429562:1-9")),
    Column(name="location", least=2 * _WORDS),
)
_BELOW = ("counts", "accepted", "stored", "checked", "reaches", "")
"""The fields of a backup that stand below the table, if it does not reach now."""
Row = tuple[Backup, list[BackupReach]]
"""A backup, and what it can be brought to: see `reaches_of`."""


def run(config: BackupConfig, action: Action, id_: str | None, outside: Outside = OUTSIDE) -> int:
    """Run the command; the exit code. Raises StoreError, ArchiveError, RecoveryError."""
    s3 = for_writing(config.s3)
    with opened(s3, evidence=Evidence, session=outside.session) as store:
        catalog = Catalog(store, Layout(config.s3.prefix, config.source))
        if action == "remove":
            remove(catalog, id_ or "", store.settings.holds(), yes=config.yes)
            return 0
        if action == "get":
            get(catalog, id_ or "", sys.stdout.buffer)
            return 0
        with progress_of("entries") as advance:
            workers = Workers(config.s3.threads)
            look = partial(snapshot_of, catalog, workers, config.s3.url, advance=advance)
            is_new = action == "add"
            note, style = "", ""
            if action == "add":
                row, is_new = add(config, catalog, look)
                rows = [row]
            else:
                snapshot = look()
                rows = listed(look_up(catalog), snapshot)
                if not catalog.has_retired:
                    sign = life_sign(catalog, outside.now())
                    note, style = last_report(sign), "" if sign.alive else "yellow"
        for text in store.version_notes():
            say("warning", text)
    if config.as_json:
        print_json(config.source, rows)
    else:
        print_rows(config.source, rows, is_new=is_new, is_one=action == "add")
        if note:
            page = page_on(sys.stdout)
            page.line("")
            page.line(note, style)
    return 0


def reaches_of_backup(backup: Backup, snapshot: Snapshot) -> list[BackupReach]:
    """What a registered backup can be brought to, as `reaches_of` says it."""
    try:
        start = start_of_registered(backup, history_flavour(snapshot, backup.lineage))
    except RecoveryError as error:
        return [BackupReach(is_complete=False, why=str(error), hint=error.hint)]
    return reaches_of(start, snapshot)


def listed(there: Registered, snapshot: Snapshot) -> list[Row]:
    """The registered backups, oldest first. Those that cannot be read are warned of."""
    for error in there.unreadable:
        say("warning", f"{error}; it is not listed")
    lost = there.lost
    return [
        (
            backup,
            [_nothing(lost[backup.id])]
            if backup.id in lost
            else reaches_of_backup(backup, snapshot),
        )
        for backup in there.backups
    ]


def _nothing(why: str) -> BackupReach:
    return BackupReach(is_complete=False, why=why, hint="`backup remove` forgets it")


# Reading, adding and removing


def get(catalog: Catalog, named: str, out: BinaryIO) -> None:
    """Write the stream of the stored backup with this id or label, checked and decompressed.

    Raises ArchiveError if there is no such backup, or it is damaged; RecoveryError if the bucket
    does not have it, or `out` is a terminal or takes no more.
    """
    backup = one_of(registered(catalog), named)
    if backup.stored is None:
        where = f": it is at {backup.location}" if backup.location else ""
        raise RecoveryError(
            f"{backup.name} is only registered here{where}",
            hint="`backup get` is for what `backup run` stored",
        )
    if out.isatty():
        raise RecoveryError(
            "the backup is not written to a terminal",
            hint="redirect it: binlog2s3 backup get ... > FILE, or into the restoring program",
        )
    with progress_of("bytes of the base backup") as advance:
        try:
            out.writelines(
                read_stored(catalog.store, catalog.layout, backup.id, backup.stored, advance)
            )
            out.flush()
        except OSError as error:
            raise RecoveryError(
                f"the backup could not be written: {error.strerror}",
                hint="what was written so far is only its begin",
            ) from error


def add(
    config: BackupConfig,
    catalog: Catalog,
    look: Callable[[], Snapshot],
    *,
    sleep: Callable[[float], object] = time.sleep,
) -> tuple[Row, bool]:
    """Register the backup that the options describe, and whether it is new.

    Waits until the archive has all that the backup contains, at most `config.wait`. Raises
    RecoveryError if it does not get there, or if nothing can be applied to the backup.
    """
    snapshot, now = look(), datetime.now(UTC)
    backup, innodb = _described(config, now, history_flavour(snapshot, config.from_lineage))
    for known in registered(catalog):
        if _is_same(known, backup, timed=_time_is_known(config)):
            if backup.label not in ("", known.label):
                say(
                    "warning",
                    f"{known.name} keeps its label; `backup remove` and `backup add` change it",
                )
            return (known, reaches_of_backup(known, snapshot)), False
    wait = _WAIT_SECONDS if config.wait is None else config.wait
    backup, reaches, snapshot = reachable(
        backup, snapshot, look, wait=wait if _is_written(catalog) else 0.0, sleep=sleep
    )
    base = start_of_registered(backup, backup.flavour).base
    lacks = innodb_lacks(replace(base, innodb=innodb), snapshot) if base is not None else ""
    backup = _accepted(config, backup, (*backup.defects, *filter(None, [lacks])))
    put_once(catalog.store, catalog.layout.backup(backup.id), backup)
    return (backup, reaches), True


def reachable(
    backup: Backup,
    snapshot: Snapshot,
    look: Callable[[], Snapshot],
    *,
    wait: float,
    sleep: Callable[[float], object],
) -> tuple[Backup, list[BackupReach], Snapshot]:
    """The backup with its lineage, and what it reaches, once the archive has all that it contains.

    Waits for that at most `wait` seconds. Raises RecoveryError if it does not get there, or if
    nothing can be applied to the backup.
    """
    while True:
        if backup.lineage is None:
            backup = replace(backup, lineage=_lineage_of(backup, snapshot))
        reaches = reaches_of_backup(backup, snapshot)
        if reaches[0].lineage:
            return backup, reaches, snapshot
        behind = is_ahead(start_of_registered(backup, backup.flavour), snapshot)
        if not behind or wait <= 0:
            raise _unusable(backup, reaches[0], behind=behind)
        sleep(min(_LOOK_SECONDS, wait))
        wait -= _LOOK_SECONDS
        snapshot = look()


def _unusable(backup: Backup, reach: BackupReach, *, behind: bool) -> RecoveryError:
    """Why a backup is not registered: nothing could be applied to it."""
    why = reach.why.replace(backup.name, "it")
    if not behind:
        return RecoveryError(f"this backup cannot be used: {why}", hint=reach.hint)
    return RecoveryError(
        f"the archive does not have all that this backup contains yet: {why}",
        hint="does the streamer run? `binlog2s3 status` shows how far it is; try again then, or "
        "wait longer: --wait 10m. If it is not behind, the backup is of another source",
    )


def _is_written(catalog: Catalog) -> bool:
    """Whether a streamer may be at work, as far as its last word says."""
    writer = catalog.last_writer()
    return writer is not None and (writer.beat is None or writer.beat.state != "stopped")


def _lineage_of(backup: Backup, snapshot: Snapshot) -> str | None:
    """The only lineage that has exactly the backup's GTIDs at its place; None if none has."""
    base = start_of_registered(backup, backup.flavour).base
    found = lineages_of(base, snapshot) if base is not None else frozenset()
    return next(iter(found)) if len(found) == 1 else None


def _is_same(known: Backup, backup: Backup, *, timed: bool) -> bool:
    """Whether both are the same backup; `timed`: it is known when this one was made."""
    given = replace(
        backup,
        id=known.id,
        label=known.label,
        registered_at=known.registered_at,
        lineage=backup.lineage or known.lineage,
        taken_at=backup.taken_at if timed else known.taken_at,
        checked=known.checked,
        defects=known.defects,
        accepted=known.accepted,
    )
    return given == known


def _time_is_known(config: BackupConfig) -> bool:
    return config.time is not None or config.from_backup is not None


def _taken_at(config: BackupConfig, now: datetime) -> datetime:
    """When the backup was made: as its operator says, else when its file was last written.

    Raises RecoveryError if that is in the future: it would silence `status --backup-max-age`.
    """
    if config.time is not None:
        taken_at = moment_of(config.time.at_us)
        if taken_at > now + _SKEW:
            raise RecoveryError(
                f"--time {config.time.text} is in the future", hint="when was the backup made?"
            )
        return taken_at
    if config.from_backup is None:
        return now
    try:
        written_us = config.from_backup.stat().st_mtime_ns // 1000
    except OSError:  # it is read next, which says why it cannot be
        return now
    return min(moment_of(written_us), now)


def _accepted(config: BackupConfig, backup: Backup, defects: tuple[str, ...]) -> Backup:
    """The backup with these defects. Raises RecoveryError if its operator does not accept them."""
    if not defects or config.from_backup is None:
        return backup
    if not config.accept:
        refuse_defects(
            config.from_backup,
            defects,
            "make it again, and see that the program ends with exit code 0; --accept REASON "
            "registers it all the same, and then it counts nowhere",
        )
    return replace(
        backup, defects=defects[:MOST_DEFECTS], accepted=config.accept or "", checked=False
    )


def _described(
    config: BackupConfig, now: datetime, flavour: Flavour
) -> tuple[Backup, FilePosition | None]:
    """The document of the backup that the options describe, and where its InnoDB data end.

    All of a dump is read. Raises RecoveryError.
    """
    taken_at, ends_at = _taken_at(config, now), None
    if config.binlog is not None and config.position is not None:
        ends_at = FilePosition(config.binlog, config.position)
    point = BackupPoint(tool="other", flavour=None, ends_at=ends_at, gtid_set=config.gtid_set)
    if config.gtid_set is not None:
        start_of_gtids(config.gtid_set, flavour)
    location = config.location or ""
    if config.from_backup is not None:
        with progress_of("bytes of the base backup") as advance:
            point, _ = examined(config.from_backup, advance)
        for warning in point.warnings:
            say("warning", f"{config.from_backup}: {warning}")
        location = location or str(config.from_backup.absolute())
    backup = backup_at(
        point,
        config,
        flavour,
        id_=new_id(now),
        location=location,
        taken_at=taken_at,
        registered_at=now,
    )
    backup = replace(backup, lineage=config.from_lineage)
    return _accepted(config, backup, point.defects), point.innodb


def backup_at(
    point: BackupPoint,
    config: BackupConfig,
    flavour: Flavour,
    *,
    id_: str,
    location: str,
    taken_at: datetime,
    registered_at: datetime,
) -> Backup:
    """The document of a backup that ends there. RecoveryError if another flavour wrote it."""
    if point.flavour not in (None, flavour):
        raise RecoveryError(
            f"the backup is of a {point.flavour} server, the history is {flavour}'s",
            hint="is --source the right one?",
        )
    binlog, position = point.ends_at or (None, None)
    return Backup(
        id=id_,
        source=config.source,
        label=config.label or "",
        location=location,
        tool=point.tool,
        flavour=flavour,
        server_uuid=point.server_uuid or "",
        gtid_set=point.gtid_set,
        binlog=binlog,
        position=position,
        lineage=None,
        taken_at=taken_at,
        registered_at=registered_at,
        checked=point.checked,
    )


def remove(
    catalog: Catalog, named: str, hold_on: Callable[[str], Hold] | None, *, yes: bool
) -> None:
    """Forget the backup with this id or label; not `yes`: after a question.

    `hold_on` says how Object Lock keeps a key; None: the bucket has none. Raises ArchiveError if
    there is no such backup, or if Object Lock keeps its document; RecoveryError after a no.
    """
    ids = [key.id for key, _ in catalog.listed(catalog.layout.backups, "backup")]
    known = {backup.id: backup for backup in registered(catalog)}
    # its document may be unreadable
    labels = {each: known[each].label if each in known else "" for each in ids}
    id_ = id_of(labels, named, exact=True)
    key, name = catalog.layout.backup(id_), known[id_].name if id_ in known else f"backup {id_}"
    is_stored = id_ in known and known[id_].stored is not None
    objects = [info.key for info in catalog.store.list(catalog.layout.stored_folder(id_))]
    hold = next(
        (hold for each in (key, *objects) if (hold := _hold(each, hold_on)) is not None), None
    )
    if hold is not None:
        until = "" if hold.until is None else f" until {moment_text(hold.until)}"
        raise ArchiveError(
            f"Object Lock keeps {name}{' by a legal hold' if hold.is_legal else until}",
            hint="remove it later: until then readers see it, even if it is deleted",
        )
    if not yes:
        is_last = " It is the only one." if len(labels) == 1 else ""
        what = "delete" if is_stored else "forget"
        confirm(
            f"{what} {name}? prune will not keep what only this backup needs.{is_last}",
            "removed",
            hint="--yes removes without asking",
        )
    catalog.store.delete([key])
    refuse_left(catalog.store, [key])
    delete_stored(catalog, id_)
    rest = "its objects are deleted" if objects else "the backup itself was not touched"
    page_on(sys.stdout).line(f"removed {name}; {rest}")


def _hold(key: str, hold_on: Callable[[str], Hold] | None) -> Hold | None:
    """What keeps a key now; None if nothing does."""
    hold = hold_on(key) if hold_on is not None else Hold()
    return hold if hold.keeps(datetime.now(UTC)) else None


# What is said


class PrintedReach(Printed):
    complete: bool = of("is_complete")
    lineage: TextOrNull
    begin: AsText | None
    end: AsText | None
    from_: When | None = of("from_us")
    to: When | None = of("to_us")
    why: TextOrNull


class PrintedStored(Printed):
    """What the bucket has of a backup, without what only a reader of its stream needs."""

    compression: str
    size: int
    crc64: Crc64
    stored_size: int
    began_at: When
    ended_at: When


class PrintedBackup(Backup, Printed):
    """A backup in the JSON of --json: the fields of its document, and what it reaches."""

    stored: Annotated[Stored, partial(as_printed, PrintedStored)] | None
    reach: PrintedReach
    branches: tuple[PrintedReach, ...]


class PrintedBackups(PrintedDocument):
    source: str
    backups: tuple[PrintedBackup, ...]


def reach_text(reach: BackupReach) -> str:
    """What a backup reaches, in words."""
    if reach.is_complete:
        to = iso_text(reach.to_us) if reach.to_us is not None else str(reach.end)
        return f"up to {to}, the newest in the bucket, no gap"
    if reach.end is not None:
        to = f", {iso_text(reach.to_us)}" if reach.to_us is not None else ""
        return f"up to {reach.end} of {reach.lineage}{to}: {reach.why}"
    return f"nothing: {reach.why}" if not reach.lineage else f"not up to now: {reach.why}"


def print_json(source: str, rows: list[Row]) -> None:
    """Print the JSON document of --json."""
    backups = [{**members(backup), "reach": its[0], "branches": its[1:]} for backup, its in rows]
    print(printed(PrintedBackups, {"source": source, "backups": backups}))  # noqa: T201


def print_rows(source: str, rows: list[Row], *, is_new: bool, is_one: bool) -> None:
    """Print the backups; `is_one`: the one that was added, unless it was there (not `is_new`)."""
    page = page_on(sys.stdout)
    if not is_one:
        _print_table(source, rows, page)
        return
    for backup, reaches in rows:
        page.line("")
        title = f"{backup.id}  {backup.label}".rstrip() + f"  {_taken_text(backup)}"
        page.line(f"{'registered ' if is_new else 'registered already: '}{title}", "bold")
        page.fields(_fields(backup, reaches), _ROOM)


def _print_table(source: str, rows: list[Row], page: Plain) -> None:
    """A row for each backup; below the table what was stored, and why one does not reach now."""
    page.line(f"{source}  {count_text(len(rows), 'base backup')}", "bold")
    if not rows:
        return
    page.line("")
    cells = [_cells(backup, reaches[0]) for backup, reaches in rows]
    table = Table(page, _COLUMNS, cells, head=2)
    for (backup, reaches), row in zip(rows, cells, strict=True):
        style = "green" if _is_good(backup, reaches[0]) else "bold red"
        table.row(row, ["", "", "", "", style])
    for backup, reaches in rows:
        is_good = _is_good(backup, reaches[0]) and len(reaches) == 1
        names = ("stored", "checked") if is_good else _BELOW
        if shown := [field for field in _fields(backup, reaches) if field[0] in names]:
            page.line("")
            page.line(backup.name, "bold")
            page.fields(shown, _ROOM, indent=2)


def _is_good(backup: Backup, reach: BackupReach) -> bool:
    return reach.is_complete and backup.counts


def _cells(backup: Backup, reach: BackupReach) -> tuple[str, ...]:
    end = str(reach.end) if reach.to_us is None else moment_text(reach.to_us)
    if not backup.counts:
        reached = "counts nowhere"
    elif reach.is_complete:
        reached = f"{end}, the newest"
    else:
        reached = f"only {end}" if reach.end is not None else "nothing"
    taken = moment_text(backup.taken_at)
    label, where = backup.label or "-", backup.location or "-"
    return backup.id, label, taken, backup.tool, reached, _end_text(backup), where


def _fields(backup: Backup, reaches: list[BackupReach]) -> Iterator[Field]:
    reach = reaches[0]
    if backup.defects:
        yield "counts", f"nowhere: {'; '.join(backup.defects)}", "bold red"
        yield "accepted", backup.accepted, "yellow"
    if (stored := backup.stored) is not None:
        yield "stored", _stored_text(stored), ""
        yield "checked", _checked_text(backup), ""
    yield "reaches", reach_text(reach), "green" if _is_good(backup, reach) else "bold red"
    if reach.hint:
        yield "", reach.hint, "yellow"
    for branch in reaches[1:]:
        yield "", f"or, with --lineage {branch.lineage}, {reach_text(branch)}", ""
    yield "ends at", _end_text(backup), ""


def _end_text(backup: Backup) -> str:
    """Where a backup ends, by all that its document says."""
    ends = []
    if backup.ends_at is not None:
        ends.append(str(backup.ends_at))
    if backup.lineage is not None:
        ends.append(f"lineage {backup.lineage}")
    if backup.gtid_set is not None:
        ends.append(f"GTIDs {gtids_text(backup.gtid_set) or 'none'}")
    return ", ".join(ends)


def _checked_text(backup: Backup) -> str:
    """What was checked of a backup before `backup run` registered it."""
    read = "all of it was read, and is whole; " if backup.checked else ""
    return f"{read}the objects have the bytes that were sent"


def _stored_text(stored: Stored) -> str:
    """Size, duration and rate of what `backup run` stored."""
    packed = f", {stored.compression}" if stored.compression != "none" else ""
    rate = f", {size_text(stored.size / stored.seconds)}/s" if stored.seconds else ""
    return (
        f"{size_text(stored.size)} in {duration_text(stored.seconds)}{rate}; "
        f"{size_text(stored.stored_size)} in {count_text(len(stored.objects), 'object')}{packed}"
    )


def _taken_text(backup: Backup) -> str:
    where = f", at {backup.location}" if backup.location else ""
    return f"taken {moment_text(backup.taken_at)} with {backup.tool}{where}"
