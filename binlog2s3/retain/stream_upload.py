"""Uploads a stream of unknown length while it comes: objects of parts, in bounded memory.

Law: nothing is readable before `complete`, and then only what was proved to have the bytes that
were written. One part is gathered, and as many are sent as there are workers: no more is in memory.
After `abort`, or a death, what is there are unfinished uploads of these keys.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from binlog2s3.archive.parts import Grid
from binlog2s3.archive.stored import MOST_OBJECTS, MOST_PARTS, PART_SIZE, StoredObject
from binlog2s3.binlog.checksum import composite_etag, crc64nvme
from binlog2s3.errors import (
    ArchiveError,
    PreconditionError,
    RecoveryError,
    UploadMissingError,
)
from binlog2s3.store.contract import PartInfo, Store
from binlog2s3.stream.remote import abort_uploads, holds, where_absent
from binlog2s3.workers import Workers

_WAIT_SECONDS = 1.0


@dataclass(slots=True, kw_only=True)
class _Object:
    """An object on its way: its upload, and what was sent of it."""

    key: str
    upload_id: str = ""
    size: int = 0
    crc64s: list[int] = field(default_factory=list)
    sent: dict[int, PartInfo] = field(default_factory=dict)

    def etags(self) -> tuple[str, ...]:
        """The ETag of the object, if the MD5 of each part is known."""
        md5s = [part.md5 for _, part in sorted(self.sent.items()) if part.md5 is not None]
        return (composite_etag(md5s),) if len(md5s) == len(self.sent) else ()


class StreamUpload:
    """`key_of` names the objects, from number 1 on. The workers are for this upload alone."""

    def __init__(
        self,
        store: Store,
        key_of: Callable[[int], str],
        workers: Workers,
        *,
        part_size: int = PART_SIZE,
        most_parts: int = MOST_PARTS,
    ) -> None:
        self._store = store
        self._key_of = key_of
        self._workers = workers
        self._grid = Grid(part_size)
        self._most_parts = most_parts
        self._objects: list[_Object] = []
        self._part = bytearray()
        self.size = 0
        """The bytes that were written."""

    @property
    def stored(self) -> tuple[StoredObject, ...]:
        """The objects, once all parts are sent."""
        return tuple(
            StoredObject.of(object_.size, object_.crc64s, self._grid) for object_ in self._objects
        )

    def write(self, data: bytes) -> None:
        """Take the next bytes; waits while all workers are busy. Raises StoreError."""
        self._part += data
        self.size += len(data)
        while len(self._part) >= (length := self._grid.length(self._next())):
            piece = bytes(memoryview(self._part)[:length])
            del self._part[:length]
            self._send(piece)

    def end(self) -> None:
        """No more bytes come: send the rest, and wait until all parts are sent."""
        if self._part:
            piece = bytes(self._part)
            self._part.clear()
            self._send(piece)
        while self._workers.busy:
            self._take()

    def complete(self) -> None:
        """Make the objects, and prove them. Raises ArchiveError if one has other bytes."""
        for object_, stored in zip(self._objects, self.stored, strict=True):
            try:
                self._complete(object_, stored.crc64)
            except (PreconditionError, UploadMissingError):  # done, and the answer was lost?
                if self._store.head(object_.key) is None:
                    raise
            info = self._store.head(object_.key)
            if info is None or not holds(
                self._store, info, object_.size, stored.crc64, object_.etags
            ):
                raise ArchiveError(
                    f"{object_.key} does not have the bytes that were sent",
                    hint="does something else write there? nothing was registered",
                )
            abort_uploads(self._store, object_.key)  # those of a create whose answer was lost

    def abort(self) -> None:
        """Abort the uploads, after the requests that are under way. Raises StoreError."""
        while self._workers.busy:
            self._workers.take(_WAIT_SECONDS)
        for object_ in self._objects:
            if object_.upload_id:
                self._store.abort_upload(object_.key, object_.upload_id)
            abort_uploads(self._store, object_.key)

    def _complete(self, object_: _Object, crc64: int) -> None:
        parts = [part for _, part in sorted(object_.sent.items())]
        where_absent(
            lambda absent: self._store.complete_upload(
                object_.key,
                object_.upload_id,
                parts,
                size=object_.size,
                crc64=crc64,
                if_absent=absent,
            )
        )

    def _next(self) -> int:
        """The number of the next part in its object."""
        last = len(self._objects[-1].crc64s) if self._objects else self._most_parts
        return 1 if last >= self._most_parts else last + 1

    def _send(self, piece: bytes) -> None:
        number, crc64 = self._next(), crc64nvme(piece)
        if number == 1:
            if len(self._objects) == MOST_OBJECTS:
                raise RecoveryError(
                    f"the stream has more than {self.size} bytes: that is too much",
                    hint="compress it, or store it elsewhere and register it: `backup add`",
                )
            self._objects.append(_Object(key=self._key_of(len(self._objects) + 1)))
        object_ = self._objects[-1]
        object_.size += len(piece)
        object_.crc64s.append(crc64)
        if number == 1:
            self._begin(object_, piece, crc64)
            return
        while self._workers.busy >= self._workers.count:
            self._take()
        send = self._store.upload_part
        self._workers.submit(
            object_, lambda: send(object_.key, object_.upload_id, number, piece, crc64)
        )

    def _begin(self, object_: _Object, piece: bytes, crc64: int) -> None:
        """Send the first part alone: it shows whether the store takes parts with a checksum.

        If not, the store has aborted the upload; the next one is without.
        """
        for is_last in (False, True):
            object_.upload_id = self._store.create_upload(object_.key)
            try:
                object_.sent[1] = self._store.upload_part(
                    object_.key, object_.upload_id, 1, piece, crc64
                )
            except UploadMissingError:
                if is_last:
                    raise
            else:
                return

    def _take(self) -> None:
        outcome = self._workers.take(_WAIT_SECONDS)
        if outcome is None:
            return
        if outcome.error is not None:
            raise outcome.error
        object_, part = outcome.token, outcome.value
        assert isinstance(object_, _Object)  # noqa: S101 - as it was submitted
        assert isinstance(part, PartInfo)  # noqa: S101 - what `upload_part` returns
        object_.sent[part.number] = part
