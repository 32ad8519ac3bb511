"""Base backups that are none, and what `status`, `backup list` and `pitr` agree on."""

from dataclasses import replace
from datetime import timedelta
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from binlog2s3.archive.backups import Backup, look_up, registered
from binlog2s3.archive.catalog import Catalog
from binlog2s3.archive.documents import Lineage, LineageFloor
from binlog2s3.archive.layout import Layout
from binlog2s3.binlog.gtid import MOST_GTIDS
from binlog2s3.binlog.names import BinlogName, FilePosition
from binlog2s3.config.backup import BackupConfig
from binlog2s3.config.goal import Latest
from binlog2s3.config.stream import S3Config
from binlog2s3.errors import RecoveryError
from binlog2s3.output import Plain
from binlog2s3.recover.model import Base, Request
from binlog2s3.recover.origin import innodb_lacks
from binlog2s3.recover.reach import choose
from binlog2s3.recover.snapshot import Snapshot
from binlog2s3.retain.backup import add, reaches_of_backup
from binlog2s3.retain.window import proofs_of
from binlog2s3.status.model import BackupsStatus, Status
from binlog2s3.status.text import print_status
from binlog2s3.status.writer_state import last_report, life_sign
from lab.status_examples import IDLE
from tests.binlog_writer import UUID_A, XID, statement
from tests.documents import BACKUP, BEAT, FLOOR, ID, LINEAGE, TIME, parent_of
from tests.snapshots import LAYOUT, Bucket, workers
from tests.unit.retain.test_backups import binlog_of

NAMES = [BinlogName("mysql-bin", number) for number in (1, 2)]
WHOLE = """\
USE `mysql`;
CREATE TABLE `user` (
);
INSERT INTO `user` VALUES (1);
USE `shop`;
CREATE TABLE `t` (
);
INSERT INTO `t` VALUES (1);
"""


def binlog(first: int, *, engine: bool = True) -> bytes:
    """Three transactions, of InnoDB or of MyISAM."""
    return binlog_of(first, 3, end=XID if engine else statement("COMMIT"))


def bucket(*, engine: bool = True) -> Bucket:
    found = Bucket()
    for at, name in enumerate(NAMES):
        found.archive(binlog(1 + 3 * at, engine=engine), name)
    return found


def dump(path: Path, *, end: bool = True, body: str = WHOLE, gtids: str = f"{UUID_A}:1-4") -> Path:
    """With its coordinates missing: a doubt, so it is not called checked."""
    path.write_text(
        "-- MySQL dump 10.13  Distrib 9.7.0, for Linux (x86_64)\n--\n"
        "-- Host: localhost    Database: \n"
        f"SET @@GLOBAL.GTID_PURGED=/*!80000 '+'*/ '{gtids}';\n"
        f"{body}{'-- Dump completed on 2026-01-02  3:04:05' if end else ''}\n"
    )
    return path


def added(store: Bucket, path: Path, **given: Any) -> Backup:
    config = BackupConfig(
        s3=S3Config(bucket="b", prefix="pre"), source="orders", from_backup=path, **given
    )
    return add(config, Catalog(store, LAYOUT), store.snapshot)[0][0]


def test_a_dump_that_is_cut_off_is_registered_only_with_a_reason(tmp_path: Path) -> None:
    """The reason and the defects are in its document, which then counts for nothing."""
    store, path = bucket(), dump(tmp_path / "dump.sql", end=False)
    with pytest.raises(RecoveryError, match="no base backup of the whole server: it is cut off"):
        added(store, path)
    assert registered(Catalog(store, LAYOUT)) == []
    found = added(store, path, accept="a trial")
    assert (found.accepted, len(found.defects), found.counts) == ("a trial", 1, False)
    assert registered(Catalog(store, LAYOUT)) == [found]
    assert look_up(Catalog(store, LAYOUT)).restorable == []
    assert added(store, path, accept="another reason") == found  # once, as any backup


def test_a_reason_for_nothing_changes_nothing(tmp_path: Path) -> None:
    """A whole dump counts, whatever the operator accepts."""
    found = added(bucket(), dump(tmp_path / "dump.sql"), accept="always")
    assert (found.defects, found.accepted, found.counts) == ((), "", True)


def test_a_set_that_is_long_is_read_from_a_dump_and_registered(tmp_path: Path) -> None:
    """More than 1 MiB; and what no document has room for is refused with its limit."""
    others = ":".join(str(number) for number in range(1, 340_000, 2))
    text = f"{UUID_A}:1-4,22222222-2222-2222-2222-222222222222:{others}"
    assert 1 << 20 < len(text) < MOST_GTIDS
    data = bucket().snapshot()
    assert data.lineages
    path = dump(tmp_path / "dump.sql", gtids=text)
    store = bucket()
    with pytest.raises(RecoveryError, match="GTIDs that are not in the archive"):
        added(store, path)  # it was read
    long = replace(BACKUP, gtid_set=text, binlog=None, position=None)
    assert Backup.from_json(long.to_json(), LAYOUT.backup(long.id)) == long
    lineage = replace(LINEAGE, gtid_set=text, parent=parent_of(ID, gtid_set=text))
    assert Lineage.from_json(lineage.to_json(), LAYOUT.lineage(ID)) == lineage
    floor = replace(FLOOR, gtid_set=text)
    assert LineageFloor.from_json(floor.to_json(), LAYOUT.floor(ID, FLOOR.binlog.number)) == floor
    with pytest.raises(RecoveryError, match=r"characters; at most 4,194,304 can be read"):
        added(store, dump(path, gtids=text + "," * MOST_GTIDS))


# A physical backup


def test_innodb_data_that_end_before_the_position_are_none() -> None:
    """Only if InnoDB has what lies in between: another engine's transactions, a rotation do not."""
    names = NAMES

    def lacks(store: Bucket, has: tuple[BinlogName, int], place: tuple[BinlogName, int]) -> str:
        base = Base(position=FilePosition(*place), innodb=FilePosition(*has))
        return innodb_lacks(base, store.snapshot())

    store = bucket()
    ends = [one.end for one in store.snapshot().transactions(ID, names[0])]
    for has, place, text in (
        ((names[0], ends[0]), (names[0], ends[0]), ""),
        ((names[0], ends[0]), (names[0], ends[1]), "1 transaction in between"),
        ((names[0], ends[0]), (names[1], ends[0]), "3 transactions in between"),
        ((names[0], ends[2]), (names[1], 4), ""),
        ((names[0], ends[2]), (names[0], ends[1]), "behind its position"),
        ((names[0], ends[0]), (names[1].next(), 4), ""),  # the archive does not have it
        ((BinlogName("other-bin", 1), 4), (names[0], ends[1]), ""),
    ):
        said = lacks(store, has, place)
        assert (bool(said), text in said) == (bool(text), True), (has, place, said)
    others = bucket(engine=False)
    ends = [one.end for one in others.snapshot().transactions(ID, names[0])]
    assert lacks(others, (names[0], ends[0]), (names[0], ends[2])) == ""


# What they agree on


def by_gtids(last: int) -> Backup:
    return replace(BACKUP, gtid_set=f"{UUID_A}:1-{last}", binlog=None, position=None, lineage=None)


def test_a_backup_whose_gtids_are_not_those_of_its_place_reaches_nothing() -> None:
    """`pitr` refuses it, so nobody calls it reachable."""
    store = bucket()
    end = [one.end for one in store.snapshot().transactions(ID, NAMES[0])][1]
    wrong = replace(by_gtids(1), binlog=NAMES[0], position=end)
    (reach,) = reaches_of_backup(wrong, store.snapshot())
    assert "contradicts itself" in reach.why
    _, why = choose([wrong], Request(goal=Latest()), store.snapshot())
    assert "contradicts itself" in str(why)
    right = replace(wrong, gtid_set=f"{UUID_A}:1-2")
    assert reaches_of_backup(right, store.snapshot())[0].is_complete


def shown(store: Bucket, prefix: str = "pre") -> str:
    catalog = Catalog(store, Layout(prefix, "orders"))
    backups = proofs_of(catalog, Snapshot(catalog, workers())).backups
    return text_of(replace(IDLE, backups=backups))


def proofs_of_nothing() -> BackupsStatus:
    catalog = Catalog(bucket(), LAYOUT)
    return proofs_of(catalog, Snapshot(catalog, workers())).backups


def text_of(status: Status) -> str:
    out = StringIO()
    print_status(status, Plain(out), now=status.at)
    return " ".join(out.getvalue().split())


def test_what_could_not_be_looked_at_is_not_called_missing() -> None:
    """An archive that cannot be read, and a streamer that has not looked, say `unknown`."""
    store = bucket()
    store.put(LAYOUT.backup(BACKUP.id), by_gtids(4).to_json())
    assert "recovery window from" in shown(store)
    store.put(LAYOUT.turn(1), b"{}")  # which lineage is the current one?
    assert "recovery window unknown: pre/archive/orders/turns/" in shown(store)
    assert "no base backup reaches now" not in shown(store)
    found = proofs_of(Catalog(store, LAYOUT), None).backups
    assert (found.count, found.window_known) == (1, False)
    unseen = text_of(replace(IDLE, backups=replace(found, count=0)))
    assert "backups none known: the bucket was not looked at" in unseen
    assert "backups none: " in text_of(replace(IDLE, backups=proofs_of_nothing()))
    store = bucket()
    store.put(LAYOUT.backup(BACKUP.id), by_gtids(99).to_json())
    assert "no base backup reaches now without a gap: backup " in shown(store)
    assert f"has GTIDs that are not in the archive: {UUID_A}:" in shown(store)


def test_a_streamer_that_is_dead_leaves_the_source_with_more() -> None:
    """That is said beside how far a backup reaches; of one that is alive: tests/golden."""
    store = bucket()
    catalog, more = Catalog(store, LAYOUT), "the source may have more than the bucket"
    assert last_report(life_sign(catalog, TIME)) == f"no streamer has ever reported here; {more}"
    store.beat(BEAT)
    late = last_report(life_sign(catalog, TIME + timedelta(days=400)))
    assert late.startswith("the streamer is DEAD: its last report, due every 30 s, came ")
    assert late.endswith(f" ago; {more}")
    renewed_at = life_sign(catalog, TIME).renewed_at
    assert renewed_at is not None
    late = last_report(life_sign(catalog, renewed_at + timedelta(seconds=44)))
    assert "last reported 44 s ago, and is late: it does so every 30 s, unless it is dead" in late
