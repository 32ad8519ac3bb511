"""How far everything is in the bucket, by the archive and by the source's clock.

Place in the flow: the watch tells what the source said, the loop what was archived; the heartbeat
reads the result.

Law: a moment is claimed only once every commit up to it is in the archive, and never taken back.
"""

import threading
from datetime import datetime

from binlog2s3.binlog import BinlogName
from binlog2s3.catalog import Position
from binlog2s3.server import ServerPosition
from binlog2s3.tailer import Track


class Coverage:
    """How far everything is in the bucket: the last binlog of the unbroken archive, and the time.

    `seen` is called by the watch's thread, `archived` by the loop, in any order of binlogs.
    """

    def __init__(self, durable: Position | None, following: BinlogName) -> None:
        self._lock = threading.Lock()
        self._following = following
        self._ahead: dict[BinlogName, Position] = {}
        self._seen: dict[BinlogName, datetime] = {}
        self.durable = durable
        self.until: datetime | None = None

    def seen(self, position: ServerPosition) -> None:
        """The source's clock and position; the latest of each binlog counts."""
        with self._lock:
            self._seen[position.binlog] = position.asked_at

    def archived(self, track: Track) -> None:
        """A binlog is in the archive with its entry."""
        after = track.gtids_after()
        position = Position(
            binlog=str(track.name),
            offset=track.size,
            gtid_set=str(after) if after is not None else "",
        )
        with self._lock:
            self._ahead[track.name] = position
            while self._following in self._ahead:
                self.durable = self._ahead.pop(self._following)
                self._following = self._following.next()
            passed = [name for name in self._seen if name < self._following]
            times = [self._seen.pop(name) for name in passed]
            self.until = max([*times, *([self.until] if self.until else [])], default=None)
