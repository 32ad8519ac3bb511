"""What lies in the bucket: the keys of format 1, and what is found under them.

Place in the flow: the uploader and the daemon write under the keys of `Layout`, everything that
reads the bucket reads through `Catalog`. `documents` has what the objects say.

Law: what is under `archive/` is written once. A key or document that is not ours is never touched
and never guessed at: it is named and left alone.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import ClassVar, Protocol, Self, TypeVar

from binlog2s3.archive.chunks import Chunk, Chunks
from binlog2s3.archive.documents import (
    Entry,
    EntryEnd,
    Heartbeat,
    Lineage,
    Standby,
    Turn,
    crc64_of,
)
from binlog2s3.archive.fields import LINEAGE_ID, SOURCE, too_large
from binlog2s3.archive.pages import SPAN, page_name
from binlog2s3.archive.reader import Range, Readable, State, ranges_of
from binlog2s3.binlog.names import BinlogName
from binlog2s3.errors import (
    ArchiveError,
    ObjectMissingError,
    ObjectTooLargeError,
    StoreError,
    UnsupportedError,
)
from binlog2s3.store.contract import ObjectInfo, Store

_MOST_NAMES = 10
_PROBE = re.compile(r"check-[0-9a-f]{8}/.*")
_PROBE_UPLOAD = re.compile(r"check-[0-9a-f]{8}/upload")
_WRITER = re.compile(r"([0-9]{6,18})-([0-9a-f]{8,32})\.json")
_STANDBY = re.compile(r"([0-9a-f]{8,32})\.json")
_TURN = re.compile(r"([0-9]{8,18})\.json")
GENERATION_MOST = 10**18 - 1
"""The greatest generation that a key may have, and the greatest number of a turn."""

LISTINGS = 3
"""How often chunks are listed for a hole to close: it may be of the listing alone."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The keys of one source under a prefix (which may be empty)."""

    prefix: str
    source: str

    @property
    def sources(self) -> str:
        """Prefix of the archives of all sources."""
        return f"{self._root()}archive/"

    @property
    def archive(self) -> str:
        """Prefix of what is written once."""
        return f"{self.sources}{self.source}/"

    @property
    def writers(self) -> str:
        """Prefix of the writers' objects."""
        return f"{self.live}writers/"

    @property
    def standbys(self) -> str:
        """Prefix of the objects of the processes that stand by."""
        return f"{self.live}standbys/"

    def standby(self, token: str) -> str:
        """Key of one of them."""
        return f"{self.standbys}{token}.json"

    def is_standby(self, key: str) -> bool:
        """Whether a key is the object of a process that stands by."""
        at = key.removeprefix(self.standbys)
        return key.startswith(self.standbys) and bool(_STANDBY.fullmatch(at))

    def lineage(self, lineage: str) -> str:
        """Key of a lineage's description."""
        return f"{self.archive}{lineage}/lineage.json"

    @property
    def turns(self) -> str:
        """Prefix of what says which lineage is written."""
        return f"{self.archive}turns/"

    def turn(self, number: int) -> str:
        """Key of one of them; the greatest number counts."""
        return f"{self.turns}{number:08d}.json"

    def binlogs(self, lineage: str) -> str:
        """Prefix of a lineage's archived binlogs."""
        return f"{self.archive}{lineage}/binlogs/"

    def entries(self, lineage: str) -> str:
        """Prefix of a lineage's entries."""
        return f"{self.archive}{lineage}/entries/"

    def binlog(self, lineage: str, name: BinlogName) -> str:
        """Key of an archived binlog: the server's own file."""
        return f"{self.binlogs(lineage)}{name}"

    def entry(self, lineage: str, name: BinlogName) -> str:
        """Key of an archived binlog's entry."""
        return f"{self.entries(lineage)}{name}.json"

    def pages(self, lineage: str) -> str:
        """Prefix of a lineage's pages."""
        return f"{self.archive}{lineage}/pages/"

    def page(self, lineage: str, first: int, span: int = SPAN) -> str:
        """Key of the page that begins with the binlog number `first`; see `pages.first_of`."""
        return f"{self.pages(lineage)}{page_name(first, span)}"

    @property
    def live(self) -> str:
        """Prefix of what comes and goes: the writers' objects and the chunks of all lineages."""
        return f"{self._root()}live/{self.source}/"

    def chunks(self, lineage: str, name: BinlogName) -> str:
        """Prefix of the chunks of a binlog that still grows."""
        return f"{self.live}{lineage}/{name}/"

    def chunk(self, lineage: str, name: BinlogName, chunk: Chunk) -> str:
        """Key of one of them."""
        return f"{self.chunks(lineage, name)}{chunk}"

    def writer(self, generation: int, token: str) -> str:
        """Key of a writer's object."""
        return f"{self.writers}{generation:06d}-{token}.json"

    def is_binlog(self, key: str) -> bool:
        """Whether a key could be an archived binlog's."""
        lineage, _, rest = key.removeprefix(self.archive).partition("/")
        return bool(LINEAGE_ID.fullmatch(lineage)) and _is_name(rest.removeprefix("binlogs/"))

    def probes(self, token: str) -> str:
        """Prefix of what a preflight puts to see what it may, and deletes again."""
        return f"{self.live}check-{token}/"

    def probe_upload(self, token: str) -> str:
        """Key of the upload that a preflight begins to see what it may, and aborts."""
        return f"{self.archive}check-{token}/upload"

    def probe_objects(self, token: str) -> dict[str, str]:
        """Keys at which a preflight tries whether it may put an object of a kind, and makes none.

        A policy may tell the kinds apart; the keys look alike, and are of no lineage and writer.
        """
        folder = f"{self.archive}check-{token}/"
        return {
            "lineage": f"{folder}lineage.json",
            "turn": f"{self.turns}check-{token}.json",
            "binlog": f"{folder}binlogs/probe.000001",
            "entry": f"{folder}entries/probe.json",
            "writer": f"{self.writers}check-{token}.json",
        }

    def is_probe_upload(self, key: str) -> bool:
        """Whether a key is such an upload's."""
        at = key.removeprefix(self.archive)
        return key.startswith(self.archive) and bool(_PROBE_UPLOAD.fullmatch(at))

    def is_probe(self, key: str) -> bool:
        """Whether a key is such a preflight's: of no history, and soon gone."""
        found = key.startswith(self.live) and _PROBE.fullmatch(key.removeprefix(self.live))
        return bool(found)

    def is_chunk(self, key: str) -> bool:
        """Whether a key could be a chunk's."""
        lineage, _, rest = key.removeprefix(self.live).partition("/")
        binlog, _, chunk = rest.partition("/")
        try:
            Chunk.parse(chunk)
        except ValueError:
            return False
        return bool(LINEAGE_ID.fullmatch(lineage)) and _is_name(binlog)

    def _root(self) -> str:
        return f"{self.prefix}/" if self.prefix else ""


def _is_name(text: str) -> bool:
    try:
        BinlogName.parse(text)
    except ValueError:
        return False
    return True


PAGE_KEYS = 1000
"""What a store lists in one request."""
Growing = Mapping[BinlogName, Chunks]
"""The chunks of a lineage, by binlog."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Archived:
    """What one lineage has in the bucket: the binlogs and their entries, as listed, by name."""

    lineage: Lineage
    binlogs: Mapping[BinlogName, ObjectInfo]
    entries: Mapping[BinlogName, ObjectInfo]


@dataclass(frozen=True, slots=True)
class Listed:
    """A binlog of which the first `size` bytes can be read: all if archived, else so far."""

    name: BinlogName
    size: int
    state: State


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """What one lineage has in the bucket; `open` are the chunks of what is not archived."""

    archived: Archived
    open: Mapping[BinlogName, Chunks]

    @property
    def names(self) -> list[BinlogName]:
        """All binlogs, in their order."""
        return sorted(self.archived.binlogs.keys() | self.open.keys())


def _is_source(folder: str) -> bool:
    return folder.endswith("/") and bool(SOURCE.fullmatch(folder[:-1]))


class Document(Protocol):
    """A kind of document; `MOST` are the bytes that one may have."""

    MOST: ClassVar[int]

    @classmethod
    def from_json(cls, data: bytes, key: str) -> Self:
        """Read it; ArchiveError if it is not of this format, or not of this key."""


Kind = TypeVar("Kind", bound=Document)


def read(store: Store, key: str, kind: type[Kind]) -> Kind:
    """The document under this key, checked. Every document of the bucket is read here.

    Raises ArchiveError if it is none of this kind and key, or too large; ObjectMissingError.
    """
    return kind.from_json(fetch(store, key, kind.MOST), key)


def fetch(store: Store, key: str, most: int) -> bytes:
    """The bytes of a document; ArchiveError if there are more than `most`."""
    try:
        return store.get(key, most=most)
    except ObjectTooLargeError as error:
        raise too_large(key, most) from error


def sources(store: Store, prefix: str) -> tuple[list[str], list[str]]:
    """The sources that have an archive under a prefix, and the keys beside them. One listing."""
    layout, found, foreign = Layout(prefix, ""), [], []
    for name in store.list_names(layout.sources):
        if _is_source(name):
            found.append(name.rstrip("/"))
        else:
            foreign.append(layout.sources + name)
    return found, foreign


def all_sources(store: Store, prefix: str) -> tuple[list[str], list[str]]:
    """The sources of which there is anything, in order, and the keys beside them. Two listings."""
    names, foreign = sources(store, prefix)
    root = Layout(prefix, "").live.removesuffix("/")
    for name in store.list_names(root):
        if not _is_source(name):
            foreign.append(f"{root}{name}")
        elif name.rstrip("/") not in names:
            names.append(name.rstrip("/"))
    return sorted(names), foreign


def where_to_look(store: Store, prefix: str) -> str:
    """The hint where nothing is there of a source: those that there are."""
    try:
        names, _ = all_sources(store, prefix)
    except StoreError:  # a policy may allow one source alone
        names = []
    if not names:
        return "are bucket and prefix of --s3-url those of the streamer, and has it begun?"
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return f"the sources there are: {', '.join(names[:_MOST_NAMES])}{more}"


class Catalog:
    """Reads one source's part of the bucket. Every method asks the store anew.

    `foreign` collects keys that are not of format 1: left alone, to be named once.
    """

    def __init__(self, store: Store, layout: Layout) -> None:
        self.store = store
        self.layout = layout
        self.foreign: set[str] = set()

    def writers(self) -> dict[tuple[int, str], ObjectInfo]:
        """The writers' objects by rank (generation, token). One listing."""
        return self._writers(self.store.list(self.layout.writers))

    def live(self) -> tuple[dict[tuple[int, str], ObjectInfo], list[str]]:
        """The writers' objects, and the keys of all else below `live/`. One listing."""
        infos = list(self.store.list(self.layout.live))
        known = {info.key for info in infos if info.key.startswith(self.layout.writers)}
        writers = self._writers(info for info in infos if info.key in known)
        ours = {self.layout.writer(*rank) for rank in writers}
        others = [info.key for info in infos if info.key not in ours]
        known_others = (self.layout.is_probe, self.layout.is_standby)
        return writers, [key for key in others if not any(is_one(key) for is_one in known_others)]

    def strange_uploads(self) -> list[str]:
        """Keys of unfinished uploads of ours that are of no binlog, where the store shows them."""
        keys: set[str] = set()
        for prefix in (self.layout.archive, self.layout.live):
            try:
                keys |= {upload.key for upload in self.store.uploads_below(prefix)}
            except UnsupportedError:
                break
        layout = self.layout
        known = (layout.is_binlog, layout.is_probe, layout.is_probe_upload)
        return sorted(key for key in keys if not any(is_one(key) for is_one in known))

    def _writers(self, infos: Iterable[ObjectInfo]) -> dict[tuple[int, str], ObjectInfo]:
        found = {}
        for info in infos:
            match = _WRITER.fullmatch(info.key.removeprefix(self.layout.writers))
            rank = (int(match[1]), match[2]) if match else None
            if rank is not None and self.layout.writer(*rank) == info.key:
                found[rank] = info
            else:
                self.foreign.add(info.key)
        return found

    def heartbeats(self, ranks: Iterable[tuple[int, str]]) -> list[Heartbeat]:
        """The writers' documents of these ranks; those that vanished meanwhile are left out."""
        found = []
        for generation, token in ranks:
            key = self.layout.writer(generation, token)
            try:
                found.append(read(self.store, key, Heartbeat))
            except ObjectMissingError:
                continue
            except ArchiveError:
                self.foreign.add(key)
        return found

    def standbys(self) -> list[tuple[Standby, ObjectInfo]]:
        """The processes that stand by, in order of their start. One listing, one small GET each.

        An object that cannot be read is passed over.
        """
        found = []
        for info in [*self.store.list(self.layout.standbys)]:
            if not self.layout.is_standby(info.key):
                self.foreign.add(info.key)
                continue
            try:
                found.append((read(self.store, info.key, Standby), info))
            except ObjectMissingError:
                continue
            except ArchiveError:
                self.foreign.add(info.key)
        return sorted(found, key=lambda one: one[0].token)

    def turn(self) -> Turn | None:
        """The last one: the lineage that is written. One listing, one GET; None before the first.

        Raises ArchiveError if it is not of this format.
        """
        found = []
        for info in self.store.list(self.layout.turns):
            match = _TURN.fullmatch(info.key.removeprefix(self.layout.turns))
            if match and info.key == self.layout.turn(int(match[1])):
                found.append(int(match[1]))
            else:
                self.foreign.add(info.key)
        if not found:
            return None
        key = self.layout.turn(max(found))
        return read(self.store, key, Turn)

    def lineages(self, unreadable: list[ArchiveError] | None = None) -> list[Lineage]:
        """All lineages, oldest first. One listing and one small GET each.

        Raises ArchiveError for one that is not of this format, or adds that to `unreadable`.
        """
        found = []
        for name in self.store.list_names(self.layout.archive):
            if self.layout.archive + name == self.layout.turns:
                continue
            if not LINEAGE_ID.fullmatch(name.rstrip("/")):
                self.foreign.add(self.layout.archive + name)
                continue
            key = self.layout.lineage(name.rstrip("/"))
            try:
                found.append(read(self.store, key, Lineage))
            except ObjectMissingError:
                self.foreign.add(self.layout.archive + name)
            except ArchiveError as error:
                if unreadable is None:
                    raise
                unreadable.append(error)
        return sorted(found, key=lambda lineage: lineage.id)

    def archived(self, lineage: Lineage) -> Archived:
        """The binlogs and entries of a lineage. Two listings, which page."""
        return Archived(
            lineage=lineage,
            binlogs=self.named(self.layout.binlogs(lineage.id), ""),
            entries=self.named(self.layout.entries(lineage.id), ".json"),
        )

    def contents(self, lineage: Lineage) -> Contents:
        """The binlogs of a lineage, archived and open. Three listings, see `readable`."""
        for _ in range(LISTINGS):
            chunks = self.chunks_in(lineage)
            archived = self.archived(lineage)
            growing = {name: chunks[name] for name in chunks.keys() - archived.binlogs.keys()}
            if not any(map(has_hole, growing.values())):
                break
        return Contents(archived=archived, open=growing)

    def live_lineages(self) -> set[str]:
        """The ids of the lineages that have chunks, described or not. One listing."""
        found = set()
        for name in self.store.list_names(self.layout.live):
            if LINEAGE_ID.fullmatch(name.rstrip("/")):
                found.add(name.rstrip("/"))
                continue
            key = self.layout.live + name
            known = (self.layout.writers, self.layout.standbys)
            if key not in known and not self.layout.is_probe(key):
                self.foreign.add(key)
        return found

    def growing(self) -> tuple[dict[tuple[int, str], ObjectInfo], dict[str, Growing]]:
        """The writers' objects, and the chunks by lineage, described or not. One listing."""
        layout = self.layout
        by_folder: dict[str, list[ObjectInfo]] = {}
        for info in self.store.list(layout.live):
            folder, slash, _ = info.key.removeprefix(layout.live).partition("/")
            by_folder.setdefault(f"{folder}{slash}", []).append(info)
        found: dict[str, Growing] = {}
        for folder, infos in by_folder.items():
            prefix = f"{layout.live}{folder}"
            if LINEAGE_ID.fullmatch(folder.rstrip("/")):
                found[folder.rstrip("/")] = self._chunks_of(infos, prefix, "")
            elif prefix != layout.writers and not layout.is_probe(prefix):
                self.foreign.add(prefix)
        return self._writers(by_folder.get("writers/", [])), found

    def first(self, lineage: Lineage) -> tuple[dict[BinlogName, ObjectInfo], bool]:
        """The first binlogs of a lineage that are archived, and whether those are all. One request.

        As text sorts them: of a lineage that has names of more digits than its first, some of those
        come before.
        """
        prefix = self.layout.binlogs(lineage.id)
        infos = [*islice(self.store.list(prefix), PAGE_KEYS)]
        return self._named_of(infos, prefix, ""), len(infos) < PAGE_KEYS

    def entry(self, lineage: Lineage, name: BinlogName) -> Entry:
        """All that is known of an archived binlog; ObjectMissingError if it has no entry."""
        key = self.layout.entry(lineage.id, name)
        return read(self.store, key, Entry)

    def entry_end(self, lineage: Lineage, name: BinlogName) -> EntryEnd:
        """The end of an archived binlog, from its entry; ObjectMissingError if it has none."""
        key = self.layout.entry(lineage.id, name)
        return read(self.store, key, EntryEnd)

    def chunks_in(self, lineage: Lineage) -> dict[BinlogName, Chunks]:
        """The chunks of all binlogs of a lineage. One listing."""
        return self._chunks(f"{self.layout.live}{lineage.id}/", "")

    def chunks(self, lineage: Lineage, name: BinlogName) -> Chunks:
        """The chunks of a binlog. One listing."""
        found = self._chunks(self.layout.chunks(lineage.id, name), f"{name}/")
        return found.get(name, Chunks())

    def readable(self, lineage: Lineage) -> list[Listed]:
        """The binlogs of a lineage that can be read, archived and open, in their order.

        Two listings: chunks first, so that what is being archived just then is never missed. They
        are repeated where chunks came and went under the first, which may show as a hole.
        """
        for _ in range(LISTINGS):
            chunks = self.chunks_in(lineage)
            archived = self.named(self.layout.binlogs(lineage.id), "")
            if not any(has_hole(chunks[name]) for name in chunks.keys() - archived.keys()):
                break
        found = [Listed(name, info.size, "archived") for name, info in archived.items()]
        found += [
            Listed(name, those.end, "open")
            for name, those in chunks.items()
            if name not in archived and those.end
        ]
        return sorted(found, key=lambda listed: listed.name)

    def binlog(self, lineage: Lineage, name: BinlogName) -> Readable:
        """Where the bytes of a binlog are, and how to read them.

        Chunks are looked for first, see `readable`. They are put side by side, so there may be
        some beyond a hole: the binlog ends at the hole. Who knows of more (a heartbeat) asks for it
        by `Readable.blocks(end=...)`. ArchiveError if there is nothing to read.
        """
        key, prefix = self.layout.binlog(lineage.id, name), self.layout.chunks(lineage.id, name)
        for _ in range(LISTINGS):
            chunks, archived = self.chunks(lineage, name), self.store.head(key)
            if archived or not has_hole(chunks):
                break
        crc64 = self._crc64(lineage, name, archived.size) if archived else None
        ranges = (Range(key, 0, archived.size),) if archived else ranges_of(prefix, chunks)
        if not ranges:
            raise ArchiveError(
                f"no byte of {name} is in lineage {lineage.id}: neither {key} nor chunks from "
                f"offset 0 on below {prefix}",
                hint="is it older than the lineage's first binlog, or not yet written?",
            )
        return Readable(
            name=str(name),
            state="archived" if archived else "open",
            ranges=ranges,
            store=self.store,
            again=lambda: self.binlog(lineage, name),
            crc64=crc64,
        )

    def _crc64(self, lineage: Lineage, name: BinlogName, size: int) -> int | None:
        """The checksum of an archived binlog, from its entry; None if it has none yet."""
        key = self.layout.entry(lineage.id, name)
        try:
            data = fetch(self.store, key, EntryEnd.MOST)
        except ObjectMissingError:
            return None
        if (said := EntryEnd.from_json(data, key).size) != size:
            raise ArchiveError(
                f"{self.layout.binlog(lineage.id, name)} has {size} bytes, its entry says {said}",
                hint="an older version of one of them may be right, where the bucket is versioned",
            )
        return crc64_of(data, key)

    def _chunks(self, prefix: str, within: str) -> dict[BinlogName, Chunks]:
        """All chunks below a prefix, which ends with `within`, by binlog."""
        return self._chunks_of(self.store.list(prefix), prefix, within)

    def _chunks_of(
        self, infos: Iterable[ObjectInfo], prefix: str, within: str
    ) -> dict[BinlogName, Chunks]:
        found: dict[BinlogName, list[Chunk]] = {}
        for info in infos:
            binlog, _, rest = f"{within}{info.key.removeprefix(prefix)}".partition("/")
            try:
                name, chunk = BinlogName.parse(binlog), Chunk.parse(rest)
            except ValueError:
                self.foreign.add(info.key)
                continue
            if str(name) == binlog and chunk.size == info.size:
                found.setdefault(name, []).append(chunk)
            else:
                self.foreign.add(info.key)
        return {name: Chunks(frozenset(chunks)) for name, chunks in found.items()}

    def named(
        self, prefix: str, suffix: str, *, begin: str = "", start_after: str = ""
    ) -> dict[BinlogName, ObjectInfo]:
        """The objects `<prefix><binlog><suffix>` by binlog; a listing that pages.

        Only those whose names begin with `begin`, and come after the name `start_after` as text.
        """
        after = f"{prefix}{start_after}" if start_after else ""
        infos = self.store.list(f"{prefix}{begin}", start_after=after)
        return self._named_of(infos, prefix, suffix)

    def _named_of(
        self, infos: Iterable[ObjectInfo], prefix: str, suffix: str
    ) -> dict[BinlogName, ObjectInfo]:
        found = {}
        for info in infos:
            name = info.key.removeprefix(prefix)
            try:
                ours = BinlogName.parse(name.removesuffix(suffix))
            except ValueError:
                self.foreign.add(info.key)
                continue
            if name == f"{ours}{suffix}":
                found[ours] = info
            else:
                self.foreign.add(info.key)
        return found


def has_hole(chunks: Chunks) -> bool:
    """Whether there are chunks beyond a hole."""
    return max((chunk.end for chunk in chunks), default=0) > chunks.end
