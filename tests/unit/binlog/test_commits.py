"""When the oldest transaction that is not durable was committed."""

from hypothesis import given
from hypothesis import strategies as st

from binlog2s3.binlog.transactions import Commits


def test_nothing_is_known_of_nothing() -> None:
    """No transaction, no time."""
    commits = Commits()
    assert (commits.oldest_us, commits.newest_us) == (None, None)


def test_the_first_of_a_slice_counts_until_its_last_is_durable() -> None:
    """Within a slice nobody knows; the age is never less than the truth."""
    commits = Commits()
    commits.note(100, 200, 20)
    commits.note(300, 300, 30)
    assert commits.oldest_us == 100
    assert commits.passed(19) == []
    assert (commits.oldest_us, commits.newest_us) == (100, None)
    assert commits.passed(20) == [100]
    assert (commits.oldest_us, commits.newest_us) == (300, 200)
    assert commits.passed(30) == [300]
    assert (commits.oldest_us, commits.newest_us) == (None, 300)


@given(st.integers(1, 5000), st.data())
def test_many_are_bounded_and_never_too_young(count: int, data: st.DataObject) -> None:
    """However many wait, few groups are kept, and the oldest that waits is not forgotten."""
    commits = Commits()
    for number in range(1, count + 1):
        commits.note(number, number, number * 10)
    assert len(commits._groups) <= 1001
    durable = data.draw(st.integers(0, count))
    commits.passed(durable * 10)
    if durable == count:
        assert commits.oldest_us is None
        assert commits.newest_us == count
    else:
        assert commits.oldest_us is not None
        assert commits.oldest_us <= durable + 1
        assert commits.newest_us is None or commits.newest_us <= durable
