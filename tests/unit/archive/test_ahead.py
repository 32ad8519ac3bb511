"""Fetches that several threads want: made once, and again only after an error."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from binlog2s3.archive.ahead import Fetch, Kept
from binlog2s3.errors import StoreError
from binlog2s3.workers import Workers
from tests.waiting import wait_until


def wanted(kept: Kept[int], key: str, task: Callable[[], int]) -> int:
    fetch = kept.get(key, task)
    fetch.run()
    return fetch.result()


def test_many_threads_fetch_once() -> None:
    """All of them get the result of the first one, also while it is on its way."""
    kept, gate, calls = Kept[int](2), threading.Event(), list[int]()

    def task() -> int:
        calls.append(1)
        assert gate.wait(60)
        return 7

    with ThreadPoolExecutor(8) as pool:
        results = [pool.submit(wanted, kept, "a", task) for _ in range(8)]
        wait_until(lambda: calls, what="one is at work")
        gate.set()
        assert [one.result(60) for one in results] == [7] * 8
    assert len(calls) == 1


def test_the_last_ones_are_kept() -> None:
    """Those that were wanted last; none if none is to be kept."""
    for most, expected in ((0, "abab"), (1, "abab"), (2, "ab")):
        kept, calls = Kept[int](most), list[str]()
        for key in "abab":
            wanted(kept, key, lambda key=key, calls=calls: calls.append(key) or 1)  # type: ignore[misc]
        assert "".join(calls) == expected
    assert kept.find("a") is not None
    wanted(kept, "c", lambda: 1)
    assert kept.find("a") is None
    kept.clear()
    assert kept.find("c") is None


def test_after_an_error_it_is_fetched_again() -> None:
    """Who waited for it gets the error."""
    kept, answers = Kept[int](2), iter([StoreError("no route", transient=True), 5])

    def task() -> int:
        answer = next(answers)
        if isinstance(answer, StoreError):
            raise answer
        return answer

    with pytest.raises(StoreError, match="no route"):
        wanted(kept, "a", task)
    assert kept.find("a") is None
    assert wanted(kept, "a", task) == 5


def test_other_threads_run_what_is_kept() -> None:
    """Each new fetch is started once, and waited for."""
    workers, gate = Workers(2), threading.Event()
    kept = Kept[int](2, workers.start)
    fetch = kept.get("a", lambda: 3 if gate.wait(60) else 0)
    assert not fetch.is_done(0.01)
    assert kept.get("a", lambda: 4) is fetch
    gate.set()
    assert fetch.result() == 3
    workers.close()


def test_what_is_dropped_is_not_begun() -> None:
    """But what has begun is finished."""
    calls: list[int] = []
    fetch = Fetch(lambda: calls.append(1))
    fetch.drop()
    fetch.run()
    assert not calls
    assert not fetch.is_done()
