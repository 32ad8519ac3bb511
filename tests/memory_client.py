# ruff: noqa: N803 - the arguments have the names that boto3 gives them
"""boto3's client for S3 whose bucket is a `MemoryStore`: what lies above it is the real program.

It answers each request that `store.s3` makes, by the clock that it is given. A bucket with Object
Lock keeps every version of an object. What it cannot answer is an AttributeError.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from email.utils import format_datetime
from io import BytesIO
from types import SimpleNamespace
from typing import Any

from botocore.exceptions import ClientError

from binlog2s3.binlog.checksum import crc64_base64, crc64_from_base64, crc64nvme, md5
from binlog2s3.errors import StoreError
from binlog2s3.store.contract import ObjectInfo
from tests.memory_store import MemoryStore

Answer = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Version:
    """One version of an object; without `data` it is a delete marker."""

    id: str
    at: datetime
    data: bytes | None
    until: datetime | None


class MemoryClient:
    """`session` is what `S3Store` takes.

    `locked`: until when Object Lock keeps what is below `archive/`; None: the bucket has none.
    Then `versions` has all versions of each key, the newest first; change the time of the next one
    by the store's clock.
    """

    def __init__(
        self,
        store: MemoryStore,
        now: Callable[[], datetime],
        *,
        locked: datetime | None = None,
        rules: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        self.store = store
        self.versions: dict[str, list[Version]] = {}
        self._now = now
        self._locked = locked
        self._rules = rules
        self._count = 0
        ignore = lambda *_, **__: None  # noqa: E731
        events = SimpleNamespace(register=ignore, register_first=ignore, register_last=ignore)
        self.meta = SimpleNamespace(endpoint_url="https://s3.amazonaws.com", events=events)
        if locked is not None:
            self._keep("put", list(store.objects))
            store.on_acted = self._keep

    def session(self, **_: object) -> Any:
        return SimpleNamespace(client=lambda *_, **__: self)

    def close(self) -> None:
        pass

    def _keep(self, operation: str, keys: Sequence[str]) -> None:
        """Note the versions that a request has made."""
        for key in keys if operation in ("put", "complete_upload", "delete") else ():
            there = self.store.objects.get(key)
            if there is None and key not in self.versions:
                continue
            self._count += 1
            at = self._now() if there is None else there.info.last_modified
            until = self._locked if "archive/" in key else None
            data = None if there is None else there.data
            made = Version(f"v{self._count:03}", at, data, until if data is not None else None)
            self.versions.setdefault(key, []).insert(0, made)

    def _version(self, key: str, version: str | None) -> tuple[bytes, datetime]:
        if version is None:
            with _as_s3():
                data = self.store.get(key)
            return data, self.store.objects[key].info.last_modified
        for one in self.versions.get(key, ()):
            if one.id == version and one.data is not None:
                return one.data, one.at
        raise _error("NoSuchKey")

    def _answer(self, **fields: Any) -> Answer:
        headers = {"date": format_datetime(self._now(), usegmt=True), "x-amz-request-id": "1"}
        found = {name: value for name, value in fields.items() if value is not None}
        return {"ResponseMetadata": {"HTTPHeaders": headers}, **found}

    # Objects

    def put_object(self, Key: str, Body: Any, **more: Any) -> Answer:
        with _as_s3():
            info = self.store.put(
                Key,
                Body.read(),
                crc64=_sum_in(more),
                if_absent="IfNoneMatch" in more,
            )
        return self._answer(ETag=f'"{info.etag}"', ChecksumCRC64NVME=_text(info.crc64))

    def get_object(
        self,
        Key: str,
        Range: str = "bytes=0-",
        VersionId: str | None = None,
        **_: Any,
    ) -> Answer:
        data, at = self._version(Key, VersionId)
        begin, _, last = Range.removeprefix("bytes=").partition("-")
        if int(begin) > len(data):
            raise _error("InvalidRange")
        piece = data[int(begin) : int(last) + 1 if last else None]
        return self._answer(
            Body=BytesIO(piece),
            ContentLength=len(piece),
            ContentRange=f"bytes {begin}-{last}/{len(data)}",
            ETag=f'"{md5(data).hex()}"',
            LastModified=at,
        )

    def head_object(self, Key: str, VersionId: str | None = None, **_: Any) -> Answer:
        data, at = self._version(Key, VersionId)
        there = self.store.objects.get(Key)
        current = there is not None and there.data == data
        crc64 = there.info.crc64 if there is not None and current else crc64nvme(data)
        etag = there.info.etag if there is not None and current else md5(data).hex()
        return self._answer(
            ContentLength=len(data),
            ETag=f'"{etag}"',
            LastModified=at,
            ChecksumCRC64NVME=_text(crc64),
        )

    def list_objects_v2(
        self,
        Prefix: str = "",
        Delimiter: str = "",
        StartAfter: str = "",
        **_: Any,
    ) -> Answer:
        if Delimiter:
            names = [*self.store.list_names(Prefix)]
            folders = [{"Prefix": Prefix + n} for n in names if n.endswith(Delimiter)]
            objects = [{"Key": Prefix + n} for n in names if not n.endswith(Delimiter)]
            return self._answer(KeyCount=len(names), Contents=objects, CommonPrefixes=folders)
        found = [_item(one) for one in self.store.list(Prefix, start_after=StartAfter)]
        return self._answer(KeyCount=len(found), Contents=found)

    def list_object_versions(
        self,
        Prefix: str = "",
        KeyMarker: str = "",
        Delimiter: str = "",
        **_: Any,
    ) -> Answer:
        found: dict[str, list[Answer]] = {"Versions": [], "DeleteMarkers": []}
        folders: dict[str, None] = {}
        for key in sorted(self.versions, key=str.encode):
            if not key.startswith(Prefix) or key.encode() < KeyMarker.encode():
                continue
            name, is_folder, _rest = key.removeprefix(Prefix).partition(Delimiter or "\0")
            if is_folder:
                folders[f"{Prefix}{name}{Delimiter}"] = None
                continue
            for place, one in enumerate(self.versions[key]):
                row = {"Key": key, "VersionId": one.id, "LastModified": one.at}
                row |= {"IsLatest": not place}
                if one.data is None:
                    found["DeleteMarkers"].append(row)
                else:
                    row |= {"Size": len(one.data), "ETag": f'"{md5(one.data).hex()}"'}
                    found["Versions"].append(row)
        return self._answer(
            IsTruncated=False, CommonPrefixes=[{"Prefix": one} for one in folders], **found
        )

    def delete_object(self, Key: str, VersionId: str | None = None, **_: Any) -> Answer:
        if VersionId is None:
            self.store.delete([Key])
        else:
            left = [one for one in self.versions[Key] if one.id != VersionId]
            self.versions[Key] = left
            if not left:
                del self.versions[Key]
        return self._answer()

    def delete_objects(self, Delete: Mapping[str, Any], **_: Any) -> Answer:
        keys = [item["Key"] for item in Delete["Objects"]]
        self.store.delete(keys)
        return self._answer(Deleted=[{"Key": key} for key in keys])

    # Multipart uploads

    def create_multipart_upload(self, Key: str, **more: Any) -> Answer:
        crc64 = more.get("ChecksumAlgorithm")
        upload_id = self.store.create_upload(Key, crc64=crc64 is not None)
        return self._answer(UploadId=upload_id, ChecksumAlgorithm=crc64)

    def list_multipart_uploads(self, Prefix: str, **_: Any) -> Answer:
        found = [
            {"Key": one.key, "UploadId": one.upload_id, "Initiated": one.initiated}
            for one in self.store.uploads_below(Prefix)
        ]
        return self._answer(IsTruncated=False, Uploads=found)

    def list_parts(self, Key: str, UploadId: str, **_: Any) -> Answer:
        with _as_s3():
            parts = self.store.list_parts(Key, UploadId)
        found = [
            {
                "PartNumber": one.number,
                "Size": one.size,
                "ETag": f'"{one.etag}"',
                **({} if one.crc64 is None else {"ChecksumCRC64NVME": _text(one.crc64)}),
            }
            for one in parts
        ]
        return self._answer(IsTruncated=False, Parts=found)

    def upload_part(
        self,
        Key: str,
        UploadId: str,
        PartNumber: int,
        Body: Any,
        **more: Any,
    ) -> Answer:
        with _as_s3():
            made = self.store.upload_part(Key, UploadId, PartNumber, Body.read(), _sum_in(more))
        return self._answer(ETag=f'"{made.etag}"', ChecksumCRC64NVME=_text(made.crc64))

    def upload_part_copy(
        self,
        Key: str,
        UploadId: str,
        PartNumber: int,
        CopySource: Mapping[str, str],
        **_: Any,
    ) -> Answer:
        source = CopySource["Key"]
        size = len(self.store.objects[source].data)
        with _as_s3():
            made = self.store.copy_part(Key, UploadId, PartNumber, source, size=size)
        result = {"ETag": f'"{made.etag}"', "ChecksumCRC64NVME": _text(made.crc64)}
        return self._answer(CopyPartResult=result)

    def complete_multipart_upload(
        self,
        Key: str,
        UploadId: str,
        MultipartUpload: Mapping[str, Any],
        **more: Any,
    ) -> Answer:
        with _as_s3():
            there = {one.number: one for one in self.store.list_parts(Key, UploadId)}
            parts = [there[item["PartNumber"]] for item in MultipartUpload["Parts"]]
            info = self.store.complete_upload(
                Key,
                UploadId,
                parts,
                size=more.get("MpuObjectSize", sum(one.size for one in parts)),
                crc64=_sum_in(more),
                if_absent="IfNoneMatch" in more,
            )
        return self._answer(ETag=f'"{info.etag}"')

    def abort_multipart_upload(self, Key: str, UploadId: str, **_: Any) -> Answer:
        if UploadId not in self.store.uploads:
            raise _error("NoSuchUpload")
        self.store.abort_upload(Key, UploadId)
        return self._answer()

    # The bucket

    def get_bucket_versioning(self, **_: Any) -> Answer:
        return self._answer(Status=None if self._locked is None else "Enabled")

    def get_bucket_lifecycle_configuration(self, **_: Any) -> Answer:
        if not self._rules:
            raise _error("NoSuchLifecycleConfiguration")
        return self._answer(Rules=[*self._rules])

    def get_object_lock_configuration(self, **_: Any) -> Answer:
        if self._locked is None:
            raise _error("ObjectLockConfigurationNotFoundError")
        return self._answer(ObjectLockConfiguration={"ObjectLockEnabled": "Enabled"})

    def get_object_retention(self, Key: str, VersionId: str | None = None, **_: Any) -> Answer:
        versions = self.versions.get(Key, ())
        named = [one for one in versions if VersionId in (None, one.id)][:1]
        if not named or named[0].until is None:
            raise _error("NoSuchObjectLockConfiguration")
        return self._answer(Retention={"Mode": "COMPLIANCE", "RetainUntilDate": named[0].until})

    def get_object_legal_hold(self, **_: Any) -> Answer:
        raise _error("NoSuchObjectLockConfiguration")


def _item(info: ObjectInfo) -> Answer:
    return {
        "Key": info.key,
        "Size": info.size,
        "ETag": f'"{info.etag}"',
        "LastModified": info.last_modified,
        "StorageClass": info.storage_class,
    }


def _sum_in(params: Mapping[str, Any]) -> int | None:
    found = params.get("ChecksumCRC64NVME")
    return None if found is None else crc64_from_base64(found)


def _text(crc64: int | None) -> str | None:
    return None if crc64 is None else crc64_base64(crc64)


@contextmanager
def _as_s3() -> Iterator[None]:
    """The store's own errors as the code that S3 would answer with."""
    try:
        yield
    except StoreError as error:
        raise _error(*getattr(error, "__notes__", ["InvalidRequest"])) from error


def _error(code: str) -> ClientError:
    status = {"NoSuchKey": 404, "NoSuchUpload": 404, "PreconditionFailed": 412}.get(code, 400)
    return ClientError(
        {
            "Error": {"Code": code, "Message": ""},
            "ResponseMetadata": {"HTTPStatusCode": status, "HTTPHeaders": {}},
        },
        "",
    )
