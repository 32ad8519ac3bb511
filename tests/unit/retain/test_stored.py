"""The stream of a base backup in the bucket: stored as it comes, and read back checked."""

import json
import random
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import pytest

from binlog2s3.archive.backups import Backup
from binlog2s3.archive.codec import Crc64, as_fields, converted
from binlog2s3.archive.parts import Grid
from binlog2s3.archive.stored import (
    MOST_OBJECTS,
    MOST_PARTS,
    Stored,
    StoredObject,
    read_stored,
)
from binlog2s3.binlog.checksum import crc64_hex, crc64nvme
from binlog2s3.binlog.compression import ZstdStream
from binlog2s3.errors import ArchiveError, PreconditionError, StoreError, UploadMissingError
from binlog2s3.retain.stream_upload import StreamUpload
from binlog2s3.workers import Workers
from tests.documents import BACKUP, TIME
from tests.memory_store import MemoryStore
from tests.snapshots import LAYOUT

PART = 1000
ID = BACKUP.id


def content(size: int = 25_500) -> bytes:
    return random.Random(7).randbytes(size)


def key_of(number: int) -> str:
    return LAYOUT.stored(ID, number)


def upload_of(store: MemoryStore, **how: Any) -> StreamUpload:
    return StreamUpload(store, key_of, Workers(2), part_size=PART, **how)


def stored_of(upload: StreamUpload, data: bytes, compression: str = "none") -> Stored:
    return Stored(
        compression="zstd" if compression == "zstd" else "none",
        size=len(data),
        crc64=Crc64(crc64nvme(data)),
        stored_size=upload.size,
        began_at=TIME,
        ended_at=TIME,
        part_size=PART,
        objects=upload.stored,
    )


def put(store: MemoryStore, data: bytes, *, most_parts: int = 10) -> Stored:
    """Store it: in objects of at most so many parts, written in pieces of any size."""
    upload, at, sizes = upload_of(store, most_parts=most_parts), 0, random.Random(8)
    while at < len(data):
        step = sizes.randrange(1, 2500)
        upload.write(data[at : at + step])
        at += step
    upload.end()
    upload.complete()
    return stored_of(upload, data)


def read(store: MemoryStore, stored: Stored) -> bytes:
    return b"".join(read_stored(store, LAYOUT, ID, stored))


def store_in_memory(**how: Any) -> MemoryStore:
    return MemoryStore(min_part_bytes=1, **how)


@pytest.mark.parametrize("crc64", [True, False])
@pytest.mark.parametrize("size", [1, PART, PART + 1, 10 * PART, 10 * PART + 1, 25_500])
def test_what_is_stored_is_read_back(size: int, crc64: bool) -> None:
    """Parts follow the grid, objects follow one another, and nothing is left of the uploads."""
    store, data = store_in_memory(crc64=crc64), content(size)
    stored = put(store, data)
    assert read(store, stored) == data
    assert [one.size for one in stored.objects] == [
        min(10 * PART, size - at) for at in range(0, size, 10 * PART)
    ]
    assert sorted(store.objects) == [key_of(n + 1) for n in range(len(stored.objects))]
    assert store.uploads == {}
    assert converted(as_fields(stored), Stored) == stored


def test_nothing_is_there_before_it_is_complete() -> None:
    """And nothing is left after an abort, even of a create whose answer was lost."""
    store = store_in_memory()
    store.fail_next("create_upload", "after", StoreError("no answer"))
    upload = upload_of(store)
    with pytest.raises(StoreError):
        upload.write(content())
    assert (len(store.uploads), store.objects) == (1, {})
    upload.abort()
    assert (store.uploads, store.objects) == ({}, {})


@pytest.mark.parametrize("error", [PreconditionError, UploadMissingError, StoreError])
def test_a_complete_whose_answer_is_lost(error: type[StoreError]) -> None:
    """What is there then is looked at; what cannot be known is an error, and can be aborted."""
    store, data = store_in_memory(), content()
    upload = upload_of(store)
    upload.write(data)
    upload.end()
    store.fail_next("complete_upload", "after", error("done before"))
    if error is StoreError:
        with pytest.raises(StoreError):
            upload.complete()
        return
    upload.complete()
    assert read(store, stored_of(upload, data)) == data


def test_an_object_of_somebody_else_is_not_taken_for_ours() -> None:
    """It is under our key when the upload is completed: nothing is registered."""
    store = store_in_memory()
    upload = upload_of(store)
    upload.write(content())
    upload.end()
    store.put(key_of(1), content()[:-1] + b"x")
    with pytest.raises(ArchiveError, match="does not have the bytes"):
        upload.complete()


def test_a_store_that_refuses_parts_with_a_checksum_gets_the_first_one_again() -> None:
    """It has aborted the upload then: the next one is without, and begins with part 1."""
    store, data = store_in_memory(), content()
    store.fail_next("upload_part", "before", UploadMissingError("refused: begins anew"))
    assert read(store, put(store, data)) == data


def test_memory_is_bounded() -> None:
    """While two parts are on their way, no third one is gathered beyond one part."""
    store, upload = store_in_memory(), None
    held = list[int]()

    def look(_operation: str) -> None:
        if upload is not None:
            held.append(upload._workers.busy * PART + len(upload._part))

    store.on_call = look
    upload = upload_of(store, most_parts=1000)
    for _ in range(300):
        upload.write(content(500))
    upload.end()
    assert max(held) <= 3 * PART


def take(pieces: Iterable[bytes], into: bytearray) -> None:
    for piece in pieces:
        into += piece


def damage(store: MemoryStore, change: Callable[[bytes], bytes], number: int = 2) -> None:
    data = change(store.objects[key_of(number)].data)
    del store.objects[key_of(number)]
    if data:
        store.put(key_of(number), data)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda data: data[:50] + bytes([data[50] ^ 1]) + data[51:], "is damaged between 0 and"),
        (lambda data: data[:-1], "ends at 9999"),
        (lambda _: b"", "is missing"),
    ],
)
def test_damage_is_noticed_before_a_byte_of_its_part_is_passed_on(
    change: Callable[[bytes], bytes], why: str
) -> None:
    """What came before is right, and the end is an error."""
    store, data = store_in_memory(), content()
    stored, passed = put(store, data), bytearray()
    damage(store, change)
    with pytest.raises((ArchiveError, StoreError), match=why):
        take(read_stored(store, LAYOUT, ID, stored), passed)
    assert data.startswith(passed)
    assert len(passed) < len(data)


@pytest.mark.parametrize("cut", [6, 40])
def test_a_frame_that_is_cut_off_is_noticed(cut: int) -> None:
    """Its objects are whole as the document says, and yet the stream is not."""
    store, data, zstd = store_in_memory(), content(), ZstdStream()
    packed = zstd.feed(data) + zstd.end()
    upload = upload_of(store)
    upload.write(packed[:-cut])
    upload.end()
    upload.complete()
    with pytest.raises(ArchiveError, match=r"backup .* (does not|cannot)"):
        read(store, stored_of(upload, data, "zstd"))


def test_what_is_longer_than_it_says_is_stopped() -> None:
    """A frame may expand without end: no more is passed on than the document says."""
    store, zstd = store_in_memory(), ZstdStream()
    upload = upload_of(store)
    upload.write(zstd.feed(bytes(50 << 20)) + zstd.end())
    upload.end()
    upload.complete()
    passed = bytearray()
    pieces = read_stored(store, LAYOUT, ID, stored_of(upload, bytes(1 << 20), "zstd"))
    with pytest.raises(ArchiveError, match="does not have the bytes"):
        take(pieces, passed)
    assert len(passed) <= 1 << 20


def backup_with(stored: Stored) -> Backup:
    return replace(BACKUP, stored=stored)


def test_its_document_is_read_again() -> None:
    """With all parts."""
    store = store_in_memory()
    backup = backup_with(put(store, content()))
    key = LAYOUT.backup(backup.id)
    assert Backup.from_json(backup.to_json(), key) == backup


def test_the_greatest_stream_has_a_document_that_is_read_again() -> None:
    """However many parts it has: what is stored must not be lost to a limit of its document."""
    size = [*zip(range(MOST_PARTS), Grid(1).parts(1 << 62), strict=False)][-1][1].end
    objects = (StoredObject.of(size, [crc64nvme(b"x")] * MOST_PARTS, Grid(1)),) * MOST_OBJECTS
    backup = backup_with(
        Stored(
            compression="none",
            size=1,
            crc64=Crc64(1),
            stored_size=size * MOST_OBJECTS,
            began_at=TIME,
            ended_at=TIME,
            part_size=1,
            objects=objects,
        )
    )
    assert len(backup.to_json()) <= Backup.MOST


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("compression", "lz4"),
        ("part_size", 0),
        ("part_size", 1 << 40),
        ("size", 0),
        ("crc64", "x"),
        ("stored_size", 1),
        ("objects", []),
        ("objects", [{"size": 0, "crc64": crc64_hex(0), "parts": ""}]),
        ("objects", [{"size": 1 << 62, "crc64": crc64_hex(0), "parts": crc64_hex(0)}]),
        ("began_at", "yesterday"),
    ],
)
def test_a_document_that_contradicts_itself_is_none(field: str, value: Any) -> None:
    """Nothing of it is read."""
    backup = backup_with(put(store_in_memory(), content()))
    assert backup.stored is not None
    document = json.loads(backup.to_json())
    document["stored"][field] = value
    with pytest.raises(ArchiveError, match="is not as format 1 says"):
        Backup.from_json(json.dumps(document).encode(), LAYOUT.backup(backup.id))
