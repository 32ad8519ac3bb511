"""Compares the source's bytes with the bucket's, to find how far two histories are the same.

Law: only equal bytes are proof: of whole binlogs, or of what all servers write alike of the last
transactions. The result is the exact end of the last common transaction. If no transaction is
common, nothing is proved.
"""

import os
import threading
import time
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from itertools import dropwhile
from pathlib import Path
from typing import TypeVar

from binlog2s3.archive.catalog import Catalog
from binlog2s3.archive.documents import Lineage, Parent
from binlog2s3.archive.reader import Readable
from binlog2s3.archive.writers import Position
from binlog2s3.binlog.fingerprint import Fingerprint
from binlog2s3.binlog.gtid import Gtids, MariadbGtidList, parse
from binlog2s3.binlog.names import BinlogName, FilePosition
from binlog2s3.binlog.scanner import MAGIC, MOST_ACCEPTED, Scanner
from binlog2s3.errors import ArchiveError, DamageError, SourceError
from binlog2s3.log import Log
from binlog2s3.server.connection import Server, ServerFacts
from binlog2s3.server.dump import MOST_BYTES
from binlog2s3.server.mysqlbinlog import Child, Tool
from binlog2s3.stream.continuation import has
from binlog2s3.stream.spool import Spool, SpoolRun

_log = Log("compare")
_SLICE = 1 << 20
_POLL_SECONDS = 0.02
_SILENCE_SECONDS = 60.0
_BEGINNING = 64 << 10
_MOST_COMPARED = 100
_MOST_OLDER = 3
"""So many binlogs are looked through for the transactions before a place."""

Scanned = TypeVar("Scanned")


@dataclass(frozen=True, slots=True, kw_only=True)
class Common:
    """The last common position.

    `whole`: the source has all bytes that the bucket has of this binlog.
    """

    position: Position
    whole: bool
    transactions: int


class Finder:
    """Compares a server, which said these `facts`, with a lineage. `stop` ends it: it may be long.

    mysqlbinlog, the `tool`, reads one binlog after the other into runs of the `spool`, which are
    discarded. The first `beginning` bytes of a binlog decide whether it may be common.
    """

    def __init__(
        self,
        catalog: Catalog,
        lineage: Lineage,
        *,
        server: Server,
        facts: ServerFacts,
        tool: Tool,
        spool: Spool,
        stop: threading.Event,
        beginning: int = _BEGINNING,
    ) -> None:
        self._catalog = catalog
        self._lineage = lineage
        self._server = server
        self._facts = facts
        self._tool = tool
        self._spool = spool
        self._stop = stop
        self._beginning = beginning

    def last_common(self, source_has: list[BinlogName]) -> Common | None:
        """The last common place, None if no transaction is common.

        Raises SourceError if the source cannot be read, StoreError if the bucket cannot.
        """
        sizes = self._catalog.sizes(self._lineage)
        names = sorted(name for name in source_has if name in sizes)
        # Histories part only once: binlogs before that point begin alike, later ones differ.
        low, high = 0, len(names)
        step = 1  # most histories parted recently
        while low < high:
            middle = max(low, high - step)
            if self._compare(names[middle], self._beginning) is None:
                high, step = middle, 2 * step
            else:
                low, step = middle + 1, max(1, (high - middle) // 2)
        deepest: Common | None = None
        for name in reversed(names[:low]):
            common = self._compare(name)
            if deepest is None or common is None or not common.whole:
                deepest = common
            if common is not None and common.transactions:
                return deepest
        return None

    def has_end(self, end: Parent, source_has: Sequence[BinlogName], newest: BinlogName) -> bool:
        """Whether the source has the last transactions before a place of the lineage, as they are.

        It has them in `newest` of its binlogs, or shortly before, at other offsets: another node of
        a cluster. Each of the last hundred that it has there must be the same in all that servers
        write alike (`binlog.fingerprint`), none between them may be missing, and the last one of
        each domain and server must be among them: nodes may have numbers of their own in common.
        Raises SourceError, also if the bucket does not have all bytes before that place yet.
        """
        if not end.binlog or not end.offset:
            return False
        name = end.binlog
        needed = {
            f"{domain}-{server}-{number}"
            for domain, server, number in MariadbGtidList.parse(end.gtid_set).gtids()
        }
        theirs: dict[str, bytes] = {}
        try:
            ours = self._last_before(name, end.offset, needed)
            if not needed or not needed <= ours.keys():
                return False
            older = [binlog for binlog in sorted(source_has, reverse=True) if binlog <= newest]
            for binlog in older[:_MOST_OLDER]:
                if ours.keys() <= theirs.keys():
                    break
                with self._reading(binlog) as blocks:
                    fingerprints = _fingerprints(blocks, ours)
                if self._stop.is_set():
                    raise SourceError("not compared to the end: stopping", transient=True)
                if any(ours[gtid] != digest for gtid, digest in fingerprints.items()):
                    return False
                theirs |= fingerprints
        except (ArchiveError, DamageError, ValueError) as error:
            _log.warning("cannot be compared", binlog=name, error=error)
            return False
        since = set(dropwhile(lambda gtid: gtid not in theirs, ours))
        return needed <= theirs.keys() and theirs.keys() == since

    def _last_before(
        self, name: BinlogName, offset: int, needed: Collection[str]
    ) -> dict[str, bytes]:
        """The last transactions before a place: their GTIDs, and their fingerprints.

        Those of an older binlog, too, if it may have one that is needed.
        """
        sizes = self._catalog.sizes(self._lineage)
        if (size := sizes.get(name, 0)) < offset:
            raise SourceError(
                f"the bucket has {size} bytes of {name}, and {offset} are known: they are compared "
                "once all of them are there",
                hint="they are uploaded from the spool first; then it goes on by itself",
                transient=True,
            )
        listed = [other for other in sizes if other <= name]
        fingerprints: dict[str, bytes] = {}
        for other in listed[: -_MOST_OLDER - 1 : -1]:
            binlog = self._catalog.binlog(self._lineage, other)
            end = offset if other == name else binlog.size
            fingerprints = _fingerprints(binlog.blocks(0, end)) | fingerprints
            if set(needed) <= fingerprints.keys():
                break
        return fingerprints

    def _compare(self, name: BinlogName, most: int | None = None) -> Common | None:
        """How far this binlog is the same on both sides; None if its format event differs.

        Compares about `most` bytes; then it is unknown whether the rest is the same.
        """
        scanner = Scanner()

        def scan(fresh: Scanner) -> bool:
            nonlocal scanner
            scanner = fresh
            return self._is_whole(name, scanner, most)

        try:
            whole = _accepting(scan)
        except DamageError:
            whole = False
        if not scanner.events:
            return None
        return Common(
            position=Position.of(
                FilePosition(name, scanner.transaction_end),
                None if scanner.anonymous else scanner.gtids_at_end,
            ),
            whole=whole,
            transactions=scanner.transactions,
        )

    def _is_whole(self, name: BinlogName, scanner: Scanner, most: int | None) -> bool:
        """Whether the source has all bytes of the bucket; the scanner gets the common ones.

        Raises DamageError if they are equal but damaged.
        """
        equal = 0
        with self._reading(name) as theirs:
            ours = self._catalog.binlog(self._lineage, name)
            end = ours.size if most is None else min(most, ours.size)
            for block, other in _in_step(ours.blocks(0, end), theirs):
                same = _same(block, other)
                equal += same
                scanner.feed(other[:same])
                if same < len(block):
                    break
        return equal == ours.size

    @contextmanager
    def _reading(self, name: BinlogName) -> Iterator[Iterator[bytes]]:
        """The bytes of the source's binlog. At the end they are proved to be the source's."""
        run, child = self._spool.started(self._facts.uuid, name, 4, partial(self._start, name))
        head = bytearray()
        try:
            with closing(self._bytes(run.directory / str(name), child)) as blocks:
                try:
                    yield _noting(blocks, head)
                except DamageError:
                    self._prove_beginning(name, head)
                    raise
            self._prove_beginning(name, head)
        finally:
            child.stop()
            self._spool.discard(run)

    def _start(self, name: BinlogName, run: SpoolRun) -> Child:
        """Start a mysqlbinlog that reads one binlog and exits."""
        return Child(
            self._tool,
            self._server.login(),
            server_id=0,
            directory=run.directory,
            binlog=name,
            one_binlog=True,
            tls=self._facts.tls,
            on_line=lambda line: _log.info("mysqlbinlog says", line=line),
        )

    def _prove_beginning(self, name: BinlogName, head: bytearray) -> None:
        if head and not self._stop.is_set():
            prove(self._server, self._facts.uuid, name, bytes(head))

    def _bytes(self, path: Path, child: Child) -> Generator[bytes, None, None]:
        """The bytes that the child writes, until it exits. Raises SourceError if it fails."""
        file = -1
        heard = time.monotonic()
        try:
            while not self._stop.is_set():
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
                        hint="the server hangs, or the network connection is broken",
                        transient=True,
                    )
                else:
                    self._stop.wait(_POLL_SECONDS)
        finally:
            if file >= 0:
                os.close(file)


def _noting(blocks: Iterator[bytes], head: bytearray) -> Iterator[bytes]:
    """These blocks; what `prove` needs of them comes into `head`."""
    for block in blocks:
        head += block[: MOST_BYTES - len(head)]
        yield block


def _fingerprints(
    blocks: Iterator[bytes], wanted: Collection[str] | None = None
) -> dict[str, bytes]:
    """The fingerprints of a binlog's transactions by GTID, in order.

    Of those that are `wanted`; None: of the last hundred. Raises DamageError and ValueError.
    """
    fingerprints: dict[str, bytes] = {}
    scanner = Scanner()
    reader: Fingerprint | None = None
    at = 0
    for block in blocks:
        done = scanner.feed(block)
        if reader is None and scanner.formats:
            reader = Fingerprint(scanner.formats[0].trailer)
        low = 0 if at else len(MAGIC)
        for transaction in done:
            high = transaction.end - at
            assert reader is not None  # noqa: S101 - a format event comes first
            reader.feed(memoryview(block)[low:high])
            digest, low = reader.take(), high
            if transaction.gtid is not None and (wanted is None or transaction.gtid in wanted):
                fingerprints.pop(transaction.gtid, None)
                fingerprints[transaction.gtid] = digest
                if len(fingerprints) > _MOST_COMPARED:
                    del fingerprints[next(iter(fingerprints))]
        if reader is not None:
            reader.feed(memoryview(block)[low:])
        at += len(block)
    return fingerprints


def cut(catalog: Catalog, lineage: Lineage, executed: Gtids) -> Position | None:
    """The last position of a lineage up to which a server has executed all GTIDs.

    None if it cannot be found, also where the numbers of a MariaDB go back: they do not tell what a
    server has executed of that binlog.
    """
    for name in reversed(catalog.sizes(lineage)):
        try:
            binlog = catalog.binlog(lineage, name)
            if lineage.flavour == "mariadb" and _read(binlog).gtids_go_back:
                return None
            within = _cut_within(binlog, executed)
            if within is None:
                continue
            end, scanner = within
            if scanner.transactions or not _went_back_before(catalog, lineage, name):
                assert scanner.gtids_at_end is not None  # noqa: S101 - `_cut_within` has seen it
                return Position.of(FilePosition(name, end), scanner.gtids_at_end)
        except (ArchiveError, DamageError) as error:
            _log.warning("cannot be read to find the last common transaction",
                         binlog=name, error=error)  # fmt: skip
            continue
        return None
    return None


def _went_back_before(catalog: Catalog, lineage: Lineage, name: BinlogName) -> bool:
    """Whether the numbers of a MariaDB go back in the last transactions before this binlog."""
    for other in reversed(catalog.sizes(lineage)) if lineage.flavour == "mariadb" else ():
        if other < name:
            scanner = _read(catalog.binlog(lineage, other))
            if scanner.transactions:
                return scanner.gtids_go_back
    return False


def _read(binlog: Readable) -> Scanner:
    """What all of a binlog says."""
    return _accepting(lambda scanner: _fed(scanner, binlog.blocks()))


def _cut_within(binlog: Readable, executed: Gtids) -> tuple[int, Scanner] | None:
    """Where it is cut, and what it says up to there."""
    end = _accepting(lambda scanner: _first_missing(scanner, binlog.blocks(), executed))
    if end is None:
        return None
    scanner = _accepting(lambda scanner: _fed(scanner, binlog.blocks(0, end)))
    is_known = scanner.gtids_at_end is not None and not scanner.anonymous
    return (end, scanner) if is_known else None


def _fed(scanner: Scanner, blocks: Iterator[bytes]) -> Scanner:
    for block in blocks:
        scanner.feed(block)
    return scanner


def _first_missing(scanner: Scanner, blocks: Iterator[bytes], executed: Gtids) -> int | None:
    """The begin of the first transaction that is not in these GTIDs, else the end of the last one.

    None if transactions before this binlog are missing too, or if that is unknown. So it is if the
    last one before the missing one is not the server's last one of that domain and server: numbers
    have gone back before.
    """
    checked = False
    last: MariadbGtidList | None = None
    for block in blocks:
        transactions = scanner.feed(block)
        if not checked and scanner.previous_gtids is not None:
            if not has(executed, scanner.previous_gtids):
                return None
            checked = True
            if isinstance(scanner.previous_gtids, MariadbGtidList):
                last = scanner.previous_gtids
        for transaction in transactions:
            if transaction.gtid is None:
                return None
            gtid = parse(transaction.gtid, scanner.flavour or "mysql")
            if not has(executed, gtid):
                return transaction.begin if _ends_here(executed, last, gtid) else None
            if last is not None and isinstance(gtid, MariadbGtidList):
                last = last.then(gtid)
    return scanner.transaction_end if checked else None


def _ends_here(executed: Gtids, last: MariadbGtidList | None, missing: Gtids) -> bool:
    """Whether a MariaDB's GTIDs end with the last one before the missing one; True for MySQL's."""
    if not isinstance(missing, MariadbGtidList) or not isinstance(executed, MariadbGtidList):
        return True
    ((domain, server, _),) = missing.gtids()
    before = last.number(domain, server) if last is not None else None
    return executed.number(domain, server) == before


def _accepting(scan: Callable[[Scanner], Scanned]) -> Scanned:
    """Scan; after each damaged event scan again and accept that event as it is.

    Raises DamageError if an accepted event still fails, or if there are too many.
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


def prove(
    server: Server, uuid: str, name: BinlogName, received: bytes, begin: int = 0
) -> ServerFacts:
    """See that these first bytes of a binlog, which mysqlbinlog received, are of this server.

    They come after its first `begin` bytes.

    Something between us may have led the questions and mysqlbinlog to different servers, which may
    even have the same server id. So the server is asked for the same bytes, on a new connection on
    which it has said who it is. Returns its facts. Raises SourceError.
    """
    server.close()
    facts = server.facts()
    if facts.uuid != uuid:
        raise SourceError(
            f"another server answers under this address: {facts.uuid}, not {uuid}",
            hint="a proxy or a fail-over; it is asked again",
            transient=True,
        )
    received = received[: MOST_BYTES - begin]
    own = server.beginning(name, begin + len(received))[begin:]
    if why := another_beginning(name, received, own, begin):
        sender = "" if begin else f"{_sender(received)}; "
        raise SourceError(
            f"mysqlbinlog was led to another server than the questions: at {server.address} {uuid} "
            f"answers, and its binlog is another one: {why}; {sender}nothing of it was "
            "taken",
            hint="a proxy, a load balancer or a name with several addresses leads "
            f"{server.address} to several servers: give the address of one of them; it is asked "
            "again",
            transient=True,
        )
    return facts


def _sender(received: bytes) -> str:
    """What a binlog's first bytes say of the server that wrote them."""
    scanner = Scanner()
    with suppress(DamageError):
        scanner.feed(received)
    if not scanner.formats:
        return f"what came is no binlog: {received[:40]!r}"
    form = scanner.formats[0]
    created = datetime.fromtimestamp(form.timestamp, UTC)
    return (
        f"what came is of a server {form.server_version!r:.60} with server_id {form.server_id}, "
        f"created at {created:%Y-%m-%d %H:%M:%SZ}"
    )


def another_beginning(name: BinlogName, received: bytes, own: bytes, begin: int = 0) -> str:
    """Why the first bytes that were received of a binlog are not a server's own; "" if they are.

    `there`: as many bytes of the server's, or fewer if it has fewer. Both are from `begin` on.
    """
    same = _same(received, own)
    if same == len(received):
        return ""
    what = "ends there" if same == len(own) else "has other bytes from there on"
    upto, equal = begin + len(received), begin + same
    return f"{name} was received up to {upto}, equal up to {equal}: its own {what}"


def _in_step(ours: Iterator[bytes], theirs: Iterator[bytes]) -> Iterator[tuple[bytes, bytes]]:
    """Blocks of ours, each with the same number of bytes of theirs, or fewer at its end."""
    held = b""
    for block in ours:
        while len(held) < len(block):
            more = next(theirs, b"")
            if not more:
                break
            held += more
        yield block, held[: len(block)]
        held = held[len(block) :]


def _same(left: bytes, right: bytes) -> int:
    """The number of equal leading bytes."""
    if left == right:
        return len(left)
    low, high = 0, min(len(left), len(right))
    while low < high:
        middle = (low + high + 1) // 2
        if left[:middle] == right[:middle]:
            low = middle
        else:
            high = middle - 1
    return low
