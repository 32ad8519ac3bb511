"""Brings binlogs from the spool into the archive: does what `archive.decide` says.

Place in the flow: behind the tailer, whose tracks it is given, in front of the store. Runs in the
daemon's loop; blocking requests run in `Workers`, whose outcomes come back to the loop.

Law: it holds no truth of its own. After any error of the store it forgets what it knew of that
binlog and looks again, because the answer may be lost where the act was done. A body is a range of
a file, read again at each attempt. Nothing under the archive is replaced.
"""

import hashlib
import random
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from binlog2s3.archive import (
    Action,
    Complete,
    CreateUpload,
    Grid,
    Held,
    Look,
    Observed,
    Part,
    PutEntry,
    PutPart,
    PutWhole,
    Release,
    Verify,
    decide,
)
from binlog2s3.binlog import BinlogName
from binlog2s3.catalog import Entry, Layout
from binlog2s3.checksum import composite_etag, crc64nvme
from binlog2s3.errors import (
    ArchiveError,
    PreconditionError,
    StoreError,
    UnsupportedError,
    UploadMissingError,
)
from binlog2s3.log import Log
from binlog2s3.spool import Spool
from binlog2s3.store import FileSlice, PartInfo, Store
from binlog2s3.tailer import Track
from binlog2s3.workers import Outcome, Workers

_log = Log("uploader")
_LONGEST_WAIT = 60.0
_BLOCK = 1 << 20


@dataclass(slots=True)
class _Job:
    """One binlog on its way. `parts` are the answers of the store, by number."""

    track: Track
    held: Held | None = None
    parts: dict[int, PartInfo] = field(default_factory=dict)
    flying: set[Action] = field(default_factory=set)
    failures: int = 0
    not_before: float = 0.0
    sent_bytes: int = 0
    released: bool = False
    begun_at: float = 0.0


@dataclass(frozen=True, slots=True)
class _Token:
    job: _Job
    action: Action
    upload_id: str | None


@dataclass(frozen=True, slots=True)
class _Looked:
    object_there: bool
    entry_there: bool
    upload_id: str | None
    parts: tuple[PartInfo, ...]


def backoff(failures: int) -> float:
    """Seconds until the store is looked at again after so many failures in a row: jittered."""
    return random.uniform(0, min(_LONGEST_WAIT, 0.5 * 2**failures))  # noqa: S311 - no secret


class Uploader:
    """Archives the tracks it is given, oldest first, several requests at a time."""

    def __init__(
        self,
        *,
        store: Store,
        layout: Layout,
        lineage: str,
        grid: Grid,
        spool: Spool,
        workers: Workers,
        on_archived: Callable[[Track], None],
        backoff: Callable[[int], float] = backoff,
    ) -> None:
        self._store = store
        self._layout = layout
        self._lineage = lineage
        self._grid = grid
        self._spool = spool
        self._workers = workers
        self._on_archived = on_archived
        self._backoff = backoff
        self._jobs: dict[BinlogName, _Job] = {}

    def add(self, track: Track) -> None:
        """Take a binlog in; it may still be growing."""
        self._jobs[track.name] = _Job(track)

    @property
    def pending(self) -> int:
        """Closed binlogs that are not archived yet."""
        return sum(job.track.closed for job in self._jobs.values())

    @property
    def flying(self) -> int:
        """Requests that are on their way."""
        return sum(len(job.flying) for job in self._jobs.values())

    def step(self) -> None:
        """Start whatever can be started now."""
        now = time.monotonic()
        for job in list(self._jobs.values()):
            if self._workers.busy >= self._workers.count:
                return
            if job.not_before > now:
                continue
            observed = Observed(size=job.track.size, closed=job.track.closed, held=job.held)
            for action in decide(observed, self._grid):
                if self._workers.busy >= self._workers.count:
                    return
                if isinstance(action, Release):
                    self._release(job)
                elif action not in job.flying and self._may_fly(job, action):
                    self._start(job, action)

    def take(self, outcome: Outcome) -> None:
        """Learn from the outcome of a request. Raises what no waiting mends."""
        token = outcome.token
        assert isinstance(token, _Token)  # noqa: S101 - only `_start` submits here
        job = token.job
        job.flying.discard(token.action)
        if outcome.error is not None:
            self._failed(job, token.action, outcome.error)
        elif job.held is None and not isinstance(token.action, Look):
            return  # an answer to a question from before a doubt; the look will tell
        elif job.held is not None and token.upload_id != job.held.upload_id:
            return
        else:
            job.failures = 0
            self._learn(job, token.action, outcome.value)

    def _may_fly(self, job: _Job, action: Action) -> bool:
        """Parts fly together; everything else alone."""
        return isinstance(action, PutPart) or not job.flying

    def _start(self, job: _Job, action: Action) -> None:
        job.flying.add(action)
        job.begun_at = job.begun_at or time.monotonic()
        upload_id = job.held.upload_id if job.held else None
        work = self._work(job, action, upload_id or "")
        self._workers.submit(_Token(job, action, upload_id), work)

    def _work(self, job: _Job, action: Action, upload_id: str) -> Callable[[], object]:  # noqa: PLR0911
        """The request for an action, with everything it needs taken from the track now."""
        store, track = self._store, job.track
        key = self._layout.binlog(self._lineage, track.name)
        match action:
            case PutPart(part):
                job.sent_bytes += part.end - part.begin
                piece = FileSlice(track.path, part.begin, part.end)
                crc = track.digest.part_crc64(part)
                return lambda: store.upload_part(key, upload_id, part.number, piece, crc)
            case PutWhole():
                job.sent_bytes += track.size
                whole = FileSlice(track.path, 0, track.size)
                crc = track.digest.crc64
                return lambda: self._where_absent(
                    lambda condition: store.put(
                        key, whole, crc64=crc, if_absent=condition, archived=True
                    )
                )
            case CreateUpload():
                return lambda: store.create_upload(key)
            case Complete():
                parts = [job.parts[number] for number in sorted(job.parts)]
                size, crc = track.size, track.digest.crc64
                return lambda: self._where_absent(
                    lambda condition: store.complete_upload(
                        key, upload_id, parts, size=size, crc64=crc, if_absent=condition
                    )
                )
            case Verify():
                return lambda: self._verify(key, track)
            case PutEntry():
                document = build_entry(track, datetime.now(UTC)).to_json()
                entry_key = self._layout.entry(self._lineage, track.name)
                return lambda: self._put_entry(key, entry_key, document)
            case _:
                wanted = self._wanted(track)
                return lambda: self._look(key, track, wanted)

    def _wanted(self, track: Track) -> dict[int, tuple[Part, int]]:
        """The parts that can be told from our bytes now, with their checksums."""
        parts = self._grid.parts(track.size)
        return {
            part.number: (part, track.digest.part_crc64(part))
            for part in parts
            if part.full or track.closed
        }

    def _look(self, key: str, track: Track, wanted: dict[int, tuple[Part, int]]) -> _Looked:
        """What the store holds: the object, its entry, our unfinished uploads and their parts."""
        found = self._store.head(key)
        entry = found and self._store.head(self._layout.entry(self._lineage, track.name))
        if entry:
            self._clear_uploads(key)
        in_parts = not found and track.size >= self._grid.length(1)
        best: tuple[str | None, tuple[PartInfo, ...]] = (None, ())
        for upload_id in self._uploads(key) if in_parts else ():
            try:
                same = tuple(self._same(track, wanted, self._store.list_parts(key, upload_id)))
            except UploadMissingError:
                continue
            if best[0] is None or len(same) > len(best[1]):
                best = (upload_id, same)
        return _Looked(found is not None, entry is not None, best[0], best[1])

    def _same(
        self, track: Track, wanted: dict[int, tuple[Part, int]], parts: Iterable[PartInfo]
    ) -> Iterator[PartInfo]:
        """Those of an upload's parts that hold exactly our bytes."""
        for info in parts:
            part, crc = wanted.get(info.number, (None, 0))
            if part is None or info.size != part.end - part.begin:
                continue
            if info.crc64 is not None:
                if info.crc64 == crc:
                    yield info
            elif info.etag.strip('"') == _md5(track, part).hex():
                yield info

    def _verify(self, key: str, track: Track) -> None:
        """See that the object is our binlog, byte for byte; ArchiveError if it is another.

        By the whole-object checksum where the store keeps one; else by the ETag that our parts
        must give; else by reading back. An unequal ETag proves nothing.
        """
        info = self._store.head(key)
        if info is None:
            raise StoreError(f"{key} is not there any more", transient=True)
        same = info.size == track.size
        if same and info.crc64 is not None:
            same = info.crc64 == track.digest.crc64
        elif same and info.etag.strip('"') not in self._etags(track):
            crc = 0
            for block in self._store.open(key, 0, track.size):
                crc = crc64nvme(block, crc)
            same = crc == track.digest.crc64
        if not same:
            raise ArchiveError(
                f"{key} holds other bytes ({info.size}) than the source's {track.name} "
                f"({track.size})",
                hint="two histories under one name: stream this server under another --source; "
                "nothing was overwritten, and the spool keeps our copy",
            )

    def _etags(self, track: Track) -> tuple[str, ...]:
        digests = [_md5(track, part) for part in self._grid.parts(track.size)]
        if len(digests) == 1:
            return (digests[0].hex(), composite_etag(digests))
        return (composite_etag(digests),)

    def _uploads(self, key: str) -> list[str]:
        """The ids of this binlog's unfinished uploads, none where the store cannot list them."""
        try:
            return [upload.upload_id for upload in self._store.list_uploads(key)]
        except UnsupportedError:
            return []

    def _put_entry(self, key: str, entry_key: str, document: bytes) -> None:
        """Write the entry, the last thing that the archive needs."""
        try:
            self._where_absent(
                lambda condition: self._store.put(entry_key, document, if_absent=condition)
            )
        except PreconditionError:
            _log.info("entry was there already", key=entry_key)
        self._clear_uploads(key)

    def _where_absent(self, write: Callable[[bool], object]) -> None:
        """Write where nothing lies yet; a store that refuses conditions loses this check alone."""
        try:
            write(True)
        except UnsupportedError as error:
            _log.warning("the store knows no conditions, writing without", error=error)
            write(False)

    def _clear_uploads(self, key: str) -> None:
        """Abort the uploads that lost replies, deaths and other writers left."""
        for upload_id in self._uploads(key):
            self._store.abort_upload(key, upload_id)

    def _learn(self, job: _Job, action: Action, value: object) -> None:
        held = job.held or Held()
        match action:
            case Look():
                assert isinstance(value, _Looked)  # noqa: S101 - what _look returns
                job.parts = {info.number: info for info in value.parts}
                held = Held(
                    object_there=value.object_there,
                    entry_there=value.entry_there,
                    upload_id=value.upload_id,
                    parts=frozenset(job.parts),
                )
                if job.parts:
                    _log.info("upload taken up again", binlog=job.track.name, parts=len(job.parts))
            case CreateUpload():
                job.parts = {}
                held = replace(held, upload_id=str(value), parts=frozenset())
            case PutPart(part):
                assert isinstance(value, PartInfo)  # noqa: S101 - what upload_part returns
                job.parts[part.number] = value
                held = replace(held, parts=frozenset(job.parts))
            case PutWhole() | Complete():
                held = replace(held, object_there=True)
            case Verify():
                held = replace(held, verified=True)
            case PutEntry():
                held = replace(held, entry_there=True)
        job.held = held

    def _failed(self, job: _Job, action: Action, error: BaseException) -> None:
        if not isinstance(error, StoreError):
            raise error
        job.held = None
        job.parts = {}
        job.failures += 1
        first = isinstance(error, PreconditionError) and job.failures == 1
        delay = 0.0 if first else self._backoff(job.failures)
        job.not_before = time.monotonic() + delay
        _log.warning(
            "looking again at the store",
            binlog=job.track.name,
            after=type(action).__name__,
            error=error,
            hint=error.hint,
            seconds=round(delay, 1),
        )

    def _release(self, job: _Job) -> None:
        track = job.track
        del self._jobs[track.name]
        freed = self._spool.release(track.name, self._lineage)
        _log.info(
            "binlog archived",
            binlog=track.name,
            size=track.size,
            transactions=track.scanner.transactions,
            parts=len(job.parts) or 1,
            sent=job.sent_bytes,
            freed=freed,
            seconds=round(time.monotonic() - job.begun_at, 3),
        )
        self._on_archived(track)


def _md5(track: Track, part: Part) -> bytes:
    digest = hashlib.md5(usedforsecurity=False)
    with closing(FileSlice(track.path, part.begin, part.end).open()) as reader:
        while data := reader.read(_BLOCK):
            digest.update(data)
    return digest.digest()


def build_entry(track: Track, now: datetime) -> Entry:
    """The entry of a closed binlog, from what its scanner and digest saw."""
    scanner = track.scanner
    form = scanner.formats[0]
    before = track.gtids_before()
    return Entry(
        name=track.name,
        size=track.size,
        crc64=track.digest.crc64,
        first_time=datetime.fromtimestamp(form.timestamp, UTC),
        server_id=form.server_id,
        least_commit_us=scanner.least_commit_us,
        greatest_commit_us=scanner.greatest_commit_us,
        commit_exact=track.commit_exact,
        gtid_set_before=str(before) if before is not None else "",
        gtid_set_added=str(scanner.gtids),
        transactions=scanner.transactions,
        anonymous_transactions=scanner.anonymous,
        events=scanner.events,
        formats=tuple(
            {"offset": f.offset, "server_version": f.server_version, "checksum": f.checksum}
            for f in scanner.formats
        ),
        blocks=track.digest.blocks(),
        end="rotate" if scanner.rotate else "stop" if scanner.stopped else "crash",
        next_binlog=scanner.rotate.next_binlog if scanner.rotate else None,
        archived_at=now,
    )
