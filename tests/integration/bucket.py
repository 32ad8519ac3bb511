"""A reader that has only the bucket, and does not use the product's own: it joins by hand.

Law: it does what docs/format.md tells a stranger to do, in other words than the product's code.
"""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic
from typing import Any, TypeVar

from botocore.exceptions import ClientError, ResponseStreamingError

from binlog2s3.binlog.checksum import crc64_hex, crc64nvme
from lab.s3 import Store
from tests.waiting import PATIENCE, wait_until

T = TypeVar("T")

ARCHIVED = re.compile(r"archive/(?P<source>[^/]+)/(?P<lineage>[^/]+)/binlogs/(?P<name>[^/]+)$")
CHUNK = re.compile(
    r"live/(?P<source>[^/]+)/(?P<lineage>\d[^/]+)/(?P<name>[^/]+)/"
    r"(?P<begin>\d{16})-(?P<end>\d{16})-(?P<crc>[0-9a-f]{16})$"
)


@dataclass(frozen=True)
class ChunkObject:
    key: str
    binlog: str
    begin: int
    end: int


class Bucket:
    """Everything under a bucket's prefix, asked anew at each call."""

    def __init__(self, store: Store, bucket: str) -> None:
        self.store = store
        self.name = bucket

    def rows(self, prefix: str = "") -> list[Any]:
        """What a listing says of each object."""
        pages = self.store.asking.get_paginator("list_objects_v2")
        found = pages.paginate(Bucket=self.name, Prefix=prefix)
        return [row for page in found for row in page.get("Contents", [])]

    def keys(self, prefix: str = "") -> list[str]:
        return [row["Key"] for row in self.rows(prefix)]

    def get(self, key: str) -> bytes:
        return self.store.asking.get_object(Bucket=self.name, Key=key)["Body"].read()

    def chunks(self, binlog: str = "") -> list[ChunkObject]:
        """A listing is no snapshot: a chunk that took another's place under it may be in neither.

        So they are listed until that is the same twice.
        """
        keys, until = self.keys(), monotonic() + PATIENCE
        while monotonic() < until:
            before, keys = keys, self.keys()
            if keys == before:
                break
        matches = [m for key in keys if (m := CHUNK.search(key))]
        return [
            ChunkObject(m.string, m["name"], int(m["begin"]), int(m["end"]))
            for m in matches
            if binlog in ("", m["name"])
        ]

    def archived(self) -> list[str]:
        return sorted(m["name"] for key in self.keys() if (m := ARCHIVED.search(key)))

    def binlogs(self) -> dict[str, bytes]:
        """Each binlog's bytes, as far as the bucket has them from the first one on."""
        return again(self._binlogs)  # a chunk went: its binlog was archived meanwhile

    def _binlogs(self) -> dict[str, bytes]:
        growing: dict[str, list[ChunkObject]] = {}
        for chunk in self.chunks():
            growing.setdefault(chunk.binlog, []).append(chunk)
        found: dict[str, bytes] = {}
        for key in self.keys():  # behind the chunks: a binlog that is archived meanwhile is here
            if (m := ARCHIVED.search(key)) is not None:
                found[m["name"]] = self.get(key)
        for name, chunks in growing.items():
            if name not in found:
                found[name] = self._join(chunks)
        return dict(sorted(found.items()))

    def _join(self, chunks: list[ChunkObject]) -> bytes:
        data = b""
        for chunk in sorted(chunks, key=lambda chunk: (chunk.begin, -chunk.end)):
            if chunk.begin > len(data):
                break
            body = self.get(chunk.key)
            assert len(body) == chunk.end - chunk.begin, chunk
            assert chunk.key.endswith(crc64_hex(crc64nvme(body))), chunk
            both = data[chunk.begin : chunk.end]
            assert body.startswith(both), f"{chunk} disagrees with what lies beside it"
            data += body[len(both) :]
        return data

    def heartbeat(self) -> dict[str, Any]:
        """The last writer's object."""
        return again(self._heartbeat)  # it went: there is a newer one

    def _writers(self) -> list[str]:
        return [key for key in self.keys() if "/writers/" in key]

    def _heartbeat(self) -> dict[str, Any]:
        key = max(wait_until(self._writers, what="a writer's object"))
        document = json.loads(self.get(key))
        assert isinstance(document, dict)
        return document


def again(read: Callable[[], T]) -> T:
    """What `read` finds; it begins anew where something changes between listing and reading.

    An object that was listed is gone, or its body breaks off: nanio truncates the file of an object
    that is written anew while it is read.
    """
    until = monotonic() + PATIENCE
    while True:
        try:
            return read()
        except ClientError as error:
            if error.response["Error"]["Code"] != "NoSuchKey" or monotonic() > until:
                raise
        except ResponseStreamingError:
            if monotonic() > until:
                raise
