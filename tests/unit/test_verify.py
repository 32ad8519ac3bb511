"""`verify` on an archive in memory: each kind of damage, by looking and by reading every byte."""

import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from binlog2s3.catalog import Lineage
from binlog2s3.checksum import crc64nvme
from binlog2s3.config import S3Config
from binlog2s3.gtid import GtidSet, MariadbGtidList
from binlog2s3.verify import Verify
from binlog2s3.verify_config import VerifyConfig
from binlog2s3.verify_report import SourceReport
from tests.binlog_writer import NOW, UUID_A, UUID_B, XID, BinlogWriter, statement
from tests.damage import BYTES, DAMAGES, FIELDS, LAYOUT, NEW, OLD, binlog, fill, name
from tests.documents import LINEAGE
from tests.memory_store import MemoryStore
from tests.surveyed import Bucket, written

S3 = S3Config(
    bucket="bucket",
    prefix="pre",
    endpoint_url=None,
    region=None,
    addressing_style="auto",
    profile=None,
    storage_class=None,
    sse=None,
    sse_kms_key_id=None,
    checksum="auto",
    part_size=5 << 20,
    concurrency=4,
)
EVERY = {**BYTES, **DAMAGES, **{f"an entry's {name}": one for name, one in FIELDS.items()}}


def verified(store: MemoryStore, **options: object) -> SourceReport:
    config = VerifyConfig(s3=S3, source="test", **options)  # type: ignore[arg-type]
    (source,) = Verify(config, store).run().sources
    return source


def kinds(source: SourceReport) -> set[str]:
    return {defect.kind for defect in source.defects}


@pytest.mark.parametrize("deep", [False, True])
def test_a_sound_archive(deep: bool) -> None:
    """No defect, one interval from the first lineage's begin to the last one's end."""
    store = MemoryStore()
    archive = fill(store)
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


@pytest.mark.parametrize("deep", [False, True], ids=["looked", "deep"])
@pytest.mark.parametrize("what", EVERY)
def test_every_kind_of_damage(what: str, deep: bool) -> None:
    """What is found by looking, and what only by reading, is just what is documented."""
    damage = EVERY[what]
    store = MemoryStore()
    damage.act(fill(store))
    source = verified(store, deep=deep)
    assert kinds(source) == (damage.deep if deep else damage.looked)


def put_binlog(bucket: Bucket, number: int, writer: BinlogWriter, **how: object) -> None:
    bucket.archive(writer.data, name(number), **how)  # type: ignore[arg-type]


def lineage_of(writer: BinlogWriter, **changes: object) -> Lineage:
    begun = datetime.fromtimestamp(writer.timestamp, UTC)
    id_ = f"{begun:%Y%m%dT%H%M%SZ}-{LINEAGE.server_uuid[:8]}-a1b2"
    plain = replace(LINEAGE, id=id_, source="orders", first_binlog_time=begun, gtid_set="")
    return replace(plain, **{"server_version": "9.7.4", **changes})  # type: ignore[arg-type]


def of(bucket: Bucket, **options: object) -> SourceReport:
    config = VerifyConfig(s3=S3, source="orders", **options)  # type: ignore[arg-type]
    (source,) = Verify(config, bucket).run().sources
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


def test_a_gap_that_the_lineages_record() -> None:
    """It is shown with what is missing, ends an interval, and is no defect."""
    store = MemoryStore()
    archive = fill(store)
    lacks = f"{UUID_A}:15-20"
    key = LAYOUT.lineage(NEW)
    archive.change(key, parent__join="gap", parent__missing=lacks, gtid_set=f"{UUID_A}:1-20")
    archive.change(archive.entry(NEW, 1), gtid_set_before=f"{UUID_A}:1-20")
    for number in (2, 3):
        archive.change(
            archive.entry(NEW, number),
            gtid_set_before=f"{UUID_A}:1-20,{UUID_B}:1-{3 * (number - 1)}",
        )
    source = verified(store)
    assert source.defects == []
    assert source.sound
    (gap,) = source.gaps
    assert (gap.kind, gap.missing) == ("gap", lacks)
    first, second = source.history
    assert first.why == f"missing: {lacks}"
    assert str(first.last) == "mysql-bin.000005"
    assert (second.lineage, second.why) == (NEW, "")


def test_a_join_that_nobody_can_prove() -> None:
    """History begins behind it; what lies before is recoverable by itself; no defect."""
    store = MemoryStore()
    fill(store).change(LAYOUT.lineage(NEW), parent__join="unknown")
    source = verified(store)
    assert source.defects == []
    assert [gap.kind for gap in source.gaps] == ["unknown"]
    assert [one.lineage for one in source.history] == [NEW]
    assert [len(one.intervals) for one in source.lineages] == [1, 1]


def test_a_binlog_that_is_archived_meanwhile() -> None:
    """Chunks that are gone when they are looked at, because the object is there: no defect."""
    store = MemoryStore()
    archive = fill(store)
    verify = Verify(VerifyConfig(s3=S3, source="test"), store)

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


def test_a_binlog_whose_entry_comes_next() -> None:
    """As long as its writer lives, and has written no later entry; else the entry lacks."""
    store = MemoryStore()
    archive = fill(store)
    last = store.get(archive.entry(NEW, 3))
    store.delete([archive.entry(NEW, 3)])
    assert kinds(verified(store)) == {"entry-missing"}
    assert archive.beat is not None
    alive = replace(archive.beat, state="streaming")
    store.put(LAYOUT.writer(1, "9c2d41aa"), alive.to_json())
    source = verified(store)
    assert source.defects == []
    assert any("its entry comes next" in note for note in source.notes)
    store.put(archive.entry(NEW, 3), last)
    store.delete([archive.entry(NEW, 2)])
    source = verified(store)
    assert kinds(source) == {"entry-missing"}
    assert [defect.binlog for defect in source.defects] == [name(2)]


def test_binlogs_that_the_writer_is_not_past() -> None:
    """They are archived side by side: a number that lacks there is on its way."""
    store = MemoryStore()
    archive = fill(store)
    assert archive.beat is not None
    assert archive.beat.durable is not None
    behind = replace(archive.beat.durable, binlog=str(name(1)), offset=100)
    beat = replace(archive.beat, durable=behind)
    store.put(LAYOUT.writer(1, "9c2d41aa"), beat.to_json())
    store.delete([archive.key(NEW, 2), archive.entry(NEW, 2)])
    source = verified(store)
    assert source.defects == []
    assert any("not in the bucket yet" in note for note in source.notes)


def test_repair_makes_what_was_there() -> None:
    """The same entry but for when it was made; the defect is mended; a second run finds nothing."""
    store = MemoryStore()
    archive = fill(store)
    key = archive.entry(OLD, 2)
    before = json.loads(store.get(key))
    store.delete([key])
    source = verified(store, repair=True)
    assert source.sound
    assert [(one.kind, one.mended) for one in source.defects] == [("entry-missing", True)]
    after = json.loads(store.get(key))
    assert {**after, "archived_at": ""} == {**before, "archived_at": ""}
    assert verified(store).defects == []


def test_the_memory_of_ends_alone() -> None:
    """An interval's GTIDs are those before its first binlog and behind its last one."""
    store = MemoryStore()
    fill(store)
    (whole,) = verified(store, deep=True).history
    assert (whole.gtids_before, whole.gtids_after) == ("", f"{UUID_A}:1-14,{UUID_B}:1-12")
    (looked,) = verified(store).history
    assert looked.gtids_after == whole.gtids_after  # as the writer says
    assert whole.transactions == 4 * 3 + 3 + 4 * 3


def flipped(data: bytes) -> bytes:
    return bytes([*data[:300], data[300] ^ 1, *data[301:]])


@pytest.mark.parametrize("what", ["cut", "rotten", "the third", "foreign", "without an end"])
def test_repair_refuses_what_is_not_proved(what: str) -> None:
    """An object that is not the whole binlog that belongs there gets no entry; nothing changes."""
    store = MemoryStore()
    archive = fill(store)
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
    assert {key: one.data for key, one in store.objects.items()} == before


def test_repair_of_a_binlog_that_a_crash_ended() -> None:
    """It has no end of its own: the next binlog's GTIDs prove it whole, or nothing does."""
    store = MemoryStore()
    archive = fill(store)
    middle = binlog(2, f"{UUID_A}:1-3", UUID_A, 4, 3, rotate=False)
    last = binlog(3, f"{UUID_A}:1-14,{UUID_B}:1-6", UUID_B, 7, 3, rotate=False)
    store.put(archive.key(OLD, 2), bytes(middle.data))
    store.put(archive.key(NEW, 3), bytes(last.data))
    store.delete([archive.entry(OLD, 2), archive.entry(NEW, 3)])
    source = verified(store, repair=True)
    done, refused = source.repaired
    assert (done.key, done.why) == (archive.entry(OLD, 2), "")
    assert json.loads(store.get(done.key))["end"] == "crash"
    assert "nothing proves that it is whole" in refused.why
