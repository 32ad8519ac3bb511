"""Whoever deletes chunks, and however old what he knows is, no byte that was durable is lost."""

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from binlog2s3.archive.chunks import Chunk, Chunks, Flushes, join
from tests.sampling import examples

LENGTH = 16


def a_chunk(length: int = LENGTH) -> st.SearchStrategy[Chunk]:
    bounds = st.tuples(st.integers(0, length), st.integers(0, length))
    ranges = bounds.filter(lambda pair: pair[0] != pair[1]).map(sorted)
    return st.builds(lambda pair, crc: Chunk(*pair, crc), ranges, st.integers(0, 1))


SETS = st.frozensets(a_chunk(), max_size=14)
RANGES = st.tuples(st.integers(0, LENGTH), st.integers(1, LENGTH)).map(
    lambda pair: (pair[0], pair[0] + pair[1])
)


def held(chunks: frozenset[Chunk]) -> set[int]:
    """The offsets of all bytes that are in some chunk."""
    return {offset for chunk in chunks for offset in range(chunk.begin, chunk.end)}


def first_missing(chunks: frozenset[Chunk]) -> int:
    offsets = held(chunks)
    return next(offset for offset in range(LENGTH + 1) if offset not in offsets)


@settings(max_examples=examples(400))
@given(SETS)
def test_join_is_the_rule_of_the_document(chunks: frozenset[Chunk]) -> None:
    """Followed literally; all bytes up to the first that nobody has, each from one chunk."""
    have = 0
    for needed in join(chunks):
        fitting = [chunk for chunk in chunks if chunk.begin <= have]
        assert needed in fitting
        assert have < needed.end == max(chunk.end for chunk in fitting)
        have = needed.end
    assert have == first_missing(chunks) == Chunks(chunks).end
    begins = [0, *(chunk.end for chunk in join(chunks))]
    for begin, later in zip(begins, join(chunks)[1:], strict=False):
        assert begin < later.begin  # only neighbours overlap: a reader relies on it


@settings(max_examples=examples(400))
@given(SETS, RANGES, st.integers(0, LENGTH))
def test_what_chunks_hold(chunks: frozenset[Chunk], wanted: tuple[int, int], least: int) -> None:
    """`cover` and `exact`, against counting bytes."""
    begin, end = wanted
    large = held(frozenset(chunk for chunk in chunks if chunk.size >= least))
    ours = Chunks(chunks)
    for _ in range(2):  # the second answer is a remembered one
        assert ours.cover(begin, end, least) == (set(range(begin, end)) <= large)
    exact = [chunk for chunk in chunks if (chunk.begin, chunk.end) == wanted]
    found = ours.exact(begin, end)
    assert (found in exact) if exact else found is None


@settings(max_examples=examples(400))
@given(SETS)
def test_superfluous_is_all_that_longer_ones_hold(chunks: frozenset[Chunk]) -> None:
    """Literally: every byte of it in chunks of a greater rank, and nothing else."""
    expected = {
        chunk
        for chunk in chunks
        if held(frozenset({chunk}))
        <= held(frozenset(other for other in chunks if other.rank > chunk.rank))
    }
    assert Chunks(chunks).superfluous == expected


@settings(max_examples=examples(400))
@given(SETS, st.data())
def test_any_part_of_the_superfluous_may_go(chunks: frozenset[Chunk], data: st.DataObject) -> None:
    """A deletion that stops anywhere uncovers no byte."""
    superfluous = Chunks(chunks).superfluous
    gone = {chunk for chunk in sorted(superfluous) if data.draw(st.booleans())}
    assert held(chunks - gone) == held(chunks)


class Writers(RuleBasedStateMachine):
    """Two writers put, look, forget and delete, in any order, each by what it knows."""

    def __init__(self) -> None:
        super().__init__()
        self.there: frozenset[Chunk] = frozenset()
        self.ever: frozenset[Chunk] = frozenset()
        self.known: list[frozenset[Chunk]] = [frozenset(), frozenset()]

    @rule(writer=st.integers(0, 1), chunk=a_chunk())
    def put(self, writer: int, chunk: Chunk) -> None:
        """Also one that was deleted before: a late retry."""
        self.there |= {chunk}
        self.ever |= {chunk}
        self.known[writer] |= {chunk}

    @rule(writer=st.integers(0, 1), chunk=a_chunk())
    def put_and_lose_the_reply(self, writer: int, chunk: Chunk) -> None:
        """It is there, and its writer does not know."""
        assert writer in (0, 1)
        self.there |= {chunk}
        self.ever |= {chunk}

    @precondition(lambda self: self.there)
    @rule(writer=st.integers(0, 1), data=st.data())
    def look(self, writer: int, data: st.DataObject) -> None:
        """A listing, or a part of it; what was known and is gone may be kept in mind."""
        seen = data.draw(st.frozensets(st.sampled_from(sorted(self.there))))
        keep = data.draw(st.booleans())
        self.known[writer] = seen | (self.known[writer] if keep else frozenset())

    @precondition(lambda self: any(self.known))
    @rule(writer=st.integers(0, 1), data=st.data())
    def delete(self, writer: int, data: st.DataObject) -> None:
        """Some of what it holds to be superfluous, one request or many."""
        superfluous = sorted(Chunks(self.known[writer]).superfluous)
        if superfluous:
            gone = data.draw(st.frozensets(st.sampled_from(superfluous)))
            self.there -= gone
            if data.draw(st.booleans()):
                self.known[writer] -= gone

    @invariant()
    def what_was_durable_is(self) -> None:
        """Every byte that ever was in the bucket still is."""
        assert held(self.there) == held(self.ever)


TestWriters = Writers.TestCase
TestWriters.settings = settings(max_examples=examples(150), stateful_step_count=40)


@settings(max_examples=50)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=600), st.integers(0, 5))
def test_flushes_of_any_sizes(sizes: list[int], base: int) -> None:
    """What is not superfluous lies side by side up to the last flush, at most 15 a level."""
    flushes, there, ends = Flushes.start(base), Chunks(), [base]
    for size in sizes:
        ends.append(ends[-1] + size)
        made = [Chunk(flushes.end, ends[-1], 0)]
        flushes = flushes.flushed(ends[-1])
        while flushes.merge is not None:
            made.append(Chunk(*flushes.merge, 0))
            flushes = flushes.merged()
        assert [ends.index(one.end) - ends.index(one.begin) for one in made] == (
            [1, 16, 256][: len(made)]
        )
        there = there.plus(made)
        there = there.minus(there.superfluous)
        bounds = [base, *(chunk.end for chunk in sorted(there))]
        assert [chunk.begin for chunk in sorted(there)] == bounds[:-1]
        assert bounds[-1] == ends[-1]
    spans = [ends.index(chunk.end) - ends.index(chunk.begin) for chunk in there]
    assert all(spans.count(span) <= 15 for span in (1, 16, 256))
