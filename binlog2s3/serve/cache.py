"""Blocks that several clients read at the same time, each fetched once.

It holds at most `MOST_BLOCKS` blocks that no dump waits for.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor

from binlog2s3.errors import StoreError

MOST_BLOCKS = 20
"""Blocks of 4 MiB that stay in memory."""


class BlockCache:
    """Fetches blocks in threads of its own, and keeps the last ones. Thread-safe."""

    def __init__(self, threads: int) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="blocks")
        self._lock = threading.Lock()
        self._kept: OrderedDict[Hashable, Future[memoryview]] = OrderedDict()
        self.fetched = 0
        """Bytes that were read from the bucket."""

    def get(self, key: Hashable, fetch: Callable[[], memoryview]) -> "Future[memoryview]":
        """The block of this key; `fetch` is called if it is neither there nor on its way.

        A block whose fetch failed is not kept. If the system starts no more threads, that is a
        transient StoreError of the block.
        """
        with self._lock:
            found = self._kept.get(key)
            if found is not None and not (found.done() and found.exception() is not None):
                self._kept.move_to_end(key)
                return found
            try:
                future = self._pool.submit(self._fetch, fetch)
            except RuntimeError as error:
                future = Future()
                future.set_exception(StoreError(f"no block is fetched: {error}", transient=True))
                return future
            self._kept[key] = future
            self._kept.move_to_end(key)
            while len(self._kept) > MOST_BLOCKS:
                self._kept.popitem(last=False)
            return future

    def close(self) -> None:
        """Stop fetching."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _fetch(self, fetch: Callable[[], memoryview]) -> memoryview:
        data = fetch()
        self.fetched += len(data)
        return data
