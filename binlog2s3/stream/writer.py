"""The writer's object in the bucket: how a process claims to be the writer, and its heartbeat.

The claim comes before any other write. Then a thread renews the object, so that a slow upload does
not look like a dead writer.

Law: the object with the greatest (generation, token) belongs to the writer. A process that sees a
greater one stops writing. There is no lease: correctness does not depend on it, it only ends the
waste of two writers. Of two claims with one generation, the later process has the greater token.
So a claim of a killed process that reaches the store late supersedes nobody.
"""

import math
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial

from binlog2s3 import __version__
from binlog2s3.archive.catalog import Catalog, read
from binlog2s3.archive.layout import GENERATION_MOST
from binlog2s3.archive.writers import (
    Heartbeat,
    Position,
    Process,
    Standby,
    Turn,
    WriterState,
)
from binlog2s3.errors import (
    ArchiveError,
    Binlog2s3Error,
    PreconditionError,
    SpoolError,
    StoreError,
    SupersededError,
)
from binlog2s3.formatting import moment_text
from binlog2s3.log import Log
from binlog2s3.status.model import StandbyStatus, standby_status
from binlog2s3.store.s3 import ObjectInfo, Store
from binlog2s3.stream.remote import where_absent
from binlog2s3.stream.spool import Rank, Spool
from binlog2s3.stream.uploader import LiveKeys, Uploader
from binlog2s3.stream.waiting import Periodic, Stop
from binlog2s3.workers import both

_log = Log("writer")
_DEAD_INTERVALS = 10
"""A standby is dead if it does not renew its object for this many of its intervals."""
_AUDIT_EVERY = 10
_MOST_TURNS = 10
_FRESH_SECONDS = 2.0
_AGAIN_SECONDS = 5.0  # after a heartbeat that failed
_FIRST_BEAT_SECONDS = 3.0  # by then the streamer knows what the bucket has
_HINT = "to make this process the writer, start it with --take-over"


@dataclass(frozen=True, slots=True, kw_only=True)
class Vacancy:
    """The writer's place is free, and why.

    `rank` is the greatest one in the bucket, None if there is none. `info` is its object: if that
    is renewed, its writer works after all. `info` is None if the object may be renewed, because
    its writer is known to be useless. `is_calm`: since the first look no process can have written
    that does not claim first, so what was read beside that look is true. `writers` is what was
    listed then, `looked_at` the monotonic time; `beat` is what the greatest one's object said.
    """

    why: str
    is_calm: bool = False
    rank: Rank | None = None
    info: ObjectInfo | None = None
    writers: Mapping[Rank, ObjectInfo] = field(default_factory=dict)
    looked_at: float = -math.inf
    beat: Heartbeat | None = None

    @property
    def is_fresh(self) -> bool:
        """Whether it is so new that the claim need not list the writers once more.

        An answer may be on its way as long as that. Who claims meanwhile sees our claim, or we see
        that one, at the look that comes before a turn.
        """
        return self.is_calm and time.monotonic() - self.looked_at < _FRESH_SECONDS

    def read(self, writers: Mapping[Rank, ObjectInfo]) -> Mapping[Rank, Heartbeat]:
        """What the greatest one's object says, if it is the one that was read."""
        beat, rank = self.beat, self.rank
        if beat is None or rank is None or writers.get(rank) != self.writers.get(rank):
            return {}
        return {rank: beat}

    def holds(self, writers: Mapping[Rank, ObjectInfo]) -> bool:
        """Whether the place is still free, with these writers in the bucket."""
        greatest = max(writers, default=None)
        if greatest is None or (self.rank is not None and greatest < self.rank):
            return True
        return greatest == self.rank and self.info in (None, writers[greatest])


class Writer:
    """Writes the heartbeat of this process, which is the writer of a source once it has claimed.

    `progress` returns the heartbeat that it is given, with what the stream has reached. The
    `uploads` get what is listed. `turn` is the last one that was seen. `beaten_at` (monotonic
    seconds) is when the object was last put, None if never.
    """

    def __init__(
        self,
        *,
        catalog: Catalog,
        spool: Spool,
        interval_seconds: float,
        progress: Callable[[Heartbeat], Heartbeat],
        uploads: Uploader,
        stop: Stop,
        turn: Turn | None = None,
    ) -> None:
        self._catalog = self._preflight = catalog
        self._turn = turn
        self._beats = 0
        self._spool = spool
        self._progress = progress
        self._uploads = uploads
        self._stop = stop
        self._before: dict[str, Heartbeat] = {}  # what earlier writers said, by lineage
        self.beaten_at: float | None = None
        self._putting = threading.Lock()
        self._has_stopped = False
        self.standbys: tuple[StandbyStatus, ...] | None = None
        self._me = Heartbeat(
            **asdict(this_process(spool.source, interval_seconds)),
            generation=0,
            state="streaming",
            lineage=None,
            server_uuid="",
            durable=None,
            server=None,
            covered_until=None,
        )

    def claim(self, catalog: Catalog, vacancy: Vacancy | None = None) -> None:
        """Become the writer: put an object with a generation greater than any in the bucket.

        Keeps what earlier writers proved (covered until, durable). Records the claim in the spool
        first, so that a restart after kill -9 recognizes its own. Raises SupersededError if the
        vacancy no longer holds (None: take over from any writer), StoreError if the store refuses,
        ArchiveError if there is no greater generation.
        """
        self._preflight = catalog
        known = vacancy if vacancy is not None and vacancy.is_fresh else None
        writers = known.writers if known is not None else catalog.writers()
        others = {rank: info for rank, info in writers.items() if rank[1] != self._me.token}
        if vacancy is not None and not vacancy.holds(others):
            raise self._superseded(catalog, max(others))
        read = vacancy.read(others) if vacancy is not None else {}
        beats = catalog.heartbeats(sorted(others.keys() - read.keys()))
        for beat in (*beats, *read.values()):  # that one is the greatest
            if beat.lineage:
                before = self._before.get(beat.lineage, beat)
                moments = [
                    heartbeat.covered_until
                    for heartbeat in (before, beat)
                    if heartbeat.covered_until
                ]
                self._before[beat.lineage] = replace(
                    beat,
                    durable=beat.durable or before.durable,
                    covered_until=max(moments, default=None),
                )
        last = max(writers, default=(0, ""))
        generation = _after(last[0], catalog.layout.writer(*last))
        self._me = replace(self._me, generation=generation)
        try:
            self._spool.note_claim(self._me.rank)
        except SpoolError as error:  # a full disk, for example: a restart after kill -9 waits
            _log.warning("the claim could not be recorded", error=error)
        self._put(catalog.store)
        _log.info("this process is the writer", writer=generation, host=self._me.host)

    def start(self) -> None:
        """Begin the heartbeat."""
        beats = Periodic("heartbeat", self._step, self._stop.event, failed=self._stop.fail)
        beats.start(min(_FIRST_BEAT_SECONDS, self._me.interval_seconds))

    def look(self) -> dict[tuple[int, str], ObjectInfo]:
        """The writers in the bucket. Raises SupersededError if one is greater than this one."""
        others = self._catalog.writers()
        self._give_way_to_greater(self._catalog, others)
        return others

    def blame(self) -> None:
        """Look for another writer: its mysqlbinlog has our server id and evicts ours.

        Uses the store of the claim, which does not try again for long. Raises SupersededError.
        """
        try:
            self._give_way_to_greater(self._preflight, self._preflight.writers())
        except StoreError as error:
            _log.recurring("could not look for another writer", error=error)

    def _give_way_to_greater(self, catalog: Catalog, others: Iterable[Rank]) -> None:
        greater = [rank for rank in others if rank > self._me.rank]
        if greater:
            raise self._superseded(catalog, max(greater))

    def take_turn(self, lineage: str, describe: Callable[[], bool] | None = None) -> bool:
        """Record permanently that this lineage is the current one, before its first byte is put.

        `describe` puts a new lineage's document; its answer is returned, else False. The turn is
        put after it. What the turn waits for is asked beside it, and whether the store keeps
        conditions: see `try_condition`. A number that somebody used and deleted is passed over:
        readers may see both turns. A turn of an earlier writer that arrives late finds its number
        taken. Raises SupersededError if there is a greater writer, StoreError if the store refuses,
        ArchiveError if there is no greater number.
        """
        store, layout = self._catalog.store, self._catalog.layout
        asks = partial(both, self.try_condition, self._last_turn)
        described, (_, last) = both(describe or (lambda: False), asks)
        for _ in range(_MOST_TURNS):
            before = last.number if last is not None else 0
            number = _after(before, layout.turn(before))
            used = self._uploads.plants.turns(before)
            while number in used:
                number = _after(number, layout.turn(number))
            turn = Turn(
                number=number,
                lineage=lineage,
                generation=self._me.generation,
                token=self._me.token,
            )
            key, document = layout.turn(number), turn.to_json()
            is_ours = False
            with suppress(PreconditionError):  # it may be ours, and the answer was lost
                where_absent(partial(_put_turn, store, key, document))
                is_ours = store.refuses_replacing
            if not is_ours:
                taken = read(store, key, Turn)
                is_ours = taken == turn  # a store may ignore the condition
                if taken.lineage == lineage and (taken.generation, taken.token) < self._me.rank:
                    self._turn = taken
            if is_ours:
                self._turn = turn
                _log.info("the current lineage", lineage=lineage)
                return described
            last = self._last_turn()
        raise StoreError(
            f"{key} was taken by another writer, and the store did not list it in "
            f"{_MOST_TURNS} attempts",
            hint="its listings are late: start this process again when they show that object",
            transient=True,
        )

    def _last_turn(self) -> Turn | None:
        """The last turn, read beside the writers. Raises SupersededError as `look` does.

        The last one that is known, if the store does not list it yet.
        """
        listed, _writers = both(partial(self._catalog.turn, self._turn), self.look)
        known = [turn for turn in (listed, self._turn) if turn is not None]
        last = self._turn = max(known, key=lambda turn: turn.number, default=None)
        if last is not None and (last.generation, last.token) > self._me.rank:
            self.look()  # after it: who took that turn had claimed before
        return last

    def beat(self) -> None:
        """Look for a greater writer, renew our object, delete the objects of dead processes.

        The first time, and then every tenth time, the same listing has all chunks, for the audit.
        """
        asked_at = time.monotonic()
        if self._beats % _AUDIT_EVERY == 0:
            others, keys = self._catalog.live()
            self._give_way_to_greater(self._catalog, others)
            self._uploads.hand_in(LiveKeys(keys, asked_at))
        else:
            others = self.look()
        self._beats += 1
        standbys = self._catalog.standbys()
        self.standbys = tuple(
            standby_status(standby, info.last_modified) for standby, info in standbys
        )
        clock = self._put(self._catalog.store)
        dead = [
            info.key for standby, info in standbys if _is_dead(standby, clock - info.last_modified)
        ]
        dead += [self._catalog.layout.writer(*rank) for rank in others if rank < self._me.rank]
        if dead:
            try:
                self._catalog.store.delete(dead)
            except StoreError as error:
                _log.recurring("objects of dead processes not deleted", error=error)
        if self._beats == 1:
            self._name_strange_uploads()

    def try_condition(self) -> None:
        """See whether the store refuses to replace our object, which may be replaced."""
        with self._putting:
            key, document = self._key, self._me.fitting.to_json()
            if not self._has_stopped:
                with suppress(StoreError):  # then each put is looked at before, as without it
                    self._catalog.store.try_condition(key, document)

    def _name_strange_uploads(self) -> None:
        try:
            strange = self._catalog.strange_uploads()
        except StoreError as error:
            _log.info("unfinished uploads are not shown", error=error)
            return
        for key in strange:
            _log.warning("left alone: not of this archive's format", key=key)

    def finish(self, store: Store) -> None:
        """Record that this writer has stopped. A failure is logged, not raised.

        Nothing is put after it: a heartbeat that is on its way is waited for.
        """
        try:
            self._put(store, state="stopped")
        except Binlog2s3Error as error:
            _log.warning("last heartbeat not written", error=error)

    def _put(self, store: Store, state: WriterState | None = None) -> datetime:
        """Put our object; returns the store's clock."""
        with self._putting:
            now = self._progress(self._me)
            self._me = replace(
                now,
                at=datetime.now(UTC),
                state="stopped" if self._has_stopped else state or now.state,
                durable=self._furthest(now),
            )
            self._has_stopped |= state == "stopped"
            info = store.put(self._key, self._me.fitting.to_json())
            self.beaten_at = time.monotonic()
            return info.last_modified

    @property
    def _key(self) -> str:
        return self._catalog.layout.writer(*self._me.rank)

    @property
    def me(self) -> Heartbeat:
        """The object that was last put, or will be put first."""
        return self._me

    def furthest_covered(self, lineage: str | None, until: datetime | None) -> datetime | None:
        """`until`, or if that is unknown, what earlier writers proved of this lineage."""
        before = self._before.get(lineage or "")
        return before.covered_until if until is None and before is not None else until

    def before(self, lineage: str) -> Heartbeat | None:
        """What the writer before said of this lineage, and of its source.

        `durable` and `covered_until` are what all writers before had proved of the lineage.
        """
        return self._before.get(lineage)

    def told_time(self, moment: datetime) -> None:
        """Take the source's clock. What was proved by a later clock is dropped."""
        for lineage, before in [*self._before.items()]:
            until = before.covered_until
            if until is not None and until > moment:
                _log.warning("the source's clock was set back", covered_until=until, now=moment)
                self._before[lineage] = replace(before, covered_until=None)

    def _furthest(self, now: Heartbeat) -> Position | None:
        """What is durable, but not less than earlier writers said of the same lineage."""
        before = self._before.get(now.lineage or "")
        if before is None or before.durable is None:
            return now.durable
        if now.durable is None or now.durable.file_position < before.durable.file_position:
            return before.durable
        return now.durable

    def _superseded(self, catalog: Catalog, rank: Rank) -> SupersededError:
        beat = next(iter(catalog.heartbeats([rank])), None)
        ours = f", this one is number {self._me.generation}" if self._me.generation else ""
        return SupersededError(
            f"another writer of {self._spool.source} has taken over{where(beat)}: "
            f"it is writer number {rank[0]}{ours}",
            hint=_HINT,
        )

    def _step(self) -> float:
        try:
            self.beat()
        except StoreError as error:
            if not self._stop.event.is_set():
                _log.recurring("heartbeat not written", error=error, hint=error.hint)
            return min(self._me.interval_seconds, _AGAIN_SECONDS)
        _log.over("heartbeat written again", "heartbeat not written")
        return self._me.interval_seconds


def _after(number: int, key: str) -> int:
    """The next generation or number of a turn. Raises ArchiveError if `key` has the greatest."""
    if number >= GENERATION_MOST:
        raise ArchiveError(
            f"{key} has the greatest number that is possible, and no other can follow",
            hint="no streamer has put that object: delete it",
        )
    return number + 1


def _put_turn(store: Store, key: str, document: bytes, if_absent: bool) -> None:
    store.put(key, document, if_absent=if_absent, kept=True)


def this_process(source: str, interval_seconds: float) -> Process:
    """What a heartbeat or a standby's object says of this process, with a new token."""
    now = datetime.now(UTC)
    return Process(
        token=new_token(now),
        source=source,
        host=socket.gethostname(),
        pid=os.getpid(),
        version=__version__,
        since=now,
        at=now,
        interval_seconds=interval_seconds,
    )


def new_token(now: datetime) -> str:
    """16 hex digits: milliseconds since 1970, so that later ones are greater, then random bits."""
    return f"{int(now.timestamp() * 1000):011x}{secrets.randbits(20):05x}"


def _is_dead(standby: Standby, age: timedelta) -> bool:
    return age.total_seconds() > _DEAD_INTERVALS * standby.interval


def where(beat: Heartbeat | None) -> str:
    """Where a writer runs, for a message; "" if its object cannot be read."""
    if beat is None:
        return ""
    return f" on {beat.host} (process {beat.pid}, since {moment_text(beat.since)})"
