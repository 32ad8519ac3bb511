"""`verify --repair`: makes missing entries again from complete binlogs.

Place in the flow: `source` calls it for archived binlogs that have no entry.

Law: nothing is replaced, and nothing else is written. An entry is made only of an object that is
proved to be the complete binlog of that name; if an entry appears meanwhile, it is kept.
"""

from binlog2s3.archive.documents import EntryEnd, Lineage
from binlog2s3.archive.reading import BinlogReading
from binlog2s3.binlog.gtid import Gtids, joined, parse
from binlog2s3.binlog.names import BinlogName
from binlog2s3.errors import ArchiveError, DamageError, ObjectMissingError
from binlog2s3.inspect.verify.context import LineageContext
from binlog2s3.inspect.verify.report import Repaired
from binlog2s3.stream.remote import put_entry


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
    store, key = context.source.store, context.object_key(name)
    info = store.head(key)
    if info is None:
        return "the binlog is not there any more"
    reading = BinlogReading(name)
    try:
        for block in store.open(key, 0, info.size):
            reading.feed(memoryview(block))
    except DamageError as error:
        return f"its bytes are damaged: {error}"
    if not info.size or reading.size != info.size:
        return f"its last event ends at {reading.size} of {info.size} bytes"
    if why := _breaks(context, reading):
        return why
    try:
        put_entry(store, context.entry_key(name), reading)
    except ArchiveError as error:
        return str(error)
    return ""


def _breaks(context: LineageContext, binlog: BinlogReading) -> str:
    """Why this cannot be the complete binlog of its name; "" if everything fits."""
    lineage, name, scanner = context.lineage, binlog.name, binlog.scanner
    if scanner.flavour != lineage.flavour:
        return f"it is {scanner.flavour}, but the lineage is {lineage.flavour}"
    if binlog.next_binlog not in (None, str(name.next())):
        return f"it ends with a rotation to {binlog.next_binlog}"
    earlier = _end(context, _previous(name))
    later = _end(context, name.next())
    before, after = binlog.gtids_before(), scanner.gtids_at_end
    expected = _expected(lineage, name, earlier)
    following = parse(later.gtid_set_before, lineage.flavour) if later is not None else None
    is_proved = bool(after) and following == after and not scanner.anonymous
    why = ""
    if before is not None and expected is not None and before != expected:
        why = f"it begins after {before or 'no GTIDs'}, the binlog before it ends with {expected}"
    elif earlier is not None and earlier.next_binlog not in (None, str(name)):
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


def _previous(name: BinlogName) -> BinlogName:
    number = name.number - 1
    return BinlogName(name.prefix, number, max(6, len(str(number))))


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
