"""One binlog in the bucket: its chunks, its object, its entry, and how they are proved.

Each method is one blocking request, which a worker runs. `Plants` looks what somebody else put
there before.

Law: nothing is replaced. What is there already is compared, in the end byte by byte. A range is
sent only if its bytes are still those that the scanner saw.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from binlog2s3.archive.catalog import Catalog, fetch, read
from binlog2s3.archive.chunks import Chunk, Chunks
from binlog2s3.archive.codec import Document
from binlog2s3.archive.documents import EntryEnd
from binlog2s3.archive.evidence import Evidence
from binlog2s3.archive.parts import Part
from binlog2s3.archive.reader import Range, Readable, ranges_of
from binlog2s3.archive.reading import BinlogReading
from binlog2s3.binlog.checksum import composite_etag, crc64_of_blocks, crc64nvme
from binlog2s3.binlog.names import BinlogName
from binlog2s3.errors import (
    ArchiveError,
    DamageError,
    FloorError,
    ForkError,
    ObjectMissingError,
    PreconditionError,
    SpoolError,
    StoreError,
    TakenError,
    UnsupportedError,
    UploadMissingError,
)
from binlog2s3.formatting import us_of
from binlog2s3.log import Log
from binlog2s3.store.contract import ObjectVersion, SizedReader
from binlog2s3.store.requests import blocks_of, crc64_of, digests_of
from binlog2s3.store.s3 import Body, ObjectInfo, PartInfo, Reader, Store
from binlog2s3.stream.tail import Track
from binlog2s3.workers import both

T = TypeVar("T")
_log = Log("remote")
_MOST_SHOWN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What is known to be in the store of a binlog: the only memory of it.

    `asked`: the store was asked what it has, and no request has failed since. Until then nothing
    but its chunks is known. `object_there`: there is an object under its key; `verified`: it was
    compared with our bytes; `entry_there`: its entry is written; `cleared`: its chunks and
    unfinished uploads are deleted. `upload_id` is our unfinished upload, `parts` are those of it
    that have our bytes, by number; those `offered` were there already, and count once they were
    compared. `chunks` have our bytes; `named` are those among them that another process has put:
    their names say so, and they were not read. `listed` are chunks that were not compared yet.
    """

    asked: bool = True
    object_there: bool = False
    verified: bool = False
    entry_there: bool = False
    cleared: bool = False
    upload_id: str | None = None
    parts: Mapping[int, PartInfo] = field(default_factory=dict)
    offered: Mapping[int, PartInfo] = field(default_factory=dict)
    chunks: Chunks = field(default_factory=Chunks)
    listed: Chunks = field(default_factory=Chunks)
    named: frozenset[Chunk] = frozenset()

    @property
    def all_chunks(self) -> Chunks:
        """Those that have our bytes, and those that were not compared yet."""
        return self.chunks.plus(self.listed) if self.listed else self.chunks

    def without(self, chunks: frozenset[Chunk]) -> "Held":
        """The same without some of the chunks that have our bytes."""
        return replace(self, chunks=self.chunks.minus(chunks), named=self.named - chunks)

    def after_error(self) -> "Held":
        """What is still known after an error: chunks that the store has acknowledged stay."""
        return Held(asked=False, chunks=self.chunks, named=self.named)


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """Of chunks of another process, the `same` have our bytes; those `named` by their names alone.

    What is below the floor was read there.
    """

    same: frozenset[Chunk]
    named: frozenset[Chunk]


@dataclass(frozen=True, slots=True)
class _ReadBack:
    """Bytes that the spool does not have, or not all: `blocks` reads them from the bucket.

    The last block comes only once all bytes have the checksum `crc64`; else `wrong` is raised. So
    nobody ever gets other bytes as a whole.
    """

    size: int
    crc64: int
    blocks: Callable[[], Iterator[bytes]]
    wrong: FloorError

    def open(self) -> Reader:
        return _BlockReader(self.size, self.proved)

    def proved(self) -> Iterator[bytes]:
        held, size, crc64 = b"", 0, 0
        for block in self.blocks():
            if held:
                yield held
            held, size, crc64 = block, size + len(block), crc64nvme(block, crc64)
        if (size, crc64) != (self.size, self.crc64):
            raise self.wrong
        yield held


class _BlockReader(SizedReader):
    """Reads blocks as they come; to go elsewhere, it begins again. At most a block in memory."""

    def __init__(self, size: int, blocks: Callable[[], Iterator[bytes]]) -> None:
        super().__init__(size)
        self._open = blocks
        self._ends_at = 0  # of `_block`
        self._block = memoryview(b"")
        self._blocks: Iterator[bytes] | None = None

    def readinto(self, buffer: Any, /) -> int:
        if self._blocks is None or self._at < self._ends_at - len(self._block):
            self._blocks, self._ends_at, self._block = self._open(), 0, memoryview(b"")
        while self._at >= self._ends_at:
            block = next(self._blocks, None)
            if block is None:
                return 0
            self._block, self._ends_at = memoryview(block), self._ends_at + len(block)
        piece = self._block[len(self._block) - (self._ends_at - self._at) :][: len(buffer)]
        buffer[: len(piece)] = piece
        self._at += len(piece)
        return len(piece)

    def close(self) -> None:
        self._blocks = None
        super().close()


@dataclass(frozen=True, slots=True)
class _CheckedSlice:
    """A slice of the spool that is sent only if its bytes are still those that the scanner saw.

    It is read before each attempt: some stores accept wrong bytes, some keep what they refuse.
    """

    piece: Body
    crc64: int
    path: Path | None

    @property
    def size(self) -> int:
        return self.piece.size

    def open(self) -> Reader:
        """Raises SpoolError if it has changed."""
        if crc64_of(self.piece) != self.crc64:
            raise _changed(self.piece, self.path)
        return self.piece.open()


class RemoteBinlog:
    """The binlog of `track` in the bucket, under its lineage.

    `bodies` is the same store, for what sends the binlog's bytes.
    `is_hidden`: whether readers could take something else for an entry under this key.
    """

    def __init__(
        self,
        catalog: Catalog,
        lineage: str,
        track: Track,
        is_hidden: Callable[[str], bool],
        *,
        bodies: Store,
    ) -> None:
        layout = catalog.layout
        self._store = catalog.store
        self._bodies = bodies
        self._is_hidden = is_hidden
        self.grid = track.grid
        self._track = track
        self.key = layout.binlog(lineage, track.name)
        self.entry_key = layout.entry(lineage, track.name)
        self._chunks = layout.chunks(lineage, track.name)

    def wanted(self) -> Mapping[int, tuple[Part, int]]:
        """The parts whose bytes we have, with their checksums, by number."""
        track = self._track
        return {
            part.number: (part, track.digest.part_crc64(part))
            for part in self.grid.parts(track.size)
            if part.full or track.closed
        }

    def look_at_chunks(self) -> Held:
        """Look only what `put_whole` does not show: a key that is there refuses it."""
        refuses = self._store.refuses_replacing
        archived, chunks = both(
            lambda: None if refuses else self._store.head(self.key),
            lambda: Chunks(frozenset(_list_chunks(self._store, self._chunks))),
        )
        return Held(object_there=archived is not None, listed=chunks)

    def look(self, wanted: Mapping[int, tuple[Part, int]]) -> Held:
        """Look what is there. Of several unfinished uploads, take that with most of our parts.

        Its chunks are `listed` and its parts `offered`: some may have other bytes than ours.
        """
        archived, (uploads, chunks) = both(
            partial(self._store.head, self.key),
            partial(
                both,
                partial(_uploads, self._store, self.key),
                lambda: Chunks(frozenset(_list_chunks(self._store, self._chunks))),
            ),
        )
        best: tuple[str | None, tuple[PartInfo, ...]] = (None, ())
        most = (0, 0)
        for upload_id in () if archived else uploads:
            try:
                parts = tuple(self._store.list_parts(self.key, upload_id))
            except UploadMissingError:
                continue
            same = sum(self.is_ours(info, *wanted[info.number]) for info in parts
                       if info.number in wanted)  # fmt: skip
            if best[0] is None or (same, len(parts)) > most:
                best, most = (upload_id, parts), (same, len(parts))
        return Held(
            object_there=archived is not None,
            upload_id=best[0],
            offered={info.number: info for info in best[1]},
            listed=chunks,
        )

    def is_ours(self, info: PartInfo, part: Part, crc64: int) -> bool:
        """Whether a part in the store has exactly our bytes."""
        if info.size != part.end - part.begin:
            return False
        if info.crc64 is not None:
            return info.crc64 == crc64
        return info.etag.strip('"') == self.md5(part).hex()

    def chunk_key(self, chunk: Chunk) -> str:
        return f"{self._chunks}{chunk}"

    def put_chunk(self, chunk: Chunk) -> Chunk:
        """Put a range of the growing binlog as a chunk. It is durable when this returns it."""
        key = self.chunk_key(chunk)
        piece = self._checked(chunk.begin, chunk.end, chunk.crc64)
        with self._spool_unchanged(piece, chunk.crc64):
            self._note_md5(chunk, self._bodies.put(key, piece, crc64=chunk.crc64))
        return chunk

    def compare(self, chunks: Iterable[Chunk], *, read: bool = False) -> Compared:
        """Compare chunks of another process with our bytes.

        A chunk whose name has another checksum is read, with `read` each one. If its bytes are not
        those that its name says, twice, it is deleted: it is nobody's chunk, and would only stop
        readers. Once may be the network's fault, and nobody else may have the bytes. Otherwise,
        with another checksum, it is of another history, and ForkError is raised.
        """
        same, floor = set(), self._track.floor
        for chunk in sorted(chunks):
            beyond = chunk.end > self._track.size
            ours = not beyond and self._crc64_of(chunk.begin, chunk.end) == chunk.crc64
            if ours and not read:
                same.add(chunk)
                continue
            key, upto = self.chunk_key(chunk), min(chunk.end, self._track.size)
            whole, crc64 = self._crc64_there(chunk, upto)
            if whole != chunk.crc64:
                whole, crc64 = self._crc64_there(chunk, upto)
            if ours and whole == chunk.crc64:
                same.add(chunk)
            elif whole != chunk.crc64:
                _log.warning("deleted: it does not hold what its name says", key=key)
                self.delete_chunks([chunk])
            elif beyond and not self._track.closed and self._crc64_of(chunk.begin, upto) == crc64:
                same.add(chunk)  # the source could not send as much again
            else:
                what = "reaches beyond the end of" if beyond else "holds other bytes than"
                raise ForkError(
                    f"{key} {what} the source's {self._track.name}",
                    hint="two histories under one name: was the server restored or rolled back, or "
                    "did it lose commits in a crash? nothing was overwritten",
                    binlog=str(self._track.name),
                )
        named = () if read else (chunk for chunk in same if chunk.end > floor)
        return Compared(same=frozenset(same), named=frozenset(named))

    def _crc64_there(self, chunk: Chunk, upto: int) -> tuple[int, int]:
        """The CRC64NVME of a chunk's object, and of its bytes before the offset `upto`."""
        crc64 = first = 0
        at = chunk.begin
        for block in self._store.open(self.chunk_key(chunk), 0, chunk.size):
            crc64 = crc64nvme(block, crc64)
            first = crc64nvme(block[: max(0, upto - at)], first)
            at += len(block)
        return crc64, first

    def delete_chunks(self, chunks: Iterable[Chunk]) -> None:
        """Delete chunks that are not needed any more."""
        self._store.delete([self.chunk_key(chunk) for chunk in sorted(chunks)])

    def copy_part(self, upload_id: str, part: Part, chunk: Chunk) -> PartInfo:
        """Have the store copy a chunk into a part.

        Raises StoreError, not transient, if the chunk's object does not have the bytes that its
        name says: they would stay in the archive for ever.
        """
        key = self.chunk_key(chunk)
        try:
            info = self._store.copy_part(self.key, upload_id, part.number, key, size=chunk.size)
        except ObjectMissingError as error:
            raise ObjectMissingError(f"chunk {key} is not there any more") from error
        if info.etag.strip('"') == self.md5(part).hex():
            return info
        # With KMS an ETag is not an MD5 and proves nothing. The store's checksum of the chunk does.
        stored = self._store.head(key)
        crc64 = stored.crc64 if stored is not None else None
        if crc64 is None:
            crc64 = crc64_of_blocks(self._store.open(key, 0, chunk.size))
        if crc64 != chunk.crc64:
            raise StoreError(
                f"{key} does not hold the bytes that its name says",
                hint="something else wrote there, or the store lost them; the binlog is archived "
                "from the spool, but until then these bytes were not durable",
            )
        return info

    def create_upload(self, *, copying: bool) -> str:
        """Begin a multipart upload and return its id.

        If parts will be copied, without a whole-object checksum: MinIO does not copy into an upload
        with one.
        """
        return self._store.create_upload(self.key, crc64=not copying)

    def put_part(self, upload_id: str, part: Part, crc64: int) -> PartInfo:
        """Send one part. Raises SpoolError if the spool's bytes have changed.

        Bytes below the floor are read from the bucket.
        """
        piece = self._checked(part.begin, part.end, crc64)
        with self._spool_unchanged(piece, crc64):
            info = self._bodies.upload_part(self.key, upload_id, part.number, piece, crc64)
        if info.md5 is not None:
            self._track.md5s[part] = info.md5
        return info

    def put_whole(self) -> bool:
        """Put the closed binlog as one object; whether the answer proves that it has our bytes."""
        crc64 = self._track.digest.crc64
        piece = self._checked(0, self._track.size, crc64)
        with self._spool_unchanged(piece, crc64):
            info = where_absent(
                lambda condition: self._bodies.put(
                    self.key, piece, crc64=crc64, if_absent=condition, archived=True
                )
            )
        return info.crc64 == crc64

    def complete(self, upload_id: str, parts: Sequence[PartInfo]) -> None:
        """Make the binlog's object from its parts."""
        size, crc64 = self._track.size, self._track.digest.crc64
        where_absent(
            lambda condition: self._store.complete_upload(
                self.key, upload_id, parts, size=size, crc64=crc64, if_absent=condition
            )
        )

    def verify(self) -> None:
        """Prove that the object has exactly our bytes, see `holds`.

        Raises ArchiveError if it has others.
        """
        info, track = self._store.head(self.key), self._track
        if info is None:
            raise StoreError(f"{self.key} is not there any more", transient=True)
        if not holds(self._store, info, track.size, track.digest.crc64, self._etags):
            what = (
                f"{self.key} holds other bytes ({info.size}) than the source's {track.name} "
                f"({track.size})"
            )
            if self._store.head(self.entry_key) is None:
                raise ArchiveError(
                    what,
                    hint="it has no entry: was it put there by something else? move it away; "
                    "nothing was overwritten, and the spool keeps our copy",
                )
            raise ForkError(
                what,
                hint="two histories under one name; nothing was overwritten",
                binlog=str(track.name),
            )

    def put_entry(self) -> None:
        """See the function `put_entry`."""
        put_entry(self._store, self.entry_key, self._track, is_hidden=self._is_hidden)

    def clear(self) -> None:
        """Delete the leftovers of a binlog that is archived now: see `sweep`."""
        abort_uploads(self._store, self.key)
        chunks = _list_chunks(self._store, self._chunks)
        _delete_inside(self._store, self._chunks, chunks, self._track.size)

    def _checked(self, begin: int, end: int, crc64: int) -> Body:
        """Our bytes [begin, end), to be sent only as they were when the scanner saw them.

        The bucket is looked at here, before the request: a store may lock the key that it writes.
        """
        if begin < self._track.floor:
            return self._read_back(begin, end, crc64)
        return _CheckedSlice(self._track.body(begin, end), crc64, self._track.path)

    def _read_back(self, begin: int, end: int, crc64: int) -> _ReadBack:
        gone = self._gone(begin, end)
        try:
            readable = self._readable()
        except ArchiveError as error:
            raise gone from error
        return _ReadBack(end - begin, crc64, lambda: self._ours(begin, end, readable), gone)

    def _gone(self, begin: int, end: int) -> FloorError:
        return FloorError(
            f"{self._track.name} from {begin} to {end} is needed again, and is no longer in the "
            f"bucket, which had all up to {self._track.floor}",
            hint="restart: the binlog is fetched again; what deleted its chunks in the bucket?",
        )

    def md5(self, part: Part) -> bytes:
        """The MD5 of a part's bytes. It is slow, so it is computed once."""
        md5s, crc64 = self._track.md5s, self._track.digest.part_crc64(part)
        if part not in md5s:
            # an MD5 of changed bytes would agree with an object of the changed bytes
            piece = self._checked(part.begin, part.end, crc64)
            read_crc64, md5 = digests_of(piece)
            if read_crc64 != crc64:
                raise _changed(piece, self._track.path)
            md5s[part] = md5
        return md5s[part]

    def _note_md5(self, chunk: Chunk, info: ObjectInfo) -> None:
        """Take a full chunk's ETag for its MD5, if the store has confirmed its CRC64NVME.

        If the ETag is none, as with KMS, no copy has it either, and the bytes are compared.
        """
        part = self.grid.at(chunk.begin)
        if (chunk.begin, chunk.end) == (part.begin, part.end) and info.crc64 == chunk.crc64:
            with suppress(ValueError):
                self._track.md5s[part] = bytes.fromhex(info.etag)

    def _crc64_of(self, begin: int, end: int) -> int:
        """CRC64NVME of our bytes [begin, end).

        What is below the floor is proved: that something is there does not make it ours. Raises
        FloorError if the bucket does not have it any more.
        """
        track, crc64 = self._track, 0
        if begin < track.floor:
            crc64 = self._crc64_below_floor(begin, min(end, track.floor))
        if end > track.floor:
            piece = track.body(max(begin, track.floor), end)
            for block in blocks_of(piece):
                crc64 = crc64nvme(block, crc64)
        return crc64

    def _crc64_below_floor(self, begin: int, end: int) -> int:
        track = self._track
        first = max(at for at in track.sums if at <= begin)
        last = min(at for at in track.sums if at >= end)
        whole = track.crc64_between(first, last)
        if (first, last) == (begin, end):
            return whole
        body = self._read_back(first, last, whole)
        at, crc64 = first, 0
        for block in body.proved():
            crc64 = crc64nvme(block[max(0, begin - at) : max(0, end - at)], crc64)
            at += len(block)
        return crc64

    def _ours(self, begin: int, end: int, readable: Readable) -> Iterator[bytes]:
        """Bytes [begin, end): from the bucket what is below the floor, the rest from the spool.

        Raises FloorError if the bucket does not have them any more.
        """
        floor = self._track.floor
        if begin < floor:
            try:
                yield from readable.blocks(begin, min(end, floor))
            except ArchiveError as error:
                raise self._gone(begin, end) from error
        if floor < end:
            yield from blocks_of(self._track.body(max(begin, floor), end))

    def _readable(self) -> Readable:
        """Lists chunks first, so that a binlog that another writer archives meanwhile is found."""
        in_chunks = self._in_chunks()
        archived = self._store.head(self.key)
        if archived is None:
            return in_chunks
        whole = Range(self.key, 0, archived.size, archived.last_modified)
        return replace(in_chunks, state="archived", ranges=(whole,), again=self._readable)

    def _in_chunks(self) -> Readable:
        return Readable(
            name=str(self._track.name),
            state="open",
            ranges=ranges_of(self._chunks, _list_chunks(self._store, self._chunks)),
            store=self._store,
            again=self._in_chunks,
        )

    def _etags(self) -> tuple[str, ...]:
        digests = [self.md5(part) for part in self.grid.parts(self._track.size)]
        if len(digests) == 1:
            return (digests[0].hex(), composite_etag(digests))
        return (composite_etag(digests),)

    @contextmanager
    def _spool_unchanged(self, piece: Body, crc64: int) -> Iterator[None]:
        """If the store refuses a body, find out whether the spool has changed."""
        try:
            yield
        except StoreError as error:
            if error.transient or crc64_of(piece) == crc64:
                raise
            raise _changed(piece, self._track.path) from error


class Plants:
    """What somebody put under keys of the archive before the streamer writes there.

    Law: under a key where a reader could not tell what the streamer writes from what was there
    before, nothing is written. A bucket without Object Lock keeps nothing that was deleted, and
    costs one request.

    Any thread may call the methods. `planted` are the keys that had something.
    """

    def __init__(self, catalog: Catalog) -> None:
        self._store = catalog.store
        self._layout = catalog.layout
        self._is_denied = False
        self.planted: frozenset[str] = frozenset()

    def in_lineage(self, lineage: str) -> bool:
        """Whether there was anything of a lineage that is to be new."""
        versions = self._kept(f"{self._layout.archive}{lineage}/")
        return self._told(versions)

    def turns(self, after: int) -> frozenset[int]:
        """The numbers of turns after this one that were used before."""
        keys = (
            (version, self._layout.parsed(version.key))
            for version in self._kept(self._layout.turns)
        )
        numbers = {
            version: key.number for version, key in keys if key is not None and key.number > after
        }
        self._told([*numbers])
        return frozenset(numbers.values())

    def hide_entry(self, key: str) -> bool:
        """Whether an entry under this key could be taken for one that was there before it.

        What is older than the document that is always written before it is not in question.
        """
        versions = [version for version in self._of(key) if version.size is not None]
        if not self._told(versions):
            return False
        before = Evidence(self._store, self._layout.sources).before(key)
        put = (
            [version.at for version in self._of(before) if version.size is not None]
            if before
            else []
        )
        return not put or any(version.at >= min(put) for version in versions)

    def _of(self, key: str) -> list[ObjectVersion]:
        return [version for version in self._kept(key) if version.key == key]

    def _kept(self, prefix: str) -> list[ObjectVersion]:
        try:
            return [*self._store.kept(prefix)]
        except StoreError as error:
            if error.transient:
                raise
            if not self._is_denied:
                self._is_denied = True
                _log.warning(
                    "not looked for what somebody put there before",
                    prefix=prefix,
                    error=error,
                    hint="the bucket has Object Lock: allow s3:ListBucketVersions",
                )
            return []

    def _told(self, kept: list[ObjectVersion]) -> bool:
        """Log each of these keys once; whether there are any."""
        for key in sorted({version.key for version in kept} - self.planted)[:_MOST_SHOWN]:
            versions = [str(version) for version in kept if version.key == key]
            _log.warning(
                "somebody wrote under this key before the streamer did",
                key=key,
                versions=", ".join(versions[:_MOST_SHOWN]),
                hint="who has keys of this bucket? docs/guides/bucket.md",
            )
        self.planted |= {version.key for version in kept}
        return bool(kept)


def read_archived(store: Store, key: str, name: BinlogName) -> BinlogReading | None:
    """Read an archived binlog that has no entry; None if there is none.

    Raises ArchiveError if it has damage, or is not whole.
    """
    info = store.head(key)
    if info is None:
        return None
    reading = BinlogReading(name)
    try:
        for block in store.open(key, 0, info.size):
            reading.feed(memoryview(block), us_of(info.last_modified))
    except DamageError as error:
        raise ArchiveError(f"its bytes are damaged: {error}") from error
    if not info.size or reading.size != info.size:
        raise ArchiveError(f"its last event ends at {reading.size} of {info.size} bytes")
    return reading


def put_entry(
    store: Store,
    key: str,
    binlog: BinlogReading,
    *,
    is_hidden: Callable[[str], bool] = lambda _: False,
) -> None:
    """Write the entry of an archived binlog under `key`. An entry that is there already stays.

    What was written is read again, unless the answer has its checksum. Raises ArchiveError if the
    entry that is there is of other bytes, and TakenError if none is there but it `is_hidden`:
    readers could not tell which it is.
    """
    document = binlog.entry(datetime.now(UTC)).to_json()
    EntryEnd.from_json(document, key)  # never write an entry that could not be read again
    crc64 = crc64nvme(document)
    try:
        if store.refuses_replacing or store.head(key) is None:
            if is_hidden(key):
                raise TakenError(
                    f"somebody wrote {key} before the streamer did, and deleted it",
                    hint="a new lineage begins with this binlog; who has keys of this bucket?",
                )
            info = where_absent(
                lambda condition: store.put(
                    key, document, crc64=crc64, if_absent=condition, kept=True
                )
            )
            if info.crc64 == crc64:
                return
    except PreconditionError:
        _log.info("entry was there already", key=key)
    if read(store, key, EntryEnd) != binlog.entry_end():
        raise ArchiveError(
            f"{key} describes another binlog than the one beside it",
            hint="was it changed by hand? remove it: the next start writes it again",
        )


def sweep(catalog: Catalog, lineage: str, name: BinlogName) -> None:
    """Abort a binlog's unfinished uploads, and delete its chunks if it is archived.

    They are left by other writers, by crashes, and by requests that were performed late.
    """
    store, layout = catalog.store, catalog.layout
    key, chunks = layout.binlog(lineage, name), layout.chunks(lineage, name)
    abort_uploads(store, key)
    left = list(_list_chunks(store, chunks))
    info = store.head(key) if left else None
    if info is not None:
        _delete_inside(store, chunks, left, info.size)


def holds(
    store: Store, info: ObjectInfo, size: int, crc64: int, etags: Callable[[], Iterable[str]]
) -> bool:
    """Whether an object has these bytes; `etags` are those that they can give.

    By the whole-object checksum if the store keeps one; otherwise by the ETag; otherwise by reading
    the object. A different ETag proves nothing.
    """
    if info.size != size:
        return False
    if info.crc64 is not None:
        return info.crc64 == crc64
    if info.etag.strip('"') in etags():
        return True
    return crc64_of_blocks(store.open(info.key, 0, size)) == crc64


def abort_uploads(store: Store, key: str) -> None:
    """Abort all unfinished uploads of a key, if the store can list them."""
    for upload_id in _uploads(store, key):
        store.abort_upload(key, upload_id)


def _delete_inside(store: Store, prefix: str, chunks: Iterable[Chunk], size: int) -> None:
    inside = [f"{prefix}{chunk}" for chunk in chunks if chunk.end <= size]
    if inside:
        store.delete(inside)


def _uploads(store: Store, key: str) -> list[str]:
    """The ids of a binlog's unfinished uploads; none if the store cannot list them."""
    try:
        return [upload.upload_id for upload in store.list_uploads(key)]
    except UnsupportedError:
        return []


def _list_chunks(store: Store, prefix: str) -> dict[Chunk, datetime]:
    """The chunks of a binlog, and when each was put."""
    chunks: dict[Chunk, datetime] = {}
    for info in store.list(prefix):
        try:
            chunk = Chunk.parse(info.key.removeprefix(prefix))
        except ValueError:
            continue
        if chunk.size == info.size:
            chunks[chunk] = info.last_modified
    return chunks


def where_absent(write: Callable[[bool], T]) -> T:
    """Write only if nothing is there yet. A store without conditions writes without this check."""
    try:
        return write(True)
    except UnsupportedError as error:
        _log.recurring("the store knows no conditions, writing without", error=error)
        return write(False)


def put_once(store: Store, key: str, document: Document) -> bool:
    """Write a document that nothing replaces; False if it was there already, as an answer was lost.

    Raises PreconditionError if there is another one, ArchiveError if it could not be read again.
    """
    data = document.to_json()
    document.from_json(data, key)
    try:
        where_absent(lambda absent: store.put(key, data, if_absent=absent, kept=True))
    except PreconditionError:
        if fetch(store, key, document.MOST) != data:
            raise
        return False
    return True


def _changed(piece: Body, path: Path | None) -> SpoolError:
    return SpoolError(
        f"{path} changed after it was read ({piece.size} bytes)",
        hint="check the spool's disk and restart: the binlog is fetched again",
    )
