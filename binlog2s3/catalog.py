"""What lies in the bucket and what it means: keys, lineages, entries, heartbeats.

Place in the flow: the uploader and the daemon write through the values defined here, everything
that reads the bucket reads through `Catalog`. Owns format 1, which docs/format.md describes for
strangers.

Law: what is under `archive/` is written once. A key or document that is not ours is never touched
and never guessed at: it is named and left alone.
"""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, Literal, Self, get_args

from binlog2s3.binlog import BinlogName
from binlog2s3.checksum import crc64_from_hex, crc64_hex
from binlog2s3.chunk import Chunk, Chunks
from binlog2s3.errors import ArchiveError, ObjectMissingError, StoreError, UnsupportedError
from binlog2s3.grid import BLOCK_SIZE, Block
from binlog2s3.gtid import Flavour
from binlog2s3.reader import Range, Readable, State, ranges_of
from binlog2s3.store_contract import ObjectInfo, Store

FORMAT = 1
_LINEAGE_ID = re.compile(r"[0-9]{8}T[0-9]{6}Z-[0-9a-f]{8}-[0-9a-f]{4}")
_MOST = 2**63 - 1
_MOST_NAMES = 10
_PROBE = re.compile(r"check-[0-9a-f]{8}/.*")
_PROBE_UPLOAD = re.compile(r"check-[0-9a-f]{8}/upload")
_WRITER = re.compile(r"([0-9]{6,18})-([0-9a-f]{8,32})\.json")
_SOURCE = re.compile(r"(?!\.\.?/)[A-Za-z0-9._-]{1,64}/")
Join = Literal["exact", "gap", "unknown"]
WriterState = Literal[
    "starting",
    "streaming",
    "idle",
    "catching up",
    "paused",
    "stalled",
    "source unreachable",
    "store unreachable",
    "superseded",
    "stopped",
]
"""What a writer may say of itself in its object."""

_LISTINGS = 3
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

    def lineage(self, lineage: str) -> str:
        """Key of a lineage's description."""
        return f"{self.archive}{lineage}/lineage.json"

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
        return bool(_LINEAGE_ID.fullmatch(lineage)) and _is_name(rest.removeprefix("binlogs/"))

    def probes(self, token: str) -> str:
        """Prefix of what a preflight puts to see what it may, and deletes again."""
        return f"{self.live}check-{token}/"

    def probe_upload(self, token: str) -> str:
        """Key of the upload that a preflight begins to see what it may, and aborts."""
        return f"{self.archive}check-{token}/upload"

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
        return bool(_LINEAGE_ID.fullmatch(lineage)) and _is_name(binlog)

    def _root(self) -> str:
        return f"{self.prefix}/" if self.prefix else ""


def _is_name(text: str) -> bool:
    try:
        BinlogName.parse(text)
    except ValueError:
        return False
    return True


def lineage_id(first_event: datetime, server_uuid: str, token: str) -> str:
    """`<UTC time of its first binlog's format event>-<first 8 of the uuid>-<4 random>`."""
    return f"{first_event.astimezone(UTC):%Y%m%dT%H%M%SZ}-{server_uuid[:8].lower()}-{token}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Parent:
    """Where a lineage's history came from: the end, or the last common point, of another one.

    `binlog` is None where the other one has not a byte. `missing` is what lies between them, as
    GTIDs or as names of binlogs; "" where nothing does or nobody knows.
    """

    lineage: str
    binlog: str | None
    offset: int
    gtid_set: str
    join: Join
    missing: str

    @property
    def place(self) -> str:
        """Where that is, for people."""
        return f"{self.lineage} at {f'{self.binlog}:{self.offset}' if self.binlog else 'its begin'}"

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Self:
        """Read it from lineage.json. Raises KeyError, TypeError or ValueError."""
        name, join = document["binlog"], document["join"]
        if join not in get_args(Join):
            raise ValueError(f"{join!r} is no join")
        return cls(
            lineage=str(document["lineage"]),
            binlog=str(BinlogName.parse(name)) if name is not None else None,
            offset=_count(document["offset"]),
            gtid_set=str(document["gtid_set"]),
            join=join,
            missing=str(document["missing"]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Lineage:
    """One unbroken history of one server. `gtid_set` is what was executed before it begins."""

    id: str
    source: str
    server_uuid: str
    flavour: Flavour
    server_version: str
    first_binlog: BinlogName
    first_binlog_time: datetime
    gtid_set: str
    parent: Mapping[str, Any] | None = None

    @property
    def origin(self) -> Parent | None:
        """The parent, field by field; ArchiveError if it is not as format 1 says."""
        if not self.parent:
            return None
        with _reading(f"the parent in the lineage.json of {self.id}"):
            return Parent.from_document(self.parent)

    def to_json(self) -> bytes:
        """The document lineage.json."""
        return _render(
            {
                "format": FORMAT,
                "lineage": self.id,
                "source": self.source,
                "server": {
                    "uuid": self.server_uuid,
                    "flavour": self.flavour,
                    "version": self.server_version,
                },
                "first_binlog": str(self.first_binlog),
                "first_binlog_time": _time(self.first_binlog_time),
                "gtid_set": self.gtid_set,
                "parent": self.parent,
            }
        )

    @classmethod
    def from_json(cls, data: bytes, key: str) -> Self:
        """Read lineage.json; ArchiveError if it is not one of this format."""
        document = _parse(data, key)
        with _reading(key):
            return cls(
                id=str(document["lineage"]),
                source=str(document["source"]),
                server_uuid=str(document["server"]["uuid"]),
                flavour=_flavour(document["server"]["flavour"]),
                server_version=str(document["server"]["version"]),
                first_binlog=BinlogName.parse(document["first_binlog"]),
                first_binlog_time=_from_time(document["first_binlog_time"]),
                gtid_set=str(document["gtid_set"]),
                parent=document["parent"],
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """What is known of an archived binlog without reading it. Sizes in bytes, `_us` in UTC.

    `end` is how it ends: rotate, stop or crash. `next_binlog` is what its ROTATE names.
    """

    name: BinlogName
    size: int
    crc64: int
    first_time: datetime
    server_id: int
    least_commit_us: int | None
    greatest_commit_us: int | None
    commit_exact: bool
    gtid_set_before: str
    gtid_set_added: str
    transactions: int
    anonymous_transactions: int
    events: int
    formats: tuple[Mapping[str, Any], ...]
    blocks: tuple[Block, ...]
    end: str
    next_binlog: str | None
    archived_at: datetime
    damaged: tuple[Mapping[str, Any], ...] = ()

    def to_json(self) -> bytes:
        """The document entries/<name>.json."""
        return _render(
            {
                "format": FORMAT,
                "name": str(self.name),
                "size": self.size,
                "crc64nvme": crc64_hex(self.crc64),
                "format_event_time": _time(self.first_time),
                "server_id": self.server_id,
                "least_commit_us": self.least_commit_us,
                "greatest_commit_us": self.greatest_commit_us,
                "commit_times": "exact" if self.commit_exact else "seconds",
                "gtid_set_before": self.gtid_set_before,
                "gtid_set_added": self.gtid_set_added,
                "transactions": self.transactions,
                "anonymous_transactions": self.anonymous_transactions,
                "events": self.events,
                "formats": list(self.formats),
                "block_size": BLOCK_SIZE,
                "blocks": [
                    asdict(block) | {"crc64": crc64_hex(block.crc64)} for block in self.blocks
                ],
                "damaged": list(self.damaged),
                "end": self.end,
                "next_binlog": self.next_binlog,
                "encoding": "none",
                "encryption": "none",
                "archived_at": _time(self.archived_at),
            }
        )

    @classmethod
    def from_json(cls, data: bytes, key: str) -> Self:
        """Read an entry; ArchiveError if this is none that this version knows."""
        document = _parse_entry(data, key)
        with _reading(key):
            return cls(
                name=BinlogName.parse(document["name"]),
                size=_count(document["size"]),
                crc64=crc64_from_hex(document["crc64nvme"]),
                first_time=_from_time(document["format_event_time"]),
                server_id=_count(document["server_id"]),
                least_commit_us=_integer_or_none(document["least_commit_us"]),
                greatest_commit_us=_integer_or_none(document["greatest_commit_us"]),
                commit_exact=document["commit_times"] == "exact",
                gtid_set_before=str(document["gtid_set_before"]),
                gtid_set_added=str(document["gtid_set_added"]),
                transactions=_count(document["transactions"]),
                anonymous_transactions=_count(document["anonymous_transactions"]),
                events=_count(document["events"]),
                formats=tuple(dict(format_) for format_ in document["formats"]),
                blocks=tuple(_block(block) for block in document["blocks"]),
                end=str(document["end"]),
                next_binlog=_text_or_none(document["next_binlog"]),
                archived_at=_from_time(document["archived_at"]),
                damaged=tuple(dict(range_) for range_ in document["damaged"]),
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryEnd:
    """The part of an entry that the next binlog must fit to."""

    size: int
    gtid_set_before: str
    gtid_set_added: str
    anonymous_transactions: int
    next_binlog: str | None

    @classmethod
    def from_json(cls, data: bytes, key: str) -> Self:
        """Read it from an entry; ArchiveError if this is no entry that this version knows."""
        document = _parse_entry(data, key)
        with _reading(key):
            return cls(
                size=_count(document["size"]),
                gtid_set_before=str(document["gtid_set_before"]),
                gtid_set_added=str(document["gtid_set_added"]),
                anonymous_transactions=_count(document["anonymous_transactions"]),
                next_binlog=document["next_binlog"],
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """A place in a history: `offset` bytes into a binlog, with the GTIDs executed up to there."""

    binlog: str
    offset: int
    gtid_set: str

    @property
    def place(self) -> tuple[BinlogName, int]:
        """To be compared within a lineage. Raises ValueError if `binlog` is no name."""
        return (BinlogName.parse(self.binlog), self.offset)


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """A writer's own object: who writes, what is durable, until when everything is here.

    `covered_until` is the source's clock at a moment up to which all commits are durable. `status`
    is what else it knew of itself then (`status.document`); None from an older version.
    """

    generation: int
    token: str
    source: str
    host: str
    pid: int
    version: str
    since: datetime
    at: datetime
    interval_seconds: float
    state: str
    lineage: str | None
    server_uuid: str
    durable: Position | None
    server: Position | None
    covered_until: datetime | None
    status: Mapping[str, Any] | None = None

    @property
    def rank(self) -> tuple[int, str]:
        """Greater is the writer that goes on."""
        return (self.generation, self.token)

    def to_json(self) -> bytes:
        """The document of live/<source>/writers/."""
        return _render(
            {
                "format": FORMAT,
                "generation": self.generation,
                "token": self.token,
                "source": self.source,
                "host": self.host,
                "pid": self.pid,
                "version": self.version,
                "since": _time(self.since),
                "at": _time(self.at),
                "interval_seconds": self.interval_seconds,
                "state": self.state,
                "lineage": self.lineage,
                "server_uuid": self.server_uuid,
                "durable": asdict(self.durable) if self.durable else None,
                "server": asdict(self.server) if self.server else None,
                "covered_until": _time(self.covered_until) if self.covered_until else None,
                "status": self.status,
            }
        )

    @classmethod
    def from_json(cls, data: bytes, key: str) -> Self:
        """Read a writer's object; ArchiveError if it is not one of this format."""
        document = _parse(data, key)
        with _reading(key):
            return cls(
                generation=_count(document["generation"]),
                token=str(document["token"]),
                source=str(document["source"]),
                host=str(document["host"]),
                pid=_count(document["pid"]),
                version=str(document["version"]),
                since=_from_time(document["since"]),
                at=_from_time(document["at"]),
                interval_seconds=float(document["interval_seconds"]),
                state=str(document["state"]),
                lineage=_name_or_none(document["lineage"]),
                server_uuid=str(document["server_uuid"]),
                durable=_position(document["durable"]),
                server=_position(document["server"]),
                covered_until=_from_time(document["covered_until"])
                if document["covered_until"]
                else None,
                status=_mapping_or_none(document.get("status")),
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Archived:
    """What one lineage has in the bucket: objects by name, and the names that have an entry."""

    lineage: Lineage
    binlogs: Mapping[BinlogName, ObjectInfo]
    entries: frozenset[BinlogName]


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


def sources(store: Store, prefix: str) -> tuple[list[str], list[str]]:
    """The sources that have an archive under a prefix, and the keys beside them. One listing."""
    layout, found, foreign = Layout(prefix, ""), [], []
    for name in store.list_names(layout.sources):
        if _SOURCE.fullmatch(name):
            found.append(name.rstrip("/"))
        else:
            foreign.append(layout.sources + name)
    return found, foreign


def all_sources(store: Store, prefix: str) -> tuple[list[str], list[str]]:
    """The sources of which there is anything, in order, and the keys beside them. Two listings."""
    names, foreign = sources(store, prefix)
    root = Layout(prefix, "").live.removesuffix("/")
    for name in store.list_names(root):
        if not _SOURCE.fullmatch(name):
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
        self._store = store
        self._layout = layout
        self.foreign: set[str] = set()

    def writers(self) -> dict[tuple[int, str], ObjectInfo]:
        """The writers' objects by rank (generation, token). One listing."""
        return self._writers(self._store.list(self._layout.writers))

    def live(self) -> tuple[dict[tuple[int, str], ObjectInfo], list[str]]:
        """The writers' objects, and the keys of all else below `live/`. One listing."""
        infos = list(self._store.list(self._layout.live))
        known = {info.key for info in infos if info.key.startswith(self._layout.writers)}
        writers = self._writers(info for info in infos if info.key in known)
        ours = {self._layout.writer(*rank) for rank in writers}
        others = [info.key for info in infos if info.key not in ours]
        return writers, [key for key in others if not self._layout.is_probe(key)]

    def strange_uploads(self) -> list[str]:
        """Keys of unfinished uploads of ours that are of no binlog, where the store shows them."""
        keys: set[str] = set()
        for prefix in (self._layout.archive, self._layout.live):
            try:
                keys |= {upload.key for upload in self._store.uploads_below(prefix)}
            except UnsupportedError:
                break
        layout = self._layout
        known = (layout.is_binlog, layout.is_probe, layout.is_probe_upload)
        return sorted(key for key in keys if not any(is_one(key) for is_one in known))

    def _writers(self, infos: Iterable[ObjectInfo]) -> dict[tuple[int, str], ObjectInfo]:
        found = {}
        for info in infos:
            if match := _WRITER.fullmatch(info.key.removeprefix(self._layout.writers)):
                found[(int(match[1]), match[2])] = info
            else:
                self.foreign.add(info.key)
        return found

    def heartbeats(self, ranks: Iterable[tuple[int, str]]) -> list[Heartbeat]:
        """The writers' documents of these ranks; those that vanished meanwhile are left out."""
        found = []
        for generation, token in ranks:
            key = self._layout.writer(generation, token)
            try:
                found.append(Heartbeat.from_json(self._store.get(key), key))
            except ObjectMissingError:
                continue
            except ArchiveError:
                self.foreign.add(key)
        return found

    def lineages(self, unreadable: list[ArchiveError] | None = None) -> list[Lineage]:
        """All lineages, oldest first. One listing and one small GET each.

        Raises ArchiveError for one that is not of this format, or adds that to `unreadable`.
        """
        found = []
        for name in self._store.list_names(self._layout.archive):
            if not _LINEAGE_ID.fullmatch(name.rstrip("/")):
                self.foreign.add(self._layout.archive + name)
                continue
            key = self._layout.lineage(name.rstrip("/"))
            try:
                found.append(Lineage.from_json(self._store.get(key), key))
            except ObjectMissingError:
                self.foreign.add(self._layout.archive + name)
            except ArchiveError as error:
                if unreadable is None:
                    raise
                unreadable.append(error)
        return sorted(found, key=lambda lineage: lineage.id)

    def described_at(self, lineage: Lineage) -> datetime:
        """When lineage.json was written, by the store's clock."""
        info = self._store.head(self._layout.lineage(lineage.id))
        return info.last_modified if info is not None else datetime.now(UTC)

    def archived(self, lineage: Lineage) -> Archived:
        """The binlogs and entries of a lineage. Two listings, which page."""
        return Archived(
            lineage=lineage,
            binlogs=self._named(self._layout.binlogs(lineage.id), ""),
            entries=frozenset(self._named(self._layout.entries(lineage.id), ".json")),
        )

    def contents(self, lineage: Lineage) -> Contents:
        """The binlogs of a lineage, archived and open. Three listings, see `readable`."""
        for _ in range(_LISTINGS):
            chunks = self._chunks(f"{self._layout.live}{lineage.id}/", "")
            archived = self.archived(lineage)
            growing = {name: chunks[name] for name in chunks.keys() - archived.binlogs.keys()}
            if not any(map(_has_hole, growing.values())):
                break
        return Contents(archived=archived, open=growing)

    def live_lineages(self) -> set[str]:
        """The ids of the lineages that have chunks, described or not. One listing."""
        found = set()
        for name in self._store.list_names(self._layout.live):
            if _LINEAGE_ID.fullmatch(name.rstrip("/")):
                found.add(name.rstrip("/"))
                continue
            key = self._layout.live + name
            if key != self._layout.writers and not self._layout.is_probe(key):
                self.foreign.add(key)
        return found

    def entry(self, lineage: Lineage, name: BinlogName) -> Entry:
        """All that is known of an archived binlog; ObjectMissingError if it has no entry."""
        key = self._layout.entry(lineage.id, name)
        return Entry.from_json(self._store.get(key), key)

    def entry_end(self, lineage: Lineage, name: BinlogName) -> EntryEnd:
        """The end of an archived binlog, from its entry; ObjectMissingError if it has none."""
        key = self._layout.entry(lineage.id, name)
        return EntryEnd.from_json(self._store.get(key), key)

    def chunks(self, lineage: Lineage, name: BinlogName) -> Chunks:
        """The chunks of a binlog. One listing."""
        found = self._chunks(self._layout.chunks(lineage.id, name), f"{name}/")
        return found.get(name, Chunks())

    def readable(self, lineage: Lineage) -> list[Listed]:
        """The binlogs of a lineage that can be read, archived and open, in their order.

        Two listings: chunks first, so that what is being archived just then is never missed. They
        are repeated where chunks came and went under the first, which may show as a hole.
        """
        for _ in range(_LISTINGS):
            chunks = self._chunks(f"{self._layout.live}{lineage.id}/", "")
            archived = self._named(self._layout.binlogs(lineage.id), "")
            if not any(_has_hole(chunks[name]) for name in chunks.keys() - archived.keys()):
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
        key, prefix = self._layout.binlog(lineage.id, name), self._layout.chunks(lineage.id, name)
        for _ in range(_LISTINGS):
            chunks, archived = self.chunks(lineage, name), self._store.head(key)
            if archived or not _has_hole(chunks):
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
            store=self._store,
            again=lambda: self.binlog(lineage, name),
            crc64=crc64,
        )

    def _crc64(self, lineage: Lineage, name: BinlogName, size: int) -> int | None:
        """The checksum of an archived binlog, from its entry; None if it has none yet."""
        key = self._layout.entry(lineage.id, name)
        try:
            data = self._store.get(key)
        except ObjectMissingError:
            return None
        if EntryEnd.from_json(data, key).size != size:
            raise ArchiveError(
                f"{self._layout.binlog(lineage.id, name)} has {size} bytes, its entry says "
                f"{EntryEnd.from_json(data, key).size}",
                hint="an older version of one of them may be right, where the bucket is versioned",
            )
        with _reading(key):
            return crc64_from_hex(_parse(data, key)["crc64nvme"])

    def _chunks(self, prefix: str, within: str) -> dict[BinlogName, Chunks]:
        """All chunks below a prefix, which ends with `within`, by binlog."""
        found: dict[BinlogName, list[Chunk]] = {}
        for info in self._store.list(prefix):
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

    def _named(self, prefix: str, suffix: str) -> dict[BinlogName, ObjectInfo]:
        found = {}
        for info in self._store.list(prefix):
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


def _has_hole(chunks: Chunks) -> bool:
    return max((chunk.end for chunk in chunks), default=0) > chunks.end


def _position(document: Mapping[str, Any] | None) -> Position | None:
    if not document:
        return None
    return Position(
        binlog=str(BinlogName.parse(document["binlog"])),
        offset=_count(document["offset"]),
        gtid_set=str(document["gtid_set"]),
    )


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= _MOST:
        raise ValueError(f"{value!r:.40} is no count or size")
    return value


def _integer_or_none(value: Any) -> int | None:
    return None if value is None else int(value)


def _text_or_none(value: Any) -> str | None:
    return None if value is None else str(value)


def _name_or_none(value: Any) -> str | None:
    if not isinstance(value, str | None):
        raise TypeError(f"{value!r} is no text")
    return value


def _mapping_or_none(value: Any) -> Mapping[str, Any] | None:
    return value if isinstance(value, Mapping) else None


def _block(document: Mapping[str, Any]) -> Block:
    return Block(
        offset=_count(document["offset"]),
        size=_count(document["size"]),
        crc64=crc64_from_hex(document["crc64"]),
        first_offset=_integer_or_none(document["first_offset"]),
        first_commit_us=_integer_or_none(document["first_commit_us"]),
        first_gtid=_text_or_none(document["first_gtid"]),
    )


def _flavour(text: str) -> Flavour:
    if text == "mysql":
        return "mysql"
    if text == "mariadb":
        return "mariadb"
    raise ValueError(f"{text!r} is no flavour")


def _render(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, indent=1, ensure_ascii=False).encode() + b"\n"


def _parse(data: bytes, key: str) -> dict[str, Any]:
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ArchiveError(
            f"{key} is no JSON: {error}",
            hint="was it written by something else? `binlog2s3 verify` says what to do",
        ) from error
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        found = document.get("format") if isinstance(document, dict) else type(document).__name__
        raise ArchiveError(
            f"{key} is of format {found!r}, this version knows {FORMAT}",
            hint="a newer binlog2s3 may have written it: use that one",
        )
    return document


def _parse_entry(data: bytes, key: str) -> dict[str, Any]:
    document = _parse(data, key)
    ways = (document.get("encoding"), document.get("encryption"))
    if ways != ("none", "none"):
        raise ArchiveError(
            f"{key}: its encoding or encryption, {ways}, is not known to this version",
            hint="a newer binlog2s3 wrote it: use that one",
        )
    return document


class _reading:  # noqa: N801 - reads as a verb
    """Turn a missing or wrong field into an ArchiveError that names the document."""

    def __init__(self, key: str) -> None:
        self._key = key

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, (KeyError, TypeError, ValueError, OverflowError)):
            raise ArchiveError(
                f"{self._key} is not as format {FORMAT} says: {type(error).__name__} {error}",
                hint="was it changed by hand?",
            ) from error


def _time(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def _from_time(text: str) -> datetime:
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError(f"{text!r} has no time zone")
    return moment
