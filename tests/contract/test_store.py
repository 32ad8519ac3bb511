"""One suite for every store: what `Store` promises, kept by memory, MinIO and versitygw.

Where a store is known to differ, `KNOWN` says how, and the test asserts the difference as it is:
a store that changes is noticed.
"""

import os
import secrets
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any, Literal

import boto3
import pytest

from binlog2s3.binlog.checksum import composite_etag, crc64_base64, crc64nvme, md5
from binlog2s3.errors import (
    ObjectMissingError,
    ObjectTooLargeError,
    PreconditionError,
    SpoolError,
    StoreError,
    UnsupportedError,
    UploadMissingError,
)
from binlog2s3.store.s3 import (
    PREFLIGHT,
    Body,
    FileRange,
    MendableError,
    ObjectInfo,
    PartInfo,
    Reader,
    RefusedError,
    RetryPolicy,
    S3Store,
    Store,
    StoreConfig,
)
from lab.fault import Answer, Drop, DropAnswer, Request, Rewrite, on
from lab.proxy import RecordingProxy
from lab.s3 import MinioServer, VersitygwServer
from tests.memory_store import MemoryStore
from tests.relay import Relay

MIB = 1 << 20
PART = 5 * MIB
Server = MinioServer | VersitygwServer
ONCE = RetryPolicy(attempts=1)
XML = {"Content-Type": "application/xml"}
DENIED_XML = b"<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"
DENIED = Answer(403, XML, DENIED_XML)
QUICK = RetryPolicy(attempts=4, first_delay_seconds=0.01, max_delay_seconds=0.05)


CHECKSUM_HEADERS = {
    "x-amz-checksum-algorithm",
    "x-amz-checksum-crc64nvme",
    "x-amz-checksum-crc32",
    "x-amz-checksum-mode",
    "x-amz-checksum-type",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """Where a store differs from S3 as documented; the defaults are S3's."""

    copies_into_crc64_uploads: bool = True
    names_may_be_folders_too: Literal["yes", "hidden", "refused"] = "yes"
    encrypts: bool = True
    keeps_storage_classes: bool = True
    keeps_settings: bool = True


KNOWN = {
    "memory": Known(),
    "minio": Known(copies_into_crc64_uploads=False, names_may_be_folders_too="hidden"),
    "versitygw": Known(
        names_may_be_folders_too="refused",
        encrypts=False,
        keeps_storage_classes=False,
        keeps_settings=False,
    ),
}


@cache
def session_for(server: Server) -> boto3.Session:
    """One boto3 session a server, as making one takes longer than most tests."""
    return boto3.Session(
        aws_access_key_id=server.access_key,
        aws_secret_access_key=server.secret_key,
        region_name="us-east-1",
    )


def make_bucket(server: Server) -> str:
    """A fresh bucket."""
    name = f"contract-{secrets.token_hex(6)}"
    with closing(session_for(server).client("s3", endpoint_url=server.endpoint_url)) as client:
        client.create_bucket(Bucket=name)
    return name


@dataclass(slots=True)
class Place:
    """A store under test with its bucket, and a way to open further stores on that bucket."""

    name: str
    known: Known
    bucket: str
    server: Server | None
    store: Store = field(init=False)
    _opened: list[Store] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.store = self.open() if self.server else MemoryStore()

    def open(
        self,
        *,
        policy: RetryPolicy = ONCE,
        stop: threading.Event | None = None,
        on_error: Callable[[StoreError, int, float], None] | None = None,
        **config: Any,
    ) -> S3Store:
        """A store with settings of its own on the same bucket."""
        server = self.server
        assert server is not None
        settings = {"endpoint_url": server.endpoint_url, "region": "us-east-1", **config}
        store = S3Store(
            StoreConfig(bucket=self.bucket, **settings),
            stop=stop or threading.Event(),
            policy=policy,
            on_error=on_error,
            session=lambda **_: session_for(server),
        )
        self._opened.append(store)
        return store

    def another(self) -> Store:
        """What a later process on another host has: the same bucket and no memory."""
        return self.open() if self.server else self.store

    def close(self) -> None:
        for store in self._opened:
            store.close()


SERVERS = [pytest.param("minio", marks=pytest.mark.minio), "versitygw"]


def _place(request: pytest.FixtureRequest) -> Iterator[Place]:
    name = request.param
    server = None if name == "memory" else request.getfixturevalue(name)
    bucket = make_bucket(server) if server else ""
    place = Place(name=name, known=KNOWN[name], bucket=bucket, server=server)
    yield place
    place.close()


@pytest.fixture(params=["memory", *SERVERS])
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    """Each store in turn."""
    yield from _place(request)


@pytest.fixture(params=SERVERS)
def remote(request: pytest.FixtureRequest) -> Iterator[Place]:
    """Each store that is reached by requests: what the wire shows."""
    yield from _place(request)


@pytest.fixture
def store(place: Place) -> Store:
    """The store of the place under test."""
    return place.store


@pytest.fixture
def proxy(remote: Place) -> Iterator[RecordingProxy]:
    """Between us and the store: what went over the wire, and faults where a test wants them."""
    assert remote.server is not None
    with RecordingProxy(remote.server.endpoint_url) as running:
        yield running


def upload(
    store: Store, key: str, *pieces: bytes, crc64: bool = True
) -> tuple[str, list[PartInfo]]:
    """An upload of these parts that waits to be completed."""
    upload_id = store.create_upload(key, crc64=crc64)
    parts = [
        store.upload_part(key, upload_id, number, piece, crc64nvme(piece))
        for number, piece in enumerate(pieces, 1)
    ]
    return upload_id, parts


def complete(
    store: Store, key: str, upload_id: str, parts: Sequence[PartInfo], data: bytes, **more: Any
) -> ObjectInfo:
    """Complete with the size and digest of what the object must be."""
    return store.complete_upload(
        key, upload_id, parts, size=len(data), crc64=crc64nvme(data), **more
    )


# Objects


def test_what_was_put_is_read_back(store: Store) -> None:
    """An object has exactly the bytes that were put, whole or in any range."""
    store.put("a/log", b"0123456789")
    assert store.get("a/log") == b"0123456789"
    assert store.get("a/log", 3) == b"3456789"
    assert store.get("a/log", 3, 7) == b"3456"
    assert store.get("a/log", 0, 10) == b"0123456789"
    assert store.get("a/log", 4, 4) == b""
    assert store.put("empty", b"").size == 0
    assert store.get("empty") == b""


def test_a_range_behind_the_end_is_no_shorter_answer(store: Store) -> None:
    """Asked for bytes that are not there, a store raises; it never returns fewer."""
    store.put("a/log", b"0123456789")
    with pytest.raises(StoreError):
        store.get("a/log", 5, 11)
    with pytest.raises(StoreError):
        store.get("a/log", 20, 30)
    with pytest.raises(StoreError):
        b"".join(store.open("a/log", 5, 11))


def test_an_object_that_is_too_large_is_not_read(store: Store) -> None:
    """It is an error of its own, which no attempt follows; one of just that size is read."""
    store.put("a/log", b"0123456789")
    assert store.get("a/log", most=10) == b"0123456789"
    with pytest.raises(ObjectTooLargeError) as caught:
        store.get("a/log", most=9)
    assert not caught.value.transient


def test_what_is_not_there_is_missing(store: Store) -> None:
    """A missing object is an error of its own for GET, and None for HEAD."""
    with pytest.raises(ObjectMissingError) as caught:
        store.get("a/nothing")
    assert "a/nothing" in str(caught.value)
    assert not caught.value.transient
    with pytest.raises(ObjectMissingError):
        b"".join(store.open("a/nothing", 0, 1))
    assert store.head("a/nothing") is None


def test_reading_in_blocks(store: Store) -> None:
    """`open` gives exactly the range, in blocks of at most 1 MiB."""
    data = os.urandom(3 * MIB + 17)
    store.put("big", data)
    blocks = list(store.open("big", 5, len(data) - 1))
    assert b"".join(blocks) == data[5:-1]
    assert max(map(len, blocks)) <= MIB
    assert list(store.open("big", 5, 5)) == []


def test_what_head_says(store: Store) -> None:
    """HEAD gives size, ETag, checksum, class and an aware UTC time; PUT's answer agrees."""
    before = datetime.now(UTC) - timedelta(seconds=2)
    put = store.put("a/log", b"0123456789", crc64=crc64nvme(b"0123456789"))
    head = store.head("a/log")
    assert head is not None
    for info in (put, head):
        assert (info.key, info.size, info.storage_class) == ("a/log", 10, "STANDARD")
        assert info.etag == md5(b"0123456789").hex()
        assert info.last_modified.utcoffset() == timedelta(0)
        assert before <= info.last_modified <= datetime.now(UTC) + timedelta(seconds=2)
    assert put.crc64 == head.crc64 == crc64nvme(b"0123456789")


def test_put_replaces_unless_told_not_to(store: Store) -> None:
    """Without `if_absent` the object is replaced; with it a second put changes nothing."""
    store.put("live/writer.json", b"{1}")
    store.put("live/writer.json", b"{2}")
    with pytest.raises(PreconditionError) as caught:
        store.put("live/writer.json", b"{3}", if_absent=True)
    assert "live/writer.json" in str(caught.value)
    assert not caught.value.transient
    assert store.get("live/writer.json") == b"{2}"
    store.put("live/other.json", b"{4}", if_absent=True)
    assert store.get("live/other.json") == b"{4}"


def test_a_store_that_keeps_conditions_is_known(store: Store) -> None:
    """Once it has refused to replace what is there; what is there stays as it is."""
    assert not store.refuses_replacing
    assert [*store.kept("live/")] == []  # it has no Object Lock
    store.put("live/writer.json", b"{1}")
    store.try_condition("live/writer.json", b"{1}")
    assert store.refuses_replacing
    assert store.get("live/writer.json") == b"{1}"


def test_only_one_of_many_is_first(store: Store) -> None:
    """Of several puts with `if_absent` at once exactly one succeeds, and its bytes stay."""

    def put(n: int) -> int | None:
        try:
            store.put("race", b"%d" % n, if_absent=True)
        except PreconditionError:
            return None
        return n

    with ThreadPoolExecutor(8) as pool:
        (won,) = (n for n in pool.map(put, range(8)) if n is not None)
    assert store.get("race") == b"%d" % won


def test_no_more_than_the_bandwidth(place: Place) -> None:
    """A body takes its time, whatever else reads it before it is sent."""
    if place.server is None:
        return  # it sends nothing
    for checksum in ("auto", "md5", "none"):
        store = place.open(max_bandwidth=1 << 20, checksum=checksum)
        began = time.monotonic()
        store.put("slow", b"x" * (512 << 10))
        assert time.monotonic() - began >= 0.37  # four blocks of an eighth of a second, one is free
        assert store.get("slow") == b"x" * (512 << 10)


def test_bytes_that_rotted_are_refused(store: Store, tmp_path: Path) -> None:
    """A body that no longer has the digest its reader computed does not become an object."""
    path = tmp_path / "spooled"
    path.write_bytes(b"0123456789")
    body = FileRange(path, 0, 10)
    seen = crc64nvme(path.read_bytes())
    path.write_bytes(b"012345678X")
    with pytest.raises(StoreError) as caught:
        store.put("rotten", body, crc64=seen)
    assert "checksum" in str(caught.value)
    assert not caught.value.transient
    assert store.head("rotten") is None


def test_a_file_that_got_shorter_stores_nothing(store: Store, tmp_path: Path) -> None:
    """Of a file its slice is stored; one behind its end is the spool's error, and no object."""
    path = tmp_path / "spooled"
    path.write_bytes(b"0123456789")
    assert store.put("slice", FileRange(path, 2, 9)).size == 7
    assert store.get("slice") == b"2345678"
    with pytest.raises(SpoolError, match="shorter"):
        store.put("short", FileRange(path, 5, 11), crc64=1)
    with pytest.raises(SpoolError, match="cannot read"):
        store.put("gone", FileRange(tmp_path / "nothing", 0, 1), crc64=1)
    assert [info.key for info in store.list("")] == ["slice"]


@pytest.mark.parametrize("key", ["a b+c", "ä/日本", "q?x=1&y=%20", "'\"<&>", "tilde~/dot."])
def test_keys_are_taken_literally(store: Store, key: str) -> None:
    """Whatever stands in a key, it is put, listed, read and deleted under just that."""
    store.put(key, b"x")
    assert [info.key for info in store.list("")] == [key]
    assert store.get(key) == b"x"
    store.delete([key])
    assert list(store.list("")) == []


# Listings


def test_a_listing_has_all_pages(store: Store) -> None:
    """More keys than a page holds come all, in order, once; so do names, and all are deleted."""
    keys = [f"live/chunk-{n:05}" for n in range(1003)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda key: store.put(key, b"x"), reversed(keys)))
    store.put("other", b"x")
    assert [info.key for info in store.list("live/")] == keys
    assert [info.key for info in store.list("live/", start_after=keys[1000])] == keys[1001:]
    assert list(store.list_names("live/")) == [key.removeprefix("live/") for key in keys]
    store.delete(iter(keys))
    assert [info.key for info in store.list("")] == ["other"]


def test_what_a_listing_says(store: Store) -> None:
    """Size, ETag and an aware UTC time; no checksum."""
    put = store.put("a/log", b"0123456789")
    (listed,) = store.list("a/")
    assert listed == replace(put, crc64=None, last_modified=listed.last_modified)
    assert listed.last_modified.utcoffset() == timedelta(0)


def test_a_prefix_is_text(store: Store) -> None:
    """A prefix matches keys that begin with it, in UTF-8 order; nothing there is an empty list."""
    for key in ("b", "a/2", "a/10", "a.1", "aä", "ab"):
        store.put(key, b"")
    assert [info.key for info in store.list("a")] == ["a.1", "a/10", "a/2", "ab", "aä"]
    assert [info.key for info in store.list("a/")] == ["a/10", "a/2"]
    assert list(store.list("zzz")) == []


def test_names_are_one_step(store: Store) -> None:
    """`list_names` gives each name and folder below a prefix once, folders with their slash."""
    for key in ("p/a", "p/b/1", "p/b/2", "p/c", "p/b.json", "q/d"):
        store.put(key, b"")
    assert list(store.list_names("p/")) == ["a", "b.json", "b/", "c"]
    assert list(store.list_names("")) == ["p/", "q/"]
    assert list(store.list_names("nothing/")) == []


def test_a_name_that_is_also_a_folder(place: Place) -> None:
    """S3 knows no folders; a store on a file system may hide or refuse what lies below a name."""
    place.store.put("a", b"x")
    if place.known.names_may_be_folders_too == "refused":
        with pytest.raises(RefusedError):
            place.store.put("a/1", b"x")
    else:
        place.store.put("a/1", b"x")
    seen = ["a", "a/1"] if place.known.names_may_be_folders_too == "yes" else ["a"]
    assert [info.key for info in place.store.list("")] == seen


def test_deleting_what_is_not_there_is_no_error(store: Store) -> None:
    """Delete means: not there afterwards."""
    store.put("a", b"x")
    store.delete(["a", "nothing"])
    store.delete(["a"])
    store.delete([])
    assert store.head("a") is None


# Multipart uploads


def test_parts_become_an_object(store: Store) -> None:
    """The parts, joined in order, under the composite ETag and the checksum of the whole."""
    first, second = os.urandom(PART), b"tail"
    upload_id, parts = upload(store, "binlog.1", first, second)
    assert store.head("binlog.1") is None, "an unfinished upload is no object"
    info = complete(store, "binlog.1", upload_id, parts, first + second)
    assert info == store.head("binlog.1")
    assert info.size == PART + 4
    assert info.crc64 == crc64nvme(first + second)
    assert info.etag == composite_etag([md5(first), md5(second)])
    assert store.get("binlog.1") == first + second
    assert store.list_uploads("binlog.1") == []


def test_another_process_takes_an_upload_up(place: Place) -> None:
    """From the key alone: the upload, its parts, the missing part, and the same object."""
    first, second, third = os.urandom(PART), os.urandom(PART), b"tail"
    whole = first + second + third
    before = datetime.now(UTC) - timedelta(seconds=2)
    upload_id, sent = upload(place.store, "binlog.1", first, second)

    later = place.another()
    (found,) = later.list_uploads("binlog.1")
    assert (found.upload_id, found.key) == (upload_id, "binlog.1")
    assert found.initiated.utcoffset() == timedelta(0)
    assert found.initiated >= before
    parts = later.list_parts("binlog.1", upload_id)
    assert [(part.number, part.size, part.etag) for part in parts] == [
        (1, PART, md5(first).hex()),
        (2, PART, md5(second).hex()),
    ]
    assert parts == sent
    assert [part.crc64 for part in parts] == [crc64nvme(first), crc64nvme(second)]
    tail = later.upload_part("binlog.1", upload_id, 3, third, crc64nvme(third))
    info = complete(later, "binlog.1", upload_id, [*parts, tail], whole)
    assert info.crc64 == crc64nvme(whole)
    assert place.store.get("binlog.1") == whole


def test_a_part_may_be_sent_without_listing_first(place: Place) -> None:
    """An upload known only by its id takes parts just the same."""
    upload_id = place.store.create_upload("binlog.1")
    later = place.another()
    part = later.upload_part("binlog.1", upload_id, 1, b"0123", crc64nvme(b"0123"))
    assert complete(later, "binlog.1", upload_id, [part], b"0123").size == 4


def test_uploads_are_found_by_their_exact_key(store: Store) -> None:
    """Not those of longer keys, nor those of shorter ones; several of one key all."""
    ids = {key: store.create_upload(key) for key in ("binlog.1", "binlog.10", "binlog.1/x")}
    again = store.create_upload("binlog.1")
    assert {found.upload_id for found in store.list_uploads("binlog.1")} == {
        ids["binlog.1"],
        again,
    }
    assert [found.upload_id for found in store.list_uploads("binlog.10")] == [ids["binlog.10"]]
    assert store.list_uploads("binlog.") == []


def test_all_parts_are_listed(store: Store) -> None:
    """More parts than a page holds come all, by number, however they were sent."""
    upload_id = store.create_upload("binlog.1")

    def send(number: int) -> PartInfo:
        return store.upload_part("binlog.1", upload_id, number, b"%d" % number)

    with ThreadPoolExecutor(8) as pool:
        sent = list(pool.map(send, range(1003, 0, -1)))
    listed = store.list_parts("binlog.1", upload_id)
    assert [part.number for part in listed] == list(range(1, 1004))
    assert [part.etag for part in listed] == [part.etag for part in reversed(sent)]


def test_a_part_sent_again_replaces_the_first(store: Store) -> None:
    """Of two parts of one number the later one counts; the earlier's ETag is refused."""
    upload_id, (old,) = upload(store, "binlog.1", b"old")
    new = store.upload_part("binlog.1", upload_id, 1, b"new", crc64nvme(b"new"))
    with pytest.raises(RefusedError):
        complete(store, "binlog.1", upload_id, [old], b"old")
    assert [part.etag for part in store.list_parts("binlog.1", upload_id)] == [new.etag]
    complete(store, "binlog.1", upload_id, [new], b"new")
    assert store.get("binlog.1") == b"new"


def test_a_part_that_rotted_is_refused(store: Store) -> None:
    """A part with another digest than its reader saw does not become a part."""
    upload_id = store.create_upload("binlog.1")
    with pytest.raises(StoreError, match="checksum"):
        store.upload_part("binlog.1", upload_id, 1, b"rotten", crc64nvme(b"sound"))
    assert store.list_parts("binlog.1", upload_id) == []


def test_a_small_part_that_is_not_the_last_is_refused(store: Store) -> None:
    """5 MiB at least, and no object until it is so."""
    upload_id, parts = upload(store, "binlog.1", b"small", b"last")
    with pytest.raises(RefusedError):
        complete(store, "binlog.1", upload_id, parts, b"smalllast")
    assert store.head("binlog.1") is None


def test_parts_that_are_not_there_are_refused(store: Store) -> None:
    """A part of another content or number than listed, and no object."""
    upload_id, (part,) = upload(store, "binlog.1", b"0123")
    for wrong in (replace(part, etag=md5(b"other").hex()), replace(part, number=2)):
        with pytest.raises(RefusedError):
            complete(store, "binlog.1", upload_id, [wrong], b"0123")
    assert store.head("binlog.1") is None


@pytest.mark.parametrize(("size", "data"), [(4, b"other"), (5, b"0123")])
def test_another_whole_than_was_computed_is_noticed(store: Store, size: int, data: bytes) -> None:
    """Complete never returns when the object's checksum or size is not the caller's."""
    upload_id, parts = upload(store, "binlog.1", b"0123")
    with pytest.raises(StoreError) as caught:
        store.complete_upload("binlog.1", upload_id, parts, size=size, crc64=crc64nvme(data))
    assert not caught.value.transient


def test_complete_does_not_replace(store: Store) -> None:
    """What lies under the key stays; the upload stays too, and completes if told to replace."""
    store.put("binlog.1", b"first")
    upload_id, parts = upload(store, "binlog.1", b"second")
    with pytest.raises(PreconditionError):
        complete(store, "binlog.1", upload_id, parts, b"second")
    assert store.get("binlog.1") == b"first"
    complete(store, "binlog.1", upload_id, parts, b"second", if_absent=False)
    assert store.get("binlog.1") == b"second"


def test_an_aborted_upload_is_gone(store: Store) -> None:
    """Parts are neither taken nor listed; aborting again is no error."""
    upload_id, parts = upload(store, "binlog.1", b"0123")
    store.abort_upload("binlog.1", upload_id)
    store.abort_upload("binlog.1", upload_id)
    assert store.list_uploads("binlog.1") == []
    for act in (
        lambda: store.list_parts("binlog.1", upload_id),
        lambda: store.upload_part("binlog.1", upload_id, 2, b"x"),
        lambda: complete(store, "binlog.1", upload_id, parts, b"0123"),
    ):
        with pytest.raises(UploadMissingError) as caught:
            act()
        assert not caught.value.transient
    assert store.head("binlog.1") is None


def test_a_completed_upload_takes_nothing(store: Store) -> None:
    """A late part or a second Complete changes nothing of the object."""
    upload_id, parts = upload(store, "binlog.1", b"0123")
    complete(store, "binlog.1", upload_id, parts, b"0123")
    with pytest.raises(UploadMissingError):
        store.upload_part("binlog.1", upload_id, 1, b"late")
    with pytest.raises((UploadMissingError, PreconditionError)):
        complete(store, "binlog.1", upload_id, parts, b"0123")
    assert store.get("binlog.1") == b"0123"


@pytest.mark.parametrize("tail", [b"", b"tail"], ids=["copies", "a part behind them"])
def test_parts_are_copied_inside_the_store(store: Store, tail: bytes) -> None:
    """Objects become parts without their bytes being sent again; the last one may be small."""
    first, second = os.urandom(PART), os.urandom(PART if tail else 1000)
    store.put("live/1", first)
    store.put("live/2", second)
    upload_id = store.create_upload("binlog.1", crc64=False)
    parts = [
        store.copy_part("binlog.1", upload_id, number, f"live/{number}", size=len(data))
        for number, data in enumerate((first, second), 1)
    ]
    assert [(part.number, part.size, part.etag) for part in parts] == [
        (1, PART, md5(first).hex()),
        (2, len(second), md5(second).hex()),
    ]
    data, digests = first + second, [md5(first), md5(second)]
    if tail:
        parts.append(store.upload_part("binlog.1", upload_id, 3, tail, crc64nvme(tail)))
        data, digests = data + tail, [*digests, md5(tail)]
    info = complete(store, "binlog.1", upload_id, parts, data)
    assert (info.size, info.etag) == (len(data), composite_etag(digests))
    assert store.get("binlog.1") == data


def test_copies_into_an_upload_with_a_checksum(place: Place) -> None:
    """The store takes them, or refuses in a way that a caller can fall back from."""
    store = place.store
    store.put("live/1", bytes(PART))
    upload_id = store.create_upload("binlog.1")
    if not place.known.copies_into_crc64_uploads:
        with pytest.raises((UnsupportedError, RefusedError)):
            store.copy_part("binlog.1", upload_id, 1, "live/1", size=PART)
        return
    part = store.copy_part("binlog.1", upload_id, 1, "live/1", size=PART)
    assert part.crc64 == crc64nvme(bytes(PART))
    assert complete(store, "binlog.1", upload_id, [part], bytes(PART)).size == PART


def test_a_copy_of_nothing_is_missing(store: Store) -> None:
    """The source's absence is the error, not the upload's."""
    upload_id = store.create_upload("binlog.1", crc64=False)
    with pytest.raises(ObjectMissingError):
        store.copy_part("binlog.1", upload_id, 1, "live/nothing", size=PART)


def test_many_threads_use_one_store(store: Store) -> None:
    """Parts of several uploads from many threads end up where they belong."""
    uploads = {f"binlog.{n}": store.create_upload(f"binlog.{n}") for n in range(4)}

    def send(work: tuple[str, int]) -> tuple[str, PartInfo]:
        key, number = work
        data = f"{key} {number}".encode().ljust(PART if number < 3 else 9, b".")
        return key, store.upload_part(key, uploads[key], number, data, crc64nvme(data))

    with ThreadPoolExecutor(12) as pool:
        sent = list(pool.map(send, [(key, n) for n in (3, 1, 2) for key in uploads]))
    for key, upload_id in uploads.items():
        parts = sorted((part for to, part in sent if to == key), key=lambda part: part.number)
        whole = b"".join(
            f"{key} {number}".encode().ljust(PART if number < 3 else 9, b".")
            for number in (1, 2, 3)
        )
        assert complete(store, key, upload_id, parts, whole).crc64 == crc64nvme(whole)


# Over the wire


class Counted:
    """A body that counts how often it was opened, and whether its readers were closed."""

    def __init__(self, body: Body) -> None:
        self.body = body
        self.readers: list[Reader] = []

    @property
    def size(self) -> int:
        return self.body.size

    def open(self) -> Reader:
        self.readers.append(self.body.open())
        return self.readers[-1]


def test_a_body_is_read_again_at_each_attempt(
    remote: Place, proxy: RecordingProxy, tmp_path: Path
) -> None:
    """Cut off, lost, answered 503: the next attempt sends the same bytes from their beginning."""
    path = tmp_path / "spooled"
    path.write_bytes(data := os.urandom(2 * MIB))
    body = Counted(FileRange(path, MIB, 2 * MIB))
    proxy.rules += [
        on(Drop(), method="PUT", times=1),
        on(DropAnswer(), method="PUT", times=1),
        on(Answer(503), method="PUT", times=1),
    ]
    errors: list[tuple[StoreError, int]] = []
    store = remote.open(
        endpoint_url=proxy.url, policy=QUICK, on_error=lambda e, n, _: errors.append((e, n))
    )
    store.put("slice", body, crc64=crc64nvme(data[MIB:]))
    assert store.get("slice") == data[MIB:]
    assert len(body.readers) == 4
    assert all(getattr(reader, "closed", False) for reader in body.readers)
    assert [n for _, n in errors] == [1, 2, 3]
    assert all(error.transient for error, _ in errors)
    assert len(proxy.matching(method="PUT")) == 4, "botocore must not repeat anything itself"


def test_a_download_goes_on_where_it_broke(remote: Place) -> None:
    """A reply that ends too early is asked for again from there; no byte is lost or doubled."""
    data = os.urandom(3 * MIB)
    remote.store.put("big", data)
    assert remote.server is not None
    with Relay(remote.server.endpoint_url, cut_down=MIB + MIB // 2, times=2) as relay:
        store = remote.open(endpoint_url=relay.url, policy=QUICK)
        assert b"".join(store.open("big", 7, len(data) - 7)) == data[7:-7]
        assert store.get("big") == data
        assert relay.cuts == 2


def test_an_upload_that_broke_is_sent_again(remote: Place, tmp_path: Path) -> None:
    """A connection cut in the middle of a part: the next attempt sends it whole."""
    path = tmp_path / "spooled"
    path.write_bytes(data := os.urandom(6 * MIB))
    body = Counted(FileRange(path, 17, 6 * MIB))
    assert remote.server is not None
    with Relay(remote.server.endpoint_url, cut_up=2 * MIB, times=2) as relay:
        store = remote.open(endpoint_url=relay.url, policy=QUICK)
        upload_id = store.create_upload("binlog.1")
        part = store.upload_part("binlog.1", upload_id, 1, body, crc64nvme(data[17:]))
        assert relay.cuts == 2
    assert len(body.readers) == 3
    complete(remote.store, "binlog.1", upload_id, [part], data[17:])
    assert remote.store.get("binlog.1") == data[17:]


def test_an_error_is_not_taken_for_the_one_before(remote: Place, proxy: RecordingProxy) -> None:
    """What fails while an earlier error is handled is told as what it is."""
    store = remote.open(endpoint_url=proxy.url)
    store.put("a", b"x")
    proxy.rules.append(on(Drop(), method="GET"))
    with pytest.raises(PreconditionError) as first:
        store.put("a", b"y", if_absent=True)
    try:
        raise first.value
    except PreconditionError:
        with pytest.raises(StoreError, match="broke") as caught:
            store.get("a")
    assert caught.value.transient


@pytest.mark.parametrize("mode", ["auto", "md5", "none"])
def test_a_spool_that_fails_while_sending(remote: Place, tmp_path: Path, mode: str) -> None:
    """A file that shrinks is the spool's error however the body is read, and is not repeated."""
    path = tmp_path / "spooled"
    path.write_bytes(bytes(MIB))
    body = Counted(FileRange(path, 0, MIB + 1))
    errors: list[StoreError] = []
    store = remote.open(checksum=mode, policy=QUICK, on_error=lambda e, *_: errors.append(e))
    with pytest.raises(SpoolError, match="was truncated"):
        store.put("a", body, crc64=1)
    assert errors == []
    assert len(body.readers) == 1
    assert store.head("a") is None


def test_attempts_end_with_the_last_error(remote: Place, proxy: RecordingProxy) -> None:
    """A preflight gives up after its attempts; a patient store sits all of them out."""
    proxy.rules.append(on(Answer(503), times=6))
    preflight = remote.open(
        endpoint_url=proxy.url, policy=replace(PREFLIGHT, first_delay_seconds=0.01)
    )
    with pytest.raises(StoreError) as caught:
        preflight.check_access()
    assert caught.value.transient
    assert len(proxy.records) == 3
    waits: list[float] = []
    over: list[tuple[bool, int]] = []
    patient = preflight.with_policy(
        RetryPolicy(attempts=None, first_delay_seconds=0.01, max_delay_seconds=0.02),
        lambda _error, _attempt, wait: waits.append(wait),
        lambda succeeded: over.append((succeeded, len(waits))),
    )
    patient.check_access()
    assert len(waits) == 3
    assert max(waits) <= 0.02
    patient.check_access()
    assert over == [(True, 3), (True, 3)], "each success is told"


def test_patience_waits_for_what_can_be_mended(remote: Place, proxy: RecordingProxy) -> None:
    """A missing permission ends a preflight at once; a streamer that runs waits for it."""
    proxy.rules.append(on(DENIED, method="PUT", times=3))
    preflight = remote.open(endpoint_url=proxy.url, policy=QUICK)
    with pytest.raises(MendableError):
        preflight.put("a", b"x")
    assert len(proxy.records) == 1
    patient = preflight.with_policy(replace(QUICK, attempts=None))
    patient.put("a", b"x")
    assert patient.get("a") == b"x"
    with pytest.raises(ObjectMissingError):
        patient.get("nothing")
    with pytest.raises(PreconditionError):
        patient.put("a", b"y", if_absent=True)


def test_the_stop_event_ends_waiting_at_once(remote: Place, proxy: RecordingProxy) -> None:
    """With a minute to wait until the next attempt, stop raises the last error now."""
    proxy.rules.append(on(Answer(503)))
    stop, waiting = threading.Event(), threading.Event()
    store = remote.open(
        endpoint_url=proxy.url,
        stop=stop,
        policy=RetryPolicy(attempts=None, first_delay_seconds=1e6, max_delay_seconds=1e6),
        on_error=lambda *_: waiting.set(),
    )
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(store.put, "a", b"x")
        assert waiting.wait(60)
        stop.set()
        error = call.exception(timeout=60)
    assert isinstance(error, StoreError)
    assert error.transient
    assert len(proxy.records) == 1
    with pytest.raises(StoreError):
        store.put("a", b"x")
    assert len(proxy.records) == 2, "after stop there is one attempt, and no waiting"


def test_only_the_callers_checksum_goes_along(remote: Place, proxy: RecordingProxy) -> None:
    """CRC64NVME with every body, unsigned payload, and none of boto3's own CRC32."""
    store = remote.open(endpoint_url=proxy.url)
    store.put("a", b"x", crc64=crc64nvme(b"x"))
    upload_id, parts = upload(store, "binlog.1", b"0123")
    complete(store, "binlog.1", upload_id, parts, b"0123")
    store.get("a", 0, 1)
    store.delete(["a"])
    for record in proxy.records:
        headers = record.request.headers
        assert "x-amz-checksum-crc32" not in headers
        assert "x-amz-trailer" not in headers
        assert "x-amz-sdk-checksum-algorithm" not in headers
    bodies = proxy.matching(method="PUT")
    assert len(bodies) == 2
    for record in bodies:
        assert "x-amz-checksum-crc64nvme" in record.request.headers
        assert record.request.headers["x-amz-content-sha256"] == "UNSIGNED-PAYLOAD"
    (deleted,) = proxy.matching(method="POST", query="delete")
    assert "content-md5" in deleted.request.headers


@pytest.mark.parametrize("mode", ["md5", "none"])
def test_other_digests(remote: Place, proxy: RecordingProxy, mode: str) -> None:
    """md5 sends Content-MD5 with every body, none sends nothing; the bytes arrive all the same."""
    store = remote.open(endpoint_url=proxy.url, checksum=mode)
    store.put("a", b"x", crc64=crc64nvme(b"x"))
    upload_id, parts = upload(store, "binlog.1", b"0123")
    assert complete(store, "binlog.1", upload_id, parts, b"0123").size == 4
    assert store.get("binlog.1") == b"0123"
    bodies = proxy.matching(method="PUT")
    assert len(bodies) == 2
    for record in bodies:
        assert ("content-md5" in record.request.headers) == (mode == "md5")
    assert not any(CHECKSUM_HEADERS & record.request.headers.keys() for record in proxy.records)


def test_bytes_that_rotted_are_not_even_sent(remote: Place, proxy: RecordingProxy) -> None:
    """Content-MD5 would be that of the rotten bytes: so they are compared before."""
    store = remote.open(endpoint_url=proxy.url, checksum="md5")
    upload_id = store.create_upload("binlog.1")
    for act in (
        lambda: store.put("a", b"rotten", crc64=crc64nvme(b"sound")),
        lambda: store.upload_part("binlog.1", upload_id, 1, b"rotten", crc64nvme(b"sound")),
    ):
        with pytest.raises(SpoolError, match="are not the bytes that were read"):
            act()
    assert proxy.matching(method="PUT") == []


def test_a_digest_that_must_be_confirmed(remote: Place, proxy: RecordingProxy) -> None:
    """Mode crc64nvme: a store that does not answer with the checksum is an error with a hint."""
    store = remote.open(endpoint_url=proxy.url, checksum="crc64nvme")
    assert store.put("a", b"x", crc64=crc64nvme(b"x")).crc64 == crc64nvme(b"x")
    upload_id, parts = upload(store, "binlog.1", b"0123")
    assert complete(store, "binlog.1", upload_id, parts, b"0123").crc64 == crc64nvme(b"0123")
    proxy.rules.append(lambda _: Rewrite(strip=("x-amz-checksum-crc64nvme",)))
    with pytest.raises(StoreError, match="did not confirm") as caught:
        store.put("a", b"x", crc64=crc64nvme(b"x"))
    assert "md5" in caught.value.hint


def without_checksums(request: Request) -> Answer | None:
    """A store that knows no checksums: it refuses requests that carry one."""
    if CHECKSUM_HEADERS & request.headers.keys():
        says = b"<Error><Code>NotImplemented</Code><Message>A header you provided implies"
        says += b" functionality that is not implemented</Message></Error>"
        return Answer(501, XML, says)
    return None


def test_a_store_without_checksums_is_remembered(remote: Place, proxy: RecordingProxy) -> None:
    """Mode auto goes on with Content-MD5 and asks only once; mode crc64nvme says it cannot."""
    proxy.rules.append(without_checksums)
    store = remote.open(endpoint_url=proxy.url)
    for n in range(3):
        upload_id, parts = upload(store, f"binlog.{n}", b"0123")
        info = complete(store, f"binlog.{n}", upload_id, parts, b"0123")
        assert (info.size, info.etag) == (4, composite_etag([md5(b"0123")]))
        store.put(f"live/{n}", b"x", crc64=crc64nvme(b"x"))
    assert [record.status for record in proxy.records].count(501) == 1
    assert all("content-md5" in r.request.headers for r in proxy.matching(method="PUT"))
    strict = remote.open(endpoint_url=proxy.url, checksum="crc64nvme")
    with pytest.raises(UnsupportedError):
        strict.create_upload("binlog.9")


REFUSES_BATCHES = {
    "NotImplemented": Answer(501),
    "InvalidArgument": Answer(400, XML, b"<Error><Code>InvalidArgument</Code></Error>"),
    "MissingContentMD5": Answer(400, XML, b"<Error><Code>MissingContentMD5</Code></Error>"),
    "AccessDenied": Answer(403, XML, b"<Error><Code>AccessDenied</Code></Error>"),
    "an empty body": Answer(200, XML, b""),
    "no keys": Answer(200, XML, b"<DeleteResult></DeleteResult>"),
}


@pytest.mark.parametrize("answer", REFUSES_BATCHES.values(), ids=REFUSES_BATCHES)
def test_a_batch_that_is_refused_is_deleted_one_by_one(
    remote: Place, proxy: RecordingProxy, answer: Answer
) -> None:
    """What `delete` has done without an error is gone, whatever the store says to a batch."""
    proxy.rules.append(on(answer, method="POST", query="delete"))
    store = remote.open(endpoint_url=proxy.url)
    for _ in range(2):
        for key in ("a", "b"):
            store.put(key, b"x")
        store.delete(["a", "b", "nothing"])
        assert list(store.list("")) == []
    assert len(proxy.matching(method="POST", query="delete")) == 1


def test_deletes_end_though_the_policy_has_no_end(remote: Place, proxy: RecordingProxy) -> None:
    """What stays does no harm, and a worker that repeated it would be lost for the uploads."""
    endless = replace(QUICK, attempts=None)
    store = remote.open(endpoint_url=proxy.url, policy=endless)
    upload_id = store.create_upload("binlog.1")
    store.put("a", b"x")
    for answer in (DENIED, Answer(503)):
        proxy.rules[:] = [on(answer, method="POST", query="delete"), on(answer, method="DELETE")]
        with pytest.raises(StoreError):
            store.delete(["a"])
        with pytest.raises(StoreError):
            store.abort_upload("binlog.1", upload_id)
    proxy.rules.clear()
    assert [info.key for info in store.list("")] == ["a"]


def refuses_checksums(status: int, code: str, **where: Any) -> Callable[[Request], Answer | None]:
    """A store, or a proxy before it, that refuses these requests if they carry a checksum."""
    body = b"<Error><Code>%s</Code><Message>not this one</Message></Error>" % code.encode()
    here = on(Answer(status, XML, body), **where)
    return lambda request: here(request) if CHECKSUM_HEADERS & request.headers.keys() else None


@pytest.mark.parametrize(
    ("status", "code"), [(400, "InvalidRequest"), (403, "SignatureDoesNotMatch")]
)
def test_checksums_of_parts_that_are_refused(
    remote: Place, proxy: RecordingProxy, status: int, code: str
) -> None:
    """Create accepts what UploadPart refuses: the upload begins anew with Content-MD5."""
    proxy.rules.append(refuses_checksums(status, code, method="PUT", query="partNumber"))
    store = remote.open(endpoint_url=proxy.url, policy=replace(QUICK, attempts=None))
    with pytest.raises(UploadMissingError, match="begins anew without"):
        upload(store, "binlog.0", b"0123")
    assert store.list_uploads("binlog.0") == []
    for n in range(3):
        upload_id, parts = upload(store, f"binlog.{n}", b"0123")
        info = complete(store, f"binlog.{n}", upload_id, parts, b"0123")
        assert (info.size, info.etag) == (4, composite_etag([md5(b"0123")]))
    refused = [r for r in proxy.matching(method="PUT", query="partNumber") if r.status == status]
    assert len(refused) == 1
    parts_sent = proxy.matching(method="PUT", query="partNumber")
    assert all("content-md5" in r.request.headers for r in parts_sent if r.status == 200)


def test_signatures_that_are_refused_with_checksums_only(
    remote: Place, proxy: RecordingProxy
) -> None:
    """A proxy that changes the header breaks the signature: auto goes on without, and remembers."""
    proxy.rules.append(refuses_checksums(403, "SignatureDoesNotMatch", method="PUT"))
    store = remote.open(endpoint_url=proxy.url, policy=replace(QUICK, attempts=None))
    for n in range(4):
        store.put(f"live/{n}", b"x", crc64=crc64nvme(b"x"))
    assert [record.status for record in proxy.records].count(403) == 2
    with pytest.raises(MendableError) as caught:
        remote.open(endpoint_url=proxy.url, checksum="crc64nvme").put("a", b"x")
    assert "--checksum md5" in caught.value.hint


def test_a_secret_that_was_wrong_for_a_while(remote: Place, proxy: RecordingProxy) -> None:
    """It is waited for, and the checksum is not given up for it."""
    wrong = Answer(403, XML, b"<Error><Code>SignatureDoesNotMatch</Code></Error>")
    rule = on(wrong, method="PUT")
    seen: list[StoreError] = []

    def mend(error: StoreError, *_: object) -> None:
        seen.append(error)
        if len(seen) == 2:
            proxy.rules.clear()

    store = remote.open(endpoint_url=proxy.url, policy=replace(QUICK, attempts=None), on_error=mend)
    store.put("before", b"x", crc64=crc64nvme(b"x"))
    proxy.rules.append(rule)
    store.put("a", b"x", crc64=crc64nvme(b"x"))
    store.put("b", b"x", crc64=crc64nvme(b"x"))
    last = proxy.matching(method="PUT")[-1]
    assert "x-amz-checksum-crc64nvme" in last.request.headers


def test_a_key_that_was_not_deleted_is_an_error(remote: Place, proxy: RecordingProxy) -> None:
    """DeleteObjects says 200 and lists inside what it refused: that is raised, with the key."""
    says = (
        b"<DeleteResult><Deleted><Key>a</Key></Deleted><Error><Key>b</Key><Code>AccessDenied</Code>"
    )
    says += b"<Message>Access Denied</Message></Error></DeleteResult>"
    answer = Answer(200, XML, says)
    proxy.rules.append(on(answer, method="POST", query="delete"))
    store = remote.open(endpoint_url=proxy.url)
    with pytest.raises(MendableError) as caught:
        store.delete(["a", "b"])
    assert "/b" in str(caught.value)
    assert "1 of 2" in str(caught.value)
    assert "s3:DeleteObject" in caught.value.hint


def test_a_store_that_lists_no_uploads(remote: Place, proxy: RecordingProxy) -> None:
    """501 is UnsupportedError, at once."""
    proxy.rules.append(on(Answer(501), method="GET", query="uploads"))
    store = remote.open(endpoint_url=proxy.url, policy=QUICK)
    with pytest.raises(UnsupportedError) as caught:
        store.list_uploads("binlog.1")
    assert not caught.value.transient
    assert len(proxy.records) == 1


def test_listings_without_etags(remote: Place, proxy: RecordingProxy) -> None:
    """A store may list objects and parts without ETags, and the parts in any order."""
    listed = b"<Key>a</Key><Size>1</Size><LastModified>2026-01-01T00:00:00.000Z</LastModified>"
    objects = b"<ListBucketResult><Contents>" + listed + b"</Contents></ListBucketResult>"
    numbers = b"".join(
        b"<Part><PartNumber>%d</PartNumber><Size>%d</Size></Part>" % (n, n) for n in (2, 3, 1)
    )
    parts = b"<ListPartsResult>" + numbers + b"</ListPartsResult>"
    proxy.rules += [
        on(Answer(200, XML, objects), method="GET", query="list-type"),
        on(Answer(200, XML, parts), method="GET", query="uploadId"),
    ]
    store = remote.open(endpoint_url=proxy.url)
    (info,) = store.list("")
    assert (info.key, info.size, info.etag) == ("a", 1, "")
    found = store.list_parts("binlog.1", "some")
    assert [(part.number, part.size, part.etag) for part in found] == [
        (n, n, "") for n in (1, 2, 3)
    ]


def test_what_is_denied_within_an_upload_is_not_repeated(
    remote: Place, proxy: RecordingProxy
) -> None:
    """Some stores say AccessDenied where the upload is gone: patience would be for ever."""
    proxy.rules.append(on(DENIED, query="uploadId="))
    store = remote.open(endpoint_url=proxy.url, policy=replace(QUICK, attempts=None))
    upload_id = store.create_upload("binlog.1")
    part = PartInfo(number=1, size=4, etag="0" * 32, crc64=None)
    for act in (
        lambda: store.upload_part("binlog.1", upload_id, 1, b"0123"),
        lambda: store.copy_part("binlog.1", upload_id, 1, "a", size=1),
        lambda: complete(store, "binlog.1", upload_id, [part], b"0123"),
    ):
        proxy.clear()
        with pytest.raises(MendableError, match="denied"):
            act()
        assert len(proxy.records) == 1


def test_a_large_part_costs_no_memory(remote: Place, tmp_path: Path) -> None:
    """64 MiB go up, and come back, through a few MiB of memory."""
    path = tmp_path / "spooled"
    with path.open("wb") as file:
        file.truncate(64 * MIB)
    crc = crc64nvme(path.read_bytes())
    body = FileRange(path, 0, 64 * MIB)
    upload_id = remote.store.create_upload("binlog.1")
    tracemalloc.start()
    try:
        part = remote.store.upload_part("binlog.1", upload_id, 1, body, crc)
        remote.store.complete_upload("binlog.1", upload_id, [part], size=64 * MIB, crc64=crc)
        back = 0
        for block in remote.store.open("binlog.1", 0, 64 * MIB):
            back = crc64nvme(block, back)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert back == crc
    assert peak < 16 * MIB


@pytest.mark.parametrize("sse", ["AES256", "aws:kms"])
def test_encryption_is_asked_for_and_confirmed(remote: Place, sse: str) -> None:
    """Objects and multipart objects are encrypted as asked; HEAD shows it to anybody."""
    key_id = MinioServer.kms_key_id if sse == "aws:kms" else None
    store = remote.open(sse=sse, sse_kms_key_id=key_id)
    if not remote.known.encrypts:
        with pytest.raises(StoreError, match=f"did not confirm encryption {sse}"):
            store.put("a", b"secret", crc64=crc64nvme(b"secret"))
        return
    store.put("a", b"secret", crc64=crc64nvme(b"secret"))
    upload_id, parts = upload(store, "binlog.1", b"0123")
    complete(store, "binlog.1", upload_id, parts, b"0123")
    assert store.get("a") == b"secret"
    assert store.get("binlog.1") == b"0123"
    assert remote.server is not None
    with closing(remote.server.client()) as client:
        for key in ("a", "binlog.1"):
            head = client.head_object(Bucket=remote.bucket, Key=key)
            assert head["ServerSideEncryption"] == sse
            assert head.get("SSEKMSKeyId", "").endswith(key_id or "")


def test_encryption_that_is_not_confirmed_is_an_error(remote: Place, proxy: RecordingProxy) -> None:
    """An answer without the header means bytes in clear: never counted as done."""
    proxy.rules.append(lambda _: Rewrite(strip=("x-amz-server-side-encryption",)))
    store = remote.open(endpoint_url=proxy.url, sse="AES256", policy=QUICK)
    with pytest.raises(StoreError, match="did not confirm encryption AES256") as caught:
        store.put("a", b"secret")
    assert not caught.value.transient
    assert "sse" in caught.value.hint
    upload_id = store.create_upload("binlog.1")
    with pytest.raises(StoreError, match="did not confirm encryption AES256"):
        store.upload_part("binlog.1", upload_id, 1, b"secret")
    elsewhere = remote.open(sse="AES256" if remote.known.encrypts else None)
    upload_id, parts = upload(elsewhere, "binlog.1", b"secret")
    with pytest.raises(StoreError, match="did not confirm encryption AES256"):
        complete(store, "binlog.1", upload_id, parts, b"secret")


def test_another_checksum_of_the_whole_is_an_error(remote: Place, proxy: RecordingProxy) -> None:
    """Complete never returns when the store has another CRC64NVME than the caller's."""
    other = crc64_base64(crc64nvme(b"other"))
    head = {"x-amz-checksum-crc64nvme": other, "x-amz-checksum-type": "FULL_OBJECT"}
    proxy.rules.append(on(Rewrite(headers=head), method="HEAD"))
    store = remote.open(endpoint_url=proxy.url)
    upload_id, parts = upload(store, "binlog.1", b"0123")
    with pytest.raises(StoreError, match="is not that of the bytes sent"):
        complete(store, "binlog.1", upload_id, parts, b"0123")


def test_the_storage_class_is_for_archived_binlogs(remote: Place) -> None:
    """Archived objects and uploads have it; everything else lies in the default class."""
    store = remote.open(storage_class="REDUCED_REDUNDANCY")
    store.put("archived", b"x", archived=True)
    store.put("entry.json", b"{}")
    upload_id, parts = upload(store, "binlog.1", b"0123")
    complete(store, "binlog.1", upload_id, parts, b"0123")
    classes = {info.key: info.storage_class for info in store.list("")}
    chosen = "REDUCED_REDUNDANCY" if remote.known.keeps_storage_classes else "STANDARD"
    assert classes == {"archived": chosen, "binlog.1": chosen, "entry.json": "STANDARD"}


def test_what_a_bucket_says_of_itself(remote: Place) -> None:
    """Its clock; nothing where nothing was set; and what was set."""
    assert remote.server is not None
    settings = remote.open().settings
    clock = settings.clock("p/")
    assert clock is not None
    assert abs(datetime.now(UTC) - clock) < timedelta(minutes=1)
    assert (settings.versioning(), settings.default_retention()) == ("", "")
    if not remote.known.keeps_settings:
        with pytest.raises(UnsupportedError):
            settings.lifecycle()
        return
    assert list(settings.lifecycle()) == []
    bucket = remote.bucket = f"{remote.bucket}-locked"
    rule = {"ID": "r", "Status": "Enabled", "Filter": {"Prefix": "p/"}, "Expiration": {"Days": 9}}
    lock = {"DefaultRetention": {"Mode": "GOVERNANCE", "Days": 3}}
    session = session_for(remote.server)
    with closing(session.client("s3", endpoint_url=remote.server.endpoint_url)) as client:
        client.create_bucket(Bucket=bucket, ObjectLockEnabledForBucket=True)
        client.put_bucket_lifecycle_configuration(
            Bucket=bucket,
            LifecycleConfiguration={"Rules": [rule]},  # type: ignore[typeddict-item,list-item]
        )
        client.put_object_lock_configuration(
            Bucket=bucket,
            ObjectLockConfiguration={"ObjectLockEnabled": "Enabled", "Rule": lock},  # type: ignore[typeddict-item]
        )
    settings = remote.open().settings
    assert settings.versioning() == "Enabled"
    assert [rule["ID"] for rule in settings.lifecycle()] == ["r"]
    assert settings.default_retention() == "GOVERNANCE 3 days"


def test_old_versions_are_shown_and_can_be_deleted(remote: Place) -> None:
    """Objects that were replaced or deleted, and the markers; below the prefix alone."""
    if not remote.known.keeps_settings:
        pytest.skip("it keeps versions only where it is told to at its start")
    assert remote.server is not None
    session, store = session_for(remote.server), remote.open()
    with closing(session.client("s3", endpoint_url=remote.server.endpoint_url)) as client:
        client.put_bucket_versioning(
            Bucket=remote.bucket, VersioningConfiguration={"Status": "Enabled"}
        )
    for key in ("p/a", "p/a", "q/b"):
        store.put(key, b"x")
    store.delete(["p/a"])
    found = store.settings.versions("p/")
    assert [key for key, _ in found] == ["p/a"] * 3
    assert store.head("p/a") is None
    store.settings.delete_versions(found)
    assert store.settings.versions("p/") == []
    assert len(store.settings.versions("")) == 1
