"""What cannot be answered now is asked again: until when, and which errors are waited for."""

from collections.abc import Callable

import pytest

from binlog2s3.errors import ArchiveError, Binlog2s3Error, SourceError, StoreError
from binlog2s3.stream.retry import wait_for
from tests.process import Clock


def answers(*outcomes: Exception | str) -> Callable[[], str]:
    """A question that is answered with these, one after the other."""
    left = list(outcomes)

    def ask() -> str:
        outcome = left.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    return ask


def passes(error: BaseException) -> bool:
    return isinstance(error, SourceError | StoreError)


def test_it_is_asked_until_there_is_an_answer() -> None:
    """Later each time; whoever shows the status is told each error."""
    stop, told, errors = Clock(0.0), list[BaseException](), [SourceError("a"), StoreError("b")]
    assert wait_for(answers(*errors, "there"), stop, told.append, passes) == "there"
    assert told == errors
    assert 0 < stop.now < 10


def test_what_waiting_cannot_mend_is_raised_at_once() -> None:
    """Nobody is told to wait for it."""
    stop, told = Clock(0.0), list[BaseException]()
    with pytest.raises(ArchiveError, match="never"):
        wait_for(answers(ArchiveError("never"), "there"), stop, told.append, passes)
    assert (told, stop.now) == ([], 0.0)


@pytest.mark.parametrize("error", [SourceError("away"), StoreError("away")])
def test_a_stop_ends_the_wait(error: Binlog2s3Error) -> None:
    """With the error that was waited for."""
    stop = Clock(0.0)
    with pytest.raises(type(error), match="away"):
        wait_for(answers(error, error, error, "there"), stop, lambda _: stop.set(), passes)
    assert stop.now < 10
