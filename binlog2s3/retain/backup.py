"""`binlog2s3 backup`: registers base backups, and lists what each one reaches.

Place in the flow: under `cli`. `archive.backups` has the documents, `recover.reach` says what a
backup reaches.

Law: only the document is written or deleted, never the backup itself. A backup that fits no history
of the source is registered with a warning: its binlogs may still be on their way.
"""

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from binlog2s3.archive.backups import Backup, new_id, one_of, registered
from binlog2s3.archive.catalog import Catalog
from binlog2s3.archive.layout import Layout
from binlog2s3.archive.sources import where_to_look
from binlog2s3.binlog.gtid import Flavour
from binlog2s3.config.backup import Action, BackupConfig
from binlog2s3.config.bucket import MOST_THREADS, for_writing, url
from binlog2s3.errors import ArchiveError, RecoveryError
from binlog2s3.formatting import count_text, moment_of, moment_text, time_text
from binlog2s3.output import page_on, say
from binlog2s3.progress import progress_of
from binlog2s3.recover.backup import read_backup, start_of_gtids, start_of_registered
from binlog2s3.recover.origin import lineages_of
from binlog2s3.recover.reach import BackupReach, reach_of
from binlog2s3.recover.snapshot import Survey
from binlog2s3.store.contract import Store
from binlog2s3.store.s3 import opened
from binlog2s3.stream.remote import where_absent
from binlog2s3.workers import Workers

FORMAT = 1
_ROOM = 10


def run(config: BackupConfig, action: Action, id_: str | None) -> int:
    """Run the command; the exit code. Raises StoreError, ArchiveError, RecoveryError."""
    with opened(for_writing(config.s3)) as store:
        catalog = Catalog(store, Layout(config.s3.prefix, config.source))
        if action == "remove":
            kept = store.settings.retained_until if store.settings.has_object_lock() else None
            remove(catalog, id_ or "", kept)
            return 0
        with progress_of("entries") as advance:
            threads = min(config.s3.concurrency, MOST_THREADS)
            survey = survey_of(store, catalog, threads, advance, url(config.s3))
            if action == "add":
                backups = [_add(config, catalog, survey)]
            else:
                unreadable: list[ArchiveError] = []
                backups = registered(catalog, unreadable)
                for error in unreadable:
                    say("warning", f"{error}; it is not listed")
            rows = [(backup, reach_of_backup(backup, survey)) for backup in backups]
    if config.as_json:
        print(json.dumps(document(config.source, rows), indent=1))  # noqa: T201
    else:
        _print(config.source, rows, is_new=action == "add")
    return 0


def survey_of(store: Store, catalog: Catalog, threads: int, advance: Any, target: str) -> Survey:
    """What the bucket has of the source. Raises RecoveryError if it has nothing."""
    survey = Survey(store, catalog, Workers(threads), advance=advance)
    if not survey.lineages:
        if survey.unreadable:
            raise survey.unreadable[0]
        raise RecoveryError(
            f"there is nothing of source {catalog.layout.source} below {target}",
            hint=where_to_look(store, catalog.layout.prefix),
        )
    return survey


def reach_of_backup(backup: Backup, survey: Survey, lineage: str | None = None) -> BackupReach:
    """What a registered backup can be brought to; `lineage` as in `reach_of`."""
    try:
        start = start_of_registered(backup, survey.flavour(backup.lineage))
    except RecoveryError as error:
        return BackupReach(is_complete=False, why=str(error), hint=error.hint)
    return reach_of(start, survey, lineage)


# Adding and removing


def _add(config: BackupConfig, catalog: Catalog, survey: Survey) -> Backup:
    now = datetime.now(UTC)
    backup = _described(config, now, survey.flavour(config.from_lineage))
    if backup.lineage is None:
        base = start_of_registered(backup, backup.flavour).base
        found = lineages_of(base, survey) if base is not None else frozenset()
        if len(found) == 1:
            (lineage,) = found
            backup = replace(backup, lineage=lineage)
    key, data = catalog.layout.backup(backup.id), backup.to_json()
    Backup.from_json(data, key)  # never write what could not be read again
    where_absent(lambda absent: catalog.store.put(key, data, if_absent=absent, kept=True))
    return backup


def _described(config: BackupConfig, now: datetime, flavour: Flavour) -> Backup:
    """The document of the backup that the options describe. Raises RecoveryError."""
    taken_at = moment_of(config.time.at_us) if config.time is not None else now
    tool, server, binlog, position = "other", "", config.binlog, config.position
    gtid_set = None
    if config.gtid_set is not None:
        gtid_set = config.gtid_set
        start_of_gtids(gtid_set, flavour)
    if config.from_backup is not None:
        point = read_backup(config.from_backup)
        if point.flavour not in (None, flavour):
            raise RecoveryError(
                f"the backup is of a {point.flavour} server, the history is {flavour}'s",
                hint="is --source the right one?",
            )
        for warning in point.warnings:
            say("warning", f"{config.from_backup}: {warning}")
        tool, server = point.tool, point.server_uuid or ""
        gtid_set, binlog, position = point.gtid_set, point.binlog, point.position
        if position is None:
            binlog = None
    location = config.location or ""
    if not location and config.from_backup is not None:
        location = str(config.from_backup.absolute())
    return Backup(
        id=new_id(now),
        source=config.source,
        label=config.label or "",
        location=location,
        tool=tool,
        flavour=flavour,
        server_uuid=server,
        gtid_set=gtid_set,
        binlog=binlog,
        position=position,
        lineage=config.from_lineage,
        taken_at=taken_at,
        registered_at=now,
    )


def remove(catalog: Catalog, id_: str, kept: Callable[[str], datetime | None] | None) -> None:
    """Forget a backup. `kept` says until when Object Lock keeps a key; None: the bucket has none.

    Raises ArchiveError if there is no such backup, or if Object Lock keeps its document.
    """
    unreadable: list[ArchiveError] = []
    backup = one_of(registered(catalog, unreadable), id_)
    key = catalog.layout.backup(backup.id)
    until = kept(key) if kept is not None else None
    if until is not None and until > datetime.now(UTC):
        raise ArchiveError(
            f"Object Lock keeps {backup.name} until {moment_text(until)}",
            hint="remove it then: until then readers see it, even if it is deleted",
        )
    catalog.store.delete([key])
    print(f"removed {backup.name}; the backup itself was not touched")  # noqa: T201


# What is said


def document(source: str, rows: list[tuple[Backup, BackupReach]]) -> dict[str, Any]:
    """The JSON document of --json."""
    return {
        "format": FORMAT,
        "source": source,
        "backups": [{**backup.row(), "reach": _reach_document(reach)} for backup, reach in rows],
    }


def _reach_document(reach: BackupReach) -> dict[str, Any]:
    return {
        "complete": reach.is_complete,
        "lineage": reach.lineage or None,
        "begin": str(reach.begin) if reach.begin is not None else None,
        "end": str(reach.end) if reach.end is not None else None,
        "from": time_text(reach.from_us) if reach.from_us is not None else None,
        "to": time_text(reach.to_us) if reach.to_us is not None else None,
        "why": reach.why or None,
    }


def reach_text(reach: BackupReach) -> str:
    """What a backup reaches, in words."""
    if reach.is_complete:
        return "up to now, no gap"
    if reach.end is not None:
        to = f", {time_text(reach.to_us)}" if reach.to_us is not None else ""
        return f"up to {reach.end} of {reach.lineage}{to}: {reach.why}"
    return f"nothing: {reach.why}" if not reach.lineage else f"not up to now: {reach.why}"


def _print(source: str, rows: list[tuple[Backup, BackupReach]], *, is_new: bool) -> None:
    page = page_on(sys.stdout)
    if not is_new:
        page.line(f"{source}  {count_text(len(rows), 'base backup')}", "bold")
    for backup, reach in rows:
        page.line("")
        title = f"{backup.id}  {backup.label}".rstrip()
        page.line(f"registered {title}" if is_new else title, "bold")
        for name, value, style in _lines(backup, reach):
            page.field(name, value, _ROOM, style)


def _lines(backup: Backup, reach: BackupReach) -> Iterator[tuple[str, str, str]]:
    yield "reaches", reach_text(reach), "green" if reach.is_complete else "bold red"
    if not reach.is_complete and reach.hint:
        yield "", reach.hint, "yellow"
    yield "taken", moment_text(backup.taken_at), ""
    yield "with", backup.tool, ""
    if backup.location:
        yield "location", backup.location, ""
    if backup.gtid_set is not None:
        yield "GTIDs", backup.gtid_set or "none", ""
    if backup.binlog is not None:
        yield "ends at", f"{backup.binlog}:{backup.position}", ""
    if backup.lineage is not None:
        yield "lineage", backup.lineage, ""
