"""What a bucket owes: archived bytes for ever, and whatever anybody was told is durable.

Remembered while streamers work, and looked for after each change: by the property machine, and by
the test of every crash point.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from binlog2s3.archive.chunks import Chunk, Chunks
from binlog2s3.archive.parts import Grid
from binlog2s3.binlog.checksum import crc64nvme
from binlog2s3.binlog.names import BinlogName
from binlog2s3.stream.coverage import Coverage
from binlog2s3.stream.uploader import Uploader
from tests.memory_store import MemoryStore
from tests.streamer import LAYOUT, Source

A_LEVEL = 15 * 4

Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Place:
    """A binlog of a lineage."""

    lineage: str
    name: BinlogName


@dataclass(frozen=True, slots=True)
class Kept:
    """What was promised up to a moment."""

    promised: dict[Place, list[Span]]
    seen: dict[str, object]
    after_entry: dict[str, bool]


def missing(spans: Iterable[Span], begin: int, end: int) -> int | None:
    """The first byte of [begin, end) that is in none of these ranges."""
    for first, last in sorted(spans):
        if first > begin:
            break
        begin = max(begin, last)
    return begin if begin < end else None


def archived_at(key: str) -> Place | None:
    """The binlog of the key of an archived object."""
    lineage, _, rest = key.removeprefix(LAYOUT.archive).partition("/")
    if key.startswith(LAYOUT.archive) and rest.startswith("binlogs/"):
        return Place(lineage, BinlogName.parse(rest.removeprefix("binlogs/")))
    return None


def chunk_at(key: str) -> tuple[Place, Chunk] | None:
    """The binlog and the chunk of a key below live/; None for a writer's or a standby's."""
    if not key.startswith(LAYOUT.live) or key.startswith((LAYOUT.writers, LAYOUT.standbys)):
        return None
    lineage, name, chunk = key.removeprefix(LAYOUT.live).split("/")
    return Place(lineage, BinlogName.parse(name)), Chunk.parse(chunk)


class Promises:
    """Of one bucket with the binlogs of one source."""

    def __init__(self, store: MemoryStore, source: Source) -> None:
        self.store = store
        self.source = source
        self.promised: dict[Place, list[Span]] = {}
        self.reported: dict[object, tuple[BinlogName, int]] = {}
        self.seen: dict[str, object] = {}
        self.after_entry: dict[str, bool] = {}  # uploads that came when all was over

    def keep(self) -> Kept:
        """What was promised up to now."""
        promised = {place: list(spans) for place, spans in self.promised.items()}
        return Kept(promised, dict(self.seen), dict(self.after_entry))

    def restore(self, kept: Kept) -> None:
        """Remember what was promised up to then."""
        self.promised = {place: list(spans) for place, spans in kept.promised.items()}
        self.seen, self.after_entry = dict(kept.seen), dict(kept.after_entry)
        self.reported = {}

    # objects

    def objects_are_right(self) -> None:
        """Archived bytes are the server's, and for ever; chunks are the server's as well."""
        objects = self.store.objects
        for key, there in self.seen.items():
            if key.startswith(LAYOUT.archive):
                assert objects.get(key) is there, "nothing under archive/ changes"
        for key, there in objects.items():
            if self.seen.get(key) is not there:
                self._is_right(key)
        self.seen = dict(objects)
        self._note_uploads()

    def changed(self, keys: Sequence[str]) -> None:
        """The same of these objects alone, which some request was about, and what they held."""
        gone = set()
        for key in keys:
            before, there = self.seen.get(key), self.store.objects.get(key)
            if there is before:
                continue
            if key.startswith(LAYOUT.archive):
                assert before is None, f"nothing under archive/ changes: {key}"
            if there is None:
                del self.seen[key]
                gone.add(chunk_at(key))
            else:
                self.seen[key] = there
                self._is_right(key)
        for place in {found[0] for found in gone if found is not None}:
            self.still_there(place, archived=True)
        self._note_uploads()

    def _is_right(self, key: str) -> None:
        data = self.store.objects[key].data
        if (place := archived_at(key)) is not None:
            assert place.name < self.source.open, "only what the server has finished"
            assert data == self.source.data(place.name), place
        elif (found := chunk_at(key)) is not None:
            place, chunk = found
            assert data == self.source.data(place.name)[chunk.begin : chunk.end], key
            assert crc64nvme(data) == chunk.crc64, key

    def _note_uploads(self) -> None:
        for upload_id, upload in self.store.uploads.items():
            if upload_id not in self.after_entry:
                self.after_entry[upload_id] = self._has_entry(upload.info.key)

    def _has_entry(self, key: str) -> bool:
        place = archived_at(key)
        assert place is not None
        return LAYOUT.entry(place.lineage, place.name) in self.store.objects

    # what was told

    def remember(self, uploader: Uploader, coverage: Coverage, process: object) -> None:
        """What a streamer says is durable, and what the store has told it that it has.

        What a process says of that never goes back.
        """
        for job in uploader.jobs:
            for chunk in job.held.chunks:
                self.promise(Place(job.lineage, job.track.name), chunk.begin, chunk.end)
        durable = coverage.durable
        if durable is not None:
            last = durable.binlog
            assert durable.offset <= self.source.size(last)
            assert durable.gtid_set == self.source.gtids_at(last, durable.offset)
            assert durable.file_position >= self.reported.get(process, durable.file_position)
            self.reported[process] = durable.file_position
            self.promise_all(coverage.lineage.id, last, durable.offset)

    def promise_all(self, lineage: str, last: BinlogName, offset: int) -> None:
        """Everything up to a place is durable."""
        self.promise(Place(lineage, last), 0, offset)
        for name in self.source.binlogs:
            if name < last:
                self.promise(Place(lineage, name), 0, self.source.size(name))

    def promise(self, place: Place, begin: int, end: int) -> None:
        """These bytes are durable."""
        spans = self.promised.setdefault(place, [])
        if any(first <= begin and end <= last for first, last in spans):
            return
        apart = [span for span in spans if span[1] < begin or span[0] > end]
        touching = [span for span in spans if span not in apart]
        both = (min([begin, *(b for b, _ in touching)]), max([end, *(e for _, e in touching)]))
        self.promised[place] = [*apart, both]

    def there(self, place: Place, *, archived: bool = False) -> list[Span]:
        """The ranges of a binlog that lie in objects; in chunks alone until it is `archived`."""
        whole = self.store.objects.get(LAYOUT.binlog(place.lineage, place.name))
        if archived and LAYOUT.entry(place.lineage, place.name) not in self.store.objects:
            whole = None
        spans = [(chunk.begin, chunk.end) for chunk in self.chunks(place)]
        return spans + ([(0, len(whole.data))] if whole else [])

    def chunks(self, place: Place) -> list[Chunk]:
        """What of a binlog lies in chunks."""
        prefix = LAYOUT.chunks(place.lineage, place.name)
        keys = [key for key in self.store.objects if key.startswith(prefix)]
        return [Chunk.parse(key.removeprefix(prefix)) for key in keys]

    def still_there(
        self, place: Place, taken: Sequence[Span] = (), *, archived: bool = False
    ) -> None:
        """What was promised once is in the bucket, but for what others took.

        `archived`: an object that has no entry yet does not count, as where chunks are deleted.
        """
        there = [*self.there(place, archived=archived), *taken]
        for begin, end in self.promised.get(place, ()):
            gap = missing(there, begin, end)
            assert gap is None, f"{place.name} of {place.lineage} lacks the byte at {gap}"

    # at the end

    def is_home(self, place: Place) -> None:
        """A closed binlog is archived with the right entry, and nothing else is left of it."""
        objects, source = self.store.objects, self.source
        data = objects[LAYOUT.binlog(place.lineage, place.name)].data
        entry = json.loads(objects[LAYOUT.entry(place.lineage, place.name)].data)
        assert data == source.data(place.name)
        assert (entry["size"], int(entry["crc64nvme"], 16)) == (len(data), crc64nvme(data))
        assert entry["name"] == str(place.name)
        assert entry["gtid_set_before"] == source.before(place.name)
        assert entry["transactions"] == len(source.binlogs[place.name].transactions)
        assert not self.chunks(place)

    def is_durable(self, place: Place, grid: Grid) -> None:
        """All of a binlog is in chunks, of which there are not too many."""
        size = self.source.size(place.name)
        assert missing(self.there(place), 0, size) is None
        self.are_few(place, grid)

    def are_few(self, place: Place, grid: Grid) -> None:
        """The chunks since the last full one."""
        part = grid.at(self.source.size(place.name))
        chunks = Chunks(frozenset(self.chunks(place)))
        assert sum(chunk.begin >= part.begin for chunk in chunks) <= A_LEVEL

    def left_uploads(self) -> list[Place]:
        """Of which binlogs there are unfinished uploads, but for those that came after all."""
        found = []
        for upload_id, upload in self.store.uploads.items():
            place = archived_at(upload.info.key)
            if place is not None and not self.after_entry[upload_id]:
                found.append(place)
        return found
