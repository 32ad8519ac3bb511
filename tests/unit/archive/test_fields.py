"""What the documents of a bucket may hold: each is checked where it is read."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, replace
from datetime import date
from typing import Annotated, Any, ClassVar

import pytest

from binlog2s3.archive.backups import Backup, new_id
from binlog2s3.archive.catalog import Catalog, read
from binlog2s3.archive.codec import Document, Printed, hints_of
from binlog2s3.archive.documents import Entry, EntryEnd, Lineage, LineageFloor
from binlog2s3.archive.drills import DrillResult
from binlog2s3.archive.layout import Layout
from binlog2s3.archive.pages import Page, build
from binlog2s3.archive.writers import Heartbeat, Retired, Standby, Turn, Unlogged
from binlog2s3.binlog.zone import SystemZone
from binlog2s3.errors import ArchiveError, MisplacedError
from tests.documents import (
    BACKUP,
    BEAT,
    DRILL,
    ENTRY,
    FLOOR,
    ID,
    LINEAGE,
    NAME,
    TIME,
    UUID,
    parent_of,
    turn_of,
)
from tests.memory_store import MemoryStore

LAYOUT = Layout("p", "orders")
ZONE = SystemZone(
    name="SYSTEM",
    offsets={date(2026, 1, 1): 3600, date(2026, 4, 1): 7200, date(2026, 11, 1): 3600},
)
CHILD = replace(LINEAGE, parent=parent_of(ID, gtid_set=f"{UUID}:1-5"), time_zone=ZONE)
ZONED = replace(ENTRY, time_zone=ZONE, started=True, leaves_out=("binlog_ignore_db=tmp",))
UNLOGGED = Unlogged(since=TIME, first=NAME, last=NAME.next())
WRITER = replace(BEAT, time_zone=ZONE, unlogged=UNLOGGED, leaves_out=("binlog_ignore_db=tmp",))
DOUBTFUL = replace(BACKUP, defects=("it has one database",), accepted="by the operator")
PAGE = build(LINEAGE, 0, {NAME.number: ZONED}, None)
STANDBY = Standby(
    token=BEAT.token,
    source=BEAT.source,
    host="db2",
    pid=7,
    version="1",
    since=BEAT.since,
    at=BEAT.at,
    interval_seconds=30.0,
    unsaved_bytes=0,
)
RETIRED = Retired(source="orders", retired_at=TIME)
KINDS: Mapping[str, tuple[type[Document], str, bytes]] = {
    "lineage": (Lineage, LAYOUT.lineage(ID), CHILD.to_json()),
    "entry": (Entry, LAYOUT.entry(ID, NAME), ZONED.to_json()),
    "end": (EntryEnd, LAYOUT.entry(ID, NAME), ENTRY.to_json()),
    "writer": (Heartbeat, LAYOUT.writer(*BEAT.rank), WRITER.to_json()),
    "floor": (LineageFloor, LAYOUT.floor(ID, NAME.number), FLOOR.to_json()),
    "turn": (Turn, LAYOUT.turn(BEAT.generation), turn_of(BEAT).to_json()),
    "page": (Page, LAYOUT.page(ID, 0), PAGE.to_json()),
    "standby": (Standby, LAYOUT.standby(BEAT.token), STANDBY.to_json()),
    "retired": (Retired, LAYOUT.retired, RETIRED.to_json()),
    "backup": (Backup, LAYOUT.backup(BACKUP.id), DOUBTFUL.to_json()),
    "drill": (DrillResult, LAYOUT.drill(DRILL.id), DRILL.to_json()),
}
LATER = {
    "gtids_outside", "time_zone", "unlogged", "status", "leaves_out", "started", "gtids_go_back",
    "reached_us", "block_size", "checked", "restored", "doubts",
}  # fmt: skip
"""What older versions did not write; they are read."""
EVERY = pytest.mark.parametrize("what", KINDS)

TRAVERSAL = (
    "/tmp/x",
    "..",
    "../../x",
    "a/../../b",
    "",
    ".",
    "x\0y",
    "x\ny",
    "\x1b[2J",
    7,
    None,
    [],
)
NAMES = (*TRAVERSAL, "mysql-bin.1/../../x.1", "-rf.000001", "../x.000001", "x." + "1" * 19, "x.1\n")
TEXTS = ("\x1b[2J", "a\nerror: forged", "\u202e", "\x9b2J", "\ud800", 7, [], "x" * 2000)
GTIDS = ("'; DROP TABLE t; --", "\x1b[2J", "a\nb", 7, [], "x\u202e")
ZONED_KINDS = ("lineage", "entry", "writer")
OFFSETS = (10**6, 1.5, True, "3600", None, 10**30, [], {})
CHANGES: tuple[object, ...] = (
    {},
    [],
    {"2026-01-02": 0},
    {"x": 0},
    {"2026-01-01": 0, "2026-01-02": 0},
    {"9999-01-01": 0},
)
NUMBERS = (-1, 1.5, True, "1", 10**18 * 10, 10**30, [], {})


def changed(data: bytes, path: str, value: object) -> bytes:
    """The document with this value in a place, whose steps are parted by dots; ... for none."""
    document: Any = json.loads(data)
    inner, *steps = document, *path.split(".")
    for step in steps[:-1]:
        inner = inner[int(step)] if isinstance(inner, list) else inner[step]
    last = int(steps[-1]) if isinstance(inner, list) else steps[-1]
    if value is ...:
        del inner[last]
    else:
        inner[last] = value
    return json.dumps(document).encode()


WRONG = [
    *(("lineage", "lineage", value) for value in TRAVERSAL),
    *(("lineage", "source", value) for value in TRAVERSAL),
    *(("lineage", "first_binlog", value) for value in NAMES),
    *(("lineage", "gtid_set", value) for value in GTIDS),
    *(("lineage", "server.version", value) for value in TEXTS),
    *(("lineage", "server.uuid", value) for value in (*TEXTS, "../x")),
    *(("lineage", "first_binlog_time", value) for value in (*NUMBERS, "x", "0001-01-01T00:00+14")),
    *(("lineage", "parent.lineage", value) for value in TRAVERSAL),
    *(("lineage", "parent.binlog", value) for value in NAMES if value is not None),
    *(("lineage", "parent.gtid_set", value) for value in GTIDS),
    *(("lineage", "parent.missing", value) for value in TEXTS[:-1]),
    *(("lineage", "parent.offset", value) for value in NUMBERS),
    *(("entry", "name", value) for value in NAMES),
    *((kind, "next_binlog", value) for kind in ("entry", "end") for value in NAMES if value),
    *((kind, "gtid_set_before", value) for kind in ("entry", "end") for value in GTIDS),
    *((kind, "gtid_set_added", value) for kind in ("entry", "end") for value in GTIDS),
    *((kind, "size", value) for kind in ("entry", "end") for value in NUMBERS),
    *(("entry", "end", value) for value in TEXTS),
    *(("entry", "least_commit_us", value) for value in NUMBERS),
    *(("entry", "blocks.0.first_gtid", value) for value in GTIDS),
    *(("entry", "blocks.0.first_offset", value) for value in NUMBERS),
    *(("entry", "formats.0.server_version", value) for value in TEXTS),
    *(("entry", "damaged", value) for value in ([{}], [[]], [{"begin": "x", "end": 9}], {}, 7)),
    *(("writer", "host", value) for value in TEXTS),
    *(("writer", "version", value) for value in TEXTS),
    *(("writer", "state", value) for value in TEXTS),
    *(("writer", "token", value) for value in (*TEXTS, "../../x")),
    *(("writer", "source", value) for value in TRAVERSAL),
    *(("writer", "lineage", value) for value in TRAVERSAL if value is not None),
    *(("writer", "durable.binlog", value) for value in NAMES),
    *(("writer", "durable.gtid_set", value) for value in GTIDS),
    *(("writer", "server.offset", value) for value in NUMBERS),
    *(("writer", "interval_seconds", value) for value in ("1", True, [], 10**30)),
    *((kind, "time_zone.name", value) for kind in ZONED_KINDS for value in TEXTS),
    *((kind, "time_zone.offsets.2026-01-01", value) for kind in ZONED_KINDS for value in OFFSETS),
    *((kind, "time_zone.offsets", value) for kind in ZONED_KINDS for value in CHANGES),
]


@pytest.mark.parametrize(("what", "path", "value"), WRONG)
def test_no_field_holds_what_the_grammar_does_not_allow(
    what: str, path: str, value: object
) -> None:
    """Nothing that becomes a path, a key, a statement or a line of a log; the key is named."""
    kind, key, data = KINDS[what]
    store = MemoryStore()
    store.put(key, changed(data, path, value))
    with pytest.raises(ArchiveError) as caught:
        read(store, key, kind)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 600


HOSTILE: Mapping[type, tuple[object, ...]] = {
    int: (-1, 2**63, 2**64, 10**30, 1.5, 1e300, True, "1", "", [], {}, None),
    float: ("30", True, [], {}, None),
    str: (7, 1.5, True, [], {}, ["x"], "\x1b[2J", "a\nb", "\u202e", "\ud800", "\x7f", None),
    bool: (0, 1, 1.0, "true", [], {}, "\ud800"),
    list: (7, "x", {}, True, [7], [[]], [{}], [None], ["\ud800"], None),
    dict: (7, "x", [], True, [{}], {}, None),
}
"""What is wrong instead of a value of each type."""
NULL = {
    "parent", "binlog", "position", "lineage", "gtid_set", "least_commit_us", "greatest_commit_us",
    "reached_us", "next_binlog", "leaves_out", "time_zone", "first_offset", "first_commit_us",
    "first_gtid", "status", "unlogged", "last", "durable", "server", "covered_until", "step",
    "backup", "proven_until",
}  # fmt: skip
"""The fields of some document that may be null."""


def paths(what: str) -> Iterator[tuple[str, str, object]]:
    """Each field that a kind of document reads: its path, its name, and its value."""

    def below(value: Any, where: str = "") -> Iterator[tuple[str, str, object]]:
        for name, one in value.items() if isinstance(value, dict) else enumerate(value):
            if not where.startswith("status."):  # whoever reads the status checks it
                yield f"{where}{name}", str(name), one
            if isinstance(one, (dict, list)):
                yield from below(one, f"{where}{name}.")

    kind, _, data = KINDS[what]
    own = {one.name for one in fields(kind)} | {"format", "encoding", "encryption"}  # type: ignore[arg-type]
    for path, name, value in below(json.loads(data)):
        if path.partition(".")[0] in own:
            yield path, name, value


def refused(kind: type[Document], data: bytes, key: str) -> str:
    """Why the document is not read; "" if it is."""
    try:
        kind.from_json(data, key)
    except ArchiveError as error:
        return str(error)
    return ""


@EVERY
def test_a_value_of_another_type_is_refused(what: str) -> None:
    """In each field of each kind of document: numbers, texts, flags, lists and objects."""
    kind, key, data = KINDS[what]
    for path, name, value in paths(what):
        for wrong in HOSTILE.get(type(value), ()):
            free = (wrong is None and name in NULL) or (wrong == {} and path == "status")
            if free or (wrong == -1 and "offsets" in path):  # west of Greenwich
                continue
            why = refused(kind, changed(data, path, wrong), key)
            assert why, f"{path} may be {wrong!r}"
            assert why.isprintable()
            assert len(why) < 600


@EVERY
def test_a_document_has_each_field(what: str) -> None:
    """One that lacks a field is refused, but for those that older versions did not write."""
    kind, key, data = KINDS[what]
    for path, name, _ in paths(what):
        if name.isdecimal() or "offsets." in path:
            continue
        short = changed(data, path, ...)
        assert bool(refused(kind, short, key)) != (name in LATER), path


def test_a_time_zone_is_read_as_it_was_written() -> None:
    """In each document that has one, and it may be missing: 0.2.0 did not write it."""
    for kind, key, data in (KINDS[what] for what in ZONED_KINDS):
        assert kind.from_json(data, key).time_zone == ZONE  # type: ignore[attr-defined]
        document = json.loads(data)
        del document["time_zone"]
        bare = kind.from_json(json.dumps(document).encode(), key)
        assert bare.time_zone is None  # type: ignore[attr-defined]


MISPLACED: list[tuple[str, Callable[[], tuple[str, bytes]]]] = [
    ("lineage", lambda: (Layout("p", "other").lineage(ID), LINEAGE.to_json())),
    ("lineage", lambda: (LAYOUT.lineage(ID.replace("a1b2", "a1b3")), LINEAGE.to_json())),
    ("entry", lambda: (LAYOUT.entry(ID, NAME.next()), ENTRY.to_json())),
    ("end", lambda: (LAYOUT.entry(ID, NAME.next()), ENTRY.to_json())),
    ("floor", lambda: (LAYOUT.floor(ID, FLOOR.binlog.number + 1), FLOOR.to_json())),
    ("backup", lambda: (LAYOUT.backup(new_id(TIME)), BACKUP.to_json())),
    ("writer", lambda: (Layout("p", "other").writer(*BEAT.rank), BEAT.to_json())),
    ("writer", lambda: (LAYOUT.writer(8, BEAT.token), BEAT.to_json())),
    ("writer", lambda: (LAYOUT.writer(7, "19b7ca9945841aa8"), BEAT.to_json())),
]


@pytest.mark.parametrize(("what", "made"), MISPLACED)
def test_a_document_of_another_key_is_refused(
    what: str, made: Callable[[], tuple[str, bytes]]
) -> None:
    """Another source's, lineage's, binlog's or writer's; where it belongs it is read."""
    kind, key, data = KINDS[what]
    store = MemoryStore()
    store.put(key, data)
    assert read(store, key, kind)
    other, moved = made()
    store.put(other, moved)
    with pytest.raises(MisplacedError, match="in the wrong place"):
        read(store, other, kind)


@EVERY
def test_a_document_is_read_up_to_a_limit(what: str) -> None:
    """As docs/format.md says; of a larger one not a byte is read."""
    kind, key, data = KINDS[what]
    large = dict.fromkeys(("entry", "end"), 64 << 20) | {"standby": 1 << 16}
    large |= dict.fromkeys(("lineage", "floor", "page", "backup"), 16 << 20)
    assert large.get(what, 1 << 20) == kind.MOST
    store = MemoryStore()
    store.put(key, data + b" " * (kind.MOST - len(data)))
    assert read(store, key, kind)
    store.put(key, data + b" " * (kind.MOST - len(data) + 1))
    with pytest.raises(ArchiveError, match=f"larger than {kind.MOST} bytes"):
        read(store, key, kind)


@EVERY
@pytest.mark.parametrize(
    "more",
    [
        b'"format": 1, "format": 1',
        b'"later": ' + b"[" * 100_000 + b"]" * 100_000,
        b'"later": [' + b"[]," * 100_000 + b"[]]",
        b'"later": ' + b"9" * 5_000,
        b'"later": ' + b"9" * 21,
        b'"later": NaN',
        b'"later": -Infinity',
        b'"later": 1e999',
        b'"later": "\xed\xa0\x80"',
    ],
)
def test_what_json_leaves_open_is_refused(what: str, more: bytes) -> None:
    """A field given twice, depth, many lists, huge numbers, what is no number or no text."""
    kind, key, data = KINDS[what]
    store = MemoryStore()
    store.put(key, b"{" + more + b"," + data.strip()[1:])
    large = len(more) > kind.MOST
    with pytest.raises(ArchiveError, match="is larger than" if large else "is not JSON"):
        read(store, key, kind)


def test_a_writer_never_puts_more_than_readers_take() -> None:
    """Very large GTID sets are left out, which the format allows, and the status."""
    assert BEAT.durable is not None
    many = ",".join(f"{UUID}:{number}" for number in range(1, 60_000, 2))
    beat = replace(BEAT, durable=replace(BEAT.durable, gtid_set=many))
    found = Heartbeat.from_json(beat.fitting.to_json(), LAYOUT.writer(*BEAT.rank))
    assert found.durable is not None
    assert (found.durable.binlog, found.durable.gtid_set) == (BEAT.durable.binlog, "")
    assert (found.status, found.state) == (None, BEAT.state)


@pytest.mark.parametrize(
    "name",
    [
        "0" * 12 + "0000007-19b7ca9945841aa9.json",
        "9" * 19 + "-19b7ca9945841aa9.json",
        "9" * 5000 + "-19b7ca9945841aa9.json",
        "0000007-19b7ca9945841aa9.json",
        "000007-19b7ca9945841aa9.json\n",
        "000007-../x.json",
    ],
)
def test_a_writer_of_another_name_is_foreign(name: str) -> None:
    """Its generation has 6 to 18 digits, as they are written: no key is made up of others."""
    store = MemoryStore()
    store.put(f"{LAYOUT.writers}{name}", BEAT.to_json())
    catalog = Catalog(store, LAYOUT)
    assert catalog.writers() == {}
    assert catalog.foreign.keys() == {f"{LAYOUT.writers}{name}"}


def test_a_time_zone_is_written_and_read_by_the_days_of_its_changes() -> None:
    """An older version leaves the field out: that makes no other entry of it."""
    key = LAYOUT.entry(ID, ZONED.name)
    assert ZONED.time_zone is not None
    days = [str(day) for day in ZONED.time_zone.offsets]
    assert [*json.loads(ZONED.to_json())["time_zone"]["offsets"]] == days
    found = Entry.from_json(ZONED.to_json(), key)
    assert found.time_zone == ZONED.time_zone
    assert found == replace(found, time_zone=None, started=None, leaves_out=None)


FIRST_IN_MANY_THREADS = """
import sys, threading
from dataclasses import make_dataclass
from binlog2s3.archive.codec import converted

def read():
    start.wait()
    converted({"i3": {"f1": 1}, "i39": {"f2": 3}}, kind)

sys.setswitchinterval(1e-6)
fields = [(f"f{n}", int | None, None) for n in range(30)]
for _ in range(20):
    inner = [(f"i{n}", make_dataclass(f"I{n}", fields) | None, None) for n in range(40)]
    kind = make_dataclass("Outer", inner)
    start = threading.Barrier(8)
    threads = [threading.Thread(target=read) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
"""


def test_threads_read_the_first_document_of_a_type_at_the_same_time() -> None:
    """msgspec looks at a type when it is first used, and two threads at once end the process."""
    done = subprocess.run([sys.executable, "-c", FIRST_IN_MANY_THREADS], check=False)
    assert done.returncode == 0


class Shown(Printed):
    """A row of it."""

    unit: ClassVar[str] = "bytes"
    from_: str
    size: Annotated[int, "bytes"]


def test_the_fields_of_what_is_printed_are_those_that_json_has() -> None:
    """By the names that they have there, with all that their types say."""
    assert list(hints_of(Shown).items()) == [("from", str), ("size", Annotated[int, "bytes"])]
