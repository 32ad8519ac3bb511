"""Which version of an object is read where versions differ: by evidence, never by its place.

A bucket with Object Lock that keeps every version; only what is asked of versions is made up.
"""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from binlog2s3.archive.codec import Crc64
from binlog2s3.archive.evidence import Evidence
from binlog2s3.archive.layout import Layout
from binlog2s3.archive.writers import Retired
from binlog2s3.binlog.checksum import crc64nvme
from binlog2s3.binlog.names import BinlogName
from binlog2s3.errors import ObjectMissingError, ObjectTooLargeError, VersionConflictError
from binlog2s3.store.contract import NO_VERSION, Picks
from binlog2s3.store.versions import ChosenVersions
from tests.documents import (
    BACKUP,
    BEAT,
    DRILL,
    ENTRY,
    FLOOR,
    ID,
    LINEAGE,
    NAME,
    TIME,
    stored_as,
    turn_of,
)
from tests.memory_store import MemoryStore

LAYOUT = Layout("pre", "orders")
FIRST = BinlogName.parse("mysql-bin.000001")
THIRD = BinlogName.parse("mysql-bin.000003")
REAL, FORGED = b"the source's own bytes", b"the bytes of somebody!"


def entry(name: BinlogName, data: bytes = REAL) -> bytes:
    """The entry of a binlog of these bytes."""
    return replace(ENTRY, name=name, size=len(data), crc64nvme=Crc64(crc64nvme(data))).to_json()


class LockedBucket:
    """Every version, by key, the newest first: id, time, bytes (None: a delete marker), lock."""

    def __init__(self) -> None:
        self.versions: dict[str, list[tuple[str, datetime, bytes | None, bool]]] = {}
        self.plain = MemoryStore()
        self.put(LAYOUT.lineage(ID), 0, LINEAGE.to_json())

    def put(self, key: str, at: float, data: bytes | None, *, locked: bool = True) -> str:
        """Put a version, at so many seconds; None deletes. The version's id."""
        there = self.versions.setdefault(key, [])
        there.insert(0, (f"v{len(there)}", TIME + timedelta(seconds=at), data, locked))
        return there[0][0]

    def binlog(self, name: BinlogName, at: float, data: bytes = REAL) -> None:
        """Put a binlog, and its entry a second later."""
        self.put(LAYOUT.binlog(ID, name), at, data)
        self.put(LAYOUT.entry(ID, name), at + 1, entry(name, data))

    def planted(self, name: BinlogName, at: float) -> None:
        """The same of somebody else, who deletes both again."""
        self.binlog(name, at, FORGED)
        for key in (LAYOUT.binlog(ID, name), LAYOUT.entry(ID, name)):
            self.put(key, at + 1, None)

    def chosen(self, picks: Picks | None = None) -> ChosenVersions:
        chosen = ChosenVersions(
            below="pre/archive/",
            ask=self.ask,
            is_locked=lambda: True,
            contents=self,
            picks=picks or Picks(),
        )
        chosen.evidence = Evidence(Reading(self, chosen), "pre/archive/")
        return chosen

    def read_by(self, key: str, picks: Picks | None = None) -> bytes | None:
        """What a reader gets."""
        return self._of(key, self.chosen(picks).of(key))

    def ask(self, operation: str, key: str, **params: Any) -> Any:
        if operation != "list_object_versions":
            return self._lock(operation, key, params["VersionId"])
        rows = [
            {"Key": one, "VersionId": id_, "LastModified": at, "IsLatest": not place}
            | ({} if data is None else {"Size": len(data), "ETag": hashlib.sha1(data).hexdigest()})
            for one, there in sorted(self.versions.items())
            for place, (id_, at, data, _) in enumerate(there)
            if one.startswith(params["Prefix"])
        ]
        return {
            "Versions": [row for row in rows if "Size" in row],
            "DeleteMarkers": [row for row in rows if "Size" not in row],
        }

    def _lock(self, operation: str, key: str, version: str) -> Any:
        (locked,) = (row[3] for row in self.versions[key] if row[0] == version)
        if operation == "get_object_legal_hold" or not locked:
            return {}
        return {"Retention": {"RetainUntilDate": TIME.replace(year=9000)}}

    def _of(self, key: str, version: str) -> bytes:
        (data,) = (row[2] for row in self.versions[key] if row[0] == version)
        assert data is not None
        return data

    def read(self, key: str, version: str, most: int) -> bytes:
        data = self._of(key, version)
        if len(data) > most:
            raise ObjectTooLargeError(key)
        return data

    def crc64(self, key: str, version: str, size: int) -> int:
        assert len(self._of(key, version)) == size
        return crc64nvme(self._of(key, version))


class Reading(MemoryStore):
    """The bucket as evidence reads it: what was chosen below archive/, and chunks."""

    def __init__(self, bucket: LockedBucket, chosen: ChosenVersions) -> None:
        super().__init__()
        self._bucket, self._chosen = bucket, chosen

    def get(
        self, key: str, begin: int = 0, end: int | None = None, *, most: int | None = None
    ) -> bytes:
        return self._bucket._of(key, self._chosen.of(key))[begin:end]

    def list(self, prefix: str, *, start_after: str = "") -> Iterator[Any]:
        if prefix.startswith("pre/archive/"):
            return self._chosen.objects(prefix, start_after=start_after)
        return self._bucket.plain.list(prefix)


ENTRY_KEY, BINLOG_KEY = LAYOUT.entry(ID, NAME), LAYOUT.binlog(ID, NAME)


def test_an_entry_older_than_the_one_before_it_does_not_count() -> None:
    """It was planted before the streamer came so far. Its binlog does not count either."""
    bucket = LockedBucket()
    bucket.binlog(FIRST, 100)
    bucket.planted(NAME, 50)
    bucket.binlog(NAME, 200)
    assert bucket.read_by(ENTRY_KEY) == entry(NAME)
    assert bucket.read_by(BINLOG_KEY) == REAL
    chosen = bucket.chosen()
    assert [*chosen.objects("pre/archive/")]
    assert chosen.preceded == {ENTRY_KEY, BINLOG_KEY}
    assert chosen.replaced == set()


@pytest.mark.parametrize("at", [101, 150, 250])
def test_nothing_decides_between_two_entries_after_the_one_before(at: int) -> None:
    """Planted while the binlog was open, in the same second as the entry before, or put later."""
    bucket = LockedBucket()
    bucket.binlog(FIRST, 100)
    planted = [lambda: bucket.planted(NAME, at - 1), lambda: bucket.binlog(NAME, 200)]
    for write in planted if at < 200 else reversed(planted):
        write()
    with pytest.raises(VersionConflictError) as caught:
        bucket.read_by(ENTRY_KEY)
    for said in ("v0 (put at 2026-01-02T03:", f"{len(entry(NAME))} bytes"):
        assert said in str(caught.value)
    assert f"--object-version {ENTRY_KEY}=" in caught.value.hint
    assert "--versions-before" in caught.value.hint
    with pytest.raises(VersionConflictError):
        bucket.read_by(BINLOG_KEY)


def test_a_conflict_is_told_by_who_reads_it() -> None:
    """A listing has the object: it is neither hidden nor the end of a listing."""
    bucket = LockedBucket()
    bucket.put(LAYOUT.backup(BACKUP.id), 1, BACKUP.to_json())
    bucket.put(LAYOUT.backup(BACKUP.id), 2, replace(BACKUP, label="another").to_json())
    chosen = bucket.chosen()
    assert LAYOUT.backup(BACKUP.id) in [one.key for one in chosen.objects("pre/archive/orders/")]
    with pytest.raises(VersionConflictError):
        chosen.of(LAYOUT.backup(BACKUP.id))


TURN = turn_of(BEAT)
DOCUMENTS = {
    LAYOUT.turn(TURN.number): (TURN, replace(TURN, lineage=ID.replace("a1b2", "ffff"))),
    LAYOUT.lineage(ID): (LINEAGE, replace(LINEAGE, gtid_set="")),
    LAYOUT.floor(ID, NAME.number): (FLOOR, replace(FLOOR, gtid_set="")),
    LAYOUT.backup(BACKUP.id): (BACKUP, replace(BACKUP, location="s3://evil/backup")),
    LAYOUT.drill(DRILL.id): (DRILL, replace(DRILL, outcome="failed", error="x", step="apply")),
}


@pytest.mark.parametrize("key", DOCUMENTS)
@pytest.mark.parametrize("hidden", [False, True])
def test_two_documents_under_one_key(key: str, *, hidden: bool) -> None:
    """Neither counts; the operator picks one by its id, by its time, or says that none counts."""
    ours, theirs = (one.to_json() for one in DOCUMENTS[key])
    bucket = LockedBucket()
    bucket.versions.pop(key, None)
    real = bucket.put(key, 100, ours)
    bucket.put(key, 110, None)
    forged = bucket.put(key, 200, theirs)
    if hidden:
        bucket.put(key, 210, None)
    with pytest.raises(VersionConflictError):
        bucket.read_by(key)
    assert bucket.read_by(key, Picks({key: real})) == ours
    assert bucket.read_by(key, Picks({key: forged})) == theirs
    assert bucket.read_by(key, Picks(before=TIME + timedelta(seconds=150))) == ours
    with pytest.raises(ObjectMissingError):
        bucket.read_by(key, Picks({key: NO_VERSION}))
    with pytest.raises(VersionConflictError, match="has no version 'other'"):
        bucket.read_by(key, Picks({key: "other"}))
    with pytest.raises(VersionConflictError):
        bucket.read_by(key, Picks(before=TIME))


@pytest.mark.parametrize("key", DOCUMENTS)
def test_what_is_no_document_of_its_key_does_not_count(key: str) -> None:
    """Rubbish before, rubbish later, and the same document again: the oldest of those."""
    ours = DOCUMENTS[key][0].to_json()
    bucket = LockedBucket()
    bucket.versions.pop(key, None)
    bucket.put(key, 50, b"rubbish")
    bucket.put(key, 60, None)
    real = bucket.put(key, 100, ours)
    bucket.put(key, 200, b"{}")
    bucket.put(key, 210, None)
    bucket.put(key, 220, ours)
    bucket.put(key, 230, None)
    assert bucket.chosen().of(key) == real


@pytest.mark.parametrize("field", ["format", "encryption"])
def test_a_document_of_a_later_version_may_be_the_right_one(field: str) -> None:
    """It cannot be read, so nothing shows that another one is."""
    later = json.loads(ENTRY.to_json()) | {field: 2 if field == "format" else "AES"}
    bucket = LockedBucket()
    bucket.put(ENTRY_KEY, 100, json.dumps(later).encode())
    bucket.put(ENTRY_KEY, 200, ENTRY.to_json())
    bucket.put(BINLOG_KEY, 99, REAL)
    with pytest.raises(VersionConflictError):
        bucket.read_by(ENTRY_KEY)


def test_a_document_that_was_written_again_is_no_conflict() -> None:
    """Somebody deleted an entry or a floor: the next one differs in when it was made."""
    bucket = LockedBucket()
    first = {}
    for key, one in ((ENTRY_KEY, ENTRY), (LAYOUT.floor(ID, NAME.number), FLOOR)):
        later: Any = {"archived_at" if one is ENTRY else "raised_at": TIME + timedelta(hours=1)}
        first[key] = bucket.put(key, 100, one.to_json())
        bucket.put(key, 110, None)
        bucket.put(key, 120, replace(one, **later).to_json())  # type: ignore[type-var]
    for key, version in first.items():
        assert bucket.chosen().of(key) == version


def test_an_entry_of_a_binlog_that_is_not_there_does_not_count() -> None:
    """Somebody planted, or put later, only an entry; or only a binlog."""
    bucket = LockedBucket()
    bucket.put(ENTRY_KEY, 150, entry(NAME, FORGED))
    bucket.put(ENTRY_KEY, 151, None)
    bucket.binlog(NAME, 200)
    bucket.put(ENTRY_KEY, 250, entry(NAME, FORGED + b" again"))
    assert bucket.read_by(ENTRY_KEY) == entry(NAME)
    bucket.put(LAYOUT.binlog(ID, THIRD), 250, FORGED)
    bucket.put(LAYOUT.binlog(ID, THIRD), 251, None)
    bucket.put(LAYOUT.binlog(ID, THIRD), 260, REAL)
    with pytest.raises(VersionConflictError, match="has no entry"):
        bucket.read_by(LAYOUT.binlog(ID, THIRD))
    bucket.put(LAYOUT.entry(ID, THIRD), 261, entry(THIRD))
    assert bucket.read_by(LAYOUT.binlog(ID, THIRD)) == REAL


def test_a_lineage_comes_before_its_first_entry() -> None:
    """Whoever guessed its id wrote before that lineage was described."""
    bucket = LockedBucket()
    bucket.planted(FIRST, -100)
    bucket.binlog(FIRST, 100)
    assert bucket.read_by(LAYOUT.entry(ID, FIRST)) == entry(FIRST)


@pytest.mark.parametrize("below", ["floor", "chunks", "deleted"])
def test_order_is_not_forged_where_nothing_is_kept(below: str) -> None:
    """An entry before it that a lock does not have to keep proves nothing: it may be put later."""
    bucket = LockedBucket()
    if below == "floor":
        bucket.put(LAYOUT.floor(ID, NAME.number), 90, FLOOR.to_json())
    elif below == "chunks":
        bucket.plain.put(f"{LAYOUT.chunks(ID, FIRST)}{0:016}-{4:016}-{0:016x}", b"1234")
    bucket.binlog(NAME, 200)
    if below != "deleted":
        bucket.binlog(FIRST, 300, FORGED)
    bucket.binlog(NAME, 400, FORGED)
    with pytest.raises(VersionConflictError):
        bucket.read_by(ENTRY_KEY)


def test_a_binlog_that_is_open_is_not_one_that_was_put_and_deleted() -> None:
    """The lock keeps the plant, but the bucket has chunks; without the lock it is gone."""
    bucket = LockedBucket()
    bucket.binlog(FIRST, 100)
    bucket.planted(NAME, 150)
    assert bucket.read_by(ENTRY_KEY) == entry(NAME, FORGED)
    bucket.plain.put(f"{LAYOUT.chunks(ID, NAME)}{0:016}-{4:016}-{0:016x}", b"1234")
    for key in (ENTRY_KEY, BINLOG_KEY):
        with pytest.raises(VersionConflictError, match="has chunks of its binlog"):
            bucket.read_by(key)
        there = bucket.versions[key]
        bucket.versions[key] = [(id_, at, data, False) for id_, at, data, _ in there]
        with pytest.raises(ObjectMissingError):
            bucket.read_by(key)


def test_pages_and_the_end_of_a_source() -> None:
    """A page of which there are several is none; retired.json may be put again, and deleted."""
    bucket = LockedBucket()
    page = LAYOUT.page(ID, 0)
    bucket.put(page, 1, b"one")
    bucket.put(page, 2, b"another")
    with pytest.raises(ObjectMissingError):
        bucket.read_by(page)
    documents = [
        Retired(source="orders", retired_at=TIME + timedelta(days=day)).to_json() for day in (1, 2)
    ]
    for at, document in enumerate(documents):
        bucket.put(LAYOUT.retired, at, document)
    assert bucket.read_by(LAYOUT.retired) == documents[1]
    bucket.put(LAYOUT.retired, 3, None)
    with pytest.raises(ObjectMissingError):
        bucket.read_by(LAYOUT.retired)


def test_a_document_of_another_source_is_none_of_this_key() -> None:
    """A copy from elsewhere in the bucket does not count."""
    key, bucket = LAYOUT.backup(BACKUP.id), LockedBucket()
    bucket.put(key, 1, replace(BACKUP, source="other").to_json())
    bucket.put(key, 2, BACKUP.to_json())
    assert bucket.read_by(key) == BACKUP.to_json()


def test_a_foreign_key_is_nobodys_conflict() -> None:
    """What is not of the format is not read, and stops nobody."""
    bucket = LockedBucket()
    for at, data in enumerate((b"one", b"another")):
        bucket.put("pre/archive/orders/notes.txt", at, data)
    assert bucket.chosen().of("pre/archive/orders/notes.txt") == "v0"


def test_of_a_stored_backups_versions_that_counts_which_its_document_describes() -> None:
    """Whether somebody put another one before or after it; without a document none does."""
    layout = Layout("pre", "orders")
    key, document = layout.stored(BACKUP.id, 1), layout.backup(BACKUP.id)
    stored = stored_as(REAL)
    bucket = LockedBucket()
    bucket.put(key, 100, FORGED)
    bucket.put(key, 101, REAL)
    bucket.put(key, 103, FORGED)
    with pytest.raises(VersionConflictError):
        bucket.read_by(key)
    bucket.put(document, 102, replace(BACKUP, stored=stored).to_json())
    assert bucket.read_by(key) == REAL
    bucket.put(key, 104, None)
    assert bucket.read_by(key) == REAL
