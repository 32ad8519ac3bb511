"""Finds what is in the bucket under the keys of format 1.

Law: what is under `archive/` is written once. A key or document that is not ours is reported, never
touched and never guessed at.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice, takewhile
from operator import ge
from typing import TypeVar

from binlog2s3.archive.chunks import Chunk, Chunks
from binlog2s3.archive.codec import LINEAGE_ID, Document, too_large
from binlog2s3.archive.documents import Entry, EntryEnd, Lineage, LineageFloor
from binlog2s3.archive.layout import Kind, Layout, ParsedKey
from binlog2s3.archive.pages import name_at
from binlog2s3.archive.reader import Range, Readable, ranges_of
from binlog2s3.archive.writers import Heartbeat, Standby, Turn
from binlog2s3.binlog.names import BinlogName
from binlog2s3.binlog.scanner import Scanner
from binlog2s3.errors import (
    ArchiveError,
    DamageError,
    NoBinlogError,
    ObjectMissingError,
    ObjectTooLargeError,
    StoreError,
    UnsupportedError,
)
from binlog2s3.store.contract import ObjectInfo, Store
from binlog2s3.workers import both

LISTINGS = 3
"""How often chunks are listed until there is no hole: chunks may change during a listing."""
PAGE_KEYS = 1000
"""What a store lists in one request."""
_FORMAT_WITHIN = 512
"""A binlog's format event ends within so many bytes."""


@dataclass(slots=True)
class Contents:
    """What is listed of one lineage: its objects, by binlog.

    `chunks` are also those that are left of archived binlogs.
    """

    binlogs: dict[BinlogName, ObjectInfo] = field(default_factory=dict)
    entries: dict[BinlogName, ObjectInfo] = field(default_factory=dict)
    chunks: dict[BinlogName, dict[Chunk, ObjectInfo]] = field(default_factory=dict)

    def add(self, key: ParsedKey, info: ObjectInfo) -> None:
        """Add an object, if it is of a binlog."""
        if key.binlog is None:
            return
        if key.chunk is not None:
            self.chunks.setdefault(key.binlog, {})[key.chunk] = info
        else:
            (self.binlogs if key.kind == "binlog" else self.entries)[key.binlog] = info

    @property
    def names(self) -> list[BinlogName]:
        """All binlogs that have bytes, in order."""
        return sorted(self.binlogs.keys() | self.chunks.keys())

    @property
    def all_names(self) -> list[BinlogName]:
        """The same, and those of which only an entry is there."""
        return sorted(self.binlogs.keys() | self.entries.keys() | self.chunks.keys())

    def chunks_of(self, name: BinlogName) -> Chunks:
        return Chunks(frozenset(self.chunks.get(name, ())))

    @property
    def open(self) -> dict[BinlogName, Chunks]:
        """The chunks of the binlogs that are not archived."""
        return {name: self.chunks_of(name) for name in self.chunks.keys() - self.binlogs.keys()}

    @property
    def has_holes(self) -> bool:
        """Whether an open binlog has chunks after a hole."""
        return any(map(has_hole, self.open.values()))

    def size(self, name: BinlogName) -> int:
        """How many first bytes of a binlog can be read: all of it if it is archived."""
        return self.binlogs[name].size if name in self.binlogs else self.chunks_of(name).end

    @property
    def sizes(self) -> dict[BinlogName, int]:
        """The same of all binlogs that can be read, in order."""
        sizes = {name: self.size(name) for name in self.names}
        return {name: size for name, size in sizes.items() if size or name in self.binlogs}


@dataclass(frozen=True, slots=True, kw_only=True)
class LastWriter:
    """The object of the writer with the greatest rank. `beat` is None if `error` says why."""

    rank: tuple[int, str]
    info: ObjectInfo
    beat: Heartbeat | None = None
    error: ArchiveError | None = None


AnyDocument = TypeVar("AnyDocument", bound=Document)
Result = TypeVar("Result")


def read(store: Store, key: str, kind: type[AnyDocument]) -> AnyDocument:
    """The document under this key, checked. Every document of the bucket is read here.

    Raises ObjectMissingError, and ArchiveError if it is not a valid document of this kind and key.
    """
    return kind.from_json(fetch(store, key, kind.MOST), key)


def fetch(store: Store, key: str, most: int) -> bytes:
    """The bytes of a document. Raises ArchiveError if there are more than `most`."""
    try:
        return store.get(key, most=most)
    except ObjectTooLargeError as error:
        raise too_large(key, most) from error


def refuse_left(store: Store, keys: Sequence[str]) -> None:
    """Look whether deleted keys are gone. Raises StoreError if one of them is still there.

    There are stores and proxies that answer a delete with 200, and delete nothing.
    """
    folders = dict[str, list[str]]()
    for key in keys:
        folders.setdefault(key[: key.rfind("/") + 1], []).append(key)
    left = list[str]()
    for folder, deleted in folders.items():
        first, last, wanted = min(deleted), max(deleted), frozenset(deleted)
        listed = (info.key for info in store.list(folder, start_after=first[:-1]))
        left += [key for key in takewhile(partial(ge, last), listed) if key in wanted]
    if left:
        raise StoreError(
            f"the store says that it deleted {len(keys)} objects, and {len(left)} of them are "
            f"there: {left[0]}",
            hint="`binlog2s3 check` tries deletes; does a proxy answer for the store, or does it "
            "need time to delete? what is left is deleted by the next run",
        )


class Catalog:
    """Reads one source's part of the bucket. Every method asks the store again.

    `foreign` collects keys that are not of format 1, and why where that is more than their name.
    They are ignored, and reported once.
    `has_retired`: `lineages` has seen a document that says that the source has ended;
    `has_drills`: it has seen that there are results of drills. The catalog has a method for each
    question to the bucket, so that all answers skip foreign keys in the same way.
    """

    def __init__(self, store: Store, layout: Layout) -> None:
        self.store = store
        self.layout = layout
        self.foreign: dict[str, str] = {}
        self.has_retired = False
        self.has_drills = False

    def writers(self) -> dict[tuple[int, str], ObjectInfo]:
        """The writers' objects by rank (generation, token). One listing."""
        return self._writers(self.store.list(self.layout.writers))

    def listed(
        self, prefix: str, kind: Kind, infos: Iterable[ObjectInfo] | None = None
    ) -> Iterator[tuple[ParsedKey, ObjectInfo]]:
        """The objects of this kind below a prefix; others are foreign. One listing.

        `infos`: what it has shown, if it was made.
        """
        for info in self.store.list(prefix) if infos is None else infos:
            key = self.layout.parsed(info.key)
            if key is not None and key.kind == kind:
                yield key, info
            else:
                self.foreign[info.key] = ""

    def documents(
        self, prefix: str, kind: Kind, document: type[AnyDocument]
    ) -> Iterator[tuple[AnyDocument, ObjectInfo]]:
        """The documents of this kind below a prefix. One listing, one small GET for each.

        One that is deleted meanwhile is skipped; one that cannot be read is foreign.
        """
        for _, info in [*self.listed(prefix, kind)]:
            try:
                yield read(self.store, info.key, document), info
            except ObjectMissingError:
                continue
            except ArchiveError:
                self.foreign[info.key] = ""

    def live(self) -> tuple[dict[tuple[int, str], ObjectInfo], list[str]]:
        """The writers' objects, and the keys below `live/` of chunks and of what is not ours.

        One listing.
        """
        infos = list(self.store.list(self.layout.live))
        keys = [(info.key, self.layout.parsed(info.key)) for info in infos]
        aside = ("writer", "standby", "probe", "backup-run")
        others = [key for key, what in keys if what is None or what.kind not in aside]
        writers = self._writers(info for info in infos if info.key.startswith(self.layout.writers))
        return writers, others

    def strange_uploads(self) -> list[str]:
        """Keys of unfinished uploads that are not of a binlog, if the store lists uploads."""
        keys: set[str] = set()
        for prefix in (self.layout.archive, self.layout.live):
            try:
                keys |= {upload.key for upload in self.store.uploads_below(prefix)}
            except UnsupportedError:
                break
        ours = ("binlog", "probe", "stored")
        known = {key for key in keys if (what := self.layout.parsed(key)) and what.kind in ours}
        return sorted(key for key in keys - known if not self.layout.is_probe_upload(key))

    def _writers(self, infos: Iterable[ObjectInfo]) -> dict[tuple[int, str], ObjectInfo]:
        writers = self.listed(self.layout.writers, "writer", infos)
        return {key.rank: info for key, info in writers}

    def heartbeats(self, ranks: Iterable[tuple[int, str]]) -> list[Heartbeat]:
        """The heartbeats of these writers, without those that were deleted meanwhile."""
        found = []
        for generation, token in ranks:
            key = self.layout.writer(generation, token)
            try:
                found.append(read(self.store, key, Heartbeat))
            except ObjectMissingError:
                continue
            except ArchiveError:
                self.foreign[key] = ""
        return found

    def last_writer(
        self, listed: Mapping[tuple[int, str], ObjectInfo] | None = None
    ) -> LastWriter | None:
        """The last writer's object; None if there is none. One listing, one GET.

        An object that is deleted between the two has a successor, so it looks again. `listed`: the
        writers that a listing has already shown.
        """
        for _ in range(LISTINGS):
            writers, listed = self.writers() if listed is None else listed, None
            if not writers:
                break
            rank = max(writers)
            info = writers[rank]
            try:
                beat = read(self.store, self.layout.writer(*rank), Heartbeat)
            except ObjectMissingError:
                continue
            except ArchiveError as error:
                return LastWriter(rank=rank, info=info, error=error)
            return LastWriter(rank=rank, info=info, beat=beat)
        return None

    def standbys(self) -> list[tuple[Standby, ObjectInfo]]:
        """The standbys, in order of their start: see `documents`."""
        standbys = self.documents(self.layout.standbys, "standby", Standby)
        return sorted(standbys, key=lambda standby: standby[0].token)

    def turn(self, known: Turn | None = None) -> Turn | None:
        """The last turn, which names the current lineage; None before the first.

        One listing, one GET unless it is `known`. Raises ArchiveError if it is not of this format.
        """
        turns = {key.number: info.key for key, info in self.listed(self.layout.turns, "turn")}
        if not turns:
            return None
        last = max(turns)
        if known is not None and known.number == last:
            return known
        return read(self.store, turns[last], Turn)

    def lineages(self, unreadable: list[ArchiveError] | None = None) -> list[Lineage]:
        """All lineages with their floors, oldest first. One listing; for each, another and a GET.

        The error of a lineage that cannot be read is added to `unreadable`. Without such a list, it
        is raised: ArchiveError.
        """
        found = []
        for name in self.store.list_names(self.layout.archive):
            layout = self.layout
            if layout.archive + name in _documents(layout):
                self.has_drills |= layout.archive + name == layout.drills
                continue
            if self.layout.archive + name == self.layout.retired:
                self.has_retired = True
                continue
            if not LINEAGE_ID.fullmatch(name.rstrip("/")):
                self.foreign[self.layout.archive + name] = ""
                continue
            id_ = name.rstrip("/")
            document = partial(read, self.store, self.layout.lineage(id_), Lineage)
            try:
                found.append(self._with_floor(*both(document, partial(self._floors, id_))))
            except ObjectMissingError:
                self.foreign[self.layout.archive + name] = ""
            except ArchiveError as error:
                if unreadable is None:
                    raise
                unreadable.append(error)
        return sorted(found, key=lambda lineage: lineage.id)

    def with_floor(self, lineage: Lineage) -> Lineage:
        """The lineage with its greatest floor now; None if it has none. One listing, one GET.

        A floor that cannot be read, or is at no binlog of this lineage, is foreign.
        """
        return self._with_floor(lineage, self._floors(lineage.id))

    def _floors(self, lineage: str) -> Sequence[ObjectInfo]:
        return [*self.store.list(self.layout.floors(lineage))]

    def _with_floor(self, lineage: Lineage, floors: Iterable[ObjectInfo]) -> Lineage:
        prefix = self.layout.floors(lineage.id)
        keys = {key.number: info.key for key, info in self.listed(prefix, "floor", floors)}
        early = {number for number in keys if number <= lineage.first_binlog.number}
        self.foreign |= {keys.pop(number): "" for number in early}
        for number in sorted(keys, reverse=True):
            with suppress(ObjectMissingError, ArchiveError):
                floor = read(self.store, keys[number], LineageFloor)
                if floor.binlog == name_at(lineage, number):
                    return replace(lineage, floor=floor)
            self.foreign[keys[number]] = ""
        return replace(lineage, floor=None)

    def archived(self, lineage: Lineage, *, entries: bool = True) -> Contents:
        """The archived binlogs and the entries of a lineage. A complete listing of each."""
        layout = self.layout
        return Contents(
            binlogs=self.named(layout.binlogs(lineage.id)),
            entries=self.named(layout.entries(lineage.id)) if entries else {},
        )

    def contents(self, lineage: Lineage, *, entries: bool = True) -> Contents:
        """The binlogs of a lineage, archived and open. Three listings; two without `entries`.

        Chunks first, so that a binlog that is archived meanwhile is never missed.
        """

        def look() -> Contents:
            chunks = self.chunked(lineage).chunks
            return replace(self.archived(lineage, entries=entries), chunks=chunks)

        return settled(look, lambda found: not found.has_holes)

    def live_lineages(self) -> set[str]:
        """The ids of all lineages that have chunks, even without a lineage.json. One listing."""
        found = set()
        for name in self.store.list_names(self.layout.live):
            if LINEAGE_ID.fullmatch(name.rstrip("/")):
                found.add(name.rstrip("/"))
                continue
            key = self.layout.live + name
            if key not in _of_processes(self.layout) and self.layout.parsed(key) is None:
                self.foreign[key] = ""
        return found

    def growing(self) -> tuple[dict[tuple[int, str], ObjectInfo], dict[str, Contents]]:
        """The writers' objects, and all chunks by lineage id. One listing."""
        infos, writers = list[ObjectInfo](), list[ObjectInfo]()
        for info in self.store.list(self.layout.live):
            (writers if info.key.startswith(self.layout.writers) else infos).append(info)
        return self._writers(writers), self.look(infos)

    def first(self, lineage: Lineage) -> tuple[dict[BinlogName, ObjectInfo], bool]:
        """The first archived binlogs of a lineage, and whether they are all. One request.

        The store sorts names as text, so names with more digits may come first.
        """
        prefix = self.layout.binlogs(lineage.id)
        infos = [*islice(self.store.list(prefix), PAGE_KEYS)]
        return self._named(infos), len(infos) < PAGE_KEYS

    def entry(self, lineage: Lineage, name: BinlogName) -> Entry:
        """The entry of an archived binlog. Raises ObjectMissingError if it has none."""
        key = self.layout.entry(lineage.id, name)
        return read(self.store, key, Entry)

    def with_start(self, lineage: Lineage, entry: Entry) -> Entry:
        """The entry, with `started` from the binlog's first bytes if an older version wrote it.

        Only of MariaDB, whose binlogs show in this way that rows are in none of them.
        """
        if entry.started is not None or lineage.flavour != "mariadb":
            return entry
        scanner, key = Scanner(), self.layout.binlog(lineage.id, entry.name)
        with suppress(DamageError, ObjectMissingError):
            for block in self.store.open(key, 0, min(entry.size, _FORMAT_WITHIN)):
                scanner.feed(block)
        if not scanner.formats:
            return entry
        return replace(entry, started=scanner.formats[0].created > 0)

    def entry_end(self, lineage: Lineage, name: BinlogName) -> EntryEnd:
        """The end of an archived binlog, from its entry; ObjectMissingError if it has none."""
        key = self.layout.entry(lineage.id, name)
        return read(self.store, key, EntryEnd)

    def chunked(self, lineage: Lineage) -> Contents:
        """The chunks of all binlogs of a lineage. One listing."""
        found = self.look(self.store.list(f"{self.layout.live}{lineage.id}/"))
        return found.get(lineage.id, Contents())

    def chunks(self, lineage: Lineage, name: BinlogName) -> Chunks:
        """The chunks of a binlog. One listing."""
        return Chunks(frozenset(self._chunks(lineage, name)))

    def _chunks(self, lineage: Lineage, name: BinlogName) -> dict[Chunk, ObjectInfo]:
        found = self.look(self.store.list(self.layout.chunks(lineage.id, name)))
        return found.get(lineage.id, Contents()).chunks.get(name, {})

    def sizes(self, lineage: Lineage) -> dict[BinlogName, int]:
        """The binlogs of a lineage with how much of each can be read, in order. Two listings."""
        return self.contents(lineage, entries=False).sizes

    def binlog(self, lineage: Lineage, name: BinlogName) -> Readable:
        """Where the bytes of a binlog are, and how to read them.

        Chunks are listed first, see `contents`. They are put in parallel, so there may be some
        after a hole: the binlog ends at the hole. A caller that knows of more bytes (from a
        heartbeat) asks for them with `Readable.blocks(end=...)`. Raises NoBinlogError if there is
        nothing to read, ArchiveError if what is there contradicts itself.
        """
        key, prefix = self.layout.binlog(lineage.id, name), self.layout.chunks(lineage.id, name)
        chunks, archived = settled(
            lambda: (self._chunks(lineage, name), self.store.head(key)),
            lambda found: found[1] is not None or not has_hole(Chunks(frozenset(found[0]))),
        )
        crc64 = self._crc64(lineage, name, archived.size) if archived else None
        whole = (Range(key, 0, archived.size, archived.last_modified),) if archived else ()
        ranges = whole or ranges_of(
            prefix, {chunk: info.last_modified for chunk, info in chunks.items()}
        )
        if not ranges:
            raise NoBinlogError(
                f"no byte of {name} is in lineage {lineage.id}: neither {key} nor chunks from "
                f"offset 0 on below {prefix}",
                hint="has `prune` deleted it meanwhile, or is it not yet written?",
            )
        return Readable(
            name=str(name),
            state="archived" if archived else "open",
            ranges=ranges,
            store=self.store,
            again=lambda: self.binlog(lineage, name),
            crc64=crc64,
        )

    def archived_behind(self, lineage: Lineage, name: BinlogName) -> list[BinlogName]:
        """The archived binlogs that come after this one. One listing, which begins there.

        Where the next name has more digits, the store sorts it before this one: then only that one.
        """
        following = name.next()
        if len(str(following)) > len(str(name)):
            key = self.layout.binlog(lineage.id, following)
            return [following] if self.store.head(key) else []
        prefix = self.layout.binlogs(lineage.id)
        found = self.named(prefix, begin=f"{name.prefix}.", start_after=str(name))
        return [other for other in found if other > name]

    def _crc64(self, lineage: Lineage, name: BinlogName, size: int) -> int | None:
        """The checksum of an archived binlog, from its entry; None if it has no entry yet."""
        try:
            end = self.entry_end(lineage, name)
        except ObjectMissingError:
            return None
        if end.size != size:
            key = self.layout.binlog(lineage.id, name)
            raise ArchiveError(
                f"{key} has {size} bytes, its entry says {end.size}",
                hint="an older version of one of them may be right, where the bucket is versioned",
            )
        return end.crc64

    def named(
        self, prefix: str, *, begin: str = "", start_after: str = "", end: str = ""
    ) -> dict[BinlogName, ObjectInfo]:
        """The objects of binlogs below a prefix, by binlog. One listing, with several requests.

        Only names that begin with `begin`, and come after `start_after` in text order; and only
        keys before `end`, at which the listing ends.
        """
        after = f"{prefix}{start_after}" if start_after else ""
        infos = self.store.list(f"{prefix}{begin}", start_after=after)
        if end:
            infos = takewhile(lambda info: info.key.encode() < end.encode(), infos)
        return self._named(infos)

    def _named(self, infos: Iterable[ObjectInfo]) -> dict[BinlogName, ObjectInfo]:
        found: dict[BinlogName, ObjectInfo] = {}
        for contents in self.look(infos).values():
            found |= contents.binlogs | contents.entries
        return found

    def look(self, infos: Iterable[ObjectInfo]) -> dict[str, Contents]:
        """What these objects show of each lineage, by its id.

        What is not of this format is foreign. Every listing of binlogs is looked at here.
        """
        found: dict[str, Contents] = {}
        for info in infos:
            key = self.layout.parsed(info.key)
            if key is None:
                self.foreign[info.key] = ""
            elif key.chunk is not None and key.chunk.size != info.size:
                why = f"it has {info.size} bytes, its name says {key.chunk.size}"
                self.foreign[info.key] = why
            elif key.lineage:
                found.setdefault(key.lineage, Contents()).add(key, info)
        return found


def settled(look: Callable[[], Result], is_whole: Callable[[Result], bool]) -> Result:
    """What a look at the bucket shows. Again if it is not whole: chunks change during a listing."""
    for _ in range(LISTINGS - 1):
        if is_whole(found := look()):
            return found
    return look()


def _documents(layout: Layout) -> tuple[str, ...]:
    """The prefixes below a source's archive that are of no lineage."""
    return layout.turns, layout.backups, layout.stored_backups, layout.drills


def _of_processes(layout: Layout) -> tuple[str, ...]:
    """The prefixes below a source's `live/` that are of no lineage."""
    return layout.writers, layout.standbys, layout.backup_runs


def has_hole(chunks: Chunks) -> bool:
    """Whether there are chunks after a hole."""
    return max((chunk.end for chunk in chunks), default=0) > chunks.end
