"""The S3 store: everything binlog2s3 asks of a bucket.

Place: at the edge, under catalog and uploader. What each method promises stands in
`contract`, how a request is made and repeated in `requests`, what a failure means in
`errors`. Law: what the store did not confirm (encryption, a checksum that was demanded) is
not done; an answer without what every S3 store answers is an error, not a default.
"""

# ruff: noqa: D102  # the methods' promises stand in store_contract.Store

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

from binlog2s3.binlog.checksum import crc64_base64, crc64_from_base64
from binlog2s3.errors import (
    ObjectMissingError,
    SpoolError,
    StoreError,
    StoreSettingError,
    UnsupportedError,
    UploadMissingError,
)
from binlog2s3.store.contract import (
    IMMEDIATE_STORAGE_CLASSES,
    PREFLIGHT,
    Body,
    FileSlice,
    ObjectInfo,
    OnError,
    OnOver,
    PartInfo,
    Pieces,
    Reader,
    RetryPolicy,
    Store,
    StoreConfig,
    UploadInfo,
)
from binlog2s3.store.errors import MendableError, RefusedError
from binlog2s3.store.requests import (
    Answer,
    Download,
    Link,
    MakeSession,
    Requests,
    any_session,
    crc64_of,
    digests_of,
    needed,
    onward,
    size_of,
)
from binlog2s3.store.settings import BucketSettings

__all__ = [
    "IMMEDIATE_STORAGE_CLASSES",
    "PREFLIGHT",
    "Body",
    "FileSlice",
    "MendableError",
    "ObjectInfo",
    "OnError",
    "OnOver",
    "PartInfo",
    "Pieces",
    "Reader",
    "RefusedError",
    "RetryPolicy",
    "S3Store",
    "Store",
    "StoreConfig",
    "UploadInfo",
]

_KEYS_PER_DELETE = 1000
_CRC64 = "CRC64NVME"


@dataclass(slots=True)
class _Upload:
    """What is known of an upload: has it a whole-object checksum, was encryption confirmed."""

    crc64: bool
    encrypted: bool


@dataclass(slots=True)
class _Learned:
    """What the store has shown of itself; shared by all that speak to it."""

    uploads: dict[str, _Upload] = field(default_factory=dict)
    refuses_crc64: bool = False
    refuses_delete_objects: bool = False


class S3Store:
    """A bucket, through boto3. Nothing is opened until the first call.

    `stop` ends every wait between attempts at once, by raising the last error. `session` makes
    the boto3 session; it is asked again when credentials were refused.
    """

    def __init__(
        self,
        config: StoreConfig,
        *,
        stop: threading.Event,
        policy: RetryPolicy = PREFLIGHT,
        on_error: OnError | None = None,
        session: MakeSession = any_session,
    ) -> None:
        self._config = config
        self._requests = Requests(Link(config, session), stop, policy, on_error)
        self._learned = _Learned()

    def with_policy(
        self, policy: RetryPolicy, on_error: OnError | None = None, on_over: OnOver | None = None
    ) -> "S3Store":
        """The same bucket over the same connections, with other patience."""
        other = S3Store(self._config, stop=self._requests.stop)
        other._requests = replace(self._requests, policy=policy, on_error=on_error, on_over=on_over)
        other._learned = self._learned
        return other

    @property
    def settings(self) -> BucketSettings:
        """What the bucket says of itself, over the same connections."""
        return BucketSettings(self._requests)

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
    ) -> ObjectInfo:
        params = {**self._encryption(), "ContentType": _content_type(key)}
        params |= {"IfNoneMatch": "*"} if if_absent else {}
        params |= self._storage_class() if archived else {}

        def send(crc64_on: bool) -> Answer:
            digest = self._digest(body, crc64, crc64_on=crc64_on)
            return self._requests.send("put_object", key, body, **params, **digest)

        answer = self._with_crc64(send)
        self._confirm_encryption(answer, key)
        return ObjectInfo(
            key=key,
            size=size_of(body),
            etag=_etag(answer),
            crc64=self._confirm_crc64(answer, key, crc64),
            storage_class=params.get("StorageClass", "STANDARD"),
            last_modified=_date(answer),
        )

    def get(
        self, key: str, begin: int = 0, end: int | None = None, *, most: int | None = None
    ) -> bytes:
        if end is not None and end <= begin:
            return b""

        def read() -> bytes:
            with Download(self._requests, key, begin, end, most=most) as download:
                return b"".join(iter(download.block, b""))

        return self._requests.retry(read)

    def open(self, key: str, begin: int, end: int) -> Iterator[bytes]:
        with Download(self._requests, key, begin, end) as download:
            while download.at < end:
                yield self._requests.retry(download.block)

    def head(self, key: str) -> ObjectInfo | None:
        try:
            return _head(key, self._look(key))
        except ObjectMissingError:
            return None

    def list(self, prefix: str, *, start_after: str = "") -> Iterator[ObjectInfo]:
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

    def list_names(self, prefix: str, *, delimiter: str = "/") -> Iterator[str]:
        for page in self._pages(Prefix=prefix, Delimiter=delimiter):
            objects = (item["Key"] for item in page.get("Contents", ()))
            folders = (item["Prefix"] for item in page.get("CommonPrefixes", ()))
            yield from sorted(name.removeprefix(prefix) for name in (*objects, *folders))

    def delete(self, keys: Iterable[str]) -> None:
        left = [*keys]
        while left:
            batch, left = left[:_KEYS_PER_DELETE], left[_KEYS_PER_DELETE:]
            if not self._delete_together(batch):
                for key in batch:
                    self._delete_one(key)

    # Multipart uploads

    def create_upload(self, key: str, *, crc64: bool = True) -> str:
        params = {**self._encryption(), **self._storage_class(), "ContentType": _content_type(key)}

        def create(crc64_on: bool) -> Answer:
            named = {"ChecksumAlgorithm": _CRC64, "ChecksumType": "FULL_OBJECT"}
            return self._ask(
                "create_multipart_upload", key, **params, **(named if crc64_on else {})
            )

        answer = self._with_crc64(create) if crc64 else create(False)
        upload_id = str(needed(answer, "UploadId"))
        upload = _Upload(
            crc64=answer.get("ChecksumAlgorithm") == _CRC64,
            encrypted=not self._config.sse or "ServerSideEncryption" in answer,
        )
        self._learned.uploads[upload_id] = upload
        try:
            if crc64 and not upload.crc64 and self._config.checksum == "crc64nvme":
                raise _no_crc64(key)
            if upload.encrypted:
                self._confirm_encryption(answer, key)
        except StoreError:
            with contextlib.suppress(StoreError):  # an empty upload that stays does no harm
                self._requests.once("abort_multipart_upload", key, UploadId=upload_id)
            raise
        return upload_id

    def list_uploads(self, key: str) -> Sequence[UploadInfo]:
        found: list[UploadInfo] = []
        marker: dict[str, str] = {}
        while True:
            # The prefix is the whole key: MinIO finds nothing below a shorter one.
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
        # MinIO finds nothing below a prefix that is no whole key, but all without one.
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
        marker: dict[str, int] = {}
        while True:
            page = self._ask("list_parts", key, UploadId=upload_id, **marker)
            known = _Upload(crc64=page.get("ChecksumAlgorithm") == _CRC64, encrypted=True)
            self._learned.uploads.setdefault(upload_id, known)
            found += [
                PartInfo(
                    number=needed(item, "PartNumber"),
                    size=needed(item, "Size"),
                    etag=_listed_etag(item),
                    crc64=_crc64(item),
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
        answer = self._requests.send(
            "upload_part",
            key,
            body,
            UploadId=upload_id,
            PartNumber=number,
            **self._digest(body, crc64, crc64_on=upload.crc64),
        )
        if not upload.encrypted:  # MinIO confirms it here, not at create
            self._confirm_encryption(answer, key)
        kept = self._confirm_crc64(answer, key, crc64) if upload.crc64 else None
        return PartInfo(number=number, size=size_of(body), etag=_etag(answer), crc64=kept)

    def copy_part(
        self,
        key: str,
        upload_id: str,
        number: int,
        source_key: str,
        *,
        begin: int,
        end: int,
        whole: bool = False,
    ) -> PartInfo:
        answer = self._ask(
            "upload_part_copy",
            key,
            UploadId=upload_id,
            PartNumber=number,
            CopySource={"Bucket": self._config.bucket, "Key": source_key},
            **({} if whole else {"CopySourceRange": f"bytes={begin}-{end - 1}"}),
        )
        result = needed(answer, "CopyPartResult")
        return PartInfo(number=number, size=end - begin, etag=_etag(result), crc64=_crc64(result))

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
        if upload.crc64:  # who confirmed the one knows the other; older stores may refuse both
            params |= {"MpuObjectSize": size}
        if upload.crc64 and crc64 is not None:
            params |= {"ChecksumCRC64NVME": crc64_base64(crc64), "ChecksumType": "FULL_OBJECT"}
        listed = {"Parts": [_listed(part, crc64=upload.crc64) for part in parts]}
        self._ask(
            "complete_multipart_upload", key, UploadId=upload_id, MultipartUpload=listed, **params
        )
        self._learned.uploads.pop(upload_id, None)
        answer = self._look(key)
        self._confirm_encryption(answer, key)
        info = _head(key, answer)
        if info.size != size:
            raise StoreError(f"{key!r} was completed with {size} bytes and has {info.size}")
        if upload.crc64:
            self._confirm_crc64(answer, key, crc64)
        return info

    def abort_upload(self, key: str, upload_id: str) -> None:
        self._learned.uploads.pop(upload_id, None)
        try:
            self._ask("abort_multipart_upload", key, UploadId=upload_id)
        except UploadMissingError:
            return

    def _upload(self, key: str, upload_id: str) -> _Upload:
        """What is known of an upload; one that an earlier process began is asked for."""
        if upload_id not in self._learned.uploads:
            self.list_parts(key, upload_id)
        return self._learned.uploads[upload_id]

    # What goes along, and what must come back

    def _ask(self, operation: str, key: str, **params: Any) -> Answer:
        return self._requests.retry(lambda: self._requests.once(operation, key, **params))

    def _look(self, key: str) -> Answer:
        with_checksum = {"ChecksumMode": "ENABLED"} if self._wants_crc64() else {}
        return self._ask("head_object", key, **with_checksum)

    def _pages(self, **params: Any) -> Iterator[Answer]:
        while True:
            page = self._ask("list_objects_v2", "", **params)
            yield page
            if not page.get("IsTruncated"):
                return
            token = needed(page, "NextContinuationToken")
            params |= onward(params, {"ContinuationToken": token})

    def _delete_together(self, keys: Sequence[str]) -> bool:
        """Delete a batch in one request; False where the store cannot."""
        if self._learned.refuses_delete_objects:
            return False
        try:
            self._requests.retry(lambda: self._requests.delete_objects(keys))
        except UnsupportedError:
            self._learned.refuses_delete_objects = True
            return False
        return True

    def _delete_one(self, key: str) -> None:
        try:
            self._ask("delete_object", key)
        except ObjectMissingError:
            return

    def _storage_class(self) -> dict[str, str]:
        chosen = self._config.storage_class
        return {"StorageClass": chosen} if chosen else {}

    def _encryption(self) -> dict[str, str]:
        asked = {
            "ServerSideEncryption": self._config.sse,
            "SSEKMSKeyId": self._config.sse_kms_key_id,
        }
        return {name: value for name, value in asked.items() if value}

    def _confirm_encryption(self, answer: Mapping[str, Any], key: str) -> None:
        """Some stores take the header and write the bytes in clear: believe only the answer."""
        asked, got = self._config.sse, answer.get("ServerSideEncryption")
        if asked and got != asked:
            raise StoreError(
                f"the store did not confirm encryption {asked} of {key!r}, it says"
                f" {got or 'nothing'}: the bytes may lie there in clear",
                hint="this store does not encrypt as asked; set up its keys, or leave sse out",
            )
        want, used = self._config.sse_kms_key_id, answer.get("SSEKMSKeyId", "")
        if asked and want and not _same_kms_key(want, used):
            raise StoreError(
                f"the store encrypted {key!r} with KMS key {used or 'unknown'}, not with {want}",
                hint="name the key's id or ARN in sse_kms_key_id",
            )

    def _digest(self, body: Body | bytes, crc64: int | None, *, crc64_on: bool) -> dict[str, str]:
        """What goes along so that the store can refuse bytes that changed on the way."""
        if self._config.checksum == "none":
            return {}
        if crc64_on:
            known = crc64 if crc64 is not None else crc64_of(body)
            return {"ChecksumCRC64NVME": crc64_base64(known)}
        known, md5 = digests_of(body)
        if crc64 is not None and crc64 != known:
            raise SpoolError(
                "bytes to be sent are no longer those that were read and checked",
                hint="they changed on disk since; look at the host's disk and memory",
            )
        return {"ContentMD5": md5}

    def _with_crc64(self, act: Callable[[bool], Answer]) -> Answer:
        """Run `act` with CRC64NVME if the mode wants it; mode auto without where that is refused.

        Remembered only once the same act has succeeded without: then it was the checksum.
        """
        if not self._wants_crc64():
            return act(False)
        try:
            return act(True)
        except StoreError as exc:
            if self._config.checksum != "auto" or not isinstance(
                exc, UnsupportedError | RefusedError
            ):
                raise
        answer = act(False)
        self._learned.refuses_crc64 = True
        return answer

    def _wants_crc64(self) -> bool:
        return self._config.checksum in ("auto", "crc64nvme") and not self._learned.refuses_crc64

    def _confirm_crc64(self, answer: Mapping[str, Any], key: str, sent: int | None) -> int | None:
        kept = _crc64(answer)
        if kept is None and self._config.checksum == "crc64nvme":
            raise _no_crc64(key)
        if kept is not None and sent is not None and kept != sent:
            raise StoreError(f"the store's CRC64NVME of {key!r} is not that of the bytes sent")
        return kept


def _content_type(key: str) -> str:
    return "application/json" if key.endswith(".json") else "application/octet-stream"


def _etag(answer: Mapping[str, Any]) -> str:
    return str(needed(answer, "ETag")).strip('"')


def _listed_etag(item: Mapping[str, Any]) -> str:
    """Empty where a store's listings have none, as s3s-fs's: then it proves nothing."""
    return str(item.get("ETag") or "").strip('"')


def _crc64(answer: Mapping[str, Any]) -> int | None:
    try:
        return crc64_from_base64(answer["ChecksumCRC64NVME"])
    except (KeyError, ValueError):
        return None


def _date(answer: Mapping[str, Any]) -> datetime:
    """The store's clock, as its answer shows it: the time of a write that it just did."""
    try:
        text = answer["ResponseMetadata"]["HTTPHeaders"]["date"]
        return parsedate_to_datetime(text).astimezone(UTC)
    except (KeyError, ValueError):
        return datetime.now(UTC)


def _head(key: str, answer: Mapping[str, Any]) -> ObjectInfo:
    return ObjectInfo(
        key=key,
        size=needed(answer, "ContentLength"),
        etag=_etag(answer),
        crc64=_crc64(answer),
        storage_class=answer.get("StorageClass") or "STANDARD",
        last_modified=needed(answer, "LastModified").astimezone(UTC),
    )


def _listed(part: PartInfo, *, crc64: bool) -> dict[str, Any]:
    known = part.crc64 if crc64 else None
    checksum = {} if known is None else {"ChecksumCRC64NVME": crc64_base64(known)}
    return {"PartNumber": part.number, "ETag": f'"{part.etag}"', **checksum}


def _no_crc64(key: str) -> StoreError:
    return StoreSettingError(
        f"the store did not confirm the CRC64NVME of {key!r}",
        hint="this store keeps no such checksum; set checksum to auto or md5",
    )


def _same_kms_key(want: str, used: str) -> bool:
    """Stores answer with an ARN; what an alias stands for only they know."""
    if "alias/" in want:
        return bool(used)
    return used == want or used.endswith((f"/{want}", f":{want}"))
