"""What a search has to do, one thing after the other, and the blocks for it, fetched ahead.

Place in the flow: `scan` says what is to be done, `archive.blocks.Ahead` does the tasks.

Law: things come at their place. A block that two spans share is fetched once.
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from threading import Lock

from binlog2s3.archive.blocks import Found
from binlog2s3.binlog.names import BinlogName
from binlog2s3.binlog.scanner import Transaction
from binlog2s3.errors import ArchiveError
from binlog2s3.inspect.find.one_binlog import Span

_REMEMBERED = 3


@dataclass(frozen=True, slots=True)
class Part:
    """A span to be searched, and which of its transactions count."""

    span: Span
    keep: Callable[[Transaction], bool]


Item = Part | Callable[[], None]
"""Something to be searched, or to be done."""


class Agenda:
    """Items in order; `planned` are those whose first task has been given out."""

    def __init__(self, items: Iterator[Item]) -> None:
        self._items = items
        self.planned: deque[Item] = deque()

    def tasks(
        self, fetch: Callable[[Found, int], bytes | ArchiveError]
    ) -> Iterator[Callable[[], bytes | ArchiveError | None]]:
        """One for each block of a part, and one that does nothing for all else.

        Neighbouring spans share a block, which is fetched once.
        """
        shared: OrderedDict[tuple[str, BinlogName, int], _Once] = OrderedDict()
        for item in self._items:
            self.planned.append(item)
            if not isinstance(item, Part):
                yield _nothing
                continue
            found = item.span.found
            for number in item.span.numbers:
                key = (found.lineage.id, found.known.name, number)
                if key not in shared:
                    shared[key] = _Once(partial(fetch, found, number))
                    while len(shared) > _REMEMBERED:
                        shared.popitem(last=False)
                yield shared[key]


def _nothing() -> None:
    """Only so that the item comes at its place."""


class _Once:
    """A task that several may wait for, and that is done once."""

    def __init__(self, task: Callable[[], bytes | ArchiveError]) -> None:
        self._task = task
        self._lock = Lock()
        self._result: list[bytes | ArchiveError] = []

    def __call__(self) -> bytes | ArchiveError:
        with self._lock:
            if not self._result:
                self._result.append(self._task())
            return self._result[0]
