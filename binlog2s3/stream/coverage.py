"""How far a lineage is in the bucket: the fact "durable up to here". No requests, no clock."""

import threading
from dataclasses import dataclass
from datetime import datetime
from enum import IntEnum

from binlog2s3.archive.documents import Lineage
from binlog2s3.archive.writers import Position
from binlog2s3.binlog.names import BinlogName, FilePosition
from binlog2s3.server.connection import ServerPosition
from binlog2s3.stream.tail import Track

_MOST_STATES = 1000


class _State(IntEnum):
    """How much of a binlog is in the bucket; the later the more."""

    GROWING = 0
    GIVEN_UP = 1
    """All that was read is in chunks. The source may write more of it, until the next one."""
    WHOLE = 2
    ARCHIVED = 3
    """It has its entry."""


@dataclass(frozen=True, slots=True)
class _Known:
    """What is in the bucket of one binlog: it can be read up to `position`."""

    position: Position
    state: _State


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
        self._known: dict[BinlogName, _Known] = {}  # from `_archived` on, and what was given up
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
            known = self._known.get(name)
            if known is not None and known.state is _State.GIVEN_UP:
                self._known[name] = _Known(known.position, _State.GROWING)
                if name < self._following:
                    self._following, self.durable = name, known.position
                    self._archived = min(name, self._archived)
            self._go_on()

    def seen(self, position: ServerPosition, *, is_read: bool) -> None:
        """Note the source's clock and its position just after.

        A position before `durable` is of another history, after a RESET or a rollback; one that no
        run reads now (`is_read`) may be. It says nothing about commits of ours.
        """
        with self._lock:
            if self.durable is not None and position.place < self.durable.file_position:
                return
            if self.until is not None and position.asked_at < self.until:
                self.until = None
            if not is_read:
                return
            self._seen = [(earlier, at) for earlier, at in self._seen if at <= position.asked_at]
            self._seen.append((position.place, position.settled_at))
            if len(self._seen) > _MOST_STATES:  # nothing uploaded for hours: keep every other
                del self._seen[1::2]
            self._claim()

    def reached(self, position: Position, *, whole: bool = False) -> None:
        """Note that a binlog can be read up to this position. `whole`: that is all of it."""
        self._note(position, _State.WHOLE if whole else _State.GROWING)

    def archived(self, track: Track) -> None:
        """Note that a binlog is archived and has its entry."""
        self._note(Position.of(track.end, track.gtids_after()), _State.ARCHIVED)

    def given_up(self, track: Track) -> None:
        """Note that a binlog is in chunks as far as it was read, and the source has not ended it.

        The source may still write more of it, until the lineage goes on with another one.
        """
        self._note(Position.of(track.end, track.gtids_after()), _State.GIVEN_UP)

    def _note(self, position: Position, state: _State) -> None:
        with self._lock:
            name = position.binlog
            known = self._known.get(name)
            if known is None:
                is_new = name >= self._archived
            elif known.state is state is _State.GROWING:
                is_new = position.offset >= known.position.offset
            else:
                is_new = state > known.state
            if is_new:
                self._known[name] = _Known(position, state)
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
        while (known := self._known.get(self._following)) is not None:
            self.durable = known.position
            if known.state < _State.WHOLE and not self._is_left(known):
                break
            self._following = self._following.next()
        while (known := self._known.get(self._archived)) is not None:
            if known.state is _State.ARCHIVED:
                del self._known[self._archived]
            elif not self._is_left(known):
                break
            self._archived = self._archived.next()
        self._claim()

    def _is_left(self, known: _Known) -> bool:
        return known.state is _State.GIVEN_UP and known.position.binlog < self._newest

    def _claim(self) -> None:
        known = self._known.get(self._following)
        reached = FilePosition(self._following, known.position.offset if known else 0)
        passed = [at for position, at in self._seen if position <= reached]
        if passed:
            self._seen = [(position, at) for position, at in self._seen if position > reached]
            self.until = max([*passed, self.until or passed[0]])
