"""What is known of complete binlogs, and their blocks: no byte is passed on before its check."""

import threading
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import TypeAlias

from binlog2s3.archive.ahead import Kept
from binlog2s3.archive.blocks import Blocks
from binlog2s3.archive.catalog import Catalog
from binlog2s3.archive.documents import Lineage
from binlog2s3.archive.facts import BinlogId, Facts
from binlog2s3.archive.reader import Range, Readable
from binlog2s3.binlog.names import BinlogName
from binlog2s3.binlog.scanner import MADE_UP_BYTES, Scanner
from binlog2s3.errors import ArchiveError, DamageError, ObjectMissingError, StoreError
from binlog2s3.recover import one_binlog
from binlog2s3.serve.model import ServedBinlog

_MOST_KEPT = 64
_WAIT_SECONDS = 5.0


class UnreadError(Exception):
    """A binlog has to be read first, perhaps as a whole: `read` does it. Then the answer is known.

    No `Binlog2s3Error`: whoever asks must not take it for one of the bucket's.
    """

    def __init__(self, read: Callable[[], None]) -> None:
        super().__init__("a binlog was not read yet")
        self.read = read


class BusyError(StoreError):
    """A binlog is being read for another question; ask again."""


class ReadWhole:
    """What was found by reading binlogs, for all snapshots. Thread-safe.

    That may take minutes, so it is done without the lock that others need to ask. Of binlogs
    without an entry, which all may ask for, only one is read at a time. What a search has found is
    known to the thread that has asked, as long as its question.
    """

    def __init__(self) -> None:
        self._reading = threading.Lock()
        self._own = threading.local()
        self._known: dict[BinlogId, tuple[tuple[Range, ...], int, _Outcome]] = {}

    def found(
        self,
        lineage: Lineage,
        name: BinlogName,
        readable: Readable,
        durable: int,
        problems: list[ArchiveError],
    ) -> Facts:
        """What reading it has found, as `known_by_reading`; UnreadError if it was not read yet.

        A binlog is another one if its bytes are in other objects than before.
        """
        ranges, upto, outcome = self._known.get((lineage.id, name), ((), -1, None))
        if outcome is None or ranges != readable.ranges or upto != durable:
            raise UnreadError(partial(self._read, lineage, name, readable, durable))
        if isinstance(outcome, ArchiveError):
            raise ArchiveError(str(outcome), hint=outcome.hint)
        known, lost = outcome
        problems += lost
        return known

    def forget_errors(self) -> None:
        """Read again what could not be read: it may have been repaired."""
        for key, (_, _, outcome) in list(self._known.items()):
            if isinstance(outcome, ArchiveError):
                self._known.pop(key, None)

    @contextmanager
    def question(self) -> Iterator[None]:
        """A question of the calling thread."""
        self._own.searched = {}
        try:
            yield
        finally:
            self._own.searched = {}

    def search(self, key: Hashable, read: Callable[[], object]) -> object:
        """What this has found for this question; UnreadError if it was not called yet."""
        searched: dict[Hashable, object] = self._own.searched

        def keep() -> None:
            searched[key] = read()

        if key not in searched:
            raise UnreadError(keep)
        return searched[key]

    def _read(self, lineage: Lineage, name: BinlogName, readable: Readable, durable: int) -> None:
        """Read a binlog. Raises StoreError; BusyError if another one is being read."""
        if not self._reading.acquire(timeout=_WAIT_SECONDS):
            raise BusyError("a binlog is being read for another client", transient=True)
        try:
            problems: list[ArchiveError] = []
            outcome: _Outcome
            try:
                known = one_binlog.known_by_reading(lineage, name, readable, durable, problems)
                outcome = known, problems
            except ArchiveError as error:
                outcome = error
            self._known[lineage.id, name] = readable.ranges, durable, outcome
        finally:
            self._reading.release()


_Outcome: TypeAlias = tuple[Facts, list[ArchiveError]] | ArchiveError | None


class Binlogs:
    """Keeps what is known of the binlogs that clients asked for last. Thread-safe."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._kept = Kept[Facts](_MOST_KEPT)
        self.blocks = Blocks(catalog.binlog, keep=0)

    def find(self, binlog: ServedBinlog, *, read_here: bool) -> Facts | None:
        """What is known of a binlog. One without an entry is read once, by the first that asks.

        `read_here`: `Tail` has read it; then None is returned if it has no entry.
        """
        task = partial(self._look_up, binlog)
        if read_here and self._kept.find(binlog.binlog_id) is None:
            known = self.by_entry(binlog)
            if known is None:
                return None
            task = partial(_itself, known)
        fetch = self._kept.get(binlog.binlog_id, task)
        fetch.run()
        return fetch.result()

    def _look_up(self, binlog: ServedBinlog) -> Facts:
        """By its entry, or by reading it."""
        known = self.by_entry(binlog)
        if known is not None:
            return known
        readable = self._catalog.binlog(binlog.lineage, binlog.name)
        if readable.state == "archived" and not _has_checksums(readable):
            raise StoreError(
                f"{binlog.name} has no entry, and its events have no checksums: nothing proves "
                "its bytes",
                hint="`binlog2s3 verify --repair` makes the entry",
                transient=True,
            )
        size = binlog.end or readable.size
        self.blocks.note(binlog.lineage, binlog.name, readable)
        return one_binlog.known_by_reading(binlog.lineage, binlog.name, readable, size, [])

    def by_entry(self, binlog: ServedBinlog) -> Facts | None:
        """An archived binlog as its entry describes it; None as long as it has none."""
        readable = self._catalog.binlog(binlog.lineage, binlog.name)
        if readable.state != "archived":
            return None
        try:
            entry = self._catalog.entry(binlog.lineage, binlog.name)
        except ObjectMissingError:
            return None
        entry.check_size(binlog.lineage.id, readable.size)
        self.blocks.note(binlog.lineage, binlog.name, readable)
        return one_binlog.described(entry, binlog.lineage, self.blocks)


def _itself(known: Facts) -> Facts:
    return known


def _has_checksums(readable: Readable) -> bool:
    """Whether its events have checksums, as its first bytes say.

    Also if they do not begin as a binlog does: who reads all of it finds out more.
    """
    scanner = Scanner()
    with suppress(DamageError):
        for data in readable.blocks(0, min(readable.size, MADE_UP_BYTES)):
            scanner.feed(data)
    return all(form.checksum == "crc32" for form in scanner.formats[:1])
