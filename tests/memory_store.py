"""A store in memory that keeps every promise of `Store`, and can be told to break.

The suite in tests/contract runs over it as over real stores, so that property machines may trust
it. A call can be made to fail before it acts; after it, as if the reply was lost; or to act
later: the caller gets an error, and the store does it when `perform_late` is called, perhaps after
the caller's death. `fail_next` chooses one coming call, `on_call` is asked at each; `on_act` hears
of each act before it is performed, `on_acted` after, with the keys that it changes. What it holds
can be kept and put back.
"""

import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from typing import Literal, TypeVar

from binlog2s3.binlog.checksum import composite_etag, crc64nvme, md5
from binlog2s3.errors import ObjectTooLargeError, StoreError
from binlog2s3.store.contract import Body, ObjectInfo, ObjectVersion, PartInfo, UploadInfo
from binlog2s3.store.errors import Failure, translate

Result = TypeVar("Result")
When = Literal["before", "after", "later"]
Act = Callable[[], object]
MIN_PART_BYTES = 5 << 20
MAX_PARTS = 10_000
BLOCK_BYTES = 1 << 20


@dataclass(slots=True)
class _Object:
    info: ObjectInfo
    data: bytes


@dataclass(slots=True)
class _Part:
    info: PartInfo
    data: bytes


@dataclass(slots=True)
class _Upload:
    info: UploadInfo
    crc64: bool
    parts: dict[int, _Part] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Contents:
    """What a store held at a moment."""

    objects: Mapping[str, _Object]
    uploads: Mapping[str, _Upload]
    ids: int


class MemoryStore:
    """`objects` and `uploads` may be looked at; `calls` counts what was asked, by operation.

    `min_part_bytes` is 5 MiB in S3 and may be bytes in a property machine; the switches make it
    a lesser store: one that lists no uploads, copies no parts, or not into an upload that has a
    checksum, or keeps no checksums. `late` are the acts that were not performed yet.
    """

    def __init__(
        self,
        *,
        min_part_bytes: int = MIN_PART_BYTES,
        crc64: bool = True,
        lists_uploads: bool = True,
        copies_parts: bool = True,
        copies_into_crc64_uploads: bool = True,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self.objects: dict[str, _Object] = {}
        self.versions: list[ObjectVersion] = []
        self.uploads: dict[str, _Upload] = {}
        self.refuses_replacing = False
        self.calls: dict[str, int] = defaultdict(int)
        self.late: list[tuple[str, Callable[[], object]]] = []
        self.on_call: Callable[[str], tuple[When, StoreError] | None] = lambda _: None
        self.on_act: Callable[[str, Sequence[str], Act], None] = lambda *_: None
        self.on_acted: Callable[[str, Sequence[str]], None] = lambda *_: None
        self._min_part_bytes = min_part_bytes
        self._crc64 = crc64
        self._lists_uploads = lists_uploads
        self._copies_parts = copies_parts
        self._copies_into_crc64_uploads = copies_into_crc64_uploads
        self._now = now
        self._ids = 0
        self._failures: dict[str, deque[tuple[When, StoreError]]] = defaultdict(deque)
        self._lock = threading.RLock()

    def fail_next(self, operation: str, when: When, error: StoreError) -> None:
        """Make the next call of this method raise; several queue up."""
        self._failures[operation].append((when, error))

    def perform_late(self, number: int = 0) -> str:
        """Do what was asked for long ago, to nobody's knowledge; the operation's name."""
        operation, act = self.late.pop(number)
        with self._lock:
            with suppress(StoreError):
                act()
            return operation

    def contents(self) -> Contents:
        """What it holds now."""
        uploads = {key: replace(u, parts=dict(u.parts)) for key, u in self.uploads.items()}
        return Contents(dict(self.objects), uploads, self._ids)

    def restore(self, contents: Contents) -> None:
        """Hold what was held then, in place of all that came since."""
        self.objects, self._ids = dict(contents.objects), contents.ids
        self.uploads = {
            key: replace(upload, parts=dict(upload.parts))
            for key, upload in contents.uploads.items()
        }
        self.late.clear()

    def with_policy(self, *_: object) -> "MemoryStore":
        """Itself: it does not try again."""
        return self

    def _do(
        self,
        operation: str,
        act: Callable[[], Result],
        *keys: str,
        changes: bool = False,
    ) -> Result:
        """Every operation: one at a time, counted, failing as it was told to.

        `keys` are those that it is about.
        """
        fault = self.on_call(operation)
        with self._lock:
            self.calls[operation] += 1
            queue = self._failures[operation]
            when, error = queue.popleft() if queue else fault or (None, None)
            if error is not None and (when == "before" or not changes):
                raise error
            if error is not None and when == "later":
                self.late.append((operation, act))
                raise error
            self.on_act(operation, keys, act)
            try:
                result = act()
            finally:
                self.on_acted(operation, keys)
            if error is not None:
                raise error
            return result

    def check_access(self, prefix: str = "") -> None:
        """See Store."""
        assert isinstance(prefix, str)
        self._do("check_access", lambda: None)

    def put(
        self,
        key: str,
        body: Body | bytes,
        *,
        crc64: int | None = None,
        if_absent: bool = False,
        archived: bool = False,
        kept: bool = False,
    ) -> ObjectInfo:
        """See Store."""
        del archived, kept  # it has neither storage classes nor Object Lock
        data = _read(body)

        def act() -> ObjectInfo:
            if if_absent and key in self.objects:
                raise _error("PreconditionFailed", "put_object", key)
            _check(data, crc64, "put_object", key)
            digest = crc64nvme(data) if self._crc64 else None
            return self._keep(key, data, md5(data).hex(), digest)

        return self._do("put", act, key, changes=True)

    def try_condition(self, key: str, body: bytes) -> None:
        """See Store."""
        del body
        self.refuses_replacing = key in self.objects

    def get(
        self, key: str, begin: int = 0, end: int | None = None, *, most: int | None = None
    ) -> bytes:
        """See Store."""
        if end is not None and end <= begin:
            return b""

        def act() -> bytes:
            data = self._range(key, begin, end, "get_object")
            if most is not None and len(data) > most:
                raise ObjectTooLargeError(f"{key!r} has {len(data)} bytes")
            return data

        return self._do("get", act, key)

    def open(self, key: str, begin: int, end: int) -> Iterator[bytes]:
        """See Store."""
        while begin < end:
            block = self._do("open", partial(self._range, key, begin, end, "get_object"), key)
            yield block[:BLOCK_BYTES]
            begin += len(block[:BLOCK_BYTES])

    def head(self, key: str) -> ObjectInfo | None:
        """See Store."""
        found = lambda: self.objects[key].info if key in self.objects else None  # noqa: E731
        return self._do("head", found, key)

    def list(self, prefix: str, *, start_after: str = "") -> Iterator[ObjectInfo]:
        """See Store."""

        def act() -> Sequence[ObjectInfo]:
            keys = [key for key in self._keys(prefix) if key.encode() > start_after.encode()]
            return [replace(self.objects[key].info, crc64=None) for key in keys]

        yield from self._do("list", act, prefix)

    def list_names(self, prefix: str) -> Iterator[str]:
        """See Store."""

        def act() -> Iterable[str]:
            names: dict[str, None] = {}
            for key in self._keys(prefix):
                name, found, _ = key.removeprefix(prefix).partition("/")
                names[name + found] = None
            return names

        yield from self._do("list_names", act, prefix)

    def kept(self, prefix: str) -> Iterator[ObjectVersion]:
        return (one for one in self.versions if one.key.startswith(prefix))

    def delete(self, keys: Iterable[str]) -> None:
        """See Store."""
        named = tuple(keys)

        def act() -> None:
            for key in named:
                self.objects.pop(key, None)

        self._do("delete", act, *named, changes=True)

    def create_upload(self, key: str, *, crc64: bool = True) -> str:
        """See Store."""

        def act() -> str:
            self._ids += 1
            upload_id = f"upload-{self._ids:04}"
            info = UploadInfo(upload_id=upload_id, key=key, initiated=self._now())
            self.uploads[upload_id] = _Upload(info, crc64 and self._crc64)
            return upload_id

        return self._do("create_upload", act, key, changes=True)

    def list_uploads(self, key: str) -> Sequence[UploadInfo]:
        """See Store."""

        def act() -> Sequence[UploadInfo]:
            if not self._lists_uploads:
                raise _error("NotImplemented", "list_multipart_uploads", key, status=501)
            return [upload.info for upload in self.uploads.values() if upload.info.key == key]

        return self._do("list_uploads", act, key)

    def uploads_below(self, prefix: str) -> Sequence[UploadInfo]:
        """See Store."""

        def act() -> Sequence[UploadInfo]:
            if not self._lists_uploads:
                raise _error("NotImplemented", "list_multipart_uploads", prefix, status=501)
            return [u.info for u in self.uploads.values() if u.info.key.startswith(prefix)]

        return self._do("uploads_below", act, prefix)

    def list_parts(self, key: str, upload_id: str) -> Sequence[PartInfo]:
        """See Store."""

        def act() -> Sequence[PartInfo]:
            parts = self._upload(key, upload_id, "list_parts").parts
            return [parts[number].info for number in sorted(parts)]

        return self._do("list_parts", act, key)

    def upload_part(
        self, key: str, upload_id: str, number: int, body: Body | bytes, crc64: int | None = None
    ) -> PartInfo:
        """See Store."""
        data = _read(body)

        def act() -> PartInfo:
            upload = self._upload(key, upload_id, "upload_part")
            _check(data, crc64, "upload_part", key)
            return _keep_part(upload, number, data)

        return self._do("upload_part", act, key, changes=True)

    def copy_part(
        self,
        key: str,
        upload_id: str,
        number: int,
        source_key: str,
        *,
        size: int,
    ) -> PartInfo:
        """See Store."""

        def act() -> PartInfo:
            operation = "upload_part_copy"
            if not self._copies_parts:
                raise _error("NotImplemented", operation, key, status=501)
            upload = self._upload(key, upload_id, operation)
            if upload.crc64 and not self._copies_into_crc64_uploads:
                raise _error("InvalidRequest", operation, key)
            data = self._range(source_key, 0, None, operation)
            assert len(data) == size, "the caller knows the object's size"
            return _keep_part(upload, number, data)

        return self._do("copy_part", act, key, changes=True)

    def complete_upload(
        self,
        key: str,
        upload_id: str,
        parts: Sequence[PartInfo],
        *,
        size: int,
        crc64: int | None,
        if_absent: bool = True,
    ) -> ObjectInfo:
        """See Store."""

        def act() -> ObjectInfo:
            upload = self._upload(key, upload_id, "complete_multipart_upload")
            if if_absent and key in self.objects:
                raise _error("PreconditionFailed", "complete_multipart_upload", key)
            data = self._join(upload, parts)
            if len(data) != size:
                raise _error("InvalidRequest", "complete_multipart_upload", key)
            if upload.crc64:
                _check(data, crc64, "complete_multipart_upload", key)
            etag = composite_etag(bytes.fromhex(part.etag) for part in parts)
            del self.uploads[upload_id]
            digest = crc64nvme(data) if upload.crc64 else None
            return self._keep(key, data, etag, digest)

        return self._do("complete_upload", act, key, changes=True)

    def abort_upload(self, key: str, upload_id: str) -> None:
        """See Store."""

        def act() -> None:
            if upload_id in self.uploads and self.uploads[upload_id].info.key == key:
                del self.uploads[upload_id]

        self._do("abort_upload", act, key, changes=True)

    def close(self) -> None:
        """See Store."""

    def _keys(self, prefix: str) -> Sequence[str]:
        return sorted((key for key in self.objects if key.startswith(prefix)), key=str.encode)

    def _keep(self, key: str, data: bytes, etag: str, crc64: int | None) -> ObjectInfo:
        info = ObjectInfo(
            key=key,
            size=len(data),
            etag=etag,
            crc64=crc64,
            storage_class="STANDARD",
            last_modified=self._now(),
        )
        self.objects[key] = _Object(info, data)
        return info

    def _range(self, key: str, begin: int, end: int | None, operation: str) -> bytes:
        if key not in self.objects:
            raise _error("NoSuchKey", operation, key)
        data = self.objects[key].data
        if end is not None and end > len(data):
            raise StoreError(f"{key!r} ends at {len(data)}, before {end}")
        return data[begin:end]

    def _upload(self, key: str, upload_id: str, operation: str) -> _Upload:
        upload = self.uploads.get(upload_id)
        if upload is None or upload.info.key != key:
            raise _error("NoSuchUpload", operation, key)
        return upload

    def _join(self, upload: _Upload, listed: Sequence[PartInfo]) -> bytes:
        key, operation = upload.info.key, "complete_multipart_upload"
        numbers = [part.number for part in listed]
        if not numbers:
            raise _error("MalformedXML", operation, key)
        if numbers != sorted(set(numbers)):
            raise _error("InvalidPartOrder", operation, key)
        found = []
        for part in listed:
            have = upload.parts.get(part.number)
            if have is None or have.info.etag != part.etag:
                raise _error("InvalidPart", operation, key)
            found.append(have.data)
        if any(len(data) < self._min_part_bytes for data in found[:-1]):
            raise _error("EntityTooSmall", operation, key)
        return b"".join(found)


def _keep_part(upload: _Upload, number: int, data: bytes) -> PartInfo:
    if not 1 <= number <= MAX_PARTS:
        raise _error("InvalidArgument", "upload_part", upload.info.key)
    info = PartInfo(
        number=number,
        size=len(data),
        etag=md5(data).hex(),
        crc64=crc64nvme(data) if upload.crc64 else None,
        md5=None if upload.crc64 else md5(data),
    )
    upload.parts[number] = _Part(info, data)
    return info


def _read(body: Body | bytes) -> bytes:
    if isinstance(body, bytes):
        return body
    with closing(body.open()) as reader:
        data = b"".join(iter(lambda: reader.read(BLOCK_BYTES), b""))
    assert len(data) == body.size, "a body must have as many bytes as it says"
    return data


def _check(data: bytes, crc64: int | None, operation: str, key: str) -> None:
    if crc64 is not None and crc64 != crc64nvme(data):
        raise _error("XAmzContentChecksumMismatch", operation, key, status=400)


def _error(code: str, operation: str, key: str, *, status: int = 400) -> StoreError:
    error = translate(
        Failure(
            code=code,
            operation=operation,
            bucket="memory",
            endpoint="memory",
            key=key,
            status=status,
        )
    )
    error.add_note(code)  # tests/memory_client.py answers with it
    return error
