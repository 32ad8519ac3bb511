"""Workers: blocking work goes in, outcomes come back, the loop never waits longer than it says."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import pytest

from binlog2s3.errors import StoreError
from binlog2s3.workers import Outcome, Workers
from tests.waiting import wait_until


def collect(workers: Workers, count: int) -> list[Outcome]:
    """So many outcomes."""
    return [wait_until(lambda: workers.take(1.0), what="an outcome") for _ in range(count)]


def test_outcomes_come_back_with_their_tokens() -> None:
    """Values, and errors of any kind; the threads go on."""
    workers = Workers(2)

    def fail(error: BaseException) -> object:
        raise error

    errors = [ValueError("x"), KeyboardInterrupt(), SystemExit(3)]
    for error in errors:
        workers.submit(error, partial(fail, error))
    for number in range(20):
        workers.submit(("task", number), partial(pow, number, 2))
    found = {outcome.token: (outcome.value, outcome.error) for outcome in collect(workers, 23)}
    assert found == {
        **{error: (None, error) for error in errors},
        **{("task", number): (number * number, None) for number in range(20)},
    }
    assert workers.busy == 0


def test_as_many_as_asked_for_work_at_once() -> None:
    """Not fewer: all meet at a barrier. Not more: the next has to wait."""
    workers = Workers(4)
    barrier = threading.Barrier(4, timeout=60)
    lock, running, most = threading.Lock(), 0, 0

    def work() -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        barrier.wait()
        with lock:
            running -= 1

    for number in range(8):
        workers.submit(number, work)
    assert workers.busy == 8
    assert [outcome.error for outcome in collect(workers, 8)] == [None] * 8
    assert most <= 4


def test_take_waits_no_longer_than_it_says() -> None:
    """And not at all for a time-out of 0."""
    workers = Workers(1)
    found: list[Outcome | None] = []

    def take() -> None:
        found.extend(workers.take(seconds) for seconds in (0.0, -1.0, 0.01))

    threading.Thread(target=take, daemon=True).start()
    wait_until(lambda: len(found) == 3, what="the end of the waiting")
    assert found == [None, None, None]
    assert workers.busy == 0


def test_wake_ends_a_wait() -> None:
    """As a signal handler does, from outside the loop; it is no outcome."""
    workers = Workers(1)
    found: list[Outcome | None] = []
    taking = threading.Thread(target=lambda: found.append(workers.take(3600.0)), daemon=True)
    taking.start()
    taking.join(0.05)
    workers.wake()
    wait_until(lambda: found, what="the end of the waiting")
    assert found == [None]
    assert workers.busy == 0


def test_submit_does_not_wait_for_a_free_thread() -> None:
    """The loop goes on while a request hangs on a dead network."""
    workers = Workers(1)
    release = threading.Event()
    workers.submit("hangs", lambda: release.wait(600))
    workers.submit("waits", lambda: 1)
    assert workers.busy == 2
    assert workers.take(0.0) is None
    release.set()
    assert [outcome.token for outcome in collect(workers, 2)] == ["hangs", "waits"]


def test_threads_do_not_keep_a_process_alive() -> None:
    """They are daemons, with names. There are as many as were ever busy at a time."""
    before, end = set(threading.enumerate()), threading.Event()
    workers = Workers(3)
    for number in range(2):
        workers.submit(number, end.wait)
    threads = set(threading.enumerate()) - before
    assert sorted(thread.name for thread in threads) == ["store-0", "store-1"]
    assert all(thread.daemon for thread in threads)
    end.set()
    workers.close()


# Batches


def doubled(tag: str, number: int) -> tuple[str, int]:
    return tag, 2 * number


def test_threads_that_share_workers_get_only_their_own_outcomes() -> None:
    """Also if their tokens are the same ones, as binlogs of two lineages have the same names."""
    workers, wrong = Workers(4), list[object]()

    def ask(tag: str) -> None:
        for _ in range(20):
            tasks = {number: partial(doubled, tag, number) for number in range(50)}
            found = {one.token: one.value for one in workers.batch(tasks)}
            if found != {number: (tag, 2 * number) for number in range(50)}:
                wrong.append(found)

    threads = [threading.Thread(target=ask, args=(tag,), daemon=True) for tag in "abc"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert not wrong


def test_a_batch_that_was_given_up_leaves_nothing_to_the_next_one() -> None:
    """What its threads still do is lost."""
    workers = Workers(2)
    for _ in workers.batch({number: partial(doubled, "given up", number) for number in range(9)}):
        break
    found = workers.batch({number: partial(doubled, "next", number) for number in range(9)})
    assert {one.value for one in found} == {("next", 2 * number) for number in range(9)}
    assert workers.take(0.0) is None


@contextmanager
def no_new_threads() -> Iterator[None]:
    before = threading.stack_size(1 << 46)  # more than there is
    try:
        yield
    finally:
        threading.stack_size(before)


def test_a_system_that_starts_no_thread_is_a_store_that_does_not_answer() -> None:
    """Nothing of it is done later, and the next batch is done by new threads."""
    workers, done = Workers(2), list[str]()
    with no_new_threads():
        with pytest.raises(StoreError, match="can't start new thread") as caught:
            list(workers.batch({"a": lambda: done.append("a"), "b": lambda: done.append("b")}))
        with pytest.raises(StoreError):
            workers.submit("c", lambda: done.append("c"))
    assert caught.value.transient
    assert workers.busy == 0
    assert [one.token for one in workers.batch({"d": lambda: done.append("d")})] == ["d"]
    assert done == ["d"]


def test_the_threads_that_there_are_do_the_work() -> None:
    """If the system starts no more of them: it only takes longer."""
    workers = Workers(4)
    assert [one.value for one in workers.batch({0: partial(doubled, "first", 1)})]
    with no_new_threads():
        found = list(workers.batch({n: partial(doubled, "more", n) for n in range(9)}))
    assert sorted(one.token for one in found if isinstance(one.token, int)) == list(range(9))
