"""`Bandwidth`: how much is sent in a second, and what goes first."""

import threading
from concurrent.futures import ThreadPoolExecutor

from binlog2s3.store.bandwidth import Bandwidth
from tests.waiting import wait_until


class Clock:
    """A clock that goes on whenever somebody looks at it."""

    def __init__(self) -> None:
        self._lock, self._now = threading.Lock(), 0.0

    def __call__(self) -> float:
        with self._lock:
            self._now += 0.0001
            return self._now


def test_no_more_than_the_limit() -> None:
    """Four senders together: by the time all is sent, it took at least size / limit."""
    clock, stop = Clock(), threading.Event()
    bandwidth = Bandwidth(1_000_000, clock=clock)

    def send(_: int) -> None:
        for _ in range(10):
            bandwidth.take(1000, first=False, stop=stop)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(send, range(4)))
    assert clock() >= 0.039  # the last block may go at once when it has its turn


def test_the_newest_bytes_pass_the_others() -> None:
    """A block that goes first is sent before those that came earlier and do not."""
    now, stop, sent = [0.0], threading.Event(), list[str]()
    bandwidth = Bandwidth(1000, clock=lambda: now[0])
    bandwidth.take(1000, first=False, stop=stop)  # the next one may go at 1.0
    waits = threading.Semaphore(0)

    def send(name: str, *, first: bool) -> None:
        waits.release()
        bandwidth.take(1000, first=first, stop=stop)
        sent.append(name)

    old = [
        threading.Thread(target=send, args=(f"old{n}",), kwargs={"first": False}) for n in (1, 2)
    ]
    for thread in old:
        thread.start()
        waits.acquire()
    newest = threading.Thread(target=send, args=("newest",), kwargs={"first": True})
    newest.start()
    waits.acquire()
    wait_until(lambda: bandwidth._first, what="the newest waits")
    now[0] = 1.0
    newest.join(60)
    assert sent[0] == "newest"
    now[0] = 3.0
    wait_until(lambda: len(sent) > 1, what="one of the others is sent")
    now[0] = 4.0
    for thread in old:
        thread.join(60)
    assert sorted(sent) == ["newest", "old1", "old2"]


def test_a_stop_waits_for_nobody() -> None:
    """Requests at the end are not held up."""
    stop = threading.Event()
    bandwidth = Bandwidth(1, clock=lambda: 0.0)
    stop.set()
    for _ in range(3):
        bandwidth.take(1 << 20, first=False, stop=stop)


def test_blocks_fit_the_limit() -> None:
    """A slow limit has small blocks: the connection never looks dead."""
    assert Bandwidth(64 << 10).block == 16 << 10
    assert Bandwidth(1 << 20).block == 128 << 10
    assert Bandwidth(1 << 30).block == 256 << 10
