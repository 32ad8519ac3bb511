"""Pruning: what is given up, when it is deleted, and that nothing that is needed ever is."""

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import cache
from io import StringIO
from typing import Any

import pytest

from binlog2s3.archive.backups import Backup, look_up, registered
from binlog2s3.archive.catalog import Catalog
from binlog2s3.archive.documents import LineageFloor
from binlog2s3.archive.drills import DrillResult, UnreadDrill, last_of, latest
from binlog2s3.archive.history import missing_binlogs
from binlog2s3.archive.index import Index
from binlog2s3.archive.pages import build
from binlog2s3.archive.writers import Retired, Turn
from binlog2s3.binlog.gtid import GtidSet
from binlog2s3.binlog.names import BinlogName
from binlog2s3.config.goal import ToTime
from binlog2s3.config.prune import PruneConfig
from binlog2s3.config.stream import S3Config
from binlog2s3.errors import ArchiveError, ObjectMissingError, RecoveryError, StoreError
from binlog2s3.formatting import moment_text, size_text
from binlog2s3.recover.backup import start_of_registered
from binlog2s3.recover.model import Plan, Request
from binlog2s3.recover.plan import make
from binlog2s3.recover.reach import BackupReach, choose
from binlog2s3.retain.backup import listed, reaches_of_backup
from binlog2s3.retain.prune import Bucket, Prune
from binlog2s3.retain.window import proofs_of, with_proofs
from binlog2s3.status.model import Status
from binlog2s3.store.errors import FullError, MendableError
from binlog2s3.store.versions import Hold
from binlog2s3.stream.archive_end import archive_end
from tests.binlog_writer import UUID_A, UUID_B, XID, BinlogWriter, statement
from tests.documents import BACKUP, BEAT, DRILL, FLOOR, ID, LINEAGE, like, parent_of, stored_as
from tests.memory_store import Contents
from tests.snapshots import LAYOUT
from tests.snapshots import Bucket as Archive

DAY = 86_400
DAY_US = DAY * 1_000_000
COUNT = 40
BEGIN = datetime(2026, 3, 1, tzinfo=UTC)
BEGIN_US = int(BEGIN.timestamp()) * 1_000_000
NOW = BEGIN + timedelta(days=COUNT)
DAYS = (5, 18, 33)
"""When base backups were made."""
S3 = S3Config(bucket="b", prefix="pre")
DEAD = "20260103T000000Z-3e11fa47-b2c3"
PROMOTED = "20260104T000000Z-3e11fa47-c3d4"


def name_of(number: int) -> BinlogName:
    return BinlogName("mysql-bin", number)


@cache
def binlog(number: int) -> bytes:
    """The binlog of a day: three transactions, at 6, 12 and 18 o'clock."""
    begin = BEGIN_US + (number - 1) * DAY_US
    found = BinlogWriter(checksum=True, timestamp=begin // 1_000_000)
    last = 3 * (number - 1)
    found.previous_gtids(GtidSet.parse(f"{UUID_A}:1-{last}" if last else ""))
    for at in range(3):
        found.transaction(
            [statement("BEGIN"), statement("INSERT"), XID],
            gtid=(UUID_A, "", last + at + 1),
            commit_us=begin + (at + 1) * DAY_US // 4,
        )
    found.rotate()
    return bytes(found.data)


def backup_of(day: int) -> Backup:
    """It has the transactions up to 6 o'clock of that day."""
    return replace(
        BACKUP,
        id=f"202603{day:02}T000000Z-1f2e3d4c",
        label=f"day {day}",
        gtid_set=f"{UUID_A}:1-{3 * day + 1}",
        binlog=None,
        position=None,
        lineage=None,
        taken_at=BEGIN + timedelta(days=day),
    )


class World(Archive):
    """Forty binlogs, one a day, with the store's dates; three registered backups.

    `before`: the number before that of the first binlog.
    """

    def __init__(
        self, backups: Sequence[int] = DAYS, *, count: int = COUNT, before: int = 0
    ) -> None:
        self.clock = BEGIN
        super().__init__(replace(LINEAGE, first_binlog=name_of(before + 1), gtid_set=""))
        self._now = lambda: self.clock
        for number in range(1, count + 1):
            self.clock = BEGIN + timedelta(days=number)
            self.archive(binlog(number), name_of(before + number))
        for day in backups:
            self.put(LAYOUT.backup(backup_of(day).id), backup_of(day).to_json())
        self.clock = NOW

    def prune(
        self, kept: Any = None, at_once: int = 5, out: StringIO | None = None, **options: Any
    ) -> str:
        """Run it; what it prints."""
        given: dict[str, Any] = {"keep": 10.0 * DAY, "yes": True, **options}
        config = PruneConfig(s3=S3, source="orders", **given)
        out = out or StringIO()
        with redirect_stdout(out):
            Prune(
                config, Bucket(Catalog(self, LAYOUT), lambda: self.clock, kept), at_once=at_once
            ).run()
        return out.getvalue()

    def numbers(self, lineage: str = ID) -> list[int]:
        """The binlogs that are there."""
        prefix = LAYOUT.binlogs(lineage)
        return [int(key[-6:]) for key in sorted(self.objects) if key.startswith(prefix)]

    def plan(self, at_us: int) -> Plan:
        """What `pitr --to-time` does without a target."""
        snapshot, goal = self.snapshot(), ToTime(at_us, "then")
        backups = registered(Catalog(self, LAYOUT))
        _, found = choose(backups, Request(goal=goal), snapshot)
        if isinstance(found, Plan):
            return found
        return make(Request(goal=goal, start=start_of_registered(backups[0], "mysql")), snapshot)


def reach_of(day: int, there: World) -> BackupReach:
    """What that backup can be brought to along the current history."""
    return reaches_of_backup(backup_of(day), there.snapshot())[0]


@cache
def filled() -> Contents:
    return World().contents()


def world() -> World:
    found = World((), count=0)
    found.restore(filled())
    return found


def test_a_window_of_ten_days() -> None:
    """The newest backup before it, and those in it, keep what they need; the rest is given up."""
    there = world()
    text = there.prune(dry_run=True)
    assert "give up     17 binlogs" in text
    assert "before mysql-bin.000018" in text
    assert "20260305T000000Z-1f2e3d4c (day 5)" in text.split("unusable")[1]
    assert text.splitlines()[-1] == "dry run: nothing was changed"
    assert not any("/floors/" in key for key in there.objects)
    there.prune()
    assert there.numbers() == [*range(1, COUNT + 1)]
    there.clock += timedelta(hours=23)
    there.prune()
    assert there.numbers() == [*range(1, COUNT + 1)]
    there.clock += timedelta(hours=2)
    assert "deleted: 17 binlogs" in there.prune()
    assert there.numbers() == [*range(18, COUNT + 1)]
    assert LAYOUT.lineage(ID) in there.objects
    entries = [key for key in there.objects if key.startswith(LAYOUT.entries(ID))]
    assert len(entries) == COUNT - 17


def test_what_still_reaches_is_not_called_given_up() -> None:
    """Superseded in the same binlog: it stays, each time, as `backup list` says."""
    there = world()
    both = [backup_of(39), backup_of(39)]
    both[1] = replace(
        both[1],
        id="20260310T000000Z-1f2e3d4d",
        gtid_set=f"{UUID_A}:1-{3 * 39 + 2}",
        taken_at=both[0].taken_at + timedelta(hours=8),
    )
    for one in both:
        there.put(LAYOUT.backup(one.id), one.to_json())
    for _ in range(2):
        text = there.prune(keep=0.0, grace=0.0)
        lost = text.partition("unusable    ")[2]
        assert "(day 39)" not in lost
        assert f"kept        {both[0].name}" in text
        assert reaches_of_backup(both[0], there.snapshot())[0].is_complete
    assert there.numbers()[0] == 39


def checked(there: World, day: int, **changes: Any) -> None:
    """Register the backup of a day as read, or otherwise."""
    backup = replace(backup_of(day), **{"checked": True, **changes})
    there.put(LAYOUT.backup(backup.id), backup.to_json())


def drilled(there: World, day: int, **changes: Any) -> None:
    """A drill of the backup of that day."""
    id_ = f"202604{day:02}T000000Z-5a6b7c8d"
    at = BACKUP.registered_at + timedelta(days=day)
    given = {"backup": backup_of(day).id, **changes}
    drill = replace(DRILL, id=id_, started_at=at, finished_at=at, **given)
    there.put(LAYOUT.drill(id_), drill.to_json())


def given_up(there: World) -> int:
    """How many binlogs a prune without a grace would give up: 4, or 17 with the oldest backup."""
    text = there.prune(grace=0.0, dry_run=True)
    (line,) = (one for one in text.splitlines() if one.startswith("give up "))
    kept = "no newer one replaces it before a drill has proved that one" in text
    count = int(line.split()[2])
    assert kept == (count == 4)
    return count


def test_a_checked_backup_is_given_up_only_for_a_checked_one() -> None:
    """Read when it was registered, or proved by the last drill that says something of it."""
    there = world()
    checked(there, 5)
    assert given_up(there) == 4
    failed = {"outcome": "failed", "backup": backup_of(18).id}
    for day, count, drill in (
        (16, 4, {"restored": "on trust", "backup": backup_of(18).id}),
        (18, 17, {}),
        (19, 4, {"step": "check", **failed}),
        (20, 4, {"step": "choose", **failed}),
        (21, 17, {"backup": backup_of(18).id}),
    ):
        drilled(there, day, **drill)
        assert given_up(there) == count, day
    there = world()
    checked(there, 5)
    checked(there, 18)
    assert given_up(there) == 17


def test_a_source_whose_clock_is_behind_shortens_no_window() -> None:
    """A backup of the window replaces none from before it, however old its commits look."""
    for days, count in ((11, 17), (9, 4)):
        there = world()
        late = replace(backup_of(18), taken_at=NOW - timedelta(days=days))
        there.put(LAYOUT.backup(late.id), late.to_json())
        text = there.prune(grace=0.0, dry_run=True)
        (line,) = (one for one in text.splitlines() if one.startswith("give up "))
        assert int(line.split()[2]) == count


def test_no_backup_is_given_up_for_one_whose_drill_has_failed() -> None:
    """Also one that nobody has checked: as backups by xtrabackup are, before a drill."""
    there = world()
    assert given_up(there) == 17
    failed = {"outcome": "failed", "step": "restore", "restored": ""}
    drilled(there, 18, **failed)
    assert given_up(there) == 4
    drilled(there, 19, **failed, backup=backup_of(5).id)
    assert given_up(there) == 4
    drilled(there, 20, backup=backup_of(18).id)
    assert given_up(there) == 17


@pytest.mark.parametrize("way", ["newer format", "late"])
def test_no_backup_is_given_up_for_one_whose_last_drill_cannot_be_read(way: str) -> None:
    """It may have failed, of any backup that was there; a later drill counts, or a later backup."""
    there = late()
    drilled(there, 18, backup=backup_of(18).id)
    assert given_up(there) == 17
    key = LAYOUT.drill("20260419T000000Z-5a6b7c8d")
    drilled(there, 19, outcome="failed", step="check", backup=backup_of(18).id)
    if way == "late":
        there.hidden = (key,)
    else:
        there.put(key, there.get(key).replace(b'"format": 1', b'"format": 2'))
    assert given_up(there) == 4
    checked(there, 18, registered_at=NOW + timedelta(seconds=1))
    assert given_up(there) == 17
    checked(there, 18)
    assert given_up(there) == 4
    drilled(there, 20, backup=backup_of(18).id)
    assert given_up(there) == 17


def test_an_older_proof_does_not_hide_that_the_last_drill_has_failed() -> None:
    """`pitr` says what the last drill of its base backup said of it."""
    there = world()
    drilled(there, 18)
    proof = last_of(latest(Catalog(there, LAYOUT)), backup_of(18))
    assert isinstance(proof, DrillResult)
    assert proof.is_proved
    for day, step in ((19, "check"), (20, "choose")):
        drilled(there, day, outcome="failed", step=step, restored="", backup=backup_of(18).id)
        last = last_of(latest(Catalog(there, LAYOUT)), backup_of(18))
        assert isinstance(last, DrillResult)
        assert (last.is_proved, last.step) == (False, "check")
    assert last_of(latest(Catalog(there, LAYOUT)), backup_of(5)) is None
    there.put(LAYOUT.drill("20260421T000000Z-5a6b7c8d"), b"{}")
    for backup in (backup_of(18), backup_of(5)):
        assert isinstance(last_of(latest(Catalog(there, LAYOUT)), backup), UnreadDrill)
    later = replace(backup_of(18), registered_at=datetime.now(UTC) + timedelta(days=9999))
    assert last_of(latest(Catalog(there, LAYOUT)), later) is not None, "it has one of its own"
    assert last_of(latest(Catalog(there, LAYOUT)), replace(later, id=BACKUP.id)) is None


@pytest.mark.parametrize("by_place", [True, False])
def test_what_may_be_of_two_histories_is_kept_in_both(*, by_place: bool) -> None:
    """After a RESET the server uses names, positions and GTIDs again: backups do not tell which.

    One that was made since, of the new history, is no reason to give up what they need.
    """
    there = World(())
    place = {"gtid_set": None, "binlog": name_of(6), "position": 4} if by_place else {}
    old = replace(backup_of(5), checked=True, **place)
    parent = parent_of(ID, binlog=str(name_of(COUNT)), gtid_set="", join="unknown")
    there.lineage = like(there.lineage, id=PROMOTED, first_binlog=name_of(1), parent=parent)
    there.put(LAYOUT.lineage(PROMOTED), there.lineage.to_json())
    for number in range(1, 13):
        there.archive(binlog(number), name_of(number))
    turn = Turn(number=1, lineage=PROMOTED, generation=1, token="0" * 16)
    there.put(LAYOUT.turn(1), turn.to_json())
    new = replace(backup_of(10), lineage=PROMOTED, checked=True)
    for one in (old, new):
        there.put(LAYOUT.backup(one.id), one.to_json())
    (reach,) = reaches_of_backup(old, there.snapshot())
    assert (reach.lineage, "histories" in reach.why) == ("", True)
    there.clock += timedelta(days=1)
    text = there.prune(keep=30.0 * DAY, grace=0.0)
    assert f"kept        {old.name}" in text
    assert there.numbers() == [*range(5, COUNT + 1)]  # that has the last commit before the backup
    assert there.numbers(PROMOTED) == [*range(1, 13)]


def test_what_was_accepted_counts_nowhere() -> None:
    """It neither keeps a binlog nor displaces a backup, and is no window; its name is said."""
    there = world()
    checked(there, 18, checked=False, defects=("it is cut off",), accepted="for a test")
    text = there.prune(grace=0.0, dry_run=True)
    assert "give up     4 binlogs" in text
    assert "not kept    backup 20260318T000000Z-1f2e3d4c (day 18)" in text
    for day in (5, 33):
        checked(there, day, checked=False, defects=("it is cut off",), accepted="for a test")
    with pytest.raises(RecoveryError, match="no registered base backup"):
        there.prune(grace=0.0)
    found = proofs_of(Catalog(there, LAYOUT), there.snapshot()).backups
    assert (found.count, found.newest_at, found.window_from) == (0, None, None)
    assert found.window_known


def test_every_moment_of_the_window_is_reachable() -> None:
    """By the same transactions as before; every earlier one is refused, because it was pruned."""
    whole, there = world(), world()
    there.prune(grace=0.0)
    assert there.numbers() == [*range(18, COUNT + 1)]
    first_us, last_us = BEGIN_US + 30 * DAY_US, BEGIN_US + (COUNT - 1) * DAY_US + 3 * DAY_US // 4
    for _ in range(20):
        at_us = random.randint(first_us, last_us - 1)
        before, after = whole.plan(at_us), there.plan(at_us)
        assert (before.stop, before.pieces) == (after.stop, after.pieces), at_us
    # from the backup of day 18 on: reachable, too, though it is before the window
    there.plan(BEGIN_US + 19 * DAY_US)
    for at_us in (BEGIN_US + 17 * DAY_US, BEGIN_US + 8 * DAY_US, BEGIN_US):
        with pytest.raises(RecoveryError) as caught:
            there.plan(at_us)
        said = f"{caught.value} {caught.value.hint}"
        assert "the binlogs before mysql-bin.000018 of" in said
        assert "were pruned" in said


def test_nothing_young_is_given_up() -> None:
    """By the commits, and by the store's dates: what was uploaded again lately stays."""
    there = world()
    key = LAYOUT.binlog(ID, name_of(7))
    there.put(key, there.objects[key].data)
    there.prune(grace=0.0)
    assert there.numbers() == [*range(7, COUNT + 1)]


def test_without_base_backups_it_is_refused() -> None:
    """Binlogs alone recover nothing; --allow-empty prunes all the same, by age."""
    there = World(())
    before = there.contents()
    with pytest.raises(RecoveryError, match="no registered base backup"):
        there.prune(grace=0.0)
    assert there.contents() == before
    there.prune(grace=0.0, allow_empty=True)
    assert there.numbers() == [*range(30, COUNT + 1)]


def test_nobody_is_asked() -> None:
    """Without --yes and without a terminal nothing changes."""
    there = world()
    with pytest.raises(RecoveryError, match="not pruned: there is no terminal to ask on"):
        there.prune(grace=0.0, yes=False)
    assert there.numbers() == [*range(1, COUNT + 1)]


def test_by_age_alone() -> None:
    """--keep-binlogs-for asks no backup; one that cannot be used any more is said."""
    there = world()
    text = there.prune(keep=None, keep_binlogs_for=15.0 * DAY, grace=0.0)
    assert there.numbers() == [*range(25, COUNT + 1)]
    assert "unusable    backup 20260318T000000Z-1f2e3d4c (day 18): " in text
    assert reach_of(33, there).is_complete


def test_from_a_gtid_set() -> None:
    """What a backup with these GTIDs needs stays, of whatever age the rest is."""
    there = world()
    there.prune(
        keep=None, keep_from_gtid_set=f"{UUID_A}:1-{3 * 35 + 1}", grace=0.0, allow_empty=True
    )
    assert there.numbers() == [*range(35, COUNT + 1)]
    with pytest.raises(RecoveryError, match="cannot be brought to now"):
        there.prune(keep=None, keep_from_gtid_set=f"{UUID_A}:1-3", grace=0.0, allow_empty=True)


def test_the_newest_archived_binlog_and_the_open_one_stay() -> None:
    """Whatever is asked for: a start continues there."""
    there = World(())
    there.chunks(binlog(COUNT + 1), 0, 200, name=name_of(COUNT + 1))
    there.clock += timedelta(days=365)
    there.prune(keep=0.0, grace=0.0, allow_empty=True)
    assert there.numbers() == [COUNT]
    assert any(key.startswith(LAYOUT.live) for key in there.objects)
    (lineage,) = Catalog(there, LAYOUT).lineages()
    end = archive_end(Catalog(there, LAYOUT), lineage)
    assert (end.last, end.following) == (name_of(COUNT), name_of(COUNT + 1))


def test_an_unfinished_binlog_of_the_current_lineage_stays() -> None:
    """With all that comes after it: a streamer may be at work on it."""
    there = World((), count=5)
    there.delete([LAYOUT.binlog(ID, name_of(3)), LAYOUT.entry(ID, name_of(3))])
    there.chunks(binlog(3), 0, 300, name=name_of(3))
    there.clock += timedelta(days=365)
    there.prune(keep=0.0, grace=0.0, allow_empty=True)
    assert there.numbers() == [4, 5]
    assert any(key.startswith(LAYOUT.live) for key in there.objects)


def test_a_forged_floor_deletes_and_hides_nothing() -> None:
    """Neither a recovery nor a start nor a prune believes it further than what is missing."""
    there = world()
    forged = replace(FLOOR, binlog=name_of(90), gtid_set="", raised_at=BEGIN)
    there.put(LAYOUT.floor(ID, 90), forged.to_json())
    there.clock += timedelta(days=2)
    (lineage,) = Catalog(there, LAYOUT).lineages()
    assert lineage.begin == name_of(90)
    end = archive_end(Catalog(there, LAYOUT), lineage)
    assert end.last == name_of(COUNT)
    assert reach_of(5, there).is_complete
    there.prune(grace=DAY * 1.0)  # nor does its age count: this run has chosen another one
    assert there.numbers() == [*range(1, COUNT + 1)]
    there.clock += timedelta(hours=25)
    there.prune(grace=DAY * 1.0)
    assert there.numbers() == [*range(18, COUNT + 1)]
    assert reach_of(18, there).is_complete


@pytest.mark.parametrize("binlog", ["other-bin.000018", None])
def test_a_forged_floor_in_the_way_deletes_nothing(binlog: str | None) -> None:
    """Where the floor would be is something else: without a floor nothing is deleted."""
    there = world()
    forged = b"rubbish"
    if binlog is not None:
        forged = replace(FLOOR, binlog=BinlogName.parse(binlog), raised_at=BEGIN).to_json()
    there.put(LAYOUT.floor(ID, 18), forged)
    there.clock += timedelta(hours=12)
    with pytest.raises(ArchiveError, match=f"floors/{18:010}.json"):
        there.prune(grace=0.0)
    assert there.numbers() == [*range(1, COUNT + 1)]


def test_a_floor_excuses_only_what_is_below_it() -> None:
    """A hole above it is a hole, also one that begins below it."""
    there = world()
    there.prune(grace=0.0)
    there.archive(binlog(3), name_of(3))
    for number in (18, 25):
        there.delete([LAYOUT.binlog(ID, name_of(number)), LAYOUT.entry(ID, name_of(number))])
    (lineage,) = Catalog(there, LAYOUT).lineages()
    names = [name_of(number) for number in there.numbers()]
    gaps = [(one.first.number, one.last.number) for one in missing_binlogs(lineage, names, None)]
    assert gaps == [(18, 18), (25, 25)]


def test_what_object_lock_keeps_is_not_deleted() -> None:
    """It is said, and until when; a plain DELETE would only hide it."""
    there = world()
    until = there.clock + timedelta(days=3)
    legal = True

    def kept(key: str) -> Hold:
        if legal and key.endswith("000002"):
            return Hold(is_legal=True)
        return Hold(until if key.endswith(("000003", "000004", "000004.json")) else None)

    text = there.prune(grace=0.0, kept=kept)
    assert there.numbers() == [2, 3, 4, *range(18, COUNT + 1)]
    assert "4 objects" in text
    assert f"by Object Lock until {until:%Y-%m-%dT%H:%M:%SZ}, 1 of them with a legal hold" in text
    (lineage,) = Catalog(there, LAYOUT).lineages()
    names = [name_of(number) for number in there.numbers()]
    assert list(missing_binlogs(lineage, names, None)) == []
    there.clock = until
    text = there.prune(grace=0.0, kept=kept)
    assert "by Object Lock, 1 of them with a legal hold" in text
    assert there.numbers()[:2] == [2, 18]
    legal = False
    there.prune(grace=0.0, kept=kept)
    assert there.numbers()[0] == 18


def test_a_dead_lineage_is_pruned_as_a_whole() -> None:
    """Its description stays; a lineage that no backup needs has no binlog any more."""
    there = with_dead_lineage()
    dead = next(one for one in Catalog(there, LAYOUT).lineages() if one.id == DEAD)
    there.prune(grace=0.0)
    assert not [key for key in there.objects if key.startswith(LAYOUT.binlogs(DEAD))]
    assert LAYOUT.lineage(DEAD) in there.objects
    floors = {one.id: one.floor for one in Catalog(there, LAYOUT).lineages()}
    assert floors[DEAD] is not None
    assert floors[DEAD].binlog == name_of(3)
    assert floors[DEAD].gtid_set == f"{UUID_A}:1-6"
    end = archive_end(Catalog(there, LAYOUT), replace(dead, floor=floors[DEAD]))
    assert (end.last, end.following, str(end.gtids)) == (None, name_of(3), f"{UUID_A}:1-6")


def with_dead_lineage(*bounds: int, at: datetime = BEGIN) -> World:
    """Beside the current lineage another one, of two binlogs; and the third in such chunks."""
    there = world()
    parent = parent_of(ID, binlog=None, offset=0, gtid_set="", join="unknown")
    dead = like(LINEAGE, id=DEAD, first_binlog=name_of(1), gtid_set="", parent=parent)
    there.clock = BEGIN
    there.put(LAYOUT.lineage(DEAD), dead.to_json())
    alive, there.lineage = there.lineage, dead
    for number in (1, 2):
        there.archive(binlog(number), name_of(number))
    there.clock = at
    there.chunks(binlog(3), *bounds, name=name_of(3))
    there.lineage, there.clock = alive, NOW
    turn = Turn(number=1, lineage=ID, generation=1, token="0" * 16)
    there.put(LAYOUT.turn(1), turn.to_json())
    return there


def chunks_of(there: World) -> list[str]:
    """The chunks of the dead lineage."""
    return [key for key in sorted(there.objects) if key.startswith(f"{LAYOUT.live}{DEAD}/")]


@pytest.mark.parametrize(
    ("bounds", "last"),
    [
        ((0, 300, 600, len(binlog(3)) - 60), 8),
        ((300, 600), 6),  # nobody can read them: something was lost, or another run died
    ],
)
def test_what_the_source_did_not_finish_is_pruned_with_its_dead_lineage(
    bounds: tuple[int, ...], last: int
) -> None:
    """After the grace, as all else; the floor has the GTIDs of its whole transactions."""
    there = with_dead_lineage(*bounds)
    text = there.prune()
    assert f"3 binlogs, {size_of(there)} before mysql-bin.000004 of {DEAD}" in text
    assert (there.numbers(DEAD), len(chunks_of(there))) == ([1, 2], len(bounds) - 1)
    there.clock += timedelta(hours=25)
    there.prune()
    assert (there.numbers(DEAD), chunks_of(there)) == ([], [])
    (floor,) = (one.floor for one in Catalog(there, LAYOUT).lineages() if one.id == DEAD)
    assert floor is not None
    assert (floor.binlog, floor.gtid_set) == (name_of(4), f"{UUID_A}:1-{last}")


def size_of(there: World) -> str:
    """The bytes of the dead lineage, in words."""
    keys = [key for key in there.objects if key.startswith(LAYOUT.binlogs(DEAD))]
    return size_text(sum(len(there.objects[key].data) for key in (*keys, *chunks_of(there))))


def test_chunks_that_somebody_may_still_write_stay() -> None:
    """Those of a day, whatever is asked for; and of the lineage that the last writer names."""
    young = with_dead_lineage(0, 300, 600, at=NOW - timedelta(hours=23))
    young.prune(keep=0.0, grace=0.0, allow_empty=True)
    assert (young.numbers(DEAD), len(chunks_of(young))) == ([], 2)
    written = with_dead_lineage(0, 300, 600)
    beat = replace(BEAT, lineage=DEAD, durable=None)
    written.put(LAYOUT.writer(beat.generation, beat.token), beat.to_json())
    written.prune(keep=0.0, grace=0.0, allow_empty=True)
    assert len(chunks_of(written)) == 2


def promoted(number: int) -> bytes:
    """The binlog of a day on a server that was promoted after day 10: one transaction."""
    begin = BEGIN_US + (number - 1) * DAY_US
    found = BinlogWriter(checksum=True, timestamp=begin // 1_000_000)
    own = f",{UUID_B}:1-{number - 11}" if number > 11 else ""
    found.previous_gtids(GtidSet.parse(f"{UUID_A}:1-30{own}"))
    found.transaction(
        [statement("BEGIN"), statement("INSERT"), XID],
        gtid=(UUID_B, "", number - 10),
        commit_us=begin + DAY_US // 2,
    )
    found.rotate()
    return bytes(found.data)


def forked() -> World:
    """The first server goes on after another was promoted; its lineages are a dead branch.

    The first lineage has days 1 to 20, its dead child the others; the promoted one begins on day
    11. Backups: one that only the dead branch can bring further, and one of the current lineage.
    """
    there = World((), count=20)
    first = there.lineage
    for id_, begin, last, data in (
        (DEAD, 21, COUNT - 1, binlog),
        (PROMOTED, 11, COUNT, promoted),
    ):
        gtids = f"{UUID_A}:1-{3 * (begin - 1)}"
        cut = {"binlog": str(name_of(begin - 1)), "offset": len(binlog(begin - 1))}
        there.lineage = like(
            first,
            id=id_,
            first_binlog=name_of(begin),
            gtid_set=gtids,
            parent=parent_of(ID, gtid_set=gtids, **cut),
        )
        there.put(LAYOUT.lineage(id_), there.lineage.to_json())
        for number in range(begin, last + 1):
            there.clock = BEGIN + timedelta(days=number)
            there.archive(data(number), name_of(number))
    there.lineage, there.clock = first, NOW
    turn = Turn(number=1, lineage=PROMOTED, generation=1, token="0" * 16)
    there.put(LAYOUT.turn(1), turn.to_json())
    current = replace(backup_of(25), gtid_set=f"{UUID_A}:1-30,{UUID_B}:1-15")
    for backup in (backup_of(15), current):
        there.put(LAYOUT.backup(backup.id), backup.to_json())
    return there


def test_the_route_through_a_dead_branch_stays() -> None:
    """A backup that reaches moments of the window only there keeps each binlog on its way."""
    there = forked()

    def plan(at_us: int) -> Plan:
        start = start_of_registered(backup_of(15), "mysql")
        return make(
            Request(goal=ToTime(at_us, "then"), start=start, lineage=DEAD), there.snapshot()
        )

    moments = [BEGIN_US + day * DAY_US for day in (30, 35, 38)]
    before = [plan(at_us) for at_us in moments]
    assert {piece.lineage for piece in before[0].pieces} == {ID, DEAD}
    assert before[0].pieces[0].binlog == name_of(16)
    there.prune(grace=0.0)
    assert there.numbers() == [*range(15, 21)]
    assert there.numbers(DEAD) == [*range(21, COUNT)]
    assert there.numbers(PROMOTED) == [*range(25, COUNT + 1)]
    after = [plan(at_us) for at_us in moments]
    assert [(one.pieces, one.stop) for one in after] == [(one.pieces, one.stop) for one in before]
    # when its last moment has left the window, the branch is given up
    there.clock += timedelta(days=11)
    there.prune(grace=0.0)
    assert (there.numbers(), there.numbers(DEAD)) == ([], [])
    assert there.numbers(PROMOTED) == [*range(25, COUNT + 1)]


def test_a_lineage_that_the_store_shows_late_is_not_gone() -> None:
    """Without it, nothing would be kept for the backup that only it can bring further."""
    there = late(LAYOUT.lineage(DEAD))
    there.restore(forked().contents())
    with pytest.raises(ArchiveError, match=f"{DEAD}/ has no lineage.json"):
        there.prune(grace=0.0)
    assert there.numbers() == [*range(1, 21)]


@pytest.mark.parametrize("day", [5, 25])
def test_the_current_history_stays_while_a_dead_branch_is_later(day: int) -> None:
    """Then `pitr` asks for --lineage; what the backup needs of the current history is kept."""
    there = forked()
    (dead,) = (one for one in Catalog(there, LAYOUT).lineages() if one.id == DEAD)
    there.lineage, there.clock = dead, NOW - timedelta(hours=1)
    there.archive(binlog(COUNT), name_of(COUNT))
    there.clock = NOW
    if day < 11:  # it fits both histories
        there.delete([LAYOUT.backup(backup_of(one).id) for one in (15, 25)])
        there.put(LAYOUT.backup(backup_of(day).id), backup_of(day).to_json())
    (backup,) = (one for one in registered(Catalog(there, LAYOUT)) if one.label == f"day {day}")
    reach = reaches_of_backup(backup, there.snapshot())[0]
    assert (reach.lineage, reach.is_complete) == (PROMOTED, True)
    assert f"needs --lineage {PROMOTED}, because {DEAD}, which is left out" in reach.hint
    there.prune(grace=0.0)
    assert reaches_of_backup(backup, there.snapshot())[0].is_complete
    assert min(there.numbers(PROMOTED)) == max(day, 11)
    assert min(there.numbers()) == min(day, 15)


def paged() -> World:
    """Binlogs 981 to 1020, and the page of those up to 999."""
    there = World(before=980)
    catalog = Catalog(there, LAYOUT)
    entries = {n: catalog.entry(there.lineage, name_of(n)) for n in range(981, 1000)}
    there.put(LAYOUT.page(ID, 0), build(there.lineage, 0, entries, None).to_json())
    return there


def test_a_page_that_reaches_below_the_floor_is_clipped() -> None:
    """It stays, and nobody believes what it says of pruned binlogs."""
    whole, there = paged(), paged()
    there.prune(grace=0.0)
    assert there.numbers() == [*range(998, 1021)]
    assert LAYOUT.page(ID, 0) in there.objects
    (lineage,) = Catalog(there, LAYOUT).lineages()
    index = Index(Catalog(there, LAYOUT), lineage)
    assert index.runs() == [range(998, 1021)]
    assert not index.has(997)
    assert not there.snapshot().problems
    for day in (30, 35, 39):
        at_us = BEGIN_US + day * DAY_US
        assert there.plan(at_us).pieces == whole.plan(at_us).pieces
    with pytest.raises(RecoveryError):
        there.plan(BEGIN_US + 10 * DAY_US)


@pytest.mark.parametrize("when", ["before", "after", "halfway"])
def test_a_page_below_the_floor_is_deleted(when: str) -> None:
    """Also if prune died before that: no page is left that no later run would delete."""
    whole = paged()
    whole.clock += timedelta(days=15)
    total = changes(whole, lambda: whole.prune(grace=0.0, at_once=16))
    assert whole.numbers() == [*range(1013, 1021)]
    assert not [key for key in whole.objects if "/pages/" in key]
    for number in range(total - 1, total + 1):  # the last request deletes one key
        there = paged()
        there.clock = whole.clock
        die_at(there, number, when)
        with pytest.raises(_Killed):
            there.prune(grace=0.0, at_once=16)
        there.on_act, there.on_acted = lambda *_: None, lambda *_: None
        there.prune(grace=0.0)
        assert there.objects.keys() == whole.objects.keys(), number


def test_a_source_is_retired() -> None:
    """A small document, and nothing else."""
    there = world()
    before = {*there.objects}
    there.prune(keep=None, retire=True)
    assert {*there.objects} - before == {LAYOUT.retired}
    found = Retired.from_json(there.objects[LAYOUT.retired].data, LAYOUT.retired)
    assert found.retired_at == there.clock


def with_turns(there: World, count: int) -> World:
    for number in range(1, count + 1):
        turn = Turn(number=number, lineage=ID, generation=number, token=BEAT.token)
        there.put(LAYOUT.turn(number), turn.to_json())
    return there


def turns_of(there: World) -> list[int]:
    keys = [LAYOUT.parsed(info.key) for info in there.list(LAYOUT.turns)]
    numbers = [key.number for key in keys if key is not None]
    return [number for number in numbers if number is not None]


def test_the_last_hundred_turns_stay() -> None:
    """Each start of a streamer writes one; `turns/` would grow for ever."""
    there = with_turns(world(), 250)
    last = Catalog(there, LAYOUT).turn()
    assert "delete now  150 old turns\n" in there.prune(dry_run=True, yes=False)
    assert turns_of(there) == [*range(1, 251)]
    assert "deleted: 150 old turns\n" in there.prune()
    assert turns_of(there) == [*range(151, 251)]
    assert Catalog(there, LAYOUT).turn() == last
    assert "turn" not in there.prune()


def test_old_turns_that_may_not_be_deleted_fail_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    """A policy of an earlier version; and what Object Lock keeps is not tried."""
    there = with_turns(world(), 101)

    def refuse(_: str, keys: Sequence[str], __: Callable[[], object]) -> None:
        if LAYOUT.turn(1) in keys:
            raise MendableError("access denied: delete_object", hint="allow s3:DeleteObject")

    there.on_act = refuse
    assert "deleted:" not in there.prune()
    assert "old turns stay: access denied" in capsys.readouterr().err
    locked = Hold(until=NOW + timedelta(days=1))
    there.prune(lambda key: locked if "/turns/" in key else Hold())
    assert capsys.readouterr().err == ""
    assert turns_of(there) == [*range(1, 102)]


class KeepsAll(World):
    """A store that answers each delete with 200, and deletes nothing."""

    def delete(self, keys: Iterable[str]) -> None:
        self.calls["delete"] += len([*keys])


def test_what_is_called_deleted_is_gone() -> None:
    """It is looked up; a store that deletes nothing is an error, and nothing is said to be gone."""
    there = KeepsAll((), count=0)
    there.restore(filled())
    out = StringIO()
    with pytest.raises(StoreError, match=r"says that it deleted \d+ objects, and \d+ of"):
        there.prune(grace=0.0, out=out)
    assert there.calls["delete"] > 0
    assert "given up: the binlogs before" in out.getvalue()
    assert "deleted" not in out.getvalue()
    assert there.numbers() == [*range(1, COUNT + 1)]


class Full(World):
    """A full bucket: nothing can be put until so many objects are deleted."""

    room_after = 0

    def act_full(self) -> None:
        """Be full from now on."""

        def on_act(operation: str, keys: Sequence[str], _: Callable[[], object]) -> None:
            if operation == "delete":
                self.room_after -= len(keys)
            elif operation == "put" and self.room_after > 0:
                raise FullError("the store has no space left", hint="raise the bucket's quota")

        self.on_act = on_act


def full(room_after: int) -> Full:
    there = Full((), count=0)
    there.restore(filled())
    there.room_after = room_after
    return there


def test_a_full_bucket_without_a_floor() -> None:
    """Nothing is deleted before a floor says so: it is refused, with what to do."""
    there = full(1)
    there.act_full()
    with pytest.raises(FullError, match="no floor that is there allows") as caught:
        there.prune(grace=0.0)
    assert "nothing was deleted" in caught.value.hint
    assert there.numbers() == [*range(1, COUNT + 1)]


@pytest.mark.parametrize("room_after", [1, 1000])
def test_a_full_bucket_with_a_floor(room_after: int, capsys: pytest.CaptureFixture[str]) -> None:
    """What that floor allows is deleted. If there is room then, the rest is, too."""
    there = full(room_after)
    there.put(LAYOUT.floor(ID, 4), replace(FLOOR, binlog=name_of(4)).to_json())
    there.act_full()
    out = StringIO()
    if room_after > 1:
        with pytest.raises(FullError):
            there.prune(grace=0.0, out=out)
        assert there.numbers() == [*range(4, COUNT + 1)]
    else:
        there.prune(grace=0.0, out=out)
        assert there.numbers() == [*range(18, COUNT + 1)]
    assert "what earlier floors allow is deleted" in capsys.readouterr().err
    assert "deleted: 3 binlogs" in out.getvalue()
    check_needed(there)


class _Killed(BaseException):
    """The process is gone."""


def changes(there: World, act: Callable[[], object]) -> int:
    """How many requests that change the bucket an act makes."""
    count = 0

    def counted(operation: str, _: Sequence[str], __: Callable[[], object]) -> None:
        nonlocal count
        count += operation in ("put", "delete")

    there.on_act = counted
    act()
    there.on_act = lambda *_: None
    return count


@pytest.mark.parametrize("when", ["before", "after", "halfway"])
@pytest.mark.parametrize("is_stored", [False, True])
def test_a_death_at_every_request(when: str, *, is_stored: bool) -> None:
    """What is needed can always be recovered, and the next run ends as if nothing had happened.

    A backup that the bucket has goes document first: no document is left without its object.
    """

    def begun() -> World:
        there = with_dead_lineage(0, 100, 200, 300, 400, 500, 600)
        there.clock = BEGIN
        for day in DAYS if is_stored else ():
            store(there, day)
        there.clock = NOW
        return there

    whole = begun()
    total = changes(whole, lambda: whole.prune(grace=0.0))
    assert total > 6
    assert len(stored_there(whole)) == (len(DAYS) - 1 if is_stored else 0)
    for number in range(1, total + 1):
        there = begun()
        die_at(there, number, when)
        with pytest.raises(_Killed):
            there.prune(grace=0.0)
        there.on_act, there.on_acted = lambda *_: None, lambda *_: None
        check_needed(there)
        there.prune(grace=0.0)
        check_needed(there)
        assert there.objects.keys() == whole.objects.keys()


def die_at(there: World, number: int, when: str) -> None:
    """Die at this request that changes something; halfway: some of its keys are deleted."""
    seen = 0

    def on_act(operation: str, keys: Sequence[str], _: Callable[[], object]) -> None:
        nonlocal seen
        seen += operation in ("put", "delete")
        if seen == number and when == "before":
            raise _Killed
        if seen == number and when == "halfway":
            for key in keys[::2] if operation == "delete" else ():
                there.objects.pop(key, None)
            raise _Killed

    def on_acted(*_: object) -> None:
        if seen == number and when == "after":
            raise _Killed

    there.on_act, there.on_acted = on_act, on_acted


def check_needed(there: World) -> None:
    """Both backups that are kept reach now, a start finds the end, and no gap is reported.

    What a document names is there.
    """
    for day in (18, 33):
        assert reach_of(day, there).is_complete
    lineage = next(one for one in Catalog(there, LAYOUT).lineages() if one.id == ID)
    end = archive_end(Catalog(there, LAYOUT), lineage)
    assert (end.last, end.following) == (name_of(COUNT), name_of(COUNT + 1))
    assert str(end.gtids) == f"{UUID_A}:1-{3 * COUNT}"
    names = [name_of(number) for number in there.numbers()]
    assert list(missing_binlogs(lineage, names, None)) == []
    stored = [one.id for one in registered(Catalog(there, LAYOUT)) if one.stored is not None]
    assert [id_ for id_ in stored if LAYOUT.stored(id_, 1) not in there.objects] == []


def test_a_lost_race_cannot_lower_a_floor() -> None:
    """The greatest wins; and a store that fails leaves what was there."""
    there = world()
    there.prune(grace=0.0)
    low = LineageFloor(
        source="orders", lineage=ID, binlog=name_of(3), gtid_set="", raised_at=there.clock
    )
    there.put(LAYOUT.floor(ID, 3), low.to_json())
    (lineage,) = Catalog(there, LAYOUT).lineages()
    assert lineage.begin == name_of(18)
    there.fail_next("list", "before", StoreError("away"))
    with pytest.raises(StoreError):
        there.prune(grace=0.0)


def test_the_status_has_the_recovery_window() -> None:
    """From the oldest backup that reaches now without a gap; the newest one may be too old."""
    there = world()
    blank = Status(source="orders", target="s3://b", seen_from="bucket", at=NOW, state="idle")

    def seen(max_age: float | None = None) -> Status:
        return with_proofs(
            blank, proofs_of(Catalog(there, LAYOUT), there.snapshot()), max_age=max_age
        )

    def begin() -> timedelta:
        found = seen().backups
        assert found is not None
        assert found.window_from is not None
        return found.window_from - BEGIN

    found = seen().backups
    assert found is not None
    assert (found.count, found.newest_at) == (3, BEGIN + timedelta(days=33))
    assert begin() == timedelta(days=5, hours=6)
    assert seen(max_age=8.0 * DAY).troubles == ()
    (trouble,) = seen(max_age=6.0 * DAY).troubles
    assert (trouble.code, trouble.level) == ("backup", "warning")
    there.prune(grace=0.0)
    assert begin() == timedelta(days=18, hours=6)
    there.delete([LAYOUT.binlog(ID, name_of(30)), LAYOUT.entry(ID, name_of(30))])
    assert begin() == timedelta(days=33, hours=6)
    there.delete([LAYOUT.backup(backup_of(day).id) for day in DAYS])
    (trouble,) = seen(max_age=6.0 * DAY).troubles
    assert "no base backup is registered" in trouble.text


def store(world: World, day: int) -> str:
    """Let the bucket have that day's backup; the key of its object."""
    data = f"backup of day {day}".encode()
    backup = replace(backup_of(day), stored=stored_as(data))
    key = LAYOUT.stored(backup.id, 1)
    world.put(key, data)
    world.put(LAYOUT.backup(backup.id), backup.to_json())
    return key


def stored_there(world: World) -> list[str]:
    return [key for key in world.objects if key.startswith(LAYOUT.stored_backups)]


def test_a_stored_backup_goes_with_the_binlogs_that_only_it_needs() -> None:
    """After the grace, not before; those that the window needs stay, however often it is pruned."""
    world = World()
    keys = [store(world, day) for day in DAYS]
    assert "day 5" not in "".join(line for line in world.prune().splitlines() if "delete" in line)
    assert stored_there(world) == keys
    world.clock = NOW + timedelta(days=2)
    assert "deleted: backup 20260305T000000Z-1f2e3d4c (day 5)" in world.prune()
    assert stored_there(world) == keys[1:]
    assert [one.label for one in registered(Catalog(world, LAYOUT))] == ["day 18", "day 33"]
    world.prune()
    assert stored_there(world) == keys[1:]


def test_a_stored_backup_that_a_lock_keeps_stays_and_is_named() -> None:
    """Its document, too: a lock on either keeps both."""
    world = World()
    keys = [store(world, day) for day in DAYS]
    world.prune()
    world.clock = NOW + timedelta(days=2)
    until = world.clock + timedelta(days=7)
    said = world.prune(kept=lambda key: Hold(until if key == keys[0] else None))
    assert f"{size_text(15)}: Object Lock keeps it until {moment_text(until)}" in said
    assert stored_there(world) == keys
    assert len(registered(Catalog(world, LAYOUT))) == 3


def test_what_killed_runs_left_is_pruned() -> None:
    """Uploads at once, objects after a day; nothing that a document names."""
    world = World()
    keys = [store(world, day) for day in DAYS]
    left = LAYOUT.stored("20260301T000000Z-00000000", 1)
    world.put(left, b"half a backup")
    world.create_upload(LAYOUT.stored("20260301T000000Z-00000001", 1))
    assert "stays" in world.prune()
    assert (stored_there(world), world.uploads) == ([*keys, left], {})
    world.clock = NOW + timedelta(hours=25)
    world.prune(grace=30.0 * DAY)
    assert stored_there(world) == keys


def test_a_stored_backup_that_is_not_whole_replaces_no_other() -> None:
    """Else the binlogs of the one that can be restored would go; it is warned of."""
    world = World()
    keys = [store(world, day) for day in DAYS]
    assert "give up     17 binlogs" in world.prune(dry_run=True)
    world.delete([keys[1]])
    said = StringIO()
    with redirect_stderr(said):
        assert "give up     4 binlogs" in world.prune(dry_run=True)
    assert f"(day 18) cannot be restored: {keys[1]} is missing" in said.getvalue()
    world.put(keys[1], b"shorter")
    assert "give up     4 binlogs" in world.prune(dry_run=True)


def test_a_stored_backup_that_is_not_whole_is_no_proof() -> None:
    """Neither status, nor a recovery that chooses by itself, takes it; the list says why."""
    world = World()
    keys = [store(world, day) for day in DAYS]
    world.delete([keys[0], keys[2]])
    found = proofs_of(Catalog(world, LAYOUT), world.snapshot()).backups
    assert found.window_from == BEGIN + timedelta(days=18, hours=6)
    assert (found.count, found.newest_at) == (1, BEGIN + timedelta(days=18))
    catalog = Catalog(world, LAYOUT)
    assert [one.label for one in look_up(catalog).restorable] == ["day 18"]
    reaches = [reaches[0].why for _, reaches in listed(look_up(catalog), world.snapshot())]
    assert [f"{key} is missing" in why for key, why in zip(keys, reaches, strict=True)] == [
        True,
        False,
        True,
    ]


def test_the_last_stored_backups_stay_when_none_could_be_used() -> None:
    """It is all that there is: only a newer one that can be used frees it."""
    world = World()
    keys = [store(world, day) for day in DAYS]
    for _ in range(2):
        world.prune(keep=None, keep_binlogs_for=1.0 * DAY, allow_empty=True)
        world.clock += timedelta(days=2)
    assert min(world.numbers()) > max(DAYS) + 1
    assert stored_there(world) == keys


@pytest.mark.parametrize("why", ["removed", "its drill failed"])
def test_a_backup_that_is_needed_since_the_plan_was_made_is_kept(why: str) -> None:
    """The question may be answered after hours, when the newer backup counts no more."""
    there = world()

    def change(operation: str, keys: Sequence[str], _: object) -> None:
        if keys[0] == LAYOUT.stored_backups:  # the plan is made then
            there.on_act = lambda *_: None
            if why == "removed":
                there.delete([LAYOUT.backup(backup_of(18).id)])
            else:
                failed = {"outcome": "failed", "step": "check", "backup": backup_of(18).id}
                drilled(there, 19, **failed)

    there.on_act = change
    with pytest.raises(RecoveryError, match=r"\(day 5\) is needed by now"):
        there.prune(grace=0.0)
    assert there.numbers() == [*range(1, COUNT + 1)]
    assert not any("/floors/" in key for key in there.objects)
    there.prune(grace=0.0)
    assert there.numbers() == [*range(5, COUNT + 1)]


def test_a_backup_that_is_needed_since_the_floors_were_raised_is_kept() -> None:
    """The newer one is removed just then: nothing is deleted, and what takes that back is named."""
    there = world()

    def remove(operation: str, keys: Sequence[str], _: object) -> None:
        if operation == "put" and "/floors/" in keys[0]:
            there.on_act = lambda *_: None
            there.delete([LAYOUT.backup(backup_of(18).id)])

    there.on_act = remove
    with pytest.raises(RecoveryError, match=r"\(day 5\) is needed by now") as caught:
        there.prune(grace=0.0)
    assert there.numbers() == [*range(1, COUNT + 1)]
    (floor,) = [key for key in there.objects if "/floors/" in key]
    assert f"nothing was deleted: delete {floor}, which" in (caught.value.hint or "")
    there.delete([floor])
    there.prune(grace=0.0)
    assert there.numbers() == [*range(5, COUNT + 1)]


class Late(World):
    """What is `hidden` is listed, and a GET of it is answered with 404."""

    hidden: tuple[str, ...] = ()

    def get(self, key: str, *where: Any, **more: Any) -> bytes:
        self._seen(key)
        return super().get(key, *where, **more)

    def open(self, key: str, begin: int, end: int) -> Iterator[bytes]:
        self._seen(key)
        yield from super().open(key, begin, end)

    def _seen(self, key: str) -> None:
        if key in self.hidden:
            raise ObjectMissingError(f"there is no object {key!r}")


def late(*hidden: str) -> Late:
    there = Late((), count=0)
    there.restore(filled())
    there.hidden = hidden
    return there


def test_a_backup_that_the_store_shows_late_is_not_gone() -> None:
    """Else the binlogs that it needs would go, from day 5 to 33 here; a removed one is gone."""
    there = late(LAYOUT.backup(backup_of(5).id))
    there.delete([LAYOUT.backup(backup_of(18).id)])
    with pytest.raises(ArchiveError, match="is listed, and the store says that it is not there"):
        there.prune(grace=0.0)
    assert there.numbers() == [*range(1, COUNT + 1)]
    assert not any("/floors/" in key for key in there.objects)
    there.hidden = ()

    def remove(operation: str, keys: Sequence[str]) -> None:
        if operation == "list" and keys[0] == LAYOUT.backups:
            there.objects.pop(LAYOUT.backup(backup_of(5).id), None)

    there.on_acted = remove
    seen = look_up(Catalog(there, LAYOUT))
    assert ([one.label for one in seen.backups], seen.unreadable) == (["day 33"], [])


@pytest.mark.parametrize("way", ["short", "late"])
def test_what_cannot_be_read_gives_nothing_up(way: str) -> None:
    """A backup that reaches less only because of it may need more, once it is repaired or shown.

    Unless a newer backup replaces it: what is broken before that goes as usual.
    """

    def broken(number: int) -> Late:
        key = LAYOUT.binlog(ID, name_of(number))
        there = late(*([key] if way == "late" else []))
        if way == "short":
            there.put(key, binlog(number)[:100])
        return there

    there = broken(19)
    with pytest.raises(ArchiveError, match=r"it is unknown what backup .* needs"):
        there.prune(grace=0.0)
    assert there.numbers() == [*range(1, COUNT + 1)]
    assert not any("/floors/" in key for key in there.objects)
    there.hidden = ()
    there.put(LAYOUT.binlog(ID, name_of(19)), binlog(19))
    there.prune(grace=0.0)
    assert there.numbers() == [*range(18, COUNT + 1)]
    assert "(day 18)" in broken(8).prune(dry_run=True).partition("kept        ")[2]


def test_a_prune_beside_the_list_of_backups_fails_nothing() -> None:
    """At whichever request its deletes come: a backup whose binlogs go reaches less, no error."""
    keys = [of(ID, name_of(day)) for of in (LAYOUT.binlog, LAYOUT.entry) for day in range(1, 18)]
    number = at = 0
    incomplete = 0

    def on_act(*_: object) -> None:
        nonlocal number
        number += 1
        for key in keys if number == at else ():
            del there.objects[key]

    while number >= at:
        at, number, there = at + 1, 0, world()
        there.on_act = on_act
        incomplete += not reach_of(5, there).is_complete
    assert incomplete


def test_what_is_registered_while_prune_waits_is_no_leftover() -> None:
    """A run that stood still for days registers after all: its objects stay."""
    world = World()
    id_ = "20260301T000000Z-00000000"
    left = LAYOUT.stored(id_, 1)
    world.put(left, b"a backup")
    late = replace(backup_of(18), id=id_, label="late")

    def register(operation: str) -> None:
        if operation == "delete":
            world.on_call = lambda _: None
            world.put(LAYOUT.backup(id_), late.to_json())

    world.prune()
    world.clock = NOW + timedelta(days=2)
    world.on_call = register  # type: ignore[assignment]  # it fails no call by itself
    world.prune()
    assert LAYOUT.backup(id_) in world.objects
    assert left in world.objects
