"""How far two histories are the same: the source's bytes against the bucket's.

Place in the flow: asked by `resume` when the source contradicts the archive; the supervisor reads
nothing meanwhile.

Law: only equal bytes are proof. The last place where both have the same is named exactly, at the
end of a transaction; where no transaction is shared, nothing is proved.
"""

import os
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from binlog2s3.archive.catalog import Catalog
from binlog2s3.archive.documents import Lineage
from binlog2s3.archive.reader import Readable
from binlog2s3.binlog.gtid import Gtids, parse
from binlog2s3.binlog.names import BinlogName
from binlog2s3.binlog.scanner import MOST_ACCEPTED, Scanner
from binlog2s3.errors import ArchiveError, DamageError, SourceError
from binlog2s3.log import Log
from binlog2s3.server.mysqlbinlog import Child
from binlog2s3.stream.continuation import has
from binlog2s3.stream.spool import SpoolRun

_log = Log("fork")
_SLICE = 1 << 20
_POLL_SECONDS = 0.02
_SILENCE_SECONDS = 60.0
_BEGINNING = 64 << 10

Scanned = TypeVar("Scanned")
OpenProbe = Callable[[BinlogName], tuple[SpoolRun, Child]]
"""Starts a mysqlbinlog that reads one binlog and ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Common:
    """The last place that both have: `offset` bytes of `binlog`, with the GTIDs executed there.

    `whole`: all that the bucket has of this binlog, and the source has it as its own.
    """

    binlog: BinlogName
    offset: int
    gtids: Gtids | None
    whole: bool
    transactions: int


class Finder:
    """Compares a source with a lineage.

    `discard` takes a probe's run away; `stopped`: give up; `work` goes on with everything else for
    so many seconds. Whether a binlog may be common is told by so many bytes of its `beginning`.
    """

    def __init__(
        self,
        catalog: Catalog,
        lineage: Lineage,
        *,
        probe: OpenProbe,
        discard: Callable[[SpoolRun], None],
        stopped: Callable[[], bool],
        work: Callable[[float], object],
        beginning: int = _BEGINNING,
    ) -> None:
        self._catalog = catalog
        self._lineage = lineage
        self._probe = probe
        self._discard = discard
        self._stopped = stopped
        self._work = work
        self._beginning = beginning

    def last_common(self, source_has: list[BinlogName]) -> Common | None:
        """The last common place, None if no transaction is shared.

        Raises SourceError where the source cannot be read, StoreError where the bucket cannot.
        """
        there = {listed.name for listed in self._catalog.readable(self._lineage)}
        names = sorted(name for name in source_has if name in there)
        low, high = 0, len(names)  # histories part once: those before begin alike, those after not
        step = 1  # and mostly not long ago
        while low < high:
            middle = max(low, high - step)
            if self._compare(names[middle], self._beginning) is None:
                high, step = middle, 2 * step
            else:
                low, step = middle + 1, max(1, (high - middle) // 2)
        deepest: Common | None = None
        for name in reversed(names[:low]):
            found = self._compare(name)
            if deepest is None or found is None or not found.whole:
                deepest = found
            if found is not None and found.transactions:
                return deepest
        return None

    def _compare(self, name: BinlogName, most: int | None = None) -> Common | None:
        """How far this binlog is the same on both sides; None if not even its format event is.

        Looks at about so many bytes at `most`; then it is not known whether all are the same.
        """
        scanner = Scanner()

        def scan(one: Scanner) -> bool:
            nonlocal scanner
            scanner = one
            return self._is_whole(name, scanner, most)

        try:
            whole = _accepting(scan)
        except DamageError:
            whole = False
        if not scanner.events:
            return None
        return Common(
            binlog=name,
            offset=scanner.transaction_end,
            gtids=None if scanner.anonymous else scanner.gtids_at_end,
            whole=whole,
            transactions=scanner.transactions,
        )

    def _is_whole(self, name: BinlogName, scanner: Scanner, most: int | None) -> bool:
        """Whether all that the bucket has is the same; the scanner takes what is.

        Raises DamageError for what is the same, and damaged.
        """
        equal = 0
        with self._reading(name) as theirs:
            ours = self._catalog.binlog(self._lineage, name)
            end = ours.size if most is None else min(most, ours.size)
            for one, other in _in_step(ours.blocks(0, end), theirs):
                same = _same(one, other)
                equal += same
                scanner.feed(other[:same])
                if same < len(one):
                    break
                self._work(0.0)
        return equal == ours.size

    @contextmanager
    def _reading(self, name: BinlogName) -> Iterator[Iterator[bytes]]:
        run, child = self._probe(name)
        try:
            with closing(self._bytes(run.directory / str(name), child)) as blocks:
                yield blocks
        finally:
            child.stop()
            self._discard(run)

    def _bytes(self, path: Path, child: Child) -> Generator[bytes, None, None]:
        """What the child writes, up to its end. Raises SourceError if it has failed."""
        file = -1
        heard = time.monotonic()
        try:
            while not self._stopped():
                ended = child.poll()
                if file < 0 and path.exists():
                    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                block = os.read(file, _SLICE) if file >= 0 else b""
                if block:
                    heard = time.monotonic()
                    yield block
                elif ended is not None:
                    if ended:
                        raise child.failure()
                    return
                elif time.monotonic() - heard > _SILENCE_SECONDS:
                    raise SourceError(
                        f"no byte of {path.name} within {_SILENCE_SECONDS:g} s",
                        hint="the server hangs, or the way to it is cut",
                        transient=True,
                    )
                else:
                    self._work(_POLL_SECONDS)
        finally:
            if file >= 0:
                os.close(file)


def cut(
    catalog: Catalog, lineage: Lineage, executed: Gtids
) -> tuple[BinlogName, int, Gtids] | None:
    """The last place of a lineage up to which a server has executed everything, by its GTIDs.

    A binlog, an offset, the GTID set there; None if that cannot be told.
    """
    for listed in reversed(catalog.readable(lineage)):
        try:
            found = _cut_within(catalog.binlog(lineage, listed.name), executed)
        except (ArchiveError, DamageError) as error:
            _log.warning("cannot be read to find the last common transaction",
                         binlog=listed.name, error=error)  # fmt: skip
            continue
        if found is not None:
            return listed.name, *found
    return None


def _cut_within(binlog: Readable, executed: Gtids) -> tuple[int, Gtids] | None:
    """As `cut`, of one binlog."""
    end = _accepting(lambda scanner: _first_missing(scanner, binlog.blocks(), executed))
    if end is None:
        return None
    scanner = _accepting(lambda scanner: _fed(scanner, binlog.blocks(0, end)))
    gtids = scanner.gtids_at_end
    return (end, gtids) if gtids is not None and not scanner.anonymous else None


def _fed(scanner: Scanner, blocks: Iterator[bytes]) -> Scanner:
    for block in blocks:
        scanner.feed(block)
    return scanner


def _first_missing(scanner: Scanner, blocks: Iterator[bytes], executed: Gtids) -> int | None:
    """Where the first transaction begins that is not among these GTIDs, else the end of the last.

    None if already what came before this binlog is not, or is not known.
    """
    checked = False
    for block in blocks:
        transactions = scanner.feed(block)
        if not checked and scanner.previous_gtids is not None:
            if not has(executed, scanner.previous_gtids):
                return None
            checked = True
        for transaction in transactions:
            if transaction.gtid is None:
                return None
            if not has(executed, parse(transaction.gtid, scanner.flavour or "mysql")):
                return transaction.begin
    return scanner.transaction_end if checked else None


def _accepting(scan: Callable[[Scanner], Scanned]) -> Scanned:
    """Scan, again and again with one event more that is taken as it is, for it is damaged there.

    Raises DamageError where even so nothing can be made of it.
    """
    accepted: set[int] = set()
    while True:
        scanner = Scanner()
        for offset in accepted:
            scanner.accept(offset)
        try:
            return scan(scanner)
        except DamageError as error:
            if error.offset in accepted or len(accepted) == MOST_ACCEPTED:
                raise
            accepted.add(error.offset)


def _in_step(ours: Iterator[bytes], theirs: Iterator[bytes]) -> Iterator[tuple[bytes, bytes]]:
    """Pieces of ours, and as much of theirs, which may be shorter at its end."""
    held = b""
    for block in ours:
        while len(held) < len(block):
            more = next(theirs, b"")
            if not more:
                break
            held += more
        yield block, held[: len(block)]
        held = held[len(block) :]


def _same(one: bytes, other: bytes) -> int:
    """How many leading bytes are equal."""
    if one == other:
        return len(one)
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[:middle] == other[:middle]:
            low = middle
        else:
            high = middle - 1
    return low
