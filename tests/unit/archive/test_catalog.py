"""What lies in the bucket: keys, documents, and what is not ours."""

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from datetime import timedelta, timezone

import pytest

from binlog2s3.archive.catalog import Catalog
from binlog2s3.archive.documents import Entry, EntryEnd, Lineage, lineage_id
from binlog2s3.archive.layout import Layout
from binlog2s3.archive.writers import Heartbeat, Unlogged
from binlog2s3.binlog.names import BinlogName
from binlog2s3.errors import ArchiveError
from tests.binlog_writer import BinlogWriter
from tests.documents import (
    BEAT,
    ENTRY,
    FLOOR,
    ID,
    LINEAGE,
    NAME,
    TIME,
    UUID,
    like,
    parent_of,
    turn_of,
)
from tests.memory_store import MemoryStore

LAYOUT = Layout("p", "orders")


@pytest.mark.parametrize(("prefix", "root"), [("", ""), ("a", "a/"), ("a/b", "a/b/")])
def test_keys_are_those_of_format_1(prefix: str, root: str) -> None:
    """Byte for byte: strangers rely on them."""
    layout = Layout(prefix, "orders")
    assert layout.lineage(ID) == f"{root}archive/orders/{ID}/lineage.json"
    assert layout.binlog(ID, NAME) == f"{root}archive/orders/{ID}/binlogs/mysql-bin.000002"
    assert layout.entry(ID, NAME) == f"{root}archive/orders/{ID}/entries/mysql-bin.000002.json"
    assert layout.writer(7, "9c2d41aa") == f"{root}live/orders/writers/000007-9c2d41aa.json"
    assert layout.writer(12345678, "9c2d41aa").endswith("/12345678-9c2d41aa.json")
    assert layout.binlog(ID, NAME).startswith(layout.binlogs(ID))
    assert layout.entry(ID, NAME).startswith(layout.entries(ID))
    assert layout.writer(7, "9c2d41aa").startswith(layout.writers)
    assert layout.lineage(ID).startswith(layout.archive)
    assert layout.turn(7) == f"{root}archive/orders/turns/00000007.json"
    assert layout.turn(7).startswith(layout.turns)


def test_lineage_ids() -> None:
    """UTC time of the first format event, 8 of the uuid, 4 random; they sort by time."""
    zone = timezone(timedelta(hours=2))
    assert lineage_id(TIME.astimezone(zone), UUID.upper(), "a1b2") == ID


UNLOGGED = Unlogged(since=TIME, first=BinlogName.parse("b.000009"), last=None)
EMPTY = replace(
    ENTRY,
    least_commit_us=None,
    greatest_commit_us=None,
    next_binlog=None,
    commit_times="seconds",
    blocks=(),
    damaged=({"begin": 4, "end": 9},),
)


@pytest.mark.parametrize(
    ("document", "key"),
    [
        (LINEAGE, LAYOUT.lineage(ID)),
        (
            like(LINEAGE, flavour="mariadb", server_uuid="00000001-00000000", gtid_set="0-1-5"),
            LAYOUT.lineage(ID),
        ),
        (
            replace(LINEAGE, gtid_set="", parent=parent_of(ID, join="gap", binlog=None)),
            LAYOUT.lineage(ID),
        ),
        (replace(LINEAGE, parent=parent_of(ID, join="gap", unlogged=True)), LAYOUT.lineage(ID)),
        (replace(LINEAGE, first_binlog=BinlogName.parse("büro.1000000")), LAYOUT.lineage(ID)),
        (BEAT, LAYOUT.writer(*BEAT.rank)),
        (
            replace(BEAT, durable=None, server=None, lineage=None, covered_until=None),
            LAYOUT.writer(*BEAT.rank),
        ),
        (
            replace(BEAT, unlogged=UNLOGGED, leaves_out=("binlog_do_db=shop",)),
            LAYOUT.writer(*BEAT.rank),
        ),
        (ENTRY, LAYOUT.entry(ID, NAME)),
        (EMPTY, LAYOUT.entry(ID, NAME)),
    ],
)
def test_what_is_written_is_read_again(document: Lineage | Heartbeat | Entry, key: str) -> None:
    """Equal; with and without what may be null, and with what a later version adds."""
    assert type(document).from_json(document.to_json(), key) == document
    more = json.dumps(json.loads(document.to_json()) | {"later": 1}).encode()
    assert type(document).from_json(more, key) == document


def test_an_entry_says_all_that_it_was_given() -> None:
    """Digests as hex, times as ISO 8601 in UTC, blocks field by field."""
    document = json.loads(ENTRY.to_json())
    assert document["crc64nvme"] == "ae8b14860a799888"
    assert document["format_event_time"] == "2026-01-02T03:04:05.000000Z"
    assert document["blocks"] == [asdict(ENTRY.blocks[0]) | {"crc64": "000000000000000a"}]
    assert document["commit_times"] == "exact"
    assert (document["encoding"], document["encryption"], document["damaged"]) == (
        "none",
        "none",
        [],
    )
    assert json.loads(replace(ENTRY, commit_times="seconds").to_json())["commit_times"] == "seconds"


def _here(read: Callable[[bytes, str], object], key: str) -> Callable[..., object]:
    """It reads a document of the key that the document says, unless another is given."""
    return lambda data, other=key: read(data, other)


READERS: list[tuple[Callable[..., object], bytes]] = [
    (_here(Lineage.from_json, LAYOUT.lineage(ID)), LINEAGE.to_json()),
    (_here(Entry.from_json, LAYOUT.entry(ID, NAME)), ENTRY.to_json()),
    (_here(EntryEnd.from_json, LAYOUT.entry(ID, NAME)), ENTRY.to_json()),
    (_here(Heartbeat.from_json, LAYOUT.writer(*BEAT.rank)), BEAT.to_json()),
]


@pytest.mark.parametrize(("read", "data"), READERS)
@pytest.mark.parametrize("format_", [0, 2, "1", None])
def test_other_formats_are_refused(
    read: Callable[..., object], data: bytes, format_: object
) -> None:
    """By name, with a hint that a newer version may have written it."""
    other = json.dumps(json.loads(data) | {"format": format_}).encode()
    with pytest.raises(ArchiveError, match=f"^the/key is of format {format_!r}") as caught:
        read(other, "the/key")
    assert "newer" in caught.value.hint


@pytest.mark.parametrize("value", ["zstd", [], {}])
@pytest.mark.parametrize("field", ["encoding", "encryption"])
def test_an_entry_of_another_encoding_is_refused(field: str, value: object) -> None:
    """A reader that does not know it must not take the bytes for a binlog."""
    document = json.loads(ENTRY.to_json()) | {field: value}
    with pytest.raises(ArchiveError, match="encoding or encryption"):
        EntryEnd.from_json(json.dumps(document).encode(), LAYOUT.entry(ID, NAME))


@pytest.fixture
def store() -> MemoryStore:
    """An empty bucket."""
    return MemoryStore()


def test_another_source_is_not_ours(store: MemoryStore) -> None:
    """Not even one whose name begins with ours."""
    other = Layout("p", "orders-2")
    store.put(other.lineage(ID), LINEAGE.to_json())
    store.put(other.writer(9, "00000000"), BEAT.to_json())
    catalog = Catalog(store, LAYOUT)
    assert (catalog.lineages(), catalog.writers(), catalog.foreign) == ([], {}, {})


def test_foreign_keys_are_named_and_left_alone(store: MemoryStore) -> None:
    """Whatever else lies in our folders: nothing is deleted, nothing is taken for ours."""
    foreign = {
        f"{LAYOUT.archive}README",
        f"{LAYOUT.archive}not-a-lineage/lineage.json",
        f"{LAYOUT.binlogs(ID)}mysql-bin.index",
        f"{LAYOUT.binlogs(ID)}mysql-bin.000009.gz",
        f"{LAYOUT.binlogs(ID)}sub/mysql-bin.000009",
        f"{LAYOUT.entries(ID)}mysql-bin.000002.json.bak",
        f"{LAYOUT.entries(ID)}mysql-bin.000002",
        f"{LAYOUT.writers}7-9c2d41aa.json",
        f"{LAYOUT.writers}000007-9c2d41aa.json.bak",
        f"{LAYOUT.writers}000007-9C2D41AA.json",
    }
    for key in foreign:
        store.put(key, b"x")
    store.put(LAYOUT.lineage(ID), LINEAGE.to_json())
    before = dict(store.objects)
    catalog = Catalog(store, LAYOUT)
    assert catalog.lineages() == [LINEAGE]
    archived = catalog.archived(LINEAGE)
    assert (dict(archived.binlogs), archived.entries) == ({}, {})
    assert catalog.writers() == {}
    folder = f"{LAYOUT.archive}not-a-lineage/"
    assert catalog.foreign.keys() == {k for k in foreign if not k.startswith(folder)} | {folder}
    assert store.objects == before


def test_a_lineage_without_its_description_is_foreign(store: MemoryStore) -> None:
    """It is named, and not guessed at."""
    store.put(LAYOUT.binlog(ID, NAME), b"x")
    catalog = Catalog(store, LAYOUT)
    assert catalog.lineages() == []
    assert catalog.foreign.keys() == {f"{LAYOUT.archive}{ID}/"}


def test_a_lineage_of_a_format_to_come_is_an_error(store: MemoryStore) -> None:
    """An old streamer must not go on beside a history that it cannot read."""
    document = json.loads(LINEAGE.to_json()) | {"format": 2}
    store.put(LAYOUT.lineage(ID), json.dumps(document).encode())
    with pytest.raises(ArchiveError, match="format 2"):
        Catalog(store, LAYOUT).lineages()


def test_writers_by_rank(store: MemoryStore) -> None:
    """Generations compare as numbers, over the end of the six digits too."""
    for generation in (7, 999_999, 1_000_000):
        beat = replace(BEAT, generation=generation)
        store.put(LAYOUT.writer(*beat.rank), beat.to_json())
    catalog = Catalog(store, LAYOUT)
    ranks = sorted(catalog.writers())
    assert ranks == [(7, BEAT.token), (999_999, BEAT.token), (1_000_000, BEAT.token)]
    assert [beat.generation for beat in catalog.heartbeats(ranks)] == [7, 999_999, 1_000_000]


def test_the_last_turn(store: MemoryStore) -> None:
    """The greatest number, over the end of the eight digits too; what is no turn is foreign."""
    catalog = Catalog(store, LAYOUT)
    assert catalog.turn() is None
    for number in (9, 99_999_999, 100_000_000):
        turn = turn_of(BEAT, number)
        store.put(LAYOUT.turn(number), turn.to_json())
        assert catalog.turn() == turn
    assert catalog.lineages() == []
    assert not catalog.foreign
    others = {f"{LAYOUT.turns}{name}" for name in ("1.json", "x", "0100000001.json")}
    for key in others:
        store.put(key, b"{}")
    assert catalog.turn() == turn
    assert catalog.foreign.keys() == others


@pytest.mark.parametrize(
    "data",
    [
        b"{}",
        turn_of(BEAT, 2).to_json(),
        replace(turn_of(BEAT, 1), lineage="/tmp/x").to_json(),
        replace(turn_of(BEAT, 1), number=True).to_json(),
    ],
)
def test_a_turn_that_is_none(store: MemoryStore, data: bytes) -> None:
    """Another format, number or name: nothing is guessed."""
    store.put(LAYOUT.turn(1), data)
    with pytest.raises(ArchiveError, match=r"turns/00000001\.json"):
        Catalog(store, LAYOUT).turn()


def test_a_writer_that_vanishes_hides_no_other(store: MemoryStore) -> None:
    """Those behind it are read: what they proved is carried on; what is none is foreign."""
    catalog = Catalog(store, LAYOUT)
    store.put(LAYOUT.writer(4, "00000000"), b"{}")
    for generation in (1, 3):
        beat = replace(BEAT, generation=generation, token="00000000")
        store.put(LAYOUT.writer(generation, "00000000"), beat.to_json())
    ranks = [(generation, "00000000") for generation in (1, 2, 3, 4)]
    assert [beat.generation for beat in catalog.heartbeats(ranks)] == [1, 3]
    assert catalog.foreign.keys() == {LAYOUT.writer(4, "00000000")}


def test_what_may_have_been_pruned() -> None:
    """What comes before the floor, and not the floor itself."""
    floored = replace(LINEAGE, floor=FLOOR)
    name = FLOOR.binlog
    before = BinlogName(name.prefix, name.number - 1)
    assert [floored.is_below_floor(one) for one in (before, name, name.next())] == [
        True,
        False,
        False,
    ]
    assert not LINEAGE.is_below_floor(before)


@pytest.mark.parametrize(("created", "started"), [(0, False), (7, True)])
def test_an_entry_of_an_older_version_gets_what_its_binlog_says(
    created: int, *, started: bool
) -> None:
    """Whether a start of the server began it: of MariaDB, where that shows rows left out."""
    store, lineage = MemoryStore(), like(LINEAGE, flavour="mariadb")
    data = bytes(BinlogWriter(server_version="11.4.2-MariaDB-log", created=created).data)
    store.put(LAYOUT.binlog(ID, NAME), data)
    catalog, entry = Catalog(store, LAYOUT), replace(ENTRY, name=NAME, size=len(data))
    assert entry.started is None
    assert catalog.with_start(lineage, entry).started is started
    assert catalog.with_start(LINEAGE, entry).started is None
    gone = replace(entry, name=NAME.next())
    assert catalog.with_start(lineage, gone).started is None


def test_which_binlogs_may_lack_rows() -> None:
    """All from the first one on, until the server wrote one again."""
    seen, ends = UNLOGGED, replace(UNLOGGED, last=BinlogName("b", 10))
    names = [BinlogName("b", 8), BinlogName("b", 9), BinlogName("b", 10), BinlogName("b", 11)]
    assert [ends.covers(name) for name in names] == [False, True, True, False]
    assert seen.covers(names[3])
    assert not seen.covers(BinlogName("c", 9))
