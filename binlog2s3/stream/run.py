"""Runs of mysqlbinlog, one after the other: where each begins, and what its end means.

Law: after every end comes another run, later each time that nothing new came, until `stop` is set
or only the operator can help. A server that is slow, full or idle keeps its stream; a server that
is silent, or another one, loses it. Nothing of a run is taken in before it has shown that it
continues what is known, in `READING`. Until then a start does not take it from the spool either, if
we die meanwhile.

| state | what happens | leads to |
|---|---|---|
| `MAKING_ROOM` | waits until the spool has room | `BRINGING_IN` |
| `BRINGING_IN` | before the histories are compared, all of ours is uploaded | `ASKING` |
| `ASKING` | the source says where to continue, and mysqlbinlog is started there | `COMPARING` if \
known bytes come again, else `CONFIRMING` |
| `COMPARING` | the known bytes come again and are compared | all are equal: `READING`; \
`CONFIRMING` if they are among the binlog's first ones, which may be alike in two histories |
| `CONFIRMING` | the first events are read, nothing is taken in | the server is asked on a new \
connection, and sends the same bytes on it: `READING` |
| `READING` | what comes is taken in, and compared with what the watch heard | itself, if it has \
gained something |
| `ENDING` | mysqlbinlog is ended, what is proved is read to its end, the spool tidied | `RESTING` |
| `RESTING` | waits; not after a full spool | `MAKING_ROOM` |

An error, or a full spool, ends a run: `ENDING`. An error between two runs: `RESTING`. Uploads go on
in each state. What an error teaches is the same in all of them: see `Memory.learned`. All that is
remembered between two runs is one value, `Memory`, and where the known history ends
(`Tracking.end`). The source is asked by a thread of its own, for which the loop does not wait.

`State`, `Event`, `NEXT` and `Memory` are values, and know neither clock nor process. `Run` is one
run and its process. `Runs` carries out what they say.
"""

import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import Enum, auto
from functools import partial
from pathlib import Path
from typing import TypeVar

from binlog2s3.binlog.names import BinlogName, FilePosition
from binlog2s3.binlog.scanner import MOST_ACCEPTED
from binlog2s3.config.stream import Config
from binlog2s3.errors import (
    AbortedError,
    DamageError,
    ElsewhereError,
    ForkError,
    LeftOutError,
    SourceError,
    SpoolError,
    TakenError,
    UnloggedError,
)
from binlog2s3.formatting import duration_text
from binlog2s3.log import Log
from binlog2s3.server.connection import Server
from binlog2s3.server.dump import MOST_BYTES
from binlog2s3.server.login import Login
from binlog2s3.server.mysqlbinlog import Child, server_id_of
from binlog2s3.stream.compare import prove
from binlog2s3.stream.continuation import Begin, GoOn
from binlog2s3.stream.pressure import Pressure
from binlog2s3.stream.resume import Doubt, NextRun, Resumption
from binlog2s3.stream.source_watch import Watch
from binlog2s3.stream.spool import Spool, SpoolRun, as_spool_error
from binlog2s3.stream.tail import Tailer, Track, overlap_of
from binlog2s3.stream.tracking import Tracking
from binlog2s3.stream.uploader import Uploader
from binlog2s3.stream.waiting import delay, unless
from binlog2s3.stream.writer import Writer

Answer = TypeVar("Answer")

_log = Log("run")
_POLL_SECONDS = 0.05
_READ_SECONDS = 0.01
_QUIET_AFTER_SECONDS, _QUIET_POLL_SECONDS = 2.0, 0.5  # an idle source costs little
_QUIET_ROUND_SECONDS = 2.0
_REFUSALS = 3
_MOST_STALLS = 6
_BEHIND = 2


class State(Enum):
    """What the stream does about reading: see the table at the head of this module."""

    MAKING_ROOM = auto()
    BRINGING_IN = auto()
    ASKING = auto()
    COMPARING = auto()
    CONFIRMING = auto()
    READING = auto()
    ENDING = auto()
    RESTING = auto()


class Event(Enum):
    """What leads from one state to the next."""

    DONE = auto()
    """What the state is for."""
    SENDS_AGAIN = auto()
    """A run has begun that sends known bytes again."""
    SENDS_NEW = auto()
    """A run has begun with the first byte of a binlog, and there is nothing to compare."""
    SAME = auto()
    """The known bytes have come again, equal."""
    SAME_BEGINNING = auto()
    """The same, and they are among the first ones of the binlog."""
    CONFIRMED = auto()
    """The server has sent the same bytes on a new connection."""
    GAINED = auto()
    """The run has brought something new, or lasts."""
    FULL = auto()
    """The spool has no room for more."""
    FAILED = auto()
    """An error was raised."""


NEXT: Mapping[tuple[State, Event], State] = {
    (State.MAKING_ROOM, Event.DONE): State.BRINGING_IN,
    (State.BRINGING_IN, Event.DONE): State.ASKING,
    (State.ASKING, Event.SENDS_AGAIN): State.COMPARING,
    (State.ASKING, Event.SENDS_NEW): State.CONFIRMING,
    (State.COMPARING, Event.SAME): State.READING,
    (State.COMPARING, Event.SAME_BEGINNING): State.CONFIRMING,
    (State.CONFIRMING, Event.CONFIRMED): State.READING,
    (State.READING, Event.GAINED): State.READING,
    (State.ENDING, Event.DONE): State.RESTING,
    (State.RESTING, Event.DONE): State.MAKING_ROOM,
    (State.MAKING_ROOM, Event.FAILED): State.RESTING,
    (State.BRINGING_IN, Event.FAILED): State.RESTING,
    (State.ASKING, Event.FAILED): State.RESTING,
    (State.COMPARING, Event.FAILED): State.ENDING,
    (State.CONFIRMING, Event.FAILED): State.ENDING,
    (State.READING, Event.FAILED): State.ENDING,
    (State.COMPARING, Event.FULL): State.ENDING,
    (State.CONFIRMING, Event.FULL): State.ENDING,
    (State.READING, Event.FULL): State.ENDING,
}
"""All that can happen. An error where none can be waited for, as at the end, ends the stream."""


class StalledError(SourceError):
    """The server writes more, and nothing arrives."""


@dataclass(frozen=True, slots=True)
class BeingRead:
    """The binlog that a run was reading. `is_readable`: its format event could be read."""

    binlog: BinlogName
    is_readable: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """The state, and what is remembered from one run to the next.

    `failures`: runs in a row that brought nothing new. `refusals` and `stalls` are counted at the
    place `at`, up to which the source had been read when it was asked. `doubt`: why the next run
    does not simply continue. `damage`: the last damaged event. `accepted`: offsets of events, by
    binlog, that are archived although they are damaged.
    """

    state: State = State.MAKING_ROOM
    failures: int = 0
    at: FilePosition | None = None
    refusals: int = 0
    stalls: int = 0
    doubt: Doubt | None = None
    damage: tuple[FilePosition, str] | None = None
    accepted: Mapping[BinlogName, frozenset[int]] = field(default_factory=dict)

    @property
    def patience(self) -> int:
        """How many times --stall-timeout to wait: after each stall at one place twice as long."""
        return 1 << min(self.stalls, _MOST_STALLS)

    def accepted_in(self, binlog: BinlogName) -> frozenset[int]:
        """The offsets of this binlog's damaged events that are archived as they are."""
        return self.accepted.get(binlog, frozenset())

    def after(self, event: Event) -> "Memory":
        """The same, in the state that follows. Raises KeyError for what cannot happen there."""
        failures = self.failures
        if event is Event.GAINED:
            failures = 0
        elif (self.state, event) == (State.MAKING_ROOM, Event.DONE):
            failures += 1  # until the run has brought something
        return replace(self, state=NEXT[self.state, event], failures=failures)

    def asked_at(self, position: FilePosition | None) -> "Memory":
        """The source was asked how to continue here. The doubt is answered."""
        if position is None or position == self.at:
            return replace(self, doubt=None)
        return replace(self, doubt=None, at=position, refusals=0, stalls=0)

    def learned(self, error: Exception, seen: BeingRead | None) -> "Memory":
        """What an error teaches, in any state; for what was read see `Runs`.

        `seen` is None if no run had shown yet that it continues what is known.

        | error | what it means |
        |---|---|
        | `LeftOutError` | rows before the next binlog are in none: a new lineage begins there |
        | `AbortedError` | it only looks like that: a new lineage begins there, without a gap |
        | `ElsewhereError` | the server's history continues elsewhere: compare the bytes |
        | `TakenError` | the history goes on in a lineage beside this one |
        | `ForkError` | the server sends another history: compare the bytes |
        | damage before the known bytes came again | a refusal |
        | damage for the first time | perhaps the spool's disk: the event is fetched again |
        | the same again, in a binlog's first event | the source cannot give this binlog |
        | the same again, in another event | the source's own file is damaged: it is accepted |
        | damage in an accepted event, or too many accepted | a refusal |
        | an error that says that the source cannot send it | a refusal |
        | `StalledError` | wait twice as long at this place |
        | anything else | nothing: the next run tries again |

        The second refusal in a row at one place means: compare the bytes. The third means: the
        source does not give this place, and the history may have to continue after it.
        """
        why = str(error)
        match error:
            case LeftOutError():
                return replace(self, doubt=Doubt(why=why, kind="left out"))
            case AbortedError():
                return replace(self, doubt=Doubt(why=why, kind="aborted"))
            case TakenError():
                return replace(self, doubt=Doubt(why=why, kind="taken"))
            case ElsewhereError() | ForkError():
                return replace(self, doubt=Doubt(why=why))
            case DamageError() if seen is not None:
                return self._damaged(error, seen)
            case StalledError():
                return replace(self, stalls=self.stalls + 1)
            case DamageError() | SourceError(unservable=True):
                return self._refused(why)
        return self

    def _damaged(self, error: DamageError, seen: BeingRead) -> "Memory":
        name, accepted = seen.binlog, self.accepted_in(seen.binlog)
        damage = (FilePosition(name, error.offset), str(error).rpartition(": ")[2])
        again, now = damage == self.damage, self
        if not seen.is_readable:
            if again:
                doubt = Doubt(why=str(error), kind="refused", unreadable=name)
                now = replace(self, doubt=doubt)
        elif error.offset in accepted or len(accepted) >= MOST_ACCEPTED:
            now = self._refused(str(error))
        elif again:
            more = {**self.accepted, name: accepted | {error.offset}}
            now = replace(self, accepted=more)
        return replace(now, damage=damage)

    def _refused(self, why: str) -> "Memory":
        """The source did not give what comes next."""
        refusals, doubt = self.refusals + 1, self.doubt
        if refusals > 1:
            doubt = Doubt(why=why, kind="refused" if refusals >= _REFUSALS else "other")
        return replace(self, refusals=refusals, doubt=doubt)


class Run:
    """One run: its directory in the spool, its process, and the binlogs that began in it.

    `is_over`: nothing more of it is read.

    Times are of the monotonic clock: `started`; `moved`, when the last bytes came; `ahead`, since
    when the server is known to have more than was read, None while it has not.
    """

    def __init__(self, run: SpoolRun, next_run: NextRun, child: Child, tailer: Tailer) -> None:
        self.run = run
        self.next_run = next_run
        self.child = child
        self.tailer = tailer
        self.is_over = False
        self.fresh: list[Track] = []  # that began in this run and are in the spool
        self.started = self.moved = time.monotonic()
        self.ahead: float | None = None

    @property
    def known_bytes(self) -> int:
        """How many bytes this run sends again."""
        overlap = self.next_run.overlap
        return overlap.end - overlap.begin if overlap is not None else 0

    @property
    def seen(self) -> BeingRead | None:
        """The binlog that is read; None before the known bytes have come again."""
        track = self.tailer.current
        if track is None or not self.tailer.settled:
            return None
        return BeingRead(track.name, is_readable=bool(track.scanner.formats))

    @property
    def has_gained(self) -> bool:
        """Whether this run has brought a complete event that was not known."""
        current, overlap = self.tailer.current, self.next_run.overlap
        begin = FilePosition(self.next_run.begin, overlap.end if overlap is not None else 0)
        return current is not None and current.end > begin

    def reached(self) -> FilePosition | None:
        """How far it was read; None before the known bytes have come again."""
        current = self.tailer.current
        if not self.tailer.settled or current is None:
            return None
        return current.end

    def read(self, accepted: Callable[[BinlogName], Collection[int]]) -> bool:
        """Read and check a slice; whether there was anything new.

        `accepted` gives the offsets of a binlog's damaged events that are taken as they are. Raises
        what `Tailer.pump` raises.
        """
        tailer = self.tailer
        progress, count = tailer.progress, tailer.read_bytes
        if tailer.current is not None:
            for offset in accepted(tailer.current.name):
                tailer.current.scanner.accept(offset)
        read = bool(tailer.pump()) or tailer.progress != progress
        if tailer.read_bytes != count:
            self.moved = time.monotonic()
        return read

    @property
    def is_proved(self) -> bool:
        """Whether it was noted in the spool that it continues what is known: see `READING`."""
        return self.run.facts.is_proved

    @property
    def shown(self) -> Event | None:
        """What the known bytes have shown that came again; None before all of them have come."""
        overlap = self.next_run.overlap
        if overlap is None or not self.tailer.settled:
            return None
        return Event.SAME_BEGINNING if overlap.begin < MOST_BYTES else Event.SAME

    @property
    def can_be_confirmed(self) -> bool:
        """Whether enough has come of the first binlog to ask the server for the same bytes."""
        track = self.tailer.current
        if self.next_run.overlap is not None:
            return self.tailer.settled
        return track is not None and track.begun

    def received(self) -> tuple[int, bytes]:
        """What has come of the first MOST_BYTES of the first binlog, and from which offset on."""
        name = self.next_run.begin
        path, spooled = self.run.directory / str(name), self.run.file_of(name)
        begin, at = (spooled.begin, spooled.at) if spooled is not None else (0, 0)
        with as_spool_error(path), path.open("rb") as file:
            file.seek(at)
            return begin, file.read(max(0, MOST_BYTES - begin))

    def take_new(self) -> list[Track]:
        """The binlogs that began since the last call; none before this run is proved."""
        if not self.is_proved:
            return []
        new = self.tailer.take_new()
        if new:
            # A run may last for months: what has left the spool is forgotten, but for the binlog
            # that was handed on last, and the one that is open.
            older, newest = self.fresh[:-2], self.fresh[-2:]
            self.fresh = [track for track in older if track.is_spooled] + newest + new
        return new

    def look_after(self, watch: Watch, limit_seconds: float, patience: int) -> None:
        """Compare what the watch has heard with what was read.

        Raises SourceError if the server is silent or another one, StalledError if the server goes
        on and nothing comes for `patience` times the limit, ElsewhereError if the server is before
        what was read from it.
        """
        source_state, now = watch.source_state, time.monotonic()
        if source_state.stranger:
            raise SourceError(
                f"another server answers under this address: {source_state.stranger}",
                hint="a proxy or a fail-over; it is asked again",
                transient=True,
            )
        if source_state.behind >= _BEHIND:
            raise ElsewhereError("the server's position is before what was read from it")
        heard = max(watch.heard_at, self.moved, self.started)
        if now - heard > limit_seconds:
            raise SourceError(
                f"no answer from the server for {duration_text(now - heard)}",
                hint="it hangs, or the network is cut; --stall-timeout says how long to wait",
                transient=True,
            )
        current, at = self.tailer.current, source_state.position
        read_to = (
            FilePosition(current.name, current.scanner.position) if current is not None else None
        )
        has_all = read_to is not None and at is not None and at.place <= read_to
        if (self.tailer.settled and (at is None or has_all)) or (
            at is None and source_state.error is not None
        ):
            self.ahead = None
            return
        self.ahead = self.ahead or now
        if now - max(self.ahead, self.moved) > limit_seconds * patience:
            raise StalledError(
                f"nothing came for {duration_text(now - self.moved)}, although the server writes",
                hint="the connection is dead, or one very large event is on its way; "
                "--stall-timeout says how long to wait",
                transient=True,
            )

    def leave(self, spool: Spool, last: Track | None) -> None:
        """Tidy up after the end: `last` is the last binlog that was taken in.

        Discards a run that read nothing new. Cuts off an incomplete event at the end: the next run
        reads it again.
        """
        directory = self.run.directory
        if directory.exists():
            if last is not None and _is_in(last, directory) and not last.gained:
                last.segments = last.segments[:-1]
            tracks = [*self.fresh, *([last] if last is not None else [])]
            if not any(track.lies_in(directory) for track in tracks):
                spool.discard(self.run)
        if last is not None and _is_in(last, directory):
            segment = last.segments[-1]
            spool.cut(segment.path, segment.at + last.size - segment.begin)


def _is_in(track: Track, directory: Path) -> bool:
    """Whether its last bytes are in this directory."""
    return track.path is not None and track.path.parent == directory


class Runs:
    """`supervise` returns when `stop` is set, and raises what only the operator can fix.

    `next_run` says where to continue, None if the source could not be asked yet. `connect` makes
    the connection for one question. `memory` has the state. `run` is the run that is read,
    None between two runs.
    """

    def __init__(
        self,
        config: Config,
        *,
        spool: Spool,
        tracking: Tracking,
        uploads: Uploader,
        writer: Writer,
        resumption: Resumption,
        watch: Watch,
        connect: Callable[[], Server],
        stop: threading.Event,
        next_run: NextRun | None,
    ) -> None:
        self._config = config
        self._spool = spool
        self._tracking = tracking
        self._uploads = uploads
        self._writer = writer
        self._resumption = resumption
        self._watch = watch
        self._connect = connect
        self._stop = stop
        self._next_run = next_run
        self.memory = Memory()
        self._error: Exception | None = None
        self._read_before = (0, 0)
        self.pressure = Pressure(spool, tracking, uploads)
        self.run: Run | None = None
        self.restarts = 0
        self.last_error: tuple[datetime, str] | None = None
        self.read_at = time.monotonic()

    @property
    def is_running(self) -> bool:
        """Whether mysqlbinlog runs. After runs that brought nothing, only if this one lasts.

        A source that refuses each run at the same place is not read, however often one begins.
        Called by any thread.
        """
        run, memory = self.run, self.memory
        if run is None:
            return False
        soon = self._config.timing.soon_seconds
        return memory.failures <= 1 or time.monotonic() - run.started >= soon

    @property
    def is_reading(self) -> bool:
        """Whether a run is read that has shown that it continues what is known: see `READING`.

        Called by any thread.
        """
        return self.memory.state is State.READING

    @property
    def read_totals(self) -> tuple[int, int]:
        """Bytes that came from mysqlbinlog, and the complete transactions among them."""
        run, (read, transactions) = self.run, self._read_before
        if run is None:
            return read, transactions
        tailer = run.tailer
        return read + tailer.read_bytes, transactions + tailer.read_transactions

    def supervise(self) -> None:
        """Run after run, until `stop` is set."""
        does: Mapping[State, Callable[[], Event | None]] = {
            State.MAKING_ROOM: self._make_room,
            State.BRINGING_IN: self._before_asking,
            State.ASKING: self._begin,
            State.COMPARING: self._go_through,
            State.CONFIRMING: self._go_through,
            State.READING: self._go_through,
            State.ENDING: self._end,
            State.RESTING: self._rest,
        }
        try:
            while not self._stop.is_set():
                try:
                    self._happens(does[self.memory.state]())
                except Exception as error:
                    if not self._goes_on_after(error):
                        raise
        finally:
            if self.run is not None:
                self.run.child.stop()

    def _happens(self, event: Event | None) -> None:
        if event is not None:
            self.memory = self.memory.after(event)

    def _goes_on_after(self, error: Exception) -> bool:
        """Learn from an error; whether waiting, or asking again, may help."""
        run = self.run
        if (self.memory.state, Event.FAILED) not in NEXT:
            return False
        if run is not None:
            run.child.stop()
            try:
                self._learn(error, run)
            except SpoolError as later:  # what was read could not be deleted
                error = later
        self._error = error
        self._happens(Event.FAILED)
        if _passes(error):
            return True
        if run is not None and not self._stop.is_set():
            self._end()
        return False

    def work(self, seconds: float) -> None:
        """Bring in what is there, for so long or until `stop` is set."""
        until = time.monotonic() + seconds
        while not self._stop.is_set() and (left := until - time.monotonic()) > 0:
            self.pressure.look()
            self._go_on(min(left, _POLL_SECONDS))

    def round(self, wait_seconds: float) -> bool:
        """Read, judge, start requests, take outcomes; whether anything was read.

        A backlog is read for a moment: the uploads do not have something new to do at each slice.
        """
        run, read = self.run, False
        if self.memory.state is State.CONFIRMING and self._stop.is_set():
            return False
        if run is not None and not run.is_over:
            until = time.monotonic() + _READ_SECONDS
            read = more = self._read(run)
            while more and run.tailer.has_more and time.monotonic() < until:
                more = not self._stop.is_set() and self._read(run)
        self._step(0.0 if read else wait_seconds)
        return read

    def _read(self, run: Run) -> bool:
        """Read a slice, and take in what is proved. At the end, nothing else is read."""
        self._prove(run)
        if self.memory.state is State.ENDING and not run.is_proved:
            return False
        read = run.read(self.memory.accepted_in)
        if read:
            self.read_at = time.monotonic()
        self._prove(run)
        for new in run.take_new():
            self._tracking.admit(new)
        return read

    def reached(self) -> FilePosition | None:
        """How far the run has come, once it has shown that it continues what is known.

        Called by any thread.
        """
        run = self.run
        return run.reached() if run is not None else None

    def _make_room(self) -> Event:
        self.pressure.relieve(self.work, self._stop)
        return Event.DONE

    def _rest(self) -> Event:
        """Wait before the next run: the longer, the more runs in a row have brought nothing."""
        error, self._error = self._error, None
        if error is not None:
            failures = self.memory.failures
            seconds = delay(failures, self._config.timing)
            self.last_error = (datetime.now(UTC), str(error))
            _log.recurring(
                "reading again",
                error=error,
                hint=getattr(error, "hint", ""),
                again_in_seconds=round(seconds, 1),
                failures=failures,
            )
            self.work(seconds)
        return Event.DONE

    def _go_on(self, wait_seconds: float) -> None:
        """A step without reading. What it shows ends a run; between two runs it is learned here."""
        try:
            self._step(wait_seconds)
        except ForkError as error:
            if self.run is not None:
                raise
            self._learn(error, None)

    def _step(self, wait_seconds: float) -> None:
        """Judge what was read, unless nothing is proved yet; start requests, take outcomes."""
        if self.memory.state is not State.CONFIRMING:
            streams = self._watch.streams(self._tracking.server_uuid)
            if self._tracking.judge(self._watch.listed() if streams else {}, streaming=True):
                self._watch.list_again()
        self._uploads.step(wait_seconds)

    def _begin(self) -> Event:
        """Ask the source where to continue, and start mysqlbinlog there."""
        given, self._next_run = self._next_run, None
        next_run = given if given is not None and self.memory.doubt is None else self._ask()
        self.pressure.refuse(next_run.overlap)
        login = self._answer(lambda server: server.login())
        track = self._turn(next_run)
        directory, child = self._spool.started(
            next_run.facts.uuid,
            next_run.begin,
            next_run.position,
            lambda run: self._start(run, next_run, login),
        )
        tailer = Tailer(directory, self._uploads.grid, overlap=next_run.overlap, track=track)
        if next_run.overlap is not None and track is None:
            self._spool.reading = directory.directory / str(next_run.begin)
        self._watch.follow(next_run.facts.uuid, next_run.listed)
        self._tracking.follow(next_run)
        self.run = Run(directory, next_run, child, tailer)
        return Event.SENDS_AGAIN if next_run.overlap is not None else Event.SENDS_NEW

    def _end(self) -> Event:
        """End mysqlbinlog, read what is left of a run that is proved, and tidy up."""
        run = self.run
        assert run is not None  # noqa: S101 - a run leads here
        run.child.stop()
        try:
            while run.is_proved and not run.is_over and run.run.directory.exists():
                if not self.round(0.0) or self._stop.is_set():
                    break
        except (DamageError, ForkError) as error:
            _log.info("the binlog will be read again", error=error)
            self._learn(error, run)
        except SpoolError as error:  # a full disk
            if not error.transient:
                raise
        self.close()
        run.leave(self._spool, self._tracking.last)
        self.restarts += 1
        _log.info("mysqlbinlog ended", pid=run.child.pid, read=run.tailer.read_bytes)
        return Event.DONE

    def close(self) -> None:
        """Read no further."""
        self._read_before = self.read_totals
        run, self.run = self.run, None
        self._spool.reading = None
        if run is not None:
            run.tailer.close()
            self._spool.end(run.run)

    def _answer(self, ask: Callable[[Server], Answer]) -> Answer:
        """Ask the server, on a new connection: a name may lead elsewhere than it did before.

        Meanwhile uploads continue, and a stop ends the wait. Raises SourceError also if what they
        show makes the answer worthless.
        """
        doubt = self.memory.doubt

        def asked() -> Answer:
            with self._connect() as server:
                return ask(server)

        answer = unless(
            self._stop.is_set,
            asked,
            name="ask",
            meanwhile=lambda: self.work(_POLL_SECONDS),
        )
        if answer is None or self._stop.is_set():  # then nothing was compared to its end
            raise SourceError("not waited for the server's answer: stopping", transient=True)
        if self.memory.doubt is not doubt:
            raise SourceError(
                "while the source was asked, an upload showed that the histories part",
                hint="it is asked again",
                transient=True,
            )
        return answer

    def _ask(self) -> NextRun:
        known_end, doubt = self._tracking.end, self.memory.doubt
        try:
            next_run = self._answer(
                lambda server: self._resumption.next_run(server, known_end, doubt)
            )
        except UnloggedError as error:
            self._tracking.saw_no_binlog(error.uuid, self._watch.newest)
            raise
        self._tracking.known = known_end
        self.memory = self.memory.asked_at(known_end.read if known_end is not None else None)
        return next_run

    def _turn(self, next_run: NextRun) -> Track | None:
        """Continue as `next_run` says; the track that continues, None if a new one begins."""
        tracking, course = self._tracking, next_run.course
        goes_on = tracking.lineage is not None and tracking.lineage.id == _lineage_of(next_run)
        if tracking.lineage is not None and not goes_on:
            self.memory = replace(self.memory, accepted={})
        if isinstance(course, Begin):
            tracking.begin(next_run.facts.uuid, next_run.facts.flavour, course.parent)
            return None
        if not goes_on:
            tracking.resume(course.known_end)
        last = tracking.last
        if last is None or last.closed:
            return None
        if next_run.begin != last.name:
            tracking.abandon(last)
            return None
        if next_run.overlap is None:
            tracking.forget(last)
            tracking.known = course.known_end
            return None
        return last

    def _start(self, run: SpoolRun, next_run: NextRun, login: Login) -> Child:
        spool, server_id = self._spool, server_id_of(self._config)
        child = Child(
            next_run.tool,
            login,
            server_id=server_id,
            directory=run.directory,
            binlog=next_run.begin,
            position=next_run.position,
            tls=next_run.facts.tls,
            on_line=lambda line: _log.recurring("mysqlbinlog says", line=line),
        )
        _log.info(
            "streaming",
            source=spool.source,
            server=next_run.facts.uuid,
            version=next_run.facts.version,
            tls=next_run.facts.tls,
            binlog=next_run.begin,
            position=next_run.position,
            to=spool.target,
            mysqlbinlog=next_run.tool.path,
            pid=child.pid,
            server_id=server_id,
        )
        return child

    def _go_through(self) -> Event | None:
        """A round of a run. Raises why mysqlbinlog ended, once all that it wrote is read."""
        run = self.run
        assert run is not None  # noqa: S101 - `_begin` leads here
        timing, limit = self._config.timing, self._config.stream.stall_timeout
        ended = run.child.poll() is not None  # asked first: what it wrote before is read below
        is_quiet = time.monotonic() - self.read_at > _QUIET_AFTER_SECONDS
        wait = _QUIET_POLL_SECONDS if is_quiet else _POLL_SECONDS
        if is_quiet and not ended and self._uploads.done:
            self._doze(run)
            wait = 0.0
        read = self.round(0.0 if ended else wait)
        is_old = time.monotonic() - run.started > timing.longest_delay_seconds
        if self.memory.state is State.READING and (run.has_gained or is_old):
            self._happens(Event.GAINED)
        if ended and not read:
            self._writer.blame()
            raise run.child.failure()
        run.look_after(self._watch, limit, self.memory.patience)
        read_more = partial(self.round, 0.0)
        full = self.pressure.stops(run.child, run.tailer, run.known_bytes, read_more)
        return Event.FULL if full else None

    def _doze(self, run: Run) -> None:
        """Wait until mysqlbinlog has written something or ended, or it is time for a round."""
        until = time.monotonic() + _QUIET_ROUND_SECONDS
        while not run.tailer.has_more and run.child.poll() is None and time.monotonic() < until:
            if self._stop.wait(_QUIET_POLL_SECONDS):
                return

    def _confirm(self, run: Run) -> None:
        """See that the run's first binlog comes from the server that was asked, and follows.

        Before anything of it is taken in: no overlap, or only a short one, proves it.
        """
        next_run, course, track = run.next_run, run.next_run.course, run.tailer.current
        begin, received = run.received()
        self._answer(
            lambda server: prove(server, next_run.facts.uuid, next_run.begin, received, begin)
        )
        if track is None or not isinstance(course, GoOn) or course.again:
            return
        before, after = track.gtids_before(), course.known_end.gtids
        if before is not None and after is not None and before != after:
            raise ForkError(f"{track.name} begins after {before}, not after {after}")

    def _prove(self, run: Run) -> None:
        """See whether a run continues what is known, as far as it has come."""
        if self.memory.state is State.COMPARING and (event := run.shown) is not None:
            if event is Event.SAME:
                self._note(run)
            self._happens(event)
        waits = self.memory.state is State.CONFIRMING and not self._stop.is_set()
        if waits and run.can_be_confirmed:
            self._confirm(run)
            self._note(run)
            self._happens(Event.CONFIRMED)

    def _note(self, run: Run) -> None:
        """Note in the spool that a run is proved: a start may take what it has read.

        On a full disk it cannot, and the run ends: nothing more of it is read.
        """
        facts = replace(run.run.facts, lineage=_lineage_of(run.next_run))
        proved = replace(run.run, facts=facts)
        self._spool.note(proved)
        run.run = proved

    def _learn(self, error: Exception, run: Run | None) -> None:
        """What an end means for the next run, see `Memory.learned`; and for what was read.

        | error | what was read |
        |---|---|
        | `ElsewhereError` and its kinds | what is proved is uploaded, what waits for proof is \
forgotten |
        | `TakenError` | is kept |
        | `ForkError` | what the run read is neither uploaded nor kept |
        | damage after the known bytes came again | is kept; the binlog is read again, from its \
beginning if no run can continue it |
        | anything else | is kept |
        """
        before, seen = self.memory, run.seen if run is not None else None
        self.memory = before.learned(error, seen)
        if isinstance(error, DamageError | ForkError) and run is not None:
            run.is_over = True  # what comes after such a place is not read
        if isinstance(error, ForkError) and error.binlog:
            self._tracking.forget_from(BinlogName.parse(error.binlog))
        match error:
            case ElsewhereError():
                self._tracking.go_back()
            case TakenError():
                pass
            case ForkError() if run is not None:
                for track in run.fresh:
                    self._tracking.forget(track)
                last = self._tracking.last
                if last is None or not last.lies_in(run.run.directory):
                    self._spool.discard(run.run)
            case DamageError() if run is not None and seen is not None:
                if self.memory.accepted != before.accepted:
                    _log.error("the source's binlog is damaged: archived as it is", error,
                               binlog=seen.binlog, offset=error.offset,
                               hint="look at the source's disk, and take a new base backup: a "
                               "recovery cannot apply this event")  # fmt: skip
                current = run.tailer.current
                if current is not None and overlap_of(current) is None:
                    self._tracking.forget(current)

    def _before_asking(self) -> Event:
        """Before the source's history is compared with ours: all of ours into the bucket.

        What is not there could not be compared.
        """
        doubt = self.memory.doubt
        if doubt is not None and doubt.kind != "taken":
            self._tracking.known = self._tracking.end
            self.bring_in()
        return Event.DONE

    def bring_in(self) -> None:
        """Upload all that was read, unless `stop` is set: what the source lost is here alone."""
        last = self._tracking.last
        if last is not None and not last.closed:
            self._tracking.abandon(last)
        while not (self._tracking.done or self._stop.is_set()):
            self.work(_POLL_SECONDS)


def _lineage_of(next_run: NextRun) -> str | None:
    return next_run.course.known_end.lineage.id if isinstance(next_run.course, GoOn) else None


def _passes(error: BaseException) -> bool:
    """Whether waiting, or asking again, may help."""
    if isinstance(error, SpoolError):
        return error.transient or isinstance(error, DamageError)
    return isinstance(error, SourceError | ForkError)
