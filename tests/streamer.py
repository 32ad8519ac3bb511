"""A source and streamers without threads, children or clocks: what the property machines drive.

Everything between mysqlbinlog's file and the store is the real thing. A request is made when
`Workers.perform` says so, and its answer comes when `Streamer.deliver` does.
"""

import json
import math
import random
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from io import FileIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from binlog2s3.archive.catalog import Catalog
from binlog2s3.archive.chunks import Chunk
from binlog2s3.archive.documents import Lineage, SourceServer
from binlog2s3.archive.layout import Layout
from binlog2s3.archive.parts import Grid
from binlog2s3.binlog.checksum import crc64nvme
from binlog2s3.binlog.gtid import GtidSet
from binlog2s3.binlog.names import BinlogName
from binlog2s3.config.stream import Config, MysqlConfig, S3Config, SpoolLimits, StreamConfig
from binlog2s3.server.connection import ServerBinlog
from binlog2s3.store.s3 import Store
from binlog2s3.stream.archive_end import archive_end, known_end_of_archive
from binlog2s3.stream.continuation import GoOn, KnownEnd, known_end_of, same_server
from binlog2s3.stream.coverage import Coverage
from binlog2s3.stream.job import Action, Compare
from binlog2s3.stream.remote import Held
from binlog2s3.stream.spool import RunFacts, Spool, SpoolRun
from binlog2s3.stream.start import adopt
from binlog2s3.stream.tail import Tailer, Track
from binlog2s3.stream.telling import Alive, Notifier
from binlog2s3.stream.uploader import Uploader
from binlog2s3.stream.waiting import Stop
from binlog2s3.workers import Outcome
from tests.binlog_writer import NOW, UUID_A, BinlogWriter, statement
from tests.memory_store import MemoryStore

LAYOUT = Layout("p", "s")
LINEAGE = "20260101T000000Z-3e11fa47-0000"
FIRST = BinlogName.parse("mysql-bin.000001")
HISTORY = Lineage(
    lineage=LINEAGE,
    source="s",
    server=SourceServer(uuid=UUID_A, flavour="mysql", version="9.7.4"),
    first_binlog=FIRST,
    first_binlog_time=datetime.fromtimestamp(NOW, UTC),
    gtid_set="",
    parent=None,
)


def config(spool: Path, part: int) -> Config:
    """A configuration for tests: what they do not need is not set."""
    nothing: dict[str, Any] = dict.fromkeys(MysqlConfig.__slots__)
    none: dict[str, Any] = dict.fromkeys(S3Config.__slots__)
    return Config(
        mysql=MysqlConfig(**{**nothing, "user": "u", "connect_timeout": 10.0}),
        s3=S3Config(
            **{**none, "bucket": "b", "prefix": LAYOUT.prefix, "part_size": part, "concurrency": 4}
        ),
        stream=StreamConfig(
            source=LAYOUT.source,
            start_binlog=None,
            start_at="oldest",
            flush_interval=1.0,
            heartbeat_interval=30.0,
        ),
        spool=spool,
        spool_limits=SpoolLimits(min_free_bytes=0),
    )


def without_delay(config: Config) -> Config:
    """The same, but that what failed is tried again at once."""
    return replace(config, timing=replace(config.timing, first_delay_seconds=0.0))


_WATCH: Any = SimpleNamespace(round_at=math.inf, patience_seconds=0.0)
LIVING = Alive(Notifier(), _WATCH)
"""Nobody is told that the loop runs."""


class Source:
    """A server's binlogs from FIRST on; the last one is open."""

    def __init__(self) -> None:
        self.binlogs: dict[BinlogName, BinlogWriter] = {}
        self._before: dict[BinlogName, int] = {}
        self._gno = 0
        self._begin(FIRST)

    @property
    def open(self) -> BinlogName:
        """The binlog that grows."""
        return max(self.binlogs)

    def data(self, name: BinlogName) -> bytes:
        """What the server has written into a binlog."""
        return bytes(self.binlogs[name].data)

    def size(self, name: BinlogName) -> int:
        return len(self.binlogs[name].data)

    def write(self, length: int) -> None:
        """A transaction of one statement."""
        self._gno += 1
        writer = self.binlogs[self.open]
        writer.transaction([statement("x" * length)], gtid=(UUID_A, "", self._gno))

    def rotate(self, end: str = "rotate") -> None:
        """Go on to the next binlog; without an event that says so after a crash."""
        following = self.open.next()
        if end == "rotate":
            self.binlogs[self.open].rotate(str(following))
        elif end == "stop":
            self.binlogs[self.open].stop()
        self._begin(following)

    def gtids_at(self, name: BinlogName, offset: int) -> str:
        """The GTID set of all transactions that are whole there."""
        ended = sum(made.end <= offset for made in self.binlogs[name].transactions)
        return str(_gtids(self._before[name] + ended))

    def before(self, name: BinlogName) -> str | None:
        """The GTID set that a binlog says came before it."""
        return str(_gtids(self._before[name]))

    def listed(self) -> dict[BinlogName, ServerBinlog]:
        """SHOW BINARY LOGS."""
        return {
            name: ServerBinlog(name=name, size=self.size(name), encrypted=False)
            for name in self.binlogs
        }

    def _begin(self, name: BinlogName) -> None:
        self.binlogs[name] = BinlogWriter()
        self.binlogs[name].previous_gtids(_gtids(self._gno))
        self._before[name] = self._gno


def freed_before(run: Path, path: Path, floor: int, at: int) -> None:
    """What a program before 0.3 left of a full spool's file: zeros, which it had noted before.

    `floor` is the offset in the binlog, `at` the one in the file.
    """
    document = json.loads(run.read_bytes())
    floors = {**document.get("floors", {}), path.name: {"offset": floor, "at": at}}
    run.write_text(json.dumps({**document, "floors": floors}))
    path.write_bytes(bytes(at) + path.read_bytes()[at:])


def _gtids(last: int) -> GtidSet:
    return GtidSet.parse(f"{UUID_A}:1-{last}" if last else "")


class InlineWorkers:
    """Workers without threads: a request is made, and its answer taken, when the test says so."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.busy = 0
        self.tasks: list[tuple[object, Callable[[], object]]] = []
        self.outcomes: list[Outcome] = []

    def submit(self, token: object, work: Callable[[], object]) -> None:
        self.busy += 1
        self.tasks.append((token, work))

    def perform(self, number: int = 0) -> None:
        """Make one of the requests that wait."""
        token, work = self.tasks.pop(number)
        try:
            self.outcomes.append(Outcome(token, value=work()))
        except BaseException as error:  # noqa: BLE001 - as Workers does
            self.outcomes.append(Outcome(token, error=error))

    def close(self) -> None:
        """There are no threads."""

    def take(self, timeout_seconds: float) -> Outcome | None:
        assert timeout_seconds == 0
        if not self.outcomes:
            return None
        self.busy -= 1
        return self.outcomes.pop(0)


class Streamer:
    """One process: mysqlbinlog, run after run, tailer and uploader over a spool.

    It takes what the spool has of the lineage, as a start does, and goes on from there.
    """

    def __init__(
        self,
        *,
        store: Store,
        source: Source,
        directory: Path,
        clock: Callable[[], float],
        part: int = 500,
        full_chunk: int = 100,
        flush_interval: float = 1.0,
        workers: int = 3,
    ) -> None:
        self.source = source
        self.directory = directory
        self.chunked = flush_interval > 0
        self.grid = Grid(part)
        self.store = store
        self.clock = clock
        self.workers = InlineWorkers(workers)
        self.spool = Spool(
            directory, SpoolLimits(min_free_bytes=0), source=LAYOUT.source, target="t"
        )
        self._catalog = Catalog(store, LAYOUT)
        known = archive_end(self._catalog, HISTORY)
        self.before = known.last
        self.coverage = Coverage(HISTORY, None, known.following)
        made = config(directory, part)
        self.uploader = Uploader(
            catalog=self._catalog,
            bodies=store,
            config=without_delay(
                replace(made, stream=replace(made.stream, flush_interval=flush_interval))
            ),
            spool=self.spool,
            workers=self.workers,  # type: ignore[arg-type]
            alive=LIVING,
            stop=Stop(),
            full_chunk=full_chunk,
            clock=clock,
        )
        self.uploader.open(self.coverage)
        if known.last is not None:
            self.uploader.sweep(known.last)
        self.tracks: dict[BinlogName, Track] = {}
        self._file: FileIO | None = None
        self.brought_again: set[Path] = set()
        self._last: Track | None = None
        self._waiting: list[Track] = []
        self._open: list[Track] = []
        self._listing: tuple[float, str, list[str]] | None = None
        self.paused = False
        for track in adopt(self.spool.runs(), grid=self.grid, end=known, catalog=self._catalog):
            self._take_in(track)
        for name in {name for run in self.spool.runs() for name in run.files()}:
            if name < known.following:
                self.spool.release(name, LINEAGE)
        self._begin_run(self._known_end(known))
        self.born = self.run.directory

    def _known_end(self, known: KnownEnd | None = None) -> KnownEnd | None:
        """Where all ends that is known."""
        if self._last is not None:
            return known_end_of(HISTORY, self._last, closed=self._last.closed)
        if known is None:
            known = archive_end(self._catalog, HISTORY)
        if known.last is None and not known.next_size:
            return None
        return known_end_of_archive(self._catalog, known)

    def _begin_run(self, known_end: KnownEnd | None) -> None:
        """mysqlbinlog is started where the source goes on: as a run begins."""
        begin, overlap = FIRST, None
        if known_end is not None:
            course = same_server(
                known_end, tuple(self.source.listed().values()), self.source.before
            )
            assert isinstance(course, GoOn), course
            begin, overlap = course.begin, course.overlap
        track = self._last if self._last is not None and not self._last.closed else None
        if track is not None and overlap is None:
            self._forget(track)
            track = None
        if hasattr(self, "run"):
            self.spool.end(self.run)
        position = overlap.position if overlap else 4
        self.run: SpoolRun = self.spool.begin(
            RunFacts(
                source="s", target="t", server_uuid=UUID_A, binlog=str(begin), position=position,
                lineage=LINEAGE,
            )
        )  # fmt: skip
        self.tailer = Tailer(self.run, self.grid, overlap=overlap, track=track)
        if overlap is not None and track is None:
            self.brought_again.add(self.run.directory / str(begin))
        self._begin_file(begin)

    def _begin_file(self, name: BinlogName) -> None:
        self._reading, self._written = name, 0
        if self._file is not None:
            self._file.close()
        self._file = self.fetching.open("wb", buffering=0)

    def _forget(self, track: Track) -> None:
        self._open = [other for other in self._open if other is not track]
        self._waiting = [other for other in self._waiting if other is not track]
        self.uploader.drop(track)
        self._last = None

    def restart_mysqlbinlog(self) -> None:
        """It dies, perhaps in the middle of an event; what it wrote is read, and another begins."""
        if self.paused:
            return
        self.pump()
        self.tailer.close()
        self._begin_run(self._known_end())

    def close(self) -> None:
        """The process ends."""
        self.tailer.close()
        if self._file is not None:
            self._file.close()
        self.spool.close()

    def file(self, name: BinlogName) -> Path:
        """What the present mysqlbinlog writes this binlog into."""
        return self.run.directory / str(name)

    def files(self, name: BinlogName) -> list[Path]:
        """Where the spool has a binlog, but for what a run brought again of one that was whole."""
        found = [run.files()[name] for run in self.spool.runs() if name in run.files()]
        return [path for path in found if path not in self.brought_again]

    @property
    def fetching(self) -> Path:
        """The file that mysqlbinlog writes."""
        return self.file(self._reading)

    def fetch(self, most: int = 1 << 30) -> bool:
        """mysqlbinlog writes some bytes, or goes on to the next file; whether there was anything.

        It writes into an open file: that this was deleted does not show. Where that comes before
        the tailer has opened it, nothing is ever read, and the run is ended.
        """
        if self.paused:
            return False
        if not (self.tailer.settled or self.tailer.progress[0] or self.fetching.exists()):
            self.restart_mysqlbinlog()
        data = self.source.data(self._reading)
        is_first = str(self._reading) == self.run.facts.binlog
        if is_first and self.run.facts.position > 4:
            data = self.source.binlogs[self._reading].from_position(self.run.facts.position)
        piece = data[self._written : self._written + most]
        if piece:
            assert self._file is not None
            self._file.write(piece)
            self._written += len(piece)
            return True
        if self._reading.next() not in self.source.binlogs:
            return False
        self._begin_file(self._reading.next())
        return True

    def press(self, *, pressed: bool) -> None:
        """The spool needs room, or no more. mysqlbinlog ends first, and goes on afterwards."""
        if pressed and not self.paused:
            self.pump()
            self.tailer.close()
        elif self.paused and not pressed:
            self._begin_run(self._known_end())
        self.paused = pressed
        self.uploader.press(pressed=pressed)

    def pump(self, slices: int = 1000) -> None:
        """The loop's reading: check what came, hand it on, judge what is closed."""
        for _ in range(0 if self.paused else slices):
            before = self.tailer.progress
            if not self.tailer.pump() and self.tailer.progress == before:
                break
        for track in self.tailer.take_new():
            self._take_in(track)
        self._judge()

    def _take_in(self, track: Track) -> None:
        self._last = self.tracks[track.name] = track
        listed = self.source.listed()
        track.source_size = listed[track.name].size if track.name < max(listed) else None
        self._waiting.append(track)
        self._open.append(track)

    def _judge(self) -> None:
        while self._waiting and self._waiting[0].begun:
            self.uploader.add(self._waiting.pop(0))
        for track in list(self._open):
            ripe = track.scanner.ended or track.passed
            if ripe and track.judge(self.source.listed()):
                self._open.remove(track)

    def deliver(self) -> bool:
        """Take one answer in; whether there was one."""
        outcome = self.workers.take(0)
        if outcome is not None:
            self.uploader.take(outcome)
        return outcome is not None

    def begin_listing(self, until: str = "~") -> None:
        """The first page of a listing of `live/`, of keys up to one."""
        keys = [info.key for info in self.store.list(LAYOUT.live) if info.key <= until]
        self._listing = (self.clock(), until, keys)

    def end_listing(self) -> None:
        """The other pages, later, and the audit."""
        if self._listing is not None:
            asked_at, until, keys = self._listing
            self._listing = None
            keys += [info.key for info in self.store.list(LAYOUT.live) if info.key > until]
            self.uploader.audit(keys, asked_at)

    def knows(self, name: BinlogName, chunk: Chunk) -> bool:
        """Whether it believes, or may come to believe, that this chunk lies in the bucket."""
        (job,) = [one for one in self.uploader.jobs if one.track.name == name] or [None]
        if job is not None and job.held.asked and chunk in job.held.all_chunks.all:
            return True
        for outcome in self.workers.outcomes:
            token = outcome.token
            if outcome.value == chunk:
                return True
            if isinstance(outcome.value, Held) and chunk in outcome.value.listed.all:
                return True
            action = getattr(token, "action", None)
            if isinstance(action, Compare) and chunk in action.chunks:
                return True
        return False

    def work(self, chance: random.Random | None = None) -> None:
        """One round of the loop in which all requests are made and answered."""
        self.pump()
        self.uploader.start()
        while self.workers.tasks:
            number = chance.randrange(len(self.workers.tasks)) if chance else 0
            self.workers.perform(number)
        while self.deliver():
            pass


def nothing(_: Action) -> None:
    """What happens before a request where nothing shall."""


class World:
    """A source, a store, a clock, and streamers whose loop turns when it is told to."""

    def __init__(self, directory: Path, **switches: bool) -> None:
        self.directory = directory
        self.source = Source()
        self.store = MemoryStore(min_part_bytes=1, **switches)  # type: ignore[arg-type]
        self.now = 100.0
        self._streamers: list[Streamer] = []

    def start(
        self,
        spool: str = "spool",
        *,
        part: int = 100,
        workers: int = 4,
        flush_interval: float = 1.0,
    ) -> Streamer:
        """A process begins, with the spool of this name."""
        made = Streamer(
            store=self.store,
            source=self.source,
            directory=self.directory / spool,
            clock=lambda: self.now,
            part=part,
            workers=workers,
            flush_interval=flush_interval,
        )
        self._streamers.append(made)
        return made

    def stop(self, streamer: Streamer) -> None:
        """It ends; its spool stays."""
        self._streamers.remove(streamer)
        streamer.close()

    def close(self) -> None:
        """Each of them ends."""
        for streamer in list(self._streamers):
            self.stop(streamer)

    def read(self, streamer: Streamer, most: int | None = None) -> None:
        """All that the source has comes in, or one piece of at most so many bytes."""
        if most is not None:
            streamer.fetch(most)
        else:
            while streamer.fetch():
                pass
        streamer.pump()

    def answer(self, streamer: Streamer, before: Callable[[Action], object] = nothing) -> None:
        """All requests are made, and answered; `before` is told of each just before it is made."""
        while streamer.workers.tasks:
            action = getattr(streamer.workers.tasks[0][0], "action", None)
            if action is not None:
                before(action)
            streamer.workers.perform()
        while streamer.deliver():
            pass

    def settle(
        self,
        streamer: Streamer,
        before: Callable[[Action], object] = nothing,
        *,
        rounds: int = 300,
    ) -> None:
        """All that can be done with what was read is done."""
        for _ in range(rounds):
            self.now += 1
            streamer.uploader.start()
            self.answer(streamer, before)

    def work(
        self,
        streamer: Streamer,
        rounds: int = 30,
        *,
        seconds: float = 1.0,
        before: Callable[[Action], object] = nothing,
    ) -> None:
        """Rounds of the loop, so far apart."""
        for _ in range(rounds):
            self.read(streamer)
            streamer.uploader.start()
            self.answer(streamer, before)
            self.now += seconds

    def audit(self, streamer: Streamer) -> None:
        """What lies below `live/` is listed, and handed in."""
        self.now += 1
        streamer.begin_listing()
        self.now += 1
        streamer.end_listing()

    def live(self) -> list[str]:
        """The keys below `live/`, in order."""
        return sorted(key for key in self.store.objects if key.startswith(LAYOUT.live))

    def chunks(self, name: BinlogName = FIRST) -> list[Chunk]:
        """A binlog's chunks in the store, in order."""
        prefix = LAYOUT.chunks(LINEAGE, name)
        found = [key.removeprefix(prefix) for key in self.live() if key.startswith(prefix)]
        return sorted(map(Chunk.parse, found))

    def put_chunk(self, begin: int, data: bytes) -> str:
        """Another writer's chunk of the first binlog."""
        chunk = Chunk(begin, begin + len(data), crc64nvme(data))
        key = LAYOUT.chunk(LINEAGE, FIRST, chunk)
        self.store.put(key, data)
        return key

    def archived(self, name: BinlogName = FIRST) -> bytes:
        """What lies under a binlog's key, which has an entry."""
        assert LAYOUT.entry(LINEAGE, name) in self.store.objects
        return self.store.get(LAYOUT.binlog(LINEAGE, name))

    def readable(self) -> bytes:
        """The first binlog, as a reader has it."""
        return b"".join(Catalog(self.store, LAYOUT).binlog(HISTORY, FIRST).blocks())
