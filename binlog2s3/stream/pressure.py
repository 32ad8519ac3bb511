"""Keeps the spool within its limits: pauses reading, and frees space meanwhile.

Law: nothing is deleted that the bucket does not have. The source keeps its binlogs meanwhile. A
single event may exceed the limit.
"""

import threading
import time
from collections.abc import Callable

from binlog2s3.errors import SpoolError
from binlog2s3.log import Log
from binlog2s3.server.mysqlbinlog import Child
from binlog2s3.stream.spool import Room, Spool
from binlog2s3.stream.tail import Overlap, Tailer
from binlog2s3.stream.tracking import Tracking
from binlog2s3.stream.uploader import Uploader

_log = Log("pressure")
_LOOK_SECONDS, _LONGEST_LOOK_SECONDS, _LOOK_SHARE = 0.02, 0.5, 20
_STATUS_SECONDS = 1.0
_WAIT_SECONDS = 0.1
_STUCK_SECONDS = 0.4
_SLICE = 4 << 20


class Pressure:
    """Whether the limits of one spool are reached.

    `paused`: nothing is read until space is free. `room`: what was measured last, None if the spool
    could never be measured.
    """

    def __init__(self, spool: Spool, tracking: Tracking, uploads: Uploader) -> None:
        self._spool = spool
        self._tracking = tracking
        self._uploads = uploads
        self._excess = 0  # bytes of the spool that cannot be freed, and so do not count
        self._look_at = 0.0
        self.paused = False
        self.room: Room | None = None

    def look(self) -> None:
        """Measure the spool for the status, unless a run did lately. An error is no error."""
        if time.monotonic() >= self._look_at + _STATUS_SECONDS:
            try:
                self._measure()
            except SpoolError as error:
                _log.debug("spool not measured", error=error)
            self._look_at = time.monotonic()

    def stops(self, child: Child, tailer: Tailer, known: int, read: Callable[[], bool]) -> bool:
        """Whether mysqlbinlog has to end now because the spool is full. Looks at intervals.

        The `known` bytes that come again, and an incomplete event, do not count. Bytes that are
        not read yet may be such bytes: they are read first, a slice with each `read`, while
        mysqlbinlog is stopped.
        """
        begun = time.monotonic()
        if begun < self._look_at:
            return False
        room = self._room(tailer, known)
        took = time.monotonic() - begun  # longer if many binlogs are in the spool
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
        # from now on: the time for which mysqlbinlog was held is not the cost of a look
        pause = max(_LOOK_SECONDS, min(_LOOK_SHARE * took, _LONGEST_LOOK_SECONDS))
        self._look_at = time.monotonic() + pause
        return False

    def refuse(self, overlap: Overlap | None) -> None:
        """Raise SpoolError if what a run sends again does not fit on the disk: it would never end.

        That is little, unless the binlog is larger than 4 GiB. It is transient: there may be space
        later.
        """
        again = overlap.end - overlap.begin if overlap is not None else 0
        room = self._measure()
        lacking = again + room.min_free - room.free
        if overlap is not None and again > _SLICE and lacking > 0:
            raise SpoolError(
                f"the source sends {again} bytes of {overlap.binlog} again, for which the spool's "
                f"file system lacks {lacking}",
                hint="free that much there, or --spool on a larger one: mysqlbinlog takes no "
                "position of 4 GiB or more",
                transient=True,
            )

    def relieve(self, work: Callable[[float], object], stop: threading.Event) -> None:
        """Upload what is in the full spool until there is space again; `work` uploads."""
        self._excess, self._look_at = 0, 0.0
        room = self._measure()
        if not self.paused and not (why := room.short_of()):
            return
        if not self.paused:
            self._pause(why)
        stuck = 0.0
        while not stop.is_set():
            self._uploads.press(pressed=True)
            work(_WAIT_SECONDS)
            room = self._measure()
            if room.has_room_again():
                break
            stuck = stuck + _WAIT_SECONDS if self._tracking.done else 0.0
            if stuck > _STUCK_SECONDS and not room.lacks_free_space:
                _log.warning("the spool exceeds its limit", used=room.used)
                self._excess = room.used
                break
        self._uploads.press(pressed=False)
        self.paused = False
        if not stop.is_set():
            _log.info("resumed: the spool has room", used=room.used, free=room.free)

    def _pause(self, why: str) -> None:
        _log.warning(
            "paused: the spool has no room", why=why, hint="it continues when there is space again"
        )
        self.paused = True

    def _room(self, tailer: Tailer, known: int) -> Room:
        current = tailer.current
        torn = current.scanner.position - current.size if current is not None else 0
        return self._measure().without(torn + known + self._excess)

    def _measure(self) -> Room:
        self.room = room = self._spool.room()
        return room
