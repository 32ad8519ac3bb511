"""Runs mysqlbinlog, again and again: where to begin, whether it lives, what its end means.

Place in the flow: between the daemon's loop, whose round it calls, and one run's child and tailer.
Before each run `resume` says where to go on; while one runs the watch's answers are held against
what has been read.

Law: every end is followed by another begin, later each time that nothing came, until somebody says
stop or only the operator can mend it. A server that is slow, full or idle keeps its stream; one
that is silent, or another one, loses it.
"""

import random
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from queue import SimpleQueue
from typing import TypeVar

import tenacity

from binlog2s3.archive.parts import Grid
from binlog2s3.archive.writers import Position
from binlog2s3.binlog.names import BinlogName
from binlog2s3.binlog.scanner import MOST_ACCEPTED
from binlog2s3.config.timing import DEFAULT, Timing
from binlog2s3.config.values import Config
from binlog2s3.errors import (
    DamageError,
    ElsewhereError,
    ForkError,
    SourceError,
    SpoolError,
    StoreError,
)
from binlog2s3.log import Log
from binlog2s3.server.connection import Server, ServerFacts
from binlog2s3.server.login import resolve
from binlog2s3.server.mysqlbinlog import Child, derive_server_id
from binlog2s3.stream.continuation import Tip
from binlog2s3.stream.resume import Doubt, Heading, Pilot
from binlog2s3.stream.source_watch import Reached, Watch
from binlog2s3.stream.spool import Run, RunFacts, Spool
from binlog2s3.stream.spool_limits import Pressure
from binlog2s3.stream.start import tip_of
from binlog2s3.stream.tail import Tailer, Track, overlap_of
from binlog2s3.stream.tracking import Intake

T = TypeVar("T")
_log = Log("supervisor")
_POLL_SECONDS = 0.05
_BEHIND = 2
_REFUSALS = 3
_MOST_STALLS = 6


def delay(failures: int, timing: Timing) -> float:
    """Seconds until the next run, after so many in a row that brought nothing: jittered."""
    most = min(timing.longest_delay_seconds, timing.first_delay_seconds * 2.0**failures)
    return random.uniform(most / 2, most)  # noqa: S311 - no secret


def may_be_mended(error: BaseException) -> bool:
    """Whether a source may answer yet; not a server that is refused.

    What the operator must mend, as a password, is waited for too: the bucket has the source's
    history, and may be all there is of it.
    """
    return isinstance(error, SourceError) and not error.refused


def wait_for(
    ask: Callable[[], T],
    stop: threading.Event,
    tell: Callable[[BaseException], object] = lambda _: None,
    passes: Callable[[BaseException], bool] = may_be_mended,
    timing: Timing = DEFAULT,
) -> T:
    """Ask until there is an answer, at growing delays: the source, or the store.

    `tell` is called with each failure. Raises what does not pass, and the last failure at a stop.
    """

    def say(state: tenacity.RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome else None
        if error is not None:
            tell(error)
        hint = getattr(error, "hint", "")
        if isinstance(error, StoreError):
            _log.recurring("waiting for the store", error=error, hint=hint)
        else:
            _log.recurring("waiting for the source", error=error, hint=hint)

    retrying = tenacity.Retrying(
        retry=tenacity.retry_if_exception(passes),
        stop=tenacity.stop_when_event_set(stop),
        wait=lambda state: delay(state.attempt_number, timing),
        sleep=tenacity.sleep_using_event(stop),
        before_sleep=say,
        reraise=True,
    )
    return retrying(ask)


class Supervisor:
    """`supervise` returns when `stop` is set, and raises what only the operator can mend.

    `upload` brings in for at most so many seconds; `tip` is where the known history ends and
    `heading` where to go on from there, None if the source could not be asked yet.
    """

    def __init__(
        self,
        config: Config,
        *,
        target: str,
        spool: Spool,
        intake: Intake,
        pilot: Pilot,
        watch: Watch,
        upload: Callable[[float], None],
        blame: Callable[[], None],
        stop: threading.Event,
        tip: Tip | None,
        heading: Heading | None,
    ) -> None:
        self._config = config
        self._target = target
        self._spool = spool
        self._intake = intake
        self._pilot = pilot
        self._watch = watch
        self._upload = upload
        self._blame = blame
        self._stop = stop
        self._tip = tip
        self._heading = heading
        self._pressure = Pressure(config.spool_limits, spool, intake)
        self._grid = Grid(config.s3.part_size)
        self._login = lambda: resolve(config.mysql)
        self._server = Server(self._login)
        self._tailer: Tailer | None = None
        self._fresh: list[Track] = []
        self._unconfirmed: Heading | None = None
        self._doubt: Doubt | None = None
        self._damage: tuple[BinlogName, int, str] | None = None
        self._accepted: dict[BinlogName, set[int]] = {}  # where the source is damaged
        self._failures = 0
        self._refusals = 0
        self._stalls = 0
        self._at: tuple[BinlogName | None, int] | None = None
        self.reading = False
        self.restarts = 0
        self.child_pid: int | None = None
        self.last_error: tuple[datetime, str] | None = None
        self.read_at = time.monotonic()
        self._read_before = (0, 0)

    @property
    def paused(self) -> bool:
        """Whether nothing is read, for the spool has no room."""
        return self._pressure.paused

    @property
    def read_totals(self) -> tuple[int, int]:
        """Bytes that came from mysqlbinlog, and the whole transactions among them."""
        tailer, (read, transactions) = self._tailer, self._read_before
        if tailer is None:
            return read, transactions
        return read + tailer.read_bytes, transactions + tailer.read_transactions

    def supervise(self) -> None:
        """Run after run, until `stop` is set."""
        retrying = tenacity.Retrying(
            retry=tenacity.retry_if_exception(self._passes),
            stop=tenacity.stop_when_event_set(self._stop),
            wait=lambda _: delay(self._failures, self._config.timing),
            sleep=self.work,
            before_sleep=self._say,
            reraise=True,
        )
        try:
            while not self._stop.is_set():
                try:
                    retrying(self._run)
                except Exception as error:
                    if not (self._stop.is_set() and self._passes(error)):
                        raise
        finally:
            self._server.close()

    def work(self, seconds: float) -> None:
        """Bring in what is there, for so long or until `stop` is set."""
        until = time.monotonic() + seconds
        while not self._stop.is_set() and (left := until - time.monotonic()) > 0:
            try:
                self._judge()
            except ElsewhereError as error:
                self._go_back(error)
            self._upload(min(left, _POLL_SECONDS))

    def round(self, wait_seconds: float) -> bool:
        """Read a slice, judge, start requests, take outcomes; whether anything was read."""
        tailer = self._tailer
        if tailer is None:
            self._judge()
            self._upload(wait_seconds)
            return False
        before = tailer.place
        if self._unconfirmed is not None and self._stop.is_set():
            return False
        if tailer.current is not None:
            for offset in self._accepted.get(tailer.current.name, ()):
                tailer.current.scanner.accept(offset)
        read = bool(tailer.pump()) or tailer.place != before
        if read:
            self.read_at = time.monotonic()
        if self._unconfirmed is not None:
            if tailer.current is None or not tailer.current.begun:
                self._upload(0.0 if read else wait_seconds)
                return read
            self._confirm(self._unconfirmed, tailer.current)
            self._unconfirmed = None
        for track in tailer.take_new():
            self._fresh.append(track)
            self._intake.admit(track)
        self._judge()
        self._upload(0.0 if read else wait_seconds)
        return read

    def reached(self) -> Reached | None:
        """How far the run has come, once it has shown that it goes on with what is known."""
        tailer = self._tailer
        if tailer is None or not tailer.settled or tailer.current is None:
            return None
        return tailer.current.name, tailer.current.size

    @staticmethod
    def _passes(error: BaseException) -> bool:
        """Whether waiting, or asking again, may mend it."""
        if isinstance(error, SpoolError):
            return error.transient or isinstance(error, DamageError)
        return isinstance(error, SourceError | ForkError)

    def _say(self, state: tenacity.RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome else None
        seconds = state.next_action.sleep if state.next_action else 0.0
        self.last_error = (datetime.now(UTC), str(error))
        _log.recurring(
            "reading again",
            error=error,
            hint=getattr(error, "hint", ""),
            seconds=round(seconds, 1),
            failures=self._failures,
        )

    def _judge(self) -> None:
        listed = self._watch.listed() if self._watch.streams(self._intake.server_uuid) else {}
        self._intake.judge(listed, streaming=True)
        if self._intake.wants_list:
            self._intake.wants_list = False
            self._watch.list_again()

    def _run(self) -> None:
        """One run of mysqlbinlog. Returns where the spool has no room; raises how it ended."""
        self._pressure.relieve(self.work, self._stop)
        if self._stop.is_set():
            return
        self._failures += 1
        if self._doubt is not None:
            self._bring_in()
        heading, self._heading = self._heading or self._ask(), None
        track = self._turn(heading)
        run = self._begin(heading)
        self._fresh = []
        child = self._start(run, heading)
        self._tailer = tailer = Tailer(run, self._grid, overlap=heading.overlap, track=track)
        if heading.overlap is not None and track is None:
            self._spool.reading = run.directory / str(heading.begin)
        self._unconfirmed = heading if heading.overlap is None else None
        self._watch.follow(heading.facts.uuid, heading.listed)
        self._intake.follow(heading.listed)
        self.reading = True
        self.child_pid = child.pid
        try:
            self._loop(child, tailer, heading)
        except Exception as error:
            self._learn(error, run, tailer)
            raise
        finally:
            child.stop()
            if not self._stop.is_set():  # else the end reads on
                self._end_run(child, tailer, run)

    def _end_run(self, child: Child, tailer: Tailer, run: Run) -> None:
        try:
            while self._unconfirmed is None and run.directory.exists() and self.round(0.0):
                if self._stop.is_set():
                    break
        except (DamageError, ForkError) as error:
            _log.info("left to be read again", error=error)
        self.close()
        self._discard_if_unused(run)
        self._cut_torn_end(run)
        self.restarts += 1
        _log.info("mysqlbinlog ended", pid=child.pid, read=tailer.read_bytes)

    def _discard_if_unused(self, run: Run) -> None:
        """A run that brought nothing but what was known leaves nothing behind."""
        if not run.directory.exists():
            return
        last, here = self._intake.last, run.directory
        if last is not None and last.segments[-1].path.parent == here and not last.gained:
            last.segments.pop()
        of_run = [*self._fresh, *([last] if last is not None else [])]
        if not any(s.path.parent == here for track in of_run for s in track.segments):
            self._spool.discard(run)

    def _cut_torn_end(self, run: Run) -> None:
        """An event that has not come whole comes again: until then it would only take room."""
        last = self._intake.last
        if last is not None and (segment := last.segments[-1]).path.parent == run.directory:
            self._spool.cut(segment.path, segment.at + last.size - segment.begin)

    def close(self) -> None:
        """Read no further."""
        self._read_before = self.read_totals
        tailer, self._tailer = self._tailer, None
        self._spool.reading = None
        self.reading = False
        self.child_pid = None
        if tailer is not None:
            tailer.close()

    def _facts(self) -> ServerFacts:
        """Who answers. A silent server holds up neither what is brought in nor the end."""
        answers: SimpleQueue[ServerFacts | Exception] = SimpleQueue()

        def ask() -> None:
            try:
                answers.put(self._server.facts())
            except Exception as error:  # noqa: BLE001 - raised below
                answers.put(error)

        threading.Thread(target=ask, name="ask", daemon=True).start()
        while answers.empty():
            if self._stop.is_set():
                self._server = Server(self._login)  # closing the other one would wait for it
                raise SourceError("not waited for the server's answer: stopping", transient=True)
            self.work(_POLL_SECONDS)
        answer = answers.get()
        if isinstance(answer, Exception):
            raise answer
        return answer

    def _ask(self) -> Heading:
        self._facts()
        tip = self._where()
        if tip is not None and self._at != (tip.last, tip.size):
            self._at, self._refusals, self._stalls = (tip.last, tip.size), 0, 0
        heading = self._pilot.heading(self._server, tip, self._doubt)
        self._tip, self._doubt = tip, None
        return heading

    def _where(self) -> Tip | None:
        """Where the history ends that is known."""
        last = self._intake.last
        if self._intake.lineage is not None and last is not None:
            return tip_of(self._intake.lineage, last, closed=last.closed)
        return self._tip

    def _turn(self, heading: Heading) -> Track | None:
        """Go the way of the heading; the track that goes on, None where a new one begins."""
        intake, tip = self._intake, heading.tip
        if intake.lineage is not None and (tip is None or intake.lineage.id != tip.lineage.id):
            self._accepted.clear()
        if tip is None:
            self._tip = self._where()
            intake.begin(heading.facts.uuid, heading.facts.flavour, heading.parent)
            return None
        if intake.lineage is None or intake.lineage.id != tip.lineage.id:
            following = tip.last if tip.last is not None and not tip.closed else tip.following
            durable = Position(
                binlog=str(tip.last or tip.lineage.first_binlog),
                offset=tip.size,
                gtid_set=str(tip.gtids) if tip.gtids is not None else "",
            )
            intake.resume(tip.lineage, durable, following, described=True)
            self._tip = tip
        last = intake.last
        if last is None or last.closed:
            return None
        if heading.begin != last.name:
            intake.abandon(last)
            return None
        if heading.overlap is None:
            intake.forget(last)
            self._tip = tip
            return None
        return last

    def _begin(self, heading: Heading) -> Run:
        lineage = heading.tip.lineage.id if heading.tip is not None else None
        return self._spool.begin(
            RunFacts(
                source=self._config.stream.source,
                target=self._target,
                server_uuid=heading.facts.uuid,
                binlog=str(heading.begin),
                position=heading.position,
                lineage=lineage,
            )
        )

    def _start(self, run: Run, heading: Heading) -> Child:
        mysql, source = self._config.mysql, self._config.stream.source
        server_id = mysql.server_id or derive_server_id(f"{source} {self._target}")
        child = Child(
            heading.tool,
            resolve(mysql),
            server_id=server_id,
            directory=run.directory,
            binlog=heading.begin,
            position=heading.position,
            on_line=lambda line: _log.recurring("mysqlbinlog says", line=line),
        )
        _log.info(
            "streaming",
            source=source,
            server=heading.facts.uuid,
            version=heading.facts.version,
            tls=heading.facts.tls,
            binlog=heading.begin,
            position=heading.position,
            to=self._target,
            mysqlbinlog=heading.tool.path,
            pid=child.pid,
            server_id=server_id,
        )
        return child

    def _loop(self, child: Child, tailer: Tailer, heading: Heading) -> None:
        started = moved = time.monotonic()
        longest = self._config.timing.longest_delay_seconds
        known = heading.overlap.end - heading.overlap.begin if heading.overlap else 0
        ahead: float | None = None
        while not self._stop.is_set():
            ended = child.poll() is not None  # asked first: what it wrote before is read below
            bytes_before = tailer.read_bytes
            read = self.round(0.0 if ended else _POLL_SECONDS)
            now = time.monotonic()
            if tailer.read_bytes != bytes_before:
                moved = now
            if tailer.settled and self._unconfirmed is None and (
                self._advanced(tailer, heading) or now - started > longest
            ):  # fmt: skip
                self._failures = 0
            if ended and not read:
                self._blame()
                raise child.failure()
            ahead = self._look_after(tailer, moved, ahead, started)
            if self._pressure.stops(child, tailer, known, lambda: self.round(0.0)):
                return

    @staticmethod
    def _advanced(tailer: Tailer, heading: Heading) -> bool:
        """Whether a run has brought a whole event that was not known."""
        current, overlap = tailer.current, heading.overlap
        begin = (heading.begin, overlap.end if overlap is not None else 0)
        return current is not None and (current.name, current.size) > begin

    def _confirm(self, heading: Heading, track: Track) -> None:
        """See that the run's first binlog comes from the server that was asked, and follows.

        Before anything of it is taken in: there is no overlap that would prove it.

        Something between us may have led the questions and mysqlbinlog to different servers.
        """
        self._server.close()
        uuid, form = self._facts().uuid, track.scanner.formats[0]
        there = self._server.first_event(track.name)
        if uuid != heading.facts.uuid or there != (form.server_id, form.offset + form.size):
            raise SourceError(
                f"another server answers under this address: {uuid}, not {heading.facts.uuid}, or "
                f"its {track.name} is another one",
                hint="a proxy or a fail-over; it is asked again",
                transient=True,
            )
        before, tip = track.gtids_before(), heading.tip
        if tip is None or heading.begin != tip.following:
            return
        if before is not None and tip.gtids is not None and before != tip.gtids:
            raise ForkError(f"{track.name} begins after {before}, not after {tip.gtids}")

    def _look_after(
        self, tailer: Tailer, moved: float, ahead: float | None, started: float
    ) -> float | None:
        """Hold the watch's answers against what was read; since when the server is ahead of us.

        Raises how the run has to end.
        """
        sight, limit, now = self._watch.sight, self._config.stream.stall_timeout, time.monotonic()
        if sight.stranger:
            raise SourceError(
                f"another server answers under this address: {sight.stranger}",
                hint="a proxy or a fail-over; it is asked again",
                transient=True,
            )
        if sight.behind >= _BEHIND:
            raise ElsewhereError("the server stands before what was read from it")
        heard = max(self._watch.heard_at, moved, started)
        if now - heard > limit:
            raise SourceError(
                f"no answer from the server for {now - heard:.0f} s",
                hint="it hangs, or the way to it is cut; --stall-timeout says how long to wait",
                transient=True,
            )
        current, at = tailer.current, sight.position
        here = (current.name, current.scanner.position) if current is not None else None
        if tailer.settled and (at is None or (here and (at.binlog, at.offset) <= here)):
            return None
        if at is None and sight.error is not None:
            return None
        ahead = ahead or now
        if now - max(ahead, moved) > limit * 2 ** min(self._stalls, _MOST_STALLS):
            self._stalls += 1
            raise SourceError(
                f"the stream stands still while the server goes on, for {now - moved:.0f} s",
                hint="the connection is dead, or one very large event is on its way; "
                "--stall-timeout says how long to wait",
                transient=True,
            )
        return ahead

    def _learn(self, error: Exception, run: Run, tailer: Tailer) -> None:
        """What an end means for the next begin."""
        if isinstance(error, DamageError | ForkError):
            self.close()  # what comes behind such a place is not read
        if isinstance(error, ElsewhereError):
            self._go_back(error)
        elif isinstance(error, ForkError):
            self._doubt = Doubt(why=str(error))
            self._forget_run(run)
        elif isinstance(error, DamageError):
            self._learn_damage(error, tailer)
        elif isinstance(error, SourceError) and error.unservable:
            self._refused(str(error))

    def _learn_damage(self, error: DamageError, tailer: Tailer) -> None:
        """What the source serves twice in the same way is how the source has it."""
        track = tailer.current
        if track is None or not tailer.settled:
            self._refused(str(error))
            return
        name = track.name
        seen = (name, error.offset, str(error).rpartition(": ")[2])
        if not track.scanner.formats:  # not even what the binlog begins with can be read
            if seen == self._damage:
                self._doubt = Doubt(why=str(error), refused=True, unreadable=name)
        elif (
            error.offset in (accepted := self._accepted.get(name, set()))
            or len(accepted) >= MOST_ACCEPTED
        ):
            self._refused(str(error))
        elif seen == self._damage:
            self._accepted.setdefault(name, set()).add(error.offset)
            _log.error("the source's binlog is damaged: archived as it is", error,
                       binlog=name, offset=error.offset,
                       hint="look at the source's disk, and take a new base backup: a recovery "
                       "cannot apply this event")  # fmt: skip
        self._damage = seen
        if overlap_of(track) is None:
            self._intake.forget(track)

    def _refused(self, why: str) -> None:
        """The source does not give what lies at the place where we stand."""
        self._refusals += 1
        if self._refusals > 1:
            self._doubt = Doubt(why=why, refused=self._refusals >= _REFUSALS)

    def _go_back(self, error: ElsewhereError) -> None:
        """Read no further; what was read and is proved may be here alone, and is brought in."""
        self._doubt = Doubt(why=str(error))
        self.close()
        lineage = self._intake.lineage
        for track in self._intake.go_back():
            if lineage is not None:
                self._spool.release(track.name, lineage.id)

    def _forget_run(self, run: Run) -> None:
        """What a run has brought that is of another history is neither uploaded nor kept."""
        for track in self._fresh:
            self._intake.forget(track)
        last = self._intake.last
        if last is None or all(s.path.parent != run.directory for s in last.segments):
            self._spool.discard(run)

    def _bring_in(self) -> None:
        """Before the source's history is compared with ours: all of ours into the bucket.

        What is not there could not be compared, and what the source no longer has is here alone.
        """
        self._tip = self._where()
        last = self._intake.last
        if last is not None and not last.closed and self._intake.lineage is not None:
            self._intake.abandon(last)
        while not (self._intake.done or self._stop.is_set()):
            self.work(_POLL_SECONDS)
