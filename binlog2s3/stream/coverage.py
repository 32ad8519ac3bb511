"""How far a lineage is in the bucket: the fact "durable up to here". No requests, no clock."""

import threading
from datetime import datetime

from binlog2s3.archive.documents import Lineage
from binlog2s3.archive.writers import Position
from binlog2s3.binlog.names import BinlogName, FilePosition
from binlog2s3.server.connection import ServerPosition
from binlog2s3.stream.tail import Track

_MOST_STATES = 1000


class Coverage:
    """How far a lineage is in the bucket: `durable` is the position, `until` the time.

    Law: a time is claimed only if every commit up to it can be read from the bucket. A claim is
    withdrawn only if the source's clock was set back: later commits then have earlier times.

    `following` is the first binlog that is not known to be there completely. `grows`: its history
    has not ended. `seen` is called by the watch's thread, the other methods by the loop, with
    binlogs in any order.
    """

    def __init__(self, lineage: Lineage, durable: Position | None, following: BinlogName) -> None:
        self._lock = threading.Lock()
        self._archived = following
        self._following = following
        self._newest = following
        self._reached: dict[BinlogName, Position] = {}
        self._whole: set[BinlogName] = set()
        self._entries: set[BinlogName] = set()
        self._given_up: dict[BinlogName, Position] = {}
        self._seen: list[tuple[FilePosition, datetime]] = []
        self.lineage = lineage
        self.grows = True
        self.durable = durable
        self.until: datetime | None = None

    def added(self, name: BinlogName) -> None:
        """Note that the lineage goes on with this binlog, or that it is read again.

        One that was given up is all there only if the lineage goes on behind it.
        """
        with self._lock:
            self._newest = max(name, self._newest)
            position = self._given_up.pop(name, None)
            if position is not None and name < self._following:
                self._following, self.durable = name, position
                self._archived = min(name, self._archived)
            self._go_on()

    def seen(self, position: ServerPosition, *, is_read: bool) -> None:
        """Note the source's clock and its position just after.

        A position before `durable` is of another history, after a RESET or a rollback; one that no
        run reads now (`is_read`) may be. It says nothing about commits of ours.
        """
        with self._lock:
            if self.durable is not None and position.place < self.durable.place:
                return
            if self.until is not None and position.asked_at < self.until:
                self.until = None
            if not is_read:
                return
            self._seen = [(place, at) for place, at in self._seen if at <= position.asked_at]
            self._seen.append((position.place, position.settled_at))
            if len(self._seen) > _MOST_STATES:  # nothing uploaded for hours: keep every other
                del self._seen[1::2]
            self._claim()

    def reached(self, position: Position, *, whole: bool = False) -> None:
        """Note that a binlog can be read up to this position. `whole`: that is all of it."""
        with self._lock:
            name, known = position.binlog, self._reached.get(position.binlog)
            if name < self._following or name in self._whole:
                return
            if known is not None and known.offset > position.offset:
                return
            self._reached[name] = position
            if whole:
                self._whole.add(name)
            self._go_on()

    def archived(self, track: Track) -> None:
        """Note that a binlog is archived and has its entry."""
        self.reached(Position.of(track.end, track.gtids_after()), whole=True)
        with self._lock:
            self._entries.add(track.name)
            self._go_on()

    def given_up(self, track: Track) -> None:
        """Note that a binlog is in chunks as far as it was read, and the source has not ended it.

        The source may still write more of it, until the lineage goes on with another one.
        """
        position = Position.of(track.end, track.gtids_after())
        self.reached(position)
        with self._lock:
            self._given_up[track.name] = position
            self._go_on()

    @property
    def following(self) -> BinlogName:
        """The first binlog that is not known to be in the bucket completely."""
        return self._following

    def has(self, name: BinlogName) -> bool:
        """Whether this binlog of the lineage, and all of it before, are archived with entries.

        Or are in chunks, and the lineage has gone on behind them.
        """
        with self._lock:
            return self.lineage.first_binlog <= name < self._archived

    def _go_on(self) -> None:
        while self._archived in self._entries or self._is_left(self._archived):
            self._entries.discard(self._archived)
            self._archived = self._archived.next()
        while (reached := self._reached.get(self._following)) is not None:
            self.durable = reached
            if not (self._following in self._whole or self._is_left(self._following)):
                break
            del self._reached[self._following]
            self._whole.discard(self._following)
            self._following = self._following.next()
        self._claim()

    def _is_left(self, name: BinlogName) -> bool:
        return name in self._given_up and name < self._newest

    def _claim(self) -> None:
        reached = self._reached.get(self._following)
        here = FilePosition(self._following, reached.offset if reached else 0)
        passed = [at for place, at in self._seen if place <= here]
        if passed:
            self._seen = [(place, at) for place, at in self._seen if place > here]
            self.until = max([*passed, self.until or passed[0]])
