"""`verify` on an archive in memory: each kind of damage, by looking and by reading every byte."""

import io
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest

from binlog2s3.archive.catalog import Catalog, read
from binlog2s3.archive.chunks import Chunk
from binlog2s3.archive.documents import Entry, Lineage
from binlog2s3.archive.pages import build
from binlog2s3.archive.stored import Compression
from binlog2s3.binlog.checksum import crc64nvme
from binlog2s3.binlog.gtid import GtidSet, MariadbGtidList
from binlog2s3.binlog.names import BinlogName
from binlog2s3.binlog.zone import SystemZone
from binlog2s3.config.outside import Outside
from binlog2s3.config.stream import S3Config
from binlog2s3.config.verify import VerifyConfig
from binlog2s3.errors import ArchiveError
from binlog2s3.formatting import us_of
from binlog2s3.inspect.verify.against_source import SourceComparison
from binlog2s3.inspect.verify.command import Verifier, answer
from binlog2s3.inspect.verify.one_binlog import differences
from binlog2s3.inspect.verify.report import Defect, Report, SourceReport
from binlog2s3.inspect.verify.source import SourceVerifier
from binlog2s3.inspect.verify.view import print_report
from binlog2s3.inspect.verify.walk import ENTRY_SOON
from binlog2s3.output import Plain
from binlog2s3.recover.snapshot import Snapshot
from binlog2s3.server.connection import ServerBinlog
from binlog2s3.workers import Workers
from tests.binlog_writer import NOW, UUID_A, UUID_B, XID, BinlogWriter, statement
from tests.damage import (
    BYTES,
    DAMAGES,
    FIELDS,
    LAYOUT,
    NEW,
    OLD,
    Archive,
    Damage,
    binlog,
    fill,
    name,
)
from tests.documents import BACKUP, ENTRY, FLOOR, LINEAGE, like, stored_as
from tests.memory_store import MemoryStore
from tests.snapshots import Bucket, written

S3 = S3Config(bucket="bucket", prefix="pre")
WRITER = LAYOUT.writer(1, "9c2d41aa")
AT_ONCE = Outside(sleep=lambda _: None)


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def archive(store: MemoryStore) -> Archive:
    return fill(store)


def found(kind: str, key: str, data: bytes) -> Damage:
    return Damage(lambda a: a.store.put(key, data), frozenset({kind}), frozenset({kind}))


def lies(**fields: object) -> Damage:
    kinds = frozenset({"entry-lies"})
    return Damage(lambda a: a.change(a.entry(OLD, 2), **fields), kinds, kinds)


GARBAGE = {
    "nothing": b"",
    "half a document": b"{",
    "no text": b"\xff\xfe\x00",
    "a list": b"[]",
    "too deep": b"[" * 100_000,
    "no fields": b'{"format": 1}',
    "no number": b'{"format": 1' + b"0" * 5_000 + b"}",
}
OTHERS = {
    "an entry's blocks, offset": lies(blocks__0__offset=4 << 20),
    "an entry's blocks, none": lies(blocks=[]),
    "an entry's blocks, first_offset behind it": lies(blocks__0__first_offset=1 << 30),
    "an entry's blocks, first_gtid of nobody": lies(blocks__0__first_gtid="x"),
    **{
        f"an entry that is {what}": found("entry-unreadable", LAYOUT.entry(OLD, name(2)), data)
        for what, data in GARBAGE.items()
    },
    **{
        f"a lineage.json that is {what}": found("lineage-unreadable", LAYOUT.lineage(NEW), data)
        for what, data in GARBAGE.items()
    },
    **{
        f"a writer's object that is {what}": found("writer-unreadable", WRITER, data)
        for what, data in GARBAGE.items()
    },
}
BASE = LAYOUT.stored(BACKUP.id, 1)
DUMP = b"a base backup"


def stored(archive: Archive, there: bytes | None, *, compression: Compression = "none") -> None:
    """A stored backup of these bytes, and what is in the bucket."""
    what = stored_as(DUMP, compression)
    backup = replace(BACKUP, source=LAYOUT.source, stored=what)
    archive.store.put(LAYOUT.backup(BACKUP.id), backup.to_json())
    if there is not None:
        archive.store.put(BASE, there)


DAMAGED, NONE = frozenset({"backup-damaged"}), frozenset[str]()
OTHERS |= {
    "a stored backup": Damage(lambda a: stored(a, DUMP), NONE, NONE),
    "a stored backup that is missing": Damage(lambda a: stored(a, None), DAMAGED, DAMAGED),
    "a stored backup that is cut off": Damage(lambda a: stored(a, DUMP[1:]), DAMAGED, DAMAGED),
    "a stored backup of other bytes": Damage(lambda a: stored(a, DUMP[::-1]), NONE, DAMAGED),
    "a stored backup that is not compressed": Damage(
        lambda a: stored(a, DUMP, compression="zstd"), NONE, DAMAGED
    ),
}
for number, lineage in enumerate(([], {}, 1.5, float("nan"))):
    OTHERS[f"a writer's object with a lineage that is none, {number}"] = Damage(
        lambda a, lineage=lineage: a.change(WRITER, lineage=lineage),
        frozenset({"writer-unreadable"}),
        frozenset({"writer-unreadable"}),
    )
EVERY = {
    **BYTES,
    **DAMAGES,
    **{f"an entry's {name}": one for name, one in FIELDS.items()},
    **OTHERS,
}


def verified(store: MemoryStore, **options: object) -> SourceReport:
    config = VerifyConfig(s3=S3, source="test", **options)  # type: ignore[arg-type]
    (source,) = Verifier(config, store, AT_ONCE).run().sources
    return source


def kinds(source: SourceReport) -> set[str]:
    return {defect.kind for defect in source.defects}


@pytest.mark.parametrize("deep", [False, True])
def test_a_sound_archive(deep: bool, store: MemoryStore, archive: Archive) -> None:
    """No defect, one interval from the first lineage's begin to the last one's end."""
    source = verified(store, deep=deep)
    assert source.defects == []
    assert source.sound
    (whole,) = source.history
    assert (whole.lineage, whole.last_lineage) == (OLD, NEW)
    assert (str(whole.first), str(whole.last)) == ("mysql-bin.000001", "mysql-bin.000004")
    assert whole.last_offset == len(archive.data[NEW, 4])
    assert whole.binlogs == 9
    assert archive.beat is not None
    assert archive.beat.covered_until is not None
    assert whole.to_us == archive.beat.covered_until.timestamp() * 1_000_000
    assert [len(one.intervals) for one in source.lineages] == [1, 1]


@pytest.mark.parametrize("deep", [False, True])
def test_what_the_source_leaves_out_is_told(
    deep: bool, store: MemoryStore, archive: Archive
) -> None:
    """The binlogs are whole, and yet a recovery lacks what they never had."""
    came_in = f"gtid_purged={UUID_B}:7"
    for number in (2, 3):
        key = archive.entry(OLD, number)
        store.put(key, replace(read(store, key, Entry), leaves_out=(came_in,)).to_json())
    assert archive.beat is not None
    beat = replace(archive.beat, leaves_out=("binlog_ignore_db=tmp",))
    store.put(WRITER, beat.to_json())
    source = verified(store, deep=deep)
    assert source.defects == []
    said = [note for note in source.notes if "leaves out" in note]
    assert [note.split(": ")[0] for note in said] == [OLD, NEW]
    assert said[0].endswith(f"{came_in} ({name(2)} to {name(3)})")
    assert said[1].endswith("binlog_ignore_db=tmp")


@pytest.mark.usefixtures("archive")
def test_pages_are_not_foreign(store: MemoryStore) -> None:
    """A key in their folder that is no page's is."""
    page, other = LAYOUT.page(OLD, 0), f"{LAYOUT.pages(OLD)}0000000000-0000000998.json"
    store.put(page, b"{}")
    store.put(other, b"{}")
    source = verified(store)
    assert [(one.kind, one.key) for one in source.defects] == [("foreign", other)]


@pytest.mark.usefixtures("archive")
def test_a_strange_key_is_foreign_in_every_folder(store: MemoryStore) -> None:
    """Each is named once, whoever reads the folder."""
    folders = (LAYOUT.live, LAYOUT.writers, LAYOUT.standbys, LAYOUT.backup_runs, LAYOUT.archive)
    folders += (LAYOUT.turns, LAYOUT.backups, LAYOUT.stored_backups, LAYOUT.drills)
    folders += (LAYOUT.binlogs(OLD), LAYOUT.entries(OLD), LAYOUT.floors(OLD), LAYOUT.pages(OLD))
    strange = [f"{folder}notes.txt" for folder in folders]
    for key in strange:
        store.put(key, b"x")
    source = verified(store)
    assert {one.kind for one in source.defects} == {"foreign"}
    assert sorted(one.key for one in source.defects) == sorted(strange)


@pytest.mark.parametrize("has_crc64", [False, True])
def test_bytes_that_were_written_anew(has_crc64: bool) -> None:
    """By looking alone: a defect where the store has a checksum of the whole, else two notes.

    One names the binlog that is younger than its entry, the other says how many were not compared.
    """
    store = MemoryStore(crc64=has_crc64)
    archive = fill(store)
    assert not any("anew" in note for note in verified(store).notes)
    other = bytearray(archive.data[OLD, 2])
    other[-30] ^= 1
    store.put(LAYOUT.binlog(OLD, name(2)), bytes(other))
    source = verified(store)
    anew = [note for note in source.notes if "replaced after the entry was written" in note]
    unproved = [note for note in source.notes if "has no CRC64NVME of the object" in note]
    if has_crc64:
        assert kinds(source) == {"checksum"}
        assert unproved == []
        return
    assert source.sound
    assert ["mysql-bin.000002" in note for note in anew] == [True]
    assert all("--deep" in note for note in unproved)
    assert len(unproved) == len(source.lineages)
    deep = verified(store, deep=True)
    assert not deep.sound
    assert not any("--deep" in note for note in deep.notes)


@pytest.mark.parametrize("paged", [False, True])
def test_a_binlog_that_a_rule_has_moved_away(
    paged: bool, store: MemoryStore, archive: Archive
) -> None:
    """It has its size and its checksum, and a GET is refused: no recovery crosses it."""
    if paged:
        put_pages(store)
    key = archive.key(OLD, 2)
    there = store.objects[key]
    store.objects[key] = replace(there, info=replace(there.info, storage_class="DEEP_ARCHIVE"))
    source = verified(store)
    assert [(one.kind, one.key) for one in source.defects] == [("storage-class", key)]
    assert [str(one.last) for one in source.history] == ["mysql-bin.000001", "mysql-bin.000004"]
    assert source.history[0].why == f"{name(2)} is in DEEP_ARCHIVE, which answers no GET"
    assert verified(store, deep=True).sound


@pytest.mark.parametrize("has_crc64", [False, True])
def test_a_chunk_of_other_bytes(has_crc64: bool) -> None:
    """By looking alone: a defect where the store has a checksum of it, else a note says how many.

    The note is there as well where nothing is wrong: nobody has looked.
    """
    store = MemoryStore(crc64=has_crc64)
    archive = fill(store)
    notes = [note for note in verified(store).notes if " chunks of mysql-bin.000004: " in note]
    assert len(notes) == (0 if has_crc64 else 1)
    assert all(": 3 chunks of" in note and "--deep" in note for note in notes)
    archive.flip(archive.chunks[1], 20)
    source = verified(store)
    if not has_crc64:
        assert source.sound
        assert any(note in source.notes for note in notes)
        return
    (defect,) = source.defects
    assert (defect.kind, defect.key) == ("chunk-bytes", archive.chunks[1])
    assert str(source.history[-1].last) == "mysql-bin.000003"


@pytest.mark.parametrize("size", [10**12, 2**63 - 1])
def test_an_entry_of_an_absurd_size(size: int, store: MemoryStore, archive: Archive) -> None:
    """It is a defect like others: nothing is made of that size, and nothing waits for it."""
    archive.change(archive.entry(OLD, 2), size=size)
    source = verified(store)
    assert {"entry-lies", "size"} <= kinds(source)


def put_pages(store: MemoryStore) -> None:
    """Put a page of each lineage's first range, made of the entries that are there."""
    for id_, numbers in ((OLD, range(1, 5)), (NEW, range(1, 4))):
        lineage = read(store, LAYOUT.lineage(id_), Lineage)
        entries = {at: read(store, LAYOUT.entry(id_, name(at)), Entry) for at in numbers}
        store.put(LAYOUT.page(id_, 0), build(lineage, 0, entries, None).to_json())


@pytest.mark.parametrize("paged", [False, True], ids=["entries", "pages"])
@pytest.mark.parametrize("deep", [False, True], ids=["looked", "deep"])
@pytest.mark.parametrize("what", EVERY)
def test_every_kind_of_damage(
    what: str, deep: bool, paged: bool, store: MemoryStore, archive: Archive
) -> None:
    """What is found by looking, and what only by reading, is just what is documented.

    Pages that were made before the damage hide none of it.
    """
    damage = EVERY[what]
    if paged:
        put_pages(store)
    damage.act(archive)
    source = verified(store, deep=deep)
    assert kinds(source) == (damage.deep if deep else damage.looked)


def test_entries_come_from_pages(store: MemoryStore, archive: Archive) -> None:
    """By looking, and only those that are older than their page; it is said. --deep reads all."""
    put_pages(store)
    before = store.calls["get"]
    source = verified(store)
    few = store.calls["get"] - before
    assert sorted(note for note in source.notes if "their pages" in note) == [
        f"{id_}: {count} binlogs and entries: listed, older than their pages, and as the pages "
        "say; --deep reads them"
        for id_, count in ((OLD, 4), (NEW, 3))
    ]
    store.put(archive.entry(OLD, 2), store.get(archive.entry(OLD, 2)))
    assert f"{OLD}: 3 binlogs and entries" in str(verified(store).notes)
    store.delete([LAYOUT.page(OLD, 0), LAYOUT.page(NEW, 0)])
    before = store.calls["get"]
    assert not any("their pages" in note for note in verified(store).notes)
    assert store.calls["get"] - before == few + 7 - 2
    put_pages(store)
    assert not any("their pages" in note for note in verified(store, deep=True).notes)


@pytest.mark.usefixtures("archive")
def test_a_page_that_cannot_be_used(store: MemoryStore) -> None:
    """It is said, and the entries are read."""
    store.put(LAYOUT.page(OLD, 0), b"{}")
    source = verified(store)
    assert source.defects == []
    (note,) = (note for note in source.notes if "were read instead" in note)
    assert LAYOUT.page(OLD, 0) in note


def put_binlog(bucket: Bucket, number: int, writer: BinlogWriter, **how: object) -> None:
    bucket.archive(writer.data, name(number), **how)  # type: ignore[arg-type]


def lineage_of(writer: BinlogWriter, **changes: object) -> Lineage:
    begun = datetime.fromtimestamp(writer.timestamp, UTC)
    id_ = f"{begun:%Y%m%dT%H%M%SZ}-{LINEAGE.server_uuid[:8]}-a1b2"
    plain = like(LINEAGE, id=id_, source="orders", first_binlog_time=begun, gtid_set="")
    return like(plain, **{"server_version": "9.7.4", **changes})  # type: ignore[arg-type]


def of(bucket: Bucket, **options: object) -> SourceReport:
    config = VerifyConfig(s3=S3, source="orders", **options)  # type: ignore[arg-type]
    (source,) = Verifier(config, bucket, AT_ONCE).run().sources
    return source


@pytest.mark.parametrize("deep", [False, True], ids=["looked", "deep"])
def test_damage_that_the_source_itself_served(deep: bool) -> None:
    """It is known: shown, the interval ends before it, and no defect."""
    writers = [written(first=1 + 12 * at) for at in range(3)]
    for at, writer in enumerate(writers):
        writer.data[-len("mysql-bin.000002") - 4 - 8 - 19 :] = b""
        del writer.ends[-1]
        writer.rotate(str(name(at + 2)))
    bad = writers[1]
    bad.data[bad.transactions[5].begin + 30] ^= 1
    bucket = Bucket(lineage_of(writers[0]))
    put_binlog(bucket, 1, writers[0])
    put_binlog(bucket, 2, bad, accept=[bad.transactions[5].begin])
    put_binlog(bucket, 3, writers[2])
    source = of(bucket, deep=deep)
    assert source.defects == []
    assert source.sound
    assert [gap.kind for gap in source.gaps] == ["damaged"]
    assert [(str(one.first), str(one.last)) for one in source.history] == [
        ("mysql-bin.000001", "mysql-bin.000001"),
        ("mysql-bin.000003", "mysql-bin.000003"),
    ]


@pytest.mark.parametrize("deep", [False, True], ids=["looked", "deep"])
@pytest.mark.parametrize("kind", ["mariadb", "anonymous", "old"])
def test_other_servers(kind: str, deep: bool) -> None:
    """MariaDB, a server without GTIDs, one from before there were any: their archives are sound."""
    version = {"mariadb": "11.4.2-MariaDB-log", "anonymous": "9.7.4", "old": "5.5.62"}[kind]
    writers = []
    for number in range(1, 4):
        writer = BinlogWriter(
            server_version=version, timestamp=NOW + number, checksum=kind != "old"
        )
        events = [statement("BEGIN"), statement("INSERT"), XID]
        if kind == "mariadb":
            last = {(0, 7): 2 * number - 2} if number > 1 else {}
            writer.gtid_list(MariadbGtidList(last))
            for at in (1, 2):
                writer.mariadb_transaction(events[1:], gtid=(0, 2 * number - 2 + at))
        elif kind == "anonymous":
            writer.previous_gtids(GtidSet())
            writer.transaction(events)
        else:
            writer.plain_transaction(events)
        writer.rotate(str(name(number + 1)))
        writers.append(writer)
    flavour = "mariadb" if kind == "mariadb" else "mysql"
    bucket = Bucket(lineage_of(writers[0], flavour=flavour, server_version=version))
    for number, writer in enumerate(writers, 1):
        put_binlog(bucket, number, writer)
    source = of(bucket, deep=deep)
    assert source.defects == []
    (whole,) = source.history
    assert whole.binlogs == 3
    bucket.archive(writers[0].data, name(2))  # it was the first
    damaged = of(bucket, deep=deep)
    assert kinds(damaged) >= {"entry-lies"}


def test_a_binlog_that_is_archived_meanwhile(store: MemoryStore, archive: Archive) -> None:
    """Chunks that are gone when they are looked at, because the object is there: no defect."""
    verify = Verifier(VerifyConfig(s3=S3, source="test"), store, AT_ONCE)

    def archives(operation: str, keys: Sequence[str]) -> None:
        if operation == "list" and keys[0] == LAYOUT.chunks(NEW, name(4)):
            store.on_acted = lambda *_: None
            data = archive.data[NEW, 4]
            store.put(archive.key(NEW, 4), data, crc64=crc64nvme(data))
            store.delete(archive.chunks)

    store.on_acted = archives
    (source,) = verify.run().sources
    assert kinds(source) == {"entry-missing"}  # it has none yet
    assert archive.chunks[0] not in store.objects


@pytest.mark.parametrize("deep", [False, True])
@pytest.mark.parametrize("at_once", [False, True])
def test_what_is_pruned_meanwhile(
    store: MemoryStore, archive: Archive, deep: bool, at_once: bool
) -> None:
    """It is below a floor that came after the listing. What is above it, or without one, is not."""
    gone = [archive.key(OLD, 1), archive.entry(OLD, 1)]
    floor = replace(FLOOR, source="test", lineage=OLD, binlog=name(2), gtid_set="")

    def prunes(_: str, keys: Any, __: Any) -> None:
        if gone[0] in keys:
            store.on_act = lambda *_: None
            store.put(LAYOUT.floor(OLD, 2), floor.to_json())
            store.delete(gone if at_once else gone[1:])

    store.on_act = prunes
    source = verified(store, deep=deep)
    assert source.defects == []
    store.delete([LAYOUT.floor(OLD, 2)])
    assert kinds(verified(store)) >= {"binlog-missing" if at_once else "entry-missing"}


@pytest.mark.parametrize(
    ("lineage", "comes"), [(NEW, True), (None, True), (OLD, False)], ids=["its", "no", "another"]
)
def test_a_binlog_whose_entry_comes_next(
    lineage: str | None, comes: bool, store: MemoryStore, archive: Archive
) -> None:
    """As long as its writer lives, and has written no later entry; else the entry is missing.

    A writer that has just begun names no lineage yet.
    """
    last = store.get(archive.entry(NEW, 3))
    store.delete([archive.entry(NEW, 3)])
    assert kinds(verified(store)) == {"entry-missing"}
    assert archive.beat is not None
    alive = replace(archive.beat, state="streaming", lineage=lineage)
    store.put(LAYOUT.writer(1, "9c2d41aa"), alive.to_json())
    source = verified(store)
    assert any("its entry comes next" in note for note in source.notes) == comes
    if not comes:
        assert kinds(source) == {"entry-missing"}
        return
    assert source.defects == []
    store.put(archive.entry(NEW, 3), last)
    store.delete([archive.entry(NEW, 2)])
    source = verified(store)
    assert kinds(source) == {"entry-missing"}
    assert [defect.binlog for defect in source.defects] == [name(2)]


def writing(archive: Archive) -> None:
    """Its writer's object, as of one that runs."""
    assert archive.beat is not None
    archive.store.put(WRITER, replace(archive.beat, state="streaming").to_json())


class Clock:
    """The store's: so many seconds from this machine's, and earlier by what it is set back."""

    def __init__(self, ahead: float = 0) -> None:
        self.ahead = timedelta(seconds=ahead)
        self.back = timedelta()

    def __call__(self) -> datetime:
        return datetime.now(UTC) + self.ahead - self.back


OLDER = ENTRY_SOON + timedelta(seconds=10)


@pytest.mark.parametrize("ahead", [0, 3600])
@pytest.mark.parametrize("what", ["new", "old", "dead", "old and dead"])
def test_how_long_an_entry_may_be_on_its_way(what: str, ahead: float) -> None:
    """As long as the binlog is new, by the store's clock, and its writer renews its object."""
    clock = Clock(ahead)
    store = MemoryStore(now=clock)
    clock.back = OLDER if "old" in what else timedelta()
    archive = fill(store)
    store.delete([archive.entry(NEW, 3)])
    clock.back = timedelta(seconds=100 + ahead) if "dead" in what else timedelta()
    writing(archive)
    source = verified(store)
    on_its_way = what == "new"
    assert kinds(source) == (set() if on_its_way else {"entry-missing"})
    assert any("its entry comes next" in note for note in source.notes) == on_its_way
    if not on_its_way:
        (defect,) = source.defects
        assert "verify --repair" in defect.todo
        clock.back = timedelta()
        assert verified(store, repair=True).sound
        assert verified(store, deep=True).defects == []


def test_an_entry_that_comes_under_the_look() -> None:
    """Of an object that its store calls old, the upload may have been long: a second look."""
    clock = Clock()
    clock.back = OLDER
    store = MemoryStore(now=clock)
    archive = fill(store)
    last = store.get(archive.entry(NEW, 3))
    store.delete([archive.entry(NEW, 3)])
    clock.back = timedelta()
    writing(archive)
    config = VerifyConfig(s3=S3, source="test", repair=True)
    late = Outside(sleep=lambda _: store.put(archive.entry(NEW, 3), last))
    verify = Verifier(config, store, late)
    (source,) = verify.run().sources
    assert (source.defects, source.repaired) == ([], [])
    assert store.get(archive.entry(NEW, 3)) == last


def test_a_repair_that_the_writer_overtakes(store: MemoryStore, archive: Archive) -> None:
    """The first entry stands, whoever made it; the other one finds that it says the same."""
    key = archive.entry(NEW, 3)
    first = store.get(key)
    store.delete([key])

    def overtakes(operation: str, keys: Sequence[str], _: object) -> None:
        if operation == "put" and keys[0] == key:
            store.on_act = lambda *_: None
            store.put(key, first)

    store.on_act = overtakes
    source = verified(store, repair=True)
    assert [(one.key, one.why) for one in source.repaired] == [(key, "")]
    assert source.sound
    assert store.get(key) == first


@pytest.mark.parametrize("deep", [False, True])
def test_an_archive_without_a_writer(deep: bool, store: MemoryStore, archive: Archive) -> None:
    """Said, with what it means and what to do; no defect, and all can be recovered."""
    whole = verified(store, deep=deep).history[0]
    assert not any("nobody seems to stream" in note for note in verified(store).notes)
    store.delete([WRITER])
    source = verified(store, deep=deep)
    assert source.sound
    assert source.defects == []
    (note,) = source.notes
    assert LAYOUT.writers in note
    assert "nobody seems to stream" in note
    assert "No data is lost" in note
    assert "start `stream`" in note
    (without,) = source.history
    assert (without.last, without.last_offset) == (whole.last, len(archive.data[NEW, 4]))
    store.put(WRITER, b"{}")  # then it is that one that is wrong
    assert not any("nobody seems to stream" in note for note in verified(store).notes)


def printed(source: SourceReport) -> str:
    with io.TextIOWrapper(io.BytesIO(), encoding="utf-8") as file:
        print_report(Report(target="s3://b", deep=False, sources=[source]), Plain(file))
        file.flush()
        assert isinstance(file.buffer, io.BytesIO)
        return file.buffer.getvalue().decode()


def opened(writer: BinlogWriter, *, transactions: bool) -> Bucket:
    """One binlog, in a chunk, and no writer."""
    bucket = Bucket(lineage_of(writer))
    end = len(writer.data) if transactions else writer.transactions[0].begin
    bucket.chunks(writer.data, 0, end, name=name(1))
    return bucket


def test_an_end_of_which_no_time_is_known() -> None:
    """The place is said, and why it has no time; from when on is known of a first binlog."""
    writer = written()
    begun = f"{datetime.fromtimestamp(writer.timestamp, UTC):%Y-%m-%dT%H:%M:%S}.000000Z"
    bucket = opened(writer, transactions=True)
    source = of(bucket)
    (one,) = source.history
    assert (one.to_us, one.untimed) == (
        None,
        "mysql-bin.000001 is open and was not read; --deep reads it",
    )
    text = printed(source)
    assert "unknown" not in text
    assert f"{begun} to mysql-bin.000001:{len(writer.data)}\n" in text
    assert "the end time is not known: mysql-bin.000001 is open and was not read" in text
    (read,) = of(bucket, deep=True).history
    assert read.to_us is not None
    assert read.untimed == ""
    (empty,) = of(opened(writer, transactions=False), deep=True).history
    assert (empty.to_us, empty.untimed) == (
        None,
        "it has no commits, and no heartbeat tells up to when it is complete",
    )


def test_an_interval_that_begins_with_a_binlog_without_an_entry(
    store: MemoryStore, archive: Archive
) -> None:
    """Its begin and, where it is all, its end are said as places."""
    gone = [archive.key(OLD, 1), archive.entry(OLD, 1), archive.entry(OLD, 2)]
    store.delete([*gone, archive.key(OLD, 3), archive.entry(OLD, 3)])
    source = verified(store)
    one = source.history[0]
    assert (str(one.first), one.from_us, one.to_us) == ("mysql-bin.000002", None, None)
    size = len(archive.data[OLD, 2])
    assert f"the beginning of mysql-bin.000002 to mysql-bin.000002:{size}\n" in printed(source)
    assert "mysql-bin.000002 has no entry and was not read" in printed(source)


@pytest.mark.parametrize("deep", [False, True], ids=["looked", "deep"])
@pytest.mark.parametrize("whole", [False, True], ids=["a part", "all"])
def test_the_time_of_a_history_that_was_left(
    whole: bool, deep: bool, store: MemoryStore, archive: Archive
) -> None:
    """Left at the end of a binlog without a commit: what came before tells; else why nothing."""
    empty = binlog(5, f"{UUID_A}:1-12", UUID_A, 13, 0, rotate=False)
    store.delete([key for key in store.objects if key.startswith(f"{LAYOUT.live}{OLD}/")])
    chunk = Chunk(0, len(empty.data), crc64nvme(empty.data))
    store.put(LAYOUT.chunk(OLD, name(5), chunk), bytes(empty.data))
    archive.change(
        LAYOUT.lineage(NEW),
        parent__offset=len(empty.data) if whole else empty.ends[0],
        parent__gtid_set=f"{UUID_A}:1-12",
        parent__join="gap",
        parent__missing=f"{UUID_A}:13-14",
    )
    source = verified(store, deep=deep)
    assert source.defects == []
    left, _ = source.history
    assert (left.last, left.last_offset) == (name(5), len(empty.data) if whole else empty.ends[0])
    before = json.loads(store.get(archive.entry(OLD, 4)))["greatest_commit_us"]
    assert left.to_us == (before if whole else None)
    why = "has no commit before that point" if deep else "was not read; --deep reads it"
    assert left.untimed.endswith("" if whole else why)
    assert bool(left.untimed) == (not whole)


LIES = {
    "no blocks": {"blocks": []},
    "a GTID that is none": {"blocks__0__first_gtid": "x"},
    "no such formats": {"formats": [""]},
}


@pytest.mark.parametrize("deep", [False, True], ids=["looked", "deep"])
@pytest.mark.parametrize("what", LIES)
def test_a_backup_that_needs_an_entry_that_lies(
    what: str, deep: bool, store: MemoryStore, archive: Archive
) -> None:
    """The answer is no, and names the entry."""
    archive.change(archive.entry(OLD, 2), **LIES[what])
    source = verified(store, deep=deep, from_gtid_set=f"{UUID_A}:1-4")
    assert kinds(source) <= {"entry-lies", "entry-unreadable"}
    assert source.answer is not None
    assert not source.answer.possible
    assert source.answer.hint
    assert "mysql-bin.000002" in source.answer.why or what == "a GTID that is none"


@pytest.mark.parametrize(
    "change",
    [
        *LIES.values(),
        {"blocks__0__size": 5},
        {"blocks__0__offset": 5},
        {"blocks__0__first_offset": 1 << 40},
        {"blocks__0__first_gtid": f"{UUID_A}:1-5"},
        {"damaged": [{}]},
    ],
)
def test_a_plan_is_told_that_an_entry_cannot_be(
    change: dict[str, Any], store: MemoryStore, archive: Archive
) -> None:
    """Whoever asks for that binlog gets an error that names it; others are not disturbed."""
    archive.change(archive.entry(OLD, 2), **change)
    snapshot = Snapshot(Catalog(store, LAYOUT), Workers(1))
    with pytest.raises(ArchiveError, match=r"mysql-bin\.000002"):
        snapshot.known(OLD, BinlogName.parse("mysql-bin.000002"))
    assert snapshot.known(OLD, BinlogName.parse("mysql-bin.000001")).size > 0


@pytest.mark.parametrize("gtids", ["", f"{UUID_A}:1-4", f"{UUID_A}:1-14", "0-7-4"])
@pytest.mark.parametrize("what", [*DAMAGES, *FIELDS])
def test_whatever_lies_there_is_an_answer(what: str, gtids: str) -> None:
    """A plan is made or refused: no document of the bucket is a traceback."""
    store = MemoryStore()
    (DAMAGES.get(what) or FIELDS[what]).act(fill(store))
    source = verified(store, from_gtid_set=gtids)
    assert source.answer is not None
    assert source.answer.possible or source.answer.why


@pytest.mark.parametrize("error", [KeyError("a bug"), TypeError("a bug"), ValueError("a bug")])
def test_a_bug_is_not_called_a_defect_of_the_archive(error: Exception) -> None:
    """It shows, also where the archive has a defect."""

    class Buggy:
        @property
        def lineages(self) -> list[Lineage]:
            raise error

    lie = Defect(kind="lineage-lies", key="archive/x", text="it lies")
    with pytest.raises(type(error), match="a bug"):
        answer(cast("Snapshot", Buggy()), backup=None, gtid_set="x", lineage=None, defects=[lie])


def test_a_backup_of_a_history_whose_parent_lies() -> None:
    """The answer is no: nothing proves where it came from."""
    store = MemoryStore()
    fill(store).change(LAYOUT.lineage(NEW), parent__gtid_set="x")
    source = verified(store, from_gtid_set=f"{UUID_A}:1-4")
    assert kinds(source) == {"parent-lies"}
    assert source.answer is not None
    assert not source.answer.possible
    assert source.answer.why


@pytest.mark.parametrize("what", LIES)
def test_a_parent_within_a_binlog_whose_entry_lies(
    what: str, store: MemoryStore, archive: Archive
) -> None:
    """The entry is the defect; nothing of it is used to judge the parent by its bytes."""
    archive.change(
        LAYOUT.lineage(NEW),
        parent__binlog=str(name(4)),
        parent__offset=len(archive.data[OLD, 4]),
        parent__gtid_set=f"{UUID_A}:1-12",
        gtid_set=f"{UUID_A}:1-12",
    )
    archive.change(archive.entry(OLD, 4), **LIES[what])
    source = verified(store, deep=True)
    told = {one.kind for one in source.defects if one.binlog == name(4)}
    assert told
    assert told <= {"entry-lies", "entry-unreadable"}
    assert "parent-lies" not in kinds(source)


@dataclass
class Answering:
    """A server with these binlogs, asked for what `AgainstSource` asks."""

    uuid: str
    sizes: dict[int, int]
    flavour: str = "mysql"
    version: str = "9.7.4"

    def facts(self) -> "Answering":
        return self

    def binlogs(self) -> tuple[ServerBinlog, ...]:
        return tuple(
            ServerBinlog(name=name(number), size=size, encrypted=False)
            for number, size in self.sizes.items()
        )

    def previous_gtids(self, _: object) -> None:
        return None

    def server_id_in(self, _: object) -> int:
        return 7 if self.uuid == UUID_A else 8


def compared(archive: Archive, server: Answering) -> tuple[SourceReport, str]:
    """What was found, and what is shown of the comparison."""
    config = VerifyConfig(s3=S3, source="test")
    one = SourceVerifier(config, archive.store, Workers(2), "test", AT_ONCE)
    one.run()
    against = SourceComparison(one.context, one.known_lineages, server, "db1")  # type: ignore[arg-type]
    shown = printed(SourceReport(name="test", compared=against.compare()))
    return one.report, shown


@pytest.mark.parametrize(("number", "by"), [(2, -1), (2, 1), (4, -1)])
def test_sizes_that_the_source_says_otherwise(number: int, by: int) -> None:
    """Of each binlog that it has closed, archived or in chunks, the size must be the source's."""
    archive = fill(MemoryStore())
    sizes = {n: len(data) for (lineage, n), data in archive.data.items() if lineage == NEW} | {5: 9}
    assert compared(archive, Answering(UUID_B, sizes))[0].defects == []
    sizes[number] += by
    (defect,) = compared(archive, Answering(UUID_B, sizes))[0].defects
    assert (defect.kind, defect.binlog) == ("source-differs", name(number))
    assert str(sizes[number]) in defect.text


def test_sizes_that_may_differ() -> None:
    """Of the newest, which grows meanwhile; of one behind whose part history went on."""
    archive = fill(MemoryStore())
    sizes = {n: len(data) for (lineage, n), data in archive.data.items() if lineage == NEW}
    sizes[4] -= 1
    assert compared(archive, Answering(UUID_B, sizes))[0].defects == []
    old = {n: len(data) for (lineage, n), data in archive.data.items() if lineage == OLD}
    old |= {5: old[5] - 100, 6: 9}
    report, shown = compared(archive, Answering(UUID_A, old))
    assert report.defects == []
    assert "are in the bucket with the same size" in shown
    assert "their bytes were not compared" in shown


def test_binlogs_that_the_writer_is_not_past(store: MemoryStore, archive: Archive) -> None:
    """They are archived side by side: a number that is missing there is on its way."""
    assert archive.beat is not None
    assert archive.beat.durable is not None
    behind = replace(archive.beat.durable, binlog=name(1), offset=100)
    beat = replace(archive.beat, durable=behind)
    store.put(LAYOUT.writer(1, "9c2d41aa"), beat.to_json())
    store.delete([archive.key(NEW, 2), archive.entry(NEW, 2)])
    source = verified(store)
    assert source.defects == []
    assert any("not in the bucket yet" in note for note in source.notes)


def test_repair_makes_what_was_there(store: MemoryStore, archive: Archive) -> None:
    """The same entry but for when it was made; the defect is mended; a second run finds nothing."""
    key = archive.entry(OLD, 2)
    before = json.loads(store.get(key))
    store.delete([key])
    source = verified(store, repair=True)
    assert source.sound
    assert [(one.kind, one.repaired) for one in source.defects] == [("entry-missing", True)]
    assert f"made again: {key}\n" in printed(source)
    after = json.loads(store.get(key))
    assert {**after, "archived_at": ""} == {**before, "archived_at": ""}
    assert verified(store).defects == []


@pytest.mark.parametrize("what", ["a rotten chunk", "a missing last chunk"])
def test_no_time_is_promised_for_what_cannot_be_read(
    what: str, store: MemoryStore, archive: Archive
) -> None:
    """The heartbeat covers what the bucket had: an interval that ends before it does not reach."""
    (whole,) = verified(store, deep=True).history
    DAMAGES[what].act(archive)
    short = verified(store, deep=True).history[-1]
    assert archive.beat is not None
    assert archive.beat.covered_until is not None
    assert whole.to_us == us_of(archive.beat.covered_until)
    assert short.last_offset < whole.last_offset
    assert short.to_us is not None
    assert short.to_us < whole.to_us


def flipped(data: bytes) -> bytes:
    return bytes([*data[:300], data[300] ^ 1, *data[301:]])


@pytest.mark.parametrize("what", ["cut", "rotten", "the third", "foreign", "without an end"])
def test_repair_refuses_what_is_not_proved(what: str, store: MemoryStore, archive: Archive) -> None:
    """An object that is not the whole binlog that belongs there gets no entry; nothing changes."""
    data = archive.data[OLD, 2]
    end = binlog(2, f"{UUID_A}:1-3", UUID_A, 4, 2, rotate=False)
    wrong = {
        "cut": data[:-10],
        "rotten": flipped(data),
        "the third": archive.data[OLD, 3],
        "foreign": b"nothing of the kind",
        "without an end": bytes(end.data),
    }
    store.put(archive.key(OLD, 2), wrong[what])
    store.delete([archive.entry(OLD, 2)])
    before = {key: one.data for key, one in store.objects.items()}
    source = verified(store, repair=True)
    assert not source.sound
    (one,) = source.repaired
    assert one.why
    assert f"not made again: {one.key}: " in printed(source)
    assert {key: one.data for key, one in store.objects.items()} == before


def test_repair_finds_the_binlog_before_by_the_width_of_its_name() -> None:
    """A number has as many digits as in the lineage's first binlog, at least."""
    wide = [BinlogName("mysql-bin", number, 8) for number in (1, 2, 3)]
    first, alien = written(3, rotate=False), written(3, first=9, rotate=False)
    first.rotate(str(wide[1]))
    alien.rotate(str(wide[2]))
    bucket = Bucket(replace(lineage_of(first), first_binlog=wide[0]))
    bucket.archive(first.data, wide[0])
    bucket.archive(alien.data, wide[1], entry=False)
    source = of(bucket, repair=True)
    (refused,) = source.repaired
    assert "it begins after" in refused.why


def test_repair_of_a_binlog_that_a_crash_ended(store: MemoryStore, archive: Archive) -> None:
    """It has no end of its own: the next binlog's GTIDs prove it whole, or nothing does."""
    middle = binlog(2, f"{UUID_A}:1-3", UUID_A, 4, 3, rotate=False)
    last = binlog(3, f"{UUID_A}:1-14,{UUID_B}:1-6", UUID_B, 7, 3, rotate=False)
    store.put(archive.key(OLD, 2), bytes(middle.data))
    store.put(archive.key(NEW, 3), bytes(last.data))
    store.delete([archive.entry(OLD, 2), archive.entry(NEW, 3)])
    source = verified(store, repair=True)
    done, refused = source.repaired
    assert (done.key, done.why) == (archive.entry(OLD, 2), "")
    assert json.loads(store.get(done.key))["end"] == "crash"
    assert "nothing proves that it is complete" in refused.why


def test_what_an_older_version_did_not_write_is_no_lie() -> None:
    """Nor is what the bytes do not show; what is written and wrong is one."""
    found = replace(ENTRY, gtids_go_back=False, started=False)
    zone = SystemZone.of("SYSTEM", 2026, [3600] * 24)
    said = replace(ENTRY, leaves_out=("binlog_do_db=shop",), time_zone=zone)
    assert differences(said, found) == []
    (lie,) = differences(replace(ENTRY, started=True, gtids_go_back=False), found)
    assert lie.startswith("started is ")
