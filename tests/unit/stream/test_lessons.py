"""What the end of a run teaches: the table at the head of `stream.lessons`, line by line."""

import pytest

from binlog2s3.binlog.names import BinlogName, FilePosition
from binlog2s3.binlog.scanner import MOST_ACCEPTED
from binlog2s3.errors import DamageError, ElsewhereError, ForkError, LeftOutError, SourceError
from binlog2s3.stream.lessons import BeingRead, EndAction, Lessons, judge

FIRST, SECOND = BinlogName.parse("b.000001"), BinlogName.parse("b.000002")
READABLE, UNREADABLE = BeingRead(FIRST, is_readable=True), BeingRead(FIRST, is_readable=False)


def damage(offset: int = 120, what: str = "wrong CRC32") -> DamageError:
    return DamageError(f"/spool/run-1/b.000001: {what}", offset=offset)


def after(lessons: Lessons, *errors: Exception, seen: BeingRead | None = READABLE) -> Lessons:
    for error in errors:
        lessons, _ = judge(lessons, error, seen)
    return lessons


def test_a_server_elsewhere_is_compared() -> None:
    """What is proved is kept; nothing is read on before the bytes were compared."""
    lessons, verdict = judge(Lessons(), ElsewhereError("went on"), READABLE)
    assert verdict is EndAction.GO_BACK
    assert lessons.doubt is not None
    assert (lessons.doubt.why, lessons.doubt.refused) == ("went on", False)


def test_rows_that_are_nowhere_are_not_looked_for() -> None:
    """The next run begins a lineage behind them; what was read of that is read again."""
    lessons, verdict = judge(Lessons(), LeftOutError("without a binlog"), READABLE)
    assert verdict is EndAction.GO_BACK
    assert lessons.doubt is not None
    assert (lessons.doubt.why, lessons.doubt.left_out) == ("without a binlog", True)


def test_another_history_is_forgotten_and_compared() -> None:
    """What the run brought is of another history than what is known."""
    lessons, verdict = judge(Lessons(), ForkError("other bytes"), None)
    assert verdict is EndAction.FORGET_RUN
    assert lessons.doubt is not None


def test_damage_is_read_again_and_accepted_the_second_time() -> None:
    """The first time it may be the spool's disk; twice the same is what the source has."""
    once, verdict = judge(Lessons(), damage(), READABLE)
    assert (verdict, once.accepted_in(FIRST), once.doubt) == (
        EndAction.READ_AGAIN,
        frozenset(),
        None,
    )
    twice, verdict = judge(once, damage(), READABLE)
    assert (verdict, twice.accepted_in(FIRST)) == (EndAction.ACCEPT, {120})
    assert twice.accepted_in(SECOND) == frozenset()
    third, verdict = judge(twice, damage(), READABLE)
    assert (verdict, third.refusals) == (EndAction.READ_AGAIN, 1)


@pytest.mark.parametrize("other", [damage(offset=121), damage(what="broken chain")])
def test_other_damage_is_not_the_same_again(other: DamageError) -> None:
    """Another offset, or another fault, may be chance as well."""
    lessons, verdict = judge(after(Lessons(), damage()), other, READABLE)
    assert (verdict, lessons.accepted_in(FIRST)) == (EndAction.READ_AGAIN, frozenset())


def test_not_too_much_is_accepted() -> None:
    """A binlog with hundreds of damaged events is no binlog."""
    full = Lessons(accepted={FIRST: frozenset(range(MOST_ACCEPTED))})
    lessons = after(full, damage(9999), damage(9999))
    assert (len(lessons.accepted_in(FIRST)), lessons.refusals) == (MOST_ACCEPTED, 2)


def test_a_binlog_that_cannot_be_read_at_all() -> None:
    """After the second time the history may continue after it."""
    once = after(Lessons(), damage(4), seen=UNREADABLE)
    assert once.doubt is None
    twice = after(once, damage(4), seen=UNREADABLE)
    assert twice.doubt is not None
    assert (twice.doubt.refused, twice.doubt.unreadable) == (True, FIRST)


@pytest.mark.parametrize("error", [damage(), SourceError("purged", unservable=True)])
def test_refusals_are_counted_at_one_place(error: Exception) -> None:
    """The second means to compare, the third that the source does not give it."""
    lessons, verdict = judge(Lessons().asked_at(FilePosition(FIRST, 100)), error, None)
    assert (verdict, lessons.doubt) == (EndAction.KEEP, None)
    lessons = after(lessons.asked_at(FilePosition(FIRST, 100)), error, seen=None)
    assert lessons.doubt is not None
    assert not lessons.doubt.refused
    again = after(lessons.asked_at(FilePosition(FIRST, 100)), error, seen=None)
    assert again.doubt is not None
    assert again.doubt.refused
    elsewhere = after(lessons.asked_at(FilePosition(FIRST, 200)), error, seen=None)
    assert (elsewhere.refusals, elsewhere.doubt) == (1, None)


def test_any_other_end_teaches_nothing() -> None:
    """The next run tries the same again."""
    assert judge(Lessons(), SourceError("gone away"), READABLE) == (Lessons(), EndAction.KEEP)
