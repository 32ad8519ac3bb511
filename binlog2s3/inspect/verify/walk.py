"""Walks one lineage, binlog by binlog, using only the listing and the entries.

Place in the flow: `one_source` walks each lineage; `entry` checks an entry, `chain` what follows
what, `open_binlog` what is in chunks.

Law: entries are read ahead, in order, and not kept: memory does not grow with them. What changes
meanwhile is read again before it is called a defect.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from itertools import pairwise

from binlog2s3.archive.blocks import Ahead
from binlog2s3.archive.catalog import Catalog, fetch
from binlog2s3.archive.documents import Entry, Lineage
from binlog2s3.archive.index import Index
from binlog2s3.archive.layout import Layout
from binlog2s3.archive.writers import Heartbeat
from binlog2s3.binlog.checksum import crc64_hex
from binlog2s3.binlog.names import BinlogName
from binlog2s3.errors import ArchiveError, MisplacedError, ObjectMissingError
from binlog2s3.formatting import count_text, us_of
from binlog2s3.inspect.verify.chain import (
    BinlogFacts,
    Intervals,
    contradiction,
    is_proved,
    of_entry,
    of_known,
)
from binlog2s3.inspect.verify.entry import is_sound_without_blocks, read_entry
from binlog2s3.inspect.verify.inventory import LineageObjects, SourceInventory
from binlog2s3.inspect.verify.open_binlog import check_all_bytes, check_chunks, check_stored
from binlog2s3.inspect.verify.report import Defect, Interval, Kind, RecordedGap
from binlog2s3.recover.snapshot import Survey
from binlog2s3.store.contract import ObjectInfo, Store

AHEAD = 64
_MOST_PROBLEMS = 5
_MOST_ASKED = 32
_LOOKS = 2
ENTRY_SOON = timedelta(minutes=10)
"""An entry may come this long after its binlog, as long as the writer is alive."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceContext:
    """What all parts of `verify` need of one source. `pause` waits before something is read again.

    `alive`: the last writer renews its object. `clock`: the time, not before what the store's dates
    show. `advance` is called for each binlog that was checked.
    """

    store: Store
    layout: Layout
    catalog: Catalog
    survey: Survey
    inventory: SourceInventory
    threads: int
    deep: bool
    alive: bool
    clock: Callable[[], datetime]
    pause: Callable[[], object]
    advance: Callable[[], object]

    def writer_of(self, lineage: str) -> Heartbeat | None:
        """The last writer, if it writes this lineage."""
        writer = self.inventory.writer
        return writer if writer is not None and writer.lineage == lineage else None


@dataclass(slots=True)
class Walked:
    """The result of a walk. `cuts` are the facts of the binlogs that were asked for."""

    intervals: list[Interval] = field(default_factory=list)
    defects: list[Defect] = field(default_factory=list)
    gaps: list[RecordedGap] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    cuts: dict[str, BinlogFacts] = field(default_factory=dict)
    looked_at: int = 0
    size: int = 0
    read: int = 0
    transactions: int = 0
    without_entry: list[BinlogName] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class _BinlogObjects:
    """The objects of one binlog, now. `entry` is None if there is none, or it cannot be used."""

    name: BinlogName
    info: ObjectInfo | None
    entry: Entry | None = None
    problems: tuple[str, ...] = ()
    error: ArchiveError | None = None
    paged: bool = False


class LineageWalk:
    """Walks a lineage's `names`, in order; `bad` are those whose bytes are known to be wrong.

    `from_start`: the first name should be the lineage's first binlog. `wanted`: names whose facts
    are asked for.
    """

    def __init__(
        self,
        context: SourceContext,
        lineage: Lineage,
        names: Sequence[BinlogName],
        *,
        bad: Collection[BinlogName] = (),
        from_start: bool = True,
        wanted: Collection[str] = (),
        current: bool = False,
    ) -> None:
        self._context = context
        self._lineage = lineage
        self._names = names
        self._bad = bad
        self._from_start = from_start
        self._wanted = wanted
        self._current = current
        self._objects: LineageObjects = context.inventory.objects(lineage.id)
        self._walked = Walked()
        self._before: BinlogFacts | None = None
        self._intervals = Intervals(lineage.id)
        self._younger: list[BinlogName] = []
        self._unproved = 0
        self._index = Index(context.catalog, lineage)
        self._from_pages = 0

    def run(self) -> Walked:
        """Check all of them."""
        missing = dict(self._missing())
        tasks = (self._look_up(name) for name in self._names)
        with closing(Ahead(tasks, threads=self._context.threads, most=AHEAD, first=AHEAD)) as ahead:
            for seen in ahead:
                gone = missing.get(seen.name, "")
                if gone:
                    self._intervals.end(gone)
                    self._before = None
                self._take(seen)
                self._context.advance()
        writer = self._context.writer_of(self._lineage.id)
        covered = writer.covered_until if writer is not None and self._current else None
        self._intervals.end(
            vouched_us=None if covered is None else us_of(covered),
            gtids=self._vouched_gtids(writer),
        )
        self._walked.intervals = self._intervals.found
        self._walked.notes += [
            f"{error}; the entries were read instead" for error in self._index.problems
        ]
        if not self._context.deep:
            self._say_what_was_not_read()
        return self._walked

    def _vouched_gtids(self, writer: Heartbeat | None) -> str | None:
        """The GTIDs executed at the end of the open binlog, by the writer's heartbeat."""
        last, durable = self._before, writer.durable if writer is not None else None
        if last is None or durable is None or durable.place != (last.name, last.size):
            return None
        return durable.gtid_set or None

    # Missing binlogs

    def _missing(self) -> Iterator[tuple[BinlogName, str]]:
        """The names before which numbers are missing, and which."""
        names, first = self._names, self._lineage.first_binlog
        pairs = [*pairwise(names)]
        gaps = [(one.next(), other) for one, other in pairs if one.next() < other]
        if self._from_start and names and first < names[0]:
            gaps.insert(0, (first, names[0]))
        for begin, behind in gaps:
            count = behind.number - begin.number
            text = str(begin) if count == 1 else f"{begin} and the next {count - 1}"
            writer = self._context.writer_of(self._lineage.id)
            if writer is not None and (writer.durable is None or begin > writer.durable.place[0]):
                self._walked.notes.append(
                    f"{text}: not in the bucket yet, the writer has not reached it"
                )
                yield behind, f"{text}: not in the bucket yet"
                continue
            if self._is_there_now(begin, min(count, _MOST_ASKED)):
                continue
            text += " is missing" if count == 1 else " are missing"
            self._add_defect("binlog-missing", begin, self._key(begin), text)
            yield behind, text

    def _is_there_now(self, begin: BinlogName, count: int) -> bool:
        """Whether these binlogs appeared after the listing."""
        name = begin
        for _ in range(count):
            chunks = self._context.catalog.chunks(self._lineage, name)
            if not chunks and self._context.store.head(self._key(name)) is None:
                return False
            name = name.next()
        return True

    # One binlog

    def _look_up(self, name: BinlogName) -> Callable[[], _BinlogObjects]:
        """What tells the objects of a binlog: a request, or the listing and a page."""
        paged = self._paged(name)
        return partial(self._see, name) if paged is None else lambda: paged

    def _paged(self, name: BinlogName) -> _BinlogObjects | None:
        """The objects as listed, with the entry from a page; None if they must be asked for.

        That is with --deep, if anything about the entry is wrong, and if the binlog is younger than
        its entry: the entry is written last, after the binlog was compared.
        """
        binlog, entry = self._objects.binlogs.get(name), self._objects.entries.get(name)
        if self._context.deep or binlog is None or entry is None or binlog.at > entry.at:
            return None
        paged = self._index.entry(name, entry.at)
        if paged is None or paged.size != binlog.size:
            return None
        if not is_sound_without_blocks(paged, name, self._lineage.flavour):
            return None
        info = ObjectInfo(
            key=self._key(name),
            size=binlog.size,
            etag="",
            crc64=None,
            storage_class="",
            last_modified=binlog.at,
        )
        return _BinlogObjects(name=name, info=info, entry=paged, paged=True)

    def _see(self, name: BinlogName) -> _BinlogObjects:
        """Look up the objects of a binlog; called by any thread."""
        store, layout, id_ = self._context.store, self._context.layout, self._lineage.id
        key, data = layout.entry(id_, name), None
        info = store.head(layout.binlog(id_, name))
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
        return _BinlogObjects(name=name, info=info, entry=entry, problems=tuple(problems))

    def _take(self, seen: _BinlogObjects) -> None:
        self._walked.looked_at += 1
        self._from_pages += seen.paged
        if seen.info is None and seen.name in self._objects.chunks:
            self._take_open(seen.name)
            return
        seen = self._described_meanwhile(seen)
        if seen.info is None:
            self._take_without_object(seen)
            return
        self._walked.size += seen.info.size
        why = self._judge(seen, seen.info) or self._known_bad(seen.name)
        facts = BinlogFacts(name=seen.name, size=seen.info.size, whole=True)
        if seen.entry is not None:
            facts = of_entry(seen.entry, seen.info.size, self._lineage.flavour)
            self._check_first(seen.entry)
            why = why or self._damaged(seen.entry)
        self._follow(facts, why)

    def _known_bad(self, name: BinlogName) -> str:
        return f"the bytes of {name} are wrong" if name in self._bad else ""

    def _take_without_object(self, seen: _BinlogObjects) -> None:
        if seen.entry is None and seen.error is None:  # both were deleted after the listing
            text = "it was deleted meanwhile"
            self._add_defect("binlog-missing", seen.name, self._key(seen.name), text)
        else:
            text = f"{seen.name} is missing, but its entry is there"
            self._add_defect("object-missing", seen.name, self._key(seen.name), text)
        self._intervals.end(f"{seen.name} is missing")
        self._before = None

    def _judge(self, seen: _BinlogObjects, info: ObjectInfo) -> str:
        """Check an archived binlog and its entry; returns why it cannot be recovered, or ""."""
        name, entry = seen.name, seen.entry
        key, entry_key = self._key(name), self._context.layout.entry(self._lineage.id, name)
        if seen.error is not None:
            lies = isinstance(seen.error, MisplacedError)
            kind: Kind = "entry-lies" if lies else "entry-unreadable"
            self._add_defect(kind, name, entry_key, str(seen.error))
            return f"the entry of {name} cannot be read"
        if entry is None:
            self._without_entry(name, entry_key, info)
            return ""
        if seen.problems:
            shown = "; ".join(seen.problems[:_MOST_PROBLEMS])
            self._add_defect("entry-lies", name, entry_key, shown)
        if entry.size != info.size:
            text = f"it has {info.size} bytes, its entry says {entry.size}"
            self._add_defect("size", name, key, text)
            return f"{name} has the wrong size"
        if info.crc64 is not None and info.crc64 != entry.crc64:
            text = (
                f"its CRC64NVME in the store is {crc64_hex(info.crc64)}, in its entry "
                f"{crc64_hex(entry.crc64)}"
            )
            self._add_defect("checksum", name, key, text)
            return f"{name} has the wrong checksum"
        objects = self._objects
        if (
            name in objects.binlogs and name in objects.entries
        ):  # otherwise they appeared after the listing
            replaced = objects.binlogs[name].at > objects.entries[name].at
            self._younger += [name] if replaced else []
        self._unproved += info.crc64 is None and not seen.paged
        return f"the entry of {name} is wrong" if seen.problems else ""

    def _say_what_was_not_read(self) -> None:
        """Add notes on what only --deep checks.

        The entry is written after its binlog, whatever the clocks say.
        """
        if self._younger:
            shown = ", ".join(map(str, self._younger[:_MOST_ASKED]))
            more = len(self._younger) - _MOST_ASKED
            self._walked.notes.append(
                f"{shown}{f' and {more} more' if more > 0 else ''}: replaced after the entry "
                "was written; --deep compares the bytes"
            )
        if self._from_pages:
            self._walked.notes.append(
                f"{count_text(self._from_pages, 'binlog')} and entries: listed, older than their "
                "pages, and as the pages say; --deep reads them"
            )
        if self._unproved:
            self._walked.notes.append(
                f"{count_text(self._unproved, 'archived binlog')}: the store has no CRC64NVME of "
                "the object, so their bytes were not compared; --deep reads them"
            )

    def _without_entry(self, name: BinlogName, key: str, info: ObjectInfo) -> None:
        if self._may_come(name) and self._is_young(info):
            minutes = ENTRY_SOON.total_seconds() / 60
            self._walked.notes.append(
                f"{name} is being archived: its entry comes next; if it is not there "
                f"{minutes:.0f} minutes after the binlog, it is missing"
            )
            return
        self._walked.without_entry.append(name)
        self._add_defect("entry-missing", name, key, f"{name} has no entry")

    def _may_come(self, name: BinlogName) -> bool:
        """Whether the writer is alive and may still put this entry; it puts entries in order.

        A writer that has just started does not report its lineage yet.
        """
        writer = self._context.inventory.writer if self._context.alive else None
        writes = writer is not None and writer.lineage in (None, self._lineage.id)
        return writes and not any(other > name for other in self._objects.entries)

    def _is_young(self, info: ObjectInfo) -> bool:
        return self._context.clock() - info.last_modified < ENTRY_SOON

    def _described_meanwhile(self, seen: _BinlogObjects) -> _BinlogObjects:
        """Look again at an old binlog without an entry: its writer may be putting the entry now.

        Some stores date an object by the start of its upload, so an old date may be new.
        """
        for _ in range(_LOOKS):
            if seen.info is None or seen.entry is not None or seen.error is not None:
                break
            if self._is_young(seen.info) or not self._may_come(seen.name):
                break
            self._context.pause()
            seen = self._see(seen.name)
        return seen

    def _check_first(self, entry: Entry) -> None:
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
                self._add_defect(
                    "lineage-lies", None, self._context.layout.lineage(lineage.id), text
                )

    def _damaged(self, entry: Entry) -> str:
        """Damage that the source itself sent is recorded, and ends an interval."""
        for one in entry.damaged:
            place = f"bytes {one['begin']} to {one['end']} of {entry.name}"
            text = f"{place} were damaged on the source"
            self._walked.gaps.append(
                RecordedGap(kind="damaged", lineage=self._lineage.id, text=text)
            )
        return f"{entry.name} was damaged on the source" if entry.damaged else ""

    def _take_open(self, name: BinlogName) -> None:
        """Check a binlog that is only in chunks."""
        context, lineage = self._context, self._lineage
        is_last = name == self._names[-1]
        checked = check_chunks(
            context.store, context.layout, lineage, name, writer=context.writer_of(lineage.id),
            pause=context.pause, is_last=is_last, cut=str(name) in self._wanted,
        )  # fmt: skip
        if checked.archived:  # it was archived meanwhile
            self._objects.chunks.pop(name, None)
            self._take(self._see(name))
            self._walked.looked_at -= 1
            return
        self._walked.defects += checked.defects
        self._walked.notes += checked.notes
        if not checked.size:
            return
        self._walked.size += checked.size
        begun = lineage.first_binlog_time if name == lineage.first_binlog else None
        first_us = None if begun is None else us_of(begun)
        facts = BinlogFacts(name=name, size=checked.size, whole=False, first_us=first_us)
        why = self._known_bad(name)
        if not why and (context.deep or not is_last):
            try:  # names do not show its GTIDs
                known = context.survey.known(lineage.id, name)
            except ArchiveError as error:
                why = str(error)
                self._add_defect("chunk-bytes", name, context.layout.chunks(lineage.id, name), why)
            else:
                facts = of_known(known)
                self._walked.read += facts.size
                if context.deep:
                    deep = check_all_bytes(
                        context.store, context.layout, lineage, name, known, checked
                    )
                    self._walked.defects += deep.defects
                    self._walked.gaps += deep.gaps
        elif not why:
            stored = check_stored(context.store, context.layout, lineage, name, context.threads)
            self._walked.defects += stored.defects
            self._walked.notes += stored.notes
            why = f"the bytes of a chunk of {name} have changed" if stored.defects else ""
        self._follow(facts, why)

    def _follow(self, facts: BinlogFacts, why: str) -> None:
        """Add a binlog after the one before. `why` it cannot be recovered itself."""
        if str(facts.name) in self._wanted:
            self._walked.cuts[str(facts.name)] = facts
        if facts.known is not None:
            self._walked.transactions += facts.known.transactions
        before, self._before = self._before, facts
        broken = ""
        if before is not None:
            broken = contradiction(before, facts)
            if broken:
                key = self._context.layout.entry(self._lineage.id, facts.name)
                self._add_defect("gtids", facts.name, key, broken)
            elif not is_proved(before, facts):
                broken = self._unfinished(before)
        if why:
            self._intervals.end(why)
            return
        self._intervals.add(facts, broken)

    def _unfinished(self, facts: BinlogFacts) -> str:
        """Why a binlog that is only in chunks does not reach the next one."""
        text = f"of {facts.name} only the first {facts.size} bytes are there"
        writer = self._context.writer_of(self._lineage.id)
        if writer is not None and (
            writer.durable is None or writer.durable.place <= (facts.name, facts.size)
        ):
            self._walked.notes.append(f"{text} yet")
            return f"{text} yet"
        prefix = self._context.layout.chunks(self._lineage.id, facts.name)
        self._add_defect(
            "chunk-hole", facts.name, prefix, f"{text}; nothing proves that it is complete"
        )
        return text

    # Defects

    def _key(self, name: BinlogName) -> str:
        return self._context.layout.binlog(self._lineage.id, name)

    def _add_defect(self, kind: Kind, name: BinlogName | None, key: str, text: str) -> None:
        self._walked.defects.append(
            Defect(kind=kind, lineage=self._lineage.id, binlog=name, key=key, text=text)
        )
