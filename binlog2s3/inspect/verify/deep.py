"""Reads every byte of archived binlogs: for --deep, to check them; for --repair, to make entries.

Law: blocks of several binlogs are fetched in parallel, only a few at a time, and not kept. The
bytes are checked against the entry, and the entry against the bytes; if both are consistent in
themselves but differ, the report says so. --repair replaces nothing: an entry is made only of an
object that is proved to be the complete binlog of that name; if an entry appears meanwhile, it is
kept.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial

from binlog2s3.archive.ahead import Ahead
from binlog2s3.archive.backups import Backup
from binlog2s3.archive.blocks import gathered
from binlog2s3.archive.catalog import read
from binlog2s3.archive.documents import Entry, EntryEnd, Lineage
from binlog2s3.archive.pages import name_at
from binlog2s3.archive.parts import BLOCK_SIZE
from binlog2s3.archive.reading import BinlogReading
from binlog2s3.archive.stored import read_stored
from binlog2s3.binlog.checksum import crc64_hex, crc64nvme
from binlog2s3.binlog.gtid import Gtids, joined, parse
from binlog2s3.binlog.names import BinlogName
from binlog2s3.errors import ArchiveError, DamageError, ObjectMissingError, StoreError
from binlog2s3.inspect.verify.context import LineageContext, SourceContext, damaged
from binlog2s3.inspect.verify.one_binlog import differences
from binlog2s3.inspect.verify.report import Repaired
from binlog2s3.stream.remote import put_entry, read_archived

THREADS = 6
_AHEAD = 8
_MOST_SHOWN = 5
_SMALL = 64 << 10

Advance = Callable[[int, int], None]
"""Called as bytes arrive: how many more bytes and transactions."""


@dataclass(frozen=True, slots=True)
class _Fetched:
    """A block, or the error. The first block of a binlog comes with its entry."""

    number: int
    data: memoryview | bytes = b""
    crc64: int = 0
    error: StoreError | None = None
    entry: Entry | None = None


def read_all(
    context: LineageContext, sizes: Mapping[BinlogName, int], advance: Advance
) -> set[BinlogName]:
    """Read the archived binlogs of a lineage, which have these sizes, in order.

    Returns those whose bytes are wrong; their defects are in the report.
    """
    names, bad = sorted(sizes), set[BinlogName]()
    tasks = (
        partial(_fetch, context, name, sizes[name], number)
        for name in names
        for number in range(_count(sizes[name]))
    )
    with closing(Ahead(tasks, threads=THREADS, most=_AHEAD, first=_AHEAD)) as ahead:
        for name in names:
            blocks = (next(ahead) for _ in range(_count(sizes[name])))
            if not _BinlogPass(context, name, advance).run(blocks):
                bad.add(name)
    return bad


def read_backup(source: SourceContext, backup: Backup, advance: Advance) -> None:
    """Read a stored base backup to its end; report it if that is not what its program wrote."""
    before = 0

    def more(done: int, _: int) -> None:
        nonlocal before
        source.report.read_bytes += done - before
        advance(done - before, 0)
        before = done

    layout, stored = source.layout, backup.stored
    if stored is None:
        return
    try:
        for _ in read_stored(source.store, layout, backup.id, stored, more):
            pass
    except ArchiveError as error:
        key = layout.stored(backup.id, 1)
        source.report.defects += damaged(source.store, layout, backup, key, str(error))


def _count(size: int) -> int:
    return max(1, -(-size // BLOCK_SIZE))


def _fetch(context: LineageContext, name: BinlogName, size: int, number: int) -> _Fetched:
    """Fetch a block; called by any thread."""
    entry, store = None, context.source.store
    if number == 0:
        with suppress(ObjectMissingError, ArchiveError):  # the walk reports it
            entry = read(store, context.entry_key(name), Entry)
    key, begin = context.object_key(name), number * BLOCK_SIZE
    end = min(begin + BLOCK_SIZE, size)
    try:
        data: memoryview | bytes
        if size <= _SMALL:
            data = store.get(key, most=_SMALL)
        else:
            data = gathered(store.open(key, begin, end), end - begin)
    except StoreError as error:
        if error.transient:
            raise
        return _Fetched(number, error=error, entry=entry)
    return _Fetched(number, data, crc64nvme(data), entry=entry)


class _BinlogPass:
    """One binlog, block by block."""

    def __init__(self, context: LineageContext, name: BinlogName, advance: Advance) -> None:
        self._context = context
        self._name = name
        self._advance = advance
        self._reading = BinlogReading(name)
        self._crcs: list[int] = []
        self._size = self._whole = 0
        self._damage: DamageError | None = None

    def run(self, blocks: Iterator[_Fetched]) -> bool:
        """Read all of it; returns whether its bytes are right."""
        entry: Entry | None = None
        error: StoreError | None = None
        for fetched in blocks:
            entry = entry or fetched.entry
            if fetched.number == 0 and entry is not None:
                for damage in entry.damaged:
                    self._reading.scanner.accept(int(damage["begin"]))
            error = error or fetched.error
            if error is None:
                self._take(fetched)
            del fetched
        if error is None:
            wrong = self._judge(entry)
        elif isinstance(error, ObjectMissingError):
            wrong = ""  # the walk reports it
        else:
            wrong = f"it cannot be read completely: {error}"
        if wrong:
            self._context.defect("bytes", wrong, self._name)
        return not wrong

    def _take(self, fetched: _Fetched) -> None:
        data = memoryview(fetched.data)
        self._size += len(data)
        self._whole = crc64nvme(data, self._whole)
        self._crcs.append(fetched.crc64)
        before = self._reading.scanner.transactions
        if self._damage is None:
            try:
                self._reading.feed(data)
            except DamageError as error:
                self._damage = DamageError(str(error), offset=error.offset)
        self._context.source.report.read_bytes += len(data)
        self._advance(len(data), self._reading.scanner.transactions - before)

    def _judge(self, entry: Entry | None) -> str:
        """Compare the bytes with themselves and with the entry; returns what is wrong with them."""
        scanner = self._reading.scanner
        if entry is not None and entry.size != self._size:
            return ""  # the walk reports it
        wrong = self._wrong_blocks(entry)
        if entry is not None and wrong and self._whole != entry.crc64:
            text = f"bytes {', '.join(wrong[:_MOST_SHOWN])} differ from what was archived"
            more = len(wrong) - _MOST_SHOWN
            text += f" (and {more} more ranges)" if more > 0 else ""
            if self._damage is not None:
                text += f": {self._damage}"
            elif scanner.event_end == self._size:
                text += ": every event is valid, so this may be another binlog"
            return text
        if self._damage is not None or scanner.event_end != self._size:
            ends = f"the last event ends at {scanner.event_end} of {self._size} bytes"
            why = self._damage or ends
            return f"its events are damaged: {why}"
        if entry is None:
            return ""
        lies = differences(entry, self._reading.entry(entry.archived_at or datetime.now(UTC)))
        if lies:
            text = "; ".join(lies[:_MOST_SHOWN])
            text = f"compared with the bytes of {self._name}, {text}"
            self._context.defect("entry-lies", text, self._name)
        return ""

    def _wrong_blocks(self, entry: Entry | None) -> list[str]:
        """The ranges whose checksums differ from the entry's."""
        if entry is None:
            return []
        found = [
            f"{block.offset} to {block.offset + block.size}"
            for block, crc64 in zip(entry.blocks, self._crcs, strict=False)
            if block.crc64 != crc64
        ]
        if not found and self._whole != entry.crc64 and len(entry.blocks) != len(self._crcs):
            found = [f"0 to {self._size} ({crc64_hex(self._whole)})"]
        return found


def make_entry(context: LineageContext, name: BinlogName) -> Repaired:
    """Make the entry of an archived binlog, or say why not. Raises StoreError if denied."""
    return Repaired(
        lineage=context.lineage.id,
        binlog=name,
        key=context.entry_key(name),
        why=_make(context, name),
    )


def _make(context: LineageContext, name: BinlogName) -> str:
    """Make the entry; returns why it was not made, or ""."""
    store = context.source.store
    try:
        reading = read_archived(store, context.object_key(name), name)
        if reading is None:
            return "the binlog is not there any more"
        if why := _breaks(context, reading):
            return why
        put_entry(store, context.entry_key(name), reading)
    except ArchiveError as error:
        return str(error)
    return ""


def _breaks(context: LineageContext, binlog: BinlogReading) -> str:
    """Why this cannot be the complete binlog of its name; "" if everything fits."""
    lineage, name, scanner = context.lineage, binlog.name, binlog.scanner
    if scanner.flavour != lineage.flavour:
        return f"it is {scanner.flavour}, but the lineage is {lineage.flavour}"
    if binlog.next_binlog not in (None, name.next()):
        return f"it ends with a rotation to {binlog.next_binlog}"
    earlier = _end(context, name_at(lineage, name.number - 1))
    later = _end(context, name.next())
    before, after = binlog.gtids_before(), scanner.gtids_at_end
    expected = _expected(lineage, name, earlier)
    following = parse(later.gtid_set_before, lineage.flavour) if later is not None else None
    is_proved = bool(after) and following == after and not scanner.anonymous
    why = ""
    if before is not None and expected is not None and before != expected:
        why = f"it begins after {before or 'no GTIDs'}, the binlog before it ends with {expected}"
    elif earlier is not None and earlier.next_binlog not in (None, name):
        why = f"the binlog before it ends with a rotation to {earlier.next_binlog}"
    elif following is not None and after is not None and following != after:
        why = f"it ends with {after or 'no GTIDs'}, {name.next()} begins after {following}"
    elif not scanner.ended and not is_proved:
        why = "nothing proves that it is complete: it does not end with a rotation or a stop"
    return why


def _expected(lineage: Lineage, name: BinlogName, earlier: EntryEnd | None) -> Gtids | None:
    """The GTIDs before a binlog, by the binlog before it; None if not known."""
    if name == lineage.first_binlog:
        return parse(lineage.gtid_set, lineage.flavour)
    return _after(earlier, lineage) if earlier is not None else None


def _end(context: LineageContext, name: BinlogName) -> EntryEnd | None:
    try:
        return context.source.catalog.entry_end(context.lineage, name)
    except (ObjectMissingError, ArchiveError):
        return None


def _after(end: EntryEnd, lineage: Lineage) -> Gtids | None:
    try:
        before = parse(end.gtid_set_before, lineage.flavour)
        return joined(before, parse(end.gtid_set_added, lineage.flavour))
    except ValueError:
        return None
