"""Keeps the spool within its limits: when reading has to wait, and what makes room meanwhile.

Place in the flow: the supervisor asks it while a run of mysqlbinlog reads, and has it make room
before the next one; the uploaders give back what the bucket has.

Law: nothing is thrown away for want of room. The source keeps its binlogs; what is here goes into
the bucket first. One event that is larger than the limit passes all the same.
"""

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from binlog2s3.config.values import SpoolLimits
from binlog2s3.log import Log
from binlog2s3.server.mysqlbinlog import Child
from binlog2s3.stream.punch import PunchUnsupportedError
from binlog2s3.stream.spool import Floor, Room, Spool
from binlog2s3.stream.tail import Tailer
from binlog2s3.stream.tracking import Intake

_log = Log("pressure")
_LOOK_SECONDS, _LONGEST_LOOK_SECONDS, _LOOK_SHARE = 0.02, 0.5, 20
_WAIT_SECONDS = 0.1
_STUCK_SECONDS = 0.4
_SLICE = 4 << 20
_FULL = 1 << 20


class Pressure:
    """The limits of one spool, and whether they are reached.

    `paused`: nothing is read until there is room.
    """

    def __init__(self, limits: SpoolLimits, spool: Spool, intake: Intake) -> None:
        self._limits = _above_full(limits)
        self._spool = spool
        self._intake = intake
        self._excess = 0  # bytes of the spool that cannot be freed, and so do not count
        self._look_at = 0.0
        self.paused = False

    def stops(self, child: Child, tailer: Tailer, known: int, read: Callable[[], bool]) -> bool:
        """Whether mysqlbinlog has to end now, for the spool has no room; looks when it is time.

        What comes again (`known` bytes), and an event that is not whole, do not count. What
        mysqlbinlog was quicker to write than we to read may be of that kind: it is read first, a
        slice with each `read`, while mysqlbinlog stands still.
        """
        begun = time.monotonic()
        if begun < self._look_at:
            return False
        room = self._room(tailer, known)
        took = time.monotonic() - begun  # more where many binlogs wait in the spool
        if room.short_of() and not room.lacks_free_space:
            child.hold(held=True)
            for _ in range(room.used // _SLICE + 1):
                if not read():
                    break
            room = self._room(tailer, known)
            child.hold(held=False)
        if why := room.short_of():
            self._pause(why)
            return True
        # counted from here: the time in which mysqlbinlog was held is not a look's cost
        pause = max(_LOOK_SECONDS, min(_LOOK_SHARE * took, _LONGEST_LOOK_SECONDS))
        self._look_at = time.monotonic() + pause
        return False

    def relieve(self, work: Callable[[float], object], stop: threading.Event) -> None:
        """Have the spool emptied into the bucket while it has no room; `work` does it."""
        self._excess, self._look_at = 0, 0.0
        room = self._spool.room(self._limits)
        if not self.paused and not (why := room.short_of()):
            return
        if not self.paused:
            self._pause(why)
        self._give_overlap_back()
        stuck = 0.0
        while not stop.is_set():
            self._press(pressed=True)
            work(_WAIT_SECONDS)
            room = self._spool.room(self._limits)
            if room.has_room_again():
                break
            stuck = stuck + _WAIT_SECONDS if self._intake.done else 0.0
            if stuck > _STUCK_SECONDS and not room.lacks_free_space:
                _log.warning("the spool needs more than it may", used=room.used)
                self._excess = room.used
                break
        self._press(pressed=False)
        self.paused = False
        if not stop.is_set():
            _log.info("resumed: the spool has room", used=room.used, free=room.free)

    def _pause(self, why: str) -> None:
        _log.warning("paused: the spool has no room", why=why, hint="it goes on when there is room")
        self.paused = True

    def _room(self, tailer: Tailer, known: int) -> Room:
        current = tailer.current
        torn = current.scanner.position - current.size if current is not None else 0
        return self._spool.room(self._limits, passing=torn + known + self._excess)

    def _give_overlap_back(self) -> None:
        """What the last run has brought again is in an earlier one too, or in the bucket."""
        last = self._intake.last
        if last is None or len(last.segments) == 1:
            return
        segment = last.segments[-1]
        if segment.at > _SLICE and last.floor <= segment.begin:
            with suppress(PunchUnsupportedError):
                self._spool.give_back(segment.path, Floor(offset=segment.begin, at=segment.at))

    def _press(self, *, pressed: bool) -> None:
        for uploader in self._intake.uploaders():
            uploader.press(pressed=pressed)


def _above_full(limits: SpoolLimits) -> SpoolLimits:
    """On a full disk nothing goes on, whatever was asked for: then too room must be made."""
    least = limits.min_free_bytes
    return limits if least is None else replace(limits, min_free_bytes=max(least, _FULL))
