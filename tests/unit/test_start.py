"""A start goes on where the archive ends, or refuses: it never splices two histories."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import pytest

from binlog2s3.binlog import BinlogName
from binlog2s3.catalog import Catalog, Entry, EntryEnd, Layout, Lineage
from binlog2s3.config import StreamConfig
from binlog2s3.errors import ArchiveError, SourceError, SpoolError
from binlog2s3.grid import Grid
from binlog2s3.gtid import GtidSet
from binlog2s3.place import build_entry
from binlog2s3.server import ServerBinlog, ServerFacts
from binlog2s3.spool import Run, RunFacts
from binlog2s3.start import (
    Known,
    advance,
    check_history,
    check_spool,
    first_binlog,
    furthest,
    gtids_at_end,
    known_end,
    of_server,
    read_back,
    read_undescribed,
)
from tests.binlog_writer import UUID_A, UUID_B, BinlogWriter, statement
from tests.memory_store import MemoryStore

TIME = datetime(2026, 1, 2, tzinfo=UTC)
LAYOUT = Layout("p", "orders")
LINEAGE = Lineage(
    id="20260102T030405Z-3e11fa47-a1b2",
    source="orders",
    server_uuid=UUID_A,
    flavour="mysql",
    server_version="9.7.0",
    first_binlog=BinlogName.parse("b.000002"),
    first_binlog_time=TIME,
    gtid_set=f"{UUID_A}:1-5",
)
FACTS = ServerFacts(uuid=UUID_A, flavour="mysql", version="9.7.0", server_id=1, gtid_mode=True)


def name(number: int) -> BinlogName:
    """b.000001 and so on."""
    return BinlogName("b", number)


def entry(number: int, **facts: Any) -> Entry:
    """An entry of a binlog of 100 bytes with one transaction, number + 4."""
    document = Entry(
        name=name(number),
        size=100,
        crc64=0,
        first_time=TIME,
        server_id=1,
        least_commit_us=None,
        greatest_commit_us=None,
        commit_exact=True,
        gtid_set_before=f"{UUID_A}:1-{number + 3}",
        gtid_set_added=f"{UUID_A}:{number + 4}",
        transactions=1,
        anonymous_transactions=0,
        events=3,
        formats=(),
        blocks=(),
        end="rotate",
        next_binlog=str(name(number + 1)),
        archived_at=TIME,
    )
    return replace(document, **facts)


def archive(
    store: MemoryStore,
    binlogs: Sequence[int],
    entries: Sequence[int] | None = None,
    lineage: Lineage = LINEAGE,
) -> Catalog:
    """A lineage with these binlogs, and entries of all or of these."""
    store.put(LAYOUT.lineage(lineage.id), lineage.to_json())
    for number in binlogs:
        store.put(LAYOUT.binlog(lineage.id, name(number)), b"x" * 100)
    for number in binlogs if entries is None else entries:
        store.put(LAYOUT.entry(lineage.id, name(number)), entry(number).to_json())
    return Catalog(store, LAYOUT)


def known(catalog: Catalog, lineage: Lineage = LINEAGE) -> Known:
    """Where that lineage's archive ends."""
    return known_end(catalog, catalog.archived(lineage))


@pytest.fixture
def store() -> MemoryStore:
    """An empty bucket."""
    return MemoryStore()


def test_an_empty_archive_ends_before_its_first_binlog(store: MemoryStore) -> None:
    """The lineage was described, nothing is archived yet."""
    end = known(archive(store, []))
    assert (end.next_binlog, end.last, end.end) == (name(2), None, None)


def test_an_archive_ends_with_its_last_binlog(store: MemoryStore) -> None:
    """And that one's entry says what the next must fit to."""
    end = known(archive(store, [2, 3, 4]))
    assert (end.next_binlog, end.last) == (name(5), name(4))
    assert end.end == EntryEnd(
        size=100,
        gtid_set_before=f"{UUID_A}:1-7",
        gtid_set_added=f"{UUID_A}:8",
        anonymous_transactions=0,
        next_binlog="b.000005",
    )


def test_an_archive_ends_where_its_first_gap_is(store: MemoryStore) -> None:
    """Binlogs are archived side by side: a later one may be there before an earlier one."""
    assert known(archive(store, [2, 3, 5, 6])).next_binlog == name(4)


def test_an_archive_ends_where_an_entry_is_missing(store: MemoryStore) -> None:
    """What no entry describes was perhaps never compared with the source."""
    end = known(archive(store, [2, 3, 4, 6], [2, 4]))
    assert (end.next_binlog, end.last) == (name(3), name(2))


def put_binlog(store: MemoryStore, number: int, *, rotate_to: str, before: str) -> str:
    written = BinlogWriter()
    written.previous_gtids(GtidSet.parse(before))
    written.rotate(rotate_to)
    key = LAYOUT.binlog(LINEAGE.id, name(number))
    store.put(key, bytes(written.data))
    return key


def test_objects_without_entry_count_if_they_follow(store: MemoryStore) -> None:
    """Read back, if the source has them no more; what it has is compared with the source."""
    end = known(archive(store, [2, 3]))
    put_binlog(store, 4, rotate_to="b.000005", before=f"{UUID_A}:1-7")
    put_binlog(store, 5, rotate_to="b.000006", before=f"{UUID_A}:1-7")
    found = read_undescribed(store, LAYOUT, end, listed(6, 7), Grid(64))
    assert [track.name for track in found] == [name(4), name(5)]
    assert advance(end, found).next_binlog == name(6)
    assert read_undescribed(store, LAYOUT, end, listed(4, 5, 6), Grid(64)) == []
    (only,) = read_undescribed(store, LAYOUT, end, listed(5, 6), Grid(64))
    assert only.name == name(4)


@pytest.mark.parametrize(
    ("rotate_to", "before", "why"),
    [
        ("b.000007", f"{UUID_A}:1-7", "ends with a rotation to b.000007"),
        ("b.000005", f"{UUID_A}:1-6", "begins after"),
        ("b.000005", "", "begins after no GTIDs"),
    ],
)
def test_an_object_that_cannot_follow_is_refused(
    store: MemoryStore, rotate_to: str, before: str, why: str
) -> None:
    """Another binlog's bytes under the next name get no entry."""
    end = known(archive(store, [2, 3]))
    key = put_binlog(store, 4, rotate_to=rotate_to, before=before)
    with pytest.raises(ArchiveError, match=why) as caught:
        read_undescribed(store, LAYOUT, end, listed(5), Grid(64))
    assert key in str(caught.value)


def test_an_entry_without_its_binlog_is_not_counted(store: MemoryStore) -> None:
    """The object is what can be restored."""
    assert known(archive(store, [2], [2, 3])).next_binlog == name(3)


def test_an_empty_bucket_has_no_lineage_of_this_server() -> None:
    """The source is new."""
    assert of_server([], FACTS, "orders") == []


def test_this_servers_lineages_are_found() -> None:
    """Those of its uuid; others of the same source are left."""
    other = replace(LINEAGE, id="20250102T030405Z-b4308ccf-0000", server_uuid=UUID_B)
    assert of_server([other, LINEAGE], FACTS, "orders") == [LINEAGE]


def test_another_servers_source_is_refused() -> None:
    """Both are named: a copied --source is the commonest mistake of a fleet."""
    other = replace(LINEAGE, server_uuid=UUID_B)
    with pytest.raises(SourceError) as caught:
        of_server([other], FACTS, "orders")
    assert all(word in str(caught.value) for word in ("orders", UUID_A, UUID_B))
    assert "--source" in caught.value.hint


def test_of_several_lineages_the_one_that_reaches_furthest_goes_on(store: MemoryStore) -> None:
    """By the binlog that it lacks, not by its age."""
    later = replace(LINEAGE, id="20270102T030405Z-3e11fa47-a1b2")
    archive(store, [2, 3, 4])
    catalog = archive(store, [2], lineage=later)
    end = furthest(catalog, [LINEAGE, later])
    assert end is not None
    assert (end.lineage, end.next_binlog) == (LINEAGE, name(5))
    assert furthest(catalog, []) is None


def stream_config(
    binlog: BinlogName | None = None, at: Literal["oldest", "now"] = "oldest"
) -> StreamConfig:
    """What was asked for."""
    return StreamConfig(
        source="orders",
        start_binlog=binlog,
        start_at=at,
        flush_interval=0,
        heartbeat_interval=30,
    )


def listed(*numbers: int, size: int = 100) -> tuple[ServerBinlog, ...]:
    """What the server lists."""
    return tuple(ServerBinlog(name=name(n), size=size, encrypted=False) for n in numbers)


def test_the_first_binlog() -> None:
    """The oldest, the one that is open now, or the one that was asked for."""
    rows = listed(3, 4, 5)
    assert first_binlog(stream_config(), rows) == name(3)
    assert first_binlog(stream_config(at="now"), rows) == name(5)
    assert first_binlog(stream_config(name(4)), rows) == name(4)


def test_a_first_binlog_that_the_server_lacks() -> None:
    """It is named, with those that the server has."""
    with pytest.raises(SourceError, match=r"no binlog b\.000009: it has b\.000003 to b\.000005"):
        first_binlog(stream_config(name(9)), listed(3, 4, 5))
    with pytest.raises(SourceError, match="lists no binary logs"):
        first_binlog(stream_config(), ())


def test_a_server_that_goes_on(store: MemoryStore) -> None:
    """Next binlog, size of the last, GTIDs: all as the archive ends. Any it cannot tell is left."""
    end = known(archive(store, [2, 3]))
    check_history(end, listed(2, 3, 4), f"{UUID_A}:1-7")
    check_history(end, listed(4), f"{UUID_A}:1-7")  # the archived ones are purged there
    check_history(end, listed(3, 4), None)  # the server keeps no GTIDs
    unknown = known(archive(store, [2, 3], [2, 3]))
    assert unknown.end is not None
    anonymous = replace(unknown, end=replace(unknown.end, anonymous_transactions=1))
    check_history(anonymous, listed(3, 4), f"{UUID_A}:1-99")
    crashed = replace(end, end=replace(unknown.end, next_binlog=None))
    check_history(crashed, listed(3, 4), f"{UUID_A}:1-7")


def test_a_server_that_begins_the_archive(store: MemoryStore) -> None:
    """Nothing is archived yet: the GTIDs are those that the lineage began with."""
    end = known(archive(store, []))
    check_history(end, listed(2, 3), f"{UUID_A}:1-5")
    with pytest.raises(ArchiveError, match="begins after"):
        check_history(end, listed(2, 3), f"{UUID_A}:1-6")


@pytest.mark.parametrize(
    ("rows", "gtids", "words"),
    [
        (listed(5, 6), f"{UUID_A}:1-7", r"gap: the server has purged b\.000004, .* b\.000005"),
        (listed(1, 2), f"{UUID_A}:1-7", r"it has no b\.000004"),
        ((), f"{UUID_A}:1-7", r"it has no b\.000004"),
        (listed(3, 4, size=101), f"{UUID_A}:1-7", r"b\.000003 has 101 bytes there, 100 in"),
        (listed(3, 4), f"{UUID_A}:1-6", "begins after .*:1-6, the archive ends with .*:1-7"),
        (listed(3, 4), f"{UUID_A}:1-8", "begins after .*:1-8, the archive ends with .*:1-7"),
        (listed(3, 4), f"{UUID_B}:1-7", "begins after"),
        (listed(3, 4), "", "begins after no GTIDs"),
    ],
)
def test_a_server_whose_history_is_another(
    store: MemoryStore, rows: tuple[ServerBinlog, ...], gtids: str, words: str
) -> None:
    """Purged, reset, restored from a backup: refused, with what does not fit."""
    with pytest.raises(ArchiveError, match=words) as caught:
        check_history(known(archive(store, [2, 3])), rows, gtids)
    assert caught.value.exit_code == 7
    assert "--source" in caught.value.hint


def test_a_rotation_that_leads_elsewhere(store: MemoryStore) -> None:
    """The last archived binlog names the next one."""
    end = known(archive(store, [2, 3]))
    assert end.end is not None
    other = replace(end, end=replace(end.end, next_binlog="c.000001"))
    with pytest.raises(ArchiveError, match=r"ends with a rotation to c\.000001"):
        check_history(other, listed(3, 4), f"{UUID_A}:1-7")


def test_gtids_where_the_archive_ends(store: MemoryStore) -> None:
    """Before and added together; unknown without an entry or with anonymous transactions."""
    end = known(archive(store, [2, 3]))
    assert str(gtids_at_end(end)) == f"{UUID_A}:1-7"
    assert gtids_at_end(replace(end, end=None)) is None
    mariadb = replace(LINEAGE, flavour="mariadb", gtid_set="0-1-5")
    assert end.end is not None
    later = replace(end.end, gtid_set_before="0-1-5,1-1-9", gtid_set_added="0-1-7,0-2-8")
    at_end = gtids_at_end(replace(end, lineage=mariadb, end=later))
    assert str(at_end) == "0-1-7,0-2-8,1-1-9"


def test_a_spool_of_another_source_or_bucket_is_refused() -> None:
    """Its binlogs would go into the wrong archive."""
    facts = RunFacts(
        source="orders", target="s3://a/p", server_uuid=UUID_A, binlog="b.000001", position=4
    )
    run = Run(Path("/spool/run-x"), facts)
    check_spool([run, run], "orders", "s3://a/p")
    check_spool([], "orders", "s3://a/p")
    for source, target in (("other", "s3://a/p"), ("orders", "s3://b/p")):
        with pytest.raises(SpoolError, match="spool /spool holds binlogs of orders for s3://a/p"):
            check_spool([run], source, target)


def test_an_entry_can_be_made_from_the_object(store: MemoryStore) -> None:
    """The one that a writer before us had no time to write: all from the archived bytes."""
    written = BinlogWriter()
    written.transaction([statement("BEGIN"), statement("COMMIT")], gtid=(UUID_A, "", 6))
    written.rotate("b.000003")
    data = bytes(written.data)
    store.put(LAYOUT.binlog(LINEAGE.id, name(2)), data)
    key = LAYOUT.binlog(LINEAGE.id, name(2))
    made = build_entry(read_back(store, key, name(2), Grid(64)), TIME)
    assert (made.name, made.size, made.transactions) == (name(2), len(data), 1)
    assert (made.gtid_set_added, made.next_binlog) == (f"{UUID_A}:6", "b.000003")


@pytest.mark.parametrize("cut", ["", "magic", "torn", "flipped"])
def test_an_object_that_is_no_whole_binlog_gets_no_entry(store: MemoryStore, cut: str) -> None:
    """It is named, and left as it is."""
    written = BinlogWriter()
    written.rotate("b.000003")
    data = bytearray(written.data)
    data = {"": bytearray(), "magic": data[:2], "torn": data[:-1], "flipped": data}[cut]
    if cut == "flipped":
        data[-6] ^= 1
    key = LAYOUT.binlog(LINEAGE.id, name(2))
    store.put(key, bytes(data))
    with pytest.raises(ArchiveError) as caught:
        read_back(store, key, name(2), Grid(64))
    assert key in str(caught.value)
    assert store.get(key) == bytes(data)
