"""Writes pages of the archive in the background: see `archive.pages`.

Law: a page is made of the entries in the bucket, never of what this process remembers. It is made
only if no entry of its range can still appear: entries are written in order, so an entry at or
after the end of the range proves it. A crash costs nothing: the next round makes the page again.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from binlog2s3.archive.catalog import Catalog
from binlog2s3.archive.documents import Entry, Lineage
from binlog2s3.archive.index import Index
from binlog2s3.archive.pages import SPAN, Page, build, first_of, name_at
from binlog2s3.binlog.names import BinlogName
from binlog2s3.errors import ArchiveError, ObjectMissingError, PreconditionError, StoreError
from binlog2s3.log import Log
from binlog2s3.stream.remote import where_absent
from binlog2s3.stream.tracking import Tracking
from binlog2s3.stream.waiting import Periodic, Stop

_log = Log("paging")
_ROUND_SECONDS = 30.0
_PAUSE_SECONDS = 0.01  # between two entries: chunks go first


class Pager:
    """Puts the pages of the lineage that grows."""

    def __init__(self, catalog: Catalog, tracking: Tracking, stop: Stop) -> None:
        self._catalog = catalog
        self._tracking = tracking
        self._stop = stop
        self._index: Index | None = None
        self._refused = ""

    def start(self) -> None:
        pages = Periodic("pages", self._step, self._stop.event, failed=self._stop.fail)
        pages.start(_ROUND_SECONDS)

    def _step(self) -> float:
        try:
            self.round()
        except StoreError as error:
            self._index = None
            if str(error) != self._refused and not self._stop.event.is_set():
                self._refused = str(error)
                _log.warning("page not written", error=error, hint=error.hint)
        return _ROUND_SECONDS

    def round(self, *, pause_seconds: float = _PAUSE_SECONDS) -> int:
        """Put the pages that are due and missing. Returns how many. Raises StoreError."""
        coverage = self._tracking.coverage
        if coverage is None:
            return 0
        lineage = coverage.lineage
        if self._index is None or self._index.lineage != lineage:
            self._index = self._look(lineage)
        elif is_page_due(self._index, coverage.has):
            self._index = self._look(lineage)  # pages may have been pruned since
        pause = partial(self._stop.event.wait, pause_seconds)
        return put_missing(self._index, is_due=coverage.has, pause=pause)

    def _look(self, lineage: Lineage) -> Index:
        return Index(self._catalog, self._catalog.with_floor(lineage))


def is_page_due(index: Index, is_due: Callable[[BinlogName], bool]) -> bool:
    """Whether the page after the last one is due, or the first one."""
    following = first_of(index.lineage.begin.number)
    if index.firsts():
        following = max(following, index.firsts()[-1] + SPAN)
    return is_due(name_at(index.lineage, following + SPAN - 1))


def put_missing(
    index: Index,
    *,
    is_due: Callable[[BinlogName], bool],
    pause: Callable[[], bool] = lambda: False,
) -> int:
    """Put the missing pages of a lineage whose last binlog is due. Returns how many.

    `pause` is called before each entry; if it returns True, this ends. Raises StoreError.
    """
    lineage, put = index.lineage, 0
    first = first_of(lineage.begin.number)
    page: Page | None = None
    while is_due(name_at(lineage, first + SPAN - 1)):
        if first in index.firsts():
            page = None
        else:
            is_known, before = (True, page) if page else _before(index, first, pause)
            page = _made(index, first, before, pause) if is_known else None
            if page is None:
                return put
            _put(index, page)
            index.add(page)
            put += 1
        first += SPAN
    return put


def _made(index: Index, first: int, before: Page | None, pause: Callable[[], bool]) -> Page | None:
    """Make a page of the entries; None if it is too early, or `pause` says to end."""
    lineage = index.lineage
    entries: dict[int, Entry] = {}
    for number in range(max(first, lineage.begin.number), first + SPAN):
        if pause():
            return None
        name = name_at(lineage, number)
        try:
            entries[number] = replace(index.catalog.entry(lineage, name), blocks=())
        except ObjectMissingError:
            continue
        except ArchiveError as error:
            _log.warning("left out of a page", binlog=name, error=error)
    last = first + SPAN - 1
    if last not in entries and not index.tail(last).entries:
        return None
    return build(lineage, first, entries, before)


def _before(index: Index, first: int, pause: Callable[[], bool]) -> tuple[bool, Page | None]:
    """The page before this one, made again if it cannot be used; (False, None) if unknown."""
    least = first_of(index.lineage.begin.number)
    at, page = first - SPAN, None
    while at >= least and (page := index.page(at)) is None:
        at -= SPAN
    while at + SPAN < first:
        at += SPAN
        page = _made(index, at, page, pause)
        if page is None:
            return False, None
    return True, page


def _put(index: Index, page: Page) -> None:
    store = index.catalog.store
    key, data = index.catalog.layout.page(page.lineage, page.first), page.to_json()
    if len(data) > Page.MOST:
        _log.warning("page not written: too large", key=key, bytes=len(data))
        return
    try:
        where_absent(lambda if_absent: store.put(key, data, if_absent=if_absent))
    except PreconditionError:  # ours, if an answer was lost, or another writer's: equal bytes
        return
    _log.info("page written", key=key, binlogs=len(page.entries))
