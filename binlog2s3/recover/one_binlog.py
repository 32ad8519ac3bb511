"""One binlog of the bucket: what is known of it, and the transactions in it.

An entry describes an archived binlog; the open one, or one without an entry, is read once.
An entry that contradicts itself is an ArchiveError that names it, and so is damage
that the entry does not know of.
"""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

from binlog2s3.archive.blocks import Blocks, layout_problems
from binlog2s3.archive.documents import Entry, Lineage
from binlog2s3.archive.facts import Facts, facts_of, scanned
from binlog2s3.archive.parts import BLOCK_SIZE
from binlog2s3.archive.reader import Readable
from binlog2s3.archive.reading import BinlogReading
from binlog2s3.binlog.content import Content, ContentReader, OnStatement, TwoPhase
from binlog2s3.binlog.events import (
    HEADER,
    HEADER_SIZE,
    EventType,
    decode_format,
)
from binlog2s3.binlog.gtid import Flavour, Gtids, parse
from binlog2s3.binlog.names import BinlogName
from binlog2s3.binlog.scanner import MAGIC, Scanner, Transaction
from binlog2s3.errors import ArchiveError, DamageError

MOST_CONTENT = 256 << 20
"""So many bytes of a larger transaction are read to say what it does."""
_MOST_TRIES = 3
_XID_BYTES = 8


class _Pass:
    """One pass over a binlog's first `size` bytes.

    The streamer archives an event that is damaged on the source as it is. One such event between
    good ones is noted in `damaged` and passed over. After any other damage only the checksums of
    the rest are computed. `reached` bytes could be read.
    """

    def __init__(self, name: BinlogName, readable: Readable, size: int) -> None:
        self._readable = readable
        self._size = size
        self._accepted = -1
        self.reading = BinlogReading(name)
        self.damaged: list[tuple[int, int]] = []
        self.reached = 0

    def run(self) -> None:
        """Read all of it. Raises ArchiveError from where it cannot be read."""
        reading, scanner, begin = self.reading, self.reading.scanner, 0
        while True:
            try:
                for block in self._readable.blocks(begin, self._size):
                    received_us = self._readable.received_us(begin)
                    begin += len(block)
                    self.reached = max(self.reached, begin)
                    reading.feed(memoryview(block), received_us)
            except DamageError as damage:
                if self._passes_over(damage):
                    begin = reading.size
                    continue
                self.damaged = [span for span in scanner.damaged if span[1] <= damage.offset] + [
                    (damage.offset, self._size)
                ]
                for block in self._readable.blocks(reading.digest.size, self._size):
                    reading.digest.feed(memoryview(block))
            else:
                self.damaged = list(scanner.damaged)
            return

    def _passes_over(self, damage: DamageError) -> bool:
        """Whether the damaged event may be taken as it is, and what follows be read.

        Not if the event before it was taken so: then its header gave a wrong length.
        """
        scanner = self.reading.scanner
        behind = scanner.damaged[-1][1] if scanner.damaged else -1
        if damage.offset in (behind, self._accepted) or not self.reading.rewind():
            return False
        self._accepted = damage.offset
        scanner.accept(damage.offset)
        return True


# What is known of it


def described(entry: Entry, lineage: Lineage, blocks: Blocks | None = None) -> Facts:
    """A binlog as its entry describes it. Raises ArchiveError if the entry cannot be right.

    With `blocks`, also where the last whole transaction ends if the server has crashed: it may have
    died in the middle of writing one.
    """
    try:
        _check(entry, lineage.flavour)
        known = facts_of(entry, lineage)
    except (LookupError, TypeError, ValueError) as error:
        raise ArchiveError(
            f"the entry of {entry.name} in lineage {lineage.id} is damaged: {error}",
            hint="`binlog2s3 verify` says more; after you delete the entry, `verify --repair` "
            "makes it again from the binlog",
        ) from error
    if blocks is None or entry.end != "crash":
        return known
    return replace(known, transaction_end=_scanned(blocks, known, known.size).transaction_end)


def _check(entry: Entry, flavour: Flavour) -> None:
    for problem in layout_problems(entry):
        raise ValueError(problem)
    for block in entry.blocks:
        if block.first_gtid is not None:
            parse(block.first_gtid, flavour)
            if flavour == "mysql" and not block.first_gtid.rpartition(":")[2].isdecimal():
                raise ValueError(f"{block.first_gtid!r} is no GTID")


def known_by_reading(
    lineage: Lineage,
    name: BinlogName,
    readable: Readable,
    durable: int,
    problems: list[ArchiveError],
) -> Facts:
    """A binlog without an entry, found out by reading all of it.

    `durable`: so many bytes its writer said are in the bucket, 0 if it said nothing. `problems`
    gets what cannot be read of an open binlog. Raises ArchiveError.
    """
    size = max(readable.size, durable) if readable.state == "open" else readable.size
    read, size, lost = _read(name, readable, size, problems)
    scanner = read.reading.scanner
    if not scanner.formats:
        raise ArchiveError(
            f"{name} of {lineage.id}: the {size} bytes that can be read do not begin as a binlog "
            f"does{f': {scanner.damage}' if scanner.damage else ''}",
            hint="it has only just begun, or was damaged; `binlog2s3 list` shows what is there",
        )
    return scanned(
        scanner,
        lineage=lineage,
        name=name,
        size=size,
        state=readable.state,
        received_us=readable.received_us(max(0, readable.size - 1)),
        blocks=read.reading.digest.blocks(),
        damaged=(*read.damaged, *lost),
    )


def _read(
    name: BinlogName, readable: Readable, size: int, problems: list[ArchiveError]
) -> tuple[_Pass, int, tuple[tuple[int, int], ...]]:
    """One pass over a binlog, how many bytes it read, and what should come after them.

    What comes before a chunk that is missing or damaged is still good.
    """
    wanted = size
    for _ in range(_MOST_TRIES):
        reading = _Pass(name, readable, size)
        try:
            reading.run()
        except ArchiveError as error:
            upto = readable.size if size > readable.size else _begin_of(readable, reading.reached)
            if readable.state == "archived" or not upto or upto >= size:
                raise
            problems.append(error)
            size = upto
        else:
            return reading, size, ((size, wanted),) if size < wanted else ()
    raise problems[-1]


def _begin_of(readable: Readable, offset: int) -> int:
    """Where the chunk begins that has this byte."""
    for stored in readable.ranges:
        if stored.begin <= offset < stored.end:
            return stored.chunk.begin if stored.chunk is not None else stored.begin
    return readable.size


# What is in it


def transactions(
    blocks: Blocks, known: Facts, begin: int = 0, end: int | None = None
) -> Iterator[Transaction]:
    """The whole transactions that begin in [`begin`, `end`), in order."""
    limit = known.transaction_end
    until = limit if end is None else min(end, limit)
    start = _first_boundary(known, begin)
    if start is None or start >= until:
        return
    scanner = blocks.scanner(known, start)
    damaged = {high: low for low, high in known.damaged}
    with closing(blocks.read(known, start, limit, soon=until)) as views:
        for view in views:
            for transaction in _scan(scanner, view, known):
                # after a damaged GTID event a transaction looks as if it had none
                while transaction.gtid is None and transaction.begin in damaged:
                    transaction = replace(transaction, begin=damaged[transaction.begin])  # noqa: PLW2901
                if begin <= transaction.begin < until:
                    yield transaction
            if scanner.transaction_end >= until:
                return


def phases(
    blocks: Blocks, known: Facts, begin: int, end: int
) -> Iterator[tuple[Transaction, TwoPhase]]:
    """The phases of what has two, in order: of the transactions that begin in [`begin`, `end`)."""
    start = _first_boundary(known, begin)
    if start is None or start >= end:
        return
    form = decode_format(blocks.head(known, start), offset=0)
    scanner = blocks.scanner(known, start)
    reader = ContentReader(form, only_phases=True)
    at = start
    with closing(blocks.read(known, start, min(end, known.transaction_end))) as views:
        for view in views:
            low = len(MAGIC) if at == 0 else 0
            for transaction in _scan(scanner, view, known):
                high = transaction.end - at
                reader.feed(view[low:high])
                phase, low = reader.two_phase, high
                reader = ContentReader(form, only_phases=True)
                if phase is not None and begin <= transaction.begin < end:
                    yield transaction, phase
            reader.feed(view[low:])
            at += len(view)


def gtid_list(blocks: Blocks, known: Facts) -> Gtids | None:
    """The GTIDs that it begins with, by its own first events; None if they do not say it."""
    scanner = blocks.scanner(known, 0)
    with closing(blocks.read(known, 0, known.size, soon=1)) as views:
        for view in views:
            _scan(scanner, view, known)
            if scanner.previous_gtids is not None or scanner.transactions:
                break
    return scanner.previous_gtids


def content(
    blocks: Blocks,
    known: Facts,
    transaction: Transaction,
    on_statement: OnStatement | None = None,
) -> Content:
    """What a transaction does; for a very large one without the number of rows."""
    head = blocks.head(known, transaction.begin)
    reader = ContentReader(decode_format(head, offset=0), on_statement=on_statement)
    end = min(transaction.end, transaction.begin + MOST_CONTENT)
    with closing(blocks.read(known, transaction.begin, end)) as views:
        for view in views:
            reader.feed(view)
    read = reader.content()
    if end < transaction.end:
        read = replace(read, changes=tuple(replace(change, rows=None) for change in read.changes))
    return read


def is_engine_commit(blocks: Blocks, known: Facts, transaction: Transaction) -> bool:
    """Whether an XID event ends a transaction: a transactional engine, such as InnoDB, has it."""
    head = decode_format(blocks.head(known, transaction.begin), offset=0)
    size = HEADER_SIZE + _XID_BYTES + head.trailer
    begin = transaction.end - size
    if begin < transaction.begin:
        return False
    with closing(blocks.read(known, begin, transaction.end)) as views:
        data = b"".join(bytes(view) for view in views)
    _, event_type, _, event_size, _, _ = HEADER.unpack_from(data)
    return (event_type, event_size) == (EventType.XID, size)


def is_boundary(blocks: Blocks, known: Facts, offset: int) -> bool:
    """Whether events end there and no transaction is open; also at the binlog's very end."""
    if offset in {0, len(MAGIC), known.transaction_end}:
        return True
    if not 0 < offset < known.transaction_end:
        return False
    scanner = _scanned(blocks, known, offset)
    return scanner.event_end == offset == scanner.transaction_end


def _scanned(blocks: Blocks, known: Facts, end: int) -> Scanner:
    """A scanner that has read up to `end`, from the last boundary before it."""
    start = known.boundary(end)
    scanner = blocks.scanner(known, start)
    with closing(blocks.read(known, start, end)) as views:
        for view in views:
            _scan(scanner, view, known)
    return scanner


def _scan(scanner: Scanner, view: memoryview, known: Facts) -> list[Transaction]:
    """What the scanner finds. Damage that the entry does not know of is an ArchiveError."""
    try:
        return scanner.feed(view)
    except DamageError as error:
        raise ArchiveError(
            f"{known.name} of {known.lineage.id}: {error}; its entry does not say so",
            hint="`mysqlbinlog --verify-binlog-checksum` over the object shows more",
        ) from error


def _first_boundary(known: Facts, offset: int) -> int | None:
    """From where to look for the transactions that begin at or after an offset.

    That is in the block of this offset if a transaction begins in it, else where the next one
    begins; None if none does.
    """
    number = offset // BLOCK_SIZE
    if number == 0:
        return 0
    firsts = [b.first_offset for b in known.blocks[number:] if b.first_offset is not None]
    return firsts[0] if firsts else None
