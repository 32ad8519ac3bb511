"""The S3 store: every operation of binlog2s3 on a bucket, as `contract.Store` describes it.

Law: if an answer does not have what every S3 store answers, that is an error, not a default.
"""

import contextlib
import signal
import threading
from base64 import b64decode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

from binlog2s3.binlog.checksum import crc64_base64, crc64_of_blocks
from binlog2s3.errors import (
    ObjectMissingError,
    PreconditionError,
    StoreError,
    UnsupportedError,
    UploadMissingError,
)
from binlog2s3.store.bandwidth import Bandwidth
from binlog2s3.store.contract import (
    IMMEDIATE_STORAGE_CLASSES,
    PREFLIGHT,
    Body,
    FileRange,
    FileRanges,
    ObjectInfo,
    ObjectVersion,
    OnError,
    OnOver,
    OnRequest,
    PartInfo,
    Reader,
    RetryPolicy,
    Store,
    StoreConfig,
    UploadInfo,
)
from binlog2s3.store.errors import MendableError, RefusedError, SignatureError
from binlog2s3.store.integrity import Integrity, crc64_in, no_crc64
from binlog2s3.store.requests import (
    Answer,
    Download,
    Final,
    Link,
    MakeSession,
    Requests,
    any_session,
    date_in,
    needed,
    onward,
    size_of,
)
from binlog2s3.store.settings import BucketSettings
from binlog2s3.store.versions import (
    ChosenVersions,
    Evidence,
    version_notes,
    versions_below,
)
from binlog2s3.workers import both

__all__ = [
    "IMMEDIATE_STORAGE_CLASSES",
    "PREFLIGHT",
    "Body",
    "FileRange",
    "FileRanges",
    "MendableError",
    "ObjectInfo",
    "OnError",
    "OnOver",
    "PartInfo",
    "Reader",
    "RefusedError",
    "RetryPolicy",
    "S3Store",
    "Store",
    "StoreConfig",
    "UploadInfo",
    "opened",
]

_KEYS_PER_DELETE = 1000
MakeEvidence = Callable[["S3Store", str], Evidence]
"""Makes what decides between versions: of this store, below this prefix."""
_CRC64 = "CRC64NVME"


@dataclass(slots=True)
class _Upload:
    """Whether an upload has a whole-object checksum, and whether its encryption is confirmed."""

    crc64: bool
    encrypted: bool


@dataclass(slots=True)
class _Learned:
    """What the answers have shown of the store; shared by all copies of one S3Store."""

    integrity: Integrity
    uploads: dict[str, _Upload] = field(default_factory=dict)
    refuses_delete_objects: bool = False
    evidence: MakeEvidence | None = None
    chosen: ChosenVersions | None = None
    is_locked: bool | None = None
    keeps_conditions: bool = False


class S3Store:
    """A bucket, through botocore. Nothing is opened until the first call.

    `stop` ends every wait between attempts at once, by raising the last error. `session` makes
    the botocore session (None: `any_session`); it is called again after the store refused the
    credentials. `evidence` decides between versions that differ; without it, none counts.
    """

    def __init__(
        self,
        config: StoreConfig,
        *,
        stop: threading.Event,
        policy: RetryPolicy = PREFLIGHT,
        on_error: OnError | None = None,
        on_request: OnRequest | None = None,
        session: MakeSession | None = None,
        evidence: MakeEvidence | None = None,
    ) -> None:
        self._config = config
        most = config.max_bandwidth
        link = Link(config, session or any_session, Bandwidth(most) if most else None)
        link.on_request = on_request
        self._requests = Requests(link, stop, policy, on_error)
        self._learned = _Learned(Integrity(config), evidence=evidence)

    def with_policy(
        self, policy: RetryPolicy, on_error: OnError | None = None, on_over: OnOver | None = None
    ) -> "S3Store":
        """The same bucket over the same connections, with another retry policy."""
        other = S3Store(self._config, stop=self._requests.stop)
        other._requests = replace(self._requests, policy=policy, on_error=on_error, on_over=on_over)
        other._learned = self._learned
        return other

    @property
    def _integrity(self) -> Integrity:
        return self._learned.integrity

    @property
    def settings(self) -> BucketSettings:
        """The settings of the bucket, over the same connections."""
        return BucketSettings(self._ask, self._version)

    def close(self) -> None:
        self._requests.link.close()

    def check_access(self, prefix: str = "") -> None:
        self._ask("list_objects_v2", "", Prefix=prefix, MaxKeys=1)

    # Objects

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
        params = {**self._integrity.encryption(), "ContentType": _content_type(key)}
        params |= {"IfNoneMatch": "*"} if if_absent else {}
        params |= self._integrity.storage_class() if archived else {}
        params |= self._integrity.retention() if archived or kept else {}

        def send(crc64_on: bool, final: Final) -> Answer:
            digest = self._integrity.digest(body, crc64, crc64_on=crc64_on)
            return self._requests.send("put_object", key, body, final=final, **params, **digest)

        answer = self._integrity.with_crc64("put_object", send)
        self._integrity.confirm_encryption(answer, key)
        return ObjectInfo(
            key=key,
            size=size_of(body),
            etag=_etag_in(answer),
            crc64=self._integrity.confirm_crc64(answer, key, crc64),
            storage_class=params.get("StorageClass", "STANDARD"),
            last_modified=date_in(answer) or datetime.now(UTC),
        )

    @property
    def refuses_replacing(self) -> bool:
        return self._learned.keeps_conditions and self._learned.is_locked is False

    def try_condition(self, key: str, body: bytes) -> None:
        def put() -> None:
            try:
                self.put(key, body, if_absent=True)
            except PreconditionError:
                self._learned.keeps_conditions = True
            except UnsupportedError:
                return

        both(put, self._is_locked)

    def get(
        self, key: str, begin: int = 0, end: int | None = None, *, most: int | None = None
    ) -> bytes:
        if end is not None and end <= begin:
            return b""

        def read() -> bytes:
            version = self._version(key)
            with Download(self._requests, key, begin, end, most=most, version=version) as download:
                return b"".join(iter(download.block, b""))

        return self._requests.retry(read)

    def open(self, key: str, begin: int, end: int) -> Iterator[bytes]:
        with Download(self._requests, key, begin, end, version=self._version(key)) as download:
            while download.at < end:
                yield self._requests.retry(download.block)

    def head(self, key: str) -> ObjectInfo | None:
        try:
            return _info_of(key, self._look(key))
        except ObjectMissingError:
            return None

    def list(self, prefix: str, *, start_after: str = "") -> Iterator[ObjectInfo]:
        if (chosen := self._chosen(prefix)) is not None:
            yield from chosen.objects(prefix, start_after=start_after)
            return
        for page in self._pages(Prefix=prefix, StartAfter=start_after):
            for item in page.get("Contents", ()):
                yield ObjectInfo(
                    key=needed(item, "Key"),
                    size=needed(item, "Size"),
                    etag=_listed_etag(item),
                    crc64=None,
                    storage_class=item.get("StorageClass") or "STANDARD",
                    last_modified=needed(item, "LastModified").astimezone(UTC),
                )

    def list_names(self, prefix: str) -> Iterator[str]:
        if (chosen := self._chosen(prefix)) is not None:
            yield from chosen.names(prefix)
            return
        for page in self._pages(Prefix=prefix, Delimiter="/"):
            objects = (item["Key"] for item in page.get("Contents", ()))
            folders = (item["Prefix"] for item in page.get("CommonPrefixes", ()))
            yield from sorted(name.removeprefix(prefix) for name in (*objects, *folders))

    def kept(self, prefix: str) -> Iterator[ObjectVersion]:
        if self._is_locked():
            yield from versions_below(self._ask_once, prefix)

    def _is_locked(self) -> bool:
        learned = self._learned
        if learned.is_locked is None:
            try:
                settings = BucketSettings(self._ask_once, self._version)
                learned.is_locked = settings.has_object_lock()
            except MendableError:
                learned.is_locked = self._config.object_lock is not None
        return learned.is_locked

    @property
    def _ask_once(self) -> Callable[..., Answer]:
        """As `_ask`, but nobody waits until it is allowed."""
        return partial(self._ask, final=MendableError)

    def delete(self, keys: Iterable[str]) -> None:
        left = [*keys]
        while left:
            batch, left = left[:_KEYS_PER_DELETE], left[_KEYS_PER_DELETE:]
            if not self._learned.refuses_delete_objects:
                together = partial(self._deletes.delete_objects, batch)
                if self._deletes.retry(together, final=MendableError):
                    continue
            for key in batch:
                self._delete_one(key)
            # Some stores and proxies refuse this request only: it has a body.
            self._learned.refuses_delete_objects = True

    # Multipart uploads

    def create_upload(self, key: str, *, crc64: bool = True) -> str:
        params = {
            **self._integrity.encryption(),
            **self._integrity.storage_class(),
            **self._integrity.retention(),
            "ContentType": _content_type(key),
        }

        def create(crc64_on: bool, final: Final) -> Answer:
            named = {"ChecksumAlgorithm": _CRC64, "ChecksumType": "FULL_OBJECT"}
            return self._ask(
                "create_multipart_upload",
                key,
                final=final,
                **params,
                **(named if crc64_on else {}),
            )

        wanted = self._integrity.with_crc64
        answer = wanted("create_multipart_upload", create) if crc64 else create(False, None)
        upload_id = str(needed(answer, "UploadId"))
        upload = _Upload(
            crc64=answer.get("ChecksumAlgorithm") == _CRC64,
            encrypted=not self._config.sse or "ServerSideEncryption" in answer,
        )
        self._learned.uploads[upload_id] = upload
        try:
            if crc64 and not upload.crc64 and self._config.checksum == "crc64nvme":
                raise no_crc64(key)
            if upload.encrypted:
                self._integrity.confirm_encryption(answer, key)
        except StoreError:
            with contextlib.suppress(StoreError):  # an empty upload that stays is harmless
                self._requests.once("abort_multipart_upload", key, UploadId=upload_id)
            raise
        return upload_id

    def list_uploads(self, key: str) -> Sequence[UploadInfo]:
        found: list[UploadInfo] = []
        marker: dict[str, Any] = {}
        while True:
            # The prefix is the whole key: MinIO lists nothing for a shorter one.
            page = self._ask("list_multipart_uploads", key, Prefix=key, **marker)
            found += [
                UploadInfo(
                    upload_id=needed(item, "UploadId"),
                    key=key,
                    initiated=needed(item, "Initiated").astimezone(UTC),
                )
                for item in page.get("Uploads", ())
                if item.get("Key") == key
            ]
            if not page.get("IsTruncated"):
                return sorted(found, key=lambda upload: upload.initiated)
            place = {
                "KeyMarker": needed(page, "NextKeyMarker"),
                "UploadIdMarker": page.get("NextUploadIdMarker", ""),
            }
            marker = onward(marker, place)

    def uploads_below(self, prefix: str) -> Sequence[UploadInfo]:
        # MinIO lists nothing for a prefix that is not a whole key, but everything without one.
        for wanted in (prefix, ""):
            page = self._ask("list_multipart_uploads", prefix, Prefix=wanted)
            items = [i for i in page.get("Uploads", ()) if i.get("Key", "").startswith(prefix)]
            if items:
                break
        return [
            UploadInfo(
                upload_id=needed(item, "UploadId"),
                key=needed(item, "Key"),
                initiated=needed(item, "Initiated").astimezone(UTC),
            )
            for item in items
        ]

    def list_parts(self, key: str, upload_id: str) -> Sequence[PartInfo]:
        found: list[PartInfo] = []
        marker: dict[str, Any] = {}
        while True:
            page = self._ask("list_parts", key, UploadId=upload_id, **marker)
            known = _Upload(crc64=page.get("ChecksumAlgorithm") == _CRC64, encrypted=True)
            self._learned.uploads.setdefault(upload_id, known)
            found += [
                PartInfo(
                    number=needed(item, "PartNumber"),
                    size=needed(item, "Size"),
                    etag=_listed_etag(item),
                    crc64=crc64_in(item),
                )
                for item in page.get("Parts", ())
            ]
            if not page.get("IsTruncated"):
                return sorted(found, key=lambda part: part.number)
            marker = onward(marker, {"PartNumberMarker": needed(page, "NextPartNumberMarker")})

    def upload_part(
        self, key: str, upload_id: str, number: int, body: Body | bytes, crc64: int | None = None
    ) -> PartInfo:
        upload = self._upload(key, upload_id)
        digest = self._integrity.digest(body, crc64, crc64_on=upload.crc64)
        is_doubtful = upload.crc64 and self._integrity.is_doubtful("upload_part")
        try:
            answer = self._requests.send(
                "upload_part",
                key,
                body,
                final=SignatureError if is_doubtful else None,
                UploadId=upload_id,
                PartNumber=number,
                **digest,
            )
        except (UnsupportedError, RefusedError, SignatureError) as exc:
            if not is_doubtful:
                raise
            # An upload that was begun with a checksum takes no part without: see MinIO.
            self._integrity.refuses_crc64 = True
            with contextlib.suppress(StoreError):
                self.abort_upload(key, upload_id)
            gone = UploadMissingError(
                f"the store refused a part with CRC64NVME: the upload of {key!r} begins anew"
                f" without ({exc})"
            )
            gone.sent_bytes = exc.sent_bytes
            raise gone from exc
        if upload.crc64:
            self._integrity.accepts("upload_part")
        if not upload.encrypted:  # MinIO confirms it here, not at create
            self._integrity.confirm_encryption(answer, key)
        kept = self._integrity.confirm_crc64(answer, key, crc64) if upload.crc64 else None
        md5 = b64decode(digest["ContentMD5"]) if "ContentMD5" in digest else None
        etag = _etag_in(answer)
        return PartInfo(number=number, size=size_of(body), etag=etag, crc64=kept, md5=md5)

    def copy_part(
        self,
        key: str,
        upload_id: str,
        number: int,
        source_key: str,
        *,
        size: int,
    ) -> PartInfo:
        answer = self._ask(
            "upload_part_copy",
            key,
            UploadId=upload_id,
            PartNumber=number,
            CopySource={"Bucket": self._config.bucket, "Key": source_key},
        )
        result = needed(answer, "CopyPartResult")
        return PartInfo(number=number, size=size, etag=_etag_in(result), crc64=crc64_in(result))

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
        upload = self._upload(key, upload_id)
        params: dict[str, Any] = {"IfNoneMatch": "*"} if if_absent else {}
        if upload.crc64:  # a store that has the one has the other; older stores may refuse both
            params |= {"MpuObjectSize": size}
        if upload.crc64 and crc64 is not None:
            params |= {"ChecksumCRC64NVME": crc64_base64(crc64), "ChecksumType": "FULL_OBJECT"}
        listed = {"Parts": [_listed_part(part, crc64=upload.crc64) for part in parts]}
        self._ask(
            "complete_multipart_upload", key, UploadId=upload_id, MultipartUpload=listed, **params
        )
        self._learned.uploads.pop(upload_id, None)
        answer = self._look(key)
        self._integrity.confirm_encryption(answer, key)
        info = _info_of(key, answer)
        if info.size != size:
            raise StoreError(f"{key!r} was completed with {size} bytes, but it has {info.size}")
        if upload.crc64:
            self._integrity.confirm_crc64(answer, key, crc64)
        return info

    def abort_upload(self, key: str, upload_id: str) -> None:
        self._learned.uploads.pop(upload_id, None)
        try:
            self._deletes.retry(
                lambda: self._deletes.once("abort_multipart_upload", key, UploadId=upload_id),
                final=MendableError,
            )
        except UploadMissingError:
            return

    def _upload(self, key: str, upload_id: str) -> _Upload:
        """What is known of an upload; for one of an earlier process, the store is asked."""
        if upload_id not in self._learned.uploads:
            self.list_parts(key, upload_id)
        return self._learned.uploads[upload_id]

    # Requests

    def _ask(self, operation: str, key: str, *, final: Final = None, **params: Any) -> Answer:
        return self._requests.retry(
            lambda: self._requests.once(operation, key, **params), final=final
        )

    def _look(self, key: str) -> Answer:
        params: dict[str, Any] = {**self._version(key)}
        params |= {"ChecksumMode": "ENABLED"} if self._integrity.wants_crc64 else {}
        return self._ask("head_object", key, **params)

    def version_notes(self) -> Sequence[str]:
        """What to say of objects that were not read in their newest, or oldest version."""
        chosen = self._learned.chosen
        return version_notes(chosen.replaced, chosen.preceded) if chosen is not None else ()

    def _chosen(self, key: str) -> ChosenVersions | None:
        """The versions that count, if that is decided under this key or prefix."""
        below = self._config.written_once
        if not below:
            return None
        if self._learned.chosen is None:
            make = self._learned.evidence
            self._learned.chosen = ChosenVersions(
                below=below,
                ask=self._ask,
                is_locked=self.settings.has_object_lock,
                contents=_Versions(self._requests, self._integrity),
                evidence=make(self, below) if make is not None else None,
                picks=self._config.picks,
            )
        return self._learned.chosen if self._learned.chosen.apply_to(key) else None

    def _version(self, key: str) -> dict[str, Any]:
        chosen = self._chosen(key)
        return {"VersionId": chosen.of(key)} if chosen is not None else {}

    def _pages(self, **params: Any) -> Iterator[Answer]:
        while True:
            page = self._ask("list_objects_v2", "", **params)
            yield page
            if not page.get("IsTruncated"):
                return
            token = needed(page, "NextContinuationToken")
            params |= onward(params, {"ContinuationToken": token})

    def _delete_one(self, key: str) -> None:
        try:
            self._deletes.retry(
                lambda: self._deletes.once("delete_object", key), final=MendableError
            )
        except ObjectMissingError:
            return

    @property
    def _deletes(self) -> Requests:
        """Requests that end: what is not deleted does no harm, and others wait for the thread."""
        policy = self._requests.policy
        most = PREFLIGHT.attempts if policy.attempts is None else policy.attempts
        return replace(self._requests, policy=replace(policy, attempts=most))


def _content_type(key: str) -> str:
    """The media type of an object."""
    return "application/json" if key.endswith(".json") else "application/octet-stream"


def _etag_in(answer: Mapping[str, Any]) -> str:
    return str(needed(answer, "ETag")).strip('"')


def _listed_etag(item: Mapping[str, Any]) -> str:
    """Empty if the listings of a store have none, as those of s3s-fs: it proves nothing."""
    return str(item.get("ETag") or "").strip('"')


def _info_of(key: str, answer: Mapping[str, Any]) -> ObjectInfo:
    """The store's description of an object, from a HEAD."""
    return ObjectInfo(
        key=key,
        size=needed(answer, "ContentLength"),
        etag=_etag_in(answer),
        crc64=crc64_in(answer),
        storage_class=answer.get("StorageClass") or "STANDARD",
        last_modified=needed(answer, "LastModified").astimezone(UTC),
    )


def _listed_part(part: PartInfo, *, crc64: bool) -> dict[str, Any]:
    """A part as a list for completion names it."""
    known = part.crc64 if crc64 else None
    checksum = {} if known is None else {"ChecksumCRC64NVME": crc64_base64(known)}
    return {"PartNumber": part.number, "ETag": f'"{part.etag}"', **checksum}


@dataclass(frozen=True, slots=True)
class _Versions:
    """Reads one version of an object, as `versions.Contents` says."""

    requests: Requests
    integrity: Integrity

    def read(self, key: str, version: str, most: int) -> bytes:
        return b"".join(self._blocks(key, version, most))

    def crc64(self, key: str, version: str, size: int) -> int:
        params = {"ChecksumMode": "ENABLED"} if self.integrity.wants_crc64 else {}
        params |= {"VersionId": version}
        answer = self.requests.retry(lambda: self.requests.once("head_object", key, **params))
        kept = _info_of(key, answer).crc64
        return kept if kept is not None else crc64_of_blocks(self._blocks(key, version, size))

    def _blocks(self, key: str, version: str, most: int) -> Iterator[bytes]:
        id_ = {"VersionId": version}
        with Download(self.requests, key, 0, None, most=most, version=id_) as download:
            while block := self.requests.retry(download.block):
                yield block


@contextlib.contextmanager
def opened(
    config: StoreConfig,
    *,
    policy: RetryPolicy = PREFLIGHT,
    sigterm_interrupts: bool = False,
    evidence: MakeEvidence | None = None,
    session: MakeSession | None = None,
) -> Iterator[S3Store]:
    """The store while a command runs. At the end, threads that still wait in it are stopped.

    `sigterm_interrupts`: SIGTERM raises KeyboardInterrupt, as Ctrl-C does, so that the command
    cleans up; for the main thread only.
    """
    stop = threading.Event()
    with contextlib.ExitStack() as stack:
        if sigterm_interrupts:
            before = signal.signal(signal.SIGTERM, signal.default_int_handler)
            stack.callback(signal.signal, signal.SIGTERM, before)
        stack.callback(stop.set)
        store = S3Store(config, stop=stop, policy=policy, session=session, evidence=evidence)
        yield stack.enter_context(contextlib.closing(store))
