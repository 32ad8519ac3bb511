"""The contract between binlog2s3 and a bucket: the values, and what each operation promises.

Every implementation passes the suite in tests/contract.
"""

import io
import os
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal, Protocol

from binlog2s3.errors import SpoolError, StoreError
from binlog2s3.formatting import iso_text

OnError = Callable[[StoreError, int, float], None]
"""Called after each failed attempt that will be repeated: error, number, seconds to wait."""

OnOver = Callable[[bool], None]
"""Called in the same thread when a request succeeds (True), or is abandoned after a failure."""

OnRequest = Callable[[str, str, float], None]
"""Called after each attempt: S3's name of the operation, HTTP status or "none", seconds."""

IMMEDIATE_STORAGE_CLASSES = frozenset(
    {
        "STANDARD",
        "REDUCED_REDUNDANCY",
        "STANDARD_IA",
        "ONEZONE_IA",
        "INTELLIGENT_TIERING",
        "GLACIER_IR",
        "EXPRESS_ONEZONE",
        "OUTPOSTS",
        "SNOW",
        "FSX_OPENZFS",
    }
)
"""The classes that a GET reads at once. With others, a restore would have to wait for hours."""


@dataclass(frozen=True, slots=True)
class ObjectLock:
    """The store refuses to delete an object for so many `days` after it was written.

    GOVERNANCE can be lifted with a special permission, COMPLIANCE cannot be lifted.
    """

    mode: Literal["GOVERNANCE", "COMPLIANCE"]
    days: int

    def __str__(self) -> str:
        return f"{self.mode}:{self.days}d"


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectVersion:
    """A version of an object, or a delete marker, which has no size. `latest`: the newest one."""

    key: str
    version: str
    at: datetime
    latest: bool
    size: int | None = None
    etag: str = ""
    storage_class: str = "STANDARD"

    def __str__(self) -> str:
        return f"{self.version} (put at {iso_text(self.at)}, {self.size} bytes)"


@dataclass(frozen=True, slots=True)
class Picks:
    """What an operator says of objects whose versions differ.

    `versions`: the id of the version that counts, by key; `NO_VERSION`: none does. `before`: where
    versions differ, only those count that were put before this time.
    """

    versions: Mapping[str, str] = field(default_factory=dict)
    before: datetime | None = None


NO_VERSION = "none"
"""In place of a version's id: no version of the object counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreConfig:
    """Where the bucket is and how to connect to it. Keys come from the AWS SDK's own chain.

    `checksum`: auto sends CRC64NVME if the store accepts it, else Content-MD5; crc64nvme requires
    that the store confirms it; md5 sends Content-MD5; none sends no digest except that of the
    signature. `max_bandwidth`: bytes a second for all bodies that are sent; None: no limit.
    `object_lock`: how long to lock what is put to be kept. `written_once`: below this prefix it is
    decided which version of an object is read, if the bucket has Object Lock; `picks` help.
    `expected_bucket_owner`: the account that must own the bucket, or AWS refuses each request.
    """

    bucket: str
    endpoint_url: str | None = None
    region: str | None = None
    addressing_style: Literal["auto", "path", "virtual"] = "auto"
    profile: str | None = None
    expected_bucket_owner: str | None = None
    storage_class: str | None = None
    sse: Literal["AES256", "aws:kms"] | None = None
    sse_kms_key_id: str | None = None
    checksum: Literal["auto", "crc64nvme", "md5", "none"] = "auto"
    object_lock: ObjectLock | None = None
    written_once: str = ""
    picks: Picks = field(default_factory=Picks)
    concurrency: int = 8
    max_bandwidth: int | None = None
    connect_timeout_seconds: float = 10.0
    read_timeout_seconds: float = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How often to try. `attempts=None`: without limit, until the stop event is set.

    The n-th wait is random, up to `first_delay_seconds` doubled n times, and never longer than
    `max_delay_seconds`.
    """

    attempts: int | None
    first_delay_seconds: float = 0.5
    max_delay_seconds: float = 30.0


PREFLIGHT = RetryPolicy(attempts=3)


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectInfo:
    """An object as the store describes it; `crc64` is of the whole object, if the store has it."""

    key: str
    size: int
    etag: str
    crc64: int | None
    storage_class: str
    last_modified: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadInfo:
    """A multipart upload that is neither completed nor aborted."""

    upload_id: str
    key: str
    initiated: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class PartInfo:
    """A part of an unfinished upload; `crc64` if the store has checked and kept it.

    `md5` is that of the bytes that were sent, if sending them took it.
    """

    number: int
    size: int
    etag: str
    crc64: int | None
    md5: bytes | None = field(default=None, compare=False)


class Reader(Protocol):
    """What sending needs of a seekable binary file."""

    def read(self, size: int = -1, /) -> bytes:
        """Up to `size` bytes; b"" at the end."""

    def seek(self, offset: int, whence: int = 0, /) -> int:
        """Set the position and return it."""

    def tell(self) -> int:
        """The position of the next read."""

    def close(self) -> None:
        """Close the file."""


class Body(Protocol):
    """Bytes to send: their number, and a way to read them from the beginning any number of times.

    Each attempt calls `open`, and closes the reader at its end.
    """

    @property
    def size(self) -> int:
        """How many bytes there are."""

    def open(self) -> Reader:
        """A new reader at the first byte."""


@dataclass(frozen=True, slots=True)
class FileRange:
    """Bytes `begin` to `end` of a file of the spool: a part or a chunk.

    Reading raises SpoolError if the file is gone, unreadable or shorter than `end`, so that never
    fewer bytes are sent than announced.
    """

    path: Path
    begin: int
    end: int

    @property
    def size(self) -> int:
        """How many bytes the range has."""
        return self.end - self.begin

    def open(self) -> Reader:
        """A reader with its own file descriptor. Raises SpoolError if there is no file."""
        reader = _RangesReader((self,))
        reader.opened(0)
        return reader


@dataclass(frozen=True, slots=True)
class FileRanges:
    """Several ranges, one after the other: a part whose bytes are in more than one file.

    Reading raises SpoolError as for a range. A file is opened when reading reaches it: until then
    it is not known whether it exists.
    """

    ranges: tuple[FileRange, ...]

    @property
    def size(self) -> int:
        """The number of bytes of all ranges."""
        return sum(file_range.size for file_range in self.ranges)

    def open(self) -> Reader:
        """A reader of all ranges; it has at most one open file descriptor."""
        return _RangesReader(self.ranges)


class SizedReader(io.RawIOBase):
    """A body of known size; `_at` is where it is read next."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._at = 0

    def __len__(self) -> int:
        return self._size

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        self._at = max(0, base + offset)
        return self._at


class _RangesReader(SizedReader):
    """Reads with pread, so it shares no position; has at most one open file descriptor.

    A failed read does not move the position, so it can be repeated.
    """

    def __init__(self, ranges: tuple[FileRange, ...]) -> None:
        self._ranges = ranges
        self._ends = list(accumulate(file_range.size for file_range in ranges))
        super().__init__(self._ends[-1] if ranges else 0)
        self._index, self._fd = -1, -1

    def readinto(self, buffer: Any, /) -> int:
        data = self.read(len(buffer)) or b""
        buffer[: len(data)] = data
        return len(data)

    def read(self, size: int | None = -1, /) -> bytes:
        """All requested bytes, of as many ranges as needed: some readers expect no short read."""
        if self.closed:
            raise ValueError("read of a closed reader")
        left = max(0, self._size - self._at)
        at, end = self._at, self._at + (left if size is None or size < 0 else min(size, left))
        blocks: list[bytes] = []
        while at < end:
            blocks.append(self._block(at, end))
            at += len(blocks[-1])
        self._at = at
        return blocks[0] if len(blocks) == 1 else b"".join(blocks)

    def _block(self, at: int, end: int) -> bytes:
        """Bytes from `at` on, at most up to `end`, all of one range."""
        index = bisect_right(self._ends, at)
        file_range = self.opened(index)
        offset = file_range.end - (self._ends[index] - at)
        try:
            data = os.pread(self._fd, min(end, self._ends[index]) - at, offset)
        except OSError as exc:
            raise SpoolError(f"cannot read {file_range.path} at {offset}: {exc.strerror}") from exc
        if not data:
            raise SpoolError(
                f"{file_range.path} ends at {offset}, before {file_range.end}: it was truncated",
                hint="something else writes to the spool; only one streamer may use it",
            )
        return data

    def opened(self, index: int) -> FileRange:
        """That range, with its file open; the file before it is closed. Raises SpoolError."""
        file_range = self._ranges[index]
        if self._index != index:
            self._drop()
            try:
                self._fd, self._index = os.open(file_range.path, os.O_RDONLY | os.O_CLOEXEC), index
            except OSError as exc:
                raise SpoolError(f"cannot read {file_range.path}: {exc.strerror}") from exc
        return file_range

    def _drop(self) -> None:
        fd, self._fd, self._index = self._fd, -1, -1
        if fd >= 0:
            os.close(fd)

    def close(self) -> None:
        self._drop()
        super().close()


class Store(Protocol):
    """What binlog2s3 needs of a bucket. Every implementation passes the suite in tests/contract.

    Keys are whole keys with the prefix. Offsets are bytes, `end` is exclusive. Every failure is a
    StoreError, or a SpoolError if a body could not be read or has changed; nothing else. A write
    that failed may have happened (the answer was lost): look before you conclude. Several threads
    may call methods at the same time.
    """

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
        """Write the whole object; when this returns, it is durable and readable.

        `crc64` is what the caller computed when it read the bytes: if the body now has other bytes,
        the store refuses it. `if_absent`: PreconditionError if the key exists, which may be the
        result of this call's own first attempt; without it, the object is replaced. `archived`: the
        object gets the configured storage class, else the default one. `archived` or `kept`: it
        gets the configured Object Lock, if there is one.
        """

    @property
    def refuses_replacing(self) -> bool:
        """Whether `put` with `if_absent` needs no look before it: see `try_condition`.

        Never in a bucket with Object Lock, which keeps what was under a key and was deleted.
        """

    def try_condition(self, key: str, body: bytes) -> None:
        """Put an object of ours that is there, with `if_absent`: some stores ignore that.

        Where it is refused, `refuses_replacing` is True from then on.
        """

    def get(
        self, key: str, begin: int = 0, end: int | None = None, *, most: int | None = None
    ) -> bytes:
        """The bytes of exactly this range, in memory; `end=None`: up to the object's end.

        ObjectMissingError if there is no object, StoreError if it is shorter than `end`,
        ObjectTooLargeError, without reading, if there are more than `most` bytes.
        """

    def open(self, key: str, begin: int, end: int) -> Iterator[bytes]:
        """The same in blocks of at most 1 MiB; after a broken connection, it continues there."""

    def head(self, key: str) -> ObjectInfo | None:
        """The store's description of the object, with its checksum; None if there is no object."""

    def list(self, prefix: str, *, start_after: str = "") -> Iterator[ObjectInfo]:
        """Every object below the prefix, in key order (as UTF-8 sorts), after `start_after`.

        All pages, without checksums: a listing has none.
        """

    def list_names(self, prefix: str) -> Iterator[str]:
        """The next level of the keys below `prefix`, each once, in order: names and `folders/`.

        `list_names("p/")` over p/a, p/b/1 and p/b/2 gives "a" and "b/".
        """

    def kept(self, prefix: str) -> Iterable[ObjectVersion]:
        """All versions of what is or was below a prefix; none if the bucket has no Object Lock.

        In key order, the newest version of each key first, with delete markers. If they may not be
        listed, it is a StoreError that no policy repeats.
        """

    def delete(self, keys: Iterable[str]) -> None:
        """Delete all keys; a missing key is not an error. Raises if a key could not be deleted."""

    def create_upload(self, key: str, *, crc64: bool = True) -> str:
        """Begin a multipart upload of an archived binlog and return its id.

        `crc64=False` requests no whole-object checksum (see `copy_part`). After a lost answer
        there may be two uploads: `list_uploads` shows them.
        """

    def list_uploads(self, key: str) -> Sequence[UploadInfo]:
        """The unfinished uploads of exactly this key, oldest first.

        UnsupportedError if the store cannot list them.
        """

    def uploads_below(self, prefix: str) -> Sequence[UploadInfo]:
        """Some of the unfinished uploads below a prefix: at most those of two pages.

        UnsupportedError if the store cannot list them.
        """

    def list_parts(self, key: str, upload_id: str) -> Sequence[PartInfo]:
        """Its parts by number; UploadMissingError if the upload is gone."""

    def upload_part(
        self, key: str, upload_id: str, number: int, body: Body | bytes, crc64: int | None = None
    ) -> PartInfo:
        """Send a part, or replace it; UploadMissingError if the upload is gone."""

    def copy_part(
        self,
        key: str,
        upload_id: str,
        number: int,
        source_key: str,
        *,
        size: int,
    ) -> PartInfo:
        """Copy an object of this size to a part, inside the store.

        All of it: S3 copies a range only of an object of more than 5 MB. UnsupportedError if the
        store cannot copy; or StoreError, because some stores cannot only if the upload was created
        with `crc64`. ObjectMissingError if there is no source object.
        """

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
        """Join the parts into the object, and check the object.

        StoreError if a part is not as listed, or is smaller than 5 MiB and not the last one, or if
        the object has another size or checksum. PreconditionError and UploadMissingError may mean
        that an earlier attempt of this call succeeded: look with `head`.
        """

    def abort_upload(self, key: str, upload_id: str) -> None:
        """Delete the upload and its parts; a missing upload is not an error."""

    def check_access(self, prefix: str = "") -> None:
        """Check that the bucket exists, is at this endpoint, and can be listed below the prefix."""

    def close(self) -> None:
        """Close the connections. No method may be called afterwards."""
