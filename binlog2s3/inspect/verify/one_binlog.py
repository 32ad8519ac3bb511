"""Checks one binlog: its entry against itself, or its chunks, if it is not archived yet.

Law: only what no server and no streamer can have written is a defect. Clocks step back, and a
replica's times are its source's: times prove nothing. Chunks come and go meanwhile: what seems
missing is listed again, and looked up in the archive, before it is called missing. What the writer
never reported as durable is not missing.
"""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import fields
from functools import partial
from itertools import pairwise
from typing import Any

from binlog2s3.archive.ahead import Ahead
from binlog2s3.archive.blocks import layout_problems, offset_problems
from binlog2s3.archive.chunks import Chunks, join
from binlog2s3.archive.codec import Crc64
from binlog2s3.archive.documents import Entry, EntryRow
from binlog2s3.archive.facts import Facts
from binlog2s3.archive.parts import BLOCK_SIZE
from binlog2s3.binlog.checksum import crc64_hex, crc64_of_blocks, crc64_of_rest
from binlog2s3.binlog.executed import is_in
from binlog2s3.binlog.gtid import Flavour, Gtids, GtidSet, mariadb_gtid, parse
from binlog2s3.binlog.names import BinlogName
from binlog2s3.errors import ArchiveError, ObjectMissingError
from binlog2s3.formatting import brief, count_text
from binlog2s3.inspect.verify.context import LineageContext
from binlog2s3.server.version import ServerVersion

_ENDS = ("rotate", "stop", "crash")


def read_entry(
    data: bytes, key: str, name: BinlogName, flavour: Flavour
) -> tuple[Entry, list[str]]:
    """The entry, and its contradictions; ArchiveError if this version cannot read it."""
    entry = Entry.from_json(data, key)
    problems = []
    if entry.block_size != BLOCK_SIZE:
        problems.append(f"block_size is {entry.block_size}, not {BLOCK_SIZE}")
    if entry.commit_times not in ("exact", "seconds"):
        problems.append(f"commit_times is {brief(entry.commit_times)}")
    try:
        problems += _problems(entry, name, flavour)
    except (KeyError, TypeError, ValueError) as error:
        raise ArchiveError(
            f"{key} does not follow format 1: {type(error).__name__} {brief(error)}",
            hint="was the entry changed by hand?",
        ) from error
    return entry, problems


def is_sound_without_blocks(entry: EntryRow, name: BinlogName, flavour: Flavour) -> bool:
    """Whether an entry from a page, which has no blocks, has no contradictions."""
    try:
        if entry.name != name or any(offset_problems(entry)):
            return False
        return not any(_fact_problems(entry, name, flavour))
    except (KeyError, TypeError, ValueError):
        return False


def _problems(entry: Entry, name: BinlogName, flavour: Flavour) -> Iterator[str]:
    layout = list(layout_problems(entry))
    yield from layout
    if not layout:
        yield from _block_problems(entry)
    yield from _fact_problems(entry, name, flavour)
    yield from _first_time_problems(entry)
    yield from _first_gtid_problems(entry, flavour)


def _fact_problems(entry: EntryRow, name: BinlogName, flavour: Flavour) -> Iterator[str]:
    yield from _time_problems(entry)
    yield from _count_problems(entry)
    yield from _gtid_problems(entry, flavour)
    yield from _format_problems(entry, flavour)
    if entry.end not in _ENDS:
        yield f"end is {brief(entry.end)}"
    if (entry.next_binlog is not None) != (entry.end == "rotate"):
        yield f"end is {brief(entry.end)} and next_binlog {brief(entry.next_binlog)}"
    elif entry.next_binlog not in (None, name.next()):
        yield f"next_binlog is {brief(entry.next_binlog)}, but {name.next()} follows {name}"


def _block_problems(entry: Entry) -> Iterator[str]:
    """The blocks' checksums must combine to the checksum of the whole."""
    crc64 = 0
    for block in entry.blocks:  # CRC64 values of adjacent ranges combine
        crc64 = crc64_of_rest(crc64, block.crc64, block.size)
    if crc64 != entry.crc64:
        yield (
            f"crc64nvme is {crc64_hex(entry.crc64)}, its blocks' checksums combine to "
            f"{crc64_hex(crc64)}"
        )
    for block in entry.blocks:
        has_facts = (block.first_commit_us, block.first_gtid) != (None, None)
        if block.first_offset is None and has_facts:
            yield f"the block at {block.offset} has a commit time or a GTID, but no transaction"
    yield from _first_offset_problems(entry)


def _first_offset_problems(entry: Entry) -> Iterator[str]:
    """The number of blocks in which a transaction begins must fit the number of transactions."""
    begun = sum(block.first_offset is not None for block in entry.blocks)
    if begun > entry.transactions:
        yield f"{begun} blocks have a first transaction, but there are {entry.transactions}"
    if entry.transactions and not begun and not entry.damaged:
        yield f"no block has a first transaction, but there are {entry.transactions}"


def _time_problems(entry: EntryRow) -> Iterator[str]:
    least, greatest = entry.least_commit_us, entry.greatest_commit_us
    has_any = entry.transactions > 0
    if (least is not None, greatest is not None) != (has_any, has_any):
        yield f"commit times are {least} and {greatest} with {entry.transactions} transactions"
        return
    reached = entry.reached_us
    if least is None or greatest is None:
        if reached is not None:
            yield f"reached_us is {reached} with no transactions"
        return
    if least > greatest:
        yield f"least_commit_us {least} is greater than greatest_commit_us {greatest}"
        return
    if reached is not None and not least <= reached <= greatest:
        yield f"reached_us {reached} is not between {least} and {greatest}"


def _first_time_problems(entry: Entry) -> Iterator[str]:
    """The first commit time of each block must be between the least and the greatest."""
    least, greatest = entry.least_commit_us, entry.greatest_commit_us
    if least is None or greatest is None or least > greatest:  # said already, if it is wrong
        return
    for block in entry.blocks:
        if block.first_offset is not None and block.first_commit_us is None:
            yield f"first_commit_us of the block at {block.offset} is null"
        elif block.first_commit_us is not None and not least <= block.first_commit_us <= greatest:
            yield (
                f"first_commit_us {block.first_commit_us} of the block at {block.offset} is not "
                f"between {least} and {greatest}"
            )


def _count_problems(entry: EntryRow) -> Iterator[str]:
    counts = (entry.transactions, entry.anonymous_transactions, entry.events)
    if min(counts) < 0 or entry.anonymous_transactions > entry.transactions:
        yield f"transactions, anonymous_transactions and events are {counts}"
    elif entry.events < entry.transactions + 1:
        yield f"{entry.transactions} transactions need more than {entry.events} events"


def _gtid_problems(entry: EntryRow, flavour: Flavour) -> Iterator[str]:
    try:
        before = parse(entry.gtid_set_before, flavour)
        added = parse(entry.gtid_set_added, flavour)
    except ValueError as error:
        yield f"its GTIDs cannot be parsed: {brief(error)}"
        return
    named = entry.transactions - entry.anonymous_transactions
    if entry.damaged:  # a damaged GTID event may be missing
        return
    if isinstance(added, GtidSet) and isinstance(before, GtidSet):
        if added.count != named:
            yield (
                f"gtid_set_added has {added.count} GTIDs, {entry.transactions} transactions but "
                f"{entry.anonymous_transactions} anonymous ones have {named}"
            )
        if both := added & before:
            yield f"{brief(both)} is in both gtid_set_before and gtid_set_added"
    elif bool(added) != bool(named):
        yield f"gtid_set_added is {brief(added)} with {named} transactions that have a GTID"


def _first_gtid_problems(entry: Entry, flavour: Flavour) -> Iterator[str]:
    """The first GTID of each block must be in gtid_set_added."""
    if entry.damaged:  # a damaged GTID event may be missing
        return
    try:
        added = parse(entry.gtid_set_added, flavour)
    except ValueError:  # said already
        return
    for block in entry.blocks:
        if block.first_gtid is not None:
            if not _is_among(block.first_gtid, added):
                yield (
                    f"first_gtid {brief(block.first_gtid)} of the block at {block.offset} is not "
                    "in gtid_set_added"
                )
        elif block.first_offset is not None and not entry.anonymous_transactions:
            yield f"first_gtid of the block at {block.offset} is null"


def _is_among(gtid: str, added: Gtids) -> bool:
    """Whether a GTID, in the scanner's form, is in the set; MariaDB's by domain and server."""
    try:
        if isinstance(added, GtidSet):
            return is_in(added, gtid)
        domain, server, _ = mariadb_gtid(gtid)
    except ValueError:
        return False
    return (domain, server) in {(d, s) for d, s, _ in added.gtids()}


def _format_problems(entry: EntryRow, flavour: Flavour) -> Iterator[str]:
    for form in entry.formats:
        if form["checksum"] not in ("crc32", "none"):
            yield f"formats has the unknown checksum {brief(form['checksum'])}"
        version = form["server_version"]
        if ServerVersion(version).flavour != flavour:
            yield f"formats has server {brief(version)}, but the lineage is {flavour}"


def differences(entry: Entry, found: Entry) -> list[str]:
    """The fields in which an entry differs from a pass over all bytes.

    What the bytes do not show is left out: when they were received, and what the source said. So
    is what an older version did not write.
    """
    wrong = []
    for field in (own.name for own in fields(entry)):
        said, is_so = getattr(entry, field), getattr(found, field)
        if field in _NOT_IN_THE_BYTES or said == is_so or (field in _LATER and said is None):
            continue
        if field == "blocks":
            wrong.append(f"blocks: {_block_difference(entry, found)}")
        else:
            wrong.append(f"{field} is {_value(said)}, not {_value(is_so)}")
    return wrong


_NOT_IN_THE_BYTES = frozenset({"archived_at", "reached_us", "leaves_out", "time_zone"})
_LATER = frozenset({"gtids_go_back", "started"})


def _block_difference(entry: Entry, found: Entry) -> str:
    for number, (said, is_so) in enumerate(zip(entry.blocks, found.blocks, strict=False)):
        for field in ("offset", "size", "crc64", "first_offset", "first_commit_us", "first_gtid"):
            one, other = getattr(said, field), getattr(is_so, field)
            if one != other:
                return f"{field} of block {number} is {_value(one)}, not {_value(other)}"
    return f"there are {len(entry.blocks)}, not {len(found.blocks)}"


def _value(value: Any) -> str:
    return str(value) if isinstance(value, Crc64) else brief(value)


_LOOKS = 3


class OpenBinlog:
    """One of them. `size` bytes can be read; `archived`: it is in the archive by now."""

    def __init__(self, context: LineageContext, name: BinlogName) -> None:
        self._context = context
        self._name = name
        self.size = 0
        self.archived = False
        self._has_defects = False

    def check(self, *, is_last: bool, is_cut: bool) -> None:
        """Look at the names of its chunks. `is_cut`: only its beginning counts, for its children.

        `is_last`: it is the last one of its lineage.
        """
        chunks, wanted = self._look()
        if self.archived:
            return
        self.size = chunks.end
        before = len(self._context.source.report.defects)
        self._check_pairs(chunks)
        reach, name = _reach(chunks), self._name
        if reach > chunks.end:
            behind = min(chunk.begin for chunk in chunks if chunk.begin > chunks.end)
            text = (
                f"bytes {chunks.end} to {behind} of {name} are missing, but later chunks are there"
            )
            if self._context.writer is not None and wanted <= chunks.end and is_last:
                self._context.note(f"{text}; its writer has not reported them as durable")
            elif not is_cut:
                self._context.defect("chunk-hole", text, name)
        elif wanted > chunks.end:
            text = f"{chunks.end} bytes of {name} are there, {wanted} were durable"
            self._context.defect("durable-missing", text, name, self._context.chunks_key(name))
        self._has_defects = len(self._context.source.report.defects) > before

    def _look(self) -> tuple[Chunks, int]:
        """Its chunks, and up to where the writer has reported them as durable."""
        source, lineage = self._context.source, self._context.lineage
        wanted, chunks = self._durable(), Chunks()
        for number in range(_LOOKS):
            if number:
                source.pause()
            chunks = source.catalog.chunks(lineage, self._name)
            self.archived = source.store.head(self._context.object_key(self._name)) is not None
            if self.archived or max(_reach(chunks), wanted) <= chunks.end:
                break
        return chunks, wanted

    def _durable(self) -> int:
        writer = self._context.writer
        if writer is None or writer.durable is None or writer.durable.binlog != self._name:
            return 0
        return writer.durable.offset

    def _check_pairs(self, chunks: Chunks) -> None:
        """Two chunks of one range must not have different checksums."""
        for chunk, other in pairwise(sorted(chunks)):
            if (chunk.begin, chunk.end) == (other.begin, other.end):
                text = f"{chunk} and {other} have the same range but different bytes"
                key = self._context.source.layout.chunk(self._context.lineage.id, self._name, other)
                self._context.defect("chunk-disagrees", text, self._name, key)

    def check_stored(self) -> bool:
        """Compare the store's checksums of the chunks that a recovery reads; reads no bytes.

        Returns whether all are right, as far as the store has them.
        """
        source, unproved, is_right = self._context.source, 0, True
        id_ = self._context.lineage.id
        needed = join(source.catalog.chunks(self._context.lineage, self._name))
        keys = [source.layout.chunk(id_, self._name, chunk) for chunk in needed]
        tasks = (partial(source.store.head, key) for key in keys)
        with closing(Ahead(tasks, threads=source.threads)) as ahead:
            for chunk, key, info in zip(needed, keys, ahead, strict=True):
                if info is None:
                    continue  # replaced by a longer chunk, or archived
                unproved += info.crc64 is None
                if info.crc64 not in (None, chunk.crc64):
                    text = (
                        f"its CRC64NVME in the store is {crc64_hex(info.crc64)}, in its name "
                        f"{crc64_hex(chunk.crc64)}"
                    )
                    self._context.defect("chunk-bytes", text, self._name, key)
                    is_right = False
        if unproved:
            self._context.note(
                f"{count_text(unproved, 'chunk')} of {self._name}: the store has no CRC64NVME of "
                "them, so their bytes were not compared; --deep reads them"
            )
        return is_right

    def check_bytes(self, known: Facts) -> None:
        """Report what a pass over its bytes has shown, and compare the chunks not needed for it.

        What `check` has reported is not reported again.
        """
        for begin, end in known.damaged:
            text = f"bytes {begin} to {end} of {self._name}"
            if begin >= self.size and self._has_defects:
                continue
            if end > known.size:
                text += " differ from what was uploaded"
                self._context.defect("chunk-bytes", text, self._name)
            else:
                self._context.recorded("damaged", f"{text} were damaged on the source")
        source, lineage = self._context.source, self._context.lineage
        chunks = source.catalog.chunks(lineage, self._name)
        for chunk in sorted(set(chunks) - {*join(chunks)}):
            key = source.layout.chunk(lineage.id, self._name, chunk)
            try:
                crc64 = crc64_of_blocks(source.store.open(key, 0, chunk.size))
            except ObjectMissingError:
                continue  # replaced by a longer chunk
            if crc64 != chunk.crc64:
                text = f"its bytes have the CRC64NVME {crc64_hex(crc64)}; longer chunks replace it"
                self._context.defect("chunk-bytes", text, self._name, key)


def _reach(chunks: Chunks) -> int:
    """Where the last chunk ends, even if there is a hole before it."""
    return max((chunk.end for chunk in chunks), default=0)
