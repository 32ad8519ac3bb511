"""One run of mysqlbinlog while it is read.

Law: nothing of a run is taken in before it has shown that it continues what is known, see
`RunState`. Until then a start does not take it from the spool either, if we die meanwhile.
"""

import time
from collections.abc import Callable, Collection
from enum import Enum, auto
from pathlib import Path

from binlog2s3.binlog.names import BinlogName, FilePosition
from binlog2s3.errors import ElsewhereError, SourceError
from binlog2s3.formatting import duration_text
from binlog2s3.server.dump import MOST_BYTES
from binlog2s3.server.mysqlbinlog import Child
from binlog2s3.stream.lessons import BeingRead, StalledError
from binlog2s3.stream.resume import Heading
from binlog2s3.stream.source_watch import Watch
from binlog2s3.stream.spool import Spool, SpoolRun, as_spool_error
from binlog2s3.stream.tail import Tailer, Track

_BEHIND = 2


class RunState(Enum):
    """How far a run has shown that it continues what is known.

    | state | what happens | leads to |
    |---|---|---|
    | `CONFIRMING` | the first events are read, nothing is taken in | the server is asked on a new \
connection, and sends the same bytes on it: `READING` |
    | `COMPARING` | bytes that are known come again and are compared | all are equal: `READING`; \
`CONFIRMING` if they are among the binlog's first ones, which may be alike in two histories |
    | `READING` | what comes is taken in | the end of the run |
    """

    CONFIRMING = auto()
    COMPARING = auto()
    READING = auto()


class LiveRun:
    """A run: its directory in the spool, its process, and the binlogs that began in it.

    Times are of the monotonic clock: `started`; `moved`, when the last bytes came; `ahead`, since
    when the server is known to have more than was read, None while it has not.
    """

    def __init__(self, run: SpoolRun, heading: Heading, child: Child, tailer: Tailer) -> None:
        self.run = run
        self.heading = heading
        self.child = child
        self.tailer = tailer
        self.state = RunState.CONFIRMING if heading.overlap is None else RunState.COMPARING
        self.fresh: list[Track] = []  # that began in this run and are in the spool
        self.started = self.moved = time.monotonic()
        self.ahead: float | None = None

    @property
    def known_bytes(self) -> int:
        """How many bytes this run sends again."""
        overlap = self.heading.overlap
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
        current, overlap = self.tailer.current, self.heading.overlap
        begin = FilePosition(self.heading.begin, overlap.end if overlap is not None else 0)
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
        place, count = tailer.place, tailer.read_bytes
        if tailer.current is not None:
            for offset in accepted(tailer.current.name):
                tailer.current.scanner.accept(offset)
        read = bool(tailer.pump()) or tailer.place != place
        if tailer.read_bytes != count:
            self.moved = time.monotonic()
        overlap = self.heading.overlap
        if self.state is RunState.COMPARING and tailer.settled and overlap is not None:
            short = overlap.begin < MOST_BYTES
            self.state = RunState.CONFIRMING if short else RunState.READING
        return read

    @property
    def can_be_proved(self) -> bool:
        """Whether enough has come of the first binlog to ask the server for the same bytes."""
        track = self.tailer.current
        if self.heading.overlap is not None:
            return self.tailer.settled
        return track is not None and track.begun

    def received(self) -> tuple[int, bytes]:
        """What has come of the first MOST_BYTES of the first binlog, and from which offset on."""
        name = self.heading.begin
        begin, at = self.run.begin_of(name) or (0, 0)
        path = self.run.directory / str(name)
        with as_spool_error(path), path.open("rb") as file:
            file.seek(at)
            return begin, file.read(max(0, MOST_BYTES - begin))

    def take_new(self) -> list[Track]:
        """The binlogs that began since the last call; none before this run is confirmed."""
        if self.state is RunState.CONFIRMING:
            return []
        new = self.tailer.take_new()
        if new:
            # A run may last for months: what has left the spool is forgotten, but for the binlog
            # that was handed on last, and the one that is open.
            older, newest = self.fresh[:-2], self.fresh[-2:]
            self.fresh = [track for track in older if track.is_there] + newest + new
        return new

    def look_after(self, watch: Watch, limit_seconds: float, patience: int) -> None:
        """Compare what the watch has heard with what was read.

        Raises SourceError if the server is silent or another one, StalledError if the server goes
        on and nothing comes for `patience` times the limit, ElsewhereError if the server is before
        what was read from it.
        """
        sight, now = watch.sight, time.monotonic()
        if sight.stranger:
            raise SourceError(
                f"another server answers under this address: {sight.stranger}",
                hint="a proxy or a fail-over; it is asked again",
                transient=True,
            )
        if sight.behind >= _BEHIND:
            raise ElsewhereError("the server's position is before what was read from it")
        heard = max(watch.heard_at, self.moved, self.started)
        if now - heard > limit_seconds:
            raise SourceError(
                f"no answer from the server for {duration_text(now - heard)}",
                hint="it hangs, or the network is cut; --stall-timeout says how long to wait",
                transient=True,
            )
        current, at = self.tailer.current, sight.position
        here = FilePosition(current.name, current.scanner.position) if current is not None else None
        has_all = here is not None and at is not None and at.place <= here
        if (self.tailer.settled and (at is None or has_all)) or (
            at is None and sight.error is not None
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
        here = self.run.directory
        if here.exists():
            if last is not None and _is_in(last, here) and not last.gained:
                last.segments = last.segments[:-1]
            tracks = [*self.fresh, *([last] if last is not None else [])]
            if not any(track.lies_in(here) for track in tracks):
                spool.discard(self.run)
        if last is not None and _is_in(last, here):
            segment = last.segments[-1]
            spool.cut(segment.path, segment.at + last.size - segment.begin)


def _is_in(track: Track, directory: Path) -> bool:
    """Whether its last bytes are in this directory."""
    return track.path is not None and track.path.parent == directory
