"""What `list` finds in a bucket, and how it is shown."""

import json
import re
import threading
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from io import StringIO
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from binlog2s3.archive.chunks import Chunk
from binlog2s3.archive.documents import Entry, Lineage, Parent
from binlog2s3.archive.history import current_of, parents_first
from binlog2s3.archive.layout import Layout
from binlog2s3.archive.listing import Listing, document, gather
from binlog2s3.archive.pages import SPAN, name_at
from binlog2s3.archive.sources import sources
from binlog2s3.archive.writers import Heartbeat, Position, Turn
from binlog2s3.binlog.names import BinlogName
from binlog2s3.config.bucket import LIST, ListConfig
from binlog2s3.config.given import Given
from binlog2s3.errors import ArchiveError, ObjectMissingError, StoreError
from binlog2s3.inspect.list import Notice, lines_of, notices_before, print_page, render
from binlog2s3.output import Coloured
from binlog2s3.workers import Workers
from tests.documents import BEAT, ENTRY, ID, LINEAGE, UUID, like, parent_of, turn_of
from tests.memory_store import MemoryStore
from tests.paged import entry_of, lineage_in

SOURCE = "orders"
LAYOUT = Layout("pre", SOURCE)
CHILD = "20260103T000000Z-3e11fa47-b2c3"
OTHER = "20260104T000000Z-3e11fa47-b2c3"
ENTRY_KEY = LAYOUT.entry(ID, ENTRY.name)
FIRST, SECOND, THIRD, FOURTH, FIFTH = (f"mysql-bin.00000{n}" for n in range(1, 6))


def parent(lineage: str = ID, **fields: Any) -> Parent:
    return parent_of(lineage, **{"binlog": THIRD, "gtid_set": f"{UUID}:1-9", **fields})


def child(id_: str = CHILD, first: str = FIRST, **of: Any) -> Lineage:
    name = BinlogName.parse(first)
    return like(LINEAGE, id=id_, first_binlog=name, parent=parent(**of))


class Bucket:
    """A bucket to be filled by hand; by default it has the lineage of tests/documents."""

    def __init__(self, *lineages: Lineage, layout: Layout = LAYOUT) -> None:
        self.store = MemoryStore()
        self.layout = layout
        for lineage in lineages or (LINEAGE,):
            self.store.put(layout.lineage(lineage.id), lineage.to_json())

    def archive(self, *names: str, id_: str = ID, size: int = 10, **more: Any) -> None:
        for name in map(BinlogName.parse, names):
            self.store.put(self.layout.binlog(id_, name), bytes(size))
            entry = replace(ENTRY, name=name, size=size, **more)
            self.store.put(self.layout.entry(id_, name), entry.to_json())

    def undescribed(self, *names: str, id_: str = ID) -> None:
        for name in map(BinlogName.parse, names):
            self.store.put(self.layout.binlog(id_, name), bytes(10))

    def chunk(self, name: str, *ranges: tuple[int, int], id_: str = ID) -> None:
        for begin, end in ranges:
            key = self.layout.chunk(id_, BinlogName.parse(name), Chunk(begin, end, 1))
            self.store.put(key, bytes(end - begin))

    def beat(self, beat: Heartbeat) -> None:
        self.store.put(self.layout.writer(beat.generation, beat.token), beat.to_json())
        if beat.lineage is not None:
            self.store.put(self.layout.turn(beat.generation), turn_of(beat).to_json())

    def listing(
        self, source: str | None = SOURCE, lineage: str | None = None, threads: int = 2
    ) -> Listing:
        return gather(self.store, config(source, lineage), Workers(threads))

    def states(self) -> dict[str, list[tuple[str, int, str]]]:
        """By lineage: name, size and state."""
        return {
            listed.lineage.id: [(str(b.name), b.size, b.state) for b in listed.binlogs]
            for source in self.listing().sources
            for listed in source.lineages
        }

    def text(self, **asked: Any) -> str:
        out = StringIO()
        render(self.listing(**asked), out)
        return out.getvalue()

    def notice(self) -> list[str]:
        """The lines that must not be overlooked."""
        return [
            line.text
            for source in self.listing().sources
            for listed in source.lineages
            for line in [*notices_before(listed), *lines_of(listed)]
            if isinstance(line, Notice)
        ]


def config(source: str | None = SOURCE, lineage: str | None = None) -> ListConfig:
    found, problems = LIST.build(Given({"s3-url": "s3://bucket/pre", "source": source}))
    assert found is not None, problems
    return replace(found, lineage=lineage)


def terminal(listing: Listing, width: int = 200) -> str:
    """What a terminal gets."""
    out = StringIO()
    console = Console(
        file=out, width=width, force_terminal=True, color_system="standard", _environ={}
    )
    print_page(listing, Coloured(console))
    return out.getvalue()


# Documents


def test_an_entry_is_read_as_it_was_written() -> None:
    """Every field, with nulls and with damage."""
    damaged = ({"begin": 4, "end": 9},)
    empty = replace(
        ENTRY, least_commit_us=None, greatest_commit_us=None, next_binlog=None, damaged=damaged
    )
    for entry in (ENTRY, empty, replace(ENTRY, commit_times="seconds", blocks=())):
        assert Entry.from_json(entry.to_json(), ENTRY_KEY) == entry


@given(
    number=st.integers(0, 99),
    value=st.none() | st.integers() | st.text() | st.lists(st.integers(), max_size=2),
    removed=st.booleans(),
)
def test_an_entry_with_a_field_lost_or_changed_is_read_or_refused(
    number: int, value: object, *, removed: bool
) -> None:
    """Nothing but ArchiveError; a field that is lost is always one."""
    changed: dict[str, Any] = json.loads(ENTRY.to_json())
    keys = [key for key in changed if key not in ("format", "block_size", "reached_us")]
    key = keys[number % len(keys)]
    changed[key] = value
    if removed:
        del changed[key]
        with pytest.raises(ArchiveError):
            Entry.from_json(json.dumps(changed).encode(), ENTRY_KEY)
    else:
        with suppress(ArchiveError):
            Entry.from_json(json.dumps(changed).encode(), ENTRY_KEY)


def test_a_parent_is_read_field_by_field() -> None:
    """One that has no byte has no binlog."""
    found = child(join="gap", missing=f"{UUID}:10")
    assert Lineage.from_json(found.to_json(), LAYOUT.lineage(CHILD)).parent == Parent(
        lineage=ID,
        binlog=THIRD,
        offset=157,
        gtid_set=f"{UUID}:1-9",
        join="gap",
        missing=f"{UUID}:10",
    )
    assert LINEAGE.parent is None
    bare = parent(binlog=None)
    assert (bare.binlog, bare.place) == (None, f"{ID} at its begin")


@pytest.mark.parametrize(
    "wrong", [{"join": "perhaps"}, {"join": None}, {"binlog": "../x"}, {"offset": "x"}, {}]
)
def test_a_parent_that_is_none_is_refused(wrong: Mapping[str, Any]) -> None:
    """It names the key; nothing is guessed."""
    written = json.loads(child().to_json())
    written["parent"] = {**written["parent"], **wrong} if wrong else {"lineage": ID}
    key = LAYOUT.lineage(CHILD)
    with pytest.raises(ArchiveError, match=f"{key} is not as format 1 says"):
        Lineage.from_json(json.dumps(written).encode(), key)


def test_sources_are_the_folders_of_the_archive() -> None:
    """Whatever is no source's name is foreign."""
    store = MemoryStore()
    for key in ("a/x", "b.c/x", "B-_/x", "../x", "a b/x", "file", "l" * 65 + "/x"):
        store.put(f"pre/archive/{key}", b"")
    store.put("pre/archived/other/x", b"")
    found, foreign = sources(store, "pre")
    assert sorted(found) == ["B-_", "a", "b.c"]
    assert sorted(foreign) == sorted(
        f"pre/archive/{name}" for name in ("../", "a b/", "file", "l" * 65 + "/")
    )


# What is there


def test_every_state() -> None:
    """Archived, without its entry, and open, with sizes; chunks left of archived ones hide."""
    bucket = Bucket()
    bucket.archive(FIRST, size=1234)
    bucket.undescribed(SECOND)
    bucket.chunk(FIRST, (0, 1000))
    bucket.chunk(THIRD, (0, 50), (50, 70), (10, 60))
    assert bucket.states() == {
        ID: [(FIRST, 1234, "archived"), (SECOND, 10, "undescribed"), (THIRD, 70, "open")]
    }
    assert bucket.notice() == []


def test_what_history_has_left_behind_is_unfinished() -> None:
    """Chunks before a later binlog of the lineage, and the last ones of a lineage with a child."""
    bucket = Bucket(LINEAGE, child())
    bucket.chunk(FIRST, (0, 5))
    bucket.archive(SECOND)
    bucket.chunk(THIRD, (0, 157))
    bucket.chunk(FIRST, (0, 9), id_=CHILD)
    bucket.chunk(SECOND, (0, 8), id_=CHILD)
    assert bucket.states() == {
        ID: [(FIRST, 5, "unfinished"), (SECOND, 10, "archived"), (THIRD, 157, "unfinished")],
        CHILD: [(FIRST, 9, "unfinished"), (SECOND, 8, "open")],
    }


def test_the_last_turn_says_which_lineage_is_current() -> None:
    """Whatever the ids say, and described or not; before the first the newest without a child."""
    other = like(LINEAGE, id="20270101T000000Z-3e11fa47-0000")
    lineages = [LINEAGE, child(), other]
    assert current_of(lineages, turn_of(BEAT)) == ID
    assert current_of([other], turn_of(BEAT)) == ID
    assert current_of(lineages, None) == other.id
    assert current_of([LINEAGE, child("20250101T000000Z-3e11fa47-b2c3")], None) < ID
    assert current_of([], None) == ""
    bucket = Bucket(*lineages)
    bucket.beat(replace(BEAT, generation=6, lineage=other.id))
    bucket.beat(BEAT)
    bucket.chunk(FIRST, (0, 9))
    bucket.chunk(FIRST, (0, 9), id_=other.id)
    assert bucket.states()[ID] == [(FIRST, 9, "open")]
    assert bucket.states()[other.id] == [(FIRST, 9, "unfinished")]


def test_binlogs_stand_in_their_order() -> None:
    """Of numbers, not of texts."""
    first = replace(LINEAGE, first_binlog=BinlogName.parse("b.999998"))
    bucket = Bucket(first)
    names = ["b.999998", "b.999999", "b.1000000", "b.1000001"]
    bucket.archive(*reversed(names))
    (rows,) = bucket.states().values()
    assert [name for name, _, _ in rows] == names
    assert bucket.notice() == []


IDS = st.sampled_from([f"2026010{n}T000000Z-3e11fa47-b2c{n}" for n in range(1, 9)])


@given(parents=st.dictionaries(IDS, st.none() | IDS))
def test_ancestry_has_each_lineage_once_and_parents_first(parents: dict[str, str | None]) -> None:
    """Where parents make a circle, or are not there, all are shown nevertheless."""
    lineages = [
        like(LINEAGE, id=id_, parent=parent(of) if of else None) for id_, of in parents.items()
    ]
    order = [lineage.id for lineage in parents_first(lineages)]
    assert sorted(order) == sorted(parents)
    for id_ in order:
        above, at = [], parents[id_]
        while at in parents and at not in above:
            above.append(at)
            at = parents[at]
        if at not in above:  # no circle
            assert all(order.index(one) < order.index(id_) for one in above)


def test_a_long_line_of_lineages() -> None:
    """No deeper than the stack is."""
    ids = [f"20260102T030405Z-3e11fa47-{n:04x}" for n in range(3000)]
    lineages = [like(LINEAGE, id=ids[0])]
    lineages += [like(LINEAGE, id=b, parent=parent(a)) for a, b in zip(ids, ids[1:])]  # noqa: B905, RUF007
    assert [lineage.id for lineage in parents_first(reversed(lineages))] == ids


# What is not there


UNPROVED = (
    f"GAP: nothing proves that {CHILD} continues from {ID} at {THIRD}:157; missing: not known"
)


@pytest.mark.parametrize(
    ("join", "missing", "lines"),
    [
        ("exact", "", []),
        ("gap", "a:1-5", [f"GAP: missing between {ID} at {THIRD}:157 and {CHILD}: a:1-5"]),
        ("gap", "", [f"GAP: missing between {ID} at {THIRD}:157 and {CHILD}: not known"]),
        (
            "unknown",
            "",
            [UNPROVED],
        ),
    ],
)  # fmt: skip
def test_a_join_that_is_not_exact_has_a_line(join: str, missing: str, lines: list[str]) -> None:
    """Of its own, between the lineages, also where only the child was asked for."""
    bucket = Bucket(LINEAGE, child(join=join, missing=missing))
    assert bucket.notice() == lines
    for lineage in (None, CHILD):
        text = bucket.text(lineage=lineage).splitlines()
        assert [line for line in text if line.startswith("GAP")] == lines
        for line in lines:
            assert text[text.index(line) + 1].startswith(f"lineage {CHILD}")
            assert lineage or text.index(f"lineage {ID}") < text.index(line)


def test_a_parent_that_is_not_in_the_bucket_has_a_line() -> None:
    """And its child is shown."""
    bucket = Bucket(child())
    bucket.archive(FIRST, id_=CHILD)
    assert bucket.states() == {CHILD: [(FIRST, 10, "archived")]}
    assert bucket.notice() == [
        f"GAP: {CHILD} continues from {ID} at {THIRD}:157, which is not in the bucket"
    ]
    (source,) = document(bucket.listing())["sources"]
    assert source["lineages"][0]["parent_there"] is False


def test_a_missing_number_has_a_line_in_its_place() -> None:
    """Before the first one, and between; several together are one line."""
    bucket = Bucket()
    bucket.archive(SECOND, FIFTH)
    gaps = [
        f"GAP: missing in {ID}: {FIRST}",
        f"GAP: missing in {ID}: {THIRD} to {FOURTH} (2 binlogs)",
    ]
    assert bucket.notice() == gaps
    text = bucket.text().splitlines()
    at = [text.index(gap) for gap in gaps]
    assert text[at[0] + 1].split()[0] == SECOND
    assert at[1] == at[0] + 2
    assert text[at[1] + 1].split()[0] == FIFTH
    (source,) = document(bucket.listing())["sources"]
    assert source["lineages"][0]["missing"] == [
        {"first": FIRST, "last": FIRST, "count": 1, "under_way": False},
        {"first": THIRD, "last": FOURTH, "count": 2, "under_way": False},
    ]


def test_what_the_writer_has_not_come_to_is_no_gap() -> None:
    """Binlogs go up side by side: behind its durable position a later one may be there before."""
    bucket = Bucket()
    bucket.archive(FIRST, THIRD, FIFTH)
    durable = Position(binlog=BinlogName.parse(SECOND), offset=4, gtid_set="")
    bucket.beat(replace(BEAT, durable=durable))
    assert bucket.notice() == [
        f"GAP: missing in {ID}: {SECOND}",
        f"not in the bucket yet: {FOURTH}; the writer has not reached it",
    ]
    (source,) = document(bucket.listing())["sources"]
    assert [one["under_way"] for one in source["lineages"][0]["missing"]] == [False, True]


def test_the_writer_of_another_lineage_excuses_nothing() -> None:
    """What a lineage that was left behind lacks will not come."""
    bucket = Bucket(LINEAGE, child())
    bucket.archive(FIRST, THIRD)
    bucket.beat(replace(BEAT, lineage=CHILD, durable=None))
    assert bucket.notice() == [f"GAP: missing in {ID}: {SECOND}"]


def test_a_hole_between_chunks_is_shown() -> None:
    """The size is what can be read; in a lineage that was left behind the hole is a gap."""
    bucket = Bucket(LINEAGE, child())
    bucket.chunk(FIRST, (0, 5), (7, 9))
    bucket.chunk(FIRST, (0, 5), (8, 9), id_=CHILD)
    assert bucket.notice() == [f"GAP: missing in {FIRST}: bytes 5 to 7"]
    (source,) = document(bucket.listing())["sources"]
    assert [(b["size"], b["hole"]) for one in source["lineages"] for b in one["binlogs"]] == [
        (5, 7),
        (5, 8),
    ]


def test_a_hole_is_looked_at_again() -> None:
    """Chunks come and go under a listing, which alone may have it."""
    bucket = Bucket()
    bucket.chunk(FIRST, (0, 5), (7, 9))
    lists: list[str] = []

    def close(operation: str) -> None:
        if operation == "list":
            lists.append(operation)
            if len(lists) == 3:  # the writers, the chunks, and now the archive
                bucket.chunk(FIRST, (5, 7))

    bucket.store.on_call = close
    assert bucket.states() == {ID: [(FIRST, 9, "open")]}


def test_damage_has_a_line() -> None:
    """Below its binlog."""
    bucket = Bucket()
    bucket.archive(FIRST, damaged=({"begin": 4, "end": 9},))
    assert bucket.notice() == [f"DAMAGED: {FIRST}: begin=4 end=9"]


# What cannot be read


def test_foreign_keys_are_named_once_and_not_all_of_very_many() -> None:
    """In live/, in the archive and beside the sources."""
    bucket = Bucket()
    bucket.archive(FIRST)
    odd = [
        f"{LAYOUT.binlogs(ID)}notes.txt",
        f"{LAYOUT.entries(ID)}{FIRST}",
        f"{LAYOUT.archive}notes.txt",
        f"{LAYOUT.chunks(ID, BinlogName.parse(SECOND))}0-9",
        f"{LAYOUT.live}notes.txt",
        f"{LAYOUT.writers}notes.txt",
        "pre/archive/notes.txt",
    ]
    for key in odd:
        bucket.store.put(key, b"")
    said = "ignored, not part of this archive's format: "
    assert bucket.listing(source=None).warnings == [said + key for key in sorted(odd)]
    for number in range(99):
        bucket.store.put(f"{LAYOUT.live}odd-{number}", b"")
    warnings = bucket.listing(source=None).warnings
    assert len(warnings) == 21
    assert warnings[-1] == f"and {99 + len(odd) - 20} more ignored objects"


def test_chunks_of_a_lineage_that_nothing_describes_are_named() -> None:
    """They may be all there is of it."""
    bucket = Bucket()
    bucket.chunk(FIRST, (0, 9), id_=CHILD)
    assert bucket.listing().warnings == [
        f"{SOURCE}: there are chunks of lineage {CHILD}, but it has no lineage.json"
    ]


def test_a_current_lineage_that_nothing_describes_is_named() -> None:
    """No lineage is shown as current then, and that is said."""
    bucket = Bucket()
    turn = Turn(number=1, lineage=CHILD, generation=1, token="0" * 16)
    bucket.store.put(bucket.layout.turn(1), turn.to_json())
    assert bucket.listing().warnings == [
        f"{SOURCE}: lineage {CHILD} is the current one, but it has no readable lineage.json"
    ]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"{", "is not JSON"),
        (ENTRY.to_json(), f"its key ends with entries/{ENTRY.name}.json"),
        (replace(ENTRY, name=BinlogName.parse(FIRST)).to_json(), f"says {ENTRY.size}"),
    ],
)
def test_an_entry_that_is_wrong_hides_no_other_one(data: bytes, words: str) -> None:
    """It is named, its binlog is as one without an entry."""
    bucket = Bucket()
    bucket.archive(FIRST, SECOND)
    bucket.store.put(LAYOUT.entry(ID, BinlogName.parse(FIRST)), data)
    assert bucket.states() == {ID: [(FIRST, 10, "undescribed"), (SECOND, 10, "archived")]}
    (warning,) = bucket.listing().warnings
    assert words in warning
    assert FIRST in warning


@pytest.mark.parametrize("data", [b"{", b'{"format": 2}', b"[]"])
def test_a_lineage_that_cannot_be_read_hides_no_other_one(data: bytes) -> None:
    """It is named; alone it is an error, which says what is wrong with it."""
    bucket = Bucket()
    bucket.archive(FIRST)
    key = LAYOUT.lineage(CHILD)
    bucket.store.put(key, data)
    for source in (SOURCE, None):
        listing = bucket.listing(source=source)
        assert [one.lineage.id for one in listing.sources[0].lineages] == [ID]
        (warning,) = listing.warnings
        assert key in warning
        assert warning.endswith("its lineage is not shown")
    bucket.store.delete([LAYOUT.lineage(ID)])
    with pytest.raises(ArchiveError, match=key):
        bucket.listing()


def test_an_entry_that_vanishes_is_as_none() -> None:
    """Between the listing and the reading."""
    bucket = Bucket()
    bucket.archive(FIRST)
    gets = []

    def vanish(operation: str) -> None:
        gets.append(operation) if operation == "get" else None
        if operation == "get" and len(gets) == 2:  # the first one is lineage.json
            raise ObjectMissingError("gone")

    bucket.store.on_call = vanish
    assert bucket.states() == {ID: [(FIRST, 10, "undescribed")]}


def test_a_store_that_fails_ends_it() -> None:
    """A shorter list would be a lie."""
    bucket = Bucket()
    bucket.archive(FIRST, SECOND)
    gets = []

    def fail(operation: str) -> None:
        gets.append(operation) if operation == "get" else None
        if len(gets) == 3:
            raise StoreError("no")

    bucket.store.on_call = fail
    with pytest.raises(StoreError, match="no"):
        bucket.listing()


def test_entries_are_read_side_by_side() -> None:
    """As many at a time as there are threads, and how far it is is told."""
    bucket = Bucket()
    bucket.archive(*(f"mysql-bin.{n:06}" for n in range(1, 9)))
    together, gets = threading.Barrier(4), [0]

    def wait(operation: str) -> None:
        if operation == "get":
            gets[0] += 1
            if threading.current_thread() is not threading.main_thread():
                together.wait(60)  # raises where fewer come

    bucket.store.on_call = wait
    told: list[tuple[int, int]] = []
    gather(bucket.store, config(), Workers(4), lambda done, total: told.append((done, total)))
    assert told == [(done, 8) for done in range(1, 9)]
    assert gets == [1 + 8]


# What is asked for


def test_only_the_bucket_must_be_named() -> None:
    """Neither a source, nor what `stream` wants of the server."""
    assert LIST.build(Given({})) == (None, ["--s3-url is missing"])
    assert LIST.build(Given({}, wrong=frozenset({"s3-url"}))) == (None, [])
    assert (config(None).source, config(None).lineage) == (None, None)


def test_all_sources_or_one_and_one_lineage() -> None:
    """Without a name all of them; a lineage is found in whichever source it is."""
    bucket = Bucket(LINEAGE, child())
    other = Layout("pre", "stock")
    theirs = like(LINEAGE, id="20270101T000000Z-3e11fa47-0000", source="stock")
    bucket.store.put(other.lineage(theirs.id), theirs.to_json())

    def found(**asked: Any) -> list[tuple[str, list[str]]]:
        return [
            (source.name, [listed.lineage.id for listed in source.lineages])
            for source in bucket.listing(**asked).sources
        ]

    assert found(source=None) == [(SOURCE, [ID, CHILD]), ("stock", [theirs.id])]
    assert found() == [(SOURCE, [ID, CHILD])]
    assert found(lineage=CHILD) == [(SOURCE, [CHILD])]
    assert found(source=None, lineage=theirs.id) == [("stock", [theirs.id])]


@pytest.mark.parametrize(
    ("source", "lineage", "message", "hint"),
    [
        ("order", None, "there is nothing of source order below s3://bucket/pre", f": {SOURCE}"),
        (SOURCE, "x", f"there is no lineage x of source {SOURCE} below s3://bucket/pre", ID),
        (None, "x", "there is no lineage x below s3://bucket/pre", ID),
    ],
)
def test_what_is_not_there_is_an_error(
    source: str | None, lineage: str | None, message: str, hint: str
) -> None:
    """Exit code 7, with what there is instead."""
    with pytest.raises(ArchiveError, match=f"^{message}$") as caught:
        Bucket().listing(source=source, lineage=lineage)
    assert hint in caught.value.hint


@pytest.mark.parametrize("source", [None, SOURCE])
def test_an_empty_bucket_is_an_error(source: str | None) -> None:
    """With a hint at the option that may be wrong; foreign things do not make it a list."""
    store = MemoryStore()
    store.put("pre/archive/other/thing/x", b"")
    if source:
        store.put(f"pre/archive/{source}x/thing/x", b"")
    store.put("pre/archive/x", b"")
    with pytest.raises(ArchiveError, match=r"^there is nothing") as caught:
        gather(store, config(source), Workers(1))
    assert caught.value.exit_code == 7
    assert caught.value.hint


# How it is shown


def test_plain_text_is_aligned_and_whole() -> None:
    """Every value, in columns, nothing cut, no colours."""
    gtids = ",".join(f"{n:08}-71ca-11e1-9e33-c80aa9429562:1-{n}" for n in range(1, 20))
    bucket = Bucket()
    bucket.archive(FIRST, size=1234, gtid_set_added=gtids)
    bucket.chunk(SECOND, (0, 70))
    assert (
        bucket.text()
        == f"""\
source orders

lineage {ID} (current)
  server  {UUID}, mysql 9.7.0
  begins  {FIRST}, 2026-01-02T03:04:05Z
  after   {UUID}:1-5
  binlog            size  state     first commit          last commit           archived\
              GTIDs added
  mysql-bin.000001  1234  archived  2026-11-21T09:28:29Z  2026-11-21T09:28:29Z  \
2026-01-02T03:04:05Z  {gtids}
  mysql-bin.000002    70  open      -                     -                     -\
                     -
  2 binlogs, 1.3 KiB

"""
    )


def test_a_lineage_without_binlogs_is_shown() -> None:
    """Its writer may have just begun; where it came from is said."""
    text = Bucket(LINEAGE, child()).text()
    assert text.count("no binlogs yet") == 2
    assert f"  parent  {ID} at {THIRD}:157, join exact\n          after {UUID}:1-9\n" in text


def test_a_terminal_gets_colours_and_gaps_in_red() -> None:
    """States have their colours, and a narrow terminal loses no name, size or state."""
    bucket = Bucket()
    bucket.archive(FIRST, THIRD)
    listing = bucket.listing()
    gap = f"GAP: missing in {ID}: {SECOND}"
    assert f"\x1b[1;31m{gap}\x1b[0m" in terminal(listing)
    assert "\x1b[32marchived" in terminal(listing)
    assert "\x1b[" not in bucket.text()


@pytest.mark.parametrize("width", [40, 80, 100, 120, 200])
def test_a_narrow_terminal_cuts_nothing(width: int) -> None:
    """Times and GTIDs fold, or stand below; no line is longer than the terminal."""
    gtids = f"{UUID}:1-5:7-9:11-1000000000:1000000002"
    bucket = Bucket()
    bucket.archive(FIRST, size=1234, gtid_set_added=gtids)
    lines = re.sub(r"\x1b\[[0-9;]*m", "", terminal(bucket.listing(), width)).splitlines()
    assert max(map(len, lines)) <= width
    shown, whole = (Counter("".join(text.split())) for text in ("".join(lines), bucket.text()))
    heading_and_times = Counter("GTIDsadded" + 3 * "T")
    assert shown <= whole
    assert whole - shown <= heading_and_times
    if width >= 80:
        words = " ".join(lines).split()
        for word in (FIRST, "1234", "archived", "2026-11-21", "09:28:29Z", "03:04:05Z"):
            assert word in words
    if width in (80, 100, 200):
        assert gtids in " ".join(lines).split()


EVIL = "\x1b[2J\x1b[31m\nGAP: x\r\u202e"


def test_nothing_from_the_bucket_commands_the_terminal() -> None:
    """Escapes, line breaks and the like of a document, and of a key, are shown, not sent."""
    markup = "[red]x[/red]"
    bucket = Bucket(
        like(LINEAGE, server_version=markup),
        child(join="gap", missing=markup),
        like(LINEAGE, id=OTHER, server_version=EVIL),
    )
    bucket.archive(FIRST, gtid_set_added=EVIL)
    bucket.store.put(f"{LAYOUT.archive}{EVIL}", b"")
    listing = bucket.listing()
    plain = bucket.text()
    assert plain.replace("\n", "").isprintable()
    assert "\nGAP: x" not in plain
    assert "[red]x[/red]" in plain
    coloured = terminal(listing, 1000)
    assert "\x1b[2J" not in coloured
    assert "\r" not in coloured
    assert "\u202e" not in coloured
    assert "\nGAP: x" not in coloured
    assert "[red]x[/red]" in coloured


@pytest.mark.parametrize("time", [10**30, 10**18, -1, 1.5, True, "1"])
def test_times_beyond_all_calendars_are_none(time: object) -> None:
    """An entry with one is not as the format says."""
    bucket = Bucket()
    bucket.archive(FIRST, least_commit_us=time)
    assert bucket.states() == {ID: [(FIRST, 10, "undescribed")]}


def test_entries_come_from_pages() -> None:
    """Of 1,000 binlogs with a page, nothing is read but the page; a younger entry is read."""
    store = MemoryStore()
    lineage_in(store, LINEAGE, SPAN + 4)
    before = store.calls["get"]
    listing = gather(store, config(SOURCE, None), Workers(2))
    assert store.calls["get"] - before == 1 + 1 + 5  # the lineage, the page, the others' entries
    (lineage,) = listing.sources[0].lineages
    assert [binlog.state for binlog in lineage.binlogs] == ["archived"] * (SPAN + 4)
    key = LAYOUT.entry(ID, name_at(LINEAGE, 7))
    store.put(key, replace(entry_of(LINEAGE, 7), transactions=99).to_json())
    (lineage,) = gather(store, config(SOURCE, None), Workers(2)).sources[0].lineages
    (seventh,) = (one for one in lineage.binlogs if one.name == name_at(LINEAGE, 7))
    assert seventh.entry is not None
    assert seventh.entry.transactions == 99
