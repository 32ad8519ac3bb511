"""How far two histories are the same: the source's bytes against the bucket's.

Place in the flow: asked by `course` when the source contradicts the archive; the supervisor reads
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

from binlog2s3.binlog import BinlogName, Scanner
from binlog2s3.catalog import Catalog, Lineage
from binlog2s3.errors import ArchiveError, DamageError, SourceError
from binlog2s3.gtid import Gtids, parse
from binlog2s3.history import has
from binlog2s3.log import Log
from binlog2s3.mysqlbinlog import Child
from binlog2s3.spool import Run

_log = Log("fork")
_SLICE = 1 << 20
_POLL_SECONDS = 0.02
_SILENCE_SECONDS = 60.0

OpenProbe = Callable[[BinlogName], tuple[Run, Child]]
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
    """Compares a source with a lineage. `discard` takes a probe's run away; `stopped`: give up."""

    def __init__(
        self,
        catalog: Catalog,
        lineage: Lineage,
        *,
        probe: OpenProbe,
        discard: Callable[[Run], None],
        stopped: Callable[[], bool],
    ) -> None:
        self._catalog = catalog
        self._lineage = lineage
        self._probe = probe
        self._discard = discard
        self._stopped = stopped

    def last_common(self, source_has: list[BinlogName]) -> Common | None:
        """The last common place, None if no transaction is shared.

        Raises SourceError where the source cannot be read, StoreError where the bucket cannot.
        """
        there = {listed.name for listed in self._catalog.readable(self._lineage)}
        names = sorted(name for name in source_has if name in there)
        low, high = 0, len(names)  # histories part once: those before begin alike, those after not
        compared: dict[BinlogName, Common | None] = {}
        while low < high:
            middle = (
                (low + high + 1) // 2 - 1 if high - low > 2 else high - 1
            )  # the last ones first
            compared[names[middle]] = found = self._compare(names[middle])
            if found is None:
                high = middle
            else:
                low = middle + 1
        deepest: Common | None = None
        for name in reversed(names[:low]):
            found = compared[name] if name in compared else self._compare(name)
            deepest = deepest or found
            if found is not None and found.transactions:
                return deepest
        return None

    def _compare(self, name: BinlogName) -> Common | None:
        """How far this binlog is the same on both sides; None if not even its format event is."""
        scanner = Scanner()
        equal = 0
        with self._reading(name) as theirs:
            ours = self._catalog.binlog(self._lineage, name)
            for one, other in _in_step(ours.blocks(), theirs):
                same = _same(one, other)
                equal += same
                try:
                    scanner.feed(other[:same])
                except DamageError:
                    break
                if same < len(one):
                    break
        if not scanner.events:
            return None
        return Common(
            binlog=name,
            offset=scanner.transaction_end,
            gtids=None if scanner.anonymous else scanner.gtids_at_end,
            whole=equal == ours.size,
            transactions=scanner.transactions,
        )

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
                    time.sleep(_POLL_SECONDS)
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
        binlog = catalog.binlog(lineage, listed.name)
        try:
            end = _first_missing(binlog.blocks(), executed)
            if end is None:
                continue
            scanner = Scanner()
            for block in binlog.blocks(0, end):
                scanner.feed(block)
        except (ArchiveError, DamageError) as error:
            _log.warning("cannot be read to find the last common transaction",
                         binlog=listed.name, error=error)  # fmt: skip
            continue
        if not scanner.anonymous and (gtids := scanner.gtids_at_end) is not None:
            return listed.name, end, gtids
    return None


def _first_missing(blocks: Iterator[bytes], executed: Gtids) -> int | None:
    """Where the first transaction begins that is not among these GTIDs, else the end of the last.

    None if already what came before this binlog is not, or is not known.
    """
    scanner, checked = Scanner(), False
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
