from itertools import pairwise
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from binlog2s3.binlog.gtid import GtidSet, GtidSetBuilder, MariadbGtidList

UUIDS = ["3e11fa47-71ca-11e1-9e33-c80aa9429562", "b4308ccf-e58d-11f1-9e92-02fc00000001"]

Gtid = tuple[str, str, int]
runs = st.tuples(
    st.sampled_from(UUIDS), st.sampled_from(["", "blue"]), st.integers(1, 30), st.integers(1, 9)
)
gtids = st.lists(runs, max_size=12).map(
    lambda found: [
        (uuid, tag, first + n) for uuid, tag, first, count in found for n in range(count)
    ]
)
lists = st.dictionaries(
    st.tuples(st.integers(0, 2), st.integers(1, 3)), st.integers(0, 9), max_size=9
)


def made(numbers: list[Gtid]) -> GtidSet:
    """The set that a builder makes of these."""
    builder = GtidSetBuilder()
    for gtid in numbers:
        builder.add(*gtid)
    return builder.build()


def spread(gtid_set: GtidSet) -> set[Gtid]:
    """Every single GTID of a set."""
    return {
        (uuid, tag, gno)
        for uuid, tag, intervals in gtid_set.runs()
        for first, last in intervals
        for gno in range(first, last + 1)
    }


@given(gtids, gtids)
@settings(deadline=None)
def test_sets_behave_as_sets(left: list[Gtid], right: list[Gtid]) -> None:
    """Every operation gives what Python's own sets of single GTIDs give."""
    a, b, plain_a, plain_b = made(left), made(right), set(left), set(right)
    assert spread(a) == plain_a
    assert spread(a | b) == plain_a | plain_b
    assert spread(a - b) == plain_a - plain_b
    assert spread(a & b) == plain_a & plain_b
    assert (a <= b) == (plain_a <= plain_b)
    assert (a >= b) == (plain_a >= plain_b)
    assert (a == b) == (plain_a == plain_b)
    assert a.count == len(plain_a)
    assert bool(a) == bool(plain_a)
    assert all((gtid in a) == (gtid in plain_a) for gtid in right)


@given(gtids, st.randoms(use_true_random=False))
@settings(deadline=None)
def test_text_and_order_of_arrival_do_not_matter(numbers: list[Gtid], random: Random) -> None:
    """Shuffled, doubled, through the text and back: always the same set with the same text."""
    shuffled = numbers * 2
    random.shuffle(shuffled)
    a, b = made(numbers), made(shuffled)
    assert a == b
    assert str(a) == str(b)
    assert hash(a) == hash(b)
    assert GtidSet.parse(str(a)) == a
    pieces = [f"{uuid}:{tag}:{gno}" if tag else f"{uuid}:{gno}" for uuid, tag, gno in shuffled]
    assert GtidSet.parse(",\n".join(pieces)) == a
    for _, _, intervals in a.runs():
        assert all(x[1] + 1 < y[0] for x, y in pairwise(intervals))


@given(lists, lists)
@settings(deadline=None)
def test_mariadb_lists_are_ordered_by_domain_and_server(
    left: dict[tuple[int, int], int], right: dict[tuple[int, int], int]
) -> None:
    """A union is at least both, text is faithful, and <= looks at each domain and server."""
    a, b = MariadbGtidList(left), MariadbGtidList(right)
    assert MariadbGtidList.parse(str(a)) == a
    assert (a == b) == (left == right)
    assert a <= a | b
    assert b <= a | b
    assert (a | b) == (b | a)
    assert (a <= b) == all(key in right and seq <= right[key] for key, seq in left.items())
