"""Whatever fails and whenever, the decision brings a binlog into the archive, and loses none.

A machine drives `decide` with a toy store. Every action may fail before it acts, or after it (the
reply is lost); what is known may be forgotten at any time; uploads may vanish; another writer may
archive the same binlog first.
"""

from itertools import pairwise
from typing import Literal

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from binlog2s3.archive import (Action, Complete, CreateUpload, Held, Look, Observed, PutEntry, PutPart, PutWhole, Release, Verify, decide)
from binlog2s3.grid import (Grid)

GRID = Grid(4)
Fault = Literal["none", "before", "after"]


class LostError(Exception):
    """The store's answer: none."""


class Refused(LostError):  # noqa: N818 - an answer, not a fault
    """The store's answer: something lies there already, or the upload is gone."""


def fail_if(failing: bool) -> None:
    """Raise LostError, or do nothing."""
    if failing:
        raise LostError


class ToyStore:
    """One key, its entry, its uploads. What it holds is never a guess."""

    def __init__(self) -> None:
        self.object: bytes | None = None
        self.entry = False
        self.uploads: dict[str, dict[int, bytes]] = {}
        self.ids = 0

    def put(self, data: bytes) -> None:
        """If absent."""
        if self.object is not None:
            raise Refused
        self.object = data

    def create(self) -> str:
        """A new upload."""
        self.ids += 1
        self.uploads[f"u{self.ids}"] = {}
        return f"u{self.ids}"

    def part(self, upload: str, number: int, data: bytes) -> None:
        """Into an upload that is there."""
        if upload not in self.uploads:
            raise Refused
        self.uploads[upload][number] = data

    def complete(self, upload: str, numbers: list[int]) -> None:
        """If absent, from exactly these parts."""
        if self.object is not None or upload not in self.uploads:
            raise Refused
        parts = self.uploads.pop(upload)
        self.object = b"".join(parts[number] for number in numbers)


class ArchivingMachine(RuleBasedStateMachine):
    """The uploader in little: knows `held`, acts, learns from what it was told."""

    def __init__(self) -> None:
        super().__init__()
        self.store = ToyStore()
        self.binlog = b""
        self.closed = False
        self.held: Held | None = None
        self.released = False

    @initialize(size=st.integers(0, 30))
    def begin(self, size: int) -> None:
        """A binlog has some bytes."""
        self.grow(size)

    @precondition(lambda self: not self.closed)
    @rule(size=st.integers(1, 9))
    def grow(self, size: int) -> None:
        """The server writes; every byte has a value of its own place."""
        begin = len(self.binlog)
        self.binlog += bytes((begin + i) % 251 for i in range(size))

    @precondition(lambda self: self.binlog)
    @rule()
    def close(self) -> None:
        """The server goes on to the next binlog."""
        self.closed = True

    @precondition(lambda self: not self.released)
    @rule()
    def forget(self) -> None:
        """The process dies and starts again."""
        self.held = None

    @rule()
    def lose_uploads(self) -> None:
        """The store throws unfinished uploads away, as some do after a day."""
        self.store.uploads.clear()

    @precondition(lambda self: self.closed and self.store.object is None)
    @rule(with_entry=st.booleans())
    def another_writer(self, *, with_entry: bool) -> None:
        """A frozen process thaws and archives the same bytes."""
        self.store.put(self.binlog)
        self.store.entry = with_entry

    @precondition(lambda self: not self.released)
    @rule(faults=st.lists(st.sampled_from(["none", "none", "before", "after"]), max_size=4))
    def step(self, faults: list[Fault]) -> None:
        """Do what is decided, each action with its own luck."""
        actions = decide(self.observed, GRID)
        for action, fault in zip(actions, [*faults, *["none"] * len(actions)], strict=False):
            if self.held is None and not isinstance(action, Look):
                return  # an action of the same decision has failed: all is to be looked at again
            self.attempt(action, fault)

    @property
    def observed(self) -> Observed:
        """What the decision is given."""
        return Observed(size=len(self.binlog), closed=self.closed, held=self.held)

    def attempt(self, action: Action, fault: str) -> None:
        """One action; after a failure nothing is known any more."""
        try:
            fail_if(fault == "before")
            learned = self.act(action)
            fail_if(fault == "after" and not isinstance(action, Release))
        except LostError:
            self.held = None
        else:
            self.held = learned

    def act(self, action: Action) -> Held:  # noqa: PLR0911 - one for each action
        """What an action does in the store, and what is known then."""
        held, store = self.held or Held(), self.store
        known = {name: getattr(held, name) for name in Held.__slots__}
        upload = held.upload_id or ""
        match action:
            case Look():
                uploads = sorted(store.uploads.items(), key=lambda item: len(item[1]))
                found = uploads[-1] if uploads else (None, {})
                return Held(
                    object_there=store.object is not None,
                    entry_there=store.entry,
                    upload_id=found[0],
                    parts=frozenset(self.ours(found[1])),
                )
            case PutWhole():
                store.put(self.binlog)
                return Held(**known | {"object_there": True})
            case CreateUpload():
                return Held(**known | {"upload_id": store.create(), "parts": frozenset()})
            case PutPart(part):
                store.part(upload, part.number, self.binlog[part.begin : part.end])
                return Held(**known | {"parts": held.parts | {part.number}})
            case Complete():
                store.complete(upload, sorted(held.parts))
                return Held(**known | {"object_there": True})
            case Verify():
                assert store.object == self.binlog
                return Held(**known | {"verified": True})
            case PutEntry():
                store.entry = True
                return Held(**known | {"entry_there": True})
            case Release():
                self.released = True
        return held

    def ours(self, parts: dict[int, bytes]) -> set[int]:
        """Those of an upload's parts that are our bytes as they are now."""
        wanted = {part.number: part for part in GRID.parts(len(self.binlog))}
        return {
            number
            for number, data in parts.items()
            if number in wanted
            and data == self.binlog[wanted[number].begin : wanted[number].end]
            and (wanted[number].full or self.closed)
        }

    @invariant()
    def nothing_is_in_the_archive_but_the_whole_binlog(self) -> None:
        """An object is there only of a closed binlog, and is that binlog."""
        if self.store.object is not None:
            assert self.closed
            assert self.store.object == self.binlog

    @invariant()
    def an_entry_speaks_of_an_object(self) -> None:
        """Never the other way round."""
        assert self.store.object is not None or not self.store.entry

    @invariant()
    def released_only_after_both(self) -> None:
        """The local copy goes last."""
        if self.released:
            assert self.store.object == self.binlog
            assert self.store.entry

    def teardown(self) -> None:
        """When nothing fails any more it ends, in a bounded number of steps, with all done."""
        if not self.binlog:
            return
        self.closed = True
        for _ in range(12):
            if self.released:
                break
            self.step(faults=[])
        assert self.released
        assert (self.store.object, self.store.entry) == (self.binlog, True)


TestArchiving = ArchivingMachine.TestCase
TestArchiving.settings = settings(
    max_examples=200,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)


@given(part_size=st.integers(1, 50), size=st.integers(0, 60_000))
def test_parts_cover_a_binlog_and_never_overlap(part_size: int, size: int) -> None:
    """From 0 to its size, each beginning where the one before ended, in ascending numbers."""
    parts = list(Grid(part_size).parts(size))
    assert [part.number for part in parts] == list(range(1, len(parts) + 1))
    assert all(one.end == other.begin and one.full for one, other in pairwise(parts))
    assert all(part.begin < part.end for part in parts)
    assert (parts[0].begin, parts[-1].end) == (0, size) if parts else size == 0


@given(
    part_size=st.integers(1, 50),
    size=st.integers(0, 5000),
    more=st.integers(0, 5000),
)
def test_full_parts_stay_what_they_are_while_a_binlog_grows(
    part_size: int, size: int, more: int
) -> None:
    """A part is a function of the part size and its number alone."""
    grid = Grid(part_size)
    full = [part for part in grid.parts(size) if part.full]
    assert list(grid.parts(size + more))[: len(full)] == full
