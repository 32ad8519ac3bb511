"""Runs mysqlbinlog, again and again: where to begin, whether it lives, what its end means.

Law: after every end comes another run, later each time that nothing new came, until `stop` is set
or only the operator can help. A server that is slow, full or idle keeps its stream; a server that
is silent, or another one, loses it.

| state | what happens | leads to |
|---|---|---|
| between two runs | waits, makes room in the spool, asks the source where to continue | a run |
| a run, in a `RunState` | reads, and compares with what the watch heard | its end: an error, or a \
full spool |
| after a run | reads the rest, tidies the spool; `lessons.judge` says what the end means | \
between two runs |

Uploads go on in each state. An error means the same in all of them: what it teaches is one value,
`lessons.Lessons`, and a run ends with it. Nothing else is remembered between two runs but where the
known history ends (`Intake.end`). The source is asked by a thread of its own, for which the loop
does not wait.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import TypeVar

from binlog2s3.archive.parts import Grid
from binlog2s3.binlog.names import BinlogName, FilePosition
from binlog2s3.config.values import Config
from binlog2s3.errors import (
    DamageError,
    ForkError,
    SourceError,
    SpoolError,
    UnloggedError,
)
from binlog2s3.log import Log
from binlog2s3.server.connection import Server
from binlog2s3.server.login import Login, resolve
from binlog2s3.server.mysqlbinlog import Child, derive_server_id
from binlog2s3.stream.compare import prove
from binlog2s3.stream.lessons import EndAction, Lessons, judge
from binlog2s3.stream.live_run import LiveRun, RunState
from binlog2s3.stream.resume import Heading, Pilot
from binlog2s3.stream.retry import delay, unless
from binlog2s3.stream.source_watch import Watch
from binlog2s3.stream.spool import RunFacts, Spool, SpoolRun
from binlog2s3.stream.spool_limits import Pressure
from binlog2s3.stream.start import PROBE
from binlog2s3.stream.tail import Tailer, Track, overlap_of
from binlog2s3.stream.tracking import Intake
from binlog2s3.stream.uploader import Uploader
from binlog2s3.stream.writer import Writer

Answer = TypeVar("Answer")

_log = Log("supervisor")
_POLL_SECONDS = 0.05
_QUIET_AFTER_SECONDS, _QUIET_POLL_SECONDS = 2.0, 0.25  # an idle source costs little
_QUIET_ROUND_SECONDS = 1.0


class Supervisor:
    """`supervise` returns when `stop` is set, and raises what only the operator can fix.

    `heading` says where to continue, None if the source could not be asked yet. `connect` makes the
    connection for one question. `run` is the run that is read, None between two runs.
    """

    def __init__(
        self,
        config: Config,
        *,
        spool: Spool,
        intake: Intake,
        uploads: Uploader,
        writer: Writer,
        pilot: Pilot,
        watch: Watch,
        connect: Callable[[], Server],
        stop: threading.Event,
        heading: Heading | None,
    ) -> None:
        self._config = config
        self._spool = spool
        self._intake = intake
        self._uploads = uploads
        self._writer = writer
        self._pilot = pilot
        self._watch = watch
        self._connect = connect
        self._stop = stop
        self._heading = heading
        self._grid = Grid(config.s3.part_size)
        self._lessons = Lessons()
        self._read_before = (0, 0)
        self.pressure = Pressure(config.spool_limits, spool, intake, uploads)
        self.run: LiveRun | None = None
        self.restarts = 0
        self.last_error: tuple[datetime, str] | None = None
        self.read_at = time.monotonic()

    @property
    def is_running(self) -> bool:
        """Whether mysqlbinlog runs. After runs that brought nothing, only if this one lasts.

        A source that refuses each run at the same place is not read, however often one begins.
        Called by any thread.
        """
        run, lessons = self.run, self._lessons
        if run is None:
            return False
        soon = self._config.timing.soon_seconds
        return lessons.failures <= 1 or time.monotonic() - run.started >= soon

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
        while not self._stop.is_set():
            try:
                self._run()
            except Exception as error:
                if not _passes(error):
                    raise
                if not self._stop.is_set():
                    self._rest(error)

    def work(self, seconds: float) -> None:
        """Bring in what is there, for so long or until `stop` is set."""
        until = time.monotonic() + seconds
        while not self._stop.is_set() and (left := until - time.monotonic()) > 0:
            self._go_on(min(left, _POLL_SECONDS))

    def round(self, wait_seconds: float) -> bool:
        """Read a slice, judge, start requests, take outcomes; whether anything was read."""
        run, read = self.run, False
        if run is not None:
            if run.state is RunState.CONFIRMING and self._stop.is_set():
                return False
            self._believe(run)
            read = run.read(self._lessons.accepted_in)
            if read:
                self.read_at = time.monotonic()
            if run.state is RunState.CONFIRMING and run.can_be_proved:
                self._confirm(run)
                run.state = RunState.READING
            self._believe(run)
            for new in run.take_new():
                self._intake.admit(new)
        self._step(0.0 if read else wait_seconds)
        return read

    def reached(self) -> FilePosition | None:
        """How far the run has come, once it has shown that it continues what is known.

        Called by any thread.
        """
        run = self.run
        return run.reached() if run is not None else None

    def _rest(self, error: Exception) -> None:
        """Wait before the next run: the longer, the more runs in a row have brought nothing."""
        seconds = delay(self._lessons.failures, self._config.timing)
        self.last_error = (datetime.now(UTC), str(error))
        _log.recurring(
            "reading again",
            error=error,
            hint=getattr(error, "hint", ""),
            again_in_seconds=round(seconds, 1),
            failures=self._lessons.failures,
        )
        self.work(seconds)

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
        if self.run is None or self.run.state is not RunState.CONFIRMING:
            streams = self._watch.streams(self._intake.server_uuid)
            if self._intake.judge(self._watch.listed() if streams else {}, streaming=True):
                self._watch.list_again()
        self._uploads.step(wait_seconds)

    def _run(self) -> None:
        """One run of mysqlbinlog. Returns if the spool has no room; raises how it ended."""
        self.pressure.relieve(self.work, self._stop)
        if self._stop.is_set():
            return
        self._lessons = replace(self._lessons, failures=self._lessons.failures + 1)
        if self._lessons.doubt is not None and not self._lessons.doubt.taken:
            self._bring_in()
        given, self._heading = self._heading, None
        heading = given if given is not None and self._lessons.doubt is None else self._ask()
        self.pressure.refuse(heading.overlap)
        login = self._answer(lambda _: resolve(self._config.mysql))
        self.run = run = self._begin(heading, login, self._turn(heading))
        try:
            self._loop(run)
        except Exception as error:
            self._learn(error, run)
            raise
        finally:
            run.child.stop()
            if not self._stop.is_set():  # else the end reads on
                self._end(run)

    def _begin(self, heading: Heading, login: Login, track: Track | None) -> LiveRun:
        """Start mysqlbinlog. `track` continues if it is given."""
        facts = RunFacts(
            source=self._config.stream.source,
            target=self._config.target,
            server_uuid=heading.facts.uuid,
            binlog=str(heading.begin),
            position=heading.position,
            lineage=PROBE,  # until it is proved
        )
        directory, child = self._spool.started(facts, lambda run: self._start(run, heading, login))
        tailer = Tailer(directory, self._grid, overlap=heading.overlap, track=track)
        if heading.overlap is not None and track is None:
            self._spool.reading = directory.directory / str(heading.begin)
        self._watch.follow(heading.facts.uuid, heading.listed)
        self._intake.follow(
            heading.listed,
            heading.leaves_out,
            heading.time_zone,
            heading.started_at,
            heading.gtids_outside,
        )
        return LiveRun(directory, heading, child, tailer)

    def _end(self, run: LiveRun) -> None:
        """Read what is left of a run whose mysqlbinlog has ended, and tidy up."""
        try:
            while run.state is not RunState.CONFIRMING and run.run.directory.exists():
                if not self.round(0.0) or self._stop.is_set():
                    break
        except (DamageError, ForkError) as error:
            _log.info("the binlog will be read again", error=error)
            self._learn(error, run)
        except SpoolError as error:  # of `_believe`
            if not error.transient:
                raise
        self.close()
        run.leave(self._spool, self._intake.last)
        self.restarts += 1
        _log.info("mysqlbinlog ended", pid=run.child.pid, read=run.tailer.read_bytes)

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
        doubt = self._lessons.doubt

        def asked() -> Answer:
            with self._connect() as server:
                return ask(server)

        found = unless(
            self._stop.is_set,
            asked,
            name="ask",
            meanwhile=lambda: self.work(_POLL_SECONDS),
        )
        if found is None or self._stop.is_set():  # then nothing was compared to its end
            raise SourceError("not waited for the server's answer: stopping", transient=True)
        if self._lessons.doubt is not doubt:
            raise SourceError(
                "while the source was asked, an upload showed that the histories part",
                hint="it is asked again",
                transient=True,
            )
        return found

    def _ask(self) -> Heading:
        tip, doubt = self._intake.end, self._lessons.doubt
        try:
            heading = self._answer(lambda server: self._pilot.heading(server, tip, doubt))
        except UnloggedError as error:
            self._intake.saw_no_binlog(error.uuid, self._watch.newest)
            raise
        self._intake.known = tip
        self._lessons = self._lessons.asked_at(tip.read if tip is not None else None)
        return heading

    def _turn(self, heading: Heading) -> Track | None:
        """Continue as `heading` says; the track that continues, None if a new one begins."""
        intake, tip = self._intake, heading.tip
        if intake.lineage is not None and (tip is None or intake.lineage.id != tip.lineage.id):
            self._lessons = replace(self._lessons, accepted={})
        if tip is None:
            intake.begin(heading.facts.uuid, heading.facts.flavour, heading.parent)
            return None
        if intake.lineage is None or intake.lineage.id != tip.lineage.id:
            intake.resume_after(tip)
        last = intake.last
        if last is None or last.closed:
            return None
        if heading.begin != last.name:
            intake.abandon(last)
            return None
        if heading.overlap is None:
            intake.forget(last)
            intake.known = tip
            return None
        return last

    def _start(self, run: SpoolRun, heading: Heading, login: Login) -> Child:
        mysql, source = self._config.mysql, self._config.stream.source
        server_id = mysql.server_id or derive_server_id(f"{source} {self._config.target}")
        child = Child(
            heading.tool,
            login,
            server_id=server_id,
            directory=run.directory,
            binlog=heading.begin,
            position=heading.position,
            tls=heading.facts.tls,
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
            to=self._config.target,
            mysqlbinlog=heading.tool.path,
            pid=child.pid,
            server_id=server_id,
        )
        return child

    def _loop(self, run: LiveRun) -> None:
        """Read until mysqlbinlog ends, which is raised, or the spool has no room."""
        timing, limit = self._config.timing, self._config.stream.stall_timeout
        while not self._stop.is_set():
            ended = run.child.poll() is not None  # asked first: what it wrote before is read below
            is_quiet = time.monotonic() - self.read_at > _QUIET_AFTER_SECONDS
            wait = _QUIET_POLL_SECONDS if is_quiet else _POLL_SECONDS
            if is_quiet and not ended and self._uploads.done:
                self._doze(run)
                wait = 0.0
            read = self.round(0.0 if ended else wait)
            is_old = time.monotonic() - run.started > timing.longest_delay_seconds
            if run.state is RunState.READING and (run.has_gained or is_old):
                self._lessons = replace(self._lessons, failures=0)
            if ended and not read:
                self._writer.blame()
                raise run.child.failure()
            run.look_after(self._watch, limit, self._lessons.patience)
            read_more = partial(self.round, 0.0)
            if self.pressure.stops(run.child, run.tailer, run.known_bytes, read_more):
                return

    def _doze(self, run: LiveRun) -> None:
        """Wait until mysqlbinlog has written something, or it is time for a round."""
        until = time.monotonic() + _QUIET_ROUND_SECONDS
        while not run.tailer.has_more and time.monotonic() < until:
            if self._stop.wait(_QUIET_POLL_SECONDS):
                return

    def _confirm(self, run: LiveRun) -> None:
        """See that the run's first binlog comes from the server that was asked, and follows.

        Before anything of it is taken in: no overlap, or only a short one, proves it.
        """
        heading, tip, track = run.heading, run.heading.tip, run.tailer.current
        begin, received = run.received()
        self._answer(
            lambda server: prove(server, heading.facts.uuid, heading.begin, received, begin)
        )
        if track is None or tip is None or heading.begin != tip.following:
            return
        before = track.gtids_before()
        if before is not None and tip.gtids is not None and before != tip.gtids:
            raise ForkError(f"{track.name} begins after {before}, not after {tip.gtids}")

    def _believe(self, run: LiveRun) -> None:
        """Note in the spool that a run is proved: a start may take what it has read.

        On a full disk it cannot, and the run ends: nothing more of it is read.
        """
        if run.state is not RunState.READING or run.run.facts.lineage != PROBE:
            return
        facts = replace(run.run.facts, lineage=_lineage_of(run.heading))
        proved = replace(run.run, facts=facts)
        self._spool.note(proved)
        run.run = proved

    def _learn(self, error: Exception, run: LiveRun | None) -> None:
        """What an end means for the next run, and for what was read."""
        self._lessons, verdict = judge(self._lessons, error, run.seen if run is not None else None)
        if isinstance(error, DamageError | ForkError):
            self.close()  # what comes after such a place is not read
        if isinstance(error, ForkError) and error.binlog:
            self._intake.forget_from(BinlogName.parse(error.binlog))
        if verdict is EndAction.GO_BACK:
            self._intake.go_back()
        elif run is None:
            return
        elif verdict is EndAction.FORGET_RUN:
            for track in run.fresh:
                self._intake.forget(track)
            last = self._intake.last
            if last is None or not last.lies_in(run.run.directory):
                self._spool.discard(run.run)
        elif verdict is not EndAction.KEEP and (current := run.tailer.current) is not None:
            if verdict is EndAction.ACCEPT and isinstance(error, DamageError):
                _log.error("the source's binlog is damaged: archived as it is", error,
                           binlog=current.name, offset=error.offset,
                           hint="look at the source's disk, and take a new base backup: a recovery "
                           "cannot apply this event")  # fmt: skip
            if overlap_of(current) is None:
                self._intake.forget(current)

    def _bring_in(self) -> None:
        """Before the source's history is compared with ours: all of ours into the bucket.

        What is not there could not be compared, and what the source no longer has is here alone.
        """
        self._intake.known = self._intake.end
        last = self._intake.last
        if last is not None and not last.closed and self._intake.lineage is not None:
            self._intake.abandon(last)
        while not (self._intake.done or self._stop.is_set()):
            self.work(_POLL_SECONDS)


def _lineage_of(heading: Heading) -> str | None:
    return heading.tip.lineage.id if heading.tip is not None else None


def _passes(error: BaseException) -> bool:
    """Whether waiting, or asking again, may help."""
    if isinstance(error, SpoolError):
        return error.transient or isinstance(error, DamageError)
    return isinstance(error, SourceError | ForkError)
