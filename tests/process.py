"""A whole streaming process without threads, children, servers or real clocks.

The daemon's own code puts it together, in the daemon's own order: what is found, the claim, what is
mended, taken in, read, ended. Stand-ins are the source (`Shown`), mysqlbinlog (`Mysqlbinlog`), the
clock, and the threads: a request is made when the loop wants an answer, heartbeat and watch speak
when a life says so. A life is what happens meanwhile: a step of it at each round of the loop.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime, timedelta
from io import FileIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn, TypeVar

from binlog2s3.archive.catalog import Catalog
from binlog2s3.archive.layout import Layout
from binlog2s3.binlog.gtid import GtidSet
from binlog2s3.binlog.names import BinlogName, FilePosition
from binlog2s3.binlog.scanner import MAGIC
from binlog2s3.config.stream import Config
from binlog2s3.errors import SourceError, SupersededError
from binlog2s3.server.connection import ServerBinlog, ServerFacts, ServerPosition
from binlog2s3.server.mysqlbinlog import Tool
from binlog2s3.stream.compare import Common
from binlog2s3.stream.continuation import Begin, KnownEnd
from binlog2s3.stream.daemon import Loop
from binlog2s3.stream.resume import Continuation, Doubt, NextRun, Resumption
from binlog2s3.stream.run import Runs
from binlog2s3.stream.source_watch import Watch
from binlog2s3.stream.spool import Spool, SpoolRun
from binlog2s3.stream.standby import StandbyLoop
from binlog2s3.stream.start import StartState, Startup, find
from binlog2s3.stream.telling import Notifier
from binlog2s3.stream.tracking import Tracking
from binlog2s3.stream.uploader import LiveKeys, Uploader
from binlog2s3.stream.waiting import Stop
from binlog2s3.stream.writer import Writer
from binlog2s3.workers import Outcome
from tests.binlog_writer import UUID_A
from tests.memory_store import MemoryStore
from tests.streamer import LAYOUT, LIVING, InlineWorkers, Source, config, without_delay

FULL_CHUNK = 100
_MOST_ROUNDS = 3000
_START = datetime(2026, 1, 2, tzinfo=UTC)
_TOOL = Tool(path="mysqlbinlog", flavour="mysql", version="9.7.4", connection_server_id=True)

T = TypeVar("T")
Noting = Callable[[str], AbstractContextManager[object]]


class Clock(threading.Event):
    """An event that is waited for in no time: the clock goes on instead."""

    def __init__(self, now: float = 100.0) -> None:
        super().__init__()
        self.now = now

    def __call__(self) -> float:
        return self.now

    def wait(self, timeout: float | None = None) -> bool:
        self.now += timeout or 0.0
        return self.is_set()


class Shown(Source):
    """A source of which only so much is written yet: `sizes`; and the server that has it."""

    def __init__(self, source: Source, clock: Clock) -> None:
        self._all = dict(source.binlogs)
        self._data = {name: source.data(name) for name in self._all}
        self._before = source._before
        self._told: dict[tuple[BinlogName, int], str] = {}
        self.binlogs = {}
        self.sizes: dict[BinlogName, int] = {}
        self.clock = clock
        self.heard_at = 0.0
        self.moments: list[tuple[datetime, BinlogName, int]] = []

    def set(self, sizes: dict[BinlogName, int]) -> None:
        """So much is written."""
        self.sizes = dict(sizes)
        self.binlogs = {name: self._all[name] for name in sizes}

    def gtids_at(self, name: BinlogName, offset: int) -> str:
        here = (name, offset)
        if here not in self._told:
            self._told[here] = super().gtids_at(name, offset)
        return self._told[here]

    def data(self, name: BinlogName) -> bytes:
        return self._data[name][: self.sizes[name]]

    def size(self, name: BinlogName) -> int:
        return self.sizes[name]

    def show(self, name: BinlogName, events: int | None = None) -> None:
        """Commit so many events more of a binlog, or all that it will ever have."""
        ends = [end for end in self._all[name].ends if end > self.sizes.get(name, 0)]
        self.set({**self.sizes, name: ends[-1] if events is None else ends[events - 1]})

    def show_all(self) -> None:
        for name in self._all:
            if self.sizes.get(name) != len(self._data[name]):
                self.show(name)

    # as `Server`

    def facts(self) -> ServerFacts:
        return ServerFacts(
            uuid=UUID_A, flavour="mysql", version="9.7.4", server_id=7, gtid_mode=True
        )

    def binlogs_listed(self) -> tuple[ServerBinlog, ...]:
        return tuple(self.listed()[name] for name in sorted(self.sizes))

    def position(self) -> ServerPosition:
        self.clock.now += 0.001  # what is committed now is later
        last, now = self.open, _START + timedelta(seconds=self.clock.now)
        self.clock.now += 0.001
        self.moments.append((now, last, self.size(last)))
        return ServerPosition(
            asked_at=now,
            settled_at=now,
            uuid=UUID_A,
            place=FilePosition(last, self.size(last)),
            gtid_set=self.gtids_at(last, self.size(last)),
            read_only=False,
        )

    def beginning(self, name: BinlogName, most: int) -> bytes:
        return self.data(name)[:most]

    def executed(self) -> GtidSet:
        return GtidSet.parse(self.gtids_at(self.open, self.size(self.open)))


class AsServer:
    """A connection to it."""

    heard_at = 0.0

    def __init__(self, shown: Shown) -> None:
        self.facts = shown.facts
        self.binlogs = shown.binlogs_listed
        self.position = shown.position
        self.previous_gtids = self.gtids_before = shown.before
        self.beginning = shown.beginning
        self.executed = shown.executed

    def login(self) -> None:
        """Nobody logs in."""

    def expiry(self) -> float | None:
        return None

    def check_privileges(self, name: BinlogName) -> None:
        """All are there."""

    def gtids_outside(self, oldest: BinlogName) -> str:
        return ""

    def time_zone(self, year: int) -> None:
        """It does not tell."""

    def close(self) -> None:
        """Nothing is open."""


class Mysqlbinlog:
    """The child: writes when it is told to, and lets a life go on whenever it is looked at."""

    pid = 0

    def __init__(
        self, shown: Shown, run: SpoolRun, next_run: NextRun, process: "Process", noting: Noting
    ) -> None:
        self._shown = shown
        self._directory = run.directory
        self._next_run = next_run
        self._turn = process.turn
        self._noting = noting
        self._name = next_run.begin
        self._written = 0
        self._file: FileIO | None = None
        self.status: int | None = None
        self.is_stopped = False

    def fetch(self, most: int = 1 << 30) -> bool:
        """Write some bytes, or go on to the next file; whether there was anything."""
        if self._file is None:
            with self._noting("first byte"):
                self._file = (self._directory / str(self._name)).open("wb", buffering=0)
                self._file.write(MAGIC[:1])
            self._written = 1
        data = self._shown.data(self._name)
        if self._name == self._next_run.begin and self._next_run.position > 4:
            whole = self._shown.binlogs[self._name].from_position(self._next_run.position)
            data = whole[: len(whole) - (len(self._shown._data[self._name]) - len(data))]
        if piece := data[self._written : self._written + most]:
            self._file.write(piece)
            self._written += len(piece)
            return True
        if self._name.next() not in self._shown.sizes:
            return False
        self.close()
        self._name, self._written = self._name.next(), 0
        return True

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
        self._file = None

    # as `Child`

    def poll(self) -> int | None:
        self._turn()
        return self.status

    def hold(self, *, held: bool) -> None:
        """It stands still anyway."""

    def stop(self) -> int:
        self.is_stopped = True
        self.close()
        return 0

    def failure(self) -> SourceError:
        return SourceError("mysqlbinlog ended", transient=True)


class NotedSpool(Spool):
    """A spool that tells of everything that it changes, and is asked what it may release."""

    may_release: Callable[[str, BinlogName], bool]
    noting: Noting = staticmethod(lambda _: nullcontext())  # type: ignore[assignment]

    def begin(self, facts: Any) -> SpoolRun:
        with self.noting("begin"):
            return super().begin(facts)

    def note(self, run: SpoolRun) -> None:
        with self.noting("note"):
            super().note(run)

    def release(self, name: BinlogName, lineage: str, paths: Any = ()) -> int:
        assert self.may_release(lineage, name), f"{name} is not archived"
        with self.noting("release"):
            return super().release(name, lineage, paths)

    def delete(self, paths: Any) -> int:
        with self.noting("delete"):
            return super().delete(paths)

    def drop_prefixes(self) -> int:
        with self.noting("drop prefixes"):
            return super().drop_prefixes()

    def discard(self, run: SpoolRun) -> None:
        with self.noting("discard"):
            super().discard(run)

    def cut(self, path: Path, end: int) -> None:
        with self.noting("cut"):
            super().cut(path, end)

    def note_claim(self, rank: Any) -> None:
        with self.noting("note the claim"):
            super().note_claim(rank)


def nothing_to_doubt(known_end: KnownEnd) -> NoReturn:
    raise AssertionError(f"nothing contradicts the archive here: {known_end}")


@dataclass(frozen=True, kw_only=True)
class Compared(Continuation):
    """`finder` says what a comparison would show."""

    finder: Any

    def _finder(self, spool: Any) -> Any:
        return self.finder


class Steering(Resumption):
    """The resumption, who finds mysqlbinlog without looking.

    `compared` says what a comparison would show; `doubts` are those that asked for one.
    """

    compared: Callable[[KnownEnd], Common | None] = staticmethod(nothing_to_doubt)

    def __init__(self, config: Config, catalog: Catalog) -> None:
        super().__init__(config, catalog, NO_SPOOL, threading.Event())
        self.doubts: list[str] = []

    def _continuation(self, *asked: Any) -> Continuation:
        after = super()._continuation(*asked)
        finder = SimpleNamespace(last_common=lambda _: self.compared(after.known_end))
        return Compared(
            **{one.name: getattr(after, one.name) for one in fields(after)}, finder=finder
        )

    def next_run(
        self, server: Any, known_end: KnownEnd | None, doubt: Doubt | None = None
    ) -> NextRun:
        self.doubts += [doubt.why] if doubt is not None else []
        listed = server.binlogs()
        first = Begin(begin=listed[0].name)
        plain = NextRun(facts=server.facts(), tool=_TOOL, listed=listed, course=first)
        if known_end is None:
            return replace(plain, course=Begin(begin=self._first(listed, doubt)))
        course = self._continuation(server, plain, known_end, doubt).course()
        return self._steered(plain, course, anew=doubt is not None)


NO_SPOOL: Any = "not used: see Compared"


class Starting(Startup):
    def _resumption(self) -> Resumption:
        return Steering(self._config, self.catalog)

    def passes(self, error: BaseException) -> bool:
        return False

    def begun(self, shown: Shown, clock: Clock) -> StartState:
        """As `begin`, but for the server, which is asked of this one."""
        bystander = StandbyLoop(
            catalog=Catalog(self.catalog.store, self.catalog.layout),
            spool=self._spool,
            interval_seconds=self._config.stream.heartbeat_interval,
            exits=False,
            reach=lambda: shown.facts().uuid,
            refuses=lambda _: True,
            stop=clock,
            clock=clock,
        )
        self.vacancy = bystander.wait()
        self._spool.drop_prefixes()
        found = find(self.catalog, self._spool.runs(), self._grid)
        return self._begin(AsServer(shown), found, None)  # type: ignore[arg-type]


class Quiet(Stop):
    """A stop that no signal sets."""

    def __init__(self, clock: Clock) -> None:
        self.event = clock
        self.signal = 0
        self.error = None


class AtOnce(Uploader):
    """Requests that the loop waits for are made at once; a listing is of the clock's time.

    `before` is called before each step.
    """

    before: Callable[[], object] = staticmethod(lambda: None)

    def __init__(self, *, config: Config, **given: Any) -> None:
        super().__init__(alive=LIVING, full_chunk=FULL_CHUNK, config=without_delay(config), **given)

    def wait_for(self, request: Callable[[], T]) -> T:
        return request()

    def step(self, wait_seconds: float) -> None:
        self.before()
        super().step(wait_seconds)

    def hand_in(self, listing: LiveKeys) -> None:
        super().hand_in(replace(listing, asked_at=self._clock()))


class Reading(Runs):
    """The runs, with that child, and without waiting."""

    process: "Process"
    noting: Noting
    refuse: Callable[[], object] = staticmethod(lambda: None)
    """Called before mysqlbinlog is started."""

    def _answer(self, ask: Callable[[Any], T]) -> T:
        return ask(self._connect())

    def _start(self, run: SpoolRun, next_run: NextRun, login: object) -> Any:
        self.refuse()
        with self.noting("child start"):
            self.process.child = child = Mysqlbinlog(
                self.process.shown, run, next_run, self.process, self.noting
            )
        return child

    def work(self, seconds: float) -> None:
        self.process.count()
        self._go_on(0.05)


class Requests(InlineWorkers):
    """A request is made when its answer is wanted: one after the other, or the last one first.

    `action` is what the one that is being made is for, "" between them.
    """

    def __init__(self, count: int, clock: Clock, *, last_first: bool) -> None:
        super().__init__(count)
        self.clock = clock
        self.number = -1 if last_first else 0
        self.before: Callable[[], None] = lambda: None
        self.action = ""

    def take(self, timeout_seconds: float) -> Outcome | None:
        if not self.outcomes and self.tasks:
            self.before()
            token = self.tasks[self.number][0]
            self.action = type(getattr(token, "action", token)).__name__
            self.perform(self.number)
            self.action = ""
        if not self.outcomes:
            self.clock.now += timeout_seconds
            return None
        self.busy -= 1
        return self.outcomes.pop(0)

    def wake(self) -> None:
        """Nobody waits."""


class Process(Loop):
    """The daemon's stream: `run` is what it does, from the claim to the end."""

    def __init__(
        self,
        *,
        store: MemoryStore,
        shown: Shown,
        directory: Path,
        part: int,
        token: str,
        life: Callable[["Process"], Iterator[None]],
        last_first: bool = False,
        noting: Noting = lambda _: nullcontext(),
    ) -> None:
        self.shown = shown
        self.clock = clock = Clock()
        clock.now = shown.clock.now
        self.child: Mysqlbinlog
        self.rounds = 0
        self._life = life(self)
        made = config(directory, part)
        self._spool = spool = NotedSpool(directory, source=made.stream.source, target=made.target)
        spool.noting = noting
        spool.may_release = lambda lineage, name: LAYOUT.entry(lineage, name) in store.objects
        self._stop = stop = Quiet(clock)
        started = Starting(made, store, spool, stop)
        begun = started.begun(shown, clock)
        self._started = started
        self._config = made
        self._begun = begun
        self._store = store  # type: ignore[assignment]
        self._layout = Layout(made.s3.prefix, made.stream.source)
        self._notifier = Notifier()
        self._workers = self.requests = Requests(  # type: ignore[assignment]
            made.s3.concurrency, clock, last_first=last_first
        )
        server: Any = AsServer(shown)
        self._watch = Watch(server)
        catalog = Catalog(store, self._layout)
        self._uploads = self.uploads = AtOnce(
            catalog=catalog,
            bodies=store,
            config=made,
            spool=spool,
            workers=self._workers,
            stop=stop,
            foreign=begun.foreign,
            clock=clock,
        )
        self._alive = self._uploads._alive
        self._writer = self.writer = Writer(
            catalog=catalog,
            spool=spool,
            interval_seconds=made.stream.heartbeat_interval,
            progress=self._progress,
            uploads=self._uploads,
            stop=stop,
        )
        self.writer._me = replace(self.writer._me, token=token)
        self._tracking = self.tracking = Tracking(
            catalog=catalog,
            spool=spool,
            writer=self._writer,
            uploads=self._uploads,
        )
        self.resumption = Steering(made, catalog)
        self._runs = self.runs = Reading(
            made,
            spool=spool,
            tracking=self._tracking,
            uploads=self._uploads,
            writer=self._writer,
            resumption=self.resumption,
            watch=self._watch,
            connect=lambda: server,
            stop=clock,
            next_run=begun.next_run,
        )
        self.runs.process = self
        self.runs.noting = noting
        self._board = None
        self._ended = threading.Event()
        self._reporter = self._report()
        stop.wake = self.requests.wake

    def run(self) -> int:
        self.claim(self._started)
        return super().run()

    def _start_threads(self) -> None:
        """Watch, heartbeat and pages do what they are told to."""

    def look(self) -> None:
        """As the watch's thread."""
        self._watch.list_again()
        self._look()

    @property
    def ended(self) -> bool:
        return self.clock.is_set()

    def count(self) -> None:
        """No life goes on for ever."""
        self.rounds += 1
        if self.rounds > _MOST_ROUNDS:
            raise AssertionError("it does not come to rest")

    def turn(self) -> None:
        """A step of its life; it is asked to end behind the last."""
        self.count()
        self.clock.now = self.shown.clock.now = max(self.clock.now, self.shown.clock.now)
        if next(self._life, self) is self:
            self.clock.set()

    def round(self) -> None:
        """A round of its loop, in between; where another writer is greater, it ends."""
        if self.ended:
            return
        try:
            self.runs.round(0.0)
        except SupersededError as error:
            self._stop.fail(error)

    def beat(self, *, audit: bool = False) -> None:
        """As the heartbeat's thread; where another writer is greater, it ends."""
        if audit:
            self.writer._beats = 0
        try:
            self.writer.beat()
        except SupersededError as error:
            self._stop.fail(error)

    @property
    def has_all(self) -> bool:
        """Whether all that the source has is read and in the bucket, archived what is closed."""
        last = self.shown.open
        there = self.runs.reached() == (last, self.shown.size(last))
        return there and self.tracking.done

    def close(self) -> None:
        """Nothing stays open behind it."""
        self.runs.close()
        if hasattr(self, "child"):
            self.child.close()
        self._spool.close()
