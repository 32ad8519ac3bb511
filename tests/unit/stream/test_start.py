"""A start goes on where the archive ends, or refuses: it never splices two histories."""

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from binlog2s3.archive.catalog import Catalog
from binlog2s3.archive.chunks import Chunk
from binlog2s3.archive.documents import Entry, Lineage
from binlog2s3.archive.layout import Layout
from binlog2s3.archive.parts import Grid
from binlog2s3.archive.reading import BinlogReading
from binlog2s3.archive.writers import Position
from binlog2s3.binlog.checksum import crc64nvme
from binlog2s3.binlog.gtid import Gtids, GtidSet, MariadbGtidList
from binlog2s3.binlog.names import BinlogName
from binlog2s3.binlog.scanner import EventType
from binlog2s3.errors import ArchiveError, SpoolError
from binlog2s3.stream.archive_end import archive_end, known_end_of_archive
from binlog2s3.stream.continuation import KnownEnd, known_end_of
from binlog2s3.stream.spool import PROBE, RunFacts, Spool, SpoolRun, check_spool
from binlog2s3.stream.start import (
    adopt,
    current_end,
    find,
    proved,
    read_undescribed,
    sweep_spool,
)
from binlog2s3.stream.tail import Track, TrackState
from tests import documents
from tests.binlog_writer import NOW, UUID_A, UUID_B, XID, BinlogWriter, statement
from tests.documents import BEAT, like, parent_of, turn_of
from tests.memory_store import MemoryStore
from tests.streamer import freed_before
from tests.unit.stream.builders import RUN, bytes_of, ends_of, name, rows

TIME = datetime(2026, 1, 2, tzinfo=UTC)
LAYOUT = Layout("p", "orders")
LINEAGE = replace(
    documents.LINEAGE, first_binlog=BinlogName.parse("b.000002"), first_binlog_time=TIME
)


def entry(number: int) -> Entry:
    """An entry of a binlog of 100 bytes with one transaction, number + 4."""
    return replace(
        documents.ENTRY,
        name=name(number),
        size=100,
        gtid_set_before=f"{UUID_A}:1-{number + 3}",
        gtid_set_added=f"{UUID_A}:{number + 4}",
        transactions=1,
        blocks=(),
        next_binlog=name(number + 1),
    )


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


def known(catalog: Catalog, lineage: Lineage = LINEAGE) -> KnownEnd:
    """Where that lineage's archive ends."""
    return archive_end(catalog, lineage)


@pytest.mark.parametrize(
    ("binlogs", "entries", "ends_before"),
    [
        ([], [], 2),  # the lineage was described, nothing is archived yet
        ([2, 3, 4], [2, 3, 4], 5),
        ([2, 3, 5, 6], [2, 3, 5, 6], 4),  # binlogs are archived side by side
        ([2, 3, 4, 6], [2, 4], 3),  # what no entry describes was perhaps never compared
        ([2], [2, 3], 3),  # the object is what can be restored
    ],
)
def test_an_archive_ends_with_its_last_whole_binlog(
    store: MemoryStore, binlogs: list[int], entries: list[int], ends_before: int
) -> None:
    """And that one's entry says what the next must fit to."""
    end = known(archive(store, binlogs, entries))
    assert end.following == name(ends_before)
    if ends_before == 2:
        assert (end.last, end.position, str(end.gtids)) == (None, None, LINEAGE.gtid_set)
        return
    last = entry(ends_before - 1)
    gtids = f"{UUID_A}:1-{ends_before + 3}"
    assert end.position == Position(binlog=last.name, offset=100, gtid_set=gtids)
    assert (end.closed, end.rotates_to) == (True, last.next_binlog)
    assert str(end.gtids_before) == last.gtid_set_before


def put_binlog(store: MemoryStore, number: int, *, rotate_to: str, before: str) -> str:
    written = BinlogWriter()
    written.previous_gtids(GtidSet.parse(before))
    written.rotate(rotate_to)
    key = LAYOUT.binlog(LINEAGE.id, name(number))
    store.put(key, bytes(written.data))
    return key


def test_objects_without_entry_count_if_they_follow(store: MemoryStore) -> None:
    """They are read back: a writer before us had no time to write their entries."""
    end = known(archive(store, [2, 3]))
    put_binlog(store, 4, rotate_to="b.000005", before=f"{UUID_A}:1-7")
    put_binlog(store, 5, rotate_to="b.000006", before=f"{UUID_A}:1-7")
    found = read_undescribed(Catalog(store, LAYOUT), end)
    assert [track.name for track in found] == [name(4), name(5)]
    made = found[0].entry(TIME)
    assert (made.gtid_set_before, made.next_binlog) == (f"{UUID_A}:1-7", name(5))
    assert made.size == len(store.get(LAYOUT.binlog(LINEAGE.id, name(4))))
    assert end.after(found).following == name(6)
    assert read_undescribed(Catalog(store, LAYOUT), end.after(found)) == []


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
        read_undescribed(Catalog(store, LAYOUT), end)
    assert key in str(caught.value)


def test_gtids_where_the_archive_ends(store: MemoryStore) -> None:
    """Before and added together; unknown with anonymous transactions."""
    catalog = archive(store, [2, 3])
    assert str(known(catalog).gtids) == f"{UUID_A}:1-7"

    def gtids_of(lineage: Lineage, **said: Any) -> Gtids | None:
        store.put(LAYOUT.entry(LINEAGE.id, name(3)), replace(entry(3), **said).to_json())
        return known(Catalog(store, LAYOUT), lineage).gtids

    assert gtids_of(LINEAGE, anonymous_transactions=1) is None
    mariadb = like(LINEAGE, flavour="mariadb", gtid_set="0-1-5")
    at_end = gtids_of(mariadb, gtid_set_before="0-1-5,1-1-9", gtid_set_added="0-1-7,0-2-8")
    assert str(at_end) == "0-1-7,0-2-8,1-1-9"


def test_a_spool_of_another_source_or_bucket_is_refused() -> None:
    """Its binlogs would go into the wrong archive."""
    facts = RunFacts(
        source="orders", target="s3://a/p", server_uuid=UUID_A, binlog="b.000001", position=4
    )
    run = SpoolRun(Path("/spool/run-x"), facts)
    check_spool([run, run], "orders", "s3://a/p")
    check_spool([], "orders", "s3://a/p")
    for source, target in (("other", "s3://a/p"), ("orders", "s3://b/p")):
        with pytest.raises(SpoolError, match="spool /spool holds binlogs of orders for s3://a/p"):
            check_spool([run], source, target)


@pytest.mark.parametrize("cut", ["", "magic", "torn", "flipped"])
def test_an_object_that_is_no_whole_binlog_gets_no_entry(
    store: MemoryStore, cut: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It is named, and left as it is: what the source has will tell."""
    written = BinlogWriter()
    written.rotate("b.000003")
    data = bytearray(written.data)
    data = {"": bytearray(), "magic": data[:2], "torn": data[:-1], "flipped": data}[cut]
    if cut == "flipped":
        data[-6] ^= 1
    key = LAYOUT.binlog(LINEAGE.id, name(2))
    store.put(key, bytes(data))
    known = KnownEnd(lineage=LINEAGE, last=name(1), closed=True)
    assert read_undescribed(Catalog(store, LAYOUT), known) == []
    assert key in caplog.records[-1].fields["key"]
    assert store.get(key) == bytes(data)


# Which history the last writer wrote


def beat(store: MemoryStore, generation: int, lineage: str | None) -> None:
    """A writer's object, and its turn."""
    made = replace(BEAT, generation=generation, lineage=lineage)
    store.put(LAYOUT.writer(*made.rank), made.to_json())
    if lineage is not None:
        store.put(LAYOUT.turn(generation), turn_of(made).to_json())


def child(number: int, of: Lineage, first: int = 2) -> Lineage:
    """A lineage that begins behind another one."""
    return like(
        LINEAGE,
        id=f"2027010{number}T030405Z-b4308ccf-a1b2",
        server_uuid=UUID_B,
        first_binlog=name(first),
        parent=parent_of(of.id),
    )


def put_lineages(store: MemoryStore, *lineages: Lineage) -> Catalog:
    for lineage in lineages:
        store.put(LAYOUT.lineage(lineage.id), lineage.to_json())
    return Catalog(store, LAYOUT)


def left_behind(store: MemoryStore, catalog: Catalog) -> tuple[Lineage, Lineage]:
    """The lineage that is there, and one that was begun a minute later and is written now."""
    (first,) = catalog.lineages()
    begun = first.first_binlog_time + timedelta(seconds=60)
    later = like(
        first,
        id="20270101T000000Z-3e11fa47-0001",
        parent=parent_of(first.id),
        first_binlog_time=begun,
    )
    put_lineages(store, later)
    beat(store, 9, later.id)
    return first, later


def chosen(catalog: Catalog) -> str:
    found = current_end(catalog, catalog.lineages(), catalog.turn())
    assert found is not None
    return found.lineage.id


def test_a_source_that_is_new_to_the_bucket_has_no_history(store: MemoryStore) -> None:
    """Nothing has been written yet."""
    assert current_end(Catalog(store, LAYOUT), [], None) is None


def test_the_history_is_the_one_that_the_last_writer_wrote(store: MemoryStore) -> None:
    """Not the newest: a lineage may have been left for an older one again, or for a copy."""
    later = like(LINEAGE, id="20270102T030405Z-3e11fa47-a1b2")
    catalog = put_lineages(store, LINEAGE, later)
    beat(store, 1, later.id)
    beat(store, 2, LINEAGE.id)
    beat(store, 3, None)  # it died before it knew
    assert chosen(catalog) == LINEAGE.id


def test_a_lineage_that_is_described_has_no_byte_before_its_turn(store: MemoryStore) -> None:
    """The writer died between the two: the one before is still the last that was written."""
    put_lineages(store, LINEAGE)
    beat(store, 1, LINEAGE.id)
    catalog = put_lineages(store, child(1, LINEAGE))
    assert chosen(catalog) == LINEAGE.id
    store.delete([LAYOUT.writer(*replace(BEAT, generation=1).rank)])
    assert chosen(catalog) == LINEAGE.id


def test_the_lineage_of_the_last_turn_is_gone(store: MemoryStore) -> None:
    """Nothing is guessed: it is named."""
    catalog = put_lineages(store, LINEAGE)
    beat(store, 1, child(1, LINEAGE).id)
    with pytest.raises(ArchiveError, match=child(1, LINEAGE).id):
        chosen(catalog)


# Where an archive ends, chunks counted in


def written(
    first: int = 1,
    count: int = 3,
    *,
    end: str = "",
    timestamp: int = NOW,
    checksum: bool = True,
    gtids: bool = True,
    text: str = "insert",
) -> BinlogWriter:
    """A binlog with these transactions, open unless it ends with a rotation to `end`, or "stop"."""
    made = BinlogWriter(timestamp=timestamp, checksum=checksum)
    made.previous_gtids(GtidSet.parse(f"{UUID_A}:1-{first - 1}" if first > 1 else ""))
    for number in range(first, first + count):
        gtid = (UUID_A, "", number) if gtids else None
        made.transaction([statement(f"{text} {number:09}")], gtid=gtid)
    if end == "stop":
        made.stop()
    elif end:
        made.rotate(end)
    return made


def put_chunks(store: MemoryStore, number: int, data: bytes, *cuts: int) -> None:
    """The first bytes of a binlog as chunks."""
    for begin, end in zip((0, *cuts), (*cuts, len(data)), strict=True):
        chunk = Chunk(begin, end, crc64nvme(data[begin:end]))
        store.put(LAYOUT.chunk(LINEAGE.id, name(number), chunk), data[begin:end])


def put_archived(
    store: MemoryStore, number: int, made: BinlogWriter, lineage: str = LINEAGE.id
) -> None:
    """A binlog with its entry."""
    reading = BinlogReading(name(number))
    reading.feed(memoryview(made.data))
    store.put(LAYOUT.binlog(lineage, name(number)), bytes(made.data))
    store.put(LAYOUT.entry(lineage, name(number)), reading.entry(TIME).to_json())


FIRST = replace(LINEAGE, first_binlog=name(1), gtid_set="")


@pytest.fixture
def catalog(store: MemoryStore) -> Catalog:
    """A lineage that begins with b.000001, of which nothing is there yet."""
    first = replace(FIRST, first_binlog_time=datetime.fromtimestamp(NOW, UTC))
    return put_lineages(store, first)


def known_of(catalog: Catalog) -> KnownEnd:
    (lineage,) = catalog.lineages()
    return archive_end(catalog, lineage)


def test_an_open_binlog_ends_the_archive(store: MemoryStore, catalog: Catalog) -> None:
    """It is the next one, with so many bytes as its chunks have."""
    put_archived(store, 1, written(1, 3, end="b.000002"))
    data = bytes(written(4, 3).data)
    put_chunks(store, 2, data, 300)
    end = known_of(catalog)
    assert (end.following, end.last, end.next_size) == (name(2), name(1), len(data))


def test_a_binlog_that_could_not_be_finished_does_not_end_the_archive(
    store: MemoryStore, catalog: Catalog
) -> None:
    """Its end, a STOP that was purged, is lost; the next one begins where its chunks end."""
    put_archived(store, 1, written(1, 3, end="b.000002"))
    put_chunks(store, 2, bytes(written(4, 3).data), 300)
    put_archived(store, 3, written(7, 3, end="b.000004"))
    end = known_of(catalog)
    assert (end.following, end.last, end.next_size) == (name(4), name(3), 0)
    put_chunks(store, 4, bytes(written(10, 1).data))
    end = known_of(catalog)
    assert (end.following, end.last) == (name(4), name(3))
    assert end.next_size == len(written(10, 1).data)


@pytest.mark.parametrize(
    ("chunks", "following"),
    [
        (written(4, 2), written(7, 3, end="b.000004")),  # b.000003 begins with another one
        (written(4, 3, gtids=False), written(7, 3, end="b.000004")),
        (written(4, 3, end="b.000003"), written(7, 3, end="b.000004")),  # it only waits
        (written(4, 3, end="stop"), written(7, 3, end="b.000004")),
    ],
)
def test_a_binlog_that_is_still_to_be_archived_ends_the_archive(
    store: MemoryStore, catalog: Catalog, chunks: BinlogWriter, following: BinlogWriter
) -> None:
    """A later one is there already: what its chunks lack, or their archiving, is still to come."""
    put_archived(store, 1, written(1, 3, end="b.000002"))
    put_chunks(store, 2, bytes(chunks.data))
    put_archived(store, 3, following)
    assert known_of(catalog).following == name(2)


def test_the_known_end_of_an_archive(store: MemoryStore, catalog: Catalog) -> None:
    """Of chunks their end, without bytes to compare; else the last binlog's last transactions."""
    end = known_of(catalog)
    known_end = known_end_of_archive(catalog, end)
    assert (known_end.last, known_end.size, known_end.closed, str(known_end.gtids)) == (
        None,
        0,
        False,
        "",
    )
    one = written(1, 3, end="b.000002")
    put_archived(store, 1, one)
    known_end = known_end_of_archive(catalog, known_of(catalog))
    assert (known_end.last, known_end.size, known_end.closed) == (name(1), len(one.data), True)
    assert (str(known_end.gtids), str(known_end.gtids_before)) == (f"{UUID_A}:1-3", "")
    assert known_end.rotates_to == name(2)
    assert known_end.overlap is not None
    assert known_end.overlap.crc64 == crc64nvme(one.data[known_end.overlap.begin :])
    assert (known_end.overlap.begin, known_end.overlap.end) == (
        one.transactions[0].begin,
        len(one.data),
    )
    two = written(4, 3)
    put_chunks(store, 2, bytes(two.data), 300)
    known_end = known_end_of_archive(catalog, known_of(catalog))
    assert (known_end.last, known_end.size, known_end.closed) == (name(2), len(two.data), False)
    assert str(known_end.gtids) == f"{UUID_A}:1-6"
    assert known_end.overlap is None


# What the spool still has


def put_run(spool: Spool, files: dict[int, bytes], **facts: Any) -> SpoolRun:
    """A run that left these files."""
    first = min(files, default=1)
    run = spool.begin(replace(RUN, **{"lineage": FIRST.id, "binlog": str(name(first)), **facts}))
    spool.end(run)
    for number, data in files.items():
        (run.directory / str(name(number))).write_bytes(data)
    return run


def adopted(spool: Spool, catalog: Catalog) -> list[Track]:
    return adopt(spool.runs(), grid=Grid(64), end=known_of(catalog), catalog=catalog)


def holds(tracks: list[Track], *binlogs: BinlogWriter, size: int | None = None) -> None:
    """The tracks are these binlogs, their bytes can be read where the tracks say."""
    assert [track.name for track in tracks] == [name(1 + n) for n in range(len(binlogs))]
    for track, made in zip(tracks, binlogs, strict=True):
        expected = bytes(made.data)
        if track is tracks[-1] and size is not None:
            expected = expected[:size]
        assert track.size == len(expected)
        track.digest.rewind()  # a torn tail has passed as well
        assert track.digest.crc64 == crc64nvme(expected)
        assert bytes_of(track.body(track.floor, track.size)) == expected[track.floor :]


def test_all_of_a_run_is_taken(spool: Spool, catalog: Catalog) -> None:
    """From where the archive ends, as far as its events are whole."""
    one, two = written(1, 3, end="b.000002"), written(4, 3)
    put_run(spool, {1: bytes(one.data), 2: bytes(two.data) + b"torn"})
    tracks = adopted(spool, catalog)
    holds(tracks, one, two)
    assert [track.closed for track in tracks] == [True, False]


@pytest.mark.parametrize("torn", [0, 1, 30])
def test_a_run_goes_on_where_the_one_before_it_ended(
    spool: Spool, catalog: Catalog, torn: int
) -> None:
    """In the middle of a binlog, and again; the segments' bytes are one binlog's."""
    one, two = written(1, 9, end="b.000002"), written(10, 3)
    data = bytes(one.data)
    ends = ends_of(one)
    put_run(spool, {1: data[: ends[4] + torn]})
    put_run(spool, {1: one.from_position(ends[1])[: ends[6] - ends[1] + torn]}, position=ends[1])
    put_run(spool, {1: one.from_position(ends[3]), 2: bytes(two.data)}, position=ends[3])
    tracks = adopted(spool, catalog)
    holds(tracks, one, two)
    assert len(tracks[0].segments) == 3
    for begin in (0, ends[3], ends[4] - 1, ends[5], ends[8]):
        assert bytes_of(tracks[0].body(begin, len(data) - 1)) == data[begin:-1]


def test_the_next_binlog_after_one_that_two_runs_brought(spool: Spool, catalog: Catalog) -> None:
    """The second run ended just behind the rotation; the third began with the next binlog."""
    one, two = written(1, 9, end="b.000002"), written(10, 3)
    ends = ends_of(one)
    put_run(spool, {1: bytes(one.data[: ends[4]])})
    put_run(spool, {1: one.from_position(ends[3])}, position=ends[3])
    put_run(spool, {2: bytes(two.data)})
    tracks = adopted(spool, catalog)
    holds(tracks, one, two)
    assert tracks[0].closed


def test_the_later_binlogs_of_a_run_whose_first_is_archived(
    spool: Spool, store: MemoryStore, catalog: Catalog
) -> None:
    """It began in the middle of a binlog that has left the spool: what came then is all there."""
    one, two, three = written(1, 3, end="b.000002"), written(4, 3, end="b.000003"), written(7, 3)
    put_archived(store, 1, one)
    put_run(spool, {2: bytes(two.data), 3: bytes(three.data)}, binlog="b.000001", position=400)
    tracks = adopted(spool, catalog)
    assert [(track.name, track.size) for track in tracks] == [
        (name(2), len(two.data)),
        (name(3), len(three.data)),
    ]


def test_a_run_that_began_anew_counts_if_it_reaches_further(spool: Spool, catalog: Catalog) -> None:
    """Nothing is spliced: the open binlog is then wholly the later run's."""
    one = written(1, 9)
    data, ends = bytes(one.data), ends_of(one)
    put_run(spool, {1: data[: ends[4]]})
    put_run(spool, {1: data[: ends[2]]})
    holds(adopted(spool, catalog), one, size=ends[4])
    longest = put_run(spool, {1: data})
    tracks = adopted(spool, catalog)
    holds(tracks, one)
    assert tracks[0].path.parent == longest.directory


def test_a_run_that_goes_on_with_other_bytes_is_left(spool: Spool, catalog: Catalog) -> None:
    """Its overlap is compared, checksums and all."""
    one, other = written(1, 9), written(1, 9, timestamp=NOW + 1)
    ends = ends_of(one)
    assert ends == ends_of(other)
    put_run(spool, {1: bytes(one.data[: ends[4]])})
    put_run(spool, {1: other.from_position(ends[3])}, position=ends[3])
    put_run(spool, {1: one.from_position(ends[6])}, position=ends[6])  # begins behind the end
    holds(adopted(spool, catalog), one, size=ends[4])


@pytest.mark.parametrize("at", ["first", "second"])
def test_damage_ends_what_is_taken(spool: Spool, catalog: Catalog, at: str) -> None:
    """A power cut leaves holes: the source is asked again from there on."""
    one, two, three = written(1, 9, end="b.000002"), written(10, 9, end="b.000003"), written(19, 1)
    first, second = bytearray(one.data), bytearray(two.data)
    ends = [transaction.end for transaction in (one if at == "first" else two).transactions]
    (first if at == "first" else second)[ends[3] + 50] ^= 1
    put_run(spool, {1: bytes(first), 2: bytes(second), 3: bytes(three.data)})
    tracks = adopted(spool, catalog)
    assert name(3) not in [track.name for track in tracks]
    for track, made in zip(tracks, (one, two), strict=False):
        assert bytes_of(track.body(0, track.size)) == bytes(made.data[: track.size])
    if at == "second":
        assert tracks[0].closed


def test_a_run_that_goes_on_and_is_damaged_then(spool: Spool, catalog: Catalog) -> None:
    """What came before the damage counts, and another run may go on from there."""
    one = written(1, 9)
    ends = ends_of(one)
    put_run(spool, {1: bytes(one.data[: ends[2]])})
    damaged = bytearray(one.from_position(ends[1]))
    damaged[-50] ^= 1
    put_run(spool, {1: bytes(damaged)}, position=ends[1])
    tracks = adopted(spool, catalog)
    assert ends[7] <= tracks[0].size < ends[8]
    known_end = known_end_of(FIRST, tracks[0], closed=tracks[0].closed)
    assert known_end.overlap is not None
    assert known_end.overlap.end == known_end.size == tracks[0].size
    assert known_end.overlap.crc64 == crc64nvme(one.data[known_end.overlap.begin : known_end.size])


def test_without_event_checksums_the_spool_is_not_believed(spool: Spool, catalog: Catalog) -> None:
    """Nothing in it was synced, and nothing would show a hole."""
    put_run(spool, {1: bytes(written(1, 3, checksum=False).data)})
    assert adopted(spool, catalog) == []


@pytest.mark.parametrize(
    "facts", [{"lineage": "20300101T000000Z-3e11fa47-0000"}, {"lineage": PROBE}]
)
def test_runs_of_other_histories_are_left(
    spool: Spool, catalog: Catalog, facts: dict[str, Any]
) -> None:
    """And so are those that only compared."""
    put_run(spool, {1: bytes(written(1, 3).data)}, **facts)
    assert adopted(spool, catalog) == []


def test_a_run_that_died_before_it_knew_its_lineage(spool: Spool, catalog: Catalog) -> None:
    """It is of the lineage that begins just like it; of another server it is not."""
    one = written(1, 3)
    put_run(spool, {1: bytes(one.data)}, lineage=None, server_uuid=UUID_B)
    assert adopted(spool, catalog) == []
    put_run(spool, {1: bytes(one.data)}, lineage=None)
    holds(adopted(spool, catalog), one)


def test_a_run_after_a_reset_that_did_not_know_its_lineage(spool: Spool, catalog: Catalog) -> None:
    """Its first binlog has the old one's name and GTIDs, but was begun at another time."""
    one, other = written(1, 3), written(1, 5, timestamp=NOW + 60)
    put_run(spool, {1: bytes(one.data)})
    put_run(spool, {1: bytes(other.data)}, lineage=None)
    holds(adopted(spool, catalog), one)


def test_a_run_after_a_fork_that_did_not_know_its_lineage(
    spool: Spool, store: MemoryStore, catalog: Catalog
) -> None:
    """It begins with a binlog that the old lineage has otherwise: it cannot be that one's."""
    put_archived(store, 1, written(1, 3, end="b.000002"))
    put_run(spool, {2: bytes(written(4, 5, timestamp=NOW + 60).data)}, lineage=None)
    assert adopted(spool, catalog) == []


def test_a_binlog_that_does_not_follow_is_left(spool: Spool, catalog: Catalog) -> None:
    """By its previous GTIDs."""
    one, two = written(1, 3, end="b.000002"), written(5, 3)
    put_run(spool, {1: bytes(one.data), 2: bytes(two.data)})
    holds(adopted(spool, catalog), one)


def test_what_lies_behind_a_hole_of_the_spool_is_left(spool: Spool, catalog: Catalog) -> None:
    """The next binlog is not there: what comes after it is no continuation."""
    put_run(spool, {2: bytes(written(4, 3).data)})
    put_run(spool, {})
    assert adopted(spool, catalog) == []


# What the bucket alone has of a binlog that is not archived


def in_pieces(store: MemoryStore, number: int, data: bytes, piece: int) -> None:
    """The first bytes of a binlog as chunks of this size."""
    put_chunks(store, number, data, *range(piece, len(data), piece))


def from_there(track: Track, made: BinlogWriter, size: int) -> None:
    """All that it has lies in the bucket, and a run can go on there."""
    data = bytes(made.data)
    assert (track.size, track.floor, track.segments) == (size, size, ())
    assert track.digest.crc64 == crc64nvme(data[:size])
    assert all(crc64 == crc64nvme(data[:at]) for at, crc64 in track.sums.items())
    assert track.sums.keys() >= {0, size}
    for part, md5 in track.md5s.items():
        assert md5 == hashlib.md5(data[part.begin : part.end]).digest()
    assert len(track.md5s) == size // 64
    known_end = known_end_of(FIRST, track, closed=track.closed)
    assert (known_end.size, known_end.closed) == (size, track.closed)
    assert known_end.overlap is not None
    assert known_end.overlap.begin < known_end.overlap.end == size
    assert known_end.overlap.crc64 == crc64nvme(data[known_end.overlap.begin : size])


@pytest.mark.parametrize("piece", [100, 300, 10_000])
def test_an_empty_spool_goes_on_where_the_chunks_end(
    spool: Spool, store: MemoryStore, catalog: Catalog, piece: int
) -> None:
    """At the last event that is whole there, behind an overlap; a closed binlog is closed."""
    one, two = written(1, 9, end="b.000002"), written(10, 9)
    in_pieces(store, 1, bytes(one.data), piece)
    in_pieces(store, 2, bytes(two.data[:-7]), piece)
    first, second = adopted(spool, catalog)
    assert (first.closed, second.closed) == (True, False)
    from_there(first, one, len(one.data))
    from_there(second, two, max(end for end in two.ends if end <= len(two.data) - 7))
    assert str(second.gtids_after()) == f"{UUID_A}:1-17"
    assert second.commits.oldest_us is None


def test_without_event_checksums_the_bucket_is_believed_and_the_spool_is_not(
    spool: Spool, store: MemoryStore, catalog: Catalog
) -> None:
    """Chunks were sent with the checksums of what came from the source."""
    one = written(1, 9, checksum=False)
    ends = ends_of(one)
    in_pieces(store, 1, bytes(one.data[: ends[4]]), 100)
    put_run(spool, {1: one.from_position(ends[3])}, position=ends[3])
    (track,) = adopted(spool, catalog)
    from_there(track, one, ends[4])


@pytest.mark.parametrize("torn", [0, 1, 30])
def test_a_run_goes_on_where_the_bucket_ends(
    spool: Spool, store: MemoryStore, catalog: Catalog, torn: int
) -> None:
    """What came before it has left the spool; others may have come further than it, or not."""
    one, two = written(1, 9, end="b.000002"), written(10, 3)
    data, ends = bytes(one.data), ends_of(one)

    def brought(begin: int, end: int) -> bytes:
        return one.from_position(begin)[: end - len(data)]

    in_pieces(store, 1, data[: ends[4] + torn], 100)
    behind = put_run(spool, {1: brought(ends[0], ends[2])}, position=ends[0])
    put_run(spool, {1: one.from_position(ends[1])[:50]}, position=ends[1])  # nothing of its own
    put_run(spool, {1: brought(ends[3], ends[6] + 9)}, position=ends[3])
    put_run(spool, {1: one.from_position(ends[5]), 2: bytes(two.data)}, position=ends[5])
    tracks = adopted(spool, catalog)
    holds(tracks, one, two)
    assert tracks[0].floor == max(end for end in one.ends if end <= ends[4] + torn)
    other = written(1, 9, end="b.000002", timestamp=NOW + 1)
    assert len(other.data) == len(data)
    same_place = other.from_position(ends[0])[: ends[2] - len(data)]
    put_run(spool, {1: same_place}, position=ends[0])  # with other bytes than the bucket
    before = spool.runs()
    sweep_spool(spool, find(Catalog(store, LAYOUT), spool.runs(), Grid(64)))
    assert spool.runs() == [run for run in before if run != behind]


def test_a_run_with_other_bytes_than_the_bucket_is_left(
    spool: Spool, store: MemoryStore, catalog: Catalog
) -> None:
    """And so is one that begins behind the bucket's end: somebody took chunks away."""
    one, other = written(1, 9), written(1, 9, timestamp=NOW + 1)
    ends = ends_of(one)
    in_pieces(store, 1, bytes(one.data[: ends[4]]), 100)
    put_run(spool, {1: other.from_position(ends[3])}, position=ends[3])
    put_run(spool, {1: one.from_position(ends[6])}, position=ends[6])
    (track,) = adopted(spool, catalog)
    from_there(track, one, ends[4])
    before = spool.runs()
    sweep_spool(spool, find(Catalog(store, LAYOUT), spool.runs(), Grid(64)))
    assert spool.runs() == before


@pytest.mark.parametrize("same", [True, False])
def test_a_spool_that_another_writer_has_overtaken(
    spool: Spool, store: MemoryStore, catalog: Catalog, *, same: bool
) -> None:
    """The bucket's bytes count, if it has those of the spool; otherwise they are compared."""
    one, other = written(1, 9), written(1, 9, text="delete")
    ends = ends_of(one)
    in_pieces(store, 1, bytes(one.data[: ends[6]]), 100)
    run = put_run(spool, {1: bytes((one if same else other).data[: ends[3]])})
    found = find(Catalog(store, LAYOUT), spool.runs(), Grid(64))
    (track,) = found.tracks
    if same:
        from_there(track, one, ends[6])
        sweep_spool(spool, found)
        assert spool.runs() == []
    else:
        assert (track.size, track.floor) == (ends[3], 0)
        sweep_spool(spool, found)
        assert list(run.files()) == [name(1)]


def test_a_spool_that_is_ahead_needs_no_byte_of_the_bucket(
    spool: Spool, store: MemoryStore, catalog: Catalog
) -> None:
    """As after a crash: nothing is read there."""
    one = written(1, 9)
    in_pieces(store, 1, bytes(one.data[: ends_of(one)[6]]), 100)
    put_run(spool, {1: bytes(one.data)})
    before = store.calls["open"]
    holds(adopted(spool, catalog), one)
    assert store.calls["open"] == before


@pytest.mark.parametrize("checksum", [True, False])
@pytest.mark.parametrize("what", ["rotten", "event", "lost", "archived"])
def test_a_floor_is_below_what_the_bucket_does_not_prove(
    spool: Spool, store: MemoryStore, catalog: Catalog, what: str, *, checksum: bool
) -> None:
    """A byte rots in a chunk, or came so from the source; a chunk is lost, even as it is read."""
    one = written(1, 9, checksum=checksum)
    data, ends = bytearray(one.data), ends_of(one)
    if what == "event":  # it says that it ends elsewhere
        data[ends[5] + 13] ^= 1
    in_pieces(store, 1, bytes(data), 100)
    keys = sorted(info.key for info in store.list(LAYOUT.live))
    hurt = keys[ends[5] // 100 + 1]
    if what == "rotten":
        rotten = bytearray(store.get(hurt))
        rotten[50] ^= 1
        store.put(hurt, bytes(rotten))
    elif what == "lost":
        store.delete([hurt])
    elif what == "archived":

        def put(operation: str) -> None:
            if operation == "open" and store.calls["open"] == 5:
                store.put(LAYOUT.binlog(FIRST.id, name(1)), bytes(one.data))
                store.delete(keys)

        store.on_call = put  # type: ignore[assignment]
        assert adopted(spool, catalog) == []
        return
    (track,) = adopted(spool, catalog)
    assert ends[3] <= track.size <= ends[5] + 100
    from_there(track, one, track.size)


@pytest.mark.parametrize("missing", [0, 10, 120])
def test_events_without_a_position_end_a_floor_before_them(
    store: MemoryStore, missing: int
) -> None:
    """MariaDB from 11.4 writes them: no run could begin among them, so it begins before them."""
    made = BinlogWriter(server_version="11.8.6-MariaDB-log")
    made.gtid_list(MariadbGtidList())
    for number in range(1, 5):
        made.mariadb_transaction(
            [(EventType.ANNOTATE_ROWS, b"a" * 30)] * 5 + [XID], gtid=(0, number), deferred=True
        )
    data = bytes(made.data[: len(made.data) - missing])
    in_pieces(store, 1, data, 150)
    lineage = like(FIRST, flavour="mariadb", first_binlog_time=datetime.fromtimestamp(NOW, UTC))
    catalog = put_lineages(store, lineage)
    (track,) = adopt([], grid=Grid(64), end=archive_end(catalog, lineage), catalog=catalog)
    size = max(end for end in made.placed if end <= len(data))
    assert (size < len(data)) == bool(missing)
    from_there(track, made, size)
    track.feed(memoryview(bytes(made.data[size:])))
    assert track.size == len(made.data)
    assert str(track.gtids_after()) == "0-7-4"


def test_of_a_history_that_has_ended_only_what_the_spool_has_is_taken(
    spool: Spool, store: MemoryStore, catalog: Catalog
) -> None:
    """On top of the bucket's bytes; where it has nothing more, they are not read."""
    left_behind(store, catalog)
    one = written(1, 9)
    ends = ends_of(one)
    in_pieces(store, 1, bytes(one.data[: ends[4]]), 100)
    run = put_run(spool, {}, position=ends[3])
    found = find(Catalog(store, LAYOUT), spool.runs(), Grid(64))
    ((_, tracks),) = found.left_behind
    assert (tracks, store.calls["open"]) == ((), 0)
    durable = put_run(spool, {1: one.from_position(ends[1])[:400]}, position=ends[1])
    there = durable.file_of(name(1))
    assert there is not None
    assert there.end < ends[4]
    sweep_spool(spool, find(Catalog(store, LAYOUT), spool.runs(), Grid(64)))
    assert not durable.directory.exists()
    run.directory.mkdir(exist_ok=True)
    spool.note(run)
    (run.directory / "b.000001").write_bytes(one.from_position(ends[3]))
    found = find(Catalog(store, LAYOUT), spool.runs(), Grid(64))
    ((_, tracks),) = found.left_behind
    holds(list(tracks), one)
    assert tracks[0].floor == ends[4]


# All of it


def test_what_a_start_finds(spool: Spool, store: MemoryStore, catalog: Catalog) -> None:
    """The history that was written last, and what is left of the one before it."""
    first, later = left_behind(store, catalog)
    one, other = written(1, 3), written(1, 2, timestamp=NOW + 60)
    put_run(spool, {1: bytes(one.data)})
    put_run(spool, {1: bytes(other.data)}, lineage=later.id)
    put_run(spool, {1: b"x"}, lineage=PROBE)
    found = find(Catalog(store, LAYOUT), spool.runs(), Grid(64))
    assert found.lineage == later
    assert [(track.name, track.size) for track in found.tracks] == [(name(1), len(other.data))]
    ((end, tracks),) = found.left_behind
    assert (end.lineage, [track.size for track in tracks]) == (first, [len(one.data)])
    sweep_spool(spool, found)
    assert {run.facts.lineage for run in spool.runs()} == {first.id, later.id}


def test_what_lies_below_the_floor_of_a_pruned_lineage_stays_in_the_spool(
    spool: Spool, store: MemoryStore, catalog: Catalog
) -> None:
    """The bucket may never have had all of it: a source did not finish its last binlog."""
    (first,) = catalog.lineages()
    later = like(first, id="20270101T000000Z-3e11fa47-0001", parent=parent_of(first.id))
    put_lineages(store, later)
    beat(store, 9, later.id)
    floor = replace(documents.FLOOR, lineage=first.id, binlog=name(5), gtid_set=f"{UUID_A}:1-12")
    store.put(LAYOUT.floor(first.id, 5), floor.to_json())
    put_run(spool, {4: bytes(written(10, 4).data)})
    found = find(Catalog(store, LAYOUT), spool.runs(), Grid(64))
    ((end, tracks),) = found.left_behind
    assert (end.following, tracks) == (name(5), ())
    sweep_spool(spool, found)
    assert [list(run.files()) for run in spool.runs()] == [[name(4)]]


def test_a_run_that_goes_does_not_stop_the_start(
    spool: Spool, store: MemoryStore, catalog: Catalog
) -> None:
    """All of it was archived, of the history that was left behind, too: its directory goes."""
    _, later = left_behind(store, catalog)
    one, other = written(1, 3, end="b.000002"), written(1, 2, end="b.000002", timestamp=NOW + 60)
    put_archived(store, 1, one)
    put_archived(store, 1, other, lineage=later.id)
    put_run(spool, {1: bytes(one.data)})
    put_run(spool, {1: bytes(other.data)}, lineage=later.id)
    put_run(spool, {2: bytes(written(4, 3).data)}, lineage=later.id)
    sweep_spool(spool, find(Catalog(store, LAYOUT), spool.runs(), Grid(64)))
    assert [list(run.files()) for run in spool.runs()] == [[name(2)]]


# What the spool has behind a binlog without an end


def closed_track(number: int, *, end: bool) -> Track:
    """Closed by its own last event, or because the next one has begun."""
    writer = BinlogWriter()
    if end:
        writer.rotate(str(name(number + 1)))
    track = Track(name(number), Path(), Grid(64))
    track.feed(memoryview(bytes(writer.data)))
    track.state = TrackState.CLOSED
    return track


def test_behind_a_binlog_without_an_end_nothing_is_taken() -> None:
    """Where the server has it: it is read again, and compared, for a RESET repeats names."""
    tracks = [closed_track(n, end=n != 3) for n in (2, 3, 4, 5)]
    found = proved(tracks, rows(3, 4))
    assert found == tuple(tracks[:2])
    assert found[-1].state is TrackState.GROWING
    assert found[0].closed


@pytest.mark.parametrize("listed", [(), (4, 5)])
def test_what_the_server_has_purged_is_taken_from_the_spool(listed: tuple[int, ...]) -> None:
    """It may be nowhere else."""
    tracks = [closed_track(n, end=n != 3) for n in (2, 3, 4)]
    assert proved(tracks, rows(*listed)) == tuple(tracks)
    assert all(track.closed for track in tracks)


def test_the_last_one_needs_no_end() -> None:
    """It is read on from there."""
    tracks = [closed_track(2, end=True), closed_track(3, end=False)]
    assert proved(tracks, rows(2, 3)) == tuple(tracks)
    assert proved([], []) == ()


# What a program before 0.3 left in a full spool: zeros below a floor, which was a part's end


def put_freed(spool: Spool, data: bytes, floor: int, at: int, **facts: Any) -> SpoolRun:
    """A run whose file of the first binlog has nothing before the floor any more."""
    run = put_run(spool, {1: data}, **facts)
    freed_before(run.directory / "run.json", run.directory / "b.000001", floor, at)
    return run


@pytest.mark.parametrize("lineage", [FIRST.id, None])
@pytest.mark.parametrize("more", [0, 1, 40, 300])
def test_what_is_above_an_old_floor_is_taken(
    spool: Spool, store: MemoryStore, catalog: Catalog, more: int, lineage: str | None
) -> None:
    """The bucket has what is below it, and perhaps more; no event ends at a part's end.

    The run may have died before it knew its lineage. What comes after it counts, too.
    """
    one, two = written(1, 9, end="b.000002"), written(10, 3)
    floor = 9 * 64
    assert floor not in one.ends
    in_pieces(store, 1, bytes(one.data[: floor + more]), 64)
    run = put_freed(spool, bytes(one.data), floor, floor, lineage=lineage)
    (run.directory / "b.000002").write_bytes(bytes(two.data))
    found = find(Catalog(store, LAYOUT), spool.runs(), Grid(64))
    holds(list(found.tracks), one, two)
    assert floor - 64 < found.tracks[0].floor <= floor + more
    assert found.tracks[0].path == run.directory / "b.000001"
    assert bytes_of(found.tracks[0].body(floor + more, floor + more + 9)) == bytes(
        one.data[floor + more :][:9]
    )
    sweep_spool(spool, found)
    assert run.files().keys() == {name(1), name(2)}


def test_old_floors_of_runs_that_went_on(
    spool: Spool, store: MemoryStore, catalog: Catalog
) -> None:
    """Each file has its own floor; the first one had nothing above it."""
    one = written(1, 9)
    data, ends = bytes(one.data), ends_of(one)
    floor = (ends[5] // 64 + 1) * 64
    in_pieces(store, 1, data[:floor], 64)
    put_freed(spool, data[: ends[3]], ends[3], ends[3])
    sent = one.from_position(ends[2])
    put_freed(spool, sent, floor, floor - len(data) + len(sent), position=ends[2])
    put_run(spool, {1: one.from_position(ends[7])[:-9]}, position=ends[7])
    holds(adopted(spool, catalog), one)


@pytest.mark.parametrize("lineage", [FIRST.id, None])
@pytest.mark.parametrize("what", ["lost", "rotten", "torn", "other", "plain"])
def test_what_nothing_proves_above_an_old_floor_is_left(
    spool: Spool, store: MemoryStore, catalog: Catalog, what: str, lineage: str | None
) -> None:
    """A chunk below it is lost or damaged; the next event is not whole or of another history.

    The source is asked then. No zero is ever taken for a byte of the binlog, and the file stays.
    """
    one = written(1, 9, checksum=what != "plain")
    data, floor = bytearray(one.data), 9 * 64
    in_pieces(store, 1, bytes(data[:floor]), 64)
    keys = sorted(info.key for info in store.list(LAYOUT.live))
    end = max(end for end in one.ends if end <= floor)
    if what == "lost":
        store.delete([keys[5]])
        end = max(end for end in one.ends if end <= 5 * 64)
    elif what == "rotten":
        store.put(keys[5], bytes(64))
        end = max(end for end in one.ends if end <= 5 * 64)
    elif what == "torn":
        del data[floor + 9 :]
    elif what == "other":
        data[floor + 1] ^= 1
    run = put_freed(spool, bytes(data), floor, floor, lineage=lineage)
    found = find(Catalog(store, LAYOUT), spool.runs(), Grid(64))
    from_there(found.tracks[0], one, end)
    sweep_spool(spool, found)
    assert [run.files().keys() for run in spool.runs()] == [run.files().keys()] == [{name(1)}]
