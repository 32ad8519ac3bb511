"""Registered base backups: what their documents may say, and what each one reaches."""

import json
import os
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from binlog2s3.archive.backups import Backup, one_of, registered
from binlog2s3.archive.catalog import Catalog
from binlog2s3.binlog.gtid import GtidSet
from binlog2s3.binlog.names import BinlogName
from binlog2s3.config.backup import BackupConfig
from binlog2s3.config.goal import Latest, ToTime
from binlog2s3.config.points import Moment
from binlog2s3.config.stream import S3Config
from binlog2s3.errors import ArchiveError, RecoveryError, StoreError
from binlog2s3.formatting import us_of
from binlog2s3.recover.backup import start_of_registered
from binlog2s3.recover.model import Plan, Request
from binlog2s3.recover.reach import BackupReach, choose, is_ahead
from binlog2s3.recover.snapshot import Snapshot
from binlog2s3.retain.backup import add, reaches_of_backup, remove
from binlog2s3.server.connection import ServerBinlog
from binlog2s3.store.versions import Hold
from binlog2s3.stream.continuation import Begin, Contradicts, GoOn, KnownEnd, same_server
from tests.binlog_writer import UUID_A, UUID_B, XID
from tests.documents import BACKUP, BEAT, FLOOR, ID, LINEAGE, TIME, like, parent_of, turn_of
from tests.snapshots import LAYOUT, Bucket, written
from tests.unit.serve.test_places import streamed, three

NAMES = [BinlogName("mysql-bin", number) for number in range(1, 5)]
US = 1_795_253_309_000_000


def bucket() -> Bucket:
    """Four binlogs of twelve transactions each."""
    found = Bucket()
    for at, name in enumerate(NAMES):
        found.archive(binlog(1 + 12 * at), name)
    return found


def binlog_of(first: int, count: int, *, end: tuple[int, bytes] = XID) -> bytes:
    """So many transactions, a second each, that end so."""
    begin_us = US + first * 1_000_000
    made = written(count, first=first, begin_us=begin_us, apart_us=1_000_000, end=end)
    return bytes(made.data)


def binlog(first: int) -> bytes:
    return binlog_of(first, 12)


def reset(store: Bucket, binlogs: Sequence[bytes]) -> str:
    """The same GTIDs are given to other transactions after a RESET, in another lineage."""
    later = "20260202T000000Z-3e11fa47-b2c3"
    cut = parent_of(ID, binlog=str(NAMES[len(binlogs) - 1]), gtid_set="", join="unknown")
    store.lineage = like(store.lineage, id=later, parent=cut)
    store.put(LAYOUT.lineage(later), store.lineage.to_json())
    for name, data in zip(NAMES, binlogs, strict=False):
        store.archive(data, name)
    store.put(LAYOUT.turn(1), turn_of(replace(BEAT, lineage=later, generation=1)).to_json())
    return later


def by_gtids(last: int, *, days: int = 0) -> Backup:
    """A backup that has the first transactions."""
    return replace(
        BACKUP,
        id=f"2026010{1 + days}T030405Z-1f2e3d4c",
        gtid_set=f"{UUID_A}:1-{last}",
        binlog=None,
        position=None,
        lineage=None,
        taken_at=TIME + timedelta(days=days),
    )


def reach_of(backup: Backup, snapshot: Snapshot) -> BackupReach:
    """What it can be brought to along the first history that fits it."""
    return reaches_of_backup(backup, snapshot)[0]


def test_a_backup_of_something_else_reaches_nothing() -> None:
    """GTIDs that the archive does not have are refused as `pitr` refuses them."""
    reach = reach_of(replace(by_gtids(1), gtid_set=f"{UUID_A}:1-99"), bucket().snapshot())
    assert not reach.is_complete
    assert reach.lineage == ""
    assert "not in the archive" in reach.why


@pytest.mark.parametrize("gtids", ["0-9-2", "0-1-500"])
def test_a_backup_of_mariadb_whose_place_is_unknown(gtids: str) -> None:
    """It reaches nothing; one with a greater number than all may be ahead of the archive."""
    snapshot = streamed(three(), 3).snapshot()
    backup = replace(by_gtids(1), flavour="mariadb", gtid_set=gtids)
    (reach,) = reaches_of_backup(backup, snapshot)
    assert not reach.lineage
    assert "not in the archive" in reach.why
    ahead = is_ahead(start_of_registered(backup, "mariadb"), snapshot)
    assert ahead == (gtids == "0-1-500")


def test_the_newest_backup_that_reaches_a_goal_is_chosen() -> None:
    """One that is past the goal is none."""
    snapshot = bucket().snapshot()
    backups = [by_gtids(3), by_gtids(14, days=1), by_gtids(40, days=2)]
    for goal, number in ((Latest(), 2), (ToTime(US + 20_000_000, "then"), 1)):
        backup, plan = choose(backups, Request(goal=goal), snapshot)
        assert isinstance(plan, Plan)
        assert backup == backups[number]


def test_the_nearest_backup_says_why_a_goal_cannot_be_reached() -> None:
    """The newest from before a time; if all are later, the oldest."""
    snapshot = bucket().snapshot()
    wrong = f"{UUID_A}:1-99"
    backups = [replace(by_gtids(9, days=day), gtid_set=wrong) for day in range(3)]
    second = ToTime(us_of(TIME) + 30 * 3600 * 1_000_000, "the second day")
    for goal, number in ((Latest(), 2), (ToTime(0, "the epoch"), 0), (second, 1)):
        backup, why = choose(backups, Request(goal=goal), snapshot)
        assert backup == backups[number]
        assert "not in the archive" in str(why)


def test_a_recovery_begins_at_a_backup_by_its_label_or_the_begin_of_its_id() -> None:
    """If only one begins so: this only reads."""
    backups = registered(labelled(bucket(), d05="monday", d06="tuesday"))
    for named in ("monday", "20260105", backups[0].id):
        assert one_of(backups, named) == backups[0]
    for named in ("2026", "", "x"):
        with pytest.raises(ArchiveError):
            one_of(backups, named)


def test_backups_are_listed_oldest_first() -> None:
    """What is not of this format is foreign; what cannot be read is named."""
    store = bucket()
    for backup in (by_gtids(14, days=1), by_gtids(3)):
        store.put(LAYOUT.backup(backup.id), backup.to_json())
    store.put(f"{LAYOUT.backups}notes.txt", b"mine")
    store.put(LAYOUT.backup("20260105T030405Z-1f2e3d4c"), b"{}")
    catalog, unreadable = Catalog(store, LAYOUT), list[ArchiveError]()
    assert registered(catalog, unreadable) == [by_gtids(3), by_gtids(14, days=1)]
    assert catalog.foreign.keys() == {f"{LAYOUT.backups}notes.txt"}
    assert len(unreadable) == 1
    assert [lineage.id for lineage in catalog.lineages()] == [ID]


@pytest.mark.parametrize(
    "changed",
    [
        *({"id": "../x"}, {"label": "a\nb"}, {"gtid_set": "x y;"}, {"binlog": None}),
        *({"position": -1}, {"flavour": "postgres"}, {"lineage": "x"}),
        {"gtid_set": None, "binlog": None, "position": None},
        {"taken_at": "2026-01-02T03:04:05"},
        *({"defects": ["x"]}, {"accepted": "x"}),  # one without the other
        *({"defects": one, "accepted": "x"} for one in ("x", ["a\nb"], [1])),
    ],
)
def test_a_backup_that_breaks_the_format_is_refused(changed: dict[str, object]) -> None:
    """Every field is as strict as in the other documents; 0.2.0 did not write all of them."""
    key = LAYOUT.backup(BACKUP.id)
    document = json.loads(BACKUP.to_json())
    assert Backup.from_json(BACKUP.to_json(), key) == BACKUP
    for name in ("checked", "defects", "accepted"):
        del document[name]
    assert Backup.from_json(json.dumps(document).encode(), key) == BACKUP
    with pytest.raises(ArchiveError):
        Backup.from_json(json.dumps(document | changed).encode(), key)


def test_the_greatest_floor_is_valid() -> None:
    """A lost race cannot lower it; what is no floor of this lineage is foreign."""
    store = bucket()
    catalog = Catalog(store, LAYOUT)
    assert catalog.with_floor(LINEAGE).floor is None
    for number in (2, 4, 3):
        floor = replace(FLOOR, binlog=NAMES[number - 1])
        store.put(LAYOUT.floor(ID, number), floor.to_json())
    assert catalog.with_floor(LINEAGE).begin == NAMES[3]
    other = BinlogName("other-bin", 9)
    store.put(LAYOUT.floor(ID, 9), replace(FLOOR, binlog=other).to_json())
    store.put(LAYOUT.floor(ID, 8), b"{}")
    store.put(f"{LAYOUT.floors(ID)}7.json", b"{}")
    assert catalog.with_floor(LINEAGE).begin == NAMES[3]
    assert len(catalog.foreign) == 3
    (lineage,) = catalog.lineages()
    assert lineage.begin == NAMES[3]
    assert lineage.is_below_floor(NAMES[2])
    assert not lineage.is_below_floor(NAMES[3])


def test_a_backup_is_forgotten_unless_a_lock_keeps_it() -> None:
    """A delete would only hide its document from some readers."""
    store, backup = bucket(), by_gtids(3)
    store.put(LAYOUT.backup(backup.id), backup.to_json())
    catalog = Catalog(store, LAYOUT)
    with pytest.raises(ArchiveError, match="Object Lock keeps"):
        remove(catalog, backup.id, lambda _: Hold(datetime.now(UTC) + timedelta(days=1)), yes=True)
    with pytest.raises(ArchiveError, match="by a legal hold"):
        remove(catalog, backup.id, lambda _: Hold(TIME, is_legal=True), yes=True)
    assert registered(catalog) == [backup]
    remove(catalog, backup.id, lambda _: Hold(TIME), yes=True)
    assert registered(catalog) == []


class KeepsAll(Bucket):
    """A store that answers each delete with 200, and deletes nothing."""

    def delete(self, keys: Iterable[str]) -> None:
        del keys


def test_what_is_called_removed_is_gone(capsys: pytest.CaptureFixture[str]) -> None:
    """It is looked up."""
    store, backup = KeepsAll(), by_gtids(3)
    store.put(LAYOUT.backup(backup.id), backup.to_json())
    with pytest.raises(StoreError, match="says that it deleted 1 objects, and 1 of them"):
        remove(Catalog(store, LAYOUT), backup.id, None, yes=True)
    assert "removed" not in capsys.readouterr().out


def test_a_backup_that_cannot_be_read_is_forgotten() -> None:
    """Otherwise nothing could ever be pruned again."""
    store = bucket()
    store.put(LAYOUT.backup("20260105T030405Z-1f2e3d4c"), b"{}")
    store.put(LAYOUT.backup("20260106T030405Z-1f2e3d4c"), b"x" * (Backup.MOST + 1))
    catalog = Catalog(store, LAYOUT)
    for id_ in ("20260105T030405Z-1f2e3d4c", "20260106T030405Z-1f2e3d4c"):
        remove(catalog, id_, None, yes=True)
    assert not [*store.list(LAYOUT.backups)]


def labelled(store: Bucket, **labels: str) -> Catalog:
    """Two registered backups with these labels, by the day of their ids."""
    for day, label in labels.items():
        backup = replace(by_gtids(3), id=f"202601{day[1:]}T030405Z-1f2e3d4c", label=label)
        store.put(LAYOUT.backup(backup.id), backup.to_json())
    return Catalog(store, LAYOUT)


@pytest.mark.parametrize(
    ("named", "why"),
    [
        ("tuesday", ""),
        ("20260108T030405Z-1f2e3d4c", ""),
        ("2026", "only the beginning"),
        ("20260105T030405Z-1f2e3d4", "only the beginning"),
        ("", "no backup"),
        ("tue", "no backup"),
        ("full", "the name of 2 backups"),
    ],
)
def test_a_backup_is_forgotten_by_its_id_or_its_label(named: str, why: str) -> None:
    """That one, and no other; not by a part of them: the message has the ids with their labels."""
    catalog = labelled(bucket(), d05="full", d06="full", d07="", d08="tuesday")
    with pytest.raises(ArchiveError, match=why) if why else nullcontext() as caught:
        remove(catalog, named, None, yes=True)
    labels = [one.label for one in registered(catalog)]
    assert labels == ["full", "full", "", *["tuesday"] * bool(why)]
    assert caught is None or "20260105T030405Z-1f2e3d4c (full)" in caught.value.hint


def test_no_backup_is_forgotten_without_a_question() -> None:
    """Without a terminal nobody can be asked."""
    catalog = labelled(bucket(), d05="monday")
    with pytest.raises(RecoveryError, match="not removed: there is no terminal to ask on"):
        remove(catalog, "monday", None, yes=False)
    assert len(registered(catalog)) == 1


def test_gtids_of_two_histories_are_ambiguous() -> None:
    """After a RESET: the same GTIDs, other transactions. It is said, and never guessed."""
    store = bucket()
    later = reset(store, [binlog(1 + 12 * at) for at in range(4)])
    (reach,) = reaches_of_backup(by_gtids(14), store.snapshot())
    assert (reach.lineage, reach.is_complete) == ("", False)
    assert "of two different histories" in reach.why
    assert f"--from-lineage {ID}" in reach.hint
    with pytest.raises(RecoveryError, match="cannot be used"):
        added(store, gtid_set=f"{UUID_A}:1-14")
    for lineage in (later, ID):
        (backup, reaches), _ = added(store, gtid_set=f"{UUID_A}:1-14", from_lineage=lineage)
        assert backup.lineage == lineage
        assert [one.lineage for one in reaches] == [lineage]
        assert reaches[0].is_complete == (lineage == later)


Added = tuple[tuple[Backup, list[BackupReach]], bool]


def added(store: Bucket, *, wait: float = 0.0, sleep: Any = None, **given: Any) -> Added:
    """Add a backup that these options describe; `sleep` is what happens meanwhile."""
    s3 = S3Config(bucket="b", prefix="pre")
    config = BackupConfig(s3=s3, source="orders", wait=wait, **given)
    return add(config, Catalog(store, LAYOUT), store.snapshot, sleep=sleep or (lambda _: None))


@pytest.mark.parametrize(
    ("given", "why", "hint"),
    [
        ({"gtid_set": f"{UUID_A}:1-99"}, "does not have all that this backup contains yet", "try"),
        ({"gtid_set": f"{UUID_B}:1-9"}, "GTIDs that are not in the archive", "right source"),
        ({"binlog": NAMES[-1], "position": 1 << 30}, "contains yet", "try again"),
        ({"binlog": NAMES[-1].next(), "position": 4}, "contains yet", "try again"),
        ({"binlog": NAMES[1], "position": 1 << 30}, "cannot be used", "within reach"),
        ({"binlog": NAMES[1], "position": 130}, "cannot be used", ""),
        ({"binlog": BinlogName("other-bin", 9), "position": 4}, "cannot be used", ""),
    ],
)
def test_a_backup_that_the_archive_does_not_reach_is_refused(
    given: dict[str, Any], why: str, hint: str
) -> None:
    """What can come is told from what cannot; nothing is registered."""
    store = bucket()
    with pytest.raises(RecoveryError, match=why) as caught:
        added(store, wait=5.0, **given)
    assert hint in (caught.value.hint or "")
    assert registered(Catalog(store, LAYOUT)) == []


def test_a_backup_of_the_future_is_refused() -> None:
    """It would count as the newest one for ever; clocks may differ by minutes."""
    now = us_of(datetime.now(UTC))
    late, soon = (Moment(now + seconds * 1_000_000, "then") for seconds in (3600, 60))
    with pytest.raises(RecoveryError, match="in the future"):
        added(bucket(), gtid_set=f"{UUID_A}:1-14", time=late)
    assert added(bucket(), gtid_set=f"{UUID_A}:1-14", time=soon)[1]


def test_a_backup_waits_for_its_last_transactions() -> None:
    """Taken seconds ago: it is registered when the archive has them; a stopped writer has none."""
    store, slept = bucket(), list[float]()

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 2:
            store.archive(binlog(49), NAMES[-1].next())

    with pytest.raises(RecoveryError):  # nobody writes
        added(store, wait=60.0, sleep=sleep, gtid_set=f"{UUID_A}:1-50")
    assert slept == []
    store.beat(replace(BEAT, lineage=None))
    (backup, reaches), is_new = added(store, wait=60.0, sleep=sleep, gtid_set=f"{UUID_A}:1-50")
    assert (is_new, reaches[0].is_complete, len(slept)) == (True, True, 2)
    assert registered(Catalog(store, LAYOUT)) == [backup]


def test_the_same_backup_is_registered_once(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The second time its id is told; another end, place or time makes another backup."""
    store, end = bucket(), f"{UUID_A}:1-14"
    (first, _), is_new = added(store, gtid_set=end, label="monday", location="s3://backups/1")
    assert is_new
    (again, reaches), is_new = added(store, gtid_set=end, location="s3://backups/1")
    assert (again, is_new, reaches[0].is_complete) == (first, False, True)
    assert capsys.readouterr().err == ""
    (again, _), is_new = added(store, gtid_set=end, location="s3://backups/1", label="tuesday")
    assert (again, is_new) == (first, False)
    assert "(monday) keeps its label" in capsys.readouterr().err
    at = Moment(US, "then")
    for other in (
        {"gtid_set": f"{UUID_A}:1-13", "location": "s3://backups/1"},
        {"gtid_set": end, "location": "s3://backups/2"},
        {"gtid_set": end, "location": "s3://backups/1", "time": at},
    ):
        assert added(store, **other)[1]
    # a dump of every night, in the same file, of a source that is idle
    dump = tmp_path / "dump.sql"
    dump.write_text(
        "-- MySQL dump 10.13  Distrib 9.7.0, for Linux (x86_64)\n"
        f"SET @@GLOBAL.GTID_PURGED=/*!80000 '+'*/ '{end}';\n"
        "USE `mysql`;\nCREATE TABLE `t` (\n);\nINSERT INTO `t` VALUES (1);\n"
        "-- Dump completed on 2026-01-02  3:04:05\n"
    )
    (first, _), is_new = added(store, from_backup=dump)
    assert is_new
    assert us_of(first.taken_at) == dump.stat().st_mtime_ns // 1000
    assert added(store, from_backup=dump)[0][0] == first
    os.utime(dump, (1, 1))
    assert added(store, from_backup=dump)[1]
    assert len(registered(Catalog(store, LAYOUT))) == 6


@pytest.mark.parametrize(
    ("number", "before", "wanted"),
    [
        (2, "1-5", "goes on"),
        (2, "1-3", "contradicts"),
        (5, "1-9", "gap"),
        (1, "", "unknown"),
    ],
)
def test_a_lineage_that_was_pruned_as_a_whole_goes_on_by_its_floor(
    number: int, before: str, wanted: str
) -> None:
    """Its floor says after which GTIDs; nothing else is ever spliced to it."""
    floored = replace(LINEAGE, floor=FLOOR)
    known_end = KnownEnd(lineage=floored, gtids=GtidSet.parse(FLOOR.gtid_set))
    text = FLOOR.gtid_set.replace("1-5", before) if before else ""
    row = ServerBinlog(name=BinlogName(FLOOR.binlog.prefix, number), size=500, encrypted=False)
    course = same_server(known_end, (row,), lambda _: text)
    if wanted == "goes on":
        assert isinstance(course, GoOn)
        assert (course.begin, course.again) == (FLOOR.binlog, False)
    elif wanted == "contradicts":
        assert isinstance(course, Contradicts)
    else:
        assert isinstance(course, Begin)
        assert course.parent is not None
        assert (course.parent.lineage, course.parent.join) == (ID, wanted)
