"""What `list` finds in a bucket, and how it is shown."""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from io import StringIO
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from binlog2s3.archive.chunks import Chunk
from binlog2s3.archive.documents import Lineage, Parent
from binlog2s3.archive.history import current_of, parents_first
from binlog2s3.archive.layout import Layout
from binlog2s3.archive.listing import Listing, gather
from binlog2s3.archive.pages import SPAN, name_at
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


DURABLE = replace(BEAT, durable=Position(binlog=BinlogName.parse(SECOND), offset=4, gtid_set=""))
ELSEWHERE = replace(BEAT, lineage=CHILD, durable=None)
Fill = Callable[[Bucket], object]


@pytest.mark.parametrize(
    ("lineages", "fill", "notices"),
    [
        ([child()], lambda b: b.archive(FIRST, id_=CHILD),
         [f"GAP: {CHILD} continues from {ID} at {THIRD}:157, which is not in the bucket"]),
        ([LINEAGE], lambda b: b.archive(SECOND, FIFTH),
         [f"GAP: missing in {ID}: {FIRST}",
          f"GAP: missing in {ID}: {THIRD} to {FOURTH} (2 binlogs)"]),
        # binlogs go up side by side: behind the writer's durable position a later one may be there
        ([LINEAGE], lambda b: (b.archive(FIRST, THIRD, FIFTH), b.beat(DURABLE)),
         [f"GAP: missing in {ID}: {SECOND}",
          f"not in the bucket yet: {FOURTH}; the writer has not reached it"]),
        # what a lineage that was left behind lacks will not come
        ([LINEAGE, child()], lambda b: (b.archive(FIRST, THIRD), b.beat(ELSEWHERE)),
         [f"GAP: missing in {ID}: {SECOND}"]),
        ([LINEAGE, child()], lambda b: b.chunk(FIRST, (0, 5), (7, 9)),
         [f"GAP: missing in {FIRST}: bytes 5 to 7"]),
        ([LINEAGE], lambda b: b.chunk(FIRST, (0, 5), (7, 9)), []),
        ([LINEAGE], lambda b: b.archive(FIRST, damaged=({"begin": 4, "end": 9},)),
         [f"DAMAGED: {FIRST}: begin=4 end=9"]),
    ],
)  # fmt: skip
def test_what_is_missing_or_damaged_has_a_line(
    lineages: list[Lineage], fill: Fill, notices: list[str]
) -> None:
    """Several numbers together are one; tests/golden has them in their places."""
    bucket = Bucket(*lineages)
    fill(bucket)
    assert bucket.notice() == notices


def test_the_size_of_a_binlog_with_a_hole_is_what_can_be_read() -> None:
    """Also of one that is open."""
    bucket = Bucket(LINEAGE, child())
    bucket.chunk(FIRST, (0, 5), (7, 9))
    bucket.chunk(FIRST, (0, 5), (8, 9), id_=CHILD)
    assert bucket.states() == {ID: [(FIRST, 5, "unfinished")], CHILD: [(FIRST, 5, "open")]}


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


# What cannot be read


def test_foreign_keys_are_named_once_and_not_all_of_very_many() -> None:
    """With the sources and in them; tests/unit/archive/test_catalog.py has all places."""
    bucket = Bucket()
    bucket.archive(FIRST)
    odd = [f"{LAYOUT.live}notes.txt", "pre/archive/notes.txt"]
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


# What is asked for


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


# How it is shown


def test_a_gap_is_red_on_a_terminal() -> None:
    """It must not be overlooked."""
    bucket = Bucket(child())
    assert "\x1b[1;31mGAP" in terminal(bucket.listing())


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
