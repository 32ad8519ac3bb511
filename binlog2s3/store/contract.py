"""What binlog2s3 asks of a bucket: the values that travel, and each operation's promise.

Place: between the archive's logic, which sees only this, and `s3`, which keeps the promises
with boto3. Law: no boto3 here; every implementation passes the one suite in tests/contract.
"""

import io
import os
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal, Protocol

from binlog2s3.errors import SpoolError, StoreError

OnError = Callable[[StoreError, int, float], None]
"""Called after each failed attempt that will be repeated: error, its number, seconds to wait."""

OnOver = Callable[[], None]
"""Called, in the same thread, when a request that had failed succeeds or is given up."""

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
"""The classes that a GET reads at once; from the others a restore would have to wait for hours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreConfig:
    """Where the bucket is and how to speak to it. Keys come from boto3's own chain.

    `checksum`: auto sends CRC64NVME where the store takes it, else Content-MD5; crc64nvme demands
    that the store confirms it; md5 sends Content-MD5; none sends no digest but the one that is
    part of the signature.
    """

    bucket: str
    endpoint_url: str | None = None
    region: str | None = None
    addressing_style: Literal["auto", "path", "virtual"] = "auto"
    profile: str | None = None
    storage_class: str | None = None
    sse: Literal["AES256", "aws:kms"] | None = None
    sse_kms_key_id: str | None = None
    checksum: Literal["auto", "crc64nvme", "md5", "none"] = "auto"
    concurrency: int = 8
    connect_timeout_seconds: float = 10.0
    read_timeout_seconds: float = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How long to try. `attempts=None` is patient: for ever, until the stop event is set.

    The n-th wait is random, up to `first_delay_seconds` doubled n times, never above
    `max_delay_seconds`.
    """

    attempts: int | None
    first_delay_seconds: float = 0.5
    max_delay_seconds: float = 30.0


PREFLIGHT = RetryPolicy(attempts=3)


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectInfo:
    """An object as the store describes it; `crc64` is of the whole object, where it keeps one."""

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
    """A part of an unfinished upload; `crc64` where the store has checked and kept it."""

    number: int
    size: int
    etag: str
    crc64: int | None


class Reader(Protocol):
    """A seekable binary file, as far as sending it needs."""

    def read(self, size: int = -1, /) -> bytes:
        """Up to `size` bytes; b"" at the end."""

    def seek(self, offset: int, whence: int = 0, /) -> int:
        """Go there; return where that is."""

    def tell(self) -> int:
        """Where the next read begins."""

    def close(self) -> None:
        """Give the file back."""


class Body(Protocol):
    """Bytes to be sent: their number, and a way to read them from the beginning, again and again.

    `open` is called anew at each attempt and the reader closed after it.
    """

    @property
    def size(self) -> int:
        """How many bytes there are."""

    def open(self) -> Reader:
        """A fresh reader at the first byte."""


@dataclass(frozen=True, slots=True)
class FileSlice:
    """Bytes `begin` to `end` of a file: what a part or a chunk of the spool is.

    Reading raises SpoolError where the file is gone, unreadable or shorter than `end`: never are
    fewer bytes sent than announced.
    """

    path: Path
    begin: int
    end: int

    @property
    def size(self) -> int:
        """How many bytes the slice has."""
        return self.end - self.begin

    def open(self) -> Reader:
        """A reader with a file descriptor of its own. Raises SpoolError where there is no file."""
        reader = _SlicesReader((self,))
        reader.opened(0)
        return reader


@dataclass(frozen=True, slots=True)
class Pieces:
    """Several slices, one after the other: a part whose bytes lie in more than one file.

    Reading raises SpoolError as that of a slice does. A file is opened only when reading comes to
    it: until then nobody has looked whether it is there.
    """

    slices: tuple[FileSlice, ...]

    @property
    def size(self) -> int:
        """How many bytes they have together."""
        return sum(piece.size for piece in self.slices)

    def open(self) -> Reader:
        """A reader across the joints; it holds one file descriptor at most."""
        return _SlicesReader(self.slices)


class _SlicesReader(io.RawIOBase):
    """Reads by pread, so it shares no position with anybody; holds one file descriptor at most.

    A read that fails moves nothing, so it can be made again.
    """

    def __init__(self, slices: tuple[FileSlice, ...]) -> None:
        self._slices = slices
        self._ends = list(accumulate(piece.size for piece in slices))
        self._size = self._ends[-1] if slices else 0
        self._at = 0
        self._index, self._fd = -1, -1

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

    def readinto(self, buffer: Any, /) -> int:
        data = self.read(len(buffer)) or b""
        buffer[: len(data)] = data
        return len(data)

    def read(self, size: int | None = -1, /) -> bytes:
        """All that was asked for, across the joints: a short read in the middle surprises some."""
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
        """Some of the bytes from `at` on, at most to `end`, all of one slice."""
        index = bisect_right(self._ends, at)
        piece = self.opened(index)
        offset = piece.end - (self._ends[index] - at)
        try:
            data = os.pread(self._fd, min(end, self._ends[index]) - at, offset)
        except OSError as exc:
            raise SpoolError(f"cannot read {piece.path} at {offset}: {exc.strerror}") from exc
        if not data:
            raise SpoolError(
                f"{piece.path} ends at {offset}, before {piece.end}: it got shorter",
                hint="something else writes into the spool; it belongs to one streamer alone",
            )
        return data

    def opened(self, index: int) -> FileSlice:
        """That slice, its file open; the one before it is closed. Raises SpoolError."""
        piece = self._slices[index]
        if self._index != index:
            self._drop()
            try:
                self._fd, self._index = os.open(piece.path, os.O_RDONLY | os.O_CLOEXEC), index
            except OSError as exc:
                raise SpoolError(f"cannot read {piece.path}: {exc.strerror}") from exc
        return piece

    def _drop(self) -> None:
        fd, self._fd, self._index = self._fd, -1, -1
        if fd >= 0:
            os.close(fd)

    def close(self) -> None:
        self._drop()
        super().close()


class Store(Protocol):
    """What binlog2s3 needs of a bucket. Every implementation passes the suite in tests/contract.

    Keys are whole keys, prefix included. Offsets are bytes, `end` is exclusive. Every failure is
    a StoreError, or a SpoolError where a body could not be read or has changed; nothing else. A
    write that failed may have happened all the same (the reply was lost): look before concluding.
    Methods may be called from several threads at once.
    """

    def put(
        self,
        key: str,
        body: Body | bytes,
        *,
        crc64: int | None = None,
        if_absent: bool = False,
        archived: bool = False,
    ) -> ObjectInfo:
        """Write the object whole; when this returns, it is durable and readable.

        `crc64` is what the caller computed when it read the bytes: if the body reads differently
        now, the store refuses it. `if_absent`: PreconditionError where the key exists, which may
        be this very call's own lost first attempt; without it the object is replaced.
        `archived`: gets the configured storage class; everything else lies in the default one.
        """

    def get(
        self, key: str, begin: int = 0, end: int | None = None, *, most: int | None = None
    ) -> bytes:
        """The bytes, in memory, of exactly this range; `end=None` is up to the object's end.

        ObjectMissingError where there is none, StoreError where it is shorter than `end`,
        ObjectTooLargeError where there are more than `most`, of which none is read.
        """

    def open(self, key: str, begin: int, end: int) -> Iterator[bytes]:
        """The same in blocks of at most 1 MiB; a broken connection goes on where it broke."""

    def head(self, key: str) -> ObjectInfo | None:
        """What the store says of the object, its checksum included; None where there is none."""

    def list(self, prefix: str, *, start_after: str = "") -> Iterator[ObjectInfo]:
        """Every object below the prefix, in key order (as UTF-8 sorts), behind `start_after`.

        Always all pages. No checksums: a listing has none.
        """

    def list_names(self, prefix: str, *, delimiter: str = "/") -> Iterator[str]:
        """The next step of the keys below `prefix`, each once, in order: names and `folders/`.

        `list_names("p/")` over p/a, p/b/1 and p/b/2 gives "a" and "b/".
        """

    def delete(self, keys: Iterable[str]) -> None:
        """Delete them all; a key that does not exist is no error. Raises if any could not be."""

    def create_upload(self, key: str, *, crc64: bool = True) -> str:
        """Begin a multipart upload of an archived binlog and return its id.

        `crc64=False` asks for no whole-object checksum (see `copy_part`). After a lost reply
        there may be two: `list_uploads` shows them.
        """

    def list_uploads(self, key: str) -> Sequence[UploadInfo]:
        """The unfinished uploads of exactly this key, oldest first.

        UnsupportedError where the store cannot list them.
        """

    def uploads_below(self, prefix: str) -> Sequence[UploadInfo]:
        """Some of the unfinished uploads whose keys begin so: at most what two pages show.

        UnsupportedError where the store cannot list them.
        """

    def list_parts(self, key: str, upload_id: str) -> Sequence[PartInfo]:
        """Its parts by number; UploadMissingError where the upload is gone."""

    def upload_part(
        self, key: str, upload_id: str, number: int, body: Body | bytes, crc64: int | None = None
    ) -> PartInfo:
        """Send a part, or replace it; UploadMissingError where the upload is gone."""

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
        """Make a part of an object's range, inside the store.

        `whole`: the range is the whole object. S3 makes a part of a range only where the object
        has more than 5 MB, of a whole object always.
        UnsupportedError where it cannot; StoreError too, as some cannot only when the upload was
        created with `crc64`. ObjectMissingError where there is no such source.
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
        """Join the parts into the object and look at what lies there.

        StoreError where a part is not as listed, smaller than 5 MiB though not the last, or the
        object has another size or checksum. PreconditionError and UploadMissingError may mean
        that an earlier attempt of this very call was heard: look with `head`.
        """

    def abort_upload(self, key: str, upload_id: str) -> None:
        """Throw the upload and its parts away; one that is gone already is no error."""

    def check_access(self, prefix: str = "") -> None:
        """The bucket exists, is where we look for it, and may be listed below the prefix."""

    def close(self) -> None:
        """Give the connections back. Nothing may be called afterwards."""
