"""The writer's own object in the bucket: its claim, its heartbeat, and who writes.

Place in the flow: the daemon claims it as the last step before its first other write. Then a
thread of its own renews it, so that a slow upload does not look like a dead writer. `standby` waits
until a claim is due.

Law: the greatest (generation, token) is the writer. A process that sees a greater one stops
writing. There is no lease: correctness does not depend on it, it only ends the waste of two
writers. Of two claims of one generation the later process has the greater token: a claim that a
killed process left on its way to the store, and that arrives when the next one has claimed, ends
nobody.
"""

import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from binlog2s3 import __version__
from binlog2s3.archive.catalog import Catalog, read
from binlog2s3.archive.layout import GENERATION_MOST, Layout
from binlog2s3.archive.writers import Heartbeat, Position, Process, Standby, Turn, WriterState
from binlog2s3.errors import (
    ArchiveError,
    Binlog2s3Error,
    PreconditionError,
    SpoolError,
    StoreError,
    SupersededError,
)
from binlog2s3.log import Log
from binlog2s3.status.model import StandbyStatus, standby_status
from binlog2s3.store.s3 import ObjectInfo, Store
from binlog2s3.stream.remote import where_absent
from binlog2s3.stream.spool import Rank, Spool

_log = Log("writer")
_DEAD_INTERVALS = 10
"""A standby whose object was not renewed for so many of its intervals is dead."""
_AUDIT_EVERY = 10
_MOST_TURNS = 10
_AGAIN_SECONDS = 5.0  # after a heartbeat that could not be put
_FIRST_BEAT_SECONDS = 3.0  # by then it is known what the bucket has
_HINT = "if this one is to be the writer, start it with --take-over"


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """What a heartbeat says of the stream, taken at one moment."""

    state: str
    lineage: str | None
    server_uuid: str
    durable: Position | None
    server: Position | None
    covered_until: datetime | None
    status: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Vacancy:
    """The writer's place is free, and why.

    `rank`: the greatest writer that there is, None if there is none. `info`: its object; a renewal
    would prove that it works after all. None where it may be renewed: it is known to be useless.
    """

    why: str
    rank: Rank | None = None
    info: ObjectInfo | None = None

    def holds(self, writers: Mapping[Rank, ObjectInfo]) -> bool:
        """Whether it is still so, with these writers."""
        greatest = max(writers, default=None)
        if greatest is None or (self.rank is not None and greatest < self.rank):
            return True
        return greatest == self.rank and self.info in (None, writers[greatest])


class Writer:
    """One process as a writer of a source. `failed` is called from its thread, once."""

    def __init__(
        self,
        *,
        store: Store,
        layout: Layout,
        spool: Spool,
        target: str,
        interval_seconds: float,
        progress: Callable[[], Progress],
        audit: Callable[[list[str], float], None],
        failed: Callable[[BaseException], None],
        stop: threading.Event,
    ) -> None:
        self._store = store
        self._layout = layout
        self._audit = audit
        self._beats = 0
        self._carried_durable: tuple[str, Position] | None = None
        self._spool = spool
        self._target = target
        self._progress = progress
        self._failed = failed
        self._stop = stop
        self._carried: dict[str, datetime] = {}
        self.beaten_at: float | None = None
        self.standbys: tuple[StandbyStatus, ...] | None = None
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)
        self._me = Heartbeat(
            **asdict(this_process(layout.source, interval_seconds)),
            generation=0,
            state="streaming",
            lineage=None,
            server_uuid="",
            durable=None,
            server=None,
            covered_until=None,
        )

    def claim(self, store: Store, vacancy: Vacancy | None = None) -> None:
        """Become the writer: put an object of a generation greater than any seen.

        What earlier writers proved (covered until, durable) is carried over. The spool has a record
        of the claim first, so that a restart after kill -9 knows its own. Raises SupersededError if
        the vacancy holds no longer (None: whoever works is taken over from), StoreError if `store`
        refuses, ArchiveError if no generation is greater than one that was seen.
        """
        catalog = Catalog(store, self._layout)
        found = catalog.writers()
        others = {rank: info for rank, info in found.items() if rank[1] != self._me.token}
        if vacancy is not None and not vacancy.holds(others):
            raise self._superseded(store, max(others))
        for beat in catalog.heartbeats(sorted(others)):
            if beat.lineage and beat.covered_until:
                before = self._carried.get(beat.lineage, beat.covered_until)
                self._carried[beat.lineage] = max(before, beat.covered_until)
            if beat.lineage and beat.durable:
                self._carried_durable = (beat.lineage, beat.durable)
        generation = max((generation for generation, _ in found), default=0) + 1
        if generation > GENERATION_MOST:
            raise ArchiveError(
                f"no writer can have a generation greater than {GENERATION_MOST}, which "
                f"{self._layout.writer(*max(others))} has",
                hint="no streamer has put that object: delete it",
            )
        self._me = replace(self._me, generation=generation)
        try:
            self._spool.note_claim(self._layout.source, self._target, self._me.rank)
        except SpoolError as error:  # a full disk, say: a restart after kill -9 waits, that is all
            _log.warning("the claim could not be recorded", error=error)
        self._put(store)
        _log.info("writer", generation=generation, token=self._me.token, host=self._me.host)

    def start(self) -> None:
        """Begin the heartbeat."""
        self._thread.start()

    def look(self, store: Store) -> dict[tuple[int, str], ObjectInfo]:
        """The writers that there are. Raises SupersededError if one is greater than we."""
        others = Catalog(store, self._layout).writers()
        self._give_way_to_greater(store, others)
        return others

    def _give_way_to_greater(self, store: Store, others: Iterable[Rank]) -> None:
        greater = [rank for rank in others if rank > self._me.rank]
        if greater:
            raise self._superseded(store, max(greater))

    def take_turn(self, store: Store, lineage: str) -> None:
        """Say, for ever, that this lineage is written from here on: before its first byte.

        A turn of a writer before us that arrives late finds its number taken. Raises
        SupersededError if somebody is greater than we, StoreError if `store` refuses, ArchiveError
        if no number is greater than one that was seen.
        """
        catalog = Catalog(store, self._layout)
        for _ in range(_MOST_TURNS):
            last = catalog.turn()
            self.look(store)
            number = last.number + 1 if last is not None else 1
            if number > GENERATION_MOST:
                raise ArchiveError(
                    f"no turn can have a number greater than {GENERATION_MOST}, which "
                    f"{self._layout.turn(GENERATION_MOST)} has",
                    hint="no streamer has put that object: delete it",
                )
            turn = Turn(
                number=number,
                lineage=lineage,
                generation=self._me.generation,
                token=self._me.token,
            )
            key = self._layout.turn(number)
            try:
                where_absent(partial(_put_turn, store, key, turn.to_json()))
            except PreconditionError:
                if read(store, key, Turn) != turn:  # else ours, where an answer was lost
                    continue
            _log.info("turn", number=number, lineage=lineage)
            return
        raise StoreError(
            f"others take the turn of {self._layout.source} again and again",
            hint=_HINT,
            transient=True,
        )

    def beat(self) -> None:
        """Look for a greater writer, renew our object, delete those of the dead.

        Every tenth time, and the first, the same listing shows all chunks, for the audit.
        """
        asked_at = time.monotonic()
        if self._beats % _AUDIT_EVERY == 0:
            others, keys = Catalog(self._store, self._layout).live()
            self._give_way_to_greater(self._store, others)
            self._audit(keys, asked_at)
        else:
            others = self.look(self._store)
        self._beats += 1
        standbys = Catalog(self._store, self._layout).standbys()
        self.standbys = tuple(standby_status(one, info.last_modified) for one, info in standbys)
        clock = self._put(self._store)
        dead = [info.key for one, info in standbys if _is_dead(one, clock - info.last_modified)]
        if dead:
            self._store.delete(dead)
        older = [rank for rank in others if rank < self._me.rank]
        if older:
            self._store.delete([self._layout.writer(*rank) for rank in older])

    def finish(self, store: Store) -> None:
        """Say that this writer has stopped; a store that does not answer is not waited for."""
        try:
            self._put(store, state="stopped")
        except Binlog2s3Error as error:
            _log.warning("last heartbeat not written", error=error)

    def _put(self, store: Store, state: WriterState | None = None) -> datetime:
        """Put our object; the store's clock."""
        now = self._progress()
        self._me = replace(
            self._me,
            at=datetime.now(UTC),
            state=state or now.state,
            lineage=now.lineage,
            server_uuid=now.server_uuid,
            durable=self._furthest(now),
            server=now.server,
            covered_until=self.furthest_covered(now.lineage, now.covered_until),
            status=now.status,
        )
        info = store.put(self._layout.writer(*self._me.rank), self._me.to_json())
        self.beaten_at = time.monotonic()
        return info.last_modified

    @property
    def me(self) -> Heartbeat:
        """What was last put, or is to be."""
        return self._me

    def furthest_covered(self, lineage: str | None, until: datetime | None) -> datetime | None:
        """Up to when all is covered; until we know it, what the writers before us proved of it."""
        return until if until is not None else self._carried.get(lineage or "")

    def told_time(self, moment: datetime) -> None:
        """The source's clock. What was proved by a later one is of no use any more."""
        for lineage, until in [*self._carried.items()]:
            if until > moment:
                _log.warning("the source's clock was set back", covered_until=until, now=moment)
                del self._carried[lineage]

    def _furthest(self, now: Progress) -> Position | None:
        """What is durable; not less than the writer before us said of the same lineage."""
        if self._carried_durable is None or self._carried_durable[0] != now.lineage:
            return now.durable
        carried = self._carried_durable[1]
        if now.durable is None or now.durable.place < carried.place:
            return carried
        return now.durable

    def _superseded(self, store: Store, rank: Rank) -> SupersededError:
        beat = next(iter(Catalog(store, self._layout).heartbeats([rank])), None)
        ours = f", ours is {self._me.generation}" if self._me.generation else ""
        return SupersededError(
            f"another writer of {self._layout.source} has taken over{where(beat)}: "
            f"generation {rank[0]}{ours}",
            hint=_HINT,
        )

    def _run(self) -> None:
        wait = min(_FIRST_BEAT_SECONDS, self._me.interval_seconds)
        while not self._stop.wait(wait):
            wait = self._me.interval_seconds
            try:
                self.beat()
            except StoreError as error:
                if self._stop.is_set():
                    return
                wait = min(wait, _AGAIN_SECONDS)
                _log.recurring("heartbeat not written", error=error, hint=error.hint)
            except BaseException as error:  # noqa: BLE001 - the daemon ends the process with it
                self._failed(error)
                return


def _put_turn(store: Store, key: str, document: bytes, if_absent: bool) -> None:
    store.put(key, document, if_absent=if_absent)


def this_process(source: str, interval_seconds: float) -> Process:
    """What a heartbeat and a standby's object say of this process, as of now, with a new token."""
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
    """16 hex digits: the milliseconds since 1970, which make later ones greater, and chance."""
    return f"{int(now.timestamp() * 1000):011x}{secrets.randbits(20):05x}"


def _is_dead(standby: Standby, age: timedelta) -> bool:
    return age.total_seconds() > _DEAD_INTERVALS * standby.interval


def where(beat: Heartbeat | None) -> str:
    """On which host a writer runs, for a message; "" if its object cannot be read."""
    if beat is None:
        return ""
    return f" on {beat.host} (process {beat.pid}, since {beat.since:%Y-%m-%d %H:%M:%SZ})"
