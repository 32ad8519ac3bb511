"""Walks one lineage, binlog by binlog, using only the listing and the entries.

Entries are read ahead, in order, and not kept: memory does not grow with them. What changes
meanwhile is read again before it is called a defect.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial

from binlog2s3.archive.ahead import Ahead
from binlog2s3.archive.catalog import fetch
from binlog2s3.archive.documents import UNLOGGED, Entry, EntryRow
from binlog2s3.archive.facts import Binlog, Facts, LeftOut
from binlog2s3.archive.history import missing_binlogs
from binlog2s3.archive.index import Index
from binlog2s3.binlog.checksum import crc64_hex
from binlog2s3.binlog.names import BinlogName, FilePosition
from binlog2s3.config.options import SLOW_STORAGE_CLASSES
from binlog2s3.errors import ArchiveError, MisplacedError, ObjectMissingError
from binlog2s3.formatting import count_text, duration_text, some, us_of
from binlog2s3.inspect.verify.chain import (
    Intervals,
    break_before,
    of_entry,
)
from binlog2s3.inspect.verify.context import LineageContext
from binlog2s3.inspect.verify.one_binlog import OpenBinlog, is_sound_without_blocks, read_entry
from binlog2s3.inspect.verify.report import Kind, LineageReport
from binlog2s3.store.contract import ObjectInfo

AHEAD = 64
_MOST_PROBLEMS = 5
_MOST_ASKED = 32
_LOOKS = 2
ENTRY_SOON = timedelta(minutes=10)
"""An entry may come this long after its binlog, as long as the writer is alive."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _BinlogObjects:
    """The objects of one binlog, now. `entry` is None if there is none, or it cannot be used."""

    name: BinlogName
    info: ObjectInfo | None
    entry: EntryRow | None = None
    problems: tuple[str, ...] = ()
    error: ArchiveError | None = None
    paged: bool = False


class LineageWalk:
    """Walks a lineage's `names`, in order; `bad` are those whose bytes are known to be wrong.

    `current`: it is the current lineage; `is_tip`: history is followed to its end.
    `from_start`: the first name should be the lineage's first binlog. `wanted`: names whose facts
    are asked for; they are in `cuts`. The results are in `result`, defects go into the report.
    `without_entry`: the archived binlogs that have none.
    """

    def __init__(
        self,
        context: LineageContext,
        names: Sequence[BinlogName],
        *,
        bad: Collection[BinlogName] = (),
        from_start: bool = True,
        wanted: Collection[str] = (),
        current: bool = False,
        is_tip: bool = False,
    ) -> None:
        self._context = context
        self._source = context.source
        self._lineage = context.lineage
        self._objects = context.objects
        self._names = names
        self._bad = bad
        self._from_start = from_start
        self._wanted = wanted
        self._is_tip = is_tip
        self.result = LineageReport(
            lineage=context.lineage,
            current=current,
            binlogs=len(self._objects.all_names),
            open=len(self._objects.chunks.keys() - self._objects.binlogs.keys()),
        )
        self.cuts: dict[str, Binlog | Facts] = {}
        self.without_entry: list[BinlogName] = []
        self._before: Binlog | Facts | None = None
        self._intervals = Intervals()
        self._replaced: list[BinlogName] = []
        self._unproved = 0
        self._left_out = LeftOut()
        self._index = Index(context.source.catalog, context.lineage)
        self._from_pages = 0

    def run(self, advance: Callable[[], object]) -> None:
        """Check all of them; `advance` is called for each one."""
        missing = dict(self._missing())
        tasks = (self._paged(name) or partial(self._see, name) for name in self._names)
        with closing(Ahead(tasks, threads=self._source.threads, most=AHEAD, first=AHEAD)) as ahead:
            for seen in ahead:
                gone = missing.get(seen.name, "")
                if gone:
                    self._intervals.end(gone)
                    self._before = None
                self._take(seen)
                advance()
        self._end()
        self.result.intervals = self._intervals.found
        for error in self._index.problems:
            self._context.note(f"{error}; the entries were read instead")
        writer = self._context.writer
        for text in self._left_out.texts((writer.leaves_out or ()) if writer is not None else ()):
            self._context.note(text)
        if not self._source.deep:
            self._say_what_was_not_read()

    def _end(self) -> None:
        """End the last interval with what the writer's heartbeat knows of it."""
        writer, last = self._context.writer, self._before
        covered_us = gtids = None
        if writer is not None and last is not None:
            durable, place = writer.durable, FilePosition(last.name, last.size)
            # it vouches for nothing if what it had written cannot be read to its end
            is_there = durable is None or durable.file_position <= place
            if self._is_tip and writer.vouched_until is not None and is_there:
                covered_us = us_of(writer.vouched_until)
            if durable is not None and durable.file_position == place:
                gtids = durable.gtid_set or None
        self._intervals.end(vouched_us=covered_us, gtids=gtids)

    # Missing binlogs

    def _missing(self) -> Iterator[tuple[BinlogName, str]]:
        """The names before which numbers are missing, and which."""
        for missing in missing_binlogs(
            self._lineage, self._names, self._context.writer, from_start=self._from_start
        ):
            begin, count, behind = missing.first, missing.count, missing.last.next()
            text = str(begin) if count == 1 else f"{begin} and the next {count - 1}"
            if missing.under_way:
                self._context.note(f"{text}: not in the bucket yet, the writer has not reached it")
                yield behind, f"{text}: not in the bucket yet"
                continue
            if self._is_there_now(begin, min(count, _MOST_ASKED)):
                continue
            if self._is_pruned(missing.last):
                yield behind, f"{text}: pruned"
                continue
            text += " is missing" if count == 1 else " are missing"
            self._context.defect("binlog-missing", text, begin)
            yield behind, text

    def _is_there_now(self, begin: BinlogName, count: int) -> bool:
        """Whether these binlogs appeared after the listing."""
        name = begin
        for _ in range(count):
            chunks = self._source.catalog.chunks(self._lineage, name)
            if not chunks and self._source.store.head(self._context.object_key(name)) is None:
                return False
            name = name.next()
        return True

    # One binlog

    def _paged(self, name: BinlogName) -> Callable[[], _BinlogObjects] | None:
        """The objects as listed, with the entry from a page; None if they must be asked for.

        That is with --deep, if anything about the entry is wrong, and if the binlog is younger than
        its entry: the entry is written last, after the binlog was compared.
        """
        binlog, entry = self._objects.binlogs.get(name), self._objects.entries.get(name)
        if (
            self._source.deep
            or binlog is None
            or entry is None
            or binlog.last_modified > entry.last_modified
        ):
            return None
        paged = self._index.entry(name, entry.last_modified)
        if paged is None or paged.size != binlog.size:
            return None
        if not is_sound_without_blocks(paged, name, self._lineage.flavour):
            return None
        found = _BinlogObjects(name=name, info=replace(binlog, crc64=None), entry=paged, paged=True)
        return lambda: found

    def _see(self, name: BinlogName) -> _BinlogObjects:
        """Look up the objects of a binlog; called by any thread."""
        store, key = self._source.store, self._context.entry_key(name)
        data, info = None, store.head(self._context.object_key(name))
        if info is not None or name in self._objects.entries:
            try:
                data = fetch(store, key, Entry.MOST)
            except ObjectMissingError:
                return _BinlogObjects(name=name, info=info)
        if data is None:
            return _BinlogObjects(name=name, info=info)
        try:
            entry, problems = read_entry(data, key, name, self._lineage.flavour)
        except ArchiveError as error:
            return _BinlogObjects(name=name, info=info, error=error)
        if info is not None:
            entry = self._source.catalog.with_start(self._lineage, entry)
        return _BinlogObjects(name=name, info=info, entry=entry, problems=tuple(problems))

    def _take(self, seen: _BinlogObjects) -> None:
        self.result.looked_at += 1
        self._from_pages += seen.paged
        if seen.info is None and seen.name in self._objects.chunks:
            self._take_open(seen.name)
            return
        seen = self._described_meanwhile(seen)
        if seen.info is None:
            self._take_without_object(seen)
            return
        self.result.size += seen.info.size
        why = self._judge(seen, seen.info) or _why_bad(seen.name, self._bad)
        facts: Binlog | Facts = Binlog(
            lineage=self._lineage, name=seen.name, size=seen.info.size, state="undescribed"
        )
        if seen.entry is not None:
            facts = of_entry(seen.entry, seen.info.size, self._lineage)
            self._check_first(seen.entry)
            why = why or self._damaged(seen.entry)
        self._follow(facts, why)

    def _take_without_object(self, seen: _BinlogObjects) -> None:
        if self._is_pruned(seen.name):
            self._intervals.end(f"{seen.name} was pruned")
            self._before = None
            return
        if seen.entry is None and seen.error is None:  # both were deleted after the listing
            self._context.defect("binlog-missing", "it was deleted meanwhile", seen.name)
        else:
            text = f"{seen.name} is missing, but its entry is there"
            self._context.defect("object-missing", text, seen.name)
        self._intervals.end(f"{seen.name} is missing")
        self._before = None

    def _is_pruned(self, name: BinlogName) -> bool:
        """Whether it may be deleted, also by a floor that came after the listing."""
        if not self._lineage.is_below_floor(name):
            self._lineage = self._source.catalog.with_floor(self._lineage)
        return self._lineage.is_below_floor(name)

    def _judge(self, seen: _BinlogObjects, info: ObjectInfo) -> str:
        """Check an archived binlog and its entry; returns why it cannot be recovered, or ""."""
        name, entry = seen.name, seen.entry
        if seen.error is not None:
            lies = isinstance(seen.error, MisplacedError)
            kind: Kind = "entry-lies" if lies else "entry-unreadable"
            self._context.defect(kind, str(seen.error), name)
            return f"the entry of {name} cannot be read"
        if entry is None:
            self._without_entry(name, info)
            return ""
        if seen.problems:
            shown = "; ".join(seen.problems[:_MOST_PROBLEMS])
            self._context.defect("entry-lies", shown, name)
        if entry.size != info.size:
            text = f"it has {info.size} bytes, its entry says {entry.size}"
            self._context.defect("size", text, name)
            return f"{name} has the wrong size"
        if info.crc64 is not None and info.crc64 != entry.crc64:
            text = (
                f"its CRC64NVME in the store is {crc64_hex(info.crc64)}, in its entry "
                f"{crc64_hex(entry.crc64)}"
            )
            self._context.defect("checksum", text, name)
            return f"{name} has the wrong checksum"
        if info.storage_class in SLOW_STORAGE_CLASSES and not self._source.deep:
            self._context.defect("storage-class", f"it is in {info.storage_class}", name)
            return f"{name} is in {info.storage_class}, which answers no GET"
        objects = self._objects
        if (
            name in objects.binlogs and name in objects.entries
        ):  # otherwise they appeared after the listing
            replaced = objects.binlogs[name].last_modified > objects.entries[name].last_modified
            self._replaced += [name] if replaced else []
        self._unproved += info.crc64 is None and not seen.paged
        return f"the entry of {name} is wrong" if seen.problems else ""

    def _say_what_was_not_read(self) -> None:
        """Add notes on what only --deep checks.

        The entry is written after its binlog, whatever the clocks say.
        """
        if self._replaced:
            self._context.note(
                f"{some(self._replaced, _MOST_ASKED)}: replaced after the entry was written; "
                "--deep compares the bytes"
            )
        if self._from_pages:
            self._context.note(
                f"{count_text(self._from_pages, 'binlog')} and entries: listed, older than their "
                "pages, and as the pages say; --deep reads them"
            )
        if self._unproved:
            self._context.note(
                f"{count_text(self._unproved, 'archived binlog')}: the store has no CRC64NVME of "
                "the object, so their bytes were not compared; --deep reads them"
            )

    def _without_entry(self, name: BinlogName, info: ObjectInfo) -> None:
        if self._may_come(name) and self._is_young(info):
            self._context.note(
                f"{name} is being archived: its entry comes next; if it is not there "
                f"{duration_text(ENTRY_SOON.total_seconds())} after the binlog, it is missing"
            )
            return
        if self._is_pruned(name):
            return
        self.without_entry.append(name)
        self._context.defect("entry-missing", f"{name} has no entry", name)

    def _may_come(self, name: BinlogName) -> bool:
        """Whether the writer is alive and may still put this entry; it puts entries in order.

        A writer that has just started does not report its lineage yet.
        """
        writer = self._source.inventory.writer if self._source.alive else None
        writes = writer is not None and writer.lineage in (None, self._lineage.id)
        return writes and not any(other > name for other in self._objects.entries)

    def _is_young(self, info: ObjectInfo) -> bool:
        return self._source.clock() - info.last_modified < ENTRY_SOON

    def _described_meanwhile(self, seen: _BinlogObjects) -> _BinlogObjects:
        """Look again at an old binlog without an entry: its writer may be putting the entry now.

        Some stores date an object by the start of its upload, so an old date may be new.
        """
        for _ in range(_LOOKS):
            if seen.info is None or seen.entry is not None or seen.error is not None:
                break
            if self._is_young(seen.info) or not self._may_come(seen.name):
                break
            self._source.pause()
            seen = self._see(seen.name)
        return seen

    def _check_first(self, entry: EntryRow) -> None:
        """Check lineage.json against the entry of its first binlog."""
        lineage = self._lineage
        if entry.name != lineage.first_binlog:
            return
        version = str(entry.formats[0]["server_version"]) if entry.formats else ""
        for told, said, is_so in (
            ("first_binlog_time", lineage.first_binlog_time, entry.first_time),
            ("gtid_set", lineage.gtid_set, entry.gtid_set_before),
            ("server.version", lineage.server_version, version),
        ):
            if said != is_so:
                text = f"{told} is {said or 'empty'}, its first entry says {is_so or 'none'}"
                self._context.defect("lineage-lies", text)

    def _damaged(self, entry: EntryRow) -> str:
        """Damage that the source itself sent is recorded, and ends an interval."""
        for damage in entry.damaged:
            place = f"bytes {damage['begin']} to {damage['end']} of {entry.name}"
            text = f"{place} were damaged on the source"
            self._context.recorded("damaged", text)
        return f"{entry.name} was damaged on the source" if entry.damaged else ""

    def _take_open(self, name: BinlogName) -> None:
        """Check a binlog that is only in chunks."""
        lineage, is_last = self._lineage, name == self._names[-1]
        chunks = OpenBinlog(self._context, name)
        chunks.check(is_last=is_last, is_cut=str(name) in self._wanted)
        if chunks.archived:  # meanwhile
            self._objects.chunks.pop(name, None)
            self._take(self._see(name))
            self.result.looked_at -= 1
            return
        if not chunks.size:
            return
        self.result.size += chunks.size
        facts: Binlog | Facts = Binlog(lineage=lineage, name=name, size=chunks.size, state="open")
        why = _why_bad(name, self._bad)
        if not why and (self._source.deep or not is_last):
            try:  # names do not show its GTIDs
                known = self._source.snapshot.known(lineage.id, name)
            except ArchiveError as error:
                why = str(error)
                self._context.defect("chunk-bytes", why, name)
            else:
                facts = known
                self._source.report.read_bytes += facts.size
                if self._source.deep:
                    chunks.check_bytes(known)
        elif not why and not chunks.check_stored():
            why = f"the bytes of a chunk of {name} have changed"
        self._follow(facts, why)

    def _follow(self, facts: Binlog | Facts, why: str) -> None:
        """Add a binlog after the one before. `why` it cannot be recovered itself."""
        if str(facts.name) in self._wanted:
            self.cuts[str(facts.name)] = facts
        if isinstance(facts, Facts):
            self.result.transactions += facts.transactions
            self._left_out.add(facts)
        before, self._before = self._before, facts
        broken = self._break(before, facts) if before is not None else ""
        if why:
            self._intervals.end(why)
            return
        self._intervals.add(facts, broken)

    def _break(self, before: Binlog | Facts, facts: Binlog | Facts) -> str:
        """Why a binlog does not follow the one before it; it is reported."""
        found = break_before(facts, before)
        match found.kind if found is not None else "":
            case "unfinished":
                return self._unfinished(before)
            case "unlogged":
                text = f"{before.name} to {facts.name}: {UNLOGGED}"
                self._context.recorded("gap", text)
                return text
            case "gtids" if found is not None:
                self._context.defect("gtids", found.text, facts.name)
                return found.text
        return ""

    def _unfinished(self, facts: Binlog | Facts) -> str:
        """Why a binlog that is only in chunks does not reach the next one."""
        text = f"of {facts.name} only the first {facts.size} bytes are there"
        writer = self._context.writer
        if writer is not None and (
            writer.durable is None
            or writer.durable.file_position <= FilePosition(facts.name, facts.size)
        ):
            self._context.note(f"{text} yet")
            return f"{text} yet"
        self._context.defect(
            "chunk-hole", f"{text}; nothing proves that it is complete", facts.name
        )
        return text


def _why_bad(name: BinlogName, bad: Collection[BinlogName]) -> str:
    return f"the bytes of {name} are wrong" if name in bad else ""
