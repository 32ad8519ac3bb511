"""Backups of a MariaDB whose numbers go back: what they reach, what is needed, what is found."""

from dataclasses import replace

import pytest

from binlog2s3.archive.backups import Backup
from binlog2s3.archive.catalog import Catalog
from binlog2s3.recover.backup import start_of_registered
from binlog2s3.recover.model import Latest, Plan
from binlog2s3.recover.reach import choose, is_ahead
from binlog2s3.retain.backup import reaches_of_backup
from binlog2s3.retain.window import proofs_of
from tests.documents import BACKUP, NAME
from tests.snapshots import LAYOUT, Bucket
from tests.unit.serve.test_places import NAMES, binlog_of, streamed

FIRST, LOWER, LAST = [f"0-1-{n}" for n in range(1, 6)], ["0-9-3"], ["0-1-6", "0-1-7"]


def bucket() -> Bucket:
    """Three archived binlogs: the second has one transaction, with a lower number."""
    return streamed(
        [
            binlog_of("", FIRST, rotate=str(NAMES[1])),
            binlog_of("0-1-5", LOWER, rotate=str(NAMES[2])),
            binlog_of("0-1-5,0-9-3", LAST, newest="0-9-3"),
        ],
        3,
    )


def backup(gtids: str, position: int | None = None) -> Backup:
    return replace(
        BACKUP,
        flavour="mariadb",
        tool="mariadb-dump",
        gtid_set=gtids,
        binlog=NAME if position is not None else None,
        position=position,
        lineage=None,
    )


@pytest.mark.parametrize(
    ("gtids", "first", "count"),
    [("0-1-4", 0, 4), ("0-1-5", 1, 3), ("0-9-3", 2, 2), ("0-1-7", 2, 0)],
)
def test_what_a_backup_reaches(gtids: str, first: int, count: int) -> None:
    """`backup list` and `prune` keep from its place on; `pitr` and `drill` apply what follows."""
    snapshot = bucket().snapshot()
    (reach,) = reaches_of_backup(backup(gtids), snapshot)
    assert reach.is_complete, reach
    assert reach.begin is not None
    assert reach.begin.binlog <= NAMES[first]
    _, plan = choose([backup(gtids)], Latest(), snapshot, None)
    assert isinstance(plan, Plan)
    assert plan.transactions == count
    assert [one.binlog for one in plan.pieces] == (NAMES[first:] if count else [])


@pytest.mark.parametrize("gtids", ["0-9-2", "0-1-500"])
def test_a_backup_whose_place_is_unknown(gtids: str) -> None:
    """It reaches nothing; one with a greater number than all may be ahead of the archive."""
    snapshot = bucket().snapshot()
    (reach,) = reaches_of_backup(backup(gtids), snapshot)
    assert not reach.lineage
    assert "not in the archive" in reach.why
    ahead = is_ahead(start_of_registered(backup(gtids), "mariadb"), snapshot)
    assert ahead == (gtids == "0-1-500")


def test_after_a_prune() -> None:
    """The GTID's own binlog is gone: the next one's list still tells that nothing is missing."""
    there = bucket()
    for name in NAMES[:2]:
        del there.objects[LAYOUT.binlog(there.lineage.id, name)]
        del there.objects[LAYOUT.entry(there.lineage.id, name)]
    (reach,) = reaches_of_backup(backup("0-9-3"), there.snapshot())
    assert reach.is_complete, reach
    (reach,) = reaches_of_backup(backup("0-1-5"), there.snapshot())
    assert "before the archive begins" in reach.why


def test_the_window_of_status() -> None:
    """It begins at a backup whose place is known."""
    there = bucket()
    for number, gtids in enumerate(("0-9-2", "0-9-3")):
        one = replace(backup(gtids), id=f"2026010{number + 1}T030405Z-1f2e3d4c", source="orders")
        there.put(LAYOUT.backup(one.id), one.to_json())
    found = proofs_of(Catalog(there, LAYOUT), there.snapshot()).backups
    assert found.count == 2
    assert found.window_from is not None
    del there.objects[LAYOUT.backup("20260102T030405Z-1f2e3d4c")]
    assert proofs_of(Catalog(there, LAYOUT), there.snapshot()).backups.window_from is None
