"""What the answers of a store say: ETags, dates, descriptions of objects."""

from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

from binlog2s3.binlog.checksum import crc64_base64
from binlog2s3.store.contract import ObjectInfo, PartInfo
from binlog2s3.store.integrity import crc64_in
from binlog2s3.store.requests import needed


def content_type(key: str) -> str:
    """The media type of an object."""
    return "application/json" if key.endswith(".json") else "application/octet-stream"


def etag_in(answer: Mapping[str, Any]) -> str:
    return str(needed(answer, "ETag")).strip('"')


def listed_etag(item: Mapping[str, Any]) -> str:
    """Empty if the listings of a store have none, as those of s3s-fs: it proves nothing."""
    return str(item.get("ETag") or "").strip('"')


def date_in(answer: Mapping[str, Any]) -> datetime:
    """The date in an answer: the time of the write, by the store's clock."""
    try:
        text = answer["ResponseMetadata"]["HTTPHeaders"]["date"]
        return parsedate_to_datetime(text).astimezone(UTC)
    except (KeyError, ValueError):
        return datetime.now(UTC)


def info_of(key: str, answer: Mapping[str, Any]) -> ObjectInfo:
    """The store's description of an object, from a HEAD."""
    return ObjectInfo(
        key=key,
        size=needed(answer, "ContentLength"),
        etag=etag_in(answer),
        crc64=crc64_in(answer),
        storage_class=answer.get("StorageClass") or "STANDARD",
        last_modified=needed(answer, "LastModified").astimezone(UTC),
    )


def listed_part(part: PartInfo, *, crc64: bool) -> dict[str, Any]:
    """A part as a list for completion names it."""
    known = part.crc64 if crc64 else None
    checksum = {} if known is None else {"ChecksumCRC64NVME": crc64_base64(known)}
    return {"PartNumber": part.number, "ETag": f'"{part.etag}"', **checksum}
