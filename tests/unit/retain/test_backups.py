"""Registered base backups: what their documents may say, and what each one reaches."""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from binlog2s3.archive.backups import Backup, new_id, one_of, registered
from binlog2s3.archive.catalog import Catalog
from binlog2s3.archive.documents import LineageFloor
from binlog2s3.binlog.gtid import GtidSet
from binlog2s3.binlog.names import BinlogName
from binlog2s3.errors import ArchiveError, MisplacedError
from binlog2s3.formatting import us_of
from binlog2s3.recover.model import Latest, ToTime
from binlog2s3.recover.reach import best_for, nearest
from binlog2s3.retain.backup import reach_of_backup, reach_text, remove
from binlog2s3.server.connection import ServerBinlog
from binlog2s3.stream.continuation import Begin, Contradicts, GoOn, Tip, same_server
from tests.binlog_writer import UUID_A, XID, BinlogWriter, statement
from tests.documents import BACKUP, FLOOR, ID, LINEAGE, TIME
from tests.surveyed import LAYOUT, Bucket

NAMES = [BinlogName("mysql-bin", number) for number in range(1, 5)]
US = 1_795_253_309_000_000


def bucket(*, without: int | None = None) -> Bucket:
    """Four binlogs of twelve transactions each; one may be missing."""
    found = Bucket()
    for at, name in enumerate(NAMES):
        if at != without:
            found.archive(binlog(1 + 12 * at), name)
    return found


def binlog(first: int) -> bytes:
    """Twelve transactions, a second each."""
    found = BinlogWriter(checksum=True)
    found.previous_gtids(GtidSet.parse(f"{UUID_A}:1-{first - 1}" if first > 1 else ""))
    for number in range(first, first + 12):
        found.transaction(
            [statement("BEGIN"), statement("INSERT"), XID],
            gtid=(UUID_A, "", number),
            commit_us=US + number * 1_000_000,
        )
    found.rotate()
    return bytes(found.data)


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


def test_a_backup_reaches_now() -> None:
    """Without a gap; the binlog before that of its next transaction is looked at, too."""
    reach = reach_of_backup(by_gtids(14), bucket().survey())
    assert reach.is_complete, reach
    assert reach_text(reach) == "up to now, no gap"
    assert reach.begin is not None
    assert reach.begin.binlog == NAMES[0]  # whether the backup is past a goal, it tells
    assert reach.from_us is not None
    assert reach.to_us is not None
    assert reach.from_us <= reach.to_us


def test_a_backup_ends_at_a_gap() -> None:
    """It says where: the end of the binlog before, and what is missing."""
    reach = reach_of_backup(by_gtids(3), bucket(without=2).survey())
    assert not reach.is_complete
    assert reach.end is not None
    assert reach.end.binlog == NAMES[1]
    assert "mysql-bin.000002" in reach_text(reach)
    whole = reach_of_backup(by_gtids(40), bucket(without=2).survey())
    assert whole.is_complete, whole


def test_a_backup_of_something_else_reaches_nothing() -> None:
    """GTIDs that the archive does not have are refused as `pitr` refuses them."""
    reach = reach_of_backup(replace(by_gtids(1), gtid_set=f"{UUID_A}:1-99"), bucket().survey())
    assert not reach.is_complete
    assert reach.lineage == ""
    assert "not in the archive" in reach.why


def test_the_newest_backup_that_reaches_a_goal_is_chosen() -> None:
    """One that is past the goal is none."""
    survey = bucket().survey()
    backups = [by_gtids(3), by_gtids(14, days=1), by_gtids(40, days=2)]
    found = best_for(backups, Latest(), survey, None)
    assert found is not None
    assert found[0] == backups[2]
    before = best_for(backups, ToTime(US + 20_000_000, "then"), survey, None)
    assert before is not None
    assert before[0] == backups[1]
    assert best_for(backups, ToTime(0, "the epoch"), survey, None) is None
    # the one that says why a goal cannot be reached
    assert nearest(backups, Latest()) == backups[2]
    assert nearest(backups, ToTime(0, "the epoch")) == backups[0]
    second = us_of(TIME) + 30 * 3600 * 1_000_000
    assert nearest(backups, ToTime(second, "the second day")) == backups[1]


def test_a_backup_is_found_by_the_begin_of_its_id() -> None:
    """If only one begins so."""
    backups = [by_gtids(3), by_gtids(14, days=1)]
    assert one_of(backups, backups[0].id) == backups[0]
    assert one_of(backups, "20260102") == backups[1]
    for id_ in ("2026", "", "x"):
        with pytest.raises(ArchiveError):
            one_of(backups, id_)


def test_backups_are_listed_oldest_first() -> None:
    """What is not of this format is foreign; what cannot be read is named."""
    store = bucket()
    for backup in (by_gtids(14, days=1), by_gtids(3)):
        store.put(LAYOUT.backup(backup.id), backup.to_json())
    store.put(f"{LAYOUT.backups}notes.txt", b"mine")
    store.put(LAYOUT.backup("20260105T030405Z-1f2e3d4c"), b"{}")
    catalog, unreadable = Catalog(store, LAYOUT), list[ArchiveError]()
    assert registered(catalog, unreadable) == [by_gtids(3), by_gtids(14, days=1)]
    assert catalog.foreign == {f"{LAYOUT.backups}notes.txt"}
    assert len(unreadable) == 1
    assert [lineage.id for lineage in catalog.lineages()] == [ID]


@pytest.mark.parametrize(
    "changed",
    [
        {"id": "../x"},
        {"label": "a\nb"},
        {"gtid_set": "x y;"},
        {"gtid_set": None, "binlog": None, "position": None},
        {"binlog": None},
        {"position": -1},
        {"flavour": "postgres"},
        {"lineage": "x"},
        {"taken_at": "2026-01-02T03:04:05"},
    ],
)
def test_a_backup_that_breaks_the_format_is_refused(changed: dict[str, object]) -> None:
    """Every field is as strict as in the other documents."""
    key = LAYOUT.backup(BACKUP.id)
    document = json.loads(BACKUP.to_json())
    assert Backup.from_json(BACKUP.to_json(), key) == BACKUP
    with pytest.raises(ArchiveError):
        Backup.from_json(json.dumps(document | changed).encode(), key)


def test_a_document_of_another_key_is_refused() -> None:
    """A floor of another lineage, a backup of another source."""
    with pytest.raises(MisplacedError):
        Backup.from_json(BACKUP.to_json(), LAYOUT.backup(new_id(TIME)))
    with pytest.raises(MisplacedError):
        LineageFloor.from_json(FLOOR.to_json(), LAYOUT.floor(ID, FLOOR.binlog.number + 1))


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
        remove(catalog, backup.id, lambda _: datetime.now(UTC) + timedelta(days=1))
    assert registered(catalog) == [backup]
    remove(catalog, backup.id, lambda _: TIME)
    assert registered(catalog) == []


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
    tip = Tip(lineage=floored, gtids=GtidSet.parse(FLOOR.gtid_set))
    text = FLOOR.gtid_set.replace("1-5", before) if before else ""
    row = ServerBinlog(name=replace(FLOOR.binlog, number=number), size=500, encrypted=False)
    course = same_server(tip, (row,), lambda _: text)
    if wanted == "goes on":
        assert course == GoOn(begin=FLOOR.binlog, again=False)
    elif wanted == "contradicts":
        assert isinstance(course, Contradicts)
    else:
        assert isinstance(course, Begin)
        assert course.parent is not None
        assert (course.parent.lineage, course.parent.join) == (ID, wanted)
