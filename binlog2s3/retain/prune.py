"""`binlog2s3 prune`: gives up what no base backup needs, and deletes it after a grace period.

It has two phases. The first raises the floors of lineages. The second deletes what lies below a
floor that is older than the grace period, because a running `pitr` or `serve` has its plan.

Law: nothing is deleted that the choice of this run does not give up, and nothing before a floor
says so. `lineage.json` is never deleted. Each request may be the last one: the next run continues.
What is called deleted was looked up and is gone.
In a bucket with Object Lock all is decided from the oldest versions, and what it keeps stays.
"""

import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime, timedelta

from binlog2s3.archive.backups import Backup, look_up
from binlog2s3.archive.catalog import Catalog, Contents, read, refuse_left
from binlog2s3.archive.codec import LINEAGE_ID, printed
from binlog2s3.archive.documents import Lineage, LineageFloor
from binlog2s3.archive.drills import verdicts_of
from binlog2s3.archive.evidence import Evidence
from binlog2s3.archive.index import Index
from binlog2s3.archive.layout import Layout
from binlog2s3.archive.pages import SPAN, name_at
from binlog2s3.archive.writers import Retired
from binlog2s3.binlog.names import BinlogName
from binlog2s3.config.bucket import for_writing
from binlog2s3.config.outside import OUTSIDE, Outside
from binlog2s3.config.prune import PruneConfig
from binlog2s3.errors import (
    ArchiveError,
    ObjectMissingError,
    PreconditionError,
    RecoveryError,
)
from binlog2s3.formatting import moment_text, us_of
from binlog2s3.output import NO_CHANGE, confirm, page_on, say
from binlog2s3.progress import progress_of
from binlog2s3.recover.backup import (
    examined,
    refuse_defects,
    start_of_backup,
    start_of_gtids,
)
from binlog2s3.recover.origin import innodb_lacks
from binlog2s3.recover.reach import BackupReach, reach_of
from binlog2s3.recover.route import history_flavour
from binlog2s3.recover.snapshot import Snapshot, snapshot_of
from binlog2s3.retain.backup import reaches_of_backup
from binlog2s3.retain.choose import (
    Below,
    Choice,
    KnownBackup,
    PruneOutcome,
    Spent,
    Unfinished,
    given_up,
    is_usable,
    needed_in_window,
    needs_of,
    spent_ids,
    unknown_needs,
)
from binlog2s3.retain.leftovers import Bucket, clear, delete_stored, leftovers_of
from binlog2s3.retain.view import Deletable, PrintedPrune, print_choice, print_outcome
from binlog2s3.store.contract import ObjectInfo
from binlog2s3.store.errors import FullError, MendableError
from binlog2s3.store.s3 import opened
from binlog2s3.store.versions import Hold
from binlog2s3.stream.remote import put_once, where_absent
from binlog2s3.workers import Workers

_DAY_SECONDS = 86_400
_QUIET = timedelta(days=1)
"""Chunks younger than this are never deleted: somebody may still write that binlog."""
_TURNS_KEPT = 100
"""The last one counts; the others show an operator what happened."""


def run(config: PruneConfig, outside: Outside = OUTSIDE) -> int:
    """Run the command; the exit code. Raises StoreError, ArchiveError, RecoveryError."""
    s3 = for_writing(config.s3)
    with opened(s3, evidence=Evidence, session=outside.session) as store:
        catalog, settings = Catalog(store, Layout(config.s3.prefix, config.source)), store.settings
        now = settings.now(outside.now(), catalog.layout.archive)
        return Prune(
            config,
            Bucket(catalog, lambda: now, settings.holds()),
            is_versioned=bool(settings.versioning()),
            notes=store.version_notes,
        ).run()


class Prune:
    """One run of the command, which has one time. It deletes `at_once` keys with a request.

    `is_versioned`: deleting frees nothing. `notes`: what to say of versions.
    """

    def __init__(
        self,
        config: PruneConfig,
        bucket: Bucket,
        *,
        is_versioned: bool = False,
        notes: Callable[[], Iterable[str]] = tuple,
        at_once: int = 400,
    ) -> None:
        self._config = config
        self._bucket = bucket
        self._now = bucket.now()
        self._is_versioned = is_versioned
        self._notes = notes
        self._at_once = at_once
        self._catalog = bucket.catalog
        self._store, self._layout = self._catalog.store, self._catalog.layout
        self._threads = config.s3.threads
        self.outcome = PruneOutcome()
        self._warned = set[str]()

    def run(self) -> int:
        """Show what is given up, ask, and do it; the exit code."""
        config = self._config
        if config.retire:
            self._retire()
            return 0
        with progress_of("entries") as advance:
            workers = Workers(self._threads)
            snapshot = snapshot_of(self._catalog, workers, config.s3.url, advance=advance)
            self._refuse_unknown(snapshot)
            choice = self.choice(snapshot)
        below = list(self._below(choice, self._abandoned(snapshot)))
        spent = self._spent(choice, snapshot)
        left = leftovers_of(self._bucket)
        self.outcome.turns = len(turns := self._old_turns())
        for text in self._notes():
            say("warning", text)
        found = Deletable(below=below, spent=spent, left=left, turns=self.outcome.turns)
        if not config.as_json:
            print_choice(config, choice, found, page_on(sys.stdout))
        self._warn()
        self._check(choice)
        is_new = any(given.is_new for given in choice.given_up)
        is_spent = any(not backup.kept for backup in spent)
        is_left = bool(left.uploads or left.objects)
        has_work = bool(
            is_new or turns or is_spent or is_left or any(lineage.keys for lineage in below)
        )
        is_done = has_work and not config.dry_run
        if is_done:
            self._confirm()
            self._refuse_changed(choice, snapshot)
        try:
            if is_done:
                self._do(choice, snapshot, turns)
                clear(
                    self._catalog, leftovers_of(self._bucket)
                )  # one of these may be registered by now
        finally:  # what was deleted before an error is said, too
            if config.as_json:
                shown = {"config": config, "choice": choice, "found": found}
                print(printed(PrintedPrune, {**shown, "outcome": self.outcome}))  # noqa: T201
            elif is_done:
                print_outcome(config, self.outcome, self._is_versioned, page_on(sys.stdout))
            elif config.dry_run:
                page_on(sys.stdout).line(NO_CHANGE)
        return 0

    # What is given up

    def _refuse_unknown(self, snapshot: Snapshot) -> None:
        """Raise ArchiveError if it is unknown how the lineages join: who needs what is, too."""
        if snapshot.unreadable:
            raise snapshot.unreadable[0]
        folder = self._layout.archive
        for key in sorted(self._catalog.foreign):
            id_ = key.removeprefix(folder).removesuffix("/")
            if key == f"{folder}{id_}/" and LINEAGE_ID.fullmatch(id_):
                raise ArchiveError(
                    f"{key} has no lineage.json: it was deleted, or the store shows late what is "
                    "written",
                    hint="try again soon; in a versioned bucket, copy it back; if the folder is "
                    "none of the streamer's, delete it",
                )

    def choice(self, snapshot: Snapshot) -> Choice:
        """What this run gives up. Raises ArchiveError if it is unknown what is needed."""
        backups, ignored = self._backups(snapshot)
        wanted, held = list[KnownBackup](), list[str]()
        old_us: int | None = None
        if (window := self._config.keep) is not None:
            old_us = self._before(window)
            for name, why in unknown_needs(backups, old_us):
                raise ArchiveError(f"{why}; it is unknown what {name} needs", hint=why.hint)
            wanted, held = needed_in_window(backups, old_us)
        elif (seconds := self._config.keep_binlogs_for) is not None:
            old_us = self._before(seconds)
        else:
            wanted = [self._named(snapshot)]
        needed, abandoned = needs_of(wanted, snapshot.lineages), self._abandoned(snapshot)
        found = []
        for lineage in snapshot.lineages:
            archived = self._catalog.archived(lineage)
            unfinished = self._unfinished(lineage) if lineage.id in abandoned else {}
            given = given_up(
                snapshot, lineage, archived, needed=needed, old_us=old_us, unfinished=unfinished
            )
            if given is not None:
                written = next((floor for floor, _ in self._floors(lineage, given.floor)), None)
                found.append(replace(given, is_new=written != given.floor))
        floors = {given.lineage.id: given.floor for given in found}
        known = [*(backup for backup in wanted if backup not in backups), *backups]
        kept = [backup for backup in known if is_usable(backup, floors, snapshot.lineages)]
        names = {backup.name for backup in kept}  # along another history, perhaps
        lost = [backup for backup in backups if backup.reach.lineage and backup.name not in names]
        unreached = {backup.name: backup for backup in backups if not backup.reach.lineage}
        return Choice(
            given_up=tuple(found),
            kept=tuple(kept),
            lost=tuple(lost),
            ignored=tuple(ignored),
            held=tuple(held),
            backups=tuple(backups),
            wanted=tuple(wanted),
            unreached=tuple(backup for name, backup in unreached.items() if name not in names),
        )

    def _backups(self, snapshot: Snapshot) -> tuple[list[KnownBackup], list[str]]:
        """The registered backups along each history, and the names of those that do not count."""
        registered = look_up(self._catalog)
        for id_, why in registered.lost.items():
            if id_ not in self._warned:
                say("warning", f"{why}; it replaces no other one")
        verdicts = verdicts_of(self._catalog, registered.backups) | dict.fromkeys(
            registered.lost, False
        )
        found = [
            KnownBackup(
                name=backup.name,
                reach=reach,
                checked=verdicts.get(backup.id, backup.checked or None),
                id=backup.id,
                is_stored=backup.stored is not None,
                taken_us=us_of(backup.taken_at),
            )
            for backup in registered.backups
            if backup.counts
            for reach in _reaches(backup, snapshot, warns=backup.id not in self._warned)
        ]
        self._warned.update(backup.id for backup in registered.backups)
        if registered.unreadable:
            raise ArchiveError(
                f"{registered.unreadable[0]}; it is unknown what that backup needs",
                hint="`backup remove` and `backup add` register it again; a newer format needs a "
                "newer binlog2s3",
            )
        return found, [backup.name for backup in registered.backups if not backup.counts]

    def _refuse_changed(self, choice: Choice, snapshot: Snapshot) -> None:
        """Raise RecoveryError if a backup is needed by now that this choice gives up.

        The answer to the question may have come after hours, and each request may take long.
        """
        if (window := self._config.keep) is None:
            return
        floors = {given.lineage.id: given.floor for given in choice.given_up}
        needed, _ = needed_in_window(self._backups(snapshot)[0], self._before(window))
        for backup in needed:
            if not is_usable(backup, floors, snapshot.lineages):
                raise RecoveryError(
                    f"{backup.name} is needed by now, and what it needs would be given up",
                    hint="a newer backup was removed meanwhile, or a drill of it failed; "
                    + self._what_to_do(choice),
                )

    def _what_to_do(self, choice: Choice) -> str:
        """What was not done, what is to be taken back, and that it can be run again."""
        raised = [given for given in choice.given_up if given.lineage.id in self.outcome.floors]
        keys = [self._layout.floor(given.lineage.id, given.floor.number) for given in raised]
        if not keys:
            return "nothing was changed: run it again"
        what = "which give up what it needs" if keys[1:] else "which gives up what it needs"
        return f"nothing was deleted: delete {', '.join(keys)}, {what}, and run it again"

    def _before(self, seconds: float) -> int:
        return us_of(self._now - timedelta(seconds=seconds))

    def _named(self, snapshot: Snapshot) -> KnownBackup:
        """The base backup of --keep-from-gtid-set or --keep-from-backup."""
        config, flavour = self._config, history_flavour(snapshot, self._config.from_lineage)
        if config.keep_from_backup is not None:
            with progress_of("bytes of the base backup") as advance:
                point, _ = examined(config.keep_from_backup, advance)
            start, name, warnings = start_of_backup(config.keep_from_backup, point, flavour)
            lacks = innodb_lacks(start.base, snapshot) if start.base is not None else ""
            refuse_defects(
                config.keep_from_backup,
                (*point.defects, *filter(None, [lacks])),
                "name a backup that is whole; nothing was pruned",
            )
            for warning in warnings:
                say("warning", warning)
        else:
            start, name = start_of_gtids(config.keep_from_gtid_set or "", flavour), "the backup"
        reach = reach_of(replace(start, lineage=config.from_lineage), snapshot)
        if not reach.is_complete:
            raise RecoveryError(
                f"{name} cannot be brought to now: {reach.why}",
                hint=f"{reach.hint}; nothing was pruned" if reach.hint else "nothing was pruned",
            )
        return KnownBackup(name=name, reach=reach)

    def _check(self, choice: Choice) -> None:
        """Refuse to leave nothing that can be recovered."""
        config = self._config
        if config.allow_empty or choice.kept or not choice.given_up:
            return
        if config.keep_binlogs_for is not None and not choice.lost:
            return  # nobody registers backups here
        what = "no registered base backup can be recovered afterwards"
        if config.keep is not None and not choice.lost:
            what = "no registered base backup can be recovered at all"
        raise RecoveryError(
            f"{what}, so these binlogs would be of no use",
            hint="`binlog2s3 backup add` registers a base backup; --allow-empty prunes all the "
            "same; nothing was changed",
        )

    def _warn(self) -> None:
        lock, window = self._config.s3.object_lock, self._config.keep
        if lock is not None and window is not None and lock.days * _DAY_SECONDS < window:
            say(
                "warning",
                f"Object Lock ({lock}) ends before the recovery window of "
                f"{window / _DAY_SECONDS:g} days does: binlogs that are still needed can be "
                "deleted by others",
            )

    def _confirm(self) -> None:
        config, what = self._config, "retire" if self._config.retire else "prune"
        if not config.yes:
            confirm(
                f"{what} {config.source}?",
                f"{what}d",
                hint=f"--yes {what}s without asking, --dry-run changes nothing",
                as_json=config.as_json,
            )

    # What lies below a floor

    def _below(
        self, choice: Choice, abandoned: Collection[str], *, raised: bool = True
    ) -> Iterator[Below]:
        """What may be deleted now: below a floor older than the grace, and given up.

        Chunks, too, of the lineages that are `abandoned`. Without a grace the floors of this choice
        count as `raised`, unless they could not be.
        """
        graced = self._graced(choice, raised=raised)
        for given in choice.given_up:
            if (binlog := graced.get(given.lineage.id)) is None:
                continue
            low = replace(given.lineage, floor=self._floor(given.lineage, binlog, ""))
            unfinished = self._unfinished(low) if low.id in abandoned else {}
            yield self._keys(low, Index(self._catalog, low).below_floor(), unfinished)

    def _graced(self, choice: Choice, *, raised: bool = True) -> dict[str, BinlogName]:
        """The floor of each lineage whose grace is over."""
        latest, found = self._now - timedelta(seconds=self._config.grace), {}
        for given in choice.given_up:
            graced = [
                f for f, since in self._floors(given.lineage, given.floor) if since <= latest
            ][:1]
            if raised and not self._config.grace:
                graced = [given.floor]
            if graced:
                found[given.lineage.id] = graced[0]
        return found

    def _spent(self, choice: Choice, snapshot: Snapshot) -> list[Spent]:
        """The stored backups that may be deleted now, and those of them that a lock keeps."""
        found, layout = list[Spent](), self._layout
        ids = spent_ids(choice.backups, choice.wanted, self._graced(choice), snapshot.lineages)
        names = {backup.id: backup.name for backup in choice.backups}
        for id_ in ids:
            infos = [*self._store.list(layout.stored_folder(id_))]
            locked = self._locked([layout.backup(id_), *(info.key for info in infos)])
            until = max((hold.until for hold in locked.values() if hold.until), default=None)
            kept = "" if not locked else "Object Lock keeps it"
            kept += "" if until is None else f" until {moment_text(until)}"
            size = sum(info.size for info in infos)
            found.append(Spent(id=id_, name=names[id_], size=size, kept=kept))
        return found

    def _floors(self, lineage: Lineage, most: BinlogName) -> Iterator[tuple[BinlogName, datetime]]:
        """The lineage's floors up to this binlog, the greatest first, and since when each stands.

        A greater one does not count: this run did not choose it, and somebody may have forged it.
        When a floor was written, the later of two clocks says.
        """
        floors = self._catalog.listed(self._layout.floors(lineage.id), "floor")
        found = {key.number: info for key, info in floors if key.number <= most.number}
        for number in sorted(found, reverse=True):
            try:
                floor = read(self._store, found[number].key, LineageFloor)
            except (ObjectMissingError, ArchiveError):
                continue
            if floor.binlog == name_at(lineage, number):
                yield floor.binlog, max(floor.raised_at, found[number].last_modified)

    def _abandoned(self, snapshot: Snapshot) -> set[str]:
        """The lineages that are not written any more; none if it is unknown what is written."""
        writer = self._catalog.last_writer()
        if writer is not None and writer.beat is None:
            return set()
        written = {snapshot.current, writer.beat.lineage if writer and writer.beat else None}
        return {lineage.id for lineage in snapshot.lineages if lineage.id not in written}

    def _unfinished(self, lineage: Lineage) -> Unfinished:
        """The chunks of a lineage that nobody writes any more, by binlog.

        Chunks of a binlog that is archived are there, too, if its streamer died before it deleted
        them. A binlog with a young chunk is left out, and so is all that comes after it.
        """
        found: dict[BinlogName, Sequence[ObjectInfo]] = {}
        for name, chunks in sorted(self._catalog.chunked(lineage).chunks.items()):
            infos = [*chunks.values()]
            if any(info.last_modified > self._now - _QUIET for info in infos):
                break
            found[name] = infos
        return found

    def _keys(self, lineage: Lineage, contents: Contents, unfinished: Unfinished) -> Below:
        """Pages below the floor go first, then each binlog before its entry, the oldest first.

        A later run looks below a floor only while a binlog or an entry is there. A page that was
        deleted after them would stay if prune died before that. Chunks are last; of each binlog,
        the last bytes go first, so that what is left can always be read from its begin on.
        """
        id_, size = lineage.id, 0
        index = Index(self._catalog, lineage)
        floor = lineage.begin.number
        pages = [first for first in index.firsts() if first + SPAN <= floor]
        keys = [self._layout.page(id_, first) for first in pages]
        names = sorted(contents.binlogs.keys() | contents.entries.keys())
        for name in names:
            keys += [self._layout.binlog(id_, name)] if name in contents.binlogs else []
            keys += [self._layout.entry(id_, name)] if name in contents.entries else []
            size += contents.binlogs[name].size if name in contents.binlogs else 0
        binlogs = len(contents.binlogs)
        for name in sorted(name for name in unfinished if lineage.is_below_floor(name)):
            keys += sorted((info.key for info in unfinished[name]), reverse=True)
            size += sum(info.size for info in unfinished[name])
            binlogs += name not in contents.binlogs
        return self._unlocked(Below(lineage=id_, keys=tuple(keys), size=size, binlogs=binlogs))

    def _unlocked(self, below: Below) -> Below:
        """Without what Object Lock keeps: a plain DELETE would only hide that."""
        kept = self._locked(below.keys)
        return replace(
            below,
            keys=tuple(key for key in below.keys if key not in kept),
            locked=len(kept),
            held=sum(hold.is_legal for hold in kept.values()),
            locked_until=max((hold.until for hold in kept.values() if hold.until), default=None),
        )

    def _locked(self, keys: Sequence[str]) -> dict[str, Hold]:
        """How Object Lock keeps these keys, of those that it keeps."""
        if self._bucket.hold_on is None or not keys:
            return {}
        with ThreadPoolExecutor(self._threads) as pool:
            holds = dict(zip(keys, pool.map(self._bucket.hold_on, keys), strict=True))
        return {key: hold for key, hold in holds.items() if hold.keeps(self._now)}

    def _old_turns(self) -> Sequence[str]:
        """The keys of all turns but the last, without what Object Lock keeps."""
        listed = self._catalog.listed(self._layout.turns, "turn")
        turns = {key.number: info.key for key, info in listed}
        old = [turns[number] for number in sorted(turns)[:-_TURNS_KEPT]]
        locked = self._locked(old)
        return [key for key in old if key not in locked]

    # Doing it

    def _do(self, choice: Choice, snapshot: Snapshot, turns: Sequence[str]) -> None:
        """Raise the floors, then delete. A full bucket takes no floor: see `_make_room`."""
        self.outcome.turns = 0
        abandoned = self._abandoned(snapshot)
        try:
            self._raise_floors(choice)
        except FullError as error:
            self._make_room(choice, abandoned, error)
            self._raise_floors(choice)
        self._refuse_changed(choice, snapshot)
        for backup in self._spent(choice, snapshot):  # before the binlogs that they need
            if not backup.kept:
                self._delete_keys([self._layout.backup(backup.id)])
                delete_stored(self._catalog, backup.id)
                self.outcome.backups.append(backup)
        for below in self._below(choice, abandoned):
            self._delete(below)
        try:
            self._delete_keys(turns)
            self.outcome.turns = len(turns)
        except MendableError as error:  # a policy of an earlier version does not allow it
            say("warning", f"old turns stay: {error}")
            say("hint", error.hint)

    def _make_room(self, choice: Choice, abandoned: Collection[str], error: FullError) -> None:
        """Delete what floors that are there already allow. Raises FullError if that is nothing."""
        allowed = [below for below in self._below(choice, abandoned, raised=False) if below.keys]
        if not allowed:
            raise FullError(
                f"{error}; a floor must be written before anything is deleted, and no floor that "
                "is there allows to delete anything",
                hint="make room for a few KiB (raise the quota for a moment, or delete something "
                "else in the bucket), then prune again; nothing was deleted",
            ) from error
        say(
            "warning",
            f"{error}; what earlier floors allow is deleted, then the new ones are tried again",
        )
        for below in allowed:
            self._delete(below)

    def _raise_floors(self, choice: Choice) -> None:
        for given in choice.given_up:
            if given.is_new:
                self._raise_floor(given.lineage, given.floor, given.gtid_set)

    def _raise_floor(self, lineage: Lineage, binlog: BinlogName, gtid_set: str) -> None:
        floor = self._floor(lineage, binlog, gtid_set)
        key = self._layout.floor(lineage.id, binlog.number)
        try:
            put_once(self._store, key, floor)
        except PreconditionError as error:  # another run's, at another time
            if read(self._store, key, LineageFloor).binlog != binlog:
                raise ArchiveError(
                    f"{key} is not the floor at {binlog}: somebody else wrote it",
                    hint="delete it; nothing was deleted",
                ) from error
        self.outcome.floors[lineage.id] = str(binlog)

    def _floor(self, lineage: Lineage, binlog: BinlogName, gtid_set: str) -> LineageFloor:
        return LineageFloor(
            source=lineage.source,
            lineage=lineage.id,
            binlog=binlog,
            gtid_set=gtid_set,
            raised_at=self._now,
        )

    def _delete(self, below: Below) -> None:
        self._delete_keys(below.keys)
        if below.keys or below.locked:
            self.outcome.deleted.append(below)

    def _delete_keys(self, keys: Sequence[str]) -> None:
        for at in range(0, len(keys), self._at_once):
            self._store.delete(keys[at : at + self._at_once])
        refuse_left(self._store, keys)

    def _retire(self) -> None:
        config, key, page = self._config, self._layout.retired, page_on(sys.stdout)
        writer = self._catalog.last_writer()
        beat = writer.beat if writer is not None else None
        if beat is not None and beat.state != "stopped":
            say("warning", f"the last writer on {beat.host} has not stopped in order")
        if config.dry_run:
            page.line(f"{config.source} would be retired; {NO_CHANGE}")
            return
        self._confirm()
        retired = Retired(source=config.source, retired_at=self._now)
        data = retired.to_json()
        try:
            where_absent(lambda absent: self._store.put(key, data, if_absent=absent))
        except PreconditionError:  # it was retired before, and its writer came back
            self._store.put(key, data)
        self.outcome.retired = True
        page.line(f"{config.source} is retired; its archive stays until it is pruned")


def _reaches(backup: Backup, snapshot: Snapshot, *, warns: bool) -> list[BackupReach]:
    """What a registered backup can be brought to; of several histories if it may be of any of them.

    After a RESET, or on a server that was put back, the same place, or the same GTIDs, mean other
    transactions. `pitr` refuses until its operator says which ones the backup has, with what of
    that history is there then.
    """
    found = reaches_of_backup(backup, snapshot)
    if found[0].lineage or backup.lineage is not None:
        return found
    of_each = [
        reach
        for lineage in snapshot.lineages
        for reach in reaches_of_backup(replace(backup, lineage=lineage.id), snapshot)
        if reach.lineage
    ]
    if of_each and warns:
        say("warning", f"{backup.name}: {found[0].why}; what it needs of each is kept")
    return of_each or found
