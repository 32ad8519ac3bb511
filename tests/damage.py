"""An archive with two lineages as a streamer leaves it, and every way to damage it.

Each damage says which kinds of defects `verify` finds by looking, and which by reading every byte:
docs/reference/verify.md has the same table.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

from binlog2s3.archive.chunks import Chunk
from binlog2s3.archive.documents import Lineage, SourceServer
from binlog2s3.archive.layout import Layout
from binlog2s3.archive.reading import BinlogReading
from binlog2s3.archive.writers import Heartbeat, Position, Turn
from binlog2s3.binlog.checksum import crc64nvme
from binlog2s3.binlog.gtid import GtidSet
from binlog2s3.binlog.names import BinlogName
from binlog2s3.store.contract import Store
from tests.binlog_writer import NOW, UUID_A, UUID_B, XID, BinlogWriter, statement
from tests.documents import like, parent_of

LAYOUT = Layout("pre", "test")
_VERSION = "9.7.4"
_HOUR = 3600


def _id(moment: int, uuid: str, token: str) -> str:
    return f"{datetime.fromtimestamp(moment, UTC):%Y%m%dT%H%M%SZ}-{uuid[:8]}-{token}"


OLD, NEW = _id(NOW, UUID_A, "a1b2"), _id(NOW + 10 * _HOUR, UUID_B, "c3d4")
LOST = "20200101T000000Z-3e11fa47-ffff"


def name(number: int) -> BinlogName:
    return BinlogName("mysql-bin", number)


def binlog(
    number: int, before: str, uuid: str, first: int, transactions: int, *, rotate: bool = True
) -> BinlogWriter:
    """A binlog with so many transactions, whose numbers begin with `first`."""
    start = NOW if uuid == UUID_A else NOW + 10 * _HOUR
    began = start + (number - 1) * 600
    writer = BinlogWriter(
        server_version=_VERSION, timestamp=began, server_id=7 if uuid == UUID_A else 8
    )
    writer.previous_gtids(GtidSet.parse(before))
    for at in range(transactions):
        row = statement(f"INSERT INTO t VALUES ({first + at}, '{'x' * 150}')")
        commit_us = (began + at) * 1_000_000 + at
        gtid = (uuid, "", first + at)
        writer.transaction([statement("BEGIN"), row, XID], gtid=gtid, commit_us=commit_us)
    if rotate:
        writer.rotate(str(name(number + 1)))
    return writer


@dataclass
class Archive:
    """What was put; `put` may make objects in another way than the store does."""

    store: Store
    put: Callable[[str, bytes], object]
    data: dict[tuple[str, int], bytes] = field(default_factory=dict)
    chunks: list[str] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    beat: Heartbeat | None = None
    at: datetime = field(default_factory=lambda: datetime.now(UTC))

    def key(self, lineage: str, number: int) -> str:
        return LAYOUT.binlog(lineage, name(number))

    def entry(self, lineage: str, number: int) -> str:
        return LAYOUT.entry(lineage, name(number))

    def change(self, key: str, **fields: Any) -> None:
        """Rewrite fields of a JSON document; a dot goes into an object."""
        document = json.loads(self.store.get(key))
        for path, value in fields.items():
            inner, parts = document, path.split("__")
            for part in parts[:-1]:
                inner = inner[int(part) if part.isdigit() else part]
            last = parts[-1]
            assert last in inner
            assert inner[last] != value, "that would be no change"
            inner[last] = value
        self.store.put(key, json.dumps(document).encode())

    def flip(self, key: str, at: int) -> None:
        data = bytearray(self.store.get(key))
        data[at] ^= 0x40
        self.put(key, bytes(data))


def _archive(archive: Archive, lineage: str, number: int, data: bytes) -> None:
    reading = BinlogReading(name(number))
    reading.feed(memoryview(data))
    archive.data[lineage, number] = data
    archive.store.put(archive.key(lineage, number), data, crc64=crc64nvme(data), archived=True)
    entry = reading.entry(archive.at)
    archive.store.put(archive.entry(lineage, number), entry.to_json())


def _chunk(archive: Archive, lineage: str, number: int, begin: int, end: int) -> str:
    piece = archive.data[lineage, number][begin:end]
    key = LAYOUT.chunk(lineage, name(number), Chunk(begin, end, crc64nvme(piece)))
    archive.store.put(key, piece)
    return key


def fill(
    store: Store,
    put: Callable[[str, bytes], object] | None = None,
    at: datetime | None = None,
) -> Archive:
    """The old server's four binlogs and an unfinished one; the new one's three and an open one.

    `at`: when the streamer archived them, and said that it stops.
    """
    archive = Archive(store, put or store.put, at=at or datetime.now(UTC))
    old = Lineage(
        lineage=OLD,
        source="test",
        server=SourceServer(uuid=UUID_A, flavour="mysql", version=_VERSION),
        first_binlog=name(1),
        first_binlog_time=datetime.fromtimestamp(NOW, UTC),
        gtid_set="",
        parent=None,
    )
    store.put(LAYOUT.lineage(OLD), old.to_json())
    store.put(LAYOUT.turn(1), _turn(1, OLD).to_json())
    for number in range(1, 5):
        before = f"{UUID_A}:1-{3 * (number - 1)}" if number > 1 else ""
        writer = binlog(number, before, UUID_A, 3 * number - 2, 3)
        _archive(archive, OLD, number, bytes(writer.data))
    writer = binlog(5, f"{UUID_A}:1-12", UUID_A, 13, 3, rotate=False)
    archive.data[OLD, 5] = bytes(writer.data)
    middle = writer.transactions[1].begin
    _chunk(archive, OLD, 5, 0, middle)
    _chunk(archive, OLD, 5, middle, len(writer.data))
    cut = writer.transactions[1].end  # the third transaction was lost in the fail-over
    parent = parent_of(OLD, binlog=str(name(5)), offset=cut, gtid_set=f"{UUID_A}:1-14")
    _fill_new(archive, replace(old, parent=parent))
    return archive


def _turn(number: int, lineage: str) -> Turn:
    return Turn(number=number, lineage=lineage, generation=1, token="9c2d41aa")


def _fill_new(archive: Archive, old: Lineage) -> None:
    store, begun = archive.store, f"{UUID_A}:1-14"
    new = like(
        old,
        id=NEW,
        server_uuid=UUID_B,
        first_binlog_time=datetime.fromtimestamp(NOW + 10 * _HOUR, UTC),
        gtid_set=begun,
    )
    store.put(LAYOUT.lineage(NEW), new.to_json())
    store.put(LAYOUT.turn(2), _turn(2, NEW).to_json())
    for number in range(1, 5):
        before = f"{begun},{UUID_B}:1-{3 * (number - 1)}" if number > 1 else begun
        writer = binlog(number, before, UUID_B, 3 * number - 2, 3, rotate=number < 4)
        data = bytes(writer.data)
        if number < 4:
            _archive(archive, NEW, number, data)
            continue
        archive.data[NEW, 4] = data
        bounds = [0, writer.ends[2], writer.transactions[1].begin, len(data)]
        archive.sizes = bounds
        for begin, end in pairwise(bounds):
            archive.chunks.append(_chunk(archive, NEW, 4, begin, end))
        moment = archive.at
        archive.beat = Heartbeat(
            generation=1,
            token="9c2d41aa",
            source="test",
            host="db1",
            pid=4711,
            version="0.1.0",
            since=moment,
            at=moment,
            interval_seconds=30.0,
            state="stopped",
            lineage=NEW,
            server_uuid=UUID_B,
            durable=Position(binlog=name(4), offset=len(data), gtid_set=f"{begun},{UUID_B}:1-12"),
            server=None,
            covered_until=moment,
        )
        store.put(LAYOUT.writer(1, "9c2d41aa"), archive.beat.to_json())


@dataclass(frozen=True)
class Damage:
    """`looked`: what is found without reading the binlogs, `deep`: with --deep; both exactly."""

    act: Callable[[Archive], object]
    looked: frozenset[str]
    deep: frozenset[str]


def _as(act: Callable[[Archive], object], looked: str, deep: str | None = None) -> Damage:
    both = looked if deep is None else deep
    return Damage(act, frozenset(looked.split()), frozenset(both.split()))


def _swap(archive: Archive) -> None:
    one, other = archive.key(OLD, 2), archive.key(OLD, 3)
    first, second = archive.store.get(one), archive.store.get(other)
    archive.put(one, second)
    archive.put(other, first)


def _swap_entries(archive: Archive) -> None:
    one, other = archive.entry(OLD, 2), archive.entry(OLD, 3)
    first, second = archive.store.get(one), archive.store.get(other)
    archive.store.put(one, second)
    archive.store.put(other, first)


def _other_chunk(archive: Archive) -> None:
    """One of the same range, with other bytes that its name is right about."""
    begin, end = archive.sizes[1:3]
    piece = bytes(end - begin)
    archive.store.put(LAYOUT.chunk(NEW, name(4), Chunk(begin, end, crc64nvme(piece))), piece)


def _cut(archive: Archive, lineage: str, number: int) -> None:
    data = archive.data[lineage, number]
    archive.put(archive.key(lineage, number), data[: len(data) - 20])


def _only(archive: Archive, *keys: str) -> None:
    archive.store.delete(keys)


def _document(key: Callable[[Archive], str], **fields: Any) -> Callable[[Archive], object]:
    return lambda archive: archive.change(key(archive), **fields)


def _entry2(**fields: Any) -> Callable[[Archive], object]:
    return _document(lambda a: a.entry(OLD, 2), **fields)


def _child(**fields: Any) -> Callable[[Archive], object]:
    return _document(lambda _: LAYOUT.lineage(NEW), **fields)


def _beat(**fields: Any) -> Callable[[Archive], object]:
    return _document(lambda _: LAYOUT.writer(1, "9c2d41aa"), **fields)


SUM = "ae8b14860a799888"
LATER = "2030-01-01T00:00:00.000000Z"
BYTES: Mapping[str, Damage] = {
    # The store keeps the checksum of what it was given, where it keeps one at all.
    "a flipped byte": _as(lambda a: a.flip(a.key(OLD, 2), 300), "checksum", "checksum bytes"),
    "a flipped byte of the last": _as(
        lambda a: a.flip(a.key(NEW, 3), 300), "checksum", "checksum bytes"
    ),
    "swapped files": _as(_swap, "checksum", "checksum bytes"),
}
"""Damage to the bytes alone, which the store's own checksum tells, or only --deep."""

DAMAGES: Mapping[str, Damage] = {
    "a truncated object": _as(lambda a: _cut(a, OLD, 2), "size"),
    "a missing object": _as(lambda a: _only(a, a.key(OLD, 2)), "object-missing"),
    "a missing last object": _as(lambda a: _only(a, a.key(NEW, 3)), "object-missing"),
    "a missing entry": _as(lambda a: _only(a, a.entry(OLD, 2)), "entry-missing"),
    "a missing binlog": _as(lambda a: _only(a, a.key(OLD, 2), a.entry(OLD, 2)), "binlog-missing"),
    "a missing first binlog": _as(
        lambda a: _only(a, a.key(OLD, 1), a.entry(OLD, 1)), "binlog-missing"
    ),
    "swapped entries": _as(_swap_entries, "entry-lies"),
    "an entry that is no JSON": _as(
        lambda a: a.store.put(a.entry(OLD, 2), b"{"), "entry-unreadable"
    ),
    "an entry of another format": _as(_entry2(format=2), "entry-unreadable"),
    "an entry that is encrypted": _as(_entry2(encryption="aes"), "entry-unreadable"),
    "an entry that is encoded": _as(_entry2(encoding="zstd"), "entry-unreadable"),
    "foreign in the archive": _as(
        lambda a: a.store.put(f"{LAYOUT.archive}{OLD}/binlogs/notes.txt", b"x"), "foreign"
    ),
    "foreign beside the lineages": _as(
        lambda a: a.store.put(f"{LAYOUT.archive}notes.txt", b"x"), "foreign"
    ),
    "foreign among the chunks": _as(
        lambda a: a.store.put(f"{LAYOUT.chunks(NEW, name(4))}notes.txt", b"x"), "foreign"
    ),
    "foreign among the writers": _as(
        lambda a: a.store.put(f"{LAYOUT.writers}notes.txt", b"x"), "foreign"
    ),
    "a chunk that is not as long as its name says": _as(
        lambda a: a.store.put(LAYOUT.chunk(NEW, name(4), Chunk(0, 99, 5)), b"x"), "foreign"
    ),
    "a binlog of another name": _as(
        lambda a: a.store.put(LAYOUT.binlog(OLD, BinlogName("other", 2)), b"x"), "foreign"
    ),
    "a missing first chunk": _as(lambda a: _only(a, a.chunks[0]), "chunk-hole"),
    "a missing chunk": _as(lambda a: _only(a, a.chunks[1]), "chunk-hole"),
    "a missing last chunk": _as(lambda a: _only(a, a.chunks[2]), "durable-missing"),
    "all chunks missing": _as(lambda a: _only(a, *a.chunks), "durable-missing"),
    "a rotten chunk": _as(lambda a: a.flip(a.chunks[1], 20), "chunk-bytes"),
    "chunks that disagree": _as(_other_chunk, "chunk-disagrees", "chunk-disagrees chunk-bytes"),
    "a missing lineage.json": _as(
        lambda a: _only(a, LAYOUT.lineage(OLD)), "lineage-missing parent-missing"
    ),
    "an unreadable lineage.json": _as(
        lambda a: a.store.put(LAYOUT.lineage(OLD), b"[]"), "lineage-unreadable parent-missing"
    ),
    "a lineage.json of another lineage": _as(_child(lineage=OLD), "lineage-lies"),
    "a lineage.json of another source": _as(_child(source="other"), "lineage-lies"),
    "a lineage.json of another server": _as(_child(server__uuid=UUID_A), "lineage-lies"),
    "a lineage.json with another version": _as(_child(server__version="8.4.0"), "lineage-lies"),
    "a lineage.json of another flavour": _as(
        _child(server__flavour="mariadb"),
        "lineage-lies entry-lies parent-lies",
    ),
    "a lineage.json with another time": _as(_child(first_binlog_time=LATER), "lineage-lies"),
    "a lineage.json with other GTIDs": _as(_child(gtid_set=f"{UUID_A}:1-13"), "lineage-lies"),
    "a lineage.json that begins later": _as(_child(first_binlog=str(name(2))), "lineage-lies"),
    "a parent that is not there": _as(_child(parent__lineage=LOST), "parent-missing"),
    "a parent with another binlog": _as(_child(parent__binlog=str(name(4))), "parent-lies"),
    "a parent with a binlog that is not there": _as(
        _child(parent__binlog=str(name(9))), "parent-lies"
    ),
    "a parent beyond what is there": _as(_child(parent__offset=1 << 30), "parent-lies"),
    "a parent with another offset": _as(_child(parent__offset=300), "", "parent-lies"),
    "a parent with other GTIDs": _as(_child(parent__gtid_set=f"{UUID_A}:1-13"), "parent-lies"),
    "a parent with more GTIDs": _as(_child(parent__gtid_set=f"{UUID_A}:1-15"), "", "parent-lies"),
    "a parent behind a gap that is none": _as(_child(parent__join="gap"), "parent-lies"),
    "a parent of no join": _as(_child(parent__join="maybe"), "lineage-unreadable"),
    "a parent that lacks something": _as(_child(parent__missing=f"{UUID_A}:15"), "parent-lies"),
    "a turn of a lineage that is not there": _as(
        lambda a: a.store.put(LAYOUT.turn(99), _turn(99, LOST).to_json()), "lineage-missing"
    ),
    "a turn that cannot be read": _as(
        lambda a: a.store.put(LAYOUT.turn(99), b"{}"), "turn-unreadable"
    ),
    "a writer's object that cannot be read": _as(
        lambda a: a.store.put(LAYOUT.writer(1, "9c2d41aa"), b"{}"), "writer-unreadable"
    ),
    "a writer that says more is durable": _as(_beat(durable__offset=1 << 20), "durable-missing"),
    "a writer of a lineage that is not there": _as(_beat(lineage=LOST), "durable-missing"),
}

FIELDS: Mapping[str, Damage] = {
    "name": _as(_entry2(name=str(name(3))), "entry-lies"),
    "size": _as(_entry2(size=4000), "entry-lies size"),
    "crc64nvme": _as(_entry2(crc64nvme=SUM), "entry-lies checksum"),
    "format_event_time": _as(_entry2(format_event_time=LATER), "", "entry-lies"),
    "server_id": _as(_entry2(server_id=99), "", "entry-lies"),
    "least_commit_us": _as(_entry2(least_commit_us=1), "", "entry-lies"),
    "greatest_commit_us": _as(_entry2(greatest_commit_us=1), "entry-lies"),
    "greatest_commit_us, greater": _as(_entry2(greatest_commit_us=1 << 52), "", "entry-lies"),
    "reached_us": _as(_entry2(reached_us=1), "entry-lies"),
    "commit_times": _as(_entry2(commit_times="seconds"), "", "entry-lies"),
    "gtid_set_before": _as(_entry2(gtid_set_before=""), "gtids", "gtids entry-lies"),
    "gtid_set_added": _as(_entry2(gtid_set_added=f"{UUID_A}:4-5"), "entry-lies gtids"),
    "transactions": _as(_entry2(transactions=4), "entry-lies"),
    "anonymous_transactions": _as(_entry2(anonymous_transactions=1), "entry-lies"),
    "events": _as(_entry2(events=99), "", "entry-lies"),
    "formats": _as(_entry2(formats__0__offset=5), "entry-lies"),
    "formats, version": _as(_entry2(formats__0__server_version="8.0.1"), "", "entry-lies"),
    "formats, checksum": _as(_entry2(formats__0__checksum="none"), "", "entry-lies"),
    "block_size": _as(_entry2(block_size=1 << 20), "entry-lies"),
    "blocks, size": _as(_entry2(blocks__0__size=17), "entry-lies"),
    "blocks, crc64": _as(_entry2(blocks__0__crc64=SUM), "entry-lies"),
    "blocks, first_offset": _as(_entry2(blocks__0__first_offset=300), "", "entry-lies"),
    "blocks, first_commit_us": _as(_entry2(blocks__0__first_commit_us=1), "entry-lies"),
    "blocks, first_gtid": _as(_entry2(blocks__0__first_gtid=f"{UUID_A}:6"), "", "entry-lies"),
    "damaged": _as(_entry2(damaged=[{"begin": 300, "end": 200}]), "entry-lies"),
    "damaged, a range that is whole": _as(
        _entry2(damaged=[{"begin": 300, "end": 340}]), "", "entry-lies"
    ),
    "end": _as(_entry2(end="stop"), "entry-lies"),
    "end and next_binlog": _as(_entry2(end="stop", next_binlog=None), "", "entry-lies"),
    "next_binlog": _as(_entry2(next_binlog=str(name(9))), "entry-lies"),
}
"""An entry that lies, field by field; nothing tells when it was archived."""
