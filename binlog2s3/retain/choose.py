"""What may be pruned: decided before anything is deleted.

Law: a binlog is given up only if no kept base backup needs it to reach any moment of the recovery
window, and if it is old by its commit times and by the store's dates. The newest archived binlog of
the current lineage, and every binlog that is not archived with its entry, is kept; but for one that
its source did not finish, in a lineage that is not written any more. So a floor that somebody
forged deletes nothing: only what is given up here is deleted.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from binlog2s3.archive.catalog import Contents
from binlog2s3.archive.documents import Lineage
from binlog2s3.archive.facts import Facts
from binlog2s3.archive.history import line_of
from binlog2s3.archive.pages import name_at
from binlog2s3.binlog.names import BinlogName
from binlog2s3.errors import ArchiveError
from binlog2s3.formatting import us_of
from binlog2s3.recover.reach import BackupReach
from binlog2s3.recover.snapshot import Snapshot
from binlog2s3.store.contract import ObjectInfo

Unfinished = Mapping[BinlogName, Sequence[ObjectInfo]]
"""The chunks of binlogs that their source never finished, by binlog."""
_WHOLE = 2  # object and entry


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownBackup:
    """A base backup by the name that messages give it, and what it can be brought to.

    `checked`: all of it was read when it was registered, or a drill has proved it; None if
    nobody has looked, False if the last drill of it has failed, or the bucket does not have all of
    it. `id` is that of one that is
    registered; `is_stored`: the bucket has it. `taken_us`: when it was taken, by the
    clock of who took it and not by the source's, which may be behind; 0 if unknown.
    """

    name: str
    reach: BackupReach
    checked: bool | None = None
    id: str = ""
    is_stored: bool = False
    taken_us: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenUp:
    """The binlogs of a lineage before `floor`, and what lies below it: so many, with so many bytes.

    `gtid_set`: the GTIDs executed before the floor, as text. `is_new`: no floor says so yet.
    """

    lineage: Lineage
    floor: BinlogName
    gtid_set: str
    binlogs: int
    size: int
    is_new: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What is given up of each lineage, and which base backups are of use afterwards.

    `ignored`: the names of those for which nothing is kept, because they are no base backups of the
    whole server. `unreached`: those to which nothing in the bucket can be applied. `held`: of those
    that a newer one would replace, had anything checked that. `backups`: all that count; `wanted`:
    those that binlogs are kept for.
    """

    given_up: tuple[GivenUp, ...]
    kept: tuple[KnownBackup, ...]
    lost: tuple[KnownBackup, ...]
    ignored: tuple[str, ...] = ()
    held: tuple[str, ...] = ()
    backups: tuple[KnownBackup, ...] = ()
    wanted: tuple[KnownBackup, ...] = ()
    unreached: tuple[KnownBackup, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Below:
    """The keys of one lineage that may be deleted now, oldest binlogs first, with their bytes.

    `locked`: how many more there are that Object Lock keeps, and until when at most; `held` of them
    have a legal hold, which has no end.
    """

    lineage: str
    keys: tuple[str, ...]
    size: int
    binlogs: int
    locked: int = 0
    held: int = 0
    locked_until: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """A stored backup that may be deleted now: its document and its objects, with their bytes.

    `kept`: why Object Lock does not let it be deleted, "" if it does.
    """

    id: str
    name: str
    size: int
    kept: str = ""


@dataclass(slots=True, kw_only=True)
class PruneOutcome:
    """What was done: floors raised, keys deleted, by lineage; how many old turns were deleted.

    Before that, or in a dry run, `turns` says how many there are. `backups`: those that were stored
    and are deleted.
    """

    floors: dict[str, str] = field(default_factory=dict)
    deleted: list[Below] = field(default_factory=list)
    backups: list[Spent] = field(default_factory=list)
    turns: int = 0
    retired: bool = False


def needed_in_window(
    backups: Sequence[KnownBackup], window_us: int
) -> tuple[list[KnownBackup], list[str]]:
    """The backups that are needed to reach each moment since then; which of them are `held`.

    A backup is superseded if a newer one can also be brought to the beginning of the window, along
    the same history, and at least as far, and was there by then; one that was checked only by
    another that was, and none by one whose drill has failed.
    """
    needed, held = list[KnownBackup](), list[str]()
    for backup in backups:
        reach = backup.reach
        is_over = reach.to_us is not None and reach.to_us < window_us and not reach.is_complete
        newer = [
            other
            for other in backups
            if other.taken_us <= window_us and _supersedes(other.reach, reach, window_us)
        ]
        superseded = any(_is_as_good(other, backup) for other in newer)
        if reach.lineage and not is_over and not superseded:
            needed.append(backup)
            held += [backup.name] if newer else []
    return needed, held


def unknown_needs(
    backups: Sequence[KnownBackup], window_us: int
) -> Iterator[tuple[str, ArchiveError]]:
    """The backups of which something that they may need could not be read, and why.

    None that a newer one replaces anyway: what is broken before that one began needs no repair.
    """
    for backup in backups:
        newer = (
            other
            for other in backups
            if other.reach.is_complete
            and other.reach.from_us is not None
            and other.reach.from_us <= window_us
            and backup.taken_us < other.taken_us <= window_us
        )
        if backup.reach.unknown is not None and not any(
            _is_as_good(other, backup) for other in newer
        ):
            yield backup.name, backup.reach.unknown


def _is_as_good(other: KnownBackup, backup: KnownBackup) -> bool:
    """Whether as much is known for a backup as for another one, and nothing against it."""
    return other.checked is True or (other.checked is None and not backup.checked)


def is_usable(
    backup: KnownBackup, floors: Mapping[str, BinlogName], lineages: Sequence[Lineage]
) -> bool:
    """Whether a backup can still be recovered along its history after these floors."""
    needs = needs_of([backup], lineages)
    return bool(needs) and all(
        floor is None or (name is not None and floor <= name)
        for floor, name in ((floors.get(id_), name) for id_, name in needs.items())
    )


def spent_ids(
    backups: Sequence[KnownBackup],
    wanted: Sequence[KnownBackup],
    floors: Mapping[str, BinlogName],
    lineages: Sequence[Lineage],
) -> list[str]:
    """The stored backups that are of no use any more: no window needs one, nor can one be used.

    `floors`: those whose grace is over. A backup that reaches nothing at all is not spent: it is
    unknown why, and perhaps it will again. One along several histories is if it is along each. None
    is while no other can be used that nothing speaks against: then they are all that there is.
    """
    good = (backup for backup in (*wanted, *backups) if backup.checked is not False)
    if not any(is_usable(backup, floors, lineages) for backup in good):
        return []
    found: dict[str, bool] = {}
    for backup in backups:
        if backup.is_stored:
            is_over = (
                bool(backup.reach.lineage)
                and backup not in wanted
                and not is_usable(backup, floors, lineages)
            )
            found[backup.id] = found.get(backup.id, True) and is_over
    return [id_ for id_, is_over in found.items() if is_over]


def _supersedes(newer: BackupReach, older: BackupReach, window_us: int) -> bool:
    if newer.from_us is None or older.from_us is None or newer.lineage != older.lineage:
        return False
    if not older.from_us < newer.from_us <= window_us:
        return False
    if newer.is_complete:
        return True
    return not older.is_complete and (newer.to_us or 0) >= (older.to_us or 0) > 0


def needs_of(
    kept: Iterable[KnownBackup], lineages: Sequence[Lineage]
) -> Mapping[str, BinlogName | None]:
    """The first binlog of each lineage that a kept backup needs; None: all of it.

    A lineage that no kept backup needs is not in it.
    """
    found: dict[str, BinlogName | None] = {}
    for backup in kept:
        begin = backup.reach.begin
        if begin is None:
            continue
        line_parts = line_of(lineages, backup.reach.lineage).parts
        ids = [line_part.lineage.id for line_part in line_parts]
        first = ids.index(begin.lineage) if begin.lineage in ids else 0
        for id_ in ids[first:]:
            name = begin.binlog if id_ == begin.lineage else None
            before = found.get(id_, name)
            found[id_] = None if name is None or before is None else min(name, before)
    return found


def given_up(
    history: Snapshot,
    lineage: Lineage,
    archived: Contents,
    *,
    needed: Mapping[str, BinlogName | None],
    old_us: int | None,
    unfinished: Unfinished,
) -> GivenUp | None:
    """What of a lineage may be given up; None if nothing may.

    `needed`: see `needs_of`. `old_us`: only what is older than this, None: of any age.
    """
    id_ = lineage.id
    if needed.get(id_, lineage.first_binlog) is None:
        return None
    limit = needed.get(id_)
    readable = history.names(id_)
    there = {*archived.binlogs, *archived.entries, *readable, *unfinished}
    first = lineage.first_binlog
    names = sorted(n for n in there if n == name_at(lineage, n.number) and n >= first)
    newest = max(archived.binlogs, default=None) if id_ == history.current else None
    floor: BinlogName | None = None
    last: Facts | None = None
    binlogs = size = 0
    for name in names:
        if name == newest or (limit is not None and name >= limit):
            break
        infos = [listed[name] for listed in (archived.binlogs, archived.entries) if name in listed]
        chunks = [] if infos else unfinished.get(name, [])
        if not chunks and len(infos) != _WHOLE and not (infos and lineage.is_below_floor(name)):
            break  # it is open, or not described yet; below the floor, it is half deleted
        dates = [info.last_modified for info in (*infos, *chunks)]
        if old_us is not None and not _is_old(None, dates, old_us):
            break
        is_whole = len(infos) == _WHOLE or (chunks and name in readable)
        known = history.brief(id_, name) if is_whole else None
        if old_us is not None and not _is_old(known, dates, old_us):
            break
        floor, last = name.next(), known or last
        binlogs += name in archived.binlogs or bool(chunks)
        size += sum(info.size for info in chunks)
        size += archived.binlogs[name].size if name in archived.binlogs else 0
    if floor is None:
        return None
    after: object = last.gtids_after if last is not None else None
    if last is None and lineage.floor is not None:
        after = lineage.floor.gtid_set
    if floor in archived.entries and (before := history.brief(id_, floor).gtids_before) is not None:
        after = before
    return GivenUp(
        lineage=lineage,
        floor=floor,
        gtid_set=str(after or ""),
        binlogs=binlogs,
        size=size,
    )


def _is_old(known: Facts | None, dates: Iterable[datetime], old_us: int) -> bool:
    """Whether a binlog is older than this by its commits, by its beginning and by the store."""
    newest = max(known.first_us, known.reached_us or 0) if known is not None else 0
    return max(newest, *map(us_of, dates)) < old_us
