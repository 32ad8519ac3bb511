"""When the oldest transaction that is not durable was committed."""

from hypothesis import given
from hypothesis import strategies as st

from binlog2s3.binlog.commits import Commits
from binlog2s3.binlog.transactions import Transaction


def transaction(end: int, commit_us: int) -> Transaction:
    return Transaction(
        begin=end - 1,
        end=end,
        gtid=None,
        commit_us=commit_us,
        commit_exact=True,
        original_commit_us=None,
    )


def test_nothing_is_known_of_nothing() -> None:
    """No transaction, no time."""
    commits = Commits()
    commits.note([])
    assert (commits.oldest_us, commits.newest_us) == (None, None)


def test_the_first_of_a_slice_counts_until_its_last_is_durable() -> None:
    """Within a slice nobody knows; the age is never less than the truth."""
    commits = Commits()
    commits.note([transaction(10, 100), transaction(20, 200)])
    commits.note([transaction(30, 300)])
    assert commits.oldest_us == 100
    commits.passed(19)
    assert (commits.oldest_us, commits.newest_us) == (100, None)
    commits.passed(20)
    assert (commits.oldest_us, commits.newest_us) == (300, 200)
    commits.passed(30)
    assert (commits.oldest_us, commits.newest_us) == (None, 300)


@given(st.integers(1, 5000), st.data())
def test_many_are_bounded_and_never_too_young(count: int, data: st.DataObject) -> None:
    """However many wait, few groups are kept, and the oldest that waits is not forgotten."""
    commits = Commits()
    for number in range(1, count + 1):
        commits.note([transaction(number * 10, number)])
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
